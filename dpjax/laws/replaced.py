"""Sampling when one record becomes another: pairs that are their own reverse.

Poisson sampling. R is the mechanism without the record, A and B with the two: P = (1 - rate) R + rate A,
Q = (1 - rate) R + rate B. For noise around a sum, R is the noise, A and B are R moved by up to one norm bound. A set on which
R has mass s has at most the A-mass, and at least the B-mass, of the half-line of mass s with A and B moved apart by the full
bound along one axis: half-lines are most powerful between R and A, and least powerful between R and B, at once. So this one
triple dominates, for every order, and its loss rises along the axis.

Sampling of a fixed size. Every pair of batches is one of replace-one neighbours, and advanced joint convexity (Balle, Barthe,
Gaboardi, arXiv 1807.01647, Theorem 2) gives the profile rate H(1 + (alpha - 1) / rate) for orders alpha >= 1; the orders
below 1 are those of the reversed pair, which is a pair of replace-one neighbours too.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from dpjax._pytree import node
from dpjax._special import LOG_2PI, log1p, log_ndtr
from dpjax.closed_form import Single, crossing, log_delta_sampled
from dpjax.laws._law import Law, Tails
from dpjax.laws.sampled import MixedLaw


class SymmetricLaw(Law):
    """A law of a pair (P, Q) whose reverse has the same law: given by its losses x >= 0."""

    def upper_tails(self, x: jax.Array) -> Tails:
        """The tails at x >= 0; an atom at 0 is below."""
        raise NotImplementedError

    def upper_profile(self, x: jax.Array) -> jax.Array:
        """The profile at x >= 0."""
        raise NotImplementedError

    def tails(self, x):
        x = jnp.asarray(x)
        mirrored = x < 0
        t = self.upper_tails(jnp.where(mirrored, -x, x))
        return Tails(
            jnp.where(mirrored, t.q_below, t.p_above),
            jnp.where(mirrored, t.p_below, t.q_above),
            jnp.where(mirrored, t.q_above, t.p_below),
            jnp.where(mirrored, t.p_above, t.q_below),
        )

    def profile(self, x):
        x = jnp.asarray(x)
        mirrored = x < 0
        upper = self.upper_profile(jnp.where(mirrored, -x, x))
        below = jnp.where(mirrored, x, 0.0)
        return jnp.where(mirrored, jnp.exp(below) * upper - jnp.expm1(below), upper)

    def profile_below(self, x):
        return self.profile(-x)


@node
class PoissonReplaceGaussian(SymmetricLaw):
    """P = (1 - rate) N(0, 1) + rate N(mu, 1), Q = (1 - rate) N(0, 1) + rate N(-mu, 1).

    Attributes:
      rate: in [0, 1].
      mu: norm bound of one record over standard deviation, > 0 and finite.
    """

    rate: Any
    mu: Any

    def _given(self, x):
        rate = jnp.where(self.rate > 0, self.rate, 0.5)
        return rate, *(jnp.broadcast_to(v, jnp.shape(x)) for v in (self.mu**2, rate))

    def upper_tails(self, x):
        rate, variance, rates = self._given(x)
        mu = self.mu
        at = crossing(x, variance, rates)  # the loss crosses x at w / mu, in standard deviations
        first = at.first / mu
        z = first + 0.5 * mu
        above, below = ([jnp.exp(log_ndtr(sign * v)) for v in (z, first - 0.5 * mu, z + mu)] for sign in (-1.0, 1.0))
        mix = lambda plain, moved: (1 - rate) * plain + rate * moved
        tails = (mix(*above[:2]), mix(above[0], above[2]), mix(*below[:2]), mix(below[0], below[2]))
        return Tails(*(jnp.where(self.rate > 0, t, none) for t, none in zip(tails, (0.0, 0.0, 1.0, 1.0), strict=True)))

    def upper_profile(self, x):
        rate = jnp.where(self.rate > 0, self.rate, 0.5)
        return jnp.where(self.rate > 0, _replace_profile(rate, self.mu, x), 0.0)


@jax.custom_jvp
def _replace_profile(rate: jax.Array, mu: jax.Array, x: jax.Array) -> jax.Array:
    """delta(x) of ``PoissonReplaceGaussian`` for x >= 0 and rate > 0."""
    wide = lambda v: jnp.broadcast_to(v, jnp.shape(x))
    yes = jnp.ones(jnp.shape(x), bool)
    return jnp.exp(log_delta_sampled(Single(wide(mu**2), wide(rate), ~yes, yes), x, jnp.zeros_like(x)))


@_replace_profile.defjvp
def _replace_profile_jvp(primals, tangents):
    """The set where the loss exceeds x is best, so it does not move: sums of positive terms."""
    rate, mu, x = primals
    value = _replace_profile(rate, mu, x)
    wide = lambda v: jnp.broadcast_to(v, jnp.shape(x))
    z = crossing(x, wide(mu**2), wide(rate)).first / mu + 0.5 * mu
    plain, far = (jnp.exp(x + log_ndtr(-v)) for v in (z, z + mu))
    density = lambda log_scale, v: jnp.exp(log_scale - 0.5 * v * v - 0.5 * LOG_2PI)
    d_x = -((1 - rate) * plain + rate * far)
    d_mu = rate * (density(0.0, z - mu) + density(x, z + mu))
    d_rate = (value - jnp.expm1(-x) * plain) / rate
    return value, d_rate * tangents[0] + d_mu * tangents[1] + d_x * tangents[2]


@node
class PoissonReplaceLaplace(SymmetricLaw):
    """P = (1 - rate) R + rate A, Q = (1 - rate) R + rate B; densities exp(-|u|) / 2, and with u - mu and u + mu.

    The loss is log(1 - rate + rate exp(2 u - mu)) - log(1 - rate + rate exp(-mu)) on [0, mu] and constant beyond;
    delta(x) = rate (1 - exp(u - mu)) where it is x.

    Attributes:
      rate: in [0, 1].
      mu: norm bound of one record over scale, > 0 and finite.
    """

    rate: Any
    mu: Any

    def _top(self):
        rate, mu = self.rate, self.mu
        return log1p(rate * -jnp.expm1(-2 * mu) / (jnp.exp(-mu) * (1 - rate + rate * jnp.exp(-mu))))

    def _short_of(self, x):
        """(u, mu - u) where the loss is x >= 0; mu - u <= 0 from the largest loss on."""
        rate, mu = jnp.where(self.rate > 0, self.rate, 0.5), self.mu
        odds = (1 - rate) * -jnp.expm1(-x)
        some = odds > 0
        level = mu + jnp.log(jnp.where(some, odds, 1.0)) - jnp.log(rate)
        far = some & (level > 1)
        near = log1p(jnp.where(some & ~far, jnp.exp(jnp.where(far, 0.0, level)), 0.0))
        high = jnp.where(far, level, 1.0)
        u = 0.5 * (x + jnp.where(far, high + log1p(jnp.exp(-high)), near))
        return u, mu - u

    def upper_tails(self, x):
        rate, mu = self.rate, self.mu
        u, short = self._short_of(x)
        inside = (short > 0) & (rate > 0)
        u = jnp.where(inside, u, 0.0)
        plain, nearer, further = (0.5 * jnp.exp(-v) for v in (u, jnp.where(inside, short, 0.0), u + mu))
        tails = (
            (1 - rate) * plain + rate * (1 - nearer),
            (1 - rate) * plain + rate * further,
            (1 - rate) * (1 - plain) + rate * nearer,
            (1 - rate) * (1 - plain) + rate * (1 - further),
        )
        return Tails(*(jnp.where(inside, t, none) for t, none in zip(tails, (0.0, 0.0, 1.0, 1.0), strict=True)))

    def support(self):
        top = self._top()
        return -top, top

    def upper_profile(self, x):
        _, short = self._short_of(x)
        return self.rate * -jnp.expm1(-jnp.maximum(short, 0.0))


@node
class Turned(Law):
    """The pair or its reverse, whichever has less Q-mass above 0. Where both dominate, as under replace-one, so does this."""

    law: Law

    def _turned(self):
        zero = jnp.zeros(())
        t = self.law.tails(zero)
        return t.q_above > t.p_below

    def tails(self, x):
        turned = self._turned()
        t = self.law.tails(jnp.where(turned, -x, x))
        return Tails(
            jnp.where(turned, t.q_below, t.p_above),
            jnp.where(turned, t.p_below, t.q_above),
            jnp.where(turned, t.q_above, t.p_below),
            jnp.where(turned, t.p_above, t.q_below),
        )

    def support(self):
        low, high = self.law.support()
        turned = self._turned()
        return jnp.where(turned, -high, low), jnp.where(turned, -low, high)

    def p_infinite(self):
        return jnp.where(self._turned(), self.law.q_infinite(), self.law.p_infinite())

    def q_infinite(self):
        return jnp.where(self._turned(), self.law.p_infinite(), self.law.q_infinite())

    def spacing(self):
        return self.law.spacing()

    def profile(self, x):
        turned = self._turned()
        x = jnp.where(turned, -x, x)
        return jnp.where(turned, self.law.profile_below(x), self.law.profile(x))

    def profile_below(self, x):
        turned = self._turned()
        x = jnp.where(turned, -x, x)
        return jnp.where(turned, self.law.profile(x), self.law.profile_below(x))


@node
class FixedSizeReplaceLaw(SymmetricLaw):
    """The pair with profile rate H(1 + (alpha - 1) / rate) for alpha >= 1, H that of (P, Q), and its own reverse.

    On losses above 0 it is the law of the remove pair ((1 - rate) Q + rate P, Q), below 0 the mirror of that; the rest, which
    is (1 - rate) times the total variation of a symmetric base, is an atom at 0. The rest is never negative if Q has at
    most as much mass above 0 as P below (``Turned``).

    Attributes:
      rate: in [0, 1]: size of the sample over size of the dataset.
      law: that of (P, Q), which dominates all replace-one neighbours.
    """

    rate: Any
    law: Law

    def upper_tails(self, x):
        t = MixedLaw(self.rate, self.law).tails(x)
        # Q's total is 1 - rate p_infinite; q_above is at most half of it
        q_below = (1 - self.rate) + self.rate * (1 - self.law.p_infinite()) - t.q_above
        return Tails(t.p_above, t.q_above, t.p_below, q_below)

    def support(self):
        _, high = MixedLaw(self.rate, self.law).support()
        high = jnp.maximum(high, 0.0)
        return -high, high

    def p_infinite(self):
        return self.rate * self.law.p_infinite()

    def q_infinite(self):
        return self.p_infinite()

    def upper_profile(self, x):
        return MixedLaw(self.rate, self.law).profile(x)


def fixed_size_replace(rate: Any, base: Law) -> Law:
    """From any pair that dominates the base mechanism under replace-one."""
    return FixedSizeReplaceLaw(rate, base if isinstance(base, SymmetricLaw) else Turned(base))
