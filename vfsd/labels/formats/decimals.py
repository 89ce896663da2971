"""Numbers of label files: decimal, so that a sum is as exact as the digits that were written."""

from __future__ import annotations

import re
from decimal import Context, Decimal, InvalidOperation

EXACT = Context(prec=400)
"""Digits enough for the sum of any two coordinates."""

MOST = (1 << 63) - 1
"""Of whole numbers: as much as a catalog keeps."""

_MOST_DIGITS = 1000
_LARGEST = 400_000
"""As a power of ten.  Contexts of `decimal` end at 999,999: sums and products stay within."""
_WHOLE = re.compile(r"([+-]?[0-9]+)(?:\.0*)?")


def decimal(text: str) -> Decimal:
    """Raises `ValueError` for what is no finite number, or one beyond all bounds."""
    text = text.strip()
    if len(text) > _MOST_DIGITS:
        raise ValueError(f"a number of {len(text)} characters")
    try:
        value = Decimal(text)
    except InvalidOperation:
        raise ValueError(f"{text!r} is not a number") from None
    if not value.is_finite() or value.adjusted() > _LARGEST:
        raise ValueError(f"{text!r} is not a finite number")
    return value


def whole(text: str) -> int:
    """Raises `ValueError` for what is no whole number, or beyond 64 bits; ``3.0`` is one."""
    text = text.strip()
    if len(text) > _MOST_DIGITS:
        raise ValueError(f"a number of {len(text)} characters")
    match = _WHOLE.fullmatch(text)
    if match is None:
        raise ValueError(f"{text[:40]!r} is not a whole number")
    value = int(match[1])
    if abs(value) > MOST:
        raise ValueError(f"{text[:40]!r} is beyond 64 bits")
    return value


def of_float(value: float) -> Decimal:
    """The decimal number that a float prints as."""
    return Decimal(repr(value))


def added(one: Decimal, other: Decimal | int) -> Decimal:
    return EXACT.add(one, Decimal(other))


def less(one: Decimal, other: Decimal | int) -> Decimal:
    return EXACT.subtract(one, Decimal(other))


def written(value: Decimal | float) -> str:
    """In as few digits as give the same value back; 12 and not 12.0."""
    number = value if isinstance(value, Decimal) else of_float(value)
    if abs(number) < 10**15 and number == number.to_integral_value():
        return str(int(number))
    return str(number)
