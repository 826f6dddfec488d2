"""The Renyi divergence of a composed mechanism, from above."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from dpjax import _precision, _validate, composition
from dpjax._pytree import event_axes
from dpjax.adaptive._renyi import poisson_gaussian_renyi
from dpjax.laws import Law, loss_law
from dpjax.laws.finite import FiniteLaw
from dpjax.mechanisms import (
    PARAMETRIC,
    Adjacency,
    BoundedRange,
    Gaussian,
    Mechanism,
    PoissonSampled,
)
from dpjax.pairs import directions
from dpjax.representations._moments import divergence

_BATCH = 8  # laws side by side
_NAMES = {Adjacency.REMOVE: "remove", Adjacency.ADD: "add"}


class _Question(NamedTuple):
    structure: Any
    adjacency: Adjacency


def renyi(mechanism: Mechanism, order: ArrayLike, *, adjacency: Adjacency = Adjacency.ADD_OR_REMOVE_ONE) -> Any:
    """The Renyi divergence of ``mechanism`` at a real order, from above.

    Args:
      mechanism: a record, of any batch shape.
      order: > 0, may be infinite; broadcasts against the mechanism's batch shape. 1 is the Kullback-Leibler divergence,
        infinity the largest loss.
      adjacency: which datasets are neighbours.

    Returns:
      The divergence in nats, in the broadcast shape; the larger of the directions; infinite where it is.

    Guarantee:
      An upper bound on the divergence of the outputs on neighbouring datasets, in the directions of ``adjacency``: every
      dominating pair bounds it (Zhu, Dong, Wang, arXiv 2106.08567, section 2), and divergences of adaptive compositions
      add up (Mironov, arXiv 1702.07476, Proposition 1). Gaussians and finitely many losses: exact up to rounding.
      Sampled Gaussians at orders above 1: typically to 1e-12. Otherwise an integral of the profiles by chords, up to
      about 1e-6 of the divergence above it (more where losses are on a lattice).

    Raises:
      ValueError: a concrete argument is out of range. A traced one gives NaN.
      NotImplementedError: no analysis is known for the mechanism under ``adjacency``.

    Example:
      >>> import dpjax
      >>> print(f"{dpjax.renyi(dpjax.Gaussian(2.0) * 10, 1.5):.4f}")
      1.8750
      >>> print(f"{dpjax.renyi(dpjax.PureDP(1.0), 0.5):.10f}")
      0.2402290139
    """
    if not isinstance(mechanism, Mechanism):
        raise TypeError(f"mechanism must be a dpjax mechanism; got {mechanism!r}.")
    directions(adjacency)
    number = _validate.number("order", order)
    _validate.in_range("order", number, 0.0, low_open=True)
    composition.check(mechanism)
    mechanism = composition.reduced(mechanism, adjacency)
    laid = composition.layout(mechanism, number)
    question = _Question(laid.structure, adjacency)
    args = (*laid.leaves, laid.given)
    if any(_validate.is_traced(a) for a in args):
        flat = _precision.traced(_answer, question, args, (_precision.UP, _precision.NEAREST))
    else:
        flat = _precision.concrete(_answer, question, *args)
    return flat[0].reshape(laid.shape)[()]


def _answer(question: _Question, *args: jax.Array) -> tuple:
    *leaves, order = args
    record = jax.tree.unflatten(question.structure, leaves)
    valid = order > 0
    safe = jnp.where(valid, order, 2.0)
    totals = []
    terms = composition._terms(record, jnp.ones(order.shape))
    for direction in directions(question.adjacency):
        total = jnp.zeros(order.shape)
        for mechanism, count in terms:
            each = _each(mechanism, safe, direction)
            shape = np.broadcast_shapes(each.shape, count.shape)
            each, count = (jnp.broadcast_to(a, shape).reshape((order.shape[0], -1)) for a in (each, count))
            valid = valid & jnp.all((count >= 0) & (count < jnp.inf), 1) & ~jnp.any(jnp.isnan(each), 1)
            some = (count > 0) & ~((each == jnp.inf) & (count == 0))
            infinite = some & (each == jnp.inf)
            finite = jnp.where(infinite | ~some, 0.0, each)
            total = total + jnp.sum(count * finite, 1) + jnp.where(jnp.any(infinite, 1), jnp.inf, 0.0)
        totals.append(total)
    value = totals[0]
    for other in totals[1:]:
        value = jnp.where(other > value, other, value)
    value = value + lax.stop_gradient(jnp.where(jnp.isfinite(value), value, 0.0)) * 2.3e-15
    # an invalid argument poisons every derivative, not only the value
    rows = [x.reshape(x.shape[0], -1) for x in args]
    for x in rows:
        valid = valid & ~jnp.any(jnp.isnan(x), 1)
    poison = jnp.where(valid, 0.0, jnp.nan)
    value = value + sum(poison * jnp.sum(jnp.where(jnp.isinf(x), 0.0, x), 1) for x in rows)
    return value, value


def _each(record: Any, order: jax.Array, direction: Adjacency) -> jax.Array:
    """One run's divergence, (lanes, *schedule axes); NaN where a field is out of range."""
    axes = jax.tree.leaves(event_axes(record))
    leaves, structure = jax.tree.flatten(record)
    shape = np.broadcast_shapes(order.shape, *(x.shape[:1] for x in leaves))
    for x, events in zip(leaves, axes, strict=True):
        lead = x.shape[: x.ndim - events]
        shape = np.broadcast_shapes(shape + (1,) * (len(lead) - len(shape)), lead + (1,) * (len(shape) - len(lead)))
    order = jnp.broadcast_to(order.reshape(order.shape + (1,) * (len(shape) - 1)), shape)
    if isinstance(record, Gaussian):
        return _gaussian(record.noise_multiplier, order, direction)
    sigma: Any = None
    rate: Any = None
    if isinstance(record, PoissonSampled):
        rate = record.sampling_probability
        sampled = (rate > 0) & (rate <= 1)
        inner: Any = record.mechanism
        if isinstance(inner, Gaussian):
            sigma = inner.noise_multiplier
            inner = Gaussian.__new__(Gaussian)
            object.__setattr__(inner, "noise_multiplier", jnp.where((sigma > 0) & (sigma < jnp.inf), sigma, 1.0))
        record = object.__new__(PoissonSampled)
        object.__setattr__(record, "sampling_probability", jnp.where(sampled, rate, 0.5))
        object.__setattr__(record, "mechanism", inner)
        leaves, structure = jax.tree.flatten(record)
    flat = []
    for x, events in zip(leaves, axes, strict=True):
        tail = x.shape[x.ndim - events :]
        lead = x.shape[: x.ndim - events]
        x = x.reshape((*lead, *(1,) * (len(shape) - len(lead)), *tail))
        flat.append(jnp.broadcast_to(x, (*shape, *tail)).reshape((-1, *tail)))

    def one(args):
        law = _law(jax.tree.unflatten(structure, args[:-1]), direction, args[-1])
        return divergence(law, args[-1])

    found = lax.map(one, (*flat, order.reshape(-1)), batch_size=_BATCH).reshape(shape)
    if rate is None:
        return found
    rate = jnp.broadcast_to(rate, shape)
    if sigma is not None:
        sigma = jnp.broadcast_to(sigma, shape)
        found = _limits(found, sigma, rate, order, direction)
    found = jnp.where(rate == 0, 0.0, found)
    return jnp.where((rate >= 0) & (rate <= 1), found, jnp.nan)


def _gaussian(sigma: Any, order: jax.Array, direction: Adjacency) -> jax.Array:
    squared = 4.0 if direction is Adjacency.REPLACE_ONE else 1.0  # of the sensitivity
    noisy = sigma > 0
    safe = jnp.where(noisy, sigma, 1.0)
    value = jnp.where(jnp.isinf(safe), 0.0, 0.5 * squared * order / safe**2)  # 0 also at an infinite order
    value = jnp.where(noisy, value, jnp.inf)
    return jnp.where(sigma >= 0, value, jnp.nan)


def _limits(found, sigma, rate, order, direction) -> jax.Array:
    """A sampled Gaussian: the sharper of two bounds above order 1, and exact limits."""
    regular = (sigma > 0) & (sigma < jnp.inf) & (rate > 0) & (rate <= 1)
    if direction in _NAMES:
        high = regular & (order > 1) & (order < jnp.inf)
        numbers = jnp.where(high, order, 2.0), jnp.where(high, sigma, 1.0), jnp.where(high, rate, 0.5)
        sharp = poisson_gaussian_renyi(*numbers, direction=_NAMES[direction])
        found = jnp.where(high & (sharp < found), sharp, found)
    # without noise, a batch with the record gives it away
    some = (rate > 0) & (rate < 1)
    hidden = -jnp.log1p(-jnp.where(some, rate, 0.5))
    hidden = jnp.where(some, hidden, jnp.inf)
    below = order < 1
    gap = jnp.where(below, 1 - order, 1.0)
    if direction is Adjacency.REMOVE:
        bare = jnp.where(below, hidden * jnp.where(below, order, 1.0) / gap, jnp.inf)
    elif direction is Adjacency.ADD:
        bare = hidden
    else:
        bare = jnp.where(below, hidden / gap, jnp.inf)
    found = jnp.where(sigma == 0, bare, found)
    found = jnp.where(jnp.isinf(sigma), 0.0, found)
    return jnp.where(sigma >= 0, found, jnp.nan)


def _law(record: Any, direction: Adjacency, order: Any) -> Law:
    """The law of one run, of claims too: their worst pairs have the largest divergence."""
    if not isinstance(record, PARAMETRIC):
        return loss_law(record, direction)
    eps: Any = record.epsilon
    if isinstance(record, BoundedRange):
        t: Any = _worst(eps, order - 1) if record.t is None else record.t
        some = eps > 0
        safe = jnp.where(some, eps, 1.0)
        top = jnp.where(some, t, 0.5)
        p = jnp.where(some, -jnp.expm1(top - safe) / -jnp.expm1(-safe), 0.5)
        other = jnp.where(some, jnp.exp(top - safe) * -jnp.expm1(-top) / -jnp.expm1(-safe), 0.5)
        failing = 0.0
        low, high = jnp.where(some, top - safe, 0.0), jnp.where(some, top, 0.0)
        mirrored = record.t is not None and direction is not Adjacency.REMOVE
    else:
        failing = getattr(record, "delta", 0.0)
        high = eps
        low = -eps
        p, other = (1 - failing) / (1 + jnp.exp(-eps)), (1 - failing) * jnp.exp(-eps) / (1 + jnp.exp(-eps))
        mirrored = False
    loss = jnp.stack([low, high])
    masses = jnp.stack([other, p])
    against = masses * jnp.exp(-loss)
    zero = jnp.zeros_like(p)
    law: Law = FiniteLaw(loss, masses, against, zero + failing, zero + failing)
    if mirrored:
        law = FiniteLaw(-loss[::-1], against[::-1], masses[::-1], zero + failing, zero + failing)
    return law


def _worst(eps: jax.Array, s: Any) -> jax.Array:
    """The largest loss t of the bounded-range pair RR_{eps,t} with the largest divergence (arXiv 1909.13830)."""
    last = jnp.isinf(s)
    s = jnp.where(last, 1.0, jnp.where(jnp.abs(s) < 1e-9, 1e-9, s))
    safe = jnp.where(eps > 0, eps, 1.0)
    # exp(t) = s (exp(eps) - exp(-s eps)) / ((1 + s) (1 - exp(-s eps)))
    log_t = (
        jnp.log(jnp.abs(s) / (1 + s))
        + safe
        + jnp.log(-jnp.expm1(-(1 + s) * safe))
        - jnp.log(jnp.abs(jnp.expm1(-s * safe)))
    )
    return jnp.where(last, eps, jnp.clip(log_t, 0.0, eps))
