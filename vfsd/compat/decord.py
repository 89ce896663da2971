"""Readers with the interface of decord, for videos of a store and for any other source.

decord is needed for other sources only.  With it, `cpu`, `gpu`, `bridge` and the errors are its
own; without it, this module has its own `cpu`, and a `bridge` to NumPy and PyTorch.
"""

from __future__ import annotations

import itertools
import operator
import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from vfsd.api.video import context_of
from vfsd.compat.resolve import FrameCursor, chosen_region, video_of
from vfsd.errors import ExtraMissingError, VfsdError
from vfsd.tiling import Rect

try:
    import decord as _peer
except ImportError:
    _peer = None

if TYPE_CHECKING:
    from vfsd.api.video import Video

__all__ = [
    "DECORDError",
    "DECORDLimitReachedError",
    "NDArray",
    "VideoLoader",
    "VideoReader",
    "bridge",
    "cpu",
    "gpu",
]

DECORDError: type[Exception]
DECORDLimitReachedError: type[Exception]
cpu: Callable[..., Any]
gpu: Callable[..., Any]
bridge: Any


class NDArray(np.ndarray[Any, Any]):
    """An array of pixels with the methods of ``decord.nd.NDArray``."""

    def asnumpy(self) -> npt.NDArray[Any]:
        """Return it as a plain array, without a copy."""
        return self.view(np.ndarray)

    def to_dlpack(self) -> Any:
        """Return a DLPack capsule of it, without a copy."""
        return self.asnumpy().__dlpack__()

    @property
    def ctx(self) -> Any:
        """The device: a CPU."""
        return cpu(0)


class _Context:
    """A device, as ``decord.cpu(0)`` returns it."""

    def __init__(self, device_type: int, device_id: int) -> None:
        self.device_type, self.device_id = device_type, device_id

    def __repr__(self) -> str:
        return f"{'cpu' if self.device_type == _CPU else 'gpu'}({self.device_id})"


class _Bridge:
    """Selects the type of results, for all readers of this process."""

    def __init__(self) -> None:
        self.current = "native"

    def set_bridge(self, new_bridge: str) -> None:
        """Let readers return "native" (`NDArray`), "numpy" or "torch" arrays."""
        assert new_bridge in _CONVERTERS, f"valid bridges: {list(_CONVERTERS)}"
        self.current = new_bridge

    def reset_bridge(self) -> None:
        """Go back to "native"."""
        self.current = "native"


_CPU, _GPU = 1, 2
_IN_ORDER, _MIXED_VIDEOS, _SHUFFLED = 0, 1, 2


def _as_numpy(array: Any) -> npt.NDArray[Any]:
    found: npt.NDArray[Any] = array.asnumpy()
    return found


def _as_torch(array: Any) -> Any:
    import torch

    return torch.from_numpy(array.asnumpy())


_CONVERTERS: dict[str, Callable[[Any], Any]] = {
    "native": lambda array: array,
    "numpy": _as_numpy,
    "torch": _as_torch,
}


class _OwnError(RuntimeError):
    """An error of a reader."""


class _OwnLimitError(_OwnError):
    """More damaged frames than `fault_tol` allows."""


def _own_cpu(dev_id: int = 0) -> _Context:
    """Return a CPU as a device."""
    return _Context(_CPU, dev_id)


def _own_gpu(dev_id: int = 0) -> _Context:
    """Return a GPU as a device, which only decord can use."""
    return _Context(_GPU, dev_id)


def _refuse(uri: Any, *_: Any) -> Any:
    raise ExtraMissingError(
        f"{uri!r} is not a video of a store, or needs a GPU; both need decord",
        hint="pip install 'vfsd[decord]'",
    )


_open_by_decord: Callable[..., Any]
_load_by_decord: Callable[..., Any]
if _peer is not None:
    cpu, gpu, bridge = _peer.cpu, _peer.gpu, _peer.bridge
    DECORDError = _peer.DECORDError
    DECORDLimitReachedError = getattr(_peer, "DECORDLimitReachedError", DECORDError)
    _open_by_decord, _load_by_decord = _peer.VideoReader, _peer.VideoLoader
    # decord has no bridge to NumPy; with this one, other files give the same type as ours.
    bridge._BRIDGE_TYPES.setdefault("numpy", (_as_numpy, _peer.nd.array))
else:
    cpu, gpu, bridge = _own_cpu, _own_gpu, _Bridge()
    DECORDError, DECORDLimitReachedError = _OwnError, _OwnLimitError
    _open_by_decord = _load_by_decord = _refuse


class VideoReader:
    """A drop-in for ``decord.VideoReader``: the same methods, arguments and results.

    A video of a store is read by vfsd, see `vfsd.compat.resolve`.  For any other source, and for a
    GPU, the constructor returns a reader of decord.

    Frames are H x W x 3 in RGB order, of uint8.  Numbers of frames are exact, and times are in
    seconds from the first frame.  A damaged frame raises `DECORDError`, unless `fault_tol` allows
    some: a number of frames, or a share of them below 1.  More raise `DECORDLimitReachedError`.
    """

    def __new__(
        cls,
        uri: Any,
        ctx: Any = None,
        width: int = -1,
        height: int = -1,
        num_threads: int = 0,
        fault_tol: float = -1,
    ) -> Any:
        """Open a video.

        Args:
            uri: A path, a ``vfsd://`` URL or a name in $VFSD_STORE, or an open file.
            ctx: The device, by default ``cpu(0)``.
            width: Width of the frames in pixels; -1: that of the video.
            height: Height of the frames in pixels; -1: that of the video.
            num_threads: Decoding threads of decord.  A store's readers share its threads.
            fault_tol: Number or share of damaged frames to return; negative: none.

        Raises:
            DECORDError: A ``vfsd://`` URL leads to no video, or decord cannot read the file.
            ExtraMissingError: The source needs decord, which is not installed.
        """
        context = cpu(0) if ctx is None else ctx
        try:
            video = video_of(uri) if context.device_type == _CPU else None
            if video is None:
                return _open_by_decord(uri, context, width, height, num_threads, fault_tol)
            reader = super().__new__(cls)
            reader._open(video, width, height, fault_tol)
        except ExtraMissingError:
            raise
        except VfsdError as error:
            raise DECORDError(str(error)) from error
        return reader

    def _open(self, video: Video, width: int, height: int, fault_tol: float) -> None:
        self._video = video
        self._frames = len(video)
        self._next = 0
        region = chosen_region(video)
        shown = region or Rect.of_size(video.width, video.height)
        size = (width if width > 0 else shown.width, height if height > 0 else shown.height)
        is_scaled = size != (shown.width, shown.height)
        self._cursor = FrameCursor(video, "rgb24", size if is_scaled else None, region)
        # A share of the frames below 1, else a number.
        share = fault_tol * self._frames if 0 < fault_tol < 1 else fault_tol
        self._tolerated = max(share, 0)
        self._is_tolerant = fault_tol >= 0
        self._damaged: set[int] = set()

    def __len__(self) -> int:
        """Number of frames."""
        return self._frames

    def __repr__(self) -> str:
        return f"<VideoReader of {self._video!r}>"

    def __getitem__(self, idx: SupportsIndex | slice) -> Any:
        """Return the frame with a number, H x W x 3, or the frames of a slice, N x H x W x 3.

        A negative number counts from the end.  Raises `IndexError`.
        """
        if isinstance(idx, slice):
            return self.get_batch(range(*idx.indices(self._frames)))
        number = operator.index(idx)
        if number < 0:
            number += self._frames
        if not 0 <= number < self._frames:
            raise IndexError(f"Index: {number} out of bound: {self._frames}")
        self._next = number
        return self.next()

    def next(self) -> Any:
        """Return the next frame, H x W x 3.  Raises `StopIteration` at the end."""
        if self._next >= self._frames:
            raise StopIteration
        try:
            frame = self._cursor.frame(self._next)
        except (VfsdError, OSError) as error:
            raise DECORDError(str(error)) from error
        self._require_good([self._next] if frame.damaged else [])
        self._next += 1
        return _result(frame.data)

    def get_batch(self, indices: Sequence[int] | npt.NDArray[Any]) -> Any:
        """Return frames by number, N x H x W x 3, in the order of `indices`, which may repeat.

        Negative numbers count from the end.  The position of `next` does not change.  Raises
        `IndexError`.
        """
        numbers = np.array(_as_numpy(indices) if hasattr(indices, "asnumpy") else indices, np.int64)
        numbers[numbers < 0] += self._frames
        if (numbers < 0).any():
            raise IndexError(f"Invalid negative indices: {numbers[numbers < 0] - self._frames}")
        if (numbers >= self._frames).any():
            raise IndexError(f"Out of bound indices: {numbers[numbers >= self._frames]}")
        try:
            frames = self._cursor.frames(numbers)
        except (VfsdError, OSError) as error:
            raise DECORDError(str(error)) from error
        self._require_good(numbers[frames.damaged].tolist())
        return _result(frames.data)

    def get_key_indices(self) -> list[int]:
        """Return the numbers of the frames at which decoding can start, ascending."""
        return [int(number) for number in self._video.keyframes]

    def get_frame_timestamp(self, idx: Any) -> npt.NDArray[np.float32]:
        """Return start and end of frames in seconds, the first frame at 0.

        `idx` is a list, slice or range of numbers for an array N x 2, or one number for an array
        of 2.
        """
        snapshot = context_of(self._video).snapshot()
        original = snapshot.original
        pts = snapshot.table.pts_of(np.arange(len(snapshot), dtype=np.int64)) - original.first_pts
        ends = np.append(pts[1:], original.end_pts - original.first_pts)
        seconds = np.stack([pts, ends], axis=1) * float(original.time_base)
        found: npt.NDArray[np.float32] = seconds.astype(np.float32)[idx, :]
        return found

    def get_avg_fps(self) -> float:
        """Return frames per second: the nominal rate, or the mean if the rate varies."""
        return float(self._video.fps)

    def seek(self, pos: int) -> None:
        """Let `next` continue with frame `pos`, exactly: decord's goes to a key frame before it."""
        assert 0 <= pos < self._frames, f"Index: {pos} out of bound: {self._frames}"
        self._next = int(pos)

    def seek_accurate(self, pos: int) -> None:
        """Let `next` continue with frame `pos`."""
        self.seek(pos)

    def skip_frames(self, num: int = 1) -> None:
        """Let `next` leave out `num` frames."""
        assert num > 0, f"number of frames to skip must be positive, got {num}"
        self._next = min(self._next + int(num), self._frames)

    def _require_good(self, damaged: Sequence[int]) -> None:
        """Count damaged frames, each once; raise if there are too many."""
        if not damaged:
            return
        self._damaged.update(damaged)
        shown = f"{self._video.name}: {len(self._damaged)} damaged frames, such as {damaged[0]}"
        if not self._is_tolerant:
            raise DECORDError(shown)
        if len(self._damaged) > self._tolerated:
            raise DECORDLimitReachedError(f"{shown}; fault_tol allows {self._tolerated:g}")


class VideoLoader:
    """A drop-in for ``decord.VideoLoader``: batches of frames of several videos, of one size.

    All videos of a store are read by vfsd.  If one of the sources is another file, or a device is a
    GPU, the constructor returns a loader of decord for all of them.

    A batch has `shape[0]` frames of one video; two consecutive ones are ``interval + 1`` frames
    apart, and the next batch of that video begins ``skip + 1`` frames after the last one.  decord
    leaves out the batches that reach the last frames of a video, and so does this loader.
    """

    def __new__(
        cls,
        uris: Sequence[str],
        ctx: Any,
        shape: Sequence[int],
        interval: int,
        skip: int,
        shuffle: int,
        prefetch: int = 0,
    ) -> Any:
        """Open videos.

        Args:
            uris: Paths, ``vfsd://`` URLs or names in $VFSD_STORE.
            ctx: A device, or several: ``cpu(0)``.
            shape: (N, H, W, 3) of each batch.
            interval: Frames left out between those of a batch.
            skip: Frames left out between batches.
            shuffle: 0: batches in order; 1: those of each video in order, videos mixed; 2: batches
                in random order, another one after each `reset`.
            prefetch: Ignored.

        Raises:
            DECORDError: `shape` or `shuffle` is invalid, or a video cannot be opened.
            ExtraMissingError: A source needs decord, which is not installed.
        """
        assert isinstance(uris, list | tuple)
        assert uris
        assert len(shape) == 4, f"expected shape: [bs, height, width, 3], given {shape}"
        devices = ctx if isinstance(ctx, list | tuple) else [ctx]
        names = [uri.strip() for uri in uris]
        try:
            is_ours = all(
                [one.device_type == _CPU for one in devices]
                + [video_of(name) is not None for name in names]
            )
        except VfsdError as error:
            raise DECORDError(str(error)) from error
        if not is_ours:
            return _load_by_decord(uris, ctx, shape, interval, skip, shuffle, prefetch)
        loader = super().__new__(cls)
        loader._open(names, devices[0], shape, (max(interval, 0), max(skip, 0)), shuffle)
        return loader

    def _open(
        self,
        names: Sequence[str],
        device: Any,
        shape: Sequence[int],
        gaps: tuple[int, int],
        shuffle: int,
    ) -> None:
        frames, height, width, channels = shape
        if frames < 1 or channels != 3:
            raise DECORDError(f"shape must be (N, height, width, 3) with N > 0, got {shape}")
        if shuffle not in (_IN_ORDER, _MIXED_VIDEOS, _SHUFFLED):
            raise DECORDError(f"shuffle must be 0, 1 or 2, got {shuffle}")
        interval, skip = gaps
        self._shuffle = shuffle
        self._readers = [VideoReader(name, device, width, height) for name in names]
        self._offsets = np.arange(frames, dtype=np.int64) * (interval + 1)
        length = int(self._offsets[-1]) + 1
        self._batches: list[tuple[int, int]] = []
        for video, reader in enumerate(self._readers):
            left = len(reader) - length
            end = left if shuffle == _MIXED_VIDEOS else left - 1
            self._batches += [(video, first) for first in range(0, end, length + skip)]
        self._next = 0
        self.reset()

    def reset(self) -> None:
        """Begin again; shuffled batches come in a new order."""
        self._next = 0
        if self._shuffle == _SHUFFLED:
            random.shuffle(self._batches)
        elif self._shuffle == _MIXED_VIDEOS:
            turns = [video for video, _ in self._batches]
            random.shuffle(turns)
            ordered = {
                video: iter(sorted(group))
                for video, group in itertools.groupby(
                    sorted(self._batches), key=operator.itemgetter(0)
                )
            }
            self._batches = [next(ordered[video]) for video in turns]

    def __len__(self) -> int:
        """Number of batches from one `reset` to the next."""
        return len(self._batches)

    def __iter__(self) -> VideoLoader:
        return self

    def __next__(self) -> tuple[Any, Any]:
        """Return frames, N x H x W x 3, and their places, N x 2 of int64.

        A place is the position of the video in `uris` and the number of the frame.
        """
        if self._next >= len(self._batches):
            raise StopIteration
        video, first = self._batches[self._next]
        numbers = first + self._offsets
        frames = self._readers[video].get_batch(numbers)
        self._next += 1
        places = np.stack([np.full_like(numbers, video), numbers], axis=1)
        return frames, _result(places)

    next = __next__


def _result(pixels: npt.NDArray[Any]) -> Any:
    """Return pixels in the type that the bridge asks for."""
    native = pixels.view(NDArray)
    if _peer is None:
        return _CONVERTERS[bridge.current](native)
    kind = getattr(bridge._CURRENT_BRIDGE, "type", bridge._GLOBAL_BRIDGE_TYPE)
    if kind in _CONVERTERS:
        return _CONVERTERS[kind](native)
    return bridge.bridge_out(_peer.nd.array(native.asnumpy()))
