"""Audits, against SciPy's beta quantiles and against attacks whose rates are known."""

import jax
import numpy as np
import pytest
from scipy import stats

import dpjax


def by_scipy(tp, fp, n1, n0, delta, confidence):
    error = (1 - confidence) / 2
    hit = stats.beta.ppf(error, tp, n1 - tp + 1) if tp else 0.0
    alarm = stats.beta.ppf(1 - error, fp + 1, n0 - fp) if fp < n0 else 1.0
    bounds = [0.0]
    for a, b in ((hit, alarm), (1 - alarm, 1 - hit)):
        if a > delta:
            bounds.append(np.log((a - delta) / b))
    return max(bounds)


@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.999])
@pytest.mark.parametrize(
    "counts",
    [(480, 30, 500, 500), (500, 0, 500, 500), (0, 500, 500, 500), (1, 0, 1, 1), (3, 2, 7, 900), (250, 250, 500, 500)],
)
@pytest.mark.parametrize("delta", [0.0, 1e-5, 0.3])
def test_clopper_pearson(counts, delta, confidence):
    tp, fp, n1, n0 = counts
    found = dpjax.audit(tp, fp, positives=n1, negatives=n0, delta=delta, confidence=confidence)
    exact = by_scipy(tp, fp, n1, n0, delta, confidence)
    assert found <= exact + 1e-12
    assert found == pytest.approx(exact, rel=1e-6, abs=1e-8)


def test_broadcasts():
    found = dpjax.audit([[10], [90]], [5, 50], positives=100, negatives=100, delta=1e-6)
    assert found.shape == (2, 2)
    assert found[1, 0] == dpjax.audit(90, 5, positives=100, negatives=100, delta=1e-6)


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_covers_randomised_response(epsilon):
    """The best attack on randomised response has the rates e^eps / (1 + e^eps) and its complement: exactly epsilon."""
    rng = np.random.default_rng(7)
    rate, runs, confidence = 1 / (1 + np.exp(-epsilon)), 400, 0.9
    tp, fp = rng.binomial(runs, rate, 4000), rng.binomial(runs, 1 - rate, 4000)
    found = dpjax.audit(tp, fp, positives=runs, negatives=runs, confidence=confidence)
    wrong = np.mean(found > epsilon)
    assert wrong <= 1 - confidence + 4 * np.sqrt(confidence * (1 - confidence) / 4000)
    assert np.median(found) > 0.75 * epsilon - 0.1  # and says something


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"true_positives": 11}, "true_positives = .*at most positives"),
        ({"false_positives": -1}, "false_positives = -1.0"),
        ({"positives": 0}, "positives = 0.0"),
        ({"negatives": 10.5}, "negatives = 10.5.*whole number"),
        ({"delta": 1.0}, "delta = 1.0"),
        ({"confidence": 1.0}, "confidence = 1.0"),
    ],
)
def test_bad_arguments(change, match):
    arguments = {"true_positives": 5, "false_positives": 1, "positives": 10, "negatives": 10} | change
    with pytest.raises(ValueError, match=match):
        dpjax.audit(arguments.pop("true_positives"), arguments.pop("false_positives"), **arguments)


def test_traced_counts_are_refused():
    with pytest.raises(TypeError, match="true_positives"):
        jax.jit(lambda n: dpjax.audit(n, 1, positives=10, negatives=10))(5)
