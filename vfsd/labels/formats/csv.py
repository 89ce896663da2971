"""CSV with a header: ``frame, label, x1, y1, x2, y2``, and optionally confidence, track, source,
model, version.

Columns may come in any order and under common aliases (conf, id, class ...).  Instead of `frame`
there may be `time` in seconds: the frame on screen at that time.  Every other column is an
attribute; ``attr:NAME`` is an attribute with a reserved name.  Edges are those of vfsd: the second
corner is exclusive, and both count from 0.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from vfsd.core.detections import DetectionColumns, Examined
from vfsd.core.timebase import seconds
from vfsd.errors import OutOfRangeError, UsageError
from vfsd.labels.formats.label_file import (
    LabeledVideo,
    LabelFile,
    LabelReadOptions,
    LabelRows,
    LabelWriteOptions,
    Lines,
    Progress,
    all_lines_of,
    decimal_difference,
    decimal_text,
    parse_decimal,
    parse_integer,
    scalar_text,
    scalar_value,
)

if TYPE_CHECKING:
    from _csv import Reader

ALIASES: Mapping[str, str] = MappingProxyType(
    {
        "frame": "frame",
        "frame_id": "frame",
        "frame_index": "frame",
        "time": "time",
        "seconds": "time",
        "label": "label",
        "class": "label",
        "class_name": "label",
        "category": "label",
        "x1": "x1",
        "y1": "y1",
        "x2": "x2",
        "y2": "y2",
        "confidence": "confidence",
        "conf": "confidence",
        "score": "confidence",
        "track": "track",
        "track_id": "track",
        "id": "track",
        "source": "source",
        "model": "model",
        "version": "version",
    }
)
_ATTRIBUTE = "attr:"
_SOURCE = ("source", "model", "version")
_BOX = ("x1", "y1", "x2", "y2")


def read(
    path: Path, clip: LabeledVideo, options: LabelReadOptions, on_progress: Progress | None = None
) -> LabelFile:
    # Blank lines are needed, too: they may be part of a quoted cell.
    with closing(all_lines_of(path)) as lines:
        return _read_lines(lines, LabelRows(clip, options, path, on_progress), options)


def _read_lines(lines: Lines, rows: LabelRows, options: LabelReadOptions) -> LabelFile:
    base = (options.frame_base or 0, options.pixel_base or 0)
    reader = csv.reader((line for _, line in lines), strict=True)
    records = _numbered(reader)
    try:
        header = _columns(rows, *next(records, (1, None)))
        for where, cells in records:
            if len(cells) != len(header):
                raise rows.error(
                    where, f"a row must have {len(header)} cells like the header, got {len(cells)}"
                )
            try:
                _add(rows, where, dict(zip(header, cells, strict=True)), *base)
            except (ValueError, OutOfRangeError) as error:
                if isinstance(error, UsageError) and str(rows.path) in str(error):
                    raise
                raise rows.error(where, str(error)) from None
            rows.report(where, 0)
    except csv.Error as error:
        raise rows.error(reader.line_num, str(error)) from None
    return rows.file()


def _numbered(reader: Reader) -> Iterator[tuple[int, list[str]]]:
    """Yield each record that is not blank, with the number of its first line."""
    first = 1
    for cells in reader:
        if len(cells) > 1 or any(cell.strip() for cell in cells):
            yield first, cells
        first = reader.line_num + 1


def _columns(rows: LabelRows, where: int, names: list[str] | None) -> list[str]:
    """Return the meaning of each column: one of our names, or ``attr:`` and an attribute."""
    if names is None:
        raise rows.error(where, "the file must have a header, but is empty")
    found = []
    for name in map(str.strip, names):
        known = ALIASES.get(name.lower())
        if known is None:
            known = _ATTRIBUTE + name.removeprefix(_ATTRIBUTE)
        if known in found:
            raise rows.error(where, f"two columns are named {known.removeprefix(_ATTRIBUTE)!r}")
        found.append(known)
    needed = {*_BOX, "label"} - ({"label"} if rows.options.label else set())
    missing = sorted(needed - set(found))
    if not {"frame", "time"} & set(found):
        missing.insert(0, "frame (or time)")
    if missing:
        raise rows.error(
            where,
            f"the header lacks {', '.join(missing)}",
            hint="the first line must name the columns",
        )
    return found


def _add(
    rows: LabelRows, where: int, cells: dict[str, str], frame_base: int, pixel_base: int
) -> None:
    get = cells.get
    if get("frame", "").strip():
        frame = parse_integer(cells["frame"]) - frame_base
    else:
        frame = rows.clip.frame_at(seconds(get("time", "")))
    x1, y1, x2, y2 = (
        decimal_difference(parse_decimal(cells[corner]), pixel_base) for corner in _BOX
    )
    confidence, track = get("confidence", "").strip(), get("track", "").strip()
    source, model, version = (get(key, "").strip() for key in _SOURCE)
    rows.add(
        where,
        frame,
        get("label", "").strip() or rows.options.label or "",
        (x1, y1, x2, y2),
        float(parse_decimal(confidence)) if confidence else None,
        parse_integer(track) if track else None,
        {
            key.removeprefix(_ATTRIBUTE): scalar_value(text)
            for key, text in cells.items()
            if key.startswith(_ATTRIBUTE) and text
        },
        rows.source(source, model, version),
    )


def write(
    columns: DetectionColumns,
    examined: Sequence[Examined],
    clip: LabeledVideo,
    options: LabelWriteOptions,
) -> Iterator[tuple[str, Iterable[str]]]:
    yield "", _lines(columns, options)


def _lines(columns: DetectionColumns, options: LabelWriteOptions) -> Iterator[str]:
    keys: dict[str, None] = {}
    for row in columns.attributes or ():
        keys.update(dict.fromkeys(row or {}))
    has_sources = columns.source_codes is not None
    names = ["frame", "label", *_BOX, "confidence", "track"]
    names += _SOURCE if has_sources else []
    yield _line([*names, *map(_column_name, keys)])
    frame_base, pixel_base = options.frame_base or 0, options.pixel_base or 0
    for one in columns:
        source = one.source
        cells: list[Any] = [
            one.frame + frame_base,
            one.label,
            *(
                decimal_text(decimal_difference(parse_decimal(repr(value)), -pixel_base))
                for value in one.box
            ),
            "" if one.confidence is None else decimal_text(one.confidence),
            "" if one.track is None else one.track,
        ]
        if has_sources:
            cells += [source.name, source.model, source.version] if source else [""] * len(_SOURCE)
        attributes = one.attributes
        cells += [scalar_text(attributes[key]) if key in attributes else "" for key in keys]
        yield _line(cells)


def _column_name(key: str) -> str:
    taken = key.lower() in ALIASES or key.startswith(_ATTRIBUTE)
    return _ATTRIBUTE + key if taken else key


def _line(cells: list[Any]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerow(cells)
    return out.getvalue()
