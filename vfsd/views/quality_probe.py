"""How good an encoded segment is, found out while it is made."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from vfsd.codecs.cells.verify import CellCheck
from vfsd.codecs.encoding.encoder import EncoderSettings
from vfsd.codecs.frames.quality import luma_squares
from vfsd.core.frames import Pixels
from vfsd.errors import IntegrityError


@dataclass(slots=True)
class Origins:
    """Where pictures came from."""

    is_original: bool = True  #: all were decoded from the original, and stayed what they were


class Measure:
    """How like their pictures the packets are that were made of them: decoded as they come.

    By luma alone, which tells whether anybody would use them.  All else is measured when they are
    to be a part of a rendition: who reads a view would wait for it.
    """

    def __init__(self, settings: EncoderSettings, extradata: bytes) -> None:
        self._size = settings.width, settings.height
        self._extradata = extradata
        self._check: CellCheck[Pixels] | None = CellCheck(settings.codec, luma_squares)

    def seen(self, pictures: Iterator[Pixels]) -> Iterator[Pixels]:
        """The same, which are in 4:2:0, on their way to the encoder."""
        width, height = self._size
        for picture in pictures:
            if self._check is not None:
                self._check.source(picture.reshape(-1)[: width * height].reshape(height, width))
            yield picture

    def packet(self, payload: bytes) -> None:
        if self._check is not None:
            try:
                self._check.packet(payload, self._extradata)
            except IntegrityError:  # no candidate, then
                self._check = None

    @property
    def luma(self) -> float | None:
        """dB, when all packets are there; None where they do not show the pictures."""
        try:
            return None if self._check is None else self._check.finish().luma
        except IntegrityError:
            return None
