"""Trade-off curves: the least false-negative rate at a false-positive rate, from below.

For every real epsilon, f(x) >= 1 - delta(epsilon) - exp(epsilon) x, with equality for the best one. So any epsilon is
safe: the best is searched for, and certified deltas do the rest. With D the profile and D_rev that of the swapped pair,
f is the larger of

    1 - min over e >= 0 of D(e) + exp(e) x          (slopes of at most -1)
    max over e >= 0 of exp(-e) (1 - x - D_rev(e))   (the others)

in which neither a small 1 - f nor a small f cancels.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from dpjax import _validate, accounting, composition
from dpjax.mechanisms import Adjacency, Mechanism
from dpjax.pairs import REVERSE
from dpjax.representations._question import is_traced, required

_FIRST = np.concatenate([[0.0], np.geomspace(1e-6, 1.0, 27)])  # in units of the largest threshold that may help
_INNER = 8  # points between the ends of a bracket
_ROUNDS = 7
_ROUGH = 1e-8  # relative tolerance on delta while searching


def tradeoff(
    mechanism: Mechanism, false_positive_rate: ArrayLike, *, adjacency: Adjacency = Adjacency.ADD_OR_REMOVE_ONE
) -> Any:
    """The trade-off curve f of ``mechanism`` (f-DP): the least false-negative rate of any test, from below.

    The tests decide between the outputs on two neighbouring datasets. See ``true_positive_rate`` for 1 - f, which keeps
    its digits where it is small.

    Args:
      mechanism: a record, of any batch shape.
      false_positive_rate: x in [0, 1]; broadcasts against the mechanism's batch shape. Down to 1e-300 it counts.
      adjacency: which datasets are neighbours. In a single direction P is the first dataset (with the record, for
        ``REMOVE``), false positives are under Q; of two directions f is the greatest convex curve below both.

    Returns:
      f(x) in [0, 1 - x], in the broadcast shape; 0 at x = 1.

    Guarantee:
      A lower bound on the false-negative rate of every test on every adaptive composition with these dominating pairs:
      f(x) >= 1 - delta(epsilon) - exp(epsilon) x for every epsilon, with delta from above (Dong, Roth, Su, arXiv
      1905.02383, Proposition 2.12). Its distance from the sup over epsilon is not certified; about 1e-9 where delta is
      smooth.

    Raises:
      ValueError: a concrete argument is out of range. A traced one gives NaN.
      NotImplementedError: no analysis is known, or a second derivative was asked for.

    Example:
      >>> import dpjax
      >>> print(f"{dpjax.tradeoff(dpjax.Gaussian(1.0), 0.05):.6f}")
      0.740489
    """
    return _rates(mechanism, false_positive_rate, adjacency)[0]


def true_positive_rate(
    mechanism: Mechanism, false_positive_rate: ArrayLike, *, adjacency: Adjacency = Adjacency.ADD_OR_REMOVE_ONE
) -> Any:
    """The largest true-positive rate of any test at a false-positive rate, from above: 1 - ``tradeoff``.

    Where it is small it has relative precision; arguments, guarantee and errors as there.

    Example:
      >>> import dpjax
      >>> print(f"{dpjax.true_positive_rate(dpjax.Gaussian(1.0), 1e-100):.6e}")
      1.103089e-91
    """
    return _rates(mechanism, false_positive_rate, adjacency)[1]


def _rates(mechanism: Mechanism, false_positive_rate: Any, adjacency: Adjacency) -> tuple:
    """(f, 1 - f) at x."""
    mechanism = required(mechanism, adjacency)
    x = _validate.number("false_positive_rate", false_positive_rate)
    _validate.in_range("false_positive_rate", x, 0.0, 1.0)
    shape = np.broadcast_shapes(composition.batch_shape(mechanism), np.shape(x))
    if not is_traced(mechanism, x):
        x = np.broadcast_to(x, shape)
        with np.errstate(all="ignore"):
            steep, e = _search(mechanism, x, adjacency, np)
            return tuple(np.asarray(r)[()] for r in _at(mechanism, x, steep, e, adjacency, np))
    x = jnp.broadcast_to(jnp.asarray(x), shape)
    steep, e = _search(*lax.stop_gradient((mechanism, x)), adjacency, jnp)
    rates = _at(mechanism, x, steep, e, adjacency, jnp)
    poison = jnp.where((x >= 0) & (x <= 1), 0.0, jnp.nan) * x
    return tuple(_first_order(r + poison) for r in rates)


def _unit(xp: Any) -> float:
    return float(np.finfo(float).eps if xp is np else jnp.finfo(jnp.result_type(float)).eps)


def _profile(mechanism: Mechanism, e: Any, steep: Any, adjacency: Adjacency, xp: Any, rtol: float = 1e-10) -> Any:
    """D where ``steep``, D_rev elsewhere, at e >= 0."""
    d = accounting.delta(mechanism, e, adjacency=adjacency, rtol=rtol)
    if REVERSE[adjacency] is adjacency:
        return d
    return xp.where(steep, d, accounting.delta(mechanism, e, adjacency=REVERSE[adjacency], rtol=rtol))


def _power(x: Any, e: Any, d: Any, xp: Any) -> Any:
    """d + exp(e) x, a bound on 1 - f; at least 1 where it is capped."""
    unit = _unit(xp)
    some = (x > 0) & (e < xp.inf)
    log_x, e = xp.log(xp.where(some, x, 1.0)), xp.where(some, e, 0.0)
    linear = xp.exp(xp.minimum(e + log_x, 5.0)) * (1 + unit * (4 + 2 * e + 2 * xp.abs(log_x)))
    return (d + xp.where(some, linear, xp.where(x > 0, 5.0, 0.0))) * (1 + 4 * unit)


def _missed(x: Any, e: Any, d: Any, xp: Any) -> Any:
    """exp(-e) (1 - x - d), a bound on f."""
    unit = _unit(xp)
    return xp.exp(-e) * (1 - unit * (4 + 2 * e)) * ((1 - x) * (1 - 2 * unit) - d * (1 + 2 * unit))


def _at(mechanism: Mechanism, x: Any, steep: Any, e: Any, adjacency: Adjacency, xp: Any) -> tuple[Any, Any]:
    """(f, 1 - f) by threshold e, rounded to the safe side."""
    unit = _unit(xp)
    d = _profile(mechanism, e, steep, adjacency, xp)
    power = xp.minimum(_power(x, e, d, xp), 1.0)
    missed = xp.maximum(_missed(x, xp.where(steep, 0.0, e), d, xp), 0.0)
    missed = xp.where(x >= 1, 0.0, missed)
    f = xp.where(steep, xp.where(power > 0, xp.maximum(1 - power - unit, 0.0), 1.0), missed)
    return f, xp.where(steep, power, xp.minimum(1 - missed + unit, 1.0))


def _search(mechanism: Mechanism, x: Any, adjacency: Adjacency, xp: Any) -> tuple[Any, Any]:
    """Whether f is steep at x (a slope of at most -1), and a threshold close to the best; like x."""
    pad = (1,) * x.ndim
    zero = xp.zeros_like(x)
    start = accounting.delta(mechanism, zero, adjacency=adjacency, rtol=_ROUGH)
    # beyond these the bounds are worse than at 0
    last = xp.log1p(start / xp.maximum(x, 1e-300 if xp is np else 1e-37))
    last_rev = -xp.log(xp.maximum(1 - x - start, 1e-300 if xp is np else 1e-37))
    unit = np.asarray(_FIRST.reshape((-1, *pad)), x.dtype)
    first, first_rev = unit * xp.minimum(last, 690.0), unit * xp.minimum(last_rev, 690.0)
    always = zero == 0
    d = _profile(mechanism, first, always, adjacency, xp, _ROUGH)
    d_rev = _profile(mechanism, first_rev, ~always, adjacency, xp, _ROUGH)
    power, missed = _power(x, first, d, xp), _missed(x, first_rev, d_rev, xp)
    steep = (1 - xp.min(power, 0) >= xp.max(missed, 0)) | (x <= 0)

    def badness(power, missed):  # unimodal
        gone = missed <= 0
        return xp.where(steep, xp.log(power), xp.where(gone, 1e3, -xp.log(xp.where(gone, 1.0, missed))))

    def narrow(e, value):
        """Two ends around the least value, the place of that, and two guesses at the minimum's."""
        best = xp.argmin(value, axis=0)[None]
        middle = xp.take_along_axis(e, best, axis=0)
        left = xp.sum(e < middle, 0, keepdims=True) - 1  # of equal points one counts
        right = e.shape[0] - xp.sum(e > middle, 0, keepdims=True)
        at = lambda a, i: xp.take_along_axis(a, xp.clip(i, 0, e.shape[0] - 1), axis=0)[0]
        e0, e1, e2, v0, v1, v2 = (at(a, i) for a in (e, value) for i in (left, best, right))
        # a parabola's vertex; and, for a kink, where the lines through the two points on each side meet
        a, b = (e1 - e0) * (v1 - v2), (e1 - e2) * (v1 - v0)
        vertex = e1 - 0.5 * _ratio((e1 - e0) * a - (e1 - e2) * b, a - b, xp)
        rise = _ratio(v0 - at(value, left - 1), e0 - at(e, left - 1), xp)
        rise_right = _ratio(at(value, right + 1) - v2, at(e, right + 1) - e2, xp)
        meeting = e0 + _ratio(v2 - v0 - rise_right * (e2 - e0), rise - rise_right, xp)
        apart = 1e-3 * (e2 - e0)  # two points too close would close the bracket by rounding
        inside = lambda g: xp.where((g > e0 + apart) & (g < e2 - apart) & (abs(g - e1) > apart), g, e1)
        return e0, e2, e1, inside(vertex), inside(meeting)

    def values(e):
        d = _profile(mechanism, e, steep, adjacency, xp, _ROUGH)
        return badness(_power(x, e, d, xp), _missed(x, e, d, xp))

    def again(ends):
        e0, e2, e1, vertex, meeting = ends
        near = 0.02 * (e2 - e0)
        grid = e0 + (e2 - e0) * np.linspace(0.0, 1.0, _INNER + 2, dtype=x.dtype).reshape((-1, *pad))
        more = [e1, vertex, meeting, xp.maximum(vertex - near, e0), xp.minimum(vertex + near, e2)]
        e = xp.sort(xp.concatenate([grid, xp.stack(more)]), axis=0)
        return narrow(e, values(e))

    ends = narrow(xp.where(steep, first, first_rev), badness(power, missed))
    ends = lax.fori_loop(0, _ROUNDS, lambda _, ends: again(ends), ends) if xp is jnp else _repeat(again, ends)
    # no false positives: only what rules the neighbour out counts
    return steep, xp.where(x <= 0, xp.inf, ends[2])


def _repeat(step: Any, state: Any) -> Any:
    for _ in range(_ROUNDS):
        state = step(state)
    return state


def _ratio(a: Any, b: Any, xp: Any) -> Any:
    some = b != 0
    return xp.where(some, a / xp.where(some, b, 1.0), 0.0)


@jax.custom_jvp
def _one(x: jax.Array) -> jax.Array:
    return jnp.ones_like(x)


@_one.defjvp
def _one_jvp(primals: tuple, tangents: tuple) -> tuple:
    raise NotImplementedError("trade-off curves have first derivatives; a second was asked for.")


@jax.custom_jvp
def _first_order(x: jax.Array) -> jax.Array:
    """x, whose second derivative is refused: the threshold is held fixed, which is right to first order only."""
    return x


@_first_order.defjvp
def _first_order_jvp(primals: tuple, tangents: tuple) -> tuple:
    return _first_order(primals[0]), tangents[0] * _one(primals[0])
