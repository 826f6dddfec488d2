"""The cumulant K(z) = log E_P[exp(z L)] of the sampled Gaussian's loss L, on real z and along a contour, with its errors.

Everything is a trapezoid sum over u, the noise in units of its standard deviation: there the integrand is analytic in
the strip |Im u| < pi sigma, so the sum converges geometrically and its error has a bound. The log weight is
log N(u) + x(u), x = log_p + s L = sum_j c_j l(sign_j u), c_j = alpha_j + s beta_j, and every part pulls to the right:
c_j sign_j > 0. So exp(itL) decays above the real axis and grows below it: on a line Im u = y one set of nodes serves
every t >= 0. Shapes: fields of a pair are (lanes, components), s is (lanes,), the last axis is the node.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dpjax import _complex
from dpjax._complex import Complex, add, each, mul, polar, scale
from dpjax._once import once
from dpjax._positions import at_least, first_true, pick
from dpjax._special import (
    LOG_2PI,
    arctan2,
    cap,
    exp,
    expm1,
    expm1_minus,
    is_single,
    like,
    ln1p,
    log,
    log1p,
    logaddexp,
    sincos,
    tiny,
)
from dpjax.pairs import SampledGaussianPair

PI = jnp.pi
MARGIN = 9.5  # exp(-9.5^2 / 2) = 2.5e-20: what lies beyond is far below rounding
_STRIP = 0.98  # fraction of the strip |Im u| < pi sigma that the error bounds use
_CAP = 500.0
_ENDS = np.asarray([1.0, 1.25, 1.6, 2.0, 3.0, 4.5])
_FRACTIONS = np.asarray([1.0, 0.9, 0.75, 0.6, 0.45, 0.3, 0.2, 0.1])
_HEIGHTS = np.asarray([0.0, 0.25, 0.5, 0.75, 1.0])


class Nodes(NamedTuple):
    """A pair at nodes: log_p = log dP/dN and the loss L."""

    log_p: jax.Array
    loss: jax.Array


class Window(NamedTuple):
    """An interval of u, bounds on the log of the weight on each side of it; about its largest log weight, and the loss there."""

    low: jax.Array
    high: jax.Array
    log_left: jax.Array
    log_right: jax.Array
    height: jax.Array
    centre: jax.Array

    @property
    def log_tail(self) -> jax.Array:
        """A bound on the log of the weight outside."""
        return logaddexp(self.log_left, self.log_right)


def _log_ratio(u: jax.Array, inv: jax.Array, q: jax.Array) -> jax.Array:
    """l = log(1 + v), v = q (exp(u / sigma - 1 / (2 sigma^2)) - 1)."""
    y = u * inv - 0.5 * inv * inv
    capped = jnp.minimum(y, cap(y, _CAP))
    v = q * expm1(capped)
    small = v > -0.5
    near = jnp.where(small, log1p(jnp.where(small, v, 0.0)), log((1 - q) + q * exp(capped) + tiny(y)))
    far = y + log(q + (1 - q) * exp(-jnp.maximum(y, 0.0)) + tiny(y))
    l = jnp.where(y > cap(y, _CAP), far, near)
    return jnp.where(q >= 1, y, jnp.where(q <= 0, 0.0, l))


def at(pair: SampledGaussianPair, u: jax.Array) -> Nodes:
    """The pair at noise values ``u`` of shape (lanes, components, nodes)."""
    inv, q = (1 / pair.sigma)[..., None], pair.q[..., None]
    log_p = loss = jnp.zeros_like(u)
    for j in range(pair.sign.shape[-1]):
        l = _log_ratio(pair.sign[..., j, None] * u, inv, q)
        log_p, loss = log_p + pair.alpha[..., j, None] * l, loss + pair.beta[..., j, None] * l
    return Nodes(log_p, loss)


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
        # past 40 the other two terms of expm1_minus are below float32's digits, and exp(log_weight) may underflow
        top = 40.0 if is_single(y) else 690.0
        return jnp.where(y > top, exp(log_weight + y), exp(log_weight) * expm1_minus(jnp.minimum(y, top)))

    return term(gain) + s * term(-nodes.loss)


def _pull(pair: SampledGaussianPair, s: jax.Array, u_plus: jax.Array, u_minus: jax.Array) -> jax.Array:
    """x'(u) with the rising parts (sign 1) taken at u_plus and the falling ones at u_minus; (any, lanes, components)."""
    inv = 1 / pair.sigma
    total = jnp.zeros_like(u_plus)
    for j in range(pair.sign.shape[-1]):
        sign = pair.sign[..., j]
        u = sign * jnp.where(sign > 0, u_plus, u_minus)
        l = _log_ratio(u, inv, pair.q)
        rho = exp(log(pair.q + tiny(pair.q)) + u * inv - 0.5 * inv * inv - l)
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
    rounding = 1e-5 if is_single(s) else 1e-14

    # Falling parts alone make the weight log-concave, and the map falling: its one fixed point is found by bisection.
    concave = jnp.all(pair.sign < 0, -1)

    def shrink(_, ends):
        low, high = ends
        middle = 0.5 * (low + high)
        from_low, from_high = _pull(pair, s, ends, jnp.where(concave, middle, ends[::-1]))
        right = from_high > middle
        new_low = jnp.where(concave, jnp.where(right, middle, low), jnp.maximum(low, from_low * (1 - rounding)))
        new_high = jnp.where(concave, jnp.where(right, high, middle), jnp.minimum(high, from_high * (1 + rounding)))
        return jnp.stack([new_low, new_high])

    ends = jnp.stack([jnp.zeros_like(steepest), steepest])
    _, top = lax.fori_loop(np.int32(0), np.int32(30), shrink, ends)
    rising = jnp.any(pair.sign > 0, -1)
    falling = jnp.any(pair.sign < 0, -1)
    low = -MARGIN - jnp.where(falling, inv, 0.0)
    base = jnp.maximum(top, jnp.where(rising, inv, 0.0))

    # Close to a tangency the weight falls slowly above the last critical point: take the first of a few ends that do.
    ends = base[..., None] + MARGIN * like(_ENDS, base)
    edge = jnp.maximum(ends, steepest[..., None] + 1)
    places = jnp.concatenate([ends, edge, jnp.stack([low, base, jnp.zeros_like(top), top], -1)], -1)
    nodes = at(pair, places)
    log_w = -0.5 * places * places - 0.5 * LOG_2PI + nodes.log_p + s[:, None, None] * nodes.loss
    n = len(_ENDS)
    upper = logaddexp(log_w[..., :n] + log(edge - ends + tiny(ends)), log_w[..., n : 2 * n])
    enough = upper < jnp.maximum(0.0, log_w[..., -3:-2]) - 42.0
    # the ends rise and the bound falls: the first that is enough, or the last
    chosen = first_true(enough)
    high, upper = pick(ends, chosen), pick(upper, chosen)

    lower = log_w[..., 2 * n] - log(-low)
    linear = log(3 * jnp.sum(coefficients(pair, s), -1) * pair.q + tiny(pair.q)) - 0.5 * MARGIN**2 - np.log(MARGIN)
    at_top = log_w[..., -1] > log_w[..., -2]
    height = jnp.where(at_top, log_w[..., -1], log_w[..., -2])
    centre = jnp.where(at_top, nodes.loss[..., -1], nodes.loss[..., -2])
    return Window(low, high, lower, logaddexp(upper, linear), height, centre)


def log_secant(pair: SampledGaussianPair, s: jax.Array, shift: jax.Array) -> jax.Array:
    """log of sec(shift / (2 sigma))^c, c the falling parts' coefficient: |1 + v| shrinks at most so far off the real axis."""
    fall = jnp.sum(jnp.where(pair.sign < 0, coefficients(pair, s), 0.0), -1)
    pad = (1,) * (shift.ndim - fall.ndim)
    fall, sigma = fall.reshape(fall.shape + pad), pair.sigma.reshape(fall.shape + pad)
    return -fall * log(jnp.cos(jnp.minimum(shift / (2 * sigma), 0.5 * PI * 0.999)))


def log_tail_above(pair: SampledGaussianPair, s: jax.Array, win: Window, y: jax.Array) -> jax.Array:
    """A bound on the log of the modulus of N exp(x) outside the window on the line Im u = y, 0 <= y < pi sigma.

    With e = q exp(Re) and theta = y / sigma a falling part has |1 + v|^2 = (1 - q + e)^2 - 2 (1 - q) e (1 - cos theta), in
    units of its real value at its least where e = 1 - q, and close to 1 where e is small: to the right of the window.
    """
    inv, q = 1 / pair.sigma, pair.q
    e = q * exp(jnp.minimum(-win.high * inv - 0.5 * inv * inv, 0.0))
    half, _ = sincos(0.5 * y * inv)
    lost = 4 * (1 - q) * e * half * half / ((1 - q) + e + tiny(q)) ** 2
    fall = jnp.sum(jnp.where(pair.sign < 0, coefficients(pair, s), 0.0), -1)
    general = log_secant(pair, s, y)
    right = jnp.where(e < 1 - q, jnp.minimum(-0.5 * fall * log1p(-jnp.minimum(lost, 0.9)), general), general)
    return 0.5 * y * y + logaddexp(win.log_left + general, win.log_right + right)


def log_real_alias(pair: SampledGaussianPair, s: jax.Array, step: jax.Array, shift: jax.Array) -> jax.Array:
    """log of 2 min_a exp(a^2/2 - 2 pi a/step) sec((a + shift)/(2 sigma))^c / (1 - exp(-2 pi a/step)), a < pi sigma - shift.

    The trapezoid error of N(u) exp(x(u)) is at most this times exp K(s): on the lines Im u = +-a a rising part has
    |1 + v| at most its real value, a falling one at least its real value times cos(a / (2 sigma)).
    """
    limit = _STRIP * PI * pair.sigma - shift
    a = jnp.minimum(limit, 2 * PI / step)[..., None] * like(_FRACTIONS, s)
    decay = 2 * PI * a / step[..., None]
    secant = log_secant(pair, s, a + shift[..., None])
    return np.log(2.0) + jnp.min(0.5 * a * a - decay + secant - log(-expm1(-decay)), -1)


def real_step(pair: SampledGaussianPair, s: jax.Array, shift: jax.Array) -> jax.Array:
    """A node spacing at which ``log_real_alias`` is below -45."""
    a = jnp.minimum(0.999 * (_STRIP * PI * pair.sigma - shift), 9.5)[..., None] * like(_FRACTIONS, s)
    return 2 * PI / jnp.min((46.0 + log_secant(pair, s, a + shift[..., None])) / a + 0.5 * a, -1)


def _growth(pair: SampledGaussianPair, s: jax.Array, t: jax.Array, down: jax.Array) -> jax.Array:
    """log of a bound on the integral of |N exp(x + i t L)| over Im u = -down, relative to exp K(s); (..., shifts).

    There a part's |Im l| is at most down / sigma.
    """
    lost = pair.sign.shape[-1] / pair.sigma
    return 0.5 * down * down + (t[:, None] * lost)[..., None] * down + log_secant(pair, s, down)


def log_line_alias(pair: SampledGaussianPair, s: jax.Array, t: jax.Array, y: jax.Array, step: jax.Array) -> jax.Array:
    """log of a bound on the trapezoid error of N exp(x + i t' L) on Im u = y, 0 <= t' <= t, relative to exp K(s).

    By the integrals of the modulus on a line above, y + a < pi sigma, where exp(itL) is below 1, and on one below: the
    real axis, where it is exp K(s) itself, or one still further down.
    """
    limit = _STRIP * PI * pair.sigma
    a = jnp.minimum(limit - y, 2 * PI / step)[..., None] * like(_FRACTIONS, s)
    c = jnp.minimum(limit, 2 * PI / step)[..., None] * like(np.append(_FRACTIONS, 0.0), s)

    def bound(exponent, distance):
        if is_single(distance):
            return jnp.min(exponent - distance - log(-expm1(-distance)), -1)
        return jnp.min(exponent - log(expm1(jnp.minimum(distance, 700.0))), -1)

    up = y[..., None] + a
    above = bound(0.5 * up * up + log_secant(pair, s, up), 2 * PI * a / step[..., None])
    below = bound(_growth(pair, s, t, c), 2 * PI * (y[..., None] + c) / step[..., None])
    return logaddexp(above, below)


def line_for(pair: SampledGaussianPair, s: jax.Array, t: jax.Array, nats: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(y, step): the line and the widest spacing at which ``log_line_alias`` is about -nats; (lanes, components)."""
    limit = _STRIP * PI * pair.sigma
    # On Im u = y the terms are exp(y^2 / 2) larger than on the real axis, and so is their rounding.
    y = jnp.minimum(0.5 * limit, 2.0)[..., None] * like(_HEIGHTS, s)
    far = jnp.minimum(limit, 9.5)[..., None]
    a = jnp.minimum(limit[..., None] - y, far)[..., None] * like(_FRACTIONS, s)
    c = far * like(np.append(_FRACTIONS, 0.0), s)
    need = nats[..., None, None]
    up = y[..., None] + a
    above = jnp.max(2 * PI * a / (need + 0.5 * up * up + log_secant(pair, s, up)), -1)
    below = jnp.max(2 * PI * (y[..., None] + c[..., None, :]) / (need + _growth(pair, s, t, c)[..., None, :]), -1)
    step = jnp.minimum(above, below)
    best = at_least(-step * exp(-0.25 * y * y))
    return pick(y, best), pick(step, best)


class RealCumulant(NamedTuple):
    """K at a real s; (lanes, components).

    ``log_error`` is the log of a two-sided error relative to the exact exp K, rounding apart; ``size`` times a few ulp
    bounds the rounding of ``value``; ``mean`` is the loss's mean under the tilted weight.
    """

    value: jax.Array
    log_error: jax.Array
    mean: jax.Array
    size: jax.Array

    def log_excess(self) -> jax.Array:
        """How far log exp K may lie above ``value``, rounding apart; infinite where ``log_error`` bounds nothing."""
        error = exp(jnp.minimum(self.log_error, 0.0))
        return jnp.where(self.log_error < 0, -ln1p(-jnp.where(self.log_error < 0, error, 0.0)), jnp.inf)


def real(pair: SampledGaussianPair, s: jax.Array, win: Window, step: jax.Array, block: int = 64) -> RealCumulant:
    """K(s) from nodes win.low + j step, with |computed - exact| <= exp(K + log_error) for exp K, K the exact one.

    Rounding: each term carries the ulps of its exponents; the largest error seen in 1800 random cases is 1.34 ulp of
    ``size``.
    """
    count = _count(win, step)

    tilt = s[:, None, None]

    def body(carry):
        b, crest, g, z, m1, rough_g, rough_z = carry
        u, inside = grid(win, step, count, b, block)
        nodes = once(jnp.max(count) > b, lambda: at(pair, u))
        log_n = -0.5 * u * u - 0.5 * LOG_2PI
        log_w = jnp.where(inside, log_n + nodes.log_p + tilt * nodes.loss, -jnp.inf)
        # the window's height is the largest weight's only where the window has settled
        top = jnp.maximum(crest, jnp.max(log_w, -1))
        w, fall = exp(log_w - top[..., None]), exp(crest - top)
        excess = jnp.where(inside, weighted_excess(nodes, tilt, log_n), 0.0)
        exponents = 4 + jnp.abs(log_n) + jnp.abs(nodes.log_p) + tilt * jnp.abs(nodes.loss)
        return (
            b + 1,
            top,
            g + jnp.sum(excess, -1),
            fall * z + jnp.sum(w, -1),
            fall * m1 + jnp.sum(w * (nodes.loss - win.centre[..., None]), -1),
            rough_g + jnp.sum(excess * (exponents + jnp.abs(nodes.loss)), -1),
            fall * rough_z + jnp.sum(w * exponents, -1),
        )

    zero = jnp.zeros_like(pair.sigma)
    _, crest, g, z, m1, rough_g, rough_z = lax.while_loop(
        lambda carry: carry[0] * block < jnp.max(count), body, (np.int32(0), win.height, *(zero,) * 5)
    )
    mean = m1 / z
    plain = crest + log(step * z)
    large = plain > 5.0
    excess = step * jnp.where(large, 0.0, g)
    value = jnp.where(large, plain, ln1p(excess))
    size = jnp.where(large, rough_z / z, step * jnp.where(large, 0.0, rough_g) / (1 + excess))
    # the linear terms are entire: their own alias is 2 exp(-2 pi^2 / step^2) (1 + 2 q sum |c|)
    linear = log(2 * (1 + 2 * pair.q * jnp.sum(coefficients(pair, s), -1))) - 2 * PI**2 / step**2
    alias = logaddexp(log_real_alias(pair, s, step, jnp.zeros_like(step)), linear - value)
    error = logaddexp(alias, win.log_tail - value)
    return RealCumulant(value, error, win.centre + mean, size)


def _count(win: Window, step: jax.Array) -> jax.Array:
    return jnp.ceil((win.high - win.low) / step).astype(jnp.int32) + 1


def grid(win: Window, step: jax.Array, count: jax.Array, b: jax.Array, block: int) -> tuple[jax.Array, jax.Array]:
    """The nodes of block ``b``, and whether each is one of the ``count`` first; (lanes, components, block)."""
    j = b * np.int32(block) + np.arange(block, dtype=np.int32)
    return win.low[..., None] + j.astype(step.dtype) * step[..., None], j < count[..., None]


# --------------------------------------------------------------------------------------------------------------------
# Above the real axis


class Shifted(NamedTuple):
    """A pair at u + iy: log and angle of N exp(x), the loss (imaginary part >= 0), and of each part l = log(1 + v).

    ``exponents`` is the size of what log_modulus and angle were added from, ``rough`` the loss's rounding in ulp: that of
    the exponent u / sigma - 1 / (2 sigma^2), as far as it moves the loss.
    """

    log_modulus: jax.Array
    angle: jax.Array
    loss: Complex
    part_l: tuple[Complex, ...]
    exponents: jax.Array
    rough: jax.Array


def shifted(pair: SampledGaussianPair, s: jax.Array, u: jax.Array, y: jax.Array) -> Shifted:
    """The pair at u + iy, 0 <= y < pi sigma; the axes of u behind (lanes, components) are free, y broadcasts."""
    lift = lambda a: a.reshape(a.shape + (1,) * (u.ndim - a.ndim))
    inv, q, tilt = lift(1 / pair.sigma), lift(pair.q), lift(s)
    sine, cosine = sincos(y * inv)
    half, _ = sincos(0.5 * y * inv)
    versine = 2 * half * half
    log_modulus = 0.5 * (y * y - u * u) - 0.5 * LOG_2PI
    angle = -u * y
    exponents = jnp.abs(log_modulus) + jnp.abs(angle)
    rough = jnp.zeros_like(angle)
    top = 43.0 if is_single(u) else 300.0  # exp(top) is squared below
    loss, parts = (jnp.zeros_like(angle), jnp.zeros_like(angle)), []
    for j in range(pair.sign.shape[-1]):
        sign, alpha, beta = (lift(a[..., j]) for a in pair[2:])
        exponent = sign * u * inv - 0.5 * inv * inv
        capped = jnp.minimum(exponent, top)
        e, em1 = q * exp(capped), q * expm1(capped)
        re, im = em1 * cosine - q * versine, e * sine  # v
        whole = (1 - q) + e * cosine
        near = re > -0.4
        safe = jnp.where(near, re, 0.0)
        small = 0.5 * log1p(jnp.where(near, 2 * safe + safe * safe + im * im, 0.0))
        log_r = jnp.where(near, small, 0.5 * log(whole * whole + im * im + tiny(im)))
        if is_single(u):  # q alone may not be what counts there: all of it, divided by exp(exponent)
            fall = (1 - q) * exp(-jnp.maximum(exponent, 0.0))
            high = 0.5 * log((fall + q * cosine) ** 2 + (q * sine) ** 2 + tiny(im))
        else:
            high = log(q + tiny(q))
        log_r = jnp.where(exponent > top, exponent + high, log_r)
        log_r = jnp.where(q >= 1, exponent, jnp.where(q > 0, log_r, 0.0))
        l = (log_r, sign * jnp.where(q >= 1, y * inv, arctan2(im, whole)))
        c = alpha + tilt * beta
        log_modulus, angle = log_modulus + c * l[0], angle + c * l[1]
        exponents = exponents + jnp.abs(c) * (jnp.abs(l[0]) + jnp.abs(l[1]))
        loss = add(loss, scale(beta, l))
        rho = jnp.where(q >= 1, 1.0, e / jnp.sqrt(whole * whole + im * im + tiny(im)))
        rough = rough + jnp.abs(beta) * rho * (jnp.abs(u) * inv + 0.5 * inv * inv)
        parts.append(l)
    return Shifted(log_modulus, angle, loss, tuple(parts), exponents, rough)


def log_envelope(
    pair: SampledGaussianPair, s: jax.Array, t: jax.Array, y: jax.Array, win: Window, step: jax.Array, block: int = 64
) -> jax.Array:
    """Log of the sum of |N exp(x)| exp(-t Im L) on the line Im u = y (lanes, components), t >= 0.

    The integral bounds |exp K(s + i t')| for every t' >= t: the contour of the inner integral may be moved up to
    Im u = y, and there |exp(i t' L)| = exp(-t' Im L).
    """
    count = _count(win, step)

    def body(carry):
        b, crest, z = carry
        u, inside = grid(win, step, count, b, block)

        def exponents():
            nodes = shifted(pair, s, u, y[..., None])
            return jnp.where(inside, nodes.log_modulus - t[:, None, None] * nodes.loss[1], -jnp.inf)

        exponent = once(jnp.max(count) > b, exponents)
        top = jnp.maximum(crest, jnp.max(exponent, -1))
        z = z * exp(crest - top) + jnp.sum(exp(exponent - top[..., None]), -1)
        return b + 1, top, z

    start = (np.int32(0), jnp.full_like(pair.sigma, -1e30 if is_single(s) else -1e300), jnp.zeros_like(pair.sigma))
    _, crest, z = lax.while_loop(lambda carry: carry[0] * block < jnp.max(count), body, start)
    return logaddexp(crest + log(step * z), log_tail_above(pair, s, win, y))


class Moments(NamedTuple):
    """phi(t) = exp(K(s + it) - K(s) - i t mean) as (1 - a) + ib, and sums with ``columns``.

    a and b are (lanes, components, t-nodes) and keep relative accuracy where phi is close to 1; ``columns`` are sums of
    exp(i t (L - mean)) times the columns, with a last axis for them; a few ulp of t times ``spread`` (lanes, components)
    bound the rounding of a and b: it is the sum of |w| |L - mean|, more where the exponents of w or of L itself are large.
    """

    a: jax.Array
    b: jax.Array
    columns: Complex
    spread: jax.Array


def columns(pair: SampledGaussianPair, u: jax.Array, y: jax.Array, part_l: tuple[Complex, ...], order: int) -> Complex:
    """Derivatives of each part's l with respect to sigma and q at fixed u + iy; (lanes, components, columns, nodes).

    order 1: l_sigma, l_q of every part. order 2 adds l_ss, l_sq, l_qq of every part and the products of all the first
    derivatives, row by row of the upper triangle.
    """
    inv, q = (1 / pair.sigma)[..., None], pair.q[..., None]
    first, second = [], []
    for j, l in enumerate(part_l):
        v = (pair.sign[..., j, None] * u, pair.sign[..., j, None] * y)
        exponent = (v[0] * inv - 0.5 * inv * inv, v[1] * inv)
        tilt = polar(exponent[0] - l[0], exponent[1] - l[1])  # density ratio of the shifted component to the mixture
        base = polar(-l[0], -l[1])
        # (exp(y) - 1) / (1 + v), whichever way does not overflow
        up = _complex.expm1(jnp.minimum(exponent[0], 0.0), exponent[1])
        down = _complex.expm1(-jnp.maximum(exponent[0], 0.0), -exponent[1])
        near, far = mul(up, base), mul(down, tilt)
        l_q = each(lambda a, b, up=exponent[0] > 0: jnp.where(up, -b, a), near, far)
        rho = scale(q, tilt)
        y_i = (v[0] - inv, v[1])
        l_i = mul(rho, y_i)
        first += [scale(-(inv**2), l_i), l_q]
        if order > 1:
            bent = mul(mul(rho, (1 - rho[0], -rho[1])), mul(y_i, y_i))
            l_ii = (bent[0] - rho[0], bent[1] - rho[1])
            l_iq = mul(mul(tilt, base), y_i)
            second += [
                add(scale(inv**4, l_ii), scale(2 * inv**3, l_i)),
                scale(-(inv**2), l_iq),
                scale(-1.0, mul(l_q, l_q)),
            ]
    products = [mul(first[i], first[k]) for i in range(len(first)) for k in range(i, len(first))] if order > 1 else []
    every = first + second + products
    return jnp.stack([c[0] for c in every], 2), jnp.stack([c[1] for c in every], 2)


def moments(
    pair: SampledGaussianPair,
    s: jax.Array,
    rows: jax.Array,
    across: jax.Array,
    win: Window,
    y: jax.Array,
    step: jax.Array,
    tilted: RealCumulant,
    order: int = 0,
    block: int = 64,
) -> Moments:
    """phi at every t = rows + across, (lanes, number of rows) and (lanes, number across), row by row.

    With A and B the phases of a row and of a column, exp(A + B) - 1 = (exp A - 1) + (exp B - 1) + (exp A - 1)(exp B - 1),
    and each of the three keeps its relative accuracy through the sum over the inner nodes: n nodes cost a matrix product
    and 2 sqrt(n) exponentials.
    """
    count = _count(win, step)
    parts = pair.sign.shape[-1]
    n_columns = 0 if order == 0 else 2 * parts if order == 1 else 5 * parts + parts * (2 * parts + 1)
    log_norm = (tilted.value - log(step))[..., None]

    def dot(a: Complex, b: Complex) -> Complex:
        """The sums over the last axis of a (..., rows, inner nodes) times b (..., across, inner nodes)."""
        real = lambda x, y: jnp.einsum("lmax,lmbx->lmab", x, y, precision=lax.Precision.HIGHEST)
        return real(a[0], b[0]) - real(a[1], b[1]), real(a[0], b[1]) + real(a[1], b[0])

    height, count_max = y[..., None], jnp.max(count)

    def body(carry):
        b, single_a, single_b, both, spread, of_columns = carry
        u, inside = grid(win, step, count, b, block)

        def weighed():
            nodes = shifted(pair, s, u, height)
            w = polar(jnp.where(inside, nodes.log_modulus - log_norm, -jnp.inf), nodes.angle)
            away, up = nodes.loss[0] - tilted.mean[..., None], nodes.loss[1]
            size = (1 + nodes.exponents / 8) * (jnp.abs(away) + up) + nodes.rough / 4
            return nodes.part_l, w, (jnp.abs(w[0]) + jnp.abs(w[1])) * size, away, up

        part_l, w, size, away, up = once(count_max > b, weighed)

        def phases(t):  # exp(i t (L - mean)) - 1, (lanes, components, t-nodes, inner nodes)
            t = t[:, None, :, None]
            return _complex.expm1(-t * up[:, :, None], t * away[:, :, None])

        e, f = phases(rows), phases(across)
        w = (w[0][:, :, None], w[1][:, :, None])
        weighted = mul(f, w)
        new = (
            add(single_a, each(lambda c: jnp.sum(c, -1), mul(e, w))),
            add(single_b, each(lambda c: jnp.sum(c, -1), weighted)),
            add(both, dot(e, weighted)),
            spread + jnp.sum(size, -1),
        )
        if n_columns:
            full = (1 + f[0], f[1])
            c = mul(columns(pair, u, height, part_l, order), w)
            c = mul((c[0][:, :, :, None], c[1][:, :, :, None]), (full[0][:, :, None], full[1][:, :, None]))
            flat = each(lambda x: x.reshape((*x.shape[:2], -1, x.shape[-1])), c)  # columns x t-nodes
            of_columns = add(of_columns, dot((1 + e[0], e[1]), flat))
        return b + 1, *new, of_columns

    shape, na, nb = pair.sigma.shape, rows.shape[-1], across.shape[-1]
    zero = jnp.zeros(shape, rows.dtype)

    def zeros(*more: int) -> Complex:
        empty = jnp.zeros((*shape, *more), rows.dtype)
        return empty, empty

    start = (np.int32(0), zeros(na), zeros(nb), zeros(na, nb), zero, zeros(na, n_columns * nb))
    _, single_a, single_b, both, spread, of_columns = lax.while_loop(
        lambda carry: carry[0] * block < jnp.max(count), body, start
    )

    def by_column(x):
        return jnp.moveaxis(x.reshape((*shape, na, n_columns, nb)), -2, -1).reshape((*shape, na * nb, n_columns))

    less, b = each(
        lambda x, y, z: (x[..., None] + y[:, :, None] + z).reshape((*shape, na * nb)), single_a, single_b, both
    )
    return Moments(-less, b, each(by_column, of_columns), spread)
