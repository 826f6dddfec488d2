"""Where an answer is infinite, or clipped at 0, its derivative is 0; never NaN, on no route, in no precision."""

import jax
import numpy as np
import pytest

import dpjax
from dpjax import FixedSizeSampled, Gaussian, Laplace, MassAtInfinity, PoissonSampled, dpsgd

# (question of one number, where, the answer)
CLOSED = {
    "gaussian, no noise": (lambda s: dpjax.epsilon(Gaussian(s), 1e-5), 0.0, np.inf),
    "gaussian, no noise, delta": (lambda s: dpjax.delta(Gaussian(s), 1.0), 0.0, 1.0),
    "gaussian, delta 0": (lambda d: dpjax.epsilon(Gaussian(1.0), d), 0.0, np.inf),
    "gaussian, clipped": (lambda s: dpjax.epsilon(Gaussian(s), 0.9), 1.0, 0.0),
    "one step, no noise": (lambda s: dpjax.epsilon(PoissonSampled(0.1, Gaussian(s)), 1e-5), 0.0, np.inf),
}
SLOW = {
    "gaussian, no noise, clipped": (lambda s: dpjax.epsilon(Gaussian(s), 1.0), 0.0, 0.0),
    "gaussian, by the contour": (lambda s: dpjax.epsilon(dpsgd(s, 0.01, 100), 0.0), 1.0, np.inf),
    "contour, no noise": (lambda s: dpjax.epsilon(dpsgd(s, 0.01, 100), 1e-5), 0.0, np.inf),
    "contour, probability without noise": (lambda q: dpjax.epsilon(dpsgd(0.0, q, 100), 1e-5), 0.01, np.inf),
    "contour, clipped": (lambda s: dpjax.epsilon(dpsgd(s, 0.01, 100), 0.9), 1.0, 0.0),
    "one run, no noise": (lambda s: dpjax.epsilon(FixedSizeSampled(100, 5, Gaussian(s)), 1e-5), 0.0, np.inf),
    "one run, clipped": (lambda s: dpjax.epsilon(Laplace(s), 0.9), 1.0, 0.0),
    "one run, atoms without noise": (lambda s: dpjax.epsilon(Laplace(s), 1e-5), 0.0, np.inf),
    "one run, atoms without noise, delta": (lambda s: dpjax.delta(Laplace(s), 1.0), 0.0, 1.0),
    "lattice, failing": (lambda s: dpjax.epsilon(Laplace(s) * 2 + MassAtInfinity(1e-3), 1e-5), 1.0, np.inf),
    "lattice, clipped": (lambda s: dpjax.epsilon(Laplace(s) * 2 + MassAtInfinity(1e-3), 0.95), 1.0, 0.0),
    "lattice, no noise": (lambda s: dpjax.epsilon(Laplace(s) * 2, 1e-5), 0.0, np.inf),
    "renyi, no noise": (lambda s: dpjax.renyi(PoissonSampled(0.1, Gaussian(s)), 3.0), 0.0, np.inf),
}
CASES = CLOSED | SLOW


@pytest.mark.parametrize("x64", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", [n if n in CLOSED else pytest.param(n, marks=pytest.mark.slow) for n in CASES])
def test_first(name, x64):
    question, x, answer = CASES[name]
    with jax.enable_x64(x64):
        value, slope = jax.jit(jax.value_and_grad(question))(x)
        assert (value, slope) == (pytest.approx(answer, abs=1e-30), 0.0)
        if name in CLOSED:
            assert jax.grad(question)(x) == 0.0


@pytest.mark.slow
@pytest.mark.parametrize("name", CLOSED)
def test_second(name):
    question, x, _ = CASES[name]
    assert jax.jit(jax.hessian(question))(x) == 0.0


def test_beside_ordinary_lanes():
    """One infinite lane does not disturb the others."""
    slopes = jax.jit(jax.vmap(jax.grad(lambda s: dpjax.epsilon(Gaussian(s), 1e-5))))(
        np.array([0.0, 2.0, np.inf], np.float32)
    )
    assert slopes[0] == slopes[2] == 0
    assert slopes[1] == pytest.approx(float(jax.grad(lambda s: dpjax.epsilon(Gaussian(s), 1e-5))(2.0)), rel=1e-6)


def test_what_is_not_valid_stays_nan():
    value, slope = jax.jit(jax.value_and_grad(lambda s: dpjax.epsilon(Gaussian(s), 0.0)))(-1.0)
    assert np.isnan(value) and np.isnan(slope)
