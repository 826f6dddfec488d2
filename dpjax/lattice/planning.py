"""Choosing a grid: tilt, spacing and first points, from a coarse picture of the laws.

Nothing here is certified: a bad choice costs width, never honesty.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dpjax._positions import at_least, first_true, pick
from dpjax.lattice.spectrum import Grid
from dpjax.laws import Law

REACH = 600.0  # losses beyond are treated as infinite: exp(700) overflows
_EDGES = np.geomspace(1e-9, REACH, 321)
_EDGES = np.concatenate([-_EDGES[::-1], [0.0], _EDGES])
_TILTS = np.geomspace(1e-3, 3e3, 64)
_LOST = 1e-3  # of tol: what each end of the window may cost
_CANCELLED = 9.0  # log of the cancellation from which a tilt is dearer


class Plan(NamedTuple):
    """One composition's needs; scalars unless said otherwise.

    Attributes:
      epsilon, log_delta: where the answer is expected.
      tilt, far_tilt: see ``spectrum.Grid``.
      period: what n * spacing must reach.
      spacing: what meets the tolerance.
      low, high: for each group, (terms,) losses that a single law's grid must span.
      unit: a spacing on which all laws are exact, 0 if there is none.
      slack: see ``spectrum.Grid``.
      points: how long a transform has to be.
    """

    epsilon: jax.Array
    log_delta: jax.Array
    tilt: jax.Array
    far_tilt: jax.Array
    period: jax.Array
    spacing: jax.Array
    low: tuple
    high: tuple
    unit: jax.Array
    slack: jax.Array
    points: jax.Array


class _Sketch(NamedTuple):
    """A law on the coarse cells (cells,), or sums over terms on the tilts (tilts,)."""

    log_p: jax.Array
    loss: jax.Array


def _sketch(law: Law) -> _Sketch:
    t = law.tails(_EDGES)
    masses = lambda above, below: jnp.maximum(jnp.where(above[:-1] <= below[:-1], above[:-1] - above[1:], below[1:] - below[:-1]), 0.0)
    p, q = masses(t.p_above, t.p_below), masses(t.q_above, t.q_below)
    both = (p > 0) & (q > 0)
    log = lambda m: jnp.log(jnp.where(both, m, 1.0))
    middle = 0.5 * (_EDGES[1:] + _EDGES[:-1])
    loss = jnp.clip(jnp.where(both, log(p) - log(q), middle), _EDGES[:-1], _EDGES[1:])
    return _Sketch(jnp.where(p > 0, jnp.log(jnp.maximum(p, 1e-300)), -jnp.inf), loss)


def _cumulants(law: Law, count: Any) -> tuple:
    """count times K, K' and K'' on the tilts."""
    sketch = _sketch(law)
    log_w = sketch.log_p + _TILTS[:, None] * sketch.loss
    top = jnp.maximum(jnp.max(log_w, -1), -1e300)
    w = jnp.exp(log_w - top[:, None])
    total = jnp.sum(w, -1)
    first = jnp.sum(w * sketch.loss, -1) / total
    second = jnp.sum(w * (sketch.loss - first[:, None]) ** 2, -1) / total
    each = top + jnp.log(total), first, second
    return tuple(jnp.where(count > 0, count * x, 0.0) for x in each)


def _log_finite(law: Law, count: Any) -> jax.Array:
    return count * jnp.log1p(-jnp.minimum(law.p_infinite() + 0.0 * count, 1 - 1e-16))


def _over_terms(function: Any, laws: tuple, *rest: tuple) -> Any:
    """The sum of ``function`` over all terms of all groups."""
    total = None
    for group in zip(laws, *rest, strict=True):
        values = lax.map(lambda g: function(*g), group) if jax.tree.leaves(group)[0].shape[0] > 1 else jax.tree.map(
            lambda a: a[None], function(*jax.tree.map(lambda a: a[0], group)))
        summed = jax.tree.map(lambda a: jnp.sum(a, 0), values)
        total = summed if total is None else jax.tree.map(jnp.add, total, summed)
    return total


def _over_each(function: Any, *groups: tuple) -> list:
    """``function`` of every term, a list of (terms,) results for the groups."""
    return [lax.map(lambda g: function(*g), group) for group in zip(*groups, strict=True)]


def plan(laws: tuple, counts: tuple, given: jax.Array, unknown: str, tol: float) -> Plan:
    """A plan for one composition.

    Args:
      laws, counts: see ``spectrum.compose``.
      given: log delta (of the finite losses) if ``unknown`` is "epsilon", epsilon if it is "delta".
      unknown: says which.
      tol: relative width of delta that is aimed at.
    """
    laws, counts, given = jax.tree.map(lax.stop_gradient, (laws, counts, given))
    k0, k1, k2 = _over_terms(_cumulants, laws, counts)
    if unknown == "epsilon":  # what failures take is not left for finite losses
        infinite = -jnp.expm1(_over_terms(_log_finite, laws, counts))
        left = jnp.exp(given) - infinite
        given = jnp.where((left > 0) & (infinite > 0), jnp.log(jnp.where(left > 0, left, 1.0)), given)
    s = _TILTS
    size = jnp.log(s) + jnp.log1p(s)
    epsilons = k1 - 1 / s - 1 / (1 + s)
    spread = k2 + 1 / s**2 + 1 / (1 + s) ** 2
    log_deltas = jnp.minimum(k0 - s * epsilons - size - 0.5 * jnp.log(2 * np.pi * spread), 0.0)
    if unknown == "epsilon":
        index = first_true(log_deltas <= given)
        wanted = given
    else:
        index = first_true(epsilons >= given)
        wanted = pick(log_deltas, index)
    before = jnp.maximum(index - 1, 0)
    here, there = (log_deltas, given) if unknown == "epsilon" else (epsilons, given)
    low_value, high_value = pick(here, before), pick(here, index)
    span = high_value - low_value
    share = jnp.clip(jnp.where(span == 0, 1.0, (there - low_value) / jnp.where(span == 0, 1.0, span)), 0.0, 1.0)
    mix = lambda a: pick(a, before) + share * (pick(a, index) - pick(a, before))
    epsilon = mix(epsilons) if unknown == "epsilon" else given
    log_delta = wanted if unknown == "epsilon" else mix(log_deltas)
    error = log_delta + np.log(tol)  # log of what each share of the error may be

    down = -error / s
    gap = s[None, :] - s[:, None]
    beyond = k0 - s * epsilon + s * np.log(s) - (1 + s) * np.log1p(s)
    up = jnp.where(gap > 0, (beyond[None, :] - error) / np.where(gap > 0, gap, 1.0), jnp.inf)
    period = jnp.maximum(down, jnp.maximum(jnp.min(up, -1), 0.0))
    lost = k0 - s * epsilon - size - log_delta
    price = jnp.log(period) + 10 * jnp.maximum(lost - jnp.maximum(_CANCELLED, pick(lost, index) + 1), 0.0)
    chosen = at_least(jnp.where(jnp.isfinite(price), price, 1e300))
    tilt = pick(jnp.broadcast_to(s, price.shape), chosen)
    column = pick(jnp.moveaxis(jnp.where(jnp.isfinite(up), up, 1e300), 0, -1), chosen)
    far_tilt = pick(jnp.broadcast_to(s, price.shape), at_least(column))
    period = pick(jnp.where(jnp.isfinite(period), period, 1e300), chosen)

    total = sum(jnp.sum(c) for c in counts)

    def window(law, count):
        """The losses that matter, how far they are from 0, and the tilted masses."""
        sketch = _sketch(law)
        log_w = sketch.log_p + tilt * sketch.loss
        log_m = jax.nn.logsumexp(log_w)
        # what is cut off above becomes infinite; total steps share what delta can bear
        t = law.tails(_EDGES)
        over = jnp.log(jnp.maximum(t.p_above, 1e-300))
        high = first_true(over <= error + np.log(_LOST) - jnp.log(jnp.maximum(total, 1.0)))
        # what is cut off below is moved up to the cut
        under = jnp.log(jnp.maximum(t.p_below, 1e-300)) + tilt * _EDGES - log_m
        fits = under <= np.log(tol * _LOST) - jnp.log(jnp.maximum(total, 1.0))
        low = (_EDGES.size - 1) - first_true(jnp.flip(fits))
        edges = jnp.asarray(_EDGES)
        bottom, top = law.support()
        reach = jnp.minimum(pick(edges, high), jnp.maximum(top, 0.0))
        start = jnp.maximum(pick(edges, low), jnp.minimum(bottom, 0.0))
        weight = count * jnp.exp(log_w - log_m)
        return start, reach, weight, jnp.abs(sketch.loss)

    def summary(law, count):
        start, reach, weight, away = window(law, count)
        # extra variance and lost variance of a spacing h: min(loss h, h^2 / 4) each
        spacings = np.geomspace(1e-9, 10.0, 60)
        costs = jnp.sum(weight[None, :] * jnp.minimum(away[None, :] * spacings[:, None], spacings[:, None] ** 2 / 4), -1)
        return start, reach, costs

    parts = _over_each(summary, laws, counts)
    spacings = jnp.asarray(np.geomspace(1e-9, 10.0, 60))
    costs = sum(jnp.sum(part[2], 0) for part in parts) * tilt * (1 + tilt)
    fine = first_true(costs > tol)
    spacing = pick(spacings, jnp.maximum(fine - 1, 0))
    units = jnp.concatenate([jnp.broadcast_to(jnp.asarray(u, s.dtype), c.shape) for u, c in zip(_over_each(lambda law: law.spacing() + 0.0 * jnp.sum(_EDGES), laws), counts, strict=True)])
    unit = jnp.where(jnp.all(jnp.abs(units - units[0]) <= 1e-14 * units[0]), units[0], 0.0)
    spacing = jnp.where((unit > 0) & (spacing < unit), unit, spacing)
    low, high = tuple(part[0] for part in parts), tuple(part[1] for part in parts)
    widest = jnp.max(jnp.stack([jnp.max(h - l) for l, h in zip(low, high, strict=True)]))
    need = jnp.maximum(period, widest) / spacing
    slack = jnp.minimum(1e-9, 0.01 * tol / (jnp.maximum(total, 1.0) * (1 + tilt)))
    return Plan(epsilon, log_delta, tilt, far_tilt, period, spacing, low, high, unit, slack, need)


def grid(p: Plan, n: int, size: int) -> Grid:
    """The grid of a plan for a transform of length ``n`` and single laws on ``size`` points."""
    widest = jnp.max(jnp.stack([jnp.max(h - l) for l, h in zip(p.low, p.high, strict=True)]))
    # the last cells are for rounding to whole spacings
    spacing = jnp.maximum(p.period / n, widest / (size - 4))
    exact = (p.unit > 0) & (spacing <= p.unit)
    spacing = jnp.where(exact, p.unit, spacing)
    low = tuple(jnp.floor(l / spacing) - 1 for l in p.low)
    return Grid(p.tilt, p.far_tilt, spacing, low, p.slack)
