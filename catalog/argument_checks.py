"""What callers of the catalog give instead of a name: what it has said of a video."""

from __future__ import annotations

from reprlib import repr as shown

from vfsd.core.model import LogicalVideo, PhysicalVideo
from vfsd.errors import UsageError


def require_info(video: object) -> None:
    """Raises `UsageError` for a name, and for a `Video`, which has what is asked for."""
    if not isinstance(video, LogicalVideo):
        raise UsageError(
            f"{shown(video)} is not what the catalog says of a video",
            hint="give `video.info`, or what `Catalog.video` or `Catalog.find` gave",
        )


def require_encoding(physical: object) -> None:
    """Raises `UsageError` for what is not one of the encodings of a video."""
    if not isinstance(physical, PhysicalVideo):
        raise UsageError(
            f"{shown(physical)} is not what the catalog says of an encoding",
            hint="give `video.original`, or one of `Catalog.physicals`",
        )
