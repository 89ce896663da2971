"""The query language for labels, in Python, on the command line and in the web API.

    car                   boxes labelled car
    car|truck             either label; car,truck is the same
    car|truck & red       either label, and the same object is also labelled red
    car & not red|blue    no box of the same object is labelled red or blue
    car & lane=3          boxes with this attribute: a number, true, false or text
    "sign|left"           quotes for a label with | or & or , or = or ", or that starts with not

``|`` and the comma bind tighter than ``not``, and ``not`` tighter than ``&``: an expression is an
AND of ORs, each perhaps negated.  Python callers may also pass lists of labels, which are not
parsed: ``["car", "truck"]`` for an OR, and ``[["car", "truck"], ["red"]]`` for an AND of ORs.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from vfsd.errors import UsageError

Scalar = str | bool | int | float


@dataclass(frozen=True, slots=True)
class LabelClause:
    """One part of an expression: holds if one of its labels or attributes does, unless negated."""

    labels: tuple[str, ...] = ()
    attributes: tuple[tuple[str, Scalar], ...] = ()
    negated: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether the clause only has alternative labels."""
        return not self.attributes and not self.negated


Labels = str | Sequence[str] | Sequence[Sequence[str]] | Sequence[LabelClause]
Clauses = tuple[LabelClause, ...]
"""All of them must hold."""

_TOKEN = re.compile(r'\s*(?:([|&,])|"((?:[^"]|"")*)"|([^|&,"=]+))')
_NOT = re.compile(r'\s*not(?:\s+(?=[^\s|&,=])|(?="))')
_VALUE = re.compile(r'\s*=\s*(?:"((?:[^"]|"")*)"|([^|&,"]+))')
_MOST_LISTED = 20
_HINT = "for example: car|truck & not red & lane=3"


def clauses_of(labels: Labels | None) -> Clauses:
    """Return the clauses of a query; none for None.  A string is parsed.

    Raises `UsageError` for a syntax error, an empty list, or a mixture of words and lists.
    """
    if labels is None:
        return ()
    if isinstance(labels, str):
        return tuple(parse_labels(labels))
    try:
        parts: list[Any] = list(labels)
    except TypeError:  # not iterable, or a 0-dimensional array
        parts = [labels]
    if parts and all(isinstance(part, LabelClause) for part in parts):
        return tuple(parts)
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
        made.append(LabelClause(tuple(part)))
    return tuple(made)


def words_of(clauses: Iterable[LabelClause]) -> frozenset[str]:
    """Return all labels of some clauses."""
    return frozenset(word for clause in clauses for word in clause.labels)


def wanted_labels(labels: Labels | None) -> frozenset[str]:
    """Return the labels that an object may have to match: those of clauses without ``not``."""
    return words_of(clause for clause in clauses_of(labels) if not clause.negated)


def parse_labels(text: str) -> list[LabelClause]:
    """Parse an expression into its clauses, in the order of the text.

    Raises `UsageError` with the position of a syntax error.
    """
    clauses: list[LabelClause] = []
    at = 0
    while True:
        clause, at = _parsed_clause(text, at)
        clauses.append(clause)
        if not text[at:].strip():
            return clauses
        at = text.index("&", at) + 1


def _parsed_clause(text: str, at: int) -> tuple[LabelClause, int]:
    """Return the clause at a position, and where it ends: at ``&`` or after the text."""
    labels: list[str] = []
    attributes: list[tuple[str, Scalar]] = []
    negation = _NOT.match(text, at)
    at = at if negation is None else negation.end()
    wants_word = True
    while text[at:].strip():
        match = _TOKEN.match(text, at)
        if match is None:
            raise UsageError(_unreadable(text, at), hint=_HINT)
        operator, quoted, bare = match.groups()
        if (operator is None) != wants_word:
            where = text[at:].strip()
            raise UsageError(
                f"{text!r}: a label was expected before {where!r}"
                if wants_word
                else f"{text!r}: | or & was expected before {where!r}",
                hint=_HINT,
            )
        if operator == "&":
            return LabelClause(tuple(labels), tuple(attributes), negation is not None), at
        if operator is None:
            if (labels or attributes) and _NOT.match(text, at):
                raise UsageError(
                    f"{text!r}: not must come first, or after &", hint="for example: car & not red"
                )
            word = bare.strip() if quoted is None else quoted.replace('""', '"')
            if not word:
                raise UsageError(f"{text!r}: a label is empty", hint=_HINT)
            value = _VALUE.match(text, match.end())
            if value is None:
                labels.append(word)
            else:
                match = value
                attributes.append((word, _value(*value.groups())))
        wants_word = not wants_word
        at = match.end()
    if wants_word:
        raise UsageError(f"{text!r} ends where a label was expected", hint=_HINT)
    return LabelClause(tuple(labels), tuple(attributes), negation is not None), len(text)


def _unreadable(text: str, at: int) -> str:
    if text[at:].strip().startswith("="):
        return f"{text!r}: an attribute must have a name and a value"
    return f"{text!r}: a quote is not closed"


def _value(quoted: str | None, bare: str) -> Scalar:
    return parse_scalar(bare.strip()) if quoted is None else quoted.replace('""', '"')


def parse_scalar(text: str) -> Scalar:
    """Return a number or truth value if the text looks like one, else the text itself."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if isinstance(value, float) and not math.isfinite(value):
        return text  # the catalog stores JSON, which has no such numbers
    return value if isinstance(value, (bool, int, float)) else text


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


def format_labels(clauses: Sequence[LabelClause] | Sequence[Sequence[str]]) -> str:
    """Return an expression that `parse_labels` parses into `clauses`."""
    return " & ".join(map(_formatted, clauses))


def _formatted(clause: LabelClause | Sequence[str]) -> str:
    if not isinstance(clause, LabelClause):
        clause = LabelClause(tuple(clause))
    pairs = (f"{_quoted(key)}={_formatted_value(value)}" for key, value in clause.attributes)
    return ("not " if clause.negated else "") + "|".join([*map(_quoted, clause.labels), *pairs])


def _formatted_value(value: Scalar) -> str:
    if not isinstance(value, str):
        return json.dumps(value)
    is_bare = value and parse_scalar(value) == value and not set('|&,"') & set(value)
    return value if is_bare and value == value.strip() else _in_quotes(value)


def _quoted(word: str) -> str:
    if set('|&,"=') & set(word) or word != word.strip() or word.split()[:1] == ["not"]:
        return _in_quotes(word)
    return word


def _in_quotes(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'
