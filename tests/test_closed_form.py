"""The exact formulas against the stored tables and mpmath: values, ends that enclose, derivatives, limits."""

import functools
import importlib
import json
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpjax import closed_form
from dpjax._plan import Problem
from dpjax.pairs import SampledGaussianPair

ORACLES = Path(__file__).parent / "oracles"
sys.path.append(str(ORACLES))
closed_forms = importlib.import_module("closed_forms")

KINDS = ("remove", "add", "replace", "gaussian")
STEPS = KINDS[:3]
_PARTS = {"remove": ((1, 1, 1), (0, 0, 0)), "add": ((-1, 0, -1), (0, 0, 0)), "replace": ((1, 1, 1), (-1, 0, -1))}
_PARTS["gaussian"] = _PARTS["replace"]
_LANES = 64  # one shape, one compilation
_TABLE = {
    f"{file}.{name}": rows
    for file in ("reference", "generated")
    for name, rows in json.loads((ORACLES / f"{file}.json").read_text()).items()
    if isinstance(rows, list)
}


@pytest.fixture(autouse=True)
def double():
    with jax.enable_x64(True):
        yield


def problem_of(kind, sigma, q):
    """One lane each; sigma is the variance of a "gaussian". A component of another kind, not in use, comes first."""
    kind, sigma, q = np.asarray(kind), jnp.asarray(sigma, jnp.float64), jnp.asarray(q, jnp.float64)
    gaussian = jnp.asarray(kind == "gaussian")
    parts = np.array([(_PARTS["replace"], _PARTS[k]) for k in kind], float)
    sign, alpha, beta = (jnp.asarray(parts[..., i]) for i in range(3))
    beside = lambda a, b: jnp.stack([jnp.full_like(b, a), b], 1)
    pair = SampledGaussianPair(beside(0.3, jnp.where(gaussian, 1.0, sigma)), beside(0.3, q), sign, alpha, beta)
    return Problem(jnp.where(gaussian, sigma, 0.0), pair, beside(0.0, jnp.where(gaussian, 0.0, 1.0)))


@functools.partial(jax.jit, static_argnames="unknown")
def compiled(problem, known, unknown):
    return jnp.stack(closed_form.solve(problem, known, unknown=unknown))


def solve_lanes(problem, known, unknown):
    """(lower, estimate, upper), in batches of one size."""
    known = jnp.asarray(known, jnp.float64)
    n = known.shape[0]
    found = []
    for i in range(0, n, _LANES):
        index = np.minimum(np.arange(i, i + _LANES), n - 1)
        part = jax.tree.map(lambda a, index=index: a[index], problem)
        found.append(np.asarray(compiled(part, known[index], unknown)))
    return np.concatenate(found, 1)[:, :n]


def solve(kind, sigma, q, known, unknown):
    kind = [kind] * len(known) if isinstance(kind, str) else kind
    return solve_lanes(problem_of(kind, sigma, q), known, unknown)


def exact_delta(kind, sigma, q, epsilon):
    """delta in mpmath, at as many digits as it takes; ``kind`` "gaussian": sigma is the variance."""

    def once():
        s, p, e = (mp.mpf(x) if isinstance(x, mp.mpf) else mp.mpf(float(x)) for x in (sigma, q, epsilon))
        if kind == "gaussian" or (kind == "replace" and p == 1):
            return closed_forms.gaussian_delta(mp.sqrt(s) if kind == "gaussian" else 2 / s, e)
        return closed_forms.single_step_delta(kind, s, p, e)

    last = None
    for digits in (50, 200, 600, 1500, 4000):
        with mp.workdps(digits):
            now = once()
            if now == 0 and kind == "add" and float(q) < 1 and epsilon > -mp.log1p(-mp.mpf(float(q))):
                return now
            if last is not None and last > 0 and abs(now / last - 1) < mp.mpf(10) ** -25:
                return now
            last = now
    raise AssertionError(f"not settled: {kind} {sigma} {q} {epsilon}")


def exact_log(*args):
    with mp.workdps(50):
        delta = exact_delta(*args)
        return mp.log(delta) if delta > 0 else -mp.inf


def table(*names):
    """Kind, sigma, q and the rows of the tables that have a closed form."""
    rows = [r for name in names for r in _TABLE[name] if not isinstance(r["steps"], list)]
    rows = [r for r in rows if r["steps"] == 1 or float(r["sampling_probability"]) == 1]
    plain = [float(r["sampling_probability"]) == 1 for r in rows]
    kind = ["gaussian" if g else r["direction"] for g, r in zip(plain, rows, strict=True)]
    move = [2 if r["direction"] == "replace" else 1 for r in rows]
    sigma = [float(r["noise_multiplier"]) for r in rows]
    variance = [r["steps"] * (m / s) ** 2 for r, m, s in zip(rows, move, sigma, strict=True)]
    first = [v if g else s for g, v, s in zip(plain, variance, sigma, strict=True)]
    return kind, first, [float(r["sampling_probability"]) for r in rows], rows


# the stored tables


@pytest.mark.parametrize("name", ["reference.gaussian_delta", "reference.single_step_delta", "generated.edge", "generated.gaussian_limit"])  # fmt: skip
def test_delta_tables(name):
    kind, sigma, q, rows = table(name)
    assert len(rows) > 4
    lower, found, upper = solve(kind, sigma, q, [float(r["epsilon"]) for r in rows], "delta")
    with mp.workdps(30):
        want = [mp.mpf(str(r["delta"])) for r in rows]  # some below the smallest float
        want = np.array([float(mp.log(x)) if x > 0 else -np.inf for x in want])
    # close to the largest loss the inputs' own rounding shows: the ends allow for it
    slack = 1e-13 + 4e-15 * np.abs(np.where(np.isfinite(want), want, 0))
    near = (lower - slack <= want) & (want <= upper + slack)
    assert np.all(near), [rows[i]["id"] for i in np.flatnonzero(~near)]
    sharp = (want == -np.inf) | (upper < lower + 1e-11)
    assert np.mean(sharp) > 0.8
    assert np.allclose(found[sharp], want[sharp], rtol=1e-14, atol=1e-12)


@pytest.mark.parametrize("name", ["reference.gaussian_epsilon", "reference.gaussian_epsilon_at_1e-4", "reference.single_step_epsilon"])  # fmt: skip
def test_epsilon_tables(name):
    kind, sigma, q, rows = table(name)
    assert len(rows) > 4
    lower, found, upper = solve(kind, sigma, q, np.log([float(r["delta"]) for r in rows]), "epsilon")
    want = np.array([float(r["epsilon"]) for r in rows])
    assert np.allclose(found, want, rtol=2e-13, atol=1e-16)
    assert np.all((lower - 1e-15 * want <= want) & (want <= upper + 1e-15 * want))


def bare(variance):
    """Gaussians alone: no components at all."""
    none = jnp.zeros((variance.shape[0], 0))
    return Problem(variance, SampledGaussianPair(none, none, *[jnp.zeros((*none.shape, 1))] * 3), none)


@pytest.mark.parametrize("unknown", ["epsilon", "delta"])
def test_a_problem_without_components(unknown):
    """Same numbers; and the ends have the derivatives of the estimate."""
    variance, known = jnp.array([1.0, 4.0]), jnp.full(2, -7.0 if unknown == "epsilon" else 1.0)

    def ends(variance, known):
        return jnp.stack(closed_form.solve(bare(variance), known, unknown=unknown))

    (found, slopes) = jax.jit(lambda v, k: jax.jvp(ends, (v, k), (v, k)))(variance, known)
    assert np.allclose(found, solve("gaussian", variance, [1.0, 1.0], known, unknown), rtol=1e-14)
    assert np.all(np.isfinite(slopes)) and np.all(slopes[1] != 0)
    assert np.array_equal(slopes[0], slopes[1]) and np.array_equal(slopes[2], slopes[1])


# mpmath at the extremes


def test_nodes_are_gauss_legendre():
    with mp.workdps(30):
        for node, weight in zip(closed_form._NODES, closed_form._WEIGHTS, strict=True):
            x = mp.findroot(lambda t: mp.legendre(48, t), 2 * mp.mpf(node) - 1)
            assert abs((x + 1) / 2 - node) < 1e-16
            assert abs((1 - x * x) / (48 * mp.legendre(47, x)) ** 2 / weight - 1) < 2e-16


def share_of_room(lower, found, upper, want, inputs):
    """The error as a share of the distance to the end; the module docstring promises a third."""
    assert lower <= want <= upper, (inputs, lower, float(want), upper)
    if not -1e6 < want < -1e-25:  # the largest are beyond mpmath's digits here, -inf beyond subtraction
        return 0.0
    error = float(found - want)
    return abs(error) / (found - lower if error > 0 else upper - found + 1e-300)


def _gaussian_extremes():
    rng = np.random.default_rng(7)
    mu = 10 ** rng.uniform(-12, 6, 150)
    reach = 10 ** rng.uniform(-3, 3.1, 150)  # log delta down to -8e5
    epsilon = np.where(rng.random(150) < 0.5, mu * reach + 0.5 * mu**2, 0.5 * mu**2 * rng.random(150))
    fixed = [(1e-24, 0.0), (1e-24, 1e-12), (1e-24, -1e-9), (1e12, 5e11), (1e12, 1e4), (0.25, 700.0), (1.0, -1e4),
             (1.0, 1e4), (1.0, -1e-300), (1.0, 1e-300), (4.0, 2.0), (4.0, 2.0 - 1e-12), (100.0, -3.0)]  # fmt: skip
    return np.array(fixed + list(zip(mu**2, epsilon, strict=True)) + list(zip(mu**2, -epsilon, strict=True)))


def test_gaussian_delta_is_accurate_and_enclosed_at_extremes():
    table = _gaussian_extremes()
    lower, found, upper = solve("gaussian", table[:, 0], np.ones(len(table)), table[:, 1], "delta")
    share = [
        share_of_room(lower[i], found[i], upper[i], exact_log("gaussian", variance, 1, epsilon), table[i])
        for i, (variance, epsilon) in enumerate(table)
    ]
    assert np.max(share) < 1 / 3


def _step_extremes(kind):
    """(sigma, q, epsilon): random, then what has gone wrong somewhere."""
    rng = np.random.default_rng(KINDS.index(kind))
    n = 120
    sigma = 10 ** rng.uniform(-2, 3, n)
    sigma[:30] = 10 ** rng.uniform(-3, 8, 30)
    q = np.select([rng.random(n) < 0.1, rng.random(n) < 0.2], [np.ones(n), 1 - 10 ** rng.uniform(-12, 0, n)], 10 ** rng.uniform(-9, 0, n))  # fmt: skip
    if kind == "add":
        largest = np.where(q < 1, -np.log1p(-np.minimum(q, 1 - 1e-16)), 40.0)
        epsilon = largest * np.where(rng.random(n) < 0.7, rng.random(n), 1 - 10 ** rng.uniform(-13, 0, n))
    else:
        inner = np.minimum(rng.uniform(0, 30, n) / sigma + 0.5 / sigma**2, 600.0)
        epsilon = np.where(rng.random(n) < 0.6, np.log1p(q * np.expm1(inner)), 10 ** rng.uniform(-6, 2, n))
    epsilon = np.where(rng.random(n) < 0.2, -np.minimum(epsilon, 40), epsilon)
    fixed = [(1.0, 0.01, 0.0), (1e-3, 0.5, 0.1), (1e8, 0.5, 1e-9), (1e8, 0.5, -1e-9), (1e8, 1.0, 2e-7), (0.05, 1.0, 1e3),
             (0.03, 1.0, 1e4), (0.05, 0.3, 0.0), (1.0, 1e-12, 1e-13), (2.0, 0.3, -0.2), (2.0, 0.3, -3.0)]  # fmt: skip
    if kind != "add":
        fixed += [(1.0, 1e-3, 300.0), (1.0, 0.3, 440.0), (4.0, 0.1, 100.0)]  # log delta down to -8e4
    return np.concatenate([np.stack([sigma, q, epsilon], 1), fixed])


@pytest.mark.parametrize("kind", STEPS)
def test_step_delta_is_accurate_and_enclosed_at_extremes(kind):
    table = _step_extremes(kind)
    lower, found, upper = solve(kind, *table.T, "delta")
    share = [
        share_of_room(lower[i], found[i], upper[i], exact_log(kind, *table[i]), table[i]) for i in range(len(table))
    ]
    assert np.max(share) < 1 / 3


@pytest.mark.parametrize("kind", KINDS)
def test_epsilon_is_enclosed(kind):
    rng = np.random.default_rng(11)
    n = _LANES
    sigma, q = 10 ** rng.uniform(-1.5, 2, n), 10 ** rng.uniform(-6, 0, n)
    sigma[:20], q[20:30] = 10 ** rng.uniform(-3, 8, 20), 1.0
    if kind == "gaussian":
        sigma, q = 10 ** rng.uniform(-18, 6, n), np.ones(n)
    at_zero = solve(kind, sigma, q, np.zeros(n), "delta")[1]
    log_delta = np.where(rng.random(n) < 0.5, -(10 ** rng.uniform(0, 5, n)), at_zero - 10 ** rng.uniform(-5, 1, n))
    lower, found, upper = solve(kind, sigma, q, log_delta, "epsilon")
    for i in range(n):
        where = (kind, sigma[i], q[i])
        capped = kind == "add" and q[i] < 1 and upper[i] >= -np.log1p(-q[i])
        assert capped or exact_log(*where, upper[i]) <= log_delta[i], (where, log_delta[i])
        assert lower[i] == 0 or exact_log(*where, lower[i]) >= log_delta[i], (where, log_delta[i])
        assert lower[i] <= found[i] <= upper[i]
    tight = (found > 1e-3) & (sigma < 2 if kind == "gaussian" else sigma > 0.5)
    assert np.sum(tight) > 5
    assert np.all((upper - lower)[tight] <= 1e-11 * found[tight])


def test_round_trip_far_out():
    """log delta of -1e6 has an epsilon that gives it back."""
    where = ("remove", "add", "replace"), [1.0] * 3, [0.01, 1.0, 0.01]
    epsilon = solve(*where, [-1e6] * 3, "epsilon")[1]
    assert np.allclose(solve(*where, epsilon, "delta")[1], -1e6, rtol=1e-12)
    assert np.allclose(epsilon[1], np.sqrt(2e6) + 0.5, rtol=0.01)


# derivatives

_SMOOTH = [
    ("remove", 1.0, 0.01, 0.5), ("remove", 0.6, 0.2, 2.0), ("remove", 5.0, 0.5, 0.01), ("remove", 1.0, 0.01, 30.0),
    ("remove", 2.0, 0.3, -0.2), ("remove", 0.05, 0.3, 180.0), ("remove", 100.0, 1e-3, 1e-4),
    ("add", 1.0, 0.01, 0.005), ("add", 0.6, 0.2, 0.2), ("add", 5.0, 0.5, 0.3), ("add", 2.0, 0.9, 2.1), ("add", 2.0, 0.3, -1.0),
    ("replace", 1.0, 0.01, 0.5), ("replace", 0.6, 0.2, 2.0), ("replace", 5.0, 0.5, 0.3), ("replace", 0.2, 0.1, 1e-3),
    ("replace", 0.3, 0.9, 1.0), ("replace", 2.0, 0.3, -0.2), ("replace", 20.0, 0.3, 1e-3), ("replace", 1.0, 0.01, 30.0),
    ("gaussian", 1.0, 1.0, 1.0), ("gaussian", 1e-8, 1.0, 1e-4), ("gaussian", 1e-8, 1.0, 4e-3), ("gaussian", 4.0, 1.0, 0.0),
    ("gaussian", 100.0, 1.0, 20.0), ("gaussian", 0.01, 1.0, -0.1), ("gaussian", 1.0, 1.0, 300.0), ("gaussian", 2.0, 1.0, 0.3),
]  # fmt: skip


@functools.cache
def exact_partials(kind, x):
    """Gradient and Hessian of log delta in (sigma, q, epsilon), (variance, -, epsilon) for a Gaussian: differences in mpmath."""
    with mp.workdps(90):
        step = [mp.mpf(10) ** -22 * max(abs(mp.mpf(v)), mp.mpf(10) ** -6) for v in x]
        used = (0, 2) if kind == "gaussian" else (0, 1, 2)

        @functools.cache
        def f(moves):
            s, q, e = (mp.mpf(v) + k * h for v, k, h in zip(x, moves, step, strict=True))
            if kind == "gaussian":
                return mp.log(closed_forms.gaussian_delta(mp.sqrt(s), e))
            return mp.log(closed_forms.single_step_delta(kind, s, q, e))

        unit = lambda i, k: tuple(k if j == i else 0 for j in range(3))
        plus = lambda a, b: tuple(i + j for i, j in zip(a, b, strict=True))
        first, second = np.zeros(3), np.zeros((3, 3))
        for i in used:
            first[i] = (f(unit(i, 1)) - f(unit(i, -1))) / (2 * step[i])
            for j in used:
                terms = [k * m * f(plus(unit(i, k), unit(j, m))) for k in (1, -1) for m in (1, -1)]
                second[i, j] = sum(terms) / (4 * step[i] * step[j])
        return first, second


def _estimate(x, kind, unknown):
    """The estimate of one lane, as a function of the vector (sigma or variance, q, known); kind is data."""
    sigma, q, known = x
    gaussian = kind == KINDS.index("gaussian")
    parts = jnp.asarray([_PARTS[k] for k in KINDS], jnp.float64)[kind]
    pair = SampledGaussianPair(
        jnp.where(gaussian, 1.0, sigma)[None, None], q[None, None], *(parts[None, None, :, i] for i in range(3))
    )
    problem = Problem(jnp.where(gaussian, sigma, 0.0)[None], pair, jnp.where(gaussian, 0.0, 1.0)[None, None])
    return closed_form.solve(problem, known[None], unknown=unknown)[1][0]


@functools.partial(jax.jit, static_argnames="unknown")
def _derivatives(x, kind, unknown):
    def twice(x, kind):
        gradient = jax.grad(_estimate)(x, kind, unknown)
        return gradient, gradient

    hessian, gradient = jax.vmap(jax.jacfwd(twice, has_aux=True))(x, kind)
    return gradient, hessian


@functools.cache
def derivatives(rows, unknown):
    """(gradient, Hessian) of the estimates of rows (kind, sigma or variance, q, known)."""
    full = rows + (("remove", 1.0, 0.5, -1.0),) * (-len(rows) % 32)
    x = jnp.array([row[1:] for row in full])
    kind = np.array([KINDS.index(row[0]) for row in full])
    found = [_derivatives(x[i : i + 32], kind[i : i + 32], unknown) for i in range(0, len(full), 32)]
    return [np.concatenate([np.asarray(a) for a in parts]) for parts in zip(*found, strict=True)]


@functools.cache
def values(rows, unknown):
    """(lower, estimate, upper) of rows."""
    return solve(*zip(*rows, strict=True), unknown)


def at(rows, i, unknown):
    """(lower, estimate, upper), gradient and Hessian of row i."""
    rows = tuple(rows)
    return values(rows, unknown)[:, i], *(a[i] for a in derivatives(rows, unknown))


@pytest.mark.parametrize("i", range(len(_SMOOTH)), ids=[str(row) for row in _SMOOTH])
def test_derivatives_of_delta(i):
    kind, *x = _SMOOTH[i]
    first, second = exact_partials(kind, tuple(x))
    _, gradient, hessian = at(_SMOOTH, i, "delta")
    assert np.allclose(gradient, first, rtol=1e-11, atol=1e-14 * np.max(np.abs(first)))
    assert np.allclose(hessian, second, rtol=1e-8, atol=1e-11 * np.max(np.abs(second)))


_POSITIVE = [row for row in _SMOOTH if row[3] > 0]


@functools.cache
def _positive_with_log_delta():
    return tuple((*row[:3], float(exact_log(*row))) for row in _POSITIVE)


@pytest.mark.parametrize("i", range(len(_POSITIVE)), ids=[str(row) for row in _POSITIVE])
def test_derivatives_of_epsilon(i):
    kind, sigma, q, epsilon = _POSITIVE[i]
    first, second = exact_partials(kind, (sigma, q, epsilon))
    # epsilon(sigma, q, l) solves F(sigma, q, epsilon) = l
    slope = first[2]
    want = np.array([-first[0], -first[1], 1.0]) / slope
    cross = np.array([second[0, 2], second[1, 2], 0.0])
    direct = np.pad(second[:2, :2], (0, 1))
    curved = -(direct + np.outer(cross, want) + np.outer(want, cross) + second[2, 2] * np.outer(want, want)) / slope
    found, gradient, hessian = at(_positive_with_log_delta(), i, "epsilon")
    log_delta = _positive_with_log_delta()[i][3]
    noise = 2.0**-52 * (1 + (1 + abs(log_delta)) / abs(slope * epsilon))  # of epsilon, an ulp of log delta away
    assert abs(found[1] / epsilon - 1) < 8 * noise
    assert np.allclose(gradient, want, rtol=1e-11 + 1e4 * noise, atol=(1e-13 + 100 * noise) * np.max(np.abs(want)))
    assert np.allclose(hessian, curved, rtol=1e-8 + 1e6 * noise, atol=(1e-10 + 1e4 * noise) * np.max(np.abs(curved)))


# limits

_LIMITS = [  # kind, sigma (variance for a Gaussian), q, epsilon, delta
    ("gaussian", 0.0, 1.0, 0.5, 0.0), ("gaussian", 0.0, 1.0, -0.5, -np.expm1(-0.5)), ("gaussian", np.inf, 1.0, 3.0, 1.0),
    ("gaussian", 1.0, 1.0, np.inf, 0.0), ("gaussian", 1.0, 1.0, -np.inf, 1.0),
    ("remove", 0.0, 0.3, 0.5, 0.3), ("remove", 0.0, 0.3, -0.1, 0.3), ("remove", 0.0, 0.3, -2.0, -np.expm1(-2.0)),
    ("add", 0.0, 0.3, 0.0, 0.3), ("add", 0.0, 0.3, 0.2, 1 - np.exp(0.2) * 0.7), ("add", 0.0, 0.3, 0.5, 0.0),
    ("replace", 0.0, 0.3, 2.0, 0.3), ("replace", 0.0, 0.3, -2.0, 1 - np.exp(-2.0) * 0.7),
    *[(kind, np.inf, 0.3, 0.5, 0.0) for kind in STEPS], *[(kind, np.inf, 0.3, -0.1, -np.expm1(-0.1)) for kind in STEPS],
    *[(kind, 1.0, 0.0, 0.5, 0.0) for kind in STEPS], *[(kind, 1.0, 0.0, -0.5, -np.expm1(-0.5)) for kind in STEPS],
    *[(kind, 1.0, 1.0, 1.0, 0.12693673750664395) for kind in ("remove", "add")],
    ("replace", 2.0, 1.0, 1.0, 0.12693673750664395), ("replace", 2.0, 0.2, np.inf, 0.0), ("remove", 0.0, 0.3, np.inf, 0.3),
    ("add", 1.0, 0.3, -np.log1p(-0.3) + 1e-15, 0.0), ("add", 1.0, 0.3, 5.0, 0.0),
    ("remove", 1.0, 0.3, np.log(0.7) - 1e-15, 0.3), ("remove", 1.0, 0.3, -50.0, 1.0), ("add", 1.0, 0.3, -50.0, 1.0),
]  # fmt: skip


@pytest.mark.parametrize("i", range(len(_LIMITS)), ids=[str(row[:4]) for row in _LIMITS])
def test_limits_of_delta(i):
    delta = _LIMITS[i][4]
    (lower, value, upper), gradient, hessian = at([row[:4] for row in _LIMITS], i, "delta")
    assert np.allclose(np.exp(value), delta, rtol=1e-13, atol=0 if delta else 1e-300)
    assert all(np.all(np.isfinite(a)) for a in (gradient, hessian))
    assert np.exp(lower) * (1 - 1e-15) <= delta <= np.exp(upper) * (1 + 1e-15)


_ENDS = [  # kind, sigma (variance), q, log delta, epsilon, the gradient in (sigma, q, log delta)
    ("gaussian", 0.0, 1.0, -5.0, 0.0, (0, 0, 0)), ("gaussian", 0.0, 1.0, -np.inf, 0.0, (0, 0, 0)),
    ("gaussian", np.inf, 1.0, -5.0, np.inf, (0, 0, 0)), ("gaussian", np.inf, 1.0, 0.0, 0.0, (0, 0, 0)),
    ("gaussian", 1.0, 1.0, -np.inf, np.inf, (0, 0, 0)), ("gaussian", 1.0, 1.0, 0.0, 0.0, (0, 0, 0)),
    ("remove", 1.0, 0.3, -0.5, 0.0, (0, 0, 0)), ("remove", 1.0, 0.0, -5.0, 0.0, (0, 0, 0)),
    ("remove", 0.0, 0.3, -5.0, np.inf, (0, 0, 0)), ("remove", 0.0, 0.3, np.log(0.31), 0.0, (0, 0, 0)),
    ("remove", np.inf, 0.3, -5.0, 0.0, (0, 0, 0)), ("replace", 1.0, 0.3, -0.5, 0.0, (0, 0, 0)),
    ("replace", 0.0, 0.3, -5.0, np.inf, (0, 0, 0)), ("replace", 1.0, 0.3, -np.inf, np.inf, (0, 0, 0)),
    ("add", 1.0, 0.3, -np.inf, -np.log(0.7), (0, 1 / 0.7, 0)), ("add", 1.0, 0.3, -1e5, -np.log(0.7), (0, 1 / 0.7, 0)),
    ("add", 1.0, 0.3, -0.5, 0.0, (0, 0, 0)), ("add", 0.0, 0.3, np.log(0.1), np.log(0.9 / 0.7), (0, 1 / 0.7, -0.1 / 0.9)),
    ("add", 0.0, 0.3, -np.inf, -np.log(0.7), (0, 1 / 0.7, 0)), ("add", 0.0, 1.0, -5.0, np.inf, (0, 0, 0)),
]  # fmt: skip


@pytest.mark.parametrize("i", range(len(_ENDS)), ids=[str(row[:4]) for row in _ENDS])
def test_limits_of_epsilon(i):
    *_, epsilon, want = _ENDS[i]
    (lower, value, upper), gradient, hessian = at([row[:4] for row in _ENDS], i, "epsilon")
    assert np.allclose(value, epsilon, rtol=1e-13, atol=0)
    assert np.allclose(gradient, want, rtol=1e-12)
    assert np.all(np.isfinite(hessian))
    assert lower <= epsilon <= upper
    if 0 < epsilon < np.inf:
        assert upper - lower < 1e-12


def test_q_one_is_the_gaussian_with_its_derivatives():
    rows = [("remove", 2.0, 1.0, 0.7), ("add", 2.0, 1.0, 0.7), ("replace", 4.0, 1.0, 0.7), ("gaussian", 0.25, 1.0, 0.7)]
    want, slopes, _ = at(rows, 3, "delta")
    for i in range(3):
        value, gradient, _ = at(rows, i, "delta")
        assert np.allclose(value[1], want[1], rtol=1e-14)
        assert np.allclose([gradient[0], gradient[2]], [slopes[0] * -0.5 / rows[i][1], slopes[2]], rtol=1e-12)


def test_small_epsilons_of_replace_one_keep_their_slope():
    """d delta / d epsilon at 0 is -((1 - q) Phi(0) + q Phi(-1 / sigma)), also where exp(1 / 2 sigma^2) is huge."""
    rows = [("replace", sigma, 0.2, 0.0) for sigma in (0.1, 0.3, 2.0)]
    for i, (_, sigma, _, _) in enumerate(rows):
        value, gradient, _ = at(rows, i, "delta")
        want = -(0.8 * 0.5 + 0.2 * float(mp.ncdf(-1 / mp.mpf(sigma))))
        assert np.allclose(np.exp(value[1]) * gradient[2], want, rtol=1e-12)


# lanes


def test_applies():
    base = problem_of(["remove"] * 7, [1.0] * 7, [0.1] * 7)
    count = base.count.at[1, 1].set(2.0).at[2, 0].set(1.0).at[4].set(0.0).at[5].set(0.0)
    q = base.pair.q.at[6, 1].set(0.0)
    problem = base._replace(
        variance=jnp.array([0.0, 0.0, 0.0, 0.3, 0.3, 0.0, 0.3]), count=count, pair=base.pair._replace(q=q)
    )
    want = [True, False, False, False, True, True, True]
    assert closed_form.applies(problem).tolist() == want
    on_host = closed_form.applies(jax.tree.map(np.asarray, problem))
    assert isinstance(on_host, np.ndarray) and on_host.tolist() == want


@pytest.mark.parametrize("unknown", ["epsilon", "delta"])
def test_lanes_stand_alone(unknown):
    """A batch of all kinds, with lanes that do not apply, are invalid or at a limit, gives what each lane gives alone."""
    kinds = ["remove", "add", "replace", "remove", "remove", "remove", "add", "replace"]
    problem = problem_of(kinds, [1.0, 1.0, 1.0, 1.0, np.nan, 1.0, 0.0, 0.0], [0.1, 0.1, 0.1, 0.1, 0.1, 2.0, 0.2, 0.2])
    problem = problem._replace(count=problem.count.at[3].set(5.0))
    known = jnp.full(8, -7.0 if unknown == "epsilon" else 0.05)
    together = solve_lanes(problem, known, unknown)
    for i in range(8):
        alone = solve_lanes(jax.tree.map(lambda a, i=i: a[i : i + 1], problem), known[i : i + 1], unknown)
        assert np.allclose(together[:, i], alone[:, 0], rtol=1e-14, equal_nan=True)
    assert np.all(np.isnan(together[:, 3:6])) and not np.any(np.isnan(together[:, [0, 1, 2, 6, 7]]))


@pytest.mark.parametrize("unknown", ["epsilon", "delta"])
def test_lanes_do_not_poison_each_other(unknown):
    """One part a component, as remove and add have; a lane that does not apply, an invalid one, one at its limit."""
    problem = problem_of(["remove"] * 5, [1.0, 1.0, np.nan, -1.0, 0.0], [0.1] * 5)
    problem = problem._replace(count=problem.count.at[1].set(5.0))
    pair = problem.pair._replace(**{k: getattr(problem.pair, k)[..., :1] for k in ("sign", "alpha", "beta")})
    known = jnp.full(5, -7.0 if unknown == "epsilon" else 0.05)

    def total(sigma):
        found = closed_form.solve(problem._replace(pair=pair._replace(sigma=sigma)), known, unknown=unknown)[1]
        return jnp.sum(jnp.where(jnp.isfinite(found), found, 0.0)), found

    (_, found), gradient = jax.jit(jax.value_and_grad(total, has_aux=True))(pair.sigma)
    assert np.allclose(found, solve_lanes(problem, known, unknown)[1], rtol=1e-14, equal_nan=True)
    assert gradient[0, 1] < 0 and np.all(gradient[1:] == 0) and np.all(gradient[:, 0] == 0)


# properties

_RUN = 8


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(STEPS),
    sigma=st.floats(-3, 4).map(lambda x: 10**x),
    q=st.one_of(st.floats(-8, 0).map(lambda x: 10**x), st.just(1.0)),
    epsilon=st.floats(-50, 50),
    step=st.floats(-10, 2).map(lambda x: 10**x),
)
def test_delta_falls_in_epsilon_and_lies_between_its_trivial_bounds(kind, sigma, q, epsilon, step):
    points = np.array([epsilon + i * step for i in range(_RUN)])
    with jax.enable_x64(True):
        lower, found, upper = solve(kind, [sigma] * _RUN, [q] * _RUN, points, "delta")
    assert np.all(lower <= found) and np.all(found <= upper)
    assert np.all(lower[1:] <= upper[:-1])
    certain = np.log(-np.expm1(np.minimum(points, -1e-300)))  # delta >= 1 - e^epsilon
    assert np.all(upper >= np.where(points < 0, certain, -np.inf) - 1e-15)
    assert np.all(lower <= np.where(points >= 0, np.log(q), 0.0))  # the record is seen with probability q


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(STEPS),
    sigma=st.floats(-2, 4).map(lambda x: 10**x),
    q=st.one_of(st.floats(-8, 0).map(lambda x: 10**x), st.just(1.0)),
    log_delta=st.floats(-1e4, -1e-3),
    step=st.floats(-6, 2).map(lambda x: 10**x),
)
def test_epsilon_falls_in_delta_and_gives_delta_back(kind, sigma, q, log_delta, step):
    points = np.array([log_delta - i * step for i in range(_RUN)])
    where = kind, [sigma] * _RUN, [q] * _RUN
    with jax.enable_x64(True):
        lower, found, upper = solve(*where, points, "epsilon")
        floor, ceiling = solve(*where, upper, "delta")[0], solve(*where, lower, "delta")[2]
    assert np.all(np.isfinite(upper)) and np.all(lower <= found) and np.all(found <= upper)
    assert np.all(upper[1:] >= lower[:-1])
    assert np.all(floor <= points)
    assert np.all((ceiling >= points) | (found == 0))
