"""`VideoCapture` with the interface of OpenCV, for videos of a store and for any other source.

Frame counts and positions are exact: `set(CAP_PROP_POS_FRAMES, k)` always leads to frame k of a
full decode, and `CAP_PROP_FRAME_COUNT` is the number of frames that `read` returns.  The pixels of
8-bit video are those of OpenCV, bit for bit.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, SupportsFloat

import cv2
import numpy as np
import numpy.typing as npt

from vfsd.api.video import Video, context_of
from vfsd.compat.resolve import FrameCursor, chosen_region, video_of
from vfsd.errors import OutOfRangeError, VfsdError
from vfsd.tiling import Rect

if TYPE_CHECKING:
    from vfsd.core.pixel_array import Pixels

_log = logging.getLogger(__name__)

_Peer = cv2.VideoCapture
"""OpenCV's own class, also after `vfsd.compat.install` has replaced it."""

_BACKENDS = (cv2.CAP_ANY, cv2.CAP_FFMPEG)
"""A capture with another `apiPreference` is opened by OpenCV, since it may behave differently."""
_COLOR, _GRAY = "bgr24", "gray"
_ADVICE = frozenset(
    {
        cv2.CAP_PROP_N_THREADS,
        cv2.CAP_PROP_HW_ACCELERATION,
        cv2.CAP_PROP_OPEN_TIMEOUT_MSEC,
        cv2.CAP_PROP_READ_TIMEOUT_MSEC,
    }
)
"""Parameters of `open` that change no frame.  vfsd decodes with its own threads, by software."""
_SOFTWARE = (cv2.VIDEO_ACCELERATION_NONE, cv2.VIDEO_ACCELERATION_ANY)

# OpenCV 5 has these; their numbers are fixed.
_POS_FRAMES_IS_EXACT = getattr(cv2, "CAP_PROP_POS_FRAMES_IS_EXACT", None)


class VideoCapture:
    """A drop-in for ``cv2.VideoCapture``: the same methods, arguments and results.

    A video of a store is read by vfsd, see `vfsd.compat.resolve`.  Any other file, a URL, a camera
    or a buffer is opened by OpenCV, and each method forwards to it.

    Methods return False or None where OpenCV's do, and raise ``cv2.error`` instead if
    `setExceptionMode` asks for that.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Takes the arguments of `open`; without any, the capture is closed."""
        self._peer: Any = None
        self._video: _StoreCapture | None = None
        self._raises = False
        if args or kwargs:
            self.open(*args, **kwargs)

    def open(self, *args: Any, **kwargs: Any) -> bool:
        """Open (source[, apiPreference[, params]]), after closing what was open.

        Returns whether it is open.  The names of keyword arguments are OpenCV's.
        """
        self.release()
        source, preference, params = _arguments(args, kwargs)
        try:
            video = video_of(source)
        except VfsdError as error:
            return self._failed(f"could not open {source!r}: {error}", False)
        if video is not None:
            try:
                region = chosen_region(video)
            except VfsdError as error:
                return self._failed(f"could not open {source!r}: {error}", False)
            if preference in _BACKENDS:
                capture = _StoreCapture(video, region)
                if capture.configure(_pairs(params)):
                    self._video = capture
                    return True
                capture.close()
            if region is not None:
                return self._failed(f"OpenCV cannot read a region of {source!r}", False)
            # OpenCV opens the stored file: a mounted path would lead there through FUSE.
            try:
                path = _stored_file(video)
            except OSError as error:  # only in a bucket
                return self._failed(f"OpenCV cannot open {source!r}: {error}", False)
            args, kwargs = _with_source(args, kwargs, path)
        return self._open_peer(*args, **kwargs)

    def _open_peer(self, *args: Any, **kwargs: Any) -> bool:
        self._peer = _Peer()
        self._peer.setExceptionMode(self._raises)
        return bool(self._peer.open(*args, **kwargs))

    def isOpened(self) -> bool:
        """Return whether frames can be read."""
        return self._video is not None or (self._peer is not None and self._peer.isOpened())

    def release(self) -> None:
        """Close the capture.  A closed one can be closed again, and opened."""
        video, self._video = self._video, None
        if video is not None:
            video.close()
        peer, self._peer = self._peer, None
        if peer is not None:
            peer.release()

    def grab(self) -> bool:
        """Go to the next frame without decoding it.  Returns False at the end."""
        if self._video is None:
            return bool(self._peer.grab()) if self._peer is not None else self._closed(False)
        return self._video.grab() or self._failed("there is no next frame", False)

    def retrieve(
        self, image: npt.NDArray[Any] | None = None, flag: int = 0
    ) -> tuple[bool, Pixels | None]:
        """Return (True, the frame that `grab` went to) or (False, None).

        The frame is H x W x 3 in BGR order, or H x W of luma if CAP_PROP_CONVERT_RGB is 0.  It is
        written into `image` if that has this shape and this type.  With the number that
        CAP_PROP_CODEC_EXTRADATA_INDEX has as `flag`, the codec configuration takes its place.
        """
        if self._video is None:
            if self._peer is None:
                return self._closed(False), None
            return _pair(self._peer.retrieve(image, flag))
        if flag and flag == self._video.get(cv2.CAP_PROP_CODEC_EXTRADATA_INDEX):
            return _pair(self._video.opened_by_peer().retrieve(image, flag))
        try:
            found = self._video.retrieve()
        except (VfsdError, OSError) as error:
            _log.warning("%s: %s", self._video.name, error)
            return self._failed(str(error), False), None
        if found is None:
            return self._failed("there is no frame to retrieve", False), None
        return True, _written_into(image, found)

    def read(self, image: npt.NDArray[Any] | None = None) -> tuple[bool, Pixels | None]:
        """Return (True, the next frame) or, at the end, (False, None).  See `retrieve`."""
        if self._video is None and self._peer is not None:
            return _pair(self._peer.read(image))
        return self.retrieve(image) if self.grab() else (False, None)

    def get(self, propId: int) -> float:
        """Return a property; 0.0 for one that is unknown.

        CAP_PROP_POS_FRAMES is the number of the next frame.  CAP_PROP_POS_MSEC is the time of the
        frame before it in milliseconds, 0.0 at the start.  Width and height are those of the
        displayed frame.
        """
        if self._video is None:
            return float(self._peer.get(propId)) if self._peer is not None else 0.0
        return self._video.get(propId)

    def set(self, propId: int, value: float) -> bool:
        """Set a property, and return whether that is possible.

        A position before the start leads to the first frame; after one past the end `read` returns
        (False, None).  CAP_PROP_FORMAT of -1, for packets instead of frames, passes the video to
        OpenCV at the start.
        """
        if self._video is None:
            if self._peer is None:
                return self._closed(False)
            return bool(self._peer.set(propId, value))
        if propId == cv2.CAP_PROP_FORMAT and value == -1:
            try:
                path = _stored_file(self._video.video)
            except OSError as error:
                return self._failed(f"OpenCV cannot read packets: {error}", False)
            self.release()
            return self._open_peer(path, cv2.CAP_FFMPEG, [propId, -1])
        return self._video.set(propId, float(value)) or self._failed(
            f"property {propId} cannot be {value}", False
        )

    def getBackendName(self) -> str:
        """Return "VFSD" for a video of a store, else OpenCV's name of the backend.

        Raises ``cv2.error`` if the capture is closed.
        """
        if self._video is not None:
            return "VFSD"
        return str((self._peer if self._peer is not None else _Peer()).getBackendName())

    def setExceptionMode(self, enable: bool) -> None:
        """Let failures of `open`, `grab`, `retrieve` and `read` raise ``cv2.error``."""
        self._raises = bool(enable)
        if self._peer is not None:
            self._peer.setExceptionMode(self._raises)

    def getExceptionMode(self) -> bool:
        """Return whether failures raise."""
        return self._raises

    @staticmethod
    def waitAny(streams: Sequence[Any], timeoutNs: int = 0) -> tuple[bool, Sequence[int]]:
        """As OpenCV's, for cameras."""
        peers = [getattr(stream, "_peer", stream) for stream in streams]
        ready, found = _Peer.waitAny(peers, timeoutNs)
        return bool(ready), found

    def _closed(self, result: bool) -> bool:
        return self._failed("nothing is open", result)

    def _failed(self, message: str, result: bool) -> bool:
        if self._raises:
            raise cv2.error(message)
        return result


class _StoreCapture:
    """The state of a capture of a video of a store."""

    def __init__(self, video: Video, region: Rect | None) -> None:
        self.video = video
        self._region = region
        self._frames = len(video)
        self._next = 0
        self._grabbed: int | None = None
        self._is_upright = True
        self._is_color = True
        self._cursor = FrameCursor(video, _COLOR, region=region)
        self._from_peer: dict[int, float] = {}
        self._advice: list[int] = []

    def configure(self, parameters: Sequence[tuple[int, int]]) -> bool:
        """Set parameters of `open`; returns False if OpenCV alone has one of them."""
        for name, value in parameters:
            if name == cv2.CAP_PROP_HW_ACCELERATION and value not in _SOFTWARE:
                return False
            if name in _ADVICE:
                self._advice += [name, value]
            elif not self.set(name, value):
                return False
        return True

    @property
    def name(self) -> str:
        return self.video.name

    @property
    def _shown(self) -> Rect:
        """The part of the displayed frame that is read."""
        return self._region or Rect.of_size(self.video.width, self.video.height)

    def close(self) -> None:
        self._cursor.close()

    def grab(self) -> bool:
        self._grabbed = self._next if self._next < self._frames else None
        if self._grabbed is None:
            self._cursor.close()
            return False
        self._next += 1
        return True

    def retrieve(self) -> Pixels | None:
        """Return the grabbed frame; None without one.  Raises the errors of `Video.read`."""
        if self._grabbed is None:
            return None
        # Not kept for another call, since the caller may write into it.
        data = self._cursor.frame(self._grabbed).data
        if not self._is_color:
            # The planes of a YUV picture are below each other, luma first.
            data = data[: self._shown.height] if data.ndim == 2 else data[:, :, 0]
        return data if self._is_upright else self._as_stored(data)

    def _as_stored(self, data: Pixels) -> Pixels:
        media = self.video.original.media
        data = np.rot90(data, media.rotation // 90)
        return np.ascontiguousarray(data[:, ::-1] if media.mirrored else data)

    # -- properties

    def get(self, name: int) -> float:
        if name == cv2.CAP_PROP_POS_MSEC:
            return self._milliseconds()
        if name == _POS_FRAMES_IS_EXACT:
            return 1.0
        video = self.video
        media = video.original.media
        width, height = self._shown.width, self._shown.height
        # As stored, a picture lies on its side.
        if not self._is_upright and media.rotation % 180:
            width, height = height, width
        known: dict[int, SupportsFloat] = {
            cv2.CAP_PROP_POS_FRAMES: self._next,
            cv2.CAP_PROP_POS_AVI_RATIO: self._next / self._frames if self._frames else 0,
            cv2.CAP_PROP_FRAME_COUNT: self._frames,
            cv2.CAP_PROP_FPS: video.fps,
            cv2.CAP_PROP_FRAME_WIDTH: width,
            cv2.CAP_PROP_FRAME_HEIGHT: height,
            cv2.CAP_PROP_FORMAT: self._array_type(),
            cv2.CAP_PROP_CONVERT_RGB: self._is_color,
            cv2.CAP_PROP_ORIENTATION_META: media.rotation,
            cv2.CAP_PROP_ORIENTATION_AUTO: self._is_upright,
            cv2.CAP_PROP_BACKEND: cv2.CAP_FFMPEG,
        }
        if name in known:
            return float(known[name])
        return self._peer_property(name)

    def set(self, name: int, value: float) -> bool:
        if name == cv2.CAP_PROP_POS_FRAMES:
            return self._go_to(value)
        if name == cv2.CAP_PROP_POS_MSEC:
            return self._go_to(self._on_screen(value / 1000))
        if name == cv2.CAP_PROP_POS_AVI_RATIO:
            return self._go_to(value * self._frames)
        if name == cv2.CAP_PROP_ORIENTATION_AUTO:
            self._is_upright = bool(value)
        elif name == cv2.CAP_PROP_CONVERT_RGB:
            self._is_color = bool(value)
            self._cursor.close()
            pixel_format = _COLOR if self._is_color else _luma_format(self.video, self._shown)
            self._cursor = FrameCursor(self.video, pixel_format, region=self._region)
        else:
            return False
        return True

    def _array_type(self) -> int:
        if self._is_color:
            return cv2.CV_8UC3
        has_words = _luma_format(self.video, self._shown) == "gray16"
        return cv2.CV_16UC1 if has_words else cv2.CV_8UC1

    def _go_to(self, position: float) -> bool:
        if math.isnan(position):
            return False
        self._next = int(min(max(position, 0), self._frames))
        self._grabbed = None
        return True

    def _on_screen(self, seconds: float) -> int:
        """Return the frame at a time; the number of frames at the end of the video."""
        if seconds < 0 or math.isnan(seconds):
            return 0
        try:
            return self.video.index_at(seconds)
        except OutOfRangeError:
            return self._frames

    def _milliseconds(self) -> float:
        if self._next == 0:
            return 0.0
        original, table = self.video.original, context_of(self.video).table
        (pts,) = table.pts_of(np.array([self._next - 1], np.int64))
        return float((int(pts) - original.first_pts) * original.time_base * 1000)

    def opened_by_peer(self) -> Any:
        """Return a capture of OpenCV of the stored file, with the parameters of `open`."""
        return _Peer(_stored_file(self.video), cv2.CAP_FFMPEG, self._advice)

    def _peer_property(self, name: int) -> float:
        """Return what OpenCV reports for the stored file: FourCC, bit rate, aspect ratio ..."""
        if name not in self._from_peer:
            try:
                peer = self.opened_by_peer()
            except OSError:  # only in a bucket
                return float(_fourcc(self.video)) if name == cv2.CAP_PROP_FOURCC else 0.0
            # OpenCV reports -1 for properties that it does not know.
            self._from_peer[name] = max(float(peer.get(name)), 0.0) if peer.isOpened() else 0.0
            peer.release()
        return self._from_peer[name]


# -- arguments


def _arguments(args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Any, int, Sequence[int]]:
    """Return source, backend and parameters of a call of OpenCV."""
    source = args[0] if args else kwargs.get("filename")
    preference = args[1] if len(args) > 1 else kwargs.get("apiPreference", cv2.CAP_ANY)
    params = args[2] if len(args) > 2 else kwargs.get("params", ())
    return source, preference, params


def _with_source(
    args: tuple[Any, ...], kwargs: dict[str, Any], path: str
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return ((path, *args[1:]), kwargs) if args else ((), kwargs | {"filename": path})


def _pairs(params: Sequence[int]) -> list[tuple[int, int]]:
    return list(zip(params[::2], params[1::2], strict=True))


def _fourcc(video: Video) -> int:
    """Return OpenCV's code of a codec, which is not always that of the container."""
    media = video.original.media
    name = media.codec if media.codec in ("h264", "hevc") else media.codec_tag
    return int.from_bytes(name.encode("latin-1", "replace")[:4], "little")


def _stored_file(video: Video) -> str:
    context = context_of(video)
    return os.fspath(context.parts.originals.path_of(context.original))


def _luma_format(video: Video, shown: Rect) -> str:
    """Return the pixel format of a read that has the stored luma, or else gray."""
    media = video.original.media
    if media.pixel_format.startswith("gray16"):
        return "gray16"
    # 8-bit OpenCV arrays have no room for deeper luma, and RGB has none.
    if media.bit_depth != 8 or not media.pixel_format.startswith(("yuv", "nv")):
        return _GRAY
    return "yuv444p" if shown.width % 2 or shown.height % 2 else "yuv420p"


# -- results


def _pair(found: tuple[Any, Any]) -> tuple[bool, Any]:
    return bool(found[0]), found[1]


def _written_into(image: npt.NDArray[Any] | None, found: Pixels) -> Pixels:
    """Return `image` with the pixels of `found` if it fits, else `found`."""
    if image is None or image.shape != found.shape or image.dtype != found.dtype:
        return found
    image[...] = found
    return image
