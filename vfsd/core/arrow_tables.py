"""The columns of exported tables: names, types and meanings, and Arrow batches of them.

docs/reference/tables.md shows the same columns; a test compares both.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from reprlib import repr as shown
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from vfsd.errors import ExtraMissingError, UsageError

if TYPE_CHECKING:
    import pyarrow

    from vfsd.core.detections import DetectionColumns
    from vfsd.core.model import LogicalVideo


class Column(NamedTuple):
    """One column of a table."""

    type: str  #: as in `_make_types`
    text: str  #: unit and meaning
    nullable: bool = False


_NAME = Column("word", "path in the store")
_TICKS = Column("int64", "ticks of the time base")
_CORNERS = ("x1", "y1", "x2", "y2")

TABLES: Mapping[str, Mapping[str, Column]] = MappingProxyType(
    {
        "videos": {
            "name": Column("string", "path in the store"),
            "id": Column("int64", "number of the video"),
            "digest": Column("string", "BLAKE3 of the file"),
            "size": Column("int64", "bytes"),
            "modified_ns": Column("int64", "Unix time, nanoseconds"),
            "codec": Column("word", "FFmpeg's name"),
            "container": Column("word", "FFmpeg's name"),
            "width": Column("int32", "pixels of the displayed frame"),
            "height": Column("int32", "pixels of the displayed frame"),
            "frames": Column("int64", "displayed frames"),
            "seconds": Column("float64", "duration"),
            "fps": Column("float64", "frames per second, nominal or mean", nullable=True),
            "tags": Column("strings", "sorted"),
            "metadata": Column("string", "JSON object"),
            "captured_ns": Column(
                "int64", "Unix time of the first frame, nanoseconds", nullable=True
            ),
        },
        "frames": {
            "name": _NAME,
            "frame": Column("int64", "number, from 0, in display order"),
            "pts": _TICKS,
            "seconds": Column("float64", "since the first frame"),
            "duration": Column("float64", "seconds until the next frame"),
            "key": Column("bool", "decoding can start here"),
            "packet": Column("int64", "number in decode order"),
            "position": Column("int64", "byte offset of the packet"),
            "size": Column("int64", "bytes of the packet"),
        },
        "detections": {
            "name": _NAME,
            "frame": Column("int64", "number, from 0"),
            "seconds": Column("float64", "of the frame, since the first frame"),
            "label": Column("word", "label"),
            "x1": Column("float64", "left edge, pixels of the displayed frame"),
            "y1": Column("float64", "top edge"),
            "x2": Column("float64", "right edge, exclusive"),
            "y2": Column("float64", "bottom edge, exclusive"),
            "confidence": Column("float64", "on the scale of the source", nullable=True),
            "track": Column("int64", "object, unique within the source", nullable=True),
            "source": Column("word", "program or person", nullable=True),
            "model": Column("word", "model of the source, or empty", nullable=True),
            "version": Column("word", "version of the source, or empty", nullable=True),
            "attributes": Column("string", "JSON object", nullable=True),
        },
        "reads": {
            "name": _NAME,
            "at_ns": Column("int64", "start, Unix time, nanoseconds"),
            "kind": Column("word", "api, scan, view or detect"),
            "first_frame": Column("int64", "lowest frame"),
            "end_frame": Column("int64", "one past the highest frame"),
            "frames": Column("int64", "pictures in the result"),
            "x1": Column("int32", "left edge of the region, pixels"),
            "y1": Column("int32", "top edge"),
            "x2": Column("int32", "right edge, exclusive"),
            "y2": Column("int32", "bottom edge, exclusive"),
            "width": Column("int32", "pixels of a picture, null if sizes differ", nullable=True),
            "height": Column("int32", "pixels of a picture", nullable=True),
            "labels": Column("string", "JSON list of lists, an AND of ORs", nullable=True),
            "pixels": Column("int64", "to decode, by the plan"),
            "untiled_pixels": Column("int64", "the same without tiles"),
            "predicted": Column("float64", "CPU seconds, by the plan"),
            "untiled_predicted": Column("float64", "the same without tiles"),
            "seconds": Column("float64", "measured"),
            "segments": Column("int64", "segments used"),
            "tiles": Column("int64", "tiles decoded"),
            "original_frames": Column("int64", "frames decoded from the original"),
        },
        "tiles": {
            "name": _NAME,
            "segment": Column("int64", "number of the segment"),
            "role": Column("word", "tiled, rendition or joined"),
            "first_frame": Column("int64", "first frame"),
            "end_frame": Column("int64", "one past the last frame"),
            "tile": Column("int32", "number in the layout, row by row as stored"),
            "x1": Column("int32", "left edge, pixels of the displayed picture"),
            "y1": Column("int32", "top edge"),
            "x2": Column("int32", "right edge, exclusive"),
            "y2": Column("int32", "bottom edge, exclusive"),
            "width": Column("int32", "pixels of the whole displayed picture"),
            "height": Column("int32", "pixels of the whole displayed picture"),
            "profile": Column("word", "codec of the tiles"),
            "size": Column("int64", "bytes"),
            "psnr": Column("float64", "dB, mean luma; 0: not measured"),
            "retired": Column("bool", "kept for a rollback only"),
            "created_ns": Column("int64", "Unix time, nanoseconds"),
        },
        "vectors": {
            "name": _NAME,
            "source": Column("word", "model or person"),
            "model": Column("word", "variant of the model, or empty"),
            "version": Column("word", "version of the model, or empty"),
            "first_frame": Column("int64", "first frame"),
            "end_frame": Column("int64", "one past the last frame"),
            "vector": Column("floats", "numbers as given"),
        },
    }
)


def require_pyarrow() -> Any:
    """Return the module pyarrow.  Raises `ExtraMissingError`."""
    try:
        import pyarrow
    except ImportError:
        raise ExtraMissingError(
            "pyarrow is not installed", hint="pip install 'vfsd[arrow]'"
        ) from None
    return pyarrow


def require_columns(table: object, columns: Iterable[str] | None = None) -> list[str]:
    """Return the names of the chosen columns of a table.

    Without `columns`, all of them.  Raises `UsageError` for unknown names.
    """
    if not isinstance(table, str) or table not in TABLES:
        raise UsageError(
            f"the table must be one of {', '.join(TABLES)}, got {shown(table)}",
            hint="for example 'detections'",
        )
    if isinstance(columns, str):
        raise UsageError(f"columns must be a list, got {columns!r}", hint=f"give [{columns!r}]")
    chosen = list(TABLES[table] if columns is None else columns)
    unknown = [name for name in chosen if name not in TABLES[table]]
    if unknown:
        raise UsageError(
            f"the table {table} has no column {unknown[0]!r}",
            hint=f"its columns are {', '.join(TABLES[table])}",
        )
    return chosen


def arrow_schema(table: str, columns: Iterable[str] | None = None) -> pyarrow.Schema:
    """Return the Arrow schema of some columns; the metadata of a field has its meaning."""
    pyarrow = require_pyarrow()
    types = _make_types(pyarrow)
    return pyarrow.schema(
        pyarrow.field(
            name,
            types[TABLES[table][name].type],
            TABLES[table][name].nullable,
            {"comment": TABLES[table][name].text},
        )
        for name in require_columns(table, columns)
    )


def arrow_batch(table: str, columns: Mapping[str, Any]) -> pyarrow.RecordBatch:
    """Return a batch of some columns of a table.

    A column is a sequence, a NumPy array, an Arrow array or, for the type "word", a pair of codes
    and words.  A code of -1 is null.
    """
    pyarrow = require_pyarrow()
    schema = arrow_schema(table, columns)
    arrays = [_to_array(pyarrow, columns[field.name], field) for field in schema]
    return pyarrow.RecordBatch.from_arrays(arrays, schema=schema)


def repeated(word: str, count: int) -> tuple[Any, list[str]]:
    """Return a column of words with `count` equal rows."""
    return np.zeros(count, np.int32), [word]


def coded(words: Iterable[str | None]) -> tuple[Any, list[str]]:
    """Return a column of words from its rows."""
    known: dict[str, int] = {}
    codes = [-1 if word is None else known.setdefault(word, len(known)) for word in words]
    return np.array(codes, np.int32), list(known)


def json_text(value: object) -> str:
    """Return compact JSON."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _make_types(pyarrow: Any) -> dict[str, Any]:
    return {
        "bool": pyarrow.bool_(),
        "int32": pyarrow.int32(),
        "int64": pyarrow.int64(),
        "float64": pyarrow.float64(),
        "string": pyarrow.string(),
        "strings": pyarrow.list_(pyarrow.string()),
        "floats": pyarrow.list_(pyarrow.float32()),
        # Few distinct values: four bytes a row.
        "word": pyarrow.dictionary(pyarrow.int32(), pyarrow.string()),
    }


def _to_array(pyarrow: Any, values: Any, field: Any) -> Any:
    if isinstance(values, tuple):
        codes, words = values
        codes = np.asarray(codes, np.int32)
        missing = codes < 0
        return pyarrow.DictionaryArray.from_arrays(
            pyarrow.array(codes, pyarrow.int32(), mask=missing if missing.any() else None),
            # Names of files may have bytes that are not UTF-8; Arrow's strings cannot.
            pyarrow.array([storable(word) for word in words], pyarrow.string()),
        )
    if isinstance(values, np.ndarray | pyarrow.Array):
        found = pyarrow.array(values)
        return found if found.type == field.type else found.cast(field.type)
    return pyarrow.array(values, field.type)


def storable(text: str) -> str:
    """Return text with each byte that is not UTF-8 shown as an escape: ``\\xff``."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def detections_batch(
    rows: DetectionColumns,
    before: Mapping[str, Any] = MappingProxyType({}),
    columns: Sequence[str] | None = None,
) -> pyarrow.RecordBatch:
    """Return boxes as a batch of the table "detections", with the columns `before` added.

    `columns` are those to keep, in order; default: all that are known.
    """
    pyarrow = require_pyarrow()
    codes = rows.source_codes
    if codes is None:
        codes = np.full(len(rows), -1, np.int32)
    known = {
        "frame": rows.frames,
        "label": (rows.codes, rows.names),
        **{name: rows.boxes[:, at] for at, name in enumerate(_CORNERS)},
        "confidence": pyarrow.array(rows.confidences, mask=np.isnan(rows.confidences)),
        "track": pyarrow.array(rows.tracks, mask=rows.tracks < 0),
        "source": (codes, [one.name for one in rows.sources]),
        "model": (codes, [one.model for one in rows.sources]),
        "version": (codes, [one.version for one in rows.sources]),
        **before,
    }
    chosen = list(TABLES["detections"]) if columns is None else columns
    if "attributes" in chosen:
        texts = rows.attributes or [None] * len(rows)
        known["attributes"] = [json_text(dict(one)) if one else None for one in texts]
    return arrow_batch("detections", {name: known[name] for name in chosen if name in known})


def video_row(video: LogicalVideo) -> dict[str, Any]:
    """Return a row of the table "videos"."""
    original = video.original
    rate = original.mean_rate
    return {
        "name": video.name,
        "id": video.id,
        "digest": video.digest,
        "size": video.size,
        "modified_ns": video.modified_ns,
        "codec": original.media.codec,
        "container": original.media.container,
        "width": original.media.display_width,
        "height": original.media.display_height,
        "frames": original.frames,
        "seconds": float(original.duration),
        "fps": None if rate is None else float(rate),
        "tags": sorted(video.tags),
        "metadata": json_text(dict(video.metadata)),
        "captured_ns": None if video.captured is None else video.captured.ns,
    }


def videos_batch(
    videos: Sequence[LogicalVideo], columns: Sequence[str] | None = None
) -> pyarrow.RecordBatch:
    """Return videos as a batch of the table "videos".  `columns`: as for `detections_batch`."""
    rows = [video_row(video) for video in videos]
    names = TABLES["videos"] if columns is None else columns
    made: dict[str, Any] = {name: [row[name] for row in rows] for name in names}
    if "name" in made:
        made["name"] = list(map(storable, made["name"]))
    for name in {"codec", "container"} & made.keys():
        made[name] = coded(made[name])
    return arrow_batch("videos", made)
