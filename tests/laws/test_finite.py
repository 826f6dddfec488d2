"""Randomised response, failure and any finite pair, against their definitions."""

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


@pytest.fixture(autouse=True)
def double():
    with jax.enable_x64(True), mp.workdps(50):
        yield


class Pair:
    """A finite pair, by its outcomes."""

    def __init__(self, p, q, p_top=0, q_bottom=0):
        self.p_top = p_top + mp.fsum(a for a, b in zip(p, q, strict=True) if b == 0)
        self.q_bottom = q_bottom + mp.fsum(b for a, b in zip(p, q, strict=True) if a == 0)
        self.atoms = [(mp.log(a / b), a, b) for a, b in zip(p, q, strict=True) if a > 0 and b > 0]

    def masses(self, x):
        total = lambda i, keep: mp.fsum(atom[i] for atom in self.atoms if keep(atom[0]))
        above, below = (lambda loss: loss > x), (lambda loss: loss <= x)
        return total(1, above), total(2, above), total(1, below), total(2, below)

    def profile(self, x):
        return self.p_top + mp.fsum(-a * mp.expm1(x - loss) for loss, a, b in self.atoms if loss > x)

    def profile_below(self, x):
        return self.q_bottom + mp.fsum(-b * mp.expm1(loss - x) for loss, a, b in self.atoms if loss < x)


def oracle_of(record, direction=Adjacency.REMOVE):
    if isinstance(record, dpjax.RandomizedResponse):
        e, k = mp.exp(record.epsilon), record.num_buckets
        others = [1] * (k - 2) if k < 10 else [k - 2]
        p, q = ([a / (e + k - 1) for a in (*two, *others)] for two in ((e, 1), (1, e)))
        return Pair(p, q)
    if isinstance(record, dpjax.MassAtInfinity):
        rest = 1 - record.delta
        return Pair([rest, record.delta, 0], [rest, 0, record.delta])
    p, q = ([a / mp.fsum(side) for a in side] for side in (record.p, record.q))
    return Pair(p, q) if direction is not Adjacency.ADD else Pair(q, p)


XS = [-800.0, -30.0, -2.5, -1.0, -0.3, -1e-9, 0.0, 1e-12, 0.2, 0.7, 1.9, 29.0, 31.0, 600.0]


def distribution(seed, n, spread, zeros=()):
    weights = np.exp(spread * np.random.default_rng(seed).standard_normal(n))
    weights[list(zeros)] = 0.0
    return weights / weights.sum()


PAIRS = [
    dpjax.DiscreteLoss(p, q)
    for p, q in [
        (distribution(0, 6, 1.0), distribution(1, 6, 1.0)),
        (distribution(2, 6, 60.0), distribution(3, 6, 60.0)),
        (distribution(4, 6, 1.0, [0]), distribution(5, 6, 1.0, [2, 3])),
        (distribution(6, 6, 1.0, [5]), distribution(7, 6, 1.0, [5])),
        (distribution(8, 6, 1e-7), distribution(9, 6, 1e-7)),
        ([0.5, 0.5, 0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.25, 0.25, 0.25, 0.25]),
        ([1 - 2e-30, 2e-30, 0.0, 0.0, 0.0, 0.0], [1 - 1e-30, 1e-30, 0.0, 0.0, 0.0, 0.0]),
    ]
]


def near_losses(oracle):
    return [float(loss) * factor for loss, _, _ in oracle.atoms for factor in (1 - 1e-13, 1.0, 1 + 1e-13)]


@pytest.mark.parametrize("k", [2, 3, 1000])
def test_randomised_response(k):
    records = [dpjax.RandomizedResponse(e, k) for e in (0.0, 1e-8, 0.3, 1.0, 30.0, 700.0)]
    cases = [(r, XS + [r.epsilon, -r.epsilon]) for r in records]
    lawtools.assert_law(cases, oracle_of)
    lawtools.assert_fits(cases)
    lawtools.assert_derivatives([(r, [-800.0, -2.5, -0.31, -1e-3, 0.2, 29.0]) for r in records[2:5]], oracle_of)


def test_failure():
    cases = [(dpjax.MassAtInfinity(d), XS) for d in (0.0, 1e-20, 1e-9, 0.3, 1.0)]
    lawtools.assert_law(cases, oracle_of)
    lawtools.assert_fits(cases)
    lawtools.assert_derivatives([(dpjax.MassAtInfinity(0.3), [-2.5, 0.3])], oracle_of)


@pytest.mark.parametrize("direction", [Adjacency.REMOVE, Adjacency.ADD])
def test_any_finite_pair(direction):
    oracle = lambda r: oracle_of(r, direction)
    cases = [(r, XS + near_losses(oracle(lawtools.exact(r)))) for r in PAIRS]
    lawtools.assert_law(cases, oracle, direction)
    lawtools.assert_fits(cases, direction)
    lawtools.assert_derivatives([(r, [-2.5, -0.3, 0.0, 0.2]) for r in PAIRS[:3]], oracle, direction)


def test_losses_of_close_and_of_tiny_masses_keep_their_digits():
    q = np.array([1e-300, 3e-305, 1.0])
    p = np.array([1e-300 * (1 + 1e-10), 9e-305, 1.0])
    law = loss_law(dpjax.DiscreteLoss(p, q), Adjacency.REMOVE)
    truth = sorted(mp.log(mp.mpf(a) / mp.mpf(b)) for a, b in zip(p, q, strict=True))
    for loss, exact in zip(np.asarray(law.loss), truth, strict=True):
        assert abs(mp.mpf(float(loss)) - exact) <= 4 * lawtools.U * abs(exact) + mp.mpf(10) ** -300


def test_the_lattice_of_losses():
    for k in (2, 3):
        law = loss_law(dpjax.RandomizedResponse(0.7, k), Adjacency.REPLACE_ONE)
        assert float(law.spacing()) == 0.7
        np.testing.assert_array_equal(np.asarray(law.loss), [-0.7, 0.0, 0.7])
    assert loss_law(PAIRS[0], Adjacency.ADD).spacing() == 0.0


@pytest.mark.parametrize("direction", [Adjacency.ADD, Adjacency.REPLACE_ONE])
@pytest.mark.parametrize("record", [dpjax.RandomizedResponse(0.7, 3), dpjax.MassAtInfinity(0.1)])
def test_directions_with_one_pair(record, direction):
    one, other = (lawtools.whole(record, jnp.asarray(XS), direction=d) for d in (direction, Adjacency.REMOVE))
    np.testing.assert_array_equal(np.asarray(one), np.asarray(other))


def test_absent_people_are_covered_by_the_pair_of_two_buckets():
    """An answer from a random bucket, against an answer from one's own."""
    e, k = mp.e, 5
    own = [e, *[1] * (k - 1)]
    for weights in ([1, 1, 1, 1, 1], [0, 1, 0, 0, 0], [0, 2, 1, 1, 0]):
        mixture = [sum(w * (e if i == j else 1) for j, w in enumerate(weights)) / sum(weights) for i in range(k)]
        scale = lambda side: [mp.mpf(a) / sum(side) for a in side]
        worst = oracle_of(lawtools.exact(dpjax.RandomizedResponse(1.0, k)))
        for pair in (Pair(scale(own), scale(mixture)), Pair(scale(mixture), scale(own))):
            for x in np.linspace(-2, 2, 41):
                assert pair.profile(mp.mpf(x)) <= worst.profile(mp.mpf(x)) + mp.mpf(10) ** -40


def test_a_pair_is_not_used_where_it_says_nothing():
    with pytest.raises(NotImplementedError, match="DiscreteLoss has no analysis under REPLACE_ONE"):
        loss_law(PAIRS[0], Adjacency.REPLACE_ONE)


def test_one_order_of_replaced_neighbours_does_not_cover_the_other_nor_their_mixture():
    """Why it is refused: neighbours may be exchanged between runs, and then both orders fall short."""
    p, q = [mp.mpf("0.99"), mp.mpf("0.01")], [mp.mpf("0.5"), mp.mpf("0.5")]
    product = lambda a, b: [x * y for x in a for y in b]
    x = mp.mpf("0.7")
    same = [Pair(product(p, p), product(q, q)), Pair(product(q, q), product(p, p))]
    exchanged = Pair(product(p, q), product(q, p))
    x = max((exchanged.profile(mp.mpf(t) / 50) - max(s.profile(mp.mpf(t) / 50) for s in same), t) for t in range(200))
    assert x[0] > 0.01


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: dpjax.RandomizedResponse(-1.0), ValueError, "epsilon = -1.0"),
        (lambda: dpjax.RandomizedResponse(float("inf")), ValueError, "epsilon = inf"),
        (lambda: dpjax.RandomizedResponse(1.0, 1), ValueError, "num_buckets = 1, but it must be a whole number >= 2"),
        (lambda: dpjax.RandomizedResponse(1.0, 2.0), TypeError, "num_buckets must be an int"),
        (lambda: dpjax.MassAtInfinity(1.5), ValueError, "delta = 1.5"),
        (lambda: dpjax.DiscreteLoss([0.5, 0.4], [0.5, 0.5]), ValueError, "p sums to 0.9"),
        (lambda: dpjax.DiscreteLoss([0.5, 0.5], [0.5, 0.5 + 1e-9]), ValueError, "q sums to 1.0000000"),
        (lambda: dpjax.DiscreteLoss([0.5, 0.5], [1.5, -0.5]), ValueError, r"q\[0\] = 1.5"),
        (lambda: dpjax.DiscreteLoss([0.5, float("nan")], [0.5, 0.5]), ValueError, r"p\[1\] = nan"),
        (lambda: dpjax.DiscreteLoss([0.5, 0.5], [1.0]), ValueError, "p and q have 2 and 1 entries"),
        (lambda: dpjax.DiscreteLoss(1.0, [1.0]), ValueError, "p = 1.0, but it must be an array"),
        (lambda: dpjax.DiscreteLoss.from_log_probabilities([0.0, 0.0], [0.0, -1.0]), ValueError, "p sums to 2.0"),
        (lambda: jax.tree.map(lambda x: 2 * x, dpjax.DiscreteLoss([1.0], [1.0])).check(), ValueError, r"p = 2.0"),
    ],
)
def test_bad_numbers_are_named(make, error, text):
    with pytest.raises(error, match=text):
        make()


def test_traced_distributions_are_nan_when_bad_and_may_be_rounded():
    at = jax.jit(lambda p, q: lawtools.everything(dpjax.DiscreteLoss(p, q), jnp.asarray(0.1), Adjacency.REMOVE))
    half = jnp.asarray([0.5, 0.5])
    for bad in ([0.5, 0.4], [1.5, -0.5], [jnp.nan, 0.5]):
        assert np.isnan(at(jnp.asarray(bad), half)).all() and np.isnan(at(half, jnp.asarray(bad))).all()
    assert np.isfinite(at(jnp.asarray([0.1, 0.9], jnp.float32), half)).all()


def test_records_pass_through_tree_maps():
    record = dpjax.DiscreteLoss([0.5, 0.5], [0.25, 0.75])
    assert jax.tree.map(lambda _: None, record).p is None
    assert jax.vmap(lambda r: r.p.sum())(jax.tree.map(lambda a: jnp.stack([a, a]), record)).shape == (2,)


def test_logarithms():
    record = dpjax.DiscreteLoss.from_log_probabilities(np.log([0.5, 0.5, 1e-300]), [-np.inf, np.log(0.5), np.log(0.5)])
    np.testing.assert_allclose(record.p, [0.5, 0.5, 1e-300], rtol=1e-12)
    np.testing.assert_allclose(record.q, [0.0, 0.5, 0.5], rtol=1e-15)


ROWS = json.loads((Path(__file__).parents[1] / "oracles" / "noise.json").read_text(), parse_float=str)


def test_reference_rows():
    rows = ROWS["randomised_response"]
    records = [dpjax.RandomizedResponse(float(r["epsilon_each"])) for r in rows]
    got, _ = lawtools.values([(a, [float(r["epsilon"])]) for a, r in zip(records, rows, strict=True)])
    for row, values in zip(rows, got, strict=True):
        assert values[4] == pytest.approx(float(row["delta"]), rel=1e-13)
