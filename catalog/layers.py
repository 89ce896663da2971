"""Layers and their indexes, within one transaction."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from vfsd.catalog.detections import Detections
from vfsd.catalog.rows import in_batches, reads_row
from vfsd.catalog.schema import layer_indexes, layers, physical_videos
from vfsd.core.detections import Ints, Source
from vfsd.core.layers import (
    LayerMeaning,
    StoredIndex,
    StoredLayer,
    frames_from_bytes,
    frames_to_bytes,
)
from vfsd.core.model import Role
from vfsd.errors import ExistsError, ForbiddenError


class Layers:
    """Layers of videos."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def of_video(self, video_id: int) -> list[StoredLayer]:
        """Return the layers of a video, by name."""
        return self._select(layers.c.video_id == video_id)

    def of_file(self, file_id: int) -> StoredLayer | None:
        """Return the layer whose maps a video has, or None."""
        found = self._select(layers.c.file_id == file_id)
        return found[0] if found else None

    def all(self) -> list[StoredLayer]:
        return self._select(sa.true())

    def add(
        self,
        video_id: int,
        name: str,
        file_id: int,
        frames: Ints | None,
        meaning: LayerMeaning,
        source: Source | None,
        *,
        now_ns: int,
    ) -> StoredLayer:
        """Add a layer.

        Raises `ExistsError` where the video has a layer of that name, or the file is a layer
        already.
        """
        if any(one.name == name for one in self.of_video(video_id)):
            raise ExistsError(f"the video has a layer {name!r} already", hint="remove it first")
        if self.of_file(file_id) is not None:
            raise ExistsError("the file is a layer already", hint="remove that layer first")
        if self.of_video(file_id) or self.of_file(video_id) is not None or video_id == file_id:
            raise ForbiddenError("a layer cannot have layers of its own")
        self._connection.execute(
            sa.insert(layers).values(
                video_id=video_id,
                name=name,
                file_id=file_id,
                frames=None if frames is None else frames_to_bytes(frames),
                scale=meaning.scale,
                zero=meaning.zero,
                unit=meaning.unit,
                source_id=(
                    None if source is None else Detections(self._connection).source_id(source)
                ),
                created_ns=now_ns,
            )
        )
        (added,) = self._select(layers.c.file_id == file_id)
        return added

    def remove(self, layer_id: int) -> None:
        """Remove a layer and its index; its file stays."""
        file = sa.select(layers.c.file_id).where(layers.c.id == layer_id)
        encodings = sa.select(physical_videos.c.id).where(physical_videos.c.video_id.in_(file))
        self._connection.execute(
            sa.delete(layer_indexes).where(layer_indexes.c.physical_id.in_(encodings))
        )
        self._connection.execute(sa.delete(layers).where(layers.c.id == layer_id))

    def remove_of_video(self, video_id: int) -> None:
        """Remove what the bytes of a video were before: a layer, or a video with layers."""
        self._connection.execute(
            sa.delete(layers).where(
                sa.or_(layers.c.video_id == video_id, layers.c.file_id == video_id)
            )
        )

    def _select(self, condition: sa.ColumnElement[bool]) -> list[StoredLayer]:
        rows = self._connection.execute(
            sa.select(layers).where(condition).order_by(layers.c.video_id, layers.c.name)
        ).all()
        known = {row.source_id for row in rows if row.source_id is not None}
        found = Detections(self._connection).sources_by_id(known) if known else {}
        return [_layer_from_row(row, found.get(row.source_id)) for row in rows]


class LayerIndexes:
    """Indexes of layers: derived data.  A video id of None means all videos."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def get(self, physical_id: int) -> StoredIndex | None:
        found = self._select(layer_indexes.c.physical_id == physical_id)
        return found[0] if found else None

    def held(self, video_id: int | None) -> list[StoredIndex]:
        """Return the indexes of the layer in a file, or all, oldest first."""
        return self._select(_is_of(video_id))

    def in_object(self, key: str) -> list[StoredIndex]:
        """Return the indexes in an object: one for each layer with the same bytes."""
        return self._select(layer_indexes.c.object_key == key)

    def put(self, index: StoredIndex) -> None:
        """Record an index whose object is recorded, in place of an earlier one."""
        self._connection.execute(
            sa.delete(layer_indexes).where(layer_indexes.c.physical_id == index.physical_id)
        )
        self._connection.execute(
            sa.insert(layer_indexes).values(
                physical_id=index.physical_id,
                object_key=index.object_key,
                size=index.size,
                cell=index.cell,
                bins=index.bins,
                built_ns=index.built_ns,
            )
        )

    def delete(self, keys: Iterable[str] | None = None) -> None:
        """Delete the indexes in these objects; by default all."""
        parts = [sa.true()] if keys is None else in_batches(layer_indexes.c.object_key, keys)
        for some in parts:
            self._connection.execute(sa.delete(layer_indexes).where(some))

    def free(self, video_id: int | None, excess: int, keep: Collection[int] = ()) -> list[str]:
        """Delete the oldest indexes, at least `excess` bytes if there are as many.

        `keep` are ids of encodings whose indexes stay.  Returns the keys of their objects.
        """
        gone: list[StoredIndex] = []
        for one in self.held(video_id):
            if sum(other.size for other in gone) >= excess:
                break
            if one.physical_id not in keep:
                gone.append(one)
        keys = [one.object_key for one in gone]
        self.delete(keys)
        return keys

    def _select(self, condition: sa.ColumnElement[bool]) -> list[StoredIndex]:
        rows = self._connection.execute(
            sa.select(layer_indexes).where(condition).order_by(layer_indexes.c.built_ns)
        )
        return [_index_from_row(row) for row in rows]


def _is_of(video_id: int | None) -> sa.ColumnElement[bool]:
    if video_id is None:
        return sa.true()
    mine = sa.select(physical_videos.c.id).where(
        physical_videos.c.video_id == video_id, physical_videos.c.role == Role.ORIGINAL.value
    )
    return layer_indexes.c.physical_id.in_(mine)


@reads_row(layers)
def _layer_from_row(row: Row[Any], source: Source | None) -> StoredLayer:
    return StoredLayer(
        row.id,
        row.video_id,
        row.name,
        row.file_id,
        None if row.frames is None else frames_from_bytes(row.frames),
        LayerMeaning(row.scale, row.zero, row.unit),
        source,
        row.created_ns,
    )


@reads_row(layer_indexes)
def _index_from_row(row: Row[Any]) -> StoredIndex:
    return StoredIndex(row.physical_id, row.object_key, row.size, row.cell, row.bins, row.built_ns)
