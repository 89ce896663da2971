"""``vfsd tune``: tiles by what was read, what was decided, and taking it back."""

from __future__ import annotations

from vfsd.cli.command import Group

command = Group(
    "tune",
    __name__,
    ("history", "undo"),
    """Make tiles for what is read, and take them back.""",
    alone="propose",
)
