"""What all laws are asked: masses, profiles and derivatives against an oracle in mpmath, and whether they fit together.

An oracle is made from a record whose leaves are mpmath numbers: ``masses(x)`` (P(L > x), Q(L > x), P(L <= x), Q(L <= x), finite losses only),
``profile(x)`` and ``profile_below(x)``.
"""

import functools

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np

from dpjax import Adjacency
from dpjax.laws import Reversed, loss_law

U = mp.mpf(2) ** -53
ULPS = 16
NAMES = ("p_above", "q_above", "p_below", "q_below", "profile", "profile_below")


def everything(record, x, direction):
    law = loss_law(record, direction)
    return jnp.stack([*law.tails(x), law.profile(x), law.profile_below(x)])


@functools.partial(jax.jit, static_argnames="direction")
def _evaluated(records, x, direction):
    return jax.vmap(lambda r, x: everything(r, x, direction))(records, x)


@functools.partial(jax.jit, static_argnames="direction")
def _derivatives(records, moves, x, direction):
    def along(record, move, x):
        value = lambda t: everything(jax.tree.map(lambda a, v: a + t * v, record, move), x, direction)
        slope = lambda t: jax.jvp(value, (t,), (1.0,))[1]
        return jnp.stack(jax.jvp(slope, (0.0,), (1.0,)))

    return jax.vmap(along)(records, moves, x)


def exact(record, move=None, t=0):
    """The record with mpmath numbers (lists of them) for leaves, moved by t times ``move``."""
    numbers = lambda leaf: [mp.mpf(float(a)) for a in leaf] if np.ndim(leaf) else mp.mpf(float(leaf))
    if move is None:
        return jax.tree.map(numbers, record)
    plus = lambda a, v: [i + t * j for i, j in zip(a, v, strict=True)] if isinstance(a, list) else a + t * v
    return jax.tree.map(lambda a, v: plus(numbers(a), numbers(v)), record, move)


def as_arrays(record):
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), record)


def stack(records):
    return jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(a, jnp.float64) for a in leaves]), *records)


def lanes(cases):
    """(record, x) pairs as one batch: [(record, [x])] -> records, (lanes,)."""
    pairs = [(record, float(x)) for record, xs in cases for x in xs]
    return stack([r for r, _ in pairs]), jnp.asarray([x for _, x in pairs], jnp.float64), pairs


def values(cases, direction=Adjacency.REMOVE):
    records, x, pairs = lanes(cases)
    return np.asarray(_evaluated(records, x, direction)), pairs


def _ends(f, x):
    """f at x moved by ULPS of its roundings either way."""
    move = abs(x) * ULPS * U
    return sorted((f(x - move), f(x), f(x + move)))[::2]


def _log(v):
    return abs(mp.log(v)) if v > 0 else mp.inf


def assert_exact(value, f, x, what):
    """f(x) up to ULPS (1 + |log f|) roundings, x being known to ULPS of its own; below 1e-300 anything small."""
    low, high = _ends(f, mp.mpf(x))
    value = mp.mpf(float(value))
    slack = lambda v: ULPS * U * (1 + _log(v)) * v if v > 0 else 0
    tiny = mp.mpf(10) ** -300
    excess = max(value - high, low - value, 0) / (U * (1 + _log(high)) * high) if high else value
    assert low - slack(low) - tiny <= value <= high + slack(high) + tiny, (
        f"{what} at {x!r} is {mp.nstr(value, 17)}, not in [{mp.nstr(low, 17)}, {mp.nstr(high, 17)}]: {mp.nstr(excess, 4)} ulps"
    )


def functions(oracle):
    """The six of ``NAMES``; the masses at one x are worked out once."""
    masses = functools.cache(oracle.masses)
    return [*(lambda x, i=i: masses(x)[i] for i in range(4)), oracle.profile, oracle.profile_below]


def assert_law(cases, oracle_of, direction=Adjacency.REMOVE):
    """Every mass and profile of [(record, [x])] against oracle_of(record)."""
    got, pairs = values(cases, direction)
    oracles = {id(record): functions(oracle_of(exact(record))) for record, _ in cases}
    for row, (record, x) in zip(got, pairs, strict=True):
        for name, f, value in zip(NAMES, oracles[id(record)], row, strict=True):
            assert_exact(value, f, x, f"{name} of {record!r}")


@functools.partial(jax.jit, static_argnames="direction")
def _fitting(record, x, direction):
    law = loss_law(record, direction)
    r = Reversed(law)
    numbers = [jnp.asarray(a, jnp.float64) for a in (law.p_infinite(), law.q_infinite(), *law.support())]
    return everything(record, x, direction), jnp.stack([*r.tails(-x), r.profile(-x), r.profile_below(-x)]), numbers


whole = jax.jit(everything, static_argnames="direction")


def assert_fits(cases, direction=Adjacency.REMOVE):
    """Tails and profiles of one law agree with each other, with its infinite masses, its ends, and its reverse."""
    for record, xs in cases:
        x = np.sort(np.asarray(xs, np.float64))
        own, mirrored, numbers = _fitting(as_arrays(record), jnp.asarray(x), direction)
        own, mirrored = np.asarray(own), np.asarray(mirrored)
        top, bottom, low, high = (float(a) for a in numbers)
        np.testing.assert_array_equal(mirrored, own[[3, 2, 1, 0, 5, 4]])
        p_above, q_above, p_below, q_below, profile, profile_below = own
        np.testing.assert_allclose(p_above + p_below, 1 - top, rtol=3e-15)
        np.testing.assert_allclose(q_above + q_below, 1 - bottom, rtol=3e-15)
        y = np.clip(x, -100, 100)
        size = np.where(np.abs(x) < 100, 1e-14 + np.abs(x) * 1e-14, np.inf)
        assert (np.abs(top + p_above - np.exp(y) * q_above - profile) <= size).all()
        assert (np.abs(bottom + q_below - np.exp(-y) * p_below - profile_below) <= size).all()
        outside = np.abs(x) * 2e-14
        assert (p_above[x > high + outside] == 0).all() and (p_below[x < low - outside] == 0).all()
        for a, sign in zip(own, (-1, -1, 1, 1, -1, 1), strict=True):
            assert (sign * np.diff(a) >= -4e-15 * np.maximum(a[1:], a[:-1])).all()


def assert_derivatives(cases, oracle_of, direction=Adjacency.REMOVE, tol=1e-9):
    """First and second derivatives along a direction in all leaves at once, at fixed x, against differences."""
    records, x, pairs = lanes(cases)
    random = np.random.default_rng(0)
    records = [r for r, _ in pairs]
    moves = [jax.tree.map(lambda leaf: leaf * random.uniform(0.3, 1.0, np.shape(leaf)), r) for r in records]
    got = np.asarray(_derivatives(stack(records), stack(moves), x, direction))
    for row, record, move, at in zip(got, records, moves, np.asarray(x), strict=True):
        h = mp.mpf(10) ** -10
        oracles = [functions(oracle_of(exact(record, move, t))) for t in (-h, 0, h)]
        for name, column, *fs in zip(NAMES, row.T, *oracles, strict=True):
            down, value, up = (f(mp.mpf(float(at))) for f in fs)
            one, two = (up - down) / (2 * h), (up - 2 * value + down) / h**2
            scale = 1 + _log(value) if value else 1
            what = f"{name} of {record!r} at {at!r}: {column} for {mp.nstr(one, 12)}, {mp.nstr(two, 12)}"
            assert abs(column[0] - one) <= tol * max(abs(one), value * scale) + 1e-290, what
            assert abs(column[1] - two) <= tol * max(abs(two), value * scale**2) + 1e-290, what
