"""Pictures that wait in a file to be looked at again, sample by sample as they are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO

import av
import numpy as np

from vfsd.codecs.frames.chroma_location import blank_like
from vfsd.codecs.frames.planes import plane_bytes


class PictureFile:
    """Pictures like `like`, whose samples mean what its own do.

    `file` is empty, and stays the caller's.
    """

    def __init__(self, file: IO[bytes], like: av.VideoFrame) -> None:
        self._file = file
        self._like = blank_like(like, like.width, like.height)
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
            picture = blank_like(self._like, self._like.width, self._like.height)
            for samples in plane_bytes(picture):
                data = self._file.read(samples.size)
                samples[...] = np.frombuffer(data, np.uint8).reshape(samples.shape)
            yield picture
