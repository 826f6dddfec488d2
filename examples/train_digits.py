"""DP-SGD on scikit-learn's handwritten digits, accounted for in three ways, with nothing but JAX, optax and dpjax.

1. The noise and the number of steps are fixed beforehand, so the exact accountant applies: (3, 1e-5)-DP.
2. The same loop stopped by a filter: nothing about its length is fixed, the filter refuses what would exceed (3, 1e-5)-DP,
   and from then on nothing changes any more.
3. The same with an odometer, which bounds the privacy loss at every step at once, so that one may stop at any moment for
   any reason. It counts the Gaussian mechanism without sampling, so every step sees the whole dataset.

Run with: python examples/train_digits.py    (needs scikit-learn)
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits

import dpjax
from dpjax import training
from dpjax.adaptive import MixtureOdometer, RenyiFilter

EPSILON, DELTA, CLIP = 3.0, 1e-5, 1.0
NOISE, RATE, STEPS = 3.0, 0.2, 100
FULL_NOISE, FULL_STEPS = 12.0, 60


def load() -> tuple:
    """Features in [-0.5, 0.5] and labels: 1437 records to train on, 360 to test with."""
    features, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    features, labels = (features[order] / 16 - 0.5).astype(np.float32), labels[order].astype(np.int32)
    return tuple(map(jnp.asarray, (features[:1437], labels[:1437], features[1437:], labels[1437:])))


def loss(weights: dict, features: jax.Array, label: jax.Array) -> jax.Array:
    """Of one record, under softmax regression."""
    logits = features @ weights["matrix"] + weights["bias"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, label)


per_example = jax.vmap(jax.grad(loss), in_axes=(None, 0, 0))


def accuracy(weights: Any, features: jax.Array, labels: jax.Array) -> jax.Array:
    """Share of labels that are right."""
    return jnp.mean(jnp.argmax(features @ weights["matrix"] + weights["bias"], axis=1) == labels)


def train(
    data: tuple, seed: jax.Array, noise: float, rate: float, steps: int, wrap=lambda optimizer: optimizer
) -> tuple:
    """Trains for some steps.

    Returns:
      The test accuracy, the optimizer's state, and its state after every step without what the optimizer wraps.
    """
    features, labels, test_features, test_labels = data
    noise_key, batch_key = jax.random.split(jax.random.key(seed))
    batches = training.PoissonBatches(len(labels), rate)
    step = batches.step(dpjax.Gaussian(noise)) if rate < 1 else dpjax.Gaussian(noise)
    private = training.private_aggregate(CLIP, step, noise_key, expected_batch_size=batches.expected_batch_size)
    optimizer = wrap(optax.chain(private, optax.adam(0.05)))

    def update(carry, key):
        weights, state = carry
        indices, mask = batches.sample(key)
        gradients = per_example(weights, features[indices], labels[indices])
        updates, state = optimizer.update(gradients, state, weights, mask=mask)
        seen = state._replace(inner_state=None) if hasattr(state, "inner_state") else None
        return (optax.apply_updates(weights, updates), state), seen

    weights = {"matrix": jnp.zeros((64, 10)), "bias": jnp.zeros(10)}
    (weights, state), seen = jax.lax.scan(
        update, (weights, optimizer.init(weights)), jax.random.split(batch_key, steps)
    )
    return accuracy(weights, test_features, test_labels), state, seen


def fixed(data: tuple, seeds: jax.Array) -> tuple:
    """Noise and steps fixed beforehand; one run for each seed, side by side."""
    return jax.jit(jax.vmap(lambda seed: train(data, seed, NOISE, RATE, STEPS)[:2]))(seeds)


def filtered(data: tuple, seeds: jax.Array) -> tuple:
    """Stopped by a filter."""
    filt = RenyiFilter.for_dp(EPSILON, DELTA, order=8.0, slack=DELTA)
    wrap = lambda optimizer: training.guarded(optimizer, filt)
    return jax.jit(jax.vmap(lambda seed: train(data, seed, NOISE, RATE, STEPS, wrap)[:2]))(seeds)


def metered(data: tuple, seed: int, odometer: MixtureOdometer) -> tuple:
    """Read by an odometer; returns the accuracy and the bound after every step."""
    wrap = lambda optimizer: training.metered(optimizer, odometer)
    score, _, seen = jax.jit(lambda seed: train(data, seed, FULL_NOISE, 1.0, FULL_STEPS, wrap))(seed)
    return score, odometer.bound(seen.odometer_state)


def main() -> None:
    """Prints what the three runs cost and reach."""
    data, seeds = load(), jnp.arange(3)
    print(f"softmax regression, 650 parameters, {len(data[1])} records; delta {DELTA:g}, mean of {len(seeds)} seeds")

    scores, states = fixed(data, seeds)
    spent = training.privacy_spent(states, DELTA)
    print(f"\nfixed     {STEPS} steps, epsilon {spent[0]:.4f}, accuracy {scores.mean():.3f}")

    scores, states = filtered(data, seeds)
    steps = states.filter_state.granted
    print(f"filter    {steps[0]} of {STEPS} steps granted, epsilon {EPSILON:g}, accuracy {scores.mean():.3f}")

    time = FULL_STEPS / FULL_NOISE**2  # where the odometer is to be tight: the sum of squared epsilons at the end
    odometer = MixtureOdometer.tightest_at(time, delta=DELTA, slack=DELTA)
    score, bounds = metered(data, 0, odometer)
    print(f"odometer  {FULL_STEPS} steps on all records, bound {bounds[-1]:.4f}, accuracy {score:.3f}")
    print("          after step  " + "  ".join(f"{k}: {bounds[k - 1]:.2f}" for k in (1, 10, 20, 40, FULL_STEPS)))


if __name__ == "__main__":
    main()
