"""Engine: delta along a tilted contour, by a trapezoid sum that bounds from above, with every error accounted for.

For s > 0 and every real eps, exp(zy) D(y) has the transform exp K(z) / (z (z + 1)), z = s + it, so that with step h and
period Lam = 2 pi / h

    S = exp(-s eps) (h / 2 pi) sum_n exp(K(z_n) - i n h eps) / (z_n (z_n + 1)) = D(eps) + sum_{m != 0} exp(s m Lam) D(eps + m Lam).

The terms with m < 0 are nearly known, those with m > 0 are bounded by Chernoff's bound, and what the sum leaves out beyond
T = N h by an envelope of |exp K|. The estimate is S - A + A'; the certificate adds: alias up, truncation, inner quadrature,
rounding. (Zhu, Dong, Wang, arXiv 2106.08567, and the contour form of the saddle-point accountant.)

All arrays have a leading axis of lanes, independent problems solved side by side; loops run to the slowest lane.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from dpjax import cumulant
from dpjax._plan import (
    MANY,
    PI,
    Plan,
    Problem,
    choose,
    climb,
    largest_loss,
    log_touched,
    xlogx,
)
from dpjax._positions import at_least, pick
from dpjax._precision import namespace
from dpjax._special import (
    arctan2,
    by_halves,
    cap,
    exp,
    is_single,
    like,
    ln,
    log,
    log1p,
    logaddexp,
    sincos,
    tiny,
    total,
    unit,
)
from dpjax.pairs import SampledGaussianPair

PASSES = 6
ROUGH = 0.02  # the tolerance of a first pass where many nodes are needed
LEAST = 2e-3  # of the tolerance asked for: what a contour is planned for at most, where a wider one just missed
_SUMMED = 1024  # nodes that are summed at once
_MAX_X = 16384  # x-nodes of one component; past it the inner error grows and the status says so
# Rounding, in ulp: of a term, of its log modulus, of its phase by itself and together with all others, of K. Measured
# against 80-bit sums: benchmarks/rounding.py.
_PER_TERM, _PER_LOG, _PER_PHASE, _PER_SHIFT, _PER_SIZE = 10.0, 3.0, 1.0, 5.0, 4.0


class Certificate(NamedTuple):
    """Upper bounds of each error, relative to exp(log_delta) of the plan; (lanes,)."""

    alias_up: jax.Array
    alias_down: jax.Array
    truncation: jax.Array
    inner: jax.Array
    rounding: jax.Array


class Ends(NamedTuple):
    """Certified ends and the estimate between them; (lanes,). For a delta query they are log deltas, otherwise epsilons."""

    lower: jax.Array
    estimate: jax.Array
    upper: jax.Array


class Answer(NamedTuple):
    """(lanes,) each: certified ends, estimate, flags and the number of contour nodes."""

    lower: Any
    estimate: Any
    upper: Any
    converged: Any
    cancelled: Any
    nodes: Any


class Solution(NamedTuple):
    """What a pass found: ``Ends``, whether they are as narrow as asked, and how; (lanes,)."""

    lower: jax.Array
    estimate: jax.Array
    upper: jax.Array
    converged: jax.Array
    cancelled: jax.Array
    settled: jax.Array  # another pass would not help
    nodes: jax.Array
    plan: Plan
    certificate: Certificate

    def answer(self) -> Answer:
        """Without plan and certificate."""
        return Answer(*(getattr(self, name) for name in Answer._fields))


# --------------------------------------------------------------------------------------------------------------------
# Evaluating on the contour


class Line(NamedTuple):
    """The integrand on the nodes t_n = n h of a contour, without exp(K(s) - s eps) and with eps = plan.epsilon.

    Shapes (lanes, capacity); ``log_weight`` is -inf past the last node and carries the half weight of n = 0.
    """

    h: jax.Array  # (lanes,)
    t: jax.Array
    log_weight: jax.Array
    phase: jax.Array
    log_inner: jax.Array  # log of the bound on the node's inner-quadrature error, same units
    spread: jax.Array  # (lanes,): a few ulp of t times this bound the rounding of the composition's cumulant


class Inner(NamedTuple):
    """Pairs along a contour, however often each is used: windows, real cumulant, bounds; (lanes, components)."""

    height: jax.Array  # of the line of the inner nodes, and their spacing
    step: jax.Array
    window: cumulant.Window
    real: cumulant.RealCumulant
    log_error: jax.Array  # log relative error of exp K(s + it), t up to the cutoff
    log_cut: jax.Array  # log of a bound on |exp K(s + it)|, t >= cutoff


class Tilt(NamedTuple):
    """What is fixed of a composition once the contour is; (lanes,), or (lanes, components)."""

    inner: Inner
    k: jax.Array
    k_size: jax.Array  # sum of count times the size that K's rounding has in ulp
    mean: jax.Array
    log_inner: jax.Array  # (lanes, components): inner.log_error of what is used
    log_cut: jax.Array  # log of a bound on |exp K(s + it)|, t >= cut
    cut: jax.Array
    above: tuple[jax.Array, jax.Array]  # (r, upper bound of K(r)) for the aliases above
    chernoff: tuple[jax.Array, jax.Array]  # the same for Chernoff's bound


def _counted(count: jax.Array, pair: SampledGaussianPair, each: jax.Array) -> jax.Array:
    """The sum over components of count * each, which may be infinite where nothing is counted; (lanes, *axes of each)."""
    lift = lambda a: a.reshape(a.shape + (1,) * (each.ndim - 2))
    used, count = lift((count > 0) & (pair.q > 0)), lift(count)
    return total(jnp.where(used, count * jnp.where(used, each, 0.0), 0.0), 1)


def rise(real: cumulant.RealCumulant) -> jax.Array:
    """How far K may lie above ``real.value``."""
    return real.log_excess() + _PER_SIZE * unit(real.value) * real.size


def real_cumulant(pair: SampledGaussianPair, s: jax.Array) -> tuple[cumulant.Window, cumulant.RealCumulant]:
    """Certified real cumulants of pairs at s (lanes,)."""
    win = cumulant.window(pair, s)
    step = jnp.maximum(cumulant.real_step(pair, s, 0 * pair.sigma), (win.high - win.low) / _MAX_X)
    return win, cumulant.real(pair, s, win, step)


def log_beyond(
    pair: SampledGaussianPair,
    s: jax.Array,
    cut: jax.Array,
    shift: jax.Array,
    win: cumulant.Window,
    real: cumulant.RealCumulant,
) -> jax.Array:
    """Log of a bound on |exp K(s + it)|, t >= cut, by the integral over Im u = shift; (lanes, components)."""
    k_upper = real.value + rise(real)
    fine = jnp.maximum(cumulant.real_step(pair, s, shift), (win.high - win.low) / _MAX_X)
    up = cumulant.log_envelope(pair, s, cut, shift, win, fine)
    own = cumulant.log_real_alias(pair, s, fine, shift)
    up = logaddexp(up, k_upper + 0.5 * shift**2 + own)
    up = logaddexp(up, cumulant.log_tail_above(pair, s, win, shift))
    if is_single(up):  # that sum is not one of small differences: its rounding counts in every step
        up = up + 4 * unit(s) * (8 + jnp.abs(up))
    return jnp.minimum(up, k_upper)


def along(
    pair: SampledGaussianPair,
    s: jax.Array,
    cut: jax.Array,
    height: jax.Array,
    step: jax.Array,
    win: cumulant.Window,
    real: cumulant.RealCumulant,
    log_cut: jax.Array,
) -> Inner:
    """The pairs along the contour at s, as far as t = cut; ``log_cut`` is that of ``log_beyond``."""
    # twice: phi - 1 is the difference of two sums
    step = jnp.maximum(step, (win.high - win.low) / _MAX_X)
    beyond = cumulant.log_tail_above(pair, s, win, height) - real.value
    alias = cumulant.log_line_alias(pair, s, jnp.maximum(cut, 0.0), height, step)
    log_error = np.log(2.0) + logaddexp(logaddexp(alias, beyond), real.log_error)
    log_error = jnp.where(log_error < -1.0, log_error + rise(real), 300.0)  # relative to the computed exp K
    return Inner(height, step, win, real, log_error, log_cut)


def bounding_tilts(plan: Plan, s_grid: jax.Array, k_grid: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Positions of the tilts of a grid with which Chernoff's bound is least: of what lies a period above, and of delta."""
    gap = s_grid - plan.s[:, None]
    tail = k_grid - s_grid * plan.epsilon[:, None] + xlogx(s_grid)
    beyond = jnp.where(gap > 1e-3 * plan.s[:, None], tail - gap * plan.period[:, None], jnp.inf)
    return at_least(beyond), at_least(tail)


def composed_upper(problem: Problem, s: jax.Array, k_upper: jax.Array) -> jax.Array:
    """An upper bound of the composition's K at s (lanes, *axes), from those of its pairs, (lanes, components, *axes)."""
    gauss = 0.5 * problem.variance.reshape((-1,) + (1,) * (s.ndim - 1)) * s * (1 + s)
    return (_counted(problem.count, problem.pair, k_upper) + gauss) * (1 + max(1e-14, 64 * unit(s)))


def composed(problem: Problem, plan: Plan, inner: Inner, cut: jax.Array, above: tuple, chernoff: tuple) -> Tilt:
    """The composition of pairs along a contour."""
    pair, count = problem.pair, problem.count
    gauss = 0.5 * problem.variance * plan.s * (plan.s + 1)
    log_cut = _counted(count, pair, inner.log_cut) + gauss - 0.5 * problem.variance * cut * cut
    return Tilt(
        inner,
        gauss + total(count * inner.real.value, 1),
        gauss + jnp.sum(count * inner.real.size, 1),
        problem.variance * (plan.s + 0.5) + total(count * inner.real.mean, 1),
        jnp.where((count > 0) & (pair.q > 0), inner.log_error, -jnp.inf),
        log_cut, cut, above, chernoff,
    )  # fmt: skip


def fix_tilt(problem: Problem, plan: Plan, capacity: int) -> Tilt:
    """Certified real cumulants at s and at the two r that bound tails, and the envelopes of the contour integrand."""
    pair = problem.pair
    lanes = plan.s.shape[0]
    r_up, r_chernoff = (pick(plan.s_grid, i) for i in bounding_tilts(plan, plan.s_grid, plan.k_grid))
    # s and both r in one batch: the program has these loops once
    three = jax.tree.map(lambda a: jnp.concatenate([a] * 3), problem)
    s3 = jnp.concatenate([plan.s, r_up, r_chernoff])
    win3, real3 = real_cumulant(three.pair, s3)
    k_upper = composed_upper(three, s3, real3.value + rise(real3))
    first = lambda tree: jax.tree.map(lambda a: a[:lanes], tree)
    cut = jnp.minimum(plan.nodes - 1, capacity - 1) * (2 * PI / plan.period)
    win, real = first(win3), first(real3)
    log_cut = log_beyond(pair, plan.s, cut, plan.shift, win, real)
    pairs = along(pair, plan.s, cut, plan.height, plan.step, win, real, log_cut)
    above, chernoff = (r_up, k_upper[lanes : 2 * lanes]), (r_chernoff, k_upper[2 * lanes :])
    return composed(problem, plan, pairs, cut, above, chernoff)


def log_phi(moments: cumulant.Moments) -> tuple[jax.Array, jax.Array]:
    """(log modulus, argument) of phi = (1 - a) + ib."""
    a, b = moments.a, moments.b
    close = a < 0.2
    square = jnp.where(close, a * a + b * b - 2 * a, 0.0)
    far = jnp.where(close, 1.0, (1 - a) ** 2 + b * b) + tiny(a)
    return 0.5 * jnp.where(close, log1p(jnp.maximum(square, -0.9999)), log(far)), arctan2(b, 1 - a)


def _kernel(s: jax.Array, t: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Log modulus and argument of 1 / (z (z + 1)); ``s`` (lanes,), ``t`` (lanes, nodes)."""
    s = s[:, None]
    log_modulus = -0.5 * (log(s * s + t * t) + log((1 + s) ** 2 + t * t))
    return log_modulus, -arctan2(t, s) - arctan2(t, 1 + s)


class Block(NamedTuple):
    """Nodes of a contour side by side: t = rows + across, row by row; (lanes, number) each.

    ``log_half`` is the log of the weight: 1/2 at n = 0, and 0 past the last node.
    """

    rows: jax.Array
    across: jax.Array
    t: jax.Array
    log_half: jax.Array


def block_nodes(nodes: jax.Array, h: jax.Array, start: Any, size: int) -> Block:
    """The nodes from number ``start`` on of contours with ``nodes`` (lanes,) in all; ``size`` is a power of two."""
    wide = 1 << (size.bit_length() // 2)
    n = start + np.arange(size, dtype=np.int32)
    at = lambda number: number.astype(h.dtype) * h[:, None]
    half = jnp.where(n == 0, np.log(0.5), 0.0)
    inside = n.astype(h.dtype) < nodes[:, None]
    return Block(at(n[::wide]), at(jnp.arange(wide, dtype=np.int32)), at(n), jnp.where(inside, half, -jnp.inf))


def integrand(
    problem: Problem, plan: Plan, tilt: Tilt, t, half, log_modulus, angle, eps
) -> tuple[jax.Array, jax.Array]:
    """log modulus and phase of the terms at t, without exp(K(s) - s eps); (lanes, nodes).

    ``half`` is the log of the term's weight; ``log_modulus`` and ``angle`` are those of the components' phi.
    """
    count = problem.count[:, :, None]
    log_kernel, kernel_angle = _kernel(plan.s, t)
    weight = half + log_kernel - 0.5 * problem.variance[:, None] * t * t + total(count * log_modulus, 1)
    return weight, total(count * angle, 1) + t * (tilt.mean - eps)[:, None] + kernel_angle


def phi(pair: SampledGaussianPair, s: jax.Array, at: Block, inner: Inner) -> tuple[jax.Array, jax.Array, jax.Array]:
    """(log modulus, argument) of the pairs' phi at the nodes, (lanes, components, nodes), and its spread."""
    moments = cumulant.moments(pair, s, at.rows, at.across, inner.window, inner.height, inner.step, inner.real)
    return *log_phi(moments), moments.spread


def terms(
    problem: Problem, plan: Plan, tilt: Tilt, t, half, log_modulus, angle
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """``integrand`` at plan.epsilon, and the log of the bound on each term's inner-quadrature error; (lanes, nodes)."""
    count = problem.count[:, :, None]
    weight, angles = integrand(problem, plan, tilt, t, half, log_modulus, angle, plan.epsilon)
    error = tilt.log_inner[:, :, None]
    raised = logaddexp(log_modulus, error)
    log_inner = weight + jnp.sum(count * (raised - log_modulus), 1)
    return weight, angles, log_inner + jnp.log(jnp.sum(count * jnp.exp(error - raised), 1) + tiny(weight))


def line(problem: Problem, plan: Plan, tilt: Tilt, capacity: int, block: int) -> Line:
    """Evaluates the integrand, ``block`` nodes at a time, as far as the slowest lane needs."""
    h = 2 * PI / plan.period
    lanes = plan.s.shape[0]

    def body(carry):
        start, log_weight, phase, log_inner, _ = carry
        at = block_nodes(plan.nodes, h, start, block)
        log_modulus, angle, spread = phi(problem.pair, plan.s, at, tilt.inner)
        weight, angles, inner = terms(problem, plan, tilt, at.t, at.log_half, log_modulus, angle)
        put = lambda whole, part: lax.dynamic_update_slice(whole, part, (np.int32(0), start))
        done = put(log_weight, weight), put(phase, angles), put(log_inner, inner)
        return start + np.int32(block), *done, jnp.sum(problem.count * spread, 1)

    empty = jnp.full((lanes, capacity), -jnp.inf, plan.s.dtype)
    used = jnp.minimum(jnp.max(plan.nodes), capacity)
    start = (np.int32(0), empty, jnp.zeros_like(empty), empty, jnp.zeros_like(h))
    _, log_weight, phase, log_inner, spread = lax.while_loop(lambda carry: carry[0] < used, body, start)
    return Line(h, h[:, None] * jnp.arange(capacity), log_weight, phase, log_inner, spread)


class Sums(NamedTuple):
    """S and its parts at several eps, relative to exp(plan.log_delta); (lanes, trials)."""

    estimate: jax.Array  # S - A + A'
    slope: jax.Array  # its derivative in eps
    total: jax.Array  # S
    absolute: jax.Array  # sum of |terms|
    absolute_log: jax.Array  # sum of |terms| |log of the term|
    absolute_t: jax.Array  # sum of |terms| t


def log_scale(plan: Plan, tilt: Tilt, eps: jax.Array) -> jax.Array:
    """log of (h / pi) exp(K(s) - s eps), relative to exp(plan.log_delta)."""
    return tilt.k - plan.s * eps - plan.log_delta + ln(2 / plan.period)


def _finite_exp(x: jax.Array) -> jax.Array:
    """exp(x), infinite early: no sum that it scales comes near the largest float."""
    most = cap(x, 600.0)
    return jnp.where(x < most, exp(jnp.minimum(x, most)), jnp.inf)


def known_alias(plan: Plan, eps: jax.Array) -> tuple[jax.Array, jax.Array]:
    """A and A' of the down aliases at ``eps`` (lanes,), relative to exp(plan.log_delta)."""
    decay, decay1 = plan.s * plan.period, (1 + plan.s) * plan.period
    a = exp(-decay - plan.log_delta) / -jnp.expm1(-decay)
    return a, _finite_exp(eps - decay1 - plan.log_delta) / -jnp.expm1(-decay1)


def sums(plan: Plan, tilt: Tilt, on: Line, eps: jax.Array) -> Sums:
    """The trapezoid sum at ``eps`` (lanes, trials)."""
    wide = jax.tree.map(lambda a: a[:, None], plan)
    scale = _finite_exp(log_scale(plan, tilt, eps.T).T)
    capacity = on.t.shape[-1]
    size = min(_SUMMED, capacity)

    def part(start):
        t, log_weight, phase = (
            lax.dynamic_slice_in_dim(a, start, size, 1)[:, None] for a in (on.t, on.log_weight, on.phase)
        )
        amplitude = jnp.broadcast_to(exp(log_weight), (*eps.shape, size))
        logs = jnp.where(amplitude > 0, jnp.abs(log_weight), 0.0)
        sine, cosine = sincos(phase - t * (eps - plan.epsilon[:, None])[..., None])
        terms = [amplitude * cosine, amplitude * t * sine, amplitude, amplitude * logs, amplitude * t]
        return tuple(map(by_halves, terms))

    if size == capacity:
        found = part(np.int32(0))
    else:
        used = jnp.minimum(jnp.max(plan.nodes), capacity)
        more = lambda carry: (
            carry[0] + np.int32(size),
            tuple(a + b for a, b in zip(carry[1], part(carry[0]), strict=True)),
        )
        start = (np.int32(0), (jnp.zeros_like(eps),) * 5)
        found = lax.while_loop(lambda carry: carry[0] < used, more, start)[1]
    total, turn, absolute, absolute_log, absolute_t = (scale * x for x in found)
    a, a1 = known_alias(wide, eps)
    return Sums(total - a + a1, turn - wide.s * total + a1, total, absolute, absolute_log, absolute_t)


def solve_epsilon(plan: Plan, tilt: Tilt, on: Line) -> jax.Array:
    """The eps >= 0 at which the estimate is exp(plan.log_delta): Newton's method on the log, inside a bracket."""
    half_ulp = unit(plan.s)

    def body(carry):
        i, eps, low, high, _ = carry
        found = sums(plan, tilt, on, eps[:, None])
        value, slope = found.estimate[:, 0], found.slope[:, 0]
        above = value > 1
        low, high = jnp.where(above, eps, low), jnp.where(above, high, eps)
        safe = jnp.where(value > 0, value, 1.0)
        newton = eps - jnp.log(safe) * safe / jnp.where(slope < 0, slope, -1.0)
        middle = jnp.where(jnp.isinf(high), 2 * eps + 1 / plan.s, 0.5 * (low + high))
        usable = (value > 0) & (slope < 0) & (newton > low) & (newton < high)
        new = jnp.where(usable, newton, middle)
        new = jnp.where((newton <= 0) & (value > 0) & (low < 0), 0.0, new)
        new = jnp.where((eps == 0) & ~above, 0.0, new)
        # no digit is left: a step from here is noise, and may be rejected for half the bracket
        new = jnp.where(jnp.abs(value - 1) > 200 * half_ulp * found.absolute[:, 0], new, eps)
        return i + 1, new, low, high, jnp.abs(new - eps) > max(4e-16, 2 * half_ulp) * jnp.abs(new)

    start = (np.int32(0), plan.epsilon, plan.epsilon * 0 - tiny(plan.epsilon), plan.epsilon * 0 + jnp.inf, plan.s > 0)
    return lax.while_loop(lambda carry: (carry[0] < 60) & jnp.any(carry[4]), body, start)[1]


def certify(problem: Problem, plan: Plan, tilt: Tilt, on: Line, eps: jax.Array, at: Sums) -> Certificate:
    """Bounds on every error of the estimate at ``eps`` (lanes,), relative to exp(plan.log_delta); ``at`` is (lanes,)."""
    r, k_r = tilt.above
    decay = (r - plan.s) * plan.period
    log_up = k_r - r * eps + xlogx(r) - decay - jnp.log(-jnp.expm1(-decay)) - plan.log_delta
    none = eps + plan.period >= largest_loss(problem)
    alias_up = jnp.where(none, 0.0, jnp.where(decay > 0, _finite_exp(log_up), jnp.inf))
    _, alias_down = known_alias(plan, eps)

    log_cut = tilt.log_cut - plan.s * eps - jnp.log(PI * tilt.cut) - plan.log_delta
    truncation = jnp.where(tilt.cut > 0, _finite_exp(log_cut), jnp.inf)

    scale = _finite_exp(log_scale(plan, tilt, eps))
    real_error = _counted(problem.count, problem.pair, tilt.inner.real.log_excess())
    inner = scale * jnp.sum(jnp.exp(on.log_inner), 1) + jnp.abs(at.total) * jnp.expm1(jnp.minimum(real_error, 1.0))
    inner = jnp.where((real_error < 1) & jnp.all(tilt.log_inner < 0, 1), inner, jnp.inf)

    # The scale is common to all terms; each term has its own rounding in the kernel, the log modulus and the phase. Most
    # of the phases' is common as well: the rounding of the inner weights moves the mean loss, and so acts like a change
    # of eps: S answers with a sum in which the terms cancel.
    phase = on.spread + jnp.abs(tilt.mean - eps)
    turn = jnp.minimum(jnp.abs(at.slope + plan.s * at.total) + alias_down, at.absolute_t)
    common = _PER_SIZE * tilt.k_size + 8 * (jnp.abs(plan.s * eps) + jnp.abs(plan.log_delta) + 8)
    rounding = unit(eps) * (
        _PER_TERM * at.absolute
        + _PER_LOG * at.absolute_log
        + (_PER_PHASE * at.absolute_t + _PER_SHIFT * turn) * phase
        + common * jnp.abs(at.total)
    )
    return Certificate(alias_up, alias_down, truncation, inner, rounding)


# --------------------------------------------------------------------------------------------------------------------
# The answer


_UP, _DOWN = np.asarray([0.0, 1.0, 1.5, 4.0, 20.0]), np.asarray([1.0, 1.5, 4.0])


def _epsilon_ends(
    plan: Plan, tilt: Tilt, on: Line, eps: jax.Array, slope: jax.Array, over: jax.Array, under: jax.Array
):
    """(lower, upper): tried eps' at which the certified bounds on delta lie on the right side of the target.

    ``over`` and ``under`` are the errors of the estimate's upper and lower bound at ``eps``. Every error falls with
    eps, and grows towards smaller eps at most like exp(-r eps), r the largest tilt of the grid. The upper end is
    +inf and the lower 0 where no trial does.
    """
    ulps = 4 * unit(eps)
    per = 1.02 / jnp.maximum(-slope, tiny(slope))
    above = eps[:, None] + like(_UP, eps) * (per * over + ulps * eps)[:, None]
    below = jnp.maximum(eps[:, None] - like(_DOWN, eps) * (per * under + ulps * eps)[:, None], 0.0)
    found = sums(plan, tilt, on, jnp.concatenate([above, below], 1))
    n = len(_UP)
    fits = jnp.minimum(found.estimate, found.total)[:, :n] + 1.01 * over[:, None] <= 1
    fits = fits & ((np.arange(n) > 0) | (eps == 0)[:, None])
    grown = 1.01 * under[:, None] * jnp.exp(jnp.minimum(plan.s_grid[:, -1:] * (eps[:, None] - below), cap(eps, 100.0)))
    reaches = found.estimate[:, n:] - grown >= 1
    return jnp.max(jnp.where(reaches, below, 0.0), 1), jnp.min(jnp.where(fits, above, jnp.inf), 1)


def start(given: Any) -> Ends:
    """What is known before the first pass."""
    return Ends(given * 0 - np.inf, given * np.nan, given * 0 + np.inf)


def plan(
    problem: Problem, epsilon: jax.Array, log_delta: jax.Array, tol: jax.Array, thorough: jax.Array, capacity: int
) -> Plan:
    """The cheapest contour found for ``epsilon`` and ``log_delta``, of which one may be NaN; (lanes,) each.

    Where ``thorough`` is false the first tilt is taken, which is near the best one where few nodes are needed.
    """
    return climb(problem, choose(problem, epsilon, log_delta, tol), thorough, capacity)


def evaluate(
    problem: Problem,
    plan: Plan,
    given: jax.Array,
    old: Ends,
    tol: ArrayLike,
    *,
    unknown: str,
    capacity: int,
    block: int,
) -> Solution:
    """One pass: the certified ends along ``plan``, or those of ``old`` where they are better.

    Args:
      problem: the composition.
      plan: the contour; its log_delta or epsilon is the guess that the errors are relative to.
      given: log delta (``unknown`` = "epsilon") or epsilon ("delta"), shape (lanes,).
      old: what the passes before found.
      tol: relative tolerance on delta, a scalar or (lanes,).
      unknown: "epsilon" or "delta".
      capacity: the most nodes that any lane may use, a power of two.
      block: how many contour nodes are evaluated at once, a power of two.
    """
    tilt = fix_tilt(problem, plan, capacity)
    return ends(problem, plan, tilt, line(problem, plan, tilt, capacity, block), given, old, tol, unknown=unknown)


def ends(
    problem: Problem, plan: Plan, tilt: Tilt, on: Line, given: jax.Array, old: Ends, tol: ArrayLike, *, unknown: str
) -> Solution:
    """``evaluate``, once the integrand is."""
    for_epsilon = unknown == "epsilon"
    ulps = 8 * unit(given)
    eps = solve_epsilon(plan, tilt, on) if for_epsilon else plan.epsilon
    at = jax.tree.map(lambda a: a[:, 0], sums(plan, tilt, on, eps[:, None]))
    c = certify(problem, plan, tilt, on, eps, at)
    over = c.truncation + c.inner + c.rounding
    if is_single(over):
        # the bounds' own rounding: they are sums and products of positive numbers, and exponentials of logs
        over = 1.01 * over
    under = over + c.alias_up + c.alias_down
    # where every term has underflowed the guess of log delta was far too large, and nothing is known
    good = (at.estimate > 0) & (at.absolute > 0) & jnp.isfinite(at.estimate)
    safe = jnp.where(good, at.estimate, 1.0)
    wide = jnp.where(good, jnp.maximum(over, under / 3) / safe, jnp.inf)
    limited = (c.rounding >= 0.2 * under) & (under < 4 * c.rounding)
    r, k = tilt.chernoff
    if for_epsilon:
        lower, upper = _epsilon_ends(plan, tilt, on, eps, at.slope, over, under)
        estimate = jnp.where(good, eps, jnp.nan)
        bound = (k + xlogx(r) - given) / r * (1 + ulps) + ulps * jnp.abs(given) / r
        last = 0.0
    else:
        upper = ln(jnp.maximum(jnp.minimum(at.estimate, at.total), 0.0) + over) + plan.log_delta
        lower = ln(jnp.maximum(at.estimate - under, 0.0)) + plan.log_delta
        estimate = jnp.where(good, ln(safe) + plan.log_delta, jnp.nan)
        bound = k + xlogx(r) - r * given + ulps * (jnp.abs(k) + jnp.abs(r * given) + 1)
        last = ulps * (jnp.abs(plan.log_delta) + 1)  # rounding of the logarithms of this function itself
    sane = (at.absolute > 0) & (upper < jnp.inf)
    upper = jnp.minimum(jnp.where(sane, upper, jnp.inf) + last, jnp.where(r > 0, bound, jnp.inf))
    lower = lower - last
    # a plan without a tilt, or without a guess of what is unknown: nothing is known along it
    upper = jnp.where(jnp.isnan(upper), jnp.inf, upper)
    lower = jnp.where(jnp.isnan(lower) | ~sane, -jnp.inf, lower)
    narrower = (upper - lower) <= (old.upper - old.lower)
    keep_old = ~narrower & jnp.isfinite(old.estimate)
    moved = jnp.abs(estimate - old.estimate) * (plan.s if for_epsilon else 1.0)
    converged = (wide <= tol) & sane
    return Solution(
        lower=jnp.maximum(lower, old.lower),
        estimate=jnp.where(keep_old, old.estimate, estimate),
        upper=jnp.minimum(upper, old.upper),
        converged=converged,
        cancelled=limited,
        settled=converged | limited | (moved < 0.1),
        nodes=jnp.minimum(plan.nodes, on.t.shape[-1]),
        plan=plan,
        certificate=c,
    )


class _State(NamedTuple):
    passes: jax.Array
    done: jax.Array
    epsilon: jax.Array  # what the next contour is chosen for
    log_delta: jax.Array
    tol: jax.Array
    solution: Solution


@partial(jax.jit, static_argnames=("tol", "unknown", "capacity", "block"))
def solve(problem: Problem, given: jax.Array, *, tol: float, unknown: str, capacity: int, block: int) -> Solution:
    """Epsilon for ``given`` = log delta (``unknown`` = "epsilon"), or log delta for ``given`` = epsilon ("delta").

    ``plan`` and ``evaluate``, until every lane has settled; arguments as there.

    Returns:
      Certified lower and upper ends and the estimate. A lane that needs more nodes than ``capacity``, or whose terms
      cancel too far, has the bound that it reached, and says so.
    """
    for_epsilon = unknown == "epsilon"
    lanes = given.shape[0]
    none = given * jnp.nan
    run = partial(evaluate, unknown=unknown, capacity=capacity, block=block)

    def again(state: _State) -> _State:
        new_plan = plan(problem, state.epsilon, state.log_delta, state.tol, given == given, capacity)
        # Where many nodes are needed the saddle-point guess is off by orders of magnitude: a rough pass first.
        first = state.passes == 0
        rough = first & (new_plan.nodes > MANY) & (capacity > MANY)
        new_plan = new_plan._replace(nodes=jnp.where(rough, 0.0, new_plan.nodes))
        old = state.solution
        new = run(problem, new_plan, given, Ends(old.lower, old.estimate, old.upper), tol)
        full = new_plan.nodes > capacity
        planned = jnp.minimum(state.tol, tol)
        missed = new.settled & ~new.converged & ~new.cancelled & ~full & (planned > LEAST * tol)
        settled = (new.settled & ~missed | full & ((capacity <= MANY) | ~first)) & ~rough
        keep = state.done | rough
        choice = lambda a, b: jnp.where(keep.reshape((lanes,) + (1,) * (a.ndim - 1)), b, a)
        new = jax.tree.map(choice, new, old)
        guess = jnp.where(
            jnp.isfinite(new.estimate), new.estimate, new_plan.epsilon if for_epsilon else new_plan.log_delta
        )
        eps, log_d = (guess, given) if for_epsilon else (given, guess)
        return _State(
            state.passes + 1,
            state.done | settled,
            jnp.where(rough, state.epsilon, eps),
            jnp.where(rough, state.log_delta, log_d),
            jnp.where(rough, jnp.maximum(tol, ROUGH), planned * jnp.where(missed, 0.1, 1.0)),
            new,
        )

    eps0, log0 = (none, given) if for_epsilon else (given, none)
    ends = start(given)
    shapes = jax.eval_shape(lambda: run(problem, choose(problem, eps0, log0, none * 0 + tol), given, ends, tol))
    blank = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), shapes)._replace(**ends._asdict())
    state = _State(jnp.int32(0), given != given, eps0, log0, given * 0 + tol, blank)
    found = lax.while_loop(lambda s: (s.passes < PASSES) & ~jnp.all(s.done), again, state).solution
    return found._replace(**limits(problem, given, found, unknown)._asdict())


def limits(problem: Problem, given: Any, found: Ends | Solution, unknown: str) -> Ends:
    """Applies the bounds that always hold: the probability of being sampled at all, the largest loss."""
    xp = namespace(given, found.upper)
    touched, largest = log_touched(problem), largest_loss(problem)
    if unknown == "epsilon":
        upper = xp.minimum(xp.maximum(found.upper, 0.0), largest)
        upper = xp.where(touched <= given, 0.0, upper)
        lower = xp.clip(found.lower, 0.0, upper)
    else:
        upper = xp.minimum(xp.minimum(found.upper, 0.0), touched)
        upper = xp.where(given >= largest, -xp.inf, upper)
        lower = xp.minimum(found.lower, upper)
    return Ends(lower, xp.clip(xp.where(xp.isnan(found.estimate), upper, found.estimate), lower, upper), upper)
