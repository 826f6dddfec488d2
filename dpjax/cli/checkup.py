"""The command ``doctor``."""

import typer

from dpjax.cli import _process
from dpjax.cli._app import app
from dpjax.cli._options import AsJson, NoCache
from dpjax.cli._print import print_json, print_table

EXAMPLES = """
  dpjax doctor
"""


@app.command()
def doctor(as_json: AsJson = False, no_cache: NoCache = False) -> None:
    """Versions, devices and precision, and a self-check against stored reference values."""
    cache = _process.configure_jax(no_cache, choose_platform=False)
    from dpjax import doctor as doctor_

    report = doctor_.examine()
    report["compilation cache"] = cache
    checks = doctor_.self_check()
    bad = [check for check in checks if not check.passed]
    if as_json:
        print_json({**report, "self-check": [check._asdict() for check in checks]})
    else:
        print_table(report)
        for check in checks:
            mark = typer.style("ok  ", fg="green") if check.passed else typer.style("FAIL", fg="red", bold=True)
            typer.echo(f"{mark}  {check.question}: {check.finding}")
        typer.echo(f"self-check: {len(checks) - len(bad)} of {len(checks)} reference values confirmed")
    if bad:
        raise typer.Exit(1)
