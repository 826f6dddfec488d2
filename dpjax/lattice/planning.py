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
_SPACINGS = np.geomspace(1e-9, 10.0, 60)
_LOST, _EXACT = 1e-3, 1e-11  # of tol, and of delta where every law is on the grid as it stands
_FURTHEST = 30.0  # times the tilt: a far tilt sees the roundings up of the grid
_MARGIN = 3.0  # nats for what the sketch misses of an alias
_CANCELLED = 9.0  # log of the cancellation from which a tilt is dearer


class Sketch(NamedTuple):
    """A law seen from afar; scalars unless said otherwise.

    Attributes:
      log_p: (cells,), log of P's masses of the coarse cells.
      loss: (cells,), log(P / Q) there.
      log_above, log_below: (cells + 1,), log of P's tails at the coarse edges; that above without what is beyond ``REACH``,
        which is infinite for any grid.
      bottom, top: the support.
      unit: the law's ``spacing``.
      atom: the size of a loss that has a probability of its own, 0 if there is none.
      infinite: P's mass at infinity.
    """

    log_p: jax.Array
    loss: jax.Array
    log_above: jax.Array
    log_below: jax.Array
    bottom: jax.Array
    top: jax.Array
    unit: jax.Array
    atom: jax.Array
    infinite: jax.Array


class Plan(NamedTuple):
    """One composition's needs; scalars unless said otherwise.

    Attributes:
      epsilon, log_delta: where the answer is expected.
      tilt, far_tilt: see ``spectrum.Grid``.
      period: what n * spacing must reach.
      low, high: (terms,) losses that a single law's grid must span.
      unit: a spacing on which all laws are exact, 0 if there is none.
      atom: a loss that the grid had better hit, 0 if there is none: an atom between points costs a whole order below.
      slack: see ``spectrum.Grid``.
      points: how long a transform has to be.
      total: how many runs there are.
      largest: the largest finite loss, rounded up.
      furthest: the largest |loss| on a single law's grid.
    """

    epsilon: jax.Array
    log_delta: jax.Array
    tilt: jax.Array
    far_tilt: jax.Array
    period: jax.Array
    low: jax.Array
    high: jax.Array
    unit: jax.Array
    atom: jax.Array
    slack: jax.Array
    points: jax.Array
    total: jax.Array
    largest: jax.Array
    furthest: jax.Array


def sketch(law: Law) -> Sketch:
    """What a plan needs to know of a law."""
    law = jax.tree.map(lax.stop_gradient, law)
    t = law.tails(jnp.asarray(_EDGES))
    upper = lambda above, below: above[:-1] <= below[:-1]
    masses = lambda above, below: jnp.maximum(
        jnp.where(upper(above, below), above[:-1] - above[1:], below[1:] - below[:-1]), 0.0
    )
    p, q = masses(t.p_above, t.p_below), masses(t.q_above, t.q_below)
    both = (p > 0) & (q > 0)
    log = lambda m: jnp.log(jnp.where(both, m, 1.0))
    middle = 0.5 * (_EDGES[1:] + _EDGES[:-1])
    loss = jnp.clip(jnp.where(both, log(p) - log(q), middle), _EDGES[:-1], _EDGES[1:])
    log_tail = lambda m: jnp.log(jnp.maximum(m, 1e-300))
    number = lambda x: jnp.asarray(x, loss.dtype)
    reached = jnp.maximum(t.p_above - t.p_above[-1], 0.0)
    bottom, top = law.support()
    return Sketch(
        jnp.where(p > 0, log_tail(p), -jnp.inf), loss, log_tail(reached), log_tail(t.p_below),
        number(bottom), number(top), number(law.spacing()), jnp.abs(number(law.atom())), number(law.p_infinite()),
    )  # fmt: skip


def _cumulants(drawn: tuple[Sketch, Any]) -> tuple:
    """count times K, K' and K'' on the tilts."""
    seen, count = drawn
    log_w = seen.log_p + _TILTS[:, None] * seen.loss
    top = jnp.maximum(jnp.max(log_w, -1), -1e300)
    w = jnp.exp(log_w - top[:, None])
    total = jnp.sum(w, -1)
    first = jnp.sum(w * seen.loss, -1) / total
    second = jnp.sum(w * (seen.loss - first[:, None]) ** 2, -1) / total
    each = top + jnp.log(total), first, second
    return tuple(jnp.where(count > 0, count * x, 0.0) for x in each)


def plan(sketches: Sketch, counts: jax.Array, given: jax.Array, unknown: str, tol: Any) -> Plan:
    """A plan for one composition.

    Args:
      sketches: of its laws, stacked along a first axis of terms.
      counts: (terms,).
      given: log delta if ``unknown`` is "epsilon", epsilon if it is "delta".
      unknown: says which.
      tol: relative width of delta that is aimed at.
    """
    counts, given = jax.tree.map(lax.stop_gradient, (counts, given))
    total = jnp.sum(counts)
    k0, k1, k2 = (jnp.sum(x, 0) for x in lax.map(_cumulants, (sketches, counts)))
    if unknown == "epsilon":  # what failures take is not left for finite losses
        infinite = -jnp.expm1(jnp.sum(counts * jnp.log1p(-jnp.minimum(sketches.infinite, 1 - 1e-16))))
        left = jnp.exp(given) - infinite
        given = jnp.where((left > 0) & (infinite > 0), jnp.log(jnp.where(left > 0, left, 1.0)), given)
    # an infinite unit: there is no loss but 0
    unit = jnp.min(sketches.unit)
    one = jnp.isinf(sketches.unit) | (jnp.abs(sketches.unit - unit) <= 1e-14 * unit)
    unit = jnp.where(jnp.all(one) & jnp.isfinite(unit), unit, 0.0)
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
    share = jnp.where(unit > 0, _EXACT, _LOST * tol)  # of delta, that each end of a window and the aliases may cost
    error = log_delta + jnp.log(share)

    down = -error / s
    gap = s[None, :] - s[:, None]
    beyond = k0 - s * epsilon + s * np.log(s) - (1 + s) * np.log1p(s)
    near = (gap > 0) & (s[None, :] <= _FURTHEST * s[:, None])
    up = jnp.where(near, (beyond[None, :] - error + _MARGIN) / np.where(gap > 0, gap, 1.0), jnp.inf)
    period = jnp.maximum(down, jnp.maximum(jnp.min(up, -1), 0.0))
    lost = k0 - s * epsilon - size - log_delta
    span = jnp.max(sketches.top - sketches.bottom)  # which a grid has to hold anyway
    least = jnp.where(jnp.isfinite(span), span, 0.0)
    price = (
        jnp.log(jnp.maximum(period, least))
        + 0.02 * lost
        + 10 * jnp.maximum(lost - jnp.maximum(_CANCELLED, pick(lost, index) + 1), 0.0)
    )
    chosen = at_least(jnp.where(jnp.isfinite(price), price, 1e300))
    tilt = pick(jnp.broadcast_to(s, price.shape), chosen)
    column = pick(jnp.moveaxis(jnp.where(jnp.isfinite(up), up, 1e300), 0, -1), chosen)
    far_tilt = pick(jnp.broadcast_to(s, price.shape), at_least(column))
    period = pick(jnp.where(jnp.isfinite(period), period, 1e300), chosen)

    edges = jnp.asarray(_EDGES)

    def window(drawn):
        """The losses that matter, and what spacings cost."""
        seen, count = drawn
        log_w = seen.log_p + tilt * seen.loss
        log_m = jax.nn.logsumexp(log_w)
        # what is cut off above becomes infinite, below it is moved up to the cut: the steps share what delta can bear
        steps = jnp.log(jnp.maximum(total, 1.0))
        high = first_true(seen.log_above <= error - steps)
        fits = seen.log_below + tilt * edges - log_m <= jnp.log(share) - steps
        low = (_EDGES.size - 1) - first_true(jnp.flip(fits))
        start = jnp.maximum(pick(edges, low), jnp.minimum(seen.bottom, 0.0))
        reach = jnp.minimum(pick(edges, high), jnp.maximum(seen.top, 0.0))
        # variance gained above and lost below: that of a loss next to a grid point at 0, or of one anywhere
        weight = count * jnp.exp(log_w - log_m)
        away = jnp.minimum(jnp.abs(seen.loss) * _SPACINGS[:, None], _SPACINGS[:, None] ** 2 / 4)
        return start, reach, jnp.sum(weight * away, -1)

    low, high, costs = lax.map(window, (sketches, counts))
    cost = jnp.sum(costs, 0) * tilt * (1 + tilt)
    spacing = pick(jnp.asarray(_SPACINGS), jnp.maximum(first_true(cost > tol) - 1, 0))
    spacing = jnp.where((unit > 0) & (spacing < unit), unit, spacing)
    points = jnp.maximum(period, jnp.max(high - low)) / spacing
    # atoms of 1e-4 of a tail are still seen to sit on their points; densities need no such allowance
    slack = jnp.where(unit > 0, 1e-11, jnp.minimum(1e-9, 0.01 * tol / (jnp.maximum(total, 1.0) * (1 + tilt))))
    each = jnp.where(counts > 0, counts * jnp.maximum(sketches.top, -1e300), 0.0)
    largest = jnp.sum(each) + 1e-13 * jnp.sum(jnp.abs(each))
    furthest = jnp.max(jnp.maximum(jnp.abs(low), jnp.abs(high)))
    # beside densities, losses that are multiples of a number have atoms, too
    atoms = jnp.where(sketches.atom > 0, sketches.atom, jnp.where(jnp.isfinite(sketches.unit), sketches.unit, 0.0))
    often = counts * (atoms > 0)
    atom = pick(atoms, first_true(often >= jnp.max(often)))
    return Plan(
        epsilon, log_delta, tilt, far_tilt, period, low, high, unit, atom, slack, points, total, largest, furthest
    )


def grid(p: Plan, n: int) -> Grid:
    """The grid of a plan for transforms of length ``n``, single laws on as many points."""
    widest = jnp.max(p.high - p.low)
    # four points are for rounding to whole spacings
    spacing = jnp.maximum(p.period / n, widest / (n - 4))
    whole = jnp.floor(jnp.where(p.unit > 0, p.unit, p.atom) / spacing)
    spacing = jnp.where(whole >= 1, jnp.where(p.unit > 0, p.unit, p.atom) / jnp.maximum(whole, 1.0), spacing)
    return Grid(p.tilt, p.far_tilt, spacing, jnp.floor(p.low / spacing) - 1, p.slack)
