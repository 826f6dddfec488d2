"""Between curves: the papers' figures, stored rows, inverses, and each bound on its side."""

import json
from pathlib import Path

import jax
import mpmath as mp
import numpy as np
import pytest

from dpjax import conversions as c

ORACLES = Path(__file__).parent / "oracles"
ORDERS = np.r_[np.linspace(0.5, 1.0, 6), 1 + np.geomspace(0.01, 500, 34)]


@pytest.fixture(autouse=True)
def double():
    with jax.enable_x64(True):
        yield


def response(epsilon):
    return np.array([np.exp(epsilon), 1.0]) / (1 + np.exp(epsilon))


def test_figure_1_of_the_characteristic_function_paper():
    """Gaussian and randomised response both have the Renyi curve alpha / 2 above them, and not the same delta = 0.3."""
    gaussian, rr = 0.27661739889684951, 0.47175040269913343
    assert c.gdp_to_profile(1.0, gaussian) == pytest.approx(0.3, rel=1e-14)
    assert round(float(c.gdp_to_profile(1.0, 0.277)), 4) == 0.2999
    p = response(1.0)
    assert c.pair_to_profile(p, p[::-1], rr) == pytest.approx(0.3, rel=1e-13)
    for order in ORDERS:
        moment = (
            np.log(np.sum(np.exp(order * np.log(p) + (1 - order) * np.log(p[::-1])))) / (order - 1) if order != 1 else 0
        )
        assert moment <= order / 2
    from_curve = c.rdp_to_profile(ORDERS, ORDERS / 2, np.array([gaussian, rr]))
    assert from_curve[0] > 0.3 and from_curve[1] > 0.3  # the curve alone knows less than either


@pytest.mark.slow
def test_single_order_conversions_are_not_better():
    """rdp_to_dp at its own epsilon: what all orders leave possible is at most its delta."""
    for slack in (0.1, 1e-3, 1e-6, 1e-12):
        epsilons = np.asarray(c.rdp_to_dp(ORDERS[ORDERS > 1], ORDERS[ORDERS > 1] / 2, slack))
        found = c.rdp_to_profile(ORDERS, ORDERS / 2, np.r_[epsilons, np.zeros(34 - len(epsilons))])[: len(epsilons)]
        assert np.all(found <= slack * (1 + 1e-11))
    for row in json.loads((ORACLES / "adaptive.json").read_text())["zcdp_to_dp_simple"][:3]:
        rho, delta = float(row["rho"]), float(row["delta"])
        tight = c.zcdp_to_dp(rho, delta, method="tight")
        assert tight <= float(row["eps"]) and c.zcdp_to_profile(rho, tight) <= delta * (1 + 1e-3)


def test_profile_and_tradeoff_are_inverse():
    epsilons = np.array([-1.5, -0.3, 0.0, 0.4, 1.1, 2.5])
    pair = np.array([0.35, 0.3, 0.2, 0.1, 0.05]), np.array([0.05, 0.15, 0.2, 0.25, 0.35])
    kinks = np.log(pair[0] / pair[1])
    deltas = c.pair_to_profile(*pair, kinks)
    x = np.linspace(0, 1, 101)
    f = c.profile_to_tradeoff(kinks, deltas, x)
    # Neyman and Pearson: outcomes by falling ratio
    corners = np.cumsum(pair[1]), 1 - np.cumsum(pair[0])
    exact = np.interp(x, np.r_[0, corners[0]], np.r_[1, corners[1]])
    assert np.all(f <= exact + 1e-15) and np.max(exact - f) < 1e-12
    back = c.tradeoff_to_profile(np.clip(corners[0], 0, 1), np.clip(corners[1], 0, 1), epsilons)
    true = np.sum(np.maximum(pair[0] - np.exp(epsilons)[:, None] * pair[1], 0), 1)
    assert np.all(back >= true) and np.max(back - true) < 1e-14
    steps = c.tradeoff_to_profile(x[1:-1], np.maximum(f[1:-1], 0), epsilons, between="steps")
    assert np.all(steps >= true) and np.max(steps - true) < 0.08
    with pytest.raises(ValueError, match="between"):
        c.tradeoff_to_profile([0.5], [0.5], 0.0, between="lines")


def test_profile_and_pair_are_inverse():
    pair = c.profile_to_pair([-1.0, 0.2, 1.0, 3.0], [0.7, 0.3, 0.05, 0.01])
    assert pair.p.shape == pair.q.shape == (7,) and min(*pair.p, *pair.q) >= 0
    assert pair.p.sum() == pytest.approx(1, abs=1e-13) and pair.q.sum() == pytest.approx(1, abs=1e-13)
    assert pair.q[-1] == 0 and pair.p[-1] == pytest.approx(0.01) and pair.p[0] == 0
    found = c.pair_to_profile(*pair, np.array([-1.0, 0.2, 1.0, 3.0, 50.0]))
    np.testing.assert_allclose(found, [0.7, 0.3, 0.05, 0.01, 0.01], rtol=1e-12)


@pytest.mark.slow
def test_renyi_tradeoff_of_randomised_response():
    p = response(1.0)
    logs = lambda o: np.log(np.sum(np.exp(o * np.log(p) + (1 - o) * np.log(p[::-1])))) / (o - 1)
    curve = [logs(o) if o != 1 else np.tanh(0.5) for o in ORDERS]
    x = np.linspace(0, 1, 41)
    exact = np.maximum.reduce([np.zeros(41), 1 - np.e * x, (1 - x) / np.e])
    f = c.rdp_to_tradeoff(ORDERS, curve, x)
    assert np.all(f <= exact + 1e-14) and np.max(exact - f) < 1e-3


def test_gaussian_differential_privacy():
    with mp.workdps(40):
        for row in json.loads((ORACLES / "reference.json").read_text())["gaussian_delta"]:
            mu = mp.sqrt(row["steps"]) / mp.mpf(row["noise_multiplier"])
            got = float(c.gdp_to_profile(float(mu), float(row["epsilon"])))
            exact = mp.mpf(row["delta"])
            assert got == pytest.approx(float(exact), rel=1e-11), row["id"]
        for epsilon in (1e-3, 0.1, 1.0, 5.0, 20.0):
            mu = -2 * mp.sqrt(2) * mp.erfinv(2 / (1 + mp.exp(mp.mpf(epsilon))) - 1)
            found = c.dp_to_gdp(epsilon)
            assert mu <= float(found) <= mu * (1 + mp.mpf(10) ** (-8 if epsilon < 0.01 else -11))
            # the Gaussian dominates randomised response
            x = np.linspace(-epsilon, epsilon, 21)
            p = response(epsilon)
            assert np.all(c.gdp_to_profile(found, x) >= c.pair_to_profile(p, p[::-1], x) * (1 - 1e-12))
    assert c.dp_to_gdp(0.0) == 0 and c.gdp_to_profile(0.0, -1.0) == pytest.approx(1 - np.exp(-1))
    assert jax.grad(c.dp_to_gdp)(1.0) == pytest.approx((c.dp_to_gdp(1.001) - c.dp_to_gdp(0.999)) / 2e-3, rel=1e-5)


def test_traced_and_single_precision():
    value = jax.jit(lambda e, d, x: c.profile_to_tradeoff(e, d, x))
    epsilons, deltas = np.array([0.1, 0.7, 2.0]), np.array([0.3, 0.1, 0.01])
    exact = float(c.profile_to_tradeoff(epsilons, deltas, 0.2))
    assert float(value(epsilons, deltas, 0.2)) == pytest.approx(exact, rel=1e-12)
    assert np.isnan(jax.jit(c.gdp_to_profile)(-1.0, 0.5))
    assert float(jax.grad(c.gdp_to_profile)(1.0, 0.5)) > 0
    with jax.enable_x64(False):
        low = c.profile_to_tradeoff(epsilons, deltas, 0.2)
        assert low.dtype == np.float32 and low <= exact and low == pytest.approx(exact, rel=2e-7)
        high = c.gdp_to_profile(1.0, 0.5)
        assert high.dtype == np.float32 and high == pytest.approx(0.2384217, rel=1e-6)
        assert float(value(epsilons, deltas, 0.2)) <= exact


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: c.rdp_to_profile([0.3], [1.0], 0.5), r"orders = 0.3"),
        (lambda: c.rdp_to_profile([2.0, 3.0], [1.0, 1.0, 1.0], 0.5), "shape"),
        (lambda: c.profile_to_tradeoff([0.1], [2.0], 0.5), r"deltas = 2.0"),
        (lambda: c.profile_to_tradeoff([0.1], [0.2], 1.5), "false_positive_rate = 1.5"),
        (lambda: c.zcdp_to_profile(-1.0, 0.5), "rho = -1.0"),
        (lambda: c.gdp_to_profile(-1.0, 0.5), "mu = -1.0"),
    ],
)
def test_bad_values_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
