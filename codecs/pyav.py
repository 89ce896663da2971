"""Differences between versions of PyAV, each behind one function. No other module names a version.

`load_extensions` imports every extension module at once, for a process that cannot open files
later.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from importlib import import_module
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol, cast

import av
from av import VideoFrame
from av.container import InputContainer, OutputContainer
from av.error import FFmpegError, InvalidDataError, tag_to_code
from av.frame import Frame
from av.packet import Packet
from av.sidedata.sidedata import SideData
from av.stream import Stream
from av.video.codeccontext import VideoCodecContext
from av.video.stream import VideoStream

_MAJOR = int(av.__version__.partition(".")[0])
_ESCAPED = "surrogateescape"
# PyAV 19 always keeps the bytes of tags; earlier versions need the option.
_TAG_OPTIONS: dict[str, Any] = {} if _MAJOR >= 19 else {"metadata_errors": _ESCAPED}


class Ratio(Protocol):
    """A rational number of PyAV."""

    @property
    def numerator(self) -> int: ...
    @property
    def denominator(self) -> int: ...


class Timed(Protocol):
    """A packet or a frame."""

    @property
    def time_base(self) -> Any: ...


class Tagged(Protocol):
    """A container or a stream."""

    metadata: dict[str, str]


def exact_fraction(ratio: Ratio | None) -> Fraction | None:
    """Return the number as a `Fraction`; None if FFmpeg has not set it (0, or x/0)."""
    if ratio is None or not ratio.numerator or not ratio.denominator:
        return None
    return Fraction(ratio.numerator, ratio.denominator)


def tick_seconds(timed: Timed) -> Fraction:
    """Return the seconds per tick of a demuxed packet or a decoded frame.

    Raises `ValueError` if it has no time base.
    """
    tick = exact_fraction(timed.time_base)
    if tick is None:
        raise ValueError("packet or frame has no time base")
    return tick


def open_input(
    file: object,
    *,
    format: str,
    options: Mapping[str, str],
    buffer_size: int,
    timeout: tuple[float | None, float | None],
    io_open: Callable[..., Any],
) -> InputContainer:
    """Open a file by `av.open` for reading. Raises `FFmpegError`.

    Tags that are not UTF-8 keep their bytes, so that muxing writes the same bytes again.
    `readable_tags` converts them to text.
    """
    opened: InputContainer = av.open(
        file,
        mode="r",
        format=format,
        options=dict(options),
        buffer_size=buffer_size,
        timeout=timeout,
        io_open=io_open,
        **_TAG_OPTIONS,
    )
    return opened


def open_output(
    file: object, *, format: str, options: Mapping[str, str], buffer_size: int = 32768
) -> OutputContainer:
    """Open a file by `av.open` for writing. Raises `FFmpegError`.

    Accepts tags as `open_input` returns them.
    """
    opened: OutputContainer = av.open(
        file, "w", format=format, options=dict(options), buffer_size=buffer_size, **_TAG_OPTIONS
    )
    return opened


def readable_tags(tagged: Tagged) -> dict[str, str]:
    """Return the tags of a container or a stream, with U+FFFD for bytes that are not UTF-8."""
    return {_readable(key): _readable(value) for key, value in tagged.metadata.items()}


def decode(
    context: VideoCodecContext, packet: Packet[VideoStream] | Packet[Stream] | None
) -> list[VideoFrame]:
    """Return ``context.decode(packet)``; None flushes the decoder.

    Raises `FFmpegError`. If the decoder failed to open, later packets raise it too: the context has
    lost its codec then, and PyAV 19 raises `ValueError`.
    """
    try:
        return context.decode(packet)
    except FFmpegError:
        raise
    except ValueError as error:
        raise InvalidDataError(tag_to_code(b"INDA"), "the decoder cannot be opened") from error


def frame_side_data(frame: Frame) -> list[SideData]:
    """Return all side data of a decoded frame, in FFmpeg's order.

    Raises `ValueError` if PyAV has no name for one of the kinds.
    """
    entries = cast("Any", frame.side_data)
    found: Sequence[SideData] = entries[:] if _MAJOR >= 19 else list(entries)
    unnamed = [each.type.value for each in found if each.type.name.startswith("UNKNOWN_")]
    if unnamed:  # PyAV 19 invents names where earlier versions raise
        raise ValueError(f"{unnamed[0]} is not a valid Type")
    return list(found)


def _readable(text: str) -> str:
    return text.encode("utf-8", _ESCAPED).decode("utf-8", "replace")


def library_versions() -> str:
    """Return the versions of PyAV and of the libavcodec that it uses."""
    codec = ".".join(str(part) for part in av.library_versions["libavcodec"])
    return f"PyAV {av.__version__}, libavcodec {codec}"


def load_extensions() -> None:
    """Import every extension module of PyAV, for a process that cannot open files later.

    Raises `ImportError` if one does not load.
    """
    for name in _extension_names():
        import_module(name)


def extension_files() -> frozenset[Path]:
    """Return the installed files of all extension modules of PyAV."""
    suffixes = tuple(EXTENSION_SUFFIXES)
    return frozenset(
        path
        for folder in av.__path__
        for path in Path(folder).rglob("*")
        if path.name.endswith(suffixes)
    )


def _extension_names() -> Iterator[str]:
    for found in pkgutil.walk_packages(av.__path__, "av."):
        if not found.ispkg:
            spec = find_spec(found.name)
            if spec is not None and isinstance(spec.loader, ExtensionFileLoader):
                yield found.name
