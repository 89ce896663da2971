"""What lies below ``NAME@/`` of each video of a store, as renditions: nothing is made for that.

Processes that know the same of a video make renditions with the same keys for the same paths.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from vfsd.core import view_path
from vfsd.core.hostinfo import host_name
from vfsd.core.model import LogicalVideo
from vfsd.errors import NotFoundError
from vfsd.read.context import Tools
from vfsd.storage.context import Parts
from vfsd.views.explain_files import explained, is_of_explain
from vfsd.views.info_json import info_json
from vfsd.views.layout_files import is_of_layouts, layout_rendition
from vfsd.views.object_crops import OBJECTS, ObjectFolder
from vfsd.views.readme_file import readme_text
from vfsd.views.reasons import is_of_why, reason_text
from vfsd.views.rendered_view import (
    Rendition,
    StillRendition,
    TextRendition,
    rendition_of,
    require_frame,
)
from vfsd.views.renderfacts import RenderFacts
from vfsd.views.source import Footage, footage_of, tiles_of
from vfsd.views.streams import OtherStreams, split_stream, stream_folder

INFO = "info.json"
README = "README.txt"
FRAMES = "frames"

_VIDEOS = 64
_RENDITION_BYTES = 32 << 20
_ENTRY_BYTES = 2048
"""What the least of renditions takes up: it, its key and its place among the others."""

Key = TypeVar("Key")

Finish = Callable[[Rendition, int, str], Rendition]
"""What becomes of a rendition that somebody has asked for, at which path of which inode."""


@dataclass
class Known:
    """A video as the catalog described it last."""

    info: LogicalVideo
    footage: Footage
    key: str  #: of the footage
    objects: ObjectFolder
    fresh: int  #: counts changes of the catalog, of which it was the last
    info_file: Rendition | None = None
    prefix: str = ""  #: of all paths: the folder of another stream, with a slash


class RecentRenditions(Generic[Key]):
    """Those used last, in about 32 MiB; the newest is kept in any case.  Thread-safe."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._held: OrderedDict[Key, Rendition] = OrderedDict()
        self._taken = 0

    def get(self, key: Key) -> Rendition | None:
        with self._guard:
            found = self._held.get(key)
            if found is not None:
                self._held.move_to_end(key)
            return found

    def put(self, key: Key, rendition: Rendition) -> None:
        with self._guard:
            replaced = self._held.pop(key, None)
            if replaced is not None:
                self._taken -= _taken(replaced)
            self._held[key] = rendition
            self._taken += _taken(rendition)
            while self._taken > _RENDITION_BYTES and len(self._held) > 1:
                self._taken -= _taken(self._held.popitem(last=False)[1])


def _taken(rendition: Rendition) -> int:
    return _ENTRY_BYTES + rendition.memory


class Renditions:
    """Those of all videos of a store, the ones asked for lately in memory.  Thread-safe.

    Everything raises `NotFoundError` for a name that says nothing (or an inode that is no video),
    `UsageError` and `OutOfRangeError` for one that asks for what cannot be had.
    """

    def __init__(self, parts: Parts, tools: Tools, finish: Finish) -> None:
        """Each rendition goes through `finish` once, by whoever asks for it first."""
        self._parts = parts
        self._tools = tools
        self._finish = finish
        self._watch = parts.catalog.watch()
        self._guard = threading.Lock()
        self._fresh = 0  # counts changes of the catalog
        self._videos: OrderedDict[int, tuple[int, Known]] = OrderedDict()
        self._recent = RecentRenditions[tuple[str, str]]()
        self._streams = OtherStreams(parts)

    def located(self, ino: int, path: str) -> tuple[Known, str]:
        """What is known of the stream that a path leads into, and the rest of the path.

        Another stream than the video's is examined when it is first asked for, but its folder.
        """
        return self.within(self.known(ino), path)

    def within(self, known: Known, path: str) -> tuple[Known, str]:
        """As `located`, in the folder of the video that is `known`."""
        stream, rest = split_stream(path)
        if stream is None:
            return known, path
        self._streams.require(known.info, stream)
        if not rest or stream == known.info.original.media.stream_index:
            return known, rest
        if is_of_objects(rest) or is_of_layouts(rest):
            raise NotFoundError(
                f"{path!r} is not there: labels and tiles belong to the video's own stream"
            )
        info, footage = self._streams.footage(known.info, stream)
        prefix = f"{stream_folder(stream)}/"
        objects = self._objects(info, footage)
        return Known(info, footage, footage.key, objects, known.fresh, prefix=prefix), rest

    def known(self, ino: int) -> Known:
        """What the catalog says of a video now; asked anew only when it has changed."""
        with self._guard:
            if self._watch.changed():
                self._fresh += 1
            fresh = self._fresh
            found = self._videos.get(ino)
            if found is not None and found[0] == fresh:
                self._videos.move_to_end(ino)
                return found[1]
        with self._parts.catalog.reading() as seen:
            info = seen.videos.of_inode(ino)
        if found is not None and found[1].footage.physical == info.original:
            tiles = tiles_of(self._parts, self._tools, info)
            # That of old videos is looked for late.  What is there already has its pages.
            sound, before = self._parts.catalog.sound(info.original), found[1].footage.sound
            if sound is not None and before is not None and sound[0] == before[0]:
                sound = before
            damage = self._parts.catalog.damaged_bytes(info.original)
            footage = replace(found[1].footage, tiles=tiles, sound=sound, damage=damage)
        else:
            footage = footage_of(self._parts, self._tools, info)
        known = Known(info, footage, footage.key, self._objects(info, footage), fresh)
        with self._guard:
            self._videos[ino] = (fresh, known)
            while len(self._videos) > _VIDEOS:
                self._videos.popitem(last=False)
        return known

    def described(self, info: LogicalVideo) -> Known:
        """A video as `info` has it, whatever the catalog says by now."""
        footage = footage_of(self._parts, self._tools, info)
        return Known(info, footage, footage.key, self._objects(info, footage), self._fresh)

    def at(self, known: Known, path: str) -> Rendition:
        """What lies at a path of the folder of a video."""
        if path == INFO:
            return self._info(known)
        if is_of_layouts(path):
            return self._layout(known, path)
        # Detections may be corrected, and videos renamed; the pixels of a frame stay as they are.
        is_changing = (
            path == README or is_of_objects(path) or is_of_explain(path) or is_of_why(path)
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

    def _make(self, known: Known, path: str) -> Rendition:
        if is_of_objects(path):
            return known.objects.rendition(path)
        footage = known.footage
        if path == README:
            return TextRendition(readme_text(known.info, footage.table))
        if is_of_why(path):
            return reason_text(path, lambda asked: self._planned(known, asked))
        if is_of_explain(path):
            # The file is remembered, so it does not tell what is in the cache just now.
            facts = RenderFacts(self._parts.catalog.encode_costs(host_name()))
            return explained(known.info.name, footage, self._tools.packs, path, facts)
        folder, slash, name = path.rpartition("/")
        if not slash:
            return rendition_of(footage, view_path.parse(name), self._tools.packs)
        if folder != FRAMES:
            raise NotFoundError(f"no such view: {path!r}")
        index, suffix = view_path.parse_still(name)
        require_frame(footage, index)
        return StillRendition(footage, index, footage.physical.media.frame_rect, suffix)

    def _planned(self, known: Known, path: str) -> Rendition:
        """As `at`, for a path whose rendition is not needed: no picture is made for its size."""
        if path == INFO:
            return self._info(known)
        if is_of_layouts(path):
            return self._layout(known, path)
        if is_of_objects(path):
            known.objects.is_folder(path)  # raises for an unknown label, with a better sentence
        return self._make(known, path)

    def _layout(self, known: Known, path: str) -> Rendition:
        return layout_rendition(self._parts.catalog, self._tools, known.info, known.footage, path)

    def _objects(self, info: LogicalVideo, footage: Footage) -> ObjectFolder:
        catalog = self._parts.catalog
        return ObjectFolder(
            footage,
            self._tools.packs,
            lambda: [summary.label for summary in catalog.labels(info)],
            lambda label: catalog.detections(info, label).columns(),
        )

    def _info(self, known: Known) -> Rendition:
        if known.info_file is None:
            physicals = self._parts.catalog.physicals(known.info)
            sound = known.footage.sound
            data = info_json(
                known.info, physicals, known.footage.table, None if sound is None else sound[0]
            )
            known.info_file = TextRendition(data)
        return known.info_file


def is_of_objects(path: str) -> bool:
    return path == OBJECTS or path.startswith(OBJECTS + "/")
