r"""Boundaries that a martingale stays below for ever, with a stated probability.

All of them bound the same thing. Let :math:`M_n` be a sum of increments each of which, given the past, satisfies
:math:`E[e^{\lambda X_n}] \le e^{\lambda^2 \sigma_n^2/2}` for all :math:`\lambda \ge 0`, where :math:`\sigma_n` may be
chosen from the past, and let :math:`V_n = \sum_{m \le n} \sigma_m^2` be its intrinsic time. A function
:math:`\psi` from this module has

.. math:: P(\exists n: M_n > \psi(V_n)) \le \delta .

For privacy, :math:`M` is the privacy loss minus its drift and :math:`V` the sum of squared epsilons (``odometers``).

================= ============ ====================================================================================
boundary          parameter    when
================= ============ ====================================================================================
``linear``        ``a``        the time at which the answer matters is known; far from it the line is bad
``mixture``       ``gamma``    a range of times around a guess; loses little within a factor of 100 on both sides
``stitched``      ``v0``       all times; the only one that grows like the law of the iterated logarithm
================= ============ ====================================================================================

Each has a ``tightest_...`` companion that returns the parameter for which the boundary is lowest at one chosen time.
Everything works elementwise on arrays that broadcast, under jit, vmap and grad, in the caller's float dtype. These are
plain floating-point evaluations; the odometers add an allowance for rounding.

Sources: Whitehouse, Ramdas, Rogers, Wu, "Fully adaptive composition in differential privacy" (arXiv 2203.05481),
Theorems 4 to 6; Howard, Ramdas, McAuliffe, Sekhon, "Time-uniform, nonparametric, nonasymptotic confidence sequences",
Annals of Statistics 2021, here HRMS21.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.special import erf
from jax.typing import ArrayLike

from dpjax import _validate
from dpjax._elementwise import check, nan_unless, reals

MIXTURE_FORMS = ("exact", "sharp", "one_sided", "two_sided")


def _valid(*conditions: jax.Array) -> jax.Array:
    out = conditions[0]
    for c in conditions[1:]:
        out = out & c
    return out


def _check(**numbers: ArrayLike) -> None:
    """Raises ValueError for concrete arguments out of range: time >= 0, delta in (0, 1), the rest > 0."""
    for name, x in numbers.items():
        if name == "v":
            check(name, x, 0.0)
        elif name == "delta":
            check(name, x, 0.0, 1.0, low_open=True, high_open=True)
        else:
            check(name, x, 0.0, math.inf, low_open=True, high_open=True)


def linear(v: ArrayLike, delta: ArrayLike, a: ArrayLike) -> jax.Array:
    r"""The line-crossing boundary :math:`\frac b2 + \frac{b}{2a} v` with :math:`b = \sqrt{2 a \log(1/\delta)}`.

    Args:
      v: intrinsic time, >= 0.
      delta: probability of ever crossing, in (0, 1).
      a: the time at which the line touches :math:`\sqrt{2 v \log(1/\delta)}`, the envelope of all such lines; > 0.

    Returns:
      The boundary, of the arguments' broadcast shape. NaN where a traced argument is out of range.

    Raises:
      ValueError: a concrete argument is out of range.

    Guarantee:
      :math:`P(\exists n: M_n \ge \psi(V_n)) \le e^{-b^2/2a} = \delta` (Theorem 4; HRMS21 eq. 2.5 with
      :math:`\lambda = b/a`). Equality for Brownian motion.

    Example:
      >>> print(f"{linear(4.0, delta=0.01, a=4.0):.4f}")  # sqrt(2 * 4 * log(100))
      6.0697
    """
    _check(v=v, delta=delta, a=a)
    return _linear(*reals(v, delta, a))


@jax.jit
def _linear(v, delta, a):
    ok = _valid(v >= 0, delta > 0, delta < 1, a > 0)
    half_slope = jnp.sqrt(-jnp.log(jnp.where(ok, delta, 0.5)) / 2)
    root = jnp.sqrt(jnp.where(ok, a, 1.0))
    return nan_unless(ok, half_slope * (root + jnp.where(ok, v, 0.0) / root), v, delta, a)


def tightest_linear(v: ArrayLike) -> jax.Array:
    """The ``a`` for which ``linear`` is lowest at time ``v``, whatever delta: ``a = v``.

    Args:
      v: the time at which the boundary should be lowest, > 0.

    Returns:
      a, of ``v``'s shape. NaN where a traced ``v`` is out of range.

    Raises:
      ValueError: ``v`` is concrete and out of range.

    Example:
      >>> float(tightest_linear(4.0))
      4.0
    """
    _check(a=v)
    time = jnp.asarray(reals(v)[0])
    return nan_unless(time > 0, time, time)


def _level(x: jax.Array, form: str) -> jax.Array:
    r"""Logarithm of the mixture's evidence at :math:`s = x\sqrt{V + \gamma}`, apart from the common factor.

    The boundary of every form is where ``_level`` equals :math:`\log\frac1\delta + \frac12\log\frac{V+\gamma}\gamma`.
    """
    if form == "two_sided":
        return x * x / 2
    if form == "exact":
        return x * x / 2 + jnp.log1p(erf(x * math.sqrt(0.5)))
    if form == "sharp":
        return x * x / 2 + jnp.log1p(-jnp.expm1(-x * x / 2))
    return math.log(2.0) + x * x / 2 + jnp.log(-jnp.expm1(-x * x / 2))


def _level_slope(x: jax.Array, form: str) -> jax.Array:
    if form == "two_sided":
        return x
    if form == "exact":
        return x + math.sqrt(2 / math.pi) * jnp.exp(-x * x / 2) / (1 + erf(x * math.sqrt(0.5)))
    if form == "sharp":
        return 2 * x / (1 - jnp.expm1(-x * x / 2))
    return x / -jnp.expm1(-x * x / 2)


def _inverse_level(c: jax.Array, form: str) -> jax.Array:
    """The ``x >= 0`` with ``_level(x) = c``, for ``c > 0``."""
    if form == "two_sided":
        return jnp.sqrt(2 * c)
    if form == "sharp":
        return jnp.sqrt(2 * (c + jnp.log1p(jnp.exp(-c)) - math.log(2.0)))  # log((e^c + 1) / 2)
    if form == "one_sided":
        return jnp.sqrt(2 * (c + jnp.log(0.5 + jnp.exp(-c))))  # log(e^c / 2 + 1)
    # The level is convex, so Newton's steps come down monotonically from a start above the root: the "sharp" form, or
    # the tangent at 0.
    fixed = lax.stop_gradient(c)
    sharp = jnp.sqrt(2 * (fixed + jnp.log1p(jnp.exp(-fixed)) - math.log(2.0)))
    x = jnp.minimum(sharp, fixed * math.sqrt(math.pi / 2))
    for _ in range(2):  # measured: with the two below, 1e-15 for c in [1e-8, 1e4]
        x = x - (_level(x, form) - fixed) / _level_slope(x, form)
    x = lax.stop_gradient(x)
    for _ in range(2):  # the derivatives, of first and second order, come from these
        x = x - (_level(x, form) - c) / _level_slope(x, form)
    return x


def mixture(v: ArrayLike, delta: ArrayLike, gamma: ArrayLike, form: str = "exact") -> jax.Array:
    r"""The method-of-mixtures boundary: Gaussian weight of variance :math:`1/\gamma` over the slopes of all lines.

    With :math:`K = \frac1\delta\sqrt{(v+\gamma)/\gamma}` the forms are, from the lowest to the highest,

    * ``"exact"``: :math:`x\sqrt{v+\gamma}` with :math:`\frac{x^2}2 + \log(2\Phi(x)) = \log K`, the half-normal mixture
      itself;
    * ``"sharp"``: :math:`\sqrt{2(v+\gamma)\log\frac{K+1}2}`, from :math:`\Phi(x) \ge 1 - \frac12 e^{-x^2/2}`;
    * ``"one_sided"``: :math:`\sqrt{2(v+\gamma)\log(\frac K2+1)}` (HRMS21, Prop. S2);
    * ``"two_sided"``: :math:`\sqrt{2(v+\gamma)\log K}` (HRMS21 eq. 3.7), which bounds :math:`|M|` when both tails are
      sub-Gaussian. It is the form in which Theorem 5 of arXiv 2203.05481 is believed to be printed.

    ``"sharp"`` lies below ``"two_sided"`` always, ``"one_sided"`` only where :math:`K \ge 2`.

    Args:
      v: intrinsic time, >= 0.
      delta: probability of ever crossing, in (0, 1).
      gamma: > 0, in units of ``v``; ``tightest_mixture`` chooses it.
      form: one of the above.

    Returns:
      The boundary, of the arguments' broadcast shape. NaN where a traced argument is out of range.

    Raises:
      ValueError: a concrete argument is out of range, or ``form`` is unknown.

    Guarantee:
      :math:`P(\exists n: M_n \ge \psi(V_n)) \le \delta` for every form (Theorem 5).

    Example:
      >>> [round(float(mixture(1.0, 1e-6, 0.1, form)), 4) for form in ("exact", "one_sided", "two_sided")]
      [5.6131, 5.6131, 5.7473]
    """
    _check(v=v, delta=delta, gamma=gamma)
    _validate.one_of("form", form, MIXTURE_FORMS)
    return _mixture(*reals(v, delta, gamma), form=form)


@functools.partial(jax.jit, static_argnames="form")
def _mixture(v, delta, gamma, form):
    ok = _valid(v >= 0, delta > 0, delta < 1, gamma > 0)
    gamma_safe = jnp.where(ok, gamma, 1.0)
    time = jnp.where(ok, v, 0.0)
    finite = time < jnp.inf
    time = jnp.where(finite, time, 1.0)
    far = time > gamma_safe * float(2**60)  # where the quotient might overflow, 1 is nothing beside it
    near = jnp.log1p(jnp.where(far, 1.0, time) / jnp.where(far, 1.0, gamma_safe))
    log_ratio = jnp.where(far, jnp.log(jnp.where(far, time, 1.0)) - jnp.log(gamma_safe), near)
    c = -jnp.log(jnp.where(ok, delta, 0.5)) + log_ratio / 2
    out = _inverse_level(c, form) * jnp.sqrt(time + gamma_safe)
    return nan_unless(ok, jnp.where(finite, out, jnp.inf), v, delta, gamma)


def tightest_mixture(v: ArrayLike, delta: ArrayLike, form: str = "exact") -> jax.Array:
    r"""The ``gamma`` for which ``mixture`` is lowest at time ``v``.

    Every form is :math:`s = x\sqrt{v+\gamma}` with :math:`h(x) = \log K`, and :math:`\partial s/\partial\gamma = 0`
    gives :math:`\gamma = v/(x h'(x))`, where :math:`h(x) - \frac12\log(1 + x h'(x)) = \log\frac1\delta`. For
    ``"two_sided"`` that is :math:`v/(-W_{-1}(-\delta^2/e) - 1)`, W the Lambert function (HRMS21).

    Args:
      v: the time at which the boundary should be lowest, > 0.
      delta: probability of ever crossing, in (0, 1).
      form: as in ``mixture``.

    Returns:
      gamma, of the arguments' broadcast shape; differentiable (twice).

    Raises:
      ValueError: a concrete argument is out of range, or ``form`` is unknown.

    Example:
      >>> round(float(tightest_mixture(1.0, 1e-6, "two_sided")), 6)
      0.032154
    """
    _check(a=v, delta=delta)
    _validate.one_of("form", form, MIXTURE_FORMS)
    return _tightest_mixture(*reals(v, delta), form=form)


@functools.partial(jax.jit, static_argnames="form")
def _tightest_mixture(v, delta, form):
    ok = _valid(v > 0, delta > 0, delta < 1)
    target = -jnp.log(jnp.where(ok, delta, 0.5))

    def excess(x):
        return _level(x, form) - jnp.log1p(x * _level_slope(x, form)) / 2

    def newton(x, target):
        gap, slope = jax.jvp(excess, (x,), (jnp.ones_like(x),))
        return x - (gap - target) / slope

    fixed = lax.stop_gradient(target)
    # -W_{-1}(-e^(-u-1)) - 1 <= u + sqrt(2u) (Chatzigeorgiou 2013), u = 2 log(1/delta): a start above the root
    x = jnp.sqrt(2 * fixed + jnp.sqrt(4 * fixed))
    for _ in range(20):
        step = newton(x, fixed)
        x = jnp.where(step > x / 8, step, x / 8)
    x = lax.stop_gradient(x)
    for _ in range(2):
        x = newton(x, target)
    return nan_unless(ok, v / (x * _level_slope(x, form)), v, delta)


def _stitched_square(log_ratio: jax.Array, log_inverse: jax.Array, s: jax.Array, log_eta: jax.Array) -> jax.Array:
    r"""The stitched boundary's square over ``v``; ``log_ratio`` is :math:`\log(v/v_0)`."""
    return (1 + jnp.cosh(log_eta / 2)) * (s * jnp.log1p(log_ratio / log_eta) + jnp.log(_zeta(s)) + log_inverse)


def _zeta(s: jax.Array) -> jax.Array:
    """Riemann's zeta function for s > 1 (Euler-Maclaurin), measured error 2e-15.

    Written out because it is differentiated twice: jax.scipy's zeta takes seconds to compile then.
    """
    logs = jnp.asarray(np.log(np.arange(1, 12)), s.dtype)
    total = jnp.sum(jnp.exp(-s[..., None] * logs), axis=-1)
    power = jnp.exp(-s * math.log(12.0))
    total = total + power * (12 / (s - 1) + 0.5)
    term = power * s / 12
    for k, bernoulli in enumerate((1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66), 1):
        total = total + term * (bernoulli / math.factorial(2 * k))
        term = term * (s + (2 * k - 1)) * (s + 2 * k) / 144
    return total


def stitched(
    v: ArrayLike,
    delta: ArrayLike,
    v0: ArrayLike,
    *,
    s: ArrayLike | None = None,
    eta: ArrayLike | None = None,
    below_v0: str = "infinite",
) -> jax.Array:
    r"""The stitched boundary: one line for each epoch :math:`[v_0 \eta^k, v_0 \eta^{k+1})` of intrinsic time.

    As published, :math:`1.7\sqrt{v(\log\log\frac{2v}{v_0} + 0.72\log\frac{5.2}\delta)}`, which rounds up the case
    :math:`\eta = 2, s = 1.4`. With ``s`` or ``eta`` given, unrounded,

    .. math:: k_1\sqrt{v\Big(s\log\frac{\log(\eta v/v_0)}{\log\eta} + \log\frac{\zeta(s)}\delta\Big)},\qquad
              k_1 = \frac{\eta^{1/4} + \eta^{-1/4}}{\sqrt2} .

    Args:
      v: intrinsic time, >= 0.
      delta: probability of ever crossing, in (0, 1).
      v0: where the first epoch starts, > 0.
      s: exponent with which the epochs share delta, > 1; 1.4 if only ``eta`` is given.
      eta: ratio of the epochs, > 1; 2 if only ``s`` is given.
      below_v0: what holds before ``v0``. ``"infinite"`` as published; ``"line"`` continues the first epoch's line
        down to 0, which is valid and costs nothing, since that line bounds all times by itself.

    Returns:
      The boundary, of the arguments' broadcast shape. NaN where a traced argument is out of range.

    Raises:
      ValueError: a concrete argument is out of range, or ``below_v0`` is unknown.

    Guarantee:
      :math:`P(\exists n: V_n \ge v_0, M_n \ge \psi(V_n)) \le \delta` (Theorem 6; HRMS21 eqs. 3.3 and 3.4).

    Example:
      >>> print(f"{stitched(1.0, 1e-6, v0=0.05):.4f} {stitched(0.01, 1e-6, v0=0.05):.4f}")
      5.9959 inf
      >>> print(f"{stitched(0.01, 1e-6, v0=0.05, below_v0='line'):.4f}")
      0.8340
    """
    _check(v=v, delta=delta, v0=v0)
    _validate.one_of("below_v0", below_v0, ("infinite", "line"))
    rounded = s is None and eta is None
    s, eta = 1.4 if s is None else s, 2.0 if eta is None else eta
    for name, x in (("s", s), ("eta", eta)):
        check(name, x, 1.0, math.inf, low_open=True, high_open=True)
    return _stitched(*reals(v, delta, v0, s, eta), rounded=rounded, below_v0=below_v0)


@functools.partial(jax.jit, static_argnames=("rounded", "below_v0"))
def _stitched(v, delta, v0, s, eta, rounded, below_v0):
    ok = _valid(v >= 0, delta > 0, delta < 1, v0 > 0, s > 1, eta > 1)
    start = jnp.where(ok, v0, 1.0)
    time = jnp.maximum(jnp.where(ok, v, 1.0), start)
    log_inverse = -jnp.log(jnp.where(ok, delta, 0.5))
    log_ratio = jnp.where(time > start * float(2**60), jnp.log(time) - jnp.log(start), jnp.log(time / start))
    if rounded:
        square = 2.89 * (jnp.log(math.log(2.0) + log_ratio) + 0.72 * (math.log(5.2) + log_inverse))
    else:
        square = _stitched_square(log_ratio, log_inverse, jnp.where(ok, s, 2.0), jnp.log(jnp.where(ok, eta, 2.0)))
    finite = time < jnp.inf
    out = jnp.where(finite, jnp.sqrt(jnp.where(finite, time, 1.0)), jnp.inf) * jnp.sqrt(jnp.where(finite, square, 1.0))
    if below_v0 == "infinite":
        early: Any = jnp.inf
    else:
        middle = start * jnp.sqrt(jnp.where(ok, eta, 2.0))  # where the line touches its envelope
        early = out * (jnp.where(ok, v, 0.0) + middle) / (start + middle)
    return nan_unless(ok, jnp.where(v >= v0, out, early), v, delta, v0, s, eta)


def tightest_stitched(v: ArrayLike, delta: ArrayLike, v0: ArrayLike) -> tuple[jax.Array, jax.Array]:
    """The ``(s, eta)`` for which ``stitched`` is lowest at time ``v``, for a given start ``v0``.

    Found by optimisation: a grid that is refined around its best point, then two differentiable Newton steps.
    (``v0`` itself is lowest at ``v0 = v``, where ``eta -> 1``, ``s -> infinity`` leads back to ``linear``.)

    Args:
      v: the time at which the boundary should be lowest, > v0.
      delta: probability of ever crossing, in (0, 1).
      v0: where the first epoch starts, > 0.

    Returns:
      s and eta, each of the arguments' broadcast shape; differentiable (twice).

    Raises:
      ValueError: a concrete argument is out of range.

    Example:
      >>> s, eta = tightest_stitched(1.0, 1e-6, v0=0.01)
      >>> published, tuned = stitched(1.0, 1e-6, v0=0.01), stitched(1.0, 1e-6, v0=0.01, s=s, eta=eta)
      >>> f"{float(published):.3f} {float(tuned):.3f}"
      '6.082 6.055'
    """
    _check(a=v, delta=delta, v0=v0)
    if not _validate.is_traced(v) and not _validate.is_traced(v0):
        _validate.in_range("v / v0", np.asarray(v) / np.asarray(v0), 1.0, low_open=True)
    return _tightest_stitched(*reals(v, delta, v0))


@jax.jit
def _tightest_stitched(v, delta, v0):
    ok = _valid(v > v0, delta > 0, delta < 1, v0 > 0)
    log_ratio = jnp.log(jnp.where(ok, v, 2.0) / jnp.where(ok, v0, 1.0))
    log_inverse = -jnp.log(jnp.where(ok, delta, 0.5))
    best = jnp.vectorize(_minimise_stitched, signature="(),()->(n)")(log_ratio, log_inverse)
    s, eta = 1 + jnp.exp(best[..., 0]), jnp.exp(jnp.exp(best[..., 1]))
    return nan_unless(ok, s, v, delta, v0), nan_unless(ok, eta, v, delta, v0)


def _minimise_stitched(log_ratio: jax.Array, log_inverse: jax.Array) -> jax.Array:
    """Minimiser over ``(log(s - 1), log(log(eta)))`` of the stitched boundary; scalars in, shape (2,) out."""

    def objective(p, log_ratio, log_inverse):
        return jnp.log(_stitched_square(log_ratio, log_inverse, 1 + jnp.exp(p[..., 0]), jnp.exp(p[..., 1])))

    fixed = (lax.stop_gradient(log_ratio), lax.stop_gradient(log_inverse))
    axis = jnp.linspace(-1.0, 1.0, 25, dtype=log_ratio.dtype)
    grid = jnp.stack(jnp.meshgrid(axis, axis, indexing="ij"), -1).reshape(-1, 2)

    def zoom(i, centre):
        points = centre + grid * (8.0 * 0.25**i)  # the best point is never more than one cell of 1/12 off
        return points[jnp.argmin(objective(points, *fixed))]

    p = lax.stop_gradient(lax.fori_loop(0, 10, zoom, jnp.asarray([0.0, 0.0], log_ratio.dtype)))

    def conditions(p):  # the derivatives in s and in log(eta), both 0 at the minimum
        s, y = 1 + jnp.exp(p[0]), jnp.exp(p[1])
        value, slope = jax.jvp(_zeta, (s,), (jnp.ones_like(s),))
        share = s * jnp.log1p(log_ratio / y) + jnp.log(value) + log_inverse
        width = jnp.sinh(y / 2) / (2 + 2 * jnp.cosh(y / 2)) * share - s * log_ratio / (y * (y + log_ratio))
        return jnp.stack([jnp.log1p(log_ratio / y) + slope / value, width])

    h = lax.stop_gradient(jax.jacfwd(conditions)(p))
    determinant = h[0, 0] * h[1, 1] - h[0, 1] * h[1, 0]
    for _ in range(2):  # a constant Jacobian serves: each step gets one more order of the derivatives right
        g = conditions(p)
        p = p - jnp.stack([h[1, 1] * g[0] - h[0, 1] * g[1], h[0, 0] * g[1] - h[1, 0] * g[0]]) / determinant
    return p


def advanced_composition(v: ArrayLike, delta: ArrayLike) -> jax.Array:
    r"""Advanced composition :math:`\frac v2 + \sqrt{2 v \log(1/\delta)}`: what holds at one time fixed in advance.

    **Not an odometer**: over many times the loss exceeds it with probability far above ``delta`` (by the law of the
    iterated logarithm, with probability 1 in the end). It is the lower envelope of all filter odometers, against which
    they are compared, and with the time as unknown it is the filter of Theorem 2.

    Args:
      v: sum of the squared epsilons, >= 0.
      delta: in (0, 1).

    Returns:
      epsilon, of the arguments' broadcast shape. NaN where a traced argument is out of range.

    Raises:
      ValueError: a concrete argument is out of range.

    Example:
      >>> round(float(advanced_composition(1.0, 1e-6)), 5)
      5.75652
    """
    _check(v=v, delta=delta)
    return _advanced_composition(*reals(v, delta))


@jax.jit
def _advanced_composition(v, delta):
    ok = _valid(v >= 0, delta > 0, delta < 1)
    product = 2 * v * -jnp.log(jnp.where(ok, delta, 0.5))
    positive = ok & (product > 0)
    root = jnp.where(positive, jnp.sqrt(jnp.where(positive, product, 1.0)), 0.0)
    return nan_unless(ok, v / 2 + root, v, delta)


def advanced_composition_time(epsilon: ArrayLike, delta: ArrayLike) -> jax.Array:
    r"""The time at which ``advanced_composition`` reaches ``epsilon``.

    .. math:: y^* = \Big(-\sqrt{2\log\tfrac1\delta} + \sqrt{2\log\tfrac1\delta + 2\epsilon}\Big)^2

    The circulated text of arXiv 2203.05481 prints :math:`+\epsilon` in the second root, which is the time at which
    *half* of epsilon is reached.

    Args:
      epsilon: >= 0.
      delta: in (0, 1).

    Returns:
      The time, of the arguments' broadcast shape. NaN where a traced argument is out of range.

    Raises:
      ValueError: a concrete argument is out of range.

    Example:
      >>> y = advanced_composition_time(1.0, 1e-6)
      >>> round(float(y), 8), round(float(advanced_composition(y, 1e-6)), 6)
      (0.03493781, 1.0)
    """
    _check(v=epsilon, delta=delta)
    return _advanced_composition_time(*reals(epsilon, delta))


@jax.jit
def _advanced_composition_time(epsilon, delta):
    ok = _valid(epsilon >= 0, delta > 0, delta < 1)
    twice = -2 * jnp.log(jnp.where(ok, delta, 0.5))
    safe = jnp.where(ok, epsilon, 0.0)
    root = 2 * safe / (jnp.sqrt(twice) + jnp.sqrt(twice + 2 * safe))  # the difference of the roots, without cancelling
    return nan_unless(ok, root * root, epsilon, delta)
