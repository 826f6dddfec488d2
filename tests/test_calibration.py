"""calibrate, and the terms of training: the target is met, from the safe side, and the derivatives are right."""

import json
import math
import re
from fractions import Fraction
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dpjax
from dpjax import _search, calibration

WINDOW = 1e-9
NOISE_ROWS = [
    row
    for row in json.loads((Path(__file__).parent / "oracles" / "field_cases.json").read_text())["cases"]
    if row["kind"] == "noise"
]


def assert_met(spent, target):
    assert np.all(spent <= target)
    assert np.all(spent >= np.asarray(target) * (1 - WINDOW))


class TestTargets:
    @pytest.mark.parametrize(
        "row",
        [pytest.param(r, id=r["id"], marks=[pytest.mark.slow] if r["epsilon"] > 500 else []) for r in NOISE_ROWS],
    )
    def test_noise_of_field_cases(self, row):
        q = row.get("sampling_probability")
        make = lambda s: (dpjax.Gaussian(s) if q is None else dpjax.PoissonSampled(q, dpjax.Gaussian(s))) * row["steps"]
        noise = dpjax.calibrate(make, epsilon=row["epsilon"], delta=row["delta"])
        assert_met(dpjax.epsilon(make(noise), row["delta"]), row["epsilon"])
        if "value" in row:
            digits = len(str(row["value"]).replace(".", "").lstrip("0"))
            assert noise == pytest.approx(row["value"], rel=max(10.0 ** (1 - digits), 2 * WINDOW))
        else:
            assert noise <= row["at_most"]

    def test_field_cases_are_there(self):
        targets = {(row["epsilon"], row["delta"]) for row in NOISE_ROWS}
        assert {(100.0, 1e-5), (1.0, 1e-16)} <= targets

    def test_noise_of_a_run(self):
        make = lambda s: dpjax.dpsgd(s, 0.01, 1000)
        noise = dpjax.calibrate(make, epsilon=1.82823666651658, delta=1e-5)  # exact at noise 1, from the tables
        assert noise == pytest.approx(1.0, rel=1e-9)
        assert isinstance(noise, np.float64)

    @pytest.mark.parametrize("epsilon", [0.05, 2.0, 10.0])
    def test_sampling_probability_never_leaves_its_domain(self, epsilon):
        make = lambda q: dpjax.dpsgd(1.0, q, 1000)
        q = dpjax.calibrate(make, epsilon=epsilon, delta=1e-5)
        assert 0 < q < 1
        assert_met(dpjax.epsilon(make(q), 1e-5), epsilon)

    def test_probability_close_to_its_end(self):
        """The root is between the last point of the search's grid that is allowed and the end of the domain, 0.5."""
        make = lambda x: dpjax.PoissonSampled(2 * x, dpjax.Gaussian(2.0))
        target = float(dpjax.epsilon(dpjax.PoissonSampled(0.999, dpjax.Gaussian(2.0)), 1e-5))
        assert dpjax.calibrate(make, epsilon=target, delta=1e-5) == pytest.approx(0.4995, rel=1e-8)

    def test_domains_that_differ_by_lane(self):
        top = np.array([1.0, 3.0, 40.0])
        make = lambda x: dpjax.PoissonSampled(x / top, dpjax.Gaussian(2.0))
        x = dpjax.calibrate(make, epsilon=1.0, delta=1e-5)
        np.testing.assert_allclose(x / top, x[0], rtol=1e-8)
        assert_met(dpjax.epsilon(make(x), 1e-5), 1.0)

    def test_whole_steps(self):
        make = lambda n: dpjax.dpsgd(1.0, 0.01, n)
        steps = dpjax.calibrate(make, epsilon=2.0, delta=1e-5, integer=True)
        assert isinstance(steps, np.int64)
        assert dpjax.epsilon(make(steps), 1e-5) <= 2.0 < dpjax.epsilon(make(steps + 1), 1e-5)

    def test_whole_batch_of_a_fixed_size(self):
        """Values between whole numbers are not allowed there, and not evaluated."""
        make = lambda n: dpjax.FixedSizeSampled(1000, n, dpjax.Gaussian(2.0))
        size = dpjax.calibrate(make, epsilon=0.5, delta=1e-3, integer=True)
        assert dpjax.epsilon(make(size), 1e-3) <= 0.5 < dpjax.epsilon(make(size + 1), 1e-3)

    def test_more_noise_may_be_whole_too(self):
        noise = dpjax.calibrate(dpjax.Gaussian, epsilon=1.0, delta=1e-5, integer=True)
        assert dpjax.epsilon(dpjax.Gaussian(noise), 1e-5) <= 1.0 < dpjax.epsilon(dpjax.Gaussian(noise - 1), 1e-5)

    def test_advantage_of_the_gaussian(self):
        noise = dpjax.calibrate(dpjax.Gaussian, advantage=0.3)
        assert_met(dpjax.advantage(dpjax.Gaussian(noise)), 0.3)
        assert math.erf(1 / (2 * noise) / math.sqrt(2)) == pytest.approx(0.3, rel=2 * WINDOW)

    def test_trade_off_point_of_the_gaussian(self):
        noise = dpjax.calibrate(dpjax.Gaussian, tpr_at_fpr=(0.05, 0.01))
        assert dpjax.true_positive_rate(dpjax.Gaussian(noise), 0.01) <= 0.05
        from statistics import NormalDist

        exact = NormalDist().inv_cdf(0.05) - NormalDist().inv_cdf(0.01)
        assert noise == pytest.approx(1 / exact, rel=1e-7)


MECHANISMS = {
    "Laplace, pure": (dpjax.Laplace, 2.0, 0.0, 0.5),
    "Laplace": (dpjax.Laplace, 2.0, 1e-3, 1 / (2 - 2 * math.log(1 - 1e-3))),
    "RandomizedResponse": (dpjax.RandomizedResponse, 1.0, 0.0, 1.0),
    "PureDP, composed": (lambda e: dpjax.PureDP(e) * 3, 1.5, 0.0, 0.5),
    "sampled Laplace, composed": (lambda q: dpjax.PoissonSampled(q, dpjax.Laplace(1.0)) * 10, 1.0, 1e-5, None),
    "share of a schedule": (
        lambda x: dpjax.ComposedOver(dpjax.Gaussian(np.array([1.0, 2.0, 4.0]) * x[..., None])), 1.0, 1e-5, None,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MECHANISMS)
def test_other_mechanisms(name):
    make, epsilon, delta, exact = MECHANISMS[name]
    x = dpjax.calibrate(make, epsilon=epsilon, delta=delta)
    spent = dpjax.epsilon(make(x), delta)
    if "sampled" in name:  # a lattice's certified ends move in steps
        assert epsilon * (1 - 1e-6) <= spent <= epsilon
        assert dpjax.epsilon(make(x * (1 + 1e-6)), delta) > epsilon
    elif exact is None:
        assert_met(spent, epsilon)
    else:
        assert spent <= epsilon
        assert x == pytest.approx(exact, rel=2 * WINDOW)


def test_replace_one_needs_twice_the_noise():
    once = dpjax.calibrate(dpjax.Gaussian, epsilon=1.0, delta=1e-5)
    twice = dpjax.calibrate(dpjax.Gaussian, epsilon=1.0, delta=1e-5, adjacency=dpjax.Adjacency.REPLACE_ONE)
    assert twice == pytest.approx(2 * once, rel=2 * WINDOW)


class TestBatches:
    def test_targets_delta_and_closed_over_values_broadcast(self):
        epsilons, qs, deltas = np.array([[[1.0]], [[4.0]]]), np.array([[0.005], [0.02]]), np.array([1e-6, 1e-5])
        make = lambda s: dpjax.dpsgd(s, qs, 500)
        noise = dpjax.calibrate(make, epsilon=epsilons, delta=deltas)
        assert noise.shape == (2, 2, 2)
        assert_met(dpjax.epsilon(make(noise), deltas), np.broadcast_to(epsilons, noise.shape))
        alone = dpjax.calibrate(lambda s: dpjax.dpsgd(s, 0.02, 500), epsilon=4.0, delta=1e-6)
        assert noise[1, 1, 0] == pytest.approx(alone, rel=2 * WINDOW)

    def test_steps(self):
        noise = np.array([0.8, 1.0, 2.0])
        make = lambda n: dpjax.dpsgd(noise, 0.01, n)
        steps = dpjax.calibrate(make, epsilon=1.5, delta=1e-5, integer=True)
        assert steps.dtype == np.int64
        assert np.all(dpjax.epsilon(make(steps), 1e-5) <= 1.5) and np.all(dpjax.epsilon(make(steps + 1), 1e-5) > 1.5)

    def test_a_thousand(self):
        epsilons = np.geomspace(0.1, 20.0, 1000)
        noise = dpjax.calibrate(dpjax.Gaussian, epsilon=epsilons, delta=1e-5)
        assert np.all(np.diff(noise) < 0)
        assert_met(dpjax.epsilon(dpjax.Gaussian(noise), 1e-5), epsilons)


# ---- tracers


def by_epsilon(e):
    return dpjax.calibrate(lambda s: dpjax.dpsgd(s, 0.01, 1000), epsilon=e, delta=1e-5)


def by_q(q):
    return dpjax.calibrate(lambda s: dpjax.dpsgd(s, q, 1000), epsilon=2.0, delta=1e-5)


def by_delta(d):
    return dpjax.calibrate(lambda s: dpjax.dpsgd(s, 0.01, 1000), epsilon=2.0, delta=d)


_STENCIL = np.arange(-3.0, 4.0)
_FIRST = np.array([-1.0, 9.0, -45.0, 0.0, 45.0, -9.0, 1.0]) / 60
_SECOND = np.array([2.0, -27.0, 270.0, -490.0, 270.0, -27.0, 2.0]) / 180


def quotient(f, x, order=1):
    """A difference quotient of sixth order of a function of concrete numbers."""
    h = 0.02 * x
    return float((_FIRST if order == 1 else _SECOND) @ f(x + h * _STENCIL)) / h**order


def test_derivatives():
    with jax.enable_x64(True):
        expected = float(by_epsilon(2.0))
        value, slope = jax.jit(jax.value_and_grad(by_epsilon))(2.0)
        assert float(value) == pytest.approx(expected, rel=2 * WINDOW)
        assert float(slope) == pytest.approx(quotient(by_epsilon, 2.0), rel=1e-6)
        assert dpjax.epsilon(dpjax.dpsgd(float(value), 0.01, 1000), 1e-5) <= 2.0
        value, slope = jax.jit(jax.value_and_grad(by_epsilon))(-1.0)
        assert np.isnan(value) and np.isnan(slope)


@pytest.mark.slow
@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize(("f", "x"), [(by_epsilon, 2.0), (by_q, 0.01), (by_delta, 1e-5)])
def test_derivatives_in_every_way(x64, f, x):
    """A float32 holds seven digits: noise, slope and what is given are each rounded to it."""
    tol = 1e-6 if x64 else 3e-6
    with jax.enable_x64(x64):
        slope = quotient(f, x)
        for call in (jax.grad(f), jax.jit(jax.jacfwd(f))):
            assert float(call(x)) == pytest.approx(slope, rel=tol)
        np.testing.assert_allclose(jax.vmap(jax.grad(f))(jnp.asarray([x, x])), slope, rtol=tol)
        assert float(jax.jit(jax.hessian(f))(x)) == pytest.approx(quotient(f, x, 2), rel=tol if x64 else 1e-4)


def gaussian_noise(e, scale=1.0):
    """Two closed-over numbers, of which one is inside make: cheap to compile."""
    return dpjax.calibrate(lambda s: dpjax.Gaussian(s * scale), epsilon=e, delta=1e-5)


class TestTracers:
    def test_second_derivatives(self):
        with jax.enable_x64(True):
            # by the scale, too, which divides the answer
            noise, slope = float(gaussian_noise(2.0)), quotient(gaussian_noise, 2.0)
            found = jax.jit(jax.hessian(gaussian_noise, (0, 1)))(2.0, 1.0)
            expected = [[quotient(gaussian_noise, 2.0, 2), -slope], [-slope, 2 * noise]]
            np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-6)

    @pytest.mark.parametrize("x64", [False, pytest.param(True, marks=pytest.mark.slow)])
    def test_transformations(self, x64):
        with jax.enable_x64(x64):
            tol = 1e-9 if x64 else 1e-6
            epsilons = jnp.asarray([1.0, 2.0])
            expected = gaussian_noise(np.array([1.0, 2.0]))
            for call in (jax.jit(gaussian_noise), jax.vmap(gaussian_noise), jax.jit(jax.vmap(gaussian_noise))):
                np.testing.assert_allclose(call(epsilons), expected, rtol=2 * tol)
            total = lambda e: jax.lax.scan(lambda c, x: (c + gaussian_noise(e * x), None), 0.0, epsilons)[0]
            slope = sum(i * quotient(gaussian_noise, i) for i in (1.0, 2.0))
            assert float(jax.grad(total)(1.0)) == pytest.approx(slope, rel=3 * tol if not x64 else 1e-6)

    @pytest.mark.parametrize("x64", [False, pytest.param(True, marks=pytest.mark.slow)])
    def test_the_target_may_be_a_number_and_the_rest_traced(self, x64):
        with jax.enable_x64(x64):
            by_scale = lambda scale: dpjax.calibrate(lambda s: dpjax.Gaussian(s * scale), epsilon=2.0, delta=1e-5)
            value, slope = jax.jit(jax.value_and_grad(by_scale))(2.0)
            exact = float(gaussian_noise(2.0)) / 2
            assert float(value) == pytest.approx(exact, rel=1e-6) and float(slope) == pytest.approx(
                -exact / 2, rel=1e-6
            )

    def test_float32_is_on_the_safe_side(self):
        with jax.enable_x64(False):
            epsilons = np.geomspace(0.1, 10, 200).astype(np.float32)
            noise = np.asarray(jax.jit(gaussian_noise)(epsilons), np.float64)
        spent = dpjax.epsilon(dpjax.Gaussian(noise), 1e-5)
        assert np.all(spent <= epsilons.astype(np.float64))
        assert np.all(spent >= epsilons.astype(np.float64) * (1 - 2e-6))

    def test_infeasible_is_nan(self):
        with jax.enable_x64(True):
            probability = lambda e: dpjax.calibrate(
                lambda q: dpjax.PoissonSampled(q, dpjax.Laplace(1.0)), epsilon=e, delta=1e-3
            )
            found, slopes = jax.jit(jax.vmap(jax.value_and_grad(probability)))(jnp.asarray([0.5, 50.0, -1.0, np.nan]))
            assert float(found[0]) == pytest.approx(float(probability(0.5)), rel=2 * WINDOW)
            assert float(slopes[0]) == pytest.approx(quotient(probability, 0.5), rel=1e-6)
            assert np.all(np.isnan(found[1:])) and np.all(np.isnan(slopes[1:]))

    def test_whole_numbers(self):
        with jax.enable_x64(True):
            count = lambda e: dpjax.calibrate(lambda n: dpjax.Gaussian(5.0) * n, epsilon=e, delta=1e-5, integer=True)
            steps, slope = jax.jit(jax.value_and_grad(count))(2.0)
            assert float(steps) == count(2.0) and slope == 0

    def test_advantage(self):
        with jax.enable_x64(True):
            noise = lambda a: dpjax.calibrate(dpjax.Gaussian, advantage=a)
            value, slope = jax.jit(jax.value_and_grad(noise))(0.3)
            assert float(value) == pytest.approx(float(noise(0.3)), rel=2 * WINDOW)
            assert float(slope) == pytest.approx(quotient(noise, 0.3), rel=1e-6)


# ---- what is refused

BAD = {
    "too much": (lambda: dpjax.calibrate(lambda q: dpjax.dpsgd(100.0, q, 10), epsilon=50.0, delta=1e-5), "stays below"),
    "too little": (
        lambda: dpjax.calibrate(dpjax.Gaussian, epsilon=1.0, delta=1e-5, bracket=(1e-3, 2.0)), "exceeds it for every x"
    ),
    "a lane": (
        lambda: dpjax.calibrate(dpjax.Gaussian, epsilon=[1.0, 1e-9], delta=1e-9, bracket=(1e-3, 100.0)), r"lane \(1,\)"
    ),
    "epsilon": (lambda: dpjax.calibrate(dpjax.Gaussian, epsilon=-1.0, delta=1e-5), "epsilon = -1.0"),
    "epsilon 0": (lambda: dpjax.calibrate(dpjax.Gaussian, epsilon=0.0, delta=1e-5), "advantage=delta"),
    "delta": (lambda: dpjax.calibrate(dpjax.Gaussian, epsilon=1.0, delta=1.5), "delta = 1.5"),
    "advantage": (lambda: dpjax.calibrate(dpjax.Gaussian, advantage=1.0), "advantage = 1.0"),
    "rates": (lambda: dpjax.calibrate(dpjax.Gaussian, tpr_at_fpr=(0.01, 0.05)), "met by guessing"),
    "bracket": (lambda: dpjax.calibrate(dpjax.Gaussian, epsilon=1.0, delta=1e-5, bracket=(0.0, 1.0)), "0 < low"),
    "domain": (
        lambda: dpjax.calibrate(lambda x: dpjax.PoissonSampled(1 + x, dpjax.Gaussian(1.0)), epsilon=1.0, delta=1e-5),
        "sampling_probability",
    ),
    "no x": (lambda: dpjax.calibrate(lambda x: dpjax.Gaussian(1.0), epsilon=1.0, delta=1e-5), "does not depend on x"),
    "shapes": (
        lambda: dpjax.calibrate(lambda x: dpjax.Gaussian(x * np.ones(3)), epsilon=[1.0, 2.0], delta=1e-5), "broadcast"
    ),
}  # fmt: skip
MISSING = {
    "no target": lambda: dpjax.calibrate(dpjax.Gaussian, delta=1e-5),
    "two targets": lambda: dpjax.calibrate(dpjax.Gaussian, epsilon=1.0, delta=1e-5, advantage=0.1),
    "no delta": lambda: dpjax.calibrate(dpjax.Gaussian, epsilon=1.0),
    "delta without epsilon": lambda: dpjax.calibrate(dpjax.Gaussian, advantage=0.1, delta=1e-5),
    "a pair": lambda: dpjax.calibrate(dpjax.Gaussian, tpr_at_fpr=0.1),
    "no mechanism": lambda: dpjax.calibrate(lambda x: x, epsilon=1.0, delta=1e-5),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_questions_say_what_is_wrong(case):
    ask, says = BAD[case]
    with pytest.raises(ValueError, match=says):
        ask()


@pytest.mark.parametrize("case", MISSING)
def test_incomplete_questions(case):
    with pytest.raises(TypeError):
        MISSING[case]()


# ---- the search by itself


@given(
    root=st.floats(-13.0, 13.0), power=st.sampled_from([-3.0, -1.0, -0.1, 0.5, 2.0]), bend=st.floats(0.0, 2.0),
    integer=st.booleans(),
)  # fmt: skip
def test_search_finds_crossings_in_few_evaluations(root, power, bend, integer):
    """log f is a bent line with one root, at exp(root)."""
    root = abs(root) if integer else root
    f = lambda x: np.sign(power) * (abs(power) * (np.log(x) - root) + bend * np.tanh(np.log(x) - root))
    goal = _search.Goal(4.5e-10, 1e-13, integer)
    low, high = (1.0, 1e9) if integer else (1e-6, 1e6)
    full = lambda x: np.full((), x)
    state = _search.begin(full(1.0), full(low), full(high), full(np.nan), np.zeros((), bool))
    for _ in range(200):
        assert low <= state.x <= high
        state = _search.step(state, f(state.x), goal)
        if state.done:
            break
    assert state.done
    assert state.count <= (60 if integer else 20)
    if integer and not state.failed:
        x, worse = float(state.x), float(state.x) + np.sign(power)
        assert f(x) <= 0 and (f(worse) > 0 or not low <= worse <= high)
    elif not integer:
        assert not state.failed and abs(f(state.x)) <= 4.5e-10


def test_search_settles_below_a_jump():
    f = lambda x: np.where(x < 3.0, -1.0, 1.0)
    full = lambda x: np.full((), x)
    state = _search.begin(full(1.0), full(1e-6), full(1e6), full(np.nan), np.zeros((), bool))
    for _ in range(200):
        state = _search.step(state, f(state.x), _search.Goal(4.5e-10, 1e-13, False))
        if state.done:
            break
    assert not state.failed and f(state.x) < 0 and state.x == pytest.approx(3.0, rel=1e-12)


# ---- the terms of training


class TestTraining:
    def test_one_place_derives(self):
        run = dpjax.dpsgd_from_training(60000, 256, 60, 1.1)
        assert (run.sampling_probability, run.steps) == (256 / 60000, 14063)
        assert dpjax.epsilon(run, 1e-5) == dpjax.epsilon(dpjax.dpsgd(1.1, 256 / 60000, 14063), 1e-5)
        for said in ("256 / 60000", "ceil(60 * 60000 / 256)", "14063", "0.004266666667"):
            assert said in repr(run)

    def test_epochs_are_read_as_written(self):
        assert math.ceil(1.1 * 50000 / 500) == 111  # what floating point makes of 110 updates
        for epochs in (1.1, Fraction("1.1"), np.float64(1.1)):
            assert dpjax.dpsgd_from_training(50000, 500, epochs, 1.0).steps == 110

    def test_accumulation(self):
        run = dpjax.dpsgd_from_training(
            60000, epochs=60, noise_multiplier=1.1, micro_batch_size=32, accumulation_steps=8
        )
        assert (run.batch_size, run.sampling_probability, run.steps) == (256, 256 / 60000, 14063)
        assert "(32 * 8) / 60000" in repr(run)

    def test_noise_on_the_mean(self):
        run = dpjax.dpsgd_from_training(60000, 256, 60, noise_on_mean=1.1 * 0.5 / 256, clipping_norm=0.5)
        assert run.noise_multiplier == pytest.approx(1.1, rel=1e-14)
        assert "noise on the mean" in repr(run)
        assert run.noise_on_sum(0.5) == pytest.approx(0.55)
        assert run.noise_on_mean(0.5) == pytest.approx(0.55 / 256)

    def test_noise_for_training(self):
        run = dpjax.noise_for_training(60000, 256, 60, epsilon=3.0, delta=1e-5)
        assert_met(dpjax.epsilon(run, 1e-5), 3.0)
        shown = float(re.search(r"noise_multiplier +(\S+) = ", repr(run))[1])
        assert run.noise_multiplier <= shown <= run.noise_multiplier * (1 + 1e-9)
        assert "\n" not in repr(run + dpjax.Gaussian(1.0)) and "14063" in repr(run + dpjax.Gaussian(1.0))
        assert run.steps == 14063 and "calibrated to epsilon 3.0" in repr(run)

    def test_a_run_is_a_mechanism(self):
        run = dpjax.dpsgd_from_training(1000, 100, 1, [1.0, 2.0])
        both = run + dpjax.Gaussian(5.0)
        assert dpjax.epsilon(both, 1e-5).shape == (2,)
        assert type(jax.tree.map(lambda x: x, run)) is dpjax.SelfComposed
        np.testing.assert_array_equal(dpjax.epsilon(jax.tree.map(lambda x: x, run), 1e-5), dpjax.epsilon(run, 1e-5))

    @pytest.mark.parametrize(
        ("arguments", "error", "says"),
        [
            ({"batch_size": 256, "accumulation_steps": 8}, ValueError, "which batch is meant"),
            ({"micro_batch_size": 32}, TypeError, "accumulation_steps is missing"),
            ({}, TypeError, "batch_size is missing"),
            ({"batch_size": 256, "epochs": None}, TypeError, "epochs is missing"),
            ({"batch_size": 70000}, ValueError, "larger than dataset_size"),
            ({"batch_size": 2.5}, ValueError, "whole number"),
            ({"batch_size": 0}, ValueError, "> 0"),
            ({"batch_size": "256"}, TypeError, "batch_size must be a number"),
            ({"batch_size": 256, "epochs": math.inf}, ValueError, "epochs = inf"),
            ({"batch_size": 256, "noise_multiplier": None}, TypeError, "noise_multiplier is missing"),
            ({"batch_size": 256, "noise_on_mean": 0.1}, ValueError, "the second that of their mean"),
            ({"batch_size": 256, "noise_multiplier": None, "noise_on_mean": 0.1}, TypeError, "needs clipping_norm"),
            ({"batch_size": 256, "clipping_norm": 1.0}, ValueError, "relative to it already"),
        ],
    )
    def test_confusions_are_explained(self, arguments, error, says):
        with pytest.raises(error, match=says):
            dpjax.dpsgd_from_training(60000, **{"epochs": 60, "noise_multiplier": 1.1, **arguments})


def test_the_search_is_cheap():
    """Evaluations of the accountant for one answer, rough and fine."""
    count = []
    original = calibration._Target.ask
    calibration._Target.ask = lambda self, *args: count.append(args[-1]) or original(self, *args)
    try:
        dpjax.calibrate(lambda s: dpjax.dpsgd(s, 0.01, 1000), epsilon=0.5, delta=1e-5)
    finally:
        calibration._Target.ask = original
    assert len(count) <= 12 and count.count(False) <= 3
