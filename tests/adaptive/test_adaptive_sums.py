"""Sums are never below the truth: against exact rational arithmetic, eager and inside compiled loops."""

import fractions
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpjax.adaptive import _sums

F = fractions.Fraction


def exact(x):
    return F(float(x))


def total_of(squares):
    return sum((exact(x) ** 2 for x in np.asarray(squares)), F(0))


@pytest.mark.parametrize("compiled", [False, True])
def test_products_are_split_exactly(x64, compiled):
    rng = np.random.default_rng(0)
    dtype = _sums.default_dtype()
    a, b = (jnp.asarray(rng.uniform(0.5, 2, 500) * 2.0 ** rng.integers(-20, 20, 500), dtype) for _ in range(2))
    product = jax.jit(_sums.two_product) if compiled else _sums.two_product
    high, low = product(a, b)
    for x, y, h, l in zip(*map(np.asarray, (a, b, high, low)), strict=True):
        assert exact(x) * exact(y) == exact(h) + exact(l)


def test_compensation_survives_compilation(x64):
    """The scan's result is bit for bit that of the same operations without a compiler's help."""
    rng = np.random.default_rng(1)
    dtype = _sums.default_dtype()
    x = jnp.asarray(rng.uniform(0, 1, 300) * 10.0 ** rng.integers(-6, 2, 300), dtype)

    def step(total, x):
        high, low = _sums.square(x)
        return _sums.add(total, jnp.where(x >= 0, high, jnp.nan), low), None

    compiled, _ = jax.jit(lambda x: jax.lax.scan(step, _sums.zeros((), dtype), x))(x)
    eager = _sums.zeros((), dtype)
    for v in np.asarray(x):
        eager, _ = step(eager, v)
    truth = total_of(x)
    for total in (compiled, eager):
        assert exact(_sums.upper(total)) >= truth
        unit = F(float(jnp.finfo(dtype).eps)) / 2
        assert abs(exact(total.high) + exact(total.low) - truth) <= 8 * unit**2 * 300 * truth
    assert float(compiled.high) == float(eager.high) and float(compiled.low) == float(eager.low)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0, 1e6, width=32, allow_subnormal=False), max_size=30), st.booleans())
def test_upper_bounds_any_sequence(xs, flag):
    with jax.enable_x64(flag):
        dtype = _sums.default_dtype()
        total = _sums.zeros((), dtype)
        truth = F(0)
        for x in xs:
            total = _ADD(total, jnp.asarray(x, dtype))
            truth += exact(jnp.asarray(x, dtype)) ** 2
        assert exact(_sums.upper(total)) >= truth
        assert float(_sums.upper(total)) <= float(truth) * (1 + 1e-6) + 2 * len(xs) * _sums.floor(dtype)
        budget = jnp.asarray(float(truth), dtype)
        if bool(_sums.at_most(total, budget)):
            assert truth <= exact(budget)


_ADD = jax.jit(lambda total, x: _sums.add(total, *_sums.square(x)))


def test_ten_million_float32_updates_are_never_below_the_truth():
    with jax.enable_x64(False):
        rng = np.random.default_rng(2)
        x = (10.0 ** rng.uniform(-4, -1, 10_000_000)).astype(np.float32)
        step = lambda t, x: (_sums.add(t, *_sums.square(x)), None)
        total, _ = jax.jit(lambda x: jax.lax.scan(step, _sums.zeros((), jnp.float32), x))(jnp.asarray(x))
        plain, _ = jax.jit(lambda x: jax.lax.scan(lambda t, x: (t + x * x, None), jnp.float32(0), x))(jnp.asarray(x))
        truth = math.fsum(np.asarray(x, np.float64) ** 2)  # squares of float32 are exact in float64
        upper = float(_sums.upper(total))
        assert truth <= upper <= truth * (1 + 4e-7)
        assert abs(float(plain) / truth - 1) > 1e-4  # what a plain sum does


def test_exact_sums_pay_no_allowance(x64):
    total = _sums.zeros((), _sums.default_dtype())
    for _ in range(16):
        total = _sums.add(total, *_sums.square(jnp.asarray(0.25)))
    assert float(_sums.upper(total)) == 1.0 and int(total.inexact) == 0
    assert bool(_sums.at_most(total, jnp.asarray(1.0)))
    assert not bool(_sums.at_most(total, jnp.asarray(np.nextafter(np.float32(1), np.float32(0)))))


def test_tiny_costs_are_not_lost(x64):
    dtype = _sums.default_dtype()
    tiny = jnp.asarray(1e-30, jnp.float32).astype(dtype) if not x64 else jnp.asarray(1e-200)
    high, _ = _sums.square(tiny)
    assert exact(high) >= exact(tiny) ** 2 and float(high) > 0


def test_reciprocal_squares_are_exact_or_above(x64):
    dtype = _sums.default_dtype()
    for x in (0.5, 2.0, 0.25, 1.1, 3.0, 0.3, 7.7):
        s = jnp.asarray(x, dtype)
        out = exact(_sums.ratio_of_square(1.0, s))
        truth = 1 / exact(s) ** 2
        assert out >= truth and out <= truth * (1 + F(1, 10**5))
        if x in (0.5, 2.0, 0.25):
            assert out == truth
    assert float(_sums.ratio_of_square(1.0, jnp.asarray(0.0, dtype))) == math.inf
    assert float(_sums.ratio_of_square(1.0, jnp.asarray(math.inf, dtype))) == 0
    assert math.isnan(float(_sums.ratio_of_square(1.0, jnp.asarray(-1.0, dtype))))


def test_concrete_numbers_are_rounded_the_safe_way():
    with jax.enable_x64(False):
        for x in (0.1, 0.3, 1 / 3, 1e-5, 1e-42):
            assert exact(_sums.cast(x, jnp.float32, -np.inf)) <= F(x) <= exact(_sums.cast(x, jnp.float32, np.inf))


def test_sums_are_differentiable(either):
    def sum_of_squares(x):
        total = _sums.zeros((), x.dtype)
        total, _ = jax.lax.scan(lambda t, x: (_sums.add(t, *_sums.square(x)), None), total, x)
        return _sums.upper(total)

    x = jnp.asarray([0.1, 0.2, 0.7])
    reverse, forward = jax.jit(lambda x: (jax.grad(sum_of_squares)(x), jax.jacfwd(sum_of_squares)(x)))(x)
    np.testing.assert_allclose(reverse, 2 * x, rtol=1e-6)
    np.testing.assert_allclose(forward, 2 * x, rtol=1e-6)
