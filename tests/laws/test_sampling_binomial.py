"""Binomial tails against mpmath, in both tails, and their derivative in q."""

import random

import jax
import mpmath as mp
import numpy as np
import pytest

from dpjax.laws._binomial import binomial_tails


@pytest.fixture(autouse=True)
def double():
    with jax.enable_x64(True), mp.workdps(40):
        yield


def upper(n, q, k):
    """P(X >= k), k > n q: the largest term times the ratios."""
    log_term = mp.loggamma(n + 1) - mp.loggamma(k + 1) - mp.loggamma(n - k + 1) + k * mp.log(q) + (n - k) * mp.log1p(-q)
    total = term = mp.mpf(1)
    for j in range(k, n):
        term *= q / (1 - q) * (n - j) / (j + 1)
        total += term
        if term < total * mp.mpf(10) ** -30:
            break
    return mp.exp(log_term) * total


def exact(n, q, k):
    if k > n * q:
        value = upper(n, q, k)
        return value, 1 - value
    value = upper(n, 1 - q, n - k + 1)
    return 1 - value, value


def cases(count):
    rng = random.Random(2)
    while count:
        n = int(10 ** rng.uniform(0.3, 8))
        q = 10 ** rng.uniform(-6, -0.01) if rng.random() < 0.7 else rng.uniform(0, 1)
        deviation = (n * q * (1 - q)) ** 0.5
        k = min(n, max(1, round(n * q + rng.uniform(-12, 30) * deviation + rng.randint(-2, 3))))
        k = rng.choice([1, n, *[k] * 8])
        if deviation < 3000:
            count -= 1
            yield float(n), q, float(k)


SLOPE = jax.jit(jax.value_and_grad(lambda n, q, k: binomial_tails(n, q, k)[0], 1))


def test_both_tails():
    compiled = jax.jit(binomial_tails)
    worst = 0.0
    for n, q, k in cases(120):
        for got, want in zip(compiled(n, q, k), exact(int(n), mp.mpf(q), int(k)), strict=True):
            if want > 1e-290:
                worst = max(worst, float(abs(mp.mpf(float(got)) / want - 1) / (1 + abs(mp.log(want)))))
    assert worst < 4e-15


def test_the_library_function_would_not_do():
    """Why there is a quadrature: jax.scipy.special.betainc stops after 200 terms."""
    n, q, k = 1786393.0, 6.55763891906808e-05, 353.0
    compiled = jax.jit(binomial_tails)
    want = float(exact(int(n), mp.mpf(q), int(k))[0])
    assert abs(float(jax.scipy.special.betainc(k, n - k + 1, q)) / want - 1) > 1e-10
    assert abs(float(compiled(n, q, k)[0]) / want - 1) < 1e-12


@pytest.mark.parametrize(
    "case", [(10, 0.3, 4), (1000, 0.01, 25), (60000, 0.01, 700), (60000, 0.01, 500), (50, 0.9, 48)]
)
def test_derivative_in_q(case):
    n, q, k = case
    value, slope = SLOPE(float(n), q, float(k))
    x = mp.mpf(q)
    want = mp.exp((k - 1) * mp.log(x) + (n - k) * mp.log(1 - x)) / mp.beta(k, n - k + 1)
    assert float(slope) == pytest.approx(float(want), rel=1e-11)
    assert np.isfinite(value)


def test_limits():
    compiled = jax.jit(jax.value_and_grad(lambda n, q, k: binomial_tails(n, q, k)[0], (0, 1, 2)))
    for (n, q, k), want in {(10, 0, 3): 0, (10, 1, 3): 1, (10, 0.3, 11): 0, (10, 0.3, 0): 1, (0, 0.3, 1): 0}.items():
        value, slopes = compiled(float(n), float(q), float(k))
        assert float(value) == want
        assert np.isfinite(slopes).all()
    for k in (1.0, 10.0):
        want = (1 - 0.7**10, 0.3**10)[k > 1]
        assert float(compiled(10.0, 0.3, k)[0]) == pytest.approx(want, rel=1e-14)
