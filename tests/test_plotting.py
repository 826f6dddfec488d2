"""Pictures show the numbers of the queries, on labelled axes, in ways that survive printing in grey."""

import subprocess
import sys

import numpy as np
import pytest

import dpjax
from dpjax import plotting
from dpjax.adaptive import FilterOdometer, MixtureOdometer

COUNTS = np.array([1, 3, 10])
DRAW = {
    "sweep": lambda **o: plotting.epsilon_sweep([1.0, 2.0], {"a": [2.0, 1.0], "b": [3.0, np.inf]}, x_label="x", **o),
    "steps": lambda **o: plotting.epsilon_by_steps(dpjax.Gaussian(3.0), COUNTS, 1e-5, **o),
    "profile": lambda **o: plotting.privacy_profile({"g": dpjax.Gaussian(1.0)}, [0.0, 1.0], **o),
    "tradeoff": lambda **o: plotting.tradeoff({"g": dpjax.Gaussian(1.0), "l": dpjax.Laplace(1.0)}, [0.0, 0.5], **o),
    "frontier": lambda **o: plotting.calibration_frontier({"g": dpjax.Gaussian}, [0.5, 1.0], 1e-5, **o),
    "odometers": lambda **o: plotting.odometers({"f": FilterOdometer(1e-6, epsilon=1.0)}, [0.1, 1.0], **o),
    "ranges": lambda **o: plotting.bounded_range(0.1, COUNTS, 1e-6, **o),
}


@pytest.mark.parametrize("name", DRAW)
def test_axes_are_labelled_and_given_ones_are_used(name, tmp_path):
    ax = DRAW[name](title="a title")
    assert ax.get_xlabel() and ax.get_ylabel() and ax.get_title(loc="left") == "a title"
    assert DRAW[name](ax=ax) is ax
    ax.figure.savefig(tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 5_000


def drawn(ax):
    return [line.get_ydata() for line in ax.lines]


def test_numbers_are_those_of_the_queries():
    np.testing.assert_array_equal(drawn(DRAW["steps"]())[0], dpjax.epsilon(dpjax.Gaussian(3.0) * COUNTS, 1e-5))
    np.testing.assert_array_equal(drawn(DRAW["profile"]())[0], dpjax.delta(dpjax.Gaussian(1.0), [0.0, 1.0]))
    np.testing.assert_array_equal(drawn(DRAW["tradeoff"]())[2], dpjax.tradeoff(dpjax.Laplace(1.0), [0.0, 0.5]))
    np.testing.assert_array_equal(drawn(DRAW["odometers"]())[0], FilterOdometer(1e-6, epsilon=1.0).at([0.1, 1.0]))
    noise = drawn(DRAW["frontier"]())[0]
    np.testing.assert_allclose(dpjax.epsilon(dpjax.Gaussian(noise), 1e-5), [0.5, 1.0], rtol=1e-8)


def test_curves_differ_without_colour():
    many = {f"{i}": [1.0 + i, 2.0 + i] for i in range(5)}
    ax = plotting.epsilon_sweep([1.0, 2.0], many, x_label="x")
    assert len({str(line.get_linestyle()) + str(line._dash_pattern) for line in ax.lines}) == 5
    mixture = {"one": MixtureOdometer(1e-6, gamma=0.1), "two": MixtureOdometer(1e-6, gamma=1.0)}
    assert len(plotting.odometers(mixture, [0.1, 1.0]).texts) == 2  # labelled where they end


def test_heat_map_puts_values_where_they_belong():
    table = dpjax.Table({"b": [1, 1, 2, 2], "a": [10.0, 20.0, 10.0, 20.0], "epsilon": [1.0, 2.0, 3.0, np.nan]})
    ax = plotting.heat_map(table, "a", "b", levels=())
    np.testing.assert_array_equal(ax.collections[0].get_array().filled(-1), [[1.0, 2.0], [3.0, -1.0]])
    with pytest.raises(ValueError, match="sweep over these two"):
        plotting.heat_map(dpjax.Table({"a": [1, 1], "b": [1, 1], "epsilon": [1.0, 2.0]}), "a", "b")


@pytest.mark.parametrize(
    ("values", "scale"),
    [
        (np.geomspace(0.5, 5.0, 9), "log"),
        ([1, 4, 16, 64], "log"),
        ([1, 10], "linear"),
        ([1, 2, 5, 10, 20, 50], "log"),
        (np.linspace(0.5, 5.0, 9), "linear"),
        (np.arange(1, 100), "linear"),
        (np.geomspace(1.0, 2.0, 9), "linear"),
        ([0.0, 1.0, 100.0], "linear"),
        ([1.0, np.inf], "linear"),
        ([3.0], "linear"),
    ],
)
def test_axes_of_equal_ratios_are_logarithmic(values, scale):
    values = np.array(values, float)
    assert plotting.epsilon_sweep(values, {"": values + 1}, x_label="x", y_label="y").get_xscale() == scale
    if not np.isfinite(values).all():
        return
    n = values.size
    table = dpjax.Table({"a": np.tile(values, 2), "b": np.repeat([1.0, 2.0], n), "epsilon": np.arange(1.0, 2 * n + 1)})
    for names in (("a", "b"), ("b", "a")):
        ax = plotting.heat_map(table, *names, levels=())
        assert (ax.get_xscale(), ax.get_yscale()) == ((scale, "linear") if names[0] == "a" else ("linear", scale))
    ends = ax.collections[0].get_coordinates()[:, 0, 1]
    assert (ends[:-1] < values).all() and (values < ends[1:]).all()


def test_axes_say_at_which_delta():
    grid = {"noise_multiplier": [1.0, 2.0], "count": [1, 4]}
    run = lambda noise_multiplier, count: dpjax.Gaussian(noise_multiplier) * count
    label = lambda table, value: plotting.heat_map(table, *grid, value).figure.axes[1].get_ylabel()
    assert label(dpjax.sweep(run, grid | {"delta": 1e-5}), "epsilon") == "epsilon at delta = 1e-05"
    assert label(dpjax.sweep(run, grid, delta=1e-5), "epsilon") == "epsilon"
    assert label(dpjax.sweep(run, grid | {"epsilon": 1.0}), "delta") == "delta at epsilon = 1"


def test_no_global_state():
    code = "import sys, dpjax.plotting; assert 'matplotlib' not in sys.modules\n"
    code += "ax = dpjax.plotting.epsilon_sweep([1.0], {'a': [1.0]}, x_label='x'); assert 'matplotlib.pyplot' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
