"""Choosing a contour: the tilt s, the period Lam and the cutoff T with which the trapezoid sum of ``contour`` is cheapest.

Every term of the certificate is known roughly before a complex node is evaluated, so the choice is made on a grid of
tilts from sums over one fixed set of u-nodes. Nothing here is certified: a bad choice costs nodes or a wide interval,
never a wrong one, since ``contour`` bounds every term anew.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from dpjax import cumulant
from dpjax._precision import namespace
from dpjax.pairs import SampledGaussianPair

PI = jnp.pi
TINY = 1e-300
MANY = 64  # nodes from which it pays to look for a better tilt
_SHARES = 4.0  # of tol: alias up, alias down, truncation; the inner quadrature and rounding are far below
_GRID = 32
_PRICE = 1.0  # a tenfold loss of precision must save nine tenths of the nodes


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
    log_target: jax.Array  # log of the error that one share may have
    s_grid: jax.Array  # (lanes, grid)
    k_grid: jax.Array  # K at s_grid, not certified
    target_grid: jax.Array  # (lanes, grid): log_target at s_grid
    period_grid: jax.Array
    price: jax.Array  # (lanes, grid): log of the factor in nodes that the tilt's lost precision is worth
    log_c: jax.Array  # (lanes, grid): log of the predicted cancellation
    gauss_t: jax.Array  # (lanes, grid): where a Gaussian would be cut off
    index: jax.Array
    s: jax.Array
    period: jax.Array
    cutoff: jax.Array
    nodes: jax.Array  # predicted number, a float
    shift_up: jax.Array  # (lanes, components): the contour shift of the truncation bound
    shift_down: jax.Array  # (lanes, components): that of the inner-quadrature bound
    step: jax.Array  # (lanes, components): spacing of the inner nodes


def largest_loss(problem: Problem) -> jax.Array:
    """An upper bound of the largest possible loss: finite only if nothing is unbounded (the add direction)."""
    pair, count = problem.pair, problem.count
    xp = namespace(*problem.pair[:2], count)
    unbounded = xp.any((pair.sign > 0) & (pair.beta != 0), -1) | (pair.q >= 1)
    each = xp.where(unbounded, xp.inf, -xp.log1p(-xp.where(unbounded, 0.0, pair.q)))
    bounded = xp.where((count > 0) & (pair.q > 0), count * each, 0.0)
    return xp.where(problem.variance > 0, xp.inf, xp.sum(bounded, -1) * (1 + 1e-13))


def log_touched(problem: Problem) -> jax.Array:
    """log of the probability that some step sees the record, rounded up: a bound on delta at every epsilon >= 0."""
    xp = namespace(*problem.pair[:2], problem.count)
    untouched = xp.sum(problem.count * xp.log1p(-xp.minimum(problem.pair.q, 1 - 1e-16)), -1)
    log_p = xp.log(-xp.expm1(xp.minimum(untouched, 0.0)) + TINY) + 1e-13
    return xp.where(problem.variance > 0, 0.0, xp.minimum(log_p, 0.0))


def xlogx(s: jax.Array) -> jax.Array:
    return s * jnp.log(s) - (1 + s) * jnp.log1p(s)


def _plan_moments(problem: Problem, u: jax.Array, nodes: cumulant.Nodes, log_n: jax.Array, s: jax.Array):
    """K, K' and K'' of the composition on a grid of tilts (lanes, grid), from a fixed set of u-nodes."""
    pair = problem.pair
    grid_nodes = jax.tree.map(lambda a: a[:, :, None, :], nodes)
    grid_pair = jax.tree.map(lambda a: a[:, :, None], pair)
    s4 = s[:, None, :, None]
    x = grid_nodes.log_p + s4 * grid_nodes.loss
    excess = jnp.sum(cumulant.weighted_excess(grid_pair, grid_nodes, s4, log_n[:, :, None, :]), -1)
    log_w = log_n[:, :, None, :] + x
    top = jnp.max(log_w, -1, keepdims=True)
    w = jnp.exp(log_w - top)
    z = jnp.sum(w, -1)
    plain = top[..., 0] + jnp.log(z)
    k = jnp.where(plain > 5.0, plain, jnp.log1p(jnp.where(plain > 5.0, 0.0, jnp.maximum(excess, 0.0))))
    # a second peak of the weight beyond the last node, where (1 + v)^(1+s) is about (q exp y)^(1+s)
    c = s[:, None, :]
    far = (1 + c) * jnp.log(grid_pair.q + TINY) + 0.5 * c * (1 + c) / grid_pair.sigma**2
    unseen = jnp.any(pair.sign > 0, -1)[:, :, None] & ((1 + c) / grid_pair.sigma > u[..., -1:])
    k = jnp.where(unseen, jnp.logaddexp(k, far), k)
    mean = jnp.sum(w * grid_nodes.loss, -1) / z
    spread2 = jnp.sum(w * (grid_nodes.loss - mean[..., None]) ** 2, -1) / z
    count = problem.count[:, :, None]
    g = problem.variance[:, None]
    return (
        0.5 * g * s * (1 + s) + jnp.sum(count * k, 1),
        g * (s + 0.5) + jnp.sum(count * mean, 1),
        g + jnp.sum(count * spread2, 1),
    )


def _saddle(s, k1, k2, k):
    """Epsilon whose saddle is s, and the saddle-point value of log delta there."""
    eps = k1 - 1 / s - 1 / (1 + s)
    curvature = k2 + 1 / s**2 + 1 / (1 + s) ** 2
    return eps, k - s * eps - jnp.log(s) - jnp.log1p(s) - 0.5 * jnp.log(2 * PI * curvature)


def choose(problem: Problem, epsilon: jax.Array, log_delta: jax.Array, tol: jax.Array, unknown: str) -> Plan:
    """A contour for ``epsilon`` and ``log_delta``; the ``unknown`` of the two is estimated where it is NaN."""
    pair = problem.pair
    lanes, components = pair.sigma.shape
    depth = jnp.where(jnp.isnan(log_delta), 60.0, -log_delta)
    reach = 9.0 + jnp.sqrt(2 * jnp.maximum(depth, 1.0))
    falling = jnp.any(pair.sign < 0, -1)
    low = -9.0 - jnp.where(falling, 1 / pair.sigma, 0.0)
    high = jnp.maximum(reach[:, None], 1 / pair.sigma + 9.0)
    size = 96
    du = (high - low) / (size - 1)
    u = low[..., None] + du[..., None] * jnp.arange(size)
    nodes = cumulant.at(pair, u)
    log_n = -0.5 * u * u - 0.5 * cumulant.LOG_2PI + jnp.log(du)[..., None]

    every_other = jax.tree.map(lambda a: a[..., ::2], nodes)
    half_log_n = log_n[..., ::2] + jnp.log(2.0)
    _, _, k2 = _plan_moments(problem, u, every_other, half_log_n, jnp.zeros((lanes, 1), u.dtype))
    sd = jnp.sqrt(k2[:, 0]) + TINY
    known = jnp.where(jnp.isnan(epsilon), 0.0, jnp.maximum(epsilon, 0.0))
    reference = (1 + jnp.sqrt(2 * jnp.maximum(depth, 1.0)) + known / sd) / sd
    s = jnp.clip(reference[:, None] * jnp.exp(jnp.linspace(jnp.log(1e-5), jnp.log(1e3), 32)), 1e-4, 1e12)
    k, k1, k2 = _plan_moments(problem, u, every_other, half_log_n, s)
    eps_s, log_s = _saddle(s, k1, k2, k)
    if unknown == "epsilon":
        beyond = lax.cummin(log_s, 1) < log_delta[:, None]
    else:
        beyond = lax.cummax(eps_s, 1) > epsilon[:, None]
    s0 = jnp.take_along_axis(s, jnp.argmax(beyond, 1)[:, None], 1)

    s = s0 * jnp.exp(jnp.linspace(jnp.log(1 / 30), jnp.log(3.0), _GRID))
    k, k1, k2 = _plan_moments(problem, u, nodes, log_n, s)
    eps_s, log_s = _saddle(s, k1, k2, k)
    if unknown == "epsilon":
        falls = lax.cummin(log_s, 1)
        guess = jax.vmap(lambda x, xp, fp: jnp.interp(x, xp, fp))(-log_delta, -falls, eps_s)
        eps = jnp.where(jnp.isnan(epsilon), jnp.maximum(guess, 0.0), epsilon)
        log_d = log_delta
    else:
        eps = epsilon
        rises = lax.cummax(eps_s, 1)
        guess = jax.vmap(lambda x, xp, fp: jnp.interp(x, xp, fp))(eps, rises, log_s)
        log_d = jnp.where(jnp.isnan(log_delta), jnp.minimum(guess, 0.0), log_delta)

    exponent = k - s * eps[:, None]
    size_of = 32 * jnp.finfo(u.dtype).epsneg  # ulp of a term of average size, about
    log_reach = -0.5 * jnp.log(4 * s * (1 + s))
    log_c = jnp.maximum(exponent + log_reach - log_d[:, None], 0.0)
    # what each tilt can reach: tol, or its own rounding error
    rounding = jnp.log(size_of) + log_c
    reach_of = jnp.where(rounding < jnp.log(0.5 * tol)[:, None], jnp.log(tol / _SHARES)[:, None], rounding + 0.2)
    log_target = log_d[:, None] + reach_of

    climb = exponent + xlogx(s)
    gap = s[:, None, :] - s[:, :, None]  # (lanes, s, r)
    clear = gap > 1e-3 * s[:, :, None]
    rise = jnp.maximum(climb[:, None, :] - log_target[:, :, None], 1.0)
    up = jnp.min(jnp.where(clear, rise / jnp.where(clear, gap, 1.0), jnp.inf), 2)
    down = (jnp.maximum(eps, 0.0)[:, None] - log_target) / (1 + s)
    # A is subtracted, but costs digits: what rounding can spare
    spare = jnp.clip(reach_of - jnp.log(size_of) - 2.0, -3.0, 7.0)
    known_alias = jnp.maximum(-spare - log_d[:, None], 0.0) / s
    period = jnp.maximum(jnp.maximum(up, down), known_alias)
    log_c = jnp.maximum(exponent + jnp.logaddexp(log_reach, -jnp.log(period * s * (1 + s))) - log_d[:, None], 0.0)
    gauss_t = jnp.sqrt(2 * jnp.maximum(exponent - log_target, 1.0) / (k2 + TINY))
    price = jnp.where(jnp.isfinite(period), _PRICE * (reach_of - jnp.min(reach_of, 1, keepdims=True)), jnp.inf)
    index = jnp.argmin(price + jnp.log(period * gauss_t), 1)
    nothing = jnp.zeros((lanes,), u.dtype)
    plan = Plan(
        eps, log_d, nothing, s, k, log_target, period, price, log_c, gauss_t, index, nothing, nothing, nothing,
        jnp.full((lanes,), jnp.inf, u.dtype), jnp.zeros_like(pair.sigma), jnp.zeros_like(pair.sigma), jnp.zeros_like(pair.sigma),
    )  # fmt: skip
    return _at_tilt(problem, plan, index)


def pick(a: jax.Array, index: jax.Array) -> jax.Array:
    return jnp.take_along_axis(a, index[:, None], 1)[:, 0]


def _at_tilt(problem: Problem, plan: Plan, index: jax.Array) -> Plan:
    """The plan with the cutoff, the shifts and the inner spacing that belong to tilt number ``index``."""
    pair, count = problem.pair, problem.count
    s, period, target = (pick(a, index) for a in (plan.s_grid, plan.period_grid, plan.target_grid))
    guess = pick(plan.gauss_t, index)
    size, shifts = 80, 14
    top = jnp.sqrt(2 * jnp.maximum(jnp.maximum(-plan.log_delta, 1.0), 1.0)) + 9.0
    low = -9.0 - jnp.where(jnp.any(pair.sign < 0, -1), 1 / pair.sigma, 0.0)
    high = jnp.maximum(top[:, None], 1 / pair.sigma + 9.0)
    du = (high - low) / (size - 1)
    u = low[..., None] + du[..., None] * jnp.arange(size)
    y = jnp.minimum(PI * pair.sigma, 60.0)[..., None] * jnp.exp(jnp.linspace(jnp.log(3e-4), jnp.log(0.4), shifts))
    modulus, angle = cumulant.shifted(pair, s, u[:, :, None, :], y[..., None])
    modulus = modulus + jnp.log(du)[..., None, None]
    crest = jnp.max(modulus, -1)

    def log_b(t):  # (lanes, components, shifts)
        return crest + jnp.log(
            jnp.sum(jnp.exp(jnp.minimum(modulus - crest[..., None] - t[:, None, None, None] * angle, 600.0)), -1)
        )

    k_gauss = 0.5 * problem.variance * s * (1 + s)

    def fits(t):
        envelope = jnp.sum(count * jnp.min(log_b(t), -1), -1) + k_gauss - 0.5 * problem.variance * t * t
        return envelope - s * plan.epsilon - jnp.log(PI * t) < target

    def widen(carry):
        i, t, ok = carry
        t = jnp.where(ok, t, t * 1.7)
        return i + 1, t, ok | fits(t)

    _, cutoff, ok = lax.while_loop(lambda carry: (carry[0] < 20) & jnp.any(~carry[2]), widen, (0, guess, fits(guess)))
    low_t = cutoff / 1.7

    def narrow(_, ends):
        a, b = ends
        middle = jnp.sqrt(a * b)
        good = fits(middle)
        return jnp.where(good, a, middle), jnp.where(good, middle, b)

    _, cutoff = lax.fori_loop(0, 4, narrow, (low_t, cutoff))
    nodes = jnp.where(ok, jnp.ceil(cutoff * period / (2 * PI)) + 1, jnp.inf)

    upward, downward = log_b(cutoff), log_b(-cutoff)
    k_i = jnp.log(jnp.sum(jnp.exp(modulus[:, :, 0, :] - crest[:, :, 0, None]), -1)) + crest[:, :, 0]
    weight = jnp.log(jnp.maximum(count, 1.0)) + jnp.log(1.0 * pair.sigma.shape[1]) + pick(plan.log_c, index)[:, None]
    log_eta = (target - plan.log_delta)[:, None] - weight - 2.0
    need_up = jnp.min((upward - k_i[..., None] - log_eta[..., None]) / y, -1)
    need_down = (downward + 1.0 - k_i[..., None] - log_eta[..., None]) / y
    best_down = jnp.argmin(need_down, -1)
    need = jnp.maximum(need_up, jnp.min(need_down, -1))
    step = jnp.minimum(2 * PI / jnp.maximum(need, 1e-3), cumulant.real_step(pair, s))
    take = lambda a, i: jnp.take_along_axis(a, i[..., None], -1)[..., 0]
    return plan._replace(
        index=index, log_target=target, s=s, period=period, cutoff=cutoff, nodes=nodes,
        shift_up=take(y, jnp.argmin(upward, -1)), shift_down=take(y, best_down), step=step,
    )  # fmt: skip


def climb(problem: Problem, plan: Plan, capacity: int) -> Plan:
    """Tries smaller tilts while that saves nodes: the first choice takes the loss for Gaussian, which sparse ones are not."""

    def cost(plan):
        return jnp.log(plan.nodes) + pick(plan.price, plan.index) + jnp.where(plan.nodes > capacity, 50.0, 0.0)

    def body(carry):
        best, index, going = carry
        trial = _at_tilt(problem, best, index)
        gain = going & (cost(trial) < cost(best))
        best = jax.tree.map(lambda a, b: jnp.where(gain.reshape(gain.shape + (1,) * (a.ndim - 1)), a, b), trial, best)
        going = going & (gain | ~(best.nodes <= capacity)) & (index >= 1)
        return best, jnp.maximum(index - 1, 0), going

    going = (plan.nodes > MANY) & (plan.index >= 1)
    return lax.while_loop(lambda carry: jnp.any(carry[2]), body, (plan, jnp.maximum(plan.index - 1, 0), going))[0]
