"""Values of query strings and JSON bodies, checked."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC
from fractions import Fraction
from typing import Any

from vfsd.core.capture_time import parse_moment, to_ns
from vfsd.errors import UsageError
from vfsd.tiling import Rect

PAGE = 200
MAX_PAGE = 1000


def number_in(query: Mapping[str, str], key: str, default: int, low: int, high: int) -> int:
    """Return a whole number of a query.  Raises `UsageError` outside ``low <= n <= high``."""
    text = query.get(key)
    if text is None:
        return default
    if not text.isascii() or not text.removeprefix("-").isdigit() or len(text) > 19:
        raise UsageError(f"{key} must be a whole number, got {text!r}")
    if not low <= int(text) <= high:
        raise UsageError(f"{key} must be {low} to {high}, got {text}")
    return int(text)


def seconds_in(query: Mapping[str, str], key: str) -> Fraction | None:
    """Return a time in seconds, exactly.  Raises `UsageError`."""
    text = query.get(key)
    if text is None or not text:
        return None
    try:
        if len(text) > 40 or "e" in text.lower():
            raise ValueError(text)
        found = Fraction(text)
    except (ValueError, ZeroDivisionError):
        raise UsageError(f"{key} must be seconds, such as 12.5, got {text!r}") from None
    if found < 0 or found >= 1 << 40:
        raise UsageError(f"{key} must be 0 or more, got {text}")
    return found


def span_in(query: Mapping[str, str]) -> tuple[Fraction, Fraction | None] | None:
    """Return the seconds of ``from`` and ``to``; None without both."""
    start, end = seconds_in(query, "from"), seconds_in(query, "to")
    if start is None and end is None:
        return None
    start = start or Fraction(0)
    if end is not None and end <= start:
        raise UsageError(f"to must be after from, got {float(end):g}")
    return start, end


def moment_in(query: Mapping[str, str], key: str) -> int | None:
    """Return a time as Unix nanoseconds; without a zone it is in UTC.  Raises `UsageError`."""
    text = query.get(key)
    return to_ns(parse_moment(text, UTC)) if text else None


def region_in(query: Mapping[str, str], key: str = "region") -> Rect | None:
    """Return a region such as 80x60+100+90.  Raises `UsageError`."""
    text = query.get(key)
    return Rect.from_value(text) if text else None


def flag_in(query: Mapping[str, str], key: str) -> bool:
    """Return whether a key is 1 or true."""
    return query.get(key, "").lower() in ("1", "true", "yes")


def text_in(body: Mapping[str, Any], key: str, default: str | None = None) -> str:
    """Return text of a body.  Raises `UsageError` for another type, and where it is missing."""
    value = body.get(key, default)
    if not isinstance(value, str) or not value or "\0" in value:
        raise UsageError(f"{key} must be text, got {value!r}")
    return value


def words_in(body: Mapping[str, Any], key: str) -> list[str]:
    """Return a list of strings of a body; empty without the key.  Raises `UsageError`."""
    value = body.get(key, [])
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise UsageError(f"{key} must be a list of strings, got {value!r}")
    return value


def require_keys(body: Mapping[str, Any], known: Mapping[str, str]) -> None:
    """Raises `UsageError` for an unknown key of a body."""
    unknown = sorted(set(body) - set(known))
    if unknown:
        raise UsageError(
            f"{unknown[0]!r} is not a key here", hint=f"the keys are {', '.join(known)}"
        )
