"""Adapts PyAV: differences between its versions, and encoders and decoders by name.

No other module names a version of PyAV.
"""

from __future__ import annotations

import os
import pkgutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from fractions import Fraction
from importlib import import_module
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol, cast

import av
from av import VideoFrame
from av.codec.context import CodecContext, Flags
from av.container import InputContainer, OutputContainer
from av.error import FFmpegError, InvalidDataError, tag_to_code
from av.frame import Frame
from av.packet import Packet
from av.sidedata.sidedata import SideData
from av.stream import Stream
from av.video.codeccontext import VideoCodecContext
from av.video.stream import VideoStream

from vfsd.core.model import MediaInfo
from vfsd.errors import RefusedMediaError

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


def open_live(url: str, options: Mapping[str, str], timeout: float) -> InputContainer:
    """Open a stream of the network; `timeout` is in seconds, of opening and of each read.

    Raises `FFmpegError`, `OSError`.
    """
    opened: InputContainer = av.open(
        url, mode="r", options=dict(options), timeout=(timeout, timeout), **_TAG_OPTIONS
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


MAX_PIXELS = 1 << 27
"""Most pixels of a picture that decoders accept: 16384 x 8192."""

_CROP_FACTOR = 4
_MIN_MAX_PIXELS = 1 << 22


def decoder_context(
    media: MediaInfo, *, threads: int = 1, strict: bool = False
) -> VideoCodecContext:
    """Return a decoder for packets of the stream that `media` describes.

    It behaves as the ffmpeg command does by default: damage is concealed where possible, and
    pictures before the first key picture are dropped. With several `threads`, several pictures are
    decoded at a time, and concealment may depend on their number. If `strict`, damage raises
    `FFmpegError` instead. Raises `RefusedMediaError` if there is no decoder.
    """
    try:
        context = av.CodecContext.create(DECODERS.get(media.codec, media.codec), "r")
    except ValueError as error:
        raise RefusedMediaError(f"FFmpeg has no decoder for {media.codec}") from error
    if not isinstance(context, VideoCodecContext):
        raise RefusedMediaError(f"{media.codec} is not a video codec")
    context.extradata = media.extradata or None
    context.width, context.height = media.decoded_width, media.decoded_height
    if media.codec == "rawvideo":
        context.pix_fmt = media.pixel_format
    if len(media.codec_tag) == 4:
        context.codec_tag = media.codec_tag
    context.reorder_depth = media.reorder_delay
    configure_decoder(context, threads=threads, strict=strict, pixels=max_pixels(media))
    return context


def max_pixels(media: MediaInfo) -> int:
    """Return the most pixels that a picture of an examined file may have.

    That is its decoded size, with room for the crop of decoders. A file with a false header cannot
    use more memory.
    """
    return min(
        MAX_PIXELS, max(_CROP_FACTOR * media.decoded_width * media.decoded_height, _MIN_MAX_PIXELS)
    )


def configure_decoder(
    context: VideoCodecContext,
    *,
    threads: int = 1,
    strict: bool = False,
    pixels: int = MAX_PIXELS,
) -> None:
    """Set the options that all decoders here share, before the decoder is opened.

    Pictures with more than `pixels` are refused.
    """
    # Without the flag, FFmpeg moves the left edge of a crop outwards to an aligned column.
    context.flags |= Flags.unaligned
    context.thread_type = "FRAME" if threads > 1 else "NONE"
    context.thread_count = threads
    context.options = {"max_pixels": str(pixels)}
    if strict:
        context.options["err_detect"] = "explode"


def strict_decoder(codec: str, extradata: bytes | None) -> VideoCodecContext:
    """Return a single-threaded decoder for a stream from this package; any damage is an error."""
    context = new_decoder(codec)
    context.extradata = extradata or None
    configure_decoder(context, strict=True)
    return context


def numbered_packet(number: int, payload: bytes | memoryview) -> Packet[VideoStream]:
    """Return a packet for a decoder; the pts of its picture is `number`.

    It has no key flag: no decoder of our own streams depends on that.
    """
    packet = cast("Packet[VideoStream]", Packet(len(payload)))
    packet.update(bytes(payload))  # a copy, with the padding that decoders rely on
    packet.pts = packet.dts = number
    return packet


DECODERS = {"av1": "libdav1d"}
"""Decoders by codec, where FFmpeg's own is not used. Its AV1 decoder needs hardware."""

SVT_AV1_LOW_DELAY = "pred-struct=2:hierarchical-levels=2:lp=1"
"""Settings of SVT-AV1 with a short delay between pictures and packets.

SVT-AV1 4.1 sometimes deadlocks without lookahead: with its own low delay (pred-struct=1), and with
small mini-GOPs unless each stage has one thread (lp=1). See
`vfsd.codecs.encoding.encoder`.
"""


def new_encoder(name: str) -> VideoCodecContext:
    """Return an unopened video encoder by FFmpeg's name, such as ``libx264``.

    FFmpeg must be known to have it.
    """
    context = CodecContext.create(name, "w")
    assert isinstance(context, VideoCodecContext)
    return context


def new_decoder(codec: str) -> VideoCodecContext:
    """Return an unopened decoder for a video codec, without any configuration.

    FFmpeg must be known to have it.
    """
    context = CodecContext.create(DECODERS.get(codec, codec), "r")
    assert isinstance(context, VideoCodecContext)
    return context


def open_encoder(context: CodecContext) -> None:
    """Open an encoder by ``context.open()`` and keep the priorities of threads.

    As root, SVT-AV1 gives the thread that opens it and its own threads the highest priority of
    SCHED_FIFO, and does not reset it. It would block all other work on the machine, and children of
    the thread would inherit the priority.
    """
    os.environ.setdefault("SVT_LOG", "1")  # SVT-AV1 logs errors only
    with _preserved_priorities():
        context.open()


@contextmanager
def _preserved_priorities() -> Iterator[None]:
    """Restore the priority of this thread, and of threads started in the block, at its end.

    Threads that other threads start in the meantime are changed only if their priority was raised
    in the same way.
    """
    before, threads = _scheduling_of(0), _thread_ids()
    try:
        yield
    finally:
        raised = _scheduling_of(0)
        if raised != before:
            policy, priority = before
            for thread in {threading.get_native_id()} | (_thread_ids() - threads):
                with suppress(ProcessLookupError):  # the thread has ended
                    if _scheduling_of(thread) == raised:
                        os.sched_setscheduler(thread, policy, os.sched_param(priority))


def _scheduling_of(thread: int) -> tuple[int, int]:
    """Return policy and priority of a thread (0: this one); see sched(7)."""
    return os.sched_getscheduler(thread), os.sched_getparam(thread).sched_priority


def _thread_ids() -> set[int]:
    """Return the IDs of all threads of this process."""
    return {int(name) for name in os.listdir("/proc/self/task")}
