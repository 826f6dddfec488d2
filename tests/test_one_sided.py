"""Where a mechanism's analysis is itself an upper bound, nothing is claimed from below."""

import jax
import numpy as np
import pytest

import dpjax
from dpjax import Adjacency, Gaussian, Status
from dpjax.mechanisms import attained

ONE_SIDED = {
    "allocation": dpjax.RandomAllocation(4, Gaussian(2.0)),
    "allocations": dpjax.RandomAllocation(4, Gaussian(2.0)) * 2 + Gaussian(3.0),
    "truncated": dpjax.TruncatedPoissonSampled(100, 0.1, 12, Gaussian(2.0)),
    "noisy max": dpjax.ReportNoisyMax(dpjax.Laplace(2.0)),
    "zcdp composed": dpjax.ZCDP(0.1) + dpjax.PureDP(0.1),
    "zcdp repeated": dpjax.ZCDP(0.01) * 3,
    "renyi sampled": dpjax.PoissonSampled(0.1, dpjax.RenyiDP([2.0, 4.0], [0.1, 0.2])),
}
FAST = ("noisy max",)  # the others compile a lattice
TWO_SIDED = {
    "zcdp": dpjax.ZCDP(0.1),
    "renyi": dpjax.RenyiDP([2.0, 4.0], [0.1, 0.2]),
    "flip": dpjax.PermuteAndFlip(0.5) * 3,
    "profile": dpjax.PrivacyProfile([0.5, 1.0], [1e-2, 1e-3]) * 2,
    "ranges": dpjax.BoundedRange(0.1) * 3 + Gaussian(2.0),
}


@pytest.mark.parametrize("name", ONE_SIDED | TWO_SIDED)
def test_what_is_attained(name):
    assert attained((ONE_SIDED | TWO_SIDED)[name], Adjacency.ADD_OR_REMOVE_ONE) == (name in TWO_SIDED)


def test_batches_of_fixed_size_under_replacement():
    """Orders above and below 1 have different worst neighbours, so that no neighbours have the pair of two runs."""
    fixed = dpjax.FixedSizeSampled(100, 5, Gaussian(2.0))
    assert attained(fixed, Adjacency.REPLACE_ONE) and attained(fixed * 2, Adjacency.ADD_OR_REMOVE_ONE)
    assert not attained(fixed * 2, Adjacency.REPLACE_ONE)
    assert attained(dpjax.PoissonSampled(0.1, Gaussian(2.0)) * 2, Adjacency.REPLACE_ONE)


@pytest.mark.parametrize(
    "name", [*FAST, *(pytest.param(n, marks=pytest.mark.slow) for n in ONE_SIDED if n not in FAST)]
)
def test_lower_ends_claim_nothing(name):
    found = dpjax.delta_bounds(ONE_SIDED[name], 0.2)
    assert found.lower == 0 < found.estimate <= found.upper
    assert found.status == Status.ONE_SIDED and "ONE_SIDED" in repr(found)
    assert isinstance(found.lower, np.float64)
    found = dpjax.epsilon_bounds(ONE_SIDED[name], [1e-3, 1e-5])
    assert (found.lower == 0).all() and (found.upper > 0).all() and (found.status == Status.ONE_SIDED).all()


@pytest.mark.slow
@pytest.mark.parametrize("name", TWO_SIDED)
def test_others_do(name):
    found = dpjax.epsilon_bounds(TWO_SIDED[name], 1e-2)
    assert 0 < found.lower and found.status != Status.ONE_SIDED


def test_exact_limits_stay_exact():
    found = dpjax.epsilon_bounds(ONE_SIDED["truncated"], [0.0, 1.0])
    assert found.upper[0] == np.inf and found.status[0] == Status.ONE_SIDED
    assert found.upper[1] == found.lower[1] == 0 and found.status[1] == Status.CONVERGED


def test_traced():
    @jax.jit
    def ask(sigma):
        return dpjax.epsilon_bounds(dpjax.ReportNoisyMax(dpjax.Laplace(sigma)), 1e-2)

    found, bad = ask(2.0), ask(-1.0)
    assert found.lower == 0 < found.upper and found.status == Status.ONE_SIDED
    assert np.isnan(bad.lower) and np.isnan(bad.upper) and bad.status == Status.INVALID
