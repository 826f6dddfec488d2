"""Runs the contour engine over any number of lanes: in chunks, on the host for numbers, differentiably for tracers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dpjax import _sensitivity, _shared, contour
from dpjax._chunks import in_chunks, take
from dpjax._differentiable import twice_differentiable
from dpjax._plan import MANY, Plan, Problem
from dpjax.contour import Answer
from dpjax.pairs import SampledGaussianPair

_CHUNK = 32  # lanes that run in one loop under tracing; more would wait for the slowest
_BLOCK, _TRACED_BLOCK = 1024, 256  # contour nodes evaluated at once


class Settings(NamedTuple):
    """What a solution depends on apart from numbers; hashable."""

    unknown: str
    tol: float
    max_nodes: int
    chunk: int = _CHUNK  # lanes of one loop under tracing


def _capacity(settings: Settings) -> int:
    return max(MANY, 1 << (settings.max_nodes - 1).bit_length())


def _empty(given: np.ndarray) -> Answer:
    """What is known before the first pass."""
    lanes = given.shape[0]
    return Answer(*contour.start(given), np.zeros(lanes, bool), np.zeros(lanes, bool), np.zeros(lanes))


def _put(whole: tuple, index: np.ndarray, part: tuple) -> None:
    for a, b in zip(whole, part, strict=True):
        a[index] = b


# --------------------------------------------------------------------------------------------------------------------
# Traced


def _evaluate(settings: Settings, constants: tuple, xs: tuple, order: int) -> tuple:
    variance, sigma, q, count, given, sign, alpha, beta = xs
    lanes, components = sigma.shape
    capacity = _capacity(settings)
    block = min(_TRACED_BLOCK, capacity)

    def one_chunk(chunk):
        problem, given = chunk
        found = contour.solve(
            problem, given, tol=settings.tol, unknown=settings.unknown, capacity=capacity, block=block
        )
        if order == 0:
            return found.answer(), None
        eps = found.estimate if settings.unknown == "epsilon" else given
        derivatives = _sensitivity.of_log_delta(problem, found.plan, eps, order, capacity, block)
        return found.answer(), _sensitivity.of_answer(derivatives, found.estimate, settings.unknown)

    problem = Problem(variance, SampledGaussianPair(sigma, q, sign, alpha, beta), count)
    size = 1 if lanes <= 2 else min(settings.chunk, lanes)
    chunks = -(-lanes // size)
    padded = jax.tree.map(lambda a: jnp.concatenate([a, jnp.repeat(a[:1], chunks * size - lanes, 0)]), (problem, given))
    split = jax.tree.map(lambda a: a.reshape((chunks, size, *a.shape[1:])), padded)
    answer, derivatives = (
        lax.map(one_chunk, split) if chunks > 1 else jax.tree.map(lambda a: a[None], one_chunk((problem, given)))
    )
    join = lambda a: a.reshape((chunks * size, *a.shape[2:]))[:lanes]
    answer = jax.tree.map(join, answer)
    if order == 0:
        return tuple(answer), None, None
    g = join(derivatives.gradient)
    m = components
    parts = (slice(3 * m, 3 * m + 1), slice(0, m), slice(m, 2 * m), slice(2 * m, 3 * m), slice(3 * m + 1, 3 * m + 2))
    squeeze = (True, False, False, False, True)
    take = lambda a, axis, i: jnp.squeeze(a, axis) if squeeze[i] else a
    gradient = tuple(take(g[:, part], 1, i) for i, part in enumerate(parts)) + (None,) * 3
    if order == 1:
        return tuple(answer), gradient, None
    h = join(derivatives.hessian)
    rows = []
    for i, row in enumerate(parts):
        entries = []
        for j, column in enumerate(parts):
            entries.append(take(take(h[:, row, column], 2, j), 1, i))
        rows.append((*entries, None, None, None))
    return tuple(answer), gradient, (*rows, *((None,) * 8,) * 3)


_value = twice_differentiable(_evaluate)


def solve(settings: Settings, problem: Problem, given: jax.Array) -> Answer:
    """The contour engine on lanes of tracers, float64, differentiable twice in every number of ``problem`` and in ``given``."""
    pair = problem.pair
    fields = (problem.variance, pair.sigma, pair.q, problem.count, given, pair.sign, pair.alpha, pair.beta)
    return Answer(*_value(settings, (), *fields))


# --------------------------------------------------------------------------------------------------------------------
# Concrete


def _difficulty(problem: Problem) -> np.ndarray:
    """Grows with the number of inner nodes that a lane needs: cutoff over sigma, from the loss's variance."""
    pair, count = problem.pair, problem.count
    with np.errstate(all="ignore"):
        inv = 1 / np.maximum(pair.sigma, 0.05)
        variance = problem.variance + np.sum(count * pair.q**2 * np.expm1(np.minimum(inv**2, 100)), 1)
        return np.nan_to_num(np.max(inv, 1, initial=0.0) / np.sqrt(variance + 1e-300), posinf=1e300)


@partial(jax.jit, static_argnames=("capacity",))
def _plan(problem: Problem, epsilon, log_delta, tol, thorough, *, capacity: int) -> Plan:
    return contour.plan(problem, epsilon, log_delta, tol, thorough, capacity)


@partial(jax.jit, static_argnames=("unknown", "capacity", "block"))
def _pass(problem: Problem, plan: Plan, given, old: contour.Ends, tol, **static):
    found = contour.evaluate(problem, plan, given, old, tol, **static)
    return found.answer(), found.settled


def _plan_lanes(problem: Problem, epsilon, log_delta, thorough: np.ndarray, tol: np.ndarray, capacity: int) -> Plan:
    arguments = problem, epsilon, log_delta, tol, thorough
    return in_chunks(lambda a: _plan(*a, capacity=capacity), arguments, _difficulty(problem))


@partial(jax.jit, static_argnames=("capacity", "block"))
def _log_slopes(problem: Problem, plan: Plan, eps, *, capacity: int, block: int):
    return _sensitivity.of_log_delta(problem, plan, eps, 1, capacity, block).gradient


def parameters(problem: Problem) -> int:
    """How many numbers of a lane its answer can be differentiated by."""
    return 3 * problem.count.shape[1] + 2


def moving(problem: Problem, given: jax.Array) -> jax.Array:
    """These numbers, in the order of ``_sensitivity``; (lanes, parameters)."""
    pair = problem.pair
    return jnp.concatenate([pair.sigma, pair.q, problem.count, problem.variance[:, None], given[:, None]], 1)


@partial(jax.jit, static_argnames="unknown")
def _of_answer(slopes, estimate, *, unknown: str):
    return _sensitivity.of_answer(_sensitivity.Sensitivity(slopes, None), estimate, unknown).gradient


def _by_nodes(plan: Plan, capacity: int, function: Callable, arguments: tuple) -> Iterator[tuple[np.ndarray, Any]]:
    """(lanes, ``function(arguments, size, block)`` of them); lanes that need as many nodes run side by side."""
    few = plan.nodes <= MANY
    for size, lanes in ((MANY, few), (capacity, ~few)):
        which = np.flatnonzero(lanes)
        if which.size:
            cost = np.minimum(plan.nodes[which], size) * 1e-3 + 1 / np.min(plan.step[which], -1, initial=1.0)
            step = partial(function, capacity=size, block=min(_BLOCK, size))
            yield which, in_chunks(lambda a, step=step: step(*a), take(arguments, which), cost)


def _pass_lanes(settings: Settings, capacity: int, problem: Problem, plan: Plan, given: np.ndarray, old: contour.Ends):
    """(``Answer``, whether settled) of one pass."""
    answer, settled = _empty(given), np.zeros(given.shape[0], bool)
    arguments = problem, plan, given, old, np.full(given.shape[0], settings.tol)
    for lanes, (found, done) in _by_nodes(plan, capacity, partial(_pass, unknown=settings.unknown), arguments):
        settled[lanes] = done
        _put(answer, lanes, found)
    return answer, settled


def _slopes_lanes(capacity: int, problem: Problem, plan: Plan, eps: np.ndarray) -> np.ndarray:
    """The derivatives of log delta at ``eps``, (lanes, parameters)."""
    slopes = np.full((eps.size, parameters(problem)), np.nan)
    for lanes, found in _by_nodes(plan, capacity, _log_slopes, (problem, plan, eps)):
        slopes[lanes] = found
    return slopes


def solve_concrete(
    settings: Settings, problem: Problem, given: np.ndarray, order: int = 0
) -> tuple[Answer, np.ndarray | None]:
    """The contour engine on lanes of numbers (NumPy arrays, float64 enabled by the caller).

    Returns:
      The answers, and at order 1 the estimates' derivatives (lanes, parameters), in the order of ``_sensitivity``.
    """
    problem = jax.tree.map(lambda a: np.asarray(a, np.float64), problem)
    shared = _shared.families(problem)
    if shared is None:
        answer, slopes = _each_alone(settings, problem, given, order)
    else:
        answer, slopes = _shared.solve(problem, given, settings.tol, settings.unknown, shared, order)
        rest = np.flatnonzero(~answer.converged)
        if rest.size:
            first = take(answer, rest)
            alone, steeper = _each_alone(settings, take(problem, rest), given[rest], order)
            lower, upper = np.maximum(first.lower, alone.lower), np.minimum(first.upper, alone.upper)
            estimate = np.clip(alone.estimate, lower, upper)
            _put(answer, rest, alone._replace(lower=lower, estimate=estimate, upper=upper))
            if slopes is not None:
                slopes[rest] = steeper
    answer = answer._replace(**contour.limits(problem, given, contour.Ends(*answer[:3]), settings.unknown)._asdict())
    if slopes is not None:
        slopes = np.asarray(_of_answer(slopes, answer.estimate, unknown=settings.unknown))
    return answer, slopes


def _each_alone(
    settings: Settings, problem: Problem, given: np.ndarray, order: int
) -> tuple[Answer, np.ndarray | None]:
    """Lanes with a contour of their own; at order 1 with the derivatives of log delta.

    A contour is planned for every lane first; lanes are then evaluated beside others that need as many nodes.
    """
    for_epsilon = settings.unknown == "epsilon"
    lanes, capacity = given.shape[0], _capacity(settings)
    answer, none = _empty(given), np.full(lanes, np.nan)
    epsilon, log_delta = (none, given.copy()) if for_epsilon else (given.copy(), none)
    todo, thorough, tols = np.arange(lanes), np.zeros(lanes, bool), np.full(lanes, settings.tol)
    plans: Any = None
    for number in range(contour.PASSES):
        part, asked, eps, log_d, far, tol = take((problem, given, epsilon, log_delta, thorough, tols), todo)
        plan = _plan_lanes(part, eps, log_d, far, tol, capacity)
        many = np.flatnonzero(plan.nodes > MANY)
        if number == 0 and many.size:
            # there the saddle-point guess is off by orders of magnitude: a rough pass first
            thorough[many] = True
            sparse, eps, log_d, far, rough = take((part, eps, log_d, thorough, np.maximum(tol, contour.ROUGH)), many)
            _put(plan, many, _plan_lanes(sparse, eps, log_d, far, rough, capacity))
        old = contour.Ends(*take(answer[:3], todo))
        found, settled = _pass_lanes(settings, capacity, part, plan, asked, old)
        _put(answer, todo, found)
        if order:
            plans = plans or jax.tree.map(np.copy, plan)
            _put(plans, todo, plan)
        planned = plan.epsilon if for_epsilon else plan.log_delta
        better = np.where(np.isfinite(found.estimate), found.estimate, planned)
        (epsilon if for_epsilon else log_delta)[todo] = better
        full = plan.nodes > capacity
        # the plan's guess of what its contour reaches was too good, by a little: once more, for less
        missed = settled & ~found.converged & ~found.cancelled & ~full & (tol > contour.LEAST * settings.tol)
        tols[todo[missed]] *= 0.1
        todo = todo[~(settled & ~missed | full & (number > 0))]
        if not todo.size:
            break
    eps = answer.estimate if for_epsilon else given
    return answer, _slopes_lanes(capacity, problem, plans, eps) if order else None
