"""Engine: exact formulas. The composed Gaussian, and one step of the Poisson-sampled Gaussian.

Everything is built from the profile of one Gaussian, delta_G(e; mu) = Phi(-a) - exp(e) Phi(-b), a = e / mu - mu / 2,
b = a + mu, written with Mills' ratio m(x) = Phi(-x) / phi(x) = int_0^inf exp(-x t - t^2 / 2) dt as

    delta_G = phi(a) (m(a) - m(b)) = phi(a) int_0^inf exp(-a t - t^2 / 2) (1 - exp(-mu t)) dt,

which has no cancellation. A sampled step, for e >= 0 (q the sampling probability), is a positive sum of such profiles:

    remove       q delta_G(log(1 + (exp(e) - 1) / q); mu)
    add          c delta_G(log(1 + (exp(e) - 1) / c); mu),  c = q - (1 - q) (exp(e) - 1); 0 where c <= 0
    replace-one  q ((1 - l) delta_G(w - mu^2 / 2; mu) + l delta_G(2 w; 2 mu)),  l = exp(e - 2 w),
                 w = e / 2 + asinh((1 - q) / q exp(mu^2 / 2) sinh(e / 2)), where the loss crosses e at x = sigma^2 w

The first two also hold for e < 0 (remove: 1 - exp(e) where exp(e) <= 1 - q). A pair that is its own reverse (Gaussian,
replace-one) has delta(-e) = 1 - exp(-e) + exp(-e) delta(e). Sources: Balle and Wang (arXiv 1805.06530), Theorem 8; Zhu,
Dong and Wang (arXiv 2106.08567), Theorem 11. In replace-one the coefficients at the crossing satisfy
q exp(w - mu^2 / 2) = (1 - q) (exp(e) - 1) + q exp(e - w - mu^2 / 2), which turns its three tails into the sum above.

Rounding. A computed log delta is the exact one with e moved by at most _ULPS ulp of |e| + mu^2 (add: c by _ULPS ulp of
q + (1 - q) |exp(e) - 1|), plus _ULPS (1 + |log delta|) ulp. The lower and upper ends are the formula moved by that much
either way; tests/test_closed_form.py measures a third of it at most.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dpjax._plan import Problem
from dpjax._special import LOG_2PI, cap, exp, expm1, is_single, like, ln, log1p, logaddexp, tiny, unit

_ULPS = 16.0
# exp(-a t - t^2 / 2) is below exp(-45) of its start at the cut. 48 Gauss-Legendre nodes on [0, 1]: error below 1e-18;
# NumPy's weights are off by up to 1e-12.
_CUT = 45.0
_NODES = (  # the lower half; the upper is its mirror
    0.0006144963737869407,
    0.003234913866824621,
    0.007937708138586571,
    0.014704203726876374,
    0.02350614841978457,
    0.034306654646722834,
    0.04706043164221516,
    0.06171398986287606,
    0.07820586918780323,
    0.09646689798527869,
    0.11642048374212983,
    0.13798293453809268,
    0.16106381018366805,
    0.1855663016117432,
    0.21138763695801366,
    0.23841951263888347,
    0.2665485476245208,
    0.2956567590046416,
    0.32562205685391965,
    0.3563187563222722,
    0.38761810480265546,
    0.41938882196555416,
    0.4514976503952686,
    0.4838099145185653,
)
_WEIGHTS = (
    0.0015766730261529192,
    0.0036637769506381312,
    0.00573861728961727,
    0.007789657861471924,
    0.009808080228677764,
    0.01178538041966219,
    0.013713254854178474,
    0.015583613916399045,
    0.01738861128238522,
    0.019120675532915354,
    0.020772541471732374,
    0.02233728042834714,
    0.02380832924624524,
    0.025179517776927236,
    0.026445094742596834,
    0.027599751849992082,
    0.028638646050201607,
    0.029557419849197818,
    0.03035221958294694,
    0.031019711579946332,
    0.03155709614312701,
    0.03196211929232409,
    0.032233082217975044,
    0.03236884840634196,
)
_LEAST, _MOST, _LEAST_SINGLE, _MOST_SINGLE = 1e-200, 1e200, 1e-30, 1e30  # variances outside are 0 and infinite
_FAR = 1e15  # epsilons beyond are not told apart
# from here on log(1 + (exp(e) - 1) / c) only says that e is within 1e-13 (1e-6) of the largest loss
_EDGE, _EDGE_SINGLE = 30.0, 14.0


def _none(variance: jax.Array) -> jax.Array:
    return variance < (_LEAST_SINGLE if is_single(variance) else _LEAST)


def _all(variance: jax.Array) -> jax.Array:
    return variance > (_MOST_SINGLE if is_single(variance) else _MOST)


class Single(NamedTuple):
    """One sampled Gaussian step or a Gaussian, (lanes,) each.

    Attributes:
      variance: mu^2, of a record's full move: 1 / sigma^2 (replace-one too).
      q: sampling probability; 1 for a Gaussian.
      add: whether the direction is add; otherwise it is remove (or a Gaussian), unless
      replace: says replace-one. None if no lane is, which compiles faster.
    """

    variance: jax.Array
    q: jax.Array
    add: jax.Array
    replace: jax.Array | None


def _log_laplace(x: jax.Array, step: jax.Array | None = None) -> jax.Array:
    """log of int_0^inf exp(-x t - t^2 / 2) [1 - exp(-step t) where step > 0] dt for x >= -1, step <= max(1, x)."""
    end = lax.stop_gradient(2 * _CUT / (x + jnp.sqrt(x * x + 2 * _CUT)))  # the integral does not depend on it
    lower, half = like(_NODES, x), like(_WEIGHTS, x)
    t = end[..., None] * np.concatenate([lower, 1 - lower[::-1]])
    terms = np.concatenate([half, half[::-1]]) * exp(-x[..., None] * t - 0.5 * t * t)
    if step is not None:
        span = step[..., None]
        terms = terms * jnp.where(span > 0, -expm1(-span * t), 1.0)
    return ln(end) + ln(jnp.sum(terms, -1))


def _log_density(x: jax.Array) -> jax.Array:
    return -0.5 * x * x - 0.5 * LOG_2PI


def _log_tail(x: jax.Array) -> jax.Array:
    """log Phi(-x) for x >= 0."""
    return _log_laplace(x) + _log_density(x)


def _log_one_minus_exp(x: jax.Array) -> jax.Array:
    """log(1 - e^x) for x < 0."""
    near = x > -0.7
    return jnp.where(near, ln(-expm1(jnp.where(near, x, -0.5))), log1p(-exp(jnp.where(near, -1.0, x))))


def _reflect(epsilon: jax.Array, log_delta: jax.Array) -> jax.Array:
    """log(1 - e^epsilon + e^epsilon delta) for epsilon < 0: the profile at epsilon from that at -epsilon."""
    near = epsilon > -0.7
    e, d = jnp.where(near, epsilon, -0.5), jnp.where(near, log_delta, -1.0)
    close = ln(-expm1(e) + exp(e + d))
    e, d = jnp.where(near, -1.0, epsilon), jnp.where(near, -1.0, log_delta)
    return jnp.where(near, close, log1p(exp(e) * expm1(d)))


@jax.custom_jvp
def _gaussian(epsilon: jax.Array, variance: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """(log delta, log(m(a) - m(b)), log m(b)) for epsilon >= 0 and 0 < variance < inf."""
    mu, a, b = _ends(epsilon, variance)
    # The integral where 1 - exp(-mu t) is smooth on its scale; elsewhere m(a) and m(b) differ enough to subtract.
    merged = mu <= jnp.maximum(1.0, a)
    left = ~merged & (a < 0)
    right = ~merged & ~left
    first = _log_laplace(jnp.where(left, -a, a), jnp.where(merged, mu, 0.0))
    log_mills = _log_laplace(b)
    log_phi = _log_density(a)
    gap = first + jnp.where(right, _log_one_minus_exp(jnp.where(right, log_mills - first, -1.0)), 0.0)
    missing = jnp.where(left, exp(log_phi) * (exp(first) + exp(log_mills)), 0.5)
    log_delta = jnp.minimum(jnp.where(left, log1p(-missing), log_phi + gap), 0.0)
    return log_delta, jnp.where(left, log_delta - log_phi, gap), log_mills


@_gaussian.defjvp
def _gaussian_jvp(primals, tangents):
    """d delta = -exp(epsilon) Phi(-b) d epsilon + phi(a) d mu: no integral is differentiated."""
    epsilon, variance = primals
    log_delta, gap, log_mills = _gaussian(epsilon, variance)
    mu, a, b = _ends(epsilon, variance)
    d_epsilon, d_variance = tangents
    d_log_delta = -exp(log_mills - gap) * d_epsilon + 0.5 * exp(-gap) / mu * d_variance
    d_a = d_epsilon / mu - 0.5 * b / variance * d_variance
    d_b = d_epsilon / mu - 0.5 * a / variance * d_variance
    d_log_mills = (b - exp(-log_mills)) * d_b
    return (log_delta, gap, log_mills), (d_log_delta, d_log_delta + a * d_a, d_log_mills)


def _ends(epsilon: jax.Array, variance: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """mu, a and b."""
    mu = jnp.sqrt(variance)
    cut = lambda x: jnp.minimum(x / mu, 1e17 if is_single(mu) else 1e50)
    return mu, cut(epsilon - 0.5 * variance), cut(epsilon + 0.5 * variance)


def log_delta_gaussian(epsilon: jax.Array, variance: jax.Array) -> jax.Array:
    """log delta of a Gaussian (or of any composition of Gaussians) at epsilon.

    Args:
      epsilon: any shape, any real number or infinite.
      variance: same shape; mu^2, the variance of the privacy loss: the sum of (sensitivity / noise)^2. 0 and inf are
        legal.

    Returns:
      log delta, same shape; -inf where delta is 0. Relative error of delta: a few ulp of 1 + |log delta| and of what
      an ulp of epsilon does. Twice differentiable.

    >>> import jax
    >>> with jax.enable_x64(True):
    ...     print(f"{log_delta_gaussian(jnp.array([1.0, 200.0]), jnp.array([1.0, 1.0]))[1]:.6f}")
    -19911.640642
    """
    none, all_ = _none(variance), _all(variance)
    limits = none | all_ | ~jnp.isfinite(epsilon)
    given = jnp.where(limits, 1.0, epsilon)
    negative = given < 0
    log_delta, _, _ = _gaussian(jnp.where(negative, -given, given), jnp.where(limits, 1.0, variance))
    log_delta = jnp.where(negative, _reflect(jnp.where(negative, given, -0.5), log_delta), log_delta)
    below = (epsilon < 0) & (none | jnp.isneginf(epsilon))
    limit = jnp.where(below, _log_one_minus_exp(jnp.where(below, epsilon, -1.0)), -jnp.inf)
    return jnp.where(limits, jnp.where(all_, 0.0, limit), log_delta)


class Crossing(NamedTuple):
    """Where replace-one's loss crosses epsilon: x = sigma^2 w, and the two Gaussians of the module docstring."""

    w: jax.Array
    first: jax.Array  # w - mu^2 / 2
    log_share: jax.Array  # log l
    log_rest: jax.Array  # log(1 - l)
    large: jax.Array  # whether (1 - q) / q exp(mu^2 / 2) sinh(e / 2) is


def crossing(epsilon: jax.Array, variance: jax.Array, q: jax.Array) -> Crossing:
    """For replace-one at epsilon >= 0, 0 < q <= 1, 0 < variance < inf; arguments of one shape."""
    half = 0.5 * epsilon
    odds = (1 - q) / q * -expm1(-epsilon)
    some = odds > 0
    level = half + ln(jnp.where(some, odds, 1.0))  # of (1 - q) / q 2 sinh(e / 2)
    log_beta = jnp.where(some, level + 0.5 * variance - np.log(2.0), -jnp.inf)
    large = log_beta > 3
    beta = jnp.where(some & ~large, exp(jnp.where(some & ~large, log_beta, 0.0)), 0.0)
    small = log1p(beta + beta * beta / (1 + jnp.sqrt(1 + beta * beta)))  # asinh
    excess = ln(0.5 + 0.5 * jnp.sqrt(1 + exp(-2 * jnp.where(large, log_beta, 3.0))))
    first = jnp.where(large, half + level + excess, half + small - 0.5 * variance)
    w = jnp.where(large, first + 0.5 * variance, half + small)
    asinh = jnp.where(large, level + excess + 0.5 * variance, small)
    none = asinh <= 0
    rest = jnp.where(none, -jnp.inf, _log_one_minus_exp(-2 * jnp.where(none, 1.0, asinh)))
    return Crossing(w, first, -2 * asinh, rest, large)


@jax.custom_jvp
def _log_replace(epsilon: jax.Array, variance: jax.Array, q: jax.Array, move: jax.Array) -> jax.Array:
    """log delta of replace-one for epsilon >= 0, 0 < q <= 1 and positive finite variance; move as in log_delta_sampled."""
    at = crossing(epsilon, variance, q)
    slack = move * (_ULPS * unit(move))
    inner = jnp.stack([at.first, 2 * at.w])
    inner = inner - slack * (jnp.abs(inner) + variance)
    one, two = log_delta_gaussian(inner, jnp.stack([variance, 4 * variance]))
    rounding = slack * (1 + variance)  # of the shares: that of log_beta
    log_rest = jnp.minimum(at.log_rest + jnp.where(at.large, slack, rounding), 0.0)
    log_share = jnp.minimum(at.log_share + rounding, 0.0)
    return ln(q) + logaddexp(log_rest + one, log_share + two)


@_log_replace.defjvp
def _log_replace_jvp(primals, tangents):
    """At its crossing delta is stationary, so only P and Q themselves are differentiated: sums of positive terms."""
    epsilon, variance, q, move = primals
    value = _log_replace(epsilon, variance, q, move)
    mu = jnp.sqrt(variance)
    z = crossing(epsilon, variance, q).w / mu
    # may overflow where it is not used, at q = 1
    near = exp(jnp.minimum(epsilon + _log_tail(z) - value, cap(z, 700.0)))
    far = exp(epsilon + _log_tail(z + mu) - value)
    moved = exp(_log_density(z - mu) - value) + exp(epsilon + _log_density(z + mu) - value)
    d_epsilon = -((1 - q) * near + q * far)
    d_variance = 0.5 * q / mu * moved
    d_q = (1 - expm1(-epsilon) * near) / q
    return value, d_epsilon * tangents[0] + d_variance * tangents[1] + d_q * tangents[2]


def _log_share(variance: jax.Array, q: jax.Array, add: jax.Array, e: jax.Array, slack: jax.Array) -> jax.Array:
    """Remove and add: a share of a Gaussian's profile."""
    x = expm1(jnp.minimum(e, cap(e, 700.0)))
    c = q - (1 - q) * x
    c = c + slack * (q + (1 - q) * jnp.abs(x))
    zero = add & (c <= 0)
    below = ~add & (x <= -q)
    share = jnp.where(add & ~zero, c, q)
    ratio = jnp.where(below | zero, 0.0, x / share)
    far = ~(below | zero) & ((e > 1) | (add & (ratio < -0.5)))
    odds = jnp.where(add, q / share, (1 - (1 - q) * exp(-jnp.maximum(e, 0.0))) / q)
    inner = jnp.where(far, e + ln(jnp.where(far, odds, 1.0)), log1p(jnp.where(far, 0.0, ratio)))
    inner = inner - slack * (jnp.abs(inner) + jnp.where(_all(variance), 1.0, variance))
    log_delta = ln(share) + log_delta_gaussian(inner, variance)
    log_delta = jnp.where(below, _log_one_minus_exp(jnp.where(below, e, -1.0)), log_delta)
    return jnp.where(zero, -jnp.inf, log_delta)


def _log_either_side(variance: jax.Array, q: jax.Array, replace: jax.Array, e: jax.Array, move: jax.Array) -> jax.Array:
    """Replace-one at any epsilon and variance."""
    none, all_ = _none(variance), _all(variance)
    usual = replace & ~none & ~all_
    negative = replace & (e < 0)
    below = jnp.where(negative, e, -0.5)
    log_delta = _log_replace(
        jnp.where(replace, jnp.abs(e), 1.0), jnp.where(usual, variance, 1.0), jnp.where(usual, q, 0.5), move
    )
    log_delta = jnp.where(all_, ln(q), log_delta)
    log_delta = jnp.where(negative, _reflect(below, log_delta), log_delta)
    return jnp.where(none, jnp.where(negative, _log_one_minus_exp(below), -jnp.inf), log_delta)


def log_delta_sampled(single: Single, epsilon: jax.Array, move: jax.Array) -> jax.Array:
    """log delta of one Poisson-sampled Gaussian step (or of a Gaussian: q = 1) at any real epsilon.

    Args:
      single: the steps, (lanes,).
      epsilon: (lanes,), any real number or infinite.
      move: (lanes,), 0 for the formula as computed; 1 and -1 for what bounds the exact value from above and below.

    Returns:
      log delta, (lanes,); -inf where delta is 0. Twice differentiable.
    """
    variance, q, add, replace = single
    slack = move * (_ULPS * unit(move))
    e = jnp.clip(epsilon, -_FAR, _FAR)
    log_delta = _log_share(variance, q, add, e, slack)
    if replace is not None:
        log_delta = jnp.where(replace, _log_either_side(variance, q, replace, e, move), log_delta)
    finite = jnp.isfinite(log_delta)
    log_delta = log_delta + jnp.where(finite, slack * (1 + jnp.abs(jnp.where(finite, log_delta, 0.0))), 0.0)
    log_delta = jnp.where(jnp.isposinf(epsilon) & (add | ~_all(variance)), -jnp.inf, jnp.minimum(log_delta, 0.0))
    return jnp.where(jnp.isneginf(epsilon), 0.0, log_delta)


def _replaces(single: Single) -> jax.Array:
    return jnp.zeros_like(single.add) if single.replace is None else single.replace


def _epsilon_at(single: Single, y: jax.Array) -> jax.Array:
    """epsilon >= 0 of which y >= 0 is the inner epsilon (replace-one: of the same step in the remove direction)."""
    t = -expm1(-y)
    near = y < 1
    grown = jnp.where(
        near,
        log1p(single.q * expm1(jnp.where(near, y, 0.0))),
        y + ln(single.q * t + exp(-y)),
    )
    kept = single.q * t < 1
    bounded = -log1p(-jnp.where(kept, single.q * t, 0.0))
    return jnp.where(single.add, jnp.where(kept & (single.q < 1), bounded, y), grown)


def _log_delta_at(single: Single, y: jax.Array) -> jax.Array:
    """log delta at ``_epsilon_at(single, y)``, free of the cancellation close to the largest loss."""
    some = single.q < 1
    share = jnp.where(some, -y - ln((1 - single.q) * -expm1(-y) + exp(-jnp.where(some, y, 0.0))), 0.0)
    log_delta = log_delta_gaussian(y, single.variance) + ln(single.q) + jnp.where(single.add, share, 0.0)
    if single.replace is None:
        return log_delta
    twin = _log_replace(_epsilon_at(single, y), single.variance, single.q, jnp.zeros_like(y))
    return jnp.where(single.replace, twin, log_delta)


def _unless(settled: jax.Array, single: Single) -> Single:
    """An ordinary step in the lanes that need none."""
    return single._replace(variance=jnp.where(settled, 1.0, single.variance), q=jnp.where(settled, 0.5, single.q))


def _top(single: Single, log_delta: jax.Array) -> jax.Array:
    """A y beyond the root: delta_G <= exp(-a^2 / 2), and delta is at most q delta_G(y; mu) (replace: q delta_G(epsilon; 2 mu))."""
    reach = jnp.sqrt(2 * jnp.maximum(ln(single.q) - log_delta, 0.0) * single.variance)
    wide = 2 * reach + 2 * single.variance
    far = wide > 1
    odds = (1 - (1 - single.q) * exp(-wide)) / single.q
    raised = jnp.where(far, wide + ln(odds), log1p(expm1(jnp.where(far, 0.0, wide)) / single.q))
    return 1.001 * jnp.where(_replaces(single), raised, reach + 0.5 * single.variance)


def _root(single: Single, log_delta: jax.Array) -> tuple[jax.Array, jax.Array]:
    """y with ``_log_delta_at(single, y)`` = log_delta, and the slope there; 0 < variance < inf, the root is positive.

    Newton's method in a bracket that always shrinks. log delta is concave in y but for rounding, so that Newton's steps from
    above stay above.
    """

    def body(carry):
        i, y, low, high, _, _ = carry
        value, slope = jax.jvp(lambda y: _log_delta_at(single, y), (y,), (jnp.ones_like(y),))
        above = value > log_delta
        low, high = jnp.where(above, y, low), jnp.where(above, high, y)
        newton = y - (value - log_delta) / jnp.where(slope < 0, slope, -1.0)
        middle = jnp.where(4 * low < high, jnp.sqrt(jnp.maximum(low, 1e-6 * high) * high), 0.5 * (low + high))
        usable = (slope < 0) & (newton > low) & (newton < high) & ((i < 40) | (i % np.int32(2) == 0))
        new = jnp.where(usable, newton, middle)
        return i + np.int32(1), new, low, high, slope, jnp.abs(new - y) > (2.4e-7 if is_single(y) else 4e-16) * y

    top = _top(single, log_delta)
    start = (np.int32(0), top, jnp.zeros_like(top), top, -jnp.ones_like(top), top > 0)
    _, y, _, _, slope, _ = lax.while_loop(lambda carry: (carry[0] < 200) & jnp.any(carry[5]), body, start)
    return y, slope


@jax.custom_jvp
def _implicit(single: Single, log_delta: jax.Array, y: jax.Array) -> jax.Array:
    """The epsilon of the root y, as a function of the step and of log delta."""
    del log_delta
    return _epsilon_at(single, y)


@_implicit.defjvp
def _implicit_jvp(primals, tangents):
    """The implicit function's derivative: y counts as the root that it is, not as an argument."""
    single, _, y = primals
    moved, d_log_delta, _ = tangents
    epsilon = _implicit(*primals)
    still = jnp.zeros_like(y)
    profile = lambda variance, q, e: log_delta_sampled(single._replace(variance=variance, q=q), e, still)
    at = (single.variance, single.q, epsilon)
    _, slope = jax.jvp(profile, at, (still, still, still + 1))
    _, change = jax.jvp(profile, at, (moved.variance, moved.q, still))
    return epsilon, (d_log_delta - change) / slope


def epsilon_sampled(single: Single, log_delta: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The epsilon >= 0 at which one step (or a Gaussian) has ``log_delta``, both (lanes,).

    Returns:
      (lower, estimate, upper). The ends enclose the exact epsilon: the moved formula is at or above ``log_delta`` at the
      lower end, and at or below it at the upper. All three have the estimate's derivatives, those of the implicit function; they
      are 0 where epsilon is clipped at 0 or infinite. A delta out of reach of a bounded loss has the largest loss.
    """
    fixed = jax.tree.map(lax.stop_gradient, single)
    target = lax.stop_gradient(log_delta)
    log_q = ln(fixed.q)
    all_ = _all(fixed.variance)
    bounded = fixed.add & (fixed.q < 1)
    at_zero = log_delta_gaussian(jnp.zeros_like(target), jnp.where(_replaces(fixed), 4.0, 1.0) * fixed.variance)
    at_zero = log_q + at_zero
    nothing = target >= at_zero
    flat = all_ & ~bounded  # delta does not depend on epsilon >= 0
    endless = ~nothing & ~bounded & (flat | jnp.isneginf(target))
    touched = ~nothing & bounded & all_  # delta is 1 - (1 - q) exp(epsilon)
    edge = ~nothing & bounded & ~all_ & jnp.isneginf(target)
    settled = nothing | endless | touched | edge
    y, slope = lax.stop_gradient(_root(_unless(settled, fixed), jnp.where(settled, -3.0, target)))
    edge = edge | (~settled & bounded & (y > (_EDGE_SINGLE if is_single(y) else _EDGE)))
    settled = settled | edge
    easy, y = _unless(settled, single), jnp.where(settled, 1.0, y)
    epsilon = _implicit(easy, jnp.where(settled, -3.0, log_delta), y)
    _, stretch = jax.jvp(lambda y: _epsilon_at(_unless(settled, fixed), y), (y,), (jnp.ones_like(y),))

    loss = -log1p(-jnp.where(bounded, single.q, 0.5))  # the largest
    proper = touched & jnp.isfinite(target)
    unspent = jnp.where(proper, _log_one_minus_exp(jnp.where(proper, log_delta, -1.0)), 0.0)
    epsilon = jnp.where(edge | touched, loss + unspent, epsilon)
    epsilon = jnp.where(nothing, 0.0, jnp.where(endless, jnp.inf, jnp.maximum(epsilon, 0.0)))
    lower, upper = _verified(fixed, target, lax.stop_gradient(epsilon), slope / jnp.where(stretch > 0, stretch, 1.0))
    upper = jnp.where(bounded, jnp.minimum(upper, lax.stop_gradient(loss) * (1 + _ULPS * unit(loss))), upper)
    # flat: 0 or infinite, and neither for certain if delta is q up to rounding
    margin = jnp.where(log_q < 0, _ULPS * unit(log_q) * (1 - log_q), 0.0)
    lower = jnp.where(flat, jnp.where(target >= log_q - margin, 0.0, jnp.inf), lower)
    upper = jnp.where(flat, jnp.where(target >= log_q + margin, 0.0, jnp.inf), upper)
    return _around(lower, epsilon, upper)


def _verified(single: Single, log_delta: jax.Array, epsilon: jax.Array, slope: jax.Array):
    """Ends about ``epsilon`` at which the moved formula is on the safe side of ``log_delta``."""
    finite = jnp.isfinite(epsilon)
    at = jnp.where(finite, epsilon, 1.0)
    slack = _ULPS * unit(at)
    ulp = slack * (at + jnp.where(_all(single.variance), 0.0, single.variance))
    width = slack * (1 + jnp.abs(jnp.where(jnp.isfinite(log_delta), log_delta, 0.0)))
    width = width / jnp.where(slope < 0, -slope, 1.0) + 0.25 * ulp
    width = jnp.where(jnp.isfinite(width), width, ulp) + tiny(width)
    both = jax.tree.map(lambda a: jnp.concatenate([a, a]), single)
    goal, side = jnp.concatenate([log_delta, log_delta]), jnp.asarray(like(np.repeat([-1.0, 1.0], at.shape[0]), at))

    def widen(carry):
        i, width, ends = carry
        value = log_delta_sampled(both, ends, side)
        bad = jnp.where(side > 0, ~(value <= goal), (ends > 0) & ~(value >= goal))
        ends = jnp.where(bad, jnp.maximum(start + side * width, 0.0), ends)
        return i + np.int32(1), jnp.where(bad, 2 * width, -jnp.abs(width)), ends

    start = jnp.concatenate([at, at])
    carry = (np.int32(0), jnp.concatenate([width, width]), start)
    _, width, ends = lax.while_loop(
        lambda carry: (carry[0] < (250 if is_single(at) else 1100)) & jnp.any(carry[1] > 0), widen, carry
    )
    ends = jnp.where(width > 0, jnp.where(side > 0, jnp.inf, 0.0), ends)  # not verified
    lower, upper = jnp.split(ends, 2)
    return jnp.where(finite, lower, epsilon), jnp.where(finite, upper, epsilon)


def _around(lower: jax.Array, estimate: jax.Array, upper: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The ends with the derivatives of the estimate."""
    centre = lax.stop_gradient(estimate)
    finite = jnp.isfinite(centre)
    drift = jnp.where(finite, estimate - centre, 0.0)
    lower, upper = (lax.stop_gradient(x) for x in (lower, upper))
    return jnp.minimum(lower, centre) + drift, estimate, jnp.maximum(upper, centre) + drift


def _active(problem: Problem):
    """Which components take part, how many do, and the count of the only one; works on NumPy and JAX arrays."""
    active = (problem.count * problem.pair.q) != 0
    return active, active.sum(-1), (active * problem.count).sum(-1)


def applies(problem: Problem) -> jax.Array:
    """Lanes that have an exact formula: Gaussians alone, or one step of one component alone; (lanes,) booleans."""
    _, number, count = _active(problem)
    return (number == 0) | ((number == 1) & (count == 1) & (problem.variance == 0))


def solve(problem: Problem, given: jax.Array, *, unknown: str) -> tuple[jax.Array, jax.Array, jax.Array]:
    """log delta for ``given`` = epsilon (``unknown`` = "delta"), or epsilon >= 0 for ``given`` = log delta ("epsilon").

    Args:
      problem: the compositions; lanes where ``applies`` is false get NaN, with derivative 0.
      given: (lanes,).
      unknown: "epsilon" or "delta".

    Returns:
      (lower, estimate, upper), (lanes,) each, in units of log delta or of epsilon. The exact value of the formula lies
      between the ends despite rounding. All three have the derivatives of the estimate, with respect to variance, sigma,
      q and given; counts are constants here, and so is the variance next to a sampled step.

    >>> import jax
    >>> from dpjax.pairs import SampledGaussianPair
    >>> with jax.enable_x64(True):
    ...     none = jnp.zeros((1, 0))
    ...     problem = Problem(jnp.ones(1), SampledGaussianPair(none, none, *[jnp.zeros((1, 0, 1))] * 3), none)
    ...     print(f"{jnp.exp(solve(problem, jnp.ones(1), unknown='delta')[1][0]):.12f}")
    0.126936737507
    """
    active, number, _ = _active(problem)
    exact = applies(problem)
    stepped = exact & (number == 1)
    pair = problem.pair
    only = active & stepped[:, None]
    sigma = jnp.where(stepped, jnp.sum(jnp.where(only, pair.sigma, 0.0), -1), 1.0)
    q = jnp.where(stepped, jnp.sum(jnp.where(only, pair.q, 0.0), -1), 1.0)
    variance = jnp.where(exact & ~stepped, problem.variance, 1.0)
    usual = (sigma > (1e-15 if is_single(sigma) else 1e-140)) & (sigma < jnp.inf)
    limit = jnp.where(sigma >= 0, jnp.where(sigma > 1, 0.0, jnp.inf), jnp.nan)
    squared = jnp.where(usual, (1 / jnp.where(usual, sigma, 1.0)) ** 2, limit)
    variance = jnp.where(stepped, squared, variance)
    rises = jnp.any(only[..., None] & (pair.beta > 0), (-2, -1))
    falls = jnp.any(only[..., None] & (pair.beta < 0), (-2, -1))
    twice = pair.sign.shape[-1] > 1
    single = Single(variance, q, falls & ~rises, falls & rises if twice else None)
    bad = ~exact | jnp.isnan(given) | ~(variance >= 0) | ~((q > 0) & (q <= 1))
    safe = single._replace(variance=jnp.where(bad, 1.0, variance), q=jnp.where(bad, 0.5, q))
    x = jnp.where(bad, -1.0, given)
    if unknown == "epsilon":
        ends = epsilon_sampled(safe, x)
    else:
        still = jnp.zeros_like(x)
        fixed = jax.tree.map(lambda a: jnp.concatenate([lax.stop_gradient(a)] * 2), safe)
        both = jnp.concatenate([lax.stop_gradient(x)] * 2)
        moved = log_delta_sampled(fixed, both, jnp.concatenate([still - 1, still + 1]))
        lower, upper = jnp.split(moved, 2)
        ends = _around(lower, log_delta_sampled(safe, x, still), upper)
    lower, estimate, upper = (jnp.where(bad, jnp.nan, v) for v in ends)
    return lower, estimate, upper
