"""`ViewPlaylists`: playlists of videos and cameras, with the parts of recent videos in memory."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence

from vfsd.api.store import Store
from vfsd.core.model import LogicalVideo
from vfsd.core.view_request import View, ViewForm, ViewSpec, format_view_path
from vfsd.errors import NotFoundError, UsageError
from vfsd.views.segment_layout import segment_layout
from vfsd.web.camera_index import CameraPart
from vfsd.web.playlists import PlaylistPart, timeline_playlist, video_playlist, view_uri

BROWSER_CODECS = ("h264", "hevc", "av1", "vp9")
"""Codecs that a browser may play; all play h264."""
_SOUNDS = ("aac", "mp3", "opus", "flac")
_KEPT = 20_000
_BATCH = 256


def codecs_of(can: str | None) -> frozenset[str]:
    """Return the codecs of ``can=h264,av1``; without it all.  Raises `UsageError`."""
    if can is None:
        return frozenset(BROWSER_CODECS)
    words = [word for word in can.split(",") if word]
    if len(can) > 100 or not all(word.isalnum() for word in words):
        raise UsageError(f"can must be a list of codecs such as h264,av1, got {can[:40]!r}")
    return frozenset(words)


def browser_view(codec: str, sound: str | None, can: Collection[str]) -> ViewSpec:
    """Return the whole video as an MP4 that a browser plays: packets are copied if it can."""
    is_played = codec in can and codec in BROWSER_CODECS
    is_heard = sound is None or sound in _SOUNDS
    form = ViewForm("mp4", None if is_played else "h264", sound_codec=None if is_heard else "aac")
    return ViewSpec(View(), form)


class ViewPlaylists:
    """Makes playlists from frame tables alone.  Thread-safe."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._guard = threading.Lock()
        self._parts: OrderedDict[tuple[str, str, str], PlaylistPart] = OrderedDict()

    def of_video(self, name: str, can: Collection[str]) -> str:
        """Return the playlist of a video.  Raises `NotFoundError`."""
        info = self._store[name].info
        sound = self._store.catalog.sound(info.original)
        request = browser_view(
            info.original.media.codec, None if sound is None else sound[0].codec, can
        )
        return video_playlist(self._made(info, request))

    def of_parts(
        self, parts: Sequence[CameraPart], can: Collection[str], *, has_ended: bool
    ) -> str:
        """Return the playlist of videos of a camera, one after the other.

        A video that was removed in the meantime is left out.
        """
        requests = {
            (one.video.codec, one.video.sound): browser_view(one.video.codec, one.video.sound, can)
            for one in parts
        }
        paths = {key: format_view_path(request) for key, request in requests.items()}
        keys = [
            (one.video.name, one.video.state, paths[one.video.codec, one.video.sound])
            for one in parts
        ]
        with self._guard:
            known = {key: self._parts[key] for key in keys if key in self._parts}
            for key in known:
                self._parts.move_to_end(key)
        missing = [(key, one) for key, one in zip(keys, parts, strict=True) if key not in known]
        for at in range(0, len(missing), _BATCH):
            some = missing[at : at + _BATCH]
            names = {one.video.ino: one.video.name for _, one in some}
            with self._store.catalog.reading() as seen:
                found = {video.ino: video for video in seen.videos.by_inodes(names)}
            for key, one in some:
                if one.video.ino in found and key not in known:
                    request = requests[one.video.codec, one.video.sound]
                    known[key] = self._made(found[one.video.ino], request)
        self._keep(known.items())
        return timeline_playlist(
            (
                (known[key], one.video.start_ns, one.start_ns, one.end_ns)
                for key, one in zip(keys, parts, strict=True)
                if key in known
            ),
            has_ended=has_ended,
        )

    def _made(self, info: LogicalVideo, request: ViewSpec) -> PlaylistPart:
        if info.original.is_growing:
            raise NotFoundError(f"{info.name!r} is still being written")
        layout = segment_layout(self._store.parts, self._store.tools, info, request)
        return PlaylistPart.of(view_uri(info.name, format_view_path(request), info.digest), layout)

    def _keep(self, found: Iterable[tuple[tuple[str, str, str], PlaylistPart]]) -> None:
        with self._guard:
            self._parts.update(found)
            while len(self._parts) > _KEPT:
                self._parts.popitem(last=False)
