"""High-precision delta and epsilon of composed Poisson-sampled Gaussians, and their derivatives.

An oracle, not a part of the accountant: it shares no code with it and runs in ball arithmetic (python-flint) at 192
bits or more. `--check` recomputes stored rows, `--make` writes generated.json.

The mechanism is a product of factors (noise_multiplier, sampling_probability, steps), all in one direction. With N(m)
the normal density of mean m and std noise_multiplier, a factor's pair is

    remove    P = (1-q) N(0) + q N(1),   Q = N(0)
    add       P = N(0),                  Q = (1-q) N(0) + q N(1)
    replace   P = (1-q) N(0) + q N(1),   Q = (1-q) N(0) + q N(-1)

with loss L = log dP/dQ and K(z) = log E_P exp(z L); q = 1 is the plain Gaussian. For s > 0,

    delta(eps) = (1/2 pi) int exp(K(s+it) - (s+it) eps) / ((s+it)(s+1+it)) dt                           (outer integral)

by the trapezoid rule. Two things make it cheap at high precision even where the loss is heavy-tailed:

* The inner integral, over u = x / noise_multiplier, is moved to the line Im u = v on which Im L >= 0 (0 < v < pi sigma
  for remove and replace, -pi sigma < v < 0 for add). There exp(itL) decays wherever L varies quickly, so one x-grid
  of a few hundred points serves every t.
* That line, at any height, bounds the outer integrand: |exp K(s+it)| <= B(t; v) = int |weight| exp(-t Im L) du, which
  falls with t. The height that gives the least bound says where to cut the outer sum.

Where |exp K| keeps a plateau (few steps, tiny q) and the cut would lie beyond 60,000 nodes, the integrand is multiplied by
erfc((t - t0)/w)/2 with w = 20/d, t0 = 9.25 w. That leaks about exp(-100) of a near-atom at distance d: the one at loss 0,
d = eps (remove, replace), or at the largest loss (add).

Aliases, the cut, the inner step and the inner window are chosen in floats so that each costs less than the tolerance;
the arithmetic itself carries its error balls. None of that is taken on trust: every stored value comes from two runs
with another s, period, cut, height, inner step and precision, and `agreement` is their relative difference.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from random import Random

import mpmath as mp
import numpy as np
from closed_forms import gaussian_delta, single_step_delta, two_step_delta
from flint import acb, acb_mat, arb, ctx

HERE = Path(__file__).parent
MOST_NODES = 60_000  # beyond which the outer sum is tapered
LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)
PARAMETERS = ("noise_multiplier", "sampling_probability", "steps", "epsilon")


# ---------------------------------------------------------------------------------------------------------------------
# The mechanism, in floats: used to choose the quadratures, never for a value.


@dataclass(frozen=True)
class Factor:
    """One mechanism (decimal strings, so that every digit counts) and how often it is composed."""

    noise_multiplier: str
    sampling_probability: str
    steps: str

    @property
    def sigma(self) -> float:
        return float(self.noise_multiplier)

    @property
    def q(self) -> float:
        return float(self.sampling_probability)

    @property
    def k(self) -> float:
        return float(self.steps)


def _log_ratio(f: Factor, u):
    """log(1 - q + q exp(u/sigma - 1/(2 sigma^2))) at complex u, in floats, without losing the small differences."""
    y = np.asarray(u, complex) / f.sigma - 0.5 / f.sigma**2
    if f.q == 1:
        return y
    big = y.real > 30
    small = np.log1p(f.q * np.expm1(np.where(big, 0, y)))
    large = math.log(f.q) + y + np.log1p((1 - f.q) / f.q * np.exp(-np.where(big, y, 30)))
    return np.where(big, large, small)


def _exponents(f: Factor, direction: str, u):
    """(base, loss): the inner integrand is exp(base + z loss) / sqrt(2 pi)."""
    u = np.asarray(u, complex)
    plus = _log_ratio(f, u)
    if direction == "remove":
        return plus - u * u / 2, plus
    if direction == "add":
        return -u * u / 2, -plus
    return plus - u * u / 2, plus - _log_ratio(f, -u)


def _grid(f: Factor, direction: str, s: float, cut: float, fineness: float):
    """Real points that cover every peak of the weight at tilt s, out to exp(-cut) below the highest."""
    width = math.sqrt(2 * cut) + 1
    if direction == "add":  # log-concave: one peak, where u = -s rho(u) / sigma
        lo, hi = -s / f.sigma, 0.0
        for _ in range(200):
            mid = (lo + hi) / 2
            y = mid / f.sigma - 0.5 / f.sigma**2
            rho = 1 / (1 + math.exp(min(700.0, math.log1p(-f.q) - math.log(f.q) - y))) if f.q < 1 else 1.0
            lo, hi = (mid, hi) if -s * rho / f.sigma > mid else (lo, mid)
        lo, hi = lo - width, hi + width
    else:
        lo, hi = -width, (1 + s * (2 if direction == "replace" else 1)) / f.sigma + width
    step = fineness * min(1.0, f.sigma)
    count = int((hi - lo) / step) + 2
    if count > 3_000_000:
        raise ValueError(f"tilt {s:.3g} spreads the inner integral over {count} points")
    return np.linspace(lo, hi, count)


def _log_sum(a, axis=-1):
    top = a.max(axis=axis, keepdims=True)
    return (top + np.log(np.exp(a - top).sum(axis=axis, keepdims=True))).squeeze(axis)


class Mechanism:
    """Factors in one direction, with the float cumulants that the choice of contour needs."""

    def __init__(self, factors, direction: str, closed_gaussian: bool = True):
        self.factors = tuple(factors)
        self.direction = direction
        self.closed_gaussian = closed_gaussian  # False: the inner quadrature for q = 1 too, to test it
        self.largest_loss = math.inf
        if direction == "add" and not any(f.q == 1 for f in self.factors):
            self.largest_loss = -sum(f.k * math.log1p(-f.q) for f in self.factors)
        self.total_steps = sum(f.k for f in self.factors)
        self._cumulants: dict[tuple[int, float], float] = {}

    def is_closed(self, f: Factor) -> bool:
        return f.q == 1 and self.closed_gaussian

    def gaussian_scale(self, f: Factor) -> float:
        """K(z) = scale z (z+1) for a plain Gaussian."""
        return (2.0 if self.direction == "replace" else 0.5) / f.sigma**2

    def cumulant(self, i: int, s: float) -> float:
        f = self.factors[i]
        if self.is_closed(f):
            return self.gaussian_scale(f) * s * (s + 1)
        if (i, s) not in self._cumulants:
            u = _grid(f, self.direction, s, 45.0, 0.1)
            base, loss = _exponents(f, self.direction, u)
            self._cumulants[i, s] = float(_log_sum((base + s * loss).real)) + math.log(u[1] - u[0]) - LOG_SQRT_2PI
        return self._cumulants[i, s]

    def total(self, s: float) -> float:
        return sum(f.k * self.cumulant(i, s) for i, f in enumerate(self.factors))

    def tilts(self, eps: float):
        """Tilts s, K(s) and the log of the integrand's height: a log grid, finer about the saddle (K may have a kink)."""
        table = {}

        def look(s):
            k = self.total(s)
            table[s] = (k, k - s * eps - math.log(s) - math.log1p(s))
            return table[s][1]

        lowest = last = math.inf
        for j in range(-100, 400):
            try:
                here = look(10 ** (j / 25))
            except ValueError:
                break
            if here > lowest + 100 and here > last:
                break
            lowest, last = min(lowest, here), here
        for _ in range(4):
            s = sorted(table)
            j = min(range(len(s)), key=lambda i: table[s[i]][1])
            for x in np.geomspace(s[max(0, j - 1)], s[min(len(s) - 1, j + 1)], 9)[1:-1]:
                if float(x) not in table:
                    look(float(x))
        s = sorted(table)
        return np.array(s), np.array([table[x][0] for x in s]), np.array([table[x][1] for x in s])


class _Decay:
    """log B(t; v), least over a range of heights v, for each factor at tilt s."""

    def __init__(self, mechanism: Mechanism, s: float):
        self.mechanism, self.s, self.tables = mechanism, s, []
        for f in mechanism.factors:
            if mechanism.is_closed(f):
                self.tables.append(None)
                continue
            u = _grid(f, mechanism.direction, s, 60.0, 0.2)
            heights = np.minimum(math.pi * f.sigma * np.geomspace(1e-4, 0.97, 18), 12.0)
            sign = -1 if mechanism.direction == "add" else 1
            base, loss = _exponents(f, mechanism.direction, u + 1j * sign * heights[:, None])
            weight = (base + s * loss).real + math.log(u[1] - u[0]) - LOG_SQRT_2PI
            keep = (weight > weight.max(axis=1, keepdims=True) - 90).any(axis=0)
            self.tables.append((weight[:, keep], loss.imag[:, keep]))

    def __call__(self, t: float) -> float:
        total = 0.0
        for i, (f, table) in enumerate(zip(self.mechanism.factors, self.tables)):
            if table is None:
                scale = self.mechanism.gaussian_scale(f)
                total += f.k * scale * (self.s * (self.s + 1) - t * t)
            else:
                total += f.k * min(float(_log_sum(table[0] - t * table[1]).min()), self.mechanism.cumulant(i, self.s))
        return total


@dataclass
class Plan:
    s: float
    step: float  # of the outer rule
    count: int
    log_cancellation: float
    bits: int
    inner: list  # per factor (height, step, lowest u, number of points), or None
    taper: tuple | None = None  # (middle, width) in t


def _inner_rule(mechanism: Mechanism, i: int, s: float, nats: float, second: bool):
    """Height, step and window for which the inner rule is right to exp(-nats) of exp K(s), at every t >= 0."""
    f = mechanism.factors[i]
    sign = -1 if mechanism.direction == "add" else 1
    u = _grid(f, mechanism.direction, s, nats + 60, 0.2)
    heights = np.linspace(0, min(0.995 * math.pi * f.sigma, 16.0), 41)
    growth = np.empty(len(heights))
    for j, v in enumerate(heights):
        base, loss = _exponents(f, mechanism.direction, u + 1j * sign * v)
        growth[j] = float(_log_sum((base + s * loss).real)) + math.log(u[1] - u[0]) - LOG_SQRT_2PI
    growth -= mechanism.cumulant(i, s)
    best, best_step = 0, 0.0
    steps = np.zeros(len(heights))
    for j in range(2, len(heights) - 2):
        above = max(2 * math.pi * (heights[m] - heights[j]) / (nats + growth[m]) for m in range(j + 1, len(heights)))
        below = max(2 * math.pi * (heights[j] - heights[m]) / (nats + growth[m]) for m in range(j))
        steps[j] = min(above, below)
        if steps[j] > best_step:
            best, best_step = j, steps[j]
    if second:
        best = max(2, round(best * 0.8))
        best_step = steps[best] * 0.93
    v = float(heights[best])
    base, loss = _exponents(f, mechanism.direction, u + 1j * sign * v)
    weight = (base + s * loss).real
    inside = np.flatnonzero(weight > mechanism.cumulant(i, s) - nats - 8)
    lo = float(u[inside[0]]) - (0.37 * best_step if second else 0.0)
    return sign * v, best_step, lo, int((float(u[inside[-1]]) - lo) / best_step) + 2


def make_plan(mechanism: Mechanism, eps: float, log_delta: float, log_tol: float, second: bool = False) -> Plan:
    """The cheapest contour whose errors are below exp(log_tol) delta each, given a rough log delta."""
    if eps >= mechanism.largest_loss:
        raise ValueError("epsilon is not below the largest loss: delta is exactly 0")
    if second:
        log_tol -= math.log(1e3)
    goal = log_delta + log_tol - math.log(3)
    s, k, psi = mechanism.tilts(eps)
    c = s * np.log(s) - (1 + s) * np.log1p(s)
    middle = int(psi.argmin())
    options, tapered = [], []
    for j in range(max(0, middle - 90), min(len(s), middle + 30), 2):
        period = max((eps - goal) / (1 + s[j]), (-log_delta - 30) / s[j], 1.0 / s[j])
        over = k[j + 1 :] - s[j + 1 :] * eps + c[j + 1 :] - goal
        up = float(((np.maximum(over, 0.1) + 0.7) / (s[j + 1 :] - s[j])).min()) if len(over) else math.inf
        if eps + up > mechanism.largest_loss:  # no alias from above; 1/s more, for an epsilon that a root find moves
            up = min(up, mechanism.largest_loss - eps + 1 / s[j])
        period = max(period, up)
        if second:
            period *= 1.23
        h = 2 * math.pi / period
        size = math.log(h / (2 * math.pi * s[j] * (1 + s[j])) + 0.5 / math.sqrt(s[j] * (1 + s[j])))
        cancellation = max(k[j] - s[j] * eps + size - log_delta, -s[j] * period - log_delta, 0.0)
        if cancellation > 60 or not math.isfinite(period):
            continue
        count = math.inf
        decay = _Decay(mechanism, s[j])
        outside = lambda t: decay(t) - s[j] * eps - math.log(math.pi * t) > goal
        lo = 0.05 * s[j]
        while outside(2 * lo) and lo < 1e15:
            lo *= 2
        if lo < 1e15:
            hi = 2 * lo
            for _ in range(7):
                mid = math.sqrt(lo * hi)
                lo, hi = (mid, hi) if outside(mid) else (lo, mid)
            count = hi * (1.15 if second else 1) / h + 2
        options.append((count, s[j], h, cancellation, period, None))
        apart = mechanism.largest_loss - eps if mechanism.direction == "add" else eps
        if 0 < apart < math.inf:
            width = 20 / apart * (1.3 if second else 1)
            tapered.append(((17.85 * width) / h + 2, s[j], h, cancellation, period, (9.25 * width, width)))
    best = min(options, default=None)
    if tapered and (best is None or best[0] > MOST_NODES):
        best = min(tapered)
    if best is None or best[0] > 10 * MOST_NODES:
        raise ValueError("no contour: too much cancellation, or too many nodes")
    count, tilt, h, cancellation, period, taper = best
    count = int(count)
    if second:  # another contour as well, where it costs little
        tilt, period = tilt * 0.93, period * 1.05
        h = 2 * math.pi / period
        count = int(count * 1.12) + 2
    nats = -log_tol + cancellation + math.log(max(1.0, mechanism.total_steps)) + 10
    inner = [
        None if mechanism.is_closed(f) else _inner_rule(mechanism, i, tilt, nats, second)
        for i, f in enumerate(mechanism.factors)
    ]
    bits = max(192, int((nats + 30) / math.log(2)) + 64) + (64 if second else 0)
    return Plan(float(tilt), h, count, cancellation, bits, inner, taper)


# ---------------------------------------------------------------------------------------------------------------------
# The mechanism, in ball arithmetic: values.


def _derivatives_of_log_ratio(u, sigma, q):
    """log r and its derivatives (sigma, q, sigma sigma, sigma q, q q), r = 1 - q + q exp(u/sigma - 1/(2 sigma^2))."""
    e = (u / sigma - 1 / (2 * sigma * sigma)).exp()
    r = 1 - q + q * e
    d1 = 1 / sigma**3 - u / sigma**2  # of the exponent
    d2 = 2 * u / sigma**3 - 3 / sigma**4
    s, p = q * e * d1 / r, (e - 1) / r
    return r.log(), s, p, q * e * (d1 * d1 + d2) / r - s * s, e * d1 / r - s * p, -p * p


def _inner_points(f: Factor, direction: str, plan: Plan, rule, moments: bool):
    """Weights (one list per moment) and losses on the inner line.

    Moment 0 is exp(base + s L); the others multiply it by the coefficients, in powers of z, of the derivatives of the
    exponent Phi = base + z L: Phi_a for a in (sigma, q), then Phi_ab + Phi_a Phi_b for (sigma sigma, sigma q, q q).
    """
    height, step, lo, count = rule
    sigma, q, s = arb(f.noise_multiplier), arb(f.sampling_probability), arb(plan.s)
    scale = arb(step) / (2 * arb.pi()).sqrt()
    weights, losses = [[] for _ in range(14 if moments else 1)], []
    for j in range(count):
        u = acb(arb(lo) + arb(step) * j, arb(height))
        if moments:
            plus = _derivatives_of_log_ratio(u, sigma, q)
            zero = (acb(0),) * 6
            if direction == "remove":
                base, loss = plus, plus
            elif direction == "add":
                base, loss = zero, tuple(-x for x in plus)
            else:
                minus = _derivatives_of_log_ratio(-u, sigma, q)
                base, loss = plus, tuple(x - y for x, y in zip(plus, minus))
        else:
            plus = ((u / sigma - 1 / (2 * sigma * sigma)).exp() * q + (1 - q)).log()
            if direction == "remove":
                base, loss = (plus,), (plus,)
            elif direction == "add":
                base, loss = (acb(0),), (-plus,)
            else:
                base, loss = (plus,), (plus - ((-u / sigma - 1 / (2 * sigma * sigma)).exp() * q + (1 - q)).log(),)
        w = (base[0] - u * u / 2 + s * loss[0]).exp() * scale
        weights[0].append(w)
        losses.append(loss[0])
        if moments:
            coefficients = [base[1], loss[1], base[2], loss[2]]
            for ab, a, b in ((3, 1, 1), (4, 1, 2), (5, 2, 2)):
                coefficients.append(base[ab] + base[a] * base[b])
                coefficients.append(loss[ab] + base[a] * loss[b] + base[b] * loss[a])
                coefficients.append(loss[a] * loss[b])
            for m, coefficient in enumerate(coefficients):
                weights[m + 1].append(w * coefficient)
    return weights, losses


def _inner_sums(f: Factor, direction: str, plan: Plan, rule, moments: bool):
    """exp K(s + i n h), n < count, and the other moments: sums of weights times powers of exp(i h L)."""
    weights, losses = _inner_points(f, direction, plan, rule, moments)
    ih = acb(0, plan.step)
    phase = [(ih * x).exp() for x in losses]
    block = max(8, int(math.sqrt(plan.count)) + 1)
    rows = (plan.count + block - 1) // block
    log_weight = [float(abs(w).log().mid()) for w in weights[0]]
    floor = max(log_weight) - plan.bits * math.log(2)
    short, long = [], []
    for p, loss, w in zip(phase, losses, log_weight):
        short.append(_powers(p, block))
        fall = plan.step * block * float(loss.imag.mid())
        kept = rows if fall <= 0 else min(rows, max(1, int((w - floor) / fall) + 1))
        long.append(_powers((ih * block * loss).exp(), kept) + [acb(0)] * (rows - kept))
    short = acb_mat(short)
    sums = []
    for weight in weights:
        product = acb_mat([[w * row[g] for w, row in zip(weight, long)] for g in range(rows)]) * short
        sums.append([product[n // block, n % block] for n in range(plan.count)])
    return sums


def _powers(x, count: int):
    """x^0 .. x^(count-1) by halving: a rectangular ball grows at every product, and one after another it would double."""
    out = [acb(1), x]
    for n in range(2, count):
        out.append(out[n // 2] * out[n - n // 2])
    return out[:count]


class Contour:
    """exp K on a planned contour: delta, and its derivatives, at any epsilon near the one planned for."""

    def __init__(self, mechanism: Mechanism, plan: Plan, derivatives: bool = False):
        ctx.prec = plan.bits
        self.mechanism, self.plan = mechanism, plan
        self.z = [acb(arb(plan.s), arb(plan.step) * n) for n in range(plan.count)]
        self.kernel = [1 / (z * (z + 1)) for z in self.z]
        self.kernel[0] = self.kernel[0] / 2
        if plan.taper:
            middle, width = map(arb, plan.taper)
            self.kernel = [x * (((z.imag - middle) / width).erfc() / 2) for x, z in zip(self.kernel, self.z)]
        if derivatives and (len(mechanism.factors) != 1 or mechanism.is_closed(mechanism.factors[0])):
            raise ValueError("derivatives: one sampled factor only")
        for f, rule in zip(mechanism.factors, plan.inner):
            if rule is None:
                scale = arb(f.steps) * (2 if mechanism.direction == "replace" else arb(1) / 2) / arb(f.noise_multiplier) ** 2
                self.kernel = [x * (scale * z * (z + 1)).exp() for x, z in zip(self.kernel, self.z)]
                continue
            sums = _inner_sums(f, mechanism.direction, plan, rule, derivatives)
            if f.k == int(f.k):
                self.kernel = [x * y ** int(f.k) for x, y in zip(self.kernel, sums[0])]
            else:
                logs = self._followed_logs(sums[0], f.k)
                self.kernel = [x * (arb(f.steps) * y).exp() for x, y in zip(self.kernel, logs)]
            if derivatives:
                self._differentiate(sums, self._followed_logs(sums[0], f.k), arb(f.steps))

    def _followed_logs(self, values, k: float):
        """log along the contour, continuous from the real axis: what a real number of steps multiplies."""
        out, last, slope = [], 0.0, 0.0
        for value in values:
            log = value.log()
            angle = float(log.imag.mid())
            turns = round((last + slope - angle) / (2 * math.pi))
            angle += 2 * math.pi * turns
            if abs(angle - last - slope) > 1.5 and k * float(log.real.mid()) > -200:
                raise ValueError("the argument of exp K is not followed: it needs a smaller outer step")
            slope, last = (angle - last if out else 0.0), angle
            out.append(log + acb(0, 2 * arb.pi() * turns))
        return out

    def _differentiate(self, sums, logs, k):
        """K's first and second derivatives in noise_multiplier, sampling_probability, steps; -z stands for epsilon."""
        self.first, self.second = [], []
        zero = acb(0)
        for n, z in enumerate(self.z):
            f = sums[0][n]
            one = [(sums[1 + 2 * a][n] + sums[2 + 2 * a][n] * z) / f for a in range(2)]
            two = [(sums[5 + 3 * a][n] + sums[6 + 3 * a][n] * z + sums[7 + 3 * a][n] * z * z) / f for a in range(3)]
            ss, sq, qq = two[0] - one[0] ** 2, two[1] - one[0] * one[1], two[2] - one[1] ** 2
            self.first.append((k * one[0], k * one[1], logs[n], -z))
            self.second.append(
                ((k * ss, k * sq, one[0], zero), (k * sq, k * qq, one[1], zero), (one[0], one[1], zero, zero), (zero,) * 4)
            )

    def _terms(self, eps):
        e = eps if isinstance(eps, arb) else arb(eps)
        scale = arb(self.plan.step) / arb.pi()
        for k, z in zip(self.kernel, self.z):
            yield k * (-z * e).exp() * scale

    def delta(self, eps):
        return sum((t.real for t in self._terms(eps)), arb(0)) - arb(self.alias)

    @property
    def alias(self):
        period = 2 * arb.pi() / arb(self.plan.step)
        return 1 / ((arb(self.plan.s) * period).exp() - 1)

    def delta_and_slope(self, eps):
        d = slope = arb(0)
        for t, z in zip(self._terms(eps), self.z):
            d, slope = d + t.real, slope - (t * z).real
        return d - self.alias, slope

    def epsilon(self, log_delta, start):
        """The root of log delta(eps) = log_delta, by Newton's method on fixed nodes."""
        eps = arb(start)
        for _ in range(60):
            d, slope = self.delta_and_slope(eps)
            if not d > 0:
                eps = eps - arb(0.5 / self.plan.s)
                continue
            move = (d.log() - log_delta) * d / slope
            move = arb(max(-3.0 / self.plan.s, min(3.0 / self.plan.s, float(move.mid()))) if abs(move) > 1 / self.plan.s else move.mid())
            eps = arb((eps - move).mid())
            if abs(move) < abs(eps) * arb(2) ** (-(self.plan.bits - 60)):
                break
        return eps

    def derivatives(self, eps):
        """delta and its gradient and Hessian in (noise_multiplier, sampling_probability, steps, epsilon)."""
        value = arb(0)
        grad = [arb(0)] * 4
        hess = [[arb(0)] * 4 for _ in range(4)]
        for t, x, xx in zip(self._terms(eps), self.first, self.second):
            value = value + t.real
            for a in range(4):
                grad[a] = grad[a] + (t * x[a]).real
                for b in range(a, 4):
                    hess[a][b] = hess[a][b] + (t * (xx[a][b] + x[a] * x[b])).real
        for a in range(4):
            for b in range(a):
                hess[a][b] = hess[b][a]
        return value - self.alias, grad, hess


# ---------------------------------------------------------------------------------------------------------------------
# Questions.


def _settled(mechanism: Mechanism, eps: float) -> float:
    """log delta to a few per cent: plan, evaluate, plan again until the tolerance is met for the value found.

    The start is the saddle's height, which in the sparse regime exceeds log delta by up to 15.
    """
    guess = float(mechanism.tilts(eps)[2].min()) - 2.0
    for _ in range(12):
        contour = Contour(mechanism, make_plan(mechanism, eps, guess, math.log(1e-3)))
        d = contour.delta(arb(eps))
        found = float(d.log().mid()) if d > 0 else guess - 20
        if abs(found - guess) < 0.5:
            return found
        guess = min(found, guess + 5)
    raise ValueError("log delta does not settle")


def delta(mechanism: Mechanism, eps: str, tol: float = 1e-18, second: bool = False, log_delta: float | None = None):
    """delta(eps) as a ball (its radius is the rounding alone)."""
    log_delta = _settled(mechanism, float(eps)) if log_delta is None else log_delta
    return Contour(mechanism, make_plan(mechanism, float(eps), log_delta, math.log(tol), second)).delta(arb(eps))


def rough_epsilon(mechanism: Mechanism, log_delta: float) -> float:
    """epsilon to a fraction of 1/s: from the least Chernoff bound downwards, with rough contours."""
    s = 10 ** (np.arange(-100, 300) / 25)
    bounds = []
    for x in s:
        try:
            bounds.append((mechanism.total(x) + x * math.log(x) - (1 + x) * math.log1p(x) - log_delta) / x)
        except ValueError:
            break
        if bounds[-1] > 4 * abs(min(bounds)) + 10 and len(bounds) > 1 and bounds[-1] > bounds[-2]:
            break
    top = mechanism.largest_loss
    eps = min(min(bounds), top * (1 - 1e-6))
    for _ in range(60):
        contour = Contour(mechanism, make_plan(mechanism, eps, log_delta, math.log(1e-3)))
        last, eps = eps, float(contour.epsilon(arb(log_delta), eps).mid())
        if eps >= top:
            eps = (last + top) / 2
        if abs(last - eps) * contour.plan.s < 0.3:
            return eps
    raise ValueError("epsilon does not settle")


def epsilon(mechanism: Mechanism, delta: str, tol: float = 1e-18, second: bool = False, start: float | None = None):
    """epsilon at delta > 0, a decimal string."""
    ctx.prec = 256
    log_delta = float(arb(delta).log().mid())
    start = rough_epsilon(mechanism, log_delta) if start is None else start
    contour = Contour(mechanism, make_plan(mechanism, start, log_delta, math.log(tol), second))
    eps = contour.epsilon(arb(delta).log(), start)
    if abs(float(eps) - start) * contour.plan.s > 0.5:
        raise ValueError("the contour was planned for another epsilon")
    return eps


def derivatives(mechanism: Mechanism, delta: str, tol: float = 1e-18, second: bool = False, start: float | None = None):
    """(epsilon, d epsilon, d delta) at epsilon(delta): values, first and second partial derivatives by name.

    Of epsilon, in PARAMETERS with log_delta in place of epsilon, delta held as given; of delta, at that epsilon.
    steps is a real number here: it multiplies K. Exact differentiation under both integrals.
    """
    ctx.prec = 256
    log_delta = float(arb(delta).log())
    start = rough_epsilon(mechanism, log_delta) if start is None else start
    contour = Contour(mechanism, make_plan(mechanism, start, log_delta, math.log(tol), second), derivatives=True)
    eps = contour.epsilon(arb(delta).log(), start)
    value, grad, hess = contour.derivatives(eps)
    # g = log delta; epsilon is implicit in g(theta, epsilon) - log_delta = 0, whose own derivative in log_delta is -1.
    g = [x / value for x in grad]
    gg = [[hess[a][b] / value - g[a] * g[b] for b in range(4)] for a in range(4)]
    slope = [-x / g[3] for x in g[:3]] + [1 / g[3]]
    at = lambda a, b: gg[a][b] if a < 3 and b < 3 else arb(0)  # second derivatives of the equation, epsilon apart
    cross = lambda a: gg[a][3] if a < 3 else arb(0)
    second_order = [
        [
            -(at(a, b) + cross(a) * slope[b] + cross(b) * slope[a] + gg[3][3] * slope[a] * slope[b]) / g[3]
            for b in range(4)
        ]
        for a in range(4)
    ]
    of_epsilon = _named(PARAMETERS[:3] + ("log_delta",), slope, second_order)
    of_delta = _named(PARAMETERS, grad, hess)
    return eps, of_epsilon, of_delta


def _named(names, first, second):
    out = dict(zip(names, first))
    for a in range(len(names)):
        for b in range(a, len(names)):
            out[f"{names[a]},{names[b]}"] = second[a][b]
    return out


# ---------------------------------------------------------------------------------------------------------------------
# Rows of the tables.


def mechanism_of(row) -> Mechanism:
    fields = [row[name] for name in PARAMETERS[:3]]
    if not isinstance(fields[0], list):
        fields = [[x] for x in fields]
    direction = "remove" if row["direction"] == "both" else row["direction"]
    return Mechanism([Factor(*map(str, x)) for x in zip(*fields)], direction)


def text(x: arb, digits: int = 20) -> str:
    return arb(x.mid()).str(digits, radius=False)


def difference(first, second) -> float:
    """Largest relative difference; the rounding of either value counts too."""
    worst = 0.0
    for x, y in zip(first, second):
        if y.contains(0):
            raise ValueError("a value is lost in its own rounding")
        worst = max(worst, float(abs(x / y - 1).upper()))
    return worst


def delta_row(id: str, row: dict) -> dict:
    """The row with delta, its size as a log, and how much a relative error of epsilon is magnified in it."""
    mechanism = mechanism_of(row)
    log_delta = _settled(mechanism, float(row["epsilon"]))
    plans = [make_plan(mechanism, float(row["epsilon"]), log_delta, math.log(1e-18), second) for second in (False, True)]
    values = []
    for plan in plans:
        value, slope = Contour(mechanism, plan).delta_and_slope(arb(row["epsilon"]))
        values.append(value)
    return {
        "id": id,
        **row,
        "delta": text(value),
        "log_delta": text(value.log()),
        "condition": f"{abs(float(slope / value * arb(row['epsilon']))):.2e}",
        "agreement": f"{difference(values[:1], values[1:]):.1e}",
    }


def epsilon_row(id: str, row: dict) -> dict:
    mechanism = mechanism_of(row)
    ctx.prec = 256
    start = rough_epsilon(mechanism, float(arb(row["delta"]).log()))
    values = [epsilon(mechanism, row["delta"], start=start, second=second) for second in (False, True)]
    return {"id": id, **row, "epsilon": text(values[1]), "agreement": f"{difference(values[:1], values[1:]):.1e}"}


def derivative_row(id: str, row: dict) -> dict:
    mechanism = mechanism_of(row)
    ctx.prec = 256
    start = rough_epsilon(mechanism, float(arb(row["delta"]).log()))
    runs = [derivatives(mechanism, row["delta"], start=start, second=second) for second in (False, True)]
    flat = [[run[0], *run[1].values(), *run[2].values()] for run in runs]
    eps, of_epsilon, of_delta = runs[1]
    return {
        "id": id,
        **row,
        "epsilon": text(eps),
        "epsilon_derivatives": {name: text(x, 16) for name, x in of_epsilon.items()},
        "delta_derivatives": {name: text(x, 16) for name, x in of_delta.items()},
        "agreement": f"{difference(*flat):.1e}",
    }


def _row(noise_multiplier, sampling_probability, steps, direction, **more):
    return dict(
        noise_multiplier=noise_multiplier,
        sampling_probability=sampling_probability,
        steps=steps,
        direction=direction,
        **more,
    )


# ---------------------------------------------------------------------------------------------------------------------
# --make


def make_sparse_neighbours():
    random = Random(20240229)
    rows = []
    spread = lambda: 2 ** random.uniform(-1, 1)
    for base in json.loads((HERE / "psg.json").read_text())["sparse_rows"]:
        for turn, direction in enumerate(("remove", "remove", "add")):
            while True:
                sigma, q = base["noise_multiplier"] * spread(), base["sampling_probability"] * spread()
                k, eps = max(2, round(base["steps"] * spread())), base["epsilon"] * spread()
                top = -k * math.log1p(-q)
                if direction == "add" and eps > 0.95 * top:
                    eps = top * random.uniform(0.05, 0.95)
                row = _row(f"{sigma:.4g}", f"{q:.4g}", k, direction, epsilon=f"{eps:.4g}")
                try:
                    if math.log(1e-13) < _settled(mechanism_of(row), float(row["epsilon"])) < math.log(0.1):
                        break
                except ValueError as error:
                    print("  passed over:", row, error, file=sys.stderr)
            rows.append(delta_row(f"neighbour{len(rows):02d}-of-{base['id'][:9]}-{direction}", row))
    return rows


REPLACE_DELTA = (
    ("4", "0.01", 10000, "1"),
    ("1", "0.01", 1000, "2.5"),
    ("0.8", "0.001", 500, "0.8"),
    ("2", "0.2", 50, "4"),
    ("10", "0.5", 1, "0.1"),
    ("1", "0.1", 1, "0.3"),
)
REPLACE_EPSILON = (
    ("4", "0.01", 10000, "1e-5"),
    ("1", "0.001", 10000, "1e-6"),
    ("0.6", "0.01", 200, "1e-8"),
    ("1.5", "0.05", 3000, "1e-10"),
    ("20", "0.3", 100000, "1e-3"),
    ("1", "0.0001", 100000, "1e-6"),
)
SCHEDULES = (
    (("1.2", "1", "0.8"), ("0.01", "0.02", "0.005"), (400, 200, 1000), "remove", "2.5"),
    (("1.2", "1", "0.8"), ("0.01", "0.02", "0.005"), (400, 200, 1000), "add", "2"),
    (("2", "1.5", "4", "0.9"), ("0.05", "0.001", "0.3", "0.01"), (100, 10000, 7, 30), "remove", "3"),
    (("2", "1.5", "4", "0.9"), ("0.05", "0.001", "0.3", "0.01"), (100, 10000, 7, 30), "replace", "6"),
    (("1", "20"), ("0.01", "1"), (1000, 9), "remove", "2"),
    (("1", "20"), ("0.01", "1"), (1000, 9), "add", "2"),
    (("0.6", "0.7"), ("0.0005", "0.001"), (300, 100), "remove", "0.7"),
)
EXTREME = (
    ("2", "0.01", 1500, "remove", "1e-15"),
    ("2", "0.01", 1500, "remove", "1e-100"),
    ("2", "0.01", 1500, "remove", "1e-290"),
    ("1", "0.001", 1000, "remove", "1e-30"),
    ("1", "0.1", 10000, "add", "1e-60"),
    ("5", "0.2", 100, "add", "1e-290"),
    ("4", "0.5", 100000, "remove", "1e-200"),
    ("1", "0.3", 20, "add", "1e-150"),
    ("1", "0.5", 100000, "remove", "1e-5"),
)
FEW_STEPS = (
    ("1", "0.001", 2, "remove", "0.01"),
    ("1", "0.001", 2, "add", "0.001"),
    ("3", "0.01", 3, "remove", "0.02"),
    ("3", "0.01", 3, "add", "0.01"),
    ("0.1", "0.5", 3, "remove", "100"),
    ("0.1", "0.5", 3, "add", "2"),
    ("10", "0.99", 3, "remove", "0.3"),
    ("1", "0.1", 3, "replace", "0.5"),
    ("1", "0.0001", 5, "replace", "0.1"),
    ("0.5", "0.00001", 10, "remove", "1"),
)
FAR_PARAMETERS = (
    ("0.05", "0.01", 10, "remove", "300"),
    ("0.05", "0.0001", 100, "remove", "300"),
    ("0.05", "0.2", 20, "add", "4"),
    ("0.2", "0.01", 30, "add", "0.1"),
    ("10000", "0.001", 1, "remove", "1e-7"),
    ("10000", "0.5", 1000000, "remove", "0.1"),
    ("10000", "0.5", 1000000, "add", "0.1"),
    ("10000", "0.001", 100000000, "remove", "0.003"),
    ("2", "0.000001", 100000000, "remove", "0.02"),
    ("1", "0.00000001", 1000000, "add", "3e-5"),
    ("1", "0.00000001", 100000000, "add", "5e-4"),
    ("0.3", "0.000001", 1000, "remove", "3"),
)
DIFFERENTIATED = (
    ("1", "0.01", 1000, "1e-5"),
    ("2", "0.01", 1500, "1e-5"),
    ("0.7", "0.005", 3000, "1e-6"),
    ("4", "0.1", 2000, "1e-8"),
    ("10", "0.3", 500, "1e-4"),
    ("1.5", "0.05", 100, "1e-10"),
    ("0.5", "0.02", 300, "1e-3"),
    ("3", "0.2", 10, "1e-6"),
    ("20", "0.5", 100000, "1e-7"),
    ("1.1", "0.001", 100000, "1e-9"),
    ("5", "0.9", 30, "1e-5"),
    ("0.9", "0.004", 20000, "1e-12"),
    ("0.6", "0.0002", 3000, "1e-7"),
    ("1", "0.0001", 1000, "1e-10"),
    ("2", "0.005", 20, "1e-6"),
)
SPARSE_FROM = 12  # where the sparse rows of DIFFERENTIATED begin
EDGES = (
    ("1", "0.01", 1, ("0.5", "1e-2")),
    ("2", "0.1", 1, ("1e-1",)),
    ("1", "0.01", 2, ("0.5", "1e-1", "1e-3")),
    ("0.8", "0.3", 3, ("0.5", "1e-2")),
    ("3", "0.5", 5, ("0.3", "3e-2")),
    ("1", "0.1", 10, ("0.3", "1e-1", "1e-2")),
    ("1", "0.0001", 10, ("0.6", "0.2", "1e-2")),
    ("2", "0.000001", 10, ("0.6", "0.1")),
    ("0.5", "0.00000001", 10, ("0.5",)),
)


def make_edge():
    """epsilon = (1 - gap) of the largest loss, rounded to 8 digits, and just above the largest loss."""
    rows = []
    ctx.prec = 256
    for sigma, q, k, gaps in EDGES:
        top = -k * mp.log(1 - mp.mpf(q))
        for gap in gaps:
            row = _row(sigma, q, k, "add", epsilon=mp.nstr(top * (1 - mp.mpf(gap)), 8, min_fixed=-30))
            if k > 1:
                rows.append(delta_row(f"edge{len(rows):02d}", row))
                continue
            value = single_step_delta("add", mp.mpf(sigma), mp.mpf(q), mp.mpf(row["epsilon"]))
            step = mp.mpf(10) ** -25
            near = single_step_delta("add", mp.mpf(sigma), mp.mpf(q), mp.mpf(row["epsilon"]) * (1 + step))
            rows.append(
                {
                    "id": f"edge{len(rows):02d}",
                    **row,
                    "delta": mp.nstr(value, 20),
                    "log_delta": mp.nstr(mp.log(value), 20),
                    "condition": f"{float((1 - near / value) / step):.2e}",
                    "agreement": "closed form",
                }
            )
        over = _row(sigma, q, k, "add", epsilon=mp.nstr(top * (1 + mp.mpf("1e-6")), 12, min_fixed=-30))
        rows.append({"id": f"edge{len(rows):02d}", **over, "delta": "0", "log_delta": "-inf", "condition": "0", "agreement": "exact"})
    return rows


def make_gaussian_limit():
    """q = 1 by the same quadrature as q < 1, held against the closed form, which is what is stored."""
    rows = []
    for sigma, k, direction, eps in (
        ("1", 1, "remove", "1"),
        ("2", 10, "add", "2"),
        ("5", 300, "remove", "10"),
        ("30", 2000, "add", "0.5"),
        ("4", 50, "replace", "9"),
        ("0.5", 1, "replace", "20"),
    ):
        row = _row(sigma, "1", k, direction, epsilon=eps)
        mu = mp.sqrt(k) / mp.mpf(sigma) * (2 if direction == "replace" else 1)
        value = gaussian_delta(mu, mp.mpf(eps))
        mechanism = Mechanism([Factor(sigma, "1", str(k))], direction, closed_gaussian=False)
        plan = make_plan(mechanism, float(eps), float(mp.log(value)), math.log(1e-18), second=True)
        summed = Contour(mechanism, plan).delta(arb(eps))
        deviation = float(abs(summed / arb(mp.nstr(value, 50)) - 1))
        rows.append({"id": f"one{len(rows)}-{direction}", **row, "delta": mp.nstr(value, 20), "agreement": f"{deviation:.1e}"})
    return rows


def tables():
    """name: (about, answer, rows), each made when it is asked for."""
    both = ("remove", "add")
    yield (
        "sparse_neighbours",
        "Rows near the sparse_rows of psg.json: sigma, q, steps and epsilon each times a random factor in [1/2, 2].",
        "delta",
        make_sparse_neighbours,
    )
    yield (
        "replace_one_delta",
        "Replace-one, P = (1-q) N(0) + q N(1), Q = (1-q) N(0) + q N(-1); the pair is its own reverse.",
        "delta",
        lambda: [delta_row(f"replace-delta{i}", _row(s, q, k, "replace", epsilon=e)) for i, (s, q, k, e) in enumerate(REPLACE_DELTA)],
    )
    yield (
        "replace_one_epsilon",
        "The same pair, epsilon at delta.",
        "epsilon",
        lambda: [epsilon_row(f"replace-eps{i}", _row(s, q, k, "replace", delta=d)) for i, (s, q, k, d) in enumerate(REPLACE_EPSILON)],
    )
    yield (
        "few_steps",
        "Two to ten steps, where |exp K| keeps a plateau.",
        "delta",
        lambda: [delta_row(f"few{i}-{d}", _row(s, q, k, d, epsilon=e)) for i, (s, q, k, d, e) in enumerate(FEW_STEPS)],
    )
    yield (
        "far_parameters",
        "sigma from 0.05 to 1e4, q down to 1e-8, steps up to 1e8.",
        "delta",
        lambda: [delta_row(f"far{i:02d}-{d}", _row(s, q, k, d, epsilon=e)) for i, (s, q, k, d, e) in enumerate(FAR_PARAMETERS)],
    )
    yield (
        "schedules",
        "Composition of different mechanisms; the three fields are lists. Probability 1 is a plain Gaussian.",
        "delta",
        lambda: [
            delta_row(f"schedule{i}-{d}", _row(list(s), list(q), list(k), d, epsilon=e))
            for i, (s, q, k, d, e) in enumerate(SCHEDULES)
        ],
    )
    yield (
        "extreme_delta",
        "epsilon at deltas down to 1e-290.",
        "epsilon",
        lambda: [epsilon_row(f"extreme{i}-{d}", _row(s, q, k, d, delta=e)) for i, (s, q, k, d, e) in enumerate(EXTREME)],
    )
    yield (
        "derivatives",
        "epsilon at delta with its first and second partial derivatives, delta held fixed, and delta's at that "
        "epsilon. Keys name the variables; steps counts as a real number (it multiplies K); log_delta is the natural "
        f"log. The last {len(DIFFERENTIATED) - SPARSE_FROM} settings are sparse.",
        "epsilon",
        lambda: [
            derivative_row(f"{'grad' if i < SPARSE_FROM else 'grad-sparse'}{i:02d}-{d}", _row(s, q, k, d, delta=e))
            for i, (s, q, k, e) in enumerate(DIFFERENTIATED)
            for d in both
        ],
    )
    yield (
        "edge",
        "Add direction, epsilon just below (and, with delta 0, just above) the largest possible loss, "
        "-steps log(1 - q). One step: closed form.",
        "delta",
        make_edge,
    )
    yield (
        "gaussian_limit",
        "Sampling probability 1: the closed form of the plain Gaussian (mu = 2 sqrt(steps) / sigma for replace). "
        "agreement: with the general quadrature at q = 1.",
        "delta",
        make_gaussian_limit,
    )


ABOUT = (
    "Made by poisson_gaussian.py --make (tilted contour integral in ball arithmetic). Inputs are the exact decimals "
    "written; answers carry 20 digits (derivatives 16). agreement: relative difference between two runs with another "
    "tilt, period, cut, inner line, inner step and precision. condition: relative change of delta per relative change "
    "of epsilon, so rounding epsilon to a float already moves delta by about 1e-16 times it."
)


def make():
    out = {"about": ABOUT, "tables": {}}
    for name, about, answer, build in tables():
        start = time.perf_counter()
        out["tables"][name] = {"about": about, "answer": answer}
        out[name] = build()
        worst = max((float(r["agreement"]) for r in out[name] if r["agreement"][0].isdigit()), default=0.0)
        print(f"{name}: {len(out[name])} rows, agreement {worst:.1e}, {time.perf_counter() - start:.0f} s", flush=True)
    names = list(out["tables"])
    lines = ["{", f' "about": {json.dumps(out["about"])},', ' "tables": {']
    lines.append(",\n".join(f"  {json.dumps(n)}: {json.dumps(out['tables'][n])}" for n in names) + "\n },")
    lines.append(",\n".join(f' "{n}": [\n' + ",\n".join(f"  {json.dumps(r)}" for r in out[n]) + "\n ]" for n in names))
    (HERE / "generated.json").write_text("\n".join(lines) + "\n}\n")


# ---------------------------------------------------------------------------------------------------------------------
# --check


def recompute(row, answer: str):
    """(stored, recomputed) for a row of one of the tables, or None where no contour applies."""
    if answer == "delta":
        if float(row["epsilon"]) == 0 or mp.mpf(str(row["delta"])) == 0:
            return None
        return arb(str(row["delta"])), delta(mechanism_of(row), str(row["epsilon"]))
    if float(row["epsilon"]) == 0:
        return None
    return arb(str(row["epsilon"])), epsilon(mechanism_of(row), str(row["delta"]))


def _check_table(name: str, rows, answer: str):
    worst, where, done, refused = 0.0, "", 0, []
    start = time.perf_counter()
    for row in rows:
        try:
            pair = recompute(row, answer)
        except ValueError as error:
            refused.append(f"{row['id']} ({error})")
            continue
        if pair is None:
            continue
        done += 1
        ctx.prec = 256
        off = float(abs(pair[1] / pair[0] - 1))
        if off >= worst:
            worst, where = off, row["id"]
    print(f"{name}: {done} of {len(rows)} rows, largest relative deviation {worst:.1e} ({where}), {time.perf_counter() - start:.0f} s")
    for line in refused:
        print("   no contour:", line)
    sys.stdout.flush()


def _check_closed_forms():
    """One and two steps, all directions: the contour against closed forms and their average over a first step."""
    pairs = ((("1", "0.1"), ("1", "0.1"), "0.05"), (("0.8", "0.3"), ("2", "0.05"), "0.2"), (("3", "0.9"), ("1.5", "0.2"), "0.7"))
    for direction in ("remove", "add", "replace"):
        worst = 0.0
        for first, second, eps in pairs:
            value = delta(Mechanism([Factor(*first, "1"), Factor(*second, "1")], direction), eps, second=True)
            exact = two_step_delta(direction, tuple(map(mp.mpf, first)), tuple(map(mp.mpf, second)), mp.mpf(eps))
            worst = max(worst, float(abs(value / arb(mp.nstr(exact, 30)) - 1)))
        print(f"two different steps, {direction}: largest relative deviation {worst:.1e}", flush=True)


def _check_differences():
    """The derivatives against central difference quotients of the same sums, 1e-12 apart."""
    for sigma, q, k, direction, target in (("1", "0.01", "1000", "remove", "1e-5"), ("3", "0.2", "10", "add", "1e-6")):
        base = (sigma, q, k)
        mechanism = Mechanism([Factor(*base)], direction)
        start = rough_epsilon(mechanism, math.log(float(target)))
        plan = make_plan(mechanism, start, math.log(float(target)), math.log(1e-18))
        eps, of_epsilon, of_delta = derivatives(mechanism, target, start=start)
        steps = [Decimal(x) * Decimal("1e-12") for x in base]

        def at(*moves):
            moved = [format(Decimal(x) + m * h, "f") for x, m, h in zip(base, moves, steps)]
            contour = Contour(Mechanism([Factor(*moved)], direction), plan)
            return contour.epsilon(arb(target).log(), start), contour.delta(eps)

        unit = lambda a, m: [m if i == a else 0 for i in range(3)]
        centre, worst = at(0, 0, 0), 0.0
        for a in range(3):
            for b in range(a, 3):
                h, g = arb(str(steps[a])), arb(str(steps[b]))
                if a == b:
                    up, down = at(*unit(a, 1)), at(*unit(a, -1))
                    quotients = [(PARAMETERS[a], [(x - y) / (2 * h) for x, y in zip(up, down)])]
                    second = [(x - 2 * c + y) / (h * h) for x, c, y in zip(up, centre, down)]
                else:
                    corner = lambda m, n: at(*[x + y for x, y in zip(unit(a, m), unit(b, n))])
                    four = zip(corner(1, 1), corner(1, -1), corner(-1, 1), corner(-1, -1))
                    quotients, second = [], [(w - x - y + z) / (4 * h * g) for w, x, y, z in four]
                quotients.append((f"{PARAMETERS[a]},{PARAMETERS[b]}", second))
                for name, values in quotients:
                    for value, exact in zip(values, (of_epsilon[name], of_delta[name])):
                        worst = max(worst, float(abs(arb(value.mid()) / exact - 1)))
        print(f"difference quotients, {sigma} {q} {k} {direction}: largest relative deviation {worst:.1e}", flush=True)


def check(everything: bool):
    _check_closed_forms()
    _check_differences()
    for file in ("psg.json", "reference.json", "generated.json"):
        data = json.loads((HERE / file).read_text(), parse_float=str)
        for name, table in data["tables"].items():
            rows = data[name]
            if table["answer"] not in ("delta", "epsilon") or "rho" in rows[0]:
                continue
            if name.startswith("single_step"):
                continue  # closed forms: tests/test_oracles.py
            if not everything:
                rows = rows[:: max(1, len(rows) // 8)]
            _check_table(f"{file} {name}", rows, table["answer"])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="recompute a sample of the stored rows")
    parser.add_argument("--all", action="store_true", help="with --check: every row")
    parser.add_argument("--make", action="store_true", help="write generated.json")
    options = parser.parse_args()
    mp.mp.dps = 40
    if options.make:
        make()
    if options.check:
        check(options.all)
    if not (options.make or options.check):
        parser.print_help()


if __name__ == "__main__":
    main()
