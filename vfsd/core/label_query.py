"""The query language for labels, in Python and on the command line.

    car                 boxes labelled car
    car|truck           either label; car,truck is the same
    car|truck & red     either label, and the same object is also labelled red
    "sign|left"         quotes for a label that contains | or & or , or "

``|`` and the comma bind tighter than ``&``: an expression is an AND of ORs.  Python callers may
also pass lists of labels, which are not parsed: ``["car", "truck"]`` for an OR, and ``[["car",
"truck"], ["red"]]`` for an AND of ORs.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from vfsd.errors import UsageError

Labels = str | Sequence[str] | Sequence[Sequence[str]]
Clauses = tuple[frozenset[str], ...]
"""An AND of ORs: every clause must hold; a clause holds when one of its labels does."""

_TOKEN = re.compile(r'\s*(?:([|&,])|"((?:[^"]|"")*)"|([^|&,"]+))')
_MOST_LISTED = 20
_HINT = "for example: car|truck & red"


def clauses_of(labels: Labels | None) -> Clauses:
    """Return the clauses of a query; none for None.  A string is parsed.

    Raises `UsageError` for a syntax error, an empty list, or a mixture of words and lists.
    """
    if labels is None:
        return ()
    if isinstance(labels, str):
        return tuple(map(frozenset, parse_labels(labels)))
    try:
        parts: list[Any] = list(labels)
    except TypeError:  # not iterable, or a 0-dimensional array
        parts = [labels]
    if all(isinstance(part, str) for part in parts):
        parts = [parts]
    made = []
    for part in parts:
        if (
            not isinstance(part, (list, tuple, set, frozenset))
            or not part
            or not all(isinstance(word, str) for word in part)
        ):
            raise UsageError(
                f"labels must be an expression or a list of labels, got {labels!r}",
                hint='for example "car|truck & red", ["car", "truck"] or [["car"], ["red"]]',
            )
        made.append(frozenset(part))
    return tuple(made)


def parse_labels(text: str) -> list[list[str]]:
    """Parse an expression into a list of clauses, in the order of the text.

    Raises `UsageError` with the position of a syntax error.
    """
    clauses: list[list[str]] = [[]]
    at, wants_word = 0, True
    while text[at:].strip():
        match = _TOKEN.match(text, at)
        if match is None:
            raise UsageError(f"{text!r}: a quote is not closed", hint=_HINT)
        operator, quoted, bare = match.groups()
        if (operator is None) != wants_word:
            where = text[at:].strip()
            raise UsageError(
                f"{text!r}: a label was expected before {where!r}"
                if wants_word
                else f"{text!r}: | or & was expected before {where!r}",
                hint=_HINT,
            )
        if operator is None:
            word = bare.strip() if quoted is None else quoted.replace('""', '"')
            if not word:
                raise UsageError(f"{text!r}: a label is empty", hint=_HINT)
            clauses[-1].append(word)
        elif operator == "&":
            clauses.append([])
        wants_word = not wants_word
        at = match.end()
    if wants_word:
        raise UsageError(f"{text!r} ends where a label was expected", hint=_HINT)
    return clauses


class UnknownLabels(NamedTuple):
    """The labels of an expression that no box in the store has ever had.  False if there are none.

    `str` gives a message.
    """

    unknown: tuple[str, ...] = ()  #: sorted
    known: tuple[str, ...] = ()  #: all labels of the store, sorted; empty if none is unknown

    def __bool__(self) -> bool:
        return bool(self.unknown)

    def __str__(self) -> str:
        words = " or ".join(map(repr, self.unknown))
        if not self.known:
            return f"the store has no label {words}: it has no labels yet"
        listed = ", ".join(map(_quoted, self.known[:_MOST_LISTED]))
        left = len(self.known) - _MOST_LISTED
        more = f" and {left} more" if left > 0 else ""
        return f"the store has no label {words}; it has {listed}{more}"


def format_labels(clauses: Sequence[Sequence[str]]) -> str:
    """Return an expression that `parse_labels` parses into `clauses`."""
    return " & ".join("|".join(map(_quoted, clause)) for clause in clauses)


def _quoted(word: str) -> str:
    if set('|&,"') & set(word) or word != word.strip():
        return '"' + word.replace('"', '""') + '"'
    return word
