"""The inequalities under the certificate, one by one, against 80-bit sums and brute force: random and adversarial inputs."""

import importlib
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest

from dpjax import cumulant
from dpjax.mechanisms import Adjacency, Gaussian, PoissonSampled
from dpjax.pairs import dominating_pair

sys.path.append(str(Path(__file__).parent / "oracles"))
long_double = importlib.import_module("long_double")

DIRECTIONS = {"remove": Adjacency.REMOVE, "add": Adjacency.ADD, "replace": Adjacency.REPLACE_ONE}
ULP = 2.0**-53
LANES = 64
MOST = 16384  # inner nodes
pytestmark = pytest.mark.skipif(not long_double.usable, reason="needs an 80-bit long double")


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def pair_of(direction, sigma, q):
    """One component per lane."""
    return dominating_pair(
        PoissonSampled(jnp.asarray(q)[:, None], Gaussian(jnp.asarray(sigma)[:, None])), DIRECTIONS[direction]
    )


def log_uniform(rng, low, high, size=LANES):
    return np.exp(rng.uniform(np.log(low), np.log(high), size))


def ordinary(rng):
    """(sigma, q, s) over what people use."""
    sigma = log_uniform(rng, 0.3, 20)
    return sigma, log_uniform(rng, 1e-6, 0.5), np.minimum(log_uniform(rng, 0.05, 1e3), 20 * sigma)


def extreme(rng):
    """(sigma, q, s) over all that the engine accepts, q on both sides of 1/2."""
    sigma = log_uniform(rng, 0.05, 1e4)
    q = np.where(rng.random(LANES) < 0.7, log_uniform(rng, 1e-8, 0.9), 1 - log_uniform(rng, 1e-9, 0.1))
    return sigma, q, np.minimum(log_uniform(rng, 1e-4, 1e4), 100 * sigma)


def corner(rng):
    """(sigma, q, s) where the weight's two peaks nearly meet: the map of `window` is close to a tangency."""
    sigma = log_uniform(rng, 0.08, 0.5)
    s = rng.uniform(0.01, 3, LANES)
    # the far peak's height, (1 + s) log q + s (1 + s) / (2 sigma^2), between -60 and 20
    q = np.exp((rng.uniform(-60, 20, LANES) - s * (1 + s) / (2 * sigma**2)) / (1 + s))
    return sigma, np.clip(q, 1e-8, 0.5), s


@jax.jit
def _solve_real(pair, s, coarser):
    win = cumulant.window(pair, s)
    step = jnp.maximum(cumulant.real_step(pair, s) * coarser, (win.high - win.low) / MOST)
    return win, step, cumulant.real(pair, s, win, step)


def solve_real(direction, sigma, q, s, coarser=1.0):
    found = _solve_real(pair_of(direction, sigma, q), jnp.asarray(s), jnp.full((LANES, 1), coarser))
    return jax.tree.map(lambda a: np.asarray(a)[:, 0], found)


def exact_k(direction, sigma, q, s, win, i):
    """K(s) in 80 bits, on a grid far wider and finer than needed; None where that would be too long."""
    fine = (
        min(0.15, 2 * np.pi * 0.9 * sigma / 46)
        if direction == "remove"
        else min(0.1, sigma / 12, sigma / np.sqrt(12 * s))
    )
    low, high = win.low[i] - 4.0, win.high[i] + 4.0
    count = int((high - low) / fine) + 2
    return None if count > 200_000 else long_double.component(direction, sigma, q, s, low, fine, count)[2]


def k_errors(direction, case, coarser=1.0):
    """(computed - exact K, exact, log of the quadrature's error bound) of every lane, the differences in 80 bits."""
    sigma, q, s = case
    win, _, real = solve_real(direction, *case, coarser)
    assert np.all(np.isfinite(real.value))
    rows = []
    for i in range(LANES):
        exact = exact_k(direction, sigma[i], q[i], s[i], win, i)
        if exact is not None:
            rows.append((real.value[i] - exact, exact, real.log_error[i]))
    return rows


# ---------------------------------------------------------------------------------------------------------------------
# K on the real line


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_k_is_accurate_to_ulps_where_people_are(direction):
    rows = k_errors(direction, ordinary(np.random.default_rng(0)))
    assert len(rows) > LANES // 2
    for error, exact, log_error in rows:
        assert log_error < -40
        assert abs(error) <= 64 * ULP * min(abs(exact), 1) + 1e-14 * abs(exact)


KNOWN_K = [  # relative accuracy of K itself, beyond the 64 ulp that certified bounds take for granted
    ("remove", 0.2366470441121775, 0.9999999685047176, 0.029006440580198464),  # q close to 1
    ("remove", 8.696325979599479, 0.9997873530020612, 1.3600331254974226e-4),
    ("remove", 7914.209746781499, 0.011196823465372275, 5.468738879891838e-3),  # cancellation like 1/s
    ("remove", 0.051699563443444174, 0.005004031431768869, 7.134926566981041e-4),
]


UNSETTLED = pytest.mark.xfail(strict=True, reason="q close to 1, s = 877: the window's height misses the peak")


@pytest.mark.parametrize("direction", ["remove", "add", pytest.param("replace", marks=UNSETTLED)])
def test_k_is_accurate_to_ulps_everywhere(direction):
    rng = np.random.default_rng(1)
    sigma, q, s = extreme(rng)
    for i, (d, *values) in enumerate(KNOWN_K):
        sigma[i], q[i], s[i] = values if d == "remove" else (sigma[i], q[i], s[i])
    s[10:40] = log_uniform(rng, 1e-4, 1e-2, 30)
    q[10:20] = 1 - log_uniform(rng, 1e-9, 1e-6, 10)
    for error, exact, _ in k_errors(direction, (sigma, q, s)):
        # 250 ulp of K: at sigma 0.05 each log weight has the size of u^2 / 2 = 200
        assert abs(error) <= 250 * ULP * abs(exact)


@pytest.mark.parametrize("coarser", [2.0, 4.0, 8.0])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_the_trapezoid_error_of_k_is_below_its_bound(direction, coarser):
    for seed, cases in enumerate((ordinary, corner)):
        rows = k_errors(direction, cases(np.random.default_rng(seed)), coarser)
        seen = 0
        for error, exact, log_error in rows:
            # |computed - exact| of exp K, relative to the exact one
            difference = abs(float(np.expm1(error)))
            rounding = 1e-13 * max(1.0, abs(float(exact)))
            assert difference <= np.exp(log_error) * max(1.0, float(np.exp(error))) + rounding
            seen += difference > 1e-10
        assert coarser < 8 or seen > 3  # the bound is put to the test


@pytest.mark.parametrize("cases", [ordinary, extreme, corner])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_the_excess_is_nonnegative_and_finite(direction, cases):
    rng = np.random.default_rng(3)
    sigma, q, s = cases(rng)
    pair = pair_of(direction, sigma, q)
    low, high = -12 - 1 / sigma, 12 + (1 + s) / sigma
    u = jnp.asarray(low[:, None, None] + (high - low)[:, None, None] * rng.random((LANES, 1, 300)))

    def excess(pair, u, s):
        return cumulant.weighted_excess(cumulant.at(pair, u), s[:, None, None], -0.5 * u * u)

    value = np.asarray(jax.jit(excess)(pair, u, jnp.asarray(s)))
    assert np.all(value >= 0) and not np.any(np.isnan(value))  # infinite where K is above 700


# ---------------------------------------------------------------------------------------------------------------------
# The window


def log_ratio(u, sigma, q, y=0.0):
    """(log |1 + v|, arg(1 + v)) at u + iy in plain NumPy."""
    exponent = u / sigma - 0.5 / sigma**2
    top = np.maximum(exponent, 0)
    near, far = (1 - q) * np.exp(-top), q * np.exp(exponent - top)
    re, im = near + far * np.cos(y / sigma), far * np.sin(y / sigma)
    return top + 0.5 * np.log(re * re + im * im), np.arctan2(im, re)


def log_line(direction, sigma, q, s, u, y=0.0):
    """(log |N exp(x)|, Im L) on Im u = y."""
    modulus, angle = 0.5 * (y * y - u * u) - 0.5 * np.log(2 * np.pi), np.zeros_like(u)
    for sign, alpha, beta in long_double.PARTS[direction]:
        log_r, arg = log_ratio(sign * u, sigma, q, y)
        modulus, angle = modulus + (alpha + s * beta) * log_r, angle + arg
    return modulus, angle


def log_integral(exponent, du):
    top = exponent.max(-1)
    return top + np.log(np.sum(np.exp(exponent - top[..., None]), -1) * du)


@pytest.mark.parametrize("cases", [ordinary, extreme, corner])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_what_lies_outside_the_window_is_below_its_bound(direction, cases):
    for seed in range(3):
        sigma, q, s = cases(np.random.default_rng(seed))
        win, _, _ = solve_real(direction, sigma, q, s)
        for i in range(LANES):
            parts = len(long_double.PARTS[direction])
            reach = max(30.0, parts * (1 + s[i]) / sigma[i] + 30 - win.high[i])
            for start, sign in ((win.high[i], 1), (win.low[i], -1)):
                u = start + sign * np.linspace(0, reach, 20_001)
                exponent, _ = log_line(direction, sigma[i], q[i], s[i], u)
                # Riemann sums from the far side: below the integral where the weight falls outwards, as it must
                outside = log_integral(exponent[1:], reach / 20_000)
                assert outside <= win.log_tail[i] + 1e-9, (sigma[i], q[i], s[i])
                assert exponent.argmax() == 0 and np.all(np.diff(exponent) < 1e-9), (sigma[i], q[i], s[i])


def test_a_narrow_window_is_paid_for_by_its_tails(monkeypatch):
    """With a margin of 4 the discarded tails are what separates K from the truth, and the bound knows it."""
    monkeypatch.setattr(cumulant, "MARGIN", 4.0)
    rng = np.random.default_rng(5)
    sigma, q, s = rng.uniform(0.8, 3, LANES), rng.uniform(0.05, 0.4, LANES), rng.uniform(0.5, 3, LANES)

    def narrow(pair, s):
        win = cumulant.window(pair, s)
        step = cumulant.real_step(pair, s)
        return win, cumulant.real(pair, s, win, step), cumulant.log_real_alias(pair, s, step, jnp.zeros_like(step))

    outside = 0
    win, real, alias = jax.tree.map(
        lambda a: np.asarray(a)[:, 0], jax.jit(narrow)(pair_of("remove", sigma, q), jnp.asarray(s))
    )
    for i in range(LANES):
        exact = long_double.component(
            "remove", sigma[i], q[i], s[i], win.low[i] - 9, 0.05, int((win.high[i] - win.low[i] + 18) / 0.05)
        )[2]
        difference = abs(float(np.expm1(real.value[i] - exact)))
        assert difference <= np.exp(real.log_error[i]) * (1 + 1e-9)
        outside += difference > 1e3 * np.exp(alias[i]) + 1e-12
    assert outside == LANES  # without the tails' share the bound would be broken everywhere


# ---------------------------------------------------------------------------------------------------------------------
# The envelopes


@jax.jit
def _envelope(pair, s, t, y, strip):
    win = cumulant.window(pair, s)
    step = jnp.minimum(2 * jnp.pi * y / strip, cumulant.real_step(pair, s))
    step = jnp.maximum(step, (win.high - win.low) / MOST)
    real = cumulant.real(pair, s, win, step)
    own = jnp.logaddexp(cumulant.log_real_alias(pair, s, step, y), win.log_tail - real.value)
    return win, step, cumulant.log_envelope(pair, s, t, y, win, step), real.value + 0.5 * y * y + own


def envelope(direction, sigma, q, s, t, y, strip):
    lift = lambda a: jnp.asarray(a)[:, None]
    found = _envelope(pair_of(direction, sigma, q), jnp.asarray(s), jnp.asarray(t), lift(y), lift(strip))
    return jax.tree.map(lambda a: np.asarray(a)[:, 0], found)


def shifts(rng, sigma):
    return np.minimum(np.pi * sigma * log_uniform(rng, 3e-4, 0.4), 24)


@pytest.mark.parametrize("cases", [ordinary, extreme, corner])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_the_envelope_is_the_line_integral_within_its_own_error(direction, cases):
    rng = np.random.default_rng(6)
    sigma, q, s = cases(rng)
    t, y = log_uniform(rng, 0.1, 1e5), shifts(rng, sigma)
    win, step, found, own = envelope(direction, sigma, q, s, t, y, rng.uniform(25, 60, LANES))
    for i in range(LANES):
        low, high, du = win.low[i] - 20, win.high[i] + 20, min(step[i] / 2.3, 0.01)
        if (high - low) / du > 100_000:
            continue
        modulus, angle = log_line(direction, sigma[i], q[i], s[i], np.arange(low, high, du), y[i])
        truth = log_integral(modulus - t[i] * angle, du)
        assert truth <= np.logaddexp(found[i], own[i]) + 1e-11 * max(1, abs(truth)), (sigma[i], q[i], s[i], t[i], y[i])


@pytest.mark.parametrize("cases", [ordinary, corner])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_the_envelope_bounds_the_modulus_for_every_larger_t(direction, cases):
    rng = np.random.default_rng(7)
    sigma, q, s = cases(rng)
    s = np.minimum(s, 5 * sigma)
    spread = np.sqrt(-np.expm1(-1 / sigma**2)) * np.minimum(q / sigma, 1)
    t, y = rng.uniform(0.02, 8, LANES) / spread, shifts(rng, sigma)
    win, _, found, own = envelope(direction, sigma, q, s, t, y, rng.uniform(25, 60, LANES))
    tested = 0
    for i in range(LANES):
        du = min(0.02, sigma[i] / 30, sigma[i] / (4 * t[i]))  # every phase is resolved, up to 3.7 t
        if (win.high[i] - win.low[i] + 4) / du > 200_000:
            continue
        u = np.arange(win.low[i] - 2, win.high[i] + 2, du)
        exponent, _ = log_line(direction, sigma[i], q[i], s[i], u)
        loss = sum(beta * log_ratio(sign * u, sigma[i], q[i])[0] for sign, _, beta in long_double.PARTS[direction])
        w = np.exp(exponent - exponent.max())
        whole = w.sum()
        for later in t[i] * np.array([1.0, 1.01, 1.3, 2.0, 3.7]):
            size = abs(np.sum(w * np.exp(1j * later * loss)))
            if size < 1e-11 * whole:  # rounding
                continue
            modulus = exponent.max() + np.log(size * (u[1] - u[0]))
            assert modulus <= np.logaddexp(found[i], own[i]) + 1e-9, (sigma[i], q[i], s[i], later, y[i])
            tested += 1
    assert tested > LANES // 2


def growing(direction, cases, rng):
    """Line integrals on the far side, where exp(i t L) grows, and what the engine makes of them."""
    sigma, q, s = cases
    y, parts = shifts(rng, sigma), len(long_double.PARTS[direction])
    t = rng.uniform(1, 200, LANES) * sigma / y / parts
    strip = rng.uniform(25, 60, LANES) + t * y / sigma * rng.uniform(0.3, 1, LANES)
    win, step, found, _ = envelope(direction, sigma, q, s, -t, y, strip)
    for i in range(LANES):
        low, high, du = win.low[i] - 30, win.high[i] + 40, min(step[i] / 2.3, 0.01)
        if (high - low) / du < 300_000:
            modulus, angle = log_line(direction, sigma[i], q[i], s[i], np.arange(low, high, du), y[i])
            yield log_integral(modulus + t[i] * angle, du), found[i], (sigma[i], q[i], s[i], t[i], y[i])


@pytest.mark.parametrize("direction", ["remove", "replace"])
def test_the_growing_side_is_bounded_up_to_a_factor_of_2(direction):
    for seed, cases in enumerate((ordinary, corner)):
        rng = np.random.default_rng(seed)
        for truth, found, case in growing(direction, cases(rng), rng):
            assert truth <= found + np.log(2.0), case


def test_the_growing_side_is_bounded_where_a_part_falls():
    rng = np.random.default_rng(0)
    sigma, s = log_uniform(rng, 0.4, 3), log_uniform(rng, 3e-3, 10)
    cases = sigma, log_uniform(rng, 1e-8, 1e-3), s
    for truth, found, case in growing("add", cases, rng):
        assert truth <= found + np.log(2.0), case


# ---------------------------------------------------------------------------------------------------------------------
# The pair itself


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_log_p_and_loss_to_ulps_against_mpmath(direction):
    rng = np.random.default_rng(9)
    sigma, q, _ = extreme(rng)
    u = rng.uniform(-10, 10, (LANES, 1, 6)) + np.where(rng.random((LANES, 1, 6)) < 0.3, 1 / sigma[:, None, None], 0)
    nodes = jax.jit(cumulant.at)(pair_of(direction, sigma, q), jnp.asarray(u))
    with mp.workdps(40):
        for i in range(LANES):
            for j in range(u.shape[-1]):
                log_p = loss = size = mp.mpf(0)
                for sign, alpha, beta in long_double.PARTS[direction]:
                    y = sign * mp.mpf(u[i, 0, j]) / mp.mpf(sigma[i]) - 1 / (2 * mp.mpf(sigma[i]) ** 2)
                    part = mp.log1p(mp.mpf(q[i]) * mp.expm1(y))
                    log_p, loss = log_p + alpha * part, loss + beta * part
                    # an ulp of y moves the part by rho y; the part itself is rounded
                    rho = mp.mpf(q[i]) * mp.exp(y - part)
                    size += abs(part) + rho * (abs(u[i, 0, j]) / sigma[i] + 1 / mp.mpf(sigma[i]) ** 2)
                assert abs(float(nodes.log_p[i, 0, j]) - log_p) <= 8 * ULP * size
                assert abs(float(nodes.loss[i, 0, j]) - loss) <= 8 * ULP * size
