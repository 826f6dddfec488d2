"""Odometers: reference values, never below the formula, pDP with deltas, derivatives, JAX's loops."""

import math

import chex
import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest

import dpjax.mechanisms as mech
from dpjax.adaptive import (
    FilterOdometer,
    GDPFilter,
    MixtureOdometer,
    RogersOdometer,
    StitchedOdometer,
    boundaries,
)

ODOMETERS = {
    "filter": lambda: FilterOdometer(1e-6, 1.0),
    "exact": lambda: MixtureOdometer(1e-6, 0.1),
    "two_sided": lambda: MixtureOdometer(1e-6, 0.1, form="two_sided"),
    "tight": lambda: MixtureOdometer(1e-6, 0.1, method="tight"),
    "stitched": lambda: StitchedOdometer(1e-6, 0.01, below_v0="line"),
    "unrounded": lambda: StitchedOdometer(1e-6, 0.01, s=1.3, eta=1.7),
    "rogers": lambda: RogersOdometer(1e-6, 10_000),
}
every_odometer = pytest.mark.parametrize("name", ODOMETERS)
most_odometers = pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] * (n in ("two_sided", "tight", "unrounded"))) for n in ODOMETERS]
)


def dtype():
    return jnp.zeros(()).dtype


def test_reference_values(x64, row_odometers):
    row, rtol = row_odometers, 1e-12 if x64 else 1e-5
    v, d = float(row["v"]), float(row["delta_prime"])
    expected = {
        "uF_eps1": FilterOdometer(d, 1.0, slack=d),
        "uF_eps3": FilterOdometer(d, 3.0, slack=d),
        "uM_two_sided_gamma01": MixtureOdometer(d, 0.1, slack=d, form="two_sided"),
        "uM_one_sided_closed_gamma01": MixtureOdometer(d, 0.1, slack=d, form="one_sided"),
        "uM_one_sided_sharp_closed_gamma01": MixtureOdometer(d, 0.1, slack=d, form="sharp"),
        "uM_one_sided_exact_gamma01": MixtureOdometer(d, 0.1, slack=d),
        "uM_two_sided_gamma1": MixtureOdometer(d, 1.0, slack=d, form="two_sided"),
        "uS_v0_005": StitchedOdometer(d, 0.05, slack=d),
        "uS_exactconst_v0_005": StitchedOdometer(d, 0.05, slack=d, s=1.4, eta=2.0),
        "uS_v0_001": StitchedOdometer(d, 0.001, slack=d),
    }
    for column, odo in expected.items():
        np.testing.assert_allclose(odo.at(v), float(row[column]), rtol=rtol)


def test_rogers_reference(x64, odometer_rogers):
    rows, steps = odometer_rogers, max(row["n"] for row in odometer_rogers)
    at_jump = np.array([abs(row["n"] * float(row["eps_each"]) ** 2 - 1) < 1e-9 for row in rows])
    # the bound jumps at v = 1, which the floats pass
    each = np.array([float(row["eps_each"]) for row in rows]) * np.where(at_jump, 1 - 1e-6, 1)
    epsilon = np.where(np.arange(steps)[:, None] < [row["n"] for row in rows], each, 0)
    delta = np.array([float(row["delta_prime"]) for row in rows])
    odo = RogersOdometer(delta, np.array([row["dataset_size"] for row in rows]), slack=delta)
    expected = np.array([float(row["uR"]) for row in rows])
    error = np.abs(np.asarray(odo.trajectory(epsilon))[-1] / expected - 1)
    assert np.all(error <= np.where(at_jump | (not x64), 1e-5, 1e-13))


def formula(name, v, slack, drift=None):
    """The bound in 40 digits, for the odometers above and pure queries."""
    lg = mp.log(1 / slack)
    if name == "filter":
        y = (mp.sqrt(2 * lg + 2) - mp.sqrt(2 * lg)) ** 2
        return v / 2 + mp.sqrt(2 * y * lg) / 2 + v / 2 * mp.sqrt(2 * lg / y)
    if name == "rogers":
        n = mp.mpf(10_000)
        if 1 / n**2 <= v <= 1:
            return drift + 2 * mp.sqrt(v * (mp.log(110 * mp.e) + 2 * mp.log(mp.log(n) / slack)))
        return drift + mp.sqrt(2 * (1 / n**2 + v) * (1 + mp.log(1 + n**2 * v) / 2) * mp.log(4 * mp.log(n, 2) / slack))
    if name in ("exact", "two_sided"):
        g = mp.mpf(float(jnp.asarray(0.1)))
        big_k = mp.sqrt((v + g) / g) / slack
        if name == "two_sided":
            return v / 2 + mp.sqrt(2 * (v + g) * mp.log(big_k))
        level = lambda x: x * x / 2 + mp.log(2 * mp.ncdf(x)) - mp.log(big_k)
        return v / 2 + mp.findroot(level, mp.sqrt(2 * mp.log((big_k + 1) / 2))) * mp.sqrt(v + g)
    v0 = mp.mpf(float(jnp.asarray(0.01)))
    if name == "stitched":
        psi = lambda v: (
            mp.mpf("1.7") * mp.sqrt(v * (mp.log(mp.log(2 * v / v0)) + mp.mpf("0.72") * mp.log(mp.mpf("5.2") / slack)))
        )
        middle = v0 * mp.sqrt(2)
        return v / 2 + (psi(v) if v >= v0 else psi(v0) * (v + middle) / (v0 + middle))
    s, eta = (mp.mpf(float(jnp.asarray(x))) for x in (1.3, 1.7))
    k1 = (mp.root(eta, 4) + 1 / mp.root(eta, 4)) / mp.sqrt(2)
    inside = s * mp.log(mp.log(eta * v / v0) / mp.log(eta)) + mp.log(mp.zeta(s) / slack)
    return mp.inf if v < v0 else v / 2 + k1 * mp.sqrt(v * inside)


@pytest.mark.parametrize("name", ["filter", "exact", "two_sided", "stitched", "unrounded", "rogers"])
def test_at_is_never_below_the_formula(x64, name):
    odo = ODOMETERS[name]()
    slack = mp.mpf(odo.slack)
    for v in np.geomspace(1e-8, 1e8, 65):
        v = jnp.asarray(v)
        if name == "rogers" and min(abs(float(v) - jump) / jump for jump in (1e-8, 1.0)) < 1e-6:
            continue  # its two branches meet there in a jump
        truth, got = formula(name, mp.mpf(float(v)), slack, mp.mpf(float(v)) / 2), mp.mpf(float(odo.at(v)))
        assert truth <= got and (got <= truth * (1 + 64 * float(jnp.finfo(v.dtype).eps)) or truth == mp.inf)


def many_updates():
    return (10 ** np.random.default_rng(0).uniform(-4, -0.5, 400)).astype(dtype())


@pytest.mark.parametrize("name", ["filter", "exact", "two_sided", "stitched", "rogers"])
def test_bounds_are_never_below_the_formula(x64, name):
    """After every one of many updates, from exact sums of the floats that were passed."""
    odo, epsilon = ODOMETERS[name](), many_updates()
    bounds = np.asarray(odo.trajectory(epsilon))
    v = drift = mp.mpf(0)
    for i, (e, u) in enumerate(zip(epsilon, bounds, strict=True)):
        e = mp.mpf(float(e))
        v, drift = v + e * e, drift + e * mp.expm1(e) / 2
        if i % 20 == 0:
            truth = formula(name, v, mp.mpf(odo.slack), drift)
            assert truth <= mp.mpf(float(u)) <= truth * (1 + 100 * float(jnp.finfo(dtype()).eps))


def test_ten_million_float32_updates_are_never_below_the_truth():
    with jax.enable_x64(False):
        odo = MixtureOdometer(1e-6, 0.1)
        epsilon = (10.0 ** np.random.default_rng(3).uniform(-4, -2, 10_000_000)).astype(np.float32)
        run = jax.jit(lambda e: jax.lax.scan(lambda s, x: (odo.update(s, epsilon=x), None), odo.init(), e)[0])
        bound = float(odo.bound(run(jnp.asarray(epsilon))))
        truth = formula("exact", mp.mpf(math.fsum(np.asarray(epsilon, np.float64) ** 2)), mp.mpf(odo.slack))
        assert truth <= bound <= truth * (1 + 1e-5)


@every_odometer
def test_trajectory_is_update_by_update(f32, name):
    odo, epsilon = ODOMETERS[name](), many_updates()
    state, bounds = odo.init(), []
    for e in epsilon[:10]:
        state = odo.update(state, epsilon=e)
        bounds.append(float(odo.bound(state)))
    np.testing.assert_allclose(np.asarray(odo.trajectory(epsilon))[:10], bounds, rtol=1e-6)
    if name not in ("rogers", "tight"):
        v = float(np.sum(np.asarray(epsilon[:10], np.float64) ** 2))
        np.testing.assert_allclose(bounds[-1], odo.at(v), rtol=1e-5)


def test_deltas_and_their_budget(either):
    odo = MixtureOdometer(1e-2, 0.1, slack=2.5e-3)
    pure = odo.update(odo.init(), epsilon=0.1)
    state = odo.update(odo.init(), epsilon=0.1, delta=5e-3)
    np.testing.assert_allclose(odo.bound(state) - odo.bound(pure), -np.log1p(-5e-3), rtol=1e-3)
    assert float(odo.bound(state)) >= float(odo.bound(pure)) - np.log1p(-5e-3) * (1 - 1e-6)
    assert np.isfinite(odo.bound(odo.update(state, epsilon=0.1, delta=2.4e-3)))
    assert odo.bound(odo.update(state, epsilon=0.1, delta=2.6e-3)) == np.inf
    assert odo.bound(odo.update(odo.init(), epsilon=math.inf)) == np.inf
    assert np.isinf(odo.at(1.0, 9e-3)) and np.isfinite(odo.at(1.0, 7e-3))
    all_pure = MixtureOdometer(1e-6, 0.1, slack=1e-6)
    assert np.isfinite(all_pure.bound(all_pure.update(all_pure.init(), epsilon=0.1)))
    assert np.isinf(all_pure.bound(all_pure.update(all_pure.init(), epsilon=0.1, delta=1e-30)))


def test_zcdp_and_gaussian_updates(either):
    """rho counts like epsilon with epsilon^2 = 2 rho, mu like epsilon = mu."""
    odo = MixtureOdometer(1e-6, 0.1)
    by = [
        odo.update(odo.init(), mech.Gaussian(2.0)),
        odo.update(odo.init(), mu=0.5),
        odo.update(odo.init(), rho=0.125),
        odo.update(odo.init(), epsilon=0.5),
    ]
    assert len({float(odo.bound(s)) for s in by}) == 1


def test_tight_counts_less_and_only_for_pure_queries(either):
    plain, tight = MixtureOdometer(1e-2, 0.1), MixtureOdometer(1e-2, 0.1, method="tight")
    v = tight.update(tight.init(), epsilon=1.5).time
    np.testing.assert_allclose(v.high, 3.0 * np.tanh(0.75), rtol=1e-5)
    assert float(tight.update(tight.init(), epsilon=1.5, delta=1e-4).time.high) == 2.25
    assert float(tight.bound(tight.update(tight.init(), epsilon=1.5))) < float(
        plain.bound(plain.update(plain.init(), epsilon=1.5))
    )


def test_filter_odometer_touches_advanced_composition(f64):
    for target in (0.1, 1.0, 3.0):
        for slack in (1e-3, 1e-10):
            odo = FilterOdometer(slack, target, slack=slack)
            y = float(boundaries.advanced_composition_time(target, slack))
            np.testing.assert_allclose(odo.at(y), target, rtol=1e-12)
            np.testing.assert_allclose(
                jax.grad(odo.at)(y), jax.grad(boundaries.advanced_composition)(y, slack), rtol=1e-12
            )
            v = y * np.geomspace(1e-3, 1e3, 61)
            assert np.all(np.asarray(odo.at(v)) >= np.asarray(boundaries.advanced_composition(v, slack)))


def test_figures_of_the_paper(f64):
    """Parameters as proposed for its Figures 1 and 3: who is below whom, and by how much."""
    d, v = 1e-6, np.geomspace(1e-3, 1, 200)
    advanced = np.asarray(boundaries.advanced_composition(v, d))
    y = float(boundaries.advanced_composition_time(1.0, d))
    at = lambda odo: np.asarray(odo.at(v))
    filt, mixture = at(FilterOdometer(d, 1.0, slack=d)), at(MixtureOdometer.tightest_at(y, d, slack=d))
    wide, late = at(StitchedOdometer(d, 1e-3, slack=d)), at(StitchedOdometer(d, 5e-2, slack=d))
    for u in (filt, mixture, wide, late):
        assert np.all(u >= advanced)
    near = (v > y / 10) & (v < 10 * y)
    assert np.max((mixture / advanced)[near]) < 1.35 and np.max((filt / advanced)[near]) > 1.6
    assert np.all(np.isinf(late[v < 5e-2])) and np.all(np.isfinite(wide[v >= 1e-3]))
    assert np.all(late[v >= 5e-2] < wide[v >= 5e-2])
    odo = RogersOdometer(d, 10_000, slack=d)
    rogers = np.asarray(odo.trajectory(np.full(400, 0.05)))
    ours = np.asarray(MixtureOdometer.tightest_at(y, d, slack=d).trajectory(np.full(400, 0.05)))
    assert np.min(rogers / ours) > 1.2


@most_odometers
def test_jax_citizenship(f32, name):
    """The same from a compiled scan, vmap, a bank of odometers, a while_loop and one by one."""
    odo = ODOMETERS[name]()
    epsilon = np.random.default_rng(0).uniform(0.01, 0.3, 8).astype(np.float32)
    step = lambda o, s, e: o.update(s, epsilon=e, delta=1e-9)

    @jax.jit
    def every_way(odo, epsilon):
        final = jax.lax.scan(lambda s, x: (step(odo, s, x), None), odo.init(), epsilon)[0]
        lanes = jax.vmap(lambda e: odo.bound(step(odo, odo.init(), e)))(epsilon)
        bank = odo.bound(step(odo, odo.init((8,)), epsilon))
        limit = odo.bound(final)
        keep = lambda s: odo.bound(step(odo, s, epsilon[0])) < limit
        until = jax.lax.while_loop(keep, lambda s: step(odo, s, epsilon[0]), odo.init())
        return final, lanes, bank, limit, odo.bound(until)

    final, lanes, bank, limit, until = every_way(odo, epsilon)
    eager = odo.init()
    for e in epsilon:
        eager = step(odo, eager, e)
    chex.assert_trees_all_equal(final, eager)
    chex.assert_trees_all_equal_shapes_and_dtypes(final, odo.init())
    assert all(leaf.dtype in (dtype(), jnp.int32) for leaf in jax.tree.leaves(final))
    np.testing.assert_array_equal(lanes, bank)
    assert until < limit or name == "unrounded"


def test_a_bank_of_odometers_with_parameters_of_their_own(either):
    many = jax.jit(jax.vmap(lambda d, g: MixtureOdometer(d, g).at(0.5)))(np.array([1e-3, 1e-6]), np.array([0.1, 0.2]))
    each = [MixtureOdometer(d, g).at(0.5) for d, g in ((1e-3, 0.1), (1e-6, 0.2))]
    together = MixtureOdometer(np.array([1e-3, 1e-6]), np.array([0.1, 0.2])).at(0.5)
    np.testing.assert_allclose(many, each, rtol=1e-6)
    np.testing.assert_allclose(together, each, rtol=1e-6)


@most_odometers
def test_derivatives(f64, name):
    """In the per-step epsilons and in the free parameters, forward and reverse, against differences."""
    odo = ODOMETERS[name]()
    parameters = {
        "filter": ("epsilon", 1.0),
        "rogers": ("dataset_size", 1e4),
        "stitched": ("v0", 0.01),
        "unrounded": ("v0", 0.01),
    }
    field, value = parameters.get(name, ("gamma", 0.1))
    rest = {k: getattr(odo, k) for k in ("form", "s", "eta", "below_v0", "method") if hasattr(odo, k)}

    def bound(epsilon, parameter, slack):
        o = type(odo)(delta=1e-6, **{field: parameter}, slack=slack, **rest)
        run = lambda s, e: (o.update(s, epsilon=e), None)
        return o.bound(jax.lax.scan(run, o.init(), epsilon)[0])

    point = (jnp.asarray([0.1, 0.2, 0.15]), value, 4e-7)
    every = jax.jit(jax.value_and_grad(bound, (0, 1, 2)))
    f, reverse = (lambda *p: every(*p)[0]), every(*point)[1]
    if name in ("exact", "stitched"):
        chex.assert_trees_all_close(reverse, jax.jit(jax.jacfwd(bound, (0, 1, 2)))(*point), rtol=1e-10)
    for i, x in enumerate(point):
        basis = np.eye(3) if i == 0 else [1.0]
        for j, e in enumerate(basis):
            h = 1e-6 * (0.1 if i == 0 else x)
            shifted = [f(*(p + t * h * e if k == i else p for k, p in enumerate(point))) for t in (1, -1)]
            want = (shifted[0] - shifted[1]) / (2 * h)
            got = np.ravel(reverse[i])[j]
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6 * abs(float(f(*point))) / h * 1e-6)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: FilterOdometer(0.0, 1.0), "delta = 0.0"),
        (lambda: FilterOdometer(1e-6, 0.0), "epsilon = 0.0"),
        (lambda: FilterOdometer(1e-6, 1.0, slack=1e-5), "slack = 1e-05"),
        (lambda: MixtureOdometer(1e-6, -0.1), "gamma = -0.1"),
        (lambda: MixtureOdometer(1e-6, 0.1, form="printed"), "form = 'printed'"),
        (lambda: StitchedOdometer(1e-6, 0.1, s=1.0), "s = 1.0"),
        (lambda: StitchedOdometer(1e-6, 0.1, below_v0="flat"), "below_v0 = 'flat'"),
        (lambda: RogersOdometer(1e-6, 2), "dataset_size = 2.0"),
        (lambda: RogersOdometer(1e-6, 100, method="tight"), "method = 'tight'"),
        (lambda: MixtureOdometer(1e-6, 0.1).at(-1.0), "v = -1.0"),
        (lambda: _updated(epsilon=-0.1), "epsilon = -0.1"),
        (lambda: _updated(epsilon=math.nan), "epsilon = nan"),
        (lambda: _updated(epsilon=0.1, delta=1.5), "delta = 1.5"),
    ],
)
def test_bad_concrete_arguments_raise(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def _updated(*args, **kwargs):
    odo = MixtureOdometer(1e-6, 0.1)
    return odo.update(odo.init(), *args, **kwargs)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: _updated(), "got none"),
        (lambda: _updated(renyi=1.0), "got renyi"),
        (lambda: _updated(rho=0.1, delta=1e-9), "delta goes with epsilon only"),
        (lambda: _updated(mech.Gaussian(1.0), delta=1e-9), "delta goes with epsilon only"),
        (lambda: _updated(mech.PoissonSampled(0.1, mech.Gaussian(1.0))), "use RenyiFilter"),
        (lambda: RogersOdometer(1e-6, 100).bound(_updated(epsilon=0.1)), "state must come from this odometer"),
        (lambda: MixtureOdometer(1e-6, 0.1).bound(GDPFilter(1.0).init()), "state must come from this odometer"),
    ],
)
def test_misuse_raises(call, message):
    with pytest.raises(TypeError, match=message):
        call()


def test_bad_traced_values_give_nan(either):
    odo = MixtureOdometer(1e-6, 0.1)

    @jax.jit
    def after(epsilon, delta):
        state = odo.update(odo.init(), epsilon=epsilon, delta=delta)
        return odo.bound(odo.update(state, epsilon=0.1))  # for good

    assert all(np.isnan(after(e, d)) for e, d in ((-0.1, 0.0), (math.nan, 0.0)))
    assert not any(np.isfinite(after(0.1, d)) for d in (-1.0, math.nan, 2.0))
    made = jax.jit(lambda d, g, s: MixtureOdometer(d, g, s).at(1.0))
    for bad in ((-1e-6, 0.1, 1e-7), (1e-6, -0.1, 1e-7), (1e-6, 0.1, 1e-5), (1e-6, 0.1, 0.0), (1e-6, math.nan, 1e-7)):
        assert np.isnan(made(*bad))
    slopes = jax.jit(jax.grad(lambda g: MixtureOdometer(1e-6, g).at(1.0)))(-0.1)
    assert np.isnan(slopes)


def test_repr_states_the_guarantee(either):
    assert repr(StitchedOdometer(1e-6, 0.05)).endswith("P(privacy loss ever exceeds its bound) <= 1e-06")
