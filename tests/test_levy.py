"""The Levy engine: estimates, their estimated errors, and the bracket, each against an independent source.

Two verdicts are kept apart: the stated error or bracket holds the truth (always), and it is small (where claimed).
"""

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

import dpjax
from dpjax import Adjacency, Gaussian, PoissonSampled, _phi, dpsgd, levy
from dpjax._plan import Problem
from dpjax.pairs import dominating_pair

ORACLES = Path(__file__).parent / "oracles"
sys.path.append(str(ORACLES))
closed_forms = importlib.import_module("closed_forms")

DIRECTIONS = {"remove": Adjacency.REMOVE, "add": Adjacency.ADD, "replace": Adjacency.REPLACE_ONE}
FIELDS = ("noise_multiplier", "sampling_probability", "steps")
LANES = 8  # of every compiled call, so that few programs are compiled


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


@functools.cache
def tables(file):
    return json.loads((ORACLES / f"{file}.json").read_text())


def table(file, name):
    return tables(file)[name]


def problem(sigma, q, steps, direction, variance=0.0):
    """Lanes along the first axis of each argument, components along the second (scalars: one of each)."""
    sigma, q, steps = np.broadcast_arrays(*(np.asarray(x, float) for x in (sigma, q, steps)))
    shape = sigma.shape if sigma.ndim == 2 else (sigma.size, 1)
    sigma, q, steps = (jnp.asarray(x.reshape(shape)) for x in (sigma, q, steps))
    pair = dominating_pair(PoissonSampled(q, Gaussian(sigma)), DIRECTIONS[direction])
    return Problem(jnp.full(shape[0], variance), pair, steps)


def lanes(rows, direction):
    """(problem, epsilon, delta, rows) of the rows in ``direction``; "both" rows count as either."""
    rows = [r for r in rows if r["direction"] in (direction, "both")]
    column = lambda name: np.array([float(r[name]) for r in rows])
    return problem(*map(column, FIELDS), direction), column("epsilon"), column("delta"), rows


def says(rows, wrong):
    return [{k: r[k] for k in ("id", *FIELDS, "epsilon", "delta")} for r, bad in zip(rows, wrong, strict=True) if bad]


def padded(run):
    """``run`` in one compiled shape for any number of lanes: the last chunk repeats the last lane."""
    compiled = jax.jit(run)

    def call(p, given):
        n, out = p.count.shape[0], []
        for start in range(0, n, LANES):
            i = np.minimum(np.arange(start, start + LANES), n - 1)
            out.append(compiled(jax.tree.map(lambda a, i=i: a[i], p), jnp.asarray(given, float)[i]))
        return jax.tree.map(lambda *a: np.concatenate(a)[:n], *out)

    return call


# one program for all three, which share the quadratures
estimates = padded(lambda p, x: (levy.delta(p, x), levy.loss_cdf(p, x, "P"), levy.loss_cdf(p, x, "Q")))
delta = lambda p, eps: estimates(p, eps)[0]
cdf = {"P": lambda p, x: estimates(p, x)[1], "Q": lambda p, x: estimates(p, x)[2]}
bracket = padded(levy.bracket)
epsilon = padded(lambda p, d: levy.solve(p, d, unknown="epsilon"))
phi = {under: jax.jit(lambda p, t, under=under: levy.log_characteristic(p, t, under)) for under in "PQ"}
DELTA_ROWS = [
    ("remove", ("psg", "rows", 8)), ("add", ("psg", "rows", 5)), ("remove", ("psg", "sparse_rows", 1)),
    ("remove", ("generated", "sparse_neighbours", 2)), ("add", ("generated", "sparse_neighbours", 1)),
    ("replace", ("generated", "replace_one_delta", 1)), ("remove", ("generated", "few_steps", 1)),
    ("add", ("generated", "few_steps", 1)), ("replace", ("generated", "few_steps", 1)),
    ("remove", ("generated", "far_parameters", 1)), ("add", ("generated", "far_parameters", 1)),
    ("add", ("generated", "edge", 3)), ("remove", ("generated", "edge", 3)),
]  # fmt: skip


def delta_rows(direction):
    rows = []
    for d, (file, name, step) in DELTA_ROWS:
        if d == direction:
            rows += [r for r in table(file, name) if r["direction"] in (direction, "both")][::step]
    return rows


# --------------------------------------------------------------------------------------------------------------------
# Characteristic functions


def exact_phi(direction, sigma, q, t, under):
    """phi or phi' of one step, mpmath."""
    with mp.workdps(20):
        sigma, q, t = mp.mpf(sigma), mp.mpf(q), mp.mpf(t)
        null = lambda x: mp.npdf(x, 0, sigma)
        mixture = lambda c: lambda x: (1 - q) * mp.npdf(x, 0, sigma) + q * mp.npdf(x, c, sigma)
        p, r = {"remove": (mixture(1), null), "add": (null, mixture(1)), "replace": (mixture(1), mixture(-1))}[
            direction
        ]
        top, bottom = (p, r) if under == "P" else (r, p)
        # the trapezoid rule converges geometrically
        step, reach = sigma / 16, 11 * sigma + 1
        xs = [step * j for j in range(-int(reach / step), int(reach / step) + 1)]
        return complex(step * mp.fsum(top(x) * mp.expj(t * mp.log(top(x) / bottom(x))) for x in xs))


@pytest.mark.parametrize("under", ["P", "Q"])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_phi_by_quadrature(direction, under):
    for sigma, q, t in [(1.0, 0.1, 3.0), (0.5, 0.01, 1.0), (4.0, 0.5, 12.0)]:
        modulus, angle = phi[under](problem(sigma, q, 1, direction), jnp.array([[t]]))
        value = np.exp(modulus[0, 0]) * np.exp(1j * angle[0, 0])
        assert abs(value - exact_phi(direction, sigma, q, t, under)) < 2e-14, (sigma, q, t)


@pytest.mark.parametrize("under", ["P", "Q"])
@pytest.mark.parametrize("components", [0, 1])
def test_phi_of_a_gaussian_is_a_closed_form(under, components):
    p = problem(np.ones((1, components)), 0.0, 1.0, "remove", variance=0.25)
    t = np.array([[0.0, 0.3, 7.0, 50.0]])
    modulus, angle = phi[under](p, jnp.asarray(t))
    np.testing.assert_allclose(modulus, -0.125 * t**2, rtol=1e-14)
    np.testing.assert_allclose(angle, 0.125 * t, rtol=1e-14)


def test_phi_multiplies():
    t = jnp.array([[0.7]])
    both = phi["P"](problem([[1.0, 2.0]], [[0.1, 0.2]], [[3.0, 5.0]], "add", 0.04), t)
    parts = [phi["P"](problem(s, q, 1, "add"), t) for s, q in [(1.0, 0.1), (2.0, 0.2)]]
    for i, gauss in [(0, -0.02 * 0.7**2), (1, 0.02 * 0.7)]:
        np.testing.assert_allclose(both[i], 3 * parts[0][i] + 5 * parts[1][i] + gauss, rtol=1e-13)


@pytest.mark.parametrize("points", ["coarse", "split"])
def test_discretised_phi(points):
    """Within (cell / spread)^2 / 6 or so of the exact one, far nearer than the cell's width would be."""
    p, t = problem(1.0, 0.1, 10, "replace"), jnp.array([[0.5, 2.0]])
    run = jax.jit(lambda p, t: levy.log_characteristic(p, t, nodes=512, points=points))
    np.testing.assert_allclose(np.array(run(p, t)), np.array(phi["P"](p, t)), rtol=5e-4, atol=1e-5)


def normal_mass(low, high, centre):
    """Of N(centre, 1) between two points, from the tail that does not cancel."""
    low, high = low - centre, high - centre
    return mp.ncdf(high) - mp.ncdf(low) if low < 0 else mp.ncdf(-low) - mp.ncdf(-high)


CENTRES = {"remove": (1, 0), "add": (0, -1), "replace": (1, -1)}  # of P's and Q's other component, 0 for none


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(("sigma", "q"), [(1.0, 0.01), (0.1, 0.3), (30.0, 0.5)])
def test_masses_of_cells(direction, sigma, q):
    """Relative to mpmath."""
    size = 256
    pair = problem(sigma, q, 1, direction).pair
    points = jax.tree.map(np.asarray, coarse(pair, size))
    low, high = (mp.mpf(float(x[0, 0])) for x in _phi._window(pair))
    stated = np.exp(points.log_error[0, 0])
    with mp.workdps(40):
        edges = [low + (high - low) / size * j for j in range(size + 1)]
        for mass, centre in zip((points.p, points.q), CENTRES[direction], strict=True):
            for j in range(3, size, 23):
                masses = [normal_mass(edges[j], edges[j + 1], c / mp.mpf(sigma)) for c in (0, centre)]
                exact = (1 - mp.mpf(q)) * masses[0] + mp.mpf(q) * masses[1]
                light = 5e-14 if exact < 1e-8 else 0.0
                assert abs(float(float(mass[0, 0, j]) / exact - 1)) < stated + light, j


coarse, split = (jax.jit(f, static_argnums=1) for f in (_phi.coarse, _phi.split))


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_discretised_pairs_are_pairs(direction):
    """Both masses sum to 1, the loss is log(P / Q), and one step's profiles lie on either side of the exact one."""
    sigma, q = 0.8, 0.2
    pair = problem(sigma, q, 1, direction).pair
    below, above = (jax.tree.map(np.asarray, f(pair, 64)) for f in (coarse, split))
    for points in (below, above):
        for mass in (points.p, points.q):
            np.testing.assert_allclose(mass.sum(), 1, rtol=1e-14)
        heavy = points.p > 1e-12
        np.testing.assert_allclose((points.p / points.q)[heavy], np.exp(points.loss)[heavy], rtol=1e-11)
    for eps in (-0.5, 0.0, 0.1, 0.5, 1.0):
        low, high = (np.maximum(points.p - np.exp(eps) * points.q, 0).sum() for points in (below, above))
        exact = float(closed_forms.single_step_delta(direction, mp.mpf(sigma), mp.mpf(q), mp.mpf(eps)))
        assert low <= exact + 1e-15 and exact <= high + 1e-15 and high - low < 0.01


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(("sigma", "q"), [(1.0, 0.1), (0.5, 1.0)])
def test_mass_outside_the_window_is_bounded(direction, sigma, q):
    """What E_P exp(r L) has outside the window, against mpmath; at r = 40 that is where its peak lies."""
    pair = problem(sigma, q, 1, direction).pair
    orders = [0.5, 8.0, 40.0]
    bound = np.asarray(log_outside(pair, jnp.array([orders])))[0, 0]
    low, high = (float(x[0, 0]) for x in _phi._window(pair))
    with mp.workdps(20):
        part = lambda u: mp.log(1 - mp.mpf(q) + q * mp.exp((u - 1 / (2 * mp.mpf(sigma))) / sigma))
        log_p = lambda u: mp.mpf(0) if direction == "add" else part(u)
        loss = {"remove": part, "add": lambda u: -part(-u), "replace": lambda u: part(u) - part(-u)}[direction]
        for i, r in enumerate(orders):
            weight = lambda u, r=r: mp.npdf(u) * mp.exp(log_p(u) + r * loss(u))
            pieces = lambda a, b: mp.linspace(a, b, int((b - a) / 4) + 2)
            top = high + 2 * (1 + r) / sigma + 12
            value = mp.quad(weight, pieces(high, top), maxdegree=3) + mp.quad(weight, [low - 5, low], maxdegree=3)
            assert mp.log(value) <= bound[i] + 1e-6, r


log_outside = jax.jit(_phi._log_outside)


# --------------------------------------------------------------------------------------------------------------------
# CDFs


def exact_cdf(direction, sigma, q, x, under):
    """CDF of one step's loss from its profile D: Q(L > x) = -exp(-x) D'(x), P(L > x) = D(x) - D'(x)."""
    with mp.workdps(40):
        at = mp.mpf(x) if under == "P" else -mp.mpf(x)
        profile = lambda e: closed_forms.single_step_delta(direction, mp.mpf(sigma), mp.mpf(q), e)
        slope = mp.diff(profile, at)
        return float(1 - profile(at) + slope if under == "P" else -slope * mp.exp(-at))


@pytest.mark.parametrize("under", ["P", "Q"])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_cdf_of_one_step(direction, under):
    x = np.array([-0.3, -0.05, 0.02, 0.3])
    value, error = cdf[under](problem(np.full(4, 3.0), 0.4, 1, direction), x)
    exact = np.array([exact_cdf(direction, 3.0, 0.4, e, under) for e in x])
    assert np.all(np.abs(value - exact) <= error) and np.all(error < 1e-3), (value - exact, error)


@pytest.mark.parametrize("under", ["P", "Q"])
@pytest.mark.parametrize(("direction", "sigma", "q", "steps"), [
    ("remove", 1.0, 0.01, 1000), ("add", 1.0, 0.01, 1000), ("replace", 2.0, 0.1, 30), ("add", 0.5, 1e-3, 100),
    ("remove", 0.2, 0.01, 10),
])  # fmt: skip
def test_cdf_rises_from_0_to_1(direction, sigma, q, steps, under):
    p = problem(np.full(33, sigma), q, steps, direction)
    points = jax.jit(_phi.quadrature, static_argnums=1)(p.pair, 64)
    mean, variance = (np.asarray(m)[0, "PQ".index(under)] for m in jax.jit(_phi.moments)(p, points))
    value, error = cdf[under](p, mean + np.sqrt(variance) * np.linspace(-12, 12, 33))
    assert np.all((value >= 0) & (value <= 1))
    assert np.all(np.diff(value) >= -(error[1:] + error[:-1]))
    assert value[0] <= error[0] + 1 / 145 and 1 - value[-1] <= error[-1] + 1 / 145  # Cantelli


def test_delta_is_made_of_the_two_cdfs():
    eps = np.array([0.0, 0.7, 2.0])
    p = problem(np.full(3, 1.0), 0.01, 1000, "remove")
    (f, _), (f_q, _) = cdf["P"](p, eps), cdf["Q"](p, -eps)
    value, error = delta(p, eps)
    np.testing.assert_allclose(value, 1 - f - np.exp(eps) * f_q, atol=1e-14)
    assert np.all(error < 1e-11)


def test_measures_are_p_and_q():
    with pytest.raises(ValueError, match='"P" or "Q"'):
        levy.loss_cdf(problem(1.0, 0.1, 1, "add"), jnp.zeros(1), "p")
    with pytest.raises(ValueError, match='"epsilon" or "delta"'):
        levy.solve(problem(1.0, 0.1, 1, "add"), jnp.zeros(1), unknown="eps")


# --------------------------------------------------------------------------------------------------------------------
# delta


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_estimated_error_of_delta_is_honest(direction):
    p, eps, exact, rows = lanes(delta_rows(direction), direction)
    value, error = delta(p, eps)
    wrong = ~(np.abs(value - exact) <= error)
    assert not wrong.any(), says(rows, wrong)


@pytest.mark.parametrize("direction", ["remove", "add"])
def test_delta_is_accurate_where_losses_are_many_and_light(direction):
    rows = [r for r in table("psg", "rows") if r["steps"] >= 100 and r["epsilon"] < 3 and r["noise_multiplier"] > 1]
    p, eps, exact, rows = lanes(rows, direction)
    value, error = delta(p, eps)
    wrong = (np.abs(value - exact) > 2e-14 * np.exp(eps) * np.sqrt(p.count[:, 0] / 100)) | (error > 2e-10)
    assert len(rows) >= 8 and not wrong.any(), says(rows, wrong)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_bracket_holds_delta(direction):
    p, eps, exact, rows = lanes(delta_rows(direction), direction)
    lower, upper = bracket(p, eps)
    log_exact = np.log(exact, where=exact > 0, out=np.full(exact.shape, -np.inf))
    wrong = ~((lower <= log_exact) & (log_exact <= upper))
    assert not wrong.any(), says(rows, wrong)


@pytest.mark.parametrize("direction", ["remove", "add"])
def test_bracket_is_narrow_where_rounding_allows(direction):
    chosen = [r for r in table("psg", "rows") if r["steps"] >= 100 and r["epsilon"] < 6 and r["delta"] > 1e-8]
    p, eps, exact, rows = lanes(chosen[::3], direction)
    lower, upper = (np.exp(b) for b in bracket(p, eps))
    wrong = (upper - lower) / exact > 0.02
    assert len(rows) >= 5 and not wrong.any(), says(rows, wrong)


def test_bracket_holds_at_any_resolution():
    """Few cells and few frequencies make discretisation, smoothing and truncation the whole of the answer."""
    rows = [r for r in table("psg", "rows") if r["steps"] >= 50 and r["direction"] == "remove" and r["epsilon"] < 3][:8]
    p, eps, exact, rows = lanes(rows, "remove")
    lower, upper = jax.jit(functools.partial(levy.bracket, cells=60, frequencies=60))(p, jnp.asarray(eps))
    assert np.all(lower <= np.log(exact)) and np.all(np.log(exact) <= upper)
    assert np.all(upper - lower > 0.1) and np.all(upper < np.log(exact) + 8)


@pytest.mark.parametrize("term", ["smoothing", "wrapping", "discretisation"])
def test_every_term_of_the_bracket_is_needed(term):
    """Leaving one out puts the bracket beside the truth."""
    p, eps, exact = problem(1.0, 0.01, 1000, "remove"), jnp.array([1.8282]), 1.000278e-5

    @functools.partial(jax.jit, static_argnames=("points", "cells", "frequencies"))
    def ends(points, cells, frequencies, low, high):
        chosen = getattr(_phi, points)(p.pair, cells)
        wave = levy._wave(p, chosen, low, high, jnp.log(jnp.array([exact])), frequencies)
        return levy._lower(wave, eps), jnp.exp(levy._log_upper(wave, eps)), *levy._errors(wave, eps)

    if term == "smoothing":  # the smoothed delta as a lower bound
        lower, _, value, _, error, _ = ends("coarse", 2048, 64, eps, eps)
        assert lower < exact < value - error
    elif term == "wrapping":  # a period that was meant for other epsilons
        _, upper, value, _, error, _ = ends("split", 2048, 2048, eps + 1.5, eps - 1.5)
        assert value + error < exact < upper
    else:  # the lower pair in place of the upper
        _, upper, *_ = ends("coarse", 60, 2048, eps, eps)
        assert upper < exact


def test_bracket_of_a_gaussian():
    """The Gaussian needs no cells and no smoothing: what is left is rounding."""
    p = problem(np.ones((3, 1)), 0.0, 1.0, "remove", variance=1.0)
    eps = np.array([0.0, 0.5, 3.0])
    exact = np.array([float(mp.log(closed_forms.gaussian_delta(mp.mpf(1), mp.mpf(e)))) for e in eps])
    lower, upper = bracket(p, eps)
    assert np.all(lower <= exact) and np.all(exact <= upper) and np.all(upper - lower < 1e-3), upper - lower
    value, error = delta(p, eps)
    assert np.all(np.abs(value - np.exp(exact)) <= error) and np.all(error < 1e-12)


def test_schedules():
    """Of up to four different steps; a count of 0 pads."""
    for direction in ("remove", "add"):
        rows = [r for r in table("generated", "schedules") if r["direction"] == direction and len(r["steps"]) > 2]
        fill = {"noise_multiplier": 1.0, "sampling_probability": 0.1, "steps": 0.0}
        column = lambda f, rows=rows, fill=fill: np.array(
            [([float(x) for x in r[f]] + [fill[f]] * 4)[:4] for r in rows]
        )
        p, eps = problem(*map(column, FIELDS), direction), np.array([float(r["epsilon"]) for r in rows])
        found = schedule(p, eps)
        exact = np.array([float(r["log_delta"]) for r in rows])
        assert np.all(found.lower <= exact) and np.all(exact <= found.upper)
        assert np.all(np.abs(np.exp(found.estimate) - np.exp(exact)) < 1e-12)


schedule = padded(lambda p, e: levy.solve(p, e, unknown="delta"))


# --------------------------------------------------------------------------------------------------------------------
# epsilon


@pytest.mark.parametrize("direction", [pytest.param("remove", marks=pytest.mark.slow), "add"])
def test_epsilon(direction):
    p, exact, log_delta, rows = epsilon_rows(direction)
    found = epsilon(p, log_delta)
    wrong = ~((found.lower <= exact) & (exact <= found.upper))
    assert not wrong.any(), says(rows, wrong)
    assert np.all((found.lower <= found.estimate) & (found.estimate <= found.upper)) and not found.cancelled.any()
    light = (log_delta > np.log(1e-7)) & (exact < 5) & (p.count[:, 0] >= 100) & (p.pair.sigma[:, 0] >= 0.8)
    wrong = light & ((np.abs(found.estimate / exact - 1) > 1e-6) | (found.upper > 1.01 * found.lower))
    assert light.sum() >= 1 and not wrong.any(), says(rows, wrong)


def epsilon_rows(direction):
    rows = table("generated", "replace_one_epsilon") + table("reference", "composed_epsilon")[::6]
    p, exact, _, rows = lanes(rows + table("generated", "extreme_delta"), direction)
    return p, exact, np.array([float(mp.log(mp.mpf(r["delta"]))) for r in rows]), rows


def test_estimated_epsilon():
    """The error that is returned is delta's: the estimate lies where delta is within it of what was asked for."""
    p, exact, log_delta, _ = epsilon_rows("replace")
    value, error = padded(levy.epsilon)(p, log_delta)
    light = np.exp(log_delta) > 1e5 * error
    assert light.sum() >= 2 and np.all(np.abs(value / exact - 1)[light] < 1e-5)
    assert np.all(np.isfinite(value)) and np.all(value >= 0)


def test_epsilon_of_the_paper():
    """Experiment 3: sigma 2, q 0.01, 1500 steps, delta 1e-5."""
    found = epsilon(problem(2.0, 0.01, 1500, "remove"), np.log([1e-5]))
    assert abs(found.estimate[0] - 0.77164524783818886680) < 1e-9
    assert found.lower[0] > 0.771 and found.upper[0] < 0.772


def test_epsilon_is_zero_where_delta_is_large():
    p = problem(np.full(2, 1.0), 0.01, 100, "remove")
    lower, upper = bracket(p, np.zeros(2))
    found = epsilon(p, np.array([upper[0] + 0.01, lower[0] - 0.01]))
    assert found.upper[0] == found.estimate[0] == 0 and found.lower[1] > 0


def test_limits():
    """No sampling, no step, an epsilon beyond the largest loss: delta is 0; so is epsilon where delta is large."""
    p = problem([1.0, 1.0, 1.0], [0.0, 0.1, 0.01], [10, 0, 1], "add")
    lower, upper = bracket(p, np.array([0.1, 0.1, 0.0101]))
    assert np.all(upper == -np.inf) and np.all(lower == -np.inf)
    found = epsilon(p, np.log([1e-5, 1e-5, 0.02]))
    assert np.all(found.lower == 0) and np.all(found.estimate == 0) and np.all(found.upper == 0)


def test_negative_epsilon():
    """delta(-eps) = 1 - exp(-eps) + exp(-eps) delta of the reversed pair."""
    eps = np.array([0.2, 1.0])
    forward, reverse = (problem(np.full(2, 1.0), 0.1, 20, d) for d in ("remove", "add"))
    mirrored = 1 - np.exp(-eps) + np.exp(-eps) * delta(reverse, eps)[0]
    np.testing.assert_allclose(delta(forward, -eps)[0], mirrored, atol=1e-13)
    lower, upper = (np.exp(b) for b in bracket(forward, -eps))
    assert np.all(lower <= mirrored) and np.all(mirrored <= upper) and np.all(upper - lower < 1e-3)


# --------------------------------------------------------------------------------------------------------------------
# As an engine


def test_lanes_do_not_see_each_other():
    settings = np.array([(1.0, 0.01, 1000.0), (3.0, 0.1, 50.0), (0.6, 1e-3, 300.0)])
    together = bracket(problem(*settings.T, "add"), np.array([1.0, 0.5, 0.3]))
    for i, eps in enumerate([1.0, 0.5, 0.3]):
        alone = bracket(problem(*settings[i], "add"), np.array([eps]))
        np.testing.assert_allclose([a[0] for a in alone], [b[i] for b in together], rtol=1e-9)


def test_works_under_vmap():
    p, eps = problem([1.0, 2.0], 0.01, 100, "remove"), jnp.array([0.3, 0.1])
    alone = lambda p, e: levy.delta(jax.tree.map(lambda a: a[None], p), e[None])[0][0]
    np.testing.assert_allclose(jax.jit(jax.vmap(alone))(p, eps), delta(p, eps)[0], rtol=1e-12)


def test_no_complex_numbers():
    p = problem(1.0, 0.01, 100, "remove")
    for unknown in ("epsilon", "delta"):
        jaxpr = jax.make_jaxpr(lambda p, e, unknown=unknown: levy.solve(p, e, unknown=unknown))(p, jnp.array([0.3]))
        assert "complex" not in str(jaxpr) and "c128" not in str(jaxpr)


# --------------------------------------------------------------------------------------------------------------------
# Through the public functions


# many light losses, where absolute accuracy near 1e-13 is relative accuracy too
LIGHT = [r for r in table("psg", "rows") if 1e-6 < r["delta"] < 0.1 and r["steps"] >= 100 and 0.1 < r["epsilon"] < 20]


@pytest.mark.parametrize("direction", [pytest.param("remove", marks=pytest.mark.slow), "add"])
def test_bracket_holds_the_truth_and_the_estimate_is_close(direction):
    rows = [r for r in LIGHT if r["direction"] == direction][:4]
    sigma, q, k, eps, delta = (np.array([float(r[f]) for r in rows]) for f in (*FIELDS, "epsilon", "delta"))
    found = dpjax.delta_bounds(dpsgd(sigma, q, k), eps, adjacency=Adjacency[direction.upper()], method="levy")
    assert (found.lower <= delta).all() and (found.upper >= delta).all()
    np.testing.assert_allclose(found.estimate, delta, rtol=1e-5)
    assert (found.method == int(dpjax.Method.LEVY)).all()


@pytest.mark.parametrize("adjacency", [pytest.param(Adjacency.REMOVE, marks=pytest.mark.slow), Adjacency.ADD])
def test_engines_agree_on_epsilon(adjacency):
    rng = np.random.default_rng(3)
    sigma, q, k = np.exp(rng.uniform(-0.2, 2, 8)), 10 ** rng.uniform(-3, -1, 8), np.round(10 ** rng.uniform(2, 5, 8))
    run = dpsgd(np.append(sigma, 1.0), np.append(q, 0.01), np.append(k, 1000.0))
    levy, contour = (dpjax.epsilon_bounds(run, 1e-5, adjacency=adjacency, method=m) for m in ("levy", "contour"))
    assert np.all((levy.lower <= contour.lower) & (contour.upper <= levy.upper))
    np.testing.assert_allclose(levy.estimate[-1], contour.estimate[-1], rtol=1e-8)
    light = contour.estimate < 5  # exp(epsilon) is what rounding costs
    assert light.sum() > 4
    np.testing.assert_allclose(levy.estimate[light], contour.estimate[light], rtol=1e-6)


def test_delta_from_the_two_distribution_functions():
    run, eps = dpsgd(1.0, 0.01, 1000), 1.0
    under_p = dpjax.privacy_loss_cdf(run, eps, under="P")
    under_q = dpjax.privacy_loss_cdf(run, -eps, under="Q")
    delta = dpjax.delta(run, eps, adjacency=Adjacency.REMOVE)
    assert 1 - under_p - np.exp(eps) * under_q == pytest.approx(delta, rel=1e-6)


def test_characteristic_function_of_the_gaussian():
    t = np.array([0.0, 0.5, 2.0])
    log_modulus, argument = dpjax.characteristic_function(Gaussian(2.0) * 3, t)
    np.testing.assert_allclose(log_modulus, -0.375 * t**2, atol=1e-14)
    np.testing.assert_allclose(argument, 0.375 * t, atol=1e-14)


def test_two_directions_are_refused():
    with pytest.raises(ValueError, match="two directions"):
        dpjax.privacy_loss_cdf(Gaussian(1.0), 0.0, adjacency=Adjacency.ADD_OR_REMOVE_ONE)
