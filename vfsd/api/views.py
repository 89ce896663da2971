"""`VideoViews`: the files that a mount shows below ``NAME@/``, without a mount; `video.views`."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from pathlib import Path
from reprlib import repr as shown

from vfsd.api.reading import sides_in, view_of
from vfsd.core import view_request
from vfsd.core.label_query import Labels
from vfsd.core.timebase import Seconds, Span
from vfsd.core.view_request import Size
from vfsd.disk.object_store import Progress
from vfsd.disk.tempfiles import atomic_file
from vfsd.errors import IntegrityError, UsageError
from vfsd.read.read_context import VideoContext
from vfsd.tiling import Region
from vfsd.validation import boolean, local_path
from vfsd.views import (
    PlayableView,
    ViewAudioSummary,
    ViewExplanation,
    explain_path,
    explain_view,
    open_view,
    playable_view,
    render,
    summarize_view_audio,
)
from vfsd.write.frame_index import corrects_table

_BUFFER = 1 << 20


class VideoViews:
    """Views of one video: derived files, made when they are read.

    with video.views.open("t=10-20,roi=400x300+600+300.mp4") as file:
        shutil.copyfileobj(file, upload)
    """

    def __init__(self, video: VideoContext) -> None:
        video.require_finished("views")
        self._video = video

    def open(self, name: str) -> io.BufferedReader:
        """Open the file that a mount shows as ``NAME@/name``.

            with video.views.open("frames/000123.jpg") as file:
                picture = file.read()

        The file is readable and seekable.  Its bytes are made as they are read, and a little ahead.
        The caller closes it.  Raises `NotFoundError` for other names, `UsageError` and
        `OutOfRangeError`.
        """
        video = self._video
        opened = open_view(video.parts, video.tools, video.info, _name(name))
        return io.BufferedReader(opened, _BUFFER)

    def explain(self, name: str) -> ViewExplanation:
        """Explain how the view of that name is made: a view, or ``frames/000123.png``.

        Raises as `open`, and `NotFoundError` for other files below ``NAME@/``.
        """
        video = self._video
        return explain_path(video.parts, video.tools, video.info, _name(name))

    def explain_request(self, request: view_request.ViewSpec) -> ViewExplanation:
        """As `explain`, for a request of `vfsd.core.view_request`."""
        video = self._video
        return explain_view(video.parts, video.tools, video.info, request)

    def explain_save(
        self,
        path: str | os.PathLike[str],
        *,
        span: Span | None = None,
        frames: int | range | slice | None = None,
        region: Region | None = None,
        size: Size | None = None,
        fps: Seconds | None = None,
        codec: str | None = None,
        format: str | None = None,
        psnr: float | None = None,
        sound: str | None = None,
        boxes: Labels | None = None,
    ) -> ViewExplanation:
        """Explain which parts `Video.save` with these arguments copies, decodes and encodes.

            found = video.views.explain_save("clip.mp4", span=(1.3, 6.7))
            found.made, [(step.does, step.frames, step.bytes) for step in found.steps]

        No file is written.  Raises `OutOfRangeError` and `UsageError`.

        Args:
            path: Only the extension counts.
            span: As for `Video.read`.
            frames: A range or a slice; not together with `span`.
            region: As for `Video.read`.
            size: As for `Video.read`.
            fps: As for `Video.read`.
            codec: As for `Video.save`.
            format: As for `Video.save`.
            psnr: As for `Video.read`.
            sound: As for `Video.save`.
            boxes: As for `Video.save`.
        """
        request = request_of(
            self._video,
            path,
            span=span,
            frames=frames,
            region=region,
            size=size,
            fps=fps,
            codec=codec,
            format=format,
            psnr=psnr,
            sound=sound,
            boxes=boxes,
        )
        return self.explain_request(request)

    def playable(self, can: Sequence[str] = ("h264",)) -> PlayableView:
        """Return the view that a web browser should play: the original, a browser rendition, or
        else a view that is encoded while it is read.

            target = f"/v/{video.name}@/{video.views.playable(can=['h264', 'av1']).name}"

        Args:
            can: The codecs that the browser plays: h264, hevc, av1, vp9.

        Raises `UsageError` for other codecs, and for none.
        """
        video = self._video
        return playable_view(video.parts, video.tools, video.info, can)

    def save(
        self,
        path: str | os.PathLike[str],
        request: view_request.ViewSpec,
        *,
        replace: bool = False,
        on_progress: Progress | None = None,
    ) -> int:
        """As `Video.save`, for a request of `vfsd.core.view_request`."""
        target, replace = local_path(path, "a file"), boolean(replace, "replace")
        try:
            return self._render(target, request, replace, on_progress)
        except IntegrityError:
            if not corrects_table(self._video):
                raise
        return self._render(target, request, replace, on_progress)

    def sound_of(self, request: view_request.ViewSpec) -> ViewAudioSummary:
        """Whether a view copies, transcodes or drops the sound."""
        video = self._video
        return summarize_view_audio(video.parts, video.tools, video.info, request)

    def _render(
        self,
        path: Path,
        request: view_request.ViewSpec,
        replace: bool,
        on_progress: Progress | None,
    ) -> int:
        video = self._video
        with atomic_file(path, replace) as file:
            return render(video.parts, video.tools, video.info, request, file, on_progress)


def request_of(
    video: VideoContext,
    path: str | os.PathLike[str],
    *,
    span: Span | None,
    frames: int | range | slice | None,
    region: Region | None,
    size: Size | None,
    fps: Seconds | None,
    codec: str | None,
    format: str | None,
    psnr: float | None,
    sound: str | None,
    boxes: Labels | None,
) -> view_request.ViewSpec:
    """The arguments of `Video.save` as a request.  Raises `UsageError`, `OutOfRangeError`."""
    snapshot = video.snapshot()
    view = view_of(snapshot, span=span, frames=frames, region=region, fps=fps)
    ending = local_path(path, "a file").suffix.lower().removeprefix(".")
    form = view_request.with_sound(view_request.output_form(ending, codec, format), sound)
    scale = sides_in(size, view.region, snapshot.original.media)
    return view_request.ViewSpec(view, form, scale, psnr, boxes=boxes)


def _name(name: str) -> str:
    if not isinstance(name, str):
        raise UsageError(
            f"the name of a view must be text, got {shown(name)}", hint="give its name, as text"
        )
    return name
