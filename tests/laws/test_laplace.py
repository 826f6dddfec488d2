"""Laplace noise, against integrals of its densities; also what is reduced to it."""

import json
from pathlib import Path

import jax
import lawtools
import mpmath as mp
import numpy as np
import pytest

import dpjax
from dpjax import Adjacency
from dpjax.laws import loss_law


@pytest.fixture(autouse=True)
def double():
    with jax.enable_x64(True), mp.workdps(50):
        yield


class Noise:
    """Lap(mu) and Lap(0), by the distribution function of the noise and the place y where the loss 2 y - mu is x."""

    def __init__(self, mu):
        self.mu = mu

    @staticmethod
    def below(y):
        return mp.exp(y) / 2 if y < 0 else 1 - mp.exp(-y) / 2

    def masses(self, x):
        if x >= self.mu or x < -self.mu:
            above = int(x < -self.mu)
            return mp.mpf(above), mp.mpf(above), mp.mpf(1 - above), mp.mpf(1 - above)
        y = (x + self.mu) / 2
        p, q = y - self.mu, y
        return self.below(-p), self.below(-q), self.below(p), self.below(q)

    def profile(self, x):
        p, q, _, _ = self.masses(x)
        return p - mp.exp(x) * q

    def profile_below(self, x):
        _, _, p, q = self.masses(x)
        return q - mp.exp(-x) * p


def oracle_of(record, factor=1):
    if isinstance(record, dpjax.PermuteAndFlip):
        return Noise(record.epsilon)
    if isinstance(record, dpjax.ReportNoisyMax):
        return Noise(2 * factor / record.noise.noise_multiplier)
    return Noise(factor / record.noise_multiplier)


XS = [-3000.0, -800.0, -30.0, -2.5, -0.99, -0.3, -1e-9, 0.0, 1e-12, 0.2, 0.7, 1.9, 29.0, 31.0, 600.0, 2999.0]
NOISES = [1e-3, 0.01, 0.4, 1.0, 3.7, 1e4, 1e12]


def ends(mu):
    return [s * mu * f for s in (-1, 1) for f in (1 - 1e-14, 1 - 1e-7, 1.0, 1 + 1e-14)]


@pytest.mark.parametrize(
    ("make", "direction", "factor"),
    [
        (dpjax.Laplace, Adjacency.REMOVE, 1),
        (dpjax.Laplace, Adjacency.ADD, 1),
        (dpjax.Laplace, Adjacency.REPLACE_ONE, 2),
        (lambda b: dpjax.ReportNoisyMax(dpjax.Laplace(b)), Adjacency.ADD, 1),
        (lambda b: dpjax.ReportNoisyMax(dpjax.Laplace(b)), Adjacency.REPLACE_ONE, 2),
        (lambda b: dpjax.PermuteAndFlip(1 / b), Adjacency.REMOVE, 1),
        (lambda b: dpjax.PermuteAndFlip(1 / b), Adjacency.REPLACE_ONE, 1),
    ],
)
def test_masses_profiles_and_derivatives(make, direction, factor):
    oracle = lambda record: oracle_of(record, factor)
    mu = lambda record: float(oracle(lawtools.exact(record)).mu)
    records = [make(b) for b in NOISES]
    cases = [(r, XS + ends(mu(r))) for r in records]
    lawtools.assert_law(cases, oracle, direction)
    lawtools.assert_fits(cases, direction)
    inside = [(r, [f * mu(r) for f in (-1.5, -0.9, -0.1, 0.4, 0.99, 1.1)]) for r in records[2:5]]
    lawtools.assert_derivatives(inside, oracle, direction)


def test_the_oracle_is_the_integral():
    for mu in (mp.mpf("0.3"), mp.mpf(4)):
        for x in (-0.9 * mu, 0.2 * mu, 0.9 * mu):
            positive = lambda y, mu=mu, x=x: max(mp.exp(-abs(y - mu)) - mp.exp(x - abs(y)), mp.mpf(0)) / 2
            places = sorted([mp.mpf(-60), mp.mpf(0), (x + mu) / 2, mu, mp.mpf(90)])
            assert abs(mp.quad(positive, places) - Noise(mu).profile(x)) < mp.mpf(10) ** -20


def test_losses_end_at_the_sensitivity_over_the_scale():
    for direction, top in ((Adjacency.ADD, 0.5), (Adjacency.REMOVE, 0.5), (Adjacency.REPLACE_ONE, 1.0)):
        law = loss_law(dpjax.Laplace(2.0), direction)
        assert law.support() == (-top, top) and law.spacing() == 0.0
        assert law.p_infinite() == law.q_infinite() == 0.0


def test_reference_rows():
    path = Path(__file__).parents[1] / "oracles" / "noise.json"
    rows = json.loads(path.read_text(), parse_float=str)["laplace"]
    cases = [(dpjax.PermuteAndFlip(float(r["mu"])), [float(r["epsilon"])]) for r in rows]
    got, _ = lawtools.values(cases)
    for row, values in zip(rows, got, strict=True):
        # an epsilon of 17 digits, read as a float, leaves delta an absolute error of its rounding
        slack = 4e-16 * float(row["epsilon"]) if row["answer"] == "epsilon" else 0.0
        assert values[4] == pytest.approx(float(row["delta"]), rel=1e-14, abs=slack)


@pytest.mark.parametrize("make", [dpjax.Laplace, dpjax.DiscreteGaussian])
def test_negative_noise_is_refused(make):
    with pytest.raises(ValueError, match="= -1.0, but it must be a number >= 0"):
        make(-1.0)
    assert np.shape(make([1.0, 2.0]).check()) == ()
