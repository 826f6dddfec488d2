"""Gaussians at random distances: P = sum_i p_i N(d_i, 1), Q = N(0, 1), d_i >= 0.

The loss log sum_i p_i exp(t_i), t_i = d_i z - d_i^2 / 2, increases with z. Where it is x, exp(x) = sum_i p_i exp(t_i) turns both
profiles into sums of those of single Gaussians,

    E_P (1 - exp(x - L))_+ = sum_i p_i delta_G(t_i; d_i),    E_Q (1 - exp(L - x))_+ = sum_i p_i exp(t_i - x) delta_G(-t_i; d_i).
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax

from dpjax._pytree import node
from dpjax._special import log1p, log_ndtr
from dpjax.closed_form import log_delta_gaussian
from dpjax.laws._law import Law, Tails

_NEWTON = 40  # a step divides by e what a component with a larger distance has too much: enough for distances in e^30


@node
class GaussianMixtureLaw(Law):
    """Attributes: distance, the d_i, >= 0 and finite; weight, the p_i, which sum to 1; both (components,)."""

    distance: Any
    weight: Any

    def _moves(self):
        return (self.distance > 0) & (self.weight > 0)

    def _threshold(self, x):
        """z where the loss is x; whether all losses are above x; whether none is, of a pair with P = Q."""
        moves = self._moves()
        d, weight = jnp.where(moves, self.distance, 1.0), jnp.where(moves, self.weight, 1.0)
        moving = jnp.sum(jnp.where(moves, weight, 0.0))
        share = jnp.expm1(jnp.minimum(x, 1.0)) + moving  # of the components that move in exp(x)
        all_, none = (share < 0) | ((share == 0) & (moving > 0)), (moving == 0) & (share >= 0)
        there = ~(all_ | none)
        large = there & (x > 1.0)
        level = jnp.log(jnp.where(there & ~large, share, 1.0))
        level = jnp.where(large, x + log1p((moving - 1) * jnp.exp(-jnp.where(large, x, 1.0))), level)
        offset = jnp.log(weight) - 0.5 * d * d

        def newton(z, level, d, offset):
            terms = jnp.where(moves, d * z[..., None] + offset, -jnp.inf)
            top = lax.stop_gradient(jnp.max(terms, -1, keepdims=True))
            each = jnp.where(moves, jnp.exp(terms - jnp.where(there[..., None], top, 0.0)), 0.0)
            total = jnp.where(there, jnp.sum(each, -1), 1.0)
            slope = jnp.where(there, jnp.sum(d * each, -1) / total, 1.0)
            return z - jnp.where(there, (top[..., 0] + jnp.log(total)) - level, 0.0) / slope

        fixed = lax.stop_gradient((level, d, offset))
        start = jnp.min(jnp.where(moves, (fixed[0][..., None] - fixed[2]) / fixed[1], jnp.inf), -1)
        start = lax.stop_gradient(jnp.where(there, start, 0.0))
        z = lax.stop_gradient(lax.fori_loop(0, _NEWTON, lambda _, z: newton(z, *fixed), start))
        for _ in range(2):  # carries the first and second derivatives
            z = newton(z, level, d, offset)
        return z, all_, none

    def tails(self, x):
        x = x + 0.0 * jnp.sum(self.weight)  # NaN weights
        z, all_, none = self._threshold(x)
        mix = lambda sign: jnp.sum(self.weight * jnp.exp(log_ndtr(sign * (self.distance - z[..., None]))), -1)
        pick = lambda value, low, high: jnp.where(all_, low, jnp.where(none, high, value))
        return Tails(
            pick(mix(1.0), 1.0, 0.0),
            pick(jnp.exp(log_ndtr(-z)), 1.0, 0.0),
            pick(mix(-1.0), 0.0, 1.0),
            pick(jnp.exp(log_ndtr(z)), 0.0, 1.0),
        )

    def support(self):
        moving = jnp.sum(jnp.where(self._moves(), self.weight, 0.0))
        still = moving < 1
        low = jnp.where(still, log1p(-jnp.where(still, moving, 0.0)), -jnp.inf)
        return low, jnp.where(moving > 0, jnp.inf, 0.0)

    def _components(self, x):
        """(t_i, p_i where the component moves, all_, none); the last axis is that of the components."""
        z, all_, none = self._threshold(x)
        moves = self._moves()
        d = jnp.where(moves, self.distance, 1.0)
        return d * (z[..., None] - 0.5 * d), d * d, jnp.where(moves, self.weight, 0.0), all_, none

    def profile(self, x):
        x = x + 0.0 * jnp.sum(self.weight)
        t, variance, weight, all_, none = self._components(x)
        value = jnp.sum(weight * jnp.exp(log_delta_gaussian(t, jnp.broadcast_to(variance, t.shape))), -1)
        return jnp.where(all_, -jnp.expm1(jnp.where(all_, x, 0.0)), jnp.where(none, 0.0, value))

    def profile_below(self, x):
        x = x + 0.0 * jnp.sum(self.weight)
        t, variance, weight, all_, none = self._components(x)
        log_delta = log_delta_gaussian(-t, jnp.broadcast_to(variance, t.shape))
        away = jnp.where(all_ | none, 0.0, x)
        value = jnp.sum(weight * jnp.exp((t - away[..., None]) + log_delta), -1)
        return jnp.where(all_, 0.0, jnp.where(none, -jnp.expm1(jnp.where(none, -x, 0.0)), value))


def gaussian_mixture(noise_multiplier: Any, sensitivities: Any, probabilities: Any) -> GaussianMixtureLaw:
    """Of probabilities that are divided by their sum; NaN if one is negative or the sum is off by more than 1e-5."""
    total = jnp.sum(probabilities)
    good = (jnp.abs(total - 1) <= 1e-5) & jnp.all(jnp.asarray(probabilities) >= 0) & jnp.all(jnp.asarray(sensitivities) >= 0)
    return GaussianMixtureLaw(sensitivities / noise_multiplier, probabilities / total * jnp.where(good, 1.0, jnp.nan))
