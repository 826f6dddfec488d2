"""The table of mechanisms that the contract tests run over: a new mechanism is a new row.

The values are those of oracles/compositions.json, under the same name.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import dpjax
from dpjax import Adjacency, Mechanism

DIRECTIONS = {
    "remove": Adjacency.REMOVE,
    "add": Adjacency.ADD,
    "replace": Adjacency.REPLACE_ONE,
    "both": Adjacency.REMOVE,
}


@dataclass(frozen=True)
class Problem:
    """One row.

    Attributes:
      name: of the row here and in compositions.json.
      make: the main parameter to the mechanism.
      at: the main parameter's value.
      tags: what the loss is like; spelled as in ``TAGS``.
      directions: what compositions.json has rows for; "both" where add and remove agree.
      bad: a call that must raise, and the field that it must name.
    """

    name: str
    make: Callable[..., Mechanism]
    at: float
    tags: frozenset[str]
    directions: tuple[str, ...]
    bad: tuple[float, str]

    def __str__(self):
        return self.name


TAGS = {
    "finite": "finitely many losses",
    "atoms": "losses that have mass, and others",
    "smooth": "a density",
    "sampled": "a random part of the data",
    "failure": "mass at infinity",
    "mixed": "more than one mechanism",
    "parametric": "known by its parameters: not answered by the lattice",
    "claim": "known by a curve",
    "one count": "takes one count at a time",
}


def _row(name, make, at, tags, directions="both", bad=(-1.0, "")):
    return Problem(name, make, at, frozenset(tags.split(", ")), tuple(directions.split()), bad)


_EACH = math.log(0.52 / 0.48)

PROBLEMS = [
    _row("gaussian", dpjax.Gaussian, 2.0, "smooth", bad=(-1.0, "noise_multiplier")),
    _row(
        "matrix-factorization", lambda s: dpjax.MatrixFactorization(s, 1.5), 3.0, "smooth", bad=(-1.0, "noise_multiplier")
    ),
    _row("tree-aggregation", lambda s: dpjax.TreeAggregation(s, 10), 4.0, "smooth", bad=(-1.0, "noise_multiplier")),
    _row(
        "poisson-gaussian", lambda s: dpjax.PoissonSampled(0.01, dpjax.Gaussian(s)), 1.0, "smooth, sampled", "remove add",
        (-1.0, "noise_multiplier"),
    ),
    _row(
        "poisson-gaussian-replace", lambda q: dpjax.PoissonSampled(q, dpjax.Gaussian(2.0)), 0.05, "smooth, sampled",
        "replace", (1.5, "sampling_probability"),
    ),
    _row(
        "fixed-size-gaussian", lambda s: dpjax.FixedSizeSampled(100, 5, dpjax.Gaussian(s)), 4.0, "smooth, sampled",
        "remove add", (-1.0, "noise_multiplier"),
    ),
    _row(
        "truncated-poisson-gaussian",
        lambda s: dpjax.TruncatedPoissonSampled(1000, 0.1, 110, dpjax.Gaussian(s)), 4.0, "smooth, sampled", "remove add",
        (-1.0, "noise_multiplier"),
    ),
    _row("laplace", dpjax.Laplace, 5.0, "atoms", bad=(-1.0, "noise_multiplier")),
    _row("permute-and-flip", dpjax.PermuteAndFlip, 0.4, "atoms", bad=(-1.0, "epsilon")),
    _row(
        "poisson-laplace", lambda q: dpjax.PoissonSampled(q, dpjax.Laplace(1.0)), 0.05, "atoms, sampled", "remove add",
        (1.5, "sampling_probability"),
    ),
    _row("discrete-gaussian", dpjax.DiscreteGaussian, 3.0, "finite", bad=(-1.0, "sigma")),
    _row("discrete-gaussian-2", lambda s: dpjax.DiscreteGaussian(s, 2), 1.0, "finite", bad=(-1.0, "sigma")),
    _row("discrete-laplace", dpjax.DiscreteLaplace, 0.5, "finite", bad=(-1.0, "epsilon_per_unit")),
    _row("discrete-laplace-2", lambda e: dpjax.DiscreteLaplace(e, 2), 0.3, "finite", bad=(-1.0, "epsilon_per_unit")),
    _row("randomized-response", dpjax.RandomizedResponse, 0.5, "finite", bad=(-1.0, "epsilon")),
    _row("randomized-response-4", lambda e: dpjax.RandomizedResponse(e, 4), 0.5, "finite", bad=(-1.0, "epsilon")),
    _row("pure-dp", dpjax.PureDP, 0.2, "finite, parametric", bad=(-1.0, "epsilon")),
    _row("approximate-dp", lambda e: dpjax.ApproximateDP(e, 1e-6), 0.2, "finite, failure, parametric", bad=(-1.0, "epsilon")),
    _row("bounded-range-t", lambda e: dpjax.BoundedRange(e, 0.1), 0.3, "finite, parametric, one count", bad=(-1.0, "epsilon")),
    _row(
        "discrete-loss", lambda a: dpjax.DiscreteLoss(_three(a), [0.45, 0.25, 0.3]), 0.5, "finite", "remove add",
        (-1.0, "p"),
    ),
    _row(
        "discrete-loss-infinite",
        lambda a: dpjax.DiscreteLoss(_failing(a), [0.45, 0.55, 0.0]), 0.55, "finite, failure", "remove add", (-1.0, "p"),
    ),
    _row(
        "failing-gaussian", lambda s: dpjax.Gaussian(s) + dpjax.MassAtInfinity(1e-9), 4.0, "smooth, failure, mixed",
        bad=(-1.0, "noise_multiplier"),
    ),
    _row(
        "mixture-of-gaussians", lambda s: dpjax.MixtureOfGaussians(s, [0.0, 1.0, 2.0], [0.5, 0.25, 0.25]), 2.0, "smooth",
        "remove add", (-1.0, "noise_multiplier"),
    ),
    _row(
        "privacy-profile", lambda d: dpjax.PrivacyProfile([0.25, 0.5, 1.0], _deltas(d)), 0.02, "finite, failure, claim",
        bad=(-1.0, "deltas"),
    ),
    _row("zcdp", dpjax.ZCDP, 0.01, "finite, claim", bad=(-1.0, "rho")),
    _row("renyi-dp", lambda r: dpjax.RenyiDP([0.5, 2.0, 8.0], _curve(r)), 0.02, "finite, claim", bad=(-1.0, "epsilons")),
    _row(
        "gaussian-and-response", lambda s: dpjax.Gaussian(s) + dpjax.RandomizedResponse(_EACH), 5.0, "smooth, mixed",
        bad=(-1.0, "noise_multiplier"),
    ),
    _row(
        "laplace-gaussian-discrete",
        lambda s: dpjax.Laplace(10.0) + dpjax.Gaussian(s) + dpjax.DiscreteLaplace(0.1), 5.0, "smooth, atoms, mixed",
        bad=(-1.0, "noise_multiplier"),
    ),
    _row(
        "failing-poisson-laplace",
        lambda q: dpjax.PoissonSampled(q, dpjax.Laplace(1.0)) + dpjax.MassAtInfinity(1e-9), 0.05,
        "atoms, sampled, failure, mixed", "remove add", (1.5, "sampling_probability"),
    ),
]  # fmt: skip
BY_NAME = {p.name: p for p in PROBLEMS}


def _xp(x):
    import jax.numpy as jnp
    import numpy as np

    return np if isinstance(x, float | int | np.ndarray) else jnp


def _three(a):
    """The first of three outcomes and the last share what is left."""
    xp = _xp(a)
    return xp.stack([a, 0.0 * a + 0.3, 0.7 - a])


def _failing(a):
    xp = _xp(a)
    return xp.stack([a, 1.0 - a - 1e-7, 0.0 * a + 1e-7])


def _deltas(d):
    xp = _xp(d)
    return xp.stack([d, d / 20, d * 5e-7])


def _curve(r):
    xp = _xp(r)
    return xp.stack([r / 4, r, 4 * r])


def _read():
    return json.loads((Path(__file__).parent / "oracles" / "compositions.json").read_text())["rows"]


def rows(name: str, direction: str):
    """(counts, epsilons, deltas, errors) of a problem in one direction: lists of floats."""
    found = [r for r in _read() if r["problem"] == name and r["direction"] == direction]
    return tuple([float(r[key]) for r in found] for key in ("count", "epsilon", "delta", "error"))
