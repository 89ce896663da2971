"""Takes SEI messages from the packets of an original, for packets that show the same pictures."""

from __future__ import annotations

import re
from collections.abc import Iterator

from av.packet import Packet
from av.video.stream import VideoStream

from vfsd.codecs.bitstreams import nal
from vfsd.codecs.bitstreams.messages import (
    CODECS,
    LASTING,
    Message,
    carried_messages,
    carried_of_unit,
    carried_types,
)
from vfsd.codecs.decoding.demuxer import Source, demuxed_to_the_end, open_stream
from vfsd.codecs.inventory.inband import configured_units
from vfsd.core.model import MediaInfo

Units = tuple[tuple[Message, ...], ...]


_SIDE_DATA = {
    4: ("A53_CC", "AFD", "DYNAMIC_HDR_PLUS", "DYNAMIC_HDR_VIVID"),
    136: ("S12M_TIMECODE",),
    137: ("MASTERING_DISPLAY_METADATA",),
    144: ("CONTENT_LIGHT_LEVEL",),
    148: ("AMBIENT_VIEWING_ENVIRONMENT",),
}
"""What decoders make of messages, by their type."""
_PATH = re.compile(r"pictures/packets/SEI (\d+)\b(?!.*\) b5003b)")


def is_carried(path: str, before: str, after: str) -> bool:
    """Whether the item at a path of an inventory is a message that a new file carries."""
    found = _PATH.match(path)
    return found is not None and int(found[1]) in carried_types(before, after)


def carried_side_data(before: str, after: str) -> frozenset[str]:
    """Kinds of side data of pictures that come from messages which a new file carries."""
    kinds = carried_types(before, after)
    return frozenset(name for kind, names in _SIDE_DATA.items() if kind in kinds for name in names)


class MessageReader:
    """The messages of a file's packets by time; a context manager.

    Times have to be asked for roughly in the order of the packets: those that were passed are
    forgotten.  Raises `IntegrityError`, `OSError`.
    """

    def __init__(self, source: Source, media: MediaInfo, codec: str) -> None:
        self._codecs = (media.codec, codec)
        self._found: dict[int, Units] = {}
        self._passed: int | None = None  # dts of the packet that was read last
        self._opened, stream = open_stream(source, media.container, media.stream_index)
        extradata = bytes(stream.codec_context.extradata or b"")
        self._prefix = nal.prefix_size(media.codec, extradata)
        self._packets: Iterator[Packet[VideoStream]] = iter(())
        self._lasting: dict[int, bytes] = {}  # payloads that hold by now, by type
        if all(one in CODECS for one in self._codecs):
            self._packets = demuxed_to_the_end(self._opened, stream)
            kinds = carried_types(*self._codecs)
            told = configured_units(media.codec, extradata)
            found = (carried_of_unit(media.codec, kinds, unit) for unit in told)
            for unit in found:
                self._lasting.update(one for one in unit if one[0] in LASTING)

    def at(self, pts: int, *, is_key: bool) -> Units:
        """The messages for a packet of that time, in ticks.

        A key packet repeats those that hold since an earlier one.
        """
        units = self._of_packet(pts)
        told = [[one for one in unit if one[0] not in LASTING] for unit in units]
        lasting = {kind: data for unit in units for kind, data in unit if kind in LASTING}
        self._lasting |= lasting
        if is_key:
            lasting = self._lasting
        return tuple(tuple(one) for one in (list(lasting.items()), *told) if one)

    def _of_packet(self, pts: int) -> Units:
        while pts not in self._found and (self._passed is None or self._passed <= pts):
            packet = next(self._packets, None)
            if packet is None:
                break
            if packet.pts is not None:
                told = carried_messages(*self._codecs, bytes(packet), self._prefix)
                self._found[packet.pts] = told
            if packet.dts is not None:
                self._passed = packet.dts
        return self._found.pop(pts, ())

    def close(self) -> None:
        self._opened.close()
