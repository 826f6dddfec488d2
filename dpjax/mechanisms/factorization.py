"""Matrix factorisation, DP-FTRL and tree aggregation: correlated noise, released step by step.

All of them release C G + Z, G being the sums that the steps compute and Z white Gaussian noise, and whatever follows from that.
The steps may depend on earlier outputs: that is no worse, for Gaussian noise (arXiv 2202.08312, Theorem 2.1). So each is
the Gaussian mechanism of its strategy's sensitivity, which ``dpjax.participation`` works out.

Which steps a record takes part in must not depend on which other records there are. That is so where a record is replaced, by another
(``REPLACE_ONE``) or by zero (``REPLACE_SPECIAL``); adding or removing one must leave the others where they are.
"""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from dpjax import _validate
from dpjax._pytree import event, node
from dpjax.mechanisms._base import Composed, Mechanism, SelfComposed, set_number
from dpjax.mechanisms.noise import Gaussian, MixtureOfGaussians
from dpjax.mechanisms.sampling import dpsgd


@node
class MatrixFactorization(Mechanism):
    """One run of a matrix factorisation mechanism (DP-FTRL): noise that is correlated over the steps.

    The module says what adjacencies mean here.

    Attributes:
      noise_multiplier: standard deviation of the white noise Z, before it is correlated, over the norm bound of one record;
        >= 0. jax_privacy's strategies of column norm 1 have the same meaning.
      sensitivity: of the strategy for the steps that a record may take part in, > 0 and finite: from
        ``dpjax.participation.sensitivity``, ``epoch_sensitivity`` or ``toeplitz_sensitivity``; 1 for a strategy
        whose columns have norm 1, and one participation.

    Guarantee: arXiv 2202.08312, Theorem 2.1, and 2211.06530 for several participations.

    Example:
      >>> import dpjax
      >>> from dpjax import participation
      >>> reach = participation.toeplitz_sensitivity([1.0, 0.5, 0.25], 1000, participations=4, separation=250)
      >>> run = dpjax.MatrixFactorization(10.0, reach)
      >>> run
      MatrixFactorization(10, 2.29129)
      >>> print(f"{dpjax.epsilon(run, delta=1e-5):.4f}")
      0.8419
    """

    noise_multiplier: ArrayLike
    sensitivity: ArrayLike = 1.0

    def __post_init__(self):
        set_number(self, "noise_multiplier", 0.0)
        set_number(self, "sensitivity", 0.0)
        self.check()

    def check(self) -> None:
        """Raises ValueError if a concrete field is out of range."""
        _validate.in_range("noise_multiplier", self.noise_multiplier, 0.0)
        _validate.in_range("sensitivity", self.sensitivity, 0.0, math.inf, low_open=True, high_open=True)

    def gaussian(self) -> Gaussian:
        """The Gaussian mechanism that has the same privacy, whatever the adjacency."""
        sensitivity: Any = self.sensitivity
        good = (sensitivity > 0) & (sensitivity < math.inf)
        return _rounded_down(_where(good, self.noise_multiplier / _where(good, sensitivity, 1.0), math.nan))


@node
class TreeAggregation(Mechanism):
    """Sums of a stream by binary trees, each node with Gaussian noise of its own; a record is in at most one step of all trees.

    A record in step s moves the nodes above it that are completed: at most one of each size, floor(log2(steps)) + 1 of them.
    For a record that may be in every tree, compose: one record for each tree. Several times in one tree:
    ``MatrixFactorization`` with the sensitivity of ``participation.tree``. The module says what adjacencies mean here.

    Attributes:
      noise_multiplier: standard deviation of the noise of one node over the norm bound of one record; >= 0.
      step_counts: of each tree, whole numbers >= 0; the last axis is that of the trees.

    Guarantee: arXiv 2103.00039, Appendix D.

    Example:
      >>> import dpjax
      >>> dpjax.TreeAggregation(2.0, [1000, 500])
      TreeAggregation(2, array([1000.,  500.]))
      >>> print(f"{dpjax.epsilon(dpjax.TreeAggregation(2.0, 1000), delta=1e-5):.4f}")
      7.5113
    """

    noise_multiplier: ArrayLike
    step_counts: ArrayLike = event()

    def __post_init__(self):
        set_number(self, "noise_multiplier", 0.0)
        counts = _validate.number("step_counts", self.step_counts)
        counts = counts if np.ndim(counts) else counts[None] if _validate.is_traced(counts) else np.reshape(counts, 1)
        object.__setattr__(self, "step_counts", counts)
        self.check()

    def check(self) -> None:
        """Raises ValueError if a concrete field is out of range."""
        _validate.in_range("noise_multiplier", self.noise_multiplier, 0.0)
        _validate.in_range("step_counts", self.step_counts, 0.0, 2.0**53, integral=True)
        if getattr(self.step_counts, "shape", (1,))[-1:] == (0,):
            raise ValueError("step_counts is empty, but there must be a tree.")

    def gaussian(self) -> Gaussian:
        """The Gaussian mechanism that has the same privacy, whatever the adjacency."""
        counts: Any = self.step_counts
        xp = jnp if _validate.is_traced(counts) else np
        good = xp.all((counts >= 0) & (counts == xp.floor(counts)), -1)
        _, levels = xp.frexp(xp.max(counts, -1))  # 2^(levels - 1) <= steps < 2^levels
        noise: Any = self.noise_multiplier
        some = levels > 0
        root = _where(some, levels, 1) ** 0.5
        return _rounded_down(_where(good, _where(some, noise / root, math.inf), math.nan))


GAUSSIANS = (MatrixFactorization, TreeAggregation)  # Gaussians under another description


def banded_factorization(
    noise_multiplier: ArrayLike,
    sampling_probability: ArrayLike,
    steps: ArrayLike,
    bands: ArrayLike,
    column_norm: ArrayLike = 1.0,
) -> SelfComposed:
    """Matrix factorisation with a banded strategy and cyclic Poisson sampling: as private as DP-SGD with fewer steps.

    The records are split into ``bands`` groups; step i draws each record of group i mod bands independently. A record takes part in
    steps that are multiples of ``bands`` apart, whose columns are orthogonal, so that each of its rounds is a Poisson-sampled
    Gaussian. If batches are cut off at a size, compose ``TruncatedPoissonSampled`` over the group instead.

    Args:
      noise_multiplier: standard deviation of the white noise over the norm bound of one record; >= 0.
      sampling_probability: of each record of the group whose turn it is; in [0, 1].
      steps: number of updates; >= 0, whole.
      bands: of the strategy, at most so many; the number of groups; >= 1, whole.
      column_norm: the largest norm of a column of the strategy, > 0 and finite.

    Returns:
      ``dpsgd(noise_multiplier / column_norm, sampling_probability, ceil(steps / bands))``.

    Raises:
      ValueError: a concrete argument is out of range.

    Guarantee:
      arXiv 2306.08153, Theorem 4. Groups of fixed sizes are for REPLACE_SPECIAL and REPLACE_ONE; under
      ADD_OR_REMOVE_ONE each record must be assigned to its group independently of the others.

    Example:
      >>> import dpjax
      >>> dpjax.banded_factorization(1.5, 0.1, steps=1000, bands=8)
      SelfComposed(PoissonSampled(0.1, Gaussian(1.5)), 125)
    """
    numbers = {"steps": (steps, 0.0, True), "bands": (bands, 1.0, True), "column_norm": (column_norm, 0.0, False)}
    found = {}
    for name, (x, low, integral) in numbers.items():
        found[name] = _validate.number(name, x)
        _validate.in_range(name, found[name], low, math.inf, integral=integral, low_open=not integral, high_open=True)
    steps, bands, column_norm = (_nan_unless(found[n], n != "column_norm", numbers[n][1]) for n in numbers)
    noise: Any = _validate.number("noise_multiplier", noise_multiplier)
    xp = jnp if any(map(_validate.is_traced, (steps, bands))) else np
    return dpsgd(noise / column_norm, sampling_probability, xp.ceil(steps / bands))


def reduced(record: Any) -> Any:
    """``record`` with others in the place of those that are Gaussians, or finite, under another description."""
    if isinstance(record, GAUSSIANS):
        return record.gaussian()
    if isinstance(record, MixtureOfGaussians):
        return record.without_noise()
    if isinstance(record, Composed):
        members = tuple(map(reduced, record.mechanisms))
        return record if all(a is b for a, b in zip(members, record.mechanisms, strict=True)) else Composed(members)
    inner = getattr(record, "mechanism", None)
    if not isinstance(inner, Mechanism) or (new := reduced(inner)) is inner:
        return record
    out = object.__new__(type(record))
    for name in record.__dataclass_fields__:
        object.__setattr__(out, name, new if name == "mechanism" else getattr(record, name))
    return out


def _rounded_down(noise_multiplier: Any) -> Gaussian:
    """The record, below what rounding added; also of a NaN, which traced values that are not allowed become."""
    dtype = noise_multiplier.dtype if _validate.is_traced(noise_multiplier) else np.float64
    out = object.__new__(Gaussian)
    object.__setattr__(out, "noise_multiplier", noise_multiplier * (1 - 2 * float(jnp.finfo(dtype).eps)))
    return out


def _where(condition: Any, x: Any, y: Any) -> Any:
    if any(map(_validate.is_traced, (condition, x, y))):
        return jnp.where(condition, x, y)
    out = np.where(condition, x, y)
    return out if out.ndim else float(out)


def _nan_unless(x: Any, integral: bool, low: float) -> Any:
    """A traced value that is not allowed, as NaN: a ceiling would hide it."""
    if not _validate.is_traced(x):
        return x
    good = (x >= low) & (x == jnp.floor(x)) if integral else x > low
    return jnp.where(good & (x < math.inf), x, math.nan)
