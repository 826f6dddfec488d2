"""Derivatives of the contour estimate: the same sum with the derivatives of K, on the nodes of a settled contour.

d S / d p is the sum whose terms carry d K / d p, d S / d eps has an extra -z. The contour (tilt, period, cutoff, inner nodes)
is held fixed, and the certificate takes no part: delta does not depend on the contour.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dpjax import contour, cumulant
from dpjax._complex import Complex, add, mul, ratio
from dpjax._plan import PI, Plan, Problem
from dpjax._special import exp, sincos
from dpjax.pairs import SampledGaussianPair


class Sensitivity(NamedTuple):
    """Derivatives of log delta. The parameters stand in the order sigma, q, count (components each), variance, epsilon.

    gradient: (lanes, parameters). hessian: (lanes, parameters, parameters), or None at order 1.
    """

    gradient: jax.Array
    hessian: jax.Array | None


def of_cumulant(pair: SampledGaussianPair, s: jax.Array, t: jax.Array, moments: cumulant.Moments, order: int):
    """K_sigma, K_q and, at order 2, K_ss, K_sq, K_qq of pairs at the nodes; complex (lanes, components, nodes)."""
    parts = pair.sign.shape[-1]
    phi = (1 - moments.a, moments.b)
    mean = lambda c: ratio((moments.columns[0][..., c], moments.columns[1][..., c]), phi)
    coefficient = [
        (
            (pair.alpha[..., j] + s[:, None] * pair.beta[..., j])[..., None],
            pair.beta[..., j, None] * t[:, None, :],
        )
        for j in range(parts)
    ]

    def weighted(columns):
        (c, column), *rest = columns
        total = mul(c, mean(column))
        for c, column in rest:
            total = add(total, mul(c, mean(column)))
        return total

    first = [weighted([(coefficient[j], 2 * j + p) for j in range(parts)]) for p in range(2)]
    if order < 2:
        return first, []
    base, n = 2 * parts, 2 * parts
    product = lambda i, k: base + 3 * parts + min(i, k) * n - min(i, k) * (min(i, k) - 1) // 2 + abs(i - k)
    second = []
    for index, (p, r) in enumerate(((0, 0), (0, 1), (1, 1))):
        own = weighted([(coefficient[j], base + 3 * j + index) for j in range(parts)])
        cross = weighted(
            [
                (mul(coefficient[i], coefficient[k]), product(2 * i + p, 2 * k + r))
                for i in range(parts)
                for k in range(parts)
            ]
        )
        minus = mul(first[p], first[r])
        second.append(add(add(own, cross), (-minus[0], -minus[1])))
    return first, second


class Terms(NamedTuple):
    """The terms of the sum for delta, and the derivatives of their logarithms, without the aliases; complex.

    value: (lanes, nodes). rows: (lanes, parameters, nodes).
    """

    value: Complex
    rows: Complex

    def sums(self) -> tuple[jax.Array, jax.Array]:
        """The sum (lanes,) and its derivatives (lanes, parameters)."""
        by_node = lambda part: jnp.einsum("lt,lpt->lp", self.value[part], self.rows[part])
        return jnp.sum(self.value[0], -1), by_node(0) - by_node(1)


def terms(problem: Problem, plan: Plan, tilt: contour.Tilt, t, half, log_modulus, angle, first: list, eps) -> Terms:
    """The terms at ``eps`` on the nodes t, from the components' phi and the first derivatives of their K."""
    weight, phase = contour.integrand(problem, plan, tilt, t, half, log_modulus, angle, eps)
    amplitude = exp(contour.log_scale(plan, tilt, eps)[:, None] + weight)
    sine, cosine = sincos(phase)
    count, real, s = problem.count[:, :, None], tilt.inner.real, plan.s[:, None]
    k = (real.value[..., None] + log_modulus, angle + t[:, None, :] * real.mean[..., None])
    gauss = (0.5 * (s * s - t * t + s), 0.5 * (2 * s * t + t))
    rows = [
        jnp.concatenate([count * first[0][i], count * first[1][i], k[i], gauss[i][:, None], edge[:, None]], axis=1)
        for i, edge in ((0, jnp.broadcast_to(-s, t.shape)), (1, -t))
    ]
    return Terms((amplitude * cosine, amplitude * sine), (rows[0], rows[1]))


def with_aliases(plan: Plan, eps: jax.Array, value: jax.Array, gradient: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(the estimate (lanes, 1), NaN where it is not positive; the derivatives of its log) from what ``terms`` sum to."""
    a, a1 = contour.known_alias(plan, eps)
    value = (value - a + a1)[:, None]
    safe = jnp.where(value > 0, value, jnp.nan)
    return safe, gradient.at[:, -1].add(a1) / safe


def of_log_delta(problem: Problem, plan: Plan, eps: jax.Array, order: int, capacity: int, block: int) -> Sensitivity:
    """First and second derivatives of the log of the estimate at ``eps`` (lanes,), on the contour of ``plan``."""
    tilt = contour.fix_tilt(problem, plan, capacity)
    h = 2 * PI / plan.period
    lanes, components = problem.pair.sigma.shape
    parameters = 3 * components + 2

    def body(carry):
        start, value, gradient, hessian = carry
        at = contour.block_nodes(plan.nodes, h, start, block)
        moments = cumulant.moments(
            problem.pair, plan.s, at.rows, at.across, tilt.inner.window, tilt.inner.height, tilt.inner.step,
            tilt.inner.real, order=order,
        )  # fmt: skip
        first, second = of_cumulant(problem.pair, plan.s, at.t, moments, order)
        found = terms(problem, plan, tilt, at.t, at.log_half, *contour.log_phi(moments), first, eps)
        more = found.sums()
        value, gradient = value + more[0], gradient + more[1]
        if order > 1:
            term, rows = found
            re = term[0][:, None] * rows[0] - term[1][:, None] * rows[1]
            im = term[0][:, None] * rows[1] + term[1][:, None] * rows[0]
            hessian = hessian + jnp.einsum("lpt,lrt->lpr", re, rows[0]) - jnp.einsum("lpt,lrt->lpr", im, rows[1])
            real_sum = lambda f: jnp.sum(term[0][:, None] * f[0] - term[1][:, None] * f[1], -1)
            blocks = {(0, 0): second[0], (0, 1): second[1], (1, 1): second[2]}
            i = np.arange(components)
            for (p, r), f in blocks.items():
                entry = problem.count * real_sum(f)
                hessian = hessian.at[:, p * components + i, r * components + i].add(entry)
                if p != r:
                    hessian = hessian.at[:, r * components + i, p * components + i].add(entry)
            for p in range(2):
                entry = real_sum(first[p])
                hessian = hessian.at[:, p * components + i, 2 * components + i].add(entry)
                hessian = hessian.at[:, 2 * components + i, p * components + i].add(entry)
        return start + np.int32(block), value, gradient, hessian

    zero = jnp.zeros((lanes,), eps.dtype)
    hessian = jnp.zeros((lanes, parameters, parameters) if order > 1 else (lanes, 0, 0), eps.dtype)
    last = jnp.max(jnp.minimum(plan.nodes, capacity))
    _, value, gradient, hessian = lax.while_loop(
        lambda carry: carry[0] < last, body, (np.int32(0), zero, jnp.zeros((lanes, parameters), eps.dtype), hessian)
    )
    safe, gradient = with_aliases(plan, eps, value, gradient)
    if order < 2:
        return Sensitivity(gradient, None)
    _, a1 = contour.known_alias(plan, eps)
    hessian = hessian.at[:, -1, -1].add(a1) / safe[..., None] - gradient[:, :, None] * gradient[:, None, :]
    return Sensitivity(gradient, hessian)


def of_epsilon(by_log_delta: Sensitivity) -> Sensitivity:
    """The same for epsilon as a function of the parameters and log delta, which takes epsilon's place at the end.

    Implicit function theorem for F(p, eps) = log delta.
    """
    f = by_log_delta.gradient
    slope = f[:, -1:]
    gradient = jnp.concatenate([-f[:, :-1], jnp.ones_like(slope)], 1) / slope
    if by_log_delta.hessian is None:
        return Sensitivity(gradient, None)
    # with eps = e(x): F_xx + F_xe e_x' + e_x F_ex' + F_ee e_x e_x' + F_e e_xx = 0, where x's last entry enters F not at all
    h = by_log_delta.hessian
    f_xx = h.at[:, -1, :].set(0.0).at[:, :, -1].set(0.0)
    f_xe = h[:, :, -1].at[:, -1].set(0.0)
    total = (
        f_xx
        + f_xe[:, :, None] * gradient[:, None, :]
        + gradient[:, :, None] * f_xe[:, None, :]
        + h[:, -1, -1][:, None, None] * gradient[:, :, None] * gradient[:, None, :]
    )
    return Sensitivity(gradient, -total / slope[..., None])


def of_answer(by_log_delta: Sensitivity, estimate: jax.Array, unknown: str) -> Sensitivity:
    """The derivatives of an answer (lanes,): 0 where it is clipped at 0, or where no loss reaches."""
    for_epsilon = unknown == "epsilon"
    flat = (estimate <= 0) if for_epsilon else jnp.isneginf(estimate)
    still = lambda d: jnp.where(flat.reshape(flat.shape + (1,) * (d.ndim - 1)), 0.0, d)
    return jax.tree.map(still, of_epsilon(by_log_delta) if for_epsilon else by_log_delta)
