"""The options that commands share, and how their words and numbers are read."""

import math
from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import Annotated, Any, NamedTuple

import typer

from dpjax import _training_terms, suspicion

ADJACENCIES = ("add_or_remove_one", "replace_one", "replace_special", "add", "remove")
# Of a training run: those that are always needed, and those that may stand for the batch size.
TERMS = ("dataset_size", "batch_size", "epochs", "micro_batch_size", "accumulation_steps")
METHODS = ("auto", "closed_form", "contour", "levy", "lattice")


def exact(text: str) -> Fraction:
    """A decimal number as written: 1.1 epochs of 60000 records in batches of 600 are 110 steps, not 111."""
    try:
        size = float(text)
    except ValueError:
        size = math.nan
    if not math.isfinite(size):
        raise typer.BadParameter(f"{text!r} is not a finite number.")
    return Fraction(text) if size else Fraction(0)  # Fraction("1e-999999999") would never return


def number(text: str) -> float:
    """A number, "inf" included; what is allowed is said where it is used."""
    try:
        return float(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a number.") from None


def whole(text: str) -> int:
    number = exact(text)
    if number.denominator != 1 or number < 0:
        raise typer.BadParameter(f"{text!r} is not a whole number >= 0.")
    return int(number)


def word(allowed: Iterable[str]) -> Callable[[str], str]:
    def parse(text: str) -> str:
        word = text.lower().replace("-", "_")
        if word not in allowed:
            raise typer.BadParameter(f"{text!r} is not one of {', '.join(allowed)}.")
        return word

    return parse


DIRECT = "DP-SGD by its own parameters"
TRAINING = "or by those of the training run"
QUERY = "The question"
TARGET = "The target"
OUTPUT = "The answer"

Noise = Annotated[
    float,
    typer.Option(
        show_default=False,
        parser=number,
        metavar="NUMBER",
        help="Standard deviation of the noise over the clipping norm.",
        rich_help_panel=DIRECT,
    ),
]
Probability = Annotated[
    float | None,
    typer.Option(
        parser=number,
        metavar="NUMBER",
        help="Probability of each record to be in a batch; 1 means no sampling.",
        rich_help_panel=DIRECT,
    ),
]
Steps = Annotated[
    int | None, typer.Option(parser=whole, metavar="COUNT", help="Number of updates.", rich_help_panel=DIRECT)
]
DatasetSize = Annotated[
    int | None,
    typer.Option(parser=whole, metavar="COUNT", help="Records in the dataset.", rich_help_panel=TRAINING),
]
BatchSize = Annotated[
    int | None,
    typer.Option(
        parser=whole,
        metavar="COUNT",
        help="Expected records between two additions of noise, all micro-batches of an update together: the "
        "sampling probability is batch / dataset.",
        rich_help_panel=TRAINING,
    ),
]
MicroBatchSize = Annotated[
    int | None,
    typer.Option(
        parser=whole,
        metavar="COUNT",
        help="With gradient accumulation, instead of --batch-size: expected records of a micro-batch ...",
        rich_help_panel=TRAINING,
    ),
]
AccumulationSteps = Annotated[
    int | None,
    typer.Option(
        parser=whole,
        metavar="COUNT",
        help="... and how many of them an update sums up before noise is added.",
        rich_help_panel=TRAINING,
    ),
]
Epochs = Annotated[
    Fraction | None,
    typer.Option(
        parser=exact,
        metavar="NUMBER",
        help="Passes over the dataset: the steps are epochs * dataset / batch, rounded up.",
        rich_help_panel=TRAINING,
    ),
]
AdjacencyName = Annotated[
    str,
    typer.Option(
        parser=word(ADJACENCIES),
        metavar="WORD",
        help=f"Which datasets are neighbours: {', '.join(ADJACENCIES)}.",
        rich_help_panel=QUERY,
    ),
]
MethodName = Annotated[
    str,
    typer.Option(
        parser=word(METHODS), metavar="WORD", help=f"The engine: {', '.join(METHODS)}.", rich_help_panel=QUERY
    ),
]
Tolerance = Annotated[
    float,
    typer.Option(parser=number, metavar="NUMBER", help="Relative tolerance on delta.", rich_help_panel=QUERY),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.", rich_help_panel=OUTPUT)]
AsStatement = Annotated[
    bool, typer.Option("--statement", help="Print a paragraph for a paper instead.", rich_help_panel=OUTPUT)
]
NoCache = Annotated[
    bool,
    typer.Option(
        "--no-cache",
        envvar="DPJAX_NO_CACHE",
        help="Neither read nor write the compilation cache.",
        rich_help_panel=OUTPUT,
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
    **terms: Any,
) -> Setting:
    """The run that the options describe, either directly or in ``terms`` of training.

    Raises:
      ValueError: an option is missing, contradicts another, or is out of range.

    Example:
      >>> setting(1.1, dataset_size=60000, batch_size=600, epochs=Fraction("1.1"))[:3]
      (1.1, 0.01, 110)
    """
    suspicion.question_noise(noise_multiplier)
    direct = {"sampling_probability": sampling_probability, "steps": steps}
    terms = {name: value for name, value in terms.items() if value is not None}
    if not terms:
        require({option(name): value for name, value in direct.items()}, f"; or give {listed(map(option, TERMS[:3]))}")
        return Setting(noise_multiplier, float(sampling_probability), int(steps), {}, {})  # type: ignore[arg-type]
    not_both(name for name, value in direct.items() if value is not None)
    derived = derive(terms)
    given: dict[str, Any] = {"dataset_size": derived.dataset_size, "batch_size": derived.batch_size}
    given |= {name: value for name, value in terms.items() if name not in TERMS[:3]}
    given["epochs"] = _training_terms.plain(derived.epochs)
    return Setting(noise_multiplier, derived.sampling_probability, derived.steps, derived.formulas, given)


def not_both(direct: Iterable[str]) -> None:
    """Raises ValueError if there is one of the ``direct`` parameters beside the terms of training."""
    for name in direct:
        raise ValueError(
            f"give --sampling-probability and --steps, or {listed(map(option, TERMS[:3]))}, not {option(name)} with the "
            "latter."
        )


def derive(terms: dict[str, Any]) -> _training_terms.Terms:
    """What follows from the terms of training that were given.

    Raises:
      ValueError: one is missing, contradicts another, or is out of range; under its name on the command line.
    """
    parts = [name for name in TERMS[3:] if name in terms]
    needed = ("dataset_size", *TERMS[3:], "epochs") if parts and "batch_size" not in terms else TERMS[:3]
    require({option(name): terms.get(name) for name in needed}, "")
    return _training_terms.derive(**{name: terms.get(name) for name in TERMS}, names={n: option(n) for n in TERMS})


def option(name: str) -> str:
    """What a parameter is called on the command line."""
    return "--" + name.replace("_", "-")


def target(**given: float | None) -> dict[str, float]:
    """The one of two numbers that was given."""
    found = {name: value for name, value in given.items() if value is not None}
    if len(found) != 1:
        raise ValueError(f"give either {' or '.join(map(option, given))}; neither has a default.")
    return found


def require(options: dict[str, Any], otherwise: str) -> None:
    missing = [name for name, value in options.items() if value is None]
    if missing:
        raise ValueError(f"{listed(missing)} {'is' if len(missing) == 1 else 'are'} missing{otherwise}.")


def listed(names: Iterable[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last
