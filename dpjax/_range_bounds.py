"""Kernels: bounds on the adaptive composition of bounded-range mechanisms that need no recursion. Each returns its bound twice."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax import lax

from dpjax import _range_recursion as recursion
from dpjax._range_optimum import markov_epsilon

ULP = 2.0**-53


def _weights(eps, count):
    return jnp.ones_like(eps) * count


def _kl_lane(log_delta, eps, count):
    weights = _weights(eps, count)
    # The largest mean loss is the derivative of log_mgf at lam = 0; it is attained at t = log((e^eps - 1) / eps).
    drift = jnp.sum(weights * (recursion.log_sinhc(eps) + eps * recursion.log_sinhc_prime(eps)))
    square = jnp.sum(weights * eps * eps)
    spread = jnp.where(square > 0, jnp.sqrt(jnp.where(square > 0, -log_delta * square / 2, 1.0)), 0.0)
    return (drift + spread) * (1 + 64 * ULP)


def kl_kernel(static, log_delta, eps, count):
    """Corollary 3.1."""
    del static
    return (jax.vmap(_kl_lane)(log_delta, eps, count),) * 2


def _mgf_lane(sharp, log_delta, eps, count):
    weights = _weights(eps, count)
    some = jnp.sum(weights * eps) > 0
    safe = jnp.where(some, eps, 1.0)
    weights = jnp.where(some, weights, 1.0)
    lam = markov_epsilon(*lax.stop_gradient((log_delta, safe, weights)), sharp)

    def slope(lam, log_delta, eps):
        rise = jnp.sum(weights * (lam * recursion.log_mgf_prime(eps, lam) - recursion.log_mgf(eps, lam)))
        return rise + (jnp.log1p(lam) if sharp else 0.0) + log_delta

    bend = lax.stop_gradient(jax.grad(slope)(lam, log_delta, safe))
    # One Newton step that is zero in value: the minimiser moves with the arguments, so that second derivatives are right.
    step = slope(lam, log_delta, safe) / jnp.where(bend > 0, bend, 1.0)
    moving = lam - jnp.where(bend > 0, step - lax.stop_gradient(step), 0.0)
    spent = jnp.sum(weights * recursion.log_mgf(safe, moving))
    value = (spent + (recursion.log_kernel(moving) if sharp else 0.0) - log_delta) / moving
    sizes = jnp.sum(weights * ((lam + 1) * recursion.log_sinhc((lam + 1) * safe) * 2 + recursion.log_sinhc(safe)))
    error = ULP * (16 * sizes + 16 * jnp.abs(log_delta) + 16 * (lam + 1)) / lam
    return jnp.where(some, jnp.maximum(value + lax.stop_gradient(error), 0.0), 0.0)


def mgf_kernel(sharp, log_delta, eps, count):
    """Theorem 5, with the plain or the sharp conversion."""
    return (jax.vmap(functools.partial(_mgf_lane, sharp))(log_delta, eps, count),) * 2


def _dr19_lane(log_delta, eps, count):
    weights = _weights(eps, count)
    total, square = jnp.sum(weights * eps), jnp.sum(weights * eps * eps)
    some = square > 0
    root = jnp.where(some, jnp.sqrt(jnp.where(some, -log_delta * square, 1.0)), 0.0)
    basic = total
    pure = jnp.sum(weights * eps * jnp.tanh(eps / 2)) + jnp.sqrt(2.0) * root
    ranged = square / 2 + root / jnp.sqrt(2.0)
    return jnp.minimum(basic, jnp.minimum(pure, ranged)) * (1 + 64 * ULP)


def dr19_kernel(static, log_delta, eps, count):
    """Durfee and Rogers 2019."""
    del static
    return (jax.vmap(_dr19_lane)(log_delta, eps, count),) * 2
