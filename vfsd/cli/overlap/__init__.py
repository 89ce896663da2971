"""``vfsd overlap``: videos of cameras that see the same place."""

from __future__ import annotations

from vfsd.cli.command import Group

command = Group(
    "overlap",
    __name__,
    ("find", "show", "join", "ls", "split"),
    """Find videos that show the same place, and keep what both see once.

    Originals stay as they are.""",
)
