"""Functions of lanes whose first and second derivatives are known in closed form, as custom_jvp rules.

A rule is written forward only, so that it transposes to reverse mode and works twice; no loop is ever differentiated.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def _contract(derivative: jax.Array, tangent: jax.Array) -> jax.Array:
    """Sums derivative * tangent over the event axes of one argument; both (lanes, *event)."""
    product = derivative * tangent
    return jnp.sum(product, axis=tuple(range(1, product.ndim)))


def twice_differentiable(evaluate: Callable[[Any, Any, tuple, int], tuple]) -> Callable[..., tuple]:
    """Makes ``value(static, constants, *xs)`` from a function that evaluates a value and its derivatives.

    Args:
      evaluate: ``evaluate(static, constants, xs, order) -> (outputs, gradient, hessian)``. Each x is (lanes, *event);
        lane i of every output depends on lane i alone. outputs: a tuple of arrays of shape (lanes,), whose floating
        members all share one derivative. gradient (order >= 1): one (lanes, *event) array for each x, or None where there is
        nothing to differentiate. hessian
        (order 2): hessian[i][j] of shape (lanes, *event_i, *event_j).

    Returns:
      The function; its third derivatives raise NotImplementedError.
    """

    @partial(jax.custom_jvp, nondiff_argnums=(0, 1))
    def value(static, constants, *xs):
        return evaluate(static, constants, xs, 0)[0]

    @partial(jax.custom_jvp, nondiff_argnums=(0, 1))
    def first(static, constants, *xs):
        outputs, gradient, _ = evaluate(static, constants, xs, 1)
        return outputs, gradient

    @partial(jax.custom_jvp, nondiff_argnums=(0, 1))
    def second(static, constants, *xs):
        return evaluate(static, constants, xs, 2)

    def spread(outputs, tangent):
        return tuple(
            tangent.astype(o.dtype) if jnp.issubdtype(o.dtype, jnp.floating) else np.zeros(o.shape, jax.dtypes.float0)
            for o in outputs
        )

    def directional(gradient, tangents):
        return sum(_contract(g, t) for g, t in zip(gradient, tangents, strict=True) if g is not None)

    @value.defjvp
    def value_jvp(static, constants, xs, tangents):
        outputs, gradient = first(static, constants, *xs)
        return outputs, spread(outputs, directional(gradient, tangents))

    @first.defjvp
    def first_jvp(static, constants, xs, tangents):
        outputs, gradient, hessian = second(static, constants, *xs)
        slopes = []
        for g, row in zip(gradient, hessian, strict=True):
            if g is None:
                slopes.append(None)
                continue
            total = jnp.zeros_like(g)
            for h, t in zip(row, tangents, strict=True):
                if h is None:
                    continue
                middle = t.reshape(t.shape[:1] + (1,) * (g.ndim - 1) + t.shape[1:])
                total = total + jnp.sum(h * middle, axis=tuple(range(g.ndim, h.ndim)))
            slopes.append(total)
        return (outputs, gradient), (spread(outputs, directional(gradient, tangents)), tuple(slopes))

    @second.defjvp
    def second_jvp(static, constants, xs, tangents):
        raise NotImplementedError("dpjax has first and second derivatives; a third was asked for.")

    return value
