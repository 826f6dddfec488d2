"""A compiled function of lanes, run over a batch of NumPy arrays in chunks of one size, so that few programs are compiled."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np

_SIZES = (2, 32)


def take(tree: Any, index: Any) -> Any:
    return jax.tree.map(lambda a: a[index], tree)


def in_chunks(function: Callable, arguments: Any, difficulty: np.ndarray, size: int = _SIZES[1]) -> Any:
    """``function`` of lanes, run over chunks of similar difficulty in two threads; trees of NumPy arrays.

    Chunks have ``size`` lanes, but two where there are no more, or where a lane is a long schedule.
    """
    lanes = difficulty.shape[0]
    leaves = jax.tree.leaves(arguments)
    wide = any(leaf.ndim > 1 and leaf.shape[1] > 64 for leaf in leaves)  # a schedule is a batch by itself
    size = _SIZES[0] if wide or lanes <= _SIZES[0] else size
    order = np.argsort(difficulty, kind="stable")
    pieces = [order[i : i + size] for i in range(0, lanes, size)]

    # the threads below have settings of their own
    device = jax.config.jax_default_device  # pyright: ignore[reportAttributeAccessIssue]

    def run(piece):
        index = np.concatenate([piece, np.repeat(piece[:1], size - len(piece))])
        with jax.enable_x64(True), jax.default_device(device):
            return jax.tree.map(np.asarray, function(take(arguments, index)))

    found = [run(pieces[0])]  # compiles once, before the threads start
    if len(pieces) > 1:
        with ThreadPoolExecutor(2) as pool:
            found += pool.map(run, pieces[1:])
    kept = [take(part, slice(len(piece))) for piece, part in zip(pieces, found, strict=True)]
    return take(jax.tree.map(lambda *a: np.concatenate(a), *kept), np.argsort(order))
