"""Compositions of mechanisms known by their parameters alone: bounded range, pure and approximate DP, in any mixture.

Their worst pairs have two outcomes each (and failure), so that the recursion of ``bounded_range`` takes them all: a step
of randomised response is one whose t is given. Each answer holds for whatever neighbours the parameters are claimed for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from dpjax import _validate, bounded_range, pure_dp
from dpjax._precision import namespace
from dpjax.bounded_range.queries import sequence_bounds
from dpjax.mechanisms import PARAMETRIC, BoundedRange, Composed, ComposedOver, Mechanism, SelfComposed


class _Step(NamedTuple):
    """One mechanism: its epsilon as the user gave it, t (None where chosen), delta."""

    eps: Any
    t: Any
    delta: Any
    pure: bool  # epsilon-DP rather than bounded-range


def _step(record: Any) -> _Step:
    if isinstance(record, BoundedRange):
        return _Step(record.epsilon, record.t, 0.0, False)
    return _Step(record.epsilon, None, getattr(record, "delta", 0.0), True)


def takes(record: Mechanism, alone: bool = True) -> bool:
    """Whether the recursion can take ``record``, a composition of ``PARAMETRIC``: its counts fix the shapes.

    They must be concrete, and one number each; where a mechanism is ``alone``, its t not given, they may be arrays.
    """
    several = False
    while isinstance(record, SelfComposed):
        if _validate.is_traced(record.count):
            return False
        several = several or np.ndim(record.count) > 0
        record = record.mechanism
    if several and not (alone and isinstance(record, PARAMETRIC) and getattr(record, "t", None) is None):
        return False
    members = record.mechanisms if isinstance(record, Composed) else ()
    return all(takes(member, alone=False) for member in members)


def _count(count: Any) -> Any:
    _validate.in_range("count", count, 0.0, np.inf, integral=True, high_open=True)
    return np.asarray(count)


def _repeated(record: Mechanism) -> tuple[Mechanism, Any]:
    """What is repeated, and how often."""
    count: Any = np.asarray(1.0)
    while isinstance(record, SelfComposed):
        count = count * _count(record.count)
        record = record.mechanism
    return record, count


def _steps(record: Mechanism) -> list[_Step]:
    """The steps in the order in which they are run."""
    inner, count = _repeated(record)
    if isinstance(inner, Composed):
        steps = [step for member in inner.mechanisms for step in _steps(member)]
    else:
        steps = _schedule(inner) if isinstance(inner, ComposedOver) else [_step(inner)]
    return steps * int(count)


def _schedule(record: Any) -> list[_Step]:
    step = _step(record.mechanism)
    fields = [x for x in step[:3] if x is not None]
    shape = np.broadcast_shapes(*(np.shape(x) for x in fields))
    if not -len(shape) <= record.axis < len(shape):
        raise ValueError(
            f"ComposedOver(..., axis={record.axis}) needs a field with that axis; batch axes: {len(shape)}."
        )
    wide = [
        None if x is None else namespace(x).moveaxis(namespace(x).broadcast_to(x, shape), record.axis, 0)
        for x in step[:3]
    ]
    at = lambda x, i: None if x is None else x[i]
    return [_Step(at(wide[0], i), at(wide[1], i), at(wide[2], i), step.pure) for i in range(shape[record.axis])]


def _stack(values: list) -> Any:
    """Along a new last axis."""
    xp = jnp if any(_validate.is_traced(v) for v in values) else np
    return xp.stack(xp.broadcast_arrays(*(xp.asarray(v) for v in values)), axis=-1)


def bounds(record: Mechanism, number: Any, given: str, answer: str, rtol: float) -> Any:
    """(lower, estimate, upper) of ``answer``: "epsilon", "delta" or "log_delta".

    Args:
      record: a composition of ``PARAMETRIC`` that :func:`takes` accepts.
      number: what is ``given``: "epsilon", "delta" or "log_delta".
      given: says which.
      answer: says what is asked for.
      rtol: relative width of an adaptive bracket that is aimed at.
    """
    inner, count = _repeated(record)
    if isinstance(inner, PARAMETRIC):
        step = _step(inner)
        eps, delta = (
            namespace(step.eps).asarray(step.eps)[..., None],
            namespace(step.delta).asarray(step.delta)[..., None],
        )
        options: dict = {"count": count}
        if step.pure:
            return _ask(
                pure_dp.optimal_delta_bounds,
                pure_dp.optimal_epsilon_bounds,
                number,
                given,
                answer,
                eps,
                delta,
                **options,
            )
        if step.t is None:
            return _ranged(number, given, answer, eps, rtol=rtol, **options)
    steps = _steps(record)
    if not steps:
        steps = [_Step(0.0, None, 0.0, False)]
    eps, delta = _stack([s.eps for s in steps]), _stack([s.delta for s in steps])
    if all(s.pure for s in steps):
        return _ask(pure_dp.optimal_delta_bounds, pure_dp.optimal_epsilon_bounds, number, given, answer, eps, delta)
    if all(s.t is None and not s.pure for s in steps):
        return _ranged(number, given, answer, eps, rtol=rtol)
    ranges = _stack([2 * s.eps if s.pure else s.eps for s in steps])
    ts = _stack([s.eps if s.pure else -1.0 if s.t is None else s.t for s in steps])
    failing = not all(not _validate.is_traced(s.delta) and np.all(np.asarray(s.delta) == 0) for s in steps)
    for_delta = lambda x: sequence_bounds(x, ranges, ts, rtol=rtol)
    for_epsilon = lambda d, is_log: sequence_bounds(d, ranges, ts, rtol=rtol, is_log=is_log)
    return _mixed(for_delta, for_epsilon, number, given, answer, delta if failing else None)


def _ranged(number, given, answer, eps, **options):
    if answer == "log_delta":
        return bounded_range.log_delta_bounds(number, eps, **options)
    if answer == "delta":
        return bounded_range.delta_bounds(number, eps, **options)
    return bounded_range.epsilon_bounds(epsilons=eps, **{given: number}, **options)


def _logs(found: tuple, xp: Any) -> tuple:
    """Logarithms of deltas; what underflowed is not certified as zero."""
    tiny = xp.finfo(found[0].dtype).tiny
    lower, estimate, upper = found
    floor = lambda x: xp.log(xp.maximum(x, tiny))
    return xp.where(lower > 0, floor(lower), -xp.inf), floor(estimate), floor(upper) + 8 * xp.finfo(upper.dtype).eps


def _target(number: Any, given: str) -> Any:
    """delta, from a log delta rounded down."""
    if given == "delta":
        return number
    xp = namespace(number)
    finite = xp.isfinite(number)
    size = xp.abs(xp.where(finite, number, 0.0))
    return xp.where(finite, xp.exp(number) * (1 - 4 * xp.finfo(xp.result_type(float)).eps * (1 + size)), 0.0)


def _ask(for_delta: Callable, for_epsilon: Callable, number, given, answer, eps, delta, **options):
    if answer == "epsilon":
        return for_epsilon(_target(number, given), eps, delta, **options)
    found = for_delta(number, eps, delta, **options)
    return _logs(tuple(found), namespace(found[0])) if answer == "log_delta" else found


def _mixed(for_delta: Callable, for_epsilon: Callable, number, given, answer, deltas):
    """Deltas that may fail beside pairs: all failures are in the mass at infinity."""
    if deltas is None:
        if answer == "epsilon":
            return for_epsilon(number, given == "log_delta")
        found = tuple(for_delta(number))
        return _logs(found, namespace(found[0])) if answer == "log_delta" else found
    xp = namespace(number, deltas)
    kept = xp.exp(xp.sum(xp.log1p(-deltas), axis=-1))
    room = (16 + 4 * deltas.shape[-1]) * xp.finfo(xp.result_type(float)).eps
    if answer != "epsilon":
        low, middle, high = (1 - kept + kept * x for x in for_delta(number))
        found = low * (1 - room), middle, xp.minimum(high * (1 + room), 1.0)
        return _logs(found, xp) if answer == "log_delta" else found
    target = _target(number, given)
    rest = xp.stack([(target - (1 - kept) + sign * room) / kept for sign in (1, 0, -1)])
    found = for_epsilon(xp.clip(rest, 0.0, 1.0), False)
    # What the failures alone exceed no epsilon meets.
    return tuple(xp.where(r < 0, xp.inf, end[i]) for i, (r, end) in enumerate(zip(rest, found, strict=True)))
