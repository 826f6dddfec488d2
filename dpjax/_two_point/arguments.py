"""Arguments of the composition theorems: checks, lanes, and how answers are put back into the caller's shape."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import _precision, _validate


class Bounds(NamedTuple):
    """An answer with its certificate: ``lower <= truth <= upper``, rounding included.

    Attributes:
      lower, estimate, upper: arrays of the broadcast shape of the arguments.
    """

    lower: Any
    estimate: Any
    upper: Any


class Size(NamedTuple):
    """Static: how many mechanisms at most, how many are named, and whether all are the same."""

    steps: int
    length: int
    equal: bool
    repeats: int


def _shape(x: Any) -> tuple[int, ...]:
    return tuple(np.shape(x)) if not _validate.is_traced(x) else tuple(x.shape)


def plain(name: str, x: Any) -> Any:
    """A number, a sequence (of numbers, some perhaps traced) or an array, as an array or a tracer."""
    if isinstance(x, list | tuple) and any(_validate.is_traced(leaf) for leaf in jax.tree.leaves(x)):
        return jnp.stack([jnp.asarray(plain(name, v), dtype=jnp.result_type(float)) for v in x])
    return _validate.number(name, x)


def run(
    kernel: Any,
    static: Any,
    *args: Any,
    rounding: tuple[str, ...] = (_precision.DOWN, _precision.NEAREST, _precision.UP),
) -> Any:
    """``kernel(static, *args)`` in float64, on concrete or traced arguments."""
    if any(_validate.is_traced(a) for a in args):
        return _precision.traced(kernel, static, args, rounding)
    return _precision.concrete(kernel, static, *args)


def sequence_length(x: Any, name: str) -> int:
    """1 for a number, else the length of the last axis."""
    shape = _shape(plain(name, x))
    return shape[-1] if shape else 1


def mechanisms(epsilons: Any, count: Any) -> Size:
    """The sizes that fix the shapes of a computation."""
    length = sequence_length(epsilons, "epsilons")
    counts = np.asarray(count, dtype=np.float64)
    most = int(counts.max()) if counts.size else 0
    if length == 1:
        return Size(max(most, 1), 1, True, most)
    return Size(max(length * most, 1), length, False, most)


def stretched(size: Size, length: int) -> Size:
    """The same mechanisms when another parameter differs between them."""
    return Size(max(size.repeats * length, 1), length, False, size.repeats)


def check_real(name: str, x: Any) -> None:
    """Any number that is not NaN."""
    _validate.in_range(name, plain(name, x))


def check_probability(name: str, x: Any) -> None:
    """A number in [0, 1]."""
    _validate.in_range(name, plain(name, x), 0.0, 1.0)


def probability(name: str, delta: Any, log_name: str, log_delta: Any) -> tuple[bool, Any]:
    """(whether it is the logarithm, the number) of a probability that is given as one or the other."""
    if (delta is None) == (log_delta is None):
        raise ValueError(f"{name} and {log_name}: exactly one of them must be given.")
    if delta is None:
        value = plain(log_name, log_delta)
        _validate.in_range(log_name, value, -np.inf, 0.0)
        return True, value
    value = plain(name, delta)
    _validate.in_range(name, value, 0.0, 1.0)
    return False, value


def check_mechanisms(epsilons: Any, count: Any, rtol: float = 0.01) -> None:
    """Raises ValueError unless the epsilons, the count and the tolerance are usable."""
    shape = _shape(plain("epsilons", epsilons))
    if shape and shape[-1] == 0:
        raise ValueError(
            "epsilons has no elements along its last axis, but at least one mechanism is needed; use count=0 for none."
        )
    _validate.in_range("epsilons", plain("epsilons", epsilons), 0.0, np.inf, high_open=True)
    if _validate.is_traced(count):
        raise ValueError("count is traced, but it must be concrete: it fixes the shape of the computation.")
    _validate.in_range("count", _validate.number("count", count), 0.0, np.inf, integral=True, high_open=True)
    if np.ndim(count) and sequence_length(epsilons, "epsilons") > 1:
        raise ValueError(f"count = {count!r}, but with a sequence of different epsilons it must be one whole number.")
    if _validate.is_traced(rtol):
        raise ValueError("rtol is traced, but it must be concrete: it fixes the shape of the computation.")
    _validate.in_range("rtol", _validate.number("rtol", rtol), 0.0, 1.0, low_open=True)


class Lanes:
    """Arguments broadcast against each other and flattened, one lane per answer."""

    def __init__(self, query: Any, query_name: str, epsilons: Any, count: Any, size: Size, extra: Any = 0.0):
        query, epsilons, extra = plain(query_name, query), plain("epsilons", epsilons), plain("extra", extra)
        counts = np.asarray(count, dtype=np.float64)
        heads = [_shape(epsilons)[:-1], _shape(extra)[:-1]]
        self.shape = np.broadcast_shapes(_shape(query), counts.shape if size.equal else (), *heads)
        traced = any(_validate.is_traced(a) for a in (query, epsilons, extra))
        self._np = jnp if traced else np
        self._dtype = jnp.result_type(float) if traced else np.float64
        self.query = self._lane(query)
        self.counts = np.broadcast_to(counts if size.equal else float(size.repeats), self.shape).reshape(-1)
        self.epsilons = self._mechanisms(epsilons, size)
        self.extra = self._mechanisms(extra, size)
        self._traced = traced

    def _lane(self, x):
        xp = jnp if _validate.is_traced(x) else np
        return xp.reshape(xp.broadcast_to(x, self.shape), (-1,))

    def _mechanisms(self, x, size):
        xp = jnp if _validate.is_traced(x) else np
        x = xp.asarray(x)
        if x.ndim == 0:
            x = x[None]
        if size.equal:
            return self._lane(x[..., 0])
        one = xp.broadcast_to(x, (*self.shape, size.length)).reshape(-1, size.length)
        repeated = xp.tile(one, (1, size.repeats))
        return repeated if size.repeats else xp.zeros((one.shape[0], 1))

    def usable(self, is_log: bool | None = None) -> tuple[Any, ...]:
        """Conditions on the query and the epsilons; ``is_log`` for a probability, None for any number."""
        if is_log is None:
            known = self.query == self.query
        else:
            known = self.query <= 0 if is_log else (self.query >= 0) & (self.query <= 1)
        return known, (self.epsilons >= 0) & (self.epsilons < np.inf)

    def within(self) -> tuple[Any, Any]:
        """``extra`` and the epsilons in one dtype, to compare them."""
        if not self._traced:
            return self.extra, self.epsilons
        return jnp.asarray(self.extra, self._dtype), jnp.asarray(self.epsilons, self._dtype)

    def finish(self, lower: Any, estimate: Any, upper: Any, *valid: Any) -> Bounds:
        """Bounds in the caller's shape; a scalar answer is a NumPy scalar or a traced scalar.

        Traced arguments outside their domain give NaN: ``valid`` are conditions on lanes, or on (lanes, mechanisms).
        """
        poison = 1.0
        if self._traced:
            checks = [v if v.ndim == 1 else jnp.all(v, axis=1) for v in valid]
            ok = functools.reduce(jnp.logical_and, checks)
            # A product, so that every derivative is NaN too.
            poison = jnp.where(ok, 1.0, jnp.nan).astype(upper.dtype)

        def back(x):
            x = (x * poison).reshape(self.shape) if self._traced else x.reshape(self.shape)
            return x[()] if isinstance(x, np.ndarray) else x

        return Bounds(back(lower), back(estimate), back(upper))
