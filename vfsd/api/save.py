"""A video in other forms, as files: the part of `vfsd.Video` that encodes."""

from __future__ import annotations

import io
import os
from pathlib import Path
from reprlib import repr as shown

from vfsd.api.frames import Region, view_of
from vfsd.api.video_info import VideoFacts
from vfsd.core import view_path
from vfsd.core.timebase import Seconds
from vfsd.core.view_request import Size, resolve_size
from vfsd.disk.atomic_write import whole_file
from vfsd.disk.object_store import Progress
from vfsd.errors import IntegrityError, UsageError
from vfsd.tiling import Rect
from vfsd.validation import local_path, yes_or_no
from vfsd.views import (
    ViewAudioSummary,
    ViewExplanation,
    explain_path,
    explain_view,
    open_view,
    render,
    summarize_view_audio,
)

_BUFFER = 1 << 20


class VideoFiles(VideoFacts):
    """Views of one video, with no mount."""

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        span: tuple[Seconds, Seconds | None] | None = None,
        frames: range | slice | None = None,
        region: Region | None = None,
        size: Size | None = None,
        fps: Seconds | None = None,
        codec: str | None = None,
        format: str | None = None,
        psnr: float | None = None,
        sound: str | None = None,
        replace: bool = False,
        on_progress: Progress | None = None,
    ) -> int:
        """Write a part of the video to a file of another form; how many bytes it has.

            video.save("clip.mp4", span=(10, 20), region=(600, 300, 1000, 600), codec="av1")

        The ending says which form: mp4, mkv, h264, hevc, y4m, rgb, yuv or raw.  `codec` is h264,
        hevc, av1, mjpeg or ffv1, which is lossless; without it packets are copied where
        they can be.  `format` is the layout of the pixels (default: of 8 bits), see
        `vfsd.core.output_formats`. `sound` of an mp4 or mkv is ``"aac"`` or ``"opus"`` to
        transcode it unless it is that, or ``"no"``; without it sound is copied, or becomes AAC
        where the container does not take it. All else is as for `read`.

        The file appears under its name whole, or not at all.  `on_progress` is called with bytes
        that are done.  Raises `ExistsError` unless `replace`, `UsageError` for what cannot be
        made, `OutOfRangeError`, `NoSpaceError`, `OSError`.
        """
        view = view_of(self._counted(), span=span, frames=frames, region=region, fps=fps)
        form = view_path.with_sound(_form(path, codec, format), sound)
        request = view_path.ViewSpec(view, form, self._scale(size, view.region), psnr)
        return self.save_view(path, request, replace=replace, on_progress=on_progress)

    def explain_save(
        self,
        path: str | os.PathLike[str],
        *,
        span: tuple[Seconds, Seconds | None] | None = None,
        frames: range | slice | None = None,
        region: Region | None = None,
        size: Size | None = None,
        fps: Seconds | None = None,
        codec: str | None = None,
        format: str | None = None,
        psnr: float | None = None,
        sound: str | None = None,
    ) -> ViewExplanation:
        """What `save` with these arguments copies, decodes and encodes; it makes nothing.

            found = video.explain_save("clip.mp4", span=(1.3, 6.7))
            found.made, [(step.does, step.frames, step.bytes) for step in found.steps]

        Of `path` the ending alone counts.  Raises `OutOfRangeError`, `UsageError`.
        """
        view = view_of(self._counted(), span=span, frames=frames, region=region, fps=fps)
        form = view_path.with_sound(_form(path, codec, format), sound)
        request = view_path.ViewSpec(view, form, self._scale(size, view.region), psnr)
        return self.explain_request(request)

    def _scale(self, size: Size | None, region: Rect | None) -> tuple[int, int] | None:
        shape = region or Rect.of_size(self.width, self.height)
        return None if size is None else resolve_size(size, shape.width, shape.height)

    def explain_request(self, request: view_path.ViewSpec) -> ViewExplanation:
        """As `explain_save`, for a request of `vfsd.core.view_path`."""
        return explain_view(self._parts, self._tools, self.info, request)

    def explain_view(self, name: str) -> ViewExplanation:
        """What `view` of that name takes to make: a view of the video, or ``frames/000123.png``.

        Raises what `view` does, and `NotFoundError` for other files below ``NAME@/``.
        """
        return explain_path(self._parts, self._tools, self.info, _name(name))

    def save_view(
        self,
        path: str | os.PathLike[str],
        request: view_path.ViewSpec,
        *,
        replace: bool = False,
        on_progress: Progress | None = None,
    ) -> int:
        """As `save`, for a request of `vfsd.core.view_path`."""
        target, replace = local_path(path, "a file"), yes_or_no(replace, "replace")
        try:
            return self._rendered(target, request, replace, on_progress)
        except IntegrityError:
            if not self._corrects_table():
                raise
        return self._rendered(target, request, replace, on_progress)

    def sound_of(self, request: view_path.ViewSpec) -> ViewAudioSummary:
        """What becomes of the sound of the video in a view."""
        return summarize_view_audio(self._parts, self._tools, self.info, request)

    def view(self, name: str) -> io.BufferedReader:
        """The file that a mount shows as ``NAME@/name``, to be read without a mount.

            with video.view("t=10-20,roi=400x300+600+300.mp4") as file:
                shutil.copyfileobj(file, upload)
            with video.view("frames/000123.jpg") as file:
                picture = file.read()

        Readable and seekable; what is read is made then, and a little ahead.  Close it.  Raises
        `NotFoundError` for what is no name of a view, `UsageError`, `OutOfRangeError`.
        """
        opened = open_view(self._parts, self._tools, self.info, _name(name))
        return io.BufferedReader(opened, _BUFFER)

    def _rendered(
        self, path: Path, request: view_path.ViewSpec, replace: bool, on_progress: Progress | None
    ) -> int:
        with whole_file(path, replace) as file:
            return render(self._parts, self._tools, self.info, request, file, on_progress)


def _form(
    path: str | os.PathLike[str], codec: str | None, pixel_format: str | None
) -> view_path.ViewForm:
    ending = local_path(path, "a file").suffix.lower().removeprefix(".")
    return view_path.output_form(ending, codec, pixel_format)


def _name(name: str) -> str:
    """Raises `UsageError` for what is no text."""
    if not isinstance(name, str):
        raise UsageError(
            f"the name of a view must be text, got {shown(name)}", hint="give its name, as text"
        )
    return name
