"""``vfsd overlap``: videos of cameras that see the same place."""

from __future__ import annotations

from vfsd.cli.command import Group

command = Group(
    "overlap",
    __name__,
    ("find", "show"),
    """Find videos that show the same place, and what keeping it once would save.

    Nothing is stored or changed.""",
)
