"""Laws from profiles against envelopes in 80 digits: never below, above by roundings, whatever the points."""

import functools
import itertools

import jax
import mpmath as mp
import numpy as np
import pytest

from dpjax.laws import reverse
from dpjax.laws.claims import approximate_law, two_point_law
from dpjax.laws.finite import FiniteLaw
from dpjax.laws.from_profile import connect_the_dots, implied_by_points, maximum
from dpjax.laws.gaussian import GaussianLaw
from dpjax.laws.sampled import MixedLaw

ULP = np.finfo(float).eps


@pytest.fixture(autouse=True)
def double():
    with jax.enable_x64(True), mp.workdps(80):
        yield


def envelope(points):
    """The lower convex envelope of (0, 1), the points (alpha, delta) and the flat line beyond: its vertices."""
    floor = lambda a: max(1 - a, mp.mpf(0))
    points = sorted({(a, max(d, floor(a))) for a, d in points} | {(mp.mpf(0), mp.mpf(1))})
    chain = []
    for a, d in points:
        if chain and chain[-1][0] == a:
            continue
        while len(chain) > 1 and (chain[-1][1] - chain[-2][1]) * (a - chain[-2][0]) >= (d - chain[-2][1]) * (
            chain[-1][0] - chain[-2][0]
        ):
            chain.pop()
        chain.append((a, d))
    least = min(d for _, d in chain)
    return chain[: [d for _, d in chain].index(least) + 1]


def at(chain, alpha):
    for (a, d), (b, e) in itertools.pairwise(chain):
        if alpha <= b:
            return d + (e - d) * (alpha - a) / (b - a)
    return chain[-1][1]


def both_ways(points):
    return points + [(1 / a, 1 - 1 / a + d / a) for a, d in points]


CASES = {
    "one": ([1.0], [1e-3]),
    "nothing": ([0.3], [1.0]),
    "unordered": ([3.0, -1.0, 0.5, 0.0], [1e-9, 0.8, 0.1, 0.3]),
    "not convex": ([0.0, 0.5, 1.0, 1.5, 2.0, 3.0], [0.5, 0.1, 0.4, 0.09, 0.01, 0.02]),
    "deep": ([1.0, 5.0, 40.0, 200.0, 600.0], [1e-3, 1e-20, 1e-100, 1e-200, 1e-290]),
    "twice": ([1.0, 1.0, 2.0, 2.0], [0.1, 0.05, 0.01, 0.02]),
    "below every profile": ([-2.0, -0.5, 1.0], [0.5, 0.1, 0.0]),
    "near 0": ([-4e-16, 4e-16, 1.0], [0.38, 0.38, 0.1]),
    "close": (np.sort(np.r_[1.0 + 1e-12 * np.arange(8), 2.0]), np.r_[0.2 - 1e-14 * np.arange(8), 0.01]),
    "far": ([-750.0, 750.0, 1e5], [1.0, 1e-3, 1e-4]),
}


@functools.partial(jax.jit, static_argnames="symmetric")
def profiles(epsilons, deltas, x, symmetric):
    law = implied_by_points(epsilons, deltas, symmetric)
    return law, law.profile(x), law.profile_below(x), law.tails(x)


@jax.jit
def values(law, x):
    return law.profile(x), law.profile_below(x)


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("name", CASES)
def test_points(name, symmetric):
    given, x = CASES[name], np.r_[np.linspace(-6, 6, 61), -30.0, 20.0, 45.0, 300.0]
    # padded to one length with points that say nothing, so that a program is compiled once
    epsilons, deltas = (
        np.r_[np.asarray(a, float), np.full(10 - len(a), pad)] for a, pad in zip(given, (0.7, 1.0), strict=True)
    )
    law, above, below, tails = jax.tree.map(np.asarray, profiles(epsilons, deltas, x, symmetric))
    points = [(mp.exp(mp.mpf(float(e))), mp.mpf(float(d))) for e, d in zip(*given, strict=True)]
    points = [(a, max(d, 1 - a)) for a, d in points]
    chain = envelope(both_ways(points) if symmetric else points)
    room = (8 * (len(epsilons) * 2 + 4)) * ULP
    loose = 0.8 if name == "near 0" else 0.0  # two points an ulp apart: their slope has no digits, but stays above
    for y, h, r in zip(x, above, below, strict=True):
        alpha = mp.exp(mp.mpf(float(y)))
        exact = at(chain, alpha)
        other = (exact - 1 + alpha) / alpha
        assert h >= exact * (1 - 4 * ULP) and r >= other * (1 - 4 * ULP) - 1e-70, (name, y)  # 80 digits
        assert h <= exact * (1 + room + loose) + 1e-300, (name, y)
        if name not in ("below every profile", "near 0"):  # 1 - e^epsilon and delta are floats: below has their ulps
            assert r <= other * (1 + room) + room * float(min(1, 1 / alpha)) * (not symmetric or y < 0), (name, y)
    assert all(np.all(m >= 0) for m in (law.p, law.q, *tails)) and 0 <= law.p_top <= 1 and 0 <= law.q_bottom <= 1
    assert law.p.sum() + law.p_top >= 1 - 4 * ULP and law.q.sum() + law.q_bottom >= 1 - 4 * ULP
    assert np.all(np.diff(law.loss) >= 0) and np.all(np.isfinite(law.loss))


def test_random_points_dominate_what_they_came_from():
    """Points on the profile of random pairs give a profile that is never below theirs, and theirs at all their kinks."""
    rng = np.random.default_rng(1)
    x = np.linspace(-4, 9, 200)
    for _ in range(20):
        p, q = rng.dirichlet(np.full(6, 0.3)), rng.dirichlet(np.full(6, 0.3))
        p, q = np.maximum(p, 1e-12), np.maximum(q, 1e-12)
        p, q = p / p.sum(), q / q.sum()
        true = lambda e, p=p, q=q: np.sum(np.maximum(p - np.exp(e)[:, None] * q, 0), 1)
        kinks = np.log(p / q)
        some = np.r_[rng.permutation(kinks)[:4], rng.normal(size=6)]
        _, above, _, _ = profiles(some, true(some) * (1 + 8 * ULP) + 1e-18, x, False)
        assert np.all(above >= true(x) * (1 - 8 * ULP))
        law, above, _, _ = profiles(np.r_[kinks, np.zeros(4) + 0.1], np.r_[true(kinks), np.ones(4)], x, False)
        np.testing.assert_allclose(above, true(x), rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize(
    "make", [lambda: approximate_law(1.0), lambda: approximate_law(0.3, 1e-6), lambda: two_point_law(1.5, 1.0)]
)
def test_an_exact_profile_sampled_gives_it_back(make):
    law = make()
    epsilons = np.r_[np.asarray(law.loss), 0.1, 0.7, -0.2, 4.0, 0.0, -3.0, 0.2, 0.3]
    back, above, below, tails = profiles(epsilons, law.profile(epsilons), (x := np.linspace(-2, 2, 65) + 1e-3), False)
    # not to be seen: masses that rounding leaves where the points are in line
    np.testing.assert_allclose(above, law.profile(x), rtol=1e-13, atol=1e-16)
    np.testing.assert_allclose(below, law.profile_below(x), rtol=1e-13, atol=1e-15)
    for got, wanted in zip(tails, law.tails(x), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-12, atol=1e-14)
    assert back.p_top == pytest.approx(float(law.p_top), rel=1e-12)


def test_dots_on_a_gaussian_lose_what_chords_lose():
    """Both ends of the profile keep their digits: 1e-290 above, 1e-80 below."""
    base, x = GaussianLaw(1.0), np.linspace(-18, 36, 600)
    law = jax.jit(connect_the_dots)(x, *values(base, x))
    between = 0.5 * (x[1:] + x[:-1])
    for got, exact in zip(values(law, x), values(base, x), strict=True):
        np.testing.assert_allclose(got, exact, rtol=1e-12)
    for got, exact in zip(values(law, between), values(base, between), strict=True):
        excess = np.asarray(got / exact) - 1
        assert excess.min() > 0 and excess[np.abs(between) < 5].max() < 0.05


def test_maximum_of_two_neighbour_pairs_that_each_win_on_a_part():
    """The law dominates each pair, and in composition every way to alternate between them, by enumeration."""
    first, second = approximate_law(0.2, 0.05), approximate_law(1.0)
    assert first.profile(0.1) < second.profile(0.1) and first.profile(0.99) > second.profile(0.99)
    top = jax.jit(maximum)(first, second)
    x = np.linspace(-3, 3, 301)
    highest = np.maximum(first.profile(x), second.profile(x))
    assert np.all(top.profile(x) >= highest) and np.max(np.asarray(top.profile(x)) - highest) < 2e-3
    assert np.all(top.profile_below(x) >= np.maximum(first.profile_below(x), second.profile_below(x)))

    def composed(one, other, e):
        """E over one's losses of the other's profile at what is left: composition."""
        inner = np.asarray(other.profile(e - np.asarray(one.loss)))
        return float(one.p_top) + float(np.sum(np.asarray(one.p) * inner))

    for e in (-0.5, 0.0, 0.7, 1.3):
        ways = [composed(a, b, e) for a in (first, second) for b in (first, second)]
        # the second pair chosen after the outcome of the first
        best = lambda y: np.maximum(first.profile(y), second.profile(y))
        ways += [
            float(a.p_top) + float(np.sum(np.asarray(a.p) * best(e - np.asarray(a.loss)))) for a in (first, second)
        ]
        assert composed(top, top, e) >= max(ways)
    assert max(ways) > max(composed(first, first, e), composed(second, second, e))


@pytest.mark.slow
def test_maximum_of_add_and_remove():
    remove = MixedLaw(0.1, GaussianLaw(1.0))
    add = reverse(remove)
    top = jax.jit(functools.partial(maximum, size=1024))(remove, add)
    x = np.random.default_rng(2).uniform(-4, 9, 400)
    for got, one, other in zip(values(top, x), values(remove, x), values(add, x), strict=True):
        exact = np.maximum(one, other)
        assert np.all(np.asarray(got) >= exact)
        seen = exact > 1e-20
        assert np.max((got / np.where(seen, exact, 1.0) - 1)[seen]) < 0.02


def test_transformations():
    epsilons, deltas = np.array([0.1, 0.7, 1.5, 3.0]), np.array([0.4, 0.15, 0.02, 1e-4])
    value = jax.jit(lambda e, d, x: implied_by_points(e, d).profile(x))
    for x in (0.3, 1.0, 2.0, -0.8):
        slopes = jax.grad(lambda e, d, x=x: value(e, d, x), argnums=(0, 1))(epsilons, deltas)
        for which, slope in enumerate(slopes):
            for i in range(4):
                step = 1e-6 * np.eye(4)[i] * (deltas if which else 1.0)
                moved = [
                    value(*(a + s * step * (j == which) for j, a in enumerate((epsilons, deltas))), x) for s in (1, -1)
                ]
                assert slope[i] == pytest.approx(float(moved[0] - moved[1]) / (2 * step[i]), rel=1e-4, abs=2e-6)
    many = jax.vmap(value, (None, 0, None))(epsilons, np.stack([deltas, deltas / 2]), 1.0)
    np.testing.assert_allclose(many, [value(epsilons, deltas, 1.0), value(epsilons, deltas / 2, 1.0)], rtol=1e-14)
    assert isinstance(implied_by_points(epsilons, deltas), FiniteLaw)
