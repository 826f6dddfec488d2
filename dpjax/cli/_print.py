"""What commands print: a table or one JSON object; complaints go to stderr."""

import decimal
import enum
import json
import math
import sys
from typing import Any

import typer


def complain(message: str, status: int = 2) -> int:
    print("dpjax: " + " ".join(message.split()), file=sys.stderr)
    return status


def note(message: str) -> None:
    print("dpjax: note: " + " ".join(message.split()), file=sys.stderr)


def named(member: enum.Enum) -> str:
    return (member.name or str(member.value)).lower().replace("_", " ").replace("|", ", ")


def rounded(x: float, *, up: bool, digits: int = 10) -> str:
    """``x`` to ``digits`` significant digits, never on the wrong side.

    >>> rounded(0.1, up=True), rounded(0.1, up=False, digits=20), rounded(2 / 3, up=False, digits=3)
    ('0.1000000001', '0.10000000000000000555', '0.666')
    """
    side = decimal.ROUND_CEILING if up else decimal.ROUND_FLOOR
    exact = decimal.Context(prec=digits, rounding=side).create_decimal_from_float(x)
    return f"{exact:g}" if exact.is_finite() else str(x)


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
