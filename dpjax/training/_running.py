"""Sums over the steps of a run on the nodes of contours that were fixed before it, and the bound that they give at any time.

Composition adds cumulants, whatever the steps are. On a contour s + it of ``dpjax.contour`` all that its sum and its
certificate need of a step are numbers that add up: K(s), the mean loss, log modulus and argument of phi on the nodes, and the
logs of what bounds the errors. They are kept here in place of the steps. A sum is three float32 numbers, since the state of
an optimizer passes through programs in which float64 does not exist; what the certificate only needs from above is one, rounded
up. Everything is computed in float64.

Rounding of the sums: with s = high + middle + low, an addition in float64 is exact but for 2^-101 |s|, and splitting what
it gave into three float32 loses at most 1.04 2^-72 |s|. So n additions are off by n 2^-71 times the largest |s| on the way, which
for sums of numbers of one sign is the last; for an argument it is at most pi t times the sum of the steps' spreads, since
|phi - 1| is at most t times a spread, and |arg phi| at most pi |phi - 1|. An error x of a term's log modulus or phase is
an error of expm1(|x|) of the term, and is added to that of the inner quadrature.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dpjax import _precision, _validate, contour, cumulant
from dpjax._plan import PI, Plan, Problem, xlogx
from dpjax._positions import pick
from dpjax._precision import DOWN, INTEGER, NEAREST, UP
from dpjax._validate import is_traced
from dpjax.adaptive._sums import two_sum
from dpjax.mechanisms import Adjacency
from dpjax.pairs import SampledGaussianPair, part_constants
from dpjax.training._tilts import Contours

_NATS = 46.0  # what the inner quadrature is planned for
_SHIFTS = np.asarray([0.0, 0.25, 0.5, 0.75, 1.0])  # contour shifts of the truncation bound, on a log scale
_TINY = 2.0**-126  # the smallest normal float32
PER_ADDITION, LOST = 2.0**-71, 2.0**-124  # of a sum, relative and absolute: what splitting into three loses at most
_REPRESENTED = 2.0**-53  # what reading three numbers as one float64 loses


class Running(NamedTuple):
    """What the steps so far add up to; D directions, J contours of N nodes, R further tilts.

    Attributes:
      number: of steps, int32.
      least: noise multiplier so far; NaN if one was out of range.
      tilt, spacing: (J,), of the contours; they belong to the sums and stay with them in a checkpoint.
      beyond: (R,), tilts of the bounds on tails.
      real: (3, D, J), sum of K(s).
      mean: (3, D, J), sum of the mean losses at s.
      upper: (3, D, J + R), sum of upper bounds of K(s) and K(beyond).
      cut: (3, D, J), sum of upper bounds of log |exp K(s + it)|, t at the last node and further on.
      log_modulus, angle: (3, D, J, N), sums of those of phi.
      size, spread, excess: (D, J), upper bounds of sums: of the rounding of K in ulp, of phases, and of K's inner error.
      inner: (D, J, N), upper bounds of the sum of log(1 + error / |phi|).
    """

    number: Any
    least: Any
    tilt: Any
    spacing: Any
    beyond: Any
    real: Any
    mean: Any
    upper: Any
    cut: Any
    log_modulus: Any
    angle: Any
    size: Any
    spread: Any
    excess: Any
    inner: Any


_FIXED = ("tilt", "spacing", "beyond")
_ROUNDING = tuple(INTEGER if name == "number" else NEAREST for name in Running._fields if name not in _FIXED)


def start(on: Contours, directions: tuple[Adjacency, ...], least: float) -> Running:
    """No steps; buffers of their own, which a training loop may donate."""
    d, j, r, n = len(directions), on.tilt.size, on.beyond.size, on.nodes
    zeros = lambda *shape: jnp.array(np.zeros(shape, np.float32))
    return Running(
        jnp.array(np.zeros((), np.int32)), jnp.array(np.float32(least)),
        jnp.array(on.tilt), jnp.array(on.spacing), jnp.array(on.beyond),
        zeros(3, d, j), zeros(3, d, j), zeros(3, d, j + r), zeros(3, d, j),
        zeros(3, d, j, n), zeros(3, d, j, n),
        zeros(d, j), zeros(d, j), zeros(d, j), zeros(d, j, n),
    )  # fmt: skip


# --------------------------------------------------------------------------------------------------------------------
# Sums


def single(x: jax.Array) -> jax.Array:
    """A float64 rounded to the digits of a float32. (A compiler may take casting forth and back for nothing.)"""
    return lax.reduce_precision(x, 8, 23)


def add(total: jax.Array, x: jax.Array) -> jax.Array:
    """``total`` (lanes, 3, ...) plus ``x`` (lanes, ...), float64 numbers with the digits of float32."""
    s, error = two_sum(total[:, 0] + total[:, 1], x)
    high = single(s)
    finite = jnp.isfinite(high)
    rest = jnp.where(finite, s - high, 0.0)
    middle = single(rest)
    low = single(jnp.where(finite, (rest - middle) + (error + total[:, 2]), 0.0))
    return jnp.stack([high, middle, low], 1)


def value(total: jax.Array) -> jax.Array:
    """A sum (lanes, 3, ...) as one float64."""
    return (total[:, 0] + total[:, 1]) + total[:, 2]


def _add_up(total: jax.Array, x: jax.Array) -> jax.Array:
    """A float32 number above the sum of two that are not negative."""
    y = total + x
    return jnp.where(y > 0, jnp.maximum(single(y * (1 + 2.0**-23)), _TINY), y)


# --------------------------------------------------------------------------------------------------------------------
# A step


def _lanes(directions: tuple[Adjacency, ...], sigma: jax.Array, q: jax.Array, tilts: jax.Array):
    """The pairs (states x directions x tilts, 1) of states (lanes,), with tilts (lanes, tilts), and the tilts."""
    shape = (sigma.shape[0], len(directions), tilts.shape[1])
    parts = np.asarray([part_constants(direction) for direction in directions], np.float64)
    flat = lambda a: jnp.broadcast_to(a, shape).reshape(-1)
    constants = [
        jnp.broadcast_to(parts[None, :, None, :, i], (*shape, parts.shape[1])).reshape(-1, 1, parts.shape[1])
        for i in range(3)
    ]
    pair = SampledGaussianPair(
        flat(sigma[:, None, None])[:, None], flat(q[:, None, None])[:, None], *constants
    )
    return pair, flat(tilts[:, None, :])


def _advance(directions: tuple[Adjacency, ...], sigma, q, *leaves) -> tuple:
    """The sums after one more step; float64, a leading axis of states."""
    old = Running(*leaves)
    states, d, j = sigma.shape[0], len(directions), old.tilt.shape[1]
    nodes = old.inner.shape[-1]
    good = ~jnp.isnan(sigma)
    noise = jnp.where(good, sigma, 1.0)

    pair, s = _lanes(directions, noise, q, jnp.concatenate([old.tilt, old.beyond], 1))
    win, real = contour.real_cumulant(pair, s)
    upper = real.value + contour.rise(real)
    shape = (states, d, s.size // (states * d))
    own = lambda a: a.reshape((*shape, *a.shape[1:]))[:, :, :j].reshape((-1, *a.shape[1:]))  # without those beyond
    pair, s, win, real = jax.tree.map(own, (pair, s, win, real))
    h = jnp.broadcast_to(old.spacing[:, None, :], (states, d, j)).reshape(-1)
    cut = (nodes - 1) * h

    # the best shift of a light loss is about t q / sigma
    widest = 0.4 * jnp.minimum(PI * pair.sigma, 60.0)
    least = jnp.clip(0.3 * cut[:, None] * pair.q / pair.sigma / widest, 1e-8, 1e-2)
    shift = jnp.concatenate([widest * least**x for x in _SHIFTS])
    tiled = jax.tree.map(lambda a: jnp.concatenate([a] * _SHIFTS.size), (pair, s, cut, win, real))
    log_cut = contour.log_beyond(*tiled[:3], shift, *tiled[3:])
    log_cut = jnp.min(log_cut.reshape((_SHIFTS.size, *pair.sigma.shape)), 0)

    height, step = cumulant.line_for(pair, s, cut, 0 * pair.sigma + _NATS)
    along = contour.along(pair, s, cut, height, step, win, real, log_cut)
    at = contour.block_nodes(0 * s + nodes, h, np.int32(0), nodes)
    log_modulus, angle, spread = contour.phi(pair, s, at, along)
    error = along.log_error[..., None]
    inner = jnp.where(error < 0, jnp.logaddexp(0.0, error - log_modulus), jnp.inf)

    def each(a):
        a = a.reshape((states, d, -1, *a.shape[2:]))
        return jnp.where(good.reshape((states,) + (1,) * (a.ndim - 1)), a, jnp.nan)

    return (
        old.number + 1,
        jnp.minimum(old.least, sigma),
        add(old.real, each(real.value)),
        add(old.mean, each(real.mean)),
        add(old.upper, each(upper)),
        add(old.cut, each(log_cut)),
        add(old.log_modulus, each(log_modulus)),
        add(old.angle, each(angle)),
        _add_up(old.size, each(real.size)),
        _add_up(old.spread, each(spread)),
        _add_up(old.excess, each(real.log_excess())),
        _add_up(old.inner, each(inner)),
    )


def advance(state: Running, directions: tuple[Adjacency, ...], sigma: Any, q: Any) -> Running:
    """The sums after one more step, ``PoissonSampled(q, Gaussian(sigma))``; they are NaN from then on if ``sigma`` is."""
    args = [lax.stop_gradient(sigma), q, *jax.tree.map(lax.stop_gradient, state)]
    args = [a[None] if isinstance(a, jax.Array) else np.asarray(a, np.float64)[None] for a in args]
    if any(map(is_traced, args)):
        found = _precision.traced(_advance, directions, tuple(args), _ROUNDING)
    else:
        found = _precision.concrete(_advance, directions, *args)
    found = iter(found)
    new = {name: next(found)[0] for name in Running._fields if name not in _FIXED}
    kept = {name: getattr(state, name) for name in _FIXED}
    cast = {name: jnp.asarray(x, getattr(state, name).dtype) for name, x in new.items()}
    return Running(**cast, **kept)


# --------------------------------------------------------------------------------------------------------------------
# The bound


def _bound(static: tuple, log_delta, q, *leaves) -> tuple:
    """(lower, estimate, upper) of epsilon; static: the directions that were summed, and those that are asked for."""
    directions, asked = static
    now = Running(*leaves)
    states, d, j = log_delta.shape[0], len(directions), now.tilt.shape[1]
    size = now.inner.shape[-1]
    lanes = states * d * j
    flat = lambda a: a.reshape((lanes, *a.shape[3:]))
    spread_out = lambda a: jnp.broadcast_to(a, (states, d, j)).reshape(-1)
    s, h = spread_out(now.tilt[:, None]), spread_out(now.spacing[:, None])
    given, number = spread_out(log_delta[:, None, None]), now.number[:, None, None]
    k, mean, cut, log_modulus, angle = (
        flat(value(a)) for a in (now.real, now.mean, now.cut, now.log_modulus, now.angle)
    )
    size_k, spread, excess, inner = map(flat, (now.size, now.spread, now.excess, now.inner))
    n = spread_out(number)

    t = h[:, None] * np.arange(size)
    turned = PI * t * spread[:, None]
    lost = n * PER_ADDITION
    moved = lambda log_modulus, angle, of: of[:, None] * (
        jnp.abs(log_modulus) + angle + t * jnp.abs(mean)[:, None] + jnp.abs(k)[:, None]
    )
    represented = moved(log_modulus, turned, lost) + moved(log_modulus, jnp.abs(angle), 0 * lost + _REPRESENTED)
    inner = inner + represented + (n * LOST)[:, None] * (2 + t)

    # Chernoff's bounds, on all tilts
    r = jnp.concatenate([now.tilt, now.beyond], 1)[:, None, :]
    up = value(now.upper)
    up = up + (number * PER_ADDITION + 1e-14) * jnp.abs(up) + number * LOST
    own = lambda a: jnp.repeat(jnp.broadcast_to(a, up.shape).reshape(states * d, -1), j, 0)
    r, up = own(r), own(up)
    chernoff = jnp.min((up + xlogx(r) - given[:, None]) / r, 1)

    one, none = jnp.ones((lanes, 1), s.dtype), jnp.zeros((lanes, 1), s.dtype)
    widest = jnp.max(r, 1, keepdims=True)
    plan = Plan(
        jnp.maximum(chernoff, 0.0), given, widest, widest, widest, widest, widest, widest, widest,
        jnp.zeros((lanes,), jnp.int32), s, 2 * PI / h, 0 * s + size, none, none, none,
    )  # fmt: skip
    # all steps together are one component, used once; that its loss has no upper end is the safe side
    parts = one[..., None]
    problem = Problem(0 * s, SampledGaussianPair(one, 0.5 * one, parts, parts, parts), one)
    above, below = contour.bounding_tilts(plan, r, up)
    error = jnp.log(-jnp.expm1(-excess)) + 1e-14
    real = cumulant.RealCumulant(k[:, None], error[:, None], mean[:, None], size_k[:, None])
    unused: Any = None
    together = contour.Inner(unused, unused, unused, real, none - 1, cut[:, None])
    tilt = contour.composed(
        problem, plan, together, (size - 1) * h, (pick(r, above), pick(up, above)), (pick(r, below), pick(up, below))
    )
    tilt = tilt._replace(log_cut=tilt.log_cut + (lost + 1e-14) * jnp.abs(tilt.log_cut) + n * LOST)
    half = jnp.broadcast_to(np.where(np.arange(size) == 0, np.log(0.5), 0.0), t.shape)
    weight, phase, _ = contour.terms(problem, plan, tilt, t, half, log_modulus[:, None], angle[:, None])
    log_inner = weight + jnp.where(inner < 1, jnp.log(jnp.expm1(jnp.minimum(inner, 1.0))), inner)
    line = contour.Line(h, t, weight, phase, log_inner, spread)
    found = contour.ends(problem, plan, tilt, line, given, contour.start(given), 1e-9, unknown="epsilon")

    joined = lambda a, least: least(a.reshape(states, d, j), 2).T.reshape(-1)
    ends = contour.Ends(
        joined(found.lower, jnp.max), joined(found.estimate * 0 + found.upper, jnp.min), joined(found.upper, jnp.min)
    )
    repeated = lambda a: jnp.tile(a, d)
    constants = np.repeat(np.asarray([part_constants(x) for x in directions], np.float64), 1, 0)
    whole = [jnp.repeat(jnp.asarray(constants[:, None, :, i]), states, 0) for i in range(3)]
    count = repeated(now.number)[:, None]
    run = Problem(0 * count[:, 0], SampledGaussianPair(1 + 0 * count, repeated(q)[:, None], *whole), count)
    ends = contour.limits(run, repeated(log_delta), ends, "epsilon")
    kept = np.asarray([x in asked for x in directions])
    largest = lambda a: jnp.max(jnp.where(kept[:, None], a.reshape(d, states), 0.0), 0)
    lower, _, upper = map(largest, ends)
    some = now.number > 0
    upper = jnp.where(some & (log_delta == -jnp.inf), jnp.inf, upper)
    bad = jnp.isnan(now.least) | jnp.isnan(log_delta) | ~(now.number >= 0) | (log_delta > 0)
    return tuple(jnp.where(bad, jnp.nan, jnp.where(some, a, 0.0)) for a in (lower, upper, upper))


def bound(state: Running, directions: tuple, asked: tuple, log_delta: Any, q: Any) -> tuple:
    """Certified (lower, upper) ends of the epsilon of the steps summed, for the larger of the directions ``asked`` for."""
    leaves = [_validate.number("number", state.number), *state[1:]]
    args = [a[None] if isinstance(a, jax.Array) else np.asarray(a, np.float64)[None] for a in (log_delta, q, *leaves)]
    static = (directions, asked)
    if any(map(is_traced, args)):
        lower, _, upper = _precision.traced(_bound, static, tuple(args), (DOWN, UP, UP))
    else:
        lower, _, upper = _precision.concrete(_bound, static, *args)
    return lower[0], upper[0]
