"""The command ``plot``."""

from pathlib import Path
from typing import Annotated

import typer

from dpjax import suspicion
from dpjax.cli import _process
from dpjax.cli._app import app
from dpjax.cli._options import (
    ADJACENCIES,
    OUTPUT,
    QUERY,
    AccumulationSteps,
    AdjacencyName,
    BatchSize,
    DatasetSize,
    Epochs,
    MicroBatchSize,
    NoCache,
    Probability,
    Steps,
    number,
    setting,
    word,
)

EXAMPLES = r"""
  dpjax plot steps --noise-multiplier 1.0 --sampling-probability 0.01 \
      --steps 1000 --delta 1e-5 --out steps.png

  dpjax plot tradeoff --file run.toml --out tradeoff.png
"""

KINDS = ("profile", "tradeoff", "steps")


@app.command(epilog="Examples:\n" + EXAMPLES)
def plot(
    kind: Annotated[
        str, typer.Argument(parser=word(KINDS), metavar="KIND", help="profile, tradeoff, or steps: epsilon by step.")
    ],
    *,
    out: Annotated[
        Path, typer.Option(show_default=False, help="The picture to write, .png, .pdf or .svg.", rich_help_panel=OUTPUT)
    ],
    file: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="A ledger (see compose), instead of a DP-SGD run."),
    ] = None,
    noise_multiplier: Annotated[
        float | None, typer.Option(parser=number, metavar="NUMBER", help="As for epsilon.")
    ] = None,
    sampling_probability: Probability = None,
    steps: Steps = None,
    dataset_size: DatasetSize = None,
    batch_size: BatchSize = None,
    micro_batch_size: MicroBatchSize = None,
    accumulation_steps: AccumulationSteps = None,
    epochs: Epochs = None,
    delta: Annotated[
        float | None,
        typer.Option(parser=number, metavar="NUMBER", help="Of the epsilons, for steps.", rich_help_panel=QUERY),
    ] = None,
    adjacency: AdjacencyName = ADJACENCIES[0],
    no_cache: NoCache = False,
) -> None:
    """A picture of a run: its privacy profile, its trade-off curve, or epsilon after every step."""
    if (file is None) == (noise_multiplier is None):
        raise ValueError("give either --file or a DP-SGD run by --noise-multiplier and the others.")
    if kind == "steps" and (delta is None or file is not None):
        raise ValueError("steps needs --delta and a DP-SGD run.")
    run = None
    if noise_multiplier is not None:
        run = setting(
            noise_multiplier, sampling_probability, steps, dataset_size=dataset_size, batch_size=batch_size, epochs=epochs,
            micro_batch_size=micro_batch_size, accumulation_steps=accumulation_steps,
        )  # fmt: skip
    suspicion.question_delta(delta, dataset_size)
    _process.configure_jax(no_cache)
    import numpy as np

    import dpjax
    from dpjax import ledger, plotting

    neighbours = dpjax.Adjacency(adjacency)
    if run is None:
        assert file is not None
        mechanism, neighbours, _ = ledger.read(file)
    else:
        mechanism = dpjax.dpsgd(run.noise_multiplier, run.sampling_probability, run.steps)
    if kind == "steps":
        assert run is not None and delta is not None
        count = np.unique(np.linspace(1, max(run.steps, 1), 100).round())
        step = dpjax.PoissonSampled(run.sampling_probability, dpjax.Gaussian(run.noise_multiplier))
        ax = plotting.epsilon_by_steps(step, count, delta, adjacency=neighbours)
    elif kind == "tradeoff":
        ax = plotting.tradeoff(mechanism, adjacency=neighbours)
    else:
        far = float(dpjax.epsilon(mechanism, 1e-9, adjacency=neighbours))
        ax = plotting.privacy_profile(
            mechanism, np.linspace(0, far if 0 < far < np.inf else 10.0, 101), adjacency=neighbours
        )
    ax.figure.savefig(out)  # type: ignore[union-attr]
