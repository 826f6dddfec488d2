"""The parameter that meets a target: noise, sampling probability, steps, or any other number of any mechanism.

Numbers are solved for on the host, a batch at a time; tracers in one ``lax.while_loop``. The search runs on numbers without
derivatives; those come from the equation that the answer solves, by the implicit function theorem.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from dpjax import _search, _validate, accounting, composition, representations, suspicion
from dpjax.mechanisms import Adjacency, Mechanism
from dpjax.pairs import directions

_BRACKET, _WHOLE_BRACKET = (1e-6, 1e6), (1.0, 1e9)
_WINDOW = 1e-9  # below the target, relative
_ROUGH = {"rtol": 1e-3, "max_nodes": 1024}  # of a first search; its estimates are a few 1e-6 off
_ROUGH_WINDOW = 2e-6
_LIMIT = 250  # evaluations; every other one halves a bracket
_POINTS = 17  # inside an interval whose end is that of the domain
_ROUNDS = 11


class _Target(NamedTuple):
    """What is to be met, with its numbers: arrays or tracers that broadcast."""

    name: str
    value: Any
    at: dict[str, Any]  # further arguments of the query
    adjacency: Adjacency

    def ask(self, record: Mechanism, done: Any = None, rough: bool = False) -> Any:
        """The certified value for ``record``; of ``rough`` ones the estimate. Lanes that are ``done`` cost nothing."""
        at: dict[str, Any] = dict(self.at)
        if self.name == "epsilon":
            if done is not None:
                (name,) = at  # delta or log_delta
                xp = jnp if _traced(at[name], done) else np
                at[name] = xp.where(done, 1.0 if name == "delta" else 0.0, at[name])
            if rough:  # mostly the larger direction; the search that follows asks for both
                one = Adjacency.REMOVE if self.adjacency is Adjacency.ADD_OR_REMOVE_ONE else self.adjacency
                return accounting.epsilon_bounds(record, **at, **_ROUGH, adjacency=one).estimate
            return accounting.epsilon(record, **at, adjacency=self.adjacency)
        if self.name == "advantage":
            return representations.advantage(record, adjacency=self.adjacency)
        return representations.true_positive_rate(record, **at, adjacency=self.adjacency)


def calibrate(
    make: Callable[[Any], Mechanism],
    *,
    epsilon: ArrayLike | None = None,
    delta: ArrayLike | None = None,
    log_delta: ArrayLike | None = None,
    advantage: ArrayLike | None = None,
    tpr_at_fpr: tuple[ArrayLike, ArrayLike] | None = None,
    adjacency: Adjacency = Adjacency.ADD_OR_REMOVE_ONE,
    bracket: tuple[float, float] | None = None,
    integer: bool = False,
) -> Any:
    """The x for which ``make(x)`` spends the target and no more.

    The privacy of ``make(x)`` must rise or fall with x; which of the two is found out. Values that ``make`` does not allow, such as
    a sampling probability above 1, are never evaluated.

    Args:
      make: from a number, or an array of the answer's shape, to a mechanism. It is also called with traced numbers, so it
        uses ``jax.numpy`` on x, if anything. Arrays that it closes over make a batch, as in NumPy.
      epsilon: the target, > 0, at ``delta`` or ``log_delta``; or
      delta: in [0, 1).
      log_delta: instead of delta, its logarithm.
      advantage: the target, in (0, 1), is that of a membership attack; or
      tpr_at_fpr: (the largest true-positive rate of an attack, at this false-positive rate).
      adjacency: which datasets are neighbours.
      bracket: where to search, two numbers > 0; (1e-6, 1e6), and (1, 1e9) for whole numbers, otherwise.
      integer: x is a whole number, such as a count of steps: the answer is the last that does not exceed the target.

    Returns:
      x, in the shape to which the targets and the mechanism broadcast: NumPy float64 (int64 if ``integer``) for numbers, the default
      floating dtype for traced ones. First and second derivatives are those of the solution, by the implicit function theorem,
      in the targets and whatever ``make`` closes over (``tpr_at_fpr``: first; ``integer``: 0; NaN at delta 0).

    Guarantee:
      The certified value of ``make(x)`` is not above the target: ``epsilon(make(x), delta) <= epsilon``, as far as evaluating
      ``make`` again gives the same numbers. It is at least target (1 - 1e-9), in float64, where it is continuous in x. The
      certified ends of a lattice move in steps of up to about 1e-6; the answer is then the last x before the step.

    Raises:
      ValueError: a concrete argument is out of range, or no x meets the target, or all do. Of traced ones the answer is NaN.
      TypeError: not exactly one target is given, or ``make`` is not a function that returns a mechanism.

    Example:
      >>> import dpjax
      >>> sigma = dpjax.calibrate(lambda s: dpjax.dpsgd(s, 0.01, 1000), epsilon=2.0, delta=1e-5)
      >>> print(f"{sigma:.6f}")
      0.959102
      >>> steps = dpjax.calibrate(lambda n: dpjax.dpsgd(1.0, 0.01, n), epsilon=2.0, delta=1e-5, integer=True)
      >>> print(steps)
      1202
    """
    if not callable(make):
        raise TypeError(
            "make must be a function of the free number that returns a mechanism, like lambda s: dpjax.dpsgd(s, 0.01, 1000); "
            f"got {make!r}."
        )
    target = _target(epsilon, delta, log_delta, advantage, tpr_at_fpr, adjacency)
    ends = _ends(bracket, integer)
    with suspicion.unquestioned():  # the search tries numbers that nobody asked for
        with jax.ensure_compile_time_eval():
            shape, traced = _probe(make, target, ends)
        if not traced:
            with jax.ensure_compile_time_eval(), jax.enable_x64(True), np.errstate(all="ignore"):
                return _concrete(make, target, shape, ends, integer)
        return _traced_answer(make, target, shape, ends, integer)


def _target(epsilon, delta, log_delta, advantage, tpr_at_fpr, adjacency) -> _Target:
    directions(adjacency)
    given = {"epsilon": epsilon, "advantage": advantage, "tpr_at_fpr": tpr_at_fpr}
    names = [name for name, value in given.items() if value is not None]
    if len(names) != 1:
        raise TypeError(f"Give exactly one of epsilon, advantage and tpr_at_fpr; got {', '.join(names) or 'none'}.")
    (name,) = names
    at: dict[str, Any] = {}
    if name == "epsilon":
        if (delta is None) == (log_delta is None):
            raise TypeError("Give exactly one of delta and log_delta with epsilon.")
        kind = "delta" if log_delta is None else "log_delta"
        at[kind] = _validate.number(kind, delta if log_delta is None else log_delta)
        low, high = (0.0, 1.0) if kind == "delta" else (-np.inf, 0.0)
        _validate.in_range(kind, at[kind], low, high, high_open=True)
        value = _validate.number(name, epsilon)
        if not _validate.is_traced(value) and np.any(np.asarray(value) == 0):
            raise ValueError(
                "epsilon = 0.0, but it must be > 0; a mechanism that is (0, delta)-DP has advantage=delta."
            )
        _validate.in_range(name, value, 0.0, np.inf, low_open=True, high_open=True)
    elif delta is not None or log_delta is not None:
        raise TypeError(f"delta belongs to epsilon; {name} has none.")
    elif name == "advantage":
        value = _validate.number(name, advantage)
        _validate.in_range(name, value, 0.0, 1.0, low_open=True, high_open=True)
    else:
        if not isinstance(tpr_at_fpr, tuple | list) or len(tpr_at_fpr) != 2:
            raise TypeError(
                f"tpr_at_fpr must be a pair, (true-positive rate, false-positive rate); got {tpr_at_fpr!r}."
            )
        value, fpr = (_validate.number(f"tpr_at_fpr[{i}]", x) for i, x in enumerate(tpr_at_fpr))
        _validate.in_range("tpr_at_fpr[0]", value, 0.0, 1.0, low_open=True, high_open=True)
        _validate.in_range("tpr_at_fpr[1]", fpr, 0.0, 1.0)
        if not _traced(value, fpr) and np.any(np.less_equal(value, fpr)):
            raise ValueError(
                f"tpr_at_fpr = {tpr_at_fpr!r}, but a true-positive rate below the false-positive rate is met by guessing: "
                "the first must be larger."
            )
        at["false_positive_rate"] = fpr
    return _Target(name, value, at, adjacency)


def _ends(bracket: Any, integer: bool) -> tuple[float, float]:
    if bracket is None:
        return _WHOLE_BRACKET if integer else _BRACKET
    try:
        low, high = (float(_validate.number("bracket", x)) for x in bracket)
    except (TypeError, ValueError):
        raise TypeError(f"bracket must be a pair of numbers that are not traced; got {bracket!r}.") from None
    if integer:
        low, high = float(np.ceil(low)), float(np.floor(high))
    if not 0 < low < high < np.inf:
        raise ValueError(f"bracket = {bracket!r}, but it must be (low, high) with 0 < low < high, both finite.")
    return low, high


def _traced(*xs: Any) -> bool:
    return any(_validate.is_traced(x) for x in xs)


def _require(record: Any) -> Mechanism:
    if not isinstance(record, Mechanism):
        raise TypeError(f"make must return a dpjax mechanism; got {record!r}.")
    return record


def _probe(make: Callable, target: _Target, ends: tuple[float, float]) -> tuple[tuple[int, ...], bool]:
    """(the answer's shape, whether any number of the question is traced)."""
    shape: list = []

    def leaves(x):
        record = _require(make(x))
        if not _traced(*jax.tree.leaves(record)):
            raise ValueError("make(x) does not depend on x: there is nothing to find.")
        shape.append(composition.batch_shape(record))
        return jax.tree.leaves(record)

    numbers = (target.value, *target.at.values())
    # mapped over, so that x has no concrete value that a constructor could refuse
    found = jax.vmap(leaves)(np.full(1, np.sqrt(ends[0] * ends[1]), jnp.result_type(float)))
    try:
        whole = np.broadcast_shapes(*shape, *map(np.shape, numbers))
    except ValueError:
        raise ValueError(
            f"The mechanism's batch shape {shape[0]} and those of the targets, {list(map(np.shape, numbers))}, do not "
            "broadcast."
        ) from None
    return whole, _traced(*numbers, *found)


# ---- the domain


def _allowed(make: Callable, x: Any, shape: tuple[int, ...]) -> Any:
    """Where ``make(x)`` is a mechanism; x is (points, *shape)."""

    def one(x):
        laid = composition.layout(_require(make(x)), jnp.zeros(shape, x.dtype))
        with _validate.collected() as masks:
            composition.check(jax.tree.unflatten(laid.structure, laid.leaves))
        ok = jnp.ones(int(np.prod(shape, dtype=int)), bool)
        for mask in masks:
            ok = ok & jnp.all(mask.reshape(mask.shape[0], -1), 1)
        for leaf in laid.leaves:
            ok = ok & ~jnp.any(jnp.isnan(leaf).reshape(leaf.shape[0], -1), 1)
        return ok.reshape(shape)

    return jax.vmap(one)(x)


def _domain(make: Callable, shape: tuple[int, ...], ends: tuple[float, float], integer: bool, traced: bool) -> tuple:
    """(first, last) value that ``make`` allows, each of ``shape``; NaN if none was found."""
    dtype = jnp.result_type(float) if traced else np.float64
    grid = np.geomspace(*ends, 49)
    grid = np.unique(np.concatenate([np.round(grid) if integer else grid, [1.0]]))
    grid = np.concatenate([ends[:1], grid[(grid > ends[0]) & (grid < ends[1])], ends[1:]]).astype(dtype)
    wide = lambda x: jnp.broadcast_to(x.reshape((-1,) + (1,) * len(shape)), (x.size, *shape))
    ok = _allowed(make, wide(jnp.asarray(grid)), shape)
    if not traced and np.all(ok):
        return np.full(shape, ends[0]), np.full(shape, ends[1])
    n = grid.size
    i = np.arange(n).reshape((-1,) + (1,) * len(shape))
    first, last = jnp.min(jnp.where(ok, i, n), 0), jnp.max(jnp.where(ok, i, -1), 0)
    values = jnp.asarray(grid)
    none = last < 0
    at = lambda j: values[jnp.clip(j, 0, n - 1)]
    t = np.linspace(0.0, 1.0, _POINTS + 2).astype(dtype).reshape((-1,) + (1,) * len(shape))

    def refined(good, bad):
        """The last allowed value on the way from ``good`` to ``bad``, which is not."""

        def narrower(_, both):
            good, bad = both
            x = good * jnp.exp(t * jnp.log(bad / good))
            x = jnp.round(x) if integer else x
            x = jnp.concatenate([good[None], x[1:-1], bad[None]])
            ok = _allowed(make, x, shape).at[0].set(True)
            k = jnp.sum(jnp.cumprod(ok, 0), 0) - 1  # the last of those that are allowed from ``good`` on
            take = lambda k: jnp.take_along_axis(x, jnp.clip(k, 0, _POINTS + 1)[None], 0)[0]
            return take(k), take(k + 1)

        return lax.fori_loop(0, _ROUNDS, narrower, (good, bad))[0]

    high = jnp.where(last < n - 1, refined(at(last), at(last + 1)), at(last))
    low = jnp.where(first > 0, refined(at(first), at(first - 1)), at(first))
    low, high = (jnp.where(none, jnp.nan, x) for x in (low, high))
    return (low, high) if traced else (np.asarray(low), np.asarray(high))


def _start(low: Any, high: Any, integer: bool, xp: Any) -> Any:
    """1 where that is allowed, else in the middle."""
    middle = xp.sqrt(low * high)
    middle = xp.clip(xp.round(middle), low, high) if integer else middle
    return xp.where((low <= 1) & (high >= 1), 1.0, middle)


# ---- numbers


def _goal(window: float, eps: float, integer: bool) -> _search.Goal:
    return _search.Goal(0.45 * window, max(1e-13, 4 * eps), integer)


def _below(value: Any, target: Any, window: float, xp: Any) -> Any:
    """log of value / target, shifted so that 0 is in the middle of the window below the target."""
    positive = value > 0
    shift = 0.5 * window
    return xp.where(
        positive, xp.log(xp.where(positive, value, 1.0) / target) + shift, xp.where(value == 0, -xp.inf, xp.nan)
    )


def _concrete(make: Callable, target: _Target, shape: tuple[int, ...], ends: tuple, integer: bool) -> Any:
    low, high = _domain(make, shape, ends, integer, traced=False)
    nothing = np.isnan(low)
    if np.any(nothing):
        make(np.full(shape, np.sqrt(ends[0] * ends[1])))  # says what is allowed
        raise ValueError(f"make(x) allows no x that was tried in [{ends[0]:g}, {ends[1]:g}]; give bracket=.")
    wanted = np.broadcast_to(target.value, shape)
    evaluate = lambda x, done, rough: np.broadcast_to(target.ask(make(x[()]), done, rough), shape)
    start, slope, none = _start(low, high, integer, np), np.full(shape, np.nan), np.zeros(shape, bool)
    if target.name == "epsilon" and not integer:
        rough = _searched(evaluate, wanted, _search.begin(start, low, high, slope, none), _ROUGH_WINDOW, integer, True)
        start, slope = (np.where(rough.failed, old, new) for old, new in ((start, rough.x), (slope, rough.slope)))
    found = _searched(evaluate, wanted, _search.begin(start, low, high, slope, none), _WINDOW, integer, False)
    if np.any(found.failed):
        raise ValueError(_infeasible(target, wanted, found, found.failed))
    return found.x.astype(np.int64)[()] if integer else found.x[()]


def _searched(evaluate, wanted, state: _search.Search, window: float, integer: bool, rough: bool) -> _search.Search:
    goal = _goal(window, np.finfo(np.float64).eps, integer)
    shift = 0.0 if integer else window
    for _ in range(_LIMIT):
        value = evaluate(state.x, state.done, rough)
        state = _search.step(state, _below(value, wanted, shift, np), goal)
        if np.all(state.done):
            break
    return state


def _infeasible(target: _Target, wanted: np.ndarray, found: _search.Search, which: np.ndarray) -> str:
    index = np.unravel_index(int(np.argmax(which)), which.shape) if which.ndim else ()
    at = lambda a: float(np.asarray(a)[index])
    value, left = at(wanted), at(found.left)
    where = f" in lane {tuple(map(int, index))}" if index else ""
    if np.isnan(left) or np.isnan(at(found.f_left)) or np.isnan(at(found.f_right)):
        return f"No answer{where}: {target.name} of make(x) is NaN at x = {at(found.x):g}."
    given = ", ".join(f"{k} = {float(np.broadcast_to(v, which.shape)[index]):g}" for k, v in target.at.items())
    seen = [
        f"{value * np.exp(at(f)):g} at x = {at(x):g}"
        for x, f in ((found.left, found.f_left), (found.right, found.f_right))
    ]
    seen = [text for text, _ in itertools.groupby(seen)]
    says = "exceeds it for every x" if at(found.f_left) > 0 else "stays below it for every x"
    return (
        f"{target.name} = {value:g}{f' at {given}' if given else ''} cannot be met{where}: {target.name} of make(x) {says} "
        f"in [{at(found.low):g}, {at(found.high):g}]; it is {' and '.join(seen)}. If x may be beyond, give bracket=."
    )


# ---- tracers


def _traced_answer(make: Callable, target: _Target, shape: tuple[int, ...], ends: tuple, integer: bool) -> Any:
    dtype = jnp.dtype(jnp.result_type(float))
    eps = float(jnp.finfo(dtype).eps)
    window = max(_WINDOW, 4 * eps)
    wanted = jnp.broadcast_to(_rounded_down(target.value, dtype), shape)
    still = target._replace(value=None, at={k: lax.stop_gradient(v) if _traced(v) else v for k, v in target.at.items()})
    held = lax.stop_gradient(wanted)

    record = _without_derivatives(make, jnp.ones(shape, dtype))
    low, high = _domain(record, shape, ends, integer, traced=True)
    none = jnp.isnan(low) | ~(held > 0)
    start = jnp.where(none, 1.0, _start(low, high, integer, jnp))
    goal = _goal(window, eps, integer)

    def again(state):
        value = jnp.broadcast_to(still.ask(record(state.x), state.done), shape)
        return _search.step(state, _below(value, held, 0.0 if integer else window, jnp), goal)

    state = _search.begin(start, low, high, jnp.full(shape, jnp.nan, dtype), none)
    state = jax.tree.map(lambda a: a if a.dtype == bool else a.astype(dtype), state)
    state = lax.while_loop(lambda s: ~jnp.all(s.done) & (jnp.max(s.count) < _LIMIT), again, state)
    x = lax.stop_gradient(jnp.where(state.failed | ~state.done, jnp.nan, state.x))
    if integer:
        return x

    def residual(x):
        return jnp.broadcast_to(target.ask(_require(make(x))), shape).astype(dtype) - wanted

    def divide(slope, y):
        rate = slope(jnp.ones_like(y))
        return y / jnp.where(rate == 0, jnp.nan, rate)

    return lax.custom_root(residual, x, lambda _, x: x, divide)


def _without_derivatives(make: Callable, x: jax.Array) -> Callable:
    """``make`` with what it closes over held fixed: outside, so that no loop that calls it is differentiated.

    Numbers that are not traced stay as they are, in float64.
    """
    fixed: list = []
    structure: list = []

    def moving(x):
        leaves, tree = jax.tree.flatten(_require(make(x)))
        fixed[:] = [None if _traced(leaf) else leaf for leaf in leaves]
        structure[:] = [tree]
        return [leaf for leaf in leaves if _traced(leaf)]

    convert, held = jax.closure_convert(moving, x)
    held = [lax.stop_gradient(a) for a in held]

    def record(x):
        free = iter(convert(x, *held))
        return jax.tree.unflatten(structure[0], [next(free) if a is None else a for a in fixed])

    return record


def _rounded_down(x: Any, dtype: Any) -> Any:
    """A target as a float of ``dtype``, not larger than it was."""
    if _traced(x):
        return jnp.asarray(x, dtype)
    near = np.asarray(x).astype(dtype)
    return jnp.asarray(np.where(near.astype(np.float64) > x, np.nextafter(near, np.zeros_like(near)), near))
