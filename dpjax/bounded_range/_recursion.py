"""The adaptive optimum of bounded-range mechanisms, bracketed on a moving window of thresholds.

With h_s(x) the largest delta(x) that an adversary reaches with s mechanisms left, h_0(x) = (1 - e^x)_+ and

    h_s(x) = sup_{0 <= t <= eps}  q_t h_{s-1}(x - t) + (1 - q_t) h_{s-1}(x + eps - t),   q_t = (1 - e^(t-eps)) / (1 - e^-eps).

Every h_s is a supremum of functions a - b e^x, hence convex in e^x. Two facts follow, and each is one kernel below:

- chords of values at grid points lie above h_{s-1}; with both values on a chord the right-hand side is
  u - v c - w / c in c = e^t on each cell of t, whose supremum has a closed form: an upper bound;
- an adversary who only plays t from a grid, and at a point off the grid accepts the same outcomes as at a
  neighbouring point, is an adversary (a line below h_{s-1}): a lower bound.

A step whose t is given (randomised response, or a pair RR_{eps,t} fixed beforehand) has no supremum: the grid is laid
so that this t is on it.

Stored is G(i) = h_s(x_i) exp(rho x_i - sum of kappa(rho)), with kappa the largest log moment generating function of one
step. By Markov's inequality G <= exp(c(rho)) <= 1 for every s and x, so nothing overflows, and near the path that the
tilted losses take from the queried threshold down to zero G stays of order one, so nothing that matters underflows.
The window follows that path. What lies outside is bounded by Markov's inequality above and by monotonicity below.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from dpjax._two_point.moments import (
    log_kernel,
    log_mgf,
    log_mgf_prime,
    log_moment,
    mean_loss,
    pair,
    saddle,
    worst_t,
)  # fmt: skip
from dpjax._two_point.window import MARGIN, OUTSIDE, TINY, ULP, Grid, window

SLACK = 6 + 2 * MARGIN


class Steps(NamedTuple):
    """Mechanisms in recursion order: the one that is run last comes first. All (steps,)."""

    eps: jax.Array  # 0 for padding
    t: jax.Array  # in (0, eps), meaningless where it is not given
    given: jax.Array  # whether t is, and not chosen by the adversary
    active: jax.Array  # whether this is a mechanism, and not padding


def first_step(x, eps, t, given):
    """h_1(x) in logs and its slope -dh_1/dx, exactly."""
    free = _first_free(x, eps)
    up, down = pair(jnp.where(given, eps, 1.0), jnp.where(given, t, 0.5))
    part = lambda mass, y: (mass * jnp.where(y < 0, -jnp.expm1(y), 0.0), mass * jnp.where(y < 0, jnp.exp(y), 0.0))
    (high, fall), (low, more) = part(up, x - t), part(down, x + eps - t)
    value = high + low
    log_value = jnp.where(value > 0, jnp.log(jnp.where(value > 0, value, 1.0)), -jnp.inf)
    return jax.tree.map(lambda a, b: jnp.where(given, a, b), (log_value, fall + more), free)


def _first_free(x, eps):
    """The same where t is chosen: (x + eps) / 2 is best on [-eps, eps]."""
    safe = jnp.where(eps > 0, eps, 1.0)
    inside = (x < eps) & (x >= -eps) & (eps > 0)
    xi = jnp.where(inside, x, 0.0)
    half = -jnp.expm1((xi - safe) / 2)
    scale = -jnp.expm1(-safe)
    below = (x < -eps) | ((x < 0) & (eps <= 0))
    xb = jnp.where(below, x, -1.0)
    log_value = jnp.where(
        inside, 2 * jnp.log(half) - jnp.log(scale), jnp.where(below, jnp.log(-jnp.expm1(xb)), -jnp.inf)
    )
    slope = jnp.where(inside, jnp.exp((xi - safe) / 2) * half / scale, jnp.where(below, jnp.exp(xb), 0.0))
    return log_value, slope


class Plan(NamedTuple):
    """Where the windows lie and how values are scaled: one lane, constant under AD."""

    h: jax.Array  # grid spacing
    rho: jax.Array  # tilt
    kappa: jax.Array  # (steps,) log_mgf of each step at the tilt, 0 for padding
    cells: jax.Array  # (steps,) whole cells of each epsilon
    rest: jax.Array  # (steps,) what is left of epsilon above them
    shift: jax.Array  # (steps,) in [0, h): the grid moves down by this in each step, so that worst_t is on it
    start: jax.Array  # (steps,) index of the window's first point after each step
    offset: jax.Array  # (steps,) threshold of index 0 after each step
    tilts: jax.Array  # (tilts,) of the bounds outside the windows
    heights: jax.Array  # (steps, tilts): log h_s(x) <= heights - tilts * x after each step
    only: jax.Array  # (steps,) the cell of t that is played where t is given, else -1
    room: jax.Array  # rounding of heights - tilts * x and of a tilted value's exponent


def _tilted(steps: Steps, lam):
    """(log moment, mean loss under the tilted law, t) of each step at tilt lam; zero for padding."""
    free = log_mgf(steps.eps, lam), log_mgf_prime(steps.eps, lam), worst_t(steps.eps, lam)
    fixed = log_moment(steps.eps, steps.t, lam), mean_loss(steps.eps, steps.t, lam), steps.t
    chosen = (jnp.where(steps.given, a, b) for a, b in zip(fixed, free, strict=True))
    return tuple(jnp.where(steps.active, a, 0.0) for a in chosen)


def spent(steps: Steps, lam):
    """log E exp(lam L) of all steps, the largest where t is chosen, and its derivative in lam."""
    moment, mean, _ = _tilted(steps, lam)
    return jnp.sum(moment), jnp.sum(mean)


def tilt(x, steps: Steps):
    """The lam that minimises the bound of Markov's inequality on h(x). Constant under AD."""
    x, steps = lax.stop_gradient((x, steps))
    return saddle(x, lambda lam: spent(steps, lam)[1], jnp.max(steps.eps))


def plan(grid: Grid, x, steps: Steps) -> Plan:
    """The plan for threshold x."""
    x, steps = lax.stop_gradient((x, steps))
    eps, active = steps.eps, steps.active
    largest = jnp.max(eps)
    h = jnp.where(largest > 0, largest, 1.0) / grid.cells
    rho = tilt(x, steps)
    kappa, drift, t = _tilted(steps, rho)
    if grid.equal:
        cells = jnp.where(active, jnp.int32(grid.cells), jnp.int32(0))
        rest = jnp.zeros_like(eps)
    else:
        cells = jnp.clip(jnp.floor(eps / h).astype(jnp.int32), 0, grid.cells)
        rest = jnp.clip(eps - cells * h, 0.0, h)
    level = jnp.floor(t / h)
    shift = jnp.where(active, jnp.clip(t - level * h, 0.0, h), 0.0)
    later = jnp.cumsum(shift[::-1])[::-1] - shift  # moved by the steps that come after in the recursion
    offset = x - later
    centre = x - (jnp.cumsum(drift[::-1])[::-1] - drift)
    n = window(grid)
    start = jnp.floor((centre - offset) / h).astype(jnp.int32) - n // 2
    # The last window is centred on the queried threshold, which is its index 0.
    start = start.at[-1].set(-(n // 2))
    tilts = rho * jnp.asarray(OUTSIDE)
    each = jax.vmap(lambda lam: _tilted(steps, lam)[0], out_axes=1)(tilts)
    heights = jnp.cumsum(each, axis=0) + log_kernel(tilts)
    only = jnp.where(steps.given, level, -1.0).astype(jnp.int32)
    room = 1e-9 + 64 * ULP * OUTSIDE[-1] * rho * (jnp.sum(eps) + jnp.abs(x))
    return Plan(h, rho, kappa, cells, rest, shift, start, offset, tilts, heights, only, room)


def _masked(active, new, old):
    return jax.tree.map(lambda a, b: jnp.where(active, a, b), new, old)


def log_upper(grid: Grid, x, steps: Steps):
    """Certified upper bound on log h at the points of the last window, untilted: (thresholds, values, index of x)."""
    x, steps = lax.stop_gradient((x, steps))
    p = plan(grid, x, steps)
    eps = steps.eps
    n, m = window(grid), grid.cells
    h, rho = p.h, p.rho
    cap = jnp.exp(log_kernel(rho) + p.room)
    grow, width = jnp.exp(rho * h), jnp.expm1(h)
    edge = jnp.exp(h) / width
    j = jnp.arange(-1, m + 1, dtype=jnp.int32)

    def step(value, step_in):
        (e, k, kappa, rest, shift, move, on, only), edge_x, height, used_up = step_in

        def outside(i):
            x_out = edge_x + i * h
            bounds = jnp.min(height - p.tilts * x_out[:, None], axis=-1)
            return jnp.exp(jnp.minimum(bounds, 0.0) + rho * x_out - used_up + p.room)

        after = jnp.arange(1, 2 * m + SLACK)
        above = jnp.minimum(value[-1] * jnp.exp(rho * h * after), outside(n - 1 + after))
        below = outside(jnp.arange(-(m + 1 + MARGIN), 0))
        padded = jnp.maximum(jnp.concatenate([below, value, above]), TINY)
        # Indices -m-1 .. n+m+1 of the old grid, counted from the first point of the new window.
        old = lax.dynamic_slice(padded, (move + MARGIN,), (n + 2 * m + 3,))
        size = n + m + 1  # p = i - j for i in the window, j = -1 .. m: positions 1 .. of old
        right1, left1 = old[1 : size + 1], old[:size]
        drop1 = grow * left1 - right1

        scale = -jnp.expm1(-jnp.where(e > 0, e, 1.0))
        left_t = j * h + shift
        q_left = -jnp.expm1(left_t - e) / scale
        q_fall = jnp.exp(left_t - e) * width / scale
        weight = jnp.exp(rho * left_t - kappa)
        root = jnp.exp((e - left_t) / 2)

        best = jnp.zeros(n)
        pieces = ((0, 0.0, 0.0, h),) if grid.equal else ((0, rest, rest, h), (1, rest - h, 0.0, rest))
        for ahead, bend, from_t, to_t in pieces:
            # The second argument, x + eps - t, lies in the cell that ends at index p + k + ahead.
            fade = jnp.exp(-rho * (k + ahead) * h)
            right2 = fade * lax.dynamic_slice(old, (1 + k + ahead,), (size,))
            drop2 = fade * grow * lax.dynamic_slice(old, (k + ahead,), (size,)) - right2
            bent, bend_by = jnp.exp(bend), jnp.expm1(bend)
            w = edge * (drop1 - jnp.exp(bend - e) * drop2)
            v = (right1 - right2) + edge * (drop1 - drop2)
            concave = (w > 0) & (v > 0)
            ratio = jnp.where(concave, jnp.sqrt(w / jnp.where(concave, v, 1.0)), 0.0)
            low = jnp.clip(jnp.expm1(jnp.maximum(from_t, -left_t)) / width, 0.0, 1.0)
            high = jnp.clip(jnp.expm1(jnp.minimum(to_t, e - left_t)) / width, 0.0, 1.0)
            used = jnp.where((jnp.maximum(from_t, -left_t) <= jnp.minimum(to_t, e - left_t)), weight, 0.0)

            if not grid.equal:  # a given t is the lower end of its cell
                used = jnp.where((only >= 0) & ((j != only) | (ahead == 0)), 0.0, used)
                high = jnp.where(only >= 0, 0.0, high)
            gap, gap_drop = right1 - right2, drop1 - drop2

            def cell(c, best, args=(ratio, right2, drop2, gap, gap_drop, low, high, used, bent, bend_by)):
                ratio, right2, drop2, gap, gap_drop, low, high, used, bent, bend_by = args
                at = lambda z: lax.dynamic_slice(z, (m + 1 - c,), (n,))

                def value_at(c_rel):
                    rise1 = edge * width * c_rel / (1 + c_rel * width)
                    rise2 = edge * (c_rel * width - bend_by) / (1 + c_rel * width)
                    q = q_left[c] - q_fall[c] * c_rel
                    base2 = at(right2) + at(drop2) * rise2
                    if grid.equal:
                        return base2 + q * (at(gap) + at(gap_drop) * rise1)
                    return base2 + q * (at(right1) + at(drop1) * rise1 - base2)

                # The upper end of a cell is the lower end of the next one; t = eps does no better than t = 0.
                inner = jnp.clip((at(ratio) * root[c] - 1) / width, low[c], high[c])
                return jnp.maximum(best, used[c] * jnp.maximum(value_at(inner), value_at(low[c])))

            best = lax.fori_loop(jnp.int32(0), jnp.int32(m + 2), cell, best)
        return _masked(on, jnp.clip(best, TINY, cap), value), None

    start0 = p.offset[0] + (p.start[0] + jnp.arange(n)) * h
    log_value, _ = first_step(start0, *(a[0] for a in steps[:3]))
    value = jnp.clip(jnp.exp(log_value + rho * start0 - p.kappa[0]), TINY, cap)
    per_step = (eps, p.cells, p.kappa, p.rest, p.shift, jnp.diff(p.start, prepend=p.start[:1]), steps.active, p.only)
    edge_x = p.offset + p.start * h
    old = (edge_x[:-1], p.heights[:-1], jnp.cumsum(p.kappa)[:-1])
    value, _ = lax.scan(step, value, (jax.tree.map(lambda z: z[1:], per_step), *old))
    return _untilt(grid, p, value)


def _untilt(grid, p, value):
    n = window(grid)
    xs = p.offset[-1] + (p.start[-1] + jnp.arange(n)) * p.h
    positive = value > 0
    logs = jnp.where(positive, jnp.log(jnp.where(positive, value, 1.0)), -jnp.inf)
    return xs, logs - p.rho * xs + jnp.sum(p.kappa), n // 2


def log_lower(grid: Grid, x, steps: Steps):
    """Certified lower bound on log h at the points of the last window: (thresholds, log values, slopes, index of x).

    Slopes are -dh/dx / h. Differentiable in x, eps and given t by the envelope theorem: the adversary found is held.
    """
    p = plan(grid, x, steps)
    eps = steps.eps
    slip = jnp.where(steps.given, steps.t, 0.0)
    slip = slip - lax.stop_gradient(slip)  # zero, with the derivative of a given t
    n, m = window(grid), grid.cells
    h, rho = p.h, p.rho
    rest = p.rest + (eps - lax.stop_gradient(eps)) - slip
    j = jnp.arange(m + 1, dtype=jnp.int32)
    below = jnp.exp(-rho * h * jnp.arange(m + MARGIN, 0, -1))

    def step(carry, step_in):
        value, slope = carry  # both tilted; slope = -dh/dx
        e, k, kappa, rest, shift, move, on, only, slip = step_in

        def moved(z, fill):
            padded = jnp.concatenate([fill, z, jnp.zeros(2 * m + SLACK)])
            return lax.dynamic_slice(padded, (move + MARGIN,), (n + 2 * m + 2,))

        # Indices -m .. n+m+1 of the old grid, counted from the first point of the new window.
        old, old_slope = moved(value, value[0] * below), moved(slope, jnp.zeros(m + MARGIN))
        size = n + m
        scale = -jnp.expm1(-jnp.where(e > 0, e, 1.0))
        t = j * h + shift
        q = -jnp.expm1(t + slip - e) / scale
        played = jnp.where(only >= 0, j == only, t <= lax.stop_gradient(e))
        weight = jnp.where(played, jnp.exp(rho * t - kappa), 0.0)
        fade = jnp.exp(-rho * k * h)

        def accepted(ahead):
            """The line through the point k + ahead cells up, at x + eps - t."""
            bend = rest - ahead * h
            g, b = (lax.dynamic_slice(z, (k + ahead,), (size,)) for z in (old, old_slope))
            scaled = fade * jnp.exp(-rho * h * ahead)
            return scaled * (g - b * jnp.expm1(bend)), scaled * b * jnp.exp(bend)

        bent = jnp.expm1(-slip)
        first = old[:size] - old_slope[:size] * bent, old_slope[:size] * (1 + bent)
        if grid.equal:
            second = accepted(0)
        else:
            near, far = accepted(0), accepted(1)
            nearer = lax.stop_gradient(near[0] >= far[0])
            second = tuple(jnp.where(nearer, a, b) for a, b in zip(near, far, strict=True))
            some = lax.stop_gradient(second[0] > 0)
            second = tuple(jnp.where(some, a, 0.0) for a in second)

        fixed = lax.stop_gradient((first[0], second[0], weight * q, weight * (1 - q)))

        def play(c, best):
            value, which = best
            one, two = (lax.dynamic_slice(z, (m - c,), (n,)) for z in fixed[:2])
            new = fixed[2][c] * one + fixed[3][c] * two
            return jnp.maximum(new, value), jnp.where(new > value, c, which)

        nothing = jnp.zeros(n), jnp.full(n, jnp.maximum(only, 0), dtype=jnp.int32)
        _, which = lax.fori_loop(jnp.int32(0), jnp.int32(m + 1), play, nothing)
        at = jnp.arange(n, dtype=jnp.int32) + m - which
        to, back = (weight * q)[which], (weight * (1 - q))[which]
        mixed = tuple(to * a[at] + back * b[at] for a, b in zip(first, second, strict=True))
        return _masked(on, mixed, carry), None

    start0 = p.offset[0] + (p.start[0] + jnp.arange(n)) * h
    log_value, slope = first_step(start0 + (x - lax.stop_gradient(x)), *(a[0] for a in steps[:3]))
    tilt = rho * start0 - p.kappa[0]
    finite = jnp.isfinite(log_value)
    value = jnp.where(finite, jnp.exp(jnp.where(finite, log_value, 0.0) + tilt), 0.0)
    moves = jnp.diff(p.start, prepend=p.start[:1])
    per_step = (eps, p.cells, p.kappa, rest, p.shift, moves, steps.active, p.only, slip)
    (value, slope), _ = lax.scan(step, (value, slope * jnp.exp(tilt)), jax.tree.map(lambda z: z[1:], per_step))
    xs, logs, centre = _untilt(grid, p, value)
    return xs, logs, jnp.where(value > 0, slope / jnp.where(value > 0, value, 1.0), 0.0), centre
