"""The command line: the queries for a terminal, in the words of the library.

Exit status: 0 with an answer, 1 when ``doctor`` finds something wrong, 2 with one line on stderr for bad input.

Typer is imported at once and JAX only by a command that computes. A command configures its own process: the CPU unless
JAX_PLATFORMS says otherwise, and a per-user compilation cache, without which every answer would wait for a compiler.
"""

import decimal
import enum
import hashlib
import json
import math
import os
import platform
import sys
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from dpjax import __version__, _training_terms

ADJACENCIES = ("add_or_remove_one", "replace_one", "replace_special", "add", "remove")
METHODS = ("auto", "closed_form", "contour", "levy", "lattice")

_EPSILON_EXAMPLES = r"""
  dpjax epsilon --noise-multiplier 1.0 --sampling-probability 0.01 \
      --steps 1000 --delta 1e-5

  dpjax epsilon --noise-multiplier 1.1 --dataset-size 60000 --batch-size 256 \
      --epochs 60 --delta 1e-5
"""
_DELTA_EXAMPLES = r"""
  dpjax delta --noise-multiplier 1.0 --sampling-probability 0.01 \
      --steps 1000 --epsilon 2 --json
"""
_CALIBRATE_EXAMPLES = r"""
  dpjax calibrate --sampling-probability 0.01 --steps 1000 \
      --epsilon 2 --delta 1e-5

  dpjax calibrate --dataset-size 60000 --batch-size 256 --epochs 60 \
      --epsilon 3 --delta 1e-5

  dpjax calibrate --noise-multiplier 1.0 --sampling-probability 0.01 \
      --tpr 0.05 --fpr 0.01
"""
_DOCTOR_EXAMPLES = """
  dpjax doctor
"""

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def run(argv: Sequence[str]) -> int:
    """Runs one command and returns its exit status."""
    if not sys.stdout.isatty() and not os.environ.get("FORCE_COLOR"):
        os.environ["_TYPER_FORCE_DISABLE_TERMINAL"] = "1"  # typer would colour its help under GITHUB_ACTIONS
    command = typer.main.get_command(app)
    try:
        return command.main(list(argv), prog_name="dpjax", standalone_mode=False) or 0
    except typer.Exit as stop:
        return stop.exit_code
    except (typer.Abort, KeyboardInterrupt):
        return _complain("interrupted", 130)
    except Exception as error:
        if isinstance(error, ValueError | NotImplementedError):
            return _complain(str(error))
        if hasattr(error, "format_message"):  # a complaint of the argument parser
            return _complain(error.format_message())  # type: ignore[attr-defined]
        raise


def _complain(message: str, status: int = 2) -> int:
    print("dpjax: " + " ".join(message.split()), file=sys.stderr)
    return status


# ---- reading numbers


def _exact(text: str) -> Fraction:
    """A decimal number as written: 1.1 epochs of 60000 records in batches of 600 are 110 steps, not 111."""
    try:
        size = float(text)
    except ValueError:
        size = math.nan
    if not math.isfinite(size):
        raise typer.BadParameter(f"{text!r} is not a finite number.")
    return Fraction(text) if size else Fraction(0)  # Fraction("1e-999999999") would never return


def _whole(text: str) -> int:
    number = _exact(text)
    if number.denominator != 1 or number < 0:
        raise typer.BadParameter(f"{text!r} is not a whole number >= 0.")
    return int(number)


def _word(allowed: Iterable[str]) -> Callable[[str], str]:
    def parse(text: str) -> str:
        word = text.lower().replace("-", "_")
        if word not in allowed:
            raise typer.BadParameter(f"{text!r} is not one of {', '.join(allowed)}.")
        return word

    return parse


_DIRECT = "DP-SGD by its own parameters"
_TRAINING = "or by those of the training run"
_QUERY = "The question"
_TARGET = "The target"
_OUTPUT = "The answer"

Noise = Annotated[
    float,
    typer.Option(
        show_default=False,
        metavar="NUMBER",
        help="Standard deviation of the noise over the clipping norm.",
        rich_help_panel=_DIRECT,
    ),
]
Probability = Annotated[
    float | None,
    typer.Option(
        metavar="NUMBER",
        help="Probability of each record to be in a batch; 1 means no sampling.",
        rich_help_panel=_DIRECT,
    ),
]
Steps = Annotated[
    int | None, typer.Option(parser=_whole, metavar="COUNT", help="Number of updates.", rich_help_panel=_DIRECT)
]
DatasetSize = Annotated[
    int | None,
    typer.Option(parser=_whole, metavar="COUNT", help="Records in the dataset.", rich_help_panel=_TRAINING),
]
BatchSize = Annotated[
    int | None,
    typer.Option(
        parser=_whole,
        metavar="COUNT",
        help="Expected records between two additions of noise, all micro-batches of an update together: the "
        "sampling probability is batch / dataset.",
        rich_help_panel=_TRAINING,
    ),
]
Epochs = Annotated[
    Fraction | None,
    typer.Option(
        parser=_exact,
        metavar="NUMBER",
        help="Passes over the dataset: the steps are epochs * dataset / batch, rounded up.",
        rich_help_panel=_TRAINING,
    ),
]
AdjacencyName = Annotated[
    str,
    typer.Option(
        parser=_word(ADJACENCIES),
        metavar="WORD",
        help=f"Which datasets are neighbours: {', '.join(ADJACENCIES)}.",
        rich_help_panel=_QUERY,
    ),
]
MethodName = Annotated[
    str,
    typer.Option(
        parser=_word(METHODS), metavar="WORD", help=f"The engine: {', '.join(METHODS)}.", rich_help_panel=_QUERY
    ),
]
Tolerance = Annotated[
    float,
    typer.Option(metavar="NUMBER", help="Relative tolerance on delta.", rich_help_panel=_QUERY),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.", rich_help_panel=_OUTPUT)]
NoCache = Annotated[
    bool,
    typer.Option(
        "--no-cache",
        envvar="DPJAX_NO_CACHE",
        help="Neither read nor write the compilation cache.",
        rich_help_panel=_OUTPUT,
    ),
]


class Setting(NamedTuple):
    """A DP-SGD run: what the library is asked about, and how the numbers came about."""

    noise_multiplier: float
    sampling_probability: float
    steps: int
    derived: dict[str, str]  # field -> the formula it was derived with
    given: dict[str, Any]  # training terms, as given


def setting(
    noise_multiplier: float,
    sampling_probability: float | None = None,
    steps: int | None = None,
    dataset_size: int | None = None,
    batch_size: int | None = None,
    epochs: Fraction | None = None,
) -> Setting:
    """The run that the options describe, either directly or in the terms of training.

    Raises:
      ValueError: an option is missing, contradicts another, or is out of range.

    Example:
      >>> setting(1.1, dataset_size=60000, batch_size=600, epochs=Fraction("1.1"))[:3]
      (1.1, 0.01, 110)
    """
    direct = {"--sampling-probability": sampling_probability, "--steps": steps}
    training = {"--dataset-size": dataset_size, "--batch-size": batch_size, "--epochs": epochs}
    if all(value is None for value in training.values()):
        _require(direct, f"; or give {_listed(training)}")
        return Setting(noise_multiplier, float(sampling_probability), int(steps), {}, {})  # type: ignore[arg-type]
    for name, value in direct.items():
        if value is not None:
            raise ValueError(f"give {_listed(direct)}, or {_listed(training)}, not {name} with the latter.")
    _require(training, "")
    names = {name.removeprefix("--").replace("-", "_"): name for name in training}
    terms = _training_terms.derive(dataset_size, batch_size, epochs, names=names)
    given = {"dataset_size": dataset_size, "batch_size": batch_size, "epochs": _training_terms.plain(terms.epochs)}
    return Setting(noise_multiplier, terms.sampling_probability, terms.steps, terms.formulas, given)


def _require(options: dict[str, Any], otherwise: str) -> None:
    missing = [name for name, value in options.items() if value is None]
    if missing:
        raise ValueError(f"{_listed(missing)} {'is' if len(missing) == 1 else 'are'} missing{otherwise}.")


def _listed(names: Iterable[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


# ---- the commands


@app.callback(
    invoke_without_command=True,
    epilog="Examples:\n" + _EPSILON_EXAMPLES + _DELTA_EXAMPLES + _CALIBRATE_EXAMPLES + _DOCTOR_EXAMPLES,
)
def _top(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False,
) -> None:
    """A certified accountant for differential privacy: answers are upper ends, never below the truth."""
    if version:
        print(f"dpjax {__version__}")
        raise typer.Exit()
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command(epilog="Examples:\n" + _EPSILON_EXAMPLES)
def epsilon(
    *,
    noise_multiplier: Noise,
    sampling_probability: Probability = None,
    steps: Steps = None,
    dataset_size: DatasetSize = None,
    batch_size: BatchSize = None,
    epochs: Epochs = None,
    delta: Annotated[
        float | None,
        typer.Option(metavar="NUMBER", help="The delta to answer for; there is no default.", rich_help_panel=_QUERY),
    ] = None,
    log_delta: Annotated[
        float | None,
        typer.Option(metavar="NUMBER", help="Its natural logarithm, where delta underflows.", rich_help_panel=_QUERY),
    ] = None,
    adjacency: AdjacencyName = ADJACENCIES[0],
    method: MethodName = METHODS[0],
    rtol: Tolerance = 1e-10,
    as_json: AsJson = False,
    no_cache: NoCache = False,
) -> None:
    """The certified epsilon of a DP-SGD run at a given delta."""
    run = setting(noise_multiplier, sampling_probability, steps, dataset_size, batch_size, epochs)
    given = {"delta": delta, "log_delta": log_delta}
    target = {name: value for name, value in given.items() if value is not None}
    if len(target) != 1:
        raise ValueError("give either --delta or --log-delta; neither has a default.")
    _answer("epsilon", run, target, adjacency, method, rtol, as_json, no_cache)


@app.command(epilog="Example:\n" + _DELTA_EXAMPLES)
def delta(
    *,
    noise_multiplier: Noise,
    sampling_probability: Probability = None,
    steps: Steps = None,
    dataset_size: DatasetSize = None,
    batch_size: BatchSize = None,
    epochs: Epochs = None,
    epsilon: Annotated[
        float,
        typer.Option(show_default=False, metavar="NUMBER", help="The epsilon to answer for.", rich_help_panel=_QUERY),
    ],
    adjacency: AdjacencyName = ADJACENCIES[0],
    method: MethodName = METHODS[0],
    rtol: Tolerance = 1e-10,
    as_json: AsJson = False,
    no_cache: NoCache = False,
) -> None:
    """The certified delta of a DP-SGD run at a given epsilon."""
    run = setting(noise_multiplier, sampling_probability, steps, dataset_size, batch_size, epochs)
    _answer("delta", run, {"epsilon": epsilon}, adjacency, method, rtol, as_json, no_cache)


_FREE = {"noise_multiplier": True, "sampling_probability": False, "steps": False}  # whether more of it is safer


@app.command(epilog="Examples:\n" + _CALIBRATE_EXAMPLES)
def calibrate(
    *,
    noise_multiplier: Annotated[
        float | None,
        typer.Option(
            metavar="NUMBER",
            help="Standard deviation of the noise over the clipping norm.",
            rich_help_panel=_DIRECT,
        ),
    ] = None,
    sampling_probability: Probability = None,
    steps: Steps = None,
    dataset_size: DatasetSize = None,
    batch_size: BatchSize = None,
    epochs: Epochs = None,
    epsilon: Annotated[
        float | None, typer.Option(metavar="NUMBER", help="The target epsilon, at a delta.", rich_help_panel=_TARGET)
    ] = None,
    delta: Annotated[
        float | None,
        typer.Option(metavar="NUMBER", help="The delta of the target; there is no default.", rich_help_panel=_TARGET),
    ] = None,
    log_delta: Annotated[
        float | None,
        typer.Option(metavar="NUMBER", help="Its natural logarithm, where delta underflows.", rich_help_panel=_TARGET),
    ] = None,
    advantage: Annotated[
        float | None,
        typer.Option(metavar="NUMBER", help="The target: a membership attack's advantage.", rich_help_panel=_TARGET),
    ] = None,
    tpr: Annotated[
        float | None,
        typer.Option(metavar="NUMBER", help="The target: an attack's true-positive rate ...", rich_help_panel=_TARGET),
    ] = None,
    fpr: Annotated[
        float | None,
        typer.Option(metavar="NUMBER", help="... at this false-positive rate.", rich_help_panel=_TARGET),
    ] = None,
    adjacency: AdjacencyName = ADJACENCIES[0],
    as_json: AsJson = False,
    no_cache: NoCache = False,
) -> None:
    """The noise, sampling probability or steps of a DP-SGD run that meet a target: whichever is left out."""
    target = _calibration_target(epsilon, delta, log_delta, advantage, tpr, fpr)
    known: dict[str, Any] = {
        "noise_multiplier": noise_multiplier, "sampling_probability": sampling_probability, "steps": steps,
    }  # fmt: skip
    run = None
    if any(x is not None for x in (dataset_size, batch_size, epochs)):
        if noise_multiplier is not None:
            raise ValueError("--noise-multiplier is what is found from --dataset-size, --batch-size and --epochs.")
        run = setting(math.nan, sampling_probability, steps, dataset_size, batch_size, epochs)
        known |= {"sampling_probability": run.sampling_probability, "steps": run.steps}
    free = [name for name, value in known.items() if value is None]
    if len(free) != 1:
        options = [f"--{name.replace('_', '-')}" for name in _FREE]
        missing = _listed([f"--{name.replace('_', '-')}" for name in free]) if free else "none"
        raise ValueError(f"leave out exactly one of {_listed(options)}, which is then found; missing: {missing}.")
    (name,) = free

    configure_jax(no_cache)
    import dpjax

    neighbours = dpjax.Adjacency(adjacency)
    make = lambda x: dpjax.dpsgd(**{**known, name: x})
    found = dpjax.calibrate(make, **target, adjacency=neighbours, integer=name == "steps")
    found = int(found) if name == "steps" else float(found)
    record = make(found)
    if "epsilon" in target:
        at = {key: value for key, value in target.items() if key != "epsilon"}
        spent = {"epsilon": float(dpjax.epsilon(record, **at, adjacency=neighbours))}
    elif "advantage" in target:
        spent = {"advantage": float(dpjax.advantage(record, adjacency=neighbours))}
    else:
        spent = {
            "true_positive_rate": float(dpjax.true_positive_rate(record, target["tpr_at_fpr"][1], adjacency=neighbours))
        }
    inputs = {key: value for key, value in known.items() if key != name}
    inputs |= {**(run.given if run else {}), "target": target, "adjacency": adjacency}
    if as_json:
        _print_json({name: found, "spent": spent, "inputs": inputs, "dpjax": __version__})
        return
    up = _FREE[name]
    rows = {name: f"{found}" if name == "steps" else rounded(found, up=up)}
    rows |= {key: f"{rounded(value, up=True)}, certified" for key, value in spent.items()}
    for key, value in {**inputs, **{f"target {key}": value for key, value in target.items()}}.items():
        formula = run.derived.get(key) if run else None
        if key != "target":
            rows[key] = f"{value:.10g} = {formula}" if formula else f"{value}"
    _print_table(rows, bold_first=True)


def _calibration_target(epsilon, delta, log_delta, advantage, tpr, fpr) -> dict[str, Any]:
    """What ``dpjax.calibrate`` is to be asked for."""
    kinds = {"--epsilon": epsilon, "--advantage": advantage, "--tpr and --fpr": tpr if fpr is None else fpr}
    given = [name for name, value in kinds.items() if value is not None]
    if len(given) != 1:
        raise ValueError("give one target: --epsilon with --delta or --log-delta, --advantage, or --tpr with --fpr.")
    if epsilon is not None:
        if (delta is None) == (log_delta is None):
            raise ValueError("give either --delta or --log-delta with --epsilon; neither has a default.")
        return {"epsilon": epsilon} | ({"delta": delta} if log_delta is None else {"log_delta": log_delta})
    if delta is not None or log_delta is not None:
        raise ValueError(f"--delta belongs to --epsilon; {given[0]} has none.")
    if advantage is not None:
        return {"advantage": advantage}
    if tpr is None or fpr is None:
        raise ValueError("--tpr and --fpr belong together.")
    return {"tpr_at_fpr": (tpr, fpr)}


@app.command()
def doctor(as_json: AsJson = False, no_cache: NoCache = False) -> None:
    """Versions, devices and precision, and a self-check against stored reference values."""
    cache = configure_jax(no_cache, choose_platform=False)
    from dpjax import doctor as doctor_

    report = doctor_.examine()
    report["compilation cache"] = cache
    checks = doctor_.self_check()
    bad = [check for check in checks if not check.passed]
    if as_json:
        _print_json({**report, "self-check": [check._asdict() for check in checks]})
    else:
        _print_table(report)
        for check in checks:
            mark = typer.style("ok  ", fg="green") if check.passed else typer.style("FAIL", fg="red", bold=True)
            typer.echo(f"{mark}  {check.question}: {check.finding}")
        typer.echo(f"self-check: {len(checks) - len(bad)} of {len(checks)} reference values confirmed")
    if bad:
        raise typer.Exit(1)


def _answer(
    name: str,
    run: Setting,
    target: dict[str, float],
    adjacency: str,
    method: str,
    rtol: float,
    as_json: bool,
    no_cache: bool,
) -> None:
    configure_jax(no_cache)
    import dpjax

    query = getattr(dpjax, name + "_bounds")
    bounds = query(
        dpjax.dpsgd(run.noise_multiplier, run.sampling_probability, run.steps),
        **target,
        adjacency=dpjax.Adjacency(adjacency),
        method=method,
        rtol=rtol,
    )
    method, status = dpjax.Method(int(bounds.method)).name.lower(), _named(dpjax.Status(int(bounds.status)))
    inputs = {
        "noise_multiplier": run.noise_multiplier,
        "sampling_probability": run.sampling_probability,
        "steps": run.steps,
        **run.given,
        **target,
        "adjacency": adjacency,
        "rtol": rtol,
    }
    nodes = int(bounds.nodes)
    lower, estimate, upper = (float(x) for x in bounds[:3])
    if math.isnan(upper):
        raise typer.Exit(_complain(f"no answer: {name} is NaN, which is a fault of dpjax; please report it.", status=1))
    if as_json:
        _print_json(
            {
                name: upper,
                "lower": lower,
                "estimate": estimate,
                "upper": upper,
                "method": method,
                "status": status,
                "nodes": nodes,
                "inputs": inputs,
                "dpjax": __version__,
            }
        )
        return
    rows = {
        name: rounded(upper, up=True),
        "certified interval": f"[{rounded(lower, up=False)}, {rounded(upper, up=True)}]",
    }
    for key, value in inputs.items():
        formula = run.derived.get(key)
        rows[key] = f"{value:.10g} = {formula}" if formula else f"{value}"
    rows |= {"method": f"{method}, {nodes} nodes" if nodes else method, "status": status}
    _print_table(rows, bold_first=True)


def _named(member: enum.Enum) -> str:
    return (member.name or str(member.value)).lower().replace("_", " ").replace("|", ", ")


# ---- printing


def rounded(x: float, *, up: bool, digits: int = 10) -> str:
    """``x`` to ``digits`` significant digits, never on the wrong side.

    >>> rounded(0.1, up=True), rounded(0.1, up=False, digits=20), rounded(2 / 3, up=False, digits=3)
    ('0.1000000001', '0.10000000000000000555', '0.666')
    """
    side = decimal.ROUND_CEILING if up else decimal.ROUND_FLOOR
    exact = decimal.Context(prec=digits, rounding=side).create_decimal_from_float(x)
    return f"{exact:g}" if exact.is_finite() else str(x)


def _print_table(rows: dict[str, Any], *, bold_first: bool = False) -> None:
    width = max(map(len, rows))
    for i, (key, value) in enumerate(rows.items()):
        typer.secho(f"{key.replace('_', ' '):{width}}  {value}", bold=bold_first and i == 0)


def _print_json(record: dict[str, Any]) -> None:
    print(json.dumps(_jsonable(record), indent=2, allow_nan=False))


def _jsonable(x: Any) -> Any:
    """JSON has no infinity: it is printed as the string "inf", which float() reads."""
    if isinstance(x, dict):
        return {key: _jsonable(value) for key, value in x.items()}
    if isinstance(x, list | tuple):
        return [_jsonable(value) for value in x]
    return str(x) if isinstance(x, float) and not math.isfinite(x) else x


# ---- JAX, for this process only


def configure_jax(no_cache: bool, *, choose_platform: bool = True) -> str:
    """Sets JAX up for one answer; returns the compilation cache's folder, or why there is none."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # XLA remarks on every program that it loads from the cache
    import jax

    if choose_platform and not os.environ.get("JAX_PLATFORMS"):
        jax.config.update("jax_platforms", "cpu")  # a single query gains nothing from starting an accelerator
    if no_cache:
        jax.config.update("jax_enable_compilation_cache", False)
        return "off"
    if os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        return os.environ["JAX_COMPILATION_CACHE_DIR"]
    folder = cache_folder()
    try:
        folder.parent.parent.mkdir(parents=True, exist_ok=True)
        for path in (folder.parent, folder):
            path.mkdir(mode=0o700, exist_ok=True)
            if not is_private(path):
                return f"none: {path} can be written by others, or is not yours"
    except OSError as error:
        return f"none: {error}"
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    return str(folder)


def cache_folder() -> Path:
    """The user's folder for programs compiled on this kind of processor.

    Home folders are shared between machines, and a program compiled for one processor may crash on another.
    """
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))  # to be ignored unless absolute, says the XDG specification
    base = base if base.is_absolute() else Path.home() / ".cache"
    try:
        described = Path("/proc/cpuinfo").read_text().partition("\n\n")[0].splitlines()
        processor = [line for line in described if line.startswith(("model name", "flags", "Features", "CPU part"))]
    except OSError:  # not Linux
        processor = [platform.processor()]
    kind = hashlib.sha256("\n".join([platform.machine(), *processor]).encode()).hexdigest()[:12]
    return base / "dpjax" / kind


def is_private(folder: Path) -> bool:
    """Whether nobody else can write to ``folder``: who writes there runs code in this process."""
    if not hasattr(os, "getuid"):  # Windows: the user's own profile
        return True
    status = folder.stat()
    return status.st_uid == os.getuid() and status.st_mode & 0o022 == 0 and os.access(folder, os.W_OK)
