"""Measures the rounding error of the contour sum against the same sum in 80-bit floats, and what it asks of the bound.

    python benchmarks/rounding.py [--cases 400] [--seed 0] [--tol 1e-10]

Each case is a random composition at a random epsilon with the contour that the engine chooses. The table gives the error in
units of each part of the bound alone (a part with a ratio below 1 would do by itself) and of the whole bound as certified.
"""

import argparse
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

sys.path.append(str(Path(__file__).parent.parent / "tests" / "oracles"))
import long_double

from dpjax import _plan, contour, cumulant, pairs
from dpjax.mechanisms import Adjacency, Gaussian, PoissonSampled

DIRECTIONS = {"remove": Adjacency.REMOVE, "add": Adjacency.ADD, "replace": Adjacency.REPLACE_ONE}
PARTS = ("absolute", "absolute_log", "absolute_t phase", "turn phase", "common")
CAPACITY = 2048


def problem_of(direction, factors, variance=0.0):
    """One lane of the components (sigma, q, count)."""
    sigma, q, count = (jnp.asarray([column]) for column in zip(*factors, strict=True))
    pair = pairs.dominating_pair(PoissonSampled(q, Gaussian(sigma)), DIRECTIONS[direction])
    return _plan.Problem(jnp.asarray([variance]), pair, count)


@jax.jit
def plan_of(problem, epsilon, log_delta, tol):
    return contour.plan(problem, epsilon, log_delta, tol, tol > 0, CAPACITY)


@jax.jit
def evaluate(problem, plan, eps):
    """Everything that the engine computes for one contour at ``eps``."""
    tilt = contour.fix_tilt(problem, plan, CAPACITY)
    on = contour.line(problem, plan, tilt, CAPACITY, 64)
    at = jax.tree.map(lambda a: a[:, 0], contour.sums(plan, tilt, on, eps[:, None]))
    real_step = cumulant.real_step(problem.pair, plan.s, 0 * problem.pair.sigma)
    return tilt, on, at, contour.certify(problem, plan, tilt, on, eps, at), real_step


def rows_of(factors, tilt, real_step):
    """Each component with its inner nodes, as `long_double.trapezoid` takes them."""
    low, high, height, step, mean, fine = (
        np.asarray(a)[0]
        for a in (
            tilt.inner.window.low,
            tilt.inner.window.high,
            tilt.inner.height,
            tilt.inner.step,
            tilt.inner.real.mean,
            real_step,
        )
    )
    number = lambda step: np.ceil((high - low) / step).astype(int) + 1
    real, above = zip(fine, number(fine), strict=True), zip(height, step, number(step), strict=True)
    return [(*row[0], *row[1:]) for row in zip(factors, low, real, above, mean, strict=True)]


def exact_sum(direction, rows, plan, h, eps):
    """(sum, log moduli, phases, K) in 80 bits, on the engine's own nodes."""
    nodes = int(min(float(plan.nodes[0]), CAPACITY))
    s, log_delta = float(plan.s[0]), float(plan.log_delta[0])
    return long_double.trapezoid(direction, 0.0, rows, s, float(h[0]), nodes, float(eps[0]), log_delta)


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


def measure(rng, tol, work=4e5):
    """One case: its errors in units of ulp, of each part of the bound and of the bound; None if it is unusable."""
    direction, factors, log_delta = random_case(rng)
    problem = problem_of(direction, factors)
    tols, blank = jnp.asarray([tol]), jnp.asarray([jnp.nan])
    eps = plan_of(problem, blank, jnp.asarray([log_delta]), tols).epsilon
    if not 0 < float(eps[0]) < np.inf:
        return None
    plan = plan_of(problem, eps, blank, tols)
    if not float(plan.nodes[0]) <= CAPACITY:
        return None
    tilt, on, at, certificate, real_step = evaluate(problem, plan, eps)
    rows = rows_of(factors, tilt, real_step)
    if float(plan.nodes[0]) * sum(row[5][2] for row in rows) > work:
        return None
    exact, weight, phase, k = exact_sum(direction, rows, plan, on.h, eps)
    # a first guess of log delta that is far off: the engine goes on from there
    if not 1e-3 < abs(float(exact)) < np.inf or not np.isfinite(float(at.total[0])):
        return None
    unit = np.finfo(float).epsneg
    one = jax.tree.map(lambda a: float(a[0]), at)
    spread = float(on.spread[0]) + abs(float(tilt.mean[0] - eps[0]))
    k_size = float(tilt.k_size[0])
    common = 4 * k_size + 8 * (abs(float(plan.s[0] * eps[0])) + abs(float(plan.log_delta[0])) + 8)
    turn = min(abs(one.slope + float(plan.s[0]) * one.total), one.absolute_t)
    parts = [one.absolute, one.absolute_log, one.absolute_t * spread, turn * spread, common * abs(one.total)]
    parts = np.array(parts)
    error = abs(float(np.longdouble(one.total) - exact))
    # the terms' own errors, none cancelling another
    n = len(weight)
    amplitude = np.exp(weight).astype(float)
    off_log = np.abs(np.asarray(on.log_weight[0, :n]) - weight).astype(float)
    turn = 2 * np.pi
    off_phase = np.asarray(on.phase[0, :n]) - phase
    off_phase = np.abs((off_phase - turn * np.round(off_phase.astype(float) / turn)).astype(float))
    scale = float(at.absolute[0]) / amplitude.sum()
    kept = amplitude > 0
    apart = scale * np.sum((amplitude * (off_log + off_phase))[kept])
    return {
        "ratios": error / (unit * parts),
        "bound": error / float(certificate.rounding[0]),
        "apart": apart / (float(certificate.rounding[0]) - unit * parts[4]),
        "k ulp/common": abs(float(np.longdouble(float(tilt.k[0])) - k)) / unit / common,
        "k ulp/size": abs(float(np.longdouble(float(tilt.k[0])) - k)) / unit / k_size,
        "error": error / abs(float(exact)),
        "cancellation": one.absolute / abs(float(exact)),
        "parts": parts / abs(float(exact)),
        "case": (str(direction), factors, float(eps[0]), float(plan.s[0])),
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
    for key in ("apart", "k ulp/common", "k ulp/size", "cancellation", "error"):
        show({"apart": "terms, added without sign"}.get(key, key), [row[key] for row in rows])
    for key in ("bound", "apart", "k ulp/size"):
        print(f"largest {key}:")
        for row in sorted(rows, key=lambda r: -r[key])[:3]:
            print(f"    {row[key]:.3g}, cancellation {row['cancellation']:.2g}: {row['case']}")


if __name__ == "__main__":
    main()
