"""precision="float32": no float64 in the program, honest against float64 at the same numbers, and close to it."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
from dpjax import Adjacency, ComposedOver, Gaussian, PoissonSampled, Status, _special, dpsgd

ORACLES = Path(__file__).parent / "oracles"
SINGLE = {"precision": "float32"}


def rows(file, name):
    return json.loads((ORACLES / f"{file}.json").read_text(), parse_float=float)[name]


def single(*numbers):
    """Each rounded to float32, as float64: what is certified is the answer for these."""
    return [np.asarray(x, np.float64).astype(np.float32).astype(np.float64) for x in numbers]


# --------------------------------------------------------------------------------------------------------------------
# Functions

FUNCTIONS = {  # function, reference in float64, points, largest relative error
    "exp": (_special.exp, np.exp, np.linspace(-87.0, 88.0, 300_001), 1.2e-7),
    "expm1": (
        _special.expm1,
        np.expm1,
        np.concatenate([np.linspace(-25, 88, 300_001), np.geomspace(1e-30, 1, 9999)]),
        2.2e-7,
    ),
    "expm1, negative": (_special.expm1, np.expm1, -np.geomspace(1e-30, 20, 99_999), 2.2e-7),
    "log": (_special.log, np.log, np.geomspace(1.2e-38, 3e38, 300_001), 1.2e-7),
    "log near 1": (_special.log, np.log, 1 + np.linspace(-0.5, 1, 100_001), 1.2e-7),
    "log1p": (_special.log1p, np.log1p, np.linspace(-0.999, 5, 300_001), 2.2e-7),
    "log1p, small": (_special.log1p, np.log1p, np.geomspace(1e-30, 1e30, 99_999), 2.2e-7),
    "ln": (_special.ln, np.log, np.geomspace(1.2e-38, 3e38, 99_999), 1.2e-7),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_elementary_functions(name):
    function, reference, points, bound = FUNCTIONS[name]
    x = points.astype(np.float32)
    found = np.asarray(jax.jit(function)(x))
    assert found.dtype == np.float32
    exact = reference(x.astype(np.float64))
    some = np.abs(exact) > 1.2e-38
    assert np.max(np.abs(found[some] / exact[some] - 1)) < bound


def test_circular_functions():
    x = np.concatenate([np.linspace(-8192, 8192, 400_001), np.geomspace(1e-30, 100, 9999)]).astype(np.float32)
    sine, cosine = map(np.asarray, jax.jit(_special.sincos)(x))
    wide = x.astype(np.float64)
    assert np.max(np.abs(sine - np.sin(wide))) < 1e-7 and np.max(np.abs(cosine - np.cos(wide))) < 1e-7
    quarter = np.asarray(jax.jit(_special.tan_quarter)(x), np.float64)
    assert (
        np.max(np.abs(np.exp(4j * np.arctan(quarter)) - np.exp(1j * wide))) < 5e-7
    )  # of either sign near odd multiples of pi


@pytest.mark.parametrize("function", ["exp", "expm1", "log", "log1p", "ln", "ln1p"])
def test_special_values(function):
    x = np.array([-np.inf, -100.0, -1.0, 0.0, 100.0, np.inf, np.nan], np.float32)
    wanted = {"exp": np.exp, "expm1": np.expm1, "ln": np.log, "ln1p": np.log1p}
    found = np.asarray(getattr(_special, function)(jnp.asarray(x)))
    if function in wanted:
        with np.errstate(all="ignore"):
            exact = wanted[function](x.astype(np.float64)).astype(np.float32)
        tiny = np.abs(exact) < 1.2e-38
        np.testing.assert_allclose(found, np.where(tiny, 0.0, np.where(exact > 3.4e38, np.inf, exact)), rtol=3e-7)
    assert found[-2] == np.inf


def test_sums_by_halves():
    x = jnp.asarray(np.random.default_rng(0).uniform(size=(3, 1001, 2)), jnp.float32)
    exact = np.sum(np.asarray(x, np.float64), 1)
    np.testing.assert_allclose(_special.total(x, 1), exact, rtol=12 * 6e-8)


# --------------------------------------------------------------------------------------------------------------------
# The program


def ask(kind):
    def question(sigma, given):
        mechanism = dpsgd(sigma, 0.01, 1000)
        return getattr(dpjax, kind)(mechanism, given, **SINGLE)

    return question


TRANSFORMS = {
    "alone": lambda f: f,
    "vmap": lambda f: jax.vmap(f),
    "grad": lambda f: jax.grad(f, (0, 1)),
    "vmap of grad": lambda f: jax.vmap(jax.grad(f, (0, 1))),
    "hessian": lambda f: jax.hessian(f),
}


def traced(kind, transform):
    point = jnp.float32(1.0), jnp.float32(1e-5)
    if "vmap" in transform:
        point = tuple(jnp.stack([x, x, x]) for x in point)
    return jax.jit(TRANSFORMS[transform](ask(kind))).trace(*point)


def dtypes(jaxpr):
    """The dtypes of every value in a jaxpr and in those inside it."""
    found = set()
    for equation in jaxpr.eqns:
        for variable in (*equation.invars, *equation.outvars):
            found.add(str(getattr(variable.aval, "dtype", "")))
        for parameter in equation.params.values():
            for member in parameter if isinstance(parameter, tuple | list) else (parameter,):
                inner = getattr(member, "jaxpr", member)
                if hasattr(inner, "eqns"):
                    found |= dtypes(inner)
    found |= {str(getattr(v.aval, "dtype", "")) for v in (*jaxpr.constvars, *jaxpr.invars)}
    return found


CASES = [
    ("epsilon", "alone"),
    ("epsilon", "grad"),
    *(
        pytest.param(kind, transform, marks=pytest.mark.slow)
        for kind in ("epsilon", "delta", "log_delta")
        for transform in TRANSFORMS
        if (kind, transform) not in (("epsilon", "alone"), ("epsilon", "grad"))
    ),
]


@pytest.mark.parametrize(("kind", "transform"), CASES)
def test_no_float64_and_lowers_for_accelerators(kind, transform):
    program = traced(kind, transform)
    found = dtypes(program.jaxpr.jaxpr) - {""}
    assert found <= {"float32", "int32", "bool", "float0"}, found
    assert "float32" in found
    for platform in ("tpu", "cuda"):
        text = program.lower(lowering_platforms=(platform,)).as_text()
        assert "f64" not in text and "complex" not in text


def test_the_walk_sees_float64_where_there_is_some():
    program = jax.jit(lambda s: dpjax.epsilon(Gaussian(s), 1e-5)).trace(1.0)
    assert "float64" in dtypes(program.jaxpr.jaxpr)


# --------------------------------------------------------------------------------------------------------------------
# The numbers


def compare(mechanism, given, asked="epsilon", **options):
    """(float32's bounds, float64's), at numbers that float32 has."""
    query = getattr(dpjax, f"{asked}_bounds")
    return query(mechanism, given, **SINGLE, **options), query(mechanism, given, rtol=1e-7, **options)


def honest(found, wide):
    assert (found.upper.astype(float) >= wide.lower).all()
    assert (found.lower.astype(float) <= wide.upper).all()
    assert not (np.isinf(found.upper) & np.isfinite(wide.upper)).any()


def excess(found, wide):
    some = np.isfinite(wide.upper) & (wide.upper > 1.2e-38)  # no float32 is smaller
    return found.upper[some].astype(float) / wide.upper[some] - 1


def closeness(found, wide, converged):
    """Most answers are close; those that float32 has no digits for say so."""
    assert np.median(excess(found, wide)) < 1e-3 and np.quantile(excess(found, wide), 0.75) < 1e-2
    done = found.status == Status.CONVERGED
    assert done.mean() > 0.5
    part = lambda bounds: dpjax.Bounds(*(x[done] for x in bounds))
    assert np.max(excess(part(found), part(wide))) < converged


LANES = 128


def stored_and_random():
    """Questions of the stored table, every second one, and random ones: one batch, so that one program answers all."""
    stored = rows("reference", "composed_epsilon")[::4]
    names = ("noise_multiplier", "sampling_probability", "steps", "delta")
    columns = [np.array([float(row[name]) for row in stored]) for name in names]
    rng = np.random.default_rng(5)
    number = LANES - len(stored)
    random = lambda low, high: np.exp(rng.uniform(np.log(low), np.log(high), number))
    drawn = random(0.3, 20), random(1e-6, 1), np.floor(random(1, 1e6)), random(1e-12, 1e-2)
    return len(stored), [np.concatenate(pair) for pair in zip(columns, single(*drawn), strict=True)]


def test_epsilon_is_honest_and_close():
    number, columns = stored_and_random()
    sigma, q, k, delta = single(*columns)
    found, wide = compare(dpsgd(sigma, q, k), delta, adjacency=Adjacency.ADD_OR_REMOVE_ONE, method="contour")
    assert found.upper.dtype == np.float32
    honest(found, wide)
    part = lambda bounds: dpjax.Bounds(*(x[:number] for x in bounds))
    closeness(part(found), part(wide), 1e-2)
    assert np.quantile(excess(part(found), part(wide)), 0.9) < 1e-2


@pytest.mark.slow
def test_delta_is_honest_and_close():
    table = rows("psg", "rows")[::5] + rows("psg", "sparse_rows")
    names = ("noise_multiplier", "sampling_probability", "steps", "epsilon")
    sigma, q, k, eps = single(*([row[name] for row in table] for name in names))
    found, wide = compare(dpsgd(sigma, q, k), eps, "delta")
    honest(found, wide)
    closeness(found, wide, 5e-3)


@pytest.mark.parametrize("asked", [pytest.param("epsilon", marks=pytest.mark.slow), "delta"])
def test_closed_forms(asked):
    """One step: no contour."""
    table = rows("reference", f"single_step_{asked}")
    names = ("noise_multiplier", "sampling_probability", "delta" if asked == "epsilon" else "epsilon")
    sigma, q, given = single(*([row[name] for row in table] for name in names))
    found, wide = compare(PoissonSampled(q, Gaussian(sigma)), given, asked, method="closed_form")
    honest(found, wide)
    gap = excess(found, wide)
    assert np.median(gap) < 1e-4 and np.quantile(gap, 0.98) < 1e-2  # what is left lies just below the largest loss


# --------------------------------------------------------------------------------------------------------------------
# Derivatives, settings of JAX, and what is refused


@pytest.mark.parametrize("order", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_derivatives(order):
    """Those of the estimate against differences of high-precision values."""
    row = rows("generated", "derivatives")[0]
    names = ("noise_multiplier", "sampling_probability", "steps")
    point = jnp.array([float(row[name]) for name in names])
    question = lambda x: dpjax.epsilon(dpsgd(x[0], x[1], x[2]), float(row["delta"]), **SINGLE)
    found = np.asarray(jax.jit(jax.grad(question) if order == 1 else jax.hessian(question))(point))
    exact = {key: float(value) for key, value in row["epsilon_derivatives"].items()}
    if order == 1:
        np.testing.assert_allclose(found, [exact[name] for name in names], rtol=2e-4)
    else:
        for i, first in enumerate(names):
            for j, second in enumerate(names[i:], i):
                np.testing.assert_allclose(found[i, j], exact[f"{first},{second}"], rtol=2e-3)


@pytest.mark.slow
@pytest.mark.parametrize("x64", [False, True])
def test_both_settings_of_the_flag(x64):
    """The same numbers whatever the flag; under tracing in the caller's dtype."""
    with jax.enable_x64(x64):
        question = lambda s: dpjax.epsilon(dpsgd(s, 0.01, 1000), delta=1e-5, **SINGLE)
        sigma = jnp.asarray([0.9, 1.0, 1.1])
        value = jax.jit(jax.vmap(question))(sigma)
        slope = jax.vmap(jax.grad(question))(sigma)
        assert value.dtype == slope.dtype == jnp.result_type(float)
        concrete = question(np.asarray(sigma, np.float64))
        assert concrete.dtype == np.float32
        np.testing.assert_allclose(value, concrete, rtol=1e-5)
        exact = jax.vmap(jax.grad(lambda s: dpjax.epsilon(dpsgd(s, 0.01, 1000), delta=1e-5)))(sigma)
        np.testing.assert_allclose(slope, exact, rtol=1e-3)
        assert float(jax.jit(lambda: question(1.0))()) == float(question(1.0))  # nothing is traced there


REFUSED = {
    "another mechanism": lambda: dpjax.epsilon(dpjax.Laplace(1.0), 1e-5, **SINGLE),
    "sampled": lambda: dpjax.delta(PoissonSampled(0.1, dpjax.Laplace(1.0)), 1.0, **SINGLE),
    "parameters": lambda: dpjax.epsilon(dpjax.PureDP(1.0), 1e-5, **SINGLE),
    "lattice": lambda: dpjax.epsilon(Gaussian(1.0), 1e-5, method="lattice", **SINGLE),
    "levy": lambda: dpjax.epsilon(Gaussian(1.0), 1e-5, method="levy", **SINGLE),
    "trade-off": lambda: dpjax.sweep(Gaussian, {"noise_multiplier": [1.0]}, false_positive_rate=0.1, **SINGLE),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case):
    with pytest.raises(NotImplementedError, match="float64"):
        REFUSED[case]()


def test_unknown_precision():
    for call in (
        lambda: dpjax.epsilon(Gaussian(1.0), 1e-5, precision="half"),
        lambda: dpjax.sweep(Gaussian, {"noise_multiplier": [1.0]}, delta=1e-5, precision="half"),
    ):
        with pytest.raises(ValueError, match="precision"):
            call()


LIMITS = {  # mechanism, delta, epsilon
    "no noise": (Gaussian(0.0), 1e-5, np.inf),
    "infinite noise": (Gaussian(np.inf), 1e-5, 0.0),
    "never sampled": (PoissonSampled(0.0, Gaussian(1.0)), 1e-5, 0.0),
    "no delta": (Gaussian(1.0), 0.0, np.inf),
    "delta below the least float32": (Gaussian(1.0), 1e-50, np.inf),
    "all of delta": (Gaussian(1.0), 1.0, 0.0),
    "noise that overflows": (Gaussian(1e60), 1e-5, 0.0),
    "noise below the least float32": (Gaussian(1e-60), 1e-5, np.inf),
}


@pytest.mark.parametrize("case", LIMITS)
def test_limits(case):
    mechanism, delta, epsilon = LIMITS[case]
    assert dpjax.epsilon(mechanism, delta, **SINGLE) == epsilon


def test_bad_tracers_are_nan():
    assert np.isnan(jax.jit(lambda s: dpjax.epsilon(Gaussian(s), 1e-5, **SINGLE))(-1.0))


@pytest.mark.slow
def test_sweep():
    grid = {"noise_multiplier": [0.75, 1.5], "sampling_probability": 0.0625, "steps": [100, 1000]}
    table, exact = (
        dpjax.sweep(dpsgd, grid, delta=1e-5, gradients=["noise_multiplier"], progress=False, precision=p)
        for p in ("float32", "float64")
    )
    assert (table["epsilon"] >= exact["epsilon_lower"]).all()
    np.testing.assert_allclose(table["epsilon"], exact["epsilon"], rtol=1e-3)
    np.testing.assert_allclose(table["d_epsilon_d_noise_multiplier"], exact["d_epsilon_d_noise_multiplier"], rtol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("direction", [Adjacency.REMOVE, Adjacency.ADD, Adjacency.REPLACE_ONE])
def test_schedules(direction):
    """Many components: sums over them in float32."""
    rng = np.random.default_rng(2)
    for length in (3, 300):
        sigma, q = single(rng.uniform(0.8, 3, length), rng.uniform(0.001, 0.05, length))
        mechanism = ComposedOver(PoissonSampled(q, Gaussian(sigma)) * np.full(length, 20.0)) + Gaussian(20.0)
        found, wide = compare(mechanism, single(1e-6)[0], adjacency=direction)
        honest(found, wide)
        assert found.upper < 1.01 * wide.upper


@pytest.mark.slow
@pytest.mark.parametrize("direction", [Adjacency.REMOVE, Adjacency.ADD, Adjacency.REPLACE_ONE])
@pytest.mark.parametrize("seed", range(3))
def test_attack(direction, seed):
    """Random compositions, sparse and dense, epsilons and log deltas: never below float64's lower end."""
    rng = np.random.default_rng(seed)
    random = lambda low, high: np.exp(rng.uniform(np.log(low), np.log(high), 256))
    sigma, q, k, delta = single(
        random(0.3, 20), random(1e-6, 1), np.floor(random(1, (30, 1e4, 1e6)[seed])), random(1e-12, 1e-2)
    )
    found, wide = compare(dpsgd(sigma, q, k), delta, adjacency=direction, method="contour")
    honest(found, wide)
    near = np.where(np.isfinite(wide.estimate), wide.estimate, 1.0) * rng.uniform(0.3, 1.5, 256)
    (eps,) = single(np.where(rng.random(256) < 0.1, -near, near))
    options = {"adjacency": direction, "method": "contour"}
    narrow = dpjax.log_delta(dpsgd(sigma, q, k), eps, **SINGLE, **options)
    lower = dpjax.delta_bounds(dpsgd(sigma, q, k), eps, rtol=1e-7, **options).lower
    some = lower > 0
    assert (narrow[some] >= np.log(lower[some]) - 1e-12 * np.abs(np.log(lower[some]))).all()


@pytest.mark.slow
def test_statuses_say_where_digits_end():
    """Terms that cancel by 4e8: an honest, wide answer."""
    found, wide = compare(dpsgd(*single(1.0, 1e-4, 1000)), single(1e-9)[0])
    honest(found, wide)
    assert found.status == Status.ROUNDING and np.isfinite(found.upper)
