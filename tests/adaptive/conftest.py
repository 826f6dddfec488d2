import json
import pathlib

import jax
import mpmath as mp
import pytest


@pytest.fixture(autouse=True)
def forty_digits():
    with mp.workdps(40):
        yield


@pytest.fixture(params=[False, True], ids=["float32", "float64"])
def x64(request):
    """Runs the test with JAX's 64-bit flag off and on."""
    with jax.enable_x64(request.param):
        yield request.param


@pytest.fixture(params=[False, pytest.param(True, marks=pytest.mark.slow)], ids=["float32", "float64"])
def either(request):
    """The same for tests of what does not depend on the precision: 64 bits only among the slow tests."""
    with jax.enable_x64(request.param):
        yield request.param


@pytest.fixture
def f32():
    """Runs the test with JAX's 64-bit flag off."""
    with jax.enable_x64(False):
        yield


@pytest.fixture
def f64():
    """Runs the test with JAX's 64-bit flag on."""
    with jax.enable_x64(True):
        yield


def pytest_generate_tests(metafunc):
    """``row_<table>`` runs over the rows of that table of oracles/adaptive.json, ``<table>`` has them all."""
    for name in set(metafunc.fixturenames) & set(_ORACLES["tables"]):
        metafunc.parametrize(name, [_ORACLES[name]], ids=["rows"])
    for name in metafunc.fixturenames:
        if name.startswith("row_"):
            rows = _ORACLES[name.removeprefix("row_")]
            metafunc.parametrize(name, rows, ids=[row["id"] for row in rows])


_ORACLES = json.loads((pathlib.Path(__file__).parents[1] / "oracles" / "adaptive.json").read_text())
