"""The Renyi divergence of the sampled Gaussian, and the costs of mechanisms, are never below the truth."""

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest

import dpjax.mechanisms as mech
from dpjax.adaptive import _costs, _sums
from dpjax.adaptive._renyi import poisson_gaussian_renyi
from dpjax.mechanisms import Adjacency


def truth(order, sigma, q, remove):
    """By the trapezoid rule in 30 digits, with a step a third of what the digits need."""
    a, s, q = (mp.mpf(float(x)) for x in (order, sigma, q))
    e = a if remove else 1 - a
    low, high = min(e, 0) - 13 * s, max(e, 1) + 13 * s
    step = min(s / 8, 2 * mp.pi**2 * s * s / (75 + mp.pi**2 * s * s / 2) / 2)
    n = int((high - low) / step)
    total = mp.mpf(0)
    for i in range(n + 1):
        x = low + i * step
        u = q * mp.expm1((2 * x - 1) / (2 * s * s))
        total += mp.exp(-x * x / (2 * s * s)) * (mp.power(1 + u, e) - 1 - e * u)
    return mp.log1p(total * step / (s * mp.sqrt(2 * mp.pi))) / (a - 1)


def random_settings(n, seed):
    rng = np.random.default_rng(seed)
    order = 1 + 10 ** rng.uniform(-2, 2, n)
    return order, 10 ** rng.uniform(-0.5, 1.3, n), 10 ** rng.uniform(-6, -0.01, n)


@pytest.mark.parametrize("remove", [True, False])
def test_never_below_the_truth(x64, remove, rdp_poisson_gaussian):
    """At stored references and at random settings, in one call."""
    rows = [row for row in rdp_poisson_gaussian if (row["direction"] == "remove") == remove]
    stored = [[float(row[k]) for row in rows] for k in ("alpha", "sigma", "q")]
    settings = [np.asarray(jnp.asarray(np.r_[a, b])) for a, b in zip(stored, random_settings(14, 3), strict=True)]
    values = np.asarray(poisson_gaussian_renyi(*map(jnp.asarray, settings), "remove" if remove else "add"))
    # in float32 the rows' decimals are other numbers: there the truth is computed at those
    exact = [mp.mpf(row["rdp"]) if x64 else truth(*s, remove) for row, *s in zip(rows, *settings, strict=False)]
    exact += [truth(*s, remove) for s in zip(*(x[len(rows) :] for x in settings), strict=True)]
    excess = np.array([float(mp.mpf(float(v)) / t - 1) for v, t in zip(values, exact, strict=True)])
    at_rows, elsewhere = excess[: len(rows)], excess[len(rows) :]
    assert len(at_rows) >= 6 and np.all(at_rows >= (-1e-15 if x64 else 0)), at_rows
    assert np.all(at_rows <= (1e-12 if x64 else 3e-4))
    assert np.all(elsewhere >= 0) and np.median(elsewhere) < (1e-12 if x64 else 2e-4)


@pytest.mark.slow
@pytest.mark.parametrize("remove", [True, False])
def test_never_below_the_truth_in_many_settings(x64, remove):
    order, sigma, q = (jnp.asarray(x) for x in random_settings(150, 4))
    values = poisson_gaussian_renyi(order, sigma, q, "remove" if remove else "add")
    for v, a, s, p in zip(*map(np.asarray, (values, order, sigma, q)), strict=True):
        assert mp.mpf(float(v)) >= truth(a, s, p, remove)


def test_coarse_grids_fall_back_to_convexity(f32):
    value = float(poisson_gaussian_renyi(*map(jnp.float32, (200.0, 0.05, 1e-3))))
    exponent = 200 * 199 / (2 * 0.05**2)
    assert np.isfinite(value) and value <= (exponent + np.log(1e-3)) / 199 * (1 + 1e-5)


def test_limits(f32):
    f = lambda a, s, q: float(poisson_gaussian_renyi(*map(jnp.float32, (a, s, q))))
    assert f(2, 1, 0) == 0 and f(2, np.inf, 0.5) == 0 and f(2, 0, 0.5) == np.inf and f(2, 0, 0) == 0
    np.testing.assert_allclose(f(3, 2, 1), 3 / 8, rtol=1e-6)
    for bad in ((1, 1, 0.5), (0.5, 1, 0.5), (2, -1, 0.5), (2, 1, -0.1), (2, 1, 1.1), (2, np.nan, 0.1)):
        assert np.isnan(f(*bad))


def test_derivatives(f64):
    points = np.array([(1.5, 1.0, 0.01), (8.0, 2.0, 0.1)]).T
    total = lambda *p: jnp.sum(poisson_gaussian_renyi(*p, "remove"))
    slopes = np.asarray(jax.jit(jax.grad(total, (0, 1, 2)))(*points))
    for p, slope in zip(points.T, slopes.T, strict=True):
        for i, got in enumerate(slope):
            h = 1e-5 * p[i]
            up, down = (truth(*[x + t * h * (i == j) for j, x in enumerate(p)], True) for t in (1, -1))
            np.testing.assert_allclose(got, float((up - down) / (2 * h)), rtol=1e-6)


def value(pair):
    return float(pair[0]) + float(pair[1])


def cost(mechanism, unit, adjacency=Adjacency.ADD_OR_REMOVE_ONE, order=None):
    dtype = _sums.default_dtype()
    order = None if order is None else jnp.asarray(order, dtype)
    compute = _costs.cost if unit == "renyi" else _COST  # the quadrature is a program of its own
    return compute(_costs.prepare(mechanism, dtype), unit, adjacency, dtype, order)


_COST = jax.jit(_costs.cost, static_argnums=(1, 2, 3))


def test_gaussian_costs(either):
    assert value(cost(mech.Gaussian(2.0), "mu_squared")) == 0.25
    assert value(cost(mech.Gaussian(2.0), "rho")) == 0.125
    assert value(cost(mech.Gaussian(2.0), "renyi", order=8.0)) == 1.0
    assert value(cost(mech.Gaussian(2.0), "rho", Adjacency.REPLACE_ONE)) == 0.5
    assert value(cost(mech.Gaussian(0.0), "rho")) == np.inf and value(cost(mech.Gaussian(np.inf), "rho")) == 0
    for sigma in (0.3, 1.1, 7.3):
        exact = 1 / (2 * float(sigma) ** 2)
        assert exact * (1 - 1e-15) <= value(cost(mech.Gaussian(sigma), "rho")) <= exact * (1 + 1e-5)


def test_costs_add_over_compositions(f32):
    one = mech.Gaussian(2.0)
    assert value(cost(one * 4, "mu_squared")) == 1.0
    assert value(cost(one * 4 + one, "mu_squared")) == 1.25
    assert value(cost(mech.Composed([]), "rho")) == 0.0
    assert value(cost(mech.ComposedOver(mech.Gaussian(np.array([2.0, 1.0, 2.0]))), "mu_squared")) == 1.5
    assert value(cost(mech.ComposedOver(mech.SelfComposed(mech.Gaussian(2.0), np.array([1, 0, 3]))), "rho")) == 0.5
    assert value(cost(mech.SelfComposed(mech.Gaussian(0.0), 0), "rho")) == 0.0
    step = mech.PoissonSampled(0.01, mech.Gaussian(1.0))
    single = value(cost(step, "renyi", order=2.0))
    np.testing.assert_allclose(value(cost(step * 10, "renyi", order=2.0)), 10 * single, rtol=1e-6)
    vector = cost(step, "renyi", order=[2.0, 4.0])[0]
    assert vector.shape == (2,) and np.isclose(float(vector[0]), single)
    costs = [value(cost(step, "renyi", a, order=2.0)) for a in (Adjacency.ADD, Adjacency.REMOVE)]
    assert costs[0] < costs[1] == single
    with pytest.raises(ValueError, match="no axis"):
        cost(mech.ComposedOver(mech.Gaussian(np.ones(3)), axis=-2), "rho")


def test_refusals():
    step = mech.PoissonSampled(0.01, mech.Gaussian(1.0))
    for unit in ("rho", "mu_squared"):
        with pytest.raises(TypeError, match="use RenyiFilter"):
            cost(step, unit)
    with pytest.raises(ValueError, match="REPLACE_ONE"):
        cost(step, "renyi", Adjacency.REPLACE_ONE, 2.0)
    with pytest.raises(TypeError, match="must be a dpjax mechanism"):
        cost(1.0, "rho")
    with pytest.raises(ValueError, match="noise_multiplier = -1"):
        cost(mech.Gaussian(-1.0), "rho")


def blended_truth(order, sigma, parts, remove):
    """log of the mean of exp((order - 1) D) over (probability, noise, rate)."""
    gap = mp.mpf(float(order)) - 1
    mean = sum(p * mp.exp(gap * truth(order, s, q, remove)) for p, s, q in parts if p > 0)
    return mp.log(mean) / gap


def kept_and_full(size, rate, limit):
    """P(``limit`` of the others are drawn), and that the record is drawn and kept then: sums of binomial terms."""
    size, limit, rate = int(size), int(limit), mp.mpf(float(rate))
    full = kept = mp.mpf(0)
    for drawn in range(limit, size):
        weight = mp.binomial(size - 1, drawn) * rate**drawn * (1 - rate) ** (size - 1 - drawn)
        full, kept = full + weight, kept + weight * rate * limit / (drawn + 1)
    return full, kept / full if full else full


@pytest.mark.parametrize("direction", [Adjacency.REMOVE, Adjacency.ADD])
def test_batches_of_limited_size(either, direction):
    """From above, and close: the pair is a coin that is seen, over two Poisson-sampled Gaussians."""
    orders = [1.5, 4.0, 40.0]
    for size, rate, limit, sigma in ((50, 0.1, 8, 2.0), (20, 0.5, 3, 4.0), (100, 0.01, 60, 2.0), (6, 1.0, 2, 3.0)):
        rate = float(np.asarray(jnp.asarray(rate)))  # the number that a float32 stands for
        found = np.asarray(
            cost(mech.TruncatedPoissonSampled(size, rate, limit, mech.Gaussian(sigma)), "renyi", direction, orders)[0]
        )
        full, share = kept_and_full(size, rate, limit)
        parts = [(full, sigma / 2, float(share)), (1 - full, sigma, min(rate, 1 - 1e-12))]
        for order, value in zip(orders, found, strict=True):
            exact = blended_truth(order, sigma, parts, direction is Adjacency.REMOVE)
            assert exact * (1 - mp.mpf(10) ** -11) <= value <= exact * (1 + (1e-9 if either else 1e-3)), (size, order)


def test_batches_of_fixed_size(f32):
    found = cost(mech.FixedSizeSampled(50, 5, mech.Gaussian(4.0)), "renyi", order=[2.0, 8.0])[0]
    poisson = cost(mech.PoissonSampled(0.1, mech.Gaussian(2.0)), "renyi", order=[2.0, 8.0])[0]
    np.testing.assert_allclose(found, poisson, rtol=1e-4)
    assert (np.asarray(found) >= np.asarray(poisson) * (1 - 1e-6)).all()


def test_sized_batches_at_their_limits(f32):
    gaussian = mech.Gaussian(2.0)
    ask = lambda m: value(cost(m, "renyi", order=3.0))
    truncated = lambda n, q, b, base=gaussian: mech.TruncatedPoissonSampled(n, q, b, base)
    assert ask(truncated(9, 0.0, 3)) == 0 and ask(mech.FixedSizeSampled(9, 0, gaussian)) == 0
    assert ask(truncated(9, 0.3, 3, mech.Gaussian(0.0))) == np.inf
    np.testing.assert_allclose(ask(truncated(9, 0.3, 9)), ask(mech.PoissonSampled(0.3, gaussian)), rtol=1e-5)
    np.testing.assert_allclose(ask(truncated(9, 1.0, 3)), ask(mech.FixedSizeSampled(9, 3, gaussian)), rtol=1e-5)
    # 2^24 + 1 records are no float32, and the answer is that of so many
    many = ask(truncated(2**24 + 1, 1e-3, 16700, mech.Gaussian(1.0)))
    assert 0 < many < 0.1


@pytest.mark.slow
def test_sized_batches_in_schedules_and_traces(f32):
    step = lambda q: mech.TruncatedPoissonSampled(50, q, 8, mech.Gaussian(2.0))
    each = [value(cost(step(q), "renyi", order=2.0)) for q in (0.05, 0.1)]
    schedule = mech.ComposedOver(step(np.array([0.05, 0.1])))
    np.testing.assert_allclose(value(cost(schedule, "renyi", order=2.0)), sum(each), rtol=1e-5)
    np.testing.assert_allclose(value(cost(step(0.1) * 7, "renyi", order=2.0)), 7 * each[1], rtol=1e-5)
    traced = jax.jit(lambda q: cost(step(q), "renyi", order=2.0)[0])
    np.testing.assert_allclose([traced(q) for q in (0.05, 0.1)], each, rtol=1e-5)
    assert np.isnan(traced(1.5)) and np.isnan(traced(-0.1))
    fixed = jax.jit(lambda n: cost(mech.FixedSizeSampled(50, n, mech.Gaussian(2.0)), "renyi", order=2.0)[0])
    assert np.isnan(fixed(51.0)) and np.isnan(fixed(2.5)) and fixed(5.0) > 0


def test_sized_batches_are_refused_where_there_is_no_price():
    for record in (
        mech.TruncatedPoissonSampled(50, 0.1, 8, mech.Gaussian(2.0)), mech.FixedSizeSampled(50, 5, mech.Gaussian(2.0))
    ):  # fmt: skip
        for unit in ("rho", "mu_squared"):
            with pytest.raises(TypeError, match="use RenyiFilter"):
                cost(record, unit)
        for adjacency in (Adjacency.REPLACE_ONE, Adjacency.REPLACE_SPECIAL):
            with pytest.raises(ValueError, match="dpjax.renyi says"):
                cost(record, "renyi", adjacency, 2.0)
    with pytest.raises(TypeError, match="sampled Laplace"):
        cost(mech.FixedSizeSampled(50, 5, mech.Laplace(2.0)), "renyi", order=2.0)
