"""The command line: the queries for a terminal, in the words of the library.

Exit status: 0 with an answer, 1 when ``doctor`` finds something wrong, 2 with one line on stderr for bad input.

Typer is imported at once and JAX only by a command that computes. A command configures its own process: the CPU unless
JAX_PLATFORMS says otherwise, and a per-user compilation cache, without which every answer would wait for a compiler.
"""

import contextlib
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from typing import Annotated

import typer
from rich.markup import escape

from dpjax import __version__
from dpjax.cli import calibrate, checkup, compare, compose, odometer, plot, queries, sweep
from dpjax.cli._app import app
from dpjax.cli._print import complain, note
from dpjax.suspicion import SuspiciousInputWarning


@app.callback(
    invoke_without_command=True,
    epilog="Examples:\n"
    + queries.EPSILON_EXAMPLES
    + queries.DELTA_EXAMPLES
    + escape("".join(m.EXAMPLES for m in (calibrate, sweep, compare, odometer, compose, plot, checkup))),
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


@contextlib.contextmanager
def _questions() -> Iterator[None]:
    """Suspicious input is questioned by one line on stderr."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", SuspiciousInputWarning)
        others, asked = warnings.showwarning, set()

        def show(message, category, *where):
            if not issubclass(category, SuspiciousInputWarning):
                others(message, category, *where)
            elif str(message) not in asked:
                asked.add(str(message))
                note(str(message))

        warnings.showwarning = show
        yield


def run(argv: Sequence[str]) -> int:
    """Runs one command and returns its exit status."""
    if not sys.stdout.isatty() and not os.environ.get("FORCE_COLOR"):
        os.environ["_TYPER_FORCE_DISABLE_TERMINAL"] = "1"  # typer would colour its help under GITHUB_ACTIONS
    command = typer.main.get_command(app)
    try:
        with _questions():
            return command.main(list(argv), prog_name="dpjax", standalone_mode=False) or 0
    except typer.Exit as stop:
        return stop.exit_code
    except (typer.Abort, KeyboardInterrupt):
        return complain("interrupted", 130)
    except Exception as error:
        if isinstance(error, ValueError | NotImplementedError | OSError | ModuleNotFoundError):
            return complain(str(error))
        if hasattr(error, "format_message"):  # a complaint of the argument parser
            return complain(error.format_message())  # type: ignore[attr-defined]
        raise
