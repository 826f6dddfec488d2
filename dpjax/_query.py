"""A question about lanes, from a record in lanes to the six arrays of ``Bounds``: directions, limits, engines.

Every function takes the query and its numbers: the record's leaves, (lanes, *schedule axes, *event axes) each, and what is
given, (lanes,). ``concrete`` and ``traced`` ask the engines for Gaussians, ``by_laws`` those for any mechanism.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import _by_laws, _lanes, _precision, _validate, closed_form, composition
from dpjax._chunks import in_chunks, take
from dpjax._plan import Problem, largest_loss, log_touched
from dpjax._special import exp, expm1, is_single, ln, logaddexp, unit
from dpjax.bounds import Method, Status
from dpjax.mechanisms import Adjacency
from dpjax.pairs import REVERSE, SampledGaussianPair, directions

ROUNDING = (_precision.DOWN, _precision.NEAREST, _precision.UP) + (_precision.INTEGER,) * 3
_WORTH_A_LATTICE = 1e-5  # relative width of an answer that a lattice, which aims at 1e-3 of delta, can hope to improve


class Query(NamedTuple):
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


class _Direction(NamedTuple):
    """One direction's problem, made safe to hand to an engine, and what to say where it was not safe."""

    problem: Problem
    given: Any  # epsilon >= 0 or log delta, in (-inf, 0)
    invalid: Any
    settled: Any  # where ``value`` is the answer
    value: Any


def _prepare(query: Query, args: tuple, direction: Adjacency) -> _Direction:
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


def _prepared(query: Query, *args: Any) -> _Direction:
    """All directions' problems, as one batch."""
    xp = _precision.namespace(*args)
    return jax.tree.map(lambda *a: xp.concatenate(a), *(_prepare(query, args, d) for d in directions(query.adjacency)))


def _engines(query: Query, lanes: _Direction, solve_closed, solve_contour) -> tuple:
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


def _to_answer(query: Query, ends: tuple, given, xp) -> tuple:
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


def _combine(query: Query, answers: list[tuple], given, xp) -> tuple:
    """The largest of the directions; its derivative is that of the first with the largest estimate, REMOVE in a tie."""
    lower, estimate, upper, status, method, nodes = answers[0]
    for other in answers[1:]:
        higher = other[2] > upper
        status, method = xp.where(higher, other[3], status), xp.where(higher, other[4], method)
        estimate = xp.where(other[1] > estimate, other[1], estimate)
        lower, upper, nodes = xp.maximum(lower, other[0]), xp.maximum(upper, other[2]), nodes + other[5]
    return (*_to_answer(query, (lower, estimate, upper), given, xp), status, method, nodes)


def _answer(query: Query, args: tuple, solve_closed, solve_contour) -> tuple:
    """The six arrays of ``Bounds``, (lanes,) each; all directions are solved side by side, as one batch."""
    lanes, xp = _prepared(query, *args), _precision.namespace(*args)
    found = _finish(lanes, _engines(query, lanes, solve_closed, solve_contour))
    n = args[-1].shape[0]
    parts = [tuple(x[i : i + n] for x in found) for i in range(0, lanes.given.shape[0], n)]
    return _combine(query, parts, args[-1], xp)


def _closed_form(settings: _lanes.Settings, problem: Problem, given: Any) -> tuple:
    return tuple(closed_form.solve(problem, given, unknown=settings.unknown))


def _levy(settings: _lanes.Settings, problem: Problem, given: Any) -> Any:
    from dpjax import levy  # an independent engine, only loaded when asked for

    return levy.solve(problem, given, unknown=settings.unknown, rtol=settings.tol)


def _closed_concrete(query: Query, settings: _lanes.Settings, problem: Problem, given: np.ndarray) -> tuple:
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


def _contour_concrete(
    settings: _lanes.Settings, problem: Problem, given: np.ndarray, skip: np.ndarray, order: int = 0
) -> tuple[_lanes.Answer, np.ndarray | None]:
    """The contour's answers where not ``skip``, and at order 1 their derivatives, elsewhere 0."""
    n = given.shape[0]
    blank = [np.zeros(n) for _ in range(4)]
    answer = _lanes.Answer(blank[0], blank[1], blank[2], np.ones(n, bool), np.zeros(n, bool), blank[3])
    slopes = np.zeros((n, _lanes.parameters(problem))) if order else None
    todo = np.flatnonzero(~skip)
    if todo.size:
        part, steep = _lanes.solve_concrete(settings, take(problem, todo), given[todo], order)
        for whole, new in zip((*answer, slopes), (*part, steep), strict=True):
            if whole is not None:
                whole[todo] = new
    return answer, slopes


def concrete(query: Query, *args: np.ndarray) -> tuple:
    solve_closed = lambda settings, problem, given, skip: _closed_concrete(query, settings, problem, given)
    return _answer(query, args, solve_closed, lambda *lanes: _contour_concrete(*lanes)[0])


def differentiated(call: _precision.Call, *args: np.ndarray) -> tuple[tuple, tuple] | None:
    """(the six arrays of ``Bounds``, the estimate's derivatives by ``args``, those that move) for numbers; or None.

    As for values the work is planned on the host. What the contour found is then put into the traced query as a constant and
    its slopes. None: the traced query asks no contour, or knows best what becomes of arguments that are not valid.
    """
    query: Query = call.static
    if query.method not in ("auto", "contour"):
        return None
    n, ways = args[-1].shape[0], len(directions(query.adjacency))
    lane_by_lane = lambda a: np.moveaxis(a.reshape((ways, n, *a.shape[1:])), 0, 1)
    whole = lambda a: np.moveaxis(a, 1, 0).reshape((ways * n, *a.shape[2:]))
    size = _LANES if n > _FEW_LANES else _FEW_LANES
    chunked = lambda function, arguments: in_chunks(function, arguments, np.zeros(n), size)
    traced = jax.tree.map(whole, chunked(lambda a: _precision.compiled(_prepared_by_lane)(query, *a), args))
    if traced.invalid.any() or (query.method == "auto" and (query.single or not traced.problem.count.shape[1])):
        return None
    seen: Any = None

    def solve_contour(settings, problem, given, skip):
        nonlocal seen
        seen = (settings, problem, skip, *_contour_concrete(settings, problem, given, skip, order=1))
        return seen[3]

    solve_closed = lambda settings, problem, given, skip: _closed_concrete(query, settings, problem, given)
    outputs = with_lattice(query, args, _answer(query, args, solve_closed, solve_contour))
    settings, problem, skip, answer, slopes = seen
    # Numbers know more than tracers: which runs have a closed form, and which are sampled with certainty.
    unlike = skip.copy()
    for known, moving in zip(jax.tree.leaves(problem), jax.tree.leaves(traced.problem), strict=True):
        unlike |= np.any((known != moving).reshape(unlike.size, -1), 1)
    unlike &= ~traced.settled
    more, steeper = _contour_concrete(settings, traced.problem, traced.given, ~unlike, order=1)
    choice = lambda a, b: np.where(unlike.reshape(-1, *(1,) * (a.ndim - 1)), b, a)
    found = np.stack([choice(a, b) for a, b in zip(answer, more, strict=True)], 1)
    constants = lane_by_lane(found), lane_by_lane(choice(slopes, steeper))
    linear = call._replace(function=_answer_linear, traced=(*call.traced, False, False))
    return outputs, chunked(lambda a: _precision.values_and_gradient(linear, *a)[1], (*args, *constants))


_FEW_LANES, _LANES = 32, 1024  # that a program of the above is compiled for


def _prepared_by_lane(query: Query, *args: jax.Array) -> _Direction:
    """All directions' problems as tracers see them, (lanes, directions)."""
    return jax.tree.map(lambda *a: jnp.stack(a, 1), *(_prepare(query, args, d) for d in directions(query.adjacency)))


def _answer_linear(query: Query, *args: jax.Array) -> tuple:
    """The traced query where the contour's answers, (lanes, directions, 6), and their slopes by parameters are known."""
    *numbers, found, slopes = args
    args = tuple(numbers)
    found, slopes = (jnp.moveaxis(a, 1, 0).reshape((-1, a.shape[-1])) for a in (found, slopes))

    def solve_contour(settings, problem, given, skip):
        answer = _lanes.Answer(*found.T)
        at = _lanes.moving(problem, given)
        moved = jnp.sum(slopes * (at - jax.lax.stop_gradient(at)), 1)
        yes = lambda flags: flags > 0
        return answer._replace(
            estimate=answer.estimate + moved, converged=yes(answer.converged), cancelled=yes(answer.cancelled)
        )

    return _poisoned(_answer(query, args, lambda s, p, g, skip: _closed_form(s, p, g), solve_contour), args)


def by_laws(query: Query, *args: Any) -> tuple:
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


def with_lattice(query: Query, args: tuple, found: tuple) -> tuple:
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
    again = by_laws(query, *part)
    out = [np.array(x, np.float64) for x in found]
    narrow = again[2] - again[0] < out[2][todo] - out[0][todo]
    for i in (1, 3, 4):
        out[i][todo] = np.where(narrow, again[i], out[i][todo])
    out[0][todo], out[2][todo] = np.fmax(out[0][todo], again[0]), np.fmin(out[2][todo], again[2])
    out[1][todo] = np.clip(out[1][todo], out[0][todo], out[2][todo])
    out[5][todo] += again[5]
    return tuple(out)


def by_laws_traced(query: Query, *args: jax.Array) -> tuple:
    return _poisoned(by_laws(query, *args), args)


def _poisoned(found: tuple, args: tuple) -> tuple:
    """An invalid argument poisons every derivative, not only the value."""
    lower, estimate, upper, *codes = found
    factor = jnp.where(codes[0] == int(Status.INVALID), jnp.nan, 0.0)
    poison = sum(factor * jnp.sum(jnp.where(jnp.isfinite(x), x, 0.0).reshape(x.shape[0], -1), 1) for x in args)
    return lower, estimate + poison, upper, *codes


def traced(query: Query, *args: jax.Array) -> tuple:
    def solve_closed(settings, problem, given, skip):
        return _closed_form(settings, problem, given)

    def solve_contour(settings, problem, given, skip):
        # lanes answered elsewhere get a problem of a handful of nodes
        return _lanes.solve(settings, problem, given)

    return _poisoned(_answer(query, args, solve_closed, solve_contour), args)
