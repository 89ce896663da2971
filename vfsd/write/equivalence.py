"""Whether a file that was written anew says the same of its pictures as the one before."""

from __future__ import annotations

from dataclasses import replace

from vfsd.codecs.frames.pix_fmt_range import without_range
from vfsd.codecs.probing.probe import Examination
from vfsd.core.frame_table import FrameTable
from vfsd.core.model import MediaInfo, PhysicalVideo
from vfsd.errors import RefusedMediaError


def with_times(found: Examination, original: PhysicalVideo, table: FrameTable) -> Examination:
    """What is in the new file, with the time at which the last frame of the old one ends.

    A container may not tell how long that is shown; the catalog knows.  Raises `RefusedMediaError`
    where any frame would not be shown when it was.
    """
    shown = found.columns.pts[found.order]
    base, old_base = found.media.time_base, original.time_base
    old = table.pts()
    same = len(shown) == len(old) and all(
        int(a) * base == int(b) * old_base for a, b in zip(shown, old, strict=True)
    )
    end = original.end_pts * old_base / base
    if not same or end.denominator != 1:
        raise RefusedMediaError("frames would not be shown when they were")
    return replace(found, end_pts=int(end))


def require_same_picture(old: MediaInfo, new: MediaInfo) -> None:
    """Raises `RefusedMediaError` where a file says other things of its pictures than the other."""
    for name in _KEPT:
        before, after = (_meaning(media, name) for media in (old, new))
        if before != after:
            raise RefusedMediaError(
                f"{name.replace('_', ' ')} would become {after}; it is {before}",
                hint="`vfsd verify` looks again at how they are shown"
                if name in ("rotation", "mirrored", "crop")
                else "another codec may keep it",
            )


def are_alike(one: MediaInfo, other: MediaInfo) -> bool:
    """Whether both say the same of pictures, so that what was made of them goes on."""
    return all(_meaning(one, name) == _meaning(other, name) for name in _KEPT)


_KEPT = (
    "container",
    "width",
    "height",
    "pixel_format",
    "rotation",
    "mirrored",
    "crop",
    "sample_aspect_ratio",
    "color_range",
    "color_space",
    "color_primaries",
    "color_transfer",
    "bit_depth",
    "interlaced",
    "variable_rate",
)


def _meaning(media: MediaInfo, name: str) -> object:
    """A field; what is not told means the same as what is usual."""
    found = getattr(media, name)
    if name == "pixel_format":
        return without_range(found)  # the range is compared by itself
    if name == "color_range":
        return found or "limited"
    if name == "sample_aspect_ratio":
        return found or 1
    return found
