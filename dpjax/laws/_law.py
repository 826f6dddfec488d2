"""What a law of the privacy loss is: tails and profiles of one dominating pair, each with relative precision.

L = log(dP/dQ) for a pair (P, Q). A law describes one pair by scalars (or by one event axis); batches are made with
``jax.vmap``. Everything an engine needs of a mechanism is in its law: the masses of cells are differences of tails, the
privacy profile of a single run is ``profile``, sampling maps one law to another.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dpjax._pytree import node

TINY = 1e-290  # a mass that underflows is at most this


class Tails(NamedTuple):
    """The masses of the finite losses on both sides of x; the four have the shape of x.

    Attributes:
      p_above, q_above: P(L > x) and Q(L > x).
      p_below, q_below: P(L <= x) and Q(L <= x).
    """

    p_above: jax.Array
    q_above: jax.Array
    p_below: jax.Array
    q_below: jax.Array


class Law:
    """Base of all laws. Subclasses are pytree nodes with scalar fields; x may have any shape.

    ``tails`` and the profiles are exact up to ``ULPS`` (1 + |log of the value|) roundings each, an error of x by as many
    of its own ulps included.

    Both forms of an atom at x, in the tail above or below, are allowed, as long as all four masses agree.
    """

    ULPS = 16.0

    def tails(self, x: jax.Array) -> Tails:
        raise NotImplementedError

    def support(self) -> tuple[Any, Any]:
        """(lowest, highest) finite loss: bounds on it, infinite where there is none."""
        return -jnp.inf, jnp.inf

    def p_infinite(self) -> Any:
        """P-mass where q = 0: the probability that delta never falls below."""
        return 0.0

    def q_infinite(self) -> Any:
        """Q-mass where p = 0."""
        return 0.0

    def spacing(self) -> Any:
        """A number of which all finite losses are integer multiples: 0 if none is known, infinite if they are all 0."""
        return 0.0

    def atom(self) -> Any:
        """A loss that has a probability of its own, which a grid had better hit; 0 if there is none."""
        return 0.0

    def profile(self, x: jax.Array) -> jax.Array:
        """delta(x) = E_P (1 - exp(x - L))_+ for any real x: the hockey-stick divergence of P from Q at exp(x)."""
        t = self.tails(x)
        return self.p_infinite() + jnp.maximum(t.p_above - jnp.exp(x) * t.q_above, 0.0)

    def profile_below(self, x: jax.Array) -> jax.Array:
        """E_Q (1 - exp(L - x))_+: the profile of the reversed pair at -x."""
        t = self.tails(x)
        return self.q_infinite() + jnp.maximum(t.q_below - jnp.exp(-x) * t.p_below, 0.0)

    def log_moment_above(self, s: Any, x: Any) -> jax.Array:
        """A bound on log E_P[exp(s L); x < L < inf] for s >= 0; infinite where none is known."""
        _, high = self.support()
        seen = jnp.log(jnp.maximum(self.tails(x).p_above, TINY))
        top = jnp.where(high < jnp.inf, high, 0.0)
        bound = jnp.where(high < jnp.inf, s * top + seen, jnp.inf)
        return jnp.where(x >= high, -jnp.inf, bound)

    def log_moment_below(self, s: Any, x: Any) -> jax.Array:
        """A bound on log E_P[exp(s L); -inf < L <= x] for s <= -1; infinite where none is known."""
        low, _ = self.support()
        seen = jnp.log(jnp.maximum(self.tails(x).q_below, TINY))
        bottom = jnp.where(low > -jnp.inf, low, 0.0)
        bound = jnp.where(low > -jnp.inf, (1 + s) * bottom + seen, jnp.inf)
        return jnp.where(x < low, -jnp.inf, bound)


@node
class Reversed(Law):
    """The law of the pair (Q, P)."""

    law: Law

    def tails(self, x):
        t = self.law.tails(-x)
        return Tails(t.q_below, t.p_below, t.q_above, t.p_above)

    def support(self):
        low, high = self.law.support()
        return -high, -low

    def p_infinite(self):
        return self.law.q_infinite()

    def q_infinite(self):
        return self.law.p_infinite()

    def spacing(self):
        return self.law.spacing()

    def atom(self):
        return -self.law.atom()

    def profile(self, x):
        return self.law.profile_below(-x)

    def profile_below(self, x):
        return self.law.profile(-x)

    def log_moment_above(self, s, x):
        return self.law.log_moment_below(-1 - s, -x)

    def log_moment_below(self, s, x):
        return self.law.log_moment_above(-1 - s, -x)


def reverse(law: Law) -> Law:
    return law.law if isinstance(law, Reversed) else Reversed(law)
