"""The command ``odometer``."""

import sys
from typing import Annotated, Any

import typer

from dpjax import suspicion
from dpjax.cli import _process
from dpjax.cli._app import app
from dpjax.cli._options import QUERY, AsJson, NoCache, number, word
from dpjax.cli._print import print_json, rounded

EXAMPLES = r"""
  dpjax odometer 0.1 0.1 0.2 --delta 1e-6

  seq 100 | sed 's/.*/0.05/' | dpjax odometer - --delta 1e-6 --target 1
"""

KINDS = ("mixture", "filter", "stitched")


@app.command(epilog="Examples:\n" + EXAMPLES)
def odometer(
    epsilons: Annotated[list[str], typer.Argument(metavar="EPSILON...", help="Of each query, or - to read them.")],
    *,
    delta: Annotated[
        float,
        typer.Option(
            show_default=False,
            parser=number,
            metavar="NUMBER",
            help="How likely the bounds may fail, in all.",
            rich_help_panel=QUERY,
        ),
    ],
    kind: Annotated[
        str, typer.Option(parser=word(KINDS), metavar="WORD", help=f"{', '.join(KINDS)}.", rich_help_panel=QUERY)
    ] = KINDS[0],
    gamma: Annotated[
        float,
        typer.Option(
            parser=number, metavar="NUMBER", help="mixture: tuned for this intrinsic time.", rich_help_panel=QUERY
        ),
    ] = 0.1,
    target: Annotated[
        float | None,
        typer.Option(parser=number, metavar="NUMBER", help="filter: tightest at this epsilon.", rich_help_panel=QUERY),
    ] = None,
    v0: Annotated[
        float,
        typer.Option(
            parser=number, metavar="NUMBER", help="stitched: valid from this intrinsic time on.", rich_help_panel=QUERY
        ),
    ] = 0.01,
    as_json: AsJson = False,
    no_cache: NoCache = False,
) -> None:
    """A bound on the privacy loss after every query, valid at all times at once, for pure queries chosen adaptively."""
    text = sys.stdin.read().split() if epsilons == ["-"] else epsilons
    try:
        each = [float(x) for x in text]
    except ValueError as error:
        raise ValueError(f"every EPSILON must be a number: {error}.") from None
    if kind == "filter" and target is None:
        raise ValueError("--kind filter needs --target.")
    suspicion.question_delta(delta)
    _process.configure_jax(no_cache)
    import jax
    import jax.numpy as jnp

    from dpjax import adaptive

    if target is not None:
        odo: Any = adaptive.FilterOdometer(delta, epsilon=target, slack=delta)
    elif kind == "mixture":
        odo = adaptive.MixtureOdometer(delta, gamma=gamma, slack=delta)
    else:
        odo = adaptive.StitchedOdometer(delta, v0=v0, slack=delta)
    if any(not x >= 0 for x in each):
        raise ValueError("every EPSILON must be >= 0.")

    def step(state, epsilon):
        state = odo.update(state, epsilon=epsilon)
        return state, odo.bound(state)

    with jax.enable_x64(True):
        bounds = [float(x) for x in jax.lax.scan(step, odo.init(), jnp.array(each, float))[1]]
    if as_json:
        print_json({"epsilon": bounds, "inputs": {"epsilons": each, "delta": delta, "odometer": repr(odo)}})
        return
    for n, (epsilon, bound) in enumerate(zip(each, bounds, strict=True), 1):
        print(f"{n:>6}  query {epsilon:<10g} at most {rounded(bound, up=True, digits=6)} so far")
