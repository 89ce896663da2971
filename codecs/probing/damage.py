"""Which frames show damage: what the decoder reports of packets, and what depends on those.

A packet is damaged where the demuxer marks it as corrupt, where it fails to decode, where the
decoder reports an error of it, or where its picture comes out as corrupt or concealed.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence

import av
import numpy as np
import numpy.typing as npt
from av.packet import Packet
from av.video.frame import PictureType
from av.video.stream import VideoStream

from vfsd.codecs.bitstreams.packet_flags import INTRA_CODECS
from vfsd.codecs.decoding.demuxer import LogMessage
from vfsd.core.frame_table_pages import Ints, PacketColumns, PacketFlag

_PLAIN = ("SEI",)
"""Errors that name these are about what accompanies pictures, not about pictures."""
_UNREFERENCED_B = frozenset(("mpeg1video", "mpeg2video", "mpeg4", "vc1", "wmv3", "rv30", "rv40"))
"""Codecs in which no picture refers to a B picture."""


class DamageNotes:
    """Collects damaged packets while a stream is decoded packet by packet, with one thread."""

    def __init__(self, decoder: str, messages: list[LogMessage]) -> None:
        """`messages` is what FFmpeg reports of errors on the way; they are taken out of it."""
        self.packets: set[int] = set()
        self.unreferenced: set[int] = set()  #: those that no other packet refers to
        self._decoder = decoder
        self._messages = messages

    def fed(self, packet: int, source: Packet[VideoStream]) -> None:
        """`packet`, from the demuxer, has just been given to the decoder."""
        if source.is_corrupt or any(map(self._is_of_picture, self._messages)):
            self.packets.add(packet)
        self._messages.clear()

    def failed(self, packet: int) -> None:
        """The decoder has refused `packet`."""
        self.packets.add(packet)
        self._messages.clear()

    def came(self, pictures: Sequence[av.VideoFrame]) -> None:
        """Pictures have come out, whose pts are the numbers of their packets."""
        for one in pictures:
            if one.pts is None:
                continue
            if one.is_corrupt:
                self.packets.add(one.pts)
            if self._decoder in _UNREFERENCED_B and one.pict_type == PictureType.B:
                self.unreferenced.add(one.pts)

    def _is_of_picture(self, message: LogMessage) -> bool:
        _, name, text = message
        return name == self._decoder and not any(word in text for word in _PLAIN)


def damaged_frames(codec: str, columns: PacketColumns, order: Ints, notes: DamageNotes) -> Ints:
    """The numbers of the frames that show damage, ascending.

    `columns` has the flags that the packets' own bytes promise; a proof by decoding may take some
    back because of the very damage.  `order` is the packet of each frame.

    Damage of a packet that others refer to reaches every frame up to the next key packet, and the
    frames that are shown before that one but decoded after it: the decoder may predict any of them
    from it.
    """
    damaged = np.zeros(len(columns), np.bool_)
    damaged[[packet for packet in notes.packets if packet < len(columns)]] = True
    if codec not in INTRA_CODECS and damaged.any():
        _spread(damaged, columns, notes.unreferenced)
    return np.flatnonzero(damaged[order])


def _spread(
    damaged: npt.NDArray[np.bool_], columns: PacketColumns, unreferenced: Collection[int]
) -> None:
    keys = np.flatnonzero(columns.flags & PacketFlag.KEY).tolist()
    needed = columns.flags & PacketFlag.DISPOSABLE == 0
    needed[[packet for packet in unreferenced if packet < len(needed)]] = False
    reached = False  # the group before, to its end
    for start, end in itertools.pairwise([*({0} - set(keys)), *keys, len(columns)]):
        group = slice(start, end)
        leading = columns.pts[group] < columns.pts[start]
        if reached:
            damaged[group] |= leading
        spreading = damaged[group] & needed[group]
        after = np.arange(end - start)
        for part, sources in ((leading, spreading), (~leading, spreading & ~leading)):
            if sources.any():
                damaged[group] |= part & (after >= int(sources.argmax()))
        reached = bool((spreading & ~leading).any())
