"""Compositions of any mechanisms, answered from the laws of their losses: single runs by profile, others by the lattice."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import _derived, _validate, composition, single_run
from dpjax.lattice import lanes as lattice
from dpjax.laws import loss_law
from dpjax.mechanisms import Adjacency, Mechanism


class Answer(NamedTuple):
    """(lanes,) each; log delta if delta was asked for."""

    lower: Any
    estimate: Any
    upper: Any
    invalid: Any
    converged: Any
    exact: Any
    points: Any


class _Limits(NamedTuple):
    """(lanes,) each: what is known of a composition without an engine."""

    invalid: Any
    largest: Any  # the largest finite loss, rounded up
    infinite: Any  # the probability of an infinite loss


def _limits(terms: lattice.Terms, direction: Adjacency) -> _Limits:
    def one(record, count):
        with _validate.collected() as masks:
            if isinstance(record, Mechanism):
                composition.check(record)
        law = loss_law(record, direction)
        valid = jnp.stack([jnp.all(m) for m in masks]).all() if masks else jnp.asarray(True)
        active = count > 0
        numbers = [jnp.any(jnp.isnan(x)) for x in jax.tree.leaves(record)]
        valid = valid & (count >= 0) & (count < jnp.inf) & ~jnp.stack([*numbers, jnp.isnan(count)]).any()
        highest = jnp.maximum(law.support()[1] + 0.0 * count, -1e300)
        infinite = law.p_infinite() + 0.0 * count
        return (
            ~valid,
            jnp.where(active, count * highest, 0.0),
            jnp.where(active, count * jnp.log1p(-jnp.minimum(infinite, 1.0)), 0.0),
        )

    parts = [jax.vmap(jax.vmap(one))(record, count) for record, count in zip(terms.records, terms.counts, strict=True)]
    invalid, largest, finite = (jnp.concatenate(x, 1) for x in zip(*parts, strict=True))
    total = jnp.sum(largest, 1) + 1e-13 * jnp.sum(jnp.abs(largest), 1)
    return jax.tree.map(jax.lax.stop_gradient, _Limits(jnp.any(invalid, 1), total, -jnp.expm1(jnp.sum(finite, 1))))


_concrete_limits = jax.jit(_limits, static_argnums=1)


def _single(terms: lattice.Terms, given: Any, direction: Adjacency, unknown: str) -> single_run.Found:
    def one(record, x):
        return single_run.solve(loss_law(record, direction), x, unknown)

    (record,) = terms.records
    return jax.vmap(one)(jax.tree.map(lambda a: a[:, 0], record), given)


_concrete_single = jax.jit(_single, static_argnums=(2, 3))


def answer(
    terms: lattice.Terms, given: Any, direction: Adjacency, *, unknown: str, method: str, tol: float, max_nodes: int,
    single: bool,
) -> Answer:  # fmt: skip
    """One direction's answer.

    Args:
      terms: in lanes; NumPy arrays or tracers.
      given: (lanes,), a log delta if ``unknown`` is "epsilon", a real epsilon if it is "delta".
      direction: a single one.
      unknown: says what is asked for.
      method: "auto", "closed_form" or "lattice".
      tol: relative width of delta.
      max_nodes: how much work, see ``lattice.lanes``.
      single: whether the record is one run of one mechanism.
    """
    ask: Any = {"unknown": unknown, "method": method, "tol": tol, "max_nodes": max_nodes, "single": single}
    traced = any(map(_validate.is_traced, jax.tree.leaves((terms, given))))
    xp = jnp if traced else np

    def solved(terms, given):
        terms = terms if traced else _derived.resolved(terms, direction)
        return _answer(terms, given, direction, traced=traced, **ask)

    found = solved(terms, given)
    if any(map(_derived.is_adaptive, terms.records)) and not (single and method != "lattice"):
        # composed, the law of ranges is an upper end; adversaries who choose beforehand are below
        tries = len(_derived.FRACTIONS)
        low = solved(_derived.fixed(terms), xp.tile(given, tries)).lower.reshape((tries, -1)).max(0)
        found = found._replace(lower=xp.minimum(low, found.upper), converged=found.converged & False)
    return found


def _answer(
    terms: lattice.Terms, given: Any, direction: Adjacency, *, unknown: str, method: str, tol: float, max_nodes: int,
    single: bool, traced: bool,
) -> Answer:  # fmt: skip
    xp = jnp if traced else np
    limits = (_limits if traced else _concrete_limits)(terms, direction)
    limits = limits if traced else jax.tree.map(np.asarray, limits)
    once = single or (
        not traced and len(terms.counts) == 1 and terms.counts[0].shape[1] == 1 and np.all(terms.counts[0] == 1)
    )
    if method == "closed_form" and not once:
        raise NotImplementedError("closed_form knows single runs and Gaussians only; use method='lattice'.")
    settled = xp.isinf(given) | limits.invalid
    if unknown == "epsilon":
        settled = settled | (given >= 0)
        ends = xp.where(limits.infinite > 0, xp.inf, xp.maximum(limits.largest, 0.0))  # where delta is 0
        value = xp.where(given >= 0, 0.0, ends)
    else:
        log = lambda x: xp.where(x > 0, xp.log(xp.where(x > 0, x, 1.0)), -xp.inf)
        value = xp.where(given > 0, log(limits.infinite), 0.0)
        beyond = (given >= limits.largest) & (given > 0) & (limits.infinite == 0)  # delta is exactly 0
        settled = settled | beyond
    safe: Any = xp.where(settled | xp.isnan(given), -1.0 if unknown == "epsilon" else 1.0, given)
    if once and method != "lattice":
        found = (_single if traced else _concrete_single)(terms, safe, direction, unknown)
        ends = tuple(found)
        converged, points = xp.ones(given.shape, bool), xp.zeros(given.shape)
    else:
        solver = lattice.solve_traced if traced else lattice.solve_concrete
        found = solver(terms, safe, direction, unknown, tol, max_nodes)
        ends, converged, points = tuple(found[:3]), found.converged, found.points
    lower, estimate, upper = (xp.where(settled, value, xp.asarray(e)) for e in ends)
    exact = xp.zeros(given.shape, bool) | (once and method != "lattice")
    invalid = limits.invalid | xp.isnan(given)
    nan = lambda x: xp.where(invalid, xp.nan, x)
    return Answer(nan(lower), nan(estimate), nan(upper), invalid, converged | settled, exact, points)
