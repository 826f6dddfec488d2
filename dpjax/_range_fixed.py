"""Kernels with the worst pairs fixed beforehand: the non-adaptive optimum, and sums over outcomes.

A pair RR_{eps,t} has loss t with probability q = (1 - e^(t-eps)) / (1 - e^-eps) and t - eps otherwise. With k equal
pairs the number i of losses t - eps is binomial and

    delta(x) = sum_i C(k, i) q^(k-i) (1-q)^i (1 - e^(x - k t + i eps))_+ .

Randomised response with eps0 is t = eps0, eps = 2 eps0.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

ULP = 2.0**-53


class Binomial(NamedTuple):
    """Static: the largest number of pairs, the most outcomes that one sum visits, how many l the optimum tries."""

    pairs: int
    terms: int
    tries: int = 0
    log: bool = False


def terms_for(pairs: int) -> int:
    """Outcomes that a sum visits: all, or those within Hoeffding's e^-40 of the mean and, below, 9 sqrt(k) more."""
    return int(min(pairs + 1, math.ceil(13.5 * math.sqrt(pairs)) + 20))


def _stirling_rest(n):
    """log(n!) minus Stirling's formula, n >= 0."""
    table = jnp.asarray(
        [
            0.0 if i == 0 else math.lgamma(i + 1) - (i + 0.5) * math.log(i) + i - 0.5 * math.log(2 * math.pi)
            for i in range(16)
        ]
    )
    big = jnp.maximum(n, 16.0)
    z = 1 / (big * big)
    series = (1 / 12 - z * (1 / 360 - z * (1 / 1260 - z * (1 / 1680 - z * (1 / 1188 - z * 691 / 360360))))) / big
    return jnp.where(n < 16, table[jnp.clip(n, 0, 15).astype(int)], series)


def _deviance(x, mean):
    """x log(x / mean) + mean - x, without cancellation near x = mean (Loader 2000)."""
    u = (x - mean) / (x + mean)
    near = jnp.abs(u) < 0.1
    v = jnp.where(near, u, 0.0)
    z = v * v
    series = 1 / 23
    for odd in range(21, 1, -2):
        series = 1 / odd + z * series
    close = (x - mean) * v + 2 * x * v * z * series
    safe_x = jnp.where(near | (x <= 0), 1.0, x)
    safe_mean = jnp.where(near, 1.0, mean)
    far = jnp.where(x > 0, safe_x * jnp.log(safe_x / safe_mean), 0.0) + mean - x
    return jnp.where(near, close, far)


def log_binomial(i, k, up, down):
    """log of C(k, i) up^(k-i) down^i, up + down = 1, both in (0, 1); relative accuracy of the deviance, no lgamma."""
    i = jnp.clip(i, 0.0, k)
    rest = k - i
    inside = (i > 0) & (rest > 0)
    si, sr = jnp.where(inside, i, 1.0), jnp.where(inside, rest, 1.0)
    body = (
        _stirling_rest(k)
        - _stirling_rest(si)
        - _stirling_rest(sr)
        - _deviance(si, k * down)
        - _deviance(sr, k * up)
        + 0.5 * jnp.log(jnp.where(inside, k, 1.0) / (2 * math.pi * si * sr))
    )
    log_up = jnp.where(up > 0.5, jnp.log1p(-jnp.minimum(down, 0.5)), jnp.log(up))
    log_down = jnp.where(down > 0.5, jnp.log1p(-jnp.minimum(up, 0.5)), jnp.log(down))
    return jnp.where(inside, body, jnp.where(i > 0, k * log_down, k * log_up))


def pair(eps, t):
    """(q, 1 - q): probabilities of the losses t and t - eps."""
    scale = -jnp.expm1(-eps)
    return -jnp.expm1(t - eps) / scale, -jnp.expm1(-t) * jnp.exp(t - eps) / scale


def _log_sum(setting: Binomial, x, eps, t, k, last):
    """log of the sum over outcomes i <= last at a fixed t, differentiable in x, eps and t."""
    up, down = pair(eps, t)
    i = lax.stop_gradient(_top(setting, k, down, last)) - jnp.arange(setting.terms, dtype=jnp.float64)
    used = (i >= 0) & (last >= 0)
    gap = k * t - i * eps - x
    used &= lax.stop_gradient(gap) > 0
    log_terms = log_binomial(jnp.where(used, i, 0.0), k, up, down) + jnp.log(-jnp.expm1(-jnp.where(used, gap, 1.0)))
    log_terms = jnp.where(used, log_terms, -jnp.inf)
    peak = lax.stop_gradient(jnp.max(log_terms))
    peak = jnp.where(jnp.isfinite(peak), peak, 0.0)
    total = jnp.sum(jnp.where(used, jnp.exp(jnp.where(used, log_terms, 0.0) - peak), 0.0))
    return jnp.where(total > 0, peak + jnp.log(jnp.where(total > 0, total, 1.0)), -jnp.inf)


def _slope(setting: Binomial, x, eps, t, k, last):
    """-d log delta / dx of the same sum: how a rounded threshold changes it."""
    up, down = pair(eps, t)
    i = _top(setting, k, down, last) - jnp.arange(setting.terms, dtype=jnp.float64)
    gap = k * t - i * eps - x
    used = (i >= 0) & (last >= 0) & (gap > 0)
    masses = jnp.where(used, log_binomial(jnp.where(used, i, 0.0), k, up, down), -jnp.inf)
    masses = jnp.exp(masses - jnp.max(jnp.where(used, masses, -1e300)))
    total = jnp.sum(masses * -jnp.expm1(-jnp.where(used, gap, 1.0)))
    return jnp.where(
        total > 0, jnp.sum(masses * jnp.exp(-jnp.where(used, gap, 1.0))) / jnp.where(total > 0, total, 1.0), 0.0
    )


def _top(setting, k, down, last):
    if setting.terms > setting.pairs:
        return last
    return jnp.minimum(last, jnp.floor(k * down + 4.5 * math.sqrt(setting.pairs)) + 10)


def _stationary_t(x, eps, k, l):
    return jnp.clip((x + (l + 1) * eps) / (k + 1), 0.0, eps)


def _log_tries(setting: Binomial, x, eps, k, l):
    """log of the partial sums at the stationary t of every l at once; the loop over outcomes carries three vectors."""
    t = _stationary_t(x, eps, k, l)
    up, down = pair(eps, t)
    valid = (l >= 0) & (k * t - l * eps > x) & (up > 0) & (down > 0)
    up, down = jnp.where(valid, up, 0.5), jnp.where(valid, down, 0.5)
    top = _top(setting, k, down, jnp.where(valid, l, 0.0))
    head = log_binomial(top, k, up, down)
    gap = jnp.where(valid, k * t - top * eps - x, 1.0)
    odds, fall, less = up / down, jnp.exp(-eps), -jnp.expm1(-eps)

    def outcome(n, state):
        mass, under, left, total = state
        total = total + mass * under
        i = top - n
        mass = mass * jnp.maximum(i, 0.0) / (k - i + 1) * odds
        # 1 - e^-(gap + eps) from 1 - e^-gap, as a sum of positive terms.
        return mass, under + left * less, left * fall, total

    start = (jnp.ones_like(head), -jnp.expm1(-gap), jnp.exp(-gap), jnp.zeros_like(head))
    *_, total = lax.fori_loop(0, setting.terms, outcome, start)
    return jnp.where(valid & (total > 0), head + jnp.log(jnp.where(total > 0, total, 1.0)), -jnp.inf)


def _best(setting: Binomial, x, eps, k, first):
    l = first + jnp.arange(setting.tries, dtype=jnp.float64)
    logs = _log_tries(setting, x, eps, k, jnp.where(l < k, l, -1.0))
    return l[jnp.argmax(logs)]


def _rounding(setting, x, eps, t, k, last, log_value):
    """Error of a computed log delta.

    Its terms are nonnegative; a binomial mass is off by the rounding of its deviance, which for an outcome that counts is at most about 40 - log_value; a threshold is off by a few ULP of k eps.
    """
    depth = 40.0 + jnp.maximum(-jnp.where(jnp.isfinite(log_value), log_value, 0.0), 0.0)
    moved = 4 * (jnp.abs(x) + k * eps) * _slope(setting, x, eps, t, k, last)
    return lax.stop_gradient(ULP * (64 + 8 * depth + 8 * jnp.sqrt(k * depth) + 2 * setting.terms + moved))


def log_optimum(setting: Binomial, x, eps, k, first):
    """(log delta, bound on its rounding) of the optimum for x >= 0; twice differentiable, since t moves with x and eps."""
    some = (k >= 1) & (eps > 0)
    eps, k = jnp.where(some, eps, 1.0), jnp.where(some, k, 1.0)
    l = _best(setting, *lax.stop_gradient((x, eps, k, first)))
    t = _stationary_t(x, eps, k, l)
    log_value = _log_sum(setting, x, eps, t, k, l)
    rounding = _rounding(setting, *lax.stop_gradient((x, eps, t, k, l, log_value)))
    return jnp.where(some, log_value, -jnp.inf), rounding


def signed(log: bool, x, log_value):
    """delta(x), or its logarithm, from log delta(|x|): delta(-e) = 1 - e^-e + e^-e delta(e), as swapping a worst pair gives one."""
    shift = jnp.minimum(x, 0.0)
    swapped = -jnp.expm1(shift) + jnp.exp(shift + log_value)
    if log:
        return jnp.where(x < 0, jnp.log(jnp.where(x < 0, swapped, 1.0)), log_value)
    return jnp.where(x < 0, swapped, jnp.exp(log_value))


def answer(log: bool, x, lower, estimate, upper):
    """(lower, estimate, upper) from their logarithms at |x|, with the rounding of this last step."""
    room, most = (0.0, 0.0) if log else (8 * ULP, 1.0)
    low, mid, high = (signed(log, x, v) for v in (lower, estimate, upper))
    return low * (1 - room), mid, jnp.minimum(high * (1 + room), most)


def _optimum_lane(setting, x, eps, k, first):
    value, rounding = log_optimum(setting, jnp.where(x < 0, -x, x), eps, k, first)
    return answer(setting.log, x, value - rounding, value, value + rounding)


def optimum_kernel(setting: Binomial, x, eps, count, first):
    """(lower, estimate, upper) of the non-adaptive optimum over the l in first .. first + tries - 1."""
    return jax.vmap(functools.partial(_optimum_lane, setting))(x, eps, count, first)


def log_fixed(setting: Binomial, x, eps, t, k):
    """(log delta, bound on its rounding) of k equal pairs, any real x."""
    some = (k >= 1) & (t > 0) & (t < eps)  # t at either end makes the two distributions equal
    eps, k, t = jnp.where(some, eps, 1.0), jnp.where(some, k, 1.0), jnp.where(some, t, 0.5)
    last = lax.stop_gradient(jnp.clip(jnp.ceil((k * t - x) / eps) - 1, -1.0, k))
    log_value = _log_sum(setting, x, eps, t, k, last)
    rounding = _rounding(setting, *lax.stop_gradient((x, eps, t, k, last, log_value)))
    nothing = jnp.where(x < 0, jnp.log(-jnp.expm1(jnp.where(x < 0, x, -1.0))), -jnp.inf)
    return jnp.where(some, log_value, nothing), rounding


def _fixed_lane(setting, x, eps, t, k):
    value, rounding = log_fixed(setting, x, eps, t, k)
    return (
        jnp.exp(value - rounding) * (1 - 8 * ULP),
        jnp.exp(value),
        jnp.minimum(jnp.exp(value + rounding) * (1 + 8 * ULP), 1.0),
    )


def fixed_kernel(setting: Binomial, x, eps, t, count):
    """(lower, estimate, upper) of delta of count equal pairs RR_{eps,t}, any real x."""
    return jax.vmap(functools.partial(_fixed_lane, setting))(x, eps, t, count)


def least_threshold(log_at, log_delta, high, sweeps: int = 80):
    """The bracket (low, high) around the x in [0, high] with log_at(x) = log_delta, log_at decreasing.

    Chandrupatla's method on the logarithm. log_at(high) <= log_delta is taken for granted; low = high = 0 if
    log_at(0) <= log_delta.
    """

    def height(x):
        return jnp.clip(log_at(x) - log_delta, -1e6, 1e6)

    def unfinished(state):
        n, a, b, _, fa, fb, *_ = state
        return (n < sweeps) & (jnp.abs(a - b) > 4 * ULP * jnp.maximum(jnp.abs(a), jnp.abs(b))) & (fa != 0) & (fb != 0)

    def improve(state):
        n, a, b, c, fa, fb, fc, part = state
        x = a + part * (b - a)
        fx = height(x)
        same = (fx > 0) == (fa > 0)
        c, fc = jnp.where(same, a, b), jnp.where(same, fa, fb)
        b, fb = jnp.where(same, b, a), jnp.where(same, fb, fa)
        a, fa = x, fx
        xi, phi = (a - b) / (c - b), (fa - fb) / (fc - fb)
        smooth = (phi * phi < xi) & ((1 - phi) ** 2 < 1 - xi)
        safe = lambda z: jnp.where(smooth, z, 1.0)
        guess = fa / safe(fb - fa) * fc / safe(fb - fc) + (c - a) / safe(b - a) * fa / safe(fc - fa) * fb / safe(
            fc - fb
        )
        least = jnp.minimum(2 * ULP * jnp.abs(a) / jnp.maximum(jnp.abs(b - a), 1e-300), 0.5)
        return n + 1, a, b, c, fa, fb, fc, jnp.clip(jnp.where(smooth, guess, 0.5), least, 1 - least)

    zero = jnp.zeros_like(high)
    f_low, f_high = height(zero), jnp.minimum(height(high), 0.0)
    state = (0, high, zero, zero, f_high, f_low, f_low, zero + 0.5)
    _, a, b, _, fa, _, _, _ = lax.while_loop(unfinished, improve, state)
    # An exact hit is both ends: log_at(a) = log_delta.
    low, top = jnp.where(fa >= 0, a, b), jnp.where(fa > 0, b, a)
    easy = f_low <= 0
    return jnp.where(easy, 0.0, low), jnp.where(easy, 0.0, top)


def safe_sides(log_and_rounding, log_delta, high):
    """(x certified to be enough, x certified not to be)."""

    def above(x):
        value, rounding = log_and_rounding(x)
        return value + rounding

    def below(x):
        value, rounding = log_and_rounding(x)
        return value - rounding

    _, enough = least_threshold(above, log_delta, high)
    short, _ = least_threshold(below, log_delta, high)
    return enough, jnp.minimum(short, enough)


def optimum_epsilon(setting, log_delta, eps, k, first):
    """(upper end, lower end) of the x >= 0 at which the non-adaptive optimum is exp(log_delta); constant under AD."""
    log_delta, eps, k, first = lax.stop_gradient((log_delta, eps, k, first))
    return safe_sides(lambda x: log_optimum(setting, x, eps, k, first), log_delta, k * eps * (1 + 4 * ULP))


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def moving_root(log_at, at, log_delta, params):
    """Zero, with the derivatives of the x near ``at`` that solves log_at(x, *params) = log_delta. No closures in log_at."""
    del log_at, params
    return jnp.zeros_like(at + log_delta)


@moving_root.defjvp
def _moving_root_jvp(log_at, primals, tangents):
    at, log_delta, params = primals
    # The point at which the rule is evaluated moves as the root does: this gives the second derivative.
    live = lax.stop_gradient(jnp.where(at > 0, at, 1.0)) + moving_root(log_at, *primals)
    _, by_x = jax.jvp(lambda x: log_at(x, *params), (live,), (jnp.ones_like(live),))
    _, by_params = jax.jvp(lambda *p: log_at(live, *p), tuple(params), tuple(tangents[2]))
    falls = (at > 0) & (by_x < 0)
    tangent = jnp.where(falls, (tangents[1] - by_params) / jnp.where(falls, by_x, -1.0), 0.0)
    return jnp.zeros_like(at + log_delta), tangent


def _log_optimum_at(setting, x, eps, k, first):
    return log_optimum(setting, x, eps, k, first)[0]


def _optimum_epsilon_lane(setting, log_delta, eps, k, first):
    high, low = optimum_epsilon(setting, log_delta, eps, k, first)
    middle = (low + high) / 2
    return (
        low,
        middle + moving_root(functools.partial(_log_optimum_at, setting), middle, log_delta, (eps, k, first)),
        high,
    )


def optimum_epsilon_kernel(setting: Binomial, log_delta, eps, count, first):
    """(lower, estimate, upper) of epsilon of the non-adaptive optimum."""
    return jax.vmap(functools.partial(_optimum_epsilon_lane, setting))(log_delta, eps, count, first)
