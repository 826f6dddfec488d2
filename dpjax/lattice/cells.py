"""A law on a grid: the masses of cells, and the two laws on grid points that enclose it.

Grid points e_j = (low + j) h, j = 0 .. n - 1. Of the mass P_j, Q_j in the cell (e_j, e_(j+1)] three numbers matter: P_j, the
surplus s_j = P_j - exp(e_j) Q_j >= 0 over the lower end and the deficit d_j = exp(e_(j+1)) Q_j - P_j >= 0 under the upper.

- Pessimistic, connect the dots (Doroshenko et al., arXiv 2207.04380): s_j / (1 - exp(-h)) goes to e_(j+1), the rest of P_j
  to e_j. Both masses are kept, so that the cell's profile is replaced by its chord: the least law on the grid that
  dominates. What lies above the grid goes to its top, and its surplus over the top to infinity.
- Optimistic: a share u_j of the cell goes to e_(j+1), the rest to e_j, drawn blindly. Under P, (1 - c W)_+ is convex and
  decreasing in W = exp(-L) for every c > 0, so merging whatever reaches a grid point can only lower a composed profile
  (Jensen), and moving the merged loss log(P / Q) down to the point lowers it again. The condition is that what comes from
  above makes up for what comes from below, u_(j-1) d_(j-1) <= (1 - u_j) s_j. With equality no mean is lost, only
  variance, h^2 / 3 a step. Mass below the grid is dropped, mass above goes to the top.

Neither is exact in floating point: ``Grid.slack`` says by how many nats a step of the optimistic law may miss its condition.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dpjax.laws import Law

UNIT = 2.0**-53
HIGHEST = 650.0  # exp(710) overflows
_DOUBLINGS = 9  # a share looks at 512 cells: on a fine grid what an atom does to shares hardly dies down, and would cost at a mode


class Cells(NamedTuple):
    """What a law puts where.

    Attributes:
      p: (n - 1,), masses of P.
      surplus, deficit: (n - 1,).
      p_bottom, p_top: masses of P at or below e_0 and above the top (finite losses).
      surplus_top: p_top - exp(top) q_top.
      top: (n,), 1 at the top: the last point, or the last below ``HIGHEST``, beyond which all cells are empty.
      p_infinite: mass at infinity.
      p_error, q_error: (n,), how wrong the tails at each grid point may be; the second times exp(e_j).
    """

    p: jax.Array
    surplus: jax.Array
    deficit: jax.Array
    p_bottom: jax.Array
    p_top: jax.Array
    surplus_top: jax.Array
    top: jax.Array
    p_infinite: jax.Array
    p_error: jax.Array
    q_error: jax.Array


def points(low: Any, spacing: Any, n: int) -> tuple[jax.Array, jax.Array]:
    """The ``n`` grid points from ``low * spacing`` on, those above ``HIGHEST`` moved down to the top; the top's place."""
    top = lax.stop_gradient(jnp.clip(jnp.floor(HIGHEST / spacing) - low, 1, n - 1))
    return (low + jnp.minimum(np.arange(n), top)) * spacing, top


def cells(law: Law, low: Any, spacing: Any, n: int) -> Cells:
    """The cells of a grid of ``n`` points that starts at ``low * spacing``."""
    places = np.arange(n)
    at, last = points(low, spacing, n)
    tails = law.tails(at)
    p_infinite = jnp.asarray(law.p_infinite(), at.dtype)
    p, p_error = _differences(tails.p_above, tails.p_below, p_infinite)
    q, q_error = _differences(tails.q_above, tails.q_below, law.q_infinite())
    scale = jnp.exp(at)
    surplus = p - scale[:-1] * q
    deficit = scale[1:] * q - p
    top = tails.p_above[-1] - scale[-1] * tails.q_above[-1]
    return Cells(
        p, surplus, deficit, tails.p_below[0], tails.p_above[-1], top, jnp.where(places == last, 1.0, 0.0), p_infinite,
        jnp.where(places <= last, law.ULPS * p_error, 0.0), jnp.where(places <= last, law.ULPS * scale * q_error, 0.0),
    )  # fmt: skip


def _differences(above: jax.Array, below: jax.Array, infinite: Any) -> tuple[jax.Array, jax.Array]:
    """Masses between neighbours, from the smaller tail, and an ulp of it at each point."""
    upper = above <= below
    signed = jnp.where(upper, above, -below)
    # where the neighbours' tails are of different sides, all finite losses lie between the two numbers; 1 - infinite is no
    # number for their mass where it is small. Where both tails are one half over many points, rounding may turn the sides back
    whole = jnp.where(infinite > 0, above + below, 1.0)
    change = jnp.where(upper[1:] == upper[:-1], 0.0, jnp.where(upper[1:], whole[:-1], -whole[1:]))
    small = jnp.minimum(above, below)
    size = lax.stop_gradient(small)
    ulp = UNIT * size * (1.0 - jnp.log(jnp.maximum(size, 1e-300)))
    # as if all tails from below that point were wrong by that of the whole
    rounded = jnp.where((infinite > 0) & ~upper, UNIT * lax.stop_gradient(whole), 0.0)
    return change + signed[:-1] - signed[1:], ulp + rounded


def pessimistic(c: Cells, spacing: Any) -> tuple[jax.Array, jax.Array]:
    """((n,) masses on the grid, mass at infinity) of a law that dominates; up to rounding, see ``spectrum``."""
    up = c.surplus / -jnp.expm1(-spacing)
    zero = jnp.zeros(1, up.dtype)
    masses = jnp.concatenate([zero, up]) + jnp.concatenate([c.p - up, zero])
    # nothing else makes up for an error here: it is not one of the grid's masses
    error = jnp.sum(c.top * (c.p_error + c.q_error))
    over = jnp.where(c.p_top > 0, jnp.maximum(c.surplus_top + lax.stop_gradient(error), 0.0), 0.0)
    bottom = jnp.concatenate([c.p_bottom[None], jnp.zeros_like(up)])
    return masses + bottom + c.top * (c.p_top - over), c.p_infinite + over


def _without_waste(surplus: jax.Array, deficit: jax.Array, top: jax.Array) -> jax.Array:
    """Shares u with u_(j-1) d_(j-1) = (1 - u_j) s_j, as nearly as may be; not yet within [0, 1].

    A recursion, stable upwards where the density rises and downwards where it falls: both, each from the middle share where
    the other is stable. Where they meet, at a mode, each is close to 1/2.
    """
    above = jnp.concatenate([surplus[1:], top[None]])
    guess = surplus / jnp.maximum(surplus + deficit, 1e-300)
    below = jnp.concatenate([jnp.zeros(1, deficit.dtype), deficit[:-1]])
    rising = below <= surplus
    safe = jnp.where(surplus > 0, surplus, 1.0)
    from_below = _recursion(jnp.where(rising, 1.0, guess), jnp.where(rising, -below / safe, 0.0), guess)
    falling = above <= deficit
    ratio = jnp.where(falling, above / jnp.where(deficit > 0, deficit, 1.0), 0.0)
    from_above = jnp.flip(_recursion(jnp.flip(jnp.where(falling, ratio, guess)), jnp.flip(-ratio), jnp.flip(guess)))
    return jnp.where(rising, from_below, from_above)


def _recursion(start: jax.Array, factor: jax.Array, guess: jax.Array) -> jax.Array:
    """x_j = start_j + factor_j x_(j-1), by doubling, from ``guess`` 2 ** _DOUBLINGS cells before."""
    n = start.shape[0]

    def shift(a, step):
        return lax.dynamic_slice(jnp.concatenate([jnp.zeros(n, a.dtype), a]), (n - step,), (n,))

    def double(i, state):
        x, f = state
        step = jnp.left_shift(jnp.int32(1), i)
        return x + f * shift(x, step), f * shift(f, step)

    doublings = min(int(n - 1).bit_length(), _DOUBLINGS)
    x, f = lax.fori_loop(0, doublings, double, (start, factor))
    return x + f * shift(guess, min(1 << doublings, n))


def optimistic(c: Cells, slack: Any) -> tuple[jax.Array, jax.Array]:
    """((n,) masses on the grid, mass at infinity) of a law that is dominated, if each loss is lowered by ``slack`` nats."""
    error = 2 * (c.p_error[:-1] + c.p_error[1:] + c.q_error[:-1] + c.q_error[1:])
    deficit = c.deficit + error - slack * c.p
    top = jnp.maximum(c.surplus_top - c.p_error[-1] - c.q_error[-1], 0.0)
    surplus = jnp.concatenate([jnp.maximum(c.surplus - error, 0.0) + slack * c.p, top[None]])

    def needed(share):
        """The largest share that the cell above pays for."""
        kept = (1.0 - jnp.concatenate([share, jnp.zeros(1, share.dtype)])) * surplus
        free = deficit <= 0
        return jnp.where(free, 1.0, jnp.minimum(kept[1:] / jnp.where(free, 1.0, deficit), 1.0))

    share = jnp.clip(_without_waste(jnp.maximum(surplus[:-1], 0.0), jnp.maximum(deficit, 0.0), top), 0.0, 1.0)
    share = jnp.minimum(share, needed(share))  # shares only fell, so every payment only rose
    zero = jnp.zeros(1, share.dtype)
    masses = jnp.concatenate([zero, share * c.p]) + jnp.concatenate([(1.0 - share) * c.p, zero])
    return masses + c.top * c.p_top, c.p_infinite
