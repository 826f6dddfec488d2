"""An accountant with the interface of dp_accounting."""

from __future__ import annotations

import math
from typing import Any

from dp_accounting import NeighboringRelation, PrivacyAccountant

from dpjax import _validate, accounting
from dpjax.interop._events import UnsupportedEvent, from_dp_event
from dpjax.interop._neighbors import from_neighboring_relation
from dpjax.interop._run import Run, require_analysis
from dpjax.mechanisms import Adjacency, Mechanism

_Error = PrivacyAccountant.CompositionErrorDetails


class DpjaxAccountant(PrivacyAccountant):
    """A ``dp_accounting.PrivacyAccountant`` whose answers are dpjax's certified upper ends.

    It takes part in whatever takes such an accountant, such as ``dp_accounting.calibrate_dp_mechanism``. The class itself is a
    callable from a neighbouring relation to an accountant. Events are those of ``from_dp_event``.

    Guarantee:
      As ``dpjax.epsilon``, for the composition of all events under ``neighboring_relation``.

    Example:
      >>> import dp_accounting
      >>> from dpjax import interop
      >>> step = dp_accounting.PoissonSampledDpEvent(0.01, dp_accounting.GaussianDpEvent(1.0))
      >>> accountant = interop.DpjaxAccountant().compose(step, 1000)
      >>> print(f"{accountant.get_epsilon(1e-5):.6f} {accountant.get_delta(1.0):.6f}")
      1.828237 0.002612
    """

    def __init__(self, neighboring_relation: NeighboringRelation = NeighboringRelation.ADD_OR_REMOVE_ONE):
        """For one neighbouring relation.

        Args:
          neighboring_relation: which datasets are neighbours.

        Raises:
          ValueError: not a ``dp_accounting.NeighboringRelation``.
        """
        self._adjacency = from_neighboring_relation(neighboring_relation)
        super().__init__(neighboring_relation)
        self._run = Run()

    def _maybe_compose(self, event: Any, count: int, do_compose: bool) -> Any:
        try:
            mechanism = from_dp_event(event, self._adjacency)
        except UnsupportedEvent as error:
            return _Error(error.event, str(error))
        if do_compose:
            self._run.add(mechanism, count)
            return None
        try:
            require_analysis(mechanism, self._adjacency)
        except NotImplementedError as error:
            return _Error(event, str(error))
        return None

    @property
    def mechanism(self) -> Mechanism:
        """All that was composed, as a dpjax mechanism, to be asked about under ``adjacency``."""
        return self._run.mechanism()

    @property
    def adjacency(self) -> Adjacency:
        """The adjacency that answers are computed under: that of the relation."""
        return self._adjacency

    def get_epsilon(self, target_delta: float) -> float:
        """The smallest epsilon for which everything composed is (epsilon, target_delta)-DP, from above."""
        _validate.in_range("target_delta", target_delta, 0.0, 1.0)
        if not self._run.is_private():
            return math.inf
        if self._run.is_empty():
            return 0.0
        return float(accounting.epsilon(self.mechanism, target_delta, adjacency=self.adjacency))

    def get_delta(self, target_epsilon: float) -> float:
        """The smallest delta for which everything composed is (target_epsilon, delta)-DP, from above."""
        _validate.in_range("target_epsilon", target_epsilon)
        if not self._run.is_private():
            return 1.0
        if self._run.is_empty():
            return 0.0
        return float(accounting.delta(self.mechanism, target_epsilon, adjacency=self.adjacency))
