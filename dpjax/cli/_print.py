"""What commands print: a table or one JSON object; complaints go to stderr."""

import enum
import json
import math
import sys
from typing import Any

import typer

from dpjax._digits import rounded as rounded


def complain(message: str, status: int = 2) -> int:
    print("dpjax: " + " ".join(message.split()), file=sys.stderr)
    return status


def note(message: str) -> None:
    print("dpjax: note: " + " ".join(message.split()), file=sys.stderr)


def named(member: enum.Enum) -> str:
    return (member.name or str(member.value)).lower().replace("_", " ").replace("|", ", ")


def print_table(rows: dict[str, Any], *, bold_first: bool = False) -> None:
    width = max(map(len, rows))
    for i, (key, value) in enumerate(rows.items()):
        typer.secho(f"{key.replace('_', ' '):{width}}  {value}", bold=bold_first and i == 0)


def print_json(record: dict[str, Any]) -> None:
    print(json.dumps(jsonable(record), indent=2, allow_nan=False))


def jsonable(x: Any) -> Any:
    """JSON has no infinity: it is printed as the string "inf", which float() reads."""
    if isinstance(x, dict):
        return {key: jsonable(value) for key, value in x.items()}
    if isinstance(x, list | tuple):
        return [jsonable(value) for value in x]
    return str(x) if isinstance(x, float) and not math.isfinite(x) else x
