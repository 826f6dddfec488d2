"""Asks dpjax and other accountants the same questions, and prints each one's error and time.

    pip install . dp-accounting prv-accountant opake-accounting opake-dpsgd
    python benchmarks/compare.py [--only dpjax,dp_accounting_pld] [--questions]

The questions are DP-SGD runs: epsilon at a delta, and delta at an epsilon, with stored references (tests/oracles). Epsilon
is that of both directions (add and remove, the larger); delta is that of the larger one too. Each question is asked from
scratch, as the library's documentation shows, with its default accuracy; an accountant that is missing is skipped. "low"
counts answers below the exact value by more than 1e-9 of it: promises that do not hold.
"""

import argparse
import json
import os
import time
from pathlib import Path

import numpy as np

ORACLES = Path(__file__).parent.parent / "tests" / "oracles"
SETTINGS = [  # noise multiplier, sampling probability, steps, as the references write them
    ("0.5", "1e-3", 1000), ("0.8", "1e-3", 1000), ("0.8", "0.01", 1000), ("1.0", "0.01", 1000), ("2.0", "0.01", 1000),
    ("5.0", "0.1", 1000), ("1.0", "1e-4", 10000), ("0.8", "1e-3", 10000), ("1.0", "1e-3", 10000), ("1.0", "0.01", 10000),
    ("2.0", "0.01", 10000), ("4.0", "0.01", 10000),
]  # fmt: skip


def questions() -> list:
    """(kind, noise multiplier, sampling probability, steps, given, reference)."""
    stored = json.loads((ORACLES / "reference.json").read_text())
    out = []
    for setting in SETTINGS:
        rows = [r for r in stored["composed_epsilon"] if _setting(r) == setting]
        for delta in ("1e-5", "1e-6", "1e-10"):
            both = {r["direction"]: float(r["epsilon"]) for r in rows if r["delta"] == delta}
            if len(both) == 2:
                out.append(("epsilon", *map(float, setting[:2]), setting[2], float(delta), max(both.values())))
        # Removing a record reveals more in all of these; otherwise dpjax's own row would show a large error.
        rows = [r for r in stored["composed_delta"] if _setting(r) == setting and r["direction"] == "remove"]
        for r in rows[:2]:
            if 1e-12 < float(r["delta"]) < 1e-2:
                given, answer = float(r["epsilon"]), float(r["delta"])
                out.append(("delta", *map(float, setting[:2]), setting[2], given, answer))
    return out


def _setting(row) -> tuple:
    return row["noise_multiplier"], row["sampling_probability"], row["steps"]


# Each of these returns a function of (kind, noise multiplier, sampling probability, steps, given), or raises ImportError.


def dpjax_():
    import dpjax

    def ask(kind, sigma, q, steps, given):
        run = dpjax.dpsgd(sigma, q, steps)
        return float(dpjax.epsilon(run, delta=given) if kind == "epsilon" else dpjax.delta(run, epsilon=given))

    return ask


def dpjax_1e6():
    import dpjax

    def ask(kind, sigma, q, steps, given):
        run = dpjax.dpsgd(sigma, q, steps)
        if kind == "epsilon":
            return float(dpjax.epsilon(run, delta=given, rtol=1e-6))
        return float(dpjax.delta(run, epsilon=given, rtol=1e-6))

    return ask


def dp_accounting_pld():
    from dp_accounting.pld import privacy_loss_distribution as pld

    def ask(kind, sigma, q, steps, given):
        run = pld.from_gaussian_mechanism(sigma, sampling_prob=q).self_compose(steps)
        return run.get_epsilon_for_delta(given) if kind == "epsilon" else run.get_delta_for_epsilon(given)

    return ask


def dp_accounting_rdp():
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    def ask(kind, sigma, q, steps, given):
        accountant = RdpAccountant()
        step = dp_accounting.PoissonSampledDpEvent(q, dp_accounting.GaussianDpEvent(sigma))
        accountant.compose(dp_accounting.SelfComposedDpEvent(step, steps))
        return accountant.get_epsilon(given) if kind == "epsilon" else accountant.get_delta(given)

    return ask


def prv_accountant_():
    from prv_accountant import PoissonSubsampledGaussianMechanism, PRVAccountant

    def ask(kind, sigma, q, steps, given):
        step = PoissonSubsampledGaussianMechanism(sampling_probability=q, noise_multiplier=sigma)
        delta_error = given / 1000 if kind == "epsilon" else 1e-10
        accountant = PRVAccountant([step], eps_error=0.01, delta_error=delta_error, max_self_compositions=[steps])
        if kind == "epsilon":
            return accountant.compute_epsilon(given, [steps])[2]
        return accountant.compute_delta(given, [steps])[2]

    return ask


def opake_accounting():
    try:
        from opake.dpsgd import accounting
    except TypeError as error:  # opake 0.16 does not import on some Pythons, 3.11.7 and 3.12.1 among them
        raise ImportError(f"opake: {error}") from None

    def ask(kind, sigma, q, steps, given):
        run = accounting.poisson(accounting.gaussian(sigma), sample_rate=q) * steps
        return run.epsilon_at(given) if kind == "epsilon" else run.delta_at(given)

    return ask


ACCOUNTANTS = {
    "dpjax": dpjax_,
    "dpjax rtol=1e-6": dpjax_1e6,
    "dp_accounting_pld": dp_accounting_pld,
    "dp_accounting_rdp": dp_accounting_rdp,
    "prv_accountant": prv_accountant_,
    "opake": opake_accounting,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="comma-separated names: " + ", ".join(ACCOUNTANTS))
    parser.add_argument("--questions", action="store_true", help="print every answer as well")
    args = parser.parse_args()
    asked = questions()
    print(f"{len(asked)} questions: {sum(q[0] == 'epsilon' for q in asked)} epsilons, ", end="")
    print(
        f"{sum(q[0] == 'delta' for q in asked)} deltas; load {os.getloadavg()[0]:.1f}; times in ms, warm, one at a time"
    )
    print(f"{'':18} {'answered':>8} {'first':>8} {'median':>9} {'slowest':>9}   epsilon error: ", end="")
    print("median, largest   delta error: median, largest   low")
    seconds, errors = {}, {}
    for name in args.only.split(",") if args.only else ACCOUNTANTS:
        try:
            ask = ACCOUNTANTS[name]()
        except ImportError as error:
            print(f"{name:18} skipped: {error}")
            continue
        begin = time.perf_counter()
        ask(*asked[0][:-1])
        first = time.perf_counter() - begin
        times, error = np.full(len(asked), np.nan), np.full(len(asked), np.nan)
        for i, (*question, reference) in enumerate(asked):
            repeats = 5 if name.startswith("dpjax") else 1
            try:
                if repeats > 1:
                    ask(*question)  # compiles
                spent = []
                for _ in range(repeats):
                    begin = time.perf_counter()
                    answer = ask(*question)
                    spent.append(time.perf_counter() - begin)
            except Exception as problem:  # a peer that fails on a question is part of the result
                print(f"  {name} failed on {question}: {type(problem).__name__}: {problem}"[:150])
                continue
            times[i], error[i] = float(np.median(spent)), answer / reference - 1
            if args.questions:
                print(f"  {name} {question}: {answer:.12g} error {error[i]:.1e}, {1e3 * times[i]:.2f} ms", flush=True)
        seconds[name], errors[name] = times, error
        done = np.isfinite(error)
        of = np.array([q[0] == "epsilon" for q in asked])
        cells = [f"{f(np.abs(error[done & m])):10.1e}" for m in (of, ~of) for f in (np.median, np.max)]
        print(
            f"{name:18} {done.sum():8d} {1e3 * first:8.0f} {1e3 * np.median(times[done]):9.2f} {1e3 * np.max(times[done]):9.1f}"
            f"   {'':13} {cells[0]} {cells[1]}     {'':7} {cells[2]} {cells[3]}   {np.sum(error[done] < -1e-9):4d}",
            flush=True,
        )
    if "dp_accounting_pld" in seconds:
        for name in ("dpjax", "dpjax rtol=1e-6"):
            if name in seconds:
                ratio = seconds["dp_accounting_pld"] / seconds[name]
                better = np.nanmean(np.abs(errors[name]) <= np.abs(errors["dp_accounting_pld"]))
                print(
                    f"{name} against dp_accounting's PLD: {np.nanmedian(ratio):.0f} times faster at the median", end=""
                )
                print(f" ({np.nanmin(ratio):.0f} to {np.nanmax(ratio):.0f}), error equal or smaller in {better:.0%}")


if __name__ == "__main__":
    main()
