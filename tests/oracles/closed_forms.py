"""Profiles that need no contour, in mpmath: they check the stored tables and the contour program alike.

Arguments are mpmath numbers; eps may be any real number. Directions are those of poisson_gaussian.py.
"""

import mpmath as mp


def gaussian_delta(mu, eps):
    """The profile of a Gaussian with signal to noise mu."""
    return _phi(mu / 2 - eps / mu) - mp.exp(eps) * _phi(-mu / 2 - eps / mu)


def _phi(x):
    return mp.erfc(-x / mp.sqrt(2)) / 2


def single_step_delta(direction: str, sigma, q, eps):
    """One step, any real eps: the loss crosses eps once, at x (in units where the record moves the mean by 1)."""
    a = mp.exp(eps)
    if direction == "remove":
        if a <= 1 - q:
            return 1 - a
        x = mp.mpf(1) / 2 + sigma**2 * mp.log((a - 1 + q) / q)
        return (1 - q - a) * _phi(-x / sigma) + q * _phi((1 - x) / sigma)
    if direction == "add":
        if a * (1 - q) >= 1:
            return mp.mpf(0)
        x = mp.mpf(1) / 2 + sigma**2 * mp.log((1 - a * (1 - q)) / (a * q))
        return (1 - a * (1 - q)) * _phi(x / sigma) - a * q * _phi((x - 1) / sigma)
    c = q * mp.exp(-1 / (2 * sigma**2))  # replace: 1-q + c X = a (1-q + c / X), X = exp(x / sigma^2)
    b = (1 - q) * (a - 1)
    root = mp.sqrt(b * b + 4 * a * c * c)
    x = sigma**2 * mp.log((b + root) / (2 * c) if b >= 0 else 2 * a * c / (root - b))
    p_side = (1 - q) * _phi(-x / sigma) + q * _phi((1 - x) / sigma)
    return p_side - a * ((1 - q) * _phi(-x / sigma) + q * _phi((-1 - x) / sigma))


def two_step_delta(direction: str, first, second, eps):
    """Two steps (sigma, q): the second's closed form averaged over the first's loss, by Gauss-Legendre pieces."""
    (sigma, q), (sigma2, q2) = first, second

    def loss(x):
        plus = mp.log(1 - q + q * mp.exp((2 * x - 1) / (2 * sigma**2)))
        if direction == "replace":
            return plus - mp.log(1 - q + q * mp.exp((-2 * x - 1) / (2 * sigma**2)))
        return plus if direction == "remove" else -plus

    def density(x):
        null = mp.exp(-((x / sigma) ** 2) / 2) / (sigma * mp.sqrt(2 * mp.pi))
        return null if direction == "add" else null * (1 - q + q * mp.exp((2 * x - 1) / (2 * sigma**2)))

    ends = [sigma * j for j in range(-16, 17)] + ([1 + sigma * j for j in range(1, 17)] if direction != "add" else [])
    kink = mp.log(1 - q2) if direction == "remove" else -mp.log(1 - q2) if direction == "add" else None
    if kink is not None:  # where the second step's profile has its corner
        e = mp.exp(eps - kink) if direction == "remove" else mp.exp(kink - eps)
        if e > 1 - q:
            ends.append(mp.mpf(1) / 2 + sigma**2 * mp.log((e - 1 + q) / q))
    ends = sorted(x for x in set(ends))
    return mp.quad(lambda x: density(x) * single_step_delta(direction, sigma2, q2, eps - loss(x)), ends, maxdegree=7)
