"""jit, vmap and grad of every public function of ``bounded_range`` and ``pure_dp``: one program for many values."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
from dpjax import _precision, pure_dp
from dpjax import bounded_range as br

FEW = {"count": 2, "cells": 32}  # derivatives are right to about 1 / cells
upper = lambda bounds: bounds.estimate
# name -> (a function of two numbers, values of both)
CALLS = {
    "adaptivity_cost": (lambda x, e: upper(br.adaptivity_cost(x, e, **FEW).adaptive), (0.3, 0.4), (0.5, 0.6)),
    "delta": (lambda x, e: br.delta(x, e, **FEW), (0.3, 0.4), (0.5, 0.6)),
    "delta_bounds": (lambda x, e: upper(br.delta_bounds(x, e, **FEW)), (0.3, 0.4), (0.5, 0.6)),
    "log_delta": (lambda x, e: br.log_delta(x, e, **FEW), (0.3, 0.4), (0.5, 0.6)),
    "log_delta_bounds": (lambda x, e: upper(br.log_delta_bounds(x, e, **FEW)), (0.3, 0.4), (0.5, 0.6)),
    "epsilon": (lambda d, e: br.epsilon(d, e, **FEW), (0.03, 0.05), (0.5, 0.6)),
    "epsilon_bounds": (lambda d, e: upper(br.epsilon_bounds(d, e, **FEW)), (0.03, 0.05), (0.5, 0.6)),
    "fixed_delta": (lambda x, e: br.fixed_delta(x, e, 0.3, count=2), (0.3, 0.4), (0.5, 0.6)),
    "fixed_delta_bounds": (lambda x, e: upper(br.fixed_delta_bounds(x, e, 0.3, count=2)), (0.3, 0.4), (0.5, 0.6)),
    "smaller_delta": (lambda x, e: br.smaller_delta(x, e, 0.7 * e, count=2, rtol=0.5), (0.3, 0.4), (0.5, 0.6)),
    "smaller_epsilon": (lambda d, e: br.smaller_epsilon(d, e, 0.7 * e, count=2, rtol=0.5), (0.03, 0.05), (0.5, 0.6)),
    "kl_bound": (lambda d, e: br.kl_bound(d, e, count=2), (0.03, 0.05), (0.5, 0.6)),
    "mgf_bound": (lambda d, e: br.mgf_bound(d, e, count=2), (0.03, 0.05), (0.5, 0.6)),
    "dr19_bound": (lambda d, e: br.dr19_bound(d, e, count=20), (0.03, 0.05), (0.05, 0.06)),
    "quality_range": (lambda a, b: br.quality_range(jnp.stack([a, b]), jnp.zeros(2)), (0.3, 0.4), (0.5, 0.6)),
    "quality_range_bound": (lambda a, b: br.quality_range_bound(a) * b, (0.3, 0.4), (0.5, 0.6)),
    "exponential_mechanism": (lambda a, b: br.exponential_mechanism(a, b).rho, (0.3, 0.4), (0.5, 0.6)),
    "worst_pair": (lambda t, e: br.worst_pair(e, t).p[0], (0.3, 0.4), (0.5, 0.6)),
    "optimal_delta": (lambda x, e: pure_dp.optimal_delta(x, e, 1e-3, count=2), (0.3, 0.4), (0.5, 0.6)),
    "optimal_delta_bounds": (lambda x, e: upper(pure_dp.optimal_delta_bounds(x, e, 1e-3)), (0.3, 0.4), (0.5, 0.6)),
    "optimal_epsilon": (lambda d, e: pure_dp.optimal_epsilon(d, e, 1e-3, count=2), (0.03, 0.05), (0.5, 0.6)),
    "optimal_epsilon_bounds": (
        lambda d, e: upper(pure_dp.optimal_epsilon_bounds(d, e, 1e-3)), (0.03, 0.05), (0.5, 0.6)
    ),
}  # fmt: skip
QUICK = {"kl_bound", "quality_range", "quality_range_bound", "exponential_mechanism", "worst_pair", "optimal_delta"}


def test_every_function_is_here():
    public = {name for name, f in vars(br).items() if inspect.isfunction(f) and not name.startswith("_")}
    assert public | set(pure_dp.__all__) == set(CALLS)


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in CALLS])
def test_transformed(name):
    query, xs, es = CALLS[name]
    traces = []

    def counted(x, e):
        traces.append(1)
        return query(x, e)

    with jax.enable_x64(True):
        both = jax.jit(jax.value_and_grad(counted, (0, 1)))
        found = [both(x, e) for x in xs for e in es]
        assert len(traces) == 1  # one program for many values
        values, slopes = (np.asarray(a) for a in zip(*found, strict=True))
        assert np.all(np.isfinite(values)) and np.all(np.isfinite(slopes)) and np.all(np.any(slopes != 0, axis=0))
        many = jax.jit(jax.vmap(jax.vmap(query, (None, 0)), (0, None)))(jnp.asarray(xs), jnp.asarray(es))
        np.testing.assert_allclose(many.reshape(-1), values, rtol=1e-9)
        # with a step the function itself, in the same program: grids follow the arguments, so two digits of a bracket
        for i, step in enumerate((1e-3 * xs[0], 1e-3 * es[0])):
            ends = [both(xs[0] + s * step * (i == 0), es[0] + s * step * (i == 1))[0] for s in (-1, 1)]
            assert float(ends[1] - ends[0]) / (2 * step) == pytest.approx(float(slopes[0][i]), rel=0.05, abs=1e-3)
        assert len(traces) == 1
    programs = _precision.compiled.cache_info().currsize
    numbers = [query(np.float64(x), np.float64(e)) for x in xs for e in es]
    np.testing.assert_allclose(numbers, values, rtol=1e-6)  # some round to float32 here
    first = _precision.compiled.cache_info().currsize
    assert first - programs <= 2
    query(np.float64(xs[0] * 1.1), np.float64(es[0] * 1.1))
    assert _precision.compiled.cache_info().currsize == first


SCHEDULE = np.array([0.1, 0.2, 0.3])  # 0.23 below is no sum of losses: delta has no kink there
RECORDS = {
    "pure": lambda e: dpjax.ComposedOver(dpjax.PureDP(e)),
    "approximate": lambda e: dpjax.ComposedOver(dpjax.ApproximateDP(e, 1e-3)),
    "given t": lambda e: dpjax.ComposedOver(dpjax.BoundedRange(2 * e, 1.1 * e)),
    "range": lambda e: dpjax.ComposedOver(dpjax.BoundedRange(e)),
}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n == "approximate" else pytest.mark.slow) for n in RECORDS]
)
def test_schedules_of_records(name):
    """Values, batches and first derivatives by every step's epsilon; log delta's is delta's over delta."""
    make = RECORDS[name]
    with jax.enable_x64(True):
        delta = jax.jit(jax.value_and_grad(lambda e: dpjax.delta_bounds(make(e), 0.23).estimate))
        value, slopes = delta(SCHEDULE)
        numbers = dpjax.delta_bounds(make(SCHEDULE), 0.23)
        assert numbers.lower * (1 - 1e-9) <= value <= numbers.upper * (1 + 1e-9)
        for i in range(3):
            step = np.zeros(3)
            step[i] = 2e-3
            quotient = (delta(SCHEDULE + step)[0] - delta(SCHEDULE - step)[0]) / 4e-3
            assert float(slopes[i]) == pytest.approx(float(quotient), rel=0.03)
        logs = jax.jit(jax.vmap(jax.value_and_grad(lambda e: dpjax.log_delta(make(e), 0.23))))
        log_value, log_slopes = logs(np.stack([SCHEDULE, SCHEDULE * 1.1]))
        assert float(log_value[0]) == pytest.approx(float(np.log(value)), abs=0.01)
        np.testing.assert_allclose(log_slopes[0], slopes / value, rtol=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pure", "approximate"])
def test_second_derivatives_of_schedules(name):
    query = lambda e: dpjax.delta_bounds(RECORDS[name](e), 0.23).estimate
    with jax.enable_x64(True):
        first, second = jax.jit(jax.grad(query)), jax.jit(jax.hessian(query))(SCHEDULE)
        for i in range(3):
            step = np.zeros(3)
            step[i] = 1e-5
            quotient = (first(SCHEDULE + step) - first(SCHEDULE - step)) / 2e-5
            np.testing.assert_allclose(second[i], quotient, rtol=1e-5, atol=1e-7)
