"""Counts the arithmetic that a JAX program executes, by running it with a counter in every loop.

XLA's own cost analysis counts the body of a loop once, and the contour engine is loops in loops, whose lengths depend on the numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr, Literal

_TRANSCENDENTAL = frozenset(
    "exp exp2 expm1 log log1p sin cos tan tanh sinh cosh asin acos atan atan2 asinh acosh atanh pow sqrt rsqrt cbrt erf erfc "
    "erf_inv logistic lgamma digamma".split()
)
_MOVES = frozenset(  # move or make data, and compute nothing
    "broadcast_in_dim reshape squeeze slice dynamic_slice dynamic_update_slice concatenate convert_element_type transpose rev "
    "iota gather pad copy stop_gradient bitcast_convert_type expand_dims split stack".split()
)


def executed(function: Callable, *args: Any) -> tuple[float, float]:
    """(operations, transcendental functions) that ``function(*args)`` executes, one for each element."""
    program = jax.make_jaxpr(function)(*args)
    counts = jax.jit(lambda args: _run(program, args)[1])(jax.tree.leaves(args))
    plain, transcendental = np.asarray(counts, np.float64).tolist()
    return plain, transcendental


def _run(program: ClosedJaxpr, args: Any) -> tuple[list, jax.Array]:
    """The outputs of a program, and what it executed."""
    jaxpr = program.jaxpr
    known = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*program.consts, *args], strict=True))
    read = lambda v: v.val if isinstance(v, Literal) else known[v]
    total = jnp.zeros(2)
    for equation in jaxpr.eqns:
        found, cost = _equation(equation, [read(v) for v in equation.invars])
        known |= zip(equation.outvars, found, strict=True)
        total = total + cost
    return [read(v) for v in jaxpr.outvars], total


def _equation(equation: Any, values: list) -> tuple[list, Any]:
    name, params = equation.primitive.name, equation.params
    inner = next((x for x in params.values() if isinstance(x, ClosedJaxpr)), None)
    if name == "while":
        return _while(params, values)
    if name == "scan":
        return _scan(equation, values)
    if name == "cond":
        branches = [lambda args, branch=branch: tuple(_run(branch, args)) for branch in params["branches"]]
        return lax.switch(values[0], branches, values[1:])
    if inner is not None:
        return _run(inner, values)
    found = equation.primitive.bind(*values, **params)
    return (found if equation.primitive.multiple_results else [found]), _cost(equation)


def _cost(equation: Any) -> np.ndarray:
    name = equation.primitive.name
    sizes = [math.prod(v.aval.shape) for v in (*equation.invars, *equation.outvars)]
    if name in _MOVES:
        return np.zeros(2)
    if name == "dot_general":
        (contracted, _), _ = equation.params["dimension_numbers"]
        return np.array([2.0 * sizes[-1] * math.prod(equation.invars[0].aval.shape[i] for i in contracted), 0])
    of = sizes[0] if name.startswith(("reduce_", "cum", "arg")) else sizes[-1]
    return np.array([0.0, of] if name in _TRANSCENDENTAL else [of, 0.0])


def _while(params: dict, values: list) -> tuple[list, Any]:
    first, second = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
    asked, fixed, carry = values[:first], values[first:second], values[second:]

    def goes_on(carry):
        (going,), cost = _run(params["cond_jaxpr"], [*asked, *carry])
        return going, cost  # a lane each, if lanes end at different times

    def body(state):
        carry, total = state
        going, asking = goes_on(carry)
        more, cost = _run(params["body_jaxpr"], [*fixed, *carry])
        keep = lambda new, old: jnp.where(going.reshape(going.shape + (1,) * (new.ndim - going.ndim)), new, old)
        return [keep(*both) for both in zip(more, carry, strict=True)], total + cost + asking

    return lax.while_loop(lambda state: jnp.any(goes_on(state[0])[0]), body, (carry, jnp.zeros(2)))


def _scan(equation: Any, values: list) -> tuple[list, Any]:
    params, inside = equation.params, equation.params["jaxpr"].jaxpr
    # what is scanned over has an axis more outside; the parameters that say how many there are differ between versions of JAX
    outer = lambda outside, inside: sum(a.aval.ndim == b.aval.ndim for a, b in zip(outside, inside, strict=True))
    carried = outer(equation.outvars, inside.outvars)
    constants = outer(equation.invars, inside.invars) - carried
    fixed, carry, xs = values[:constants], values[constants : constants + carried], values[constants + carried :]

    def body(state, x):
        carry, total = state
        found, cost = _run(params["jaxpr"], [*fixed, *carry, *x])
        return (found[:carried], total + cost), found[carried:]

    (carry, total), ys = lax.scan(
        body, (carry, jnp.zeros(2)), xs, length=params["length"], reverse=params["reverse"], unroll=params["unroll"]
    )
    return [*carry, *ys], total
