"""Membership attacks: the best test's advantage, and its rates at a prior."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from dpjax import _validate, accounting, composition
from dpjax.mechanisms import Adjacency, Mechanism
from dpjax.pairs import REVERSE
from dpjax.representations._question import is_traced, required

_STEPS = np.array([-3.0, -2.0, -1.0, 1.0, 2.0, 3.0])
_WEIGHTS = np.array([-1.0, 9.0, -45.0, 45.0, -9.0, 1.0]) / 60  # of the first derivative


class AttackRates(NamedTuple):
    """The best membership test at a prior; arrays of one shape.

    Attributes:
      accuracy: the largest probability of a right answer of any test, from above.
      true_positive_rate: of the best test; no test with this false-positive rate has a larger one.
      false_positive_rate: of the best test, an estimate.
      positive_predictive_value: of a test with these two rates.
    """

    accuracy: Any
    true_positive_rate: Any
    false_positive_rate: Any
    positive_predictive_value: Any


def advantage(mechanism: Mechanism, *, adjacency: Adjacency = Adjacency.ADD_OR_REMOVE_ONE) -> Any:
    """The membership advantage: the largest true-positive minus false-positive rate of any test, from above.

    It is the total variation distance, delta at epsilon 0, and the same in both directions of a pair.

    Args:
      mechanism: a record, of any batch shape.
      adjacency: which datasets are neighbours.

    Returns:
      A number in [0, 1], in the mechanism's batch shape.

    Guarantee:
      That of ``delta``: an upper bound.

    Raises:
      NotImplementedError: no analysis is known for the mechanism under ``adjacency``.

    Example:
      >>> import dpjax
      >>> print(f"{dpjax.advantage(dpjax.Gaussian(1.0)):.10f}")
      0.3829249225
    """
    return accounting.delta(mechanism, 0.0, adjacency=adjacency)


def attack_rates(mechanism: Mechanism, *, prior: ArrayLike, adjacency: Adjacency = Adjacency.REMOVE) -> AttackRates:
    """What the best membership test achieves that knows everything but one record.

    The record is a member with probability ``prior``; the test says member where the loss is above
    tau = log((1 - prior) / prior), which is Bayes-optimal.

    Args:
      mechanism: a record, of any batch shape.
      prior: in (0, 1); broadcasts against the mechanism's batch shape.
      adjacency: ``REMOVE`` compares the outputs with the record (positives) and without it. ``ADD``: positives are those
        without. Of two directions, the worse for the prior.

    Returns:
      ``AttackRates``, with a false-positive rate from a difference quotient of delta.

    Guarantee:
      accuracy = 1 - prior + prior delta(tau) is an upper bound for every test, as delta is. The two rates lie on the
      line TPR = delta(tau) + exp(tau) FPR, above which no test lies (Dong, Roth, Su, arXiv 1905.02383, Proposition
      2.12), whatever the error of the false-positive rate, typically 1e-7 of it.

    Raises:
      ValueError: a concrete argument is out of range. A traced one gives NaN.

    Example:
      >>> import dpjax
      >>> rates = dpjax.attack_rates(dpjax.Gaussian(1.0), prior=0.5)
      >>> print(f"{rates.accuracy:.6f} {rates.true_positive_rate:.6f} {rates.false_positive_rate:.6f}")
      0.691462 0.691462 0.308538
    """
    mechanism = required(mechanism, adjacency)
    prior = _validate.number("prior", prior)
    _validate.in_range("prior", prior, 0.0, 1.0, low_open=True, high_open=True)
    traced = is_traced(mechanism, prior)
    xp = jnp if traced else np
    shape = np.broadcast_shapes(composition.batch_shape(mechanism), np.shape(prior))
    prior = xp.broadcast_to(xp.asarray(prior), shape)
    valid = (prior > 0) & (prior < 1)
    prior = xp.where(valid, prior, 0.5)
    unit = float(np.finfo(prior.dtype).eps)
    tau = xp.log1p(-prior) - xp.log(prior)
    delta = accounting.delta(mechanism, tau, adjacency=adjacency)
    # delta's error by that of tau, whose slope in tau is at most exp(tau)
    accuracy = xp.minimum(
        (1 - prior + prior * delta) * (1 + 16 * unit * (1 + abs(lax.stop_gradient(tau) if traced else tau))), 1.0
    )
    fpr = _false_positives(mechanism, tau, adjacency, xp)
    tpr = xp.minimum(delta + xp.exp(tau) * fpr, 1.0)
    called = prior * tpr + (1 - prior) * fpr
    some = called > 0
    ppv = xp.where(some, prior * tpr / xp.where(some, called, 1.0), 1.0)
    found = (xp.where(valid, x, xp.nan) for x in (accuracy, tpr, fpr, ppv))
    return AttackRates(*(x if traced else np.asarray(x)[()] for x in found))


def _false_positives(mechanism: Mechanism, tau: Any, adjacency: Adjacency, xp: Any) -> Any:
    """Q(L > tau) = -exp(-tau) d delta / d tau, by a central difference on the side where delta is small."""
    swapped = REVERSE[adjacency]
    step = 1e-2 if tau.dtype == np.float64 else 0.1
    # a scale of the loss: the total variation is about 0.4 of its standard deviation while that is small
    scale = accounting.delta(mechanism, xp.zeros_like(tau), adjacency=adjacency, rtol=1e-6)
    h = step * xp.maximum(2.5 * scale, 1e-12)
    steps = _STEPS.reshape((-1,) + (1,) * tau.ndim).astype(tau.dtype)
    weights = _WEIGHTS.reshape(steps.shape).astype(tau.dtype)
    low = abs(tau)
    forward = tau >= 0
    e = low + h * steps
    values = accounting.delta(mechanism, e, adjacency=adjacency)
    if swapped is not adjacency:
        values = xp.where(forward, values, accounting.delta(mechanism, e, adjacency=swapped))
    slope = xp.sum(weights * values, 0) / h  # of the profile of the pair, or of the swapped pair, at |tau|
    above = -xp.exp(-low) * slope
    at = accounting.delta(mechanism, low, adjacency=swapped)
    # tau < 0: Q(L > tau) = 1 - Q(L' >= |tau|), L' the swapped pair's loss: 1 - delta' + slope'
    return xp.clip(xp.where(forward, above, 1 - at + slope), 0.0, 1.0)
