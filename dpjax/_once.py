"""A boundary that the compiler does not fuse across."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax


def once(always: jax.Array, function: Callable[[], Any]) -> Any:
    """``function()``, evaluated into memory: XLA fuses it into every use otherwise, and evaluates it once for each.

    ``lax.optimization_barrier`` does not prevent that on the CPU (JAX 0.10), a branch does: the inner loops are twice as
    fast. ``always`` is a scalar that holds, and that the compiler cannot know to hold.
    """
    shapes = jax.eval_shape(function)
    return lax.cond(always, function, lambda: jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), shapes))
