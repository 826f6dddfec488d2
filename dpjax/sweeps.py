"""Sweeps: the same question about any number of configurations, in parts, on all devices and hosts, without losing one."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.typing import ArrayLike

from dpjax import __version__, _rows, _validate, accounting, composition, suspicion
from dpjax._parts import Parts
from dpjax.bounds import Method, Status
from dpjax.mechanisms import Adjacency, ComposedOver, Mechanism
from dpjax.representations import tradeoff
from dpjax.table import Table

# What is given, and what is then asked for.
ASKED = {
    "delta": "epsilon",
    "log_delta": "epsilon",
    "epsilon": "delta",
    "false_positive_rate": "false_negative_rate",
}
_ENDS = ("", "_lower", "_estimate")  # the answer is the safe end, the upper one
# Rows of a part: of Gaussians, one to a few seconds on two cores (the larger the grid the more, since a part evaluates its
# pairs once for all its rows); of anything else.
_ROWS, _MOST_ROWS, _SLOW_ROWS = 8192, 32768, 128
_GRADIENT_LANES = 256  # that are differentiated at once


class _Job(NamedTuple):
    """What determines the numbers of a sweep."""

    make: Callable[..., Mechanism]
    columns: dict[str, np.ndarray]  # of the configurations, (rows,)
    given: dict[str, np.ndarray]  # of the questions, (rows,)
    options: dict[str, Any]
    gradients: tuple[str, ...]


def sweep(
    make: Callable[..., Mechanism],
    grid: Mapping[str, ArrayLike],
    *,
    delta: float | None = None,
    log_delta: float | None = None,
    epsilon: float | None = None,
    false_positive_rate: float | None = None,
    mode: str = "product",
    gradients: bool | Sequence[str] = False,
    adjacency: Adjacency = Adjacency.ADD_OR_REMOVE_ONE,
    method: str = "auto",
    rtol: float = 1e-6,
    max_nodes: int = 8192,
    precision: str = "float64",
    path: str | os.PathLike | None = None,
    resume: bool = False,
    devices: Sequence[Any] | None = None,
    chunk_size: int | None = None,
    progress: bool = True,
) -> Table:
    """Answers for every configuration of a grid, in the grid's order, each with its certified error and its engine.

    Rows are worked off in parts of ``chunk_size``, one on each device at a time; inside a part, rows with the same noise and
    sampling share what does not depend on counts and question (so let these vary fastest), and rows that need many nodes are
    solved apart from the others. The numbers are the same whatever the devices. A row that cannot be answered
    has NaN, and says why in the column ``error``; the others go on.

    When ``jax.distributed`` is initialised every process calls this with the same arguments, works on its share of the
    parts, and returns the whole table; the first one writes it.

    Args:
      make: the mechanism of one configuration: called with the grid's columns as keyword arguments. Any mechanism; it may
        look at its numbers, and the kind of mechanism may depend on them (but then it is called once for each row).
      grid: the values of each parameter, shape (n,) each, or a number. ``delta``, ``log_delta``, ``epsilon`` and
        ``false_positive_rate`` in it are those of the question.
      delta, log_delta: asks for epsilon, a number for all rows.
      epsilon: asks for delta. Several questions at once are answered side by side.
      false_positive_rate: asks for the least false-negative rate, the trade-off function.
      mode: "product" for all combinations, the last parameter varying fastest, or "zip" for columns of one length.
      gradients: whether to add the derivatives of the answers by every parameter of ``make`` that is a column of floats or
        counts; or the names of some.
      adjacency, method, max_nodes, precision: as for ``epsilon``.
      rtol: relative tolerance on delta; by default wider than that of a single question, which needs more nodes.
      path: a ``.csv`` or ``.parquet`` to write. Until it is complete, finished parts are kept beside it, in ``<path>.parts``;
        after an interruption by the keyboard the file has the rows that are done.
      resume: go on with what an interrupted sweep left at ``path``; if it was complete, it is read, after three of its rows
        were answered again.
      devices: of JAX; all local ones if None.
      chunk_size: rows of a part; 8192 to 32768, by the size of the grid, if the configurations are Gaussians, else 128.
      progress: whether to show a progress bar with rate and time left, if stderr is a terminal and rich is installed.

    Returns:
      A ``Table``: the grid's columns, then for each answer (``epsilon``, ``delta``) its upper end under its own name, ``_lower``,
      ``_estimate``, ``_status`` and ``_method``, or ``false_negative_rate``; derivatives as ``d_epsilon_d_<parameter>``; then
      ``error``, empty where there is none.

    Guarantee:
      That of ``epsilon``, ``delta`` and ``tradeoff``, for every row.

    Raises:
      ValueError: an argument is out of range, or nothing is asked.
      TypeError: ``make`` returns no mechanism, or a batch of them.
      FileExistsError: there is something at ``path``, and ``resume`` is false.
      NotImplementedError: ``false_positive_rate`` in float32.

    Example:
      >>> import dpjax
      >>> table = dpjax.sweep(
      ...     dpjax.dpsgd, {"noise_multiplier": [0.8, 1.2], "sampling_probability": 0.01, "steps": [100, 1000]}, delta=1e-5
      ... )
      >>> table.on_grid("epsilon").round(4)[:, 0, :]
      array([[1.5108, 3.141 ],
             [0.4464, 1.2986]])
    """
    numbers = {"delta": delta, "log_delta": log_delta, "epsilon": epsilon, "false_positive_rate": false_positive_rate}
    columns, shape = _table_of(grid, mode)
    given = _given(columns, numbers)
    accounting.check_options(adjacency, method, rtol, max_nodes, precision)  # or every row would say the same
    if precision == "float32" and "false_positive_rate" in given:
        raise NotImplementedError("false_positive_rate needs precision='float64': the trade-off function has no other.")
    options = {"adjacency": adjacency, "method": method, "rtol": rtol, "max_nodes": max_nodes, "precision": precision}
    parameters = {name: column for name, column in columns.items() if name not in ASKED}
    job = _Job(make, parameters, given, options, _differentiated(parameters, gradients))
    for name in (*_columns_of(job), "error"):
        if name in columns:
            raise ValueError(f"grid has the column {name!r}, which is one of the answers: give it another name.")
    rows = math.prod(shape)
    if chunk_size is None:
        chunk_size = min(max(_ROWS, rows // 16), _MOST_ROWS) if _is_fast(job) else _SLOW_ROWS
    _validate.in_range("chunk_size", chunk_size, 1, integral=True)
    pieces = [np.arange(i, min(i + int(chunk_size), rows)) for i in range(0, rows, int(chunk_size))]
    parts = None
    if path is not None:
        if resume and (finished := _finished(path, columns, job)) is not None:
            return Table(dict(finished), shape)
        parts = _opened(path, _description(job, columns, int(chunk_size)), resume)
    done: dict[int, dict[str, np.ndarray]] = {}
    try:
        with _bar(rows, progress) as advance:
            for number, arrays in _work(job, pieces, parts, devices):
                done[number] = arrays
                advance(len(pieces[number]))
    except KeyboardInterrupt:
        if parts is not None and jax.process_count() == 1:
            kept = {number: parts.get(number) for number in range(len(pieces))}
            finished = {number: arrays for number, arrays in kept.items() if arrays is not None}
            _whole(columns, pieces, finished, None).save(parts.path)
        raise
    table = _whole(columns, pieces, _gathered(job, pieces, done), shape)
    if parts is not None and jax.process_index() == 0:
        table.save(parts.path)
        parts.remove()
    return table


# --------------------------------------------------------------------------------------------------------------------
# What is asked


def _table_of(grid: Mapping[str, ArrayLike], mode: str) -> tuple[dict[str, np.ndarray], tuple[int, ...]]:
    """The grid's columns, row by row, and its shape."""
    _validate.one_of("mode", mode, ("product", "zip"))
    if not grid:
        raise ValueError("grid is empty, but it must have at least one column.")
    axes = {}
    for name, values in grid.items():
        _validate.number(name, values)  # raises for what is not a number
        axis = np.asarray(values)
        axis = axis.reshape(1) if axis.ndim == 0 else axis
        if axis.ndim != 1:
            raise ValueError(f"grid[{name!r}] has shape {axis.shape}, but it must be a number or have one axis.")
        axes[name] = axis
    lengths = {name: len(axis) for name, axis in axes.items()}
    if mode == "zip":
        length = max(lengths.values(), default=1) if 0 not in lengths.values() else 0
        if any(n not in (1, length) for n in lengths.values()):
            raise ValueError(f"The columns of a zipped grid must be of one length, or numbers; they have {lengths}.")
        return {name: np.broadcast_to(axis, (length,)).copy() for name, axis in axes.items()}, (length,)
    shape = tuple(lengths.values())
    index = np.indices(shape, sparse=True)
    wide = lambda axis, i: np.broadcast_to(axis[i], shape).reshape(-1)
    return {name: wide(axis, i) for (name, axis), i in zip(axes.items(), index, strict=True)}, shape


def _given(columns: dict[str, np.ndarray], numbers: dict[str, float | None]) -> dict[str, np.ndarray]:
    rows = len(next(iter(columns.values())))
    given = {}
    for name, value in numbers.items():
        if value is not None and name in columns:
            raise ValueError(f"{name} is given twice: in the grid, and by itself.")
        if value is not None:
            if np.ndim(value):
                raise ValueError(f"{name} must be a number; to vary it, put it in the grid.")
            given[name] = np.full(rows, _validate.number(name, value))
        elif name in columns:
            given[name] = columns[name].astype(np.float64)
    if not given:
        raise ValueError(f"Nothing is asked: give one of {', '.join(ASKED)}, by itself or in the grid.")
    if {"delta", "log_delta"} <= given.keys():
        raise ValueError("Give delta or log_delta, not both.")
    clash = [ASKED[name] for name in given if ASKED[name] in columns]
    if clash:
        raise ValueError(f"{clash[0]} is asked for, and it is a column of the grid: ask in two sweeps.")
    for name, (low, high) in {"delta": (0, 1), "log_delta": (-np.inf, 0), "false_positive_rate": (0, 1)}.items():
        if name in given:
            _validate.in_range(name, given[name], low, high)
    if "epsilon" in given:
        _validate.in_range("epsilon", given["epsilon"])
    return given


def _differentiated(parameters: dict[str, np.ndarray], gradients: bool | Sequence[str]) -> tuple[str, ...]:
    names = tuple(parameters) if gradients is True else tuple(gradients or ())
    for name in names:
        _validate.one_of("gradients", name, tuple(parameters))
    return names


@suspicion.unquestioned()
def _is_fast(job: _Job) -> bool:
    """Whether the first configuration is made of Gaussians, without a schedule."""
    try:
        record = job.make(**{name: column[0].item() for name, column in job.columns.items()})
    except Exception:  # whatever is wrong is said where the rows are made
        return True
    plain = lambda m: isinstance(m, ComposedOver)
    schedules = any(map(plain, jax.tree.leaves(record, is_leaf=plain)))
    return isinstance(record, Mechanism) and composition.all_gaussian(record) and not schedules


def _description(job: _Job, columns: dict[str, np.ndarray], chunk_size: int) -> dict[str, Any]:
    """What the parts on disk depend on, as JSON."""

    def digest(arrays: Mapping[str, np.ndarray]) -> str:
        sums = hashlib.sha256()
        for name, array in arrays.items():
            sums.update(f"{name} {array.dtype.str} {array.shape} ".encode())
            sums.update(array.tobytes())
        return sums.hexdigest()

    rows = len(next(iter(columns.values())))
    return {
        "dpjax": __version__,
        "rows": rows,
        "grid": digest(columns),
        "asked": digest(job.given),
        "gradients": list(job.gradients),
        "chunk_size": chunk_size,
        "mechanisms": [_probe(job, row) for row in _some(rows)],
        **{name: str(value) for name, value in job.options.items()},
    }


@suspicion.unquestioned()
def _probe(job: _Job, row: int) -> str:
    """What ``make`` makes of a row: a function has no other identity that outlives a process."""
    try:
        record = job.make(**{name: column[row].item() for name, column in job.columns.items()})
    except _rows.ROW_ERRORS as error:
        return repr(error)
    numbers = [np.asarray(x).tobytes() for x in jax.tree.leaves(record)]
    return f"{record!r} {hashlib.sha256(b''.join(numbers)).hexdigest()}"


# --------------------------------------------------------------------------------------------------------------------
# The work


def _opened(path: str | os.PathLike, description: dict[str, Any], resume: bool) -> Parts:
    """The parts of this sweep: the first process opens them, the others find them."""
    if jax.process_count() == 1:
        return Parts(path, description, resume)
    from jax.experimental import multihost_utils

    failure = None
    if jax.process_index() == 0:
        try:
            Parts(path, description, resume)
        except (OSError, ValueError) as error:
            failure = error
    if np.any(multihost_utils.process_allgather(np.array(failure is not None))):
        raise failure or ValueError(f"path = {os.fspath(path)!r}: the first process could not open it, and says why.")
    return Parts(path, description, resume=True)


def _columns_of(job: _Job) -> dict[str, Any]:
    """The answer columns, and what a row without an answer has there."""
    blank: dict[str, Any] = {}
    for given in job.given:
        name = ASKED[given]
        if name == "false_negative_rate":
            blank[name] = np.nan
        else:
            blank |= {name + end: np.nan for end in _ENDS}
            blank |= {name + "_status": int(Status.INVALID), name + "_method": -1}
        blank |= {f"d_{name}_d_{parameter}": np.nan for parameter in job.gradients}
    return blank


def _work(job: _Job, pieces: list, parts: Parts | None, devices: Sequence[Any] | None) -> Iterator[tuple[int, dict]]:
    """(number, arrays) of this process's share of the parts, as they are finished."""
    todo = []
    for number in range(jax.process_index(), len(pieces), jax.process_count()):
        arrays = parts.get(number) if parts is not None else None
        if arrays is None:
            todo.append(number)
        else:
            yield number, arrays
    devices = list(devices) if devices is not None else jax.local_devices()

    # a device that is set is part of what programs are compiled for, even if it is the one that JAX takes anyway
    alone = devices == jax.local_devices()[:1]

    def work(number: int, device: Any) -> tuple[int, dict[str, np.ndarray]]:
        with contextlib.nullcontext() if alone else jax.default_device(device):
            arrays = _part(job, pieces[number])
        if parts is not None:
            parts.put(number, arrays)
        return number, arrays

    if len(devices) == 1:
        yield from (work(number, devices[0]) for number in todo)
        return
    with ThreadPoolExecutor(len(devices)) as pool:
        waiting = iter(todo)
        # devices first: zip takes from its first argument before it sees that the second has ended
        running = {pool.submit(work, n, d): d for d, n in zip(devices, waiting, strict=False)}
        while running:
            future = next(as_completed(running))
            device = running.pop(future)
            yield future.result()
            for number in waiting:  # at most one
                running[pool.submit(work, number, device)] = device
                break


@suspicion.unquestioned()
def _part(job: _Job, rows: np.ndarray) -> dict[str, np.ndarray]:
    """The answer columns of some rows, and ``error``."""
    arrays = {name: np.full(len(rows), value) for name, value in _columns_of(job).items()}
    groups, errors = _rows.groups(job.make, job.columns, rows)
    for group in groups:
        _answer(job, group, rows[0], arrays, errors)
    messages = [errors.get(int(row), "") for row in rows]
    return arrays | {"error": np.array(messages, dtype=str)}


def _answer(job: _Job, group: _rows.Group, first: int, arrays: dict, errors: dict[int, str]) -> None:
    """Fills the rows of ``group`` in; where some fail, in halves until each has its own error."""
    rows = group.rows
    try:
        found = _asked(job, group)
    except _rows.ROW_ERRORS as error:
        if group.single or rows.size == 1:
            errors[int(rows[0])] = str(error)
            return
        for half in (slice(None, rows.size // 2), slice(rows.size // 2, None)):
            record = jax.tree.map(lambda x, half=half: x[half], group.record)
            _answer(job, _rows.Group(rows[half], record, False), first, arrays, errors)
        return
    for name, values in found.items():
        arrays[name][rows - first] = values


def _asked(job: _Job, group: _rows.Group) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for given in job.given:
        name = ASKED[given]
        if job.gradients and _differentiates_numbers(job, given, group):
            answer, slopes = _with_slopes(job, given, group, group.rows)
        else:
            answer, slopes = _question(job, given, group.record, group, group.rows), {}
            if job.gradients:
                slopes = _slopes(job, given, group, getattr(answer, "nodes", 0.0))
        if name == "false_negative_rate":
            found[name] = answer
        else:
            ends = (answer.upper, answer.lower, answer.estimate)
            found |= dict(zip((name + end for end in _ENDS), ends, strict=True))
            found |= {name + "_status": answer.status, name + "_method": answer.method}
        found |= {f"d_{name}_d_{parameter}": slope for parameter, slope in slopes.items()}
    return found


def _question(job: _Job, given: str, record: Mechanism, group: _rows.Group, rows: np.ndarray) -> Any:
    """What is asked about ``record``, of these rows of ``group``: ``Bounds``, or false-negative rates."""
    question = job.given[given][rows[0] if group.single else rows]
    if ASKED[given] == "false_negative_rate":
        return tradeoff(record, question, adjacency=job.options["adjacency"])
    query = accounting.epsilon_bounds if ASKED[given] == "epsilon" else accounting.delta_bounds
    return query(record, **{given: question}, **job.options)


def _differentiates_numbers(job: _Job, given: str, group: _rows.Group) -> bool:
    """Whether derivatives come with the answers, from the same work."""
    here = job.options["precision"] == "float64" and job.options["method"] in ("auto", "contour")
    return here and ASKED[given] != "false_negative_rate" and composition.all_gaussian(group.record)


def _with_slopes(job: _Job, given: str, group: _rows.Group, rows: np.ndarray) -> tuple[Any, dict[str, Any]]:
    """(the answer, its derivatives by the parameters) of these rows of ``group``."""
    part = {name: column[rows] for name, column in job.columns.items()}
    moving = {name: part.pop(name).astype(np.float64) for name in job.gradients}

    def total(moving: dict) -> tuple:
        whole = part | moving
        if group.single:
            record = job.make(**{name: x[0] for name, x in whole.items()})
        else:
            record = _rows.vectorised(job.make, whole)
        answer = _question(job, given, record, group, rows)
        return getattr(answer, "estimate", answer).sum(), answer

    with jax.enable_x64(True):
        slopes, answer = jax.grad(total, has_aux=True)(moving)
    return answer, {name: np.asarray(slope) for name, slope in slopes.items()}


def _slopes(job: _Job, given: str, group: _rows.Group, nodes: Any) -> dict[str, np.ndarray]:
    """The derivatives of an answer by the parameters, beside others that need as many nodes."""
    rows = group.rows
    slopes = {name: np.full(rows.size, np.nan) for name in job.gradients}
    order = np.argsort(np.broadcast_to(nodes, rows.shape), kind="stable")
    size = 1 if group.single else _GRADIENT_LANES if rows.size > 32 else 32
    for start in range(0, rows.size, size):
        piece = order[start : start + size]
        found = _with_slopes(job, given, group, rows[np.concatenate([piece, np.repeat(piece[:1], size - piece.size)])])
        for name, slope in found[1].items():
            slopes[name][piece] = slope[: piece.size]
    return slopes


# --------------------------------------------------------------------------------------------------------------------
# The table


def _gathered(job: _Job, pieces: list, done: dict[int, dict]) -> dict[int, dict]:
    """The parts of all processes."""
    if jax.process_count() == 1:
        return done
    from jax.experimental import multihost_utils

    names = [*_columns_of(job)]
    rows = sum(map(len, pieces))
    numbers = np.zeros((len(names), rows))
    errors = {}
    for number, arrays in done.items():
        numbers[:, pieces[number]] = [arrays[name] for name in names]
        errors |= {int(r): str(e) for r, e in zip(pieces[number], arrays["error"], strict=True) if e}
    text = np.frombuffer(json.dumps(errors).encode(), np.uint8)
    with jax.enable_x64(True):
        length = int(np.max(multihost_utils.process_allgather(np.array(text.size))))
        texts = multihost_utils.process_allgather(np.pad(text, (0, length - text.size), constant_values=ord(" ")))
        # each row is one process's, zero for the others
        numbers = np.asarray(multihost_utils.process_allgather(numbers)).sum(0)
    for other in np.asarray(texts):
        errors |= {int(r): e for r, e in json.loads(bytes(other)).items()}
    blank = _columns_of(job)
    whole = {name: column.astype(type(blank[name])) for name, column in zip(names, numbers, strict=True)}
    split = lambda piece: {name: column[piece] for name, column in whole.items()}
    return {
        number: split(piece) | {"error": np.array([errors.get(int(r), "") for r in piece], dtype=str)}
        for number, piece in enumerate(pieces)
    }


def _whole(columns: dict[str, np.ndarray], pieces: list, done: dict[int, dict], shape: Any) -> Table:
    """The table of the parts that are done, in their order; codes by name."""
    numbers = sorted(done)
    rows = np.concatenate([pieces[n] for n in numbers]) if numbers else np.zeros(0, int)
    table: dict[str, Any] = {name: column[rows] for name, column in columns.items()}
    for name in done[numbers[0]] if numbers else ():
        column = np.concatenate([done[n][name] for n in numbers])
        if name.endswith("_status"):
            column = np.array([s.name.lower() for s in Status])[column]
        elif name.endswith("_method"):
            column = np.array([*(m.name.lower() for m in Method), "none"])[column]
        table[name] = column
    return Table(table, shape)


def _some(rows: int) -> list[int]:
    """The first, a middle and the last row."""
    return sorted({0, rows // 2, rows - 1}) if rows else []


def _finished(path: str | os.PathLike, columns: dict[str, np.ndarray], job: _Job) -> Table | None:
    """The table at ``path`` if it is the whole of this sweep: its grid, and its answers in some rows."""
    if not os.path.exists(path) or os.path.exists(f"{os.fspath(path)}.parts"):
        return None
    table = Table.load(path)

    def same(name: str, wanted: np.ndarray, rtol: float = 0.0) -> bool:
        found = table[name]
        if found.shape != wanted.shape or found.dtype.kind not in "iuf":
            return found.size == wanted.size == 0
        return bool(np.allclose(found, wanted, rtol=rtol, atol=0.0, equal_nan=True))

    if not all(name in table and same(name, column) for name, column in columns.items()):
        raise ValueError(f"{path} is not of this grid: remove it, or choose another path.")
    pieces = [np.array([row]) for row in _some(table.rows)]
    fresh = _whole(columns, pieces, {number: _part(job, piece) for number, piece in enumerate(pieces)}, None)
    table, whole = Table({name: table[name][_some(table.rows)] for name in table}), table
    numbers = [name for name in fresh if fresh[name].dtype.kind in "iuf"]
    if fresh.rows and not ({*fresh} == {*table} and all(same(name, fresh[name], 1e-7) for name in numbers)):
        raise ValueError(f"{path} has other answers than this sweep: remove it, or choose another path.")
    return whole


@contextlib.contextmanager
def _bar(rows: int, wanted: bool) -> Iterator[Callable[[int], None]]:
    """A progress bar on stderr, if it is a terminal and rich is there."""
    if not wanted or not sys.stderr.isatty() or jax.process_index() > 0:
        yield lambda n: None
        return
    try:
        from rich import console, progress
    except ModuleNotFoundError:
        yield lambda n: None
        return

    class Rate(progress.ProgressColumn):
        def render(self, task):
            return f"{task.speed:,.0f}/s" if task.speed else ""

    shown = (progress.BarColumn(), progress.MofNCompleteColumn(), Rate(), progress.TimeRemainingColumn())
    with progress.Progress(*shown, console=console.Console(stderr=True)) as bar:
        task = bar.add_task("configurations", total=rows)
        yield lambda n: bar.advance(task, n)
