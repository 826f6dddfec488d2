"""Random allocation: each record in one of t batches (balls and bins; Feldman, Shenfeld, arXiv 2502.08202).

Without the record all t steps are plain, with it one step chosen at random is not: P = mean over i of (Q x .. P_i .. x Q),
against Q^t. Its loss has no short form, but t Poisson-sampled steps at rate 1/t that are known to have had the record at least
once, which happens with probability L = 1 - (1 - 1/t)^t, dominate it (Theorem 4.3): one participation is a mean, given the
outcomes, of what more participations show. So the profile of the composed Poisson steps, M = (1 - L) Q^t + L P', gives that of
(P', Q^t), the inverse of the map of ``sampled.MixedLaw``.

Each record in k of t batches is dominated by k runs of one in floor(t / k).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from dpjax._pytree import node
from dpjax._special import log1p
from dpjax.laws._law import Law, Tails
from dpjax.laws.finite import FiniteLaw
from dpjax.laws.gaussian import GaussianLaw
from dpjax.laws.sampled import mixed_loss
from dpjax.mechanisms import Adjacency, PoissonSampled, RandomAllocation, SelfComposed


def participation(num_steps: Any) -> jax.Array:
    """1 - (1 - 1/t)^t: the probability to be in a batch at all in t Poisson-sampled steps at rate 1/t."""
    t = jnp.asarray(num_steps, jnp.result_type(float))
    some = t > 1
    t = jnp.where(some, t, 2.0)
    return jnp.where(some, -jnp.expm1(t * log1p(-1 / t)), 1.0)


def random_allocation_profile(
    profile: Callable[[jax.Array], jax.Array], x: jax.Array, num_steps: Any, direction: Adjacency
) -> jax.Array:
    """A bound on delta(x) of one in ``num_steps``, from the profile of as many Poisson-sampled steps.

    Args:
      profile: delta, or an upper bound on it, of ``num_steps`` steps of the base mechanism at sampling probability
        1 / num_steps, composed, in the same direction; called once, with an array of the shape of x.
      x: any shape, any real numbers.
      num_steps: scalar, >= 1, a whole number.
      direction: ADD or REMOVE.

    Returns:
      Shape of x.

    Raises:
      NotImplementedError: the direction is another.

    Guarantee: never below the hockey-stick divergence of the allocation, if ``profile`` never is below that of the
    composition (arXiv 2502.08202, Theorem 4.3).
    """
    x = jnp.asarray(x)
    rate = participation(num_steps)
    if direction is Adjacency.REMOVE:
        return jnp.minimum(profile(mixed_loss(rate, x)) / rate, 1.0)
    if direction is Adjacency.ADD:
        inner = -mixed_loss(rate, -x)
        delta = profile(inner)
        some = delta > 0  # the factor may overflow
        log_bound = jnp.log(jnp.where(some, delta, 1.0)) + (x - inner) - jnp.log(rate)
        return jnp.where(some, jnp.exp(jnp.minimum(log_bound, 0.0)), 0.0)
    raise NotImplementedError(f"RandomAllocation has no analysis under {direction.name}.")


def unmixed(law: FiniteLaw, rate: Any) -> FiniteLaw:
    """The pair (P', Q) of a pair ((1 - rate) Q + rate P', Q): with ``participation``, one allocation as a law (remove).

    An atom whose loss is not above log(1 - rate), where rounding a loss to a lattice may have put it, has no P'-mass.

    Guarantee: its profile at x is that of ``law`` at log(1 - rate + rate exp(x)), over the rate, at every x; if ``law``
    dominates, so does this, alone and composed. P' may have more mass than 1, by what an atom below has too little.
    """
    share = -jnp.expm1(jnp.log1p(-rate) - law.loss)
    kept = share > 0
    share = jnp.where(kept, share, 1.0)
    none = jnp.zeros_like(law.q)
    loss = law.loss + jnp.log(share) - jnp.log(rate)
    lowest = jnp.min(jnp.where(kept, loss, jnp.max(loss)))
    return FiniteLaw(
        jnp.where(kept, loss, lowest),  # ascending, also where there is no mass left
        jnp.where(kept, law.p * share / rate, none),
        jnp.where(kept, law.q, none),
        law.p_top / rate,
        law.q_bottom + jnp.sum(jnp.where(kept, none, law.q)),
    )


def unmixed_add(law: FiniteLaw, rate: Any) -> FiniteLaw:
    """The pair (P, Q') of a pair (P, (1 - rate) P + rate Q'): with ``participation``, one allocation as a law (add).

    No loss of ``law`` should be above -log(1 - rate). Where rounding to a lattice has put one there, Q' would be negative: the
    least pair is taken instead that dominates every pair whose mixture ``law`` dominates. It moves a share of the largest
    losses to infinity, so that the mass of Q' is kept. In r = dQ'/dP, E_P (a - r)_+ becomes its largest convex minorant that
    is 0 at a = 0: a tangent from the origin, then the function itself.

    Guarantee: without such losses the exact pair; with them a pair that dominates, alone and composed.
    """
    ratio = (jnp.exp(-law.loss) - (1 - rate)) / rate
    r, p = ratio[::-1], law.p[::-1]  # ascending
    mass = law.p_top + jnp.cumsum(p)  # P(ratio <= r); where q = 0, the ratio is -(1 - rate) / rate
    steps = mass * jnp.diff(r, append=r[-1:])
    first = law.p_top * (r[0] + (1 - rate) / rate)
    below = first + jnp.concatenate([jnp.zeros(1), jnp.cumsum(steps)[:-1]])  # E_P (r - ratio)_+
    usable = (r > 0) & (mass > 0)
    slope = jnp.where(usable, below / jnp.where(usable, r, 1.0), jnp.inf)
    touch = jnp.argmin(slope)
    position = jnp.arange(r.shape[0])
    some = jnp.any(usable)
    p_top = jnp.where(some, jnp.where(usable, slope, jnp.inf)[touch], mass[-1])
    kept = jnp.where(position == touch, mass - p_top, p)
    kept = jnp.where(some & (position >= touch), kept, 0.0)
    r = jnp.where(r > 0, r, 1.0)
    loss = -jnp.log(r)
    fill = jnp.max(jnp.where(position >= touch, loss, -jnp.inf))  # losses without mass: ascending all the same
    loss = jnp.where(position >= touch, loss, fill)
    return FiniteLaw(loss[::-1], kept[::-1], (kept * r)[::-1], p_top, law.q_bottom / rate)


def poisson_steps(record: RandomAllocation) -> SelfComposed:
    """The Poisson-sampled steps whose profile bounds one participation: m of rate 1 / m, m = floor(num_steps / participations).

    ``participations`` of what ``unmixed`` and ``unmixed_add`` make of them bound the epoch.
    """
    steps = jnp.floor(jnp.asarray(record.num_steps, jnp.result_type(float)) / record.participations)
    return SelfComposed(PoissonSampled(1 / steps, record.mechanism), steps)


@node
class Shifted(Law):
    """A pair whose loss is larger by ``shift``: Q's density is exp(-shift) times as large, the rest of Q where p = 0.

    Attributes:
      shift: >= 0.
      law: that of (P, Q).
    """

    shift: Any
    law: Law

    def tails(self, x):
        t = self.law.tails(x - self.shift)
        scale = jnp.exp(-self.shift)
        return Tails(t.p_above, scale * t.q_above, t.p_below, scale * t.q_below)

    def support(self):
        low, high = self.law.support()
        return low + self.shift, high + self.shift

    def p_infinite(self):
        return self.law.p_infinite()

    def q_infinite(self):
        return jnp.exp(-self.shift) * self.law.q_infinite() - jnp.expm1(-self.shift)

    def profile(self, x):
        return self.law.profile(x - self.shift)

    def profile_below(self, x):
        return jnp.exp(-self.shift) * self.law.profile_below(x - self.shift) - jnp.expm1(-self.shift)


def gaussian_add(num_steps: Any, mu: Any) -> Law:
    """A law that dominates one allocation of a Gaussian in the add direction.

    The loss -log mean exp(mu x_i - mu^2 / 2) is at most mu^2 / 2 - mu mean x_i (Jensen), whose law under P is that of a Gaussian
    with mu / sqrt t, shifted by (1 - 1/t) mu^2 / 2. Close where t is small or mu is; for many steps the Poisson
    decomposition is smaller.

    Args:
      num_steps: t, scalar, >= 1.
      mu: scalar, sensitivity over standard deviation, > 0.
    """
    return Shifted(0.5 * mu**2 * (1 - 1 / num_steps), GaussianLaw(mu / jnp.sqrt(num_steps)))


def log_moment(log_moments: jax.Array, num_steps: Any) -> jax.Array:
    """log E_Q (dP/dQ)^order of one allocation in the remove direction: (order - 1) times its Renyi divergence, exactly.

    The moment of a mean of t likelihood ratios is order! t^-order times the coefficient of z^order in
    (sum_p E_Q exp(p L) z^p / p!)^t (Theorem 4.4 sums it over partitions). The power is taken by squaring, in logarithms: all
    terms are positive.

    Args:
      log_moments: (order + 1,), log E_Q exp(p L) of the base mechanism in the remove direction, p = 0, 1, .., order: for a
        Gaussian mu^2 p (p - 1) / 2.
      num_steps: t, scalar, a whole number in [1, 2^31).

    Returns:
      Scalar.
    """
    order = log_moments.shape[0] - 1
    powers = jnp.arange(order + 1)
    log_factorial = jax.scipy.special.gammaln(powers + 1.0)
    index = powers[:, None] - powers
    inside = index >= 0

    def times(a, b):  # coefficients of a product of power series, in logarithms
        terms = jnp.where(inside, a + b[jnp.where(inside, index, 0)], -jnp.inf)
        return jax.scipy.special.logsumexp(terms, -1)

    def step(carry, bit):
        result, square = carry
        result = jnp.where(bit, times(result, square), result)
        return (result, times(square, square)), None

    one = jnp.where(powers == 0, 0.0, -1e30)  # log 0, but with a derivative
    bits = (jnp.asarray(num_steps).astype(jnp.int64) >> jnp.arange(31)) & 1
    (coefficients, _), _ = jax.lax.scan(step, (one, log_moments - log_factorial), bits == 1)
    return coefficients[-1] + log_factorial[-1] - order * jnp.log(num_steps)
