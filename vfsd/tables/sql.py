"""The tables of a store as Arrow streams, and as views of DuckDB that are scanned when a statement
reads them.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from functools import cache
from itertools import islice
from reprlib import repr as shown
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from vfsd.core.arrow_tables import (
    TABLES,
    arrow_batch,
    arrow_schema,
    coded,
    detections_batch,
    json_text,
    repeated,
    require_columns,
    require_pyarrow,
    storable,
    videos_batch,
)
from vfsd.core.frame_table_pages import KEY, Ints
from vfsd.core.frames import to_display_rect
from vfsd.errors import ExtraMissingError, NotFoundError, UsageError
from vfsd.read.vector_blocks import read_block
from vfsd.tiling import Rect
from vfsd.validation import boolean

if TYPE_CHECKING:
    import duckdb
    import pyarrow

    from vfsd.api.store import Store
    from vfsd.catalog import Catalog
    from vfsd.core.frame_table import FrameTable
    from vfsd.core.model import LoggedRead, LogicalVideo, Segment

BATCH_ROWS = 65_536
"""Most rows of a batch; smaller ones are joined up to about as many."""

_Batches = Iterator["pyarrow.RecordBatch"]
_Make = Callable[["Store", "Iterator[LogicalVideo]", Sequence[str]], _Batches]


def to_arrow(
    store: Store,
    table: str,
    names: str | Iterable[str] | None = None,
    *,
    columns: Iterable[str] | None = None,
) -> pyarrow.RecordBatchReader:
    """A stream of one table; see `Store.to_arrow`."""
    chosen = require_columns(table, columns)
    found = matching_names(store, names)
    return require_pyarrow().RecordBatchReader.from_batches(
        arrow_schema(table, chosen), batches(store, table, found, chosen)
    )


def matching_names(store: Store, names: str | Iterable[str] | None) -> list[str] | None:
    """The names of the videos that some names or patterns select, sorted; None: all.

    Raises `NotFoundError` for a name without ``*``, ``?`` or ``[`` that no video has.
    """
    if names is None:
        return None
    given = [names] if isinstance(names, str) else list(names)
    found: set[str] = set()
    for one in given:
        if not isinstance(one, str):
            raise UsageError(
                f"names must be names or patterns, got {shown(one)}", hint='for example "cam1/**"'
            )
        some = store.catalog.find(one).names() if set("*?[") & set(one) else []
        found.update(some or ([] if set("*?[") & set(one) else [store.catalog.video(one).name]))
    return sorted(found)


def batches(
    store: Store, table: str, names: Sequence[str] | None, columns: Sequence[str]
) -> _Batches:
    """Yield a table's rows of the videos with these names; None: of all.

    Videos that are removed or overwritten in the meantime are skipped.
    """
    made = _TABLES[table](store, _find(store.catalog, names), columns)
    waiting: list[Any] = []
    rows = 0
    # A store of many short videos would give as many tiny batches.
    for batch in made:
        waiting.append(batch)
        rows += batch.num_rows
        if rows >= BATCH_ROWS:
            yield from _joined(waiting)
            waiting, rows = [], 0
    yield from _joined(waiting)


def _joined(parts: Sequence[Any]) -> _Batches:
    if parts:
        table = require_pyarrow().Table.from_batches(parts)
        yield from table.unify_dictionaries().combine_chunks().to_batches(BATCH_ROWS)


def _find(catalog: Catalog, names: Sequence[str] | None) -> Iterator[LogicalVideo]:
    if names is None:
        yield from catalog.find()
        return
    for name in names:
        with suppress(NotFoundError):
            yield catalog.video(name)


# -- one function for each table


def _videos(store: Store, videos: Iterator[LogicalVideo], columns: Sequence[str]) -> _Batches:
    while some := list(islice(videos, 1000)):
        yield videos_batch(some, columns)


def _frames(store: Store, videos: Iterator[LogicalVideo], columns: Sequence[str]) -> _Batches:
    for video in videos:
        with suppress(NotFoundError):
            table = store.catalog.frame_table(video.original)
            for start in range(0, len(table), BATCH_ROWS):
                frames = range(start, min(start + BATCH_ROWS, len(table)))
                yield arrow_batch("frames", _frame_columns(video, table, frames, columns))


def _frame_columns(
    video: LogicalVideo, table: FrameTable, frames: range, columns: Sequence[str]
) -> dict[str, Any]:
    known: dict[str, Any] = {"name": repeated(video.name, len(frames))}
    known["frame"] = np.arange(frames.start, frames.stop)
    wanted = set(columns)
    base = video.original.time_base
    if wanted & {"pts", "seconds", "duration"}:
        pts = table.pts(frames.start, frames.stop + 1)
        if frames.stop >= len(table):
            pts = np.append(pts, table.end_pts)
        known["pts"] = pts[:-1]
        known["seconds"] = _seconds(pts[:-1] - video.original.first_pts, base)
        known["duration"] = _seconds(np.maximum(np.diff(pts), 0), base)
    if wanted & {"key", "packet", "position", "size"}:
        packets = table.packets_of(frames)
        first = int(packets.min())
        stored = table.columns(first, int(packets.max()) + 1)
        known["packet"] = packets
        known["key"] = (stored.flags[packets - first] & KEY) != 0
        known["position"] = stored.position[packets - first]
        known["size"] = stored.size[packets - first]
    return {name: known[name] for name in columns}


def _seconds(ticks: Ints, base: Fraction) -> Any:
    """Ticks as seconds, rounded once, as a `Fraction` would be."""
    return ticks * base.numerator / base.denominator


def _detections(store: Store, videos: Iterator[LogicalVideo], columns: Sequence[str]) -> _Batches:
    for video in videos:
        with suppress(NotFoundError):
            table = store.catalog.frame_table(video.original) if "seconds" in columns else None
            for rows in store.catalog.detections.find(video).batches(BATCH_ROWS):
                before: dict[str, Any] = {"name": repeated(video.name, len(rows))}
                if table is not None:
                    ticks = table.pts_of(rows.frames) - video.original.first_pts
                    before["seconds"] = _seconds(ticks, video.original.time_base)
                yield detections_batch(rows, before, columns)


def _reads(store: Store, videos: Iterator[LogicalVideo], columns: Sequence[str]) -> _Batches:
    for video in videos:
        with suppress(NotFoundError):
            found = store.catalog.reads(video)
            while some := list(islice(found, BATCH_ROWS)):
                known = {"name": repeated(video.name, len(some)), **_read_columns(some)}
                yield arrow_batch("reads", {name: known[name] for name in columns})


def _read_columns(reads: Sequence[LoggedRead]) -> dict[str, Any]:
    plain = (
        *("at_ns", "first_frame", "end_frame", "frames", "pixels", "untiled_pixels", "predicted"),
        *("untiled_predicted", "seconds", "segments", "tiles", "original_frames"),
    )
    return {
        **{name: [getattr(read, name) for read in reads] for name in plain},
        **{name: [getattr(read.region, name) for read in reads] for name in _CORNERS},
        "kind": coded(read.kind for read in reads),
        "width": [None if read.size is None else read.size[0] for read in reads],
        "height": [None if read.size is None else read.size[1] for read in reads],
        "labels": [None if read.labels is None else json_text(read.labels) for read in reads],
    }


def _tiles(store: Store, videos: Iterator[LogicalVideo], columns: Sequence[str]) -> _Batches:
    for video in videos:
        number = video.original.id
        with store.catalog.reading() as seen:
            found = [
                *(("tiled", one) for one in seen.segments.active(number)),
                *(("tiled", one) for one in seen.segments.retired(number)),
                *(("rendition", one) for one in seen.segments.renditions(number)),
                *(("joined", one) for one in seen.segments.joined(number)),
            ]
        rows = [row for role, one in found for row in _tile_rows(video, role, one)]
        if rows:
            known: dict[str, Any] = {name: [row[name] for row in rows] for name in rows[0]}
            known["name"] = repeated(video.name, len(rows))
            for name in ("role", "profile"):
                known[name] = coded(known[name])
            yield arrow_batch("tiles", {name: known[name] for name in columns})


def _vectors(store: Store, videos: Iterator[LogicalVideo], columns: Sequence[str]) -> _Batches:
    pyarrow = require_pyarrow()
    for video in videos:
        with store.catalog.reading() as seen:
            blocks = seen.vectors.of_video(video.id)
            sources = seen.detections.sources_by_id({block.source_id for block in blocks})
        for block in blocks:
            source = sources[block.source_id]
            known: dict[str, Any] = {
                "name": repeated(video.name, block.rows - block.lost),
                "source": repeated(source.name, block.rows - block.lost),
                "model": repeated(source.model, block.rows - block.lost),
                "version": repeated(source.version, block.rows - block.lost),
            }
            runs, matrix = block.frames, None
            if "vector" in columns:
                runs, matrix = read_block(store.parts.objects, block)
            runs = runs[runs[:, 0] >= 0]
            known["first_frame"], known["end_frame"] = runs[:, 0], runs[:, 1]
            if matrix is not None:
                numbers = pyarrow.array(matrix.astype(np.float32).ravel())
                ends = np.arange(0, len(numbers) + 1, block.dimension, dtype=np.int32)
                known["vector"] = pyarrow.ListArray.from_arrays(ends, numbers)
            yield arrow_batch("vectors", {name: known[name] for name in columns})


def _tile_rows(video: LogicalVideo, role: str, segment: Segment) -> Iterator[dict[str, Any]]:
    width, height = segment.picture
    media = replace(video.original.media, width=width, height=height)
    for cell in segment.cells:
        # The rectangle of a joined cell is a part of the pack, not of the picture.
        area = Rect(0, 0, width, height) if segment.is_joined else cell.rect
        rect = to_display_rect(area, media)
        yield {
            "segment": segment.id,
            "role": role,
            "first_frame": segment.first_frame,
            "end_frame": segment.end_frame,
            "tile": cell.tile,
            **{name: getattr(rect, name) for name in _CORNERS},
            "width": media.display_width,
            "height": media.display_height,
            "profile": segment.profile,
            "size": cell.size,
            "psnr": cell.psnr,
            "retired": segment.retired_ns is not None,
            "created_ns": segment.created_ns,
        }


_CORNERS = ("x1", "y1", "x2", "y2")
_TABLES: Mapping[str, _Make] = MappingProxyType(
    {
        "videos": _videos,
        "frames": _frames,
        "detections": _detections,
        "reads": _reads,
        "tiles": _tiles,
        "vectors": _vectors,
    }
)


def connect(store: Store, *, external_access: bool = False) -> duckdb.DuckDBPyConnection:
    """A new connection with the tables of a store; see `Store.duckdb`."""
    try:
        import duckdb
    except ImportError:
        raise ExtraMissingError(
            "duckdb is not installed", hint="pip install 'vfsd[duckdb]'"
        ) from None
    require_pyarrow()
    external_access = boolean(external_access, "external_access")
    # Statements that need more memory spill there; the default is a directory in the current one.
    spill = os.path.join(tempfile.gettempdir(), f"vfsd-duckdb-{os.getpid()}")
    connection = duckdb.connect(":memory:", config={"temp_directory": spill})
    try:
        for name in TABLES:
            connection.register(name, _dataset_class()(store, name))
        if not external_access:
            for setting in _CLOSED:
                connection.execute(f"SET {setting}")
    except BaseException:
        connection.close()
        raise
    return connection


_CLOSED = (
    # Neither files nor the network, nor extensions that would open them.
    "enable_external_access = false",
    # No variables of the calling program as tables.
    "python_enable_replacements = false",
    # Last: a statement cannot undo the others.
    "lock_configuration = true",
)


@cache
def _dataset_class() -> type[Any]:
    """The class of the views; pyarrow is imported when it is needed."""
    dataset = require_pyarrow_dataset()

    class StoreTable(dataset.Dataset):  # type: ignore[misc, name-defined]
        """A table of a store that DuckDB scans like a data set of pyarrow.

        DuckDB passes the columns and the conditions of a statement, so only these columns are
        computed, and only the videos are read that `name` may match.
        """

        def __init__(self, store: Store, table: str) -> None:
            # That of pyarrow refuses to be called.
            self._store = store
            self._table = table

        @property
        def schema(self) -> pyarrow.Schema:
            return arrow_schema(self._table)

        def scanner(
            self, columns: Sequence[str] | None = None, filter: Any = None, **options: Any
        ) -> Any:
            every = require_columns(self._table)
            wanted = every if columns is None else columns
            # More than the condition names, at worst: a word in it may be a text.
            words = set(re.findall(r"\w+", str(filter)))
            needed = [name for name in every if name in wanted or name in words]
            return dataset.Scanner.from_batches(
                batches(self._store, self._table, self._names(filter), needed),
                schema=arrow_schema(self._table, needed),
                columns=None if columns is None else list(columns),
                filter=filter,
                **{key: value for key, value in options.items() if key in _SCANNER_OPTIONS},
            )

        def _names(self, filter: Any) -> list[str] | None:
            """The videos that may satisfy a condition; None: all."""
            if filter is None or "name" not in str(filter):
                return None
            names = self._store.catalog.find().names()
            known = {storable(name): name for name in names}
            shown = dict(zip(map(str, range(len(names))), known, strict=False))
            # pyarrow leaves out the files whose partition contradicts a condition; none is opened.
            parts = dataset.FileSystemDataset.from_paths(
                list(shown),
                schema=arrow_schema(self._table),
                format=dataset.ParquetFileFormat(),
                filesystem=_local_files(),
                partitions=[dataset.field("name") == name for name in shown.values()],
            )
            return [known[shown[part.path]] for part in parts.get_fragments(filter)]

    return StoreTable


_SCANNER_OPTIONS = MappingProxyType({"batch_size": 0, "use_threads": 0, "memory_pool": 0})


def require_pyarrow_dataset() -> Any:
    """Return the module pyarrow.dataset.  Raises `ExtraMissingError`."""
    require_pyarrow()
    import pyarrow.dataset

    return pyarrow.dataset


def _local_files() -> Any:
    import pyarrow.fs

    return pyarrow.fs.LocalFileSystem()
