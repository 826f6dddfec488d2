"""A guarded optimizer stands still when refused, spends no more than its budget, and grants all that fits."""

import functools
from fractions import Fraction

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dpjax
from dpjax import training
from dpjax.adaptive import (
    ApproxDPFilter,
    BasicFilter,
    FilterOdometer,
    GDPFilter,
    MixtureOdometer,
    RenyiFilter,
    ZCDPFilter,
)

PARAMS = {"a": jnp.asarray([0.5, -0.0]), "b": jnp.asarray(0.0)}
OPTIMIZERS = {
    "sgd": lambda: optax.sgd(0.1, momentum=0.9),
    "adam": lambda: optax.adam(0.1),
    "adamw": lambda: optax.adamw(0.1, weight_decay=0.1),
}
LENGTH = 24  # of the random schedules


def gradients(seed):
    a, b = jax.random.split(jax.random.key(seed))
    return {"a": jax.random.normal(a, (4, 2)), "b": jax.random.normal(b, (4,))}


def bits(tree):
    return [np.asarray(x).tobytes() for x in jax.tree.leaves(tree)]


def chain(name, mechanism=None):
    private = training.private_aggregate(1.0, mechanism, key=5, expected_batch_size=4)
    return optax.chain(private, OPTIMIZERS[name]())


@functools.cache
def scanned(name, kind):
    """(guarded run over a schedule of noise, unguarded step), compiled once for all budgets and schedules."""

    @jax.jit
    def run(budget, noises):
        filt = kind(budget)
        optimizer = training.guarded(chain(name), filt)

        def step(carry, noise):
            params, state = carry
            grads = gradients(state.inner_state[0].count)
            updates, state = optimizer.update(grads, state, params, mechanism=dpjax.Gaussian(noise))
            params = optax.apply_updates(params, updates)
            return (params, state), (state.granted, params, state.inner_state, filt.remaining(state.filter_state))

        return jax.lax.scan(step, (PARAMS, optimizer.init(PARAMS)), noises)

    @jax.jit
    def alone(params, state, noise):
        updates, state = chain(name).update(gradients(state[0].count), state, params, mechanism=dpjax.Gaussian(noise))
        return optax.apply_updates(params, updates), state

    return run, alone


schedules = st.lists(st.floats(0.5, 30.0, width=32), min_size=LENGTH, max_size=LENGTH)
COSTS = {GDPFilter: Fraction(1), ZCDPFilter: Fraction(1, 2)}  # over noise_multiplier ** 2


class TestRandomSchedules:
    @pytest.mark.parametrize("name, kind", [("sgd", GDPFilter), ("adam", ZCDPFilter), ("adamw", GDPFilter)])
    @hypothesis.given(noises=schedules, budget=st.floats(0.25, 3.0, width=32))
    @hypothesis.settings(max_examples=60)
    def test_guard(self, name, kind, noises, budget):
        run, alone = scanned(name, kind)
        (params, state), (granted, history, inner, remaining) = jax.device_get(
            run(jnp.float32(budget), jnp.asarray(noises, jnp.float32))
        )
        # Budget and costs, in exact arithmetic
        total = Fraction(budget) ** 2 if kind is GDPFilter else Fraction(budget)
        spent = Fraction(0)
        for i, noise in enumerate(noises):
            cost = COSTS[kind] / Fraction(noise) ** 2
            if granted[i]:
                spent += cost
            else:  # what is left is smaller than what was asked for, but for rounding
                assert total - spent < cost * (1 + Fraction(1, 10**6)) + total / 10**6
                asked = 1 / noise if kind is GDPFilter else 0.5 / noise**2
                assert remaining[i] < asked * (1 + 1e-6)
            assert spent <= total
        assert int(state.refused) == LENGTH - granted.sum()

        # Parameters, moments and key: those of the optimizer that ran the granted steps alone
        p, s = PARAMS, chain(name).init(PARAMS)
        for i, noise in enumerate(noises):
            before = (bits(p), bits(s))
            if granted[i]:
                p, s = alone(p, s, jnp.float32(noise))
                close((history["a"][i], history["b"][i]), (p["a"], p["b"]))
                p, s = (jax.tree.map(lambda x, i=i: jnp.asarray(x[i]), t) for t in (history, inner))
            here = jax.tree.map(lambda x, i=i: x[i], (history, inner))
            assert (bits(here[0]), bits(here[1])) == ((bits(p), bits(s)) if granted[i] else before)

    def test_every_request_that_fits_is_granted(self):
        run, _ = scanned("sgd", GDPFilter)
        noises = np.full(LENGTH, 4.0, np.float32)  # exact in floats: 16 of 1/16
        _, (granted, *_) = run(jnp.float32(1.0), jnp.asarray(noises))
        assert list(granted) == [True] * 16 + [False] * (LENGTH - 16)

    def test_a_smaller_request_may_follow(self):
        run, _ = scanned("sgd", GDPFilter)
        noises = np.asarray([1.25, 1.0, 2.0, 100.0] + [1.0] * (LENGTH - 4), np.float32)
        _, (granted, *_) = run(jnp.float32(1.0), jnp.asarray(noises))
        assert list(granted[:4]) == [True, False, True, True] and not granted[4:].any()

    @pytest.mark.parametrize("bad", [np.nan, -1.0, 0.0])
    def test_what_is_no_noise_is_refused(self, bad):
        run, _ = scanned("adam", ZCDPFilter)
        (params, _), (granted, *_) = run(jnp.float32(1.0), jnp.full(LENGTH, bad))
        assert not granted.any() and bits(params) == bits(PARAMS)


def close(a, b):
    for x, y in zip(a, b, strict=True):
        np.testing.assert_allclose(x, y, rtol=2e-5, atol=2e-6)


class TestStandsStill:
    @pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])
    @pytest.mark.parametrize("name", OPTIMIZERS)
    def test_bit_for_bit(self, name, jit):
        optimizer = training.guarded(chain(name, dpjax.Gaussian(1.0)), GDPFilter(mu=1.5))  # grants two
        update = jax.jit(optimizer.update) if jit else optimizer.update
        params, state = PARAMS, optimizer.init(PARAMS)
        seen = []
        for i in range(4):
            updates, state = update(gradients(i), state, params)
            params = optax.apply_updates(params, updates)
            params = {**params, "a": params["a"].at[1].set(-0.0)}
            seen.append((bits(params), bits(state.inner_state)))
            assert bool(state.granted) == (i < 2)
        assert seen[0] != seen[1] and seen[1] == seen[2] == seen[3]
        # a zero update inside the chain would not have done
        still = jax.tree.map(jnp.zeros_like, params)
        moving, _ = OPTIMIZERS[name]().update(still, state.inner_state[1], params)
        assert any(np.any(np.asarray(x) != 0) for x in jax.tree.leaves(moving))

    def test_what_is_refused_is_not_even_computed(self):
        calls = []

        def count(updates, state, params=None):
            jax.debug.callback(lambda: calls.append(1))
            return updates, state

        counted = optax.GradientTransformation(lambda params: optax.EmptyState(), count)
        inner = optax.chain(chain("sgd", dpjax.Gaussian(1.0)), counted)
        optimizer = training.guarded(inner, GDPFilter(mu=1.5))  # grants two
        state, update = optimizer.init(PARAMS), jax.jit(optimizer.update)
        for _ in range(5):
            _, state = update(gradients(0), state, PARAMS)
        jax.effects_barrier()
        assert len(calls) == 2 and int(state.refused) == 3

    def test_parameters_of_any_type(self):
        params = {"f": jnp.asarray([-0.0], jnp.bfloat16), "i": jnp.asarray([3])}
        optimizer = training.guarded(optax.sgd(0.1), BasicFilter(epsilon=0.0, delta=0.0))
        grads = {"f": jnp.ones(1, jnp.bfloat16), "i": jnp.asarray([0])}
        updates, state = optimizer.update(grads, optimizer.init(params), params, cost={"epsilon": 1.0})
        assert not state.granted and bits(optax.apply_updates(params, updates)) == bits(params)


FOR_DP = RenyiFilter.for_dp(3.0, 1e-5, [4.0, 8.0])
GDP = GDPFilter(mu=1.0)


class TestFilters:
    @pytest.mark.slow
    def test_renyi_with_sampling(self):
        """The spent budget against Renyi divergences computed in another way."""
        order, budget = 8.0, 0.3
        noises = np.asarray([1.0, 0.7, 2.0, 0.6, 0.6, 0.6, 0.9, 1.5], np.float32)
        optimizer = training.guarded(chain("adam"), RenyiFilter(order=order, budget=budget))

        @jax.jit
        def run(noises):
            def step(state, noise):
                record = dpjax.PoissonSampled(0.1, dpjax.Gaussian(noise))
                _, state = optimizer.update(gradients(0), state, PARAMS, mechanism=record, mask=jnp.ones(4, bool))
                return state, state.granted

            return jax.lax.scan(step, optimizer.init(PARAMS), noises)[1]

        granted = np.asarray(run(jnp.asarray(noises)))
        costs = dpjax.renyi(dpjax.PoissonSampled(0.1, dpjax.Gaussian(noises.astype(np.float64))), order)
        spent = 0.0
        for cost, ok in zip(costs, granted, strict=True):
            assert ok == (spent + cost <= budget)
            spent += cost * ok
        assert 0 < granted.sum() < len(noises)

    @pytest.mark.slow
    @pytest.mark.parametrize("name", OPTIMIZERS)
    def test_renyi_with_limited_batches(self, name):
        """As many steps as the divergence of one allows, computed in another way; then nothing moves."""
        record = dpjax.TruncatedPoissonSampled(40, 0.1, 6, dpjax.Gaussian(2.0))
        order, steps = 4.0, 5
        with jax.enable_x64(True):
            one = float(dpjax.renyi(record, order, adjacency=dpjax.Adjacency.ADD_OR_REMOVE_ONE))
        private = training.private_aggregate(1.0, record, key=5)
        inner = optax.chain(private, OPTIMIZERS[name]())
        optimizer = training.guarded(inner, RenyiFilter(order=order, budget=one * (steps + 0.5)))
        mask = jnp.arange(4) < 3
        update = jax.jit(lambda state, params: optimizer.update(gradients(0), state, params, mask=mask))
        params, state, seen = PARAMS, optimizer.init(PARAMS), []
        for i in range(steps + 3):
            updates, state = update(state, params)
            params = optax.apply_updates(params, updates)
            seen.append((bits(params), bits(state.inner_state)))
            assert bool(state.granted) == (i < steps)
        assert seen[steps - 2] != seen[steps - 1] and all(s == seen[steps - 1] for s in seen[steps:])

    def test_known_steps_are_asked_for_by_themselves(self):
        schedule = dpjax.ComposedOver(dpjax.Gaussian([2.0, 1.0, 2.0, 4.0]))
        optimizer = training.guarded(chain("sgd", schedule), GDPFilter(mu=1.0))
        state, granted = optimizer.init(PARAMS), []
        for _ in range(3):
            _, state = optimizer.update(gradients(0), state, PARAMS)
            granted.append(bool(state.granted))
        assert granted == [True, False, False]  # the second step is still what is due
        assert training.privacy_spent(state, 1e-5) == dpjax.epsilon(dpjax.Gaussian(2.0), 1e-5)

    def test_a_schedule_that_is_over_is_refused(self):
        schedule = dpjax.ComposedOver(dpjax.Gaussian([2.0, 4.0]))
        optimizer = training.guarded(chain("sgd", schedule), GDPFilter(mu=10.0))
        state, granted = optimizer.init(PARAMS), []
        for _ in range(3):
            updates, state = optimizer.update(gradients(0), state, PARAMS)
            granted.append(bool(state.granted))
        assert granted == [True, True, False] and int(state.inner_state[0].count) == 2
        assert all(np.all(np.asarray(x) == 0) for x in jax.tree.leaves(updates))

    @pytest.mark.parametrize(
        "filt, delta, expected",
        [
            (GDPFilter(mu=0.0), 1e-5, lambda: 0.0),
            (GDPFilter(mu=1.0), 1e-5, lambda: dpjax.epsilon(dpjax.Gaussian(1.0), 1e-5)),
            (ZCDPFilter(rho=0.5), 1e-5, lambda: ZCDPFilter(rho=0.5).epsilon(1e-5)),
            (RenyiFilter(order=8.0, budget=0.5), 1e-5, lambda: RenyiFilter(order=8.0, budget=0.5).epsilon(1e-5)),
            (FOR_DP, 1e-5, lambda: FOR_DP.epsilon()),
            (ApproxDPFilter(epsilon=2.0, delta=1e-6), 1e-5, lambda: 2.0),
        ],
        ids=lambda x: type(x).__name__,
    )
    def test_spent_is_the_whole_budget(self, filt, delta, expected):
        optimizer = training.guarded(chain("sgd"), filt)
        _, state = optimizer.update(gradients(0), optimizer.init(PARAMS), PARAMS, mechanism=dpjax.Gaussian(50.0))
        spent = training.privacy_spent(state, delta)
        np.testing.assert_allclose(spent, expected(), rtol=1e-6, atol=1e-12)
        assert spent >= expected() * (1 - 1e-7)

    def test_resume(self):
        make = lambda: training.guarded(chain("adam", dpjax.Gaussian(1.0)), GDPFilter(mu=1.5))
        optimizer, again = make(), make()
        state = optimizer.init(PARAMS)
        for _ in range(2):
            _, state = optimizer.update(gradients(0), state, PARAMS)
        loaded = jax.tree.unflatten(
            jax.tree.structure(again.init(PARAMS)), [jnp.asarray(np.array(x)) for x in jax.tree.leaves(state)]
        )
        out = [o.update(gradients(1), s, PARAMS) for o, s in ((optimizer, state), (again, loaded))]
        assert bits(out[0]) == bits(out[1]) and not out[1][1].granted

    def test_a_checkpoint_of_another_filter_is_recognised(self):
        make = lambda mu: training.guarded(chain("adam"), GDPFilter(mu=mu))
        _, state = make(1.0).update(gradients(0), make(1.0).init(PARAMS), PARAMS, mechanism=dpjax.Gaussian(2.0))
        other = make(0.1)
        with pytest.raises(ValueError, match="belongs to another filter"):
            other.update(gradients(0), state, PARAMS, mechanism=dpjax.Gaussian(2.0))
        resumed = jax.tree.unflatten(jax.tree.structure(other.init(PARAMS)), jax.tree.leaves(state))
        with pytest.raises(ValueError, match="checkpoint of another"):
            training.privacy_spent(resumed, 1e-5)


class TestMetered:
    ODOMETER = MixtureOdometer.tightest_at(0.1, delta=1e-6, slack=1e-6)

    def test_reads_every_step(self):
        optimizer = training.metered(chain("adam"), self.ODOMETER)
        params, state, expected = PARAMS, optimizer.init(PARAMS), self.ODOMETER.init()
        for noise in (10.0, 20.0, 15.0):
            updates, state = optimizer.update(gradients(0), state, params, mechanism=dpjax.Gaussian(noise))
            params = optax.apply_updates(params, updates)
            expected = self.ODOMETER.update(expected, rho=0.5 / noise**2)
            np.testing.assert_allclose(training.privacy_spent(state, 1e-6), self.ODOMETER.bound(expected), rtol=1e-5)
        plain, _ = chain("adam").update(
            gradients(0), chain("adam").init(PARAMS), PARAMS, mechanism=dpjax.Gaussian(10.0)
        )
        first, _ = optimizer.update(gradients(0), optimizer.init(PARAMS), PARAMS, mechanism=dpjax.Gaussian(10.0))
        assert bits(plain) == bits(first)

    def test_outermost_for_known_steps_too(self):
        optimizer = training.metered(chain("sgd", dpjax.Gaussian(10.0)), self.ODOMETER)
        _, state = optimizer.update(gradients(0), optimizer.init(PARAMS), PARAMS)
        assert training.privacy_spent(state, 1e-6) > dpjax.epsilon(dpjax.Gaussian(10.0), 1e-6)


def update(optimizer, **extra):
    return optimizer.update(gradients(0), optimizer.init(PARAMS), PARAMS, **extra)


GUARD = lambda mechanism=None, filt=GDP: training.guarded(chain("sgd", mechanism), filt)
REFUSED = {
    "no filter": (lambda: training.guarded(optax.sgd(1.0), None), TypeError, "filter must be a filter"),
    "filters": (lambda: training.guarded(optax.sgd(1.0), GDPFilter(mu=[1.0, 2.0])), ValueError, "batch axes"),
    "no odometer": (lambda: training.metered(optax.sgd(1.0), GDPFilter(mu=1.0)), TypeError, "must be an odometer"),
    "not named": (lambda: update(GUARD()), TypeError, "needs the record of each step"),
    "named though known": (
        lambda: update(GUARD(dpjax.Gaussian(1.0)), mechanism=dpjax.Gaussian(9.0)), TypeError, "not known beforehand",
    ),
    "another price": (
        lambda: update(GUARD(dpjax.Gaussian(1.0)), cost={"mu": 0.0}), TypeError, "say what they cost",
    ),
    "nothing private inside": (
        lambda: update(training.guarded(optax.sgd(0.1), GDPFilter(mu=1.0))), TypeError, "exactly one of",
    ),
    "no price": (
        lambda: update(GUARD(dpjax.PoissonSampled(0.1, dpjax.Gaussian(1.0))), mask=jnp.ones(4, bool)), TypeError, "RenyiF",
    ),
    "an epoch": (lambda: update(GUARD(dpjax.RandomAllocation(4, dpjax.Gaussian(1.0)))), TypeError, "whole epoch"),
    "state of another kind": (
        lambda: GUARD(dpjax.Gaussian(1.0)).update(gradients(0), chain("sgd").init(PARAMS), PARAMS), TypeError, "state must",
    ),
    "delta below the filter's": (
        lambda: training.privacy_spent(update(GUARD(filt=ApproxDPFilter(epsilon=1.0, delta=1e-5)), mechanism=dpjax.Gaussian(90.0))[1], 1e-6),
        ValueError, "at least 1e-05",
    ),
    "another adjacency": (
        lambda: training.privacy_spent(GUARD().init(PARAMS), 1e-5, adjacency=dpjax.Adjacency.REPLACE_ONE), ValueError, "made for",
    ),
    "delta below the odometer's": (
        lambda: training.privacy_spent(
            training.metered(chain("sgd"), FilterOdometer(delta=1e-5, epsilon=1.0)).init(PARAMS), 1e-6
        ), ValueError, "at least 1e-05",
    ),
    "MultiSteps around": (
        lambda: training.privacy_spent(optax.MultiSteps(GUARD(), 2).init(PARAMS), 1e-5), ValueError, "MultiSteps",
    ),
    "guard inside the chain": (
        lambda: training.privacy_spent(
            (chain("sgd").init(PARAMS), training.guarded(optax.sgd(0.1), GDPFilter(mu=1.0)).init(PARAMS)), 1e-5
        ), ValueError, "wrap the whole one",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case):
    call, error, words = REFUSED[case]
    with pytest.raises(error, match=words):
        call()


def test_states_say_what_was_spent():
    """Concrete, traced, batched, as placeholders: a state is printed where a program is debugged. Keys are secret."""
    filt = ApproxDPFilter(epsilon=1.0, delta=1e-6, slack=1e-6)
    state, _ = filt.request(filt.init(), epsilon=0.1)
    assert repr(state) == "FilterState(ApproxDPFilter: 1 granted, spent 0.0100001, delta 0.0)"  # in float32, rounded up
    seen = []
    jax.jit(lambda s: seen.append(repr(s)))(state)
    assert seen == ["FilterState(ApproxDPFilter: <traced> granted, spent <traced>, delta <traced>)"]
    assert "in (20,)" in repr(filt.init((20,)))
    for placeholder in (None, "leaf", jax.ShapeDtypeStruct((), jnp.float32)):
        assert repr(jax.tree.map(lambda x, p=placeholder: p, state)).startswith("FilterState(ApproxDPFilter")
    odometer = MixtureOdometer(1e-6, gamma=0.1)
    assert repr(odometer.update(odometer.init(), epsilon=0.5)) == "OdometerState(intrinsic time 0.25, delta 0.0)"
    private = training.private_aggregate(1.0, dpjax.Gaussian(2.0), key=1234, expected_batch_size=1)
    shown = repr(private.init(jnp.zeros(2)))
    assert shown == "PrivacyState(count=0, steps=Gaussian(2), rng_key is secret)"
    optimizer = training.guarded(private, dpjax.adaptive.GDPFilter(mu=0.6))
    state = optimizer.init(jnp.zeros(2))
    for said in ("granted, 0 refused", "refused, 1 refused", "refused, 2 refused"):
        _, state = optimizer.update(jnp.ones((1, 2)), state, jnp.zeros(2))
        assert repr(state).startswith(f"GuardedState(last step {said}, FilterState(GDPFilter: 1 granted, spent")
    metered = training.metered(private, odometer).init(jnp.zeros(2))
    assert repr(metered).startswith(
        "MeteredState(OdometerState(intrinsic time 0.0, delta 0.0), inner_state=..., odometer=Mix"
    )
