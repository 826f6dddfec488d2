"""Mechanisms that see a random part of the data."""

from __future__ import annotations

import math
from typing import Any, NoReturn

import jax
from jax.typing import ArrayLike

from dpjax import _validate, suspicion
from dpjax._pytree import node
from dpjax.mechanisms._base import Mechanism, SelfComposed, require_mechanism
from dpjax.mechanisms.noise import Gaussian

_PROBABILITY = "a batch size becomes one when it is divided by the dataset size, as dpsgd_from_training does"


def _set_probability(obj: Any) -> None:
    value = _validate.number("sampling_probability", obj.sampling_probability)
    _probability(value)
    object.__setattr__(obj, "sampling_probability", value)


def _probability(value: Any) -> None:
    _validate.in_range("sampling_probability", value, 0.0, 1.0, advice=_PROBABILITY)


def _set_count(obj: Any, name: str, low: float) -> None:
    value = _validate.number(name, getattr(obj, name))
    _whole(name, value, low)
    object.__setattr__(obj, name, value)


def _whole(name: str, value: Any, low: float) -> None:
    _validate.in_range(name, value, low, math.inf, integral=True, high_open=True)


def _require_sampleable(sampler: Mechanism, mechanism: Any) -> None:
    """A sampler sees a batch of another size than the data: what counts on the number of records cannot be inside one."""
    require_mechanism("mechanism", mechanism)
    sized = (FixedSizeSampled, TruncatedPoissonSampled, RandomAllocation)
    for member in jax.tree.leaves(mechanism, is_leaf=lambda m: isinstance(m, sized)):
        if isinstance(member, sized):
            raise ValueError(
                f"mechanism = {mechanism!r}, but {type(sampler).__name__} cannot sample for {type(member).__name__}, "
                "which is a sampler of a dataset of known size itself; use one sampler."
            )


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
        _set_probability(self)
        _require_sampleable(self, self.mechanism)

    def check(self) -> None:
        """Raises ValueError if a concrete field is out of range."""
        _probability(self.sampling_probability)


@node
class FixedSizeSampled(Mechanism):
    """``mechanism`` run on a batch of exactly ``sample_size`` of the ``dataset_size`` records, without replacement.

    Two batches of one size differ by a replacement, so ``mechanism`` enters with its analysis under replace-one, whatever the
    adjacency: ``Gaussian(s)`` has there the sensitivity 2, as much as noise s / 2 with sensitivity 1. Under ADD_OR_REMOVE_ONE
    ``dataset_size`` is that of the larger dataset. Under REPLACE_SPECIAL the zeroed record keeps its place in the batch: it
    displaces another one, but moves the sum only half as far as a replacement. That is used for ``Gaussian``; other mechanisms
    cost as much as under REPLACE_ONE.

    Attributes:
      dataset_size: number of records, >= 1, a whole number.
      sample_size: size of each batch, in [0, dataset_size], a whole number.
      mechanism: the mechanism that sees the batch.

    Raises:
      ValueError: a concrete field is out of range, or ``mechanism`` is itself a sampler of a dataset of known size.

    Guarantee: arXiv 2106.08567, Theorem 11, for ADD and REMOVE; advanced joint convexity (arXiv 1807.01647, Theorem 2) for
    REPLACE_ONE and REPLACE_SPECIAL, where each order has its own worst neighbours: compositions are bounded from above only.

    Example:
      >>> import dpjax
      >>> dpjax.FixedSizeSampled(60_000, 600, dpjax.Gaussian(2.0))
      FixedSizeSampled(60000, 600, Gaussian(2))
    """

    ATTAINED_REPLACED = "single"  # orders above and below 1 have different worst neighbours

    dataset_size: ArrayLike
    sample_size: ArrayLike
    mechanism: Mechanism

    def __post_init__(self):
        _set_count(self, "dataset_size", 1.0)
        _set_count(self, "sample_size", 0.0)
        _require_sampleable(self, self.mechanism)
        self.check()

    def check(self) -> None:
        """Raises ValueError if a concrete field is out of range."""
        _whole("dataset_size", self.dataset_size, 1.0)
        _whole("sample_size", self.sample_size, 0.0)
        _validate.at_most("sample_size", self.sample_size, "dataset_size", self.dataset_size)


@node
class TruncatedPoissonSampled(Mechanism):
    """Poisson sampling into batches of static shape: of a batch that is too large, a random part of ``max_batch_size`` is used.

    A full batch is one of fixed size, so ``mechanism`` needs an analysis under replace-one too. Under REPLACE_SPECIAL the zeroed
    record is drawn as any other and takes a place in a full batch; ``FixedSizeSampled`` says what that costs.

    Attributes:
      dataset_size: number of records (of the larger dataset, under ADD_OR_REMOVE_ONE), >= 1, a whole number.
      sampling_probability: in [0, 1].
      max_batch_size: >= 1, a whole number.
      mechanism: the mechanism that sees the batch.

    Raises:
      ValueError: a concrete field is out of range, or ``mechanism`` is itself a sampler of a dataset of known size.

    Guarantee: arXiv 2508.15089. Given the number of the other records in the batch, which is public here, the pair is that of
    Poisson sampling below ``max_batch_size``, and that of sampling of a fixed size from there on.

    Example:
      >>> import dpjax
      >>> dpjax.TruncatedPoissonSampled(60_000, 0.01, 700, dpjax.Gaussian(1.0))
      TruncatedPoissonSampled(60000, 0.01, 700, Gaussian(1))
    """

    ATTAINED = "never"  # the size of the batch is not published

    dataset_size: ArrayLike
    sampling_probability: ArrayLike
    max_batch_size: ArrayLike
    mechanism: Mechanism

    def __post_init__(self):
        _set_count(self, "dataset_size", 1.0)
        _set_probability(self)
        _set_count(self, "max_batch_size", 1.0)
        _require_sampleable(self, self.mechanism)

    def check(self) -> None:
        """Raises ValueError if a concrete field is out of range."""
        _whole("dataset_size", self.dataset_size, 1.0)
        _probability(self.sampling_probability)
        _whole("max_batch_size", self.max_batch_size, 1.0)


@node
class FixedSizeSampledZeroed(FixedSizeSampled):
    """``FixedSizeSampled`` as it is asked about under REPLACE_SPECIAL, in the place of ADD and REMOVE."""

    @property
    def ATTAINED(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Orders above and below 1 have different worst neighbours; other mechanisms are bounded by replacements."""
        return "single" if isinstance(self.mechanism, Gaussian) else "never"

    SHOWN_AS = "FixedSizeSampled"


@node
class TruncatedPoissonSampledZeroed(TruncatedPoissonSampled):
    """``TruncatedPoissonSampled`` as it is asked about under REPLACE_SPECIAL, in the place of ADD and REMOVE."""

    SHOWN_AS = "TruncatedPoissonSampled"


_ZEROED: dict[type, type] = {
    FixedSizeSampled: FixedSizeSampledZeroed,
    TruncatedPoissonSampled: TruncatedPoissonSampledZeroed,
}


def zeroed(record: Any) -> Any:
    """``record`` to be asked about under REPLACE_SPECIAL by its directions, ADD and REMOVE.

    An absent record leaves its place in a batch to another one, a zero record does not.
    """
    known = lambda m: type(m) in _ZEROED
    leaves, structure = jax.tree.flatten(record, is_leaf=known)
    if not any(map(known, leaves)):
        return record
    return jax.tree.unflatten(structure, [_copied(m) if known(m) else m for m in leaves])


def _copied(record: Any) -> Any:
    out = object.__new__(_ZEROED[type(record)])
    for name in record.__dataclass_fields__:
        object.__setattr__(out, name, getattr(record, name))
    return out


@node
class RandomAllocation(Mechanism):
    """One epoch of ``num_steps`` steps of ``mechanism``, each record in ``participations`` of them, chosen at random.

    The record stands for all the steps, not for one: an epoch of balls and bins is ``RandomAllocation(t, m)``, E epochs with
    fresh choices are ``RandomAllocation(t, m) * E``. REPLACE_ONE is refused: no analysis is known.

    Attributes:
      num_steps: number of batches, >= 1, a whole number.
      mechanism: the mechanism that sees each batch.
      participations: in how many batches each record is, in [1, num_steps], a whole number.

    Raises:
      ValueError: a concrete field is out of range, or ``mechanism`` is itself a sampler of a dataset of known size.

    Guarantee: arXiv 2502.08202, Theorem 4.3: an upper bound, from the composition of as many Poisson-sampled steps. Several
    participations are bounded by as many allocations of one in floor(num_steps / participations).

    Example:
      >>> import dpjax
      >>> dpjax.RandomAllocation(100, dpjax.Gaussian(1.0)) * 5
      SelfComposed(RandomAllocation(100, Gaussian(1), 1), 5)
    """

    ATTAINED = "never"

    num_steps: ArrayLike
    mechanism: Mechanism
    participations: ArrayLike = 1

    def __post_init__(self):
        _set_count(self, "num_steps", 1.0)
        _require_sampleable(self, self.mechanism)
        _set_count(self, "participations", 1.0)
        self.check()

    def check(self) -> None:
        """Raises ValueError if a concrete field is out of range."""
        _whole("num_steps", self.num_steps, 1.0)
        _whole("participations", self.participations, 1.0)
        _validate.at_most("participations", self.participations, "num_steps", self.num_steps)


class ShuffledBatches(Mechanism):
    """Batches cut from a shuffled dataset have no amplification analysis of use: calling this says what to use instead.

    The batches of a shuffled epoch depend on each other, and their privacy can be far worse than that of Poisson sampling at
    the same rate (arXiv 2403.17673).

    Raises:
      NotImplementedError: always.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError(
            "Batches cut from a shuffled dataset have no amplification analysis, and Poisson sampling's is not valid for "
            "them. Sample with PoissonSampled or TruncatedPoissonSampled, allocate records to batches independently "
            "(RandomAllocation), or, under REPLACE_ONE, count the mechanism without a sampler, once for each epoch."
        )


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
    steps = _validate.number("steps", steps)
    _validate.in_range("steps", steps, 0.0, math.inf, high_open=True)
    record = SelfComposed(PoissonSampled(sampling_probability, Gaussian(noise_multiplier)), steps)
    if None not in map(suspicion.number, (noise_multiplier, sampling_probability, steps)):
        suspicion.question_noise(noise_multiplier)
        suspicion.question_steps(steps)
    return record
