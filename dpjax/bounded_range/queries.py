"""The queries: delta and epsilon of composed bounded-range mechanisms, adaptive or fixed beforehand, and the difference."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from dpjax import _validate, pure_dp
from dpjax._two_point import arguments, binomial, walk
from dpjax._two_point.arguments import Bounds
from dpjax._two_point.window import Grid
from dpjax.bounded_range import _fixed, _optimum


def _check_cells(cells):
    if cells is None:
        return
    if _validate.is_traced(cells):
        raise ValueError("cells is traced, but it must be concrete: it fixes the shape of the computation.")
    if isinstance(cells, bool):
        raise ValueError(f"cells = {cells!r}, but it must be a whole number >= 2.")
    _validate.in_range("cells", _validate.number("cells", cells), 2.0, integral=True)


def _kernel(size, rtol, adaptive, cells, log):
    """(kernel for delta, kernel for epsilon, their static setting, whether t is an argument)."""
    if size.equal and not adaptive:
        return binomial.optimum_kernel, binomial.optimum_epsilon_kernel, binomial.setting_for(size.steps, log), False
    cells = _optimum.cells_for(size.steps, rtol, size.equal) if cells is None else int(cells)
    setting = _optimum.Setting(Grid(size.steps, cells, size.equal), log)
    if adaptive:
        return _optimum.delta_kernel, _optimum.epsilon_kernel, setting, True
    steps = walk.Walk(Grid(size.steps, walk.cells_for(size.steps, 1e-4), False))
    return _fixed.delta_kernel, _fixed.epsilon_kernel, _fixed.Fixed(steps, setting), False


def _query(query, query_name, epsilons, count, adaptive, rtol, cells, *, is_log=None, log=False):
    """``is_log`` is None when delta is asked for; else epsilon is, and it says whether query is log delta."""
    _check_cells(cells)
    size = arguments.mechanisms(epsilons, count)
    lanes = arguments.Lanes(query, query_name, epsilons, count, size)
    for_delta, for_epsilon, setting, takes_t = _kernel(size, rtol, adaptive, cells, log)
    t = (np.full(lanes.epsilons.shape, _optimum.FREE),) if takes_t else ()
    if is_log is None:
        found = arguments.run(for_delta, setting, lanes.query, lanes.epsilons, *t, lanes.counts)
    else:
        found = arguments.run(for_epsilon, (is_log, setting), lanes.query, lanes.epsilons, *t, lanes.counts)
    return lanes.finish(*found, *lanes.usable(is_log))


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
    arguments.check_real("epsilon_global", epsilon_global)
    arguments.check_mechanisms(epsilons, count, rtol)
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
      The certified upper end, rounding included, in the broadcast shape of the arguments' leading axes. Its derivative
      is that of the adversary found on the grid, first order only and right to about 1 / cells.

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
    arguments.check_real("epsilon_global", epsilon_global)
    arguments.check_mechanisms(epsilons, count, rtol)
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
      >>> print(f"{log_delta(99.5, 1.0, count=100, adaptive=False):.2f}")
      -490.52
    """
    return log_delta_bounds(epsilon_global, epsilons, count=count, adaptive=adaptive, rtol=rtol, cells=cells).upper


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
    arguments.check_mechanisms(epsilons, count, rtol)
    is_log, query = arguments.probability("delta", delta, "log_delta", log_delta)
    return _query(query, "delta", epsilons, count, adaptive, rtol, cells, is_log=is_log)


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
      >>> print(f"{epsilon(1e-6, 0.1, count=100):.2f}")
      2.25
    """
    return epsilon_bounds(
        delta, epsilons, log_delta=log_delta, count=count, adaptive=adaptive, rtol=rtol, cells=cells
    ).upper


def sequence_bounds(query: Any, epsilons: Any, t: Any, *, rtol: float = 0.01, is_log: bool | None = None) -> Bounds:
    """Bounds of delta or epsilon of a sequence in which some t are given and the others are chosen adaptively.

    Args:
      query: epsilon_global where ``is_log`` is None; else delta (False) or log delta (True).
      epsilons, t: along the last axis, in the order in which they are run; t is -1 where it is chosen.
      rtol: as in :func:`delta`.
      is_log: says what ``query`` is.

    Returns:
      Bounds of delta, or of epsilon.
    """
    size = arguments.stretched(arguments.mechanisms(epsilons, 1), arguments.sequence_length(epsilons, "epsilons"))
    lanes = arguments.Lanes(query, "query", epsilons, 1, size, extra=t)
    setting = _optimum.Setting(Grid(size.steps, _optimum.cells_for(size.steps, rtol, False), False))
    args = lanes.query, lanes.epsilons, lanes.extra, lanes.counts
    if is_log is None:
        found = arguments.run(_optimum.delta_kernel, setting, *args)
    else:
        found = arguments.run(_optimum.epsilon_kernel, (is_log, setting), *args)
    within, most = lanes.within()
    return lanes.finish(*found, *lanes.usable(is_log), within <= most)


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
    arguments.check_real("epsilon_global", epsilon_global)
    arguments.check_mechanisms(epsilons, count, rtol)
    t = arguments.plain("t", t)
    _validate.in_range("t", t, 0.0)
    values = arguments.plain("epsilons", epsilons)
    if not _validate.is_traced(t) and not _validate.is_traced(values) and np.any(np.asarray(t) > np.asarray(values)):
        raise ValueError(f"t = {t!r}, but it must be a number in [0, epsilons], epsilons = {epsilons!r}.")
    size = arguments.mechanisms(epsilons, count)
    length = arguments.sequence_length(t, "t")
    if not size.equal or length > 1:
        size = arguments.stretched(size, max(size.length, length))
    lanes = arguments.Lanes(epsilon_global, "epsilon_global", epsilons, count, size, extra=t)
    if size.equal:
        setting: Any = binomial.setting_for(size.steps)
        args = (lanes.query, lanes.epsilons, lanes.extra, lanes.counts)
        kernel = binomial.fixed_kernel
    else:
        setting = walk.Walk(Grid(size.steps, walk.cells_for(size.steps, rtol), False))
        args = (lanes.query, lanes.epsilons, lanes.extra)
        kernel = _fixed.walk_kernel
    found = arguments.run(kernel, setting, *args)
    within, most = lanes.within()
    return lanes.finish(*found, *lanes.usable(), (within >= 0) & (within <= most))


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
      >>> print(f"{smaller_delta(1.25, 0.5, 0.25, count=10):.4f}")
      0.0342
    """
    ranged = delta(epsilon_global, range_epsilons, count=count, rtol=rtol)
    return _smaller(ranged, pure_dp.optimal_delta(epsilon_global, dp_epsilons, count=count))


def smaller_epsilon(
    delta: ArrayLike, range_epsilons: Any, dp_epsilons: Any, *, count: Any = 1, rtol: float = 0.01
) -> Any:
    """The same for epsilon at a delta: the smaller of :func:`epsilon` and ``dpjax.pure_dp.optimal_epsilon``.

    Args:
      delta: in [0, 1], a number or an array.
      range_epsilons, dp_epsilons, count, rtol: as in :func:`smaller_delta`.

    Returns:
      The smaller of the two answers.

    Guarantee:
      Both hold for adaptive composition, hence so does the smaller one.

    Raises:
      ValueError: as those.

    Example:
      >>> print(f"{smaller_epsilon(1e-6, 0.1, 0.1, count=100):.2f}")
      2.25
    """
    ranged = epsilon(delta, range_epsilons, count=count, rtol=rtol)
    return _smaller(ranged, pure_dp.optimal_epsilon(delta, dp_epsilons, count=count))


def _smaller(a, b):
    traced = _validate.is_traced(a) or _validate.is_traced(b)
    return jnp.minimum(a, b) if traced else np.minimum(a, b)
