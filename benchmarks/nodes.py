"""Prints how many contour nodes certified answers need, for settings from dense to sparse.

    python benchmarks/nodes.py

Each row is a composition and an epsilon, in the remove direction. "goal" is the number of nodes that a prototype of the
method needed; "width" is (upper - lower) / delta; "inside" says whether the interval contains the reference, and "error" is
the estimate's, relative to it. "-" where no reference of full precision is stored.
"""

import argparse
import json
from pathlib import Path

import dpjax

ORACLES = Path(__file__).parent.parent / "tests" / "oracles"
# noise multiplier, sampling probability, steps, epsilon, goals at rtol 1e-6 and 1e-10
ROWS = [
    (2.0, 0.01, 1500, 0.77, 7, 14),
    (1.0, 0.01, 1000, 1.8282, 18, 31),
    (0.8, 0.01, 100, 1.0, 105, 197),
    (1.0, 1e-4, 100_000, 0.13892, 211, 285),
    (0.4, 1e-3, 1000, 4.0, 490, 742),
    (0.6, 2e-4, 3000, 1.0, 746, 1242),
    (0.5, 1e-3, 100, 2.1, 2131, 4072),
    (1.0, 1e-4, 1000, 0.05, 2224, 2844),
]


def references() -> dict:
    """delta by (noise multiplier, sampling probability, steps, epsilon), remove direction."""
    stored = json.loads((ORACLES / "psg.json").read_text())
    return {
        tuple(float(row[name]) for name in ("noise_multiplier", "sampling_probability", "steps", "epsilon")): row[
            "delta"
        ]
        for row in stored["rows"] + stored["sparse_rows"]
        if row["direction"] == "remove"
    }


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    known = references()
    print(
        f"{'noise':>5} {'q':>6} {'steps':>6} {'epsilon':>7} {'rtol':>5}  {'delta':>18} {'nodes':>5} {'goal':>5}", end=""
    )
    print(f" {'width':>8} {'inside':>6} {'error':>8}  status")
    for sigma, q, steps, eps, *goals in ROWS:
        run = dpjax.dpsgd(sigma, q, steps)
        reference = known.get((sigma, q, steps, eps))
        for rtol, goal in zip((1e-6, 1e-10), goals, strict=True):
            b = dpjax.delta_bounds(run, eps, adjacency=dpjax.Adjacency.REMOVE, rtol=rtol)
            inside = error = "-"
            if reference is not None:
                inside = "yes" if b.lower <= reference <= b.upper else "NO"
                error = f"{abs(b.estimate / reference - 1):.1e}"
            print(
                f"{sigma:5g} {q:6g} {steps:6d} {eps:7g} {rtol:5.0e}  {b.estimate:18.12e} {int(b.nodes):5d} {goal:5d}"
                f" {(b.upper - b.lower) / b.estimate:8.1e} {inside:>6} {error:>8}  {dpjax.Status(int(b.status)).name}"
            )


if __name__ == "__main__":
    main()
