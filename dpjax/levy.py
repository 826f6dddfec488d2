r"""Engine: the paper's own route, CDFs of the privacy loss by Levy's inversion of its characteristic functions.

Zhu, Dong, Wang (arXiv 2106.08567): delta(eps) = 1 - F(eps) - exp(eps) F'(-eps), F the CDF of log(p/q) under P and F' that
of log(q/p) under Q, each

    F(x) = 1/2 - (1/pi) int_0^inf Im[exp(-itx) phi(t)] dt / t ,

and epsilon by bisection. Two quadratures of that integral:

- ``delta`` and ``loss_cdf``: Gauss-Legendre after t = scale y / (1 - y^2), on phi from a second quadrature (the paper's
  double quadrature). An *estimate*, with an *estimated* error: the difference of two node counts.
- ``bracket``: the midpoint rule on phi of the discretised pairs (Algorithm 2), where every error has a bound. With nodes
  t_n = (n + 1/2) h the sum is exactly E[s(loss - eps)], s the square wave of half period Lam = 2 pi / h in place of the
  step: the computed delta is *below* that of the pair, by at most P(loss > eps + Lam) + exp(eps) Q(loss < eps - Lam).
  Discretised losses have a phi that never decays; a Gaussian mechanism of small mu is composed on top, so that the sum
  can be cut off. That raises delta, by at most about mu^2 times the density of the smoothed loss at eps.

Both have an absolute floor, about 1e-15 (1 + exp(eps)) from rounding, more where steps are many: epsilon for a delta below
1e-12 comes from the fall-backs (Chernoff's bound) and is loose. The contour engine has none of this; an independent second
answer is what this one is for. All functions take lanes, (lanes,) arrays of independent problems.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from dpjax import _phi
from dpjax._plan import Problem, largest_loss, log_touched
from dpjax._special import sincos

PI = jnp.pi
NODES = 600  # outer Gauss-Legendre nodes on (-1, 1), half of them on t > 0; the paper takes 500 to 700
INNER = 512  # of the quadrature in the noise
CELLS = 1024
FREQUENCIES = 2048  # of the midpoint rule
_COARSER = 0.7  # node counts of the second estimate, relative to the first
_SCALE = 4.0  # of t, in units of 1 / standard deviation of the loss
_SHARE = 10.0  # the midpoint rule leaves out, and lets wrap around, about exp(-10) of delta each,
_DEPTH = 40.0  # but no less than exp(-40)
_ORDERS = 48
_HALVINGS = 64
_TURN = 2.0  # of the phase between two nodes, past which the sum is not trusted


class Solution(NamedTuple):
    """What the engine found; (lanes,). For a delta query the three are log deltas, otherwise epsilons.

    ``lower`` and ``upper`` hold up to the stated rounding model; ``estimate`` lies between them. ``converged``: the bracket
    is as narrow as asked for, relative to delta. ``cancelled`` is always False.
    """

    lower: jax.Array
    estimate: jax.Array
    upper: jax.Array
    converged: jax.Array
    cancelled: jax.Array
    nodes: jax.Array


# --------------------------------------------------------------------------------------------------------------------
# Estimates: double quadrature


def log_characteristic(
    problem: Problem, t: jax.Array, under: str = "P", *, nodes: int = INNER, points: str = "quadrature"
) -> tuple[jax.Array, jax.Array]:
    """(log modulus, argument) of phi(t) = E_P exp(it log(p/q)), or of phi'(t) = E_Q exp(it log(q/p)).

    Args:
      problem: the composition in one direction; log p/q is in nats.
      t: real frequencies, shape (lanes, frequencies).
      under: "P" or "Q".
      nodes: of the quadrature, or cells.
      points: "quadrature", or "coarse" or "split" for the discretised pairs that lie below and above (Algorithm 2).

    Returns:
      Two arrays like ``t``. The argument is not reduced mod 2 pi; its phase is continuous in the composition count.

    Guarantee: the Gaussian components are exact up to rounding; the rest is a quadrature without a bound, as good as its
    nodes resolve the phase t L.
    """
    measure = _index(under)
    found = _phi.log_phi(problem, getattr(_phi, points)(problem.pair, nodes), t)
    return (found.log_p, found.angle_p) if measure == 0 else (found.log_q, found.angle_q)


def _index(under: str) -> int:
    if under not in ("P", "Q"):
        raise ValueError(f'under = {under!r}, but it must be "P" or "Q".')
    return 0 if under == "P" else 1


class _Line(NamedTuple):
    """phi on nodes, with the weights of the measure dt / (pi t); ``gauss``: Gauss-Legendre or midpoint rule."""

    phi: _phi.Phi
    weight: jax.Array
    gauss: bool


def _line(problem: Problem, nodes: int, inner: int) -> _Line:
    y, w = _phi.legendre(nodes - nodes % 2)
    y, w = y[len(y) // 2 :], w[len(w) // 2 :]
    points = _phi.quadrature(problem.pair, inner)
    _, variance = _phi.moments(problem, points)
    scale = _SCALE / (jnp.sqrt(jnp.max(variance, -1)) + 1e-150)
    t = jnp.minimum(scale, 1e150)[:, None] * (y / (1 - y * y))
    return _Line(_phi.log_phi(problem, points, t), jnp.asarray(w * (1 + y * y) / (PI * y * (1 - y * y))), True)


def _tail(line: _Line, x: jax.Array, measure: int) -> tuple[jax.Array, jax.Array]:
    """(1 - F(x), error of it) of measure 0 (F under P) or 1 (F' under Q).

    The error is that of rounding and, of Gauss-Legendre nodes, what those contribute that do not resolve the phase: two
    node counts can agree by chance on a plateau of phi, which is what a loss that is nearly an atom has.
    """
    phi = line.phi
    log_modulus, angle = (phi.log_q, phi.angle_q) if measure else (phi.log_p, phi.angle_p)
    phase = angle - phi.t * x[:, None]
    size = line.weight * jnp.exp(log_modulus)
    unit = jnp.finfo(x.dtype).epsneg
    rounding = jnp.minimum(phi.rounding + 4 * unit * jnp.abs(phase), 2.0)
    value = 0.5 + jnp.sum(size * sincos(phase)[0], -1)
    error = jnp.sum(size * rounding, -1) + 8 * unit
    if line.gauss:
        turn = jnp.abs(jnp.diff(phase, axis=-1))
        turn = jnp.concatenate([turn[..., :1], turn], -1)
        error = error + jnp.sum(jnp.where(turn > _TURN, size, 0.0), -1)
    return value, error


def loss_cdf(
    problem: Problem, x: jax.Array, under: str = "P", *, nodes: int = NODES, inner: int = INNER
) -> tuple[jax.Array, jax.Array]:
    """The CDF at ``x`` of log(p/q) under P (F), or of log(q/p) under Q (F').

    Args:
      problem: the composition in one direction.
      x: losses in nats, shape (lanes,).
      under: "P" or "Q".
      nodes, inner: Gauss-Legendre nodes in t and in the noise.

    Returns:
      (value, estimated absolute error), (lanes,); the value is clipped to [0, 1].

    Guarantee: none; the error is an estimate (two node counts, and a model of rounding). At an atom the value would be
    the midpoint of the jump; a loss that is nearly an atom, few steps with a tiny sampling probability, converges slowly
    and its estimated error says so.
    """
    measure = _index(under)
    fine, rough = _lines(problem, nodes, inner)
    value, rounding = _tail(fine, x, measure)
    return jnp.clip(1 - value, 0.0, 1.0), jnp.minimum(_difference(fine, rough, x, measure) + rounding, 1.0)


def _difference(fine: _Line, rough: _Line, x: jax.Array, measure: int) -> jax.Array:
    """The largest difference of the two sums at ``x`` and two points beside it: at one point alone it may be 0 by chance."""
    middle = fine.phi.t[:, fine.phi.t.shape[1] // 2]
    there = [x, x + 0.37 / middle, x - 0.59 / middle]
    return functools.reduce(
        jnp.maximum, (jnp.abs(_tail(fine, y, measure)[0] - _tail(rough, y, measure)[0]) for y in there)
    )


def _delta(line: _Line, epsilon: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """(delta, 1 - F(eps), rounding error of delta)."""
    above, error = _tail(line, epsilon, 0)
    beyond, error_q = _tail(line, -epsilon, 1)
    scale = jnp.exp(jnp.minimum(epsilon, 700.0))
    return above - scale * (1 - beyond), above, error + scale * error_q


def delta(
    problem: Problem, epsilon: jax.Array, *, nodes: int = NODES, inner: int = INNER
) -> tuple[jax.Array, jax.Array]:
    """delta = 1 - F(eps) - exp(eps) F'(-eps), by double quadrature.

    Args:
      problem: the composition in one direction.
      epsilon: shape (lanes,), any real numbers.
      nodes, inner: Gauss-Legendre nodes in t and in the noise.

    Returns:
      (value, estimated absolute error), (lanes,). The value is clipped to [0, 1 - F(eps)], which holds delta.

    Guarantee: none, the error is an estimate; ``bracket`` has bounds. Rounding leaves about 1e-15 (1 + exp(eps)).

    Example:
      >>> import numpy as np
      >>> from dpjax._plan import Problem
      >>> from dpjax.mechanisms import Adjacency, Gaussian, PoissonSampled
      >>> from dpjax.pairs import dominating_pair
      >>> with jax.enable_x64(True):
      ...     step = PoissonSampled(np.full((1, 1), 0.01), Gaussian(np.full((1, 1), 2.0)))
      ...     pair = dominating_pair(step, Adjacency.REMOVE)
      ...     run = Problem(jnp.zeros(1), pair, jnp.full((1, 1), 1500.0))
      ...     value, error = jax.jit(delta)(run, jnp.array([0.77]))
      >>> print(f"{float(value[0]):.9e}", float(error[0]) < 1e-11)
      1.030666411e-05 True
    """
    return _delta_estimate(*_lines(problem, nodes, inner), epsilon)


def _lines(problem: Problem, nodes: int, inner: int) -> tuple[_Line, _Line]:
    return _line(problem, nodes, inner), _line(problem, int(nodes * _COARSER), int(inner * _COARSER))


def _delta_estimate(fine: _Line, rough: _Line, epsilon: jax.Array) -> tuple[jax.Array, jax.Array]:
    value, above, rounding = _delta(fine, epsilon)
    above_error = _difference(fine, rough, epsilon, 0)
    scale = jnp.exp(jnp.minimum(epsilon, 700.0))
    error = above_error + scale * _difference(fine, rough, -epsilon, 1) + rounding
    most = jnp.clip(above, 0.0, 1.0)
    clipped = jnp.clip(value, 0.0, most)
    # the truth lies in [0, 1 - F(eps)] too
    room = jnp.maximum(most + above_error + rounding - clipped, clipped)
    return clipped, jnp.minimum(error, jnp.minimum(room, 1.0))


# --------------------------------------------------------------------------------------------------------------------
# Bounds: discretised pairs, midpoint rule


class _Wave(NamedTuple):
    """One discretised pair on the midpoint rule's nodes, and what bounds its errors; (lanes,) unless said otherwise."""

    line: _Line
    step: jax.Array  # h
    smooth: jax.Array  # mu^2 of the Gaussian that was composed on top
    log_cut: jax.Array  # log of what the sum beyond the last node can be, for either CDF
    order: jax.Array  # (lanes, orders)
    log_mgf_p: jax.Array  # (lanes, orders): log E_P exp(order * log(p/q)), smoothed
    log_mgf_q: jax.Array
    outside: jax.Array  # P- or Q-mass of the event that any step's noise falls outside its window


def _orders(problem: Problem, points: _phi.Points) -> jax.Array:
    variance = jnp.max(_phi.moments(problem, points)[1], -1)
    inverse = jnp.minimum(1 / (jnp.sqrt(variance) + 1e-12), 1e9)
    # tails of many light losses are governed by orders near 10 / spread, those of few heavy ones by orders near 1
    ends = jnp.log(0.02 * jnp.minimum(inverse, 5.0)), jnp.log(jnp.maximum(100 * inverse, 50.0))
    return jnp.exp(jnp.linspace(*ends, _ORDERS, axis=-1))


def _wave(
    problem: Problem, points: _phi.Points, low: jax.Array, high: jax.Array, log_delta: jax.Array, frequencies: int
) -> _Wave:
    """Period and smoothing for every epsilon in [low, high] and a delta near exp(log_delta)."""
    r = _orders(problem, points)
    k_p, k_q = _phi.cumulants(problem, points, r)
    depth = jnp.clip(_SHARE - log_delta, _SHARE, _DEPTH)
    cost = jnp.clip(high, 0.0, 100.0)  # errors of the CDF under Q count exp(eps) times
    up = jnp.min((k_p + depth[:, None]) / r, -1) - low
    down = jnp.min((k_q + (depth + cost)[:, None]) / r, -1) + high
    spread = jnp.sqrt(jnp.max(_phi.moments(problem, points)[1], -1))
    period = jnp.maximum(jnp.maximum(up, down), spread) / _ROOM + 1e-100
    h = 2 * PI / period
    last = h * (frequencies + 0.5)
    smooth = jnp.maximum(2 * jnp.minimum(depth + cost, _DEPTH) / last**2 - problem.variance, 0.0)
    smoothed = problem._replace(variance=problem.variance + smooth)
    t = h[:, None] * (jnp.arange(frequencies) + 0.5)
    weight = 1 / (PI * (jnp.arange(frequencies) + 0.5))
    decay = smoothed.variance * h * last
    log_cut = -0.5 * smoothed.variance * last**2 - jnp.log(PI * (frequencies + 0.5)) - jnp.log(-jnp.expm1(-decay))
    extra = 0.5 * smooth[:, None] * r * (r + 1)
    line = _Line(_phi.log_phi(smoothed, points, t), weight, False)
    outside = jnp.minimum(jnp.sum(problem.count, -1) * jnp.exp(_phi.LOG_OUTSIDE), 1.0)
    return _Wave(line, h, smooth, log_cut, r, k_p + extra, k_q + extra, outside)


_ROOM = 0.9  # tails are taken at this fraction of the period, which leaves the smoothing's width out of the argument


def _wrapped(wave: _Wave, epsilon: jax.Array) -> jax.Array:
    """P(loss > eps + 0.9 Lam) + exp(eps) Q(loss < eps - 0.9 Lam), by Chernoff's bound."""
    reach = _ROOM * 2 * PI / wave.step
    up = jnp.min(wave.log_mgf_p - wave.order * (epsilon + reach)[:, None], -1)
    down = jnp.min(wave.log_mgf_q - wave.order * (reach - epsilon)[:, None], -1) + epsilon
    return jnp.exp(jnp.minimum(up, 50.0)) + jnp.exp(jnp.minimum(down, 50.0))


def _errors(wave: _Wave, epsilon: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """(delta of the smoothed pair, P(loss > eps), error of the first, of the second), wrapping apart."""
    value, above, rounding = _delta(wave.line, epsilon)
    above_rounding = _tail(wave.line, epsilon, 0)[1]
    cut = jnp.exp(wave.log_cut)
    scale = jnp.exp(jnp.minimum(epsilon, 700.0))
    return value, above, rounding + (cut + wave.outside) * (1 + scale), above_rounding + cut + wave.outside


def _chernoff(order: jax.Array, log_mgf: jax.Array, epsilon: jax.Array) -> jax.Array:
    """log of min_r E[exp(r loss)] exp(-r eps) r^r / (1 + r)^(1 + r) >= delta(eps), rounded up."""
    r, unit, shift = order, jnp.finfo(epsilon.dtype).epsneg, order * epsilon[:, None]
    each = log_mgf + r * jnp.log(r) - (1 + r) * jnp.log1p(r) - shift
    return jnp.min(each + 32 * unit * (jnp.abs(log_mgf) + jnp.abs(shift) + jnp.abs(r * jnp.log(r)) + 1), -1)


def _log_upper(wave: _Wave, epsilon: jax.Array) -> jax.Array:
    value, above, error, above_error = _errors(wave, epsilon)
    wrapped = _wrapped(wave, epsilon)
    best = jnp.minimum(value + error, above + above_error) + wrapped
    chernoff = _chernoff(wave.order, wave.log_mgf_p, epsilon)
    found = jnp.where(best > 0, jnp.log(jnp.maximum(best, 1e-300)), jnp.inf)
    found = jnp.where(jnp.isnan(found), jnp.inf, found)
    return jnp.minimum(jnp.minimum(found, chernoff), 0.0)


def _lower(wave: _Wave, epsilon: jax.Array) -> jax.Array:
    value, _, error, _ = _errors(wave, epsilon)
    phi, mu = wave.line.phi, jnp.sqrt(wave.smooth)
    phase = phi.angle_p - phi.t * epsilon[:, None]
    size = jnp.exp(phi.log_p)
    density = jnp.sum(size * (sincos(phase)[1] + jnp.minimum(phi.rounding, 2.0)), -1) * wave.step / PI
    last = phi.t[:, -1] + wave.step
    density = density + jnp.exp(wave.log_cut) * last
    # Smoothing raises (1 - exp(eps - loss))_+ by at most kappa mu N((eps - loss) / mu - mu / 2), where with Mills'
    # ratio R, kappa >= 1 - d R(d) at d = -mu / 2. In the mean that is kappa mu^2 times the smoothed density at eps.
    kappa = 1 + 0.5 * mu * 2.5067 * jnp.exp(0.125 * wave.smooth)
    # Aliases of the density count with alternating signs: 0.4 / mu beyond 0.9 Lam, a normal tail of 0.1 Lam before it.
    edge = jnp.exp(-0.5 * ((1 - _ROOM) * 2 * PI / wave.step) ** 2 / (wave.smooth + 1e-300))
    aliased = jnp.minimum(0.4 * mu * (_wrapped(wave, epsilon) + edge), 1.0)
    lower = value - error - kappa * (wave.smooth * jnp.maximum(density, 0.0) + aliased)
    trivial = jnp.maximum(-jnp.expm1(epsilon), 0.0)
    return jnp.clip(jnp.where(jnp.isnan(lower), 0.0, lower), trivial, 1.0)


def _trivial(problem: Problem, epsilon: jax.Array, log_upper: jax.Array) -> jax.Array:
    """The bounds that always hold: no step sees the record, the loss is never so large."""
    log_upper = jnp.where(epsilon >= 0, jnp.minimum(log_upper, log_touched(problem)), log_upper)
    return jnp.where(epsilon >= largest_loss(problem), -jnp.inf, log_upper)


def bracket(
    problem: Problem,
    epsilon: jax.Array,
    *,
    log_delta: jax.Array | None = None,
    cells: int = CELLS,
    frequencies: int = FREQUENCIES,
) -> tuple[jax.Array, jax.Array]:
    """(lower, upper) bounds of log delta from the discretised pairs (Algorithm 2).

    Args:
      problem: the composition in one direction.
      epsilon: shape (lanes,).
      log_delta: a guess of the answer, on which the width of the bracket depends, but never its truth.
      cells: into which the noise of one step is divided.
      frequencies: nodes of the midpoint rule.

    Returns:
      Two arrays (lanes,), -inf where the bound is 0. Their distance falls like cells^-2 and frequencies^-2.

    Guarantee: lower <= log delta <= upper. Discretisation, smoothing, truncation, wrapping around and the noise outside
    the window have proofs. Rounding and the masses' quadrature error have a model, with constants above what was
    measured.
    """
    points = _phi.split(problem.pair, cells)
    r = _orders(problem, points)
    most = _chernoff(r, _phi.cumulants(problem, points, r)[0], epsilon)
    # on the wall of a sparse problem Chernoff's bound is too large by factors of up to 1e6; a low guess costs little
    guess = jnp.nan_to_num(most - 14.0 if log_delta is None else jnp.clip(log_delta, most - 18.0, most), nan=-_DEPTH)
    above = _wave(problem, points, epsilon, epsilon, guess, frequencies)
    below = _wave(problem, _phi.coarse(problem.pair, cells), epsilon, epsilon, guess, frequencies)
    upper = _trivial(problem, epsilon, _log_upper(above, epsilon))
    lower = _lower(below, epsilon)
    return jnp.minimum(_log(lower), upper), upper


def _log(x: jax.Array) -> jax.Array:
    """log x, rounded down; -inf where x <= 0."""
    return jnp.where(x > 0, jnp.log(jnp.maximum(x, 1e-300)) - 1e-15, -jnp.inf)


# --------------------------------------------------------------------------------------------------------------------
# Epsilon


def _bisect(holds, high: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(last point where ``holds`` was False, first where it was True), from [0, high].

    Both are 0 where ``holds(0)``; infinite where ``holds`` was never True.
    """

    def halve(_, ends):
        low, high = ends
        middle = 0.5 * (low + high)
        yes = holds(middle)
        return jnp.where(yes, low, middle), jnp.where(yes, middle, high)

    low, high_end = lax.fori_loop(0, _HALVINGS, halve, (jnp.zeros_like(high), high))
    high_end = jnp.where((high_end < high) | holds(high), high_end, jnp.inf)
    at_zero = holds(jnp.zeros_like(high))
    return jnp.where(at_zero, 0.0, low), jnp.where(at_zero, 0.0, high_end)


def _ceiling(problem: Problem, cells: int, log_delta: jax.Array) -> tuple[_phi.Points, jax.Array]:
    """The upper pair, and an epsilon at which its Chernoff bound is below delta."""
    points = _phi.split(problem.pair, cells)
    r = _orders(problem, points)
    k, _ = _phi.cumulants(problem, points, r)
    k = k + r * jnp.log(r) - (1 + r) * jnp.log1p(r)
    slack = 1e-13 * (jnp.abs(k) + jnp.abs(r * jnp.log(r)) + jnp.abs(log_delta)[:, None] + 1)
    epsilon = jnp.min((k - log_delta[:, None] + slack) / r, -1)
    return points, jnp.clip(epsilon, 1e-300, 1e15)


def epsilon(
    problem: Problem, log_delta: jax.Array, *, nodes: int = NODES, inner: int = INNER
) -> tuple[jax.Array, jax.Array]:
    """The least epsilon >= 0 with delta(epsilon) <= exp(log_delta), by bisection on ``delta``.

    Args:
      problem: the composition in one direction.
      log_delta: shape (lanes,).
      nodes, inner: Gauss-Legendre nodes in t and in the noise.

    Returns:
      (epsilon, estimated absolute error of delta there), (lanes,). 0 where delta(0) <= exp(log_delta). An error that is
      not small beside exp(log_delta) means that epsilon has few digits; that is so below delta = 1e-12 or so.

    Guarantee: none; ``solve`` has bounds.
    """
    fine, rough = _lines(problem, nodes, inner)
    _, high = _ceiling(problem, inner, log_delta)
    value = _solve_estimate(fine, log_delta, high)
    return value, _delta_estimate(fine, rough, value)[1]


def _solve_estimate(fine: _Line, log_delta: jax.Array, high: jax.Array) -> jax.Array:
    target = jnp.exp(log_delta)
    low, up = _bisect(lambda e: _delta(fine, e)[0] <= target, high)
    return 0.5 * (low + jnp.minimum(up, high))


@functools.partial(jax.jit, static_argnames=("unknown", "rtol", "nodes", "inner", "cells", "frequencies"))
def solve(
    problem: Problem,
    given: jax.Array,
    *,
    unknown: str,
    rtol: float = 1e-10,
    nodes: int = NODES,
    inner: int = INNER,
    cells: int = CELLS,
    frequencies: int = FREQUENCIES,
) -> Solution:
    """Epsilon for ``given`` = log delta (``unknown`` = "epsilon"), or log delta for ``given`` = epsilon ("delta").

    Args:
      problem: the composition in one direction.
      given: shape (lanes,).
      unknown: "epsilon" or "delta".
      rtol: relative width of the bracket on delta below which ``converged`` is True.
      nodes, inner: of the double quadrature, which gives the estimate.
      cells, frequencies: of the discretised pairs, which give the bounds.

    Returns:
      Bounds as in ``bracket`` and the estimate as in ``delta`` or ``epsilon``, clipped to them.
    """
    if unknown not in ("epsilon", "delta"):
        raise ValueError(f'unknown = {unknown!r}, but it must be "epsilon" or "delta".')
    fine, _ = _lines(problem, nodes, inner)
    count = jnp.full(given.shape, nodes // 2 + frequencies)
    never = jnp.zeros(given.shape, bool)
    if unknown == "delta":
        value, _, _ = _delta(fine, given)
        log_value = _log(value)
        lower, upper = bracket(problem, given, log_delta=log_value, cells=cells, frequencies=frequencies)
        estimate = jnp.clip(log_value, lower, upper)
        narrow = (lower == upper) | (-jnp.expm1(lower - upper) <= rtol)
        return Solution(lower, estimate, upper, narrow, never, count)
    points, ceiling = _ceiling(problem, cells, given)
    largest = largest_loss(problem)
    zero = jnp.zeros_like(given)
    above = _wave(problem, points, zero, ceiling, given, frequencies)
    _, upper = _bisect(lambda e: _trivial(problem, e, _log_upper(above, e)) <= given, ceiling)
    upper = jnp.minimum(upper, largest)
    below = _wave(problem, _phi.coarse(problem.pair, cells), zero, ceiling, given, frequencies)
    lower, _ = _bisect(lambda e: ~(_log(_lower(below, e)) >= given), jnp.minimum(upper, ceiling))
    lower = jnp.minimum(lower, upper)
    estimate = jnp.clip(_solve_estimate(fine, given, ceiling), lower, upper)
    ends = _log_upper(above, upper), _log(_lower(below, upper))
    narrow = (upper == 0) | (-jnp.expm1(ends[1] - ends[0]) <= rtol)
    return Solution(lower, estimate, upper, narrow, never, count)
