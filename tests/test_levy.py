"""The Levy engine: estimates, their estimated errors, and the certified bracket, each against an independent source.

Two verdicts are kept apart: the stated error or bracket holds the truth (always), and it is small (where claimed).
"""

import importlib
import json
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest

from dpjax import _phi, contour, levy
from dpjax._plan import Problem
from dpjax.mechanisms import Adjacency, Gaussian, PoissonSampled
from dpjax.pairs import dominating_pair

ORACLES = Path(__file__).parent / "oracles"
sys.path.append(str(ORACLES))
closed_forms = importlib.import_module("closed_forms")

DIRECTIONS = {"remove": Adjacency.REMOVE, "add": Adjacency.ADD, "replace": Adjacency.REPLACE_ONE}
FIELDS = ("noise_multiplier", "sampling_probability", "steps")


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def table(file, name):
    return json.loads((ORACLES / f"{file}.json").read_text())[name]


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


def in_chunks(run, p, *given, size=10):
    """One compiled shape for any number of lanes: the last chunk repeats the last lane."""
    n = p.count.shape[0]
    out = []
    for start in range(0, n, size):
        i = np.minimum(np.arange(start, start + size), n - 1)
        out.append(run(jax.tree.map(lambda a, i=i: a[i], p), *(jnp.asarray(g)[i] for g in given)))
    return jax.tree.map(lambda *a: np.concatenate(a)[:n], *out)


run_delta = jax.jit(levy.delta)
run_bracket = jax.jit(levy.bracket)
DELTA_ROWS = [
    ("remove", ("psg", "rows", 10)), ("add", ("psg", "rows", 10)), ("remove", ("psg", "sparse_rows", 1)),
    ("remove", ("generated", "sparse_neighbours", 2)), ("add", ("generated", "sparse_neighbours", 2)),
    ("replace", ("generated", "replace_one_delta", 1)), ("remove", ("generated", "few_steps", 1)),
    ("add", ("generated", "few_steps", 1)), ("replace", ("generated", "few_steps", 1)),
    ("remove", ("generated", "far_parameters", 1)), ("add", ("generated", "far_parameters", 1)),
    ("add", ("generated", "edge", 3)), ("remove", ("generated", "edge", 3)),
]  # fmt: skip


def delta_rows(direction, every=1):
    rows = []
    for d, (file, name, step) in DELTA_ROWS:
        if d == direction:
            rows += [r for r in table(file, name) if r["direction"] in (direction, "both")][:: step * every]
    return rows


# --------------------------------------------------------------------------------------------------------------------
# Characteristic functions


def exact_phi(direction, sigma, q, t, under):
    """phi or phi' of one step, mpmath."""

    def density(x, centre):
        return mp.npdf(x, centre, sigma)

    with mp.workdps(25):
        sigma, q, t = mp.mpf(sigma), mp.mpf(q), mp.mpf(t)
        mixture = lambda c: lambda x: (1 - q) * density(x, 0) + q * density(x, c)
        null = lambda x: density(x, 0)
        p, r = {"remove": (mixture(1), null), "add": (null, mixture(1)), "replace": (mixture(1), mixture(-1))}[
            direction
        ]
        top, bottom = (p, r) if under == "P" else (r, p)
        ends = [mp.mpf(j) * sigma / 2 for j in range(-24, 25)]
        ends = sorted(set(ends + [1 + e for e in ends] + [-1 + e for e in ends]))
        value = mp.quad(lambda x: top(x) * mp.expj(t * mp.log(top(x) / bottom(x))), ends, maxdegree=5)
        return complex(value)


@pytest.mark.parametrize("under", ["P", "Q"])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_phi_by_quadrature(direction, under):
    for sigma, q, t in [(1.0, 0.1, 3.0), (0.5, 0.01, 1.0), (4.0, 0.5, 12.0)]:
        modulus, angle = levy.log_characteristic(problem(sigma, q, 1, direction), jnp.array([[t]]), under)
        value = np.exp(modulus[0, 0]) * np.exp(1j * angle[0, 0])
        assert abs(value - exact_phi(direction, sigma, q, t, under)) < 2e-14, (sigma, q, t)


@pytest.mark.parametrize("under", ["P", "Q"])
@pytest.mark.parametrize("components", [0, 1])
def test_phi_of_a_gaussian_is_a_closed_form(under, components):
    p = problem(np.ones((1, components)), 0.0, 1.0, "remove", variance=0.25)
    t = jnp.array([[0.0, 0.3, 7.0, 50.0]])
    modulus, angle = levy.log_characteristic(p, t, under)
    np.testing.assert_allclose(modulus, -0.125 * t**2, rtol=1e-14)
    np.testing.assert_allclose(angle, 0.125 * t, rtol=1e-14)


def test_phi_multiplies():
    both = levy.log_characteristic(problem([[1.0, 2.0]], [[0.1, 0.2]], [[3.0, 5.0]], "add", 0.04), jnp.array([[0.7]]))
    parts = [levy.log_characteristic(problem(s, q, 1, "add"), jnp.array([[0.7]])) for s, q in [(1.0, 0.1), (2.0, 0.2)]]
    for i, gauss in [(0, -0.02 * 0.7**2), (1, 0.02 * 0.7)]:
        np.testing.assert_allclose(both[i], 3 * parts[0][i] + 5 * parts[1][i] + gauss, rtol=1e-13)


@pytest.mark.parametrize("points", ["coarse", "split"])
def test_discretised_phi_converges_quadratically(points):
    p, t = problem(1.0, 0.1, 10, "replace"), jnp.array([[0.5, 2.0]])
    exact = np.array(levy.log_characteristic(p, t))
    errors = [np.abs(np.array(levy.log_characteristic(p, t, nodes=n, points=points)) - exact) for n in (128, 512)]
    assert np.all(errors[1] < errors[0] / 14) and np.all(errors[1] < 3e-3 * np.abs(exact) + 1e-4)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(("sigma", "q"), [(1.0, 0.01), (0.1, 0.3), (30.0, 0.5)])
def test_masses_of_cells(direction, sigma, q):
    """Relative to mpmath; the stated error is a hundred times larger."""
    size = 256
    points = _phi.coarse(problem(sigma, q, 1, direction).pair, size)
    pair = problem(sigma, q, 1, direction).pair
    low, high = (float(x[0, 0]) for x in _phi._window(pair))
    edge = lambda j: mp.mpf(low) + (mp.mpf(high) - mp.mpf(low)) / size * j
    centres = {"remove": (1, None), "add": (None, -1), "replace": (1, -1)}[direction]
    with mp.workdps(40):
        for mass, centre in zip((points.p, points.q), centres, strict=True):
            cdf = lambda u, c: mp.ncdf(u - c / mp.mpf(sigma))
            part = lambda j, c: cdf(edge(j + 1), c) - cdf(edge(j), c)
            weight = lambda j, c=centre: part(j, 0) * (1 - mp.mpf(q)) + mp.mpf(q) * part(j, c) if c else part(j, 0)
            for j in range(3, size, 23):
                bound = max(3e-15, 0.01 * float(jnp.exp(points.log_error[0, 0])))
                assert abs(float(mass[0, 0, j]) / weight(j) - 1) < bound, j


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_discretised_pairs_are_pairs(direction):
    """Both masses sum to 1, the loss is log(P / Q), and one step's profiles lie on either side of the exact one."""
    sigma, q = 0.8, 0.2
    pair = problem(sigma, q, 1, direction).pair
    below, above = _phi.coarse(pair, 64), _phi.split(pair, 64)
    for points in (below, above):
        for mass in (points.p, points.q):
            np.testing.assert_allclose(jnp.sum(mass), 1, rtol=1e-14)
        heavy = points.p > 1e-12
        np.testing.assert_allclose((points.p / points.q)[heavy], jnp.exp(points.loss)[heavy], rtol=1e-11)
    for eps in (-0.5, 0.0, 0.1, 0.5, 1.0):
        profile = lambda points, e=eps: float(jnp.sum(jnp.maximum(points.p - jnp.exp(e) * points.q, 0)))
        exact = float(closed_forms.single_step_delta(direction, mp.mpf(sigma), mp.mpf(q), mp.mpf(eps)))
        assert profile(below) <= exact + 1e-15 and exact <= profile(above) + 1e-15
        assert profile(above) - profile(below) < 0.01


# --------------------------------------------------------------------------------------------------------------------
# CDFs


def exact_cdf(direction, sigma, q, x, under):
    """CDF of one step's loss from its profile: P(L > x) = D - D' and Q(L > x) = -exp(-x) D', D' by mpmath."""
    with mp.workdps(40):
        sign = 1 if under == "P" else -1
        profile = lambda e: closed_forms.single_step_delta(direction, mp.mpf(sigma), mp.mpf(q), e)
        slope = mp.diff(profile, sign * mp.mpf(x))
        if under == "P":
            return float(1 - profile(mp.mpf(x)) + slope)
        return float(-slope * mp.exp(mp.mpf(x)))


@pytest.mark.parametrize("under", ["P", "Q"])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_cdf_of_one_step(direction, under):
    x = np.array([-0.3, -0.05, 0.02, 0.3])
    value, error = levy.loss_cdf(problem(np.full(4, 3.0), 0.4, 1, direction), jnp.asarray(x), under)
    exact = [exact_cdf(direction, 3.0, 0.4, e, under) for e in x]
    assert np.all(np.abs(value - exact) <= error) and np.all(error < 1e-6), (value - exact, error)


@pytest.mark.parametrize("under", ["P", "Q"])
@pytest.mark.parametrize(("direction", "sigma", "q", "steps"), [
    ("remove", 1.0, 0.01, 1000), ("add", 1.0, 0.01, 1000), ("replace", 2.0, 0.1, 30), ("add", 0.5, 1e-3, 100),
    ("remove", 0.2, 0.01, 10),
])  # fmt: skip
def test_cdf_rises_from_0_to_1(direction, sigma, q, steps, under):
    p = problem(np.full(33, sigma), q, steps, direction)
    mean, variance = (np.asarray(m[0, "PQ".index(under)]) for m in _phi.moments(p, _phi.quadrature(p.pair, 512)))
    x = mean + np.sqrt(variance) * np.linspace(-12, 12, 33)
    value, error = levy.loss_cdf(p, jnp.asarray(x), under)
    assert np.all((value >= 0) & (value <= 1))
    assert np.all(np.diff(value) >= -(error[1:] + error[:-1]))
    if steps > 10:  # Chebyshev
        assert np.all((value[0] <= error[0] + 1 / 145, 1 - value[-1] <= error[-1] + 1 / 145))


def test_delta_is_made_of_the_two_cdfs():
    eps = jnp.array([0.0, 0.7, 2.0])
    p = problem(np.full(3, 1.0), 0.01, 1000, "remove")
    (f, _), (f_q, _) = levy.loss_cdf(p, eps, "P"), levy.loss_cdf(p, -eps, "Q")
    value, error = levy.delta(p, eps)
    np.testing.assert_allclose(value, 1 - f - jnp.exp(eps) * f_q, atol=1e-14)
    assert np.all(error < 1e-11)


def test_measures_are_p_and_q():
    with pytest.raises(ValueError, match='"P" or "Q"'):
        levy.loss_cdf(problem(1.0, 0.1, 1, "add"), jnp.zeros(1), "p")


# --------------------------------------------------------------------------------------------------------------------
# delta


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_estimated_error_of_delta_is_honest(direction):
    p, eps, exact, rows = lanes(delta_rows(direction), direction)
    value, error = in_chunks(run_delta, p, eps)
    wrong = ~(np.abs(value - exact) <= error)
    assert not wrong.any(), says(rows, wrong)


@pytest.mark.parametrize("direction", ["remove", "add"])
def test_delta_is_accurate_where_losses_are_many_and_light(direction):
    rows = [r for r in table("psg", "rows") if r["steps"] >= 100 and float(r["epsilon"]) < 3][::6]
    p, eps, exact, rows = lanes(rows, direction)
    value, error = in_chunks(run_delta, p, eps)
    wrong = (np.abs(value - exact) > 2e-13 * np.sqrt(p.count[:, 0] / 100)) | (error > 2e-10)
    assert len(rows) >= 5 and not wrong.any(), says(rows, wrong)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_bracket_holds_delta(direction):
    p, eps, exact, rows = lanes(delta_rows(direction), direction)
    lower, upper = in_chunks(run_bracket, p, eps)
    exact_log = np.log(np.maximum(exact, 1e-300))
    wrong = ~((lower <= exact_log) | (exact == 0) & (lower == -np.inf)) | ~((exact_log <= upper) | (exact == 0))
    assert not wrong.any(), says(rows, wrong)


@pytest.mark.parametrize("direction", ["remove", "add"])
def test_bracket_is_narrow_where_rounding_allows(direction):
    chosen = [r for r in table("psg", "rows") if r["steps"] > 1 and float(r["epsilon"]) < 6 and float(r["delta"]) > 1e-8]
    p, eps, exact, rows = lanes(chosen[::6], direction)
    lower, upper = (np.exp(b) for b in in_chunks(run_bracket, p, eps))
    wrong = (upper - lower) / exact > 0.02
    assert len(rows) >= 5 and not wrong.any(), says(rows, wrong)


@pytest.mark.parametrize(("cells", "frequencies"), [(40, 2048), (1024, 40), (30, 30)])
def test_bracket_holds_at_any_resolution(cells, frequencies):
    """Few cells and few frequencies make discretisation, smoothing, truncation and wrapping the whole of the answer."""
    eps, settings = np.array([0.3, 1.0, 1.8282, 2.5]), (1.0, 0.01, 1000)
    p = problem(np.full(4, settings[0]), *settings[1:], "remove")
    exact = contour.solve(
        p, jnp.asarray(eps), tol=1e-10, unknown="delta", capacity=1024, block=64, x_block=128
    ).estimate
    lower, upper = levy.bracket(p, jnp.asarray(eps), cells=cells, frequencies=frequencies)
    assert np.all(lower <= exact) and np.all(exact <= upper)
    assert np.all(upper < exact + 6)


@pytest.mark.parametrize("term", ["smoothing", "wrapping", "discretisation"])
def test_every_term_of_the_bracket_is_needed(term, monkeypatch):
    """Leaving one out puts the bracket beside the truth."""
    one = problem(1.0, 0.01, 1000, "remove")
    eps, exact = jnp.array([1.8282]), np.log(1.000278e-5)
    if term == "smoothing":  # the smoothed delta as a lower bound
        wave = levy._wave(one, _phi.coarse(one.pair, 2048), eps, eps, jnp.log(jnp.array([1e-5])), 100)
        assert levy._lower(wave, eps)[0] < np.exp(exact) < levy._errors(wave, eps)[0][0]
    elif term == "wrapping":
        monkeypatch.setattr(levy, "_SHARE", -7.0)  # lets the period be too short
        wave = levy._wave(one, _phi.split(one.pair, 2048), eps, eps, jnp.log(jnp.array([1e-5])), 2048)
        value, _, error, _ = levy._errors(wave, eps)
        assert value[0] + error[0] < np.exp(exact) < np.exp(levy._log_upper(wave, eps)[0])
    else:  # the lower pair in place of the upper
        wave = levy._wave(one, _phi.coarse(one.pair, 60), eps, eps, jnp.log(jnp.array([1e-5])), 2048)
        assert levy._log_upper(wave, eps)[0] < exact


def test_bracket_of_a_gaussian():
    """The Gaussian needs no cells and no smoothing: what is left is rounding."""
    p = problem(np.ones((3, 1)), 0.0, 1.0, "remove", variance=1.0)
    eps = np.array([0.0, 0.5, 3.0])
    exact = [float(mp.log(closed_forms.gaussian_delta(mp.mpf(1), mp.mpf(e)))) for e in eps]
    lower, upper = levy.bracket(p, jnp.asarray(eps))
    assert np.all(lower <= exact) and np.all(exact <= upper) and np.all(upper - lower < 1e-9), upper - lower
    value, error = levy.delta(p, jnp.asarray(eps))
    assert np.all(np.abs(value - np.exp(exact)) <= error) and np.all(error < 1e-12)


def schedule(row):
    column = lambda name: np.array([[float(x) for x in row[name]]])
    return problem(*map(column, FIELDS), row["direction"])


@pytest.mark.parametrize("row", table("generated", "schedules")[:4], ids=lambda r: r["id"])
def test_schedules(row):
    found = levy.solve(schedule(row), jnp.array([float(row["epsilon"])]), unknown="delta")
    exact = float(mp.log(mp.mpf(row["delta"])))
    assert found.lower[0] <= exact <= found.upper[0]
    value, error = levy.delta(schedule(row), jnp.array([float(row["epsilon"])]))
    assert abs(value[0] - np.exp(exact)) <= error[0] < 1e-9


def test_limits():
    """No step, no sampling, an epsilon beyond the largest loss: delta is 0, epsilon is 0."""
    p = problem([1.0, 1.0, 1.0], [0.0, 0.1, 0.01], [10, 0, 1], "add")
    found = levy.solve(p, jnp.array([0.1, 0.1, 0.0101]), unknown="delta")
    assert np.all(found.upper == -np.inf) and np.all(found.estimate == -np.inf) and np.all(found.converged)
    found = levy.solve(p, jnp.log(jnp.array([1e-5, 1e-5, 0.02])), unknown="epsilon")
    assert np.all(found.lower == 0) and np.all(found.estimate == 0) and np.all(found.upper == 0)


# --------------------------------------------------------------------------------------------------------------------
# epsilon


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_epsilon(direction):
    rows = table("generated", "replace_one_epsilon") + table("reference", "composed_epsilon")[::12]
    rows += table("generated", "extreme_delta")
    p, exact, delta, rows = lanes(rows, direction)
    log_delta = np.array([float(mp.log(mp.mpf(r["delta"]))) for r in rows])
    run = lambda p, d: levy.solve(p, d, unknown="epsilon")
    found = in_chunks(run, p, log_delta)
    wrong = ~((found.lower <= exact) & (exact <= found.upper))
    assert not wrong.any(), says(rows, wrong)
    assert np.all((found.lower <= found.estimate) & (found.estimate <= found.upper))
    ordinary = (delta > 1e-7) & (exact < 5) & (exact > 0.05) & (p.count[:, 0] >= 100)
    ordinary &= p.pair.sigma[:, 0] >= 0.8
    wrong = ordinary & ((np.abs(found.estimate / exact - 1) > 1e-6) | ((found.upper - found.lower) / exact > 0.01))
    assert ordinary.sum() >= 1 and not wrong.any(), says(rows, wrong)


def test_epsilon_of_the_paper():
    """Experiment 3: sigma 2, q 0.01, 1500 steps, delta 1e-5."""
    value, error = levy.epsilon(problem(2.0, 0.01, 1500, "remove"), jnp.log(jnp.array([1e-5])))
    assert abs(value[0] - 0.77164524783818886680) < 1e-9 and error[0] < 1e-11


def test_epsilon_is_zero_where_delta_is_large():
    p = problem(np.full(2, 1.0), 0.01, 100, "remove")
    at_zero = levy.bracket(p, jnp.zeros(2))
    given = jnp.array([at_zero[1][0] + 1e-9, at_zero[0][0] - 0.01])
    found = levy.solve(p, given, unknown="epsilon")
    assert found.upper[0] == found.estimate[0] == 0 and found.lower[1] > 0
    assert levy.epsilon(p, given)[0][0] == 0


# --------------------------------------------------------------------------------------------------------------------
# As an engine


def test_agrees_with_the_contour_engine():
    rng = np.random.default_rng(3)
    sigma, q, steps = np.exp(rng.uniform(-0.2, 2, 20)), 10 ** rng.uniform(-3, -1, 20), np.round(10 ** rng.uniform(2, 5, 20))
    for direction in ("remove", "add"):
        p = problem(sigma, q, steps, direction)
        delta = jnp.log(jnp.full(20, 1e-5))
        other = contour.solve(p, delta, tol=1e-8, unknown="epsilon", capacity=2048, block=64, x_block=128)
        eps = other.estimate
        found = in_chunks(jax.jit(lambda p, e: levy.solve(p, e, unknown="delta")), p, eps)
        assert np.all((found.lower <= np.log(1e-5)) & (np.log(1e-5) <= found.upper))
        value, error = in_chunks(run_delta, p, eps)
        assert np.all(np.abs(value - 1e-5) <= error + 1e-12)
        assert np.median(np.abs(value / 1e-5 - 1)) < 1e-7


def test_lanes_do_not_see_each_other_and_nothing_is_recompiled():
    settings = [(1.0, 0.01, 1000.0), (3.0, 0.1, 50.0), (0.6, 1e-3, 300.0)]
    together = levy.solve(problem(*np.array(settings).T, "add"), jnp.log(jnp.full(3, 1e-5)), unknown="epsilon")
    before = None
    for i, (sigma, q, steps) in enumerate(settings):
        alone = levy.solve(problem(sigma, q, steps, "add"), jnp.log(jnp.array([1e-5])), unknown="epsilon")
        before = before or levy.solve._cache_size()
        for a, b in zip(alone[:3], together[:3], strict=True):
            np.testing.assert_allclose(a[0], b[i], rtol=1e-9)
    assert levy.solve._cache_size() == before


def test_works_under_vmap_and_has_no_complex_numbers():
    p = problem([1.0, 2.0], 0.01, 100, "remove")
    eps = jnp.array([0.3, 0.1])
    alone = lambda p, e: levy.delta(jax.tree.map(lambda a: a[None], p), e[None])[0][0]
    np.testing.assert_allclose(jax.vmap(alone)(p, eps), levy.delta(p, eps)[0], rtol=1e-12)
    assert "complex" not in str(jax.make_jaxpr(lambda p, e: levy.solve(p, e, unknown="epsilon"))(p, eps))
