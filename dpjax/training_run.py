"""DP-SGD in the terms of a training run: dataset size, batch size, epochs.

``_training_terms`` derives sampling probability and number of updates; the records here say what was derived.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import numpy as np
from jax.typing import ArrayLike

from dpjax import _training_terms, _validate, suspicion
from dpjax._digits import shown
from dpjax.mechanisms import Adjacency, Gaussian, PoissonSampled, SelfComposed


class TrainingRun(SelfComposed):
    """DP-SGD, the Poisson-sampled Gaussian composed, that remembers which training run it came from.

    It is a mechanism like ``dpsgd(...)``, which a transformation of its numbers turns it into. Made by
    ``dpsgd_from_training`` and ``noise_for_training``; printing it shows how each number was derived.

    Attributes:
      noise_multiplier: standard deviation of the noise on the *sum* of clipped gradients, over the clipping norm.
      sampling_probability: of each record to be in a batch.
      steps: number of updates.
      dataset_size, batch_size, epochs: of the run; the batch is that between two additions of noise.
    """

    noise_multiplier: Any
    terms: _training_terms.Terms
    _because: str

    def __init__(self, terms: _training_terms.Terms, noise_multiplier: ArrayLike, because: str = ""):
        super().__init__(PoissonSampled(terms.sampling_probability, Gaussian(noise_multiplier)), terms.steps)
        noise = self.mechanism.mechanism.noise_multiplier  # type: ignore[attr-defined]
        for name, value in (("noise_multiplier", noise), ("terms", terms), ("_because", because)):
            object.__setattr__(self, name, value)

    @property
    def sampling_probability(self) -> float:
        """batch_size / dataset_size."""
        return self.terms.sampling_probability

    @property
    def steps(self) -> int:
        """epochs * dataset_size / batch_size, rounded up."""
        return self.terms.steps

    @property
    def dataset_size(self) -> int:
        """Records."""
        return self.terms.dataset_size

    @property
    def batch_size(self) -> int:
        """Expected records between two additions of noise."""
        return self.terms.batch_size

    @property
    def epochs(self) -> float:
        """Passes over the dataset."""
        return float(self.terms.epochs)

    def noise_on_sum(self, clipping_norm: ArrayLike) -> Any:
        """The standard deviation of the noise to add to the sum of the batch's clipped gradients.

        Example:
          >>> import dpjax
          >>> print(f"{dpjax.dpsgd_from_training(60000, 256, 60, 1.1).noise_on_sum(clipping_norm=0.5):.6f}")
          0.550000
        """
        return self.noise_multiplier * _validate.number("clipping_norm", clipping_norm)

    def noise_on_mean(self, clipping_norm: ArrayLike) -> Any:
        """The same for their mean: the sum over the *expected* batch size, not over how many records were drawn.

        Example:
          >>> import dpjax
          >>> print(f"{dpjax.dpsgd_from_training(60000, 256, 60, 1.1).noise_on_mean(clipping_norm=0.5):.6f}")
          0.002148
        """
        return self.noise_on_sum(clipping_norm) / self.batch_size

    def __repr__(self) -> str:
        t = self.terms
        noise = self.noise_multiplier
        if not _validate.is_traced(noise):
            values = [shown(float(x), up=True) for x in np.ravel(noise)]  # whoever copies one has no less noise
            noise = values[0] if np.ndim(noise) == 0 else f"[{', '.join(values[:8])}{', ...' * (len(values) > 8)}]"
        rows = {
            "noise_multiplier": f"{noise}{f' = {self._because}' if self._because else ''}",
            "sampling_probability": f"{t.sampling_probability:.10g} = {t.formulas['sampling_probability']}",
            "steps": f"{t.steps} = {t.formulas['steps']}",
        }
        return "TrainingRun(\n" + "".join(f"  {name:20}  {value}\n" for name, value in rows.items()) + ")"


# Its numbers are those of a SelfComposed, and that is what a tree transformation makes of it: sizes in the tree's
# structure would be a compilation each.
jax.tree_util.register_pytree_with_keys(
    TrainingRun,
    lambda run: (
        ((jax.tree_util.GetAttrKey("mechanism"), run.mechanism), (jax.tree_util.GetAttrKey("count"), run.count)),
        None,
    ),
    lambda _, children: _plain(*children),  # pyright: ignore[reportArgumentType]
    lambda run: ((run.mechanism, run.count), None),
)


def _plain(mechanism: Any, count: Any) -> SelfComposed:
    record = object.__new__(SelfComposed)
    object.__setattr__(record, "mechanism", mechanism)
    object.__setattr__(record, "count", count)
    return record


def dpsgd_from_training(
    dataset_size: int,
    batch_size: int | None = None,
    epochs: float | None = None,
    noise_multiplier: ArrayLike | None = None,
    *,
    micro_batch_size: int | None = None,
    accumulation_steps: int | None = None,
    noise_on_mean: ArrayLike | None = None,
    clipping_norm: ArrayLike | None = None,
) -> TrainingRun:
    """The DP-SGD mechanism of a training run: sampling probability and number of updates are derived, and shown.

    Args:
      dataset_size: records.
      batch_size: expected records between two additions of noise. With gradient accumulation that is not what fits into
        memory at once: give ``micro_batch_size`` and ``accumulation_steps`` instead, whose product it is.
      epochs: passes over the dataset; the updates are epochs * dataset_size / batch_size, rounded up. A float counts as
        its shortest decimal.
      noise_multiplier: standard deviation of the noise on the *sum* of the clipped gradients, over the clipping norm.
      micro_batch_size, accumulation_steps: instead of batch_size.
      noise_on_mean: instead of noise_multiplier: the standard deviation of the noise on the *mean* of the clipped
        gradients, which is noise_multiplier * clipping_norm / batch_size.
      clipping_norm: with noise_on_mean, the norm that gradients are clipped to.

    Returns:
      A ``TrainingRun``, which is a mechanism.

    Raises:
      ValueError: a number is out of range, or two ways of saying the same are mixed.
      TypeError: something is missing.

    Example:
      >>> import dpjax
      >>> run = dpjax.dpsgd_from_training(60000, batch_size=256, epochs=60, noise_multiplier=1.1)
      >>> run
      TrainingRun(
        noise_multiplier      1.1
        sampling_probability  0.004266666667 = 256 / 60000
        steps                 14063 = ceil(60 * 60000 / 256)
      )
      >>> print(f"{dpjax.epsilon(run, delta=1e-5):.6f}")
      2.381690
    """
    terms = _terms(dataset_size, batch_size, epochs, micro_batch_size, accumulation_steps)
    if noise_on_mean is None:
        if noise_multiplier is None:
            raise TypeError("noise_multiplier is missing, or noise_on_mean with clipping_norm.")
        if clipping_norm is not None:
            raise ValueError(
                f"clipping_norm = {clipping_norm!r}, but noise_multiplier is relative to it already; it belongs to noise_on_mean."
            )
        suspicion.question_noise(noise_multiplier)
        suspicion.question_order(epochs, noise_multiplier)
        return TrainingRun(terms, noise_multiplier)
    if noise_multiplier is not None:
        raise ValueError(
            f"noise_multiplier = {noise_multiplier!r} and noise_on_mean = {noise_on_mean!r}: the first is that of the sum "
            "of clipped gradients over the clipping norm, the second that of their mean; give one."
        )
    if clipping_norm is None:
        raise TypeError(
            "noise_on_mean needs clipping_norm: the noise multiplier is noise_on_mean * batch_size / clipping_norm."
        )
    mean, norm = _validate.number("noise_on_mean", noise_on_mean), _validate.number("clipping_norm", clipping_norm)
    _validate.in_range("noise_on_mean", mean, 0.0)
    _validate.in_range("clipping_norm", norm, 0.0, math.inf, low_open=True, high_open=True)
    because = f"{noise_on_mean} * {terms.batch_size} / {clipping_norm}: noise on the mean * batch / clipping norm"
    run = TrainingRun(terms, mean * terms.batch_size / norm, because)
    suspicion.question_noise(run.noise_multiplier)
    return run


def noise_for_training(
    dataset_size: int,
    batch_size: int | None = None,
    epochs: float | None = None,
    epsilon: ArrayLike | None = None,
    delta: ArrayLike | None = None,
    *,
    micro_batch_size: int | None = None,
    accumulation_steps: int | None = None,
    adjacency: Adjacency = Adjacency.ADD_OR_REMOVE_ONE,
) -> TrainingRun:
    """The training run with the least noise that is (epsilon, delta)-DP.

    Args:
      dataset_size, batch_size, epochs, micro_batch_size, accumulation_steps: as for ``dpsgd_from_training``.
      epsilon, delta: the target; arrays make a batch of noise multipliers.
      adjacency: which datasets are neighbours.

    Returns:
      A ``TrainingRun``: its ``noise_multiplier`` is the answer, ``noise_on_sum`` and ``noise_on_mean`` turn it into
      standard deviations.

    Guarantee:
      That of ``calibrate``: ``epsilon(run, delta)`` is not above the target, for ``adjacency``.

    Raises:
      ValueError: a number is out of range, two ways of saying the same are mixed, or no noise meets the target.
      TypeError: something is missing.

    Example:
      >>> import dpjax
      >>> run = dpjax.noise_for_training(60000, epochs=60, epsilon=3.0, delta=1e-5, micro_batch_size=32, accumulation_steps=8)
      >>> run
      TrainingRun(
        noise_multiplier      0.9684274159 = calibrated to epsilon 3.0 at delta 1e-05
        sampling_probability  0.004266666667 = (32 * 8) / 60000
        steps                 14063 = ceil(60 * 60000 / (32 * 8))
      )
      >>> print(f"{run.noise_on_mean(clipping_norm=1.0):.6f}")
      0.003783
    """
    from dpjax.calibration import calibrate

    terms = _terms(dataset_size, batch_size, epochs, micro_batch_size, accumulation_steps)
    if epsilon is None or delta is None:
        raise TypeError("epsilon and delta are both needed; neither has a default.")
    suspicion.question_delta(delta, terms.dataset_size)
    noise = calibrate(lambda s: TrainingRun(terms, s), epsilon=epsilon, delta=delta, adjacency=adjacency)
    return TrainingRun(terms, noise, f"calibrated to epsilon {epsilon} at delta {delta}")


def _terms(dataset_size, batch_size, epochs, micro_batch_size, accumulation_steps) -> _training_terms.Terms:
    if epochs is None:
        raise TypeError("epochs is missing: the passes over the dataset.")
    return _training_terms.derive(dataset_size, batch_size, epochs, micro_batch_size, accumulation_steps)
