"""Whether a cell decodes, packet by packet, to what it was made from, and how like that it is."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import zip_longest
from typing import Generic, TypeVar

import av
from av.error import FFmpegError
from av.packet import Packet
from av.video.codeccontext import VideoCodecContext
from av.video.stream import VideoStream

from vfsd.codecs.decoding.context import decoder_for, numbered_packet
from vfsd.codecs.frames.quality import Shot, SitedComparer, Squares, Tally
from vfsd.codecs.pyav import decode
from vfsd.core.likeness import Likeness
from vfsd.errors import IntegrityError

_Source = TypeVar("_Source")
"""What a picture is compared with."""


class CellCheck(Generic[_Source]):
    """Decodes a cell as it comes from its encoder, and compares it with what it was made from.

    Raises `IntegrityError` unless the i-th packet shows the i-th picture.
    """

    def __init__(self, codec: str, compare: Callable[[_Source, av.VideoFrame], Squares]) -> None:
        self._codec = codec
        self._squares = compare
        self._decoder: VideoCodecContext | None = None
        self._pending: deque[_Source] = deque()
        self._tally = Tally()
        self._given = self._fed = self._shown = 0

    @property
    def pending(self) -> int:
        """Pictures, the last ones given, that have not been decoded again yet."""
        return len(self._pending)

    def source(self, picture: _Source) -> None:
        """What the next packet is made from; kept, and not to be changed, until that is decoded."""
        self._pending.append(picture)
        self._given += 1

    def packet(self, payload: bytes, configuration: bytes | None) -> None:
        """The next packet, and the stream's configuration, which the first one needs."""
        if self._decoder is None:
            self._decoder = decoder_for(self._codec, configuration)
        self._fed += 1
        self._compare(self._decoded(self._decoder, numbered_packet(self._fed - 1, payload)))

    def finish(self) -> Likeness:
        """What the cell has; see `Tally`."""
        if self._decoder is not None:
            self._compare(self._decoded(self._decoder, None))
        if not self._fed == self._shown == self._given:
            raise IntegrityError(
                f"{self._given} pictures became {self._fed} packets, of which {self._shown} decode"
            )
        return self._tally.likeness

    def _decoded(
        self, decoder: VideoCodecContext, packet: Packet[VideoStream] | None
    ) -> list[av.VideoFrame]:
        try:
            return decode(decoder, packet)
        except FFmpegError as error:
            raise IntegrityError(f"packet {self._fed - 1} of a tile does not decode") from error

    def _compare(self, pictures: Iterable[av.VideoFrame]) -> None:
        for picture in pictures:
            if picture.pts != self._shown or not self._pending:
                raise IntegrityError(f"picture {self._shown} of a tile came out of turn")
            self._tally.add(self._squares(self._pending.popleft(), picture))
            self._shown += 1


def checked_likeness(
    codec: str,
    configuration: bytes,
    packets: Sequence[bytes],
    sources: Iterable[Shot],
    comparer: SitedComparer,
) -> Likeness:
    """As `CellCheck`, of a cell that is there as a whole."""
    check = CellCheck(codec, comparer.compare)
    for payload, shot in zip_longest(packets, sources):
        if shot is not None:
            check.source(shot)
        if payload is not None:
            check.packet(payload, configuration)
    return check.finish()
