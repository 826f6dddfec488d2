"""The other crossing of precision: float32 inside, whatever JAX's x64 flag says, for platforms without float64.

Numbers are rounded to float32 first, and the answer is about those. The program is traced with the flag off, so that no float64 or
int64 operation is in it; derivatives are computed inside, as ``_precision`` does it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import _precision
from dpjax._validate import is_traced

LEAST_RTOL = 1e-3  # what float32 reaches as a rule, relative to delta


def _rounded(x: Any) -> np.ndarray:
    """The nearest float32, 0 in the place of numbers that XLA would flush to 0."""
    with np.errstate(over="ignore"):
        near = np.asarray(x, np.float64).astype(np.float32)
    return np.where(np.abs(near) < np.finfo(np.float32).tiny, np.float32(0), near)


def concrete(function: Callable, static: Any, *args: Any) -> tuple[np.ndarray, ...]:
    """Runs ``function`` in float32 on concrete numbers, also while a user's function is being traced."""
    lanes = args[-1].shape[0]
    size = lanes if lanes <= 1 else max(16, 1 << (lanes - 1).bit_length())  # few shapes, few compilations
    wide = lambda a: np.concatenate([a, np.repeat(a[:1], size - lanes, 0)])
    with jax.ensure_compile_time_eval(), jax.enable_x64(False):
        out = _precision.compiled(function)(static, *(jnp.asarray(wide(_rounded(a))) for a in args))
        return jax.tree.map(lambda x: np.asarray(x)[:lanes], out)


def traced(function: Callable, static: Any, args: tuple, rounding: tuple[str, ...]) -> tuple:
    """Runs ``function`` in float32 on arguments of which some are traced; as ``_precision.traced``."""
    flags = tuple(is_traced(a) for a in args)
    dtype = jnp.dtype(jnp.result_type(float))
    call = _precision.Call(function, static, rounding, flags, jnp.dtype(jnp.float32), False)
    constants = tuple(_rounded(a) for a, flag in zip(args, flags, strict=True) if not flag)
    moving = tuple(jnp.asarray(a, jnp.float32) for a, flag in zip(args, flags, strict=True) if flag)
    out = _precision.boundary(call, constants, *moving)
    return tuple(x.astype(dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x for x in out)
