"""Tilted transforms of laws on a grid, and what composing them gives: delta at every grid point, with certified errors.

With M(z) = sum_j w_j exp(z e_j), z = s + it, and k-fold composition, the hockey-stick kernel of the grid gives

    sum_J delta(J h) exp(z J h) = M(z)^k kappa(z),   kappa(z) = 1 / (exp(z h) - 1) - 1 / (exp((z + 1) h) - 1),

so that an inverse transform of length N returns exp(s e_J) delta(e_J) plus aliases exp(s (e_J + m L)) delta(e_J + m L),
m != 0, L = N h, all of them >= 0: an upper bound as it stands, and a lower one after the aliases are subtracted.

Rounding. A tail that is wrong by E_j moves M(z) by at most |1 - exp(-z h)| exp(s e_j) times a small factor, since tails enter
as differences (summation by parts); that cancels the pole of kappa, so that the error of delta is of the order of
k ulps times |M|^(k - 1), not of ulps / h.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dpjax.lattice.cells import UNIT, Cells, cells, optimistic, pessimistic, points

_FFT = 8.0  # ulps of the largest coefficient for each doubling of the length
_STEP = 8.0  # ulps for each factor of a product


class Grid(NamedTuple):
    """Where one composition is worked out; scalars unless said otherwise.

    Attributes:
      tilt: s.
      far_tilt: a larger tilt, for the aliases from above.
      spacing: h.
      low: (terms,), the first grid points of the single laws, in whole spacings.
      slack: nats by which a step of the optimistic law may be too low in its condition.
    """

    tilt: jax.Array
    far_tilt: jax.Array
    spacing: jax.Array
    low: jax.Array
    slack: jax.Array


class End(NamedTuple):
    """The composed law of one end (pessimistic or optimistic).

    Attributes:
      log_modulus, phase: (N // 2 + 1,), of the product of the transforms, each divided by M(s), centred.
      log_m: log of the product of M(s)^k.
      log_far: the same at the far tilt.
      shift: by how many spacings the phases were centred, modulo N.
      log_bound: (N // 2 + 1,), log of the product of bounds on the moduli, rounding included.
      relative: (N // 2 + 1,), a bound on the relative error of the product.
      log_finite: log of the probability that no loss is infinite.
      infinite_error: how wrong that probability may be; what a window cuts off comes with its own bound.
    """

    log_modulus: Any
    phase: Any
    log_m: Any
    log_far: Any
    shift: Any
    log_bound: Any
    relative: Any
    log_finite: Any
    infinite_error: Any


def _nodes(grid: Grid, n: int) -> Any:
    """t of the half spectrum; the transform's sign makes it z = s - it."""
    return 2 * np.pi * np.arange(n // 2 + 1) / n / grid.spacing


def _log_modulus_of_expm1(real: Any, imaginary: Any) -> jax.Array:
    """log |exp(real + i imaginary) - 1|."""
    half = jnp.sin(0.5 * imaginary)
    return 0.5 * jnp.log(jnp.expm1(real) ** 2 + 4 * jnp.exp(real) * half**2 + 1e-300)


def _kernel(grid: Grid, n: int) -> tuple[jax.Array, jax.Array]:
    """kappa(s - it) as real and imaginary part."""
    h = grid.spacing
    angle = 2 * np.pi * np.arange(n // 2 + 1) / n
    half, c, s = jnp.sin(0.5 * angle), jnp.cos(angle), jnp.sin(angle)

    def inverse(real):
        """1 / (1 - exp(-(real - i angle)))."""
        shrunk = jnp.exp(-real)
        re, im = -jnp.expm1(-real) + 2 * shrunk * half**2, -shrunk * s
        size = re**2 + im**2
        return re / size, -im / size

    # as a product: the difference of the two would cancel where |z| is large
    near, far = inverse(grid.tilt * h), inverse((1 + grid.tilt) * h)
    product = near[0] * far[0] - near[1] * far[1], near[0] * far[1] + near[1] * far[0]
    size = -jnp.expm1(-h) * jnp.exp(-grid.tilt * h)
    return size * (product[0] * c - product[1] * s), size * (product[0] * s + product[1] * c)


def _sum_log(masses: jax.Array, at: jax.Array, s: Any) -> jax.Array:
    """log sum_j w_j exp(s e_j); masses that rounding made negative are left out."""
    masses = jnp.maximum(masses, 0.0)
    peak = lax.stop_gradient(jnp.max(jnp.where(masses > 0, jnp.log(jnp.maximum(masses, 1e-300)) + s * at, -1e300)))
    return peak + jnp.log(jnp.maximum(jnp.sum(masses * jnp.exp(jnp.minimum(s * at - peak, 700.0))), 1e-300))


def _transform(masses, infinite, c: Cells, at, low, count, grid: Grid, n: int, kappa: Any) -> End:
    """One term's share in an ``End``.

    ``kappa``: from a tilt and angles, log moduli of the two factors that summation by parts brings in.
    """
    log_m = _sum_log(masses, at, grid.tilt)
    # log_m is a normaliser only: what it is multiplied with is scaled by the same number
    weights = masses * jnp.exp(jnp.minimum(grid.tilt * at - log_m, 700.0))  # where there is no mass it may overflow
    places = np.arange(n)
    positive = lax.stop_gradient(jnp.maximum(weights, 0.0))
    some = jnp.sum(positive) > 0  # a law whose whole mass is infinite, or below the window, has none
    centre = jnp.where(some, jnp.round(jnp.sum(positive * places) / jnp.where(some, jnp.sum(positive), 1.0)), 0.0)
    found = jnp.fft.rfft(weights)
    turn = 2 * np.pi / n * jnp.mod(np.arange(n // 2 + 1) * jnp.mod(centre, n), n)
    c_turn, s_turn = jnp.cos(turn), jnp.sin(turn)
    re = found.real * c_turn - found.imag * s_turn
    im = found.imag * c_turn + found.real * s_turn
    square = re**2 + im**2
    gone = square < 1e-280
    safe = jnp.where(gone, 1e-280, square)
    log_modulus = 0.5 * jnp.log(safe)
    angle = jnp.arctan2(jnp.where(gone, 0.0, im), jnp.where(gone, 1.0, re))
    phase = angle + lax.stop_gradient(_unwrapped(angle) - angle)
    # rounding: of the transform, and of the tails by parts
    weight = lax.stop_gradient(jnp.exp(jnp.minimum(grid.tilt * at - log_m, 690.0)))
    p_factor, q_factor = map(jnp.exp, kappa(grid.tilt, _nodes(grid, n) * grid.spacing))
    tails = p_factor * jnp.sum(c.p_error * weight) + q_factor * jnp.sum(c.q_error * weight)
    error = lax.stop_gradient(tails + _FFT * UNIT * np.log2(n))
    bound = jnp.sqrt(lax.stop_gradient(safe)) + error
    p_factor, q_factor = map(jnp.exp, kappa(grid.far_tilt, 0.0))
    lost = _sum_log(c.p_error * p_factor + c.q_error * q_factor, at, grid.far_tilt)
    far = jnp.logaddexp(_sum_log(masses, at, grid.far_tilt), lost) + 1e-12 * (1 + grid.far_tilt)
    return End(
        count * log_modulus, count * phase, count * log_m, count * far, count * (low + centre),
        count * jnp.log(bound), count * (error / bound + _STEP * UNIT),
        jnp.where(count > 0, count * jnp.log1p(-jnp.minimum(infinite, 1.0)), 0.0),
        jnp.where(lax.stop_gradient(c.p_infinite) > 0, 2 * UNIT * count, 0.0),
    )  # fmt: skip


def _unwrapped(angle: jax.Array) -> jax.Array:
    """The angle made continuous: which branch is taken matters to counts that are not whole, and to derivatives by a count."""
    turns = jnp.round((angle[1:] - angle[:-1]) / (2 * np.pi))
    return angle - 2 * np.pi * jnp.concatenate([jnp.zeros(1, angle.dtype), jnp.cumsum(turns)])


def _term(c: Cells, count: Any, low: Any, grid: Grid, n: int) -> tuple[End, End]:
    h = grid.spacing
    at, _ = points(low, h, n)
    log_step = lambda tilt, angle: _log_modulus_of_expm1(-tilt * h, angle)  # |1 - exp(-z h)|

    def dots(tilt, angle):
        log_up = _log_modulus_of_expm1(tilt * h, angle) - jnp.log(-jnp.expm1(-h))
        return jnp.log1p(jnp.exp(log_up)) + log_step(tilt, angle), log_up + log_step(1 + tilt, angle)

    def shares(tilt, angle):
        # neighbouring cells share their points: two steps at most
        both = np.log(2.0) + log_step(tilt, angle) + tilt * h
        return both, jnp.full_like(both, -1e300)

    masses, infinite = pessimistic(c, h)
    high = _transform(masses, infinite, c, at, low, count, grid, n, dots)
    c = jax.tree.map(lax.stop_gradient, c)  # the derivative of an answer is that of the pessimistic law
    masses, infinite = optimistic(c, grid.slack)
    return high, _transform(masses, infinite, c, at, low, count, grid, n, shares)


def compose(stacked: Cells, counts: jax.Array, grid: Grid, n: int) -> tuple[End, End]:
    """The composed laws, pessimistic and optimistic.

    Args:
      stacked: cells of the single laws, stacked along a first axis of terms.
      counts: (terms,).
      grid: the grid.
      n: length of the transform and number of points of a single law, a power of 2.
    """
    each = jax.vmap(lambda c, count, low: _term(c, count, low, grid, n))(stacked, counts, grid.low)
    return jax.tree.map(lambda a: jnp.sum(a, 0), each)


def compose_laws(laws: tuple, counts: jax.Array, grid: Grid, n: int) -> tuple[End, End]:
    """The same from groups of laws, their fields stacked along a first axis of terms: one after the other, for many."""
    one = lambda law, count, low: _term(cells(law, low, grid.spacing, n), count, low, grid, n)
    total, start = None, 0
    for law in laws:
        stop = start + jax.tree.leaves(law)[0].shape[0]
        terms = law, counts[start:stop], grid.low[start:stop]
        first = jax.eval_shape(one, *jax.tree.map(lambda a: a[0], terms))
        zero = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), first)
        step = jax.checkpoint(lambda sums, term: (jax.tree.map(jnp.add, sums, one(*term)), None))
        found, _ = lax.scan(step, zero, terms)
        total, start = found if total is None else jax.tree.map(jnp.add, total, found), stop
    assert total is not None
    return total


def tilted_deltas(end: End, grid: Grid, n: int) -> tuple[jax.Array, jax.Array]:
    """((n,) values A_J, error) with exp(s e_J) delta(e_J) + aliases = exp(log_m) (A_J +- error), J modulo n."""
    re, im = _kernel(grid, n)
    frequencies = np.arange(n // 2 + 1)
    shift = jnp.mod(end.shift, n)
    angle = end.phase - 2 * np.pi / n * jnp.mod(frequencies * shift, n)
    size = jnp.exp(end.log_modulus)
    c, s = size * jnp.cos(angle), size * jnp.sin(angle)
    values = jnp.fft.irfft(lax.complex(c * re - s * im, c * im + s * re), n)
    kernel = jnp.hypot(re, im)
    double = np.where((frequencies == 0) | (2 * frequencies == n), 1.0, 2.0)
    bound = jnp.exp(jnp.minimum(end.log_bound, 690.0)) * kernel
    error = (
        jnp.sum(
            double * bound * (end.relative + _FFT * UNIT * np.log2(n) + 16 * UNIT + 2 * UNIT * grid.tilt * grid.spacing)
        )
        / n
    )
    return values, lax.stop_gradient(error)
