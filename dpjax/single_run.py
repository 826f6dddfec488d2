"""Engine: one run of one mechanism, from the profile of its law."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from dpjax.laws import Law

_UNIT = 2.0**-53
_FAR = 1e6  # epsilons beyond are not told apart, where losses have no largest one
_FARTHEST = 1e30  # nor beyond, where they have: halvings resolve it to 1e-3
_HALVINGS = 110


class Found(NamedTuple):
    """Scalars; log delta if delta was asked for. The derivative is the estimate's."""

    lower: jax.Array
    estimate: jax.Array
    upper: jax.Array


def _log(delta: Any) -> Any:
    return jnp.where(delta > 0, jnp.log(jnp.where(delta > 0, delta, 1.0)), -jnp.inf)


def _slack(law: Law, log_delta: Any) -> Any:
    return law.ULPS * _UNIT * (1 + jnp.abs(jnp.where(jnp.isfinite(log_delta), log_delta, 0.0)))


def solve(law: Law, given: Any, unknown: str) -> Found:
    """Log delta at an epsilon, or the least epsilon >= 0 at a log delta.

    Args:
      law: that of the mechanism.
      given: a real epsilon if ``unknown`` is "delta", a log delta if it is "epsilon".
      unknown: says which.
    """
    log_profile = lambda x: _log(jnp.minimum(law.profile(x), 1.0))
    if unknown == "delta":
        value = log_profile(given)
        unclear = jnp.isnan(lax.stop_gradient(law.profile(given)))  # a law that fails is no law without loss
        slack = _slack(law, lax.stop_gradient(value))
        # smaller numbers are flushed to zero: not certified as such while the loss reaches further
        floor = jnp.where(given < law.support()[1], -708.0, -jnp.inf)
        ends = value - slack, jnp.minimum(jnp.maximum(value + slack, floor), 0.0)
        lower, upper = jax.tree.map(lax.stop_gradient, ends)
        return Found(jnp.where(unclear, -jnp.inf, lower), value, jnp.where(unclear, 0.0, upper))
    stopped = jax.tree.map(lax.stop_gradient, law)
    target = lax.stop_gradient(given)
    largest = stopped.support()[1]
    highest = jnp.clip(largest * (1 + 4 * _UNIT), 0.0, jnp.where(jnp.isinf(largest), _FAR, _FARTHEST))

    def above(x, sign):
        profile = stopped.profile(x)
        value = _log(jnp.minimum(profile, 1.0))
        return jnp.where(jnp.isnan(profile), sign > 0, value + sign * _slack(law, value) > target)

    def bisect(sign):
        """Neighbours between which log delta, moved by its rounding, falls below the target."""

        def halve(_, ends):
            low, high = ends
            middle = 0.5 * (low + high)
            still = above(middle, sign)
            return jnp.where(still, middle, low), jnp.where(still, high, middle)

        return lax.fori_loop(0, _HALVINGS, halve, (0.0 * highest, highest))

    reached = ~above(highest, 1.0)
    upper = jnp.where(reached, bisect(1.0)[1], jnp.inf)
    upper = jnp.where(above(0.0 * highest, 1.0), upper, 0.0)
    lower = jnp.where(above(0.0 * highest, -1.0), bisect(-1.0)[0], 0.0)
    lower = jnp.where(target < _log(stopped.p_infinite() * (1 - 8 * _UNIT)), jnp.inf, lower)
    start = jnp.where(jnp.isfinite(upper), 0.5 * (lower + upper), 0.0)
    value = start
    for _ in range(2):  # Newton's method carries two derivatives by the implicit function theorem
        at, slope = jax.value_and_grad(log_profile)(value)
        inner = (start > 0) & jnp.isfinite(at) & (slope < 0)
        value = jnp.where(inner, value - (at - given) / jnp.where(inner, slope, -1.0), value)
    inside = jnp.where(jnp.isfinite(upper), jnp.clip(lax.stop_gradient(value), lower, upper), upper)
    return Found(
        lower, jnp.where(start > 0, value, 0.0) + lax.stop_gradient(inside - jnp.where(start > 0, value, 0.0)), upper
    )
