"""Measures how fast dpjax answers: batches, gradients, long runs, schedules, and the first answer of a process.

    python benchmarks/throughput.py [batch] [gradient] [steps] [schedule] [start] [--configurations 4096]
    taskset -c 0 python benchmarks/throughput.py schedule        (one core)

Every time is that of a warm call, the best of a few; what compiling took is printed apart. Without names, all parts run.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from measuring import configurations, headline, machine, timed

import dpjax

ROOT = Path(__file__).parent.parent


def batch(n):
    """One concrete call: n epsilons at delta 1e-5, the larger of both directions, certified at rtol 1e-6."""
    run = dpjax.dpsgd(*configurations(n))
    first, warm, processor, found = timed(lambda: dpjax.epsilon_bounds(run, delta=1e-5, rtol=1e-6), repeats=2)
    print(f"batch: {n} configurations in one call: {warm:.3f} s = {n / warm:.0f} epsilons a second", end="")
    print(f" (first call {first:.1f} s); {n / processor:.0f} a second of processor time")
    print(f"  converged {np.mean(found.status == dpjax.Status.CONVERGED):.4f}; nodes of both directions: ", end="")
    print("median {:.0f}, 99% {:.0f}, largest {:.0f}".format(*np.percentile(found.nodes, [50, 99, 100])))


def gradient(n=64):
    """Value against value and gradient, jitted, float64, by all three parameters."""
    sigma, q, k = map(jnp.asarray, configurations(n))
    sigma = jnp.maximum(sigma, 1.0)  # a jitted batch waits for its slowest lane: dense settings

    def total(sigma, q, k):
        return jnp.sum(dpjax.epsilon(dpjax.dpsgd(sigma, q, k), delta=1e-5, rtol=1e-6))

    value, both = jax.jit(total), jax.jit(jax.value_and_grad(total, (0, 1, 2)))
    c0, t0, *_ = timed(lambda: value(sigma, q, k))
    c1, t1, *_ = timed(lambda: both(sigma, q, k))
    print(f"gradient: {n} configurations, jitted: value {t0:.4f} s (first call {c0:.1f} s), value and gradient", end="")
    print(f" {t1:.4f} s (first call {c1:.1f} s): {t1 / t0:.2f} times the value")


def steps():
    """One concrete query for ever more steps, the noise growing with them so that epsilon stays near 1."""
    print("steps: one query, q = 0.001, noise 10 sqrt(steps / 1e6) at least 0.8, delta 1e-5, rtol 1e-10")
    for exponent in range(2, 9):
        k = 10.0**exponent
        run = dpjax.dpsgd(max(0.8, 10 * np.sqrt(k / 1e6)), 1e-3, k)
        _, warm, _, found = timed(lambda run=run: dpjax.epsilon_bounds(run, delta=1e-5), repeats=9)
        print(
            f"  steps {k:9.0e}: {1e3 * warm:6.1f} ms, epsilon {float(found.upper):.6f}, {int(found.nodes)} nodes",
            end="",
        )
        print(f", {dpjax.Status(int(found.status)).name}")


def schedule(length=1000):
    """One query of a schedule of ``length`` noise multipliers, and its gradient by every one of them."""

    def epsilon(sigma):
        step = dpjax.PoissonSampled(0.01, dpjax.Gaussian(sigma))
        return dpjax.epsilon(dpjax.ComposedOver(step), delta=1e-5)

    sigma = np.linspace(0.8, 1.6, length)
    traced = jnp.asarray(sigma)
    print(f"schedule: {length} noise multipliers, rtol 1e-10")
    first, warm, _, answer = timed(lambda: epsilon(sigma))
    print(f"  concrete query        {warm:7.3f} s (first call {first:.1f} s), epsilon {answer:.9f}")
    value, both = jax.jit(epsilon), jax.jit(jax.value_and_grad(epsilon))
    first, one, *_ = timed(lambda: value(traced))
    print(f"  jitted query          {one:7.3f} s (first call {first:.1f} s)", flush=True)
    first, two, _, (_, slopes) = timed(lambda: both(traced))
    print(
        f"  jitted with gradient  {two:7.3f} s (first call {first:.1f} s): {two / one:.2f} times the jitted query,",
        end="",
    )
    print(f" {two / warm:.2f} times the concrete one; all {int(np.sum(np.isfinite(slopes)))} derivatives finite")


def start():
    """Seconds from starting ``python -m dpjax epsilon`` to its end, with an empty and with a filled compilation cache."""
    command = [sys.executable, "-m", "dpjax", "epsilon", "--noise-multiplier", "1.1", "--sampling-probability", "0.004"]
    command += ["--steps", "10000", "--delta", "1e-5"]
    with tempfile.TemporaryDirectory() as cache:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("JAX_COMPILATION")}
        environment["XDG_CACHE_HOME"] = cache
        times = []
        for _ in range(4):
            begin, before = time.perf_counter(), os.times()
            subprocess.run(command, env=environment, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
            after = os.times()
            processor = after.children_user + after.children_system - before.children_user - before.children_system
            times.append((time.perf_counter() - begin, processor))
    for label, (wall, processor) in (("empty", times[0]), ("filled", min(times[1:]))):
        print(
            f"start: first answer of a process, {label} compilation cache: {wall:.2f} s ({processor:.2f} s of processor)"
        )


PARTS = {"batch": batch, "gradient": gradient, "steps": steps, "schedule": schedule, "start": start}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="part", help=", ".join(PARTS))
    parser.add_argument("--configurations", type=int, default=4096)
    args = parser.parse_args()
    unknown = set(args.parts) - set(PARTS)
    if unknown:
        parser.error(f"unknown part {sorted(unknown)[0]!r}: choose from {', '.join(PARTS)}")
    jax.config.update("jax_enable_x64", True)
    print(headline(machine()))
    for name in args.parts or PARTS:
        PARTS[name](args.configurations) if name == "batch" else PARTS[name]()
        sys.stdout.flush()


if __name__ == "__main__":
    main()
