"""The moving window of thresholds on which a recursion over mechanisms is carried, and reading a threshold off it."""

from __future__ import annotations

import math
from typing import NamedTuple

import jax.numpy as jnp

ULP = 2.0**-53
TINY = 1e-290  # XLA flushes subnormals to zero; a floor keeps an upper bound an upper bound
MARGIN = 2  # a window moves by -MARGIN .. cells + MARGIN points in one step
# Tilts, relative to the plan's, of the Markov bounds outside a window. With the plan's own tilt alone the excess at
# k = 1000 was 0.8%: near the end of the recursion that bound is far above h at the window's edge.
OUTSIDE = (1e-3, 0.1, 0.25, 0.5, 0.7, 0.85, 1.0, 1.2, 1.5, 2.0, 3.0, 5.0)


class Grid(NamedTuple):
    """Static sizes of the recursion."""

    steps: int
    cells: int  # per largest epsilon
    equal: bool  # every epsilon is the same, a whole number of cells


def window(grid: Grid, spread: float = 2.6) -> int:
    """Points per window: five standard deviations of a bridge of bounded steps on each side, or everything."""
    spans = min(spread * math.sqrt(grid.steps) + 4.0, 2.0 * grid.steps + 2.0)
    return int(spans * grid.cells) + 1


def around(log_delta):
    """(a little below, a little above): a logarithm is off by its rounding, and so are differences from it."""
    room = 4 * ULP * (1 + jnp.where(jnp.isfinite(log_delta), jnp.abs(log_delta), 0.0))
    return log_delta - room, log_delta + room


def first_largest(values):
    """argmax along the only axis. With JAX's flag off, that of a float64 fails to lower inside a caller's jit (0.10)."""
    last = values.shape[0] - 1
    index = jnp.arange(last + 1, dtype=jnp.int32)
    return jnp.min(jnp.where(values == jnp.max(values), index, last))


def invert(xs, upper, lower, slopes, log_delta, total, pad):
    """The least threshold that the chords certify, and the largest one that the lines exclude.

    Args:
      xs, upper, lower, slopes: thresholds, bounds on log h there with their rounding, and -dh/dx / h of the lower one.
      log_delta: the value of log h that is asked for.
      total: h is 0 from there on.
      pad: relative rounding of the slopes.

    Returns:
      (lower end, upper end).
    """
    enough, short = around(log_delta)
    met = upper <= enough
    i = first_largest(met)
    before = jnp.maximum(i - 1, 0)
    # On the chord in e^x between the two points, in units of delta.
    over, under = jnp.exp(upper[before] - enough), jnp.exp(upper[i] - enough)
    part = jnp.where(over > under, (over - 1) / jnp.where(over > under, over - under, 1.0), 1.0)
    chord = xs[before] + jnp.log1p(jnp.clip(part, 0.0, 1.0) * jnp.expm1(xs[i] - xs[before]))
    high = jnp.where(i > 0, jnp.minimum(chord * (1 + 8 * ULP) + 8 * ULP, xs[i]), xs[0])
    high = jnp.clip(jnp.where(jnp.any(met), high, total), 0.0, total)

    exceeds = lower > short
    last = xs.shape[0] - 1 - first_largest(exceeds[::-1])
    gain = -jnp.expm1(short - lower[last]) / jnp.maximum(slopes[last] * (1 + 4 * pad), 1e-300)
    line = xs[last] + jnp.log1p(jnp.maximum(gain, 0.0))
    low = jnp.where(jnp.any(exceeds), line * (1 - 8 * ULP) - 8 * ULP, 0.0)
    return low, jnp.maximum(high, low)
