"""What the samplers' pairs claim, attacked by enumeration: every batch of small datasets, every outcome of small mechanisms."""

import functools
import itertools
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from samplingtools import DIRECTIONS, ORACLES, X, double, stick  # noqa: F401

from dpjax import Adjacency, Gaussian, TruncatedPoissonSampled
from dpjax.laws import loss_law, reverse
from dpjax.laws._binomial import binomial_tails
from dpjax.laws.blend import Blend
from dpjax.laws.finite import from_masses
from dpjax.laws.replaced import PoissonReplaceGaussian, fixed_size_replace
from dpjax.laws.sampled import poisson_add, poisson_remove


def randomised_response(epsilon):
    """The pair that dominates every epsilon-DP mechanism, with its reverse."""
    p = np.array([1.0, np.exp(-epsilon)]) / (1 + np.exp(-epsilon))
    return from_masses(jnp.array(p), jnp.array(p[::-1]))


# ---- samplers of one step: a mechanism is a table from batches to distributions


OTHERS = (0, 1, 2, 3)  # in both datasets; the record is "a", or "b" after a replacement


def random_mechanism(rng, outcomes=3):
    """Different distributions for all batches."""
    table = {}
    for size in range(6):
        for batch in itertools.combinations((*OTHERS, "a"), size):
            table[frozenset(batch)] = rng.dirichlet(np.full(outcomes, rng.choice([0.5, 3.0])))
    for batch in [b for b in table if "a" in b]:
        table[batch - {"a"} | {"b"}] = rng.dirichlet(np.full(outcomes, rng.choice([0.5, 3.0])))
    return table


def only_the_record(p, q, replaced):
    """Batches without the record all look alike: the worst case of the theorems."""
    rest = random_mechanism(np.random.default_rng(0))
    return {batch: p if "a" in batch else replaced if "b" in batch else q for batch in rest}


def epsilon_of(table, neighbours):
    """The pure-DP parameter among all neighbouring batches."""
    pairs = [(table[s], table[t]) for s in table for t in table if neighbours(s, t)]
    return max(np.abs(np.log(p / q)).max() for p, q in pairs)


def is_replacement(s, t):
    return len(s) == len(t) and len(s - t) == 1


def is_removal(s, t):
    return s < t and len(t - s) == 1


def fixed_size(table, data, size):
    batches = list(itertools.combinations(data, size))
    return sum(table[frozenset(b)] for b in batches) / len(batches)


def truncated(table, data, rate, limit):
    total = 0.0
    for size in range(len(data) + 1):
        for batch in itertools.combinations(data, size):
            weight = rate**size * (1 - rate) ** (len(data) - size)
            total = total + weight * fixed_size(table, batch, min(size, limit))
    return total


def outputs(sampler, table, direction):
    """(P, Q) of the two datasets, for a sampler from a dataset to a distribution."""
    with_a, with_b = (*OTHERS, "a"), (*OTHERS, "b")
    if direction is Adjacency.REPLACE_ONE:
        return sampler(table, with_a), sampler(table, with_b)
    pair = sampler(table, with_a), sampler(table, OTHERS)
    return pair if direction is Adjacency.REMOVE else pair[::-1]


@jax.jit
def profile_of(law, x):
    return law.profile(x)


def sampled_once(direction, rate, base):
    return {
        Adjacency.REMOVE: poisson_remove,
        Adjacency.ADD: poisson_add,
        Adjacency.REPLACE_ONE: fixed_size_replace,
    }[direction](rate, base)


@pytest.mark.parametrize("direction", [*DIRECTIONS, Adjacency.REPLACE_ONE])
def test_fixed_size_dominates(direction):
    rng = np.random.default_rng(5)
    for trial in range(8):
        size, table = 1 + trial % 4, random_mechanism(rng)
        base = randomised_response(epsilon_of(table, is_replacement))
        p, q = outputs(functools.partial(fixed_size, size=size), table, direction)
        bound = profile_of(sampled_once(direction, size / 5, base), X)
        assert (bound >= stick(p, q) - 1e-14).all()


def test_fixed_size_is_attained():
    """By a mechanism that looks for the record: then the rate is exactly that of the larger dataset, and no less."""
    p, q = np.array([0.7, 0.2, 0.1]), np.array([0.2, 0.3, 0.5])
    base = from_masses(jnp.array(p), jnp.array(q))
    sampler = functools.partial(fixed_size, size=2)
    for direction in DIRECTIONS:
        pair = outputs(sampler, only_the_record(p, q, q), direction)
        law = base if direction is Adjacency.REMOVE else reverse(base)
        np.testing.assert_allclose(profile_of(sampled_once(direction, 2 / 5, law), X), stick(*pair), atol=1e-15)
        assert (profile_of(sampled_once(direction, 2 / 5 * 0.99, law), X) < stick(*pair) - 1e-4).any()
    # replace-one: the orders above 1 by (A, R), those below by (R, B)
    rr = randomised_response(1.2)
    p, q = np.array([1.0, np.exp(-1.2)]) / (1 + np.exp(-1.2)), np.array([np.exp(-1.2), 1.0]) / (1 + np.exp(-1.2))
    above = stick(*outputs(sampler, only_the_record(p, q, q), Adjacency.REPLACE_ONE))
    below = stick(*outputs(sampler, only_the_record(q, q, p), Adjacency.REPLACE_ONE))
    np.testing.assert_allclose(profile_of(fixed_size_replace(2 / 5, rr), X), np.maximum(above, below), atol=1e-15)


def kept_and_full(size, rate, limit):
    """The two probabilities of ``_truncated_poisson``, by its formula."""
    full, rest = binomial_tails(size - 1.0, rate, limit)
    too_large, _ = binomial_tails(size, rate, limit + 1.0)
    return full, rest, limit / size * too_large / jnp.where(full > 0, full, 1.0)


KEPT_AND_FULL = jax.jit(kept_and_full)


def test_truncation_keeps_the_record_as_often_as_it_says():
    """P(the record is drawn and kept, and limit others or more are drawn), in fractions."""
    for size, rate, limit in [
        (5, Fraction(1, 3), 2),
        (5, Fraction(1, 3), 4),
        (7, Fraction(9, 10), 1),
        (4, Fraction(1, 2), 4),
    ]:
        full = kept = Fraction(0)
        for others in itertools.product((0, 1), repeat=size - 1):
            drawn = sum(others)
            if drawn >= limit:
                weight = rate**drawn * (1 - rate) ** (size - 1 - drawn)
                full += weight
                kept += weight * rate * Fraction(limit, drawn + 1)
        got_full, got_rest, got_kept = KEPT_AND_FULL(float(size), float(rate), float(limit))
        assert float(got_full) == pytest.approx(float(full), rel=1e-14)
        assert float(got_rest) == pytest.approx(float(1 - full), rel=1e-14)
        assert float(got_full * got_kept) == pytest.approx(float(kept), rel=1e-14)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_truncated_poisson_dominates(direction):
    rng = np.random.default_rng(6)
    for trial in range(8):
        limit, rate, table = 1 + trial % 4, rng.uniform(0.05, 0.95), random_mechanism(rng)
        replaced = randomised_response(epsilon_of(table, is_replacement))
        removed = randomised_response(epsilon_of(table, is_removal))
        full, rest, kept = KEPT_AND_FULL(5.0, rate, float(limit))
        law = Blend(full, rest, sampled_once(direction, kept, replaced), sampled_once(direction, rate, removed))
        p, q = outputs(functools.partial(truncated, rate=rate, limit=limit), table, direction)
        assert (profile_of(law, X) >= stick(p, q) - 1e-14).all()


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_truncated_poisson_is_attained(direction):
    """If batches are always full, or never, by a mechanism that looks for the record."""
    p, q = np.array([0.7, 0.2, 0.1]), np.array([0.2, 0.3, 0.5])
    base = from_masses(jnp.array(p), jnp.array(q))
    base = base if direction is Adjacency.REMOVE else reverse(base)
    for rate, limit, expected in [(1.0, 2, 2 / 5), (0.3, 5, 0.3)]:
        pair = outputs(functools.partial(truncated, rate=rate, limit=limit), only_the_record(p, q, q), direction)
        full, rest, kept = KEPT_AND_FULL(5.0, rate, float(limit))
        law = Blend(full, rest, sampled_once(direction, kept, base), sampled_once(direction, rate, base))
        np.testing.assert_allclose(profile_of(law, X), stick(*pair), atol=1e-15)
        np.testing.assert_allclose(full * kept + rest * rate, expected, rtol=1e-14)


def test_truncated_poisson_dominates_replacements():
    """The Gaussian, a sum in [-1, 1]: each batch a mean, each pair (others full or not) at its worst; a grid of outcomes."""
    grid = np.linspace(-14.0, 14.0, 4001)
    step = grid[1] - grid[0]
    rng = np.random.default_rng(8)
    law = jax.jit(
        lambda rate, limit, x: loss_law(
            TruncatedPoissonSampled(5.0, rate, limit, Gaussian(1.3)), Adjacency.REPLACE_ONE
        ).profile(x)
    )
    for trial in range(8):
        rate, limit = rng.uniform(0.1, 0.9), 1 + trial % 4
        values = dict(zip(OTHERS, rng.choice([-1.0, 0.0, 1.0], 4), strict=True)) | {"a": 1.0, "b": -1.0}
        subsets = [b for n in range(6) for b in itertools.combinations((*OTHERS, "a"), n)]
        subsets += [b for n in range(6) for b in itertools.combinations((*OTHERS, "b"), n)]
        density = {s: np.exp(-0.5 * ((grid - sum(values[i] for i in s)) / 1.3) ** 2) for s in map(frozenset, subsets)}
        table = {s: d / d.sum() for s, d in density.items()}
        p, q = outputs(functools.partial(truncated, rate=rate, limit=limit), table, Adjacency.REPLACE_ONE)
        assert (law(rate, float(limit), X) >= stick(p, q) - 1e-6 * step).all()
        assert (law(0.2 * rate, float(limit), X) < stick(p, q)).any()


# ---- Poisson sampling, replace-one


def test_one_axis_dominates_all_directions_of_a_gaussian():
    """(1 - q) R + q A against (1 - q) R + q B, with the two records anywhere in the unit disc."""
    grid = np.linspace(-7.0, 7.0, 281)
    y, x = np.meshgrid(grid, grid)
    law = jax.jit(lambda q, mu, x: PoissonReplaceGaussian(q, mu).profile(x))
    normal = lambda u, mu: np.exp(-0.5 * ((x - mu * u[0]) ** 2 + (y - mu * u[1]) ** 2)).ravel()
    rng = np.random.default_rng(3)
    coarse = X[::3]
    for _ in range(12):
        q, mu = rng.uniform(0.02, 1), rng.uniform(0.3, 2)
        angle, length = rng.uniform(0, 2 * np.pi, 2), np.sqrt(rng.uniform(0, 1, 2))
        u, v = (l * np.array([np.cos(a), np.sin(a)]) for a, l in zip(angle, length, strict=True))
        plain, a, b = (d / d.sum() for d in (normal((0, 0), mu), normal(u, mu), normal(v, mu)))
        exact = stick((1 - q) * plain + q * a, (1 - q) * plain + q * b, coarse)
        assert (law(q, mu, coarse) >= exact - 1e-9).all()
    plain, a, b = (d / d.sum() for d in (normal((0, 0), 1.0), normal((1, 0), 1.0), normal((-1, 0), 1.0)))
    exact = stick(0.7 * plain + 0.3 * a, 0.7 * plain + 0.3 * b, coarse)
    np.testing.assert_allclose(law(0.3, 1.0, coarse), exact, atol=2e-4)  # attained, up to the grid


def joint_convexity(rate, x, removed, replaced):
    """A bound on the replace-one profile at x >= 0, from profiles of the base: Balle, Barthe, Gaboardi, Theorem 2."""
    inner = np.log1p(np.expm1(x) / rate)
    share = np.exp(x - inner)
    return rate * ((1 - share) * removed(inner) + share * replaced(inner))


def test_advanced_joint_convexity_holds_but_is_no_profile():
    """Why only bases with a known triple are sampled under replace-one: the general bound holds, but no pair has it."""
    rng = np.random.default_rng(4)
    x = X[X >= 0]
    for _ in range(300):
        r, a, b = rng.dirichlet(np.full(rng.integers(2, 5), rng.choice([0.3, 1.0, 5.0])), 3)
        rate = rng.uniform(0.01, 1)
        removed, replaced = functools.partial(stick, a, r), functools.partial(stick, a, b)
        exact = stick((1 - rate) * r + rate * a, (1 - rate) * r + rate * b, x)
        assert (joint_convexity(rate, x, removed, replaced) >= exact - 1e-14).all()
    # a profile is convex in exp(x): this bound is not, with (A, R) randomised response and (A, B) above it
    removed = functools.partial(stick, *np.array([[np.e, 1.0], [1.0, np.e]]) / (1 + np.e))
    replaced = functools.partial(stick, np.array([0.6, 0.4]), np.array([0.03, 0.97]))
    alpha = np.linspace(1.0, 1.5, 51)
    assert (replaced(np.log(alpha)) > removed(np.log(alpha))).all()
    bound = joint_convexity(0.5, np.log(alpha), removed, replaced)
    assert np.diff(bound, 2).max() < -1e-6
