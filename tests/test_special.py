"""Every special function against mpmath, with the error that its docstring claims, and its derivatives."""

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest

from dpjax import _complex, _special

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
    assert np.max(np.abs(np.asarray(sine) - exact(mp.sin, x))) <= 2e-16 + 0.5 * ULP
    assert np.max(np.abs(np.asarray(cosine) - exact(mp.cos, x))) <= 2e-16 + 0.5 * ULP


def test_sine_keeps_relative_accuracy_near_0():
    x = spread((1e-300, 0.7), (-0.7, -1e-300))
    assert_relative(jax.jit(_special.sincos)(x)[0], exact(mp.sin, x), 3 * ULP)


def test_sincos_is_below_a_few_ulp_of_x_beyond_1e6():
    x = spread((1e6, 1e9), (-1e12, -1e9), (1e12, 3.9e15))
    for value, truth in zip(jax.jit(_special.sincos)(x), (mp.sin, mp.cos), strict=True):
        assert np.all(np.abs(np.asarray(value) - exact(truth, x)) <= 2e-16 + 3 * ULP * np.abs(x))
    assert np.all(np.asarray(_special.sincos(jnp.asarray([4.1e15, 1e300]))) == np.array([[0.0], [1.0]]))


def quarter(x):
    return mp.tan((x - 2 * mp.pi * mp.nint(x / (2 * mp.pi))) / 4)


def test_tan_quarter_is_below_its_absolute_error_up_to_1e6_and_relative_near_0():
    x = spread((-3.141, 3.141), (-100, 100), (100, 1e6), (-1e6, -100))
    truth, value = exact(quarter, x), np.asarray(jax.jit(_special.tan_quarter)(x))
    odd = np.abs(truth) > 1 - 1e-9  # where r is pi or -pi, which of them is rounding
    error = np.where(odd, np.abs(np.abs(value) - np.abs(truth)), np.abs(value - truth))
    assert np.max(error) <= 5e-16 + 0.5 * ULP
    x = spread((1e-300, 3), (-3, -1e-300))
    assert_relative(jax.jit(_special.tan_quarter)(x), exact(quarter, x), 5 * ULP)


LOG = ((2.3e-308, 1e-300), (1e-300, 0.5), (0.5, 2), (0.999, 1.001), (2, 1e300), (1e300, 1.79e308))
ROOT = 2**0.5


def test_log_on_the_positive_line_and_at_its_seams():
    close = 1 + np.concatenate([x * spread((1e-15, 0.1)) for x in (-1, 1)])
    seams = np.concatenate(
        [c * (1 + spread((-1e-12, 1e-12), (-1e-3, 1e-3))) for c in (1 / ROOT, ROOT, ROOT / 4, 8 * ROOT)]
    )
    x = np.concatenate([spread(*LOG), close, seams, 2.0 ** np.arange(-1021, 1024, 7)])
    assert_relative(jax.jit(_special.log)(x), exact(mp.log, x), 2.2e-16 + 0.5 * ULP)


def test_log_at_the_ends_of_its_domain():
    assert _special.log(jnp.asarray(1.0)) == 0
    assert _special.log(jnp.asarray(np.inf)) == np.inf
    assert np.isnan(_special.log(jnp.asarray(np.nan)))
    at_0 = float(_special.log(jnp.asarray(0.0)))
    assert -np.inf < at_0 < -708


LOG1P = (
    (-0.9999, -1e-5),
    (-1 + 1e-9, -0.5),
    (-0.5, -0.2),
    (-0.42, -0.3),
    (-0.31, -0.27),
    (0.39, 0.43),
    (-1e-5, -1e-300),
    (1e-300, 1e-3),
    (1e-3, 1e10),
    (1e10, 1.7e308),
)


def test_log1p_on_the_whole_line_and_at_its_seams():
    near = 1e-14 * np.arange(-40, 41)
    seams = np.concatenate([c + near for c in (-0.29, 0.41, 1 / ROOT - 1, ROOT - 1)])
    x = np.concatenate([spread(*LOG1P), seams, -1 + spread((1e-15, 1e-3))])
    assert_relative(jax.jit(_special.log1p)(x), exact(mp.log1p, x), 4e-16 + 0.5 * ULP)


def test_log1p_at_the_ends_of_its_domain():
    assert _special.log1p(jnp.asarray(0.0)) == 0
    assert _special.log1p(jnp.asarray(np.inf)) == np.inf
    assert np.isnan(_special.log1p(jnp.asarray(np.nan)))


ANGLES = {
    "anywhere": ((-3, 3), (-3, 3)),
    "where the ratio is folded": ((0.40, 0.43), (0.999, 1.001)),
    "huge ratios": ((1e-150, 1e150), (1e-150, 1e150)),
    "near the diagonal": ((0.99, 1.01), (0.99, 1.01)),
    "near an axis": ((1e-20, 1e-3), (0.5, 2)),
}


@pytest.mark.parametrize("where", ANGLES)
def test_arctan2_in_all_quadrants(where):
    a, b = ANGLES[where]
    first, second = spread(a, seed=1, each=300), spread(b, seed=2, each=300)
    for y, x in ((first, second), (second, first)):
        for up, right in ((1, 1), (1, -1), (-1, 1), (-1, -1)):
            value = np.asarray(jax.jit(_special.arctan2)(up * y, right * x))
            truth = [mp.atan2(mp.mpf(float(up * c)), mp.mpf(float(right * d))) for c, d in zip(y, x, strict=True)]
            assert_relative(value, np.array([float(v) for v in truth]), 4e-16 + 0.5 * ULP)


def test_arctan2_on_the_axes():
    for y, x, angle in (
        (0.0, 0.0, 0.0),
        (0.0, 3.0, 0.0),
        (0.0, -3.0, np.pi),
        (2.0, 0.0, np.pi / 2),
        (-2.0, 0.0, -np.pi / 2),
        (1e300, 1e-300, np.pi / 2),
        (1e-300, -1e300, np.pi),
        (-1e300, -1e300, -3 * np.pi / 4),
    ):
        assert float(_special.arctan2(jnp.asarray(y), jnp.asarray(x))) == angle, (y, x)
    assert np.isnan(_special.arctan2(jnp.asarray(np.nan), jnp.asarray(1.0)))
    assert np.isnan(_special.arctan2(jnp.asarray(1.0), jnp.asarray(np.nan)))


def signed(rng, low, high, size=400):
    return rng.choice([-1.0, 1.0], size) * np.exp(rng.uniform(np.log(low), np.log(high), size))


def test_complex_expm1_is_relative():
    """The error of the value, and of its real part alone, which is what 1 - |phi| is made of."""
    rng = np.random.default_rng(4)
    turns = 2 * np.pi * np.round(rng.uniform(-1e5, 1e5, 400))
    x = np.concatenate([-np.abs(signed(rng, *r)) for r in ((1e-3, 3), (1e-300, 1), (1e-12, 1e-3), (1e-3, 800))])
    y = np.concatenate(
        [signed(rng, 1e-3, 20), signed(rng, 1e-140, 1), turns + 1e-6 * rng.normal(size=400), signed(rng, 1, 1e6)]
    )
    x, y = np.concatenate([x, np.zeros(400)]), np.concatenate([y, signed(rng, 1e-140, 10)])
    real, imaginary = (np.asarray(part) for part in jax.jit(_complex.expm1)(x, y))
    with mp.workdps(400):
        for a, b, c, d in zip(x, y, real, imaginary, strict=True):
            truth = mp.expm1(mp.mpc(float(a), float(b)))
            assert abs(mp.mpc(float(c), float(d)) - truth) <= 8e-16 * abs(truth), (a, b)
            assert abs(mp.mpf(float(c)) - truth.real) <= 1e-15 * abs(truth.real), (a, b)


def test_complex_expm1_at_the_ends():
    real, imaginary = _complex.expm1(jnp.asarray([0.0, -np.inf, -1e4]), jnp.asarray([0.0, 1.0, 2.0]))
    assert np.array_equal(real, [0.0, -1.0, -1.0]) and np.array_equal(imaginary, [0.0, 0.0, 0.0])


def test_expm1_minus_is_relative_and_nonnegative():
    x = spread((-700, -0.7), (-0.7, 0.7), (-1e-3, -1e-25), (1e-25, 1e-3), (0.69, 0.71), (-0.71, -0.69), (0.7, 700))
    value = jax.jit(_special.expm1_minus)(x)
    assert np.all(np.asarray(value) >= 0)
    assert_relative(value, exact(lambda v: mp.expm1(v) - v, x), 16 * ULP)
    assert _special.expm1_minus(jnp.asarray(0.0)) == 0


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
    "tan_quarter": (
        _special.tan_quarter,
        lambda x: (1 + quarter(x) ** 2) / 4,
        lambda x: quarter(x) * (1 + quarter(x) ** 2) / 8,
        ((-3, 3), (4, 9)),
    ),
    "log": (_special.log, lambda x: 1 / x, lambda x: -1 / x**2, ((1e-3, 0.5), (0.5, 2), (2, 1e4))),
    "log1p": (
        _special.log1p,
        lambda x: 1 / (1 + x),
        lambda x: -1 / (1 + x) ** 2,
        ((-0.99, -0.1), (-0.2, 0.2), (0.2, 1e4)),
    ),
    "expm1_minus": (_special.expm1_minus, mp.expm1, mp.exp, ((-30, -0.7), (-0.7, 0.7), (0.7, 30))),
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


def test_derivatives_of_arctan2_in_all_quadrants():
    rng = np.random.default_rng(6)
    y, x = rng.normal(size=100), rng.normal(size=100)
    square = x * x + y * y
    first = jax.grad(_special.arctan2, (0, 1))
    second = jax.hessian(_special.arctan2, (0, 1))
    for got, want in (
        (jax.vmap(first)(y, x), (x / square, -y / square)),
        (jax.vmap(second)(y, x)[0], (-2 * x * y / square**2, (y * y - x * x) / square**2)),
    ):
        for a, b in zip(got, want, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("name", ["log1p", "expm1_minus", "log_ndtr"])
def test_no_gradient_is_nan_at_the_seams(name):
    seams = [0.0, -0.25, 0.1, -0.1, 0.7, -0.7, -1 + 1e-15 if "log1p" in name else -1.0, 1e-300]
    got = jax.vmap(jax.grad(DERIVATIVES[name][0]))(jnp.asarray(seams))
    assert np.all(np.isfinite(got))
