"""What functions of real numbers share that work elementwise on arrays which broadcast."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from dpjax import _validate


def reals(*xs: ArrayLike) -> tuple[Any, ...]:
    """The arguments, broadcast, in one strong float dtype: the widest among them, JAX's default one for the rest.

    Half precision becomes float32: what is computed here has to keep digits that a half does not have.

    NumPy arrays if all arguments are plain numbers or NumPy arrays, so that nothing is compiled for them.
    """
    plain = not any(isinstance(x, jax.Array) for x in jax.tree.leaves(xs))
    arrays: list[Any] = [np.asarray(x) if plain else jnp.asarray(x) for x in xs]
    strong = [a for x, a in zip(xs, arrays, strict=True) if type(x) not in (int, float)]
    default = jnp.result_type(float)
    known = [
        default if a.dtype == np.float64 else a if isinstance(a, jax.Array) else a.dtype
        for a in strong
        if jnp.issubdtype(a.dtype, jnp.floating)
    ]
    dtype = jnp.result_type(float, *known)
    dtype = dtype if jnp.finfo(dtype).bits >= 32 else jnp.dtype(jnp.float32)
    module = np if plain else jnp
    with np.errstate(over="ignore"):
        return tuple(module.broadcast_arrays(*[a.astype(dtype) for a in arrays]))


def check(name: str, x: ArrayLike, low: float, high: float = np.inf, **open_ends: Any) -> None:
    """Raises ValueError unless a concrete ``x`` is in range, and still is as a number of the dtype it will have."""
    _validate.in_range(name, x, low, high, **open_ends)
    if isinstance(x, int | float | np.generic | np.ndarray):
        (rounded,) = reals(x)
        rounded = np.where(np.abs(rounded) < jnp.finfo(rounded.dtype).tiny, np.zeros_like(rounded), rounded)  # as XLA
        _validate.in_range(f"{name}, in {rounded.dtype},", rounded, low, high, **open_ends)


def nan_unless(ok: jax.Array, out: jax.Array, *arguments: jax.Array) -> jax.Array:
    """``out`` where ``ok``; elsewhere NaN, and so are all derivatives in the arguments."""
    factor = jnp.where(ok, 0.0, jnp.nan)
    for x in arguments:
        out = out + jnp.where(ok & jnp.isinf(x), 0.0, x) * factor
    return out
