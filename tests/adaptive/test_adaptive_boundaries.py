"""The boundaries: values, the parameters that make them tightest, derivatives, and the misprint in y*."""

import functools

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest

from dpjax.adaptive import boundaries as b

RTOL = {False: 2e-6, True: 1e-14}


def m(x):
    return mp.mpf(float(x))


def linear(v, delta, a):
    root = mp.sqrt(2 * a * mp.log(1 / delta))
    return root / 2 + root / (2 * a) * v  # b/2 + b/(2a) v with b^2 = 2 a log(1/delta)


def mixture(form, v, delta, gamma):
    big_k = mp.sqrt((v + gamma) / gamma) / delta
    if form == "exact":
        level = lambda x: x * x / 2 + mp.log(2 * mp.ncdf(x)) - mp.log(big_k)
        start = min(mp.sqrt(2 * mp.log((big_k + 1) / 2)), mp.log(big_k) * mp.sqrt(mp.pi / 2))
        return mp.findroot(level, start) * mp.sqrt(v + gamma)
    inside = {"sharp": (big_k + 1) / 2, "one_sided": big_k / 2 + 1, "two_sided": big_k}[form]
    return mp.sqrt(2 * (v + gamma) * mp.log(inside))


def stitched(v, delta, v0, s=None, eta=2):
    if v < v0:
        return mp.inf
    if s is None:
        inside = mp.log(mp.log(2 * v / v0)) + mp.mpf("0.72") * mp.log(mp.mpf("5.2") / delta)
        return mp.mpf("1.7") * mp.sqrt(v * inside)
    k1 = (mp.root(eta, 4) + 1 / mp.root(eta, 4)) / mp.sqrt(2)
    return k1 * mp.sqrt(v * (s * mp.log(mp.log(eta * v / v0)) + mp.log(mp.zeta(s) / (delta * mp.log(eta) ** s))))


CASES = {
    "linear": (b.linear, linear),
    **{f: (functools.partial(b.mixture, form=f), functools.partial(mixture, f)) for f in b.MIXTURE_FORMS},
    "stitched": (b.stitched, stitched),
    "stitched-unrounded": (
        functools.partial(b.stitched, s=1.4, eta=2.0),
        lambda v, d, v0: stitched(v, d, v0, m(jnp.asarray(1.4)), mp.mpf(2)),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_values_over_sixteen_decades(x64, name):
    ours, reference = CASES[name]
    axes = (np.geomspace(1e-8, 1e8, 9), [1e-3, 1e-7, 1e-15], [1e-3, 0.7])
    v, delta, parameter = (x.astype(jnp.result_type(float)) for x in np.meshgrid(*axes, indexing="ij"))
    got = np.asarray(jax.jit(ours)(v, delta, parameter))
    for x, *arguments in zip(got.ravel(), v.ravel(), delta.ravel(), parameter.ravel(), strict=True):
        truth = reference(*map(m, arguments))
        if truth == mp.inf:
            assert np.isinf(x)
        else:
            assert abs(m(x) / truth - 1) < RTOL[x64] * 2


def test_reference_values(f64, row_odometers):
    v, delta = float(row_odometers["v"]), float(row_odometers["delta_prime"])
    check = lambda value, column: np.testing.assert_allclose(value + v / 2, float(row_odometers[column]), rtol=1e-13)
    np.testing.assert_allclose(b.advanced_composition(v, delta), float(row_odometers["advanced"]), rtol=1e-13)
    for target in (1.0, 3.0):
        check(b.linear(v, delta, b.advanced_composition_time(target, delta)), f"uF_eps{target:.0f}")
    names = {"two_sided": "two_sided", "one_sided": "one_sided_closed", "sharp": "one_sided_sharp_closed"}
    for form, name in {**names, "exact": "one_sided_exact"}.items():
        check(b.mixture(v, delta, 0.1, form), f"uM_{name}_gamma01")
    check(b.mixture(v, delta, 1.0, "two_sided"), "uM_two_sided_gamma1")
    check(b.stitched(v, delta, 0.05), "uS_v0_005")
    check(b.stitched(v, delta, 0.05, s=1.4, eta=2.0), "uS_exactconst_v0_005")
    check(b.stitched(v, delta, 0.001), "uS_v0_001")


def test_target_time(f64, row_ystar):
    epsilon, delta = float(row_ystar["eps"]), float(row_ystar["delta_prime"])
    y = b.advanced_composition_time(epsilon, delta)
    np.testing.assert_allclose(y, float(row_ystar["ystar"]), rtol=1e-14)
    np.testing.assert_allclose(b.advanced_composition(y, delta), epsilon, rtol=1e-14)


def test_printed_target_time_reaches_half_of_epsilon(f64, row_ystar):
    """The circulated text has +epsilon where +2 epsilon belongs."""
    epsilon, delta = float(row_ystar["eps"]), float(row_ystar["delta_prime"])
    twice = 2 * np.log(1 / delta)
    printed = (-np.sqrt(twice) + np.sqrt(twice + epsilon)) ** 2
    np.testing.assert_allclose(b.advanced_composition(printed, delta), epsilon / 2, rtol=1e-9)


def test_line_touches_advanced_composition_at_its_target(f64):
    slope = jax.jit(jax.grad(lambda v, delta, a: v / 2 + b.linear(v, delta, a)))
    for epsilon in (0.1, 1.0, 5.0):
        for delta in (1e-3, 1e-10):
            y = float(b.advanced_composition_time(epsilon, delta))
            line = lambda v, delta=delta, y=y: v / 2 + np.asarray(b.linear(v, delta, y))
            np.testing.assert_allclose(line(y), epsilon, rtol=1e-13)
            np.testing.assert_allclose(slope(y, delta, y), jax.grad(b.advanced_composition)(y, delta), rtol=1e-12)
            v = y * np.geomspace(1e-4, 1e4, 401)
            assert np.all(line(v) >= np.asarray(b.advanced_composition(v, delta)) * (1 - 1e-14))


def test_order_of_the_mixture_forms(either):
    v, delta = np.meshgrid(np.geomspace(1e-8, 1e8, 33), [0.5, 0.1, 1e-3, 1e-15])
    exact, sharp, one, two = (np.asarray(b.mixture(v, delta, 0.3, form)) for form in b.MIXTURE_FORMS)
    slack = 1 + RTOL[either]
    assert np.all(exact <= sharp * slack) and np.all(sharp <= two * slack)
    assert np.all(sharp <= one * slack)
    assert np.all((one <= two * slack) | (np.sqrt((v + 0.3) / 0.3) / delta < 2))


def test_published_stitched_constants_round_up(f64):
    v, delta = np.meshgrid(np.geomspace(1, 1e12, 200), [0.999, 0.1, 1e-3, 1e-15])
    assert np.all(b.stitched(v, delta, 1.0) >= b.stitched(v, delta, 1.0, s=1.4, eta=2.0))


def test_stitched_line_before_v0(either):
    """The continuation is a line (so it bounds all times), meets the boundary at v0, and starts above 0."""
    for options in ({}, {"s": 1.3, "eta": 1.5}):
        early = functools.partial(b.stitched, delta=1e-3, v0=2.0, below_v0="line", **options)
        at = [float(early(v)) for v in (0.0, 0.5, 1.0, 1.5, 2.0)]
        np.testing.assert_allclose(np.diff(at, 2), 0, atol=2e-6)
        np.testing.assert_allclose(at[-1], b.stitched(2.0, 1e-3, 2.0, **options), rtol=1e-6)
        slope, level = (at[-1] - at[0]) / 2, at[0]  # P(cross level + slope v) = exp(-2 level slope)
        assert np.exp(-2 * level * slope) < 1e-3


@pytest.mark.parametrize("form", b.MIXTURE_FORMS)
def test_tightest_mixture(f64, form):
    delta = np.array([0.3, 1e-3, 1e-15])
    gamma = np.asarray(b.tightest_mixture(2.0, delta, form))
    nearby = gamma * np.r_[1, np.geomspace(0.9, 1.1, 41), np.geomspace(1e-4, 1e4, 41)][:, None]
    lowest, *others = np.asarray(b.mixture(2.0, delta, nearby, form))
    assert np.all(others >= lowest * (1 - 1e-15))
    slope = jax.jit(jax.grad(lambda g: jnp.sum(b.mixture(2.0, delta, g, form))))(gamma)
    assert np.all(np.abs(slope) < 1e-11)


def test_tightest_mixture_is_lamberts_function(f64):
    for delta in (0.1, 1e-6, 1e-15):
        w = mp.lambertw(-(m(delta) ** 2) / mp.e, -1).real
        np.testing.assert_allclose(b.tightest_mixture(3.0, delta, "two_sided"), float(3 / (-w - 1)), rtol=1e-14)


@pytest.mark.parametrize("ratio", [1.01, 2.0, 1e3, 1e12])
def test_tightest_stitched(f64, ratio):
    for delta in (1e-3, 1e-15):
        s, eta = b.tightest_stitched(ratio, delta, 1.0)
        best = b.stitched(ratio, delta, 1.0, s=s, eta=eta)
        others = b.stitched(
            ratio, delta, 1.0, s=1 + (s - 1) * np.geomspace(0.2, 5, 41)[:, None], eta=eta ** np.geomspace(0.2, 5, 41)
        )
        assert np.all(others >= best * (1 - 1e-14)) and best < b.stitched(ratio, delta, 1.0)


def test_tightest_linear(f64):
    a = b.tightest_linear(2.0)
    assert np.all(b.linear(2.0, 1e-3, a * np.geomspace(0.1, 10, 101)) >= b.linear(2.0, 1e-3, a) * (1 - 1e-14))


SMOOTH = {
    "linear": lambda p: b.linear(p[0], p[1], p[2]),
    "exact": lambda p: b.mixture(p[0], p[1], p[2]),
    "stitched": lambda p: b.stitched(p[0], p[1], p[2]),
    "unrounded": lambda p: b.stitched(p[0], p[1], p[2], s=1 + p[2], eta=2 + p[2]),
    "line": lambda p: b.stitched(p[2] / 2, p[1], p[0], below_v0="line"),
    "best gamma": lambda p: b.tightest_mixture(p[0], p[1]),
    "best s and eta": lambda p: sum(b.tightest_stitched(p[0] + 1, p[1], p[2])),
    "advanced": lambda p: b.advanced_composition(p[0], p[1]),
    "time": lambda p: b.advanced_composition_time(p[0], p[1]),
}


def central(g, p, i):
    step = 1e-5 * p * np.eye(3)[i]
    return (g(p + step) - g(p - step)) / (2e-5 * p[i])


@pytest.mark.parametrize("name", SMOOTH)
def test_derivatives(f64, name):
    """First and second ones against central differences of what is one order lower."""
    f, p, twice = SMOOTH[name], np.array([1.7, 0.02, 0.4]), "best" not in name
    second = jax.jacfwd(jax.grad(f)) if twice else lambda p: p
    every = jax.jit(lambda p: (f(p), jax.grad(f)(p), second(p)))
    value, gradient = (lambda p, k=k: every(p)[k] for k in (0, 1))
    _, slope, hessian = every(p)
    np.testing.assert_allclose(slope, [central(value, p, i) for i in range(3)], rtol=2e-6, atol=1e-8)
    if twice:
        np.testing.assert_allclose(hessian, [central(gradient, p, i) for i in range(3)], rtol=2e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in SMOOTH if "best" in n])
def test_second_derivatives_of_optimal_parameters(f64, name):
    f, p = SMOOTH[name], np.array([1.7, 0.02, 0.4])
    gradient, hessian = jax.jit(jax.grad(f)), jax.jit(jax.jacfwd(jax.grad(f)))(p)
    np.testing.assert_allclose(hessian, [central(gradient, p, i) for i in range(3)], rtol=2e-5, atol=1e-6)


def test_no_nan_derivatives_at_the_edges(f64):
    at_zero = jax.grad(b.mixture)(0.0, 1e-3, 1.0)
    assert np.isfinite(at_zero) and at_zero > 0
    assert jax.grad(b.stitched)(0.5, 1e-3, 1.0) == 0  # infinite there
    assert jax.grad(b.advanced_composition)(0.0, 1e-3) == 0.5  # the drift's; the root's is infinite


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: b.linear(-1.0, 0.1, 1.0), "v = -1.0"),
        (lambda: b.linear(1.0, 1.0, 1.0), "delta = 1.0"),
        (lambda: b.linear(1.0, 0.1, 0.0), "a = 0.0"),
        (lambda: b.mixture(1.0, 0.0, 1.0), "delta = 0.0"),
        (lambda: b.mixture(1.0, 0.1, [1.0, -2.0]), r"gamma\[1\] = -2.0"),
        (lambda: b.mixture(1.0, 0.1, 1.0, "printed"), "form = 'printed'"),
        (lambda: b.stitched(1.0, 0.1, float("nan")), "v0 = nan"),
        (lambda: b.stitched(1.0, 0.1, 1.0, s=1.0), "s = 1.0"),
        (lambda: b.stitched(1.0, 0.1, 1.0, below_v0="zero"), "below_v0 = 'zero'"),
        (lambda: b.tightest_stitched(1.0, 0.1, 1.0), "v / v0 = 1.0"),
        (lambda: b.tightest_mixture(0.0, 0.1), "a = 0.0|v = 0.0"),
    ],
)
def test_bad_concrete_arguments_raise(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_bad_traced_arguments_give_nan(f32):
    """In the value and in every derivative."""
    bad = jnp.asarray([(-1.0, 0.1, 1.0), (1.0, 0.0, 1.0), (1.0, 1.5, 1.0), (1.0, 0.1, -1.0), (jnp.nan, 0.1, 1.0)])
    both = lambda f, n: jax.jit(jax.vmap(jax.value_and_grad(f, tuple(range(n)))))(*bad[:, :n].T)
    for f in (b.linear, b.mixture, b.stitched):
        assert all(np.all(np.isnan(x)) for x in jax.tree.leaves(both(f, 3)))
    for f in (b.advanced_composition, b.advanced_composition_time, b.tightest_mixture):
        for x in jax.tree.leaves(both(f, 2)):
            assert np.all(np.isnan(np.asarray(x)[[0, 1, 2, 4]]))
    assert np.isnan(jax.jit(b.tightest_stitched)(0.5, 0.1, 1.0)[0])
