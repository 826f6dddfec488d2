"""Real training on real data: the loops of examples/train_digits.py reach what they say at the privacy that they say."""

import importlib.util
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
from dpjax import training
from dpjax.adaptive import MixtureOdometer

pytest.importorskip("sklearn")
EXAMPLES = Path(__file__).parents[2] / "examples"


def example(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


digits = example("train_digits")


@pytest.fixture(scope="module")
def data():
    return digits.load()


def test_noise_and_steps_fixed_beforehand(data):
    scores, states = digits.fixed(data, jnp.arange(3))
    spent = training.privacy_spent(states, digits.DELTA)
    exact = dpjax.epsilon(dpjax.dpsgd(digits.NOISE, digits.RATE, digits.STEPS), digits.DELTA)
    np.testing.assert_allclose(spent, exact, rtol=1e-9)
    assert digits.DELTA == 1e-5 and np.all(spent <= 3)
    assert len(scores) == 3 and scores.mean() >= 0.85
    assert len(set(np.asarray(states[0].rng_key)[:, 0])) == 3, "three seeds are three runs"


def test_stopped_by_a_filter(data):
    scores, states = digits.filtered(data, jnp.arange(3))
    granted = np.asarray(states.filter_state.granted)
    assert np.all(granted == granted[0]) and 0 < granted[0] < digits.STEPS
    np.testing.assert_array_equal(states.inner_state[0].count, granted)
    np.testing.assert_array_equal(states.refused, digits.STEPS - granted)
    assert scores.mean() >= 0.85
    # the budget, from Renyi divergences computed in another way and the conversion written out
    order, step = 8.0, dpjax.PoissonSampled(digits.RATE, dpjax.Gaussian(digits.NOISE))
    each = dpjax.renyi(step, order)
    epsilon = lambda k: k * each + np.log(1 - 1 / order) - np.log(order * digits.DELTA) / (order - 1)
    assert epsilon(granted[0]) <= 3 < epsilon(granted[0] + 1) + 1e-5
    assert dpjax.epsilon(step * int(granted[0]), digits.DELTA) < 3


def test_an_odometer_reads_every_step(data):
    odometer = MixtureOdometer.tightest_at(digits.FULL_STEPS / digits.FULL_NOISE**2, delta=1e-5, slack=1e-5)
    score, bounds = digits.metered(data, 0, odometer)
    bounds = np.asarray(bounds, np.float64)
    assert score >= 0.85
    assert bounds.shape == (digits.FULL_STEPS,) and np.all(np.diff(bounds) > 0)
    times = np.arange(1, digits.FULL_STEPS + 1) / digits.FULL_NOISE**2
    np.testing.assert_allclose(bounds, odometer.at(times.astype(np.float32)), rtol=1e-5)
    exact = dpjax.epsilon(dpjax.Gaussian(digits.FULL_NOISE / np.sqrt(np.arange(1, digits.FULL_STEPS + 1))), 1e-5)
    assert np.all(bounds > exact) and bounds[-1] < 1.5 * exact[-1]


@pytest.mark.slow
def test_the_example_prints(capsys):
    digits.main()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if line and not line.startswith(" ")] == [
        "softmax", "fixed", "filter", "odometer",
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("epsilon, constant", [(1.0, 6.0), (3.0, 3.0)])
def test_adaptive_noise_is_compared_at_one_budget(data, monkeypatch, epsilon, constant):
    monkeypatch.setattr(sys, "path", [str(EXAMPLES), *sys.path])
    adaptive = example("adaptive_noise")
    found = adaptive.compare(data, epsilon, constant, seeds=3)
    assert set(found) == {"constant", "scheduled", "filtered", "adaptive"}
    steps = {name: int(steps[0]) for name, (steps, _) in found.items()}
    assert steps["filtered"] < steps["constant"]
    run = dpjax.dpsgd(constant, adaptive.RATE, steps["constant"] + np.arange(2))
    assert np.all((dpjax.epsilon(run, 1e-5) <= epsilon) == [True, steps["constant"] == adaptive.MOST])
    assert all(scores.mean() > 0.8 for _, scores in found.values())
    assert jax.default_backend()
