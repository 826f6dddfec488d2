"""Contours on which the steps of a whole range of noise and of numbers of steps are summed, chosen before any is run.

A contour is a tilt s, a spacing of its nodes and their number. Any contour gives a valid bound for any steps: the tilt decides
how far the terms cancel, the period 2 pi / spacing what aliases, and the last node what is cut off. So a few contours serve
a run from its first thousand steps to its last hundred thousand, whatever the noise was on the way. The choice is a covering:
runs at constant noise stand for the range, each contour that is possible serves some of them, and the fewest that serve all
are taken. Nothing here is certified; what a bad choice costs is a wide answer.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from dpjax.mechanisms import Adjacency
from dpjax.pairs import part_constants

_TOLERANCE = 1e-11  # relative, on delta
_CANCELLATION = 9.0  # log of how far terms may cancel: 32 ulp each
_SPARE = 4.0  # log of the known alias over delta, which is subtracted
_NODES = (16, 32, 64, 128, 256)
_PER_CONTOUR = 64  # nodes that cost as much as what else a contour costs
_MOST = 6  # contours
_FEW = 0.03  # of all runs, by weight: no contour for so few
_LOOSE = 0.1  # relative: what a tilt may lose of Chernoff's bound
_LEVELS = 5  # of noise
_EARLY = 0.01  # of the steps: what is planned for begins there
_TILTS = 2.0 ** (np.arange(-24, 64) / 4)
_PERIODS = 1.15 ** np.arange(-30, 60)
_TIMES = np.geomspace(0.02, 2e3, 100)


class Contours(NamedTuple):
    """Tilts and spacings (contours,), float32 numbers; the number of nodes of each; tilts of the bounds on tails."""

    tilt: np.ndarray
    spacing: np.ndarray
    beyond: np.ndarray
    nodes: int


class _Runs(NamedTuple):
    """What each tilt would need for each run; (runs, tilts)."""

    exponent: np.ndarray  # K(s) - s eps
    period: np.ndarray
    cutoff: np.ndarray
    usable: np.ndarray
    log_target: np.ndarray  # (runs,)
    epsilon: np.ndarray  # (runs,)
    weight: np.ndarray  # (runs,): later ones count more
    chernoff: np.ndarray  # Chernoff's bound of epsilon


@lru_cache(maxsize=64)
def contours(
    low: float, high: float, steps: int, q: float, deltas: tuple[float, ...], directions: tuple[Adjacency, ...]
) -> Contours:
    """Contours for noise multipliers from ``low`` to ``high``, up to ``steps`` steps and each of ``deltas``."""
    levels = 1 if low == high else min(_LEVELS, max(3, int(np.ceil(np.log(high / low) / np.log(1.3))) + 1))
    counts = np.unique(np.ceil(steps * np.geomspace(_EARLY, 1, 12)))
    parts = []
    for sigma in np.geomspace(low, high, levels):
        both = [_runs(sigma, q, direction, counts, np.asarray(deltas)) for direction in directions]
        largest = np.max([runs.epsilon for runs in both], 0)  # which is the answer
        parts += [_Runs(*(a[runs.epsilon >= 0.98 * largest] for a in runs)) for runs in both]
    runs = _Runs(*(np.concatenate(a) for a in zip(*parts, strict=True)))
    options = [_cover(_served(runs, nodes), runs.weight, _MOST, _FEW) for nodes in _NODES]
    reached = max(served for _, served in options)
    enough = [
        (len(picked) * (nodes + _PER_CONTOUR), picked, nodes)
        for (picked, served), nodes in zip(options, _NODES, strict=True)
        if served >= 0.98 * reached
    ]
    _, picked, nodes = min(enough, key=lambda option: option[0])
    places, periods = np.unravel_index(np.asarray(picked, int), (_TILTS.size, _PERIODS.size))
    order = np.argsort(places)
    places, periods = places[order], _PERIODS[periods[order]]
    beyond = {*_beyond(runs, places, periods, nodes), *_loose(runs, places)}
    if not picked:  # too few steps for any contour: one for the sake of form
        middle = np.nanargmin(runs.chernoff[np.argmax(runs.weight)])
        places, periods = np.asarray([middle]), 32 / _TILTS[[middle]]
    return Contours(
        _TILTS[places].astype(np.float32),
        (2 * np.pi / periods).astype(np.float32),
        _TILTS[sorted(beyond - {*places})].astype(np.float32),
        nodes,
    )


def _runs(sigma: float, q: float, direction: Adjacency, counts: np.ndarray, deltas: np.ndarray) -> _Runs:
    s, log_delta = _TILTS[:, None], np.repeat(np.log(deltas), counts.size)
    u = np.linspace(-10 - 1 / sigma, 10 + max(1 / sigma, np.sqrt(-2 * np.log(np.min(deltas)))), 1024)
    log_p, loss = -0.5 * u * u, np.zeros_like(u)
    for sign, alpha, beta in part_constants(direction):
        l = np.logaddexp(np.log1p(-q), np.log(q) + sign * u / sigma - 0.5 / sigma**2)
        log_p, loss = log_p + alpha * l, loss + beta * l
    log_w = log_p + s * loss
    top = np.max(log_w, 1, keepdims=True)
    w = np.exp(log_w - top)
    seen = np.maximum(w[:, 0], w[:, -1]) < 1e-9  # the noise is not moved out of sight
    total = np.sum(w, 1)
    value = top[:, 0] + np.log(total) - np.log(np.sum(np.exp(log_p)))
    w /= total[:, None]
    mean = w @ loss
    spread = w @ (loss * loss) - mean**2

    count = np.tile(counts, deltas.size)[:, None]
    weight = np.sqrt(count[:, 0] / np.max(counts))
    s = _TILTS
    with np.errstate(all="ignore"):
        k = np.where(seen, count * value, np.inf)
        eps_s = count * mean - 1 / s - 1 / (1 + s)
        curvature = count * spread + 1 / s**2 + 1 / (1 + s) ** 2
        log_s = k - s * eps_s - np.log(s * (1 + s)) - 0.5 * np.log(2 * np.pi * curvature)
        after = np.argmax(~(log_s >= log_delta[:, None]), 1)
        rows, before = np.arange(after.size), np.maximum(after - 1, 0)
        part = (log_delta - log_s[rows, before]) / (log_s[rows, after] - log_s[rows, before])
        part = np.clip(np.nan_to_num(part), 0, 1)
        eps = np.maximum(eps_s[rows, before] + part * (eps_s[rows, after] - eps_s[rows, before]), 0.0)[:, None]
        exponent = k - s * eps
        log_target = log_delta + np.log(_TOLERANCE)
        cancelled = exponent - 0.5 * np.log(4 * s * (1 + s)) - log_delta[:, None]
        down = (eps - log_target[:, None]) / (1 + s)
        known = (-_SPARE - log_delta[:, None]) / s
        gap = s[None, :] - s[:, None]
        tails = exponent + s * np.log(s) - (1 + s) * np.log1p(s) - log_target[:, None]
        rise = np.where(gap > 0, np.maximum(tails[:, None, :], 1.0) / gap, np.inf)
        chernoff = (k + s * np.log(s) - (1 + s) * np.log1p(s) - log_delta[:, None]) / s
        period = np.maximum(np.maximum(down, known), np.min(rise, 2))
        usable = np.isfinite(period) & (cancelled < _CANCELLATION)

        # the envelope falls like the modulus, without its oscillations, and a little slower
        phi = np.abs(np.exp(1j * _TIMES[:, None] * loss) @ w.T)
        resolved = _TIMES * (u[1] - u[0]) / sigma < 3  # the nodes of the sum; beyond it repeats itself
        phi = np.where(resolved[:, None], phi, 0.0)
        fall = 0.97 * np.log(np.maximum.accumulate(phi[::-1])[::-1] + 1e-300)
        cutoff = np.full(usable.shape, np.inf)
        for j in np.flatnonzero(np.any(usable, 0)):
            cut = count * fall[:, j] + exponent[:, j : j + 1] - np.log(np.pi * _TIMES) < log_target[:, None]
            cut &= resolved
            cutoff[:, j] = np.where(np.any(cut, 1), _TIMES[np.argmax(cut, 1)], np.inf)
    return _Runs(exponent, period, cutoff, usable, log_target, eps[:, 0], weight, chernoff)


def _served(runs: _Runs, nodes: int) -> np.ndarray:
    """Which runs each tilt and period would serve; (tilts x periods, runs)."""
    reach = (nodes - 1) * 2 * np.pi / _PERIODS[:, None, None]
    served = runs.usable & (runs.period <= _PERIODS[:, None, None]) & (runs.cutoff <= reach)  # (periods, runs, tilts)
    return served.transpose(2, 0, 1).reshape(-1, runs.weight.size)


def _cover(serves: np.ndarray, weight: np.ndarray, most: int, few: float) -> tuple[list[int], float]:
    """Positions that together serve the most, each the one that adds most, and how much is served; (options, items)."""
    left, picked = weight.copy(), []
    while len(picked) < most:
        gain = serves @ left
        best = int(np.argmax(gain))
        if gain[best] <= few * np.sum(weight):
            break
        picked.append(best)
        left = np.where(serves[best], 0.0, left)
    return picked, float(np.sum(weight - left))


def _loose(runs: _Runs, places: np.ndarray) -> list[int]:
    """Tilts with which, beside those at ``places``, Chernoff's bound is nearly the best one for every run."""
    best = np.min(runs.chernoff, 1, keepdims=True)
    enough = runs.chernoff <= best + _LOOSE * np.abs(best)
    left = enough[~np.any(enough[:, places], 1)]
    return _cover(left.T, np.ones(left.shape[0]), _MOST, 0.0)[0]


def _beyond(runs: _Runs, places: np.ndarray, periods: np.ndarray, nodes: int) -> list[int]:
    """The tilts, apart from the contours' own, with which Chernoff's bound of the aliases suffices for what is served."""
    tails = runs.exponent + _TILTS * np.log(_TILTS) - (1 + _TILTS) * np.log1p(_TILTS) - runs.log_target[:, None]
    items = []
    for place, period in zip(places, periods, strict=True):
        gap = _TILTS - _TILTS[place]
        enough = (gap > 0) & (tails <= gap * period)
        mine = runs.usable[:, place] & (runs.period[:, place] <= period)
        mine &= runs.cutoff[:, place] <= (nodes - 1) * 2 * np.pi / period
        items.append(enough[mine & ~np.any(enough[:, places], 1)])
    needed = np.concatenate([np.zeros((0, _TILTS.size), bool), *items])
    return _cover(needed.T, np.ones(needed.shape[0]), _TILTS.size, 0.0)[0]
