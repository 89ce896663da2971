"""Class names by number, from a text file with one per line or the `names` of a YOLO data.yaml."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from vfsd.errors import UsageError
from vfsd.labels.formats.label_file import all_lines_of, require_size

CLASS_NAME_FILES = ("classes.txt", "labels.txt", "obj.names", "data.yaml", "dataset.yaml")
"""Searched in the directory of the labels and then in its parent, in this order."""

_YAML = (".yaml", ".yml")
_MOST_BYTES = 16 << 20
_MOST_BYTES_OF_YAML = 1 << 20
"""Parsing larger YAML files takes seconds."""
_EXPECTED = "names must be a list, or a mapping from class numbers"
_CLASS = re.compile("[0-9]{1,9}")


def read_adjacent_names(place: Path) -> dict[int, str] | None:
    """Return the names in the first of the usual files, numbered from 0; None without one."""
    for folder in (place, place.parent):
        for name in CLASS_NAME_FILES:
            path = folder / name
            if path.is_file():
                return read_names(path)
    return None


def read_names(path: Path) -> dict[int, str]:
    """Return class names, numbered from 0.  Raises `UsageError` with file and line."""
    if path.suffix in _YAML:
        require_size(path, _MOST_BYTES_OF_YAML)
        return _from_yaml(path)
    require_size(path, _MOST_BYTES)
    # A class number is a line number: a blank line is a class without a name.
    return {number - 1: line.strip() for number, line in all_lines_of(path) if line.strip()}


def names_for(format: str, path: Path) -> dict[int, str]:
    """Return class names numbered as `format` does: from 1 in MOT, from 0 in the others."""
    first = int(format == "mot")
    return {number + first: name for number, name in read_names(path).items()}


def _from_yaml(path: Path) -> dict[int, str]:
    """Return the `names` of a data.yaml, a list or a mapping.

    Scalars stay as written, so ``no`` is a name and not a boolean.
    """
    names = _composed(path)
    if isinstance(names, yaml.SequenceNode):
        return {number: _word(path, node) for number, node in enumerate(names.value)}
    if isinstance(names, yaml.MappingNode):
        found: dict[int, str] = {}
        for key, node in names.value:
            number = _number(path, key)
            if number in found:
                raise _complaint(path, key.start_mark, f"class {number} has two names")
            found[number] = _word(path, node)
        return found
    raise _complaint(path, names.start_mark)


def _composed(path: Path) -> yaml.Node:
    text = "".join(line for _, line in all_lines_of(path))
    try:
        root = yaml.compose(text, yaml.BaseLoader)
    except yaml.MarkedYAMLError as error:
        raise _complaint(path, error.problem_mark, f"invalid YAML: {error.problem}") from None
    except yaml.reader.ReaderError as error:  # a character that YAML does not allow
        raise _complaint(path, None, f"invalid YAML: {error.reason}") from None
    except (yaml.YAMLError, RecursionError):
        raise _complaint(path, None) from None
    if isinstance(root, yaml.MappingNode):
        found = [(key, value) for key, value in root.value if key.value == "names"]
        if len(found) > 1:
            raise _complaint(path, found[1][0].start_mark, "names is given twice")
        for _, value in found:
            assert isinstance(value, yaml.Node)
            return value
    raise UsageError(
        f"{path} must contain a list of names",
        hint="or give a text file with one class name per line",
    )


def _word(path: Path, node: yaml.Node) -> str:
    if not isinstance(node, yaml.ScalarNode) or not node.value:
        raise _complaint(path, node.start_mark)
    return str(node.value)


def _number(path: Path, node: yaml.Node) -> int:
    if not isinstance(node, yaml.ScalarNode) or not _CLASS.fullmatch(node.value):
        raise _complaint(path, node.start_mark)
    return int(node.value)


def _complaint(path: Path, mark: yaml.Mark | None, what: str = _EXPECTED) -> UsageError:
    place = "" if mark is None else f", line {mark.line + 1}"
    return UsageError(
        f"{path}{place}: {what}",
        hint="for example names: [car, truck], or a text file with one class name per line",
    )
