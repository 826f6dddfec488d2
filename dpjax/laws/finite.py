"""A finite pair: atoms of the loss."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from dpjax._pytree import node
from dpjax._special import log1p
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
            zero = 0.0 * jnp.sum(mass, keepdims=True)  # NaN if a mass is
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


@jax.custom_jvp
def _log_ratio(p: jax.Array, q: jax.Array) -> jax.Array:
    """log(p / q) for p, q > 0, to a few of its own roundings, also where p and q are close, or tiny."""
    scale = jnp.where(jnp.minimum(p, q) < 2.0**-500, 2.0**500, 1.0)  # small differences are flushed to 0
    p, q = p * scale, q * scale
    close = (p < 2 * q) & (q < 2 * p)
    share = jnp.where(close, (p - q) / q, 0.0)  # an exact difference
    plain = ~close & (p > q * 1e-300) & (q > p * 1e-300)
    ratio = jnp.where(plain, p, 1.0) / jnp.where(plain, q, 1.0)
    apart = jnp.log(jnp.where(close, 1.0, p)) - jnp.log(jnp.where(close, 1.0, q))
    return jnp.where(close, log1p(share), jnp.where(plain, jnp.log(ratio), apart))


@_log_ratio.defjvp
def _log_ratio_jvp(primals, tangents):
    (p, q), (dp, dq) = primals, tangents
    return _log_ratio(p, q), dp / p - dq / q


def from_masses(p: jax.Array, q: jax.Array) -> FiniteLaw:
    """The law of two distributions over (outcomes,), in any order, each divided by its sum.

    NaN if a mass is negative or a sum is off by more than 1e-5.
    """
    total_p, total_q = jnp.sum(p), jnp.sum(q)
    off = jnp.maximum(jnp.abs(total_p - 1), jnp.abs(total_q - 1))
    wrong = jnp.where(jnp.all((p >= 0) & (q >= 0)) & (off <= 1e-5), 0.0, jnp.nan)
    both = (p > 0) & (q > 0)
    loss = _log_ratio(jnp.where(both, p, 1.0), jnp.where(both, q, 1.0))
    # of close distributions the difference of the sums has more digits than the sums
    loss = jnp.where(both, loss - log1p(jnp.sum(p - q) / total_q), 0.0)
    order = jnp.argsort(loss)
    p, q = p / total_p + wrong, q / total_q + wrong
    kept = lambda mass: (jnp.where(both, mass, 0.0) + wrong)[order]
    rest = lambda mass: jnp.sum(jnp.where(both, 0.0, mass)) + wrong
    return FiniteLaw(loss[order], kept(p), kept(q), rest(p), rest(q), 0.0)


def randomized_response(epsilon: Any, num_buckets: int) -> FiniteLaw:
    """Two buckets of k-ary randomised response."""
    epsilon = jnp.asarray(epsilon)
    ratio = jnp.exp(-epsilon)
    p = jnp.stack([ratio, (num_buckets - 2) * ratio, jnp.ones_like(ratio)]) / (1 + (num_buckets - 1) * ratio)
    zero = jnp.zeros_like(epsilon)
    return FiniteLaw(jnp.stack([-epsilon, zero, epsilon]), p, p[::-1], zero, zero, epsilon)


def failure(delta: Any) -> FiniteLaw:
    """No loss, but an infinite one with probability delta."""
    delta = jnp.asarray(delta)
    rest = (1 - delta)[None]
    return FiniteLaw(jnp.zeros_like(rest), rest, rest, delta, delta, jnp.inf)
