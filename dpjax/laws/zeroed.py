"""Batches of a fixed size when one record becomes a zero record: the record's place is taken by nothing.

Let rate be the probability that the record is in the batch, R the mechanism on batches without it, A on those with it, and B on
those with a zero record in its place: P = (1 - rate) R + rate A, Q = (1 - rate) R + rate B. Batches are paired by dropping a
random one of R's records for it, so that A is a replacement away from R, B is R with one record zeroed, and B is A with one
record zeroed. For a sum with noise A is up to two norm bounds from R, and B up to one from either. With
alpha = 1 + rate (alpha' - 1) and the shares alpha / alpha' and the rest (Balle, Barthe, Gaboardi, arXiv 1807.01647, Theorem 2)

    H_alpha(P, Q) = rate H_alpha'(A, rest R + share B),    H_alpha(Q, P) = rate H_alpha'(B, rest R + share A),    alpha >= 1.

P from Q: a set of A-mass s has at least the R- and B-masses of the half-line of A-mass s with R, B, A at 0, 1, 2 on one axis:
that triple is worst, at all orders at once. Q from P: H_alpha'(B, .) is convex and both R and A are one norm bound from B, so that
it is worst where R and A agree: all other records are like this one. No mechanism has both halves: the law joins them at loss 0.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from dpjax._pytree import node
from dpjax._special import LOG_2PI, log1p, log_ndtr
from dpjax.closed_form import log_delta_gaussian
from dpjax.laws._law import Law, Tails
from dpjax.laws.gaussian import GaussianLaw
from dpjax.laws.sampled import MixedLaw, poisson_add


@node
class ZeroedGaussian(Law):
    """The record becomes a zero record.

    Losses above 0 are those of (1 - rate) N(0, 1) + rate N(2 mu, 1) against (1 - rate) N(0, 1) + rate N(mu, 1), those below 0 are
    of N(0, 1) against (1 - rate) N(0, 1) + rate N(mu, 1).

    Attributes:
      rate: in [0, 1].
      mu: norm bound of one record over standard deviation, > 0 and finite.
    """

    rate: Any
    mu: Any

    def _below(self) -> Law:
        return poisson_add(self.rate, GaussianLaw(self.mu))

    def _above(self, x):
        """The tails at x >= 0."""
        some = self.rate > 0
        rate, mu = jnp.where(some, self.rate, 0.5), self.mu
        z = (x + _gap(rate, mu, x)) / mu + 1.5 * mu
        tail = lambda v: jnp.exp(log_ndtr(v))
        mix = lambda plain, moved: (1 - rate) * plain + rate * moved
        tails = (
            mix(tail(-z), tail(2 * mu - z)),
            mix(tail(-z), tail(mu - z)),
            mix(tail(z), tail(z - 2 * mu)),
            mix(tail(z), tail(z - mu)),
        )
        return Tails(*(jnp.where(some, t, none) for t, none in zip(tails, (0.0, 0.0, 1.0, 1.0), strict=True)))

    def tails(self, x):
        x = jnp.asarray(x)
        low = x < 0
        above, below = self._above(jnp.where(low, 0.0, x)), self._below().tails(jnp.where(low, x, -1.0))
        return Tails(*(jnp.where(low, b, a) for a, b in zip(above, below, strict=True)))

    def support(self):
        return jnp.where(self.rate > 0, -jnp.inf, 0.0), jnp.where(self.rate > 0, jnp.inf, 0.0)

    def _profile_above(self, x):
        some = self.rate > 0
        return jnp.where(some, _profile(jnp.where(some, self.rate, 0.5), self.mu, x), 0.0)

    def profile(self, x):
        x = jnp.asarray(x)
        low = x < 0
        above = self._profile_above(jnp.where(low, 0.0, x))
        return jnp.where(low, self._below().profile(jnp.where(low, x, -1.0)), above)

    def profile_below(self, x):
        x = jnp.asarray(x)
        low = x < 0
        at = jnp.where(low, 0.0, x)
        above = -jnp.expm1(-at) + jnp.exp(-at) * self._profile_above(at)
        return jnp.where(low, self._below().profile_below(jnp.where(low, x, -1.0)), above)

    def log_moment_above(self, s, x):
        # above 0 the zeroed record's likelihood ratio to R is above 1: without it losses are larger, and up to 0 moments at most 1
        above = MixedLaw(self.rate, GaussianLaw(2 * self.mu)).log_moment_above(s, jnp.maximum(x, 0.0))
        return jnp.where(x < 0, jnp.logaddexp(above, 0.0), above)

    def log_moment_below(self, s, x):
        below = self._below().log_moment_below(s, jnp.minimum(x, 0.0))
        return jnp.where(x < 0, below, jnp.logaddexp(below, 0.0))


def _gap(rate: Any, mu: Any, x: Any) -> jax.Array:
    """g >= 0 such that the loss of A against B is x + g where that of P against Q is x >= 0: e^g (e^g - 1) = c."""
    c = (1 - rate) / rate * -jnp.expm1(-x) * jnp.exp(-x - mu * mu)
    return log1p(2 * c / (1 + jnp.sqrt(1 + 4 * c)))


@jax.custom_jvp
def _profile(rate: Any, mu: Any, x: Any) -> jax.Array:
    """delta(x) for x >= 0 and rate > 0: rate times (1 - e^-g) of A against R, and e^-g of A against B."""
    gap = _gap(rate, mu, x)
    variance = jnp.broadcast_to(mu**2, jnp.shape(gap))
    from_plain = jnp.exp(log_delta_gaussian(2 * (x + gap) + variance, 4 * variance))
    from_zeroed = jnp.exp(log_delta_gaussian(x + gap, variance))
    return rate * (-jnp.expm1(-gap) * from_plain + jnp.exp(-gap) * from_zeroed)


@_profile.defjvp
def _profile_jvp(primals, tangents):
    """The set where the loss exceeds x is best, so it does not move: sums of positive terms."""
    rate, mu, x = primals
    value = _profile(rate, mu, x)
    gap = _gap(rate, mu, x)
    z = (x + gap) / mu + 1.5 * mu
    plain, zeroed = (jnp.exp(x + log_ndtr(v)) for v in (-z, mu - z))
    density = jnp.exp(-0.5 * (z - 2 * mu) ** 2 - 0.5 * LOG_2PI)
    d_x = -((1 - rate) * plain + rate * zeroed)
    d_mu = rate * density * (1 - jnp.expm1(-gap))
    d_rate = (value - jnp.expm1(-x) * plain) / rate
    return value, d_rate * tangents[0] + d_mu * tangents[1] + d_x * tangents[2]
