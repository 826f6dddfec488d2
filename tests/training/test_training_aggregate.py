"""The aggregate does what optax's does, counts what it does, and says so exactly."""

import copy
import io
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dpjax
from dpjax import training
from dpjax.training import steps

DELTA = 1e-5
STEP = dpjax.PoissonSampled(0.1, dpjax.Gaussian(1.7))
SIGMAS, RATES = [1.0, 1.5, 2.0], [0.1, 0.2, 0.05]
SCHEDULE = dpjax.ComposedOver(dpjax.PoissonSampled(RATES, dpjax.Gaussian(SIGMAS)))
LEVELS = training.NoiseLevels(dpjax.PoissonSampled(0.1, dpjax.Gaussian(SIGMAS)))
# The same without sampling: closed forms, for which nothing large is compiled
PLAIN_SCHEDULE, PLAIN_LEVELS = dpjax.ComposedOver(dpjax.Gaussian(SIGMAS)), training.NoiseLevels(dpjax.Gaussian(SIGMAS))
PARAMS = {"a": jnp.asarray([0.5, -0.25]), "b": jnp.asarray(1.0)}


def gradients(examples=8, seed=0):
    """Per-example gradients like PARAMS, most of them to be clipped to 1."""
    a, b = jax.random.split(jax.random.key(seed))
    return {"a": jax.random.normal(a, (examples, 2)), "b": jax.random.normal(b, (examples,))}


ALL = jnp.ones(8, bool)
ZERO = jax.tree.map(lambda x: jnp.zeros((8, *x.shape)), PARAMS)


def equal(a, b):
    """Bit for bit."""
    flat = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(
        np.asarray(x).dtype == np.asarray(y).dtype and np.asarray(x).tobytes() == np.asarray(y).tobytes()
        for x, y in flat
    )


def close(a, b, rtol=1e-6):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=rtol, atol=rtol), a, b)


def run(transform, steps, mask=ALL, updates=None, **extra):
    """The last update and the state after some steps."""
    state, out = transform.init(PARAMS), None
    for _ in range(steps):
        out, state = transform.update(gradients() if updates is None else updates, state, PARAMS, mask=mask, **extra)
    return out, state


class TestLikeOptax:
    def plain(self, key, steps=1, clip=0.7, noise=1.7, grads=None):
        plain = optax.contrib.differentially_private_aggregate(clip, noise, key)
        state, out = plain.init(PARAMS), None
        for _ in range(steps):
            out, state = plain.update(gradients() if grads is None else grads, state)
        return out

    @pytest.mark.parametrize("key", [3, jax.random.key(3), jax.random.PRNGKey(3)], ids=["int", "typed", "raw"])
    def test_a_whole_batch(self, key):
        ours, _ = run(training.private_aggregate(0.7, STEP, key, expected_batch_size=8), 2)
        close(ours, self.plain(jax.random.key(3), 2))

    def test_the_noise_is_on_the_sum_and_the_divisor_is_the_expected_size(self):
        ours, _ = run(training.private_aggregate(0.7, STEP, 3, expected_batch_size=80), 1)
        close(jax.tree.map(lambda x: 10 * x, ours), self.plain(jax.random.key(3)))

    def test_padding(self):
        padded = jax.tree.map(lambda x: jnp.concatenate([x, jnp.full_like(x, jnp.nan)]), gradients())
        ours, _ = run(training.private_aggregate(0.7, STEP, 3, expected_batch_size=8), 1, jnp.arange(16) < 8, padded)
        close(ours, self.plain(jax.random.key(3)))

    @pytest.mark.parametrize("size", [1, 2, 4, 8])
    def test_micro_batches(self, size):
        total = training.accumulate(lambda g: g, gradients(), 0.7, micro_batch_size=size, mask=ALL)
        private = training.private_sum(0.7, STEP, 3, expected_batch_size=8)
        ours, state = private.update(total, private.init(PARAMS), PARAMS)
        whole, whole_state = run(training.private_aggregate(0.7, STEP, 3, expected_batch_size=8), 1)
        close(ours, whole)
        close(ours, self.plain(jax.random.key(3)))
        assert equal(state, whole_state)

    def test_micro_batches_of_a_padded_batch(self):
        batch, mask = (jnp.arange(12.0), jnp.arange(12)), jnp.arange(12) < 7
        gradient = lambda part: {"a": jnp.stack([part[0], part[1] * 1.0], -1), "b": part[0] * 0}
        padded = (batch[0].at[9].set(jnp.nan), batch[1])
        ours = jax.jit(lambda b: training.accumulate(gradient, b, 0.7, micro_batch_size=3, mask=mask))(padded)
        close(ours, training.clipped_sum(gradient(jax.tree.map(lambda x: x[:7], batch)), 0.7))

    @pytest.mark.filterwarnings("ignore:optax.global_norm is deprecated:DeprecationWarning")  # jax_privacy's
    def test_jax_privacy_clips_in_its_place(self):
        clipping = pytest.importorskip("jax_privacy.clipping")
        loss = lambda w, x: 0.5 * jnp.sum((w - x) ** 2)
        points, weights = jax.random.normal(jax.random.key(0), (8, 3)), jnp.zeros(3)
        per_example = jax.vmap(jax.grad(loss), (None, 0))(weights, points)
        plain = optax.contrib.differentially_private_aggregate(0.7, 1.7, jax.random.key(3))
        expected, _ = plain.update(per_example, plain.init(weights))
        for normalize, size in ((1.0, 8), (8.0, 1)):
            clipped = clipping.clipped_grad(loss, l2_clip_norm=0.7, keep_batch_dim=False, normalize_by=normalize)
            private = training.private_sum(clipped.sensitivity(), STEP, 3, expected_batch_size=size)
            ours, state = private.update(clipped(weights, points), private.init(weights), weights)
            close(ours, expected)
            assert int(state.count) == 1


class TestClippedSum:
    def test_by_hand(self):
        rng = np.random.default_rng(0)
        rows = rng.normal(size=(20, 3))
        norms = np.linalg.norm(rows, axis=1)
        expected = (rows * np.minimum(1, 0.7 / norms)[:, None])[:15].sum(0)
        np.testing.assert_allclose(
            training.clipped_sum(jnp.asarray(rows), 0.7, jnp.arange(20) < 15), expected, rtol=1e-5
        )

    @pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 3e38])
    def test_one_record_moves_the_sum_by_the_norm_bound_at_most(self, bad):
        rows = jnp.ones((4, 3)).at[2, 1].set(bad)
        without = training.clipped_sum(rows, 0.7, jnp.arange(4) != 2)
        assert np.linalg.norm(training.clipped_sum(rows, 0.7) - without) <= 0.7 * (1 + 1e-6)

    @pytest.mark.parametrize("bad", [0.0, -1.0, np.nan, np.inf])
    def test_traced_and_out_of_range_is_nan(self, bad):
        assert jnp.all(jnp.isnan(jax.jit(lambda clip: training.clipped_sum(jnp.ones((4, 3)), clip))(bad)))
        arguments = {"clip": lambda x: aggregate(clip=x), "size": lambda x: aggregate(size=x)}
        for make in arguments.values():
            out = jax.jit(lambda x, make=make: run(make(x), 1)[0])(bad)
            assert all(bool(jnp.all(jnp.isnan(x))) for x in jax.tree.leaves(out))

    def test_half_precision_is_summed_in_float32(self):
        rows = jax.random.normal(jax.random.key(0), (50, 30)).astype(jnp.bfloat16)
        total = training.clipped_sum(rows, 0.5)
        assert total.dtype == np.float32
        close(total, training.clipped_sum(rows.astype(jnp.float32), 0.5))

    def test_no_examples(self):
        np.testing.assert_array_equal(training.clipped_sum(jnp.zeros((0, 3)), 1.0), np.zeros(3))


def of_schedule(*counts):
    """A composition member by member."""
    return sum(dpjax.dpsgd(s, q, k) for q, s, k in zip(RATES, SIGMAS, counts, strict=True))


def of_levels(*counts):
    return sum(dpjax.dpsgd(s, 0.1, k) for s, k in zip(SIGMAS, counts, strict=True))


def unsampled(*counts):
    """One Gaussian with the information of all."""
    return dpjax.Gaussian(sum(k / s**2 for s, k in zip(SIGMAS, counts, strict=True)) ** -0.5)


class TestSpent:
    """Against the offline accountant, asked about a composition that is written out here."""

    CASES = {
        "constant": (STEP, {}, 3, lambda: dpjax.dpsgd(1.7, 0.1, 3)),
        "not sampled": (dpjax.Gaussian(1.7), {}, 3, lambda: dpjax.Gaussian(1.7 / 3**0.5)),
        "part of a schedule": (SCHEDULE, {}, 2, lambda: of_schedule(1, 1, 0)),
        "whole schedule": (SCHEDULE, {}, 3, lambda: of_schedule(1, 1, 1)),
        "levels": (LEVELS, {"noise_multiplier": 1.1}, 3, lambda: of_levels(0, 3, 0)),
        "part of a schedule, not sampled": (PLAIN_SCHEDULE, {}, 2, lambda: unsampled(1, 1, 0)),
        "levels, not sampled": (PLAIN_LEVELS, {"noise_multiplier": 1.1}, 3, lambda: unsampled(0, 3, 0)),
        "nothing yet": (STEP, {}, 0, lambda: dpjax.Gaussian(np.inf)),
    }

    @pytest.mark.parametrize("case", ["constant", "nothing yet", *(name for name in CASES if "not sampled" in name)])
    def test_outside_jit(self, case):
        mechanism, extra, steps, offline = self.CASES[case]
        private = training.private_aggregate(1.0, mechanism, 0, expected_batch_size=8)
        state = private.init(PARAMS)
        update = jax.jit(lambda s: private.update(gradients(), s, PARAMS, mask=ALL, **extra)[1])
        for _ in range(steps):  # the state passes through jit, in float32
            state = update(state)
        exact = dpjax.epsilon(offline(), DELTA)
        spent = training.privacy_spent(state, DELTA)
        assert isinstance(spent, np.float64)
        assert abs(spent - exact) <= 1e-9 * exact
        assert spent >= dpjax.epsilon_bounds(offline(), DELTA).lower

    @pytest.mark.slow
    @pytest.mark.parametrize("case", ["part of a schedule", "whole schedule", "levels"])
    def test_outside_jit_with_many_components(self, case):
        self.test_outside_jit(case)

    @pytest.mark.parametrize(
        "case, x64",
        [("constant", False), ("not sampled", False), ("not sampled", True)]
        + [
            pytest.param(*c, marks=pytest.mark.slow)
            for c in (("constant", True), ("part of a schedule", False), ("levels", False))
        ],
    )
    def test_inside_jit(self, case, x64):
        mechanism, extra, steps, offline = self.CASES[case]
        exact = dpjax.epsilon(offline(), DELTA)
        with jax.enable_x64(x64):
            private = training.private_aggregate(1.0, mechanism, 0, expected_batch_size=8)
            grads = jax.tree.map(jnp.asarray, gradients())

            @jax.jit
            def several(state):
                for _ in range(steps):
                    _, state = private.update(grads, state, mask=ALL, **extra)
                return training.privacy_spent(state, DELTA)

            inside = several(private.init(PARAMS))
            assert inside.dtype == (np.float64 if x64 else np.float32)
            rtol = 1e-9 if x64 else 2.0**-22
            assert dpjax.epsilon_bounds(offline(), DELTA).lower <= float(inside) <= exact * (1 + rtol)

    @pytest.mark.parametrize(
        "mechanism, count, expected",
        [
            (dpjax.TruncatedPoissonSampled(100, 0.1, 16, dpjax.Gaussian(2.0)), 5, lambda m: m * 5),
            (dpjax.FixedSizeSampled(100, 8, dpjax.Gaussian(2.0)), 5, lambda m: m * 5),
            (dpjax.RandomAllocation(4, dpjax.Gaussian(2.0)), 8, lambda m: m * 2),
            (dpjax.RandomAllocation(4, dpjax.Gaussian(2.0)), 9, lambda m: m * 3),  # an epoch that has begun
        ],
    )
    def test_the_record(self, mechanism, count, expected):
        size = None if steps.batch_size_of(mechanism) else 8
        private = training.private_aggregate(1.0, mechanism, 0, expected_batch_size=size)
        state = private.init(PARAMS)._replace(count=jnp.int32(count))
        record = training.mechanism_run(state)
        assert equal(record, expected(mechanism))
        assert jax.tree.structure(record) == jax.tree.structure(expected(mechanism))

    def test_a_sweep_of_noise_by_vmap(self):
        def train(noise):
            private = training.private_aggregate(1.0, dpjax.Gaussian(noise), 0, expected_batch_size=8)
            out, state = run(private, 3)
            return out, state

        noises = jnp.asarray([1.0, 1.7])
        out, states = jax.jit(jax.vmap(train))(noises)
        spent = training.privacy_spent(states, DELTA)
        for i, noise in enumerate(noises):
            np.testing.assert_allclose(spent[i], dpjax.epsilon(dpjax.Gaussian(float(noise)) * 3, DELTA), rtol=1e-9)
            alone, _ = run(aggregate(dpjax.Gaussian(float(noise))), 3)
            close(jax.tree.map(lambda x, i=i: x[i], out), alone)

    def test_adjacency_and_options_go_to_the_query(self):
        _, state = run(training.private_aggregate(1.0, dpjax.Gaussian(1.7), 0, expected_batch_size=8), 2)
        replace = dpjax.Adjacency.REPLACE_ONE
        expected = dpjax.epsilon(dpjax.Gaussian(1.7) * 2, DELTA, adjacency=replace)
        assert training.privacy_spent(state, DELTA, adjacency=replace) == expected

    def test_in_a_chain(self):
        private = training.private_aggregate(1.0, STEP, 0, expected_batch_size=8)
        _, state = run(optax.chain(private, optax.inject_hyperparams(optax.adam)(1e-2)), 2)
        assert training.privacy_spent(state, DELTA) == dpjax.epsilon(STEP * 2, DELTA)
        assert optax.tree.get(state, "rng_key") is not None


class TestNoise:
    def draws(self, private, steps, **extra):
        """The noise multipliers of some steps, from sums of zeros."""
        n, found = 20_000, []
        params = jnp.zeros(n)
        state = private.init(params)
        for _ in range(steps):
            noise, state = private.update(jnp.zeros(n), state, params, **extra)
            found.append(float(jnp.std(noise)))
        return np.asarray(found)

    def test_schedule(self):
        private = training.private_sum(0.5, SCHEDULE, 1, expected_batch_size=8)
        np.testing.assert_allclose(self.draws(private, 3), np.asarray(SIGMAS) * 0.5 / 8, rtol=0.03)  # 6 sigma of n

    def test_schedule_with_a_batch_size_for_each_step(self):
        private = training.private_sum(0.5, SCHEDULE, 1, expected_batch_size=np.asarray([10.0, 20, 5]))
        np.testing.assert_allclose(self.draws(private, 3) * [10, 20, 5], np.asarray(SIGMAS) * 0.5, rtol=0.03)

    @pytest.mark.parametrize("asked, level", [(0.0, 1.0), (1.0, 1.0), (1.01, 1.5), (2.0, 2.0)])
    def test_levels(self, asked, level):
        private = training.private_sum(0.5, LEVELS, 1, expected_batch_size=8)
        np.testing.assert_allclose(self.draws(private, 1, noise_multiplier=asked), level * 0.5 / 8, rtol=0.03)

    def test_chosen(self):
        private = training.private_sum(0.5, None, 1, expected_batch_size=8)
        found = self.draws(private, 1, mechanism=dpjax.PoissonSampled(0.1, dpjax.Gaussian(3.0)))
        np.testing.assert_allclose(found, 3 * 0.5 / 8, rtol=0.03)

    def test_fresh_in_every_step_and_every_leaf(self):
        private = training.private_sum(1.0, STEP, 1, expected_batch_size=8)
        params, state, seen = {"x": jnp.zeros(50), "y": jnp.zeros(50)}, None, []
        state = private.init(params)
        for _ in range(3):
            out, state = private.update(params, state, params)
            seen += list(np.concatenate(jax.tree.leaves(out)))
        assert len(set(seen)) == 300

    def test_beyond_the_schedule(self):
        private = aggregate(dpjax.ComposedOver(dpjax.Gaussian([1.0, 2.0])))
        inside = jax.jit(lambda s: training.privacy_spent(s, DELTA))
        out, state = run(private, 2)
        assert all(bool(jnp.all(jnp.isfinite(x))) for x in jax.tree.leaves(out)) and np.isfinite(inside(state))
        out, state = run(private, 3)
        assert all(bool(jnp.all(jnp.isnan(x))) for x in jax.tree.leaves(out)) and np.isnan(inside(state))
        with pytest.raises(ValueError, match="3 steps were run, but the schedule has 2"):
            training.privacy_spent(state, DELTA)

    def test_more_noise_than_the_levels_have(self):
        private = training.private_aggregate(1.0, LEVELS, 0, expected_batch_size=8)
        with pytest.raises(ValueError, match="noise_multiplier = 2.5"):
            run(private, 1, noise_multiplier=2.5)
        for bad in (2.5, -1.0, np.nan):
            out, _ = jax.jit(lambda x: run(private, 1, noise_multiplier=x))(bad)
            assert all(bool(jnp.all(jnp.isnan(x))) for x in jax.tree.leaves(out))

    def test_mixed_levels(self):
        private = aggregate(PLAIN_LEVELS)
        state = private.init(PARAMS)
        for noise in (1.2, 0.3, 2.0, 1.5):
            _, state = private.update(gradients(), state, mask=ALL, noise_multiplier=noise)
        np.testing.assert_array_equal(state.count, [1, 2, 1])
        np.testing.assert_allclose(
            training.privacy_spent(state, DELTA), dpjax.epsilon(unsampled(1, 2, 1), DELTA), rtol=1e-9
        )


def saved_and_loaded(state, like):
    """Through bytes, leaves only, as checkpoints are; the structure comes from ``like``."""
    file = io.BytesIO()
    np.savez(file, *map(np.asarray, jax.tree.leaves(state)))
    file.seek(0)
    loaded = np.load(file)
    return jax.tree.unflatten(jax.tree.structure(like), [jnp.asarray(loaded[name]) for name in loaded.files])


class TestCheckpoint:
    @pytest.mark.parametrize(
        "mechanism, extra", [(STEP, {}), (PLAIN_SCHEDULE, {}), (PLAIN_LEVELS, {"noise_multiplier": 1.2})]
    )
    def test_resumed_is_uninterrupted(self, mechanism, extra):
        make = lambda: optax.chain(
            training.private_aggregate(1.0, mechanism, 7, expected_batch_size=8), optax.adam(0.1)
        )
        optimizer = make()
        whole, whole_state = run(optimizer, 3, **extra)
        _, half = run(optimizer, 1, **extra)
        again = make()  # as another process would
        state, out = saved_and_loaded(half, again.init(PARAMS)), None
        assert equal(state, half)
        for _ in range(2):
            out, state = again.update(gradients(), state, PARAMS, mask=ALL, **extra)
        assert equal((out, state), (whole, whole_state))
        assert training.privacy_spent(state, DELTA) == training.privacy_spent(whole_state, DELTA)

    @pytest.mark.parametrize("copied", [lambda x: pickle.loads(pickle.dumps(x)), copy.deepcopy], ids=["pickle", "copy"])
    def test_whole_states(self, copied):
        optimizer = optax.chain(aggregate(SCHEDULE), optax.adam(0.1))
        _, state = run(optimizer, 1)
        again = copied(state)
        assert jax.tree.structure(again) == jax.tree.structure(state) and equal(again, state)
        assert equal(optimizer.update(gradients(), again, mask=ALL), optimizer.update(gradients(), state, mask=ALL))
        # a sweep's numbers are leaves, and stay leaves
        make = lambda noise: aggregate(dpjax.Gaussian(noise)).init(PARAMS)
        sweep = jax.vmap(make)(jnp.asarray([1.0, 2.0]))
        assert jax.tree.structure(copied(sweep)) == jax.tree.structure(sweep) and equal(copied(sweep), sweep)

    def test_of_other_steps_is_recognised(self):
        _, state = run(aggregate(dpjax.Gaussian(2.0)), 2)
        quieter = aggregate(dpjax.Gaussian(5.0))
        resumed = saved_and_loaded(state, quieter.init(PARAMS))
        with pytest.raises(ValueError, match="counted (other steps|for something else)"):
            training.privacy_spent(resumed, DELTA)
        inside = jax.jit(lambda s: training.privacy_spent(s, DELTA))
        assert np.isnan(inside(resumed)) and np.isfinite(inside(quieter.init(PARAMS)))
        with pytest.raises(ValueError, match="counted (other steps|for something else)"):
            quieter.update(gradients(), state, PARAMS, mask=ALL)


def aggregate(mechanism=STEP, clip=1.0, size=8):
    return training.private_aggregate(clip, mechanism, 0, expected_batch_size=size)


TRUNCATED = dpjax.TruncatedPoissonSampled(100, 0.1, 16, dpjax.Gaussian(2.0))
FIXED = dpjax.FixedSizeSampled(100, 16, dpjax.Gaussian(2.0))
ONLY_A = {"a": True, "b": False}
REFUSED = {
    "masked": (lambda: optax.masked(aggregate(), ONLY_A).init(PARAMS), ValueError, "1 of the parameters are hidden"),
    "masked by label": (
        lambda: optax.partition({"noisy": aggregate(), "plain": optax.sgd(1.0)}, {"a": "noisy", "b": "plain"}).init(PARAMS),
        ValueError, "allow_masked=True",
    ),
    "masked sum": (
        lambda: optax.masked(training.private_sum(1.0, STEP, 0, expected_batch_size=8), ONLY_A).init(PARAMS),
        ValueError, "privacy_spent would not count them",
    ),
    "clip 0": (lambda: aggregate(clip=0.0), ValueError, "l2_norm_clip = 0.0"),
    "no size": (lambda: aggregate(size=None), TypeError, "expected_batch_size is missing"),
    "size 0": (lambda: aggregate(size=0), ValueError, "expected_batch_size = 0"),
    "sizes of no schedule": (lambda: aggregate(size=np.ones(3)), ValueError, "one for each of the steps"),
    "micro-batch for batch, truncated": (lambda: aggregate(TRUNCATED, size=5), ValueError, "implies 10.0: the batch is"),
    "micro-batch for batch, fixed": (lambda: aggregate(FIXED, size=8), ValueError, "implies 16.0: the batch is"),
    "micro-batch of a fixed batch": (lambda: run(aggregate(FIXED, size=16), 1, None), ValueError, "A micro-batch is no"),
    "too many examples": (
        lambda: run(aggregate(TRUNCATED, size=10), 1, jnp.ones(17, bool), gradients(17)), ValueError, "at most max_batch",
    ),
    "composition": (lambda: aggregate(STEP * 10), TypeError, "give the record of one step"),
    "schedule of compositions": (lambda: aggregate(dpjax.ComposedOver(STEP * np.asarray([1, 2]))), TypeError, "one step"),
    "Laplace": (lambda: aggregate(dpjax.Laplace(1.0)), TypeError, "Gaussian noise is what is drawn"),
    "batch": (lambda: aggregate(dpjax.Gaussian([1.0, 2.0])), ValueError, "batch shape"),
    "schedule of epochs": (
        lambda: aggregate(dpjax.ComposedOver(dpjax.RandomAllocation(4, dpjax.Gaussian([1.0, 2.0])))), TypeError, "epoch",
    ),
    "shuffled as Poisson": (lambda: run(aggregate(), 1, None), TypeError, "batches cut from a shuffled"),
    "mean for examples": (lambda: run(aggregate(), 1, ALL, PARAMS), ValueError, "not the gradient of a mean"),
    "examples for a sum": (
        lambda: training.private_sum(1.0, STEP, 0, expected_batch_size=8).update(
            gradients(), training.private_sum(1.0, STEP, 0, expected_batch_size=8).init(PARAMS), PARAMS
        ), ValueError, "use private_aggregate for per-example",
    ),
    "mask of another length": (lambda: run(aggregate(), 1, jnp.ones(7, bool)), ValueError, r"it must be \(8,\)"),
    "axes that differ": (
        lambda: training.clipped_sum({"a": jnp.ones((3, 2)), "b": jnp.ones(4)}, 1.0), ValueError, "first axis must be",
    ),
    "micro-batches that do not divide": (
        lambda: training.accumulate(lambda g: g, gradients(), 1.0, micro_batch_size=3), ValueError, "divide the number",
    ),
    "levels named twice": (lambda: run(aggregate(LEVELS), 1, mechanism=STEP), TypeError, "noise_multiplier=..."),
    "level not named": (lambda: run(aggregate(LEVELS), 1), TypeError, "noise_multiplier=..."),
    "levels that fall": (
        lambda: training.NoiseLevels(dpjax.Gaussian([2.0, 1.0])), ValueError, "positive and increasing",
    ),
    "one level": (lambda: training.NoiseLevels(dpjax.Gaussian(2.0)), ValueError, "vector of levels"),
    "known step named": (lambda: run(aggregate(), 1, mechanism=STEP), TypeError, "not known beforehand"),
    "chosen step not named": (lambda: run(aggregate(None), 1), TypeError, "needs the record of each step"),
    "state of another kind": (
        lambda: aggregate().update(gradients(), optax.EmptyState(), mask=ALL), TypeError, "state must come from",
    ),
    "nothing to account for": (
        lambda: training.privacy_spent(optax.adam(1.0).init(PARAMS), DELTA), ValueError, "has no state of a private",
    ),
    "chosen without filter": (
        lambda: training.privacy_spent(run(aggregate(None), 1, mechanism=STEP)[1], DELTA), ValueError, "guarded",
    ),
    "MultiSteps": (
        lambda: training.privacy_spent(optax.MultiSteps(aggregate(), 2).init(PARAMS), DELTA), ValueError, "MultiSteps",
    ),
    "apply_if_finite": (
        lambda: training.privacy_spent(optax.apply_if_finite(aggregate(), 3).init(PARAMS), DELTA), ValueError, "finite",
    ),
    **{
        name: (
            lambda name=name: training.privacy_spent(
                getattr(optax, name)(aggregate(), lambda step: step > 1).init(PARAMS), DELTA
            ),
            ValueError, name,
        )
        for name in ("conditionally_transform", "conditionally_mask")
    },
    "two aggregates": (
        lambda: training.privacy_spent((aggregate().init(PARAMS), aggregate().init(PARAMS)), DELTA), ValueError, "has 2",
    ),
    "delta": (lambda: training.privacy_spent(aggregate().init(PARAMS), 2.0), ValueError, "delta = 2.0"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case):
    call, error, words = REFUSED[case]
    with pytest.raises(error, match=words):
        call()


def test_frozen_parameters_may_be_hidden():
    """What is released is what the private transformation sees."""
    private = training.private_aggregate(1.0, STEP, 0, expected_batch_size=8, allow_masked=True)
    optimizer = optax.partition({"noisy": private, "frozen": optax.set_to_zero()}, {"a": "noisy", "b": "frozen"})
    state = optimizer.init(PARAMS)
    updates, state = optimizer.update(gradients(), state, PARAMS, mask=ALL)
    alone = training.private_aggregate(1.0, STEP, 0, expected_batch_size=8)
    mine = {"a": PARAMS["a"]}
    expected, _ = alone.update({"a": gradients()["a"]}, alone.init(mine), mine, mask=ALL)
    assert equal(updates["a"], expected["a"]) and not np.any(updates["b"])
    assert training.mechanism_run(state).count == 1


def test_one_program_for_all_steps():
    private = training.private_aggregate(1.0, SCHEDULE, 0, expected_batch_size=8)
    traces = []

    @jax.jit
    def update(state):
        traces.append(1)
        return private.update(gradients(), state, PARAMS, mask=ALL)[1]

    state = private.init(PARAMS)
    for _ in range(3):
        state = update(state)
    assert len(traces) == 1
