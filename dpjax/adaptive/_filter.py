"""What all filters share: the state, the test of a request, and the search for the largest one that passes it.

A subclass says what a request costs, as a pair of floats, and what the budget is; everything that decides is here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from dpjax import _validate
from dpjax._pytree import node, static
from dpjax.adaptive import _costs, _sums
from dpjax.mechanisms import Adjacency, Mechanism


@node
class FilterState:
    """What a filter remembers; its size does not depend on the number of requests. Printed, it shows what was spent, rounded up.

    Attributes:
      spent: the costs granted so far, in the filter's unit.
      delta: the deltas granted so far.
      granted: how many requests were granted (int32, saturating).
      kind: the class of the filter, which alone knows the unit; part of the structure, not a leaf.
    """

    spent: _sums.Sum
    delta: _sums.Sum
    granted: jax.Array
    kind: str = static()

    def __repr__(self) -> str:
        return f"FilterState({self.kind}: {show(self.granted)} granted, spent {_sums.spent(self.spent)}, delta {_sums.spent(self.delta)})"


@node
class Keyword:
    """The name of a request's cost, as part of a pytree's structure."""

    name: str | None = static()


class Filter:
    """What all filters share. A subclass says what a request costs and whether a total fits."""

    _keywords: tuple[str, ...] = ()  # requests by keyword; the first one is what ``remaining`` speaks of
    _unit: str | None = None  # of a mechanism's cost
    adjacency: Adjacency

    # What a subclass defines.

    def _budget(self, dtype: Any) -> jax.Array:
        """The budget in the state's unit, rounded down."""
        raise NotImplementedError

    def _delta_budget(self, dtype: Any) -> jax.Array:
        """What the mechanisms' own deltas may add up to, rounded down."""
        return _sums.cast(self.delta, dtype, -np.inf)  # type: ignore[attr-defined]

    def _cost(self, keyword: str, x: jax.Array) -> _costs.Pair:
        """The cost of a request, as a pair of floats."""
        raise NotImplementedError

    def _event_shape(self) -> tuple[int, ...]:
        """Axes of the sums behind the batch axes."""
        return ()

    def _fits_each(self, total: _sums.Sum, dtype: Any) -> jax.Array:
        return _sums.at_most(total, self._budget(dtype))

    def _combine(self, fits: jax.Array) -> jax.Array:
        return fits

    def _request_axes(self, x: jax.Array) -> jax.Array:
        """``x``, shaped like the sums, on the axes that a request by the first keyword has."""
        return x

    def _used(self, total: _sums.Sum) -> jax.Array:
        """A differentiable function that reaches ``_budget`` when the budget is used up."""
        return _sums.value(total)

    # The interface.

    def init(self, shape: tuple[int, ...] | None = None) -> FilterState:
        """The state before the first request.

        Args:
          shape: batch shape, for that many independent filters at once; by default that of the parameters.

        Returns:
          A state whose leaves have fixed shapes and dtypes.
        """
        dtype = _sums.default_dtype()
        event = self._event_shape()
        if shape is None:
            budget = jax.eval_shape(lambda f: jnp.zeros(()) + f._budget(dtype) + f._delta_shape(event), self).shape
            batch = tuple(budget[: len(budget) - len(event)])
        else:
            batch = tuple(shape)
        return FilterState(
            _sums.zeros((*batch, *event), dtype),
            _sums.zeros(batch, dtype),
            jnp.array(np.zeros(batch, np.int32)),
            type(self).__name__,
        )

    def _delta_shape(self, event: tuple[int, ...]) -> jax.Array:
        delta = self._delta_budget(_sums.default_dtype())
        return delta.reshape(delta.shape + (1,) * len(event)) if delta.ndim else delta

    def request(
        self, state: FilterState, mechanism: Mechanism | None = None, *, delta: ArrayLike = 0.0, **cost: ArrayLike
    ) -> tuple[FilterState, jax.Array]:
        """Asks for one query; run it only if it is granted.

        Args:
          state: from ``init`` or the last request.
          mechanism: the query as a dpjax mechanism, whose cost is then worked out here; or instead
          **cost: exactly one of the filter's keywords, >= 0. Batch axes broadcast with the state's.
          delta: the query's own delta, in [0, 1].

        Returns:
          The new state and a boolean array. Where it is False the state is unchanged. A NaN or negative request is
          refused.

        Raises:
          TypeError: not exactly one cost, one that this filter does not know, or the state of something else.
          ValueError: a concrete field of ``mechanism`` is out of range.
        """
        return _request(self, state, *self._prepare(state, mechanism, delta, cost))

    def would_exceed(
        self, state: FilterState, mechanism: Mechanism | None = None, *, delta: ArrayLike = 0.0, **cost: ArrayLike
    ) -> jax.Array:
        """Whether ``request`` with the same arguments would be refused."""
        return _would_exceed(self, state, *self._prepare(state, mechanism, delta, cost))

    def remaining(self, state: FilterState) -> jax.Array:
        """The largest next request, in the filter's first keyword, that would be granted; requesting it is granted.

        Found by bisection on the floats with the very test of ``request``. Differentiable in the state and the
        filter's parameters (implicitly). For a vector of orders, order by order; 0 where an order is used up. NaN if
        the filter's parameters are invalid.
        """
        require_state(self, state)
        return _remaining(self, state)

    def remaining_delta(self, state: FilterState) -> jax.Array:
        """What is left for the mechanisms' own deltas; requesting it is granted."""
        require_state(self, state)
        return _remaining_delta(self, state)

    def spent(self, state: FilterState) -> jax.Array:
        """What has been granted so far, in the budget's own unit, rounded up: for display, not a guarantee."""
        require_state(self, state)
        return _sums.upper(state.spent)

    # Shared machinery. Everything concrete is checked and rounded in _prepare; the rest is compiled once per filter.

    def _prepare(
        self, state, mechanism, delta, cost, batch: tuple[int, ...] | None = None
    ) -> tuple[Any, jax.Array | None, jax.Array, Keyword]:
        require_state(self, state)
        dtype = state.spent.high.dtype
        delta = _sums.cast(_validate.number("delta", delta), dtype, np.inf)
        if mechanism is not None:
            if cost:
                raise TypeError(f"give a mechanism or {_or(self._keywords)}, not both.")
            if self._unit is None:
                raise TypeError(f"{type(self).__name__} takes requests by keyword only: {_or(self._keywords)}.")
            return _costs.prepare(mechanism, dtype), None, delta, Keyword(None)
        if len(cost) != 1 or not set(cost) <= set(self._keywords):
            raise TypeError(
                f"{type(self).__name__} takes a mechanism or exactly one of {_or(self._keywords)}; "
                f"got {', '.join(cost) if cost else 'none'}."
            )
        ((keyword, raw),) = cost.items()
        raw = _sums.cast(_validate.number(keyword, raw), dtype, np.inf)
        batch = state.delta.high.shape if batch is None else batch
        events = self._event_shape() if keyword == "renyi" and raw.ndim else ()
        check_shapes((*batch, *events), **{keyword: raw.shape})
        check_shapes(batch, delta=delta.shape)
        return None, raw, delta, Keyword(keyword)

    def _pending(self, state, mechanism, raw, delta, keyword):
        dtype = state.spent.high.dtype
        event = self._event_shape()
        if raw is None:
            high, low = self._mechanism_cost(mechanism, dtype)
            valid = high >= 0
        else:
            valid = raw >= 0
            high, low = self._cost(keyword, raw)
            valid = valid[..., None] if valid.ndim < high.ndim else valid
        if event:
            shape = jnp.broadcast_shapes(high.shape, event)
            valid = jnp.all(jnp.broadcast_to(valid, shape), axis=-1)
        check_shapes(state.spent.high.shape, request=high.shape)
        ok = valid & (delta >= 0) & (delta <= 1)
        ok_wide = ok.reshape(ok.shape + (1,) * len(event))
        shape: Any = jnp.broadcast_shapes(high.shape, state.spent.high.shape, ok_wide.shape)
        # Selecting on ok also keeps compilers from fusing the product into the sum, which must be split exactly.
        high = jnp.where(ok_wide, jnp.broadcast_to(high, shape), 0.0)
        low = jnp.where(ok_wide, jnp.broadcast_to(low, shape), 0.0)
        batch = shape[: len(shape) - len(event)]
        charged = jnp.where(ok, jnp.broadcast_to(_sums.charge(delta), batch), 0.0)
        wide = _widen(state, batch, shape)
        pending = FilterState(
            _sums.add(wide.spent, high, low),
            _sums.add(wide.delta, charged),
            jnp.minimum(wide.granted, np.iinfo(np.int32).max - 1) + 1,
            wide.kind,
        )
        fits = self._combine(self._fits_each(pending.spent, dtype))
        return pending, ok & fits & _sums.at_most(pending.delta, self._delta_budget(dtype))

    def _mechanism_cost(self, mechanism: Mechanism, dtype: Any) -> _costs.Pair:
        assert self._unit is not None
        return _costs.cost(mechanism, self._unit, self.adjacency, dtype)

    @property
    def guarantee(self) -> str:
        """What holds for everything that is released, in words."""
        raise NotImplementedError

    def __repr__(self) -> str:
        names = (f for f in self.__dataclass_fields__ if f != "adjacency")  # type: ignore[attr-defined]
        shown = ", ".join(f"{name}={show(getattr(self, name))}" for name in names)
        return f"{type(self).__name__}({shown}): {self.guarantee}"


def _largest(fits: Callable[[jax.Array], jax.Array], like: jax.Array) -> jax.Array:
    """The largest float at which ``fits`` holds, elementwise, by bisection on the bits; 0 if none, NaN as ``like``."""
    word = jnp.int64 if like.dtype == np.float64 else jnp.int32
    number = lambda bits: lax.bitcast_convert_type(bits, like.dtype)
    top = lax.bitcast_convert_type(jnp.full(like.shape, float(jnp.finfo(like.dtype).max), like.dtype), word)

    def halve(_, ends):
        low, high = ends  # fits(low), not fits(high)
        middle = low + (high - low) // 2
        ok = fits(number(middle))
        return jnp.where(ok, middle, low), jnp.where(ok, high, middle)

    low, _ = lax.fori_loop(0, jnp.iinfo(word).bits - 1, halve, (jnp.zeros_like(top), top))
    return jnp.where(fits(jnp.zeros_like(like)), number(low), 0.0) + like


def require_state(filt: Any, state: Any) -> None:
    """Raises TypeError unless ``state`` came from a filter of the same class."""
    if not isinstance(state, FilterState) or state.kind != type(filt).__name__:
        got = f"one of {state.kind}" if isinstance(state, FilterState) else type(state).__name__
        raise TypeError(f"state must come from this filter's init or request; got {got}.")
    require_dtype(state.spent.high.dtype)


def require_dtype(dtype: Any) -> None:
    """Raises ValueError for a state that JAX would round: one from a 64-bit checkpoint, with 64 bits turned off."""
    if dtype == np.float64 and _sums.default_dtype() != np.float64:
        raise ValueError("state has dtype float64, but it must be float32 unless jax_enable_x64 is on.")


def check_shapes(state: tuple[int, ...], **shapes: tuple[int, ...]) -> None:
    """Raises ValueError unless each shape broadcasts with the state's."""
    for name, shape in shapes.items():
        try:
            np.broadcast_shapes(state, shape)
        except ValueError:
            raise ValueError(f"{name} has shape {shape}, but it must broadcast with the state's, {state}.") from None


def _widen(state: FilterState, batch: tuple[int, ...], shape: tuple[int, ...]) -> FilterState:
    return FilterState(
        jax.tree.map(lambda x: jnp.broadcast_to(x, shape), state.spent),
        jax.tree.map(lambda x: jnp.broadcast_to(x, batch), state.delta),
        jnp.broadcast_to(state.granted, batch),
        state.kind,
    )


@jax.jit
def _request(filt, state, mechanism, raw, delta, keyword):
    pending, granted = filt._pending(state, mechanism, raw, delta, keyword.name)

    def commit(new, old):
        lift = granted.reshape(granted.shape + (1,) * (new.ndim - granted.ndim))
        return jnp.where(lift, new, old)

    return jax.tree.map(commit, pending, _widen(state, pending.granted.shape, pending.spent.high.shape)), granted


@jax.jit
def _would_exceed(filt, state, mechanism, raw, delta, keyword):
    return ~filt._pending(state, mechanism, raw, delta, keyword.name)[1]


@jax.jit
def _remaining(filt, state):
    dtype, keyword, budget = state.spent.high.dtype, filt._keywords[0], filt._budget(state.spent.high.dtype)
    view = filt._request_axes
    total = lambda x: _sums.add(state.spent, *filt._cost(keyword, x))
    fits = lambda x: view(filt._fits_each(total(x), dtype))
    x = lax.stop_gradient(
        _largest(fits, view(jnp.zeros_like(state.spent.high) + jnp.where(jnp.isnan(budget), jnp.nan, 0.0)))
    )
    used, slope = jax.jvp(lambda x: view(filt._used(total(x))), (x,), (jnp.ones_like(x),))
    slope = lax.stop_gradient(slope)
    gap = jnp.where(slope > 0, (view(budget) - used) / jnp.where(slope > 0, slope, 1.0), 0.0)
    gap = jnp.where(jnp.isfinite(gap), gap, 0.0)
    return x + (gap - lax.stop_gradient(gap))  # the value of x with the derivatives of the implicit function


@jax.jit
def _remaining_delta(filt, state):
    budget = filt._delta_budget(state.delta.high.dtype)
    fits = lambda x: _sums.at_most(_sums.add(state.delta, _sums.charge(x)), budget) & (x <= 1)
    return lax.stop_gradient(
        _largest(fits, jnp.zeros_like(state.delta.high) + jnp.where(jnp.isnan(budget), jnp.nan, 0.0))
    )


def conversion_slack(delta: ArrayLike, own: ArrayLike) -> jax.Array:
    """What ``delta`` leaves beside a filter's ``own``, rounded down.

    Raises:
      ValueError: ``delta`` is concrete and not larger.
    """
    dtype = _sums.default_dtype()
    left, right = _sums.cast(delta, dtype, -np.inf), _sums.cast(own, dtype, np.inf)
    if not _validate.is_traced(left) and not _validate.is_traced(right):
        if not np.all((np.asarray(left) > np.asarray(right)) & (np.asarray(left) < 1)):
            raise ValueError(
                f"delta = {show(delta)}, but it must be a number in ({show(own)}, 1), above the filter's own."
            )
    return _sums.sub_down(left, right)


def rest(delta: ArrayLike, slack: ArrayLike | None, dtype: Any) -> jax.Array:
    assert slack is not None
    delta, slack = jnp.broadcast_arrays(_sums.cast(delta, dtype, -np.inf), _sums.cast(slack, dtype, -np.inf))
    return jnp.where(slack <= delta, _sums.sub_down(delta, slack), jnp.nan)


def nonnegative(budget: jax.Array) -> jax.Array:
    """A traced budget that is out of range becomes NaN, against which nothing fits."""
    return jnp.where(budget >= 0, budget, jnp.nan)


def inside(slack: jax.Array) -> jax.Array:
    """``slack`` where it is a probability that a logarithm can take, else NaN."""
    return jnp.where((slack > 0) & (slack < 1), slack, jnp.nan)


def set_budget(obj: Any, name: str, low: float, high: float = math.inf, **open_ends: Any) -> None:
    """Checks a field and stores it as a float that JAX's default dtype can hold, rounded down (it is a budget)."""
    value = _validate.number(name, getattr(obj, name))
    _validate.in_range(name, value, low, high, **open_ends)
    if not _validate.is_traced(value):
        with np.errstate(over="ignore", under="ignore"):
            rounded = np.asarray(value).astype(_sums.default_dtype())
            rounded = np.where(rounded > value, np.nextafter(rounded, -np.inf, dtype=rounded.dtype), rounded)
        tiny = np.asarray(jnp.finfo(rounded.dtype).tiny, rounded.dtype)  # XLA reads smaller numbers as 0
        rounded = np.where(np.abs(rounded) < tiny, np.zeros_like(rounded), rounded)
        if name == "order":  # not a budget: taken as it is
            rounded = np.asarray(value)
        _validate.in_range(f"{name}, in {_sums.default_dtype()},", rounded, low, high, **open_ends)
        value = np.asarray(rounded, np.float64)
        value = float(value) if value.ndim == 0 else value
    object.__setattr__(obj, name, value)


def set_slack(obj: Any) -> None:
    if obj.slack is None:
        object.__setattr__(obj, "slack", obj.delta / 2)
    set_budget(obj, "slack", 0.0, 1.0, low_open=True, high_open=True)
    check_slack(obj.slack, obj.delta)


def check_slack(slack: Any, delta: Any) -> None:
    if _validate.is_traced(slack) or _validate.is_traced(delta):
        return
    if np.any(np.asarray(slack) > np.asarray(delta)) or np.any(np.asarray(slack) <= 0):
        raise ValueError(f"slack = {show(slack)}, but it must be a number in (0, delta], and delta = {show(delta)}.")


def _or(names: tuple[str, ...]) -> str:
    return " or ".join(f"{n}=" for n in names)


def show(x: Any) -> str:
    """A parameter for messages: short for numbers, by shape for large arrays."""
    if _validate.is_traced(x):
        return "<traced>"
    if isinstance(x, str) or x is None:
        return str(x)
    array = np.asarray(x, dtype=object)
    try:
        array = np.asarray(x, dtype=np.float64)
    except (TypeError, ValueError, RuntimeError):  # a placeholder, or an array that was donated
        return repr(x)
    if array.ndim == 0:
        return f"{float(array):g}"
    if array.size > 6:
        return f"array(shape={array.shape}, min={array.min():g}, max={array.max():g})"
    return "[" + ", ".join(f"{float(v):g}" for v in array.ravel()) + "]"
