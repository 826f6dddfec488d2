"""Composition of bounded-range and pure-DP mechanisms from the definitions: sums over outcomes, a plain recursion, mpmath.

    python bounded_range.py --copy SOURCE   writes bounded_range.json from a file of reference values
    python bounded_range.py --check         recomputes every row of bounded_range.json

Nothing here shares a formula with dpjax beyond the definition of the pair RR_{eps,t}: loss t with probability
(1 - e^(t-eps)) / (1 - e^-eps), else t - eps.
"""

import argparse
import itertools
import json
from pathlib import Path

import mpmath as mp
import numpy as np

FILE = Path(__file__).parent / "bounded_range.json"
# name in the source -> (name here, what, which fields were computed)
TABLES = {
    "br_nonadaptive_delta": ("fixed_delta", "k equal pairs, t fixed beforehand, at eps_g: the largest delta", "delta"),
    "br_eps_bounds": ("epsilon_bounds", "eps_g of the same optimum at delta, and the KL, MGF and DR19 bounds",
                      "eps_g, optkl, mgf, mgf_sharp, dr19"),
    "br_hetero": ("unequal_bounds", "KL and MGF bounds of different epsilons", "optkl, mgf, mgf_sharp"),
    "br_hetero_fixed_t": ("unequal_delta", "different pairs at given t", "delta"),
    "br_adaptive": ("adaptive_delta", "the adaptive optimum at eps_g", "delta_adaptive"),
    "br_kl_star": ("largest_mean", "largest mean loss over t", "kl"),
    "br_logmgf_star": ("largest_moment", "largest log E exp(lam L) over t", "logmgf"),
    "rr_delta_of_eps": ("rr_delta", "k-fold randomised response", "delta"),
    "rr_eps_of_delta": ("rr_epsilon", "the inverse", "eps"),
    "kov_delta_of_eps": ("kov_delta", "k-fold (eps0, delta0)-DP", "delta"),
    "mv_hetero_delta_of_eps": ("mv_delta", "different (eps, delta)-DP mechanisms", "delta"),
}


def up(eps, t):
    """Probability of the loss t."""
    eps, t = mp.mpf(eps), mp.mpf(t)
    return mp.expm1(t - eps) / mp.expm1(-eps)


def delta_of_pairs(epsilons, ts, x):
    """Different pairs at given t: the sum over all outcomes."""
    x, total = mp.mpf(x), mp.mpf(0)
    sides = [[(up(e, t), mp.mpf(t)), (1 - up(e, t), mp.mpf(t) - mp.mpf(e))] for e, t in zip(epsilons, ts, strict=True)]
    for outcome in itertools.product(*sides):
        loss = mp.fsum(side[1] for side in outcome)
        if loss > x:
            total += mp.fprod(side[0] for side in outcome) * -mp.expm1(x - loss)
    return total


def delta_of_equal(eps, t, k, x):
    """k equal pairs: the sum over the number of losses t - eps."""
    eps, t, x = mp.mpf(eps), mp.mpf(t), mp.mpf(x)
    q = up(eps, t)
    ratio, mass, total = (1 - q) / q, q**k, mp.mpf(0)
    for i in range(k + 1):
        loss = k * t - i * eps
        if loss <= x:
            break
        total += mass * -mp.expm1(x - loss)
        mass *= ratio * (k - i) / (i + 1)
    return total


def stationary(eps, k, x, l):
    """Theorem 3's t of index l."""
    return min(max((mp.mpf(x) + (l + 1) * mp.mpf(eps)) / (k + 1), mp.mpf(0)), mp.mpf(eps))


def fixed_optimum(eps, k, x):
    """The largest delta over a common t."""
    ts = (stationary(eps, k, x, l) for l in range(k))
    return max(delta_of_equal(eps, t, k, x) if 0 < t < mp.mpf(eps) else mp.mpf(0) for t in ts)


def approximate_dp(epsilons, deltas, x):
    """Murtagh and Vadhan: randomised response of every mechanism, unless one fails."""
    kept = mp.fprod(1 - mp.mpf(d) for d in deltas)
    return 1 - kept * (1 - delta_of_pairs([2 * mp.mpf(e) for e in epsilons], epsilons, x))


def restricted(widths, start, cells):
    """The adaptive optimum against an adversary who plays t from a grid: plain recursion in float64.

    Args:
      widths: the epsilons in the order in which they are run, in whole units; (epsilon, t) where t is given.
      start: (threshold, unit): the threshold in whole units, and how large a unit is.
      cells: how finely a unit is divided.
    """
    threshold, unit = start
    h = unit / cells
    steps = [w if isinstance(w, tuple) else (w, None) for w in widths]
    reach = sum(w for w, _ in steps) * cells + abs(threshold) * cells + 1
    x = np.arange(-reach, reach + 1) * h
    value = np.maximum(-np.expm1(np.minimum(x, 0.0)), 0.0)
    for width, given in reversed(steps):
        m = width * cells
        eps = m * h
        new = np.zeros_like(value)
        far = lambda index: np.where(index < 0, -np.expm1(np.minimum((index - reach) * h, 0.0)),
                                     np.where(index > 2 * reach, 0.0, value[np.clip(index, 0, 2 * reach)]))
        index = np.arange(2 * reach + 1)
        for j in range(m + 1) if given is None else [given * cells]:
            q = np.expm1(j * h - eps) / np.expm1(-eps)
            new = np.maximum(new, q * far(index - j) + (1 - q) * far(index + m - j))
        value = new
    return value[reach + threshold * cells]


def extrapolated(widths, start, cells):
    """(the restricted optimum, the limit of ever finer grids, how far that limit still moves)."""
    a, b, c = (restricted(widths, start, n) for n in (cells // 4, cells // 2, cells))
    limit, before = c + (c - b) / 3, b + (b - a) / 3
    return c, limit, abs(limit - before)


def mean_loss(eps):
    """The largest mean loss, by search over t."""
    eps = mp.mpf(eps)
    kl = lambda t: t - eps * (1 - up(eps, t))
    return kl(mp.findroot(lambda t: mp.diff(kl, t), eps / 2))


def log_moment(eps, lam):
    """The largest log E exp(lam L), by search over t."""
    eps, lam = mp.mpf(eps), mp.mpf(lam)
    log_e = lambda t: lam * t + mp.log(up(eps, t) + (1 - up(eps, t)) * mp.exp(-lam * eps))
    low, high = mp.mpf(0), eps
    for _ in range(140):  # concave in t
        a, b = low + (high - low) / 3, high - (high - low) / 3
        low, high = (a, high) if log_e(a) < log_e(b) else (low, b)
    return log_e((low + high) / 2)


def kl_bound(epsilons, delta):
    """Corollary 3.1."""
    spread = mp.sqrt(-mp.log(mp.mpf(delta)) / 2 * mp.fsum(mp.mpf(e) ** 2 for e in epsilons))
    return mp.fsum(mean_loss(e) for e in epsilons) + spread


def mgf_bound(groups, delta, sharp):
    """Theorem 5, groups of (eps, count), by a search over log lam."""
    def at(z):
        lam = mp.exp(z)
        kernel = lam * mp.log(lam) - (1 + lam) * mp.log1p(lam) if sharp else 0
        return (mp.fsum(n * log_moment(e, lam) for e, n in groups) + kernel - mp.log(mp.mpf(delta))) / lam

    low, high = mp.mpf(-8), mp.mpf(8)
    for _ in range(70):
        a, b = low + (high - low) / 3, high - (high - low) / 3
        low, high = (a, high) if at(a) > at(b) else (low, b)
    return at((low + high) / 2)


def dr19_bound(eps, k, delta):
    """Durfee and Rogers 2019."""
    e, root = mp.mpf(eps), mp.sqrt(-mp.log(mp.mpf(delta)))
    return min(k * e, k * e * mp.tanh(e / 2) + e * mp.sqrt(2 * k) * root, k * e**2 / 2 + e * mp.sqrt(mp.mpf(k) / 2) * root)


def recomputed(table, row):
    """field -> (stored, recomputed, relative difference allowed)."""
    eps, k, x = row.get("eps"), row.get("k"), row.get("eps_g")
    if table == "fixed_delta":
        return {"delta": (fixed_optimum(eps, k, x), 1e-15)}
    if table == "adaptive_delta":
        unit, threshold = (float(eps), float(x)) if k == 1 else (float(eps) / 20, round(float(x) / float(eps) * 20))
        if k == 1:
            return {"delta_adaptive": (fixed_optimum(eps, 1, x), 1e-15)}
        assert abs(threshold * unit - float(x)) < 1e-12
        return {"delta_adaptive": (extrapolated([20] * k, (threshold, unit), 16)[1], 1e-4)}
    if table == "epsilon_bounds":
        d = row["delta"]
        near = lambda sign: fixed_optimum(eps, k, mp.mpf(row["eps_g"]) * (1 + sign * mp.mpf(10) ** -15))
        assert near(1) < mp.mpf(d) < near(-1), row
        return {"optkl": (k * mean_loss(eps) + mp.mpf(eps) * mp.sqrt(-k * mp.log(mp.mpf(d)) / 2), 1e-15),
                "mgf": (mgf_bound([(eps, k)], d, False), 1e-12), "mgf_sharp": (mgf_bound([(eps, k)], d, True), 1e-12),
                "dr19": (dr19_bound(eps, k, d), 1e-15)}
    if table == "unequal_bounds":
        groups, d = [(e, 1) for e in row["eps_list"]], row["delta"]
        return {"optkl": (kl_bound(row["eps_list"], d), 1e-15), "mgf": (mgf_bound(groups, d, False), 1e-12),
                "mgf_sharp": (mgf_bound(groups, d, True), 1e-12)}
    if table == "unequal_delta":
        return {"delta": (delta_of_pairs(row["eps_list"], row["t_list"], x), 1e-15)}
    if table == "largest_mean":
        return {"kl": (mean_loss(eps), 1e-15)}
    if table == "largest_moment":
        return {"logmgf": (log_moment(eps, row["lam"]), 1e-15)}
    if table == "mv_delta":
        return {"delta": (approximate_dp(row["eps_list"], row["delta_list"], row["eps"]), 1e-15)}
    e0 = mp.mpf(row["eps0"])
    if table == "rr_epsilon":
        near = lambda sign: delta_of_equal(2 * e0, e0, k, mp.mpf(row["eps"]) * (1 + sign * mp.mpf(10) ** -15))
        assert near(1) < mp.mpf(row["delta"]) < near(-1), row
        return {}
    kept = (1 - mp.mpf(row.get("delta0", 0))) ** k
    return {"delta": (1 - kept * (1 - delta_of_equal(2 * e0, e0, k, row["eps"])), 1e-15)}


def copy(source):
    """The rows of ``source`` that are about these compositions, their fields as they are."""
    stored = json.loads(Path(source).read_text())
    about = "Bounded-range and pure-DP composition; decimal strings. Recheck with bounded_range.py --check."
    data = {"about": about, "tables": {}}
    for name, (here, what, answer) in TABLES.items():
        values = stored[name]["values"]
        data["tables"][here] = {"about": what, "answer": answer}
        data[here] = [values] if isinstance(values, dict) else values
    rows = lambda table: ",\n".join(json.dumps(row) for row in data[table])
    head = json.dumps({name: data[name] for name in ("about", "tables")}, indent=1)[:-2]
    body = "".join(f',\n "{table}": [\n{rows(table)}\n ]' for table in data["tables"])
    FILE.write_text(head + body + "\n}\n")


def check():
    """Recomputes every row; raises if one differs."""
    data = json.loads(FILE.read_text())
    for table in data["tables"]:
        worst = 0.0
        for row in data[table]:
            for field, (value, allowed) in recomputed(table, row).items():
                off = float(abs(mp.mpf(row[field]) - value) / (value or 1))
                assert off <= allowed, (table, row, field, mp.nstr(value, 20))
                worst = max(worst, off)
        print(f"{table:16s} {len(data[table]):3d} rows, largest relative difference {worst:.1e}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--copy", metavar="SOURCE")
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    mp.mp.dps = 34
    if args.copy:
        copy(args.copy)
    if args.check:
        check()
