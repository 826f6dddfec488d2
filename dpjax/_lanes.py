"""Runs the contour engine over any number of lanes: in chunks, on the host for numbers, differentiably for tracers."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dpjax import _sensitivity, contour
from dpjax._differentiable import twice_differentiable
from dpjax._plan import Problem
from dpjax.pairs import SampledGaussianPair

_CHUNK = 32  # lanes that run in one loop under tracing; more would wait for the slowest
_BUCKETS = (2, 16)  # sizes that concrete batches are padded to, so that few programs are compiled
_SMALL, _LARGE = (64, 16, 64), (64, 128)  # (capacity, block, x_block) of the first try; blocks of the second
_SMALL_ONE = (64, 64, 128)


class Answer(NamedTuple):
    """(lanes,) each: certified ends, estimate, flags and the number of contour nodes."""

    lower: Any
    estimate: Any
    upper: Any
    converged: Any
    cancelled: Any
    nodes: Any


class Settings(NamedTuple):
    """What a solution depends on apart from numbers; hashable."""

    unknown: str
    tol: float
    max_nodes: int


def _pack(found: contour.Solution) -> Answer:
    return Answer(found.lower, found.estimate, found.upper, found.converged, found.cancelled, found.nodes)


# --------------------------------------------------------------------------------------------------------------------
# Traced


def _evaluate(settings: Settings, constants: tuple, xs: tuple, order: int) -> tuple:
    variance, sigma, q, count, given, sign, alpha, beta = xs
    lanes, components = sigma.shape
    capacity = 64
    while capacity < settings.max_nodes:
        capacity *= 2

    def one_chunk(chunk):
        problem, given = chunk
        found = contour.solve(
            problem, given, tol=settings.tol, unknown=settings.unknown, capacity=capacity, block=64, x_block=128
        )
        if order == 0:
            return _pack(found), None
        eps = found.estimate if settings.unknown == "epsilon" else given
        derivatives = _sensitivity.of_log_delta(problem, found.plan, eps, order, capacity)
        if settings.unknown == "epsilon":
            derivatives = _sensitivity.of_epsilon(derivatives)
        # clipped at 0, or a loss that cannot reach so far: constant
        flat = (found.estimate <= 0) if settings.unknown == "epsilon" else jnp.isneginf(found.estimate)
        still = lambda d: jnp.where(flat.reshape(flat.shape + (1,) * (d.ndim - 1)), 0.0, d)
        return _pack(found), jax.tree.map(still, derivatives)

    problem = Problem(variance, SampledGaussianPair(sigma, q, sign, alpha, beta), count)
    size = 1 if lanes <= 2 else min(_CHUNK, lanes)
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


def solve_concrete(settings: Settings, problem: Problem, given: np.ndarray) -> Answer:
    """The contour engine on lanes of numbers (NumPy arrays, float64 enabled by the caller).

    Most lanes need few nodes: all are tried with 64, and those that say they need more are run again with up to
    ``max_nodes``. Chunks of 16 lanes of similar difficulty run in two threads.
    """
    lanes = given.shape[0]
    answer = Answer(*(np.zeros(lanes, bool if i in (3, 4) else np.float64) for i in range(6)))
    first = _SMALL_ONE if lanes <= 2 else _SMALL
    capacity = min(first[0], settings.max_nodes)
    _run(settings, problem, given, np.arange(lanes), answer, capacity, *first[1:])
    more = np.flatnonzero(~answer.converged & (answer.nodes >= capacity))
    if settings.max_nodes > first[0] and more.size:
        large = 1 << (settings.max_nodes - 1).bit_length()
        _run(settings, problem, given, more, answer, large, *_LARGE)
    return answer


def _run(
    settings: Settings, problem: Problem, given, which, answer: Answer, capacity: int, block: int, x_block: int
) -> None:
    """Solves the lanes ``which`` and writes them into ``answer``."""
    wide = problem.pair.sigma.shape[1] > 16 or capacity > 64
    buckets = _BUCKETS[:1] if wide else _BUCKETS
    size = next((b for b in buckets if b >= len(which)), buckets[-1])
    order = which[np.argsort(_difficulty(jax.tree.map(lambda a: a[which], problem)))] if len(which) > size else which
    pieces = [order[i : i + size] for i in range(0, len(order), size)]

    def run(piece):
        index = np.concatenate([piece, np.repeat(piece[:1], size - len(piece))])
        part = jax.tree.map(lambda a: np.asarray(a[index], np.float64), problem)
        with jax.enable_x64(True):
            found = contour.solve(
                part, given[index], tol=settings.tol, unknown=settings.unknown,
                capacity=capacity, block=block, x_block=x_block,
            )  # fmt: skip
            for whole, new in zip(answer, _pack(found), strict=True):
                whole[piece] = np.asarray(new)[: len(piece)]

    run(pieces[0])  # compiles once, before the threads start
    if len(pieces) > 1:
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(run, pieces[1:]))
