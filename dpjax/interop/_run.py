"""A run that grows step by step, as one mechanism whose shape seldom changes: compiled programs are kept for it."""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np

from dpjax import _derived, composition
from dpjax.interop._events import NOTHING, flat
from dpjax.laws import check_adjacency, loss_law
from dpjax.mechanisms import (
    PARAMETRIC,
    Adjacency,
    Composed,
    ComposedOver,
    MassAtInfinity,
    Mechanism,
    RandomAllocation,
    SelfComposed,
)
from dpjax.pairs import directions


class Run:
    """Concrete unbatched records and how often each was run.

    Equal ones are counted together, and those of one structure are laid into one schedule, padded to a power of two.
    Bounded-range mechanisms keep their order, on which their composition depends.
    """

    def __init__(self):
        self._counts: dict[Any, tuple[Mechanism, float]] = {}
        self._ordered: list[tuple[Mechanism, float]] = []

    def add(self, mechanism: Mechanism, count: float) -> None:
        """Appends ``count`` runs of ``mechanism``."""
        if _derived.is_adaptive(mechanism):
            if self._ordered and _key(self._ordered[-1][0]) == _key(mechanism):
                count += self._ordered.pop()[1]
            self._ordered.append((mechanism, count))
            return
        for record, times in flat(mechanism):
            key = _key(record)
            _, before = self._counts.get(key, (record, 0.0))
            self._counts[key] = (record, before + count * times)

    def records(self) -> list[Mechanism]:
        """What was run, without repetition."""
        return [record for record, _ in (*self._counts.values(), *self._ordered)]

    def is_private(self) -> bool:
        """Whether no record gives everything away."""
        return not any(isinstance(m, MassAtInfinity) and m.delta == 1 and n > 0 for m, n in self._counts.values())

    def is_empty(self) -> bool:
        """Whether nothing was run."""
        return not (self._counts or self._ordered)

    def mechanism(self) -> Mechanism:
        """The whole run."""
        groups: dict[Any, list[tuple[Mechanism, float]]] = {}
        for key, pair in self._counts.items():
            alone = isinstance(pair[0], PARAMETRIC)  # their own composition takes no schedules of counts
            groups.setdefault((key[:2], key if alone else None), []).append(pair)
        parts = [_schedule(pairs) for pairs in groups.values()]
        parts += [SelfComposed(record, count) for record, count in self._ordered]
        return parts[0] if len(parts) == 1 else Composed(tuple(parts)) if parts else NOTHING


def _key(mechanism: Mechanism) -> tuple:
    leaves, structure = jax.tree.flatten(mechanism)
    arrays = [np.asarray(x, np.float64) for x in leaves]
    return structure, tuple(x.shape for x in arrays), tuple(x.tobytes() for x in arrays)


def _schedule(pairs: list[tuple[Mechanism, float]]) -> Mechanism:
    if len(pairs) == 1:
        return SelfComposed(*pairs[0])
    padding = [(pairs[-1][0], 0.0)] * ((1 << (len(pairs) - 1).bit_length()) - len(pairs))
    records, counts = zip(*pairs, *padding, strict=True)
    stacked = jax.tree.map(lambda *x: np.stack([np.asarray(a, np.float64) for a in x]), *records)
    return ComposedOver(SelfComposed(stacked, np.array(counts)), axis=0)


# --------------------------------------------------------------------------------------------------------------------


def require_analysis(record: Mechanism, adjacency: Adjacency) -> None:
    """Raises NotImplementedError if a part of ``record`` has no analysis under ``adjacency``; computes nothing."""
    check_adjacency(record, adjacency)
    for part, _ in flat(composition.reduced(record, adjacency)):
        base = part.mechanism if isinstance(part, RandomAllocation) else part
        leaves, structure = jax.tree.flatten(base)
        for direction in directions(adjacency):
            _require_law(structure, tuple(np.shape(x) for x in leaves), direction)


@functools.lru_cache(maxsize=4096)
def _require_law(structure: Any, shapes: tuple, direction: Adjacency) -> None:
    with jax.enable_x64(True):
        placed = [jax.ShapeDtypeStruct(shape, np.float64) for shape in shapes]
        jax.eval_shape(lambda leaves: loss_law(jax.tree.unflatten(structure, leaves), direction), placed)
