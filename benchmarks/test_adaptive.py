"""Filters and odometers in compiled loops: a million updates in a scan, a hundred thousand odometers at once."""

import jax
import jax.numpy as jnp
import pytest

from dpjax.adaptive import ApproxDPFilter, GDPFilter, MixtureOdometer, RenyiFilter
from dpjax.mechanisms import Gaussian, PoissonSampled

STEPS, LANES = 1_000_000, 100_000


@pytest.fixture(params=[False, True], ids=["float32", "float64"])
def x64(request):
    with jax.enable_x64(request.param):
        yield


def run(benchmark, f, *args):
    jax.block_until_ready(f(*args))  # compile
    return benchmark(lambda: jax.block_until_ready(f(*args)))


def test_million_updates(benchmark, x64):
    odo = MixtureOdometer(1e-6, 0.1)
    scan = jax.jit(lambda e: jax.lax.scan(lambda s, x: (odo.update(s, epsilon=x), None), odo.init(), e)[0])
    run(benchmark, scan, jnp.full(STEPS, 1e-3))


def test_million_updates_with_all_bounds(benchmark, x64):
    odo = MixtureOdometer(1e-6, 0.1)
    run(benchmark, odo.trajectory, jnp.full(STEPS, 1e-3))


@pytest.mark.parametrize("name", ["approx", "gdp"])
def test_million_requests(benchmark, x64, name):
    filt, key = (ApproxDPFilter(3.0, 1e-5), "epsilon") if name == "approx" else (GDPFilter(1.0), "mu")
    scan = jax.jit(lambda e: jax.lax.scan(lambda s, x: filt.request(s, **{key: x}), filt.init(), e)[0])
    run(benchmark, scan, jnp.full(STEPS, 1e-4))


def test_hundred_thousand_odometers(benchmark, x64):
    odo = MixtureOdometer(1e-6, 0.1)
    step = jax.jit(jax.vmap(lambda s, e: odo.update(s, epsilon=e)))
    run(benchmark, step, odo.init((LANES,)), jnp.full(LANES, 1e-3))


def test_hundred_thousand_odometers_and_bounds(benchmark, x64):
    odo = MixtureOdometer(1e-6, 0.1)

    @jax.jit
    @jax.vmap
    def step(state, epsilon):
        state = odo.update(state, epsilon=epsilon)
        return state, odo.bound(state)

    run(benchmark, step, odo.init((LANES,)), jnp.full(LANES, 1e-3))


def test_sampled_gaussian_request(benchmark, x64):
    filt = RenyiFilter.for_dp(3.0, 1e-5, [2.0, 4.0, 8.0, 16.0, 32.0])
    ask = jax.jit(lambda s, sigma: filt.request(s, PoissonSampled(0.01, Gaussian(sigma))))
    run(benchmark, ask, filt.init(), jnp.asarray(1.1))


def test_eager_request(benchmark, x64):
    filt = ApproxDPFilter(3.0, 1e-5)
    run(benchmark, lambda s: filt.request(s, epsilon=0.01), filt.init())


def test_remaining(benchmark, x64):
    filt = ApproxDPFilter(3.0, 1e-5)
    run(benchmark, filt.remaining, filt.init())
