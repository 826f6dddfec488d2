"""Kernels: the adaptive optimum's delta at an epsilon, and epsilon at a delta. One lane is one query."""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from dpjax import _range_fixed as fixed
from dpjax import _range_recursion as recursion
from dpjax import _range_walk as walk
from dpjax._range_recursion import Grid

ULP = 2.0**-53


class Setting(NamedTuple):
    """Static: the sizes, and whether the result is a logarithm."""

    grid: Grid
    log: bool = False


def cells_for(steps: int, rtol: float) -> int:
    """Cells per epsilon for a bracket of relative width about ``rtol``.

    The width was measured as 1.2 log(1/delta) / cells^2 (k = 10 .. 1000); 4.6^2 / rtol is that at delta = 1e-7. More
    than is asked for where it is cheap: up to 5e7 cells in all, a fraction of a second.
    """
    spans = min(2.6 * math.sqrt(steps) + 4.0, 2.0 * steps + 2.0)
    cheap = min(256.0, math.sqrt(5e7 / (steps * spans)))
    cells = max(4.6 / math.sqrt(rtol), cheap)
    return 8 * math.ceil(cells / 8)


def _layout(grid: Grid, eps, count):
    """(steps,) epsilons in recursion order, and which of them are mechanisms rather than padding."""
    if grid.equal:
        return jnp.full(grid.steps, 1.0) * eps, jnp.arange(grid.steps) < count
    return eps[::-1], eps[::-1] > 0


def _padding(x, eps, active, rho_span):
    """Rounding of the whole recursion, on log h: all terms are nonnegative, so relative errors add up.

    Per step: under 40 roundings and elementary functions, and arguments (of exp(rho t), of the grid's points) that are
    off by a few ULP of rho eps.
    """
    total = jnp.sum(jnp.where(active, eps, 0.0))
    total, largest = jnp.where(total > 0, total, 1.0), jnp.where(total > 0, jnp.max(eps), 1.0)
    return ULP * jnp.sum(jnp.where(active, 64.0 + 16.0 * rho_span, 0.0)) + 16 * ULP * (
        1.0 + rho_span * (jnp.abs(x) + total) / largest
    )


def _log_path(grid: Grid, x, eps, count):
    eps, active = _layout(grid, eps, count)
    _, logs, _, at = recursion.log_lower(grid, x, eps, active)
    path = logs[at]
    if grid.equal:
        # The non-adaptive optimum is an adversary too; close to k eps the grid's points are too far apart to see it.
        simple, _ = fixed.log_optimum(_pairs(grid), x, eps[0], count, jnp.zeros_like(count))
        path = jnp.where(jnp.isfinite(path), path, simple)
    return jnp.where(jnp.isfinite(path), path, 0.0)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _partials(grid: Grid, x, eps, count):
    return jax.grad(functools.partial(_log_path, grid), argnums=(0, 1))(x, eps, count)


@_partials.defjvp
def _partials_jvp(grid, primals, tangents):
    raise NotImplementedError(
        "The adaptive optimum has first derivatives only: they hold the adversary found fixed, which is right to first order."
    )


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _moving(grid: Grid, x, eps, count):
    """Zero, with the derivative of log h(x) in x and eps."""
    del grid, eps, count
    return jnp.zeros_like(x)


@_moving.defjvp
def _moving_jvp(grid, primals, tangents):
    by_x, by_eps = _partials(grid, *primals)
    return _moving(grid, *primals), by_x * tangents[0] + jnp.sum(by_eps * tangents[1])


class _Bracket(NamedTuple):
    """Over the last window; ``at`` is the index of the queried threshold."""

    xs: jax.Array
    upper: jax.Array  # log, certified
    lower: jax.Array  # log, certified
    slopes: jax.Array  # -d log h / dx of the lower end
    at: int


def _bracket(grid: Grid, x, eps, count) -> _Bracket:
    x, eps, count = lax.stop_gradient((x, eps, count))
    eps, active = _layout(grid, eps, count)
    eps = jnp.where(active, eps, 0.0)
    xs, upper, at = recursion.log_upper(grid, x, eps, active)
    _, lower, slopes, _ = recursion.log_lower(grid, x, eps, active)
    rho = recursion.saddle(x, eps, active.astype(eps.dtype))
    pad = _padding(x, eps, active, rho * jnp.max(eps))
    # No loss exceeds the sum of the epsilons, up to its rounding.
    room = jnp.sum(eps) * (1 + 4 * ULP * grid.steps) - xs
    bound = jnp.where(room > 0, jnp.log(-jnp.expm1(-jnp.maximum(room, 1e-300))), -jnp.inf)
    upper = jnp.minimum(upper + pad, bound)
    return _Bracket(xs, upper, jnp.minimum(lower - pad, upper), slopes, at)


def _pairs(grid: Grid) -> fixed.Binomial:
    return fixed.Binomial(grid.steps, fixed.terms_for(grid.steps), grid.steps)


def _middle(lower, upper):
    """The logarithm of the mean of two ends, constant under AD."""
    lower, upper = lax.stop_gradient((lower, upper))
    return jnp.where(
        jnp.isfinite(upper),
        upper + jnp.log1p(jnp.exp(jnp.where(jnp.isfinite(upper), lower - upper, 0.0))) - math.log(2.0),
        upper,
    )


def _delta_lane(setting: Setting, x, eps, count):
    grid = setting.grid
    size = jnp.where(x < 0, -x, x)
    found = _bracket(grid, size, eps, count)
    upper, lower = found.upper[found.at], found.lower[found.at]
    if grid.equal:
        simple, rounding = fixed.log_optimum(
            _pairs(grid), *lax.stop_gradient((size, eps, count)), jnp.zeros_like(count)
        )
        lower = jnp.maximum(lower, jnp.minimum(simple - rounding, upper))
    return fixed.answer(setting.log, x, lower, _middle(lower, upper) + _moving(grid, size, eps, count), upper)


def delta_kernel(setting: Setting, x, eps, count):
    """(lower, estimate, upper) of delta or log delta. x (lanes,), eps (lanes,) or (lanes, steps), count (lanes,)."""
    return jax.vmap(functools.partial(_delta_lane, setting))(x, eps, count)


def markov_epsilon(log_delta, eps, weights, sharp: bool, sweeps: int = 60):
    """inf over lam of (sum w log_mgf(eps, lam) + c(lam) - log_delta) / lam, and the lam; c = 0 unless sharp."""

    def slope_sign(lam):
        rise = jnp.sum(weights * (lam * recursion.log_mgf_prime(eps, lam) - recursion.log_mgf(eps, lam)))
        extra = jnp.log1p(lam) if sharp else 0.0  # lam c' - c = log(1 + lam)
        return rise + extra + log_delta

    largest = jnp.max(jnp.where(weights > 0, eps, 0.0))
    low = jnp.asarray(math.log(1e-8))
    high = jnp.log(1e4 / jnp.where(largest > 0, largest, 1.0))

    def halve(_, ends):
        low, high = ends
        mid = (low + high) / 2
        falling = slope_sign(jnp.exp(mid)) < 0
        return jnp.where(falling, mid, low), jnp.where(falling, high, mid)

    low, high = lax.fori_loop(0, sweeps, halve, (low, high))
    return jnp.exp((low + high) / 2)


def _epsilon_bracket(setting: Setting, log_delta, eps, count):
    grid = setting.grid
    list_eps, active = _layout(grid, eps, count)
    list_eps = jnp.where(active, list_eps, 0.0)
    total = jnp.sum(list_eps) * (1 + 4 * ULP * grid.steps)
    weights = active.astype(list_eps.dtype)
    lam = markov_epsilon(log_delta, list_eps, weights, True)
    spent = jnp.sum(weights * recursion.log_mgf(list_eps, lam))
    markov = jnp.clip((spent + recursion.log_kernel(lam) - log_delta) / lam * (1 + 1e-9), 0.0, total)

    coarse = grid._replace(cells=max(16, 8 * (grid.cells // 32)))
    guess, least = markov, jnp.zeros_like(markov)
    if grid.equal:
        _, least = fixed.optimum_epsilon(_pairs(grid), log_delta, eps, count, jnp.zeros_like(count))
        guess = least
    for g in (grid,) if grid.equal else (coarse, grid):
        found = _bracket(g, guess, eps, count)
        low, high = recursion.invert(found.xs, found.upper, found.lower, found.slopes, log_delta, total)
        high = jnp.minimum(high, markov)
        low = jnp.clip(low, jnp.minimum(least, high), high)
        guess = (low + high) / 2
    high = jnp.where(log_delta >= 0, 0.0, jnp.where(jnp.isneginf(log_delta), total, high))
    low = jnp.where(log_delta >= 0, 0.0, jnp.where(jnp.isneginf(log_delta), total, low))
    return low, high


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _moving_epsilon(grid: Grid, at, log_delta, eps, count):
    """Zero, with the derivative of the x at which log h(x) is log_delta."""
    del grid, eps, count
    return jnp.zeros_like(at + log_delta)


@_moving_epsilon.defjvp
def _moving_epsilon_jvp(grid, primals, tangents):
    at, _, eps, count = primals
    by_x, by_eps = _partials(grid, at, eps, count)
    falls = (at > 0) & (by_x < 0)
    tangent = (tangents[1] - jnp.sum(by_eps * tangents[2])) / jnp.where(falls, by_x, -1.0)
    return _moving_epsilon(grid, *primals), jnp.where(falls, tangent, 0.0)


def _epsilon_lane(setting: Setting, log_delta, eps, count):
    low, high = _epsilon_bracket(setting, *lax.stop_gradient((log_delta, eps, count)))
    return low, (low + high) / 2 + _moving_epsilon(setting.grid, (low + high) / 2, log_delta, eps, count), high


def epsilon_kernel(setting: Setting, log_delta, eps, count):
    """(lower, estimate, upper) of epsilon."""
    return jax.vmap(functools.partial(_epsilon_lane, setting))(log_delta, eps, count)


def _best_fixed(setting: walk.Walk, x, eps):
    """Different pairs with t as good as could be found for threshold x: a family in the tilt, then coordinates."""
    x, eps = lax.stop_gradient((x, eps))
    on = eps > 0
    lam = recursion.saddle(x, eps, on.astype(eps.dtype))

    def family(factor):
        return jnp.where(on, jnp.clip(recursion.worst_t(eps, lam * factor), 0.0, eps), 0.0)

    candidates = jax.vmap(family)(jnp.asarray((0.5, 0.7, 0.85, 1.0, 1.2, 1.5, 2.0)))
    values = lax.map(lambda t: walk.log_delta(setting, x, eps, t)[2], candidates)
    best = candidates[jnp.argmax(values)]
    if not walk.enumerates(setting):
        return best

    # A few pairs: each coordinate in turn over all of its range, then ever closer; from several starts, since the
    # supremum is over a function with many summits.
    fractions = jnp.linspace(-1.0, 1.0, 41)

    def coordinate(n, t):
        i = n % eps.shape[0]
        reach = 2.0 ** -jnp.floor(n / eps.shape[0])
        trial = jnp.clip(t[i] + fractions * reach * eps[i], 0.0, eps[i])
        ts = jax.vmap(lambda v: t.at[i].set(v))(trial)
        values = jax.vmap(lambda t: walk.log_delta(setting, x, eps, t)[2])(jnp.concatenate([t[None], ts]))
        return jnp.concatenate([t[None], ts])[jnp.argmax(values)]

    level = jnp.asarray((0.35, 0.5, 0.65, 0.8))[:, None] * eps
    starts = jnp.concatenate([best[None], level])
    ends = lax.map(lambda t: lax.fori_loop(0, 14 * eps.shape[0], coordinate, t), starts)
    values = lax.map(lambda t: walk.log_delta(setting, x, eps, t)[2], ends)
    return ends[jnp.argmax(values)]


class Fixed(NamedTuple):
    """Static: different mechanisms fixed beforehand. Their walk, and the recursion that bounds them from above."""

    walk: walk.Walk
    adaptive: Setting


def _fixed_delta_lane(setting: Fixed, x, eps, count):
    size = jnp.where(x < 0, -x, x)
    held_x, held_eps = lax.stop_gradient((size, eps))
    found = _bracket(setting.adaptive.grid, size, eps, count)
    upper = found.upper[found.at]
    t = _best_fixed(setting.walk, held_x, held_eps[::-1])
    _, lower, _ = walk.log_delta(setting.walk, held_x, held_eps[::-1], t)
    lower = jnp.minimum(lower, upper)
    _, _, path = walk.log_delta(setting.walk, size, eps[::-1], t)
    path = jnp.where(jnp.isfinite(path), path, 0.0)
    return fixed.answer(setting.adaptive.log, x, lower, _middle(lower, upper) + path - lax.stop_gradient(path), upper)


def fixed_delta_kernel(setting: Fixed, x, eps, count):
    """Different mechanisms fixed beforehand: (best t found, half-way, adaptive upper end)."""
    return jax.vmap(functools.partial(_fixed_delta_lane, setting))(x, eps, count)


def _log_walk(setting: walk.Walk, x, eps, t):
    return walk.log_delta(setting, x, eps[::-1], t)[2]


def _fixed_epsilon_lane(setting: Fixed, log_delta, eps, count):
    held_log, held_eps = lax.stop_gradient((log_delta, eps))
    _, high = _epsilon_bracket(setting.adaptive, held_log, held_eps, count)
    t = _best_fixed(setting.walk, high, held_eps[::-1])
    _, low = walk.least_epsilon(setting.walk, held_log, held_eps[::-1], t)
    low = jnp.where(jnp.isneginf(held_log) | (held_log >= 0), high, jnp.clip(low, 0.0, high))
    middle = (low + high) / 2
    at = jnp.where(high > 0, low, 0.0)
    moving = fixed.moving_root(functools.partial(_log_walk, setting.walk), at, log_delta, (eps, t))
    return low, middle + moving, high


def fixed_epsilon_kernel(setting: Fixed, log_delta, eps, count):
    """Different mechanisms fixed beforehand: (from the best t found, half-way, adaptive upper end)."""
    return jax.vmap(functools.partial(_fixed_epsilon_lane, setting))(log_delta, eps, count)


def _walk_lane(setting: walk.Walk, x, eps, t):
    upper, lower, value = walk.log_delta(setting, x, eps[::-1], t[::-1])
    value = jnp.where(jnp.isfinite(value), value, 0.0)
    moving = value - lax.stop_gradient(value)
    return (
        jnp.exp(lower) * (1 - 8 * ULP),
        jnp.exp(_middle(lower, upper) + moving),
        jnp.minimum(jnp.exp(upper) * (1 + 8 * ULP), 1.0),
    )


def walk_kernel(setting: walk.Walk, x, eps, t):
    """Different pairs with given t: (lower, estimate, upper) of delta."""
    return jax.vmap(functools.partial(_walk_lane, setting))(x, eps, t)
