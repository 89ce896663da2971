"""Names of classes by number: a file with one a line, or the `names` of a YOLO data.yaml."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from vfsd.errors import UsageError
from vfsd.labels.common import lines_of, require_size

BESIDE = ("classes.txt", "labels.txt", "obj.names", "data.yaml", "dataset.yaml")
"""Files that are looked for where labels are, and one directory above, in this order."""

_YAML = (".yaml", ".yml")
_MOST_BYTES = 16 << 20
_ITEM = re.compile(r"\s*(?:-|(\d{1,9})\s*:)\s*(.+?)\s*")


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
    return dict(enumerate(line.strip() for _, line in lines_of(path)))


def names_for(format: str, path: Path) -> dict[int, str]:
    """Classes by number as `format` counts them: from 1 in MOT, from 0 in the others."""
    first = int(format == "mot")
    return {number + first: name for number, name in read_names(path).items()}


def _from_yaml(path: Path) -> dict[int, str]:
    """Of all of YAML only what data.yaml files make of `names`: a list or a mapping, in one line
    or one item a line."""
    found: dict[int, str] = {}
    inside = False
    for number, line in lines_of(path):
        text = _without_comment(line).rstrip()
        if not text:
            continue
        if not inside:
            key, colon, rest = text.partition(":")
            if key != "names" or not colon:
                continue
            if rest.strip():
                return _in_one_line(path, number, rest.strip())
            inside = True
            continue
        match = _ITEM.fullmatch(text)
        if match is None or (match[1] is not None and not text[0].isspace()):
            break
        found[len(found) if match[1] is None else int(match[1])] = _unquoted(match[2])
    if not found:
        raise UsageError(
            f"{path} has no list of names",
            hint="give a text file with the name of one class a line",
        )
    return found


def _in_one_line(path: Path, number: int, text: str) -> dict[int, str]:
    if text[0] + text[-1] not in ("[]", "{}"):
        raise UsageError(f"{path}, line {number}: a list of names was expected")
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        words = [_unquoted(word.strip()) for word in text[1:-1].split(",") if word.strip()]
        if text[0] == "[":
            return dict(enumerate(words))
        pairs = [word.partition(":") for word in words]
        try:
            return {int(key): _unquoted(rest.strip()) for key, _, rest in pairs}
        except ValueError:
            raise UsageError(f"{path}, line {number}: classes have to be numbers") from None
    items = value.items() if isinstance(value, dict) else enumerate(value)
    try:
        return {int(key): str(name) for key, name in items}
    except (ValueError, TypeError, OverflowError):
        raise UsageError(f"{path}, line {number}: classes have to be numbers") from None


def _without_comment(line: str) -> str:
    return re.sub(r"(^|\s)#.*", "", line)


def _unquoted(text: str) -> str:
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        return text[1:-1]
    return text
