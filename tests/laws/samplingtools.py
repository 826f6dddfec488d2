"""What the tests of samplers by enumeration share."""

from pathlib import Path

import jax
import numpy as np
import pytest

from dpjax import Adjacency

ORACLES = Path(__file__).parents[1] / "oracles"
X = np.concatenate([-np.geomspace(1e-4, 6, 30)[::-1], [0.0], np.geomspace(1e-4, 6, 30)])
DIRECTIONS = (Adjacency.REMOVE, Adjacency.ADD)


@pytest.fixture(autouse=True)
def double():
    with jax.enable_x64(True):
        yield


def stick(p, q, x=X):
    """The hockey-stick divergence at exp(x)."""
    return np.maximum(p - np.exp(x)[:, None] * q, 0).sum(-1)
