"""Checks of concrete values, with one message form: the argument, the value, what is allowed.

A traced value passes unchecked; the engines answer NaN for it when it is out of range.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer


def is_traced(x: Any) -> bool:
    """Whether ``x`` has no concrete value that Python could look at."""
    return isinstance(x, Tracer)


_MASKS: contextvars.ContextVar[list | None] = contextvars.ContextVar("masks", default=None)


@contextlib.contextmanager
def collected() -> Iterator[list]:
    """Inside, checks of traced values are not passed over: the list receives for each a mask, true where it is in range."""
    masks: list = []
    token = _MASKS.set(masks)
    try:
        yield masks
    finally:
        _MASKS.reset(token)


def number(name: str, x: Any) -> Any:
    """Returns ``x`` as a floating-point leaf: a float, a NumPy array or a tracer.

    Integers become floats, since an integer leaf could not be differentiated. A traced integer that float32
    cannot hold is rounded up.

    Raises:
      TypeError: ``x`` is a bool, complex, or not a number.
    """
    if is_traced(x):
        return _traced_number(name, x)
    array = np.asarray(x)
    if array.dtype == np.bool_ or not (
        np.issubdtype(array.dtype, np.number) or jnp.issubdtype(array.dtype, np.floating)
    ):
        raise TypeError(f"{name} must be a real number or an array of real numbers; got {x!r}.")
    if np.iscomplexobj(array):
        raise TypeError(f"{name} must be real; got {x!r}.")
    array = array.astype(np.float64)
    return float(array) if array.ndim == 0 else array


def _traced_number(name: str, x: Any) -> Any:
    if x.dtype == np.bool_ or jnp.issubdtype(x.dtype, np.complexfloating):
        raise TypeError(f"{name} must be a real number or an array of real numbers; got {x!r}.")
    if jnp.issubdtype(x.dtype, np.floating):
        return x
    rounded = x.astype(jnp.result_type(float))
    return jnp.where(rounded.astype(x.dtype) < x, jnp.nextafter(rounded, jnp.inf), rounded)


def in_range(
    name: str,
    x: Any,
    low: float = -np.inf,
    high: float = np.inf,
    *,
    integral: bool = False,
    low_open: bool = False,
    high_open: bool = False,
    advice: str = "",
) -> None:
    """Raises ValueError unless every element of a concrete ``x`` lies between ``low`` and ``high``; ``advice`` ends its message."""
    if is_traced(x):
        masks = _MASKS.get()
        if masks is not None:
            ok = (x > low if low_open else x >= low) & (x < high if high_open else x <= high)
            masks.append(ok & (~jnp.isfinite(x) | (x == jnp.floor(x))) if integral else ok)
        return
    try:
        array = np.asarray(x, dtype=np.float64)
    except (TypeError, ValueError):  # a placeholder put there by a tree transformation
        return
    bad = np.isnan(array)
    bad |= (array <= low) if low_open else (array < low)
    bad |= (array >= high) if high_open else (array > high)
    if integral:
        bad |= np.isfinite(array) & (array != np.floor(array))
    if not bad.any():
        return
    index = np.unravel_index(int(np.argmax(bad)), array.shape) if array.ndim else ()
    where = f"{name}[{', '.join(map(str, index))}]" if array.size > 1 else name
    allowed = _allowed(low, high, low_open, high_open, integral)
    raise ValueError(f"{where} = {float(array[index])!r}, but it must be {allowed}{f': {advice}' if advice else ''}.")


def at_most(name: str, x: Any, limit_name: str, limit: Any) -> None:
    """Raises ValueError if a concrete ``x`` is above a concrete ``limit``, another argument."""
    if is_traced(x) or is_traced(limit):
        masks = _MASKS.get()
        if masks is not None:
            masks.append(x <= limit)
        return
    try:
        too_large = np.asarray(x, np.float64) > np.asarray(limit, np.float64)
    except (TypeError, ValueError):  # a placeholder put there by a tree transformation
        return
    if too_large.any():
        first = int(np.argmax(too_large))
        x, limit = (float(np.broadcast_to(a, too_large.shape).flat[first]) for a in (x, limit))
        raise ValueError(f"{name} = {x!r}, but it must be at most {limit_name} = {limit!r}.")


def _allowed(low: float, high: float, low_open: bool, high_open: bool, integral: bool) -> str:
    kind = "a whole number" if integral else "a number"
    if np.isinf(low) and np.isinf(high):
        return kind
    if np.isinf(high):
        return f"{kind} {'>' if low_open else '>='} {low:g}"
    if np.isinf(low):
        return f"{kind} {'<' if high_open else '<='} {high:g}"
    return f"{kind} in {'(' if low_open else '['}{low:g}, {high:g}{')' if high_open else ']'}"


def one_of(name: str, x: Any, allowed: tuple[Any, ...]) -> None:
    """Raises ValueError unless ``x`` is one of ``allowed``."""
    if x not in allowed:
        raise ValueError(f"{name} = {x!r}, but it must be one of {', '.join(repr(a) for a in allowed)}.")


def whole(name: str, x: Any, low: int) -> None:
    """Raises unless ``x`` is an int >= ``low``; for what is part of a record's structure."""
    if isinstance(x, bool) or not isinstance(x, int):
        raise TypeError(f"{name} must be an int; got {x!r}.")
    if x < low:
        raise ValueError(f"{name} = {x!r}, but it must be a whole number >= {low}.")


def exponential(name: str, x: Any) -> Any:
    """exp of a leaf."""
    x = number(name, x)
    return jnp.exp(x) if is_traced(x) else np.exp(x)


def distribution(name: str, x: Any) -> None:
    """Raises ValueError unless a concrete ``x`` holds probabilities along its last axis that sum to one."""
    in_range(name, x, 0.0, 1.0)
    shape = getattr(x, "shape", None)
    if shape is None and not isinstance(x, float):
        return  # a placeholder put there by a tree transformation
    if not shape:
        raise ValueError(f"{name} = {x!r}, but it must be an array whose last axis holds the probabilities.")
    if is_traced(x):
        return
    total = np.sum(np.asarray(x, np.float64), -1)
    off = np.abs(total - 1)
    if np.any(off > max(1e-12, 2.0**-52 * shape[-1])):
        worst = float(total.flat[int(np.argmax(off))])
        raise ValueError(
            f"{name} sums to {worst!r}, but it must sum to 1 along its last axis: add the outcome that is missing, or "
            f"divide {name} by its sum, in float64."
        )


def same_length(names: tuple[str, ...], arrays: tuple[Any, ...]) -> None:
    """Raises ValueError unless the last axes are of one length."""
    lengths = [a.shape[-1] for a in arrays]
    if len(set(lengths)) > 1:
        raise ValueError(f"{' and '.join(names)} have {' and '.join(map(str, lengths))} entries in their last axes.")
