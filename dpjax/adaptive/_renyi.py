r"""Renyi divergence of one Poisson-sampled Gaussian step at real orders, from above, in the caller's dtype.

Self-contained and private, so that the library's cumulants can take its place. With :math:`y = (2x-1)/(2\sigma^2)`,
:math:`r(x) = 1 - q + q e^y` and :math:`N_0 = N(0, \sigma^2)`,

.. math:: e^{(\alpha-1) D_\alpha} = E_{N_0}[r^e], \qquad e = \alpha \text{ (remove)}, \; e = 1 - \alpha \text{ (add)}.

As :math:`u = r - 1 = q(e^y - 1)` has mean 0, :math:`E[r^e] - 1 = E[g(u)]` with :math:`g(u) = (1+u)^e - 1 - eu \ge 0`:
no cancellation, so the answer keeps its digits when q is tiny. The expectation is a trapezoid sum in x, to which are
added

* both tails (beyond the window the weight :math:`N_0 r^e` decays at least as fast as an exponential of known rate);
* the discretisation error, from the width of the strip in which the integrand is analytic (branch points at
  :math:`\mathrm{Im}\,x = \pm\pi\sigma^2`);
* rounding, term by term.

Where the sum is too coarse to certify much (small noise at a high order) convexity in q answers instead:
:math:`E[r^e] \le 1 + q\,(e^{\alpha(\alpha-1)/(2\sigma^2)} - 1)`. Sums are held as logarithms, so nothing overflows.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.special import logsumexp

from dpjax.adaptive import _sums

_NODES = 512
_TAIL = 10.0  # standard deviations beyond the outermost peak: e^-50
_SERIES = 0.1  # |e u| and |u| below which g is summed as a series, ...
_TERMS = 17  # ... whose remainder is then below 1e-17 of it


@functools.partial(jax.jit, static_argnames="direction")
def poisson_gaussian_renyi(
    order: jax.Array, noise_multiplier: jax.Array, sampling_probability: jax.Array, direction: str = "both"
) -> jax.Array:
    """An upper bound of the Renyi divergence of one step; the arguments broadcast and share one float dtype.

    Args:
      order: > 1.
      noise_multiplier: >= 0; 0 gives infinity, infinity gives 0.
      sampling_probability: in [0, 1].
      direction: "remove", "add" or "both" (the larger).

    Returns:
      The divergence in nats, never below the truth; NaN where an argument is out of range.

    Example:
      >>> import jax.numpy as jnp
      >>> value = poisson_gaussian_renyi(jnp.asarray(1.5), jnp.asarray(1.0), jnp.asarray(0.01), "remove")
      >>> print(f"{float(value):.3e}")  # 1.2725373e-4 is exact
      1.273e-04
    """
    order, sigma, q = jnp.broadcast_arrays(order, noise_multiplier, sampling_probability)
    ok = (order > 1) & (order < jnp.inf) & (sigma >= 0) & (q >= 0) & (q <= 1)
    plain = _sums.ratio_of_square(0.5, sigma) * order  # the step without sampling
    plain = jnp.where((sigma == 0) | (plain == 0), plain, _sums.up(plain))
    # The kernel sees only arguments for which all its logarithms exist; limits are taken afterwards.
    regular = ok & (q > 0) & (q < 1) & (plain > 0) & (plain < jnp.inf)
    safe_order, safe_sigma = jnp.where(regular, order, 2.0), jnp.where(regular, sigma, 1.0)
    safe_q = jnp.where(regular, q, 0.5)
    convex = _convex_bound(safe_order, safe_sigma, safe_q)
    bounded = lambda remove: _bounded(safe_order, safe_sigma, safe_q, remove, convex)
    value = jnp.maximum(bounded(True), bounded(False)) if direction == "both" else bounded(direction == "remove")
    limit = jnp.where(q == 0, 0.0, plain)
    value = _sums.charge(jnp.minimum(value, limit), regular)
    return jnp.where(ok, jnp.where(regular, value, limit), jnp.nan)


def _convex_bound(order: jax.Array, sigma: jax.Array, q: jax.Array) -> jax.Array:
    """From E[r^e] <= 1 - q + q E[e^(e y)], r^e being convex in r."""
    exponent = _sums.up(order * (order - 1) / (2 * sigma * sigma), 8.0)
    small = jnp.minimum(exponent, 30.0)
    log_moment = jnp.where(exponent < 30, jnp.log1p(q * jnp.expm1(small)), jnp.logaddexp(0.0, jnp.log(q) + exponent))
    return _sums.up(log_moment / (order - 1), 16.0)


def _bounded(order: jax.Array, sigma: jax.Array, q: jax.Array, remove: bool, convex: jax.Array) -> jax.Array:
    kernel: Any = jnp.vectorize(lambda a, s, p: _quadrature(a, s, p, remove))
    value = kernel(order, sigma, q)
    return jnp.where(value <= convex, value, convex)  # also where the certificate overflowed to NaN


def _quadrature(order: jax.Array, sigma: jax.Array, q: jax.Array, remove: bool) -> jax.Array:
    """The certified sum for scalars; infinite if the grid is too coarse."""
    dtype = order.dtype
    eps = float(jnp.finfo(dtype).eps)
    e = order if remove else 1 - order
    variance = sigma * sigma
    log_q = jnp.log(q)

    # Grid: window around all peaks, which lie between 0 and e; x - 1/2 has a node at 0 so that y keeps its digits.
    low, high = jnp.minimum(e, 0.0) - _TAIL * sigma, jnp.maximum(e, 1.0) + _TAIL * sigma
    step = lax.stop_gradient((high - low) / (_NODES - 3))
    first = lax.stop_gradient(jnp.floor((low - 0.5) / step))
    z = (jnp.asarray(np.arange(_NODES), dtype) + first) * step
    x = z + 0.5
    log_weight = -x * x / (2 * variance) - jnp.log(sigma) - 0.5 * math.log(2 * math.pi) + jnp.log(step)
    log_g, log_r, condition = _log_g(z / variance, e, q, log_q)
    # Rounding: relative error of each term, from the conditioning of the formula that made it.
    noise = 4 * eps * (8 + x * x / (2 * variance) + jnp.abs(jnp.log(sigma)) + condition) + _NODES * eps / 2
    log_sum = logsumexp(log_weight + log_g + lax.stop_gradient(jnp.log1p(noise)))

    # Everything below is certificate, not estimate.
    def edge(i):  # log of int beyond the edge of N0 r^e, and of N0 / N0 e^y alone
        distance = jnp.abs(x[i]) - jnp.where((x[i] > 0) == (e > 0), jnp.abs(e), 0.0)
        return log_weight[i] - jnp.log(step) + e * log_r[i] + jnp.log(variance / distance)

    def gauss(distance):
        return -distance * distance / (2 * variance)  # log of twice the tail

    log_lower_g = jnp.log(jnp.abs(e * (e - 1)) / 2) + 2 * log_q + jnp.where(e < 2, (e - 2) * jnp.log1p(-q), 0.0)
    if remove:
        tails = jnp.stack([edge(_NODES - 1), log_lower_g + gauss(x[0])])  # g <= r^e on the right, <= g(-q) on the left
    else:
        tails = jnp.stack([jnp.log(-e) + log_q + gauss(x[-1] - 1), edge(0)])  # g <= s u; g <= r^e
    strip = math.pi * variance
    width = strip * jnp.asarray(1 - np.geomspace(1e-3, 1.0, 24)[::-1] + 1e-3, dtype) * 0.998
    width = jnp.concatenate([width, jnp.minimum(2 * math.pi * variance / step, 0.998 * strip)[None]])
    growth = width * width / (2 * variance) - 2 * math.pi * width / step
    if not remove:
        growth = growth + e * jnp.log(jnp.cos(width / (2 * variance)))
    log_eta = math.log(2.0) + jnp.min(growth - jnp.log(-jnp.expm1(-2 * math.pi * width / step)))
    log_eta = jnp.where(log_eta < -0.7, log_eta + 16 * eps * jnp.abs(log_eta), jnp.inf)
    gaussian = -2 * (math.pi * sigma / step) ** 2 + math.log(2.0) + jnp.log1p(2 * jnp.abs(e) * q)
    gaussian = jnp.where(gaussian < -0.7, gaussian + math.log(2.0) + 16 * eps * jnp.abs(gaussian), jnp.inf)
    certificate = lax.stop_gradient(
        jnp.concatenate([tails + 16 * eps * jnp.abs(tails), jnp.stack([log_eta, gaussian])])
    )

    log_gap = logsumexp(jnp.concatenate([log_sum[None], certificate])) - lax.stop_gradient(
        jnp.log1p(-jnp.exp(jnp.minimum(log_eta, -0.7)))
    )
    small = jnp.minimum(log_gap, 30.0)
    log_moment = jnp.where(log_gap < 30, jnp.log1p(jnp.exp(small)), log_gap + jnp.exp(-jnp.maximum(log_gap, 30.0)))
    return _sums.up(log_moment / (order - 1), 16.0)


def _log_g(y, e, q, log_q):
    """Log g(u), log r and the condition number of g's evaluation, at y; e and q are scalars."""
    near = jnp.minimum(y, 20.0)
    u = q * jnp.expm1(near)
    zero = u == 0
    log_r = jnp.where(y < 20, jnp.log1p(u), jnp.logaddexp(jnp.log1p(-q), log_q + y))
    log_abs_u = jnp.where(
        y < 20, jnp.log(jnp.abs(jnp.where(zero, 1.0, u))), log_q + y + jnp.log1p(-jnp.exp(-jnp.maximum(y, 20.0)))
    )
    log_eu = jnp.log(jnp.abs(e)) + log_abs_u

    series = ~zero & (jnp.maximum(log_eu, log_abs_u) < math.log(_SERIES))
    w = jnp.where(series, u, 0.0)
    total = jnp.ones_like(w)
    for k in range(_TERMS, 0, -1):  # 1 + (e-2)/3 w (1 + (e-3)/4 w (...))
        total = 1 + (e - 1 - k) / (k + 2) * w * total
    log_series = jnp.log(jnp.abs(e * (e - 1)) / 2) + 2 * log_abs_u + jnp.log(total)

    other = ~zero & ~series
    a = e * log_r
    rising = other & (a > 0)  # r^e dominates: g = r^e (1 - (1 + e u) / r^e)
    falling = other & (a <= 0)  # the linear term dominates: g = |e u| - (1 - r^e)
    log_linear = jnp.logaddexp(0.0, jnp.where(rising, log_eu, 0.0))
    part = -jnp.expm1(jnp.where(rising, log_linear - a, -1.0))
    part = jnp.where(part > 0, part, float(jnp.finfo(y.dtype).eps))
    log_rising = a + jnp.log(part)
    drop = -jnp.expm1(jnp.where(falling, a, 0.0)) * jnp.exp(-jnp.where(falling, log_eu, 0.0))
    rest = jnp.where(falling, 1 - drop, 1.0)
    rest = jnp.where(rest > 0, rest, float(jnp.finfo(y.dtype).eps))
    log_falling = log_eu + jnp.log(rest)

    log_g = jnp.where(series, log_series, jnp.where(rising, log_rising, jnp.where(falling, log_falling, -jnp.inf)))
    moved = jnp.abs(a) + jnp.abs(e * y) * jnp.exp(jnp.minimum(log_q + y - log_r, 0.0))
    condition = jnp.abs(log_abs_u) + jnp.where(
        series,
        2 * (1 + jnp.abs(y)),
        jnp.where(rising, (moved + log_linear) / part, (moved + jnp.abs(y)) / rest),
    )
    return log_g, log_r, condition
