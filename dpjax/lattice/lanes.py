"""Runs the lattice engine over lanes: grids of equal length side by side, on the host for numbers, in one program for tracers."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpjax.lattice import planning
from dpjax.lattice.cells import cells
from dpjax.lattice.solve import Found, solve
from dpjax.lattice.spectrum import compose, compose_laws
from dpjax.laws import Law, loss_law
from dpjax.mechanisms import Adjacency, Mechanism

FINEST = 1e-3  # relative width of delta that is aimed at, unless more is asked for
POINTS = 32  # grid points that may take the place of one contour node
TRACED_POINTS = 4  # of one under tracing, where the length cannot follow the question
_LEAST = 1024  # lengths are powers of 4: few programs
_FEW = 8  # terms whose cells are held at once
_TOGETHER = 1 << 19  # grid points of all lanes that are evaluated at once
_WORK = 1 << 22  # grid points of all terms of one lane: a long schedule gets a coarser grid


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
    """For each kind of mechanism, laws stacked along the terms."""
    return tuple(jax.vmap(lambda r: loss_law(r, direction))(record) for record in records)


def _join(parts: Any, axis: int = 0) -> Any:
    """One tree of all terms from a tree for each kind."""
    return jax.tree.map(lambda *a: jnp.concatenate(a, axis), *parts)


# Programs for numbers. The first three know mechanisms or laws, and they are small; the others serve all.


@partial(jax.jit, static_argnames="direction")
def _laws_in_lanes(records: tuple, *, direction: Adjacency) -> tuple:
    return jax.vmap(lambda lane: _laws(lane, direction))(records)


@jax.jit
def _sketches(law: Law):
    return jax.vmap(jax.vmap(planning.sketch))(law)


@partial(jax.jit, static_argnames="n")
def _cells(law: Law, low, spacing, *, n: int):
    one = lambda each, start, h: cells(each, start, h, n)
    return jax.vmap(jax.vmap(one, (0, 0, None)))(law, low, spacing)


@partial(jax.jit, static_argnames="unknown")
def _plans(sketches, counts, given, tol, *, unknown: str):
    return jax.vmap(partial(planning.plan, unknown=unknown))(sketches, counts, given, tol=tol)


@partial(jax.jit, static_argnames="n")
def _grids(plans, *, n: int):
    return jax.vmap(lambda p: planning.grid(p, n))(plans)


@partial(jax.jit, static_argnames="n")
def _ends(stacked, counts, grids, *, n: int):
    return jax.vmap(lambda c, count, grid: compose(c, count, grid, n))(stacked, counts, grids)


@partial(jax.jit, static_argnames=("unknown", "n"))
def _answers(ends, grids, given, plans, *, unknown: str, n: int):
    one = lambda end, grid, x, plan: solve(end, grid, x, plan, unknown, n)
    return jax.vmap(one)(ends, grids, given, plans)


def _from_laws(terms: Terms, given, plan, *, direction: Adjacency, unknown: str, n: int) -> Found:
    grid = planning.grid(plan, n)
    counts = jnp.concatenate(terms.counts)
    laws = _laws(terms.records, direction)
    if counts.shape[0] <= _FEW:
        start, stacked = 0, []
        for law, count in zip(laws, terms.counts, strict=True):
            low = grid.low[start : start + count.shape[0]]
            stacked.append(jax.vmap(lambda a, b: cells(a, b, grid.spacing, n))(law, low))
            start += count.shape[0]
        ends = compose(_join(stacked), counts, grid, n)
    else:
        ends = compose_laws(laws, counts, grid, n)
    return solve(ends, grid, given, plan, unknown, n)


def solve_traced(terms: Terms, given: Any, direction: Adjacency, unknown: str, tol: float, max_nodes: int) -> Answer:
    """On tracers: one grid length for all, ``TRACED_POINTS * max_nodes``; differentiable twice."""
    n = 1 << (TRACED_POINTS * max_nodes).bit_length() - 1
    tol = max(tol, FINEST)

    def one(lane):
        terms, given = lane
        laws = jax.tree.map(jax.lax.stop_gradient, _laws(terms.records, direction))
        sketches = _join([jax.vmap(planning.sketch)(law) for law in laws])
        plan = planning.plan(sketches, jnp.concatenate(terms.counts), given, unknown, tol)
        return _from_laws(terms, given, plan, direction=direction, unknown=unknown, n=n)

    together = max(1, _TOGETHER // n)
    lanes = given.shape[0]
    found = (
        jax.vmap(one)((terms, given)) if lanes <= together else jax.lax.map(one, (terms, given), batch_size=together)
    )
    return Answer(
        found.lower, found.estimate, found.upper, _width(found, unknown) <= tol, jnp.zeros(lanes, jnp.int32) + n
    )


def _once(laws: tuple, counts: tuple, given, plans, *, unknown: str, n: int) -> Found:
    """A part of the lanes on grids of ``n`` points; the cells of a few terms are held at once."""
    grids = _grids(plans, n=n)
    start, ends = 0, None
    for law, count in zip(laws, counts, strict=True):
        for first in range(0, count.shape[1], _FEW):
            some = slice(first, first + _FEW)
            part, times = jax.tree.map(lambda a, some=some: a[:, some], (law, count))
            here = grids._replace(low=grids.low[:, start : start + times.shape[1]])
            found = _ends(_cells(part, here.low, grids.spacing, n=n), times, here, n=n)
            ends = found if ends is None else jax.tree.map(jnp.add, ends, found)
            start += times.shape[1]
    # what depends on the number of terms is not asked for any more
    none = np.zeros((given.shape[0], 0))
    plans, grids = plans._replace(low=none, high=none), grids._replace(low=none)
    return _answers(ends, grids, given, plans, unknown=unknown, n=n)


def _padded(terms: Terms) -> Terms:
    """As many terms of each kind as a power of 2: few shapes, few programs. What is added is run 0 times."""

    def pad(record, count):
        have = count.shape[1]
        more = (1 << (have - 1).bit_length()) - have
        repeat = lambda a: np.concatenate([a, np.repeat(a[:, -1:], more, 1)], 1)
        return jax.tree.map(repeat, record), np.concatenate([count, np.zeros((count.shape[0], more))], 1)

    records, counts = zip(*(pad(r, c) for r, c in zip(terms.records, terms.counts, strict=True)), strict=True)
    return Terms(records, counts)


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
    terms_in_all = sum(count.shape[1] for count in terms.counts)
    most = 1 << (min(POINTS * max_nodes, max(_WORK // terms_in_all, _LEAST))).bit_length() - 1
    blank = lambda x: np.full(lanes, x)
    answer = Answer(blank(-np.inf), blank(np.nan), blank(np.inf), np.zeros(lanes, bool), np.zeros(lanes))
    records, counts = _padded(terms)
    laws = jax.tree.map(np.asarray, _laws_in_lanes(records, direction=direction))
    sketches = _join([_sketches(law) for law in laws], 1)
    plan = _in_chunks(
        lambda part: _plans(*part, unknown=unknown),
        (sketches, np.concatenate(counts, 1), given, np.full(lanes, 0.3 * tol)), lanes, _LEAST,
    )  # fmt: skip
    with np.errstate(all="ignore"):
        wanted = np.nan_to_num(4.0 ** np.ceil(np.log2(plan.points) / 2), nan=_LEAST, posinf=most)
    length = np.clip(wanted, _LEAST, most).astype(int)
    todo = np.arange(lanes)
    for _ in range(2):
        for n in np.unique(length[todo]):
            which = todo[length[todo] == n]
            part = jax.tree.map(lambda a, which=which: np.asarray(a)[which], (laws, counts, given, plan))
            found = _in_chunks(lambda p, n=n: _once(*p, unknown=unknown, n=int(n)), part, which.size, n)
            width = _width(found, unknown)
            _merge(answer, which, found, width <= tol, n)
            # at first order, which atoms between points are
            finer = 4.0 ** np.ceil(np.log2(np.clip(np.nan_to_num(width / tol, nan=1.0), 1.0, 256.0)) / 2)
            length[which] = np.minimum(n * np.maximum(finer, 4.0), most)
        todo = todo[~answer.converged[todo] & (length[todo] > answer.points[todo])]
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
        pieces.append(jax.tree.map(lambda a, kept=index: np.asarray(a)[: lanes - kept[0]], part))
    return jax.tree.map(lambda *a: np.concatenate(a), *pieces)
