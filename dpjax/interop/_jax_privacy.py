"""dpjax inside the training accountants of jax_privacy 2.0."""

from __future__ import annotations

import dataclasses

from dp_accounting import NeighboringRelation
from dp_accounting.pld import PLDAccountant
from jax_privacy.accounting import PldAccountantConfig

from dpjax.interop._accountant import DpjaxAccountant


class _Accountant(DpjaxAccountant, PLDAccountant):
    """jax_privacy asks for a PLDAccountant by class where others have no analysis; all methods are dpjax's."""


@dataclasses.dataclass(kw_only=True, slots=True)
class JaxPrivacyConfig(PldAccountantConfig):
    """A ``jax_privacy.accounting.DpAccountantConfig`` that makes dpjax's accountant.

    It is a ``PldAccountantConfig`` because jax_privacy asks for one by class for truncated batches and for user-level
    privacy; ``value_discretization_interval`` is not used.

    Attributes:
      neighboring_relation: which datasets are neighbours.

    Example:
      >>> from jax_privacy import accounting
      >>> from dpjax import interop
      >>> accountant = accounting.DpsgdTrainingAccountant(interop.JaxPrivacyConfig())
      >>> params = accounting.DpParams(noise_multipliers=1.1, num_samples=60_000, delta=1e-5, batch_size=256)
      >>> print(f"{accountant.compute_epsilon(14_063, params):.6f}")
      2.381690
    """

    neighboring_relation: NeighboringRelation = NeighboringRelation.ADD_OR_REMOVE_ONE

    def create_accountant(self) -> DpjaxAccountant:  # pyright: ignore[reportIncompatibleMethodOverride]
        """A fresh accountant."""
        return _Accountant(self.neighboring_relation)
