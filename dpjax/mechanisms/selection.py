"""Mechanisms that select the best of several candidates.

The exponential mechanism, which is report-noisy-max with Gumbel noise, is in ``claims``: it is bounded-range. With
exponential or Laplace noise the range is larger (two candidates suffice to show it), and the worst case is this.

Theorem. Let candidate i have the score u_i + X_i with independent noise X_i of density f and distribution function F,
f <= 1 - F (exponential and Laplace noise of scale 1); let the scores of a neighbour have u' - u in [c, c + epsilon] for all
candidates. Then the winner's privacy loss is dominated by the Laplace mechanism's, (Lap(0), Lap(epsilon)), scale 1.

Proof. Adding -c to all scores changes no winner. Fix a set S of candidates. Among these neighbours, P(winner in S) is
smallest where exactly the others gain epsilon. With A and B the best noisy scores in S and outside, D = A - B and G(t) =
P(D > t), the two probabilities of S are G(0) and G(epsilon). A's density is sum_i f_i prod_(j != i) F_j, at most the
probability sum_i (1 - F_i) prod_(j != i) F_j that exactly one of S is above a, so at most P(A > a): given B, -G' <= G, and with
A and B exchanged -G' <= 1 - G. Laplace noise has -G' = min(G, 1 - G), so G(epsilon) is at least what its tail falls to
from G(0) in a step of epsilon. That holds for every S: all hockey-stick divergences are at most the Laplace pair's.
With exponential noise and two candidates D is Laplace noise: there the pair is tight.
"""

from __future__ import annotations

import math

from jax.typing import ArrayLike

from dpjax import _validate
from dpjax._pytree import node
from dpjax.mechanisms._base import Mechanism, require_mechanism, set_number
from dpjax.mechanisms.noise import Laplace


@node
class PermuteAndFlip(Mechanism):
    """Permute-and-flip (McKenna and Sheldon, arXiv 2010.12603): report-noisy-max with exponential noise.

    Its noise has scale 2 / epsilon in units of the most that one record changes a score (1 / epsilon where all scores
    change to the same side). The equivalence is that of Ding, Kifer et al. (arXiv 2105.07260). Its tight dominating pair
    is that of the Laplace mechanism whose loss is at most epsilon: the module has the proof. It is not
    epsilon-bounded-range.

    The parameter is a claim about the neighbours that ``adjacency`` names, in both directions.

    Attributes:
      epsilon: the largest loss, >= 0.

    Example:
      >>> import dpjax
      >>> dpjax.PermuteAndFlip(0.5)
      PermuteAndFlip(0.5)
    """

    epsilon: ArrayLike

    def __post_init__(self):
        set_number(self, "epsilon", 0.0)
        self.check()

    def check(self) -> None:
        """Raises ValueError if a concrete field is out of range."""
        _validate.in_range("epsilon", self.epsilon, 0.0, math.inf, high_open=True)


@node
class ReportNoisyMax(Mechanism):
    """The candidate of the largest score after ``noise`` was added to each score, independently.

    Scores may be moved by one record in different directions, so the difference of two moves by up to twice as much:
    with Laplace noise this is dominated by the Laplace mechanism of half the noise_multiplier (the module has the
    proof). Gumbel noise of scale b is ``ExponentialMechanism(2 / b)``, exponential noise ``PermuteAndFlip(2 / b)``.
    Gaussian noise has no analysis that is free of the number of candidates, and is refused.

    Attributes:
      noise: ``Laplace(noise_multiplier)``, its scale over the most that one record adds to or takes from any score.

    Example:
      >>> import dpjax
      >>> dpjax.ReportNoisyMax(dpjax.Laplace(4.0))
      ReportNoisyMax(Laplace(4))
    """

    ATTAINED = "never"

    noise: Mechanism

    def __post_init__(self):
        require_mechanism("noise", self.noise)
        if not isinstance(self.noise, Laplace):
            raise NotImplementedError(
                f"ReportNoisyMax has no analysis for the noise {self.noise!r}: it must be Laplace. Gumbel noise is "
                "ExponentialMechanism, exponential noise PermuteAndFlip."
            )

    def check(self) -> None:
        """Nothing of its own to check."""
