"""Mechanisms fixed beforehand: Theorem 3, the best t of different mechanisms, and pairs with a given t."""

import itertools
import math

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
import scipy.optimize
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rangetools import ROWS, batched, column, oracle

from dpjax import bounded_range as br
from dpjax._two_point import binomial

FIXED = {"adaptive": False}


def product_delta(epsilons, ts, x):
    """delta of a product of pairs at many t: ts (n, k); a sum over outcomes in plain float64."""
    epsilons, ts = np.asarray(epsilons), np.atleast_2d(ts)
    q = np.expm1(ts - epsilons) / np.expm1(-epsilons)
    total = np.zeros(len(ts))
    for back in itertools.product((0, 1), repeat=len(epsilons)):
        mass = np.prod(np.where(back, 1 - q, q), axis=1)
        gap = np.sum(ts - np.array(back) * epsilons, axis=1) - x
        total += mass * np.where(gap > 0, -np.expm1(-gap), 0.0)
    return total


def dense_search(epsilons, x, points):
    """The largest over a grid of t vectors, then polished from its best few."""
    axes = [np.linspace(0, e, points) for e in epsilons]
    grid = np.stack([a.ravel() for a in np.meshgrid(*axes, indexing="ij")], axis=1)
    values = product_delta(epsilons, grid, x)
    best = values.max()
    common = [np.multiply(f, epsilons) for f in (0.8, 0.9, 0.97)]  # far out, delta is 0 on all of a coarse grid
    for start in [*grid[np.argsort(values)[-4:]], *common]:
        found = scipy.optimize.minimize(
            lambda t: -product_delta(epsilons, np.clip(t, 0, epsilons), x)[0], start, method="Nelder-Mead",
            options={"xatol": 1e-9, "fatol": 1e-15},
        )  # fmt: skip
        best = max(best, -found.fun)
    return best


class TestEqual:
    def test_contains_the_stored_values(self):
        rows = ROWS["fixed_delta"]
        lower, estimate, upper = batched(
            br.delta_bounds, *(column(rows, n) for n in ("eps_g", "eps", "k")), adaptive=False
        )
        exact = column(rows, "delta")
        assert np.all(lower <= exact * (1 + 2e-16)) and np.all(exact * (1 - 2e-16) <= upper)
        assert np.all(upper - lower <= 1e-12 * exact)
        np.testing.assert_allclose(estimate, exact, rtol=1e-13)

    def test_epsilon_contains_the_stored_values(self):
        rows = ROWS["epsilon_bounds"]
        exact = column(rows, "eps_g")
        lower, _, upper = batched(br.epsilon_bounds, *(column(rows, n) for n in ("delta", "eps", "k")), adaptive=False)
        assert np.all(lower <= exact * (1 + 2e-16)) and np.all(exact * (1 - 2e-16) <= upper)
        assert np.all(upper - lower <= 1e-10 * exact)

    @pytest.mark.parametrize("k", [1, 2, 3, 4])
    def test_dense_search_over_every_t_does_no_better(self, k):
        eps, x = 0.7, np.linspace(0.05, 0.65 * k, 4)
        lower, _, upper = batched(br.delta_bounds, x, eps, k, adaptive=False)
        for i, threshold in enumerate(x):
            found = dense_search([eps] * k, threshold, (400, 60, 24, 12)[k - 1])
            assert found <= upper[i] * (1 + 1e-14)
            assert found == pytest.approx(lower[i], rel=1e-6)  # the common t is found

    @pytest.mark.parametrize(("k", "eps", "x"), [(10_000, 0.02, 1.0), (10_000, 0.3, 160.0), (3_000, 1.0, 700.0)])
    def test_many_mechanisms_to_ten_digits(self, k, eps, x):
        setting = binomial.setting_for(10_000)
        bounds = br.log_delta_bounds([x, x], np.array([[eps], [eps]]), count=[k, setting.pairs], adaptive=False)
        assert bounds.upper[0] - bounds.lower[0] < 1e-9
        # The search over every l in mpmath takes minutes: its best and the neighbours, found from the summits of the
        # estimate in plain floats, must lie inside.
        t = np.linspace(0, eps, 2001)[1:-1]
        guess = t[np.argmax([_plain_log_delta(eps, u, k, x) for u in t])]
        l = round((guess * (k + 1) - x) / eps - 1)
        with mp.workdps(40):
            near = [oracle.delta_of_equal(eps, oracle.stationary(eps, k, x, j), k, x) for j in range(l - 2, l + 3)]
            exact = float(mp.log(max(near)))
        # relative error of delta is absolute error of its logarithm
        assert bounds.lower[0] <= exact + 1e-13 * abs(exact) and exact - 1e-13 * abs(exact) <= bounds.upper[0]
        assert bounds.estimate[0] == pytest.approx(exact, abs=1e-10)

    @pytest.mark.parametrize(("k", "eps", "x"), [(60, 0.3, 2.0), (60, 2.0, 30.0), (200, 0.05, 0.1), (200, 1.0, 60.0)])
    def test_which_of_two_summits_is_higher(self, k, eps, x):
        with jax.enable_x64(True):
            l = jnp.arange(k - 1, dtype=float)
            down, up = (np.asarray(a) for a in binomial._descends(x, eps, float(k), l))
        with mp.workdps(60):
            ts = [oracle.stationary(eps, k, x, j) for j in range(k)]
            summits = [oracle.delta_of_equal(eps, t, k, x) if 0 < t < eps else mp.mpf(0) for t in ts]
        assert not np.any(down & up)
        for j in range(k - 1):
            assert not down[j] or summits[j] >= summits[j + 1]
            assert not up[j] or summits[j] <= summits[j + 1]
        # It decides often enough to be of use.
        valid = [j for j in range(k - 1) if summits[j + 1] > 0]
        assert np.mean((down | up)[valid]) > 0.5

    @pytest.mark.slow
    @pytest.mark.parametrize(("k", "eps", "x"), [(20_000, 0.01, 0.5), (20_000, 0.1, 60.0), (20_000, 1.0, 9000.0)])
    def test_the_window_of_l_holds_the_best(self, k, eps, x, monkeypatch):
        windowed = br.log_delta_bounds(x, eps, count=k, adaptive=False)
        assert binomial.setting_for(k).tries < k
        monkeypatch.setattr(binomial, "ALL", k)
        every = br.log_delta_bounds(x, eps, count=k, adaptive=False)
        assert windowed.upper - windowed.lower < 1e-8
        assert windowed.estimate == pytest.approx(every.estimate, abs=1e-11)

    @pytest.mark.slow
    def test_a_million(self):
        bounds = br.delta_bounds(5.0, 1e-3, count=1_000_000, adaptive=False)
        gaussian = _gaussian_delta(0.5e-3 * 1e3, 5.0)
        assert bounds.upper - bounds.lower < 1e-7 * bounds.upper
        assert bounds.estimate == pytest.approx(gaussian, rel=0.05)

    def test_below_zero_and_beyond(self):
        x = np.array([0.3, 1.0, 2.0])
        at, mirrored = (batched(br.delta_bounds, s * x, 0.5, 6, adaptive=False) for s in (1, -1))
        np.testing.assert_allclose(mirrored[1], -np.expm1(-x) + np.exp(-x) * at[1], rtol=1e-12)
        edges = batched(br.delta_bounds, [3.0, np.inf, -np.inf], 0.5, 6, adaptive=False)
        assert np.all(edges[2][:2] <= 1e-20) and edges[2][2] == 1
        _, _, epsilons = batched(br.epsilon_bounds, [0.0, 1.0], 0.5, 6, adaptive=False)
        assert epsilons[0] == pytest.approx(3.0) and epsilons[0] >= 3.0 and epsilons[1] == 0


def _plain_log_delta(eps, t, k, x):
    """log delta of k pairs by its largest terms, in floats; only to find where the summit lies."""
    q = np.expm1(t - eps) / np.expm1(-eps)
    top = min(k, math.ceil((k * t - x) / eps) - 1)
    if top < 0:
        return -np.inf
    i = np.arange(max(0, top - 600), top + 1)
    logs = np.array([math.lgamma(k + 1) - math.lgamma(j + 1) - math.lgamma(k - j + 1) for j in i])
    gap = k * t - i * eps - x
    logs = logs + (k - i) * np.log(q) + i * np.log1p(-q) + np.log(-np.expm1(-np.where(gap > 0, gap, 1e-300)))
    return np.logaddexp.reduce(logs)


def _gaussian_delta(mu, x):
    phi = lambda z: math.erfc(-z / math.sqrt(2)) / 2
    return phi(-x / mu + mu / 2) - math.exp(x) * phi(-x / mu - mu / 2)


class TestUnequal:
    """At most four mechanisms; lists are padded to four, so that one program serves all."""

    @pytest.mark.parametrize(
        ("epsilons", "points"),
        [pytest.param([0.5, 0.3], 60, marks=pytest.mark.slow), ([0.9, 0.2, 0.4], 24), ([0.2, 0.3, 0.5, 0.8], 12)],
    )
    def test_dense_search_finds_the_lower_end(self, epsilons, points):
        padded = [*epsilons, 0.0, 0.0][:4]
        for x in (0.1, 0.45 * sum(epsilons)):
            bounds = br.delta_bounds(x, padded, cells=32, **FIXED)
            found = dense_search(epsilons, x, points)
            assert found <= bounds.upper * (1 + 1e-14)
            assert found == pytest.approx(bounds.lower, rel=1e-5)
            assert bounds.lower <= bounds.estimate <= bounds.upper

    @pytest.mark.slow
    def test_epsilon(self):
        epsilons = [0.2, 0.3, 0.5, 0.8]
        found = br.epsilon_bounds(0.01, epsilons, cells=32, **FIXED)
        at_low = br.delta_bounds(found.lower, epsilons, cells=32, **FIXED)
        assert at_low.upper >= 0.01 and br.delta_bounds(found.upper, epsilons, cells=32, **FIXED).lower <= 0.01
        assert at_low.lower == pytest.approx(0.01, rel=1e-3)  # the t found there reaches delta


class TestGivenT:
    def test_stored_value(self):
        (row,) = ROWS["unequal_delta"]
        numbers = [[float(v) for v in row[name]] for name in ("eps_list", "t_list")]
        bounds = br.fixed_delta_bounds(float(row["eps_g"]), *numbers)
        exact = float(row["delta"])
        assert bounds.lower <= exact <= bounds.upper and bounds.upper - bounds.lower < 1e-13

    @example([(0.0, 0.0), (0.0, 0.0), (1.0, 8.63870571317006e-228)], 0.0)  # the rounding of t is all that is seen
    @settings(max_examples=20, deadline=None)
    @given(st.lists(st.tuples(st.floats(0.0, 2.0), st.floats(0.0, 1.0)), min_size=3, max_size=3), st.floats(-3.0, 4.0))
    def test_sums_over_outcomes(self, pairs, x):
        eps, t = (np.array(a) for a in zip(*((e, e * f) for e, f in pairs), strict=True))
        bounds = br.fixed_delta_bounds(x, eps, t)
        with mp.workdps(40):
            used = [i for i in range(3) if 0 < t[i] < eps[i]]
            exact = float(oracle.delta_of_pairs(eps[used], t[used], x))
        assert bounds.lower <= exact * (1 + 3e-16) + 1e-300 and exact * (1 - 3e-16) <= bounds.upper + 1e-300
        assert bounds.upper - bounds.lower <= 1e-12 * exact + 8 * 2.0**-53 * (
            abs(x) + np.sum(eps)
        )  # the sums' rounding

    def test_a_pair_that_does_nothing(self):
        with_it = br.fixed_delta_bounds(0.2, [0.0, 0.6, 0.5], [0.0, 0.4, 0.5])
        alone = br.fixed_delta_bounds(0.2, 0.6, 0.4)
        np.testing.assert_allclose(with_it, alone, rtol=1e-13)

    def test_the_walk_agrees_with_the_sum_over_outcomes(self):
        rng = np.random.default_rng(3)
        eps, x = rng.uniform(0.05, 0.4, 13), np.array([-0.5, 0.4, 1.1])
        t = eps * rng.uniform(0.2, 0.8, 13)
        bounds = br.fixed_delta_bounds(x, eps, t)
        exact = [product_delta(eps, t, v)[0] for v in x]
        assert np.all(bounds.lower <= exact) and np.all(exact <= bounds.upper)
        assert np.all(bounds.upper - bounds.lower <= 1e-3 * bounds.upper)
