"""The adaptive optimum: against stored values, a plain recursion, and attacks on both ends of its bracket."""

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rangetools import COUNT, LANES, ROWS, batched, column, oracle

from dpjax import bounded_range as br

CELLS = {"cells": 32}
LANE_X, LANE_EPS = np.full(LANES, 1.25), np.full((LANES, 1), 0.5)
# widths in units, the threshold in units, how large a unit is; run in this order
UNEQUAL = [
    ([2, 3, 5], 3, 0.1),
    ([5, 3, 2], 3, 0.1),
    ([1, 1, 4, 2], 2, 0.2),
    ([4, 1, 2, 1], 5, 0.15),
    ([3, 1, 1, 1, 2, 2], 4, 0.12),
]


class TestEqual:
    def test_contains_the_stored_values(self):
        rows = ROWS["adaptive_delta"]
        lower, estimate, upper = batched(
            br.delta_bounds, column(rows, "eps_g"), column(rows, "eps"), column(rows, "k"), **CELLS
        )
        exact = column(rows, "delta_adaptive")
        # a stored value is a decimal that float rounds
        assert np.all(lower <= exact * (1 + 2e-16)) and np.all(exact * (1 - 2e-16) <= upper)
        assert np.all(lower <= estimate) and np.all(estimate <= upper)
        assert np.all(upper - lower <= 0.02 * exact + 1e-15)

    def test_contains_the_limit_of_a_plain_recursion(self):
        cases = [(k, threshold) for k in (2, 5, 8) for threshold in (0, 2, 2 * k - 3)]
        unit = 0.25
        lower, _, upper = batched(
            br.delta_bounds, [c[1] * unit for c in cases], 2 * unit, [c[0] for c in cases], **CELLS
        )
        for i, (k, threshold) in enumerate(cases):
            least, limit, moves = oracle.extrapolated([2] * k, (threshold, unit), 64)
            assert least <= upper[i] * (1 + 1e-13)  # a real adversary, up to the recursion's rounding
            assert lower[i] <= limit + 3 * moves + 1e-15 and limit - 3 * moves <= upper[i] + 1e-15

    @pytest.mark.slow
    def test_a_finer_grid_lies_inside(self):
        x, k = np.linspace(0.1, 3.0, 9), 8
        coarse = batched(br.delta_bounds, x, 0.5, k, cells=16)
        fine = batched(br.delta_bounds, x, 0.5, k, **CELLS)
        assert np.all(coarse[0] <= fine[2]) and np.all(fine[0] <= coarse[2])
        assert np.all(fine[2] - fine[0] <= 0.4 * (coarse[2] - coarse[0]))  # like 1 / cells^2

    def test_one_mechanism_is_a_closed_form(self):
        x, eps = np.linspace(0.0, 0.99, 12), np.repeat([1.0, 3.0], 6)
        lower, _, upper = batched(br.delta_bounds, x, eps, 1, **CELLS)
        exact = np.expm1((x - eps) / 2) ** 2 / -np.expm1(-eps)
        assert np.all(lower <= exact) and np.all(exact <= upper * (1 + 1e-15))
        np.testing.assert_allclose(lower, exact, rtol=1e-12)

    def test_limits(self):
        x = np.array([0.0, 3.0, 4.0, 4.5, np.inf, -np.inf, 0.7, 0.0, -50.0])
        eps = np.array([0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.0, 0.0, 0.5])
        lower, _, upper = batched(br.delta_bounds, x, eps, COUNT, **CELLS)
        assert np.all(upper[[2, 3, 4, 6, 7]] <= 1e-20) and np.all(upper[[5, 8]] == 1)
        assert np.all(lower <= upper) and np.all(lower[[5, 8]] >= 1 - 1e-15)
        assert np.all(batched(br.delta_bounds, 1.0, 0.5, [0, 0], **CELLS)[2] <= 1e-300)
        assert batched(br.delta_bounds, [-1.0], 0.5, [0], **CELLS)[1][0] == pytest.approx(-np.expm1(-1.0))

    def test_below_zero_the_pair_is_swapped(self):
        x = np.array([0.3, 1.0, 2.0])
        at, mirrored = (batched(br.delta_bounds, s * x, 0.5, 6, **CELLS) for s in (1, -1))
        for above, below in zip(at, mirrored, strict=True):
            np.testing.assert_allclose(below, -np.expm1(-x) + np.exp(-x) * above, rtol=1e-12)


class TestUnequal:
    @pytest.mark.parametrize("case", range(len(UNEQUAL)))
    def test_contains_the_limit_of_a_plain_recursion(self, case):
        widths, threshold, unit = UNEQUAL[case]
        least, limit, moves = oracle.extrapolated(widths, (threshold, unit), 64)
        epsilons = [w * unit for w in widths] + [0.0] * (6 - len(widths))  # the same program for all
        bounds = br.delta_bounds(threshold * unit, epsilons, cells=48)
        assert least <= bounds.upper * (1 + 1e-13)
        assert bounds.lower <= limit + 3 * moves and limit - 3 * moves <= bounds.upper
        assert bounds.upper - bounds.lower <= 0.02 * limit

    def test_order_matters_and_padding_does_not(self):
        ends = [br.delta_bounds(0.3, [*order, 0.0, 0.0, 0.0], cells=48) for order in ([0.2, 0.3, 0.5], [0.5, 0.3, 0.2])]
        assert ends[0].lower > ends[1].upper or ends[1].lower > ends[0].upper
        between = br.delta_bounds(0.3, [0.0, 0.2, 0.0, 0.3, 0.5, 0.0], cells=48)
        assert between.lower <= ends[0].upper and ends[0].lower <= between.upper

    def test_equal_mechanisms_by_another_way(self):
        one = br.delta_bounds(0.7, [0.4] * 6, cells=48)
        lower, _, upper = batched(br.delta_bounds, [0.7], 0.4, 6, **CELLS)
        assert one.lower <= upper[0] and lower[0] <= one.upper


class TestEpsilon:
    @pytest.mark.slow
    def test_inverts_delta(self):
        deltas, eps, k = np.array([0.2, 1e-2, 1e-4, 1e-8]), 0.5, 8
        low, _, high = batched(br.epsilon_bounds, deltas, eps, k, **CELLS)
        at_low = batched(br.delta_bounds, low, eps, k, **CELLS)
        at_high = batched(br.delta_bounds, high, eps, k, **CELLS)
        # At the upper end delta is certainly met, at the lower end it is certainly not undercut.
        assert np.all(at_high[0] <= deltas) and np.all(at_low[2] >= deltas)
        assert np.all(high - low <= 0.02 * high)

    def test_limits(self):
        low, _, high = batched(br.epsilon_bounds, [0.0, 1.0, 0.9, 1e-200], 0.5, 8, **CELLS)
        assert high[0] >= 4.0 >= low[0] and high[0] == pytest.approx(4.0)
        assert high[1] == 0 and high[2] == 0
        assert low[3] <= 4.0 <= high[3] * (1 + 1e-12)

    @pytest.mark.slow
    def test_unequal(self):
        found = br.epsilon_bounds(1e-3, [0.5, 0.3, 0.2, 0.4, 0.0, 0.0], cells=48)
        at = [br.delta_bounds(x, [0.5, 0.3, 0.2, 0.4, 0.0, 0.0], cells=48) for x in (found.lower, found.upper)]
        assert at[0].upper >= 1e-3 >= at[1].lower and found.upper - found.lower < 0.01


class TestGap:
    """The theorem: no cost of adaptivity iff epsilon_global >= (k - 1 - 1/k) epsilon, except at isolated points."""

    def test_stored_gaps(self):
        rows = [r for r in ROWS["adaptive_delta"] if r["k"] > 1]
        gap = column(rows, "gap")
        none = column(rows, "eps_g") >= column(rows, "no_gap_threshold_eps_g")
        isolated = np.array([(r["k"], float(r["eps_g"])) == (3, 0.0) for r in rows])
        assert np.all(np.abs(gap[none | isolated]) < 1e-30) and np.all(gap[~none & ~isolated] > 0)

    @pytest.mark.parametrize("k", [2, 3, 4, 5, 8])
    def test_zero_above_and_positive_below(self, k):
        eps, edge = 1.0, k - 1 - 1 / k
        x = np.array([edge + 0.02, edge + 0.4 / k, (edge + k) / 2, 0.5 * edge, 0.7 * edge])
        fixed = batched(br.delta_bounds, x, eps, k, adaptive=False)
        adaptive = batched(br.delta_bounds, x, eps, k, **CELLS)
        assert np.all(fixed[0] <= adaptive[2]) and np.all(adaptive[0] >= fixed[0] * (1 - 1e-12))
        assert np.all(adaptive[0][:3] - fixed[2][:3] <= 1e-13 * fixed[2][:3])  # no gap is certified where there is none
        assert np.all(adaptive[0][3:] > fixed[2][3:])  # and it is where there is one

    def test_cost(self):
        lower, upper, adaptive, fixed = (
            np.asarray(a) for a in br.adaptivity_cost(LANE_X, LANE_EPS, count=COUNT, **CELLS)
        )
        assert np.all(0 < lower) and np.all(lower <= upper)
        np.testing.assert_array_equal(upper, adaptive[2] - fixed[0])


def mixed_delta(pairs, weights, eps, x):
    """delta of the mechanism that draws which product of pairs it is, and puts the draw out."""
    return sum(
        float(w) * float(oracle.delta_of_pairs([eps] * len(t), t, x)) for w, t in zip(weights, pairs, strict=True)
    )


class TestMixing:
    """Lemmas 4.2 and 4.3: drawing the t with private coins, seen or unseen, never exceeds the bound."""

    @settings(max_examples=25, deadline=None)
    @given(st.data())
    def test_coins_never_exceed_the_bound(self, data):
        eps, k, coins = 0.6, 3, data.draw(st.integers(1, 4))
        fraction = st.floats(0.01, 0.99)
        ts = [[eps * data.draw(fraction) for _ in range(k)] for _ in range(coins)]
        weights = np.array([data.draw(st.floats(0.01, 1.0)) for _ in range(coins)])
        x = data.draw(st.floats(0.0, 1.5))
        bound = batched(br.delta_bounds, [x], eps, k, adaptive=False)[2][0]
        with mp.workdps(25):
            seen = mixed_delta(ts, weights / weights.sum(), eps, x)
        assert seen <= bound * (1 + 1e-12) + 1e-15

    @settings(max_examples=25, deadline=None)
    @given(st.lists(st.tuples(st.floats(0.01, 0.99), st.floats(0.01, 1.0)), min_size=1, max_size=5), st.floats(0, 0.99))
    def test_an_unseen_coin_is_dominated_by_the_pairs(self, draws, fraction):
        # One mechanism whose outcome hides the coin: P and Q are mixtures, and their divergence only shrinks.
        eps, weights = 0.8, np.array([w for _, w in draws])
        pairs = br.worst_pair(eps, eps * np.array([f for f, _ in draws]))
        p, q = (np.average(np.asarray(a), axis=0, weights=weights) for a in (pairs.p, pairs.q))
        x = fraction * eps
        hidden = np.maximum(p - np.exp(x) * q, 0).sum()
        assert hidden <= batched(br.delta_bounds, [x], eps, 1, adaptive=False)[2][0] * (1 + 1e-12)

    @settings(max_examples=25, deadline=None)
    @given(st.lists(st.floats(0.0, 1.0), min_size=7, max_size=7), st.floats(0.0, 1.4))
    def test_no_adaptive_strategy_exceeds_the_upper_end(self, tree, x):
        # A strategy is a t at every node of the binary tree of outcomes.
        eps, k = 0.5, 3

        def play(node, left):
            if node >= 7:
                return max(0.0, -np.expm1(left))
            t = tree[node] * eps
            q = np.expm1(t - eps) / np.expm1(-eps)
            return q * play(2 * node + 1, left - t) + (1 - q) * play(2 * node + 2, left - t + eps)

        assert play(0, x) <= batched(br.delta_bounds, [x], eps, k, **CELLS)[2][0] * (1 + 1e-12)


@pytest.mark.slow
def test_a_thousand_mechanisms():
    for x in (5.0, 8.0):
        coarse, fine = (br.delta_bounds(x, 0.1, count=1000, cells=c) for c in (48, 96))
        assert fine.lower <= coarse.upper and coarse.lower <= fine.upper
        assert coarse.upper - coarse.lower <= 0.01 * coarse.upper
    bounds = br.epsilon_bounds(1e-6, 0.1, count=1000)
    assert bounds.upper - bounds.lower <= 0.001 * bounds.upper


@pytest.mark.slow
def test_exponents_that_overflow():
    # e^x overflows from 709 on; k eps is 3000 here.
    bounds = br.log_delta_bounds(np.array([800.0, 1500.0, 2900.0]), 3.0, count=1000)
    fixed = br.log_delta_bounds(np.array([800.0, 1500.0, 2900.0]), 3.0, count=1000, adaptive=False)
    assert np.all(np.isfinite(bounds.upper)) and np.all(fixed.lower <= bounds.upper)
    assert np.all(bounds.lower <= bounds.upper)
