"""Random finite pairs on any grid, against all their outcomes in mpmath: no interval may exclude the truth.

The windows are cut through the body and the periods are too short on purpose: that may cost width, never honesty.
"""

import functools

import jax
import mpmath as mp
import numpy as np
import pytest

import dpjax
from dpjax.lattice import planning
from dpjax.lattice.cells import cells
from dpjax.lattice.solve import solve
from dpjax.lattice.spectrum import Grid, compose, tilted_deltas
from dpjax.laws.finite import FiniteLaw
from dpjax.laws.gaussian import GaussianLaw

ATOMS, POINTS, LANES = 4, 1024, 64
DYADIC = 2.0**52


@functools.partial(jax.jit, static_argnames="unknown")
def _found(law, count, given, cut, squeeze, unknown):
    def one(law, count, x, cut, squeeze):
        stack = jax.tree.map(lambda a: a[None], law)
        plan = planning.plan(jax.vmap(planning.sketch)(stack), count[None], x, unknown, 3e-4)
        plan = plan._replace(high=plan.high - cut * (plan.high - plan.low), period=plan.period * squeeze)
        grid = planning.grid(plan, POINTS)
        each = jax.vmap(lambda a, low: cells(a, low, grid.spacing, POINTS))(stack, grid.low)
        found = solve(compose(each, count[None], grid, POINTS), grid, x, plan, unknown, POINTS)
        return found.lower, found.upper

    return jax.vmap(one)(law, count, given, cut, squeeze)


def _pair(kind, random):
    """(p, q, P's mass at infinity, Q's, spacing); P's masses are multiples of 2^-52, so that they sum to 1 exactly."""
    infinite = random.choice([0.0, 0.0, 1e-3, 1e-9, 0.3])
    size = random.uniform(0, 1, ATOMS) * 10.0 ** -random.uniform(0, random.choice([0, 8]), ATOMS)
    p = np.maximum(np.floor(size / size.sum() * (1 - infinite) * DYADIC), 1.0) / DYADIC
    p[np.argmax(p)] += 0.0 if infinite else 1 - p.sum()
    unit = 0.0
    if kind == "any":
        q = random.uniform(0, 1, ATOMS) * 10.0 ** -random.uniform(0, random.choice([1, 8]), ATOMS)
        q = np.floor(q / q.sum() * DYADIC) / DYADIC
    else:
        if kind == "lattice":
            unit = random.choice([0.01, 0.1, 0.37, 1.0])
            loss = unit * random.integers(-6, 7, ATOMS)
        elif kind == "far":
            loss = random.uniform(100, 640, ATOMS)
        else:
            loss = np.append(random.uniform(-20, 20, ATOMS - 1), random.uniform(600, 700))
        over = np.log(np.sum(p * np.exp(-loss)))
        if over > 0:
            loss = loss + (unit * np.ceil(over / unit) if unit else over + 0.01)
        q = p * np.exp(-loss)
        if kind == "lattice":  # a hair off the points
            q = q * (1 + random.integers(-3, 4, ATOMS) * 2.0**-52)
    return p, q, max(1 - p.sum(), 0.0), max(1 - q.sum(), 0.0), unit


def _law(pairs):
    stack = []
    for p, q, top, bottom, unit in pairs:
        loss = np.log(p) - np.log(q)
        order = np.argsort(loss)
        stack.append(FiniteLaw(*map(np.asarray, (loss[order], p[order], q[order], top, bottom, unit))))
    return jax.tree.map(lambda *a: np.stack(a), *stack)


class _Exact:
    """All outcomes of ``count`` runs of a pair."""

    def __init__(self, pair, count):
        p, q, top, *_ = ([mp.mpf(float(a)) for a in np.atleast_1d(x)] for x in pair)
        loss = [mp.log(a / b) for a, b in zip(p, q, strict=True)]
        self.infinite = 1 - (1 - top[0]) ** count
        outcomes = []

        def draw(i, left, ways, total, mass):
            if i == ATOMS - 1:
                outcomes.append((total + left * loss[i], ways * mass * p[i] ** left))
                return
            for n in range(left + 1):
                draw(i + 1, left - n, ways * mp.binomial(left, n), total + n * loss[i], mass * p[i] ** n)

        draw(0, count, mp.mpf(1), mp.mpf(0), mp.mpf(1))
        self.outcomes = sorted(outcomes, reverse=True)

    def delta(self, epsilon):
        if np.isinf(epsilon):
            return self.infinite
        e = mp.mpf(float(epsilon))
        return self.infinite + mp.fsum(m * -mp.expm1(e - loss) for loss, m in self.outcomes if loss > e)


def _attack(seed):
    random = np.random.default_rng(seed)
    kinds = random.choice(["any", "lattice", "far", "beyond"], LANES, p=[0.3, 0.4, 0.15, 0.15])
    pairs = [_pair(kind, random) for kind in kinds]
    counts = random.choice([1, 1, 2, 3, 5, 8], LANES)
    exact = [_Exact(pair, int(k)) for pair, k in zip(pairs, counts, strict=True)]
    asked = []
    for one in exact:
        high, low = float(one.outcomes[0][0]), float(one.outcomes[-1][0])
        some = float(one.outcomes[random.integers(len(one.outcomes))][0])
        asked.append(random.choice([random.uniform(low, high), random.uniform(max(high - 1, low), high), some,
                                    high - 1e-6 * abs(high), high + 1e-9, random.uniform(-1, 1)]))  # fmt: skip
    truths = [one.delta(e) for one, e in zip(exact, asked, strict=True)]
    logs = np.array([min(float(mp.log(t)), -1e-9) if t > 1e-280 else -11.5 for t in truths])
    cuts, squeezes = random.choice([0, 0.2, 0.5, 0.9], LANES), random.choice([1, 0.3, 0.1, 0.02, 1e-3], LANES)
    law = _law(pairs)
    for cut, squeeze in ((0 * cuts, 0 * squeezes + 1.0), (cuts, squeezes)):
        with jax.enable_x64(True):
            numbers = law, counts * 1.0, np.array(asked), cut, squeeze
            lower, upper = map(np.asarray, _found(*numbers, unknown="delta"))
            least, most = map(np.asarray, _found(*numbers[:2], logs, *numbers[3:], unknown="epsilon"))
        for i, (one, truth) in enumerate(zip(exact, truths, strict=True)):
            what = f"seed {seed}, lane {i} ({kinds[i]}), cut {cut[i]}, squeeze {squeeze[i]}"
            if truth > 1e-300:
                assert mp.mpf(float(lower[i])) <= mp.log(truth) <= mp.mpf(float(upper[i])), what
            target = mp.exp(mp.mpf(float(logs[i])))
            assert not np.isnan(least[i]) and least[i] <= most[i], what
            assert np.isinf(most[i]) or one.delta(most[i]) <= target, what
            if least[i] > 0:
                found = one.delta(least[i])
                assert found > target if np.isinf(least[i]) else found >= target, what


@pytest.mark.parametrize("seed", range(3))
def test_no_interval_excludes_the_truth(seed):
    with mp.workdps(60):
        _attack(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 160))
def test_no_interval_excludes_the_truth_of_many(seed):
    with mp.workdps(60):
        _attack(seed)


def test_aliases_are_those_of_the_lower_law():
    # the last loss is beyond the grid: infinite to the upper law, at the top to the lower one
    p = np.array([0.287959357977722, 0.18995004384557257, 0.31392163309250654, 0.10026227590079673])
    q = np.array([0.9900098670357154, 3.9966712820373945e-05, 6.33113921683026e-13, 7.78704361785981e-299])
    pair = p, q, 0.10790668918340218, 0.009950166250831116, 0.0
    with jax.enable_x64(True), mp.workdps(40):
        law, lanes = _law([pair] * LANES), np.ones(LANES)  # as many as in the program that is there already
        numbers = law, 3.0 * lanes, 0.2833911357773604 * lanes, 0.0 * lanes, lanes
        lower, upper = map(np.asarray, _found(*numbers, unknown="delta"))
        assert float(lower[0]) <= mp.log(_Exact(pair, 3).delta(0.2833911357773604)) <= float(upper[0])


def test_finite_masses_next_to_infinite_ones():
    # Q's finite mass is 1e-56: 1 - q_infinite is 0
    loss = np.array([126.0, 166.0, 354.0, 507.0])
    p = np.array([0.25, 0.25, 0.375, 0.125])
    law = FiniteLaw(loss, p, p * np.exp(-loss), 0.0, 1.0, 0.0)
    with jax.enable_x64(True):
        c = jax.jit(lambda law: cells(law, 200.0, 0.5, POINTS))(law)
    assert np.asarray(c.surplus).max() <= 0.375
    q = (np.asarray(c.p) - np.asarray(c.surplus)) / np.exp((200 + np.arange(POINTS - 1)) * 0.5)
    np.testing.assert_allclose(q.sum(), 0.25 * np.exp(-126.0), rtol=1e-9)


def test_kernel_does_not_cancel():
    from dpjax.lattice.spectrum import _kernel

    with jax.enable_x64(True), mp.workdps(40):
        for s, h in ((1e-3, 1e-6), (1.0, 1e-9), (50.0, 1e-3), (3.0, 5.0), (300.0, 1.0)):
            re, im = map(np.asarray, _kernel(Grid(s, 2 * s, h, np.zeros(1), 0.0), 64))
            for j in (0, 1, 7, 31, 32):
                z, step = mp.mpc(mp.mpf(s) * mp.mpf(h), -2 * mp.pi * j / 64), mp.mpf(h)
                truth = 1 / mp.expm1(z) - 1 / mp.expm1(z + step)
                assert abs(mp.mpc(re[j], im[j]) - truth) <= (16 + 2 * s * h) * mp.mpf(2) ** -53 * abs(truth), (s, h, j)


@jax.jit
def _tilted(mean, count, grid):
    def one(mean, count, grid):
        c = cells(GaussianLaw(mean), grid.low[0], grid.spacing, 128)
        end, _ = compose(jax.tree.map(lambda a: a[None], c), count[None], grid, 128)
        return *tilted_deltas(end, grid, 128), end.log_m

    return jax.vmap(one)(mean, count, grid)


def test_rounding_is_bounded():
    """A_J of dots that are connected exactly, spectrum and all, in mpmath; the largest error seen is 0.11 of its bound."""
    n = 128
    cases = [  # mean, count, tilt, spacing
        (0.15, 10.0, 1.08, 2.0**-6), (0.002, 1e8, 43.0, 2.0**-7), (1.6e-4, 1e6, 44.5, 2.0**-11), (1.2e-4, 1e8, 66.7, 2.0**-17),
        (0.44, 100.0, 0.6, 2.0**-4), (4.7, 100.0, 0.03, 0.5), (1e-4, 1e6, 0.02, 2.0**-17), (0.17, 1.0, 93.0, 2.0**-5),
    ]  # fmt: skip
    mean, count, tilt, spacing = (np.array(x) for x in zip(*cases, strict=True))
    low = np.floor(mean**2 * (0.5 + tilt) / spacing) - n // 2
    with jax.enable_x64(True):
        grid = Grid(tilt, 2 * tilt, spacing, low[:, None], 0 * tilt + 1e-9)
        values, error, log_m = map(np.asarray, _tilted(mean, count, grid))
    with mp.workdps(50):
        for i, (m, k, s, h) in enumerate(cases):
            m, s, h = mp.mpf(m), mp.mpf(s), mp.mpf(h)
            at = [(int(low[i]) + j) * h for j in range(n)]
            above = [[mp.erfc((a / m + side * m / 2) / mp.sqrt(2)) / 2 for a in at] for side in (-1, 1)]
            w = [mp.mpf(0)] * n
            for j in range(n - 1):
                p, q = (t[j] - t[j + 1] for t in above)
                up = (p - mp.exp(at[j]) * q) / -mp.expm1(-h)
                w[j + 1], w[j] = up, w[j] + p - up
            w[0] += 1 - above[0][0]
            w[-1] += mp.exp(at[-1]) * above[1][-1]
            w = [a * mp.exp(s * e) for a, e in zip(w, at, strict=True)]
            root = [mp.expjpi(mp.mpf(2) * a / n) for a in range(n)]
            terms = []
            for t in range(n // 2 + 1):
                z = mp.mpc(s * h, -2 * mp.pi * t / n)
                power = mp.fsum(a * root[-j * t % n] for j, a in enumerate(w)) ** int(k)
                terms.append(power * (1 / mp.expm1(z) - 1 / mp.expm1(z + h)) * root[-int(k) * int(low[i]) * t % n])
            for place in (0, 1, 40, 64, 100):
                each = [(1 if t in (0, n // 2) else 2) * mp.re(a * root[place * t % n]) for t, a in enumerate(terms)]
                truth = mp.fsum(each) / n * mp.exp(-mp.mpf(float(log_m[i])))
                assert abs(mp.mpf(float(values[i, place])) - truth) <= 0.5 * error[i], cases[i]


def test_nothing_that_is_valid_gives_nan():
    few = {"max_nodes": 64, "rtol": 0.5}
    response = dpjax.RandomizedResponse(1.0) * 2
    nothing = dpjax.Composed([response, dpjax.MassAtInfinity(1.0) * 0])
    found = dpjax.delta_bounds(nothing, 1.0, **few)
    truth = (np.e / (1 + np.e)) ** 2 * -np.expm1(-1.0)
    assert found.lower <= truth <= found.upper <= 1.5 * truth
    assert dpjax.delta(dpjax.Composed([response, dpjax.MassAtInfinity(1.0)]), 1.0, **few) == 1.0


@pytest.mark.slow
def test_losses_beyond_any_grid():
    halves = dpjax.MixtureOfGaussians(1.0, np.array([1.0, 60.0]), np.array([0.5, 0.5]))
    found = dpjax.delta_bounds(halves, 1.0, adjacency=dpjax.Adjacency.REMOVE, method="lattice")
    once = dpjax.delta_bounds(halves, 1.0, adjacency=dpjax.Adjacency.REMOVE)
    assert found.lower <= once.upper and once.lower <= found.upper < 0.53


def test_beyond_the_largest_loss_is_the_mass_at_infinity():
    for mass in (0.1, 1e-5, 1e-12):
        record = dpjax.Composed([dpjax.RandomizedResponse(1.0) * 2, dpjax.MassAtInfinity(mass) * 3])
        with mp.workdps(40):
            truth = mp.log1p(-((1 - mp.mpf(mass)) ** 3))
            assert truth <= float(dpjax.log_delta(record, 2.5, max_nodes=64, rtol=0.5)) <= truth + mp.mpf(2) ** -44


@pytest.mark.parametrize("log_delta", [-692.0, -703.0, -715.0, -1500.0])
def test_epsilon_where_delta_is_hardly_a_float(log_delta):
    """A Gaussian and randomised responses: a binomial mixture of Gaussian profiles. Nothing may be claimed from flushed masses."""
    sigma, unit, count = 50.0, 0.01, 100

    def truth(e):
        p, mu = 1 / (1 + mp.exp(-mp.mpf(unit))), 1 / mp.mpf(sigma)
        gauss = lambda x: mp.ncdf(mu / 2 - x / mu) - mp.exp(x) * mp.ncdf(-mu / 2 - x / mu)
        weight = lambda j: mp.binomial(count, j) * p**j * (1 - p) ** (count - j)
        return mp.log(sum(weight(j) * gauss(e - (2 * j - count) * mp.mpf(unit)) for j in range(count + 1)))

    record = dpjax.Gaussian(sigma) + dpjax.RandomizedResponse(unit) * count
    found = dpjax.epsilon_bounds(record, log_delta=log_delta)
    with mp.workdps(60):
        assert truth(mp.mpf(float(found.lower))) >= log_delta
        assert np.isinf(found.upper) or truth(mp.mpf(float(found.upper))) <= log_delta
