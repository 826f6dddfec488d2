"""Measures sweeps: configurations a second by batch size, by steps, with gradients, and a grid of a million.

    python benchmarks/sweeps.py [product] [random] [call] [steps] [gradients] [million]
        [--cores 1,2] [--sizes 64,512,4096,32768] [--json FILE]

Configurations are DP-SGD runs, both directions, certified at rtol 1e-6. Each part runs in a process of its own for each
number of cores, so that its peak memory is its own. "first" is the first call of a size in the process, which compiles or reads
the compilation cache; the other times are of the best later call. On a busy machine look at the processor time, which
counts what the threads of this process had. "width" is that of epsilon's interval, relative to epsilon.

product    sweeps of product grids against their size: four columns as equally long as can be, deltas varying fastest.
random     sweeps of random configurations against their number.
call       both by one call of `epsilon_bounds` instead of `sweep`.
steps      512 configurations for ever more steps, the noise growing with them so that epsilons stay comparable.
gradients  512 configurations with derivatives, against the same without.
million    one sweep of a product grid of 40 noise multipliers, 25 sampling probabilities, 50 steps and 20 deltas.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
from measuring import configurations, headline, log_uniform, machine, markdown, once, peak_memory, timed, write_json

import dpjax

RTOL = 1e-6


def product_grid(n):
    """A product grid of n configurations, a power of two: noise 0.6 to 6, q 1e-3 to 0.1, steps 1e2 to 1e5, delta 1e-9 to 1e-4."""
    exponents = [(n.bit_length() - 1 + i) // 4 for i in range(4)]
    noise, q, steps, delta = (2**e for e in exponents)
    return grid_of(noise, q, steps, delta)


def grid_of(noise, q, steps, delta):
    """The grid with these numbers of values."""
    return {
        "noise_multiplier": np.linspace(0.6, 6, noise),
        "sampling_probability": np.geomspace(1e-3, 0.1, q),
        "steps": np.round(np.geomspace(100, 1e5, steps)),
        "delta": np.geomspace(1e-9, 1e-4, delta),
    }


def random_columns(n, seed=1):
    """Columns of n random configurations."""
    columns = dict(zip(("noise_multiplier", "sampling_probability", "steps"), configurations(n, seed), strict=True))
    return columns | {"delta": log_uniform(np.random.default_rng(seed + 1), 1e-9, 1e-4, n)}


def swept(columns, mode, **options):
    return dpjax.sweep(dpjax.dpsgd, columns, mode=mode, rtol=RTOL, progress=False, **options)


def asked(columns, mode):
    """The same in one call of ``epsilon_bounds``."""
    if mode == "product":
        columns = dict(zip(columns, np.meshgrid(*columns.values(), indexing="ij"), strict=True))
    columns = {name: np.ravel(column) for name, column in columns.items()}
    delta = columns.pop("delta")
    return dpjax.epsilon_bounds(dpjax.dpsgd(**columns), delta=delta, rtol=RTOL)


def speed(n, timing):
    """Times and rates of n configurations."""
    return {
        "configurations": n,
        "first s": timing.first,
        "s": timing.wall,
        "processor s": timing.processor,
        "a second": n / timing.wall,
        "a processor second": n / timing.processor,
    }


def quality(lower, upper, status):
    """How well they are answered: the share that converged, and the relative width of epsilon's interval."""
    width = (upper - lower) / upper
    return {"converged": float(np.mean(status == "converged"))} | {
        f"width {name}": float(np.percentile(width, p)) for name, p in (("median", 50), ("99%", 99), ("largest", 100))
    }


def of_table(table):
    return quality(table["epsilon_lower"], table["epsilon"], table["epsilon_status"])


def memory():
    return {"peak GB": peak_memory()}


def repeats(n):
    return 3 if n <= 4096 else 1


# Each part yields rows with the same keys.


def product(sizes):
    for n in sizes:
        grid = product_grid(n)
        found = timed(lambda grid=grid: swept(grid, "product"), repeats(n))
        yield speed(n, found) | memory() | of_table(found.answer)


def random(sizes):
    for n in sizes:
        columns = random_columns(n)
        found = timed(lambda columns=columns: swept(columns, "zip"), repeats(n))
        yield speed(n, found) | memory() | of_table(found.answer)


def call(sizes):
    for kind, mode, columns_of in (("product", "product", product_grid), ("random", "zip", random_columns)):
        for n in sizes:
            columns = columns_of(n)
            found = timed(lambda columns=columns, mode=mode: asked(columns, mode), repeats(n))
            yield {"batch": kind} | speed(n, found) | memory()


def steps(sizes):
    noise, q, delta = np.geomspace(1, 4, 16), np.geomspace(0.01, 0.1, 4), 10.0 ** -np.arange(3, 11)
    for exponent in range(2, 9):
        k = 10.0**exponent
        scaled = noise * max(1.0, np.sqrt(k / 1e4))
        grid = {"noise_multiplier": scaled, "sampling_probability": q, "steps": k, "delta": delta}
        found = timed(lambda grid=grid: swept(grid, "product"))
        nodes, epsilon = asked(grid, "product").nodes, found.answer["epsilon"]
        yield (
            {"steps": k}
            | speed(len(epsilon), found)
            | {"epsilon": f"{epsilon.min():.3g} to {epsilon.max():.3g}"}
            | {"nodes median": float(np.median(nodes)), "nodes largest": int(nodes.max())}
            | {"converged": of_table(found.answer)["converged"]}
        )


def gradients(sizes, n=512):
    parameters = "noise_multiplier", "sampling_probability", "steps"
    for kind, mode, columns in (("product", "product", product_grid(n)), ("random", "zip", random_columns(n))):
        without = None
        for names in ((), parameters[:1], parameters):
            found = timed(lambda columns=columns, mode=mode, names=names: swept(columns, mode, gradients=names))
            without = without or found
            slopes = [found.answer[f"d_epsilon_d_{name}"] for name in names]
            yield (
                {"batch": kind, "columns": ", ".join(names) or "none"}
                | speed(n, found)
                | {"times without": found.wall / without.wall}
                | {"processor, times without": found.processor / without.processor}
                | {"finite": float(np.mean(np.isfinite(slopes))) if slopes else 1.0}
            )


def million(sizes):
    shape = 40, 25, 50, 20
    small, grid = grid_of(2, *shape[1:]), grid_of(*shape)
    compiling = once(lambda: swept(small, "product"))
    found = once(lambda: swept(grid, "product"))
    table = found.answer
    width = (table["epsilon"] - table["epsilon_lower"]) / table["epsilon"]
    names, counts = np.unique(table["epsilon_status"], return_counts=True)
    yield (
        {"first 50,000 s": compiling.wall}
        | {name: value for name, value in speed(table.rows, found).items() if name != "first s"}
        | memory()
        | {"statuses": ", ".join(f"{count:,} {name}" for name, count in zip(names, counts, strict=True))}
        | {f"width {p:g}%": float(np.percentile(width, p)) for p in (50, 90, 99, 99.9, 100)}
        | {"failed": int(np.sum(table["error"] != ""))}
    )


PARTS = {"product": product, "random": random, "call": call, "steps": steps, "gradients": gradients, "million": million}


def worker(part, sizes):
    """Prints the machine, then each row, as a line of JSON."""
    jax.config.update("jax_enable_x64", True)
    print(json.dumps(machine()), flush=True)
    for row in PARTS[part](sizes):
        print(json.dumps(row), flush=True)


def in_process(part, cores, sizes):
    """(machine, rows) of a part in a process of its own that may use so many cores."""
    command = [sys.executable, str(Path(__file__)), part, "--worker", "--sizes", ",".join(map(str, sizes))]
    command += ["--cores", str(cores)] if cores else []
    lines = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            lines.append(json.loads(line))
            print(".", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    if process.returncode:
        raise SystemExit(f"{part}, cores {cores or 'all'}: the process ended with status {process.returncode}")
    return lines[0], lines[1:]


def pin(cores):
    """Starts this program again on so many of its cores, unless it is on no more: XLA sizes its threads when it is loaded."""
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) > cores:
        os.sched_setaffinity(0, allowed[:cores])
        os.execv(sys.executable, [sys.executable, *sys.argv])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="part", help=", ".join(PARTS))
    numbers = lambda text: [int(x) for x in text.split(",")]
    parser.add_argument("--sizes", type=numbers, default=[64, 512, 4096, 32768], help="of batches, powers of two")
    parser.add_argument("--cores", type=numbers, help="numbers of cores, each in a process of its own (Linux)")
    parser.add_argument("--json", metavar="FILE", help="also write what was measured")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    unknown = set(args.parts) - set(PARTS)
    if unknown:
        parser.error(f"unknown part {sorted(unknown)[0]!r}: choose from {', '.join(PARTS)}")
    if any(n < 16 or n & (n - 1) for n in args.sizes):
        parser.error("--sizes must be powers of two, at least 16")
    if args.worker:
        if args.cores:
            pin(args.cores[0])
        return worker(args.parts[0], args.sizes)
    results = {}
    for part in args.parts or PARTS:
        for cores in args.cores or [None]:
            about, rows = in_process(part, cores, args.sizes)
            print(f"\n{part}: {headline(about)}\n\n{markdown(rows)}", flush=True)
            results.setdefault(part, []).append({"machine": about, "rows": rows})
            write_json(args.json, about, results)


if __name__ == "__main__":
    main()
