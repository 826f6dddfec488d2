"""Mechanisms known by a guarantee: their laws against enumeration, 40 digits, stored rows, and pairs that meet the claim."""

import itertools
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest

import dpjax
from dpjax import Adjacency
from dpjax.laws import loss_law
from dpjax.laws.claims import BoundedRangeLaw, bounded_range_law, two_point_law
from dpjax.laws.renyi import renyi_delta, zcdp_law

ORACLES = Path(__file__).parents[1] / "oracles"
_read = lambda name: json.loads((ORACLES / f"{name}.json").read_text())
REMOVE = Adjacency.REMOVE
ULP = np.finfo(float).eps
# one number of orders, one program
ORDERS = np.r_[np.linspace(0.5, 1.0, 6), 1 + np.geomspace(0.01, 500, 34)]


@pytest.fixture(autouse=True)
def double():
    with jax.enable_x64(True), mp.workdps(40):
        yield


renyi = jax.jit(lambda orders, epsilons: loss_law(dpjax.RenyiDP(orders, epsilons), REMOVE))
zcdp = jax.jit(lambda rho, delta: loss_law(dpjax.ZCDP(rho, delta), REMOVE))


@jax.jit
def values(law, x):
    return law.profile(x), law.profile_below(x)


def divergence(p, q, order):
    """Of finite pairs without zeros."""
    if order == 1:
        return np.sum(p * np.log(p / q))
    logs = order * np.log(p) + (1 - order) * np.log(q)
    return (np.max(logs) + np.log(np.sum(np.exp(logs - np.max(logs))))) / (order - 1)


# The worst two-outcome pair, by a search in high precision: an independent form of the supremum.


def worst_test(order, rho, epsilon, reverse):
    """sup p - e^epsilon q over (p, 1 - p), (q, 1 - q) with divergence at most rho; 1e-9 below at most."""
    order, rho, alpha = mp.mpf(order), mp.mpf(rho), mp.exp(mp.mpf(epsilon))

    def far(p, q):
        p, q = (q, p) if reverse else (p, q)
        if order == 1:
            value = p * mp.log(p / q) + (1 - p) * mp.log((1 - p) / (1 - q))
        else:
            value = mp.log(p**order * q ** (1 - order) + (1 - p) ** order * (1 - q) ** (1 - order)) / (order - 1)
        return value > rho

    def gain(logit):
        q = 1 / (1 + mp.exp(-logit))
        low, high = q, mp.mpf(1) - mp.mpf(10) ** -35
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (low, middle) if far(middle, q) else (middle, high)
        return low - alpha * q

    low, high = mp.mpf(-25), mp.mpf(12)
    golden = (mp.sqrt(5) - 1) / 2
    for _ in range(45):  # gain is concave in q, so it has one peak in the logit
        a, b = high - golden * (high - low), low + golden * (high - low)
        low, high = (low, b) if gain(a) > gain(b) else (a, high)
    return gain((low + high) / 2)


WORST = [
    (0.5, 0.25, 0.3), (0.7, 0.02, 0.0), (0.9, 1.0, 1.2), (1.0, 0.3, 0.4), (1.0001, 0.1, 0.2), (1.5, 0.5, 2.0),
    (2.0, 1.0, 0.0), (4.0, 3.0, 1.0), (16.0, 0.7, 1.5), (60.0, 2.0, 0.5),
]  # fmt: skip


@pytest.mark.slow
def test_single_orders_against_a_search():
    order, rho, x = np.array(WORST).T
    got = jax.jit(renyi_delta)(order, rho, x)
    for row, found in zip(WORST, got, strict=True):
        exact = min(worst_test(*row, reverse) for reverse in (False, True))
        assert exact * (1 - 1e-12) <= float(found) <= exact * (1 + 1e-8), row


def test_pairs_that_meet_the_bounds_are_dominated():
    """The attack: the divergences of random pairs, of both directions, bound profiles that are never below theirs."""
    rng, x = np.random.default_rng(3), np.r_[np.linspace(-3, 6, 40), 15.0]
    for i in range(12):
        p, q = (rng.dirichlet(np.full(2 + i % 4, 0.6)) + 1e-7 for _ in "pq")
        p, q = p / p.sum(), q / q.sum()
        both = np.array([max(divergence(p, q, o), divergence(q, p, o)) for o in ORDERS]) * (1 + 1e-12) + 1e-15
        above, below = values(renyi(ORDERS, both), x)
        for one, other in ((p, q), (q, p)):
            exact = np.sum(np.maximum(one - np.exp(x)[:, None] * other, 0), 1)
            assert np.all(above >= exact * (1 - 1e-14))
            reverse = np.sum(np.maximum(other - np.exp(-x)[:, None] * one, 0), 1)
            assert np.all(below >= reverse * (1 - 1e-14))


def test_randomised_response_comes_back_from_its_renyi_curve():
    rows = _read("adaptive")["rdp_rr"]
    p = lambda e: np.array([e, 1.0]) / (1 + e)
    for row in rows:
        both = p(np.exp(float(row["eps"])))
        assert divergence(both, both[::-1], float(row["alpha"])) == pytest.approx(float(row["rdp"]), rel=1e-11)
    both = p(np.e)
    law = renyi(ORDERS, np.array([divergence(both, both[::-1], o) for o in ORDERS]))
    x = np.linspace(-2, 0.97, 60)
    exact = np.sum(np.maximum(both - np.exp(x)[:, None] * both[::-1], 0), 1)
    above, below = values(law, x)
    assert np.all(above >= exact) and np.max(above - exact) < 1e-3
    reverse = np.sum(np.maximum(both - np.exp(-x)[:, None] * both[::-1], 0), 1)
    assert np.all(below >= reverse) and np.max(below - reverse) < 1e-3


def test_orders_below_one_matter():
    """From alpha / 2, at the corner of the largest randomised response under it: orders >= 1 give f = 0.25678, all 0.26484."""
    epsilon = float(mp.findroot(lambda e: 4 * mp.log(mp.cosh(e / 2)) - 0.5, 1.02))
    corner = 1 / (1 + np.exp(epsilon))

    def f(orders):
        law = renyi(np.resize(orders, ORDERS.shape), np.resize(orders, ORDERS.shape) / 2)
        kinks = np.clip(law.loss, -700, 700)
        return np.max(1 - values(law, kinks)[0] - np.exp(kinks) * corner)

    assert f(ORDERS) == pytest.approx(corner, abs=2e-5) and f(ORDERS) <= corner
    assert f(ORDERS[ORDERS >= 1]) == pytest.approx(0.25678, abs=1e-5)
    assert f(ORDERS[ORDERS > 1]) < f(ORDERS[ORDERS >= 1])


@pytest.mark.slow
def test_zcdp():
    """Between what some rho-zCDP mechanism has, the Gaussian, and the conversions by single orders."""
    x = np.linspace(0.0, 8.0, 33)
    law = zcdp(0.5, 0.0)
    above, below = (np.asarray(a) for a in values(law, x))
    gaussian = np.asarray(dpjax.conversions.gdp_to_profile(1.0, x))
    assert np.all(above >= gaussian)
    assert np.all(below >= (gaussian - 1 + np.exp(x)) / np.exp(x) * (1 - 1e-14))
    for delta in (0.1, 1e-3, 1e-8):
        epsilon = float(dpjax.conversions.zcdp_to_dp(0.5, delta, method="tight"))
        assert float(values(law, epsilon)[0]) <= delta * 1.002  # a chord
    failing = zcdp(0.5, 0.01)
    np.testing.assert_allclose(values(failing, x)[0], 0.01 + 0.99 * above, rtol=1e-12)
    assert float(failing.q_bottom) == pytest.approx(0.01, rel=1e-10) == float(failing.p_top)
    assert np.max(values(zcdp(0.0, 0.0), np.array([0.0, 0.1]))[0]) < 1e-20


def test_zcdp_says_nothing_of_its_own_below_order_one():
    """Randomised response is D_1-zCDP, yet its divergence of order 1/2 is above D_1 / 2: taking it for granted is unsafe."""
    both = np.array([np.e, 1.0]) / (1 + np.e)
    rho = np.tanh(0.5)
    orders = 1 + np.geomspace(1e-6, 1e3, 200)
    assert all(divergence(both, both[::-1], o) <= rho * o * (1 + 1e-9) for o in orders)
    assert divergence(both, both[::-1], 0.5) == pytest.approx(0.24022901391655505) and rho / 2 < 0.23106
    wrong = renyi(ORDERS, rho * ORDERS)
    exact = lambda e: np.sum(np.maximum(both - np.exp(e) * both[::-1], 0))
    assert float(values(wrong, 0.0)[0]) < exact(0.0) <= float(values(zcdp(rho, 0.0), 0.0)[0])


@pytest.mark.slow
def test_derivatives():
    """Of single orders, first and second: the multipliers move, which first derivatives do not see."""
    value = jax.jit(lambda o, r, x: jnp.sum(renyi_delta(o, r, x)))
    for order, rho, x in ((2.0, 0.3, 0.5), (0.6, 0.3, 0.5), (1.0, 0.4, 0.2), (8.0, 0.5, 1.0)):
        first, second = jax.jit(jax.grad(value, 1)), jax.jit(jax.grad(jax.grad(value, 1), 1))
        h = 1e-4
        ends = [float(value(order, rho + s * h, x)) for s in (-1, 0, 1)]
        assert first(order, rho, x) == pytest.approx((ends[2] - ends[0]) / (2 * h), rel=1e-6)
        assert second(order, rho, x) == pytest.approx((ends[2] - 2 * ends[1] + ends[0]) / h**2, rel=1e-4)


@pytest.mark.slow
def test_derivative_of_zcdp():
    slope = jax.jit(jax.grad(lambda r: zcdp_law(r, 0.0).profile(3.0)))(0.5)
    h = 1e-4
    ends = [float(dpjax.conversions.zcdp_to_profile(0.5 + s * h, 3.0)) for s in (-1, 1)]
    assert slope == pytest.approx((ends[1] - ends[0]) / (2 * h), rel=5e-3)


# Bounded range.


def test_bounded_range_is_the_supremum_over_t():
    x = np.linspace(-1.4, 1.4, 57)
    law = BoundedRangeLaw(1.2)
    family = np.array([values(two_point_law(1.2, t), x) for t in np.linspace(0, 1.2, 4001)])
    for got, best in zip(values(law, x), family.max(0), strict=True):
        np.testing.assert_allclose(got, best, rtol=2e-3, atol=1e-12)
        assert np.all(np.asarray(got) >= best * (1 - 4 * ULP))
    for row in _read("bounded_range")["adaptive_delta"]:
        if int(row["k"]) == 1:
            got = BoundedRangeLaw(float(row["eps"])).profile(float(row["eps_g"]))
            assert float(got) == pytest.approx(float(row["delta_adaptive"]), rel=1e-13)


@pytest.mark.parametrize("epsilon", [1e-9, 0.3, 2.0, 40.0])
def test_tails_of_bounded_range(epsilon):
    """Against integrals of the density, in 40 digits; the profile is what its tails say."""
    law, e = BoundedRangeLaw(epsilon), mp.mpf(epsilon)
    x = np.r_[np.linspace(-1.1, 1.1, 12), 1 - 1e-12, -1 + 1e-12] * epsilon
    t, profile = law.tails(x), law.profile(x)
    for i, y in enumerate(x):
        y = min(max(mp.mpf(float(y)), -e), e)
        p = lambda z, e=e: mp.exp((z - e) / 2) / (1 - mp.exp(-e))
        q = lambda z, e=e: -mp.exp(-(z + e) / 2) / (1 - mp.exp(-e))
        for got, exact in (
            (t.p_above, p(e) - p(y)), (t.q_above, q(e) - q(y)), (t.p_below, p(y) - p(-e)), (t.q_below, q(y) - q(-e))
        ):  # fmt: skip
            slack = ULP * epsilon * (mp.exp((y - e) / 2) + mp.exp(-(y + e) / 2)) / (1 - mp.exp(-e))  # an ulp of x
            assert abs(float(got[i]) - exact) <= 16 * ULP * (1 + abs(mp.log(exact or 1))) * exact + slack
        if abs(x[i]) <= epsilon:
            exact = p(e) - p(y) - mp.exp(y) * (q(e) - q(y))
            assert abs(float(profile[i]) - exact) <= 16 * ULP * (1 + abs(mp.log(exact or 1))) * exact + slack


@pytest.mark.slow
def test_adaptive_bounded_range_against_stored_rows():
    for row in _read("bounded_range")["adaptive_delta"]:
        eps, k = float(row["eps"]), int(row["k"])
        if (eps, k) not in ((0.5, 2), (0.5, 3), (1.0, 3)):
            continue
        exact = float(row["delta_adaptive"])
        for sign in (1, -1):
            x = sign * float(row["eps_g"])
            wanted = exact if sign > 0 else -np.expm1(x) + np.exp(x) * exact
            assert wanted * (1 - 1e-12) <= float(bounded_range_law(eps, k).profile(x)) <= wanted * 1.01 + 1e-9, row


def test_adaptive_bounded_range_dominates_interleavings():
    """Range, response, range, ...: the best choice of t after each outcome, by dynamic programming on a grid of t."""
    law, response = bounded_range_law(0.5, 2), loss_law(dpjax.PureDP(0.8), REMOVE)
    ts = np.linspace(0.0, 0.5, 41)
    q = np.expm1(ts - 0.5) / np.expm1(-0.5)

    def best(order, e):
        if not order:
            return max(0.0, -np.expm1(e))
        if order[0] == "response":
            return sum(float(p) * best(order[1:], e - float(x)) for p, x in zip(response.p, response.loss, strict=True))
        if order == ("range",):
            inside = np.maximum(-np.expm1(e - ts), 0), np.maximum(-np.expm1(e + 0.5 - ts), 0)
            return np.max(q * inside[0] + (1 - q) * inside[1])
        return max(
            a * best(order[1:], e - t) + (1 - a) * best(order[1:], e + 0.5 - t) for a, t in zip(q, ts, strict=True)
        )

    for e in (0.2, 0.9):
        found = [best(order, e) for order in set(itertools.permutations(("response", "range", "range")))]
        bound = float(np.sum(np.asarray(response.p) * np.asarray(values(law, e - response.loss)[0])))
        assert bound >= max(found) and bound < 1.02 * max(found)
        assert max(found) > min(found)  # the order matters to the one who chooses; what is bounded is the best


def test_bounded_range_law_refuses():
    for args, message in (((-0.1,), "epsilons"), ((0.5, 1.5), "counts"), (([[0.1]], 1), "shape")):
        with pytest.raises(ValueError, match=message):
            bounded_range_law(*args)
    with pytest.raises(ValueError, match="traced"):
        jax.jit(bounded_range_law)(0.5)
    assert float(bounded_range_law(0.5, 0).profile(0.0)) == 0


# Records and their laws.

RECORDS = {
    "pure": lambda x: dpjax.PureDP(x),
    "approximate": lambda x: dpjax.ApproximateDP(x, 1e-3),
    "range": lambda x: dpjax.BoundedRange(x),
    "range with t": lambda x: dpjax.BoundedRange(x, 0.3 * x),
    "profile": lambda x: dpjax.PrivacyProfile([0.5, 1.0], jnp.exp(-x * jnp.array([2.0, 3.0]))),
}


@pytest.mark.parametrize("name", RECORDS)
def test_laws_of_records(name):
    """Both directions; tails, profile and support agree; sampled, as enumeration says; derivatives."""
    make = RECORDS[name]
    x = np.linspace(-1.3, 1.7, 31) + 1e-3
    laws = [jax.jit(lambda v, d=d: loss_law(make(v), d))(1.2) for d in (REMOVE, Adjacency.ADD)]
    for one, other in zip(*map(jax.tree.leaves, laws), strict=True):
        np.testing.assert_array_equal(one, other)
    law = laws[0]
    tails = law.tails(x)
    np.testing.assert_allclose(law.p_infinite() + tails.p_above - np.exp(x) * tails.q_above, law.profile(x), atol=1e-14)
    np.testing.assert_allclose(
        law.q_infinite() + tails.q_below - np.exp(-x) * tails.p_below, law.profile_below(x), atol=1e-14
    )
    np.testing.assert_allclose(law.profile(x), -np.expm1(x) + np.exp(x) * law.profile_below(x), rtol=1e-12, atol=1e-13)
    for direction in (REMOVE, Adjacency.ADD):
        sampled = lambda v, d=direction: loss_law(dpjax.PoissonSampled(0.2, make(v)), d)
        got = jax.jit(lambda v, law=sampled: (law(v).profile(x), law(v).tails(x)))(1.2)
        # (1 - r) Q + r P against Q, or P against (1 - r) P + r Q: the sup of tests of the base at a shifted threshold
        a = np.exp(x)
        if direction is REMOVE:
            exact = np.where(a > 0.8, 0.2 * values(law, np.log(np.maximum((a - 0.8) / 0.2, 1e-9)))[0], 1 - a)
        else:
            left = 1 - 0.8 * a
            inner = values(law, np.log(np.where(left > 0, 0.2 * a / np.where(left > 0, left, 1), 1.0)))[0]
            exact = np.where(left > 0, left * inner, 0.0)
        np.testing.assert_allclose(got[0], exact, rtol=1e-9, atol=1e-14)
        assert np.all(np.asarray(got[1].p_above) >= -1e-16)
    value = jax.jit(lambda v: loss_law(make(v), REMOVE).profile(0.31))
    h = 1e-5
    assert jax.grad(value)(1.2) == pytest.approx(float(value(1.2 + h) - value(1.2 - h)) / (2 * h), rel=1e-6)
    assert np.isfinite(jax.hessian(value)(1.2))
    many = jax.vmap(value)(jnp.array([0.7, 1.2]))
    assert many[1] == pytest.approx(float(value(1.2)), rel=1e-14)


def test_records_are_trees_of_numbers():
    for record in (
        dpjax.PrivacyProfile([0.5, 1.0], [0.1, 0.01]), dpjax.RenyiDP([2.0, 4.0], 0.3), dpjax.ZCDP(0.1, 1e-6)
    ):  # fmt: skip
        doubled = jax.tree.map(lambda a: 2 * a, record)
        assert type(doubled) is type(record)
        assert jax.tree.map(lambda a: None, record) is not None
        record.check()
    assert dpjax.RenyiDP(2.0, 0.3).orders.shape == (1,)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: dpjax.PrivacyProfile([0.5], [1.5]), r"deltas = 1.5, but it must be a number in \[0, 1\]"),
        (lambda: dpjax.PrivacyProfile([np.inf], [0.5]), r"epsilons = inf"),
        (lambda: dpjax.PrivacyProfile([0.1, 0.2, 0.3], [0.5, 0.4]), "lengths"),
        (lambda: dpjax.PrivacyProfile([], []), "lengths"),
        (lambda: dpjax.RenyiDP([0.4], [0.5]), r"orders = 0.4"),
        (lambda: dpjax.RenyiDP([np.inf], [0.5]), r"orders = inf"),
        (lambda: dpjax.RenyiDP([2.0], [-0.5]), r"epsilons = -0.5"),
        (lambda: dpjax.ZCDP(-1.0), "rho = -1.0"),
        (lambda: dpjax.ZCDP(1.0, 1.5), "delta = 1.5"),
    ],
)
def test_bad_values_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    "make",
    [
        lambda v: dpjax.BoundedRange(1.0, 0.5 + v),
        pytest.param(lambda v: dpjax.ZCDP(0.1, v), marks=pytest.mark.slow),
        pytest.param(lambda v: dpjax.PrivacyProfile([1.0], v[None]), marks=pytest.mark.slow),
    ],
)
def test_bad_traced_claims_are_nan(make):
    ask = jax.jit(lambda v: dpjax.delta(make(v), 0.3, adjacency=REMOVE))
    assert np.isnan(ask(-0.6)) and not np.isnan(ask(0.1))


def test_nothing_known_at_an_order():
    law = renyi(ORDERS, np.where(ORDERS == 1, 0.3, np.inf))
    only = renyi(np.ones_like(ORDERS), np.full(ORDERS.shape, 0.3))
    x = np.array([0.0, 0.5, 2.0])
    np.testing.assert_allclose(values(law, x)[0], values(only, x)[0], rtol=0.05)
    assert np.all(values(renyi(ORDERS, np.full(ORDERS.shape, np.inf)), x)[0] == 1)


@pytest.mark.parametrize("failure", [1e-12, 1.9e-16, 1e-17, 1e-100, 1e-290])
def test_no_failure_is_lost_in_rounding(failure):
    """1 - (1 - delta) is off by 2e-5 of 1e-12, and 0 at 1e-17."""
    claim = dpjax.ApproximateDP(0.1, failure)
    for record, infinite in [
        (claim, failure),
        (dpjax.PoissonSampled(0.5, claim), 0.5 * failure),
        (dpjax.Laplace(4.0) + claim * 3, 3 * failure),
    ]:
        found = dpjax.delta_bounds(record, epsilon=2.0)  # beyond all finite losses
        assert found.lower <= infinite * (1 + 1e-12) and found.upper >= infinite * (1 - 4 * failure), record
        assert found.lower >= infinite * (1 - 1e-9) and found.upper <= infinite * (1 + 1e-9) + 1e-15, record
