"""``vfsd age``: what becomes of videos as they grow old."""

from __future__ import annotations

from vfsd.cli.command import Group

command = Group(
    "age",
    __name__,
    ("log",),
    """Do what policies ask for as videos grow old, and tell what was done.""",
    alone="run",
)
