"""Numbers at the ends of the floats: answers are finite, infinite or NaN as they should be, and nothing is free."""

import copy
import math
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
import dpjax.mechanisms as mech
from dpjax import conversions
from dpjax.adaptive import (
    ApproxDPFilter,
    BasicFilter,
    FilterOdometer,
    GDPFilter,
    IndividualFilter,
    MixtureOdometer,
    RenyiFilter,
    RogersFilter,
    RogersOdometer,
    StitchedOdometer,
    ZCDPFilter,
    _sums,
    boundaries,
)

ODOMETERS = {
    "filter": FilterOdometer(1e-6, 1.0),
    "exact": MixtureOdometer(1e-6, 0.1),
    "two_sided": MixtureOdometer(1e-6, 0.1, form="two_sided"),
    "stitched": StitchedOdometer(1e-6, 0.01, below_v0="line"),
    "rogers": RogersOdometer(1e-6, 10_000),
}


@pytest.mark.parametrize("name", ODOMETERS)
def test_bounds_over_all_floats(either, name):
    odo, huge = ODOMETERS[name], 1e307 if either else 1e38
    v = np.array([0, 1e-300, 1e-30, 1.0, 1e30, huge, math.inf, math.nan]).astype(jnp.result_type(float))
    bounds, slopes = map(np.asarray, jax.jit(jax.vmap(jax.value_and_grad(odo.at)))(v))
    assert np.all(np.isfinite(bounds[:5])) and np.all(bounds[1:7] >= bounds[:6] * (1 - 1e-15))
    assert bounds[5] >= huge / 2 and bounds[6] == math.inf and np.isnan(bounds[7])
    assert not np.any(np.isnan(slopes[:7])) and np.isnan(slopes[7])


@pytest.mark.parametrize("name", ODOMETERS)
def test_sums_that_overflow_are_infinite_for_good(f32, name):
    odo = ODOMETERS[name]
    for first in (1e10, 1e19, 1e30, 1e300, math.inf):
        state = odo.update(odo.init(), epsilon=first)
        bounds = [float(odo.bound(state)) for state in (state, odo.update(state, epsilon=0.1))]
        assert bounds[0] >= min(first, 1e19) ** 2 / 2 and bounds[1] >= bounds[0]


def test_infinity_in_a_sum_is_no_nan(f32):
    total = _sums.zeros((), jnp.float32)
    for x in (3e38, 3e38, 1.0, math.inf, 1.0):
        total = _sums.add(total, jnp.float32(x))
    assert float(_sums.upper(total)) == math.inf
    assert math.isnan(float(_sums.upper(_sums.add(total, jnp.float32(math.nan)))))


def test_no_request_is_free(either):
    """Costs that underflow as floats are charged the smallest number that counts."""
    tiny = 1e-19 if not either else 1e-154  # its square is no normal float
    step = mech.PoissonSampled(1e-30 if not either else 1e-200, mech.Gaussian(1.0))
    asked = [
        (ApproxDPFilter(1.0, 1e-6, method="tight"), {"epsilon": tiny}),
        (GDPFilter(1.0), {"mu": tiny}),
        (ZCDPFilter(1.0), {"rho": 1e-45 if not either else 1e-320}),
        (RenyiFilter(2.0, 1.0), {"epsilon": tiny}),
        (RenyiFilter(2.0, 1.0), {"mechanism": step}),  # the probability that two batches differ, squared
        (RogersFilter(1.0, 1e-6), {"epsilon": tiny}),
    ]
    for filt, cost in asked:
        state, granted = filt.request(filt.init(), **cost)
        assert bool(granted) and np.all(np.asarray(state.spent.high) > 0), filt
    for odo in (MixtureOdometer(1e-6, 0.1, method="tight"), ODOMETERS["rogers"]):
        state = odo.update(odo.init(), epsilon=tiny)
        assert state.time.high > 0 and (state.drift is None or state.drift.high > 0)


@pytest.mark.parametrize(
    "make",
    [
        ZCDPFilter,
        lambda x: RenyiFilter(8.0, x),
        lambda x: ApproxDPFilter(x, 1e-5),
        lambda x: ApproxDPFilter(x, 1e-5, method="tight"),
        GDPFilter,
        lambda x: BasicFilter(x, 0.0),
    ],
    ids=["zcdp", "renyi", "approx", "approx-tight", "gdp", "basic"],
)
def test_budgets_over_all_floats(f32, make):
    for budget in (0.0, 1e-300, 1e38, 1e300, math.inf):
        filt = make(budget)
        key = type(filt)._keywords[0]
        left = filt.remaining(filt.init())
        state, granted = filt.request(filt.init(), **{key: left})
        assert bool(granted) and np.isfinite(left), budget
        assert bool(filt.request(state, **{key: 0.0})[1])
        assert not bool(filt.request(state, **{key: math.inf})[1])  # of an infinite budget too: NaN is not below it
        assert (left > 1e18) == (budget > 1)


def test_numbers_that_the_dtype_cannot_hold_are_named(f32):
    for call, message in (
        (lambda: MixtureOdometer(1e-300, 0.1), "delta, in float32, = 0.0"),
        (lambda: MixtureOdometer(1 - 1e-12, 0.1), "delta, in float32, = 1.0"),
        (lambda: MixtureOdometer(1e-6, 1e-300), "gamma, in float32, = 0.0"),
        (lambda: RogersFilter(1e-300, 1e-5), "epsilon, in float32, = 0.0"),
        (lambda: boundaries.linear(1.0, 1e-300, 1.0), "delta, in float32, = 0.0"),
        (lambda: boundaries.stitched(1.0, 0.1, 1.0, s=1 + 1e-9), "s, in float32, = 1.0"),
        (lambda: conversions.zcdp_to_dp(0.1, 1 - 1e-9), "slack, in float32, = 1.0"),
        (lambda: conversions.rdp_to_dp(1 + 1e-9, 0.1, 0.1), "order, in float32, = 1.0"),
    ):
        with pytest.raises(ValueError, match=message):
            call()


def test_conversions_over_all_floats(f64):
    for method in ("published", "tight"):
        for delta in (1e-300, 0.5, 1 - 1e-9):
            for convert in (conversions.zcdp_to_dp, conversions.zcdp_budget):
                values = np.asarray(convert(np.array([0.0, 1e-300, 1e-30, 1.0, 1e10, 1e300, math.inf]), delta, method))
                assert np.all(values >= 0) and values[-1] == math.inf
                if method == "published":  # the search for the best order may find less near 0, never too much
                    assert np.all(np.diff(values) >= 0)
    assert conversions.rdp_budget(2.0, math.inf, 0.1) == math.inf == conversions.rdp_to_dp(2.0, math.inf, 0.1)


def test_boundaries_do_not_overflow_on_the_way(f64):
    assert np.isfinite(boundaries.mixture(1e300, 0.1, 1e-300)) and boundaries.mixture(math.inf, 0.1, 1.0) == math.inf
    assert np.isfinite(boundaries.stitched(1e300, 1e-300, 1e-300))
    np.testing.assert_allclose(boundaries.mixture(1e30, 0.1, 1e-5), boundaries.mixture(1e30, 0.1, 1e-5, "sharp"))
    across = np.asarray(boundaries.mixture(2.0**60 * np.array([1 - 1e-15, 1 + 1e-15]), 1e-3, 1.0))
    np.testing.assert_allclose(across[0], across[1], rtol=1e-14)  # where the formula of the logarithm changes


def test_shapes_that_do_not_broadcast_are_named():
    odo, filt = ODOMETERS["exact"], ZCDPFilter(1.0)
    for call, message in (
        (lambda: odo.update(odo.init((3,)), epsilon=np.ones(4)), r"epsilon has shape \(4,\).* \(3,\)"),
        (lambda: odo.update(odo.init((3,)), epsilon=0.1, delta=np.zeros(4)), r"delta has shape \(4,\)"),
        (lambda: odo.trajectory(0.1), r"epsilon has shape \(\)"),
        (lambda: filt.request(filt.init((3,)), rho=np.ones(4)), r"rho has shape \(4,\)"),
        (
            lambda: RenyiFilter([2.0, 3.0], 1.0).request(RenyiFilter([2.0, 3.0], 1.0).init(), renyi=np.ones(3)),
            "renyi has",
        ),
        (lambda: filt.request(filt.init((3,)), mech.Gaussian(np.ones(4))), r"request has shape \(4,\).* \(3,\)"),
        (lambda: odo.update(odo.init((3,)), mech.Gaussian(np.ones(4))), r"query has shape \(4,\)"),
    ):
        with pytest.raises(ValueError, match=message):
            call()


def test_half_precision_and_whole_numbers(f32):
    for x in (np.float16(0.5), jnp.bfloat16(0.5), np.float64(0.5), jnp.float32(0.5)):
        state = ODOMETERS["exact"].update(ODOMETERS["exact"].init(), epsilon=x)
        assert float(state.time.high) == 0.25 and state.time.high.dtype == jnp.float32
        assert ODOMETERS["exact"].at(x).dtype == jnp.float32
    assert float(ODOMETERS["exact"].update(ODOMETERS["exact"].init(), epsilon=2).time.high) == 4.0


def test_at_rounds_time_up(f32):
    """0.3 lies above the float32 next to it, whose bound would be below that of 0.3."""
    v = 0.3 if float(np.float32(0.3)) < 0.3 else 0.1
    above = float(np.nextafter(np.float32(v), np.float32(1)))
    assert float(np.float32(v)) < v or float(ODOMETERS["filter"].at(v)) == float(ODOMETERS["filter"].at(np.float32(v)))
    if float(np.float32(v)) < v:
        assert float(ODOMETERS["filter"].at(v)) == float(ODOMETERS["filter"].at(above))


def test_states_may_be_donated_copied_and_pickled(f32):
    filt, odo = GDPFilter(1.0), ODOMETERS["exact"]
    for initial, step in (
        (filt.init, lambda s: filt.request(s, mu=0.1)[0]),
        (odo.init, lambda s: odo.update(s, epsilon=0.1)),
    ):
        after = jax.jit(step, donate_argnums=0)(initial())
        again = step(pickle.loads(pickle.dumps(copy.deepcopy(initial()))))
        assert [float(x) for x in jax.tree.leaves(after)] == [float(x) for x in jax.tree.leaves(again)]


def test_a_state_that_would_be_rounded_is_refused(f64):
    states = GDPFilter(1.0).init(), ODOMETERS["exact"].init()
    with jax.enable_x64(False):
        with pytest.raises(ValueError, match="state has dtype float64"):
            GDPFilter(1.0).request(states[0], mu=0.1)
        with pytest.raises(ValueError, match="state has dtype float64"):
            ODOMETERS["exact"].bound(states[1])
        narrow = GDPFilter(1.0).init()
    assert GDPFilter(1.0).request(narrow, mu=0.1)[0].spent.high.dtype == jnp.float32


def test_norms_and_noise_at_the_ends(f32):
    individual = IndividualFilter(GDPFilter(1.0), 4)
    for norms, noise, granted in (
        ([0.0, 1e-300, 1e300, math.inf], 1.0, [True, True, False, False]),
        ([1.0, 0.0, 1e-300, 1e30], math.inf, [True] * 4),
        ([1.0, 0.0, 1e-300, 1e30], 0.0, [False, True, False, False]),
    ):
        state, mask = individual.request_norms(individual.init(), np.array(norms), noise)
        assert mask.tolist() == granted and np.all(np.isfinite(individual.spent(state)))


def test_a_target_below_the_filters_own_delta_is_named():
    for filt in (ZCDPFilter(0.1, 1e-6), RenyiFilter(8.0, 1.0, 1e-6)):
        with pytest.raises(ValueError, match=r"delta = 1e-06, but it must be a number in \(1e-06, 1\)"):
            filt.epsilon(1e-6)
        assert np.isfinite(filt.epsilon(2e-6))


def test_the_accountant_takes_neither_filters_nor_states():
    individual = IndividualFilter(GDPFilter(1.0), 3)
    for thing in (GDPFilter(1.0), GDPFilter(1.0).init(), ODOMETERS["exact"], ODOMETERS["exact"].init(), individual):
        with pytest.raises(TypeError, match="must be a dpjax mechanism"):
            dpjax.epsilon(thing, delta=1e-5)
