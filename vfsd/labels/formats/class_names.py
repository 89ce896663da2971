"""Names of classes by number: a file with one a line, or the `names` of a YOLO data.yaml."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from vfsd.errors import UsageError
from vfsd.labels.formats.label_file import all_lines_of, require_size

CLASS_NAME_FILES = ("classes.txt", "labels.txt", "obj.names", "data.yaml", "dataset.yaml")
"""Files that are looked for where labels are, and one directory above, in this order."""

_YAML = (".yaml", ".yml")
_MOST_BYTES = 16 << 20
_MOST_BYTES_OF_YAML = 1 << 20
"""They take seconds to be parsed."""
_EXPECTED = "a list of names was expected; classes have to be numbers"
_CLASS = re.compile("[0-9]{1,9}")


def read_adjacent_names(place: Path) -> dict[int, str] | None:
    """What the first of the usual files says, numbers from 0; None where there is none."""
    for folder in (place, place.parent):
        for name in CLASS_NAME_FILES:
            path = folder / name
            if path.is_file():
                return read_names(path)
    return None


def read_names(path: Path) -> dict[int, str]:
    """Classes by number from 0.  Raises `UsageError` that names file and line."""
    if path.suffix in _YAML:
        require_size(path, _MOST_BYTES_OF_YAML)
        return _from_yaml(path)
    require_size(path, _MOST_BYTES)
    # The number of a class is that of its line: a blank one stands for a class without a name.
    return {number - 1: line.strip() for number, line in all_lines_of(path) if line.strip()}


def names_for(format: str, path: Path) -> dict[int, str]:
    """Classes by number as `format` counts them: from 1 in MOT, from 0 in the others."""
    first = int(format == "mot")
    return {number + first: name for number, name in read_names(path).items()}


def _from_yaml(path: Path) -> dict[int, str]:
    """What a data.yaml has as `names`, a list or a mapping; each word as it is written, so that
    ``no`` is a name."""
    names = _composed(path)
    if isinstance(names, yaml.SequenceNode):
        return {number: _word(path, node) for number, node in enumerate(names.value)}
    if isinstance(names, yaml.MappingNode):
        found: dict[int, str] = {}
        for key, node in names.value:
            number = _number(path, key)
            if number in found:
                raise _complaint(path, key.start_mark, f"class {number} has a name already")
            found[number] = _word(path, node)
        return found
    raise _complaint(path, names.start_mark)


def _composed(path: Path) -> yaml.Node:
    text = "".join(line for _, line in all_lines_of(path))
    try:
        root = yaml.compose(text, yaml.BaseLoader)
    except yaml.MarkedYAMLError as error:
        raise _complaint(path, error.problem_mark, f"no YAML: {error.problem}") from None
    except yaml.reader.ReaderError as error:  # a character that no YAML has
        raise _complaint(path, None, f"no YAML: {error.reason}") from None
    except (yaml.YAMLError, RecursionError):
        raise _complaint(path, None) from None
    if isinstance(root, yaml.MappingNode):
        found = [(key, value) for key, value in root.value if key.value == "names"]
        if len(found) > 1:
            raise _complaint(path, found[1][0].start_mark, "there are names already")
        for _, value in found:
            assert isinstance(value, yaml.Node)
            return value
    raise UsageError(
        f"{path} has no list of names",
        hint="give a text file with the name of one class a line",
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
        hint="write names: [car, truck], or the name of one class a line into a text file",
    )
