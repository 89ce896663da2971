"""``vfsd labels``: labelled boxes of videos, in and out of files, asked for, and taken away."""

from __future__ import annotations

from vfsd.cli.command import Group

command = Group(
    "labels",
    __name__,
    ("import", "export", "query", "ls", "rm"),
    "Labelled boxes of a video: import, export, query, list and remove them.",
)
