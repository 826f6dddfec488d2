r"""Individual accounting: one filter per example, so that each example pays only for its own influence.

An example whose gradient is small loses little privacy in a step. With a filter of its own it takes part until *its*
budget is used up, and only then is it left out. A step then costs example i

.. math:: \mu_i = \frac{\min(\lVert g_i\rVert, C)}{\text{noise standard deviation}},

which :class:`IndividualFilter` charges as mu-GDP or as the Renyi divergence of that Gaussian.

Sources: Feldman and Zrnic, "Individual privacy accounting via a Renyi filter" (2021), Theorem 3.1, Algorithm 3;
Koskela, Tobaben, Honkela, "Individual privacy accounting with Gaussian differential privacy" (2023).
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from dpjax import _validate
from dpjax._pytree import node, static
from dpjax.adaptive import _sums
from dpjax.adaptive._filter import FilterState, _request
from dpjax.adaptive.filters import GDPFilter, ZCDPFilter
from dpjax.adaptive.renyi_filter import RenyiFilter
from dpjax.mechanisms import Gaussian, Mechanism, PoissonSampled


@node
class IndividualFilter:
    """A filter for each of ``num_examples`` examples, advanced together.

    In every step, ask with the norms of the examples that are at hand and multiply their contributions by the mask that
    comes back. What is not granted must not contribute at all.

    Attributes:
      filter: a ``RenyiFilter``, ``ZCDPFilter`` or ``GDPFilter``: every example's budget. Its parameters are shared, or
        arrays of shape (num_examples,) for budgets that differ.
      num_examples: size of the dataset.

    Guarantee:
      The released outputs satisfy the filter's guarantee under adding, removing or zeroing out one example, whatever
      the others do (Feldman and Zrnic 2021; for GDP, Koskela et al. 2023). **The mask and the state are functions of
      the private data: do not release them**, nor anything computed from them other than the noisy sum.

    Raises:
      TypeError: ``filter`` is something else.
      ValueError: ``num_examples`` is not a positive whole number.

    Example:
      >>> import jax.numpy as jnp
      >>> individual = IndividualFilter(GDPFilter(mu=1.0), num_examples=4)
      >>> state = individual.init()
      >>> norms = jnp.asarray([1.0, 0.5, 0.0, 1.0])
      >>> for step in range(5):
      ...     state, mask = individual.request_norms(state, norms, noise_std=2.0)
      >>> mask  # the first and the last used up their budget in four steps
      Array([False,  True,  True, False], dtype=bool)
      >>> print([round(float(mu), 3) for mu in individual.spent(state)])
      [1.0, 0.559, 0.0, 1.0]
    """

    filter: Any
    num_examples: int = static()

    def __post_init__(self):
        if not isinstance(self.filter, RenyiFilter | ZCDPFilter | GDPFilter):
            raise TypeError(f"filter must be a RenyiFilter, ZCDPFilter or GDPFilter; got {self.filter!r}.")
        if isinstance(self.num_examples, bool) or not isinstance(self.num_examples, int | np.integer):
            raise TypeError(f"num_examples must be an int; got {self.num_examples!r}.")
        _validate.in_range("num_examples", self.num_examples, 1, integral=True)

    def init(self) -> FilterState:
        """The state before the first step: O(num_examples) floats, whatever the number of steps."""
        return self.filter.init((int(self.num_examples),))

    def request(
        self,
        state: FilterState,
        mechanism: Mechanism | None = None,
        *,
        indices: ArrayLike | None = None,
        **cost: ArrayLike,
    ) -> tuple[FilterState, jax.Array]:
        """Asks for one step of some examples, each at its own cost.

        Args:
          state: from ``init`` or the last step.
          mechanism: with one parameter per example in its leaves, for example ``Gaussian(noise_std / norms)``; or
          **cost: the filter's keyword, shape (examples,), or (examples, orders) for a vector of orders.
          indices: which examples the entries are; by default all, in order. An index outside the dataset is padding:
            it is refused and changes nothing. Of an index that occurs twice only the first entry is granted, since
            two contributions of one example would have to be paid as one of the summed norm.

        Returns:
          The new state and the mask of the examples that may contribute, one for each entry.

        Raises:
          TypeError, ValueError: as for the filter.
        """
        if indices is None:
            return self.filter.request(state, mechanism, **cost)
        indices = jnp.asarray(indices)
        if indices.ndim != 1 or not jnp.issubdtype(indices.dtype, jnp.integer):
            raise TypeError(f"indices must be a vector of integers; got {indices.dtype} of shape {indices.shape}.")
        delta = cost.pop("delta", 0.0)
        return _request_some(self, state, indices, *self.filter._prepare(state, mechanism, delta, cost, indices.shape))

    def request_norms(
        self,
        state: FilterState,
        norms: ArrayLike,
        noise_std: ArrayLike,
        *,
        sampling_probability: ArrayLike | None = None,
        indices: ArrayLike | None = None,
    ) -> tuple[FilterState, jax.Array]:
        """Asks for one step of noisy gradient sums.

        Args:
          state: from ``init`` or the last step.
          norms: of the examples' contributions to the sum, after clipping; shape (examples,), >= 0.
          noise_std: standard deviation of the noise that is added to the sum.
          sampling_probability: if the batch was drawn by Poisson sampling and stays secret. Then every example pays
            in every step, in the batch or not, and needs a bound on its norm that does not depend on the draw: pass
            all examples' norms (``RenyiFilter`` only).
          indices: as for ``request``.

        Returns:
          The new state and the mask of the examples that may contribute.

        Raises:
          ValueError: a concrete argument is negative or NaN, or ``indices`` together with ``sampling_probability``.
        """
        if sampling_probability is not None and indices is not None:
            raise ValueError("indices must be None with sampling_probability: every example pays for the chance.")
        for name, x in (("norms", norms), ("noise_std", noise_std)):
            _validate.in_range(name, x, 0.0)
        dtype = state.spent.high.dtype
        ratio = _noise_multipliers(_sums.cast(norms, dtype, np.inf), _sums.cast(noise_std, dtype, -np.inf))
        base: Mechanism = _unchecked(Gaussian, noise_multiplier=ratio)
        if sampling_probability is not None:
            base = PoissonSampled(sampling_probability, base)
        return self.request(state, base, indices=indices)

    def remaining(self, state: FilterState) -> jax.Array:
        """Each example's largest next request; private, like the state."""
        return self.filter.remaining(state)

    def spent(self, state: FilterState) -> jax.Array:
        """What each example has used, rounded up; private, like the state."""
        return self.filter.spent(state)

    def _of(self, rows: jax.Array) -> Any:
        """The filter of the given examples: parameters that differ from example to example are gathered."""
        fields = {name: getattr(self.filter, name) for name in self.filter.__dataclass_fields__}
        shared = np.ndim(fields.get("order", 0.0))  # axes of the budget that belong to the orders
        for name in ("budget", "rho", "mu", "delta", "slack"):
            own = np.ndim(fields.get(name, 0.0)) > (shared if name == "budget" else 0)
            if own and np.shape(fields[name])[0] == self.num_examples:
                fields[name] = jnp.asarray(fields[name])[rows]
        return _unchecked(type(self.filter), **fields)

    @property
    def guarantee(self) -> str:
        """What holds for everything that is released, in words."""
        return f"{self.filter.guarantee} for each example"

    def __repr__(self) -> str:
        return f"IndividualFilter(num_examples={self.num_examples}): {self.guarantee}"


def _unchecked(cls: Any, **fields: Any) -> Any:
    """A record with computed fields: an element that is NaN is refused by the filter instead of raising."""
    out = object.__new__(cls)
    for name, value in fields.items():
        object.__setattr__(out, name, value)
    return out


@jax.jit
def _request_some(individual, state, indices, *prepared):
    n = individual.num_examples
    usable = (indices >= 0) & (indices < n) & _first_occurrence(indices)
    rows = jnp.where(usable, indices, 0)
    mine = jax.tree.map(lambda x: x[rows], state)
    after, granted = _request(individual._of(rows), mine, *prepared)
    granted = granted & usable
    target = jnp.where(granted, indices, n)  # beyond the end: dropped
    return jax.tree.map(lambda old, new: old.at[target].set(new, mode="drop"), state, after), granted


@jax.jit
def _noise_multipliers(norms, noise):
    """``noise / norms``, rounded down unless exact: less noise is the safe side."""
    safe = jnp.where(norms > 0, norms, 1.0)
    ratio = noise / safe
    back, error = _sums.two_product(ratio, safe)
    exact = (ratio == jnp.inf) | ((back == noise) & (error == 0))
    ratio = jnp.where(exact, ratio, _sums.down(ratio, 4.0))
    return jnp.where(norms > 0, ratio, jnp.where(norms == 0, jnp.inf, jnp.nan))


def _first_occurrence(indices: jax.Array) -> jax.Array:
    """Whether each entry is the first with its value."""
    order = jnp.argsort(indices, stable=True)
    ordered = indices[order]
    first = jnp.concatenate([jnp.ones((1,), bool), ordered[1:] != ordered[:-1]])
    return jnp.zeros_like(first).at[order].set(first)
