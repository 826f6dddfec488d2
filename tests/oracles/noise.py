"""Single steps of Laplace noise and randomised response: the rows of noise.json, taken over and recomputed.

    python noise.py --copy REFERENCE_VALUES   writes noise.json from the tables of the specification
    python noise.py --check                   recomputes every row from the definition, in mpmath
"""

import argparse
import json
from pathlib import Path

import mpmath as mp

PATH = Path(__file__).with_name("noise.json")
mp.mp.dps = 40


def laplace(mu, epsilon):
    """By integration of the positive part of the difference of the densities."""
    p = lambda y: mp.exp(-abs(y - mu)) / 2
    q = lambda y: mp.exp(-abs(y)) / 2
    crossing = (epsilon + mu) / 2
    if epsilon >= mu:
        return mp.mpf(0)
    return mp.quad(lambda y: p(y) - mp.exp(epsilon) * q(y), sorted([crossing, mu, mu + 20]) + [mp.inf])


def randomised_response(each, epsilon):
    top, low = 1 / (1 + mp.exp(-each)), 1 / (1 + mp.exp(each))
    return max(top - mp.exp(epsilon) * low, 0) + max(low - mp.exp(epsilon) * top, 0)


def copy(source):
    tables = json.loads(Path(source).read_text())
    single = lambda name: [r for r in tables[name]["values"] if r["k"] == 1]
    laplace_rows = [
        {"mu": r["mu_over_b"], "epsilon": r["eps"], "delta": r["delta"], "answer": answer}
        for name, answer in (("laplace_delta_of_eps", "delta"), ("laplace_eps_of_delta", "epsilon"))
        for r in single(name)
    ]
    example = tables["fig1_example"]["values"]
    response = [
        {"epsilon_each": r["eps0"], "epsilon": r["eps"], "delta": r["delta"], "answer": "delta"}
        for r in single("rr_delta_of_eps")
    ]
    response.append(
        {
            "epsilon_each": example["rr_eps"],
            "epsilon": example["eps_rr"],
            "delta": example["delta"],
            "answer": "epsilon",
        }
    )
    return {
        "about": "Single steps. Decimal strings are exact inputs; 'answer' names the field that was computed.",
        "laplace": laplace_rows,
        "randomised_response": response,
    }


def check(data):
    for row in data["laplace"]:
        compare(row, laplace(mp.mpf(row["mu"]), mp.mpf(row["epsilon"])))
    for row in data["randomised_response"]:
        compare(row, randomised_response(mp.mpf(row["epsilon_each"]), mp.mpf(row["epsilon"])))


def compare(row, delta):
    given = mp.mpf(row["delta"])
    # seventeen digits of epsilon move delta by 1e-17, of which a small delta keeps fewer digits
    slack = mp.mpf(10) ** -15 * given + (mp.mpf(10) ** -16 if row["answer"] == "epsilon" else 0)
    assert abs(delta - given) <= slack, row


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--copy", metavar="REFERENCE_VALUES")
    parser.add_argument("--check", action="store_true")
    chosen = parser.parse_args()
    if chosen.copy:
        PATH.write_text(json.dumps(copy(chosen.copy), indent=1) + "\n")
    if chosen.check:
        check(json.loads(PATH.read_text()))
