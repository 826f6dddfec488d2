"""Statements: what a mechanism guarantees, in words that can be pasted into a paper."""

from __future__ import annotations

import decimal
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from dpjax import __version__, _validate, accounting, mechanisms, suspicion
from dpjax.bounds import Method, Status
from dpjax.mechanisms import Adjacency, Mechanism

_NEIGHBOURS = {
    Adjacency.ADD_OR_REMOVE_ONE: "that differ in the presence of one record",
    Adjacency.REPLACE_ONE: "of the same size that differ in one record",
    Adjacency.REPLACE_SPECIAL: "one of which has a zero record in the place of one of the other's",
    Adjacency.ADD: "the second of which has one more record (this direction only)",
    Adjacency.REMOVE: "the second of which has one record less (this direction only)",
}
_HOW = {
    Method.CLOSED_FORM: "from the exact expression for its dominating pair",
    Method.CONTOUR: "by numerical inversion of the characteristic function of its privacy loss along a tilted contour, "
    "with bounds on every error",
    Method.LEVY: "by numerical inversion of the characteristic function of its privacy loss",
    Method.RECURSION: "by a recursion over the optimal adversary, bounded from both sides",
    Method.LATTICE: "from discretised privacy loss distributions that dominate the exact ones, convolved with bounds on every error",
}
_COMPOSITION = "Zhu, Dong and Wang, arXiv 2106.08567"
_RANGES = "Dong, Durfee and Rogers, arXiv 1909.13830"
_NOT_COVERED = (
    "Not covered: choices made from the data outside of the mechanism, such as hyperparameters tuned on it; batches that are not "
    "sampled as stated; noise that is not drawn from the stated distribution, which includes floating-point samplers."
)


def statement(
    mechanism: Mechanism,
    delta: float | None = None,
    *,
    epsilon: float | None = None,
    adjacency: Adjacency = Adjacency.ADD_OR_REMOVE_ONE,
    method: str = "auto",
) -> str:
    """A paragraph that says what ``mechanism`` guarantees, how that is known, and what is not covered.

    Args:
      mechanism: one mechanism, with numbers that are neither arrays of a batch nor traced.
      delta: the delta to state epsilon for, in [0, 1]; or
      epsilon: the epsilon to state delta for.
      adjacency, method: as for ``dpjax.epsilon``.

    Returns:
      Text of one paragraph. What was computed is rounded up.

    Guarantee:
      That of ``dpjax.epsilon`` or ``dpjax.delta``.

    Raises:
      ValueError: neither or both of delta and epsilon are given, one is out of range, a count is not whole, or the mechanism is
        a batch.
      TypeError: a number is traced.

    Example:
      >>> import dpjax
      >>> text = dpjax.statement(dpjax.dpsgd(1.0, 0.01, 1000), delta=1e-5)
      >>> print(text.partition(".")[0] + "...")
      1000 runs of the Gaussian mechanism (noise multiplier 1) on a Poisson sample (sampling probability 0...
    """
    if (delta is None) == (epsilon is None):
        raise ValueError("Give exactly one of delta and epsilon.")
    if any(map(_validate.is_traced, jax.tree.leaves((mechanism, delta, epsilon)))):
        raise TypeError("A statement is text: its numbers must not be traced.")
    if any(np.ndim(x) for x in (delta, epsilon) if x is not None):
        raise ValueError("delta and epsilon must be numbers, not arrays: one statement is about one of each.")
    if not np.all(np.equal(counts := _counts(mechanism), np.round(counts))):
        raise ValueError(f"{mechanism!r} is run a number of times that is not whole, which is no mechanism.")
    suspicion.question_delta(delta, suspicion.dataset_size(mechanism))
    options: dict[str, Any] = {"adjacency": adjacency, "method": method}
    if epsilon is None:
        bounds = accounting.epsilon_bounds(mechanism, delta, **options)
    else:
        bounds = accounting.delta_bounds(mechanism, epsilon, **options)
    if epsilon is None:
        suspicion.question_zero(delta, bounds.upper)
    if np.ndim(bounds.upper):
        raise ValueError(
            f"{mechanism!r} is a batch of shape {np.shape(bounds.upper)}; a statement is about one mechanism."
        )
    pair = f"{_up(bounds.upper)}, {delta!r}" if epsilon is None else f"{epsilon!r}, {_up(bounds.upper)}"
    what = "epsilon" if epsilon is None else "delta"
    if int(bounds.status) == int(Status.ONE_SIDED):
        known = f"The {what} is an upper bound; how far the exact one is below it is not known."
    elif not np.isfinite(bounds.upper):
        known = f"No finite {what} holds."
    else:
        known = f"The exact {what} is at least {_down(bounds.lower)}."
    used = Method(int(bounds.method))
    how, theory = _HOW[used], _RANGES if used is Method.RECURSION else _COMPOSITION
    text = describe(mechanism)
    return (
        f"{text[:1].upper()}{text[1:]} satisfies ({pair})-differential privacy for datasets {_NEIGHBOURS[adjacency]}. "
        f"This was computed {how} ({theory}), with dpjax {__version__}; numbers are rounded up. {known} {_NOT_COVERED}"
    )


def _counts(mechanism: Mechanism) -> np.ndarray:
    """How often the parts of ``mechanism`` are run."""
    if isinstance(mechanism, mechanisms.Composed):
        return np.concatenate([np.zeros(0), *map(_counts, mechanism.mechanisms)])
    own = np.ravel(mechanism.count) if isinstance(mechanism, mechanisms.SelfComposed) else np.zeros(0)
    inner = getattr(mechanism, "mechanism", None)
    return np.concatenate([own, _counts(inner)]) if isinstance(inner, Mechanism) else own


def _rounded(x: Any, side: str, digits: int = 4) -> str:
    x = float(x)
    if not np.isfinite(x):
        return str(x)
    context = decimal.Context(prec=digits, rounding=side)
    return f"{context.create_decimal_from_float(x).normalize(context):g}"


def _up(x: Any) -> str:
    return _rounded(x, decimal.ROUND_CEILING)


def _down(x: Any) -> str:
    return _rounded(x, decimal.ROUND_FLOOR)


def _number(x: Any) -> str:
    x = np.asarray(x)
    if x.ndim == 0:
        return f"{x.item():.12g}"
    return f"between {x.min():.6g} and {x.max():.6g}" if x.min() < x.max() else f"{x.min():.12g}"


def describe(mechanism: Mechanism) -> str:
    """What ``mechanism`` is, as part of a sentence, with its parameters.

    Example:
      >>> import dpjax
      >>> describe(dpjax.Gaussian(2.0) * 3 + dpjax.PureDP(0.1))
      'the composition of 3 runs of the Gaussian mechanism (noise multiplier 2) and a 0.1-DP mechanism'
    """
    for kind in type(mechanism).__mro__:
        if kind in _WORDS:
            return _WORDS[kind](mechanism)
    fields = ", ".join(
        f"{name.replace('_', ' ')} {describe(value) if isinstance(value, Mechanism) else _number(value)}"
        for name in mechanism.__dataclass_fields__  # type: ignore[attr-defined]
        if not isinstance(value := getattr(mechanism, name), tuple | type(None))
    )
    return f"the {type(mechanism).__name__} mechanism" + (f" ({fields})" if fields else "")


def _composed(record: Any) -> str:
    parts = [describe(m) for m in record.mechanisms]
    if len(parts) == 1:
        return parts[0]
    return f"the composition of {', '.join(parts[:-1])} and {parts[-1]}" if parts else "a mechanism without output"


_WORDS: dict[type, Callable[[Any], str]] = {
    mechanisms.Composed: _composed,
    mechanisms.SelfComposed: lambda r: f"{_number(r.count)} runs of {describe(r.mechanism)}",
    mechanisms.ComposedOver: lambda r: f"a schedule, each step of which is {describe(r.mechanism)}",
    mechanisms.PoissonSampled: lambda r: (
        f"{describe(r.mechanism)} on a Poisson sample (sampling probability {_number(r.sampling_probability)})"
    ),
    mechanisms.FixedSizeSampled: lambda r: (
        f"{describe(r.mechanism)} on {_number(r.sample_size)} of {_number(r.dataset_size)} records drawn without replacement"
    ),
    mechanisms.TruncatedPoissonSampled: lambda r: (
        f"{describe(r.mechanism)} on a Poisson sample (sampling probability {_number(r.sampling_probability)} of "
        f"{_number(r.dataset_size)} records), cut at random to at most {_number(r.max_batch_size)} records"
    ),
    mechanisms.RandomAllocation: lambda r: (
        f"an epoch of {_number(r.num_steps)} steps, in {_number(r.participations)} of which, chosen at random, each record is, of "
        f"{describe(r.mechanism)}"
    ),
    mechanisms.Gaussian: lambda r: f"the Gaussian mechanism (noise multiplier {_number(r.noise_multiplier)})",
    mechanisms.Laplace: lambda r: f"the Laplace mechanism (noise multiplier {_number(r.noise_multiplier)})",
    mechanisms.PureDP: lambda r: f"a {_number(r.epsilon)}-DP mechanism",
    mechanisms.ApproximateDP: lambda r: f"a ({_number(r.epsilon)}, {_number(r.delta)})-DP mechanism",
    mechanisms.ZCDP: lambda r: f"a {_number(r.delta)}-approximate {_number(r.rho)}-zCDP mechanism",
    mechanisms.BoundedRange: lambda r: (
        f"an exponential mechanism (range {_number(r.epsilon)})"
        if r.t is None
        else f"a mechanism of two losses, {_number(r.t)} and {_number(r.t)} - {_number(r.epsilon)}"
    ),
}
