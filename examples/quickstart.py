"""The privacy of a DP-SGD run: a certified epsilon, its gradient, and a picture of the choices around it.

Run with: python3 dev.py quickstart
"""

import math
from pathlib import Path

import jax
import numpy as np

import dpjax
from dpjax import plotting

DATASET_SIZE, BATCH_SIZE, EPOCHS = 60_000, 256, 60  # the size of MNIST
NOISE_MULTIPLIER, DELTA = 1.1, 1e-5
PICTURE = Path("epsilon_sweep.png")

sampling_probability = BATCH_SIZE / DATASET_SIZE
steps_per_epoch = DATASET_SIZE / BATCH_SIZE
steps = math.ceil(EPOCHS * steps_per_epoch)

print(f"DP-SGD: {DATASET_SIZE} records, batches of {BATCH_SIZE}, {EPOCHS} epochs, noise multiplier {NOISE_MULTIPLIER}")
print(f"  sampling probability {sampling_probability:.6f}, {steps} steps, delta {DELTA:g}")

# The answer, with its certificate.
run = dpjax.dpsgd(NOISE_MULTIPLIER, sampling_probability, steps)
bounds = dpjax.epsilon_bounds(run, delta=DELTA)
lower, upper = math.floor(bounds.lower * 1e8) / 1e8, math.ceil(bounds.upper * 1e8) / 1e8
print(f"\nepsilon {upper:.8f}")
print(f"  certified: the exact value is at least {lower:.8f} and at most {upper:.8f}")

# What would change it, and by how much.
gradient = jax.grad(lambda *setting: dpjax.epsilon(dpjax.dpsgd(*setting), delta=DELTA), argnums=(0, 1, 2))(
    NOISE_MULTIPLIER, sampling_probability, float(steps)
)
by_noise, by_probability, by_steps = (float(g) for g in gradient)
print("\ngradient of epsilon")
print(f"  by noise multiplier     {by_noise:+.4f}     0.01 more noise: {0.01 * by_noise:+.4f}")
print(
    f"  by sampling probability {by_probability:+.2f}     1 more record a batch: {by_probability / DATASET_SIZE:+.4f}"
)
print(f"  by steps                {by_steps:+.3e}  1 more epoch: {by_steps * steps_per_epoch:+.4f}")

# The choices around it: one call, every noise multiplier with every number of epochs.
noise_multipliers = np.linspace(0.7, 3.0, 70)
epochs = np.array([15, 30, 60, 120])
epsilons = dpjax.epsilon(
    dpjax.dpsgd(noise_multipliers[:, None], sampling_probability, np.ceil(epochs * steps_per_epoch)), delta=DELTA
)
plotting.epsilon_sweep(
    noise_multipliers,
    {f"{n} epochs": epsilons[:, i] for i, n in enumerate(epochs)},
    x_label="noise multiplier",
    y_label=f"epsilon at delta = {DELTA:g}",
    title=f"DP-SGD on {DATASET_SIZE} records, batches of {BATCH_SIZE}",
    mark=(NOISE_MULTIPLIER, float(bounds.upper)),
).figure.savefig(PICTURE)  # pyright: ignore[reportAttributeAccessIssue]
print(f"\nwrote {PICTURE}: epsilon of {epsilons.size} settings")
