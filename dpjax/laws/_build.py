"""From a record and a direction to the law of its dominating pair: the one table of all mechanisms.

Claims hold in both directions, so that their laws are the same in all.

A builder takes one unbatched record (scalar leaves, or one event axis) and a single direction. It runs under ``jax.vmap``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from dpjax.laws import finite
from dpjax.laws._law import Law, reverse
from dpjax.laws.claims import BoundedRangeLaw, approximate_law, two_point_law
from dpjax.laws.discrete import DiscreteGaussianLaw, DiscreteLaplaceLaw
from dpjax.laws.from_profile import implied_by_points
from dpjax.laws.gaussian import GaussianLaw
from dpjax.laws.laplace import LaplaceLaw
from dpjax.laws.mixture import gaussian_mixture
from dpjax.laws.renyi import renyi_law, zcdp_law
from dpjax.laws.sampled import poisson_add, poisson_remove
from dpjax.mechanisms import (
    ZCDP,
    Adjacency,
    ApproximateDP,
    BoundedRange,
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
    PrivacyProfile,
    PureDP,
    RandomizedResponse,
    RenyiDP,
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


def _valid(law: Law, ok: Any) -> Law:
    """``law``; NaN everywhere unless ``ok``: a traced field was out of range."""
    factor = jnp.where(ok, 1.0, jnp.nan)
    return jax.tree.map(lambda a: a * factor, law)


def _between(x: Any, low: float, high: float = jnp.inf) -> Any:
    return jnp.all((x >= low) & (x <= high))


def _pure(record: PureDP, _: Adjacency) -> Law:
    return _valid(approximate_law(record.epsilon), _between(record.epsilon, 0.0))


def _approximate(record: ApproximateDP, _: Adjacency) -> Law:
    ok = _between(record.epsilon, 0.0) & _between(record.delta, 0.0, 1.0)
    return _valid(approximate_law(record.epsilon, record.delta), ok)


def _bounded_range(record: BoundedRange, _: Adjacency) -> Law:
    epsilon = jnp.asarray(record.epsilon, float)
    if record.t is None:
        return _valid(BoundedRangeLaw(epsilon), _between(epsilon, 0.0))
    t = jnp.asarray(record.t, float)
    return _valid(two_point_law(epsilon, t), (t >= 0) & (t <= epsilon))


def _profile(record: PrivacyProfile, _: Adjacency) -> Law:
    epsilons, deltas = jnp.asarray(record.epsilons, float), jnp.asarray(record.deltas, float)
    ok = jnp.all(jnp.isfinite(epsilons)) & _between(deltas, 0.0, 1.0)
    return _valid(implied_by_points(epsilons, deltas), ok)


def _renyi(record: RenyiDP, _: Adjacency) -> Law:
    orders, epsilons = jnp.asarray(record.orders, float), jnp.asarray(record.epsilons, float)
    return _valid(renyi_law(orders, epsilons), _between(orders, 0.5, sys.float_info.max) & _between(epsilons, 0.0))


def _zcdp(record: ZCDP, _: Adjacency) -> Law:
    rho, delta = jnp.asarray(record.rho, float), jnp.asarray(record.delta, float)
    return _valid(zcdp_law(rho, delta), _between(rho, 0.0) & _between(delta, 0.0, 1.0))


_BUILDERS: dict[type, Callable[..., Law]] = {
    ApproximateDP: _approximate,
    BoundedRange: _bounded_range,
    DiscreteGaussian: _discrete_gaussian,
    DiscreteLaplace: _discrete_laplace,
    DiscreteLoss: _discrete_loss,
    Gaussian: _gaussian,
    Laplace: _laplace,
    MassAtInfinity: _mass_at_infinity,
    MixtureOfGaussians: _mixture_of_gaussians,
    PermuteAndFlip: _permute_and_flip,
    PoissonSampled: _poisson,
    PrivacyProfile: _profile,
    PureDP: _pure,
    RandomizedResponse: _randomized_response,
    RenyiDP: _renyi,
    ReportNoisyMax: _report_noisy_max,
    ZCDP: _zcdp,
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
