"""Laws of the worst mechanisms that have a guarantee: pure and approximate DP, bounded range."""

from __future__ import annotations

import functools
from typing import Any

import jax.numpy as jnp
import numpy as np

from dpjax import _validate
from dpjax._precision import concrete
from dpjax._pytree import node
from dpjax.laws._law import Law, Tails
from dpjax.laws.finite import FiniteLaw
from dpjax.laws.from_profile import connect_the_dots

_ULP = float(np.finfo(np.float64).eps)


def approximate_law(epsilon: Any, delta: Any = 0.0) -> FiniteLaw:
    """Randomised response that fails with probability delta (Kairouz, Oh, Viswanath, arXiv 1311.0776)."""
    epsilon = jnp.asarray(epsilon, float)
    loss = jnp.stack([-epsilon, epsilon])
    share = lambda x: jnp.exp(jnp.minimum(x, 0.0)) / (1 + jnp.exp(-jnp.abs(x)))  # 1 / (1 + e^-x)
    delta = jnp.asarray(delta, float)  # 1 - kept would lose it
    kept = 1 - delta
    return FiniteLaw(loss, kept * share(loss), kept * share(-loss), delta, delta, epsilon)


def two_point_law(epsilon: Any, t: Any) -> FiniteLaw:
    """RR_{epsilon,t} of arXiv 1909.13830, Definition 2.4: losses t - epsilon and t."""
    epsilon, t = jnp.asarray(epsilon, float), jnp.asarray(t, float)
    some = epsilon > 0
    whole = -jnp.expm1(-jnp.where(some, epsilon, 1.0))
    part = lambda x: jnp.where(some, -jnp.expm1(-x) / whole, 0.5)
    high, low = part(epsilon - t), part(t)
    p = jnp.stack([jnp.exp(t - epsilon) * low, high])
    q = jnp.stack([low, jnp.exp(-t) * high])
    return FiniteLaw(jnp.stack([t - epsilon, t]), p, q, 0.0, 0.0, jnp.where(2 * t == epsilon, t, 0.0))


@node
class BoundedRangeLaw(Law):
    """One epsilon-bounded-range mechanism: the supremum of the profiles of RR_{epsilon,t} over t.

    At x the largest is t = (x + epsilon) / 2, delta = (1 - e^((x - epsilon)/2))^2 / (1 - e^-epsilon). The pair of this
    profile has a loss of density e^((x - epsilon)/2) / (2 (1 - e^-epsilon)) on [-epsilon, epsilon]; it is its own reverse.

    Attributes: epsilon, >= 0.
    """

    epsilon: Any

    def _part(self, x):
        some = self.epsilon > 0
        return -jnp.expm1(-jnp.where(some, x, 0.0)) / -jnp.expm1(-jnp.where(some, self.epsilon, 1.0))

    def tails(self, x):
        inside = jnp.clip(x, -self.epsilon, self.epsilon)
        up, down = 0.5 * (self.epsilon - inside), 0.5 * (self.epsilon + inside)
        high, low = self._part(up), self._part(down)
        whole = lambda there, mass: jnp.where(there, 1.0, mass)
        left, right = x < -self.epsilon, x >= self.epsilon
        q_above, p_below = jnp.exp(-down) * high, jnp.exp(-up) * low
        return Tails(whole(left, high), whole(left, q_above), whole(right, p_below), whole(right, low))

    def support(self):
        return -self.epsilon, self.epsilon

    def profile(self, x):
        inside = jnp.clip(x, -self.epsilon, self.epsilon)
        gap = 0.5 * (self.epsilon - inside)
        return jnp.where(x < -self.epsilon, -jnp.expm1(jnp.minimum(x, 0.0)), self._part(gap) * -jnp.expm1(-gap))

    def profile_below(self, x):
        return self.profile(-x)


def bounded_range_law(epsilons: Any, counts: Any = 1, size: int = 128, rtol: float = 0.01) -> FiniteLaw:
    """The law of adaptively composed bounded-range mechanisms, from the certified upper end of their adaptive optimum.

    Whoever chooses the mechanisms may see all outcomes so far, and what is composed with them comes before, between or
    after them. Let L be the loss of the rest, from pairs fixed beforehand, and X that of the bounded-range mechanisms.
    An adversary who sees all of L first can do whatever one who sees it piece by piece can, so that sup E (1 - e^(x - L - X))_+
    over all ways to choose is at most E_L sup E_X (1 - e^((x - L) - X))_+ = E_L D(x - L), D the optimum of the
    bounded-range mechanisms alone at the threshold that L leaves, any real number. This law's profile is at least D at
    every real number, and E_L D(x - L) is what composing it with the rest computes: it dominates every interleaving.

    Args:
      epsilons: the range parameters, >= 0: a number, or a sequence in the order in which they are run. Concrete.
      counts: how often each is run: whole numbers, of the same length or one for all. Concrete.
      size: how many thresholds the optimum is evaluated at.
      rtol: the relative width of the optimum's bracket, as in ``dpjax.bounded_range.delta``.

    Returns:
      A symmetric law with 2 size + 1 atoms, exact up to the bracket at the thresholds, chords between. Kept for the next call.

    Raises:
      ValueError: an argument is out of range, or traced.
    """
    for name, x in (("epsilons", epsilons), ("counts", counts)):
        if _validate.is_traced(x):
            raise ValueError(f"{name} is traced, but the adaptive optimum needs concrete numbers.")
    eps, count = np.broadcast_arrays(np.atleast_1d(np.asarray(epsilons, float)), np.asarray(counts, float))
    if eps.ndim != 1:
        raise ValueError(f"epsilons has shape {eps.shape}, but it must be a number or a sequence.")
    _validate.in_range("epsilons", eps, 0.0, np.inf, high_open=True)
    _validate.in_range("counts", count, 0.0, np.inf, integral=True, high_open=True)
    kept = (eps > 0) & (count > 0)
    return _bounded_range_law(
        tuple(eps[kept].tolist()), tuple(count[kept].astype(int).tolist()), int(size), float(rtol)
    )


@functools.lru_cache(maxsize=64)
def _bounded_range_law(epsilons: tuple, counts: tuple, size: int, rtol: float) -> FiniteLaw:
    from dpjax import bounded_range  # it reads records, which have laws

    if not epsilons:
        zero, one = np.zeros(1), np.ones(1)
        return FiniteLaw(zero, one, one, 0.0, 0.0)
    each = np.repeat(epsilons, counts)
    edge = float(np.sum(each)) * (1 + len(each) * _ULP)
    body = min(edge, float(np.sum(each**2) / 8 + 8 * np.sqrt(np.sum(each**2) / 4)))
    half = size // 2
    x = np.concatenate([np.linspace(0.0, body, size - half, endpoint=False), np.linspace(0.0, edge, half + 1)[1:]])
    mechanisms: dict = {"epsilons": each}
    if len(set(epsilons)) == 1:
        mechanisms = {"epsilons": epsilons[0], "count": len(each)}
    with np.errstate(under="ignore"):
        log_delta = np.asarray(bounded_range.log_delta_bounds(x, rtol=rtol, **mechanisms).upper, np.float64)
    log_delta = np.where(x >= edge, -np.inf, np.minimum(log_delta, 0.0))
    delta = np.exp(log_delta) * (1 + 4 * _ULP * (1 + np.abs(np.maximum(log_delta, -800.0))))
    reverse = delta * np.exp(-x) - np.expm1(-x)
    both = lambda a, b: np.concatenate([a, b])
    return concrete(_dots, None, both(x, -x), both(delta, reverse), both(reverse, delta))


def _dots(_: None, x, above, below):
    return connect_the_dots(x, above, below)
