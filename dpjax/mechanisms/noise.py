"""Mechanisms that add noise to a sum."""

from __future__ import annotations

import math

import numpy as np
from jax.typing import ArrayLike

from dpjax import _validate
from dpjax._pytree import event, node, static
from dpjax.mechanisms._base import Mechanism, set_number
from dpjax.mechanisms.finite import DiscreteLoss


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


@node
class Laplace(Mechanism):
    """The Laplace mechanism.

    One record moves the sum by at most the bound, in L1 norm: under replace-one by twice that. The loss lies within
    [-mu, mu], mu = 1 / noise_multiplier (replace-one: 2 / noise_multiplier).

    Attributes:
      noise_multiplier: scale of the noise on each coordinate of the sum, divided by the L1 bound of one record; >= 0.

    Example:
      >>> import dpjax
      >>> dpjax.Laplace(2.0) * 10
      SelfComposed(Laplace(2), 10)
    """

    noise_multiplier: ArrayLike

    def __post_init__(self):
        set_number(self, "noise_multiplier", 0.0)

    def check(self) -> None:
        """Raises ValueError if a concrete field is out of range."""
        _validate.in_range("noise_multiplier", self.noise_multiplier, 0.0)


@node
class DiscreteGaussian(Mechanism):
    """Integers with discrete Gaussian noise (arXiv 2004.00010): probability of x proportional to exp(-x^2 / (2 sigma^2)).

    A record moves the sum by any integer up to the sensitivity (replace-one: up to twice that). The largest move is
    the worst: the noise is log-concave, so the best tests are thresholds, and a threshold's power grows with the move.

    Attributes:
      sigma: the parameter, for sigma > 1 the standard deviation almost exactly; >= 0.
      sensitivity: the most by which one record moves the sum; an int >= 1, not a leaf.

    Example:
      >>> import dpjax
      >>> dpjax.DiscreteGaussian(2.5)
      DiscreteGaussian(2.5, 1)
    """

    sigma: ArrayLike
    sensitivity: int = static(default=1)

    def __post_init__(self):
        set_number(self, "sigma", 0.0)
        _validate.whole("sensitivity", self.sensitivity, 1)

    def check(self) -> None:
        """Raises ValueError if a concrete field is out of range."""
        _validate.in_range("sigma", self.sigma, 0.0)


@node
class DiscreteLaplace(Mechanism):
    """Integers with discrete Laplace (geometric) noise: probability of x proportional to exp(-epsilon_per_unit |x|).

    A record moves the sum by any integer up to the sensitivity (replace-one: up to twice that); the largest move is
    the worst, as for ``DiscreteGaussian``. The largest loss is epsilon_per_unit times the move.

    Attributes:
      epsilon_per_unit: one over the scale of the noise; >= 0 and finite.
      sensitivity: the most by which one record moves the sum; an int >= 1, not a leaf.

    Example:
      >>> import dpjax
      >>> dpjax.DiscreteLaplace(0.5, sensitivity=3)
      DiscreteLaplace(0.5, 3)
    """

    epsilon_per_unit: ArrayLike
    sensitivity: int = static(default=1)

    def __post_init__(self):
        set_number(self, "epsilon_per_unit", 0.0)
        _validate.whole("sensitivity", self.sensitivity, 1)
        self.check()

    def check(self) -> None:
        """Raises ValueError if a concrete field is out of range."""
        _validate.in_range("epsilon_per_unit", self.epsilon_per_unit, 0.0, math.inf, high_open=True)


@node
class MixtureOfGaussians(Mechanism):
    """The Gaussian mechanism where the protected unit moves the sum by a random amount: user-level and group privacy.

    Remove: P = sum_i probabilities_i N(sensitivities_i, sigma^2), Q = N(0, sigma^2), as in dp_accounting; add is the
    reverse. Amounts are norms, so they are not negative, which makes the loss increase with the noisy sum.
    ``REPLACE_ONE`` is refused: what the other amount is together with this one is not said.

    Attributes:
      noise_multiplier: standard deviation of the noise on the sum, in the unit of ``sensitivities``; > 0, or 0 in the whole
        batch. A traced 0 gives NaN.
      sensitivities: >= 0 and finite; shape (..., outcomes), the axes before are batch axes.
      probabilities: of the sensitivities, same last axis; >= 0, with a sum of one within 1e-12, by which they are divided.
        Traced values give NaN if one is negative or their sum is off by more than 1e-5.

    Example:
      >>> import dpjax
      >>> dpjax.MixtureOfGaussians(2.0, [0.0, 1.0, 2.0], [0.5, 0.25, 0.25])
      MixtureOfGaussians(2, array([0., 1., 2.]), array([0.5 , 0.25, 0.25]))
    """

    noise_multiplier: ArrayLike
    sensitivities: ArrayLike = event()
    probabilities: ArrayLike = event()

    def __post_init__(self):
        set_number(self, "noise_multiplier", 0.0)
        for name in ("sensitivities", "probabilities"):
            object.__setattr__(self, name, _validate.number(name, getattr(self, name)))
        self.check()
        if not getattr(self.sensitivities, "shape", ()):
            raise ValueError(f"sensitivities = {self.sensitivities!r}, but it must be an array of one or more numbers.")
        _validate.same_length(("sensitivities", "probabilities"), (self.sensitivities, self.probabilities))

    def check(self) -> None:
        """Raises ValueError if a concrete field is out of range."""
        traced = _validate.is_traced(self.noise_multiplier)
        _validate.in_range("noise_multiplier", self.noise_multiplier, 0.0, low_open=traced or not self._is_bare())
        _validate.in_range("sensitivities", self.sensitivities, 0.0, math.inf, high_open=True)
        _validate.distribution("probabilities", self.probabilities)

    def _is_bare(self) -> bool:
        if any(map(_validate.is_traced, (self.noise_multiplier, self.sensitivities, self.probabilities))):
            return False
        return bool(np.all(np.equal(self.noise_multiplier, 0.0)))

    def without_noise(self) -> MixtureOfGaussians | DiscreteLoss:
        """This record; or the finite one that it is if there is no noise, where every move shows."""
        if not self._is_bare():
            return self
        moves, shares = np.broadcast_arrays(self.sensitivities, self.probabilities)
        moving = np.sum(np.where(moves > 0, shares, 0.0), -1) / np.sum(shares, -1)
        moving, _ = np.broadcast_arrays(moving, self.noise_multiplier)
        return DiscreteLoss(np.stack([1 - moving, moving], -1), np.stack([1 + 0 * moving, 0 * moving], -1))
