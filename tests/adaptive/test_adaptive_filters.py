"""Filters grant exactly what fits, leave the state alone otherwise, and ride in JAX's loops."""

import dataclasses
import functools
import math

import chex
import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dpjax.mechanisms as mech
from dpjax import conversions
from dpjax.adaptive import (
    ApproxDPFilter,
    BasicFilter,
    FilterOdometer,
    GDPFilter,
    RenyiFilter,
    RogersFilter,
    ZCDPFilter,
    boundaries,
)
from dpjax.mechanisms import Adjacency

FILTERS = {
    "zcdp": lambda: ZCDPFilter(rho=0.3, delta=1e-5),
    "renyi": lambda: RenyiFilter(order=8.0, budget=1.5, delta=1e-5),
    "renyi-all": lambda: RenyiFilter(order=[2.0, 8.0, 32.0], budget=[0.5, 1.0, 3.0], delta=1e-5),
    "renyi-any": lambda: RenyiFilter.for_dp(3.0, 1e-5, [2.0, 4.0, 8.0, 16.0, 32.0]),
    "approx": lambda: ApproxDPFilter(epsilon=3.0, delta=1e-5),
    "approx-tight": lambda: ApproxDPFilter(epsilon=3.0, delta=1e-5, method="tight"),
    "gdp": lambda: GDPFilter(mu=0.7),
    "basic": lambda: BasicFilter(epsilon=3.0, delta=1e-5),
    "rogers": lambda: RogersFilter(epsilon=3.0, delta=1e-5),
}
every_filter = pytest.mark.parametrize("name", FILTERS)
ALIKE = {"renyi", "renyi-all", "approx", "basic"}  # whose programs differ little from those of the others


def first_keyword(filt):
    return type(filt)._keywords[0]


def left(filt, state):
    return np.asarray(filt.remaining(state))


def assert_same(a, b):
    chex.assert_trees_all_equal(a, b)


def test_max_queries(x64, row_filter_eps_delta):
    row = row_filter_eps_delta
    target, delta, each = (float(row[k]) for k in ("eps", "delta_prime", "eps_each"))
    filt = ApproxDPFilter(target, delta, slack=delta)
    state, granted = filt.init(), []
    for _ in range(row["max_queries"] + 3):
        state, ok = filt.request(state, epsilon=each)
        granted.append(bool(ok))
    assert granted == [True] * row["max_queries"] + [False] * 3
    np.testing.assert_allclose(filt.spent(state), float(row["lhs_at_n"]), rtol=1e-12 if x64 else 2e-6)
    assert float(filt.spent(state)) >= float(row["lhs_at_n"]) * (1 - (1e-15 if x64 else 2e-7))
    np.testing.assert_allclose(float(filt._budget(state.spent.high.dtype)) / 2, float(row["rho_budget"]), rtol=5e-6)


def test_theorem_two_with_delta_in_its_logarithm_is_false():
    """2000 queries of (0.02, 5e-6)-randomised response: a true delta of 0.01019 at what is printed for delta = 0.01."""
    each, n, delta = mp.mpf("0.02"), 2000, mp.mpf("0.01")
    rho = n * each**2 / 2

    def true_delta(epsilon, own):  # Kairouz, Oh, Viswanath: exact for this composition
        p = mp.exp(each) / (1 + mp.exp(each))
        total = mp.mpf(0)
        for i in range(n + 1):
            loss = (n - 2 * i) * each
            if loss <= epsilon:
                break
            total += mp.binomial(n, i) * p ** (n - i) * (1 - p) ** i * (1 - mp.exp(epsilon - loss))
        return 1 - (1 - own) ** n * (1 - total)

    printed = rho + 2 * mp.sqrt(rho * mp.log(1 / delta))
    assert true_delta(printed, delta / n) > delta * mp.mpf("1.018")
    half = delta / 2  # delta' = delta'' = delta / 2
    corrected = rho + 2 * mp.sqrt(rho * mp.log(1 / half))
    assert mp.mpf("0.005") < true_delta(corrected, half / n) < mp.mpf("0.0052")


@pytest.mark.parametrize(
    ("flag", "name"),
    [
        pytest.param(
            flag,
            name,
            marks=[pytest.mark.slow] * (flag and name in {*ALIKE, "zcdp", "gdp"}),
            id=f"{name}-float{32 + 32 * flag}",
        )
        for name in FILTERS
        for flag in (False, True)
    ],
)
def test_remaining_is_granted_and_is_the_largest(flag, name):
    with jax.enable_x64(flag):
        filt = FILTERS[name]()
        key, state = first_keyword(filt), filt.init()
        for fraction in (0.3, 0.5, 0.1):
            state, granted = filt.request(state, **{key: fraction * left(filt, state)})
            assert bool(granted)
        whole = left(filt, state)
        assert np.any(whole > 0)
        more = np.nextafter(whole, np.inf, dtype=whole.dtype)
        assert bool(filt.would_exceed(state, **{key: more})) and not bool(filt.would_exceed(state, **{key: whole}))
        state, granted = filt.request(state, **{key: whole})
        assert bool(granted)
        # what is left now is rounding; after using it nothing is
        for _ in range(4):
            rest = left(filt, state)
            assert np.all(rest <= whole * 1e-3 + 1e-12)
            state, granted = filt.request(state, **{key: rest})
            assert bool(granted)


@every_filter
def test_refusal_leaves_the_state_and_a_smaller_request_may_follow(either, name):
    filt = FILTERS[name]()
    key = first_keyword(filt)
    state, granted = filt.request(filt.init(), **{key: 0.5 * left(filt, filt.init())}, delta=0.0)
    after, granted = filt.request(state, **{key: 1.01 * left(filt, filt.init())})
    assert not bool(granted)
    assert_same(after, state)
    after, granted = filt.request(state, **{key: 0.1 * left(filt, state)})
    assert bool(granted) and int(after.granted) == 2


@every_filter
def test_invalid_requests_are_refused(either, name):
    filt = FILTERS[name]()
    key, state = first_keyword(filt), filt.init()
    for bad in (math.nan, -1.0, -1e-30, math.inf):
        for after, granted in (filt.request(state, **{key: bad}), filt.request(state, **{key: 0.0}, delta=bad)):
            assert not bool(granted)
            assert_same(after, state)


def test_invalid_traced_requests_are_refused(f32):
    filters = {name: make() for name, make in FILTERS.items()}

    @jax.jit
    def ask(states, x, delta):
        return {name: f.request(states[name], **{first_keyword(f): x}, delta=delta) for name, f in filters.items()}

    states = {name: f.init() for name, f in filters.items()}
    for bad in (math.nan, -1.0, -1e-30, math.inf):
        for answers in (ask(states, bad, 0.0), ask(states, 0.0, bad)):
            for name, (after, granted) in answers.items():
                assert not bool(granted), name
                assert_same(after, states[name])


@pytest.mark.parametrize("name", [n for n in FILTERS if n != "gdp"])
def test_the_queries_own_deltas(either, name):
    filt = FILTERS[name]()
    key, state = first_keyword(filt), filt.init()
    whole = np.asarray(filt.remaining_delta(state))
    share = 1.0 if name in ("zcdp", "renyi", "renyi-all", "basic") else 0.5
    np.testing.assert_allclose(whole, share * 1e-5, rtol=1e-6)
    state, granted = filt.request(state, **{key: 0.0}, delta=0.25 * whole)
    assert bool(granted)
    assert bool(filt.would_exceed(state, **{key: 0.0}, delta=whole))
    state, granted = filt.request(state, **{key: 0.0}, delta=filt.remaining_delta(state))
    assert bool(granted) and bool(filt.would_exceed(state, **{key: 0.0}, delta=1e-9))
    assert not bool(filt.would_exceed(state, **{key: 0.0}))
    assert not bool(filt.would_exceed(filt.init(), **{key: 0.0}, delta=whole))
    assert bool(filt.would_exceed(filt.init(), **{key: 0.0}, delta=1.5))


def test_slack_equal_to_delta_admits_pure_queries_only(either):
    filt = ApproxDPFilter(1.0, 1e-6, slack=1e-6)
    assert not bool(filt.would_exceed(filt.init(), epsilon=0.1))
    assert bool(filt.would_exceed(filt.init(), epsilon=0.1, delta=1e-30))


def test_whole_binary_budgets_are_used_up_exactly(either):
    filt, state = GDPFilter(mu=1.0), GDPFilter(mu=1.0).init()
    for _ in range(64):
        state, granted = filt.request(state, mu=0.125)
        assert bool(granted)
    assert float(filt.remaining(state)) == 0.0 and float(filt.spent(state)) == 1.0
    filt = ZCDPFilter(rho=1.0)
    state = filt.init()
    for _ in range(8):
        state, granted = filt.request(state, mech.Gaussian(2.0))
        assert bool(granted)
    assert float(filt.remaining(state)) == 0.0


def test_decimal_budgets_are_not_overrun(x64):
    """The float 0.1 is more than a tenth: the tenth request of 0.1 would exceed 1."""
    filt, granted = ZCDPFilter(rho=1.0), []
    state = filt.init()
    for _ in range(10):
        state, ok = filt.request(state, rho=0.1)
        granted.append(bool(ok))
    assert granted == [True] * 9 + [False]
    state, ok = filt.request(state, rho=filt.remaining(state))
    assert bool(ok) and float(filt.spent(state)) <= 1.0


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(0, 0.25, width=32), max_size=40), st.booleans(), st.sampled_from(["zcdp", "approx", "gdp"]))
def test_granted_requests_never_exceed_the_budget(xs, flag, name):
    with jax.enable_x64(flag):
        filt = FILTERS[name]()
        key = first_keyword(filt)
        requests = jnp.asarray(xs + [0.0] * (40 - len(xs)), _dtype())  # of one length, so as to compile once
        ok = np.asarray(_run(filt, requests, key))
        squares = mp.fsum(
            mp.mpf(float(x)) ** (1 if name == "zcdp" else 2) for x, g in zip(np.asarray(requests), ok, strict=True) if g
        )
        if name == "zcdp":
            assert squares <= mp.mpf(filt.rho)
        elif name == "gdp":
            assert squares <= mp.mpf(filt.mu) ** 2
        else:
            assert mp.sqrt(2 * mp.log(1 / mp.mpf(filt.slack)) * squares) + squares / 2 <= mp.mpf(filt.epsilon)


def _dtype():
    return jnp.zeros(()).dtype


@functools.partial(jax.jit, static_argnums=2)
def _run(filt, xs, key):
    return jax.lax.scan(lambda s, x: filt.request(s, **{key: x}), filt.init(), xs)[1]


def test_both_forms_of_theorem_two_agree(x64):
    for rho in (1e-4, 0.02, 1.0):
        filt = ApproxDPFilter.from_rho(rho, 1e-6)
        assert float(filt._budget(_dtype())) / 2 >= rho * (1 - 1e-7)
        np.testing.assert_allclose(float(filt._budget(_dtype())) / 2, rho, rtol=1e-13 if x64 else 2e-5)
        state, granted = filt.request(filt.init(), rho=rho * (1 - 1e-6))
        assert bool(granted)


def test_units_agree(f32):
    """epsilon and rho = epsilon^2/2 cost the same; for the Renyi filter epsilon costs what randomised response has."""
    for filt in (ZCDPFilter(0.3), ApproxDPFilter(3.0, 1e-5)):
        a, _ = filt.request(filt.init(), epsilon=0.25)
        b, _ = filt.request(filt.init(), rho=0.03125)
        assert float(a.spent.high) == float(b.spent.high)
    filt = RenyiFilter([2.0, 8.0], [10.0, 10.0])
    by_rho, _ = filt.request(filt.init(), rho=0.125)
    np.testing.assert_allclose(filt.spent(by_rho), [0.25, 1.0], rtol=1e-6)


def test_pure_renyi_cost(x64, row_rdp_rr):
    order, epsilon = float(row_rdp_rr["alpha"]), float(row_rdp_rr["eps"])
    if order <= 1:
        pytest.skip("filters have orders above 1")
    filt = RenyiFilter(order, 1e6)
    state, _ = filt.request(filt.init(), epsilon=epsilon)
    spent, truth = float(filt.spent(state)), float(row_rdp_rr["rdp"])
    assert truth * (1 - (1e-15 if x64 else 1e-7)) <= spent <= truth * (1 + (1e-13 if x64 else 2e-5))


def test_renyi_vector_of_orders(either):
    filt = RenyiFilter([2.0, 8.0], [0.5, 1.0])
    assert not bool(filt.would_exceed(filt.init(), renyi=[0.5, 1.0]))
    assert bool(filt.would_exceed(filt.init(), renyi=[0.4, 1.1])) and bool(
        filt.would_exceed(filt.init(), renyi=[0.6, 0.1])
    )
    either = RenyiFilter([2.0, 8.0], [0.5, 1.0], 1e-5, combine="any")
    assert not bool(either.would_exceed(either.init(), renyi=[0.4, 9.0]))
    assert not bool(either.would_exceed(either.init(), renyi=[0.4, math.inf]))
    assert bool(either.would_exceed(either.init(), renyi=[0.6, 9.0]))
    assert bool(either.would_exceed(either.init(), renyi=[0.1, math.nan]))
    # an order that was overrun counts what was run, and is out for good
    state, granted = either.request(either.init(), renyi=[0.1, 5.0])
    assert bool(granted) and bool(either.would_exceed(state, renyi=[0.45, 0.0]))
    np.testing.assert_allclose(either.spent(state), [0.1, 5.0], rtol=1e-6)


def test_any_splits_delta_over_the_orders(f64):
    orders = np.array([2.0, 4.0, 8.0, 16.0])
    filt = RenyiFilter.for_dp(3.0, 1e-5, orders, slack=1e-5)
    np.testing.assert_allclose(filt.budget, conversions.rdp_budget(orders, 3.0, 1e-5 / 4), rtol=1e-12)
    assert np.all(filt.budget < conversions.rdp_budget(orders, 3.0, 1e-5))
    np.testing.assert_allclose(filt.epsilon(), 3.0, rtol=1e-12)
    assert float(filt.epsilon()) <= 3.0 * (1 + 1e-14)
    one = RenyiFilter.for_dp(3.0, 1e-5, 8.0)
    np.testing.assert_allclose(one.epsilon(1e-5), 3.0, rtol=1e-12)


def test_guarantees_in_dp_terms(f64):
    np.testing.assert_allclose(ZCDPFilter(0.1).epsilon(1e-6, "published"), 0.1 + 2 * np.sqrt(0.1 * np.log(1e6)))
    filt = RenyiFilter([4.0, 8.0], [0.2, 0.4])
    np.testing.assert_allclose(
        filt.epsilon(1e-5), min(conversions.rdp_to_dp(o, b, 1e-5) for o, b in ((4, 0.2), (8, 0.4)))
    )


def test_tight_grants_more_and_rogers_less(f32):
    ours = ApproxDPFilter(1.0, 1e-6)
    tight = ApproxDPFilter(1.0, 1e-6, method="tight")
    old = RogersFilter(1.0, 1e-6)
    largest = [float(f.remaining(f.init())) for f in (old, ours, tight)]
    assert largest[0] < 0.8 * largest[1] and largest[1] * 1.1 < largest[2]
    budgets = [float(f._budget(_dtype())) for f in (ours, tight)]
    assert 1.3 < budgets[1] / budgets[0] < 1.5


def test_rogers_2016(f64):
    filt, target, delta = RogersFilter(2.0, 1e-5), mp.mpf(2), mp.mpf("1e-5")
    requests = np.random.default_rng(0).uniform(0, 0.1, 60)
    state = filt.init()
    kept = []
    for x in requests:
        state, granted = filt.request(state, epsilon=x)
        kept += [mp.mpf(x)] if granted else []
    v, drift = mp.fsum(x**2 for x in kept), mp.fsum(x * mp.expm1(x) / 2 for x in kept)
    c = target**2 / (mp.mpf("28.04") * mp.log(1 / delta))
    bound = drift + mp.sqrt(2 * (v + c) * (1 + mp.log(1 + v / c) / 2) * mp.log(2 / delta))
    np.testing.assert_allclose(filt.spent(state), float(bound), rtol=1e-13)
    assert bound <= target and filt.remaining(state).shape == ()


def test_adaptive_dp_sgd_in_a_compiled_loop(f32):
    """The noise follows what was seen; the filter stops the training inside the loop."""
    filt = RenyiFilter.for_dp(2.0, 1e-5, [4.0, 8.0, 16.0], slack=1e-5)

    @jax.jit
    def train(filt, key):
        def cond(carry):
            return carry[-1]

        def body(carry):
            weights, sigma, state, key, _ = carry
            key, sub = jax.random.split(key)
            step = mech.PoissonSampled(0.02, mech.Gaussian(sigma))
            state, granted = filt.request(state, step)
            update = 0.1 * (1 - weights) + sigma * 0.01 * jax.random.normal(sub, dtype=weights.dtype)
            weights = jnp.where(granted, weights + update, weights)
            sigma = jnp.where(jnp.abs(update) < 0.05, 0.97 * sigma, sigma)
            return weights, jnp.maximum(sigma, 0.7), state, key, granted

        start = (jnp.zeros(()), jnp.asarray(1.5), filt.init(), key, jnp.asarray(True))
        return jax.lax.while_loop(cond, body, start)

    weights, sigma, state, _, granted = train(filt, jax.random.key(0))
    assert not bool(granted) and int(state.granted) > 20 and np.isfinite(weights)
    assert np.any(filt.spent(state) <= filt.budget) and sigma < 1.5


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n in ALIKE)) for n in FILTERS])
def test_jax_citizenship(f32, name):
    """The same state from a compiled scan, vmap, a bank of filters, a restored checkpoint and one by one."""
    filt = FILTERS[name]()
    key, state = first_keyword(filt), filt.init()
    whole = filt.remaining(state)
    ask = lambda f, s, x: f.request(s, **{key: x})
    xs = np.random.default_rng(0).uniform(0, 0.4, 12)
    each = np.multiply.outer(xs, np.asarray(whole)).astype(np.float32)

    @jax.jit
    def every_way(filt, each):
        scanned = jax.lax.scan(lambda s, x: ask(filt, s, x), filt.init(), each)
        lanes = jax.vmap(lambda x: ask(filt, filt.init(), x))(each)
        left = lambda high: jnp.sum(filt.remaining(_with_spent(filt.init(), high)))
        return scanned, lanes, ask(filt, filt.init((12,)), each), jax.grad(left)(0.1 * each[0])

    (final, ok), lanes, bank, slope = every_way(filt, each)
    eager, flags = state, []
    for x in each:
        eager, flag = ask(filt, eager, x)
        flags.append(bool(flag))
    assert flags == ok.tolist()
    assert_same(eager, final)
    chex.assert_trees_all_equal_shapes_and_dtypes(final, state)
    assert all(leaf.dtype in (_dtype(), jnp.int32) for leaf in jax.tree.leaves(final))
    assert_same(lanes, bank)
    assert bank[1].shape == (12,)
    rebuilt = jax.tree.unflatten(jax.tree.structure(final), [np.asarray(x) for x in jax.tree.leaves(final)])
    assert_same(jax.tree.map(jnp.asarray, ask(filt, rebuilt, each[0])), ask(filt, final, each[0]))  # a checkpoint
    if name != "renyi-any":  # some of its orders cannot serve the target
        assert np.all(np.isfinite(slope)) and np.all(slope < 0)


def _with_spent(state, high):
    """``state`` with a first sum that is differentiable, on the axes that a request has."""
    wide = jnp.broadcast_to(high[..., None] if high.ndim < state.spent.high.ndim else high, state.spent.high.shape)
    return dataclasses.replace(state, spent=dataclasses.replace(state.spent, high=wide))


def test_compiles_once_for_many_values():
    with jax.enable_x64(True):
        filt, count = ZCDPFilter(1.0), 0

        @jax.jit
        def run(f, s, x):
            nonlocal count
            count += 1
            return f.request(s, rho=x)

        for rho in (1.0, 2.0, 3.0):
            run(ZCDPFilter(rho), filt.init(), rho / 10)
        assert count == 1


def test_derivative_of_remaining(f64):
    def remaining(target, first):
        filt = ApproxDPFilter(target, 1e-6, slack=1e-6)
        return filt.remaining(filt.request(filt.init(), epsilon=first)[0])

    def closed(target, first):
        return jnp.sqrt(boundaries.advanced_composition_time(target, 1e-6) - first**2)

    np.testing.assert_allclose(remaining(1.0, 0.1), closed(1.0, 0.1), rtol=1e-12)
    np.testing.assert_allclose(
        jax.jit(jax.grad(remaining, (0, 1)))(1.0, 0.1), jax.jit(jax.grad(closed, (0, 1)))(1.0, 0.1), rtol=1e-8
    )


def test_adjacency(f64):
    replace = ZCDPFilter(1.0, adjacency=Adjacency.REPLACE_ONE)
    state, _ = replace.request(replace.init(), mech.Gaussian(2.0))
    assert float(replace.spent(state)) == 0.5
    add, remove = (GDPFilter(1.0, adjacency=a) for a in (Adjacency.ADD, Adjacency.REMOVE))
    assert float(add.request(add.init(), mech.Gaussian(2.0))[0].spent.high) == 0.25
    assert float(remove.request(remove.init(), mech.Gaussian(2.0))[0].spent.high) == 0.25


def test_batched_parameters(f32):
    filt = ZCDPFilter(rho=np.array([0.1, 0.2, 0.3]))
    state = filt.init()
    assert state.spent.high.shape == (3,)
    state, granted = filt.request(state, rho=0.15)
    assert granted.tolist() == [False, True, True]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ZCDPFilter(-1.0), "rho = -1.0"),
        (lambda: ZCDPFilter(1.0, 2.0), "delta = 2.0"),
        (lambda: ZCDPFilter(float("nan")), "rho = nan"),
        (lambda: RenyiFilter(1.0, 1.0), "order = 1.0"),
        (lambda: RenyiFilter([2.0, 3.0], [1.0, 2.0, 3.0]), r"budget has shape \(3,\)"),
        (lambda: RenyiFilter(2.0, 1.0, combine="some"), "combine = 'some'"),
        (lambda: RenyiFilter(2.0, 1.0, 1e-5, combine="any"), "must be a vector"),
        (lambda: RenyiFilter(2.0, 1.0, 1e-5, slack=1e-6), "slack = 1e-06"),
        (lambda: ApproxDPFilter(1.0, 0.0), "delta = 0.0"),
        (lambda: ApproxDPFilter(1.0, 1e-5, slack=1e-4), "slack = 0.0001"),
        (lambda: ApproxDPFilter(1.0, 1e-5, slack=0.0), "slack = 0.0"),
        (lambda: ApproxDPFilter(1.0, 1e-5, method="best"), "method = 'best'"),
        (lambda: GDPFilter(-0.5), "mu = -0.5"),
        (lambda: GDPFilter(1.0, adjacency="add"), "adjacency = 'add'"),
        (lambda: RogersFilter(0.0, 1e-5), "epsilon = 0.0"),
        (lambda: RenyiFilter.for_dp(1.0, 1e-5, [2.0, 4.0], combine="all"), "combine = 'all'"),
        (lambda: RenyiFilter.for_dp(0.5, 1e-5, [8.0, 16.0], slack=1e-5), "none leaves a budget"),
        (lambda: RenyiFilter.for_dp(0.5, 1e-5, 8.0), "none leaves a budget"),
    ],
)
def test_bad_concrete_arguments_raise(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda f, s: f.request(s), "exactly one of rho= or epsilon=; got none"),
        (lambda f, s: f.request(s, mu=1.0), "got mu"),
        (lambda f, s: f.request(s, rho=1.0, epsilon=1.0), "got rho, epsilon"),
        (lambda f, s: f.request(s, mech.Gaussian(1.0), rho=1.0), "not both"),
        (lambda f, s: f.request(s, rho=True), "rho must be a real number"),
        (lambda f, s: f.request(s, 0.1), "mechanism must be a dpjax mechanism"),
        (lambda f, s: f.request(s, mech.PoissonSampled(0.1, mech.Gaussian(1.0))), "use RenyiFilter"),
        (lambda f, s: f.request(FilterOdometer(1e-6, 1.0).init(), rho=1.0), "state must come from this filter"),
        (lambda f, s: GDPFilter(1.0).request(s, mu=0.1), "got one of ZCDPFilter"),
        (lambda f, s: _basic().request(_basic().init(), mech.Gaussian(1.0)), "by keyword only"),
    ],
)
def test_misuse_raises(call, message):
    filt = ZCDPFilter(1.0)
    with pytest.raises(TypeError, match=message):
        call(filt, filt.init())


def _basic():
    return BasicFilter(1.0, 0.0)


def test_bad_traced_parameters_refuse_everything(either):
    @jax.jit
    def zcdp(rho):
        filt = ZCDPFilter(rho)
        return filt.request(filt.init(), rho=0.0)[1], filt.remaining(filt.init())

    @jax.jit
    def approx(epsilon, delta, slack):
        filt = ApproxDPFilter(epsilon, delta, slack)
        return filt.request(filt.init(), epsilon=0.0)[1], filt.remaining(filt.init())

    @jax.jit
    def renyi(order, budget):
        filt = RenyiFilter(order, budget)
        return filt.request(filt.init(), renyi=0.0)[1], filt.remaining(filt.init())

    for granted, left in (
        zcdp(-1.0),
        zcdp(math.nan),
        approx(-1.0, 1e-5, 1e-6),
        approx(1.0, 1e-5, 1e-4),
        approx(1.0, 1e-5, 0.0),
        approx(1.0, -1e-5, 1e-6),
        renyi(0.5, 1.0),
        renyi(2.0, math.nan),
    ):
        assert not bool(granted) and np.isnan(left)
    assert bool(zcdp(1.0)[0]) and bool(approx(1.0, 1e-5, 1e-5)[0]) and bool(renyi(2.0, 1.0)[0])


def test_reprs_state_the_guarantee(f32):
    assert repr(ZCDPFilter(0.5)).endswith("0-approximate 0.5-zCDP")
    assert repr(ApproxDPFilter(3.0, 1e-5)).endswith("(3, 1e-05)-DP")
    assert "(8, 1.5)-RDP" in repr(RenyiFilter(8.0, 1.5))
    assert repr(GDPFilter(1.0)).endswith("1-GDP")
    jax.jit(lambda f: (repr(f), f.init())[1])(ZCDPFilter(0.5))
