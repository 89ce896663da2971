"""Files of spans of time, from several videos; packets are copied except at both ends.

`TimelineFiles` is the tree below ``DIRECTORY@/`` of a directory with videos of known times.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import NoReturn

from vfsd.catalog import ROOT
from vfsd.core.capture_time import NS, from_ns, is_span_name, parse_span_name
from vfsd.core.model import FileState, Node
from vfsd.core.recordings import SHORTEST_GAP, RecordedPart, Recordings, timeline_rows
from vfsd.core.view_request import (
    View,
    ViewFile,
    ViewForm,
    ViewSpec,
    ViewStat,
    format_view_path,
)
from vfsd.errors import NotFoundError, OutOfRangeError, ReadOnlyError, UsageError
from vfsd.read.read_context import ReadContext
from vfsd.storage.context import StoreContext
from vfsd.views.joined_views import JoinableView, JoinedView, PlacedView
from vfsd.views.rendered_view import RenderedView, TextView, plan_view, view_key
from vfsd.views.rendering import HeldFile, Renderer
from vfsd.views.smart_cut import SmartCutView, encoded_like
from vfsd.views.stream_copy import CopiedView
from vfsd.views.view_audio import find_audio
from vfsd.views.view_input import ViewInput, timeline_of_view, view_input_of
from vfsd.views.view_resolver import README_FILE, WHY_DIR, RecentViews, is_below, reason_text

TIMELINE_FILE = "timeline.json"
_READ = 0o444
_MP4 = ViewForm("mp4")
_MAX_KNOWN = 16
_BATCH = 500
_README = """\
The videos below {name!r} whose times of recording are known, as one timeline
from {start} to {end}.

{example}
    That span of time as one file.  The date and Z (or an offset like +02:00) are
    needed at the start only; seconds may have a fraction, and colons may be
    hyphens.  The first frame is at 0, and times in the file follow the clock, so
    the last frame before a gap stays on the screen.  Packets are copied, except
    at both ends.  The videos must have one codec and one size.
timeline.json
    Videos, gaps of a second or more, and videos without a known time: a list of
    the records of `vfsd timeline --json`.
why/t=....txt
    The videos of a span, or the reason why it cannot be opened.
"""


@dataclass(frozen=True)
class _Known:
    """The timeline of a directory, as the catalog last described it."""

    recordings: Recordings
    readers: int  #: permission bits of those that may read all of its videos
    modified_ns: int
    fresh: int  #: the catalog change that this state belongs to


class TimelineFiles:
    """The files below ``DIRECTORY@/`` of all directories of a store.  Thread-safe.

    `path` is relative to ``DIRECTORY@/`` of the directory with that inode number; "" is the
    directory itself.  All methods raise `NotFoundError` for an unknown name, for a directory
    without videos of known times, and for a time without a video; `UsageError` for a malformed
    span, and for videos that cannot share a file.
    """

    def __init__(self, parts: StoreContext, tools: ReadContext, renderer: Renderer) -> None:
        self._parts = parts
        self._tools = tools
        self._renderer = renderer
        self._watch = parts.catalog.watch()
        self._guard = threading.Lock()
        self._fresh = 0  # number of catalog changes seen
        self._known: OrderedDict[int, _Known] = OrderedDict()
        self._recent = RecentViews[tuple[int, str, int]]()

    def stat(self, ino: int, path: str) -> ViewStat:
        known = self._lookup(ino)
        if path in ("", WHY_DIR):
            return ViewStat(True, 0, known.modified_ns, readers=known.readers)
        made = self._resolve(ino, known, path)
        size, version = made.slots.size, made.key
        return ViewStat(False, size, known.modified_ns, version=version, readers=known.readers)

    def list(self, ino: int, path: str) -> list[tuple[str, bool]]:
        """Return (name, whether it is a directory) of each entry."""
        self._lookup(ino)
        if path == WHY_DIR:
            return []
        if path:
            raise NotFoundError(f"no such directory: {path!r}")
        return [(README_FILE, False), (TIMELINE_FILE, False), (WHY_DIR, True)]

    def open(self, ino: int, path: str) -> ViewFile:
        known = self._lookup(ino)
        if path in ("", WHY_DIR):
            raise NotFoundError(f"{path!r} is a directory")
        rendered = self._resolve(ino, known, path)
        with ExitStack() as held:
            if not isinstance(rendered, TextView):
                for part in known.recordings.require_between(*parse_span_name(path)):
                    held.enter_context(self._parts.originals.held(part.video.original))
            return HeldFile(self._renderer, rendered, held)

    def open_upload(self, ino: int, path: str) -> NoReturn:
        """Raises `ReadOnlyError`."""
        raise ReadOnlyError(f"{path!r} cannot be written: it is made from videos")

    def close(self) -> None:
        self._watch.close()

    def _lookup(self, ino: int) -> _Known:
        """Return the timeline of a directory, cached until the catalog changes."""
        with self._guard:
            if self._watch.changed():
                self._fresh += 1
            fresh = self._fresh
            found = self._known.get(ino)
        if found is None or found.fresh != fresh:
            found = self._load(ino, fresh)
        with self._guard:
            self._known[ino] = found
            self._known.move_to_end(ino)
            while len(self._known) > _MAX_KNOWN:
                self._known.popitem(last=False)
        found.recordings.require_parts()
        return found

    def _load(self, ino: int, fresh: int) -> _Known:
        with self._parts.catalog.reading() as seen:
            directory = seen.tree.node(ino)
            name = seen.tree.display_path(ino) if ino != ROOT else ""
            nodes = dict(seen.tree.walk(ino, name))
            names: dict[int, str] = {}  # a file with several names counts once
            for path, node in nodes.items():
                if node.state is FileState.VIDEO:
                    names[node.ino] = min(path, names.get(node.ino, path))
            inos = list(names)
            videos = [
                video
                for at in range(0, len(inos), _BATCH)
                for video in seen.videos.by_inodes(
                    {one: names[one] for one in inos[at : at + _BATCH]}
                )
            ]
        recordings = Recordings(name, sorted(videos, key=lambda video: video.name))
        used = {part.video.name for part in (*recordings.parts, *recordings.overlapped)}
        within = [directory]
        for path in {above for one in used for above in _directories(one)} | used:
            within.extend([nodes[path]] if path in nodes else [])
        times = [directory.mtime_ns, *(video.modified_ns for video in videos)]
        return _Known(recordings, _readers(within), max(times), fresh)

    def _resolve(self, ino: int, known: _Known, path: str) -> RenderedView:
        key = (ino, path, known.fresh)
        found = self._recent.get(key)
        if found is None:
            found = self._make(known, path)
            self._recent.put(key, found)
        return found

    def _make(self, known: _Known, path: str) -> RenderedView:
        if is_below(path, WHY_DIR):
            return reason_text(path, lambda asked: self._explained(known, asked))
        if path == README_FILE:
            return TextView(_readme(known.recordings))
        if path == TIMELINE_FILE:
            rows = timeline_rows(known.recordings, SHORTEST_GAP)
            lines = ",\n".join(json.dumps(row._asdict()) for row in rows)
            return TextView(f"[\n{lines}\n]\n".encode())
        if not is_span_name(path):
            raise NotFoundError(f"no such file: {path!r}")
        span = parse_span_name(path)
        parts = known.recordings.require_between(*span)
        return timeline_view(self._parts, self._tools, parts, span, _MP4)

    def _explained(self, known: _Known, path: str) -> str:
        """Return how a file is made.  Raises what opening it would."""
        made = self._make(known, path)
        if not isinstance(made, JoinedView):
            return f"{path} can be opened.\n"
        parts = known.recordings.require_between(*parse_span_name(path))
        names = "".join(f"  {part.video.name}\n" for part in parts)
        return (
            f"{path} can be opened: {made.slots.size} bytes, {made.method}.  Its videos:\n{names}"
        )


def _readme(found: Recordings) -> bytes:
    start = found.parts[0].start_ns
    end = found.parts[-1].end_ns + NS - 1  # a whole second that is not before the end
    first, last = (from_ns(ns).strftime("%Y-%m-%dT%H:%M:%SZ") for ns in (start, end))
    example = f"t={first}-{last}.mp4"
    text = _README.format(name=found.name, start=first, end=last, example=example)
    return text.encode("utf-8", "replace")


def _directories(path: str) -> Iterator[str]:
    """Yield the directories above a path."""
    while path := path.rpartition("/")[0]:
        yield path


def _readers(nodes: Sequence[Node]) -> int:
    """Return the read permissions that all `nodes` share; the first one is the directory.

    Directories must be readable and searchable.  For a node of another owner, the classes of users
    differ, so all of them need its permission.
    """
    first = nodes[0]
    shared = _READ
    for node in nodes:
        allowed = node.mode & (node.mode << 2 if node.is_dir else _READ) & _READ
        if (node.uid, node.gid) != (first.uid, first.gid) and allowed != _READ:
            allowed = 0
        shared &= allowed
    return shared


@dataclass(frozen=True, slots=True)
class _Piece:
    """A part of a video in the file."""

    name: str  #: of the video
    source: ViewInput
    span: tuple[Fraction, Fraction]  #: seconds of the video, half-open
    origin: Fraction  #: seconds from a moment that all pieces share to the video's first frame


def timeline_view(
    context: StoreContext,
    tools: ReadContext,
    parts: Sequence[RecordedPart],
    span: tuple[int, int],
    form: ViewForm,
    *,
    close_gaps: bool = False,
) -> JoinedView:
    """Return one mp4 file of the frames of `parts` in a span of time.

    The first frame is at 0.  Gaps stay, so that times in the file follow the clock; with
    `close_gaps`, a piece follows the last one at once.

    Raises `OutOfRangeError` without any frame, `UsageError` for videos that cannot share a file.

    Args:
        context: The store.
        tools: Decoders and their caches.
        parts: The parts in the span, in the order of time.
        span: Unix time in nanoseconds, half-open.
        form: The form of an mp4 file.
        close_gaps: Whether no time passes in a gap.
    """
    placed: list[PlacedView] = []
    begin = Fraction(0)
    for part in parts:
        piece = _Piece(
            part.video.name,
            view_input_of(context, tools, part.video),
            part.span_within(*span),
            Fraction(part.origin_ns - parts[0].origin_ns, NS),
        )
        try:
            view = _planned(piece, tools, form)
        except OutOfRangeError:
            continue  # no frame appears in it
        start = piece.origin + _first_second(piece, view)
        if not placed:
            begin = start
        placed.append(PlacedView(view, Fraction(0) if close_gaps else start - begin))
    if not placed:
        raise OutOfRangeError("no frame appears in that time")
    return JoinedView(placed)


def _planned(piece: _Piece, tools: ReadContext, form: ViewForm) -> JoinableView:
    """Return a view of a piece.  Tiles are not used, as their pictures have other headers."""
    source = replace(piece.source, tiles=None)
    view = View(span=piece.span)
    request = ViewSpec(view, form)
    planned = plan_view(source, request, tools)
    if isinstance(planned, (CopiedView, SmartCutView)):
        return planned
    timeline = timeline_of_view(view, source.physical, source.table)
    sound = find_audio(source, view, form, timeline)
    made = encoded_like(
        view_key(source, f"like {format_view_path(request)}"),
        source,
        form,
        timeline,
        None if isinstance(sound, str) else sound,
    )
    if isinstance(made, str):
        raise UsageError(
            f"{piece.name} cannot be a part of one file: {made}",
            hint="save the videos one by one",
        )
    return made


def _first_second(piece: _Piece, view: JoinableView) -> Fraction:
    """Return the time of the first frame on the video's own timeline."""
    table, physical = piece.source.table, piece.source.physical
    first = view.parts[0].frames.start
    return (table.frame_pts(first) - physical.first_pts) * physical.time_base
