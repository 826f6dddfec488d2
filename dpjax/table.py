"""The labelled table that a sweep returns: columns under their names, read and written as CSV or Parquet."""

from __future__ import annotations

import csv
import importlib
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np


class Table(Mapping):
    """Columns of equal length under their names, in a fixed order; rows are in the order of the grid.

    ``table["epsilon"]`` is a NumPy array with one entry for each configuration. In a product grid the last axis of
    the grid varies fastest; ``table.on_grid("epsilon")`` has one axis for each of the grid's columns.

    Attributes:
      shape: of the grid: the lengths of its axes, or (rows,) if they were zipped or rows are missing.

    Raises:
      ValueError: columns differ in length.

    Example:
      >>> table = Table({"noise_multiplier": [1.0, 2.0], "epsilon": [3.0, 1.0]})
      >>> table["epsilon"]
      array([3., 1.])
      >>> len(table), list(table), table.rows
      (2, ['noise_multiplier', 'epsilon'], 2)
    """

    def __init__(self, columns: Mapping[str, Any], shape: tuple[int, ...] | None = None):
        self._columns = {name: np.asarray(column) for name, column in columns.items()}
        lengths = {name: len(column) for name, column in self._columns.items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"The columns differ in length: {lengths}.")
        self.rows = next(iter(lengths.values()), 0)
        self.shape = (self.rows,) if shape is None else tuple(shape)

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._columns:
            raise KeyError(f"{name!r} is not a column; there are {', '.join(self._columns)}.")
        return self._columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    __eq__ = object.__eq__  # Mapping's would ask for the truth of arrays
    __hash__ = object.__hash__  # pyright: ignore[reportAssignmentType]

    def __repr__(self) -> str:
        def cell(x: Any) -> str:
            return f"{x:.6g}" if isinstance(x, float) else str(x)

        shown = [*range(self.rows)] if self.rows <= 8 else [0, 1, 2, None, self.rows - 2, self.rows - 1]
        lines = [list(self)]
        for i in shown:
            lines.append(["..."] * len(self) if i is None else [cell(c[i]) for c in self._columns.values()])
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        text = ["  ".join(f"{x:>{w}}" for x, w in zip(line, widths, strict=True)) for line in lines]
        return "\n".join([*text, f"[{self.rows} rows]"])

    def on_grid(self, name: str) -> np.ndarray:
        """The column in the shape of the grid."""
        return self[name].reshape(self.shape)

    def to_pandas(self) -> Any:
        """A pandas DataFrame; needs pandas (``pip install 'dpjax[pandas]'``)."""
        return _pandas().DataFrame(dict(self._columns))

    def save(self, path: str | os.PathLike) -> None:
        """Writes ``.csv`` or ``.parquet``, by the name of the file, atomically: it is there whole or not at all.

        Floats in a CSV have the fewest digits that are read back as the same number. Parquet needs pandas and pyarrow.

        Raises:
          ValueError: the name ends in neither.
        """
        path = Path(path)
        write = self._write_parquet if is_parquet(path) else self._write_csv
        atomically(path, write)

    def write(self, file: IO[str]) -> None:
        """Writes CSV to an open text file."""
        out = csv.writer(file, lineterminator="\n")
        out.writerow(self)
        for start in range(0, self.rows, 65536):  # whole columns as Python objects would need gigabytes
            part = [column[start : start + 65536].tolist() for column in self._columns.values()]
            out.writerows(zip(*part, strict=True))

    def _write_csv(self, path: Path) -> None:
        with path.open("w", newline="") as file:
            self.write(file)

    def _write_parquet(self, path: Path) -> None:
        self.to_pandas().to_parquet(path, index=False)

    @classmethod
    def load(cls, path: str | os.PathLike) -> Table:
        """Reads a table that ``save`` has written.

        Raises:
          ValueError: the name ends in neither ``.csv`` nor ``.parquet``, or a row of the file has too few entries.
        """
        path = Path(path)
        if is_parquet(path):
            frame = _pandas().read_parquet(path)
            return cls({name: frame[name].to_numpy() for name in frame.columns})
        with path.open(newline="") as file:
            rows = csv.reader(file)
            names = next(rows, [])
            cells = list(rows)
        if any(len(row) != len(names) for row in cells):
            raise ValueError(f"{path} has a row that is not of {len(names)} entries.")
        columns = zip(*cells, strict=True) if cells else ((),) * len(names)
        return cls({name: _typed(column) for name, column in zip(names, columns, strict=True)})


def _typed(cells: tuple[str, ...]) -> np.ndarray:
    for kind in (int, float):
        try:
            return np.array(list(map(kind, cells)))
        except (ValueError, OverflowError):
            continue
    return np.array(cells, dtype=str)


def _pandas() -> Any:
    try:
        return importlib.import_module("pandas")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("this needs pandas and pyarrow: pip install 'dpjax[pandas]'") from error


def is_parquet(path: Path) -> bool:
    """Whether ``path`` names a Parquet file; ValueError unless it names that or a CSV."""
    if path.suffix not in (".csv", ".parquet"):
        raise ValueError(f"path = {str(path)!r}, but its name must end in .csv or .parquet.")
    return path.suffix == ".parquet"


def atomically(path: Path, write: Callable[[Path], Any]) -> None:
    """Has ``write`` make a file beside ``path``, and gives it that name once it is on the disk."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=path.suffix)
    os.close(handle)
    temporary = Path(name)
    try:
        write(temporary)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
