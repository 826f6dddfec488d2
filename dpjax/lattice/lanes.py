"""Runs the lattice engine over lanes: grids of equal length side by side, on the host for numbers, in one program for tracers."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpjax.lattice import planning
from dpjax.lattice.solve import Found, solve
from dpjax.laws import loss_law
from dpjax.mechanisms import Adjacency, Mechanism

FINEST = 1e-3  # relative width of delta that is aimed at, unless more is asked for
POINTS = 32  # grid points that may take the place of one contour node
TRACED_POINTS = 4  # of one under tracing, where the length cannot follow the question
_LEAST = 1024
_TOGETHER = 1 << 19  # grid points of all lanes that are evaluated at once
_PASSES = 3


class Terms(NamedTuple):
    """A composition in lanes: for each kind of mechanism, (lanes, terms) records and how often each is run."""

    records: tuple[Mechanism, ...]
    counts: tuple[Any, ...]


class Answer(NamedTuple):
    """(lanes,) each: certified ends, estimate, whether the width that was aimed at was reached, number of grid points."""

    lower: Any
    estimate: Any
    upper: Any
    converged: Any
    points: Any


def _laws(records: tuple, direction: Adjacency) -> tuple:
    return tuple(jax.vmap(lambda r: loss_law(r, direction))(record) for record in records)


def _plan_one(records, counts, given, tol, direction, unknown):
    return planning.plan(_laws(records, direction), counts, given, unknown, tol)


def _solve_one(records, counts, given, plan, direction, unknown, n) -> Found:
    return solve(_laws(records, direction), counts, given, plan, unknown=unknown, n=n, size=n)


@partial(jax.jit, static_argnums=(3, 4, 5))
def _plans(terms: Terms, given, tol, direction, unknown, _):
    one = partial(_plan_one, direction=direction, unknown=unknown)
    return jax.vmap(one)(terms.records, terms.counts, given, tol)


@partial(jax.jit, static_argnums=(3, 4, 5))
def _solutions(terms: Terms, given, plan, direction, unknown, n):
    one = partial(_solve_one, direction=direction, unknown=unknown, n=n)
    return jax.vmap(one)(terms.records, terms.counts, given, plan)


def solve_traced(terms: Terms, given: Any, direction: Adjacency, unknown: str, tol: float, max_nodes: int) -> Answer:
    """On tracers: one grid length for all, ``TRACED_POINTS * max_nodes``; differentiable twice."""
    n = 1 << (TRACED_POINTS * max_nodes).bit_length() - 1
    tol = max(tol, FINEST)

    def one(lane):
        terms, given = lane
        plan = _plan_one(terms.records, terms.counts, given, tol, direction, unknown)
        return _solve_one(terms.records, terms.counts, given, plan, direction, unknown, n)

    together = max(1, _TOGETHER // n)
    lanes = given.shape[0]
    found = jax.vmap(one)((terms, given)) if lanes <= together else jax.lax.map(one, (terms, given), batch_size=together)
    return Answer(*found[:3], _width(found, unknown) <= tol, jnp.zeros(lanes, jnp.int32) + n)


def _width(found: Found, unknown: str) -> Any:
    """Roughly, of delta relative to its size: an epsilon's is multiplied by the slope of log delta."""
    gap = found.upper - found.lower
    return gap if unknown == "delta" else gap * found.slope


def solve_concrete(
    terms: Terms, given: np.ndarray, direction: Adjacency, unknown: str, tol: float, max_nodes: int
) -> Answer:
    """On numbers (NumPy, float64 enabled by the caller): grids are refined until narrow enough, or ``POINTS * max_nodes``."""
    lanes = given.shape[0]
    tol = max(tol, FINEST)
    most = 1 << (POINTS * max_nodes).bit_length() - 1
    answer = Answer(*(np.full(lanes, x) for x in (-np.inf, np.nan, np.inf)), np.zeros(lanes, bool), np.zeros(lanes))
    plan = _in_chunks(lambda part: _plans(*part, direction, unknown, None), (terms, given, np.full(lanes, tol)), lanes, _LEAST)
    with np.errstate(all="ignore"):
        wanted = np.nan_to_num(np.exp2(np.ceil(np.log2(plan.points))), nan=_LEAST, posinf=most)
    length = np.clip(wanted, _LEAST, most).astype(int)
    todo = np.arange(lanes)
    for _ in range(_PASSES):
        for n in np.unique(length[todo]):
            which = todo[length[todo] == n]
            part = jax.tree.map(lambda a, which=which: a[which], (terms, given, plan))
            found = _in_chunks(lambda p, n=n: _solutions(*p, direction, unknown, int(n)), part, which.size, n)
            _merge(answer, which, found, _width(found, unknown) <= tol, n)
        todo = todo[~answer.converged[todo] & (length[todo] < most)]
        if not todo.size:
            break
        length[todo] = np.minimum(length[todo] * 4, most)
    return answer


def _merge(answer: Answer, which: np.ndarray, found: Found, converged: np.ndarray, n: int) -> None:
    """Both certified intervals hold the truth: so does what they share."""
    better = ~(found.upper - found.lower > answer.upper[which] - answer.lower[which])
    answer.lower[which] = np.fmax(answer.lower[which], found.lower)
    answer.upper[which] = np.fmin(answer.upper[which], found.upper)
    estimate = np.where(better, found.estimate, answer.estimate[which])
    answer.estimate[which] = np.clip(estimate, answer.lower[which], answer.upper[which])
    answer.converged[which] |= converged
    answer.points[which] += n
    broken = np.isnan(found.lower) | np.isnan(found.upper)
    for x in answer[:3]:
        x[which[broken]] = np.nan


def _in_chunks(function: Any, tree: Any, lanes: int, n: int) -> Any:
    """``function`` of a tree of (lanes, ...) arrays, few lanes at a time; few shapes, few programs."""
    size = max(1, min(1 << (lanes - 1).bit_length(), int(_TOGETHER // n)))
    pieces = []
    for start in range(0, lanes, size):
        index = np.minimum(np.arange(start, start + size), lanes - 1)
        part = function(jax.tree.map(lambda a, index=index: np.asarray(a)[index], tree))
        pieces.append(jax.tree.map(lambda a, keep=min(size, lanes - start): np.asarray(a)[:keep], part))
    return jax.tree.map(lambda *a: np.concatenate(a), *pieces)
