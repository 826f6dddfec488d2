"""What a record is, and compositions of records, which the operators of every record make."""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable
from typing import Any

import jax
import numpy as np
from jax.typing import ArrayLike

from dpjax import _validate, suspicion
from dpjax._pytree import node, static


class Adjacency(enum.Enum):
    """Which datasets count as neighbours; names as in dp_accounting's ``NeighboringRelation``.

    ``ADD_OR_REMOVE_ONE`` answers with the larger of the directions ``ADD`` and ``REMOVE``, each composed separately.
    ``REPLACE_ONE``: one record of norm at most 1 becomes another (sensitivity 2). ``REPLACE_SPECIAL``: one record
    becomes a zero record (sensitivity 1), known as zero-out.
    """

    ADD_OR_REMOVE_ONE = "add_or_remove_one"
    REPLACE_ONE = "replace_one"
    REPLACE_SPECIAL = "replace_special"
    ADD = "add"
    REMOVE = "remove"


def require_adjacency(x: Any) -> None:
    """Raises ValueError unless ``x`` is an ``Adjacency``; words of it are told which member they mean."""
    if isinstance(x, Adjacency):
        return
    word = str(getattr(x, "name", x)).lower()  # also dp_accounting's NeighboringRelation
    meant = [a for a in Adjacency if a.value == word.replace("-", "_")]
    allowed = f"one of {', '.join(f'Adjacency.{a.name}' for a in Adjacency)}"
    raise ValueError(f"adjacency = {x!r}, but it must be {f'dpjax.Adjacency.{meant[0].name}' if meant else allowed}.")


class Mechanism:
    """Base of all records. ``a + b`` composes, ``a * k`` composes k times, ``sum([...])`` works.

    Numeric fields are leaves of a pytree: they may be numbers, arrays (batch axes broadcast as in NumPy), traced or
    differentiated.
    """

    # Whether some mechanism and neighbours have the dominating pair that is used: "composed" too, as runs of "single" ones
    # only, or "never", the pair being a bound. Otherwise nothing is known from below.
    ATTAINED = "composed"
    ATTAINED_REPLACED = ""  # the same under REPLACE_ONE, where it differs
    SHOWN_AS = ""  # the name in ``repr``, where it is another than the class's

    __array_ufunc__ = None  # np.array([1, 2]) * step is refused instead of becoming an object array

    def __add__(self, other: Any) -> Mechanism:
        return Composed((self, other)) if isinstance(other, Mechanism) else NotImplemented

    def __radd__(self, other: Any) -> Mechanism:
        return self if isinstance(other, int | float) and other == 0 else NotImplemented  # sum() starts from 0

    def __mul__(self, count: Any) -> Mechanism:
        if isinstance(count, list | tuple):
            raise TypeError(f"{count!r} as a count: write np.array({count!r}) for a batch, one entry for each count.")
        if isinstance(count, Mechanism | str | bytes | bool | dict):
            return NotImplemented
        if not any(map(_validate.is_traced, jax.tree.leaves(self))):  # part of a traced computation is no input
            suspicion.question_steps(count)
        return SelfComposed(self, count)

    __rmul__ = __mul__

    def __repr__(self) -> str:
        fields = (_short(getattr(self, name)) for name in self.__dataclass_fields__)  # type: ignore[attr-defined]
        return f"{self.SHOWN_AS or type(self).__name__}({', '.join(fields)})"


def _short(x: Any) -> str:
    if isinstance(x, np.ndarray) and x.size > 6:
        return f"array(shape={x.shape}, min={x.min():g}, max={x.max():g})"
    if isinstance(x, Mechanism):
        return Mechanism.__repr__(x)  # in one line, also what has a longer form by itself
    if isinstance(x, tuple) and len(x) > 4:
        return f"({_short(x[0])}, ... {len(x)} in all)"
    if isinstance(x, tuple):
        return f"({', '.join(map(_short, x))}{',' * (len(x) == 1)})"
    return f"{x:g}" if isinstance(x, float) else repr(x)


def set_number(obj: Any, name: str, low: float, high: float = np.inf) -> None:
    value = _validate.number(name, getattr(obj, name))
    _validate.in_range(name, value, low, high)
    object.__setattr__(obj, name, value)


def require_mechanism(name: str, x: Any) -> None:
    if not isinstance(x, Mechanism):
        raise TypeError(f"{name} must be a dpjax mechanism; got {x!r}.")


@node
class SelfComposed(Mechanism):
    """``mechanism`` run ``count`` times, adaptively.

    Attributes:
      mechanism: what is repeated.
      count: how often, >= 0; may be an array or traced. A value between integers interpolates: it is smooth in
        ``count`` and useful for gradients, but it is the privacy of no mechanism.

    Example:
      >>> import dpjax
      >>> dpjax.Gaussian(1.5) * 10
      SelfComposed(Gaussian(1.5), 10)
    """

    mechanism: Mechanism
    count: ArrayLike

    def __post_init__(self):
        require_mechanism("mechanism", self.mechanism)
        set_number(self, "count", 0.0)
        self.check()

    def check(self) -> None:
        """Raises ValueError if a concrete field is out of range."""
        _validate.in_range("count", self.count, 0.0, math.inf, high_open=True)


@node
class Composed(Mechanism):
    """Different mechanisms, one after the other, adaptively.

    Attributes:
      mechanisms: a sequence of mechanisms; their batch axes broadcast against each other.

    Example:
      >>> import dpjax
      >>> dpjax.Composed([dpjax.Gaussian(1.0), dpjax.Gaussian(2.0)])
      Composed((Gaussian(1), Gaussian(2)))
    """

    mechanisms: tuple[Mechanism, ...]

    def __post_init__(self):
        if isinstance(self.mechanisms, Mechanism) or not isinstance(self.mechanisms, Iterable):
            raise TypeError(f"mechanisms must be a sequence of mechanisms; got {self.mechanisms!r}.")
        members = tuple(self.mechanisms)
        for i, member in enumerate(members):
            require_mechanism(f"mechanisms[{i}]", member)
        object.__setattr__(self, "mechanisms", members)

    def check(self) -> None:
        """Nothing of its own to check."""


@node
class ComposedOver(Mechanism):
    """A schedule: composes along one batch axis of ``mechanism``'s leaves.

    A scalar leaf is shared by all steps; any other leaf must have the schedule's length, or 1, on that axis. A step
    whose count is 0 is padding.

    Attributes:
      mechanism: a mechanism with array fields.
      axis: the batch axis that is composed over and disappears.

    Example:
      >>> import dpjax
      >>> dpjax.ComposedOver(dpjax.PoissonSampled([0.01, 0.02], dpjax.Gaussian([1.0, 1.5])))
      ComposedOver(PoissonSampled(array([0.01, 0.02]), Gaussian(array([1. , 1.5]))), -1)
    """

    mechanism: Mechanism
    axis: int = static(default=-1)

    def __post_init__(self):
        require_mechanism("mechanism", self.mechanism)
        if isinstance(self.axis, bool) or not isinstance(self.axis, int):
            raise TypeError(f"axis must be an int; got {self.axis!r}.")

    def check(self) -> None:
        """Nothing of its own to check."""


COMPOSITIONS = (SelfComposed, Composed, ComposedOver)


def attained(record: Mechanism, adjacency: Adjacency) -> bool:
    """Whether an answer about the dominating pairs of ``record`` is one about a mechanism that it describes."""

    def how(m: Mechanism) -> str:
        return (adjacency is Adjacency.REPLACE_ONE and m.ATTAINED_REPLACED) or m.ATTAINED

    is_claim = lambda m: isinstance(m, Mechanism) and how(m) != "composed"
    claims = [m for m in jax.tree.leaves(record, is_leaf=is_claim) if is_claim(m)]
    return not claims or (claims[0] is record and how(record) == "single")
