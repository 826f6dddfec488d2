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
from dpjax._precision import DOWN, NEAREST, UP
from dpjax._special import total
from dpjax._validate import is_traced
from dpjax.adaptive._sums import two_sum
from dpjax.mechanisms import Adjacency
from dpjax.pairs import SampledGaussianPair, part_constants
from dpjax.training._tilts import Contours

_NATS = 46.0  # what the inner quadrature is planned for
_SHIFTS = np.asarray([0.0, 0.25, 0.5, 0.75, 1.0])  # contour shifts of the truncation bound, on a log scale
_TINY = 2.0**-126  # the smallest normal float32
PER_ADDITION, LOST = 2.0**-71, 2.0**-124  # relative and absolute: what an addition may lose
READ = 2.0**-53  # what reading three numbers as one float64 loses


class Running(NamedTuple):
    """What the steps so far add up to; L levels of noise, D directions, J contours of N nodes, R further tilts.

    Attributes:
      number: (L,), of steps at each level, int32.
      least: (L,), the least noise multiplier at each level; NaN if any was out of range.
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


_SUMS = Running._fields[5:]
_EVENTS = (1, 1, 1, 1, 1, 3, 3, 3, 3, 4, 4, 2, 2, 2, 3)  # axes of the fields


def start(on: Contours, directions: tuple[Adjacency, ...], high: np.float32, levels: int) -> Running:
    """No steps; buffers of their own, which a training loop may donate."""
    d, j, r, n = len(directions), on.tilt.size, on.beyond.size, on.nodes
    zeros = lambda *shape: jnp.array(np.zeros(shape, np.float32))
    return Running(
        jnp.array(np.zeros(levels, np.int32)), jnp.array(np.full(levels, high, np.float32)),
        jnp.array(on.tilt), jnp.array(on.spacing), jnp.array(on.beyond),
        zeros(3, d, j), zeros(3, d, j), zeros(3, d, j + r), zeros(3, d, j),
        zeros(3, d, j, n), zeros(3, d, j, n),
        zeros(d, j), zeros(d, j), zeros(d, j), zeros(d, j, n),
    )  # fmt: skip


# --------------------------------------------------------------------------------------------------------------------
# Sums


def single(x: jax.Array) -> jax.Array:
    """A float64 rounded to the digits of a float32; a compiler may take casting forth and back for nothing."""
    return lax.reduce_precision(x, 8, 23)


def add(old: jax.Array, x: jax.Array) -> jax.Array:
    """``old`` (lanes, 3, ...) plus ``x`` (lanes, ...), float64 numbers with the digits of float32."""
    s, error = two_sum(old[:, 0] + old[:, 1], x)
    high = single(s)
    finite = jnp.isfinite(high)
    rest = jnp.where(finite, s - high, 0.0)
    middle = single(rest)
    low = single(jnp.where(finite, (rest - middle) + (error + old[:, 2]), 0.0))
    return jnp.stack([high, middle, low], 1)


def value(of: jax.Array) -> jax.Array:
    """A sum (lanes, 3, ...) as one float64."""
    return (of[:, 0] + of[:, 1]) + of[:, 2]


def _add_up(old: jax.Array, x: jax.Array) -> jax.Array:
    """A float32 number above the sum of two that are not negative."""
    y = old + x
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
    pair = SampledGaussianPair(flat(sigma[:, None, None])[:, None], flat(q[:, None, None])[:, None], *constants)
    return pair, flat(tilts[:, None, :])


def _advance(directions: tuple[Adjacency, ...], sigma, q, *leaves) -> tuple:
    """The sums after one more step; float64, a leading axis of states."""
    old = Running(sigma, sigma, *leaves)
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
    each = jax.tree.map(lambda a: jnp.concatenate([a] * _SHIFTS.size), (pair, s, cut, win, real))
    log_cut = contour.log_beyond(each[0], each[1], each[2], shift, each[3], each[4])
    log_cut = jnp.min(log_cut.reshape((_SHIFTS.size, *pair.sigma.shape)), 0)

    height, step = cumulant.line_for(pair, s, cut, 0 * pair.sigma + _NATS)
    along = contour.along(pair, s, cut, height, step, win, real, log_cut)
    at = contour.block_nodes(0 * s + nodes, h, np.int32(0), nodes)
    log_modulus, angle, spread = contour.phi(pair, s, at, along)
    error = along.log_error[..., None]
    inner = jnp.where(error < 0, jnp.logaddexp(0.0, error - log_modulus), jnp.inf)

    def of_states(a):
        a = a.reshape((states, d, -1, *a.shape[2:]))
        return jnp.where(good.reshape((states,) + (1,) * (a.ndim - 1)), a, jnp.nan)

    return (
        add(old.real, of_states(real.value)),
        add(old.mean, of_states(real.mean)),
        add(old.upper, of_states(upper)),
        add(old.cut, of_states(log_cut)),
        add(old.log_modulus, of_states(log_modulus)),
        add(old.angle, of_states(angle)),
        _add_up(old.size, of_states(real.size)),
        _add_up(old.spread, of_states(spread)),
        _add_up(old.excess, of_states(real.log_excess())),
        _add_up(old.inner, of_states(inner)),
    )


def advance(state: Running, directions: tuple[Adjacency, ...], level: jax.Array, sigma: jax.Array, q: Any) -> Running:
    """The sums after one more step, ``PoissonSampled(q, Gaussian(sigma))``; they are NaN from then on if ``sigma`` is.

    ``level`` may be any: the least noise at each is known.
    """
    sigma = lax.stop_gradient(sigma)
    near = sigma.astype(jnp.float32)
    down = jnp.where(near > sigma, jnp.nextafter(near, jnp.float32(0)), near)
    here = np.arange(state.least.shape[-1]) == level
    number = state.number + here.astype(jnp.int32)
    least = jnp.where(here | jnp.isnan(down), jnp.minimum(state.least, down), state.least)
    found = _call(_advance, directions, (sigma, q, *state[2:]), (NEAREST,) * len(_SUMS))
    sums = {name: jnp.asarray(x, jnp.float32) for name, x in zip(_SUMS, found, strict=True)}
    return state._replace(number=number, least=least, **sums)


def _call(function: Any, static: Any, args: tuple, rounding: tuple[str, ...]) -> list:
    """``function`` of arguments without the axis of lanes, in float64."""
    args = tuple(
        lax.stop_gradient(a)[None] if isinstance(a, jax.Array) else np.asarray(a, np.float64)[None] for a in args
    )
    if any(map(is_traced, args)):
        found = _precision.traced(function, static, args, rounding)
    else:
        found = _precision.concrete(function, static, *args)
    return [x[0] for x in found]


# --------------------------------------------------------------------------------------------------------------------
# The bound


def _bound(static: tuple, delta, q, *leaves) -> tuple:
    """(lower, upper, upper) of epsilon; static: the directions that were summed, and those that are asked for."""
    directions, asked = static
    now = Running(*leaves)
    lost = jnp.any(jnp.isnan(now.least) | ~(now.number >= 0), -1)
    now = now._replace(number=total(now.number, -1))
    states, d, j = delta.shape[0], len(directions), now.tilt.shape[1]
    log_delta = jnp.log(jnp.where(delta >= 0, delta, jnp.nan))
    log_delta = log_delta - 4e-16 * jnp.where(jnp.isfinite(log_delta), jnp.abs(log_delta), 0.0)
    found = _along(now, states, d, j, log_delta)

    best = lambda a, least: least(a.reshape(states, d, j), 2).T  # (d, states)
    lower, upper = best(found.lower, jnp.max).reshape(-1), best(found.upper, jnp.min).reshape(-1)
    repeated = lambda a: jnp.tile(a, d)
    parts = np.asarray([part_constants(direction) for direction in directions], np.float64)
    parts = [jnp.repeat(jnp.asarray(parts[:, None, :, i]), states, 0) for i in range(3)]
    number = repeated(now.number)[:, None]
    run = Problem(0 * number[:, 0], SampledGaussianPair(1 + 0 * number, repeated(q)[:, None], *parts), number)
    ends = contour.limits(run, repeated(log_delta), contour.Ends(lower, upper, upper), "epsilon")

    kept = np.asarray([direction in asked for direction in directions])[:, None]
    largest = lambda a: jnp.max(jnp.where(kept, a.reshape(d, states), 0.0), 0)
    some = now.number > 0
    upper = jnp.where(delta > 0, largest(ends.upper), jnp.inf)
    bad = lost | ~((delta >= 0) & (delta <= 1))
    return tuple(jnp.where(bad, jnp.nan, jnp.where(some, a, 0.0)) for a in (largest(ends.lower), upper, upper))


def _along(now: Running, states: int, d: int, j: int, log_delta: jax.Array) -> contour.Solution:
    """The answer along each contour, (states x directions x contours,)."""
    nodes = now.inner.shape[-1]
    flat = lambda a: a.reshape((-1, *a.shape[3:]))
    each = lambda a: jnp.broadcast_to(a, (states, d, j)).reshape(-1)
    s, h = each(now.tilt[:, None]), each(now.spacing[:, None])
    given, n = each(log_delta[:, None, None]), each(now.number[:, None, None])
    k, mean, cut = (flat(value(a)) for a in (now.real, now.mean, now.cut))
    log_modulus, angle = flat(value(now.log_modulus)), flat(value(now.angle))
    size, spread, excess, inner = map(flat, (now.size, now.spread, now.excess, now.inner))
    t = h[:, None] * np.arange(nodes)

    # what the sums and their representation lose
    common = jnp.abs(k)[:, None] + t * jnp.abs(mean)[:, None] + jnp.abs(log_modulus)
    added = (n * PER_ADDITION)[:, None] * (common + PI * t * spread[:, None]) + (n * LOST)[:, None] * (3 + t)
    inner = inner + added + READ * (common + jnp.abs(angle))
    # not of one sign, but what is positive of it adds up to less than K
    cut = cut + (n * PER_ADDITION + 1e-14) * (jnp.abs(cut) + 1.01 * jnp.abs(k)) + n * LOST

    # Chernoff's bounds, on all tilts there are
    r = jnp.concatenate([now.tilt, now.beyond], 1)[:, None, :]
    upper = value(now.upper)
    upper = (
        upper + (now.number[:, None, None] * PER_ADDITION + 1e-14) * jnp.abs(upper) + LOST * now.number[:, None, None]
    )
    own = lambda a: jnp.repeat(jnp.broadcast_to(a, upper.shape).reshape(states * d, -1), j, 0)
    r, upper = own(r), own(upper)
    first = jnp.maximum(jnp.min((upper + xlogx(r) - given[:, None]) / r, 1), 0.0)

    # all steps together are one component, used once; that its loss has no upper end is the safe side
    one = jnp.ones((s.size, 1), s.dtype)
    widest, none = jnp.max(r, 1, keepdims=True), 0 * one
    plan = Plan(
        first, given, widest, widest, widest, widest, widest, widest, widest,
        jnp.zeros(s.shape, jnp.int32), s, 2 * PI / h, 0 * s + nodes, none, none, none,
    )  # fmt: skip
    parts = one[..., None]
    problem = Problem(0 * s, SampledGaussianPair(one, 0.5 * one, parts, parts, parts), one)
    log_excess = (jnp.log(-jnp.expm1(-excess)) + 1e-14)[:, None]
    real = cumulant.RealCumulant(k[:, None], log_excess, mean[:, None], size[:, None])
    unused: Any = None
    together = contour.Inner(unused, unused, unused, real, none - 1, cut[:, None])
    above, chernoff = ((pick(r, i), pick(upper, i)) for i in contour.bounding_tilts(plan, r, upper))
    tilt = contour.composed(problem, plan, together, (nodes - 1) * h, above, chernoff)
    half = jnp.broadcast_to(np.where(np.arange(nodes) == 0, np.log(0.5), 0.0), t.shape)
    weight, phase, _ = contour.terms(problem, plan, tilt, t, half, log_modulus[:, None], angle[:, None])
    small = jnp.minimum(inner, 1.0)
    log_inner = weight + jnp.where(inner < 1, jnp.log(jnp.expm1(small)), inner)
    line = contour.Line(h, t, weight, phase, log_inner, spread)
    return contour.ends(problem, plan, tilt, line, given, contour.start(given), 1e-9, unknown="epsilon")


def bound(
    state: Running, directions: tuple[Adjacency, ...], asked: tuple[Adjacency, ...], delta: Any, q: Any
) -> tuple[Any, Any]:
    """Certified (lower, upper) ends of the epsilon of the steps summed, for the larger of the directions ``asked`` for.

    States that are batched broadcast against ``delta``.
    """
    shape = jnp.broadcast_shapes(np.shape(state.number)[:-1], np.shape(delta))
    size = int(np.prod(shape, dtype=int))
    leaves = state._replace(number=_validate.number("number", state.number))

    def flat(a, events):
        xp = jnp if isinstance(a, jax.Array) else np
        own = np.shape(a)[np.ndim(a) - events :]
        batch = np.shape(a)[: np.ndim(a) - events]
        lifted = xp.reshape(a, (1,) * (len(shape) - len(batch)) + batch + own)
        return xp.broadcast_to(lifted, (*shape, *own)).reshape((size, *own))

    args = flat(delta, 0), flat(q, 0), *map(flat, leaves, _EVENTS)
    static = directions, asked
    if any(map(is_traced, args)):
        lower, _, upper = _precision.traced(_bound, static, args, (DOWN, UP, UP))
    else:
        lower, _, upper = _precision.concrete(_bound, static, *args)
    return lower.reshape(shape), upper.reshape(shape)


# --------------------------------------------------------------------------------------------------------------------
# Without sampling


class Variance(NamedTuple):
    """What Gaussian steps that see every record add up to.

    Attributes:
      number: of steps, int32.
      inverse: (3,), sum of 1 / noise_multiplier^2; NaN if noise was out of range.
    """

    number: Any
    inverse: Any


def start_plain() -> Variance:
    """No steps."""
    return Variance(jnp.array(np.zeros((), np.int32)), jnp.array(np.zeros(3, np.float32)))


def _advance_plain(static: None, sigma, inverse) -> tuple:
    return (add(inverse, 1 / (sigma * sigma)),)


def advance_plain(state: Variance, sigma: jax.Array) -> Variance:
    """The sum after one more step."""
    (inverse,) = _call(_advance_plain, None, (sigma, state.inverse), (NEAREST,))
    return Variance(state.number + 1, jnp.asarray(inverse, jnp.float32))


def noise(state: Variance) -> Any:
    """The noise multiplier of one step that is as private as all, rounded down; infinite if there were none."""
    traced = any(map(is_traced, state))
    xp, dtype = (jnp, jnp.result_type(float)) if traced else (np, np.float64)
    number, inverse = xp.asarray(state.number), xp.asarray(state.inverse, dtype)
    slack = 8 * float(jnp.finfo(dtype).eps) + number.astype(dtype) * PER_ADDITION
    with np.errstate(divide="ignore"):
        found = xp.sqrt(1 / (((inverse[..., 0] + inverse[..., 1]) + inverse[..., 2]) * (1 + slack)))
    return xp.where(number >= 0, found, xp.nan)
