"""A record inside an optimizer's state: its numbers keep their float64 values through jit, and a checkpoint knows them."""

from __future__ import annotations

import dataclasses
import enum
import zlib
from typing import Any

import jax
import numpy as np

from dpjax._validate import is_traced


class _Fixed:
    """Concrete leaves as part of a tree's structure: compared by value; None where a leaf moves."""

    def __init__(self, structure: Any, leaves: tuple):
        self.structure, self.leaves = structure, leaves
        self._key = (structure, tuple(None if x is None else (x.dtype.str, x.shape, x.tobytes()) for x in leaves))
        self._hash = hash(self._key)

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, _Fixed) and self._key == other._key

    def __hash__(self) -> int:
        return self._hash


@jax.tree_util.register_pytree_node_class
class Frozen:
    """A pytree whose concrete leaves are structure, and whose traced leaves are leaves.

    A number that passed through jit as a leaf would come back in float32; as structure it stays what the user wrote. A
    traced number (a sweep by ``vmap`` over noise multipliers) stays a leaf and is batched as any other.
    """

    def __init__(self, record: Any, moves: tuple[bool, ...] | None = None):
        leaves, structure = jax.tree.flatten(record)
        moves = tuple(is_traced(x) for x in leaves) if moves is None else moves
        self._fixed = _Fixed(structure, tuple(None if m else np.array(x) for x, m in zip(leaves, moves, strict=True)))
        self._moving = tuple(x for x, m in zip(leaves, moves, strict=True) if m)

    @property
    def record(self) -> Any:
        """The record, with NumPy arrays for its concrete numbers."""
        moving = iter(self._moving)
        leaves = [next(moving) if x is None else x[()] for x in self._fixed.leaves]
        return jax.tree.unflatten(self._fixed.structure, leaves)

    def __repr__(self) -> str:
        return repr(self.record)

    def same_structure(self, other: Frozen) -> bool:
        """Whether the two are one record as far as their concrete numbers go."""
        return self._fixed == other._fixed

    def __reduce__(self):  # structures cannot be pickled, records can
        return Frozen, (self.record, tuple(x is None for x in self._fixed.leaves))

    def tree_flatten(self):
        return self._moving, self._fixed

    @classmethod
    def tree_unflatten(cls, fixed, moving):
        out = object.__new__(cls)
        out._fixed, out._moving = fixed, tuple(moving)
        return out


def fingerprint(record: Any) -> np.uint32:
    """A number that tells one record from another, for checkpoints that hold leaves without their structure."""
    return np.uint32(zlib.crc32(repr(_description(record)).encode()))


def _description(x: Any) -> Any:
    if is_traced(x):
        return "traced", x.shape
    if dataclasses.is_dataclass(x):
        return type(x).__name__, [(f.name, _description(getattr(x, f.name))) for f in dataclasses.fields(x)]
    if isinstance(x, enum.Enum):
        return x.name
    if isinstance(x, tuple | list):
        return [_description(item) for item in x]
    if isinstance(x, str | bool | type(None)):
        return x
    array = np.asarray(x, np.float64)
    return array.shape, array.tobytes().hex()
