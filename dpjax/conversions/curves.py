r"""Between curves: Renyi curves, privacy profiles, trade-off functions, pairs of distributions.

A profile is delta as a function of epsilon, any real number. A trade-off function f is the least false-negative rate of a
test between two neighbours as a function of its false-positive rate x; :math:`\\delta(\\varepsilon) = \\sup_x 1 - f(x) -
e^\\varepsilon x` and back. Profiles are rounded up, trade-off functions down. A query may have any shape and be traced;
computed in float64.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from dpjax import _precision, _validate
from dpjax._special import log_ndtr
from dpjax.closed_form import log_delta_gaussian
from dpjax.laws.finite import FiniteLaw, from_masses
from dpjax.laws.from_profile import implied_by_points
from dpjax.laws.renyi import renyi_law, zcdp_law

_ULP = float(np.finfo(np.float64).eps)


class Pair(NamedTuple):
    """Two distributions on the same finite set.

    Attributes:
      p, q: (outcomes,), the masses, not negative.
    """

    p: Any
    q: Any


@functools.cache
def _lanes(function: Callable) -> Callable:
    """``function(static, *curve, queries)`` for one query and one curve in each lane; twice: value and estimate."""

    def one(static, *args):
        value = function(static, *args[:-1], args[-1][None])[0]
        return value, value

    return lambda static, *args: jax.vmap(functools.partial(one, static))(*args)


def _answers(function: Callable, static: Any, curve: tuple, query: Any, rounding: str) -> Any:
    """``function(static, *curve, queries)`` -> (queries,), in the shape of ``query``."""
    if not any(map(_validate.is_traced, (*curve, query))):
        flat = np.asarray(query, np.float64)
        found = _precision.concrete(function, static, *curve, flat.ravel()).reshape(flat.shape)
        if jnp.result_type(float) != jnp.float64:
            narrow = found.astype(np.float32)
            away = np.float32(np.inf if rounding == "up" else -np.inf)
            wrong = narrow < found if rounding == "up" else narrow > found
            found = np.where(wrong, np.nextafter(narrow, away), narrow)
        return found[()]
    shape, size = np.shape(query), int(np.size(query))
    wide = lambda a: (
        jnp.broadcast_to(a, (size, *np.shape(a)))
        if _validate.is_traced(a)
        else np.broadcast_to(a, (size, *np.shape(a)))
    )
    flat = query.reshape(size) if _validate.is_traced(query) else np.reshape(query, size)
    found = _precision.traced(_lanes(function), static, (*map(wide, curve), flat), (rounding, rounding))
    return found[0].reshape(shape)


def _number(name: str, x: Any, low: float = -np.inf, high: float = np.inf, **ends: Any) -> Any:
    x = _validate.number(name, x)
    _validate.in_range(name, x, low, high, **ends)
    return x


def _curve(**points: tuple[Any, float, float]) -> tuple:
    """The points of a curve: (points,) arrays of one length, each (value, low, high)."""
    arrays = [_number(name, *given) for name, given in points.items()]
    shape = np.broadcast_shapes(*map(np.shape, arrays))
    if len(shape) > 1 or 0 in shape:
        raise ValueError(
            f"{' and '.join(points)} have shape {shape}, but they must be numbers or sequences, not empty."
        )
    shape = shape or (1,)
    return tuple(jnp.broadcast_to(a, shape) if _validate.is_traced(a) else np.broadcast_to(a, shape) for a in arrays)


def _delta_of(law: FiniteLaw, epsilon: jax.Array) -> jax.Array:
    return jnp.minimum(law.profile(epsilon) * (1 + 4 * _ULP * (4 + np.log2(len(law.loss)))), 1.0)


def _f_of(law: FiniteLaw, x: jax.Array) -> jax.Array:
    """The greatest tangent at x; each is below f, and the kinks have all that there are."""
    at = jnp.clip(law.loss, -700.0, 700.0)
    alpha, delta = jnp.exp(at), _delta_of(law, at)
    room = 8 * _ULP * (1 + alpha * x[:, None])
    f = jnp.max(1 - delta - alpha * x[:, None] - room, 1)
    return jnp.where((x >= 0) & (x <= 1), jnp.maximum(f, 0.0), jnp.nan)


def _renyi_profile(_: Any, orders, renyi, epsilon):
    return _delta_of(renyi_law(orders, renyi, jnp.abs(epsilon)), epsilon)


def rdp_to_profile(orders: ArrayLike, renyi: ArrayLike, epsilon: ArrayLike) -> Any:
    r"""The largest delta(epsilon) that bounds on Renyi divergences leave possible: RDP to f-DP to DP.

    Args:
      orders: (orders,), in [1/2, inf); 1 is the Kullback-Leibler divergence.
      renyi: (orders,), the divergences, >= 0, in both directions of the neighbours; infinite where nothing is known.
      epsilon: any real numbers.

    Returns:
      delta, of epsilon's shape. At a concrete epsilon none of ``rdp_to_dp``'s answers for these orders is below it.

    Guarantee:
      Every mechanism with these divergences is (epsilon, delta)-DP: arXiv 2106.08567, Appendix F, by duality. Lossless for
      the bounds as such: at every epsilon a pair of two outcomes that meets them all attains the profile, up to chords
      between nodes, some per mille above it. A Renyi curve says less than the mechanism's own profile: that step loses.

    Raises:
      ValueError: a concrete argument is out of range. Traced ones out of range give NaN.

    Example:
      >>> print(f"{rdp_to_profile([0.5, 1.0, 2.0, 4.0], [0.25, 0.5, 1.0, 2.0], 1.0):.4f}")
      0.2215
    """
    curve = _curve(orders=(orders, 0.5, np.finfo(float).max), renyi=(renyi, 0.0, np.inf))
    epsilon = _number("epsilon", epsilon)
    return _answers(_renyi_profile, None, curve, epsilon, "up")


def _renyi_tradeoff(_: Any, orders, renyi, x):
    return _f_of(renyi_law(orders, renyi), x)


def rdp_to_tradeoff(orders: ArrayLike, renyi: ArrayLike, false_positive_rate: ArrayLike) -> Any:
    """The least false-negative rate that bounds on Renyi divergences leave possible.

    Args:
      orders, renyi: as in ``rdp_to_profile``.
      false_positive_rate: in [0, 1].

    Returns:
      f, of false_positive_rate's shape, rounded down by about 1e-12.

    Guarantee:
      Every test has at least this rate: sup over orders of f_alpha, arXiv 2106.08567, Appendix F. Lossless as
      ``rdp_to_profile`` is.

    Raises:
      ValueError: a concrete argument is out of range. Traced ones out of range give NaN.

    Example:
      >>> print(f"{rdp_to_tradeoff([0.5, 1.0, 2.0], [0.25, 0.5, 1.0], 0.2648):.4f}")
      0.2649
    """
    curve = _curve(orders=(orders, 0.5, np.finfo(float).max), renyi=(renyi, 0.0, np.inf))
    x = _number("false_positive_rate", false_positive_rate, 0.0, 1.0)
    return _answers(_renyi_tradeoff, None, curve, x, "down")


def _zcdp_profile(_: Any, rho, epsilon):
    return _delta_of(zcdp_law(rho[0], nodes=jnp.abs(epsilon)), epsilon)


def zcdp_to_profile(rho: ArrayLike, epsilon: ArrayLike) -> Any:
    """The largest delta(epsilon) that rho-zCDP leaves possible, by all orders >= 1 at once.

    Args:
      rho: >= 0, a number.
      epsilon: any real numbers.

    Returns:
      delta, of epsilon's shape.

    Guarantee:
      Every rho-zCDP mechanism is (epsilon, delta)-DP. Lossless for the bounds as such, as ``rdp_to_profile`` is; orders
      below 1 are no part of zCDP.

    Raises:
      ValueError: a concrete argument is out of range. Traced ones out of range give NaN.

    Example:
      >>> print(f"{zcdp_to_profile(0.1, 2.1419):.3e}")
      1.000e-06
    """
    return _answers(_zcdp_profile, None, _curve(rho=(rho, 0.0, np.finfo(float).max)), _number("epsilon", epsilon), "up")


def _profile_tradeoff(_: Any, epsilons, deltas, x):
    return _f_of(implied_by_points(epsilons, deltas, symmetric=False), x)


def profile_to_tradeoff(epsilons: ArrayLike, deltas: ArrayLike, false_positive_rate: ArrayLike) -> Any:
    """The trade-off function of the largest profile through points: f(x) = sup 1 - delta(epsilon) - e^epsilon x.

    Args:
      epsilons: (points,), real, in any order.
      deltas: (points,), in [0, 1]: upper bounds on the profile of P against Q, in this direction alone.
      false_positive_rate: x, in [0, 1], of tests that take Q for the hypothesis: x = Q(S), f = 1 - P(S).

    Returns:
      f, of false_positive_rate's shape, rounded down by about 1e-12.

    Guarantee:
      f is below the trade-off function of every pair whose profile is below the points. Lossless for the points:
      ``tradeoff_to_profile`` of it gives the profile back.

    Raises:
      ValueError: a concrete argument is out of range.

    Example:
      >>> print(f"{profile_to_tradeoff([-1.0, 1.0], [0.6321205588285577, 0.0], 0.2689414):.4f}")
      0.2689
    """
    curve = _curve(epsilons=(epsilons, -np.finfo(float).max, np.finfo(float).max), deltas=(deltas, 0.0, 1.0))
    x = _number("false_positive_rate", false_positive_rate, 0.0, 1.0)
    return _answers(_profile_tradeoff, None, curve, x, "down")


def _tradeoff_profile(steps: bool, x, f, epsilon):
    order = jnp.argsort(x)
    zero, one = jnp.zeros(1), jnp.ones(1)
    x, f = x[order], f[order]
    if steps:  # f is at least the largest value at or after each point; before it, x is smaller
        f = jax.lax.cummax(f, reverse=True)
        x, f = jnp.concatenate([zero, x]), jnp.concatenate([f, zero])
    x, f = jnp.concatenate([zero, x, one]), jnp.concatenate([one, f, zero])
    alpha = jnp.exp(jnp.minimum(epsilon, 700.0))[:, None]
    value = jnp.max(1 - f - alpha * x + 8 * _ULP * (x > 0) * (1 + alpha * x), 1)
    ok = jnp.all((x >= 0) & (x <= 1) & (f >= 0) & (f <= 1))
    return jnp.where(ok, jnp.clip(value + 4 * _ULP * (value > 0), 0.0, 1.0), jnp.nan)


def tradeoff_to_profile(
    false_positive_rates: ArrayLike, false_negative_rates: ArrayLike, epsilon: ArrayLike, between: str = "chords"
) -> Any:
    """The profile of a trade-off function known at points: delta(epsilon) = sup 1 - f(x) - e^epsilon x.

    Args:
      false_positive_rates, false_negative_rates: (points,), x and f(x), in [0, 1].
      epsilon: any real numbers.
      between: what is known between the points: "chords" if f is the convex polygon through them, (0, 1) and (1, 0), as
        for finite pairs; "steps" if nothing is: the values may be lower bounds on f, and f does not increase.

    Returns:
      delta, of epsilon's shape, rounded up by about 1e-15.

    Guarantee:
      Lossless for "chords": the inverse of ``profile_to_tradeoff``. "steps" is the largest delta that the points leave
      possible without convexity, off by one step of the points.

    Raises:
      ValueError: a concrete argument is out of range.

    Example:
      >>> print(f"{tradeoff_to_profile([0.2689414], [0.2689414], 0.0):.4f}")
      0.4621
    """
    _validate.one_of("between", between, ("chords", "steps"))
    curve = _curve(
        false_positive_rates=(false_positive_rates, 0.0, 1.0), false_negative_rates=(false_negative_rates, 0.0, 1.0)
    )
    return _answers(_tradeoff_profile, between == "steps", curve, _number("epsilon", epsilon), "up")


def _gdp_profile(_: Any, mu, epsilon):
    safe = jnp.where(mu[0] > 0, mu[0], 1.0)
    log_delta = log_delta_gaussian(epsilon, jnp.broadcast_to(safe**2, epsilon.shape))
    value = jnp.exp(log_delta) * (1 + 16 * _ULP * (1 + jnp.abs(log_delta)))
    value = jnp.where(mu[0] > 0, value, -jnp.expm1(jnp.minimum(epsilon, 0.0)))
    return jnp.where(mu[0] >= 0, jnp.minimum(value, 1.0), jnp.nan)


def gdp_to_profile(mu: ArrayLike, epsilon: ArrayLike) -> Any:
    """delta(epsilon) of mu-Gaussian DP: Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu). Lossless.

    Args:
      mu: >= 0, a number: sensitivity over standard deviation.
      epsilon: any real numbers.

    Returns:
      delta, of epsilon's shape.

    Raises:
      ValueError: a concrete argument is out of range. Traced ones out of range give NaN.

    Example:
      >>> print(f"{gdp_to_profile(1.0, 1.0):.6f}")
      0.126937
    """
    return _answers(_gdp_profile, None, _curve(mu=(mu, 0.0, 1e150)), _number("epsilon", epsilon), "up")


def _dp_gdp(_: Any, epsilon):
    """mu with Phi(-mu/2) = 1 / (1 + e^epsilon), by bisection on the logarithm, which keeps its digits."""
    wanted = -jnp.logaddexp(0.0, epsilon)

    def halve(_, ends):
        low, high = ends
        middle = 0.5 * (low + high)
        safe = log_ndtr(-0.5 * middle) <= wanted - 4e-13 * jnp.abs(wanted)
        return jnp.where(safe, low, middle), jnp.where(safe, middle, high)

    end = 2 * jnp.sqrt(2 * jnp.maximum(epsilon, 0.0)) + 1.0
    mu = jax.lax.stop_gradient(jax.lax.fori_loop(0, 60, halve, (jnp.zeros_like(end), end))[1])
    density = jnp.exp(-0.125 * mu * mu - log_ndtr(-0.5 * mu)) / np.sqrt(8 * np.pi)  # -d log Phi(-mu/2) / d mu
    mu = mu - (wanted - jax.lax.stop_gradient(wanted)) / density
    return jnp.where(epsilon >= 0, jnp.where(epsilon > 0, mu, 0.0 * mu), jnp.nan)


def dp_to_gdp(epsilon: ArrayLike) -> Any:
    """The least mu for which every epsilon-DP mechanism is mu-Gaussian DP: -2 Phi^-1(1 / (1 + e^epsilon)).

    There the two trade-off functions meet in the corner of randomised response's. Lossy: a Gaussian's losses have no bound.
    No mu is enough for (epsilon, delta)-DP with delta > 0, nor for a profile known at points.

    Args:
      epsilon: >= 0.

    Returns:
      mu, of epsilon's shape, rounded up by about 1e-12.

    Raises:
      ValueError: a concrete argument is out of range. Traced ones out of range give NaN.

    Example:
      >>> print(f"{dp_to_gdp(1.0):.4f}")
      1.2320
    """
    return _answers(_dp_gdp, None, (), _number("epsilon", epsilon, 0.0, 1e300), "up")


def _pair(_: Any, epsilons, deltas):
    law = implied_by_points(epsilons, deltas, symmetric=False)
    side = lambda a, last, first: jnp.concatenate([first[None], a, last[None]])
    return side(law.p, law.p_top, 0 * law.p_top), side(law.q, 0 * law.q_bottom, law.q_bottom)


def profile_to_pair(epsilons: ArrayLike, deltas: ArrayLike) -> Pair:
    """A pair whose profile is the largest one through points. Lossless.

    Args:
      epsilons: (points,), real, in any order; concrete.
      deltas: (points,), in [0, 1]: upper bounds on the profile of P against Q, in this direction alone; concrete.

    Returns:
      Masses of points + 3 outcomes, by increasing loss: the first has no P, the last no Q. They are rounded up, so that
      they sum to a little more than 1, by 1e-15 a point.

    Raises:
      ValueError: an argument is out of range.

    Example:
      >>> pair = profile_to_pair([-1.0, 1.0], [0.6321205588285577, 0.0])
      >>> [float(f"{mass:.4f}") for mass in pair.p]
      [0.0, 0.2689, 0.0, 0.7311, 0.0]
    """
    curve = _curve(epsilons=(epsilons, -np.finfo(float).max, np.finfo(float).max), deltas=(deltas, 0.0, 1.0))
    return Pair(*_precision.concrete(_pair, None, *curve))


def _pair_profile(_: Any, p, q, epsilon):
    ok = jnp.all((p >= 0) & (q >= 0))
    return jnp.where(ok, _delta_of(from_masses(p, q), epsilon), jnp.nan)


def pair_to_profile(p: ArrayLike, q: ArrayLike, epsilon: ArrayLike) -> Any:
    """delta(epsilon) of a finite pair: the sum of (p - e^epsilon q)_+ over outcomes. Lossless.

    Args:
      p, q: (outcomes,), masses, >= 0.
      epsilon: any real numbers.

    Returns:
      delta, of epsilon's shape.

    Raises:
      ValueError: a concrete argument is out of range. Traced ones out of range give NaN.

    Example:
      >>> print(f"{pair_to_profile([0.75, 0.25], [0.25, 0.75], 0.0):.2f}")
      0.50
    """
    return _answers(
        _pair_profile, None, _curve(p=(p, 0.0, np.inf), q=(q, 0.0, np.inf)), _number("epsilon", epsilon), "up"
    )
