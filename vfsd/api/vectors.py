"""`VideoVectors`: the vectors that models gave runs of frames, reached as `Video.vectors`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from reprlib import repr as shown
from typing import Any

import numpy as np
import numpy.typing as npt

from vfsd.catalog import Transaction
from vfsd.catalog.detection_query import require_same_bytes
from vfsd.core.detections import Ints, Source, source_from
from vfsd.core.vectors import (
    Matrix,
    StoredVectors,
    Vectors,
    VectorSummary,
    encode_block,
    joined_matrix,
    require_matrix,
    require_runs,
)
from vfsd.errors import ExistsError, NotFoundError, OutOfRangeError, UsageError
from vfsd.read.read_context import VideoContext
from vfsd.read.vector_blocks import read_block
from vfsd.storage.reclaim import reclaim_or_log
from vfsd.validation import boolean
from vfsd.write.ingest_file import pending_bytes

_MOST_BLOCKS = 8
"""Blocks of one source in a video; more are joined, since each costs a search a read."""
_TRIES = 8


class VideoVectors:
    """The vectors of one video: numbers that models gave single frames or runs of frames.

        clip = Source("clip", "ViT-B/32")
        video.vectors.add(matrix, [(0, 30), (30, 60)], clip)  # N x 512, float16 or float32
        video.vectors.get(clip).matrix
        store.nearest((video.name, (0, 30)), 20)

    They are kept like originals: in backups, and until they are removed or the bytes of the video
    change.
    """

    def __init__(self, video: VideoContext) -> None:
        video.require_finished("vectors")
        self._video = video

    def add(
        self,
        matrix: Matrix | npt.NDArray[Any] | Sequence[npt.NDArray[Any]],
        frames: Sequence[int] | Sequence[tuple[int, int]] | Sequence[range] | npt.NDArray[Any],
        source: str | Source,
        *,
        replace: bool = False,
    ) -> int:
        """Add vectors in one transaction; returns their number.

        Args:
            matrix: N x dimension, float16 or float32, stored exactly as given.
            frames: For each vector a frame number, a pair (first, end) or a range; the end is
                exclusive.  Runs may overlap, but none may come twice.
            source: The model.  Its vectors have one dimension in the whole store.
            replace: Remove all earlier vectors of the source in this video.

        Raises:
            UsageError: The numbers are of another type or not finite, or do not fit the frames or
                the earlier vectors of the source.
            OutOfRangeError: The video has no such frame.
            ExistsError: The source has a vector for the same run; nothing is added.
            NotFoundError: The bytes of the video have changed.
        """
        parts = self._video.parts
        parts.require_writable()
        rows, who = require_matrix(matrix), source_from(source)
        runs = require_runs(frames, len(rows))
        is_replacing = boolean(replace, "replace")
        end = int(runs[:, 1].max(initial=0))
        if end > self._video.original.frames:
            raise OutOfRangeError(
                f"{self._video.name!r} has no frame {end - 1}: it has frames 0 to "
                f"{self._video.original.frames - 1}",
                hint="frames count from 0, and the end of a run is exclusive",
            )
        if not len(rows):
            return 0
        order = np.lexsort((runs[:, 1], runs[:, 0]))
        rows, runs = rows[order], runs[order]
        with parts.catalog.reading() as seen:  # before the bytes are written
            self._require_new(seen, rows, runs, who, is_replacing)
        for may_join in (*[True] * _TRIES, False):
            try:
                gone = self._add_block(rows, runs, who, is_replacing, may_join)
            except _OutdatedError:
                continue
            reclaim_or_log(parts, keys=gone)
            break
        return len(rows)

    def get(self, source: str | Source | None = None) -> Vectors:
        """The vectors of a source, by first frame; None: of the only one.

        Raises `NotFoundError` without any, `UsageError` where several sources fit, and
        `IntegrityError` for damaged bytes.
        """
        parts = self._video.parts
        with parts.catalog.reading() as seen:
            require_same_bytes(seen.detections, self._video.info)
            here = sorted({one.source_id for one in seen.vectors.of_video(self._video.info.id)})
            number = chosen_source(seen, here, source, f"{self._video.name!r}")
            who = seen.detections.sources_by_id([number])[number]
            blocks = seen.vectors.of_video(self._video.info.id, [number])
        found = [read_block(parts.objects, block) for block in blocks]
        runs = np.concatenate([one.runs for one in found])
        order = np.lexsort((runs[:, 1], runs[:, 0]))
        return Vectors(who, runs[order], joined_matrix([one.matrix for one in found])[order])

    def sources(self) -> list[VectorSummary]:
        """The sources of the video's vectors, in order of arrival, with the number of each."""
        with self._video.parts.catalog.reading() as seen:
            return summaries(seen, self._video.info.id)

    def remove(self, source: str | Source | None = None) -> int:
        """Remove the vectors of a source, by default of all; returns their number."""
        parts = self._video.parts
        parts.require_writable()
        with parts.catalog.writing() as change:
            require_same_bytes(change.detections, self._video.info)
            which = None if source is None else change.detections.known_sources(source)
            blocks = change.vectors.of_video(self._video.info.id, which)
            change.vectors.remove(block.id for block in blocks)
        reclaim_or_log(parts, keys={block.object_key for block in blocks})
        return sum(block.rows - block.lost for block in blocks)

    def _add_block(
        self, rows: Matrix, runs: Ints, who: Source, is_replacing: bool, may_join: bool
    ) -> set[str]:
        """Store vectors as one block; return the objects that may be unused now.

        Raises `_OutdatedError` where another process has changed the blocks that these vectors were
        joined with.
        """
        parts, video = self._video.parts, self._video.info
        joined: list[StoredVectors] = []
        if may_join and not is_replacing:
            with parts.catalog.reading() as seen:
                known = seen.vectors.of_video(video.id, seen.detections.known_sources(who))
            joined = _to_join(known, rows)
        before = [read_block(parts.objects, block) for block in joined]
        whole = joined_matrix([*(one.matrix for one in before), rows])
        frames = np.concatenate([*(one.runs for one in before), runs])
        with (
            pending_bytes(parts, encode_block(whole), f"vectors of {video.name}") as pending,
            pending.recorded() as change,
        ):
            require_same_bytes(change.detections, video)
            self._require_new(change, rows, runs, who, is_replacing)
            number = change.detections.source_id(who)
            there = change.vectors.of_video(video.id, [number])
            if is_replacing:
                joined = there
            elif any(one not in there for one in joined):
                raise _OutdatedError
            change.vectors.remove(one.id for one in joined)
            change.vectors.add(
                video.id, number, pending.key, whole.shape[1], whole.dtype.name, frames
            )
        return {one.object_key for one in joined} - {pending.key}

    def _require_new(
        self, seen: Transaction, rows: Matrix, runs: Ints, who: Source, is_replacing: bool
    ) -> None:
        """Raise an error unless the vectors fit those that the source has already."""
        video = self._video.info
        for number in seen.detections.known_sources(who):
            there = [] if is_replacing else seen.vectors.of_video(video.id, [number])
            for one in there:
                again = np.isin(_run_numbers(runs), _run_numbers(one.frames))
                if again.any():
                    raise ExistsError(
                        f"{video.name!r} has a vector of {who} for the frames "
                        f"{tuple(runs[int(np.argmax(again))].tolist())}",
                        hint="`replace` removes its earlier vectors; another source keeps both",
                        command_hint="`--replace` removes its earlier vectors; another source "
                        "keeps both",
                    )
            dimension = seen.vectors.dimension(number)
            if dimension not in (None, rows.shape[1]):
                raise UsageError(
                    f"vectors of {who} have {dimension} numbers, got {rows.shape[1]}",
                    hint="name the other model, as in Source('clip', 'ViT-L/14')",
                    command_hint="name the other model with --model or --version",
                )


def _run_numbers(runs: Ints) -> Ints:
    """Return one number for each run (N x 2), equal for equal runs."""
    found: Ints = (runs[:, 0] << 32) | runs[:, 1]
    return found


class _OutdatedError(Exception):
    """The blocks to join have changed."""


def chosen_source(
    seen: Transaction, there: Iterable[int], source: str | Source | None, where: str
) -> int:
    """Return the id of the one source among `there` that a caller means; None: the only one.

    `where` is for messages.  Raises `NotFoundError`, `UsageError`.
    """
    wanted = set(there)
    if source is not None:
        if not isinstance(source, str | Source):
            raise UsageError(f"source must be a name or a Source, got {shown(source)}")
        wanted &= set(seen.detections.known_sources(source))
    if not wanted:
        of = "" if source is None else f" of {source}"
        raise NotFoundError(
            f"{where} has no vectors{of}",
            hint="`video.vectors.add` adds some",
            command_hint="`vfsd vectors ls` lists those there are",
        )
    if len(wanted) > 1:
        names = ", ".join(map(str, seen.detections.sources_by_id(wanted).values()))
        raise UsageError(
            f"{where} has vectors of several sources: {names}",
            hint="name one, if need be by a Source with its model and version",
            command_hint="name one with --source, --model and --version",
        )
    return wanted.pop()


def summaries(seen: Transaction, video_id: int) -> list[VectorSummary]:
    """Return the sources of a video's vectors, in order of arrival."""
    found: dict[int, list[StoredVectors]] = {}
    for block in seen.vectors.of_video(video_id):
        found.setdefault(block.source_id, []).append(block)
    sources = seen.detections.sources_by_id(found)
    return [
        _summary(sources[number], blocks)
        for number, blocks in found.items()
        if any(block.rows > block.lost for block in blocks)
    ]


def _summary(source: Source, blocks: Sequence[StoredVectors]) -> VectorSummary:
    runs = np.concatenate([block.frames for block in blocks])
    runs = runs[runs[:, 0] >= 0]
    is_half = all(block.dtype == "float16" for block in blocks)
    return VectorSummary(
        source,
        len(runs),
        blocks[0].dimension,
        "float16" if is_half else "float32",
        int(runs[:, 0].min()),
        int(runs[:, 1].max()),
    )


def _to_join(blocks: Sequence[StoredVectors], rows: Matrix) -> list[StoredVectors]:
    """Return the newest blocks that a new one with `rows` joins; none while there is room.

    A block is joined while all newer ones together are as large, so that each vector is written
    again a few times at most, however many are added one by one.
    """
    if len(blocks) < _MOST_BLOCKS:
        return []
    found: list[StoredVectors] = []
    total = len(rows)
    for block in reversed(blocks):
        if block.dtype != rows.dtype.name or (found and block.rows > total):
            break
        found.append(block)
        total += block.rows
    return found
