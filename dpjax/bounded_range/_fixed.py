"""Kernels: different mechanisms fixed beforehand. The best t found bounds the optimum from below, the adaptive one from above."""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from dpjax._two_point import binomial, walk
from dpjax._two_point.moments import as_log, log_mgf_prime, saddle, worst_t
from dpjax._two_point.roots import moving_root
from dpjax._two_point.window import ULP, first_largest
from dpjax.bounded_range import _optimum as optimum


def _best_fixed(setting: walk.Walk, x, eps):
    """Different pairs with t as good as could be found for threshold x: a family in the tilt, or one t after another."""
    x, eps = lax.stop_gradient((x, eps))
    lam = saddle(x, lambda lam: jnp.sum(log_mgf_prime(eps, lam)), jnp.max(eps))
    reached = lambda t: walk.log_delta(setting, x, eps, t)[2]

    def family(factor):
        return jnp.where(eps > 0, jnp.clip(worst_t(eps, lam * factor), 0.0, eps), 0.0)

    if not walk.enumerates(setting):
        candidates = jax.vmap(family)(jnp.asarray((0.5, 0.7, 0.85, 1.0, 1.2, 1.5, 2.0)))
        return candidates[first_largest(lax.map(reached, candidates))]

    # A few pairs: each t in turn over all of its range, then ever closer; from several starts, since the supremum is
    # over a function with many summits.
    fractions = jnp.append(jnp.linspace(-1.0, 1.0, 41), 0.0)

    def coordinate(n, state):
        t, _ = state
        i = n % eps.shape[0]
        reach = 2.0 ** -jnp.floor(n / eps.shape[0])
        trial = jnp.clip(t[i] + fractions * reach * eps[i], 0.0, eps[i])
        ts = jax.vmap(lambda v: t.at[i].set(v))(trial)
        values = jax.vmap(reached)(ts)
        return ts[first_largest(values)], jnp.max(values)

    starts = jnp.concatenate([family(1.0)[None], jnp.asarray((0.35, 0.5, 0.65, 0.8, 0.95))[:, None] * eps])
    ends, values = lax.map(lambda t: lax.fori_loop(0, 14 * eps.shape[0], coordinate, (t, -jnp.inf)), starts)
    return ends[first_largest(values)]


class Fixed(NamedTuple):
    """Static: different mechanisms fixed beforehand. Their walk, and the recursion that bounds them from above."""

    walk: walk.Walk
    adaptive: optimum.Setting


def _delta_lane(setting: Fixed, x, eps, count):
    size = binomial.magnitude(x, jnp.sum(eps))
    held_x, held_eps = lax.stop_gradient((size, eps))
    grid = setting.adaptive.grid
    found = optimum.bracket(grid, held_x, optimum.layout(grid, held_eps, jnp.full_like(eps, optimum.FREE), count))
    upper = found.upper[found.at]
    t = _best_fixed(setting.walk, held_x, held_eps[::-1])
    _, lower, _ = walk.log_delta(setting.walk, held_x, held_eps[::-1], t)
    lower = jnp.minimum(lower, upper)
    _, _, path = walk.log_delta(setting.walk, size, eps[::-1], t)
    path = jnp.where(jnp.isfinite(path), path, 0.0)
    estimate = optimum.middle(lower, upper) + path - lax.stop_gradient(path)
    return binomial.answer(setting.adaptive.log, x, lower, estimate, upper)


def delta_kernel(setting: Fixed, x, eps, count):
    """Delta or log delta: (best t found, half-way, adaptive upper end)."""
    return jax.vmap(functools.partial(_delta_lane, setting))(x, eps, count)


def _log_walk(setting: walk.Walk, x, eps, t):
    return walk.log_delta(setting, x, eps[::-1], t)[2]


def _epsilon_lane(setting: Fixed, log_delta, eps, count):
    held_log, held_eps = lax.stop_gradient((log_delta, eps))
    _, high = optimum.epsilon_bracket(setting.adaptive, held_log, held_eps, jnp.full_like(eps, optimum.FREE), count)

    def improve(_, state):
        # The best t depends on the threshold, and the threshold on t.
        low, t = state
        at = jnp.where(low > 0, low, high)
        new = _best_fixed(setting.walk, at, held_eps[::-1])
        _, reached = walk.least_epsilon(setting.walk, held_log, held_eps[::-1], new)
        return jnp.maximum(low, reached), jnp.where(reached > low, new, t)

    low, t = lax.fori_loop(0, 2, improve, (jnp.zeros_like(high), held_eps[::-1] / 2))
    known = jnp.isneginf(held_log) | (held_log >= 0)
    low = jnp.where(known, high * (1 - 16 * ULP * eps.shape[0]), jnp.clip(low, 0.0, high))
    middle = (low + high) / 2
    at = jnp.where(high > 0, low, 0.0)
    moving = moving_root(functools.partial(_log_walk, setting.walk), at, log_delta, (eps, t))
    return low, middle + moving, high


def epsilon_kernel(static: tuple[bool, Fixed], query, eps, count):
    """The same for epsilon. static: whether query is log delta, the setting."""
    is_log, setting = static
    return jax.vmap(functools.partial(_epsilon_lane, setting))(as_log(is_log, query), eps, count)


def _walk_lane(setting: walk.Walk, x, eps, t):
    x = binomial.finite(x, jnp.sum(eps))
    upper, lower, value = walk.log_delta(setting, x, eps[::-1], t[::-1])
    value = jnp.where(jnp.isfinite(value), value, 0.0)
    moving = value - lax.stop_gradient(value)
    return (
        jnp.exp(lower) * (1 - 8 * ULP),
        jnp.exp(optimum.middle(lower, upper) + moving),
        jnp.minimum(jnp.exp(upper) * (1 + 8 * ULP), 1.0),
    )


def walk_kernel(setting: walk.Walk, x, eps, t):
    """Different pairs with given t: (lower, estimate, upper) of delta."""
    return jax.vmap(functools.partial(_walk_lane, setting))(x, eps, t)
