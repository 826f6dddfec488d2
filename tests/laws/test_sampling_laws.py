"""Sampled laws against mpmath: tails and profiles everywhere, limits, derivatives."""

import json
import random
from pathlib import Path

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest

from dpjax.laws import Law, reverse
from dpjax.laws.allocation import Shifted, gaussian_add
from dpjax.laws.blend import Blend
from dpjax.laws.finite import FiniteLaw
from dpjax.laws.gaussian import GaussianLaw
from dpjax.laws.replaced import (
    FixedSizeReplaceLaw,
    PoissonReplaceGaussian,
    PoissonReplaceLaplace,
    fixed_size_replace,
)
from dpjax.laws.sampled import MixedLaw, poisson_add
from dpjax.laws.zeroed import ZeroedGaussian

ORACLES = Path(__file__).parents[1] / "oracles"
U = mp.mpf(2) ** -53
FIELDS = ("p_above", "q_above", "p_below", "q_below", "profile", "profile_below")


@pytest.fixture(autouse=True)
def double():
    with jax.enable_x64(True), mp.workdps(400):
        yield


# ---- the exact laws: (p_above, q_above, p_below, q_below) at x, for floats taken as they are


def ndtr(x):
    return mp.erfc(-x / mp.sqrt(2)) / 2


def gaussian_tails(mu, x):
    return ndtr(mu / 2 - x / mu), ndtr(-mu / 2 - x / mu), ndtr(x / mu - mu / 2), ndtr(x / mu + mu / 2)


def mixed_tails(rate, mu, x):
    inner = mp.expm1(x) / rate + 1
    if inner <= 0:
        return mp.mpf(1), mp.mpf(1), mp.mpf(0), mp.mpf(0)
    t = gaussian_tails(mu, mp.log(inner))
    return (1 - rate) * t[1] + rate * t[0], t[1], (1 - rate) * t[3] + rate * t[2], t[3]


def reversed_tails(tails):
    def of(*parameters):
        *head, x = parameters
        p_above, q_above, p_below, q_below = tails(*head, -x)
        return q_below, p_below, q_above, p_above

    return of


def replace_gaussian_tails(rate, mu, x):
    """The loss crosses x where c y^2 + (1 - rate)(1 - e^x) y - c e^x = 0, y = exp(mu u), c = rate exp(-mu^2 / 2)."""
    e, c = mp.exp(x), rate * mp.exp(-mu * mu / 2)
    b = (1 - rate) * (1 - e)
    u = mp.log((mp.sqrt(b * b + 4 * c * c * e) - b) / (2 * c)) / mu
    mix = lambda shift, sign: (1 - rate) * ndtr(sign * u) + rate * ndtr(sign * (u - shift))
    return mix(mu, -1), mix(-mu, -1), mix(mu, 1), mix(-mu, 1)


def replace_laplace_tails(rate, mu, x):
    if x < 0:
        return reversed_tails(replace_laplace_tails)(rate, mu, x)
    low = 1 - rate + rate * mp.exp(-mu)
    square = (mp.exp(x) * low - 1 + rate) / rate  # exp(2 u - mu)
    u = (mu + mp.log(square)) / 2
    zero, one = mp.mpf(0), mp.mpf(1)
    if u >= mu:
        return zero, zero, one, one
    below = lambda v: mp.exp(v) / 2 if v < 0 else 1 - mp.exp(-v) / 2
    mix = lambda shift, sign: (1 - rate) * below(sign * u) + rate * below(sign * (u - shift))
    return mix(mu, -1), mix(-mu, -1), mix(mu, 1), mix(-mu, 1)


def fixed_size_tails(rate, mu, x):
    if x < 0:
        return reversed_tails(fixed_size_tails)(rate, mu, x)
    p_above, q_above, *_ = mixed_tails(rate, mu, x)
    return p_above, q_above, 1 - p_above, 1 - q_above


def shifted_tails(shift, mu, x):
    p_above, q_above, p_below, q_below = gaussian_tails(mu, x - shift)
    return p_above, mp.exp(-shift) * q_above, p_below, mp.exp(-shift) * q_below


def exact(tails, parameters, x, q_infinite=0):
    p_above, q_above, p_below, q_below = tails(*parameters, x)
    return (
        *(p_above, q_above, p_below, q_below),
        p_above - mp.exp(x) * q_above,
        q_infinite + q_below - mp.exp(-x) * p_below,
    )


def zeroed_gaussian_tails(rate, mu, x):
    """Above 0 the loss crosses x where c e^(-3 mu^2 / 2) y^2 - c e^x y - (1 - rate)(e^x - 1) = 0, c = rate e^(-mu^2 / 2)."""
    if x < 0:
        return reversed_tails(mixed_tails)(rate, mu, x)
    c, e = rate * mp.exp(-mu * mu / 2), mp.exp(x)
    a = c * mp.exp(-3 * mu * mu / 2)
    u = mp.log((c * e + mp.sqrt(c * c * e * e + 4 * a * (1 - rate) * (e - 1))) / (2 * a)) / mu
    mix = lambda shift, sign: (1 - rate) * ndtr(sign * u) + rate * ndtr(sign * (u - shift))
    return mix(2 * mu, -1), mix(mu, -1), mix(2 * mu, 1), mix(mu, 1)


LAWS = {
    "remove": (lambda r, mu: MixedLaw(r, GaussianLaw(mu)), mixed_tails),
    "add": (lambda r, mu: poisson_add(r, GaussianLaw(mu)), reversed_tails(mixed_tails)),
    "replace_gaussian": (PoissonReplaceGaussian, replace_gaussian_tails),
    "replace_laplace": (PoissonReplaceLaplace, replace_laplace_tails),
    "fixed_size_replace": (lambda r, mu: FixedSizeReplaceLaw(r, GaussianLaw(mu)), fixed_size_tails),
    "zeroed_gaussian": (ZeroedGaussian, zeroed_gaussian_tails),
    "shifted": (lambda s, mu: Shifted(s, GaussianLaw(mu)), shifted_tails),
}


def computed(name):
    def of(rate, mu, x):
        law = LAWS[name][0](rate, mu)
        return jnp.stack([*law.tails(x), law.profile(x), law.profile_below(x)])

    return of


def cases(name, count):
    rng = random.Random(name)
    for _ in range(count):
        rate = rng.choice(
            [10 ** rng.uniform(-12, 0), 1 - 10 ** rng.uniform(-15, -0.3), 1.0, 0.5, 10 ** rng.uniform(-3, 0)]
        )
        mu = 10 ** rng.uniform(-2, 1)
        edge = float(mp.log1p(-mp.mpf(rate))) if rate < 1 else -30.0
        top = float(mp.log1p(rate * mp.expm1(mp.mpf(mu))))
        x = rng.choice(
            [
                edge * (1 - 10 ** rng.uniform(-14, 0)),
                top * (1 - 10 ** rng.uniform(-10, 0)),
                10 ** rng.uniform(-8, 2) * rng.choice([-1, 1]),
                0.0,
                rng.uniform(-3, 3),
                rate * rng.uniform(-1, 5),
                rng.uniform(0, 40) * mu,
            ]
        )
        yield rate, mu, rng.choice([-1, 1]) * x


def excess(got, want, lower, upper):
    """How many roundings, in units of 1 + |log value|, a value lies outside what moving x by 16 ulp explains."""
    got = mp.mpf(got)
    low, high = min(want, lower, upper), max(want, lower, upper)
    if got < mp.mpf("1e-290") and low < mp.mpf("1e-290"):
        return 0.0
    unit = lambda v: U * v * (1 + abs(mp.log(v)))
    if got > high:
        return float((got - high) / unit(high)) if high > 0 else np.inf
    return float((low - got) / unit(low)) if got < low else 0.0


@pytest.mark.parametrize("name", [n if n == "remove" else pytest.param(n, marks=pytest.mark.slow) for n in LAWS])
def test_tails_and_profiles(name):
    compiled = jax.jit(computed(name))
    worst = {}
    for parameters in cases(name, 150):
        *head, x = parameters
        got = np.asarray(compiled(*parameters))
        given, move = [mp.mpf(v) for v in head], 16 * U * abs(mp.mpf(x))
        q_infinite = -mp.expm1(-given[0]) if name == "shifted" else 0
        rows = [exact(LAWS[name][1], given, mp.mpf(x) + m, q_infinite) for m in (0, -move, move)]
        for field, value, *ends in zip(FIELDS, got, *rows, strict=True):
            error = excess(value, *ends)
            if error > worst.get(field, (-1.0,))[0]:
                worst[field] = error, parameters
    assert all(w[0] <= Law.ULPS for w in worst.values()), worst


QUICK = ("remove", "replace_laplace")  # the others take their time to compile


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in LAWS])
def test_derivatives_are_finite_and_right(name):
    """First derivatives against difference quotients of the exact law; second ones finite, at limits too."""
    first = jax.jit(jax.jacfwd(computed(name), (0, 1, 2)))
    along = lambda of: lambda *p: jax.jvp(of, p, (1.0, 1.0, 1.0))[1]
    second = jax.jit(along(along(computed(name))))  # not a number if any second derivative is not
    edge = [(r, 1.0, x) for r in (0.0, 1.0) for x in (-1000.0, -40.0, -0.5, 0.0, 0.5, 40.0, 1000.0)]
    for parameters in [*edge, *list(cases(name, 25))]:
        leaves = jax.tree.leaves((first(*parameters), second(*parameters)))
        assert all(np.isfinite(leaf).all() for leaf in leaves), parameters
    h = mp.mpf(10) ** -20
    for parameters in [(0.01, 0.7, 0.3), (0.3, 0.5, 0.02), (0.9, 1.5, 1.1), (0.2, 0.9, -0.01)]:
        got = np.stack(first(*parameters), -1)
        for i in range(3):
            ends = []
            for sign in (-1, 1):
                moved = [mp.mpf(p) for p in parameters]
                moved[i] += sign * h
                q_infinite = -mp.expm1(-moved[0]) if name == "shifted" else 0
                ends.append(exact(LAWS[name][1], moved[:2], moved[2], q_infinite))
            want = np.array([float((b - a) / (2 * h)) for a, b in zip(*ends, strict=True)])
            np.testing.assert_allclose(got[:, i], want, rtol=1e-9, atol=1e-15, err_msg=str((parameters, i)))


@pytest.mark.parametrize("name", [n for n in LAWS if n != "shifted"])
def test_limits_of_the_rate(name):
    x = jnp.array([-800.0, -40.0, -1.0, -1e-9, 0.0, 1e-9, 1.0, 40.0])
    values = jax.jit(lambda rate: jax.vmap(lambda x: computed(name)(rate, 0.7, x))(x).T)
    none = np.asarray(values(0.0))
    below = np.asarray(x) < 0
    distance = -np.expm1(-np.abs(x))
    expected = [below, below, ~below, ~below, np.where(below, distance, 0), np.where(below, 0, distance)]
    expected = np.stack(expected).astype(float)
    either = np.asarray(x) == 0  # an atom may be above or below
    np.testing.assert_allclose(none[:, ~either], expected[:, ~either], rtol=1e-15, atol=0)
    np.testing.assert_allclose(none[4:], expected[4:], rtol=1e-15, atol=0)
    plain = values(1.0)
    mu = 0.7 * (2 if "replace_" in name else 1)
    if name == "replace_laplace":
        inside = np.abs(np.asarray(x)) < mu
        np.testing.assert_allclose(plain[4][inside], -np.expm1((np.asarray(x)[inside] - mu) / 2), rtol=1e-14)
    else:
        law = GaussianLaw(mu)
        want = np.stack([*law.tails(x), law.profile(x), law.profile_below(x)])
        np.testing.assert_allclose(plain, want, rtol=1e-12, atol=0)


def two_ends():
    """Masses of 1 in all under P and Q, at infinity on both sides."""
    losses, p = jnp.array([-1.0, 0.5]), jnp.array([0.1, 0.6])
    q = p * jnp.exp(-losses)
    return FiniteLaw(losses, p, q, jnp.array(0.3), 1 - q.sum(), 0.0)


@jax.jit
def everything(law, x):
    return law.tails(x), law.profile(x), law.profile_below(x), law.support(), law.p_infinite(), law.q_infinite()


def outcomes(law):
    """(p, q) of all outcomes, those at infinity too."""
    return np.array([*law.p, law.p_top, 0.0]), np.array([*law.q, 0.0, law.q_bottom])


def stick(p, q, x):
    return np.maximum(p - np.exp(x)[..., None] * q, 0).sum(-1)


GRID = np.array([-3.0, -1.1, -0.7, -0.357, -0.2, -1e-3, 1e-3, 0.2, 0.37, 0.7, 1.1, 2.0, 5.0])  # between the atoms


RATES = [0.0, 1e-6, 0.3, 0.9, 1.0]


def test_mass_at_infinity_on_both_sides():
    base = two_ends()
    p, q = outcomes(base)
    for rate in RATES:
        mixture = (1 - rate) * q + rate * p
        for law, first, second in [
            (MixedLaw(rate, base), mixture, q),
            (poisson_add(rate, reverse(base)), q, mixture),
        ]:
            t, profile, below, (low, high), p_infinite, q_infinite = everything(law, GRID)
            np.testing.assert_allclose(profile, stick(first, second, GRID), rtol=1e-13, atol=1e-17)
            np.testing.assert_allclose(below, stick(second, first, -GRID), rtol=1e-13, atol=1e-17)
            both = (first > 0) & (second > 0)
            np.testing.assert_allclose(p_infinite, first[second == 0].sum(), rtol=1e-15)
            np.testing.assert_allclose(q_infinite, second[first == 0].sum(), rtol=1e-15)
            np.testing.assert_allclose(t.p_above + t.p_below, first[both].sum(), rtol=1e-13)
            np.testing.assert_allclose(t.q_above + t.q_below, second[both].sum(), rtol=1e-13)
            loss = np.log(first[both] / second[both])
            above = (loss > GRID[:, None] + 1e-12).astype(float)
            np.testing.assert_allclose(t.p_above, above @ first[both], rtol=1e-12, atol=1e-16)
            np.testing.assert_allclose(t.q_above, above @ second[both], rtol=1e-12, atol=1e-16)
            assert low - 1e-12 <= loss.min() and loss.max() <= high + 1e-12


@pytest.mark.parametrize("turned", [False, True])
def test_fixed_size_replace_of_a_base_that_is_not_symmetric(turned):
    """A pair with its own reverse, masses of 1, the profile of a pair that dominates both orders of neighbours."""
    base = two_ends()
    p, q = outcomes(base)
    for rate in RATES:
        law = fixed_size_replace(rate, reverse(base) if turned else base)
        t, profile, _, _, p_infinite, q_infinite = everything(law, GRID)
        mirror = everything(law, -GRID - 1e-13)[0]
        np.testing.assert_allclose(t.p_above, mirror.q_below, atol=1e-15)
        assert p_infinite == q_infinite
        for total in (t.p_above + t.p_below, t.q_above + t.q_below):
            np.testing.assert_allclose(total + p_infinite, 1.0, rtol=1e-14)
        assert all((np.diff(v) <= 1e-15).all() for v in (t.p_above, t.q_above))  # no negative mass, not at 0 either
        assert all((np.diff(v) >= -1e-15).all() for v in (t.p_below, t.q_below))
        from_tails = p_infinite + np.maximum(t.p_above - np.exp(GRID) * t.q_above, 0)
        np.testing.assert_allclose(profile, from_tails, rtol=1e-12, atol=1e-15)
        if rate > 0:
            orders = np.log1p(np.expm1(GRID[GRID >= 0]) / rate)
            either = [rate * stick(*pair, orders) for pair in ((p, q), (q, p))]
            assert any(np.allclose(profile[GRID >= 0], e, rtol=1e-13, atol=1e-17) for e in either)


def test_sigma_of_the_reference_rows_is_half_the_noise_multiplier():
    """Fixed size, replace-one: the rows' noise is relative to replace sensitivity, which is 2 norm bounds."""
    from dpjax import Adjacency, FixedSizeSampled, Gaussian
    from dpjax.laws import loss_law

    @jax.jit
    def profile(gamma, noise_multiplier, epsilon):
        record = FixedSizeSampled(1000, 1000 * gamma, Gaussian(noise_multiplier))
        return loss_law(record, Adjacency.REPLACE_ONE).profile(epsilon)

    rows = json.loads((ORACLES / "sampling.json").read_text())["subset_gaussian_replace_k1"]
    assert len(rows) == 21
    for row in rows:
        gamma, sigma, epsilon = (float(row[k]) for k in ("gamma", "sigma", "eps"))
        got, want = profile(gamma, 2 * sigma, epsilon), float(row["delta"])
        assert got == pytest.approx(want, rel=1e-12), row
        assert abs(float(profile(gamma, sigma, epsilon)) / want - 1) > 0.1  # sigma itself would be another mechanism


def test_blend_is_a_coin_that_is_seen():
    weight, base = 0.3, two_ends()
    law = Blend(weight, 1 - weight, MixedLaw(0.2, base), reverse(base))
    p, q = outcomes(base)
    first = np.concatenate([weight * (0.8 * q + 0.2 * p), 0.7 * q])
    second = np.concatenate([weight * q, 0.7 * p])
    t, profile, below, _, p_infinite, _ = everything(law, GRID)
    np.testing.assert_allclose(profile, stick(first, second, GRID), rtol=1e-13)
    np.testing.assert_allclose(below, stick(second, first, -GRID), rtol=1e-13)
    np.testing.assert_allclose(p_infinite, first[second == 0].sum())
    np.testing.assert_allclose(p_infinite + t.p_above - np.exp(GRID) * t.q_above, profile, rtol=1e-12)
    one = Blend(1.0, 0.0, FiniteLaw(base.loss, base.p, base.q, 0.3, 0.0, 0.5), law)
    assert float(one.spacing()) == 0.5 and tuple(map(float, one.support())) == (-1.0, 0.5)


def test_allocation_to_one_step_is_the_gaussian():
    want = everything(GaussianLaw(jnp.array(0.7)), GRID)[1]
    np.testing.assert_allclose(everything(gaussian_add(jnp.array(1.0), jnp.array(0.7)), GRID)[1], want, rtol=1e-15)
