"""Optimal composition of mechanisms of which only (epsilon, delta) is known: Kairouz, Oh & Viswanath; Murtagh & Vadhan.

The worst (epsilon, delta)-DP mechanism is randomised response with outputs {0, 1, top, bottom}. Its composition is
exact, and it holds for mechanisms chosen adaptively: a dominating pair composes whatever the order of choice.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike

from dpjax._two_point import arguments, binomial, walk
from dpjax._two_point.arguments import Bounds
from dpjax._two_point.roots import moving_root, safe_sides
from dpjax._two_point.window import ULP, Grid

__all__ = ["optimal_delta", "optimal_delta_bounds", "optimal_epsilon", "optimal_epsilon_bounds"]


class _Equal(NamedTuple):
    sums: binomial.Binomial


class _Different(NamedTuple):
    walk: walk.Walk


def _log_parts(setting, x, eps, count):
    """(log upper, log lower, differentiable log) of delta without the failure probabilities."""
    if isinstance(setting, _Equal):
        value, rounding = binomial.log_fixed(setting.sums, x, 2 * eps, eps, count)
        held = lax.stop_gradient(value)
        return held + rounding, held - rounding, value
    return walk.log_delta(setting.walk, x, 2 * eps[::-1], eps[::-1])


def _log_value(setting, x, eps, count):
    return _log_parts(setting, x, eps, count)[2]


def _steps(setting):
    return setting.sums.pairs if isinstance(setting, _Equal) else setting.walk.grid.steps


def _log_kept(setting, delta, count):
    """log of the probability that nothing fails."""
    if isinstance(setting, _Equal):
        some = count > 0
        return jnp.where(some, count * jnp.log1p(-jnp.where(some, delta, 0.0)), 0.0)
    return jnp.sum(jnp.log1p(-delta))


def _delta_lane(setting, x, eps, delta, count):
    x = binomial.finite(x, _most(setting, eps, count))
    upper, lower, value = _log_parts(setting, x, eps, count)
    kept = _log_kept(setting, delta, count)
    finite = jnp.isfinite(value)
    value = jnp.where(finite, value, 0.0)
    moving = value - lax.stop_gradient(value)

    def total(log_value):
        return -jnp.expm1(kept) + jnp.exp(kept + log_value)

    up = 1 + ULP * (16 + 2 * _steps(setting))
    return total(lower) / up, total((lower + upper) / 2 + moving), jnp.minimum(total(upper) * up, 1.0)


def _delta_kernel(setting, x, eps, delta, count):
    return jax.vmap(functools.partial(_delta_lane, setting))(x, eps, delta, count)


def _remaining(setting, target, delta, count):
    """log of what the losses may use of ``target``, rounded down and up; -inf when the failures use it all."""
    kept = _log_kept(setting, delta, count)
    failed = -jnp.expm1(kept)
    slack = ULP * (4 * target + (4 + 2 * _steps(setting)) * failed)
    rest = jnp.stack([target - failed - slack, target - failed, target - failed + slack])
    return jnp.where(rest > 0, jnp.log(jnp.where(rest > 0, rest, 1.0)) - kept, -jnp.inf), failed


def _most(setting, eps, count):
    return count * eps if isinstance(setting, _Equal) else jnp.sum(eps)


def _epsilon_ends(setting, target, eps, delta, count):
    (safe, _, tight), failed = _remaining(setting, target, delta, count)
    if isinstance(setting, _Equal):
        some = (count >= 1) & (eps > 0)
        size, number = jnp.where(some, eps, 1.0), jnp.where(some, count, 1.0)

        def ends(log_delta):
            high = size * number * (1 + 4 * ULP)
            return safe_sides(lambda x: binomial.log_fixed(setting.sums, x, 2 * size, size, number), log_delta, high)

        high, low = ends(safe)[0], ends(tight)[1]
        high, low = jnp.where(some, high, 0.0), jnp.where(some, low, 0.0)
    else:
        high = walk.least_epsilon(setting.walk, safe, 2 * eps[::-1], eps[::-1])[0]
        low = walk.least_epsilon(setting.walk, tight, 2 * eps[::-1], eps[::-1])[1]
    most = _most(setting, eps, count) * (1 + 4 * ULP * _steps(setting))
    spent = jnp.isneginf(safe)
    # The failures alone reach the target: basic composition if they do not exceed it, else nothing is enough.
    limit = jnp.where(failed <= target, most, jnp.inf)
    high = jnp.where(spent, limit, jnp.minimum(high, most))
    low = jnp.where(spent, jnp.where(jnp.isneginf(tight), limit, jnp.minimum(low, most)), jnp.minimum(low, high))
    return jnp.where(target >= 1, 0.0, low), jnp.where(target >= 1, 0.0, high)


def _epsilon_lane(setting, target, eps, delta, count):
    low, high = _epsilon_ends(setting, *lax.stop_gradient((target, eps, delta, count)))
    usable = jnp.isfinite(high) & (high > 0)
    middle = jnp.where(usable, (low + high) / 2, 0.0)
    log_rest = _remaining(setting, target, delta, count)[0][1]
    log_rest = jnp.where(jnp.isfinite(log_rest), log_rest, 0.0)
    moving = moving_root(functools.partial(_log_value, setting), middle, log_rest, (eps, count))
    return low, jnp.where(jnp.isfinite(high), (low + high) / 2, high) + jnp.where(usable, moving, 0.0), high


def _epsilon_kernel(setting, target, eps, delta, count):
    return jax.vmap(functools.partial(_epsilon_lane, setting))(target, eps, delta, count)


def _run(kernel, query, query_name, epsilons, deltas, count, rtol):
    size = arguments.mechanisms(epsilons, count)
    delta_size = arguments.sequence_length(deltas, "deltas")
    if not size.equal or delta_size > 1:
        length = max(size.length, delta_size)
        size = arguments.stretched(size, length)
    lanes = arguments.Lanes(query, query_name, epsilons, count, size, extra=deltas)
    if size.equal:
        setting: Any = _Equal(binomial.setting_for(size.steps))
    else:
        setting = _Different(walk.Walk(Grid(size.steps, walk.cells_for(size.steps, rtol), False)))
    found = arguments.run(kernel, setting, lanes.query, lanes.epsilons, lanes.extra, lanes.counts)
    usable = lanes.usable(False if kernel is _epsilon_kernel else None)
    return lanes.finish(*found, *usable, (lanes.extra >= 0) & (lanes.extra <= 1))


def optimal_delta_bounds(
    epsilon_global: ArrayLike, epsilons: Any, deltas: Any = 0.0, *, count: Any = 1, rtol: float = 1e-4
) -> Bounds:
    """Both ends of :func:`optimal_delta`, which has the arguments."""
    arguments.check_real("epsilon_global", epsilon_global)
    arguments.check_mechanisms(epsilons, count, rtol)
    arguments.check_probability("deltas", deltas)
    return _run(_delta_kernel, epsilon_global, "epsilon_global", epsilons, deltas, count, rtol)


def optimal_delta(
    epsilon_global: ArrayLike, epsilons: Any, deltas: Any = 0.0, *, count: Any = 1, rtol: float = 1e-4
) -> Any:
    """The least delta for which every adaptive composition of the mechanisms is (epsilon_global, delta)-DP.

    Args:
      epsilon_global: any real number, or an array.
      epsilons: the mechanisms' epsilons, >= 0: a number, or a sequence along the last axis.
      deltas: their deltas, in [0, 1]: a number, or a sequence along the last axis.
      count: how often the mechanism, or the whole sequence, is run; concrete whole numbers >= 0.
      rtol: relative width of the bracket that is aimed at when more than 12 mechanisms differ; elsewhere the sums are
        exact up to rounding.

    Returns:
      The certified upper end, rounding included. Leading axes broadcast; traced arguments give traced results.

    Guarantee:
      Never below the optimum, which is attained: Kairouz, Oh & Viswanath (2015), Theorem 3.3, for equal mechanisms;
      Murtagh & Vadhan (2016), Theorem 1.5, for different ones.

    Raises:
      ValueError: a concrete argument is out of range, or ``count`` is traced. Traced ones out of range give NaN.

    Example:
      >>> print(f"{optimal_delta(2.0, 0.1, 1e-6, count=100):.9f}")
      0.020238160
    """
    return optimal_delta_bounds(epsilon_global, epsilons, deltas, count=count, rtol=rtol).upper


def optimal_epsilon_bounds(
    delta: ArrayLike, epsilons: Any, deltas: Any = 0.0, *, count: Any = 1, rtol: float = 1e-4
) -> Bounds:
    """Both ends of :func:`optimal_epsilon`, which has the arguments."""
    arguments.check_probability("delta", delta)
    arguments.check_mechanisms(epsilons, count, rtol)
    arguments.check_probability("deltas", deltas)
    return _run(_epsilon_kernel, delta, "delta", epsilons, deltas, count, rtol)


def optimal_epsilon(delta: ArrayLike, epsilons: Any, deltas: Any = 0.0, *, count: Any = 1, rtol: float = 1e-4) -> Any:
    """The least epsilon >= 0 for which every adaptive composition of the mechanisms is (epsilon, delta)-DP.

    Args:
      delta: in [0, 1], a number or an array.
      epsilons, deltas, count, rtol: as in :func:`optimal_delta`.

    Returns:
      The certified upper end. Infinite if the deltas alone exceed ``delta``.

    Guarantee:
      As for :func:`optimal_delta`, of which it is the inverse.

    Raises:
      ValueError: a concrete argument is out of range, or ``count`` is traced. Traced ones out of range give NaN.

    Example:
      >>> print(f"{optimal_epsilon(1e-6, 0.1, count=100):.9f}")
      4.774567588
    """
    return optimal_epsilon_bounds(delta, epsilons, deltas, count=count, rtol=rtol).upper
