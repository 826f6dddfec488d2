"""The command ``sweep``."""

import csv
import sys
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any

import typer

from dpjax.cli import _process
from dpjax.cli._app import app
from dpjax.cli._options import (
    ADJACENCIES,
    DIRECT,
    OUTPUT,
    QUERY,
    TERMS,
    TRAINING,
    AdjacencyName,
    NoCache,
    derive,
    exact,
    listed,
    not_both,
    number,
    option,
)
from dpjax.cli._print import print_json

EXAMPLES = r"""
  dpjax sweep --noise-multiplier 0.5:5:100:log \
      --sampling-probability 0.01 --steps 100,1000 --delta 1e-5 \
      --out sweep.csv --plot sweep.png

  dpjax sweep --noise-multiplier 1,1.5,2 --dataset-size 60000 \
      --batch-size 256,1024,4096 --epochs 10,20,40 --delta 1e-5

  dpjax sweep --configurations runs.csv --delta 1e-5
"""

_RANGE = "a number, several (1,2,5), a range low:high:how many, or low:high:how many:log"


def _values(name: str, text: str) -> list[float]:
    """The numbers that an option stands for.

    >>> _values("--steps", "10,20"), _values("--noise-multiplier", "1:4:3:log")
    ([10.0, 20.0], [1.0, 2.0, 4.0])
    """
    import numpy as np

    try:
        if ":" not in text:
            return [float(x) for x in text.split(",")]
        low, high, count, *kind = text.split(":")
        if kind not in ([], ["log"]) or int(count) < 1:
            raise ValueError
        if kind or int(count) == 1:
            return np.geomspace(float(low), float(high), int(count)).tolist() if kind else [float(low)]
        first, last = exact(low), exact(high)  # 1:2:11 has 1.7, not the float above, whose epochs might be a step more
        return [float(first + (last - first) * Fraction(i, int(count) - 1)) for i in range(int(count))]
    except (ValueError, typer.BadParameter):
        raise ValueError(f"{name} {text!r} is not {_RANGE}.") from None


def _configurations(path: Path) -> dict[str, list[float]]:
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    if not rows:
        raise ValueError(f"{path} has no rows below its header.")
    try:
        return {name: [float(row[name]) for row in rows] for name in rows[0] if name}
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path} must hold numbers below a header; {error}.") from None


def _grid(parameters: dict[str, Any], questions: dict[str, Any], configurations: Path | None) -> dict[str, Any]:
    """The columns that were given, in a file or by options; all that are needed."""
    grid: dict[str, Any] = {}
    if configurations is not None:
        grid = _configurations(configurations)
        unknown = grid.keys() - parameters.keys() - questions.keys()
        if unknown:
            raise ValueError(f"{configurations} has the columns {', '.join(sorted(unknown))}, which are not known.")
        twice = [name for name, text in parameters.items() if text is not None and name in grid]
        if twice:
            raise ValueError(f"{', '.join(twice)} is in {configurations} and on the command line.")
    for name, text in {**parameters, **questions}.items():
        if text is not None:
            grid[name] = _values(option(name), text)
    needed = ["noise_multiplier"]
    if not any(name in grid for name in TERMS):
        needed += ["sampling_probability", "steps"]
    absent = [name for name in needed if name not in grid]
    if absent and configurations is None:
        more = f"; or give {listed(map(option, TERMS[:3]))}" if "noise_multiplier" not in absent else ""
        raise ValueError(f"{', '.join(map(option, absent))} missing{more}; or give --configurations.")
    if absent:
        raise ValueError(f"{configurations} lacks {', '.join(absent)}.")
    if ("delta" in grid) == ("epsilon" in grid):
        raise ValueError("give either --delta or --epsilon; neither has a default.")
    return grid


def _derived(grid: dict[str, Any], mode: str) -> dict[str, Any]:
    """Rows in terms of training, with the sampling probability and the steps of each."""
    import numpy as np

    if mode == "product":
        axes = np.meshgrid(*map(np.asarray, grid.values()), indexing="ij")
        columns = {name: axis.reshape(-1).tolist() for name, axis in zip(grid, axes, strict=True)}
    else:
        rows = max(map(len, grid.values()))
        columns = {name: values * rows if len(values) == 1 else values for name, values in grid.items()}
        if len({len(values) for values in columns.values()}) > 1:
            raise ValueError(f"the file has {rows} rows: options beside it need one value, or one for each row.")
    terms = {name: columns[name] for name in TERMS if name in columns}
    each = [*zip(*terms.values(), strict=True)]
    found = {row: derive(dict(zip(terms, row, strict=True))) for row in dict.fromkeys(each)}
    asked = {name: columns.pop(name) for name in ("delta", "epsilon") if name in columns}
    derived = {name: [getattr(found[row], name) for row in each] for name in ("sampling_probability", "steps")}
    return columns | derived | asked


def _option(help: str, panel: str) -> Any:
    return typer.Option(metavar="NUMBERS", help=help, rich_help_panel=panel)


@app.command(epilog="Examples:\n" + EXAMPLES)
def sweep(
    *,
    noise_multiplier: Annotated[
        str | None, _option("Standard deviation of the noise over the clipping norm: " + _RANGE + ".", DIRECT)
    ] = None,
    sampling_probability: Annotated[
        str | None, _option("Probability of each record to be in a batch, in the same form.", DIRECT)
    ] = None,
    steps: Annotated[str | None, _option("Number of updates, in the same form.", DIRECT)] = None,
    dataset_size: Annotated[str | None, _option("Records in the dataset, in the same form.", TRAINING)] = None,
    batch_size: Annotated[
        str | None,
        _option("Expected records between two additions of noise, all micro-batches of an update together.", TRAINING),
    ] = None,
    micro_batch_size: Annotated[
        str | None,
        _option("With gradient accumulation, instead of --batch-size: records of a micro-batch ...", TRAINING),
    ] = None,
    accumulation_steps: Annotated[
        str | None, _option("... and how many of them an update sums up before noise is added.", TRAINING)
    ] = None,
    epochs: Annotated[
        str | None, _option("Passes over the dataset: the steps are epochs * dataset / batch, rounded up.", TRAINING)
    ] = None,
    configurations: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            help="Or a CSV with a row for each configuration, and these names with underscores as its header.",
            rich_help_panel=DIRECT,
        ),
    ] = None,
    delta: Annotated[str | None, _option("The delta to give epsilon for, in the same form.", QUERY)] = None,
    epsilon: Annotated[str | None, _option("The epsilon to give delta for, in the same form.", QUERY)] = None,
    adjacency: AdjacencyName = ADJACENCIES[0],
    rtol: Annotated[
        float, typer.Option(parser=number, metavar="NUMBER", help="Relative tolerance on delta.", rich_help_panel=QUERY)
    ] = 1e-6,
    gradients: Annotated[
        bool, typer.Option("--gradients", help="Add the derivatives by each parameter.", rich_help_panel=QUERY)
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="The .csv or .parquet to write; without it CSV is printed.", rich_help_panel=OUTPUT),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with what was interrupted.", rich_help_panel=OUTPUT)
    ] = False,
    plot: Annotated[
        Path | None,
        typer.Option(help="A picture of the answer over the one or two parameters that vary.", rich_help_panel=OUTPUT),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the columns as one JSON object.", rich_help_panel=OUTPUT)
    ] = False,
    no_cache: NoCache = False,
) -> None:
    """Epsilon or delta of any number of DP-SGD runs: all combinations of the parameters, or the rows of a file."""
    direct = {"sampling_probability": sampling_probability, "steps": steps}
    terms = {
        "dataset_size": dataset_size, "batch_size": batch_size, "micro_batch_size": micro_batch_size,
        "accumulation_steps": accumulation_steps, "epochs": epochs,
    }  # fmt: skip
    parameters = {"noise_multiplier": noise_multiplier, **direct, **terms}
    grid = _grid(parameters, {"delta": delta, "epsilon": epsilon}, configurations)
    varied, mode = [*grid], "product" if configurations is None else "zip"
    if any(name in grid for name in terms):
        not_both(name for name in direct if name in grid)
        grid, mode = _derived(grid, mode), "zip"
    for name in ("steps", *TERMS):
        if name in grid and all(float(x).is_integer() for x in grid[name]):
            grid[name] = [int(x) for x in grid[name]]
    if resume and out is None:
        raise ValueError("--resume belongs to --out.")

    _process.configure_jax(no_cache, choose_platform=False)  # the devices that there are
    import dpjax

    def run(noise_multiplier, sampling_probability, steps, **_):
        return dpjax.dpsgd(noise_multiplier, sampling_probability, steps)

    table = dpjax.sweep(
        run, grid, mode=mode, adjacency=dpjax.Adjacency(adjacency), rtol=rtol, path=out, resume=resume,
        gradients=["noise_multiplier", *direct] if gradients else False,
    )  # fmt: skip
    if plot is not None:
        _picture(table, varied, "epsilon" if "delta" in grid else "delta").figure.savefig(plot)
    if as_json:
        print_json({name: column.tolist() for name, column in table.items()})
    elif out is None:
        table.write(sys.stdout)
    failed = int((table["error"] != "").sum())
    if failed:
        print(f"dpjax: {failed} of {table.rows} rows have no answer; their column error says why", file=sys.stderr)


def _picture(table: Any, names: list[str], answer: str) -> Any:
    import numpy as np

    from dpjax import plotting

    varying = [name for name in names if np.unique(table[name]).size > 1]
    lengths = [name for name in ("steps", "epochs") if name in varying]
    if len(varying) == 2 and not lengths:
        return plotting.heat_map(table, *varying, value=answer)
    if answer == "epsilon" and len(varying) in (1, 2):
        x = lengths[0] if lengths else varying[0]
        others = [name for name in varying if name != x]
        order = np.argsort(table[x], kind="stable")
        curves = {}
        for value in np.unique(table[others[0]]) if others else [None]:
            rows = order if value is None else order[table[others[0]][order] == value]
            label = "" if value is None else f"{others[0].replace('_', ' ')} {value:g}"
            curves[label] = table[answer][rows]
            across = table[x][rows]
        y_label = "epsilon" if "delta" in varying else f"epsilon at delta = {table['delta'][0]:g}"
        return plotting.epsilon_sweep(across, curves, x_label=x.replace("_", " "), y_label=y_label)
    raise ValueError(f"--plot shows one or two parameters that vary; here {', '.join(varying) or 'none'} vary.")
