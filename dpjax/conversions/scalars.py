r"""Between parameters: zCDP, Renyi DP at one order, DP, probabilistic DP. All lose something; budgets invert them exactly.

Losses go up (``zcdp_to_dp``, ``rdp_to_dp``, ``dp_to_zcdp``, ``dp_to_pdp``), budgets go down (``zcdp_budget``,
``rdp_budget``). All functions work elementwise on arrays that broadcast, under jit, vmap and grad, in the caller's
float dtype; a concrete argument out of range raises ValueError, a traced one gives NaN.
"""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from dpjax import _validate
from dpjax._elementwise import check, nan_unless, reals

_METHODS = ("published", "tight")


def _check(**numbers: ArrayLike) -> None:
    for name, x in numbers.items():
        if name == "order":
            check(name, x, 1.0, math.inf, low_open=True, high_open=True)
        elif name == "slack":
            check(name, x, 0.0, 1.0, low_open=True, high_open=True)
        else:
            check(name, x, 0.0, 1.0 if name == "delta" else math.inf)


def _shift(x: jax.Array, scale: jax.Array, units: float) -> jax.Array:
    """``x`` moved by ``units`` roundoffs of ``scale``, without changing its derivative."""
    return x + lax.stop_gradient(jnp.abs(scale) * jnp.asarray(units * jnp.finfo(x.dtype).eps, x.dtype))


def zcdp_to_dp(rho: ArrayLike, slack: ArrayLike, method: str = "published") -> jax.Array:
    r"""The epsilon for which rho-zCDP implies (epsilon, slack)-DP.

    Args:
      rho: >= 0.
      slack: the delta of the conversion, in (0, 1).
      method: ``"published"`` is :math:`\rho + 2\sqrt{\rho\log(1/\delta)}` (Bun and Steinke; Lemma 1 of arXiv
        2203.05481). ``"tight"`` takes the best order of :math:`D_\alpha \le \alpha\rho` through ``rdp_to_dp``.

    Returns:
      epsilon, of the arguments' broadcast shape.

    Raises:
      ValueError: a concrete argument is out of range, or ``method`` is unknown.

    Guarantee:
      A delta'-approximate rho-zCDP mechanism is (epsilon, delta' + slack)-DP.

    Example:
      >>> print(f"{zcdp_to_dp(0.1, 1e-6):.4f} {zcdp_to_dp(0.1, 1e-6, method='tight'):.4f}")
      2.4508 2.1419
    """
    _check(rho=rho, slack=slack)
    _validate.one_of("method", method, _METHODS)
    return _zcdp_to_dp(*reals(rho, slack), method=method)


@functools.partial(jax.jit, static_argnames="method")
def _zcdp_to_dp(rho, slack, method):
    ok = (rho >= 0) & (slack > 0) & (slack < 1)
    rho_safe, log_inverse = jnp.where(ok, rho, 1.0), -jnp.log(jnp.where(ok, slack, 0.5))
    positive = rho_safe > 0
    root = jnp.where(positive, jnp.sqrt(jnp.where(positive, rho_safe, 1.0) * log_inverse), 0.0)
    simple = rho_safe + 2 * root
    simple = _shift(simple, simple, 8.0)
    if method == "tight":

        def value(log_excess, rho, log_inverse):
            excess = jnp.exp(log_excess)
            gain = _gain(excess, log_inverse)
            return _shift((1 + excess) * rho + gain, (1 + excess) * rho + jnp.abs(gain) + log_inverse / excess, 8.0)

        start = jnp.log(log_inverse / jnp.where(positive, rho_safe, 1e-3)) / 2
        best = _minimise(lambda t: value(t, lax.stop_gradient(rho_safe), lax.stop_gradient(log_inverse)), start)
        tight = jnp.maximum(value(best, rho_safe, log_inverse), 0.0)
        simple = jnp.where(positive & (tight < simple), tight, simple)
    return nan_unless(ok, simple, rho, slack)


def _gain(excess: jax.Array, log_inverse: jax.Array) -> jax.Array:
    r""":math:`\log(1-1/\alpha) - \log(\alpha\delta)/(\alpha-1)` with :math:`\alpha - 1` = ``excess``."""
    return -jnp.log1p(1 / excess) + (log_inverse - jnp.log1p(excess)) / excess


def _minimise(objective, start: jax.Array) -> jax.Array:
    """A point near the minimum, elementwise; the caller's value is valid at every point."""
    grid = jnp.asarray(np.linspace(-1.0, 1.0, 17), start.dtype).reshape((-1,) + (1,) * start.ndim)
    centre = lax.stop_gradient(start)
    for width in (3.0, 0.5, 0.08, 0.013, 2e-3):
        points = centre[None] + width * grid
        best = jnp.argmin(objective(points), axis=0)
        centre = jnp.take_along_axis(points, best[None], axis=0)[0]
    return lax.stop_gradient(centre)


def zcdp_budget(epsilon: ArrayLike, slack: ArrayLike, method: str = "published") -> jax.Array:
    r"""The largest rho for which rho-zCDP is known to imply (epsilon, slack)-DP: the inverse of ``zcdp_to_dp``.

    Args:
      epsilon: >= 0.
      slack: the delta of the conversion, in (0, 1).
      method: as in ``zcdp_to_dp``.

    Returns:
      rho, of the arguments' broadcast shape, rounded down.

    Raises:
      ValueError: a concrete argument is out of range, or ``method`` is unknown.

    Example:
      >>> print(f"{zcdp_budget(1.0, 1e-6):.6f} {zcdp_budget(1.0, 1e-6, method='tight'):.6f}")
      0.017469 0.024356
    """
    _check(epsilon=epsilon, slack=slack)
    _validate.one_of("method", method, _METHODS)
    return _zcdp_budget(*reals(epsilon, slack), method=method)


@functools.partial(jax.jit, static_argnames="method")
def _zcdp_budget(epsilon, slack, method):
    ok = (epsilon >= 0) & (slack > 0) & (slack < 1)
    safe, log_inverse = jnp.where(ok, epsilon, 1.0), -jnp.log(jnp.where(ok, slack, 0.5))
    root = safe / (jnp.sqrt(log_inverse) + jnp.sqrt(log_inverse + safe))  # sqrt(rho) = sqrt(l + epsilon) - sqrt(l)
    rho = root * root
    rho = _shift(rho, rho, -8.0)
    if method == "tight":

        def value(log_excess, epsilon, log_inverse):
            excess = jnp.exp(log_excess)
            gain = _gain(excess, log_inverse)
            size = epsilon + jnp.abs(gain) + log_inverse / excess
            return _shift(epsilon - gain, size, -8.0) / (1 + excess)

        start = jnp.log(log_inverse / jnp.where(rho > 0, rho, 1e-3)) / 2
        best = _minimise(lambda t: -value(t, lax.stop_gradient(safe), lax.stop_gradient(log_inverse)), start)
        tight = value(best, safe, log_inverse)
        rho = jnp.where((safe > 0) & (tight > rho), _shift(tight, tight, -4.0), rho)
    return nan_unless(ok, jnp.where(epsilon < jnp.inf, rho, jnp.inf), epsilon, slack)


def rdp_to_dp(order: ArrayLike, renyi: ArrayLike, slack: ArrayLike) -> jax.Array:
    r"""The epsilon for which (order, renyi)-RDP implies (epsilon, slack)-DP, at this one order.

    :math:`\epsilon = \rho + \log(1 - \frac1\alpha) - \frac{\log(\alpha\delta)}{\alpha - 1}`, not below 0 (Canonne,
    Kamath, Steinke 2020).

    Args:
      order: > 1.
      renyi: the divergence at that order, >= 0.
      slack: the delta of the conversion, in (0, 1).

    Returns:
      epsilon, of the arguments' broadcast shape.

    Raises:
      ValueError: a concrete argument is out of range.

    Example:
      >>> print(f"{rdp_to_dp(10.0, 0.5, 1e-6):.4f}")
      1.6738
    """
    _check(order=order, renyi=renyi, slack=slack)
    return _rdp_to_dp(*reals(order, renyi, slack))


@jax.jit
def _rdp_to_dp(order, renyi, slack):
    ok = (order > 1) & (order < jnp.inf) & (renyi >= 0) & (slack > 0) & (slack < 1)
    excess = jnp.where(ok, order, 2.0) - 1
    log_inverse = -jnp.log(jnp.where(ok, slack, 0.5))
    gain = _gain(excess, log_inverse)
    value = _shift(renyi + gain, renyi + jnp.log1p(1 / excess) + (log_inverse + jnp.log1p(excess)) / excess, 8.0)
    return nan_unless(ok, jnp.maximum(value, 0.0), order, renyi, slack)


def rdp_budget(order: ArrayLike, epsilon: ArrayLike, slack: ArrayLike) -> jax.Array:
    """The largest Renyi divergence of this order that implies (epsilon, slack)-DP; negative if none does.

    Args:
      order: > 1.
      epsilon: >= 0.
      slack: the delta of the conversion, in (0, 1).

    Returns:
      The divergence, of the arguments' broadcast shape, rounded down: the inverse of ``rdp_to_dp``.

    Raises:
      ValueError: a concrete argument is out of range.

    Example:
      >>> print(f"{rdp_budget(10.0, 1.6738, 1e-6):.3f}")
      0.500
    """
    _check(order=order, epsilon=epsilon, slack=slack)
    return _rdp_budget(*reals(order, epsilon, slack))


@jax.jit
def _rdp_budget(order, epsilon, slack):
    ok = (order > 1) & (order < jnp.inf) & (epsilon >= 0) & (slack > 0) & (slack < 1)
    excess = jnp.where(ok, order, 2.0) - 1
    log_inverse = -jnp.log(jnp.where(ok, slack, 0.5))
    size = epsilon + jnp.log1p(1 / excess) + (log_inverse + jnp.log1p(excess)) / excess
    budget = _shift(epsilon - _gain(excess, log_inverse), size, -8.0)
    return nan_unless(ok, jnp.where(epsilon < jnp.inf, budget, jnp.inf), order, epsilon, slack)


def dp_to_zcdp(epsilon: ArrayLike, method: str = "published") -> jax.Array:
    r"""The rho for which (epsilon, delta)-DP implies delta-approximate rho-zCDP, whatever delta.

    Args:
      epsilon: >= 0.
      method: ``"published"`` is :math:`\frac12\epsilon^2` (Lemma 1 of arXiv 2203.05481); ``"tight"`` is
        :math:`\epsilon\tanh(\epsilon/2)`, the Kullback-Leibler divergence of randomised response, which is the least
        value possible.

    Returns:
      rho, of ``epsilon``'s shape.

    Raises:
      ValueError: ``epsilon`` is concrete and negative, or ``method`` is unknown.

    Example:
      >>> print(f"{dp_to_zcdp(2.0):.4f} {dp_to_zcdp(2.0, method='tight'):.4f}")
      2.0000 1.5232
    """
    _check(epsilon=epsilon)
    _validate.one_of("method", method, _METHODS)
    return _dp_to_zcdp(*reals(epsilon), method=method)


@functools.partial(jax.jit, static_argnames="method")
def _dp_to_zcdp(epsilon, method):
    rho = epsilon * epsilon / 2 if method == "published" else epsilon * jnp.tanh(epsilon / 2)
    return nan_unless(epsilon >= 0, _shift(rho, rho, 4.0), epsilon)


def dp_to_pdp(epsilon: ArrayLike, delta: ArrayLike) -> tuple[jax.Array, jax.Array]:
    r"""Probabilistic DP from DP: (epsilon, delta)-DP implies :math:`(2\epsilon, \frac{2\delta}{1-e^{-\epsilon}})`-pDP.

    pDP, which the odometers need, says that the loss is within :math:`\pm\epsilon` with probability
    :math:`1 - \delta`; it implies DP with the same parameters, but DP does not imply it: for plain
    :math:`(\epsilon, \delta)`-randomised response whose two failure symbols are merged with the answers,
    :math:`P(L > \epsilon)` is near 1 (Appendix F of arXiv 2203.05481).

    The circulated text of Lemma 2 there has :math:`\frac{2\delta}{\epsilon e^\epsilon}`, which is false for
    :math:`\epsilon > 0.468`: the one-sided :math:`P(L > 2\epsilon) \le \frac\delta{1-e^{-\epsilon}}` is attained.

    Args:
      epsilon: >= 0; at 0 the second value is 1.
      delta: in [0, 1].

    Returns:
      The pDP parameters (epsilon, delta), the latter not above 1.

    Raises:
      ValueError: a concrete argument is out of range.

    Example:
      >>> epsilon, delta = dp_to_pdp(1.0, 1e-6)
      >>> print(f"{epsilon:.1f} {delta:.3e}")
      2.0 3.164e-06
    """
    _check(epsilon=epsilon, delta=delta)
    return _dp_to_pdp(*reals(epsilon, delta))


@jax.jit
def _dp_to_pdp(epsilon, delta):
    ok = (epsilon >= 0) & (delta >= 0) & (delta <= 1)
    positive = ok & (epsilon > 0)
    value = 2 * delta / -jnp.expm1(-jnp.where(positive, epsilon, 1.0))
    value = jnp.where(positive, jnp.minimum(_shift(value, value, 4.0), 1.0), jnp.where(delta > 0, 1.0, 0.0))
    return nan_unless(ok, 2 * epsilon, epsilon, delta), nan_unless(ok, value, epsilon, delta)


def one_sided_pdp_to_pdp(epsilon: ArrayLike, delta: ArrayLike) -> tuple[jax.Array, jax.Array]:
    r"""Two-sided pDP from the one-sided kind, :math:`P(L > \epsilon) \le \delta` in both orders of the neighbours.

    :math:`P(L < -\epsilon) \le e^{-\epsilon} Q(L < -\epsilon) \le e^{-\epsilon}\delta`, so the two-sided delta is
    :math:`\delta(1 + e^{-\epsilon})`.

    Args:
      epsilon: >= 0.
      delta: in [0, 1].

    Returns:
      The two-sided pDP parameters (epsilon, delta), the latter not above 1.

    Raises:
      ValueError: a concrete argument is out of range.

    Example:
      >>> print(f"{one_sided_pdp_to_pdp(1.0, 1e-6)[1]:.3e}")
      1.368e-06
    """
    _check(epsilon=epsilon, delta=delta)
    return _one_sided_pdp_to_pdp(*reals(epsilon, delta))


@jax.jit
def _one_sided_pdp_to_pdp(epsilon, delta):
    ok = (epsilon >= 0) & (delta >= 0) & (delta <= 1)
    value = delta * (1 + jnp.exp(-epsilon))
    value = jnp.minimum(_shift(value, value, 4.0), 1.0)
    return nan_unless(ok, epsilon, epsilon, delta), nan_unless(ok, value, epsilon, delta)
