"""``vfsd policy``: what may become of originals."""

from __future__ import annotations

from vfsd.cli.command import Group

command = Group(
    "policy",
    __name__,
    ("show", "set"),
    """Tell and decide what may become of originals.

    Where nobody has said anything they stay as they were written.""",
)
