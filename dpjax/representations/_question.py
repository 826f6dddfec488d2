"""What the queries of this package share: their arguments."""

from __future__ import annotations

from typing import Any

import jax

from dpjax import _validate, composition
from dpjax.mechanisms import Composed, ComposedOver, Mechanism, SelfComposed, require_adjacency


def is_traced(mechanism: Mechanism, *numbers: Any) -> bool:
    """Whether any number in the question has no concrete value."""
    return any(_validate.is_traced(x) for x in (*jax.tree.leaves(mechanism), *numbers))


def required(mechanism: Any, adjacency: Any) -> Mechanism:
    """The mechanism to ask about; raises TypeError or ValueError unless these are a mechanism and an adjacency."""
    if not isinstance(mechanism, Mechanism):
        raise TypeError(f"mechanism must be a dpjax mechanism; got {mechanism!r}.")
    require_adjacency(adjacency)
    composition.check(mechanism)
    return composition.reduced(mechanism, adjacency)


def members(record: Mechanism) -> list[Mechanism]:
    """The mechanisms that ``record`` composes."""
    if isinstance(record, Composed):
        return [m for member in record.mechanisms for m in members(member)]
    if isinstance(record, SelfComposed | ComposedOver):
        return members(record.mechanism)
    return [record]
