"""Pictures that wait in a file to be looked at again, sample by sample as they are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO

import av
import numpy as np

from vfsd.codecs.planes import plane_bytes


class PictureFile:
    """Pictures of one size and format.  `file` is empty, and stays the caller's."""

    def __init__(self, file: IO[bytes], width: int, height: int, pixel_format: str) -> None:
        self._file = file
        self._form = width, height, pixel_format
        self._count = 0

    def put(self, picture: av.VideoFrame) -> None:
        """One more.  Raises `OSError`."""
        for samples in plane_bytes(picture):
            self._file.write(np.ascontiguousarray(samples).data)
        self._count += 1

    def pictures(self) -> Iterator[av.VideoFrame]:
        """All of them, from the first; each is the caller's."""
        self._file.seek(0)
        for _ in range(self._count):
            picture = av.VideoFrame(*self._form)
            for samples in plane_bytes(picture):
                data = self._file.read(samples.size)
                samples[...] = np.frombuffer(data, np.uint8).reshape(samples.shape)
            yield picture
