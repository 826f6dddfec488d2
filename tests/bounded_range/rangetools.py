"""What the tests of bounded-range composition share: the oracle, the stored rows, and batches of one size."""

import importlib
import json
import sys
from pathlib import Path

import numpy as np

ORACLES = Path(__file__).parents[1] / "oracles"
sys.path.append(str(ORACLES))
oracle = importlib.import_module("bounded_range")

ROWS = {k: v for k, v in json.loads((ORACLES / "bounded_range.json").read_text()).items() if isinstance(v, list)}
LANES = 40  # one size of batch and one largest count, so that a program is compiled once
COUNT = 8


def column(rows, name):
    return np.array([float(row[name]) for row in rows])


def batched(query, x, eps, count, **options):
    """``query(x, eps, count=count)`` for equal mechanisms, in batches of LANES; Bounds of arrays."""
    x, eps, count = np.broadcast_arrays(*(np.asarray(a, float) for a in (x, eps, count)))
    parts = []
    for i in range(0, x.size, LANES - 1):
        index = np.minimum(np.arange(i, i + LANES - 1), x.size - 1)
        # The last lane has the largest count, which fixes the program.
        pad = lambda a, last, index=index: np.append(a[index], last)
        found = query(pad(x, x[0]), pad(eps, eps[0])[:, None], count=pad(count, COUNT), **options)
        parts.append([np.asarray(end)[: min(LANES - 1, x.size - i)] for end in found])
    return [np.concatenate(ends) for ends in zip(*parts, strict=True)]
