"""``vfsd budget``: how much tiles and renditions may take, and what goes for it."""

from __future__ import annotations

from vfsd.cli.command import Group

command = Group(
    "budget",
    __name__,
    ("show", "set", "what-if", "log"),
    """Show and set how many bytes tiles and renditions may take.

    Originals do not count, and are never removed.  Without room, a new tile or rendition replaces
    those that save least for their bytes.""",
)
