"""The inequalities under the certificate, one by one, against 80-bit sums and brute force: random and adversarial inputs."""

import importlib
import sys
from functools import partial
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


def real_step(pair, s):
    return cumulant.real_step(pair, s, 0 * pair.sigma)


@jax.jit
def _solve_real(pair, s, coarser):
    win = cumulant.window(pair, s)
    step = jnp.maximum(real_step(pair, s) * coarser, (win.high - win.low) / MOST)
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


@pytest.mark.parametrize("direction", DIRECTIONS)
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
        step = real_step(pair, s)
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
    step = jnp.minimum(2 * jnp.pi * y / strip, cumulant.real_step(pair, s, y))
    step = jnp.maximum(step, (win.high - win.low) / MOST)
    real = cumulant.real(pair, s, win, step)
    beyond = win.log_tail - real.value + cumulant.log_secant(pair, s, y)
    own = jnp.logaddexp(cumulant.log_real_alias(pair, s, step, y), beyond)
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


# ---------------------------------------------------------------------------------------------------------------------
# The line above the real axis


def long_nodes(direction, sigma, q, s, t, u, y):
    """N exp(x + i t L) at u + iy in 80 bits, as (log modulus, angle)."""
    weight, loss = long_double.above(direction, sigma, q, s, u, y)
    return weight[0] - t * loss[1], weight[1] + t * loss[0]


def long_sum(direction, sigma, q, s, t, low, high, y, step, offset=0.0):
    """The trapezoid sum over [low, high], complex in 80 bits."""
    step = np.longdouble(step)
    u = low + (np.arange(int((high - low) / step) + 2) + np.longdouble(offset)) * step
    modulus, angle = long_nodes(direction, sigma, q, s, t, u, y)
    return step * np.sum(np.exp(modulus) * (np.cos(angle) + 1j * np.sin(angle)))


@jax.jit
def _line_alias(pair, s, t, y, step):
    win = cumulant.window(pair, s)
    real = cumulant.real(pair, s, win, jnp.maximum(real_step(pair, s), (win.high - win.low) / MOST))
    return win, real, cumulant.log_line_alias(pair, s, t, y, step)


def line_alias(direction, sigma, q, s, t, y, step):
    lift = lambda a: jnp.asarray(a)[:, None]
    found = _line_alias(pair_of(direction, sigma, q), jnp.asarray(s), jnp.asarray(t), lift(y), lift(step))
    return jax.tree.map(lambda a: np.asarray(a)[:, 0], found)


def line_cases(rng, cases):
    """(sigma, q, s, t, y, step) with the step so coarse that the sum's error shows."""
    sigma, q, s = cases(rng)
    sigma, s = np.maximum(sigma, 0.15), np.minimum(s, 5 * sigma)
    strip = np.minimum(np.pi * sigma, 9.0)
    y = strip * rng.choice([0.0, 0.1, 0.3, 0.5, 0.9], LANES)
    t = log_uniform(rng, 0.03, 30) * np.minimum(sigma, 1) * rng.choice([0.0, 1.0, 1.0], LANES)
    return sigma, q, s, t, y, 2 * np.pi * strip / rng.uniform(3, 25, LANES)


def trapezoid_errors(direction, case):
    """(log of |sum - integral| / exp K, its bound, the bound's case) for t' = t and below, where the error can be told."""
    sigma, q, s, t, y, step = case
    win, real, bound = line_alias(direction, *case)
    for i in range(LANES):
        # the window is the real line's: the shifted weight's tails are a bounded factor larger
        low, high = np.longdouble(win.low[i] - 6), np.longdouble(win.high[i] + 6)
        fine = min(step[i] / 4, 2 * np.pi * np.pi * sigma[i] / 90, 0.1)
        if (high - low) / fine > 30_000:
            continue
        for later in t[i] * np.array([1.0, 0.6, 0.1]):
            numbers = (sigma[i], q[i], s[i], np.longdouble(later), low, high)
            # the integral does not depend on the line: the real axis, where exp(i t L) neither grows nor falls
            truth = long_sum(direction, *numbers, np.longdouble(0), fine)
            found = max(
                abs(long_sum(direction, *numbers, y[i], step[i], offset) - truth) for offset in (0.0, 0.25, 0.5, 0.8)
            )
            error = float(np.log(found + np.longdouble(1e-4000)) - np.longdouble(real.value[i]))
            yield error, bound[i], tuple(float(a[i]) for a in case) + (later,)


LINE_SEEDS = {"ordinary": (ordinary, 20), "extreme": (extreme, 21), "corner": (corner, 22)}


@pytest.mark.parametrize("cases", LINE_SEEDS)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_the_trapezoid_error_above_the_real_axis_is_below_its_bound(direction, cases):
    family, seed = LINE_SEEDS[cases]
    rng = np.random.default_rng(seed)
    seen = close = 0
    for error, bound, case in trapezoid_errors(direction, line_cases(rng, family)):
        assert error <= max(bound, -32.0) + 1e-6, case
        seen += error > -30
        close += error > bound - 3
    assert seen > LANES // 2
    assert close > 2 or cases == "extreme"  # the bound is not vacuous


def line_integral(direction, sigma, q, s, t, y, low, high):
    """log of the integral of |N exp(x + i t L)| over Im u = y, of either sign."""
    du = min(0.02, sigma / 40)
    modulus, _ = long_nodes(direction, sigma, q, s, t, np.arange(low, high, du, np.longdouble), np.longdouble(y))
    return float(log_integral(modulus, np.longdouble(du)))


@pytest.mark.parametrize("cases", [ordinary, corner])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_the_integral_of_the_modulus_on_each_line_is_below_its_bound(direction, cases):
    """The two halves of `log_line_alias`: above, where only the secant grows, and below, where exp(i t L) does."""
    rng = np.random.default_rng(23)
    sigma, q, s = cases(rng)
    s = np.minimum(s, 5 * sigma)
    up = np.minimum(np.pi * sigma, 12) * rng.uniform(0.02, 0.97, LANES)
    t = log_uniform(rng, 0.01, 20) * sigma / up
    win, _, real = solve_real(direction, sigma, q, s)
    pair = pair_of(direction, sigma, q)
    lift = lambda a: jnp.asarray(a)[:, None]
    above = np.asarray(0.5 * lift(up) ** 2 + cumulant.log_secant(pair, jnp.asarray(s), lift(up)))[:, 0]
    below = np.asarray(cumulant._growth(pair, jnp.asarray(s), jnp.asarray(t), lift(up)[..., None]))[:, 0, 0]
    reached = 0
    for i in range(LANES):
        numbers = (sigma[i], q[i], s[i])
        ends = win.low[i] - 8, win.high[i] + 8
        if (ends[1] - ends[0]) / min(0.02, sigma[i] / 40) > 60_000:
            continue
        for sign, limit in ((1, above[i]), (-1, below[i])):
            truth = line_integral(direction, *numbers, t[i], sign * up[i], *ends) - real.value[i]
            assert truth <= limit + 1e-6, (numbers, t[i], up[i], sign)
            reached += truth > limit - 1
        # at t = 0 the modulus is as large above as below
        assert line_integral(direction, *numbers, 0.0, up[i], *ends) - real.value[i] <= above[i] + 1e-6
    assert reached > 5


@pytest.mark.parametrize("cases", [ordinary, extreme, corner])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_tails_above_the_real_axis_are_below_their_bound(direction, cases):
    rng = np.random.default_rng(24)
    sigma, q, s = cases(rng)
    y = np.minimum(0.5 * np.pi * sigma, 2.0) * rng.choice([0.25, 0.5, 1.0], LANES)
    win, _, _ = solve_real(direction, sigma, q, s)
    secant = np.asarray(cumulant.log_secant(pair_of(direction, sigma, q), jnp.asarray(s), jnp.asarray(y)[:, None]))[
        :, 0
    ]
    for i in range(LANES):
        parts = len(long_double.PARTS[direction])
        reach = max(30.0, parts * (1 + s[i]) / sigma[i] + 30 - win.high[i])
        bound = win.log_tail[i] + 0.5 * y[i] ** 2 + secant[i]
        for start, sign in ((win.high[i], 1), (win.low[i], -1)):
            u = start + sign * np.linspace(0, reach, 8001)
            exponent, angle = log_line(direction, sigma[i], q[i], s[i], u, y[i])
            assert np.all(angle >= 0)  # so that exp(i t L) is below 1 for every t
            assert log_integral(exponent[1:], reach / 8000) <= bound + 1e-9, (sigma[i], q[i], s[i], y[i])


@pytest.mark.parametrize("cases", [ordinary, extreme, corner])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_the_chosen_line_reaches_its_nats(direction, cases):
    rng = np.random.default_rng(25)
    sigma, q, s = cases(rng)
    t, nats = log_uniform(rng, 1e-4, 1e5), rng.uniform(5, 46, LANES)

    @jax.jit
    def chosen(pair, s, t, nats):
        y, step = cumulant.line_for(pair, s, t, nats[:, None])
        return y, step, cumulant.log_line_alias(pair, s, t, y, step), cumulant.log_line_alias(pair, s, t, y, 1.5 * step)

    found = chosen(pair_of(direction, sigma, q), jnp.asarray(s), jnp.asarray(t), jnp.asarray(nats))
    y, step, alias, wider = (np.asarray(a)[:, 0] for a in found)
    assert np.all((y >= 0) & (y <= 0.5 * np.pi * sigma) & (step > 0))
    assert np.all(alias <= -nats + 1.0)  # two halves, each about -nats
    assert np.all(wider > -nats)  # a wider spacing would not do


# ---------------------------------------------------------------------------------------------------------------------
# phi and its columns


@partial(jax.jit, static_argnames="order")
def _moments(pair, s, rows, across, y, step, order):
    win = cumulant.window(pair, s)
    real = cumulant.real(pair, s, win, jnp.maximum(real_step(pair, s), (win.high - win.low) / MOST))
    return win, real, cumulant.moments(pair, s, rows, across, win, y, step, real, order)


def moments(direction, sigma, q, s, rows, across, y, step, order=0):
    lift = lambda a: jnp.asarray(a)[:, None]
    pair = pair_of(direction, sigma, q)
    return _moments(pair, jnp.asarray(s), jnp.asarray(rows), jnp.asarray(across), lift(y), lift(step), order)


def moment_cases(rng, cases):
    """Rows and columns of nodes, from far below the loss's scale to beyond it, on the engine's own line."""
    sigma, q, s = cases(rng)
    sigma, s = np.maximum(sigma, 0.2), np.minimum(s, 5 * np.maximum(sigma, 0.2))
    last = log_uniform(rng, 1e-3, 30) * np.minimum(sigma / q, 300)
    rows = last[:, None] * np.concatenate([np.zeros((LANES, 1)), rng.random((LANES, 3))], 1)
    across = last[:, None] * np.concatenate([np.zeros((LANES, 1)), rng.random((LANES, 2)) / 8], 1)
    return sigma, q, s, rows, across, last * 9 / 8


@pytest.mark.parametrize("cases", [ordinary, extreme, corner])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_phi_is_its_sum_in_80_bits_to_a_few_ulp_of_t_spread(direction, cases):
    sigma, q, s, rows, across, last = moment_cases(np.random.default_rng(26), cases)
    pair = pair_of(direction, sigma, q)
    y, step = cumulant.line_for(pair, jnp.asarray(s), jnp.asarray(last), jnp.full((LANES, 1), 40.0))
    y, step = (np.asarray(a)[:, 0] for a in (y, step))
    win, real, found = moments(direction, sigma, q, s, rows, across, y, step)
    a, b, spread = (np.asarray(x)[:, 0] for x in (found.a, found.b, found.spread))
    tested = 0
    for i in range(LANES):
        low, high = float(win.low[i, 0]), float(win.high[i, 0])
        number = int(np.ceil((high - low) / step[i])) + 1
        if number > 20_000:
            continue
        u = np.longdouble(low) + np.arange(number) * np.longdouble(step[i])
        nodes = long_double.above(direction, sigma[i], q[i], s[i], u, y[i])
        log_norm = np.longdouble(real.value[i, 0]) - np.log(np.longdouble(step[i]))
        t = (rows[i].astype(np.longdouble)[:, None] + across[i][None, :]).ravel()
        re, im = long_double.phi_minus_1(*nodes, t, float(real.mean[i, 0]), log_norm)
        size = np.hypot(a[i] + re, b[i] - im).astype(float)
        assert np.all(size <= 6 * ULP * t.astype(float) * spread[i]), (sigma[i], q[i], s[i])
        assert a[i, 0] == 0 and b[i, 0] == 0  # at t = 0
        tested += 1
    assert tested > LANES // 2


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


def derivatives_of_log_ratio(sigma, q):
    """l_sigma, l_q, l_ss, l_sq, l_qq of log(1 - q + q exp(u / sigma - 1 / (2 sigma^2))) as functions of u, in mpmath."""
    e = lambda u: mp.exp(u / sigma - 1 / (2 * sigma**2))
    slope = lambda u: -u / sigma**2 + 1 / sigma**3  # of the exponent in sigma
    bend = lambda u: 2 * u / sigma**3 - 3 / sigma**4
    one = lambda u: 1 - q + q * e(u)
    return (
        lambda u: q * e(u) * slope(u) / one(u),
        lambda u: (e(u) - 1) / one(u),
        lambda u: q * e(u) * (slope(u) ** 2 + bend(u)) / one(u) - (q * e(u) * slope(u) / one(u)) ** 2,
        lambda u: e(u) * slope(u) / one(u) ** 2,
        lambda u: -(((e(u) - 1) / one(u)) ** 2),
    )


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_columns_are_derivatives_of_the_parts_against_mpmath(direction):
    """At single nodes above the axis: first and second derivatives in sigma and q, and the products of the first ones."""
    rng = np.random.default_rng(27)
    sigma, q, s = extreme(rng)
    q = np.minimum(q, 0.999)
    # as far as exponents of 40, where 1 + v has long been dominated by either part
    u = rng.uniform(-1, 1, (LANES, 1, 3)) * np.minimum(10 + 1 / sigma, 0.5 / sigma + 40 * sigma)[:, None, None]
    y = (np.pi * sigma * rng.uniform(0, 0.9, LANES))[:, None]
    pair = pair_of(direction, sigma, q)

    @jax.jit
    def found(pair, s, u, y):
        nodes = cumulant.shifted(pair, s, u, y[..., None])
        return tuple(cumulant.columns(pair, u, y[..., None], nodes.part_l, order) for order in (1, 2))

    first, second = jax.tree.map(np.asarray, found(pair, jnp.asarray(s), jnp.asarray(u), jnp.asarray(y)))
    parts = long_double.PARTS[direction]
    with mp.workdps(60):
        for i in range(LANES):
            of = derivatives_of_log_ratio(mp.mpf(sigma[i]), mp.mpf(q[i]))
            for j in range(u.shape[-1]):
                z = mp.mpc(u[i, 0, j], y[i, 0])
                each = [[f(sign * z) for f in of] for sign, _, _ in parts]
                lower = [x for part in each for x in part[:2]]
                upper = [x for part in each for x in part[2:]]
                products = [lower[m] * lower[n] for m in range(len(lower)) for n in range(m, len(lower))]
                for got, want in ((first, lower), (second, lower + upper + products)):
                    assert got[0].shape[2] == len(want)
                    for c, truth in enumerate(want):
                        value = mp.mpc(float(got[0][i, 0, c, j]), float(got[1][i, 0, c, j]))
                        size = 1 + abs(z) / sigma[i] + 1 / mp.mpf(sigma[i]) ** 2  # an ulp of the exponent
                        assert abs(value - truth) <= 1e-14 * size * max(map(abs, want)), (c, sigma[i], q[i], z)


@pytest.mark.parametrize("order", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_sums_of_columns_are_their_80_bit_sums(order):
    """The matrix product puts every column at its own t-node."""
    sigma, q, s, rows, across, last = moment_cases(np.random.default_rng(28), ordinary)
    direction = "replace"
    pair = pair_of(direction, sigma, q)
    y, step = cumulant.line_for(pair, jnp.asarray(s), jnp.asarray(last), jnp.full((LANES, 1), 40.0))
    y, step = (np.asarray(a)[:, 0] for a in (y, step))
    win, real, found = moments(direction, sigma, q, s, rows, across, y, step, order)
    got = np.asarray(found.columns[0] + 1j * found.columns[1])[:, 0]
    plain = moments(direction, sigma, q, s, rows, across, y, step)[2]
    assert np.array_equal(found.a, plain.a) and np.array_equal(found.b, plain.b)
    length = 512  # one size for all lanes, so that this compiles once

    @jax.jit
    def columns_at(lane, s, u, y):
        nodes = cumulant.shifted(lane, s, u, y)
        return cumulant.columns(lane, u, y, nodes.part_l, order)

    for i in range(0, LANES, 4):
        low, high = float(win.low[i, 0]), float(win.high[i, 0])
        number = int(np.ceil((high - low) / step[i])) + 1
        assert number <= length
        u = low + np.arange(length) * step[i]
        (modulus, angle), (away, up) = long_double.above(direction, sigma[i], q[i], s[i], u, y[i])
        w = np.exp(modulus - float(real.value[i, 0])) * step[i] * np.exp(1j * angle.astype(float))
        w = np.where(np.arange(length) < number, w, 0)
        lane = jax.tree.map(lambda a, i=i: a[i : i + 1], pair)
        parts = columns_at(lane, jnp.asarray(s[i : i + 1]), jnp.asarray(u)[None, None], jnp.full((1, 1, 1), y[i]))
        values = np.asarray(parts[0])[0, 0] + 1j * np.asarray(parts[1])[0, 0]
        t = (rows[i][:, None] + across[i][None, :]).ravel()
        phase = np.exp(1j * t[:, None] * (away - float(real.mean[i, 0]) + 1j * up)[None, :])
        want = np.sum(w * phase * values[:, None, :], -1).T
        size = np.sum(np.abs(w * values), -1)
        assert np.all(np.abs(got[i] - want) <= 1e-12 * (1 + np.max(t)) * size), (sigma[i], q[i], s[i])
