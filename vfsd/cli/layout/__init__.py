"""``vfsd layout``: which tiles a video has, which it had, and taking them away."""

from __future__ import annotations

from vfsd.cli.command import Group

command = Group(
    "layout",
    __name__,
    ("show", "diff", "history", "rollback", "drop"),
    """Show, compare and take away the tiles of a video.

    Tiles are made with `vfsd retile`.""",
)
