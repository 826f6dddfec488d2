"""The privacy loss of a mechanism in a single direction: its characteristic function and its distribution function.

Both are estimates by quadrature, after Zhu, Dong, Wang (arXiv 2106.08567), but for the distribution function of a
single run, which its law has; certified answers are those of ``accounting``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from dpjax import _precision, _validate, composition, levy
from dpjax.laws import loss_law, reverse
from dpjax.mechanisms import Adjacency, Gaussian, Mechanism, PoissonSampled
from dpjax.pairs import directions
from dpjax.representations._moments import transform
from dpjax.representations._question import members


class _Question(NamedTuple):
    structure: Any
    adjacency: Adjacency
    under: str


def characteristic_function(
    mechanism: Mechanism, t: ArrayLike, under: str = "P", *, adjacency: Adjacency = Adjacency.REMOVE
) -> tuple[Any, Any]:
    """phi(t) = E_P exp(it log(p/q)), or under Q phi'(t) = E_Q exp(it log(q/p)), of the composed loss.

    Args:
      mechanism: a record, of any batch shape.
      t: real, broadcasts against the batch shape; in 1/nats.
      under: "P" or "Q".
      adjacency: a single direction, ``ADD`` or ``REMOVE``, or ``REPLACE_ONE``.

    Returns:
      (log-modulus, argument), each in the broadcast shape; the argument is not reduced mod 2 pi.

    Guarantee:
      None: exact up to rounding for Gaussians, otherwise a quadrature (Zhu, Dong, Wang, arXiv 2106.08567, section 4), or
      sums over cells of the loss, good to about 1e-6 of t squared times its variance. Losses of plus and minus infinity
      are left out.

    Raises:
      ValueError: a bad argument, or an adjacency that stands for two directions.
      NotImplementedError: no analysis is known for the mechanism in this direction.

    Example:
      >>> import dpjax
      >>> log_modulus, argument = dpjax.characteristic_function(dpjax.Gaussian(1.0), 1.0)
      >>> print(round(float(log_modulus), 12), round(float(argument), 12))
      -0.5 0.5
    """
    return _ask(_characteristic, mechanism, "t", t, under, adjacency)


def privacy_loss_cdf(
    mechanism: Mechanism, loss: ArrayLike, under: str = "P", *, adjacency: Adjacency = Adjacency.REMOVE
) -> Any:
    """P(log(p/q) <= loss) under P, or Q(log(q/p) <= loss) under Q.

    Args:
      mechanism: a record, of any batch shape.
      loss: in nats; broadcasts against the batch shape.
      under: "P" or "Q".
      adjacency: a single direction, ``ADD`` or ``REMOVE``, or ``REPLACE_ONE``.

    Returns:
      The distribution function in the broadcast shape, in [0, 1].

    Guarantee:
      None: an estimate by Gil-Pelaez inversion with Gauss-Legendre quadrature (Zhu, Dong, Wang, arXiv 2106.08567,
      Algorithm 1), typically good to 1e-10 where many steps are composed. Of a single run: exact up to rounding.

    Raises:
      ValueError: a bad argument, or an adjacency that stands for two directions.
      NotImplementedError: no analysis is known; or a composition has more in it than Gaussians.

    Example:
      >>> import dpjax
      >>> print(f"{float(dpjax.privacy_loss_cdf(dpjax.Gaussian(1.0), 0.5)):.6f}")
      0.500000
    """
    return _ask(_distribution, mechanism, "loss", loss, under, adjacency)[0]


def _ask(function, mechanism, name, x, under, adjacency) -> tuple:
    if not isinstance(mechanism, Mechanism):
        raise TypeError(f"mechanism must be a dpjax mechanism; got {mechanism!r}.")
    _validate.one_of("under", under, ("P", "Q"))
    if len(directions(adjacency)) > 1:
        raise ValueError(f"adjacency = {adjacency.name} stands for two directions; ask for ADD or REMOVE.")
    number = _validate.number(name, x)
    _validate.in_range(name, number)
    composition.check(mechanism)
    mechanism = composition.reduced(mechanism, adjacency)
    function = _through_law(mechanism, function, adjacency)
    laid = composition.layout(mechanism, number)
    question = _Question(laid.structure, adjacency, under)
    args = (*laid.leaves, laid.given)
    if any(_validate.is_traced(a) for a in args):
        flat = _precision.traced(function, question, args, (_precision.NEAREST,) * 2)
    else:
        flat = _precision.concrete(function, question, *args)
    return tuple(a.reshape(laid.shape)[()] for a in flat)


def _through_law(mechanism: Mechanism, function: Any, direction: Adjacency) -> Any:
    """``function``, or its counterpart that needs no more than laws."""
    inside = members(mechanism)
    sampled = lambda m: isinstance(m, PoissonSampled) and isinstance(m.mechanism, Gaussian)
    gaussian = all(isinstance(m, Gaussian) or sampled(m) for m in inside)
    single = len(inside) == 1 and inside[0] is mechanism
    if function is _characteristic:
        return function if gaussian else _characteristic_of_laws
    if single and (not gaussian or isinstance(mechanism, PoissonSampled) and direction is not Adjacency.REPLACE_ONE):
        return _distribution_of_law
    if not gaussian:
        raise NotImplementedError(
            f"The distribution function of {mechanism!r} needs a single run, or Gaussians alone; ask for delta instead."
        )
    return function


def _composed(question: _Question, leaves: tuple):
    return composition.problem(question.structure, leaves, directions(question.adjacency)[0])


def _characteristic(question: _Question, *args: jax.Array) -> tuple:
    *leaves, t = args
    found = levy.log_characteristic(_composed(question, tuple(leaves)), t[:, None], question.under)
    return tuple(a[:, 0] for a in found)


def _distribution(question: _Question, *args: jax.Array) -> tuple:
    *leaves, loss = args
    value, _ = levy.loss_cdf(_composed(question, tuple(leaves)), loss, question.under)
    return value, value


def _distribution_of_law(question: _Question, *args: jax.Array) -> tuple:
    *leaves, loss = args
    record = jax.tree.unflatten(question.structure, tuple(leaves))
    direction = directions(question.adjacency)[0]

    def one(member, x):
        law = loss_law(member, direction)
        return (law if question.under == "P" else reverse(law)).tails(x).p_below

    if not (isinstance(record, PoissonSampled) and isinstance(record.mechanism, Gaussian)):
        value = jax.vmap(one)(record, loss)
        return value, value
    # exact limits: nothing seen, or a batch without noise
    q: Any = record.sampling_probability
    sigma: Any = record.mechanism.noise_multiplier
    hidden, bare = (q == 0) | jnp.isinf(sigma), (sigma == 0) & (q > 0)
    limit = hidden | bare
    safe = PoissonSampled(jnp.where(limit, 0.5, q), Gaussian(jnp.where(limit, 1.0, sigma)))
    edge = -jnp.log1p(-jnp.where(bare, q, 0.5))
    first = (direction is Adjacency.REMOVE) == (question.under == "P")
    given_away = jnp.where(loss >= -edge, 1 - q, 0.0) if first else jnp.where(loss >= edge, 1.0, 0.0)
    value = jnp.where(bare, given_away, jnp.where(loss >= 0, 1.0, 0.0))
    value = jnp.where(limit, value, jax.vmap(one)(safe, loss))
    value = jnp.where((q >= 0) & (q <= 1) & (sigma >= 0), value, jnp.nan)
    return value, value


def _characteristic_of_laws(question: _Question, *args: jax.Array) -> tuple:
    *leaves, t = args
    record = jax.tree.unflatten(question.structure, tuple(leaves))
    direction = directions(question.adjacency)[0]

    def one(member, t):
        law = loss_law(member, direction)
        return transform(law if question.under == "P" else reverse(law), t)

    log_modulus, argument = jnp.zeros_like(t), jnp.zeros_like(t)
    for member, count in composition._terms(record, jnp.ones(t.shape)):
        apply, axes = one, (0, None)
        for _ in range(count.ndim - 1):
            apply = jax.vmap(apply, axes)
        a, b = jax.vmap(apply)(member, t)
        over = tuple(range(1, a.ndim))
        log_modulus, argument = log_modulus + jnp.sum(count * a, over), argument + jnp.sum(count * b, over)
    return log_modulus, argument
