"""The command line."""

import inspect
import json
import math
import os
import stat
import subprocess
import sys
import time
from fractions import Fraction

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

import dpjax
from dpjax import cli, doctor
from dpjax.cli import _options, _print, _process

DIRECT = ["--noise-multiplier", "1.0", "--sampling-probability", "0.01", "--steps", "1000"]
TRAINING = ["--noise-multiplier", "1.1", "--dataset-size", "60000", "--batch-size", "256", "--epochs", "60"]
EPSILON = 1.8282366665165768  # of DIRECT at delta 1e-5, by contour quadrature in 220-bit arithmetic


@pytest.fixture
def dp(monkeypatch, capsys):
    """Runs a command in this process, whose JAX stays as it is, and returns (status, stdout, stderr)."""
    monkeypatch.setattr(_process, "configure_jax", lambda *args, **kwargs: "off")

    def run(*argv):
        status = cli.run(argv)
        return status, *capsys.readouterr()

    return run


def process(*argv, **environment):
    """Runs a command in a process of its own."""
    env = {**os.environ, **environment}
    env.pop("TF_CPP_MIN_LOG_LEVEL", None)  # set by jax in this process
    return subprocess.run([sys.executable, "-m", "dpjax", *argv], capture_output=True, text=True, env=env)


class TestAnswers:
    def test_epsilon(self, dp):
        status, out, err = dp("epsilon", *DIRECT, "--delta", "1e-5")
        assert (status, err) == (0, "")
        assert out.startswith("epsilon               1.828236667\n")  # rounded up
        assert "add_or_remove_one" in out

    def test_json_agrees_with_the_library(self, dp):
        status, out, _ = dp("epsilon", *DIRECT, "--delta", "1e-5", "--json")
        answer = json.loads(out)
        bounds = dpjax.epsilon_bounds(dpjax.dpsgd(1.0, 0.01, 1000), delta=1e-5)
        assert status == 0
        assert answer["epsilon"] == answer["upper"] == float(bounds.upper)
        assert answer["lower"] == float(bounds.lower)
        assert answer["lower"] <= answer["estimate"] <= answer["upper"]
        assert answer["epsilon"] == pytest.approx(EPSILON, rel=1e-10)
        assert answer["inputs"] == {
            "noise_multiplier": 1.0,
            "sampling_probability": 0.01,
            "steps": 1000,
            "delta": 1e-5,
            "adjacency": "add_or_remove_one",
            "rtol": 1e-10,
        }
        assert {"method", "status"} <= answer.keys()

    def test_delta_is_the_inverse(self, dp):
        _, out, _ = dp("delta", *DIRECT, "--epsilon", str(EPSILON), "--json")
        assert json.loads(out)["delta"] == pytest.approx(1e-5, rel=1e-8)

    def test_log_delta(self, dp):
        _, plain, _ = dp("epsilon", *DIRECT, "--delta", "1e-5", "--json")
        _, log, _ = dp("epsilon", *DIRECT, "--log-delta", str(math.log(1e-5)), "--json")
        assert json.loads(log)["epsilon"] == pytest.approx(json.loads(plain)["epsilon"], rel=1e-12)

    @pytest.mark.parametrize("word", ["remove", "REMOVE", "replace-one", "add_or_remove_one"])
    def test_adjacency(self, dp, word):
        _, out, _ = dp("epsilon", *DIRECT, "--delta", "1e-5", "--adjacency", word, "--json")
        adjacency = dpjax.Adjacency(word.lower().replace("-", "_"))
        expected = dpjax.epsilon(dpjax.dpsgd(1.0, 0.01, 1000), delta=1e-5, adjacency=adjacency)
        assert json.loads(out)["epsilon"] == float(expected)

    def test_infinity_is_a_string_in_json(self, dp):
        status, out, _ = dp("epsilon", "--noise-multiplier", "0", *DIRECT[2:], "--delta", "1e-5", "--json")
        assert status == 0
        assert json.loads(out, parse_constant=pytest.fail)["epsilon"] == "inf"

    def test_training_terms_say_what_was_derived(self, dp):
        _, out, _ = dp("epsilon", *TRAINING, "--delta", "1e-5")
        assert "0.004266666667 = 256 / 60000" in out
        assert "14063 = ceil(60 * 60000 / 256)" in out

    def test_gradient_accumulation(self, dp):
        parts = ["--micro-batch-size", "32", "--accumulation-steps", "8"]
        _, whole, _ = dp("epsilon", *TRAINING, "--delta", "1e-5", "--json")
        _, out, _ = dp("epsilon", *TRAINING[:4], *parts, *TRAINING[6:], "--delta", "1e-5", "--json")
        assert json.loads(out)["epsilon"] == json.loads(whole)["epsilon"]
        assert json.loads(out)["inputs"].items() >= {"batch_size": 256, "micro_batch_size": 32}.items()

    @pytest.mark.parametrize(
        "argv",
        [
            ["epsilon", *TRAINING[:2], "--delta", "1e-5"],
            ["delta", *TRAINING[:2], "--epsilon", "2"],
            ["calibrate", "--epsilon", "2", "--delta", "1e-5"],
            ["compare", *TRAINING[:2], "--delta", "1e-5"],
            ["plot", "profile", *TRAINING[:2], "--out", "a.png"],
            ["sweep", *TRAINING[:2], "--delta", "1e-5"],
        ],
        ids=lambda argv: argv[0],
    )
    def test_every_command_takes_training_terms(self, dp, argv):
        for terms, says in (
            ([*TRAINING[2:], "--accumulation-steps", "8"], "which batch is meant? --batch-size"),
            ([*TRAINING[2:4], *TRAINING[6:], "--accumulation-steps", "8"], "--micro-batch-size is missing"),
            ([*TRAINING[2:4], "--micro-batch-size", "8"], "--accumulation-steps and --epochs are missing"),
        ):
            status, out, err = dp(*argv, *terms)
            assert (status, out, err.count("\n")) == (2, "", 1) and says in err

    def test_training_terms_are_exact(self):
        assert math.ceil(1.1 * 50000 / 500) == 111  # what floating point makes of 110 steps
        run = _options.setting(1.0, dataset_size=50000, batch_size=500, epochs=Fraction("1.1"))
        assert (run.sampling_probability, run.steps) == (0.01, 110)


class TestCalibrate:
    def test_noise(self, dp):
        status, out, err = dp("calibrate", *DIRECT[2:], "--epsilon", "2", "--delta", "1e-5")
        assert (status, err) == (0, "")
        assert out.startswith("noise multiplier      0.9591015527\n")  # rounded up
        assert "epsilon               1.999999999" in out

    def test_probability_and_steps_agree_with_the_library(self, dp):
        _, out, _ = dp("calibrate", *DIRECT[:2], *DIRECT[4:], "--epsilon", "2", "--delta", "1e-5", "--json")
        answer = json.loads(out)
        q = dpjax.calibrate(lambda q: dpjax.dpsgd(1.0, q, 1000), epsilon=2.0, delta=1e-5)
        assert answer["sampling_probability"] == q
        assert 2 * (1 - 1e-9) <= answer["spent"]["epsilon"] <= 2
        _, out, _ = dp("calibrate", *DIRECT[:4], "--epsilon", "2", "--log-delta", str(math.log(1e-5)), "--json")
        assert json.loads(out)["steps"] == 1202

    def test_training_terms(self, dp):
        _, out, _ = dp("calibrate", *TRAINING[2:], "--epsilon", "3", "--delta", "1e-5")
        assert out.startswith("noise multiplier      0.9684274159\n")
        assert "14063 = ceil(60 * 60000 / 256)" in out

    def test_advantage(self, dp):
        _, out, _ = dp("calibrate", *DIRECT[2:], "--advantage", "0.1", "--json")
        answer = json.loads(out)
        run = dpjax.dpsgd(answer["noise_multiplier"], 0.01, 1000)
        assert answer["spent"]["advantage"] == dpjax.advantage(run) <= 0.1


class TestSameWordsAsTheLibrary:
    def test_adjacencies(self):
        assert set(_options.ADJACENCIES) == {a.value for a in dpjax.Adjacency}

    @pytest.mark.parametrize("query", [dpjax.epsilon_bounds, dpjax.delta_bounds])
    def test_defaults(self, query):
        library = inspect.signature(query).parameters
        command = inspect.signature(getattr(cli.queries, query.__name__.removesuffix("_bounds"))).parameters
        assert command["rtol"].default == library["rtol"].default
        assert command["method"].default == library["method"].default
        assert dpjax.Adjacency(command["adjacency"].default) == library["adjacency"].default


BAD = {
    "no delta": (["epsilon", *DIRECT], "--delta"),
    "two deltas": (["epsilon", *DIRECT, "--delta", "1e-5", "--log-delta", "-3"], "--log-delta"),
    "no epsilon": (["delta", *DIRECT], "--epsilon"),
    "no noise": (["epsilon", *DIRECT[2:], "--delta", "1e-5"], "--noise-multiplier"),
    "no steps": (["epsilon", *DIRECT[:4], "--delta", "1e-5"], "--steps is missing"),
    "no run": (["epsilon", *DIRECT[:2], "--delta", "1e-5"], "--dataset-size, --batch-size and --epochs"),
    "no epochs": (["epsilon", *TRAINING[:-2], "--delta", "1e-5"], "--epochs is missing"),
    "both ways": (["epsilon", *TRAINING, "--steps", "3", "--delta", "1e-5"], "not --steps"),
    "negative noise": (
        ["epsilon", "--noise-multiplier", "-1", *DIRECT[2:], "--delta", "1e-5"],
        "noise_multiplier = -1",
    ),
    "noise that is no number": (["epsilon", "--noise-multiplier", "nan", *DIRECT[2:], "--delta", "1e-5"], "nan"),
    "probability": (
        ["epsilon", *DIRECT[:2], "--sampling-probability", "2", "--steps", "1", "--delta", "0.1"],
        "[0, 1]",
    ),
    "half a step": (["epsilon", *DIRECT[:4], "--steps", "1.5", "--delta", "1e-5"], "'1.5' is not a whole number"),
    "endless steps": (["epsilon", *DIRECT[:4], "--steps", "1e999999999", "--delta", "1e-5"], "not a finite number"),
    "delta": (["epsilon", *DIRECT, "--delta", "1.5"], "delta = 1.5"),
    "epsilon": (["delta", *DIRECT, "--epsilon", "nan"], "epsilon = nan"),
    "word for a number": (["epsilon", *DIRECT, "--delta", "tiny"], "'--delta': 'tiny' is not a number."),
    "adjacency": (["epsilon", *DIRECT, "--delta", "1e-5", "--adjacency", "swap"], "replace_one"),
    "method": (["epsilon", *DIRECT, "--delta", "1e-5", "--method", "magic"], "contour"),
    "batch": (
        ["epsilon", "--dataset-size", "10", "--batch-size", "20", "--epochs", "1", *DIRECT[:2], "--delta", "0.1"],
        "20",
    ),
    "no data": (
        ["epsilon", "--dataset-size", "0", "--batch-size", "0", "--epochs", "1", *DIRECT[:2], "--delta", "0.1"],
        "> 0",
    ),
    "no epoch": (["epsilon", *TRAINING[:-1], "1e-999999999", "--delta", "1e-5"], "--epochs must be > 0"),
    "nothing to find": (["calibrate", *DIRECT, "--epsilon", "2", "--delta", "1e-5"], "leave out exactly one"),
    "two to find": (["calibrate", *DIRECT[:2], "--epsilon", "2", "--delta", "1e-5"], "leave out exactly one"),
    "noise known": (["calibrate", *TRAINING, "--epsilon", "2", "--delta", "1e-5"], "is what is found"),
    "no target": (["calibrate", *DIRECT[2:]], "give one target"),
    "two targets": (["calibrate", *DIRECT[2:], "--advantage", "0.1", "--tpr", "0.1"], "give one target"),
    "target without delta": (["calibrate", *DIRECT[2:], "--epsilon", "2"], "--log-delta"),
    "half a point": (["calibrate", *DIRECT[2:], "--tpr", "0.1"], "--tpr and --fpr belong together"),
    "advantage at a delta": (["calibrate", *DIRECT[2:], "--advantage", "0.1", "--delta", "1e-5"], "--delta belongs"),
    "infeasible": (
        ["calibrate", "--noise-multiplier", "100", "--steps", "10", "--epsilon", "50", "--delta", "1e-5"],
        "cannot be met",
    ),
    "command": (["epsilom"], "epsilom"),
    "option": (["epsilon", "--sigma", "1"], "--sigma"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_and_status_2(dp, case):
    argv, says = BAD[case]
    status, out, err = dp(*argv)
    assert (status, out) == (2, "")
    assert err.startswith("dpjax: ")
    assert err.count("\n") == 1
    assert says in err


def test_every_number_is_refused_in_these_words(dp):
    """Whatever the option: its name, what was given, and what is allowed."""
    kinds = {"NUMBER": ("a number.", "a finite number."), "COUNT": ("a finite number.",)}
    commands = typer.main.get_command(cli.app).commands
    asked = [
        (name, p.opts[0], kinds[p.metavar]) for name in commands for p in commands[name].params if p.metavar in kinds
    ]
    assert len(asked) > 40
    for name, flag, words in asked:
        status, _, err = dp(name, flag, "x,y")
        assert status == 2 and err in [f"dpjax: Invalid value for '{flag}': 'x,y' is not {word}\n" for word in words]


class TestRounded:
    @given(st.floats(allow_nan=False, allow_infinity=False), st.integers(1, 17))
    def test_stays_on_its_side(self, x, digits):
        down, up = (Fraction(_print.rounded(x, up=up, digits=digits)) for up in (False, True))
        assert down <= Fraction(x) <= up

    @pytest.mark.parametrize("x", [math.inf, 0.0, 0.5, 1e15])
    def test_round_numbers_stay(self, x):
        assert float(_print.rounded(x, up=True)) == float(_print.rounded(x, up=False)) == x


class TestDoctor:
    def test_healthy(self, dp):
        status, out, _ = dp("doctor")
        count = len(doctor.self_check())
        assert status == 0, out
        assert f"{count} of {count} reference values confirmed" in out
        assert dpjax.__version__ in out
        assert "float64 works" in out

    def test_json(self, dp):
        status, out, _ = dp("doctor", "--json")
        assert status == 0
        assert all(check["passed"] for check in json.loads(out)["self-check"])

    @pytest.mark.parametrize("fault", ["too low", "too wide", "crash"])
    def test_finds_a_fault(self, dp, monkeypatch, fault):
        right = dpjax.delta_bounds

        def wrong(*args, **kwargs):
            if fault == "crash":
                raise RuntimeError("no such kernel")
            bounds = right(*args, **kwargs)
            if fault == "too wide":
                return bounds._replace(upper=bounds.upper * 1.001)
            return bounds._replace(lower=bounds.lower * (1 - 1e-6), upper=bounds.upper * (1 - 1e-6))

        monkeypatch.setattr(dpjax, "delta_bounds", wrong)
        status, out, _ = dp("doctor")
        assert status == 1
        assert "FAIL  delta" in out
        assert "FAIL  epsilon" not in out


class TestProcess:
    """What only a fresh process shows."""

    @pytest.mark.parametrize("argv", [["--version"], ["--help"], ["epsilon", "--help"], ["epsilon"]])
    def test_jax_is_not_loaded_before_it_is_needed(self, argv):
        code = f"import sys; from dpjax import cli; cli.run({argv}); print('jax' in sys.modules)"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert done.stdout.splitlines()[-1] == "False"

    def test_missing_extra_is_named(self):
        code = "import sys; sys.modules['typer'] = None; from dpjax.__main__ import main; main()"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert done.returncode == 1
        assert done.stderr == "dpjax: the command line needs typer and rich: pip install 'dpjax[cli]'\n"

    @pytest.mark.parametrize("argv", [["--help"], ["epsilon", "--help"], ["epsilon", *DIRECT, "--delta", "1e-5"]])
    def test_colours_are_for_terminals(self, argv):
        done = process(*argv, GITHUB_ACTIONS="true", PY_COLORS="1", FORCE_COLOR="")
        assert done.returncode == 0
        assert "\x1b" not in done.stdout + done.stderr

    def test_cache_is_private_and_used(self, tmp_path):
        environment = {"XDG_CACHE_HOME": str(tmp_path), "DPJAX_NO_CACHE": ""}

        def programs(delta):
            done = process("epsilon", *DIRECT, "--delta", delta, **environment)
            assert (done.returncode, done.stderr) == (0, "")
            return {path.name for path in tmp_path.rglob("*-cache")}

        first = programs("1e-5")
        assert first
        assert programs("1e-6") == first, "another value is not another program"
        folders = [path for path in tmp_path.rglob("*") if path.is_dir()]
        assert folders
        assert {stat.S_IMODE(folder.stat().st_mode) for folder in folders} == {0o700}

    @pytest.mark.parametrize(("option", "environment"), [("--no-cache", ""), ("--json", "1")])
    def test_cache_can_be_turned_off(self, tmp_path, option, environment):
        done = process(
            "epsilon", *DIRECT, "--delta", "1e-5", option, XDG_CACHE_HOME=str(tmp_path), DPJAX_NO_CACHE=environment
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert not list(tmp_path.iterdir())

    def test_cache_that_others_can_write_is_not_used(self, tmp_path):
        folder = tmp_path / "dpjax"
        folder.mkdir()
        folder.chmod(0o777)
        done = process("epsilon", *DIRECT, "--delta", "1e-5", XDG_CACHE_HOME=str(tmp_path), DPJAX_NO_CACHE="")
        assert (done.returncode, done.stderr) == (0, "")
        assert not list(folder.iterdir())

    def test_cache_folder(self, monkeypatch, tmp_path):
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.setenv("XDG_CACHE_HOME", "relative/path")
        assert _process.cache_folder().parent == tmp_path / ".cache" / "dpjax"

    @pytest.mark.slow
    def test_start_to_answer(self, tmp_path):
        """Under 8 s with an empty compilation cache, under 1.5 s with a warm one."""
        seconds = []
        for _ in range(4):
            began = time.perf_counter()
            process("epsilon", *DIRECT, "--delta", "1e-5", XDG_CACHE_HOME=str(tmp_path), DPJAX_NO_CACHE="")
            seconds.append(time.perf_counter() - began)
        assert seconds[0] < 8.0
        assert min(seconds[1:]) < 1.5
