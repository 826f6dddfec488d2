"""Every special function against mpmath, with the error that its docstring claims, and its derivatives."""

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest

from dpjax import _special

ULP = 2.0**-53


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True), mp.workdps(60):
        yield


def spread(*ranges, seed=0, each=250):
    """Random points, log-spaced in |x| where a range (a, b) has one sign, and the range's ends."""
    rng = np.random.default_rng(seed)
    points = []
    for a, b in ranges:
        if a * b > 0:
            points.append(np.sign(a) * np.exp(rng.uniform(*np.sort(np.log(np.abs([a, b]))), each)))
        else:
            points.append(rng.uniform(a, b, each))
        points.append(np.array([a, b], float))
    return np.concatenate(points)


def exact(f, x):
    """f(x) in mpmath, rounded to float64: its own error is half an ulp."""
    return np.array([float(f(mp.mpf(float(v)))) for v in x])


def assert_relative(values, truth, bound):
    error = np.abs(np.asarray(values) - truth) / np.where(truth == 0, 1, np.abs(truth))
    worst = int(np.argmax(error))
    assert np.all(np.isfinite(values)) and error[worst] <= bound, (worst, error[worst], truth[worst])


# ---------------------------------------------------------------------------------------------------------------------


def test_sincos_is_below_its_absolute_error_up_to_1e6():
    multiples = np.arange(-40, 41) * np.pi / 4
    close = np.concatenate([np.nextafter(multiples, -np.inf), multiples, np.nextafter(multiples, np.inf)])
    far = np.round(np.random.default_rng(1).uniform(-6e5, 6e5, 300)) * (np.pi / 2)  # near the quadrants' corners
    x = np.concatenate([spread((1e-300, 1e-3), (1e-3, 10), (-10, 10), (10, 1e6), (-1e6, -10)), close, far])
    sine, cosine = jax.jit(_special.sincos)(x)
    # half an ulp of the reference's own rounding besides
    assert np.max(np.abs(np.asarray(sine) - exact(mp.sin, x))) <= 2.5e-16 + 0.5 * ULP
    assert np.max(np.abs(np.asarray(cosine) - exact(mp.cos, x))) <= 2.5e-16 + 0.5 * ULP


def test_sine_keeps_relative_accuracy_near_0():
    x = spread((1e-300, 0.7), (-0.7, -1e-300))
    assert_relative(jax.jit(_special.sincos)(x)[0], exact(mp.sin, x), 3 * ULP)


LOG1P = (
    (-0.9999, -1e-5),
    (-1 + 1e-9, -0.5),
    (-0.5, -0.2),
    (-0.42, -0.3),
    (-1e-5, -1e-300),
    (1e-300, 1e-3),
    (1e-3, 1e10),
)


def test_log1p_on_the_whole_line():
    x = spread(*LOG1P)
    value = jax.jit(_special.log1p)(x)
    assert_relative(value, exact(mp.log1p, x), 5 * ULP)


def test_expm1_minus_is_relative_and_nonnegative():
    x = spread((-700, -0.7), (-0.7, 0.7), (-1e-3, -1e-25), (1e-25, 1e-3), (0.69, 0.71), (-0.71, -0.69), (0.7, 700))
    value = jax.jit(_special.expm1_minus)(x)
    assert np.all(np.asarray(value) >= 0)
    assert_relative(value, exact(lambda v: mp.expm1(v) - v, x), 16 * ULP)
    assert _special.expm1_minus(jnp.asarray(0.0)) == 0


def test_minus_log1p_is_relative_and_nonnegative():
    x = spread((-0.999, -0.1), (-0.1, 0.1), (-0.11, -0.09), (0.09, 0.11), (-1e-3, -1e-25), (1e-25, 1e-3), (0.1, 1e10))
    value = jax.jit(_special.minus_log1p)(x)
    assert np.all(np.asarray(value) >= 0)
    assert_relative(value, exact(lambda v: v - mp.log1p(v), x), 60 * ULP)
    assert _special.minus_log1p(jnp.asarray(0.0)) == 0


def log_ndtr(x):
    return mp.log(mp.erfc(-x / mp.sqrt(2)) / 2) if x < 0 else mp.log1p(-mp.erfc(x / mp.sqrt(2)) / 2)


NDTR = ((-1e8, -40), (-40, -1), (-1.1, -0.9), (-1, 5), (5, 37), (7.9, 8.1), (-7.2, -7.0), (-38, -37))


def test_log_ndtr_is_below_its_relative_error():
    x = spread(*NDTR, each=150)
    value = jax.jit(_special.log_ndtr)(x)
    assert_relative(value, exact(log_ndtr, x), 3e-13)


def test_log_ndtr_far_out():
    for x in (-1e20, -1e150):
        assert float(_special.log_ndtr(jnp.asarray(x))) == pytest.approx(-0.5 * x * x, rel=1e-12)
    assert float(_special.log_ndtr(jnp.asarray(60.0))) == 0.0


def erfcx(x):
    return mp.exp(x * x) * mp.erfc(x)


def test_scaled_erfc_where_it_is_used():
    x = spread((0.7, 5), (4.9, 5.1), (5, 100), (26.5, 26.7), (100, 1e10), each=150)
    value = jax.jit(_special._erfcx_positive)(x)
    assert_relative(value, exact(erfcx, x), 2e-14)


# ---------------------------------------------------------------------------------------------------------------------


DERIVATIVES = {
    "sin": (lambda x: _special.sincos(x)[0], mp.cos, lambda x: -mp.sin(x), ((-20, 20), (1e3, 1e5))),
    "cos": (lambda x: _special.sincos(x)[1], lambda x: -mp.sin(x), lambda x: -mp.cos(x), ((-20, 20), (1e3, 1e5))),
    "log1p": (
        _special.log1p,
        lambda x: 1 / (1 + x),
        lambda x: -1 / (1 + x) ** 2,
        ((-0.99, -0.1), (-0.2, 0.2), (0.2, 1e4)),
    ),
    "expm1_minus": (_special.expm1_minus, mp.expm1, mp.exp, ((-30, -0.7), (-0.7, 0.7), (0.7, 30))),
    "minus_log1p": (
        _special.minus_log1p,
        lambda x: x / (1 + x),
        lambda x: 1 / (1 + x) ** 2,
        ((-0.99, -0.1), (-0.1, 0.1), (0.1, 1e4)),
    ),
    "log_ndtr": (
        _special.log_ndtr,
        lambda x: mp.npdf(x) / mp.ncdf(x),
        lambda x: -(mp.npdf(x) / mp.ncdf(x)) * (x + mp.npdf(x) / mp.ncdf(x)),
        ((-30, -1), (-1, 6)),
    ),
    "erfcx": (
        _special._erfcx_positive,
        lambda x: 2 * x * erfcx(x) - 2 / mp.sqrt(mp.pi),
        lambda x: (2 + 4 * x * x) * erfcx(x) - 4 * x / mp.sqrt(mp.pi),
        ((0.7, 5),),
    ),
}


@pytest.mark.parametrize("name", DERIVATIVES)
def test_first_and_second_derivatives(name):
    f, first, second, ranges = DERIVATIVES[name]
    x = spread(*ranges, each=40, seed=3)
    with np.errstate(all="raise"):
        for order, truth in ((jax.grad(f), first), (jax.grad(jax.grad(f)), second)):
            want = exact(truth, x)
            got = np.asarray(jax.vmap(order)(jnp.asarray(x)))
            assert np.all(np.isfinite(got))
            np.testing.assert_allclose(got, want, rtol=1e-8, atol=1e-10 if name != "erfcx" else 1e-9)


@pytest.mark.parametrize("name", ["log1p", "expm1_minus", "minus_log1p", "log_ndtr"])
def test_no_gradient_is_nan_at_the_seams(name):
    seams = [0.0, -0.25, 0.1, -0.1, 0.7, -0.7, -1 + 1e-15 if "log1p" in name else -1.0, 1e-300]
    got = jax.vmap(jax.grad(DERIVATIVES[name][0]))(jnp.asarray(seams))
    assert np.all(np.isfinite(got))
