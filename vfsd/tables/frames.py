"""Frames of many videos as Arrow batches: `read_frames`, and the blocks that task engines read.

A block has whole GOPs, so that no frame is decoded for two blocks.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from vfsd.api.reading import rect_of, sides_in
from vfsd.api.store import Store
from vfsd.api.video import Video, context_of
from vfsd.core.arrow_tables import require_pyarrow
from vfsd.core.frame_table_pages import Ints
from vfsd.core.frames import Frames
from vfsd.core.timebase import Seconds, frame_rate
from vfsd.core.view_request import Size
from vfsd.errors import OutdatedError, UsageError
from vfsd.tiling import Rect, Region
from vfsd.validation import decibels, not_one_of, whole_number

if TYPE_CHECKING:
    import pyarrow

_BLOCK_BYTES = 32 << 20
"""Pixels of a block; a GOP with more is a block of its own."""
_BATCH_BYTES = 32 << 20
_FORMATS = {"rgb24": 3, "bgr24": 3, "gray": 1}
"""Pixel formats, and their channels."""

COLUMNS = ("name", "frame", "pts", "seconds", "damaged", "data")


@dataclass(frozen=True, slots=True)
class FrameBlock:
    """Frames of one video that are read together."""

    name: str  #: of the video
    digest: str  #: BLAKE3 of its bytes
    frames: Ints  #: numbers, ascending
    size: tuple[int, int]  #: (width, height) of the pictures
    pixel_bytes: int  #: of all pictures
    file_bytes: int  #: of the packets to decode, approximately


class FrameSource:
    """Frames of videos of a store, with the arguments of `read_frames`.  Can be pickled."""

    def __init__(
        self,
        store: Store | str | os.PathLike[str],
        names: str | Iterable[str] | None = None,
        *,
        every: int = 1,
        fps: Seconds | None = None,
        region: Region | None = None,
        size: Size | None = None,
        format: str = "rgb24",
        psnr: float | None = None,
    ) -> None:
        """Check the arguments; see `read_frames`."""
        self._every = whole_number(every, "every")
        if self._every < 1:
            raise UsageError(f"every must be at least 1, got {every}")
        self._fps = None if fps is None else frame_rate(fps)
        if self._fps is not None and every != 1:
            raise UsageError("give either every or fps, not both")
        if format not in _FORMATS:
            raise not_one_of("format", format, tuple(_FORMATS))
        self._region: Rect | None = rect_of(region)
        self._size = size
        self._format = format
        self._psnr = None if psnr is None else decibels(psnr)
        self._names = names if names is None or isinstance(names, str) else list(names)
        self._owns_store = not isinstance(store, Store)
        # One thread: an engine has a task for each core.
        self.store = store if isinstance(store, Store) else Store.open(store, threads=1)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_owns_store": False}

    def close(self) -> None:
        """Close the store, if it was opened here."""
        if self._owns_store:
            self.store.close()

    def blocks(self) -> list[FrameBlock]:
        """Return the blocks, which have each frame once.  Reads the frame table of each video.

        Raises `NotFoundError`, `OutOfRangeError` for a region outside of a video.
        """
        chosen = self.store.find() if self._names is None else self.store.named(self._names)
        return [block for video in chosen for block in self._blocks_of(video)]

    def _blocks_of(self, video: Video) -> Iterator[FrameBlock]:
        snapshot = context_of(video).snapshot()
        original, table = snapshot.original, snapshot.table
        if self._fps is None:
            frames = np.arange(0, len(snapshot), self._every, dtype=np.int64)
        else:
            frames = np.unique(snapshot.times.at_rate(self._fps, original.duration * 0))
        area = self._region or original.media.frame_rect
        if not original.media.frame_rect.contains(area):
            raise UsageError(f"the region {area} reaches outside the frame of {video.name}")
        width, height = sides_in(self._size, self._region, original.media) or (
            area.width,
            area.height,
        )
        one = width * height * _FORMATS[self._format]
        first, end = table.packets_to_decode(frames)
        starts = np.flatnonzero(np.diff(first, prepend=-1))  # of runs with one key packet
        bounds, begun = [0], 0
        for start in [*starts[1:].tolist(), len(frames)]:
            if (start - bounds[-1]) * one > _BLOCK_BYTES and bounds[-1] < begun:
                bounds.append(begun)
            begun = start
        for start, stop in zip(bounds, [*bounds[1:], len(frames)], strict=True):
            packets = int(end[stop - 1] - first[start])
            yield FrameBlock(
                video.name,
                video.info.digest or "",
                frames[start:stop],
                (width, height),
                (stop - start) * one,
                round(original.size * packets / max(1, len(snapshot))),
            )

    def read(self, block: FrameBlock) -> Iterator[Frames]:
        """Yield the frames of a block, some at a time.

        Raises `OutdatedError` if the video was written again since the blocks were planned.
        """
        video = self.store[block.name]
        if (video.info.digest or "") != block.digest:
            raise OutdatedError(
                f"the video {block.name!r} has been written again", hint="plan the blocks again"
            )
        step = max(1, _BATCH_BYTES * len(block.frames) // max(1, block.pixel_bytes))
        for at in range(0, len(block.frames), step):
            yield video.read(
                frames=block.frames[at : at + step].tolist(),
                region=self._region,
                size=self._size,
                format=self._format,
                psnr=self._psnr,
            )

    def columns(self, block: FrameBlock, frames: Frames) -> dict[str, Any]:
        """Return `COLUMNS` as arrays with a row for each frame."""
        return {
            "name": [block.name] * len(frames),
            "frame": frames.index,
            "pts": frames.pts,
            "seconds": frames.seconds,
            "damaged": frames.damaged,
            "data": frames.data.reshape(len(frames), *self.shape(block)),
        }

    def shape(self, block: FrameBlock) -> tuple[int, int, int]:
        """Return (height, width, channels) of the pictures."""
        return block.size[1], block.size[0], _FORMATS[self._format]


def read_frames(
    store: Store | str | os.PathLike[str],
    names: str | Iterable[str] | None = None,
    *,
    every: int = 1,
    fps: Seconds | None = None,
    region: Region | None = None,
    size: Size | None = None,
    format: str = "rgb24",
    psnr: float | None = None,
) -> pyarrow.RecordBatchReader:
    """Frames as a stream of Arrow batches, which are decoded while they are read.

        daft.from_arrow(read_frames("/srv/videos", "cam1/**", fps=1, size=(320, 180)).read_all())

    The columns are ``name``, ``frame`` (its number), ``pts`` (ticks), ``seconds``, ``damaged`` and
    ``data``: a tensor of height x width x channels, uint8, in the type arrow.fixed_shape_tensor.
    A batch has at most 32 MiB of pixels, and frames of one video in ascending order.

    Args:
        store: An open store, its directory, or the URL of its catalog as for `Store.open`.
        names: As for `Store.named`; default: all videos.
        every: Each so many frames, from frame 0 on.
        fps: The frames on screen at this rate instead.
        region: As for `Video.read`.
        size: As for `Video.read`; needed if the videos have several sizes.
        format: rgb24, bgr24 or gray.
        psnr: As for `Video.read`.

    Raises:
        UsageError: An argument is malformed, or the pictures differ in size.
        NotFoundError: A video does not exist.
        ExtraMissingError: pyarrow is not installed.
    """
    arrow = require_pyarrow()
    source = FrameSource(
        store,
        names,
        every=every,
        fps=fps,
        region=region,
        size=size,
        format=format,
        psnr=psnr,
    )
    try:
        blocks = source.blocks()
        sizes = {block.size for block in blocks}
        if len(sizes) > 1:
            raise UsageError(
                f"all pictures must have one size, got {len(sizes)} sizes",
                hint="give size=(width, height)",
            )
        shape = source.shape(blocks[0]) if blocks else (1, 1, _FORMATS[format])
        tensor = arrow.fixed_shape_tensor(arrow.uint8(), shape)
        types = ("string", "int64", "int64", "float64", "bool_")
        fields = [
            (name, getattr(arrow, kind)()) for name, kind in zip(COLUMNS, types, strict=False)
        ]
        schema = arrow.schema([*fields, ("data", tensor)])
    except BaseException:
        source.close()
        raise

    def batches() -> Iterator[Any]:
        try:
            for block in blocks:
                for frames in source.read(block):
                    found = source.columns(block, frames)
                    pixels = np.ascontiguousarray(found.pop("data"))
                    storage = arrow.FixedSizeListArray.from_arrays(pixels.ravel(), pixels[0].size)
                    data = arrow.ExtensionArray.from_storage(tensor, storage)
                    columns = [arrow.array(found[name], kind) for name, kind in fields]
                    yield arrow.RecordBatch.from_arrays([*columns, data], schema=schema)
        finally:
            with suppress(RuntimeError):
                source.close()

    return arrow.RecordBatchReader.from_batches(schema, batches())
