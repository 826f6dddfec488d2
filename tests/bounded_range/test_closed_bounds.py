"""The KL, MGF and DR19 bounds: stored values, the suprema they rest on, and the order of all bounds."""

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rangetools import COUNT, LANES, ROWS, batched, column, oracle

from dpjax import bounded_range as br
from dpjax._two_point import moments

BOUNDS = {
    "optkl": br.kl_bound,
    "mgf": lambda *args, **options: br.mgf_bound(*args, **options, sharp=False),
    "mgf_sharp": br.mgf_bound,
    "dr19": br.dr19_bound,
}


@pytest.mark.parametrize("name", BOUNDS)
def test_stored_values(name):
    rows = ROWS["epsilon_bounds"]
    found = BOUNDS[name](column(rows, "delta"), column(rows, "eps")[:, None], count=column(rows, "k"))
    exact = column(rows, name)
    assert np.all(found >= exact * (1 - 2e-16))
    np.testing.assert_allclose(found, exact, rtol=1e-12)


@pytest.mark.parametrize("name", ["optkl", "mgf", "mgf_sharp"])
def test_stored_values_of_different_epsilons(name):
    for row in ROWS["unequal_bounds"]:
        found = BOUNDS[name](float(row["delta"]), [float(e) for e in row["eps_list"]])
        assert float(row[name]) * (1 - 2e-16) <= found <= float(row[name]) * (1 + 1e-11)


def test_largest_moments():
    rows = ROWS["largest_moment"]
    with jax.enable_x64(True):
        found = moments.log_mgf(column(rows, "eps"), column(rows, "lam"))
    np.testing.assert_allclose(found, column(rows, "logmgf"), rtol=1e-14)


def test_what_they_are_made_of_is_accurate_everywhere():
    y = np.concatenate([[0.0], np.geomspace(1e-8, 800, 400), [3.999999, 4.0]])
    with jax.enable_x64(True):
        value, slope = (np.asarray(f(jnp.asarray(y))) for f in (moments.log_sinhc, moments.log_sinhc_prime))
    with mp.workdps(40):
        x = [mp.mpf(float(v)) / 2 for v in y[1:]]
        exact = np.array([float(mp.log(mp.sinh(v) / v)) for v in x])
        exact_slope = np.array([float((mp.coth(v) - 1 / v) / 2) for v in x])
    assert value[0] == 0 and slope[0] == 0
    np.testing.assert_allclose(value[1:], exact, rtol=1e-15)
    np.testing.assert_allclose(slope[1:], exact_slope, rtol=1e-15)


@settings(max_examples=15, deadline=None)
@given(st.floats(0.01, 4.0), st.floats(-12.0, -0.1), st.integers(1, 2000))
def test_the_bounds_are_never_below_the_exact_numbers(eps, exponent, count):
    delta = float(np.exp(exponent))
    with mp.workdps(40):
        e = mp.mpf(eps)
        x = e / mp.expm1(e)
        spread = mp.sqrt(-mp.log(mp.mpf(delta)) * count * e * e / 2)
        kl = count * (x - 1 - mp.log(x)) + spread
        pure = count * e * mp.tanh(e / 2) + 2 * spread
        dr19 = min(count * e, pure, count * e * e / 2 + spread)
        s = lambda y: mp.log(mp.sinh(y / 2) / (y / 2))
        found = br.mgf_bound(delta, eps, count=count)

        def at(z):  # any lam is a bound; the least one is not to be undercut
            lam = mp.exp(z)
            spent = count * ((lam + 1) * s((lam + 1) * e) - lam * s(lam * e) - s(e))
            return (spent + lam * mp.log(lam) - (1 + lam) * mp.log1p(lam) - mp.log(mp.mpf(delta))) / lam

        low, high = mp.mpf(-12), mp.mpf(12)
        for _ in range(110):
            a, b = low + (high - low) / 3, high - (high - low) / 3
            low, high = (a, high) if at(a) > at(b) else (low, b)
        least = max(at((low + high) / 2), mp.mpf(0))
        assert least <= found <= least * (1 + mp.mpf(10) ** -9)
        assert kl <= br.kl_bound(delta, eps, count=count) <= kl * (1 + mp.mpf(10) ** -13)
        assert dr19 <= br.dr19_bound(delta, eps, count=count) <= dr19 * (1 + mp.mpf(10) ** -13)


@settings(max_examples=40, deadline=None)
@given(st.floats(1e-3, 20.0), st.floats(1e-3, 60.0), st.floats(1e-6, 1 - 1e-6))
def test_no_t_has_a_larger_moment_or_mean(eps, lam, fraction):
    with mp.workdps(40):
        e, t = mp.mpf(eps), mp.mpf(eps) * mp.mpf(fraction)
        q = oracle.up(e, t)
        moment = lam * t + mp.log(q + (1 - q) * mp.exp(-lam * e))
        a, b = (lam + 1) * e, lam * e
        s = lambda y: mp.log(mp.sinh(y / 2) / (y / 2))
        assert moment <= (lam + 1) * s(a) - lam * s(b) - s(e) + mp.mpf(10) ** -35
        x = e / mp.expm1(e)
        assert t - e * (1 - q) <= x - 1 - mp.log(x) + mp.mpf(10) ** -35


def test_the_kernel_bounds_the_hockey_stick():
    # (1 - e^-y)_+ <= e^(c + lam y), with equality at its summit
    for lam in (0.1, 1.0, 7.0, 200.0):
        y = np.linspace(1e-6, 20 / lam, 20001)
        c = lam * np.log(lam) - (1 + lam) * np.log1p(lam)
        assert float(moments.log_kernel(lam)) == pytest.approx(c, rel=1e-5)
        ratio = -np.expm1(-y) * np.exp(-lam * y - c)
        assert ratio.max() <= 1 + 1e-12 and ratio.max() == pytest.approx(1, abs=1e-4)


class TestOrder:
    @pytest.mark.slow
    @settings(max_examples=15, deadline=None)
    @given(st.data())
    def test_of_epsilon(self, data):
        eps = np.array(data.draw(st.lists(st.floats(0.02, 2.0), min_size=LANES - 1, max_size=LANES - 1)))
        delta = 10.0 ** np.array(data.draw(st.lists(st.floats(-9, -0.5), min_size=LANES - 1, max_size=LANES - 1)))
        count = np.array(data.draw(st.lists(st.integers(1, COUNT), min_size=LANES - 1, max_size=LANES - 1)))
        fixed = batched(br.epsilon_bounds, delta, eps, count, adaptive=False)
        adaptive = batched(br.epsilon_bounds, delta, eps, count, cells=32)
        sharp, plain, kl, dr19 = (
            bound(delta, eps[:, None], count=count)
            for bound in (br.mgf_bound, BOUNDS["mgf"], br.kl_bound, br.dr19_bound)
        )
        assert np.all(fixed[0] <= adaptive[2]) and np.all(adaptive[0] <= adaptive[2])
        assert np.all(adaptive[0] <= sharp) and np.all(adaptive[2] <= sharp * (1 + 1e-8))
        assert np.all(sharp <= plain * (1 + 1e-12))
        # Hoeffding's lemma puts the moments below those of KL's bound, hence Theorem 5 below Corollary 3.1, and that
        # below the last of DR19's three by KL <= eps^2 / 8 <= eps^2 / 2.
        assert np.all(plain <= kl * (1 + 1e-12))
        ranged = count * eps**2 / 2 + np.sqrt(-np.log(delta) * count / 2) * eps
        assert np.all(kl <= ranged * (1 + 1e-12))
        assert np.all(dr19 <= ranged * (1 + 1e-12)) and np.all(dr19 <= count * eps * (1 + 1e-12))

    def test_at_a_hundred(self):
        """The order of formulas.md, delta = 1e-6, k = 100, epsilon = 0.1."""
        values = [bound(1e-6, 0.1, count=100) for bound in (br.mgf_bound, BOUNDS["mgf"], br.kl_bound, br.dr19_bound)]
        np.testing.assert_allclose(values, [2.4002, 2.7286, 2.7532, 3.1283], atol=5e-5)


def test_limits():
    for bound in BOUNDS.values():
        assert bound(0.1, 0.5, count=0) == 0 and bound(0.1, 0.0, count=5) == 0
        assert np.isfinite(bound(log_delta=-2000.0, epsilons=0.5, count=5))
    assert br.dr19_bound(0.0, 0.5, count=4) == pytest.approx(2.0)
    assert br.kl_bound(0.0, 0.5, count=4) == np.inf
    assert br.kl_bound(1.0, 0.5, count=4) == pytest.approx(4 * float(ROWS["largest_mean"][2]["kl"]), rel=1e-12)
