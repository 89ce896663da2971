"""`ViewPlaylists`: playlists of videos and cameras.

The parts of recent videos stay in memory, and those of cameras in the store's cache of views, in a
file for each hour: planning a view for each file of a day takes seconds.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence

from blake3 import blake3

from vfsd import __version__
from vfsd.api.store import Store
from vfsd.core.capture_time import NS
from vfsd.core.model import LogicalVideo, MediaInfo
from vfsd.core.view_request import format_view_path, parse_view_path
from vfsd.errors import NotFoundError, UsageError
from vfsd.storage.file_cache import FileCache, cache_file_name
from vfsd.views.segment_layout import segment_layout
from vfsd.web.camera_index import CameraPart, camera_of
from vfsd.web.playlists import PlaylistPart, timeline_playlist, video_playlist, view_uri

BROWSER_CODECS = ("h264", "hevc", "av1", "vp9")
"""Codecs that a browser may play; all play h264."""
_KEPT = 20_000
_BATCH = 256
_HOUR_NS = 3600 * NS
_STORED = "playlist/1"
"""The form of the files in the cache."""

PartKey = tuple[str, str, tuple[str, ...]]
"""Name and state of a video, and the codecs of the browser."""


def codecs_of(can: str | None) -> tuple[str, ...]:
    """Return the codecs of ``can=h264,av1``; without it all.  Raises `UsageError`."""
    if can is None:
        return BROWSER_CODECS
    words = [word for word in can.split(",") if word]
    if len(can) > 100 or not all(word.isalnum() for word in words):
        raise UsageError(f"can must be a list of codecs such as h264,av1, got {can[:40]!r}")
    return tuple(codec for codec in BROWSER_CODECS if codec in words or codec == "h264")


class ViewPlaylists:
    """Makes playlists from frame tables alone.  Thread-safe."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._guard = threading.Lock()
        self._parts: OrderedDict[PartKey, PlaylistPart] = OrderedDict()
        self._cache = None if store.parts.read_only else FileCache.of_store(store.parts)

    def of_video(self, name: str, can: tuple[str, ...]) -> str:
        """Return the playlist of a video.  Raises `NotFoundError`."""
        return video_playlist(self._made(self._store[name].info, can))

    def of_parts(
        self, parts: Sequence[CameraPart], can: tuple[str, ...], *, has_ended: bool
    ) -> str:
        """Return the playlist of videos of a camera, one after the other.

        A video that was removed in the meantime is left out.
        """
        keys = [(one.video.name, one.video.state, can) for one in parts]
        with self._guard:
            known = {key: self._parts[key] for key in keys if key in self._parts}
            for key in known:
                self._parts.move_to_end(key)
        if len(known) < len(keys):
            known |= self._stored(parts, can, known)
        missing = {
            one.video.ino: key for key, one in zip(keys, parts, strict=True) if key not in known
        }
        inos = sorted(missing)
        for at in range(0, len(inos), _BATCH):
            names = {ino: missing[ino][0] for ino in inos[at : at + _BATCH]}
            with self._store.catalog.reading() as seen:
                found = seen.videos.by_inodes(names)
            for info in found:
                known[missing[info.ino]] = self._made(info, can)
        # Tiles may change the bytes of the others.
        lasting = {key: part for key, part in known.items() if part.is_lasting}
        self._keep(lasting.items())
        if missing:
            self._store_parts(parts, can, lasting, missing.values())
        return timeline_playlist(
            (
                (known[key], one.video.start_ns, one.start_ns, one.end_ns)
                for key, one in zip(keys, parts, strict=True)
                if key in known
            ),
            has_ended=has_ended,
        )

    def _made(self, info: LogicalVideo, can: tuple[str, ...]) -> PlaylistPart:
        if info.original.is_growing:
            raise NotFoundError(f"{info.name!r} is still being written")
        store = self._store
        if _is_simple(info.original.media, can):
            request = parse_view_path("full.mp4")
            layout = segment_layout(store.parts, store.tools, info, request)
        else:
            request = parse_view_path(store.open_video(info).views.playable(can).name)
            layout = segment_layout(store.parts, store.tools, info, request)
        uri = view_uri(info.name, format_view_path(request), info.digest, layout)
        return PlaylistPart.of(uri, layout)

    def _stored(
        self, parts: Sequence[CameraPart], can: tuple[str, ...], known: Mapping[PartKey, object]
    ) -> dict[PartKey, PlaylistPart]:
        """Return the parts of the cache in the hours of those that are not known."""
        found: dict[PartKey, PlaylistPart] = {}
        for name, keys in _hours(parts, can).items():
            if not all(key in known for key in keys):
                found |= self._in_file(name, can)
        return found

    def _in_file(self, name: str, can: tuple[str, ...]) -> dict[PartKey, PlaylistPart]:
        data = None if self._cache is None else self._cache.get(name)
        if data is None:
            return {}
        return {
            (video, state, can): PlaylistPart.from_json(part)
            for video, state, part in json.loads(data)
        }

    def _store_parts(
        self,
        parts: Sequence[CameraPart],
        can: tuple[str, ...],
        lasting: Mapping[PartKey, PlaylistPart],
        made: Iterable[PartKey],
    ) -> None:
        """Write the hours of new parts to the cache."""
        if self._cache is None:
            return
        new = lasting.keys() & set(made)
        for name, keys in _hours(parts, can).items():
            if not new.isdisjoint(keys):
                # The playlist may have had a part of the hour only.
                whole = self._in_file(name, can) | {k: lasting[k] for k in keys if k in lasting}
                stored = [
                    (video, state, part.to_json()) for (video, state, _), part in whole.items()
                ]
                self._cache.put(name, json.dumps(stored, separators=(",", ":")).encode())

    def _keep(self, found: Iterable[tuple[PartKey, PlaylistPart]]) -> None:
        with self._guard:
            self._parts.update(found)
            while len(self._parts) > _KEPT:
                self._parts.popitem(last=False)


def _hours(parts: Sequence[CameraPart], can: tuple[str, ...]) -> dict[str, list[PartKey]]:
    """Return the keys of the videos of each hour, by the name of the file in the cache.

    It lies with the first video of the hour, and goes with it.
    """
    hours: dict[tuple[str, int], list[CameraPart]] = {}
    for part in parts:
        place = camera_of(part.video.name), part.video.start_ns // _HOUR_NS
        hours.setdefault(place, []).append(part)
    found = {}
    for place, videos in hours.items():
        digest = videos[0].video.state.partition("/")[0]
        key = blake3(
            f"{__version__}/{_STORED}/{place}/{can}".encode(errors="surrogateescape")
        ).hexdigest()
        name = cache_file_name(digest, f"{key}.0")
        found[name] = [(one.video.name, one.video.state, can) for one in videos]
    return found


def _is_simple(media: MediaInfo, can: tuple[str, ...]) -> bool:
    """Whether every browser that plays the codec plays a copy of the file.

    This saves most videos a separate plan.
    """
    sounds = {stream.codec for stream in media.side_streams if stream.kind == "audio"}
    return (
        media.codec in can
        and media.pixel_format in ("yuv420p", "yuvj420p")
        and sounds <= {"aac", "mp3", "opus", "flac"}
    )
