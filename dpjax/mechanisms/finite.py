"""Mechanisms whose privacy loss takes finitely many values."""

from __future__ import annotations

import math
from typing import Any

from jax.typing import ArrayLike

from dpjax import _validate
from dpjax._pytree import event, node, static
from dpjax.mechanisms._base import Mechanism, set_number


@node
class RandomizedResponse(Mechanism):
    """k-ary randomised response: the true bucket with probability e^epsilon / (e^epsilon + k - 1), else any other one.

    The pair is that of two people in different buckets, P their answers, and it stands for every adjacency. Who answers
    is public, so replace-one is the natural one. Add, remove and zero-out hold as well, if whoever is absent is
    answered for from a bucket that does not depend on the data, or from a random one: the answer is then a mixture of
    answers from buckets, and the hockey-stick divergence is convex.

    Attributes:
      epsilon: log of the largest ratio of two probabilities; >= 0.
      num_buckets: the number k of answers; an int >= 2, not a leaf.

    Example:
      >>> import dpjax
      >>> dpjax.RandomizedResponse(1.0, num_buckets=4)
      RandomizedResponse(1, 4)
    """

    epsilon: ArrayLike
    num_buckets: int = static(default=2)

    def __post_init__(self):
        set_number(self, "epsilon", 0.0)
        _validate.whole("num_buckets", self.num_buckets, 2)
        self.check()

    def check(self) -> None:
        """Raises ValueError if a concrete field is out of range."""
        _validate.in_range("epsilon", self.epsilon, 0.0, math.inf, high_open=True)


@node
class MassAtInfinity(Mechanism):
    """Catastrophic failure with probability ``delta``, perfect privacy otherwise; in every adjacency and direction.

    Attributes:
      delta: in [0, 1].

    Example:
      >>> import dpjax
      >>> dpjax.Gaussian(1.0) + dpjax.MassAtInfinity(1e-9)
      Composed((Gaussian(1), MassAtInfinity(1e-09)))
    """

    delta: ArrayLike

    def __post_init__(self):
        set_number(self, "delta", 0.0, 1.0)

    def check(self) -> None:
        """Raises ValueError if a concrete field is out of range."""
        _validate.in_range("delta", self.delta, 0.0, 1.0)


@node
class DiscreteLoss(Mechanism):
    """Any finite pair of distributions (P, Q) that dominates a mechanism.

    Which pair is claimed depends on the adjacency. ``REMOVE``: (P, Q), the dataset with the record first. ``ADD``:
    (Q, P). ``ADD_OR_REMOVE_ONE`` and ``REPLACE_SPECIAL`` take the larger answer of both. ``REPLACE_ONE`` is refused:
    its neighbours can be exchanged from run to run, so it needs one pair that dominates both orders, which is in
    general neither (P, Q) nor (Q, P).

    Outcomes with equal ratios may be listed separately. An outcome of mass 0 in both is padding.

    Attributes:
      p: probabilities of the outcomes under P; shape (..., outcomes), the axes before are batch axes. Where ``q`` is 0
        they are an infinite loss. Concrete values must be >= 0 and sum to one within 1e-12, since a mass that was
        left out could be the one that matters; they are divided by their sum, which removes the rounding. Traced values
        give NaN if one is negative or their sum is off by more than 1e-5.
      q: the same under Q.

    Example:
      >>> import dpjax
      >>> dpjax.DiscreteLoss([0.75, 0.25], [0.25, 0.75]) * 10
      SelfComposed(DiscreteLoss(array([0.75, 0.25]), array([0.25, 0.75])), 10)
    """

    p: ArrayLike = event()
    q: ArrayLike = event()

    def __post_init__(self):
        for name in ("p", "q"):
            object.__setattr__(self, name, _validate.number(name, getattr(self, name)))
        self.check()
        _validate.same_length(("p", "q"), (self.p, self.q))

    def check(self) -> None:
        """Raises ValueError if a concrete field is no distribution."""
        _validate.distribution("p", self.p)
        _validate.distribution("q", self.q)

    @classmethod
    def from_log_probabilities(cls, log_p: Any, log_q: Any) -> DiscreteLoss:
        """The same from natural logarithms of the probabilities; -inf is no mass.

        Args:
          log_p: shape (..., outcomes), <= 0.
          log_q: likewise.

        Returns:
          The record ``DiscreteLoss(exp(log_p), exp(log_q))``.

        Raises:
          ValueError: the exponentials are no distributions; the message names ``p`` or ``q``.

        Example:
          >>> import math
          >>> import dpjax
          >>> dpjax.DiscreteLoss.from_log_probabilities([0.0, -math.inf], [math.log(0.5)] * 2)
          DiscreteLoss(array([1., 0.]), array([0.5, 0.5]))
        """
        return cls(_validate.exponential("log_p", log_p), _validate.exponential("log_q", log_q))
