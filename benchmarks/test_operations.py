"""The counter of executed operations, on programs whose counts are known.

python -m pytest benchmarks/test_operations.py -o addopts=""
"""

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from operations import executed

X = jnp.ones((8, 4))


def loop(n):
    return lax.while_loop(lambda s: s[0] < n, lambda s: (s[0] + 1, jnp.sin(s[1])), (jnp.zeros(()), X))[1]


def nested(n):
    return lax.scan(lambda c, _: (c + loop(n), None), X, None, length=3)[0]


@pytest.mark.parametrize(
    "function, argument, counts",
    [
        (lambda x: x + 1, X, (32, 0)),
        (lambda x: 2 * jnp.exp(x), X, (32, 32)),
        (lambda x: x @ x.T, X, (2 * 8 * 8 * 4, 0)),
        (lambda x: jnp.sum(x.reshape(-1)), X, (32, 0)),
        (lambda x: lax.scan(lambda c, row: (c + row, None), jnp.zeros(4), x)[0], X, (32, 0)),
        (lambda x: lax.cond(x[0, 0] > 0, jnp.exp, lambda x: x * x, x), X, (1, 32)),
        (loop, 10.0, (20, 320)),  # a comparison and a sum each time, and the sine
        (loop, 0.0, (0, 0)),
        (nested, 10.0, (3 * (20 + 32), 960)),
        (jax.vmap(loop), jnp.asarray([1.0, 5.0]), None),
        (jax.jit(lambda x: x * x), X, (32, 0)),
    ],
)
def test_known_programs(function, argument, counts):
    plain, transcendental = executed(function, argument)
    if counts is None:  # lanes wait for the slowest: five times, both
        assert transcendental == 5 * 2 * 32
    else:
        assert (plain, transcendental) == counts
