"""Sampling maps laws to laws (Zhu, Dong, Wang, arXiv 2106.08567, Theorem 11).

A dataset without the record never sees the coin; the one with it is a mixture. So the remove pair is ((1 - rate) Q + rate P, Q)
for the pair (P, Q) of the base mechanism, the add pair is its reverse, and all sampling here is one map of the loss,
log(1 - rate + rate exp(L)), and its inverse.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dpjax._pytree import node
from dpjax._special import log1p
from dpjax.laws._law import Law, Tails, reverse

_FAR = 300.0  # exp(300) squared is finite: second derivatives are


class _Base(NamedTuple):
    """What the mixture's loss x says of the pair: (P, Q)'s loss there, and the shape of x.

    Attributes:
      loss: log((exp(x) - (1 - rate)) / rate); 0 where there is none.
      share: rate exp(loss - x), the part of the mixture's density that is P's.
      there: whether x > log(1 - rate).
    """

    loss: jax.Array
    share: jax.Array
    there: jax.Array


def _unmixed(rate: Any, x: Any) -> _Base:
    """For 0 < rate <= 1. An error of the result is what a few ulp of x make, also close to log(1 - rate)."""
    rest = 1 - rate
    odds = rest * jnp.exp(jnp.minimum(-x, _FAR))  # (1 - rate) exp(-x)
    grown = jnp.expm1(jnp.minimum(x, 1.0)) / rate
    low = (rate > 0.5) & (grown < -0.5)
    there = jnp.where(low, odds < 1, grown > -1)
    # log(1 - rate) - x, exact to ulps of x where odds is close to 1
    partly = odds > 0.5
    gap = jnp.where(partly & there, log1p(-jnp.where(rest > 0, rate, 0.5)) - x, -1.0)
    there = there & (gap < 0)
    share = jnp.where(partly, -jnp.expm1(jnp.where(there, gap, -1.0)), 1 - odds)
    share = jnp.where(there, share, 1.0)
    log_share = jnp.log(share)
    far, near = x - jnp.log(rate) + log_share, log1p(jnp.where(there & ~low & (x <= 1), grown, 0.0))
    return _Base(jnp.where(there, jnp.where(low | (x > 1), far, near), 0.0), share, there)


def mixed_loss(rate: Any, loss: Any) -> jax.Array:
    """log(1 - rate + rate exp(loss)) for 0 < rate <= 1; the loss may be infinite."""
    far = loss > 1
    near = jnp.where(far, 0.0, loss)
    grown = rate * jnp.expm1(near)
    low = grown < -0.5
    deep = jnp.logaddexp(jnp.log1p(-rate), jnp.log(rate) + jnp.where(low, near, 0.0))
    near = jnp.where(low, deep, log1p(jnp.where(low, 0.0, grown)))
    top = jnp.where(far, loss, 1.0)
    return jnp.where(far, top + log1p(-(1 - rate) * -jnp.expm1(-top)), near)


@node
class MixedLaw(Law):
    """The pair ((1 - rate) Q + rate P, Q) of a pair (P, Q): its loss is log(1 - rate + rate exp(L)).

    Attributes:
      rate: in [0, 1].
      law: that of (P, Q).
    """

    rate: Any
    law: Law

    def _base(self, x):
        """The base at x, of rate 1 where the rate is 0: what comes of it is not used, or is the limit (x = 0)."""
        return _unmixed(jnp.where(self.rate > 0, self.rate, 1.0), x)

    def tails(self, x):
        base = self._base(x)
        t = self.law.tails(base.loss)
        rate = self.rate
        none = jnp.where(rate < 1, self.law.q_infinite(), 0.0)  # Q's mass where the mixture is 1 - rate times as likely
        at_least = x >= jnp.log1p(-jnp.where(rate < 1, rate, 0.0))
        some = rate > 0
        there = jnp.where(some, base.there, x >= 0)
        total_p, total_q = t.p_above + t.p_below, t.q_above + t.q_below
        p_above, q_above = (
            jnp.where(there, jnp.where(some, above, 0.0), total)
            for above, total in ((t.p_above, total_p), (t.q_above, total_q))
        )
        p_below, q_below = (
            jnp.where(there, jnp.where(some, below, total), 0.0)
            for below, total in ((t.p_below, total_p), (t.q_below, total_q))
        )
        q_above, q_below = q_above + jnp.where(at_least, 0.0, none), q_below + jnp.where(at_least, none, 0.0)
        mix = lambda p, q: (1 - rate) * q + rate * p
        return Tails(mix(p_above, q_above), q_above, mix(p_below, q_below), q_below)

    def support(self):
        some, safe = self.rate > 0, jnp.where(self.rate > 0, self.rate, 1.0)
        low, high = self.law.support()
        low = jnp.where((self.law.q_infinite() > 0) & (self.rate < 1), -jnp.inf, low)
        return jnp.where(some, mixed_loss(safe, low), 0.0), jnp.where(some, mixed_loss(safe, high), 0.0)

    def p_infinite(self):
        return self.rate * self.law.p_infinite()

    def q_infinite(self):
        return jnp.where(self.rate < 1, 0.0, self.law.q_infinite())

    def atom(self):
        some, safe = self.rate > 0, jnp.where(self.rate > 0, self.rate, 1.0)
        return jnp.where(some, mixed_loss(safe, jnp.asarray(self.law.atom(), float)), 0.0)

    def spacing(self):
        return jnp.where(self.rate < 1, 0.0, self.law.spacing())

    def profile(self, x):
        base = self._base(x)
        value = self.rate * self.law.profile(base.loss)
        value = jnp.where((self.rate > 0) | (x <= 0), value, self.rate * self.law.p_infinite())
        there = jnp.where(self.rate > 0, base.there, x >= 0)
        return jnp.where(there, value, -jnp.expm1(jnp.where(there, 0.0, x)))

    def profile_below(self, x):
        base = self._base(x)
        value = base.share * self.law.profile_below(base.loss)
        none = -jnp.expm1(-jnp.maximum(x, 0.0))
        return jnp.where(self.rate > 0, jnp.where(base.there, value, 0.0), none)

    def log_moment_above(self, s, x):
        # with the base's ratio r = exp(L) the mixture's is r (rate + (1 - rate) / r), and L > base here
        found = self._base(x)
        base, there = found[0], found[-1]
        shrunk = jnp.log(self.rate + (1 - self.rate) * jnp.exp(-base))
        return jnp.where(there, (1 + s) * shrunk + self.law.log_moment_above(s, base), jnp.inf)

    def log_moment_below(self, s, x):
        # the mixture's ratio is at least 1 - rate, and at least rate r
        found = self._base(x)
        base, there = found[0], found[-1]
        through = jnp.where(there, (1 + s) * jnp.log(self.rate) + self.law.log_moment_below(s, base), jnp.inf)
        return jnp.minimum(super().log_moment_below(s, x), through)


def poisson_remove(rate: Any, base: Law) -> Law:
    """From the pair of the base mechanism in the remove direction."""
    return MixedLaw(rate, base)


def poisson_add(rate: Any, base: Law) -> Law:
    """(P, (1 - rate) P + rate Q) from the pair (P, Q) of the base mechanism in the add direction."""
    return reverse(MixedLaw(rate, reverse(base)))
