"""Integer noise: P is the noise moved by an integer, Q the noise; the pair is its own reverse."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dpjax._pytree import node, static
from dpjax._special import log_ndtr
from dpjax.closed_form import log_delta_gaussian
from dpjax.laws._law import Law, Tails

_SQRT_2PI = 2.5066282746310002
# Sums of exp(-t^2 / (2 sigma^2)) over integers t >= n are summed term by term where _TERMS of them suffice (what is left out is
# below exp(-40) of the sum): for sigma below _SMOOTH, or where terms fall by more than exp(-_STEEP) each. Elsewhere the
# Euler-Maclaurin series for midpoints; its j-th term is of size (slope / 2 pi)^(2 j), the slope being below 2 _STEEP.
_TERMS = 144
_SMOOTH = 7.0
_STEEP = 0.29
_MIDPOINT = (  # B_2j(1/2) / (2 j)!
    -0.041666666666666664,
    0.0012152777777777778,
    -3.2035383597883595e-05,
    8.202608300264551e-07,
    -2.0835982071876168e-08,
    5.281609967721337e-10,
    -1.3380902920268335e-11,
    3.389576851489321e-13,
    -8.585996549822947e-15,
)


def _first_above(x: jax.Array, unit: Any, move: int) -> jax.Array:
    """The least integer k with unit (2 k - move) > x, as a float."""
    half = 0.5 * (move % 2)
    return jnp.floor(x / (2 * unit) + half) + (move // 2 + 1)


@node
class DiscreteLaplaceLaw(Law):
    """Losses unit (2 k - move), k = 0 .. move.

    Attributes:
      unit: the loss of one unit of the move, >= 0 and finite.
      move: an int >= 1.
    """

    unit: Any
    move: int = static()

    def _at(self, x):
        """The first outcome k above x in 1 .. move; whether all losses are above x; whether none is."""
        unit = jnp.where(self.unit > 0, self.unit, 1e-300)
        first = lax.stop_gradient(_first_above(x, unit, self.move))
        return jnp.clip(first, 1.0, self.move), first < 1.0, first > self.move

    def tails(self, x):
        k, all_, none = self._at(x)
        scale = 1 / (1 + jnp.exp(-self.unit))
        p = scale * jnp.exp(-self.unit * (self.move + 1 - k))  # P below
        q = scale * jnp.exp(-self.unit * k)  # Q above
        pick = lambda value, low, high: jnp.where(all_, low, jnp.where(none, high, value))
        return Tails(pick(1 - p, 1.0, 0.0), pick(q, 1.0, 0.0), pick(p, 0.0, 1.0), pick(1 - q, 0.0, 1.0))

    def support(self):
        return -self.move * self.unit, self.move * self.unit

    def spacing(self):
        return self.unit if self.move % 2 else 2 * self.unit

    def profile(self, x):
        # (P - e^x Q)(k, k + 1, ...) as a sum of two terms >= 0
        k, all_, none = self._at(x)
        ratio = jnp.exp(-self.unit)
        last = jnp.minimum(jnp.where(all_ | none, 0.0, x - self.unit * k), 0.0)
        value = -(jnp.expm1(last) + ratio * jnp.expm1(-self.unit * (self.move - k))) / (1 + ratio)
        return jnp.where(all_, -jnp.expm1(jnp.where(all_, x, 0.0)), jnp.where(none, 0.0, value))

    def profile_below(self, x):
        return self.profile(-x)


def _hermite(u: jax.Array) -> list[jax.Array]:
    """He_1, He_3, ... of the Euler-Maclaurin terms."""
    previous, current = jnp.ones_like(u), u
    odd = [current]
    for m in range(1, 2 * len(_MIDPOINT) - 1):
        previous, current = current, u * current - m * previous
        if m % 2 == 0:
            odd.append(current)
    return odd


@node
class DiscreteGaussianLaw(Law):
    """Losses spread (k - move / 2) at all integers k, spread = move / sigma^2.

    Attributes:
      sigma: >= 0 and finite; 0 without noise, where P and Q never coincide.
      move: an int >= 1.
    """

    sigma: Any
    move: int = static()

    def p_infinite(self):
        return jnp.where(self.sigma > 0, 0.0, 1.0)

    def q_infinite(self):
        return self.p_infinite()

    def spacing(self):
        return self.move / self.sigma**2 / (1 + self.move % 2)

    def _first(self, x):
        """The first outcome k above x, as a constant; it is not told apart from infinity where its masses are 0."""
        first = lax.stop_gradient(_first_above(x, 0.5 * self.move / self.sigma**2, self.move))
        far = lax.stop_gradient(64 * self.sigma + 64 + self.move)
        return jnp.clip(first, -jnp.ceil(far), jnp.ceil(far))

    def _total(self):
        """The sum over all integers."""
        small = self.sigma < _SMOOTH
        sigma = jnp.where(small, self.sigma, 1.0)
        t = np.arange(1.0, _TERMS // 2)
        return jnp.where(small, 1 + 2 * jnp.sum(jnp.exp(-0.5 * (t / sigma) ** 2)), self.sigma * _SQRT_2PI)

    def _smooth(self, n):
        """Whether the terms from n on are summed by Euler-Maclaurin."""
        return lax.stop_gradient((self.sigma >= _SMOOTH) & (n <= _STEEP * self.sigma**2))

    def _mass(self, n):
        """P(noise >= n) for integers n, to relative precision for n >= 1."""
        n = jnp.maximum(n, 1.0)
        smooth = self._smooth(n)
        sigma = jnp.where(smooth, 1.0, self.sigma)
        t = n[..., None] + np.arange(float(_TERMS))
        direct = jnp.sum(jnp.exp(-0.5 * (t / sigma[..., None]) ** 2), -1)
        sigma = jnp.where(smooth, self.sigma, _SMOOTH)
        u = jnp.where(smooth, n - 0.5, 0.5) / sigma
        series = sum(c * h / sigma ** (2 * j + 1) for j, (c, h) in enumerate(zip(_MIDPOINT, _hermite(u), strict=True)))
        series = jnp.exp(-0.5 * u * u) * series + sigma * _SQRT_2PI * jnp.exp(log_ndtr(-u))
        return jnp.where(smooth, series, direct) / self._total()

    def _above(self, n):
        mass = self._mass(jnp.where(n > 0, n, 1 - n))
        return jnp.where(n > 0, mass, 1 - mass)

    def tails(self, x):
        k = self._first(x)
        p, q = k - self.move, k
        return Tails(*self._above(jnp.stack([p, q, 1 - p, 1 - q])))

    def profile(self, x):
        # sum over t >= n of exp(-t^2 / (2 sigma^2)) (1 - exp(x - loss)), loss = spread (t + move / 2)
        x = jnp.asarray(x)
        n = self._first(x) - self.move
        coarse = lax.stop_gradient(self.move > _STEEP * self.sigma**2)  # 1 - exp(x - loss) is soon 1
        smooth = self._smooth(n)
        integrated = smooth & ~coarse
        value = jnp.where(integrated, self._integrated(x, n, integrated), self._summed(x, n, integrated))
        rest = jnp.where(smooth & coarse, self._above(n + _TERMS), 0.0)
        return value / self._total() + rest

    def _summed(self, x, n, integrated):
        sigma = jnp.where(integrated, 1.0, self.sigma)
        start = jnp.where(sigma < _SMOOTH, jnp.maximum(n, lax.stop_gradient(-jnp.ceil(9 * sigma))), n)
        t = start[..., None] + np.arange(float(_TERMS))
        gap = jnp.where(integrated, 0.0, x)[..., None] - (self.move / sigma**2)[..., None] * (t + 0.5 * self.move)
        return jnp.sum(jnp.exp(-0.5 * (t / sigma[..., None]) ** 2) * -jnp.expm1(jnp.minimum(gap, 0.0)), -1)

    def _integrated(self, x, n, smooth):
        """From n - 1/2 on: the profile of the Gaussian at the loss there, what x differs from it, and the series."""
        sigma = jnp.where(smooth, self.sigma, _SMOOTH)
        x, n = jnp.where(smooth, x, 0.0), jnp.where(smooth, n, 0.0)
        d = self.move / sigma
        edge = d / sigma * (n + 0.5 * (self.move - 1))
        u = (n - 0.5) / sigma
        main = jnp.exp(log_delta_gaussian(edge, d * d))
        # both edge and the tail at u + d are far to the left where x is
        moved = jnp.exp(jnp.maximum(edge, x) + log_ndtr(-u - d))
        rest = moved * jnp.where(
            edge > x, -jnp.expm1(jnp.minimum(x - edge, 0.0)), jnp.expm1(jnp.minimum(edge - x, 0.0))
        )
        near = u > -38.0
        v = jnp.where(near, u, -38.0)
        scaled = jnp.exp(jnp.where(near, x - edge, 0.0))
        terms = zip(_MIDPOINT, _hermite(v), _hermite(v + d), strict=True)
        series = sum(c * (one - scaled * two) / sigma ** (2 * j + 1) for j, (c, one, two) in enumerate(terms))
        return sigma * _SQRT_2PI * (main + rest) + jnp.exp(-0.5 * v * v) * series

    def profile_below(self, x):
        return self.profile(-x)

    def log_moment_above(self, s, x):
        # p^(1+s) q^-s is a Gaussian around (1 + s) move, whose sum over all integers is at most that around one of them
        first = x * self.sigma**2 / self.move + 0.5 * self.move  # a real number: the outcomes counted are beyond it
        away = (first - (1 + s) * self.move) / self.sigma
        beyond = away > 0  # of the top, from where on the terms fall
        away = jnp.where(beyond, away, 0.0)
        terms = jnp.logaddexp(-0.5 * away**2, jnp.log(_SQRT_2PI * self.sigma) + log_ndtr(-away))
        share = jnp.minimum(terms - jnp.log(jnp.maximum(1.0, _SQRT_2PI * self.sigma)), 0.0)
        share = jnp.where(beyond, share, 0.0)
        return 0.5 * s * (1 + s) * (self.move / self.sigma) ** 2 + share

    def log_moment_below(self, s, x):
        return self.log_moment_above(-1 - s, -x)
