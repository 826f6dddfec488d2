"""Engine: exact formulas. The composed Gaussian, and one step of the Poisson-sampled Gaussian.

Everything is built from the profile of one Gaussian, delta_G(e; mu) = Phi(-a) - exp(e) Phi(-b), a = e / mu - mu / 2,
b = a + mu, written with Mills' ratio m(x) = Phi(-x) / phi(x) = int_0^inf exp(-x t - t^2 / 2) dt as

    delta_G = phi(a) (m(a) - m(b)) = phi(a) int_0^inf exp(-a t - t^2 / 2) (1 - exp(-mu t)) dt,

which has no cancellation. A sampled step, for e >= 0 (q the sampling probability), is a positive sum of such profiles:

    remove       q delta_G(log(1 + (exp(e) - 1) / q); mu)
    add          c delta_G(log(1 + (exp(e) - 1) / c); mu),  c = q - (1 - q) (exp(e) - 1); 0 where c <= 0
    replace-one  q ((1 - l) delta_G(w - mu^2 / 2; mu) + l delta_G(2 w; 2 mu)),  l = exp(e - 2 w),
                 w = e / 2 + asinh((1 - q) / q exp(mu^2 / 2) sinh(e / 2)), where the loss crosses e at x = sigma^2 w

The first two also hold for e < 0 (remove: 1 - exp(e) where exp(e) <= 1 - q). A pair that is its own reverse (Gaussian,
replace-one) has delta(-e) = 1 - exp(-e) + exp(-e) delta(e). Sources: Balle and Wang (arXiv 1805.06530), Theorem 8; Zhu,
Dong and Wang (arXiv 2106.08567), Theorem 11. In replace-one the coefficients at the crossing satisfy
q exp(w - mu^2 / 2) = (1 - q) (exp(e) - 1) + q exp(e - w - mu^2 / 2), which turns its three tails into the sum above.

Rounding. A computed log delta is the exact one with e moved by at most _ULPS ulp of |e| + mu^2 (add: c by _ULPS ulp of
q + (1 - q) |exp(e) - 1|), plus _ULPS (1 + |log delta|) ulp. The lower and upper ends are the formula moved by that much
either way; tests/test_closed_form.py measures a third of it at most.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from dpjax._plan import Problem
from dpjax._special import LOG_2PI, log1p

_ULPS = 16.0
_UNIT = 2.0**-53
# exp(-a t - t^2 / 2) is below exp(-45) of its start at the cut. 48 Gauss-Legendre nodes on [0, 1]: error below 1e-18;
# NumPy's weights are off by up to 1e-12.
_CUT = 45.0
_NODES = (  # the lower half; the upper is its mirror
    0.0006144963737869407, 0.003234913866824621, 0.007937708138586571, 0.014704203726876374, 0.02350614841978457,
    0.034306654646722834, 0.04706043164221516, 0.06171398986287606, 0.07820586918780323, 0.09646689798527869,
    0.11642048374212983, 0.13798293453809268, 0.16106381018366805, 0.1855663016117432, 0.21138763695801366,
    0.23841951263888347, 0.2665485476245208, 0.2956567590046416, 0.32562205685391965, 0.3563187563222722,
    0.38761810480265546, 0.41938882196555416, 0.4514976503952686, 0.4838099145185653,
)
_WEIGHTS = (
    0.0015766730261529192, 0.0036637769506381312, 0.00573861728961727, 0.007789657861471924, 0.009808080228677764,
    0.01178538041966219, 0.013713254854178474, 0.015583613916399045, 0.01738861128238522, 0.019120675532915354,
    0.020772541471732374, 0.02233728042834714, 0.02380832924624524, 0.025179517776927236, 0.026445094742596834,
    0.027599751849992082, 0.028638646050201607, 0.029557419849197818, 0.03035221958294694, 0.031019711579946332,
    0.03155709614312701, 0.03196211929232409, 0.032233082217975044, 0.03236884840634196,
)
_LEAST, _MOST = 1e-290, 1e290  # variances outside are 0 and infinite


class Single(NamedTuple):
    """One sampled Gaussian step or a Gaussian, (lanes,) each.

    Attributes:
      variance: mu^2, of a record's full move: 1 / sigma^2 (replace-one too).
      q: sampling probability; 1 for a Gaussian.
      add, replace: booleans; a lane with neither is remove, or a Gaussian.
    """

    variance: jax.Array
    q: jax.Array
    add: jax.Array
    replace: jax.Array


def _laplace(x: jax.Array, step: jax.Array | None = None) -> jax.Array:
    """log of int_0^inf exp(-x t - t^2 / 2) [1 - exp(-step t) where step > 0] dt for x >= -1, step <= max(1, x)."""
    end = lax.stop_gradient(2 * _CUT / (x + jnp.sqrt(x * x + 2 * _CUT)))  # the integral does not depend on it
    lower = jnp.asarray(_NODES, x.dtype)
    nodes = jnp.concatenate([lower, 1 - lower[::-1]])
    weights = jnp.asarray(_WEIGHTS + _WEIGHTS[::-1], x.dtype)
    t = end[..., None] * nodes
    terms = weights * jnp.exp(-x[..., None] * t - 0.5 * t * t)
    if step is not None:
        step = step[..., None]
        terms = terms * jnp.where(step > 0, -jnp.expm1(-step * t), 1.0)
    return jnp.log(end) + jnp.log(jnp.sum(terms, -1))


def _log_tail(x: jax.Array) -> jax.Array:
    """log Phi(-x) for x >= 0."""
    return _laplace(x) - 0.5 * x * x - 0.5 * LOG_2PI


def _log_one_minus_exp(x: jax.Array) -> jax.Array:
    """log(1 - e^x) for x < 0."""
    near = x > -0.7
    return jnp.where(near, jnp.log(-jnp.expm1(jnp.where(near, x, -0.5))), jnp.log1p(-jnp.exp(jnp.where(near, -1.0, x))))


def _reflect(epsilon: jax.Array, log_delta: jax.Array) -> jax.Array:
    """log(1 - e^epsilon + e^epsilon delta) for epsilon < 0: the profile at epsilon from that at -epsilon."""
    near = epsilon > -0.7
    e, d = jnp.where(near, epsilon, -0.5), jnp.where(near, log_delta, -1.0)
    close = jnp.log(-jnp.expm1(e) + jnp.exp(e + d))
    e, d = jnp.where(near, -1.0, epsilon), jnp.where(near, -1.0, log_delta)
    return jnp.where(near, close, jnp.log1p(jnp.exp(e) * jnp.expm1(d)))


def log_delta_gaussian(epsilon: jax.Array, variance: jax.Array) -> jax.Array:
    """log delta of a Gaussian (or of any composition of Gaussians) at epsilon.

    Args:
      epsilon: any shape, any real number or infinite.
      variance: same shape; mu^2, the variance of the privacy loss: the sum of (sensitivity / noise)^2. 0 and inf are
        legal.

    Returns:
      log delta, same shape; -inf where delta is 0. Relative error of delta: a few ulp of 1 + |log delta| and of what
      an ulp of epsilon or of variance does. Twice differentiable.

    >>> import jax
    >>> with jax.enable_x64(True):
    ...     print(f"{log_delta_gaussian(jnp.array([1.0, 200.0]), jnp.array([1.0, 1.0]))[1]:.6f}")
    -19911.640642
    """
    none, all_ = variance < _LEAST, variance > _MOST
    ends = none | all_ | ~jnp.isfinite(epsilon)
    v = jnp.where(ends, 1.0, variance)
    given = jnp.where(ends, 1.0, epsilon)
    negative = given < 0
    e = jnp.where(negative, -given, given)

    mu = jnp.sqrt(v)
    a = jnp.minimum((e - 0.5 * v) / mu, 1e150)
    b = jnp.minimum((e + 0.5 * v) / mu, 1e150)
    # The integral where 1 - exp(-mu t) is smooth on its scale; elsewhere m(a) and m(b) differ enough to subtract.
    merged = mu <= jnp.maximum(1.0, a)
    left = a < 0
    first = _laplace(jnp.where(merged | ~left, a, -a), jnp.where(merged, mu, 0.0))
    second = _laplace(b)
    log_phi = -0.5 * a * a - 0.5 * LOG_2PI
    apart = jnp.where(merged | left, -1.0, second - first)
    right = log_phi + first + jnp.where(merged | left, 0.0, _log_one_minus_exp(apart))
    low = ~merged & left
    missing = jnp.where(low, jnp.exp(log_phi) * (jnp.exp(first) + jnp.exp(second)), 0.5)
    log_delta = jnp.minimum(jnp.where(low, jnp.log1p(-missing), right), 0.0)
    log_delta = jnp.where(negative, _reflect(jnp.where(negative, given, -0.5), log_delta), log_delta)

    below = (epsilon < 0) & (none | jnp.isneginf(epsilon))
    limit = jnp.where(below, _log_one_minus_exp(jnp.where(below, epsilon, -1.0)), -jnp.inf)
    return jnp.where(ends, jnp.where(all_, 0.0, limit), log_delta)
