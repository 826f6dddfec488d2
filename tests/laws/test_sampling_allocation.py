"""Random allocation, attacked by enumeration: every outcome of all steps, exact values of the Gaussian."""

import functools
import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from samplingtools import DIRECTIONS, ORACLES, X, double, stick  # noqa: F401

from dpjax import Adjacency, Gaussian, PoissonSampled
from dpjax.laws import loss_law
from dpjax.laws.allocation import (
    gaussian_add,
    log_moment,
    participation,
    random_allocation_profile,
    unmixed,
    unmixed_add,
)
from dpjax.laws.finite import FiniteLaw, from_masses
from dpjax.laws.gaussian import GaussianLaw


@jax.jit
def profile_of(law, x):
    return law.profile(x)


def allocate(pair, steps, participations=1):
    """(with the record, without) over all outcomes of all steps."""
    p, q = pair
    product = lambda chosen: functools.reduce(
        np.multiply.outer, [p if i in chosen else q for i in range(steps)]
    ).ravel()
    chosen = list(itertools.combinations(range(steps), participations))
    return sum(product(c) for c in chosen) / len(chosen), product(())


def poisson_steps(pair, steps):
    p, q = pair
    mixture = (1 - 1 / steps) * q + p / steps
    return [functools.reduce(np.multiply.outer, [m] * steps).ravel() for m in (mixture, q)]


def directed(pair, direction):
    return pair if direction is Adjacency.REMOVE else pair[::-1]


def finite_pairs():
    rng = np.random.default_rng(9)
    for _ in range(6):
        p, q = rng.dirichlet(np.full(3, rng.choice([0.3, 2.0])), 2)
        yield p, q
    yield np.array([0.9, 0.1, 0.0]), np.array([0.0, 0.3, 0.7])


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_poisson_steps_bound_an_allocation(direction):
    """arXiv 2502.08202, Theorem 4.3, for one of up to five batches; the profile of Poisson alone would not do."""
    below = False
    for pair, steps in itertools.product(finite_pairs(), (1, 2, 3, 5)):
        poisson = lambda x, p=pair, n=steps: stick(*directed(poisson_steps(p, n), direction), x)
        exact = stick(*directed(allocate(pair, steps), direction))
        bound = random_allocation_profile(poisson, X, float(steps), direction)
        assert (bound >= exact - 1e-14).all()
        below = below or (poisson(X) < exact - 1e-3).any()
        if steps == 1:
            np.testing.assert_allclose(bound, exact, atol=1e-15)
    assert below


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(("steps", "participations"), [(2, 2), (3, 2), (4, 2), (5, 2), (5, 3), (6, 2)])
def test_more_participations_are_a_composition_of_allocations(steps, participations, direction):
    for pair in itertools.islice(finite_pairs(), 5):
        exact = stick(*directed(allocate(pair, steps, participations), direction))
        once = allocate(pair, steps // participations)
        both = [functools.reduce(np.multiply.outer, [m] * participations).ravel() for m in once]
        assert (stick(*directed(both, direction)) >= exact - 1e-14).all()


def test_replacements_in_an_allocation_have_no_analysis():
    with pytest.raises(NotImplementedError, match="RandomAllocation has no analysis under REPLACE_ONE"):
        random_allocation_profile(lambda x: x, X, 3.0, Adjacency.REPLACE_ONE)


def test_unmixed_is_the_profile_as_a_law():
    pair = np.array([0.6, 0.3, 0.1]), np.array([0.2, 0.3, 0.5])
    composed = from_masses(*(jnp.array(m) for m in poisson_steps(pair, 3)))
    rate = participation(3.0)
    law = jax.jit(unmixed)(composed, rate)
    want = random_allocation_profile(composed.profile, X, 3.0, Adjacency.REMOVE)
    np.testing.assert_allclose(profile_of(law, X), want, rtol=1e-12, atol=1e-16)
    assert float(law.p.sum()) == pytest.approx(1.0, abs=1e-12)
    # losses rounded to a lattice reach below log(1 - rate): no mass there, nothing lost above
    low = jnp.floor(composed.loss / 1.5) * 1.5
    rounded = FiniteLaw(low, composed.p, composed.p * jnp.exp(-low), 0.0, 0.0)
    law = jax.jit(unmixed)(rounded, rate)
    assert float(rounded.loss.min()) < float(jnp.log1p(-rate)) and float(law.q_bottom) > 0
    inner = np.log1p(rate * np.expm1(X))
    np.testing.assert_allclose(profile_of(law, X), profile_of(rounded, inner) / rate, rtol=1e-12, atol=1e-16)


def on_grid(p, q, step):
    """The least pair on a lattice of losses that dominates: an atom between two points is split, both masses kept."""
    losses = np.log(p / q)
    low = np.floor(losses / step)
    upper = (p - np.exp(low * step) * q) / -np.expm1(-step)
    points = np.arange(low.min(), low.max() + 2)
    mass = np.zeros(len(points))
    index = (low - points[0]).astype(int)
    np.add.at(mass, index, p - upper)
    np.add.at(mass, index + 1, upper)
    return FiniteLaw(jnp.array(points * step), jnp.array(mass), jnp.array(mass * np.exp(-points * step)), 0.0, 0.0)


def compose(first, second):
    p, q = (np.multiply.outer(np.append(np.asarray(a), b), np.append(np.asarray(c), d)).ravel() for a, b, c, d in (
        (first.p, first.p_top, second.p, second.p_top), (first.q, 0.0, second.q, 0.0)))  # fmt: skip
    return p, q


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_an_allocation_on_a_lattice_dominates(direction):
    """Once and composed with itself, for all orders, though the lattice reaches beyond the largest loss (add)."""
    moved = False
    for trial, (p, q) in enumerate(finite_pairs()):
        p, q = 0.98 * p + 0.02 / 3, 0.98 * q + 0.02 / 3
        for step in (0.002, 0.3):
            steps = 2 + trial % 2
            pair = directed(poisson_steps((p, q), steps), direction)
            exact = directed(allocate((p, q), steps), direction)
            of = unmixed if direction is Adjacency.REMOVE else unmixed_add
            law = jax.jit(of)(on_grid(*pair, step), participation(float(steps)))
            assert (profile_of(law, X) >= stick(*exact) - 1e-13).all()
            assert (np.diff(law.loss) >= 0).all() and float(law.p.min()) >= -1e-15
            if step == 0.3:
                twice = [np.multiply.outer(m, m).ravel() for m in exact]
                assert (stick(*compose(law, law)) >= stick(*twice) - 1e-13).all()
            if direction is Adjacency.ADD:
                assert float(law.p.sum() + law.p_top) == pytest.approx(1.0, abs=1e-12)
                assert float(law.q.sum() + law.q_bottom) == pytest.approx(1.0, abs=1e-12)
                moved = moved or float(law.p_top) > 1e-6
            if step == 0.002:
                poisson = functools.partial(stick, *pair)
                bound = random_allocation_profile(poisson, X, float(steps), direction)
                np.testing.assert_allclose(profile_of(law, X), bound, atol=0.01)
    assert moved or direction is Adjacency.REMOVE


def test_unmixed_add_of_the_exact_pair_is_the_profile():
    pair = np.array([0.6, 0.3, 0.1]), np.array([0.2, 0.3, 0.5])
    composed = from_masses(*(jnp.array(m) for m in poisson_steps(pair, 3)[::-1]))
    law = jax.jit(unmixed_add)(composed, participation(3.0))
    want = random_allocation_profile(composed.profile, X, 3.0, Adjacency.ADD)
    np.testing.assert_allclose(profile_of(law, X), want, rtol=1e-11, atol=1e-15)
    assert float(law.p_top) < 1e-15


@pytest.mark.parametrize("steps", [1, 2, 3, 5])
def test_moments_of_an_allocation(steps):
    p, q = np.array([0.6, 0.3, 0.1]), np.array([0.2, 0.3, 0.5])
    moments = np.log([(q * (p / q) ** k).sum() for k in range(8)])
    with_record, without = allocate((p, q), steps)
    compiled = jax.jit(log_moment)
    for order in (1, 2, 3, 7):
        want = np.log((without * (with_record / without) ** order).sum())
        assert float(compiled(jnp.array(moments[: order + 1]), float(steps))) == pytest.approx(want, abs=1e-13)


def test_moments_for_many_steps():
    """Order 2 has a short form: 1 + (M - 1) / t."""
    value, slope = jax.jit(jax.value_and_grad(lambda m, t: log_moment(jnp.array([0.0, 0.0, 1.0]) * m, t)))(1.0, 1e6)
    assert float(value) == pytest.approx(np.log1p(np.expm1(1.0) / 1e6), rel=1e-8)
    assert float(slope) == pytest.approx(np.e / 1e6 / (1 + np.expm1(1.0) / 1e6), rel=1e-6)


def test_allocation_to_two_batches():
    """Exact values of the Gaussian: below both bounds, and Jensen's is close (add)."""
    rows = json.loads((ORACLES / "sampling.json").read_text())["random_allocation_t2"]
    grid = np.linspace(-12.0, 13.0, 5001)
    jensen = jax.jit(lambda mu, x: gaussian_add(2.0, mu).profile(x))
    gaussian = jax.jit(lambda mu, x: GaussianLaw(mu).profile(x))
    assert len(rows) == 9
    for row in rows:
        sigma, epsilon, exact = (float(row[k]) for k in ("sigma", "eps", "delta"))
        direction = Adjacency[row["direction"].upper()]

        def two_steps(x, sigma=sigma, direction=direction):
            plain = np.exp(-0.5 * (grid / sigma) ** 2)
            plain /= plain.sum()
            mixture = plain * (0.5 + 0.5 * np.exp((grid - 0.5) / sigma**2))
            p, q = directed((mixture, plain), direction)
            loss = np.log(p / q)
            step = jax.jit(lambda x: loss_law(PoissonSampled(0.5, Gaussian(sigma)), direction).profile(x))
            return jnp.array([(p * step(v - loss)).sum() for v in np.atleast_1d(x)])

        bound = float(random_allocation_profile(two_steps, np.array([epsilon]), 2.0, direction)[0])
        both = float(gaussian(np.sqrt(2) / sigma, epsilon))  # a third of the Poisson draws that are not empty
        assert exact < bound < 2 / 3 * exact + 1 / 3 * both, row
        if direction is Adjacency.ADD:
            assert exact < float(jensen(1 / sigma, epsilon)) < 2 * exact, row
