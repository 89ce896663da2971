"""Formats that have a file for each frame."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from vfsd.labels.formats.base import Rows, frame_of_name, natural_order


def frames_of_files(
    rows: Rows, suffix: str, others: Collection[str] = ()
) -> list[tuple[int, Path]]:
    """(frame, file) of each file in the folder, by frame; `others` are about something else.

    There are none in a folder without files, or with `others` only: so no boxes are exported.
    Raises `UsageError` for a name without a number, a frame that the video does not have, and for
    two files about the same frame.
    """
    folder, base = rows.path, rows.options.frame_base or 0
    if folder.is_file():
        files = [folder]
    else:
        files = [
            path
            for path in folder.iterdir()
            if path.suffix.lower() == suffix and path.name not in others and path.is_file()
        ]
    files.sort(key=lambda path: natural_order(path.name))
    if not files and any(path.name not in others for path in folder.iterdir()):
        raise rows.complaint("in it", f"no {suffix} file found")
    found: dict[int, Path] = {}
    for place, path in enumerate(files):
        number = place + base if rows.options.frame_from == "order" else frame_of_name(path.name)
        if number is None:
            raise rows.complaint(
                path.name,
                "the name has no number to tell the frame by",
                hint='frame_from="order" takes them in the order of their names',
                command_hint="`--frame-from order` takes them in the order of their names",
            )
        frame = number - base
        rows.require_frame(path.name, frame)
        if frame in found:
            raise rows.complaint(path.name, f"{found[frame].name} is about the same frame")
        found[frame] = path
    return sorted(found.items())
