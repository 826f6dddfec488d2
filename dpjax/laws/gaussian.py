"""The Gaussian: P = N(mu, 1), Q = N(0, 1), whose loss is N(mu^2 / 2, mu^2) under P."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from dpjax._pytree import node
from dpjax._special import log_ndtr
from dpjax.closed_form import log_delta_gaussian
from dpjax.laws._law import Law, Tails


@node
class GaussianLaw(Law):
    """Attributes: mu, sensitivity over standard deviation, > 0 and finite."""

    mu: Any

    def tails(self, x):
        z, half = x / self.mu, 0.5 * self.mu
        return Tails(*(jnp.exp(log_ndtr(a)) for a in (half - z, -half - z, z - half, z + half)))

    def profile(self, x):
        return jnp.exp(log_delta_gaussian(x, jnp.broadcast_to(self.mu**2, jnp.shape(x))))

    def profile_below(self, x):
        return self.profile(-x)

    def log_moment_above(self, s, x):
        return 0.5 * s * (1 + s) * self.mu**2 + log_ndtr((0.5 + s) * self.mu - x / self.mu)

    def log_moment_below(self, s, x):
        return 0.5 * s * (1 + s) * self.mu**2 + log_ndtr(x / self.mu - (0.5 + s) * self.mu)
