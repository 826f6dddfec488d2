"""The Levy engine against the tables and against the contour engine, which shares no quadrature with it."""

import json
from pathlib import Path

import numpy as np
import pytest

import dpjax
from dpjax import Adjacency, Gaussian, dpsgd

ROWS = json.loads((Path(__file__).parent / "oracles" / "psg.json").read_text(), parse_float=float)["rows"]
FIELDS = ("noise_multiplier", "sampling_probability", "steps", "epsilon", "delta")
# many light losses, where absolute accuracy near 1e-13 is relative accuracy too
LIGHT = [r for r in ROWS if 1e-6 < r["delta"] < 0.1 and r["steps"] >= 100 and 0.1 < r["epsilon"] < 20][:12]


@pytest.mark.parametrize("direction", ["remove", "add"])
def test_bracket_holds_the_truth_and_the_estimate_is_close(direction):
    rows = [r for r in LIGHT if r["direction"] == direction]
    sigma, q, k, eps, delta = (np.array([float(r[f]) for r in rows]) for f in FIELDS)
    found = dpjax.delta_bounds(dpsgd(sigma, q, k), eps, adjacency=Adjacency[direction.upper()], method="levy")
    assert (found.lower <= delta).all() and (found.upper >= delta).all()
    np.testing.assert_allclose(found.estimate, delta, rtol=1e-5)
    assert (found.method == int(dpjax.Method.LEVY)).all()


def test_engines_agree_on_epsilon():
    run = dpsgd(1.0, 0.01, 1000)
    levy = dpjax.epsilon_bounds(run, 1e-5, adjacency=Adjacency.REMOVE, method="levy")
    contour = dpjax.epsilon_bounds(run, 1e-5, adjacency=Adjacency.REMOVE, method="contour")
    assert levy.lower <= contour.estimate <= levy.upper
    assert levy.estimate == pytest.approx(contour.estimate, rel=1e-8)


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
