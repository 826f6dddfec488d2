"""The command ``calibrate``."""

import math
from typing import Annotated, Any

import typer

from dpjax import __version__, suspicion
from dpjax.cli import _answers, _process
from dpjax.cli._app import app
from dpjax.cli._options import (
    ADJACENCIES,
    DIRECT,
    TARGET,
    TERMS,
    AccumulationSteps,
    AdjacencyName,
    AsJson,
    BatchSize,
    DatasetSize,
    Epochs,
    MicroBatchSize,
    NoCache,
    Probability,
    Steps,
    listed,
    number,
    option,
    setting,
)
from dpjax.cli._print import print_json, print_table, rounded

EXAMPLES = r"""
  dpjax calibrate --sampling-probability 0.01 --steps 1000 \
      --epsilon 2 --delta 1e-5

  dpjax calibrate --dataset-size 60000 --batch-size 256 --epochs 60 \
      --epsilon 3 --delta 1e-5

  dpjax calibrate --noise-multiplier 1.0 --sampling-probability 0.01 \
      --tpr 0.05 --fpr 0.01
"""

_FREE = {"noise_multiplier": True, "sampling_probability": False, "steps": False}  # whether more of it is safer


@app.command(epilog="Examples:\n" + EXAMPLES)
def calibrate(
    *,
    noise_multiplier: Annotated[
        float | None,
        typer.Option(
            parser=number,
            metavar="NUMBER",
            help="Standard deviation of the noise over the clipping norm.",
            rich_help_panel=DIRECT,
        ),
    ] = None,
    sampling_probability: Probability = None,
    steps: Steps = None,
    dataset_size: DatasetSize = None,
    batch_size: BatchSize = None,
    micro_batch_size: MicroBatchSize = None,
    accumulation_steps: AccumulationSteps = None,
    epochs: Epochs = None,
    epsilon: Annotated[
        float | None,
        typer.Option(parser=number, metavar="NUMBER", help="The target epsilon, at a delta.", rich_help_panel=TARGET),
    ] = None,
    delta: Annotated[
        float | None,
        typer.Option(
            parser=number,
            metavar="NUMBER",
            help="The delta of the target; there is no default.",
            rich_help_panel=TARGET,
        ),
    ] = None,
    log_delta: Annotated[
        float | None,
        typer.Option(
            parser=number,
            metavar="NUMBER",
            help="Its natural logarithm, where delta underflows.",
            rich_help_panel=TARGET,
        ),
    ] = None,
    advantage: Annotated[
        float | None,
        typer.Option(
            parser=number, metavar="NUMBER", help="The target: a membership attack's advantage.", rich_help_panel=TARGET
        ),
    ] = None,
    tpr: Annotated[
        float | None,
        typer.Option(
            parser=number,
            metavar="NUMBER",
            help="The target: an attack's true-positive rate ...",
            rich_help_panel=TARGET,
        ),
    ] = None,
    fpr: Annotated[
        float | None,
        typer.Option(parser=number, metavar="NUMBER", help="... at this false-positive rate.", rich_help_panel=TARGET),
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
    if any(x is not None for x in (dataset_size, batch_size, epochs, micro_batch_size, accumulation_steps)):
        if noise_multiplier is not None:
            raise ValueError(f"--noise-multiplier is what is found from {listed(map(option, TERMS[:3]))}.")
        run = setting(
            math.nan, sampling_probability, steps, dataset_size=dataset_size, batch_size=batch_size, epochs=epochs,
            micro_batch_size=micro_batch_size, accumulation_steps=accumulation_steps,
        )  # fmt: skip
        known |= {"sampling_probability": run.sampling_probability, "steps": run.steps}
    free = [name for name, value in known.items() if value is None]
    if len(free) != 1:
        options = [option(name) for name in _FREE]
        missing = listed([option(name) for name in free]) if free else "none"
        raise ValueError(f"leave out exactly one of {listed(options)}, which is then found; missing: {missing}.")
    (name,) = free
    suspicion.question_noise(noise_multiplier)
    _answers.question_target(target, dataset_size)

    _process.configure_jax(no_cache)
    import dpjax

    neighbours = dpjax.Adjacency(adjacency)
    make = lambda x: dpjax.dpsgd(**{**known, name: x})
    found = dpjax.calibrate(make, **target, adjacency=neighbours, integer=name == "steps")
    found = int(found) if name == "steps" else float(found)
    with suspicion.unquestioned():  # an answer is no input
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
        print_json({name: found, "spent": spent, "inputs": inputs, "dpjax": __version__})
        return
    up = _FREE[name]
    rows = {name: f"{found}" if name == "steps" else rounded(found, up=up)}
    rows |= {key: f"{rounded(value, up=True)}, certified" for key, value in spent.items()}
    for key, value in {**inputs, **{f"target {key}": value for key, value in target.items()}}.items():
        formula = run.derived.get(key) if run else None
        if key != "target":
            rows[key] = f"{value:.10g} = {formula}" if formula else f"{value}"
    print_table(rows, bold_first=True)


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
