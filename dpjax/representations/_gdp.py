"""Gaussian differential privacy: the smallest mu whose Gaussian trade-off curve lies below a mechanism's.

A chord of delta in exp(epsilon) between a and b bounds delta in between. It belongs to one point of the trade-off plane,

    x = (delta(a) - delta(b)) / (exp(b) - exp(a)),   1 - f = delta(a) + exp(a) x,

and delta_mu lies above the chord, everywhere, if G_mu(x) <= f: mu >= Phi^-1(1 - f) - Phi^-1(x). So the largest such mu
over cells that cover the losses is certified; splitting the cells where it is largest brings it down to the smallest.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.special import ndtri

from dpjax import accounting, composition
from dpjax.mechanisms import Adjacency, Gaussian, Mechanism, PoissonSampled
from dpjax.pairs import REVERSE, directions
from dpjax.representations._question import is_traced, members, required

_START = 96
_SPLITS = 32  # cells split in a round
_ROUNDS = 8


def gdp_mu(mechanism: Mechanism, *, adjacency: Adjacency = Adjacency.ADD_OR_REMOVE_ONE) -> Any:
    """The smallest mu for which ``mechanism`` is mu-GDP, from above.

    Args:
      mechanism: a record, of any batch shape.
      adjacency: which datasets are neighbours; the larger of the directions.

    Returns:
      mu >= 0, in the mechanism's batch shape; infinite where no mu suffices, and where a traced mechanism's losses are
      unbounded and not Gaussian.

    Guarantee:
      delta of the Gaussian mechanism with this mu is at least ``delta`` at every real epsilon (Dong, Roth, Su, arXiv
      1905.02383, Corollary 2.13). Compositions of Gaussians, Poisson-sampled or not: exact, the mu of the composition
      *without* sampling. Sampling makes delta(epsilon) smaller by a factor, and however small that is, as epsilon grows
      every Gaussian of smaller mu falls below it. (Central-limit approximations give smaller numbers; those are not
      bounds.) Bounded losses: from above, typically within 1e-3 of the smallest.

    Raises:
      NotImplementedError: no analysis is known for the mechanism under ``adjacency``; or it has unbounded losses and
        more in it than Gaussians.

    Example:
      >>> import dpjax
      >>> print(f"{dpjax.gdp_mu(dpjax.dpsgd(2.0, 0.01, 100)):.6f}")
      5.000000
      >>> print(f"{dpjax.gdp_mu(dpjax.PureDP(1.0)):.4f}")
      1.2320
    """
    mechanism = required(mechanism, adjacency)
    shape = composition.batch_shape(mechanism)
    if _gaussian_family(mechanism):
        return _unsampled(mechanism, adjacency, shape)
    traced = is_traced(mechanism)
    xp = jnp if traced else np
    zero = xp.zeros(shape)
    value = xp.zeros(shape)
    for direction in {adjacency: None, REVERSE[adjacency]: None}:
        end = xp.asarray(accounting.epsilon(mechanism, zero, adjacency=direction))
        failing = xp.asarray(accounting.delta(mechanism, zero + xp.inf, adjacency=direction)) > 0
        bounded = end < xp.inf
        if not traced and np.any(~bounded & ~failing):
            raise NotImplementedError(
                f"No mu is known for {mechanism!r}: its losses are unbounded, and not only Gaussian."
            )
        found = _largest(mechanism, xp.where(bounded, end, 1.0), direction, xp)
        value = xp.maximum(value, xp.where(bounded & ~failing, found, xp.inf))
    return value if traced else np.asarray(value)[()]


def _gaussian_family(record: Mechanism) -> bool:
    sampled = lambda m: isinstance(m, PoissonSampled) and sampled(m.mechanism) or isinstance(m, Gaussian)
    return all(map(sampled, members(record)))


def _unsampled(mechanism: Mechanism, adjacency: Adjacency, shape: tuple) -> Any:
    """sqrt of the sum of (sensitivity / noise)^2 over what sees a record at all."""
    traced = is_traced(mechanism)
    xp = jnp if traced else np
    laid = composition.layout(mechanism, xp.zeros(shape))
    record = jax.tree.unflatten(laid.structure, [xp.asarray(x) for x in laid.leaves])
    lanes = int(np.prod(shape, dtype=int))
    squared = 4.0 if adjacency is Adjacency.REPLACE_ONE else 1.0  # of the sensitivity
    for direction in directions(adjacency):  # refuses what has no analysis
        with np.errstate(all="ignore"):
            composition.problem(laid.structure, tuple(xp.asarray(x) for x in laid.leaves), direction)
    total = xp.zeros((lanes,))
    with np.errstate(all="ignore"):
        for member, count in composition._terms(record, xp.ones((lanes,))):
            used, valid = count > 0, count >= 0
            while isinstance(member, PoissonSampled):
                q: Any = member.sampling_probability
                member = member.mechanism
                used, valid = used & (q > 0), valid & (q >= 0) & (q <= 1)
            sigma = member.noise_multiplier  # type: ignore[attr-defined]
            each = xp.where(sigma > 0, count * squared / xp.where(sigma > 0, sigma, 1.0) ** 2, xp.inf)
            each = xp.where(used, each, 0.0) + xp.where(valid & (sigma >= 0), 0.0, xp.nan)
            total = total + xp.sum(each.reshape((lanes, -1)), 1)
    some = total > 0
    unit = float(np.finfo(np.float64 if xp is np else jnp.result_type(float)).eps)
    mu = xp.where(some, xp.sqrt(xp.where(some, total, 1.0)), total) * (1 + 8 * unit)
    mu = mu.reshape(shape)
    return mu if traced else np.asarray(mu)[()]


def _largest(mechanism: Mechanism, end: Any, adjacency: Adjacency, xp: Any) -> Any:
    """The certified mu of the losses in [0, end]."""
    pad = (1,) * np.ndim(end)
    unit = np.concatenate([[0.0], np.geomspace(1e-3, 1.0, _START)]).reshape((-1, *pad))
    ask = lambda e: xp.asarray(accounting.delta(mechanism, e, adjacency=adjacency))
    e = lax.stop_gradient(end) * unit.astype(end.dtype) if xp is jnp else end * unit
    d = ask(e)
    for _ in range(_ROUNDS if xp is np else 1):
        asked = _of_cells(e, d, xp)
        asked = asked if xp is np else lax.stop_gradient(asked)
        worst = xp.argsort(-asked, axis=0)[:_SPLITS]
        at = lambda k, e=e, worst=worst: xp.take_along_axis(e, worst + k, axis=0)
        new = 0.5 * (at(0) + at(1))
        e, d = xp.concatenate([e, new]), xp.concatenate([d, ask(new)])
        order = xp.argsort(e, axis=0)
        e, d = (xp.take_along_axis(a, order, axis=0) for a in (e, d))
        if xp is np and np.all(np.max(_of_cells(e, d, np), axis=0) >= np.max(asked, axis=0) * (1 - 1e-9)):
            break
    return xp.max(_of_cells(e, d, xp), axis=0)


def _of_cells(e: Any, d: Any, xp: Any) -> Any:
    """The mu that each cell asks for."""
    unit = float(np.finfo(e.dtype).eps)
    a, b, fall = e[:-1], e[1:], d[:-1] - d[1:]
    none = d[:-1] <= 0
    gap = xp.expm1(xp.where(b > a, b - a, 1.0))
    scaled = xp.where(fall > 0, fall, 0.0) / gap  # exp(a) x
    x, power = xp.exp(-a) * scaled, xp.minimum(d[:-1] + scaled, 1.0)
    x = x * (1 - 64 * unit * (1 + xp.abs(a)))
    power = xp.minimum(power * (1 + 8 * unit), 1.0)
    asked = _quantile(power, xp) - _quantile(xp.where(x > 0, x, 0.5), xp)
    asked = asked * (1 + 256 * unit) + 8 * unit
    return xp.where((b <= a) | none, 0.0, xp.where(x > 0, xp.maximum(asked, 0.0), xp.inf))


def _quantile(p: Any, xp: Any) -> Any:
    """Phi^-1."""
    if xp is jnp:
        inside = (p > 0) & (p < 1)
        value = ndtri(jnp.where(inside, p, 0.5))
        return jnp.where(inside, value, jnp.where(p <= 0, -jnp.inf, jnp.inf))
    with jax.ensure_compile_time_eval(), jax.enable_x64(True):
        return np.asarray(ndtri(np.asarray(p, np.float64)))
