"""A whole schedule of noise and batch sizes, tuned by gradient descent at a fixed privacy budget.

Run with: python examples/tune_schedule.py

The model: noisy gradient descent on a strongly convex loss forgets. What a step adds to the error is multiplied by DECAY at
each later step, so that noise is cheapest at the beginning. A step adds the variance of the privacy noise and that of
the random batch; both shrink with the batch. Tuned are the noise multiplier and the sampling probability of every step, with
the privacy budget and the expected number of gradients evaluated (the compute) as they are for a constant schedule.
"""

import argparse
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import dpjax

EPSILON, DELTA = 1.0, 1e-5
RECORDS, DIMENSIONS = 10_000, 100
SAMPLING_PROBABILITY = 0.02  # on average
DECAY = 0.7  # of the error, by each later step


class Shape(NamedTuple):
    """A schedule up to its scale: logarithms, one for each step."""

    noise: jax.Array
    batch: jax.Array


def mechanism(noise_multipliers, sampling_probabilities):
    """The privacy of a schedule."""
    return dpjax.ComposedOver(dpjax.PoissonSampled(sampling_probabilities, dpjax.Gaussian(noise_multipliers)))


def error(noise_multipliers, sampling_probabilities):
    """The expected error at the end: what the steps added, decayed."""
    batches = sampling_probabilities * RECORDS
    added = DIMENSIONS * (noise_multipliers / batches) ** 2 + 1 / batches
    age = np.arange(added.shape[-1])[::-1]
    return jnp.sum(added * DECAY**age)


def schedule(shape: Shape):
    """(noise multipliers, sampling probabilities) of ``shape`` that spend the budget, neither less nor more.

    The projection onto the budget is part of the function, so its gradient is that along the budget.
    """
    steps = shape.batch.shape[0]
    sampling_probabilities = jnp.minimum(steps * SAMPLING_PROBABILITY * jax.nn.softmax(shape.batch), 1.0)
    relative = jnp.exp(shape.noise)
    scale = dpjax.calibrate(
        lambda scale: mechanism(scale * relative, sampling_probabilities), epsilon=EPSILON, delta=DELTA
    )
    return scale * relative, sampling_probabilities


OPTIMIZER = optax.adam(0.1)


@jax.jit
def update(shape: Shape, state, tuned: Shape):
    """One step of Adam on what is ``tuned``: (shape, state, the error before)."""
    value, gradient = jax.value_and_grad(lambda shape: error(*schedule(shape)))(shape)
    change, state = OPTIMIZER.update(jax.tree.map(jnp.multiply, gradient, tuned), state)
    return optax.apply_updates(shape, change), state, value


def tune(steps: int, updates: int, *, batches: bool = True):
    """Starts from the best constant schedule; returns (the tuned one, the error before each update)."""
    constant = dpjax.calibrate(lambda s: dpjax.dpsgd(s, SAMPLING_PROBABILITY, steps), epsilon=EPSILON, delta=DELTA)
    shape = Shape(noise=jnp.full(steps, np.log(constant)), batch=jnp.zeros(steps))
    tuned = Shape(noise=jnp.ones(steps), batch=jnp.full(steps, float(batches)))
    state = OPTIMIZER.init(shape)
    errors = []
    for _ in range(updates):
        shape, state, value = update(shape, state, tuned)
        errors.append(float(value))
    return schedule(jax.tree.map(np.asarray, shape)), errors


def main():
    """Compares constant, tuned noise, and tuned noise and batches."""
    parser = argparse.ArgumentParser(description="Tunes a schedule of noise and batch sizes.")
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--updates", type=int, default=30)
    arguments = parser.parse_args()
    jax.config.update("jax_enable_x64", True)  # so that the budget is met to the last digits
    steps = arguments.steps
    q = np.full(steps, SAMPLING_PROBABILITY)
    constant = dpjax.calibrate(lambda s: dpjax.dpsgd(s, SAMPLING_PROBABILITY, steps), epsilon=EPSILON, delta=DELTA)
    rows: dict[str, tuple] = {"constant": (np.full(steps, constant), q)}
    rows["tuned noise"], _ = tune(steps, arguments.updates, batches=False)
    rows["tuned noise and batches"], _ = tune(steps, arguments.updates)
    base = float(error(*rows["constant"]))
    print(f"{steps} steps, epsilon {EPSILON}, delta {DELTA:g}, {RECORDS} records, mean batch {RECORDS * q[0]:g}")
    for name, (noise, probabilities) in rows.items():
        noise, probabilities = np.asarray(noise), np.asarray(probabilities)
        spent = dpjax.epsilon(mechanism(noise, probabilities), delta=DELTA)
        found = float(error(noise, probabilities))
        print(f"\n{name}: error {found:.5f}, {1 - found / base:.1%} below constant; epsilon {spent:.9f}")
        print(f"  noise multiplier  first {noise[0]:.3f}  middle {noise[steps // 2]:.3f}  last {noise[-1]:.3f}")
        batch = probabilities * RECORDS
        print(f"  expected batch    first {batch[0]:.0f}  middle {batch[steps // 2]:.0f}  last {batch[-1]:.0f}")


if __name__ == "__main__":
    main()
