"""A coin that is seen decides between two pairs: their tails and profiles add up."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from dpjax._pytree import node
from dpjax.laws._law import Law, Tails


@node
class Blend(Law):
    """``first`` with probability ``weight``, ``second`` with probability ``rest``; the outcome of the coin is public.

    Attributes:
      weight, rest: in [0, 1], of sum 1, each with relative precision.
      first, second: laws.
    """

    weight: Any
    rest: Any
    first: Law
    second: Law

    def _sum(self, first, second):
        return self.weight * first + self.rest * second

    def tails(self, x):
        return Tails(*map(self._sum, self.first.tails(x), self.second.tails(x)))

    def support(self):
        (low, high), (low2, high2) = self.first.support(), self.second.support()
        used = lambda weight, bound, none: jnp.where(weight > 0, bound, none)
        return (
            jnp.minimum(used(self.weight, low, jnp.inf), used(self.rest, low2, jnp.inf)),
            jnp.maximum(used(self.weight, high, -jnp.inf), used(self.rest, high2, -jnp.inf)),
        )

    def p_infinite(self):
        return self._sum(self.first.p_infinite(), self.second.p_infinite())

    def q_infinite(self):
        return self._sum(self.first.q_infinite(), self.second.q_infinite())

    def spacing(self):
        one, two = self.first.spacing(), self.second.spacing()
        both = jnp.where(jnp.asarray(one) == two, one, 0.0)
        return jnp.where(self.rest > 0, jnp.where(self.weight > 0, both, two), one)

    def profile(self, x):
        return self._sum(self.first.profile(x), self.second.profile(x))

    def profile_below(self, x):
        return self._sum(self.first.profile_below(x), self.second.profile_below(x))

    def _moments(self, first, second):
        log = lambda share: jnp.where(share > 0, jnp.log(jnp.where(share > 0, share, 1.0)), -jnp.inf)
        used = lambda share, moment: jnp.where(share > 0, log(share) + jnp.where(share > 0, moment, 0.0), -jnp.inf)
        return jnp.logaddexp(used(self.weight, first), used(self.rest, second))

    def log_moment_above(self, s, x):
        return self._moments(self.first.log_moment_above(s, x), self.second.log_moment_above(s, x))

    def log_moment_below(self, s, x):
        return self._moments(self.first.log_moment_below(s, x), self.second.log_moment_below(s, x))
