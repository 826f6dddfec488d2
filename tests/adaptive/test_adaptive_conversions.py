"""Conversions between notions of privacy are on the safe side, and the printed DP -> pDP conversion is not."""

import functools

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest

from dpjax import conversions as c


def test_zcdp_reference(x64, row_zcdp_to_dp_simple):
    rho, delta = float(row_zcdp_to_dp_simple["rho"]), float(row_zcdp_to_dp_simple["delta"])
    epsilon = float(c.zcdp_to_dp(rho, delta))
    np.testing.assert_allclose(epsilon, float(row_zcdp_to_dp_simple["eps"]), rtol=1e-14 * 10 if x64 else 5e-6)


def best_epsilon(rho, delta):
    value = lambda t: _at(1 + mp.exp(t), rho, delta)
    _at = lambda a, rho, delta: a * rho + mp.log(1 - 1 / a) - mp.log(a * delta) / (a - 1)
    t = mp.findroot(lambda t: mp.diff(value, t), mp.log(mp.log(1 / delta) / rho) / 2)
    return max(value(t), mp.mpf(0))


@pytest.mark.parametrize("rho", [1e-6, 0.01, 1.0, 50.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-12])
def test_tight_zcdp_is_the_best_order_from_above(x64, rho, delta):
    rho, delta = jnp.asarray(rho), jnp.asarray(delta)
    truth = best_epsilon(mp.mpf(float(rho)), mp.mpf(float(delta)))
    tight = mp.mpf(float(c.zcdp_to_dp(rho, delta, "tight")))
    assert truth <= tight <= truth * (1 + (1e-5 if x64 else 2e-4)) and tight <= float(c.zcdp_to_dp(rho, delta))


@pytest.mark.parametrize("method", ["published", "tight"])
@pytest.mark.parametrize("epsilon", [0.01, 1.0, 8.0])
def test_budgets_are_inverses_from_below(x64, method, epsilon):
    for delta in (1e-3, 1e-9):
        rho = c.zcdp_budget(epsilon, delta, method)
        back = best_epsilon(mp.mpf(float(rho)), mp.mpf(float(jnp.asarray(delta))))
        published = float(rho) + 2 * np.sqrt(float(rho) * np.log(1 / float(jnp.asarray(delta))))
        back = min(back, published) if method == "tight" else published
        assert epsilon * (1 - (1e-6 if x64 else 1e-3)) <= back <= float(jnp.asarray(epsilon)) * (1 + 1e-15)
    for order in (1.5, 8.0, 100.0):
        b = c.rdp_budget(order, epsilon, 1e-5)
        if b > 0:
            np.testing.assert_allclose(c.rdp_to_dp(order, b, 1e-5), epsilon, rtol=1e-10 if x64 else 1e-3)


def test_randomised_response_attains_the_tight_zcdp(f64):
    """rho = epsilon tanh(epsilon/2) bounds every order, and the Kullback-Leibler divergence equals it."""
    for epsilon in np.geomspace(1e-3, 20, 40):
        p, t = 1 / (1 + np.exp(-epsilon)), np.geomspace(1e-6, 300 / epsilon, 2000)
        product = 2 * np.sinh((t + 1) * epsilon / 2) * np.sinh(t * epsilon / 2) / np.cosh(epsilon / 2)
        log_moment = np.log1p(product)  # of E e^(tL)
        rho = float(c.dp_to_zcdp(epsilon, "tight"))
        assert np.all(log_moment <= t * (t + 1) * rho * (1 + 1e-14))
        assert rho <= float(c.dp_to_zcdp(epsilon))
        np.testing.assert_allclose(rho, (2 * p - 1) * epsilon, rtol=1e-10)


def test_printed_dp_to_pdp_is_false():
    """A three-point pair that is (1, 0.01)-DP and exceeds loss 2 with probability 0.0158.

    Printed: 2 delta/(epsilon e^epsilon) = 0.00736. Ours: 2 delta/(1 - e^-epsilon) = 0.0316.
    """
    epsilon, delta = 1.0, 0.01
    top = delta / (1 - np.exp(-epsilon))  # P-mass of a point whose loss is just 2 epsilon
    p = np.array([top, (1 - top) / 2, (1 - top) / 2])
    q = np.array([top * np.exp(-2 * epsilon) * (1 - 1e-12), 0.0, 0.0])
    q[1:] = (1 - q[0]) / 2
    for a, b in ((p, q), (q, p)):  # (epsilon, delta)-DP in both orders
        assert np.sum(np.maximum(a - np.exp(epsilon) * b, 0)) <= delta * (1 + 1e-9)
    exceeds = np.sum(p[np.log(p / q) > 2 * epsilon])
    assert exceeds > 0.0158 > 2 * delta / (epsilon * np.exp(epsilon))
    loss, probability = c.dp_to_pdp(epsilon, delta)
    assert loss == 2 and exceeds <= probability
    # and beyond epsilon = 0.853 it is below the mass at infinity of plain (epsilon, delta)-randomised response
    assert 2 * delta / (0.86 * np.exp(0.86)) < delta


def test_no_pair_exceeds_the_corrected_dp_to_pdp(f64):
    rng = np.random.default_rng(0)
    for _ in range(2000):
        epsilon = 10 ** rng.uniform(-1.5, 0.7)
        p, q = (rng.dirichlet(np.ones(4) * 10 ** rng.uniform(-1, 1)) for _ in range(2))
        delta = max(np.sum(np.maximum(a - np.exp(epsilon) * b, 0)) for a, b in ((p, q), (q, p)))
        with np.errstate(divide="ignore"):
            beyond = np.sum(p[np.abs(np.log(p / q)) > 2 * epsilon])
        assert beyond <= 2 * delta / (1 - np.exp(-epsilon)) * (1 + 1e-12)


def test_one_sided_pdp(f64):
    epsilon, delta = 0.5, 0.1
    # P(L > eps) <= delta in both orders, and P(|L| > eps) = delta (1 + e^-eps) almost
    low = delta * np.exp(-epsilon) * (1 - 1e-9)
    p = np.array([delta, 1 - delta - low, low])
    q = p[::-1]
    loss = np.log(p / q)
    assert np.sum(p[loss > epsilon]) <= delta
    two_sided = np.sum(p[np.abs(loss) > epsilon])
    assert delta < two_sided <= c.one_sided_pdp_to_pdp(epsilon, delta)[1]


def test_bad_arguments(either):
    for call, message in (
        (lambda: c.zcdp_to_dp(-1.0, 0.1), "rho = -1.0"),
        (lambda: c.zcdp_to_dp(1.0, 0.0), "slack = 0.0"),
        (lambda: c.rdp_to_dp(1.0, 0.1, 0.1), "order = 1.0"),
        (lambda: c.dp_to_pdp(1.0, 1.5), "delta = 1.5"),
        (lambda: c.zcdp_budget(1.0, 0.1, "best"), "method = 'best'"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    assert np.isnan(jax.jit(c.zcdp_to_dp)(-1.0, 0.1)) and np.isnan(jax.grad(jax.jit(c.zcdp_to_dp))(-1.0, 0.1))
    assert np.isnan(jax.jit(c.rdp_budget)(0.5, 0.1, 0.1)) and np.isnan(jax.jit(c.dp_to_pdp)(-1.0, 0.1)[1])
    assert float(c.zcdp_to_dp(0.0, 0.1)) == 0 and float(c.zcdp_budget(0.0, 0.1)) == 0


def test_derivatives(f64):
    for method in ("published", "tight"):
        for h in (functools.partial(f, method=method) for f in (c.zcdp_to_dp, c.zcdp_budget)):
            slope = jax.grad(h)(0.3, 1e-5)
            np.testing.assert_allclose(slope, (h(0.3 + 1e-3, 1e-5) - h(0.3 - 1e-3, 1e-5)) / 2e-3, rtol=1e-3)
