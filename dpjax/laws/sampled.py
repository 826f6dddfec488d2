"""Sampling maps laws to laws (Zhu, Dong, Wang, arXiv 2106.08567, Theorem 11)."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from dpjax._pytree import node
from dpjax.laws._law import Law, Tails, reverse


@node
class MixedLaw(Law):
    """The pair ((1 - rate) Q + rate P, Q) of a pair (P, Q): its loss is log(1 - rate + rate exp(L)).

    Attributes:
      rate: in (0, 1].
      law: that of (P, Q).
    """

    rate: Any
    law: Law

    def _base(self, x):
        """The loss of (P, Q) where that of the mixture is x; whether there is one; its ratio exp(base - x)."""
        share = jnp.expm1(x) / self.rate
        there = share > -1.0
        return jnp.log1p(jnp.where(there, share, 0.0)), there

    def tails(self, x):
        base, there = self._base(x)
        t = self.law.tails(base)
        rate = self.rate
        none = self.law.q_infinite()
        q_above, q_below = jnp.where(there, t.q_above, 1.0 - none), jnp.where(there, t.q_below, 0.0)
        p_above = jnp.where(there, t.p_above, 1.0 - self.law.p_infinite())
        p_below = jnp.where(there, t.p_below, 0.0)
        # where the base pair has q but no p, the mixture has the loss log(1 - rate)
        edge = x >= jnp.log1p(-self.rate)
        q_above, q_below = q_above + jnp.where(edge, 0.0, none), q_below + jnp.where(edge, none, 0.0)
        mix = lambda p, q: (1 - rate) * q + rate * p
        return Tails(mix(p_above, q_above), q_above, mix(p_below, q_below), q_below)

    def support(self):
        low, high = self.law.support()
        through = lambda x: jnp.log1p(self.rate * jnp.expm1(jnp.minimum(x, 700.0)))
        low = jnp.where(self.law.q_infinite() > 0, -jnp.inf, low)
        return through(low), jnp.where(high > 700.0, high, through(high))

    def p_infinite(self):
        return self.rate * self.law.p_infinite()

    def profile(self, x):
        base, there = self._base(x)
        return jnp.where(there, self.rate * self.law.profile(base), -jnp.expm1(x))

    def profile_below(self, x):
        base, there = self._base(x)
        scale = self.rate + jnp.expm1(x)  # rate exp(base)
        return jnp.where(there, scale * jnp.exp(-x) * self.law.profile_below(base), 0.0)


def poisson_remove(rate: Any, base: Law) -> Law:
    """From the pair of the base mechanism in the remove direction."""
    return MixedLaw(rate, base)


def poisson_add(rate: Any, base: Law) -> Law:
    """(P, (1 - rate) P + rate Q) from the pair (P, Q) of the base mechanism in the add direction."""
    return reverse(MixedLaw(rate, reverse(base)))
