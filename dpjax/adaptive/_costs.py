"""What a mechanism costs, in the units in which filters and odometers count: rho, Renyi divergence, or mu squared.

Costs are pairs of floats (high, low), exact where two floats can hold them and rounded up elsewhere, and they add over
compositions. A mechanism inside may depend on past outputs; what one record says is fixed when it is requested.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import mechanisms
from dpjax.adaptive import _sized, _sums
from dpjax.adaptive._renyi import poisson_gaussian_renyi
from dpjax.mechanisms import Adjacency

Pair = tuple[jax.Array, jax.Array]

_DIRECTIONS = {
    Adjacency.ADD_OR_REMOVE_ONE: "both",
    Adjacency.REPLACE_SPECIAL: "both",
    Adjacency.ADD: "add",
    Adjacency.REMOVE: "remove",
}


_TOWARD = {  # the direction in which rounding a field makes a mechanism cost more
    (mechanisms.Gaussian, "noise_multiplier"): -np.inf,
    (mechanisms.PoissonSampled, "sampling_probability"): np.inf,
    (mechanisms.SelfComposed, "count"): np.inf,
}


def prepare(mechanism: Any, dtype: Any) -> Any:
    """``mechanism`` with its fields checked and rounded to ``dtype`` on the safe side, ready for a jitted function.

    Raises:
      TypeError: not a mechanism.
      ValueError: a concrete field is out of range.
    """
    if not isinstance(mechanism, mechanisms.Mechanism):
        raise TypeError(f"mechanism must be a dpjax mechanism; got {mechanism!r}.")
    mechanism.check()  # pyright: ignore[reportAttributeAccessIssue]
    if isinstance(mechanism, mechanisms.GAUSSIANS):
        mechanism = mechanism.gaussian()
    changed = {}
    for name in mechanism.__dataclass_fields__:  # type: ignore[attr-defined]
        field = getattr(mechanism, name)
        if isinstance(field, mechanisms.Mechanism):
            changed[name] = prepare(field, dtype)
        elif isinstance(field, tuple):
            changed[name] = tuple(prepare(m, dtype) for m in field)
        elif (type(mechanism), name) in _TOWARD:
            changed[name] = _sums.cast(field, dtype, _TOWARD[type(mechanism), name])
    if isinstance(mechanism, _sized.SIZED):
        return _sized.sized(mechanism, changed["mechanism"], dtype)
    out = object.__new__(type(mechanism))
    for name in mechanism.__dataclass_fields__:  # type: ignore[attr-defined]
        object.__setattr__(out, name, changed.get(name, getattr(mechanism, name)))
    return out


def cost(mechanism: Any, unit: str, adjacency: Adjacency, dtype: Any, order: jax.Array | None = None) -> Pair:
    """The cost of ``mechanism``.

    Args:
      mechanism: from ``prepare``; batch axes of its leaves are kept.
      unit: ``"rho"``, ``"renyi"`` or ``"mu_squared"``.
      adjacency: which datasets are neighbours.
      dtype: of the result.
      order: for ``"renyi"``; a scalar, or a vector that becomes the last axis.

    Returns:
      (high, low).

    Raises:
      TypeError: the mechanism's cost in this unit is not known.
      ValueError: the adjacency has no analysis for this mechanism.
    """
    if order is not None and order.ndim == 1:
        one = lambda o: cost(mechanism, unit, adjacency, dtype, o)
        return jax.vmap(one, out_axes=-1)(order)
    inner = lambda m: cost(m, unit, adjacency, dtype, order)
    if isinstance(mechanism, mechanisms.SelfComposed):
        count = _sums.cast(mechanism.count, dtype, np.inf)
        return _times(inner(mechanism.mechanism), jnp.where(count >= 0, count, jnp.nan))
    if isinstance(mechanism, mechanisms.Composed):
        pairs = [inner(m) for m in mechanism.mechanisms]
        shape = jnp.broadcast_shapes(*[high.shape for high, _ in pairs]) if pairs else ()
        total = _sums.zeros(shape, dtype)
        for high, low in pairs:
            total = _sums.add(total, jnp.broadcast_to(high, shape), jnp.broadcast_to(low, shape))
        return _as_pair(total)
    if isinstance(mechanism, mechanisms.ComposedOver):
        high, low = inner(mechanism.mechanism)
        length = _schedule_length(mechanism)
        axis = mechanism.axis
        if high.ndim == 0 or high.shape[axis] == 1:
            one = (high, low) if high.ndim == 0 else (high.squeeze(axis), low.squeeze(axis))
            return _times(one, jnp.asarray(length, dtype))
        high, low = jnp.moveaxis(high, axis, 0), jnp.moveaxis(low, axis, 0)
        add = lambda total, pair: (_sums.add(total, *pair), None)
        return _as_pair(jax.lax.scan(add, _sums.zeros(high.shape[1:], dtype), (high, low))[0])
    if isinstance(mechanism, mechanisms.Gaussian):
        sigma = _sums.cast(mechanism.noise_multiplier, dtype, -np.inf)
        squared = 4.0 if adjacency is Adjacency.REPLACE_ONE else 1.0  # of the sensitivity
        if unit == "mu_squared":
            return _single(_sums.ratio_of_square(squared, sigma))
        rho = _sums.ratio_of_square(squared / 2, sigma)
        if order is None:
            return _single(rho)
        return _times(_single(rho), order)
    if isinstance(mechanism, mechanisms.PoissonSampled | _sized.Sized):
        return _sampled(mechanism, unit, adjacency, dtype, order)
    raise TypeError(f"no {_NAMES[unit]} is known for {type(mechanism).__name__}; give the cost by keyword instead.")


_NAMES = {"rho": "zCDP parameter", "renyi": "Renyi divergence", "mu_squared": "Gaussian-DP parameter"}


def _sampled(mechanism: Any, unit: str, adjacency: Adjacency, dtype: Any, order: Any) -> Pair:
    base = mechanism.mechanism
    if not isinstance(base, mechanisms.Gaussian):
        raise TypeError(f"no {_NAMES[unit]} is known for a sampled {type(base).__name__}; give it by keyword.")
    if unit != "renyi":
        raise TypeError(
            f"sampling does not improve the {_NAMES[unit]}: use RenyiFilter for a sampled Gaussian, or request "
            f"the Gaussian alone and pay for it without sampling."
        )
    sigma = _sums.cast(base.noise_multiplier, dtype, -np.inf)
    assert order is not None
    if isinstance(mechanism, _sized.Sized):
        return _single(_sized.renyi(mechanism, sigma, order, adjacency))
    if adjacency not in _DIRECTIONS:
        raise ValueError(f"PoissonSampled has no Renyi analysis for {adjacency}; use ADD_OR_REMOVE_ONE.")
    rate = _sums.cast(mechanism.sampling_probability, dtype, np.inf)
    return _single(poisson_gaussian_renyi(order, sigma, rate, _DIRECTIONS[adjacency]))


def _single(x: jax.Array) -> Pair:
    x = _sums.charge(x)
    return x, jnp.zeros_like(x)


def _times(pair: Pair, factor: jax.Array) -> Pair:
    """``pair`` times a nonnegative factor; a zero factor gives 0 even where the pair is infinite."""
    high, low = jnp.broadcast_arrays(*pair)
    high, low, factor = jnp.broadcast_arrays(high, low, jnp.asarray(factor, high.dtype))
    finite = jnp.isfinite(high)
    product, error = _sums.two_product(jnp.where(finite, high, 1.0), factor)
    rest = low * factor
    error = error + jnp.where(rest != 0, rest + 4 * jnp.finfo(rest.dtype).eps * jnp.abs(rest), 0.0)
    product = jnp.where(finite, product, jnp.where(factor == 0, 0.0, high))
    return _sums.charge(product), jnp.where(finite, error, 0.0)


def _as_pair(total: _sums.Sum) -> Pair:
    return total.high, _sums.low_upper(total)


def _schedule_length(mechanism: mechanisms.ComposedOver) -> int:
    lengths = {1}
    for leaf in jax.tree.leaves(mechanism.mechanism):
        shape = np.shape(leaf)
        if shape:
            try:
                lengths.add(shape[mechanism.axis])
            except IndexError:
                raise ValueError(f"a leaf of shape {shape} has no axis {mechanism.axis} to compose over.") from None
    if len(lengths) > 2:
        raise ValueError(
            f"the leaves have lengths {sorted(lengths - {1})} along axis {mechanism.axis}; write x[..., None]."
        )
    return max(lengths)
