"""A certified answer, and what is said about it."""

from __future__ import annotations

import enum
from typing import Any, NamedTuple

import numpy as np

from dpjax import _validate


class Status(enum.IntEnum):
    """How an answer's interval came about.

    CONVERGED: as narrow as ``rtol`` asks. ROUNDING: float64 (or float32, if asked for) has no more digits here, the terms of
    the sum cancel too far. MAX_NODES: ``max_nodes`` contour nodes did not suffice. GRID: as wide as a grid leaves it: the lattice aims at 1e-3
    of delta, or ``rtol`` if that is more; ``bounded_range`` at 1% unless an rtol of 1e-4 or more asks for another. ONE_SIDED: the
    mechanism's analysis is itself an upper bound, and nothing is known from below: ``lower`` says so, ``estimate`` is the
    bound's. In each case the interval is certified. INVALID: an argument was out of range, and the answer is NaN.
    """

    CONVERGED = 0
    ROUNDING = 1
    MAX_NODES = 2
    INVALID = 3
    GRID = 4
    ONE_SIDED = 5


class Method(enum.IntEnum):
    """The engine that answered."""

    CLOSED_FORM = 0
    CONTOUR = 1
    LEVY = 2
    RECURSION = 3
    LATTICE = 4


class Bounds(NamedTuple):
    """A certified answer: the truth lies between ``lower`` and ``upper``.

    Attributes:
      lower, estimate, upper: arrays of the query's batch shape.
      status: codes of ``dpjax.Status``.
      method: codes of ``dpjax.Method``.
      nodes: contour nodes or grid points used.
    """

    lower: Any
    estimate: Any
    upper: Any
    status: Any
    method: Any
    nodes: Any

    def __repr__(self) -> str:
        if any(map(_validate.is_traced, self)):
            return "Bounds(" + ", ".join(f"{n}={x!r}" for n, x in zip(self._fields, self, strict=True)) + ")"
        if any(map(np.ndim, self)):
            numbers = [f"{n}={np.asarray(x)!r}" for n, x in zip(self._fields, self[:3], strict=False)]
            codes = f"status={_names(Status, self.status)}, method={_names(Method, self.method)}"
            return ", ".join(["Bounds(" + numbers[0], *numbers[1:], codes, f"nodes={np.asarray(self.nodes).tolist()})"])
        return (
            f"Bounds(lower={float(self.lower)!r}, estimate={float(self.estimate)!r}, upper={float(self.upper)!r}, "
            f"status={Status(int(self.status)).name}, method={Method(int(self.method)).name}, nodes={int(self.nodes)})"
        )


def _names(kind: type[enum.IntEnum], codes: Any) -> str:
    """What an array of codes says: one name if it is everywhere the same."""
    names = np.vectorize(lambda code: kind(code).name, otypes=[object])(np.asarray(codes))
    return names.flat[0] if len(set(names.flat)) == 1 else str(names.tolist()).replace("'", "")
