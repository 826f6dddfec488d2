"""Steps whose noise is any number in a range, chosen on the way."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from dpjax import _validate, accounting
from dpjax._pytree import event, node, static
from dpjax.mechanisms import Adjacency, ComposedOver, Gaussian, Mechanism, PoissonSampled, SelfComposed
from dpjax.pairs import directions
from dpjax.training import _running, _tilts
from dpjax.training.steps import Next, Steps

_LEVELS = 8  # at which steps are counted, too
_NARROW = 1e-9  # relative: between the ends along the contours, there is nothing to gain by other means
_NODES = 1024  # that may be spent where the contours do not serve


@node
class NoiseRange(Steps):
    """Noise that is chosen as training goes, any number in a range, but not from anything that depends on the data.

    ``NoiseLevels`` for numbers instead of levels: ask with ``update(..., noise_multiplier=x)``, where ``x`` may be traced; it is
    what is drawn and what is accounted for, to the last digit. The state holds sums over the steps: of the cumulants of
    their privacy losses, on a few contours that are planned here for the range. Its size does not depend on the number of
    steps, and ``privacy_spent`` answers at any time; a step takes about 0.5 ms more (measured, a busy CPU core).

    Args:
      low, high: the range of noise multipliers, 0 < low <= high.
      steps: how many steps there will be at most. More are valid, and their answer is wider.
      delta: at which epsilon will be asked for, a number or a vector. Others are valid as well, and their answer may be wider.
      sampling_probability: of each record to be in a batch, in (0, 1]; 1 is a batch of all records.
      adjacency: which datasets are neighbours. ADD_OR_REMOVE_ONE serves its single directions and REPLACE_SPECIAL too.

    Guarantee:
      ``privacy_spent`` is never below the exact epsilon of the steps run, composed, whatever they were and whatever the plan:
      rounding and the form in which the sums are kept are in the certificate. Where the plan fits, in most of a run in which a
      record is expected in more than a few batches, it is within about 1e-9 of that, and mostly 1e-11, outside jit. Where it
      does not, each step's noise counts as the least so far at one of eight levels, which costs some per cent, or up to
      half where noise spreads over a wide range and a record is in a batch or two at most. Valid only if the choices do not depend
      on the private data, past noisy gradients and losses included: those need a filter.

    Raises:
      ValueError: a number is out of range; in ``update``, noise outside the range. If that is traced, the update and all that
        is asked of the state from then on are NaN.
      TypeError: a number is traced: the plan is made beforehand.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> import dpjax
      >>> from dpjax import training
      >>> steps = training.NoiseRange(1.0, 2.0, steps=1000, sampling_probability=0.01, delta=1e-5)
      >>> private = training.private_sum(1.0, steps, key=0, expected_batch_size=64)
      >>> @jax.jit
      ... def train(noise):
      ...     step = lambda state, x: private.update(jnp.zeros(3), state, noise_multiplier=x)[::-1]
      ...     return jax.lax.scan(step, private.init(jnp.zeros(3)), noise)[0]
      >>> noise = jnp.linspace(2.0, 1.0, 1000)
      >>> print(f"{training.privacy_spent(train(noise), delta=1e-5):.8f}")
      1.07293568
      >>> run = dpjax.ComposedOver(dpjax.PoissonSampled(0.01, dpjax.Gaussian(noise)))
      >>> print(f"{dpjax.epsilon(run, delta=1e-5):.8f}")
      1.07293568
    """

    low: Any
    high: Any
    steps: int = static(kw_only=True)
    delta: Any = event(kw_only=True)
    sampling_probability: Any = event(0, default=1.0, kw_only=True)
    adjacency: Adjacency = static(default=Adjacency.ADD_OR_REMOVE_ONE, kw_only=True)

    def __repr__(self) -> str:
        rate = "" if self._plain else f", sampling_probability={float(self.sampling_probability)!r}"
        return f"NoiseRange({float(self.low)!r}, {float(self.high)!r}, steps={self.steps}{rate})"

    def __post_init__(self):
        for name in ("low", "high", "delta", "sampling_probability"):
            x = getattr(self, name)
            if _validate.is_traced(x):
                raise TypeError(f"{name} is traced, but what a NoiseRange is planned for must be known beforehand.")
            x = _validate.number(name, x)
            if np.ndim(x) > (name == "delta"):
                raise ValueError(
                    f"{name} has shape {np.shape(x)}, but it must be a number{' or a vector' * (name == 'delta')}."
                )
            object.__setattr__(self, name, x)
        _validate.in_range("low", self.low, 0.0, low_open=True)
        _validate.in_range("high", self.high, self.low, 1e30)
        _validate.whole("steps", self.steps, 1)
        _validate.in_range("delta", self.delta, 0.0, 1.0, low_open=True, high_open=True)
        _validate.in_range("sampling_probability", self.sampling_probability, 0.0, 1.0, low_open=True)
        if np.size(self.delta) == 0:
            raise ValueError("delta is empty, but what is planned for must be said.")
        self._directions  # noqa: B018  refuses what is no adjacency

    @property
    def _plain(self) -> bool:
        return bool(self.sampling_probability == 1)

    @property
    def _directions(self) -> tuple[Adjacency, ...]:
        return directions(self.adjacency)

    @property
    def _levels(self) -> int:
        return 1 if self.low == self.high else _LEVELS

    @property
    def _ends(self) -> tuple[np.float32, np.float32]:
        """The range in float32, rounded outwards: its ends are noise that may be asked for."""
        low, high = np.float32(self.low), np.float32(self.high)
        return (
            np.nextafter(low, np.float32(0)) if low > self.low else low,
            np.nextafter(high, np.float32(np.inf)) if high < self.high else high,
        )

    def start(self) -> Any:
        if self._plain:
            return _running.start_plain()
        deltas = tuple(float(x) for x in np.atleast_1d(self.delta))
        ends = float(self.low), float(self.high)
        on = _tilts.contours(*ends, self.steps, float(self.sampling_probability), deltas, self._directions)
        return _running.start(on, self._directions, self._ends[1], self._levels)

    def next(self, count: Any, mechanism: Any, noise_multiplier: Any) -> Next:
        if mechanism is not None or noise_multiplier is None:
            raise TypeError("steps of a NoiseRange take update(..., noise_multiplier=...), and no mechanism.")
        low, high = self._ends
        if not _validate.is_traced(noise_multiplier):
            wide = isinstance(noise_multiplier, jax.Array)  # which may be a rounded end of the range
            ends = (float(low), float(high)) if wide else (float(self.low), float(self.high))
            _validate.in_range("noise_multiplier", noise_multiplier, *ends)
        noise = jnp.asarray(noise_multiplier, jnp.result_type(float))
        noise = jnp.where((noise >= low) & (noise <= high), noise, jnp.nan)
        if self._plain:
            return Next(Gaussian(noise), noise, _running.advance_plain(count, noise))
        place = jnp.log(jax.lax.stop_gradient(noise) / low) * (self._levels / max(np.log(high / low), 1e-6))
        level = jnp.clip(jnp.nan_to_num(place), 0, self._levels - 1).astype(jnp.int32)
        after = _running.advance(count, self._directions, level, noise, self.sampling_probability)
        return Next(PoissonSampled(self.sampling_probability, Gaussian(noise)), noise, after)

    def composed(self, count: Any) -> Mechanism:
        if self._plain:
            return Gaussian(_running.noise(count))
        raise ValueError(
            "What a state of a NoiseRange holds are sums over its steps, from which no record of them can be made. Ask "
            "training.privacy_spent(state, delta) for epsilon; for other queries keep the noise multipliers, and write "
            "ComposedOver(PoissonSampled(q, Gaussian(noise_multipliers))), or use NoiseLevels."
        )

    def epsilon(self, count: Any, delta: ArrayLike, adjacency: Adjacency | None, **options: Any) -> Any:
        if options:
            raise TypeError(
                f"{', '.join(options)}: steps of a NoiseRange were planned for beforehand, and take no options."
            )
        asked = directions(adjacency or self.adjacency)
        if not self._plain and not set(asked) <= set(self._directions):
            raise ValueError(
                f"adjacency = {adjacency}, but the steps were summed for {self.adjacency}: say so to NoiseRange."
            )
        adjacency = adjacency or self.adjacency
        xp = jnp if any(map(_validate.is_traced, jax.tree.leaves((count, delta)))) else np
        if self._plain:
            noise = _running.noise(count)
            lost = xp.isnan(noise)
            answer = accounting.epsilon(Gaussian(xp.where(lost, 1.0, noise)), delta, adjacency=adjacency)
        else:
            delta = _validate.number("delta", delta)
            _validate.in_range("delta", delta, 0.0, 1.0)
            lost = xp.any(xp.isnan(count.least), -1)
            q = self.sampling_probability
            lower, upper = _running.bound(count, self._directions, asked, delta, q)
            least = xp.where(lost[..., None], 1.0, count.least)
            steps = ComposedOver(SelfComposed(PoissonSampled(q, Gaussian(least)), count.number))
            # before there are enough steps for a contour this is the smaller one
            levels = lambda: accounting.epsilon(steps, delta, adjacency=adjacency, max_nodes=_NODES)
            wide = xp.any(upper > lower * (1 + max(_NARROW, 4 * float(jnp.finfo(upper.dtype).eps))))
            if _validate.is_traced(wide):
                answer = jax.lax.cond(wide, lambda: jnp.minimum(upper, levels()), lambda: upper)
            else:
                answer = np.minimum(upper, levels()) if wide else upper
        return xp.where(lost, xp.nan, answer)[()]

    def example(self) -> Mechanism:
        base = Gaussian(self.low)
        return base if self._plain else PoissonSampled(self.sampling_probability, base)
