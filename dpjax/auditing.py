"""Audits: what an attack on a mechanism proves about its epsilon, whatever was claimed."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from dpjax import _precision, _validate, suspicion


def audit(
    true_positives: ArrayLike,
    false_positives: ArrayLike,
    *,
    positives: ArrayLike,
    negatives: ArrayLike,
    delta: ArrayLike = 0.0,
    confidence: ArrayLike = 0.95,
) -> Any:
    """A lower bound on the epsilon of a mechanism, from the guesses of a membership attack on independent runs.

    Each run is with or without the record, and the attack says which. The runs must be independent of each other and of
    how the attack was chosen: many canaries in one run are not, and need another analysis.

    Args:
      true_positives: runs with the record that the attack said it was in; whole, >= 0.
      false_positives: runs without it that the attack said it was in.
      positives: all runs with the record, >= 1.
      negatives: all runs without, >= 1.
      delta: in [0, 1): the delta of the claim that is audited.
      confidence: in (0, 1).

    Returns:
      Epsilon >= 0, in the broadcast shape of the arguments, NumPy float64; 0 where the attack proves nothing.

    Guarantee:
      With probability at least ``confidence`` over the runs, a mechanism that is (epsilon, delta)-DP for the two datasets
      has at least the epsilon returned. Clopper and Pearson's interval, of half the error probability for each rate, in
      TPR <= exp(epsilon) FPR + delta and the same for the rates of the other answer.

    Raises:
      ValueError: an argument is out of range. A traced argument is refused (TypeError): counts of an experiment are numbers.

    Example:
      >>> import dpjax
      >>> print(f"{dpjax.audit(480, 30, positives=500, negatives=500, delta=1e-5):.4f}")
      2.7069
    """
    names = ("true_positives", "false_positives", "positives", "negatives", "delta", "confidence")
    values = [true_positives, false_positives, positives, negatives, delta, confidence]
    for name, x in zip(names, values, strict=True):
        if _validate.is_traced(x):
            raise TypeError(f"{name} must be a number, not traced: an audit is of an experiment that is over.")
    numbers = [np.asarray(_validate.number(name, x)) for name, x in zip(names, values, strict=True)]
    for name, x, low in zip(names[:4], numbers[:4], (0, 0, 1, 1), strict=True):
        _validate.in_range(name, x, low, 2.0**53, integral=True)
    _validate.at_most("true_positives", numbers[0], "positives", numbers[2])
    _validate.at_most("false_positives", numbers[1], "negatives", numbers[3])
    _validate.in_range("delta", numbers[4], 0.0, 1.0, high_open=True)
    _validate.in_range("confidence", numbers[5], 0.0, 1.0, low_open=True, high_open=True)
    suspicion.question_confidence(confidence)
    shape = np.broadcast_shapes(*(x.shape for x in numbers))
    flat = [np.broadcast_to(x, shape).ravel() for x in numbers]
    return _precision.concrete(_epsilon, None, *flat).reshape(shape)[()]


def _epsilon(_: None, tp: Any, fp: Any, n1: Any, n0: Any, delta: Any, confidence: Any) -> jax.Array:
    error = (1 - confidence) / 2
    hit = _least_rate(tp, n1, error)
    false_alarm = 1 - _least_rate(n0 - fp, n0, error)
    miss, quiet = 1 - hit, 1 - false_alarm

    def ratio(a, b):
        some = (a > delta) & (b > 0)
        found = jnp.log(jnp.where(some, a - delta, 1.0) / jnp.where(some, b, 1.0))
        return jnp.where(some, found, jnp.where(a > delta, jnp.inf, 0.0))

    return jnp.maximum(jnp.maximum(ratio(hit, false_alarm), ratio(quiet, miss)), 0.0)


def _least_rate(successes: jax.Array, runs: jax.Array, error: jax.Array) -> jax.Array:
    """The lower end of Clopper and Pearson's one-sided interval: P(at least so many successes) = error there."""
    some = successes > 0
    a = jnp.where(some, successes, 1.0)
    b = runs - a + 1

    def halve(_, ends):
        low, high = ends
        middle = 0.5 * (low + high)
        below = jax.scipy.special.betainc(a, b, middle) <= error
        return jnp.where(below, middle, low), jnp.where(below, high, middle)

    # the lower end of the bracket is on the safe side; 80 halvings reach the rounding of betainc
    low, _ = jax.lax.fori_loop(0, 80, halve, (0.0 * a, 0.0 * a + 1.0))
    return jnp.where(some, low * (1 - 1e-9), 0.0)
