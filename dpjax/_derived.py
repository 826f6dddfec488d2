"""Laws that come from an answer about another composition, for concrete numbers: they are worked out before an engine runs.

- Bounded range, unsampled: all such runs of a composition together, from their adaptive optimum (``laws.claims``).
- Random allocation: one epoch, from the certified profile of its Poisson-sampled steps (``laws.allocation``).
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np

from dpjax._precision import concrete, namespace
from dpjax.lattice.lanes import Terms
from dpjax.laws import Law
from dpjax.laws.allocation import poisson_steps, random_allocation_profile
from dpjax.laws.claims import bounded_range_law
from dpjax.laws.from_profile import connect_the_dots
from dpjax.mechanisms import Adjacency, BoundedRange, RandomAllocation
from dpjax.pairs import REVERSE

_POINTS = 256  # thresholds on either side of 0; chords between them cost about 0.5% of delta
_DEEPEST = -40.0  # log of the delta up to which a profile is followed


FRACTIONS = (0.5, 0.6, 0.75, 0.9)  # of the range: the largest loss that an adversary decides on beforehand


def _is_range(record: Any) -> bool:
    return isinstance(record, BoundedRange) and record.t is None


def is_adaptive(record: Any) -> bool:
    """Whether a run of ``record`` means the worst of several pairs, chosen from what was seen before."""
    ranges = jax.tree.leaves(record, is_leaf=_is_range)
    return any(map(_is_range, ranges))


def resolved(terms: Terms, direction: Adjacency) -> Terms:
    """``terms`` with laws for all records that have none of their own; NumPy in, NumPy out."""
    records, counts = [], []
    ranges = [pair for pair in zip(terms.records, terms.counts, strict=True) if _is_range(pair[0])]
    for record, count in zip(terms.records, terms.counts, strict=True):
        if isinstance(record, RandomAllocation):
            records.append(_each(record, lambda one: _epoch(one, direction)))
            counts.append(count * record.participations)
        elif not _is_range(record):
            records.append(record)
            counts.append(count)
    if ranges:
        each: Any = [np.broadcast_to(record.epsilon, count.shape) for record, count in ranges]  # type: ignore[attr-defined]
        epsilons = np.concatenate(each, 1)
        times = np.concatenate([count for _, count in ranges], 1)
        records.append(_stack([_stack([_ranges(e, k)]) for e, k in zip(epsilons, times, strict=True)]))
        counts.append(np.ones((len(epsilons), 1)))
    return Terms(tuple(records), tuple(counts))


def fixed(terms: Terms) -> Terms:
    """``terms``, in as many more lanes as there are ``FRACTIONS``, with adversaries who play one t of every range.

    What any of them loses, an adaptive one loses, too.
    """
    lanes = terms.counts[0].shape[0]
    xp = namespace(*jax.tree.leaves(terms))
    share = xp.repeat(xp.asarray(FRACTIONS), lanes)[:, None]
    wide = jax.tree.map(lambda a: xp.tile(a, (len(FRACTIONS),) + (1,) * (a.ndim - 1)), terms)

    def play(record: Any) -> Any:
        if not _is_range(record):
            return record
        return BoundedRange(record.epsilon, share.reshape((-1,) + (1,) * (record.epsilon.ndim - 1)) * record.epsilon)

    return jax.tree.map(play, wide, is_leaf=_is_range)


def _ranges(epsilons: np.ndarray, counts: np.ndarray) -> Law:
    valid = np.all((epsilons >= 0) & np.isfinite(epsilons) & (counts >= 0) & np.isfinite(counts))
    if not valid:
        return jax.tree.map(lambda a: np.full_like(a, np.nan), _ranges(np.zeros(1), np.zeros(1)))
    return jax.tree.map(np.asarray, bounded_range_law(epsilons, np.ceil(counts)))


def _stack(laws: list) -> Any:
    return jax.tree.map(lambda *a: np.stack(a), *laws)


def _each(record: Any, function: Any) -> Any:
    """``function`` of every record in a (lanes, terms) one, stacked."""
    lanes, terms = np.shape(jax.tree.leaves(record)[0])[:2]
    one = lambda i, j: function(jax.tree.map(lambda a: a[i, j], record))
    return _stack([_stack([one(i, j) for j in range(terms)]) for i in range(lanes)])


def _epoch(record: RandomAllocation, direction: Adjacency) -> Law:
    leaves, structure = jax.tree.flatten(record)
    return _kept_epoch(structure, tuple(float(x) if np.ndim(x) == 0 else tuple(x) for x in leaves), direction)


@functools.lru_cache(maxsize=64)
def _kept_epoch(structure: Any, leaves: tuple, direction: Adjacency) -> Law:
    """One participation in an epoch, as a law: its profile at some thresholds, chords between them."""
    from dpjax import accounting  # a question about the steps, which are another composition

    record = jax.tree.unflatten(structure, [np.asarray(x) for x in leaves])
    steps: Any = jax.tree.map(np.asarray, poisson_steps(record))
    end = float(accounting.epsilon(steps, log_delta=_DEEPEST, adjacency=direction, rtol=0.1))
    end = 600.0 if not np.isfinite(end) else max(end, 1e-6) + 1.0
    near = np.linspace(0.0, min(end, 4.0), _POINTS // 2, endpoint=False)
    x = (
        np.concatenate([near, np.linspace(min(end, 4.0), end, _POINTS // 2)])
        if end > 4
        else np.linspace(0, end, _POINTS)
    )
    x = np.concatenate([-x[:0:-1], x])
    other = REVERSE[direction]

    def bound(x, way):
        steps_profile = lambda y: accounting.delta(steps, np.asarray(y), adjacency=way, rtol=1e-4)
        return np.asarray(random_allocation_profile(steps_profile, x, float(steps.count), way), np.float64)

    delta, reverse = bound(x, direction), bound(-x, other)
    return jax.tree.map(np.asarray, concrete(_dots, None, x, delta, reverse))


def _dots(_: None, x: Any, above: Any, below: Any) -> Any:
    return connect_the_dots(x, above, below)
