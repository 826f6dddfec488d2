"""Measures what ``precision="float32"`` costs in accuracy, over the stored reference tables.

    python benchmarks/float32.py

For each table: how many questions; how many float32 answers lie below float64's certified lower end at the same (rounded)
numbers, which must be none; by how much they lie above float64's upper end, relative to it; how many have no digits left
(``Status.ROUNDING``) or are infinite where float64's are not; and the time of one batch, without compilation.
"""

import functools
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from measuring import timed

import dpjax
from dpjax import Adjacency, Status

ORACLES = Path(__file__).parent.parent / "tests" / "oracles"
DIRECTIONS = {
    "remove": Adjacency.REMOVE,
    "add": Adjacency.ADD,
    "replace": Adjacency.REPLACE_ONE,
    "both": Adjacency.ADD_OR_REMOVE_ONE,
}
TABLES = (  # file, table, what is asked
    ("reference", "gaussian_epsilon", "epsilon"),
    ("reference", "single_step_epsilon", "epsilon"),
    ("reference", "single_step_delta", "delta"),
    ("reference", "composed_epsilon", "epsilon"),
    ("reference", "composed_delta", "delta"),
    ("psg", "rows", "delta"),
    ("psg", "sparse_rows", "delta"),
    ("generated", "sparse_neighbours", "delta"),
    ("generated", "few_steps", "delta"),
    ("generated", "replace_one_delta", "delta"),
)


def single(x):
    """The float32 nearest to each number, in float64."""
    return np.asarray(x, np.float64).astype(np.float32).astype(np.float64)


def measure(rows, asked):
    """(answers of float32, answers of float64, seconds of float32) of the rows of a table, at rounded numbers."""
    known = "delta" if asked == "epsilon" else "epsilon"
    narrow, wide, seconds = [], [], 0.0
    for direction in sorted({row["direction"] for row in rows}):
        part = [row for row in rows if row["direction"] == direction]
        names = ("noise_multiplier", "sampling_probability", "steps", known)
        sigma, q, k, given = (single([float(row[name]) for row in part]) for name in names)
        one = (k == 1).all()
        step = dpjax.PoissonSampled(q, dpjax.Gaussian(sigma))
        mechanism = step if one else step * k
        ask = dpjax.epsilon_bounds if asked == "epsilon" else dpjax.delta_bounds
        options: dict[str, Any] = {"adjacency": DIRECTIONS[direction]}
        wide.append(ask(mechanism, given, rtol=1e-8, **options))
        call = functools.partial(ask, mechanism, given, precision="float32", **options)
        found = timed(call, repeats=1)
        narrow.append(found.answer)
        seconds += found.wall
    join = lambda parts: dpjax.Bounds(*(np.concatenate(x) for x in zip(*parts, strict=True)))
    return join(narrow), join(wide), seconds


def summary(narrow, wide):
    """Numbers of the table's line, by name."""
    upper = narrow.upper.astype(np.float64)
    # a float32 answer cannot be smaller than the least float32
    some = np.isfinite(wide.upper) & (wide.upper > np.finfo(np.float32).tiny)
    excess = upper[some] / wide.upper[some] - 1
    return {
        "questions": upper.size,
        "below": int(np.sum(~(upper >= wide.lower))),
        "median": np.quantile(excess, 0.5),
        "99%": np.quantile(excess, 0.99),
        "largest": np.max(excess),
        "rounding": int(np.sum(narrow.status == Status.ROUNDING)),
        "infinite": int(np.sum(np.isinf(upper) & np.isfinite(wide.upper))),
    }


def main():
    print("| table | asked | questions | below | median excess | 99% | largest | no digits | infinite | ms |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for file, table, asked in TABLES:
        if sys.argv[1:] and table not in sys.argv[1:]:
            continue
        rows = json.loads((ORACLES / f"{file}.json").read_text(), parse_float=float)[table]
        narrow, wide, seconds = measure(rows, asked)
        s = summary(narrow, wide)
        print(
            f"| {table} | {asked} | {s['questions']} | {s['below']} | {s['median']:.1e} | {s['99%']:.1e} | {s['largest']:.1e} "
            f"| {s['rounding']} | {s['infinite']} | {1e3 * seconds:.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
