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
from dpjax._complex import add, mul, ratio
from dpjax._plan import PI, Plan, Problem
from dpjax._special import exp, sincos


class Sensitivity(NamedTuple):
    """Derivatives of log delta. The parameters stand in the order sigma, q, count (components each), variance, epsilon.

    gradient: (lanes, parameters). hessian: (lanes, parameters, parameters), or None at order 1.
    """

    gradient: jax.Array
    hessian: jax.Array | None


def _cumulant_derivatives(problem: Problem, plan: Plan, t: jax.Array, moments: cumulant.Moments, order: int):
    """K_sigma, K_q and, at order 2, K_ss, K_sq, K_qq at the nodes; pairs of (lanes, components, nodes)."""
    pair = problem.pair
    parts = pair.sign.shape[-1]
    phi = (1 - moments.a, moments.b)
    mean = lambda c: ratio((moments.columns[0][..., c], moments.columns[1][..., c]), phi)
    coefficient = [
        (
            (pair.alpha[..., j] + plan.s[:, None] * pair.beta[..., j])[..., None],
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


def of_log_delta(problem: Problem, plan: Plan, eps: jax.Array, order: int, capacity: int, block: int) -> Sensitivity:
    """First and second derivatives of the log of the estimate at ``eps`` (lanes,), on the contour of ``plan``."""
    tilt = contour.fix_tilt(problem, plan, capacity)
    h = 2 * PI / plan.period
    lanes, components = problem.pair.sigma.shape
    parameters = 3 * components + 2
    scale = exp(contour.log_scale(plan, tilt, eps))
    count = problem.count[:, :, None]

    def body(carry):
        start, value, gradient, hessian = carry
        at = contour.block_nodes(plan.nodes, h, start, block)
        t = at.t
        moments = cumulant.moments(
            problem.pair, plan.s, at.rows, at.across, tilt.inner.window, tilt.inner.height, tilt.inner.step,
            tilt.inner.real, order=order,
        )  # fmt: skip
        log_phi, angle = contour.log_phi(moments)
        weight, phase = contour.integrand(problem, plan, tilt, t, at.log_half, log_phi, angle, eps)
        amplitude = scale[:, None] * exp(weight)
        sine, cosine = sincos(phase)
        term = (amplitude * cosine, amplitude * sine)
        first, second = _cumulant_derivatives(problem, plan, t, moments, order)
        k_z = (tilt.inner.real.value[..., None] + log_phi, angle + t[:, None, :] * tilt.inner.real.mean[..., None])
        s = plan.s[:, None]
        gauss = (0.5 * (s * s - t * t + s), 0.5 * (2 * s * t + t))
        rows = [
            jnp.concatenate(
                [count * first[0][i], count * first[1][i], k_z[i], gauss[i][:, None], edge[:, None]], axis=1
            )
            for i, edge in ((0, jnp.broadcast_to(-s, t.shape)), (1, -t))
        ]  # (lanes, parameters, nodes), real and imaginary
        value = value + jnp.sum(term[0], -1)
        gradient = gradient + jnp.einsum("lt,lpt->lp", term[0], rows[0]) - jnp.einsum("lt,lpt->lp", term[1], rows[1])
        if order > 1:
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
    a, a1 = contour.known_alias(plan, eps)
    value = (value - a + a1)[:, None]
    safe = jnp.where(value > 0, value, jnp.nan)
    gradient = gradient.at[:, -1].add(a1) / safe
    if order < 2:
        return Sensitivity(gradient, None)
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
