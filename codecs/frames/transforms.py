"""Copies, scales and compares whole frames.

Comparisons give the PSNR that stored pictures are kept by.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO, Any

import av
import numpy as np
import numpy.typing as npt
from av.error import FFmpegError
from av.video.reformatter import Interpolation, VideoReformatter

from vfsd.codecs.frames.color import InterlaceSetter, blank_like, is_same_form, scaler_matrix
from vfsd.codecs.frames.planes import copy_colors, plane_bytes, plane_pixels, plane_subsampling
from vfsd.codecs.frames.to_array import is_reduced, scale_error
from vfsd.core.model import MediaInfo
from vfsd.errors import UsageError
from vfsd.tiling import Rect

# (rows, columns) of a plane of a tile, and the samples that they are copied to.
_CopyTarget = tuple[tuple[slice, slice], npt.NDArray[Any]]


def cut_out(source: av.VideoFrame, rect: Rect, target: av.VideoFrame) -> None:
    """Copy `rect` of `source` to `target`, which has the same format and is at least as large.

    The rest of `target` repeats the last column and row. `rect` must begin at a chroma sample.
    """
    for number, (samples, copies) in enumerate(
        zip(plane_pixels(source), plane_pixels(target), strict=True)
    ):
        across, down = plane_subsampling(source, number)
        x, y = rect.x1 // across, rect.y1 // down
        part = samples[y : -(-rect.y2 // down), x : -(-rect.x2 // across)]
        rows, columns = part.shape[:2]
        copies[:rows, :columns] = part
        if columns < copies.shape[1]:
            copies[:rows, columns:] = part[:, -1:]
        if rows < copies.shape[0]:
            copies[rows:] = copies[rows - 1]


class TileComposer:
    """Composes a picture of `area` from tiles.

    `area` and tiles are parts of the same larger picture. Each must begin at a chroma sample.
    """

    def __init__(self, area: Rect) -> None:
        self.area = area
        self._picture: av.VideoFrame | None = None
        self._places: dict[Rect, list[_CopyTarget]] = {}  # by the tile's rectangle

    def put(self, tile: av.VideoFrame, rect: Rect) -> av.VideoFrame:
        """Copy the part of a tile at `rect` that lies in the area. Return the picture so far.

        The picture belongs to this object, and the next call changes it.
        """
        picture = self._picture
        if picture is None or not is_same_form(picture, tile):
            even = (self.area.width + self.area.width % 2, self.area.height + self.area.height % 2)
            picture = self._picture = blank_like(tile, *even)
            self._places.clear()
        copy_colors(tile, picture)
        if rect not in self._places:
            self._places[rect] = self._places_of(rect, picture)
        places = self._places[rect]
        if places:
            for samples, (part, copies) in zip(plane_pixels(tile), places, strict=True):
                copies[...] = samples[part]
        return picture

    def _places_of(self, rect: Rect, picture: av.VideoFrame) -> list[_CopyTarget]:
        """Return, for each plane, the needed part of a tile at `rect` and where it goes in
        `picture`.
        """
        common = rect.intersection(self.area)
        if common is None:
            return []
        places = []
        for number, copies in enumerate(plane_pixels(picture)):
            across, down = plane_subsampling(picture, number)
            mine = _plane_part(common, self.area, across, down)
            places.append((_plane_part(common, rect, across, down), copies[mine]))
        return places


def _plane_part(common: Rect, origin: Rect, across: int, down: int) -> tuple[slice, slice]:
    """Return rows and columns of `common` in a plane that begins at `origin`."""
    inner = common.moved(-origin.x1, -origin.y1)
    return (
        slice(inner.y1 // down, -(-inner.y2 // down)),
        slice(inner.x1 // across, -(-inner.x2 // across)),
    )


class SpillFile:
    """A temporary file of pictures that have the form and colors of `like`.

    `file` must be empty. The caller owns it.
    """

    def __init__(self, file: IO[bytes], like: av.VideoFrame) -> None:
        self._file = file
        self._like = blank_like(like, like.width, like.height)
        self._count = 0

    def put(self, picture: av.VideoFrame) -> None:
        """Append a picture. Raises `OSError`."""
        for samples in plane_bytes(picture):
            self._file.write(np.ascontiguousarray(samples).data)
        self._count += 1

    def pictures(self) -> Iterator[av.VideoFrame]:
        """Yield all pictures from the first. Each belongs to the caller."""
        self._file.seek(0)
        for _ in range(self._count):
            picture = blank_like(self._like, self._like.width, self._like.height)
            for samples in plane_bytes(picture):
                data = self._file.read(samples.size)
                samples[...] = np.frombuffer(data, np.uint8).reshape(samples.shape)
            yield picture


def require_smaller(width: int, height: int, media: MediaInfo) -> None:
    """Raise `UsageError` if pictures of `media` cannot be stored in that size."""
    if width < 2 or height < 2 or width % 2 or height % 2:
        raise UsageError(f"size must be even and at least 2x2, got {width}x{height}")
    if width > media.width or height > media.height:
        raise UsageError(f"size must be at most {media.width}x{media.height}, got {width}x{height}")


# Scaling follows the catalog's field order, since the codecs of tiles do not store the flag. Gray
# that was scaled as progressive had 31.7 dB against a rendition measured at 40 dB.
class PictureScaler:
    """Scales pictures as `PixelConverter` scales luma to that size.

    Scaling is bicubic, or averages areas if both sides become half or less. Not thread-safe. Raises
    `UsageError` for a size that FFmpeg does not scale to.
    """

    def __init__(self, width: int, height: int, *, interlaced: bool) -> None:
        """With `interlaced`, each field is scaled on its own."""
        self._width, self._height = width, height
        self._scanning = InterlaceSetter(interlaced=interlaced)
        self._reformatter = VideoReformatter()

    def scale(self, picture: av.VideoFrame) -> av.VideoFrame:
        """Return a new picture with the colors and the pts of `picture`."""
        size = (self._width, self._height)
        is_of_areas = is_reduced((picture.width, picture.height), size)
        try:
            scaled = self._reformatter.reformat(
                self._scanning.convert(picture),
                width=self._width,
                height=self._height,
                format=picture.format.name,
                interpolation=Interpolation.AREA if is_of_areas else Interpolation.BICUBIC,
                threads=1,
            )
        except FFmpegError as error:
            raise scale_error((picture.width, picture.height), size) from error
        copy_colors(picture, scaled)
        scaled.pts = picture.pts
        return scaled


class PictureReformatter:
    """Converts pictures to another pixel format without scaling. Not thread-safe."""

    def __init__(self, pixel_format: str) -> None:
        self._pixel_format = pixel_format
        self._reformatter = VideoReformatter()

    def convert(self, picture: av.VideoFrame) -> av.VideoFrame:
        """Return `picture` itself if it has the format already."""
        matrix = scaler_matrix(picture)
        made = self._reformatter.reformat(
            picture,
            format=self._pixel_format,
            interpolation=Interpolation.BICUBIC | Interpolation.ACCURATE_RND,
            src_colorspace=matrix,
            dst_colorspace=matrix,
            threads=1,
        )
        if matrix is not None and made is not picture:
            made.colorspace = picture.colorspace
        return made


class FirstSizeScaler:
    """Scales pictures to one size and format. Not thread-safe."""

    def __init__(self, width: int, height: int, pixel_format: str) -> None:
        self._form = (width, height, pixel_format)
        self._reformatter = VideoReformatter()

    def convert(self, picture: av.VideoFrame) -> av.VideoFrame:
        """Return `picture` itself if it has that size, in any format; else a scaled copy."""
        width, height, pixel_format = self._form
        if (picture.width, picture.height) == (width, height):
            return picture
        scaled = self._reformatter.reformat(
            picture,
            width=width,
            height=height,
            format=pixel_format,
            interpolation=Interpolation.BICUBIC,
            threads=1,  # the sandbox of an examination forbids threads; results are the same
        )
        copy_colors(picture, scaled)
        scaled.pts = picture.pts
        return scaled
