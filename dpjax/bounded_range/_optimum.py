"""Kernels: the adaptive optimum's delta at an epsilon, and epsilon at a delta. One lane is one query."""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from dpjax._two_point import binomial, moments
from dpjax._two_point.window import ULP, Grid, invert
from dpjax.bounded_range import _recursion as recursion
from dpjax.bounded_range._recursion import Steps

FREE = -1.0  # the t of a step whose t the adversary chooses


class Setting(NamedTuple):
    """Static: the sizes, and whether the result is a logarithm."""

    grid: Grid
    log: bool = False


def cells_for(steps: int, rtol: float, equal: bool) -> int:
    """Cells per epsilon for a bracket of relative width about ``rtol``.

    The width was measured as 1.2 log(1/delta) / cells^2 (k = 10 .. 1000); 4.6^2 / rtol is that at delta = 1e-7. More
    than is asked for where it is cheap: up to 5e7 cells in all, a fraction of a second. Different epsilons have fewer cells
    than the largest: twice the width was measured where they spread over a factor of 3.
    """
    spans = min(2.6 * math.sqrt(steps) + 4.0, 2.0 * steps + 2.0)
    cheap = min(256.0, math.sqrt(5e7 / (steps * spans)))
    cells = max((4.6 if equal else 6.5) / math.sqrt(rtol), cheap)
    return 8 * math.ceil(cells / 8)


def layout(grid: Grid, eps, t, count) -> Steps:
    """The steps of one lane: eps and t () and repeated, or (steps,) in the order in which they are run."""
    if grid.equal:
        active = (jnp.arange(grid.steps) < count) & (eps > 0)
        size = jnp.where(active, eps, 0.0)
        return Steps(size, size / 2, jnp.zeros(grid.steps, bool), active)
    eps, t = eps[::-1], t[::-1]
    given = t >= 0
    active = (eps > 0) & (~given | ((t > 0) & (t < eps)))  # t at either end makes the two distributions equal
    given = given & active
    return Steps(jnp.where(active, eps, 0.0), jnp.where(given, t, eps / 2), given, active)


def _padding(x, steps: Steps, rho):
    """Rounding of the whole recursion, on log h: all terms are nonnegative, so relative errors add up.

    Per step: under 40 roundings and elementary functions, and arguments (of exp(rho t), of the grid's points) that are
    off by a few ULP of rho eps.
    """
    total = jnp.sum(steps.eps)
    each = jnp.sum(jnp.where(steps.active, 64.0 + 16.0 * rho * jnp.max(steps.eps), 0.0))
    return ULP * (each + 16 * (1.0 + rho * (jnp.abs(x) + total)))


def _log_path(grid: Grid, x, eps, t, count):
    _, logs, _, at = recursion.log_lower(grid, x, layout(grid, eps, t, count))
    path = logs[at]
    if grid.equal:
        # The non-adaptive optimum is an adversary too; close to k eps the grid's points are too far apart to see it.
        simple, _ = binomial.log_optimum(_pairs(grid), x, eps, count)
        path = jnp.where(jnp.isfinite(path), path, simple)
    return jnp.where(jnp.isfinite(path), path, 0.0)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _partials(grid: Grid, x, eps, t, count):
    return jax.grad(functools.partial(_log_path, grid), argnums=(0, 1, 2))(x, eps, t, count)


@_partials.defjvp
def _partials_jvp(grid, primals, tangents):
    raise NotImplementedError(
        "The adaptive optimum has first derivatives only: they hold the adversary found fixed, which is right to first order."
    )


def _along(partials, tangents):
    by_x, by_eps, by_t = partials
    return by_x * tangents[0] + jnp.sum(by_eps * tangents[1]) + jnp.sum(by_t * tangents[2])


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _moving(grid: Grid, x, eps, t, count):
    """Zero, with the derivative of log h(x) in x, eps and given t."""
    del grid, eps, t, count
    return jnp.zeros_like(x)


@_moving.defjvp
def _moving_jvp(grid, primals, tangents):
    return _moving(grid, *primals), _along(_partials(grid, *primals), tangents)


class _Bracket(NamedTuple):
    """Over the last window; ``at`` is the index of the queried threshold."""

    xs: jax.Array
    upper: jax.Array  # log, certified
    lower: jax.Array  # log, certified
    slopes: jax.Array  # -d log h / dx of the lower end
    at: int
    pad: jax.Array  # rounding of a logarithm


def bracket(grid: Grid, x, steps: Steps) -> _Bracket:
    x, steps = lax.stop_gradient((x, steps))
    xs, upper, at = recursion.log_upper(grid, x, steps)
    _, lower, slopes, _ = recursion.log_lower(grid, x, steps)
    pad = _padding(x, steps, recursion.tilt(x, steps))
    room = _most(steps) - xs
    bound = jnp.where(room > 0, jnp.log(-jnp.expm1(-jnp.maximum(room, 1e-300))), -jnp.inf)
    upper = jnp.minimum(upper + pad, bound)
    return _Bracket(xs, upper, jnp.minimum(lower - pad, upper), slopes, at, pad)


def _most(steps: Steps):
    """No loss exceeds this, the rounding of the sum included."""
    return jnp.sum(jnp.where(steps.given, steps.t, steps.eps)) * (1 + 4 * ULP * steps.eps.shape[0])


def _pairs(grid: Grid) -> binomial.Binomial:
    return binomial.setting_for(grid.steps)


def middle(lower, upper):
    """The logarithm of the mean of two ends, constant under AD."""
    lower, upper = lax.stop_gradient((lower, upper))
    return jnp.where(
        jnp.isfinite(upper),
        upper + jnp.log1p(jnp.exp(jnp.where(jnp.isfinite(upper), lower - upper, 0.0))) - math.log(2.0),
        upper,
    )


def _delta_lane(setting: Setting, x, eps, t, count):
    grid = setting.grid
    size = binomial.magnitude(x, jnp.sum(eps) * grid.steps)
    if not grid.equal:
        # Swapping a pair turns t into eps - t; below zero that is the pair that is asked about.
        t = jnp.where((x < 0) & (t >= 0), eps - t, t)
    found = bracket(grid, size, layout(grid, eps, t, count))
    upper, lower = found.upper[found.at], found.lower[found.at]
    if grid.equal:
        simple, rounding = binomial.log_optimum(_pairs(grid), *lax.stop_gradient((size, eps, count)))
        lower = jnp.maximum(lower, jnp.minimum(simple - rounding, upper))
    return binomial.answer(setting.log, x, lower, middle(lower, upper) + _moving(grid, size, eps, t, count), upper)


def delta_kernel(setting: Setting, x, eps, t, count):
    """(lower, estimate, upper) of delta or log delta.

    x (lanes,); eps (lanes,) or (lanes, steps); t like eps, -1 where the adversary chooses it; count (lanes,).
    """
    return jax.vmap(functools.partial(_delta_lane, setting))(x, eps, t, count)


def epsilon_bracket(setting: Setting, log_delta, eps, t, count):
    """(lower end, upper end) of epsilon."""
    grid = setting.grid
    steps = layout(grid, eps, t, count)
    total = _most(steps)
    lam = moments.markov_tilt(log_delta, lambda lam: recursion.spent(steps, lam), jnp.max(steps.eps), True)
    spent = recursion.spent(steps, lam)[0]
    markov = jnp.clip((spent + moments.log_kernel(lam) - log_delta) / lam * (1 + 1e-9), 0.0, total)

    least = jnp.zeros_like(markov)
    if grid.equal:
        _, least = binomial.optimum_epsilon(_pairs(grid), log_delta, eps, count)

    def around(guess):
        found = bracket(grid, guess, steps)
        low, high = invert(found.xs, found.upper, found.lower, found.slopes, log_delta, total, found.pad)
        high = jnp.minimum(high, markov)
        return jnp.clip(low, jnp.minimum(least, high), high), high

    if grid.equal:
        low, high = around(least)
    else:  # the first bracket is wide, as its windows lie around a guess; the same program finds the second
        low, high = lax.fori_loop(0, 2, lambda _, ends: around(sum(ends) / 2), (markov, markov))
    high = jnp.where(log_delta >= 0, 0.0, jnp.where(jnp.isneginf(log_delta), total, high))
    low = jnp.where(log_delta >= 0, 0.0, jnp.where(jnp.isneginf(log_delta), total / (1 + 16 * ULP * grid.steps), low))
    return low, high


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _moving_epsilon(grid: Grid, at, log_delta, eps, t, count):
    """Zero, with the derivative of the x at which log h(x) is log_delta."""
    del grid, eps, t, count
    return jnp.zeros_like(at + log_delta)


@_moving_epsilon.defjvp
def _moving_epsilon_jvp(grid, primals, tangents):
    at, _, eps, t, count = primals
    partials = _partials(grid, at, eps, t, count)
    falls = (at > 0) & (partials[0] < 0)
    rise = _along(partials, (0.0, *tangents[2:4]))
    tangent = (tangents[1] - rise) / jnp.where(falls, partials[0], -1.0)
    return _moving_epsilon(grid, *primals), jnp.where(falls, tangent, 0.0)


def _epsilon_lane(setting: Setting, log_delta, eps, t, count):
    low, high = epsilon_bracket(setting, *lax.stop_gradient((log_delta, eps, t, count)))
    middle = (low + high) / 2
    return low, middle + _moving_epsilon(setting.grid, middle, log_delta, eps, t, count), high


def epsilon_kernel(static: tuple[bool, Setting], query, eps, t, count):
    """(lower, estimate, upper) of epsilon. static: whether query is log delta, the setting."""
    is_log, setting = static
    log_delta = moments.as_log(is_log, query)
    return jax.vmap(functools.partial(_epsilon_lane, setting))(log_delta, eps, t, count)
