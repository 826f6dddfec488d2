"""The one place that turns the terms of a training run into sampling probability and number of updates.

It needs no JAX, so that the command line can complain before that is loaded.
"""

from __future__ import annotations

import decimal
import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, NamedTuple


class Terms(NamedTuple):
    """What follows from dataset size, batch size and epochs.

    Attributes:
      dataset_size: records.
      batch_size: records, expected, between two additions of noise.
      epochs: passes over the dataset.
      sampling_probability: of each record to be in a batch.
      steps: updates, each with its noise.
      formulas: field -> how it was derived.
    """

    dataset_size: int
    batch_size: int
    epochs: Fraction
    sampling_probability: float
    steps: int
    formulas: dict[str, str]


_BATCH = "the records between two additions of noise, all micro-batches of an update together"


def derive(
    dataset_size: Any,
    batch_size: Any,
    epochs: Any,
    micro_batch_size: Any = None,
    accumulation_steps: Any = None,
    *,
    names: Mapping[str, str] | None = None,
) -> Terms:
    """Sampling probability and updates of a run.

    Args:
      dataset_size: records.
      batch_size: the expected number of records between two additions of noise; or
      micro_batch_size, accumulation_steps: whose product it is.
      epochs: passes over the dataset; a float is read as its shortest decimal, so that 1.1 is 11 / 10.
      names: what to call the arguments in complaints.

    Raises:
      ValueError: a number is out of range, or they contradict each other.
      TypeError: a number is not one, or one is missing.

    Example:
      >>> derive(60000, None, 1.1, micro_batch_size=75, accumulation_steps=8)[3:5]
      (0.01, 110)
    """
    called = dict(names or {})

    def call(name: str) -> str:
        return called.get(name, name)

    size = _whole(call("dataset_size"), dataset_size)
    parts = {"micro_batch_size": micro_batch_size, "accumulation_steps": accumulation_steps}
    given = [name for name, value in parts.items() if value is not None]
    if batch_size is not None and given:
        raise ValueError(
            f"{call('batch_size')} = {batch_size!r} and {' and '.join(map(call, given))}: which batch is meant? "
            f"{call('batch_size')} is {_BATCH}; give it alone, or {call('micro_batch_size')} and "
            f"{call('accumulation_steps')}, whose product it is."
        )
    if batch_size is None:
        if len(given) < 2:
            missing = call("batch_size") if not given else " and ".join(call(n) for n in parts if n not in given)
            raise TypeError(f"{missing} is missing; {call('batch_size')} is {_BATCH}.")
        micro, times = (_whole(call(name), value) for name, value in parts.items())
        batch, shown = micro * times, f"({micro} * {times})"
    else:
        batch = _whole(call("batch_size"), batch_size)
        shown = str(batch)
    passes = _exact(call("epochs"), epochs)
    if batch > size:
        raise ValueError(f"{call('batch_size')} {batch} is larger than {call('dataset_size')} {size}.")
    formulas = {
        "sampling_probability": f"{shown} / {size}",
        "steps": f"ceil({plain(passes)} * {size} / {shown})",
    }
    return Terms(size, batch, passes, batch / size, math.ceil(passes * size / batch), formulas)


def plain(x: Fraction) -> int | float:
    """A fraction as it is written."""
    return x.numerator if x.denominator == 1 else float(x)


def _whole(name: str, x: Any) -> int:
    number = _exact(name, x)
    if number.denominator != 1:
        raise ValueError(f"{name} = {x!r}, but it must be a whole number > 0.")
    return int(number)


def _exact(name: str, x: Any) -> Fraction:
    try:
        if isinstance(x, bool | str | bytes):
            raise TypeError
        number = x if isinstance(x, int | Fraction | decimal.Decimal) else float(x)
        if not math.isfinite(number):
            raise ValueError(f"{name} = {x!r}, but it must be a number > 0.")
        exact = Fraction(repr(number)) if isinstance(number, float) else Fraction(number)
    except TypeError:
        raise TypeError(
            f"{name} must be a number, not an array and not traced; got {x!r}. For many, sweep or calibrate dpjax.dpsgd."
        ) from None
    if exact <= 0:
        raise ValueError(f"{name} must be > 0; got {x!r}.")
    return exact
