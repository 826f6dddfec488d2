"""From a function of one configuration to records with one batch axis, for a part of a sweep's rows.

``make`` is meant for scalars, and is called with them: once, under ``jax.vmap``, where its records are of one kind and have no
axes of their own; otherwise once for each row, and rows of the same kind are stacked. So arrays inside ``make``, a
schedule say, never meet the sweep's axis.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from dpjax import composition
from dpjax._pytree import event_axes
from dpjax.mechanisms import ComposedOver, Mechanism

# What may be wrong with one row, and is no reason to give up the others.
ROW_ERRORS = (ValueError, ArithmeticError, NotImplementedError)


class Group(NamedTuple):
    """Rows that are answered together.

    Attributes:
      rows: their numbers, (n,).
      record: with batch shape (n,), or, if ``single``, without a batch axis.
      single: whether it is one row, answered by itself.
    """

    rows: np.ndarray
    record: Mechanism
    single: bool


def _host() -> Any:
    """A device that has float64 for what ``make`` computes."""
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:  # JAX was told not to have one
        return jax.local_devices()[0]


def _checked(record: Any) -> Mechanism:
    if not isinstance(record, Mechanism):
        raise TypeError(f"make must return a dpjax mechanism; it returned {record!r}.")
    return record


def stackable(record: Mechanism, axes: int = 0) -> bool:
    """Whether all numbers of ``record`` have ``axes`` axes beside those of events, so that one more is a batch axis."""
    schedules = jax.tree.leaves(record, is_leaf=lambda m: isinstance(m, ComposedOver))
    if any(isinstance(m, ComposedOver) for m in schedules):
        return False
    own = jax.tree.map(lambda x, events: np.ndim(x) - events == axes, record, event_axes(record))
    return all(jax.tree.leaves(own))


def vectorised(make: Callable, columns: Mapping[str, np.ndarray]) -> Mechanism:
    """The records of all rows as one, by ``jax.vmap``; leaves are arrays of JAX."""
    return _checked(jax.vmap(lambda row: make(**row))(dict(columns)))


def groups(make: Callable, columns: Mapping[str, np.ndarray], rows: np.ndarray) -> tuple[list[Group], dict[int, str]]:
    """The records of ``rows``, grouped, and what was wrong with those that have none.

    Raises:
      TypeError: ``make`` does not return a mechanism, or one that is itself a batch.
    """
    part = {name: column[rows] for name, column in columns.items()}
    if rows.size > 1:
        try:
            with jax.enable_x64(True), jax.default_device(_host()):
                record = jax.tree.map(np.asarray, vectorised(make, part))
            if stackable(record, 1):
                return [Group(rows, record, False)], {}
        except Exception:  # make looks at its numbers, or some are bad: it is asked row by row, and its errors are kept
            pass
    return _one_by_one(make, part, rows)


def _one_by_one(make: Callable, part: dict[str, np.ndarray], rows: np.ndarray) -> tuple[list[Group], dict[int, str]]:
    alike: dict[Any, list] = {}
    single, errors = [], {}
    for i, row in enumerate(rows):
        try:
            record = _checked(make(**{name: column[i].item() for name, column in part.items()}))
            shape = composition.batch_shape(record)
        except ROW_ERRORS as error:
            errors[int(row)] = str(error)
            continue
        if shape:
            raise TypeError(f"make must return one mechanism for one configuration; it returned a batch of {shape}.")
        if stackable(record):
            leaves, structure = jax.tree.flatten(record)
            alike.setdefault((structure, tuple(map(np.shape, leaves))), []).append((row, leaves))
        else:
            single.append(Group(np.array([row]), record, True))
    stacked = []
    for (structure, _), members in alike.items():
        numbers = [np.stack(leaf) for leaf in zip(*(leaves for _, leaves in members), strict=True)]
        stacked.append(Group(np.array([row for row, _ in members]), jax.tree.unflatten(structure, numbers), False))
    return stacked + single, errors
