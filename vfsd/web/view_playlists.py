"""`ViewPlaylists`: playlists of videos and cameras, with the parts of recent videos in memory."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence

from vfsd.api.store import Store
from vfsd.core.model import LogicalVideo, MediaInfo
from vfsd.core.view_request import format_view_path, parse_view_path
from vfsd.errors import NotFoundError, UsageError
from vfsd.views.segment_layout import segment_layout
from vfsd.web.camera_index import CameraPart
from vfsd.web.playlists import PlaylistPart, timeline_playlist, video_playlist, view_uri

BROWSER_CODECS = ("h264", "hevc", "av1", "vp9")
"""Codecs that a browser may play; all play h264."""
_KEPT = 20_000
_BATCH = 256


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
        self._parts: OrderedDict[tuple[str, str, tuple[str, ...]], PlaylistPart] = OrderedDict()

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
        self._keep((key, part) for key, part in known.items() if part.is_lasting)
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

    def _keep(self, found: Iterable[tuple[tuple[str, str, tuple[str, ...]], PlaylistPart]]) -> None:
        with self._guard:
            self._parts.update(found)
            while len(self._parts) > _KEPT:
                self._parts.popitem(last=False)


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
