"""The first filter and the first odometer, for comparison.

Rogers, Roth, Ullman, Vadhan, "Privacy odometers and filters: pay-as-you-go composition" (NeurIPS 2016).
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from dpjax import _validate
from dpjax._pytree import node, static
from dpjax.adaptive import _sums
from dpjax.adaptive._filter import Filter, FilterState, inside, require_state, set_budget, show
from dpjax.adaptive.odometers import Odometer
from dpjax.mechanisms import Adjacency


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
      >>> from dpjax.adaptive import ApproxDPFilter
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
        drift = _sums.charge(_sums.up(x * jnp.expm1(x) / 2, 12.0), x > 0)
        return jnp.stack([high, drift], axis=-1), jnp.stack([low, jnp.zeros_like(low)], axis=-1)

    def spent(self, state: FilterState) -> jax.Array:
        """The epsilon of what has been granted so far, by the filter's own rule: for display, not a guarantee."""
        require_state(self, state)
        return self._bound(_sums.upper(state.spent))

    @property
    def guarantee(self) -> str:
        """What holds for everything that is released, in words."""
        return f"({show(self.epsilon)}, {show(self.delta)})-DP"


@node
class RogersOdometer(Odometer):
    r"""The odometer of Rogers, Roth, Ullman and Vadhan (2016), for comparison only.

    .. math:: \sum_m\tfrac{\epsilon_m(e^{\epsilon_m}-1)}2 + \begin{cases}
       2\sqrt{v(\log(110e) + 2\log\frac{\log n}{\delta'})} & n^{-2} \le v \le 1\\
       \sqrt{2(n^{-2}+v)(1+\frac12\log(1+n^2v))\log\frac{4\log_2 n}{\delta'}} & \text{otherwise}\end{cases}

    The constants are quoted from memory of the literature. Theirs is one :math:`\delta_g` of which half is for the
    queries' own deltas; here slack stands in its place, which is the conservative reading.

    Attributes:
      delta: probability with which the bound may ever be exceeded, in (0, 1).
      dataset_size: n, > 2.
      slack: the boundary's share of delta, in (0, delta]; by default delta / 2.
      method: only ``"published"``.
      adjacency: for updates by mechanism; updates by ``rho`` or ``mu`` count as an epsilon of the same square.

    Guarantee:
      P(some step's privacy loss > its bound) <= delta, as published there.

    Raises:
      ValueError: a concrete argument is out of range.

    Example:
      >>> odo = RogersOdometer(delta=1e-6, dataset_size=10_000, slack=1e-6)
      >>> print(f"{odo.bound(odo.update(odo.init(), epsilon=0.05)):.4f}")
      0.6159
    """

    delta: ArrayLike
    dataset_size: ArrayLike
    slack: ArrayLike | None = None
    method: str = static(default="published")
    adjacency: Adjacency = static(default=Adjacency.ADD_OR_REMOVE_ONE)

    _own_drift = True

    def __post_init__(self):
        _validate.one_of("method", self.method, ("published",))
        self._common()
        self._positive("dataset_size", low=2.0)

    def _mean(self, x, high):
        epsilon = jnp.where(high > 0, jnp.sqrt(jnp.where(high > 0, high, 1.0)), 0.0) if x is None else x
        return epsilon * jnp.expm1(epsilon) / 2

    def _boundary(self, v, slack):
        n = jnp.asarray(self.dataset_size, v.dtype)
        log_n, least = jnp.log(n), 1 / (n * n)
        log_inverse = -jnp.log(slack)
        positive = v > 0
        safe = jnp.where(positive, v, 1.0)
        inner = 2 * jnp.sqrt(jnp.minimum(safe, 1.0) * (math.log(110.0) + 1 + 2 * (jnp.log(log_n) + log_inverse)))
        log_term = jnp.log(4 / math.log(2.0) * log_n) + log_inverse
        late = 2 * log_n + jnp.log(least + jnp.maximum(safe, 1.0))  # the same logarithm, where n^2 v may overflow
        log_size = jnp.where(safe > 1, late, jnp.log1p(n * n * jnp.minimum(safe, 1.0)))
        outer = jnp.sqrt(2 * (least + safe)) * jnp.sqrt((1 + log_size / 2) * log_term)
        at_zero = jnp.sqrt(2 * least * log_term)
        return jnp.where(positive, jnp.where((v >= least) & (v <= 1), inner, outer), at_zero)

    def at(self, v: ArrayLike, delta_spent: ArrayLike = 0.0) -> jax.Array:
        """The bound as a function of intrinsic time, in the limit of many small epsilons (drift v / 2)."""
        return super().at(v, delta_spent)
