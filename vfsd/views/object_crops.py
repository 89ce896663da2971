"""The tree `objects/` below `NAME@/`: crops of detections and clips of tracks, by label."""

from __future__ import annotations

import re
from collections.abc import Callable
from urllib.parse import quote, unquote

import numpy as np

from vfsd.catalog import NAME_BYTES
from vfsd.core import view_path
from vfsd.core.detections import NO_TRACK, DetectionColumns
from vfsd.errors import NotFoundError
from vfsd.read.pack_pool import PackPool
from vfsd.tiling import Rect
from vfsd.views.rendered_view import RenderedView, StillView, plan_view
from vfsd.views.view_input import ViewInput

OBJECTS_DIR = "objects"
TRACKS_DIR = "tracks"

_CROP = re.compile(r"(\d{1,12})-(\d{1,6})\.(png|npy|jpg)")
_STILL = re.compile(r"(\d{1,12})\.(png|npy|jpg)")
_NUMBER = re.compile(r"\d{1,18}")
_CLIP = re.compile(r"(\d{1,18})\.mp4")

Entries = list[tuple[str, bool]]
"""Names, each with whether it is a directory."""


class ObjectTree:
    """The tree ``objects/`` of one video.  Reads labels and boxes once.  Thread-safe."""

    def __init__(
        self,
        source: ViewInput,
        packs: PackPool,
        labels: Callable[[], list[str]],
        boxes: Callable[[str], DetectionColumns],
    ) -> None:
        """`labels` returns all labels; `boxes` returns the boxes of a label, ordered by frame."""
        self._source = source
        self._packs = packs
        self._ask_labels = labels
        self._ask_boxes = boxes
        self._labels: list[str] | None = None
        self._boxes: dict[str, DetectionColumns] = {}

    def is_folder(self, path: str) -> bool:
        """Raises `NotFoundError` for an unknown label or track."""
        match path.split("/")[1:]:
            case []:
                return True
            case [label]:
                self._known(label)
                return True
            case [label, "tracks"]:
                return len(self._tracks(self._of(label))) > 0
            case [label, "tracks", name] if name.isdigit():
                self._track(label, name)
                return True
        return False

    def entries(self, path: str, most: int) -> Entries:
        """List a directory; its files are omitted if there are more than `most`."""
        match path.split("/")[1:]:
            case []:
                written = map(_label_dir, self._all_labels())
                return [(name, True) for name in written if len(name) <= NAME_BYTES]
            case [label]:
                rows = self._of(label)
                folders = [(TRACKS_DIR, True)] if len(self._tracks(rows)) else []
                return folders + (_crop_names(rows) if len(rows) <= most else [])
            case [label, "tracks"]:
                numbers = self._tracks(self._of(label))
                folders = [(str(number), True) for number in numbers]
                return folders + [(f"{number}.mp4", False) for number in numbers]
            case [label, "tracks", name] if name.isdigit():
                rows = self._track(label, name)
                return [(f"{frame:06}.png", False) for frame in np.unique(rows.frames).tolist()]
        raise NotFoundError(f"no such folder: {path!r}")

    def view(self, path: str) -> RenderedView:
        """Return the view at `path`.  Raises `NotFoundError`."""
        match path.split("/")[1:]:
            case [label, name] if found := _CROP.fullmatch(name):
                frame, number, suffix = int(found[1]), int(found[2]), found[3]
                return self._crop(label, self._of(label), frame, number, suffix, path)
            case [label, "tracks", name] if found := _CLIP.fullmatch(name):
                return self._clip(self._track(label, found[1]))
            case [label, "tracks", number, name] if found := _STILL.fullmatch(name):
                rows = self._track(label, number)
                return self._crop(label, rows, int(found[1]), 0, found[2], path)
        raise NotFoundError(f"no such view: {path!r}")

    def _all_labels(self) -> list[str]:
        if self._labels is None:
            self._labels = self._ask_labels()
        return self._labels

    def _known(self, written: str) -> str:
        label = unquote(written)
        # Names that are not ASCII may be invalid UTF-8, and label directories never have them.
        if not written.isascii() or _label_dir(label) != written or label not in self._all_labels():
            raise NotFoundError(f"no detection has the label {label!r}")
        return label

    def _of(self, written: str) -> DetectionColumns:
        label = self._known(written)
        if label not in self._boxes:
            media = self._source.physical.media
            rows = self._ask_boxes(label).clipped(media.display_width, media.display_height)
            self._boxes[label] = rows.sorted_by_frame()
        return self._boxes[label]

    def _tracks(self, rows: DetectionColumns) -> list[int]:
        found: list[int] = np.unique(rows.tracks[rows.tracks != NO_TRACK]).tolist()
        return found

    def _track(self, label: str, number: str) -> DetectionColumns:
        rows = self._of(label)
        mine = rows.select(
            rows.tracks == (int(number) if _NUMBER.fullmatch(number) else NO_TRACK - 1)
        )
        if not len(mine):
            raise NotFoundError(f"{label!r} has no track {number}")
        return mine

    def _crop(
        self,
        label: str,
        rows: DetectionColumns,
        frame: int,
        number: int,
        suffix: str,
        path: str,
    ) -> RenderedView:
        low, high = np.searchsorted(rows.frames, [frame, frame + 1])
        if low + number >= high:
            raise NotFoundError(f"no such view: {path!r}")
        rect = self._rect(rows, int(low + number))
        labels = ((self._known(label),),)
        return StillView(self._source, frame, rect, suffix, labels=labels)

    def _clip(self, rows: DetectionColumns) -> RenderedView:
        rects = [self._rect(rows, row) for row in range(len(rows))]
        area = Rect.around(rects)
        first, last = int(rows.frames[0]), int(rows.frames[-1])
        return plan_view(
            self._source,
            view_path.parse_view_path(f"frames={first}-{last + 1},roi={area}.mp4"),
            self._packs,
        )

    def _rect(self, rows: DetectionColumns, row: int) -> Rect:
        media = self._source.physical.media
        rect = rows[row].rect(media.display_width, media.display_height)
        assert rect is not None  # boxes outside the frame were removed by `clipped`
        return rect


def _label_dir(label: str) -> str:
    """Return the directory name of a label in ASCII; dots are escaped so that ``..`` is not the
    parent.
    """
    return label.replace(".", "%2E") if label in (".", "..") else quote(label, safe=" ")


def _crop_names(rows: DetectionColumns) -> Entries:
    frames = rows.frames
    firsts = np.searchsorted(frames, frames)
    numbers = np.arange(len(frames)) - firsts
    return [
        (f"{frame:06}-{number}.png", False)
        for frame, number in zip(frames.tolist(), numbers.tolist(), strict=True)
    ]
