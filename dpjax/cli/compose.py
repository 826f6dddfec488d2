"""The command ``compose``."""

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from dpjax.cli import _answers, _process
from dpjax.cli._app import app
from dpjax.cli._options import METHODS, QUERY, AsJson, AsStatement, MethodName, NoCache, Tolerance, number, target

EXAMPLES = r"""
  dpjax compose run.toml --delta 1e-5

  with run.toml:
      version = 1
      [[mechanisms]]
      type = "PoissonSampled"
      sampling_probability = 0.01
      mechanism = { type = "Gaussian", noise_multiplier = 1.1 }
      count = 1000
      [[mechanisms]]
      type = "Laplace"
      noise_multiplier = 5.0
"""


@app.command(epilog="Example:\n" + escape(EXAMPLES))
def compose(
    file: Annotated[
        Path, typer.Argument(exists=True, dir_okay=False, help="A .json or .toml that describes what was run.")
    ],
    *,
    delta: Annotated[
        float | None,
        typer.Option(parser=number, metavar="NUMBER", help="The delta to give epsilon for.", rich_help_panel=QUERY),
    ] = None,
    epsilon: Annotated[
        float | None,
        typer.Option(parser=number, metavar="NUMBER", help="The epsilon to give delta for.", rich_help_panel=QUERY),
    ] = None,
    method: MethodName = METHODS[0],
    rtol: Tolerance = 1e-10,
    statement: AsStatement = False,
    as_json: AsJson = False,
    no_cache: NoCache = False,
) -> None:
    """The privacy of a composition of any mechanisms, described in a file (see dpjax.ledger)."""
    asked = target(delta=delta, epsilon=epsilon)
    _process.configure_jax(no_cache)
    from dpjax import ledger

    entry = ledger.read(file)
    inputs = {"file": str(file), "mechanism": repr(entry.mechanism)}
    question = _answers.Question(entry.mechanism, asked, entry.adjacency, method, rtol)
    _answers.show(question, inputs, {}, as_json=as_json, statement=statement)
