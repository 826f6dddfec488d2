"""How the benchmarks measure: time, memory, the machine; and how they say it, as a table and as JSON."""

import json
import os
import platform
import resource
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

import dpjax


class Timing(NamedTuple):
    """Seconds of one call, and what it returned.

    Attributes:
      first: wall time of the first call, which compiles.
      wall: the least wall time of the later calls.
      processor: processor time, of all threads, of the call that took ``wall``.
      answer: of the last call.
    """

    first: float
    wall: float
    processor: float
    answer: Any


def once(call: Callable[[], Any]) -> Timing:
    """Calls once, waiting for JAX."""
    wall, processor = time.perf_counter(), time.process_time()
    answer = jax.block_until_ready(call())
    wall, processor = time.perf_counter() - wall, time.process_time() - processor
    return Timing(wall, wall, processor, answer)


def timed(call: Callable[[], Any], repeats: int = 3) -> Timing:
    """Calls once, which may compile, then ``repeats`` times."""
    first = once(call).wall
    later = [once(call) for _ in range(repeats)]
    best = min(later, key=lambda timing: timing.wall)
    return best._replace(first=first)


def log_uniform(rng: np.random.Generator, low: float, high: float, n: int) -> np.ndarray:
    """``n`` numbers, their logarithms uniform."""
    return np.exp(rng.uniform(np.log(low), np.log(high), n))


def configurations(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """DP-SGD settings, log-uniform: noise 0.6 to 10, sampling probability 1e-3 to 0.1, steps 1e2 to 1e5."""
    rng = np.random.default_rng(seed)
    noise, q = log_uniform(rng, 0.6, 10, n), log_uniform(rng, 1e-3, 0.1, n)
    return noise, q, np.round(log_uniform(rng, 1e2, 1e5, n))


def peak_memory() -> float:
    """GB, the most that this process has had so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e9


def cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def processor() -> str:
    """The processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def machine() -> dict[str, Any]:
    """What the numbers depend on."""
    device = jax.devices()[0]
    return {
        "device": processor() if device.platform == "cpu" else device.device_kind,
        "platform": device.platform,
        "cores": cores(),
        "load": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "jax": jax.__version__,
        "dpjax": dpjax.__version__,
    }


def headline(about: dict[str, Any]) -> str:
    """``machine()`` in a line."""
    return (
        f"{about['device']}, {about['cores']} cores, load {about['load']}, Python {about['python']}, jax {about['jax']}, "
        f"dpjax {about['dpjax']}"
    )


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """A Markdown table of rows that have the same keys; floats with three digits."""

    def cell(x: Any) -> str:
        if isinstance(x, float):
            return f"{x:,.0f}" if 1e3 <= abs(x) < 1e7 else f"{x:.3g}"
        return f"{x:,}" if isinstance(x, int) else str(x)

    lines = [list(rows[0]), ["---"] * len(rows[0]), *([cell(x) for x in row.values()] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def write_json(path: str | os.PathLike | None, about: dict[str, Any], parts: dict[str, Any]) -> None:
    """Keeps what was measured, if there is a path."""
    if path is not None:
        Path(path).write_text(json.dumps({"machine": about, "parts": parts}, indent=1) + "\n")
