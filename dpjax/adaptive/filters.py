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
    conversion_slack,
    inside,
    nonnegative,
    require_state,
    rest,
    set_budget,
    set_slack,
    show,
)
from dpjax.mechanisms import Adjacency, require_adjacency


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
        require_adjacency(self.adjacency)

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
        return conversions.zcdp_to_dp(self.rho, conversion_slack(delta, self.delta), method)

    @property
    def guarantee(self) -> str:
        """What holds for everything that is released, in words."""
        return f"{show(self.delta)}-approximate {show(self.rho)}-zCDP"


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
        require_adjacency(self.adjacency)
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
            sharp = _sums.charge(_sums.up(2 * x * jnp.tanh(x / 2), 12.0), x > 0)
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
        require_adjacency(self.adjacency)

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
