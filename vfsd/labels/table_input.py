"""Boxes from tables of other libraries, from dicts of arrays, and from plain tuples and dicts."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping
from reprlib import repr as shown
from typing import Any

import numpy as np

from vfsd.core.arrow_tables import require_pyarrow, storable
from vfsd.core.detections import NO_TRACK, Detection, DetectionColumns, Source
from vfsd.errors import UsageError

BoxTuple = (
    tuple[int, str, tuple[float, float, float, float]]
    | tuple[int, str, tuple[float, float, float, float], float | None]
    | tuple[int, str, tuple[float, float, float, float], float | None, int | None]
)
"""(frame, label, box), then a confidence and a track if known."""

_CORNERS = ("x1", "y1", "x2", "y2")
_SOURCE = ("source", "model", "version")
_KNOWN = ("frame", "label", "box", *_CORNERS, "confidence", "track", *_SOURCE, "attributes")
# Columns of an exported table that follow from others; pandas adds those of an index.
_IGNORED = ("name", "seconds")
_INDEX = "__index_level_"
_HINT = "columns are frame, label, x1, y1, x2, y2 or box; confidence, track and attributes if known"
_TUPLE_HINT = "give (frame, label, (x1, y1, x2, y2)), then confidence and track if known"


def boxes_from(detections: Any, name: str) -> DetectionColumns:
    """Return the boxes of a table, of arrays, or of tuples, dicts or `Detection`s, for the video
    with that name.

    A table is any object with ``__arrow_c_stream__``: of pyarrow, polars, DuckDB, or pandas from
    2.2 on.  Raises `UsageError` for columns or rows that are malformed, and for rows with the name
    of another video; `ExtraMissingError` for a table without pyarrow.
    """
    if isinstance(detections, DetectionColumns):
        return detections
    if hasattr(detections, "__arrow_c_stream__"):
        return _from_table(_read(detections), name)
    if isinstance(detections, np.ndarray) and detections.dtype.names:
        detections = {one: detections[one] for one in detections.dtype.names}
    if isinstance(detections, Mapping):
        return _from_columns(detections, name)
    if isinstance(detections, Iterable) and not isinstance(detections, str):
        rows = list(detections)
        if rows and all(isinstance(one, Mapping) for one in rows):
            keys = dict.fromkeys(key for one in rows for key in one)
            return _from_columns({key: [one.get(key) for one in rows] for key in keys}, name)
        detections = [_from_tuple(one) if isinstance(one, tuple | list) else one for one in rows]
    return DetectionColumns.from_detections(detections)


def _from_columns(columns: Mapping[str, Any], name: str) -> DetectionColumns:
    """Return boxes from arrays or lists, by the names of their columns."""
    _require_known(columns)
    for one in _SOURCE:
        if one in columns:
            raise UsageError(
                f"a dict of boxes has no column {one!r}", hint="give the source as an argument"
            )
    if "name" in columns and {*map(str, columns["name"])} - {name}:
        raise UsageError(
            f"all boxes must be of {name!r}, got {shown(columns['name'])}",
            hint="keep the rows of this video only",
        )
    box = columns.get("box")
    if box is None:
        try:
            box = np.array([columns[one] for one in _CORNERS], np.float64).T
        except (TypeError, ValueError):
            raise UsageError("x1, y1, x2 and y2 must be as many numbers each") from None
    return DetectionColumns.of(
        columns["frame"],
        columns["label"],
        box,
        columns.get("confidence"),
        columns.get("track"),
        columns.get("attributes"),
    )


def _from_tuple(values: tuple[Any, ...] | list[Any]) -> Detection:
    if not 3 <= len(values) <= 5:
        raise UsageError(f"a box must have 3 to 5 values, got {shown(values)}", hint=_TUPLE_HINT)
    frame, label, box, *rest = values
    confidence, track = (*rest, None, None)[:2]
    return Detection(frame, label, box, confidence, track)


def _read(table: Any) -> Any:
    pyarrow = require_pyarrow()
    if isinstance(table, pyarrow.Table):
        return table
    return pyarrow.RecordBatchReader.from_stream(_Stream(table)).read_all()


class _Stream:
    """A table without the optional argument, which not every library takes."""

    def __init__(self, table: Any) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._table.__arrow_c_stream__()


def _from_table(table: Any, name: str) -> DetectionColumns:
    columns = {one: table.column(one) for one in table.column_names if _INDEX not in one}
    _require_known(columns)
    if "name" in columns:
        others = [one for one in columns["name"].unique().to_pylist() if one != storable(name)]
        if others:
            raise UsageError(
                f"the table has boxes of {shown(others[0])}, and the video is {name!r}",
                hint="keep the rows of this video only",
            )
    codes, names = _words(columns["label"], "label")
    confidences, tracks = columns.get("confidence"), columns.get("track")
    made = DetectionColumns(
        _numbers(columns["frame"], "frame", np.int64),
        codes,
        names,
        _boxes(columns),
        np.full(len(codes), np.nan)
        if confidences is None
        else _numbers(confidences, "confidence", np.float64, missing=np.nan),
        np.full(len(codes), NO_TRACK, np.int64)
        if tracks is None
        else _numbers(tracks, "track", np.int64, missing=NO_TRACK),
        _attributes(columns.get("attributes")),
    )
    made.check()
    return made.with_sources(_sources(columns, len(made)))


def _require_known(columns: Mapping[str, Any]) -> None:
    unknown = [one for one in columns if one not in (*_KNOWN, *_IGNORED)]
    if unknown:
        near = difflib.get_close_matches(unknown[0], _KNOWN, 1)
        raise UsageError(
            f"a table of boxes has no column {unknown[0]!r}",
            hint=f"rename it to {near[0]!r}" if near else f"leave it out: {_HINT}",
        )
    wanted = ["frame", "label", *([] if "box" in columns else _CORNERS)]
    missing = [one for one in wanted if one not in columns]
    if missing:
        raise UsageError(f"the table has no column {missing[0]!r}", hint=_HINT)
    if "box" in columns and set(_CORNERS) & set(columns):
        raise UsageError("the table has a box and corners", hint="leave out one of them")


def _numbers(column: Any, what: str, kind: Any, missing: Any = None) -> Any:
    """Return a column as an array; nulls become `missing`, or are refused without one."""
    pyarrow = require_pyarrow()
    try:
        # A safe cast refuses fractions and text where whole numbers are needed.
        wanted = pyarrow.from_numpy_dtype(kind)
        numbers = column if column.type == wanted else column.cast(wanted)
    except pyarrow.ArrowException as error:
        kinds = "whole numbers" if kind is np.int64 else "numbers"
        raise UsageError(f"{what} must be {kinds}, got {column.type}: {error}") from None
    if numbers.null_count:
        if missing is None:
            raise UsageError(f"{what} must be a number in every row, got null", hint=_HINT)
        numbers = numbers.fill_null(missing)
    return numbers.to_numpy().astype(kind)


def _words(column: Any, what: str) -> tuple[Any, tuple[str, ...]]:
    """Return a column of text as codes and words."""
    if column.null_count:
        raise UsageError(f"{what} must be text in every row, got null", hint=_HINT)
    texts = column.to_pylist()
    for text in set(texts):
        if not isinstance(text, str):
            raise UsageError(f"{what} must be text, got {shown(text)}", hint=_HINT)
    known: dict[str, int] = {}
    codes = [known.setdefault(text, len(known)) for text in texts]
    return np.asarray(codes, np.int64), tuple(known)


def _boxes(columns: Mapping[str, Any]) -> Any:
    if "box" not in columns:
        return np.column_stack([_numbers(columns[one], one, np.float64) for one in _CORNERS])
    rows = columns["box"].to_pylist()
    wrong = [row for row in rows if row is None or len(row) != 4 or None in row]
    if wrong:
        raise UsageError(f"a box must be [x1, y1, x2, y2], got {shown(wrong[0])}", hint=_HINT)
    return np.asarray(rows, np.float64).reshape(-1, 4)


def _attributes(column: Any) -> tuple[Mapping[str, Any] | None, ...] | None:
    """Return attributes from JSON objects, structs or maps; None where no row has any."""
    if column is None or column.null_count == len(column):
        return None
    return tuple(map(_attributes_of, column.to_pylist()))


def _attributes_of(value: Any) -> Mapping[str, Any] | None:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            raise UsageError(
                f"attributes must be JSON objects, got {shown(value)}", hint='such as {"lane": 3}'
            ) from None
    elif isinstance(value, list):  # a map
        value = dict(value)
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise UsageError(f"attributes must be JSON objects, got {shown(value)}")
    return {key: one for key, one in value.items() if one is not None} or None


def _sources(columns: Mapping[str, Any], count: int) -> list[Source | None]:
    if "source" not in columns:
        return [None] * count
    texts = [columns[one].to_pylist() if one in columns else [None] * count for one in _SOURCE]
    known: dict[tuple[Any, ...], Source | None] = {}
    found = []
    for key in zip(*texts, strict=True):
        if key not in known:
            name, model, version = key
            known[key] = None if name is None else Source(name, model or "", version or "")
        found.append(known[key])
    return found
