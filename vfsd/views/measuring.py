"""How good an encoded segment is, found out while it is made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from vfsd.codecs.cells.cellcheck import CellCheck
from vfsd.codecs.encoding.encode import EncoderSettings
from vfsd.codecs.pictures.comparing import PlaneComparer
from vfsd.errors import IntegrityError
from vfsd.frames import Pixels
from vfsd.likeness import Likeness
from vfsd.model import MediaInfo


@dataclass(slots=True)
class Origins:
    """Where pictures came from."""

    is_original: bool = True  #: all were decoded from the original, and stayed what they were


class Measure:
    """How like their pictures the packets are that were made of them: decoded as they come."""

    def __init__(self, settings: EncoderSettings, extradata: bytes, media: MediaInfo) -> None:
        """`media` is that of the video."""
        self._size = settings.width, settings.height
        self._extradata = extradata
        compare = PlaneComparer(media).compare
        self._check: CellCheck[Sequence[Pixels]] | None = CellCheck(settings.codec, compare)

    def seen(self, pictures: Iterator[Pixels]) -> Iterator[Pixels]:
        """The same, which are in 4:2:0, on their way to the encoder."""
        for picture in pictures:
            if self._check is not None:
                self._check.source(_planes(picture, *self._size))
            yield picture

    def packet(self, payload: bytes) -> None:
        if self._check is not None:
            try:
                self._check.packet(payload, self._extradata)
            except IntegrityError:  # no candidate, then
                self._check = None

    @property
    def likeness(self) -> Likeness | None:
        """When all packets are there; None where they do not show the pictures.

        Colours are not measured: who reads a view would wait for the original to be converted once
        more.
        """
        try:
            found = None if self._check is None else self._check.finish()
        except IntegrityError:
            return None
        return None if found is None else replace(found, colour=0.0)


def _planes(samples: Pixels, width: int, height: int) -> list[Pixels]:
    """Of one run of samples; both sides are even."""
    luma, chroma = np.split(samples.reshape(-1), [width * height])
    return [luma.reshape(height, width), *chroma.reshape(2, height // 2, width // 2)]
