"""Running sums of nonnegative numbers that are never below the truth, in the caller's dtype.

A sum is held as two floats, ``high + low``. One step loses at most ``5 u**2`` of the total, u being the unit roundoff,
and only steps that lose anything are counted, so the allowance for rounding is ``count * 8 u**2 * total``: it is 0 for
sums that two floats can hold, and 3e-7 of the total after 1e7 float32 steps. (One float, or one float with ``u`` in
place of ``u**2``, would need 0.6 of the total there.)

The sum of two floats is split exactly with additions only, which no compiler that keeps IEEE semantics may simplify.
What is said holds for normal floats; subnormal ones, which XLA takes for 0, are rounded up while they are concrete.
Products are split on their bits: a fused multiply-add then changes nothing, since every partial product is exact.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from dpjax import _validate
from dpjax._digits import shown
from dpjax._pytree import node

_MAX_COUNT = np.iinfo(np.int32).max


@node
class Sum:
    """A sum of nonnegative numbers.

    Attributes:
      high: the sum, rounded.
      low: what ``high`` lacks; at most half a unit in the last place of ``high``.
      inexact: number of additions that were rounded (int32, saturating).
    """

    high: jax.Array
    low: jax.Array
    inexact: jax.Array

    def __repr__(self) -> str:
        return f"Sum({spent(self)})"


def spent(total: Any) -> str:
    """A sum in words, rounded up; whatever a tree transformation has put in its place as well."""
    parts = (total.high, total.low, total.inexact) if isinstance(total, Sum) else (total,)
    if any(map(_validate.is_traced, parts)):
        return "<traced>"
    try:  # in NumPy: the operations of JAX would be traced where a program is
        high, low, inexact = (np.asarray(x, np.float64) for x in parts)
        unit = float(jnp.finfo(parts[0].dtype).eps) / 2
        at_most = high + low + inexact * high * (9 * unit**2)
    except (TypeError, ValueError, AttributeError, RuntimeError):
        return "?"
    if at_most.size > 6:
        return f"{_of(at_most.min())} to {_of(at_most.max())} in {at_most.shape}"
    return _of(at_most) if at_most.ndim == 0 else "[" + ", ".join(map(_of, at_most.ravel())) + "]"


def _of(x: Any) -> str:
    return shown(float(x), up=True, digits=6)


def default_dtype() -> Any:
    """The float dtype that JAX's flags ask for."""
    return jnp.result_type(float)


def zeros(shape: tuple[int, ...], dtype: Any) -> Sum:
    """The empty sum."""
    # Buffers of their own, since a training loop may donate the state; from NumPy, so that nothing is compiled.
    high, low = (jnp.array(np.zeros(shape, dtype)) for _ in range(2))
    return Sum(high, low, jnp.array(np.zeros(shape, np.int32)))


def two_sum(a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
    """``a + b`` rounded, and the rounding error (Knuth)."""
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)


def _split(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """``x`` as the sum of two numbers of half the digits; done on the bits, so that no multiplication is involved."""
    if x.dtype == np.float64:
        word, drop = jnp.int64, 27
    else:
        word, drop = jnp.int32, 12
    bits = lax.bitcast_convert_type(x, word)
    bits = (bits + (1 << (drop - 1))) & ~((1 << drop) - 1)
    high = lax.bitcast_convert_type(bits, x.dtype)
    return high, x - high


@jax.custom_jvp
def two_product(a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
    """``a * b`` rounded, and the rounding error, exact while it does not underflow (Dekker)."""
    p = a * b
    ah, al = _split(a)
    bh, bl = _split(b)
    return p, ((ah * bh - p) + ah * bl + al * bh) + al * bl


@two_product.defjvp
def _two_product_jvp(primals, tangents):
    (a, b), (da, db) = primals, tangents
    out = two_product(a, b)
    return out, (a * db + b * da, jnp.zeros_like(out[1]))


def up(x: jax.Array, units: float = 2.0) -> jax.Array:
    """A number above ``x >= 0`` by ``units`` half units in the last place; the derivative is that of ``x``."""
    return x + lax.stop_gradient(jnp.abs(x) * jnp.asarray(units * jnp.finfo(x.dtype).eps / 2, x.dtype))


def down(x: jax.Array, units: float = 2.0) -> jax.Array:
    """A number below ``x >= 0`` by ``units`` half units in the last place; the derivative is that of ``x``."""
    return x - lax.stop_gradient(jnp.abs(x) * jnp.asarray(units * jnp.finfo(x.dtype).eps / 2, x.dtype))


def cast(x: Any, dtype: Any, toward: float) -> jax.Array:
    """``x`` in ``dtype``; a concrete or wider value is rounded towards ``toward`` (plus or minus infinity)."""
    if not _validate.is_traced(x):
        if not isinstance(x, jax.Array):
            exact = np.asarray(x, np.float64)
            with np.errstate(over="ignore", under="ignore"):
                out = exact.astype(dtype)
                wrong = (out < exact) if toward > 0 else (out > exact)
                out = np.where(wrong, np.nextafter(out, np.asarray(toward, dtype)), out)
                tiny = np.asarray(jnp.finfo(dtype).tiny, dtype)  # XLA reads smaller numbers as 0
                out = np.where((np.abs(exact) < tiny) & (exact * np.sign(toward) > 0), np.copysign(tiny, exact), out)
            return jnp.asarray(out, dtype)
    x = jnp.asarray(x)
    out = x.astype(dtype)
    if jnp.issubdtype(x.dtype, np.floating) and jnp.finfo(x.dtype).bits > jnp.finfo(out.dtype).bits:
        out = up(out) if toward > 0 else down(out)
    return out


def floor(dtype: Any) -> float:
    """The smallest positive cost that is charged: below it the error terms would be flushed to zero."""
    info = jnp.finfo(dtype)
    return float(info.tiny) / float(info.eps) ** 2


def charge(x: jax.Array, spends: jax.Array | None = None) -> jax.Array:
    """``x``, or the smallest number that is charged where ``x`` is smaller and not free.

    What is not free is positive, unless ``spends`` says so: a formula may underflow to 0 where its argument does not.
    """
    least = jnp.asarray(floor(x.dtype), x.dtype)
    return jnp.where((x > 0 if spends is None else spends) & (x < least), least, x)


def square(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """``x**2`` as a pair of floats, exact, or rounded up where the pair would underflow."""
    high, low = two_product(x, x)
    least = floor(x.dtype)
    small = (x > 0) & (x < 2 * least**0.5)  # x is compared, since x * x itself may be flushed to 0
    return jnp.where(small, jnp.maximum(up(high, 4.0), least), high), jnp.where(small, 0.0, low)


def ratio_of_square(numerator: float | jax.Array, x: jax.Array) -> jax.Array:
    """``numerator / x**2``, exact where floats allow it and rounded up elsewhere; infinite at 0, 0 at infinity."""
    numerator = jnp.asarray(numerator, x.dtype)
    safe = jnp.where((x > 0) & (x < jnp.inf), x, 1.0)
    high, low = two_product(safe, safe)
    bounded = (high > 0) & (high < jnp.inf)
    quotient = numerator / jnp.where(bounded, high, 1.0)
    back, error = two_product(lax.stop_gradient(quotient), lax.stop_gradient(high))
    exact = (low == 0) & (error == 0) & (back == numerator)
    value = jnp.where(exact, quotient, up(quotient, 8.0))
    value = jnp.where(bounded, value, jnp.where(high > 0, 0.0, jnp.inf))
    value = jnp.where(jnp.isnan(x) | (x < 0), jnp.nan, jnp.where(x == 0, jnp.inf, jnp.where(x == jnp.inf, 0.0, value)))
    return charge(jnp.where((value == 0) & (x < jnp.inf) & (numerator > 0), floor(x.dtype), value))


def add(total: Sum, high: jax.Array, low: ArrayLike = 0.0) -> Sum:
    """``total`` plus the nonnegative number ``high + low``; what overflows stays infinite, and NaN stays NaN."""
    s, t = two_sum(total.high, high)
    v, e1 = two_sum(total.low, t)
    if isinstance(low, float) and low == 0.0:
        lost = e1 != 0
    else:
        v, e2 = two_sum(v, jnp.asarray(low, v.dtype))
        lost = (e1 != 0) | (e2 != 0)
    info = jnp.finfo(s.dtype)
    lost |= (s > 0) & (s < float(info.tiny) / float(info.eps) ** 3)  # errors of errors are flushed to zero here
    high = jnp.where(jnp.isinf(s), s, s + v)
    low = jnp.where(jnp.isinf(high), 0.0, v - (high - s))
    return Sum(high, low, jnp.minimum(total.inexact, _MAX_COUNT - 1) + lost.astype(jnp.int32))


def low_upper(total: Sum) -> jax.Array:
    """An upper bound of the exact sum minus ``high``."""
    unit = float(jnp.finfo(total.high.dtype).eps) / 2
    count = total.inexact.astype(total.high.dtype)
    allowance = lax.stop_gradient(count * total.high * jnp.asarray(8 * unit * unit * (1 + 8 * unit), total.high.dtype))
    out = total.low + allowance
    return jnp.where(total.inexact > 0, out + lax.stop_gradient(jnp.abs(out)) * (4 * unit), total.low)


def upper(total: Sum) -> jax.Array:
    """One float that is at least the exact sum; equal to it where a float can hold it."""
    s, error = two_sum(total.high, low_upper(total))
    return jnp.where(error > 0, up(s), s)


def value(total: Sum) -> jax.Array:
    """The sum rounded to nearest, without allowance."""
    return total.high + total.low


def at_most(total: Sum, budget: jax.Array) -> jax.Array:
    """Whether the exact sum is certainly at most ``budget``; False if anything is NaN.

    The difference ``high - budget`` is exact when the two are within a factor of 2, and elsewhere it outweighs ``low``.
    """
    return (total.high - budget) + low_upper(total) <= 0


def room(total: Sum, budget: jax.Array) -> jax.Array:
    """About ``budget`` minus the sum, from below and to a few units in the last place; not below 0."""
    left = (budget - total.high) - low_upper(total)
    return jnp.maximum(jnp.minimum(left, float(jnp.finfo(left.dtype).max) / 8), 0.0)


def largest(candidates: jax.Array, accepted: jax.Array) -> jax.Array:
    """The largest of ``candidates`` (last axis) that is ``accepted``, or 0."""
    return jnp.max(jnp.where(accepted & (candidates > 0), candidates, 0.0), axis=-1)


def neighbours(x: jax.Array, jump: jax.Array) -> jax.Array:
    """Numbers just above and below ``x`` and ``x - jump``, on a new last axis."""
    eps = float(jnp.finfo(x.dtype).eps)
    steps = jnp.asarray(np.concatenate([np.arange(3, -9, -1) * eps / 2, [-8 * eps, -16 * eps, -32 * eps]]), x.dtype)
    both = jnp.stack([x, x - jump], axis=-1)[..., None]
    grid = both + both * steps
    return jnp.maximum(grid.reshape((*x.shape, -1)), 0.0)


def sub_down(a: jax.Array, b: jax.Array) -> jax.Array:
    """``a - b`` rounded down, for ``a >= b >= 0``; exact where floats allow it."""
    s, error = two_sum(a, -b)
    return jnp.where(error < 0, down(s), s)
