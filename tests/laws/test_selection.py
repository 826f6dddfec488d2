"""Permute-and-flip and report-noisy-max: their dominating pair attacked by enumeration, and where it is tight."""

import itertools

import numpy as np
import pytest

import dpjax
from dpjax import Adjacency
from dpjax.laws import loss_law

ALPHAS = np.exp(np.linspace(-3, 3, 121))


def permute_and_flip(scores):
    """Exact probabilities of the winners: sum over the sets of others that would have been accepted before."""
    accept = np.exp(scores - scores.max())
    n = len(scores)
    out = np.zeros(n)
    for i in range(n):
        others = [j for j in range(n) if j != i]
        for size in range(n):
            for before in itertools.combinations(others, size):
                # P(i first among itself and `before`), inclusion-exclusion over who would accept
                out[i] += accept[i] * (-1) ** size * np.prod(accept[list(before)]) / (size + 1)
    return out


def by_flips(scores):
    """The same from the definition: random order, the first coin that comes up wins."""
    accept = np.exp(scores - scores.max())
    out = np.zeros(len(scores))
    orders = list(itertools.permutations(range(len(scores))))
    for order in orders:
        left = 1.0
        for i in order:
            out[i] += left * accept[i] / len(orders)
            left *= 1 - accept[i]
    return out


def noisy_max(scores, kind):
    """Probabilities of the winners, by Gauss-Legendre between the scores, where the densities have their kinks."""
    density = {
        "laplace": lambda y: 0.5 * np.exp(-np.abs(y)),
        "exponential": lambda y: np.where(y > 0, np.exp(-y), 0.0),
    }[kind]
    below = {
        "laplace": lambda y: np.where(y < 0, 0.5 * np.exp(np.minimum(y, 0)), 1 - 0.5 * np.exp(-np.maximum(y, 0))),
        "exponential": lambda y: np.where(y > 0, -np.expm1(-np.maximum(y, 0)), 0.0),
    }[kind]
    nodes, weights = np.polynomial.legendre.leggauss(60)
    edges = np.unique(np.concatenate([[scores.min() - 40], scores, scores.max() + np.array([5.0, 15.0, 40.0])]))
    out = np.zeros(len(scores))
    for low, high in itertools.pairwise(edges):
        y = (low + high) / 2 + (high - low) / 2 * nodes
        for i in range(len(scores)):
            others = np.prod([below(y - s) for j, s in enumerate(scores) if j != i], axis=0)
            out[i] += (high - low) / 2 * np.sum(weights * density(y - scores[i]) * others)
    return out


def hockey_stick(p, q):
    return np.maximum(p[None] - ALPHAS[:, None] * q[None], 0).sum(1)


def laplace_pair(mu):
    x = np.log(ALPHAS)
    return np.where(x < -mu, 1 - ALPHAS, -np.expm1(np.minimum(x - mu, 0) / 2))


def randomised_response(epsilon):
    top = 1 / (1 + np.exp(-epsilon))
    return np.maximum(top - ALPHAS * (1 - top), 0) + np.maximum(1 - top - ALPHAS * top, 0)


def neighbours(rng, n, epsilon):
    """Scores in units of the noise's scale; each moves by up to epsilon / 2, often by all of it."""
    scores = rng.normal(size=n) * rng.choice([0.0, 0.3, 2.0])
    moves = rng.choice([-1.0, 1.0], n) if rng.random() < 0.7 else rng.uniform(-1, 1, n)
    return scores, scores + 0.5 * epsilon * moves


def test_the_oracles_agree():
    scores = np.array([0.3, -1.0, 0.0, 0.9])
    np.testing.assert_allclose(permute_and_flip(scores), by_flips(scores), rtol=1e-13)
    np.testing.assert_allclose(permute_and_flip(scores), noisy_max(scores, "exponential"), rtol=1e-12)
    assert noisy_max(scores, "laplace").sum() == pytest.approx(1.0, rel=1e-12)


@pytest.mark.parametrize("kind", ["permute_and_flip", "laplace"])
@pytest.mark.parametrize("epsilon", [0.2, 1.0, 3.0])
def test_the_laplace_pair_dominates(kind, epsilon):
    winners = permute_and_flip if kind == "permute_and_flip" else lambda s: noisy_max(s, "laplace")
    rng = np.random.default_rng(7)
    worst = 0.0
    for trial in range(120):
        one, other = neighbours(rng, 2 + trial % 5, epsilon)
        delta = hockey_stick(winners(one), winners(other))
        assert (delta <= laplace_pair(epsilon) + 1e-12).all()
        worst = max(worst, (delta / np.maximum(laplace_pair(epsilon), 1e-9)).max())
    assert worst > 0.8  # the attack comes close


@pytest.mark.parametrize("epsilon", [0.2, 1.0, 3.0])
def test_two_candidates_attain_it(epsilon):
    best = np.zeros_like(ALPHAS)
    for gap in np.linspace(-8, 8, 1601):
        one = permute_and_flip(np.array([0.0, gap]))
        other = permute_and_flip(np.array([0.0, gap + epsilon]))
        best = np.maximum(best, hockey_stick(one, other))
    np.testing.assert_allclose(best, laplace_pair(epsilon), atol=1e-4 * (1 - np.exp(-epsilon)))
    assert (laplace_pair(epsilon) <= randomised_response(epsilon) + 1e-15).all()
    assert (laplace_pair(epsilon) < 0.97 * randomised_response(epsilon)).any()


def test_permute_and_flip_is_not_bounded_range():
    """Two equal scores, of which one falls behind: the losses of the two winners are further apart than epsilon."""
    epsilon = 1.0
    loss = np.log(permute_and_flip(np.zeros(2)) / permute_and_flip(np.array([0.0, -epsilon])))
    assert np.ptp(loss) == pytest.approx(epsilon + np.log(2 - np.exp(-epsilon)), rel=1e-12) and np.ptp(loss) > 1.4
    # nor is its profile below the bounded-range one, (1 - exp((x - epsilon) / 2))^2 / (1 - exp(-epsilon))
    bounded = (1 - np.exp(-epsilon / 2)) ** 2 / (1 - np.exp(-epsilon))
    one, other = permute_and_flip(np.array([0.0, -epsilon / 2])), permute_and_flip(np.array([0.0, epsilon / 2]))
    assert 0.5 * np.abs(one - other).sum() > 1.5 * bounded


def test_gaussian_noise_has_no_pair_free_of_the_number_of_candidates():
    """What half of all candidates gain is seen ever more clearly: the total variation grows with their number."""
    nodes = np.linspace(-12, 12, 24001)
    from scipy.special import log_ndtr

    def share(n, move):
        """P(the winner is among the n / 2 that gained)."""
        log_density = -0.5 * nodes**2 - 0.5 * np.log(2 * np.pi)
        terms = np.log(n / 2) + log_density + (n / 2 - 1) * log_ndtr(nodes) + n / 2 * log_ndtr(nodes + move)
        return np.exp(terms).sum() * (nodes[1] - nodes[0])

    tv = [share(n, 1.0) - share(n, -1.0) for n in (2, 100, 10**6, 10**12)]
    assert np.all(np.diff(tv) > 0.005) and tv[-1] > 0.99


def test_builders():
    x = np.log(ALPHAS)
    for record, direction, mu in (
        (dpjax.PermuteAndFlip(0.7), Adjacency.REMOVE, 0.7),
        (dpjax.PermuteAndFlip(0.7), Adjacency.REPLACE_ONE, 0.7),
        (dpjax.ReportNoisyMax(dpjax.Laplace(4.0)), Adjacency.ADD, 0.5),
        (dpjax.ReportNoisyMax(dpjax.Laplace(4.0)), Adjacency.REPLACE_ONE, 1.0),
    ):
        np.testing.assert_allclose(
            np.asarray(loss_law(record, direction).profile(x)), laplace_pair(mu), rtol=1e-5, atol=1e-7
        )


def test_other_noise_is_refused_by_name():
    with pytest.raises(NotImplementedError, match=r"no analysis for the noise Gaussian\(1\)"):
        dpjax.ReportNoisyMax(dpjax.Gaussian(1.0))
    with pytest.raises(TypeError, match="noise must be a dpjax mechanism"):
        dpjax.ReportNoisyMax(2.0)
    with pytest.raises(ValueError, match="epsilon = -1.0"):
        dpjax.PermuteAndFlip(-1.0)
