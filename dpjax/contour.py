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
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from dpjax import cumulant
from dpjax._plan import MANY, PI, TINY, Plan, Problem, choose, climb, largest_loss, log_touched, pick, xlogx
from dpjax._special import log1p, sincos

_PASSES = 6
_ROUGH = 0.02
_MAX_X = 16384  # x-nodes of one component; past it the inner error grows and the status says so
# Rounding, in ulp: of a term, of its log modulus, of its phase. Measured against 80-bit sums: benchmarks/rounding.py.
_PER_TERM, _PER_LOG, _PER_PHASE = 10.0, 3.0, 3.0


class Certificate(NamedTuple):
    """Upper bounds of each error, relative to exp(log_delta) of the plan; (lanes,)."""

    alias_up: jax.Array
    alias_down: jax.Array
    truncation: jax.Array
    inner: jax.Array
    rounding: jax.Array


class Solution(NamedTuple):
    """What the engine found; (lanes,). For a delta query the three are log deltas, otherwise epsilons."""

    lower: jax.Array
    estimate: jax.Array
    upper: jax.Array
    converged: jax.Array
    cancelled: jax.Array
    nodes: jax.Array
    plan: Plan
    certificate: Certificate


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


class Tilt(NamedTuple):
    """What is fixed once the tilt is: windows and real cumulants, (lanes, components) and (lanes,)."""

    window: cumulant.Window
    step: jax.Array
    real: cumulant.RealCumulant
    k: jax.Array
    k_size: jax.Array  # sum of |count K|
    mean: jax.Array
    log_inner: jax.Array  # log relative error of one step's exp K(s + it), t up to the cutoff


def fix_tilt(problem: Problem, plan: Plan) -> Tilt:
    pair, count = problem.pair, problem.count
    win = cumulant.window(pair, plan.s)
    step = jnp.maximum(plan.step, (win.high - win.low) / _MAX_X)
    real = cumulant.real(pair, plan.s, win, step)
    gauss = 0.5 * problem.variance * plan.s * (1 + plan.s)
    strip = 2 * PI * plan.shift_down / step
    down = cumulant.log_envelope(pair, plan.s, -plan.cutoff, plan.shift_down, win, step) + jnp.log(2.0)
    down = down - real.value - strip - jnp.log(-jnp.expm1(-strip))
    log_inner = jnp.logaddexp(jnp.logaddexp(down, real.log_error), -80.0)
    return Tilt(
        win, step, real,
        gauss + jnp.sum(count * real.value, 1),
        gauss + jnp.sum(count * jnp.abs(real.value), 1),
        problem.variance * (plan.s + 0.5) + jnp.sum(count * real.mean, 1),
        jnp.where((count > 0) & (pair.q > 0), log_inner, -jnp.inf),
    )  # fmt: skip


def log_phi(moments: cumulant.Moments) -> tuple[jax.Array, jax.Array]:
    """(log modulus, argument) of phi = (1 - a) + ib."""
    a, b = moments.a, moments.b
    close = a < 0.2
    square = jnp.where(close, a * a + b * b - 2 * a, 0.0)
    far = jnp.where(close, 1.0, (1 - a) ** 2 + b * b) + TINY
    return 0.5 * jnp.where(close, log1p(jnp.maximum(square, -0.9999)), jnp.log(far)), jnp.arctan2(b, 1 - a)


def _kernel(s: jax.Array, t: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Log modulus and argument of 1 / (z (z + 1)); ``s`` (lanes,), ``t`` (lanes, nodes)."""
    s = s[:, None]
    log_modulus = -0.5 * (jnp.log(s * s + t * t) + jnp.log((1 + s) ** 2 + t * t))
    return log_modulus, -jnp.arctan2(t, s) - jnp.arctan2(t, 1 + s)


def block_nodes(plan: Plan, h: jax.Array, start: jax.Array, size: int):
    n = start + jnp.arange(size)
    t = n * h[:, None]
    half = jnp.where(n == 0, jnp.log(0.5), 0.0)
    inside = n[None, :] < plan.nodes[:, None]
    return t, jnp.where(inside, half, -jnp.inf)


def integrand(problem: Problem, plan: Plan, tilt: Tilt, t, half, log_modulus, angle, eps) -> tuple[jax.Array, jax.Array]:
    """log modulus and phase of the terms at t, without exp(K(s) - s eps); (lanes, nodes).

    ``half`` is the log of the term's weight; ``log_modulus`` and ``angle`` are those of the components' phi.
    """
    count = problem.count[:, :, None]
    log_kernel, kernel_angle = _kernel(plan.s, t)
    weight = half + log_kernel - 0.5 * problem.variance[:, None] * t * t + jnp.sum(count * log_modulus, 1)
    return weight, jnp.sum(count * angle, 1) + t * (tilt.mean - eps)[:, None] + kernel_angle


def line(problem: Problem, plan: Plan, tilt: Tilt, capacity: int, block: int, x_block: int) -> Line:
    """Evaluates the integrand, ``block`` nodes at a time, as far as the slowest lane needs."""
    h = 2 * PI / plan.period
    lanes = plan.s.shape[0]
    count = problem.count[:, :, None]

    def body(carry):
        start, log_weight, phase, log_inner = carry
        t, half = block_nodes(plan, h, start, block)
        moments = cumulant.moments(problem.pair, plan.s, t, tilt.window, tilt.step, tilt.real, block=x_block)
        log_modulus, angle = log_phi(moments)
        weight, angles = integrand(problem, plan, tilt, t, half, log_modulus, angle, plan.epsilon)
        error = tilt.log_inner[:, :, None]
        raised = jnp.logaddexp(log_modulus, error)
        inner = weight + jnp.sum(count * (raised - log_modulus), 1)
        inner = inner + jnp.log(jnp.sum(count * jnp.exp(error - raised), 1) + TINY)
        put = lambda whole, part: lax.dynamic_update_slice(whole, part, (0, start))
        return start + block, put(log_weight, weight), put(phase, angles), put(log_inner, inner)

    empty = jnp.full((lanes, capacity), -jnp.inf, plan.s.dtype)
    used = jnp.minimum(jnp.max(plan.nodes), capacity)
    _, log_weight, phase, log_inner = lax.while_loop(
        lambda carry: carry[0] < used, body, (0, empty, jnp.zeros_like(empty), empty)
    )
    return Line(h, h[:, None] * jnp.arange(capacity), log_weight, phase, log_inner)


class Sums(NamedTuple):
    """S and its parts relative to exp(plan.log_delta); (lanes,)."""

    total: jax.Array  # S
    slope: jax.Array  # dS / d eps
    absolute: jax.Array  # sum of |terms|
    absolute_log: jax.Array  # sum of |terms| |log of the term|
    absolute_t: jax.Array  # sum of |terms| t


def log_scale(plan: Plan, tilt: Tilt, eps: jax.Array) -> jax.Array:
    return tilt.k - plan.s * eps - plan.log_delta + jnp.log(2 / plan.period)  # h / pi


def sums(plan: Plan, tilt: Tilt, on: Line, eps: jax.Array) -> Sums:
    """The trapezoid sum at ``eps`` (lanes,)."""
    scale = jnp.exp(jnp.minimum(log_scale(plan, tilt, eps), 600.0))
    amplitude = jnp.exp(on.log_weight)
    size = jnp.where(amplitude > 0, jnp.abs(on.log_weight), 0.0)
    sine, cosine = sincos(on.phase - on.t * (eps - plan.epsilon)[:, None])
    add = lambda terms: scale * _pairwise_sum(terms)
    total = add(amplitude * cosine)
    slope = -plan.s * total + add(amplitude * on.t * sine)
    return Sums(total, slope, add(amplitude), add(amplitude * size), add(amplitude * on.t))


def _pairwise_sum(terms: jax.Array) -> jax.Array:
    """Sums the last axis, a power of two, by halves: an error of log2(length) ulp instead of length."""
    while terms.shape[-1] > 1:
        half = terms.shape[-1] // 2
        terms = terms[..., :half] + terms[..., half:]
    return terms[..., 0]


def known_alias(plan: Plan, eps: jax.Array) -> tuple[jax.Array, jax.Array]:
    """A and A' of the down aliases, relative to exp(plan.log_delta)."""
    decay, decay1 = plan.s * plan.period, (1 + plan.s) * plan.period
    a = jnp.exp(-decay - plan.log_delta) / -jnp.expm1(-decay)
    return a, jnp.exp(jnp.minimum(eps - decay1 - plan.log_delta, 600.0)) / -jnp.expm1(-decay1)


def _estimate(plan: Plan, tilt: Tilt, on: Line, eps: jax.Array):
    """(S - A + A', its derivative in eps, the sums), relative to exp(plan.log_delta)."""
    at = sums(plan, tilt, on, eps)
    a, a1 = known_alias(plan, eps)
    return at.total - a + a1, at.slope + a1, at


def solve_epsilon(plan: Plan, tilt: Tilt, on: Line) -> jax.Array:
    """The eps >= 0 at which the estimate is exp(plan.log_delta): Newton's method on the log, inside a bracket."""

    def body(carry):
        i, eps, low, high, moved = carry
        value, slope, _ = _estimate(plan, tilt, on, eps)
        above = value > 1
        low, high = jnp.where(above, eps, low), jnp.where(above, high, eps)
        safe = jnp.where(value > 0, value, 1.0)
        newton = eps - jnp.log(safe) * safe / jnp.where(slope < 0, slope, -1.0)
        middle = jnp.where(jnp.isinf(high), 2 * eps + 1 / plan.s, 0.5 * (low + high))
        usable = (value > 0) & (slope < 0) & (newton > low) & (newton < high)
        new = jnp.where(usable, newton, middle)
        new = jnp.where((newton <= 0) & (value > 0) & (low < 0), 0.0, new)
        new = jnp.where((eps == 0) & ~above, 0.0, new)
        return i + 1, new, low, high, jnp.abs(new - eps) > 4e-16 * jnp.abs(new)

    start = (0, plan.epsilon, jnp.full_like(plan.epsilon, -1e-300), jnp.full_like(plan.epsilon, jnp.inf), plan.s > 0)
    return lax.while_loop(lambda carry: (carry[0] < 60) & jnp.any(carry[4]), body, start)[1]


def _certified_k(problem: Problem, s: jax.Array) -> jax.Array:
    """An upper bound of K(s), (lanes,)."""
    pair = problem.pair
    win = cumulant.window(pair, s)
    step = jnp.maximum(cumulant.real_step(pair, s), (win.high - win.low) / _MAX_X)
    real = cumulant.real(pair, s, win, step)
    unit = jnp.finfo(s.dtype).epsneg
    above = jnp.log1p(jnp.exp(jnp.minimum(real.log_error, 100.0))) + 64 * unit * jnp.minimum(
        jnp.abs(real.value) + 1e-300, 1.0
    )
    total = jnp.sum(problem.count * (real.value + above), 1) + 0.5 * problem.variance * s * (1 + s)
    return total * (1 + 1e-14)


def certify(problem: Problem, plan: Plan, tilt: Tilt, on: Line, eps: jax.Array, at: Sums) -> Certificate:
    """Bounds on every error of the estimate at ``eps``, relative to exp(plan.log_delta)."""
    pair, count = problem.pair, problem.count
    # alias up: Chernoff's bound at the r of the grid that makes it smallest
    gap = plan.s_grid - plan.s[:, None]
    bound = plan.k_grid - plan.s_grid * eps[:, None] + xlogx(plan.s_grid) - gap * plan.period[:, None]
    r = pick(plan.s_grid, jnp.argmin(jnp.where(gap > 1e-3 * plan.s[:, None], bound, jnp.inf), 1))
    decay = (r - plan.s) * plan.period
    log_up = _certified_k(problem, r) - r * eps + xlogx(r) - decay - jnp.log(-jnp.expm1(-decay)) - plan.log_delta
    none = eps + plan.period >= largest_loss(problem)
    alias_up = jnp.where(none, 0.0, jnp.exp(jnp.minimum(log_up, 600.0)))
    _, alias_down = known_alias(plan, eps)

    cut = jnp.minimum(plan.nodes - 1, on.t.shape[1] - 1) * on.h
    envelope = cumulant.log_envelope(pair, plan.s, cut, plan.shift_up, tilt.window, tilt.step)
    own = (
        tilt.real.value
        + 0.5 * plan.shift_up**2
        + jnp.logaddexp(
            cumulant.log_real_alias(pair, plan.s, tilt.step, plan.shift_up), tilt.window.log_tail - tilt.real.value
        )
    )
    envelope = jnp.minimum(
        jnp.logaddexp(envelope, own), tilt.real.value + jnp.exp(jnp.minimum(tilt.real.log_error, 50.0))
    )
    gauss = 0.5 * problem.variance * (plan.s * (1 + plan.s) - cut * cut)
    log_cut = (
        jnp.sum(jnp.where(pair.q > 0, count * envelope, 0.0), 1)
        + gauss
        - plan.s * eps
        - jnp.log(PI * cut)
        - plan.log_delta
    )
    truncation = jnp.exp(jnp.minimum(log_cut, 600.0))

    scale = jnp.exp(jnp.minimum(log_scale(plan, tilt, eps), 600.0))
    real_error = jnp.sum(jnp.where(pair.q > 0, count * jnp.exp(jnp.minimum(tilt.real.log_error, 100.0)), 0.0), 1)
    inner = scale * jnp.sum(jnp.exp(on.log_inner), 1) + jnp.abs(at.total) * jnp.expm1(jnp.minimum(real_error, 100.0))

    # The scale is common to all terms; each term has its own rounding in the kernel, the log modulus and the phase.
    unit = jnp.finfo(eps.dtype).epsneg
    phase = jnp.sum(count * tilt.real.spread, 1) + jnp.abs(tilt.mean - eps)
    common = tilt.k_size + jnp.abs(plan.s * eps) + jnp.abs(plan.log_delta) + 8
    rounding = unit * (
        _PER_TERM * at.absolute
        + _PER_LOG * at.absolute_log
        + _PER_PHASE * at.absolute_t * phase
        + 8 * common * jnp.abs(at.total)
    )
    return Certificate(alias_up, alias_down, truncation, inner, rounding)


# --------------------------------------------------------------------------------------------------------------------
# The answer


def _chernoff(problem: Problem, plan: Plan, eps: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(r, upper bound of K(r)) at the r of the grid with the smallest Chernoff bound at ``eps``."""
    bound = plan.k_grid + xlogx(plan.s_grid) - plan.s_grid * eps[:, None]
    r = pick(plan.s_grid, jnp.argmin(bound, 1))
    return r, _certified_k(problem, r)


def _step_up(plan: Plan, tilt: Tilt, on: Line, eps, slope, errors):
    """The smallest tried eps' >= eps whose upper bound on delta is at most the target, +inf if none was found."""

    def upper(e):
        value, _, at = _estimate(plan, tilt, on, e)
        return jnp.minimum(value, at.total) + errors * 1.01

    unit = 4 * jnp.finfo(eps.dtype).epsneg
    first = 1.02 * errors / jnp.maximum(-slope, TINY) + unit * eps
    answer = jnp.full_like(eps, jnp.inf)
    for factor in (1.0, 1.5, 4.0, 20.0):
        trial = eps + factor * first
        answer = jnp.where(jnp.isinf(answer) & (upper(trial) <= 1), trial, answer)
    return jnp.where((eps == 0) & (upper(eps) <= 1), 0.0, answer)


def _step_down(plan: Plan, tilt: Tilt, on: Line, eps, slope, errors):
    """The largest tried eps' <= eps whose lower bound on delta is at least the target, 0 if none was found."""
    unit = 4 * jnp.finfo(eps.dtype).epsneg
    first = 1.02 * errors / jnp.maximum(-slope, TINY) + unit * eps
    answer = jnp.zeros_like(eps)
    for factor in (4.0, 1.5, 1.0):
        trial = jnp.maximum(eps - factor * first, 0.0)
        value, _, _ = _estimate(plan, tilt, on, trial)
        # every error grows at most like exp(-r eps), r the largest tilt of the grid
        grown = errors * 1.01 * jnp.exp(jnp.minimum(plan.s_grid[:, -1] * (eps - trial), 100.0))
        answer = jnp.where(value - grown >= 1, trial, answer)
    return answer


@partial(jax.jit, static_argnames=("tol", "unknown", "capacity", "block", "x_block"))
def solve(
    problem: Problem,
    given: jax.Array,
    *,
    tol: float,
    unknown: str,
    capacity: int,
    block: int,
    x_block: int,
) -> Solution:
    """Epsilon for ``given`` = log delta (``unknown`` = "epsilon"), or log delta for ``given`` = epsilon ("delta").

    Args:
      problem: the composition.
      given: shape (lanes,).
      tol: relative tolerance on delta.
      unknown: "epsilon" or "delta".
      capacity: the most nodes that any lane may use.
      block, x_block: how many contour nodes, and how many inner nodes, are evaluated at once.

    Returns:
      Certified lower and upper ends and the estimate. A lane that needs more nodes than ``capacity``, or whose terms
      cancel too far, has the bound that it reached, and says so.
    """
    for_epsilon = unknown == "epsilon"
    blank = jnp.full_like(given, jnp.nan)
    eps0, log0 = (blank, given) if for_epsilon else (given, blank)
    lanes = given.shape[0]

    def evaluate(plan: Plan):
        tilt = fix_tilt(problem, plan)
        on = line(problem, plan, tilt, capacity, block, x_block)
        eps = solve_epsilon(plan, tilt, on) if for_epsilon else plan.epsilon
        value, slope, at = _estimate(plan, tilt, on, eps)
        c = certify(problem, plan, tilt, on, eps, at)
        over = c.truncation + c.inner + c.rounding
        under = over + c.alias_up + c.alias_down
        safe = jnp.where(value > 0, value, jnp.nan)
        wide = jnp.where(value > 0, jnp.maximum(over, under / 3) / jnp.where(value > 0, value, 1.0), jnp.inf)
        limited = (c.rounding >= 0.2 * under) & (under < 4 * c.rounding)
        if for_epsilon:
            upper = _step_up(plan, tilt, on, eps, slope, over)
            lower = _step_down(plan, tilt, on, eps, slope, under)
            estimate = eps
        else:
            upper = jnp.log(jnp.maximum(jnp.minimum(value, at.total), 0.0) + over) + plan.log_delta
            lower = jnp.log(jnp.maximum(value - under, 0.0)) + plan.log_delta
            estimate = jnp.log(safe) + plan.log_delta
        # rounding of the logarithms and exponentials of this function itself
        last = 8 * jnp.finfo(given.dtype).epsneg * jnp.where(for_epsilon, 0.0, jnp.abs(plan.log_delta) + 1)
        converged = (wide <= tol) & jnp.isfinite(upper)
        return Solution(
            lower - last, estimate, upper + last, converged, limited, jnp.minimum(plan.nodes, capacity), plan, c
        )

    def merge(done, new, old):
        return jax.tree.map(lambda a, b: jnp.where(done.reshape((lanes,) + (1,) * (a.ndim - 1)), b, a), new, old)

    def again(carry):
        i, solution, done = carry
        old = solution.plan
        eps = jnp.where(jnp.isfinite(solution.estimate), solution.estimate, old.epsilon) if for_epsilon else given
        log_d = (
            given
            if for_epsilon
            else jnp.where(
                jnp.isfinite(solution.estimate), solution.estimate, jnp.minimum(solution.upper, old.log_delta)
            )
        )
        new = evaluate(climb(problem, choose(problem, eps, log_d, tols, "delta"), capacity))
        better = new.upper < solution.upper
        keep_upper = jnp.where(better, new.upper, solution.upper)
        keep_lower = jnp.maximum(new.lower, solution.lower)
        new = new._replace(upper=keep_upper, lower=keep_lower)
        moved = jnp.abs(new.estimate - solution.estimate) * (new.plan.s if for_epsilon else 1.0)
        settled = new.converged | new.cancelled | (plan_full(new.plan) & plan_full(old)) | (moved < 0.1)
        narrower = (new.upper - new.lower) <= (solution.upper - solution.lower)
        new = new._replace(estimate=jnp.where(narrower, new.estimate, solution.estimate))
        return i + 1, merge(done, new, solution), done | settled

    def plan_full(plan):
        return plan.nodes > capacity

    tols = jnp.full_like(given, tol)
    plan = choose(problem, eps0, log0, tols, unknown)
    # Where many nodes are needed the saddle-point guess is off by orders of magnitude: a rough pass first.
    many = plan.nodes > MANY
    plan = lax.cond(
        jnp.any(many),
        lambda: climb(
            problem, choose(problem, eps0, log0, jnp.where(many, jnp.maximum(tols, _ROUGH), tols), unknown), capacity
        ),
        lambda: plan,
    )
    first = evaluate(plan)
    start = (1, first, first.converged | (plan_full(first.plan) & (capacity < 1024)))
    _, solution, _ = lax.while_loop(lambda c: (c[0] < _PASSES) & jnp.any(~c[2]), again, start)
    return _limits(problem, given, solution, for_epsilon)


def _limits(problem: Problem, given: jax.Array, found: Solution, for_epsilon: bool) -> Solution:
    """Applies the bounds that always hold: Chernoff's, the probability of being sampled at all, the largest loss."""
    unit = jnp.finfo(given.dtype).epsneg
    touched, largest = log_touched(problem), largest_loss(problem)
    eps = (
        found.plan.epsilon
        if not for_epsilon
        else jnp.where(jnp.isfinite(found.estimate), found.estimate, found.plan.epsilon)
    )
    r, k = _chernoff(problem, found.plan, eps)
    if for_epsilon:
        chernoff = (k + xlogx(r) - given) / r * (1 + 8 * unit) + 8 * unit * jnp.abs(given) / r
        upper = jnp.minimum(jnp.minimum(found.upper, jnp.maximum(chernoff, 0.0)), largest)
        upper = jnp.where(touched <= given, 0.0, upper)
        lower = jnp.minimum(found.lower, upper)
        estimate = jnp.clip(jnp.where(jnp.isnan(found.estimate), upper, found.estimate), lower, upper)
    else:
        chernoff = k + xlogx(r) - r * given + 8 * unit * (jnp.abs(k) + jnp.abs(r * given) + 1)
        upper = jnp.minimum(jnp.minimum(found.upper, jnp.minimum(chernoff, 0.0)), touched)
        upper = jnp.where(given >= largest, -jnp.inf, upper)
        lower = jnp.minimum(found.lower, upper)
        estimate = jnp.clip(jnp.where(jnp.isnan(found.estimate), upper, found.estimate), lower, upper)
    return found._replace(lower=lower, estimate=estimate, upper=upper)
