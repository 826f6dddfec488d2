"""A finite pair: atoms of the loss."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from dpjax._pytree import node
from dpjax.laws._law import Law, Tails


@node
class FiniteLaw(Law):
    """Finitely many losses.

    Attributes:
      loss: (atoms,), ascending; finite, also where there is no mass.
      p, q: (atoms,), the masses of P and Q there, q = p exp(-loss).
      p_top: P-mass where q = 0.
      q_bottom: Q-mass where p = 0.
      unit: see ``spacing``.
    """

    loss: Any
    p: Any
    q: Any
    p_top: Any
    q_bottom: Any
    unit: Any = 0.0

    def tails(self, x):
        index = jnp.searchsorted(self.loss, x, side="right")

        def sums(mass):
            zero = jnp.zeros(1, mass.dtype)
            below = jnp.concatenate([zero, jnp.cumsum(mass)])
            above = jnp.concatenate([jnp.cumsum(mass[::-1])[::-1], zero])
            return above[index], below[index]

        (p_above, p_below), (q_above, q_below) = sums(self.p), sums(self.q)
        return Tails(p_above, q_above, p_below, q_below)

    def support(self):
        any_mass = (self.p > 0) | (self.q > 0)
        low = jnp.min(jnp.where(any_mass, self.loss, jnp.inf))
        high = jnp.max(jnp.where(any_mass, self.loss, -jnp.inf))
        return jnp.where(jnp.any(any_mass), low, 0.0), jnp.where(jnp.any(any_mass), high, 0.0)

    def p_infinite(self):
        return self.p_top

    def q_infinite(self):
        return self.q_bottom

    def spacing(self):
        return self.unit

    def profile(self, x):
        gap = jnp.minimum(jnp.asarray(x)[..., None] - self.loss, 0.0)
        return self.p_top + jnp.sum(self.p * -jnp.expm1(gap), -1)

    def profile_below(self, x):
        gap = jnp.minimum(self.loss - jnp.asarray(x)[..., None], 0.0)
        return self.q_bottom + jnp.sum(self.q * -jnp.expm1(gap), -1)


def from_masses(p: jax.Array, q: jax.Array) -> FiniteLaw:
    """The law of any finite pair of (outcomes,) masses, in any order; NaN if a mass is negative."""
    both = (p > 0) & (q > 0)
    loss = jnp.log(jnp.where(both, p, 1.0)) - jnp.log(jnp.where(both, q, 1.0))
    order = jnp.argsort(loss)
    kept = lambda mass: jnp.where(both, mass, 0.0 * mass)[order]
    return FiniteLaw(
        loss[order], kept(p), kept(q), jnp.sum(jnp.where(both, 0.0, p)), jnp.sum(jnp.where(both, 0.0, q)), 0.0
    )
