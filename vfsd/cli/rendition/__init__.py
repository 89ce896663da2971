"""``vfsd rendition``: in which other sizes a video is stored, and taking them away."""

from __future__ import annotations

from vfsd.cli.command import Group

command = Group(
    "rendition",
    __name__,
    ("ls", "drop"),
    """List and take away the renditions of a video: its frames in other sizes.

    They are made with `vfsd render`.""",
)
