"""The queries: epsilon and delta of a mechanism, with their certified bounds.

A query brings the mechanism into lanes (``composition``), asks an engine about every direction of the adjacency, and
answers with the largest. Numbers are answered in NumPy float64; traced values in the caller's precision.
"""

from __future__ import annotations

import enum
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from dpjax import _by_laws, _lanes, _order, _precision, _single, _validate, closed_form, composition, suspicion
from dpjax._plan import Problem, largest_loss, log_touched
from dpjax._special import exp, expm1, is_single, ln, logaddexp, unit
from dpjax.laws import check_adjacency
from dpjax.mechanisms import COMPOSITIONS, Adjacency, Mechanism, attained, known_by_parameters, require_adjacency
from dpjax.pairs import REVERSE, SampledGaussianPair, directions

METHODS = ("auto", "closed_form", "contour", "levy", "lattice")
PRECISIONS = ("float64", "float32")


class Status(enum.IntEnum):
    """How an answer's interval came about.

    CONVERGED: as narrow as ``rtol`` asks. ROUNDING: float64 (or float32, if asked for) has no more digits here, the terms of
    the sum cancel too far. MAX_NODES: ``max_nodes`` contour nodes did not suffice. GRID: as wide as a grid leaves it: the lattice aims at 1e-3
    of delta, or ``rtol`` if that is more; ``bounded_range`` at 1% unless an rtol of 1e-4 or more asks for another. ONE_SIDED: the
    mechanism's analysis is itself an upper bound, and nothing is known from below: ``lower`` says so, ``estimate`` is the
    bound's. In each case the interval is certified. INVALID: an argument was out of range, and the answer is NaN.
    """

    CONVERGED = 0
    ROUNDING = 1
    MAX_NODES = 2
    INVALID = 3
    GRID = 4
    ONE_SIDED = 5


class Method(enum.IntEnum):
    """The engine that answered."""

    CLOSED_FORM = 0
    CONTOUR = 1
    LEVY = 2
    RECURSION = 3
    LATTICE = 4


class Bounds(NamedTuple):
    """A certified answer: the truth lies between ``lower`` and ``upper``.

    Attributes:
      lower, estimate, upper: arrays of the query's batch shape.
      status: codes of ``dpjax.Status``.
      method: codes of ``dpjax.Method``.
      nodes: contour nodes or grid points used.
    """

    lower: Any
    estimate: Any
    upper: Any
    status: Any
    method: Any
    nodes: Any

    def __repr__(self) -> str:
        if any(map(_validate.is_traced, self)):
            return "Bounds(" + ", ".join(f"{n}={x!r}" for n, x in zip(self._fields, self, strict=True)) + ")"
        if any(map(np.ndim, self)):
            numbers = [f"{n}={np.asarray(x)!r}" for n, x in zip(self._fields, self[:3], strict=False)]
            codes = f"status={_names(Status, self.status)}, method={_names(Method, self.method)}"
            return ", ".join(["Bounds(" + numbers[0], *numbers[1:], codes, f"nodes={np.asarray(self.nodes).tolist()})"])
        return (
            f"Bounds(lower={float(self.lower)!r}, estimate={float(self.estimate)!r}, upper={float(self.upper)!r}, "
            f"status={Status(int(self.status)).name}, method={Method(int(self.method)).name}, nodes={int(self.nodes)})"
        )


def _names(kind: type[enum.IntEnum], codes: Any) -> str:
    """What an array of codes says: one name if it is everywhere the same."""
    names = np.vectorize(lambda code: kind(code).name, otypes=[object])(np.asarray(codes))
    return names.flat[0] if len(set(names.flat)) == 1 else str(names.tolist()).replace("'", "")


_WORTH_A_LATTICE = 1e-5  # relative width of an answer that a lattice, which aims at 1e-3 of delta, can hope to improve


class _Query(NamedTuple):
    """What a query is apart from numbers; hashable, so that it keys compiled programs."""

    structure: Any
    adjacency: Adjacency
    answer: str  # "epsilon", "delta" or "log_delta"
    given: str  # "epsilon", "delta" or "log_delta"
    method: str
    rtol: float
    max_nodes: int
    single: bool  # one run of one mechanism
    known: bool = False  # in float32: no number is traced, so that no derivative is asked for


_ROUNDING = (_precision.DOWN, _precision.NEAREST, _precision.UP) + (_precision.INTEGER,) * 3


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
    query = _Query(
        laid.structure, adjacency, answer, given, method, rtol, max_nodes, not isinstance(mechanism, COMPOSITIONS)
    )
    args = (*laid.leaves, laid.given)
    if any(_validate.is_traced(a) for a in args):
        flat = _precision.traced(_laws_traced if by_laws else _answer_traced, query, args, _ROUNDING)
        return Bounds(*(x.reshape(laid.shape) for x in flat))
    with jax.ensure_compile_time_eval(), jax.enable_x64(True), np.errstate(all="ignore"):
        flat = _answer_by_laws(query, *args) if by_laws else _with_lattice(query, args, _answer_concrete(query, *args))
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
    query = _Query(
        laid.structure, adjacency, answer, given, method, max(rtol, _single.LEAST_RTOL), max_nodes, one, known
    )
    if not known:
        flat = _single.traced(_answer_traced, query, args, _ROUNDING)
        return Bounds(*(x.reshape(laid.shape) for x in flat))
    flat = _single.concrete(_answer_traced, query, *args)
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


class _Direction(NamedTuple):
    """One direction's problem, made safe to hand to an engine, and what to say where it was not safe."""

    problem: Problem
    given: Any  # epsilon >= 0 or log delta, in (-inf, 0)
    invalid: Any
    settled: Any  # where ``value`` is the answer
    value: Any


def _prepare(query: _Query, args: tuple, direction: Adjacency) -> _Direction:
    """Sets aside invalid lanes and limits with exact answers; the rest is for an engine."""
    *leaves, given = args
    xp = _precision.namespace(*args)
    problem = composition.problem(query.structure, tuple(leaves), direction)
    for_epsilon = query.answer == "epsilon"
    if query.given == "delta":
        positive = given > 0
        log = xp.log if xp is np else ln
        known = xp.where(positive, log(xp.where(positive, given, 1.0)), -xp.inf)
        if is_single(given):  # rounded down: a smaller delta has a larger epsilon
            known = known * (1 + 4 * unit(given))
        known = xp.where((given >= 0) & (given <= 1), known, xp.nan)
    else:
        known = given
    if not for_epsilon:
        mirrored = known < 0
        pair = composition.problem(query.structure, tuple(leaves), REVERSE[direction]).pair
        swapped = (xp.where(mirrored[:, None, None], b, a) for a, b in zip(problem.pair[2:], pair[2:], strict=True))
        problem = problem._replace(pair=SampledGaussianPair(*problem.pair[:2], *swapped))
        known = abs(known)

    variance, pair, count = problem
    bad = ~((pair.sigma >= 0) & (pair.q >= 0) & (pair.q <= 1) & (count >= 0) & (count < xp.inf))
    invalid = xp.any(bad, 1) | ~(variance >= 0) | xp.isnan(known)
    with _validate.collected() as masks:  # of traced numbers; concrete ones were checked
        composition.check(jax.tree.unflatten(query.structure, leaves))
    for mask in masks:
        invalid = invalid | ~xp.all(mask.reshape(mask.shape[0], -1), 1)
    for x in leaves:  # a count of 0 or q of 0 may hide a number that is not valid
        invalid = invalid | xp.any(xp.isnan(x).reshape(x.shape[0], -1), 1)
    if for_epsilon:
        invalid = invalid | (known > 0)

    active = (count > 0) & (pair.q > 0) & ~xp.isinf(pair.sigma) & ~bad
    bare = active & (pair.sigma == 0)
    rising = xp.any((pair.sign > 0), -1)
    exposed = xp.any(bare & rising, 1) | xp.isinf(variance)  # some outcome rules the neighbour out
    silent = xp.any(bare & ~rising, 1) & ~exposed
    empty = ~xp.any(active, 1) & (variance == 0)
    # the engine sees sane numbers in every lane
    keep = active & ~bare
    gaussian = variance
    if xp is np:  # sampled with certainty: a Gaussian. A tracer's derivative by q would be lost with that
        certain = keep & (pair.q >= 1)
        mu = np.count_nonzero(pair.beta, -1) / np.where(certain, pair.sigma, 1.0)
        gaussian = variance + np.sum(np.where(certain, count * mu**2, 0.0), 1)
        keep = keep & ~certain
    pair = pair._replace(sigma=xp.where(keep, pair.sigma, 1.0), q=xp.where(keep, pair.q, 0.0))
    idle = invalid | empty | exposed | silent
    clean = Problem(xp.where(idle, 1.0, gaussian), pair, xp.where(keep & ~idle[:, None], count, 0.0))
    full = Problem(variance, problem.pair._replace(sigma=xp.where(bare, 1.0, problem.pair.sigma)), count)
    touched, largest = log_touched(full), largest_loss(full)
    touched = xp.where(xp.isinf(variance), 0.0, touched)
    if for_epsilon:
        value = xp.where(exposed, xp.where(touched <= known, 0.0, xp.inf), xp.where(empty, 0.0, largest))
        value = xp.where(~idle & xp.isneginf(known), largest, value)
        value = xp.where(~invalid & (known >= 0), 0.0, value)
        settled = idle | xp.isneginf(known) | (known >= 0)
        safe = xp.where(settled, -1.0, known)
    else:
        value = xp.where(empty | (known >= largest), -xp.inf, touched)
        settled = idle | xp.isinf(known) | (known >= largest)
        value = xp.where(exposed, touched, value)
        safe = xp.where(settled, 1.0, known)
        settled_infinite = xp.isinf(known) & ~exposed
        value = xp.where(settled_infinite, -xp.inf, value)
    value = xp.where(invalid, xp.nan, value)
    return _Direction(clean, safe, invalid, settled, jax.lax.stop_gradient(value) if xp is jnp else value)


def _engines(query: _Query, lanes: _Direction, solve_closed, solve_contour) -> tuple:
    """(lower, estimate, upper, status, method, nodes), from the engines that the query allows."""
    xp = _precision.namespace(lanes.given)
    zero = xp.zeros(lanes.given.shape)
    components = lanes.problem.pair.sigma.shape[1]
    settings = _lanes.Settings("epsilon" if query.answer == "epsilon" else "delta", query.rtol, query.max_nodes)
    if query.known:  # lanes of one call may differ by orders of magnitude, and here nothing sorts them
        settings = settings._replace(chunk=1)
    if query.method == "levy":
        found = (_levy if xp is jnp else _precision.compiled(_levy))(settings, lanes.problem, lanes.given)
        status = xp.where(found.converged, int(Status.CONVERGED), int(Status.ROUNDING))
        return found.lower, found.estimate, found.upper, status, zero + int(Method.LEVY), zero + found.nodes
    # Whether a traced count is 1 is not known: only a record that is a single step goes to the closed form then.
    traced = xp is jnp
    single = components == 0 or query.single
    exact = closed_form.applies(lanes.problem) if not traced or query.known else xp.zeros(zero.shape, bool) | single
    if query.method == "contour":
        exact = exact & False
    closed = by_contour = None
    if query.method == "closed_form" or (query.method == "auto" and (single or not traced or query.known)):
        ends = solve_closed(settings, lanes.problem, lanes.given, exact | lanes.settled)
        closed = (*ends, zero + int(Status.CONVERGED), zero + int(Method.CLOSED_FORM), zero)
    if query.method == "contour" or (query.method == "auto" and components and not (traced and single)):
        found = solve_contour(settings, lanes.problem, lanes.given, exact | lanes.settled)
        short = xp.where(found.cancelled, int(Status.ROUNDING), int(Status.MAX_NODES))
        status = xp.where(found.converged, int(Status.CONVERGED), short)
        by_contour = (found.lower, found.estimate, found.upper, status, zero + int(Method.CONTOUR), found.nodes)
    if closed is None or by_contour is None:
        return closed or by_contour  # type: ignore[return-value]
    return tuple(xp.where(exact, a, b) for a, b in zip(closed, by_contour, strict=True))


def _finish(lanes: _Direction, found: tuple) -> tuple:
    """Puts the exact limits back."""
    xp = _precision.namespace(*found)
    *values, status, method, nodes = found
    ends = [xp.where(lanes.settled | lanes.invalid, lanes.value, x) for x in values]
    status = xp.where(lanes.invalid, int(Status.INVALID), xp.where(lanes.settled, int(Status.CONVERGED), status))
    return (*ends, status, method, nodes)


def _unmirror(log_d, eps, xp):
    """log of 1 - e^-e + e^-e delta for e = -eps > 0."""
    e = xp.where(eps < 0, -eps, 1.0)
    if xp is np:
        return xp.where(eps < 0, xp.logaddexp(xp.log(-xp.expm1(-e)), log_d - e), log_d)
    return jnp.where(eps < 0, logaddexp(ln(-expm1(-e)), log_d - e), log_d)


def _to_answer(query: _Query, ends: tuple, given, xp) -> tuple:
    """The three ends in the units of the answer, rounded outwards."""
    if query.answer == "epsilon":
        return ends
    ulp = 2 * unit(ends[0]) if is_single(ends[0]) else 2.3e-16
    lower, estimate, upper = (_unmirror(x, given, xp) for x in ends)
    slack = xp.where(given < 0, 8 * ulp, 0.0)
    lower, upper = lower - slack, xp.minimum(upper + slack, 0.0)
    if query.answer == "log_delta":
        return lower, estimate, upper
    grow = 4 * ulp * (1 + xp.abs(xp.where(xp.isfinite(upper), upper, 0.0)))
    tiny = 1.2e-38 if is_single(upper) else 2.3e-308  # XLA flushes what is below to 0
    power = xp.exp if xp is np else exp
    top = xp.minimum(power(upper) * (1 + grow), 1.0)
    return (
        power(lower) * (1 - grow),
        power(estimate),
        xp.where((upper > -xp.inf) & (top < tiny), tiny, top),
    )


def _combine(query: _Query, answers: list[tuple], given, xp) -> tuple:
    """The largest of the directions; its derivative is that of the first with the largest estimate, REMOVE in a tie."""
    lower, estimate, upper, status, method, nodes = answers[0]
    for other in answers[1:]:
        higher = other[2] > upper
        status, method = xp.where(higher, other[3], status), xp.where(higher, other[4], method)
        estimate = xp.where(other[1] > estimate, other[1], estimate)
        lower, upper, nodes = xp.maximum(lower, other[0]), xp.maximum(upper, other[2]), nodes + other[5]
    return (*_to_answer(query, (lower, estimate, upper), given, xp), status, method, nodes)


def _answer(query: _Query, args: tuple, solve_closed, solve_contour) -> tuple:
    """The six arrays of ``Bounds``, (lanes,) each; all directions are solved side by side, as one batch."""
    prepared = [_prepare(query, args, d) for d in directions(query.adjacency)]
    xp = _precision.namespace(*args)
    lanes = jax.tree.map(lambda *a: xp.concatenate(a), *prepared)
    found = _finish(lanes, _engines(query, lanes, solve_closed, solve_contour))
    n = args[-1].shape[0]
    return _combine(query, [tuple(x[i * n : (i + 1) * n] for x in found) for i in range(len(prepared))], args[-1], xp)


def _closed_form(settings: _lanes.Settings, problem: Problem, given: Any) -> tuple:
    return tuple(closed_form.solve(problem, given, unknown=settings.unknown))


def _levy(settings: _lanes.Settings, problem: Problem, given: Any) -> Any:
    from dpjax import levy  # an independent engine, only loaded when asked for

    return levy.solve(problem, given, unknown=settings.unknown, rtol=settings.tol)


def _answer_concrete(query: _Query, *args: np.ndarray) -> tuple:
    def solve_closed(settings, problem, given, skip):
        ends = tuple(np.full(given.shape, np.nan) for _ in range(3))
        todo = np.flatnonzero(closed_form.applies(problem) if query.method == "auto" else given == given)
        if todo.size:
            size = max(8, 1 << (todo.size - 1).bit_length())  # few shapes, few compilations
            index = np.concatenate([todo, np.repeat(todo[:1], size - todo.size)])
            part = jax.tree.map(lambda a: np.asarray(a[index], np.float64), problem)
            found = _precision.compiled(_closed_form)(settings, part, given[index])
            for whole, new in zip(ends, found, strict=True):
                whole[todo] = np.asarray(new)[: todo.size]
        return ends

    def solve_contour(settings, problem, given, skip):
        n = given.shape[0]
        blank = [np.zeros(n) for _ in range(4)]
        answer = _lanes.Answer(blank[0], blank[1], blank[2], np.ones(n, bool), np.zeros(n, bool), blank[3])
        todo = np.flatnonzero(~skip)
        if todo.size:
            part = _lanes.solve_concrete(settings, jax.tree.map(lambda a: a[todo], problem), given[todo])
            for whole, new in zip(answer, part, strict=True):
                whole[todo] = new
        return answer

    return _answer(query, args, solve_closed, solve_contour)


def _answer_by_laws(query: _Query, *args: Any) -> tuple:
    """The six arrays of ``Bounds``, (lanes,) each, from the laws of the losses."""
    *leaves, given = args
    xp = _precision.namespace(*args)
    records, counts = zip(*composition.terms(query.structure, tuple(leaves)), strict=True)
    known = given
    if query.given == "delta":
        known = xp.where(given > 0, xp.log(xp.where(given > 0, given, 1.0)), -xp.inf)
        known = xp.where((given >= 0) & (given <= 1), known, xp.nan)
    elif query.given == "log_delta":
        known = xp.where(given <= 0, given, xp.nan)
    answers = []
    for direction in directions(query.adjacency):
        found = _by_laws.answer(
            _by_laws.lattice.Terms(records, counts), known, direction,
            unknown="epsilon" if query.answer == "epsilon" else "delta", method=query.method, tol=query.rtol,
            max_nodes=query.max_nodes, single=query.single,
        )  # fmt: skip
        wide = ~found.converged | (~found.exact & (query.rtol < _by_laws.lattice.FINEST))
        status = xp.where(found.invalid, int(Status.INVALID), xp.where(wide, int(Status.GRID), int(Status.CONVERGED)))
        method = xp.where(found.exact, int(Method.CLOSED_FORM), int(Method.LATTICE))
        answers.append((found.lower, found.estimate, found.upper, status, method, found.points))
    return _combine(query, answers, abs(given), xp)  # these engines answer for negative epsilons themselves


def _with_lattice(query: _Query, args: tuple, found: tuple) -> tuple:
    """Where the contour ran out of nodes the lattice is asked, too; both intervals hold the truth."""
    if query.method != "auto":
        return found
    with np.errstate(invalid="ignore"):
        size = 1.0 if query.answer == "log_delta" else found[2]
        wide = found[2] - found[0] > _WORTH_A_LATTICE * size
    todo = np.flatnonzero((found[3] == int(Status.MAX_NODES)) & wide)
    if not todo.size:
        return found
    part = [np.asarray(a)[todo] for a in args]
    again = _answer_by_laws(query, *part)
    out = [np.array(x, np.float64) for x in found]
    narrow = again[2] - again[0] < out[2][todo] - out[0][todo]
    for i in (1, 3, 4):
        out[i][todo] = np.where(narrow, again[i], out[i][todo])
    out[0][todo], out[2][todo] = np.fmax(out[0][todo], again[0]), np.fmin(out[2][todo], again[2])
    out[1][todo] = np.clip(out[1][todo], out[0][todo], out[2][todo])
    out[5][todo] += again[5]
    return tuple(out)


def _laws_traced(query: _Query, *args: jax.Array) -> tuple:
    return _poisoned(_answer_by_laws(query, *args), args)


def _poisoned(found: tuple, args: tuple) -> tuple:
    """An invalid argument poisons every derivative, not only the value."""
    lower, estimate, upper, *codes = found
    factor = jnp.where(codes[0] == int(Status.INVALID), jnp.nan, 0.0)
    poison = sum(factor * jnp.sum(jnp.where(jnp.isfinite(x), x, 0.0).reshape(x.shape[0], -1), 1) for x in args)
    return lower, estimate + poison, upper, *codes


def _answer_traced(query: _Query, *args: jax.Array) -> tuple:
    def solve_closed(settings, problem, given, skip):
        return _closed_form(settings, problem, given)

    def solve_contour(settings, problem, given, skip):
        # lanes answered elsewhere get a problem of a handful of nodes
        return _lanes.solve(settings, problem, given)

    return _poisoned(_answer(query, args, solve_closed, solve_contour), args)
