"""Views: what lies below ``NAME@/`` of a video, as files that are made when they are read.

    README.txt           how views are named, see `vfsd.views.readme_file`
    info.json            what is known of the video
    frames/000123.png    a frame as it is displayed; .npy and .jpg too
    stream=1/ ...        the same of another video stream of the file, see `vfsd.views.streams`
    objects/car/ ...     what was seen, see `vfsd.views.object_crops`
    layout.png           tiles, what was seen, and what was read, see `vfsd.views.layout_files`
    explain/ ...         what a view takes to make, see `vfsd.views.explain_files`
    why/ ...             why a view cannot be opened, see `vfsd.views.reasons`
    t=10-20.mp4 ...      see `vfsd.core.view_path`; these are in no listing

Sizes are exact before a byte is made, and asking for one decodes nothing, and reads a packet at
most; but a .jpg is made when its size is first asked for.  ``frames`` lists the .png files, unless
they are more than `MOST_LISTED`; the others can be opened by name all the same.  .mp4 and .mkv
views carry the sound of their span, see `vfsd.views.audio`; no view has subtitles.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from vfsd.core.view_file import ViewFile, ViewStat
from vfsd.errors import NotFoundError, ReadOnlyError
from vfsd.read.context import Tools
from vfsd.storage.context import Parts
from vfsd.views.explain_files import EXPLAIN, is_explain_folder
from vfsd.views.layout_files import LAYOUT, LAYOUT_PICTURE, layout_names
from vfsd.views.object_crops import OBJECTS
from vfsd.views.open_views import OpenViews
from vfsd.views.reasons import WHY, asked_path, is_of_why
from vfsd.views.remote_render import Elsewhere, MadeElsewhere
from vfsd.views.rendered_view import Rendition, StillRendition, TextRendition
from vfsd.views.rendering import Renderer, RenditionFile
from vfsd.views.resolve import FRAMES, INFO, README, Known, Renditions, is_of_objects
from vfsd.views.streams import other_streams, split_stream, stream_folder
from vfsd.views.uploads import Offer, OpenSink, requested

MOST_LISTED = 100_000

_ENTRIES = [
    (README, False),
    (EXPLAIN, True),
    (FRAMES, True),
    (INFO, False),
    (LAYOUT, True),
    (LAYOUT_PICTURE, False),
    (OBJECTS, True),
    (WHY, True),
]
_ENTRIES_OF_STREAM = [(README, False), (EXPLAIN, True), (FRAMES, True), (INFO, False), (WHY, True)]
"""Labels and tiles belong to the video's own stream."""


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
        elsewhere: Elsewhere | None = None,
        open_sink: OpenSink | None = None,
        whole_bytes: int = 0,
        are_others_hurried: Callable[[], bool] = lambda: False,
    ) -> None:
        """With `elsewhere` slots are made there, and else by threads of this process.  Without
        `open_sink`, no view can be written.

        With `whole_bytes`, views that were read to the end are put into files, which take up so
        many bytes at most (`ViewFile.whole`).  `are_others_hurried` tells whether anybody reads
        what is no view just now.
        """
        self._parts = parts
        self._tools = tools
        self._open_sink = open_sink
        self._elsewhere = None if elsewhere is None else MadeElsewhere(elsewhere)
        self._renderer = Renderer(parts, tools, self._elsewhere, whole_bytes, are_others_hurried)
        self._renditions = Renditions(parts, tools, self._finished)
        self._opened = OpenViews(parts)

    def stat(self, ino: int, path: str) -> ViewStat:
        known, inner = self._renditions.located(ino, path)
        if self._is_folder(known, inner):
            return ViewStat(True, 0, known.info.modified_ns)
        return ViewStat(
            False,
            self._rendition(known, inner).slots.size,
            known.info.modified_ns,
            not self._parts.read_only and requested(path) is not None,
        )

    def list(self, ino: int, path: str) -> list[tuple[str, bool]]:
        """(name, whether it is a folder) of each entry."""
        known, inner = self._renditions.located(ino, path)
        if inner or path:
            return [*(self._entries(known, inner) if inner else _ENTRIES_OF_STREAM)]
        streams = other_streams(known.info.original.media)
        return [*_ENTRIES, *((stream_folder(number), True) for number in streams)]

    def _entries(self, known: Known, path: str) -> Sequence[tuple[str, bool]]:
        if path == "":
            return _ENTRIES
        if is_explain_folder(path):
            return [(FRAMES, True)] if path == EXPLAIN else []
        if is_of_why(path) and self._is_folder(known, path):
            return self._reason_folders(known, path)
        if path == LAYOUT:
            return layout_names(known.footage, MOST_LISTED)
        if is_of_objects(path):
            return known.objects.entries(path, MOST_LISTED)
        if path != FRAMES:
            raise NotFoundError(f"no such folder: {path!r}")
        count = known.info.original.frames
        return [(f"{i:06}.png", False) for i in range(count if count <= MOST_LISTED else 0)]

    def open(self, ino: int, path: str) -> ViewFile:
        known, inner = self._renditions.located(ino, path)
        if self._is_folder(known, inner):
            raise NotFoundError(f"{path!r} is a folder")
        rendition = self._rendition(known, inner)
        if isinstance(rendition, TextRendition):
            return RenditionFile(self._renderer, rendition)
        return self._opened.open(known.info, known.prefix + inner, rendition, self._renderer)

    def offer(self, ino: int, path: str) -> Offer:
        """A view, open for writing.

        Raises `ReadOnlyError` for what nobody can write, `UsageError` for sizes that are not taken.
        """
        known = self._renditions.known(ino)
        if self._open_sink is None or self._parts.read_only or requested(path) is None:
            raise ReadOnlyError(
                f"{path!r} cannot be written",
                hint="frames of all the picture in another size can be, such as 640x360.rgb",
            )
        return Offer(self._parts, self._open_sink(known.info), path)

    def cool(self, seconds: float) -> None:
        """See `Workshop.cool`."""
        self._renderer.cool(seconds)

    def close(self) -> None:
        self._renderer.close()
        self._renditions.close()

    def _rendition(self, known: Known, path: str) -> Rendition:
        made = partial(self._renditions.at, known, path)
        return self._opened.found(known.info, known.prefix + path, made)

    def _reason_folders(self, known: Known, path: str) -> Sequence[tuple[str, bool]]:
        """``why`` lists only the directories that the paths it explains need."""
        asked = asked_path(path)
        inner = self._entries(known, asked)
        return [(name, True) for name, is_dir in inner if is_dir and name != WHY]

    def _is_folder(self, known: Known, path: str) -> bool:
        if is_of_why(path):
            try:
                return not is_of_why(asked_path(path)) and self._is_folder(known, asked_path(path))
            except NotFoundError:  # an unknown label: a file says so
                return False
        if is_of_objects(path):
            return known.objects.is_folder(path)
        return path in ("", FRAMES, LAYOUT) or is_explain_folder(path)

    def _finished(self, rendition: Rendition, ino: int, path: str) -> Rendition:
        """With its size: what has none before it is made is made."""
        finished = rendition
        if isinstance(rendition, StillRendition) and rendition.is_measured:
            self._made_elsewhere(rendition, ino, path)
            finished = self._renderer.measured(rendition)
        self._made_elsewhere(finished, ino, path)
        return finished

    def _made_elsewhere(self, rendition: Rendition, ino: int, path: str) -> None:
        if split_stream(path)[0] is not None:
            return  # another process would have to examine the stream first
        if self._elsewhere is not None and not isinstance(rendition, TextRendition):
            self._elsewhere.add(rendition, ino, path)
