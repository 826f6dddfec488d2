"""What the steps of a training run are, and the sufficient statistic that a state keeps of those that were run.

=================== ================================================ ====================================
steps               known                                            statistic
=================== ================================================ ====================================
``Constant``        one record, the same for every step              number of steps
``Schedule``        ``ComposedOver`` of a record: a known schedule    number of steps
``NoiseLevels``     noise chosen on the way, not from outputs         number of steps at each level
``NoiseRange``      the same, any number in a range (noise_range.py)  sums of the steps' cumulants on contours
``Chosen``          a record for each step, perhaps from outputs      none; a filter's or odometer's state
=================== ================================================ ====================================

The record of a step also says how much noise is drawn, so that what is counted is what is run.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from dpjax import _validate, accounting, composition, mechanisms, suspicion
from dpjax._pytree import node
from dpjax.adaptive import _costs, _sums
from dpjax.mechanisms import (
    Adjacency,
    ComposedOver,
    FixedSizeSampled,
    Gaussian,
    Mechanism,
    PoissonSampled,
    RandomAllocation,
    SelfComposed,
    TruncatedPoissonSampled,
)

_SAMPLERS = (PoissonSampled, TruncatedPoissonSampled, FixedSizeSampled, RandomAllocation)
RANDOM_SIZE = (PoissonSampled, TruncatedPoissonSampled)  # batches whose size is random: padded, and need a mask


class Next(NamedTuple):
    """The next step: its record, the noise to draw, and the statistic after it."""

    record: Mechanism
    noise_multiplier: Any
    count: Any


class Steps:
    """Base of what is known about the steps of a run."""

    def start(self) -> Any:
        """The statistic before the first step."""
        return jnp.array(np.zeros((), np.int32))  # a buffer of its own, which a training loop may donate

    def next(self, count: Any, mechanism: Mechanism | None, noise_multiplier: Any) -> Next:
        """The step that is due after ``count``, given what the caller of ``update`` said about it."""
        raise NotImplementedError

    def composed(self, count: Any) -> Mechanism:
        """The record of all steps that ``count`` stands for."""
        raise NotImplementedError

    def epsilon(self, count: Any, delta: Any, adjacency: Adjacency | None, **options: Any) -> Any:
        """The epsilon of all steps that ``count`` stands for; keywords of ``dpjax.epsilon``."""
        return accounting.epsilon(
            self.composed(count), delta, adjacency=adjacency or Adjacency.ADD_OR_REMOVE_ONE, **options
        )

    def example(self) -> Mechanism | None:
        """A record of one step, for checks of structure; None if it is not known."""
        raise NotImplementedError

    def _refuse(self, mechanism: Any, noise_multiplier: Any) -> None:
        for name, x in (("mechanism", mechanism), ("noise_multiplier", noise_multiplier)):
            if x is not None:
                raise TypeError(
                    f"update(..., {name}=) is for steps that are not known beforehand, and these are: "
                    f"{self.example()!r}. Leave it out, or give mechanism=None (noise chosen from outputs, under a filter) "
                    "or NoiseLevels or NoiseRange (chosen otherwise)."
                )


@node
class Constant(Steps):
    """Every step is ``step``."""

    step: Mechanism

    def __repr__(self) -> str:
        return repr(self.step)

    def next(self, count, mechanism, noise_multiplier):
        self._refuse(mechanism, noise_multiplier)
        return Next(self.step, noise_of(self.step), count + 1)

    def composed(self, count):
        if isinstance(self.step, RandomAllocation):  # the record of a whole epoch: one that has begun counts
            per: Any = self.step.num_steps
            count = jnp.ceil(count / per) if _validate.is_traced(per) else -(-count // int(per))
        return SelfComposed(self.step, count)

    def example(self):
        return self.step


@node
class Schedule(Steps):
    """Step k is the k-th entry of ``schedule``; beyond the last one there is nothing valid to run."""

    schedule: ComposedOver

    def __repr__(self) -> str:
        return repr(self.schedule)

    @property
    def length(self) -> int:
        """Number of steps."""
        inner, position = composition.inner_shape(self.schedule)
        if len(inner) != 1:
            raise ValueError(
                f"A schedule must have one axis, the steps; {self.schedule!r} has the batch shape {inner}."
            )
        return inner[position]

    def next(self, count, mechanism, noise_multiplier):
        self._refuse(mechanism, noise_multiplier)
        due = count < self.length
        # Beyond the end: a step that no filter grants, and no noise that could be mistaken for some.
        worst: dict[str, Any] = {"noise_multiplier": 0.0, "sampling_probability": 1.0}
        record = jax.tree_util.tree_map_with_path(
            lambda path, x: jnp.where(due, x, worst.get(path[-1].name, x)),
            _at(self.schedule.mechanism, count, self.length),
        )
        noise = noise_of(self.schedule.mechanism)
        noise = jnp.asarray(noise)[_index(noise, count, self.length)] if np.ndim(noise) else noise
        return Next(record, jnp.where(due, noise, jnp.nan), count + 1)

    def composed(self, count):
        n = self.length
        if _validate.is_traced(count):
            run = jnp.where((count >= 0) & (count <= n), 1.0, jnp.nan)[..., None] * (jnp.arange(n) < count[..., None])
        else:
            count = np.asarray(count)
            if np.any(count > n) or np.any(count < 0):
                raise ValueError(f"{int(count.max())} steps were run, but the schedule has {n}: the rest is not known.")
            run = (np.arange(n) < count[..., None]).astype(np.float64)
        return ComposedOver(SelfComposed(self.schedule.mechanism, run))

    def example(self):
        return self.schedule.mechanism


@node
class NoiseLevels(Steps):
    """Noise that is chosen as training goes, but not from anything that depends on the data.

    The schedule need not be known beforehand (it may follow a learning rate, a clock, or public data), only its range:
    each step is run at one of the noise multipliers in ``step``, and what is kept is how often each level was used.
    Ask with ``update(..., noise_multiplier=x)``: the step is run at the smallest level that is at least ``x``, so never
    with less noise than asked for, and it is that level which is drawn and counted. More than the largest level raises,
    or makes the update NaN if it is traced.

    Attributes:
      step: the record of a step whose ``noise_multiplier`` is a vector of levels, increasing and positive.

    Guarantee:
      The privacy of the levels used is exact. It is valid only if the choices do not depend on the private data, past
      noisy gradients and losses included: those need a filter.

    Raises:
      TypeError: not the record of a step.
      ValueError: the levels are not an increasing vector.

    Example:
      >>> import numpy as np
      >>> import dpjax
      >>> from dpjax import training
      >>> levels = training.NoiseLevels(dpjax.PoissonSampled(0.01, dpjax.Gaussian(np.geomspace(0.5, 8.0, 65))))
      >>> private = training.private_aggregate(1.0, levels, key=0, expected_batch_size=64)
    """

    step: Mechanism

    def __repr__(self) -> str:
        return f"NoiseLevels({self.step!r})"

    def __post_init__(self):
        levels = noise_of(self.step)
        if np.ndim(levels) != 1:
            raise ValueError(
                f"step has noise_multiplier of shape {np.shape(levels)}, but it must be a vector of levels."
            )
        if not _validate.is_traced(levels) and not (np.all(np.diff(levels) > 0) and levels[0] > 0):
            raise ValueError(f"step has noise_multiplier {levels!r}, but levels must be positive and increasing.")
        for leaf in jax.tree.leaves(self.step):
            if np.ndim(leaf) and np.shape(leaf) != np.shape(levels):
                raise ValueError(f"step has a field of shape {np.shape(leaf)}, but only levels may be a vector.")

    def start(self):
        return jnp.array(np.zeros(np.shape(noise_of(self.step)), np.int32))

    def next(self, count, mechanism, noise_multiplier):
        if mechanism is not None or noise_multiplier is None:
            raise TypeError("steps at NoiseLevels take update(..., noise_multiplier=...), and no mechanism.")
        levels = noise_of(self.step)
        if not _validate.is_traced(noise_multiplier) and not _validate.is_traced(levels):
            _validate.in_range("noise_multiplier", noise_multiplier, 0.0, float(np.max(levels)))
        levels = jnp.asarray(levels)
        asked = jnp.asarray(noise_multiplier, levels.dtype)
        index = jnp.sum(levels < asked)
        usable = (asked >= 0) & (index < levels.shape[0])
        index = jnp.minimum(index, levels.shape[0] - 1)
        record = _at(self.step, index, levels.shape[0])
        return Next(record, jnp.where(usable, levels[index], jnp.nan), count.at[index].add(1))

    def composed(self, count):
        return ComposedOver(SelfComposed(self.step, count))

    def example(self):
        return self.step


@node
class Chosen(Steps):
    """The caller of ``update`` names every step."""

    def __repr__(self) -> str:
        return "steps chosen along the way"

    def next(self, count, mechanism, noise_multiplier):
        if mechanism is None or noise_multiplier is not None:
            raise TypeError(
                "private_aggregate(..., mechanism=None) needs the record of each step: update(..., mechanism=...), for "
                "example PoissonSampled(q, Gaussian(noise_multiplier))."
            )
        require_step(mechanism)
        return Next(mechanism, noise_of(mechanism), count + 1)

    def composed(self, count):
        raise ValueError(
            "The noise was chosen along the way, so what was run is no composition of known steps. Wrap the optimizer in "
            "training.guarded(optimizer, filter) for a total, or training.metered(optimizer, odometer) for a running "
            "bound; use NoiseLevels or NoiseRange if the choices do not depend on the data."
        )

    def example(self):
        return None


def steps_of(mechanism: Any) -> Steps:
    """The steps that a user means by ``mechanism``.

    Raises:
      TypeError: not the record of a step, a schedule of one, ``NoiseLevels``, ``NoiseRange`` or None.
      ValueError: a field is out of range or of the wrong shape.
    """
    if mechanism is None:
        return Chosen()
    if isinstance(mechanism, Steps):
        return mechanism
    if isinstance(mechanism, ComposedOver):
        require_step(mechanism.mechanism)
        composition.check(mechanism)
        schedule = Schedule(mechanism)
        if schedule.length == 0:
            raise ValueError("The schedule has no steps.")
        if isinstance(mechanism.mechanism, RandomAllocation):
            raise TypeError("RandomAllocation describes a whole epoch of equal steps; it has no schedule.")
        return schedule
    require_step(mechanism)
    composition.check(mechanism)
    shape = composition.batch_shape(mechanism)
    if shape:
        raise ValueError(
            f"mechanism = {mechanism!r} has the batch shape {shape}, but one optimizer runs one: vmap over the training "
            "for several runs, or write ComposedOver(...) for a schedule."
        )
    suspicion.question_noise(noise_of(mechanism))
    return Constant(mechanism)


def require_step(mechanism: Any) -> None:
    """Raises TypeError unless ``mechanism`` is one step of Gaussian noise, sampled or not."""
    if isinstance(mechanism, mechanisms.COMPOSITIONS):
        raise TypeError(
            f"mechanism = {mechanism!r} is a composition; give the record of one step, and the steps will be counted "
            "(ComposedOver of a step for a schedule)."
        )
    noise_of(mechanism)


def noise_of(mechanism: Any) -> Any:
    """The noise multiplier of the Gaussian in a step's record."""
    inner = mechanism
    while isinstance(inner, _SAMPLERS):
        inner = inner.mechanism
    if not isinstance(inner, Gaussian):
        raise TypeError(
            f"mechanism must be Gaussian(...) or a sampler of it, since Gaussian noise is what is drawn; got {mechanism!r}."
        )
    return inner.noise_multiplier


def batch_size_of(mechanism: Any) -> Any:
    """The expected batch size, where the sampler knows the size of the dataset; else None."""
    if isinstance(mechanism, TruncatedPoissonSampled):
        return mechanism.dataset_size * mechanism.sampling_probability
    return mechanism.sample_size if isinstance(mechanism, FixedSizeSampled) else None


def _index(x: Any, count: Any, length: int) -> Any:
    return jnp.minimum(count, length - 1) if np.shape(x)[0] > 1 else 0


def _at(record: Mechanism, index: Any, length: int) -> Mechanism:
    """Entry ``index`` of a record's vectors, each rounded to the side where it costs more."""
    prepared = _costs.prepare(record, _sums.default_dtype())
    return jax.tree.map(lambda x: jnp.asarray(x)[_index(x, index, length)] if np.ndim(x) else x, prepared)


def pick(size: ArrayLike, count: Any) -> Any:
    """The expected batch size of the step after ``count``."""
    return jnp.asarray(size)[_index(size, count, np.shape(size)[0])] if np.ndim(size) else size
