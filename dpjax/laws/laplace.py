"""The Laplace pair: P = Lap(mu), Q = Lap(0) with scale 1, whose loss is 2 y - mu at y, kept within [-mu, mu]."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from dpjax._pytree import node
from dpjax.laws._law import Law, Tails


@node
class LaplaceLaw(Law):
    """Half of P is an atom at the upper end, half of Q one at the lower end; the pair is its own reverse.

    Attributes:
      mu: sensitivity over scale, >= 0; infinite without noise, where the two never coincide.
    """

    mu: Any

    def tails(self, x):
        above, below = x >= self.mu, x < -self.mu
        inside = ~(above | below)
        half = lambda gap: 0.5 * jnp.exp(-0.5 * jnp.where(inside, gap, 0.0))
        p, q = half(self.mu - x), half(self.mu + x)  # P below, Q above
        pick = lambda value, low, high: jnp.where(inside, value, jnp.where(below, low, high))
        return Tails(pick(1 - p, 1.0, 0.0), pick(q, 1.0, 0.0), pick(p, 0.0, 1.0), pick(1 - q, 0.0, 1.0))

    def support(self):
        return -self.mu, self.mu

    def p_infinite(self):
        return jnp.where(jnp.isinf(self.mu), 1.0, 0.0)

    def q_infinite(self):
        return self.p_infinite()

    def atom(self):
        return self.mu

    def profile(self, x):
        return 0.0 - jnp.expm1(jnp.where(x < -self.mu, x, 0.5 * jnp.minimum(x - self.mu, 0.0)))

    def profile_below(self, x):
        return self.profile(-x)
