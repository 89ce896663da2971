"""Names of classes by number: a file with one a line, or the `names` of a YOLO data.yaml."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from vfsd.errors import UsageError
from vfsd.labels.common import all_lines_of, require_size

BESIDE = ("classes.txt", "labels.txt", "obj.names", "data.yaml", "dataset.yaml")
"""Files that are looked for where labels are, and one directory above, in this order."""

_YAML = (".yaml", ".yml")
_MOST_BYTES = 16 << 20
_SPECIAL = "'\"[]{}|>&*!%@`"
"""What no word begins with that stands for itself."""

# Possessive: what is not there is found out in one go, whatever the text.
_SPACE = re.compile(r"(?:\s|#[^\n]*+)*+")
_QUOTED = re.compile(r"""'(?:[^']|'')*+'|"(?:[^"\\]|\\.)*+\"""")
_NAME = rf"(?P<name>{_QUOTED.pattern}|(?:(?!\s#)[^,\[\]{{}}\n])++){_SPACE.pattern}"
_NUMBER = r"""['"]?(?P<number>\d{1,9})['"]?\s*:"""
_BRACKETS: Mapping[str, tuple[re.Pattern[str], str]] = MappingProxyType(
    {
        "[": (re.compile(rf"{_NAME}(?:,|(?=]))"), "]"),
        "{": (re.compile(rf"{_NUMBER}\s*{_NAME}(?:,|(?=}}))"), "}"),
    }
)
"""How an item is written between brackets, and with what they end."""
_ITEM = re.compile(rf"\s*(?:-|{_NUMBER})(?=\s)")


def names_beside(place: Path) -> dict[int, str] | None:
    """What the first of the usual files says, numbers from 0; None where there is none."""
    for folder in (place, place.parent):
        for name in BESIDE:
            path = folder / name
            if path.is_file():
                return read_names(path)
    return None


def read_names(path: Path) -> dict[int, str]:
    """Classes by number from 0.  Raises `UsageError` that names file and line."""
    require_size(path, _MOST_BYTES)
    if path.suffix in _YAML:
        return _from_yaml(path)
    # The number of a class is that of its line: a blank one stands for a class without a name.
    return {number - 1: line.strip() for number, line in all_lines_of(path) if line.strip()}


def names_for(format: str, path: Path) -> dict[int, str]:
    """Classes by number as `format` counts them: from 1 in MOT, from 0 in the others."""
    first = int(format == "mot")
    return {number + first: name for number, name in read_names(path).items()}


def _from_yaml(path: Path) -> dict[int, str]:
    """Of all of YAML only what data.yaml files make of `names`: a list or a mapping, in brackets
    or one item a line."""
    lines = list(all_lines_of(path))
    for at, (number, line) in enumerate(lines):
        key, colon, rest = line.partition(":")
        if key != "names" or not colon:
            continue
        later = lines[at + 1 :]
        if _without_comment(rest):
            return _in_brackets(path, number, rest + "".join(text for _, text in later))
        found = _one_a_line(path, later)
        if found:
            return found
    raise UsageError(
        f"{path} has no list of names",
        hint="give a text file with the name of one class a line",
    )


def _one_a_line(path: Path, lines: list[tuple[int, str]]) -> dict[int, str]:
    found: dict[int, str] = {}
    for number, line in lines:
        if not _without_comment(line):
            continue
        match = _ITEM.match(line)
        if not line[0].isspace() and (match is None or match["number"]):
            break  # the next key
        if match is None:
            raise _complaint(path, number)
        place = int(match["number"] or len(found))
        found[place] = _scalar(path, number, line[match.end() :])
    return found


def _in_brackets(path: Path, number: int, text: str) -> dict[int, str]:
    """What stands between the brackets that `text` begins with, and that may end lines later."""
    at = _past_space(text, 0)
    if text[at] not in _BRACKETS:
        raise _complaint(path, number)
    item, end = _BRACKETS[text[at]]
    found: dict[int, str] = {}
    before, at = at, _past_space(text, at + 1)
    while not text.startswith(end, at):
        number += text.count("\n", before, at)
        match = item.match(text, at)
        if match is None:
            raise _complaint(path, number)
        place = len(found) if end == "]" else int(match["number"])
        found[place] = _scalar(path, number, match["name"])
        before, at = at, _past_space(text, match.end())
    return found


def _past_space(text: str, at: int) -> int:
    space = _SPACE.match(text, at)
    assert space is not None  # it may be empty
    return space.end()


def _scalar(path: Path, number: int, text: str) -> str:
    """What a word of YAML means, with quotes or without."""
    text = text.strip()
    quoted = _QUOTED.match(text)
    if quoted is not None and not _without_comment(text[quoted.end() :]):
        word = quoted[0]
        if word[0] == "'":
            return word[1:-1].replace("''", "'")
        try:
            return str(json.loads(word))  # of the escapes those that JSON has as well
        except ValueError:
            raise _complaint(path, number) from None
    plain = _without_comment(text)
    if not plain or plain[0] in _SPECIAL:
        raise _complaint(path, number)
    return plain


def _complaint(path: Path, number: int) -> UsageError:
    return UsageError(
        f"{path}, line {number}: a list of names was expected; classes have to be numbers",
        hint="write names: [car, truck], or the name of one class a line into a text file",
    )


def _without_comment(text: str) -> str:
    return re.sub(r"(^|\s)#.*", "", text).strip()
