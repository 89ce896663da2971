"""The language of events: relations between objects, and how long they hold.

    near(a, b)                                      one step
    near(a, b) for 2s                               for at least two seconds
    near(a, b) & not left_of(a, b) for 2s           all terms at the same time
    near(a, b) for 2s; far(a, b, 3)                 one step after another
    inside(a, 400x300+600+300) for 50f              a region; 50 frames of the video

A letter or word in a term is a variable.  The caller says which labels each variable has.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from vfsd.errors import UsageError
from vfsd.tiling import Rect

Argument = float | Rect | str
"""A number, a region, or the name of a region."""

_HINT = 'for example "near(a, b) for 2s; far(a, b, 3)"'
_TERM = re.compile(r"\s*(?:(not)\s+)?([A-Za-z_]\w*)\s*\(([^()]*)\)\s*")
_LENGTH = re.compile(r"\s*for\s+(\d+(?:\.\d+)?)\s*(s|f)\s*")
_WORD = re.compile(r"[A-Za-z_]\w*")
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_MOST_STEPS = 16
_MOST_TERMS = 16


@dataclass(frozen=True, slots=True)
class EventTerm:
    """A condition on the boxes of one frame."""

    name: str
    words: tuple[str, ...]  #: variables, and perhaps the name of a region last
    arguments: tuple[Argument, ...] = ()
    negated: bool = False


@dataclass(frozen=True, slots=True)
class EventStep:
    """Terms that hold on the same frames, for some time."""

    terms: tuple[EventTerm, ...]
    seconds: Fraction | None = None  #: the least time in which all terms hold
    frames: int | None = None  #: the same as a number of frames of the video


def parse_event(text: str) -> tuple[EventStep, ...]:
    """Parse an event into its steps.  Raises `UsageError` for a syntax error."""
    if not isinstance(text, str):
        raise UsageError(f"an event must be text, got {text!r}", hint=_HINT)
    parts = text.split(";")
    if len(parts) > _MOST_STEPS:
        raise UsageError(f"an event must have at most {_MOST_STEPS} steps, got {len(parts)}")
    return tuple(_step(part, text) for part in parts)


def _step(part: str, text: str) -> EventStep:
    terms: list[EventTerm] = []
    at = 0
    while True:
        match = _TERM.match(part, at)
        if match is None:
            where = part[at:].strip() or "the end"
            raise UsageError(f"{text!r}: a term was expected before {where!r}", hint=_HINT)
        terms.append(_term(match[1], match[2], match[3], text))
        at = match.end()
        if part[at : at + 1] != "&":
            break
        at += 1
    if len(terms) > _MOST_TERMS:
        raise UsageError(f"a step must have at most {_MOST_TERMS} terms, got {len(terms)}")
    length = _LENGTH.match(part, at)
    at = at if length is None else length.end()
    if part[at:].strip():
        raise UsageError(
            f"{text!r}: &, ; or a length such as 'for 2s' was expected before "
            f"{part[at:].strip()!r}",
            hint=_HINT,
        )
    if length is None:
        return EventStep(tuple(terms))
    number, unit = Fraction(length[1]), length[2]
    if number <= 0:
        raise UsageError(f"{text!r}: a length must be positive, got {length[1]}{unit}", hint=_HINT)
    if unit == "s":
        return EventStep(tuple(terms), seconds=number)
    if number.denominator != 1:
        raise UsageError(f"{text!r}: a number of frames must be whole, got {length[1]}", hint=_HINT)
    return EventStep(tuple(terms), frames=int(number))


def _term(negation: str | None, name: str, inner: str, text: str) -> EventTerm:
    words: list[str] = []
    arguments: list[Argument] = []
    for part in (one.strip() for one in inner.split(",")):
        if _WORD.fullmatch(part) and not arguments:
            words.append(part)
        elif _NUMBER.fullmatch(part):
            arguments.append(float(part))
        elif "x" in part:
            arguments.append(Rect.parse(part))
        else:
            raise UsageError(
                f"{text!r}: {name} takes variables, numbers and regions, got {part!r}", hint=_HINT
            )
    return EventTerm(name, tuple(words), tuple(arguments), negation is not None)
