"""`ClipDataset`: short clips of the videos of a store, as tensors."""

from __future__ import annotations

import hashlib
import importlib
import os
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from reprlib import repr as shown
from typing import TYPE_CHECKING, Any, Self

import cv2
import numpy as np

from vfsd.api.reading import RAISE, SHOW, read_numbered, rect_of, sides_in
from vfsd.api.store import Store
from vfsd.api.video import Video, context_of
from vfsd.core.frame_table_pages import Ints
from vfsd.core.frames import Frames, frame_numbers
from vfsd.core.pixel_array import Pixels, tensor_of
from vfsd.core.timebase import Seconds, frame_rate
from vfsd.core.view_request import Size, View, resolve_size
from vfsd.errors import OutdatedError, OutOfRangeError, UsageError
from vfsd.tiling import Rect, Region
from vfsd.torch.clip_reads import (
    BatchRead,
    ClipIndex,
    ClipRequest,
    ClipStarts,
    DecodeSpans,
    Purpose,
    plan_batch,
    random_units,
    scaled_units,
)
from vfsd.validation import (
    decibels,
    is_one_integer,
    non_negative,
    not_one_of,
    whole_number,
    width_and_height,
)

if TYPE_CHECKING:
    from vfsd.core.label_query import Labels
    from vfsd.torch.epoch_cost import EpochExplanation, PrepareReport
    from vfsd.torch.gop_sampler import GopSampler

_SCHEME = "vfsd://"
_MAX_OPEN_VIDEOS = 64
"""As many as the store keeps tiles of; each one has pages of its frame table in memory."""
_STARTS = ("random", "uniform")
_PLACES = ("random", "center")
_FORMATS = {"rgb24": 3, "bgr24": 3, "gray": 1}
"""Pixel formats, and their channels."""
_DTYPES = ("uint8", "float16", "bfloat16", "float32", "float64")


class ClipDataset:
    """A map-style data set of short clips.

        clips = ClipDataset("/srv/videos", "cam1/**", frames=16, step=2, size=256, crop=224)
        clips[0]["video"].shape  # torch.Size([16, 3, 224, 224])

    An element is a dict:

    - ``video``: a tensor that shares memory with no other, or what `transform` made of it,
    - ``name``: the name of the video,
    - ``clip``: the number of the clip,
    - ``frames``: the numbers of its frames,
    - ``seconds``: their times in the video,
    - ``damaged``: which of them show damage of the file,
    - ``psnr``: a lower bound in dB, as of `vfsd.Video.read`.

    A clip depends on the seed, the epoch and its number alone: the worker, the start method and the
    other clips of the batch have no influence.  Frames that come from renditions are as close to
    the original as `psnr` says.

    The data set can be pickled.  A worker opens the store once, at its first clip.
    """

    def __init__(
        self,
        store: Store | str | os.PathLike[str],
        videos: str | Iterable[str] | None = None,
        *,
        labels: Labels | None = None,
        frames: int = 16,
        step: int = 1,
        fps: Seconds | None = None,
        per_video: int = 1,
        starts: str = "random",
        region: Region | None = None,
        size: Size | None = None,
        crop: int | tuple[int, int] | None = None,
        crop_at: str = "random",
        transform: Callable[[Any], Any] | None = None,
        dtype: Any = "uint8",
        layout: str = "TCHW",
        format: str = "rgb24",
        psnr: float | None = None,
        damaged: str = SHOW,
        seed: int = 0,
    ) -> None:
        """Choose the videos; no frame is decoded.

        Args:
            store: An open store, its directory, or a URL ``vfsd://STORE//PATTERN``.  A directory is
                opened with one decoding thread, as suits one worker for each core.
            videos: As for `Store.named`, such as "cam1/**"; default: all.
            labels: Only clips that show a box with these labels, as for `VideoLabels.query`.
            frames: The number of frames of a clip.  A shorter video repeats its last frame.
            step: The distance of two frames of a clip.
            fps: Frames per second of the clip instead of `step`; works for variable rates, too.
            per_video: The number of clips of each video in an epoch.
            starts: "random": others in each epoch; "uniform": evenly spaced.
            region: The part of the frame, as for `Video.read`.
            size: The size to scale it to, as for `Video.read`: an int is the shorter side.
            crop: (width, height), or the side of a square, that is cut out after scaling.
            crop_at: "random": another place for each clip and epoch; "center".
            transform: Called with the tensor; must be picklable for workers that are spawned.
            dtype: "uint8", or a floating type of PyTorch: values from 0 to 1.
            layout: The order of the axes: time, channels, height and width.
            format: rgb24, bgr24 or gray.
            psnr: As for `Video.read`; ``math.inf`` reads the originals alone.
            damaged: "show" or "raise", as for `Video.read`.
            seed: Selects the random starts and crops.

        Raises:
            UsageError: An argument is malformed, or no video has the labels.
            NotFoundError: A video does not exist, or a pattern has no match.
            VfsdError: As `Store.open`.
        """
        self._frames = _at_least_one(frames, "frames")
        self._step = _at_least_one(step, "step")
        self._fps = None if fps is None else frame_rate(fps)
        if self._fps is not None and step != 1:
            raise UsageError("give either step or fps, not both")
        self._per_video = _at_least_one(per_video, "per_video")
        self._region = rect_of(region)
        self._size = size
        self._crop = None if crop is None else _pair(crop)
        self._is_centered = _one_of("crop_at", crop_at, _PLACES) == "center"
        self._transform = transform
        self._dtype = _one_of("dtype", str(dtype).removeprefix("torch."), _DTYPES)
        self._axes = _axes(layout)
        self._format = _one_of("format", format, tuple(_FORMATS))
        self._psnr = None if psnr is None else decibels(psnr)
        self._damaged = _one_of("damaged", damaged, (SHOW, RAISE))
        self._seed = whole_number(seed, "seed")
        is_uniform = _one_of("starts", starts, _STARTS) == "uniform"
        self._epoch = 0
        self._owns_store = not isinstance(store, Store)
        self._store, within = _opened(store)
        self._open: OrderedDict[int, _OpenVideo] = OrderedDict()
        try:
            found = _found(self._store, within if videos is None else videos, labels)
            self._choose(found, is_uniform)
        except BaseException:
            self.close()
            raise

    def _choose(self, found: Sequence[tuple[Video, Ints | None]], is_uniform: bool) -> None:
        videos = [video for video, _ in found]
        labelled = [frames for _, frames in found if frames is not None]
        self.names = [video.name for video in videos]  #: of the videos
        self._ids = np.array([video.info.id for video in videos], np.int64)
        self._starts = ClipStarts(
            np.array([len(video) for video in videos], np.int64),
            np.array([self._span(video) for video in videos], np.int64),
            self._per_video,
            self._seed,
            is_uniform,
            tuple(labelled) if labelled else None,
        )
        for video in videos:
            self._crop_room(video)  # raises for a crop that is too large

    def _span(self, video: Video) -> int:
        """The frames from the first to the last of a clip."""
        if self._fps is None:
            return (self._frames - 1) * self._step + 1
        return -(-(self._frames - 1) * video.fps // self._fps) + 1

    # -- the data set

    def __len__(self) -> int:
        """Number of clips of an epoch."""
        return len(self._starts)

    def __getitem__(self, index: int | ClipIndex) -> dict[str, Any]:
        """The clip of an index; an int counts in the epoch of `set_epoch`."""
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int | ClipIndex]) -> list[dict[str, Any]]:
        """The clips of a batch, in its order.  Each GOP is decoded once, where memory allows it."""
        wanted = [self._index(index) for index in indices]
        requests = [self._request(index) for index in wanted]
        found: list[dict[str, Any] | None] = [None] * len(wanted)
        for read in self.plan(requests):
            frames = self._read(read)
            for place in read.clips:
                found[place] = self._element(wanted[place], requests[place], read, frames)
        return [one for one in found if one is not None]

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of plain indices.

        Workers copy it when they start.  A `GopSampler` sends the epoch with every index instead.
        """
        self._epoch = non_negative(epoch, "epoch")

    def close(self) -> None:
        """Close the store, if the data set has opened it."""
        if self._owns_store:
            self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {len(self)} clips of {len(self.names)} videos>"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": OrderedDict(), "_owns_store": False}

    @property
    def store(self) -> Store:
        """The store of the videos."""
        return self._store

    @property
    def region(self) -> Rect | None:
        """The part of the frame that is read, before the crop; None: all of it."""
        return self._region

    @property
    def pixel_format(self) -> str:
        """The pixel format of reads."""
        return self._format

    @property
    def psnr(self) -> float | None:
        """The least PSNR of reads; None: that of the store."""
        return self._psnr

    # -- for samplers

    @property
    def fingerprint(self) -> str:
        """Text that differs for data sets with other clips."""
        starts = self._starts
        told = hashlib.blake2b(digest_size=8)
        for part in (starts.lengths, starts.spans, self._ids, *(starts.labelled or ())):
            told.update(part.tobytes())
        choices = (self._frames, self._step, self._fps, self._per_video, self._seed)
        told.update(repr((self.names, *choices, starts.is_uniform)).encode())
        return told.hexdigest()

    def decode_spans(self, epoch: int) -> DecodeSpans:
        """The frames that the clips of an epoch need decoded.

        Reads the frame table of each video, the first time.
        """
        clips = np.arange(len(self), dtype=np.int64)
        videos, first = clips // self._per_video, self._starts.of(epoch, clips)
        last = np.minimum(first + self._starts.spans[videos], self._starts.lengths[videos]) - 1
        keys = np.empty_like(first)
        for video in range(len(self.names)):
            part = slice(video * self._per_video, (video + 1) * self._per_video)
            found = self._key_frames(video)
            places = np.searchsorted(found, first[part], side="right") - 1
            keys[part] = found[np.maximum(places, 0)]
        return DecodeSpans(videos, keys, first, last)

    def explain(
        self, epochs: int = 1, *, sampler: GopSampler | None = None, epoch: int = 0
    ) -> EpochExplanation:
        """Estimate the decoding of `epochs` epochs from `epoch` on; nothing is decoded.

        Compares clips in random order, the batches of `sampler` (default: ``GopSampler(self, 8)``),
        and the same after `prepare`.  CPU time is predicted by the cost model of this host; see
        ``vfsd calibrate``.  Only the first 2,048 clips are planned, for all.
        """
        from vfsd.torch.epoch_cost import explain_epochs

        return explain_epochs(self, epochs, sampler, epoch)

    def prepare(
        self,
        budget: int | str,
        *,
        epochs: int = 10,
        sampler: GopSampler | None = None,
        epoch: int = 0,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> PrepareReport:
        """Make renditions in the size of the clips, where they pay within `epochs` epochs.

        Each video gets the GOP length that saves most.  Videos with the largest saving for their
        bytes come first.  Only the seconds that the clips of these epochs show are encoded.
        Originals stay.

        Args:
            budget: The limit for new renditions: bytes, or text such as "20G".
            epochs: The number of epochs of the training.
            sampler: The sampler of the training; default: ``GopSampler(self, 8)``.
            epoch: The first epoch.
            on_progress: Called with (bytes made, budget) after some seconds of video; it may raise
                to stop.

        Raises:
            UsageError: The clips are not scaled, or an argument is malformed.
            VfsdError: As `VideoRenditions.make`, except for a store's own budget.
        """
        from vfsd.torch.epoch_cost import prepare

        return prepare(self, budget, epochs, sampler, epoch, on_progress)

    # -- planning

    def requests(self, indices: Iterable[int | ClipIndex]) -> list[ClipRequest]:
        """The frames and regions of clips."""
        return [self._request(self._index(index)) for index in indices]

    def plan(self, requests: Sequence[ClipRequest]) -> list[BatchRead]:
        """The reads that serve these clips, as `__getitems__` carries them out."""
        channels = _FORMATS[self._format]
        return plan_batch(requests, self._key_frames, channels, self._pixels)

    def view(self, read: BatchRead) -> View:
        """The region and the size of a read of a batch."""
        return View(region=read.region, size=self.read_size(read.video))

    def read_size(self, video: int) -> tuple[int, int] | None:
        """(width, height) that a video is scaled to; None: it is not scaled."""
        if self._size is None:
            return None
        return sides_in(self._size, self._region, self.video(video).original.media)

    def crop_place(self, index: int | ClipIndex) -> tuple[int, int]:
        """The left and top edge of a clip's crop in the scaled picture, or in the frame."""
        return self._crop_place(self._index(index))

    def video(self, number: int) -> Video:
        """The video with a number, opened.  Raises `OutdatedError` if it was written again."""
        return self._opened_video(number).video

    def _opened_video(self, number: int) -> _OpenVideo:
        found = self._open.get(number)
        if found is None:
            video = self._store[self.names[number]]
            if video.info.id != self._ids[number]:
                raise OutdatedError(
                    f"the video {video.name!r} has been written again",
                    hint="make the data set again",
                )
            found = self._open[number] = _OpenVideo(video)
            while len(self._open) > _MAX_OPEN_VIDEOS:
                # Threads of one process may share a data set: another one may have removed it.
                self._open.pop(next(iter(self._open)), None)
        return found

    def _key_frames(self, number: int) -> Ints:
        return self._opened_video(number).keyframes

    def _pixels(self, number: int, region: Rect | None) -> int:
        size = self.read_size(number)
        if size is not None:
            return size[0] * size[1]
        if region is not None:
            return region.area
        video = self.video(number)
        return video.width * video.height

    def _index(self, index: int | ClipIndex) -> ClipIndex:
        epoch = self._epoch
        if isinstance(index, tuple):
            epoch, index = index
        number = whole_number(index, "index")
        if not -len(self) <= number < len(self):
            # An `IndexError`, because that is how an iteration over a sequence ends.
            raise OutOfRangeError(f"clip {number} does not exist: the data set has {len(self)}")
        return ClipIndex(epoch, number % len(self))

    def _request(self, index: ClipIndex) -> ClipRequest:
        clip = np.array([index.clip], np.int64)
        video = index.clip // self._per_video
        first = int(self._starts.of(index.epoch, clip)[0])
        numbers = self._numbers(video, first)
        if self._crop is None or self._size is not None:
            return ClipRequest(video, numbers, self._region)
        left, top = self._crop_place(index)
        return ClipRequest(video, numbers, Rect.of_size(*self._crop).moved(left, top))

    def _numbers(self, number: int, first: int) -> Ints:
        last = int(self._starts.lengths[number]) - 1
        if self._fps is None:
            numbers = first + self._step * np.arange(self._frames, dtype=np.int64)
            return np.minimum(numbers, last)
        snapshot = context_of(self.video(number)).snapshot()
        original = snapshot.original
        begins = (snapshot.table.frame_pts(first) - original.first_pts) * original.time_base
        stop = begins + Fraction(self._frames) / self._fps
        found = snapshot.times.at_rate(self._fps, begins, stop)[: self._frames]
        rest = np.full(self._frames - len(found), last, np.int64)
        return np.concatenate([found, rest])

    def _crop_room(self, video: Video) -> tuple[Rect, tuple[int, int]]:
        """The area that is cropped, and the range of the crop's left and top edge in it."""
        area = self._region or Rect.of_size(video.width, video.height)
        if not Rect.of_size(video.width, video.height).contains(area):
            raise OutOfRangeError(f"the region {area} reaches outside the frame of {video.name}")
        if self._size is not None:
            area = Rect.of_size(*resolve_size(self._size, area.width, area.height))
        width, height = self._crop or (area.width, area.height)
        if width > area.width or height > area.height:
            raise UsageError(
                f"crop must be at most {area.width}x{area.height} for {video.name}, "
                f"got {width}x{height}"
            )
        return area, (area.width - width, area.height - height)

    def _crop_place(self, index: ClipIndex) -> tuple[int, int]:
        """The left and top edge of the crop: in the frame, or in the scaled picture."""
        area, (across, down) = self._crop_room(self.video(index.clip // self._per_video))
        if self._is_centered:
            return area.x1 + across // 2, area.y1 + down // 2
        clip = np.array([index.clip], np.int64)
        found = []
        for purpose, room in ((Purpose.LEFT, across), (Purpose.TOP, down)):
            units = random_units(self._seed, index.epoch, purpose, clip)
            found.append(int(scaled_units(units, np.array([room + 1]))[0]))
        return area.x1 + found[0], area.y1 + found[1]

    # -- pixels

    def _read(self, read: BatchRead) -> Frames:
        return read_numbered(
            context_of(self.video(read.video)),
            lambda snapshot: frame_numbers(read.frames, len(snapshot)),
            self.view(read),
            self.pixel_format,
            self._psnr,
            self._damaged,
            # An epoch has each clip once: copies of decoded pictures would hardly be used.
            keep=False,
        )

    def _element(
        self, index: ClipIndex, request: ClipRequest, read: BatchRead, frames: Frames
    ) -> dict[str, Any]:
        rows = np.searchsorted(read.frames, request.frames)
        across, down = self._part(index, request, read, frames)
        pictures = [frames.data[row, down, across] for row in rows.tolist()]
        return {
            "video": self._tensor(pictures),
            "name": self.names[request.video],
            "clip": index.clip,
            "frames": tensor_of(request.frames.copy()),
            "seconds": tensor_of(frames.seconds[rows]),
            "damaged": tensor_of(frames.damaged[rows]),
            "psnr": frames.psnr,
        }

    def _part(
        self, index: ClipIndex, request: ClipRequest, read: BatchRead, frames: Frames
    ) -> tuple[slice, slice]:
        """The columns and rows of the pictures that belong to the clip."""
        if self._crop is None:
            return slice(None), slice(None)
        width, height = self._crop
        if self._size is not None:
            left, top = self._crop_place(index)
        else:
            assert request.region is not None
            assert read.region is not None
            left, top = request.region.x1 - read.region.x1, request.region.y1 - read.region.y1
        return slice(left, left + width), slice(top, top + height)

    def _tensor(self, pictures: Sequence[Pixels]) -> Any:
        found = tensor_of(_stacked(pictures, self._axes))
        if self._dtype != "uint8":
            torch: Any = importlib.import_module("torch")
            found = found.to(getattr(torch, self._dtype)).div_(255)
        return found if self._transform is None else self._transform(found)


class _OpenVideo:
    """A video, and its key frames once they were needed."""

    def __init__(self, video: Video) -> None:
        self.video = video
        self._keyframes: Ints | None = None

    @property
    def keyframes(self) -> Ints:
        if self._keyframes is None:
            found = self.video.keyframes
            self._keyframes = found if len(found) else np.zeros(1, np.int64)
        return self._keyframes


def _stacked(pictures: Sequence[Pixels], axes: tuple[int, ...]) -> Pixels:
    """Copy pictures of height x width x channels to one array with its axes in that order."""
    height, width, channels = pictures[0].shape
    if axes != (0, 3, 1, 2) or channels == 1:
        return np.ascontiguousarray(np.stack(pictures).transpose(axes))
    # OpenCV separates channels ten times as fast as NumPy.
    found = np.empty((len(pictures), channels, height, width), pictures[0].dtype)
    for picture, planes in zip(pictures, found, strict=True):
        cv2.split(picture, list(planes))
    return found


def _opened(store: Store | str | os.PathLike[str]) -> tuple[Store, str | None]:
    """The store, and the pattern of a URL."""
    if isinstance(store, Store):
        return store, None
    path = os.fspath(store)
    if not path.startswith(_SCHEME):
        return Store.open(path, threads=1), None
    root, _, pattern = path.removeprefix(_SCHEME).partition("//")
    if not root:
        raise UsageError(
            f"store must be {_SCHEME}STORE//PATTERN, got {path}",
            hint=f"for example {_SCHEME}/srv/videos//cam1/**",
        )
    return Store.open(root, threads=1), pattern or None


def _found(
    store: Store, videos: str | Iterable[str] | None, labels: Labels | None
) -> list[tuple[Video, Ints | None]]:
    """The chosen videos by name, and their frames with the labels; those without are left out."""
    chosen = store.find() if videos is None else store.named(videos)
    found: list[tuple[Video, Ints | None]] = []
    for video in sorted(chosen, key=lambda video: video.name):
        if not len(video):
            continue
        if labels is None:
            found.append((video, None))
            continue
        rows = store.catalog.detections.find(video.info, labels).columns()
        frames = np.array(sorted(set(rows.frames.tolist())), np.int64)
        if len(frames):
            found.append((video, frames))
    if not found:
        what = "videos" if labels is None else f"boxes with {shown(labels)}"
        raise UsageError(f"there are no {what} in {shown(videos or 'the store')}")
    return found


def _axes(layout: str) -> tuple[int, ...]:
    if not isinstance(layout, str) or sorted(layout) != sorted("TCHW"):
        raise UsageError(
            f"layout must have the letters T, C, H and W, got {shown(layout)}",
            hint="for example TCHW or CTHW",
        )
    return tuple("THWC".index(axis) for axis in layout)


def _pair(crop: int | tuple[int, int]) -> tuple[int, int]:
    if is_one_integer(crop):
        crop = (int(crop), int(crop))  # type: ignore[arg-type]
    width, height = width_and_height(crop)  # type: ignore[arg-type]
    if width < 1 or height < 1:
        raise UsageError(f"crop must be at least 1x1, got {width}x{height}")
    return width, height


def _at_least_one(value: int, what: str) -> int:
    number = whole_number(value, what)
    if number < 1:
        raise UsageError(f"{what} must be at least 1, got {number}")
    return number


def _one_of(what: str, value: str, known: tuple[str, ...]) -> str:
    if value not in known:
        raise not_one_of(what, value, known)
    return value
