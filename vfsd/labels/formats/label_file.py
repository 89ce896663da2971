"""What all label formats share: the video that labels are about, rows checked with their place in
the file, exact decimals, and folders with one file a frame.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Context, Decimal, InvalidOperation
from fractions import Fraction
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

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
"""Digits enough for the sum of any two coordinates."""

MAX_INTEGER = (1 << 63) - 1
"""Of whole numbers: as much as a catalog keeps."""

_MOST_DIGITS = 1000
_LARGEST = 400_000
"""As a power of ten.  Contexts of `decimal` end at 999,999: sums and products stay within."""
_WHOLE = re.compile(r"([+-]?[0-9]+)(?:\.0*)?")


def parse_decimal(text: str) -> Decimal:
    """Raises `ValueError` for what is no finite number, or one beyond all bounds."""
    text = text.strip()
    if len(text) > _MOST_DIGITS:
        raise ValueError(f"a number of {len(text)} characters")
    try:
        value = Decimal(text)
    except InvalidOperation:
        raise ValueError(f"{text!r} is not a number") from None
    if not value.is_finite() or value.adjusted() > _LARGEST:
        raise ValueError(f"{text!r} is not a finite number")
    return value


def parse_integer(text: str) -> int:
    """Raises `ValueError` for what is no whole number, or beyond 64 bits; ``3.0`` is one."""
    text = text.strip()
    if len(text) > _MOST_DIGITS:
        raise ValueError(f"a number of {len(text)} characters")
    match = _WHOLE.fullmatch(text)
    if match is None:
        raise ValueError(f"{text[:40]!r} is not a whole number")
    value = int(match[1])
    if abs(value) > MAX_INTEGER:
        raise ValueError(f"{text[:40]!r} is beyond 64 bits")
    return value


def decimal_from_float(value: float) -> Decimal:
    """The decimal number that a float prints as."""
    return Decimal(repr(value))


def decimal_sum(one: Decimal, other: Decimal | int) -> Decimal:
    return EXACT_CONTEXT.add(one, Decimal(other))


def decimal_difference(one: Decimal, other: Decimal | int) -> Decimal:
    return EXACT_CONTEXT.subtract(one, Decimal(other))


def decimal_text(value: Decimal | float) -> str:
    """In as few digits as give the same value back; 12 and not 12.0."""
    number = value if isinstance(value, Decimal) else decimal_from_float(value)
    if abs(number) < 10**15 and number == number.to_integral_value():
        return str(int(number))
    return str(number)


Progress = Callable[[int, int], None]

MOST_BYTES = 2 << 30
"""Of one label file.  JSON is held in memory while it is read, with about ten times its size."""

_LAST_NUMBER = re.compile(r"(\d{1,18})(?=\D*$)")
_HASH = re.compile(r"\.rf\.\w{20,}$")
"""What Roboflow puts behind the name of a picture, with digits that count nothing; what counts
something is shorter."""
_REPORT_ROWS = 10_000


@dataclass(frozen=True, slots=True)
class LabeledVideo:
    """The video that labels are about."""

    name: str
    width: int  #: pixels of the displayed frame
    height: int
    frames: int
    frame_at: Callable[[Fraction], int]  #: which frame is shown at a time in seconds


@dataclass(frozen=True, slots=True)
class LabelReadOptions:
    """What a file does not say of itself; None: as its format has it."""

    frame_base: int | None = None  #: number of the first frame
    pixel_base: int | None = None  #: number of the first row and column
    frame_from: str = "auto"  #: auto, field, id, name or order; see each format
    names: Mapping[int, str] | None = None  #: classes by number
    label: str | None = None  #: of boxes that have none
    skip_empty: bool = False  #: leave boxes without area out instead of refusing the file
    source: str | None = None  #: name of the sources of which only model or version are told


@dataclass(frozen=True, slots=True)
class LabelWriteOptions:
    """From where a label file counts; None: as the format usually does."""

    frame_base: int | None = None
    pixel_base: int | None = None


@dataclass(frozen=True, slots=True)
class LabelExport:
    """The labels of one video, to be written."""

    columns: DetectionColumns
    examined: Sequence[Examined]
    clip: LabeledVideo


@dataclass(frozen=True, slots=True)
class LabelFile:
    """What a file says."""

    columns: DetectionColumns
    examined: list[range] | None  #: frames it is about; None where the format cannot tell
    skipped: int = 0  #: boxes without area
    examined_by: tuple[Examined, ...] | None = None  #: of each source; None where it is not told


@dataclass(slots=True)
class LabelRows:
    """Rows on their way into columns.  Each is checked while its place in the file is known."""

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
        """Raises `UsageError` that names the file and the place in it."""
        x1, y1, x2, y2 = map(float, box)
        if not (x1 < x2 and y1 < y2):
            if self.options.skip_empty:
                self.skipped += 1
                return
            raise self.complaint(
                where,
                f"the box {x1:g}, {y1:g}, {x2:g}, {y2:g} has no area",
                hint="skip_empty=True leaves such boxes out",
                command_hint="`--skip-empty` leaves such boxes out",
            )
        if max(map(abs, (x1, y1, x2, y2))) > MAX_COORDINATE:
            raise self.complaint(where, f"the box {x1:g}, {y1:g}, {x2:g}, {y2:g} is out of bounds")
        self.require_frame(where, frame)
        if track is not None and not 0 <= track <= MAX_INTEGER:
            raise self.complaint(where, f"the number of a track is {track}, not 0 to {MAX_INTEGER}")
        if confidence is not None and not math.isfinite(confidence):
            raise self.complaint(where, "the confidence is beyond all bounds")
        try:
            if label not in self._labels:
                DetectionColumns.of([0], label, [(0, 0, 1, 1)])
                self._labels.add(label)
            check_attributes(attributes or {})
        except UsageError as error:
            raise self.complaint(where, str(error), hint=error.hint) from None
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
        """Who has found a box, as its row says; None where it says nothing.

        Raises `ValueError` for a model or version of nobody: boxes of two models would be those of
        one source.
        """
        if not (name or model or version):
            return None
        named = name or self.options.source
        if named is None:
            raise ValueError(f"{model or version!r} is the model or version of no source")
        return Source(named, model, version, parameters)

    def require_frame(self, where: object, frame: int) -> None:
        if not 0 <= frame < self.clip.frames:
            raise self.complaint(
                where,
                f"frame {frame} (counted from 0) does not exist: the video has {self.clip.frames}",
                hint="frame_base is the number of the first frame in the file",
                command_hint="`--frame-base` is the number of the first frame in the file",
            )

    def complaint(
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
        """A `ValueError` in there becomes a complaint that names the place."""
        try:
            yield
        except UsageError:
            raise
        except ValueError as error:
            raise self.complaint(where, str(error)) from None

    def of_file(self, path: Path) -> LabelRows:
        """For the rows of one of several files; they are among these, what it skips is not."""
        return LabelRows(self.clip, self.options, path, _rows=self._rows, _labels=self._labels)

    def report(self, done: int, total: int) -> None:
        """Every so many rows, how far reading has come."""
        if self.on_progress is not None and done % _REPORT_ROWS == 0:
            self.on_progress(done, total)

    def file(
        self,
        examined: Iterator[int] | None = None,
        examined_by: tuple[Examined, ...] | None = None,
    ) -> LabelFile:
        """What was read; `examined` are the frames that the file is about."""
        return LabelFile(
            DetectionColumns.from_detections(self._rows),
            None
            if examined is None
            else contiguous_ranges(np.unique(np.array(list(examined), np.int64))),
            self.skipped,
            examined_by,
        )


def frame_of_name(name: str) -> int | None:
    """The last number in a file's name, without its suffix."""
    match = _LAST_NUMBER.search(_HASH.sub("", Path(name).stem))
    return None if match is None else int(match[1])


def natural_order(name: str) -> list[tuple[int, int, str]]:
    """A key by which img2 comes before img10."""
    parts = re.split(r"(\d{1,18})", name)
    return [(0, int(p), "") if p.isdecimal() else (1, 0, p) for p in parts if p]


def examined_frames(columns: DetectionColumns, examined: Sequence[Examined]) -> Ints:
    """The frames that a file about whole pictures holds: examined ones, and those with boxes."""
    parts = [np.asarray(one.frames, np.int64) for one in examined]
    return np.unique(np.concatenate([columns.frames, *parts]))


def read_bytes(path: Path) -> bytes:
    """A whole file.  Raises `UsageError` for one that is too large to be one of labels."""
    require_size(path)
    return path.read_bytes()


def require_size(path: Path, most: int = MOST_BYTES) -> None:
    """Raises `UsageError` for a file of more than `most` bytes."""
    size = path.stat().st_size
    if size > most:
        raise UsageError(
            f"{path} has {size} bytes; label files of up to {most} are read",
            hint="cut it into parts and import them one after the other",
        )


def lines_of(path: Path) -> Iterator[tuple[int, str]]:
    """(number from 1, text) of each line that is not blank.  Raises `UsageError`."""
    return ((number, line) for number, line in all_lines_of(path) if line.strip())


def all_lines_of(path: Path) -> Iterator[tuple[int, str]]:
    """(number from 1, text) of each line.  Raises `UsageError`."""
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
    while line := readline(_LONGEST_LINE):
        if len(line) == _LONGEST_LINE:
            raise ValueError(f"a line of more than {_LONGEST_LINE - 1} characters")
        yield line


_LONGEST_LINE = 1 << 20


def scalar_text(value: Any) -> str:
    """An attribute as text that `scalar_value` gives back as it was."""
    from json import dumps

    if isinstance(value, str) and value and value == value.strip() and value.isprintable():
        try:
            same = scalar_value(value) == value and isinstance(scalar_value(value), str)
        except ValueError:
            same = False
        if same:
            return value
    return dumps(value)


def scalar_value(text: str) -> Any:
    """What looks like a number, a truth value, null or a quoted word is one; the rest is text."""
    from json import loads

    try:
        value = loads(text, parse_constant=_no_constant)
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
    """(frame, file) of each file in the folder, by frame; `others` are about something else.

    There are none in a folder without files, or with `others` only: so no boxes are exported.
    Raises `UsageError` for a name without a number, a frame that the video does not have, and for
    two files about the same frame.
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
        raise rows.complaint("in it", f"no {suffix} file found")
    found: dict[int, Path] = {}
    for place, path in enumerate(files):
        number = place + base if rows.options.frame_from == "order" else frame_of_name(path.name)
        if number is None:
            raise rows.complaint(
                path.name,
                "the name has no number to tell the frame by",
                hint='frame_from="order" takes them in the order of their names',
                command_hint="`--frame-from order` takes them in the order of their names",
            )
        frame = number - base
        rows.require_frame(path.name, frame)
        if frame in found:
            raise rows.complaint(path.name, f"{found[frame].name} is about the same frame")
        found[frame] = path
    return sorted(found.items())
