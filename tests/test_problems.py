"""What holds for every mechanism: the table of problems.py, against the values of oracles/compositions.py.

Honesty is asked of every row, closeness only of what the engine says it reached. One call answers all counts and
epsilons of a mechanism: compiling dominates.
"""

import functools
import json
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import BY_NAME, DIRECTIONS, PROBLEMS, TAGS, rows

import dpjax
from dpjax import Adjacency, ComposedOver

ORACLES = Path(__file__).parent / "oracles"
WIDTH = 1e-3  # of delta: what the lattice aims at
# Laws that take long to compile, or to evaluate: the rest is the default selection.
SLOW = {"truncated-poisson-gaussian", "zcdp", "renyi-dp", "mixture-of-gaussians", "laplace-gaussian-discrete"}
# Answers wider than WIDTH where the status says so: what is missing and why. Meant to empty.
KNOWN_WIDE: dict[str, float] = {}


def selected(problems):
    return [pytest.param(p, marks=pytest.mark.slow if p.name in SLOW else (), id=p.name) for p in problems]


def every(problems):
    """A case for every direction; the second directions are slow."""
    for p in problems:
        for i, direction in enumerate(p.directions):
            marks = pytest.mark.slow if p.name in SLOW or i else ()
            yield pytest.param(p, direction, marks=marks, id=f"{p.name}-{direction}")


@functools.cache
def bounds(name, direction):
    """(counts, epsilons, exact, errors) and the answers to them, from one call."""
    problem = BY_NAME[name]
    count, epsilon, exact, error = map(np.array, rows(name, direction))
    found = dpjax.delta_bounds(problem.make(problem.at) * count, epsilon, adjacency=DIRECTIONS[direction])
    return count, epsilon, exact, error, found


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
                assert (exact > 1e-10).all() and (exact < 0.05).all() and (error < 1e-11).all()

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


@pytest.mark.parametrize(("problem", "direction"), list(every(PROBLEMS)))
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
        width = (found.upper - found.lower) / exact
        limit = KNOWN_WIDE.get(problem.name, 0.01 if "parametric" in problem.tags else WIDTH)
        assert (width <= limit).all(), (count, width)
        assert (np.abs(found.estimate / exact - 1) <= np.maximum(width, 1e-12)).all()
        converged = found.status == int(dpjax.Status.CONVERGED)
        assert (width[converged] < 1e-8).all(), (count, width)

    def test_epsilon_of_delta(self, problem, direction):
        count, epsilon, exact, _, _ = bounds(problem.name, direction)
        run = problem.make(problem.at) * count
        found = dpjax.epsilon_bounds(run, exact, adjacency=DIRECTIONS[direction])
        assert (found.lower <= epsilon * (1 + 1e-12)).all(), (count, epsilon, found.lower / epsilon - 1)
        assert (found.upper >= epsilon * (1 - 1e-12)).all(), (count, epsilon, found.upper / epsilon - 1)
        assert (found.upper - found.lower <= 2e-3 * np.maximum(epsilon, 0.1)).all(), (count, found)

    def test_monotone(self, problem, direction):
        """delta falls with epsilon, epsilon rises with the count: of certified ends, up to what they leave open."""
        options = {"adjacency": DIRECTIONS[direction]}
        one = problem.make(problem.at)
        _, epsilon, _, _, _ = bounds(problem.name, direction)
        grid = np.linspace(0.2, 1.2, 8) * epsilon[4]
        found = dpjax.delta_bounds(one * np.full(8, 10.0), grid, **options)
        assert (found.lower[1:] <= found.upper[:-1]).all()
        assert (found.upper[1:] <= found.upper[:-1] * (1 + 1e-3)).all()
        counts = np.array([1.0, 2.0, 3.0, 7.0, 10.0, 100.0, 999.0, 1000.0])
        found = dpjax.epsilon_bounds(one * counts, np.full(8, 1e-3), **options)
        assert (found.lower[:-1] <= found.upper[1:]).all()
        assert (found.upper[:-1] <= found.upper[1:] * (1 + 1e-3) + 1e-12).all()


@pytest.mark.parametrize("problem", selected(PROBLEMS))
def test_by_count_and_by_hand(problem):
    """m * 2, m + m and a schedule of two equal steps are the same mechanism: the three intervals hold one number."""
    direction = problem.directions[0]
    options = {"adjacency": DIRECTIONS[direction]}
    count, epsilon, exact, _, _ = bounds(problem.name, direction)
    exact, epsilon = exact[count == 2], epsilon[count == 2]
    one = problem.make(problem.at)
    two = [one + one]
    if "mixed" not in problem.tags:
        two.append(ComposedOver(jax.tree.map(lambda x: np.stack([x, x]), one)))
    for run in two:
        found = dpjax.delta_bounds(run, epsilon, **options)
        assert (found.lower <= exact * (1 + 1e-12)).all() and (found.upper >= exact * (1 - 1e-12)).all(), (run, found)
        assert (found.upper - found.lower <= 0.01 * exact).all(), (run, found)


@pytest.mark.parametrize("problem", selected([p for p in PROBLEMS if "parametric" not in p.tags]))
def test_traced(problem):
    """jit does not fall below the truth; its derivative is that of the concrete estimate's difference quotient."""
    direction = problem.directions[0]
    options = {"adjacency": DIRECTIONS[direction]}
    count, epsilon, exact, error, _ = bounds(problem.name, direction)
    chosen = count == 10
    with jax.enable_x64(True):

        @jax.jit
        def both(x, epsilon):
            total = lambda x: dpjax.delta(problem.make(x) * 10.0, epsilon, **options)
            return total(x), jax.jacfwd(total)(x)

        value, slope = map(np.asarray, both(jnp.float64(problem.at), jnp.asarray(epsilon[chosen])))
    assert (value >= exact[chosen] * (1 - error[chosen] - 1e-13)).all(), value / exact[chosen] - 1
    step = 1e-3 * problem.at
    ends = [
        dpjax.delta_bounds(problem.make(problem.at + s * step) * np.full(2, 10.0), epsilon[chosen], **options).estimate
        for s in (-2, -1, 1, 2)
    ]
    quotient = (ends[0] - 8 * ends[1] + 8 * ends[2] - ends[3]) / (12 * step)
    np.testing.assert_allclose(slope, quotient, rtol=1e-3)


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_bad_concrete_parameter(problem):
    value, name = problem.bad
    with pytest.raises(ValueError, match=name):
        problem.make(value)


@pytest.mark.parametrize("problem", selected([p for p in PROBLEMS if "parametric" not in p.tags]))
def test_bad_traced_parameter(problem):
    with jax.enable_x64(True):
        one = lambda x: dpjax.delta(problem.make(x), 1.0, adjacency=DIRECTIONS[problem.directions[0]])
        value, slope = jax.jit(jax.value_and_grad(one))(jnp.float64(problem.bad[0]))
    assert np.isnan(value) and np.isnan(slope)
