"""``vfsd budget``: how much tiles and renditions may take, and what goes for it."""

from __future__ import annotations

from vfsd.cli.command import Group

command = Group(
    "budget",
    __name__,
    ("show", "set", "what-if", "log"),
    """Tell and decide how much tiles and renditions may take.

    Originals are not counted, and always stay.  What is to be stored where there is no room takes
    the place of what saves least for its bytes.""",
)
