"""dpjax inside jax_privacy: its training accountants, their calibration, its execution plans; and its sensitivities."""

import functools

import jax
import numpy as np
import pytest

import dpjax
from dpjax import interop, participation

accounting = pytest.importorskip("jax_privacy.accounting")
import dp_accounting  # noqa: E402
from jax_privacy.experimental import accounting as events  # noqa: E402
from jax_privacy.matrix_factorization import sensitivity, toeplitz  # noqa: E402

ZERO = dp_accounting.NeighboringRelation.REPLACE_SPECIAL
PARAMS = {"num_samples": 1000, "delta": 1e-5, "batch_size": 100}


def training(**fields):
    config = interop.JaxPrivacyConfig(**fields)
    return accounting.DpsgdTrainingAccountant(config)


class TestTrainingAccountants:
    def test_dpsgd(self):
        params = accounting.DpParams(noise_multipliers=1.0, **PARAMS)
        found = training().compute_epsilon(50, params)
        assert found == pytest.approx(dpjax.epsilon(dpjax.dpsgd(1.0, 0.1, 50), 1e-5), rel=1e-9)
        theirs = accounting.DpsgdTrainingAccountant(accounting.PldAccountantConfig()).compute_epsilon(50, params)
        assert found <= theirs <= found + 50 * 1e-4
        assert training().compute_epsilon(0, params) == 0

    def test_cycles_are_banded_factorisations(self):
        params = accounting.DpParams(noise_multipliers=1.0, cycle_length=4, **PARAMS)
        run = dpjax.banded_factorization(1.0, 0.4, 50, 4)
        assert training().compute_epsilon(50, params) == pytest.approx(dpjax.epsilon(run, 1e-5), rel=1e-9)
        event = events.amplified_bandmf_event(1.0, 50, num_bands=4, sampling_prob=0.4)
        assert repr(interop.from_dp_event(event)) == repr(run)

    @pytest.mark.slow
    def test_schedules(self):
        params = accounting.DpParams(noise_multipliers=[(0, 1.0), (20, 2.0)], **PARAMS)
        run = dpjax.dpsgd(1.0, 0.1, 20) + dpjax.dpsgd(2.0, 0.1, 30)
        assert training().compute_epsilon(50, params) == pytest.approx(dpjax.epsilon(run, 1e-5), rel=1e-9)

    def test_single_release(self):
        accountant = accounting.SingleReleaseTrainingAccountant(interop.JaxPrivacyConfig(neighboring_relation=ZERO))
        params = accounting.DpParams(noise_multipliers=2.0, **PARAMS)
        assert accountant.compute_epsilon(50, params) == pytest.approx(
            dpjax.epsilon(dpjax.Gaussian(2.0), 1e-5), rel=1e-9
        )

    @pytest.mark.slow
    def test_where_it_asks_for_a_pld_accountant(self):
        """Truncated batches, where dp_accounting's pair is looser, and user-level privacy."""
        truncated = accounting.DpParams(noise_multipliers=1.0, truncated_batch_size=120, **PARAMS)
        users = accounting.DpParams(noise_multipliers=2.0, examples_per_user=3, **PARAMS)
        for kind, params, looser in (
            (accounting.DpsgdTrainingAccountant, truncated, 0.05),
            (accounting.DpsgdTrainingUserLevelAccountant, users, 1e-3),
        ):
            found = kind(interop.JaxPrivacyConfig()).compute_epsilon(4, params)
            theirs = kind(accounting.PldAccountantConfig()).compute_epsilon(4, params)
            assert theirs * (1 - looser) < found <= theirs * 1.0001, kind


class TestCalibration:
    COMMON = {"target_epsilon": 3.0, "num_samples": 1000, "target_delta": 1e-5}

    def spent(self, sigma, batch_size, steps):
        return dpjax.epsilon(dpjax.dpsgd(sigma, np.asarray(batch_size) / 1000, steps), 1e-5)

    def test_noise(self):
        call = functools.partial(accounting.calibrate_noise_multiplier, accountant=training(), **self.COMMON)
        sigma = call(batch_sizes=100, num_updates=50, tol=1e-4)
        assert 3.0 - 0.01 < self.spent(sigma, 100, 50) <= 3.0

    @pytest.mark.slow
    def test_updates(self):
        call = functools.partial(accounting.calibrate_num_updates, accountant=training(), **self.COMMON)
        steps = call(noise_multipliers=1.5, batch_sizes=100)
        assert self.spent(1.5, 100, steps) <= 3.0 < self.spent(1.5, 100, steps + 1)

    def test_batch_size(self):
        call = functools.partial(accounting.calibrate_batch_size, accountant=training(), **self.COMMON)
        size = call(noise_multipliers=1.5, num_updates=50)
        assert self.spent(1.5, size, 50) <= 3.0 < self.spent(1.5, size + 1, 50)


def test_execution_plan():
    """It copies the accountant for every trial of its calibration."""
    from jax_privacy.experimental import execution_plan

    config = execution_plan.BandMFExecutionPlanConfig(
        iterations=20, strategy=np.array([1.0, 0.5]), epsilon=2.0, delta=1e-5, sampling_prob=0.5,
        accountant=interop.DpjaxAccountant(ZERO),
    )  # fmt: skip
    run = interop.from_dp_event(config.plan.dp_event, dpjax.Adjacency.REPLACE_SPECIAL)
    spent = dpjax.epsilon(run, 1e-5, adjacency=dpjax.Adjacency.REPLACE_SPECIAL)
    assert float(run.count) == 10 and 2.0 - 1e-4 < spent <= 2.0


class TestSensitivities:
    @pytest.fixture(autouse=True)
    def precise(self):
        with jax.enable_x64(True):
            yield

    @pytest.mark.parametrize(("participations", "separation"), [(1, 1), (3, 4), (5, 2), (2, 10), (20, 1)])
    def test_where_both_are_exact(self, participations, separation):
        coefficients = np.array([1.0, 0.6, 0.3, 0.2])
        found = participation.toeplitz_sensitivity(
            coefficients, 20, participations=participations, separation=separation
        )
        theirs = toeplitz.minsep_sensitivity_squared(jax.numpy.asarray(coefficients), separation, participations, 20)
        assert found == pytest.approx(float(theirs) ** 0.5, rel=1e-12)
        strategy = participation.toeplitz(coefficients, 20)
        if separation >= 4 or participations == 1:
            found = participation.sensitivity(strategy, participations=participations, separation=separation)
            theirs = sensitivity.get_sensitivity_banded(jax.numpy.asarray(strategy), max(separation, 4), participations)
            assert found == pytest.approx(float(theirs), rel=1e-12)

    def test_bounds_are_no_looser(self):
        generator = np.random.default_rng(0)
        for _ in range(20):
            strategy = np.tril(generator.normal(size=(12, 12)))
            k, separation = int(generator.integers(1, 6)), int(generator.integers(1, 5))
            found = participation.sensitivity(strategy, participations=k, separation=separation)
            theirs = sensitivity.get_min_sep_sensitivity_upper_bound(jax.numpy.asarray(strategy), separation, k)
            assert found <= theirs * (1 + 1e-12)

    @pytest.mark.parametrize("epochs", [1, 2, 3, 4])
    def test_epochs(self, epochs):
        strategy = np.tril(np.random.default_rng(1).normal(size=(12, 12)))
        theirs = sensitivity.fixed_epoch_sensitivity(jax.numpy.asarray(strategy), epochs)
        assert participation.epoch_sensitivity(strategy, epochs) == pytest.approx(theirs, rel=1e-12)
