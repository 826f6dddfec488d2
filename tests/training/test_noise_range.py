"""Noise of any number in a range: never below the truth, close to it where the plan fits, and the sums as exact as they say."""

from fractions import Fraction
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dpjax
from dpjax import training
from dpjax.adaptive import GDPFilter, MixtureOdometer, RenyiFilter
from dpjax.mechanisms import Adjacency
from dpjax.training import _running, _tilts

LOW, HIGH, STEPS, RATE, DELTA = 1.0, 2.0, 300, 0.05, 1e-5
RANGE = training.NoiseRange(LOW, HIGH, steps=STEPS, sampling_probability=RATE, delta=DELTA)
PLAIN = training.NoiseRange(LOW, 4.0, steps=STEPS, delta=DELTA)
PARAMS = jnp.zeros(2)


def rows(seed=0):
    """Name -> noise multipliers, float32."""
    rng = np.random.default_rng(seed)
    whole = {
        "least": np.full(STEPS, LOW),
        "most": np.full(STEPS, HIGH),
        "between": np.full(STEPS, 1.37),
        "alternating": np.tile([LOW, HIGH], STEPS // 2),
        "decaying": np.geomspace(HIGH, LOW, STEPS),
        "growing": np.geomspace(LOW, HIGH, STEPS),
        "random": rng.uniform(LOW, HIGH, STEPS),
        "one spike": np.where(np.arange(STEPS) == 17, LOW, HIGH),
    }
    return {name: x.astype(np.float32) for name, x in whole.items()}


@cache
def inside(steps):
    """``epsilon`` inside jit, compiled."""
    return jax.jit(lambda count, delta: steps.epsilon(count, delta, None))


@cache
def scan(steps):
    """A compiled run of as many steps as are asked for."""

    def one(state, x):
        noise, used = x
        new = lambda: steps.next(state, None, noise).count
        return jax.lax.cond(used, new, lambda: state), None

    return jax.jit(lambda state, noise, used: jax.lax.scan(one, state, (noise, used))[0])


def run(noise, steps=RANGE):
    """The statistic after steps at these noise multipliers, as NumPy arrays."""
    length, number = steps.steps, len(noise)
    padded = np.full(length, steps.high, np.float32)
    padded[:number] = noise
    return jax.tree.map(np.asarray, scan(steps)(steps.start(), padded, np.arange(length) < number))


def truth(noise, steps=RANGE, delta=DELTA):
    """Certified bounds of the same schedule, composed from its records; zeros are steps not made."""
    used = np.zeros(steps.steps)
    used[: len(noise)] = 1
    padded = np.full(steps.steps, float(steps.high))
    padded[: len(noise)] = noise
    step = dpjax.PoissonSampled(steps.sampling_probability, dpjax.Gaussian(padded))
    return dpjax.epsilon_bounds(dpjax.ComposedOver(dpjax.SelfComposed(step, used)), delta)


def along(count, steps=RANGE, delta=DELTA):
    """(lower, upper) along the contours alone."""
    both = steps._directions
    return _running.bound(count, both, both, delta, steps.sampling_probability)


class TestAgainstTheSchedule:
    """The oracle is the composition of the records, with its own certificate."""

    @pytest.mark.parametrize("name", rows())
    def test_whole_runs(self, name):
        noise = rows()[name]
        count, exact = run(noise), truth(noise)
        lower, upper = along(count)
        assert lower <= exact.upper
        assert exact.lower <= upper
        assert exact.lower <= RANGE.epsilon(count, DELTA, None) <= exact.upper * (1 + 1e-9)

    @pytest.mark.parametrize("number", [*(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2, 5, 20)), 60, 150])
    @pytest.mark.parametrize("name", ["between", "random"])
    def test_on_the_way(self, name, number):
        noise = rows()[name][:number]
        count, exact = run(noise), truth(noise)
        lower, upper = along(count)
        assert lower <= exact.upper
        assert exact.lower <= upper
        answer = inside(RANGE)(count, DELTA)
        assert exact.lower <= answer
        assert answer <= exact.upper * (1.2 if number < 60 else 1 + 1e-6)
        if number >= 60:
            assert upper <= exact.upper * (1 + 1e-8)

    @pytest.mark.slow
    @pytest.mark.parametrize("number", [1, 2, 5, 20])
    @pytest.mark.parametrize("name", ["between", "random"])
    def test_early_and_outside_jit(self, name, number):
        noise = rows()[name][:number]
        count, exact = run(noise), truth(noise)
        answer = RANGE.epsilon(count, DELTA, None)
        assert exact.lower <= answer <= exact.upper * (1.2 if name == "random" else 1 + 1e-8)

    @pytest.mark.parametrize("delta", [1e-9, 1e-7, 1e-3, 0.1, 0.99])
    def test_another_delta_than_planned_is_valid(self, delta):
        noise = rows()["random"]
        count, exact = run(noise), truth(noise, delta=delta)
        lower, upper = along(count, delta=delta)
        assert lower <= exact.upper
        assert exact.lower <= upper <= exact.upper * 1.05 + 1e-12

    def test_delta_at_its_ends(self):
        count = run(rows()["random"][:3])
        assert along(count, delta=0.0)[1] == np.inf
        assert along(count, delta=1.0)[1] == 0
        assert along(count, delta=1 - (1 - RATE) ** 3 + 1e-9)[1] == 0  # nobody was seen, but with that probability

    def test_directions(self):
        noise = rows()["decaying"]
        count = run(noise)
        step = dpjax.ComposedOver(dpjax.PoissonSampled(RATE, dpjax.Gaussian(noise.astype(float))))
        for adjacency in (Adjacency.ADD, Adjacency.REMOVE, Adjacency.REPLACE_SPECIAL):
            exact = dpjax.epsilon_bounds(step, DELTA, adjacency=adjacency)
            assert exact.lower <= RANGE.epsilon(count, DELTA, adjacency) <= exact.upper * (1 + 1e-9)

    def test_no_steps(self):
        for steps in (RANGE, PLAIN):
            empty = jax.tree.map(np.asarray, steps.start())
            assert steps.epsilon(empty, DELTA, None) == 0
            assert steps.epsilon(empty, 0.0, None) == 0

    @pytest.mark.slow
    @pytest.mark.parametrize("seed", range(4))
    def test_other_ranges(self, seed):
        rng = np.random.default_rng(seed)
        low = np.exp(rng.uniform(np.log(0.5), np.log(3)))
        high = low * np.exp(rng.uniform(0, 2))
        rate, number = np.exp(rng.uniform(np.log([1e-3, 20]), np.log([0.5, 2000])))
        delta = 10.0 ** rng.uniform(-9, -4)
        steps = training.NoiseRange(low, high, steps=int(number), sampling_probability=rate, delta=delta)
        for noise in (
            np.full(steps.steps, low),
            np.full(steps.steps, high),
            np.geomspace(high, low, steps.steps),
            np.exp(rng.uniform(np.log(low), np.log(high), steps.steps)),
            np.tile([low, high], steps.steps)[: steps.steps // 3 + 1],
        ):
            noise = np.clip(noise.astype(np.float32), *steps._ends)
            count, exact = run(noise, steps), truth(noise, steps, delta)
            lower, upper = along(count, steps, delta)
            assert lower <= exact.upper
            assert exact.lower <= upper
            assert exact.lower <= steps.epsilon(count, delta, None) <= exact.upper * 1.6


class TestSums:
    """Rounding of the sums, and how they are kept, against exact arithmetic."""

    def add(self, numbers):
        @jax.jit
        def float64(total, x):
            return _running.add(total, x)

        total = np.zeros((1, 3), np.float32)
        with jax.enable_x64(True):
            for x in numbers:
                total = np.asarray(float64(jnp.asarray(total, jnp.float64), jnp.asarray([x], jnp.float64)))
                np.testing.assert_array_equal(
                    total, total.astype(np.float32)
                )  # float32 numbers, or the state would lose digits
        return total[0]

    @pytest.mark.parametrize("kind", ["one sign", "both signs", "growing", "cancelling"])
    def test_an_addition_loses_no_more_than_is_said(self, kind):
        rng = np.random.default_rng(1)
        numbers = rng.lognormal(0, 3, 300) / 7
        if kind == "both signs":
            numbers *= rng.choice([-1, 1], 300)
        if kind == "growing":
            numbers = np.geomspace(1e-25, 1e8, 300) / 3
        if kind == "cancelling":
            numbers = np.concatenate([numbers[:150], -numbers[:150]])
        total = self.add(numbers)
        exact = [Fraction(0)]
        for x in numbers:
            exact.append(exact[-1] + Fraction(float(x)))
        error = abs(sum(Fraction(float(x)) for x in total) - exact[-1])
        largest = max(map(abs, exact))
        assert error <= len(numbers) * (Fraction(_running.PER_ADDITION) * largest + Fraction(_running.LOST))
        two = abs(sum(Fraction(float(x)) for x in total[:2]) - exact[-1])
        if kind != "cancelling":  # two numbers would not do
            assert two > len(numbers) * Fraction(_running.PER_ADDITION) * largest

    def test_infinite_stays_so(self):
        assert self.add([1.0, np.inf, 1.0])[0] == np.inf
        assert np.isnan(self.add([1.0, np.nan, 1.0])[0])

    def test_the_state_holds_the_sum_of_its_steps(self):
        noise = rows()["random"]
        each = {x: run([x]) for x in noise[:25]}
        whole = run(noise[:25])
        t = np.arange(whole.inner.shape[-1]) * whole.spacing[:, None]
        for name, events in (("real", 2), ("mean", 2), ("cut", 2), ("log_modulus", 3), ("angle", 3)):
            exact = np.sum([getattr(state, name).astype(np.longdouble).sum(0) for state in each.values()], 0)
            error = np.abs(getattr(whole, name).astype(np.longdouble).sum(0) - exact)
            assert exact.ndim == events
            largest = np.abs(exact)
            if name == "angle":  # not of one sign
                largest = np.pi * t * whole.spread[..., None]
                assert np.all(np.abs(exact) <= largest * (1 + 1e-6))
            # longdouble's own rounding is far larger than the certificate's term
            assert np.all(
                error <= 25 * (_running.PER_ADDITION * largest + 2.0**-63 * np.abs(exact).astype(float)) + 1e-30
            )
        for name in ("size", "spread", "excess", "inner"):
            exact = sum(getattr(state, name).astype(np.float64) for state in each.values())
            assert np.all(getattr(whole, name) >= exact)
            assert np.all(getattr(whole, name) <= exact * (1 + 1e-4) + 1e-37)

    def test_rounding_grows_with_the_number_of_additions(self):
        count = run(rows()["random"])
        many = count._replace(number=np.full_like(count.number, 2 * 10**9 // count.number.size))
        assert along(many)[1] > along(count)[1] * (1 + 1e-12)
        assert along(many)[0] < along(count)[0] * (1 - 1e-12)

    @pytest.mark.slow
    @pytest.mark.parametrize(("name", "times"), [("PER_ADDITION", 1e10), ("LOST", 1e26), ("READ", 1e4)])
    def test_rounding_of_the_sums_is_in_the_certificate(self, monkeypatch, name, times):
        count, own = run(rows()["random"]), _running._bound
        before = along(count)
        monkeypatch.setattr(_running, name, getattr(_running, name) * times)
        monkeypatch.setattr(_running, "_bound", lambda *args: own(*args))  # compiled anew
        after = along(count)
        assert after[1] - after[0] > 2 * (before[1] - before[0])

    @pytest.mark.parametrize(
        ("name", "change"),
        [
            ("inner", lambda x: x + 1e-6),
            ("excess", lambda x: x + 1e-6),
            ("size", lambda x: x + 1e10),
            ("spread", lambda x: x + 1e10),
            ("cut", lambda x: np.where(np.arange(3)[:, None, None] == 0, 0.0, x)),
        ],
    )
    def test_each_bound_is_used(self, name, change):
        count = run(rows()["random"])
        worse = count._replace(**{name: change(getattr(count, name)).astype(np.float32)})
        assert along(worse)[1] > along(count)[1]
        assert along(worse)[0] < along(count)[0]

    @pytest.mark.slow
    def test_a_cut_that_is_not_counted_would_be_seen(self):
        """With few nodes the truncated sum is wrong, and its bound is what saves the answer."""
        on = _tilts.contours(LOW, HIGH, STEPS, RATE, (DELTA,), RANGE._directions)
        few = on._replace(nodes=4)
        noise = rows()["least"][:40]
        state = _running.start(few, RANGE._directions, np.float32(HIGH), 1)
        step = jax.jit(lambda s, x: _running.advance(s, RANGE._directions, jnp.int32(0), x, RATE))
        for x in noise:
            state = step(state, jnp.float32(x))
        state, exact = jax.tree.map(np.asarray, state), truth(noise)
        assert exact.lower <= along(state)[1]
        assert along(state)[0] <= exact.upper
        without = state._replace(cut=np.stack([0 * state.cut[0] - 1e3, 0 * state.cut[1], 0 * state.cut[2]]))
        lower, upper = along(without)
        assert upper < exact.lower or exact.upper < lower


class TestInTraining:
    def optimizer(self, steps=RANGE, wrap=lambda x: x):
        private = training.private_sum(1.0, steps, key=0, expected_batch_size=4)
        return wrap(optax.chain(private, optax.sgd(0.1)))

    def test_the_noise_drawn_is_the_noise_asked_for(self):
        private = training.private_sum(1.0, PLAIN, key=3, expected_batch_size=1)
        update = lambda x: private.update(PARAMS, private.init(PARAMS), noise_multiplier=x)[0]
        np.testing.assert_allclose(np.asarray(update(3.0)) / 3.0, np.asarray(update(1.0)), rtol=1e-6)

    def test_aggregate_in_jit_and_scan(self):
        private = training.private_aggregate(1.0, RANGE, key=0, expected_batch_size=4)
        optimizer = optax.chain(private, optax.adam(0.1))
        mask = jnp.arange(8) < 4

        @jax.jit
        def train(noise):
            def step(carry, x):
                weights, state = carry
                updates, state = optimizer.update(jnp.ones((8, 2)), state, weights, mask=mask, noise_multiplier=x)
                return (optax.apply_updates(weights, updates), state), None

            return jax.lax.scan(step, (PARAMS, optimizer.init(PARAMS)), noise)[0]

        noise = rows()["decaying"][:100]
        _, state = train(noise)
        spent = inside(RANGE)(state[0].count, DELTA)
        assert spent.dtype == np.float32
        exact = truth(noise)
        outside = training.privacy_spent(state, DELTA)
        assert isinstance(outside, np.float64)
        assert exact.lower <= outside <= exact.upper * (1 + 1e-8)
        assert outside <= spent <= outside * (1 + 1e-6)
        with pytest.raises(ValueError, match=r"no record.*privacy_spent"):
            training.mechanism_run(state)
        with pytest.raises(TypeError, match="rtol: steps of a NoiseRange"):
            training.privacy_spent(state, DELTA, rtol=1e-6)
        with pytest.raises(ValueError, match="summed for"):
            training.privacy_spent(state, DELTA, adjacency=Adjacency.REPLACE_ONE)
        # a checkpoint: leaves, restored into the optimizer that wrote them, and into another
        leaves = [np.asarray(x) for x in jax.tree.leaves(state)]
        restored = jax.tree.unflatten(jax.tree.structure(optimizer.init(PARAMS)), leaves)
        assert training.privacy_spent(restored, DELTA) == outside
        other = training.NoiseRange(LOW, HIGH, steps=STEPS, sampling_probability=0.051, delta=DELTA)
        other = optax.chain(training.private_aggregate(1.0, other, 0, expected_batch_size=4), optax.adam(0.1))
        foreign = jax.tree.unflatten(jax.tree.structure(other.init(PARAMS)), leaves)
        with pytest.raises(ValueError, match="checkpoint of another optimizer"):
            training.privacy_spent(foreign, DELTA)

    @pytest.mark.slow
    def test_epsilon_in_every_step(self):
        optimizer = self.optimizer()

        def step(state, x):
            state = optimizer.update(PARAMS, state, noise_multiplier=x)[1]
            return state, training.privacy_spent(state, DELTA)

        noise = rows()["decaying"][::3]
        state, spent = jax.jit(lambda x: jax.lax.scan(step, optimizer.init(PARAMS), x))(noise)
        assert np.all(np.diff(spent) > 0)
        assert training.privacy_spent(state, DELTA) <= spent[-1]

    @pytest.mark.slow
    def test_several_runs_at_once(self):
        two = [rows()["growing"][:4], rows()["decaying"][:4]]
        step = jax.jit(jax.vmap(lambda state, x: RANGE.next(state, None, x).count))
        state = jax.tree.map(lambda a: jnp.stack([a, a]), RANGE.start())
        for x in zip(*two, strict=True):
            state = step(state, jnp.stack(x))
        state = jax.tree.map(np.asarray, state)
        together = RANGE.epsilon(state, DELTA, None)
        assert RANGE.epsilon(state, np.asarray([[1e-6], [1e-5]]), None).shape == (2, 2)
        assert together.shape == (2,)
        for i, noise in enumerate(two):
            for of_both, alone in zip(state, run(noise), strict=True):
                np.testing.assert_allclose(of_both[i], alone, rtol=1e-4, atol=1e-6)
            exact = truth(noise)
            assert exact.lower <= together[i] <= exact.upper * 1.3

    def test_out_of_range(self):
        optimizer = self.optimizer(PLAIN)
        state = optimizer.init(PARAMS)
        for bad in (0.5, 4.5, np.nan, np.inf, 0.0, -1.0):
            with pytest.raises(ValueError, match="noise_multiplier"):
                optimizer.update(PARAMS, state, noise_multiplier=bad)
            updates, after = jax.jit(lambda x: optimizer.update(PARAMS, state, noise_multiplier=x))(bad)
            assert np.all(np.isnan(updates))
            assert np.isnan(training.privacy_spent(after, DELTA))
            _, after = jax.jit(lambda x, s: optimizer.update(PARAMS, s, noise_multiplier=x))(2.0, after)
            assert np.isnan(training.privacy_spent(after, DELTA))

    def test_out_of_range_is_never_forgotten(self):
        for bad in (0.5, 2.5, np.nan):
            state = run([1.5, bad, 1.5])
            assert np.isnan(inside(RANGE)(state, DELTA))
            assert np.isnan(along(state)[1])
            assert np.isnan(RANGE.epsilon(state, DELTA, None))

    def test_the_ends_of_the_range_in_float32(self):
        steps = training.NoiseRange(1.1, 2.2, steps=10, delta=DELTA)  # 1.1 is more than float32 makes of it, 2.2 too
        for x in (1.1, 2.2):
            for noise in (x, jnp.float32(x), np.float32(x).astype(float)):
                found = steps.next(steps.start(), None, jnp.asarray(noise)).noise_multiplier
                assert found == np.float32(x)

    @pytest.mark.parametrize(
        ("keywords", "error"),
        [({}, TypeError), ({"mechanism": dpjax.Gaussian(2.0)}, TypeError)],
    )
    def test_what_update_takes(self, keywords, error):
        optimizer = self.optimizer(PLAIN)
        with pytest.raises(error, match="noise_multiplier="):
            optimizer.update(PARAMS, optimizer.init(PARAMS), **keywords)

    @pytest.mark.parametrize(
        ("change", "error", "words"),
        [
            ({"low": 0.0}, ValueError, "low = 0.0"),
            ({"low": 3.0}, ValueError, "high = 2.0"),
            ({"high": np.inf}, ValueError, "high = inf"),
            ({"steps": 0}, ValueError, "steps = 0"),
            ({"steps": 1.5}, TypeError, "steps must be an int"),
            ({"delta": 0.0}, ValueError, "delta = 0.0"),
            ({"delta": []}, ValueError, "delta is empty"),
            ({"sampling_probability": 0.0}, ValueError, "sampling_probability = 0.0"),
            ({"sampling_probability": [0.1]}, ValueError, "sampling_probability has shape"),
            ({"adjacency": "add"}, ValueError, "adjacency = 'add'"),
        ],
    )
    def test_what_the_range_may_be(self, change, error, words):
        given = {"low": LOW, "high": HIGH, "steps": STEPS, "sampling_probability": RATE, "delta": DELTA} | change
        with pytest.raises(error, match=words):
            training.NoiseRange(given.pop("low"), given.pop("high"), **given)

    def test_a_traced_range_cannot_be_planned_for(self):
        with pytest.raises(TypeError, match="low is traced"):
            jax.jit(lambda x: training.NoiseRange(x, HIGH, steps=1, delta=DELTA).start())(LOW)

    @pytest.mark.slow
    def test_guarded(self):
        filt = RenyiFilter.for_dp(1.0, DELTA, order=16.0, slack=DELTA)
        optimizer = self.optimizer(wrap=lambda x: training.guarded(x, filt))
        state, granted = optimizer.init(PARAMS), []
        update = jax.jit(lambda state, x: optimizer.update(PARAMS, state, noise_multiplier=x)[1])
        noise = rows()["random"]
        for x in noise[:60]:
            state = update(state, x)
            granted.append(bool(state.granted))
        run_ones = noise[:60][granted]
        assert 0 < len(run_ones) < 60
        exact = truth(run_ones)
        assert exact.lower <= training.privacy_spent(state, DELTA) <= exact.upper * 1.2

    @pytest.mark.slow
    def test_with_float64(self):
        noise = rows()["random"][:50]
        count = run(noise)
        with jax.enable_x64(True):
            state = RANGE.start()
            step = jax.jit(lambda state, x: RANGE.next(state, None, x).count)
            for x in noise:
                state = step(state, jnp.asarray(x, jnp.float64))
            assert all(a.dtype == b.dtype for a, b in zip(state, count, strict=True))
            spent = float(jax.jit(lambda s: RANGE.epsilon(s, DELTA, None))(state))
        exact = truth(noise)
        assert exact.lower <= spent
        np.testing.assert_allclose(spent, RANGE.epsilon(count, DELTA, None), rtol=1e-9)

    @pytest.mark.slow
    def test_replace_one(self):
        steps = training.NoiseRange(
            2.0, 3.0, steps=50, sampling_probability=0.2, delta=DELTA, adjacency=Adjacency.REPLACE_ONE
        )
        noise = np.linspace(2.0, 3.0, 50, dtype=np.float32)
        step = dpjax.ComposedOver(dpjax.PoissonSampled(0.2, dpjax.Gaussian(noise.astype(float))))
        exact = dpjax.epsilon_bounds(step, DELTA, adjacency=Adjacency.REPLACE_ONE)
        assert exact.lower <= steps.epsilon(run(noise, steps), DELTA, None) <= exact.upper * (1 + 1e-8)


class TestWithoutSampling:
    def test_is_one_gaussian(self):
        optimizer = TestInTraining().optimizer(PLAIN)
        noise = np.linspace(1.0, 4.0, 30, dtype=np.float32)

        @jax.jit
        def train(noise):
            step = lambda state, x: (optimizer.update(PARAMS, state, noise_multiplier=x)[1], None)
            state = jax.lax.scan(step, optimizer.init(PARAMS), noise)[0]
            return state, training.privacy_spent(state, DELTA)

        state, inside = train(noise)
        exact = dpjax.epsilon(dpjax.Gaussian(1 / np.sqrt(np.sum(1 / noise.astype(np.longdouble) ** 2))), DELTA)
        outside = training.privacy_spent(state, DELTA)
        assert exact <= outside <= exact * (1 + 1e-13)
        assert exact <= inside <= exact * (1 + 1e-5)
        found = training.mechanism_run(state)
        np.testing.assert_allclose(
            dpjax.delta(found, 1.0), dpjax.delta(dpjax.ComposedOver(dpjax.Gaussian(noise.astype(float))), 1.0)
        )
        for adjacency in (Adjacency.REPLACE_ONE, Adjacency.ADD):
            whole = dpjax.ComposedOver(dpjax.Gaussian(noise.astype(float)))
            exact = dpjax.epsilon(whole, DELTA, adjacency=adjacency)
            np.testing.assert_allclose(training.privacy_spent(state, DELTA, adjacency=adjacency), exact, rtol=1e-12)

    def test_guarded_and_metered(self):
        guarded = TestInTraining().optimizer(PLAIN, lambda x: training.guarded(x, GDPFilter(mu=1.0)))
        state, update = guarded.init(PARAMS), jax.jit(lambda s, x: guarded.update(PARAMS, s, noise_multiplier=x)[1])
        made = []
        for x in (2.0, 1.0, 3.0, 1.5, 4.0, 4.0):
            state = update(state, jnp.float32(x))
            made += [x] if state.granted else []
        assert made == [2.0, 3.0, 1.5, 4.0, 4.0]
        exact = dpjax.epsilon(dpjax.ComposedOver(dpjax.Gaussian(np.asarray(made))), DELTA)
        np.testing.assert_allclose(training.privacy_spent(state, DELTA), exact, rtol=1e-12)
        odometer = MixtureOdometer.tightest_at(0.1, delta=1e-6, slack=1e-6)
        metered = TestInTraining().optimizer(PLAIN, lambda x: training.metered(x, odometer))
        _, after = metered.update(PARAMS, metered.init(PARAMS), noise_multiplier=3.0)
        direct = odometer.bound(odometer.update(odometer.init(), dpjax.Gaussian(3.0)))
        np.testing.assert_allclose(training.privacy_spent(after, 1e-6), direct, rtol=1e-6)


class TestPlan:
    @pytest.mark.parametrize(
        ("low", "high", "steps", "rate"),
        [
            (1.0, 1.0, 1000, 0.01),
            (0.5, 5.0, 1, 0.5),
            (2.0, 50.0, 10**7, 1e-3),
            (1.0, 2.0, 100, 1e-6),
            (0.3, 0.6, 50, 0.9),
        ],
    )
    def test_any_range_has_one(self, low, high, steps, rate):
        on = _tilts.contours(low, high, steps, rate, (1e-5, 1e-8), RANGE._directions)
        assert 1 <= on.tilt.size <= 6
        assert on.tilt.size == on.spacing.size
        assert np.all(np.diff(on.tilt) >= 0)
        assert np.all((on.spacing > 0) & np.isfinite(on.spacing))
        assert on.nodes & (on.nodes - 1) == 0
        assert not set(on.beyond) & set(on.tilt)
