"""Positions along the last axis, found and used by comparison."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

# Not by argmin and gather, and integers are int32: with the x64 flag off, a program that mixes the others with float64
# does not lower.


def first_true(flags: jax.Array) -> jax.Array:
    """The first position that holds along the last axis, the last position if none does; int32."""
    places = np.arange(flags.shape[-1], dtype=np.int32)
    return jnp.min(jnp.where(flags, places, np.int32(flags.shape[-1] - 1)), -1)


def pick(a: jax.Array, index: jax.Array) -> jax.Array:
    """a[..., index] along the last axis."""
    places = np.arange(a.shape[-1], dtype=np.int32)
    return jnp.sum(jnp.where(places == index[..., None], a, 0.0), -1)


def at_least(a: jax.Array) -> jax.Array:
    """The position of the smallest element along the last axis."""
    return first_true(a <= jnp.min(a, -1, keepdims=True))
