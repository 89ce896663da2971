"""YOLO text: a directory with a file for each frame, with lines ``class cx cy w h [confidence
[track]]``.

All values but class and track are shares of the width and height.  The frame is the last number in
the file's name or, with `frame_from` order, the file's position.  Every existing file is an
examined frame, also an empty one.  Class names are in classes.txt, data.yaml or a similar file, in
the directory or its parent.  A confidence of -1 is unknown.

A polygon of three points has as many values as a box with a track.  If the last value is 0 or 1, it
may be either.  A row is rejected if, as a box, it would extend outside the picture, or have the
track 1.0.  Such boxes are written with the track +1.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from decimal import Context, Decimal
from fractions import Fraction
from pathlib import Path

import numpy as np

from vfsd.core.detections import Box, DetectionColumns, Examined
from vfsd.labels.formats.label_file import (
    CLASS_NAME_FILES,
    EXACT_CONTEXT,
    LabeledVideo,
    LabelExport,
    LabelFile,
    LabelReadOptions,
    LabelRows,
    LabelWriteOptions,
    Progress,
    decimal_difference,
    decimal_from_float,
    decimal_text,
    examined_frames,
    files_by_frame,
    lines_of,
    parse_decimal,
    parse_integer,
    read_adjacent_names,
)

_UNKNOWN = "-1"
_DIGITS = (17, 25, 50, 120, 380)
_HALF = Decimal("0.5")
# Boxes rounded by other programs extend outside the picture by up to this share.
_MARGIN = Decimal("0.01")
_CORNER = re.compile(r"[01](\.0*)?")


def read(
    path: Path, clip: LabeledVideo, options: LabelReadOptions, on_progress: Progress | None = None
) -> LabelFile:
    rows = LabelRows(clip, options, path, on_progress)
    names = options.names if options.names is not None else read_adjacent_names(path)
    files = files_by_frame(rows, ".txt", CLASS_NAME_FILES)
    for done, (frame, file) in enumerate(files):
        inside = rows.for_file(file)
        with closing(lines_of(file)) as lines:
            for where, line in lines:
                with inside.reading(where):
                    _add(inside, where, frame, line.split(), names)
        rows.skipped += inside.skipped
        if on_progress is not None:
            on_progress(done + 1, len(files))
    return rows.file(frame for frame, _ in files)


def _add(
    rows: LabelRows, where: int, frame: int, cells: list[str], names: Mapping[int, str] | None
) -> None:
    if not 5 <= len(cells) <= 7:
        raise rows.error(
            where,
            f"a box must have 5 to 7 values, got {len(cells)}",
            hint="polygons are not supported",
        )
    if _may_be_triangle(cells):
        raise rows.error(
            where,
            "this may be a polygon of three points",
            hint=f"polygons are not supported; for a box, write the track as +{cells[6][0]}",
        )
    number = parse_integer(cells[0])
    label = (names or {}).get(number)
    if label is None:
        raise rows.error(
            where,
            f"class {number} has no name",
            hint="give class names in `names`",
            command_hint="give class names with `--names FILE`",
        )
    cx, cy, width, height = map(parse_decimal, cells[1:5])
    clip = rows.clip
    x1, x2 = _edges(cx, width, clip.width)
    y1, y2 = _edges(cy, height, clip.height)
    confidence = cells[5] if len(cells) > 5 else _UNKNOWN
    rows.add(
        where,
        frame,
        label,
        (
            decimal_from_float(x1),
            decimal_from_float(y1),
            decimal_from_float(x2),
            decimal_from_float(y2),
        ),
        None if confidence == _UNKNOWN else float(parse_decimal(confidence)),
        parse_integer(cells[6]) if len(cells) > 6 else None,
    )


def _may_be_triangle(cells: list[str]) -> bool:
    """Return whether values that could be a box with a track are more likely three points."""
    if len(cells) != 7 or _CORNER.fullmatch(cells[6]) is None:
        return False
    x, y, width, height, confidence = map(parse_decimal, cells[1:6])
    if not all(0 <= value <= 1 for value in (x, y, width, height, confidence)):
        return False
    return "." in cells[6] or any(
        share / 2 - min(centre, 1 - centre) > _MARGIN for centre, share in ((x, width), (y, height))
    )


def _edges(centre: Decimal, share: Decimal, size: int) -> tuple[float, float]:
    """Return the two edges in pixels, computed exactly and rounded once."""
    if max(abs(centre), abs(share)) > 1_000_000 or share < 0:
        raise ValueError(f"centre and size must be shares of the picture, got {centre} and {share}")
    half = EXACT_CONTEXT.multiply(share, _HALF)
    return tuple(  # type: ignore[return-value]
        float(Fraction(EXACT_CONTEXT.multiply(edge, Decimal(size))))
        for edge in (EXACT_CONTEXT.subtract(centre, half), EXACT_CONTEXT.add(centre, half))
    )


def write(
    columns: DetectionColumns,
    examined: Sequence[Examined],
    clip: LabeledVideo,
    options: LabelWriteOptions,
) -> Iterator[tuple[str, Iterable[str]]]:
    names = sorted(set(columns.labels)) if options.classes is None else options.classes
    yield from write_frames(
        LabelExport(columns, examined, clip), {name: at for at, name in enumerate(names)}, options
    )
    yield CLASS_NAME_FILES[0], (f"{name}\n" for name in names)


def write_frames(
    one: LabelExport, classes: Mapping[str, int], options: LabelWriteOptions
) -> Iterator[tuple[str, Iterable[str]]]:
    """As `write`, without the file of class names; `classes` are their numbers."""
    rows = one.columns.sorted_by_frame()
    frames = examined_frames(rows, one.examined) if one.frames is None else one.frames
    for frame in frames.tolist():
        first, end = np.searchsorted(rows.frames, [frame, frame + 1]).tolist()
        name = f"{frame + (options.frame_base or 0):06}.txt"
        yield name, [_line(rows, at, one.clip, classes) for at in range(first, end)]


def _line(rows: DetectionColumns, at: int, clip: LabeledVideo, classes: Mapping[str, int]) -> str:
    one = rows[at]
    cells = [str(classes[one.label]), *_shares(one.box, clip)]
    if one.confidence is not None or one.track is not None:
        text = _UNKNOWN if one.confidence is None else decimal_text(one.confidence)
        cells.append("-1.0" if text == _UNKNOWN and one.confidence is not None else text)
    if one.track is not None:
        cells.append(str(one.track))
        if _may_be_triangle(cells):
            cells[-1] = f"+{one.track}"
    return " ".join(cells) + "\n"


def _shares(box: Box, clip: LabeledVideo) -> tuple[str, str, str, str]:
    x, width = _centre(box[0], box[2], clip.width)
    y, height = _centre(box[1], box[3], clip.height)
    return x, y, width, height


def _centre(low: float, high: float, size: int) -> tuple[str, str]:
    """Return centre and extent as shares, with enough digits to give the same edges back."""
    for digits in _DIGITS:
        context = Context(prec=digits)
        first = context.divide(decimal_from_float(low), Decimal(size))
        share = context.divide(
            decimal_difference(decimal_from_float(high), decimal_from_float(low)), Decimal(size)
        )
        centre = EXACT_CONTEXT.add(first, EXACT_CONTEXT.multiply(share, _HALF))
        if _edges(centre, share, size) == (low, high):
            break
    return str(centre), str(share)
