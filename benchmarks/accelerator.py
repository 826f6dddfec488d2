"""Measures traced queries on an accelerator: configurations a second, and what share of the device's limits that is.

    python benchmarks/accelerator.py [--quick] [--sizes 4096,65536,256,1024,16384] [--seconds 280] [--out PREFIX]

One program of jax.jit(epsilon_bounds) for each batch size and precision, on jax.devices()[0]: DP-SGD, both directions, delta
1e-5, noise of at least 1 (lanes of a traced batch wait for the slowest). Programs are compiled side by side, in the order of
--sizes; what does not fit into --seconds is left out, and said. --quick is for trying the program out: small batches.

"below" counts upper ends below the lower ends that the CPU certifies (a process of its own; it must be 0), "excess" is the
distance of the upper end from the CPU's, relative to it. Operations are counted by a run with counters on the CPU (a sample of
the batch), bytes are XLA's estimate, whose loops count once, scaled by what that estimate lacks in operations; a
transcendental function counts as 20 operations. Shares are of the peaks that the makers state for vector units. --out writes
PREFIX.md and PREFIX.json.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import jax
import numpy as np
from measuring import configurations, headline, machine, markdown, once, timed, write_json
from operations import executed

import dpjax

DELTA, RTOL = float(np.float32(1e-5)), 1e-6
MOST = 1 << 18
SAMPLE = 1024  # configurations that are checked and counted
TRANSCENDENTAL = 20  # operations, about what a polynomial with its reduction takes
PEAKS = {  # TFLOP/s in float64 and float32 without tensor cores, TB/s; by part of the device's name
    "H200": (34, 67, 4.8),
    "H100 PCIe": (26, 51, 2.0),
    "H100": (34, 67, 3.35),
    "A100-SXM4-40GB": (9.7, 19.5, 1.555),
    "A100": (9.7, 19.5, 2.0),
    "V100": (7.8, 15.7, 0.9),
    "L40S": (1.43, 91.6, 0.864),
    "L4": (0.47, 30.3, 0.3),
    "T4": (0.25, 8.1, 0.32),
}


def columns(n):
    """Noise multipliers, sampling probabilities and steps, (n,), that float32 has; the same ones first for every n."""
    sigma, q, k = (x[:n].astype(np.float32).astype(np.float64) for x in configurations(MOST))
    return np.maximum(sigma, 1.0), q, k


def question(precision):
    """The query in a precision, or None if dpjax has it in float64 alone."""
    options = {} if precision == "float64" else {"precision": precision}
    try:
        dpjax.epsilon(dpjax.Gaussian(1.0), delta=1e-5, **options)
    except (TypeError, ValueError, NotImplementedError):
        return None

    def ask(sigma, q, k):
        return dpjax.epsilon_bounds(dpjax.dpsgd(sigma, q, k), delta=DELTA, rtol=RTOL, **options)

    return ask


class Program:
    """The query for one batch size in one precision, compiled in a thread of its own."""

    def __init__(self, precision: str, n: int):
        self.precision, self.n, self.compiled, self.seconds, self.error = precision, n, None, None, None
        with jax.enable_x64(precision == "float64"):
            self.arguments = [jax.numpy.asarray(x, precision) for x in columns(n)]
            self.lowered = jax.jit(question(precision)).lower(*self.arguments)
        self.thread = threading.Thread(target=self.compile, daemon=True)  # the program may end before it does
        self.thread.start()

    def compile(self):
        """Fills ``compiled`` and ``seconds`` in, or ``error``."""
        begin = time.perf_counter()
        try:
            self.compiled = self.lowered.compile()
        except Exception as error:  # a device may refuse a program, and the others go on
            self.error = f"{type(error).__name__}: {error}"[:200]
        self.seconds = time.perf_counter() - begin

    def run(self):
        """The answer of the whole batch."""
        return self.compiled(*self.arguments)

    def cost(self):
        """XLA's (operations, bytes), loops counted once; NaN where the platform does not say."""
        found = self.compiled.cost_analysis() or {}
        found = found[0] if isinstance(found, list) else found
        return found.get("flops", np.nan), found.get("bytes accessed", np.nan)


def reference(n, path):
    """Writes what the CPU certifies for the first n configurations, then how much each precision executes for one of them."""

    def write():
        temporary = Path(path + ".new")
        temporary.write_text(json.dumps(known))
        temporary.replace(path)  # may be read at any time

    bounds = dpjax.epsilon_bounds(dpjax.dpsgd(*columns(n)), delta=DELTA, rtol=RTOL)
    known = {"lower": bounds.lower.tolist(), "upper": bounds.upper.tolist(), "executed": {}}
    write()
    for precision in ("float64", "float32"):
        ask = question(precision)
        if ask is not None:
            with jax.enable_x64(precision == "float64"):
                arguments = [jax.numpy.asarray(x, precision) for x in columns(n)]
                known["executed"][precision] = [x / n for x in executed(ask, *arguments)]
            write()


def checked(process, file, seconds):
    """What ``reference`` has written by then."""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    return json.loads(file.read_text()) if file.exists() else {"lower": [], "upper": [], "executed": {}}


def row(program, timing, known):
    """What was measured for one program."""
    n, answer = program.n, timing.answer
    some = slice(min(n, len(known["lower"])))
    upper, status = np.asarray(answer.upper, np.float64)[some], np.asarray(answer.status)
    excess = upper / np.asarray(known["upper"])[some] - 1
    plain, transcendental = known["executed"].get(program.precision, (np.nan, np.nan))
    flops, moved = program.cost()
    rate = n * (plain + TRANSCENDENTAL * transcendental) / timing.wall
    through = n * plain / flops * moved / timing.wall if flops else np.nan
    name = jax.devices()[0].device_kind
    peak = next((peaks for part, peaks in PEAKS.items() if part in name), None)
    share = lambda x, i, unit: f"{x / (peak[i] * unit):.2%}" if peak else "unknown"
    return {
        "precision": program.precision,
        "configurations": n,
        "compile s": program.seconds,
        "s": timing.wall,
        "a second": n / timing.wall,
        "Gop/s": rate / 1e9,
        "of peak": share(rate, 0 if program.precision == "float64" else 1, 1e12),
        "GB/s": through / 1e9,
        "of bandwidth": share(through, 2, 1e12),
        "below": int(np.sum(~(upper >= np.asarray(known["lower"])[some]))),
        "converged": float(np.mean(status == dpjax.Status.CONVERGED)),
        "excess median": float(np.median(excess)) if excess.size else np.nan,
        "excess largest": float(np.max(excess)) if excess.size else np.nan,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--sizes", type=lambda text: [int(x) for x in text.split(",")])
    parser.add_argument("--seconds", type=float, default=280, help="for everything; what does not fit is left out")
    parser.add_argument("--out", metavar="PREFIX")
    parser.add_argument("--reference", nargs=2, metavar=("N", "FILE"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.reference:
        return reference(int(args.reference[0]), args.reference[1])
    end = time.perf_counter() + args.seconds
    sizes = args.sizes or ([64, 256] if args.quick else [4096, 65536, 256, 1024, 16384])
    if max(sizes) > MOST:
        parser.error(f"--sizes must be at most {MOST}")
    sample = min(SAMPLE, max(sizes))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "reference.json"
        # the CPU may be absent here: the variable says which platforms there are
        command = [sys.executable, __file__, "--reference", str(sample), str(file)]
        checking = subprocess.Popen(command, env=os.environ | {"JAX_PLATFORMS": "cpu"})
        about = machine()
        print(headline(about), flush=True)
        programs, notes = [], []
        for precision in ("float64", "float32"):
            if question(precision) is None:
                notes.append(f"{precision}: skipped, this version of dpjax does not take it")
        for n in sizes:
            programs += [Program(p, n) for p in ("float64", "float32") if question(p) is not None]
        # half of the time at most goes to compiling and to the check, which would be in the way of what is measured
        half = end - args.seconds / 2
        for program in programs:
            program.thread.join(max(0.0, half - time.perf_counter()))
        known = checked(checking, file, max(20.0, half - time.perf_counter()))
    if not known["lower"]:
        notes.append("not checked: the CPU's answers did not come in time")
    if len(known["executed"]) < len({program.precision for program in programs}):
        notes.append("operations not counted, or not all: the CPU's counts did not come in time")
    rows, slowest = [], {}
    for program in sorted(programs, key=lambda program: program.n):
        name, left = f"{program.precision}, {program.n}", end - time.perf_counter()
        expected = slowest.get(program.precision, 0.0) * program.n
        if program.compiled is None:
            notes.append(f"{name}: {program.error or 'not compiled in time'}")
        elif expected > left:
            notes.append(f"{name}: left out, it would take {expected:.0f} s")
        else:
            first = once(program.run)
            timing = timed(program.run) if 5 * first.wall < end - time.perf_counter() else first
            slowest[program.precision] = timing.wall / program.n
            rows.append(row(program, timing, known))
            print(f"{name}: {timing.wall:.3g} s", flush=True)
    text = "\n\n".join([markdown(rows) if rows else "nothing was measured", *notes])
    print(f"\n{text}")
    if args.out:
        Path(args.out + ".md").write_text(f"{headline(about)}\n\n{text}\n")
        write_json(args.out + ".json", about, {"accelerator": rows, "notes": notes, "executed": known["executed"]})
    if any(program.thread.is_alive() for program in programs):
        sys.stdout.flush()
        os._exit(0)  # Python's own exit ends a thread that compiles by a crash


if __name__ == "__main__":
    main()
