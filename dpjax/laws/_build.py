"""From a record and a direction to the law of its dominating pair: the one table of all mechanisms.

A builder takes one unbatched record (scalar leaves, or one event axis) and a single direction. It runs under ``jax.vmap``.
"""

from __future__ import annotations

from collections.abc import Callable

from dpjax.laws._law import Law
from dpjax.laws.gaussian import GaussianLaw
from dpjax.laws.sampled import poisson_add, poisson_remove
from dpjax.mechanisms import Adjacency, Gaussian, Mechanism, PoissonSampled


def _gaussian(record: Gaussian, direction: Adjacency) -> Law:
    return GaussianLaw((2.0 if direction is Adjacency.REPLACE_ONE else 1.0) / record.noise_multiplier)


def _poisson(record: PoissonSampled, direction: Adjacency) -> Law:
    base = loss_law(record.mechanism, direction)
    if direction is Adjacency.REMOVE:
        return poisson_remove(record.sampling_probability, base)
    if direction is Adjacency.ADD:
        return poisson_add(record.sampling_probability, base)
    raise NotImplementedError(f"{record!r} has no analysis under {direction.name}.")


_BUILDERS: dict[type, Callable[..., Law]] = {Gaussian: _gaussian, PoissonSampled: _poisson}


def loss_law(record: Mechanism, direction: Adjacency) -> Law:
    """The law of the privacy loss of one run of ``record`` in a single direction.

    Raises:
      NotImplementedError: no analysis is known for this mechanism and direction.
    """
    builder = _BUILDERS.get(type(record))
    if builder is None:
        raise NotImplementedError(f"No dominating pair is known for {type(record).__name__} under {direction.name}.")
    return builder(record, direction)
