"""Checks and normalizes arguments of callers.

numpy integers keep their width in arithmetic and overflow, so they become ints here.
"""

from __future__ import annotations

import difflib
import math
import operator
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from reprlib import repr as shown
from typing import Any, SupportsFloat, SupportsIndex, TypeVar

from vfsd.errors import NotFoundError, UsageError

_BITS = 64
_MAX_INTEGER = (1 << _BITS - 1) - 1

MAX_JSON_DEPTH = 64
"""Maximum nesting of stored JSON.  Databases parse a few hundred levels; one deeper value makes
every query on its table fail."""

_CLOSE = 0.5
"""Similarity of a misspelled name, from 0 to 1, at which it is worth a hint."""

_URL = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)

T = TypeVar("T")


def whole_number(value: SupportsIndex, what: str) -> int:
    """Return `value` as an int.  Raises `UsageError` for floats, booleans and other types.

    `what` is the name of the argument, as in "{what} must be a whole number, got 2.5".
    """
    if not isinstance(value, bool):
        try:
            return operator.index(value)
        except TypeError:
            pass
    raise UsageError(
        f"{what} must be a whole number, got {shown(value)}", hint="give a whole number"
    )


def non_negative(value: SupportsIndex, what: str) -> int:
    """Return an int of at least 0, capped at 64 bits.  Raises `UsageError`."""
    number = whole_number(value, what)
    if number < 0:
        raise UsageError(f"{what} must be 0 or more, got {number}", hint="give 0 or more")
    return min(number, _MAX_INTEGER)


def within_64_bits(number: int, what: str = "", *, hint: str) -> int:
    """Return `number` if a database column can hold it.  Raises `UsageError` otherwise.

    `what` precedes the number, as in "{what}12 is beyond 64 bits".
    """
    if not -_MAX_INTEGER - 1 <= number <= _MAX_INTEGER:
        raise UsageError(f"{what}{shown(number)} is beyond {_BITS} bits", hint=hint)
    return number


def not_one_of(what: str, value: object, known: Iterable[str]) -> UsageError:
    """Return the error for a value outside a closed set, with the set and the closest name."""
    names = list(known)
    near: list[str] = []
    if isinstance(value, str) and names:
        # Of names that are equally close, the first one: rgb24 for rgb.
        close = [difflib.SequenceMatcher(None, name, value).ratio() for name in names]
        near = [names[close.index(max(close))]] if max(close) >= _CLOSE else []
    return UsageError(
        f"{what} must be one of {', '.join(names)}, got {shown(value)}",
        hint=f"did you mean {near[0]}?" if near else f"give one of these {len(names)} names",
    )


def is_storable(text: str) -> bool:
    """Return whether every database can store the text: it has no lone surrogate and no NUL."""
    return "\0" not in text and not any("\ud800" <= letter <= "\udfff" for letter in text)


def require_storable_text(text: str, what: str) -> None:
    """Raises `UsageError` unless `is_storable`; `what` is a noun such as "a tag"."""
    if not is_storable(text):
        raise UsageError(
            f"{what} must not contain NUL or a lone surrogate, got {shown(text)}",
            hint="remove these characters",
        )


def storable(text: str) -> str:
    r"""Return a storable form for display, with escapes such as "\\xff" for other characters."""
    if is_storable(text):
        return text
    return text.encode(errors="backslashreplace").decode().replace("\0", "\\x00")


def is_too_deep(value: object) -> bool:
    """Return whether lists and dicts are nested more than `MAX_JSON_DEPTH` levels deep."""
    waiting: list[tuple[object, int]] = [(value, 0)]
    while waiting:  # not recursive: it may be deeper than Python's stack
        one, level = waiting.pop()
        if not isinstance(one, (Mapping, list, tuple)):
            continue
        if level == MAX_JSON_DEPTH:
            return True
        inner = one.values() if isinstance(one, Mapping) else one
        waiting += [(each, level + 1) for each in inner]
    return False


def with_python_scalars(values: Any) -> Any:
    """Return a dict with numpy scalars converted to Python's, for JSON; other values unchanged."""
    if not isinstance(values, Mapping):
        return values
    import numpy as np  # imported late: most commands do not need it

    return {
        key: value.item() if isinstance(value, (np.number, np.bool_)) else value
        for key, value in values.items()
    }


def is_pattern(name: object) -> bool:
    """Return whether a name may be a pattern of `Catalog.find`."""
    return isinstance(name, str) and bool(set("*?[") & set(name))


def boolean(value: object, what: str) -> bool:
    """Return a bool, also for numpy's.  Raises `UsageError` for all other values.

    `what` is the name of the argument.
    """
    if isinstance(value, bool):
        return value
    kind = getattr(getattr(value, "dtype", None), "kind", None)
    if kind == "b" and getattr(value, "shape", None) == ():
        return bool(value)
    raise UsageError(f"{what} must be True or False, got {shown(value)}", hint="give True or False")


def value_or_default(value: T | None, kind: type[T]) -> T:
    """Return `value`, or ``kind()`` for None.  Raises `UsageError` for other types."""
    if value is None:
        return kind()
    if not isinstance(value, kind):
        raise UsageError(
            f"value must be a vfsd.{kind.__name__} or None, got {shown(value)}",
            hint=f"give a vfsd.{kind.__name__}, or None",
        )
    return value


def whole_numbers(
    values: Iterable[SupportsIndex], names: tuple[str, ...], what: str
) -> tuple[int, ...]:
    """Return one int for each of `names`.  Raises `UsageError`, also for another length."""
    try:
        given = tuple(values)
    except TypeError:
        given = ()
    if len(given) != len(names):
        raise UsageError(
            f"{what} must be ({', '.join(names)}), got {shown(values)}",
            hint=f"give ({', '.join(names)})",
        )
    return tuple(
        whole_number(value, f"{name} of the {what}")
        for value, name in zip(given, names, strict=True)
    )


def is_one_integer(value: object) -> bool:
    """Return whether it is one integer, also as a 0-dimensional array; booleans are not."""
    if isinstance(value, bool):
        return False
    try:
        operator.index(value)  # type: ignore[arg-type]  # asked of anything
    except TypeError:
        return False
    return True


def width_and_height(size: Iterable[SupportsIndex]) -> tuple[int, int]:
    """Return a size in pixels as two ints, without a range check.  Raises `UsageError`."""
    width, height = whole_numbers(size, ("width", "height"), "size")
    return width, height


def padding_pixels(padding: SupportsIndex) -> int:
    """Return a number of pixels of at least 0.  Raises `UsageError`."""
    pixels = whole_number(padding, "padding")
    if pixels < 0:
        raise UsageError(f"padding must be 0 or more, got {pixels}", hint="give 0 or more")
    return pixels


def local_path(value: str | os.PathLike[str], what: str) -> Path:
    """Return the path of a local file or directory.  Raises `UsageError` for an invalid path.

    `what` is what the path names, for example "a file".
    """
    try:
        name = os.fspath(value)
    except TypeError:
        name = ""
    if not isinstance(name, str) or not name or "\0" in name:
        raise UsageError(
            f"{what} must be given as a path, got {shown(value)}", hint="give a str or a Path"
        )
    return Path(name)


def is_url(value: object) -> bool:
    """Return whether a store is given by the URL of its catalog, not as a path."""
    return isinstance(value, str) and _URL.match(value) is not None


def no_such_file(path: str | os.PathLike[str]) -> NotFoundError:
    """Return the error for a local file that does not exist."""
    return NotFoundError(
        f"file not found: {path}",
        hint="check the spelling; a path without a leading slash is relative to the working "
        "directory",
    )


def decibels(value: SupportsFloat) -> float:
    """Return a PSNR in dB: 0 or more, or infinity for no difference.  Raises `UsageError`."""
    try:
        found = math.nan if isinstance(value, str) else float(value)
    except (TypeError, ValueError, OverflowError):
        found = math.nan
    if not found >= 0:  # also false for NaN
        raise UsageError(f"psnr must be 0 dB or more, got {shown(value)}", hint="for example 42")
    return found


def seconds_or_more(value: SupportsFloat, what: str) -> float:
    """Return a number of seconds, 0 or more and finite.  Raises `UsageError`."""
    try:
        found = math.nan if isinstance(value, str | bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        found = math.nan
    if not 0 <= found < math.inf:
        raise UsageError(
            f"{what} must be 0 or more seconds, got {shown(value)}", hint="for example 0.5"
        )
    return found
