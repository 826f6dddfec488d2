"""Zero-out neighbours of batches of limited size, attacked by enumeration: every batch of every small dataset on a line."""

import itertools
import math

import jax
import numpy as np
import pytest
from samplingtools import DIRECTIONS, double  # noqa: F401
from scipy.special import ndtr

import dpjax
from dpjax import Adjacency, FixedSizeSampled, Gaussian, Laplace, Status, TruncatedPoissonSampled
from dpjax.laws import loss_law
from dpjax.mechanisms import attained, zeroed

X = np.array([-3.0, -1.0, -0.3, -0.03, 0.0, 0.01, 0.1, 0.3, 0.7, 1.5, 3.0, 5.0])
ZERO = Adjacency.REPLACE_SPECIAL


def kept(size, rate, limit):
    """{batch: probability}: each record enters with ``rate``; of more than ``limit``, that many are kept at random."""
    found = dict.fromkeys(itertools.chain(*(itertools.combinations(range(size), k) for k in range(limit + 1))), 0.0)
    for drawn in itertools.chain(*(itertools.combinations(range(size), k) for k in range(size + 1))):
        weight = rate ** len(drawn) * (1 - rate) ** (size - len(drawn))
        batches = list(itertools.combinations(drawn, min(len(drawn), limit)))
        for batch in batches:
            found[batch] += weight / len(batches)
    return found


def sums(batches, values):
    """(probability of each sum of ``values`` over the batch, the sums)."""
    found = np.zeros(2 * len(values) + 1)
    for batch, weight in batches.items():
        found[len(values) + sum(values[i] for i in batch)] += weight
    return found, np.arange(-len(values), len(values) + 1)


def neighbours(batches, others):
    """The sums with the last record 1 and 0: that of -1 has the mirrored others."""
    (p, at), (q, _) = (sums(batches, (*others, last)) for last in (1, 0))
    return p, q, at


def cell_masses(edges, at, sigma):
    """Of the cells between ``edges`` under noise around each of ``at``; relative to themselves in both tails."""
    z = (edges - at[:, None]) / sigma
    return np.where(z[:, :-1] > 0, -np.diff(ndtr(-z), axis=1), np.diff(ndtr(z), axis=1))


def from_below(p, q, at, sigma, x=X, cells=1200):
    """P(S) - e^x Q(S) of a good set S: never above the hockey-stick divergence, and close to it."""
    edges = np.linspace(at[0] - 9 * sigma, at[-1] + 9 * sigma, cells)
    p, q = p @ cell_masses(edges, at, sigma), q @ cell_masses(edges, at, sigma)
    return np.maximum(p - np.exp(x)[:, None] * q, 0).sum(-1)


PROFILES = {
    direction: jax.jit(
        lambda size, rate, limit, sigma, x, direction=direction: loss_law(
            zeroed(TruncatedPoissonSampled(size, rate, limit, Gaussian(sigma))), direction
        ).profile(x)
    )
    for direction in DIRECTIONS
}


def pair(p, q, direction):
    return (p, q) if direction is Adjacency.REMOVE else (q, p)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_no_small_dataset_loses_more(direction):
    """2 to 6 records, all contents of the others in {-1, 0, 1}, all limits; rate 1 is a batch of fixed size."""
    closest, others_tried = 0.0, 0
    for size, rate, sigma in itertools.product(range(2, 7), (0.3, 0.8, 1.0), (0.6, 1.5)):
        for limit in range(1, size + 1):
            batches = kept(size, rate, limit)
            bound = np.asarray(PROFILES[direction](float(size), rate, float(limit), sigma, X))
            for others in itertools.combinations_with_replacement((-1, 0, 1), size - 1):
                p, q, at = neighbours(batches, others)
                found = from_below(*pair(p, q, direction), at, sigma)
                assert (bound >= found - 1e-13).all(), (size, rate, sigma, limit, others, X[bound < found])
                some = (X > 0) & (bound > 0)  # what a record adds loses no more than its rate allows: 0 beyond
                closest = max(closest, np.max(found[some] / bound[some], initial=0.0))
                others_tried += 1
    assert others_tried == 1590 and closest > 0.9999


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_batches_of_fixed_size_are_attained_at_each_order(direction):
    """Orders above 1 by others that are all unlike the record, or all like it, orders below 1 by the other ones."""
    size, limit, sigma = 5, 2, 1.3
    bound = np.asarray(PROFILES[direction](5.0, 1.0, 2.0, sigma, X))
    unlike, like = (
        from_below(*pair(p, q, direction), at, sigma, cells=40_000)
        for p, q, at in (neighbours(kept(size, 1.0, limit), (v,) * 4) for v in (-1, 1))
    )
    np.testing.assert_allclose(np.maximum(unlike, like), bound, rtol=1e-5)
    above, below = (unlike, like) if direction is Adjacency.REMOVE else (like, unlike)
    assert (above >= below - 1e-12)[X > 0].all() and (below >= above - 1e-12)[X < 0].all()
    assert (above > below * 1.01)[X > 0.05].all()
    less = np.asarray(PROFILES[direction](5.05, 1.0, 2.0, sigma, X))  # a rate 1% smaller is not enough
    assert (less < np.maximum(unlike, like) - 1e-4).any()


@pytest.mark.parametrize("direction", [DIRECTIONS[0], pytest.param(DIRECTIONS[1], marks=pytest.mark.slow)])
def test_never_full_is_poisson_sampling_and_always_full_is_a_fixed_size(direction):
    profile = jax.jit(lambda record, x: loss_law(record, direction).profile(x))
    poisson = profile(dpjax.PoissonSampled(0.2, Gaussian(1.3)), X)
    np.testing.assert_allclose(PROFILES[direction](9.0, 0.2, 9.0, 1.3, X), poisson, rtol=1e-13)
    fixed = profile(zeroed(FixedSizeSampled(9.0, 2.0, Gaussian(1.3))), X)
    np.testing.assert_allclose(PROFILES[direction](9.0, 1.0, 2.0, 1.3, X), fixed, rtol=1e-13)


def test_a_zero_record_costs_at_most_a_replacement_and_no_less_than_poisson_sampling():
    record = FixedSizeSampled(100.0, 7.0, Gaussian(1.0))
    profile = jax.jit(lambda record, x: loss_law(record, Adjacency.REMOVE).profile(x))
    replaced = jax.jit(lambda record, x: loss_law(record, Adjacency.REPLACE_ONE).profile(x))(record, X)
    found = profile(zeroed(record), X)
    assert (found <= replaced * (1 + 1e-13)).all() and (found < 0.9 * replaced)[X >= 0.1].all()
    assert (found >= profile(dpjax.PoissonSampled(0.07, Gaussian(1.0)), X) * (1 - 1e-13)).all()


def test_other_noise_costs_as_much_as_a_replacement():
    record = FixedSizeSampled(100.0, 7.0, Laplace(1.0))
    one, two = (
        jax.jit(lambda r, x, d=d: loss_law(r, d).profile(x))
        for d in (Adjacency.ADD, Adjacency.REPLACE_ONE)
    )  # fmt: skip
    np.testing.assert_allclose(one(zeroed(record), X), two(record, X), rtol=1e-14)


def test_records_are_swapped_wherever_they_are():
    inner = FixedSizeSampled(100, 7, Gaussian(1.0))
    run = (inner * 3 + Gaussian(2.0)) * 2
    swapped = zeroed(run)
    assert repr(swapped) == repr(run) and zeroed(swapped) is swapped
    found = swapped.mechanism.mechanisms[0].mechanism
    assert (
        isinstance(found, FixedSizeSampled)
        and type(found) is not FixedSizeSampled
        and type(zeroed(inner)) is type(found)
    )
    plain = Gaussian(2.0) * 3
    assert zeroed(plain) is plain


def test_what_is_attained():
    fixed, other = (zeroed(FixedSizeSampled(100, 7, noise)) for noise in (Gaussian(1.0), Laplace(1.0)))
    truncated = zeroed(TruncatedPoissonSampled(100, 0.1, 12, Gaussian(1.0)))
    assert attained(fixed, ZERO)
    assert not any(attained(m, ZERO) for m in (fixed * 2, other, truncated, truncated * 2))


@pytest.mark.slow
def test_queries():
    record = FixedSizeSampled(5, 2, Gaussian(1.3))
    found = dpjax.delta_bounds(record, X[5:], adjacency=ZERO)
    exact = np.max([from_below(*neighbours(kept(5, 1.0, 2), (-1,) * 4), 1.3, X[5:], cells=40_000)], axis=0)
    np.testing.assert_allclose(found.upper, exact, rtol=1e-5)
    assert (found.status == Status.CONVERGED).all() and (found.lower >= exact * (1 - 1e-5)).all()
    truncated = dpjax.epsilon_bounds(TruncatedPoissonSampled(5, 0.6, 2, Gaussian(1.3)), 1e-3, adjacency=ZERO)
    assert truncated.lower == 0 < truncated.upper and truncated.status == Status.ONE_SIDED


@pytest.mark.slow
def test_two_runs_on_small_datasets():
    """Runs compose: all contents of the others, two runs at once, on a grid of two outcomes."""
    sigma, x = 1.2, np.array([0.05, 0.4, 1.0])
    for rate in (1.0, 0.7):
        record = TruncatedPoissonSampled(3, rate, 1, Gaussian(sigma)) * 2
        found = dpjax.delta_bounds(record, x, adjacency=ZERO)
        assert (found.status == Status.ONE_SIDED).all() and (found.lower == 0).all() and (found.upper > 0).all()
        closest = 0.0
        for others in itertools.combinations_with_replacement((-1, 0, 1), 2):
            p, q, at = neighbours(kept(3, rate, 1), others)
            masses = cell_masses(np.linspace(at[0] - 8, at[-1] + 8, 500), at, sigma)
            p, q = p @ masses, q @ masses
            for one, two in ((p, q), (q, p)):
                gap = np.multiply.outer(one, one) - np.exp(x)[:, None, None] * np.multiply.outer(two, two)
                exact = np.maximum(gap, 0).sum((1, 2))
                assert (found.upper >= exact - 1e-12).all()
                closest = max(closest, np.max(exact / found.upper))
        assert 0.5 < closest < 1


def test_the_gap_solves_its_equation():
    from dpjax.laws.zeroed import _gap

    for rate, mu, x in itertools.product((1e-9, 0.01, 0.6, 1.0), (0.01, 1.0, 5.0), (0.0, 1e-9, 0.2, 4.0, 60.0)):
        gap = float(_gap(rate, mu, x))
        u = (x + gap) / mu + 1.5 * mu
        log_a, log_b = 2 * mu * u - 2 * mu * mu, mu * u - mu * mu / 2
        left = np.logaddexp(math.log1p(-rate) if rate < 1 else -np.inf, math.log(rate) + log_a)
        right = np.logaddexp(math.log1p(-rate) if rate < 1 else -np.inf, math.log(rate) + log_b)
        assert left - right == pytest.approx(x, rel=1e-12, abs=1e-13)
