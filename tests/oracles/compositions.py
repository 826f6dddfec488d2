"""High-precision delta of composed mechanisms, direction by direction: the values behind tests/problems.py.

    python compositions.py --make           writes compositions.json; some minutes
    python compositions.py --make NAME ...  recomputes these problems only
    python compositions.py --check          recomputes some rows of every problem

An oracle: it shares no code with the accountant, and each pair is written down here from the definition of its mechanism.
Parameters are the doubles that the decimals name. Methods, in the order of trust:

- exact: pairs of few losses. On a lattice a power of a polynomial in ball arithmetic, else a multinomial sum; a Gaussian
  part makes it a mixture of Gaussian profiles. Laplace noise by its residue formula in as many digits as it alternates.
- balls: Poisson-sampled Gaussians by ``poisson_gaussian``, with the agreement of two runs.
- contour: delta(eps) = p_inf + (1 / 2 pi) int M(z)^k exp(-z eps) / (z (1 + z)) dt on z = c + it in 80-bit floats, M by
  Gauss-Legendre panels. Where atoms keep M^k from decaying, the integrand is cut by erfc((t - t0) / w) / 2, w = 20 / d,
  t0 = 9.25 w, d the distance of eps from the nearest sum of atoms: the cut shows as exp(-80). Two runs with other
  tilts, steps, panels and cuts must agree; "error" is their difference. A problem with an error of 1e-11 or more in a row is not stored:
  what was, stays, and the exit status says so.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import mpmath as mp
import numpy as np
from closed_forms import single_step_delta, two_step_delta
from flint import arb, arb_poly, ctx

PATH = Path(__file__).with_name("compositions.json")
COUNTS = (1, 2, 10, 1000)
TARGETS = (-5.5, -16.0)  # log delta, roughly
LARGEST_ERROR = 1e-11  # of a row that is stored: below what the accountant's own rounding is tested with
LD = np.longdouble
mp.mp.dps = 40


@dataclass(frozen=True)
class Density:
    """P-density exp(log_p(x)) of outcomes whose loss is loss(x), for x between two ``ends``; both take arrays of LD."""

    log_p: object
    loss: object
    ends: tuple


@dataclass(frozen=True)
class Pair:
    """One direction's law of the loss under P: atoms (mass, loss), densities, mass at infinity."""

    atoms: tuple = ()
    densities: tuple = ()
    infinite: float = 0.0


@dataclass(frozen=True)
class Problem:
    """Directions to what ``exact(count, epsilon)`` gives, and to factors (pair, how often in a run) for the contour."""

    factors: dict
    exact: dict = field(default_factory=dict)  # direction -> function of (count, epsilon) -> mpf
    few: dict = field(default_factory=dict)  # the same for counts 1 and 2
    balls: dict = field(default_factory=dict)  # direction -> list of decimal (sigma, q, steps)
    about: str = ""


# ---------------------------------------------------------------------------------------------------------------------
# Exact sums.


def lattice(masses, first, spacing, infinite=0.0, bits=500, step=1):
    """delta of k runs of losses (first + i step) spacing, i = 0, 1, ..., of P-masses ``masses`` (balls)."""
    powers = {}

    def delta(count, epsilon):
        ctx.prec = bits
        if count not in powers:
            powers[count] = (arb_poly([arb_of(m) for m in masses]) ** count).coeffs()
        h, total = arb_of(spacing), arb(0)
        e = arb_of(epsilon)
        for i, mass in enumerate(powers[count]):
            gap = (count * first + i * step) * h - e
            if gap > 0:
                total += mass * (1 - (-gap).exp())
        total += 1 - (1 - arb_of(infinite)) ** count
        assert total.rel_accuracy_bits() > 80
        return mp.mpf(total.mid().str(30, radius=False))

    return delta


def arb_of(x):
    return x if isinstance(x, arb) else arb(mp.nstr(x, 160)) if isinstance(x, mp.mpf) else arb(x)


def multinomial(masses, losses, infinite=0.0):
    """delta of k runs of three losses."""

    def delta(count, epsilon):
        ctx.prec = 200
        p, l, e = [arb_of(m) for m in masses], [arb_of(x) for x in losses], arb_of(epsilon)
        log_p = [x.log() for x in p]
        logs = [arb(0)]
        for i in range(1, count + 1):
            logs.append(logs[-1] + arb(i).log())
        total = arb(0)
        for i in range(count + 1):
            for j in range(count + 1 - i):
                m = count - i - j
                gap = i * l[0] + j * l[1] + m * l[2] - e
                if gap > 0:
                    ways = logs[count] - logs[i] - logs[j] - logs[m] + i * log_p[0] + j * log_p[1] + m * log_p[2]
                    total += ways.exp() * (1 - (-gap).exp())
        total += 1 - (1 - arb_of(infinite)) ** count
        assert total.rel_accuracy_bits() > 80
        return mp.mpf(total.mid().str(30, radius=False))

    return delta


def laplace(mu):
    """delta of k Laplace mechanisms: the residues of the contour integral (at -1/2, and at 0)."""

    def delta(count, epsilon):
        k = count
        ctx.prec = 7 * k + 300
        m, e = arb(mu), arb(epsilon)
        total, half = arb(0), arb(1) / 2
        for j in range(k + 1):
            gap = (k - 2 * j) * m - e
            if not gap > 0:
                break
            a, b = k - j - 1, j - 1
            # coefficients f of (1/2 + w)^a (w - 1/2)^b: (w^2 - 1/4) f' = (a (w - 1/2) + b (w + 1/2)) f
            f, power = [half**a * (-half) ** b], [arb(1)]
            for n in range(k - 1):
                before = f[n - 1] * (n - 1 - a - b) if n else arb(0)
                f.append((4 * before - 2 * (b - a) * f[n]) / (n + 1))
                power.append(power[-1] * gap / (n + 1))
            coefficient = sum((x * y for x, y in zip(f, reversed(power), strict=True)), arb(0))
            part = coefficient * (-gap / 2).exp() / arb(2) ** k + (1 if j == 0 else 0)
            total += arb(math.comb(k, j)) * (-j * m).exp() * part
        assert total.rel_accuracy_bits() > 80
        return mp.mpf(total.mid().str(30, radius=False))

    return delta


def gaussian(mu_squared, infinite=0.0, epsilon_each=None):
    """Gaussians with, in each run, a failure of probability ``infinite`` and randomised response."""

    def delta(count, epsilon):
        with mp.workdps(60):
            mu = mp.sqrt(count * mp.mpf(mu_squared))
            fine = (1 - mp.mpf(infinite)) ** count
            profile = lambda e: mp.ncdf(mu / 2 - e / mu) - mp.exp(e) * mp.ncdf(-mu / 2 - e / mu)
            if epsilon_each is None:
                return 1 - fine + fine * profile(mp.mpf(epsilon))
            top = 1 / (1 + mp.exp(-mp.mpf(epsilon_each)))
            return mp.fsum(
                mp.binomial(count, i) * top**i * (1 - top) ** (count - i) * profile(epsilon - (2 * i - count) * epsilon_each)
                for i in range(count + 1)
            )

    return delta


# ---------------------------------------------------------------------------------------------------------------------
# Pairs.


def _normal(x, mean, sigma):
    return -(((x - mean) / sigma) ** 2) / 2 - np.log(LD(sigma)) - LD("0.918938533204672741780329736406")


def gaussian_pair(mu):
    mu = LD(mu)
    return Pair(densities=(Density(lambda x: _normal(x, mu, 1), lambda x: mu * x - mu * mu / 2, (-30, float(mu) + 60)),))


def _mix(rate, gain):
    """log(1 - rate + rate exp(gain))."""
    return np.log1p(LD(rate) * np.expm1(gain))


def sampled_gaussian(rate, sigma, direction, weight=1.0):
    """Density of the Poisson-sampled Gaussian's loss, times weight."""
    s, w = LD(sigma), np.log(LD(weight))
    loss = lambda x: _mix(rate, (2 * x - 1) / (2 * s * s))
    ends = (-40 * sigma, 1 + 60 * sigma)
    if direction == "remove":
        return Density(lambda x: _normal(x, 0, s) + loss(x) + w, loss, ends)
    return Density(lambda x: _normal(x, 0, s) + w, lambda x: -loss(x), ends)


def laplace_pair(mu):
    """P = Lap(mu), Q = Lap(0)."""
    return sampled_laplace(1.0, mu, "remove")


def sampled_laplace(rate, mu, direction):
    m, rate = LD(mu), LD(rate)
    low = np.exp(-m)
    p_ends, q_ends = (LD(0.5), low / 2), (low / 2, LD(0.5))  # masses above mu and below 0
    mixed = [(1 - rate) * b + rate * a for a, b in zip(p_ends, q_ends, strict=True)]
    loss = lambda x: np.log1p(rate * np.expm1(2 * x - m))
    at = (loss(m), loss(LD(0)))
    log_q = lambda x: -x - np.log(LD(2))
    if direction == "remove":
        return Pair(tuple(zip(mixed, at, strict=True)), (Density(lambda x: log_q(x) + loss(x), loss, (0.0, float(mu))),))
    atoms = tuple((a, -b) for a, b in zip(q_ends, at, strict=True))
    return Pair(atoms, (Density(log_q, lambda x: -loss(x), (0.0, float(mu))),))


def mixture(sigma, sensitivities, probabilities, direction):
    s = LD(sigma)
    parts = [(LD(m), np.log(LD(p))) for m, p in zip(sensitivities, probabilities, strict=True)]
    def loss(x):
        gains = np.stack([log_p + (m * x - m * m / 2) / (s * s) for m, log_p in parts])
        top = gains.max(0)
        return top + np.log(np.exp(gains - top).sum(0))

    ends = (-40.0 * sigma, 60.0 * sigma)
    if direction == "remove":
        return Pair(densities=(Density(lambda x: _normal(x, 0, s) + loss(x), loss, ends),))
    return Pair(densities=(Density(lambda x: _normal(x, 0, s), lambda x: -loss(x), ends),))


def truncated(size, rate, limit, sigma, direction):
    """Batches of more than ``limit`` records are cut; a full batch is one of fixed size, at sensitivity 2."""
    with mp.workdps(60):
        r = mp.mpf(rate)
        weights = lambda n: [mp.binomial(n, i) * r**i * (1 - r) ** (n - i) for i in range(n + 1)]
        others = weights(size - 1)
        full = mp.fsum(others[limit:])
        # of a batch of i others and the record, limit are kept
        kept = mp.fsum(r * limit / (i + 1) * others[i] for i in range(limit, size)) / full
        numbers = [LD(mp.nstr(x, 25)) for x in (full, 1 - full, kept)]
    return Pair(
        densities=(
            sampled_gaussian(rate, sigma, direction, numbers[1]),
            sampled_gaussian(numbers[2], sigma / 2, direction, numbers[0]),
        )
    )


def atoms(masses, losses, infinite=0.0):
    return Pair(tuple((LD(str(m)), LD(str(x))) for m, x in zip(masses, losses, strict=True) if m > 0), (), infinite)


# ---------------------------------------------------------------------------------------------------------------------
# Quadrature.


def _legendre(n):
    with mp.workdps(30):
        nodes = []
        for i in range(n):
            x = mp.cos(mp.pi * (i + mp.mpf(3) / 4) / (n + mp.mpf(1) / 2))
            for _ in range(8):
                p, last = x, mp.mpf(1)
                for j in range(2, n + 1):
                    p, last = ((2 * j - 1) * x * p - (j - 1) * last) / j, p
                slope = n * (x * p - last) / (x * x - 1)
                x -= p / slope
            nodes.append((x, 2 / ((1 - x * x) * slope**2)))
        return tuple(np.array([LD(mp.nstr(v, 25)) for v in column]) for column in zip(*nodes, strict=True))


RULE = _legendre(24)


def nodes(pair, c, panels):
    """(log weights, losses) of a rule that is good for exp((c + it) L)."""
    logs = [np.log(np.array([m for m, _ in pair.atoms], LD))] if pair.atoms else []
    losses = [np.array([x for _, x in pair.atoms], LD)] if pair.atoms else []
    for d in pair.densities:
        x = np.linspace(*map(LD, d.ends), 1001)
        with np.errstate(over="ignore"):
            height = d.log_p(x) + LD(c) * d.loss(x)
        inside = x[height > height.max() - 60]
        step = x[1] - x[0]
        low, high = max(inside[0] - step, LD(d.ends[0])), min(inside[-1] + step, LD(d.ends[1]))
        edges = np.linspace(low, high, panels + 1)
        half = (edges[1:] - edges[:-1])[:, None] / 2
        at = ((edges[1:] + edges[:-1])[:, None] / 2 + half * RULE[0]).ravel()
        logs.append((np.log(half * RULE[1])).ravel() + d.log_p(at))
        losses.append(d.loss(at))
    return np.concatenate(logs), np.concatenate(losses)


def _cumulants(factors, c, panels=24):
    """K(c), K'(c), K''(c)."""
    total = np.zeros(3, LD)
    for pair, count in factors:
        w, l = nodes(pair, c, panels)
        x = w + LD(c) * l
        top = x.max()
        e = np.exp(x - top)
        norm = e.sum()
        mean = (e * l).sum() / norm
        total += count * np.array([top + np.log(norm), mean, (e * (l - mean) ** 2).sum() / norm])
    return total


def _saddle(factors, epsilon):
    """The tilt at which exp(K - c eps) / (c (1 + c)) is least."""
    low, high = -12.0, 12.0
    for _ in range(26):
        middle = (low + high) / 2
        c = math.exp(middle)
        slope = _cumulants(factors, c)[1] - epsilon - 1 / c - 1 / (1 + c)
        low, high = (low, middle) if slope > 0 else (middle, high)
    return math.exp(low)


def rough_log_delta(factors, epsilon):
    c = _saddle(factors, epsilon)
    k, _, spread = _cumulants(factors, c)
    bend = spread + 1 / c**2 + 1 / (1 + c) ** 2
    return float(k - c * epsilon - math.log(c * (1 + c)) - np.log(2 * np.pi * bend) / 2)


def small_delta(factors, epsilon):
    """Roughly, of one run or of two of one kind: by the sum over the rule's nodes."""
    losses, masses = np.zeros(1), np.ones(1)
    for pair, count in factors:
        w, l = nodes(pair, 1.0, 24)
        for _ in range(count):
            losses, masses = np.add.outer(losses, l.astype(float)).ravel(), np.multiply.outer(masses, np.exp(w).astype(float)).ravel()
    return float((masses * -np.expm1(np.minimum(epsilon - losses, 0))).sum())


def choose_epsilon(factors, log_target):
    """An epsilon of few digits at which delta is of the target's size, finite losses only."""
    small = len(factors) == 1 and factors[0][1] <= 2
    value = (lambda e: math.log(max(small_delta(factors, e), 1e-300))) if small else (lambda e: rough_log_delta(factors, e))
    if small:  # the target may be above the total variation
        log_target = min(log_target, value(0.0) - 0.7)
    low, high = 0.0, 1.0
    edge = sum(n * _highest(pair) for pair, n in factors)
    while high < edge and value(min(high, edge * (1 - 1e-9))) > log_target:
        low, high = high, 2 * high
    high = min(high, edge)
    for _ in range(40 if small else 14):
        middle = (low + high) / 2
        low, high = (middle, high) if value(middle) > log_target else (low, middle)
    for digits in range(3, 17):
        found = float(f"{high:.{digits}g}")
        if 0 < found < edge and abs(value(found) - log_target) < 1:
            break
    else:
        found = high
    if len(factors) == 1 and factors[0][0].atoms and factors[0][0].densities and 2 < factors[0][1] < 200:
        # halfway between two sums of atoms: there the contour can be cut soonest
        (pair, count), = factors
        (_, a), (_, b) = pair.atoms
        sums = [float(j * a + (count - j) * b) for j in range(count + 1)]
        middles = [(x + y) / 2 for x, y in itertools.pairwise(sums)]
        return float(f"{min(middles, key=lambda x: abs(x - found)):.6g}")
    return found


def _highest(pair):
    if any(d.ends[1] > 5 for d in pair.densities):
        return math.inf if len(pair.densities) == 0 or float(pair.densities[0].loss(LD(50.0))) > 5 else max(
            float(d.loss(x)) for d in pair.densities for x in (LD(d.ends[0]), LD(d.ends[1]))
        )
    return max(float(x) for _, x in pair.atoms)


def sampled_laplace_direct(rate, mu, direction, failure=0.0):
    """delta of one run or two, from the profile of one (arXiv 2106.08567, Theorem 11), integrated against a loss."""

    def profile(x):
        if direction == "add":
            return 1 - mp.exp(x) + mp.exp(x) * remove(-x)
        return remove(x)

    def remove(x):
        inner = (mp.expm1(x) + rate) / rate
        if inner <= mp.exp(-mu):
            return -mp.expm1(x)
        inner = mp.log(inner)
        return mp.mpf(0) if inner >= mu else -rate * mp.expm1((inner - mu) / 2)

    def delta(count, epsilon):
        e, r = mp.mpf(epsilon), mp.mpf(rate)
        if count == 1:
            finite = profile(e)
        else:
            gain = lambda x: mp.log1p(r * mp.expm1(2 * x - mu))
            sign = 1 if direction == "remove" else -1
            p = lambda x: mp.exp(-x) / 2 * (mp.exp(gain(x)) if sign > 0 else 1)
            ends = [gain(mp.mpf(0)), gain(mp.mpf(mu))]
            low, high = mp.mpf(1) / 2, mp.exp(-mu) / 2
            if sign > 0:
                low, high = ((1 - r) * m + r * n for m, n in ((low, high), (high, low)))
            kinks = [e - sign * v for v in ends]  # of the profile
            places = [(mp.log(mp.expm1(sign * v) / r + 1) + mu) / 2 for v in kinks if mp.expm1(sign * v) / r + 1 > 0]
            cuts = sorted([mp.mpf(0), mp.mpf(mu), *(x for x in places if 0 < x < mu)])
            finite = low * profile(e - sign * ends[0]) + high * profile(e - sign * ends[1])
            finite += mp.quad(lambda x: p(x) * profile(e - sign * gain(x)), cuts)
        fine = (1 - mp.mpf(failure)) ** count
        return 1 - fine + fine * finite

    return delta


def contour(factors, epsilon, gap=None, second=False, most=400_000):
    """delta of the finite losses; ``gap``: distance from epsilon to the nearest sum of atoms, where a cut is needed."""
    factors = [(p, n) for p, n in factors if n]
    c = _saddle(factors, epsilon) * (0.8 if second else 1.0)
    k, mean, spread = _cumulants(factors, c)
    log_d = rough_log_delta(factors, epsilon)
    # aliases from below, exp(-2 pi c / h) / delta, and from above, by Chernoff at a larger tilt
    far = c * (1.5 if c > 1 else 2.0)
    k_far = float(_cumulants(factors, far)[0])
    period = max((50 - log_d) / c, (50 + k_far - far * epsilon - log_d) / (far - c))
    top = sum(n * _highest(p) for p, n in factors)
    if math.isfinite(top):
        period = max((50 - log_d) / c, min(period, top - epsilon + 1e-9))
    h = 2 * math.pi / (period * (1.3 if second else 1.0))
    cut = None
    if gap:
        width = 20 / gap * (1.2 if second else 1.0)
        cut = 9.25 * width, width
        last = cut[0] + 7 * width
    else:
        last = most * h
    parts = []
    for pair, n in factors:
        reach = 60 * max(1.0, 1 / math.sqrt(float(spread))) if not gap else last
        _, l = nodes(pair, c, 24)
        panels = int(40 + reach * float(l.max() - l.min()) / 14) * (4 if second else 3) // 3
        w, l = nodes(pair, c, min(panels, 3000))
        tilted = w + LD(c) * l
        tilted = np.exp(tilted - tilted.max())
        tilted = tilted / tilted.sum()
        keep = tilted > 1e-26
        tilted, l = tilted[keep], l[keep]
        centre = (tilted * l).sum()
        parts.append((tilted, l - centre, n, centre))
    k = sum(_cumulants([(p, n)], c, 200)[0] for p, n in factors)
    total, block, quiet = LD(0), 256, 0
    drift = sum(n * centre for _, _, n, centre in parts) - LD(epsilon)
    for start in range(0, most, block):
        t = (np.arange(start, start + block).astype(LD)) * LD(h)
        value = LD(0) + np.exp(1j * (t * drift)) / ((LD(c) + 1j * t) * (1 + LD(c) + 1j * t))
        for tilted, away, n, _ in parts:
            phi = np.zeros(block, np.clongdouble)
            for some in np.array_split(np.arange(len(away)), len(away) // 2000 + 1):
                angle = np.multiply.outer(t, away[some])
                phi += np.cos(angle) @ tilted[some] + 1j * (np.sin(angle) @ tilted[some])
            value = value * phi**n
        if cut:
            value = value * _taper((t - LD(cut[0])) / LD(cut[1]))
        if start == 0:
            value[0] /= 2
        total += value.real.sum()
        quiet = quiet + 1 if np.abs(value).max() * block * 10 < 1e-16 * abs(total) else 0
        if quiet >= 2 or (gap and t[-1] > last):
            break
    else:
        raise ValueError("the integrand does not decay")
    return total * LD(h) / LD(np.pi + 0 * 1) * np.exp(k - LD(c) * LD(epsilon)) * (LD(np.pi) / PI)


PI = LD("3.14159265358979323846264338327950288")


def _taper(x):
    from math import erfc

    # any smooth cut will do, so double precision of erfc is enough where it is 1 to the last digit: scale it exactly
    return np.array([LD(1) - LD(erfc(-float(v))) / 2 if v < 0 else LD(erfc(float(v))) / 2 for v in x], LD)


def nearest_sum(factors, epsilon):
    """Distance from epsilon to the nearest sum of two kinds of atoms."""
    (pair, count), *rest = [f for f in factors if f[0].atoms]
    assert not rest
    (_, a), (_, b) = pair.atoms
    return min(abs(float(j * a + (count - j) * b) - epsilon) for j in range(count + 1))


# ---------------------------------------------------------------------------------------------------------------------
# The problems.


def _two(direction_to):
    return {d: direction_to(d) for d in ("remove", "add")}


def discrete_gaussian(sigma, moves):
    """Masses of P on x, loss moves (2 x - moves) / (2 sigma^2), x an integer centred at moves."""
    far = int(15 * sigma) + 6  # exp(-110)
    with mp.workdps(170):
        x = range(moves - far, moves + far + 1)
        raw = [mp.exp(-((mp.mpf(i) - moves) ** 2) / (2 * mp.mpf(sigma) ** 2)) for i in x]
        norm = mp.fsum(raw)
        p = [r / norm for r in raw]
        spacing = mp.mpf(moves) / (2 * mp.mpf(sigma) ** 2)  # of 2 x - moves
    losses = [(2 * i - moves) * spacing for i in x]
    return (
        {"both": [(atoms([float(m) for m in p], [float(v) for v in losses]), 1)]},
        {"both": lattice(p, 2 * x[0] - moves, spacing, step=2)},
    )


def on_lattice(masses, first, spacing, infinite=0.0):
    """A problem with the same law in both directions, from a function's masses."""
    pair = atoms([float(m) for m in masses], [(first + i) * float(spacing) for i in range(len(masses))], infinite)
    return {"both": [(pair, 1)]}, {"both": lattice(masses, first, spacing, infinite)}


def _response(epsilon, buckets=2, infinite=0.0):
    with mp.workdps(170):
        e = mp.exp(mp.mpf(epsilon))
        rest = 1 - mp.mpf(infinite)
        p = [rest * v / (e + buckets - 1) for v in (mp.mpf(1), mp.mpf(buckets - 2), e)]
    return on_lattice(p, -1, mp.mpf(epsilon), infinite)


def _discrete_laplace(unit, moves):
    with mp.workdps(170):
        a = mp.exp(-mp.mpf(unit))
        norm = (1 - a) / (1 + a)
        inner = [norm * a ** abs(x - moves) for x in range(1, moves)]
        p = [a**moves / (1 + a), *inner, 1 / (1 + a)]  # x <= 0, inside, x >= moves
    wide = [v for m in p for v in (m, mp.mpf(0))][:-1]
    return on_lattice(wide, -moves, mp.mpf(unit))


def _two_point(epsilon, t):
    with mp.workdps(60):
        e, t = mp.mpf(epsilon), mp.mpf(t)
        high = (1 - mp.exp(t - e)) / (1 - mp.exp(-e))
    p, l = [high, 1 - high, mp.mpf(0)], [t, t - e, mp.mpf(0)]

    def delta(count, epsilon):
        with mp.workdps(60):
            gap = lambda i: i * l[0] + (count - i) * l[1] - mp.mpf(epsilon)
            return mp.fsum(
                mp.binomial(count, i) * high**i * (1 - high) ** (count - i) * -mp.expm1(-gap(i))
                for i in range(count + 1)
                if gap(i) > 0
            )

    return {"both": [(atoms([float(v) for v in p], [float(v) for v in l]), 1)]}, {"both": delta}


def _three(p, q, infinite_p=0.0, infinite_q=0.0):
    """Three finite losses, or two and failure: both directions."""
    factors, exact = {}, {}
    for direction, (a, b), infinite in (("remove", (p, q), infinite_p), ("add", (q, p), infinite_q)):
        with mp.workdps(60):
            size = mp.fsum(map(mp.mpf, a)) + mp.mpf(infinite)
            other = mp.fsum(map(mp.mpf, b)) + mp.mpf(infinite_q if direction == "remove" else infinite_p)
            masses = [mp.mpf(x) / size for x in a]
            losses = [mp.log(mp.mpf(x) / size / (mp.mpf(y) / other)) for x, y in zip(a, b, strict=True)]
            lost = mp.mpf(infinite) / size
        factors[direction] = [(atoms([float(m) for m in masses], [float(x) for x in losses], float(lost)), 1)]
        if len(p) == 2:
            masses, losses = [*masses, None], [*losses, None]
            exact[direction] = _binomial(masses[:2], losses[:2], lost)
        else:
            exact[direction] = multinomial(masses, losses, lost)
    return factors, exact


def _binomial(p, l, infinite):
    def delta(count, epsilon):
        with mp.workdps(60):
            gap = lambda i: i * l[0] + (count - i) * l[1] - mp.mpf(epsilon)
            return 1 - (1 - infinite) ** count + mp.fsum(
                mp.binomial(count, i) * p[0] ** i * p[1] ** (count - i) * -mp.expm1(-gap(i))
                for i in range(count + 1)
                if gap(i) > 0
            )

    return delta


def _sampled(sigma, rate, steps="1", directions=("remove", "add")):
    factors = {}
    for d in directions:
        if d == "replace":
            s, r = LD(sigma), float(rate)
            up = lambda x: _mix(r, (2 * x - 1) / (2 * s * s))
            down = lambda x: _mix(r, (-2 * x - 1) / (2 * s * s))
            density = Density(lambda x: _normal(x, 0, s) + up(x), lambda x: up(x) - down(x), (-60 * float(sigma), 60 * float(sigma)))
            factors[d] = [(Pair(densities=(density,)), 1)]
        else:
            factors[d] = [(Pair(densities=(sampled_gaussian(float(rate), float(sigma), d),)), 1)]
    return Problem(factors, balls={d: (sigma, rate) for d in directions})


def _law(name):
    """Atoms of the worst pair of a claim, as the accountant works them out: given here, their composition is not."""
    data = json.loads(PATH.read_text())["laws"][name]
    return atoms(data["p"], data["loss"], data["p_infinite"])


def _profile_law():
    law = json.loads(PATH.read_text())["laws"]["privacy-profile"]
    h = 0.25
    places = {round(x / h): mp.mpf(0) for x in law["loss"]}
    for x, p in zip(law["loss"], law["p"], strict=True):
        assert x == round(x / h) * h
        places[round(x / h)] += mp.mpf(p)
    first = min(places)
    masses = [places.get(i, mp.mpf(0)) for i in range(first, max(places) + 1)]
    return on_lattice(masses, first, mp.mpf(h), law["p_infinite"])


def problems():
    """Name to a function that makes the problem: some take a moment."""
    both = lambda pair_exact: Problem(*pair_exact)
    return {
        "gaussian": lambda: Problem({"both": [(gaussian_pair(0.5), 1)]}, {"both": gaussian(0.25)}),
        "matrix-factorization": lambda: Problem({"both": [(gaussian_pair(0.5), 1)]}, {"both": gaussian(0.25)}),
        "tree-aggregation": lambda: Problem({"both": [(gaussian_pair(0.5), 1)]}, {"both": gaussian(0.25)}),
        "poisson-gaussian": lambda: _sampled("1.0", "0.01"),
        "poisson-gaussian-replace": lambda: _sampled("2.0", "0.05", directions=("replace",)),
        "fixed-size-gaussian": lambda: _sampled("2.0", "0.05"),
        "truncated-poisson-gaussian": lambda: Problem(
            _two(lambda d: [(truncated(1000, 0.1, 110, 4.0, d), 1)])
        ),
        "laplace": lambda: Problem({"both": [(laplace_pair(0.2), 1)]}, {"both": laplace(0.2)}),
        "permute-and-flip": lambda: Problem({"both": [(laplace_pair(0.4), 1)]}, {"both": laplace(0.4)}),
        "poisson-laplace": lambda: Problem(
            _two(lambda d: [(sampled_laplace(0.05, 1.0, d), 1)]), few=_two(lambda d: sampled_laplace_direct(0.05, 1.0, d))
        ),
        "discrete-gaussian": lambda: both(discrete_gaussian(3.0, 1)),
        "discrete-gaussian-2": lambda: both(discrete_gaussian(1.0, 2)),
        "discrete-laplace": lambda: both(_discrete_laplace(0.5, 1)),
        "discrete-laplace-2": lambda: both(_discrete_laplace(0.3, 2)),
        "randomized-response": lambda: both(_response(0.5)),
        "randomized-response-4": lambda: both(_response(0.5, 4)),
        "pure-dp": lambda: both(_response(0.2)),
        "approximate-dp": lambda: both(_response(0.2, infinite=1e-6)),
        "bounded-range-t": lambda: both(_two_point(0.3, 0.1)),
        "discrete-loss": lambda: both(_three([0.5, 0.3, 0.2], [0.45, 0.25, 0.3])),
        "discrete-loss-infinite": lambda: both(_three([0.55, 0.45 - 1e-7], [0.45, 0.55], 1e-7)),
        "failing-gaussian": lambda: Problem(
            {"both": [(gaussian_pair(0.25), 1), (Pair(((LD(1), LD(0)),), (), 1e-9), 1)]}, {"both": gaussian(1 / 16, 1e-9)}
        ),
        "mixture-of-gaussians": lambda: Problem(
            _two(lambda d: [(mixture(2.0, (0.0, 1.0, 2.0), (0.5, 0.25, 0.25), d), 1)])
        ),
        "privacy-profile": lambda: both(_profile_law()),
        "zcdp": lambda: Problem({"both": [(_law("zcdp"), 1)]}),
        "renyi-dp": lambda: Problem({"both": [(_law("renyi-dp"), 1)]}),
        "gaussian-and-response": lambda: Problem(
            {"both": [(gaussian_pair(0.2), 1), (atoms([0.52, 0.48], [float(_EACH), -float(_EACH)]), 1)]},
            {"both": gaussian(mp.mpf(1) / 25, 0.0, _EACH)},
        ),
        "laplace-gaussian-discrete": lambda: Problem(
            {
                "both": [
                    (laplace_pair(0.1), 1),
                    (gaussian_pair(0.2), 1),
                    (_discrete_laplace(0.1, 1)[0]["both"][0][0], 1),
                ]
            }
        ),
        "failing-poisson-laplace": lambda: Problem(
            _two(lambda d: [(sampled_laplace(0.05, 1.0, d), 1), (Pair(((LD(1), LD(0)),), (), 1e-9), 1)]),
            few=_two(lambda d: sampled_laplace_direct(0.05, 1.0, d, 1e-9)),
        ),
    }


_EACH = mp.mpf(math.log(0.52 / 0.48))


def value(problem, direction, count, epsilon):
    """(delta, error): the error is the relative difference of two ways, 0 where the sum is exact."""
    if direction in problem.exact:
        return problem.exact[direction](count, epsilon), 0.0
    if direction in problem.few and count <= 2:
        return problem.few[direction](count, epsilon), 0.0
    if direction in problem.balls:
        import poisson_gaussian as pg

        sigma, rate = problem.balls[direction]
        if count <= 2:
            step, e = (mp.mpf(sigma), mp.mpf(rate)), mp.mpf(epsilon)
            closed = single_step_delta(direction, *step, e) if count == 1 else two_step_delta(direction, step, step, e)
            return closed, 0.0
        row = pg.delta_row("", {
            "noise_multiplier": sigma, "sampling_probability": rate, "steps": str(count), "direction": direction,
            "epsilon": repr(epsilon),
        })  # fmt: skip
        return mp.mpf(row["delta"]), float(row["agreement"])
    factors = [(p, n * count) for p, n in problem.factors[direction]]
    infinite = 1 - mp.fprod((1 - mp.mpf(p.infinite)) ** n for p, n in factors)
    if len(factors) == 1 and not factors[0][0].densities and count <= 2:
        return _direct(factors[0][0], count, epsilon) + infinite, 0.0
    if len(factors) == 1 and not factors[0][0].atoms and count <= 2:
        a, b = (_smooth(factors[0][0], count, LD(epsilon), panels) for panels in (48, 72))
        return mp.mpf(str(a)), float(abs(a / b - 1))
    kept = [(p, n) for p, n in factors if p.densities or len(p.atoms) > 1]
    gap = None
    if len(kept) == 1 and kept[0][0].densities:
        pair = kept[0][0]
        if pair.atoms and count <= 200:
            gap = nearest_sum(kept, epsilon)
        elif not pair.atoms and count <= 10:
            gap = epsilon
    a, b = (mp.mpf(str(contour(kept, epsilon, gap, second))) for second in (False, True))
    # densities were of the whole mass, and failure is a factor of its own
    share = mp.fprod((1 - mp.mpf(p.infinite)) ** n for p, n in factors if not (p.densities or len(p.atoms) > 1))
    return infinite + share * a, float(abs(a / b - 1))


def _direct(pair, count, epsilon):
    p, l = (np.array(column, LD) for column in zip(*pair.atoms, strict=True))
    total = LD(0)
    shifts = zip(p, l, strict=True) if count == 2 else [(LD(1), LD(0))]
    for weight, shift in shifts:
        total += weight * (p * -np.expm1(np.minimum(LD(epsilon) - shift - l, 0))).sum()
    return mp.mpf(str(total))


def _smooth(pair, count, epsilon, panels):
    """delta of one run or two, of monotone losses without atoms: the inner integral starts where the loss crosses."""

    def one(e):
        e, total = np.atleast_1d(e), 0
        for d in pair.densities:
            up = d.loss(LD(d.ends[1])) > d.loss(LD(d.ends[0]))
            low, high = (np.full(e.shape, LD(b)) for b in (d.ends if up else d.ends[::-1]))
            inner, outer = low.copy(), high.copy()  # the loss rises from inner to outer
            for _ in range(100):
                middle = (inner + outer) / 2
                above = d.loss(middle) > e
                inner, outer = np.where(above, inner, middle), np.where(above, middle, outer)
            # the weight beyond 45 standard deviations is nothing
            length = (high - outer) * np.minimum(1, LD(0.5) * abs(low - high) / np.maximum(abs(high - outer), LD(1e-30)))
            for i in range(panels):
                x = outer[:, None] + length[:, None] * (i + (RULE[0] + 1) / 2) / panels
                gain = -np.expm1(np.minimum(e[:, None] - d.loss(x), 0))
                total = total + (np.exp(d.log_p(x)) * gain * RULE[1]).sum(1) * abs(length) / (2 * panels)
        return total

    if count == 1:
        return one(epsilon)[0]
    w, l = nodes(pair, _saddle([(pair, 2)], float(epsilon)), panels)
    keep = w > w.max() - 90
    w, l = w[keep], l[keep]
    return sum((np.exp(a) * one(epsilon - b)).sum() for a, b in zip(np.array_split(w, 8), np.array_split(l, 8), strict=True))


def rows(name, problem, chosen=None):
    """The problem's rows; ``chosen``: rows whose epsilons are kept."""
    for direction, factors in problem.factors.items():
        for count in COUNTS:
            finite = [(p, n * count) for p, n in factors if p.densities or len(p.atoms) > 1]
            for target in TARGETS:
                start = time.time()
                epsilon = choose_epsilon(finite, target)
                delta, error = value(problem, direction, count, epsilon)
                row = {
                    "problem": name, "direction": direction, "count": count, "epsilon": repr(epsilon),
                    "delta": mp.nstr(delta, 20), "error": f"{error:.1e}",
                }  # fmt: skip
                print(row, f"{time.time() - start:.1f} s", file=sys.stderr, flush=True)
                yield row


def claims():
    """The atoms of claims whose worst pair is known by an algorithm only."""
    import jax

    jax.config.update("jax_enable_x64", True)
    sys.path.insert(0, str(PATH.parent.parent))
    sys.path.insert(0, str(PATH.parent.parent.parent))
    from problems import BY_NAME

    from dpjax import Adjacency
    from dpjax.laws import loss_law

    found = {}
    for name in ("privacy-profile", "zcdp", "renyi-dp"):
        law = loss_law(BY_NAME[name].make(BY_NAME[name].at), Adjacency.REMOVE)
        keep = np.asarray(law.p) > 0
        found[name] = {
            "loss": np.asarray(law.loss)[keep].tolist(),
            "p": np.asarray(law.p)[keep].tolist(),
            "p_infinite": float(law.p_infinite()),
        }
    return found


def make(names):
    old = json.loads(PATH.read_text()) if PATH.exists() else {"rows": []}
    table = {name: [r for r in old["rows"] if r["problem"] == name] for name in problems()}
    data = {
        "about": "delta of k runs, by direction; 'both' where they agree. 'error': relative difference of two settings, 0 "
        "where the sum is exact. Parameters and epsilons are the doubles that the decimals name. 'laws': atoms that were given.",
        "laws": old.get("laws", {}),
    }
    refused = []
    for name in names or problems():
        try:
            table[name] = accurate(name, list(rows(name, problems()[name]())))
        except Inaccurate as error:
            refused.append(str(error))
        except Exception as error:
            print(name, repr(error), file=sys.stderr)
            raise
        data["rows"] = list(itertools.chain(*table.values()))
        PATH.write_text(_text(data))
    if refused:
        sys.exit("\n".join(refused))


class Inaccurate(ValueError):
    """Rows whose error is too large to be references."""


def accurate(name, found):
    """``found``; raises ``Inaccurate``, so that none of it is stored, if the two ways of a row differ too much."""
    bad = [row for row in found if not float(row["error"]) < LARGEST_ERROR]
    if bad:
        places = "; ".join(f"{r['direction']}, count {r['count']}, epsilon {r['epsilon']}: {r['error']}" for r in bad)
        raise Inaccurate(
            f"{name} is not stored: {len(bad)} of {len(found)} rows have an error of {LARGEST_ERROR:g} or more ({places}). If "
            "these are of counts 1 and 2, give it `few`: a density of the loss ends abruptly."
        )
    return found


def _text(data):
    """One row a line."""
    lines = ",\n".join("  " + json.dumps(row) for row in data["rows"])
    laws = ",\n".join(f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in data["laws"].items())
    return f'{{"about": {json.dumps(data["about"])},\n "laws": {{\n{laws}\n }},\n "rows": [\n{lines}\n ]}}\n'


def check(some=slice(None, None, 3)):
    data = json.loads(PATH.read_text())
    for name, build in problems().items():
        problem = build()
        for row in [r for r in data["rows"] if r["problem"] == name][some]:
            again, _ = value(problem, row["direction"], row["count"], float(row["epsilon"]))
            error = abs(again / mp.mpf(row["delta"]) - 1)
            print(name, row["direction"], row["count"], mp.nstr(error, 3))
            assert error < LARGEST_ERROR, row


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--make", nargs="*", metavar="NAME")
    parser.add_argument("--laws", action="store_true", help="takes the atoms of claims from the accountant again")
    parser.add_argument("--check", action="store_true")
    chosen = parser.parse_args()
    if chosen.laws:
        data = json.loads(PATH.read_text()) if PATH.exists() else {"about": "", "rows": []}
        PATH.write_text(_text({**data, "laws": claims()}))
    if chosen.make is not None:
        make(chosen.make)
    if chosen.check:
        check()
