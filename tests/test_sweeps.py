"""Sweeps: the rows are those of the queries, whatever the parts, devices, processes and interruptions."""

import os
import signal
import socket
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

import dpjax
from dpjax import sweeps

DPSGD = {"noise_multiplier": [0.8, 1.2, 3.0], "sampling_probability": [0.05, 0.1], "steps": [200, 1000]}


def same(a, b):
    assert list(a) == list(b)
    for name in a:
        np.testing.assert_array_equal(a[name], b[name], err_msg=name)


def counted(monkeypatch):
    """The numbers of rows of the parts that are worked on from now on."""
    seen, part = [], sweeps._part
    monkeypatch.setattr(sweeps, "_part", lambda job, rows: (seen.append(len(rows)), part(job, rows))[1])
    return seen


def stopped(monkeypatch, after, error):
    """Raises ``error`` in place of part number ``after``."""
    part, seen = sweeps._part, []

    def work(job, rows):
        if len(seen) == after:
            raise error
        seen.append(rows)
        return part(job, rows)

    with monkeypatch.context() as patched:
        patched.setattr(sweeps, "_part", work)
        yield


@pytest.mark.parametrize("name", ["error", "epsilon_lower", "epsilon_status"])
def test_a_column_named_as_an_answer_is_refused(name):
    with pytest.raises(ValueError, match=name):
        dpjax.sweep(lambda **row: dpjax.Gaussian(row[name]), {name: [1.0]}, delta=1e-5)


class TestRows:
    def test_product(self):
        table = dpjax.sweep(dpjax.dpsgd, DPSGD, delta=1e-5, rtol=1e-10)
        assert table.shape == (3, 2, 2) and table.rows == 12
        noise, q, steps = np.meshgrid(*DPSGD.values(), indexing="ij")
        np.testing.assert_array_equal(table["steps"], steps.ravel())
        assert table["steps"].dtype.kind == "i"
        found = dpjax.epsilon_bounds(dpjax.dpsgd(noise, q, steps), delta=1e-5)
        np.testing.assert_allclose(table.on_grid("epsilon"), found.upper, rtol=1e-12)
        np.testing.assert_allclose(table.on_grid("epsilon_lower"), found.lower, rtol=1e-9)
        assert set(table["epsilon_method"]) == {"contour"} and set(table["epsilon_status"]) == {"converged"}
        assert (table["epsilon_lower"] <= table["epsilon_estimate"]).all() and not any(table["error"])

    def test_default_tolerance(self):
        """Wider than a single question's, and never below it."""
        noise = np.array(DPSGD["noise_multiplier"])
        grid = {"noise_multiplier": noise, "sampling_probability": 0.05, "steps": 200}
        table = dpjax.sweep(dpjax.dpsgd, grid, delta=1e-5)
        exact = dpjax.epsilon_bounds(dpjax.dpsgd(noise, 0.05, 200), delta=1e-5)
        assert (table["epsilon"] >= exact.lower).all() and (table["epsilon_lower"] <= exact.upper).all()
        np.testing.assert_allclose(table["epsilon"], exact.estimate, rtol=1e-6)

    def test_zip_several_questions(self):
        grid = {"noise_multiplier": [1.0, 2.0, 4.0], "epsilon": [0.5, 1.0, 2.0]}
        table = dpjax.sweep(dpjax.Gaussian, grid, mode="zip", false_positive_rate=0.05)
        np.testing.assert_allclose(
            table["delta"], dpjax.delta(dpjax.Gaussian([1.0, 2.0, 4.0]), [0.5, 1.0, 2.0]), rtol=1e-13
        )
        np.testing.assert_allclose(
            table["false_negative_rate"], dpjax.tradeoff(dpjax.Gaussian([1.0, 2.0, 4.0]), 0.05), rtol=1e-13
        )
        assert set(table["delta_method"]) == {"closed_form"}

    def test_kinds_that_depend_on_the_row(self):
        def make(noise, laplace):
            return dpjax.Laplace(noise) if laplace else dpjax.Gaussian(noise)

        table = dpjax.sweep(make, {"laplace": [0, 1], "noise": [1.0, 2.0, 3.0]}, epsilon=0.3)
        expected = [dpjax.delta(kind(x), 0.3) for kind in (dpjax.Gaussian, dpjax.Laplace) for x in (1.0, 2.0, 3.0)]
        np.testing.assert_allclose(table["delta"], expected, rtol=1e-13)

    def test_schedules_do_not_meet_the_grid(self):
        """As many steps as rows: nothing may be broadcast against the sweep's axis."""
        decay = np.array([1.0, 0.5, 0.25])

        def make(noise, epochs):
            return dpjax.ComposedOver(dpjax.Gaussian(noise / decay)) * epochs

        table = dpjax.sweep(make, {"noise": [2.0, 3.0, 4.0], "epochs": [1, 2, 3]}, mode="zip", delta=1e-4)
        for noise, epochs, epsilon in zip(table["noise"], table["epochs"], table["epsilon"], strict=True):
            one = dpjax.Gaussian(noise / np.sqrt(epochs * np.sum(decay**2)))
            np.testing.assert_allclose(epsilon, dpjax.epsilon(one, 1e-4), rtol=1e-9)

    def test_bad_rows_carry_their_errors(self):
        grid = {"noise_multiplier": [1.0, -1.0, 2.0, np.nan, 3.0], "steps": 10}
        make = lambda noise_multiplier, steps: dpjax.dpsgd(noise_multiplier, 0.1, steps)
        table = dpjax.sweep(make, grid, delta=1e-5, rtol=1e-10)
        bad = np.array([False, True, False, True, False])
        np.testing.assert_array_equal(np.isnan(table["epsilon"]), bad)
        np.testing.assert_array_equal(table["error"] != "", bad)
        assert "noise_multiplier" in table["error"][1] and "-1.0" in table["error"][1]
        assert table["epsilon_status"][1] == "invalid" and table["epsilon_method"][1] == "none"
        good = dpjax.epsilon(dpjax.dpsgd([1.0, 2.0, 3.0], 0.1, 10), 1e-5)
        np.testing.assert_allclose(table["epsilon"][~bad], good, rtol=1e-12)

    def test_refusals_are_errors_of_rows(self):
        make = lambda sigma, size: dpjax.FixedSizeSampled(100, size, dpjax.Gaussian(sigma))
        table = dpjax.sweep(make, {"sigma": [2.0], "size": [10, 200]}, epsilon=0.1)
        assert np.isfinite(table["delta"][0]) and np.isnan(table["delta"][1]) and "sample_size" in table["error"][1]
        make = lambda sigma: dpjax.RandomAllocation(10, dpjax.Gaussian(sigma))
        replaced = dpjax.sweep(make, {"sigma": [2.0]}, epsilon=0.1, adjacency=dpjax.Adjacency.REPLACE_ONE)
        assert "REPLACE_ONE" in replaced["error"][0]

    def test_gradients(self):
        grid = {"noise_multiplier": [1.0, 2.0], "sampling_probability": [0.02], "steps": [100, 200]}
        table = dpjax.sweep(dpjax.dpsgd, grid, delta=1e-5, gradients=True)
        step = 1e-4
        for name in grid:
            moved = {**grid, "steps": np.array(grid["steps"], float)}
            ends = []
            for sign in (1, -1):
                moved[name] = np.asarray(grid[name]) * (1 + sign * step)
                ends.append(dpjax.sweep(dpjax.dpsgd, moved, delta=1e-5)["epsilon_estimate"])
            slope = (ends[0] - ends[1]) / (2 * step * table[name])
            np.testing.assert_allclose(table[f"d_epsilon_d_{name}"], slope, rtol=1e-6)


class TestArguments:
    @pytest.mark.parametrize(
        ("change", "match"),
        [
            ({"grid": {}}, "grid is empty"),
            ({"grid": {"noise_multiplier": [[1.0]]}}, "one axis"),
            ({"delta": None}, "Nothing is asked"),
            ({"delta": 2.0}, "delta"),
            ({"delta": [1e-5, 1e-6]}, "put it in the grid"),
            ({"grid": {"noise_multiplier": 1.0, "delta": [1e-5]}}, "given twice"),
            ({"grid": {"noise_multiplier": 1.0, "epsilon": [1.0]}}, "column of the grid"),
            ({"mode": "outer"}, "mode = 'outer'"),
            ({"gradients": ["sigma"]}, "gradients = 'sigma'"),
            ({"chunk_size": 0}, "chunk_size"),
            ({"mode": "zip", "grid": {"noise_multiplier": [1.0, 2.0], "x": [1.0, 2.0, 3.0]}}, "one length"),
        ],
    )
    def test_are_checked(self, change, match):
        arguments = {"grid": {"noise_multiplier": [1.0]}, "delta": 1e-5} | change
        with pytest.raises(ValueError, match=match):
            dpjax.sweep(dpjax.Gaussian, arguments.pop("grid"), **arguments)

    def test_what_make_returns(self):
        with pytest.raises(TypeError, match="must return a dpjax mechanism"):
            dpjax.sweep(lambda s: s, {"s": [1.0, 2.0]}, delta=1e-5)
        with pytest.raises(TypeError, match="batch"):
            dpjax.sweep(lambda s: dpjax.Gaussian([s, s]), {"s": [1.0, 2.0]}, delta=1e-5)
        with pytest.raises(TypeError, match="unexpected keyword"):
            dpjax.sweep(dpjax.Gaussian, {"sigma": [1.0, 2.0]}, delta=1e-5)


class TestLongWork:
    grid = {"noise_multiplier": np.linspace(1.0, 3.0, 10)}

    def run(self, **options):
        return dpjax.sweep(dpjax.Gaussian, self.grid, delta=1e-5, chunk_size=3, **options)

    @pytest.mark.parametrize("kind", ["csv", "parquet"])
    def test_files_hold_the_table(self, tmp_path, kind):
        if kind == "parquet":
            pytest.importorskip("pyarrow")
            pytest.importorskip("pandas")
        path = tmp_path / f"out.{kind}"
        table = self.run(path=path)
        same(dpjax.Table.load(path), table)
        assert os.listdir(tmp_path) == [path.name]
        with pytest.raises(FileExistsError, match="resume=True"):
            self.run(path=path)

    @pytest.mark.parametrize("after", [0, 2])
    def test_resumed_after_a_crash(self, tmp_path, monkeypatch, after):
        path, whole = tmp_path / "out.csv", self.run()
        for _ in stopped(monkeypatch, after, RuntimeError("crash")):
            with pytest.raises(RuntimeError, match="crash"):
                self.run(path=path)
        assert not path.exists()
        seen = counted(monkeypatch)
        same(self.run(path=path, resume=True), whole)
        assert seen == [3, 3, 3, 1][after:]
        same(dpjax.Table.load(path), whole)

    def test_interrupted_from_the_keyboard(self, tmp_path, monkeypatch):
        path, whole = tmp_path / "out.csv", self.run()
        for _ in stopped(monkeypatch, 2, KeyboardInterrupt()):
            with pytest.raises(KeyboardInterrupt):
                self.run(path=path)
        part = dpjax.Table.load(path)
        assert part.rows == 6
        np.testing.assert_array_equal(part["epsilon"], whole["epsilon"][:6])
        seen = counted(monkeypatch)
        same(self.run(path=path, resume=True), whole)
        assert seen == [3, 1]

    def test_a_finished_one_is_read(self, tmp_path, monkeypatch):
        path = tmp_path / "out.csv"
        whole = self.run(path=path)
        seen = counted(monkeypatch)
        same(self.run(path=path, resume=True), whole)
        assert seen == [1, 1, 1]  # three rows, to see that it is this sweep
        with pytest.raises(ValueError, match="not of this grid"):
            dpjax.sweep(dpjax.Gaussian, {"noise_multiplier": [1.0]}, delta=1e-5, path=path, resume=True)

    @pytest.mark.parametrize(
        "change",
        [
            {"delta": 1e-6},
            {"delta": None, "epsilon": 1.0},
            {"epsilon": 1.0},
            {"adjacency": dpjax.Adjacency.REPLACE_ONE},
            {"make": lambda noise_multiplier: dpjax.Gaussian(0.5 * noise_multiplier)},
        ],
    )
    def test_a_finished_one_of_other_answers_is_not_read(self, tmp_path, change):
        path = tmp_path / "out.csv"
        self.run(path=path)
        arguments = {"make": dpjax.Gaussian, "grid": self.grid, "delta": 1e-5, "chunk_size": 3} | change
        with pytest.raises(ValueError, match="other answers"):
            dpjax.sweep(arguments.pop("make"), arguments.pop("grid"), path=path, resume=True, **arguments)

    def test_a_finished_one_with_a_row_without_answer_is_read(self, tmp_path):
        grid, path = {"noise_multiplier": [1.0, np.nan, -1.0]}, tmp_path / "out.csv"
        whole = dpjax.sweep(dpjax.Gaussian, grid, delta=1e-5, path=path)
        same(dpjax.sweep(dpjax.Gaussian, grid, delta=1e-5, path=path, resume=True), whole)

    def test_an_empty_grid_is_written(self, tmp_path):
        grid, path = {"noise_multiplier": np.zeros(0)}, tmp_path / "out.csv"
        assert dpjax.sweep(dpjax.Gaussian, grid, delta=1e-5, path=path).rows == 0
        assert path.read_text().startswith("noise_multiplier")

    @pytest.mark.parametrize(
        ("change", "what"),
        [
            ({"delta": 1e-6}, "asked"),
            ({"rtol": 1e-9}, "rtol"),
            ({"chunk_size": 4}, "chunk_size"),
            ({"make": lambda noise_multiplier: dpjax.Gaussian(2 * noise_multiplier)}, "mechanisms"),
            ({"grid": {"noise_multiplier": np.linspace(1.0, 4.0, 10)}}, "grid"),
        ],
    )
    def test_another_sweep_is_not_resumed(self, tmp_path, monkeypatch, change, what):
        path = tmp_path / "out.csv"
        for _ in stopped(monkeypatch, 1, RuntimeError("crash")):
            with pytest.raises(RuntimeError):
                self.run(path=path)
        arguments = {"make": dpjax.Gaussian, "grid": self.grid, "delta": 1e-5, "chunk_size": 3} | change
        with pytest.raises(ValueError, match=f"another sweep.*{what}"):
            dpjax.sweep(arguments.pop("make"), arguments.pop("grid"), path=path, resume=True, **arguments)

    @pytest.mark.slow
    def test_killed(self, tmp_path):
        code = (
            "import sys, time, dpjax, numpy as np\nfrom dpjax import sweeps\npart = sweeps._part\n"
            "def slow(job, rows):\n    time.sleep(float(sys.argv[2]))\n    return part(job, rows)\nsweeps._part = slow\n"
            "dpjax.sweep(dpjax.dpsgd, {'noise_multiplier': np.linspace(0.8, 3, 40), 'sampling_probability': 0.01,"
            " 'steps': [100, 1000]}, delta=1e-5, chunk_size=8, path=sys.argv[1], resume=True)\n"
        )
        whole, killed = tmp_path / "whole.csv", tmp_path / "killed.csv"
        subprocess.run([sys.executable, "-c", code, whole, "0"], check=True, timeout=600)
        process = subprocess.Popen([sys.executable, "-c", code, killed, "0.5"])
        parts, deadline = tmp_path / "killed.csv.parts", time.time() + 300
        while len(list(parts.glob("0*.npz"))) < 3 and time.time() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL and not killed.exists()
        assert 3 <= len(list(parts.glob("0*.npz"))) < 10
        subprocess.run([sys.executable, "-c", code, killed, "0"], check=True, timeout=600)
        assert killed.read_bytes() == whole.read_bytes()


@pytest.mark.multi_device
@pytest.mark.skipif(jax.local_device_count() < 2, reason="one device")
def test_devices_do_not_matter():
    grid = {**DPSGD, "noise_multiplier": np.linspace(0.7, 3.0, 9)}
    run = lambda devices: dpjax.sweep(dpjax.dpsgd, grid, delta=1e-5, chunk_size=8, devices=devices)
    same(run(jax.local_devices()), run(jax.local_devices()[:1]))


_PROCESS = """
import os, sys
import jax
port, number, path = sys.argv[1:]
if number != "alone":
    jax.distributed.initialize(f"127.0.0.1:{port}", 2, int(number))
import numpy as np, dpjax
make = lambda noise_multiplier: dpjax.dpsgd(noise_multiplier, 0.01, 100)
grid = {"noise_multiplier": np.append(np.linspace(0.8, 3, 10), -1.0)}
table = dpjax.sweep(make, grid, delta=1e-5, chunk_size=3, path=path)
assert table.rows == 11 and not np.isnan(table["epsilon"][:10]).any() and table["error"][10]
"""


@pytest.mark.slow
def test_two_processes(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    start = lambda number, path: subprocess.Popen(
        [sys.executable, "-c", _PROCESS, port, number, str(tmp_path / path)],
        env=os.environ | {"JAX_PLATFORMS": "cpu", "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo"},
    )
    both = [start("0", "two.csv"), start("1", "two.csv")]
    assert [p.wait(timeout=600) for p in both] == [0, 0]
    assert start("alone", "one.csv").wait(timeout=600) == 0
    assert (tmp_path / "two.csv").read_bytes() == (tmp_path / "one.csv").read_bytes()


def test_table_is_readable():
    table = dpjax.Table({"x": np.arange(20), "word": np.array(["a"] * 20)})
    assert "20 rows" in repr(table) and "..." in repr(table) and len(repr(table).splitlines()) == 8
    with pytest.raises(KeyError, match="'y' is not a column"):
        table["y"]
    with pytest.raises(ValueError, match="differ in length"):
        dpjax.Table({"x": [1], "y": [1, 2]})
    with pytest.raises(ValueError, match=r"\.csv or \.parquet"):
        table.save("x.txt")
