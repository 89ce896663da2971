"""``vfsd read``: write frames of a video as pictures, arrays, raw pixels or another video."""

from __future__ import annotations

import csv
import math
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace as changed
from functools import partial
from typing import TYPE_CHECKING

import click

from vfsd.cli.command import define, replace_option
from vfsd.cli.options import ViewOptions, boxes_option, sound_options, view_options
from vfsd.cli.output import Progress, print_json, printable
from vfsd.cli.session import Session, single_path
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
    from vfsd.cli.frame_files import OutputTarget, WrittenFiles
    from vfsd.core.frame_table_pages import Ints
    from vfsd.core.frames import Frame
    from vfsd.core.view_request import ViewSpec
    from vfsd.views import ViewAudioSummary


SHOW, RAISE, SKIP = "show", "raise", "skip"


@define(
    "read",
    examples=[
        "vfsd -s videos read cam1/traffic.mp4 still.png --at 1.5",
        "vfsd -s videos read cam1/traffic.mp4 clip.npy --span 0.5-2 --region 160x120+80+60",
        "vfsd -s videos read cam1/traffic.mp4 'frame-%06d.jpg' --frames 0:120:30 --size 160x0",
        "vfsd -s videos read cam1/traffic.mp4 car.mp4 --span 1-3 --region 160x120+80+60 --fps 10",
        "vfsd -s videos read cam1/traffic.mp4 sound.wav --span 1-2 --rate 16000",
        "vfsd -s videos read cam1/traffic.mp4 boxes.mp4 --span 1-3 --boxes '*'",
        "vfsd -s videos read cam1/traffic.mp4 '%06d.jpg' --crops labels/traffic.csv --size 96x96",
    ],
    fields={
        "name": "path from the root of the store",
        "files": "list of the files written",
        "frames": "number of frames in them",
        "width": "pixels of a written frame, null for crops as pictures and for sound",
        "height": "pixels of a written frame, null for crops as pictures and for sound",
        "format": "layout of the pixels, or the container of a video or of sound",
        "bytes": "size of the files together",
        "sound": "codec of the sound, null without sound",
        "sound_made": "copied or transcoded, null without sound",
        "sound_from": "codec of the stored sound, null without sound",
        "silence": "why a video has no sound, or the silent parts of .wav, else null",
        "psnr": "minimum dB of the pictures it was made from, per plane or channel, against the "
        "very first original; 0: not measured; null: the original itself",
        "damaged": "number of frames with damage of the file, null before the first full decode "
        "of the video",
        "growing": "whether the video is still being written; the result has the frames so far",
    },
    exits=[NotFoundError, ExistsError, OutOfRangeError, BusyError, DamagedFramesError],
)
@click.argument("name")
@click.argument("out")
@view_options
@click.option(
    "--codec",
    type=click.Choice(tuple(CODECS)),
    help="For a video; the default depends on the container.",
)
@sound_options(".mp4 and .mkv")
@click.option("--rate", type=int, metavar="HZ", help="For .wav: samples per second.")
@boxes_option
@click.option(
    "--damaged",
    type=click.Choice((SHOW, RAISE, SKIP)),
    default=SHOW,
    help="Show frames with damage of the file (the default), fail before anything is written, or "
    "skip them. A video cannot skip frames.",
)
@click.option(
    "--crops",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False),
    help="Read boxes instead of frames: a CSV file with the columns frame, x1, y1, x2 and y2. "
    "Pictures are numbered by the lines of the file, from 0.",
)
@replace_option("Replace existing files.")
def read(
    session: Session,
    name: str,
    out: str,
    view: ViewOptions,
    codec: str | None,
    sound: str | None,
    rate: int | None,
    boxes: str | None,
    damaged: str,
    crops: str | None,
    replace: bool,
) -> None:
    """Read frames of a video, exactly, and write them to OUT.

    The suffix of OUT selects the format:

    \b
    - .npy: an array of frames x height x width x channels
    - .png, .jpg: one picture; with `%06d` in the name, one for each frame
    - .rgb, .yuv, .raw: raw pixels, frame by frame
    - .mp4, .mkv, .h264, .hevc, .y4m: a video, as a view of a mount
      (`vfsd help views`) without padding; .mp4 and .mkv have the sound of
      the span
    - .wav: the sound of the span alone
    - `-`: raw pixels on stdout

    Without --span, --frames or --at every frame is read. If a video has tiles (`vfsd retile`),
    pixels may come from them; `--psnr inf` reads the original alone. From a video that is still
    being written, the complete part can be read as pictures, arrays and raw pixels.
    """
    from vfsd.api.reading import kept_frames
    from vfsd.api.video import context_of
    from vfsd.cli.frame_files import output_target, with_sample_rate, with_sound_choice
    from vfsd.core.frames import count_in_ranges

    target = output_target(out, view.pixel_format, codec)
    if sound is not None:
        target = with_sound_choice(target, sound)
    if rate is not None:
        target = with_sample_rate(target, rate)
    if target.kind == "sound" and damaged != SHOW:
        raise UsageError("sound has no frames that could be damaged", hint="leave out --damaged")
    if boxes is not None and (crops is not None or target.kind in ("array", "still")):
        raise UsageError(
            "boxes are drawn into videos and raw pixels only", hint="leave out --boxes"
        )
    if target.is_stdout and session.json:
        raise UsageError("pixels and JSON cannot both go to stdout", hint="name a file")
    if crops is not None:
        _read_crops(session, name, target, view, crops, damaged, replace)
        return
    place = session.place(name)
    with (
        session.opened(place.root) as store,
        open_readable(store, single_path(store.catalog, place.name, "read")) as video,
    ):
        request = changed(view.request(video, target.form), boxes=boxes)
        if damaged != SHOW:
            _check_damage(video, target, request, damaged)
        work = _writer_for(target, video, request, damaged)
        was_verified = video.original.verified
        try:
            written = work(session, target, video, request, replace)
        except (IntegrityError, OutdatedError):
            # The frame table from the packets was wrong: correct it by a full decode, and retry.
            if target.is_stdout or was_verified or video.original.is_growing:
                raise
            if not video.original.verified and not video.verify():
                raise
            # The failed attempt may have written some pictures already: replace them.
            written = work(session, target, video, request, True)
        shown_frames, size, source_psnr = _planned_frames(target, video, request)
        kept = (
            shown_frames
            if damaged == SHOW
            else kept_frames(context_of(video), shown_frames, damaged)
        )
        count, shows_damage = len(kept), count_in_ranges(kept, video.original.damage)
        output_sound = _sound_of(target, video, request)
        is_growing = video.original.is_growing
    if session.json:
        print_json(
            {
                "name": video.name,
                "files": written.files,
                "frames": count,
                "width": None if size is None else size[0],
                "height": None if size is None else size[1],
                "format": target.format,
                "bytes": written.size,
                "sound": output_sound.codec,
                "sound_made": output_sound.method,
                "sound_from": output_sound.origin,
                "silence": output_sound.silence,
                "psnr": None if math.isinf(source_psnr) else source_psnr,
                "damaged": shows_damage,
                "growing": is_growing,
            }
        )
    else:
        sound_text = "" if output_sound.codec is None else f" with {output_sound.text}"
        if output_sound.silence is not None and target.form.container in ("mp4", "matroska"):
            sound_text = _without_sound_text(video, target, output_sound.silence)
        quality_text = (
            "" if math.isinf(source_psnr) else f", made from {_quality_text(source_psnr)}"
        )
        growing_text = ", from the part written so far" if is_growing else ""
        damage_text = f", {shows_damage} of them damaged in the stored file" if shows_damage else ""
        if size is None:
            session.remark(_sound_text(output_sound, out))
            return
        text = (
            f"{count} frames of {size[0]}x{size[1]}, {target.format}{sound_text}{quality_text}, "
            f"to {printable(out)}{damage_text}{growing_text}"
        )
        session.remark(text)


def _read_crops(
    session: Session,
    name: str,
    target: OutputTarget,
    view: ViewOptions,
    path: str,
    damaged: str,
    replace: bool,
) -> None:
    """Write the boxes of a CSV file, in the order of its lines."""
    import numpy as np

    from vfsd.cli.frame_files import write_frames
    from vfsd.core.frames import Frame, count_in_ranges
    from vfsd.core.view_request import exact_size

    if view.selects or damaged != SHOW or target.is_view:
        raise UsageError(
            "--crops goes with --size, --format and --psnr only, and not with a video or sound",
            hint="the frames and regions are those of the file",
        )
    width = height = None
    if target.kind != "still":
        if view.size is None:
            raise UsageError("crops in one array or as raw pixels need --size WxH")
        width, height = exact_size(view.size)
    boxes = _boxes_of(path)
    place = session.place(name)
    with session.opened(place.root) as store:
        video = store[single_path(store.catalog, place.name, "read")]
        found = video.iterate_crops(
            boxes, size=view.size, format=target.form.layout, psnr=view.psnr
        )
        frames = (Frame(crop.data, line, 0, crop.seconds, 0.0) for line, crop in enumerate(found))
        label = f"reading {video.name}"
        with Progress(label, len(boxes), shown=session.shows_progress) as progress:
            shown = _with_progress(frames, progress)
            written = write_frames(target, shown, len(boxes), replace=replace)
        numbers = np.array([frame for frame, _ in boxes]) % len(video)
        shows_damage = count_in_ranges(numbers, video.original.damage)
    session.report(
        {
            "name": video.name,
            "files": written.files,
            "frames": len(boxes),
            "width": width,
            "height": height,
            "format": target.format,
            "bytes": written.size,
            "sound": None,
            "sound_made": None,
            "sound_from": None,
            "silence": None,
            "psnr": None if view.psnr == math.inf else view.psnr or 0,
            "damaged": shows_damage,
            "growing": False,
        },
        f"{len(boxes)} crops, {target.format}, to {printable(target.out)}",
    )


def _boxes_of(path: str) -> list[tuple[int, tuple[float, ...]]]:
    """The frames and boxes of a CSV file.  Raises `UsageError`."""
    names = ("frame", "x1", "y1", "x2", "y2")
    with open(path, encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file)
        missing = [one for one in names if one not in (reader.fieldnames or ())]
        if missing:
            raise UsageError(
                f"{path} must have the columns {', '.join(names)}, and has no {missing[0]}"
            )
        boxes: list[tuple[int, tuple[float, ...]]] = []
        for row in reader:
            try:
                boxes.append((int(row["frame"]), tuple(float(row[one]) for one in names[1:])))
            except (TypeError, ValueError):
                raise UsageError(
                    f"line {reader.line_num} of {path} must have a frame number and four edges"
                ) from None
    if not boxes:
        raise UsageError(f"{path} must have at least one box")
    return boxes


def _without_sound_text(video: Video, target: OutputTarget, silence: str) -> str:
    """Remark for a video whose sound is missing in the output."""
    has_sound = any(stream.kind == "audio" for stream in video.original.media.side_streams)
    return f" without sound ({silence})" if has_sound and target.form.sound else ""


def _sound_text(sound: ViewAudioSummary, out: str) -> str:
    silent = "" if sound.silence is None else f"; silent {sound.silence}"
    return f"{sound.text}, to {printable(out)}{silent}"


def _quality_text(psnr: float) -> str:
    return f"{psnr:.1f} dB or better" if psnr else "pixels of unknown quality"


def _check_damage(video: Video, target: OutputTarget, request: ViewSpec, damaged: str) -> None:
    """Find the damaged frames among the requested ones.

    Raises `DamagedFramesError` if there are some and none may be, `UsageError` if the output cannot
    skip frames.
    """
    from vfsd.api.reading import kept_frames
    from vfsd.api.video import context_of

    if damaged == SKIP and target.kind == "video":
        raise UsageError(
            "a video cannot skip frames",
            hint="write pictures, an array or raw pixels, or give --damaged raise",
        )
    numbers = _planned_frames(target, video, request)[0]
    if len(numbers) and not len(
        kept_frames(context_of(require_complete(video, "damage")), numbers, damaged)
    ):
        raise OutOfRangeError(f"all {len(numbers)} frames are damaged")


def _writer_for(
    target: OutputTarget, video: Video, request: ViewSpec, damaged: str
) -> Callable[[Session, OutputTarget, Video, ViewSpec, bool], WrittenFiles]:
    """The function that writes the target.

    Planes that do not share rows are written like a view of a mount. Raises `BusyError` for outputs
    that need a complete video.
    """

    if target.is_view:
        require_complete(video, "a video")
        return _save_view
    if target.kind == "raw":
        from vfsd.codecs.frames.planes import is_in_rows
        from vfsd.views.view_input import decoded_picture_form

        view = request.resolve(video.width, video.height)
        form = decoded_picture_form(video.original.media, view, target.form)
        is_drawn = request.boxes is not None
        if is_drawn or not is_in_rows(form.pixel_format, *form.size):
            what = "with boxes" if is_drawn else "of an odd size"
            require_complete(video, f"{form.pixel_format} {what}")
            if damaged == SKIP:
                raise UsageError(
                    f"{form.pixel_format} {what} cannot skip frames", hint="give --damaged raise"
                )
            return _pipe_view if target.is_stdout else _save_view
    return partial(_write_frames, damaged=damaged)


def _planned_frames(
    target: OutputTarget, video: Video, request: ViewSpec
) -> tuple[Ints, tuple[int, int] | None, float]:
    """(numbers of the frames, size of a frame, dB of their source) of the request.

    Sound has no frames, and no size.
    """
    import numpy as np

    from vfsd.api.reading import plan_view
    from vfsd.api.video import context_of

    if target.kind == "sound":
        return np.zeros(0, np.int64), None, math.inf
    view = request.resolve(video.width, video.height)
    if target.kind != "video":
        plan = plan_view(context_of(video), view, format=target.form.layout, psnr=request.psnr)
        return plan.frames, plan.size, plan.psnr
    from vfsd.views.view_input import decoded_picture_form

    form = decoded_picture_form(video.original.media, view, target.form)
    view = changed(view, region=form.region)
    plan = plan_view(context_of(video), view, format=form.pixel_format, psnr=request.psnr)
    return plan.frames, form.size, plan.psnr


def _sound_of(target: OutputTarget, video: Video, request: ViewSpec) -> ViewAudioSummary:
    """The sound of the output."""
    from vfsd.views import ViewAudioSummary

    if not target.is_view:
        return ViewAudioSummary(None, None, None)
    return require_complete(video, "a video").views.sound_of(request)


def _save_view(
    session: Session, target: OutputTarget, video: Video, request: ViewSpec, replace: bool
) -> WrittenFiles:
    """Write a video: a view of the mount, without padding."""
    from vfsd.cli.frame_files import WrittenFiles

    label = f"making {target.out}"
    with Progress(label, None, shown=session.shows_progress, in_bytes=True) as progress:
        size = require_complete(video, "a video").views.save(
            target.out, request, replace=replace, on_progress=progress.advance
        )
    return WrittenFiles([target.out], size)


def _pipe_view(
    session: Session, target: OutputTarget, video: Video, request: ViewSpec, replace: bool
) -> WrittenFiles:
    """Write a view to stdout."""
    from vfsd.cli.frame_files import WrittenFiles
    from vfsd.core.view_request import format_view_path

    with require_complete(video, "a view").views.open(format_view_path(request)) as file:
        shutil.copyfileobj(file, sys.stdout.buffer)
    return WrittenFiles([], 0)


def _write_frames(
    session: Session,
    target: OutputTarget,
    video: Video,
    request: ViewSpec,
    replace: bool,
    *,
    damaged: str,
) -> WrittenFiles:
    """Write pictures, an array or raw pixels. Raises `OutOfRangeError` for an empty selection."""
    from vfsd.api.reading import kept_frames, plan_view
    from vfsd.api.video import context_of
    from vfsd.cli.frame_files import write_frames
    from vfsd.views.view_input import no_frame_error

    view = request.resolve(video.width, video.height)
    planned = plan_view(context_of(video), view).frames
    count = len(planned if damaged == SHOW else kept_frames(context_of(video), planned, damaged))
    if not count:
        raise no_frame_error(view, video.original.duration)
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


# Time in which a mount usually classifies a closed file. A file that is still pending then is being
# written.
_CLASSIFY_SECONDS = 2.0
_PAUSE_SECONDS = 0.05


@contextmanager
def open_readable(store: Store, name: str) -> Iterator[Video]:
    """Open the video of that name, or the part of it that is written so far.

    Raises the errors of `Store` if there is neither, and `BusyError` if nothing can be read yet. In
    the block, `OutOfRangeError` gets a hint for frames that are not written yet.
    """
    growing = _open_growing(store, name) if _is_unfinished(store, name) else None
    if growing is None:
        yield store[name]
        return
    with growing:
        try:
            yield growing
        except OutOfRangeError as error:
            raise OutOfRangeError(
                str(error),
                hint=f"still being written: so far {len(growing)} frames, "
                f"{float(growing.duration):.3f} s",
            ) from error


def _is_unfinished(store: Store, name: str) -> bool:
    """Whether the name does not exist, or its file stays pending."""
    from vfsd.core.model import FileState

    end = time.monotonic() + _CLASSIFY_SECONDS
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
    """The video while it is written, or None if it is not, or if its file explains the error.

    Raises `BusyError` if the video is not ready yet, such as while its writer finishes it.
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
    """Whether an entry has that name."""
    try:
        store.node(name)
    except NotFoundError:
        return False
    return True


def require_complete(video: Video, what: str) -> Video:
    """Return `video` if it is complete; raises `BusyError` while it is being written."""

    if video.original.is_growing:
        raise BusyError(
            f"{video.name!r} is still being written, and cannot be read as {what} yet",
            hint="pictures, arrays and raw pixels can be read up to the last complete frame",
        )
    return video
