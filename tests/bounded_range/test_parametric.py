"""Records known by their parameters, through the library's queries: alone, repeated, and mixed with each other."""

import jax
import mpmath as mp
import numpy as np
import pytest
from rangetools import oracle

import dpjax
from dpjax import bounded_range as br
from dpjax import pure_dp

MIXED = dpjax.Composed(
    [dpjax.BoundedRange(0.4), dpjax.PureDP(0.2), dpjax.BoundedRange(0.4, t=0.1), dpjax.BoundedRange(0.2)]
)
UNITS = [4, (4, 2), (4, 1), 2]  # of 0.1


def test_equal_mechanisms():
    run = dpjax.ExponentialMechanism(0.5) * 10
    assert dpjax.delta(run, 1.25) == br.delta(1.25, 0.5, count=10)
    bounds = dpjax.delta_bounds(run, 1.25)
    assert bounds.lower <= bounds.estimate <= bounds.upper
    assert bounds.status == dpjax.Status.GRID and bounds.method == dpjax.Method.RECURSION
    response = dpjax.ApproximateDP(0.1, 1e-6) * 100
    assert dpjax.delta(response, 2.0) == pure_dp.optimal_delta(2.0, 0.1, 1e-6, count=100)
    assert dpjax.log_delta(response, 2.0) == pytest.approx(np.log(dpjax.delta(response, 2.0)), rel=1e-12)
    counts = dpjax.PureDP(0.1) * np.array([1, 10, 100])
    np.testing.assert_array_equal(dpjax.delta(counts, 0.05), pure_dp.optimal_delta(0.05, 0.1, count=[1, 10, 100]))


def test_different_mechanisms():
    pures = dpjax.Composed([dpjax.PureDP(e) for e in (0.1, 0.2, 0.3)])
    schedule = dpjax.ComposedOver(dpjax.PureDP(np.array([0.1, 0.2, 0.3])))
    expected = pure_dp.optimal_delta(0.25, [0.1, 0.2, 0.3])
    assert dpjax.delta(pures, 0.25) == dpjax.delta(schedule, 0.25) == expected
    assert dpjax.delta(pures, 0.25, adjacency=dpjax.Adjacency.REPLACE_ONE) == expected


def test_a_mixture_contains_the_limit_of_a_plain_recursion():
    least, limit, moves = oracle.extrapolated(UNITS, (3, 0.1), 64)
    bounds = dpjax.delta_bounds(MIXED, 0.3)
    assert least <= bounds.upper * (1 + 1e-13)
    assert bounds.lower <= limit + 3 * moves and limit - 3 * moves <= bounds.upper
    assert bounds.upper - bounds.lower < 0.01 * limit
    # with nothing to choose, it is the sum over outcomes
    given = dpjax.Composed(
        [dpjax.PureDP(0.2), dpjax.BoundedRange(0.4, t=0.1), dpjax.BoundedRange(0.3, t=0.2), dpjax.PureDP(0.1)]
    )
    with mp.workdps(30):
        exact = float(oracle.delta_of_pairs(["0.4", "0.4", "0.3", "0.2"], ["0.2", "0.1", "0.2", "0.1"], "0.23"))
        below = float(oracle.delta_of_pairs(["0.4", "0.4", "0.3", "0.2"], ["0.2", "0.1", "0.2", "0.1"], "-0.2"))
    for x, value in ((0.23, exact), (-0.2, below)):
        bounds = dpjax.delta_bounds(given, x)
        assert bounds.lower <= value <= bounds.upper and bounds.upper - bounds.lower < 2e-3 * value


def test_failures_in_a_mixture():
    failing = dpjax.Composed([dpjax.BoundedRange(0.4), dpjax.ApproximateDP(0.2, 0.01), *MIXED.mechanisms[2:]])
    alone, beside = dpjax.delta_bounds(MIXED, 0.3), dpjax.delta_bounds(failing, 0.3)
    np.testing.assert_allclose(beside[:3], [1 - 0.99 * (1 - d) for d in alone[:3]], rtol=1e-12)


@pytest.mark.slow
def test_epsilon_of_a_mixture():
    failing = dpjax.Composed([dpjax.BoundedRange(0.4), dpjax.ApproximateDP(0.2, 0.01), *MIXED.mechanisms[2:]])
    for record, delta in ((MIXED, 0.02), (failing, 0.03)):
        bounds = dpjax.epsilon_bounds(record, delta)
        assert bounds.lower <= bounds.estimate <= bounds.upper
        assert dpjax.delta_bounds(record, bounds.upper).lower <= delta <= dpjax.delta_bounds(record, bounds.lower).upper
    assert dpjax.epsilon(failing, 0.005) == np.inf
    by_size = jax.jit(jax.grad(lambda e: dpjax.epsilon(dpjax.PureDP(e) + dpjax.BoundedRange(0.4), 0.01)))(0.2)
    step = lambda e: dpjax.epsilon_bounds(dpjax.PureDP(e) + dpjax.BoundedRange(0.4), 0.01).estimate
    assert by_size == pytest.approx((step(0.21) - step(0.19)) / 0.02, rel=0.03)


def test_traced():
    run = lambda e: dpjax.delta(dpjax.PureDP(e) * 3, 0.4)
    assert float(jax.jit(run)(0.3)) >= run(float(np.float32(0.3)))
    assert np.isnan(jax.jit(run)(-0.3))
    assert float(jax.grad(run)(0.3)) == pytest.approx((run(0.301) - run(0.299)) / 0.002, rel=1e-3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: dpjax.BoundedRange(-1.0), "epsilon = -1.0"),
        (lambda: dpjax.BoundedRange(1.0, t=2.0), "t = 2.0"),
        (lambda: dpjax.PureDP(np.inf), "epsilon = inf"),
        (lambda: dpjax.ApproximateDP(1.0, 2.0), "delta = 2.0"),
        (lambda: dpjax.delta(dpjax.SelfComposed(dpjax.PureDP(0.1), 1.5), 0.1), "count = 1.5"),
        (lambda: dpjax.delta(dpjax.PureDP(0.1), 0.1, method="levy"), "method = 'levy'"),
    ],
)
def test_what_is_refused(call, message):
    with pytest.raises((ValueError, NotImplementedError), match=message):
        call()
