"""Gaussians at random distances: P = sum_i p_i N(d_i, 1), Q = N(0, 1), d_i >= 0.

The loss log sum_i p_i exp(t_i), t_i = d_i z - d_i^2 / 2, increases with z. Where it is x, exp(x) = sum_i p_i exp(t_i) turns both
profiles into sums of those of single Gaussians,

    E_P (1 - exp(x - L))_+ = sum_i p_i delta_G(t_i; d_i),    E_Q (1 - exp(L - x))_+ = sum_i p_i exp(t_i - x) delta_G(-t_i; d_i).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from dpjax._pytree import node
from dpjax._special import log1p, log_ndtr
from dpjax.closed_form import log_delta_gaussian
from dpjax.laws._law import Law, Tails

_NEWTON = 40  # a step divides by e what a component with a larger distance has too much: enough for distances in e^30


def _log_of_share(share, rest):
    """log of a share, to relative precision also near 1; rest is 1 - share."""
    large = share > 0.5
    return jnp.where(large, log1p(-jnp.where(large, rest, 0.0)), jnp.log(jnp.where(large, 1.0, share)))


class _Threshold(NamedTuple):
    """Where the loss is x.

    Attributes:
      z: the place, there.
      rounding: log of the share of exp(loss) below, at z as it is rounded, less ``level``.
      level: log of what the components that move have in exp(x).
      all_, none: whether all losses are above x; whether none is (P = Q).
    """

    z: jax.Array
    rounding: jax.Array
    level: jax.Array
    all_: jax.Array
    none: jax.Array


@node
class GaussianMixtureLaw(Law):
    """Attributes: distance, the d_i, >= 0 and finite; weight, the p_i, which sum to 1; both (components,)."""

    distance: Any
    weight: Any

    def _moves(self):
        return (self.distance > 0) & (self.weight > 0)

    def _shares(self):
        """The weights of the components that move and of those that do not."""
        moves = self._moves()
        return jnp.sum(jnp.where(moves, self.weight, 0.0)), jnp.sum(jnp.where(moves, 0.0, self.weight))

    def _threshold(self, x):
        moves = self._moves()
        moving, still = self._shares()
        some = jnp.where(moving > 0, moving, 1.0)
        d, weight = jnp.where(moves, self.distance, 1.0), jnp.where(moves, self.weight, 1.0) / some
        # sum_i weight_i exp(t_i) must be 1 + y; where x is large, exp(x) - still is exp(x) (1 - away)
        near = jnp.abs(x) < 0.7
        y = jnp.expm1(jnp.where(near, x, 0.0)) / some
        away = still * jnp.exp(-jnp.where(near, 1.0, x))
        below = jnp.where(near, y <= -1, away >= 1) & (still > 0)
        all_, none = jnp.where(moving > 0, below, x < 0), (moving == 0) & (x >= 0)
        there = ~(all_ | none)
        y = jnp.where(there & near, y, 0.0)
        level = x + log1p(-jnp.where(there & ~near, away, 0.0)) - jnp.log(some)
        level = jnp.where(near, log1p(y), level)
        log_weight = jnp.log(weight)

        def excess(z, level, y, d, weight, log_weight):
            """The loss at z less its level, and its slope; by differences from 0 where both are small."""
            t = jnp.where(moves, d * (z[..., None] - 0.5 * d), 0.0)
            terms = jnp.where(moves, t + log_weight, -jnp.inf)
            top = lax.stop_gradient(jnp.where(there, jnp.max(terms, -1), 0.0))
            each = jnp.where(moves, jnp.exp(terms - top[..., None]), 0.0)
            total = jnp.where(there, jnp.sum(each, -1), 1.0)
            slope = jnp.where(there, jnp.sum(d * each, -1) / total, 1.0)
            small = there & near & (y > -0.5) & (jnp.max(t, -1) < 1.0)
            growth = jnp.expm1(jnp.where(small[..., None], t, 0.0))
            change = (jnp.sum(jnp.where(moves, weight * growth, 0.0), -1) - y) / (1 + y)
            change = log1p(jnp.where(small & (change > -1), change, 0.0))
            return jnp.where(there, jnp.where(small, change, (top - level) + jnp.log(total)), 0.0), slope

        def newton(z, *fixed):
            value, slope = excess(z, *fixed)
            return z - value / slope

        fixed = lax.stop_gradient((level, y, d, weight, log_weight))
        start = (fixed[0][..., None] - fixed[4]) / fixed[2] + 0.5 * fixed[2]
        start = jnp.where(there, jnp.min(jnp.where(moves, start, jnp.inf), -1), 0.0)
        z = lax.stop_gradient(lax.fori_loop(0, _NEWTON, lambda _, z: newton(z, *fixed), lax.stop_gradient(start)))
        for _ in range(2):  # carries the first and second derivatives
            z = newton(z, level, y, d, weight, log_weight)
        rounding, _ = lax.stop_gradient(excess(z, *fixed))
        return _Threshold(z, rounding, level + jnp.log(some), all_, none)

    def tails(self, x):
        x = x + 0.0 * jnp.sum(self.weight)  # NaN weights
        z, _, _, all_, none = self._threshold(x)
        mix = lambda sign: jnp.sum(self.weight * jnp.exp(log_ndtr(sign * (self.distance - z[..., None]))), -1)
        pick = lambda value, low, high: jnp.where(all_, low, jnp.where(none, high, value))
        return Tails(
            pick(mix(1.0), 1.0, 0.0),
            pick(jnp.exp(log_ndtr(-z)), 1.0, 0.0),
            pick(mix(-1.0), 0.0, 1.0),
            pick(jnp.exp(log_ndtr(z)), 0.0, 1.0),
        )

    def support(self):
        moving, still = self._shares()
        some = still > 0
        low = jnp.where(some, _log_of_share(jnp.where(some, still, 1.0), moving), -jnp.inf)
        return low, jnp.where(moving > 0, jnp.inf, 0.0)

    def _components(self, at):
        """(t_i, d_i^2, whether a component moves); the last axis is that of the components."""
        moves = self._moves()
        d = jnp.where(moves, self.distance, 1.0)
        t = d * (at.z[..., None] - 0.5 * d)
        return t, jnp.broadcast_to(d * d, t.shape), moves

    # Each sum is that of the loss at z as it is rounded; its derivative there leads back to x.

    def profile(self, x):
        nothing = 0.0 * jnp.sum(self.weight)
        at = self._threshold(x + nothing)
        t, variance, moves = self._components(at)
        value = jnp.sum(jnp.where(moves, self.weight, 0.0) * jnp.exp(log_delta_gaussian(t, variance)), -1)
        value = jnp.maximum(value + at.rounding * jnp.exp(at.level + log_ndtr(-at.z)), 0.0)
        return nothing + jnp.where(at.all_, -jnp.expm1(jnp.where(at.all_, x, 0.0)), jnp.where(at.none, 0.0, value))

    def profile_below(self, x):
        nothing = 0.0 * jnp.sum(self.weight)
        at = self._threshold(x + nothing)
        t, variance, moves = self._components(at)
        top = lax.stop_gradient(jnp.maximum(jnp.max(jnp.where(moves, t, -jnp.inf), -1), 0.0))
        each = self.weight * jnp.exp(jnp.where(moves, t, 0.0) - top[..., None])
        share = jnp.where(moves, each, 0.0) / jnp.sum(each, -1, keepdims=True)  # p_i exp(t_i - x)
        value = jnp.sum(share * jnp.exp(log_delta_gaussian(-t, variance)), -1)
        rest = jnp.exp(log_ndtr(at.z)) - value
        value = jnp.maximum(value - at.rounding * jnp.sum(share, -1) * rest, 0.0)
        value = jnp.where(at.none, -jnp.expm1(jnp.where(at.none, -x, 0.0)), value)
        return nothing + jnp.where(at.all_, 0.0, value)

    # A power of the mixture's ratio is at most the mixture of the powers: both powers here are convex.

    def log_moment_above(self, s, x):
        moves = self._moves()
        d = jnp.where(moves, self.distance, 1.0)
        first = jnp.min(jnp.where(moves, jnp.asarray(x)[..., None] / d + 0.5 * d, jnp.inf), -1)
        # above z the other components fall behind the farthest
        top, z = jnp.max(self.distance), jnp.clip(first, -1e100, 1e100)
        behind = (self.distance - top) * (z[..., None] - 0.5 * (self.distance + top))
        share = jnp.log(jnp.sum(self.weight * jnp.exp(jnp.minimum(behind, 600.0)), -1))
        sharp = (1 + s) * share + 0.5 * s * (1 + s) * top**2 + log_ndtr((1 + s) * top - z)
        return jnp.minimum(self._log_powers(s, first, 1.0), sharp)

    def log_moment_below(self, s, x):
        moves = self._moves()
        d = jnp.where(moves, self.distance, 1.0)
        last = jnp.max(jnp.where(moves, jnp.asarray(x)[..., None] / d + 0.5 * d, -jnp.inf), -1)
        return jnp.minimum(super().log_moment_below(s, x), self._log_powers(s, last, -1.0))

    def _log_powers(self, s, z, side):
        """log E_Q of the mixture of the ratios' powers 1 + s, above z (side 1) or below it."""
        d = self.distance
        far = jnp.clip(z, -1e100, 1e100)
        logs = 0.5 * s * (1 + s) * d**2 + log_ndtr(side * ((1 + s) * d - far[..., None]))
        some = self.weight > 0
        logs = jnp.where(some, logs + jnp.log(jnp.where(some, self.weight, 1.0)), -jnp.inf)
        return jax.scipy.special.logsumexp(logs, -1)


def gaussian_mixture(noise_multiplier: Any, sensitivities: Any, probabilities: Any) -> GaussianMixtureLaw:
    """Of probabilities that are divided by their sum; NaN if one is negative or the sum is off by more than 1e-5."""
    total = jnp.sum(probabilities)
    good = (
        (jnp.abs(total - 1) <= 1e-5)
        & jnp.all(jnp.asarray(probabilities) >= 0)
        & jnp.all(jnp.asarray(sensitivities) >= 0)
    )
    return GaussianMixtureLaw(sensitivities / noise_multiplier, probabilities / total * jnp.where(good, 1.0, jnp.nan))
