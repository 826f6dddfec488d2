r"""Samplers of a dataset of known size, in the numbers that a Renyi divergence needs: each rounded to the side that costs more.

A batch that is full replaces a record, which moves a sum by two norm bounds; one that is not gains or loses one. Whether it is full
is a coin that is public in the analysis, so that the moments of the two add up:

.. math:: e^{(\alpha-1) D} = f e^{(\alpha-1) D(\sigma/2, k)} + (1 - f) e^{(\alpha-1) D(\sigma, q)},

D(sigma, q) being the divergence of the Poisson-sampled Gaussian, f the probability that a batch is full without the record, and
k that of the record to be in it then. A batch of fixed size has f = 1. The numbers are worked out in float64, whatever the
caller's dtype is: dataset sizes are not always floats of 32 bits, and the divergence need not rise with them.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import _precision, _validate, mechanisms
from dpjax._pytree import node
from dpjax.adaptive import _sums
from dpjax.adaptive._renyi import poisson_gaussian_renyi
from dpjax.mechanisms import Adjacency

_LOWEST = -700.0  # the logarithm of nothing
SIZED = (mechanisms.FixedSizeSampled, mechanisms.TruncatedPoissonSampled)
_DIRECTIONS = {
    Adjacency.ADD_OR_REMOVE_ONE: ("remove", "add"),
    Adjacency.ADD: ("add",),
    Adjacency.REMOVE: ("remove",),
}


@node
class Sized(mechanisms.Mechanism):
    """A sampled Gaussian: with probability exp(``log_full``) at ``kept`` and half the noise, with ``rest`` at ``rate``.

    Attributes:
      log_full: that probability may be far below a float of 32 bits, and still count at high orders.
      rest: the other probability; all are rounded up.
      kept, rate: probabilities of the record to be in the batch.
      mechanism: the Gaussian, or another mechanism, which has no price.
    """

    log_full: Any
    rest: Any
    kept: Any
    rate: Any
    mechanism: Any

    def check(self) -> None:
        """Nothing: the record that it was made from is checked."""


def sized(record: Any, base: Any, dtype: Any) -> Sized:
    """``record``, whose mechanism in ``dtype`` is ``base``; NaN where a traced field is out of range."""
    if isinstance(record, mechanisms.FixedSizeSampled):
        numbers, names = (record.dataset_size, record.sample_size), (None, None, "share", None)
    else:
        numbers = (record.dataset_size, record.sampling_probability, record.max_batch_size)
        names = ("log_full", "rest", "kept", "rate")
    shape = np.broadcast_shapes(*map(np.shape, numbers))
    traced = any(map(_validate.is_traced, numbers))
    xp = jnp if traced else np
    lanes = tuple(xp.broadcast_to(x, shape).reshape(-1) for x in numbers)

    def found(name: str | None) -> jax.Array:
        if name is None:  # always full
            return jnp.zeros((), dtype)
        if traced:
            values = _precision.traced(_number, name, lanes, (_precision.UP, _precision.NEAREST))[0]
        else:
            values = _precision.concrete(_number, name, *lanes)[0]
        return jnp.minimum(_sums.cast(values.reshape(shape), dtype, np.inf), 0.0 if name == "log_full" else 1.0)

    first, second, third, fourth = map(found, names)
    return Sized(first, second, third, fourth, base)


def _number(name: str, *lanes: jax.Array) -> tuple[jax.Array, jax.Array]:
    """One of the four, (lanes,), from above."""
    value = jax.vmap(lambda *x: _share(*x) if name == "share" else _truncated(name, *x))(*lanes)
    some = value > 0
    log = jnp.log(jnp.where(some, value, 1.0))
    slack = jax.lax.stop_gradient(64 * jnp.finfo(value.dtype).eps * (1 + jnp.abs(log)))
    if name == "log_full":
        value = jnp.where(some, log + slack, jnp.where(value == 0, _LOWEST, value))
    else:
        value = jnp.where(some, value * (1 + slack), value)
    return value, value


def _whole(x: jax.Array, low: float) -> jax.Array:
    return (x >= low) & (x < jnp.inf) & (x == jnp.round(x))


def _share(size: jax.Array, sample: jax.Array) -> jax.Array:
    valid = _whole(size, 1.0) & _whole(sample, 0.0) & (sample <= size)
    return jnp.where(valid, sample / jnp.where(valid, size, 1.0), jnp.nan)


def _truncated(name: str, size: jax.Array, rate: jax.Array, limit: jax.Array) -> jax.Array:
    from dpjax.laws._build import full_and_kept

    valid = _whole(size, 1.0) & _whole(limit, 1.0) & (rate >= 0) & (rate <= 1)
    safe = (jnp.where(valid, x, 1.0) for x in (size, rate, limit))
    full, rest, kept = full_and_kept(*safe)
    hidden = (
        (full <= 0) & (limit < size) & (rate > 0)
    )  # flushed to 0: at most e^-690, and the record is drawn at most at its rate
    full, kept = jnp.where(hidden, math.exp(-690.0), full), jnp.where(hidden, rate, kept)
    return jnp.where(valid, {"log_full": full, "rest": rest, "kept": kept, "rate": rate}[name], jnp.nan)


def renyi(record: Sized, sigma: jax.Array, order: jax.Array, adjacency: Adjacency) -> jax.Array:
    """The divergence from above; everything in one dtype.

    Raises:
      ValueError: the adjacency has no analysis.
    """
    if adjacency not in _DIRECTIONS:
        raise ValueError(
            f"batches of fixed or limited size have no Renyi price for {adjacency}: use ADD_OR_REMOVE_ONE, or request "
            "what dpjax.renyi says under that adjacency, by keyword."
        )
    gap = order - 1

    def along(direction: str) -> jax.Array:
        half, whole = sigma / 2, sigma
        exponents = [
            _sums.up(gap * poisson_gaussian_renyi(order, noise, rate, direction), 4.0)
            for noise, rate in ((half, record.kept), (whole, record.rate))
        ]
        return _sums.up(_log_mean(record.log_full, exponents[0], record.rest, exponents[1]) / gap, 16.0)

    values = [along(direction) for direction in _DIRECTIONS[adjacency]]
    return values[0] if len(values) == 1 else jnp.maximum(*values)


def _log_mean(log_full: jax.Array, one: jax.Array, rest: jax.Array, two: jax.Array) -> jax.Array:
    """log(exp(log_full + one) + rest e^two) for probabilities of sum 1 and exponents >= 0, from above."""
    eps, tiny = float(jnp.finfo(one.dtype).eps), float(jnp.finfo(one.dtype).tiny)
    two = jnp.where(rest == 0, 0.0, two)
    bad = jnp.isnan(log_full + one + rest + two)
    endless = ~bad & ((one == math.inf) | (two == math.inf))
    idle = bad | endless
    one, two = (jnp.where(idle, 0.0, x) for x in (one, two))
    moved = log_full + one + jax.lax.stop_gradient(16 * eps * (1 + jnp.abs(log_full) + one))  # of what full batches add
    near = (two < 1) & (moved < 0)
    small = near & (one < 1)
    full = jnp.maximum(jnp.exp(jnp.where(small, log_full, 0.0)), tiny) * jnp.expm1(jnp.where(small, one, 0.0))
    full = jnp.where(small, full, jnp.maximum(jnp.exp(jnp.where(near, moved, 0.0)), tiny))
    grown = jnp.log1p(full + rest * jnp.expm1(jnp.where(near, two, 0.0)))
    other = jnp.log(jnp.where(rest > 0, rest, tiny)) + two
    other = other + jax.lax.stop_gradient(16 * eps * (1 + jnp.abs(other) + two))
    far = jnp.minimum(jnp.logaddexp(jnp.where(near, 0.0, moved), jnp.where(near, 0.0, other)), jnp.maximum(one, two))
    return jnp.where(bad, jnp.nan, jnp.where(endless, math.inf, jnp.where(near, grown, far)))
