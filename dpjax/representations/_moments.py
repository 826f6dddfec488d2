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

from collections.abc import Callable
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
_COARSE = np.concatenate([[0.0], np.geomspace(1e-9, 1.0, 384), np.linspace(0.0, 1.0, 386)[1:-1]])
_COARSE = np.unique(_COARSE)
_REACH = np.concatenate([[0.0], np.geomspace(1e-10, 1e6, 400)])
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
        return FiniteLaw(
            first(loss, jnp.log1p(law.rate * jnp.expm1(f.loss))), first((1 - law.rate) * mass, p), first(mass, f.q),
            law.rate * f.p_top, f.q_bottom - mass, 0.0,
        )  # fmt: skip
    return None


def divergence(law: Law, order: Any) -> jax.Array:
    """The Renyi divergence of P from Q at a scalar order in (0, inf], from above."""
    last = jnp.isinf(order)
    s = jnp.where(last, 1.0, order - 1)
    finite = as_finite(law)
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
    s = jnp.where(jnp.abs(s) < 1e-12, 1e-12, s)
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


def _reach(law: Law, s: Any, log_profile: Callable, log_beyond: Callable, end: Any) -> jax.Array:
    """Where an integral of exp(s y) times a profile may stop: nothing certified depends on it, but what lies beyond."""
    y = jnp.asarray(_REACH)
    logs = log_profile(y)
    seen = s * y + logs + jnp.log(jnp.maximum(y, 1e-300))
    peak = jnp.max(jnp.where(logs > np.log(TINY), seen, -jnp.inf))
    done = (log_beyond(y) < peak - _NEGLIGIBLE) | (logs <= np.log(TINY)) | (y >= end)
    index = jnp.argmax(done)
    # where the profile underflows, stop before
    index = jnp.where(logs[index] <= np.log(TINY), jnp.maximum(index - 1, 1), index)
    return jnp.minimum(y[index], end)


def _nodes(profile: Callable, s: Any, top: Any) -> jax.Array:
    """Cell ends on [0, top], dense where the chord's error is; (CELLS + 1,)."""
    y = top * jnp.asarray(_COARSE)
    v = profile(y)
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
    share = 0.8 * share + 0.1 * width / top + 0.1 / width.shape[0]
    filled = jnp.concatenate([jnp.zeros(1), jnp.cumsum(share)])
    nodes = jnp.interp(jnp.arange(CELLS + 1) / CELLS, filled / filled[-1], y)
    return nodes.at[0].set(0.0).at[-1].set(top)


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


def _of_law(law: Law, s: Any) -> jax.Array:
    still = lax.stop_gradient(law)
    tilt = lax.stop_gradient(s)
    low, high = (lax.stop_gradient(jnp.asarray(x)) for x in still.support())
    floor = lambda f: jnp.log(jnp.maximum(f, TINY))

    def beyond_above(law, s, y):  # log of the integral from y on
        plain = jnp.where(s > 0, law.log_moment_above(jnp.maximum(s, 0.0), y) - jnp.log(jnp.where(s > 0, s, 1.0)), jnp.inf)
        flat = jnp.where(s < 0, s * y + floor(law.profile(y)) - jnp.log(jnp.where(s < 0, -s, 1.0)), jnp.inf)
        rest = jnp.minimum(jnp.minimum(plain, flat), law.log_moment_above(1 + s, y) - y)
        return jnp.where(y >= high, jnp.where(law.p_infinite() > 0, flat, -jnp.inf), rest)

    def beyond_below(law, s, y):
        gone = (y >= -low) & (law.q_infinite() <= 0)
        return jnp.where(gone, -jnp.inf, floor(law.profile_below(-y)) - (1 + s) * y - jnp.log(1 + s))

    above = lambda y: still.profile(y)
    below = lambda y: still.profile_below(-y)
    flat_end = lambda end, mass: jnp.where(mass > 0, jnp.inf, jnp.maximum(end, 1e-10))
    up = _reach(
        still, tilt, lambda y: floor(above(y)), lambda y: beyond_above(still, tilt, y), flat_end(high, still.p_infinite())
    )
    down = _reach(
        still, -1 - tilt, lambda y: floor(below(y)), lambda y: beyond_below(still, tilt, y),
        flat_end(-low, still.q_infinite()),
    )  # fmt: skip
    up_nodes = lax.stop_gradient(_nodes(above, tilt, up))
    down_nodes = lax.stop_gradient(_nodes(below, -1 - tilt, down))

    m1, x1 = _chords(up_nodes, law.profile(up_nodes), s, above=True)
    m2, x2 = _chords(down_nodes, law.profile_below(-down_nodes), -1 - s, above=True)
    rest1, rest2 = beyond_above(law, s, up), beyond_below(law, s, down)
    m = lax.stop_gradient(jnp.maximum(jnp.maximum(m1, m2), jnp.maximum(rest1, rest2)))
    m = jnp.where(jnp.isfinite(m), m, 0.0)
    area = x1 * jnp.exp(m1 - m) + x2 * jnp.exp(m2 - m) + jnp.exp(rest1 - m) + jnp.exp(rest2 - m)
    sharp = _from_area(s, m + jnp.log(area) + 64 * _UNIT) * (1 + 16 * _UNIT)

    # the moment itself, from below
    negative = s < 0
    t = jnp.where(negative, s, -0.5)
    grid = jnp.concatenate([-down_nodes[:0:-1], up_nodes])
    tails = law.tails(grid)
    values = tails.p_below + jnp.exp(grid) * tails.q_above
    m, x = _chords(grid, values, t, above=False)
    ends = values[-1] * jnp.exp(t * up - m) / -t + values[0] * jnp.exp(-t * down - m) / (1 + t)
    moment = (x + ends * (1 - 1e-12)) * -t * (1 + t)
    there = moment > 0
    whole = (m + jnp.log(jnp.where(there, moment, 1.0)) - 64 * _UNIT) / t
    return jnp.where(negative & there, jnp.minimum(sharp, whole), sharp)
