"""Does noise that follows the gradient beat constant noise at the same budget? An experiment, whatever it shows.

The noise may be chosen from what was released only under a filter, which is a little worse than the exact accountant of noise
that was fixed beforehand. Does the choice earn more than that price? Softmax regression on scikit-learn's digits,
(epsilon, 1e-5)-DP, every run with the same clipping, batches and learning rate, for several numbers of seeds:

* constant: the noise fixed beforehand, as many steps as the exact accountant allows;
* filtered: the same noise, as many steps as the filter allows: the price of the filter alone;
* scheduled: noise that falls on a schedule written down beforehand, under the exact accountant;
* adaptive: noise that falls by 1% whenever the noisy gradient is hardly longer than noise alone would be, under the filter.

Run with: python examples/adaptive_noise.py [seeds]    (needs scikit-learn)
"""

import functools
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
from train_digits import accuracy, load, per_example

import dpjax
from dpjax import training
from dpjax.adaptive import RenyiFilter

DELTA, CLIP, RATE, MOST = 1e-5, 1.0, 0.2, 300
# Noise that changes, in units of the constant noise: from where, by how much a step, to where
START, FALL, LOWEST = 1.3, 0.99, 0.7


def run(
    data: tuple, seed: jax.Array, steps: int, private, wrap=lambda optimizer: optimizer, first=0.0, lowest=0.0
) -> tuple:
    """One training run: test accuracy and state. With ``private`` None the noise follows the releases, from ``first`` on."""
    features, labels, test_features, test_labels = data
    noise_key, batch_key = jax.random.split(jax.random.key(seed))
    batches = training.PoissonBatches(len(labels), RATE)
    aggregate = training.private_aggregate(CLIP, private, noise_key, expected_batch_size=batches.expected_batch_size)
    # trace(0) keeps what the aggregate released, which is what the next noise may depend on
    optimizer = wrap(optax.chain(aggregate, optax.trace(0.0), optax.adam(0.05)))

    def update(carry, key):
        weights, state, noise = carry
        indices, mask = batches.sample(key)
        named = {} if private is not None else {"mechanism": dpjax.PoissonSampled(RATE, dpjax.Gaussian(noise))}
        gradients = per_example(weights, features[indices], labels[indices])
        updates, state = optimizer.update(gradients, state, weights, mask=mask, **named)
        if private is None:  # what was released decides
            length = optax.tree.norm(state.inner_state[1].trace) * batches.expected_batch_size
            noise = jnp.where(state.granted, follow(noise, length, lowest), noise)
        return (optax.apply_updates(weights, updates), state, noise), noise

    weights = {"matrix": jnp.zeros((64, 10)), "bias": jnp.zeros(10)}
    carry = weights, optimizer.init(weights), jnp.float32(first)
    (weights, state, _), noises = jax.lax.scan(update, carry, jax.random.split(batch_key, steps))
    return accuracy(weights, test_features, test_labels), state, noises


def follow(noise: jax.Array, length: jax.Array, lowest: float) -> jax.Array:
    """Less noise when the last release was hardly longer than noise alone would be."""
    alone = noise * CLIP * np.sqrt(650)
    return jnp.where(length < 1.1 * alone, jnp.maximum(FALL * noise, lowest), noise)


def longest(noises: np.ndarray, epsilon: float) -> np.ndarray:
    """As many of the noise multipliers as the exact accountant allows."""
    low, high = 0, len(noises) + 1  # low fits, high does not
    padded = lambda k: (np.arange(len(noises)) < k).astype(float)
    while high - low > 1:
        middle = (low + high) // 2
        steps = dpjax.SelfComposed(dpjax.PoissonSampled(RATE, dpjax.Gaussian(noises)), padded(middle))
        fits = dpjax.epsilon(dpjax.ComposedOver(steps), DELTA) <= epsilon
        low, high = (middle, high) if fits else (low, middle)
    return noises[:low]


def compare(data: tuple, epsilon: float, constant: float, seeds: int) -> dict:
    """Strategy -> (steps run in each seed, accuracies)."""
    numbers = jnp.arange(seeds)
    filt = RenyiFilter.for_dp(epsilon, DELTA, order=8.0 if epsilon > 1.5 else 20.0, slack=DELTA)
    guard = lambda optimizer: training.guarded(optimizer, filt)
    falling = constant * np.maximum(START * FALL ** np.arange(MOST), LOWEST)
    found = {}
    for name, noises in (("constant", np.full(MOST, constant)), ("scheduled", falling)):
        schedule = longest(noises, epsilon)
        private = dpjax.ComposedOver(dpjax.PoissonSampled(RATE, dpjax.Gaussian(schedule)))
        one = functools.partial(run, data, steps=len(schedule), private=private)
        scores, _, _ = jax.jit(jax.vmap(lambda seed, one=one: one(seed=seed)))(numbers)
        found[name] = np.full(seeds, len(schedule)), np.asarray(scores)
    changing = {"first": START * constant, "lowest": LOWEST * constant}
    same = dpjax.PoissonSampled(RATE, dpjax.Gaussian(constant))
    for name, private, options in (("filtered", same, {}), ("adaptive", None, changing)):
        one = functools.partial(run, data, steps=MOST, private=private, wrap=guard, **options)
        scores, states, _ = jax.jit(jax.vmap(lambda seed, one=one: one(seed=seed)))(numbers)
        found[name] = np.asarray(states.filter_state.granted), np.asarray(scores)
    return found


def main() -> None:
    """Prints the table."""
    seeds = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    data = load()
    print(f"{'epsilon':>7}  {'strategy':<10} {'steps':>9} {'accuracy':>9} {'std. error':>11}   ({seeds} seeds)")
    for epsilon, constant in ((1.0, 6.0), (3.0, 3.0)):
        for name, (steps, scores) in compare(data, epsilon, constant, seeds).items():
            spread = f"{steps.min()}-{steps.max()}" if steps.min() < steps.max() else f"{steps[0]}"
            error = scores.std(ddof=1) / np.sqrt(seeds)
            print(f"{epsilon:7g}  {name:<10} {spread:>9} {scores.mean():9.4f} {error:11.4f}")


if __name__ == "__main__":
    main()
