"""Moment generating functions of the loss, log E exp(lam L): the largest over t, and what Markov's inequality makes of it."""

from __future__ import annotations

import math

import jax.numpy as jnp
from jax import lax

_SERIES = tuple(1 / math.factorial(2 * n + 1) for n in range(1, 14))  # of sinh(x) / x - 1 in x^2; enough up to x = 2


def _near(y):
    """(sinh(x) / x - 1, its derivative in x) by a series of positive terms, x = y/2 < 2."""
    x = y / 2
    value, slope = jnp.zeros_like(x), jnp.zeros_like(x)
    for n in range(len(_SERIES), 0, -1):
        value = _SERIES[n - 1] + x * x * value
        slope = 2 * n * _SERIES[n - 1] + x * x * slope
    return x * x * value, x * slope


def log_sinhc(y):
    """log(sinh(y/2) / (y/2)) for y >= 0, to a few ULP of itself."""
    small = y < 4
    yl = jnp.where(small, 4.0, y)
    return jnp.where(
        small, jnp.log1p(_near(jnp.where(small, y, 0.0))[0]), yl / 2 + jnp.log1p(-jnp.exp(-yl)) - jnp.log(yl)
    )


def log_sinhc_prime(y):
    """The derivative of log_sinhc, coth(y/2)/2 - 1/y, to a few ULP of itself."""
    small = y < 4
    value, slope = _near(jnp.where(small, y, 0.0))
    yl = jnp.where(small, 4.0, y)
    return jnp.where(small, slope / (2 * (1 + value)), 0.5 / jnp.tanh(yl / 2) - 1 / yl)


def log_mgf(eps, lam):
    """sup_t log E exp(lam L) for one eps-bounded-range mechanism, lam > 0.

    The supremum is attained at t = eps/2 + s((lam+1) eps) - s(lam eps), s = log_sinhc, and equals
    (lam+1) s((lam+1) eps) - lam s(lam eps) - s(eps): the closed form of the paper's Theorem 5 without its
    exponentials, which overflow, and without their cancellation for small eps.
    """
    return (lam + 1) * log_sinhc((lam + 1) * eps) - lam * log_sinhc(lam * eps) - log_sinhc(eps)


def log_mgf_prime(eps, lam):
    """The derivative of log_mgf in lam: the mean loss under the tilted law."""
    a, b = (lam + 1) * eps, lam * eps
    return log_sinhc(a) + a * log_sinhc_prime(a) - log_sinhc(b) - b * log_sinhc_prime(b)


def worst_t(eps, lam):
    """The t at which log_mgf is attained."""
    return eps / 2 + log_sinhc((lam + 1) * eps) - log_sinhc(lam * eps)


def log_kernel(lam):
    """log sup_y (1 - e^-y)_+ e^(-lam y) = lam log lam - (1 + lam) log(1 + lam)."""
    return -lam * jnp.log1p(1 / lam) - jnp.log1p(lam)


def pair(eps, t):
    """(q, 1 - q): probabilities of the losses t and t - eps."""
    scale = -jnp.expm1(-eps)
    return -jnp.expm1(t - eps) / scale, -jnp.expm1(-t) * jnp.exp(t - eps) / scale


def log_moment(eps, t, lam):
    """log E exp(lam L) of the pair RR_{eps,t}."""
    up, down = pair(eps, t)
    return lam * t + jnp.log(up + down * jnp.exp(-lam * eps))


def mean_loss(eps, t, lam):
    """The derivative of log_moment in lam."""
    up, down = pair(eps, t)
    back = down * jnp.exp(-lam * eps)
    return t - eps * back / (up + back)


def saddle(x, mean, largest, sweeps: int = 60):
    """The lam that minimises log E exp(lam L) - lam x + log_kernel(lam), by bisection on log lam.

    Args:
      x: the threshold, a scalar.
      mean: lam -> the derivative of log E exp(lam L).
      largest: of the epsilons.
    """
    high = jnp.log(300.0 / jnp.where(largest > 0, largest, 1.0))
    low = jnp.minimum(math.log(1e-4), high - 1.0)

    def halve(_, ends):
        low, high = ends
        mid = (low + high) / 2
        lam = jnp.exp(mid)
        rising = mean(lam) - x - jnp.log1p(1 / lam) >= 0
        return jnp.where(rising, low, mid), jnp.where(rising, mid, high)

    return jnp.exp(sum(lax.fori_loop(0, sweeps, halve, (low, high))) / 2)


def markov_tilt(log_delta, spent, largest, sharp: bool, sweeps: int = 60):
    """The lam with the least (log E exp(lam L) + c(lam) - log_delta) / lam; c = 0 unless sharp.

    Args:
      log_delta: a scalar.
      spent: lam -> log E exp(lam L) and its derivative.
      largest: of the epsilons.
      sharp: with c(lam) = log_kernel(lam).
    """
    low = jnp.asarray(math.log(1e-8))
    high = jnp.log(1e4 / jnp.where(largest > 0, largest, 1.0))

    def halve(_, ends):
        low, high = ends
        mid = (low + high) / 2
        lam = jnp.exp(mid)
        moment, mean = spent(lam)
        extra = jnp.log1p(lam) if sharp else 0.0  # lam c' - c = log(1 + lam)
        falling = lam * mean - moment + extra + log_delta < 0
        return jnp.where(falling, mid, low), jnp.where(falling, high, mid)

    return jnp.exp(sum(lax.fori_loop(0, sweeps, halve, (low, high))) / 2)


def as_log(is_log: bool, delta):
    """log delta from delta, in this precision; NaN outside [0, 1], -inf at 0. With ``is_log`` it is one already."""
    if is_log:
        return delta
    inside = delta > 0
    return jnp.where(inside, jnp.log(jnp.where(inside, delta, 1.0)), jnp.where(delta == 0, -jnp.inf, jnp.nan))
