"""Takes the inventory of a file: everything in its headers and packets except samples.

Data that only decoding needs is left out too.
"""

from __future__ import annotations

from collections.abc import Callable

from av.container import InputContainer
from av.error import FFmpegError
from av.packet import Packet
from av.stream import Stream

from vfsd.codecs.decoding.demuxer import open_container
from vfsd.codecs.inventory.collector import Inventory, ItemCollector, PictureAdder
from vfsd.codecs.inventory.inband import PacketLister, packet_lister
from vfsd.codecs.inventory.matroska_elements import add_elements
from vfsd.codecs.inventory.mp4_boxes import PICTURES_PATH, FileWindow, add_boxes, without_rates
from vfsd.disk.checksummed_file import MediaSource
from vfsd.errors import RefusedMediaError

_BOXES = ("mp4", "mov")
_ELEMENTS = ("matroska", "webm")
_PROGRESS_PACKETS = 64
_MOST_CHAPTERS = 10_000


def take_inventory(
    source: MediaSource,
    container: str,
    stream_index: int,
    on_progress: Callable[[int, int], None] | None = None,
) -> Inventory:
    """Return everything that a file holds besides samples, in all its packets and headers.

    Raises `RefusedMediaError` if the file cannot be read to its end, `OSError`.

    Args:
        source: the file
        container: a name of `vfsd.codecs.containers.detect_container`
        stream_index: index of the video stream
        on_progress: called with (bytes done, bytes in total); may raise to cancel
    """
    into = ItemCollector()
    window = FileWindow(source)
    if container in _BOXES:
        add_boxes(window, stream_index, into)
    elif container in _ELEMENTS:
        add_elements(window, stream_index, into)
    try:
        with open_container(source, container) as opened:
            if container not in _BOXES + _ELEMENTS:
                _add_tags(opened, stream_index, into)
            _add_streams(opened, stream_index, into)
            _add_chapters(opened, into)
            _add_packets(opened, stream_index, into, source.size, on_progress)
    except FFmpegError as error:
        source.check()
        raise RefusedMediaError(f"cannot be read to its end: {error}") from error
    source.check()
    return into.items()


def stream_path(stream: Stream, stream_index: int) -> str:
    """Return the name of a stream in paths."""
    return PICTURES_PATH if stream.index == stream_index else f"stream {stream.index}"


def _add_tags(opened: InputContainer, stream_index: int, into: ItemCollector) -> None:
    """Add tags as FFmpeg reads them, for containers whose structure is not listed."""
    for key, value in opened.metadata.items():
        into.add_text(f"tags/file/{key}", value)
    for stream in opened.streams:
        for key, value in stream.metadata.items():
            into.add_text(f"tags/{stream_path(stream, stream_index)}/{key}", value)


def _add_streams(opened: InputContainer, stream_index: int, into: ItemCollector) -> None:
    for stream in opened.streams:
        name = stream_path(stream, stream_index)
        context = stream.codec_context
        disposition = stream.disposition
        if disposition:
            into.add_text(f"{name}/disposition", str(disposition))
        if stream.index == stream_index:
            continue
        codec = "unknown" if context is None else context.codec.canonical_name
        into.add_text(f"{name}/codec", f"{stream.type} {codec}")
        extradata = None if context is None else context.extradata
        if extradata:
            into.add(f"{name}/codec configuration", without_rates(bytes(extradata)))
        layout = getattr(context, "layout", None)
        if layout is not None:
            into.add_text(f"{name}/channel layout", layout.name)
    into.add_text("streams", str(len(opened.streams)))


def _add_chapters(opened: InputContainer, into: ItemCollector) -> None:
    for number, chapter in enumerate(opened.chapters()[:_MOST_CHAPTERS], 1):
        base = chapter["time_base"]
        if base is None:
            continue
        ticks = (chapter["start"], chapter["end"])
        start, end = (float(tick * base.numerator / base.denominator) for tick in ticks)
        title = chapter["metadata"].get("title", "")
        into.add_text(f"chapters/{number}", f"{start:.3f} to {end:.3f} s: {title}")
        for key, value in chapter["metadata"].items():
            if key != "title":
                into.add_text(f"chapters/{number}/{key}", value)


def _add_packets(
    opened: InputContainer,
    stream_index: int,
    into: ItemCollector,
    size: int,
    on_progress: Callable[[int, int], None] | None,
) -> None:
    listers: dict[int, PacketLister | None] = {}
    pictures = PictureAdder(into)
    for stream in opened.streams:
        context = stream.codec_context
        if stream.index == stream_index and context is not None:
            codec, extradata = context.codec.canonical_name, bytes(context.extradata or b"")
            listers[stream.index] = packet_lister(
                codec, extradata, pictures, f"{PICTURES_PATH}/packets"
            )
    farthest = last = 0
    for number, packet in enumerate(opened.demux()):
        if not packet.size and packet.pts is None and packet.dts is None:
            continue
        stream = packet.stream
        name = stream_path(stream, stream_index)
        _add_side_data(packet, f"{name}/packet side data", into)
        found = listers.get(stream.index)
        if found is not None:
            last = last if packet.pts is None else packet.pts
            pictures.begin(last)
            found(bytes(packet))
        farthest = max(farthest, packet.pos or 0)
        if on_progress is not None and number % _PROGRESS_PACKETS == 0:
            on_progress(farthest, size)
    pictures.finish()


def _add_side_data(packet: Packet[Stream], path: str, into: ItemCollector) -> None:
    try:
        for data in packet.iter_sidedata():
            into.add(f"{path}/{data.data_type}", bytes(data))
    except (ValueError, KeyError):
        into.add(f"{path}/of an unknown kind", b"")
