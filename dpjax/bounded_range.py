"""Composition of bounded-range mechanisms, such as the exponential mechanism (Dong, Durfee & Rogers, arXiv 1909.13830).

A mechanism is eps-bounded-range (eps-BR) if for neighbouring datasets the ratio of the probabilities of an outcome
varies by at most e^eps between outcomes. It is then eps-DP, but composes almost like eps/2-DP. For each pair of
neighbours its worst case is a pair RR_{eps,t} with some t in [0, eps] that nobody knows: composition takes a supremum.

If all mechanisms and datasets are fixed beforehand every t is, too. In use they are not: the next score function, and
so the next t, depends on earlier outcomes. The default here is therefore the adaptive optimum, bracketed on both sides.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from dpjax import _range_bounds as closed
from dpjax import _range_fixed as fixed
from dpjax import _range_inputs as inputs
from dpjax import _range_optimum as optimum
from dpjax import _range_walk as walk
from dpjax import _validate, pure_dp
from dpjax._range_inputs import Bounds
from dpjax._range_recursion import Grid

__all__ = [
    "AdaptivityCost",
    "Bounds",
    "ExponentialParameters",
    "WorstPair",
    "adaptivity_cost",
    "delta",
    "delta_bounds",
    "delta_with",
    "dr19_bound",
    "epsilon",
    "epsilon_bounds",
    "exponential_mechanism",
    "fixed_delta",
    "fixed_delta_bounds",
    "kl_bound",
    "log_delta",
    "log_delta_bounds",
    "mgf_bound",
    "privacy_profile",
    "quality_range",
    "quality_range_bound",
    "smaller_delta",
    "worst_pair",
]


class WorstPair(NamedTuple):
    """The pair RR_{eps,t}, two outcomes on the last axis.

    Attributes:
      losses: log P/Q of the outcomes, t and t - epsilon.
      p, q: their probabilities on the two datasets.
    """

    losses: Any
    p: Any
    q: Any


def worst_pair(epsilon: ArrayLike, t: ArrayLike) -> WorstPair:
    """Generalised randomised response: among eps-BR mechanisms whose losses lie in [t - eps, t], the worst one.

    Args:
      epsilon: the range, > 0.
      t: the largest loss, in [0, epsilon]. epsilon / 2 is randomised response with epsilon / 2.

    Returns:
      Losses and both distributions; the shape is the broadcast of the arguments with an axis of 2 appended.

    Guarantee:
      The hockey-stick divergence of every mechanism with these losses is at most the pair's, at every order
      (Definition 2.4 and Lemma 2.2 of arXiv 1909.13830).

    Raises:
      ValueError: a concrete argument is out of range. Traced ones out of range give NaN.

    Example:
      >>> print(worst_pair(1.0, 0.5).p.round(6))
      [0.622459 0.377541]
    """
    epsilon, t = inputs.plain("epsilon", epsilon), inputs.plain("t", t)
    _validate.in_range("epsilon", epsilon, 0.0, np.inf, low_open=True, high_open=True)
    _validate.in_range("t", t, 0.0)
    traced = _validate.is_traced(epsilon) or _validate.is_traced(t)
    if not traced and np.any(np.asarray(t) > np.asarray(epsilon)):
        raise ValueError(f"t = {t!r}, but it must be a number in [0, epsilon], epsilon = {epsilon!r}.")
    xp: Any = jnp if traced else np
    epsilon, t = xp.broadcast_arrays(xp.asarray(epsilon), xp.asarray(t))
    if traced:
        t = t * jnp.where((epsilon > 0) & (t >= 0) & (t <= epsilon), 1.0, jnp.nan).astype(t.dtype)
    scale = -xp.expm1(-epsilon)
    up, down = -xp.expm1(t - epsilon) / scale, -xp.expm1(-t) * xp.exp(t - epsilon) / scale
    losses = xp.stack([t, t - epsilon], axis=-1)
    return WorstPair(losses, xp.stack([up, down], axis=-1), xp.stack([xp.exp(-t) * up, -xp.expm1(-t) / scale], axis=-1))


def quality_range(scores: Any, neighbour_scores: Any) -> Any:
    """The range of a quality score over the pairs of neighbours given.

    max over pairs of [max_y - min_y] of u(x, y) - u(x', y). It is at most twice the sensitivity, and at most the
    sensitivity if the score is monotone; often it is less, and the exponential mechanism may then use less noise.

    Args:
      scores: u(x, y), outcomes y on the last axis, pairs of neighbours before it.
      neighbour_scores: u(x', y) for the neighbours, of the same shape.

    Returns:
      The range over everything given. It bounds the mechanism only if the pairs are all the pairs there are.

    Raises:
      ValueError: the shapes differ, or a concrete score is not a number.

    Example:
      A score of sensitivity 1 that is not monotone, with range 0.5 and not 2: between neighbours all outcomes
      move up, by 0.5 to 1, or down, by at most 0.5.

      >>> print(quality_range([[0.0, 0.0], [0.0, 0.0]], [[1.0, 0.5], [-0.5, 0.0]]))
      0.5
    """
    scores, neighbour_scores = inputs.plain("scores", scores), inputs.plain("neighbour_scores", neighbour_scores)
    if np.shape(scores) != np.shape(neighbour_scores) or not np.shape(scores):
        raise ValueError(
            f"neighbour_scores has shape {np.shape(neighbour_scores)}, but it must have the shape of scores, {np.shape(scores)}, with the outcomes last."
        )
    _validate.in_range("scores", scores)
    _validate.in_range("neighbour_scores", neighbour_scores)
    difference = scores - neighbour_scores
    return (difference.max(axis=-1) - difference.min(axis=-1)).max()


def quality_range_bound(sensitivity: ArrayLike, *, monotone: bool = False) -> Any:
    """What the sensitivity says about the range: twice the sensitivity, or the sensitivity if the score is monotone.

    Args:
      sensitivity: max over neighbours and outcomes of abs(u(x, y) - u(x', y)); >= 0.
      monotone: whether adding a record never lowers (or never raises) any outcome's score.

    Raises:
      ValueError: a concrete sensitivity is out of range.

    Example:
      >>> quality_range_bound(1.0), quality_range_bound(1.0, monotone=True)
      (2.0, 1.0)
    """
    sensitivity = inputs.plain("sensitivity", sensitivity)
    _validate.in_range("sensitivity", sensitivity, 0.0)
    return sensitivity * (1.0 if monotone else 2.0)


class ExponentialParameters(NamedTuple):
    """What an exponential mechanism guarantees.

    Attributes:
      range_epsilon: it is range_epsilon-bounded-range.
      dp_epsilon: it is dp_epsilon-DP, range_epsilon / 2 <= dp_epsilon <= range_epsilon.
      rho: it is rho-zCDP, rho = range_epsilon^2 / 8.
    """

    range_epsilon: Any
    dp_epsilon: Any
    rho: Any


def exponential_mechanism(
    quality_range: ArrayLike, scale: ArrayLike, *, sensitivity: ArrayLike | None = None
) -> ExponentialParameters:
    """The parameters of the mechanism that outputs y with probability proportional to exp(scale * u(x, y)).

    With the range known, ``scale = epsilon / quality_range`` makes it epsilon-BR and epsilon-DP. The usual calibration
    by sensitivity, ``scale = epsilon / (2 * sensitivity)``, is the same when the range is twice the sensitivity.

    Args:
      quality_range: see :func:`quality_range`; >= 0.
      scale: >= 0.
      sensitivity: of the score, if known; it can only improve the range, by range <= 2 sensitivity.

    Returns:
      Its bounded-range, pure-DP and zCDP parameters.

    Raises:
      ValueError: a concrete argument is out of range.

    Example:
      >>> exponential_mechanism(1.0, 0.5)
      ExponentialParameters(range_epsilon=0.5, dp_epsilon=0.5, rho=0.03125)
    """
    quality_range, scale = inputs.plain("quality_range", quality_range), inputs.plain("scale", scale)
    _validate.in_range("quality_range", quality_range, 0.0)
    _validate.in_range("scale", scale, 0.0)
    spread = quality_range
    if sensitivity is not None:
        sensitivity = inputs.plain("sensitivity", sensitivity)
        _validate.in_range("sensitivity", sensitivity, 0.0)
        traced = any(_validate.is_traced(v) for v in (quality_range, sensitivity))
        spread = jnp.minimum(spread, 2 * sensitivity) if traced else np.minimum(spread, 2 * np.asarray(sensitivity))[()]
    range_epsilon = scale * spread
    return ExponentialParameters(range_epsilon, range_epsilon, range_epsilon**2 / 8)


def _check(query_name, query, epsilons, count, rtol, probability):
    (inputs.check_probability if probability else inputs.check_real)(query_name, query)
    inputs.check_mechanisms(epsilons, count, rtol)


def _settings(size, rtol, adaptive, cells, log):
    """(method, kernels' static argument, whether the binomial optimum is meant)."""
    if size.equal and not adaptive:
        return "binomial optimum", fixed.Binomial(size.steps, fixed.terms_for(size.steps), size.steps, log), True
    cells = optimum.cells_for(size.steps, rtol) if cells is None else cells
    setting = optimum.Setting(Grid(size.steps, cells, size.equal), log)
    if adaptive:
        return "adaptive recursion", setting, False
    steps = walk.Walk(Grid(size.steps, walk.cells_for(size.steps, 1e-4), False))
    return "adaptive recursion above, best t found below", optimum.Fixed(steps, setting), False


def _query(query, query_name, epsilons, count, adaptive, rtol, cells, *, inverse=False, log=False):
    if cells is not None and (
        _validate.is_traced(cells) or isinstance(cells, bool) or int(cells) != cells or cells < 2
    ):
        raise ValueError(f"cells = {cells!r}, but it must be a concrete whole number >= 2.")
    size = inputs.mechanisms(epsilons, count)
    lanes = inputs.Lanes(query, query_name, epsilons, count, size)
    method, setting, binomial = _settings(size, rtol, adaptive, None if cells is None else int(cells), log)
    args = [lanes.query, lanes.epsilons, lanes.counts]
    if binomial:
        args.append(np.zeros(lanes.counts.shape))
    if inverse:
        kernel = (
            fixed.optimum_epsilon_kernel
            if binomial
            else optimum.epsilon_kernel
            if adaptive
            else optimum.fixed_epsilon_kernel
        )
    else:
        kernel = fixed.optimum_kernel if binomial else optimum.delta_kernel if adaptive else optimum.fixed_delta_kernel
    found = inputs.run(kernel, setting, *args)
    known = lanes.query <= 0 if inverse else ~jnp.isnan(lanes.query)
    return lanes.finish(*found, method, known, (lanes.epsilons >= 0) & (lanes.epsilons < jnp.inf))


def delta_bounds(
    epsilon_global: ArrayLike,
    epsilons: Any,
    *,
    count: Any = 1,
    adaptive: bool = True,
    rtol: float = 0.01,
    cells: int | None = None,
) -> Bounds:
    """Both ends of :func:`delta`, which has the arguments.

    Example:
      >>> b = delta_bounds(1.25, 0.5, count=10)
      >>> print(f"{b.lower:.5f} {b.upper:.5f}")
      0.03770 0.03770
    """
    _check("epsilon_global", epsilon_global, epsilons, count, rtol, False)
    return _query(epsilon_global, "epsilon_global", epsilons, count, adaptive, rtol, cells)


def delta(
    epsilon_global: ArrayLike,
    epsilons: Any,
    *,
    count: Any = 1,
    adaptive: bool = True,
    rtol: float = 0.01,
    cells: int | None = None,
) -> Any:
    """The least delta for which the composition of bounded-range mechanisms is (epsilon_global, delta)-DP.

    Args:
      epsilon_global: any real number, or an array.
      epsilons: the range parameters of the mechanisms, >= 0: a number, or a sequence along the last axis in the order
        in which the mechanisms are run.
      count: how often the mechanism, or the whole sequence, is run: a concrete whole number >= 0, for a single
        mechanism also an array of them.
      adaptive: with False, the answer holds only if all mechanisms and all datasets were fixed beforehand, so that no
        mechanism depends on what an earlier one put out. That is not how exponential mechanisms are mostly used.
      rtol: relative width of the bracket that is aimed at, down to a delta of about 1e-7; :func:`delta_bounds`
        reports the width reached. Concrete.
      cells: grid cells per (largest) epsilon, instead of what follows from rtol. The width falls as 1 / cells^2.

    Returns:
      The certified upper end, rounding included, in the broadcast shape of the arguments' leading axes.

    Guarantee:
      Never below the optimum: with adaptive=True the recursion over the threshold that remains (section 6 of
      arXiv 1909.13830), bounded above through its convexity; with adaptive=False and equal mechanisms Theorem 3, exact
      up to rounding; with adaptive=False and different ones (Theorem 2) the adaptive upper end, the best t found below.

    Raises:
      ValueError: a concrete argument is out of range, or ``count`` is traced. Traced ones out of range give NaN.

    Example:
      >>> print(f"{delta(1.25, 0.5, count=10):.4f} {delta(1.25, 0.5, count=10, adaptive=False):.4f}")
      0.0377 0.0366
    """
    return delta_bounds(epsilon_global, epsilons, count=count, adaptive=adaptive, rtol=rtol, cells=cells).upper


def log_delta_bounds(
    epsilon_global: ArrayLike,
    epsilons: Any,
    *,
    count: Any = 1,
    adaptive: bool = True,
    rtol: float = 0.01,
    cells: int | None = None,
) -> Bounds:
    """Both ends of :func:`log_delta`, which has the arguments of :func:`delta`."""
    _check("epsilon_global", epsilon_global, epsilons, count, rtol, False)
    return _query(epsilon_global, "epsilon_global", epsilons, count, adaptive, rtol, cells, log=True)


def log_delta(
    epsilon_global: ArrayLike,
    epsilons: Any,
    *,
    count: Any = 1,
    adaptive: bool = True,
    rtol: float = 0.01,
    cells: int | None = None,
) -> Any:
    """The logarithm of :func:`delta`, finite where delta underflows.

    Args, Guarantee and Raises: as for :func:`delta`.

    Example:
      >>> print(f"{log_delta(9.0, 0.1, count=100):.2f}")
      -231.37
    """
    return log_delta_bounds(epsilon_global, epsilons, count=count, adaptive=adaptive, rtol=rtol, cells=cells).upper


def _log_of(name, delta, log_delta):
    if (delta is None) == (log_delta is None):
        raise ValueError(f"{name} and log_{name}: exactly one of them must be given.")
    if log_delta is not None:
        value = inputs.plain(f"log_{name}", log_delta)
        _validate.in_range(f"log_{name}", value, -np.inf, 0.0)
        return value
    value = inputs.plain(name, delta)
    _validate.in_range(name, value, 0.0, 1.0)
    if _validate.is_traced(value):
        return jnp.log(value)  # NaN below 0, positive above 1: both out of the domain
    with np.errstate(divide="ignore"):
        return np.log(value)


def epsilon_bounds(
    delta: ArrayLike | None = None,
    epsilons: Any = None,
    *,
    log_delta: ArrayLike | None = None,
    count: Any = 1,
    adaptive: bool = True,
    rtol: float = 0.01,
    cells: int | None = None,
) -> Bounds:
    """Both ends of :func:`epsilon`, which has the arguments."""
    inputs.check_mechanisms(epsilons, count, rtol)
    query = _log_of("delta", delta, log_delta)
    return _query(query, "log_delta", epsilons, count, adaptive, rtol, cells, inverse=True)


def epsilon(
    delta: ArrayLike | None = None,
    epsilons: Any = None,
    *,
    log_delta: ArrayLike | None = None,
    count: Any = 1,
    adaptive: bool = True,
    rtol: float = 0.01,
    cells: int | None = None,
) -> Any:
    """The least epsilon >= 0 for which the composition of bounded-range mechanisms is (epsilon, delta)-DP.

    Args:
      delta: in [0, 1], a number or an array; or ``log_delta``, <= 0, instead of it.
      epsilons, count, adaptive, rtol, cells: as in :func:`delta`; rtol is that of delta.

    Returns:
      The certified upper end. delta = 0 gives the sum of the epsilons.

    Guarantee:
      As for :func:`delta`, of which it is the inverse.

    Raises:
      ValueError: a concrete argument is out of range, or ``count`` is traced. Traced ones out of range give NaN.

    Example:
      >>> print(f"{epsilon(1e-6, 0.1, count=100):.2f} {epsilon(1e-6, 0.1, count=100, adaptive=False):.4f}")
      2.25 2.2460
    """
    return epsilon_bounds(
        delta, epsilons, log_delta=log_delta, count=count, adaptive=adaptive, rtol=rtol, cells=cells
    ).upper


class AdaptivityCost(NamedTuple):
    """How much an adversary gains by choosing each t after seeing the earlier outcomes.

    Attributes:
      lower, upper: ends of adaptive delta minus non-adaptive delta; the cost is proven positive where lower > 0.
      adaptive, fixed: the brackets of the two optima.
    """

    lower: Any
    upper: Any
    adaptive: Bounds
    fixed: Bounds


def adaptivity_cost(
    epsilon_global: ArrayLike, epsilons: Any, *, count: Any = 1, rtol: float = 0.01, cells: int | None = None
) -> AdaptivityCost:
    """The cost of adaptivity in delta, bracketed.

    It is zero for epsilon_global >= (k - 1 - 1/k) epsilon, where one lost step can no longer be made up for, and positive
    for smaller epsilon_global except at isolated points (seen numerically for k = 2 .. 5).

    Args:
      epsilon_global, epsilons, count, rtol, cells: as in :func:`delta`.

    Returns:
      Both ends of the gap, and both brackets.

    Guarantee:
      lower <= gap <= upper, from the certified ends of both optima.

    Raises:
      ValueError: as :func:`delta`.

    Example:
      >>> cost = adaptivity_cost(1.25, 0.5, count=10)
      >>> print(f"{cost.lower:.4f} {cost.upper:.4f}")
      0.0011 0.0011
    """
    options = {"count": count, "rtol": rtol, "cells": cells}
    moving = delta_bounds(epsilon_global, epsilons, **options)
    held = delta_bounds(epsilon_global, epsilons, adaptive=False, **options)
    gap = moving.lower - held.upper
    return AdaptivityCost(gap * (gap > 0), moving.upper - held.lower, moving, held)


def fixed_delta_bounds(
    epsilon_global: ArrayLike, epsilons: Any, t: Any, *, count: Any = 1, rtol: float = 1e-4
) -> Bounds:
    """Both ends of :func:`fixed_delta`, which has the arguments."""
    _check("epsilon_global", epsilon_global, epsilons, count, rtol, False)
    t = inputs.plain("t", t)
    _validate.in_range("t", t, 0.0)
    values = inputs.plain("epsilons", epsilons)
    if not _validate.is_traced(t) and not _validate.is_traced(values) and np.any(np.asarray(t) > np.asarray(values)):
        raise ValueError(f"t = {t!r}, but it must be a number in [0, epsilons], epsilons = {epsilons!r}.")
    size = inputs.mechanisms(epsilons, count)
    length = inputs.sequence_length(t, "t")
    if not size.equal or length > 1:
        size = inputs.stretched(size, max(size.length, length))
    lanes = inputs.Lanes(epsilon_global, "epsilon_global", epsilons, count, size, extra=t)
    if size.equal:
        setting: Any = fixed.Binomial(size.steps, fixed.terms_for(size.steps))
        args = (lanes.query, lanes.epsilons, lanes.extra, lanes.counts)
        kernel = fixed.fixed_kernel
    else:
        setting = walk.Walk(Grid(size.steps, walk.cells_for(size.steps, rtol), False))
        args = (lanes.query, lanes.epsilons, lanes.extra)
        kernel = optimum.walk_kernel
    found = inputs.run(kernel, setting, *args)
    usable = (lanes.epsilons >= 0) & (lanes.epsilons < jnp.inf), (lanes.extra >= 0) & (lanes.extra <= lanes.epsilons)
    return lanes.finish(*found, "binomial sum" if size.equal else "walk", ~jnp.isnan(lanes.query), *usable)


def fixed_delta(epsilon_global: ArrayLike, epsilons: Any, t: Any, *, count: Any = 1, rtol: float = 1e-4) -> Any:
    """delta of the pairs RR_{eps,t} with the given t, composed: no supremum.

    Args:
      epsilon_global, epsilons, count: as in :func:`delta`.
      t: in [0, epsilons], a number or a sequence along the last axis.
      rtol: as in :func:`dpjax.pure_dp.optimal_delta`.

    Returns:
      The certified upper end of that pair's delta. Only the largest over all t says something about a mechanism.

    Guarantee:
      At least the hockey-stick divergence of the product of the pairs (Theorem 2 of arXiv 1909.13830 before its supremum).

    Raises:
      ValueError: a concrete argument is out of range. Traced ones out of range give NaN.

    Example:
      >>> print(f"{fixed_delta(0.6, [0.3, 0.8, 1.1], [0.1, 0.5, 0.9]):.9f}")
      0.079996313
    """
    return fixed_delta_bounds(epsilon_global, epsilons, t, count=count, rtol=rtol).upper


def privacy_profile(epsilons: Any, points: ArrayLike, *, count: Any = 1, rtol: float = 0.01) -> tuple[Any, Any]:
    """The adaptive optimum as a privacy profile: certified deltas at the points.

    The profile of adaptively composed bounded-range mechanisms may be composed, as one dominating pair, with any other
    mechanisms, in whatever order they are interleaved: run after all the others, the adversary knows most.

    Args:
      epsilons, count, rtol: as in :func:`delta`.
      points: global epsilons, on an axis of their own.

    Returns:
      (points, deltas), as ``dpjax.PrivacyProfile`` takes them.

    Guarantee:
      Every delta is at least that of every adaptive composition of the mechanisms.

    Raises:
      ValueError: as :func:`delta`.

    Example:
      >>> print(privacy_profile(0.5, [0.0, 2.0], count=10)[1].round(3))
      [0.316 0.004]
    """
    return points, delta(points, epsilons, count=count, rtol=rtol)


def delta_with(
    epsilon_global: ArrayLike,
    epsilons: Any,
    losses: ArrayLike,
    probabilities: ArrayLike,
    *,
    t: Any = None,
    count: Any = 1,
    rtol: float = 0.01,
) -> Any:
    """Bounded-range mechanisms composed with another mechanism that has finitely many privacy losses.

    Args:
      epsilon_global: a number.
      epsilons, count, rtol: as in :func:`delta`.
      losses: the other mechanism's (or composition's) losses log P/Q, one axis; +inf is allowed.
      probabilities: their probabilities under P; what is missing from 1 is probability of loss +inf.
      t: None for the supremum over adaptively chosen t; a number for the fixed pairs RR_{eps,t}.

    Returns:
      The certified upper end: E[h(epsilon_global - L)] with h the delta of the bounded-range mechanisms.

    Guarantee:
      With t=None, at least the delta of every interleaving of the mechanisms, chosen adaptively; for pairs fixed
      beforehand, at least that of the product.

    Raises:
      ValueError: a concrete argument is out of range, or the probabilities sum to more than 1.

    Example:
      >>> gaussian_like = [-0.5, 0.5], [0.3775406687981454, 0.6224593312018546]
      >>> print(f"{delta_with(1.0, 0.5, *gaussian_like, count=5):.4f}")
      0.0506
    """
    losses, probabilities = inputs.plain("losses", losses), inputs.plain("probabilities", probabilities)
    _validate.in_range("losses", losses)
    _validate.in_range("probabilities", probabilities, 0.0, 1.0)
    if np.ndim(losses) != 1 or np.shape(losses) != np.shape(probabilities):
        raise ValueError(
            f"probabilities has shape {np.shape(probabilities)}, but losses and probabilities must be one axis of equal length; losses has {np.shape(losses)}."
        )
    if not _validate.is_traced(probabilities) and float(np.sum(probabilities)) > 1 + 1e-12 * len(probabilities):
        raise ValueError(f"probabilities sum to {float(np.sum(probabilities))!r}, but they must sum to at most 1.")
    traced = any(_validate.is_traced(a) for a in (epsilon_global, losses, probabilities, *jax.tree.leaves(epsilons)))
    xp: Any = jnp if traced else np
    finite = xp.isfinite(losses)
    thresholds = inputs.plain("epsilon_global", epsilon_global) - xp.where(finite, losses, 0.0)
    if t is None:
        parts = delta(thresholds, epsilons, count=count, rtol=rtol)
    else:
        parts = fixed_delta(thresholds, epsilons, t, count=count)
    lost = 1.0 - xp.sum(xp.where(finite | (losses < 0), probabilities, 0.0))
    total = xp.sum(xp.where(finite, probabilities * parts, 0.0)) + xp.maximum(lost, 0.0)
    return xp.minimum(total * (1 + 1e-15 * len(probabilities)), 1.0)


def smaller_delta(
    epsilon_global: ArrayLike, range_epsilons: Any, dp_epsilons: Any, *, count: Any = 1, rtol: float = 0.01
) -> Any:
    """The smaller of two valid answers for mechanisms that are both range_epsilon-BR and dp_epsilon-DP.

    Every eps-BR mechanism is eps-DP, and every eps-DP mechanism is 2 eps-BR. For Laplace noise or randomised response,
    whose range is twice their epsilon, the pure-DP theorem is the one to use: it is smaller. For the exponential
    mechanism, dp_epsilon = range_epsilon, and the bounded-range theorem is smaller. In between neither always wins.

    Args:
      epsilon_global, count, rtol: as in :func:`delta`.
      range_epsilons, dp_epsilons: the two parameters of the mechanisms.

    Returns:
      The smaller of :func:`delta` and ``dpjax.pure_dp.optimal_delta``.

    Guarantee:
      Both hold for adaptive composition, hence so does the smaller one.

    Raises:
      ValueError: as those.

    Example:
      >>> print(f"{smaller_delta(1.0, 0.2, 0.1, count=50):.4f}")
      0.0383
    """
    ranged = delta(epsilon_global, range_epsilons, count=count, rtol=rtol)
    pure = pure_dp.optimal_delta(epsilon_global, dp_epsilons, count=count)
    traced = _validate.is_traced(ranged) or _validate.is_traced(pure)
    return jnp.minimum(ranged, pure) if traced else np.minimum(ranged, pure)


def _closed_form(kernel, static, delta, epsilons, count, log_delta):
    inputs.check_mechanisms(epsilons, count)
    query = _log_of("delta", delta, log_delta)
    size = inputs.mechanisms(epsilons, count)
    lanes = inputs.Lanes(query, "log_delta", epsilons, count, size)
    eps = lanes.epsilons[:, None] if size.equal else lanes.epsilons
    counts = lanes.counts if size.equal else np.ones(lanes.counts.shape)
    upper, _ = inputs.run(kernel, static, lanes.query, eps, counts, rounding=("up", "up"))
    return lanes.finish(
        upper, upper, upper, "", lanes.query <= 0, (lanes.epsilons >= 0) & (lanes.epsilons < jnp.inf)
    ).upper


def kl_bound(
    delta: ArrayLike | None = None, epsilons: Any = None, *, log_delta: ArrayLike | None = None, count: Any = 1
) -> Any:
    """An epsilon for adaptive composition from the largest mean loss and Hoeffding's inequality.

    sum_i [x_i - 1 - log x_i] + sqrt(log(1/delta) sum_i eps_i^2 / 2), x_i = eps_i / (e^eps_i - 1).

    Args:
      delta: in (0, 1], or ``log_delta`` instead.
      epsilons, count: as in :func:`epsilon`.

    Returns:
      The bound, rounded up; infinite for delta = 0.

    Guarantee:
      The composition is (bound, delta)-DP: Corollary 3.1 of arXiv 1909.13830.

    Raises:
      ValueError: a concrete argument is out of range. Traced ones out of range give NaN.

    Example:
      >>> print(f"{kl_bound(1e-6, 0.1, count=100):.4f}")
      2.7532
    """
    return _closed_form(closed.kl_kernel, None, delta, epsilons, count, log_delta)


def mgf_bound(
    delta: ArrayLike | None = None,
    epsilons: Any = None,
    *,
    log_delta: ArrayLike | None = None,
    count: Any = 1,
    sharp: bool = True,
) -> Any:
    """An epsilon for adaptive composition from the largest moment generating functions.

    inf over lam > 0 of [sum_i kappa_i(lam) + c(lam) + log(1/delta)] / lam with kappa_i(lam) = sup_t log E exp(lam L).

    Args:
      delta: in (0, 1], or ``log_delta`` instead.
      epsilons, count: as in :func:`epsilon`.
      sharp: c(lam) = lam log lam - (1 + lam) log(1 + lam) from the hockey-stick kernel; with False c = 0, which is
        Markov's inequality for the tail of the loss, the form of the paper.

    Returns:
      The bound, rounded up.

    Guarantee:
      The composition is (bound, delta)-DP: Theorem 5 of arXiv 1909.13830; the sharp form by E(1 - e^(x - L))_+ <=
      e^(c(lam) - lam x) E e^(lam L).

    Raises:
      ValueError: a concrete argument is out of range. Traced ones out of range give NaN.

    Example:
      >>> print(f"{mgf_bound(1e-6, 0.1, count=100):.4f} {mgf_bound(1e-6, 0.1, count=100, sharp=False):.4f}")
      2.4002 2.7286
    """
    return _closed_form(closed.mgf_kernel, bool(sharp), delta, epsilons, count, log_delta)


def dr19_bound(
    delta: ArrayLike | None = None, epsilons: Any = None, *, log_delta: ArrayLike | None = None, count: Any = 1
) -> Any:
    """The bound of Durfee & Rogers (2019): the least of basic, advanced, and bounded-range composition.

    min of sum eps, sum eps tanh(eps/2) + sqrt(2 log(1/delta) sum eps^2), sum eps^2 / 2 + sqrt(log(1/delta) sum eps^2 / 2).

    Args:
      delta: in (0, 1], or ``log_delta`` instead.
      epsilons, count: as in :func:`epsilon`.

    Returns:
      The bound, rounded up.

    Guarantee:
      The composition is (bound, delta)-DP: Durfee & Rogers, "Practical differentially private top-k selection with
      pay-what-you-get composition", 2019.

    Raises:
      ValueError: a concrete argument is out of range. Traced ones out of range give NaN.

    Example:
      >>> print(f"{dr19_bound(1e-6, 0.1, count=100):.4f}")
      3.1283
    """
    return _closed_form(closed.dr19_kernel, None, delta, epsilons, count, log_delta)
