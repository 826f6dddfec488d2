"""Random batches of static shape."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from dpjax import _validate
from dpjax._pytree import node, static
from dpjax.mechanisms import Mechanism, PoissonSampled, TruncatedPoissonSampled


class Batch(NamedTuple):
    """A padded batch.

    Attributes:
      indices: rows of the dataset, shape (max_batch_size,), int32; those beyond the batch are rows that were not drawn,
        so that indexing is always possible.
      mask: which of them are in the batch. Its sum is private.
    """

    indices: jax.Array
    mask: jax.Array


@node
class PoissonBatches:
    """Batches that contain each record independently with ``sampling_probability``, padded to a static shape.

    Of a batch that would be larger than ``max_batch_size`` a random part of that size is used: what
    ``dpjax.TruncatedPoissonSampled`` describes. With ``max_batch_size`` = ``dataset_size`` that never happens, and the
    batches are plain Poisson. ``step`` has the record, so that what is counted is what is drawn.

    Attributes:
      dataset_size: number of records, a whole number.
      sampling_probability: in [0, 1]; with a resolution of 2**-32, rounded down.
      max_batch_size: in [1, dataset_size]; by default dataset_size. A few standard deviations above the expected size
        costs little privacy: mean + 6 sqrt(mean) practically nothing.

    Guarantee:
      A batch has the distribution that ``step``'s record describes, with a sampling probability that is at most the one
      given, if the keys are fresh and the generator's bits are independent.

    Raises:
      ValueError: a field is out of range.

    Example:
      >>> import jax
      >>> import dpjax
      >>> batches = PoissonBatches(dataset_size=1000, sampling_probability=0.05, max_batch_size=80)
      >>> indices, mask = batches.sample(jax.random.key(0))
      >>> indices.shape, int(mask.sum())
      ((80,), 53)
      >>> batches.step(dpjax.Gaussian(1.0)), batches.expected_batch_size
      (TruncatedPoissonSampled(1000, 0.05, 80, Gaussian(1)), 50.0)
    """

    dataset_size: int = static()
    sampling_probability: ArrayLike = 1.0
    max_batch_size: int = static(default=None)

    def __post_init__(self):
        _validate.whole("dataset_size", self.dataset_size, 1)
        if self.max_batch_size is None:
            object.__setattr__(self, "max_batch_size", self.dataset_size)
        _validate.whole("max_batch_size", self.max_batch_size, 1)
        _validate.at_most("max_batch_size", self.max_batch_size, "dataset_size", self.dataset_size)
        probability = _validate.number("sampling_probability", self.sampling_probability)
        _validate.in_range("sampling_probability", probability, 0.0, 1.0)
        if np.ndim(probability):
            raise ValueError(f"sampling_probability has shape {np.shape(probability)}, but it must be a number.")
        object.__setattr__(self, "sampling_probability", probability)

    def sample(self, key: jax.Array) -> Batch:
        """Draws a batch; ``key`` must be fresh for every batch, and another one than that of the noise.

        A sampling probability that is traced and out of range draws nobody.
        """
        # Integers, since random floats have multiples of 2**-23, with which a small probability would come out too large.
        draws = jax.random.bits(key, (2, self.dataset_size), jnp.uint32)
        drawn = _below(draws[0], self.sampling_probability)
        # Those drawn first, in random order: the first max_batch_size are a uniform part of them.
        rows = lax.iota(jnp.int32, self.dataset_size)
        absent, _, _, rows = lax.sort(((~drawn).astype(jnp.int32), draws[1], draws[0], rows), num_keys=3)
        size = self.max_batch_size
        return Batch(rows[:size], absent[:size] == 0)

    def step(self, mechanism: Mechanism) -> Mechanism:
        """The record of ``mechanism`` run on one of these batches."""
        if self.max_batch_size == self.dataset_size:
            return PoissonSampled(self.sampling_probability, mechanism)
        return TruncatedPoissonSampled(self.dataset_size, self.sampling_probability, self.max_batch_size, mechanism)

    @property
    def expected_batch_size(self) -> Any:
        """Expected number of records, before a batch is cut: what a noisy sum is divided by."""
        return self.dataset_size * self.sampling_probability


def _below(bits: jax.Array, probability: Any) -> jax.Array:
    """True with the given probability, rounded down to a multiple of 2**-32."""
    if not _validate.is_traced(probability):
        threshold = int(np.floor(np.float64(probability) * 2.0**32))
        return jnp.ones(bits.shape, bool) if threshold >= 2**32 else bits < np.uint32(threshold)
    valid = (probability >= 0) & (probability < 1)
    scaled = jnp.where(valid, probability, 0.0) * 2.0**32  # exact, a power of two
    # in two halves, since XLA converts floats to signed integers only up to 2**31
    high = jnp.floor(scaled / 2.0**16)
    low = jnp.floor(scaled - high * 2.0**16)
    threshold = (high.astype(jnp.uint32) << 16) | low.astype(jnp.uint32)
    return jnp.where(probability == 1, True, bits < threshold)
