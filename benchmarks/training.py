"""Prints what accounting inside the loop adds to a jitted training step, side by side in one run.

    taskset -c 0 python benchmarks/training.py [--rounds 25]

A network 784-256-10 with 203,530 parameters, a batch of 256, per-example gradients, SGD with momentum. The variants take turns
in random order, so that a busy machine is busy for all of them; the median and the least over the rounds are shown, and how much more the least is than without
accounting; compilation apart.
"""

import argparse
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax

import dpjax
from dpjax import training
from dpjax.adaptive import RenyiFilter

BATCH, DELTA, NOISE, RATE = 256, 1e-5, 1.1, 256 / 60_000
STEP = dpjax.PoissonSampled(RATE, dpjax.Gaussian(NOISE))


def network(weights, image, label):
    hidden = jax.nn.relu(image @ weights["first"] + weights["first bias"])
    logits = hidden @ weights["second"] + weights["second bias"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, label)


per_example = jax.vmap(jax.grad(network), in_axes=(None, 0, 0))


def variants():
    """Name -> (optimizer, keywords of update, what to report)."""
    momentum = lambda: optax.sgd(0.1, momentum=0.9)
    plain = optax.contrib.differentially_private_aggregate(1.0, NOISE, jax.random.key(0))
    private = training.private_aggregate(1.0, STEP, 0, expected_batch_size=BATCH)
    summed = training.private_sum(1.0, STEP, 0, expected_batch_size=BATCH)
    masked = {"mask": jnp.ones(BATCH, bool)}
    on_the_way = training.NoiseRange(1.0, 2.0, steps=10_000, sampling_probability=RATE, delta=DELTA)
    on_the_way = training.private_aggregate(1.0, on_the_way, 0, expected_batch_size=BATCH)
    asked = {**masked, "noise_multiplier": jnp.float32(NOISE)}
    nothing = lambda state: jnp.zeros(())
    filt = RenyiFilter.for_dp(3.0, DELTA, order=8.0, slack=DELTA)
    return {
        "optax's aggregate, no accounting": (optax.chain(plain, momentum()), {}, nothing),
        "private_aggregate, no accounting": (optax.chain(uncounted(private), momentum()), masked, nothing),
        "private_aggregate": (optax.chain(private, momentum()), masked, nothing),
        "private_aggregate, epsilon in every step": (
            optax.chain(private, momentum()),
            masked,
            lambda state: training.privacy_spent(state, DELTA),
        ),
        "noise on the way, NoiseRange": (optax.chain(on_the_way, momentum()), asked, nothing),
        "guarded, clipped inside": (training.guarded(optax.chain(private, momentum()), filt), masked, nothing),
        "guarded, clipped before": (training.guarded(optax.chain(summed, momentum()), filt), {}, nothing),
    }


def uncounted(private):
    """The same clipping and noise, with a state that holds nothing but the key."""

    def init(params):
        return private.init(params).rng_key

    def update(updates, key, params=None, **extra):
        updates, state = private.update(updates, private.init(params)._replace(rng_key=key), params, **extra)
        return updates, state.rng_key

    return optax.GradientTransformationExtraArgs(init, update)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=25)
    rounds = parser.parse_args().rounds

    rng = np.random.default_rng(0)
    shapes = {"first": (784, 256), "first bias": (256,), "second": (256, 10), "second bias": (10,)}
    weights = {name: jnp.asarray(rng.normal(size=shape) * 0.05, jnp.float32) for name, shape in shapes.items()}
    images = jnp.asarray(rng.uniform(size=(BATCH, 784)), jnp.float32)
    labels = jnp.asarray(rng.integers(0, 10, BATCH))
    size = sum(x.size for x in weights.values())
    print(f"network 784-256-10, {size:,} parameters, batch {BATCH}, {jax.default_backend()}, jax {jax.__version__}")

    steps, carries, compiling = {}, {}, {}
    for name, (optimizer, extra, report) in variants().items():

        def step(weights, state, name=name, optimizer=optimizer, extra=extra, report=report):
            gradients = per_example(weights, images, labels)
            if "before" in name:
                gradients = training.clipped_sum(gradients, 1.0, jnp.ones(BATCH, bool))
            updates, state = optimizer.update(gradients, state, weights, **extra)
            return optax.apply_updates(weights, updates), state, report(state)

        carries[name] = weights, optimizer.init(weights)
        began = time.perf_counter()
        steps[name] = jax.jit(step).lower(*carries[name]).compile()
        compiling[name] = time.perf_counter() - began
        jax.block_until_ready(steps[name](*carries[name]))

    times = {name: [] for name in steps}
    for _ in range(rounds):
        for name in rng.permutation(list(steps)):  # what runs after a variant that frees much memory is slower
            step = steps[name]
            began = time.perf_counter()
            *carry, _ = jax.block_until_ready(step(*carries[name]))
            times[name].append(time.perf_counter() - began)
            carries[name] = tuple(carry)

    base = "private_aggregate, no accounting"
    print(f"{'':42} {'compile':>9} {'step':>9} {'least':>9} {'more than without':>18}")
    for name, taken in times.items():
        more = min(taken) / min(times[base]) - 1
        print(
            f"{name:42} {compiling[name]:7.1f} s {1e3 * np.median(taken):6.1f} ms {1e3 * min(taken):6.1f} ms {more:18.1%}"
        )


if __name__ == "__main__":
    main()
