"""From a record and a direction to the law of its dominating pair: the one table of all mechanisms.

A builder takes one unbatched record (scalar leaves, or one event axis) and a single direction. It runs under ``jax.vmap``.
"""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp

from dpjax.laws import finite
from dpjax.laws._law import Law, reverse
from dpjax.laws.discrete import DiscreteGaussianLaw, DiscreteLaplaceLaw
from dpjax.laws.gaussian import GaussianLaw
from dpjax.laws.laplace import LaplaceLaw
from dpjax.laws.mixture import gaussian_mixture
from dpjax.laws.sampled import poisson_add, poisson_remove
from dpjax.mechanisms import (
    Adjacency,
    DiscreteGaussian,
    DiscreteLaplace,
    DiscreteLoss,
    Gaussian,
    Laplace,
    MassAtInfinity,
    Mechanism,
    MixtureOfGaussians,
    PermuteAndFlip,
    PoissonSampled,
    RandomizedResponse,
    ReportNoisyMax,
)


def _moves(direction: Adjacency) -> int:
    """How far one record can move a sum, in units of its bound."""
    return 2 if direction is Adjacency.REPLACE_ONE else 1


def _gaussian(record: Gaussian, direction: Adjacency) -> Law:
    return GaussianLaw(_moves(direction) / record.noise_multiplier)


def _laplace(record: Laplace, direction: Adjacency) -> Law:
    return LaplaceLaw(_moves(direction) / record.noise_multiplier)


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
    return LaplaceLaw(2 * _moves(direction) / record.noise.noise_multiplier)


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
    base = loss_law(record.mechanism, direction)
    if direction is Adjacency.REMOVE:
        return poisson_remove(record.sampling_probability, base)
    if direction is Adjacency.ADD:
        return poisson_add(record.sampling_probability, base)
    raise NotImplementedError(f"{record!r} has no analysis under {direction.name}.")


_BUILDERS: dict[type, Callable[..., Law]] = {
    DiscreteGaussian: _discrete_gaussian,
    DiscreteLaplace: _discrete_laplace,
    DiscreteLoss: _discrete_loss,
    Gaussian: _gaussian,
    Laplace: _laplace,
    MassAtInfinity: _mass_at_infinity,
    MixtureOfGaussians: _mixture_of_gaussians,
    PermuteAndFlip: _permute_and_flip,
    PoissonSampled: _poisson,
    RandomizedResponse: _randomized_response,
    ReportNoisyMax: _report_noisy_max,
}


def loss_law(record: Mechanism, direction: Adjacency) -> Law:
    """The law of the privacy loss of one run of ``record`` in a single direction.

    Raises:
      NotImplementedError: no analysis is known for this mechanism and direction.
    """
    builder = _BUILDERS.get(type(record))
    if builder is None:
        raise NotImplementedError(f"No dominating pair is known for {type(record).__name__} under {direction.name}.")
    return builder(record, direction)
