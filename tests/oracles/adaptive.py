"""Recomputes every row of adaptive.json in 40 digits, from the formulas alone: shares no code with the library.

    python adaptive.py --check     # compares each stored answer with the recomputed one
    python adaptive.py --make      # writes them (17 significant digits)

Needs mpmath. Inputs of a row are the exact decimals written. Derivations: arXiv 2203.05481 with the corrections that
the library's docstrings name (y* with 2 epsilon); Rogers et al. 2016 as quoted there.
"""

import argparse
import json
from pathlib import Path

import mpmath as mp

PATH = Path(__file__).with_suffix(".json")


def target_time(epsilon, slack):
    twice = 2 * mp.log(1 / slack)
    return (mp.sqrt(twice + 2 * epsilon) - mp.sqrt(twice)) ** 2


def line(v, slack, epsilon):
    y, log = target_time(epsilon, slack), mp.log(1 / slack)
    return v / 2 + mp.sqrt(2 * y * log) / 2 + v / 2 * mp.sqrt(2 * log / y)


def mixture(v, slack, gamma, form):
    k = mp.sqrt((v + gamma) / gamma) / slack
    if form == "exact":
        level = lambda x: x * x / 2 + mp.log(2 * mp.ncdf(x)) - mp.log(k)
        return v / 2 + mp.findroot(level, mp.sqrt(2 * mp.log((k + 1) / 2))) * mp.sqrt(v + gamma)
    inside = {"two_sided": k, "one_sided": k / 2 + 1, "sharp": (k + 1) / 2}[form]
    return v / 2 + mp.sqrt(2 * (v + gamma) * mp.log(inside))


def stitched(v, slack, v0, rounded=True):
    if v < v0:
        return mp.inf
    if rounded:
        inside = mp.log(mp.log(2 * v / v0)) + mp.mpf("0.72") * mp.log(mp.mpf("5.2") / slack)
        return v / 2 + mp.mpf("1.7") * mp.sqrt(v * inside)
    s, eta = mp.mpf("1.4"), 2
    k1 = (mp.root(eta, 4) + 1 / mp.root(eta, 4)) / mp.sqrt(2)
    inside = s * mp.log(mp.log(eta * v / v0)) + mp.log(mp.zeta(s) / (slack * mp.log(eta) ** s))
    return v / 2 + k1 * mp.sqrt(v * inside)


def odometers(row):
    v, slack = row["v"], row["delta_prime"]
    tenth = mp.mpf(1) / 10
    return {
        "advanced": v / 2 + mp.sqrt(2 * v * mp.log(1 / slack)),
        "uF_eps1": line(v, slack, 1),
        "uF_eps3": line(v, slack, 3),
        "uM_two_sided_gamma01": mixture(v, slack, tenth, "two_sided"),
        "uM_one_sided_closed_gamma01": mixture(v, slack, tenth, "one_sided"),
        "uM_one_sided_sharp_closed_gamma01": mixture(v, slack, tenth, "sharp"),
        "uM_one_sided_exact_gamma01": mixture(v, slack, tenth, "exact"),
        "uM_two_sided_gamma1": mixture(v, slack, mp.mpf(1), "two_sided"),
        "uS_v0_005": stitched(v, slack, mp.mpf("0.05")),
        "uS_exactconst_v0_005": stitched(v, slack, mp.mpf("0.05"), rounded=False),
        "uS_v0_001": stitched(v, slack, mp.mpf("0.001")),
    }


def odometer_rogers(row):
    e, n, size, slack = row["eps_each"], row["n"], row["dataset_size"], row["delta_prime"]
    v, drift = n * e**2, n * e * mp.expm1(e) / 2
    if 1 / size**2 <= v <= 1:
        return {"uR": drift + 2 * mp.sqrt(v * (mp.log(110 * mp.e) + 2 * mp.log(mp.log(size) / slack)))}
    root = 2 * (1 / size**2 + v) * (1 + mp.log(1 + size**2 * v) / 2) * mp.log(4 * mp.log(size, 2) / slack)
    return {"uR": drift + mp.sqrt(root)}


def filter_eps_delta(row):
    epsilon, slack, e = row["eps"], row["delta_prime"], row["eps_each"]
    spent = lambda n: mp.sqrt(2 * mp.log(1 / slack) * n * e**2) + n * e**2 / 2
    n = int(mp.floor(target_time(epsilon, slack) / e**2))
    return {
        "max_queries": n,
        "lhs_at_n": spent(n),
        "lhs_at_n_plus_1": spent(n + 1),
        "rho_budget": target_time(epsilon, slack) / 2,
    }


def rdp_poisson_gaussian(row):
    """By tanh-sinh quadrature of E r^e - 1, r = 1 - q + q e^y, e = order (remove) or 1 - order (add)."""
    q, sigma, order = row["q"], row["sigma"], row["alpha"]
    e = order if row["direction"] == "remove" else 1 - order

    def integrand(x):
        u = q * mp.expm1((2 * x - 1) / (2 * sigma**2))
        return mp.npdf(x, 0, sigma) * (mp.power(1 + u, e) - 1 - e * u)

    low, high = min(e, 0) - 14 * sigma, max(e, 1) + 14 * sigma
    nodes = [low + (high - low) * i / 16 for i in range(17)]
    return {"rdp": mp.log1p(mp.quad(integrand, nodes)) / (order - 1)}


def rdp_rr(row):
    e, order = row["eps"], row["alpha"]
    p, q = mp.exp(e) / (1 + mp.exp(e)), 1 / (1 + mp.exp(e))
    if order == 1:
        return {"rdp": p * e - q * e}
    return {"rdp": mp.log(p**order * q ** (1 - order) + q**order * p ** (1 - order)) / (order - 1)}


ANSWERS = {
    "odometers": odometers,
    "ystar": lambda row: {"ystar": target_time(row["eps"], row["delta_prime"])},
    "odometer_rogers": odometer_rogers,
    "filter_eps_delta": filter_eps_delta,
    "zcdp_to_dp_simple": lambda row: {"eps": row["rho"] + 2 * mp.sqrt(row["rho"] * mp.log(1 / row["delta"]))},
    "rdp_poisson_gaussian": rdp_poisson_gaussian,
    "rdp_rr": rdp_rr,
}


def recompute(table, row):
    """The answers of a stored row, computed from its inputs."""
    numbers = {k: x if k in ("id", "direction") else mp.mpf(str(x)) for k, x in row.items()}
    return ANSWERS[table](numbers)


def disagreement(stored, value):
    """Relative difference of a stored answer and a recomputed one."""
    stored = mp.mpf(str(stored))
    return mp.mpf(0) if stored == value else abs(stored / value - 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    group = parser.add_mutually_exclusive_group(required=True)
    group.add_argument("--check", action="store_true")
    group.add_argument("--make", action="store_true")
    args = parser.parse_args()
    data = json.loads(PATH.read_text())
    with mp.workdps(40):
        for table in ANSWERS:
            worst = mp.mpf(0)
            for row in data[table]:
                for key, value in recompute(table, row).items():
                    worst = max(worst, disagreement(row[key], value))
                    if args.make:
                        row[key] = value if isinstance(value, int) else mp.nstr(value, 17, strip_zeros=False)
            print(f"{table}: {len(data[table])} rows, largest relative difference {mp.nstr(worst, 3)}")
    if args.make:
        PATH.write_text(json.dumps(data, indent=1) + "\n")


if __name__ == "__main__":
    main()
