"""Batches are drawn as their record says."""

import itertools
from math import comb

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
from dpjax.training import PoissonBatches, batches


def many(sampler, number=40_000, seed=0):
    """Membership of every record in many batches, (number, dataset_size), and the masks."""

    @jax.jit
    def draw(keys):
        indices, mask = jax.vmap(sampler.sample)(keys)
        rows = jnp.arange(number)[:, None]
        return jnp.zeros((number, sampler.dataset_size), jnp.int32).at[rows, indices].add(mask), mask

    return map(np.asarray, draw(jax.random.split(jax.random.key(seed), number)))


@pytest.mark.parametrize("size, q, most", [(6, 0.3, 6), (6, 0.3, 3), (5, 0.7, 2), (4, 0.5, 1)])
def test_distribution_of_batches(size, q, most):
    """The frequency of every batch against its probability, by enumeration."""
    sampler = PoissonBatches(size, q, most)
    member, mask = many(sampler)
    assert member.max() == 1, "a record is in a batch once at most"
    np.testing.assert_array_equal(member.sum(1), mask.sum(1))
    assert np.all(np.diff(mask.astype(int), axis=1) <= 0), "padding comes last"
    number = len(member)
    seen = np.bincount(member @ (1 << np.arange(size)), minlength=1 << size)
    for batch in itertools.product((0, 1), repeat=size):
        k = sum(batch)
        exact = q**k * (1 - q) ** (size - k) if k < most else 0.0
        if k == most:  # all larger ones, cut at random
            exact = sum(comb(size, j) * q**j * (1 - q) ** (size - j) for j in range(most, size + 1)) / comb(size, most)
        found = seen[int(np.dot(batch, 1 << np.arange(size)))]
        assert abs(found - number * exact) <= 5.5 * np.sqrt(number * exact * (1 - exact)) + 1e-9, batch


def test_records_are_independent():
    member, _ = many(PoissonBatches(6, 0.3))
    off = np.corrcoef(member.T) - np.eye(6)
    assert np.abs(off).max() < 5.5 / np.sqrt(len(member))


@pytest.mark.parametrize("q", [1e-4, 0.01, 0.3, 1 / 3, 1 - 1e-6])
def test_the_probability_is_never_more_than_asked(q):
    """The threshold itself, exactly: as many of the 2**32 integers pass as floor(q 2**32)."""
    exact = int(np.floor(q * 2.0**32))
    around = jnp.asarray([0, exact - 1, exact, 2**32 - 1], jnp.uint32)
    assert list(batches._below(around, q)) == [True, True, False, False]
    rounded = np.float32(q)
    exact = int(np.floor(float(rounded) * 2.0**32))
    around = jnp.asarray([0, exact - 1, exact, 2**32 - 1], jnp.uint32)
    assert list(jax.jit(batches._below)(around, rounded)) == [True, True, False, False]


@pytest.mark.parametrize("q, number", [(0.0, 0), (1.0, 9)])
def test_ends(q, number):
    sampler = PoissonBatches(9, q)
    assert int(sampler.sample(jax.random.key(0)).mask.sum()) == number
    traced = jax.jit(lambda q: PoissonBatches(9, q).sample(jax.random.key(0)).mask.sum())
    assert int(traced(q)) == number


@pytest.mark.parametrize("q", [-0.1, 1.5, np.nan])
def test_traced_and_out_of_range_draws_nobody(q):
    assert not jax.jit(lambda q: PoissonBatches(9, q).sample(jax.random.key(0)).mask)(q).any()


def test_one_program_and_static_shapes():
    sampler, traces = PoissonBatches(100, 0.1, 20), []

    @jax.jit
    def draw(key):
        traces.append(1)
        return sampler.sample(key)

    for seed in range(3):
        indices, mask = draw(jax.random.key(seed))
        assert indices.shape == mask.shape == (20,) and len(set(np.asarray(indices))) == 20
    assert len(traces) == 1


def test_record():
    base = dpjax.Gaussian(2.0)
    assert repr(PoissonBatches(100, 0.1, 20).step(base)) == "TruncatedPoissonSampled(100, 0.1, 20, Gaussian(2))"
    assert repr(PoissonBatches(100, 0.1).step(base)) == "PoissonSampled(0.1, Gaussian(2))"
    assert PoissonBatches(100, 0.1, 20).expected_batch_size == 10.0


@pytest.mark.parametrize(
    "arguments, words",
    [
        ((0, 0.1), "dataset_size = 0"),
        ((10, 1.5), "sampling_probability = 1.5"),
        ((10, [0.1, 0.2]), "must be a number"),
        ((10, 0.1, 0), "max_batch_size = 0"),
        ((10, 0.1, 11), "max_batch_size = 11"),
    ],
)
def test_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        PoissonBatches(*arguments)
