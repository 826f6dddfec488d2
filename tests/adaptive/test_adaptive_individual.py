"""Individual accounting: every example pays its own cost, and only its own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax.mechanisms as mech
from dpjax.adaptive import ApproxDPFilter, GDPFilter, IndividualFilter, RenyiFilter, ZCDPFilter

N = 5


def test_each_example_stops_on_its_own(either):
    individual = IndividualFilter(RenyiFilter(order=8.0, budget=4.0), N)
    norms = jnp.asarray([1.0, 0.5, 0.0, 2.0, 1.0])
    state, masks = individual.init(), []
    for _ in range(5):
        state, mask = individual.request_norms(state, norms, noise_std=2.0)
        masks.append(np.asarray(mask))
    # order norm^2 / (2 noise^2) = 1, 1/4, 0, 4, 1 of a budget of 4
    assert np.sum(masks, axis=0).tolist() == [4, 5, 5, 1, 4]
    np.testing.assert_allclose(individual.spent(state), [4, 1.25, 0, 4, 4], rtol=1e-6)
    np.testing.assert_allclose(individual.remaining(state), [0, 2.75, 4, 0, 0], rtol=1e-6, atol=1e-6)


def test_agrees_with_one_filter_per_example(f64):
    filt = GDPFilter(0.8)
    individual = IndividualFilter(filt, N)
    norms = np.random.default_rng(0).uniform(0, 1, (6, N)).astype(np.float32)
    state, singles = individual.init(), [filt.init() for _ in range(N)]
    for row in norms:
        state, mask = individual.request_norms(state, row, noise_std=1.5)
        for i in range(N):
            singles[i], granted = filt.request(singles[i], mech.Gaussian(1.5 / float(row[i])))
            assert bool(granted) == bool(mask[i])
    np.testing.assert_allclose(individual.spent(state), [filt.spent(s) for s in singles], rtol=1e-6)


def test_costs_are_never_understated(x64):
    individual = IndividualFilter(ZCDPFilter(10.0), 64)
    norms = np.random.default_rng(1).uniform(0.01, 1, 64).astype(jnp.result_type(float))
    state, _ = individual.request_norms(individual.init(), norms, noise_std=0.7)
    noise = np.float64(jnp.asarray(0.7)) if x64 else 0.7
    truth = (np.asarray(norms, np.float64) / noise) ** 2 / 2
    spent = np.asarray(individual.spent(state), np.float64)
    assert np.all(spent >= truth * (1 - 1e-15)) and np.all(spent <= truth * (1 + 1e-5))


def test_minibatches(f32):
    individual = IndividualFilter(GDPFilter(1.0), N)
    ask = lambda state, indices: individual.request(state, indices=jnp.asarray(indices), mu=jnp.full(len(indices), 0.5))
    state, mask = ask(individual.init(), [3, 0, 3, -1, N, 7])
    assert mask.tolist() == [True, True, False, False, False, False]  # the repeated one, then padding
    np.testing.assert_allclose(individual.spent(state), [0.5, 0, 0, 0.5, 0])
    for _ in range(3):
        state, mask = ask(state, [3, 1])
    assert mask.tolist() == [True, True]
    state, mask = ask(state, [3, 1])
    assert mask.tolist() == [False, True]
    np.testing.assert_allclose(individual.spent(state), [0.5, 1.0, 0, 1.0, 0])


def test_own_budgets(f32):
    individual = IndividualFilter(GDPFilter(np.array([0.5, 1.0, 1.0, 0.0, 2.0])), N)
    state, mask = individual.request(individual.init(), mu=1.0)
    assert mask.tolist() == [False, True, True, False, True]
    state, mask = individual.request(individual.init(), mu=jnp.full(3, 1.0), indices=jnp.asarray([4, 3, 2]))
    assert mask.tolist() == [True, False, True]
    orders = IndividualFilter(RenyiFilter([2.0, 8.0], np.tile([[0.5, 2.0]], (N, 1)) * np.arange(1, N + 1)[:, None]), N)
    state, mask = orders.request(orders.init(), mech.Gaussian(jnp.full(2, 1.0)), indices=jnp.asarray([0, 1]))
    assert mask.tolist() == [False, True]


def test_nan_norms_are_refused(f32):
    individual = IndividualFilter(GDPFilter(1.0), 3)
    ask = jax.jit(lambda s, n: individual.request_norms(s, n, noise_std=2.0))
    state, mask = ask(individual.init(), jnp.asarray([jnp.nan, -1.0, 1.0]))
    assert mask.tolist() == [False, False, True]
    assert individual.spent(state).tolist() == [0.0, 0.0, 0.5]


def test_inside_a_training_step(f32):
    """A compiled loop: clip, ask, mask, add noise."""
    data = jnp.asarray(np.random.default_rng(0).normal(size=(32, 3)))
    individual = IndividualFilter(GDPFilter(1.0), 32)

    @jax.jit
    def train(key):
        def step(carry, key):
            weights, state = carry
            gradients = weights - data
            norms = jnp.linalg.norm(gradients, axis=1)
            clipped = jnp.minimum(norms, 1.0)
            state, mask = individual.request_norms(state, clipped, noise_std=4.0)
            scale = jnp.where(mask, clipped / norms, 0.0)
            total = jnp.sum(gradients * scale[:, None], axis=0) + 4.0 * jax.random.normal(key, (3,), weights.dtype)
            return (weights - 0.01 * total, state), mask

        return jax.lax.scan(step, (jnp.zeros(3, data.dtype), individual.init()), jax.random.split(key, 40))

    (_, state), masks = train(jax.random.key(0))
    assert float(jnp.max(individual.spent(state))) <= 1.0
    assert 15 < int(masks.sum(0).min()) < 40 and bool(masks[0].all())


def test_sampled_steps(f32):
    individual = IndividualFilter(RenyiFilter(8.0, 1.0), N)
    plain, _ = individual.request_norms(individual.init(), jnp.ones(N), 1.0)
    sampled, mask = individual.request_norms(individual.init(), jnp.ones(N), 1.0, sampling_probability=0.01)
    assert mask.all() and not bool(individual.request_norms(individual.init(), jnp.ones(N), 1.0)[1].any())
    assert np.all(individual.spent(plain) == 0) and np.all(individual.spent(sampled) < 0.01)


def test_misuse():
    with pytest.raises(TypeError, match="filter must be"):
        IndividualFilter(ApproxDPFilter(1.0, 1e-5), 3)
    with pytest.raises(ValueError, match="num_examples = 0"):
        IndividualFilter(GDPFilter(1.0), 0)
    with pytest.raises(TypeError, match="num_examples must be an int"):
        IndividualFilter(GDPFilter(1.0), 2.5)
    individual = IndividualFilter(GDPFilter(1.0), 3)
    with pytest.raises(ValueError, match="noise_std = -1"):
        individual.request_norms(individual.init(), jnp.ones(3), -1.0)
    with pytest.raises(ValueError, match="every example pays"):
        individual.request_norms(individual.init(), jnp.ones(3), 1.0, sampling_probability=0.1, indices=jnp.arange(3))
    with pytest.raises(TypeError, match="vector of integers"):
        individual.request(individual.init(), mu=jnp.ones(1), indices=jnp.asarray([0.5]))
    assert "for each example" in repr(individual)
