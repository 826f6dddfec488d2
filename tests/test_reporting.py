"""Statements say what the queries say, rounded to the safe side."""

import re

import jax
import numpy as np
import pytest
from problems import PROBLEMS

import dpjax
from dpjax import Adjacency, reporting

RUN = dpjax.dpsgd(1.0, 0.01, 1000)


def stated(text):
    found = re.search(r"satisfies \(([^,]+), ([^)]+)\)-differential privacy", text)
    assert found, text
    return float(found[1]), float(found[2])


def test_a_run_from_training_terms_is_said_like_one_from_numbers():
    run = dpjax.dpsgd_from_training(60_000, 256, 20, 1.1)
    assert reporting.describe(run) == reporting.describe(dpjax.dpsgd(1.1, 256 / 60_000, run.count))


@pytest.mark.parametrize("delta", [1e-5, 3e-9, 0.0123456789])
def test_epsilon_is_rounded_up(delta):
    text = dpjax.statement(RUN, delta=delta)
    epsilon, at = stated(text)
    exact = float(dpjax.epsilon(RUN, delta))
    assert exact <= epsilon <= exact * 1.001 and at == delta
    assert float(re.search(r"at least ([\d.]+)\.", text)[1]) <= exact
    assert dpjax.__version__ in text and "contour" in text and "Not covered" in text and "\n" not in text


def test_delta_is_rounded_up():
    epsilon, delta = stated(dpjax.statement(RUN, epsilon=1.5))
    exact = float(dpjax.delta(RUN, 1.5))
    assert epsilon == 1.5 and exact <= delta <= exact * 1.001


@pytest.mark.parametrize("adjacency", Adjacency)
def test_neighbours_are_said(adjacency):
    text = dpjax.statement(dpjax.Gaussian(3.0), delta=1e-5, adjacency=adjacency)
    assert reporting._NEIGHBOURS[adjacency] in text
    assert stated(text)[0] >= dpjax.epsilon(dpjax.Gaussian(3.0), 1e-5, adjacency=adjacency)


def test_every_adjacency_and_method_has_words():
    assert set(reporting._NEIGHBOURS) == set(Adjacency) and set(reporting._HOW) == set(dpjax.Method)


def test_one_sided_and_infinite_answers():
    noisy_max = dpjax.ReportNoisyMax(dpjax.Laplace(2.0))
    assert "is an upper bound; how far" in dpjax.statement(noisy_max, delta=1e-3)
    assert "No finite epsilon" in dpjax.statement(dpjax.MassAtInfinity(0.1), delta=1e-3)


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_every_mechanism_is_described(problem):
    text = reporting.describe(problem.make(problem.at) * 3)
    assert text.startswith("3 runs of ") and "array" not in text and "object" not in text


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({}, ValueError, "exactly one"),
        ({"delta": 1e-5, "epsilon": 1.0}, ValueError, "exactly one"),
        ({"delta": [1e-5, 1e-6]}, ValueError, "not arrays"),
        ({"delta": 2.0}, ValueError, "delta = 2.0"),
    ],
)
def test_bad_arguments(arguments, error, match):
    with pytest.raises(error, match=match):
        dpjax.statement(RUN, **arguments)


def test_batches_and_tracers_are_refused():
    with pytest.raises(ValueError, match="is a batch"):
        dpjax.statement(dpjax.Gaussian(np.array([1.0, 2.0])), delta=1e-5)
    with pytest.raises(TypeError, match="traced"):
        jax.jit(lambda s: dpjax.epsilon(dpjax.Gaussian(s), 1e-5) + len(dpjax.statement(dpjax.Gaussian(s), 1e-5)))(1.0)


@pytest.mark.parametrize(
    ("record", "parts"),
    [
        (dpjax.DiscreteGaussian(3.0, 2), ("sigma 3", "sensitivity 2")),
        (dpjax.DiscreteLaplace(1, 3), ("epsilon per unit 1", "sensitivity 3")),
        (dpjax.RandomizedResponse(1.0, 4), ("epsilon 1", "num buckets 4")),
        (dpjax.ReportNoisyMax(dpjax.Laplace(4.0)), ("Laplace mechanism (noise multiplier 4)",)),
        (dpjax.BoundedRange(1.0, 0.3), ("0.3 and 0.3 - 1",)),
    ],
)
def test_every_parameter_is_said(record, parts):
    text = dpjax.statement(record, delta=1e-5)
    assert all(part in text for part in parts), text
    assert "exponential mechanism" not in text  # an exponential mechanism of range 1 has no epsilon of 0.3


def test_no_statement_of_half_a_run():
    for record in (dpjax.Gaussian(1.0) * 2.5, dpjax.Gaussian(2.0) + dpjax.Gaussian(1.0) * 1.5):
        with pytest.raises(ValueError, match="not whole"):
            dpjax.statement(record, delta=1e-5)
