"""How far one record can move what a matrix factorisation releases: the sensitivity of its strategy.

A strategy C, (rows, steps), turns the sums G that the steps compute, one a row, into C G, to which Gaussian noise is added. A
record that takes part in the steps S moves C G by sum_(i in S) C[:, i] u_i', |u_i| <= 1. With X = C' C the square of the
Frobenius norm is sum_(i, j in S) X_ij u_i . u_j, at most sum |X_ij|, and as much where no X_ij < 0: all u_i the same. The
sensitivity is the largest root of that over all S which the participation allows (arXiv 2211.06530, 2306.08153).

Numbers are returned in float64, rounded up.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jax.typing import ArrayLike

from dpjax import _validate

_ULP = 2.0**-52


def sensitivity(strategy: ArrayLike, *, participations: int = 1, separation: int = 1) -> float:
    """Of any strategy, if a record takes part in at most ``participations`` steps, at least ``separation`` apart.

    Args:
      strategy: shape (rows, steps), finite; lower triangular for a mechanism that releases step by step.
      participations: >= 1.
      separation: the least difference of the numbers of two steps that a record takes part in, >= 1: in batches that are
        taken from the data in a fixed order, the steps of an epoch.

    Returns:
      The sensitivity, in units of the norm bound of one record.

    Raises:
      ValueError: an argument is out of range.

    Guarantee:
      An upper bound. It is exact for one participation (the largest norm of a column), and if columns at least
      ``separation`` apart are orthogonal, as those of a strategy with at most ``separation`` bands are. Else
      each participation is charged with the others that are worst for it, arXiv 2306.08153, Algorithm 4, here with
      those too near to it left out.

    Example:
      >>> from dpjax import participation
      >>> strategy = participation.toeplitz([1.0, 0.5, 0.25], 12)
      >>> print(f"{participation.sensitivity(strategy):.6f}")
      1.145644
      >>> print(f"{participation.sensitivity(strategy, participations=3, separation=4):.6f}")  # sqrt(3) as much
      1.984313
    """
    c = _matrix(strategy)
    _validate.whole("participations", participations, 1)
    _validate.whole("separation", separation, 1)
    n = c.shape[1]
    x = np.abs(c.T @ c)
    most = min(participations, -(-n // separation))
    own = np.diag(x).copy()
    if most > 1:
        near = np.abs(np.subtract.outer(np.arange(n), np.arange(n))) < separation
        own += _largest_sum(np.where(near, 0.0, x), separation, most - 1)
    return _root(float(_largest_sum(own, separation, most)), c, most)


def epoch_sensitivity(strategy: ArrayLike, epochs: int) -> float:
    """Of any strategy, if a record takes part once an epoch, always at the same place in it.

    Args:
      strategy: shape (rows, steps), finite.
      epochs: how many, >= 1; steps is a multiple of it.

    Returns:
      The sensitivity, in units of the norm bound of one record.

    Raises:
      ValueError: an argument is out of range.

    Guarantee:
      An upper bound, exact if no two columns that a record may take part in have a negative inner product.

    Example:
      >>> import numpy as np
      >>> from dpjax import participation
      >>> print(f"{participation.epoch_sensitivity(np.tri(4), epochs=2):.6f}")
      3.162278
    """
    c = _matrix(strategy)
    _validate.whole("epochs", epochs, 1)
    n = c.shape[1]
    if n % epochs:
        raise ValueError(f"epochs = {epochs!r}, but it must divide the number of steps, {n}.")
    places = c.T.reshape((epochs, n // epochs, -1)).transpose((1, 0, 2))  # (place, epoch, row)
    return _root(float(np.abs(places @ places.transpose((0, 2, 1))).sum((1, 2)).max()), c, epochs)


def toeplitz_sensitivity(coefficients: ArrayLike, steps: int, *, participations: int = 1, separation: int = 1) -> float:
    """Of a lower triangular Toeplitz strategy; in time proportional to steps if the coefficients fall.

    Args:
      coefficients: the first column; those that are not given are 0. Shape (bands,), finite.
      steps: number of steps, >= 1.
      participations, separation: as for ``sensitivity``.

    Returns:
      The sensitivity, in units of the norm bound of one record.

    Raises:
      ValueError: an argument is out of range.

    Guarantee:
      Exact if the coefficients do not rise and are not negative: the record takes part in the steps 1, 1 +
      separation, ... (arXiv 2405.13763, Theorem 2). Else as ``sensitivity``.

    Example:
      >>> import numpy as np
      >>> from dpjax import participation
      >>> root = np.cumprod([1.0, *(1 - 0.5 / np.arange(1, 1000))])       # the square root of the prefix sum
      >>> print(f"{participation.toeplitz_sensitivity(root, 1000, participations=4, separation=250):.6f}")
      4.384380
    """
    first = _column(coefficients, steps)
    _validate.whole("participations", participations, 1)
    _validate.whole("separation", separation, 1)
    if np.any(np.diff(first) > 0) or first[-1] < 0:
        return sensitivity(toeplitz(coefficients, steps), participations=participations, separation=separation)
    most = min(participations, -(-steps // separation))
    total = np.zeros(steps)
    for i in range(most):
        total[i * separation :] += first[: steps - i * separation]
    return _root(float(total @ total), first[:, None], most)


def toeplitz(coefficients: ArrayLike, steps: int) -> np.ndarray:
    """The lower triangular Toeplitz matrix with this first column, (steps, steps).

    Args:
      coefficients: those that are not given are 0. Shape (bands,), finite.
      steps: number of steps, >= 1.

    Returns:
      The matrix, float64.

    Raises:
      ValueError: an argument is out of range.

    Example:
      >>> from dpjax import participation
      >>> participation.toeplitz([1.0, 0.5], 3)
      array([[1. , 0. , 0. ],
             [0.5, 1. , 0. ],
             [0. , 0.5, 1. ]])
    """
    first = _column(coefficients, steps)
    lag = np.subtract.outer(np.arange(steps), np.arange(steps))
    return np.where(lag >= 0, first[np.maximum(lag, 0)], 0.0)


def tree(steps: int) -> np.ndarray:
    """The strategy of binary tree aggregation: a row for every node that is complete after ``steps`` steps.

    Args:
      steps: number of steps, >= 1.

    Returns:
      The matrix of zeros and ones, (nodes, steps), float64.

    Raises:
      ValueError: an argument is out of range.

    Example:
      >>> from dpjax import participation
      >>> participation.tree(3)
      array([[1., 0., 0.],
             [0., 1., 0.],
             [0., 0., 1.],
             [1., 1., 0.]])
    """
    _validate.whole("steps", steps, 1)
    rows = []
    for level in range(steps.bit_length()):
        width = 1 << level
        for start in range(0, steps - width + 1, width):
            row = np.zeros(steps)
            row[start : start + width] = 1.0
            rows.append(row)
    return np.stack(rows)


# --------------------------------------------------------------------------------------------------------------------


def _matrix(strategy: Any) -> np.ndarray:
    c = _validate.number("strategy", strategy)
    if _validate.is_traced(c):
        raise TypeError(
            "strategy is traced, but its sensitivity is worked out in NumPy: compute it outside of jit and grad."
        )
    if np.ndim(c) != 2 or 0 in c.shape:
        raise ValueError(f"strategy has the shape {np.shape(c)}, but it must be a matrix, (rows, steps).")
    _validate.in_range("strategy", c, -1e150, 1e150)
    return c


def _column(coefficients: Any, steps: int) -> np.ndarray:
    _validate.whole("steps", steps, 1)
    c = _validate.number("coefficients", coefficients)
    if _validate.is_traced(c):
        raise TypeError(
            "coefficients are traced, but the sensitivity is worked out in NumPy: compute it outside of jit."
        )
    if np.ndim(c) != 1 or len(c) == 0:
        raise ValueError(f"coefficients have the shape {np.shape(c)}, but they must be a list of one or more.")
    if len(c) > steps:
        raise ValueError(f"coefficients = {len(c)} numbers, but there must be at most steps = {steps} of them.")
    _validate.in_range("coefficients", c, -1e150, 1e150)
    return np.concatenate([c, np.zeros(steps - len(c))])


def _largest_sum(values: np.ndarray, separation: int, most: int) -> Any:
    """The largest sum of at most ``most`` entries along the last axis that are ``separation`` apart; none is negative."""
    n = values.shape[-1]
    best = np.zeros((*values.shape[:-1], n + separation))  # of the entries from i on
    for _ in range(most):
        best[..., :n] = values + best[..., separation:]
        best[..., :n] = np.maximum.accumulate(best[..., n - 1 :: -1], -1)[..., ::-1]
    return best[..., 0]


def _root(square: float, c: np.ndarray, most: int) -> float:
    """The root, above what rounding may have taken: of inner products, which may cancel, and of most * most of them."""
    products, sums = (c.shape[0] + 8) * _ULP, (most * most + 8) * _ULP
    lost = products * square if np.all(c >= 0) else products * most * most * float(np.max(np.sum(c * c, 0)))
    return float(np.sqrt(square * (1 + sums) + lost) * (1 + 4 * _ULP))
