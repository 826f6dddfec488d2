"""The optax transformation that clips, adds noise, and counts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from dpjax import _validate
from dpjax.adaptive._filter import show
from dpjax.mechanisms import FixedSizeSampled, Mechanism, TruncatedPoissonSampled
from dpjax.training import steps as _steps
from dpjax.training._frozen import Frozen, fingerprint
from dpjax.training.clipping import clipped_sum, positive

if TYPE_CHECKING:
    import optax


class PrivacyState(NamedTuple):
    """What a private aggregate remembers; its size does not depend on the number of steps.

    Attributes:
      count: sufficient statistic of the steps that were run: their number, or for ``NoiseLevels`` the number at each
        level (int32; it would wrap to negative, and the answer be NaN, after 2**31 steps), or for ``NoiseRange`` sums over
        them.
      rng_key: data of the next noise's key (``jax.random.key_data``), so that all leaves are plain arrays; secret.
      fingerprint: of the steps; a checkpoint of other steps is recognised by it.
      steps: what the steps are; structure, not leaves, except for traced numbers.
    """

    count: Any
    rng_key: jax.Array
    fingerprint: jax.Array
    steps: Frozen

    def __repr__(self) -> str:
        return f"PrivacyState(count={show(self.count)}, steps={self.steps!r}, rng_key is secret)"


def private_aggregate(
    l2_norm_clip: ArrayLike,
    mechanism: Mechanism | _steps.Steps | None,
    key: jax.Array | int,
    *,
    expected_batch_size: ArrayLike | None = None,
    allow_masked: bool = False,
) -> optax.GradientTransformationExtraArgs:
    """Clips per-example gradients, adds noise to their sum, divides by the expected batch size, and counts the step.

    ``optax.contrib.differentially_private_aggregate`` with accounting, padded batches and noise that may change from step
    to step. It must be the first transformation of a chain, and gets per-example gradients: leaves with the examples as
    first axis. ``optax.MultiSteps`` and ``optax.apply_if_finite`` around it break its meaning; accumulate gradients with
    ``accumulate`` and ``private_sum``, and freeze with ``guarded``.

    Args:
      l2_norm_clip: bound on the L2 norm of one example's gradient.
      mechanism: what one step is, which also says how much noise is drawn: the noise has standard deviation
        ``noise_multiplier * l2_norm_clip`` on the *sum*.

        * ``Gaussian(s)``, or a sampler of it: every step the same. State: the number of steps.
        * ``ComposedOver`` of such a record: a schedule known beforehand. State: the number of steps. Beyond its end the
          updates are NaN.
        * ``NoiseLevels`` or ``NoiseRange``: noise chosen as training goes, but not from the data, one of some levels or any
          number in a range: ``update(..., noise_multiplier=)``.
        * None: ``update(..., mechanism=)`` names each step, perhaps from what was seen. Only valid inside
          ``guarded`` (a total) or ``metered`` (a running bound).
      key: of the noise. (Sample the batches with another key.)
      expected_batch_size: what the noisy sum is divided by: the number of examples expected in a whole batch, all
        micro-batches included; a schedule may have one for each step. Follows from ``TruncatedPoissonSampled`` and
        ``FixedSizeSampled``. The actual size of a Poisson batch is private, and dividing by it is not what is analysed.
      allow_masked: ``optax.masked`` and ``optax.partition`` hide leaves from what they wrap. Hidden gradients are neither clipped
        nor noised, and nothing counts them, so that is refused. True says that what becomes of them is not private: that
        ``optax.set_to_zero`` freezes those parameters, for example.

    Returns:
      A transformation whose ``update`` takes ``mask=``, which examples of a padded batch count. For Poisson batches it is
      required: their size is random, so a batch without padding was drawn in another way (for a shuffled dataset see
      ``dpjax.ShuffledBatches``).

    Guarantee:
      The updates are the composition of the steps counted, under ``ADD_OR_REMOVE_ONE`` or ``REPLACE_SPECIAL`` with
      sensitivity ``l2_norm_clip`` and under ``REPLACE_ONE`` with twice that, if batches are drawn as ``mechanism``
      says. ``privacy_spent`` has the epsilon. Not covered: noise made of floating-point numbers, and the keys.

    Raises:
      TypeError: ``mechanism`` is not a step of Gaussian noise, or ``expected_batch_size`` is missing.
      ValueError: an argument is out of range; ``expected_batch_size`` contradicts ``mechanism``; in ``init`` or ``update``,
        leaves are hidden; or, in ``update``, gradients are not per example.

    Example:
      >>> import jax, jax.numpy as jnp, optax
      >>> import dpjax
      >>> from dpjax import training
      >>> step = dpjax.PoissonSampled(0.01, dpjax.Gaussian(noise_multiplier=1.0))
      >>> private = training.private_aggregate(1.0, step, key=0, expected_batch_size=64)
      >>> optimizer = optax.chain(private, optax.sgd(0.1, momentum=0.9))
      >>> weights = jnp.zeros(3)
      >>> state = optimizer.init(weights)
      >>> per_example = jnp.ones((96, 3))
      >>> updates, state = optimizer.update(per_example, state, weights, mask=jnp.arange(96) < 60)
      >>> print(f"{training.privacy_spent(state, delta=1e-5):.6f}")
      0.199450
    """
    l2_norm_clip = positive("l2_norm_clip", l2_norm_clip)
    noisy = private_sum(
        l2_norm_clip, mechanism, key, expected_batch_size=expected_batch_size, allow_masked=allow_masked
    )
    plan = _steps.steps_of(mechanism)

    def update(updates, state, params=None, *, mask=None, mechanism=None, noise_multiplier=None, **unused):
        record = mechanism if isinstance(plan, _steps.Chosen) else plan.example()
        _check_examples(updates, params, mask, record)
        total = clipped_sum(updates, l2_norm_clip, mask)
        return noisy.update(total, state, params, mechanism=mechanism, noise_multiplier=noise_multiplier)

    return _extra_args(noisy.init, update)


def private_sum(
    l2_norm_clip: ArrayLike,
    mechanism: Mechanism | _steps.Steps | None,
    key: jax.Array | int,
    *,
    expected_batch_size: ArrayLike | None = None,
    allow_masked: bool = False,
) -> optax.GradientTransformationExtraArgs:
    """``private_aggregate`` without the clipping: its updates are sums of gradients that were clipped already.

    For gradients that are accumulated over micro-batches (``accumulate``) or clipped elsewhere, as by
    ``jax_privacy.clipping.clipped_grad``.

    Args:
      l2_norm_clip: the most that one example contributes to what is passed to ``update``, in L2 norm: of a *sum*, the
        clipping norm C; of a mean over B, C / B (then ``expected_batch_size`` is 1). For ``clipped_grad``, its
        ``sensitivity()``, whatever its ``normalize_by``.
      mechanism, key: as for ``private_aggregate``.
      expected_batch_size: what the noisy sum is divided by; 1 for what has been divided already.
      allow_masked: as for ``private_aggregate``.

    Returns:
      A transformation of clipped sums.

    Guarantee:
      That of ``private_aggregate``, if one example contributes at most ``l2_norm_clip``.

    Raises:
      TypeError, ValueError: as for ``private_aggregate``.

    Example:
      >>> import jax.numpy as jnp
      >>> import dpjax
      >>> from dpjax import training
      >>> step = dpjax.PoissonSampled(0.01, dpjax.Gaussian(noise_multiplier=1.0))
      >>> private = training.private_sum(1.0, step, key=0, expected_batch_size=64)
      >>> state = private.init(jnp.zeros(3))
      >>> total = sum(training.clipped_sum(jnp.full((32, 3), x), 1.0) for x in (0.1, 0.2))  # two micro-batches
      >>> update, state = private.update(total, state)  # one step, one noise
      >>> int(state.count)
      1
    """
    l2_norm_clip = positive("l2_norm_clip", l2_norm_clip)
    plan = _steps.steps_of(mechanism)
    size = _batch_size(plan, expected_batch_size)
    mark = fingerprint(plan)
    key = _key(key)
    implementation = jax.random.key_impl(key)

    def init(params):
        _require_all(params, allow_masked)
        return PrivacyState(plan.start(), jnp.array(jax.random.key_data(key)), jnp.asarray(mark), Frozen(plan))

    def update(updates, state, params=None, *, mechanism=None, noise_multiplier=None, **unused):
        import optax

        require_state(state, plan)
        _require_all(updates, allow_masked)
        if params is not None and not _alike(updates, params):
            raise ValueError(_WRONG_SUM.format(_shapes(updates), _shapes(params)))
        step = plan.next(state.count, mechanism, noise_multiplier)
        # The noise that optax adds to a batch without gradients: what is passed in was clipped already.
        rng_key = jax.random.wrap_key_data(state.rng_key, impl=implementation)
        draw = optax.contrib.differentially_private_aggregate(l2_norm_clip, step.noise_multiplier, rng_key)
        nothing = jax.tree.map(lambda x: jnp.zeros((1, *jnp.shape(x)), jnp.result_type(x)), updates)
        noise, drawn = draw.update(nothing, draw.init(params))  # pyright: ignore[reportArgumentType]
        divisor = _steps.pick(size, state.count)
        noisy = jax.tree.map(lambda x, n: ((x + n) / divisor).astype(n.dtype), updates, noise)
        return noisy, state._replace(count=step.count, rng_key=jax.random.key_data(drawn.rng_key))  # pyright: ignore[reportAttributeAccessIssue]

    return _extra_args(init, update)


_MASKED = (
    "{} of the parameters are hidden from this transformation by optax.masked, optax.partition or another mask: their gradients "
    "would pass unclipped and without noise, and privacy_spent would not count them. Wrap the transformations after it instead, "
    "or, if those parameters are frozen (optax.set_to_zero) or their gradients not private, say so with allow_masked=True."
)


def _require_all(tree: Any, allow_masked: bool) -> None:
    """Raises if a mask hides leaves."""
    import optax

    hidden = lambda x: isinstance(x, optax.MaskedNode)
    count = 0 if allow_masked else sum(map(hidden, jax.tree.leaves(tree, is_leaf=hidden)))
    if count:
        raise ValueError(_MASKED.format(count))


_WRONG_SUM = (
    "private_sum got leaves of shapes {}, but the parameters have {}: pass the sum of clipped gradients, or use "
    "private_aggregate for per-example gradients."
)
_NOT_PER_EXAMPLE = (
    "private_aggregate got leaves of shapes {}, but the parameters have {}, and each leaf must be that with the examples "
    "as first axis: take jax.vmap(jax.grad(loss), in_axes=(None, 0)), not the gradient of a mean; noise on a mean with the "
    "noise multiplier of a sum is too much by the batch size. For sums clipped already there is private_sum."
)


def require_state(state: Any, plan: _steps.Steps) -> None:
    """Raises unless ``state`` belongs to a private aggregate of these steps."""
    if not isinstance(state, PrivacyState):
        raise TypeError(f"state must come from this transformation's init or update; got {type(state).__name__}.")
    if not state.steps.same_structure(Frozen(plan)):
        raise ValueError(
            f"the state has counted other steps, {state.steps.record!r}, than this transformation runs, {plan!r}: start this "
            "one from its own init, and add up the two runs' records (training.mechanism_run)."
        )


def _check_examples(updates: Any, params: Any, mask: Any, record: Any) -> None:
    leaves = jax.tree.leaves(updates)
    if params is not None:
        inner = [np.shape(x)[1:] for x in leaves]
        if inner != [np.shape(x) for x in jax.tree.leaves(params)] or any(np.ndim(x) == 0 for x in leaves):
            raise ValueError(_NOT_PER_EXAMPLE.format(_shapes(updates), _shapes(params)))
    if isinstance(record, _steps.RANDOM_SIZE) and mask is None:
        raise TypeError(
            f"update(..., mask=) is missing: the steps are {record!r}, whose batches have a random size and are padded. "
            "Batches of a fixed size are FixedSizeSampled if drawn anew for every step; batches cut from a shuffled "
            "dataset have no such analysis (dpjax.ShuffledBatches says what to use)."
        )
    examples = np.shape(leaves[0])[0] if leaves and np.ndim(leaves[0]) else None
    if isinstance(record, FixedSizeSampled) and mask is None and not _validate.is_traced(record.sample_size):
        if examples is not None and np.any(np.asarray(record.sample_size) != examples):
            raise ValueError(
                f"the gradients are of {examples} examples, but the steps are {record!r}. A micro-batch is no batch: "
                "accumulate the sums of all micro-batches and add the noise once (accumulate and private_sum)."
            )
    if isinstance(record, TruncatedPoissonSampled) and not _validate.is_traced(record.max_batch_size):
        if examples is not None and np.any(np.asarray(record.max_batch_size) < examples):
            raise ValueError(
                f"the gradients are of {examples} examples, but the steps are {record!r}: at most max_batch_size."
            )


def _batch_size(plan: _steps.Steps, given: Any) -> Any:
    example = plan.example()
    derived = None if example is None else _steps.batch_size_of(example)
    if given is None:
        if derived is None:
            raise TypeError(
                "expected_batch_size is missing: what the noisy sum is divided by, the number of examples expected in a "
                "whole batch (sampling probability times dataset size)."
            )
        return derived
    given = positive("expected_batch_size", given)
    if derived is not None and not _validate.is_traced(derived) and not _validate.is_traced(given):
        if not np.allclose(given, derived, rtol=1e-6):
            raise ValueError(
                f"expected_batch_size = {given!r}, but {example!r} implies {derived!r}: the batch is the whole one, with all "
                "its micro-batches."
            )
    shape = np.shape(given)
    length = plan.length if isinstance(plan, _steps.Schedule) else 1
    if shape not in ((), (length,)):
        raise ValueError(
            f"expected_batch_size has shape {shape}, but it must be a number, or one for each of the steps."
        )
    return given


def _key(key: Any) -> jax.Array:
    if isinstance(key, int | np.integer) and not isinstance(key, bool):
        return jax.random.key(int(key))
    key = jnp.asarray(key)
    return key if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else jax.random.wrap_key_data(key)


def _alike(updates: Any, params: Any) -> bool:
    return [np.shape(x) for x in jax.tree.leaves(updates)] == [np.shape(x) for x in jax.tree.leaves(params)]


def _shapes(tree: Any) -> str:
    shapes = [np.shape(x) for x in jax.tree.leaves(tree)]
    return f"{shapes}" if len(shapes) <= 4 else f"[{', '.join(map(str, shapes[:4]))}, ... {len(shapes)} in all]"


def _extra_args(init: Any, update: Any) -> optax.GradientTransformationExtraArgs:
    import optax

    return optax.GradientTransformationExtraArgs(init, update)
