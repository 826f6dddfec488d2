"""Input that is legal and hardly ever meant: questioned by a warning, in this one place.

Only single concrete numbers are questioned: a traced one has no value to look at, and batches, sweeps and searches go through
values that nobody means to use. Needs no JAX, so that the command line can ask before that is loaded.
"""

from __future__ import annotations

import contextlib
import contextvars
import math
import sys
import warnings
from collections.abc import Iterator
from typing import Any

SMALL_NOISE = 0.3  # one Gaussian step with less has an epsilon above 19 at delta 1e-5
LARGE_DELTA = 0.01

_ASKING: contextvars.ContextVar[bool] = contextvars.ContextVar("asking", default=True)


class SuspiciousInputWarning(UserWarning):
    """Input that is legal, and probably a slip: the answer holds, for what was said.

    Questioned are

    * a delta that is not below one over the number of records, where that is known (``dpsgd_from_training``,
      ``noise_for_training``, samplers with a ``dataset_size``, ``--dataset-size``);
    * a delta of 0.01 or more, in ``statement``, ``noise_for_training``, ``training.privacy_spent`` and on the command line;
    * a noise multiplier below 0.3 (but not 0, whose epsilon is infinite), in ``dpsgd``, ``dpsgd_from_training``, the
      aggregates of ``dpjax.training`` and on the command line;
    * a number of steps that is not whole, in ``dpsgd`` and in ``step * count``: the answer interpolates;
    * few epochs beside a large whole noise multiplier, in ``dpsgd_from_training``: the two were exchanged;
    * a delta of 0, in ``statement`` and on the command line, where no finite epsilon has it;
    * a confidence below 0.5, in ``audit``: what is meant is one minus it.

    Arrays, traced numbers, sweeps and what a calibration tries or finds are not. As any warning it is shown once for each
    place; ``warnings.simplefilter("ignore", dpjax.SuspiciousInputWarning)`` turns it off. The command line prints it as a note on
    stderr.

    Example:
      >>> import warnings
      >>> import dpjax
      >>> with warnings.catch_warnings(record=True) as questions:
      ...     warnings.simplefilter("always")
      ...     run = dpjax.dpsgd(noise_multiplier=0.0043, sampling_probability=0.01, steps=1000)
      >>> print(str(questions[0].message).partition(":")[0])
      noise multiplier 0.0043 is small
    """


@contextlib.contextmanager
def unquestioned() -> Iterator[None]:
    """Inside, nothing is questioned; also a decorator."""
    token = _ASKING.set(False)
    try:
        yield
    finally:
        _ASKING.reset(token)


def number(x: Any) -> float | None:
    """``x``, if it is one concrete number."""
    if x is None or getattr(x, "ndim", 0) or isinstance(x, bool | str | bytes):
        return None
    try:
        return float(x)
    except (TypeError, ValueError, OverflowError):  # an array, a tracer, no number at all
        return None


def dataset_size(record: Any) -> float | None:
    """The number of records that a mechanism knows, the largest of several."""
    sizes = [number(getattr(record, "dataset_size", None))]
    parts = getattr(record, "mechanisms", None)
    parts = parts if isinstance(parts, tuple) else (getattr(record, "mechanism", None),)
    sizes += [dataset_size(part) for part in parts if part is not None]
    return max((size for size in sizes if size is not None), default=None)


def question_delta(delta: Any, records: Any = None) -> None:
    """Warns about a delta that is large, or large for the number of records."""
    delta, records = number(delta), number(records)
    if delta is None or not 0 < delta <= 1:
        return
    if records is not None and records > 1 and delta >= 1 / records:
        smaller = 10.0 ** (math.ceil(-math.log10(records)) - 1)
        _warn(
            f"delta {delta:g} is not below 1 / {records:.15g}, one over the number of records: whoever publishes a whole "
            f"record, drawn at random, has such a delta. Take a smaller one, such as {smaller:g}."
        )
    elif delta >= LARGE_DELTA:
        _warn(
            f"delta {delta:g} is large: with that probability anything may be published. Take one well below one over the "
            "number of records, such as 1e-06."
        )


def question_noise(noise_multiplier: Any) -> None:
    """Warns about a noise multiplier with which nothing is private."""
    noise = number(noise_multiplier)
    if noise is not None and 0 < noise < SMALL_NOISE:
        _warn(
            f"noise multiplier {noise:g} is small: it is the standard deviation of the noise on the sum of clipped gradients, "
            "over the clipping norm. If it is that of the noise on their mean, multiply it by batch size / clipping norm, "
            "as dpsgd_from_training(..., noise_on_mean=, clipping_norm=) does; otherwise take more, 0.3 at least."
        )


def question_zero(delta: Any, epsilon: Any) -> None:
    """Warns where epsilon is infinite, and would not be at a delta that is not zero."""
    if number(delta) == 0 and number(epsilon) == math.inf:
        _warn(
            "delta 0: no finite epsilon holds for noise without a bound on its losses, such as Gaussian noise. Take a delta well "
            "below one over the number of records, such as 1e-06."
        )


def question_steps(steps: Any) -> None:
    """Warns about a number of steps that is not whole."""
    count = number(steps)
    if count is not None and math.isfinite(count) and count != math.floor(count):
        _warn(
            f"{count!r} steps are not a whole number: the answer interpolates, and is the privacy of no mechanism. Round up, to "
            f"{math.ceil(count)}, as dpsgd_from_training does."
        )


def question_order(epochs: Any, noise_multiplier: Any) -> None:
    """Warns about epochs and noise that look exchanged: both are plain numbers, one after the other."""
    passes, noise = number(epochs), number(noise_multiplier)
    if passes is None or noise is None or not math.isfinite(noise) or noise != math.floor(noise) or noise <= passes:
        return
    if noise >= 10 or (noise >= 5 and passes != math.floor(passes)):
        _warn(
            f"{passes:g} epochs with noise multiplier {noise:g} look exchanged: the order is dataset_size, batch_size, epochs, "
            "noise_multiplier."
        )


def question_confidence(confidence: Any) -> None:
    """Warns about a confidence that is a probability of error."""
    share = number(confidence)
    if share is not None and 0 < share < 0.5:
        _warn(f"confidence {share:g} is small: the bound then fails more often than not. Is {1 - share:g} meant?")


def _warn(message: str) -> None:
    """Warns at the caller's line: the first that is not the library's."""
    if not _ASKING.get():
        return
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and f"{frame.f_globals.get('__name__', '')}.".startswith("dpjax."):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, SuspiciousInputWarning, stacklevel=level)
