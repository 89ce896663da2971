"""Views: what lies below ``NAME@/`` of a video, as files that are made when they are read.

    info.json            what is known of the video
    frames/000123.png    a frame as it is displayed; .npy and .jpg too
    objects/car/ ...     what was seen, see `vfsd.views.objects`
    layout.png           tiles, what was seen, and what was read, see `vfsd.views.layouts`
    explain/ ...         what a view takes to make, see `vfsd.views.explained`
    t=10-20.mp4 ...      see `vfsd.grammar`; these are in no listing

Sizes are exact before a byte is made, and asking for one decodes nothing, and reads a packet at
most; but a .jpg is made when its size is first asked for.  ``frames`` lists the .png files, unless
they are more than `MOST_LISTED`; the others can be opened by name all the same.  .mp4 and .mkv
views carry the sound of their span, see `vfsd.views.sounding`; no view has subtitles.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from vfsd import grammar
from vfsd.errors import NotFoundError, ReadOnlyError
from vfsd.model import LogicalVideo
from vfsd.parts import Parts
from vfsd.tools import Tools
from vfsd.views.explained import EXPLAIN, explained, is_explain_folder, is_of_explain
from vfsd.views.footage import Footage, footage_of, tiles_of
from vfsd.views.infofile import info_json
from vfsd.views.layouts import (
    LAYOUT,
    LAYOUT_PICTURE,
    is_of_layouts,
    layout_names,
    layout_rendition,
)
from vfsd.views.objects import OBJECTS, ObjectFolder
from vfsd.views.offers import Offer, requested
from vfsd.views.rendering import Renderer, RenditionFile
from vfsd.views.renderqueue import Patience
from vfsd.views.rendition import (
    Rendition,
    StillRendition,
    TextRendition,
    rendition_of,
    require_frame,
)

INFO = "info.json"
FRAMES = "frames"
MOST_LISTED = 100_000

_ENTRIES = [
    (EXPLAIN, True),
    (FRAMES, True),
    (INFO, False),
    (LAYOUT, True),
    (LAYOUT_PICTURE, False),
    (OBJECTS, True),
]
_VIDEOS = 64
_RENDITION_BYTES = 32 << 20
"""Memory for renditions that were worked out lately; the newest is kept in any case."""


@dataclass(frozen=True, slots=True)
class ViewStat:
    is_dir: bool
    size: int  #: bytes; 0 for a folder
    mtime_ns: int  #: that of the video
    is_writable: bool = False  #: frames may be offered as it


class ViewFile(Protocol):
    """A view, open for reading."""

    @property
    def size(self) -> int: ...

    @property
    def version(self) -> str:
        """Stands for its bytes."""

    @property
    def whole(self) -> int | None:
        """A descriptor of a file with just these bytes, if there is one; valid until `close`."""

    def readinto(self, buffer: memoryview, offset: int, patience: Patience | None = None) -> int:
        """Fill `buffer` with what lies at `offset`; short only at the end.  Thread-safe.

        Raises what `patience` does, which is asked now and then while this takes long.
        """

    def close(self) -> None: ...


@dataclass
class _Known:
    """A video as the catalog described it last."""

    info: LogicalVideo
    footage: Footage
    key: str  #: of the footage
    objects: ObjectFolder
    fresh: int  #: counts changes of the catalog, of which it was the last
    info_file: Rendition | None = None


class Views:
    """The views of all videos of a store.  Safe to use from several threads.

    `path` is below ``NAME@/`` of the video with that inode number; "" is the folder itself.
    Everything raises `NotFoundError` for a name that says nothing (or an inode that is no video),
    `UsageError` and `OutOfRangeError` for one that asks for what cannot be had.
    """

    def __init__(
        self,
        parts: Parts,
        tools: Tools,
        *,
        niceness: int = 0,
        whole_bytes: int = 0,
        gives_way: Callable[[], bool] = lambda: False,
    ) -> None:
        """`niceness` is that of the threads which make views, see nice(2); `gives_way` says when
        they leave half of the cores to others.

        With `whole_bytes`, views that were read to the end are put into files, which take up so
        many bytes at most (`ViewFile.whole`).
        """
        self._parts = parts
        self._tools = tools
        self._renderer = Renderer(parts, tools, niceness, whole_bytes, gives_way)
        self._watch = parts.catalog.watch()
        self._guard = threading.Lock()
        self._fresh = 0  # counts changes of the catalog
        self._videos: OrderedDict[int, tuple[int, _Known]] = OrderedDict()
        self._renditions: OrderedDict[tuple[str, str], Rendition] = OrderedDict()

    def stat(self, ino: int, path: str) -> ViewStat:
        known = self._known(ino)
        if self._is_folder(known, path):
            return ViewStat(True, 0, known.info.modified_ns)
        return ViewStat(
            False,
            self._rendition(known, path).slots.size,
            known.info.modified_ns,
            not self._parts.read_only and requested(path) is not None,
        )

    def list(self, ino: int, path: str) -> list[tuple[str, bool]]:
        """(name, whether it is a folder) of each entry."""
        known = self._known(ino)
        if path == "":
            return list(_ENTRIES)
        if is_explain_folder(path):
            return [(FRAMES, True)] if path == EXPLAIN else []
        if path == LAYOUT:
            return layout_names(known.footage, MOST_LISTED)
        if _is_of_objects(path):
            return known.objects.entries(path, MOST_LISTED)
        if path != FRAMES:
            raise NotFoundError(f"there is no folder {path!r}")
        count = known.info.original.frames
        return [(f"{i:06}.png", False) for i in range(count if count <= MOST_LISTED else 0)]

    def open(self, ino: int, path: str) -> ViewFile:
        known = self._known(ino)
        if self._is_folder(known, path):
            raise NotFoundError(f"{path!r} is a folder")
        return RenditionFile(self._renderer, self._rendition(known, path))

    def offer(self, ino: int, path: str) -> Offer:
        """A view, open for writing.

        Raises `ReadOnlyError` for what nobody can write, `UsageError` for sizes that are not taken.
        """
        known = self._known(ino)
        if self._parts.read_only or requested(path) is None:
            raise ReadOnlyError(
                f"{path!r} cannot be written",
                hint="frames of all the picture in another size can be, such as 640x360.rgb",
            )
        return Offer(self._parts, self._tools, known.info, path)

    def close(self) -> None:
        self._renderer.close()
        self._watch.close()

    def _rendition(self, known: _Known, path: str) -> Rendition:
        if path == INFO:
            return self._info(known)
        if is_of_layouts(path):
            return self._layout(known, path)
        # What was seen may be corrected, and videos renamed; what is in a frame may not.
        is_changing = _is_of_objects(path) or is_of_explain(path)
        state = f"/{known.fresh}" if is_changing else ""
        key = (known.key + state, path)
        with self._guard:
            found = self._renditions.get(key)
            if found is not None:
                self._renditions.move_to_end(key)
                return found
        made = self._make(known, path)
        with self._guard:
            held = made.memory + sum(other.memory for other in self._renditions.values())
            while held > _RENDITION_BYTES and self._renditions:
                held -= self._renditions.popitem(last=False)[1].memory
            self._renditions[key] = made
        return made

    def _make(self, known: _Known, path: str) -> Rendition:
        if _is_of_objects(path):
            return self._measured(known.objects.rendition(path))
        footage = known.footage
        if is_of_explain(path):
            return explained(known.info.name, footage, self._tools.packs, path)
        folder, slash, name = path.rpartition("/")
        if not slash:
            return rendition_of(footage, grammar.parse(name), self._tools.packs)
        if folder != FRAMES:
            raise NotFoundError(f"there is no view {path!r}")
        index, suffix = grammar.parse_still(name)
        require_frame(footage, index)
        region = footage.physical.media.frame_rect
        return self._measured(StillRendition(footage, index, region, suffix))

    def _measured(self, rendition: Rendition) -> Rendition:
        """What has no size before it is made is made."""
        if isinstance(rendition, StillRendition) and rendition.storable:
            return self._renderer.measured(rendition)
        return rendition

    def _objects(self, info: LogicalVideo, footage: Footage) -> ObjectFolder:
        catalog = self._parts.catalog
        return ObjectFolder(
            footage,
            self._tools.packs,
            lambda: [summary.label for summary in catalog.labels(info)],
            lambda label: catalog.detections(info, label).columns(),
        )

    def _is_folder(self, known: _Known, path: str) -> bool:
        if _is_of_objects(path):
            return known.objects.is_folder(path)
        return path in ("", FRAMES, LAYOUT) or is_explain_folder(path)

    def _layout(self, known: _Known, path: str) -> Rendition:
        catalog = self._parts.catalog
        return layout_rendition(catalog, self._tools, known.info, known.footage, path)

    def _info(self, known: _Known) -> Rendition:
        if known.info_file is None:
            physicals = self._parts.catalog.physicals(known.info)
            sound = known.footage.sound
            data = info_json(
                known.info, physicals, known.footage.table, None if sound is None else sound[0]
            )
            known.info_file = TextRendition(data)
        return known.info_file

    def _known(self, ino: int) -> _Known:
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
            # That of old videos is looked for late.
            sound = self._parts.catalog.sound(info.original)
            damage = self._parts.catalog.damaged_bytes(info.original)
            footage = replace(found[1].footage, tiles=tiles, sound=sound, damage=damage)
        else:
            footage = footage_of(self._parts, self._tools, info)
        known = _Known(info, footage, footage.key, self._objects(info, footage), fresh)
        with self._guard:
            self._videos[ino] = (fresh, known)
            while len(self._videos) > _VIDEOS:
                self._videos.popitem(last=False)
        return known


def _is_of_objects(path: str) -> bool:
    return path == OBJECTS or path.startswith(OBJECTS + "/")
