"""A law that fails, which would be a mistake, costs the answer and not the guarantee."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax import single_run
from dpjax._pytree import node
from dpjax.laws import Law, Tails


@node
class Failing(Law):
    """No numbers at losses above ``known``; below there is no loss at all."""

    known: float

    def tails(self, x):
        nothing = jnp.where(x > self.known, jnp.nan, 0.0)
        return Tails(nothing, nothing, 1 + nothing, 1 + nothing)


@pytest.mark.parametrize("known", [-1.0, 0.5])
def test_nan_is_no_privacy(known):
    with jax.enable_x64(True):
        law = Failing(np.float64(known))
        delta = single_run.solve(law, np.float64(1.0), "delta")
        epsilon = single_run.solve(law, np.float64(-10.0), "epsilon")
        assert (delta.lower, delta.upper) == (-np.inf, 0.0)
        assert (epsilon.lower, epsilon.upper) == (0.0, np.inf if known < 0 else 0.0)
