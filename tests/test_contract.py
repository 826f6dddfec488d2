"""What holds for every query however it is called: flag off and on, eager, jitted, differentiated, batched, scanned."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
from dpjax import dpsgd

EXACT = 1.82823666651658  # epsilon at noise 1, from the tables
SLOPE = -3.82261026
CURVATURE = 16.8707723


def epsilon(sigma):
    return dpjax.epsilon(dpsgd(sigma, 0.01, 1000), delta=1e-5)


@pytest.mark.parametrize("x64", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_every_way_of_calling(x64):
    tol = 1e-9 if x64 else 1e-6
    with jax.enable_x64(x64):
        assert isinstance(epsilon(1.0), np.float64) and epsilon(1.0) == pytest.approx(EXACT, rel=1e-10)
        for call, expected in (
            (jax.jit(epsilon), EXACT),
            (jax.grad(epsilon), SLOPE),
            (compiled := jax.jit(jax.grad(epsilon)), SLOPE),
            (jax.hessian(epsilon), CURVATURE),
        ):
            assert float(call(1.0)) == pytest.approx(expected, rel=max(tol, 1e-7))
        assert float(jax.jit(epsilon)(1.0)) >= EXACT * (1 - 1e-15)  # rounded towards safety
        for mapped in (jax.vmap(epsilon), jax.vmap(jax.jit(epsilon))):
            np.testing.assert_allclose(mapped(jnp.asarray([1.0, 1.0])), EXACT, rtol=tol)
        slope = jax.grad(lambda s: jax.lax.scan(lambda c, x: (c + epsilon(x * s), None), 0.0, jnp.ones(2))[0])
        assert float(slope(1.0)) == pytest.approx(2 * SLOPE, rel=max(tol, 1e-7))
        assert np.isnan(jax.jit(epsilon)(-1.0)) and np.isnan(compiled(-1.0))


def test_values_do_not_recompile():
    from dpjax import contour

    epsilon(1.0)
    before = contour.solve._cache_size()
    for sigma in (1.1, 1.2, np.float64(1.3), 2):
        epsilon(sigma)
    assert contour.solve._cache_size() == before


def test_shapes_broadcast():
    run = dpsgd(np.ones((3, 1)), np.full(2, 0.01), 100)
    assert dpjax.delta(run, 1.0).shape == (3, 2)
    with pytest.raises(ValueError, match="broadcast"):
        dpjax.delta(run, np.ones(5))


@pytest.mark.parametrize(
    "record", [dpjax.Gaussian(np.zeros(0)), dpjax.Laplace(2.0) * np.zeros((3, 0)), dpjax.PureDP([])]
)
def test_no_configurations_have_no_answers(record):
    shape = np.shape(dpjax.epsilon(record, 1e-5))
    assert 0 in shape
    assert dpjax.delta_bounds(record, 1.0).upper.shape == shape
    assert dpjax.epsilon(dpjax.Gaussian(1.0), np.zeros((0, 2))).shape == (0, 2)
    assert dpjax.epsilon(dpjax.Gaussian(1.0), np.zeros(0), precision="float32").dtype == np.float32


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: dpsgd(-1.0, 0.01, 10), "noise_multiplier = -1.0"),
        (lambda: dpsgd(1.0, 1.5, 10), "sampling_probability = 1.5"),
        (lambda: dpsgd(1.0, [0.1, -0.5], 10), r"sampling_probability\[1\] = -0.5"),
        (lambda: dpsgd(1.0, 0.01, float("nan")), "steps = nan"),
        (lambda: dpjax.epsilon(dpsgd(1.0, 0.01, 10), delta=2.0), "delta = 2.0"),
        (lambda: dpjax.epsilon(jax.tree.map(lambda x: -x, dpsgd(1.0, 0.01, 10)), delta=0.1), "count = -10.0"),
    ],
)
def test_bad_numbers_are_named(make, name):
    with pytest.raises(ValueError, match=name):
        make()


def test_third_derivatives_are_refused():
    with jax.enable_x64(True), pytest.raises(NotImplementedError, match="third"):
        jax.grad(jax.grad(jax.grad(epsilon)))(1.0)


@pytest.mark.parametrize(
    "make", [dpjax.Laplace, dpjax.DiscreteGaussian, lambda s: dpjax.PoissonSampled(0.5, dpjax.Laplace(s))]
)
def test_without_noise_epsilon_is_infinite_from_both_sides(make):
    bounds = dpjax.epsilon_bounds(make(0.0), 1e-5)
    assert bounds.lower == bounds.estimate == bounds.upper == np.inf


def test_without_noise_in_a_batch():
    assert np.isinf(dpjax.epsilon(dpjax.Laplace([0.0, 1.0]), 1e-5)).tolist() == [True, False]


def test_a_large_loss_is_told_apart():
    bounds = dpjax.epsilon_bounds(dpjax.Laplace(1e-7), 1e-5)
    truth = 1e7 + 2 * np.log1p(-1e-5)
    assert bounds.lower <= truth <= bounds.upper and bounds.upper - bounds.lower < 1e-7


def test_bounds_print_their_meaning():
    one = dpjax.Bounds(1.0, 1.5, 2.0, 0, 1, 40)
    assert repr(one) == "Bounds(lower=1.0, estimate=1.5, upper=2.0, status=CONVERGED, method=CONTOUR, nodes=40)"
    two = dpjax.Bounds(*np.arange(6.0).reshape(3, 2), np.array([0, 4]), np.array([4, 4]), np.array([7, 8]))
    assert repr(two) == (
        "Bounds(lower=array([0., 1.]), estimate=array([2., 3.]), upper=array([4., 5.]), status=[CONVERGED, GRID], "
        "method=LATTICE, nodes=[7, 8])"
    )


def test_a_list_of_counts_is_told_to_be_an_array():
    with pytest.raises(TypeError, match=r"np.array\(\[1, 2\]\)"):
        dpjax.Gaussian(1.0) * [1, 2]


def test_a_single_element_has_no_index():
    with pytest.raises(ValueError, match="^noise_multiplier = -1.0, "):
        dpjax.Gaussian([-1.0])


ASKED_BY_WORD = {
    "epsilon": lambda a: dpjax.epsilon(dpjax.Gaussian(1.0), 1e-5, adjacency=a),
    "delta": lambda a: dpjax.delta(dpjax.Gaussian(1.0), 1.0, adjacency=a),
    "log_delta": lambda a: dpjax.log_delta(dpjax.Gaussian(1.0), 1.0, adjacency=a),
    "renyi": lambda a: dpjax.renyi(dpjax.Gaussian(1.0), 2.0, adjacency=a),
    "tradeoff": lambda a: dpjax.tradeoff(dpjax.Gaussian(1.0), 0.1, adjacency=a),
    "advantage": lambda a: dpjax.advantage(dpjax.Gaussian(1.0), adjacency=a),
    "gdp_mu": lambda a: dpjax.gdp_mu(dpjax.Gaussian(1.0), adjacency=a),
    "attack_rates": lambda a: dpjax.attack_rates(dpjax.Gaussian(1.0), prior=0.5, adjacency=a),
    "privacy_loss_cdf": lambda a: dpjax.privacy_loss_cdf(dpjax.Gaussian(1.0), 0.0, adjacency=a),
    "characteristic_function": lambda a: dpjax.characteristic_function(dpjax.Gaussian(1.0), 1.0, adjacency=a),
    "statement": lambda a: dpjax.statement(dpjax.Gaussian(1.0), 1e-5, adjacency=a),
    "calibrate": lambda a: dpjax.calibrate(dpjax.Gaussian, epsilon=1.0, delta=1e-5, adjacency=a),
    "noise_for_training": lambda a: dpjax.noise_for_training(1000, 10, 1, 1.0, 1e-5, adjacency=a),
    "sweep": lambda a: dpjax.sweep(dpjax.Gaussian, {"noise_multiplier": 1.0}, delta=1e-5, adjacency=a),
    "sweep of tradeoffs": lambda a: dpjax.sweep(
        dpjax.Gaussian, {"noise_multiplier": 1.0}, false_positive_rate=0.1, adjacency=a
    ),
    "filter": lambda a: dpjax.adaptive.ApproxDPFilter(1.0, 1e-5, adjacency=a),
    "Renyi filter": lambda a: dpjax.adaptive.RenyiFilter(8.0, 1.0, adjacency=a),
    "odometer": lambda a: dpjax.adaptive.MixtureOdometer(1e-5, 0.1, adjacency=a),
    "ledger": lambda a: dpjax.ledger.to_dict(dpjax.Gaussian(1.0), a),
    "plotting": lambda a: dpjax.plotting.tradeoff(dpjax.Gaussian(1.0), adjacency=a),
}


@pytest.mark.parametrize("name", ASKED_BY_WORD)
def test_adjacency_is_a_member_and_a_word_is_told_which(name):
    with pytest.raises(ValueError, match=r"^adjacency = 'replace_one', but it must be dpjax.Adjacency.REPLACE_ONE\.$"):
        ASKED_BY_WORD[name]("replace_one")
    with pytest.raises(ValueError, match=r"^adjacency = 3, but it must be one of Adjacency.ADD_OR_REMOVE_ONE, "):
        ASKED_BY_WORD[name](3)
