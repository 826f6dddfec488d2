"""Bounds on the adaptive composition of bounded-range mechanisms that need no recursion: KL, MGF, Durfee and Rogers 2019.

A kernel returns its bound twice: as the answer, and as the estimate that carries the derivative.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from dpjax._two_point import arguments, moments
from dpjax._two_point.moments import as_log, log_kernel, log_mgf, log_mgf_prime, log_sinhc, log_sinhc_prime
from dpjax._two_point.window import ULP


def _weights(eps, count):
    return jnp.ones_like(eps) * count


def _kl_lane(log_delta, eps, count):
    weights = _weights(eps, count)
    # The largest mean loss is the derivative of log_mgf at lam = 0; it is attained at t = log((e^eps - 1) / eps).
    drift = jnp.sum(weights * (log_sinhc(eps) + eps * log_sinhc_prime(eps)))
    square = jnp.sum(weights * eps * eps)
    spread = jnp.where(square > 0, jnp.sqrt(jnp.where(square > 0, -log_delta * square / 2, 1.0)), 0.0)
    return (drift + spread) * (1 + 64 * ULP)


def _kl_kernel(is_log, query, eps, count):
    return (jax.vmap(_kl_lane)(as_log(is_log, query), eps, count),) * 2


def _mgf_lane(sharp, log_delta, eps, count):
    weights = _weights(eps, count)
    some = jnp.sum(weights * eps) > 0
    safe = jnp.where(some, eps, 1.0)
    weights = jnp.where(some, weights, 1.0)
    held = lax.stop_gradient((log_delta, safe))
    spends = lambda lam: (jnp.sum(weights * f(held[1], lam)) for f in (log_mgf, log_mgf_prime))
    lam = moments.markov_tilt(held[0], spends, jnp.max(jnp.where(weights > 0, held[1], 0.0)), sharp)

    def slope(lam, log_delta, eps):
        rise = jnp.sum(weights * (lam * log_mgf_prime(eps, lam) - log_mgf(eps, lam)))
        return rise + (jnp.log1p(lam) if sharp else 0.0) + log_delta

    bend = lax.stop_gradient(jax.grad(slope)(lam, log_delta, safe))
    # One Newton step that is zero in value: the minimiser moves with the arguments, so that second derivatives are right.
    step = slope(lam, log_delta, safe) / jnp.where(bend > 0, bend, 1.0)
    moving = lam - jnp.where(bend > 0, step - lax.stop_gradient(step), 0.0)
    spent = jnp.sum(weights * log_mgf(safe, moving))
    value = (spent + (log_kernel(moving) if sharp else 0.0) - log_delta) / moving
    sizes = jnp.sum(weights * ((lam + 1) * log_sinhc((lam + 1) * safe) * 2 + log_sinhc(safe)))
    error = ULP * (16 * sizes + 16 * jnp.abs(log_delta) + 16 * (lam + 1)) / lam
    return jnp.where(some, jnp.maximum(value + lax.stop_gradient(error), 0.0), 0.0)


def _mgf_kernel(static, query, eps, count):
    is_log, sharp = static
    return (jax.vmap(functools.partial(_mgf_lane, sharp))(as_log(is_log, query), eps, count),) * 2


def _dr19_lane(log_delta, eps, count):
    weights = _weights(eps, count)
    total, square = jnp.sum(weights * eps), jnp.sum(weights * eps * eps)
    some = square > 0
    root = jnp.where(some, jnp.sqrt(jnp.where(some, -log_delta * square, 1.0)), 0.0)
    basic = total
    pure = jnp.sum(weights * eps * jnp.tanh(eps / 2)) + jnp.sqrt(2.0) * root
    ranged = square / 2 + root / jnp.sqrt(2.0)
    return jnp.minimum(basic, jnp.minimum(pure, ranged)) * (1 + 64 * ULP)


def _dr19_kernel(is_log, query, eps, count):
    return (jax.vmap(_dr19_lane)(as_log(is_log, query), eps, count),) * 2


def _bound(kernel, static, delta, epsilons, count, log_delta):
    arguments.check_mechanisms(epsilons, count)
    is_log, query = arguments.probability("delta", delta, "log_delta", log_delta)
    size = arguments.mechanisms(epsilons, count)
    lanes = arguments.Lanes(query, "delta", epsilons, count, size)
    eps = lanes.epsilons[:, None] if size.equal else lanes.epsilons
    counts = lanes.counts if size.equal else np.ones(lanes.counts.shape)
    upper, _ = arguments.run(kernel, static(is_log), lanes.query, eps, counts, rounding=("up", "up"))
    return lanes.finish(upper, upper, upper, *lanes.usable(is_log)).upper


def kl_bound(
    delta: ArrayLike | None = None, epsilons: Any = None, *, log_delta: ArrayLike | None = None, count: Any = 1
) -> Any:
    """An epsilon for adaptive composition from the largest mean loss and Hoeffding's inequality.

    sum_i [x_i - 1 - log x_i] + sqrt(log(1/delta) sum_i eps_i^2 / 2), x_i = eps_i / (e^eps_i - 1).

    Args:
      delta: in (0, 1], or ``log_delta`` instead.
      epsilons, count: as in :func:`epsilon`.

    Returns:
      The bound, rounded up; infinite for delta = 0.

    Guarantee:
      The composition is (bound, delta)-DP: Corollary 3.1 of arXiv 1909.13830.

    Raises:
      ValueError: a concrete argument is out of range. Traced ones out of range give NaN.

    Example:
      >>> print(f"{kl_bound(1e-6, 0.1, count=100):.4f}")
      2.7532
    """
    return _bound(_kl_kernel, bool, delta, epsilons, count, log_delta)


def mgf_bound(
    delta: ArrayLike | None = None,
    epsilons: Any = None,
    *,
    log_delta: ArrayLike | None = None,
    count: Any = 1,
    sharp: bool = True,
) -> Any:
    """An epsilon for adaptive composition from the largest moment generating functions.

    inf over lam > 0 of [sum_i kappa_i(lam) + c(lam) + log(1/delta)] / lam with kappa_i(lam) = sup_t log E exp(lam L).

    Args:
      delta: in (0, 1], or ``log_delta`` instead.
      epsilons, count: as in :func:`epsilon`.
      sharp: c(lam) = lam log lam - (1 + lam) log(1 + lam) from the hockey-stick kernel; with False c = 0, which is
        Markov's inequality for the tail of the loss, the form of the paper.

    Returns:
      The bound, rounded up.

    Guarantee:
      The composition is (bound, delta)-DP: Theorem 5 of arXiv 1909.13830; the sharp form by E(1 - e^(x - L))_+ <=
      e^(c(lam) - lam x) E e^(lam L).

    Raises:
      ValueError: a concrete argument is out of range. Traced ones out of range give NaN.

    Example:
      >>> print(f"{mgf_bound(1e-6, 0.1, count=100):.4f} {mgf_bound(1e-6, 0.1, count=100, sharp=False):.4f}")
      2.4002 2.7286
    """
    return _bound(_mgf_kernel, lambda is_log: (is_log, bool(sharp)), delta, epsilons, count, log_delta)


def dr19_bound(
    delta: ArrayLike | None = None, epsilons: Any = None, *, log_delta: ArrayLike | None = None, count: Any = 1
) -> Any:
    """The bound of Durfee & Rogers (2019): the least of basic, advanced, and bounded-range composition.

    min of sum eps, sum eps tanh(eps/2) + sqrt(2 log(1/delta) sum eps^2), sum eps^2 / 2 + sqrt(log(1/delta) sum eps^2 / 2).

    Args:
      delta: in (0, 1], or ``log_delta`` instead.
      epsilons, count: as in :func:`epsilon`.

    Returns:
      The bound, rounded up.

    Guarantee:
      The composition is (bound, delta)-DP: Durfee & Rogers, "Practical differentially private top-k selection with
      pay-what-you-get composition", 2019.

    Raises:
      ValueError: a concrete argument is out of range. Traced ones out of range give NaN.

    Example:
      >>> print(f"{dr19_bound(1e-6, 0.1, count=100):.4f}")
      3.1283
    """
    return _bound(_dr19_kernel, bool, delta, epsilons, count, log_delta)
