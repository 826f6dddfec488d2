"""An accountant with the interface of Opacus, made without importing it, which would import PyTorch."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

from dpjax import accounting
from dpjax.interop._run import Run
from dpjax.mechanisms import Adjacency, Gaussian, Mechanism, PoissonSampled


class OpacusAccountant:
    """The privacy of DP-SGD steps, with the methods of ``opacus.accountants.IAccountant``.

    Once registered, it is chosen by name, and Opacus' calibration uses it, too::

        opacus.accountants.register_accountant("dpjax", dpjax.interop.OpacusAccountant)
        engine = opacus.PrivacyEngine(accountant="dpjax")

    Guarantee:
      Epsilon as ``dpjax.epsilon``, under ADD_OR_REMOVE_ONE, of Poisson-sampled Gaussians: Opacus' loaders sample so
      unless ``poisson_sampling=False`` is passed.

    Attributes:
      history: a list of (noise multiplier, sampling rate, number of steps).

    Example:
      >>> from dpjax.interop import OpacusAccountant
      >>> accountant = OpacusAccountant()
      >>> for _ in range(1000):
      ...     accountant.step(noise_multiplier=1.0, sample_rate=0.01)
      >>> print(len(accountant), f"{accountant.get_epsilon(1e-5):.6f}")
      1000 1.828237
    """

    def __init__(self):
        self.history: list[tuple[float, float, int]] = []

    def step(self, *, noise_multiplier: float, sample_rate: float) -> None:
        """Counts one optimisation step.

        Args:
          noise_multiplier: noise standard deviation over clipping norm, >= 0.
          sample_rate: probability of each record to be in the batch, in [0, 1].

        Raises:
          ValueError: an argument is out of range.
        """
        PoissonSampled(sample_rate, Gaussian(noise_multiplier))  # checks
        steps = 1
        if self.history and tuple(self.history[-1][:2]) == (noise_multiplier, sample_rate):
            steps += self.history.pop()[2]
        self.history.append((noise_multiplier, sample_rate, steps))

    @property
    def run(self) -> Mechanism:
        """All steps, as a dpjax mechanism."""
        run = Run()
        for noise_multiplier, sample_rate, steps in self.history:
            run.add(PoissonSampled(sample_rate, Gaussian(noise_multiplier)), steps)
        return run.mechanism()

    def get_epsilon(self, delta: float, **options: Any) -> float:
        """Epsilon of all steps.

        Args:
          delta: in [0, 1].
          **options: further keywords of ``dpjax.epsilon``.

        Returns:
          Epsilon, from above.
        """
        options = {"adjacency": Adjacency.ADD_OR_REMOVE_ONE} | options
        return float(accounting.epsilon(self.run, delta, **options))

    def __len__(self) -> int:
        return sum(steps for _, _, steps in self.history)

    @classmethod
    def mechanism(cls) -> str:
        """The accountant's name in Opacus."""
        return "dpjax"

    def get_optimizer_hook_fn(self, sample_rate: float) -> Callable[[Any], None]:
        """What Opacus attaches to a ``DPOptimizer``, to be called after every step.

        Args:
          sample_rate: of one micro-batch; the optimizer says how many of them a step accumulates.
        """

        def count(optimizer: Any) -> None:
            self.step(
                noise_multiplier=optimizer.noise_multiplier, sample_rate=sample_rate * optimizer.accumulated_iterations
            )

        return count

    def state_dict(self, destination: MutableMapping[str, Any] | None = None) -> MutableMapping[str, Any]:
        """The history and the accountant's name, in ``destination`` if given."""
        destination = OrderedDict() if destination is None else destination
        destination["history"] = copy.deepcopy(self.history)
        destination["mechanism"] = self.mechanism()
        return destination

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continues from what ``state_dict`` returned.

        Raises:
          ValueError: it is empty, lacks a key, or is of another accountant.
        """
        for key in ("history", "mechanism"):
            if not state_dict or key not in state_dict:
                raise ValueError(f"state_dict = {state_dict!r} lacks the key {key!r}.")
        if state_dict["mechanism"] != self.mechanism():
            raise ValueError(
                f"state_dict is of the accountant {state_dict['mechanism']!r}, and cannot be loaded into one of "
                f"{self.mechanism()!r}."
            )
        self.history = [tuple(entry) for entry in state_dict["history"]]
