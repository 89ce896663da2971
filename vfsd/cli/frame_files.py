"""Files of frames: the outputs of ``vfsd read`` and the inputs of ``vfsd write``.

Both are arrays, pictures, raw pixels or videos.
"""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from types import MappingProxyType
from typing import IO, BinaryIO, Protocol, cast

import cv2
import numpy as np

from vfsd.core.frames import Frame
from vfsd.core.output_formats import CODECS, PIXEL_LAYOUTS, UNCOMPRESSED_LAYOUTS
from vfsd.core.pixel_array import Pixels
from vfsd.core.view_request import ViewForm, output_form
from vfsd.disk.tempfiles import atomic_file
from vfsd.errors import IntegrityError, NotFoundError, UsageError
from vfsd.validation import no_such_file
from vfsd.write.frame_input import Y4M_MAGIC, iter_raw_frames, read_y4m_frames, read_y4m_header

_NUMBERED = re.compile(r"%0?\d*d")


@dataclass(frozen=True, slots=True)
class OutputTarget:
    """The output file and its format."""

    out: str  #: the argument; ``-`` for stdout
    kind: str  #: "array", "still", "raw", "video" or "sound"
    form: ViewForm  #: container and codec of a video; else only the pixel format is used

    @property
    def is_stdout(self) -> bool:
        return self.out == "-"

    @property
    def format(self) -> str:
        """One word: the layout of the pixels, or the container."""
        return self.form.container if self.is_view else self.form.layout

    @property
    def is_view(self) -> bool:
        """Whether the file is a view of a mount."""
        return self.kind in ("video", "sound")


@dataclass(frozen=True, slots=True)
class WrittenFiles:
    files: list[str]
    size: int  #: bytes of all files


@dataclass(frozen=True, slots=True)
class _OutputFormat:
    kind: str
    formats: tuple[str, ...] = ()  #: possible layouts of pixels, the default first


_PICTURES = ("rgb24", "gray")
_PLANAR = (*UNCOMPRESSED_LAYOUTS, "nv12")
_ENCODED = tuple(dict.fromkeys(layout for layouts in CODECS.values() for layout in layouts))
_FORMATS: Mapping[str, _OutputFormat] = MappingProxyType(
    {
        ".npy": _OutputFormat("array", PIXEL_LAYOUTS),
        ".png": _OutputFormat("still", (*_PICTURES, "rgb48", "gray16")),
        ".jpg": _OutputFormat("still", _PICTURES),
        ".jpeg": _OutputFormat("still", _PICTURES),
        ".rgb": _OutputFormat("raw", ("rgb24", "rgb48")),
        ".yuv": _OutputFormat("raw", _PLANAR),
        ".raw": _OutputFormat("raw", PIXEL_LAYOUTS),
        ".mp4": _OutputFormat("video", _ENCODED),
        ".mkv": _OutputFormat("video", _ENCODED),
        ".h264": _OutputFormat("video", _ENCODED),
        ".hevc": _OutputFormat("video", _ENCODED),
        ".y4m": _OutputFormat("video", UNCOMPRESSED_LAYOUTS),
        ".wav": _OutputFormat("sound"),
    }
)


def output_target(out: str, pixel_format: str | None, codec: str | None) -> OutputTarget:
    """The output that OUT names. Raises `UsageError`."""
    if out == "-":
        # Pixels contain escape sequences that could reconfigure a terminal.
        if sys.stdout.isatty():
            raise UsageError(
                "raw pixels cannot go to a terminal", hint="name a file, or use a pipe"
            )
        return OutputTarget(out, "raw", ViewForm("raw", None, pixel_format or "rgb24"))
    suffix = os.path.splitext(out)[1].lower()
    ending = _FORMATS.get(suffix)
    if ending is None:
        raise UsageError(
            f"{out!r} must end with a known suffix",
            hint=f"use {', '.join(_FORMATS)}, or - for stdout",
        )
    if pixel_format is not None and pixel_format not in ending.formats:
        holds = f"it can hold {', '.join(ending.formats)}" if ending.formats else "omit --format"
        raise UsageError(f"{suffix} cannot hold {pixel_format}", hint=holds)
    if ending.kind in ("video", "sound"):
        return OutputTarget(
            out, ending.kind, output_form(suffix.removeprefix("."), codec, pixel_format)
        )
    if codec is not None:
        raise UsageError(f"{suffix} files have no codec", hint="leave out --codec")
    return OutputTarget(out, ending.kind, ViewForm("raw", None, pixel_format or ending.formats[0]))


def with_sound_choice(target: OutputTarget, asked: str) -> OutputTarget:
    """The target with the choice `asked`: "no", "aac" or "opus".

    Raises `UsageError` for files without sound.
    """
    from vfsd.core.view_request import with_sound

    if target.kind != "video" or target.form.container not in ("mp4", "matroska"):
        what = "is sound alone, as PCM" if target.kind == "sound" else "cannot have sound"
        raise UsageError(f"{target.out} {what}", hint="leave out --no-sound and --sound")
    return replace(target, form=with_sound(target.form, asked))


def with_sample_rate(target: OutputTarget, rate: int) -> OutputTarget:
    """The target with a sample rate in Hz. Raises `UsageError` for files that are not sound."""
    from vfsd.core.view_request import sample_rate

    if target.kind != "sound":
        raise UsageError("--rate is that of sound, in .wav", hint="--fps is that of frames")
    return replace(target, form=replace(target.form, sample_rate=sample_rate(rate)))


def write_frames(
    target: OutputTarget, frames: Iterator[Frame], count: int, *, replace: bool
) -> WrittenFiles:
    """Write `count` frames to a file that is not a video.

    Raises `ExistsError` unless `replace`, `UsageError` if several frames have one file name.
    """
    if target.kind == "still":
        return _write_stills(target.out, frames, count, replace)
    if target.is_stdout:
        _write_pixels(sys.stdout.buffer, frames)
        return WrittenFiles([], 0)
    with atomic_file(Path(target.out), replace) as file:
        if target.kind == "array":
            _write_array(file, frames, count)
        else:
            _write_pixels(file, frames)
        size = file.tell() if file.seekable() else 0
    return WrittenFiles([target.out], size)


def _write_pixels(file: BinaryIO, frames: Iterator[Frame]) -> None:
    for frame in frames:
        file.write(np.ascontiguousarray(frame.data).data)


def _write_array(file: BinaryIO, frames: Iterator[Frame], count: int) -> None:
    """Write a .npy file with one frame in memory at a time."""
    done = 0
    for frame in frames:
        if not done:
            header = {
                "descr": np.lib.format.dtype_to_descr(frame.data.dtype),
                "fortran_order": False,
                "shape": (count, *frame.data.shape),
            }
            np.lib.format.write_array_header_1_0(file, header)
        file.write(np.ascontiguousarray(frame.data).data)
        done += 1
    if done != count:
        raise IntegrityError(f"{count} frames were expected, got {done}")


def _write_stills(out: str, frames: Iterator[Frame], count: int, replace: bool) -> WrittenFiles:
    numbered = _NUMBERED.search(out) is not None
    if count > 1 and not numbered:
        raise UsageError(
            f"one picture must be one frame, got {count}",
            hint="choose one with --at or --frames N, or put %06d into the name",
        )
    files, size = [], 0
    for frame in frames:
        path = _numbered(out, frame.index)
        data = _encode_picture(frame, os.path.splitext(out)[1])
        with atomic_file(Path(path), replace) as file:
            file.write(data)
        files.append(path)
        size += len(data)
    return WrittenFiles(files, size)


def _numbered(out: str, index: int) -> str:
    """`out` with the number in it; other percent signs are kept."""
    return _NUMBERED.sub(lambda match: match.group() % index, out, count=1)


def _encode_picture(frame: Frame, suffix: str) -> bytes:
    pixels = frame.data
    if pixels.shape[-1] == 3:
        pixels = cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR)
    done, data = cv2.imencode(suffix, pixels)
    if not done:
        raise UsageError(
            f"{pixels.shape[1]}x{pixels.shape[0]} pixels cannot be written as {suffix}"
        )
    return data.tobytes()


_BUFFER = 1 << 20
# Pixel formats of pictures, by type and number of channels.
_KINDS = {
    ("uint8", 3): "rgb24",
    ("uint8", 1): "gray",
    ("uint16", 3): "rgb48",
    ("uint16", 1): "gray16",
}


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
        while len(self._head) < len(Y4M_MAGIC) and (part := stream.read1(len(Y4M_MAGIC))):
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
    return file.peek(len(Y4M_MAGIC))[: len(Y4M_MAGIC)] == Y4M_MAGIC


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
