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

from dpjax._two_point import moments
from dpjax._two_point.moments import pair
from dpjax._two_point.roots import moving_root, safe_sides
from dpjax._two_point.window import ULP, first_largest

ALL = 10_000  # pairs up to which the optimum tries every l


class Binomial(NamedTuple):
    """Static: the largest number of pairs, the most outcomes that one sum visits, how many l the optimum tries."""

    pairs: int
    terms: int
    tries: int = 0
    log: bool = False


def setting_for(pairs: int, log: bool = False) -> Binomial:
    """The sizes for up to ``pairs`` pairs; 24 sqrt(k) tries hold every l that can be best in most cases (1e4 .. 1e6)."""
    tries = pairs if pairs <= ALL else int(24 * math.sqrt(pairs))
    return Binomial(pairs, terms_for(pairs), tries, log)


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


def _descends(x, eps, k, l):
    """(whether the l-th summit is certainly no lower than the next, whether certainly no higher).

    With f_l the partial sum over i <= l, f_l' = K W_l(t) (e^((k+1)(t_l - t)) - 1), W_l(t) = e^(t-eps) b(l; k-1, 1-q_t),
    and f_l(s) = f_{l+1}(s) at s = (x + (l+1) eps) / k, between the summits t_l and t_{l+1}. So the next summit differs by

        K / (k+1) [W' (e^(eps-s) - 1 - (eps-s)) - W (s - 1 + e^-s)]

    with W' a value of W_{l+1} and W one of W_l between the two summits; the logarithms of both change there by at most
    the distance, eps / (k+1), times a bound on the derivative.
    """
    s = (x + (l + 1) * eps) / k
    low, high = k / (k + 1) * s, (k * s + eps) / (k + 1)
    inside = (high < eps) & (low > 0) & (l < k - 1)
    s, low, high = (jnp.where(inside, z, eps / 2) for z in (s, low, high))
    up, down = pair(eps, s)
    gain = jnp.expm1(eps - s) - (eps - s)
    loss = jnp.expm1(-s) + s
    ratio = jnp.log((k - 1 - l) / (l + 1) * down / up * gain / loss)
    (_, down_low), (up_high, down_high) = pair(eps, low), pair(eps, high)
    ahead = jnp.maximum(jnp.abs((k - 1) * down_low - l), jnp.abs((k - 1) * down_high - l)) + 1
    steep = 1 + jnp.exp(high - eps) / -jnp.expm1(-eps) * ahead / (up_high * down_low)
    change = eps / (k + 1) * steep + 1e-9
    return inside & (ratio + change <= 0), inside & (ratio - change >= 0)


def _window(setting: Binomial, x, eps, k):
    """(first, last) l that can be best, and a bound on log delta should they be more than are tried.

    An l is left out if a neighbour's summit is certainly as high, or by Markov's inequality: a partial sum at t is at
    most delta of the pairs with that t, hence at most exp(c(lam) + k m(t) - lam x) with m(t) = log E exp(lam L).
    """
    lam = moments.saddle(x, lambda lam: k * moments.log_mgf_prime(eps, lam), eps)
    one = jnp.clip(jnp.round((moments.worst_t(eps, lam) * (k + 1) - x) / eps - 1), 0.0, jnp.maximum(k - 1, 0.0))
    reached = _log_tries(setting, x, eps, k, one[None])[0] - 1.0  # far more than its rounding

    l = jnp.arange(setting.pairs, dtype=jnp.float64)
    t = _stationary_t(x, eps, k, l)
    valid = (l < k) & (t > 0) & (t < eps)
    markov = lambda lam, spent: moments.log_kernel(lam) + k * spent - lam * x
    inner = jnp.where(valid, t, eps / 2)
    # Pairs far from the worst one are ruled out by tilts of their own.
    held = functools.reduce(
        jnp.minimum, (markov(lam * f, moments.log_moment(eps, inner, lam * f)) for f in (1.0, 4.0, 16.0, 64.0))
    )
    down, up = _descends(x, eps, k, l)
    after_summit = jnp.concatenate([jnp.zeros(1, bool), down[:-1]])
    can = valid & (held >= reached) & ~up & ~after_summit
    first = first_largest(can).astype(x.dtype)
    last = setting.pairs - 1.0 - first_largest(can[::-1])
    return first, last, markov(lam, moments.log_mgf(eps, lam))


def _best(setting: Binomial, x, eps, k):
    """(the best l, whether one that was not tried may be better, the bound that holds then)."""
    if setting.tries >= setting.pairs:
        first, last, bound = jnp.zeros_like(x), k - 1, jnp.zeros_like(x)
    else:
        first, last, bound = _window(setting, x, eps, k)
    l = first + jnp.arange(setting.tries, dtype=jnp.float64)
    logs = _log_tries(setting, x, eps, k, jnp.where(l <= last, l, -1.0))
    return l[first_largest(logs)], last - first >= setting.tries, bound


def _rounding(setting, x, eps, t, k, last, log_value):
    """Error of a computed log delta.

    Its terms are nonnegative; a binomial mass is off by the rounding of its deviance, which for an outcome that counts is at most about 40 - log_value; a threshold is off by a few ULP of k eps.
    """
    depth = 40.0 + jnp.maximum(-jnp.where(jnp.isfinite(log_value), log_value, 0.0), 0.0)
    moved = 4 * (jnp.abs(x) + k * eps) * _slope(setting, x, eps, t, k, last)
    return lax.stop_gradient(ULP * (64 + 8 * depth + 8 * jnp.sqrt(k * depth) + 2 * setting.terms + moved))


def log_optimum(setting: Binomial, x, eps, k):
    """(log delta, bound on its rounding) of the optimum for x >= 0; twice differentiable, since t moves with x and eps."""
    some = (k >= 1) & (eps > 0)
    eps, k = jnp.where(some, eps, 1.0), jnp.where(some, k, 1.0)
    l, missed, bound = lax.stop_gradient(_best(setting, *lax.stop_gradient((x, eps, k))))
    t = _stationary_t(x, eps, k, l)
    log_value = _log_sum(setting, x, eps, t, k, l)
    rounding = _rounding(setting, *lax.stop_gradient((x, eps, t, k, l, log_value)))
    doubt = jnp.where(missed, jnp.maximum(bound - lax.stop_gradient(log_value), 0.0), 0.0)
    return jnp.where(some, log_value, -jnp.inf), rounding + doubt


def magnitude(x, total):
    """abs(x), but finite: beyond ``total`` delta is 0 anyway."""
    return jnp.minimum(jnp.where(x < 0, -x, x), 2 * total + 1.0)


def finite(x, total):
    """x, but finite: below -800 delta is 1 to the last digit, whatever the pairs."""
    return jnp.where(x < 0, -1.0, 1.0) * magnitude(x, total + 400.0)


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


def _optimum_lane(setting, x, eps, k):
    value, rounding = log_optimum(setting, magnitude(x, k * eps), eps, k)
    return answer(setting.log, x, value - rounding, value, value + rounding)


def optimum_kernel(setting: Binomial, x, eps, count):
    """(lower, estimate, upper) of the non-adaptive optimum."""
    return jax.vmap(functools.partial(_optimum_lane, setting))(x, eps, count)


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
    x = finite(x, k * eps)
    value, rounding = log_fixed(setting, x, eps, t, k)
    return (
        jnp.exp(value - rounding) * (1 - 8 * ULP),
        jnp.exp(value),
        jnp.minimum(jnp.exp(value + rounding) * (1 + 8 * ULP), 1.0),
    )


def fixed_kernel(setting: Binomial, x, eps, t, count):
    """(lower, estimate, upper) of delta of count equal pairs RR_{eps,t}, any real x."""
    return jax.vmap(functools.partial(_fixed_lane, setting))(x, eps, t, count)


def optimum_epsilon(setting, log_delta, eps, k):
    """(upper end, lower end) of the x >= 0 at which the non-adaptive optimum is exp(log_delta); constant under AD."""
    log_delta, eps, k = lax.stop_gradient((log_delta, eps, k))
    return safe_sides(lambda x: log_optimum(setting, x, eps, k), log_delta, k * eps * (1 + 4 * ULP))


def _log_optimum_at(setting, x, eps, k):
    return log_optimum(setting, x, eps, k)[0]


def _optimum_epsilon_lane(setting, log_delta, eps, k):
    high, low = optimum_epsilon(setting, log_delta, eps, k)
    middle = (low + high) / 2
    log_at = functools.partial(_log_optimum_at, setting)
    return low, middle + moving_root(log_at, middle, log_delta, (eps, k)), high


def optimum_epsilon_kernel(static: tuple[bool, Binomial], query, eps, count):
    """(lower, estimate, upper) of epsilon of the non-adaptive optimum. static: whether query is log delta, the sizes."""
    is_log, setting = static
    return jax.vmap(functools.partial(_optimum_epsilon_lane, setting))(moments.as_log(is_log, query), eps, count)
