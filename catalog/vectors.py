"""Blocks of vectors, and the frames that they are about, within one transaction."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from vfsd.catalog.rows import in_batches, reads_row, require_bytes
from vfsd.catalog.schema import vectors
from vfsd.core.detections import Ints
from vfsd.core.vectors import StoredVectors, pack_runs, renumbered


class StoredVectorBlocks:
    """The blocks of vectors of all videos, by id of the video and of the source.

    The caller must check that the id of a video still means the same bytes.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def add(
        self, video_id: int, source_id: int, key: str, dimension: int, dtype: str, runs: Ints
    ) -> int:
        """Add a block whose object is recorded, and return its id; `runs` is N x 2."""
        made = self._connection.execute(
            sa.insert(vectors).values(
                video_id=video_id,
                source_id=source_id,
                object_key=key,
                dimension=dimension,
                dtype=dtype,
                rows=len(runs),
                lost=int((runs[:, 0] < 0).sum()),
                frames=pack_runs(runs),
            )
        )
        assert made.inserted_primary_key is not None
        return int(made.inserted_primary_key[0])

    def of_video(
        self, video_id: int, source_ids: Iterable[int] | None = None
    ) -> list[StoredVectors]:
        """Return the blocks of a video, in order of arrival."""
        query = sa.select(vectors).where(vectors.c.video_id == video_id).order_by(vectors.c.id)
        if source_ids is not None:
            query = query.where(vectors.c.source_id.in_(list(source_ids)))
        return [_block_from_row(row) for row in self._connection.execute(query)]

    def of_source(
        self, source_id: int, video_ids: Iterable[int] | None = None
    ) -> list[StoredVectors]:
        """Return the blocks of a source, by video, then in order of arrival.

        `video_ids` restricts them to some videos.
        """
        parts = [sa.true()] if video_ids is None else in_batches(vectors.c.video_id, video_ids)
        query = (
            sa.select(vectors)
            .where(vectors.c.source_id == source_id)
            .order_by(vectors.c.video_id, vectors.c.id)
        )
        return [
            _block_from_row(row)
            for some in parts
            for row in self._connection.execute(query.where(some))
        ]

    def all(self) -> list[StoredVectors]:
        """Return all blocks, in order of arrival."""
        rows = self._connection.execute(sa.select(vectors).order_by(vectors.c.id))
        return [_block_from_row(row) for row in rows]

    def source_ids(self) -> list[int]:
        """Return the ids of the sources that any video has vectors from."""
        query = sa.select(vectors.c.source_id).distinct().order_by(vectors.c.source_id)
        return list(self._connection.execute(query).scalars())

    def dimension(self, source_id: int) -> int | None:
        """Return the dimension of the vectors of a source; None without any."""
        query = sa.select(vectors.c.dimension).where(vectors.c.source_id == source_id).limit(1)
        found: int | None = self._connection.execute(query).scalar()
        return found

    def remove(self, ids: Iterable[int]) -> None:
        """Remove blocks; their objects stay recorded."""
        for some in in_batches(vectors.c.id, ids):
            self._connection.execute(sa.delete(vectors).where(some))

    def renumber(self, video_id: int, new_of: Ints) -> None:
        """Call frame ``i`` ``new_of[i]``; a negative number means that it no longer exists.

        A vector keeps the frames that are left of its run; without one, it is lost.
        """
        for block in self.of_video(video_id):
            runs = renumbered(block.frames, new_of)
            self._connection.execute(
                sa.update(vectors)
                .where(vectors.c.id == block.id)
                .values(frames=pack_runs(runs), lost=int((runs[:, 0] < 0).sum()))
            )


@reads_row(vectors)
def _block_from_row(row: Row[Any]) -> StoredVectors:
    return StoredVectors(
        row.id,
        row.video_id,
        row.source_id,
        row.object_key,
        row.dimension,
        row.dtype,
        row.rows,
        row.lost,
        require_bytes(row.frames),
    )
