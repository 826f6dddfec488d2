"""Ranges, pure and approximate DP beside mechanisms of other kinds: sums over outcomes of the other's profile, shifted."""

import itertools

import jax
import numpy as np
import pytest
import scipy.integrate
from scipy.special import ndtr

import dpjax
from dpjax import Adjacency, _order
from dpjax import bounded_range as br

X = np.array([-0.4, 0.3, 1.0, 2.0])
SIGMA, RATE = 1.5, 0.2


# Profiles of the others, from their definitions; ``add``: the neighbour has a record more.


def gaussian(x, add=False):
    return ndtr(0.5 / SIGMA - x * SIGMA) - np.exp(x) * ndtr(-0.5 / SIGMA - x * SIGMA)


def laplace(x, add=False):
    most = 1 / SIGMA
    return np.where(x < -most, -np.expm1(x), -np.expm1(np.minimum((x - most) / 2, 0.0)))


def sampled(x, add=False):
    """The test that is best: reject above z."""
    odds = (np.exp(-x if add else x) - (1 - RATE)) / RATE
    z = 0.5 + SIGMA**2 * np.log(np.maximum(odds, 1e-300))
    if add:
        return ndtr(z / SIGMA) - np.exp(x) * ((1 - RATE) * ndtr(z / SIGMA) + RATE * ndtr((z - 1) / SIGMA))
    mixture = (1 - RATE) * ndtr(-z / SIGMA) + RATE * ndtr((1 - z) / SIGMA)
    return np.where(odds > 0, mixture - np.exp(x) * ndtr(-z / SIGMA), -np.expm1(x))


OTHERS = {
    "gaussian": (gaussian, dpjax.Gaussian(SIGMA)),
    "laplace": (laplace, dpjax.Laplace(SIGMA)),
    "sampled": (sampled, dpjax.PoissonSampled(RATE, dpjax.Gaussian(SIGMA))),
}


def beside(other, pairs, x, deltas=()):
    """delta of fixed pairs (eps, t) beside one run of ``other``: a sum over all outcomes, the worse direction."""
    sides = [[(np.expm1(t - e) / np.expm1(-e), t), (1 - np.expm1(t - e) / np.expm1(-e), t - e)] for e, t in pairs]
    kept = np.prod([1 - d for d in deltas])
    both = [
        sum(np.prod([m for m, _ in way]) * other(x - sum(l for _, l in way), add) for way in itertools.product(*sides))
        for add in (False, True)
    ]
    return 1 - kept + kept * np.maximum(*both)


FIXED = {
    "pure, gaussian": (dpjax.PureDP(0.5), [(1.0, 0.5)], (), "gaussian"),
    "t, gaussian": (dpjax.BoundedRange(0.8, 0.5) * 3, [(0.8, 0.5)] * 3, (), "gaussian"),
    "t, laplace": (dpjax.BoundedRange(0.8, 0.5) + dpjax.PureDP(0.3), [(0.8, 0.5), (0.6, 0.3)], (), "laplace"),
    "t, sampled": (dpjax.BoundedRange(0.8, 0.5) * 2, [(0.8, 0.5)] * 2, (), "sampled"),
    "approximate, sampled": (dpjax.ApproximateDP(0.4, 1e-2) * 2, [(0.8, 0.4)] * 2, (1e-2, 1e-2), "sampled"),
}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n == "pure, gaussian" else pytest.mark.slow) for n in FIXED]
)
def test_fixed_pairs(name):
    record, pairs, deltas, other = FIXED[name]
    profile, mechanism = OTHERS[other]
    exact = beside(profile, pairs, X, deltas)
    bounds = dpjax.delta_bounds(record + mechanism, X)
    assert np.all(bounds.lower <= exact * (1 + 1e-12)) and np.all(exact * (1 - 1e-12) <= bounds.upper)
    assert np.all(bounds.upper - bounds.lower <= 2e-3 * exact)


@pytest.mark.slow
@pytest.mark.parametrize("name", FIXED)
def test_epsilon_of_fixed_pairs(name):
    record, pairs, deltas, other = FIXED[name]
    profile, mechanism = OTHERS[other]
    exact = beside(profile, pairs, X, deltas)
    some = (X > 0) & (exact > 0)  # delta 0 says only that epsilon is beyond the largest loss
    back = dpjax.epsilon_bounds(record + mechanism, exact[some])
    assert np.all(back.lower <= X[some] * (1 + 1e-9)) and np.all(X[some] * (1 - 1e-9) <= back.upper)
    assert np.all(back.upper - back.lower < 0.01)


def one_range(eps, x):
    """sup over t of the delta of RR_{eps,t}."""
    inside = np.expm1((np.clip(x, -eps, eps) - eps) / 2) ** 2 / -np.expm1(-eps)
    return np.where(x < -eps, -np.expm1(np.minimum(x, 0.0)), inside)


def gaussian_first(delta, x):
    """The best that an adversary can do who sees the Gaussian's outcome before any choice of t."""
    mean = 0.5 / SIGMA**2
    density = lambda z: np.exp(-z * z / 2) / np.sqrt(2 * np.pi)
    part = lambda z: density(z) * float(delta(x - mean - z / SIGMA))
    return scipy.integrate.quad(part, -9, 9, limit=400, epsabs=1e-11)[0]


@pytest.mark.slow
def test_an_adaptive_range_beside_a_gaussian():
    """Exact where the Gaussian comes first; no t that is fixed beforehand, in any order, is above it."""
    record = dpjax.BoundedRange(0.8) + dpjax.Gaussian(SIGMA)
    bounds = dpjax.delta_bounds(record, X)
    exact = np.array([gaussian_first(lambda y: one_range(0.8, y), x) for x in X])
    ts = np.linspace(0.02, 0.78, 39)
    best = np.max([beside(gaussian, [(0.8, t)], X) for t in ts], axis=0)
    assert np.all(best <= exact)
    assert np.all(bounds.lower <= best * 1.0001) and np.all(exact <= bounds.upper * (1 + 1e-9))
    assert np.all(bounds.upper <= 1.01 * exact)
    assert np.all(bounds.status == dpjax.Status.GRID)


@pytest.mark.slow
@pytest.mark.parametrize("other", OTHERS)
def test_two_adaptive_ranges(other):
    """Against every pair of fixed t on a grid, and an adversary who chooses the second t by the first outcome."""
    profile, mechanism = OTHERS[other]
    bounds = dpjax.delta_bounds(dpjax.BoundedRange(0.8) * 2 + mechanism, X)
    ts = np.linspace(0.04, 0.76, 19)
    fixed = np.max([beside(profile, [(0.8, t), (0.8, u)], X) for t in ts for u in ts], axis=0)
    up = lambda t: np.expm1(t - 0.8) / np.expm1(-0.8)
    then = lambda x: np.max([beside(profile, [(0.8, u)], x) for u in ts], axis=0)
    moving = np.max([up(t) * then(X - t) + (1 - up(t)) * then(X + 0.8 - t) for t in ts], axis=0)
    # the upper end is against one who sees the other mechanism first, too: more than this adversary does
    assert np.all(fixed <= moving * (1 + 1e-12)) and np.all(moving <= bounds.upper)
    assert np.all(bounds.lower <= moving)
    least = dpjax.epsilon_bounds(dpjax.BoundedRange(0.8) * 2 + mechanism, moving[1:])
    assert np.all(least.upper >= X[1:] * (1 - 1e-9)) and np.all(least.lower <= least.upper)


def in_turn(x, epsilons, points=33):
    """The adaptive optimum on a grid of t, choices made after each outcome."""
    if len(epsilons) == 1:
        return one_range(epsilons[0], x)
    eps, rest = epsilons[0], epsilons[1:]
    ts = np.linspace(0, eps, points)
    up = np.expm1(ts - eps) / np.expm1(-eps)
    return (
        np.max(up * in_turn(x - ts, rest) + (1 - up) * in_turn(x + eps - ts, rest))
        if np.ndim(x) == 0
        else np.array([in_turn(float(v), epsilons, points) for v in x])
    )


def test_repetition_keeps_the_order():
    """(0.5, 0.2) * 2 is run 0.5, 0.2, 0.5, 0.2, which costs more than 0.5, 0.5, 0.2, 0.2."""
    pair = dpjax.Composed([dpjax.BoundedRange(0.5), dpjax.Gaussian(1.0), dpjax.BoundedRange(0.2)])
    rest, schedule = _order.in_order(pair * 2).mechanisms
    np.testing.assert_array_equal(schedule.mechanism.mechanism.epsilon, [0.5, 0.2, 0.5, 0.2])
    assert not _order._different(rest)
    counts = _order.in_order(pair * np.array([1, 3])).mechanisms[1].mechanism.count
    np.testing.assert_array_equal(counts, [[1, 1], [1, 1], [0, 1], [0, 1], [0, 1], [0, 1]])
    over = dpjax.ComposedOver(dpjax.Composed([dpjax.BoundedRange([0.1, 0.3]), dpjax.BoundedRange(0.4) * 2]))
    schedule = _order.in_order(over).mechanisms[1].mechanism
    np.testing.assert_array_equal(schedule.mechanism.epsilon, [0.1, 0.4, 0.3, 0.4])
    np.testing.assert_array_equal(schedule.count, [1, 2, 1, 2])
    for kept in (pair, dpjax.BoundedRange(0.5) * 3 + dpjax.BoundedRange(0.2), dpjax.PureDP(0.1) * 2):
        assert _order.in_order(kept) is kept


@pytest.mark.slow
def test_repetition_by_laws():
    pair = dpjax.Composed([dpjax.BoundedRange(0.5), dpjax.BoundedRange(0.2)])
    bounds = dpjax.delta_bounds(pair * 2, 0.3, method="lattice")
    exact = br.delta_bounds(0.3, [0.5, 0.2, 0.5, 0.2])
    assert bounds.lower <= exact.upper and exact.lower <= bounds.upper <= 1.005 * exact.upper
    assert exact.lower > br.delta_bounds(0.3, [0.5, 0.5, 0.2, 0.2]).upper * 1.01
    again = dpjax.delta_bounds(pair * 2 + dpjax.Gaussian(2.0), 0.3)
    schedule = dpjax.ComposedOver(dpjax.BoundedRange([0.5, 0.2, 0.5, 0.2])) + dpjax.Gaussian(2.0)
    np.testing.assert_allclose(again[:3], dpjax.delta_bounds(schedule, 0.3)[:3], rtol=1e-9)


def test_a_sampled_run_is_the_supremum_over_t():
    """One run of each: the base's delta at the threshold that sampling makes of x, both directions."""
    eps = np.array([0.4, 1.2])[:, None]
    x = np.array([-0.1, 0.05, 0.1, 0.2])
    for record, base in (
        (dpjax.BoundedRange(eps), one_range),
        (dpjax.PureDP(eps), lambda e, y: np.where(y < -e, -np.expm1(np.minimum(y, 0)),
                                                  np.maximum(np.exp(e) - np.exp(y), 0) / (1 + np.exp(e)))),
    ):  # fmt: skip
        a = np.exp(x)
        odds = np.maximum((a - (1 - RATE)) / RATE, 1e-300)
        remove = np.where(a > 1 - RATE, RATE * base(eps, np.log(odds)), 1 - a)
        left = np.maximum(1 - (1 - RATE) * a, 1e-300)
        add = left * base(eps, np.log(RATE * a / left))
        for way, exact in ((Adjacency.REMOVE, remove), (Adjacency.ADD, add)):
            got = dpjax.delta_bounds(dpjax.PoissonSampled(RATE, record), x, adjacency=way)
            assert np.all(got.lower <= exact * (1 + 1e-12) + 1e-16) and np.all(exact <= got.upper * (1 + 1e-12) + 1e-16)
            np.testing.assert_allclose(got.upper, exact, rtol=1e-9, atol=1e-14)


@pytest.mark.slow
def test_lower_ends_of_sampled_ranges_are_below_the_optimum():
    """Sampled with certainty, two runs: the optimum is 0.2059, the composition of two suprema 0.2270."""
    bounds = dpjax.delta_bounds(dpjax.PoissonSampled(1.0, dpjax.BoundedRange(1.0)) * 2, 0.3)
    assert bounds.lower <= in_turn(0.3, [1.0, 1.0]) <= bounds.upper
    assert 0.19 < bounds.lower and bounds.upper < 0.2271


@pytest.mark.slow
def test_traced_bounds_hold_the_optimum():
    query = lambda e: dpjax.delta_bounds(dpjax.BoundedRange(e) + dpjax.Gaussian(SIGMA), 0.3)
    found = jax.jit(query)(0.8)
    exact = gaussian_first(lambda y: one_range(0.8, y), 0.3)
    assert found.lower <= exact <= found.upper <= 1.001 * exact
    # composed, each run is the supremum over t of its own: above the adaptive optimum, never below
    two = jax.jit(lambda e: dpjax.delta_bounds(dpjax.BoundedRange(e) * 2 + dpjax.Gaussian(SIGMA), 0.3))(0.8)
    numbers = dpjax.delta_bounds(dpjax.BoundedRange(0.8) * 2 + dpjax.Gaussian(SIGMA), 0.3)
    assert two.lower <= numbers.upper and numbers.lower <= two.upper


@pytest.mark.slow
def test_what_is_not_written_before_it_runs():
    """Traced counts, counts in batches, and schedules of repeated mechanisms: by the laws."""
    traced = jax.jit(lambda n: dpjax.delta(dpjax.PureDP(0.1) * n, 0.2))(3.0)
    exact = dpjax.delta(dpjax.PureDP(0.1) * 3, 0.2)
    assert exact <= traced <= 1.002 * exact
    schedule = dpjax.ComposedOver(dpjax.PureDP([0.1, 0.2]) * 3)
    exact = dpjax.delta(dpjax.Composed([dpjax.PureDP(0.1) * 3, dpjax.PureDP(0.2) * 3]), 0.3)
    assert exact <= dpjax.delta(schedule, 0.3) * (1 + 1e-12) <= 1.002 * exact
    several = dpjax.delta(dpjax.PureDP(0.1) * np.array([1, 2]) + dpjax.PureDP(0.2), 0.15)
    for count, got in zip((1, 2), several, strict=True):
        exact = dpjax.delta(dpjax.PureDP(0.1) * count + dpjax.PureDP(0.2), 0.15)
        assert exact * (1 - 1e-12) <= got <= 1.002 * exact
