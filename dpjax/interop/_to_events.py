"""From mechanisms to dp_accounting's events."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from dpjax import _validate, composition
from dpjax._pytree import event_axes
from dpjax.mechanisms import (
    ZCDP,
    ApproximateDP,
    BoundedRange,
    Composed,
    ComposedOver,
    DiscreteGaussian,
    DiscreteLaplace,
    FixedSizeSampled,
    Gaussian,
    Laplace,
    MassAtInfinity,
    MatrixFactorization,
    Mechanism,
    MixtureOfGaussians,
    PermuteAndFlip,
    PoissonSampled,
    PureDP,
    RandomAllocation,
    RandomizedResponse,
    SelfComposed,
    TreeAggregation,
    TruncatedPoissonSampled,
)


def to_dp_event(mechanism: Mechanism) -> Any:
    """The dp_accounting event that describes ``mechanism``: the inverse of ``from_dp_event``.

    Args:
      mechanism: an unbatched record with concrete fields; a schedule becomes a list of its steps.

    Returns:
      A ``dp_accounting.DpEvent``, of the classes that the installed version has.

    Raises:
      TypeError: not a mechanism, or a field is traced.
      ValueError: a field is an array, or a count is no whole number.
      NotImplementedError: dp_accounting has no event for it; the message names the record.

    Example:
      >>> import dpjax
      >>> from dpjax import interop
      >>> interop.to_dp_event(dpjax.dpsgd(1.1, 0.01, 1000)).count
      1000
    """
    if not isinstance(mechanism, Mechanism):
        raise TypeError(f"mechanism must be a dpjax mechanism; got {mechanism!r}.")
    if any(map(_validate.is_traced, jax.tree.leaves(mechanism))):
        raise TypeError(f"{mechanism!r} has traced fields: make the event outside of jit, vmap and grad.")
    composition.check(mechanism)
    if composition.batch_shape(mechanism):
        raise ValueError(f"{mechanism!r} is a batch of mechanisms; an event describes one.")
    return _event(mechanism)


def _event(record: Mechanism) -> Any:
    rule = _RULES.get(type(record))
    if rule is None:
        raise NotImplementedError(f"dp_accounting has no event for {type(record).__name__}.")
    return rule(record)


def _new(name: str, record: Mechanism, *fields: Any) -> Any:
    """An event of the class ``name``, which only some versions have."""
    from dp_accounting import dp_event

    cls = getattr(dp_event, f"{name}DpEvent" if name != "Z" else "ZCDpEvent", None)
    if cls is None:
        raise NotImplementedError(
            f"the dp_accounting installed has no {name}DpEvent, which {type(record).__name__} needs; a newer one may."
        )
    return cls(*fields)


def _schedule(record: ComposedOver) -> Any:
    """Step by step."""
    (length,), _ = composition.inner_shape(record)
    schedule = lambda m: isinstance(m, ComposedOver)
    if any(map(schedule, jax.tree.leaves(record.mechanism, is_leaf=schedule))):
        raise NotImplementedError("schedules inside schedules have no event: compose over one axis.")

    def step(i: int) -> Mechanism:
        def pick(x: Any, events: int) -> Any:
            x = np.asarray(x, np.float64)
            return x if x.ndim == events else x[i if len(x) > 1 else 0]

        return jax.tree.map(pick, record.mechanism, event_axes(record.mechanism))

    return _new("Composed", record, [_event(step(i)) for i in range(length)])


def _number(x: Any) -> float:
    return float(np.asarray(x))


def _whole(name: str, x: Any) -> int:
    value = _number(x)
    if not value.is_integer():
        raise ValueError(f"{name} = {value!r}, but an event needs a whole number.")
    return int(value)


def _mass(record: MassAtInfinity) -> Any:
    return (
        _new("NonPrivate", record)
        if _number(record.delta) == 1
        else _new("EpsilonDelta", record, 0.0, _number(record.delta))
    )


def _randomized_response(record: RandomizedResponse) -> Any:
    k = record.num_buckets
    epsilon = _number(record.epsilon)
    # 1 - p + p / k = e^epsilon p / k
    p = 0.0 if epsilon > 700 else k / (math.expm1(epsilon) + k)
    return _new("RandomizedResponse", record, p * (1 - 2.0**-50) if epsilon > 0 else 1.0, k)


def _bounded_range(record: BoundedRange) -> Any:
    if record.t is not None:
        raise NotImplementedError("dp_accounting has no event for BoundedRange with a t.")
    return _new("ExponentialMechanism", record, _number(record.epsilon))


def _zcdp(record: ZCDP) -> Any:
    if _number(record.delta):
        raise NotImplementedError("dp_accounting has no event for ZCDP with a delta.")
    return _new("Z", record, _number(record.rho))


def _truncated(record: TruncatedPoissonSampled) -> Any:
    if not isinstance(record.mechanism, Gaussian):
        raise NotImplementedError(
            f"dp_accounting has an event for TruncatedPoissonSampled over Gaussian only, not {record.mechanism!r}."
        )
    size, most = _whole("dataset_size", record.dataset_size), _whole("max_batch_size", record.max_batch_size)
    sigma = _number(record.mechanism.noise_multiplier)
    return _new("TruncatedSubsampledGaussian", record, size, _number(record.sampling_probability), most, sigma)


def _random_allocation(record: RandomAllocation) -> Any:
    steps, selected = _whole("num_steps", record.num_steps), _whole("participations", record.participations)
    return _new("RandomAllocation", record, _event(record.mechanism), selected, steps)


def _tree_aggregation(record: TreeAggregation) -> Any:
    counts = [_whole("step_counts", x) for x in np.asarray(record.step_counts)]
    return _new("SingleEpochTreeAggregation", record, _number(record.noise_multiplier), counts)


def _self_composed(record: SelfComposed) -> Any:
    count = _whole("count", record.count)
    if count == 0:
        return _new("NoOp", record)
    return _new("SelfComposed", record, _event(record.mechanism), count)


def _fixed_size(record: FixedSizeSampled) -> Any:
    size, sample = _whole("dataset_size", record.dataset_size), _whole("sample_size", record.sample_size)
    return _new("SampledWithoutReplacement", record, size, sample, _event(record.mechanism))


def _composed(record: Composed) -> Any:
    events = [_event(m) for m in record.mechanisms]
    return _new("Composed", record, events) if events else _new("NoOp", record)


_RULES: dict[type, Callable[[Any], Any]] = {
    ApproximateDP: lambda r: _new("EpsilonDelta", r, _number(r.epsilon), _number(r.delta)),
    BoundedRange: _bounded_range,
    Composed: _composed,
    ComposedOver: _schedule,
    DiscreteGaussian: lambda r: _new("DiscreteGaussian", r, _number(r.sigma), float(r.sensitivity), 1),
    DiscreteLaplace: lambda r: _new("DiscreteLaplace", r, _number(r.epsilon_per_unit), r.sensitivity),
    FixedSizeSampled: _fixed_size,
    Gaussian: lambda r: _new("Gaussian", r, _number(r.noise_multiplier)),
    Laplace: lambda r: _new("Laplace", r, _number(r.noise_multiplier)),
    MassAtInfinity: _mass,
    MatrixFactorization: lambda r: _event(r.gaussian()),
    MixtureOfGaussians: lambda r: _new(
        "MixtureOfGaussians", r, _number(r.noise_multiplier), list(map(float, r.sensitivities)), list(map(float, r.probabilities))
    ),
    PermuteAndFlip: lambda r: _new("PermuteAndFlip", r, _number(r.epsilon)),
    PoissonSampled: lambda r: _new("PoissonSampled", r, _number(r.sampling_probability), _event(r.mechanism)),
    PureDP: lambda r: _new("EpsilonDelta", r, _number(r.epsilon), 0.0),
    RandomAllocation: _random_allocation,
    RandomizedResponse: _randomized_response,
    SelfComposed: _self_composed,
    TreeAggregation: _tree_aggregation,
    TruncatedPoissonSampled: _truncated,
    ZCDP: _zcdp,
}  # fmt: skip
