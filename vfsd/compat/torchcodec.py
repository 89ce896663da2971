"""`VideoDecoder` with the interface of torchcodec, for videos of a store and for any other source.

Frame numbers and times come from the store's frame table, so opening a video scans nothing, and
"approximate" is as exact as "exact".  Cropping transforms select a region of each read.

By default the pixels are torchcodec's, bit for bit.  torchcodec itself therefore decodes the stored
file where the two would differ: more than 8 bits, odd sizes, mirrored or cropped streams, and
`Resize`.  In a block of `vfsd.compat.quality` vfsd reads these as well, `Resize` becomes the size
of the read, and tiles and renditions may be used.
"""

from __future__ import annotations

import dataclasses
import math
import operator
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from vfsd.api.video import context_of
from vfsd.compat import is_installed, replace_decoder
from vfsd.compat.resolve import FrameCursor, allowed_psnr, chosen_region, video_of
from vfsd.core.model import NO_CROP_MARGINS
from vfsd.errors import ExtraMissingError, VfsdError
from vfsd.tiling import Rect

try:
    import torch
    from torchcodec import Frame, FrameBatch
    from torchcodec.decoders import CpuFallbackStatus, VideoStreamMetadata
    from torchcodec.decoders import VideoDecoder as _Peer
    from torchcodec.transforms import _decoder_transforms as _peer_transforms
except (ImportError, RuntimeError) as error:  # torchcodec raises the latter without FFmpeg
    raise ExtraMissingError(
        f"vfsd.compat.torchcodec needs torch and torchcodec: {error}",
        hint="pip install 'vfsd[torchcodec]'; torchcodec needs the libraries of FFmpeg, too",
    ) from error

if TYPE_CHECKING:
    from collections.abc import Callable

    from vfsd.api.video import Video
    from vfsd.core.frame_table_pages import Ints

__all__ = ["VideoDecoder"]

_EXACT, _APPROXIMATE = "exact", "approximate"
_CHANNELS_FIRST, _CHANNELS_LAST = "NCHW", "NHWC"


class VideoDecoder(_Peer):  # type: ignore[misc]  # its types are not read, see setup.cfg
    """A drop-in for ``torchcodec.decoders.VideoDecoder``: the same methods, arguments and results.

    A video of a store is read by vfsd, see `vfsd.compat.resolve`.  torchcodec reads any other
    source.  It reads the stored file of a video for another stream or device than the default, for
    `custom_frame_mappings`, and where its pixels would differ.

    `Frame.duration_seconds` is the time until the next frame.  Damaged frames raise `RuntimeError`.
    A decoder of a store's video can be pickled, and used after a fork.
    """

    def __init__(
        self,
        source: Any,
        *,
        stream_index: int | None = None,
        dimension_order: str = _CHANNELS_FIRST,
        num_ffmpeg_threads: int = 1,
        device: Any = None,
        seek_mode: str = _EXACT,
        transforms: Sequence[Any] | None = None,
        custom_frame_mappings: Any = None,
        **options: Any,
    ) -> None:
        """Open a video.

        Args:
            source: A path, a ``vfsd://`` URL or a name in $VFSD_STORE, or what torchcodec takes.
            stream_index: The stream, counting all streams of the file from 0; by default that of
                the store.
            dimension_order: "NCHW" or "NHWC".
            num_ffmpeg_threads: Decoding threads of torchcodec.  A store's decoders share its own.
            device: A torch device; by default the current default device.
            seek_mode: "exact" or "approximate".
            transforms: `CenterCrop`, `RandomCrop` and `Resize` of ``torchcodec.transforms``, or
                their equivalents in torchvision.
            custom_frame_mappings: Times and key frames as JSON, as in ``frame_mappings.json``.
            options: Arguments of newer versions of torchcodec.

        Raises:
            ValueError: An argument is invalid.
            RuntimeError: The source cannot be opened.
        """
        self._reader: _Reader | None = None
        arguments = {
            "stream_index": stream_index,
            "dimension_order": dimension_order,
            "num_ffmpeg_threads": num_ffmpeg_threads,
            "device": device,
            "seek_mode": seek_mode,
            "transforms": transforms,
            "custom_frame_mappings": custom_frame_mappings,
            **options,
        }
        try:
            video = video_of(source)
        except VfsdError as error:
            raise RuntimeError(f"Could not open {source!r}: {error}") from error
        if video is None:
            super().__init__(source, **arguments)
            return
        try:
            shown = chosen_region(video)
        except VfsdError as error:
            raise RuntimeError(f"Could not open {source!r}: {error}") from error
        picture = None
        # Invalid arguments are left to torchcodec, so that its errors are raised.
        is_plain = (
            seek_mode in (_EXACT, _APPROXIMATE)
            and dimension_order in (_CHANNELS_FIRST, _CHANNELS_LAST)
            and num_ffmpeg_threads is not None
            and custom_frame_mappings is None
            and all(value is torch.uint8 for value in options.values())
            and stream_index in (None, video.original.media.stream_index)
            and torch.device(device or torch.get_default_device()).type == "cpu"
        )
        if is_plain and (math.isfinite(allowed_psnr()) or _has_pixels_of_torchcodec(video)):
            picture = _picture_of(video, shown, transforms)
        if picture is None:
            if shown is not None:
                raise RuntimeError(f"torchcodec cannot decode a region of {source!r}")
            if stream_index is None:
                arguments["stream_index"] = video.original.media.stream_index
            super().__init__(_stored_file(video), **arguments)
            return
        self._reader = _Reader(video, picture, dimension_order)
        self.stream_index = video.original.media.stream_index
        self.metadata = _Metadata(video, shown, is_scanned=seek_mode == _EXACT)
        self._num_frames = len(video)
        self._begin_stream_seconds = self.metadata.begin_stream_seconds
        self._end_stream_seconds = self.metadata.end_stream_seconds

    def __reduce__(self) -> Any:
        if self._reader is None:
            return super().__reduce__()
        return _restored, (type(self), self.__dict__)

    def __repr__(self) -> str:
        return (
            object.__repr__(self) if self._reader is None else f"<VideoDecoder of {self._reader}>"
        )

    @property
    def cpu_fallback(self) -> CpuFallbackStatus:
        """No fallback: the device is a CPU."""
        if self._reader is None:
            return super().cpu_fallback
        status = CpuFallbackStatus(status_known=True)
        status._backend = "CPU"
        return status

    # -- frames by number

    def _getitem_int(self, key: int) -> torch.Tensor:
        if self._reader is None:
            return super()._getitem_int(key)
        return self.get_frame_at(key).data

    def _getitem_slice(self, key: slice) -> torch.Tensor:
        if self._reader is None:
            return super()._getitem_slice(key)
        return self.get_frames_in_range(*key.indices(len(self))).data

    def _get_key_frame_indices(self) -> torch.Tensor:
        if self._reader is None:
            return super()._get_key_frame_indices()
        return torch.from_numpy(self._reader.video.keyframes.astype(np.int64))

    def get_frame_at(self, index: int) -> Frame:
        """Return a frame by number, C x H x W; a negative one counts from the end.

        Raises `IndexError`.
        """
        if self._reader is None:
            return super().get_frame_at(index)
        try:
            number = operator.index(index)
        except TypeError as error:
            raise RuntimeError(f"Expected a value of type 'int', got {index!r}") from error
        return self._reader.frame(self._number(number))

    def get_frames_at(self, indices: torch.Tensor | Sequence[int]) -> FrameBatch:
        """Return frames by number, N x C x H x W, in the order of `indices`, which may repeat.

        Negative numbers count from the end.  Raises `IndexError`.
        """
        if self._reader is None:
            return super().get_frames_at(indices)
        if isinstance(indices, torch.Tensor):
            given = indices.to(torch.int64)
        else:
            given = torch.tensor(indices, device="cpu")
            if given.dtype is not torch.int64:
                kind = {torch.float32: "Float", torch.bool: "Bool"}.get(given.dtype, given.dtype)
                raise RuntimeError(f"expected scalar type Long but found {kind}")
        numbers = [self._number(number) for number in given.flatten().tolist()]
        return self._reader.batch(np.array(numbers, np.int64))

    def get_frames_in_range(self, start: int, stop: int, step: int = 1) -> FrameBatch:
        """Return every `step`-th frame of ``range(start, stop)``, with the rules of slices."""
        if self._reader is None:
            return super().get_frames_in_range(start, stop, step)
        start, stop, step = slice(start, stop, step).indices(len(self))
        if step < 0:
            raise RuntimeError(f"Step must be greater than 0; is {step}")
        if math.ceil((stop - start) / step) < 0:
            raise RuntimeError(f"Range stop, {stop}, is less than the start, {start}")
        return self._reader.batch(np.arange(start, stop, step))

    # -- frames by time

    def get_frame_played_at(self, seconds: float) -> Frame:
        """Return the frame on the screen at `seconds` of the stream.

        Raises `IndexError` before the first frame and at the end.
        """
        if self._reader is None:
            return super().get_frame_played_at(seconds)
        begin, end = self._begin_stream_seconds, self._end_stream_seconds
        if not begin <= seconds < end:
            raise IndexError(
                f"Invalid pts in seconds: {seconds}. "
                f"It must be greater than or equal to {begin} and less than {end}."
            )
        (number,) = self._reader.on_screen([float(seconds)])
        return self._reader.frame(int(number))

    def get_frames_played_at(self, seconds: torch.Tensor | Sequence[float]) -> FrameBatch:
        """Return the frames on the screen at times.

        Raises `RuntimeError` for a time before the first frame or at the end.
        """
        if self._reader is None:
            return super().get_frames_played_at(seconds)
        if isinstance(seconds, torch.Tensor):
            given = seconds.to(torch.float64)
        else:
            try:
                given = torch.tensor(seconds, dtype=torch.float64, device="cpu")
            except Exception as error:
                raise ValueError("Couldn't convert timestamps input to a tensor") from error
        times = given.flatten().tolist()
        for time in times:
            if not time >= self._begin_stream_seconds:
                bound = f"must be greater than or equal to {self._begin_stream_seconds:f}"
                raise RuntimeError(f"frame pts is {time:f}; {bound}.")
            if not time < self._end_stream_seconds:
                bound = f"must be less than {self._end_stream_seconds:f}"
                raise RuntimeError(f"frame pts is {time:f}; {bound}.")
        return self._reader.batch(self._reader.on_screen(times))

    def get_frames_played_in_range(
        self, start_seconds: float, stop_seconds: float, fps: float | None = None
    ) -> FrameBatch:
        """Return the frames on the screen in ``start_seconds <= t < stop_seconds``.

        With `fps`, return the frame on the screen at each multiple of ``1 / fps`` from the start.
        Raises `ValueError` for a range outside the video, `RuntimeError` for an `fps` of 0 or less.
        """
        if self._reader is None:
            return super().get_frames_played_in_range(start_seconds, stop_seconds, fps)
        begin, end = self._begin_stream_seconds, self._end_stream_seconds
        if not start_seconds <= stop_seconds:
            raise ValueError(
                f"Invalid start seconds: {start_seconds}. "
                f"It must be less than or equal to stop seconds ({stop_seconds})."
            )
        if not begin <= start_seconds < end:
            raise ValueError(
                f"Invalid start seconds: {start_seconds}. "
                f"It must be greater than or equal to {begin} and less than {end}."
            )
        if not stop_seconds <= end:
            raise ValueError(
                f"Invalid stop seconds: {stop_seconds}. It must be less than or equal to {end}."
            )
        if start_seconds == stop_seconds:
            return self._reader.batch(np.empty(0, np.int64))
        if fps is None:
            return self._reader.batch(self._reader.shown_in(start_seconds, stop_seconds))
        if not fps > 0:
            raise RuntimeError(f"fps must be positive, got {fps:f}")
        # Rounded away from zero at a half, as std::round does.
        count = math.floor((stop_seconds - start_seconds) * fps + 0.5)
        times = start_seconds + np.arange(count, dtype=np.float64) * (1.0 / fps)
        found = self._reader.batch(self._reader.on_screen(times))
        length = torch.full((count,), 1.0 / fps, dtype=torch.float64, device="cpu")
        return FrameBatch(found.data, torch.from_numpy(times), length)

    def _number(self, index: int) -> int:
        """Return the number of a frame from 0.  Raises `IndexError`."""
        number = index + self._num_frames if index < 0 else index
        shown = f"Invalid frame index={number} for streamIndex={self.stream_index}"
        if number < 0:
            raise IndexError(
                f"{shown}; negative indices must have an absolute value less than the number of "
                "frames, and the number of frames must be known."
            )
        if number >= self._num_frames:
            raise IndexError(f"{shown}; must be less than {self._num_frames}")
        return number


def _restored(kind: type[VideoDecoder], state: dict[str, Any]) -> VideoDecoder:
    decoder: VideoDecoder = kind.__new__(kind)
    decoder.__dict__.update(state)
    return decoder


# -- which pixels


@dataclass(frozen=True, slots=True)
class _Picture:
    """The part of each frame that transforms select."""

    region: Rect | None  #: None: the whole frame
    size: tuple[int, int]  #: width and height of the region after `Resize`
    within: Rect | None  #: the part of the resized region; None: all

    @property
    def shape(self) -> tuple[int, int, int]:
        """Rows, columns and channels of a result."""
        if self.within is not None:
            return self.within.height, self.within.width, 3
        return self.size[1], self.size[0], 3


def _has_pixels_of_torchcodec(video: Video) -> bool:
    """Return whether a read of the original gives torchcodec's pixels.

    The two use different releases of FFmpeg.  Their conversions to RGB differ above 8 bits and for
    odd sizes.  torchcodec does not mirror, and ignores the container's crop.
    """
    media = video.original.media
    return (
        media.bit_depth == 8
        and media.width % 2 == 0
        and media.height % 2 == 0
        and not media.mirrored
        and media.crop == NO_CROP_MARGINS
    )


def _picture_of(
    video: Video, shown: Rect | None, transforms: Sequence[Any] | None
) -> _Picture | None:
    """Return what `transforms` select of the part `shown` of a frame.

    The result is None if torchcodec has to apply them.
    """
    whole = Rect.of_size(video.width, video.height)
    frame = shown or whole
    # Random crops are drawn here.  torchcodec draws them again if it takes over.
    drawn_from = torch.get_rng_state()
    specs = _peer_transforms._make_transform_specs(transforms, (frame.height, frame.width))
    steps = [step.split(",") for step in specs.split(";")] if specs else []
    picture = _composed(
        [(name, [int(number) for number in numbers]) for name, *numbers in steps], frame, whole
    )
    if picture is None:
        torch.set_rng_state(drawn_from)
    return picture


def _composed(steps: Sequence[tuple[str, list[int]]], frame: Rect, whole: Rect) -> _Picture | None:
    region = frame
    size: tuple[int, int] | None = None
    within: Rect | None = None
    for name, numbers in steps:
        rows, columns = numbers[:2]
        area = region if size is None else within or Rect(0, 0, *size)
        if name == "resize":
            # vfsd scales in another way than torchcodec, and once.
            if size is not None or math.isinf(allowed_psnr()):
                return None
            size = columns, rows
            continue
        if name == "crop":
            left, top = numbers[2:]
        elif name == "center_crop":
            # FFmpeg rounds a half to the even number, as Python does.
            left, top = round((area.width - columns) / 2), round((area.height - rows) / 2)
        else:
            return None
        if min(rows, columns) < 1 or left < 0 or top < 0:
            return None
        if left + columns > area.width or top + rows > area.height:
            return None
        x, y = area.x1 + left, area.y1 + top
        area = Rect(x, y, x + columns, y + rows)
        if size is None:
            region = area
        else:
            within = area
    return _Picture(
        None if region == whole else region, size or (region.width, region.height), within
    )


class _Reader:
    """Reads frames of one video as tensors."""

    def __init__(self, video: Video, picture: _Picture, dimension_order: str) -> None:
        self.video = video
        self._picture = picture
        self._is_channels_first = dimension_order == _CHANNELS_FIRST
        region = picture.region
        shown = (video.width, video.height) if region is None else (region.width, region.height)
        size = None if picture.size == shown else picture.size
        self._cursor = FrameCursor(video, "rgb24", size, region)
        original = video.original
        self._time_base = original.time_base
        self._end_pts = original.end_pts
        self._starts: npt.NDArray[np.float64] | None = None

    def __repr__(self) -> str:
        return repr(self.video)

    def frame(self, number: int) -> Frame:
        """Return one frame; `number` is within the video."""
        found = self._read(lambda: self._cursor.frame(number))
        self._require_good([number] if found.damaged else [])
        starts, lengths = self._times(np.array([number], np.int64))
        return Frame(self._tensor(found.data[None])[0], float(starts[0]), float(lengths[0]))

    def batch(self, numbers: Ints) -> FrameBatch:
        """Return frames in the order of `numbers`, which are within the video."""
        if len(numbers):
            found = self._read(lambda: self._cursor.frames(numbers))
            self._require_good(numbers[found.damaged].tolist())
            data = self._tensor(found.data)
        else:
            shape = self._picture.shape
            data = self._ordered(torch.empty((0, *shape), dtype=torch.uint8, device="cpu"))
        starts, lengths = self._times(numbers)
        return FrameBatch(data, torch.from_numpy(starts), torch.from_numpy(lengths))

    def on_screen(self, seconds: Sequence[float] | npt.NDArray[Any]) -> Ints:
        """Return the frames on the screen at times, which are within the video."""
        found = np.searchsorted(self._all_starts()[1:], seconds, side="right")
        return found.astype(np.int64)

    def shown_in(self, start: float, stop: float) -> Ints:
        """Return the frames on the screen in ``start <= t < stop``."""
        (first,) = self.on_screen([start])
        return np.arange(first, np.searchsorted(self._all_starts(), stop), dtype=np.int64)

    def _read(self, read: Callable[[], Any]) -> Any:
        try:
            return read()
        except (VfsdError, OSError) as error:
            raise RuntimeError(f"{self.video.name}: {error}") from error

    def _require_good(self, damaged: Sequence[int]) -> None:
        if damaged:
            raise RuntimeError(f"{self.video.name}: frame {damaged[0]} is damaged")

    def _tensor(self, pixels: npt.NDArray[Any]) -> torch.Tensor:
        within = self._picture.within
        if within is not None:
            pixels = pixels[:, within.y1 : within.y2, within.x1 : within.x2]
        return self._ordered(torch.from_numpy(pixels))

    def _ordered(self, frames: torch.Tensor) -> torch.Tensor:
        return frames.permute(0, 3, 1, 2) if self._is_channels_first else frames

    # -- times, as torchcodec computes them: in floats, from the ticks of the stream

    def _times(self, numbers: Ints) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Return start and length of frames in seconds."""
        table = context_of(self.video).table
        starts = table.pts_of(numbers)
        ends = np.full(len(numbers), self._end_pts, np.int64)
        is_followed = numbers + 1 < len(self.video)
        ends[is_followed] = table.pts_of(numbers[is_followed] + 1)
        return self._seconds(starts), self._seconds(ends - starts)

    def _all_starts(self) -> npt.NDArray[np.float64]:
        if self._starts is None:
            numbers = np.arange(len(self.video), dtype=np.int64)
            self._starts = self._seconds(context_of(self.video).table.pts_of(numbers))
        return self._starts

    def _seconds(self, ticks: Ints) -> npt.NDArray[np.float64]:
        return ticks * self._time_base.numerator / self._time_base.denominator


class _Metadata(VideoStreamMetadata):  # type: ignore[misc]  # its types are not read
    """Metadata from the catalog.

    Values that only the header of the file has are read at their first use.
    """

    def __init__(self, video: Video, shown: Rect | None, *, is_scanned: bool) -> None:
        """Without `is_scanned`, values "from content" are None, as in torchcodec."""
        original = video.original
        base, frames = original.time_base, len(video)
        begin = original.first_pts * base.numerator / base.denominator
        end = original.end_pts * base.numerator / base.denominator
        self._video, self._shown = video, shown
        self.begin_stream_seconds, self.end_stream_seconds = begin, end
        self.duration_seconds = end - begin
        self.num_frames = frames
        self.average_fps = frames / (end - begin) if end > begin else float(video.fps)
        self.begin_stream_seconds_from_content = begin if is_scanned else None
        self.end_stream_seconds_from_content = end if is_scanned else None
        self.num_frames_from_content = frames if is_scanned else None
        self.stream_index = original.media.stream_index
        frame = shown or Rect.of_size(video.width, video.height)
        self.width, self.height = frame.width, frame.height
        self.codec, self.pixel_format = original.media.codec, original.media.pixel_format

    def __reduce__(self) -> Any:
        is_scanned = self.num_frames_from_content is not None
        return _metadata_of, (self._video, self._shown, is_scanned)

    def __getattr__(self, name: str) -> Any:
        """Read the header for a field that the catalog lacks; None if torchcodec cannot open it."""
        missing = {field.name for field in dataclasses.fields(VideoStreamMetadata)}
        missing -= self.__dict__.keys()
        if name not in missing:
            raise AttributeError(name)
        try:
            header = _Peer(
                _stored_file(self._video), stream_index=self.stream_index, seek_mode=_APPROXIMATE
            ).metadata
        except (OSError, RuntimeError, ValueError):  # OSError: it is only in a bucket
            header = None
        for field in missing:
            self.__dict__[field] = getattr(header, field, None)
        return self.__dict__[name]


def _metadata_of(video: Video, shown: Rect | None, is_scanned: bool) -> _Metadata:
    return _Metadata(video, shown, is_scanned=is_scanned)


def _stored_file(video: Video) -> str:
    context = context_of(video)
    return os.fspath(context.parts.originals.path_of(context.original))


if is_installed():
    replace_decoder()  # the import of torchcodec above may have come too early for it
