"""Gaussians at random distances, against their definition in mpmath."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import lawtools
import mpmath as mp
import numpy as np
import pytest

import dpjax
from dpjax import Adjacency
from dpjax.laws import loss_law

ORACLES = Path(__file__).parents[1] / "oracles"


@pytest.fixture(autouse=True)
def double():
    with jax.enable_x64(True), mp.workdps(60):
        yield


class Mixture:
    """P = sum_i p_i N(d_i, 1), Q = N(0, 1)."""

    def __init__(self, record):
        total = mp.fsum(record.probabilities)
        self.weights = [p / total for p in record.probabilities]
        self.distances = [s / record.noise_multiplier for s in record.sensitivities]
        self.still = mp.fsum(p for p, d in zip(self.weights, self.distances, strict=True) if d == 0)

    def loss_less(self, z, x):
        """(exp of the loss at z - exp(x)) exp(-x) and its derivative."""
        terms = [(d, p * mp.exp(d * z - d * d / 2 - x)) for p, d in zip(self.weights, self.distances, strict=True)]
        return mp.fsum(t for _, t in terms) - 1, mp.fsum(d * t for d, t in terms)

    def threshold(self, x):
        """By bisection, then Newton."""
        low, high = mp.mpf(-3000), mp.mpf(3000)
        for _ in range(22):
            middle = (low + high) / 2
            low, high = (low, middle) if self.loss_less(middle, x)[0] > 0 else (middle, high)
        z = high
        for _ in range(9):
            value, slope = self.loss_less(z, x)
            z -= value / slope
            if abs(value) < mp.mpf(10) ** -(mp.mp.dps - 10):
                break
        return z

    def masses(self, x):
        if self.still > 0 and mp.exp(x) <= self.still:
            return mp.mpf(1), mp.mpf(1), mp.mpf(0), mp.mpf(0)
        if self.still == 1:
            return mp.mpf(0), mp.mpf(0), mp.mpf(1), mp.mpf(1)
        z = self.threshold(x)
        tail = lambda y: mp.erfc(y / mp.sqrt(2)) / 2
        mix = lambda sign: mp.fsum(p * tail(sign * (z - d)) for p, d in zip(self.weights, self.distances, strict=True))
        return mix(1), tail(z), mix(-1), tail(-z)

    def profile(self, x):
        p, q, _, _ = self.masses(x)
        return p - mp.exp(x) * q

    def profile_below(self, x):
        _, _, p, q = self.masses(x)
        return q - mp.exp(-x) * p


MIXTURES = [
    ([0.0, 1.0, 2.0], [0.5, 0.25, 0.25]),
    ([0.0, 0.3, 7.0], [1 - 1e-6, 9e-7, 1e-7]),
    ([1.0, 1.0, 3.0], [0.25, 0.25, 0.5]),
    ([0.01, 1.0, 0.0], [1.0, 0.0, 0.0]),
    ([1e-4, 1.0, 40.0], [0.6, 0.3, 0.1]),
    ([0.0, 0.0, 2.0], [0.5, 0.5 - 1e-9, 1e-9]),
]


def xs(record):
    """Across all losses, near the lowest, and to masses near 1e-300."""
    d = np.asarray(record.sensitivities) / record.noise_multiplier
    p = np.asarray(record.probabilities)
    still = float(p[d == 0].sum())
    top = float(d.max())
    z = np.array([-37.0, -20.0, -5.0, -1.0, 0.3, 4.0, 12.0, 30.0, 37.0])
    terms = np.log(np.where(p > 0, p, 1e-300)) + d * z[:, None] - d * d / 2
    losses = np.logaddexp.reduce(terms, axis=1)
    edge = [np.log(still) + s for s in (-1.0, 1e-3, 1e-7)] if still else []
    return [*losses, *edge, -0.2, 1e-9, 0.01, 0.4, top * top / 2]


@pytest.mark.parametrize("direction", [Adjacency.REMOVE, Adjacency.ADD])
@pytest.mark.slow
def test_masses_and_profiles(direction):
    class Added(Mixture):
        def masses(self, x):
            return super().masses(-x)[::-1]

    oracle = Mixture if direction is Adjacency.REMOVE else Added
    sign = 1 if direction is Adjacency.REMOVE else -1
    noises = (0.3, 1.0, 8.0) if sign > 0 else (0.9,)
    cases = [
        (r, [sign * x for x in xs(r)]) for m in MIXTURES for s in noises for r in [dpjax.MixtureOfGaussians(s, *m)]
    ]
    lawtools.assert_law(cases, oracle, direction)
    lawtools.assert_fits(cases[::4], direction)


@pytest.mark.slow
def test_derivatives():
    """Also in the sensitivities and probabilities, which are normalised."""
    records = [dpjax.MixtureOfGaussians(1.3, *m) for m in (MIXTURES[0], MIXTURES[2])]
    lawtools.assert_derivatives([(r, [-0.6, 0.01, 1.7, 9.0]) for r in records], Mixture)


@pytest.mark.slow
def test_one_distance_is_the_gaussian_and_nought_and_one_the_sampled_one():
    x = jnp.asarray([-2.0, -0.2, 0.0, 0.3, 5.0, 40.0])
    for mixture, plain in (
        (dpjax.MixtureOfGaussians(1.7, [3.4], [1.0]), dpjax.Gaussian(0.5)),
        (dpjax.MixtureOfGaussians(1.7, [0.0, 1.0], [0.9, 0.1]), dpjax.PoissonSampled(0.1, dpjax.Gaussian(1.7))),
    ):
        for direction in (Adjacency.REMOVE, Adjacency.ADD):
            one, other = (np.asarray(lawtools.whole(r, x, direction=direction)) for r in (mixture, plain))
            np.testing.assert_allclose(one, other, rtol=3e-13, atol=1e-300)


def test_reference_rows_of_one_sampled_step():
    rows = json.loads((ORACLES / "reference.json").read_text())["single_step_delta"]
    rows = [r for r in rows if r["direction"] in ("remove", "add")]
    for direction in (Adjacency.REMOVE, Adjacency.ADD):
        mine = [r for r in rows if r["direction"] == direction.value]
        make = lambda r: dpjax.MixtureOfGaussians(
            float(r["noise_multiplier"]),
            [0.0, 1.0],
            [1 - float(r["sampling_probability"]), float(r["sampling_probability"])],
        )
        got, _ = lawtools.values([(make(r), [float(r["epsilon"])]) for r in mine], direction)
        for row, values in zip(mine, got, strict=True):
            assert values[4] == pytest.approx(float(row["delta"]), rel=1e-11, abs=1e-300), row["id"]
        assert len(mine) > 5


def test_no_amount_at_all_is_no_loss():
    record = dpjax.MixtureOfGaussians(1.0, [0.0, 0.0], [0.5, 0.5])
    got = np.asarray(lawtools.whole(record, jnp.asarray([-0.3, 0.0, 0.3]), direction=Adjacency.REMOVE))
    lost = -np.expm1(-0.3)
    np.testing.assert_array_equal(got[:4], [[1, 0, 0], [1, 0, 0], [0, 1, 1], [0, 1, 1]])
    np.testing.assert_allclose(got[4:], [[lost, 0, 0], [0, 0, lost]])
    assert [float(a) for a in loss_law(record, Adjacency.REMOVE).support()] == [0.0, 0.0]


def test_ends():
    law = loss_law(dpjax.MixtureOfGaussians(1.0, [0.0, 2.0], [0.25, 0.75]), Adjacency.REMOVE)
    low, high = law.support()
    assert float(low) == pytest.approx(np.log(0.25), rel=1e-15) and high == np.inf
    law = loss_law(dpjax.MixtureOfGaussians(1.0, [1.0, 2.0], [0.25, 0.75]), Adjacency.ADD)
    assert [float(a) for a in law.support()] == [-np.inf, np.inf] and law.spacing() == 0.0


def test_replace_one_is_refused_by_name():
    with pytest.raises(NotImplementedError, match="MixtureOfGaussians has no analysis under REPLACE_ONE"):
        loss_law(dpjax.MixtureOfGaussians(1.0, [1.0], [1.0]), Adjacency.REPLACE_ONE)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: dpjax.MixtureOfGaussians(-1.0, [1.0], [1.0]), "noise_multiplier = -1.0"),
        (lambda: dpjax.MixtureOfGaussians(1.0, [1.0, -2.0], [0.5, 0.5]), r"sensitivities\[1\] = -2.0"),
        (lambda: dpjax.MixtureOfGaussians(1.0, [1.0, np.inf], [0.5, 0.5]), r"sensitivities\[1\] = inf"),
        (lambda: dpjax.MixtureOfGaussians(1.0, [1.0, 2.0], [0.5, 0.4]), "probabilities sums to 0.9"),
        (lambda: dpjax.MixtureOfGaussians(1.0, [1.0, 2.0], [1.0]), "sensitivities and probabilities have 2 and 1"),
        (lambda: dpjax.MixtureOfGaussians(1.0, 1.0, [1.0]), "sensitivities = 1.0, but it must be an array"),
    ],
)
def test_bad_numbers_are_named(make, text):
    with pytest.raises(ValueError, match=text):
        make()


def test_traced_numbers_that_are_bad_give_nan():
    at = jax.jit(
        lambda s, p: lawtools.everything(
            dpjax.MixtureOfGaussians(1.0, s, p), jnp.asarray([-5.0, 0.1]), Adjacency.REMOVE
        )
    )
    for s, p in (
        ([1.0, -1.0], [0.5, 0.5]),
        ([1.0, 2.0], [0.5, 0.4]),
        ([1.0, 2.0], [1.5, -0.5]),
        ([jnp.nan, 0.0], [0.5, 0.5]),
    ):
        assert np.isnan(at(jnp.asarray(s), jnp.asarray(p))).all()


class TestWithoutNoise:
    def test_every_move_shows(self):
        """delta is the probability of a move, whatever epsilon is."""
        record = dpjax.MixtureOfGaussians(0.0, [[0.0, 1.0, 2.0], [0.0, 0.0, 0.0]], [0.25, 0.5, 0.25])
        found = dpjax.delta_bounds(record, [1.0, 1.0], adjacency=Adjacency.REMOVE)
        np.testing.assert_allclose(found.lower, [0.75, 0.0], atol=1e-12)
        np.testing.assert_allclose(found.upper, [0.75, 0.0], atol=1e-12)
        epsilon = dpjax.epsilon(record, np.array([[0.7], [0.76]]), adjacency=Adjacency.REMOVE)
        assert epsilon.tolist() == [[np.inf, 0.0], [0.0, 0.0]]
        added = dpjax.delta(record, 1.0, adjacency=Adjacency.ADD)  # 1 - e 0.25: only "still" can be seen then
        np.testing.assert_allclose(added, [1 - np.e * 0.25, 0.0], atol=1e-9)
        sampled = dpjax.delta(dpjax.PoissonSampled(0.5, record), 1.0, adjacency=Adjacency.REMOVE)
        np.testing.assert_allclose(sampled, [0.375, 0.0], atol=1e-9)

    def test_beside_noise_it_is_refused(self):
        with pytest.raises(ValueError, match=r"noise_multiplier\[0\] = 0.0, but it must be a number > 0"):
            dpjax.MixtureOfGaussians([0.0, 1.0], [1.0], [1.0])
        ask = jax.jit(lambda s: dpjax.delta(dpjax.MixtureOfGaussians(s, [1.0], [1.0]), 1.0, adjacency=Adjacency.REMOVE))
        assert np.isnan(ask(0.0)) and float(ask(1.0)) == pytest.approx(0.12693673750664397, rel=1e-9)
