"""Numbers as they are shown: short, and never on the wrong side."""

from __future__ import annotations

import decimal


def rounded(x: float, *, up: bool, digits: int = 10) -> str:
    """``x`` to at most ``digits`` significant digits, never on the wrong side.

    >>> rounded(0.1, up=True), rounded(0.1, up=False, digits=20), rounded(2 / 3, up=False, digits=3)
    ('0.1000000001', '0.10000000000000000555', '0.666')
    """
    side = decimal.ROUND_CEILING if up else decimal.ROUND_FLOOR
    exact = decimal.Context(prec=digits, rounding=side).create_decimal_from_float(x)
    return f"{exact:g}" if exact.is_finite() else str(x)


def shown(x: float, *, up: bool, digits: int = 10) -> str:
    """``x`` as it was written, if that is short, else rounded.

    >>> shown(0.1, up=True), shown(0.9684274158492278, up=True)
    ('0.1', '0.9684274159')
    """
    short = repr(float(x))
    return short if len(decimal.Decimal(short).as_tuple().digits) <= digits else rounded(x, up=up, digits=digits)
