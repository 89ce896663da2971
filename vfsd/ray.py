"""A data source of Ray Data: frames of the videos of a store, decoded by the tasks of Ray.

    from vfsd.ray import VfsdSource

    source = VfsdSource("postgresql+psycopg://vfsd@db/videos", "cam1/**", fps=2, size=(320, 180))
    ray.data.read_datasource(source).map_batches(model, batch_size=32)

Workers find the store in the same directory, or else by the URL of its catalog.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import accumulate
from typing import Any, TypedDict, Unpack

from vfsd.api.store import Store
from vfsd.core.timebase import Seconds
from vfsd.core.view_request import Size
from vfsd.errors import ExtraMissingError
from vfsd.tables.frames import FrameBlock, FrameSource
from vfsd.tiling import Region

try:
    from ray.data.block import BlockMetadata
    from ray.data.datasource import Datasource, ReadTask
    from ray.data.extensions import ArrowTensorArray
except ImportError as error:
    raise ExtraMissingError(
        "Ray Data is not installed", hint="pip install 'vfsd[ray-data]'"
    ) from error


class FrameOptions(TypedDict, total=False):
    """The arguments of `vfsd.tables.frames.read_frames` besides the store and the names."""

    every: int
    fps: Seconds | None
    region: Region | None
    size: Size | None
    format: str
    psnr: float | None


class VfsdSource(Datasource):  # type: ignore[misc]
    """Frames for `ray.data.read_datasource`.

    A row has ``name``, ``frame``, ``pts``, ``seconds``, ``damaged`` and ``data``, a tensor of
    height x width x channels.  Each frame is in one row.  Regions, sizes and rates are parts of
    the read plan, so only what is needed is fetched and decoded.
    """

    def __init__(
        self,
        store: Store | str | os.PathLike[str],
        names: str | Iterable[str] | None = None,
        **options: Unpack[FrameOptions],
    ) -> None:
        """Plan the blocks.  The arguments and errors are those of `read_frames`.

        Pictures may have several sizes.  An opened `store` is used while this process plans.
        """
        super().__init__()
        self._source = FrameSource(store, names, **options)
        self._blocks = self._source.blocks()

    def get_name(self) -> str:
        return "Vfsd"

    def estimate_inmemory_data_size(self) -> int:
        return sum(block.pixel_bytes for block in self._blocks)

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: Any = None
    ) -> list[ReadTask]:
        """Return at most `parallelism` tasks of about the same cost."""
        return [self._task(part, per_task_row_limit) for part in _parts(self._blocks, parallelism)]

    def _task(self, blocks: Sequence[FrameBlock], limit: int | None) -> ReadTask:
        metadata = BlockMetadata(
            num_rows=sum(len(block.frames) for block in blocks),
            size_bytes=sum(block.pixel_bytes for block in blocks),
            exec_stats=None,
            input_files=tuple(dict.fromkeys(block.name for block in blocks)),
        )
        read = partial(_read, self._source, tuple(blocks))
        return ReadTask(read, metadata, per_task_row_limit=limit)


def _parts(blocks: Sequence[FrameBlock], most: int) -> Iterator[list[FrameBlock]]:
    """Yield the blocks in at most `most` parts of neighbours."""
    # Decoding costs more than the pixels that come out of it.
    costs = [block.pixel_bytes + 20 * block.file_bytes + 1 for block in blocks]
    total, part, number = sum(costs), list[FrameBlock](), 0
    for block, done in zip(blocks, accumulate(costs), strict=True):
        part.append(block)
        if done * most >= total * (number + 1):
            yield part
            part, number = [], done * most // total
    if part:
        yield part


def _read(source: FrameSource, blocks: Sequence[FrameBlock]) -> Iterator[Any]:
    """Yield Arrow tables, in a worker of Ray."""
    import pyarrow

    for block in blocks:
        for frames in source.read(block):
            columns = source.columns(block, frames)
            columns["data"] = ArrowTensorArray.from_numpy(columns["data"])
            yield pyarrow.table(columns)
