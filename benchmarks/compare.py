"""Asks dpjax and other accountants the same questions, and prints each one's error and time.

    pip install . dp-accounting prv-accountant opake-accounting opake-dpsgd opacus autodp
    python benchmarks/compare.py [--only dpjax,dp_accounting_pld] [--questions]
    python benchmarks/compare.py --batch 4096 [--only dp_accounting_pld] [--seconds 20] [--json FILE]

The questions are DP-SGD runs: epsilon at a delta, and delta at an epsilon, with stored references (tests/oracles). Epsilon
is that of both directions (add and remove, the larger); delta is that of the larger one too. Each question is asked from
scratch, as the library's documentation shows, with its default accuracy; an accountant that is missing is skipped. "low"
counts answers below the exact value by more than 1e-9 of it: promises that do not hold.

With --batch, dpjax answers N configurations in one call and the others in a loop, each for at most so many seconds: a product
grid, in which a loop shares steps and compositions, and a random batch. "dpjax faster" is the ratio of the times of one
answer. "off" is the distance from dpjax's estimate, "below" counts answers below its certified lower end. Of the others only
dp_accounting's PLD has a call that answers a batch, many deltas of one run: that is the last table.
"""

import argparse
import functools
import itertools
import json
import logging
import os
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
from accountants import ACCOUNTANTS
from measuring import headline, machine, markdown, once, timed, write_json
from sweeps import product_grid, random_columns

import dpjax

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


# --------------------------------------------------------------------------------------------------------------------
# Batches


def batches(names, n, seconds):
    """dpjax answering n configurations in one call against each of the others in a loop; yields (title, rows)."""
    product = product_grid(n)
    product = dict(zip(product, np.meshgrid(*product.values(), indexing="ij"), strict=True))
    for kind, columns in (("product", product), ("random", random_columns(n))):
        columns = [np.ravel(column) for column in columns.values()]
        run, delta = dpjax.dpsgd(*columns[:3]), columns[3]
        ours = timed(functools.partial(dpjax.epsilon_bounds, run, delta, rtol=1e-6), 2)
        ends = Ends(*ours.answer[:3])
        rows = [_row("dpjax, one call", n, ours, 1, 1, ends.upper, ends)]
        # whole rows of the grid, which share, in a random order
        pairs = np.unique(columns[0] + 1j * columns[1], return_inverse=True)[1]
        order = np.argsort(np.random.default_rng(0).permutation(n)[pairs], kind="stable")
        for name, accountant in available(names):
            try:
                theirs = looped(accountant, [column[order] for column in columns], seconds)
            except Exception as problem:  # a peer that fails on a question is part of the result
                print(f"{kind}: {name} failed: {type(problem).__name__}: {problem}"[:150])
                continue
            m = len(theirs.answer)
            ratios = theirs.wall / m * n / ours.wall, theirs.processor / m * n / ours.processor
            rows.append(_row(name, m, theirs, *ratios, theirs.answer, Ends(*(x[order[:m]] for x in ends))))
        yield f"{kind} batch of {n}, epsilons", rows


def looped(accountant, columns, seconds):
    """Timing of epsilons one after the other, for so many seconds; the answer is those that were reached.

    What a library lets a loop share, a step and its compositions, is shared between neighbouring configurations.
    """
    accountant.ask("epsilon", 1.0, 0.01, 1000, 1e-5)  # what it does only once
    step = functools.lru_cache(1)(accountant.step)
    run = functools.lru_cache(1)(lambda sigma, q, k: accountant.run(step(sigma, q), k))

    def loop():
        answers, end = [], time.perf_counter() + seconds
        for sigma, q, k, delta in zip(*(column.tolist() for column in columns), strict=True):
            answers.append(float(accountant.epsilon(run(sigma, q, int(k)), delta)))
            if time.perf_counter() > end:
                break
        return np.array(answers)

    return once(loop)


def curve(names, n):
    """The one batch call that a peer has: many deltas of one run, by dp_accounting's PLD; yields (title, rows)."""
    epsilons = np.linspace(0.1, 4, n)
    ours = timed(lambda: dpjax.delta_bounds(dpjax.dpsgd(1.0, 0.01, 1000), epsilons, rtol=1e-6), 2)
    ends = Ends(*ours.answer[:3])
    rows = [_row("dpjax, one call", n, ours, 1, 1, ends.upper, ends)]
    for name, accountant in available(set(names) & {"dp_accounting_pld"}):

        def ask(accountant=accountant):
            return np.asarray(accountant.delta(accountant.run(accountant.step(1.0, 0.01), 1000), epsilons))

        theirs = timed(ask, 2)
        ratios = theirs.wall / ours.wall, theirs.processor / ours.processor
        rows.append(_row(name + ", one call", n, theirs, *ratios, theirs.answer, ends))
    yield f"{n} deltas of one run", rows


class Ends(NamedTuple):
    """dpjax's certified answers."""

    lower: np.ndarray
    estimate: np.ndarray
    upper: np.ndarray


def _row(name, n, timing, by_wall, by_processor, answers, ends):
    """One accountant's line: its times, how often dpjax's they are, and how its answers compare to certified ones."""
    finite = np.isfinite(answers)
    some = finite & np.isfinite(ends.estimate) & (ends.estimate > 0)
    off = np.abs(answers[some] / ends.estimate[some] - 1)
    return {
        "": name,
        "answered": n,
        "first call s": timing.first if "call" in name else "",
        "ms each": 1e3 * timing.wall / n,
        "processor ms each": 1e3 * timing.processor / n,
        "dpjax faster": float(by_wall),
        "by processor time": float(by_processor),
        "off, median": float(np.median(off)),
        "off, largest": float(np.max(off)),
        "below": int(np.sum(answers[some] < ends.lower[some])),
        "infinite": int(np.sum(~finite & np.isfinite(ends.estimate))),
    }


def available(names):
    """(name, accountant) of those that are installed."""
    for name in names:
        try:
            yield name, ACCOUNTANTS[name]()
        except ImportError as error:
            print(f"{name} skipped: {error}")


# --------------------------------------------------------------------------------------------------------------------
# Questions one at a time


def one_at_a_time(names, show):
    """Prints each accountant's errors and times on the questions with references."""
    asked = questions()
    print(f"{len(asked)} questions: {sum(q[0] == 'epsilon' for q in asked)} epsilons, ", end="")
    print(
        f"{sum(q[0] == 'delta' for q in asked)} deltas; load {os.getloadavg()[0]:.1f}; times in ms, warm, one at a time"
    )
    print(f"{'':18} {'answered':>8} {'first':>8} {'median':>9} {'slowest':>9}   epsilon error: ", end="")
    print("median, largest   delta error: median, largest   low")
    seconds, errors = {}, {}
    for name, accountant in available(names):
        ask = accountant.ask
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
            except NotImplementedError:
                continue
            except Exception as problem:  # a peer that fails on a question is part of the result
                print(f"  {name} failed on {question}: {type(problem).__name__}: {problem}"[:150])
                continue
            times[i], error[i] = float(np.median(spent)), answer / reference - 1
            if show:
                print(f"  {name} {question}: {answer:.12g} error {error[i]:.1e}, {1e3 * times[i]:.2f} ms", flush=True)
        seconds[name], errors[name] = times, error
        done = np.isfinite(error)
        of = np.array([q[0] == "epsilon" for q in asked])
        cells = [
            f"{f(np.abs(error[done & m])):10.1e}" if np.any(done & m) else f"{'-':>10}"
            for m in (of, ~of)
            for f in (np.median, np.max)
        ]
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="comma-separated names: " + ", ".join(ACCOUNTANTS))
    parser.add_argument("--questions", action="store_true", help="print every answer as well")
    parser.add_argument("--batch", type=int, metavar="N", help="compare on batches of N, a power of two, instead")
    parser.add_argument("--seconds", type=float, default=20, help="the most for one loop over a batch")
    parser.add_argument("--json", metavar="FILE", help="with --batch: also write what was measured")
    args = parser.parse_args()
    names = args.only.split(",") if args.only else [*ACCOUNTANTS]
    unknown = set(names) - set(ACCOUNTANTS)
    if unknown:
        parser.error(f"unknown accountant {sorted(unknown)[0]!r}: choose from {', '.join(ACCOUNTANTS)}")
    if not args.batch:
        return one_at_a_time(names, args.questions)
    about = machine()
    print(headline(about))
    logging.getLogger("absl").setLevel("ERROR")  # warns of orders that it leaves out
    peers = names if args.only else [name for name in names if not name.startswith("dpjax")]
    tables = {}
    for title, rows in itertools.chain(batches(peers, args.batch, args.seconds), curve(peers, args.batch)):
        print(f"\n{title}\n\n{markdown(rows)}", flush=True)
        tables[title] = rows
        write_json(args.json, about, tables)


if __name__ == "__main__":
    main()
