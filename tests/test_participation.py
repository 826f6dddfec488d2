"""Sensitivities of strategies, against all sets of steps and all signs; what jax_privacy computes, in its own formulas."""

import itertools
import math

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dpjax
from dpjax import participation


def patterns(steps, participations, separation):
    """All sets of steps that a record may take part in."""
    for k in range(1, participations + 1):
        for chosen in itertools.combinations(range(steps), k):
            if all(b - a >= separation for a, b in itertools.pairwise(chosen)):
                yield chosen


def attacked(strategy, chosen):
    """The most that contributions of one dimension, +1 or -1, move C G by: a lower end."""
    signs = np.array([s for s in itertools.product([-1.0, 1.0], repeat=len(chosen)) if s[0] > 0])
    return np.linalg.norm(strategy[:, chosen] @ signs.T, axis=0).max()


def bounded(strategy, chosen):
    """An upper end for contributions of any dimension."""
    x = strategy[:, chosen]
    return math.sqrt(np.abs(x.T @ x).sum())


@st.composite
def strategies(draw, elements, bands=None, toeplitz=False):
    n = draw(st.integers(1, 7))
    values = iter(draw(st.lists(elements, min_size=n * n, max_size=n * n)))
    c = np.zeros((n, n))
    for i, j in itertools.product(range(n), repeat=2):
        if i >= j and (bands is None or i - j < bands):
            c[i, j] = next(values)
    return c


HALVES = st.integers(-4, 4).map(lambda x: x / 2)
ALLOWED = {"participations": st.integers(1, 4), "separation": st.integers(1, 4)}


class TestBruteForce:
    @given(strategies(HALVES), *ALLOWED.values())
    def test_never_below_an_attack(self, strategy, participations, separation):
        found = participation.sensitivity(strategy, participations=participations, separation=separation)
        sets = list(patterns(strategy.shape[1], participations, separation))
        assert found >= max(attacked(strategy, s) for s in sets)
        assert found >= max(bounded(strategy, s) for s in sets) * (1 - 1e-15)

    @given(strategies(st.integers(0, 4).map(float), bands=3), st.integers(1, 4), st.integers(3, 5))
    def test_exact_if_banded(self, strategy, participations, separation):
        found = participation.sensitivity(strategy, participations=participations, separation=separation)
        exact = max(attacked(strategy, s) for s in patterns(strategy.shape[1], participations, separation))
        assert exact <= found <= exact * (1 + 1e-12)

    @given(strategies(HALVES))
    def test_exact_for_one_participation(self, strategy):
        exact = np.linalg.norm(strategy, axis=0).max()
        assert exact * (1 - 1e-15) <= participation.sensitivity(strategy) <= exact * (1 + 1e-12)

    @given(st.lists(st.integers(0, 8).map(float), min_size=1, max_size=7), st.integers(0, 3), *ALLOWED.values())
    def test_exact_if_toeplitz_and_falling(self, coefficients, more, participations, separation):
        coefficients = sorted(coefficients, reverse=True)
        steps = len(coefficients) + more
        allowed = {"participations": participations, "separation": separation}
        found = participation.toeplitz_sensitivity(coefficients, steps, **allowed)
        strategy = participation.toeplitz(coefficients, steps)
        exact = max(attacked(strategy, s) for s in patterns(steps, participations, separation))
        assert exact <= found <= exact * (1 + 1e-12)
        assert participation.sensitivity(strategy, **allowed) >= found * (1 - 1e-12)

    @given(st.lists(HALVES, min_size=1, max_size=7), *ALLOWED.values())
    def test_any_toeplitz(self, coefficients, participations, separation):
        allowed = {"participations": participations, "separation": separation}
        found = participation.toeplitz_sensitivity(coefficients, len(coefficients), **allowed)
        strategy = participation.toeplitz(coefficients, len(coefficients))
        assert found >= max(attacked(strategy, s) for s in patterns(len(coefficients), participations, separation))

    @given(strategies(HALVES), st.integers(1, 4))
    def test_epochs(self, strategy, epochs):
        strategy = np.kron(np.tri(epochs), strategy)  # steps that epochs divides
        n = strategy.shape[1]
        found = participation.epoch_sensitivity(strategy, epochs)
        sets = [tuple(range(i, n, n // epochs)) for i in range(n // epochs)]
        assert found >= max(attacked(strategy, s) for s in sets)
        exact = max(bounded(strategy, s) for s in sets)
        assert exact * (1 - 1e-15) <= found <= exact * (1 + 1e-12) + 1e-300


class TestTree:
    @pytest.mark.parametrize("steps", [*range(1, 18), 100])
    def test_levels_are_what_a_record_moves(self, steps):
        tree = participation.tree(steps)
        assert len(np.unique(tree, axis=0)) == len(tree) == sum(steps >> level for level in range(steps.bit_length()))
        levels = participation.sensitivity(tree) ** 2
        assert levels == pytest.approx(math.floor(math.log2(steps)) + 1)
        gaussian = dpjax.TreeAggregation(3.0, steps).gaussian().noise_multiplier
        assert 3.0 / math.sqrt(levels) == pytest.approx(gaussian) and gaussian <= 3.0 / math.sqrt(round(levels))

    def test_prefix_sums_follow_from_the_nodes(self):
        tree = participation.tree(11)
        solution, *_ = np.linalg.lstsq(tree.T, np.tri(11).T)
        np.testing.assert_allclose(tree.T @ solution, np.tri(11).T, atol=1e-12)

    def test_largest_tree_counts(self):
        assert dpjax.TreeAggregation(1.0, [3, 8, 5]).gaussian().noise_multiplier == pytest.approx(0.5)
        assert dpjax.TreeAggregation(1.0, 0).gaussian().noise_multiplier == math.inf


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: participation.sensitivity([1.0]), r"shape \(1,\), but it must be a matrix"),
        (lambda: participation.sensitivity([[math.inf]]), "strategy"),
        (lambda: participation.sensitivity([[1.0]], participations=0), "participations = 0"),
        (lambda: participation.sensitivity([[1.0]], separation=0), "separation = 0"),
        (
            lambda: participation.epoch_sensitivity(np.eye(3), 2),
            "epochs = 2, but it must divide the number of steps, 3",
        ),
        (lambda: participation.toeplitz_sensitivity([], 3), "coefficients"),
        (lambda: participation.toeplitz_sensitivity([1.0, 2.0], 1), "at most steps = 1"),
        (lambda: participation.toeplitz([math.nan], 3), "coefficients"),
        (lambda: participation.tree(0), "steps = 0"),
        (lambda: dpjax.MatrixFactorization(1.0, 0.0), "sensitivity = 0.0"),
        (lambda: dpjax.MatrixFactorization(1.0, math.inf), "sensitivity = inf"),
        (lambda: dpjax.MatrixFactorization(-1.0), "noise_multiplier = -1.0"),
        (lambda: dpjax.TreeAggregation(1.0, 1.5), r"step_counts = 1.5"),
        (lambda: dpjax.TreeAggregation(1.0, []), "step_counts is empty"),
        (lambda: dpjax.banded_factorization(1.0, 0.1, 10, 0), "bands = 0"),
        (lambda: dpjax.banded_factorization(1.0, 0.1, 10.5, 2), "steps = 10.5"),
        (lambda: dpjax.banded_factorization(1.0, 0.1, 10, 2, 0.0), "column_norm = 0.0"),
    ],
)
def test_bad_numbers_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("call", [participation.sensitivity, lambda x: participation.toeplitz(x[0], 3)])
def test_traced_strategies_are_refused(call):
    with pytest.raises(TypeError, match="traced"):
        jax.jit(call)(np.eye(3))


class TestMechanisms:
    def test_is_the_gaussian_of_its_sensitivity(self):
        """delta of a Gaussian in closed form, for every adjacency; composed, sampled, scheduled."""
        from scipy.stats import norm

        for moves, adjacency in ((1, dpjax.Adjacency.REPLACE_SPECIAL), (2, dpjax.Adjacency.REPLACE_ONE)):
            mu = moves * 1.5 / 3.0
            exact = norm.cdf(mu / 2 - 1 / mu) - math.e * norm.cdf(-mu / 2 - 1 / mu)
            found = dpjax.delta(dpjax.MatrixFactorization(3.0, 1.5), 1.0, adjacency=adjacency)
            assert exact * (1 - 1e-13) <= found <= exact * (1 + 1e-9)

    @pytest.mark.parametrize(
        ("record", "gaussian"),
        [
            (dpjax.MatrixFactorization(3.0, 1.5), dpjax.Gaussian(2.0)),
            (dpjax.TreeAggregation(4.0, 10), dpjax.Gaussian(2.0)),
            (dpjax.TreeAggregation([4.0, 8.0], [[3, 10], [8, 2]]), dpjax.Gaussian([2.0, 4.0])),
        ],
    )
    def test_every_query_takes_it(self, record, gaussian):
        over = lambda m: m if np.ndim(gaussian.noise_multiplier) == 0 else dpjax.ComposedOver(m)
        for nested in (lambda m: over(m), lambda m: over(m) * 3 + dpjax.Gaussian(5.0)):
            a, b = nested(record), nested(gaussian)
            queries = [
                lambda m: dpjax.epsilon(m, 1e-5),
                lambda m: dpjax.log_delta(m, 2.0),
                lambda m: dpjax.renyi(m, 3.0),
                lambda m: dpjax.gdp_mu(m),
                lambda m: dpjax.advantage(m),
                lambda m: dpjax.tradeoff(m, 0.1),
                lambda m: dpjax.privacy_loss_cdf(m, 0.5),
            ]
            for query in queries:
                assert query(a) == pytest.approx(query(b), rel=1e-9)

    def test_samplers_and_laws_and_filters_take_it(self):
        from dpjax.adaptive import ZCDPFilter
        from dpjax.laws import loss_law
        from dpjax.mechanisms import reduced

        record, gaussian = dpjax.MatrixFactorization(3.0, 1.5), dpjax.Gaussian(2.0)
        inside = reduced(dpjax.PoissonSampled(0.1, record) * 3 + dpjax.Laplace(1.0))
        assert repr(inside) == repr(dpjax.PoissonSampled(0.1, gaussian) * 3 + dpjax.Laplace(1.0))
        assert reduced(gaussian * 3 + gaussian) is not None and reduced(gaussian) is gaussian
        with jax.enable_x64(True):
            profile = lambda m: float(loss_law(m, dpjax.Adjacency.ADD).profile(1.0))
            assert profile(record) == pytest.approx(profile(gaussian), rel=1e-12)
        filt = ZCDPFilter(rho=0.1251, delta=1e-5)
        state, granted = filt.request(filt.init(), record)
        assert granted and not filt.request(state, dpjax.MatrixFactorization(3.0, 1.5))[1]

    def test_traced(self):
        make = lambda s, c: dpjax.epsilon(dpjax.MatrixFactorization(s, c), 1e-5)
        with jax.enable_x64(True):
            value = float(jax.jit(make)(3.0, 1.5))
            assert value == pytest.approx(dpjax.epsilon(dpjax.Gaussian(2.0), 1e-5), rel=1e-9)
            slopes = jax.grad(make, (0, 1))(3.0, 1.5)
            step = 1e-5
            numeric = (make(3.0 + step, 1.5) - make(3.0 - step, 1.5)) / (2 * step)
            assert float(slopes[0]) == pytest.approx(numeric, rel=1e-6)
            assert float(slopes[1]) == pytest.approx(-2 * numeric, rel=1e-6)  # of 3 / 1.5 by 1.5
            bad = jax.vmap(make)(np.array([-1.0, 3.0, 3.0, 3.0]), np.array([1.5, 0.0, math.inf, math.nan]))
            assert np.isnan(bad).all()
            tree = jax.jit(lambda n: dpjax.epsilon(dpjax.TreeAggregation(4.0, n), 1e-5))
            assert float(tree(10)) == pytest.approx(value, rel=1e-9) and np.isnan(tree(1.5)) and np.isnan(tree(-1.0))
        assert float(jax.jit(make)(3.0, 1.5)) >= value

    def test_banded(self):
        run = dpjax.banded_factorization(1.5, 0.1, np.array([1000, 1001]), 8, column_norm=3.0)
        assert dpjax.ledger.to_dict(run) == dpjax.ledger.to_dict(dpjax.dpsgd(0.5, 0.1, [125, 126]))
        count = jax.jit(lambda n, b: dpjax.banded_factorization(1.0, 0.1, n, b).count)
        assert count(1001, 8) == 126 and np.isnan(count(1000.5, 8)) and np.isnan(count(1000, 0))
