"""From a record to sums of cumulants: the components of a composition and how often each is run.

``layout`` brings the numbers of a record, and those of a question about it, into lanes: every leaf becomes
(lanes, *schedule axes, *event axes), where the lanes are the broadcast batch, flattened. ``problem`` turns such a record into the
dominating pairs of one direction.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import numpy as np

from dpjax import mechanisms
from dpjax._plan import Problem
from dpjax._precision import namespace
from dpjax._pytree import event_axes
from dpjax._special import total
from dpjax._validate import is_traced
from dpjax.mechanisms import Adjacency, Composed, ComposedOver, Gaussian, Mechanism, PoissonSampled, SelfComposed
from dpjax.pairs import GaussianPair, SampledGaussianPair, dominating_pair


class Layout(NamedTuple):
    """A record and a question in lanes.

    Attributes:
      structure: the record's tree structure (hashable).
      leaves: the record's numbers, each (lanes, *schedule axes, *event axes).
      given: the question's number, (lanes,).
      shape: the batch shape that the lanes came from.
    """

    structure: Any
    leaves: tuple
    given: Any
    shape: tuple[int, ...]


def check(mechanism: Mechanism) -> None:
    """Checks the concrete fields of every record in ``mechanism``: a tree transformation may have put bad ones there."""
    mechanism.check()  # type: ignore[attr-defined]
    for field in dataclasses.fields(mechanism):  # type: ignore[arg-type]
        value = getattr(mechanism, field.name)
        for member in value if isinstance(value, tuple) else (value,):
            if isinstance(member, Mechanism):
                check(member)


def reduced(mechanism: Mechanism, adjacency: Adjacency) -> Mechanism:
    """``mechanism`` as the directions of ``adjacency`` are asked about it.

    Records that are Gaussians under another description become Gaussians; under REPLACE_SPECIAL samplers become such as know
    a zero record from none.

    Raises:
      ValueError: as ``batch_shape``.
    """
    found = mechanisms.reduced(mechanism)
    if found is not mechanism:
        batch_shape(mechanism)
    return mechanisms.zeroed(found) if adjacency is Adjacency.REPLACE_SPECIAL else found


def all_gaussian(mechanism: Mechanism) -> bool:
    """Whether every member is a Gaussian, Poisson-sampled or not: what the contour engine knows."""
    if isinstance(mechanism, Composed):
        return all(map(all_gaussian, mechanism.mechanisms))
    if isinstance(mechanism, SelfComposed | ComposedOver):
        return all_gaussian(mechanism.mechanism)
    inner = mechanism.mechanism if isinstance(mechanism, PoissonSampled) else mechanism
    return isinstance(inner, Gaussian)


def _own_shapes(mechanism: Mechanism) -> list[tuple[int, ...]]:
    """The batch shapes of the numbers of a record, without those inside schedules."""
    schedule = lambda m: isinstance(m, ComposedOver)
    leaves = jax.tree.leaves(mechanism, is_leaf=schedule)
    axes = jax.tree.leaves(event_axes(mechanism), is_leaf=schedule)
    shapes = []
    for x, events in zip(leaves, axes, strict=True):
        if not schedule(x):
            shapes.append(np.shape(x)[: np.ndim(x) - events])
    return shapes


def _schedules(mechanism: Mechanism) -> list[ComposedOver]:
    found = jax.tree.leaves(mechanism, is_leaf=lambda m: isinstance(m, ComposedOver))
    return [m for m in found if isinstance(m, ComposedOver)]


def batch_shape(mechanism: Mechanism) -> tuple[int, ...]:
    """The broadcast shape of the record's leaves, without the axes that schedules compose over.

    Raises:
      ValueError: the shapes do not broadcast, or a leaf of a schedule lacks its axis.
    """
    if isinstance(mechanism, ComposedOver):
        inner, position = inner_shape(mechanism)
        return inner[:position] + inner[position + 1 :]
    shapes = _own_shapes(mechanism) + [batch_shape(m) for m in _schedules(mechanism)]
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        raise ValueError(f"The fields of {mechanism!r} have shapes {shapes}, which do not broadcast.") from None


def inner_shape(schedule: ComposedOver) -> tuple[tuple[int, ...], int]:
    """The batch shape inside a schedule, and the position in it of the axis that is composed over."""
    shapes = _own_shapes(schedule.mechanism)
    shapes += [batch_shape(m) for m in _schedules(schedule.mechanism)]
    rank = max(map(len, shapes), default=0)
    axis = schedule.axis
    if rank == 0 or not -rank <= axis < rank:
        raise ValueError(f"ComposedOver(..., axis={axis}) needs a field with that axis; the batch axes number {rank}.")
    back = axis - rank if axis >= 0 else axis
    lengths = [shape[back] for shape in shapes if len(shape) >= -back]
    length = max(lengths)
    for shape in shapes:
        if shape and (len(shape) < -back or shape[back] not in (1, length)):
            raise ValueError(
                f"A field of shape {shape} inside ComposedOver(..., axis={axis}) lacks the schedule's axis of length "
                f"{length}: give it that length or 1 there, e.g. x[..., None] for one value for each batch element."
            )
    inner = np.broadcast_shapes(*shapes)
    return inner, len(inner) + back


def layout(mechanism: Mechanism, given: Any) -> Layout:
    """Brings ``mechanism`` and ``given`` (epsilon or log delta) into lanes.

    Raises:
      ValueError: shapes that do not broadcast.
    """
    own = batch_shape(mechanism)
    try:
        shape = np.broadcast_shapes(own, np.shape(given))
    except ValueError:
        raise ValueError(
            f"The mechanism's batch shape {own} and the question's shape {np.shape(given)} do not broadcast."
        ) from None
    placed = _place(mechanism, shape, len(shape))
    leaves, structure = jax.tree.flatten(placed)
    flat = functools.partial(_lanes, shape=shape)
    xp = namespace(given)
    return Layout(structure, tuple(map(flat, leaves)), flat(xp.broadcast_to(given, shape)), shape)


def _lanes(x: Any, shape: tuple[int, ...]) -> Any:
    return x.reshape((int(np.prod(shape, dtype=int)), *x.shape[len(shape) :]))


def _place(mechanism: Mechanism, shape: tuple[int, ...], batch: int) -> Any:
    """The record with every leaf broadcast to ``shape``, schedule axes moved behind the first ``batch`` axes."""

    def put(x, events):
        if isinstance(x, ComposedOver):
            inner, position = inner_shape(x)
            back = position - len(inner)
            at = len(shape) + 1 + back
            length = inner[position]
            # the schedule's axis goes where the record has it, then last of the batch axes
            wide = (*shape[:at], length, *shape[at:])
            placed = _place(x.mechanism, wide, batch)
            return ComposedOver(jax.tree.map(lambda a: namespace(a).moveaxis(a, at, len(shape)), placed), x.axis)
        x = x if is_traced(x) else np.asarray(x, np.float64)
        return namespace(x).broadcast_to(x, (*shape, *x.shape[x.ndim - events :]))

    return jax.tree.map(put, mechanism, event_axes(mechanism), is_leaf=lambda m: isinstance(m, ComposedOver))


def problem(structure: Any, leaves: tuple, direction: Adjacency) -> Problem:
    """The composition in one direction, from a record in lanes.

    Raises:
      NotImplementedError: a mechanism has no analysis in this direction.
    """
    record = jax.tree.unflatten(structure, leaves)
    xp = namespace(*leaves)
    lanes = leaves[0].shape[0] if leaves else 1
    variance = xp.zeros((lanes,))
    sampled: list[tuple[SampledGaussianPair, Any]] = []
    for mechanism, count in _terms(record, xp.ones((lanes,))):
        pair = dominating_pair(mechanism, direction)
        shape = np.broadcast_shapes(pair[0].shape, count.shape)
        count = xp.broadcast_to(count, shape).reshape((lanes, -1))
        if isinstance(pair, GaussianPair):
            each = xp.broadcast_to(pair.variance, shape).reshape((lanes, -1))
            parts = xp.where(count > 0, count * each, 0.0)
            variance = variance + (xp.sum(parts, 1) if xp is np else total(parts, 1))
        else:
            numbers = [xp.broadcast_to(a, shape).reshape((lanes, -1)) for a in (pair.sigma, pair.q)]
            parts = [np.broadcast_to(a, (*shape, a.shape[-1])).reshape((lanes, -1, a.shape[-1])) for a in pair[2:]]
            sampled.append((SampledGaussianPair(*numbers, *parts), count))
    if not sampled:
        empty = xp.zeros((lanes, 0))
        return Problem(variance, SampledGaussianPair(empty, empty, *(xp.zeros((lanes, 0, 1)) for _ in range(3))), empty)
    pair = SampledGaussianPair(*(xp.concatenate(a, axis=1) for a in zip(*(p for p, _ in sampled), strict=True)))
    return Problem(variance, pair, xp.concatenate([c for _, c in sampled], axis=1))


def terms(structure: Any, leaves: tuple) -> list[tuple[Mechanism, Any]]:
    """The mechanisms of a composition and how often each is run: records with leaves (lanes, terms, *event), (lanes, terms)."""
    record = jax.tree.unflatten(structure, leaves)
    xp = namespace(*leaves)
    lanes = leaves[0].shape[0] if leaves else 1
    found = []
    for mechanism, count in _terms(record, xp.ones((lanes,))):
        axes = event_axes(mechanism)
        own = jax.tree.map(lambda x, events: x.shape[: x.ndim - events], mechanism, axes)
        shape = np.broadcast_shapes(count.shape, *jax.tree.leaves(own, is_leaf=lambda x: isinstance(x, tuple)))

        def wide(x, events=0, shape=shape):
            event = x.shape[x.ndim - events :]
            return xp.broadcast_to(x, (*shape, *event)).reshape((lanes, -1, *event))

        found.append((jax.tree.map(wide, mechanism, axes), wide(count)))
    return found


def _terms(record: Mechanism, count: Any) -> list[tuple[Mechanism, Any]]:
    """The mechanisms of a composition and how often each is run; counts are (lanes, *schedule axes)."""
    if isinstance(record, SelfComposed):
        return _terms(record.mechanism, count * record.count)
    if isinstance(record, Composed):
        return [term for member in record.mechanisms for term in _terms(member, count)]
    if isinstance(record, ComposedOver):
        return _terms(record.mechanism, count[..., None])
    return [(record, count)]
