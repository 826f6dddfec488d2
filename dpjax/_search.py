"""Where a monotone function crosses zero, found in many lanes at once with few evaluations.

``step`` is one move of all lanes: it takes the function's values at the points that the last move asked for. The caller owns
the loop, on the host for numbers and in ``lax.while_loop`` for tracers. Points are compared by their logarithms, in
which losses are close to linear; ends are kept as they are, so that no digit is lost.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from dpjax._precision import namespace

_RAPID = 8  # evaluations, without a bracket, after which steps double instead of following the secant
_LONGEST = 1.5  # a step without a bracket, in widths of what was explored


class Goal(NamedTuple):
    """What is searched for, apart from numbers.

    Attributes:
      window: a point is accepted where the function is at most this far from 0.
      narrow: so is the end below zero, of ends whose ratio is at most 1 + narrow.
      integer: only whole points are asked for; accepted is the last one below zero.
    """

    window: float
    narrow: float
    integer: bool


class Search(NamedTuple):
    """The lanes' states, arrays of one shape.

    Attributes:
      x: where the function is to be evaluated next; the answer, once ``done``.
      low, high: the domain.
      start: the first point.
      left, f_left, right, f_right: ends of what was explored, or of a bracket once the signs differ.
      other, f_other: the point that was an end before.
      slope: df / d log x, where known; NaN elsewhere.
      slow: how often in a row the bracket did not halve.
      count: evaluations.
      done, failed: no more to do; failed: the function has one sign in the domain, or is NaN.
    """

    x: Any
    low: Any
    high: Any
    start: Any
    left: Any
    f_left: Any
    right: Any
    f_right: Any
    other: Any
    f_other: Any
    slope: Any
    slow: Any
    count: Any
    done: Any
    failed: Any


def begin(x: Any, low: Any, high: Any, slope: Any, failed: Any) -> Search:
    """The state before the first evaluation, at ``x``; where ``failed`` there is nothing to search."""
    nan = x * np.nan
    return Search(
        x=x, low=low, high=high, start=x, left=nan, f_left=nan, right=nan, f_right=nan, other=nan, f_other=nan, slope=slope,
        slow=0.0 * low, count=0.0 * low, done=failed, failed=failed,
    )  # fmt: skip


def step(s: Search, f: Any, goal: Goal) -> Search:
    """The state after the function was found to be ``f`` at ``s.x``."""
    xp = namespace(s.x, f)
    first, bracketed = xp.isnan(s.left), (s.f_left > 0) != (s.f_right > 0)
    above = f > 0
    to_left = bracketed & (above == (s.f_left > 0)) | ~bracketed & (s.x < s.left)
    crossed = ~first & ~bracketed & (above != (s.f_left > 0))
    pick = lambda replaces, kept, old: xp.where(first | replaces, kept, old)
    # a point beyond an end that has the other sign: that end becomes the bracket's other one
    left, f_left = pick(to_left, s.x, s.left), pick(to_left, f, s.f_left)
    right, f_right = pick(~to_left, s.x, s.right), pick(~to_left, f, s.f_right)
    other, f_other = xp.where(to_left, s.left, s.right), xp.where(to_left, s.f_left, s.f_right)
    swap = crossed & to_left
    other, f_other = xp.where(swap, s.right, other), xp.where(swap, s.f_right, f_other)
    right, f_right = xp.where(swap, s.left, right), xp.where(swap, s.f_left, f_right)
    swap = crossed & ~to_left
    other, f_other = xp.where(swap, s.left, other), xp.where(swap, s.f_left, f_other)
    left, f_left = xp.where(swap, s.right, left), xp.where(swap, s.f_right, f_left)
    bracketed = bracketed | crossed

    width = xp.log(right / left)
    halved = width <= 0.5 * xp.log(s.right / s.left)
    slow = xp.where(s.slow >= 3, 2.0, xp.where(~bracketed | halved, 0.0, s.slow + 1))  # then every other time
    moved = s._replace(
        left=left,
        f_left=f_left,
        right=right,
        f_right=f_right,
        other=other,
        f_other=f_other,
        slow=slow,
        count=s.count + 1,
    )
    inside = _inside(moved, slow >= 3, goal, xp)
    outside, blocked = _outside(moved, goal, xp)
    if goal.integer:
        ended = bracketed & ((inside <= left) | (inside >= right))
        hit = ended & False
    else:
        ended = bracketed & (width <= goal.narrow)
        hit = abs(f) <= goal.window
    settled = xp.where(f_left > 0, right, left)
    failed = xp.isnan(f) | (~bracketed & blocked & ~hit)
    answer = xp.where(hit, s.x, xp.where(ended, settled, xp.where(bracketed, inside, outside)))
    # that of the parabola through three points, else a chord's
    end, f_end = xp.where(to_left, right, left), xp.where(to_left, f_right, f_left)
    far, near = (_ratio(f - b, xp.log(s.x / a), xp) for a, b in ((end, f_end), (other, f_other)))
    bent = near + xp.log(s.x / other) * _ratio(near - far, xp.log(other / end), xp)
    slope = xp.where(xp.isnan(bent), xp.where(xp.isnan(near), far, near), bent)
    slope = xp.where(first, s.slope, slope)
    moved = moved._replace(
        x=xp.where(failed, s.x, answer), slope=slope, done=s.done | hit | ended | failed, failed=s.failed | failed
    )
    # what is done stays
    return type(s)(*(xp.where(s.done, a, b) for a, b in zip(s, moved, strict=True)))


def _ratio(a: Any, b: Any, xp: Any) -> Any:
    """a / b, NaN unless both are finite and b is not 0."""
    ok = xp.isfinite(a) & xp.isfinite(b) & (b != 0)
    return xp.where(ok, a / xp.where(ok, b, 1.0), xp.nan)


def _inside(s: Search, bisect: Any, goal: Goal, xp: Any) -> Any:
    """A point between the ends of a bracket: by inverse quadratic interpolation, else by a chord, else the middle."""
    length = xp.log(s.right / s.left)
    third = xp.log(s.other / s.left)
    a, b, c = s.f_left, s.f_right, s.f_other
    # log x as a quadratic of f through (a, 0), (b, length), (c, third), at 0
    quadratic = length * _ratio(a * c, (b - a) * (b - c), xp) + third * _ratio(a * b, (c - a) * (c - b), xp)
    chord = length * _ratio(a, a - b, xp)
    within = lambda t: (t > 0) & (t < length)
    t = xp.where(within(quadratic), quadratic, xp.where(within(chord), chord, 0.5 * length))
    t = xp.where(bisect, 0.5 * length, t)
    if goal.integer:
        low, high = s.left + 1, s.right - 1  # none if high < low, or if a float cannot hold them
        x = xp.round(s.left * xp.exp(t))
        return xp.where(low > high, s.left, xp.clip(x, low, xp.maximum(low, high)))
    t = xp.clip(t, 0.25 * goal.narrow, xp.maximum(length - 0.25 * goal.narrow, 0.25 * goal.narrow))
    # from the nearer end, which has the digits
    return xp.where(t < 0.5 * length, s.left * xp.exp(t), s.right * xp.exp(t - length))


def _outside(s: Search, goal: Goal, xp: Any) -> tuple[Any, Any]:
    """(a point beyond what was explored, whether there is none), while all values have one sign."""
    first = s.left == s.right
    above = s.f_left > 0
    rises = xp.where(first, s.slope > 0, s.f_right > s.f_left)
    falls = xp.where(first, s.slope < 0, s.f_right < s.f_left)
    right, left = above & falls | ~above & rises, above & rises | ~above & falls
    unknown = ~right & ~left
    at_low, at_high = s.left <= s.low, s.right >= s.high
    balanced = (s.right / s.start) <= (s.start / s.left)
    right = right | unknown & ~at_high & (balanced | at_low)
    blocked = xp.where(unknown, at_low & at_high, xp.where(right, at_high, at_low))
    end, f_end = xp.where(right, s.right, s.left), xp.where(right, s.f_right, s.f_left)
    last = _ratio(f_end - s.f_other, xp.log(end / s.other), xp)
    whole = _ratio(s.f_right - s.f_left, xp.log(s.right / s.left), xp)
    slope = xp.where(first, s.slope, xp.where(xp.isnan(last), whole, last))
    need = abs(_ratio(f_end, slope, xp))
    need = need * xp.where(abs(f_end) > 1e-3, 1.1, 1.0)  # a little too far, for a bracket
    width = xp.where(first, xp.where(xp.isnan(s.slope), np.log(2.0) / 2, 1.0), xp.log(s.right / s.left))
    need = xp.where(xp.isnan(need) | (s.count >= _RAPID), 2 * width, need)
    need = xp.minimum(need, _LONGEST * xp.maximum(width, np.log(2.0) / 2))
    x = end * xp.exp(xp.where(right, need, -need))
    if goal.integer:
        x = xp.where(right, xp.maximum(xp.round(x), end + 1), xp.minimum(xp.round(x), end - 1))
    return xp.clip(x, s.low, s.high), blocked
