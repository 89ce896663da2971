"""Writes frames to files: arrays, pictures, raw pixels and videos.

A regular file appears under its name only when it is complete.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO

import cv2
import numpy as np

from vfsd.core.frames import Frame
from vfsd.core.output_formats import CODECS, PIXEL_LAYOUTS, UNCOMPRESSED_LAYOUTS
from vfsd.core.view_path import ViewForm, output_form
from vfsd.disk.atomic_write import atomic_file
from vfsd.errors import IntegrityError, UsageError

_NUMBERED = re.compile(r"%0?\d*d")


@dataclass(frozen=True, slots=True)
class OutputTarget:
    """The output file and its format."""

    out: str  #: the argument; ``-`` for stdout
    kind: str  #: "array", "still", "raw" or "video"
    form: ViewForm  #: container and codec of a video; else only the pixel format is used

    @property
    def is_stdout(self) -> bool:
        return self.out == "-"

    @property
    def format(self) -> str:
        """One word: the layout of the pixels, or the container."""
        return self.form.container if self.kind == "video" else self.form.layout


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
    }
)


def output_target(out: str, pixel_format: str | None, codec: str | None) -> OutputTarget:
    """The output that OUT names. Raises `UsageError`."""
    if out == "-":
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
        raise UsageError(
            f"{suffix} cannot hold {pixel_format}", hint=f"it can hold {', '.join(ending.formats)}"
        )
    if ending.kind == "video":
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
    from vfsd.core.view_path import with_sound

    if target.kind != "video" or target.form.container not in ("mp4", "matroska"):
        raise UsageError(f"{target.out} cannot have sound", hint="leave out --no-sound and --sound")
    return replace(target, form=with_sound(target.form, asked))


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
