"""Certified delta and epsilon of one composition from its two laws on a grid."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dpjax._positions import pick
from dpjax.lattice import planning
from dpjax.lattice.cells import UNIT
from dpjax.lattice.spectrum import End, Grid, tilted_deltas

_LEAST_LOG = -690.0  # of a delta that an epsilon is found for: exp(-708) is the smallest float


class Found(NamedTuple):
    """A certified answer; scalars. Log delta if delta was asked for.

    Attributes:
      lower, estimate, upper: the estimate is the pessimistic law's, whose error is of second order in the spacing even where
        the lower end's is of the first; its derivative is the answer's.
      slope: -d log delta / d epsilon, roughly.
      spacing: of the grid.
    """

    lower: jax.Array
    estimate: jax.Array
    upper: jax.Array
    slope: jax.Array
    spacing: jax.Array


def _log_chernoff(s: Any) -> Any:
    """log of s^s / (1 + s)^(1 + s), the largest value of (1 - exp(-x)) exp(-s x)."""
    return s * jnp.log(s) - (1 + s) * jnp.log1p(s)


def _positions(grid: Grid, n: int, epsilon: Any) -> jax.Array:
    """The J in [J0 - n / 2, J0 + n / 2) of each place modulo n, J0 the point at epsilon."""
    middle = jnp.floor(epsilon / grid.spacing) - n // 2
    return middle + jnp.mod(np.arange(n) - middle, n)


def _at(values: jax.Array, place: Any, n: int) -> jax.Array:
    return pick(values, jnp.mod(place, n).astype(jnp.int32))


def solve(ends: tuple[End, End], grid: Grid, given: Any, plan: planning.Plan, unknown: str, n: int) -> Found:
    """The answer to one question.

    Args:
      ends, grid, n: see ``spectrum.compose``.
      given: log delta if ``unknown`` is "epsilon", epsilon if it is "delta"; any real number.
      plan: from which the grid was made.
      unknown: says which.
    """
    high, low = ends
    s, r, h = grid.tilt, grid.far_tilt, grid.spacing
    exact = (plan.unit > 0) & (h <= plan.unit)  # every law on the grid as it stands
    values, error = tilted_deltas(high, grid, n)
    lows, low_error = tilted_deltas(low, grid, n)
    stop = lambda tree: jax.tree.map(lax.stop_gradient, tree)
    total, largest = plan.total, plan.largest
    moved = stop(4 * UNIT * total * (1 + plan.furthest))  # rounding of the grid points, in nats of the composed loss
    fallen = stop(moved + total * grid.slack + 4 * UNIT * h)
    growth = 1 + 16 * UNIT * (1 + jnp.abs(stop(high.log_m)) + jnp.abs(stop(low.log_m)))
    infinite_high, infinite_low = -jnp.expm1(high.log_finite), -jnp.expm1(low.log_finite)
    infinite_exactly = stop(infinite_low) * (1 + 16 * UNIT)
    infinite_low = stop(infinite_low) * (1 - 16 * UNIT)
    infinite_high_bound = stop(infinite_high) * (1 + 64 * UNIT) + stop(high.infinite_error)

    period = n * h
    wrapped = jnp.exp(-(r - s) * period)
    # those of the lower law, which keeps at its top what the other moves to infinity
    alias = stop(low.log_far + _log_chernoff(r)) - (r - s) * period - jnp.log1p(-wrapped)
    below = -s * period - jnp.log(-jnp.expm1(-s * period))
    top, bottom = stop(values) + error, stop(lows) - low_error
    log_m, low_m = stop(high.log_m), stop(low.log_m)
    most = stop(log_m + high.log_bound[0])  # of M(s), rounding included

    def bounds_at(place):
        """Certified (upper, lower) of delta at grid points ``place``, (...,) whole numbers."""
        e = place * h
        upper = jnp.exp(jnp.minimum(log_m - s * e, 690.0)) * _pick_many(top, place, n) * growth
        lower = jnp.exp(jnp.minimum(low_m - s * e, 690.0)) * _pick_many(bottom, place, n) / growth
        lower = lower - jnp.exp(jnp.minimum(alias - r * e, 690.0)) - jnp.exp(below)
        chernoff = jnp.exp(
            jnp.minimum(
                jnp.minimum(most - s * e + _log_chernoff(s), stop(high.log_far) - r * e + _log_chernoff(r)), 0.0
            )
        )
        upper = jnp.minimum(jnp.minimum(upper, chernoff * growth) + infinite_high_bound, 1.0)
        return upper, jnp.maximum(lower + infinite_low, infinite_low)

    def between(e, ends, place):
        """Linear in exp(epsilon) between neighbouring points, as every law on the grid is."""
        weight = jnp.clip(jnp.expm1(e - place * h) / jnp.expm1(h), 0.0, 1.0)
        return (1 - weight) * ends[0] + weight * ends[1]

    def smooth(e):
        """log delta of the pessimistic law at a real e, differentiable in everything."""
        place = stop(jnp.floor(e / h))
        offsets = np.arange(-1.0, 3.0)
        at = (place + offsets) * h
        raw = jnp.exp(high.log_m - s * at - stop(high.log_m - s * place * h)) * _pick_many(values, place + offsets, n)
        scale = stop(high.log_m - s * place * h)
        finite = infinite_high / jnp.exp(jnp.maximum(scale, -690.0)) + raw
        logs = jnp.log(jnp.maximum(finite, 1e-300)) + scale
        x = (e - place * h) / h
        weights = jnp.stack(
            [
                -x * (x - 1) * (x - 2) / 6,
                (x + 1) * (x - 1) * (x - 2) / 2,
                -(x + 1) * x * (x - 2) / 2,
                (x + 1) * x * (x - 1) / 6,
            ]
        )
        cubic = jnp.sum(weights * logs)
        w = jnp.expm1(e - place * h) / jnp.expm1(h)
        linear = jnp.log(jnp.maximum((1 - w) * finite[1] + w * finite[2], 1e-300)) + scale
        return jnp.where(exact, linear, cubic)

    log = lambda x: jnp.log(jnp.maximum(x, 1e-300))
    if unknown == "delta":
        near = jnp.floor((stop(given) - moved) / h)
        upper = between(given - moved, [bounds_at(near + i)[0] for i in (0, 1)], near)
        far = jnp.floor((stop(given) + fallen) / h)
        lower = between(given + fallen, [bounds_at(far + i)[1] for i in (0, 1)], far)
        upper = jnp.where(given >= largest, infinite_exactly, upper)
        # no profile is below 1 - exp(e); not at grid points, as chords of a maximum are above it
        lower = jnp.minimum(jnp.maximum(lower, -jnp.expm1(jnp.minimum(given, 0.0))), upper)
        away = lambda x: 8 * UNIT * (1 + jnp.abs(log(x)))
        upper, lower = stop(log(upper) + away(upper)), stop(jnp.where(lower > 0, log(lower) - away(lower), -jnp.inf))
        value = smooth(given)
    else:
        target = jnp.exp(jnp.minimum(stop(given), 0.0))
        known = stop(given) >= _LEAST_LOG  # below, masses are flushed to 0
        places = _positions(grid, n, plan.epsilon)
        e = places * h
        sky = jnp.exp(jnp.clip(s * e - log_m, -700.0, 690.0))
        enough = (target - infinite_high_bound) * sky / growth >= top
        first = jnp.min(jnp.where(enough & (target > infinite_high_bound), places, jnp.inf))
        some = jnp.isfinite(first)
        place = jnp.where(some, first, 0.0) - 1
        upper = _crossing(place, [bounds_at(place + i)[0] for i in (0, 1)], target, h)
        fallback = jnp.minimum(
            (most + _log_chernoff(s) - log(target - infinite_high_bound)) / s,
            (stop(high.log_far) + _log_chernoff(r) - log(target - infinite_high_bound)) / r,
        )
        upper = jnp.where(some, jnp.minimum(upper, fallback), fallback)
        some = known & (target > infinite_high_bound)
        upper = jnp.where(some, jnp.maximum(upper + moved, 0.0) * (1 + 4 * UNIT), jnp.inf)
        upper = jnp.where(
            target >= infinite_low * (1 + 64 * UNIT), jnp.minimum(upper, jnp.maximum(largest, 0.0)), upper
        )
        more = (
            bottom / growth
            - jnp.exp(jnp.clip(alias - r * e + s * e - low_m, -700, 690))
            - jnp.exp(jnp.clip(below + s * e - low_m, -700, 690))
        ) >= (target - infinite_low) * jnp.exp(jnp.clip(s * e - low_m, -700, 690))
        last = jnp.max(jnp.where(more, places, -jnp.inf))
        place = jnp.where(jnp.isfinite(last), last, 0.0)
        lower = _crossing(place, [bounds_at(place + i)[1] for i in (0, 1)], target, h)
        lower = jnp.where(known & jnp.isfinite(last), jnp.maximum(lower - fallen, 0.0) * (1 - 4 * UNIT), 0.0)
        lower = jnp.where(target < infinite_low, jnp.inf, lower)
        start = stop(jnp.where(jnp.isfinite(upper), 0.5 * (lower + upper), plan.epsilon))
        value = start
        # two steps of Newton's method carry first and second derivatives by the implicit function theorem
        for _ in range(2):
            at, slope = jax.value_and_grad(smooth)(value)
            value = value - (at - given) / jnp.where(slope < 0, slope, -1.0)
        value = jnp.where(known, jnp.where(start > 0, value, 0.0), plan.epsilon)
    # where the weights of a grid that does not fit overflow, nothing is known but the limits
    broken = jnp.isnan(upper) | jnp.isnan(lower)
    if unknown == "delta":
        lower, upper = jnp.where(broken, log(infinite_low), lower), jnp.where(broken, 0.0, upper)
    else:
        reach = jnp.where(target >= infinite_exactly, jnp.maximum(largest, 0.0), jnp.inf)
        lower, upper = (
            jnp.where(broken, jnp.where(target < infinite_low, jnp.inf, 0.0), lower),
            jnp.where(broken, reach, upper),
        )
    inside = jnp.clip(jnp.where(jnp.isnan(stop(value)), stop(upper), stop(value)), stop(lower), stop(upper))
    value = jnp.where(jnp.isnan(value), stop(inside), value + stop(inside - value))
    return Found(stop(lower), value, stop(upper), s, h)


def _crossing(place, ends, target, h):
    """Where the chord in exp(epsilon) between two points falls to ``target``; the second point if it does not."""
    drop = ends[0] - ends[1]
    share = jnp.where(drop > 0, (ends[0] - target) / jnp.where(drop > 0, drop, 1.0), 1.0)
    return place * h + jnp.log1p(jnp.clip(share, 0.0, 1.0) * jnp.expm1(h))


def _pick_many(values, places, n):
    places = jnp.asarray(places)
    return _at(values, places, n) if places.ndim == 0 else jnp.stack([_at(values, p, n) for p in places])
