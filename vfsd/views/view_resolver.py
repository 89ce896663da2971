"""`ViewResolver` turns a path below `NAME@/` into a `RenderedView` and keeps recent ones in memory.

`ObjectTree` is the tree `objects/`: crops of detections and clips of tracks. Files below `why/`
tell how the view at a path is made, or why it cannot be opened.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Generic, TypeVar
from urllib.parse import quote, unquote

import numpy as np

from vfsd.catalog import NAME_BYTES
from vfsd.core import view_request
from vfsd.core.detections import NO_TRACK, DetectionColumns
from vfsd.core.layers import StoredLayer
from vfsd.core.model import LogicalVideo
from vfsd.core.moments import MomentRow
from vfsd.core.process_control import host_name
from vfsd.errors import NotFoundError, StoreError, VfsdError
from vfsd.read.read_context import ReadContext
from vfsd.storage.context import StoreContext
from vfsd.tiling import Rect
from vfsd.views.info_files import frame_mappings_json, info_json, readme_text
from vfsd.views.layer_files import LAYERS_DIR, LayerTree
from vfsd.views.layout_files import LAYOUT_DIR, LAYOUT_FILE, layout_view
from vfsd.views.render_cache import RenderHistory
from vfsd.views.rendered_view import RenderedView, StillView, TextView, plan_view, require_frame
from vfsd.views.view_explanation import (
    EXPLAIN_DIR,
    explain_file,
    explain_view_path,
    explanation_text,
)
from vfsd.views.view_input import (
    OtherStreams,
    ViewInput,
    split_stream,
    stream_dir,
    tiles_for_views,
    view_input_of,
)

WHY_DIR = "why"
_TEXT_SUFFIX = ".txt"
INFO_FILE = "info.json"
README_FILE = "README.txt"
MAPPINGS_FILE = "frame_mappings.json"
FRAMES_DIR = "frames"
_FACTS = (README_FILE, INFO_FILE, MAPPINGS_FILE, LAYOUT_FILE)
_MAX_KNOWN_VIDEOS = 64
_RECENT_VIEW_BYTES = 32 << 20
# Memory of the smallest view with its key and cache entry.
_ENTRY_BYTES = 2048
OBJECTS_DIR = "objects"
MOMENTS_DIR = "moments"
TRACKS_DIR = "tracks"
_CROP = re.compile(r"(\d{1,12})-(\d{1,6})\.(png|npy|jpg)")
_STILL = re.compile(r"(\d{1,12})\.(png|npy|jpg)")
_NUMBER = re.compile(r"\d{1,18}")
_MOMENT = re.compile(r"([0-9]{6,9})-([0-9]{6,9})\.mp4")
_CLIP = re.compile(r"(\d{1,18})\.mp4")


def is_below(path: str, directory: str) -> bool:
    """Whether a path below ``NAME@/`` is `directory` or in it."""
    return path == directory or path.startswith(directory + "/")


def _is_layout(path: str) -> bool:
    return path == LAYOUT_FILE or is_below(path, LAYOUT_DIR)


def path_in_question(path: str) -> str:
    """Return the path below ``NAME@/`` that a path in ``why/`` is about; "" for ``why`` itself."""
    return path.removeprefix(WHY_DIR).removeprefix("/")


def reason_text(path: str, explain: Callable[[str], str]) -> TextView:
    """Return the file at `path` in ``why/``; the suffix .txt may be left out.

    `explain` returns how its argument, a path below ``NAME@/``, is made, and raises what opening it
    would.  Errors of the whole store are raised here too.  Raises `NotFoundError` for names that
    begin with a dot, which shells and file managers look for in every directory.
    """
    asked = path_in_question(path)
    if asked != README_FILE:  # the one path below NAME@/ that ends so itself
        asked = asked.removesuffix(_TEXT_SUFFIX)
    if asked.startswith(".") or is_below(asked, WHY_DIR):
        raise NotFoundError(f"no such view: {path!r}")
    try:
        text = explain(asked)
    except StoreError:
        raise
    except VfsdError as error:
        lines = [f"{asked} cannot be opened: {error}"]
        if error.hint is not None:
            lines.append(f"hint: {error.hint}")
        lines.append("README.txt describes the names of views.")
        text = "\n".join(lines) + "\n"
    return TextView(text.encode("utf-8", "replace"))


Key = TypeVar("Key")


WrapView = Callable[[RenderedView, int, str], RenderedView]
"""Called with a resolved view, the inode of its video and its path; returns the view to use."""


@dataclass
class KnownVideo:
    """A video as the catalog last described it."""

    info: LogicalVideo
    source: ViewInput
    key: str  #: of the source
    objects: ObjectTree
    layers: LayerTree
    moments: MomentTree
    fresh: int  #: the catalog change that this state belongs to
    info_file: RenderedView | None = None
    prefix: str = ""  #: of all paths: the directory of another stream, with a slash


class RecentViews(Generic[Key]):
    """The most recently used views, in about 32 MiB; always keeps the newest.  Thread-safe."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._held: OrderedDict[Key, RenderedView] = OrderedDict()
        self._taken = 0

    def get(self, key: Key) -> RenderedView | None:
        with self._guard:
            found = self._held.get(key)
            if found is not None:
                self._held.move_to_end(key)
            return found

    def put(self, key: Key, rendered: RenderedView) -> None:
        with self._guard:
            replaced = self._held.pop(key, None)
            if replaced is not None:
                self._taken -= _memory_of(replaced)
            self._held[key] = rendered
            self._taken += _memory_of(rendered)
            # The newest stays even if it is larger than the limit: it is about to be read.
            while self._taken > _RECENT_VIEW_BYTES and len(self._held) > 1:
                self._taken -= _memory_of(self._held.popitem(last=False)[1])


def _memory_of(rendered: RenderedView) -> int:
    return _ENTRY_BYTES + rendered.memory


class ViewResolver:
    """Resolves views of all videos of a store and caches recent ones.  Thread-safe.

    All methods raise `NotFoundError` for an unknown name or inode, `UsageError` and
    `OutOfRangeError` for a view that cannot be made.
    """

    def __init__(self, parts: StoreContext, tools: ReadContext, finish: WrapView) -> None:
        """`finish` is called once for each view, by its first caller."""
        self._parts = parts
        self._tools = tools
        self._finish = finish
        self._watch = parts.catalog.watch()
        self._guard = threading.Lock()
        self._fresh = 0  # number of catalog changes seen
        self._videos: OrderedDict[int, tuple[int, KnownVideo]] = OrderedDict()
        self._recent = RecentViews[tuple[str, str]]()
        self._streams = OtherStreams(parts)

    def locate(self, ino: int, path: str) -> tuple[KnownVideo, str]:
        """Return the state of the stream that a path leads into, and the rest of the path.

        Another stream than the main one is examined at its first use, but not for its directory
        itself.
        """
        return self.locate_in(self.lookup(ino), path)

    def locate_in(self, known: KnownVideo, path: str) -> tuple[KnownVideo, str]:
        """Like `locate`, for a video that is `known`."""
        stream, rest = split_stream(path)
        if stream is None:
            return known, path
        self._streams.require(known.info, stream)
        if not rest or stream == known.info.original.media.stream_index:
            return known, rest
        # Detections and tiles are stored for the main stream only.
        is_of_main = any(is_below(rest, one) for one in (OBJECTS_DIR, LAYERS_DIR, MOMENTS_DIR))
        if is_of_main or _is_layout(rest):
            raise NotFoundError(
                f"no such view: {path!r}; labels, layers and tiles belong to the main stream"
            )
        info, source = self._streams.input_of(known.info, stream)
        prefix = f"{stream_dir(stream)}/"
        trees = self._objects(info, source), known.layers, known.moments
        return KnownVideo(info, source, source.key, *trees, known.fresh, prefix=prefix), rest

    def lookup(self, ino: int) -> KnownVideo:
        """Return the catalog's current state of a video, cached until the catalog changes."""
        with self._guard:
            if self._watch.changed():
                self._fresh += 1
            fresh = self._fresh
            found = self._videos.get(ino)
            if found is not None and found[0] == fresh:
                self._videos.move_to_end(ino)
                return found[1]
        with self._parts.catalog.reading() as seen:
            info = seen.videos.by_inode(ino)
        if found is not None and found[1].source.physical == info.original:
            tiles = tiles_for_views(self._parts, self._tools, info)
            # Old videos get their sound indexed later.  A known frame table keeps its loaded pages.
            sound, before = self._parts.catalog.sound(info.original), found[1].source.sound
            if sound is not None and before is not None and sound[0] == before[0]:
                sound = before
            damage = self._parts.catalog.damaged_bytes(info.original)
            source = replace(found[1].source, tiles=tiles, sound=sound, damage=damage)
        else:
            source = view_input_of(self._parts, self._tools, info)
        trees = self._objects(info, source), self._layers(info), self._moments(info, source)
        known = KnownVideo(info, source, source.key, *trees, fresh)
        with self._guard:
            self._videos[ino] = (fresh, known)
            while len(self._videos) > _MAX_KNOWN_VIDEOS:
                self._videos.popitem(last=False)
        return known

    def from_record(self, info: LogicalVideo) -> KnownVideo:
        """Return a video as `info` describes it, even if the catalog has changed."""
        source = view_input_of(self._parts, self._tools, info)
        trees = self._objects(info, source), self._layers(info), self._moments(info, source)
        return KnownVideo(info, source, source.key, *trees, self._fresh)

    def resolve(self, known: KnownVideo, path: str) -> RenderedView:
        """Return the view at a path of a video."""
        if path == INFO_FILE:
            return self._info(known)
        if _is_layout(path):
            return self._layout(known, path)
        # Detections and names may change; the pixels of a frame do not.
        is_changing = (
            path == README_FILE
            or "boxes=" in path
            or is_below(path, OBJECTS_DIR)
            or is_below(path, LAYERS_DIR)
            or is_below(path, MOMENTS_DIR)
            or is_below(path, EXPLAIN_DIR)
            or is_below(path, WHY_DIR)
        )
        state = f"/{known.fresh}" if is_changing else ""
        key = (known.key + state, path)
        found = self._recent.get(key)
        if found is None:
            found = self._finish(self._make(known, path), known.info.ino, known.prefix + path)
            self._recent.put(key, found)
        return found

    def close(self) -> None:
        self._watch.close()

    def _make(self, known: KnownVideo, path: str) -> RenderedView:
        if is_below(path, OBJECTS_DIR):
            return known.objects.view(path)
        if is_below(path, LAYERS_DIR):
            return known.layers.view(path)
        if is_below(path, MOMENTS_DIR):
            return known.moments.view(path)
        source = known.source
        if path == README_FILE:
            return TextView(readme_text(known.info, source.table))
        if path == MAPPINGS_FILE:
            return TextView(frame_mappings_json(source.table))
        if is_below(path, WHY_DIR):
            return reason_text(path, lambda asked: self._explained(known, asked))
        if is_below(path, EXPLAIN_DIR):
            return explain_file(known.info.name, source, self._tools, path, self._costs())
        folder, slash, name = path.rpartition("/")
        if not slash:
            return plan_view(source, view_request.parse_view_path(name), self._tools)
        if folder != FRAMES_DIR:
            raise NotFoundError(f"no such view: {path!r}")
        index, suffix = view_request.parse_still_name(name)
        require_frame(source, index)
        return StillView(source, index, source.physical.media.frame_rect, suffix)

    def _explained(self, known: KnownVideo, path: str) -> str:
        """Return how a view is made, or for any other file that it exists.

        Raises what opening it would.
        """
        self._planned(known, path)
        if path in _FACTS or path.rpartition("/")[0] not in ("", FRAMES_DIR):
            return f"{path} can be opened.\n"
        found = explain_view_path(known.source, self._tools, path, self._costs())
        return explanation_text(path, found)

    def _costs(self) -> RenderHistory:
        # Explanations are cached as files, so they must not include the state of the cache.
        return RenderHistory(self._parts.catalog.encode_costs(host_name()))

    def _planned(self, known: KnownVideo, path: str) -> RenderedView:
        """Like `resolve`, without encoding a picture only for its size."""
        if path == INFO_FILE:
            return self._info(known)
        if _is_layout(path):
            return self._layout(known, path)
        if is_below(path, OBJECTS_DIR):
            known.objects.is_folder(path)  # its error for an unknown label is clearer
        if is_below(path, MOMENTS_DIR):
            known.moments.is_folder(path)
        return self._make(known, path)

    def _layout(self, known: KnownVideo, path: str) -> RenderedView:
        return layout_view(self._parts.catalog, self._tools, known.info, known.source, path)

    def _objects(self, info: LogicalVideo, source: ViewInput) -> ObjectTree:
        catalog = self._parts.catalog
        return ObjectTree(
            source,
            self._tools,
            lambda: [summary.label for summary in catalog.detections.labels(info)],
            lambda label: catalog.detections.find(info, label).columns(),
        )

    def _layers(self, info: LogicalVideo) -> LayerTree:
        def layers() -> list[tuple[StoredLayer, LogicalVideo]]:
            with self._parts.catalog.reading() as seen:
                return [
                    (one, seen.videos.get(one.file_id)) for one in seen.layers.of_video(info.id)
                ]

        return LayerTree(info, layers, lambda file: view_input_of(self._parts, self._tools, file))

    def _moments(self, info: LogicalVideo, source: ViewInput) -> MomentTree:
        def ask() -> list[MomentRow]:
            with self._parts.catalog.reading() as seen:
                return [row for _, _, row in seen.moments.find([info.id])]

        return MomentTree(source, self._tools, ask)

    def _info(self, known: KnownVideo) -> RenderedView:
        if known.info_file is None:
            physicals = self._parts.catalog.physicals(known.info)
            sound = known.source.sound
            data = info_json(
                known.info, physicals, known.source.table, None if sound is None else sound[0]
            )
            known.info_file = TextView(data)
        return known.info_file


Entries = list[tuple[str, bool]]
"""Names, each with whether it is a directory."""


class ObjectTree:
    """The tree ``objects/`` of one video.  Reads labels and boxes once.  Thread-safe."""

    def __init__(
        self,
        source: ViewInput,
        tools: ReadContext,
        labels: Callable[[], list[str]],
        boxes: Callable[[str], DetectionColumns],
    ) -> None:
        """`labels` returns all labels; `boxes` returns the boxes of a label, ordered by frame."""
        self._source = source
        self._tools = tools
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
        found = rows.select(
            rows.tracks == (int(number) if _NUMBER.fullmatch(number) else NO_TRACK - 1)
        )
        if not len(found):
            raise NotFoundError(f"{label!r} has no track {number}")
        return found

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
        # One region for all frames: an object that moves stays in the picture.
        area = Rect.around(rects)
        first, last = int(rows.frames[0]), int(rows.frames[-1])
        return plan_view(
            self._source,
            view_request.parse_view_path(f"frames={first}-{last + 1},roi={area}.mp4"),
            self._tools,
        )

    def _rect(self, rows: DetectionColumns, row: int) -> Rect:
        media = self._source.physical.media
        rect = rows[row].rect(media.display_width, media.display_height)
        assert rect is not None  # boxes outside the frame were removed by `clipped`
        return rect


def view_of_moment(path: str) -> str | None:
    """Return the name of the view that a file below ``moments/`` is; None for other paths."""
    found = _MOMENT.fullmatch(path.rpartition("/")[2])
    if found is None or not is_below(path, MOMENTS_DIR):
        return None
    return f"frames={int(found[1])}-{int(found[2])}.mp4"


class MomentTree:
    """The tree ``moments/`` of one video.  Reads moments once.  Thread-safe."""

    def __init__(
        self, source: ViewInput, tools: ReadContext, ask: Callable[[], list[MomentRow]]
    ) -> None:
        """`ask` returns all moments, by frame."""
        self._source = source
        self._tools = tools
        self._ask = ask
        self._runs: dict[str, list[range]] | None = None

    def is_folder(self, path: str) -> bool:
        """Raises `NotFoundError` for an unknown label."""
        match path.split("/")[1:]:
            case []:
                return True
            case [label]:
                self._of(label)
                return True
        return False

    def entries(self, path: str, most: int) -> Entries:
        """List a directory; its files are omitted if there are more than `most`."""
        match path.split("/")[1:]:
            case []:
                return [(name, True) for name in self._by_label() if len(name) <= NAME_BYTES]
            case [label]:
                names = [f"{run.start:06}-{run.stop:06}.mp4" for run in self._of(label)]
                return [(name, False) for name in names] if len(names) <= most else []
        raise NotFoundError(f"no such folder: {path!r}")

    def view(self, path: str) -> RenderedView:
        """Return the view at `path`, of the frames ``A <= f < B`` in its name.

        Raises `NotFoundError` unless a moment has these frames.
        """
        match path.split("/")[1:]:
            case [label, name] if found := _MOMENT.fullmatch(name):
                shown = view_of_moment(path)
                if shown is not None and range(int(found[1]), int(found[2])) in self._of(label):
                    request = view_request.parse_view_path(shown)
                    return plan_view(self._source, request, self._tools)
        raise NotFoundError(f"no such view: {path!r}")

    def _of(self, written: str) -> list[range]:
        runs = self._by_label().get(written)
        if runs is None:
            raise NotFoundError(f"no moment has the label {unquote(written)!r}")
        return runs

    def _by_label(self) -> dict[str, list[range]]:
        """Return the runs of each label, by the name of its directory."""
        if self._runs is None:
            runs: dict[str, list[range]] = {}
            for row in self._ask():
                several = runs.setdefault(_label_dir(row.label), [])
                if row.frames not in several[-1:]:  # several sources may have the same
                    several.append(row.frames)
            self._runs = dict(sorted(runs.items()))
        return self._runs


def _label_dir(label: str) -> str:
    """Return the directory name of a label in ASCII; dots are escaped so that ``..`` is not the
    parent.
    """
    return label.replace(".", "%2E") if label in (".", "..") else quote(label, safe=" ")


def _crop_names(rows: DetectionColumns) -> Entries:
    frames = rows.frames
    firsts = np.searchsorted(frames, frames)
    # Rows are sorted by frame: the distance to the first row of a frame numbers its boxes.
    numbers = np.arange(len(frames)) - firsts
    return [
        (f"{frame:06}-{number}.png", False)
        for frame, number in zip(frames.tolist(), numbers.tolist(), strict=True)
    ]
