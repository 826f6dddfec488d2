"""The commands beyond single questions: sweep, compose, compare, odometer, plot, statements."""

import csv
import io
import json
import math
from importlib.util import find_spec

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
from dpjax import cli
from dpjax.adaptive import FilterOdometer, MixtureOdometer
from dpjax.cli import _process, sweep

RUN = ["--noise-multiplier", "1.0", "--sampling-probability", "0.01", "--steps", "1000"]
TOML = """
version = 1
[[mechanisms]]
type = "Gaussian"
noise_multiplier = 2.0
count = 3
[[mechanisms]]
type = "Gaussian"
noise_multiplier = 4.0
"""


@pytest.fixture
def dp(monkeypatch, capsys):
    """Runs a command in this process, whose JAX stays as it is, and returns (status, stdout, stderr)."""
    monkeypatch.setattr(_process, "configure_jax", lambda *args, **kwargs: "off")

    def run(*argv):
        status = cli.run(list(map(str, argv)))
        return status, *capsys.readouterr()

    return run


@pytest.fixture
def toml(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(TOML)
    return path


@pytest.mark.parametrize("command", [(), ("compose",)])
def test_help_shows_what_can_be_copied(dp, command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    _, out, _ = dp(*command, "--help")
    assert out.count("[[mechanisms]]") == 2


class TestSweep:
    terms = ["--dataset-size", "60000", "--batch-size", "256", "--epochs", "60"]
    grid = ["--sampling-probability", "1", "--steps", "1,4", "--noise-multiplier", "1:4:3:log"]

    def test_prints_csv(self, dp):
        status, out, err = dp("sweep", *self.grid, "--delta", "1e-5")
        rows = list(csv.DictReader(io.StringIO(out)))
        assert (status, err, len(rows)) == (0, "", 6)
        for row in rows:
            record = dpjax.dpsgd(float(row["noise_multiplier"]), 1.0, int(row["steps"]))
            assert float(row["epsilon"]) == pytest.approx(dpjax.epsilon(record, 1e-5), rel=1e-9)
            assert float(row["epsilon"]) >= dpjax.epsilon_bounds(record, 1e-5).lower

    BATCHES = (["--batch-size", "600,1200"], ["--micro-batch-size", "75,150", "--accumulation-steps", "8"])

    @pytest.mark.parametrize("batch", BATCHES)
    def test_training_terms_are_those_of_the_library(self, dp, monkeypatch, batch):
        asked = []
        monkeypatch.setattr(
            dpjax, "sweep", lambda make, grid, **options: asked.append((make, grid)) or dpjax.Table({"error": [""]})
        )
        arguments = ["--noise-multiplier", "2,4", "--dataset-size", "6e4", *batch, "--epochs", "1:1.7:2"]
        assert dp("sweep", *arguments, "--delta", "1e-5")[0] == 0
        ((make, grid),) = asked
        run = dpjax.dpsgd_from_training(60000, 1200, 1.7, 2.0)
        assert grid["steps"] == [100, 170, 50, 85] * 2 and grid["sampling_probability"][3] == run.sampling_probability
        assert repr(make(**{name: column[3] for name, column in grid.items()})) == repr(dpjax.dpsgd(2.0, 0.02, 85))

    def test_a_sweep_in_training_terms(self, dp):
        arguments = ["--noise-multiplier", "2,4", "--dataset-size", "60", "--batch-size", "60", "--epochs", "1,3"]
        _, out, _ = dp("sweep", *arguments, "--delta", "1e-5")
        rows = list(csv.DictReader(io.StringIO(out)))
        assert [(row["epochs"], row["steps"]) for row in rows] == [("1", "1"), ("3", "3")] * 2
        assert float(rows[1]["epsilon"]) == pytest.approx(dpjax.epsilon(dpjax.Gaussian(2.0) * 3, 1e-5), rel=1e-6)

    @pytest.mark.slow
    def test_gradients_in_training_terms(self, dp):
        arguments = ["--noise-multiplier", "2", "--dataset-size", "6e4", *self.BATCHES[0], "--epochs", "1"]
        _, out, _ = dp("sweep", *arguments, "--delta", "1e-5", "--gradients", "--json")
        for parameter, at in (("noise_multiplier", 2.0), ("sampling_probability", 0.02), ("steps", 50.0)):
            known = {"noise_multiplier": 2.0, "sampling_probability": 0.02, "steps": 50.0}
            slope = jax.grad(lambda x, n=parameter, k=known: dpjax.epsilon(dpjax.dpsgd(**(k | {n: x})), 1e-5))(at)
            assert json.loads(out)[f"d_epsilon_d_{parameter}"][1] == pytest.approx(float(slope), rel=1e-4)

    def test_ranges_are_the_decimals_that_they_name(self):
        """0.1 more than 1.6 is a float above 1.7: epochs of which would be a step more."""
        assert sweep._values("--epochs", "1:2:11")[7] == 1.7 < np.linspace(1, 2, 11)[7]

    def test_configurations_in_training_terms(self, dp, tmp_path):
        path = tmp_path / "runs.csv"
        path.write_text("batch_size,epochs\n600,1\n1200,1.1\n")
        given = ["--noise-multiplier", "2", "--dataset-size", "60000", "--delta", "1e-5"]
        _, out, _ = dp("sweep", "--configurations", path, *given)
        assert [row["steps"] for row in csv.DictReader(io.StringIO(out))] == ["100", "55"]
        status, _, err = dp("sweep", "--configurations", path, *given[:-1], "1e-5,1e-6,1e-7")
        assert status == 2 and "rows" in err and err.count("\n") == 1

    def test_json_and_delta(self, dp):
        _, out, _ = dp("sweep", *self.grid, "--epsilon", "0.5,1", "--json")
        table = json.loads(out)
        assert len(table["delta"]) == 12 and set(table["epsilon"]) == {0.5, 1.0}

    def test_files_pictures_and_resuming(self, dp, tmp_path):
        out, picture = tmp_path / "a.csv", tmp_path / "a.png"
        arguments = ["sweep", *self.grid, "--delta", "1e-5", "--out", out, "--plot", picture]
        assert dp(*arguments)[0] == 0
        assert dpjax.Table.load(out).rows == 6 and picture.stat().st_size > 10_000
        status, _, err = dp(*arguments)
        assert status == 2 and "resume" in err
        assert dp(*arguments, "--resume")[0] == 0

    def test_configurations(self, dp, tmp_path):
        path = tmp_path / "runs.csv"
        path.write_text("noise_multiplier,steps\n1.0,1\n-2.0,4\n")
        status, out, err = dp("sweep", "--configurations", path, "--sampling-probability", "1", "--delta", "1e-5")
        rows = list(csv.DictReader(io.StringIO(out)))
        assert status == 0 and len(rows) == 2 and "1 of 2 rows" in err
        assert float(rows[0]["epsilon"]) == pytest.approx(4.3771780956812245) and "noise_multiplier" in rows[1]["error"]

    @pytest.mark.parametrize(
        ("arguments", "match"),
        [
            (["--noise-multiplier", "1"], "--sampling-probability, --steps missing"),
            ([*grid, "--delta", "1e-5", "--epsilon", "1"], "either --delta or --epsilon"),
            ([*grid], "either --delta or --epsilon"),
            ([*grid[:-1], "1:2", "--delta", "1e-5"], "'1:2' is not a number"),
            ([*grid[:-1], "x", "--delta", "1e-5"], "'x' is not a number"),
            ([*grid[:-1], "1:inf:3", "--delta", "1e-5"], "'1:inf:3' is not a number"),
            ([*grid, *terms, "--delta", "1e-5"], "not --sampling-probability with the latter"),
            (["--noise-multiplier", "1", *terms[:-2], "--delta", "1e-5"], "--epochs is missing"),
            (["--noise-multiplier", "1", *terms[:3], "70000", *terms[4:], "--delta", "1e-5"], "--batch-size 70000"),
            ([*grid, "--delta", "1e-5", "--resume"], "--resume belongs to --out"),
            ([*grid, "--delta", "2"], "delta"),
        ],
    )
    def test_bad_input_is_one_line(self, dp, arguments, match):
        status, out, err = dp("sweep", *arguments)
        assert (status, out) == (2, "") and match in err and err.count("\n") == 1


class TestCompose:
    def test_answer(self, dp, toml):
        status, out, _ = dp("compose", toml, "--delta", "1e-5", "--json")
        expected = dpjax.epsilon(dpjax.Gaussian(2.0) * 3 + dpjax.Gaussian(4.0), 1e-5)
        assert status == 0 and json.loads(out)["epsilon"] == pytest.approx(expected, rel=1e-12)

    def test_statement(self, dp, toml):
        _, out, _ = dp("compose", toml, "--epsilon", "1", "--statement")
        assert "3 runs of the Gaussian mechanism (noise multiplier 2)" in out and "Not covered" in out

    def test_errors_name_the_place(self, dp, toml):
        toml.write_text(TOML.replace("4.0", "-4.0"))
        status, _, err = dp("compose", toml, "--delta", "1e-5")
        assert status == 2 and "mechanisms[1]" in err and err.count("\n") == 1
        assert dp("compose", toml)[0] == dp("compose", "missing.toml", "--delta", "1e-5")[0] == 2


def test_compare_prints_its_answer_and_nothing_else(dp, caplog):
    """dp_accounting logs what it thinks of each of its orders; here it leaves some out."""
    pytest.importorskip("dp_accounting")
    run = ["--noise-multiplier", "1", "--sampling-probability", "0.1", "--steps", "5"]
    status, out, err = dp("compare", *run, "--delta", "1e-300", "--json")
    assert (status, err, caplog.text) == (0, "", "")
    found = json.loads(out)["epsilon"]
    assert found["dpjax, certified"] < found["Renyi accountant"] < found["advanced composition"]
    assert "dp_accounting, RDP" in found


def test_compare_does_not_wait_for_what_takes_minutes(dp, monkeypatch):
    monkeypatch.setattr("dpjax.cli.compare._PATIENCE", 1.0)
    status, out, err = dp("compare", *RUN, "--delta", "1e-5")
    assert status == 0 and "Renyi accountant" in out and "dp accounting" not in out
    assert "dp_accounting is left out" in err or not find_spec("dp_accounting")


def test_compare(dp):
    status, out, _ = dp("compare", *RUN, "--delta", "1e-5", "--json")
    found = json.loads(out)["epsilon"]
    assert status == 0
    exact = found["dpjax, certified"]
    assert found["at least, certified"] <= 1.8282366665165768 <= exact
    assert exact < found["Renyi accountant"] < 1.2 * exact < found["advanced composition"]
    assert found["Renyi accountant"] == pytest.approx(2.1014, abs=2e-4)  # a Renyi accountant with these orders
    for name, value in found.items():
        assert name.startswith("at least") or value >= exact * (1 - 1e-9)


class TestOdometer:
    def test_bounds_are_the_librarys(self, dp):
        _, out, _ = dp("odometer", "0.1", "0.2", "--delta", "1e-6", "--json")
        odo = MixtureOdometer(1e-6, gamma=0.1, slack=1e-6)
        with jax.enable_x64(True):
            expected = np.asarray(odo.at(jnp.array([0.01, 0.05])))
        np.testing.assert_allclose(json.loads(out)["epsilon"], expected, rtol=1e-9)

    def test_reads_from_a_pipe(self, dp, monkeypatch):
        monkeypatch.setattr("sys.stdin", io.StringIO("0.1\n0.1\n"))
        status, out, _ = dp("odometer", "-", "--delta", "1e-6", "--target", "1")
        odo = FilterOdometer(1e-6, epsilon=1.0, slack=1e-6)
        assert status == 0 and len(out.splitlines()) == 2
        assert math.isclose(float(out.split()[-3]), float(odo.at(0.02)), rel_tol=1e-5)

    @pytest.mark.parametrize("arguments", [["x"], ["-0.1"], ["0.1", "--kind", "filter"], ["0.1", "--kind", "other"]])
    def test_bad_input(self, dp, arguments):
        status, out, err = (
            dp("odometer", "--delta", "1e-6", "--", *arguments[:1])
            if len(arguments) == 1
            else dp("odometer", *arguments, "--delta", "1e-6")
        )
        assert (status, out) == (2, "") and err.count("\n") == 1


@pytest.mark.parametrize("kind", ["profile", "tradeoff"])
def test_plot_of_a_file(dp, toml, tmp_path, kind):
    assert dp("plot", kind, "--file", toml, "--out", tmp_path / "a.png")[0] == 0
    assert (tmp_path / "a.png").stat().st_size > 10_000


def test_plot_of_a_run(dp, tmp_path):
    run = ["--noise-multiplier", "2", "--sampling-probability", "1", "--steps", "20"]
    assert dp("plot", "steps", *run, "--delta", "1e-5", "--out", tmp_path / "a.svg")[0] == 0
    assert "<svg" in (tmp_path / "a.svg").read_text()[:2000]
    for bad in (["plot", "steps", *run], ["plot", "other", *run], ["plot", "profile"]):
        status, _, err = dp(*bad, "--out", tmp_path / "b.png")
        assert status == 2 and err.count("\n") == 1


def test_statement_of_a_run(dp):
    _, out, _ = dp("epsilon", *RUN, "--delta", "1e-5", "--statement")
    assert out == dpjax.statement(dpjax.dpsgd(1.0, 0.01, 1000), 1e-5) + "\n"
    status, _, err = dp("epsilon", *RUN, "--log-delta", "-11", "--statement")
    assert status == 2 and "--statement" in err
