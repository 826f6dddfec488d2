"""Mechanisms that see a random part of the data."""

from __future__ import annotations

from jax.typing import ArrayLike

from dpjax import _validate
from dpjax._pytree import node
from dpjax.mechanisms._base import Mechanism, SelfComposed, require_mechanism, set_number
from dpjax.mechanisms.noise import Gaussian


@node
class PoissonSampled(Mechanism):
    """``mechanism`` run on a batch that contains each record independently with ``sampling_probability``.

    Attributes:
      sampling_probability: in [0, 1].
      mechanism: the mechanism that sees the batch.

    Example:
      >>> import dpjax
      >>> dpjax.PoissonSampled(0.01, dpjax.Gaussian(1.5))
      PoissonSampled(0.01, Gaussian(1.5))
    """

    sampling_probability: ArrayLike
    mechanism: Mechanism

    def __post_init__(self):
        set_number(self, "sampling_probability", 0.0, 1.0)
        require_mechanism("mechanism", self.mechanism)

    def check(self) -> None:
        """Raises ValueError if a concrete field is out of range."""
        _validate.in_range("sampling_probability", self.sampling_probability, 0.0, 1.0)


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
      >>> import dpjax
      >>> dpjax.dpsgd(1.1, 0.01, 1000)
      SelfComposed(PoissonSampled(0.01, Gaussian(1.1)), 1000)
    """
    return SelfComposed(PoissonSampled(sampling_probability, Gaussian(noise_multiplier)), steps)
