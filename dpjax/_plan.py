"""Choosing a contour: the tilt s, the period Lam and the cutoff T with which the trapezoid sum of ``contour`` is cheapest.

Every term of the certificate is known roughly before a complex node is evaluated, so the choice is made on a grid of
tilts from sums over one fixed set of u-nodes. Nothing here is certified: a bad choice costs nodes or a wide interval,
never a wrong one, since ``contour`` bounds every term anew.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dpjax import _special, cumulant
from dpjax._positions import at_least, first_true, pick
from dpjax._precision import namespace
from dpjax._special import is_single, like, ln, ln1p, log1p, tiny
from dpjax.pairs import SampledGaussianPair

PI = jnp.pi
MANY = 64  # nodes from which it pays to look for a better tilt
_SHARES = 4.0  # of tol: alias up, alias down, truncation; the inner quadrature and rounding are far below
_GRID = 32
_PRICE = 1.0  # a tenfold loss of precision must save nine tenths of the nodes
_WIDE = np.exp(np.linspace(np.log(1e-4), np.log(1e12), _GRID))  # the first grid of tilts
_AROUND = np.exp(np.linspace(np.log(1 / 30), np.log(3.0), _GRID))  # the second, relative to the tilt found on the first
_SHIFTS = np.linspace(1.0, 0.0, 14)  # contour shifts, from the smallest to the largest on a log scale


class Problem(NamedTuple):
    """A composition in one direction: K(z) = variance z (z + 1) / 2 + sum_i count_i K_i(z).

    Attributes:
      variance: shape (lanes,), the Gaussian components' sum of mu^2.
      pair: the sampled components, shape (lanes, components).
      count: shape (lanes, components).
    """

    variance: jax.Array
    pair: SampledGaussianPair
    count: jax.Array


class Plan(NamedTuple):
    """A contour and what it was chosen for; (lanes,) unless said otherwise."""

    epsilon: jax.Array
    log_delta: jax.Array
    s_grid: jax.Array  # (lanes, grid)
    k_grid: jax.Array  # K at s_grid, not certified
    target_grid: jax.Array  # (lanes, grid): log of the error that one share may have
    period_grid: jax.Array
    price: jax.Array  # (lanes, grid): log of the factor in nodes that the tilt's lost precision is worth
    log_c: jax.Array  # (lanes, grid): log of the predicted cancellation
    gauss_t: jax.Array  # (lanes, grid): where a Gaussian would be cut off
    index: jax.Array
    s: jax.Array
    period: jax.Array
    nodes: jax.Array  # predicted number, a float
    shift: jax.Array  # (lanes, components): the contour shift of the truncation bound
    height: jax.Array  # (lanes, components): the line Im u = height of the inner nodes
    step: jax.Array  # (lanes, components): and their spacing


def _slack(each: jax.Array) -> float:
    """What a sum along the last axis, and the function that follows it, may be off by."""
    return 4e-6 + 6e-8 * each.shape[-1] if is_single(each) else 1e-13


def largest_loss(problem: Problem) -> jax.Array:
    """An upper bound of the largest possible loss: finite only if nothing is unbounded (the add direction)."""
    pair, count = problem.pair, problem.count
    xp = namespace(*problem.pair[:2], count)
    unbounded = xp.any((pair.sign > 0) & (pair.beta != 0), -1) | (pair.q >= 1)
    each = xp.where(unbounded, xp.inf, -(xp.log1p if xp is np else ln1p)(-xp.where(unbounded, 0.0, pair.q)))
    bounded = xp.where((count > 0) & (pair.q > 0), count * each, 0.0)
    return xp.where(problem.variance > 0, xp.inf, xp.sum(bounded, -1) * (1 + _slack(bounded)))


def log_touched(problem: Problem) -> jax.Array:
    """log of the probability that some step sees the record, rounded up: a bound on delta at every epsilon >= 0."""
    xp = namespace(*problem.pair[:2], problem.count)
    q = problem.pair.q
    log, log1p, expm1 = (xp.log, xp.log1p, xp.expm1) if xp is np else (ln, ln1p, _special.expm1)
    untouched = xp.sum(problem.count * log1p(-xp.minimum(q, 1 - (6e-8 if is_single(q) else 1e-16))), -1)
    log_p = log(-expm1(xp.minimum(untouched, 0.0)) + tiny(q)) + _slack(q)
    return xp.where(problem.variance > 0, 0.0, xp.minimum(log_p, 0.0))


def xlogx(s: jax.Array) -> jax.Array:
    if is_single(s):
        return -log1p(s) - s * log1p(1 / s)
    return s * jnp.log(s) - (1 + s) * jnp.log1p(s)


def _moments(problem: Problem, u: jax.Array, nodes: cumulant.Nodes, log_n: jax.Array, s: jax.Array):
    """K, K' and K'' of the composition on a grid of tilts (lanes, grid), from a fixed set of u-nodes.

    K comes with an ulp's absolute error for each step, which is enough to plan with.
    """
    pair = problem.pair
    loss = nodes.loss[:, :, None, :]
    wide = jax.tree.map(lambda a: a[:, :, None], pair)
    log_w = (log_n + nodes.log_p)[:, :, None, :] + s[:, None, :, None] * loss
    top = jnp.max(log_w, -1, keepdims=True)
    w = jnp.exp(log_w - top)
    z = jnp.sum(w, -1)
    k = jnp.maximum(top[..., 0] + jnp.log(z), 0.0)
    mean = jnp.sum(w * loss, -1) / z
    spread2 = jnp.maximum(jnp.sum(w * loss * loss, -1) / z - mean * mean, 0.0)
    # a second peak of the weight beyond the last node, where (1 + v)^(1+s) is about (q exp y)^(1+s)
    c = s[:, None, :]
    far = (1 + c) * jnp.log(wide.q + tiny(wide.q)) + 0.5 * c * (1 + c) / wide.sigma**2
    unseen = jnp.any(pair.sign > 0, -1)[:, :, None] & ((1 + c) / wide.sigma > u[..., -1:])
    dominant = unseen & (far > k)
    mean = jnp.where(dominant, jnp.log(wide.q + tiny(wide.q)) + (0.5 + c) / wide.sigma**2, mean)
    spread2 = jnp.where(dominant, 1 / wide.sigma**2, spread2)
    k = jnp.where(unseen, jnp.logaddexp(k, far), k)
    count = problem.count[:, :, None]
    g = problem.variance[:, None]
    return (
        0.5 * g * s * (1 + s) + jnp.sum(count * k, 1),
        g * (s + 0.5) + jnp.sum(count * mean, 1),
        g + jnp.sum(count * spread2, 1),
    )


def saddle(s, k, k1, k2):
    """epsilon whose saddle is s, and the saddle-point value of log delta there."""
    eps = k1 - 1 / s - 1 / (1 + s)
    curvature = k2 + 1 / s**2 + 1 / (1 + s) ** 2
    return eps, k - s * eps - jnp.log(s) - jnp.log1p(s) - 0.5 * jnp.log(2 * PI * curvature)


def _u_nodes(problem: Problem, log_delta: jax.Array, size: int) -> tuple[jax.Array, jax.Array]:
    """Nodes (lanes, components, size) that see every tilt worth considering, and their spacing.

    A tilt moves the noise by u at a price of u^2 / 2 nats, so that none worth log delta moves it by more than
    sqrt(-2 log delta).
    """
    pair = problem.pair
    inv = 1 / pair.sigma
    low = -9.0 - jnp.where(jnp.any(pair.sign < 0, -1), inv, 0.0)
    high = jnp.maximum(9.0 + jnp.sqrt(2 * jnp.maximum(-log_delta, 1.0))[:, None], inv + 9.0)
    du = (high - low) / (size - 1)
    return low[..., None] + du[..., None] * np.arange(size, dtype=du.dtype), du


def choose(problem: Problem, epsilon: jax.Array, log_delta: jax.Array, tol: jax.Array) -> Plan:
    """The grid of tilts for ``epsilon`` and ``log_delta`` (one may be NaN: it is then estimated); all (lanes,).

    ``climb`` picks a tilt of the grid.
    """
    pair = problem.pair
    lanes = pair.sigma.shape[0]
    no_epsilon, no_delta = jnp.isnan(epsilon), jnp.isnan(log_delta)
    u, du = _u_nodes(problem, jnp.where(no_delta, -60.0, log_delta), 96)
    nodes = cumulant.at(pair, u)
    log_n = -0.5 * u * u - 0.5 * cumulant.LOG_2PI + jnp.log(du)[..., None]

    def refine(i, carry):
        s = carry[0]
        k, k1, k2 = _moments(problem, u, nodes, log_n, s)
        eps_s, log_s = saddle(s, k, k1, k2)
        after = first_true(jnp.where(no_epsilon[:, None], log_s < log_delta[:, None], eps_s > epsilon[:, None]))
        return jnp.where(i == 0, pick(s, after)[:, None] * like(_AROUND, s), s), k, k2, eps_s, log_s, after

    wide = jnp.broadcast_to(like(_WIDE, u), (lanes, _GRID))
    zero = jnp.zeros_like(wide)
    start = (wide, zero, zero, zero, zero, jnp.zeros((lanes,), jnp.int32))
    s, k, k2, eps_s, log_s, after = lax.fori_loop(np.int32(0), np.int32(2), refine, start)

    return contours(pair, epsilon, log_delta, tol, s, k, k2, eps_s, log_s, after)


def contours(pair: SampledGaussianPair, epsilon, log_delta, tol, s, k, k2, eps_s, log_s, after: jax.Array) -> Plan:
    """The plan on a grid of tilts s, with K and K'' there and what ``saddle`` makes of them; (lanes, grid).

    ``after`` (lanes,) is the first tilt beyond the saddle of ``epsilon`` or ``log_delta``, of which one may be NaN.
    """
    no_epsilon, no_delta = jnp.isnan(epsilon), jnp.isnan(log_delta)
    # the unknown one, between the last tilt before the known one and the first beyond it
    before = jnp.maximum(after - 1, 0)
    e0, e1, l0, l1 = pick(eps_s, before), pick(eps_s, after), pick(log_s, before), pick(log_s, after)
    part = jnp.where(no_epsilon, (log_delta - l0) / (l1 - l0), (epsilon - e0) / (e1 - e0))
    part = jnp.clip(jnp.where(jnp.isnan(part), 0.0, part), 0.0, 1.0)
    eps = jnp.where(no_epsilon, jnp.maximum(e0 + part * (e1 - e0), 0.0), epsilon)
    log_d = jnp.where(no_delta, jnp.minimum(l0 + part * (l1 - l0), 0.0), log_delta)

    exponent = k - s * eps[:, None]
    unit = 32 * _special.unit(s)  # the rounding of an average term, about
    log_height = -0.5 * jnp.log(4 * s * (1 + s))
    log_c = jnp.maximum(exponent + log_height - log_d[:, None], 0.0)
    # what each tilt can reach: tol, or its own rounding error
    rounding = np.log(unit) + log_c
    reach = jnp.where(rounding < jnp.log(0.5 * tol)[:, None], jnp.log(tol / _SHARES)[:, None], rounding + 0.2)
    log_target = log_d[:, None] + reach

    gap = s[:, None, :] - s[:, :, None]  # (lanes, s, r)
    clear = gap > 1e-3 * s[:, :, None]
    rise = jnp.maximum((exponent + xlogx(s))[:, None, :] - log_target[:, :, None], 1.0)
    up = jnp.min(jnp.where(clear, rise / jnp.where(clear, gap, 1.0), jnp.inf), 2)
    down = (jnp.maximum(eps, 0.0)[:, None] - log_target) / (1 + s)
    # A is subtracted, but costs digits: what rounding can spare
    spare = jnp.clip(reach - np.log(unit) - 2.0, -3.0, 7.0)
    known = jnp.maximum(-spare - log_d[:, None], 0.0) / s
    period = jnp.maximum(jnp.maximum(up, down), known)
    log_c = jnp.maximum(exponent + jnp.logaddexp(log_height, -jnp.log(period * s * (1 + s))) - log_d[:, None], 0.0)
    gauss_t = jnp.sqrt(2 * jnp.maximum(exponent - log_target, 1.0) / (k2 + tiny(k2)))
    price = jnp.where(jnp.isfinite(period), _PRICE * (reach - jnp.min(reach, 1, keepdims=True)), jnp.inf)
    index = at_least(price + jnp.log(period * gauss_t))
    nothing, empty = jnp.zeros_like(eps), jnp.zeros_like(pair.sigma)
    return Plan(
        eps, log_d, s, k, log_target, period, price, log_c, gauss_t,
        index, nothing, nothing, nothing + jnp.inf, empty, empty, empty,
    )  # fmt: skip


def at_tilt(problem: Problem, plan: Plan, index: jax.Array) -> Plan:
    """The plan with the cutoff, the shifts and the inner spacing that belong to tilt number ``index``."""
    pair, count = problem.pair, problem.count
    s, period, target = (pick(a, index) for a in (plan.s_grid, plan.period_grid, plan.target_grid))
    u, du = _u_nodes(problem, plan.log_delta, 64)
    t = pick(plan.gauss_t, index)
    # the best shift of a light loss is about t q / sigma
    widest = 0.4 * jnp.minimum(PI * pair.sigma, 60.0)
    least = jnp.clip(0.3 * t[:, None] * pair.q / pair.sigma / widest, 1e-8, 7.5e-4)
    y = widest[..., None] * least[..., None] ** like(_SHIFTS, t)
    nodes = cumulant.shifted(pair, s, u[:, :, None, :], y[..., None])
    modulus, angle = nodes.log_modulus + jnp.log(du)[..., None, None], nodes.loss[1]

    def log_b(t):  # log of the envelope for each shift, (lanes, components, shifts); t is (lanes,)
        exponent = modulus - t[:, None, None, None] * angle
        crest = jnp.max(exponent, -1, keepdims=True)
        return crest[..., 0] + jnp.log(jnp.sum(jnp.exp(exponent - crest), -1))

    g = problem.variance
    level = target + s * plan.epsilon - 0.5 * g * s * (1 + s)

    flat = log_b(jnp.zeros_like(t))[..., 0]
    whole = jnp.sum(count * flat, -1)

    def search(carry):
        i, t, low, high, settled, shift = carry
        upward = log_b(t)
        fallen = jnp.sum(count * jnp.min(upward, -1), -1) - 0.5 * g * t * t - jnp.log(PI * t)
        good = fallen < level
        low, high = jnp.where(good, low, t), jnp.where(good, t, high)
        shift = jnp.where(good[:, None], pick(y, at_least(upward)), shift)
        # exact for a Gaussian
        guess = 1.003 * t * jnp.sqrt(jnp.maximum(whole - level, 1e-3) / jnp.maximum(whole - fallen, 1e-3))
        settled = settled | good & (guess >= t / 1.02) | (high < 1.02 * low)
        middle = jnp.where(jnp.isinf(high), 1.7 * t, jnp.sqrt(low * high))
        return i + 1, jnp.where((guess > low) & (guess < high), guess, middle), low, high, settled, shift

    def unsettled(carry):
        i, *_, settled, _ = carry
        return (i < 30) & ~jnp.all(settled)

    never = t < 0
    start = (np.int32(0), t, t * 0, t + jnp.inf, never, jnp.zeros_like(pair.sigma))
    _, _, _, cutoff, _, shift = lax.while_loop(unsettled, search, start)
    found = jnp.isfinite(cutoff)
    cutoff = jnp.where(found, cutoff, t)
    nodes = jnp.where(found, jnp.ceil(cutoff * period / (2 * PI)) + 1, jnp.inf)

    weight = jnp.log(jnp.maximum(count, 1.0)) + np.log(max(count.shape[1], 1)) + pick(plan.log_c, index)[:, None]
    nats = jnp.clip(weight + (plan.log_delta - target)[:, None] + 3.0, 5.0, 46.0)
    last = jnp.where(found, (nodes - 1) * (2 * PI / period), cutoff)
    height, step = cumulant.line_for(pair, s, last, nats)
    return plan._replace(
        index=index, s=s, period=period, nodes=nodes,
        shift=shift, height=height, step=step,
    )  # fmt: skip


def climb(problem: Problem, plan: Plan, thorough: jax.Array, capacity: int) -> Plan:
    """Picks a tilt: the plan's own, then, where ``thorough`` (lanes,), smaller ones while they save nodes.

    The plan's own takes the loss for Gaussian, which a sparse one is not.
    """

    def cost(plan):
        return jnp.log(plan.nodes) + pick(plan.price, plan.index) + jnp.where(plan.nodes > capacity, 50.0, 0.0)

    def body(carry):
        best, index, going = carry
        trial = at_tilt(problem, best, index)
        gain = going & ~(cost(trial) >= cost(best))
        best = jax.tree.map(lambda a, b: jnp.where(gain.reshape(gain.shape + (1,) * (a.ndim - 1)), a, b), trial, best)
        going = going & (gain | ~(best.nodes <= capacity)) & (index >= 1) & (best.nodes > MANY) & thorough
        return best, jnp.maximum(index - 1, 0), going

    return lax.while_loop(lambda carry: jnp.any(carry[2]), body, (plan, plan.index, plan.index >= 0))[0]
