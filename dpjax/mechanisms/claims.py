"""Mechanisms of which only a guarantee is known: each means the worst mechanism that has it."""

from __future__ import annotations

import math

import jax
import numpy as np
from jax.typing import ArrayLike

from dpjax import _validate
from dpjax._pytree import node
from dpjax.mechanisms._base import Mechanism, set_number


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
      >>> import dpjax
      >>> dpjax.BoundedRange(0.1) * 100
      SelfComposed(BoundedRange(0.1, None), 100)
    """

    epsilon: ArrayLike
    t: ArrayLike | None = None

    def __post_init__(self):
        set_number(self, "epsilon", 0.0)
        if self.t is not None:
            set_number(self, "t", 0.0)
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
      >>> import dpjax
      >>> dpjax.PureDP(0.5)
      PureDP(0.5)
    """

    epsilon: ArrayLike

    def __post_init__(self):
        set_number(self, "epsilon", 0.0)
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
      >>> import dpjax
      >>> dpjax.ApproximateDP(0.5, 1e-6)
      ApproximateDP(0.5, 1e-06)
    """

    epsilon: ArrayLike
    delta: ArrayLike

    def __post_init__(self):
        set_number(self, "epsilon", 0.0)
        set_number(self, "delta", 0.0, 1.0)
        self.check()

    def check(self) -> None:
        """Raises ValueError if a concrete field is out of range."""
        _validate.in_range("epsilon", self.epsilon, 0.0, math.inf, high_open=True)
        _validate.in_range("delta", self.delta, 0.0, 1.0)


PARAMETRIC = (BoundedRange, PureDP, ApproximateDP)  # known by their parameters alone


def known_by_parameters(record: Mechanism) -> bool:
    """Whether any member of ``record`` is known by its parameters alone."""
    members = jax.tree.leaves(record, is_leaf=lambda m: isinstance(m, PARAMETRIC))
    return any(isinstance(m, PARAMETRIC) for m in members)
