"""The engine's own double sum in 80-bit floats, to tell rounding from the other errors.

`trapezoid` evaluates the trapezoid sum with given tilt, steps and windows: what float64 arithmetic without rounding would
return. It shares no code with the accountant; parameters are exact float64 numbers. Needs a long double of 64 bits or
more (`usable`), as on x86.
"""

import numpy as np

LD = np.longdouble
usable = np.finfo(LD).eps < 2e-19
PI = LD(2) * np.arcsin(LD(1))
PARTS = {"remove": ((1, 1, 1),), "add": ((-1, 0, -1),), "replace": ((1, 1, 1), (-1, 0, -1))}


def _log_ratio(u, sigma, q):
    y = u / sigma - 1 / (2 * sigma * sigma)
    e = np.expm1(np.minimum(y, 800))
    v = q * e
    if q == 1:
        return y, v
    near = np.where(v > -0.5, np.log1p(np.maximum(v, -0.5)), np.log((1 - q) + q * np.exp(np.minimum(y, 800))))
    far = y + np.log(q + (1 - q) * np.exp(-np.maximum(y, 0)))
    return np.where(y > 40, far, near), v


def _expm1_minus(x):
    t = np.where(np.abs(x) < 0.7, x, 0)
    series = np.ones_like(t)
    for n in range(24, 2, -1):
        series = 1 + series * t / n
    return np.where(np.abs(x) < 0.7, t * t / 2 * series, np.expm1(np.minimum(x, 11000)) - x)


def _minus_log1p(v, l):
    t = np.where(np.abs(v) < 0.1, v, 0)
    w = t / (2 + t)
    w2, tail = w * w, np.zeros_like(t)
    for n in range(21, 1, -2):
        tail = tail * w2 + LD(1) / n
    return np.where(np.abs(v) < 0.1, w * (t - 2 * w2 * tail), v - l)


def component(direction, sigma, q, s, low, step, count):
    """(nodes' weight, loss, K): w = N(u) exp(x(u)) with sum 1, and K(s) by the nonnegative form."""
    sigma, q, s = LD(sigma), LD(q), LD(s)
    u = LD(low) + np.arange(int(count)).astype(LD) * LD(step)
    x = loss = np.zeros_like(u)
    linear = np.zeros_like(u)
    for sign, alpha, beta in PARTS[direction]:
        l, v = _log_ratio(sign * u, sigma, q)
        x, loss = x + (alpha + s * beta) * l, loss + beta * l
        linear = linear - (alpha + s * beta) * _minus_log1p(v, l)
    log_w = -u * u / 2 + x
    top = log_w.max()
    w = np.exp(log_w - top)
    plain = top + np.log(w.sum() * LD(step)) - np.log(2 * PI) / 2
    if plain > 5:
        k = plain
    else:
        excess = np.exp(-u * u / 2) * (_expm1_minus(x) + linear)
        k = np.log1p(excess.sum() * LD(step) / np.sqrt(2 * PI))
    return w / w.sum(), loss, k


def log_ratio_above(u, y, sigma, q):
    """log(1 + v) at u + iy, |y| < pi sigma, as (real, imaginary) parts."""
    turn = y / sigma
    exponent = u / sigma - 1 / (2 * sigma * sigma)
    if q == 1:
        return exponent, np.full_like(u, turn)
    capped = np.minimum(exponent, 5000)  # |v| is squared below
    half = np.sin(turn / 2)
    e = np.exp(capped)
    re, im = q * (np.expm1(capped) * np.cos(turn) - 2 * half * half), q * e * np.sin(turn)
    whole = (1 - q) + q * e * np.cos(turn)
    near = np.abs(re) < 0.5
    small = np.where(near, re, 0)
    modulus = np.where(
        near,
        np.log1p(2 * small + small * small + np.where(near, im * im, 0)),
        np.log(np.where(near, 1, whole * whole + im * im)),
    )
    return np.where(exponent > 5000, exponent + np.log(q), modulus / 2), np.arctan2(im, whole)


def above(direction, sigma, q, s, u, y):
    """(log of N(u + iy) exp(x), the loss) as pairs of real and imaginary part."""
    sigma, q, s, u, y = LD(sigma), LD(q), LD(s), np.asarray(u, LD), LD(y)
    weight = [(y * y - u * u) / 2 - np.log(2 * PI) / 2, -u * y]
    loss = [np.zeros_like(u), np.zeros_like(u)]
    for sign, alpha, beta in PARTS[direction]:
        l = log_ratio_above(sign * u, sign * y, sigma, q)
        for i in (0, 1):
            weight[i] = weight[i] + (alpha + s * beta) * l[i]
            loss[i] = loss[i] + beta * l[i]
    return weight, loss


def phi_minus_1(weight, loss, t, mean, log_norm):
    """The sum over nodes of exp(weight - log_norm) (exp(i t (loss - mean)) - 1) for every t, as (real, imaginary)."""
    modulus = np.exp(weight[0] - log_norm)
    w = modulus * np.cos(weight[1]), modulus * np.sin(weight[1])
    away, up = loss[0] - LD(mean), loss[1]
    re, im = np.zeros_like(t), np.zeros_like(t)
    for i in range(0, len(t), 256):
        some = t[i : i + 256, None]
        below = np.expm1(-some * up)
        sine, cosine = np.sin(some * away / 2), np.cos(some * away / 2)
        f = below - 2 * (1 + below) * sine * sine, 2 * (1 + below) * sine * cosine
        re[i : i + 256] = f[0] @ w[0] - f[1] @ w[1]
        im[i : i + 256] = f[0] @ w[1] + f[1] @ w[0]
    return re, im


def trapezoid(direction, variance, factors, s, h, nodes, eps, log_delta):
    """The trapezoid sum relative to exp(log_delta).

    factors: (sigma, q, count, low, (step, number) of the nodes on the real line, (height, step, number) of those above
    it, mean of the loss that phi is centred at). Also returns the terms' log modulus and phase, and K.
    """
    s, h, eps, variance = LD(s), LD(h), LD(eps), LD(variance)
    t = np.arange(int(nodes)).astype(LD) * h
    weight = -np.log(s * s + t * t) / 2 - np.log((1 + s) ** 2 + t * t) / 2 - variance * t * t / 2
    weight[0] -= np.log(LD(2))
    phase = -np.arctan2(t, s) - np.arctan2(t, 1 + s) + t * (variance * (s + LD(0.5)) - eps)
    k_total = variance * s * (1 + s) / 2
    for sigma, q, count, low, real, (height, step, points), mean in factors:
        _, _, k = component(direction, sigma, q, s, low, *real)
        k_total = k_total + LD(count) * k
        u = LD(low) + np.arange(int(points)).astype(LD) * LD(step)
        a, b = phi_minus_1(*above(direction, sigma, q, s, u, height), t, mean, k - np.log(LD(step)))
        square = a * a + b * b + 2 * a
        near = a > -0.2
        far = np.log((1 + a) ** 2 + b * b + LD(1e-4000))
        weight = weight + LD(count) * np.where(near, np.log1p(np.where(near, square, 0)), far) / 2
        phase = phase + LD(count) * (np.arctan2(b, 1 + a) + t * LD(mean))
    scale = k_total - s * eps - LD(log_delta) + np.log(h / PI)
    total = (np.exp(scale + weight) * np.cos(phase)).sum()
    return total, weight, phase, k_total
