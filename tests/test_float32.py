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
    "expm1": (_special.expm1, np.expm1, np.concatenate([np.linspace(-25, 88, 300_001), np.geomspace(1e-30, 1, 9999)]), 2.2e-7),
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
    assert np.max(np.abs(np.exp(4j * np.arctan(quarter)) - np.exp(1j * wide))) < 5e-7  # of either sign near odd multiples of pi


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
    some = np.isfinite(wide.upper) & (wide.upper > 0)
    return found.upper[some].astype(float) / wide.upper[some] - 1


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
    gap = excess(part(found), part(wide))
    assert np.median(gap) < 1e-3 and np.quantile(gap, 0.99) < 1e-2


# (mechanism, epsilon): one lane each in one program
def test_delta_is_honest_and_close():
    table = rows("psg", "rows")[::5] + rows("psg", "sparse_rows")
    names = ("noise_multiplier", "sampling_probability", "steps", "epsilon")
    sigma, q, k, eps = single(*([row[name] for row in table] for name in names))
    found, wide = compare(dpsgd(sigma, q, k), eps, "delta")
    honest(found, wide)
    gap = excess(found, wide)
    assert np.median(gap) < 1e-3 and np.quantile(gap, 0.9) < 2e-2


@pytest.mark.parametrize("asked", [pytest.param("epsilon", marks=pytest.mark.slow), "delta"])
def test_closed_forms(asked):
    """One step: no contour."""
    table = rows("reference", f"single_step_{asked}")
    names = ("noise_multiplier", "sampling_probability", "delta" if asked == "epsilon" else "epsilon")
    sigma, q, given = single(*([row[name] for row in table] for name in names))
    found, wide = compare(PoissonSampled(q, Gaussian(sigma)), given, asked, method="closed_form")
    honest(found, wide)
    gap = excess(found, wide)
    assert np.median(gap) < 1e-5 and np.max(gap) < 1e-2
