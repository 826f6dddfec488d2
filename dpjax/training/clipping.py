"""Sums of clipped per-example gradients: what noise may be added to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from dpjax import _validate


def clipped_sum(per_example: Any, l2_norm_clip: ArrayLike, mask: ArrayLike | None = None) -> Any:
    """The sum of per-example gradients, each scaled down to an L2 norm of at most ``l2_norm_clip``.

    An example whose gradient is not finite, and one whose mask is False, contributes zero: one bad record can change the
    sum by no more than any other (optax's clipping alone would let its NaN through).

    Args:
      per_example: a pytree whose leaves have the examples as first axis, as ``jax.vmap(jax.grad(loss), (None, 0))``
        gives it. The norm is taken over all leaves of an example together.
      l2_norm_clip: > 0.
      mask: which examples count, shape (examples,); all by default.

    Returns:
      The sum, a pytree without the first axis; in float32 where the gradients have fewer digits.

    Guarantee:
      Adding or removing one example changes the result by at most ``l2_norm_clip`` in L2 norm, up to rounding; replacing
      one by at most twice that.

    Raises:
      ValueError: the leaves do not share their first axis, ``mask`` does not have it, or a concrete ``l2_norm_clip`` is
        not positive.

    Example:
      >>> import jax.numpy as jnp
      >>> gradients = jnp.asarray([[3.0, 4.0], [0.3, 0.4], [jnp.nan, 0.0], [6.0, 8.0]])
      >>> print(clipped_sum(gradients, 1.0, mask=jnp.asarray([True, True, True, False])).round(4))
      [0.9 1.2]
    """
    import optax

    l2_norm_clip = positive("l2_norm_clip", l2_norm_clip)
    leaves, structure = jax.tree.flatten(per_example)
    examples = _examples(leaves)
    keep = jnp.ones((examples,), bool) if mask is None else jnp.asarray(mask)
    if keep.shape != (examples,):
        raise ValueError(f"mask has shape {keep.shape}, but it must be ({examples},): one entry for each example.")
    keep = keep.astype(bool)
    if not examples:
        return jax.tree.unflatten(structure, [jnp.zeros(leaf.shape[1:], leaf.dtype) for leaf in leaves])
    # Norms of half-precision numbers would be wrong by 1%.
    leaves = [leaf.astype(jnp.promote_types(leaf.dtype, jnp.float32)) for leaf in map(jnp.asarray, leaves)]
    norms = jax.vmap(optax.tree.norm)(leaves)
    finite = jnp.isfinite(norms)
    weights = jnp.where(keep & finite, jnp.minimum(l2_norm_clip / jnp.where(norms > 0, norms, 1.0), 1.0), 0.0)
    # Rows that are not finite are zeroed before the product, since 0 * nan is nan. Not optax.per_example_global_norm_clip,
    # which lets them through; with masks of its input this took twice as long (benchmarks/training.py).
    zeroed = lambda x: jnp.where(finite.reshape((examples,) + (1,) * (x.ndim - 1)), x, 0)
    sums = [jnp.tensordot(weights.astype(leaf.dtype), zeroed(leaf), axes=1) for leaf in leaves]
    return jax.tree.unflatten(structure, sums)


def accumulate(
    per_example_gradient: Callable[[Any], Any],
    batch: Any,
    l2_norm_clip: ArrayLike,
    *,
    micro_batch_size: int,
    mask: ArrayLike | None = None,
) -> Any:
    """``clipped_sum`` over a batch too large for memory: clipped per example in micro-batches, and summed.

    The privacy, the noise and the expected batch size are those of the whole batch, not of a micro-batch: add the noise
    once, to the sum that this returns (``private_sum``).

    Args:
      per_example_gradient: from a micro-batch, a pytree like ``batch`` with ``micro_batch_size`` examples, to a pytree of
        per-example gradients.
      batch: a pytree whose leaves have the examples as first axis; a padded Poisson batch with its ``mask``.
      l2_norm_clip: > 0, of one example.
      micro_batch_size: divides the number of examples.
      mask: which examples count, shape (examples,).

    Returns:
      The sum over the whole batch: what ``clipped_sum`` gives, up to the order of the additions.

    Guarantee:
      As for ``clipped_sum``.

    Raises:
      ValueError: ``micro_batch_size`` does not divide the number of examples, or shapes do not fit.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> points, weights = jnp.arange(12.0).reshape(6, 2) / 10, jnp.zeros(2)
      >>> gradient = jax.vmap(jax.grad(lambda w, x: 0.5 * jnp.sum((w - x) ** 2)), (None, 0))
      >>> print(accumulate(lambda x: gradient(weights, x), points, 1.0, micro_batch_size=2))
      [-2.5370367 -3.0873494]
      >>> print(clipped_sum(gradient(weights, points), 1.0))
      [-2.5370367 -3.0873494]
    """
    _validate.whole("micro_batch_size", micro_batch_size, 1)
    examples = _examples(jax.tree.leaves(batch), "batch")
    if examples % micro_batch_size:
        raise ValueError(
            f"micro_batch_size = {micro_batch_size}, but it must divide the number of examples in the batch, {examples}: "
            "pad the batch and mask the padding."
        )
    keep = jnp.ones((examples,), bool) if mask is None else jnp.asarray(mask)
    if keep.shape != (examples,):
        raise ValueError(f"mask has shape {keep.shape}, but it must be ({examples},): one entry for each example.")
    split = lambda x: jnp.reshape(x, (examples // micro_batch_size, micro_batch_size, *np.shape(x)[1:]))
    pieces = jax.tree.map(split, (batch, keep))
    piece = lambda part, keep: clipped_sum(per_example_gradient(part), l2_norm_clip, keep)
    if examples == micro_batch_size:
        return piece(batch, keep)
    shapes = jax.eval_shape(piece, *jax.tree.map(lambda x: x[0], pieces))
    zero = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
    add = lambda total, part: (jax.tree.map(jnp.add, total, piece(*part)), None)
    return jax.lax.scan(add, zero, pieces)[0]


def positive(name: str, x: Any) -> Any:
    """``x``, checked to be positive and finite; NaN where it is traced and is not."""
    _validate.in_range(name, x, 0.0, low_open=True, high_open=True)
    return jnp.where((x > 0) & (x < jnp.inf), x, jnp.nan) if _validate.is_traced(x) else x


def _examples(leaves: list, name: str = "per_example") -> int:
    lengths = {np.shape(leaf)[:1] for leaf in leaves}
    if len(lengths) != 1 or () in lengths:
        raise ValueError(
            f"the leaves of {name} have shapes {[np.shape(leaf) for leaf in leaves]}, but their first axis must be the "
            "examples: take gradients with jax.vmap(jax.grad(loss), in_axes=(None, 0))."
        )
    return lengths.pop()[0]
