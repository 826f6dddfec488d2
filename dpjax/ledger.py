"""What was run, as a file: any mechanism and its adjacency, written to JSON and read back bit for bit; TOML is read, too.

A file is one table. In JSON::

    {
      "format": "dpjax-ledger",
      "version": 1,
      "adjacency": "add_or_remove_one",
      "mechanism": {
        "type": "SelfComposed",
        "mechanism": {
          "type": "PoissonSampled",
          "sampling_probability": 0.01,
          "mechanism": {"type": "Gaussian", "noise_multiplier": 1.1}
        },
        "count": 1000.0
      }
    }

and the same, in the shorter form for files that are written by hand, in TOML::

    version = 1

    [[mechanisms]]
    type = "PoissonSampled"
    sampling_probability = 0.01
    mechanism = { type = "Gaussian", noise_multiplier = 1.1 }
    count = 1000

| key | meaning |
| --- | --- |
| `version` | 1; needed |
| `format` | `"dpjax-ledger"`; written, may be left out |
| `adjacency` | a value of `dpjax.Adjacency`, in lower case; left out, `"add_or_remove_one"` |
| `note` | a text for readers, of no meaning |
| `mechanism` | the record that was run, or |
| `mechanisms` | a list of records, run one after the other: short for a `Composed` |

A record is a table of its `type`, the name of a mechanism in `dpjax`, and its fields, under their names there. Fields that have a
default may be left out. A field is a number, a nested list of numbers (an array), a record, or a list of records. Infinity is
written `"inf"` (in TOML also `inf`); a NaN is refused. `count`, in a record that has no such field, says how often it
is run: short for a `SelfComposed` around it.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dpjax import _validate, mechanisms
from dpjax.mechanisms import Adjacency, Composed, Mechanism, SelfComposed, require_adjacency
from dpjax.table import atomically

FORMAT = "dpjax-ledger"
VERSION = 1
_KEYS = ("format", "version", "adjacency", "note", "mechanism", "mechanisms")
_RECORDS = {
    name: cls
    for name, cls in vars(mechanisms).items()
    if isinstance(cls, type) and issubclass(cls, Mechanism) and dataclasses.is_dataclass(cls)
}


class Entry(NamedTuple):
    """What a ledger says.

    Attributes:
      mechanism: what was run.
      adjacency: the neighbours that it was accounted for.
      note: a text for readers.
    """

    mechanism: Mechanism
    adjacency: Adjacency = Adjacency.ADD_OR_REMOVE_ONE
    note: str = ""


def to_dict(mechanism: Mechanism, adjacency: Adjacency = Adjacency.ADD_OR_REMOVE_ONE, note: str = "") -> dict[str, Any]:
    """The table that describes ``mechanism``, of strings, numbers, lists and tables only.

    Args:
      mechanism: a record with concrete fields, of any batch shape.
      adjacency: which datasets are neighbours.
      note: a text for readers.

    Returns:
      See the module. Every float is in it bit for bit; infinities are the strings ``"inf"`` and ``"-inf"``.

    Raises:
      TypeError: not a mechanism, a text; or a field is traced.
      ValueError: a field is out of range, or not an adjacency.

    Example:
      >>> import dpjax
      >>> from dpjax import ledger
      >>> ledger.to_dict(dpjax.Gaussian(1.5))["mechanism"]
      {'type': 'Gaussian', 'noise_multiplier': 1.5}
    """
    if not isinstance(mechanism, Mechanism):
        raise TypeError(f"mechanism must be a dpjax mechanism; got {mechanism!r}.")
    require_adjacency(adjacency)
    if not isinstance(note, str):
        raise TypeError(f"note must be a string; got {note!r}.")
    head = {"format": FORMAT, "version": VERSION, "adjacency": adjacency.value}
    return head | ({"note": note} if note else {}) | {"mechanism": _written(mechanism, "mechanism")}


def from_dict(data: Any) -> Entry:
    """The inverse of ``to_dict``.

    Args:
      data: a table as in the module, from any parser.

    Returns:
      The mechanism, its adjacency and the note.

    Raises:
      ValueError: anything is missing, unknown or out of range; the message begins with its place in the table.

    Example:
      >>> from dpjax import ledger
      >>> step = {"type": "Gaussian", "noise_multiplier": 2, "count": 10}
      >>> ledger.from_dict({"version": 1, "adjacency": "replace_one", "mechanism": step})[:2]
      (SelfComposed(Gaussian(2), 10), <Adjacency.REPLACE_ONE: 'replace_one'>)
    """
    if not isinstance(data, Mapping):
        raise ValueError(f"a ledger must be a table; got {data!r}.")
    for key in data:
        if key not in _KEYS:
            raise ValueError(f"{key}: unknown; a ledger has the keys {', '.join(_KEYS)}.")
    if data.get("format", FORMAT) != FORMAT:
        raise ValueError(f"format: {data['format']!r}, but it must be {FORMAT!r}.")
    if "version" not in data:
        raise ValueError(f"version: missing; write version {VERSION}.")
    version = data["version"]
    if isinstance(version, bool) or not isinstance(version, int) or not 1 <= version <= VERSION:
        raise ValueError(f"version: {version!r}, but this dpjax reads version {VERSION}; a newer one may read it.")
    named = data.get("adjacency", Adjacency.ADD_OR_REMOVE_ONE.value)
    allowed = [a.value for a in Adjacency]
    if named not in allowed:
        raise ValueError(f"adjacency: {named!r}, but it must be one of {', '.join(allowed)}.")
    note = data.get("note", "")
    if not isinstance(note, str):
        raise ValueError(f"note: {note!r}, but it must be a text.")
    if ("mechanism" in data) == ("mechanisms" in data):
        raise ValueError("mechanism: give exactly one of mechanism, a record, and mechanisms, a list of them.")
    try:
        if "mechanism" in data:
            record = _record(data["mechanism"], "mechanism")
        else:
            record = Composed(_several(data["mechanisms"], "mechanisms"))
    except RecursionError:
        raise ValueError("mechanism: records are nested too deeply.") from None
    return Entry(record, Adjacency(named), note)


def write(
    path: str | os.PathLike[str],
    mechanism: Mechanism,
    *,
    adjacency: Adjacency = Adjacency.ADD_OR_REMOVE_ONE,
    note: str = "",
) -> None:
    """Writes ``mechanism`` to a JSON file, replacing what was there in one step: a reader sees the old or the new file.

    Args:
      path: of the file; its name ends in ``.json``.
      mechanism: a record with concrete fields.
      adjacency: which datasets are neighbours.
      note: a text for readers.

    Raises:
      TypeError, ValueError: as ``to_dict``; or the name ends otherwise.
      OSError: the file cannot be written.

    Example:
      >>> import tempfile
      >>> from pathlib import Path
      >>> import dpjax
      >>> from dpjax import ledger
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     ledger.write(Path(folder) / "run.json", dpjax.dpsgd(1.1, 0.01, 1000))
      ...     print(ledger.read(Path(folder) / "run.json").mechanism)
      SelfComposed(PoissonSampled(0.01, Gaussian(1.1)), 1000)
    """
    path = Path(path)
    if path.suffix != ".json":
        raise ValueError(f"path = {str(path)!r}, but a ledger is written to a file whose name ends in .json.")
    text = json.dumps(to_dict(mechanism, adjacency, note), indent=1, allow_nan=False) + "\n"
    atomically(path, lambda beside: beside.write_text(text, encoding="utf-8"))


def read(path: str | os.PathLike[str]) -> Entry:
    """Reads what ``write`` wrote, or a file by hand, in JSON or TOML.

    Args:
      path: of the file; its name ends in ``.json`` or ``.toml``.

    Returns:
      The mechanism, its adjacency and the note.

    Raises:
      ValueError: not a ledger; the message begins with the file's name and the place in it.
      OSError: the file cannot be read.
    """
    path = Path(path)
    if path.suffix not in (".json", ".toml"):
        raise ValueError(f"path = {str(path)!r}, but a ledger's name ends in .json or .toml.")
    try:
        text = path.read_bytes().decode("utf-8")
        if path.suffix == ".toml":
            data = tomllib.loads(text)
        else:
            data = json.loads(text, object_pairs_hook=_once, parse_constant=_no_constant)
        return from_dict(data)
    except ValueError as error:  # also what the parsers raise
        raise ValueError(f"{path}: {error}") from None
    except RecursionError:
        raise ValueError(f"{path}: nested too deeply.") from None


# --------------------------------------------------------------------------------------------------------------------


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A key that comes twice would silently hide what was run."""
    table = dict(pairs)
    if len(table) < len(pairs):
        twice = next(key for i, (key, _) in enumerate(pairs) if key in dict(pairs[:i]))
        raise ValueError(f"{twice}: the key comes twice in one table.")
    return table


def _no_constant(name: str) -> Any:
    raise ValueError(f'{name} is no JSON: write "inf" or "-inf", in quotes.')


def _written(x: Any, at: str) -> Any:
    if isinstance(x, Mechanism):
        x.check()  # type: ignore[attr-defined]
        found = {"type": type(x).__name__}
        if _RECORDS.get(found["type"]) is not type(x):
            raise TypeError(f"{at}: {type(x).__name__} is no mechanism of dpjax, and cannot be written.")
        for field in dataclasses.fields(x):  # type: ignore[arg-type]
            value = getattr(x, field.name)
            if value is not None:
                found[field.name] = _written(value, f"{at}.{field.name}")
        return found
    if isinstance(x, tuple):
        return [_written(member, f"{at}[{i}]") for i, member in enumerate(x)]
    if isinstance(x, int) and not isinstance(x, bool):
        return x
    if _validate.is_traced(x):
        raise TypeError(f"{at} is traced: write the ledger outside of jit, vmap and grad.")
    array = np.asarray(x, np.float64)
    if array.ndim > 1 and 0 in array.shape[:-1]:
        raise ValueError(f"{at}: an array of shape {array.shape} has no numbers to write.")
    return _numbers(array.tolist(), at)


def _numbers(x: Any, at: str) -> Any:
    if isinstance(x, list):
        return [_numbers(member, f"{at}[{i}]") for i, member in enumerate(x)]
    if math.isnan(x):
        raise ValueError(f"{at} is NaN, which is no mechanism's parameter.")
    return x if math.isfinite(x) else ("inf" if x > 0 else "-inf")


def _several(data: Any, at: str) -> tuple[Mechanism, ...]:
    if not isinstance(data, list | tuple):
        raise ValueError(f"{at}: {data!r}, but it must be a list of records.")
    return tuple(_record(member, f"{at}[{i}]") for i, member in enumerate(data))


def _record(data: Any, at: str) -> Mechanism:
    if not isinstance(data, Mapping):
        raise ValueError(f"{at}: {data!r}, but it must be a record: a table with a type and its fields.")
    name = data.get("type")
    cls = _RECORDS.get(name) if isinstance(name, str) else None
    if cls is None:
        raise ValueError(f"{at}.type: {name!r}, but it must be one of {', '.join(sorted(_RECORDS))}.")
    fields = {f.name: f for f in dataclasses.fields(cls)}
    repeated = "count" in data and "count" not in fields
    values = {}
    for key, value in data.items():
        if key in fields:
            if value is not None:
                values[key] = _value(value, bool(fields[key].metadata.get("static")), f"{at}.{key}")
        elif key != "type" and not (repeated and key == "count"):
            raise ValueError(f"{at}.{key}: unknown; {name} has the fields {', '.join(fields)}.")
    for key, field in fields.items():
        if key not in values and field.default is dataclasses.MISSING:
            raise ValueError(f"{at}.{key}: missing.")
    try:
        record = cls(**values)
        return SelfComposed(record, _value(data["count"], False, f"{at}.count")) if repeated else record
    except (ValueError, TypeError, NotImplementedError) as error:
        placed = str(error).startswith((f"{at}:", f"{at}.", f"{at}["))
        raise ValueError(str(error) if placed else f"{at}: {error}") from None


def _value(data: Any, static: bool, at: str) -> Any:
    if isinstance(data, Mapping):
        return _record(data, at)
    if isinstance(data, list | tuple) and data and all(isinstance(member, Mapping) for member in data):
        return _several(data, at)
    if static:
        if isinstance(data, bool) or not isinstance(data, int):
            raise ValueError(f"{at}: {data!r}, but it must be a whole number.")
        return data
    if isinstance(data, list | tuple):
        nested = _floats(data, at)
        try:
            return np.asarray(nested, np.float64)
        except ValueError:
            raise ValueError(f"{at}: its lists have different lengths, so that they are no array.") from None
    return _floats(data, at)


def _floats(data: Any, at: str) -> Any:
    if isinstance(data, list | tuple):
        return [_floats(member, f"{at}[{i}]") for i, member in enumerate(data)]
    if data in ("inf", "-inf"):
        return float(data)
    if isinstance(data, bool) or not isinstance(data, int | float):
        raise ValueError(f'{at}: {data!r}, but it must be a number, or "inf".')
    try:
        value = float(data)
    except OverflowError:
        value = math.nan
    if value != data:  # a NaN, or an integer that float64 does not hold
        raise ValueError(f"{at}: {data!r} is no number that a float64 holds.")
    return value
