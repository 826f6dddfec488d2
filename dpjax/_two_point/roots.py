"""The threshold at which a decreasing function has a given logarithm, certified on both sides, and its derivative."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax import lax

from dpjax._two_point.window import ULP, around


def least_threshold(log_at, log_delta, high, sweeps: int = 80):
    """The bracket (low, high) around the x in [0, high] with log_at(x) = log_delta, log_at decreasing.

    Chandrupatla's method on the logarithm. log_at(high) <= log_delta is taken for granted; low = high = 0 if
    log_at(0) <= log_delta.
    """

    def height(x):
        return jnp.clip(log_at(x) - log_delta, -1e6, 1e6)

    def unfinished(state):
        n, a, b, _, fa, fb, *_ = state
        return (n < sweeps) & (jnp.abs(a - b) > 4 * ULP * jnp.maximum(jnp.abs(a), jnp.abs(b))) & (fa != 0) & (fb != 0)

    def improve(state):
        n, a, b, c, fa, fb, fc, part = state
        x = a + part * (b - a)
        fx = height(x)
        same = (fx > 0) == (fa > 0)
        c, fc = jnp.where(same, a, b), jnp.where(same, fa, fb)
        b, fb = jnp.where(same, b, a), jnp.where(same, fb, fa)
        a, fa = x, fx
        xi, phi = (a - b) / (c - b), (fa - fb) / (fc - fb)
        smooth = (phi * phi < xi) & ((1 - phi) ** 2 < 1 - xi)
        safe = lambda z: jnp.where(smooth, z, 1.0)
        guess = fa / safe(fb - fa) * fc / safe(fb - fc) + (c - a) / safe(b - a) * fa / safe(fc - fa) * fb / safe(
            fc - fb
        )
        least = jnp.minimum(2 * ULP * jnp.abs(a) / jnp.maximum(jnp.abs(b - a), 1e-300), 0.5)
        return n + 1, a, b, c, fa, fb, fc, jnp.clip(jnp.where(smooth, guess, 0.5), least, 1 - least)

    zero = jnp.zeros_like(high)
    f_low, f_high = jax.vmap(height)(jnp.stack([zero, high]))
    f_high = jnp.minimum(f_high, 0.0)
    state = (0, high, zero, zero, f_high, f_low, f_low, zero + 0.5)
    _, a, b, _, fa, _, _, _ = lax.while_loop(unfinished, improve, state)
    # An exact hit is both ends: log_at(a) = log_delta.
    low, top = jnp.where(fa >= 0, a, b), jnp.where(fa > 0, b, a)
    easy = f_low <= 0
    return jnp.where(easy, 0.0, low), jnp.where(easy, 0.0, top)


def safe_sides(log_and_rounding, log_delta, high):
    """(x certified to be enough, x certified not to be)."""

    def side(sign, target):
        def shifted(x):
            value, rounding = log_and_rounding(x)
            return value + sign * rounding

        return least_threshold(shifted, target, high)

    short, enough = jax.vmap(side)(jnp.asarray([1.0, -1.0]), jnp.stack(around(log_delta)))
    never = jnp.isneginf(log_delta)  # delta 0: only at the end, which is known up to its rounding
    enough = jnp.where(never, high, enough[0])
    return enough, jnp.where(never, high * (1 - 1e-12), jnp.minimum(short[1], enough))


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def moving_root(log_at, at, log_delta, params):
    """Zero, with the derivatives of the x near ``at`` that solves log_at(x, *params) = log_delta. No closures in log_at."""
    del log_at, params
    return jnp.zeros_like(at + log_delta)


@moving_root.defjvp
def _moving_root_jvp(log_at, primals, tangents):
    at, log_delta, params = primals
    # The point at which the rule is evaluated moves as the root does: this gives the second derivative.
    live = lax.stop_gradient(jnp.where(at > 0, at, 1.0)) + moving_root(log_at, *primals)
    _, by_x = jax.jvp(lambda x: log_at(x, *params), (live,), (jnp.ones_like(live),))
    _, by_params = jax.jvp(lambda *p: log_at(live, *p), tuple(params), tuple(tangents[2]))
    falls = (at > 0) & (by_x < 0)
    tangent = jnp.where(falls, (tangents[1] - by_params) / jnp.where(falls, by_x, -1.0), 0.0)
    return jnp.zeros_like(at + log_delta), tangent
