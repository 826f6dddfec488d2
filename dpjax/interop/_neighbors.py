"""dp_accounting's neighbouring relations and dpjax's adjacencies, which have the same names."""

from __future__ import annotations

from typing import Any

from dpjax.mechanisms import Adjacency, require_adjacency

_NAMES = ("ADD_OR_REMOVE_ONE", "REPLACE_ONE", "REPLACE_SPECIAL")


def from_neighboring_relation(relation: Any) -> Adjacency:
    """The adjacency that dp_accounting calls ``relation``.

    Args:
      relation: a ``dp_accounting.NeighboringRelation``.

    Returns:
      The ``dpjax.Adjacency`` of the same name.

    Raises:
      ValueError: there is none.

    Example:
      >>> import dp_accounting
      >>> from_neighboring_relation(dp_accounting.NeighboringRelation.REPLACE_ONE)
      <Adjacency.REPLACE_ONE: 'replace_one'>
    """
    name = getattr(relation, "name", None)
    if name not in _NAMES or isinstance(relation, Adjacency):
        raise ValueError(
            f"neighboring_relation = {relation!r}, but it must be dp_accounting's NeighboringRelation, one of "
            f"{', '.join(_NAMES)}."
        )
    return Adjacency[name]


def to_neighboring_relation(adjacency: Adjacency) -> Any:
    """The inverse of ``from_neighboring_relation``.

    Args:
      adjacency: one of those that dp_accounting has, too.

    Returns:
      The ``dp_accounting.NeighboringRelation`` of the same name.

    Raises:
      ValueError: a single direction, which dp_accounting has no name for.

    Example:
      >>> import dpjax
      >>> to_neighboring_relation(dpjax.Adjacency.REPLACE_ONE).name
      'REPLACE_ONE'
    """
    require_adjacency(adjacency)
    if adjacency.name not in _NAMES:
        raise ValueError(
            f"adjacency = {adjacency!r}, but it must be one of {', '.join(f'Adjacency.{n}' for n in _NAMES)}: "
            "dp_accounting has no single directions."
        )
    from dp_accounting import NeighboringRelation

    return NeighboringRelation[adjacency.name]
