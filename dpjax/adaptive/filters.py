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

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from dpjax import _validate, conversions
from dpjax._pytree import node, static
from dpjax.adaptive import _costs, _sums
from dpjax.adaptive._filter import (
    Filter,
    FilterState,
    check_slack,
    inside,
    nonnegative,
    require_state,
    rest,
    set_budget,
    set_slack,
    show,
)
from dpjax.mechanisms import Adjacency


@node
class ZCDPFilter(Filter):
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
        set_budget(self, "rho", 0.0)
        set_budget(self, "delta", 0.0, 1.0)
        _costs.check_adjacency(self.adjacency)

    def _budget(self, dtype):
        return nonnegative(_sums.cast(self.rho, dtype, -np.inf))

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
class RenyiFilter(Filter):
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
        set_budget(self, "order", 1.0, math.inf, low_open=True, high_open=True)
        # a negative budget is an order that cannot serve the target: it never grants
        set_budget(self, "budget", 0.0 if self.combine == "all" else -math.inf)
        set_budget(self, "delta", 0.0, 1.0)
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
            set_slack(self)
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
        check_slack(half, _validate.number("delta", delta))
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
        return nonnegative(budget) if self.combine == "all" else jnp.where(self._slack_ok(dtype), budget, jnp.nan)

    def _slack_ok(self, dtype):
        slack, delta = jnp.asarray(self.slack, dtype), jnp.asarray(self.delta, dtype)
        return ((slack > 0) & (slack <= delta))[..., None]

    def _order(self, dtype):
        return jnp.asarray(self.order, dtype)

    def _delta_budget(self, dtype):
        if self.combine == "all":
            return _sums.cast(self.delta, dtype, -np.inf)
        return rest(self.delta, self.slack, dtype)

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
class ApproxDPFilter(Filter):
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
        set_budget(self, "epsilon", 0.0)
        set_budget(self, "delta", 0.0, 1.0, low_open=True, high_open=True)
        set_slack(self)

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
        return 2 * conversions.zcdp_budget(epsilon, inside(slack), self.method)

    def _delta_budget(self, dtype):
        return rest(self.delta, self.slack, dtype)

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
        require_state(self, state)
        time = _sums.upper(state.spent)
        slack = inside(_sums.cast(self.slack, time.dtype, -np.inf))
        return conversions.zcdp_to_dp(time / 2, slack, self.method)

    @property
    def guarantee(self) -> str:
        """What holds for everything that is released, in words."""
        return f"({show(self.epsilon)}, {show(self.delta)})-DP"


@node
class GDPFilter(Filter):
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
        set_budget(self, "mu", 0.0)
        _costs.check_adjacency(self.adjacency)

    def _budget(self, dtype):
        mu = _sums.cast(self.mu, dtype, -np.inf)
        high, low = _sums.square(nonnegative(mu))
        return jnp.where(low < 0, _sums.down(high), high)

    def _delta_budget(self, dtype):
        return jnp.zeros((), dtype)

    def _cost(self, keyword, x):
        return _sums.square(x)

    def spent(self, state: FilterState) -> jax.Array:
        """The mu of what has been granted so far, rounded up: for display, not a guarantee."""
        require_state(self, state)
        total = _sums.upper(state.spent)
        root = jnp.where(total > 0, jnp.sqrt(jnp.where(total > 0, total, 1.0)), jnp.where(total == 0, 0.0, jnp.nan))
        return jnp.where(lax.stop_gradient(root * root == total), root, _sums.up(root, 4.0))

    @property
    def guarantee(self) -> str:
        """What holds for everything that is released, in words."""
        return f"{show(self.mu)}-GDP"


@node
class BasicFilter(Filter):
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
        set_budget(self, "epsilon", 0.0)
        set_budget(self, "delta", 0.0, 1.0)

    def _budget(self, dtype):
        return nonnegative(_sums.cast(self.epsilon, dtype, -np.inf))

    def _cost(self, keyword, x):
        return _sums.charge(x), jnp.zeros_like(x)

    @property
    def guarantee(self) -> str:
        """What holds for everything that is released, in words."""
        return f"({show(self.epsilon)}, {show(self.delta)})-DP"


@node
class RogersFilter(Filter):
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
        set_budget(self, "epsilon", 0.0, low_open=True)
        set_budget(self, "delta", 0.0, 1.0, low_open=True, high_open=True)

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
        log_inverse = -jnp.log(inside(_sums.cast(self.delta, dtype, -np.inf)))
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
        require_state(self, state)
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


def _pair(a: ArrayLike, b: ArrayLike) -> tuple[jax.Array, jax.Array]:
    dtype = _sums.default_dtype()
    return _sums.cast(a, dtype, -np.inf), _sums.cast(b, dtype, np.inf)
