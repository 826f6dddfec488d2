"""Derivatives of numbers, outside of jit, are planned on the host as values are: they are what difference quotients say."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
from dpjax import Adjacency, Gaussian, PoissonSampled, dpsgd

# noise, sampling probability, steps: among them runs that numbers, but not tracers, are known to have a closed form for
RUNS = np.array([
    (1.0, 0.02, 500.0), (1.2, 1.0, 1.0), (5.0, 1.0, 30.0), (1.0, 0.0, 10.0), (2.0, 0.05, 0.0), (4.0, 0.3, 40.0)
])  # fmt: skip
EPSILON, DELTA = 0.4, 1e-5
STEP = 1e-4
ASKED = {
    "epsilon": lambda run, **options: dpjax.epsilon(run, DELTA, rtol=1e-11, **options),
    "delta": lambda run, **options: dpjax.delta(run, EPSILON, rtol=1e-11, **options),
    "log_delta": lambda run, **options: dpjax.log_delta(run, EPSILON, rtol=1e-11, **options),
}


def two_kinds(sigma, q, k):
    return (
        PoissonSampled(q, Gaussian(sigma)) * k + PoissonSampled(0.5 * q, Gaussian(2 * sigma)) * 7 + Gaussian(9 * sigma)
    )


def quotients(query, make, runs, i):
    """(the difference quotient by column i, where it may be taken)."""
    step = STEP * np.eye(3)[i]
    inside = (runs[:, 1] < 1) | (i != 1)
    up, down = np.where(inside[:, None], 1 + step, 1.0), 1 - step
    ends = [query(make(*(runs * factor).T)) for factor in (up, down)]
    with np.errstate(invalid="ignore"):
        return (ends[0] - ends[1]) / (runs[:, i] * (up - down)[:, i]), inside


SLOW = pytest.mark.slow  # other programs of the same kind


@pytest.mark.parametrize(
    ("make", "asked"),
    [*((dpsgd, asked) for asked in ASKED), (two_kinds, "epsilon")]
    + [pytest.param(two_kinds, asked, marks=SLOW) for asked in ("delta", "log_delta")],
)
def test_against_difference_quotients(make, asked):
    runs = RUNS if make is dpsgd else RUNS[[0, 2, 5]]
    if asked == "log_delta":
        runs = runs[runs[:, 1] * runs[:, 2] > 0]  # elsewhere it is -inf
    query = ASKED[asked]
    with jax.enable_x64(True):
        slopes = jax.grad(lambda *a: query(make(*a)).sum(), argnums=(0, 1, 2))(*map(jnp.asarray, runs.T))
    for i in range(3):
        expected, inside = quotients(query, make, runs, i)
        known = inside & (runs[:, i] > 0)
        np.testing.assert_allclose(slopes[i][known], expected[known], rtol=2e-5, atol=1e-10)


@pytest.mark.slow
def test_what_is_not_valid_poisons_its_own_row():
    with jax.enable_x64(True):
        slope = jax.grad(lambda s: dpjax.epsilon(dpsgd(s, 0.1, 10), 1e-5).sum())(jnp.array([1.0, -1.0, 2.0]))
    assert np.isnan(slope[1]) and np.isfinite(np.asarray(slope)[[0, 2]]).all()


def test_vmapped_it_is_the_same():
    one = lambda s: dpjax.epsilon(dpsgd(s, 0.02, 500), DELTA)
    with jax.enable_x64(True):
        noise = jnp.array([0.9, 1.0, 3.0])
        together = jax.grad(lambda s: one(s).sum())(noise)
        np.testing.assert_allclose(jax.vmap(jax.grad(one))(noise), together, rtol=1e-12)
        value, _ = jax.value_and_grad(one)(1.0)
        assert value == dpjax.epsilon(dpsgd(1.0, 0.02, 500), DELTA)


@pytest.mark.parametrize("adjacency", [pytest.param(Adjacency.REPLACE_ONE, marks=SLOW), Adjacency.REMOVE])
def test_a_schedule(adjacency):
    noise = np.array([1.0, 1.5, 2.0])
    run = lambda s: dpjax.ComposedOver(PoissonSampled(0.1, Gaussian(s)))
    query = lambda s: dpjax.epsilon(run(s), 1e-4, adjacency=adjacency, rtol=1e-11)
    with jax.enable_x64(True):
        slopes = jax.grad(query)(jnp.asarray(noise))
    for i, step in enumerate(1e-4 * np.eye(3)):
        assert slopes[i] == pytest.approx((query(noise + step) - query(noise - step)) / 2e-4, rel=1e-5)
