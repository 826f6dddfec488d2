"""The cumulant K(z) = log E_P[exp(z L)] of the sampled Gaussian's loss L, on real z and along a contour, with its errors.

Everything is a trapezoid sum over u, the noise in units of its standard deviation: there the integrand is analytic in
the strip |Im u| < pi sigma, so the sum converges geometrically and its error has a bound. The log weight is
log N(u) + x(u), x = log_p + s L = sum_j c_j l(sign_j u), c_j = alpha_j + s beta_j, and every part pulls to the right:
c_j sign_j > 0. Shapes: fields of a pair are (lanes, components), s and t are (lanes,), the last axis is the node.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dpjax._special import LOG_2PI, expm1_minus, log1p, sincos
from dpjax.pairs import SampledGaussianPair

PI = jnp.pi
MARGIN = 9.5  # exp(-9.5^2 / 2) = 2.5e-20: what lies beyond is far below rounding
_STRIP = 0.98  # fraction of the strip |Im u| < pi sigma that the error bounds use
_CAP = 500.0
_ENDS = np.asarray([1.0, 1.25, 1.6, 2.0, 3.0, 4.5])


class Nodes(NamedTuple):
    """A pair at nodes: log_p = log dP/dN, the loss L, and of each part l = log(1 + v)."""

    log_p: jax.Array
    loss: jax.Array
    part_l: tuple[jax.Array, ...]


class Window(NamedTuple):
    """An interval of u, a bound on the log of the weight outside it; about its largest log weight, and the loss there."""

    low: jax.Array
    high: jax.Array
    log_tail: jax.Array
    height: jax.Array
    centre: jax.Array


def _log_ratio(u: jax.Array, inv: jax.Array, q: jax.Array) -> jax.Array:
    """l = log(1 + v), v = q (exp(u / sigma - 1 / (2 sigma^2)) - 1)."""
    y = u * inv - 0.5 * inv * inv
    capped = jnp.minimum(y, _CAP)
    v = q * jnp.expm1(capped)
    small = v > -0.5
    near = jnp.where(small, log1p(jnp.where(small, v, 0.0)), jnp.log((1 - q) + q * jnp.exp(capped) + 1e-300))
    far = y + jnp.log(q + (1 - q) * jnp.exp(-jnp.maximum(y, 0.0)) + 1e-300)
    l = jnp.where(y > _CAP, far, near)
    return jnp.where(q >= 1, y, jnp.where(q <= 0, 0.0, l))


def at(pair: SampledGaussianPair, u: jax.Array) -> Nodes:
    """The pair at noise values ``u`` of shape (lanes, components, nodes)."""
    inv, q = (1 / pair.sigma)[..., None], pair.q[..., None]
    log_p = loss = jnp.zeros_like(u)
    ls = []
    for j in range(pair.sign.shape[-1]):
        l = _log_ratio(pair.sign[..., j, None] * u, inv, q)
        log_p, loss = log_p + pair.alpha[..., j, None] * l, loss + pair.beta[..., j, None] * l
        ls.append(l)
    return Nodes(log_p, loss, tuple(ls))


def coefficients(pair: SampledGaussianPair, s: jax.Array) -> jax.Array:
    """|c_j|, shape (lanes, components, parts); ``s`` is (lanes,)."""
    return jnp.abs(pair.alpha + s[:, None, None] * pair.beta)


def weighted_excess(nodes: Nodes, s: jax.Array, log_n: jax.Array) -> jax.Array:
    """exp(log_n) (exp(x) - 1 - sum c_j v_j) >= 0; with log_n = log N(u) its integral is exp K(s) - 1, as each v_j has mean 0.

    Summing exp(x) itself would leave K with an absolute error of an ulp, and a composition with k of them. With
    p = exp(log_p) the difference is p (e(s L) + s e(-L)), e(y) = exp(y) - 1 - y: two terms that do not cancel. ``s``
    broadcasts against the nodes.
    """
    log_weight, gain = log_n + nodes.log_p, s * nodes.loss

    def term(y):
        return jnp.where(y > 690.0, jnp.exp(log_weight + y), jnp.exp(log_weight) * expm1_minus(jnp.minimum(y, 690.0)))

    return term(gain) + s * term(-nodes.loss)


def _pull(pair: SampledGaussianPair, s: jax.Array, u_plus: jax.Array, u_minus: jax.Array) -> jax.Array:
    """x'(u) with the rising parts (sign 1) taken at u_plus and the falling ones at u_minus."""
    inv = 1 / pair.sigma
    total = jnp.zeros_like(inv)
    for j in range(pair.sign.shape[-1]):
        sign = pair.sign[..., j]
        u = sign * jnp.where(sign > 0, u_plus, u_minus)
        l = _log_ratio(u, inv, pair.q)
        rho = jnp.exp(jnp.log(pair.q + 1e-300) + u * inv - 0.5 * inv * inv - l)
        total = total + coefficients(pair, s)[..., j] * inv * jnp.clip(rho, 0.0, 1.0)
    return total


def window(pair: SampledGaussianPair, s: jax.Array) -> Window:
    """An interval that holds all but a negligible, bounded part of the weight N(u) exp(x(u)).

    Critical points solve u = x'(u); rho lies in [0, 1], so they lie in [0, sum |c_j| / sigma], and iterating the map
    from both ends shrinks that interval without losing one. Above ``high`` the log weight falls; from
    e = sum |c_j| / sigma + 1 on it falls at least as fast as exp(-u^2 / 2). The mean-zero terms of ``excess`` must be
    inside as well, hence the 1 / sigma.
    """
    inv = 1 / pair.sigma
    steepest = jnp.sum(coefficients(pair, s), -1) * inv

    # Falling parts alone make the weight log-concave, and the map falling: its one fixed point is found by bisection.
    concave = jnp.all(pair.sign < 0, -1)

    def shrink(_, ends):
        low, high = ends
        middle = 0.5 * (low + high)
        from_high = _pull(pair, s, high, jnp.where(concave, middle, low))
        from_low = _pull(pair, s, low, jnp.where(concave, middle, high))
        right = from_high > middle
        return (
            jnp.where(concave, jnp.where(right, middle, low), jnp.maximum(low, from_low * (1 - 1e-14))),
            jnp.where(concave, jnp.where(right, high, middle), jnp.minimum(high, from_high * (1 + 1e-14))),
        )

    _, top = lax.fori_loop(np.int32(0), np.int32(48), shrink, (jnp.zeros_like(steepest), steepest))
    rising = jnp.any(pair.sign > 0, -1)
    falling = jnp.any(pair.sign < 0, -1)
    low = -MARGIN - jnp.where(falling, inv, 0.0)
    base = jnp.maximum(top, jnp.where(rising, inv, 0.0))

    # Close to a tangency the weight falls slowly above the last critical point: take the first of a few ends that do.
    ends = base[..., None] + MARGIN * _ENDS
    edge = jnp.maximum(ends, steepest[..., None] + 1)
    places = jnp.concatenate([ends, edge, jnp.stack([low, base, jnp.zeros_like(top), top], -1)], -1)
    nodes = at(pair, places)
    log_w = -0.5 * places * places - 0.5 * LOG_2PI + nodes.log_p + s[:, None, None] * nodes.loss
    n = len(_ENDS)
    upper = jnp.logaddexp(log_w[..., :n] + jnp.log(edge - ends + 1e-300), log_w[..., n : 2 * n])
    enough = upper < jnp.maximum(0.0, log_w[..., -3:-2]) - 42.0
    # the ends rise and the bound falls: the first that is enough, or the last
    chosen = jnp.where(enough & (jnp.cumsum(enough.astype(jnp.int32), -1) == 1), 1.0, 0.0)
    chosen = chosen.at[..., -1].add(jnp.where(jnp.any(enough, -1), 0.0, 1.0))
    high, upper = jnp.sum(chosen * ends, -1), jnp.sum(jnp.where(chosen > 0, upper, 0.0), -1)

    lower = log_w[..., 2 * n] - jnp.log(-low)
    linear = jnp.log(3 * jnp.sum(coefficients(pair, s), -1) * pair.q + 1e-300) - 0.5 * MARGIN**2 - np.log(MARGIN)
    at_top = log_w[..., -1] > log_w[..., -2]
    height = jnp.where(at_top, log_w[..., -1], log_w[..., -2])
    centre = jnp.where(at_top, nodes.loss[..., -1], nodes.loss[..., -2])
    return Window(low, high, jnp.logaddexp(jnp.logaddexp(upper, lower), linear), height, centre)


def log_secant(pair: SampledGaussianPair, s: jax.Array, shift: jax.Array) -> jax.Array:
    """log of sec(shift / (2 sigma))^c, c the falling parts' coefficient: |1 + v| shrinks at most so far off the real axis."""
    fall = jnp.sum(jnp.where(pair.sign < 0, coefficients(pair, s), 0.0), -1)
    pad = (1,) * (shift.ndim - fall.ndim)
    fall, sigma = fall.reshape(fall.shape + pad), pair.sigma.reshape(fall.shape + pad)
    return -fall * jnp.log(jnp.cos(jnp.minimum(shift / (2 * sigma), 0.5 * PI * 0.999)))


def log_real_alias(pair: SampledGaussianPair, s: jax.Array, step: jax.Array, shift: jax.Array) -> jax.Array:
    """log of 2 min_a exp(a^2/2 - 2 pi a/step) sec((a + shift)/(2 sigma))^c / (1 - exp(-2 pi a/step)), a < pi sigma - shift.

    The trapezoid error of N(u) exp(x(u)) is at most this times exp K(s): on the lines Im u = +-a a rising part has
    |1 + v| at most its real value, a falling one at least its real value times cos(a / (2 sigma)).
    """
    limit = _STRIP * PI * pair.sigma - shift
    a = jnp.minimum(limit, 2 * PI / step)[..., None] * np.asarray([1.0, 0.9, 0.75, 0.6, 0.45, 0.3, 0.2, 0.1])
    decay = 2 * PI * a / step[..., None]
    secant = log_secant(pair, s, a + shift[..., None])
    return np.log(2.0) + jnp.min(0.5 * a * a - decay + secant - jnp.log(-jnp.expm1(-decay)), -1)


def real_step(pair: SampledGaussianPair, s: jax.Array) -> jax.Array:
    """A node spacing at which ``log_real_alias`` is below -45, for shifts up to a third of the strip."""
    a = jnp.minimum(0.6 * _STRIP * PI * pair.sigma, 9.5)[..., None] * np.asarray([1.0, 0.7, 0.5, 0.3, 0.2, 0.1])
    return 2 * PI / jnp.min((46.0 + log_secant(pair, s, a)) / a + 0.5 * a, -1)


class RealCumulant(NamedTuple):
    """K at a real s; (lanes, components).

    ``log_error`` is the log of a two-sided error relative to the exact exp K, rounding apart; ``size`` times a few ulp
    bounds the rounding of ``value``; ``mean`` and ``spread`` are the loss's mean and (a bound of) its mean absolute
    deviation under the tilted weight; ``log_norm`` is the log of the sum of exp(-u^2 / 2 + x(u)) over the nodes.
    """

    value: jax.Array
    log_error: jax.Array
    mean: jax.Array
    spread: jax.Array
    log_norm: jax.Array
    size: jax.Array

    def log_excess(self) -> jax.Array:
        """How far log exp K may lie above ``value``, rounding apart; infinite where ``log_error`` bounds nothing."""
        error = jnp.exp(jnp.minimum(self.log_error, 0.0))
        return jnp.where(self.log_error < 0, -jnp.log1p(-jnp.where(self.log_error < 0, error, 0.0)), jnp.inf)


def real(pair: SampledGaussianPair, s: jax.Array, win: Window, step: jax.Array, block: int = 128) -> RealCumulant:
    """K(s) from nodes win.low + j step, with |computed - exact| <= exp(K + log_error) for exp K, K the exact one.

    Rounding: each term carries the ulps of its exponents; the largest error seen in 1800 random cases is 1.34 ulp of
    ``size``.
    """
    count = _count(win, step)

    tilt = s[:, None, None]

    def body(carry):
        b, g, z, m1, away, rough_g, rough_z = carry
        u, inside = grid(win, step, count, b, block)
        nodes = at(pair, u)
        log_n = -0.5 * u * u - 0.5 * LOG_2PI
        log_w = log_n + nodes.log_p + tilt * nodes.loss - win.height[..., None]
        w = jnp.where(inside, jnp.exp(log_w), 0.0)
        excess = jnp.where(inside, weighted_excess(nodes, tilt, log_n), 0.0)
        distance = nodes.loss - win.centre[..., None]
        exponents = 4 + jnp.abs(log_n) + jnp.abs(nodes.log_p) + tilt * jnp.abs(nodes.loss)
        return (
            b + 1,
            g + jnp.sum(excess, -1),
            z + jnp.sum(w, -1),
            m1 + jnp.sum(w * distance, -1),
            away + jnp.sum(w * jnp.abs(distance), -1),
            rough_g + jnp.sum(excess * (exponents + jnp.abs(nodes.loss)), -1),
            rough_z + jnp.sum(w * exponents, -1),
        )

    zero = jnp.zeros_like(pair.sigma)
    _, g, z, m1, away, rough_g, rough_z = lax.while_loop(
        lambda carry: carry[0] * block < jnp.max(count), body, (np.int32(0), *(zero,) * 6)
    )
    mean = m1 / z
    plain = win.height + jnp.log(step * z)
    large = plain > 5.0
    excess = step * jnp.where(large, 0.0, g)
    value = jnp.where(large, plain, jnp.log1p(excess))
    size = jnp.where(large, rough_z / z, step * jnp.where(large, 0.0, rough_g) / (1 + excess))
    # the linear terms are entire: their own alias is 2 exp(-2 pi^2 / step^2) (1 + 2 q sum |c|)
    linear = jnp.log(2 * (1 + 2 * pair.q * jnp.sum(coefficients(pair, s), -1))) - 2 * PI**2 / step**2
    alias = jnp.logaddexp(log_real_alias(pair, s, step, jnp.zeros_like(step)), linear - value)
    log_norm = win.height + jnp.log(z) + 0.5 * LOG_2PI
    spread = away / z + jnp.abs(mean)  # at least the mean absolute deviation, at most twice the one about the centre
    error = jnp.logaddexp(alias, win.log_tail - value)
    return RealCumulant(value, error, win.centre + mean, spread, log_norm, size)


def _count(win: Window, step: jax.Array) -> jax.Array:
    return jnp.ceil((win.high - win.low) / step).astype(jnp.int32) + 1


def grid(win: Window, step: jax.Array, count: jax.Array, b: jax.Array, block: int) -> tuple[jax.Array, jax.Array]:
    """The nodes of block ``b``, and whether each is one of the ``count`` first; (lanes, components, block)."""
    j = b * np.int32(block) + np.arange(block, dtype=np.int32)
    return win.low[..., None] + j.astype(step.dtype) * step[..., None], j < count[..., None]


def shifted(pair: SampledGaussianPair, s: jax.Array, u: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(log |N(u + iy) exp(x(u + iy))|, Im L(u + iy) >= 0) for shifts 0 <= y < pi sigma; shapes broadcast."""
    inv, q = 1 / pair.sigma, pair.q
    pad = u.ndim - inv.ndim
    lift = lambda a: a.reshape(a.shape + (1,) * pad)
    inv, q = lift(inv), lift(q)
    cos_y, sin_y = jnp.cos(y * inv), jnp.sin(y * inv)
    modulus = 0.5 * (y * y - u * u) - 0.5 * LOG_2PI
    angle = jnp.zeros_like(modulus)
    s_nodes = s.reshape(s.shape + (1,) * (u.ndim - 1))
    for j in range(pair.sign.shape[-1]):
        c = lift(pair.alpha[..., j]) + s_nodes * lift(pair.beta[..., j])
        exponent = lift(pair.sign[..., j]) * u * inv - 0.5 * inv * inv
        e = q * jnp.exp(jnp.minimum(exponent, 300.0))
        re, im = (1 - q) + e * cos_y, e * sin_y
        log_r = jnp.where(exponent > 300.0, exponent + jnp.log(q + 1e-300), 0.5 * jnp.log(re * re + im * im + 1e-300))
        modulus = modulus + c * log_r
        angle = angle + jnp.arctan2(im, re)
    return modulus, angle


def log_envelope(
    pair: SampledGaussianPair, s: jax.Array, t: jax.Array, y: jax.Array, win: Window, step: jax.Array, block: int = 128
) -> jax.Array:
    """Log of the sum of |N exp(x)| exp(-t Im L) on the line Im u = y (lanes, components); t may be negative.

    For t > 0 the integral bounds |exp K(s + i t')| for every t' >= t: the contour of the inner integral may be moved up
    to Im u = y, and there |exp(i t' L)| = exp(-t' Im L). For t < 0 it is the integral of |N exp(x + i |t| L)| on the
    other side of the real axis, which bounds the trapezoid error of the nodes up to |t|.
    """
    # For t < 0 the window must hold exp(|t| Im L) N exp(x) too. x rises at most like e u, e = sum |c| / sigma, and Im L is at
    # most parts * y / sigma: beyond u = e + d the sum is below exp(grown + e^2 / 2 - d^2 / 2). Below 0, where a falling part's
    # Im L is large, x is at most 0 if it falls, and small if it rises.
    steepest = jnp.sum(coefficients(pair, s), -1) / pair.sigma
    grown = jnp.where(t < 0, -t, 0.0)[:, None] * pair.sign.shape[-1] * y / pair.sigma
    d = jnp.sqrt(steepest**2 + 2 * (grown + 50.0 - win.height)) + 1.0
    last = jnp.where((t < 0)[:, None], jnp.maximum(win.high, steepest + d), win.high)
    falls = jnp.any(pair.sign < 0, -1)
    further = -(jnp.sqrt(2 * jnp.maximum(grown + 50.0 - win.height, 1.0)) + 1.0)
    first = jnp.where((t < 0)[:, None] & falls, jnp.minimum(win.low, further), win.low)
    win = win._replace(low=first, high=last)
    step = jnp.maximum(step, (win.high - win.low) / 65536.0)
    count = _count(win, step)

    def body(carry):
        b, crest, z = carry
        u, inside = grid(win, step, count, b, block)
        modulus, angle = shifted(pair, s, u, y[..., None])
        exponent = jnp.where(inside, modulus - t[:, None, None] * angle, -jnp.inf)
        top = jnp.maximum(crest, jnp.max(exponent, -1))  # exp(-t Im L) may be exp(1000) where t < 0
        z = z * jnp.exp(crest - top) + jnp.sum(jnp.exp(exponent - top[..., None]), -1)
        return b + 1, top, z

    start = (np.int32(0), jnp.full_like(pair.sigma, -1e300), jnp.zeros_like(pair.sigma))
    _, crest, z = lax.while_loop(lambda carry: carry[0] * block < jnp.max(count), body, start)
    total = crest + jnp.log(step * z)
    tail = jnp.where((t < 0)[:, None], win.height - 49.0, win.log_tail)
    return jnp.logaddexp(total, tail + 0.5 * y * y + log_secant(pair, s, y))


class Moments(NamedTuple):
    """Sums over the normalised weight w of functions of the phase p = t (L - mean); (lanes, components, t-nodes).

    a = 1 - sum w cos p and b = sum w sin p keep relative accuracy where phi = (1 - a) + ib is close to 1. ``cos`` and
    ``sin`` are the sums with the columns of ``columns``, on a last axis.
    """

    a: jax.Array
    b: jax.Array
    cos: jax.Array
    sin: jax.Array


def columns(pair: SampledGaussianPair, u: jax.Array, nodes: Nodes, order: int) -> jax.Array:
    """Derivatives of each part's l with respect to sigma and q at fixed u; (lanes, components, nodes, columns).

    order 1: l_sigma, l_q of every part. order 2 adds l_ss, l_sq, l_qq of every part and the products of all the first
    derivatives, row by row of the upper triangle.
    """
    if order == 0:
        return jnp.zeros(u.shape + (0,), u.dtype)
    inv, q = (1 / pair.sigma)[..., None], pair.q[..., None]
    first, second = [], []
    for j, l in enumerate(nodes.part_l):
        v = pair.sign[..., j, None] * u
        y = v * inv - 0.5 * inv * inv
        tilt = jnp.exp(y - l)  # dQ-to-P ratio of the shifted component
        l_q = jnp.where(y > 0, -jnp.expm1(-jnp.abs(y)) * tilt, jnp.expm1(-jnp.abs(y)) * jnp.exp(-l))
        rho = q * tilt
        y_i = v - inv
        l_i = rho * y_i
        first += [-l_i * inv**2, l_q]
        if order > 1:
            l_ii = -rho + rho * (1 - rho) * y_i**2
            l_iq = tilt * jnp.exp(-l) * y_i
            second += [l_ii * inv**4 + 2 * l_i * inv**3, -l_iq * inv**2, -(l_q**2)]
    products = [first[i] * first[k] for i in range(len(first)) for k in range(i, len(first))] if order > 1 else []
    return jnp.stack(first + second + products, -1)


def moments(
    pair: SampledGaussianPair,
    s: jax.Array,
    t: jax.Array,
    win: Window,
    step: jax.Array,
    tilted: RealCumulant,
    order: int = 0,
    block: int = 128,
) -> Moments:
    """phi(t) = exp(K(s + it) - K(s) - i t mean) at ``t`` of shape (lanes, t-nodes), and the sums with ``columns``."""
    count = _count(win, step)
    parts = pair.sign.shape[-1]
    n_columns = 0 if order == 0 else 2 * parts if order == 1 else 5 * parts + parts * (2 * parts + 1)

    def body(carry):
        b, a, im, cos, sin = carry
        u, inside = grid(win, step, count, b, block)
        nodes = at(pair, u)
        log_w = -0.5 * u * u + nodes.log_p + s[:, None, None] * nodes.loss - tilted.log_norm[..., None]
        w = jnp.where(inside, jnp.exp(log_w), 0.0)
        half = 0.5 * t[:, None, :, None] * (nodes.loss - tilted.mean[..., None])[:, :, None, :]
        sin_half, cos_half = sincos(half)
        versine = 2 * sin_half * sin_half
        sine = 2 * sin_half * cos_half
        a = a + jnp.einsum("lmtx,lmx->lmt", versine, w)
        im = im + jnp.einsum("lmtx,lmx->lmt", sine, w)
        if n_columns:
            weighted = w[..., None] * columns(pair, u, nodes, order)
            cos = cos + jnp.sum(weighted, 2)[:, :, None, :] - jnp.einsum("lmtx,lmxc->lmtc", versine, weighted)
            sin = sin + jnp.einsum("lmtx,lmxc->lmtc", sine, weighted)
        return b + 1, a, im, cos, sin

    zero = jnp.zeros(pair.sigma.shape + t.shape[-1:], t.dtype)
    zero_c = jnp.zeros(zero.shape + (n_columns,), t.dtype)
    _, a, im, cos, sin = lax.while_loop(
        lambda carry: carry[0] * block < jnp.max(count),
        body,
        (np.int32(0), zero, zero, zero_c, zero_c),
    )
    return Moments(a, im, cos, sin)
