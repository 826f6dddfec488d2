"""Renyi divergences, trade-off curves, attacks, Gaussian DP: against mpmath, closed forms, and each other."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

import dpjax
from dpjax.laws import reverse
from dpjax.laws.finite import from_masses
from dpjax.laws.gaussian import GaussianLaw
from dpjax.laws.sampled import MixedLaw, poisson_add, poisson_remove
from dpjax.mechanisms import Adjacency
from dpjax.representations._moments import as_finite, divergence, transform

ROWS = json.loads((Path(__file__).parent / "oracles" / "renyi.json").read_text())
ADD, REMOVE = Adjacency.ADD, Adjacency.REMOVE
ORDERS = (0.01, 0.5, 0.9, 1.0, 1.5, 10.0, 60.0)


def columns(rows, *names):
    return [np.array([float(row[name]) for row in rows]) for name in names]


# --------------------------------------------------------------------------------------------------------------------
# Renyi divergences


def exact_sampled(q, sigma, order, direction):
    """By quadrature in the noise, 30 digits."""
    with mp.workdps(30):
        q, s, a = (mp.mpf(str(x)) for x in (q, sigma, order))
        c = a if direction is REMOVE else 1 - a
        ratio = lambda x: 1 - q + q * mp.e ** ((2 * x - 1) / (2 * s * s))
        density = lambda x: mp.npdf(x, 0, s)
        low, high = min(c, 0) - 14 * s, max(c, 1) + 14 * s
        places = [low + (high - low) * i / 24 for i in range(25)]
        if a == 1:
            loss = (lambda x: ratio(x) * mp.log(ratio(x))) if direction is REMOVE else (lambda x: -mp.log(ratio(x)))
            return mp.quad(lambda x: density(x) * loss(x), places)
        excess = lambda x: density(x) * (ratio(x) ** c - 1 - c * (ratio(x) - 1))
        return mp.log1p(mp.quad(excess, places)) / (a - 1)


def exact_atoms(p, q, order):
    """D of P from Q by the definition, 40 digits."""
    with mp.workdps(40):
        p, q = [mp.mpf(float(x)) for x in p], [mp.mpf(float(x)) for x in q]
        if order >= 1 and any(a > 0 and b == 0 for a, b in zip(p, q, strict=True)):
            return mp.inf
        if order == mp.inf:
            return max(mp.log(a / b) for a, b in zip(p, q, strict=True) if a > 0)
        if order == 1:
            return sum(a * mp.log(a / b) for a, b in zip(p, q, strict=True) if a > 0)
        a = mp.mpf(order)
        total = sum(x**a * y ** (1 - a) for x, y in zip(p, q, strict=True) if x > 0 and y > 0)
        return mp.log(total) / (a - 1) if total > 0 else mp.inf


def above(values, exact, excess):
    """Never below the truth, and at most ``excess`` of it above."""
    for value, truth in zip(np.ravel(values), exact, strict=True):
        assert truth <= mp.mpf(float(value)) <= truth * (1 + mp.mpf(excess)), (value, truth)


class TestRenyi:
    @pytest.mark.parametrize("direction", [REMOVE, ADD])
    def test_reference_rows_of_the_sampled_gaussian(self, direction):
        rows = [r for r in ROWS["poisson_gaussian"] if Adjacency(r["direction"]) is direction]
        q, sigma, order, value = columns(rows, "sampling_probability", "noise_multiplier", "order", "renyi")
        found = dpjax.renyi(dpjax.PoissonSampled(q, dpjax.Gaussian(sigma)), order, adjacency=direction)
        assert np.all(found >= value * (1 - 1e-16)) and np.all(found <= value * (1 + 1e-12))

    @pytest.mark.parametrize(
        ("table", "record"), [("randomised_response", dpjax.PureDP), ("bounded_range", dpjax.BoundedRange)]
    )
    def test_reference_rows_of_claims(self, table, record):
        epsilon, order, value = columns(ROWS[table], "epsilon", "order", "renyi")
        found = dpjax.renyi(record(epsilon), order)
        assert np.all(found >= value * (1 - 1e-16)) and np.all(found <= value * (1 + 1e-13))

    @pytest.mark.parametrize(
        ("direction", "sigmas", "orders"),
        [
            pytest.param(REMOVE, (0.3, 1.0, 5.0), ORDERS, marks=pytest.mark.slow),
            pytest.param(ADD, (0.3, 1.0, 5.0), ORDERS, marks=pytest.mark.slow),
        ],
    )
    def test_integrals_of_profiles_bound_from_above(self, direction, sigmas, orders):
        """Of the law alone, which every mechanism has; orders on both sides of 1, tiny and large q."""
        cases = [(q, s, a) for q in (1e-4, 0.5, 0.99) for s in sigmas for a in orders]
        sampled = poisson_remove if direction is REMOVE else poisson_add
        one = lambda case: divergence(sampled(case[0], GaussianLaw(1 / case[1])), case[2])
        with jax.enable_x64(True):
            values = jax.jit(lambda c: jax.lax.map(one, c, batch_size=9))(
                tuple(map(jnp.asarray, zip(*cases, strict=True)))
            )
        above(values, [exact_sampled(*case, direction) for case in cases], 3e-5)

    def test_gaussians_and_schedules_add_up(self):
        noise = np.array([0.5, 1.0, 3.0])
        run = dpjax.ComposedOver(dpjax.SelfComposed(dpjax.Gaussian(noise), [3, 0, 2.5]))
        expected = 2.5 * (3 / 0.25 + 2.5 / 9) / 2
        np.testing.assert_allclose(dpjax.renyi(run, 2.5), expected, rtol=1e-14)
        np.testing.assert_allclose(dpjax.renyi(run, 2.5, adjacency=Adjacency.REPLACE_ONE), 4 * expected, rtol=1e-14)
        assert dpjax.renyi(run, 2.5) >= expected
        steps = dpjax.PureDP(np.array([0.1, 0.3]))
        each = dpjax.renyi(steps, 2.0)
        both = dpjax.renyi(dpjax.ComposedOver(dpjax.SelfComposed(steps, [10, 20])) + dpjax.Gaussian(2.0), 2.0)
        np.testing.assert_allclose(both, 10 * each[0] + 20 * each[1] + 0.25, rtol=1e-13)

    def test_limits_are_exact(self):
        q = np.array([0.0, 0.5, 1.0, 0.5, 0.5, 0.5])
        sigma = np.array([1.0, 0.0, 0.0, np.inf, 0.0, 1.0])
        order = np.array([2.0, 0.5, 3.0, 3.0, 1.0, np.inf])
        step = dpjax.PoissonSampled(q, dpjax.Gaussian(sigma))
        expected = [0.0, np.log(2), np.inf, 0.0, np.inf, np.inf]
        # as many lanes as the reference rows have: one program
        wide = dpjax.PoissonSampled(np.tile(q, 2), dpjax.Gaussian(np.tile(sigma, 2)))
        np.testing.assert_allclose(
            dpjax.renyi(wide, np.tile(order, 2), adjacency=REMOVE), np.tile(expected, 2), rtol=1e-14
        )
        expected = [0.0, np.log(2), np.inf, 0.0, np.log(2), np.log(2)]
        np.testing.assert_allclose(dpjax.renyi(step, order, adjacency=ADD), expected, rtol=1e-14)
        assert dpjax.renyi(dpjax.Gaussian(0.0) * 0 + dpjax.Gaussian(1.0), 2.0) == dpjax.renyi(dpjax.Gaussian(1.0), 2.0)
        assert dpjax.renyi(dpjax.Gaussian(0.0), 0.5) == np.inf and dpjax.renyi(dpjax.Gaussian(np.inf), np.inf) == 0
        assert dpjax.renyi(dpjax.ApproximateDP(1.0, 1e-9), 1.0) == np.inf
        assert dpjax.renyi(dpjax.ApproximateDP(1.0, 1e-9), 0.5) < np.inf
        np.testing.assert_allclose(dpjax.renyi(dpjax.PureDP(0.7) * 3, np.inf), 2.1, rtol=1e-14)

    def test_bounded_range_is_the_worst_pair(self):
        order = np.array([0.2, 0.5, 1.0, 3.0])
        t = np.linspace(0.0, 0.8, 161)[:, None]
        pairs = dpjax.renyi(dpjax.BoundedRange(0.8, t), order)
        found = dpjax.renyi(dpjax.BoundedRange(0.8), order)
        assert np.all(found >= pairs.max(0)) and np.all(found <= pairs.max(0) * (1 + 1e-4))

    @pytest.mark.slow
    def test_derivatives(self):
        with jax.enable_x64(True):
            value = lambda q, a: dpjax.renyi(dpjax.PoissonSampled(q, dpjax.Gaussian(1.0)), a, adjacency=ADD)
            slopes = jax.grad(value, (0, 1))(0.1, 0.7)
        for i, slope in enumerate(slopes):
            move = np.eye(2)[i] * 1e-4
            high, low = (float(exact_sampled(0.1 + s * move[0], 1.0, 0.7 + s * move[1], ADD)) for s in (1, -1))
            np.testing.assert_allclose(slope, (high - low) / 2e-4, rtol=1e-5)

    def test_without_x64_it_is_rounded_up(self):
        exact = dpjax.renyi(dpjax.Gaussian(1.75), 3.3)
        value, slope = jax.value_and_grad(lambda s: dpjax.renyi(dpjax.Gaussian(s), 3.3))(1.75)
        assert value.dtype == jnp.float32 and exact <= float(value) <= exact * (1 + 1e-6)
        np.testing.assert_allclose(slope, -3.3 / 1.75**3, rtol=1e-5)

    @pytest.mark.parametrize("order", [0.0, -1.0, np.nan])
    def test_bad_orders(self, order):
        with pytest.raises(ValueError, match="order = .*must be a number > 0"):
            dpjax.renyi(dpjax.Gaussian(1.0), order)
        bad = jax.jit(jax.value_and_grad(lambda a: dpjax.renyi(dpjax.Gaussian(1.0), a)))(order)
        assert np.all(np.isnan(bad))


masses = st.lists(st.sampled_from([0.0, 1e-12, 0.01, 0.3, 1.0, 2.0]), min_size=4, max_size=4).filter(
    lambda m: sum(m) > 0
)


@jax.jit
def of_atoms(p, q, rate, order):
    law = from_masses(p, q)
    mixed = MixedLaw(rate, law)
    return jnp.stack([divergence(x, order) for x in (law, reverse(law), mixed, reverse(mixed))])


@settings(max_examples=60)
@given(masses, masses, st.sampled_from([0.2, 1.0]), st.sampled_from([0.05, 0.5, 1.0, 1.0000001, 3.0, 40.0, np.inf]))
def test_finite_pairs_are_exact(p, q, rate, order):
    p, q = np.array(p) / sum(p), np.array(q) / sum(q)
    mixture = (1 - rate) * q + rate * p
    with jax.enable_x64(True):
        found = of_atoms(p, q, rate, order)
    pairs = ((p, q), (q, p), (mixture, q), (q, mixture))
    for value, pair in zip(found, pairs, strict=True):
        truth = exact_atoms(*pair, order)
        # masses sum to 1 up to rounding, which is worth that much
        slack = mp.mpf(1e-15) / min(abs(order - 1) or 1, 1)
        assert truth * (1 - mp.mpf(1e-15)) - slack <= mp.mpf(float(value)) <= truth * (1 + mp.mpf(1e-12)) + slack


def test_a_law_between_atoms():
    mu, order, value = columns(ROWS["laplace"], "mu_over_b", "order", "renyi")
    extra = [(mu, a) for mu in (1.0, 8.0, 30.0) for a in (0.3, 0.5, 0.9)]
    with mp.workdps(40):
        for m, a in extra:
            m, a = mp.mpf(m), mp.mpf(str(a))
            closed = (
                (a * mp.e ** ((a - 1) * m) + (a - 1) * mp.e ** (-a * m)) / (2 * a - 1)
                if a != 0.5
                else mp.e ** (-m / 2) * (1 + m / 2)
            )
            value = np.append(value, float(mp.log(closed) / (a - 1)))
    mu, order = np.append(mu, [m for m, _ in extra]), np.append(order, [a for _, a in extra])
    found = dpjax.renyi(dpjax.Laplace(1 / mu), order, adjacency=REMOVE)
    assert np.all(found >= value * (1 - 1e-15)) and np.all(found <= value * (1 + 1e-6)), found / value - 1


@pytest.mark.slow
def test_unbounded_losses_of_other_noise():
    """Discrete Gaussians by their sum, mixtures of Gaussians by quadrature; the last orders are beyond underflow."""
    order = np.array([0.5, 1.0, 3.0, 60.0])
    found = dpjax.renyi(dpjax.DiscreteGaussian(0.8), order, adjacency=REMOVE)
    mixture = dpjax.MixtureOfGaussians(1.0, [0.0, 1.0, 2.0], [0.5, 0.3, 0.2])
    mixed = {a: dpjax.renyi(mixture, order, adjacency=a) for a in (REMOVE, ADD)}
    with mp.workdps(30):
        k = [mp.mpf(i) for i in range(-200, 261)]
        q = [mp.e ** (-x * x / (2 * mp.mpf(0.8) ** 2)) for x in k]
        total = mp.fsum(q)
        p = [mp.e ** (-((x - 1) ** 2) / (2 * mp.mpf(0.8) ** 2)) / total for x in k]
        q = [x / total for x in q]
        for a, value in zip(order, found, strict=True):
            a = mp.mpf(a)
            if a == 1:
                exact = mp.fsum(x * mp.log(x / y) for x, y in zip(p, q, strict=True))
            else:
                exact = mp.log(mp.fsum(x**a * y ** (1 - a) for x, y in zip(p, q, strict=True))) / (a - 1)
            assert exact * (1 - mp.mpf(1e-14)) <= mp.mpf(float(value)) <= exact * mp.mpf("1.03")
        ratio = lambda z: mp.mpf(0.5) + mp.mpf(0.3) * mp.e ** (z - 0.5) + mp.mpf(0.2) * mp.e ** (2 * z - 2)
        for direction, values in mixed.items():
            for a, value in zip(order, values, strict=True):
                a = mp.mpf(a)
                c = a if direction is REMOVE else 1 - a
                places = mp.linspace(-30, 2 * max(c, 1) + 20, 60)
                if a == 1:
                    term = (
                        (lambda z: ratio(z) * mp.log(ratio(z)))
                        if direction is REMOVE
                        else (lambda z: -mp.log(ratio(z)))
                    )
                    exact = mp.quad(lambda z, term=term: mp.npdf(z) * term(z), places)
                else:
                    exact = mp.log(mp.quad(lambda z, c=c: mp.npdf(z) * ratio(z) ** c, places)) / (a - 1)
                assert exact * (1 - mp.mpf(1e-12)) <= mp.mpf(float(value)) <= exact * mp.mpf("1.01"), (direction, a)


def test_moments_beyond_a_point_are_bounds():
    with mp.workdps(30), jax.enable_x64(True):
        mu, q = mp.mpf(2), mp.mpf("0.1")

        def moment(ratio, s, start):
            return float(mp.log(mp.quad(lambda z: mp.npdf(z) * ratio(z) ** (1 + s), mp.linspace(start, 40, 20))))

        gauss = lambda z: mp.e ** (mu * z - mu * mu / 2)
        mixture = lambda z: 1 - q + q * gauss(z)
        for s, x in ((0.5, 0.0), (2.0, 1.5), (7.0, 20.0)):
            exact = moment(gauss, s, (mp.mpf(x) + 2) / 2)
            np.testing.assert_allclose(float(GaussianLaw(2.0).log_moment_above(s, x)), exact, rtol=1e-12)
            exact = moment(mixture, s, (mp.log1p(mp.expm1(x) / q) + 2) / 2)
            bound = float(MixedLaw(0.1, GaussianLaw(2.0)).log_moment_above(s, x))
            assert exact <= bound + 1e-14 and bound <= exact + 3 * (1 + s)


# --------------------------------------------------------------------------------------------------------------------
# Trade-off curves

RATES = np.array([0.0, 1e-300, 1e-100, 1e-5, 0.3, 0.5, 0.9, 1 - 1e-10, 1.0])


class TestTradeoff:
    @pytest.mark.parametrize("mu", [0.1, 1.0, 5.0])
    def test_gaussian_in_both_tails(self, mu):
        f = dpjax.tradeoff(dpjax.Gaussian(1 / mu), RATES)
        power = dpjax.true_positive_rate(dpjax.Gaussian(1 / mu), RATES)
        assert f[0] == 1 and f[-1] == 0 and power[0] == 0 and power[-1] == 1
        with mp.workdps(40):
            for x, low, high in zip(RATES[1:-1], f[1:-1], power[1:-1], strict=True):
                z = mp.findroot(lambda z, x=x: mp.log(mp.ncdf(z)) - mp.log(mp.mpf(x)), norm.ppf(x))
                missed, seen = mp.ncdf(-z - mp.mpf(mu)), mp.ncdf(z + mp.mpf(mu))
                assert missed * (1 - 1e-9) - mp.mpf(1e-15) * (x < 0.2) <= low <= missed
                assert seen <= high <= seen * (1 + 1e-9)

    def test_kinks(self):
        """Randomised response: two lines that meet."""
        x = np.array([0.0, 0.1, 1 / (1 + np.e), 0.5, 0.9])
        exact = np.maximum(1 - np.e * x, np.exp(-1) * (1 - x))
        f = dpjax.tradeoff(dpjax.PureDP(1.0), x)
        assert np.all(f <= exact + 1e-16) and np.all(f >= exact * (1 - 1e-7))
        np.testing.assert_allclose(dpjax.tradeoff(dpjax.ApproximateDP(1.0, 0.01), 0.0), 0.99, rtol=1e-14)

    @pytest.mark.parametrize("adjacency", [REMOVE, ADD, Adjacency.ADD_OR_REMOVE_ONE])
    def test_consistent_with_delta(self, adjacency):
        """delta(eps) = sup over x of 1 - f(x) - exp(eps) x, one step of the sampled Gaussian."""
        step = dpjax.PoissonSampled(0.3, dpjax.Gaussian(0.7))
        x = np.concatenate([[0.0], np.geomspace(1e-6, 0.1, 30), np.linspace(0.1, 1.0, 34)[1:]])
        f = dpjax.tradeoff(step, x, adjacency=adjacency)
        epsilon = np.linspace(-3.0, 3.0, 41)
        sup = np.max(1 - f - np.exp(epsilon)[:, None] * x, -1)
        delta = dpjax.delta(step, epsilon, adjacency=adjacency)
        assert np.all(sup <= delta * (1 + 1e-9) + 1e-12)  # f is not too high ...
        assert np.all(sup >= delta - 2e-3)  # ... nor too low, as far as a grid can tell

    def test_two_directions_lie_below_each(self):
        step = dpjax.PoissonSampled(0.3, dpjax.Gaussian(0.7))
        x = np.linspace(0.01, 0.99, 25)
        both, remove, add = (dpjax.tradeoff(step, x, adjacency=a) for a in (Adjacency.ADD_OR_REMOVE_ONE, REMOVE, ADD))
        assert np.all(both <= np.minimum(remove, add) * (1 + 1e-7))
        assert np.all(np.diff(both, 2) >= -1e-9)  # convex
        # (x, f(x)) under REMOVE is (f(x), x) under ADD
        np.testing.assert_allclose(dpjax.tradeoff(step, remove, adjacency=ADD), x, rtol=1e-6)

    def test_transformations(self):
        z = norm.isf(0.05)
        one = lambda s, x: dpjax.tradeoff(dpjax.Gaussian(s), x)
        found = jax.jit(jax.vmap(jax.value_and_grad(one, (0, 1))))(jnp.array([1.0, 1.0]), jnp.array([0.05, 1.5]))
        value, slopes = jax.tree.map(lambda a: np.asarray(a, float), found)
        assert norm.cdf(z - 1) * (1 - 1e-5) <= value[0] <= norm.cdf(z - 1)  # float32, rounded down
        np.testing.assert_allclose(slopes[0][0], norm.pdf(z - 1), rtol=2e-3)
        np.testing.assert_allclose(slopes[1][0], -norm.pdf(z - 1) / norm.pdf(z), rtol=2e-3)
        assert np.isnan([value[1], slopes[1][1]]).all()

    def test_bad_input(self):
        with pytest.raises(ValueError, match="false_positive_rate = 1.5"):
            dpjax.tradeoff(dpjax.Gaussian(1.0), 1.5)
        with pytest.raises(TypeError, match="must be a dpjax mechanism"):
            dpjax.tradeoff(1.0, 0.5)
        with pytest.raises(ValueError, match="adjacency"):
            dpjax.tradeoff(dpjax.Gaussian(1.0), 0.5, adjacency="add")


@pytest.mark.slow
def test_composed_tradeoff_and_its_second_derivative():
    run = dpjax.dpsgd(1.0, 0.01, 1000)
    x = np.array([1e-12, 0.01, 0.3])
    f, power = dpjax.tradeoff(run, x), dpjax.true_positive_rate(run, x)
    assert np.all(np.abs(1 - f - power) < 1e-14)
    for e in np.linspace(0.0, 6.0, 25):
        assert np.all(power <= (dpjax.delta(run, e) + np.exp(e) * x) * (1 + 1e-7))
    with pytest.raises(NotImplementedError, match="first derivatives"):
        jax.hessian(lambda s: dpjax.tradeoff(dpjax.Gaussian(s), 0.05))(1.0)


# --------------------------------------------------------------------------------------------------------------------
# Attacks and Gaussian DP


class TestAttack:
    def test_gaussian(self):
        prior = np.array([1e-6, 0.01, 0.5, 0.9])
        tau = np.log((1 - prior) / prior)
        found = dpjax.attack_rates(dpjax.Gaussian(1.0), prior=prior)
        tpr, fpr = norm.sf(tau - 0.5), norm.sf(tau + 0.5)
        np.testing.assert_allclose(found.true_positive_rate, tpr, rtol=1e-6)
        np.testing.assert_allclose(found.false_positive_rate, fpr, rtol=1e-6)
        accuracy = prior * tpr + (1 - prior) * (1 - fpr)
        assert np.all(found.accuracy >= accuracy) and np.all(found.accuracy <= accuracy * (1 + 1e-13))
        np.testing.assert_allclose(
            found.positive_predictive_value, prior * tpr / (prior * tpr + (1 - prior) * fpr), rtol=1e-6
        )

    def test_sampled_in_each_direction(self):
        """Rates of the loss's own test, from its law."""
        step = dpjax.PoissonSampled(0.3, dpjax.Gaussian(0.7))
        prior = np.array([0.3, 0.55])
        for adjacency in (REMOVE, ADD):
            tau = np.log((1 - prior) / prior)
            found = dpjax.attack_rates(step, prior=prior, adjacency=adjacency)
            missed = dpjax.privacy_loss_cdf(step, tau, adjacency=adjacency)
            alarms = dpjax.privacy_loss_cdf(step, -tau, "Q", adjacency=adjacency)
            np.testing.assert_allclose(found.true_positive_rate, 1 - missed, rtol=1e-5)
            np.testing.assert_allclose(found.false_positive_rate, alarms, rtol=1e-5, atol=1e-9)

    def test_advantage(self):
        np.testing.assert_allclose(dpjax.advantage(dpjax.PureDP(1.0)), np.tanh(0.5), rtol=1e-13)
        assert dpjax.advantage(dpjax.Gaussian([1.0, 2.0])).shape == (2,)

    @pytest.mark.parametrize("prior", [0.0, 1.0, np.nan])
    def test_bad_prior(self, prior):
        with pytest.raises(ValueError, match="prior"):
            dpjax.attack_rates(dpjax.Gaussian(1.0), prior=prior)


class TestGaussianDP:
    def test_gaussians_sampled_or_not(self):
        found = dpjax.gdp_mu(dpjax.dpsgd([2.0, 1.0], [0.01, 0.0], 100) + dpjax.Gaussian(0.5))
        assert np.all(found >= [np.sqrt(29.0), 2.0])
        np.testing.assert_allclose(found, [np.sqrt(29.0), 2.0], rtol=1e-14)
        assert dpjax.gdp_mu(dpjax.Gaussian(0.0)) == np.inf and dpjax.gdp_mu(dpjax.Gaussian(np.inf)) == 0
        np.testing.assert_allclose(dpjax.gdp_mu(dpjax.Gaussian(1.0), adjacency=Adjacency.REPLACE_ONE), 2.0, rtol=1e-14)

    def test_sampling_does_not_help(self):
        """No smaller mu: far out the sampled delta lies above that of 0.98 of it, and below the whole everywhere."""
        step = dpjax.PoissonSampled(0.1, dpjax.Gaussian(1.0))
        mu = dpjax.gdp_mu(step)
        epsilon = np.array([0.0, 1.0, 5.0, 20.0, 37.0])
        sampled = dpjax.log_delta(step, epsilon)
        assert np.all(sampled <= dpjax.log_delta(dpjax.Gaussian(1 / mu), epsilon))
        far = 400.0
        assert dpjax.log_delta(step, far) > dpjax.log_delta(dpjax.Gaussian(1 / (0.98 * mu)), far)

    @pytest.mark.parametrize("epsilon", [0.1, 3.0])
    def test_randomised_response(self, epsilon):
        exact = -2 * norm.ppf(1 / (1 + np.exp(epsilon)))
        found = dpjax.gdp_mu(dpjax.PureDP(epsilon))
        assert exact <= found <= exact * (1 + 1e-9)

    def test_it_dominates_between_the_cells_too(self):
        run = dpjax.PureDP(0.3) * 20
        mu = dpjax.gdp_mu(run)
        epsilon = np.linspace(0.0, 6.0, 301)
        assert np.all(dpjax.delta(run, epsilon) <= dpjax.delta(dpjax.Gaussian(1 / mu), epsilon) * (1 + 1e-9))
        smaller = dpjax.Gaussian(1 / (0.995 * mu))
        assert np.any(dpjax.delta(run, epsilon) > dpjax.delta(smaller, epsilon))

    def test_none_suffices(self):
        assert dpjax.gdp_mu(dpjax.ApproximateDP(0.1, 1e-6)) == np.inf

    def test_derivative(self):
        np.testing.assert_allclose(jax.grad(lambda s: dpjax.gdp_mu(dpjax.dpsgd(s, 0.01, 100)))(2.0), -2.5, rtol=1e-6)


# --------------------------------------------------------------------------------------------------------------------
# The loss itself


def test_transform_of_laws():
    t = 1.3
    with jax.enable_x64(True):
        found = transform(GaussianLaw(0.8), t)
        np.testing.assert_allclose(found, [-0.5 * 0.64 * t * t, 0.32 * t], rtol=1e-6)
        p, q = np.array([0.2, 0.5, 0.3]), np.array([0.4, 0.5, 0.1])
        law = from_masses(jnp.asarray(p), jnp.asarray(q))
        found = transform(law, t)
        exact = np.sum(p * np.exp(1j * t * np.log(p / q)))
        np.testing.assert_allclose(found, [np.log(abs(exact)), np.angle(exact)], rtol=1e-13)
        assert as_finite(GaussianLaw(1.0)) is None


def test_distribution_of_one_step_is_exact():
    step = dpjax.PoissonSampled([0.1, 0.1, 0.0, 0.25], dpjax.Gaussian([1.0, 1.0, 1.0, 0.0]))
    loss = np.array([0.2, -0.05, 0.0, 0.0])
    x = 0.5 + np.log1p(np.expm1(loss[:2]) / 0.1)
    mixture = 0.9 * norm.cdf(x) + 0.1 * norm.cdf(x - 1)
    np.testing.assert_allclose(dpjax.privacy_loss_cdf(step, loss), [*mixture, 1.0, 0.75], rtol=1e-13)
    np.testing.assert_allclose(
        dpjax.privacy_loss_cdf(step, -loss, "Q", adjacency=REMOVE), [*norm.sf(x), 1.0, 0.0], rtol=1e-13
    )
