"""The commands ``epsilon`` and ``delta``."""

from typing import Annotated

import typer

from dpjax.cli import _answers, _process
from dpjax.cli._app import app
from dpjax.cli._options import (
    ADJACENCIES,
    METHODS,
    QUERY,
    AccumulationSteps,
    AdjacencyName,
    AsJson,
    AsStatement,
    BatchSize,
    DatasetSize,
    Epochs,
    MethodName,
    MicroBatchSize,
    NoCache,
    Noise,
    Probability,
    Setting,
    Steps,
    Tolerance,
    number,
    setting,
    target,
)

EPSILON_EXAMPLES = r"""
  dpjax epsilon --noise-multiplier 1.0 --sampling-probability 0.01 \
      --steps 1000 --delta 1e-5

  dpjax epsilon --noise-multiplier 1.1 --dataset-size 60000 --batch-size 256 \
      --epochs 60 --delta 1e-5
"""
DELTA_EXAMPLES = r"""
  dpjax delta --noise-multiplier 1.0 --sampling-probability 0.01 \
      --steps 1000 --epsilon 2 --json
"""


@app.command(epilog="Examples:\n" + EPSILON_EXAMPLES)
def epsilon(
    *,
    noise_multiplier: Noise,
    sampling_probability: Probability = None,
    steps: Steps = None,
    dataset_size: DatasetSize = None,
    batch_size: BatchSize = None,
    micro_batch_size: MicroBatchSize = None,
    accumulation_steps: AccumulationSteps = None,
    epochs: Epochs = None,
    delta: Annotated[
        float | None,
        typer.Option(
            parser=number, metavar="NUMBER", help="The delta to answer for; there is no default.", rich_help_panel=QUERY
        ),
    ] = None,
    log_delta: Annotated[
        float | None,
        typer.Option(
            parser=number,
            metavar="NUMBER",
            help="Its natural logarithm, where delta underflows.",
            rich_help_panel=QUERY,
        ),
    ] = None,
    adjacency: AdjacencyName = ADJACENCIES[0],
    method: MethodName = METHODS[0],
    rtol: Tolerance = 1e-10,
    statement: AsStatement = False,
    as_json: AsJson = False,
    no_cache: NoCache = False,
) -> None:
    """The certified epsilon of a DP-SGD run at a given delta."""
    run = setting(
        noise_multiplier, sampling_probability, steps, dataset_size=dataset_size, batch_size=batch_size, epochs=epochs,
        micro_batch_size=micro_batch_size, accumulation_steps=accumulation_steps,
    )  # fmt: skip
    _answer(run, target(delta=delta, log_delta=log_delta), adjacency, method, rtol, as_json, statement, no_cache)


@app.command(epilog="Example:\n" + DELTA_EXAMPLES)
def delta(
    *,
    noise_multiplier: Noise,
    sampling_probability: Probability = None,
    steps: Steps = None,
    dataset_size: DatasetSize = None,
    batch_size: BatchSize = None,
    micro_batch_size: MicroBatchSize = None,
    accumulation_steps: AccumulationSteps = None,
    epochs: Epochs = None,
    epsilon: Annotated[
        float,
        typer.Option(
            show_default=False,
            parser=number,
            metavar="NUMBER",
            help="The epsilon to answer for.",
            rich_help_panel=QUERY,
        ),
    ],
    adjacency: AdjacencyName = ADJACENCIES[0],
    method: MethodName = METHODS[0],
    rtol: Tolerance = 1e-10,
    statement: AsStatement = False,
    as_json: AsJson = False,
    no_cache: NoCache = False,
) -> None:
    """The certified delta of a DP-SGD run at a given epsilon."""
    run = setting(
        noise_multiplier, sampling_probability, steps, dataset_size=dataset_size, batch_size=batch_size, epochs=epochs,
        micro_batch_size=micro_batch_size, accumulation_steps=accumulation_steps,
    )  # fmt: skip
    _answer(run, {"epsilon": epsilon}, adjacency, method, rtol, as_json, statement, no_cache)


def _answer(
    run: Setting,
    asked: dict[str, float],
    adjacency: str,
    method: str,
    rtol: float,
    as_json: bool,
    statement: bool,
    no_cache: bool,
) -> None:
    _process.configure_jax(no_cache)
    import dpjax

    mechanism = dpjax.dpsgd(run.noise_multiplier, run.sampling_probability, run.steps)
    inputs = {
        "noise_multiplier": run.noise_multiplier,
        "sampling_probability": run.sampling_probability,
        "steps": run.steps,
        **run.given,
    }
    question = _answers.Question(mechanism, asked, dpjax.Adjacency(adjacency), method, rtol)
    _answers.show(question, inputs, run.derived, as_json=as_json, statement=statement)
