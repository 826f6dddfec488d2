"""Mechanisms of which only a guarantee is known: each means the worst mechanism that has it."""

from __future__ import annotations

import math
import sys

import numpy as np
from jax.typing import ArrayLike

from dpjax import _validate
from dpjax._pytree import event, node
from dpjax.mechanisms._base import Composed, ComposedOver, Mechanism, SelfComposed, set_number


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
        _validate.at_most("t", self.t, "epsilon", self.epsilon)


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


def _set_events(obj: Mechanism, **ranges: tuple[float, float, bool]) -> None:
    """Sets fields along one event axis each, of the same length or 1; a range is (low, high, whether high is left out)."""
    lengths = {}
    for name, (low, high, high_open) in ranges.items():
        value = _validate.number(name, getattr(obj, name))
        value = value if np.ndim(value) else np.reshape(value, 1) if not _validate.is_traced(value) else value[None]
        lengths[name] = value.shape[-1]
        _validate.in_range(name, value, low, high, high_open=high_open)
        object.__setattr__(obj, name, value)
    if min(lengths.values()) == 0 or len(set(lengths.values()) - {1}) > 1:
        raise ValueError(f"{lengths} are the lengths of the last axes, but they must be the same, or 1, and not 0.")


@node
class PrivacyProfile(Mechanism):
    """Any mechanism whose privacy profile is at most ``deltas[i]`` at ``epsilons[i]``: that of the worst one.

    It is the mechanism of the largest profile that is possible: convex in e^epsilon, not above 1, flat beyond the largest
    epsilon, where delta is mass at infinity. The points are a claim about the neighbours that ``adjacency`` names, in both
    directions, so that delta(-epsilon) <= 1 - e^-epsilon + e^-epsilon delta(epsilon) comes with them. No profile is below
    1 - e^epsilon; a point that is counts as if it were there.

    Attributes:
      epsilons: real and finite, in any order; the last axis is that of the points.
      deltas: in [0, 1]; as many, or one for all.

    Example:
      >>> import dpjax
      >>> dpjax.PrivacyProfile([0.5, 1.0], [1e-3, 1e-6])
      PrivacyProfile(array([0.5, 1. ]), array([1.e-03, 1.e-06]))
    """

    epsilons: ArrayLike = event()
    deltas: ArrayLike = event()

    def __post_init__(self):
        _set_events(self, epsilons=(-sys.float_info.max, sys.float_info.max, False), deltas=(0.0, 1.0, False))

    def check(self) -> None:
        """Raises ValueError if a concrete field is out of range."""
        _validate.in_range("epsilons", self.epsilons, -sys.float_info.max, sys.float_info.max)
        _validate.in_range("deltas", self.deltas, 0.0, 1.0)


@node
class RenyiDP(Mechanism):
    """Any mechanism whose Renyi divergence of order ``orders[i]`` is at most ``epsilons[i]``: the worst one.

    Known only through these orders: nothing is assumed between them. The divergences are a claim about the neighbours that
    ``adjacency`` names, in both directions. Orders below 1 matter, too: for the Gaussian's curve alpha / 2 they make the
    answer smaller. Those below 1/2 do not: D_(1-alpha)(Q || P) = (1 - alpha) / alpha D_alpha(P || Q).

    Attributes:
      orders: in [1/2, inf), 1 being the Kullback-Leibler divergence; the last axis is that of the orders.
      epsilons: the divergences, >= 0; infinite where nothing is known. As many, or one for all.

    Example:
      >>> import dpjax
      >>> dpjax.RenyiDP([0.5, 2.0, 8.0], [0.01, 0.04, 0.16])
      RenyiDP(array([0.5, 2. , 8. ]), array([0.01, 0.04, 0.16]))
    """

    ATTAINED = "single"  # one threshold at a time: no mechanism has the whole profile

    orders: ArrayLike = event()
    epsilons: ArrayLike = event()

    def __post_init__(self):
        _set_events(self, orders=(0.5, math.inf, True), epsilons=(0.0, math.inf, False))

    def check(self) -> None:
        """Raises ValueError if a concrete field is out of range."""
        _validate.in_range("orders", self.orders, 0.5, math.inf, high_open=True)
        _validate.in_range("epsilons", self.epsilons, 0.0)


@node
class ZCDP(Mechanism):
    """Any ``delta``-approximate ``rho``-zCDP mechanism: the worst one.

    Outside of an event of probability delta on either side, D_alpha <= alpha rho for every order alpha > 1, in both
    directions, for the neighbours that ``adjacency`` names. At alpha = 1 that follows; below it does not, and is not
    assumed, so that a Gaussian known as ``ZCDP`` costs a little more than its ``RenyiDP`` with orders below 1.

    Attributes:
      rho: >= 0.
      delta: in [0, 1].

    Example:
      >>> import dpjax
      >>> dpjax.ZCDP(0.1)
      ZCDP(0.1, 0)
    """

    ATTAINED = "single"  # as RenyiDP

    rho: ArrayLike
    delta: ArrayLike = 0.0

    def __post_init__(self):
        set_number(self, "rho", 0.0)
        set_number(self, "delta", 0.0, 1.0)
        self.check()

    def check(self) -> None:
        """Raises ValueError if a concrete field is out of range."""
        _validate.in_range("rho", self.rho, 0.0, math.inf, high_open=True)
        _validate.in_range("delta", self.delta, 0.0, 1.0)


PARAMETRIC = (BoundedRange, PureDP, ApproximateDP)  # known by their parameters alone


def known_by_parameters(record: Mechanism) -> bool:
    """Whether ``record`` composes mechanisms that are known by their parameters alone, and nothing else."""
    if isinstance(record, Composed):
        return bool(record.mechanisms) and all(map(known_by_parameters, record.mechanisms))
    if isinstance(record, ComposedOver):
        return isinstance(record.mechanism, PARAMETRIC)
    return known_by_parameters(record.mechanism) if isinstance(record, SelfComposed) else isinstance(record, PARAMETRIC)
