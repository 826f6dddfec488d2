"""What holds for every query however it is called: flag off and on, jitted, batched, differentiated; bad input."""

import functools

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from rangetools import oracle

from dpjax import _precision, pure_dp
from dpjax import bounded_range as br

FEW = {"cells": 16}
THREE = [0.5, 0.3, 0.4]
# (name, the query of x and eps, x, eps)
EQUAL = {
    "delta": (lambda x, e: br.delta(x, e, count=3, **FEW), 0.6, 0.5),
    "log_delta": (lambda x, e: br.log_delta(x, e, count=3, **FEW), 0.6, 0.5),
    "epsilon": (lambda x, e: br.epsilon(x, e, count=3, **FEW), 0.01, 0.5),
    "fixed delta": (lambda x, e: br.delta(x, e, count=3, adaptive=False), 0.6, 0.5),
    "fixed epsilon": (lambda x, e: br.epsilon(x, e, count=3, adaptive=False), 0.01, 0.5),
    "given t": (lambda x, e: br.fixed_delta(x, e, 0.3, count=3), 0.6, 0.5),
    "pure delta": (lambda x, e: pure_dp.optimal_delta(x, e, 1e-3, count=3), 0.6, 0.5),
    "pure epsilon": (lambda x, e: pure_dp.optimal_epsilon(x, e, 1e-3, count=3), 0.05, 0.5),
    "kl": (lambda x, e: br.kl_bound(x, e, count=3), 0.01, 0.5),
    "mgf": (lambda x, e: br.mgf_bound(x, e, count=3), 0.01, 0.5),
    "dr19": (lambda x, e: br.dr19_bound(x, e, count=3), 0.01, 0.5),
}
UNEQUAL = {
    "delta": (lambda x, e: br.delta_bounds(x, e, cells=256).estimate, 0.37),
    "epsilon": (lambda x, e: br.epsilon_bounds(x, e, cells=256).estimate, 0.02),
    "given t": (lambda x, e: br.fixed_delta(x, e, jnp.asarray([0.3, 0.1, 0.2])), 0.4),
    "pure delta": (lambda x, e: pure_dp.optimal_delta(x, e, 1e-3), 0.37),
    "mgf": (lambda x, e: br.mgf_bound(x, e), 0.02),
}
SLOW = {
    "delta",
    "fixed delta",
    "log_delta",
    "epsilon",
    "fixed epsilon",
    "given t",
    "pure epsilon",
    "mgf",
    "dr19",
}  # to compile


def some(table):
    return [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in table]


def slope(f, at, step=1e-4):
    """A central difference of fourth order, of numbers."""
    return (8 * (f(at + step) - f(at - step)) - (f(at + 2 * step) - f(at - 2 * step))) / (12 * step)


@pytest.mark.parametrize("name", some(EQUAL))
def test_traced_agrees_and_is_rounded_to_safety(name):
    query, x, eps = EQUAL[name]
    exact = query(x, eps)
    assert isinstance(exact, np.float64)
    for x64, tol in ((False, 3e-7), (True, 1e-12)):
        with jax.enable_x64(x64):
            compiled = jax.jit(query)
            jitted = compiled(x, eps)
            here = query(np.float64(jnp.asarray(x)), np.float64(jnp.asarray(eps)))  # of the numbers received
            assert float(jitted) >= here * (1 - np.sign(here) * 1e-14)
            assert float(jitted) == pytest.approx(here, rel=tol)
            assert np.isnan(compiled(x, -eps))
    np.testing.assert_allclose(jax.vmap(query, (0, None))(jnp.full(2, x), eps), exact, rtol=3e-7)
    assert query(np.full((2, 1), x), np.full((3, 1), eps)).shape == (2, 3)


# Derivatives are those of the estimate; the estimate of a bracket follows the adversary found, to first order in the
# grid: a difference quotient of the oracle, not of the estimate, is what they are held against.
def exact_fixed(x, e):
    return oracle.fixed_optimum(e, 3, x)


def exact_pure(x, e):
    return 1 - (1 - mp.mpf(0.001)) ** 3 * (1 - oracle.delta_of_equal(2 * e, e, 3, x))


def exact_given(x, e):
    return oracle.delta_of_equal(e, mp.mpf(0.3), 3, x)


def exact_adaptive(x, e):
    """Three mechanisms: the supremum over the first t and, given each of its outcomes, two fixed-t ones by search."""

    def one(x):
        return mp.expm1((x - e) / 2) ** 2 / -mp.expm1(-e) if -e <= x <= e else (-mp.expm1(x) if x < -e else mp.mpf(0))

    def best(f):
        ts = [e * i / 12 for i in range(13)]
        i = max(range(13), key=lambda i: f(ts[i]))
        low, high = ts[max(i - 1, 0)], ts[min(i + 1, 12)]
        for _ in range(22):
            a, b = low + (high - low) / 3, high - (high - low) / 3
            low, high = (a, high) if f(a) < f(b) else (low, b)
        return f((low + high) / 2)

    def step(before, x):
        return best(lambda t: oracle.up(e, t) * before(x - t) + (1 - oracle.up(e, t)) * before(x + e - t))

    return step(functools.partial(step, one), x)


ORACLES = {"fixed delta": (exact_fixed, 1e-9), "pure delta": (exact_pure, 1e-9), "given t": (exact_given, 1e-9)}


@pytest.mark.parametrize("name", ORACLES)
def test_derivatives_of_delta(name):
    query, x, eps = EQUAL[name]
    exact, rtol = ORACLES[name]
    with mp.workdps(40), jax.enable_x64(True):
        by_x = mp.diff(lambda v: exact(v, mp.mpf(eps)), mp.mpf(x))
        by_eps = mp.diff(lambda v: exact(mp.mpf(x), v), mp.mpf(eps))
        found = jax.grad(query, (0, 1))(x, eps)
        assert float(found[0]) == pytest.approx(float(by_x), rel=rtol)
        assert float(found[1]) == pytest.approx(float(by_eps), rel=rtol)
    assert float(jax.grad(query)(x, eps)) == pytest.approx(float(by_x), rel=1e-5)  # flag off


@pytest.mark.slow
@pytest.mark.parametrize("name", ORACLES)
def test_second_derivatives_of_delta(name):
    query, x, eps = EQUAL[name]
    with mp.workdps(40), jax.enable_x64(True):
        second = mp.diff(lambda v: ORACLES[name][0](v, mp.mpf(eps)), mp.mpf(x), 2)
        assert float(jax.jit(jax.hessian(query))(x, eps)) == pytest.approx(float(second), rel=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize(("delta", "epsilon"), [("fixed delta", "fixed epsilon"), ("pure delta", "pure epsilon")])
def test_derivatives_of_epsilon(delta, epsilon):
    query, target, eps = EQUAL[epsilon]
    exact, rtol = ORACLES[delta]
    with mp.workdps(40), jax.enable_x64(True):
        at = mp.mpf(float(query(target, eps)))
        by_x = mp.diff(lambda v: exact(v, mp.mpf(eps)), at)
        by_eps = mp.diff(lambda v: exact(at, v), mp.mpf(eps))
        found = jax.grad(query, (0, 1))(target, eps)
    assert float(found[0]) == pytest.approx(float(1 / by_x), rel=rtol)
    assert float(found[1]) == pytest.approx(float(-by_eps / by_x), rel=rtol)


@pytest.fixture(scope="module")
def adaptive_slopes():
    """d delta / d epsilon_global and d delta / d epsilon of three adaptive mechanisms at (0.6, 0.5), by quotients."""
    with mp.workdps(20):
        h, x, eps = mp.mpf(1) / 200, mp.mpf(0.6), mp.mpf(0.5)
        quotient = lambda f: float((f(h) - f(-h)) / (2 * h))
        return quotient(lambda h: exact_adaptive(x + h, eps)), quotient(lambda h: exact_adaptive(x, eps + h))


@pytest.mark.slow
def test_the_adaptive_optimum_traced(adaptive_slopes):
    query, x, eps = EQUAL["delta"]
    compiled = jax.jit(jax.value_and_grad(query, (0, 1)))
    value, slopes = compiled(x, eps)
    here = query(np.float64(np.float32(x)), np.float64(np.float32(eps)))
    assert here <= float(value) <= here * (1 + 3e-7)
    np.testing.assert_allclose(slopes, adaptive_slopes, rtol=0.05)  # 16 cells
    assert np.isnan(jax.tree.leaves(compiled(x, -eps))).all()


@pytest.mark.slow
def test_derivatives_of_the_adaptive_optimum(adaptive_slopes):
    query, x, eps = (lambda x, e: br.delta(x, e, count=3, cells=256)), 0.6, 0.5
    by_x, by_eps = adaptive_slopes
    found = jax.jit(jax.grad(query, (0, 1)))(x, eps)
    assert float(found[0]) == pytest.approx(by_x, rel=2e-3) and float(found[1]) == pytest.approx(by_eps, rel=2e-3)
    inverse = jax.grad(lambda d: br.epsilon(d, eps, count=3, cells=256))(float(query(x, eps)))
    assert float(inverse) == pytest.approx(1 / by_x, rel=5e-3)
    with jax.enable_x64(True), pytest.raises(NotImplementedError, match="first derivatives"):
        jax.hessian(query)(x, eps)


@pytest.mark.parametrize("name", ["kl", pytest.param("mgf", marks=pytest.mark.slow), "dr19"])
def test_derivatives_of_bounds(name):
    query, x, eps = EQUAL[name]
    with jax.enable_x64(True):
        found = jax.grad(query, (0, 1))(x, eps)
    assert float(found[0]) == pytest.approx(slope(lambda v: query(v, eps), x, 1e-5), rel=1e-6)
    assert float(found[1]) == pytest.approx(slope(lambda v: query(x, v), eps, 1e-4), rel=1e-6)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n == "pure delta" else pytest.mark.slow) for n in UNEQUAL]
)
def test_derivatives_by_each_epsilon(name):
    query, x = UNEQUAL[name]
    concrete = lambda e: query(x, np.asarray(e))
    with jax.enable_x64(True):
        found = np.asarray(jax.jit(jax.grad(query, 1))(x, jnp.asarray(THREE)))
        assert np.isnan(jax.jit(query)(x, jnp.asarray([0.5, -0.3, 0.4])))
    # a bracket moves with its grid: wide steps, and two digits
    step, rtol = (0.02, 0.03) if name in ("delta", "epsilon") else (1e-4, 1e-6)
    for i in range(3):
        moved = lambda v, i=i: concrete([v if j == i else e for j, e in enumerate(THREE)])
        assert found[i] == pytest.approx(slope(moved, THREE[i], step), rel=rtol)


def test_values_do_not_recompile():
    def sizes():
        return _precision.compiled.cache_info().currsize, [
            _precision.compiled(f)._cache_size()
            for f in (br.queries._optimum.delta_kernel, br.queries.binomial.optimum_kernel)
        ]

    br.delta(0.6, 0.5, count=3, **FEW), br.delta(0.6, 0.5, count=3, adaptive=False)
    before = sizes()
    for x, eps in ((0.5, 0.4), (1, 0.25), (np.float64(0.1), 2)):
        br.delta(x, eps, count=3, **FEW), br.delta(x, eps, count=3, adaptive=False)
    assert sizes() == before


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: br.delta(0.5, -0.1, count=3), "epsilons = -0.1"),
        (lambda: br.delta(0.5, [0.1, np.inf]), r"epsilons\[1\] = inf"),
        (lambda: br.delta(np.nan, 0.1), "epsilon_global = nan"),
        (lambda: br.delta(0.5, []), "epsilons has no elements"),
        (lambda: br.delta(0.5, 0.1, count=1.5), "count = 1.5"),
        (lambda: br.delta(0.5, 0.1, count=-1), "count = -1"),
        (lambda: br.delta(0.5, [0.1, 0.2], count=[1, 2]), "count = .* one whole number"),
        (lambda: br.delta(0.5, 0.1, rtol=0.0), "rtol = 0.0"),
        (lambda: br.delta(0.5, 0.1, cells=1), "cells = 1"),
        (lambda: br.delta(0.5, 0.1, cells=2.5), "cells = 2.5"),
        (lambda: br.delta(0.5, 0.1, cells=True), "cells = True"),
        (lambda: br.epsilon(1.5, 0.1), "delta = 1.5"),
        (lambda: br.epsilon(epsilons=0.1, log_delta=0.5), "log_delta = 0.5"),
        (lambda: br.epsilon(epsilons=0.1), "exactly one"),
        (lambda: br.epsilon(0.1, 0.1, log_delta=-1.0), "exactly one"),
        (lambda: br.fixed_delta(0.1, 0.5, 0.6), "t = 0.6"),
        (lambda: br.kl_bound(-0.1, 0.5), "delta = -0.1"),
        (lambda: pure_dp.optimal_delta(0.1, 0.5, 1.5), "deltas = 1.5"),
        (lambda: pure_dp.optimal_epsilon(2.0, 0.5), "delta = 2.0"),
        (lambda: jax.jit(lambda n: br.delta(0.5, 0.1, count=n))(3), "count is traced"),
        (lambda: jax.jit(lambda c: br.delta(0.5, 0.1, cells=c))(16), "cells is traced"),
    ],
)
def test_bad_numbers_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_a_concrete_call_inside_a_traced_function():
    found = jax.jit(lambda x: x * br.delta(0.6, 0.5, count=3, **FEW))(2.0)
    assert found == pytest.approx(2 * br.delta(0.6, 0.5, count=3, **FEW), rel=1e-6)
