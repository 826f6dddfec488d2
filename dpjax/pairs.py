"""Dominating pairs: the one place where noise, norm bound and adjacency meet.

A pair (P, Q) dominates a mechanism if its hockey-stick divergences are at least the mechanism's, for all neighbours
and all orders. Poisson sampling follows Zhu, Dong, Wang (arXiv 2106.08567), Theorem 11.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from dpjax._precision import namespace
from dpjax.mechanisms import Adjacency, Gaussian, Mechanism, PoissonSampled, require_adjacency

# What an adjacency asks for: single directions, each composed on its own; the answer is the largest.
DIRECTIONS = {
    Adjacency.ADD_OR_REMOVE_ONE: (Adjacency.REMOVE, Adjacency.ADD),
    Adjacency.REPLACE_SPECIAL: (Adjacency.REMOVE, Adjacency.ADD),
    Adjacency.REPLACE_ONE: (Adjacency.REPLACE_ONE,),
    Adjacency.ADD: (Adjacency.ADD,),
    Adjacency.REMOVE: (Adjacency.REMOVE,),
}

# The same with the two datasets exchanged: P and Q change places.
REVERSE = {
    Adjacency.ADD_OR_REMOVE_ONE: Adjacency.ADD_OR_REMOVE_ONE,
    Adjacency.REPLACE_SPECIAL: Adjacency.REPLACE_SPECIAL,
    Adjacency.REPLACE_ONE: Adjacency.REPLACE_ONE,
    Adjacency.ADD: Adjacency.REMOVE,
    Adjacency.REMOVE: Adjacency.ADD,
}

# How far one record can move the sum, in units of the norm bound.
_SENSITIVITY = {Adjacency.REMOVE: 1.0, Adjacency.ADD: 1.0, Adjacency.REPLACE_ONE: 2.0}

# The log likelihood of P and the loss are sums over parts: log dP/dN = sum alpha l(sign u), log dP/dQ = sum beta l(sign u),
# where u is the noise in units of its standard deviation and l(u) = log(1 - q + q exp(u / sigma - 1 / (2 sigma^2))).
_PARTS = {
    Adjacency.REMOVE: ((1.0, 1.0, 1.0),),
    Adjacency.ADD: ((-1.0, 0.0, -1.0),),
    Adjacency.REPLACE_ONE: ((1.0, 1.0, 1.0), (-1.0, 0.0, -1.0)),
}


def part_constants(direction: Adjacency) -> tuple[tuple[float, float, float], ...]:
    """(sign, alpha, beta) of each part of a sampled Gaussian's loss; see the module."""
    return _PARTS[direction]


class GaussianPair(NamedTuple):
    """P = N(mu, 1), Q = N(0, 1); the loss is N(mu^2 / 2, mu^2).

    Attributes:
      variance: mu^2, the variance of the loss.
    """

    variance: Any


class SampledGaussianPair(NamedTuple):
    """A Gaussian that sees the differing record with probability q; one component of the pair may be pure noise.

    With N_c = N(c, sigma^2): remove is P = (1 - q) N_0 + q N_1, Q = N_0; add is the reverse; replace-one is
    P = (1 - q) N_0 + q N_1, Q = (1 - q) N_0 + q N_-1.

    Attributes:
      sigma: noise in units of the norm bound of one record, shape (...).
      q: sampling probability, shape (...).
      sign, alpha, beta: the parts (see the module), shape (..., number of parts); constants.
    """

    sigma: Any
    q: Any
    sign: Any
    alpha: Any
    beta: Any


Pair = GaussianPair | SampledGaussianPair


def directions(adjacency: Adjacency) -> tuple[Adjacency, ...]:
    """The single directions that ``adjacency`` stands for; the answer is the largest of theirs."""
    require_adjacency(adjacency)
    return DIRECTIONS[adjacency]


def dominating_pair(mechanism: Mechanism, direction: Adjacency) -> Pair:
    """The tightly dominating pair of one run of ``mechanism`` in a single direction.

    Raises:
      NotImplementedError: no analysis is known for this mechanism and direction.
    """
    if isinstance(mechanism, Gaussian):
        sigma = mechanism.noise_multiplier
        xp = namespace(sigma)
        some = sigma != 0  # no noise at all has derivative 0
        squared = (_SENSITIVITY[direction] / xp.where(some, sigma, 1.0)) ** 2
        return GaussianPair(xp.where(some, squared, xp.inf))
    if isinstance(mechanism, PoissonSampled) and isinstance(mechanism.mechanism, Gaussian):
        sigma, q = mechanism.mechanism.noise_multiplier, mechanism.sampling_probability
        shape = np.broadcast_shapes(np.shape(sigma), np.shape(q))
        xp = namespace(sigma, q)
        parts = np.asarray(part_constants(direction))
        sign, alpha, beta = (np.broadcast_to(parts[:, i], (*shape, len(parts))) for i in range(3))
        return SampledGaussianPair(xp.broadcast_to(sigma, shape), xp.broadcast_to(q, shape), sign, alpha, beta)
    name = type(mechanism).__name__
    if isinstance(mechanism, PoissonSampled):
        name = f"PoissonSampled over {type(mechanism.mechanism).__name__}"
    raise NotImplementedError(f"No dominating pair is known for {name} under {direction.name}.")
