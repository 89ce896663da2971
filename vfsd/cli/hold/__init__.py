"""``vfsd hold``: videos that nobody may change or remove."""

from __future__ import annotations

from vfsd.cli.command import Group

command = Group(
    "hold",
    __name__,
    ("add", "remove", "ls"),
    """Forbid to change or remove videos.

    A video with a hold is neither replaced, nor removed, nor written, by whatever way, until the
    hold is lifted.  It may get another name.""",
)
