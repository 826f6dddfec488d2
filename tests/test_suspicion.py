"""What is legal and hardly ever meant is questioned once; what is meant, traced, or tried by a search is not."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
from dpjax import SuspiciousInputWarning, cli, suspicion, training
from dpjax.cli import _process

TRAINING = (60_000, 256, 60)
STEP = dpjax.PoissonSampled(0.01, dpjax.Gaussian(1.0))


def spent(delta):
    state = training.private_aggregate(1.0, STEP, key=0, expected_batch_size=64).init(jnp.zeros(3))
    return training.privacy_spent(state._replace(count=jnp.int32(10)), delta)


QUESTIONED = {  # what is asked -> what the question says, first and last
    "dpsgd": (lambda: dpjax.dpsgd(0.2, 0.01, 10), "noise multiplier 0.2", "noise_on_mean"),
    "from training": (lambda: dpjax.dpsgd_from_training(*TRAINING, 0.0043), "noise multiplier 0.0043", "noise_on_mean"),
    "noise on the mean": (
        lambda: dpjax.dpsgd_from_training(*TRAINING, noise_on_mean=0.001, clipping_norm=1.0),
        "noise multiplier 0.256",
        "0.3 at least",
    ),
    "aggregate": (
        lambda: training.private_aggregate(1.0, dpjax.Gaussian(0.1), key=0, expected_batch_size=1),
        "noise multiplier 0.1",
        "0.3 at least",
    ),
    "a run's delta": (
        lambda: dpjax.epsilon(dpjax.dpsgd_from_training(*TRAINING, 1.1), 1e-4),
        "delta 0.0001 is not below 1 / 60000",
        "such as 1e-05",
    ),
    "its log": (
        lambda: dpjax.epsilon(dpjax.dpsgd_from_training(*TRAINING, 1.1), log_delta=-9.0),
        "delta 0.00012341 is not below 1 / 60000",
        "such as 1e-05",
    ),
    "a sampler's": (
        lambda: dpjax.epsilon(dpjax.FixedSizeSampled(1000, 10, dpjax.Gaussian(4.0)) + dpjax.Gaussian(9.0), 1e-3),
        "delta 0.001 is not below 1 / 1000",
        "such as 0.0001",
    ),
    "a target's": (
        lambda: dpjax.noise_for_training(1000, 100, 1, epsilon=3.0, delta=1e-3),
        "delta 0.001 is not below 1 / 1000",
        "such as 0.0001",
    ),
    "a statement's": (lambda: dpjax.statement(dpjax.Gaussian(1.0), 0.1), "delta 0.1 is large", "1e-06"),
    "few records": (
        lambda: dpjax.epsilon(dpjax.dpsgd_from_training(50, 5, 1, 4.0), 0.015),
        "delta 0.015 is large",
        "1e-06",
    ),
    "a fraction of a step": (lambda: dpjax.dpsgd(1.0, 0.01, 14062.5), "14062.5 steps are not a whole number", "14063"),
    "by a star": (lambda: dpjax.Gaussian(1.0) * 2.5, "2.5 steps are not a whole number", "to 3"),
    "exchanged": (
        lambda: dpjax.dpsgd_from_training(60_000, 256, 1.1, 60),
        "1.1 epochs with noise multiplier 60 look exchanged",
        "epochs, noise_multiplier",
    ),
    "exchanged, both whole": (
        lambda: dpjax.dpsgd_from_training(60_000, 256, 2, 30),
        "2 epochs with noise multiplier 30 look exchanged",
        "epochs, noise_multiplier",
    ),
    "no delta": (lambda: dpjax.statement(dpjax.Gaussian(1.0), 0.0), "delta 0: no finite epsilon", "1e-06"),
    "a probability of error": (
        lambda: dpjax.audit(true_positives=90, false_positives=10, positives=100, negatives=100, confidence=0.05),
        "confidence 0.05 is small",
        "Is 0.95 meant?",
    ),
    "in training": (lambda: spent(0.05), "delta 0.05 is large", "1e-06"),
}


@pytest.mark.parametrize("name", QUESTIONED)
def test_questioned_at_the_line_that_asks(name):
    ask, first, last = QUESTIONED[name]
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        ask()
    assert {w.category for w in found} == {SuspiciousInputWarning} and len({str(w.message) for w in found}) == 1
    assert str(found[0].message).startswith(first) and last in str(found[0].message)
    assert {w.filename for w in found} == {__file__}


@pytest.mark.filterwarnings("default::dpjax.SuspiciousInputWarning")
def test_questioned_once_for_each_place():
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("default")
        for noise in (0.1, 0.1, 0.1):
            dpjax.dpsgd(noise, 0.01, 10)
    assert len(found) == 1


def swept(noise):
    return dpjax.dpsgd(noise, 0.5, 2) if noise > 0.2 else dpjax.dpsgd(noise, 0.5, 2) + dpjax.Gaussian(1.0)


LEFT_ALONE = {
    "what is usual": lambda: dpjax.epsilon(dpjax.dpsgd_from_training(*TRAINING, 1.1), 1e-5),
    "no noise": lambda: dpjax.dpsgd(0.0, 0.01, 10),
    "a plain query": lambda: dpjax.epsilon(dpjax.Gaussian(1.0), 0.1),
    "whole steps as a float": lambda: dpjax.dpsgd(1.0, 0.01, 1e3) + dpjax.Gaussian(1.0) * np.float32(3),
    "traced steps": lambda: jax.eval_shape(lambda n: dpjax.epsilon(dpjax.dpsgd(1.0, 0.01, n), 1e-5), 10.5),
    "a traced mechanism": lambda: jax.jit(lambda s: (dpjax.Gaussian(s) * 2.5).mechanism.noise_multiplier)(1.0),
    "a search for steps": lambda: dpjax.calibrate(lambda n: dpjax.dpsgd(1.0, 0.01, n), epsilon=2.0, delta=1e-5),
    "much noise for large batches": lambda: [
        dpjax.dpsgd_from_training(60_000, 8192, *run)
        for run in ((1, 2.5), (0.5, 4.0), (1, 8), (40, 12), (100, 60.0), (1, np.inf))
    ],
    "a delta of 0 that has an answer": lambda: dpjax.statement(dpjax.PureDP(1.0) * 3, 0.0),
    "no delta, asked plainly": lambda: dpjax.epsilon(dpjax.Gaussian(1.0), 0.0),
    "a batch": lambda: dpjax.dpsgd([0.1, 1.0], 0.01, 10),
    "deltas of a batch": lambda: dpjax.epsilon(dpjax.dpsgd_from_training(*TRAINING, 1.1), np.array([0.1, 0.2])),
    "traced noise": lambda: jax.eval_shape(lambda s: dpjax.epsilon(dpjax.dpsgd(s, 1.0, 10), 1e-5), 0.1),
    "a traced delta": lambda: jax.eval_shape(
        lambda d: dpjax.epsilon(dpjax.dpsgd_from_training(*TRAINING, 1.1), d), 0.1
    ),
    "vmap": lambda: jax.vmap(lambda s: dpjax.delta(dpjax.Gaussian(s), 1.0))(np.array([0.1, 1.0])),
    "a search": lambda: dpjax.calibrate(lambda s: dpjax.dpsgd(s, 1.0, 1), epsilon=40.0, delta=1e-5),
    "a search about a run": lambda: dpjax.noise_for_training(60_000, 60_000, 1, epsilon=40.0, delta=1e-5),
    "a sweep": lambda: dpjax.sweep(
        dpjax.dpsgd, {"noise_multiplier": [0.1], "sampling_probability": 1, "steps": 1}, delta=0.1
    ),
    "row by row": lambda: dpjax.sweep(swept, {"noise": [0.1, 0.25]}, epsilon=1.0),
    "in devices' threads": lambda: dpjax.sweep(
        swept, {"noise": [0.1, 0.25]}, epsilon=1.0, devices=jax.local_devices() * 2, chunk_size=1
    ),
}


@pytest.mark.parametrize("name", LEFT_ALONE)
@pytest.mark.filterwarnings("error::dpjax.SuspiciousInputWarning")
def test_left_alone(name):
    LEFT_ALONE[name]()


def test_quiet_inside_and_not_after():
    with suspicion.unquestioned(), warnings.catch_warnings():
        warnings.simplefilter("error")
        dpjax.dpsgd(0.1, 0.01, 10)
    with pytest.warns(SuspiciousInputWarning, match="0.1"):
        dpjax.dpsgd(0.1, 0.01, 10)


@pytest.mark.parametrize("records", [2, 10, 99, 1000, 10**9])
def test_the_delta_that_is_proposed_is_not_questioned(records):
    with pytest.warns(SuspiciousInputWarning) as found:
        suspicion.question_delta(1.0 / records, records)
    proposed = float(str(found[0].message).rpartition(" ")[2].rstrip("."))
    assert 0.0999 / records <= proposed < 1 / records


RUN = ["--sampling-probability", "0.01", "--steps", "10"]
FROM_TRAINING = ["--dataset-size", "1000", "--batch-size", "100", "--epochs", "1"]
NOTED = {
    "delta": (["epsilon", "--noise-multiplier", "1", *RUN, "--delta", "0.1"], ["delta 0.1 is large"]),
    "log delta": (["epsilon", "--noise-multiplier", "1", *RUN, "--log-delta", "-2"], ["delta 0.135335 is large"]),
    "no delta": (["epsilon", "--noise-multiplier", "1", *RUN, "--delta", "0"], ["delta 0: no finite epsilon"]),
    "noise": (["delta", "--noise-multiplier", "0.1", *RUN, "--epsilon", "9", "--json"], ["noise multiplier 0.1"]),
    "both": (
        ["compare", "--noise-multiplier", "0.2", *FROM_TRAINING, "--delta", "1e-3"],
        ["noise multiplier 0.2", "delta 0.001 is not below 1 / 1000"],
    ),
    "target": (
        ["calibrate", *FROM_TRAINING, "--epsilon", "2", "--delta", "0.002"],
        ["delta 0.002 is not below 1 / 1000"],
    ),
    "odometer": (["odometer", "0.1", "--delta", "0.1"], ["delta 0.1 is large"]),
    "nothing": (["epsilon", "--noise-multiplier", "1", *RUN, "--delta", "1e-5"], []),
    "a sweep": (["sweep", "--noise-multiplier", "0.1,1", *RUN, "--delta", "0.1"], []),
}


@pytest.mark.parametrize("name", NOTED)
def test_the_command_line_notes_it_on_stderr(name, monkeypatch, capsys):
    monkeypatch.setattr(_process, "configure_jax", lambda *args, **kwargs: "off")
    argv, notes = NOTED[name]
    assert cli.run(argv) == 0
    out, err = capsys.readouterr()
    assert out and "note" not in out
    lines = err.splitlines()
    assert len(lines) == len(notes)
    for line, expected in zip(lines, notes, strict=True):
        assert line.startswith(f"dpjax: note: {expected}")


def test_a_batch_size_for_a_probability_is_told_what_to_do():
    with pytest.raises(ValueError, match=r"sampling_probability = 256.0, .*divided by the dataset size"):
        dpjax.dpsgd(1.0, 256, 10)
