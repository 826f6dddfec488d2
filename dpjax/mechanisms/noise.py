"""Mechanisms that add noise to a sum."""

from __future__ import annotations

from jax.typing import ArrayLike

from dpjax import _validate
from dpjax._pytree import node
from dpjax.mechanisms._base import Mechanism, set_number


@node
class Gaussian(Mechanism):
    """The Gaussian mechanism.

    Attributes:
      noise_multiplier: standard deviation of the noise on the sum, divided by the norm bound of one record; >= 0.
        0 means no noise (epsilon is infinite), infinity means no information.

    Example:
      >>> import dpjax
      >>> dpjax.Gaussian(1.5)
      Gaussian(1.5)
    """

    noise_multiplier: ArrayLike

    def __post_init__(self):
        set_number(self, "noise_multiplier", 0.0)

    def check(self) -> None:
        """Raises ValueError if a concrete field is out of range."""
        _validate.in_range("noise_multiplier", self.noise_multiplier, 0.0)
