"""Prints how wide and how slow the adaptive bracket of exponential mechanisms is, for up to thousands of them.

    python benchmarks/adaptive.py

epsilon of k mechanisms of 0.1-bounded range at delta 1e-6, certified from both sides; "cost" is the share of the
adaptive epsilon that an adversary gains by adapting. Times are of this process: "first" compiles.
"""

import argparse

import numpy as np
from measuring import timed

from dpjax import bounded_range as br


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    print(
        f"{'k':>6} {'lower':>10} {'upper':>10} {'width':>8} {'width of delta':>14} {'cost':>9} {'first':>7} {'again':>7}"
    )
    rng = np.random.default_rng(0)
    for k in (10, 100, 1000, 3000):
        for name, args, options in (("", 0.1, {"count": k}), (" unequal", rng.uniform(0.05, 0.15, k), {})):
            call = lambda args=args, options=options: br.epsilon_bounds(1e-6, args, **options)
            first, again, _, bounds = timed(call, repeats=1)
            at = br.delta_bounds(bounds.upper, args, **options)
            cost = "-"
            if not name:
                fixed = br.epsilon(1e-6, args, adaptive=False, **options)
                cost = f"{(bounds.upper - fixed) / bounds.upper:9.1e}"
            width = (bounds.upper - bounds.lower) / bounds.upper
            print(
                f"{k:6d} {bounds.lower:10.6f} {bounds.upper:10.6f} {width:8.1e} {(at.upper - at.lower) / at.upper:14.1e}"
                f" {cost:>9} {first:6.1f}s {again:6.2f}s{name}",
                flush=True,
            )


if __name__ == "__main__":
    main()
