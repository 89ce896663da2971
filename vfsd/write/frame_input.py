"""Converts the pictures that callers pass (arrays, frames, raw bytes, files) into single frames."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from io import BufferedReader, BytesIO, FileIO, RawIOBase
from types import NoneType
from typing import IO, TYPE_CHECKING, Protocol, TypeAlias, TypeGuard, cast, runtime_checkable

import numpy as np

from vfsd.codecs.encoding.file_formats import require_size
from vfsd.codecs.frames.pixel_layouts import input_layout
from vfsd.core.frames import Frame, Frames, Pixels
from vfsd.errors import CutOffError, UsageError
from vfsd.validation import width_and_height

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

RawInput: TypeAlias = bytes | bytearray | memoryview | IO[bytes]
"""Bytes, or a file of bytes that is open for reading."""


@runtime_checkable
class SupportsArray(Protocol):
    """An object that converts to a numpy array, such as tensors of other libraries and
    `VideoArray`.
    """

    def __array__(self) -> Pixels: ...


FrameInput: TypeAlias = Pixels | SupportsArray | Frame | Frames | Iterable["FrameInput"]
"""A picture, several along the first axis, frames that were read, or any sequence of these."""

_CHUNK = 1 << 20
_GRAY_HINT = "arrays without a channel axis need format='gray'"
_SIZE_HINT = "check the size and the pixel format"


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
