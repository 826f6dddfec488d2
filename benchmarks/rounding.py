"""Measures the rounding error of the contour sum against the same sum in 80-bit floats, and what it asks of the bound.

    python benchmarks/rounding.py [--cases 400] [--seed 0] [--tol 1e-10]

Each case is a random composition at a random epsilon with the contour that the engine chooses. The table gives the error in
units of each part of the bound alone (a part with a ratio below 1 would do by itself) and of the whole bound as certified.
"""

import argparse
import sys
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

sys.path.append(str(Path(__file__).parent.parent / "tests" / "oracles"))
import long_double  # noqa: E402

from dpjax import _plan, contour, cumulant, pairs  # noqa: E402
from dpjax.mechanisms import Adjacency, Gaussian, PoissonSampled  # noqa: E402

DIRECTIONS = {"remove": Adjacency.REMOVE, "add": Adjacency.ADD, "replace": Adjacency.REPLACE_ONE}
PARTS = ("absolute", "absolute_log", "absolute_t phase", "common")
CAPACITY = 2048


def problem_of(direction, factors, variance=0.0):
    """One lane of the components (sigma, q, count)."""
    sigma, q, count = (jnp.asarray([column]) for column in zip(*factors, strict=True))
    pair = pairs.dominating_pair(PoissonSampled(q, Gaussian(sigma)), DIRECTIONS[direction])
    return _plan.Problem(jnp.asarray([variance]), pair, count)


@partial(jax.jit, static_argnames=("unknown",))
def plan_of(problem, epsilon, log_delta, tol, unknown):
    plan = _plan.choose(problem, epsilon, log_delta, tol, unknown)
    return _plan.climb(problem, plan, CAPACITY)


@jax.jit
def inner_nodes(problem, plan):
    win = cumulant.window(problem.pair, plan.s)
    return cumulant._count(win, jnp.maximum(plan.step, (win.high - win.low) / contour._MAX_X))


@jax.jit
def evaluate(problem, plan, eps):
    tilt = contour.fix_tilt(problem, plan)
    on = contour.line(problem, plan, tilt, CAPACITY, 64, 128)
    value, slope, at = contour._estimate(plan, tilt, on, eps)
    return tilt, on, value, at, contour.certify(problem, plan, tilt, on, eps, at)


def exact_sum(direction, factors, problem, plan, tilt, on, eps):
    """(sum, log moduli, phases, K) in 80 bits, on the engine's own nodes."""
    counts = np.asarray(inner_nodes(problem, plan))[0]
    rows = [
        (*f, float(tilt.window.low[0, i]), float(tilt.step[0, i]), int(counts[i])) for i, f in enumerate(factors)
    ]
    nodes = int(min(float(plan.nodes[0]), CAPACITY))
    return long_double.trapezoid(
        direction, 0.0, rows, float(plan.s[0]), float(on.h[0]), nodes, float(eps[0]), float(plan.log_delta[0])
    )


def random_case(rng):
    """(direction, factors, log delta): dense, sparse or few steps, alone or three at once."""
    direction = rng.choice(["remove", "add", "replace"])
    factors = []
    for _ in range(3 if rng.random() < 0.2 else 1):
        q = 10 ** rng.uniform(-6, np.log10(0.6))
        sigma = float(np.exp(rng.uniform(np.log(0.3), np.log(20))))
        kind = rng.random()
        if kind < 0.4:  # a body with a Gaussian's shape
            k = (rng.uniform(0.3, 6) * sigma / q) ** 2 * min(1.0, sigma**2)
        elif kind < 0.7:  # few expected participations
            k, sigma = rng.uniform(0.05, 20) / q, min(sigma, 2.0)
        else:
            k = 10 ** rng.uniform(0.3, 5)
        factors.append((sigma, float(q), float(np.clip(np.round(k), 2, 1e8))))
    return direction, factors, float(np.log(10) * rng.uniform(-14, -0.5))


def measure(rng, tol):
    """One case: (error in units of each part, of the bound, cancellation, nodes, the case); None if it is unusable."""
    direction, factors, log_delta = random_case(rng)
    problem = problem_of(direction, factors)
    tols, blank = jnp.asarray([tol]), jnp.asarray([jnp.nan])
    plan = plan_of(problem, blank, jnp.asarray([log_delta]), tols, "epsilon")
    eps = plan.epsilon
    if not bool(jnp.isfinite(eps[0])) or float(eps[0]) <= 0:
        return None
    plan = plan_of(problem, eps, blank, tols, "delta")
    counts = np.asarray(inner_nodes(problem, plan))[0]
    nodes = float(plan.nodes[0])
    if not nodes <= CAPACITY or nodes * counts.sum() > 4e5:
        return None
    tilt, on, _, at, certificate = evaluate(problem, plan, eps)
    exact, weight, phase, k = exact_sum(direction, factors, problem, plan, tilt, on, eps)
    if not abs(exact) > 0 or not np.isfinite(float(exact)):
        return None
    unit = np.finfo(float).epsneg
    spread = float(jnp.sum(problem.count * tilt.real.spread)) + abs(float(tilt.mean[0] - eps[0]))
    common = float(tilt.k_size[0]) + abs(float(plan.s[0] * eps[0])) + abs(float(plan.log_delta[0])) + 8
    parts = np.array(
        [float(at.absolute[0]), float(at.absolute_log[0]), float(at.absolute_t[0]) * spread, common * abs(float(at.total[0]))]
    )
    error = abs(float(np.longdouble(float(at.total[0])) - exact))
    n = int(nodes)
    with np.errstate(divide="ignore", invalid="ignore"):
        seen = weight > weight.max() - 60
        node_log = np.abs(np.asarray(on.log_weight[0, :n]) - weight)[seen].astype(float) / unit
        node_phase = np.abs(np.asarray(on.phase[0, :n]) - phase)[seen].astype(float) / unit
        t = np.asarray(on.t[0, :n])[seen]
        log_size = np.abs(weight[seen]).astype(float)
    return {
        "ratios": error / (unit * parts),
        "bound": error / float(certificate.rounding[0]),
        "error": error / abs(float(exact)),
        "C": float(at.absolute[0] / abs(float(exact))),
        "nodes": n,
        "k_error": abs(float(np.longdouble(float(tilt.k[0])) - k)) / unit,
        "k_size": float(tilt.k_size[0]),
        "common": common,
        "parts": parts / abs(float(exact)),
        "node_log": float(np.max(node_log / (10 + 3 * log_size))),
        "node_phase": float(np.max(node_phase / (10 + 3 * t * spread))),
        "case": (direction, factors, float(eps[0]), float(plan.s[0])),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tol", type=float, default=1e-10)
    args = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    rng = np.random.default_rng(args.seed)
    rows, tries = [], 0
    while len(rows) < args.cases and tries < 4 * args.cases:
        tries += 1
        row = measure(rng, args.tol)
        if row:
            rows.append(row)
    print(f"{len(rows)} of {tries} cases; tol {args.tol:g}")
    quantiles = (0.5, 0.9, 0.99, 1.0)
    print(f"{'error in units of':28s}" + "".join(f"{f'{q:.0%}':>12s}" for q in quantiles))

    def show(name, values):
        print(f"{name:28s}" + "".join(f"{x:12.3g}" for x in np.quantile(values, quantiles)))

    for i, name in enumerate(PARTS):
        show("ulp " + name, [row["ratios"][i] for row in rows])
    show("the certified bound", [row["bound"] for row in rows])
    show("K, ulp / (common)", [row["k_error"] / row["common"] for row in rows])
    show("K, ulp / (size of K)", [row["k_error"] / row["k_size"] for row in rows])
    show("a node's log modulus", [row["node_log"] for row in rows])
    show("a node's phase", [row["node_phase"] for row in rows])
    show("cancellation", [row["C"] for row in rows])
    show("relative error", [row["error"] for row in rows])
    for key in ("bound", "k_error", "node_log", "node_phase"):
        print(f"largest {key}:")
        for row in sorted(rows, key=lambda r: -r[key])[:4]:
            print("   ", f"{row[key]:.3g} C {row['C']:.2g} common {row['common']:.3g} k_size {row['k_size']:.3g}", row["case"])


if __name__ == "__main__":
    main()
