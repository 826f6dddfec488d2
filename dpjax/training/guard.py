"""Optimizers that ask before every step, and optimizers that report after it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dpjax import _validate
from dpjax.adaptive._filter import Filter, show
from dpjax.adaptive.odometers import Odometer
from dpjax.mechanisms import RandomAllocation
from dpjax.training._frozen import Frozen, fingerprint
from dpjax.training.aggregate import PrivacyState, _extra_args

if TYPE_CHECKING:
    import optax


class GuardedState(NamedTuple):
    """State of ``guarded``.

    Attributes:
      granted: whether the last update was granted; True before the first.
      refused: how many updates were refused, int32.
      filter_state: the filter's state.
      inner_state: the wrapped optimizer's state.
      fingerprint: of the filter; a checkpoint of another filter is recognised by it.
      filter: the filter; structure, not leaves.
    """

    granted: jax.Array
    refused: jax.Array
    filter_state: Any
    inner_state: Any
    fingerprint: jax.Array
    filter: Frozen

    def __repr__(self) -> str:
        last = "?" if _validate.is_traced(self.granted) else "granted" if np.all(self.granted) else "refused"
        return (
            f"GuardedState(last step {last}, {show(self.refused)} refused, {self.filter_state!r}, inner_state=..., "
            f"filter={self.filter!r})"
        )


class MeteredState(NamedTuple):
    """State of ``metered``.

    Attributes:
      odometer_state: the odometer's state.
      inner_state: the wrapped optimizer's state.
      fingerprint: of the odometer; a checkpoint of another one is recognised by it.
      odometer: the odometer; structure, not leaves.
    """

    odometer_state: Any
    inner_state: Any
    fingerprint: jax.Array
    odometer: Frozen

    def __repr__(self) -> str:
        return f"MeteredState({self.odometer_state!r}, inner_state=..., odometer={self.odometer!r})"


def guarded(optimizer: optax.GradientTransformation, filter: Filter) -> optax.GradientTransformationExtraArgs:
    """Wraps a whole optimizer so that it asks ``filter`` before every step, and stands still when refused.

    After a refusal nothing has changed: the updates are zeros that leave every parameter bit for bit as it was, moments,
    momentum, step counts and the noise's key stay, and no noise is drawn. (A zero *inside* a chain is not enough: Adam
    and momentum still move.) A later, smaller request may be granted.

    What is asked for is the step of the ``private_aggregate`` or ``private_sum`` inside: the known one, or, where that
    was made with ``mechanism=None``, the one that ``update(..., mechanism=)`` names. Around an optimizer that has neither,
    say what the step costs with ``update(..., mechanism=)``, or ``cost=`` a dict of the filter's own keywords
    (``{"epsilon": 0.1}``).

    Refusing is a branch of the program, and what goes into a branch has to be in memory. With large per-example gradients
    clip before it: ``guarded(optax.chain(private_sum(...), ...), filter)`` on ``clipped_sum(gradients, l2_norm_clip)``.

    Args:
      optimizer: any optax optimizer, ``private_aggregate`` included: wrap the whole chain.
      filter: from ``dpjax.adaptive``, without batch axes. ``RenyiFilter`` is the one that profits from sampling.

    Returns:
      The guarded optimizer; ``state.granted`` says whether the last step was made.

    Guarantee:
      Whatever rule chooses the steps from what was released so far, all of it satisfies ``filter.guarantee``, under the
      filter's adjacency, if batches are drawn as the records say and nothing else touches the private data.

    Raises:
      TypeError: ``filter`` is none; or, in ``update``, the step is named twice or not at all, or the filter knows no
        price for it.
      ValueError: the filter has batch axes.

    Example:
      >>> import jax.numpy as jnp, optax
      >>> import dpjax
      >>> from dpjax import training
      >>> from dpjax.adaptive import GDPFilter
      >>> private = training.private_aggregate(1.0, dpjax.Gaussian(2.0), key=0, expected_batch_size=4)
      >>> optimizer = training.guarded(optax.chain(private, optax.adam(0.1)), GDPFilter(mu=1.0))
      >>> weights, per_example = jnp.zeros(2), jnp.ones((4, 2))
      >>> state = optimizer.init(weights)
      >>> for step in range(5):
      ...     updates, state = optimizer.update(per_example, state, weights)
      ...     weights = optax.apply_updates(weights, updates)
      ...     print(bool(state.granted), end=" ")
      True True True True False
    """
    import optax

    if not isinstance(filter, Filter):
        raise TypeError(f"filter must be a filter of dpjax.adaptive; got {filter!r}.")
    if filter.init().granted.shape:
        raise ValueError(f"filter = {filter!r} has batch axes, but one optimizer has one budget.")
    inner = optax.with_extra_args_support(optimizer)
    mark = fingerprint(filter)

    def init(params):
        return GuardedState(
            jnp.array(True), jnp.array(np.zeros((), np.int32)), filter.init(), inner.init(params), jnp.asarray(mark),
            Frozen(filter),
        )  # fmt: skip

    def update(updates, state, params=None, *, mechanism=None, noise_multiplier=None, cost=None, **extra):
        _require(state, GuardedState, "filter", filter)
        request, named = _request(state.inner_state, mechanism, noise_multiplier, cost)
        filter_state, granted = (
            filter.request(state.filter_state, **request)
            if isinstance(request, Mapping)
            else filter.request(state.filter_state, request)
        )
        run = lambda: inner.update(updates, state.inner_state, params, **named, **extra)
        # Minus zero: adding it leaves -0.0 what it is, too.
        still = lambda: (jax.tree.map(_nothing, jax.eval_shape(run)[0]), state.inner_state)
        new_updates, inner_state = lax.cond(granted, run, still)
        refused = state.refused + (~granted).astype(jnp.int32)
        return new_updates, state._replace(
            granted=granted, refused=refused, filter_state=filter_state, inner_state=inner_state
        )

    return _extra_args(init, update)


def metered(optimizer: optax.GradientTransformation, odometer: Odometer) -> optax.GradientTransformationExtraArgs:
    """Wraps a whole optimizer so that ``odometer`` reads every step: a bound after each, valid at all of them at once.

    For runs of which nothing is fixed beforehand, neither the noise nor when to stop. Steps are named as for ``guarded``.
    Odometers count zCDP and pure DP: a sampled Gaussian is refused by name, the noise has to be paid in full.

    Args:
      optimizer: any optax optimizer.
      odometer: from ``dpjax.adaptive``, without batch axes.

    Returns:
      The metered optimizer. ``privacy_spent(state, odometer.delta)`` is the bound so far.

    Guarantee:
      With probability 1 - ``odometer.delta`` no step's privacy loss exceeds its bound, whatever rule chose the steps and
      the moment to stop, under the odometer's adjacency.

    Raises:
      TypeError: ``odometer`` is none; or, in ``update``, as for ``guarded``.
      ValueError: the odometer has batch axes.

    Example:
      >>> import jax.numpy as jnp, optax
      >>> import dpjax
      >>> from dpjax import training
      >>> from dpjax.adaptive import MixtureOdometer
      >>> odometer = MixtureOdometer.tightest_at(0.1, delta=1e-6, slack=1e-6)
      >>> private = training.private_aggregate(1.0, dpjax.Gaussian(10.0), key=0, expected_batch_size=4)
      >>> optimizer = training.metered(optax.chain(private, optax.sgd(0.1)), odometer)
      >>> weights, per_example = jnp.zeros(2), jnp.ones((4, 2))
      >>> state = optimizer.init(weights)
      >>> for step in range(3):
      ...     updates, state = optimizer.update(per_example, state, weights)
      ...     print(f"{training.privacy_spent(state, delta=1e-6):.3f}", end=" ")
      0.613 0.822 0.991
    """
    import optax

    if not isinstance(odometer, Odometer):
        raise TypeError(f"odometer must be an odometer of dpjax.adaptive; got {odometer!r}.")
    if odometer.init().time.high.shape:
        raise ValueError(f"odometer = {odometer!r} has batch axes, but one optimizer has one.")
    inner = optax.with_extra_args_support(optimizer)
    mark = fingerprint(odometer)

    def init(params):
        return MeteredState(odometer.init(), inner.init(params), jnp.asarray(mark), Frozen(odometer))

    def update(updates, state, params=None, *, mechanism=None, noise_multiplier=None, cost=None, **extra):
        _require(state, MeteredState, "odometer", odometer)
        request, named = _request(state.inner_state, mechanism, noise_multiplier, cost)
        odometer_state = (
            odometer.update(state.odometer_state, **request)
            if isinstance(request, Mapping)
            else odometer.update(state.odometer_state, request)
        )
        new_updates, inner_state = inner.update(updates, state.inner_state, params, **named, **extra)
        return new_updates, state._replace(odometer_state=odometer_state, inner_state=inner_state)

    return _extra_args(init, update)


def privacy_states(tree: Any) -> list[PrivacyState]:
    """The states of private aggregates in an optimizer's state."""
    found = jax.tree.leaves(tree, is_leaf=lambda x: isinstance(x, PrivacyState))
    return [x for x in found if isinstance(x, PrivacyState)]


def the_privacy_state(tree: Any) -> PrivacyState | None:
    """The one private aggregate's state, if there is one.

    Raises:
      ValueError: there are several.
    """
    found = privacy_states(tree)
    if len(found) > 1:
        raise ValueError(
            f"the optimizer has {len(found)} private aggregates. Steps that see the same batch are no composition of "
            "sampled steps: clip all parameters together, in one."
        )
    return found[0] if found else None


def _request(inner_state: Any, mechanism: Any, noise_multiplier: Any, cost: Any) -> tuple[Any, dict]:
    """What to ask for, and what to tell the wrapped optimizer."""
    named = {"mechanism": mechanism, "noise_multiplier": noise_multiplier}
    named = {name: x for name, x in named.items() if x is not None}
    inside = the_privacy_state(inner_state)
    if inside is not None:
        if cost is not None:
            raise TypeError("cost must be None: the steps of the private aggregate inside say what they cost.")
        record = inside.steps.record.next(inside.count, mechanism, noise_multiplier).record
        if isinstance(record, RandomAllocation):
            raise TypeError("RandomAllocation is the record of a whole epoch, and a single step of it has no price.")
        return record, named
    if (mechanism is None) == (cost is None):
        raise TypeError(
            "the optimizer has no private_aggregate or private_sum inside: say what the step costs, with exactly one of "
            "mechanism= and cost=."
        )
    return (mechanism if cost is None else dict(cost)), named


def _require(state: Any, kind: type, name: str, own: Any) -> None:
    if not isinstance(state, kind):
        raise TypeError(f"state must come from this optimizer's init or update; got {type(state).__name__}.")
    if not getattr(state, name).same_structure(Frozen(own)):
        raise ValueError(f"the state belongs to another {name}, {getattr(state, name).record!r}.")


def _nothing(shape: Any) -> jax.Array:
    zero = -0.0 if jnp.issubdtype(shape.dtype, jnp.inexact) else 0
    return jnp.full(shape.shape, zero, shape.dtype)
