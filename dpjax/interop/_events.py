"""From dp_accounting's events to mechanisms.

Events are recognised by the names of their class and fields, so that neither dp_accounting nor a certain version of it is needed;
what ``DpEvent.to_named_tuple`` returns is read as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from dpjax.mechanisms import (
    ZCDP,
    Adjacency,
    ApproximateDP,
    BoundedRange,
    Composed,
    DiscreteGaussian,
    DiscreteLaplace,
    DiscreteLoss,
    FixedSizeSampled,
    Gaussian,
    Laplace,
    MassAtInfinity,
    Mechanism,
    MixtureOfGaussians,
    PermuteAndFlip,
    PoissonSampled,
    RandomAllocation,
    RandomizedResponse,
    RenyiDP,
    SelfComposed,
    TreeAggregation,
    TruncatedPoissonSampled,
    require_adjacency,
)

NOTHING = Composed(())
_ULP = 2.0**-52
# Orders at which (xi, rho)-zCDP is used: from next to 1 up to a delta of about 1e-300 at epsilons of 1 and more.
_ORDERS = np.concatenate([1.0 + np.geomspace(1e-3, 1.0, 16), np.geomspace(2.2, 2048.0, 48)])


class UnsupportedEvent(NotImplementedError):
    """An event that has no analysis here.

    Attributes:
      event: the event itself, somewhere inside of what was asked about.
    """

    def __init__(self, event: Any, reason: str):
        super().__init__(reason)
        self.event = event


def from_dp_event(event: Any, adjacency: Adjacency = Adjacency.ADD_OR_REMOVE_ONE) -> Mechanism:
    """The mechanism that a dp_accounting event describes.

    Args:
      event: a ``dp_accounting.DpEvent``, of version 0.6 or of one that adds ``EpsilonDelta``, ``DiscreteGaussian``,
        ``ExponentialMechanism``, ``PermuteAndFlip`` or ``RandomAllocation`` events; or its named tuple.
      adjacency: the neighbours under which the mechanism will be asked about. Some events mean something else under each:
        randomised response has a special record that answers uniformly under ``REPLACE_SPECIAL``, and no analysis under
        ``ADD_OR_REMOVE_ONE``, since the event does not say who answers for the absent.

    Returns:
      A mechanism. No operation becomes ``Composed(())``, a non-private one ``MassAtInfinity(1)``; noise of parameter 0 where
      no such distribution exists is non-private. Parameters that have to be converted are rounded towards less privacy.
      Compositions of Gaussians inside a sampler become the Gaussian of the same total. (xi, rho)-zCDP with xi > 0 becomes
      its Renyi divergences at 64 orders.

    Raises:
      UnsupportedEvent: a NotImplementedError. The message names the event and says what to do instead.
      ValueError: a parameter is out of range.

    Guarantee:
      What dpjax answers about the mechanism under ``adjacency`` holds for what the event describes.

    Example:
      >>> import dp_accounting
      >>> from dpjax import interop
      >>> step = dp_accounting.PoissonSampledDpEvent(0.01, dp_accounting.GaussianDpEvent(1.1))
      >>> interop.from_dp_event(dp_accounting.SelfComposedDpEvent(step, 1000))
      SelfComposed(PoissonSampled(0.01, Gaussian(1.1)), 1000)
    """
    require_adjacency(adjacency)
    name = class_name(event)
    if name in _REFUSED:
        raise UnsupportedEvent(event, f"{name} {_REFUSED[name]}")
    rule = _RULES.get(name)
    if rule is None:
        raise UnsupportedEvent(event, f"{name} is no event that dpjax knows; it knows {', '.join(sorted(_RULES))}.")
    try:
        return rule(event, adjacency)
    except AttributeError as error:
        raise UnsupportedEvent(event, f"{name} lacks the field {error.name!r} that dpjax reads.") from error


def class_name(event: Any) -> str:
    """The name of the event's class; a named tuple has it in a field."""
    name = getattr(event, "class_name", None)
    name = type(event).__name__ if name is None else name
    return name.decode() if isinstance(name, bytes) else name


def flat(mechanism: Mechanism) -> list[tuple[Mechanism, float]]:
    """(mechanism, how often it is run) of a composition of concrete unbatched records."""
    if isinstance(mechanism, Composed):
        return [pair for member in mechanism.mechanisms for pair in flat(member)]
    if isinstance(mechanism, SelfComposed):
        return [(m, count * float(np.asarray(mechanism.count))) for m, count in flat(mechanism.mechanism)]
    return [(mechanism, 1.0)]


# --------------------------------------------------------------------------------------------------------------------

_REFUSED = {
    "SampledWithReplacementDpEvent": (
        "has no analysis in dpjax: sample without replacement (SampledWithoutReplacementDpEvent) or by Poisson sampling."
    ),
    "RepeatAndSelectDpEvent": (
        "has no analysis in dpjax: select with report-noisy-max or the exponential mechanism (dpjax.ReportNoisyMax, "
        "dpjax.ExponentialMechanism), or compose all repetitions if their number is fixed."
    ),
    "UnsupportedDpEvent": "stands for what is not described: describe what was run by other events.",
}


def _no_op(event: Any, adjacency: Adjacency) -> Mechanism:
    return NOTHING


def _non_private(event: Any, adjacency: Adjacency) -> Mechanism:
    return MassAtInfinity(1.0)


def _discrete_laplace(event: Any, adjacency: Adjacency) -> Mechanism:
    if event.noise_parameter == 0:  # no such distribution
        return MassAtInfinity(1.0)
    return DiscreteLaplace(event.noise_parameter, _int("sensitivity", event.sensitivity))


def _discrete_gaussian(event: Any, adjacency: Adjacency) -> Mechanism:
    """In several dimensions the pair depends on how the sensitivity is spread, and only the zCDP bound is known."""
    if event.sigma == 0:
        return MassAtInfinity(1.0)
    if event.dimension == 1 and float(event.sensitivity).is_integer() and event.sensitivity >= 1:
        return DiscreteGaussian(event.sigma, int(event.sensitivity))
    if not (event.sensitivity >= 0 and event.sigma > 0):
        raise ValueError(f"{event!r}: sigma and sensitivity must be numbers >= 0.")
    moves = 2.0 if adjacency is Adjacency.REPLACE_ONE else 1.0
    return ZCDP(_up(0.5 * (moves * event.sensitivity / event.sigma) ** 2))


def _randomized_response(event: Any, adjacency: Adjacency) -> Mechanism:
    p, k = float(event.noise_parameter), _int("num_buckets", event.num_buckets)
    if not 0 <= p <= 1:
        raise ValueError(f"noise_parameter = {p!r}, but it must be a number in [0, 1].")
    if k < 1:
        raise ValueError(f"num_buckets = {k!r}, but it must be a whole number >= 1.")
    if adjacency not in (Adjacency.REPLACE_ONE, Adjacency.REPLACE_SPECIAL):
        raise UnsupportedEvent(
            event,
            f"neighboring_relation must be `REPLACE_ONE` or `REPLACE_SPECIAL` for `RandomizedResponseDpEvent`; found "
            f"{adjacency.name}, where nobody answers for the absent.",
        )
    if k == 1:
        return NOTHING
    if p == 0:
        return MassAtInfinity(1.0)
    if adjacency is Adjacency.REPLACE_ONE:
        return RandomizedResponse(_up(math.log1p(k * (1 - p) / p)), k)
    rest = (k - 1) / k
    return DiscreteLoss(np.array([1 - p * rest, p * rest]), np.array([1 - rest, rest]))


def _mixture_of_gaussians(event: Any, adjacency: Adjacency) -> Mechanism:
    moves, shares = np.array(event.sensitivities, np.float64), np.array(event.sampling_probs, np.float64)
    mixture = MixtureOfGaussians(event.standard_deviation, moves, shares)
    if not np.any((moves > 0) & (shares > 0)):
        return NOTHING
    if adjacency is Adjacency.REPLACE_ONE:
        raise UnsupportedEvent(
            event,
            "neighboring_relation must be `ADD_OR_REMOVE_ONE` or `REPLACE_SPECIAL` for `MixtureOfGaussiansDpEvent`; found "
            "REPLACE_ONE, where the other record moves the sum, too.",
        )
    return mixture


def _zcdp(event: Any, adjacency: Adjacency) -> Mechanism:
    rho, xi = float(event.rho), float(event.xi)
    for name, value in (("rho", rho), ("xi", xi)):
        if not value >= 0:
            raise ValueError(f"{name} = {value!r}, but it must be a number >= 0.")
    if math.isinf(rho) or math.isinf(xi):
        return MassAtInfinity(1.0)
    return ZCDP(rho) if xi == 0 else RenyiDP(_ORDERS, (xi + rho * _ORDERS) * (1 + 2 * _ULP))


def _composed(event: Any, adjacency: Adjacency) -> Mechanism:
    return Composed(tuple(from_dp_event(e, adjacency) for e in event.events))


def _self_composed(event: Any, adjacency: Adjacency) -> Mechanism:
    return SelfComposed(from_dp_event(event.event, adjacency), _int("count", event.count))


def _sampled(event: Any, adjacency: Adjacency, make: Callable[[Mechanism], Mechanism]) -> Mechanism:
    """What the batch is given to: one mechanism, or Gaussians, which add up to one."""
    parts = [(m, count) for m, count in flat(from_dp_event(event.event, adjacency)) if count > 0]
    if not parts:
        return NOTHING
    if len(parts) == 1 and parts[0][1] == 1:
        return make(parts[0][0])
    if any(isinstance(m, MassAtInfinity) and m.delta == 1 for m, _ in parts):
        return make(MassAtInfinity(1.0))
    if not all(isinstance(m, Gaussian) for m, _ in parts):
        raise UnsupportedEvent(
            event,
            f"{class_name(event)} over a composition is known of Gaussians alone: put the sampler around each part if each "
            "has a batch of its own.",
        )
    sigmas = [float(m.noise_multiplier) for m, _ in parts]  # type: ignore[attr-defined]
    if min(sigmas) == 0:
        return make(Gaussian(0.0))
    total = math.fsum(count / (sigma * sigma) for sigma, (_, count) in zip(sigmas, parts, strict=True))
    return make(Gaussian((1 - 4 * _ULP) / math.sqrt(total) if total > 0 else math.inf))


def _poisson_sampled(event: Any, adjacency: Adjacency) -> Mechanism:
    return _sampled(event, adjacency, lambda base: PoissonSampled(event.sampling_probability, base))


def _sampled_without_replacement(event: Any, adjacency: Adjacency) -> Mechanism:
    size, sample = _int("source_dataset_size", event.source_dataset_size), _int("sample_size", event.sample_size)
    if size == 0 and sample == 0:
        return NOTHING
    return _sampled(event, adjacency, lambda base: FixedSizeSampled(size, sample, base))


def _truncated(event: Any, adjacency: Adjacency) -> Mechanism:
    size, most = _int("dataset_size", event.dataset_size), _int("truncated_batch_size", event.truncated_batch_size)
    base = Gaussian(event.noise_multiplier)
    if (size == 0 and most >= 0) or (most == 0 and size >= 0):
        return NOTHING
    return TruncatedPoissonSampled(size, event.sampling_probability, most, base)


def _tree_aggregation(event: Any, adjacency: Adjacency) -> Mechanism:
    if adjacency not in (Adjacency.REPLACE_ONE, Adjacency.REPLACE_SPECIAL):
        raise UnsupportedEvent(
            event,
            "neighboring_relation must be `REPLACE_SPECIAL` or `REPLACE_ONE` for `SingleEpochTreeAggregationDpEvent`; found "
            f"{adjacency.name}, where a record more moves those after it to other steps.",
        )
    return TreeAggregation(event.noise_multiplier, np.asarray(event.step_counts, np.float64))


def _random_allocation(event: Any, adjacency: Adjacency) -> Mechanism:
    steps, selected = _int("num_steps", event.num_steps), _int("num_selected", event.num_selected)
    return _sampled(event, adjacency, lambda base: RandomAllocation(steps, base, selected))


def _int(name: str, x: Any) -> int:
    if isinstance(x, bool) or int(x) != x:
        raise ValueError(f"{name} = {x!r}, but it must be a whole number.")
    return int(x)


def _up(x: float) -> float:
    return x * (1 + 4 * _ULP)


_RULES: dict[str, Callable[[Any, Adjacency], Mechanism]] = {
    "ComposedDpEvent": _composed,
    "DiscreteGaussianDpEvent": _discrete_gaussian,
    "DiscreteLaplaceDpEvent": _discrete_laplace,
    "EpsilonDeltaDpEvent": lambda e, _: (
        MassAtInfinity(1.0) if e.epsilon == math.inf else ApproximateDP(e.epsilon, e.delta)
    ),
    "ExponentialMechanismDpEvent": lambda e, _: BoundedRange(e.epsilon),
    "GaussianDpEvent": lambda e, _: Gaussian(e.noise_multiplier),
    "LaplaceDpEvent": lambda e, _: Laplace(e.noise_multiplier),
    "MixtureOfGaussiansDpEvent": _mixture_of_gaussians,
    "NoOpDpEvent": _no_op,
    "NonPrivateDpEvent": _non_private,
    "PermuteAndFlipDpEvent": lambda e, _: PermuteAndFlip(e.epsilon),
    "PoissonSampledDpEvent": _poisson_sampled,
    "RandomAllocationDpEvent": _random_allocation,
    "RandomizedResponseDpEvent": _randomized_response,
    "SampledWithoutReplacementDpEvent": _sampled_without_replacement,
    "SelfComposedDpEvent": _self_composed,
    "SingleEpochTreeAggregationDpEvent": _tree_aggregation,
    "TruncatedSubsampledGaussianDpEvent": _truncated,
    "ZCDpEvent": _zcdp,
}
