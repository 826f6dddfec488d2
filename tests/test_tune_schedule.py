"""The example that tunes a schedule, in small: the budget is met, and the schedule is better than the best constant one."""

import importlib.util
from pathlib import Path

import jax
import numpy as np
import pytest

import dpjax

PATH = Path(__file__).parent.parent / "examples" / "tune_schedule.py"


def load():
    spec = importlib.util.spec_from_file_location("tune_schedule", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_a_tuned_schedule_is_better_at_the_same_budget():
    example = load()
    steps = 6
    with jax.enable_x64(True):
        constant = dpjax.calibrate(
            lambda s: dpjax.dpsgd(s, example.SAMPLING_PROBABILITY, steps), epsilon=example.EPSILON, delta=example.DELTA
        )
        (noise, q), errors = example.tune(steps, 12)
        found = float(example.error(noise, q))
        base = float(example.error(np.full(steps, constant), np.full(steps, example.SAMPLING_PROBABILITY)))
    noise, q = np.asarray(noise), np.asarray(q)
    assert errors[0] == pytest.approx(base, rel=1e-6)  # it starts from the constant one
    assert found < 0.97 * base
    spent = dpjax.epsilon(example.mechanism(noise, q), delta=example.DELTA)
    assert example.EPSILON * (1 - 1e-9) <= spent <= example.EPSILON
    np.testing.assert_allclose(np.mean(q), example.SAMPLING_PROBABILITY, rtol=1e-9)  # the same compute
    assert q[0] < q[-1] and noise[0] / q[0] > noise[-1] / q[-1]  # noise is cheap at the beginning
