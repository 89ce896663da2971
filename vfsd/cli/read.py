"""``vfsd read``: write frames of a video as pictures, arrays, raw pixels or another video."""

from __future__ import annotations

import math
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace as changed
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING

import click

from vfsd.cli.command import define
from vfsd.cli.output import print_json, printable
from vfsd.cli.param_types import Span
from vfsd.cli.progress import Progress
from vfsd.cli.session import Session
from vfsd.cli.video_args import single_path
from vfsd.cli.view_options import (
    require_one_selection,
    sound_choice,
    sound_options,
    view_options,
    view_request,
)
from vfsd.core.output_formats import CODECS
from vfsd.errors import (
    BusyError,
    DamagedFramesError,
    ExistsError,
    IntegrityError,
    NotFoundError,
    OutdatedError,
    OutOfRangeError,
    RefusedMediaError,
    UsageError,
)

if TYPE_CHECKING:
    from vfsd.api.growing_video import GrowingVideo
    from vfsd.api.store import Store
    from vfsd.api.video import Video
    from vfsd.cli.frame_output import OutputTarget, WrittenFiles
    from vfsd.core.frame_table_pages import Ints
    from vfsd.core.frames import Frame
    from vfsd.core.view_path import Request
    from vfsd.tiling import Rect
    from vfsd.views import SoundOfView

    Readable = Video | GrowingVideo

SHOW, RAISE, SKIP = "show", "raise", "skip"


@define(
    "read",
    examples=[
        "vfsd -s videos read cam1/traffic.mp4 still.png --at 1.5",
        "vfsd -s videos read cam1/traffic.mp4 clip.npy --span 0.5-2 --region 160x120+80+60",
        "vfsd -s videos read cam1/traffic.mp4 'frame-%06d.jpg' --frames 0:120:30 --size 160x0",
        "vfsd -s videos read cam1/traffic.mp4 car.mp4 --span 1-3 --region 160x120+80+60 --fps 10",
    ],
    fields={
        "name": "path from the root of the store",
        "files": "list of the files that were written",
        "frames": "number of frames in them",
        "width": "pixels of a written frame",
        "height": "pixels of a written frame",
        "format": "layout of the pixels, or the container of a video",
        "bytes": "size of the files together",
        "sound": "the codec of the sound in them, null without sound",
        "sound_made": "copied or transcoded, null without sound",
        "sound_from": "the codec of the stored sound, null without sound",
        "silence": "why a video has no sound, else null",
        "psnr": "dB that the pictures that they were made from have at least, in each plane or "
        "channel, against the very first original; 0: nobody has measured it; null: they are that",
        "damaged": "number of frames in them that show damage of the file, null where no full "
        "decode has examined the video",
        "growing": "whether the video is still being written: these are frames that were there",
    },
    exits=[NotFoundError, ExistsError, OutOfRangeError, BusyError, DamagedFramesError],
)
@click.argument("name")
@click.argument("out")
@view_options
@click.option("--codec", type=click.Choice(tuple(CODECS)), help="Of a video; else as it suits.")
@sound_options(".mp4 and .mkv")
@click.option(
    "--damaged",
    type=click.Choice((SHOW, RAISE, SKIP)),
    default=SHOW,
    help="Frames that show damage of the file are written (the default), end the command before "
    "anything is written, or are left out, which is not possible in a video.",
)
@click.option(
    "-f",
    "--overwrite",
    "--replace",
    "replace",
    is_flag=True,
    help="Write over files that are there.",
)
@click.pass_obj
def read(
    session: Session,
    name: str,
    out: str,
    span: Span | None,
    chosen: slice | None,
    moment: Fraction | None,
    region: Rect | None,
    size: tuple[int, int] | None,
    fps: Fraction | None,
    pixel_format: str | None,
    psnr: float | None,
    codec: str | None,
    silent: bool,
    sound: str | None,
    damaged: str,
    replace: bool,
) -> None:
    """Read frames of a video, exactly, and write them to OUT.

    The ending of OUT says as what: .npy, an array of frames x height x width x channels; .png or
    .jpg, one picture, or with `%06d` in the name one for every frame, under its number; .rgb,
    .yuv or .raw, bare pixels one after the other; .mp4, .mkv, .h264, .hevc or .y4m, a video, as a
    mount has it (`vfsd help views`) but with no padding, of which .mp4 and .mkv carry the sound of
    the span where they can; - is bare pixels to stdout.
    Without --span, --frames or --at every frame is read.  Where a video has tiles (`vfsd retile`)
    pixels may come from them; `--psnr inf` takes the original alone.  Of a video that is still
    being written what is complete can be read, as pictures, arrays and bare pixels.
    """
    from vfsd.api.video import Video
    from vfsd.cli.frame_output import output_target, with_sound_choice
    from vfsd.core.frame_index import count_within

    require_one_selection(span, chosen, moment)
    target = output_target(out, pixel_format, codec)
    asked = sound_choice(silent, sound)
    if asked is not None:
        target = with_sound_choice(target, asked)
    if target.is_stdout and session.json:
        raise UsageError("pixels and JSON cannot both go to stdout", hint="name a file")
    place = session.place(name)
    with (
        session.opened(place.root) as store,
        open_readable(store, single_path(store.catalog, place.name, "read")) as video,
    ):
        request = view_request(video, target.form, span, chosen, moment, region, size, fps, psnr)
        if damaged != SHOW:
            _check_damage(video, target, request, damaged)
        work = _writer_for(target, video, request, damaged)
        was_verified = video.original.verified
        try:
            written = work(session, target, video, request, replace)
        except (IntegrityError, OutdatedError):
            # The packets promised other frames than there are: see which, and start again.
            if target.is_stdout or was_verified or not isinstance(video, Video):
                raise
            if not video.original.verified and not video.verify():
                raise
            written = work(session, target, video, request, True)
        shown_frames, (width, height), left = _planned_frames(target, video, request)
        kept = shown_frames if damaged == SHOW else video.kept_frames(shown_frames, damaged)
        count, shows_damage = len(kept), count_within(kept, video.original.damage)
        heard_as = _sound_of(target, video, request)
        is_growing = not isinstance(video, Video)
    if session.json:
        print_json(
            {
                "name": video.name,
                "files": written.files,
                "frames": count,
                "width": width,
                "height": height,
                "format": target.format,
                "bytes": written.size,
                "sound": heard_as.codec,
                "sound_made": heard_as.made,
                "sound_from": heard_as.origin,
                "silence": heard_as.silence,
                "psnr": None if math.isinf(left) else left,
                "damaged": shows_damage,
                "growing": is_growing,
            }
        )
    else:
        heard = "" if heard_as.codec is None else f" with {heard_as.text}"
        if heard_as.silence is not None and target.form.container in ("mp4", "matroska"):
            heard = _without_sound_text(video, target, heard_as.silence)
        lost = "" if math.isinf(left) else f", made from {_quality_text(left)}"
        so_far = ", of what is there of it so far" if is_growing else ""
        hurt = f", {shows_damage} of them damaged in the stored file" if shows_damage else ""
        text = (
            f"{count} frames of {width}x{height}, {target.format}{heard}{lost}, to {printable(out)}"
            f"{hurt}{so_far}"
        )
        session.remark(text)


def _without_sound_text(video: Readable, target: OutputTarget, silence: str) -> str:
    """Said where somebody may miss the sound of the video."""
    has_sound = any(stream.kind == "audio" for stream in video.original.media.side_streams)
    return f" without sound ({silence})" if has_sound and target.form.sound else ""


def _quality_text(psnr: float) -> str:
    return f"{psnr:.1f} dB or better" if psnr else "what nobody has measured"


def _check_damage(video: Readable, target: OutputTarget, request: Request, damaged: str) -> None:
    """Find out which frames are damaged.  Raises `DamagedFramesError` where none may be, and
    `UsageError` where some are left out of a file that cannot do without them."""

    if damaged == SKIP and target.kind == "video":
        raise UsageError(
            "a video cannot skip frames",
            hint="write pictures, an array or bare pixels, or give --damaged raise",
        )
    numbers = _planned_frames(target, video, request)[0]
    if len(numbers) and not len(require_complete(video, "damage").kept_frames(numbers, damaged)):
        raise OutOfRangeError(f"all {len(numbers)} frames are damaged")


def _writer_for(
    target: OutputTarget, video: Readable, request: Request, damaged: str
) -> Callable[[Session, OutputTarget, Readable, Request, bool], WrittenFiles]:
    """The writer of a target: planes without common rows are written as a mount shows them.

    Raises `BusyError` for what cannot be had of a video that is still being written.
    """

    if target.kind == "video":
        require_complete(video, "a video")
        return _save_view
    if target.kind == "raw":
        from vfsd.codecs.frames.raw_layouts import is_in_rows
        from vfsd.views.convert import view_picture_form

        view = request.sized(video.width, video.height)
        form = view_picture_form(video.original.media, view, target.form)
        if not is_in_rows(form.pixel_format, *form.size):
            require_complete(video, f"{form.pixel_format} of an odd size")
            if damaged == SKIP:
                raise UsageError(
                    f"{form.pixel_format} of an odd size cannot skip frames",
                    hint="give --damaged raise",
                )
            return _pipe_view if target.is_stdout else _save_view
    return partial(_write_frames, damaged=damaged)


def _planned_frames(
    target: OutputTarget, video: Readable, request: Request
) -> tuple[Ints, tuple[int, int], float]:
    """(numbers of the frames, size of one, dB of what they are made from) of what was asked for."""
    view = request.sized(video.width, video.height)
    if target.kind != "video":
        plan = video.plan(view, format=target.form.layout, psnr=request.psnr)
        return plan.frames, plan.size, plan.psnr
    from vfsd.views.convert import view_picture_form

    form = view_picture_form(video.original.media, view, target.form)
    view = changed(view, region=form.region)
    plan = video.plan(view, format=form.pixel_format, psnr=request.psnr)
    return plan.frames, form.size, plan.psnr


def _sound_of(target: OutputTarget, video: Readable, request: Request) -> SoundOfView:
    """What becomes of the sound of the video."""
    from vfsd.views import SoundOfView

    if target.kind != "video":
        return SoundOfView(None, None, None)
    return require_complete(video, "a video").sound_of(request)


def _save_view(
    session: Session, target: OutputTarget, video: Readable, request: Request, replace: bool
) -> WrittenFiles:
    """As a video: what a mount serves, without padding."""
    from vfsd.cli.frame_output import WrittenFiles

    label = f"making {target.out}"
    with Progress(label, None, shown=session.shows_progress, in_bytes=True) as progress:
        size = require_complete(video, "a video").save_view(
            target.out, request, replace=replace, on_progress=progress.advance
        )
    return WrittenFiles([target.out], size)


def _pipe_view(
    session: Session, target: OutputTarget, video: Readable, request: Request, replace: bool
) -> WrittenFiles:
    """The same, to stdout."""
    from vfsd.cli.frame_output import WrittenFiles
    from vfsd.core.view_path import unparse

    with require_complete(video, "a view").view(unparse(request)) as file:
        shutil.copyfileobj(file, sys.stdout.buffer)
    return WrittenFiles([], 0)


def _write_frames(
    session: Session,
    target: OutputTarget,
    video: Readable,
    request: Request,
    replace: bool,
    *,
    damaged: str,
) -> WrittenFiles:
    """As pictures, an array or bare pixels.  Raises `OutOfRangeError` for an empty selection."""
    from vfsd.cli.frame_output import write_frames
    from vfsd.views.timeline import no_frame

    view = request.sized(video.width, video.height)
    planned = video.plan(view).frames
    count = len(planned if damaged == SHOW else video.kept_frames(planned, damaged))
    if not count:
        raise no_frame(view, video.original.duration)
    frames = video.iterate(
        span=view.span,
        frames=None if view.frames is None else slice(*view.frames),
        region=view.region,
        size=view.size,
        fps=view.fps,
        format=target.form.layout,
        psnr=request.psnr,
        damaged=damaged,
    )
    with Progress(f"reading {video.name}", count, shown=session.shows_progress) as progress:
        return write_frames(target, _with_progress(frames, progress), count, replace=replace)


def _with_progress(frames: Iterator[Frame], progress: Progress) -> Iterator[Frame]:
    for frame in frames:
        yield frame
        progress.advance()


_PATIENCE_SECONDS = 2.0
"""In which a mount has judged what was closed, as a rule; what it has not is being written."""
_PAUSE_SECONDS = 0.05


@contextmanager
def open_readable(store: Store, name: str) -> Iterator[Readable]:
    """The video of that name, or what is there of it while it is written.

    Raises as `Store` does where there is neither, `BusyError` where it is written and nothing can
    be read of it now, and, in the block, `OutOfRangeError` for frames that may come.
    """
    growing = _open_growing(store, name) if _is_unfinished(store, name) else None
    if growing is None:
        yield store[name]
        return
    with growing:
        try:
            yield growing
        except OutOfRangeError as beyond:
            raise OutOfRangeError(
                str(beyond),
                hint=f"it is still being written: so far it has {len(growing)} frames, "
                f"{float(growing.duration):.3f} s",
            ) from beyond


def _is_unfinished(store: Store, name: str) -> bool:
    """Whether nothing of that name is there, or it is not judged although it had the time."""
    from vfsd.core.model import FileState

    end = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            if store.node(name).state is not FileState.SPOOLED:
                return False
        except NotFoundError:
            return True
        if time.monotonic() > end:
            return True
        time.sleep(_PAUSE_SECONDS)


def _open_growing(store: Store, name: str) -> GrowingVideo | None:
    """None where nobody writes it, or the file of that name tells better what is wrong with it.

    Raises `BusyError` where the video is not ready yet, as while its writer finishes it.
    """
    try:
        return store.growing(name)
    except NotFoundError:
        return None
    except (BusyError, RefusedMediaError):
        if _exists(store, name):
            return None
        raise


def _exists(store: Store, name: str) -> bool:
    """Whether there is anything of that name."""
    try:
        store.node(name)
    except NotFoundError:
        return False
    return True


def require_complete(video: Readable, what: str) -> Video:
    """`video`, of which `what` is wanted; raises `BusyError` where it is still being written."""
    from vfsd.api.video import Video

    if not isinstance(video, Video):
        raise BusyError(
            f"{video.name!r} is still being written, and cannot be had as {what} yet",
            hint="pictures, arrays and bare pixels can, as far as it is complete",
        )
    return video
