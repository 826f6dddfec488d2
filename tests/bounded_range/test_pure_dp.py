"""Optimal composition of pure and approximate DP: stored values, sums over outcomes, many different epsilons."""

import mpmath as mp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rangetools import COUNT, LANES, ROWS, column, oracle

from dpjax import bounded_range as br
from dpjax import pure_dp

FOUR = [0.1, 0.2, 0.3, 0.5]


def contains(bounds, exact, width):
    exact = np.asarray(exact)
    assert np.all(bounds.lower <= exact * (1 + 2e-16)) and np.all(exact * (1 - 2e-16) <= bounds.upper)
    assert np.all(bounds.upper - bounds.lower <= width * exact + 1e-300)


class TestEqual:
    def test_stored_deltas(self):
        rows = ROWS["rr_delta"] + ROWS["kov_delta"]
        deltas = np.array([[float(row.get("delta0", 0))] for row in rows])
        bounds = pure_dp.optimal_delta_bounds(
            column(rows, "eps"), column(rows, "eps0")[:, None], deltas, count=column(rows, "k")
        )
        contains(bounds, column(rows, "delta"), 1e-11)

    def test_stored_epsilons(self):
        rows = ROWS["rr_epsilon"]
        bounds = pure_dp.optimal_epsilon_bounds(
            column(rows, "delta"), column(rows, "eps0")[:, None], count=column(rows, "k")
        )
        contains(bounds, column(rows, "eps"), 1e-11)

    def test_limits(self):
        bounds = pure_dp.optimal_delta_bounds([10.0, np.inf, -np.inf, 0.0], 0.5, 0.01, count=20)
        failed = -np.expm1(20 * np.log1p(-0.01))
        np.testing.assert_allclose(bounds.upper[:3], [failed, failed, 1.0], rtol=1e-12)
        assert pure_dp.optimal_delta(0.5, 0.5, count=0) == 0

    @pytest.mark.slow
    def test_limits_of_epsilon(self):
        failed = -np.expm1(20 * np.log1p(-0.01))
        deltas = np.array([0.0, 0.1, failed, 0.5, 1.0])
        epsilons = pure_dp.optimal_epsilon(deltas, 0.5, 0.01, count=20)
        assert np.all(np.isinf(epsilons[:2])) and epsilons[4] == 0
        assert 10.0 <= epsilons[2] <= np.inf and 0 < epsilons[3] < 10
        assert pure_dp.optimal_epsilon(0.0, 0.5, count=20) == pytest.approx(10.0)

    def test_a_hundred_thousand(self):
        bounds = pure_dp.optimal_delta_bounds(3.0, 0.001, count=100_000)
        with mp.workdps(30):
            exact = float(oracle.delta_of_equal(mp.mpf(0.002), mp.mpf(0.001), 100_000, 3))
        contains(bounds, exact, 1e-9)


class TestUnequal:
    def test_stored_deltas(self):
        for row in ROWS["mv_delta"]:
            epsilons, deltas = ([float(v) for v in row[name]] for name in ("eps_list", "delta_list"))
            # padded to one length: one program
            pad = [0.0] * (6 - len(epsilons))
            bounds = pure_dp.optimal_delta_bounds(float(row["eps"]), epsilons + pad, deltas + pad)
            contains(bounds, float(row["delta"]), 1e-12)

    @settings(max_examples=20, deadline=None)
    @given(
        st.lists(st.floats(0.0, 1.5), min_size=4, max_size=4),
        st.lists(st.floats(0.0, 0.2), min_size=4, max_size=4),
        st.floats(-1.0, 5.0),
    )
    @example([0.0] * 4, [0.0, 0.0, 0.0, 1.920739954992611e-153], 0.0)
    def test_sums_over_outcomes(self, epsilons, deltas, x):
        bounds = pure_dp.optimal_delta_bounds(x, epsilons, deltas)
        with mp.workdps(340):  # 1 - (1 - delta) loses every digit of the smallest float's delta in fewer
            exact = float(oracle.approximate_dp([e or mp.mpf(10) ** -400 for e in epsilons], deltas, x))
        contains(bounds, exact, 1e-12 + 1e-15 / max(exact, 1e-300))

    def test_epsilon_inverts_delta(self):
        for delta in (0.2, 1e-3):
            found = pure_dp.optimal_epsilon_bounds(delta, FOUR, [1e-5] * 4)
            at_high = pure_dp.optimal_delta_bounds(found.upper, FOUR, [1e-5] * 4)
            at_low = pure_dp.optimal_delta_bounds(found.lower, FOUR, [1e-5] * 4)
            assert at_high.lower <= delta <= at_low.upper and found.upper - found.lower < 1e-12

    @pytest.mark.slow
    def test_many_that_are_equal_by_another_way(self):
        x = np.array([0.3, 1.5])
        walked = pure_dp.optimal_delta_bounds(x, [0.1] * 40, 1e-7, rtol=1e-3)
        exact = pure_dp.optimal_delta_bounds(x, 0.1, 1e-7, count=40)
        assert np.all(walked.lower <= exact.upper) and np.all(exact.lower <= walked.upper)
        assert np.all(walked.upper - walked.lower <= 1e-3 * walked.upper)

    def test_many_that_differ(self):
        # k = 20: the sum over 2^20 outcomes is exact.
        rng = np.random.default_rng(5)
        epsilons = rng.uniform(0.01, 0.3, 20)
        losses, masses = np.zeros(1), np.ones(1)
        for e in epsilons:
            p = 1 / (1 + np.exp(-e))
            losses = np.concatenate([losses + e, losses - e])
            masses = np.concatenate([masses * p, masses * (1 - p)])
        for x in (0.5, 1.8):
            gap = losses - x
            exact = np.sum(np.where(gap > 0, masses * -np.expm1(-np.maximum(gap, 0)), 0.0))
            bounds = pure_dp.optimal_delta_bounds(x, epsilons)
            assert bounds.lower <= exact * (1 + 1e-12) and exact * (1 - 1e-12) <= bounds.upper
            assert bounds.upper - bounds.lower <= 1e-4 * exact

    @pytest.mark.slow
    def test_epsilon_of_many_that_differ(self):
        epsilons = np.random.default_rng(5).uniform(0.01, 0.3, 200)
        found = pure_dp.optimal_epsilon_bounds(1e-6, epsilons)
        assert pure_dp.optimal_delta_bounds(found.upper, epsilons).lower <= 1e-6
        assert pure_dp.optimal_delta_bounds(found.lower, epsilons).upper >= 1e-6
        assert found.upper - found.lower < 1e-4


class TestBesideBoundedRange:
    def test_half_is_below_is_below_whole(self):
        """eps/2-DP composition <= eps-BR composition, fixed or adaptive, <= eps-DP composition."""
        rng = np.random.default_rng(0)
        eps, count = rng.uniform(0.05, 1.5, LANES), rng.integers(1, COUNT + 1, LANES)
        count[-1] = COUNT
        x = rng.uniform(0, 1, LANES) * eps * count
        below = pure_dp.optimal_delta_bounds(x, eps[:, None] / 2, count=count)
        fixed = br.delta_bounds(x, eps[:, None], count=count, adaptive=False)
        adaptive = br.delta_bounds(x, eps[:, None], count=count, cells=32)
        above = pure_dp.optimal_delta_bounds(x, eps[:, None], count=count)
        assert np.all(below.lower <= fixed.upper * (1 + 1e-12)) and np.all(fixed.lower <= adaptive.upper)
        assert np.all(adaptive.lower <= above.upper)

    @pytest.mark.slow
    def test_the_smaller_of_two(self):
        x, count = np.full(LANES, 1.0), COUNT
        eps = np.linspace(0.1, 0.4, LANES)[:, None]
        # Laplace noise and randomised response are eps-DP and 2 eps-BR: pure DP is the smaller.
        pure = pure_dp.optimal_delta(x, eps, count=count)
        np.testing.assert_array_equal(br.smaller_delta(x, 2 * eps, eps, count=count), pure)
        # The exponential mechanism is eps-DP and eps-BR: bounded range is the smaller.
        assert np.all(br.smaller_delta(x, eps, eps, count=count) <= br.delta(x, eps, count=count))
        assert np.all(br.delta(x, eps, count=count) <= pure + 1e-300)
