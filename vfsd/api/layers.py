"""`VideoLayers`: the layers of a video, by name."""

from __future__ import annotations

import posixpath
import shlex
import time
from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from typing import Any, TypeVar, overload

import numpy as np
import numpy.typing as npt

from vfsd.api.layer import Layer, open_layer
from vfsd.api.layer_maps import OnProgress, map_sum
from vfsd.core.detections import Ints, Source, source_from
from vfsd.core.layers import BITS, LayerMeaning, layer_frames, require_layer_name
from vfsd.core.model import LogicalVideo
from vfsd.errors import ExistsError, NotFoundError, UsageError
from vfsd.read.read_context import VideoContext
from vfsd.storage.reclaim import reclaim_or_log
from vfsd.write.frame_index import require_verified
from vfsd.write.tree_edits import remove as remove_file
from vfsd.write.write_video import write_video

MapInput = npt.NDArray[Any] | Iterable[npt.NDArray[Any]]
"""Maps of height x width samples: uint8, uint16, or bool for 0 and 1."""

_DEFAULT_RATE = Fraction(25)
_Default = TypeVar("_Default")


class VideoLayers(Mapping[str, Layer]):
    """The layers of a video, by name: masks, depth, saliency, classes.

    video.layers.add("saliency", maps, frames=range(0, len(video), 10))
    video.layers["saliency"].top(25, (50, 50, 250, 250), low=153)
    """

    def __init__(self, video: VideoContext) -> None:
        video.require_finished("layers")
        self._video = video

    def __repr__(self) -> str:
        return f"<VideoLayers of {self._video.name!r}: {', '.join(self) or 'none'}>"

    def __getitem__(self, name: str) -> Layer:
        """The layer with that name.  Raises `NotFoundError`."""
        return open_layer(self._video, name)

    @overload
    def get(self, key: str, /) -> Layer | None: ...
    @overload
    def get(self, key: str, /, default: Layer | _Default) -> Layer | _Default: ...
    def get(self, key: str, /, default: object = None) -> object:
        """The layer with that name, or `default` where there is none."""
        # That of `Mapping` expects a `KeyError`.
        try:
            return self[key]
        except NotFoundError:
            return default

    def __contains__(self, name: object) -> bool:
        return name in self._names()

    def __iter__(self) -> Iterator[str]:
        """The names, sorted."""
        return iter(self._names())

    def __len__(self) -> int:
        return len(self._names())

    def _names(self) -> list[str]:
        with self._video.parts.catalog.reading() as seen:
            return [one.name for one in seen.layers.of_video(self._video.info.id)]

    def add(
        self,
        name: str,
        maps: MapInput | str,
        *,
        frames: Iterable[int] | Ints | None = None,
        file: str | None = None,
        scale: float = 1.0,
        zero: float = 0.0,
        unit: str = "",
        source: str | Source | None = None,
        on_progress: OnProgress | None = None,
    ) -> Layer:
        """Add a layer, and its index where the budgets have room for it.

            video.layers.add("depth", millimetres, scale=0.001, unit="m", source="midas")
            video.layers.add("mask", "cam1/traffic.mask.mkv")

        Maps that are given are written to a new video, lossless FFV1 in Matroska.  Only frame
        numbers align a layer with its video; time stamps do not.

        Args:
            name: The name among the layers of the video.
            maps: uint8, uint16 or bool, maps x height x width, or one after the other; or the name
                of a video of the store with gray or gray16le pixels.
            frames: The frame number of each map, ascending; default: all frames.
            file: The name of the new video; default: as in ``cam1/traffic.depth.mkv``.
            scale: A sample stands for ``zero + scale * sample``.
            zero: Goes with `scale`.
            unit: The unit of the values.
            source: The program or model that made the maps.
            on_progress: Called with (maps done, maps in all), while the index is made.

        Raises:
            UsageError: An argument is malformed, or the maps do not fit the frames.
            ExistsError: The video has such a layer, the file exists, or is a layer already.
            NotFoundError: The video `maps` does not exist, or the bytes of this one have changed.
            ForbiddenError: The video is a layer itself.
            ReadOnlyError, NoSpaceError: Nothing was added.
        """
        video, parts = self._video, self._video.parts
        parts.require_writable()
        require_layer_name(name)
        meaning = LayerMeaning(scale, zero, unit)
        origin = None if source is None else source_from(source)
        if name in self:
            raise ExistsError(
                f"{video.name} has a layer {name} already",
                hint=f"`vfsd layer rm {shlex.quote(video.name)} {shlex.quote(name)}` removes it",
            )
        # Frame numbers must not change later.
        require_verified(video)
        sums: list[int] | None = None
        if isinstance(maps, str):
            if file is not None:
                raise UsageError("file is for maps that are given, not for the name of a video")
            info = parts.catalog.video(maps)
        else:
            sums = []
            info = self._written(file or self._file_name(name), maps, frames, sums)
        layer = None
        try:
            layer = self._added(name, info, frames, meaning, origin)
            layer.maps.make_index(on_progress, sums)
        except BaseException:
            if sums is not None:
                remove_file(parts, info.name, False)
            elif layer is not None:
                self._remove(layer)
            raise
        return layer

    def _added(
        self,
        name: str,
        info: LogicalVideo,
        frames: Iterable[int] | Ints | None,
        meaning: LayerMeaning,
        source: Source | None,
    ) -> Layer:
        video, parts = self._video, self._video.parts
        media = info.original.media
        if media.pixel_format not in BITS:
            raise UsageError(
                f"{info.name} has {media.pixel_format} pixels; a layer has one channel, "
                "gray or gray16le",
                hint="write it with format='gray', codec='ffv1' and lossless=True",
            )
        maps = VideoContext(video.tools, info)
        require_verified(maps)
        numbers = layer_frames(frames, maps.original.frames, video.original.frames)

        with parts.catalog.writing() as change:
            now = video.stored(change)
            there = maps.stored(change)
            if (now.original.frames, there.original.frames) != (
                video.original.frames,
                maps.original.frames,
            ):
                raise NotFoundError("the frames were counted again", hint="try again")
            row = change.layers.add(
                video.info.id, name, info.id, numbers, meaning, source, now_ns=time.time_ns()
            )
        return Layer(video, row, there)

    def _written(
        self,
        file: str,
        maps: MapInput,
        frames: Iterable[int] | Ints | None,
        sums: list[int],
    ) -> LogicalVideo:
        """Write maps to a new video; `sums` gets the CRC-32 of each."""
        given = iter(maps)
        try:
            first = _checked_map(next(given), None)
        except StopIteration:
            raise UsageError("a layer needs at least one map") from None
        width, height = first.shape[1], first.shape[0]
        shape = self._video.original.media
        if width > shape.display_width or height > shape.display_height:
            raise UsageError(
                f"maps must not be larger than the frame, got {width}x{height} for "
                f"{shape.display_width}x{shape.display_height}"
            )

        def pixels() -> Iterator[npt.NDArray[Any]]:
            one = first
            while True:
                sums.append(map_sum(one))
                yield one[..., None]
                try:
                    following = next(given)
                except StopIteration:
                    return
                one = _checked_map(following, first)

        # Only for players: a layer is aligned by frame number.
        rate = self._video.original.mean_rate or _DEFAULT_RATE
        if isinstance(frames, range) and frames.step > 1:
            rate = rate / frames.step
        return write_video(
            self._video.parts,
            file,
            pixels(),
            size=None,
            pts=None,
            replace=False,
            on_progress=None,
            form={
                "fps": rate,
                "format": "gray" if first.dtype == np.uint8 else "gray16",
                "codec": "ffv1",
                "lossless": True,
            },
        )

    def _file_name(self, name: str) -> str:
        return f"{posixpath.splitext(self._video.name)[0]}.{name}.mkv"

    def remove(self, name: str) -> str:
        """Remove a layer and its index; returns the name of its file, which stays.

        Raises `NotFoundError` and `ReadOnlyError`.
        """
        self._video.parts.require_writable()
        layer = self[name]
        self._remove(layer)
        return layer.file

    def _remove(self, layer: Layer) -> None:
        keys: set[str] = set()
        with self._video.parts.catalog.writing() as change:
            stored = change.layer_indexes.get(layer.maps.video.original.id)
            if stored is not None:
                keys.add(stored.object_key)
            change.layers.remove(layer.row.id)
        reclaim_or_log(self._video.parts, keys=keys)


def _checked_map(given: Any, first: npt.NDArray[Any] | None) -> npt.NDArray[Any]:
    """Return a map as samples; raises `UsageError` unless it is like the first one."""
    one = np.asarray(given)
    if one.dtype == np.bool_:
        one = one.astype(np.uint8)
    if one.ndim == 3 and one.shape[2] == 1:
        one = one[..., 0]
    if one.ndim != 2 or not one.size:
        raise UsageError(f"a map must be height x width, got shape {one.shape}")
    if one.dtype not in (np.dtype(np.uint8), np.dtype(np.uint16)):
        raise UsageError(
            f"maps must be uint8, uint16 or bool, got {one.dtype}",
            hint="round the values to whole numbers, and give scale and zero",
        )
    if first is not None and (one.shape, one.dtype) != (first.shape, first.dtype):
        raise UsageError(
            f"all maps must be alike, got {one.shape} {one.dtype} after {first.shape} {first.dtype}"
        )
    return one
