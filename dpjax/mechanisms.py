"""The records that a user writes down: mechanisms, how they are sampled and how they are composed.

A record only says what happened. What it means for privacy is worked out elsewhere: ``pairs`` turns a mechanism and
an adjacency into a dominating pair, ``composition`` adds pairs up, ``accounting`` answers questions.

Contract: the meaning of a record never changes between versions; a new meaning gets a new name.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable
from typing import Any

import jax
import numpy as np
from jax.typing import ArrayLike

from dpjax import _validate
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


class Mechanism:
    """Base of all records. ``a + b`` composes, ``a * k`` composes k times, ``sum([...])`` works.

    Numeric fields are leaves of a pytree: they may be numbers, arrays (batch axes broadcast as in NumPy), traced or
    differentiated.
    """

    __array_ufunc__ = None  # np.array([1, 2]) * step is refused instead of becoming an object array

    def __add__(self, other: Any) -> Mechanism:
        return Composed((self, other)) if isinstance(other, Mechanism) else NotImplemented

    def __radd__(self, other: Any) -> Mechanism:
        return self if isinstance(other, int | float) and other == 0 else NotImplemented  # sum() starts from 0

    def __mul__(self, count: Any) -> Mechanism:
        if isinstance(count, Mechanism | str | bytes | bool) or isinstance(count, list | tuple | dict):
            return NotImplemented
        return SelfComposed(self, count)

    __rmul__ = __mul__

    def __repr__(self) -> str:
        fields = (_short(getattr(self, name)) for name in self.__dataclass_fields__)  # type: ignore[attr-defined]
        return f"{type(self).__name__}({', '.join(fields)})"


def _short(x: Any) -> str:
    if isinstance(x, np.ndarray) and x.size > 6:
        return f"array(shape={x.shape}, min={x.min():g}, max={x.max():g})"
    if isinstance(x, tuple) and len(x) > 4:
        return f"({x[0]!r}, ... {len(x)} in all)"
    return f"{x:g}" if isinstance(x, float) else repr(x)


def _set_number(obj: Any, name: str, low: float, high: float = np.inf) -> None:
    value = _validate.number(name, getattr(obj, name))
    _validate.in_range(name, value, low, high)
    object.__setattr__(obj, name, value)


def _require_mechanism(name: str, x: Any) -> None:
    if not isinstance(x, Mechanism):
        raise TypeError(f"{name} must be a dpjax mechanism; got {x!r}.")


@node
class Gaussian(Mechanism):
    """The Gaussian mechanism.

    Attributes:
      noise_multiplier: standard deviation of the noise on the sum, divided by the norm bound of one record; >= 0.
        0 means no noise (epsilon is infinite), infinity means no information.

    Example:
      >>> Gaussian(1.5)
      Gaussian(1.5)
    """

    noise_multiplier: ArrayLike

    def __post_init__(self):
        _set_number(self, "noise_multiplier", 0.0)

    def check(self) -> None:
        """Raises ValueError if a concrete field is out of range."""
        _validate.in_range("noise_multiplier", self.noise_multiplier, 0.0)


@node
class BoundedRange(Mechanism):
    """An exponential mechanism, or any other that is ``epsilon``-bounded-range (arXiv 1909.13830).

    Composed, it means the adaptive optimum's certified upper end: the worst pair of each run may depend on the outcomes
    of the runs before it. With ``t`` it means that one pair RR_{epsilon,t}, fixed beforehand.

    The parameter is a claim about the neighbours that ``adjacency`` names, in both directions.

    Attributes:
      epsilon: the range, >= 0.
      t: the largest loss, in [0, epsilon], or None for the worst.

    Example:
      >>> BoundedRange(0.1) * 100
      SelfComposed(BoundedRange(0.1, None), 100)
    """

    epsilon: ArrayLike
    t: ArrayLike | None = None

    def __post_init__(self):
        _set_number(self, "epsilon", 0.0)
        if self.t is not None:
            _set_number(self, "t", 0.0)
        self.check()

    def check(self) -> None:
        """Raises ValueError if a concrete field is out of range."""
        _validate.in_range("epsilon", self.epsilon, 0.0, math.inf, high_open=True)
        if self.t is None:
            return
        _validate.in_range("t", self.t, 0.0)
        traced = _validate.is_traced(self.t) or _validate.is_traced(self.epsilon)
        if not traced and np.any(np.asarray(self.t) > np.asarray(self.epsilon)):
            raise ValueError(f"t = {self.t!r}, but it must be a number in [0, epsilon], epsilon = {self.epsilon!r}.")


ExponentialMechanism = BoundedRange


@node
class PureDP(Mechanism):
    """Any ``epsilon``-DP mechanism, by its worst case: randomised response.

    The parameter is a claim about the neighbours that ``adjacency`` names, in both directions.

    Attributes:
      epsilon: >= 0.

    Example:
      >>> PureDP(0.5)
      PureDP(0.5)
    """

    epsilon: ArrayLike

    def __post_init__(self):
        _set_number(self, "epsilon", 0.0)
        self.check()

    def check(self) -> None:
        """Raises ValueError if a concrete field is out of range."""
        _validate.in_range("epsilon", self.epsilon, 0.0, math.inf, high_open=True)


@node
class ApproximateDP(Mechanism):
    """Any ``(epsilon, delta)``-DP mechanism, by its worst case: randomised response that fails with probability delta.

    The parameters are a claim about the neighbours that ``adjacency`` names, in both directions.

    Attributes:
      epsilon: >= 0.
      delta: in [0, 1].

    Example:
      >>> ApproximateDP(0.5, 1e-6)
      ApproximateDP(0.5, 1e-06)
    """

    epsilon: ArrayLike
    delta: ArrayLike

    def __post_init__(self):
        _set_number(self, "epsilon", 0.0)
        _set_number(self, "delta", 0.0, 1.0)
        self.check()

    def check(self) -> None:
        """Raises ValueError if a concrete field is out of range."""
        _validate.in_range("epsilon", self.epsilon, 0.0, math.inf, high_open=True)
        _validate.in_range("delta", self.delta, 0.0, 1.0)


@node
class PoissonSampled(Mechanism):
    """``mechanism`` run on a batch that contains each record independently with ``sampling_probability``.

    Attributes:
      sampling_probability: in [0, 1].
      mechanism: the mechanism that sees the batch.

    Example:
      >>> PoissonSampled(0.01, Gaussian(1.5))
      PoissonSampled(0.01, Gaussian(1.5))
    """

    sampling_probability: ArrayLike
    mechanism: Mechanism

    def __post_init__(self):
        _set_number(self, "sampling_probability", 0.0, 1.0)
        _require_mechanism("mechanism", self.mechanism)

    def check(self) -> None:
        """Raises ValueError if a concrete field is out of range."""
        _validate.in_range("sampling_probability", self.sampling_probability, 0.0, 1.0)


@node
class SelfComposed(Mechanism):
    """``mechanism`` run ``count`` times, adaptively.

    Attributes:
      mechanism: what is repeated.
      count: how often, >= 0; may be an array or traced. A value between integers interpolates: it is smooth in
        ``count`` and useful for gradients, but it is the privacy of no mechanism.

    Example:
      >>> Gaussian(1.5) * 10
      SelfComposed(Gaussian(1.5), 10)
    """

    mechanism: Mechanism
    count: ArrayLike

    def __post_init__(self):
        _require_mechanism("mechanism", self.mechanism)
        _set_number(self, "count", 0.0)
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
      >>> Composed([Gaussian(1.0), Gaussian(2.0)])
      Composed((Gaussian(1), Gaussian(2)))
    """

    mechanisms: tuple[Mechanism, ...]

    def __post_init__(self):
        if isinstance(self.mechanisms, Mechanism) or not isinstance(self.mechanisms, Iterable):
            raise TypeError(f"mechanisms must be a sequence of mechanisms; got {self.mechanisms!r}.")
        members = tuple(self.mechanisms)
        for i, member in enumerate(members):
            _require_mechanism(f"mechanisms[{i}]", member)
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
      >>> ComposedOver(PoissonSampled([0.01, 0.02], Gaussian([1.0, 1.5])))
      ComposedOver(PoissonSampled(array([0.01, 0.02]), Gaussian(array([1. , 1.5]))), -1)
    """

    mechanism: Mechanism
    axis: int = static(default=-1)

    def __post_init__(self):
        _require_mechanism("mechanism", self.mechanism)
        if isinstance(self.axis, bool) or not isinstance(self.axis, int):
            raise TypeError(f"axis must be an int; got {self.axis!r}.")

    def check(self) -> None:
        """Nothing of its own to check."""


PARAMETRIC = (BoundedRange, PureDP, ApproximateDP)  # known by their parameters alone


def known_by_parameters(record: Mechanism) -> bool:
    """Whether any member of ``record`` is known by its parameters alone."""
    members = jax.tree.leaves(record, is_leaf=lambda m: isinstance(m, PARAMETRIC))
    return any(isinstance(m, PARAMETRIC) for m in members)


def dpsgd(noise_multiplier: ArrayLike, sampling_probability: ArrayLike, steps: ArrayLike) -> SelfComposed:
    """DP-SGD: the Poisson-sampled Gaussian mechanism, composed ``steps`` times.

    Args:
      noise_multiplier: noise standard deviation over clipping norm; >= 0.
      sampling_probability: probability of each record to be in a batch; in [0, 1].
      steps: number of updates; >= 0.

    Returns:
      The record ``SelfComposed(PoissonSampled(sampling_probability, Gaussian(noise_multiplier)), steps)``.

    Raises:
      ValueError: a concrete argument is out of range.

    Example:
      >>> dpsgd(1.1, 0.01, 1000)
      SelfComposed(PoissonSampled(0.01, Gaussian(1.1)), 1000)
    """
    return SelfComposed(PoissonSampled(sampling_probability, Gaussian(noise_multiplier)), steps)
