"""The contour engine on a batch with few different pairs, a product grid: what belongs to a pair is evaluated once.

Lanes that have their pairs in common are a family. A family has K on one ladder of tilts, on which all its lanes plan and
find the tilts of their bounds; and a few contours, on whose nodes phi is evaluated once and raised to the counts of every
lane. Tilts, periods and numbers of nodes come from fixed ladders, so that lanes meet on the same contours, and so that a
lane's answer does not depend, but for rounding, on the company it is in. The certificate is that of ``contour``. A lane that
does not converge here is left to the engine that plans for it alone.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import _sensitivity, contour, cumulant
from dpjax._chunks import in_chunks, take
from dpjax._plan import PI, Plan, Problem, contours, saddle
from dpjax._positions import first_true, pick
from dpjax.pairs import SampledGaussianPair

_TILTS = 2.0 ** (np.arange(-30, 61) / 3)
_BELOW, _ABOVE = 14, 10  # tilts beside the saddle's that a lane chooses from
_PERIODS = 1.25  # the ratio of periods
_NODES = np.asarray([8, 12, 16, 24, 32, 64, 128, 256, 512, 1024])
_CAPACITIES = np.asarray([16, 64, 256, 1024])  # in which phi is evaluated
_ROOM = 1.08  # by which the cutoff lies beyond that of a Gaussian
_FAR = 384  # nodes of K on the ladder, beyond which a tilt is not looked at
_NATS = 46.0  # what the inner quadrature is planned for
_SHIFTS = 10  # contour shifts that the truncation bound is the least of
_TRIES = 5
_LANES, _LANES_WIDE = 256, 32  # that are solved at once, with at most 64 nodes and with more
_WORTHWHILE = 16  # lanes of a family, on average
_LEAST = 2048  # lanes in all: measured, with 1,024 both ways cost the same, and this one has more to compile


class _Reals(NamedTuple):
    """K of the families on the ladder of tilts; (families, components, tilts)."""

    value: Any
    mean: Any
    upper: Any


class _Choice(NamedTuple):
    """The contour of a lane, by its places on the ladders, what it was chosen for, and the tilts of its bounds; (lanes,)."""

    tilt: Any
    period: Any
    nodes: Any
    epsilon: Any
    log_delta: Any
    r_above: Any
    k_above: Any
    r_chernoff: Any
    k_chernoff: Any


class _Contour(NamedTuple):
    """Pairs on the nodes of a contour; (contours, components), and a last axis of nodes for phi.

    ``first`` has the derivatives of K by sigma and q on the nodes, complex, or is empty.
    """

    real: cumulant.RealCumulant
    log_error: Any
    log_cut: Any
    spread: Any
    log_modulus: Any
    angle: Any
    first: Any


def families(problem: Problem) -> tuple[np.ndarray, np.ndarray] | None:
    """(a lane of each family, the family of each lane), or None where sharing is not worthwhile."""
    lanes, components = problem.count.shape
    if components > 4 or lanes < _LEAST:
        return None
    numbers = np.concatenate([np.asarray(a, np.float64).reshape(lanes, -1) for a in problem.pair], 1)
    keys = np.ascontiguousarray(numbers).view(f"V{numbers.itemsize * numbers.shape[1]}").ravel()
    _, first, member = np.unique(keys, return_index=True, return_inverse=True)
    return (first, member.ravel()) if lanes >= _WORTHWHILE * first.size else None


@jax.jit
def _reals(pair: SampledGaussianPair, s: jax.Array) -> tuple:
    win = cumulant.window(pair, s)
    step = cumulant.real_step(pair, s, 0 * pair.sigma)
    width = win.high - win.low
    far = width > _FAR * step  # the noise is moved so far that no lane has its saddle there
    real = cumulant.real(pair, s, win, jnp.where(far, width, step))
    value, mean, upper = real.value, real.mean, real.value + contour.rise(real)
    return jnp.where(far, 1e290, value), jnp.where(far, 1e300, mean), jnp.where(far, jnp.inf, upper)


@jax.jit
def _choose(problem: Problem, epsilon, log_delta, tol, least, reals: _Reals) -> _Choice:
    """Contours for lanes whose families have ``reals`` (lanes, components, tilts), with at least ``least`` nodes."""
    count, g = problem.count[:, :, None], problem.variance[:, None]
    s = jnp.broadcast_to(_TILTS, (count.shape[0], _TILTS.size))
    k = 0.5 * g * s * (1 + s) + jnp.sum(count * reals.value, 1)
    k1 = g * (s + 0.5) + jnp.sum(count * reals.mean, 1)
    # the smaller slope: where a second peak of the weight takes over the mean loss jumps, and the contour ends before that
    slope = jnp.diff(k1, axis=1) / np.diff(_TILTS)
    k2 = jnp.concatenate([slope[:, :1], jnp.minimum(slope[:, 1:], slope[:, :-1]), slope[:, -1:]], 1)
    eps_s, log_s = saddle(s, k, k1, k2)
    beyond = jnp.where(jnp.isnan(epsilon)[:, None], log_s < log_delta[:, None], eps_s > epsilon[:, None])
    after = first_true(beyond)
    low = jnp.clip(after - _BELOW, 0, _TILTS.size - _BELOW - _ABOVE)
    near = lambda a: jnp.take_along_axis(a, low[:, None] + np.arange(_BELOW + _ABOVE), 1)
    s_near, k_near, k2_near, eps_near, log_near = map(near, (s, k, k2, eps_s, log_s))
    plan = contours(problem.pair, epsilon, log_delta, tol, s_near, k_near, k2_near, eps_near, log_near, after - low)
    place = low + plan.index
    step = jnp.ceil(jnp.log(pick(plan.period_grid, plan.index)) / np.log(_PERIODS))
    period = _PERIODS**step
    wanted = 1 + _ROOM * pick(plan.gauss_t, plan.index) * period / (2 * PI)
    nodes = jnp.maximum(first_true(wanted[:, None] <= _NODES), least)
    plan = plan._replace(s=pick(plan.s_grid, plan.index), period=period)
    upper = contour.composed_upper(problem, s, reals.upper)
    above, chernoff = contour.bounding_tilts(plan, s, upper)
    return _Choice(
        place, step, nodes, plan.epsilon, plan.log_delta,
        pick(s, above), pick(upper, above),
        pick(s, chernoff), pick(upper, chernoff),
    )  # fmt: skip


@partial(jax.jit, static_argnames=("capacity", "order"))
def _evaluate(pair: SampledGaussianPair, s, period, nodes, *, capacity: int, order: int) -> _Contour:
    """Pairs on contours; (contours,)."""
    win, real = contour.real_cumulant(pair, s)
    h = 2 * PI / period
    cut = (nodes - 1) * h
    # the best shift of a light loss is about t q / sigma
    widest = 0.4 * jnp.minimum(PI * pair.sigma, 60.0)
    least = jnp.clip(0.3 * cut[:, None] * pair.q / pair.sigma / widest, 1e-8, 1e-2)
    shifts = [widest * least**x for x in np.linspace(1.0, 0.0, _SHIFTS)]
    each = jax.tree.map(lambda a: jnp.concatenate([a] * _SHIFTS), (pair, s, cut, win, real))
    log_cut = contour.log_beyond(each[0], each[1], each[2], jnp.concatenate(shifts), each[3], each[4])
    log_cut = jnp.min(log_cut.reshape((_SHIFTS, *pair.sigma.shape)), 0)
    height, step = cumulant.line_for(pair, s, cut, 0 * pair.sigma + _NATS)
    along = contour.along(pair, s, cut, height, step, win, real, log_cut)
    at = contour.block_nodes(nodes, h, np.int32(0), capacity)
    moments = cumulant.moments(pair, s, at.rows, at.across, along.window, height, along.step, real, order=order)
    first = _sensitivity.of_cumulant(pair, s, at.t, moments, order)[0] if order else []
    return _Contour(real, along.log_error, log_cut, moments.spread, *contour.log_phi(moments), first)


def _placed(problem: Problem, chosen: _Choice, s: jax.Array, period: jax.Array, on: _Contour) -> tuple:
    """(plan, tilt, nodes, log of their weights) of lanes on their contours."""
    size = on.angle.shape[-1]
    nothing, empty = s * 0, problem.count * 0
    grid = jnp.maximum(s, chosen.r_above)[:, None]
    plan = Plan(
        chosen.epsilon, chosen.log_delta, grid, grid, grid, grid, grid, grid, grid,
        jnp.zeros(s.shape, np.int32), s, period, nothing + size, empty, empty, empty,
    )  # fmt: skip
    h = 2 * PI / period
    cut = (size - 1) * h
    unused: Any = None
    inner = contour.Inner(unused, unused, unused, on.real, on.log_error, on.log_cut)
    above, chernoff = (chosen.r_above, chosen.k_above), (chosen.r_chernoff, chosen.k_chernoff)
    tilt = contour.composed(problem, plan, inner, cut, above, chernoff)
    t = h[:, None] * np.arange(size)
    return plan, tilt, t, jnp.broadcast_to(np.where(np.arange(size) == 0, np.log(0.5), 0.0), t.shape)


@partial(jax.jit, static_argnames="unknown")
def _solve(problem: Problem, chosen: _Choice, s, period, on: _Contour, given, old: contour.Ends, tol, *, unknown: str):
    """The answers of lanes on their contours."""
    plan, tilt, t, half = _placed(problem, chosen, s, period, on)
    size, h, cut = t.shape[-1], 2 * PI / period, tilt.cut
    weight, phase, log_inner = contour.terms(problem, plan, tilt, t, half, on.log_modulus, on.angle)
    line = contour.Line(h, t, weight, phase, log_inner, jnp.sum(problem.count * on.spread, 1))
    found = contour.ends(problem, plan, tilt, line, given, old, tol, unknown=unknown)
    # what the cutoff should have been, if |exp K| fell like a Gaussian's
    whole = tilt.k - s * chosen.epsilon - chosen.log_delta
    edge = jnp.log(PI * cut)
    fallen = jnp.maximum(whole - edge - jnp.log(found.certificate.truncation + 1e-300), 0.1)
    needed = jnp.maximum(whole - edge - jnp.log(tol / 5), 0.1)
    factor = jnp.clip(jnp.sqrt(needed / fallen), 1.0, 4.0)
    return found.answer(), first_true(1 + (size - 1) * factor[:, None] <= _NODES)


@jax.jit
def _differentiate(problem: Problem, chosen: _Choice, s, period, on: _Contour, eps) -> jax.Array:
    """The derivatives of log delta at ``eps``, as in ``_sensitivity``; (lanes, parameters)."""
    plan, tilt, t, half = _placed(problem, chosen, s, period, on)
    terms = _sensitivity.terms(problem, plan, tilt, t, half, on.log_modulus, on.angle, on.first, eps)
    return _sensitivity.with_aliases(plan, eps, *terms.sums())[1]


def solve(
    problem: Problem,
    given: np.ndarray,
    tol: float,
    unknown: str,
    families: tuple[np.ndarray, np.ndarray],
    order: int = 0,
) -> tuple[contour.Answer, np.ndarray | None]:
    """The contour engine on lanes of numbers (NumPy arrays, float64 enabled by the caller) that belong to ``families``.

    Returns:
      The answers, and at order 1 the derivatives of log delta, as in ``_sensitivity``. Lanes that do not converge here may do
      so by themselves.
    """
    first, member = families
    pairs = take(problem.pair, first)
    reals = _on_ladder(pairs)
    lanes, for_epsilon = given.shape[0], unknown == "epsilon"
    epsilon, log_delta = (np.full(lanes, np.nan), given) if for_epsilon else (given, np.full(lanes, np.nan))
    tols, least, todo = np.full(lanes, tol), np.zeros(lanes, np.int32), np.arange(lanes)
    best: Any = None
    last: Any = None
    guess = np.full(lanes, np.nan)
    for _ in range(_TRIES):
        part = take((problem, epsilon, log_delta, tols, least, member), todo)
        chosen = in_chunks(lambda a: _choose(*a[:-1], take(reals, a[-1])), part, part[-1], _LANES)
        old = contour.Ends(*take(best[:3], todo)) if best else contour.start(given)
        own = (part[0], chosen, given[todo], old, tols[todo])
        solved = lambda a: _solve(*a[:2], *a[-3:], *a[2:-3], unknown=unknown)
        found, wanted = _on_contours(pairs, part[-1], chosen, own, solved)
        best, last = best or jax.tree.map(np.copy, found), last or jax.tree.map(np.copy, chosen)
        for whole, some in zip((*best, *last), (*found, *chosen), strict=True):
            whole[todo] = some
        guess[todo] = np.where(
            np.isfinite(found.estimate), found.estimate, chosen.epsilon if for_epsilon else chosen.log_delta
        )
        (epsilon, log_delta) = (guess, log_delta) if for_epsilon else (epsilon, guess)
        least[todo] = wanted
        # a lane that has all the nodes there are does not get more by another try
        going = ~found.converged & ~found.cancelled & (chosen.nodes < _NODES.size - 1)
        todo = todo[going]
        if not todo.size:
            break
    if not order:
        return best, None
    own = (problem, last, best.estimate if for_epsilon else given)
    slopes = _on_contours(pairs, member, last, own, lambda a: _differentiate(*a[:2], *a[-3:], a[2]), order)
    return best, slopes


def _on_ladder(pairs: SampledGaussianPair) -> _Reals:
    families = pairs.sigma.shape[0]
    each = jax.tree.map(lambda a: np.repeat(a, _TILTS.size, 0), pairs)
    s = np.tile(_TILTS, families)
    found = in_chunks(lambda a: _reals(*a), (each, s), s / np.min(each.sigma, 1), 128)
    return _Reals(*(np.moveaxis(a.reshape((families, _TILTS.size, -1)), 1, 2) for a in found))


def _cut(on: _Contour, size: int) -> _Contour:
    cut = lambda a: a[..., :size]
    return on._replace(log_modulus=cut(on.log_modulus), angle=cut(on.angle), first=jax.tree.map(cut, on.first))


def _on_contours(pairs, member, chosen: _Choice, own: tuple, function: Callable, order: int = 0) -> Any:
    """``function`` of lanes' ``own`` arguments, tilt, period and contour, each of which is evaluated once."""
    parts, places = [], []
    for number in np.unique(chosen.nodes):
        lanes = np.flatnonzero(chosen.nodes == number)
        size = int(_NODES[number])
        keys = np.stack([member[lanes], chosen.tilt[lanes], chosen.period[lanes].astype(int)])
        order_of = np.lexsort(keys[::-1])
        fresh = np.append(True, np.any(np.diff(keys[:, order_of]) != 0, 0))
        place = np.empty(lanes.size, int)
        place[order_of] = np.cumsum(fresh) - 1
        family, tilt, period = keys[:, order_of[fresh]]
        pair, s = take(pairs, family), _TILTS[tilt]
        asked = pair, s, _PERIODS**period, np.full(s.size, float(size))
        capacity = int(_CAPACITIES[np.searchsorted(_CAPACITIES, size)])
        on = in_chunks(lambda a, c=capacity: _evaluate(*a, capacity=c, order=order), asked, s / np.min(pair.sigma, 1))
        on = _cut(on, size)
        lane_of = (*take(own, lanes), s[place], _PERIODS ** period[place], place)
        with_contour = lambda a, on=on: function((*a[:-1], take(on, a[-1])))
        parts.append(in_chunks(with_contour, lane_of, place, _LANES if size <= 64 else _LANES_WIDE))
        places.append(lanes)
    whole = jax.tree.map(lambda *a: np.concatenate(a), *parts)
    return take(whole, np.argsort(np.concatenate(places)))
