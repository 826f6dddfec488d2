r"""Laws made from privacy profiles: the tightest pair that points, a curve or two laws leave possible.

As a function of :math:`\alpha = e^\varepsilon` a profile is convex and non-increasing, 1 at 0 and at least
:math:`(1 - \alpha)_+`; every such function is the profile of a pair (arXiv 2106.08567, Proposition 8). The largest one
through points is their lower convex envelope, with (0, 1) among the points and flat beyond the last: a finite pair, whose
losses are the logarithms of the kinks.

A point is held twice: ``above``, the profile delta at x, and ``below``, the profile of the reversed pair at -x, each
precise where it is small; above = 1 - e^x + e^x below.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dpjax.laws._law import Law
from dpjax.laws.finite import FiniteLaw

_ULP = float(np.finfo(np.float64).eps)


def _masses(x: jax.Array, d: jax.Array) -> jax.Array:
    """P-masses at the kinks of the envelope of the points (x, d): where it bends, what is left of the slope.

    All slopes are taken times alpha at the kink; that of a segment to the left is at most 1 - d, the one to alpha = 0.
    """
    gap = x[:, None] - x
    apart = gap != 0
    distance = jnp.where(apart, jnp.abs(gap), 1.0)
    rise = (d - d[:, None]) / -jnp.expm1(-distance)  # from this point to the other, as if it were to the left
    left = jnp.min(jnp.where(gap > 0, rise, jnp.inf), 1)
    right = jnp.max(jnp.where(gap < 0, -rise * jnp.exp(-distance), 0.0), 1)
    index = jnp.arange(len(x))
    beaten = ~apart & ((d < d[:, None]) | ((d == d[:, None]) & (index < index[:, None])))
    bend = jnp.maximum(jnp.minimum(left, 1 - d) - right, 0.0)
    return jnp.where(jnp.any(beaten, 1), 0.0, bend)


def connect_the_dots(x: jax.Array, above: jax.Array, below: jax.Array) -> FiniteLaw:
    """The pair with the largest profile through points, or below them where they are not convex.

    Args:
      x: (points,), real, in any order.
      above: (points,), upper bounds on the profile at x.
      below: (points,), upper bounds on the profile of the reversed pair at -x.

    Returns:
      A law of points + 1 atoms, whose profile is above what the points imply, by a relative error of rounding of at
      most 8 (points + 4) ulp, plus the largest of ``above`` times an ulp over the distance between the two points
      nearest to 0 on either side of it. The cost is quadratic in the number of points.
    """
    above, below = jnp.clip(above, 0.0, 1.0), jnp.clip(below, 0.0, 1.0)
    # The sum of the errors of all kinks, each relative to the tail at the kink, which a tangent keeps below the profile.
    room = 1 + (4 * len(x) + 16) * _ULP
    negative = x < 0
    high, low = jnp.where(negative, x, 0.0), jnp.where(negative, 0.0, x)
    p, q = _masses(x, above), _masses(-x, below)
    p, q = jnp.where(negative, q * jnp.exp(high), p) * room, jnp.where(negative, q, p * jnp.exp(-low)) * room
    top, bottom = jnp.minimum(jnp.min(above) * room, 1.0), jnp.minimum(jnp.min(below) * room, 1.0)
    # Slopes from one side of 0 to the other are taken on both sides, with errors that need not agree: what is missing of
    # the total belongs between the two points.
    rest = jnp.maximum(1 - jnp.minimum(jnp.sum(p) + top, jnp.sum(q) + bottom), 0.0)
    loss = jnp.append(x, 0.0)
    order = jnp.argsort(loss)
    return FiniteLaw(loss[order], jnp.append(p, rest)[order], jnp.append(q, rest)[order], top, bottom)


def _pair_of(x: jax.Array, delta: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(above, below) of the points (x, delta), rounded up."""
    negative = x < 0
    side, far = jnp.where(negative, x, 0.0), jnp.where(negative, 0.0, x)
    gap = jnp.expm1(side)
    # 1 - e^x and delta nearly cancel where delta is near its least value; no profile is below it
    below = (delta + gap + 2 * _ULP * jnp.abs(gap)) * jnp.exp(jnp.minimum(-side, 700.0))
    reach = delta * jnp.exp(-far) - jnp.expm1(-far)
    below = jnp.where(negative, jnp.maximum(below, 0.0), reach)
    return jnp.where(negative, jnp.maximum(delta, -gap), delta), below


def implied_by_points(epsilons: jax.Array, deltas: jax.Array, symmetric: bool = True) -> FiniteLaw:
    """The pair of the largest profile that is at most delta at each epsilon: see ``PrivacyProfile``.

    Args:
      epsilons: (points,), real, in any order. A point below 1 - e^epsilon, which is below every profile, counts as there.
      deltas: (points,), in [0, 1].
      symmetric: whether the points bound the profile of the reversed pair, too. Then delta(-epsilon) <= 1 - e^-epsilon
        + e^-epsilon delta(epsilon), so that each point is two.
    """
    epsilons, deltas = jnp.broadcast_arrays(epsilons, deltas)
    above, below = _pair_of(epsilons, deltas)
    if not symmetric:
        return connect_the_dots(epsilons, above, below)
    both = lambda a, b: jnp.concatenate([a, b])
    return connect_the_dots(both(epsilons, -epsilons), both(above, below), both(below, above))


def _levels(law: Law, other: Law, low: jax.Array, high: jax.Array, size: int) -> jax.Array:
    """Points of [low, high] where the log ratio of above to below, which falls, takes equidistant values."""

    def ratio(x):
        above = jnp.maximum(law.profile(x), other.profile(x))
        below = jnp.maximum(law.profile_below(x), other.profile_below(x))
        floor = 1e-300
        return jnp.log(jnp.maximum(above, floor)) - jnp.log(jnp.maximum(below, floor))

    wanted = jnp.linspace(ratio(low), ratio(high), size)

    def halve(_, ends):
        low, high = ends
        middle = 0.5 * (low + high)
        left = ratio(middle) >= wanted
        return jnp.where(left, middle, low), jnp.where(left, high, middle)

    return lax.fori_loop(0, 40, halve, (jnp.full(size, low), jnp.full(size, high)))[1]


def _reach(profile, infinite, tail: float) -> jax.Array:
    """A loss beyond which ``profile`` exceeds its limit by at most ``tail``, in [0, 1e6]."""

    def halve(_, ends):
        low, high = ends
        middle = 0.5 * (low + high)
        small = profile(jnp.expm1(middle)) - infinite <= tail
        return jnp.where(small, low, middle), jnp.where(small, middle, high)

    return jnp.expm1(lax.fori_loop(0, 40, halve, (jnp.zeros(()), jnp.full((), np.log1p(1e6))))[1])


def maximum(first: Law, second: Law, size: int = 512, tail: float = 1e-30) -> FiniteLaw:
    """A law whose profile is at least those of two laws, everywhere: for neighbours that each win on a part.

    The maximum of two profiles is a profile again; on the grid, it is connected by chords.

    Args:
      first, second: two laws.
      size: of the grid: half of it equidistant, half closer where the profiles change; the losses of finite laws are added.
      tail: what the profile may rise by at either end, where the grid stops: mass at infinity.
    """
    held = lax.stop_gradient((first, second))
    highs = [_reach(law.profile, law.p_infinite(), tail) for law in held]
    lows = [-_reach(lambda x, law=law: law.profile_below(-x), law.q_infinite(), tail) for law in held]
    high, low = jnp.maximum(*highs), jnp.minimum(*lows)
    parts = [jnp.zeros(1), jnp.linspace(low, high, size // 2), _levels(*held, low, high, size - size // 2)]
    parts += [law.loss for law in held if isinstance(law, FiniteLaw)]
    grid = jnp.concatenate(parts)

    def upper(profile, other):
        value = jnp.maximum(profile(grid), other(grid))
        error = Law.ULPS * _ULP * (1 - jnp.log(jnp.maximum(value, 1e-300)))
        return value * (1 + lax.stop_gradient(error))

    above, below = upper(first.profile, second.profile), upper(first.profile_below, second.profile_below)
    return connect_the_dots(grid, above, below)
