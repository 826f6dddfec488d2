"""From a record and a direction to the law of its dominating pair: the one table of all mechanisms.

Claims hold in both directions, so that their laws are the same in all.

A builder takes one unbatched record (scalar leaves, or one event axis) and a single direction. It runs under ``jax.vmap``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from dpjax.laws import finite
from dpjax.laws._binomial import binomial_tails
from dpjax.laws._law import Law, reverse
from dpjax.laws.blend import Blend
from dpjax.laws.claims import BoundedRangeLaw, approximate_law, two_point_law
from dpjax.laws.discrete import DiscreteGaussianLaw, DiscreteLaplaceLaw
from dpjax.laws.from_profile import implied_by_points
from dpjax.laws.gaussian import GaussianLaw
from dpjax.laws.laplace import LaplaceLaw
from dpjax.laws.mixture import gaussian_mixture
from dpjax.laws.renyi import renyi_law, zcdp_law
from dpjax.laws.replaced import PoissonReplaceGaussian, PoissonReplaceLaplace, fixed_size_replace
from dpjax.laws.sampled import poisson_add, poisson_remove
from dpjax.laws.zeroed import ZeroedGaussian
from dpjax.mechanisms import (
    ZCDP,
    Adjacency,
    ApproximateDP,
    BoundedRange,
    DiscreteGaussian,
    DiscreteLaplace,
    DiscreteLoss,
    FixedSizeSampled,
    Gaussian,
    Laplace,
    MassAtInfinity,
    MatrixFactorization,
    Mechanism,
    MixtureOfGaussians,
    PermuteAndFlip,
    PoissonSampled,
    PrivacyProfile,
    PureDP,
    RandomAllocation,
    RandomizedResponse,
    RenyiDP,
    ReportNoisyMax,
    TreeAggregation,
    TruncatedPoissonSampled,
)
from dpjax.mechanisms.sampling import FixedSizeSampledZeroed, TruncatedPoissonSampledZeroed

_POISSON = {Adjacency.REMOVE: poisson_remove, Adjacency.ADD: poisson_add}


def _moves(direction: Adjacency) -> int:
    """How far one record can move a sum, in units of its bound."""
    return 2 if direction is Adjacency.REPLACE_ONE else 1


def _over(moves: float, noise: Any) -> Any:
    """moves / noise; infinite, with derivative 0, without noise."""
    some = noise != 0
    return jnp.where(some, moves / jnp.where(some, noise, 1.0), jnp.inf)


def _gaussian(record: Gaussian, direction: Adjacency) -> Law:
    return GaussianLaw(_over(_moves(direction), record.noise_multiplier))


def _equivalent(record: MatrixFactorization | TreeAggregation, direction: Adjacency) -> Law:
    return _gaussian(record.gaussian(), direction)


def _laplace(record: Laplace, direction: Adjacency) -> Law:
    return LaplaceLaw(_over(_moves(direction), record.noise_multiplier))


def _discrete_gaussian(record: DiscreteGaussian, direction: Adjacency) -> Law:
    return DiscreteGaussianLaw(record.sigma, _moves(direction) * record.sensitivity)


def _discrete_laplace(record: DiscreteLaplace, direction: Adjacency) -> Law:
    return DiscreteLaplaceLaw(record.epsilon_per_unit, _moves(direction) * record.sensitivity)


def _randomized_response(record: RandomizedResponse, direction: Adjacency) -> Law:
    return finite.randomized_response(record.epsilon, record.num_buckets)


def _mass_at_infinity(record: MassAtInfinity, direction: Adjacency) -> Law:
    return finite.failure(record.delta)


def _discrete_loss(record: DiscreteLoss, direction: Adjacency) -> Law:
    return _either_way(record, direction, finite.from_masses(jnp.asarray(record.p), jnp.asarray(record.q)))


def _mixture_of_gaussians(record: MixtureOfGaussians, direction: Adjacency) -> Law:
    law = gaussian_mixture(record.noise_multiplier, record.sensitivities, record.probabilities)
    return _either_way(record, direction, law)


def _permute_and_flip(record: PermuteAndFlip, direction: Adjacency) -> Law:
    return LaplaceLaw(record.epsilon)


def _report_noisy_max(record: ReportNoisyMax, direction: Adjacency) -> Law:
    if not isinstance(record.noise, Laplace):
        raise NotImplementedError(f"{record!r} has no analysis: its noise must be Laplace.")
    return LaplaceLaw(_over(2 * _moves(direction), record.noise.noise_multiplier))


def _either_way(record: Mechanism, direction: Adjacency, law: Law) -> Law:
    """From the pair of the remove direction."""
    if direction is Adjacency.REMOVE:
        return law
    if direction is Adjacency.ADD:
        return reverse(law)
    raise NotImplementedError(
        f"{type(record).__name__} has no analysis under {direction.name}: one pair must dominate both orders of two "
        "neighbours there, and this one is for a dataset with and one without the record."
    )


def _poisson(record: PoissonSampled, direction: Adjacency) -> Law:
    if direction is Adjacency.REPLACE_ONE:
        return _poisson_replace(record.sampling_probability, record.mechanism)
    return _POISSON[direction](record.sampling_probability, loss_law(record.mechanism, direction))


def _poisson_replace(rate: Any, base: Mechanism) -> Law:
    """(1 - rate) R + rate A against (1 - rate) R + rate B; a second sampler multiplies the rate."""
    while isinstance(base, PoissonSampled):
        rate, base = rate * base.sampling_probability, base.mechanism
    if isinstance(base, Gaussian):
        return PoissonReplaceGaussian(rate, _over(1, base.noise_multiplier))
    if isinstance(base, Laplace):
        return PoissonReplaceLaplace(rate, _over(1, base.noise_multiplier))
    raise NotImplementedError(
        f"No dominating pair is known for PoissonSampled over {type(base).__name__} under REPLACE_ONE."
    )


def _replaced(record: FixedSizeSampled | TruncatedPoissonSampled) -> Law:
    """The base mechanism of a batch of fixed size."""
    base = record.mechanism
    try:
        return loss_law(base, Adjacency.REPLACE_ONE)
    except NotImplementedError as error:
        name = type(record).__name__
        raise NotImplementedError(
            f"{name} needs an analysis of its mechanism under REPLACE_ONE, and there is none for {type(base).__name__}."
        ) from error


def _fixed_size(record: FixedSizeSampled, direction: Adjacency) -> Law:
    rate, base = record.sample_size / record.dataset_size, _replaced(record)
    if direction is Adjacency.REPLACE_ONE:
        return fixed_size_replace(rate, base)
    return _POISSON[direction](rate, base)


def _zeroed(rate: Any, record: FixedSizeSampled | TruncatedPoissonSampled, direction: Adjacency) -> Law:
    """A batch of fixed size whose record is zeroed; a replacement by a record of norm at most 1 includes it."""
    if not isinstance(record.mechanism, Gaussian):
        return fixed_size_replace(rate, _replaced(record))
    law = ZeroedGaussian(rate, _over(1, record.mechanism.noise_multiplier))
    return law if direction is Adjacency.REMOVE else reverse(law)


def _fixed_size_zeroed(record: FixedSizeSampledZeroed, direction: Adjacency) -> Law:
    return _zeroed(record.sample_size / record.dataset_size, record, direction)


def full_and_kept(size: Any, rate: Any, limit: Any) -> tuple[Any, Any, Any]:
    """Of Poisson sampling with a limit: P(full), P(not full), and P(the record is drawn and kept | full).

    A batch is full if ``limit`` of the ``size - 1`` other records are drawn.
    """
    one_more = jnp.array([0.0, 1.0])
    (full, too_large), (rest, _) = jax.vmap(binomial_tails, (0, None, 0))(size - 1 + one_more, rate, limit + one_more)
    some = full > 0
    # E(rate limit / (others + 1) | full)
    kept = jnp.where(some, limit / size * too_large / jnp.where(some, full, 1.0), 0.0)
    return full, rest, jnp.minimum(kept, 1.0)


def _truncated_poisson(record: TruncatedPoissonSampled, direction: Adjacency) -> Law:
    full, rest, kept = full_and_kept(record.dataset_size, record.sampling_probability, record.max_batch_size)
    rate, base = record.sampling_probability, _replaced(record)
    if direction is Adjacency.REPLACE_ONE:
        return Blend(full, rest, fixed_size_replace(kept, base), _poisson_replace(rate, record.mechanism))
    sample = _POISSON[direction]
    return Blend(full, rest, sample(kept, base), sample(rate, loss_law(record.mechanism, direction)))


def _truncated_poisson_zeroed(record: TruncatedPoissonSampledZeroed, direction: Adjacency) -> Law:
    full, rest, kept = full_and_kept(record.dataset_size, record.sampling_probability, record.max_batch_size)
    seldom = _POISSON[direction](record.sampling_probability, loss_law(record.mechanism, direction))
    return Blend(full, rest, _zeroed(kept, record, direction), seldom)


def _pure(record: PureDP, _: Adjacency) -> Law:
    return approximate_law(record.epsilon)


def _approximate(record: ApproximateDP, _: Adjacency) -> Law:
    return approximate_law(record.epsilon, record.delta)


def _bounded_range(record: BoundedRange, _: Adjacency) -> Law:
    return BoundedRangeLaw(record.epsilon) if record.t is None else two_point_law(record.epsilon, record.t)


def _profile(record: PrivacyProfile, _: Adjacency) -> Law:
    return implied_by_points(jnp.asarray(record.epsilons), jnp.asarray(record.deltas))


def _renyi(record: RenyiDP, _: Adjacency) -> Law:
    return renyi_law(jnp.asarray(record.orders), jnp.asarray(record.epsilons))


def _zcdp(record: ZCDP, _: Adjacency) -> Law:
    return zcdp_law(jnp.asarray(record.rho), jnp.asarray(record.delta))


_BUILDERS: dict[type, Callable[..., Law]] = {
    ApproximateDP: _approximate,
    BoundedRange: _bounded_range,
    DiscreteGaussian: _discrete_gaussian,
    DiscreteLaplace: _discrete_laplace,
    DiscreteLoss: _discrete_loss,
    FixedSizeSampled: _fixed_size,
    FixedSizeSampledZeroed: _fixed_size_zeroed,
    Gaussian: _gaussian,
    Laplace: _laplace,
    MassAtInfinity: _mass_at_infinity,
    MatrixFactorization: _equivalent,
    MixtureOfGaussians: _mixture_of_gaussians,
    PermuteAndFlip: _permute_and_flip,
    PoissonSampled: _poisson,
    PrivacyProfile: _profile,
    PureDP: _pure,
    RandomizedResponse: _randomized_response,
    RenyiDP: _renyi,
    ReportNoisyMax: _report_noisy_max,
    TreeAggregation: _equivalent,
    TruncatedPoissonSampled: _truncated_poisson,
    TruncatedPoissonSampledZeroed: _truncated_poisson_zeroed,
    ZCDP: _zcdp,
}


def check_adjacency(record: Mechanism, adjacency: Adjacency) -> None:
    """Refuses what a sampler inside ``record`` has no analysis for, by name.

    Raises:
      NotImplementedError: see above.
    """
    refused = (RandomAllocation,) if adjacency is Adjacency.REPLACE_ONE else ()
    for member in jax.tree.leaves(record, is_leaf=lambda m: isinstance(m, refused)):
        if isinstance(member, refused):
            raise NotImplementedError(f"{type(member).__name__} has no analysis under {adjacency.name}.")


def loss_law(record: Mechanism | Law, direction: Adjacency) -> Law:
    """The law of the privacy loss of one run of ``record`` in a single direction; a law is its own.

    Raises:
      NotImplementedError: no analysis is known for this mechanism and direction.
    """
    if isinstance(record, Law):
        return record
    if isinstance(record, RandomAllocation):
        raise NotImplementedError(
            "RandomAllocation is known through the composition of its Poisson-sampled steps: ask about concrete numbers."
        )
    builder = _BUILDERS.get(type(record))
    if builder is None:
        raise NotImplementedError(f"No dominating pair is known for {type(record).__name__} under {direction.name}.")
    return builder(record, direction)
