"""The common part of all label formats: the labelled video, rows checked with their position in
the file, exact decimals, class names, and directories with one file per frame.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from decimal import Context, Decimal, InvalidOperation
from fractions import Fraction
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import yaml

from vfsd.core.detections import (
    MAX_COORDINATE,
    Attributes,
    Detection,
    DetectionColumns,
    Examined,
    Ints,
    Source,
    check_attributes,
    contiguous_ranges,
)
from vfsd.errors import UsageError

EXACT_CONTEXT = Context(prec=400)
"""Enough digits for the sum of any two coordinates."""

MAX_INTEGER = (1 << 63) - 1
"""Largest integer that a catalog can store."""

_MAX_DIGITS = 1000
# As a power of ten. `decimal` supports 999,999; sums and products must stay below.
_LARGEST = 400_000
_WHOLE = re.compile(r"([+-]?[0-9]+)(?:\.0*)?")

Progress = Callable[[int, int], None]

# JSON is read into memory and takes about ten times its size.
MAX_LABEL_BYTES = 2 << 30
"""Size limit of a label file."""

_LAST_NUMBER = re.compile(r"(\d{1,18})(?=\D*$)")
# Suffix that Roboflow adds to the names of pictures. It contains digits that are not a frame
# number; real numbers are shorter.
_HASH = re.compile(r"\.rf\.\w{20,}$")
_REPORT_ROWS = 10_000

_MAX_LINE_CHARACTERS = 1 << 20

CLASS_NAME_FILES = ("classes.txt", "labels.txt", "obj.names", "data.yaml", "dataset.yaml")
"""Searched in the directory of the labels and then in its parent, in this order."""

_YAML = (".yaml", ".yml")
_MAX_NAMES_BYTES = 16 << 20
# Parsing larger YAML files takes seconds.
_MAX_YAML_BYTES = 1 << 20
_EXPECTED = "names must be a list, or a mapping from class numbers"
_CLASS = re.compile("[0-9]{1,9}")


def parse_decimal(text: str) -> Decimal:
    """Parse a finite number.  Raises `ValueError`, also for numbers out of range."""
    text = text.strip()
    if len(text) > _MAX_DIGITS:
        raise ValueError(f"a number must have at most {_MAX_DIGITS} characters, got {len(text)}")
    try:
        value = Decimal(text)
    except InvalidOperation:
        raise ValueError(f"must be a number, got {text!r}") from None
    if not value.is_finite() or value.adjusted() > _LARGEST:
        raise ValueError(f"must be a finite number, got {text!r}")
    return value


def parse_integer(text: str) -> int:
    """Parse an integer; ``3.0`` is one.  Raises `ValueError`, also beyond 64 bits."""
    text = text.strip()
    if len(text) > _MAX_DIGITS:
        raise ValueError(f"a number must have at most {_MAX_DIGITS} characters, got {len(text)}")
    match = _WHOLE.fullmatch(text)
    if match is None:
        raise ValueError(f"must be a whole number, got {text[:40]!r}")
    value = int(match[1])
    if abs(value) > MAX_INTEGER:
        raise ValueError(f"{text[:40]!r} is beyond 64 bits")
    return value


def decimal_from_float(value: float) -> Decimal:
    """Return the decimal number that a float prints as."""
    return Decimal(repr(value))


def decimal_sum(one: Decimal, other: Decimal | int) -> Decimal:
    return EXACT_CONTEXT.add(one, Decimal(other))


def decimal_difference(one: Decimal, other: Decimal | int) -> Decimal:
    return EXACT_CONTEXT.subtract(one, Decimal(other))


def decimal_text(value: Decimal | float) -> str:
    """Return the fewest digits that give the same value back; 12 and not 12.0."""
    number = value if isinstance(value, Decimal) else decimal_from_float(value)
    if abs(number) < 10**15 and number == number.to_integral_value():
        return str(int(number))
    return str(number)


@dataclass(frozen=True, slots=True)
class LabeledVideo:
    """The video that labels belong to."""

    name: str
    width: int  #: pixels of the displayed frame
    height: int
    frames: int
    frame_at: Callable[[Fraction], int]  #: the frame on screen at a time in seconds
    duration: Fraction = Fraction(0)  #: in seconds


@dataclass(frozen=True, slots=True)
class LabelReadOptions:
    """Details that a file does not contain; None: the convention of its format."""

    frame_base: int | None = None  #: number of the first frame
    pixel_base: int | None = None  #: number of the first row and column
    frame_from: str = "auto"  #: auto, field, id, name or order; see each format
    names: Mapping[int, str] | None = None  #: classes by number
    label: str | None = None  #: for boxes without one
    skip_empty: bool = False  #: skip boxes without area instead of rejecting the file
    source: str | None = None  #: name for sources with only a model or version


@dataclass(frozen=True, slots=True)
class LabelWriteOptions:
    """Numbering in a written label file; None: the convention of the format."""

    frame_base: int | None = None
    pixel_base: int | None = None
    classes: Sequence[str] | None = None  #: coco and yolo; None: the labels in the file, sorted
    picture: str = "png"  #: suffix of the pictures that coco names
    url: str | None = None  #: of the mount, for label-studio; None: its local files


@dataclass(frozen=True, slots=True)
class LabelExport:
    """The labels of one video, to be written."""

    columns: DetectionColumns
    examined: Sequence[Examined]
    clip: LabeledVideo
    frames: Ints | None = None  #: its pictures, ascending; None: `examined_frames`


@dataclass(frozen=True, slots=True)
class LabelFile:
    """The content of a label file."""

    columns: DetectionColumns
    examined: list[range] | None  #: frames that it covers; None if the format cannot express them
    skipped: int = 0  #: boxes without area
    examined_by: tuple[Examined, ...] | None = None  #: for each source; None if not recorded


@dataclass(slots=True)
class LabelRows:
    """Collects rows, and checks each while its position in the file is known."""

    clip: LabeledVideo
    options: LabelReadOptions
    path: Path
    on_progress: Progress | None = None
    skipped: int = 0
    _rows: list[Detection] = field(default_factory=list)
    _labels: set[str] = field(default_factory=set)

    def add(
        self,
        where: object,
        frame: int,
        label: str,
        box: tuple[Decimal, Decimal, Decimal, Decimal],
        confidence: float | None = None,
        track: int | None = None,
        attributes: Attributes | None = None,
        source: Source | None = None,
    ) -> None:
        """Add a row.  Raises `UsageError` with the file and the position in it.

        Args:
            where: The line number, or a description of the position.
            frame: The frame, from 0.
            label: The label.
            box: x1, y1, x2, y2, the second corner exclusive.
            confidence: None: unknown.
            track: None: no track.
            attributes: JSON values.
            source: None: unknown.
        """
        x1, y1, x2, y2 = map(float, box)
        if not (x1 < x2 and y1 < y2):
            if self.options.skip_empty:
                self.skipped += 1
                return
            raise self.error(
                where,
                f"the box {x1:g}, {y1:g}, {x2:g}, {y2:g} has no area",
                hint="skip_empty=True skips such boxes",
                command_hint="`--skip-empty` skips such boxes",
            )
        if max(map(abs, (x1, y1, x2, y2))) > MAX_COORDINATE:
            raise self.error(where, f"the box {x1:g}, {y1:g}, {x2:g}, {y2:g} is too far outside")
        self.require_frame(where, frame)
        if track is not None and not 0 <= track <= MAX_INTEGER:
            raise self.error(where, f"track must be 0 to {MAX_INTEGER}, got {track}")
        if confidence is not None and not math.isfinite(confidence):
            raise self.error(where, "the confidence must be finite")
        try:
            if label not in self._labels:
                DetectionColumns.of([0], label, [(0, 0, 1, 1)])
                self._labels.add(label)
            check_attributes(attributes or {})
        except UsageError as error:
            raise self.error(where, str(error), hint=error.hint) from None
        self._rows.append(
            Detection(frame, label, (x1, y1, x2, y2), confidence, track, source, attributes or {})
        )

    def source(
        self,
        name: str,
        model: str,
        version: str,
        parameters: Mapping[str, Any] = MappingProxyType({}),
    ) -> Source | None:
        """Return the source of a box, or None if its row has none.

        Raises `ValueError` for a model or version without a name: boxes of two models would get the
        same source.
        """
        if not (name or model or version):
            return None
        named = name or self.options.source
        if named is None:
            raise ValueError(
                f"the model or version {model or version!r} must have the name of a source"
            )
        return Source(named, model, version, parameters)

    def require_frame(self, where: object, frame: int) -> None:
        if not 0 <= frame < self.clip.frames:
            raise self.error(
                where,
                f"frame (from 0) must be less than {self.clip.frames}, got {frame}",
                hint="set frame_base to the number of the first frame in the file",
                command_hint="set `--frame-base` to the number of the first frame in the file",
            )

    def error(
        self,
        where: object,
        what: str,
        *,
        hint: str | None = None,
        command_hint: str | None = None,
    ) -> UsageError:
        place = f"line {where}" if isinstance(where, int) else str(where)
        return UsageError(f"{self.path}, {place}: {what}", hint=hint, command_hint=command_hint)

    @contextmanager
    def reading(self, where: object) -> Iterator[None]:
        """Convert a `ValueError` in the block to an error with the position."""
        try:
            yield
        except UsageError:
            raise
        except ValueError as error:
            raise self.error(where, str(error)) from None

    def for_file(self, path: Path) -> LabelRows:
        """Return a collector for one of several files.  Rows are shared, the count of skipped ones
        is not.
        """
        return LabelRows(self.clip, self.options, path, _rows=self._rows, _labels=self._labels)

    def report(self, done: int, total: int) -> None:
        """Report progress every `_REPORT_ROWS` rows."""
        if self.on_progress is not None and done % _REPORT_ROWS == 0:
            self.on_progress(done, total)

    def file(
        self,
        examined: Iterator[int] | None = None,
        examined_by: tuple[Examined, ...] | None = None,
    ) -> LabelFile:
        """Return the result; `examined` are the frames that the file covers."""
        return LabelFile(
            DetectionColumns.from_detections(self._rows),
            None
            if examined is None
            else contiguous_ranges(np.unique(np.array(list(examined), np.int64))),
            self.skipped,
            examined_by,
        )


def frame_of_name(name: str) -> int | None:
    """Return the last number in a file name without its suffix."""
    match = _LAST_NUMBER.search(_HASH.sub("", Path(name).stem))
    return None if match is None else int(match[1])


def natural_order(name: str) -> list[tuple[int, int, str]]:
    """Return a sort key that puts img2 before img10."""
    parts = re.split(r"(\d{1,18})", name)
    return [(0, int(p), "") if p.isdecimal() else (1, 0, p) for p in parts if p]


def examined_frames(columns: DetectionColumns, examined: Sequence[Examined]) -> Ints:
    """Return the examined frames and those with boxes: the frames of a file about whole
    pictures.
    """
    parts = [np.asarray(one.frames, np.int64) for one in examined]
    return np.unique(np.concatenate([columns.frames, *parts]))


def read_bytes(path: Path) -> bytes:
    """Read a whole file.  Raises `UsageError` if it is too large for a label file."""
    require_size(path)
    return path.read_bytes()


def require_size(path: Path, most: int = MAX_LABEL_BYTES) -> None:
    """Raises `UsageError` for a file of more than `most` bytes."""
    size = path.stat().st_size
    if size > most:
        raise UsageError(
            f"{path} must have at most {most} bytes, got {size}",
            hint="split it, and import the parts one after the other",
        )


Lines = Generator[tuple[int, str], None, None]
"""(Number from 1, text) of lines.  Closing it closes the file, which an error of the caller could
keep open otherwise."""


def lines_of(path: Path) -> Lines:
    """Yield each line that is not blank.  Raises `UsageError`."""
    with closing(all_lines_of(path)) as lines:
        for number, line in lines:
            if line.strip():
                yield number, line


def all_lines_of(path: Path) -> Lines:
    """Yield each line.  Raises `UsageError`."""
    require_size(path)
    number = 0
    try:
        with path.open(encoding="utf-8-sig", newline=None) as file:
            for number, line in enumerate(_bounded(file.readline), 1):
                yield number, line
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{path}, near line {number + 1}: must be UTF-8 text: {error.reason}"
        ) from None
    except ValueError as error:
        raise UsageError(f"{path}, near line {number + 1}: {error}") from None


def _bounded(readline: Callable[[int], str]) -> Iterator[str]:
    while line := readline(_MAX_LINE_CHARACTERS):
        if len(line) == _MAX_LINE_CHARACTERS:
            raise ValueError(f"a line must have less than {_MAX_LINE_CHARACTERS} characters")
        yield line


def scalar_text(value: Any) -> str:
    """Return text for an attribute that `scalar_value` parses back to the same value."""
    if isinstance(value, str) and value and value == value.strip() and value.isprintable():
        try:
            same = scalar_value(value) == value and isinstance(scalar_value(value), str)
        except ValueError:
            same = False
        if same:
            return value
    return json.dumps(value)


def scalar_value(text: str) -> Any:
    """Parse a number, boolean, null or quoted text; anything else is text."""
    try:
        value = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return text
    if isinstance(value, float) and not np.isfinite(value):
        return text
    return value if value is None or isinstance(value, (str, int, float)) else text


def _no_constant(name: str) -> None:
    raise ValueError(name)


def files_by_frame(
    rows: LabelRows, suffix: str, others: Collection[str] = ()
) -> list[tuple[int, Path]]:
    """Return (frame, file) of each file in the directory, by frame; `others` are skipped.

    Empty for a directory with no other files: the export of a video without boxes.  Raises
    `UsageError` for a name without a number, a frame outside the video, and two files about the
    same frame.
    """
    folder, base = rows.path, rows.options.frame_base or 0
    if folder.is_file():
        files = [folder]
    else:
        files = [
            path
            for path in folder.iterdir()
            if path.suffix.lower() == suffix and path.name not in others and path.is_file()
        ]
    files.sort(key=lambda path: natural_order(path.name))
    if not files and any(path.name not in others for path in folder.iterdir()):
        raise rows.error("directory", f"no {suffix} file found")
    found: dict[int, Path] = {}
    for place, path in enumerate(files):
        number = place + base if rows.options.frame_from == "order" else frame_of_name(path.name)
        if number is None:
            raise rows.error(
                path.name,
                "the name must contain the frame number",
                hint='frame_from="order" uses the order of the names',
                command_hint="`--frame-from order` uses the order of the names",
            )
        frame = number - base
        rows.require_frame(path.name, frame)
        if frame in found:
            raise rows.error(path.name, f"{found[frame].name} has the same frame")
        found[frame] = path
    return sorted(found.items())


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
        require_size(path, _MAX_YAML_BYTES)
        return _from_yaml(path)
    require_size(path, _MAX_NAMES_BYTES)
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
