"""Special functions that JAX lacks, or has with errors too large for a certificate.

In float32 also the elementary ones: JAX's differ from platform to platform, and those of TPUs are off by several ulp. Written out in
additions, products and divisions, they have one bound everywhere. Measured against mpmath in tests/test_special.py (float64) and
tests/test_float32.py; every function is differentiable by plain autodiff.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

SQRT2 = 1.4142135623730951
LOG_2PI = 1.8378770664093453
# pi/2 in three parts of 33 bits or less: k * part is exact for |k| < 2^20.
_PIO2 = (1.57079632673412561417e00, 6.07710050630396597660e-11, 2.02226624879595063154e-21)
_SIN = tuple(
    (-1) ** (i + 1) / f for i, f in enumerate((6.0, 120.0, 5040.0, 362880.0, 39916800.0, 6227020800.0, 1307674368000.0))
)
_COS = tuple(
    (-1) ** i / f for i, f in enumerate((24.0, 720.0, 40320.0, 3628800.0, 479001600.0, 87178291200.0, 20922789888000.0))
)

_LN2 = (6.93147180369123816490e-01, 1.90821492927058770002e-10)  # the first of 33 bits: k times it is exact
_LOG = (
    6.666666666666735130e-01,
    3.999999999940941908e-01,
    2.857142874366239149e-01,
    2.222219843214978396e-01,
    1.818357216161805012e-01,
    1.531383769920937332e-01,
    1.479819860511658591e-01,
)
_ATAN_P = (
    -6.485021904942025371773e1,
    -1.228866684490136173410e2,
    -7.500855792314704667340e1,
    -1.615753718733365076637e1,
    -8.750608600031904122785e-1,
)
_ATAN_Q = (
    1.945506571482613964425e2,
    4.853903996359136964868e2,
    4.328810604912902668951e2,
    1.650270098316988542046e2,
    2.485846490142306297962e1,
    1.0,
)


# The same in float32, with k * part exact for |k| < 2^13.
_PIO2_SINGLE = (1.5703125, 4.837512969970703125e-4, 7.54978995489188216e-8)
_LN2_SINGLE = (0.693359375, -2.12194440054690583e-4)
_EXPM1 = tuple(1 / f for f in (2.0, 6.0, 24.0, 120.0, 720.0, 5040.0, 40320.0))


def is_single(x: jax.Array) -> bool:
    return x.dtype == np.float32


def unit(x: jax.Array) -> float:
    """What certificates take for half an ulp of 1 in the dtype of ``x``.

    In float32 twice that: products of matrices on TPUs, which sum partial products, and division there, are that much worse.
    """
    return 2.0**-23 if is_single(x) else 2.0**-53


def tiny(x: jax.Array) -> float:
    """A positive number that is lost beside any other one in the dtype of ``x``."""
    return 1e-37 if is_single(x) else 1e-300


def cap(x: jax.Array, largest: float) -> float:
    """``largest``, or less where exp would overflow in the dtype of ``x``."""
    return min(largest, 80.0) if is_single(x) else largest


def like(constants: Any, x: jax.Array) -> np.ndarray:
    """``constants`` in the dtype of ``x``. With the x64 flag off JAX would convert them itself, but remembers that for the array."""
    return np.asarray(constants, x.dtype)


def total(x: jax.Array, axis: int = -1) -> jax.Array:
    """The sum along an axis; in float32 by halves, so that it is off by log2(length) ulp instead of length."""
    if not is_single(x) or x.shape[axis] <= 8:
        return jnp.sum(x, axis)
    return by_halves(jnp.moveaxis(x, axis, -1))


def by_halves(x: jax.Array) -> jax.Array:
    """The sum along the last axis, by halves: off by log2(length) ulp instead of length."""
    while x.shape[-1] > 1:
        if x.shape[-1] % 2:
            x = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, 1)])
        half = x.shape[-1] // 2
        x = x[..., :half] + x[..., half:]
    return x[..., 0]


def _horner(z: jax.Array, coefficients: tuple[float, ...]) -> jax.Array:
    total = jnp.full_like(z, coefficients[-1])
    for c in coefficients[-2::-1]:
        total = total * z + c
    return total


def _reduced(x: jax.Array, times: float) -> tuple[jax.Array, jax.Array]:
    """(k, x - k times pi / 2), k whole; both 0 where no digit of x is left."""
    x = jnp.where(jnp.abs(x) < (4e6 if is_single(x) else 4e15), x, 0.0)
    first, second, third = (times * part for part in (_PIO2_SINGLE if is_single(x) else _PIO2))
    k = jnp.round(x * (2 / times / jnp.pi))
    return k, ((x - k * first) - k * second) - k * third


def sincos(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(sin x, cos x), absolute error below 2e-16 for |x| < 1e6 and a few ulp of x beyond, in float64; 1e-7, 8192 in float32.

    Written out so that the compiler vectorises it: on one AVX-512 core 5e8 pairs a second, where ``jnp.sin`` and
    ``jnp.cos`` together reach 5e7.
    """
    k, r = _reduced(x, 1.0)
    z = r * r
    sin_r = r + r * z * _horner(z, _SIN)
    cos_r = 1 - (0.5 * z - z * z * _horner(z, _COS))
    quadrant = k - 4 * jnp.floor(k * 0.25)
    swap = (quadrant == 1) | (quadrant == 3)
    s = jnp.where(swap, cos_r, sin_r)
    c = jnp.where(swap, sin_r, cos_r)
    return jnp.where(quadrant >= 2, -s, s), jnp.where((quadrant == 1) | (quadrant == 2), -c, c)


def tan_quarter(x: jax.Array) -> jax.Array:
    """tan(r / 4) for r in [-pi, pi], x = r modulo 2 pi; absolute error below 5e-16 for |x| < 1e6. See ``_complex.expm1``.

    In float32 1.3e-7 for |x| < 8192.
    """
    _, r = _reduced(x, 4.0)
    r = 0.25 * r
    z = r * r
    return (r + r * z * _horner(z, _SIN)) / (1 - (0.5 * z - z * z * _horner(z, _COS)))


@jax.custom_jvp
def log(x: jax.Array) -> jax.Array:
    """log x for x >= 2.3e-308, relative error below 2.2e-16 in float64 (1.2e-7 in float32); finite at 0.

    Written out so that the compiler vectorises it: ``jnp.log`` takes 2.7 ns, this 1.1 ns. The polynomial is that of
    fdlibm (Sun Microsystems).
    """
    if not is_single(x) and x.dtype != jnp.float64:
        return jnp.log(x)
    k, f = _split(x)
    return jnp.where(x < jnp.inf, _log_of(k, f), x)


log.defjvps(lambda dx, y, x: dx / x)


@jax.custom_jvp
def log1p(v: jax.Array) -> jax.Array:
    """log(1 + v) for v > -1, relative error below 4e-16 in float64; ``jnp.log1p`` of JAX 0.10 is off by 3e-14 on [-0.42, -0.3].

    2.2e-7 in float32.
    """
    if not is_single(v) and v.dtype != jnp.float64:
        return jnp.log1p(v)
    small = (v > -0.29) & (v < 0.41)
    k, f = _split(1 + v)
    return jnp.where(v < jnp.inf, _log_of(jnp.where(small, 0.0, k), jnp.where(small, v, f)), v)


log1p.defjvps(lambda dv, y, v: dv / (1 + v))


def _split(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(k, f) with x = 2^k (1 + f), 1 + f in [1 / sqrt 2, sqrt 2)."""
    if is_single(x):
        bits = lax.bitcast_convert_type(x, jnp.int32)
        k = (bits - np.int32(0x3F3504F3)) >> np.int32(23)
        return k.astype(x.dtype), lax.bitcast_convert_type(bits - (k << np.int32(23)), x.dtype) - 1
    bits = lax.bitcast_convert_type(x, jnp.int64)
    k = (bits - np.int64(0x3FE6A09E667F3BCD)) >> np.int64(52)
    return k.astype(x.dtype), lax.bitcast_convert_type(bits - (k << np.int64(52)), x.dtype) - 1


def _log_of(k: jax.Array, f: jax.Array) -> jax.Array:
    s = f / (2 + f)
    z = s * s
    half = 0.5 * f * f
    first, second = _LN2_SINGLE if is_single(f) else _LN2
    return k * first - ((half - (s * (half + z * _horner(z, _LOG)) + k * second)) - f)


def _scaled(x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """(k, 2^k, exp(r) - 1) with x = k log 2 + r, |r| <= log(2) / 2, in float32 for -88 < x < 88."""
    k = jnp.round(x * 1.44269504088896341)
    r = (x - k * _LN2_SINGLE[0]) - k * _LN2_SINGLE[1]
    power = lax.bitcast_convert_type((k.astype(jnp.int32) + np.int32(127)) << np.int32(23), x.dtype)
    return k, power, r + r * r * _horner(r, _EXPM1)


@jax.custom_jvp
def _exp_single(x: jax.Array) -> jax.Array:
    within = jnp.clip(x, -87.0, 88.0)
    _, power, rest = _scaled(within)
    y = power + power * rest
    return jnp.where(x < -87.0, 0.0, jnp.where(x > 88.0, jnp.inf, jnp.where(jnp.isnan(x), x, y)))


_exp_single.defjvps(lambda dx, y, x: dx * y)


@jax.custom_jvp
def _expm1_single(x: jax.Array) -> jax.Array:
    within = jnp.clip(x, -20.0, 88.0)
    _, power, rest = _scaled(within)
    y = (power - 1) + power * rest
    return jnp.where(x < -20.0, -1.0, jnp.where(x > 88.0, jnp.inf, jnp.where(jnp.isnan(x), x, y)))


_expm1_single.defjvps(lambda dx, y, x: dx * (y + 1))


def exp(x: jax.Array) -> jax.Array:
    """exp x: JAX's, in float32 with relative error below 1.2e-7; 0 below -87, infinite above 88."""
    return _exp_single(x) if is_single(x) else jnp.exp(x)


def expm1(x: jax.Array) -> jax.Array:
    """exp(x) - 1: JAX's, in float32 with relative error below 2.2e-7."""
    return _expm1_single(x) if is_single(x) else jnp.expm1(x)


def ln(x: jax.Array) -> jax.Array:
    """log x: JAX's, in float32 ``log`` where x > 0."""
    if not is_single(x):
        return jnp.log(x)
    positive = (x > 0) & (x < jnp.inf)
    return jnp.where(
        positive, log(jnp.where(positive, x, 1.0)), jnp.where(x == 0, -jnp.inf, jnp.where(x > 0, x, jnp.nan))
    )


def ln1p(x: jax.Array) -> jax.Array:
    """log(1 + x): JAX's, in float32 ``log1p`` where x > -1."""
    if not is_single(x):
        return jnp.log1p(x)
    above = x > -1
    return jnp.where(above, log1p(jnp.where(above, x, 0.0)), jnp.where(x == -1, -jnp.inf, jnp.nan))


def logaddexp(a: jax.Array, b: jax.Array) -> jax.Array:
    """log(exp a + exp b): JAX's, in float32 from the functions above."""
    if not (is_single(a) and is_single(b)):
        return jnp.logaddexp(a, b)
    high, low = jnp.maximum(a, b), jnp.minimum(a, b)
    same = high == low  # infinities too
    return jnp.where(same, high + np.log(2.0), high + log1p(_exp_single(jnp.where(same, 0.0, low - high))))


def expm1_minus(x: jax.Array) -> jax.Array:
    """e^x - 1 - x >= 0, with relative accuracy also for small x."""
    small = jnp.abs(x) < 0.7
    t = jnp.where(small, x, 0.0)
    series = jnp.full_like(t, 1.0)
    for n in range(17, 2, -1):  # 0.7^16 / 17! is below 1e-17
        series = 1 + series * t / n
    return jnp.where(small, 0.5 * t * t * series, expm1(x) - x)


def arctan2(y: jax.Array, x: jax.Array) -> jax.Array:
    """The angle of x + iy in [-pi, pi], 0 at the origin, relative error below 4e-16 in float64.

    Written out so that the compiler vectorises it: ``jnp.arctan2`` takes 13 ns, this 2 ns. The rational approximation is
    that of the Cephes library (S. Moshier), for |r| <= 0.66.
    """
    a, b = jnp.abs(y), jnp.abs(x)
    low, high = jnp.minimum(a, b), jnp.maximum(a, b)
    high = jnp.where(high > 0, high, 1.0)
    folded = low > 0.41421356237309503 * high
    r = jnp.where(folded, (low - high) / jnp.where(folded, low + high, 1.0), low / high)
    z = r * r
    angle = r + r * z * _horner(z, _ATAN_P) / _horner(z, _ATAN_Q)
    angle = jnp.where(folded, 0.25 * jnp.pi + angle, angle)
    angle = jnp.where(a > b, (0.5 * jnp.pi - angle) + 6.123233995736766e-17, angle)
    angle = jnp.where(x < 0, (jnp.pi - angle) + 1.2246467991473532e-16, angle)
    return jnp.where(y < 0, -angle, angle)


def log_ndtr(x: jax.Array) -> jax.Array:
    """log of the standard normal distribution function, relative error below 3e-13.

    ``jax.scipy.special.log_ndtr`` is wrong by up to 7% near x = 7.98.
    """
    low = x < -1
    tail = jnp.where(low, x, -1.0)
    body = jnp.where(low, 0.0, x)
    return jnp.where(
        low,
        -0.5 * tail * tail + jnp.log(0.5 * _erfcx_positive(-tail / SQRT2)),
        log1p(-0.5 * lax.erfc(body / SQRT2)),
    )


@jax.custom_jvp
def _erfcx_positive(x: jax.Array) -> jax.Array:
    """exp(x^2) erfc(x) for x >= 0.7; jax.scipy.special.erfcx of JAX 0.10 returns 0 on [26.544, 26.641]."""
    near = jnp.where(x < 5, x, 0.7)
    far = jnp.where(x < 5, 5.0, x)
    # Laplace's continued fraction, 30 levels: below 1e-16 for x >= 5.
    fraction = far
    for n in range(30, 0, -1):
        fraction = far + (0.5 * n) / fraction
    return jnp.where(x < 5, jnp.exp(near * near) * lax.erfc(near), 1 / (fraction * 1.7724538509055159))


@_erfcx_positive.defjvp
def _erfcx_positive_jvp(primals, tangents):
    (x,), (dx,) = primals, tangents
    y = _erfcx_positive(x)
    return y, (2 * x * y - 1.1283791670955126) * dx
