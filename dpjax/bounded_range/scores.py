"""What makes a mechanism bounded-range: the worst pair, the range of a quality score, the exponential mechanism."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from dpjax import _validate
from dpjax._two_point import arguments


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
    size, top = arguments.plain("epsilon", epsilon), arguments.plain("t", t)
    _validate.in_range("epsilon", size, 0.0, np.inf, low_open=True, high_open=True)
    _validate.in_range("t", top, 0.0)
    traced = _validate.is_traced(size) or _validate.is_traced(top)
    if not traced and np.any(np.asarray(top) > np.asarray(size)):
        raise ValueError(f"t = {t!r}, but it must be a number in [0, epsilon], epsilon = {epsilon!r}.")
    xp: Any = jnp if traced else np
    size, top = xp.broadcast_arrays(xp.asarray(size), xp.asarray(top))
    if traced:
        # A product, so that every derivative is NaN too.
        top = top * jnp.where((size > 0) & (top >= 0) & (top <= size), 1.0, jnp.nan).astype(top.dtype)
    scale = -xp.expm1(-size)
    up, down = -xp.expm1(top - size) / scale, -xp.expm1(-top) * xp.exp(top - size) / scale
    p, q = xp.stack([up, down], axis=-1), xp.stack([xp.exp(-top) * up, -xp.expm1(-top) / scale], axis=-1)
    return WorstPair(xp.stack([top, top - size], axis=-1), p, q)


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
    scores, neighbour_scores = arguments.plain("scores", scores), arguments.plain("neighbour_scores", neighbour_scores)
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
    bound = arguments.plain("sensitivity", sensitivity)
    _validate.in_range("sensitivity", bound, 0.0)
    return _in_domain(bound) * (1.0 if monotone else 2.0)


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

    Guarantee:
      Section 2 of arXiv 1909.13830: the mechanism is scale * range-BR, hence as much DP; the zCDP parameter is that of
      Cesar & Rogers (2021).

    Raises:
      ValueError: a concrete argument is out of range.

    Example:
      >>> exponential_mechanism(1.0, 0.5)
      ExponentialParameters(range_epsilon=0.5, dp_epsilon=0.5, rho=0.03125)
    """
    spread, factor = arguments.plain("quality_range", quality_range), arguments.plain("scale", scale)
    _validate.in_range("quality_range", spread, 0.0)
    _validate.in_range("scale", factor, 0.0)
    if sensitivity is not None:
        most = quality_range_bound(sensitivity)
        traced = _validate.is_traced(spread) or _validate.is_traced(most)
        spread = jnp.minimum(spread, most) if traced else np.minimum(spread, most)[()]
    range_epsilon = _in_domain(factor, spread) * spread
    return ExponentialParameters(range_epsilon, range_epsilon, range_epsilon**2 / 8)


def _in_domain(x, *others):
    """x, or NaN in value and derivatives where a traced number is negative."""
    if not any(_validate.is_traced(a) for a in (x, *others)):
        return x
    ok = x >= 0
    for other in others:
        ok &= other >= 0
    return x * jnp.where(ok, 1.0, jnp.nan).astype(jnp.result_type(float))
