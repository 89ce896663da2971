"""Encoded tiles that are remembered by the pictures that they were made from.

Hundreds of tests tile the same few sample videos.  Encoding a tile and measuring its quality takes
longer than the rest of such a test.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import tempfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from itertools import chain
from pathlib import Path

from vfsd.codecs.cells.cell_encoders import EncodedCell, TileCodec, encode_cells
from vfsd.codecs.frames.planes import plane_bytes
from vfsd.codecs.frames.quality import SourcePicture
from vfsd.core.model import MediaInfo
from vfsd.tiling import Rect

_LARGEST = 64 << 20
"""Bytes of pictures, which are in memory together; results of more are not remembered."""


class RememberingEncoder:
    """A replacement for `encode_cells` that returns the earlier result for the same arguments.

    The pictures are decoded each time, and compared by their samples and attributes.  `between` is
    called as often as for an encoding.  Only successes are remembered.
    """

    def __init__(self, folder: Path) -> None:
        """`folder` holds the results, for all processes of a test run."""
        self._folder = folder

    def __call__(
        self,
        codec: TileCodec,
        media: MediaInfo,
        tiles: Mapping[Rect, int],
        shots: Iterable[SourcePicture],
        between: Callable[[], None] = lambda: None,
        gop: int | None = None,
    ) -> list[EncodedCell]:
        digest = hashlib.sha256(repr((codec, media, list(tiles.items()), gop)).encode())
        left = iter(shots)
        held: list[SourcePicture] = []
        size = 0
        for shot in left:
            if not held:
                digest.update(shot.siting.encode())  # slow to find, and the same for all
            held.append(shot)
            size += _add(digest.update, shot)
            if size > _LARGEST:
                return encode_cells(codec, media, tiles, chain(held, left), between, gop)
        path = self._folder / f"tiles-{digest.hexdigest()}"
        with suppress(OSError):
            found: list[EncodedCell] = pickle.loads(path.read_bytes())
            for _ in range(len(held) * len(tiles)):
                between()
            return found
        made = encode_cells(codec, media, tiles, held, between, gop)
        with suppress(OSError):  # a test may run as a user who must not write there
            fd, name = tempfile.mkstemp(dir=self._folder)
            with open(fd, "wb") as file:
                pickle.dump(made, file)
            os.rename(name, path)
        return made


def _add(update: Callable[[bytes], None], shot: SourcePicture) -> int:
    """Add all that may change the encoded form of a picture; return the number of its bytes."""
    picture = shot.picture
    attributes = (
        picture.format.name,
        picture.width,
        picture.height,
        picture.color_range,
        picture.colorspace,
        picture.color_primaries,
        picture.color_trc,
        shot.is_interlaced,
    )
    update(repr(attributes).encode())
    size = 0
    for plane in (*plane_bytes(picture), *shot.colours):
        data = plane.tobytes()
        update(data)
        size += len(data)
    return size
