"""Runs a kernel on concrete or traced arguments: the one place where these modules cross precision.

A kernel is a module-level ``fn(static, *args) -> (value, aux)``, float64 code in which every argument has shape
(lanes, ...) and every result (lanes,). ``value`` carries the derivative.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import _validate


@functools.partial(jax.jit, static_argnums=(0, 1))
def _compiled(fn, static, *args):
    return fn(static, *args)


def call(fn, static, *args, towards=(1, ())):
    """``fn(static, *args)`` in float64. ``towards``: where a result is rounded to (1 up, -1 down, 0 nearest)."""
    if not any(_validate.is_traced(a) for a in args):
        with jax.ensure_compile_time_eval(), jax.enable_x64(True):
            value, aux = _compiled(fn, static, *(jnp.asarray(np.asarray(a, dtype=np.float64)) for a in args))
            return np.asarray(value), tuple(np.asarray(a) for a in aux)
    if jax.config.jax_enable_x64:
        return fn(static, *(jnp.asarray(a, dtype=jnp.float64) for a in args))
    concrete = tuple(None if _validate.is_traced(a) else np.asarray(a, dtype=np.float64) for a in args)
    traced = tuple(a for a in args if _validate.is_traced(a))
    return _narrow((fn, static, towards, _Frozen(concrete)), *traced)


class _Frozen:
    """Concrete arguments as a static value, so that 0.01 does not become float32(0.01)."""

    def __init__(self, values):
        self.values = values
        self._key = tuple(None if v is None else (v.shape, v.tobytes()) for v in values)

    def __hash__(self):
        return hash(self._key)

    def __eq__(self, other):
        return isinstance(other, _Frozen) and self._key == other._key


def _widened(frozen, traced):
    rest = iter(traced)
    return tuple(jax.lax.convert_element_type(next(rest), jnp.float64) if v is None else jnp.asarray(v) for v in frozen.values)


def _rounded(x, direction):
    y = x.astype(jnp.float32)
    if direction > 0:
        return jnp.where(y.astype(x.dtype) < x, jnp.nextafter(y, jnp.float32(jnp.inf)), y)
    if direction < 0:
        return jnp.where(y.astype(x.dtype) > x, jnp.nextafter(y, -jnp.float32(jnp.inf)), y)
    return y


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _narrow(key, *traced):
    fn, static, towards, frozen = key
    with jax.enable_x64(True):
        value, aux = fn(static, *_widened(frozen, traced))
        return _rounded(value, towards[0]), tuple(_rounded(a, d) for a, d in zip(aux, towards[1], strict=True))


@_narrow.defjvp
def _narrow_jvp(key, primals, tangents):
    value, aux = _narrow(key, *primals)
    partials = _partials(key, *primals)
    tangent = jnp.zeros_like(value)
    for d, t in zip(partials, tangents, strict=True):
        tangent = tangent + jnp.sum((d * t).reshape(value.shape[0], -1), axis=1)
    return (value, aux), (tangent, tuple(jnp.zeros_like(a) for a in aux))


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _partials(key, *traced):
    fn, static, _, frozen = key
    with jax.enable_x64(True):
        return tuple(p.astype(jnp.float32) for p in _sum_gradient(fn, static, frozen, traced))


def _sum_gradient(fn, static, frozen, traced):
    wide = tuple(jax.lax.convert_element_type(a, jnp.float64) for a in traced)

    def total(*wide):
        rest = iter(wide)
        args = tuple(next(rest) if v is None else jnp.asarray(v) for v in frozen.values)
        return jnp.sum(fn(static, *args)[0])

    return jax.grad(total, argnums=tuple(range(len(wide))))(*wide)


@_partials.defjvp
def _partials_jvp(key, primals, tangents):
    fn, static, _, frozen = key
    with jax.enable_x64(True):
        wide = tuple(jax.lax.convert_element_type(t, jnp.float64) for t in tangents)
        base = tuple(jax.lax.convert_element_type(t, jnp.float64) for t in primals)

        def gradient(*base):
            return _sum_gradient(fn, static, frozen, base)

        value, tangent = jax.jvp(gradient, base, wide)
        return tuple(v.astype(jnp.float32) for v in value), tuple(t.astype(jnp.float32) for t in tangent)
