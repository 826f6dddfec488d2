"""Reference values of fixed-size sampling and random allocation, in mpmath.

    python sampling.py --copy reference_values.json   writes sampling.json
    python sampling.py --check                        recomputes every row; a minute

The rows' sigma is noise over replace sensitivity: half of dpjax's noise_multiplier, whose unit is the norm bound of one
record.
"""

import argparse
import json
from pathlib import Path

import mpmath as mp

FILE = Path(__file__).with_name("sampling.json")
TABLES = {
    "subset_gaussian_replace_k1": "one step of fixed-size sampling under replace-one; sigma = noise_multiplier / 2",
    "random_allocation_t2": "one of two batches, Gaussian, exactly; sigma = noise_multiplier",
}


def gaussian_delta(epsilon, mu):
    """delta of N(mu, 1) against N(0, 1)."""
    return mp.ncdf(mu / 2 - epsilon / mu) - mp.exp(epsilon) * mp.ncdf(-mu / 2 - epsilon / mu)


def subset_replace(gamma, sigma, epsilon):
    inner = mp.log1p(mp.expm1(epsilon) / gamma)
    return gamma * gaussian_delta(inner, 1 / sigma)


def allocation_two(sigma, epsilon, direction):
    """delta of (N(e_1) + N(e_2)) / 2 against N(0) in the plane, or reversed: an integral over the first coordinate."""
    s2, e = sigma**2, mp.exp(epsilon)
    gain = lambda x: mp.exp((2 * x - 1) / (2 * s2))

    def inner(x):
        # remove: gain(x) + gain(y) > 2 e; add: gain(x) + gain(y) < 2 / e
        level = 2 * e - gain(x) if direction == "remove" else 2 / e - gain(x)
        if level <= 0:
            cut = mp.mpf("-inf")
        else:
            cut = s2 * mp.log(level) + mp.mpf(1) / 2
        plain, moved = mp.ncdf(cut / sigma), mp.ncdf((cut - 1) / sigma)  # of y <= cut
        if direction == "remove":
            plain, moved = 1 - plain, 1 - moved
            return mp.npdf(x, 0, sigma) * ((gain(x) * plain + moved) / 2 - e * plain)
        return mp.npdf(x, 0, sigma) * (plain - e * (gain(x) * plain + moved) / 2)

    level = 2 * e if direction == "remove" else 2 / e
    edge = s2 * mp.log(level) + mp.mpf(1) / 2
    low = -14 * sigma
    points = [low, -4 * sigma, 0, min(edge, 1 + 10 * sigma), edge]
    if direction == "remove":
        points += [edge + 1 + 14 * sigma]
    return mp.quad(inner, sorted(set(points)), maxdegree=10)


def recompute(table, row):
    number = lambda name: mp.mpf(row[name])
    if table == "subset_gaussian_replace_k1":
        return subset_replace(number("gamma"), number("sigma"), number("eps"))
    return allocation_two(number("sigma"), number("eps"), row["direction"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--copy", type=Path)
    parser.add_argument("--check", action="store_true")
    given = parser.parse_args()
    if given.copy:
        source = json.loads(given.copy.read_text())
        tables = {name: {"about": about, "answer": "delta"} for name, about in TABLES.items()}
        rows = {name: source[name]["values"] for name in TABLES}
        about = "Sampling without replacement, random allocation. Inputs are the exact decimals written."
        FILE.write_text(json.dumps({"about": about, "tables": tables, **rows}, indent=1) + "\n")
    if given.check:
        mp.mp.dps = 30
        worst = 0
        for table in TABLES:
            for row in json.loads(FILE.read_text())[table]:
                error = abs(recompute(table, row) / mp.mpf(row["delta"]) - 1)
                worst = max(worst, error)
                print(table, row, mp.nstr(error, 3))
        assert worst < mp.mpf("3e-15"), worst


if __name__ == "__main__":
    main()
