"""The certificate of a contour: every term is needed, every term is enough, and the ends enclose an independent truth."""

import importlib
import math
import sys
from decimal import Decimal
from pathlib import Path

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest

from dpjax import _plan, contour, cumulant
from dpjax.mechanisms import Adjacency, Gaussian, PoissonSampled
from dpjax.pairs import SampledGaussianPair, dominating_pair

sys.path.append(str(Path(__file__).parent / "oracles"))
long_double = importlib.import_module("long_double")
closed_forms = importlib.import_module("closed_forms")
poisson_gaussian = importlib.import_module("poisson_gaussian")

DIRECTIONS = {"remove": Adjacency.REMOVE, "add": Adjacency.ADD, "replace": Adjacency.REPLACE_ONE}
CAPACITY = 512
LANES = 16
TERMS = ("alias_up", "alias_down", "truncation", "inner", "rounding")


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def problem_of(cases):
    """One lane for each (direction, sigma, q, count); remove and add mix, replace has two parts and is apart."""
    pairs = [dominating_pair(PoissonSampled(q, Gaussian(sigma)), DIRECTIONS[d]) for d, sigma, q, _ in cases]
    pair = SampledGaussianPair(*(jnp.asarray(np.stack(field), float)[:, None] for field in zip(*pairs, strict=True)))
    return _plan.Problem(jnp.zeros(len(cases)), pair, jnp.asarray([[float(case[3])] for case in cases]))


def true_log_delta(case, eps, guess=None):
    """log delta by ball arithmetic at the exact float64 parameters, or None where that program does not go."""
    direction, sigma, q, count = case
    exact = lambda x: str(Decimal(float(x)))
    factor = poisson_gaussian.Factor(exact(sigma), exact(q), str(int(count)))
    mechanism = poisson_gaussian.Mechanism([factor], direction)
    if float(eps) >= mechanism.largest_loss:
        return -math.inf
    try:
        first, second = (
            poisson_gaussian.delta(mechanism, exact(eps), tol=1e-16, second=other, log_delta=guess)
            for other in (False, True)
        )
    except ValueError:
        return None
    # that program is exact where its two settings agree
    return float(first.log().mid()) if 0 < first <= 1 and abs(first / second - 1) < 1e-14 else None


@jax.jit
def plan_for(problem, eps, log_delta, tol):
    return contour.plan(problem, eps, log_delta, tol, tol > 0, CAPACITY)


@jax.jit
def evaluate(problem, plan, eps):
    tilt = contour.fix_tilt(problem, plan, CAPACITY)
    on = contour.line(problem, plan, tilt, CAPACITY, 64)
    at = jax.tree.map(lambda a: a[:, 0], contour.sums(plan, tilt, on, eps[:, None]))
    return tilt, on, at, contour.certify(problem, plan, tilt, on, eps, at)


# ---------------------------------------------------------------------------------------------------------------------
# Every term is needed


DENSE, DENSE_EPS = ("remove", 1.0, 0.01, 1000.0), 1.8282


def ends(case, eps, without=None, **changes):
    """(lower, upper) relative to the truth, at a plan with ``changes``, ``without`` one of the certificate's terms."""
    problem, at_eps = problem_of([case]), jnp.asarray([eps])
    truth = true_log_delta(case, eps)
    plan = plan_for(problem, at_eps, jnp.asarray([truth]), jnp.asarray([1e-10]))
    plan = plan._replace(**{name: jnp.full_like(getattr(plan, name), value) for name, value in changes.items()})
    _, _, at, certificate = evaluate(problem, plan, at_eps)
    term = {name: float(getattr(certificate, name)[0]) for name in TERMS}
    if without is not None:
        term[without] = 0.0
    over = term["truncation"] + term["inner"] + term["rounding"]
    under = over + term["alias_up"] + term["alias_down"]
    estimate, total = float(at.estimate[0]), float(at.total[0])
    return estimate - under, min(estimate, total) + over


def holds(found):
    lower, upper = found
    return lower <= 1 <= upper


def test_the_planned_contour_is_narrow():
    lower, upper = ends(DENSE, DENSE_EPS)
    assert lower <= 1 <= upper and upper - lower < 2e-10


FINE = {"step": 0.02, "nodes": 40.0}
NEEDED = {
    # a tilt above the saddle's and a short period: the terms above count
    "alias_up": {"s": 6.4, "period": 3.0, **FINE},
    # a small tilt and a short period: the terms below are known only to within A'
    "alias_down": {"s": 2.13, "period": 3.0, **FINE},
    "truncation": {"nodes": 12.0},
}


@pytest.mark.parametrize("term", NEEDED)
def test_the_bound_breaks_without(term):
    assert holds(ends(DENSE, DENSE_EPS, **NEEDED[term]))
    assert not holds(ends(DENSE, DENSE_EPS, without=term, **NEEDED[term]))


def test_the_upper_end_needs_the_known_aliases_bound():
    """S - A, without A', lies below the truth."""
    changes = NEEDED["alias_down"]
    truth = true_log_delta(DENSE, DENSE_EPS)
    a_prime = math.exp(DENSE_EPS - (1 + changes["s"]) * changes["period"] - truth)
    lower, upper = ends(DENSE, DENSE_EPS, **changes)
    assert upper >= 1 > upper - a_prime


def test_the_bound_breaks_without_the_inner_quadrature():
    case, eps = ("remove", 0.8, 0.01, 100.0), 1.0
    changes = {"step": 0.5}  # so coarse that the inner sums' errors are above all others
    assert holds(ends(case, eps, **changes))
    assert not holds(ends(case, eps, without="inner", **changes))


def test_the_bound_breaks_without_rounding():
    """Small tilts, where terms 1e5 times the sum cancel and every other error is far below an ulp of them."""
    broken = 0
    for s in np.linspace(0.04, 0.12, 6):
        changes = {"s": s, "period": 60.0, "nodes": 400.0, "step": 0.05}
        assert holds(ends(DENSE, DENSE_EPS, **changes))
        broken += not holds(ends(DENSE, DENSE_EPS, without="rounding", **changes))
    assert broken >= 4


# ---------------------------------------------------------------------------------------------------------------------
# Rounding, against the same sum in 80 bits


FAMILIES = {"one part": ("remove", "add"), "two parts": ("replace",)}


def random_cases(rng, family):
    """(cases, log deltas): bodies of a Gaussian's shape, sparse ones and few steps."""
    cases, logs = [], []
    for i in range(LANES):
        sigma, q = float(np.exp(rng.uniform(np.log(0.4), np.log(20)))), float(10 ** rng.uniform(-5, -0.25))
        bodies = (rng.uniform(0.5, 5) * sigma / q) ** 2 * min(1.0, sigma**2)
        k = (bodies, rng.uniform(0.5, 20) / q, 10 ** rng.uniform(0.3, 4))[i % 3]
        cases.append((str(rng.choice(FAMILIES[family])), sigma, q, float(np.clip(np.round(k), 2, 1e8))))
        logs.append(-float(rng.uniform(0.5, 35)))
    return cases, np.array(logs)


@pytest.mark.skipif(not long_double.usable, reason="needs an 80-bit long double")
@pytest.mark.parametrize("family", [pytest.param(f, marks=pytest.mark.slow) if "two" in f else f for f in FAMILIES])
def test_rounding_is_below_a_third_of_its_bound(family):
    cases, logs = random_cases(np.random.default_rng(0), family)
    problem, none = problem_of(cases), jnp.full((LANES,), jnp.nan)
    tol = jnp.full((LANES,), 1e-10)
    eps = plan_for(problem, none, jnp.asarray(logs), tol).epsilon
    plan = plan_for(problem, eps, none, tol)
    tilt, on, at, certificate = evaluate(problem, plan, eps)
    fine = cumulant.real_step(problem.pair, plan.s, 0 * problem.pair.sigma)
    low, high, height, step, fine, mean = (
        np.asarray(a)[:, 0]
        for a in (
            tilt.inner.window.low,
            tilt.inner.window.high,
            tilt.inner.height,
            tilt.inner.step,
            fine,
            tilt.inner.real.mean,
        )
    )
    number = lambda step: np.ceil((high - low) / step).astype(int) + 1
    counts, of_k = number(step), number(fine)
    tested = 0
    for i, (direction, sigma, q, k) in enumerate(cases):
        nodes = float(plan.nodes[i])
        if not nodes <= CAPACITY or nodes * counts[i] > 4e5 or not eps[i] > 0:
            continue
        factor = (sigma, q, k, low[i], (fine[i], of_k[i]), (height[i], step[i], counts[i]), mean[i])
        numbers = (float(plan.s[i]), float(on.h[i]), nodes, float(eps[i]), float(plan.log_delta[i]))
        exact = long_double.trapezoid(direction, 0.0, [factor], *numbers)[0]
        error = abs(float(np.longdouble(float(at.total[i])) - exact))
        assert error <= float(certificate.rounding[i]) / 3, cases[i]
        tested += 1
    assert tested >= LANES // 2


# ---------------------------------------------------------------------------------------------------------------------
# The bounds that need no contour


def test_xlogx_and_limits_against_mpmath():
    rng = np.random.default_rng(1)
    s = np.exp(rng.uniform(np.log(1e-5), np.log(1e9), 200))
    got = np.asarray(_plan.xlogx(jnp.asarray(s)))
    q = np.concatenate([10 ** rng.uniform(-8, -0.01, 20), 1 - 10 ** rng.uniform(-9, -1, 12)])
    k = np.round(10 ** rng.uniform(0.3, 8, 32))
    problem = problem_of([("add", 1.0, a, b) for a, b in zip(q, k, strict=True)])
    largest, touched = np.asarray(_plan.largest_loss(problem)), np.asarray(_plan.log_touched(problem))
    with mp.workdps(50):
        for x, y in zip(s, got, strict=True):
            truth = x * mp.log(x) - (1 + mp.mpf(x)) * mp.log1p(x)
            # used as an exponent: 1e-15 of the larger of its two terms
            assert abs(mp.mpf(float(y)) - truth) <= 4e-16 * (abs(x * mp.log(x)) + (1 + x) * mp.log1p(x))
        for i in range(32):
            loss = -mp.mpf(k[i]) * mp.log1p(-mp.mpf(q[i]))
            assert loss <= mp.mpf(float(largest[i])) <= loss * (1 + mp.mpf("1e-12"))
            seen = mp.log(-mp.expm1(-loss))
            assert seen <= mp.mpf(float(touched[i])) <= seen + mp.mpf("1e-12")
    free = _plan.largest_loss(problem_of([("remove", 1.0, 0.1, 5), ("add", 1.0, 1.0, 5)]))
    assert np.all(np.isinf(np.asarray(free)))
    assert np.isinf(np.asarray(_plan.largest_loss(problem_of([("replace", 1.0, 0.1, 5)])))[0])


# ---------------------------------------------------------------------------------------------------------------------
# End to end


def solve(cases, given, unknown, tol):
    """(lower, estimate, upper) for up to LANES cases, padded with the first."""
    full = [cases[i] if i < len(cases) else cases[0] for i in range(LANES)]
    values = jnp.asarray([given[i] if i < len(given) else given[0] for i in range(LANES)])
    found = contour.solve(problem_of(full), values, tol=tol, unknown=unknown, capacity=CAPACITY, block=64)
    return [np.asarray(a)[: len(cases)] for a in (found.lower, found.estimate, found.upper)]


def ordered(lower, estimate, upper):
    return bool(np.all((lower <= estimate) & (estimate <= upper)))  # False where one is NaN


SLACK = 2e-16  # the rounding of log delta itself, relative


def assert_encloses(cases, logs, tol):
    """The ends for epsilon, and for delta at the epsilon found, on the right sides of the truth; returns what was seen."""
    tested = 0
    lower, estimate, upper = solve(cases, logs, "epsilon", tol)
    assert ordered(lower, estimate, upper) and np.all(lower >= 0)
    for case, log_delta, low, high in zip(cases, logs, lower, upper, strict=True):
        truth = true_log_delta(case, high, float(log_delta)) if np.isfinite(high) else None
        if truth is not None:
            assert truth <= log_delta + SLACK * abs(log_delta), (case, log_delta, high)
            tested += 1
        truth = true_log_delta(case, low, float(log_delta)) if low > 0 else None
        if truth is not None:
            assert truth >= log_delta - SLACK * abs(log_delta), (case, log_delta, low)
    eps = np.where(np.isfinite(estimate), estimate, 1.0)
    lower, estimate, upper = solve(cases, eps, "delta", tol)
    assert ordered(lower, estimate, upper)
    for case, x, low, high, guess in zip(cases, eps, lower, upper, estimate, strict=True):
        truth = true_log_delta(case, x, float(guess) if np.isfinite(guess) else None)
        if truth is not None:
            assert low - SLACK * abs(low) <= truth <= high + SLACK * abs(high), (case, x)
            tested += 1
    return tested


@pytest.mark.parametrize("family", ["one part", pytest.param("two parts", marks=pytest.mark.slow)])
def test_the_ends_enclose_the_truth(family):
    cases, logs = random_cases(np.random.default_rng(2), family)
    assert assert_encloses(cases[:6], logs[:6], 1e-13) > 5


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("seed", range(10, 18))
def test_the_ends_enclose_the_truth_for_many(family, seed):
    cases, logs = random_cases(np.random.default_rng(seed), family)
    assert assert_encloses(cases, logs, 1e-13 if seed % 2 else 1e-8) > LANES // 2


# Found by random search: (case, epsilon).
Q_NEAR_1 = [
    (("remove", 5.5001035171376875, 0.9999454875013876, 1575076.0), 27058.56995960829),
    (("remove", 0.10967849407886321, 0.9999999980879913, 2665.0), 126572.02447241348),
]


def test_q_close_to_1():
    cases, eps = [case for case, _ in Q_NEAR_1], [x for _, x in Q_NEAR_1]
    lower, _, upper = solve(cases, eps, "delta", 1e-13)
    for case, x, low, high in zip(cases, eps, lower, upper, strict=True):
        truth = true_log_delta(case, x)
        assert low <= truth <= high, case


def test_a_tilt_far_too_large_certifies_nothing():
    case, log_delta = ("add", 2.605837869156514, 0.9979178418635658, 213417.0), -0.09182568131424952
    lower, _, upper = solve([case], [log_delta], "epsilon", 1e-13)
    truth = true_log_delta(case, float(upper[0]), log_delta)
    # delta at epsilon 0 is close to 1: no epsilon below 1000 has this delta
    assert upper[0] > 1000 and (truth is None or truth <= log_delta)


def test_a_delta_below_the_smallest_float_is_not_called_0():
    case, eps = ("replace", 1.001810835151398, 2.669465041056822e-06, 1e8), 221.36058215
    _, _, upper = solve([case], [eps], "delta", 1e-10)
    with mp.workdps(60):
        one = closed_forms.single_step_delta(case[0], mp.mpf(case[1]), mp.mpf(case[2]), mp.mpf(eps))
        assert mp.log(one) <= float(upper[0])


def far_cases(rng, family):
    """Anything that is accepted."""
    cases = []
    for i in range(LANES):
        q = float(10 ** rng.uniform(-8, -0.02)) if i % 4 else float(1 - 10 ** rng.uniform(-9, -1))
        sigma = float(np.exp(rng.uniform(np.log(0.05), np.log(1e4))))
        cases.append((str(rng.choice(FAMILIES[family])), sigma, q, float(np.round(10 ** rng.uniform(0.3, 8)))))
    return cases


@pytest.mark.parametrize("seed", [4, pytest.param(5, marks=pytest.mark.slow), pytest.param(6, marks=pytest.mark.slow)])
@pytest.mark.parametrize("family", ["one part", pytest.param("two parts", marks=pytest.mark.slow)])
def test_far_parameters_are_never_nan_and_never_below_one_step(family, seed):
    """delta of k steps is at least that of one, for which there is a closed form."""
    rng = np.random.default_rng(seed)
    cases = far_cases(rng, family)
    eps = 10 ** rng.uniform(-6, 4, LANES)
    eps[:2] = 0.0
    lower, estimate, upper = solve(cases, eps, "delta", 1e-13)
    assert ordered(lower, estimate, upper) and np.all(upper <= 0)
    with mp.workdps(60):
        for (direction, sigma, q, _), x, high in zip(cases, eps, upper, strict=True):
            one = closed_forms.single_step_delta(direction, mp.mpf(sigma), mp.mpf(q), mp.mpf(x))
            assert one <= 0 or mp.log(one) <= mp.mpf(float(high)) + 1e-13, (direction, sigma, q, x)
    logs = -(10 ** rng.uniform(-2, np.log10(690), LANES))
    lower, estimate, upper = solve(cases, logs, "epsilon", 1e-13)
    assert ordered(lower, estimate, upper) and np.all(lower >= 0)
    with mp.workdps(60):
        for (direction, sigma, q, _), log_delta, high in zip(cases, logs, upper, strict=True):
            if np.isfinite(high):
                one = closed_forms.single_step_delta(direction, mp.mpf(sigma), mp.mpf(q), mp.mpf(float(high)))
                assert one <= mp.exp(mp.mpf(log_delta)) * (1 + mp.mpf("1e-13")), (direction, sigma, q, log_delta)
