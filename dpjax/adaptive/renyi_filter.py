"""The Renyi filter, for one order or several; the only one that profits from sampling."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from dpjax import _validate, conversions
from dpjax._pytree import node, static
from dpjax.adaptive import _costs, _sums
from dpjax.adaptive._filter import Filter, check_slack, conversion_slack, nonnegative, rest, set_budget, set_slack, show
from dpjax.mechanisms import Adjacency, require_adjacency


@node
class RenyiFilter(Filter):
    r"""Grants queries while their Renyi divergences add up to at most ``budget``.

    A query may be requested by ``renyi`` (its divergence at every order of the filter), by ``rho`` or ``epsilon``
    (without delta: pure zCDP, pure DP), or as a mechanism, a sampled Gaussian included (by Poisson sampling, also into
    batches of limited size, or of a fixed size): DP-SGD whose noise and sampling rate are chosen as training goes.

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
        require_adjacency(self.adjacency)
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
          ValueError: a concrete argument is out of range, or no order leaves a budget.

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
            own = rest(delta, half, _sums.default_dtype())
            return cls(order, _with_room(order, conversions.rdp_budget(order, epsilon, half)), own, adjacency=adjacency)
        if combine != "any":
            raise ValueError(f'combine = {combine!r}, but it must be "any" for a vector of orders.')
        share = jnp.asarray(half)[..., None] / np.shape(order)[0]
        share = share * (1 - 2 * jnp.finfo(share.dtype).eps)
        budget = conversions.rdp_budget(jnp.asarray(order), jnp.asarray(epsilon)[..., None], share)
        return cls(order, _with_room(order, budget), delta, half, "any", adjacency)

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
            high = _sums.charge(_pure_renyi(order, x), x > 0)
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
        slack = conversion_slack(delta, self.delta)
        event = len(self._event_shape())
        epsilons = conversions.rdp_to_dp(self.order, self.budget, slack[..., None] if event else slack)
        return jnp.min(epsilons, axis=-1) if event else epsilons

    @property
    def guarantee(self) -> str:
        """What holds for everything that is released, in words."""
        if self.combine == "any":
            return f"(epsilon(), {show(self.delta)})-DP"
        return f"{show(self.delta)}-approximate ({show(self.order)}, {show(self.budget)})-RDP"


def _with_room(order: ArrayLike, budget: jax.Array) -> jax.Array:
    """The budgets, if they are not all too small for any request."""
    if not (_validate.is_traced(order) or _validate.is_traced(budget)) and not np.any(np.asarray(budget) > 0):
        given = np.atleast_1d(np.asarray(order, float)).tolist()
        raise ValueError(
            f"order = {given}, but none leaves a budget for this epsilon, delta and slack: the conversion of an order costs "
            "log(1/slack) / (order - 1), so take larger ones as well, numpy.geomspace(2, 256, 32) for example."
        )
    return budget


def _pure_renyi(order: jax.Array, epsilon: jax.Array) -> jax.Array:
    """The Renyi divergence of randomised response, the largest of any epsilon-DP mechanism; rounded up."""
    excess = order - 1
    near = jnp.where(order * epsilon < 20, epsilon, 0.0)
    product = 2 * jnp.sinh(order * near / 2) * jnp.sinh(excess * near / 2) / jnp.cosh(near / 2)
    far = excess * epsilon + jnp.log1p(jnp.exp(-(2 * order - 1) * epsilon)) - jnp.log1p(jnp.exp(-epsilon))
    value = jnp.where(order * epsilon < 20, jnp.log1p(product), far) / excess
    return jnp.where(epsilon >= 0, _sums.up(value, 64.0), jnp.nan)
