"""Training with optax under differential privacy: clip, add noise, and account, in one optimizer state.

>>> import jax, jax.numpy as jnp, optax
>>> import dpjax
>>> from dpjax import training
>>> batches = training.PoissonBatches(dataset_size=1000, sampling_probability=0.05)
>>> private = training.private_aggregate(
...     1.0, batches.step(dpjax.Gaussian(noise_multiplier=1.5)), key=0, expected_batch_size=batches.expected_batch_size
... )
>>> optimizer = optax.chain(private, optax.adam(0.1))

What a step is, is written down once: the record says how much noise is drawn and what is counted. The state holds the
sufficient statistic of what was run, and ``privacy_spent`` turns it into epsilon at any moment, inside jit or outside:

>>> data = jax.random.normal(jax.random.key(1), (1000, 3)) + jnp.asarray([1.0, -1.0, 0.5])
>>> gradient = jax.vmap(jax.grad(lambda w, x: 0.5 * jnp.sum((w - x) ** 2)), in_axes=(None, 0))
>>> @jax.jit
... def train_step(carry, key):
...     weights, state = carry
...     indices, mask = batches.sample(key)
...     updates, state = optimizer.update(gradient(weights, data[indices]), state, weights, mask=mask)
...     return (optax.apply_updates(weights, updates), state), None
>>> weights = jnp.zeros(3)
>>> (weights, state), _ = jax.lax.scan(train_step, (weights, optimizer.init(weights)), jax.random.split(jax.random.key(2), 50))
>>> print(f"{training.privacy_spent(state, delta=1e-5):.4f}")
1.2162

======================================== ==========================================================================
``private_aggregate``                    per-example gradients in, a noisy mean out; counts the steps
``private_sum``                          the same for sums clipped elsewhere: micro-batches, jax_privacy
``NoiseLevels``, ``NoiseRange``          steps whose noise is chosen on the way, not from the data
``guarded``                              asks a filter before each step; refused, nothing changes
``metered``                              an odometer reads each step: a bound at all steps at once
``privacy_spent``, ``mechanism_run``     what the state says: an epsilon, or the record for any other query
``clipped_sum``, ``accumulate``          clipping, in one piece or in micro-batches
``PoissonBatches``                       random batches of static shape, and their record
======================================== ==========================================================================

**What goes wrong elsewhere.** Noise is added once per step to the *sum* over the whole batch, not to a mean and not to
each micro-batch; the noisy sum is divided by the *expected* batch size; batches cut from a shuffled dataset are not Poisson
samples; ``optax.masked`` around a private transformation lets all other leaves pass without noise, and nothing counts that.
Where these can be seen they are refused: ``init`` sees masks (``allow_masked=True`` is for parameters that are frozen), ``update``
checks the shapes of gradients, and asks for the mask that a Poisson batch has.
"""

from dpjax.training.aggregate import PrivacyState, private_aggregate, private_sum
from dpjax.training.batches import Batch, PoissonBatches
from dpjax.training.clipping import accumulate, clipped_sum
from dpjax.training.guard import GuardedState, MeteredState, guarded, metered
from dpjax.training.noise_range import NoiseRange
from dpjax.training.spent import mechanism_run, privacy_spent
from dpjax.training.steps import NoiseLevels

__all__ = [
    "Batch",
    "GuardedState",
    "MeteredState",
    "NoiseLevels",
    "NoiseRange",
    "PoissonBatches",
    "PrivacyState",
    "accumulate",
    "clipped_sum",
    "guarded",
    "mechanism_run",
    "metered",
    "privacy_spent",
    "private_aggregate",
    "private_sum",
]
