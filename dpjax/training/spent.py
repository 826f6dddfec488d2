"""What an optimizer's state says about privacy."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from dpjax import _validate, accounting, suspicion
from dpjax.adaptive import GDPFilter, RenyiFilter, ZCDPFilter
from dpjax.adaptive._filter import show
from dpjax.mechanisms import Adjacency, Gaussian, Mechanism, require_adjacency
from dpjax.training import steps as _steps
from dpjax.training._frozen import fingerprint
from dpjax.training.aggregate import PrivacyState
from dpjax.training.guard import GuardedState, MeteredState, privacy_states, the_privacy_state

_CONDITIONAL = (
    "optax.{} makes no private step where its condition fails, and counts none: {}. Freeze with training.guarded, or leave "
    "out whole updates."
)
_WRAPPERS = {
    "ConditionallyTransformState": _CONDITIONAL.format("conditionally_transform", "gradients pass without noise"),
    "ConditionallyMaskState": _CONDITIONAL.format("conditionally_mask", "what the condition saw is not accounted for"),
    "MultiStepsState": (
        "optax.MultiSteps averages per-example gradients over micro-batches before they are clipped: accumulate sums of "
        "clipped gradients instead (training.accumulate and training.private_sum)."
    ),
    "ApplyIfFiniteState": (
        "optax.apply_if_finite decides from the private data, without noise, whether to make a step: leave it out, "
        "gradients that are not finite count as zero."
    ),
}


def privacy_spent(opt_state: Any, delta: ArrayLike, *, adjacency: Adjacency | None = None, **options: Any) -> Any:
    """The epsilon of what an optimizer has released, from its state; outside jit and inside.

    Args:
      opt_state: of an optimizer with a ``private_aggregate`` or ``private_sum`` inside, or a ``guarded`` or ``metered``
        one; also batched by ``vmap``.
      delta: in [0, 1].
      adjacency: which datasets are neighbours; by default ADD_OR_REMOVE_ONE, or what the filter or odometer says.
      **options: ``method``, ``rtol`` and ``max_nodes`` of ``dpjax.epsilon``; not for ``NoiseRange``, which was planned.

    Returns:
      Outside jit NumPy float64, equal to ``dpjax.epsilon`` of ``mechanism_run(opt_state)`` where there is one. Inside
      jit the default floating dtype, rounded up; sampled Gaussians take about 2 ms. NaN for the state of a schedule that is over,
      or of noise outside its ``NoiseRange``.

    Guarantee:
      Never below the exact epsilon of the steps run so far.

      * Steps known beforehand, guarded or not: that of their composition. Valid if their number does not depend on
        what was released; whoever stops by looking needs a filter, and has *its* guarantee, or an odometer.
      * ``guarded``, steps chosen along the way: that of the filter's whole budget. How much of it was used says
        nothing (``filter.spent(state.filter_state)`` shows it).
      * ``metered``: the odometer's bound, which holds at every step at once.

    Raises:
      ValueError: there is nothing to account for, or more than one aggregate; steps chosen along the way without filter or
        odometer; ``delta`` is below the one that a filter or odometer was made for; a wrapper that breaks the meaning
        of the steps; a checkpoint of other steps.

    Example:
      >>> import jax.numpy as jnp
      >>> import dpjax
      >>> from dpjax import training
      >>> step = dpjax.PoissonSampled(0.01, dpjax.Gaussian(noise_multiplier=1.0))
      >>> private = training.private_aggregate(1.0, step, key=0, expected_batch_size=64)
      >>> state = private.init(jnp.zeros(3))._replace(count=jnp.int32(1000))
      >>> print(f"{training.privacy_spent(state, delta=1e-5):.10f}")
      1.8282366665
    """
    suspicion.question_delta(delta)
    keeper = _keeper(opt_state)
    if isinstance(keeper, MeteredState):
        return _by_odometer(keeper, delta, adjacency)
    if isinstance(keeper, GuardedState):
        inside = the_privacy_state(keeper.inner_state)
        if inside is None or isinstance(inside.steps.record, _steps.Chosen):
            return _by_filter(keeper, delta, adjacency)
    steps, count, same = _counted(opt_state)
    answer = steps.epsilon(count, delta, adjacency, **options)
    return answer if same is None else jnp.where(same, answer, jnp.nan)


def mechanism_run(opt_state: Any) -> Mechanism:
    """The record of what an optimizer has run so far, for any query: ``delta``, ``tradeoff``, ``statement``.

    Args:
      opt_state: as for ``privacy_spent``, of steps that are known beforehand or at ``NoiseLevels``, or that see every
        record at noise in a ``NoiseRange``.

    Returns:
      The composition of the steps counted.

    Guarantee:
      That of ``privacy_spent`` for steps known beforehand.

    Raises:
      ValueError: as for ``privacy_spent``; or the steps were chosen along the way, or are sampled ones of a ``NoiseRange``, of
        which a state keeps no more than ``privacy_spent`` needs.

    Example:
      >>> import jax.numpy as jnp
      >>> import dpjax
      >>> from dpjax import training
      >>> step = dpjax.PoissonSampled(0.01, dpjax.Gaussian(noise_multiplier=1.0))
      >>> private = training.private_aggregate(1.0, step, key=0, expected_batch_size=64)
      >>> training.mechanism_run(private.init(jnp.zeros(3)))
      SelfComposed(PoissonSampled(0.01, Gaussian(1)), 0)
    """
    steps, count, _ = _counted(opt_state)
    return steps.composed(count)


def _counted(opt_state: Any) -> tuple[_steps.Steps, Any, Any]:
    """The steps, the statistic of those run, and whether the state belongs to them if that is traced."""
    _refuse_wrappers(opt_state)
    state = the_privacy_state(opt_state)
    if state is None:
        raise ValueError("opt_state has no state of a private_aggregate, private_sum, guarded or metered optimizer.")
    steps = state.steps.record
    same = _check_mark(state.fingerprint, steps)
    count = jax.tree.map(lambda x: x if _validate.is_traced(x) else np.asarray(x), state.count)
    return steps, count, same


def _keeper(opt_state: Any) -> GuardedState | MeteredState | None:
    """The outermost guarded or metered state."""
    kinds = GuardedState | MeteredState
    found = [x for x in jax.tree.leaves(opt_state, is_leaf=lambda x: isinstance(x, kinds)) if isinstance(x, kinds)]
    if len(found) > 1:
        raise ValueError(
            f"opt_state has {len(found)} guarded or metered optimizers side by side; ask each for its own."
        )
    if found and len(privacy_states(opt_state)) > len(privacy_states(found[0])):
        raise ValueError(
            "opt_state has a private aggregate outside the guarded or metered optimizer: wrap the whole one."
        )
    if found:
        _refuse_wrappers(opt_state)
    return found[0] if found else None


def _refuse_wrappers(opt_state: Any) -> None:
    ours = PrivacyState | GuardedState | MeteredState
    holds = lambda tree: any(isinstance(x, ours) for x in jax.tree.leaves(tree, is_leaf=lambda x: isinstance(x, ours)))
    bad = lambda x: type(x).__name__ in _WRAPPERS and holds(x)
    for x in jax.tree.leaves(opt_state, is_leaf=bad):
        if bad(x):
            raise ValueError(_WRAPPERS[type(x).__name__])


def _check_mark(mark: Any, record: Any) -> Any:
    """None, or a traced condition."""
    own = fingerprint(record)
    if not _validate.is_traced(mark):
        moving = any(isinstance(x, jax.Array) for x in jax.tree.leaves(record))
        if not moving and np.any(np.asarray(mark) != own):
            raise ValueError(
                f"the state was counted for something else than {record!r}: it comes from the checkpoint of another optimizer. "
                "Restore it into the optimizer that wrote it, and add up the two runs' records (training.mechanism_run)."
            )
        return None
    return mark == own


def _by_filter(state: GuardedState, delta: Any, adjacency: Adjacency | None) -> Any:
    filt = state.filter.record
    same = _check_mark(state.fingerprint, filt)
    _same_adjacency(filt, adjacency)
    delta = _validate.number("delta", delta)
    _validate.in_range("delta", delta, 0.0, 1.0)
    if isinstance(filt, GDPFilter):
        mu = _validate.number("mu", filt.mu)
        xp = jnp if _validate.is_traced(mu) else np
        with np.errstate(divide="ignore"):
            noise = xp.nextafter(xp.divide(1.0, mu), 0.0)  # down: less noise is the safe side
        answer = accounting.epsilon(Gaussian(noise), delta)
    elif isinstance(filt, ZCDPFilter) or (isinstance(filt, RenyiFilter) and filt.combine == "all"):
        answer = filt.epsilon(delta)
    else:
        _covers(filt.delta, delta)
        epsilon = filt.epsilon() if isinstance(filt, RenyiFilter) else filt.epsilon
        answer = epsilon if not _validate.is_traced(delta) else jnp.where(delta >= filt.delta, epsilon, jnp.inf)
    if same is not None or _validate.is_traced(answer):
        return jnp.where(True if same is None else same, answer, jnp.nan)
    return np.asarray(answer, np.float64)[()]


def _by_odometer(state: MeteredState, delta: Any, adjacency: Adjacency | None) -> Any:
    odometer = state.odometer.record
    same = _check_mark(state.fingerprint, odometer)
    _same_adjacency(odometer, adjacency)
    delta = _validate.number("delta", delta)
    _covers(odometer.delta, delta)
    answer = odometer.bound(state.odometer_state)
    if _validate.is_traced(delta):
        answer = jnp.where(delta >= odometer.delta, answer, jnp.inf)
    if same is not None or _validate.is_traced(answer):
        return jnp.where(True if same is None else same, answer, jnp.nan)
    return np.asarray(answer, np.float64)[()]


def _same_adjacency(keeper: Any, adjacency: Adjacency | None) -> None:
    own = getattr(keeper, "adjacency", None)
    if adjacency is not None:
        require_adjacency(adjacency)
    if adjacency is not None and own is not None and adjacency is not own:
        raise ValueError(f"adjacency = {adjacency}, but {type(keeper).__name__} was made for {own}.")


def _covers(own: Any, delta: Any) -> None:
    if not _validate.is_traced(own) and not _validate.is_traced(delta) and np.any(np.asarray(delta) < np.asarray(own)):
        raise ValueError(
            f"delta = {show(delta)}, but it must be at least {show(own)}, for which the guarantee was made."
        )
