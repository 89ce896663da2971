"""What callers give, numbers and paths, as what is worked with.

numpy's integers keep their size when they are computed with, and overflow; so each is made an int
once, where it comes in.
"""

from __future__ import annotations

import difflib
import math
import operator
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from reprlib import repr as shown
from typing import Any, SupportsFloat, SupportsIndex, TypeVar

from vfsd.errors import NotFoundError, UsageError

_BITS = 64
_MOST = (1 << _BITS - 1) - 1

MOST_LEVELS = 64
"""Of what is kept as JSON: databases read no more than some hundreds, and fail with all that is
asked of a table in which one value has more."""

T = TypeVar("T")


def whole_number(value: SupportsIndex, what: str) -> int:
    """`value` as an int.  Raises `UsageError` for floats, truth values and whatever is no number.

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


def how_many(value: SupportsIndex, what: str) -> int:
    """A whole number from 0 on, as large as a database takes one.  Raises `UsageError`."""
    number = whole_number(value, what)
    if number < 0:
        raise UsageError(f"{what} must be 0 or more, got {number}", hint="give 0 or more")
    return min(number, _MOST)


def within_64_bits(number: int, what: str = "", *, hint: str) -> int:
    """A whole number that a database takes as it is.  Raises `UsageError` for larger ones.

    `what` stands before the number, as in "{what}12 is beyond 64 bits".
    """
    if not -_MOST - 1 <= number <= _MOST:
        raise UsageError(f"{what}{shown(number)} is beyond {_BITS} bits", hint=hint)
    return number


def not_one_of(what: str, value: object, known: Iterable[str]) -> UsageError:
    """The error for a value outside a closed set: it lists the set, and the closest name."""
    names = list(known)
    near = difflib.get_close_matches(value, names, 1, 0.5) if isinstance(value, str) else []
    return UsageError(
        f"{what} must be one of {', '.join(names)}, got {shown(value)}",
        hint=f"did you mean {near[0]}?" if near else f"give one of these {len(names)}",
    )


def is_storable(text: str) -> bool:
    """Whether every database can keep it: no half of a character is in it, and no NUL."""
    return "\0" not in text and not any("\ud800" <= letter <= "\udfff" for letter in text)


def require_storable_text(text: str, what: str) -> None:
    """Raises `UsageError` unless it `is_storable`; `what` is what it should be, as in "a tag"."""
    if not is_storable(text):
        raise UsageError(
            f"{shown(text)} cannot be {what}", hint="it has a NUL, or half of a character, in it"
        )


def storable(text: str) -> str:
    """What a database keeps of a text that is only shown: what it cannot store as "\\xff", say."""
    if is_storable(text):
        return text
    return text.encode(errors="backslashreplace").decode().replace("\0", "\\x00")


def is_too_deep(value: object) -> bool:
    """Whether more than `MOST_LEVELS` lists and dicts are in each other."""
    waiting: list[tuple[object, int]] = [(value, 0)]
    while waiting:  # not by recursion: it may be deeper than Python's stack
        one, level = waiting.pop()
        if not isinstance(one, (Mapping, list, tuple)):
            continue
        if level == MOST_LEVELS:
            return True
        inner = one.values() if isinstance(one, Mapping) else one
        waiting += [(each, level + 1) for each in inner]
    return False


def plain(values: Any) -> Any:
    """A dict with its numbers and truth values of numpy as Python's, as JSON takes them.

    What is no dict is as it was.
    """
    if not isinstance(values, Mapping):
        return values
    import numpy as np  # not before: most commands do without

    return {
        key: value.item() if isinstance(value, (np.number, np.bool_)) else value
        for key, value in values.items()
    }


def yes_or_no(value: object, what: str) -> bool:
    """A truth value, numpy's too.  Raises `UsageError` for all else, arrays and words above all.

    `what` is the name of the argument.
    """
    if isinstance(value, bool):
        return value
    kind = getattr(getattr(value, "dtype", None), "kind", None)
    if kind == "b" and getattr(value, "shape", None) == ():
        return bool(value)
    raise UsageError(f"{what} must be True or False, got {shown(value)}", hint="give True or False")


def given_or_usual(value: T | None, kind: type[T]) -> T:
    """What was given of that kind, or the usual one for None.  Raises `UsageError`."""
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
    """As many ints as there are `names` for.  Raises `UsageError`, with words for a wrong count."""
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
    """Whether it is a single integer, also as an array without axes; truth values are not."""
    if isinstance(value, bool):
        return False
    try:
        operator.index(value)  # type: ignore[arg-type]  # asked of anything
    except TypeError:
        return False
    return True


def width_and_height(size: Iterable[SupportsIndex]) -> tuple[int, int]:
    """A size in pixels as two ints, whatever their value.  Raises `UsageError`."""
    width, height = whole_numbers(size, ("width", "height"), "size")
    return width, height


def pixels_around(padding: SupportsIndex) -> int:
    """What is added around a box.  Raises `UsageError` for less than nothing, too."""
    pixels = whole_number(padding, "padding")
    if pixels < 0:
        raise UsageError(f"padding must be 0 or more, got {pixels}", hint="give 0 or more")
    return pixels


def local_path(value: str | os.PathLike[str], what: str) -> Path:
    """The name of a file or directory of this machine.  Raises `UsageError` for what names none.

    `what` is what it should name, as in "None does not name {what}".
    """
    try:
        name = os.fspath(value)
    except TypeError:
        name = ""
    if not isinstance(name, str) or not name or "\0" in name:
        raise UsageError(f"{shown(value)} does not name {what}", hint="give a path, as text")
    return Path(name)


def no_such_file(path: str | os.PathLike[str]) -> NotFoundError:
    """What is raised where somebody names a file of this machine that is not there."""
    return NotFoundError(
        f"file not found: {path}",
        hint="see how it is spelled; a path without a slash at its beginning counts from the "
        "working directory",
    )


def decibels(value: SupportsFloat) -> float:
    """A PSNR in dB: 0 or more, infinite for no difference.  Raises `UsageError`."""
    try:
        found = math.nan if isinstance(value, str) else float(value)
    except (TypeError, ValueError, OverflowError):
        found = math.nan
    if not found >= 0:  # nor if it is not a number
        raise UsageError(f"psnr must be 0 dB or more, got {shown(value)}", hint="for example 42")
    return found
