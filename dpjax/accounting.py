"""The queries: epsilon and delta of a mechanism, with their certified bounds.

A query brings the mechanism into lanes (``composition``), asks an engine about every direction of the adjacency, and
answers with the largest. Numbers are answered in NumPy float64; traced values in the caller's precision.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from dpjax import _order, _precision, _query, _single, _validate, composition, suspicion
from dpjax.bounds import Bounds, Method, Status
from dpjax.laws import check_adjacency
from dpjax.mechanisms import COMPOSITIONS, Adjacency, Mechanism, attained, known_by_parameters, require_adjacency

METHODS = ("auto", "closed_form", "contour", "levy", "lattice")
PRECISIONS = ("float64", "float32")


def epsilon(
    mechanism: Mechanism,
    delta: ArrayLike | None = None,
    *,
    log_delta: ArrayLike | None = None,
    adjacency: Adjacency = Adjacency.ADD_OR_REMOVE_ONE,
    method: str = "auto",
    rtol: float = 1e-10,
    max_nodes: int = 8192,
    precision: str = "float64",
) -> Any:
    """The smallest epsilon for which ``mechanism`` is (epsilon, delta)-DP, from above.

    Args:
      mechanism: a record, of any batch shape.
      delta: in [0, 1]; broadcasts against the mechanism's batch shape.
      log_delta: instead of delta, its logarithm, <= 0.
      adjacency: which datasets are neighbours.
      method: "auto", or one engine: "closed_form", "contour" or "levy" (Gaussians, sampled or not), "lattice" (any
        mechanism). "auto" takes the closed form where there is one, the contour for Gaussians, else the lattice.
      rtol: relative tolerance on delta.
      max_nodes: the most contour nodes for one answer; 32 grid points count as one, 4 under tracing, and each takes
        about 300 bytes.
      precision: "float64", or "float32" for platforms that lack float64 (TPUs): Gaussians only, sampled or not. Numbers
        are rounded to float32 first and the answer is certified for those, about 1e-3 of delta above the truth (rtol below 1e-3
        counts as that), far more where ``Status.ROUNDING`` says that the terms cancel; for numbers the result is NumPy float32.

    Returns:
      Epsilon >= 0, in the broadcast shape: NumPy float64 (float32 if that is ``precision``) for numbers, the default
      floating dtype for traced values.
      Infinite where no finite epsilon exists.

    Guarantee:
      An upper bound on the epsilon of every adaptive composition with these dominating pairs (Zhu, Dong, Wang, arXiv
      2106.08567, Theorem 10), for ``adjacency``; at most rtol in delta above it unless ``epsilon_bounds`` says otherwise. The
      derivative is that of the estimate between the bounds.

    Raises:
      ValueError: a concrete argument is out of range. A traced one gives NaN.
      NotImplementedError: no analysis is known for the mechanism under ``adjacency``, or none in float32.

    Example:
      >>> import dpjax
      >>> run = dpjax.dpsgd(noise_multiplier=1.0, sampling_probability=0.01, steps=1000)
      >>> print(f"{dpjax.epsilon(run, delta=1e-5):.10f}")
      1.8282366665
      >>> import jax
      >>> gradient = jax.grad(lambda s: dpjax.epsilon(dpjax.dpsgd(s, 0.01, 1000), delta=1e-5))(1.0)
      >>> print(f"{gradient:.4f}")
      -3.8226
    """
    return epsilon_bounds(
        mechanism, delta, log_delta=log_delta, adjacency=adjacency, method=method, rtol=rtol, max_nodes=max_nodes,
        precision=precision,
    ).upper  # fmt: skip


def epsilon_bounds(
    mechanism: Mechanism,
    delta: ArrayLike | None = None,
    *,
    log_delta: ArrayLike | None = None,
    adjacency: Adjacency = Adjacency.ADD_OR_REMOVE_ONE,
    method: str = "auto",
    rtol: float = 1e-10,
    max_nodes: int = 8192,
    precision: str = "float64",
) -> Bounds:
    """``epsilon`` with its certified interval; arguments and guarantee as there.

    Example:
      >>> import dpjax
      >>> bounds = dpjax.epsilon_bounds(dpjax.Gaussian(1.0), delta=1e-5)
      >>> bool(bounds.lower <= 4.3771780956812245 <= bounds.upper)
      True
    """
    if (delta is None) == (log_delta is None):
        none = "delta is missing, and has no default: take one well below one over the number of records"
        raise TypeError(f"Give exactly one of delta and log_delta{'; ' + none if delta is None else ''}.")
    given = "delta" if log_delta is None else "log_delta"
    number = _validate.number(given, delta if log_delta is None else log_delta)
    if given == "delta":
        _validate.in_range(given, number, 0.0, 1.0)
    else:
        _validate.in_range(given, number, high=0.0)
    _question(mechanism, number, given)
    return _ask(mechanism, number, given, "epsilon", adjacency, method, rtol, max_nodes, precision)


def delta(
    mechanism: Mechanism,
    epsilon: ArrayLike,
    *,
    adjacency: Adjacency = Adjacency.ADD_OR_REMOVE_ONE,
    method: str = "auto",
    rtol: float = 1e-10,
    max_nodes: int = 8192,
    precision: str = "float64",
) -> Any:
    """The smallest delta for which ``mechanism`` is (epsilon, delta)-DP, from above.

    Args:
      mechanism: a record, of any batch shape.
      epsilon: any real number, or infinity; broadcasts against the mechanism's batch shape.
      adjacency, method, rtol, max_nodes, precision: as for ``epsilon``.

    Returns:
      Delta in [0, 1], in the broadcast shape; exactly 0 where epsilon is at least the largest possible loss.

    Guarantee:
      An upper bound on the hockey-stick divergence of every adaptive composition with these dominating pairs (Zhu, Dong,
      Wang, arXiv 2106.08567, Theorem 10), for ``adjacency``; at most a factor 1 + rtol above it unless ``delta_bounds``
      says otherwise.

    Raises:
      ValueError: a concrete argument is out of range. A traced one gives NaN.

    Example:
      >>> import dpjax
      >>> run = dpjax.dpsgd(noise_multiplier=1.0, sampling_probability=0.01, steps=1000)
      >>> print(f"{dpjax.delta(run, epsilon=1.0):.10f}")
      0.0026124206
    """
    return delta_bounds(
        mechanism, epsilon, adjacency=adjacency, method=method, rtol=rtol, max_nodes=max_nodes, precision=precision
    ).upper


def delta_bounds(
    mechanism: Mechanism,
    epsilon: ArrayLike,
    *,
    adjacency: Adjacency = Adjacency.ADD_OR_REMOVE_ONE,
    method: str = "auto",
    rtol: float = 1e-10,
    max_nodes: int = 8192,
    precision: str = "float64",
) -> Bounds:
    """``delta`` with its certified interval; arguments and guarantee as there.

    Example:
      >>> import dpjax
      >>> bounds = dpjax.delta_bounds(dpjax.Gaussian(1.0), epsilon=1.0)
      >>> bool(bounds.lower <= 0.12693673750664397 <= bounds.upper)
      True
    """
    number = _validate.number("epsilon", epsilon)
    _validate.in_range("epsilon", number)
    return _ask(mechanism, number, "epsilon", "delta", adjacency, method, rtol, max_nodes, precision)


def log_delta(
    mechanism: Mechanism,
    epsilon: ArrayLike,
    *,
    adjacency: Adjacency = Adjacency.ADD_OR_REMOVE_ONE,
    method: str = "auto",
    rtol: float = 1e-10,
    max_nodes: int = 8192,
    precision: str = "float64",
) -> Any:
    """The logarithm of ``delta``, finite where delta itself underflows; arguments and guarantee as there.

    Example:
      >>> import dpjax
      >>> print(f"{dpjax.log_delta(dpjax.Gaussian(1.0), epsilon=50.0):.6f}")
      -1233.869083
    """
    number = _validate.number("epsilon", epsilon)
    _validate.in_range("epsilon", number)
    return _ask(mechanism, number, "epsilon", "log_delta", adjacency, method, rtol, max_nodes, precision).upper


# --------------------------------------------------------------------------------------------------------------------


def _question(mechanism: Any, number: Any, given: str) -> None:
    """Asks back about a delta that is large for the dataset, where the mechanism knows its size."""
    records = suspicion.dataset_size(mechanism)
    if records is not None and not any(map(_validate.is_traced, (*jax.tree.leaves(mechanism), number))):
        suspicion.question_delta(np.exp(number) if given == "log_delta" else number, records)


def check_options(adjacency: Any, method: Any, rtol: Any, max_nodes: Any, precision: Any) -> None:
    """Raises ValueError or TypeError unless a query can be asked with these, whatever the mechanism."""
    require_adjacency(adjacency)
    _validate.one_of("method", method, METHODS)
    _validate.one_of("precision", precision, PRECISIONS)
    _validate.in_range("rtol", _validate.number("rtol", rtol), 1e-15, 0.5)
    _validate.in_range("max_nodes", _validate.number("max_nodes", max_nodes), 64, 65536, integral=True)


def _ask(mechanism, number, given, answer, adjacency, method, rtol, max_nodes, precision) -> Bounds:
    if not isinstance(mechanism, Mechanism):
        raise TypeError(f"mechanism must be a dpjax mechanism; got {mechanism!r}.")
    check_options(adjacency, method, rtol, max_nodes, precision)
    composition.check(mechanism)
    check_adjacency(mechanism, adjacency)
    mechanism = composition.reduced(mechanism, adjacency)
    if 0 in (*composition.batch_shape(mechanism), *np.shape(number)):
        nothing = np.zeros(composition.layout(mechanism, number).shape, precision)
        return Bounds(nothing, nothing, nothing, *(nothing.astype(np.int32),) * 3)
    found = _found(mechanism, number, given, answer, adjacency, method, float(rtol), int(max_nodes), precision)
    return found if attained(mechanism, adjacency) else _one_sided(found, answer)


def _one_sided(found: Bounds, answer: str) -> Bounds:
    """What is left of an answer about a pair that no mechanism may have."""
    xp = _precision.namespace(found.upper)
    nothing = -xp.inf if answer == "log_delta" else 0.0
    exact = xp.isnan(found.upper) | (found.upper <= nothing)
    lower = xp.where(exact, found.lower, nothing)
    status = xp.where(exact, found.status, int(Status.ONE_SIDED))
    return (
        found._replace(lower=lower, status=status) if xp is jnp else found._replace(lower=lower[()], status=status[()])
    )


def _found(mechanism, number, given, answer, adjacency, method, rtol, max_nodes, precision) -> Bounds:
    """The answer about the dominating pairs."""
    if precision == "float32":
        return _found_single(mechanism, number, given, answer, adjacency, method, rtol, max_nodes)
    if method == "auto" and known_by_parameters(mechanism):
        from dpjax import parametric  # only loaded when asked for

        if parametric.takes(mechanism):
            return _by_parameters(parametric.bounds, mechanism, number, given, answer, rtol)
    by_laws = method == "lattice" or not composition.all_gaussian(mechanism)
    laid = composition.layout(_order.in_order(mechanism) if by_laws else mechanism, number)
    if by_laws and method in ("contour", "levy"):
        raise NotImplementedError(f"method = {method!r} knows Gaussians only; {mechanism!r} has others: use 'lattice'.")
    query = _query.Query(
        laid.structure, adjacency, answer, given, method, rtol, max_nodes, not isinstance(mechanism, COMPOSITIONS)
    )
    args = (*laid.leaves, laid.given)
    if any(_validate.is_traced(a) for a in args):
        if by_laws:
            flat = _precision.traced(_query.by_laws_traced, query, args, _query.ROUNDING)
        else:
            flat = _precision.traced(_query.traced, query, args, _query.ROUNDING, _query.differentiated)
        return Bounds(*(x.reshape(laid.shape) for x in flat))
    with jax.ensure_compile_time_eval(), jax.enable_x64(True), np.errstate(all="ignore"):
        flat = (
            _query.by_laws(query, *args) if by_laws else _query.with_lattice(query, args, _query.concrete(query, *args))
        )
        codes = [np.asarray(x, np.int32) for x in flat[3:]]
        out = [np.asarray(x, np.float64).reshape(laid.shape)[()] for x in flat[:3]]
        return Bounds(*out, *(x.reshape(laid.shape)[()] for x in codes))


def _found_single(mechanism, number, given, answer, adjacency, method, rtol, max_nodes) -> Bounds:
    """The same in float32."""
    if not composition.all_gaussian(mechanism):
        raise NotImplementedError(
            f"precision='float32' knows Gaussians only, Poisson-sampled or not, and their compositions; {mechanism!r} has "
            "others: use precision='float64'."
        )
    if method in ("levy", "lattice"):
        raise NotImplementedError(
            f"method = {method!r} needs precision='float64'; float32 has 'closed_form' and 'contour'."
        )
    laid = composition.layout(mechanism, number)
    args = (*laid.leaves, laid.given)
    known = not any(_validate.is_traced(a) for a in args)
    one = not isinstance(mechanism, COMPOSITIONS)
    query = _query.Query(
        laid.structure, adjacency, answer, given, method, max(rtol, _single.LEAST_RTOL), max_nodes, one, known
    )
    if not known:
        flat = _single.traced(_query.traced, query, args, _query.ROUNDING)
        return Bounds(*(x.reshape(laid.shape) for x in flat))
    flat = _single.concrete(_query.traced, query, *args)
    ends = [np.asarray(x, np.float32).reshape(laid.shape)[()] for x in flat[:3]]
    return Bounds(*ends, *(np.asarray(x, np.int32).reshape(laid.shape)[()] for x in flat[3:]))


def _by_parameters(bounds, mechanism, number, given, answer, rtol) -> Bounds:
    """Mechanisms known by their parameters alone, which are the same in every direction."""
    found = bounds(mechanism, number, given, answer, rtol if rtol >= 1e-4 else 0.01)
    xp = _precision.namespace(*found)
    with _validate.collected() as masks:  # of traced numbers; concrete ones were checked
        composition.check(mechanism)
    for mask in masks:
        # a schedule's mask has an axis that the answer has not
        ok = mask if np.ndim(mask) <= np.ndim(found[0]) else xp.all(mask)
        found = tuple(x * xp.where(ok, 1.0, xp.nan) for x in found)
    lower, estimate, upper = found
    scale = 1.0 if answer == "log_delta" else xp.abs(upper)
    wide = upper > lower + max(rtol, 1e-12) * scale
    status = xp.where(xp.isnan(upper), int(Status.INVALID), xp.where(wide, int(Status.GRID), int(Status.CONVERGED)))
    same = lambda value: xp.zeros(xp.shape(upper), xp.int32) + value
    return Bounds(lower, estimate, upper, same(status), same(int(Method.RECURSION)), same(0))
