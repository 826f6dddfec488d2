"""What holds for every mechanism: the table of problems.py, against the values of oracles/compositions.py.

Honesty is asked of every row, closeness only of what the engine says it reached. One call answers all counts and
epsilons of a mechanism: compiling dominates.
"""

import functools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import BY_NAME, DIRECTIONS, PROBLEMS, TAGS, rows

import dpjax
from dpjax import ComposedOver
from dpjax.mechanisms import attained

ORACLES = Path(__file__).parent / "oracles"
WIDTH = 1e-3  # of delta: what the lattice aims at
# Laws that take long to compile, or answers on long grids: not in the default selection.
SLOW = {
    "poisson-gaussian", "truncated-poisson-gaussian", "zcdp", "renyi-dp", "mixture-of-gaussians", "laplace-gaussian-discrete",
    "failing-poisson-laplace", "poisson-gaussian-replace", "fixed-size-gaussian", "permute-and-flip", "bounded-range-t",
    "poisson-laplace", "privacy-profile", "failing-gaussian", "gaussian-and-response",
}  # fmt: skip
# Problems that all contracts are tried on in the default selection; on the others they are slow.
FIRST = {"gaussian", "randomized-response", "discrete-loss-infinite"}
# atoms that are on no grid, at epsilons next to the largest loss (counts 1 and 2) or 1000 runs. Meant to empty.
KNOWN_WIDE = {
    "discrete-loss": (0.5, 1e-3),
    "discrete-loss-infinite": (1.0, 0.1),
    "gaussian-and-response": (0.15, 1e-3),
    "laplace": (1.0, 5e-3),
    "laplace-gaussian-discrete": (0.1, 1e-3),
    "permute-and-flip": (1.0, 1e-3),
    "privacy-profile": (0.05, 1e-3),
    "poisson-laplace": (1.0, 0.03),
    "failing-poisson-laplace": (1.0, 0.03),
}


def allowed(problem):
    """How wide its intervals of delta may be below and above, relatively."""
    below = WIDTH if attained(problem.make(problem.at) * 2, DIRECTIONS[problem.directions[0]]) else 1.0
    return KNOWN_WIDE.get(problem.name, (below, WIDTH))


def cases(problems, quick=None):
    """A case for every direction; the second directions are slow, and what is not ``quick``."""
    found = []
    for p in problems:
        for i, direction in enumerate(p.directions):
            slow = i or (p.name in SLOW if quick is None else p.name not in quick)
            marks = pytest.mark.slow if slow else ()
            found.append(pytest.param(p, direction, marks=marks, id=f"{p.name}-{direction}"))
    return found


def firsts(problems):
    return [c for c in cases(problems, FIRST) if c.values[1] == c.values[0].directions[0]]


def ask(query, problem, count, given, direction):
    """The query's answers for arrays, in one call if the mechanism can."""
    mechanism = problem.make(problem.at)
    options: dict[str, Any] = {"adjacency": DIRECTIONS[direction]}
    if "one count" not in problem.tags:
        return query(mechanism * count, given, **options)
    parts = [query(mechanism * n, given[count == n], **options) for n in np.unique(count)]  # counts are sorted
    return dpjax.Bounds(*map(np.concatenate, zip(*parts, strict=True)))


@functools.cache
def bounds(name, direction):
    """(counts, epsilons, exact, errors) and the answers to them, from one call."""
    problem = BY_NAME[name]
    count, epsilon, exact, error = map(np.array, rows(name, direction))
    return count, epsilon, exact, error, ask(dpjax.delta_bounds, problem, count, epsilon, direction)


class TestTable:
    def test_names_and_tags(self):
        assert len(BY_NAME) == len(PROBLEMS)
        for p in PROBLEMS:
            assert p.tags <= set(TAGS) and p.tags & {"finite", "atoms", "smooth"}
        assert SLOW <= set(BY_NAME) and set(KNOWN_WIDE) <= set(BY_NAME)
        assert set().union(*(p.tags for p in PROBLEMS)) == set(TAGS)

    def test_every_problem_has_its_values(self):
        stored = json.loads((ORACLES / "compositions.json").read_text())["rows"]
        assert {(r["problem"], r["direction"]) for r in stored} == {(p.name, d) for p in PROBLEMS for d in p.directions}
        for p in PROBLEMS:
            for direction in p.directions:
                count, _, exact, error = map(np.array, rows(p.name, direction))
                assert sorted(count) == [1, 1, 2, 2, 10, 10, 1000, 1000]
                assert (exact > 1e-10).all() and (exact < 0.05).all()
                assert (error < 1e-11).all()

    def test_some_values_again(self):
        """The oracle in a process of its own, on one row of a problem of each method."""
        code = (
            "import sys; sys.path.insert(0, sys.argv[1]); import compositions as c, json, mpmath as mp\n"
            "for name, place in (('gaussian', 7), ('laplace', 5), ('discrete-laplace-2', 6), ('poisson-laplace', 2),"
            " ('poisson-laplace', 4), ('bounded-range-t', 6), ('discrete-loss', 5), ('gaussian-and-response', 3)):\n"
            "    rows = [r for r in json.loads(c.PATH.read_text())['rows'] if r['problem'] == name]\n"
            "    r = rows[place]; problem = c.problems()[name]()\n"
            "    d, _ = c.value(problem, r['direction'], r['count'], float(r['epsilon']))\n"
            "    assert abs(d / mp.mpf(r['delta']) - 1) < 1e-11, r\n"
        )
        subprocess.run([sys.executable, "-c", code, str(ORACLES)], check=True, timeout=120)

    def test_what_is_not_accurate_is_not_stored(self, tmp_path):
        """The oracle in a process of its own, asked for rows of which one has too large an error."""
        code = (
            "import sys; from pathlib import Path; sys.path.insert(0, sys.argv[1]); import compositions as c\n"
            "c.PATH = Path(sys.argv[2]); c.problems = lambda: {'good': lambda: '0e+00', 'bad': lambda: '2e-11', 'nan': lambda: 'nan'}\n"
            "row = {'direction': 'remove', 'count': 1, 'epsilon': '1.5'}\n"
            "c.rows = lambda name, error: [{'problem': name, 'error': e, **row} for e in ('0e+00', error)]\n"
            "c.make([])\n"
        )
        path = tmp_path / "stored.json"
        done = subprocess.run(
            [sys.executable, "-c", code, str(ORACLES), path], capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 1
        assert [line.partition(" is not stored: 1 of 2 rows")[0] for line in done.stderr.splitlines()] == ["bad", "nan"]
        assert {r["problem"] for r in json.loads(path.read_text())["rows"]} == {"good"}


@pytest.mark.parametrize(("problem", "direction"), cases(PROBLEMS))
class TestBounds:
    def test_honest(self, problem, direction):
        """Expected everywhere, also of answers that are not close."""
        count, epsilon, exact, error, found = bounds(problem.name, direction)
        slack = error + 1e-14
        assert (found.lower <= exact * (1 + slack)).all(), (count, epsilon, found.lower / exact - 1)
        assert (found.upper >= exact * (1 - slack)).all(), (count, epsilon, found.upper / exact - 1)
        assert (found.lower <= found.estimate).all() and (found.estimate <= found.upper).all()

    def test_close(self, problem, direction):
        count, _, exact, _, found = bounds(problem.name, direction)
        below, above = allowed(problem)
        assert (1 - found.lower / exact <= below).all(), (count, found.lower / exact - 1)
        assert (found.upper / exact - 1 <= above).all(), (count, found.upper / exact - 1)
        converged = found.status == int(dpjax.Status.CONVERGED)
        width = (found.upper - found.lower) / exact
        assert (width[converged] < 1e-8).all(), (count, width)


@pytest.mark.parametrize(("problem", "direction"), cases(PROBLEMS, FIRST))
class TestCurves:
    def test_epsilon_of_delta(self, problem, direction):
        count, epsilon, exact, _, _ = bounds(problem.name, direction)
        found = ask(dpjax.epsilon_bounds, problem, count, exact, direction)
        assert (found.lower <= epsilon * (1 + 1e-12)).all(), (count, epsilon, found.lower / epsilon - 1)
        assert (found.upper >= epsilon * (1 - 1e-12)).all(), (count, epsilon, found.upper / epsilon - 1)
        assert (found.upper <= epsilon * (1 + 1e-3)).all(), (count, epsilon, found.upper / epsilon - 1)

    def test_monotone(self, problem, direction):
        """delta falls with epsilon, epsilon rises with the count: of certified ends, up to what they leave open."""
        _, epsilon, _, _, _ = bounds(problem.name, direction)
        found = ask(dpjax.delta_bounds, problem, np.full(8, 10.0), np.linspace(0.2, 1.2, 8) * epsilon[4], direction)
        assert (found.lower[1:] <= found.upper[:-1]).all()
        assert (found.upper[1:] <= found.upper[:-1] * (1 + 1e-3)).all()
        counts = np.array([1.0, 2.0, 3.0, 7.0, 10.0, 100.0, 999.0, 1000.0])
        found = ask(dpjax.epsilon_bounds, problem, counts, np.full(8, 1e-3), direction)
        assert (found.lower[:-1] <= found.upper[1:]).all()
        assert (found.upper[:-1] <= found.upper[1:] * (1 + 1e-3) + 1e-12).all()


@pytest.mark.parametrize(("problem", "direction"), firsts(PROBLEMS))
def test_by_count_and_by_hand(problem, direction):
    """m + m, and a schedule of two equal steps: their intervals hold the value of m * 2."""
    count, epsilon, exact, error, _ = bounds(problem.name, direction)
    twice = count == 2
    one = problem.make(problem.at)
    two = [one + one]
    if "mixed" not in problem.tags:
        two.append(ComposedOver(jax.tree.map(lambda x: np.stack([x, x]), one)))
    below, above = allowed(problem)
    for run in two:
        found = dpjax.delta_bounds(run, epsilon[twice], adjacency=DIRECTIONS[direction])
        low, high = found.lower / exact[twice] - 1, found.upper / exact[twice] - 1
        slack = error[twice] + 1e-14
        assert (low <= slack).all() and (high >= -slack).all(), (run, low, high)
        assert (low >= -below).all() and (high <= above).all(), (run, low, high)


@pytest.mark.parametrize(("problem", "direction"), firsts([p for p in PROBLEMS if "parametric" not in p.tags]))
def test_traced(problem, direction):
    """jit does not fall below the truth; its derivative is the difference quotient of certified values."""
    options: dict[str, Any] = {"adjacency": DIRECTIONS[direction]}
    count, epsilon, exact, error, _ = bounds(problem.name, direction)
    ten = count == 10
    with jax.enable_x64(True):

        @jax.jit
        def both(x, epsilon):
            total = lambda x: dpjax.delta(problem.make(x) * 10.0, epsilon, **options)
            return total(x), jax.jacfwd(total)(x)

        value, slope = map(np.asarray, both(jnp.float64(problem.at), jnp.asarray(epsilon[ten])))
    assert (value >= exact[ten] * (1 - error[ten] - 1e-13)).all(), value / exact[ten] - 1
    step = 1e-3 * problem.at
    ends = [
        dpjax.delta_bounds(problem.make(problem.at + s * step) * np.full(2, 10.0), epsilon[ten], **options).upper
        for s in (-2, -1, 1, 2)
    ]
    quotient = (ends[0] - 8 * ends[1] + 8 * ends[2] - ends[3]) / (12 * step)
    # the second epsilon may be so near the largest loss that the step crosses it
    np.testing.assert_allclose(slope[0], quotient[0], rtol=1e-3)


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_bad_concrete_parameter(problem):
    value, name = problem.bad
    with pytest.raises(ValueError, match=name):
        problem.make(value)


@pytest.mark.parametrize(("problem", "direction"), firsts([p for p in PROBLEMS if "parametric" not in p.tags]))
def test_bad_traced_parameter(problem, direction):
    with jax.enable_x64(True):
        one = lambda x: dpjax.delta(problem.make(x), 1.0, adjacency=DIRECTIONS[direction])
        value, slope = jax.jit(jax.value_and_grad(one))(jnp.float64(problem.bad[0]))
    assert np.isnan(value) and np.isnan(slope)
