"""Samplers as records: what is refused and how, and the laws that they stand for."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
from dpjax import Adjacency, FixedSizeSampled, Gaussian, PoissonSampled, RandomAllocation, TruncatedPoissonSampled
from dpjax.laws import check_adjacency, loss_law
from dpjax.laws.allocation import poisson_steps

BASE = Gaussian(1.0)
RECORDS = {
    "fixed": FixedSizeSampled(100, 7, BASE),
    "truncated": TruncatedPoissonSampled(100, 0.07, 12, BASE),
    "poisson": PoissonSampled(0.07, BASE),
    "allocation": RandomAllocation(10, BASE, 2),
}
SIZED = [RECORDS[name] for name in ("fixed", "truncated", "allocation")]
SINGLE = (Adjacency.REMOVE, Adjacency.ADD, Adjacency.REPLACE_ONE)


@pytest.fixture(autouse=True)
def double():
    with jax.enable_x64(True):
        yield


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FixedSizeSampled(100, 101, BASE), r"sample_size = 101.0, .* at most dataset_size = 100.0"),
        (lambda: FixedSizeSampled(100, [7, 101], BASE), r"sample_size = .*101.* at most dataset_size"),
        (lambda: FixedSizeSampled(100, 7.5, BASE), r"sample_size = 7.5, .* whole number >= 0"),
        (lambda: FixedSizeSampled(100.5, 7, BASE), r"dataset_size = 100.5, .* whole number >= 1"),
        (lambda: FixedSizeSampled(0, 0, BASE), r"dataset_size = 0.0, .* >= 1"),
        (lambda: FixedSizeSampled(float("inf"), 1, BASE), r"dataset_size = inf"),
        (lambda: TruncatedPoissonSampled(100, 1.1, 12, BASE), r"sampling_probability = 1.1, .* in \[0, 1\]"),
        (lambda: TruncatedPoissonSampled(100, 0.1, 0, BASE), r"max_batch_size = 0.0, .* whole number >= 1"),
        (lambda: TruncatedPoissonSampled(100, 0.1, 1.5, BASE), r"max_batch_size = 1.5, .* whole number"),
        (lambda: TruncatedPoissonSampled(0.5, 0.1, 1, BASE), r"dataset_size = 0.5, .* >= 1"),
        (lambda: RandomAllocation(0, BASE), r"num_steps = 0.0, .* whole number >= 1"),
        (lambda: RandomAllocation(3.5, BASE), r"num_steps = 3.5, .* whole number"),
        (lambda: RandomAllocation(3, BASE, 4), r"participations = 4.0, .* at most num_steps = 3.0"),
        (lambda: RandomAllocation(3, BASE, 0), r"participations = 0.0, .* whole number >= 1"),
    ],
)
def test_what_a_field_may_be(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("inner", SIZED, ids=lambda r: type(r).__name__)
@pytest.mark.parametrize("wrapped", [lambda m: m, lambda m: BASE + m * 3], ids=["alone", "composed"])
def test_a_sampler_of_a_sampler_of_known_size_is_refused(inner, wrapped):
    name = type(inner).__name__
    for outer in (
        lambda m: PoissonSampled(0.1, m),
        lambda m: FixedSizeSampled(10, 2, m),
        lambda m: TruncatedPoissonSampled(10, 0.1, 2, m),
        lambda m: RandomAllocation(3, m),
    ):
        with pytest.raises(ValueError, match=f"cannot sample for {name}"):
            outer(wrapped(inner))
    with pytest.raises(TypeError, match="mechanism must be a dpjax mechanism"):
        RandomAllocation(3, 1.0)


def test_shuffled_batches_are_refused_with_what_to_use_instead():
    with pytest.raises(NotImplementedError, match="PoissonSampled or TruncatedPoissonSampled.*RandomAllocation"):
        dpjax.ShuffledBatches(100, BASE)


def test_adjacencies_without_an_analysis_are_refused_by_name():
    with pytest.raises(NotImplementedError, match="RandomAllocation has no analysis under REPLACE_ONE"):
        check_adjacency(RECORDS["allocation"] * 2, Adjacency.REPLACE_ONE)
    for adjacency in Adjacency:
        check_adjacency(RECORDS["poisson"], adjacency)
    for record in RECORDS.values():
        check_adjacency(record * 2 + BASE, Adjacency.REPLACE_SPECIAL)
    claim = dpjax.Composed([BASE, BASE])
    with pytest.raises(NotImplementedError, match="FixedSizeSampled needs an analysis .* under REPLACE_ONE.*Composed"):
        loss_law(FixedSizeSampled(10, 2, claim), Adjacency.ADD)
    with pytest.raises(NotImplementedError, match="PoissonSampled over Composed under REPLACE_ONE"):
        loss_law(PoissonSampled(0.1, claim), Adjacency.REPLACE_ONE)
    with pytest.raises(NotImplementedError, match="RandomAllocation is known through"):
        loss_law(RECORDS["allocation"], Adjacency.ADD)


@pytest.mark.parametrize("name", RECORDS)
def test_records_are_trees(name):
    record = RECORDS[name]
    leaves, tree = jax.tree.flatten(record)
    assert jax.tree.flatten(jax.tree.unflatten(tree, leaves))[0] == leaves
    placeholder = jax.tree.map(lambda _: None, record)
    assert type(placeholder) is type(record)
    jax.tree.map(lambda _: "x", record).check()  # a placeholder passes
    traced = jax.jit(lambda r: (r.check(), r.mechanism.noise_multiplier * 2)[1])(record)
    assert float(traced) == 2.0
    assert eval(repr(record), vars(dpjax)) is not record


@pytest.mark.parametrize("direction", [SINGLE[2], *(pytest.param(d, marks=pytest.mark.slow) for d in SINGLE[:2])])
def test_records_stand_for_their_laws(direction):
    """Batches by vmap; limits that are other samplers."""
    x = jnp.array([-2.0, -0.3, -0.01, 0.01, 0.3, 2.0])
    profiles = jax.jit(jax.vmap(lambda record: loss_law(record, direction).profile(x)))
    three = lambda *values: jnp.array(values if len(values) == 3 else values * 3)
    gaussian, noise = (profiles(Gaussian(three(1.3 * scale)))[0] for scale in (1.0, 2.0))
    poisson = profiles(PoissonSampled(three(0.2, 1.0, 0.0), Gaussian(three(1.3))))
    np.testing.assert_allclose(poisson[1], gaussian, rtol=1e-13)
    np.testing.assert_allclose(poisson[2], np.maximum(-np.expm1(x), 0), rtol=1e-15)
    fixed = profiles(FixedSizeSampled(three(9.0), three(2.0, 9.0, 0.0), Gaussian(three(1.3, 2.6, 1.3))))
    np.testing.assert_allclose(fixed[1], noise if direction is Adjacency.REPLACE_ONE else gaussian, rtol=1e-13)
    np.testing.assert_allclose(fixed[2], np.maximum(-np.expm1(x), 0), rtol=1e-15)
    truncated = TruncatedPoissonSampled(three(9.0), three(0.2, 0.2, 1.0), three(9.0, 50.0, 2.0), Gaussian(three(1.3)))
    np.testing.assert_allclose(profiles(truncated), np.stack([poisson[0], poisson[0], fixed[0]]), rtol=1e-14)


def test_two_poisson_samplers_are_one():
    x = jnp.array([-1.0, 0.1, 1.0])
    profile = jax.jit(lambda record, x: loss_law(record, Adjacency.REPLACE_ONE).profile(x))
    twice = profile(PoissonSampled(0.5, PoissonSampled(0.2, BASE)), x)
    np.testing.assert_allclose(twice, profile(PoissonSampled(0.1, BASE), x), rtol=1e-15)
    profile = jax.jit(lambda record, x: loss_law(record, Adjacency.ADD).profile(x))
    twice = profile(PoissonSampled(0.5, PoissonSampled(0.2, BASE)), x)
    np.testing.assert_allclose(twice, profile(PoissonSampled(0.1, BASE), x), rtol=1e-13)


@pytest.mark.parametrize("direction", [SINGLE[1], *(pytest.param(d, marks=pytest.mark.slow) for d in SINGLE[::2])])
def test_derivatives_with_respect_to_a_record(direction):
    def profile(record):
        return loss_law(record, direction).profile(jnp.array(0.03))

    both = jax.jit(jax.value_and_grad(profile))
    slopes = both(TruncatedPoissonSampled(100.0, 0.1, 12.0, BASE))[1]
    assert all(np.isfinite(leaf) for leaf in jax.tree.leaves(slopes))
    h = 1e-6
    ends = [both(TruncatedPoissonSampled(100.0, 0.1 + s * h, 12.0, BASE))[0] for s in (-1, 1)]
    assert float(slopes.sampling_probability) == pytest.approx(float((ends[1] - ends[0]) / (2 * h)), rel=1e-6)
    ends = [both(TruncatedPoissonSampled(100.0, 0.1, 12.0, Gaussian(1 + s * h)))[0] for s in (-1, 1)]
    assert float(slopes.mechanism.noise_multiplier) == pytest.approx(float((ends[1] - ends[0]) / (2 * h)), rel=1e-6)


def test_an_allocation_is_bounded_by_poisson_steps():
    steps = poisson_steps(RandomAllocation(jnp.array([10.0, 11.0, 7.0]), BASE, jnp.array([1.0, 2.0, 7.0])))
    np.testing.assert_array_equal(steps.count, [10.0, 5.0, 1.0])
    np.testing.assert_array_equal(steps.mechanism.sampling_probability, 1 / np.array([10.0, 5.0, 1.0]))
