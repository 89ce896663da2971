"""How good an encoded segment is, found out while it is made."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from vfsd.codecs.cellcheck import CellCheck
from vfsd.codecs.encode import EncoderSettings
from vfsd.errors import IntegrityError
from vfsd.frames import Pixels

_PEAK = 255
"""Of luma, in what `vfsd.codecs.tiles.VIEW_CODECS` take."""


@dataclass(slots=True)
class Origins:
    """Where pictures came from."""

    is_original: bool = True  #: all were decoded from the original, and stayed what they were


class Measure:
    """How like their pictures the packets are that were made of them: decoded as they come."""

    def __init__(self, settings: EncoderSettings, extradata: bytes) -> None:
        self._height = settings.height
        self._extradata = extradata
        self._check: CellCheck | None = CellCheck(settings.codec)

    def seen(self, pictures: Iterator[Pixels]) -> Iterator[Pixels]:
        """The same, on their way to the encoder."""
        for picture in pictures:
            if self._check is not None:
                self._check.source(picture[: self._height])  # luma comes first
            yield picture

    def packet(self, payload: bytes) -> None:
        if self._check is not None:
            try:
                self._check.packet(payload, self._extradata)
            except IntegrityError:  # no candidate, then
                self._check = None

    @property
    def psnr(self) -> float | None:
        """dB of luma, when all packets are there; None where they do not show the pictures."""
        try:
            return None if self._check is None else self._check.finish(_PEAK)
        except IntegrityError:
            return None
