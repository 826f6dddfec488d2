"""The adaptive optimum of bounded-range mechanisms, bracketed on a moving window of thresholds.

With h_s(x) the largest delta(x) that an adversary reaches with s mechanisms left, h_0(x) = (1 - e^x)_+ and

    h_s(x) = sup_{0 <= t <= eps}  q_t h_{s-1}(x - t) + (1 - q_t) h_{s-1}(x + eps - t),   q_t = (1 - e^(t-eps)) / (1 - e^-eps).

Every h_s is a supremum of functions a - b e^x, hence convex in e^x. Two facts follow, and each is one kernel below:

- chords of values at grid points lie above h_{s-1}; with both values on a chord the right-hand side is
  u - v c - w / c in c = e^t on each cell of t, whose supremum has a closed form: an upper bound;
- an adversary who only plays t from a grid, and at a point off the grid accepts the same outcomes as at a
  neighbouring point, is an adversary (a line below h_{s-1}): a lower bound.

Stored is G(i) = h_s(x_i) exp(rho x_i - sum of kappa(rho)), with kappa the largest log moment generating function of one
step. By Markov's inequality G <= exp(c(rho)) <= 1 for every s and x, so nothing overflows, and near the path that the
tilted losses take from the queried threshold down to zero G stays of order one, so nothing that matters underflows.
The window follows that path. What lies outside is bounded by Markov's inequality above and by monotonicity below.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

UNROLL = 8
ULP = 2.0**-53
TINY = 1e-290  # XLA flushes subnormals to zero; a floor keeps an upper bound an upper bound
MARGIN = 2  # a window moves by -MARGIN .. cells + MARGIN points in one step
SLACK = 6 + 2 * MARGIN
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


def log_sinhc(y):
    """log(sinh(y/2) / (y/2)) for y >= 0, with relative accuracy."""
    small = y < 0.5
    ys = jnp.where(small, y, 0.0)
    z = ys * ys
    series = z * (
        1 / 24
        + z * (-1 / 2880 + z * (1 / 181440 + z * (-1 / 9676800 + z * (1 / 479001600 - z * 691 / 15692092416000))))
    )
    yl = jnp.where(small, 1.0, y)
    return jnp.where(small, series, yl / 2 + jnp.log1p(-jnp.exp(-yl)) - jnp.log(yl))


def log_sinhc_prime(y):
    """The derivative of log_sinhc: coth(y/2)/2 - 1/y."""
    small = y < 0.5
    ys = jnp.where(small, y, 0.0)
    z = ys * ys
    series = ys * (
        1 / 12 + z * (-1 / 720 + z * (1 / 30240 + z * (-1 / 1209600 + z * (1 / 47900160 - z * 691 / 1307674368000))))
    )
    yl = jnp.where(small, 1.0, y)
    return jnp.where(small, series, 0.5 / jnp.tanh(yl / 2) - 1 / yl)


def log_mgf(eps, lam):
    """sup_t log E exp(lam L) for one eps-bounded-range mechanism, lam > 0.

    The supremum is attained at t = eps/2 + s((lam+1) eps) - s(lam eps), s = log_sinhc, and equals
    (lam+1) s((lam+1) eps) - lam s(lam eps) - s(eps): the closed form of the paper's Theorem 5 without its
    exponentials, which overflow, and without their cancellation for small eps.
    """
    return (lam + 1) * log_sinhc((lam + 1) * eps) - lam * log_sinhc(lam * eps) - log_sinhc(eps)


def log_mgf_prime(eps, lam):
    """The derivative of log_mgf in lam: the mean loss under the tilted law."""
    a, b = (lam + 1) * eps, lam * eps
    return log_sinhc(a) + a * log_sinhc_prime(a) - log_sinhc(b) - b * log_sinhc_prime(b)


def worst_t(eps, lam):
    """The t at which log_mgf is attained."""
    return eps / 2 + log_sinhc((lam + 1) * eps) - log_sinhc(lam * eps)


def log_kernel(lam):
    """log sup_y (1 - e^-y)_+ e^(-lam y) = lam log lam - (1 + lam) log(1 + lam)."""
    return -lam * jnp.log1p(1 / lam) - jnp.log1p(lam)


def saddle(x, eps, weights, sweeps: int = 60):
    """The lam minimising sum w log_mgf(eps, lam) - lam x + log_kernel(lam), by bisection on log lam. Constant under AD."""
    x, eps, weights = lax.stop_gradient((x, eps, weights))
    largest = jnp.max(jnp.where(weights > 0, eps, 0.0), axis=-1)
    largest = jnp.where(largest > 0, largest, 1.0)
    low = jnp.full_like(x, math.log(1e-4))
    high = jnp.log(300.0 / largest)
    low = jnp.minimum(low, high - 1.0)

    def halve(_, ends):
        low, high = ends
        mid = (low + high) / 2
        lam = jnp.exp(mid)
        slope = jnp.sum(weights * log_mgf_prime(eps, lam[..., None]), axis=-1) - x - jnp.log1p(1 / lam)
        return jnp.where(slope < 0, mid, low), jnp.where(slope < 0, high, mid)

    low, high = lax.fori_loop(0, sweeps, halve, (low, high))
    return jnp.exp((low + high) / 2)


def first_step(x, eps):
    """h_1(x) in logs and its slope -dh_1/dx, exactly; t = (x + eps) / 2 is optimal on [-eps, eps]."""
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


def plan(grid: Grid, x, eps, active) -> Plan:
    """eps and active have shape (steps,), in recursion order: the mechanism that is run last comes first."""
    x, eps = lax.stop_gradient((x, eps))
    eps = jnp.where(active, eps, 0.0)
    h = jnp.max(eps) / grid.cells
    h = jnp.where(h > 0, h, 1.0)
    rho = saddle(x, eps, active.astype(eps.dtype))
    kappa = jnp.where(active, log_mgf(eps, rho), 0.0)
    drift = jnp.where(active, log_mgf_prime(eps, rho), 0.0)
    if grid.equal:
        cells = jnp.where(active, grid.cells, 0)
        rest = jnp.zeros_like(eps)
    else:
        cells = jnp.clip(jnp.floor(eps / h).astype(int), 0, grid.cells)
        rest = jnp.clip(eps - cells * h, 0.0, h)
    t = worst_t(eps, rho)
    shift = jnp.where(active, jnp.clip(t - jnp.floor(t / h) * h, 0.0, h), 0.0)
    later = jnp.cumsum(shift[::-1])[::-1] - shift  # moved by the steps that come after in the recursion
    offset = x - later
    centre = x - (jnp.cumsum(drift[::-1])[::-1] - drift)
    n = window(grid)
    start = jnp.floor((centre - offset) / h).astype(int) - n // 2
    # The last window is centred on the queried threshold, which is its index 0.
    start = start.at[-1].set(-(n // 2))
    tilts = rho * jnp.asarray(OUTSIDE)
    spent = jnp.where(active[:, None], log_mgf(eps[:, None], tilts), 0.0)
    heights = jnp.cumsum(spent, axis=0) + log_kernel(tilts)
    return Plan(h, rho, kappa, cells, rest, shift, start, offset, tilts, heights)


def _masked(active, new, old):
    return jax.tree.map(lambda a, b: jnp.where(active, a, b), new, old)


def log_upper(grid: Grid, x, eps, active):
    """Certified upper bound on log h at the points of the last window, untilted: (thresholds, values, index of x)."""
    p = plan(grid, x, eps, active)
    eps = lax.stop_gradient(jnp.where(active, eps, 0.0))
    n, m = window(grid), grid.cells
    h, rho = p.h, p.rho
    cap = jnp.exp(log_kernel(rho) + 1e-9)
    grow, width = jnp.exp(rho * h), jnp.expm1(h)
    edge = jnp.exp(h) / width
    blocks = -(-(m + 2) // UNROLL)
    j = jnp.arange(-1, blocks * UNROLL - 1)

    def step(value, step_in):
        (e, k, kappa, rest, shift, move, on), edge_x, height, spent = step_in

        def outside(i):
            x_out = edge_x + i * h
            bounds = jnp.min(height - p.tilts * x_out[:, None], axis=-1)
            return jnp.exp(jnp.minimum(bounds, 0.0) + rho * x_out - spent + 1e-9)

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

            def block(
                b, best, args=(ratio, right2, drop2, right1 - right2, drop1 - drop2, low, high, used, bent, bend_by)
            ):
                ratio, right2, drop2, gap, gap_drop, low, high, used, bent, bend_by = args
                for r in range(UNROLL):
                    c = b * UNROLL + r

                    def at(z, c=c):
                        return lax.dynamic_slice(z, (m + 1 - c,), (n,))

                    def value_at(c_rel, c=c, at=at):
                        rise1 = edge * width * c_rel / (1 + c_rel * width)
                        rise2 = edge * (c_rel * width - bend_by) / (1 + c_rel * width)
                        q = q_left[c] - q_fall[c] * c_rel
                        base2 = at(right2) + at(drop2) * rise2
                        if grid.equal:
                            return base2 + q * (at(gap) + at(gap_drop) * rise1)
                        return base2 + q * (at(right1) + at(drop1) * rise1 - base2)

                    # The upper end of a cell is the lower end of the next one; t = eps does no better than t = 0.
                    inner = jnp.clip((at(ratio) * root[c] - 1) / width, low[c], high[c])
                    top = jnp.maximum(value_at(inner), value_at(low[c]))
                    best = jnp.maximum(best, used[c] * top)
                return best

            best = lax.fori_loop(0, blocks, block, best)
        return _masked(on, jnp.clip(best, TINY, cap), value), None

    start0 = p.offset[0] + (p.start[0] + jnp.arange(n)) * h
    log_value, _ = first_step(start0, eps[0])
    value = jnp.clip(jnp.exp(log_value + rho * start0 - p.kappa[0]), TINY, cap)
    per_step = (eps, p.cells, p.kappa, p.rest, p.shift, jnp.diff(p.start, prepend=p.start[:1]), active)
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


def log_lower(grid: Grid, x, eps, active):
    """Certified lower bound on log h at the points of the last window: (thresholds, log values, slopes, index of x).

    Slopes are -dh/dx / h. Differentiable in x and eps by the envelope theorem: the adversary found is held fixed.
    """
    p = plan(grid, x, eps, active)
    eps = jnp.where(active, eps, 0.0)
    n, m = window(grid), grid.cells
    h, rho = p.h, p.rho
    rest = p.rest + (eps - lax.stop_gradient(eps))
    blocks = -(-(m + 1) // UNROLL)
    j = jnp.arange(blocks * UNROLL)
    below = jnp.exp(-rho * h * jnp.arange(m + MARGIN, 0, -1))

    def step(carry, step_in):
        value, slope = carry  # both tilted; slope = -dh/dx
        e, k, kappa, rest, shift, move, on = step_in

        def moved(z, fill):
            padded = jnp.concatenate([fill, z, jnp.zeros(2 * m + SLACK)])
            return lax.dynamic_slice(padded, (move + MARGIN,), (n + 2 * m + 2,))

        # Indices -m .. n+m+1 of the old grid, counted from the first point of the new window.
        old, old_slope = moved(value, value[0] * below), moved(slope, jnp.zeros(m + MARGIN))
        size = n + m
        scale = -jnp.expm1(-jnp.where(e > 0, e, 1.0))
        t = j * h + shift
        q = -jnp.expm1(t - e) / scale
        weight = jnp.where(t <= lax.stop_gradient(e), jnp.exp(rho * t - kappa), 0.0)
        fade = jnp.exp(-rho * k * h)

        def accepted(ahead):
            """The line through the point k + ahead cells up, at x + eps - t."""
            bend = rest - ahead * h
            g, b = (lax.dynamic_slice(z, (k + ahead,), (size,)) for z in (old, old_slope))
            scaled = fade * jnp.exp(-rho * h * ahead)
            return scaled * (g - b * jnp.expm1(bend)), scaled * b * jnp.exp(bend)

        first = old[:size], old_slope[:size]
        if grid.equal:
            second = accepted(0)
        else:
            near, far = accepted(0), accepted(1)
            nearer = lax.stop_gradient(near[0] >= far[0])
            second = tuple(jnp.where(nearer, a, b) for a, b in zip(near, far, strict=True))
            some = lax.stop_gradient(second[0] > 0)
            second = tuple(jnp.where(some, a, 0.0) for a in second)

        fixed = lax.stop_gradient((first[0], second[0], weight * q, weight * (1 - q)))

        def block(b, best):
            value, which = best
            for r in range(UNROLL):
                c = b * UNROLL + r
                one, two = (lax.dynamic_slice(z, (m - c,), (n,)) for z in fixed[:2])
                new = fixed[2][c] * one + fixed[3][c] * two
                which = jnp.where(new > value, c, which)
                value = jnp.maximum(new, value)
            return value, which

        _, which = lax.fori_loop(0, blocks, block, (jnp.zeros(n), jnp.zeros(n, dtype=jnp.int32)))
        at = jnp.arange(n) + m - which
        to, back = (weight * q)[which], (weight * (1 - q))[which]
        mixed = tuple(to * a[at] + back * b[at] for a, b in zip(first, second, strict=True))
        return _masked(on, mixed, carry), None

    start0 = p.offset[0] + (p.start[0] + jnp.arange(n)) * h
    log_value, slope = first_step(start0 + (x - lax.stop_gradient(x)), eps[0])
    tilt = rho * start0 - p.kappa[0]
    finite = jnp.isfinite(log_value)
    value = jnp.where(finite, jnp.exp(jnp.where(finite, log_value, 0.0) + tilt), 0.0)
    per_step = (eps, p.cells, p.kappa, rest, p.shift, jnp.diff(p.start, prepend=p.start[:1]), active)
    (value, slope), _ = lax.scan(step, (value, slope * jnp.exp(tilt)), jax.tree.map(lambda z: z[1:], per_step))
    xs, logs, centre = _untilt(grid, p, value)
    return xs, logs, jnp.where(value > 0, slope / jnp.where(value > 0, value, 1.0), 0.0), centre


def invert(xs, upper, lower, slopes, log_delta, total):
    """The least threshold that the chords certify, and the largest one that the lines exclude."""
    met = upper <= log_delta
    i = jnp.argmax(met)
    before = jnp.maximum(i - 1, 0)
    # On the chord in e^x between the two points, in units of delta.
    over, under = jnp.exp(upper[before] - log_delta), jnp.exp(upper[i] - log_delta)
    part = jnp.where(over > under, (over - 1) / jnp.where(over > under, over - under, 1.0), 1.0)
    chord = xs[before] + jnp.log1p(jnp.clip(part, 0.0, 1.0) * jnp.expm1(xs[i] - xs[before]))
    high = jnp.where(i > 0, jnp.minimum(chord * (1 + 8 * ULP) + 8 * ULP, xs[i]), xs[0])
    high = jnp.clip(jnp.where(jnp.any(met), high, total), 0.0, total)

    exceeds = lower > log_delta
    last = xs.shape[0] - 1 - jnp.argmax(exceeds[::-1])
    gain = -jnp.expm1(log_delta - lower[last]) / jnp.maximum(slopes[last], 1e-300)
    line = xs[last] + jnp.log1p(jnp.maximum(gain, 0.0))
    low = jnp.where(jnp.any(exceeds), line * (1 - 8 * ULP) - 8 * ULP, 0.0)
    return low, jnp.maximum(high, low)
