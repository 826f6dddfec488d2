r"""Renyi divergences of one law, from above, by integrals of its profiles.

With s = order - 1 and I the sum of the areas under both profiles,

.. math:: E_P\, e^{sL} - 1 = s (1+s) I(s), \qquad
    I(s) = \int_0^\infty e^{sy} \delta(y)\,dy + \int_0^\infty e^{-(1+s)y} \delta_{rev}(y)\,dy,

delta being the profile of (P, Q) and delta_rev that of (Q, P). All terms are positive, so nothing cancels: the answer
keeps its digits where the loss is small, s may be in (-1, 0), and s = 0 is the Kullback-Leibler divergence. Profiles
are convex in exp(y), so a chord in exp(y) over each cell bounds the integral from above.

Where E_P e^{sL} is small (s < 0), its logarithm needs a lower bound of the moment itself:

.. math:: E_P\, e^{sL} = -s (1+s) \int e^{sy} E_Q \min(e^L, e^y)\,dy,

whose integrand is concave in exp(y): the same chords bound it from below.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dpjax._special import expm1_minus
from dpjax.laws import Law, Reversed
from dpjax.laws._law import TINY
from dpjax.laws.finite import FiniteLaw
from dpjax.laws.sampled import MixedLaw

CELLS = 4096
_SHORT = 1 - 0.5 ** np.arange(1, 48)  # close to the end of a bounded loss
_REACH = np.concatenate([[0.0], np.geomspace(1e-10, 1e6, CELLS - _SHORT.size)])
_HALF = CELLS // 2
_COARSE = np.sort(
    np.concatenate([[0.0], np.geomspace(1e-9, 1.0, CELLS - _HALF), np.arange(1, _HALF + 1) / (_HALF + 1)])
)
_GAUSS, _WEIGHT = (0.5 * (np.polynomial.legendre.leggauss(8)[0] + 1), 0.5 * np.polynomial.legendre.leggauss(8)[1])
_WIDEST = 2.0  # (1 + |s|) times the width of a cell, up to which eight nodes integrate its weights to rounding
_UNIT = 2.3e-16
_NEGLIGIBLE = 42.0  # nats


def as_finite(law: Law) -> FiniteLaw | None:
    """``law`` as a list of atoms, if it is one."""
    if isinstance(law, FiniteLaw):
        return law
    if isinstance(law, Reversed):
        f = as_finite(law.law)
        return f and FiniteLaw(-f.loss[::-1], f.q[::-1], f.p[::-1], f.q_bottom, f.p_top, f.unit)
    if isinstance(law, MixedLaw):
        f = as_finite(law.law)
        if f is None:
            return None
        part = law.rate < 1  # the outcomes that the base pair rules out become an atom
        loss = jnp.where(part, jnp.log1p(-jnp.where(part, law.rate, 0.0)), jnp.min(f.loss))
        mass = jnp.where(part, f.q_bottom, 0.0)
        first = lambda a, b: jnp.concatenate([jnp.reshape(a, (1,)), b])
        p = (1 - law.rate) * f.q + law.rate * f.p
        near = f.loss > -1.0
        close = jnp.log1p(law.rate * jnp.expm1(jnp.where(near, f.loss, 0.0)))
        mixed = jnp.where(near, close, jnp.log((1 - law.rate) + law.rate * jnp.exp(jnp.where(near, 0.0, f.loss))))
        return FiniteLaw(
            first(loss, mixed), first((1 - law.rate) * mass, p), first(mass, f.q),
            law.rate * f.p_top, f.q_bottom - mass, 0.0,
        )  # fmt: skip
    return None


def divergence(law: Law, order: Any) -> jax.Array:
    """The Renyi divergence of P from Q at a scalar order in (0, inf], from above."""
    last = jnp.isinf(order)
    s = jnp.where(last, 1.0, order - 1)
    finite = as_finite(law)
    law = law if finite is None else finite
    value = _of_atoms(finite, s) if finite is not None else _of_law(law, s)
    value = jnp.where((law.p_infinite() > 0) & (s >= 0), jnp.inf, value)
    largest = jnp.where(law.p_infinite() > 0, jnp.inf, jnp.maximum(law.support()[1], 0.0))
    value = jnp.where(last, largest, jnp.minimum(value, largest))
    return jnp.where(jnp.isnan(value), jnp.inf, value)


def _from_area(s: Any, log_area: Any) -> jax.Array:
    """log(1 + s (1 + s) I) / s from log I; infinite where 1 + s (1 + s) I <= 0."""
    large = (s > 0) & (log_area + jnp.log(jnp.where(s > 0, s, 1.0) * (1 + s)) > 30.0)
    area = jnp.exp(jnp.where(large, 0.0, log_area))
    z = s * (1 + s) * area
    small = jnp.abs(z) < 1e-8
    sane = ~small & (z > -1.0)
    ratio = jnp.where(small, 1 - 0.5 * z, jnp.log1p(jnp.where(sane, z, 1.0)) / jnp.where(sane, z, 1.0))
    near = jnp.where(z > -1.0, (1 + s) * area * ratio, jnp.inf)
    safe = jnp.where(large, s, 1.0)
    log_z = jnp.log(safe * (1 + safe)) + jnp.where(large, log_area, 40.0)
    return jnp.where(large, (log_z + jnp.exp(-log_z)) / safe, near)


def _of_atoms(law: FiniteLaw, s: Any) -> jax.Array:
    """Exact sums, rounded up."""
    s = jnp.where(jnp.abs(s) < 1e-14, 1e-14, s)
    rounding = 1 + _UNIT * (64 + 2 * law.loss.shape[-1])
    # below -1/2 the terms cancel: there the reversed pair's are the same sum
    flip = s < -0.5
    tilt = jnp.where(flip, -1 - s, s)
    mass, loss = jnp.where(flip, law.q, law.p), jnp.where(flip, -law.loss, law.loss)
    top, bottom = jnp.where(flip, law.q_bottom, law.p_top), jnp.where(flip, law.p_top, law.q_bottom)
    exponent = tilt * loss
    shift = lax.stop_gradient(jnp.maximum(jnp.max(exponent), 0.0))
    shift = jnp.where(shift > 600.0, shift - 600.0, 0.0)
    rise = jnp.where(
        exponent > 600.0,
        jnp.exp(jnp.maximum(exponent, 600.0) - shift),
        expm1_minus(jnp.minimum(exponent, 600.0)) * jnp.exp(-shift),
    )
    # p expm1_minus(-L) is q - p + p L: from q, which does not overflow
    fall = jnp.where(
        loss > -30.0,
        mass * expm1_minus(-jnp.maximum(loss, -30.0)),
        jnp.where(flip, law.p, law.q) - mass + mass * loss,
    )
    terms = mass * rise / tilt + fall * jnp.exp(-shift)
    scaled = jnp.sum(terms) / (1 + tilt) + (bottom / (1 + tilt) - top / tilt) * jnp.exp(-shift)
    some = scaled > 0
    log_area = jnp.log(jnp.where(some, scaled, 1.0) * rounding) + shift
    sharp = _from_area(s, log_area)
    plain = jnp.sum(jnp.where(law.p > 0, law.p * jnp.exp(jnp.minimum(s * law.loss, 600.0)), 0.0)) / rounding
    log_plain = jnp.log(jnp.where(plain > 0, plain, 1.0)) - 4 * _UNIT
    whole = jnp.where(plain > 0, log_plain / s + _UNIT * jnp.max(jnp.abs(law.loss)), jnp.inf)
    return jnp.where(some, jnp.where(s < 0, jnp.minimum(sharp, whole), sharp), 0.0)


def _candidates(end: Any) -> jax.Array:
    """Where the integral of a profile that ends at ``end`` may stop; (CELLS + 1,)."""
    near = jnp.where(end < jnp.inf, end, 1e6) * _SHORT
    return jnp.sort(jnp.minimum(jnp.concatenate([jnp.asarray(_REACH), near]), end))


def _reach(y: jax.Array, values: jax.Array, s: Any, log_rest: jax.Array, end: Any) -> jax.Array:
    """One of the candidates; nothing certified depends on which, but what lies beyond is counted at its bound."""
    some = values > TINY
    seen = s * y + jnp.log(jnp.where(some, values, 1.0)) + jnp.log(jnp.maximum(y, 1e-300))
    peak = jnp.max(jnp.where(some, seen, -jnp.inf))
    index = jnp.argmax((log_rest < peak - _NEGLIGIBLE) | ~some | (y >= end))
    # where the profile underflows, stop before
    return y[jnp.where(~some[index] & (y[index] < end), jnp.maximum(index - 1, 1), index)]


def _refined(y: jax.Array, v: jax.Array, s: Any) -> jax.Array:
    """Cell ends on the interval of ``y``, dense where the chord's error is; (CELLS + 1,)."""
    right, left = jnp.expm1(y[2:] - y[1:-1]), -jnp.expm1(y[:-2] - y[1:-1])
    bend = jnp.abs((v[2:] - v[1:-1]) / right - (v[1:-1] - v[:-2]) / left) / (right + left)
    exponent = (jnp.log(jnp.where(bend > 0, bend, 1.0)) + s * y[1:-1]) / 3
    crest = jnp.max(jnp.where(bend > 0, exponent, -jnp.inf))
    density = jnp.where(bend > 0, jnp.exp(exponent - crest), 0.0)
    density = jnp.where(jnp.isfinite(density), density, 0.0)
    width = jnp.diff(y)
    each = jnp.maximum(jnp.concatenate([density, density[-1:]]), jnp.concatenate([density[:1], density])) * width
    total = jnp.sum(each)
    share = jnp.where(total > 0, each / jnp.where(total > 0, total, 1.0), 0.0)
    # a part of the cells goes to the coarse grid itself, whatever the bend was taken for
    share = 0.8 * share + 0.1 * width / y[-1] + 0.1 / width.shape[0]
    filled = jnp.concatenate([jnp.zeros(1), jnp.cumsum(share)])
    nodes = jnp.interp(jnp.arange(CELLS + 1) / CELLS, filled / filled[-1], y)
    return nodes.at[0].set(0.0).at[-1].set(y[-1])


def _chords(nodes: jax.Array, values: jax.Array, s: Any, *, above: bool) -> tuple[jax.Array, jax.Array]:
    """(m, x): the integral of exp(s y) times the chords in exp(y) is exp(m) x, rounded up or down."""
    positive = values > 0
    logs = jnp.log(jnp.where(positive, values, 1.0))
    m = lax.stop_gradient(jnp.max(jnp.where(positive, s * nodes + logs, -jnp.inf)))
    m = jnp.where(jnp.isfinite(m), m, 0.0)
    slack = _UNIT * (2 * Law.ULPS * (1 + jnp.abs(logs)) + 4 * (1 + jnp.abs(s)) * jnp.abs(nodes) + 4 * jnp.abs(m) + 64)
    values = values * (1 + lax.stop_gradient(slack) * (1.0 if above else -1.0))
    a, w = nodes[:-1], jnp.diff(nodes)
    fine = ((1 + jnp.abs(s)) * w <= _WIDEST) & (w > 0)
    wide = jnp.where(fine, w, 1.0)
    u = wide[:, None] * _GAUSS
    part = jnp.expm1(u) / jnp.expm1(wide)[:, None]
    tilted = wide[:, None] * _WEIGHT * jnp.exp(jnp.minimum(s * u, 50.0))
    to_right, to_left = jnp.sum(tilted * part, 1), jnp.sum(tilted * (1 - part), 1)
    cell = values[:-1] * to_left + values[1:] * to_right
    # a cell that is too wide gets the larger end, or nothing
    most = jnp.maximum(values[:-1], values[1:]) * w * jnp.exp(jnp.maximum(s * w, 0.0)) if above else 0.0
    cell = jnp.where(fine, cell, jnp.where(w > 0, most, 0.0))
    return m, jnp.sum(jnp.where(cell > 0, cell * jnp.exp(s * a - m), 0.0))


def _log_rest_above(law: Law, s: Any, y: Any, value: Any) -> jax.Array:
    """log of a bound on the integral of exp(s y) profile(y) from y on, the profile being ``value`` there."""
    positive, negative = s > 0, s < 0
    sharp = law.log_moment_above(jnp.maximum(s, 0.0), y) - jnp.log(jnp.where(positive, s * (1 + s), 1.0))
    sharp = jnp.where(positive, sharp, jnp.inf)
    # L - y <= exp(L - y)
    sharp = jnp.minimum(sharp, law.log_moment_above(1 + s, y) - y)
    flat = s * y + jnp.log(jnp.maximum(value, TINY)) - jnp.log(jnp.where(negative, -s, 1.0))
    flat = jnp.where(negative, flat, jnp.inf)
    infinite = law.p_infinite() > 0
    ended = jnp.where(infinite, flat, -jnp.inf)
    return jnp.where(y >= law.support()[1], ended, jnp.where(infinite, flat, jnp.minimum(sharp, flat)))


def _log_rest_below(law: Law, s: Any, y: Any, value: Any) -> jax.Array:
    """The same of exp(-(1 + s) y) times the reversed pair's profile."""
    ended = (y >= -law.support()[0]) & (law.q_infinite() <= 0)
    rest = jnp.log(jnp.maximum(value, TINY)) - (1 + s) * y - jnp.log(1 + s)
    return jnp.where(ended, -jnp.inf, rest)


def _place(law: Law, s: Any) -> tuple[jax.Array, jax.Array]:
    """Cell ends for both profiles."""
    low, high = law.support()
    end = lambda x, mass: jnp.where(mass > 0, jnp.inf, jnp.maximum(x, 1e-10))
    ends = end(high, law.p_infinite()), end(-low, law.q_infinite())
    tilts = s, -1 - s

    def stage(i, nodes):
        up, down = nodes
        values = law.profile(up), law.profile_below(-down)
        rests = _log_rest_above(law, s, up, values[0]), _log_rest_below(law, s, down, values[1])
        first = [_reach(*side) * _COARSE for side in zip(nodes, values, tilts, rests, ends, strict=True)]
        second = [_refined(*side) for side in zip(nodes, values, tilts, strict=True)]
        return tuple(jnp.where(i == 0, a, b) for a, b in zip(first, second, strict=True))

    start = tuple(_candidates(end) for end in ends)
    # a loop, so that the profiles are compiled once
    return lax.fori_loop(np.int32(0), np.int32(2), stage, start)


def _of_law(law: Law, s: Any) -> jax.Array:
    up, down = lax.stop_gradient(_place(lax.stop_gradient(law), lax.stop_gradient(s)))
    values = law.profile(up), law.profile_below(-down)
    m1, x1 = _chords(up, values[0], s, above=True)
    m2, x2 = _chords(down, values[1], -1 - s, above=True)
    rest1 = _log_rest_above(law, s, up[-1], values[0][-1])
    rest2 = _log_rest_below(law, s, down[-1], values[1][-1])
    m = lax.stop_gradient(jnp.maximum(jnp.maximum(m1, m2), jnp.maximum(rest1, rest2)))
    m = jnp.where(jnp.isfinite(m), m, 0.0)
    area = x1 * jnp.exp(m1 - m) + x2 * jnp.exp(m2 - m) + jnp.exp(rest1 - m) + jnp.exp(rest2 - m)
    sharp = _from_area(s, m + jnp.log(area) + 64 * _UNIT) * (1 + 16 * _UNIT)

    # the moment itself, from below
    negative = s < 0
    t = jnp.where(negative, s, -0.5)
    grid = jnp.concatenate([-down[:0:-1], up])
    tails = law.tails(grid)
    values = tails.p_below + jnp.exp(grid) * tails.q_above
    m, x = _chords(grid, values, t, above=False)
    ends = values[-1] * jnp.exp(t * up[-1] - m) / -t + values[0] * jnp.exp(-t * down[-1] - m) / (1 + t)
    moment = (x + ends * (1 - 1e-12)) * -t * (1 + t)
    there = moment > 0
    whole = (m + jnp.log(jnp.where(there, moment, 1.0)) - 64 * _UNIT) / t
    return jnp.where(negative & there, jnp.minimum(sharp, whole), sharp)


def transform(law: Law, t: Any) -> tuple[jax.Array, jax.Array]:
    """(log modulus, argument in [-pi, pi]) of E_P exp(i t L) over finite losses, an estimate, at a scalar t.

    Each cell's mass sits at the log of its ratio of masses, which lies in the cell: exact for atoms.
    """
    finite = as_finite(law)
    if finite is not None:
        mass, loss = finite.p, finite.loss
    else:
        up, down = lax.stop_gradient(_place(lax.stop_gradient(law), 0.0))
        tails = law.tails(jnp.concatenate([-down[:0:-1], up]))
        # from the side on which tails are small
        upper = jnp.arange(tails.p_above.size) >= down.size - 1
        falls = lambda above, below: jnp.where(upper[:-1], above[:-1] - above[1:], below[1:] - below[:-1])
        p, q = falls(tails.p_above, tails.p_below), falls(tails.q_above, tails.q_below)
        p = jnp.concatenate([tails.p_below[:1], p, tails.p_above[-1:]])
        q = jnp.concatenate([tails.q_below[:1], q, tails.q_above[-1:]])
        both = (p > 0) & (q > 0)
        mass = jnp.where(both, p, 0.0)
        loss = jnp.where(both, jnp.log(jnp.where(both, p, 1.0)) - jnp.log(jnp.where(both, q, 1.0)), 0.0)
    real, imaginary = jnp.sum(mass * jnp.cos(t * loss)), jnp.sum(mass * jnp.sin(t * loss))
    return 0.5 * jnp.log(real**2 + imaginary**2), jnp.arctan2(imaginary, real)
