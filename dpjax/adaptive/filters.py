r"""Privacy filters: a total budget for queries whose privacy parameters are chosen along the way.

A filter is asked before every query and says whether it may be run. Whatever strategy chooses the queries from the
outputs seen so far, and whenever it stops, everything released satisfies the guarantee that the filter was made with:

========================== =================================== ==================== ==============================
filter                     guarantee                           requests             theorem
========================== =================================== ==================== ==============================
``ZCDPFilter``             delta-approximate rho-zCDP          rho, epsilon         1
``RenyiFilter``            delta-approximate (order, B)-RDP    renyi, rho, epsilon  1 (one order; Feldman, Zrnic 2021)
``ApproxDPFilter``         (epsilon, delta)-DP                 epsilon, rho         2
``GDPFilter``              mu-Gaussian DP                      mu                   Smith, Thakurta 2022
``BasicFilter``            (epsilon, delta)-DP                 epsilon              basic composition
``RogersFilter``           (epsilon, delta)-DP                 epsilon              Rogers et al. 2016, comparison
========================== =================================== ==================== ==============================

Theorem numbers are those of Whitehouse, Ramdas, Rogers, Wu, "Fully adaptive composition in differential privacy"
(arXiv 2203.05481). A request that does not fit leaves the state as it was, and a smaller one may follow: the theorems'
stopping rule counts the queries that were run. The guarantee is for the whole budget, not for what has been spent so
far; a bound that holds at every moment is an odometer's.

Filters and states are pytrees of fixed shapes and dtypes. The state's dtype is JAX's default float dtype when ``init``
is called. Budgets are rounded down and costs up, sums are compensated and carry an allowance for rounding, so what is
granted never exceeds the budget, in float32 either: ten requests of 0.1 do not fit a budget of 1.0, since the float 0.1
is more than a tenth (use ``remaining`` for the last one).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from dpjax import _validate, conversions
from dpjax._pytree import node, static
from dpjax.adaptive import _costs, _sums, boundaries
from dpjax.mechanisms import Adjacency, Mechanism


@node
class FilterState:
    """What a filter remembers; its size does not depend on the number of requests.

    Attributes:
      spent: the costs granted so far, in the filter's unit.
      delta: the deltas granted so far.
      granted: how many requests were granted (int32, saturating).
    """

    spent: _sums.Sum
    delta: _sums.Sum
    granted: jax.Array


@node
class _Keyword:
    """The name of a request's cost, as part of a pytree's structure."""

    name: str | None = static()


class _Filter:
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
            shape = budget[: len(budget) - len(event)]
        return FilterState(
            _sums.zeros((*shape, *event), dtype), _sums.zeros(tuple(shape), dtype), jnp.zeros(shape, jnp.int32)
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
        _require_state(state)
        return _remaining(self, state)

    def remaining_delta(self, state: FilterState) -> jax.Array:
        """What is left for the mechanisms' own deltas; requesting it is granted."""
        _require_state(state)
        return _remaining_delta(self, state)

    def spent(self, state: FilterState) -> jax.Array:
        """What has been granted so far, in the budget's own unit, rounded up: for display, not a guarantee."""
        _require_state(state)
        return _sums.upper(state.spent)

    # Shared machinery. Everything concrete is checked and rounded in _prepare; the rest is compiled once per filter.

    def _prepare(self, state, mechanism, delta, cost) -> tuple[Any, jax.Array | None, jax.Array, _Keyword]:
        _require_state(state)
        dtype = state.spent.high.dtype
        delta = _sums.cast(_validate.number("delta", delta), dtype, np.inf)
        if mechanism is not None:
            if cost:
                raise TypeError(f"give a mechanism or {_or(self._keywords)}, not both.")
            if self._unit is None:
                raise TypeError(f"{type(self).__name__} takes requests by keyword only: {_or(self._keywords)}.")
            return _costs.prepare(mechanism, dtype), None, delta, _Keyword(None)
        if len(cost) != 1 or not set(cost) <= set(self._keywords):
            raise TypeError(
                f"{type(self).__name__} takes a mechanism or exactly one of {_or(self._keywords)}; "
                f"got {', '.join(cost) if cost else 'none'}."
            )
        ((keyword, raw),) = cost.items()
        return None, _sums.cast(_validate.number(keyword, raw), dtype, np.inf), delta, _Keyword(keyword)

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
        ok = valid & (delta >= 0) & (delta <= 1)
        ok_wide = ok.reshape(ok.shape + (1,) * len(event))
        shape = jnp.broadcast_shapes(high.shape, state.spent.high.shape, ok_wide.shape)
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


@node
class ZCDPFilter(_Filter):
    r"""Grants queries while their zCDP parameters add up to at most ``rho`` and their deltas to at most ``delta``.

    A query may be requested by ``rho`` (it is ``delta``-approximate rho-zCDP given the past), by ``epsilon``
    ((epsilon, delta)-DP, charged :math:`\frac12\epsilon^2`, Lemma 1), or as a mechanism.

    Attributes:
      rho: the budget, >= 0.
      delta: what the queries' own deltas may add up to, in [0, 1].
      adjacency: for requests by mechanism.

    Guarantee:
      Everything released is ``delta``-approximate ``rho``-zCDP (Theorem 1).

    Raises:
      ValueError: a concrete argument is out of range.

    Example:
      >>> filt = ZCDPFilter(rho=0.5)
      >>> state = filt.init()
      >>> state, granted = filt.request(state, rho=0.375)
      >>> bool(granted), float(filt.remaining(state))
      (True, 0.125)
      >>> state, granted = filt.request(state, rho=0.25)
      >>> bool(granted), float(filt.remaining(state))
      (False, 0.125)
    """

    rho: ArrayLike
    delta: ArrayLike = 0.0
    adjacency: Adjacency = static(default=Adjacency.ADD_OR_REMOVE_ONE)

    _keywords = ("rho", "epsilon")
    _unit = "rho"

    def __post_init__(self):
        _set(self, "rho", 0.0)
        _set(self, "delta", 0.0, 1.0)
        _costs.check_adjacency(self.adjacency)

    def _budget(self, dtype):
        return _nonnegative(_sums.cast(self.rho, dtype, -np.inf))

    def _cost(self, keyword, x):
        if keyword == "rho":
            return _sums.charge(x), jnp.zeros_like(x)
        high, low = _sums.square(x)
        return high / 2, low / 2

    def epsilon(self, delta: ArrayLike, method: str = "tight") -> jax.Array:
        """The epsilon for which everything released is (epsilon, delta)-DP; ``delta`` must exceed the filter's own.

        Example:
          >>> print(f"{ZCDPFilter(rho=0.1).epsilon(1e-6):.4f}")
          2.1419
        """
        slack = jnp.asarray(delta) - jnp.asarray(self.delta)
        return conversions.zcdp_to_dp(self.rho, slack, method)

    @property
    def guarantee(self) -> str:
        """What holds for everything that is released, in words."""
        return f"{show(self.delta)}-approximate {show(self.rho)}-zCDP"


@node
class RenyiFilter(_Filter):
    r"""Grants queries while their Renyi divergences add up to at most ``budget``.

    A query may be requested by ``renyi`` (its divergence at every order of the filter), by ``rho`` or ``epsilon``
    (without delta: pure zCDP, pure DP), or as a mechanism, a Poisson-sampled Gaussian included: DP-SGD whose noise and
    sampling rate are chosen as training goes.

    With a vector of orders and ``combine="all"`` a query must fit the budget of every order. With ``combine="any"`` it
    need fit only one, and in return delta is split: let :math:`N_k` be where order k alone would have stopped. The
    interaction ends at one of them, so its hockey-stick divergence at epsilon is at most the sum of those at the
    :math:`N_k`, each of which is at most ``slack / len(order)`` if epsilon is the largest that the orders' budgets
    imply at that delta. (Without the split, 'some order fits' is not covered by the theorem.)

    Attributes:
      order: > 1; a number or a vector (K,).
      budget: >= 0, of the orders' shape; batch axes in front. ``for_dp`` chooses budgets from an (epsilon, delta).
      delta: in [0, 1]. For ``"all"``, what the queries' own deltas may add up to (one decomposition for all orders).
        For ``"any"``, the delta of the guarantee, of which ``slack`` is for the conversion and the rest for the
        queries' own deltas.
      slack: ``"any"`` only, in (0, delta]; by default delta / 2.
      combine: ``"all"`` or ``"any"``.
      adjacency: for requests by mechanism.

    Guarantee:
      ``"all"``: everything released is ``delta``-approximate (order, budget)-RDP at each order (Theorem 1's RDP form;
      Feldman and Zrnic 2021 for delta = 0). ``"any"``: (``epsilon()``, ``delta``)-DP.

    Raises:
      ValueError: a concrete argument is out of range, or the shapes do not fit.

    Example:
      >>> from dpjax.mechanisms import Gaussian, PoissonSampled
      >>> filt = RenyiFilter(order=8.0, budget=0.5)
      >>> state, granted = filt.request(filt.init(), PoissonSampled(0.01, Gaussian(1.0)))
      >>> bool(granted), f"{float(filt.spent(state)):.5f}"
      (True, '0.00089')
    """

    order: ArrayLike
    budget: ArrayLike
    delta: ArrayLike = 0.0
    slack: ArrayLike | None = None
    combine: str = static(default="all")
    adjacency: Adjacency = static(default=Adjacency.ADD_OR_REMOVE_ONE)

    _keywords = ("renyi", "rho", "epsilon")
    _unit = "renyi"

    def __post_init__(self):
        _validate.one_of("combine", self.combine, ("all", "any"))
        _costs.check_adjacency(self.adjacency)
        _set(self, "order", 1.0, math.inf, low_open=True, high_open=True)
        # a negative budget is an order that cannot serve the target: it never grants
        _set(self, "budget", 0.0 if self.combine == "all" else -math.inf)
        _set(self, "delta", 0.0, 1.0)
        if np.ndim(self.order) > 1:
            raise ValueError(f"order has shape {np.shape(self.order)}, but it must be a number or a vector.")
        if np.ndim(self.order) == 1 and np.shape(self.budget)[-1:] not in ((), (1,), np.shape(self.order)):
            raise ValueError(
                f"budget has shape {np.shape(self.budget)}, but its last axis must have the orders' length "
                f"{np.shape(self.order)[0]}."
            )
        if self.combine == "any":
            if np.ndim(self.order) == 0:
                raise ValueError('combine = "any", but order is a number; it must be a vector of orders.')
            _set_slack(self)
        elif self.slack is not None:
            raise ValueError(f'slack = {self.slack!r}, but it must be None unless combine is "any".')

    @classmethod
    def for_dp(
        cls,
        epsilon: ArrayLike,
        delta: ArrayLike,
        order: ArrayLike,
        *,
        slack: ArrayLike | None = None,
        combine: str = "any",
        adjacency: Adjacency = Adjacency.ADD_OR_REMOVE_ONE,
    ) -> RenyiFilter:
        """The filter whose budgets are the largest that imply (epsilon, delta)-DP.

        Args:
          epsilon: target, > 0.
          delta: target in (0, 1); ``slack`` of it (by default half) for the conversion, the rest for the queries' own.
          order: one order, or a vector for ``combine="any"``. (With ``"all"`` every order would have to fit although
            one is enough, so a vector is refused.)
          slack: see the class.
          combine: see the class; ignored for one order.
          adjacency: see the class.

        Returns:
          The filter.

        Raises:
          ValueError: a concrete argument is out of range.

        Example:
          >>> filt = RenyiFilter.for_dp(3.0, 1e-5, [4.0, 8.0, 16.0], slack=1e-5)
          >>> print(f"{filt.epsilon():.4f}")
          3.0000
        """
        for name, x in (("epsilon", epsilon), ("delta", delta)):
            _validate.in_range(name, x, 0.0, math.inf if name == "epsilon" else 1.0, low_open=True)
        half = _validate.number("delta", delta) / 2 if slack is None else _validate.number("slack", slack)
        _check_slack(half, _validate.number("delta", delta))
        if np.ndim(order) == 0:
            rest = jnp.asarray(_sums.sub_down(*_pair(delta, half)))
            return cls(order, conversions.rdp_budget(order, epsilon, half), rest, adjacency=adjacency)
        if combine != "any":
            raise ValueError(f'combine = {combine!r}, but it must be "any" for a vector of orders.')
        share = jnp.asarray(half)[..., None] / np.shape(order)[0]
        share = share * (1 - 2 * jnp.finfo(share.dtype).eps)
        budget = conversions.rdp_budget(jnp.asarray(order), jnp.asarray(epsilon)[..., None], share)
        return cls(order, budget, delta, half, "any", adjacency)

    def _event_shape(self):
        return np.shape(self.order)

    def _budget(self, dtype):
        budget = _sums.cast(self.budget, dtype, -np.inf)
        order = self._order(dtype)
        budget = jnp.where((order > 1) & (order < jnp.inf), budget, jnp.nan)
        return _nonnegative(budget) if self.combine == "all" else jnp.where(self._slack_ok(dtype), budget, jnp.nan)

    def _slack_ok(self, dtype):
        slack, delta = jnp.asarray(self.slack, dtype), jnp.asarray(self.delta, dtype)
        return ((slack > 0) & (slack <= delta))[..., None]

    def _order(self, dtype):
        return jnp.asarray(self.order, dtype)

    def _delta_budget(self, dtype):
        if self.combine == "all":
            return _sums.cast(self.delta, dtype, -np.inf)
        return _rest(self.delta, self.slack, dtype)

    def _combine(self, fits):
        if not self._event_shape():
            return fits
        return jnp.all(fits, axis=-1) if self.combine == "all" else jnp.any(fits, axis=-1)

    def _cost(self, keyword, x):
        order = self._order(x.dtype)
        if keyword != "renyi" and order.ndim:
            x = x[..., None]
        if keyword == "renyi":
            high = _sums.charge(x)
        elif keyword == "rho":
            high = _sums.charge(_sums.up(order * x))
        else:
            high = _sums.charge(_pure_renyi(order, x))
        return high, jnp.zeros_like(high)

    def _mechanism_cost(self, mechanism, dtype):
        return _costs.cost(mechanism, "renyi", self.adjacency, dtype, self._order(dtype))

    def epsilon(self, delta: ArrayLike | None = None) -> jax.Array:
        """The epsilon for which everything released is (epsilon, delta)-DP.

        Args:
          delta: for ``combine="all"``, above the filter's own; for ``"any"`` the filter's own is meant.
        """
        if self.combine == "any":
            if delta is not None:
                raise ValueError(f'delta = {delta!r}, but it must be None for combine="any": the filter fixes it.')
            share = jnp.asarray(self.slack)[..., None] / np.shape(self.order)[0]
            budget = jnp.asarray(self.budget)
            epsilons = conversions.rdp_to_dp(self.order, jnp.maximum(budget, 0.0), share)
            return jnp.max(jnp.where(budget >= 0, epsilons, 0.0), axis=-1)
        if delta is None:
            raise TypeError('epsilon() needs delta unless combine="any".')
        slack = jnp.asarray(delta) - jnp.asarray(self.delta)
        event = len(self._event_shape())
        epsilons = conversions.rdp_to_dp(self.order, self.budget, slack[..., None] if event else slack)
        return jnp.min(epsilons, axis=-1) if event else epsilons

    @property
    def guarantee(self) -> str:
        """What holds for everything that is released, in words."""
        if self.combine == "any":
            return f"(epsilon(), {show(self.delta)})-DP"
        return f"{show(self.delta)}-approximate ({show(self.order)}, {show(self.budget)})-RDP"


@node
class ApproxDPFilter(_Filter):
    r"""Grants queries while advanced composition of what has been granted stays within ``epsilon``.

    A query may be requested by ``epsilon`` ((epsilon, delta)-DP given the past), by ``rho`` (delta-approximate
    rho-zCDP, of the same effect as :math:`\epsilon = \sqrt{2\rho}`), or as a mechanism. The rule is

    .. math:: \sqrt{2\log\tfrac1{\delta'}\textstyle\sum\epsilon_m^2} + \tfrac12\sum\epsilon_m^2 \le \epsilon
              \quad\text{and}\quad \sum\delta_m \le \delta - \delta',

    :math:`\delta'` = ``slack``: no worse than advanced composition for parameters fixed in advance. The circulated
    Theorem 2 has :math:`\delta` for :math:`\delta'` in the logarithm of its conclusion, which is false: 2000 queries
    of (0.02, 5e-6)-randomised response reach 0.0102 at the epsilon that is printed for delta = 0.01.

    Attributes:
      epsilon: the budget, >= 0.
      delta: in (0, 1).
      slack: the part of delta that the composition may fail with, in (0, delta]; by default delta / 2. The rest is
        for the queries' own deltas; with slack = delta every query must be pure.
      method: ``"published"``, or ``"tight"``: by the best order of zCDP instead of the closed form, and
        :math:`\epsilon\tanh(\epsilon/2)` instead of :math:`\frac12\epsilon^2`. The same theorem grants about 30% more.
      adjacency: for requests by mechanism.

    Guarantee:
      Everything released is (epsilon, delta)-DP (Theorem 2, in its epsilon-only form).

    Raises:
      ValueError: a concrete argument is out of range.

    Example:
      >>> filt = ApproxDPFilter(epsilon=1.0, delta=1e-6, slack=1e-6)
      >>> filt
      ApproxDPFilter(epsilon=1, delta=1e-06, slack=1e-06, method=published): (1, 1e-06)-DP
      >>> state, number = filt.init(), 0
      >>> while not filt.would_exceed(state, epsilon=0.1):
      ...     state, granted = filt.request(state, epsilon=0.1)
      ...     number += int(granted)
      >>> number
      3
      >>> state, granted = filt.request(state, epsilon=filt.remaining(state))
      >>> bool(granted), f"{float(filt.spent(state)):.6f}"
      (True, '1.000000')
    """

    epsilon: ArrayLike
    delta: ArrayLike
    slack: ArrayLike | None = None
    method: str = static(default="published")
    adjacency: Adjacency = static(default=Adjacency.ADD_OR_REMOVE_ONE)

    _keywords = ("epsilon", "rho")
    _unit = "rho"

    def __post_init__(self):
        _validate.one_of("method", self.method, ("published", "tight"))
        _costs.check_adjacency(self.adjacency)
        _set(self, "epsilon", 0.0)
        _set(self, "delta", 0.0, 1.0, low_open=True, high_open=True)
        _set_slack(self)

    @classmethod
    def from_rho(cls, rho: ArrayLike, delta: ArrayLike, slack: ArrayLike | None = None) -> ApproxDPFilter:
        r"""The filter in Theorem 2's own terms: stop before :math:`\frac12\sum\epsilon_m^2` exceeds ``rho``.

        Returns:
          The filter with ``epsilon`` = :math:`\rho + 2\sqrt{\rho\log(1/\delta')}`.

        Example:
          >>> ApproxDPFilter.from_rho(0.02, 1e-6)
          ApproxDPFilter(epsilon=1.09736, delta=1e-06, slack=5e-07, method=published): (1.09736, 1e-06)-DP
        """
        share = _validate.number("delta", delta) / 2 if slack is None else slack
        epsilon = conversions.zcdp_to_dp(rho, share)
        # the two roundings, up here and down in the budget, would cost the last request; this takes them back
        epsilon = epsilon + lax.stop_gradient(24 * jnp.finfo(epsilon.dtype).eps * epsilon)
        return cls(epsilon if _validate.is_traced(epsilon) else np.asarray(epsilon), delta, slack)

    def _budget(self, dtype):  # in intrinsic time, the sum of squared epsilons
        epsilon, slack = _sums.cast(self.epsilon, dtype, -np.inf), _sums.cast(self.slack, dtype, -np.inf)
        slack = jnp.where(slack <= jnp.asarray(self.delta, dtype), slack, jnp.nan)
        return 2 * conversions.zcdp_budget(epsilon, _inside(slack), self.method)

    def _delta_budget(self, dtype):
        return _rest(self.delta, self.slack, dtype)

    def _cost(self, keyword, x):
        if keyword == "rho":
            return _sums.charge(2 * x), jnp.zeros_like(x)
        high, low = _sums.square(x)
        if self.method == "tight":
            sharp = _sums.charge(_sums.up(2 * x * jnp.tanh(x / 2), 12.0))
            high, low = jnp.where(sharp < high, sharp, high), jnp.where(sharp < high, 0.0, low)
        return high, low

    def _mechanism_cost(self, mechanism, dtype):
        high, low = _costs.cost(mechanism, "rho", self.adjacency, dtype)
        return 2 * high, 2 * low

    def spent(self, state: FilterState) -> jax.Array:
        """The epsilon of what has been granted so far, by the filter's own rule: for display, not a guarantee."""
        _require_state(state)
        time = _sums.upper(state.spent)
        slack = _inside(_sums.cast(self.slack, time.dtype, -np.inf))
        return conversions.zcdp_to_dp(time / 2, slack, self.method)

    @property
    def guarantee(self) -> str:
        """What holds for everything that is released, in words."""
        return f"({show(self.epsilon)}, {show(self.delta)})-DP"


@node
class GDPFilter(_Filter):
    r"""Grants queries while the squares of their Gaussian-DP parameters add up to at most :math:`\mu^2`.

    For queries that are ``mu``-GDP given the past: Gaussian mechanisms whose noise is chosen from earlier outputs. No
    such filter is known for general trade-off functions, and a Poisson-sampled Gaussian is refused.

    Attributes:
      mu: the budget, >= 0.
      adjacency: for requests by mechanism.

    Guarantee:
      Everything released is ``mu``-GDP: as private as one Gaussian mechanism with noise multiplier 1 / mu (Smith and
      Thakurta 2022; Koskela, Tobaben, Honkela 2023).

    Raises:
      ValueError: a concrete argument is out of range.

    Example:
      >>> from dpjax.mechanisms import Gaussian
      >>> filt = GDPFilter(mu=1.0)
      >>> state = filt.init()
      >>> for _ in range(4):
      ...     state, granted = filt.request(state, Gaussian(2.0))
      >>> bool(granted), float(filt.remaining(state))
      (True, 0.0)
    """

    mu: ArrayLike
    adjacency: Adjacency = static(default=Adjacency.ADD_OR_REMOVE_ONE)

    _keywords = ("mu",)
    _unit = "mu_squared"

    def __post_init__(self):
        _set(self, "mu", 0.0)
        _costs.check_adjacency(self.adjacency)

    def _budget(self, dtype):
        mu = _sums.cast(self.mu, dtype, -np.inf)
        high, low = _sums.square(_nonnegative(mu))
        return jnp.where(low < 0, _sums.down(high), high)

    def _delta_budget(self, dtype):
        return jnp.zeros((), dtype)

    def _cost(self, keyword, x):
        return _sums.square(x)

    def spent(self, state: FilterState) -> jax.Array:
        """The mu of what has been granted so far, rounded up: for display, not a guarantee."""
        _require_state(state)
        total = _sums.upper(state.spent)
        root = jnp.where(total > 0, jnp.sqrt(jnp.where(total > 0, total, 1.0)), jnp.where(total == 0, 0.0, jnp.nan))
        return jnp.where(lax.stop_gradient(root * root == total), root, _sums.up(root, 4.0))

    @property
    def guarantee(self) -> str:
        """What holds for everything that is released, in words."""
        return f"{show(self.mu)}-GDP"


@node
class BasicFilter(_Filter):
    """Grants queries while their epsilons add up to at most ``epsilon`` and their deltas to at most ``delta``.

    Better than ``ApproxDPFilter`` for a few large queries; which of the two is used must be decided beforehand.

    Attributes:
      epsilon: the budget, >= 0.
      delta: in [0, 1], all of it for the queries' own deltas.

    Guarantee:
      Everything released is (epsilon, delta)-DP (basic composition; Rogers et al. 2016).

    Raises:
      ValueError: a concrete argument is out of range.

    Example:
      >>> filt = BasicFilter(epsilon=1.0, delta=0.0)
      >>> state, granted = filt.request(filt.init(), epsilon=0.75)
      >>> float(filt.remaining(state))
      0.25
    """

    epsilon: ArrayLike
    delta: ArrayLike

    _keywords = ("epsilon",)

    def __post_init__(self):
        _set(self, "epsilon", 0.0)
        _set(self, "delta", 0.0, 1.0)

    def _budget(self, dtype):
        return _nonnegative(_sums.cast(self.epsilon, dtype, -np.inf))

    def _cost(self, keyword, x):
        return _sums.charge(x), jnp.zeros_like(x)

    @property
    def guarantee(self) -> str:
        """What holds for everything that is released, in words."""
        return f"({show(self.epsilon)}, {show(self.delta)})-DP"


@node
class RogersFilter(_Filter):
    r"""The filter of Rogers, Roth, Ullman and Vadhan (2016), for comparison: never better than ``ApproxDPFilter``.

    Grants while :math:`\sum_m \epsilon_m\frac{e^{\epsilon_m}-1}2 + \sqrt{2\big(v + c\big)\big(1 +
    \tfrac12\log(1 + v/c)\big)\log\tfrac2{\delta}} \le \epsilon`, where :math:`v = \sum\epsilon_m^2` and
    :math:`c = \epsilon^2/(28.04\log(1/\delta))`, and :math:`\sum\delta_m \le \delta/2`.

    Attributes:
      epsilon: the budget, > 0.
      delta: in (0, 1); half of it is for the queries' own deltas.

    Guarantee:
      Everything released is (epsilon, delta)-DP, as published there.

    Raises:
      ValueError: a concrete argument is out of range.

    Example:
      >>> filt, ours = RogersFilter(epsilon=1.0, delta=1e-6), ApproxDPFilter(epsilon=1.0, delta=1e-6)
      >>> print(f"{filt.remaining(filt.init()):.3f} {ours.remaining(ours.init()):.3f}")
      0.122 0.183
    """

    epsilon: ArrayLike
    delta: ArrayLike

    _keywords = ("epsilon",)

    def __post_init__(self):
        _set(self, "epsilon", 0.0, low_open=True)
        _set(self, "delta", 0.0, 1.0, low_open=True, high_open=True)

    # The state's last axis holds the intrinsic time and the drift.

    def _event_shape(self):
        return (2,)

    def _budget(self, dtype):
        epsilon = _sums.cast(self.epsilon, dtype, -np.inf)
        return jnp.where(epsilon > 0, epsilon, jnp.nan)[..., None] * jnp.ones((2,), dtype)

    def _delta_budget(self, dtype):
        return _sums.cast(self.delta, dtype, -np.inf) / 2

    def _fits_each(self, total, dtype):
        totals = _sums.upper(total)
        return jnp.broadcast_to((self._bound(totals) <= self._budget(dtype)[..., 0])[..., None], totals.shape)

    def _bound(self, totals):
        dtype = totals.dtype
        epsilon = _sums.cast(self.epsilon, dtype, -np.inf)
        log_inverse = -jnp.log(_inside(_sums.cast(self.delta, dtype, -np.inf)))
        c = epsilon * epsilon / (28.04 * log_inverse)
        time = totals[..., 0]
        square = 2 * (time + c) * (1 + jnp.log1p(time / c) / 2) * (log_inverse + math.log(2.0))
        return _sums.up(totals[..., 1] + jnp.sqrt(square), 24.0)

    def _used(self, total):
        return self._bound(_sums.value(total))[..., None] * jnp.ones((2,), total.high.dtype)

    def _combine(self, fits):
        return jnp.all(fits, axis=-1)

    def _request_axes(self, x):
        return x[..., 0]

    def _cost(self, keyword, x):
        high, low = _sums.square(x)
        drift = _sums.charge(_sums.up(x * jnp.expm1(x) / 2, 12.0))
        return jnp.stack([high, drift], axis=-1), jnp.stack([low, jnp.zeros_like(low)], axis=-1)

    def spent(self, state: FilterState) -> jax.Array:
        """The epsilon of what has been granted so far, by the filter's own rule: for display, not a guarantee."""
        _require_state(state)
        return self._bound(_sums.upper(state.spent))

    @property
    def guarantee(self) -> str:
        """What holds for everything that is released, in words."""
        return f"({show(self.epsilon)}, {show(self.delta)})-DP"


def _pure_renyi(order: jax.Array, epsilon: jax.Array) -> jax.Array:
    """The Renyi divergence of randomised response, the largest of any epsilon-DP mechanism; rounded up."""
    excess = order - 1
    near = jnp.where(order * epsilon < 20, epsilon, 0.0)
    product = 2 * jnp.sinh(order * near / 2) * jnp.sinh(excess * near / 2) / jnp.cosh(near / 2)
    far = excess * epsilon + jnp.log1p(jnp.exp(-(2 * order - 1) * epsilon)) - jnp.log1p(jnp.exp(-epsilon))
    value = jnp.where(order * epsilon < 20, jnp.log1p(product), far) / excess
    return jnp.where(epsilon >= 0, _sums.up(value, 64.0), jnp.nan)


def _largest(fits: Callable[[jax.Array], jax.Array], like: jax.Array) -> jax.Array:
    """The largest float at which ``fits`` holds, elementwise, by bisection on the bits; 0 if none, NaN like ``like``."""
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


def _require_state(state: Any) -> None:
    if not isinstance(state, FilterState):
        raise TypeError(f"state must come from this filter's init or request; got {type(state).__name__}.")


def _widen(state: FilterState, batch: tuple[int, ...], shape: tuple[int, ...]) -> FilterState:
    return FilterState(
        jax.tree.map(lambda x: jnp.broadcast_to(x, shape), state.spent),
        jax.tree.map(lambda x: jnp.broadcast_to(x, batch), state.delta),
        jnp.broadcast_to(state.granted, batch),
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
    x = lax.stop_gradient(_largest(fits, view(jnp.zeros_like(state.spent.high) + 0 * budget)))
    used, slope = jax.jvp(lambda x: view(filt._used(total(x))), (x,), (jnp.ones_like(x),))
    slope = lax.stop_gradient(slope)
    gap = jnp.where(slope > 0, (view(budget) - used) / jnp.where(slope > 0, slope, 1.0), 0.0)
    gap = jnp.where(jnp.isfinite(gap), gap, 0.0)
    return x + (gap - lax.stop_gradient(gap))  # the value of x with the derivatives of the implicit function


@jax.jit
def _remaining_delta(filt, state):
    budget = filt._delta_budget(state.delta.high.dtype)
    fits = lambda x: _sums.at_most(_sums.add(state.delta, _sums.charge(x)), budget) & (x <= 1)
    return lax.stop_gradient(_largest(fits, jnp.zeros_like(state.delta.high) + 0 * budget))


def _pair(a: ArrayLike, b: ArrayLike) -> tuple[jax.Array, jax.Array]:
    dtype = _sums.default_dtype()
    return _sums.cast(a, dtype, -np.inf), _sums.cast(b, dtype, np.inf)


def _rest(delta: ArrayLike, slack: ArrayLike | None, dtype: Any) -> jax.Array:
    assert slack is not None
    delta, slack = jnp.broadcast_arrays(_sums.cast(delta, dtype, -np.inf), _sums.cast(slack, dtype, -np.inf))
    return jnp.where(slack <= delta, _sums.sub_down(delta, slack), jnp.nan)


def _nonnegative(budget: jax.Array) -> jax.Array:
    """A traced budget that is out of range becomes NaN, against which nothing fits."""
    return jnp.where(budget >= 0, budget, jnp.nan)


def _inside(slack: jax.Array) -> jax.Array:
    """``slack`` where it is a probability that a logarithm can take, else NaN."""
    return jnp.where((slack > 0) & (slack < 1), slack, jnp.nan)


def _set(obj: Any, name: str, low: float, high: float = math.inf, **open_ends: bool) -> None:
    """Checks a field and stores it as a float that JAX's default dtype can hold, rounded down (it is a budget)."""
    value = _validate.number(name, getattr(obj, name))
    _validate.in_range(name, value, low, high, **open_ends)
    if not _validate.is_traced(value):
        rounded = np.asarray(value).astype(_sums.default_dtype())
        with np.errstate(under="ignore"):
            rounded = np.where(rounded > value, np.nextafter(rounded, -np.inf, dtype=rounded.dtype), rounded)
        if name == "order":  # not a budget: taken as it is
            rounded = np.asarray(value)
        value = np.asarray(rounded, np.float64)
        value = float(value) if value.ndim == 0 else value
    object.__setattr__(obj, name, value)


def _set_slack(obj: Any) -> None:
    if obj.slack is None:
        object.__setattr__(obj, "slack", obj.delta / 2)
    _set(obj, "slack", 0.0, 1.0, low_open=True, high_open=True)
    _check_slack(obj.slack, obj.delta)


def _check_slack(slack: Any, delta: Any) -> None:
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
    except (TypeError, ValueError):
        return repr(x)
    if array.ndim == 0:
        return f"{float(array):g}"
    if array.size > 6:
        return f"array(shape={array.shape}, min={array.min():g}, max={array.max():g})"
    return "[" + ", ".join(f"{float(v):g}" for v in array.ravel()) + "]"
