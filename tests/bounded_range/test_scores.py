"""The worst pair, the range of a quality score, and what an exponential mechanism guarantees."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpjax import bounded_range as br


def exponential(scores, scale):
    weights = np.exp(scale * (scores - scores.max()))
    return weights / weights.sum()


scores = st.lists(st.floats(-2, 2), min_size=4, max_size=4).map(np.array)


@settings(max_examples=60, deadline=None)
@given(scores, scores, st.floats(0.01, 4.0), st.floats(-1.5, 1.5))
def test_no_exponential_mechanism_exceeds_its_worst_pair(u, v, scale, level):
    spread = br.quality_range(u, v)
    if spread < 1e-3:
        return
    found = br.exponential_mechanism(spread, scale)
    p, q = exponential(u, scale), exponential(v, scale)
    losses = np.log(p / q)
    assert losses.max() - losses.min() <= found.range_epsilon * (1 + 1e-9) + 1e-12
    assert np.abs(losses).max() <= found.dp_epsilon * (1 + 1e-9) + 1e-12
    x = level * found.range_epsilon
    t = np.clip(losses.max(), 0, found.range_epsilon)
    pair = br.worst_pair(found.range_epsilon, t)
    hockey = lambda p, q: np.maximum(np.asarray(p) - np.exp(x) * np.asarray(q), 0).sum()
    assert hockey(p, q) <= hockey(pair.p, pair.q) + 1e-9


@settings(max_examples=60, deadline=None)
@given(scores, st.lists(st.floats(0, 1), min_size=4, max_size=4).map(np.array))
def test_range_and_sensitivity(u, moved):
    sensitivity = np.abs(moved - 0.5).max()
    assert br.quality_range(u, u + moved - 0.5) <= br.quality_range_bound(sensitivity) + 1e-12
    # a monotone score: every outcome moves up
    assert br.quality_range(u, u + moved) <= br.quality_range_bound(moved.max(), monotone=True) + 1e-12


def test_a_range_below_twice_the_sensitivity():
    """A median by ranks: one record moves every rank on one side by 1/2 and the other by -1/2, or all of them alike."""
    u = np.zeros((3, 5))
    v = np.array([[0.5, 0.5, 0.5, 0.5, 0.5], [-0.5, -0.5, 0.5, 0.5, 0.5], [1.0, 1.0, 1.0, 0.8, 0.6]])
    sensitivity, spread = np.abs(u - v).max(), br.quality_range(u, v)
    assert spread == 1.0 < br.quality_range_bound(sensitivity)
    # the same noise, half the parameter: calibrated by sensitivity the mechanism is only half as much bounded-range
    found = br.exponential_mechanism(spread, 1 / (2 * sensitivity), sensitivity=sensitivity)
    assert found.range_epsilon == 0.5
    assert br.exponential_mechanism(3.0, 0.5, sensitivity=1.0).range_epsilon == 1.0


def test_the_pair():
    for eps, t in ((1.0, 0.5), (0.3, 0.1), (5.0, 4.9), (40.0, 1.0), (1.0, 0.0), (1.0, 1.0)):
        pair = br.worst_pair(eps, t)
        np.testing.assert_allclose([np.sum(pair.p), np.sum(pair.q)], 1.0, rtol=1e-14)
        np.testing.assert_allclose(pair.p, np.exp(pair.losses) * pair.q, rtol=1e-12, atol=1e-300)
    response = br.worst_pair(1.0, 0.5)  # randomised response with eps / 2
    np.testing.assert_allclose(response.p, 1 / (1 + np.exp([-0.5, 0.5])), rtol=1e-14)
    assert br.worst_pair(np.ones(3), np.full((2, 1), 0.2)).p.shape == (2, 3, 2)


def test_traced():
    slope = jax.grad(lambda t: br.worst_pair(1.0, t).p[0])(0.4)
    assert slope == pytest.approx(-np.exp(-0.6) / (1 - np.exp(-1)), rel=1e-5)
    assert np.isnan(jax.jit(lambda t: br.worst_pair(1.0, t).p)(1.5)).all()
    assert np.isnan(jax.grad(lambda t: br.worst_pair(1.0, t).p[0])(1.5))
    assert jax.vmap(br.quality_range)(jnp.zeros((3, 2, 4)), jnp.ones((3, 2, 4))).shape == (3,)
    assert np.isnan(jax.jit(lambda s: br.exponential_mechanism(1.0, s).rho)(-1.0))
    assert jax.grad(lambda s: br.exponential_mechanism(2.0, s).rho)(0.5) == pytest.approx(0.5)
    assert np.isnan(jax.jit(br.quality_range_bound)(-1.0))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: br.worst_pair(0.0, 0.0), "epsilon = 0.0"),
        (lambda: br.worst_pair(1.0, 1.5), "t = 1.5"),
        (lambda: br.quality_range([1.0], [[1.0]]), "neighbour_scores has shape"),
        (lambda: br.quality_range([np.nan], [1.0]), r"scores = nan"),
        (lambda: br.quality_range_bound(-1.0), "sensitivity = -1.0"),
        (lambda: br.exponential_mechanism(-1.0, 1.0), "quality_range = -1.0"),
        (lambda: br.exponential_mechanism(1.0, -1.0), "scale = -1.0"),
    ],
)
def test_bad_numbers_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
