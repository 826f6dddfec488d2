r"""Characteristic functions of the privacy loss, in three ways (Zhu, Dong, Wang, arXiv 2106.08567, sections 3 and 4).

phi(t) = E_P exp(i t log(p/q)) and phi'(t) = E_Q exp(i t log(q/p)) multiply under composition. The Gaussian's is a closed
form. That of the sampled Gaussian is an integral, which this module turns into finitely many points of loss with P- and
Q-masses, either the nodes of a quadrature (``quadrature``: an approximation) or the cells of a partition (``coarse`` and
``split``: pairs that are certified to be dominated by, and to dominate, the exact one; Algorithm 2). Whatever the points
are, ``log_phi`` composes them, as (log modulus, argument).

u is the noise in units of its standard deviation, L(u) the loss, which rises with u in every direction. Arrays are
(lanes, components, points) and (lanes, frequencies).
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dpjax._plan import Problem
from dpjax._special import log1p, log_ndtr, sincos
from dpjax.pairs import SampledGaussianPair

MARGIN = 10.0  # in standard deviations: 1.6e-23 of a normal law lies beyond
LOG_OUTSIDE = -51.7  # log of twice that, with room: P- or Q-mass outside the window, both ends
_ORDER = 8  # Gauss-Legendre nodes of a cell
_BLOCK = 1 << 18  # phases evaluated at once: 1 << 21 takes three times as long, out of cache


class Points(NamedTuple):
    """A pair on finitely many values of the loss; (lanes, components, points) unless said otherwise.

    Attributes:
      loss: the values.
      p, q: their masses under P and Q, each of sum 1.
      centre: a value near the mean loss, (lanes, components); phases are taken of loss - centre.
      gap: distance to the neighbouring loss if the points are quadrature nodes, None if they are atoms.
      log_error: log of the relative error of a mass, rounding included; (lanes, components). A model, not a proof: see
        ``_cells``.
    """

    loss: jax.Array
    p: jax.Array
    q: jax.Array
    centre: jax.Array
    gap: jax.Array | None
    log_error: jax.Array


@lru_cache(maxsize=16)
def legendre(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Gauss-Legendre nodes (ascending) and weights on (-1, 1).

    ``numpy.polynomial.legendre.leggauss`` is off by 2e-13 at n = 1000, which would be the error of a CDF; Newton's
    method in extended precision is not.

    Example:
      >>> x, w = legendre(500)
      >>> bool(abs(w.sum() - 2) < 1e-15), bool(abs(w @ x**100 - 2 / 101) < 1e-16)
      (True, True)
    """
    x = np.cos(np.pi * (np.arange(n, 0, -1, dtype=np.longdouble) - 0.25) / (n + 0.5))
    for _ in range(4):
        below, value = np.ones_like(x), x
        for k in range(2, n + 1):
            below, value = value, ((2 * k - 1) * x * value - (k - 1) * below) / k
        slope = n * (x * value - below) / (x * x - 1)
        x = x - value / slope
    return x.astype(float), (2 / ((1 - x * x) * slope * slope)).astype(float)


# --------------------------------------------------------------------------------------------------------------------
# The pair on the line


def _log_ratio(u: jax.Array, sigma: jax.Array, q: jax.Array) -> jax.Array:
    """log(1 - q + q exp(u / sigma - 1 / (2 sigma^2)))."""
    y = (u - 0.5 / sigma) / sigma
    low = jnp.minimum(y, 1.0)
    near = log1p(jnp.maximum(q * jnp.expm1(low), -1 + 1e-16))
    far = y + jnp.log(q + (1 - q) * jnp.exp(-jnp.maximum(y, 1.0)) + 1e-300)
    return jnp.where(q >= 1, y, jnp.where(q <= 0, 0.0, jnp.where(y > 1, far, near)))


def _at(pair: SampledGaussianPair, u: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(log of P's density, loss) at ``u`` (lanes, components, ...)."""
    lift = lambda a: a.reshape(a.shape + (1,) * (u.ndim - 2))
    log_p, loss = -0.5 * u * u, jnp.zeros_like(u)
    for j in range(pair.sign.shape[-1]):
        part = _log_ratio(lift(pair.sign[..., j]) * u, lift(pair.sigma), lift(pair.q))
        log_p, loss = log_p + lift(pair.alpha[..., j]) * part, loss + lift(pair.beta[..., j]) * part
    return log_p, loss


def _window(pair: SampledGaussianPair) -> tuple[jax.Array, jax.Array]:
    """An interval of u with all but exp(LOG_OUTSIDE) of the mass of both P and Q."""
    inv = 1 / pair.sigma
    falls, rises = jnp.any(pair.sign < 0, -1), jnp.any(pair.sign > 0, -1)
    return -MARGIN - jnp.where(falls, inv, 0.0), MARGIN + jnp.where(rises, inv, 0.0)


def _normalised(log_weight: jax.Array) -> jax.Array:
    w = jnp.exp(log_weight - jnp.max(log_weight, -1, keepdims=True))
    return w / jnp.sum(w, -1, keepdims=True)


def _centre(loss: jax.Array, p: jax.Array, q: jax.Array) -> jax.Array:
    return 0.5 * (jnp.sum(p * loss, -1) + jnp.sum(q * loss, -1))


def quadrature(pair: SampledGaussianPair, nodes: int) -> Points:
    """Gauss-Legendre ``nodes`` in u: the inner half of the paper's double quadrature.

    Guarantee: none. Where neighbouring nodes differ in phase by more than about pi the sum means nothing; ``log_phi``
    leaves those nodes out, as the integral over a part that oscillates so fast is nearly 0.
    """
    low, high = _window(pair)
    x, w = legendre(nodes)
    u = low[..., None] + 0.5 * (high - low)[..., None] * (1 + x)
    log_p, loss = _at(pair, u)
    p, q = _normalised(log_p + np.log(w)), _normalised(log_p - loss + np.log(w))
    gap = jnp.diff(loss, axis=-1)
    gap = jnp.concatenate([gap[..., :1], 0.5 * (gap[..., 1:] + gap[..., :-1]), gap[..., -1:]], -1)
    return Points(loss, p, q, _centre(loss, p, q), gap, jnp.full_like(low, jnp.log(1e-14)))


class _Cells(NamedTuple):
    edge: jax.Array  # loss at the edges, (lanes, components, cells + 1)
    log_p: jax.Array  # log of the P-masses, up to a common constant, (lanes, components, cells)
    rise: jax.Array  # 1 - E_P[exp(-(loss - lower edge)) | cell]
    span: jax.Array  # 1 - exp(-(upper edge - lower edge))
    log_error: jax.Array


def _cells(pair: SampledGaussianPair, cells: int) -> _Cells:
    """Equal cells of the window, their masses by Gauss-Legendre of order 8, which keeps *relative* accuracy.

    The integrand's nearest singularity is at pi sigma from the real axis, so a cell of half width a has a relative error
    of order r^-16, r = x + sqrt(1 + x^2), x = pi sigma / a. ``log_error`` is the log of 1e3 r^-16 + 1e-14. Measured
    (tests): below that where the mass is, up to 3e-14 in cells of mass below 1e-8, which do not matter.
    """
    low, high = _window(pair)
    width = (high - low) / cells
    x, w = legendre(_ORDER)
    edges = low[..., None] + width[..., None] * jnp.arange(cells + 1)
    u = edges[..., :-1, None] + 0.5 * width[..., None, None] * (1 + x)
    log_p, loss = _at(pair, u)
    _, edge = _at(pair, edges)
    top = jnp.max(log_p, -1)
    weight = w * jnp.exp(log_p - top[..., None])
    mass = jnp.sum(weight, -1)
    span = -jnp.expm1(edge[..., :-1] - edge[..., 1:])
    rise = jnp.sum(weight * -jnp.expm1(edge[..., :-1, None] - loss), -1) / mass
    ratio = 2 * jnp.pi * pair.sigma / width
    log_error = jnp.logaddexp(jnp.log(1e3) - 16 * jnp.arcsinh(ratio), jnp.log(1e-14))
    return _Cells(edge, top + jnp.log(mass), jnp.clip(rise, 0.0, span), span, log_error)


def coarse(pair: SampledGaussianPair, cells: int) -> Points:
    """Algorithm 2, lower: only the cell is observed, so its loss is log(P(cell) / Q(cell)).

    Guarantee: the exact pair dominates this one by data processing, given that the noise falls into the window.
    """
    cut = _cells(pair, cells)
    loss = cut.edge[..., :-1] - log1p(-cut.rise)
    p, q = _normalised(cut.log_p), _normalised(cut.log_p - loss)
    return Points(loss, p, q, _centre(loss, p, q), None, cut.log_error)


def split(pair: SampledGaussianPair, cells: int) -> Points:
    """Algorithm 2, upper, sharpened: a cell's masses are divided between the losses at its two ends so as to keep both.

    The paper moves all of a cell's P-mass to its upper end, which costs the cell's width in epsilon with every step. The
    division that keeps P- and Q-mass spreads the loss but does not move it: the excess is of second order, and the bound
    is never above the paper's.

    Guarantee: this pair dominates the exact one (exp(-loss) is a mean-preserving spread of the exact one's, and
    x -> (1 - cx)_+ is convex), given that the noise falls into the window.
    """
    cut = _cells(pair, cells)
    share = jnp.where(cut.span > 0, cut.rise / jnp.where(cut.span > 0, cut.span, 1.0), 0.0)
    mass = _normalised(cut.log_p)
    none = jnp.zeros_like(share[..., :1])
    p = jnp.concatenate([mass * (1 - share), none], -1) + jnp.concatenate([none, mass * share], -1)
    p = p / jnp.sum(p, -1, keepdims=True)
    safe = jnp.where(p > 0, p, 1.0)
    q = _normalised(jnp.where(p > 0, jnp.log(safe), -jnp.inf) - cut.edge)
    return Points(cut.edge, p, q, _centre(cut.edge, p, q), None, cut.log_error)


# --------------------------------------------------------------------------------------------------------------------
# Composition


class Phi(NamedTuple):
    """A composition's characteristic functions at t; (lanes, frequencies).

    ``log_p`` and ``angle_p`` are the log modulus and the argument of phi = E_P exp(i t log(p/q)), ``log_q`` and
    ``angle_q`` those of phi' = E_Q exp(i t log(q/p)). ``rounding`` bounds the relative error of either: that of phases,
    of sums and of the points' masses.
    """

    t: jax.Array
    log_p: jax.Array
    angle_p: jax.Array
    log_q: jax.Array
    angle_q: jax.Array
    rounding: jax.Array


def _polar(a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(log modulus, argument) of (1 - a) + ib, with relative accuracy where that is close to 1."""
    square = a * a + b * b - 2 * a
    close = jnp.abs(square) < 0.5
    log_square = jnp.where(
        close,
        log1p(jnp.where(close, square, 0.0)),
        jnp.log(jnp.where(close, 1.0, (1 - a) ** 2 + b * b) + 1e-300),
    )
    return 0.5 * log_square, jnp.arctan2(b, 1 - a)


def log_phi(problem: Problem, points: Points, t: jax.Array) -> Phi:
    """The characteristic functions of ``problem``, its sampled components replaced by ``points``.

    Args:
      problem: the composition in one direction.
      points: of ``quadrature``, ``coarse`` or ``split``.
      t: shape (lanes, frequencies).
    """
    lanes, components, size = points.loss.shape
    frequencies = t.shape[1]
    count, unit = problem.count[:, :, None], jnp.finfo(t.dtype).epsneg
    offset = points.loss - points.centre[..., None]
    # both measures see the same phases; masses as (lanes, components, points, 2)
    masses = jnp.stack([points.p, points.q], -1)

    def block(t):
        phase = t[:, None, :, None] * offset[:, :, None, :]
        sine, cosine = sincos(0.5 * phase)
        versine, sine = 2 * sine * sine, 2 * sine * cosine
        if points.gap is not None:
            step = jnp.abs(t)[:, None, :, None] * points.gap[:, :, None, :]
            fade = jnp.clip(0.5 * (4.0 - step), 0.0, 1.0)
            fade = fade * fade * (3 - 2 * fade)
            versine, sine = 1 - fade * (1 - versine), fade * sine
        a = jnp.einsum("lctx,lcxm->lctm", versine, masses, precision=lax.Precision.HIGHEST)
        b = jnp.einsum("lctx,lcxm->lctm", sine, masses, precision=lax.Precision.HIGHEST)
        return a, b

    each = max(1, min(frequencies, _BLOCK // max(1, lanes * components * size)))
    blocks = -(-frequencies // each)
    padded = jnp.pad(t, ((0, 0), (0, blocks * each - frequencies)))
    a, b = lax.map(block, padded.reshape(lanes, blocks, each).swapaxes(0, 1))
    join = lambda x: jnp.moveaxis(x, 0, 2).reshape(lanes, components, blocks * each, 2)[:, :, :frequencies]
    log_modulus, angle = _polar(join(a), join(b))

    drift = jnp.sum(problem.count * points.centre, 1)[:, None]
    half = 0.5 * problem.variance[:, None]
    gauss = -half * t * t
    composed = lambda x: jnp.sum(count * x, 1)
    # |phi_step - computed| <= (8 units of the loss's phase + the masses' error) * (what the masses can move)
    spread = jnp.max(jnp.einsum("lcx,lcxm->lcm", jnp.abs(offset), masses), -1)[..., None]
    size_of = jnp.sum(masses[..., 0] * jnp.abs(points.loss), -1) + jnp.abs(points.centre)
    moved = jnp.minimum(jnp.abs(t)[:, None, :] * spread, 2.0) * (jnp.exp(points.log_error)[..., None] + 24 * unit)
    moved = moved + 8 * unit * jnp.abs(t)[:, None, :] * size_of[..., None]
    relative = composed(moved * jnp.exp(-jnp.min(log_modulus, -1)))
    relative = relative + 8 * unit * (jnp.abs(t) * (jnp.abs(drift) + half) - gauss + 4)
    return Phi(
        t,
        composed(log_modulus[..., 0]) + gauss,
        composed(angle[..., 0]) + t * (drift + half),
        composed(log_modulus[..., 1]) + gauss,
        -composed(angle[..., 1]) - t * (drift - half),
        jnp.minimum(relative, 1e6),
    )


def moments(problem: Problem, points: Points) -> tuple[jax.Array, jax.Array]:
    """Mean and variance of log(p/q) under P and of log(q/p) under Q; each (lanes, 2)."""
    masses = jnp.stack([points.p, points.q], -1)
    sign = jnp.asarray([1.0, -1.0], points.loss.dtype)
    mean = jnp.einsum("lcx,lcxm->lcm", points.loss, masses)
    offset = points.loss[..., None] - mean[:, :, None, :]
    variance = jnp.einsum("lcxm,lcxm->lcm", offset * offset, masses)
    total = lambda x: jnp.sum(problem.count[..., None] * x, 1)
    return sign * total(mean) + 0.5 * problem.variance[:, None], total(variance) + problem.variance[:, None]


def cumulants(problem: Problem, points: Points, r: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Upper bounds of log E_P exp(r log(p/q)) and log E_Q exp(r log(q/p)) at orders ``r`` > 0, (lanes, orders).

    The second is that of the points, the first includes the noise outside the window as well.
    """

    def of(masses, loss, outside):
        x = jnp.where(masses > 0, jnp.log(jnp.where(masses > 0, masses, 1.0)), -jnp.inf)[:, :, None, :]
        x = x + r[:, None, :, None] * loss[:, :, None, :]
        top = jnp.max(x, -1)
        each = top + jnp.log(jnp.sum(jnp.exp(x - top[..., None]), -1))
        each = each if outside is None else jnp.logaddexp(each, outside)
        slack = jnp.exp(points.log_error)[..., None] + 1e-14 + 1e-15 * jnp.abs(each)
        return jnp.sum(problem.count[:, :, None] * (each + slack), 1)

    gauss = 0.5 * problem.variance[:, None] * r * (r + 1) * (1 + 1e-15)
    return of(points.p, points.loss, _log_outside(problem.pair, r)) + gauss, of(points.q, -points.loss, None) + gauss


def _log_outside(pair: SampledGaussianPair, r: jax.Array) -> jax.Array:
    """Log of a bound on the part of E_P exp(r L) that lies outside the window; (lanes, components, orders).

    Below the window the loss is negative and P's density at most the noise's. Above it, l(u) <= y + log(q + (1-q) e^-y)
    with y = u / sigma - 1 / (2 sigma^2), which rises with q + (1-q) e^-y falling; and -l(-u) <= min(-log(1-q), q (u / sigma +
    1 / (2 sigma^2))), the second by Jensen. With an exponent linear in u the integral is a normal tail.
    """
    lift = lambda a: a[..., None]
    sigma, q, r = lift(pair.sigma), lift(pair.q), r[:, None, :]
    falls, rises = (lift(jnp.any(of, -1)) for of in (pair.sign < 0, pair.sign > 0))
    high = lift(_window(pair)[1])
    y = high / sigma - 0.5 / sigma**2
    slope = jnp.where(rises, (1 + r) / sigma, 0.0)
    level = jnp.where(
        rises, (1 + r) * (jnp.log(q + (1 - q) * jnp.exp(-jnp.maximum(y, 0.0)) + 1e-300) - 0.5 / sigma**2), 0.0
    )

    def tail(slope, level):
        return level + 0.5 * slope * slope + log_ndtr(slope - high)

    bounded = level - jnp.where(falls, r * jnp.log(jnp.maximum(1 - q, 1e-300)), 0.0)
    jensen = tail(slope + jnp.where(falls, r * q / sigma, 0.0), level + jnp.where(falls, 0.5 * r * q / sigma**2, 0.0))
    above = jnp.minimum(tail(slope, bounded), jensen)
    return jnp.logaddexp(above, LOG_OUTSIDE)
