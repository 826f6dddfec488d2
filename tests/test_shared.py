"""Batches whose lanes share their pairs: the interval holds the truth, is as narrow as asked, and depends on no companion but for rounding."""

import json
from pathlib import Path

import jax
import numpy as np
import pytest

import dpjax
from dpjax import Adjacency, Gaussian, PoissonSampled, _lanes, _shared, dpsgd

ORACLES = Path(__file__).parent / "oracles"
DIRECTIONS = {"remove": Adjacency.REMOVE, "add": Adjacency.ADD}
COPIES = 16


@pytest.fixture(autouse=True)
def batches_of_512(monkeypatch):
    """Are shared here, so that the tests need no larger ones."""
    monkeypatch.setattr(_shared, "_LEAST", 512)


@pytest.fixture
def shared(monkeypatch):
    """The answers of lanes that were solved together, so far."""
    seen = []
    solve = _shared.solve

    def spy(*args):
        answer, slopes = solve(*args)
        seen.append(jax.tree.map(np.copy, answer))
        return jax.tree.map(np.copy, answer), slopes

    monkeypatch.setattr(_shared, "solve", spy)
    return seen


def alone(monkeypatch):
    monkeypatch.setattr(_shared, "families", lambda problem: None)


def table(name, direction):
    rows = [
        r
        for r in json.loads((ORACLES / "reference.json").read_text())[name]
        if r["direction"] == direction and r["steps"] >= 1000
    ]
    names = ("noise_multiplier", "sampling_probability", "steps", "epsilon", "delta")
    return [np.array([float(r[n]) for r in rows]) for n in names]


@pytest.mark.parametrize("direction", [pytest.param("remove", marks=pytest.mark.slow), "add"])
@pytest.mark.parametrize("asked", ["epsilon", "delta"])
def test_against_the_reference(shared, asked, direction):
    sigma, q, k, epsilon, delta = table("composed_" + asked, direction)
    rows = k.size
    more = lambda a: np.tile(a, COPIES)
    # the copies after the first are filled up with other counts
    run = dpsgd(more(sigma), more(q), np.concatenate([k + i for i in range(COPIES)]))
    options = {"adjacency": DIRECTIONS[direction], "rtol": 1e-8, "method": "contour", "max_nodes": 1024}
    if asked == "epsilon":
        bounds, truth = dpjax.epsilon_bounds(run, more(delta), **options), epsilon
    else:
        bounds, truth = dpjax.delta_bounds(run, more(epsilon), **options), delta
    lower, upper, status = bounds.lower[:rows], bounds.upper[:rows], bounds.status[:rows]
    (together,) = shared
    assert together.converged.size == rows * COPIES and together.converged.mean() > 0.8
    assert (lower <= truth * (1 + 1e-15)).all() and (truth * (1 - 1e-15) <= upper).all()
    narrow = status == dpjax.Status.CONVERGED
    assert narrow.mean() > 0.85  # as many as of those solved alone
    assert np.max((upper - lower)[narrow] / truth[narrow]) < 1e-6  # an epsilon answers to delta with a factor


def grid(families, members, seed):
    rng = np.random.default_rng(seed)
    uniform = lambda low, high, n: np.exp(rng.uniform(np.log(low), np.log(high), n))
    sigma, q = np.repeat(uniform(0.6, 10, families), members), np.repeat(uniform(3e-3, 0.3, families), members)
    return sigma, q, np.round(uniform(100, 1e5, families * members)), -uniform(1, 100, families * members)


def test_an_answer_does_not_depend_on_its_company(shared):
    sigma, q, k, log_delta = grid(8, 128, 1)
    for rows in (slice(None), slice(256, 768)):
        run = dpsgd(sigma[rows], q[rows], k[rows])
        dpjax.epsilon_bounds(run, log_delta=log_delta[rows], rtol=1e-6, method="contour", adjacency=Adjacency.REMOVE)
    whole, some = shared
    for name in ("lower", "estimate", "upper"):  # matrix products round by where a row stands in them
        np.testing.assert_allclose(getattr(whole, name)[256:768], getattr(some, name), rtol=1e-9, err_msg=name)
    np.testing.assert_array_equal(whole.converged[256:768], some.converged)
    np.testing.assert_array_equal(whole.nodes[256:768], some.nodes)


def two_kinds(sigma, q, k):
    """Two sampled Gaussians with counts of their own, beside one that is not sampled."""
    first = PoissonSampled(q, Gaussian(sigma)) * k
    second = PoissonSampled(q / 3, Gaussian(2 * sigma)) * (k // 2 + 1)
    return first + second + Gaussian(8 * sigma) * (k % 5)


@pytest.mark.slow
@pytest.mark.parametrize("make", [dpsgd, two_kinds])
@pytest.mark.parametrize(("families", "members", "seed"), [(6, 128, 2), (24, 32, 3)])
def test_two_ways_agree(shared, monkeypatch, make, families, members, seed):
    sigma, q, k, log_delta = grid(families, members, seed)
    run = make(sigma, q, k)
    options = {"rtol": 1e-7, "method": "contour", "max_nodes": 1024}
    ask = lambda eps: (
        dpjax.epsilon_bounds(run, log_delta=log_delta, **options),
        dpjax.delta_bounds(run, eps, **options),
    )
    eps = dpjax.epsilon_bounds(run, log_delta=log_delta, **options).estimate - 0.01  # some below 0
    together = ask(eps)
    assert len(shared) == 3 and all(answer.converged.mean() > 0.6 for answer in shared)
    alone(monkeypatch)
    for ours, theirs in zip(together, ask(eps), strict=True):
        assert (ours.lower <= theirs.upper).all() and (theirs.lower <= ours.upper).all()
        good = [x.status == dpjax.Status.CONVERGED for x in (ours, theirs)]
        assert np.mean(good[1] & ~good[0]) < 0.01
        both = good[0] & good[1]
        np.testing.assert_allclose(ours.estimate[both], theirs.estimate[both], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(("sigma", "q"), [pytest.param(14.6, 1.25e-6, marks=pytest.mark.slow), (10.7, 4.08e-5)])
def test_tilts_beyond_the_ladder_are_left_to_lanes_alone(shared, sigma, q):
    k = np.round(np.geomspace(10, 1e6, 512))
    eps = np.tile([0.0, 7.65e-5, 1.96e-4, -0.0263], 128)
    together = dpjax.delta_bounds(dpsgd(sigma, q, k), eps, rtol=1e-6, method="contour", max_nodes=1024)
    assert shared and not any(np.isnan(answer.upper).any() for answer in shared)
    apart = dpjax.delta_bounds(dpsgd(sigma, q, k[::17]), eps[::17], rtol=1e-6, method="contour", max_nodes=1024)
    assert (apart.lower <= together.upper[::17]).all() and (together.lower[::17] <= apart.upper).all()


def test_schedules_and_small_batches_are_solved_alone(shared):
    assert dpjax.epsilon(dpsgd(np.full(255, 1.0), 0.01, np.arange(1, 256)), 1e-5).shape == (255,)
    assert not shared
    few = jax.tree.map(np.asarray, dpsgd(np.linspace(1, 2, 512), 0.01, 100))
    assert dpjax.epsilon(few, 1e-5, rtol=1e-4).shape == (512,)
    assert not shared


def test_a_lane_left_over_is_finished_alone(monkeypatch):
    monkeypatch.setattr(_shared, "_TRIES", 1)  # too few for a row whose first guess is off
    called = []
    each_alone = _lanes._each_alone
    monkeypatch.setattr(_lanes, "_each_alone", lambda *args: called.append(args[2].size) or each_alone(*args))
    k = np.tile(np.arange(100.0, 132.0), 16)
    bounds = dpjax.epsilon_bounds(dpsgd(0.8, 0.01, k), 1e-5, rtol=1e-8, method="contour")
    assert called and called[0] > 0
    assert (bounds.status == dpjax.Status.CONVERGED).all()
    np.testing.assert_array_equal(bounds.upper[:32], bounds.upper[32:64])


@pytest.mark.parametrize("asked", [pytest.param("epsilon", marks=pytest.mark.slow), "delta"])
def test_derivatives_agree_with_those_of_lanes_alone(shared, monkeypatch, asked):
    sigma, q = np.repeat([0.8, 2.0], 256), np.repeat([0.02, 0.01], 256)
    k = np.tile(np.round(np.geomspace(100, 3000, 16)), 32)
    given = np.tile(np.repeat([1e-7, 1e-5], 16), 16) if asked == "epsilon" else np.tile(np.repeat([0.2, 0.4], 16), 16)
    query = dpjax.epsilon if asked == "epsilon" else dpjax.log_delta
    options = {"rtol": 1e-7, "adjacency": Adjacency.REMOVE}
    total = lambda sigma, q, k, given: query(dpsgd(sigma, q, k), given, **options).sum()
    slopes = lambda rows: jax.grad(total, argnums=(0, 1, 2, 3))(
        *(jax.numpy.asarray(a[rows]) for a in (sigma, q, k, given))
    )
    with jax.enable_x64(True):
        together = slopes(slice(None))
        assert len(shared) == 1 and shared[0].converged.mean() > 0.9
        alone(monkeypatch)
        some = slice(None, None, 16)
        for ours, theirs in zip(together, slopes(some), strict=True):
            np.testing.assert_allclose(ours[some], theirs, rtol=1e-5)
