"""Kernels for different pairs, each fixed beforehand: a walk of the threshold with known steps.

With D_s(x) the delta of the last s pairs, D_s(x) = q D_{s-1}(x - t) + (1 - q) D_{s-1}(x - t + eps), loss t with
probability q and t - eps otherwise. Chords in e^x from above and lines accepted at neighbouring points from below, as
in ``bounded_range._recursion``; the grid moves down by t in each step, so that only the second argument is between points.
For a few pairs the sum over all outcomes is exact.
"""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from dpjax._two_point.moments import log_kernel, log_moment, markov_tilt, mean_loss, pair, saddle
from dpjax._two_point.roots import safe_sides
from dpjax._two_point.window import MARGIN, OUTSIDE, TINY, ULP, Grid, invert, window

EXACT = 12  # pairs whose 2^k outcomes are enumerated
SPREAD = 4.5  # at 2.6 what lies outside the window adds 1e-6 at k = 1000; here windows are cheap


class Walk(NamedTuple):
    """Static: sizes (``grid.equal`` is unused)."""

    grid: Grid


def cells_for(steps: int, rtol: float) -> int:
    """Cells of the largest epsilon: the width was measured below 8 log(1/delta) / cells^2 (13 or more pairs)."""
    affordable = math.sqrt(2e10 / (steps * (SPREAD * math.sqrt(steps) + 4)))
    return 8 * math.ceil(min(max(64.0, 12.0 / math.sqrt(rtol)), 4096.0, max(affordable, 256.0)) / 8)


def _start(x):
    """log (1 - e^x)_+ and the slope of (1 - e^x)_+."""
    below = x < 0
    safe = jnp.where(below, x, -1.0)
    return jnp.where(below, jnp.log(-jnp.expm1(safe)), -jnp.inf), jnp.where(below, jnp.exp(safe), 0.0)


def bracket(grid: Grid, x, eps, t):
    """Over the last window: thresholds, log upper, log lower, slopes (-dD/dx / D), index of x, rounding of log lower.

    eps, t have shape (steps,), in recursion order; a step with eps 0 or t at either end does nothing.
    The lower bound is differentiable in x, eps and t, with the chosen lines held.
    """
    on = (eps > 0) & (t > 0) & (t < eps)
    eps, t = jnp.where(on, eps, 1.0), jnp.where(on, t, 0.5)
    fixed_x, fixed_eps, fixed_t = lax.stop_gradient((x, eps, t))
    largest = jnp.max(jnp.where(on, fixed_eps, 0.0))
    h = jnp.where(largest > 0, largest, 1.0) / grid.cells
    rho = saddle(fixed_x, lambda lam: jnp.sum(jnp.where(on, mean_loss(fixed_eps, fixed_t, lam), 0.0)), largest)
    kappa = jnp.where(on, log_moment(fixed_eps, fixed_t, rho), 0.0)
    drift = jnp.where(on, mean_loss(fixed_eps, fixed_t, rho), 0.0)
    moved_t = jnp.where(on, fixed_t, 0.0)
    n, m = window(grid, SPREAD), grid.cells
    offset = fixed_x - (jnp.cumsum(moved_t[::-1])[::-1] - moved_t)
    centre = fixed_x - (jnp.cumsum(drift[::-1])[::-1] - drift)
    start = (jnp.floor((centre - offset) / h)).astype(jnp.int32) - n // 2
    start = start.at[-1].set(-(n // 2))
    # Before the first step: the same frame, moved by that step's t.
    offset = jnp.concatenate([offset[:1] - moved_t[:1], offset])
    start = jnp.concatenate([jnp.floor((centre[:1] - drift[:1] - offset[:1]) / h).astype(jnp.int32) - n // 2, start])

    tilts = rho * jnp.asarray(OUTSIDE)
    spent = jnp.where(on[:, None], log_moment(fixed_eps[:, None], fixed_t[:, None], tilts), 0.0)
    heights = jnp.concatenate([jnp.zeros((1, tilts.size)), jnp.cumsum(spent, axis=0)]) + log_kernel(tilts)
    used = jnp.concatenate([jnp.zeros(1), jnp.cumsum(kappa)])
    room = 1e-9 + 64 * ULP * OUTSIDE[-1] * rho * (jnp.sum(jnp.where(on, fixed_eps, 0.0)) + jnp.abs(fixed_x))
    cap = jnp.exp(log_kernel(rho) + room)
    # Arguments two and more cells outside a window are needed up to one step's eps and its move.
    reach = 2 * m + 2 * MARGIN + 4
    cells = jnp.clip(jnp.floor(fixed_eps / h).astype(jnp.int32), 0, m)
    base_rest = jnp.clip(fixed_eps - cells * h, 0.0, h)

    def step(carry, step_in):
        upper, lower, slope = carry
        e, tt, k, rest, first, move, edge_x, height, used_now, kap, live = step_in

        def outside(i):
            x_out = edge_x + i * h
            return jnp.exp(
                jnp.minimum(jnp.min(height - tilts * x_out[:, None], axis=-1), 0.0) + rho * x_out - used_now + room
            )

        after = jnp.arange(1, reach)
        above = jnp.minimum(upper[-1] * jnp.exp(rho * h * after), outside(n - 1 + after))
        before = jnp.arange(-reach, 0)
        padded = jnp.maximum(jnp.concatenate([outside(before), upper, above]), TINY)
        value = jnp.concatenate([lower[0] * jnp.exp(rho * h * before), lower, jnp.zeros(reach - 1)])
        slopes = jnp.concatenate([jnp.zeros(reach), slope, jnp.zeros(reach - 1)])

        def at(z, ahead):
            return lax.dynamic_slice(z, (reach + move + ahead,), (n,))

        up, down = pair(e, tt)
        held_t = lax.stop_gradient(tt)
        weight = jnp.exp(rho * held_t - kap)
        fade, step_fade = jnp.exp(-rho * k * h), jnp.exp(-rho * h)
        part = jnp.expm1(rest) / jnp.expm1(h)
        held_up, held_down = lax.stop_gradient((up, down))
        chord = fade * (at(padded, k) * (1 - part) + at(padded, k + 1) * step_fade * part)
        new_upper = weight * (held_up * at(padded, 0) + held_down * chord)

        # Displacements from grid points; those of the first argument are zero, with the derivative of -t.
        slip = held_t - tt
        bend = rest + (e - lax.stop_gradient(e)) + slip

        def line(ahead, by, scale):
            g, b = at(value, ahead), at(slopes, ahead)
            return scale * (g - b * jnp.expm1(by)), scale * b * jnp.exp(by)

        one = line(0, slip, 1.0)
        near, far = line(k, bend, fade), line(k + 1, bend - h, fade * step_fade)
        nearer = lax.stop_gradient(near[0] >= far[0])
        two = tuple(jnp.where(nearer, a, b) for a, b in zip(near, far, strict=True))
        some = lax.stop_gradient(two[0] > 0)
        two = tuple(jnp.where(some, a, 0.0) for a in two)
        new_lower, new_slope = (weight * (up * a + down * b) for a, b in zip(one, two, strict=True))
        new = jnp.clip(new_upper, TINY, cap), new_lower, new_slope
        return jax.tree.map(lambda a, b: jnp.where(live, a, b), new, carry), None

    start_x = offset[0] + (start[0] + jnp.arange(n)) * h
    log_value, slope = _start(start_x + (x - fixed_x))
    finite = jnp.isfinite(log_value)
    begin = jnp.where(finite, jnp.exp(jnp.where(finite, log_value, 0.0) + rho * start_x), 0.0)
    moves = jnp.diff(start)
    edge_x = offset[:-1] + start[:-1] * h
    xs_in = (eps, t, cells, base_rest, moved_t, moves, edge_x, heights[:-1], used[:-1], kappa, on)
    carry = (jnp.clip(lax.stop_gradient(begin), TINY, cap), begin, slope * jnp.exp(rho * start_x))
    (upper, lower, slope), _ = lax.scan(step, carry, xs_in)

    xs = fixed_x + (start[-1] + jnp.arange(n)) * h
    back = jnp.sum(kappa) - rho * xs
    good = lower > 0
    safe = jnp.where(good, lower, 1.0)
    log_lower = jnp.where(good, jnp.log(safe) + back, -jnp.inf)
    total = jnp.sum(jnp.where(on, fixed_eps, 0.0))
    pad = ULP * (jnp.sum(jnp.where(on, 48.0 + 16 * rho * fixed_eps, 0.0)) + 16 * (1 + rho * (jnp.abs(fixed_x) + total)))
    left = jnp.sum(moved_t) * (1 + 4 * ULP * grid.steps) - xs  # no loss exceeds the sum of the t
    bound = jnp.where(left > 0, jnp.log(-jnp.expm1(-jnp.maximum(left, 1e-300))), -jnp.inf)
    log_upper = jnp.minimum(jnp.log(upper) + back + pad, bound + 16 * ULP)
    return xs, log_upper, log_lower, jnp.where(good, slope / safe, 0.0), n // 2, pad


def _log_enumerated(x, eps, t):
    """(log delta, bound on delta's rounding relative to it) by the sum over all outcomes."""
    on = (eps > 0) & (t > 0) & (t < eps)
    eps, t = jnp.where(on, eps, 1.0), jnp.where(on, t, 0.5)
    up, down = pair(eps, t)
    back = jnp.asarray(list(itertools.product((0.0, 1.0), repeat=eps.shape[0])))
    losses = jnp.sum(jnp.where(on, t - back * eps, 0.0), axis=1)
    nothing = jnp.where(back > 0, -jnp.inf, 0.0)
    masses = jnp.sum(jnp.where(on, jnp.where(back > 0, jnp.log(down), jnp.log(up)), nothing), axis=1)
    gap = losses - x
    used = lax.stop_gradient((gap > 0) & jnp.isfinite(masses))
    masses = jnp.where(used, masses, 0.0)
    terms = jnp.where(used, masses + jnp.log(-jnp.expm1(-jnp.where(used, gap, 1.0))), -jnp.inf)
    peak = lax.stop_gradient(jnp.max(terms))
    peak = jnp.where(jnp.isfinite(peak), peak, 0.0)
    total = jnp.sum(jnp.where(used, jnp.exp(jnp.where(used, terms, 0.0) - peak), 0.0))
    slope = jnp.sum(jnp.where(used, jnp.exp(masses - jnp.where(used, gap, 1.0) - peak), 0.0))
    safe = jnp.where(total > 0, total, 1.0)
    pad = ULP * (
        64
        + 16 * eps.shape[0]
        - 4 * jnp.where(total > 0, peak, 0.0)
        + 4 * (jnp.abs(x) + jnp.sum(jnp.where(on, eps, 0.0))) * slope / safe
    )
    return jnp.where(total > 0, peak + jnp.log(safe), -jnp.inf), lax.stop_gradient(pad)


def enumerates(setting: Walk) -> bool:
    """Whether there are so few pairs that all outcomes are summed."""
    return setting.grid.steps <= EXACT


def log_delta(setting: Walk, x, eps, t):
    """(log upper, log lower, differentiable log value) for one lane; any real x."""
    if enumerates(setting):
        value, pad = _log_enumerated(x, eps, t)
        held = lax.stop_gradient(value)
        return held + jnp.log1p(pad), held + jnp.log1p(-jnp.minimum(pad, 1.0)), value
    _, upper, lower, _, at, pad = bracket(setting.grid, x, eps, t)
    upper, pad = lax.stop_gradient((upper, pad))
    return upper[at], lax.stop_gradient(lower[at]) - pad, lower[at]


def least_epsilon(setting: Walk, log_delta, eps, t):
    """(upper end, lower end) of the x >= 0 at which delta is exp(log_delta)."""
    on = (eps > 0) & (t > 0) & (t < eps)
    total = jnp.sum(jnp.where(on, t, 0.0)) * (1 + 4 * ULP * setting.grid.steps)
    if enumerates(setting):
        return safe_sides(lambda x: _log_enumerated(x, eps, t), log_delta, total)
    safe_eps, safe_t = jnp.where(on, eps, 1.0), jnp.where(on, t, 0.5)

    spends = lambda lam: tuple(jnp.sum(jnp.where(on, f(safe_eps, safe_t, lam), 0.0)) for f in (log_moment, mean_loss))
    lam = markov_tilt(log_delta, spends, jnp.max(jnp.where(on, eps, 0.0)), True)
    spent = spends(lam)[0]
    markov = jnp.clip((spent + log_kernel(lam) - log_delta) / lam * (1 + 1e-9), 0.0, total)

    def around(_, ends):
        xs, upper, lower, slopes, _, pad = bracket(setting.grid, sum(ends) / 2, eps, t)
        low, high = invert(xs, upper, lower - pad, slopes, log_delta, total, pad)
        high = jnp.minimum(high, markov)
        return jnp.clip(low, 0.0, high), high

    # The first bracket is wide, as its windows lie around a guess.
    low, high = lax.fori_loop(0, 2, around, (markov, markov))
    return high, low
