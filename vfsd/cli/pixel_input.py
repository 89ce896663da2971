"""The inputs of ``vfsd write``: raw pixels, YUV4MPEG2, numbered pictures or a video file."""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import IO, Protocol, cast

import cv2

from vfsd.core.frames import Pixels
from vfsd.errors import NotFoundError, UsageError
from vfsd.validation import no_such_file
from vfsd.write.frame_input import iter_raw_frames
from vfsd.write.y4m import MAGIC, read_y4m_frames, read_y4m_header

_BUFFER = 1 << 20
_KINDS = {
    ("uint8", 3): "rgb24",
    ("uint8", 1): "gray",
    ("uint16", 3): "rgb48",
    ("uint16", 1): "gray16",
}
"""Pixel formats of pictures, by type and number of channels."""
_NUMBERED = re.compile(r"%0?\d*d")


@dataclass(frozen=True, slots=True)
class PixelInput:
    """Frames with their format and rate."""

    pictures: Iterator[Pixels]
    size: tuple[int, int]
    format: str
    fps: Fraction
    color_range: str | None = None
    sample_aspect_ratio: Fraction | None = None
    count: int | None = None  #: number of frames; None: unknown


@contextmanager
def open_input(given: str) -> Iterator[IO[bytes]]:
    """Open the file `given`, or stdin for ``-``. Raises `NotFoundError`, `UsageError`."""
    if given == "-":
        if sys.stdin.isatty():
            raise UsageError(
                "pixels cannot come from a terminal", hint="use a pipe, or name a file"
            )
        yield io.BufferedReader(_Piped(cast(_Buffered, sys.stdin.buffer)), _BUFFER)
        return
    if not os.path.exists(given):
        raise no_such_file(given)
    if os.path.isdir(given):
        raise UsageError(
            f"{given} is a directory",
            hint=f"name a file in it, or its pictures: {os.path.join(given, '%06d.png')}",
        )
    with open(given, "rb", _BUFFER) as file:
        yield file


class _Buffered(Protocol):
    """A stream that returns the bytes that are available."""

    def read1(self, size: int = -1, /) -> bytes: ...


class _Piped(io.RawIOBase):
    """A pipe whose first bytes arrive together, so that they can be peeked at."""

    def __init__(self, stream: _Buffered) -> None:
        self._stream = stream
        self._head = b""
        while len(self._head) < len(MAGIC) and (part := stream.read1(len(MAGIC))):
            self._head += part

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        data = self._head
        if data:
            self._head = b""
        else:
            data = self._stream.read1(len(buffer))  # returns what is available, without waiting
        buffer[: len(data)] = data
        return len(data)


def is_y4m(file: IO[bytes]) -> bool:
    """Whether the stream is YUV4MPEG2. No bytes are consumed."""
    assert isinstance(file, io.BufferedReader)
    return file.peek(len(MAGIC))[: len(MAGIC)] == MAGIC


def is_numbered(given: str) -> bool:
    """Whether a name is a pattern for numbered pictures."""
    return given != "-" and _NUMBERED.search(os.path.basename(given)) is not None


def bare_pixels(
    file: IO[bytes], pixel_format: str, size: tuple[int, int], fps: Fraction
) -> PixelInput:
    return PixelInput(iter_raw_frames(file, pixel_format, size), size, pixel_format, fps)


def y4m_pictures(file: IO[bytes], fps: Fraction | None) -> PixelInput:
    """Frames of a YUV4MPEG2 stream; `fps` overrides its rate.

    Raises `UsageError` if there is no rate.
    """
    header = read_y4m_header(file)
    rate = fps or header.rate
    if rate is None:
        raise UsageError(
            "a YUV4MPEG2 stream with F0:0 has no rate", hint="add --fps 25, or the real rate"
        )
    return PixelInput(
        read_y4m_frames(file, header),
        (header.width, header.height),
        header.pixel_format,
        rate,
        header.color_range,
        header.sample_aspect_ratio,
    )


def numbered_pictures(given: str, fps: Fraction) -> PixelInput:
    """All pictures whose names match `given`, such as ``%06d.png``, in numerical order.

    Raises `NotFoundError`, `UsageError` for pictures of different sizes or types.
    """
    files = _files(Path(given))
    if not files:
        raise NotFoundError(f"picture not found: {given}")
    first = _picture(files[0])
    kind = _KINDS.get((first.dtype.name, first.shape[2]))
    if kind is None:
        raise UsageError(
            f"pictures must have 8 or 16 bits and 1 or 3 channels, got {first.shape[2]} channels "
            f"of {first.dtype} in {files[0]}",
            hint="remove the alpha channel",
        )
    size = first.shape[1], first.shape[0]

    def pictures() -> Iterator[Pixels]:
        for file in files:
            picture = _picture(file)
            if (picture.shape, picture.dtype) != (first.shape, first.dtype):
                raise UsageError(f"{file} differs from {files[0]} in size or type")
            yield picture

    return PixelInput(pictures(), size, kind, fps, count=len(files))


def _files(given: Path) -> list[Path]:
    before, after = _NUMBERED.split(given.name, maxsplit=1)
    pattern = re.compile(f"{re.escape(before)}(\\d+){re.escape(after)}")
    found = []
    if given.parent.is_dir():
        for entry in os.scandir(given.parent):
            match = pattern.fullmatch(entry.name)
            if match is not None:
                found.append((int(match[1]), Path(entry.path)))
    return [path for _, path in sorted(found)]


def _picture(file: Path) -> Pixels:
    # OpenCV applies the EXIF rotation only without IMREAD_UNCHANGED, which keeps transparency.
    # JPEG has no transparency.
    how = cv2.IMREAD_UNCHANGED
    if file.suffix.lower() in (".jpg", ".jpeg"):
        how = cv2.IMREAD_ANYCOLOR | cv2.IMREAD_ANYDEPTH
    picture = cv2.imread(str(file), how)
    if picture is None:
        raise UsageError(f"{file} cannot be read as a picture")
    if picture.ndim == 2:
        return picture[..., None]
    return cv2.cvtColor(picture, cv2.COLOR_BGR2RGB) if picture.shape[2] == 3 else picture
