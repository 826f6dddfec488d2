"""Integer noise, against sums over its outcomes."""

import jax
import jax.numpy as jnp
import lawtools
import mpmath as mp
import numpy as np
import pytest
from test_finite import Pair

import dpjax
from dpjax import Adjacency
from dpjax.laws import loss_law


@pytest.fixture(autouse=True)
def double():
    with jax.enable_x64(True), mp.workdps(50):
        yield


class Sums:
    """The discrete Gaussian by plain sums in mpmath: P is the noise moved by an integer, Q the noise."""

    def __init__(self, sigma, move):
        self.sigma, self.move, self.spread = sigma, move, move / sigma**2
        self.total = 1 + 2 * self._sum(1)

    def _sum(self, n, factor=lambda t: 1):
        """Over t >= n, until the terms are below 1e-50 of the first or of the middle."""
        start = max(n, -int(16 * self.sigma) - 2)
        top, total, t = max(start, 0), mp.mpf(0), start
        while t <= 0 or t * t - top * top < 230 * self.sigma**2:
            total += mp.exp(mp.mpf(top * top - t * t) / (2 * self.sigma**2)) * factor(t)
            t += 1
        return mp.exp(-mp.mpf(top * top) / (2 * self.sigma**2)) * total

    def mass(self, n):
        """P(noise >= n)."""
        return self._sum(n) / self.total if n > 0 else 1 - self._sum(1 - n) / self.total

    def first_above(self, x):
        return int(mp.floor(x / self.spread + mp.mpf(self.move) / 2)) + 1

    def masses(self, x):
        k = self.first_above(x)
        return self.mass(k - self.move), self.mass(k), self.mass(1 - k + self.move), self.mass(1 - k)

    def profile(self, x):
        loss = lambda t: self.spread * (t + mp.mpf(self.move) / 2)
        return self._sum(self.first_above(x) - self.move, lambda t: -mp.expm1(x - loss(t))) / self.total

    def profile_below(self, x):
        return self.profile(-x)


class LongDouble(Sums):
    """The same in vectors of 64-bit significands, its total by Poisson summation."""

    def __init__(self, sigma, move):
        self.sigma, self.move, self.spread = sigma, move, move / sigma**2
        dual = lambda j: mp.exp(-2 * (mp.pi * sigma * j) ** 2)
        if sigma > 0.5:
            self.total = sigma * mp.sqrt(2 * mp.pi) * (1 + 2 * sum(dual(j) for j in range(1, 8)))
        else:
            self.total = 1 + 2 * sum(mp.exp(-mp.mpf(j * j) / (2 * sigma**2)) for j in range(1, 9))

    def _sum(self, n, gap=None):
        """Over t >= n, times 1 - exp(-gap - spread (t - n)) if there is one."""
        start, extra = n, mp.mpf(0)
        wide = int(13 * self.sigma) + 10
        if start < -wide:
            start = -wide
            extra = (start - n) * self.spread
        scale = max(start, 0)
        count = 2 * wide if start < 0 else int(min(wide, 60 * self.sigma**2 / max(start, 1))) + 50
        t = np.longdouble(start - scale) + np.arange(count, dtype=np.longdouble)
        half = np.longdouble(str(1 / (2 * self.sigma**2)))
        weights = np.exp(-(t * t + 2 * np.longdouble(scale) * t) * half)
        if gap is not None:
            steps = np.longdouble(str(gap + extra)) + np.longdouble(str(self.spread)) * np.arange(
                count, dtype=np.longdouble
            )
            weights = weights * -np.expm1(-steps)
        return mp.exp(-(mp.mpf(scale) ** 2) / (2 * self.sigma**2)) * mp.mpf(str(np.sum(weights)))

    def profile(self, x):
        k = self.first_above(x)
        gap = self.spread * (k - mp.mpf(self.move) / 2) - x
        return self._sum(k - self.move, gap) / self.total

    def profile_below(self, x):
        return self.profile(-x)


def laplace(unit, move):
    """The outcomes 1 .. move - 1, and two of all those outside: a finite pair."""
    tail = lambda n: mp.exp(-unit * n) / (1 + mp.exp(-unit))  # P(noise >= n), n > 0
    noise = lambda t: mp.exp(-unit * abs(t)) * mp.tanh(unit / 2)
    q = [1 - tail(1), *(noise(k) for k in range(1, move)), tail(move)]
    return Pair(q[::-1], q)


def oracle_of(record, factor=1):
    move = factor * record.sensitivity
    if isinstance(record, dpjax.DiscreteLaplace):
        return laplace(record.epsilon_per_unit, move)
    return LongDouble(record.sigma, move)


def differentiable(record):
    return oracle_of(record) if isinstance(record, dpjax.DiscreteLaplace) else Sums(record.sigma, record.sensitivity)


def at_atoms(spacing, move, far):
    """Just below, at and above some losses."""
    j = np.unique(np.round(np.array([-1.0, -0.7, -0.1, 0.0, 0.03, 0.4, 1.0]) * far / spacing))
    return [float(i * spacing * f) for i in j for f in (1 - 1e-14, 1.0, 1 + 1e-14, 1 + 0.3 / (abs(i) + 1))]


def gaussian_xs(sigma, move):
    """To where the masses are near 1e-300."""
    mu = move / sigma
    far = 36 * mu + mu * mu / 2
    spacing = move / sigma**2 / (1 + move % 2)
    return [f * far for f in (-1.02, -0.5, -0.03, 0.001, 0.01, 0.2, 0.6, 0.99)] + at_atoms(spacing, move, far)


@pytest.mark.parametrize("move", [1, *(pytest.param(m, marks=pytest.mark.slow) for m in (2, 3, 40))])
def test_discrete_gaussian(move):
    """Both sides of sigma = 7 and of where sums are taken term by term."""
    records = [dpjax.DiscreteGaussian(s, move) for s in (0.05, 0.3, 1.0, 3.3, 6.999, 7.0, 7.001, 9.7, 28.3)]
    cases = [(r, gaussian_xs(r.sigma, move)) for r in records]
    lawtools.assert_law(cases, oracle_of)
    lawtools.assert_fits(cases[::3])


@pytest.mark.parametrize("move", [6, *(pytest.param(m, marks=pytest.mark.slow) for m in (1, 1001))])
def test_wide_discrete_gaussian(move):
    records = [dpjax.DiscreteGaussian(s, move) for s in (30.3, 61.7, 400.0, 10000.0)]
    lawtools.assert_law([(r, gaussian_xs(r.sigma, move)) for r in records], oracle_of)


@pytest.mark.parametrize("sigma", ["0.05", "0.6", "8.3"])
def test_the_two_oracles_agree(sigma):
    for move in (1, 6):
        one, other = Sums(mp.mpf(sigma), move), LongDouble(mp.mpf(sigma), move)
        for x in gaussian_xs(float(sigma), move)[::9]:
            for f, g in zip(lawtools.functions(one), lawtools.functions(other), strict=True):
                a, b = f(mp.mpf(x)), g(mp.mpf(x))
                assert abs(a - b) <= mp.mpf(10) ** -17 * a


@pytest.mark.parametrize("move", [1, 2, 3, 8, 501])
def test_discrete_laplace(move):
    units = (0.02, 0.3, 1.0, 5.0, 40.0) if move < 100 else (0.3, 1.0)
    records = [dpjax.DiscreteLaplace(a, move) for a in units]
    cases = []
    for r in records:
        top = r.epsilon_per_unit * move
        xs = [f * top for f in (-1.1, -1.0, -0.9999, -0.6, -0.2, 1e-13, 0.1, 0.5, 0.97, 1 - 1e-12, 1.0, 1.2)]
        cases.append((r, xs + at_atoms(r.epsilon_per_unit * (1 if move % 2 else 2), move, top)))
    lawtools.assert_law(cases, oracle_of)
    lawtools.assert_fits(cases)


@pytest.mark.parametrize("make", [dpjax.DiscreteGaussian, dpjax.DiscreteLaplace])
def test_replace_one_moves_twice_as_far(make):
    one = lawtools.whole(make(0.7, 3), jnp.linspace(-5, 5, 41), direction=Adjacency.REPLACE_ONE)
    other = lawtools.whole(make(0.7, 6), jnp.linspace(-5, 5, 41), direction=Adjacency.ADD)
    np.testing.assert_array_equal(np.asarray(one), np.asarray(other))


@pytest.mark.slow  # the compiler takes minutes over the second derivatives
@pytest.mark.parametrize("move", [1, 2])
def test_derivatives(move):
    between = lambda spacing, far: [
        (np.round(f * far / spacing) + 0.37) * spacing for f in (-0.8, -0.2, 0.01, 0.3, 0.9)
    ]
    records = [dpjax.DiscreteGaussian(s, move) for s in (0.3, 1.0, 6.9, 7.1)]
    cases = [(r, between(move / r.sigma**2 / 2, 20 * move / r.sigma + move**2 / r.sigma**2 / 2)) for r in records]
    lawtools.assert_derivatives(cases, differentiable)
    records = [dpjax.DiscreteLaplace(a, move) for a in (0.3, 1.0, 5.0)]
    cases = [(r, [f * r.epsilon_per_unit * move for f in (-1.3, -0.9, 0.01, 0.8, 1.4)]) for r in records]
    lawtools.assert_derivatives(cases, oracle_of)


@pytest.mark.parametrize("move", [1, 2, 3, 8])
def test_losses_are_multiples_of_the_spacing(move):
    sigma, unit = 1.7, 0.3
    law = loss_law(dpjax.DiscreteGaussian(sigma, move), Adjacency.ADD)
    losses = [move * (2 * k - move) / (2 * sigma**2) for k in range(-9, 10)]
    ratio = np.array(losses) / float(law.spacing())
    np.testing.assert_allclose(ratio, np.round(ratio), atol=1e-12)
    assert np.gcd.reduce(np.round(ratio).astype(int)) == 1
    law = loss_law(dpjax.DiscreteLaplace(unit, move), Adjacency.ADD)
    ratio = np.array([(2 * k - move) * unit for k in range(move + 1)]) / float(law.spacing())
    np.testing.assert_allclose(ratio, np.round(ratio), atol=1e-12)
    assert np.gcd.reduce(np.round(ratio).astype(int)) == 1
    assert law.support() == (-move * unit, move * unit)


@pytest.mark.parametrize(
    ("kind", "parameter"), [("gaussian", "0.4"), ("gaussian", "1.3"), ("laplace", "0.4"), ("laplace", "1.5")]
)
def test_no_smaller_move_is_worse(kind, parameter):
    """For all orders, negative epsilon too."""
    pairs = [(Sums if kind == "gaussian" else laplace)(mp.mpf(parameter), move) for move in range(1, 7)]
    for x in np.linspace(-3, 3, 25):
        deltas = [pair.profile(mp.mpf(x)) for pair in pairs]
        for smaller, larger in zip(deltas, deltas[1:], strict=False):
            assert smaller <= larger + mp.mpf(10) ** -25


def test_where_the_sums_change_their_form_they_agree():
    """sigma = 7 and the slope of the terms: the value on one side is the limit of the other's."""
    xs = [-0.3, 0.0123, 0.2, 0.29, 0.31]
    below = dpjax.DiscreteGaussian(float(np.nextafter(7.0, 0)))
    one, other = (lawtools.values([(r, xs)])[0] for r in (below, dpjax.DiscreteGaussian(7.0)))
    np.testing.assert_allclose(one, other, rtol=3e-14)


def test_no_loss_per_unit_is_no_loss():
    x = [-0.3, -1e-9, 0.0, 1e-9, 0.3]
    for move in (1, 2):
        got = lawtools.values([(dpjax.DiscreteLaplace(0.0, move), x)])[0]
        np.testing.assert_array_equal(got[:, 0], got[:, 1])
        np.testing.assert_allclose(got[:, 4], -np.expm1(np.minimum(x, 0.0)), rtol=1e-14)
        np.testing.assert_allclose(got[:, 5], got[::-1, 4], rtol=1e-14)


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: dpjax.DiscreteGaussian(-1.0), ValueError, "sigma = -1.0"),
        (lambda: dpjax.DiscreteGaussian(1.0, 0), ValueError, "sensitivity = 0, but it must be a whole number >= 1"),
        (lambda: dpjax.DiscreteLaplace(1.0, 1.5), TypeError, "sensitivity must be an int; got 1.5"),
        (lambda: dpjax.DiscreteLaplace(float("inf")), ValueError, "epsilon_per_unit = inf"),
        (lambda: dpjax.DiscreteLaplace([1.0, -2.0]), ValueError, r"epsilon_per_unit\[1\] = -2.0"),
    ],
)
def test_bad_numbers_are_named(make, error, text):
    with pytest.raises(error, match=text):
        make()
