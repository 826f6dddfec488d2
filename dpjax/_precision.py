"""The one place where precision is crossed: float64 inside, the caller's dtype outside, JAX's flags untouched.

A call without tracers computes in float64 whatever the x64 flag says and returns NumPy arrays. A call with tracers goes
through a ``custom_jvp`` whose primal and rules each open float64 locally and return values and partial derivatives in the
caller's dtype, so that JAX never differentiates a float64 operation from outside (with the flag off that crashes on JAX
0.12). Bounds leave rounded towards safety.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpjax._differentiable import twice_differentiable
from dpjax._validate import is_traced

UP, NEAREST, DOWN, INTEGER = "up", "nearest", "down", "integer"


class Call(NamedTuple):
    """What a traced call is, apart from numbers; hashable."""

    function: Callable
    static: Any
    rounding: tuple[str, ...]
    traced: tuple[bool, ...]
    dtype: Any
    wide: bool  # whether it is computed in float64, else in float32
    concrete: Callable | None = (
        None  # (call, *args) -> (outputs, gradient) or None: the same as ``function``'s, for numbers
    )


def namespace(*arrays: Any) -> Any:
    """numpy if no array is a JAX array, else jax.numpy: a concrete call reaches its engine without compiling anything."""
    return jnp if any(isinstance(a, jax.Array) for a in arrays) else np


@functools.cache
def compiled(function: Callable) -> Callable:
    """``function(static, *args)`` compiled once for each static argument and set of shapes."""
    return jax.jit(function, static_argnums=0)


def concrete(function: Callable, static: Any, *args: Any) -> Any:
    """Runs ``function`` in float64 on concrete numbers, also while a user's function is being traced."""
    with jax.ensure_compile_time_eval(), jax.enable_x64(True):
        out = compiled(function)(static, *(np.asarray(a, np.float64) for a in args))
        return jax.tree.map(np.asarray, out)


def traced(
    function: Callable, static: Any, args: tuple, rounding: tuple[str, ...], concrete: Callable | None = None
) -> tuple:
    """Runs ``function`` on arguments of which some are traced.

    Args:
      function: ``function(static, *args) -> outputs``, a closure-free module-level function in float64, differentiable
        twice; every argument is (lanes, *event), every output (lanes,), the outputs' derivative is that of the second.
      static: hashable.
      args: (lanes, *event) arrays; those that are not traced keep their float64 value.
      rounding: for each output "up", "nearest", "down" or "integer".
      concrete: ``concrete(call, *args) -> (outputs, gradient)``, or None where it does not know: another way to first
        derivatives, which is taken where the differentiated arguments are numbers, outside of ``jit``.

    Returns:
      The outputs in the default floating dtype, or int32.
    """
    flags = tuple(is_traced(a) for a in args)
    call = Call(function, static, rounding, flags, jnp.dtype(jnp.result_type(float)), True, concrete)
    constants = tuple(np.asarray(a, np.float64) for a, flag in zip(args, flags, strict=True) if not flag)
    # an inner function may have put a float64 tracer here; the boundary is in the caller's dtype
    moving = tuple(jnp.asarray(a, call.dtype) for a, flag in zip(args, flags, strict=True) if flag)
    return boundary(call, constants, *moving)


def _merge(call: Call, constants: tuple, moving: tuple) -> list:
    fixed, free = iter(constants), iter(moving)
    return [next(free) if flag else next(fixed) for flag in call.traced]


def _split(call: Call, args: tuple) -> tuple:
    return tuple(a for a, flag in zip(args, call.traced, strict=True) if flag)


def _values(call, *args):
    return call.function(call.static, *args)


def _values_and_gradient(call, *args):
    """(outputs, gradient of the second output with respect to the traced arguments: 0 where it or the upper end is infinite)."""

    def estimate(*moving):
        fixed = [a for a, flag in zip(args, call.traced, strict=True) if not flag]
        outputs = call.function(call.static, *_merge(call, tuple(fixed), moving))
        return outputs[1], outputs

    value, pull, outputs = jax.vjp(estimate, *_split(call, args), has_aux=True)
    endless = jnp.isinf(value)
    for output, rounding in zip(outputs, call.rounding, strict=True):
        endless = endless | (jnp.isposinf(output) if rounding == UP else False)
    over = lambda g: endless.reshape(endless.shape + (1,) * (g.ndim - 1))
    return outputs, tuple(jnp.where(over(g), 0.0, g) for g in pull(jnp.ones_like(value)))


def _values_to_second(call, *args):
    """(outputs, gradient, hessian) as ``twice_differentiable`` wants them."""
    moving = _split(call, args)
    fixed = tuple(a for a, flag in zip(args, call.traced, strict=True) if not flag)

    def gradient_of(*moving):
        outputs, gradient = _values_and_gradient(call, *_merge(call, fixed, moving))
        return gradient, (outputs, gradient)

    _, push, (outputs, gradient) = jax.linearize(gradient_of, *moving, has_aux=True)
    columns = []
    for j, x in enumerate(moving):
        events = int(np.prod(x.shape[1:], dtype=int))
        basis = jnp.broadcast_to(jnp.eye(events, dtype=x.dtype)[:, None, :], (events, x.shape[0], events))
        basis = basis.reshape((events, *x.shape))
        tangents = [jnp.zeros((events, *y.shape), y.dtype) if i != j else basis for i, y in enumerate(moving)]
        pushed = jax.vmap(push)(*tangents)  # [i]: (events_j, lanes, *event_i)
        columns.append([jnp.moveaxis(p, 0, -1).reshape((*p.shape[1:], *x.shape[1:])) for p in pushed])
    hessian = tuple(tuple(columns[j][i] for j in range(len(moving))) for i in range(len(moving)))
    return outputs, gradient, hessian


def _leave(x: jax.Array, dtype: Any, rounding: str) -> jax.Array:
    """A result in the caller's dtype, rounded towards ``rounding``."""
    if rounding == INTEGER:
        return x.astype(jnp.int32)
    near = x.astype(dtype)
    if rounding == UP:
        near = jnp.where((x > 0) & (near < jnp.finfo(dtype).tiny), jnp.finfo(dtype).tiny, near)  # no subnormals
        return jnp.where(near.astype(x.dtype) < x, jnp.nextafter(near, jnp.asarray(jnp.inf, dtype)), near)
    if rounding == DOWN:
        return jnp.where(near.astype(x.dtype) > x, jnp.nextafter(near, jnp.asarray(-jnp.inf, dtype)), near)
    return near


def _evaluate(call: Call, constants: tuple, moving: tuple, order: int) -> tuple:
    """Mapped over, more lanes. JAX would map the float64 operations one by one, with the flag off, which fails for some."""
    if not moving:
        return _inside(call, constants, moving, order)
    if order == 1 and call.concrete is not None and not any(map(is_traced, moving)):
        found = _on_numbers(call, constants, moving)
        if found is not None:
            return found
    lanes = jax.custom_batching.custom_vmap(lambda *moving: _inside(call, constants, moving, order))

    @lanes.def_vmap
    def _(size, batched, *moving):
        flat = lambda a: a.reshape((size * a.shape[1], *a.shape[2:]))
        repeated = lambda a: (
            np.broadcast_to(a, (size, *a.shape)) if isinstance(a, np.ndarray) else a[None].repeat(size, 0)
        )
        more = tuple(flat(a if mapped else repeated(a)) for a, mapped in zip(moving, batched, strict=True))
        out = _evaluate(call, tuple(flat(repeated(a)) for a in constants), more, order)
        out = jax.tree.map(lambda a: a.reshape((size, -1, *a.shape[1:])), out)
        return out, jax.tree.map(lambda _: True, out)

    return lanes(*moving)


def values_and_gradient(call: Call, *args: Any) -> tuple:
    """``_values_and_gradient``, compiled."""
    return compiled(_values_and_gradient)(call, *args)


def _on_numbers(call: Call, constants: tuple, moving: tuple) -> tuple | None:
    """What ``_inside`` returns at order 1, from ``call.concrete``."""
    assert call.concrete is not None
    with jax.ensure_compile_time_eval(), jax.enable_x64(True), np.errstate(all="ignore"):
        result = call.concrete(call, *(np.asarray(a, np.float64) for a in _merge(call, constants, moving)))
        if result is None:
            return None
        return *_left(call, *jax.tree.map(jnp.asarray, result)), None


def _left(call: Call, outputs: tuple, derivatives: Any) -> tuple:
    """Outputs and derivatives in the caller's dtype."""
    outputs = tuple(_leave(o, call.dtype, r) for o, r in zip(outputs, call.rounding, strict=True))
    return outputs, jax.tree.map(lambda d: d.astype(call.dtype), derivatives)


def _inside(call: Call, constants: tuple, moving: tuple, order: int) -> tuple:
    function = (_values, _values_and_gradient, _values_to_second)[order]
    with jax.enable_x64(call.wide):
        inner = jnp.float64 if call.wide else jnp.float32
        args = [jnp.asarray(a).astype(inner) for a in _merge(call, constants, moving)]
        result = compiled(function)(call, *args)
        outputs, *derivatives = (result,) if order == 0 else result
        outputs, (gradient, hessian) = _left(call, outputs, [*derivatives, None, None][:2])
    return outputs, gradient, hessian


boundary = twice_differentiable(_evaluate)
