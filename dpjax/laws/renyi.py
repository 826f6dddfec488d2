r"""Laws of mechanisms known by Renyi divergences: the profile that a Renyi curve leaves possible.

For one order the profile is :math:`\sup P(S) - e^\varepsilon Q(S)` over all pairs whose divergence of that order is at
most rho. By duality it is the least over :math:`\lambda, \mu` of an expression that bounds it for *every* value of them, so
that a multiplier found by an approximate search is certified. With several orders it is the supremum over the pairs that
meet all of them. On tests (P(S), Q(S)) = (1 - y, x), the divergences of each order leave a convex set, whose boundary is the
trade-off function f_alpha of arXiv 2106.08567, Appendix F; all orders leave the intersection, f = sup f_alpha. The support
function of an intersection of convex sets is the convex envelope of the least of theirs: the profile of all orders is the
envelope of the least profile of single ones.

Both directions are bounded: :math:`D_\alpha(P\|Q)` and :math:`D_\alpha(Q\|P)`. With T = dP/dQ each is a bound on E_Q T^kappa,
kappa = alpha or 1 - alpha.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dpjax._special import expm1_minus
from dpjax.laws.finite import FiniteLaw
from dpjax.laws.from_profile import connect_the_dots

_ULP = float(np.finfo(np.float64).eps)
_FAR = 150.0  # no profile rises to the left: what holds here holds beyond, and the fourth power of e^150 is finite
# -log delta at the nodes. Between them delta is a chord in e^epsilon; measured for rho-zCDP, rho from 1e-8 to 100: at most
# 0.4% above at delta = 1e-5, 19% at 1e-30, which is 0.015 of an epsilon of 12.
_LEVELS = np.concatenate([np.arange(0.05, 40, 0.1), np.arange(40, 120, 1.0), np.arange(120, 700, 5.0)])


def _log_mean(y: jax.Array) -> jax.Array:
    """log((1 - e^-y) / y) for y >= 0."""
    some = y > 0
    y = jnp.where(some, y, 1.0)
    return jnp.where(some, jnp.log(-jnp.expm1(-y)) - jnp.log(y), 0.0)


def _over(c: jax.Array, f, limit: Any) -> jax.Array:
    """f(c) / c, and its limit at 0."""
    some = c != 0
    c = jnp.where(some, c, 1.0)
    return jnp.where(some, f(c) / c, limit)


def _ends(kappa, w, x):
    """(log v, log u): the stationary values of T on either side of e^x that are w apart in the logarithm."""
    beta = kappa - 1
    part = lambda c: jnp.maximum(c, 0.0) * w + _log_mean(jnp.abs(c) * w)
    low = x + part(beta) - part(kappa)
    return low, low + w


def _too_far(reverse: bool, order, divergence, x, w):
    """Whether the pair that is stationary at w has a larger divergence than allowed; it grows with w."""
    kappa = 1 - order if reverse else order
    low, high = _ends(kappa, w, x)
    straddles = (low < 0) & (high > 0)
    low, high = jnp.where(straddles, low, -1.0), jnp.where(straddles, jnp.minimum(high, 700.0), 1.0)
    log_q = jnp.log(-jnp.expm1(low)) - high - jnp.log(-jnp.expm1(low - high))  # Q(T = u), by E_Q T = 1
    q = jnp.exp(log_q)
    # (T^kappa - 1 - kappa (T - 1)) / (kappa (kappa - 1)) >= 0, its limits at kappa = 0 and 1 included
    convex = lambda t: jnp.where(
        kappa == 1,
        jnp.where(t < -1, t * jnp.exp(t) - jnp.expm1(t), jnp.exp(t) * expm1_minus(-jnp.maximum(t, -1.0))),
        (_over(kappa, lambda k: expm1_minus(k * t), 0.0) - expm1_minus(t)) / jnp.where(kappa == 1, 1.0, kappa - 1),
    )
    excess = order - 1
    near = q * convex(high) + (1 - q) * convex(low)
    near -= _over(excess, lambda c: jnp.expm1(c * divergence), divergence) / order
    far = jnp.logaddexp(log_q + kappa * high, jnp.log1p(-q) + kappa * low) - excess * divergence
    small = (jnp.abs(excess * divergence) < 1) & (jnp.abs(kappa) * jnp.maximum(high, -low) < 30)
    return straddles & (jnp.where(small | (order == 1), near, jnp.where(excess < 0, -far, far)) > 0)


def _dual(reverse: bool, order, divergence, x, w):
    """The dual bound on delta at the multipliers that w stands for, rounded up: valid for every w > 0."""
    kappa = 1 - order if reverse else order
    t, _ = _ends(kappa, w, x)
    excess = order - 1
    if reverse:
        exponent = excess * (divergence + t)
        large = exponent > 30  # far from the least bound; infinite here
        s = jnp.where(large, 0.0, divergence + t)
        terms = (
            jnp.where(large, jnp.inf, divergence),
            -expm1_minus(jnp.where(large, -1.0, t)),
            jnp.expm1(jnp.where(large, -1.0, t)) * _over(excess, lambda c: jnp.expm1(c * s), s),
            _over(excess, lambda c: expm1_minus(c * s), 0.0),
        )
        scale = 1 / (order * w * jnp.exp(_log_mean(order * w)))
    else:
        lift = jnp.maximum(excess, 0.0) * w
        exponent = excess * (divergence - t)
        large = exponent > 1
        held = jnp.where(large, 1.0, exponent)
        gap = jnp.where(excess == 0, 1.0, excess)
        near = (divergence, jnp.where(excess == 0, 0.0, expm1_minus(held) / gap), expm1_minus(t))
        top = jnp.exp(jnp.where(large, exponent - lift, 0.0)) / gap
        far = (top, jnp.exp(-lift) * jnp.expm1(t), -jnp.exp(-lift) / gap)
        terms = tuple(jnp.where(large, f, jnp.exp(-lift) * n) for f, n in zip(far, near, strict=True))
        scale = 1 / (order * w * jnp.exp(_log_mean(jnp.abs(excess) * w)))
    total, size = sum(terms), sum(map(jnp.abs, terms))
    digits = 16 + 4 * jnp.abs(excess) * (divergence + jnp.abs(t) + w)
    return jnp.maximum(total + lax.stop_gradient(_ULP * digits * size), 0.0) * scale


def _multiplier(reverse: bool, order, divergence, x):
    """The w at which ``_dual`` is least, to about 1e-12: an error e of it costs the order of e^2."""

    def halve(_, ends):
        low, high = ends
        middle = 0.5 * (low + high)
        far = _too_far(reverse, order, divergence, x, jnp.exp(middle))
        return jnp.where(far, low, middle), jnp.where(far, middle, high)

    low = jnp.full(jnp.broadcast_shapes(*map(jnp.shape, (order, divergence, x))), -50.0)
    high = (x if reverse else 0.0) + 16.0  # at order 1, reversed, w is near e^x
    return jnp.exp(lax.fori_loop(0, 50, halve, (low, jnp.broadcast_to(high, low.shape)))[1])


def _moving(reverse: bool, w, held, moving):
    """w plus a Newton step that is zero in value: multipliers move with the arguments, as second derivatives need."""
    place, one = jnp.log(w), jnp.ones_like(w)
    log_dual = lambda place, args: jnp.log(jnp.maximum(_dual(reverse, *args, w=jnp.exp(place)), 1e-90))
    slope = lambda place, args: jax.jvp(lambda at: log_dual(at, args), (place,), (one,))[1]
    bend = lax.stop_gradient(jax.jvp(lambda at: slope(at, held), (place,), (one,))[1])
    moves = jnp.isfinite(bend) & (bend > 0)
    rise = slope(place, moving)
    return jnp.exp(place - jnp.where(moves, rise - lax.stop_gradient(rise), 0.0) / jnp.where(moves, bend, 1.0))


def _one_way(reverse: bool, order, divergence, x, differentiable: bool = True):
    x = jnp.minimum(x, _FAR) if reverse else x
    moving = order, divergence, x
    held = lax.stop_gradient(moving)
    steep = order > 1
    edge = jnp.where(steep, jnp.log(jnp.where(steep, order - 1, 1.0)) - jnp.log(order), 0.0)
    if reverse:  # all that is left at infinity
        limit, there = -jnp.expm1(-divergence), steep & (x >= -divergence - edge)
    else:  # all of P above
        limit, there = -jnp.expm1(jnp.minimum(x - divergence, 0.0)), steep & (x <= divergence + edge)
    w = jnp.where(there, 1.0, _multiplier(reverse, *held))
    value = _dual(reverse, *moving, _moving(reverse, w, held, moving) if differentiable else w)
    value = jnp.where(value < 1, value, 1.0)
    return jnp.where(there, limit * (1 + 4 * _ULP), value)


def renyi_delta(order: jax.Array, divergence: jax.Array, x: jax.Array, differentiable: bool = True) -> jax.Array:
    """The largest delta(x) of a pair with D_order(P || Q) and D_order(Q || P) at most ``divergence``, by each alone.

    Args:
      order: >= 1/2 and finite.
      divergence: >= 0; infinite where nothing is known.
      x: >= 0 and finite.
      differentiable: with False the derivatives are wrong, and half of the work is saved.

    Returns:
      Never below the least of the two suprema, above by roundings only; of the arguments' broadcast shape.
    """
    known = divergence < jnp.inf
    safe = jnp.where(known, divergence, 1.0)
    least = jnp.minimum(*(_one_way(reverse, order, safe, x, differentiable) for reverse in (False, True)))
    return jnp.where(known, least, 1.0)


def _nodes(order: jax.Array, divergence: jax.Array) -> jax.Array:
    """Where to connect the dots, from the simple bound at each level; positions decide tightness only."""
    order, divergence = lax.stop_gradient((order[:, None], divergence[:, None]))
    excess = jnp.where(order > 1, order - 1, 1.0)
    bound = divergence + jnp.log1p(-1 / jnp.where(order > 1, order, 2.0)) + (_LEVELS - jnp.log1p(excess)) / excess
    bound = jnp.min(jnp.where(order > 1, bound, jnp.inf), 0)
    bound = jnp.where(jnp.isfinite(bound), jnp.maximum(bound, 0.0), 0.0)
    body = jnp.maximum(bound[40], 1e-3)
    return jnp.concatenate([jnp.linspace(0.0, 1.0, 128) * body, bound, jnp.logspace(-3.0, 4.0, 64)])


def _law(x: jax.Array, delta: jax.Array) -> FiniteLaw:
    """Both directions obey the same bounds, so that each point is two."""
    other = delta * jnp.exp(-x) - jnp.expm1(-x)
    both = lambda a, b: jnp.concatenate([a, b])
    return connect_the_dots(both(x, -x), both(delta, other), both(other, delta))


def renyi_law(orders: jax.Array, divergences: jax.Array, nodes: jax.Array | None = None) -> FiniteLaw:
    """The law of the profile that bounds on Renyi divergences of ``orders`` imply, in both directions.

    Args:
      orders, divergences: (orders,), as in ``renyi_delta``.
      nodes: (nodes,), >= 0, where to be exact besides.

    Returns:
      A symmetric law. At the nodes it is exact up to roundings, between them it is the chord in e^epsilon: above.
    """
    orders, divergences = jnp.broadcast_arrays(orders, divergences)
    x = _nodes(orders, divergences)
    x = x if nodes is None else jnp.concatenate([x, lax.stop_gradient(nodes)])
    return _law(x, jnp.min(renyi_delta(orders[:, None], divergences[:, None], x), 0))


def zcdp_law(rho: jax.Array, delta: Any = 0.0, nodes: jax.Array | None = None) -> FiniteLaw:
    r"""The law of delta-approximate rho-zCDP: D_alpha <= alpha rho for all alpha > 1, with probability 1 - delta.

    The limit alpha = 1 follows. :math:`D_lpha \le \alpha\rho` for alpha < 1 does not: randomised response with epsilon 1 is
    tanh(1/2)-zCDP, yet its divergence of order 1/2 is 0.2402 > 0.2311. What does follow there, D_alpha <= D_1 <= rho, the
    bound on D_1 implies already. The order is optimised at each node.
    """
    fixed = lax.stop_gradient(rho)
    grid = jnp.linspace(-1.0, 1.0, 17)
    # log(order - 1) from 1e-3 to what the smallest delta asks for
    ends = jnp.log(1e-3), jnp.log(4 + 4 * jnp.sqrt(700 / jnp.maximum(fixed, 1e-30)))
    centre, width = 0.5 * (ends[0] + ends[1]), 0.5 * (ends[1] - ends[0])
    coarse = 1 + jnp.exp(centre + width * grid)
    x = _nodes(coarse, fixed * coarse)
    x = x if nodes is None else jnp.concatenate([x, lax.stop_gradient(nodes)])

    def refine(i, best):
        order = 1 + jnp.exp(best + width * 0.2**i * grid[:, None])
        found = jnp.argmin(renyi_delta(order, fixed * order, x, False), 0)
        return best + width * 0.2**i * grid[found]

    order = 1 + jnp.exp(lax.fori_loop(0, 5, refine, jnp.full_like(x, centre)))
    order = jnp.stack([order, jnp.ones_like(order)])
    found = jnp.min(renyi_delta(order, rho * order, x), 0)
    good = _law(x, found)
    kept = 1 - delta
    top, bottom = (delta + kept * mass for mass in (good.p_top, good.q_bottom))
    return FiniteLaw(good.loss, kept * good.p, kept * good.q, top, bottom)
