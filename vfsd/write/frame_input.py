"""Converts the pictures that callers pass (arrays, frames, raw bytes, YUV4MPEG2 streams) into
single frames.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from io import BufferedReader, BytesIO, FileIO, RawIOBase
from types import MappingProxyType, NoneType
from typing import IO, TYPE_CHECKING, Protocol, TypeAlias, TypeGuard, cast, runtime_checkable

import numpy as np

from vfsd.codecs.encoding.file_writer import require_size
from vfsd.codecs.frames.planes import check_size, input_layout
from vfsd.core.frames import Frame, Frames
from vfsd.core.pixel_array import Pixels
from vfsd.errors import CutOffError, UsageError
from vfsd.validation import width_and_height

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


RawInput: TypeAlias = bytes | bytearray | memoryview | IO[bytes]
"""Bytes, or a file of bytes that is open for reading."""

_CHUNK = 1 << 20
_GRAY_HINT = "arrays without a channel axis need format='gray'"
_SIZE_HINT = "check the size and the pixel format"

Y4M_MAGIC = b"YUV4MPEG2 "
_FRAME = b"FRAME"
_MAX_LINE_BYTES = 4096
_UNKNOWN_ASPECT = "0:0"
_QUARTER = "411"
_DEEP_GRAY = ("mono9", "mono10", "mono12", "mono14")
_DEPTH_FAMILIES = ("420", "422", "444")
# The pixel format of each color space; some are wider, and none loses samples.
_FORMATS: Mapping[str, str] = MappingProxyType(
    {
        "420": "yuv420p",
        "420jpeg": "yuv420p",
        "420mpeg2": "yuv420p",
        "420paldv": "yuv420p",
        "422": "yuv422p",
        "444": "yuv444p",
        **{f"{form}p{bits}": f"yuv{form}p{bits}" for form in _DEPTH_FAMILIES for bits in (10, 12)},
        "411": "yuv422p",
        "mono": "gray",
        **{f"mono{bits}": "gray16" for bits in (9, 10, 12, 14, 16)},
    }
)


@runtime_checkable
class SupportsArray(Protocol):
    """An object that converts to a numpy array, such as tensors of other libraries and
    `VideoArray`.
    """

    def __array__(self) -> Pixels: ...


FrameInput: TypeAlias = Pixels | SupportsArray | Frame | Frames | Iterable["FrameInput"]
"""A picture, several along the first axis, frames that were read, or any sequence of these."""


def is_raw_input(data: object) -> TypeGuard[RawInput]:
    """Return whether `data` is a `RawInput`.  A video has `read` too, but is a sequence of
    frames.
    """
    if isinstance(data, (bytes, bytearray, memoryview)):
        return True
    return hasattr(data, "read") and not hasattr(data, "iterate")


def iter_input_frames(
    data: FrameInput | RawInput, pixel_format: str
) -> Iterator[tuple[Pixels, int | None]]:
    """Yield (picture, pts or None), with pictures in the shape in which frames are read.

    Raises `UsageError` for anything that is not pictures in that format.
    """
    if isinstance(data, Frame):
        yield data.data, data.pts
    elif isinstance(data, Frames):
        yield from ((frame.data, frame.pts) for frame in data)
    elif isinstance(data, SupportsArray):
        yield from ((picture, None) for picture in _frames_of_array(np.asarray(data), pixel_format))
    elif isinstance(data, Iterable) and not isinstance(data, (str, bytes, bytearray, memoryview)):
        for part in data:
            yield from iter_input_frames(part, pixel_format)
    else:
        raise UsageError(
            f"pictures must be arrays, frames or raw bytes, got {type(data).__name__}",
            hint="raw bytes need a size",
        )


def _frames_of_array(data: Pixels, pixel_format: str) -> Iterator[Pixels]:
    channels = input_layout(pixel_format).channels
    if channels == 1 and data.ndim in (2, 3) and data.shape[-1] != 1:
        data = data[..., None]  # gray without an axis for its only channel
    dimensions = 3 if channels else 2
    if data.ndim not in (dimensions, dimensions + 1):
        raise UsageError(
            f"pictures in {pixel_format} must have {dimensions} dimensions each, "
            f"got an array of {data.ndim}",
            hint=_GRAY_HINT if channels and data.ndim == 2 else None,
        )
    # Tensors of PyTorch have the channels first.
    if channels and data.shape[-3] == channels != data.shape[-1]:
        raise UsageError(
            f"pictures in {pixel_format} must be height x width x {channels}, got "
            f"{' x '.join(map(str, data.shape[-3:]))}",
            hint="numpy.moveaxis(array, -3, -1) puts channels last",
        )
    if channels and data.ndim == 3 and data.shape[-1] != channels:
        raise UsageError(
            f"pictures in {pixel_format} must be height x width x {channels}, got "
            f"{' x '.join(map(str, data.shape))}",
            hint=_GRAY_HINT,
        )
    if data.ndim == dimensions:
        yield data
    else:
        yield from data


def iter_raw_frames(data: RawInput, pixel_format: str, size: tuple[int, int]) -> Iterator[Pixels]:
    """Yield pictures from consecutive raw samples.

    Raises `UsageError` for an invalid size, and before the first picture if the known number of
    bytes is not a multiple of a frame.  With an unknown length, such as that of a pipe, a partial
    last frame raises `CutOffError`.
    """
    layout = input_layout(pixel_format)
    size = width_and_height(size)
    require_size(layout.name, *size)
    shape, dtype = layout.shape(*size), np.dtype(layout.dtype)
    wanted = layout.bytes(*size)

    def is_left(whole: int, left: int) -> str:
        return (
            f"after {whole} frames {left} bytes are left, and a frame of "
            f"{size[0]}x{size[1]} in {pixel_format} has {wanted}"
        )

    # A wrong size or format is found before the first picture is encoded.
    ahead = _remaining_bytes(data)
    if ahead is not None and ahead % wanted:
        raise UsageError(is_left(*divmod(ahead, wanted)), hint=_SIZE_HINT)
    pieces = iter_chunks(data, wanted)
    for number, picture in enumerate(pieces):
        if len(picture) < wanted:
            next(pieces, None)  # raises the cause if it is known
            what = f"frame {number} is truncated: {is_left(number, len(picture))}"
            raise CutOffError(what, hint=_SIZE_HINT)
        yield np.frombuffer(picture, dtype).reshape(shape)


def iter_chunks(data: RawInput, size: int = _CHUNK) -> Iterator[memoryview]:
    """Yield all bytes in chunks of `size`; only the last may be shorter.

    Raises `UsageError` for a file that returns something other than bytes or more than requested.
    An `OSError` of the file is raised after all bytes before it were yielded.
    """
    if isinstance(data, (bytes, bytearray, memoryview)):
        view = memoryview(data).cast("B")
        yield from (view[at : at + size] for at in range(0, len(view), size))
        return
    while True:
        parts, missing = [], size
        broken: OSError | None = None
        try:
            while missing and (part := _read(data, missing)):  # a pipe may return fewer bytes
                parts.append(part)
                missing -= len(part)
        except OSError as error:
            broken = error
        if parts:
            yield memoryview(parts[0] if len(parts) == 1 else b"".join(parts))
        if broken is not None:
            raise broken
        if missing:
            return


class PeekableFile(RawIOBase):
    """A file or bytes in memory with its first bytes in `head`.

    Closing it leaves the underlying file open.
    """

    def __init__(self, data: RawInput, count: int) -> None:
        """Raises as `iter_chunks` does, except that an `OSError` is raised when the bytes
        are read.
        """
        self._pieces = iter_chunks(data, count)
        self.head = bytes(next(self._pieces, b""))  #: the first `count` bytes, or all
        self.given: RawInput = data  #: reads all bytes, including the head
        if isinstance(data, (bytes, bytearray, memoryview)):
            self._file: IO[bytes] = BytesIO(data)
            self._left, self._is_over = b"", False
        else:
            self._file, self.given = data, cast(IO[bytes], self)
            self._left, self._is_over = self.head, len(self.head) < count

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        room = memoryview(buffer).cast("B")
        if not self._left and self._is_over:
            next(self._pieces, None)  # raises the cause of truncation
            return 0
        # Return available bytes at once, because the writer of a pipe may be slow.
        part = self._left[: len(room)] or _read(self._file, len(room), at_once=True) or b""
        self._left = self._left[len(part) :]
        room[: len(part)] = part
        return len(part)


def _remaining_bytes(data: RawInput) -> int | None:
    """Return the number of bytes left; None if it is unknown before reading."""
    if isinstance(data, (bytes, bytearray, memoryview)):
        return memoryview(data).nbytes
    # Other files, such as compressed ones, may give more bytes than `seek` reports.
    if type(getattr(data, "raw", data)) not in (FileIO, BytesIO) or not data.seekable():
        return None
    at = data.tell()
    end = data.seek(0, os.SEEK_END)
    data.seek(at)
    return max(0, end - at)


def _read(file: IO[bytes], most: int, *, at_once: bool = False) -> bytes | None:
    # Other classes may override `read` only, and `read1` would bypass it.
    read = file.read1 if at_once and isinstance(file, BufferedReader) else file.read
    part: bytes | None = read(most)
    if not isinstance(part, (bytes, bytearray, memoryview, NoneType)):
        raise UsageError(
            f"a file of pictures or of a video must return bytes, got {type(part).__name__}",
            hint="open it with mode 'rb'",
        )
    if part is not None and len(part) > most:
        raise UsageError(f"{most} bytes were requested, and the file gave {len(part)}")
    return part


@dataclass(frozen=True, slots=True)
class Y4mHeader:
    """The header of a YUV4MPEG2 file."""

    width: int
    height: int
    rate: Fraction | None  #: pictures per second; None if unknown
    pixel_format: str  #: as in `vfsd.codecs.frames.to_array`
    color_range: str | None  #: "limited", "full" or None if unspecified
    sample_aspect_ratio: Fraction | None
    space: str = "420jpeg"  #: color space as written in the file


def read_y4m_header(file: IO[bytes]) -> Y4mHeader:
    """Parse the first line of a file that starts with `Y4M_MAGIC`.

    Raises `UsageError` for a damaged header, interlaced pictures, or an unknown color space.
    """
    line = file.readline(_MAX_LINE_BYTES)
    if not line.endswith(b"\n"):
        raise UsageError("the YUV4MPEG2 header is truncated or damaged")
    words = line.decode("ascii", "replace").split()
    fields: dict[str, str] = {}
    for word in words[1:]:
        key, value = word.partition("=")[::2] if word.startswith("X") else (word[0], word[1:])
        if key in fields and not word.startswith("X"):
            raise UsageError(f"a YUV4MPEG2 header must not have {key} twice: {line[:80]!r}")
        fields.setdefault(key, value)
    try:
        width, height = int(fields["W"]), int(fields["H"])
        rate = None if fields["F"] == _UNKNOWN_ASPECT else Fraction(fields["F"].replace(":", "/"))
        aspect = fields.get("A", _UNKNOWN_ASPECT)
        ratio = None if aspect in (_UNKNOWN_ASPECT, "1:1") else Fraction(aspect.replace(":", "/"))
    except (KeyError, ValueError, ZeroDivisionError):
        raise UsageError(f"invalid YUV4MPEG2 header: {line[:80]!r}") from None
    space = fields.get("C", "420jpeg")
    if space not in _FORMATS:
        raise UsageError(
            f"YUV4MPEG2 in {space} cannot be encoded",
            hint="`vfsd ingest`, or `cp` into a mount, keeps it as it is; or convert it to one of "
            f"{', '.join(_FORMATS)}",
        )
    if fields.get("I", "p") not in ("p", "?"):
        raise UsageError(
            "interlaced pictures cannot be written",
            hint="deinterlace them first, or give the encoded stream, which is stored unchanged",
        )
    if width < 1 or height < 1 or (rate is not None and rate <= 0):
        raise UsageError(f"invalid YUV4MPEG2 header: {line[:80]!r}")
    pixel_format = _FORMATS[space]
    check_size(input_layout(pixel_format), pixel_format, width, height)
    color_range = fields.get("XCOLORRANGE", "").lower() or None
    if pixel_format.startswith("gray"):
        if color_range == "limited":
            raise UsageError(
                "YUV4MPEG2 in gray of limited range cannot be encoded",
                hint="convert it to full range",
            )
        color_range = None  # gray pictures always have full range
    if space == _QUARTER and width % 4:
        raise UsageError(
            f"YUV4MPEG2 in 411 must have a width divisible by 4, got {width}",
            hint="convert it to 444",
        )
    return Y4mHeader(width, height, rate, pixel_format, color_range, ratio, space)


def read_y4m_frames(file: IO[bytes], header: Y4mHeader) -> Iterator[Pixels]:
    """Yield each picture after the header.  Raises `CutOffError` for a partial last frame."""
    layout = input_layout(header.pixel_format)
    shape, dtype = layout.shape(header.width, header.height), np.dtype(layout.dtype)
    wanted = layout.bytes(header.width, header.height)
    if header.space == _QUARTER:
        wanted = header.width * header.height * 3 // 2
    number = 0
    while line := file.readline(_MAX_LINE_BYTES):
        if line.split(b" ", 1)[0].rstrip() != _FRAME and not _FRAME.startswith(line):
            raise CutOffError(f"frame {number} of YUV4MPEG2 does not begin with FRAME")
        samples = read_exactly(file, wanted) if line.endswith(b"\n") else b""
        if len(samples) < wanted:
            raise CutOffError(f"frame {number} of YUV4MPEG2 is truncated")
        yield _widen_samples(np.frombuffer(samples, dtype), header).reshape(shape)
        number += 1


def _widen_samples(samples: Pixels, header: Y4mHeader) -> Pixels:
    """Convert samples to `header.pixel_format` without loss.

    Chroma is repeated, and gray of fewer bits is shifted up.
    """
    if header.space == _QUARTER:
        luma = header.width * header.height
        return np.concatenate((samples[:luma], np.repeat(samples[luma:], 2)))
    if header.space in _DEEP_GRAY:
        return samples << (16 - int(header.space.removeprefix("mono")))
    return samples


def read_exactly(file: IO[bytes], size: int) -> bytes:
    """Read `size` bytes, also from a pipe that returns fewer at a time; fewer only at the end."""
    parts = []
    while size and (part := file.read(size)):
        parts.append(part)
        size -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)
