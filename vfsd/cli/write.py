"""``vfsd write`` and ``vfsd recover``: encode a video, or complete an unfinished one."""

from __future__ import annotations

from contextlib import ExitStack
from fractions import Fraction
from typing import IO, TYPE_CHECKING

import click

from vfsd.cli.command import define, replace_option
from vfsd.cli.errors import CommandFailure, describe
from vfsd.cli.options import Number, exact_size_value, rate_value, word_value
from vfsd.cli.output import Progress, local_time, print_json, print_line, print_remark, printable
from vfsd.cli.session import Session, store_name
from vfsd.core.output_formats import PIXEL_LAYOUTS
from vfsd.core.timebase import human_bytes
from vfsd.errors import (
    EXIT_INTERRUPTED,
    BusyError,
    ExistsError,
    NoSpaceError,
    NotFoundError,
    ReadOnlyError,
    RefusedMediaError,
    UsageError,
    VfsdError,
)

if TYPE_CHECKING:
    from vfsd.api.store import Store
    from vfsd.api.video import Video
    from vfsd.cli.frame_files import PixelInput
    from vfsd.write.unfinished_files import UnfinishedRecording
    from vfsd.write.video_writer import WriteOptions


_FILE = click.Path(dir_okay=False)


@define(
    "write",
    examples=[
        "vfsd -s videos write cam1/raw.mp4 pixels.rgb --size 64x48 --fps 25",
        "vfsd -s videos write cam1/clip.mp4 clip.y4m --codec hevc --quality 18",
        "vfsd -s videos write cam1/fine.mp4 clip.y4m --psnr 42",
        "vfsd -s videos write cam1/loud.mp4 clip.y4m --sound footage/traffic.mp4",
        "vfsd -s videos write cam1/stills.mkv stills/%06d.png --fps 5 --lossless --codec ffv1",
        "vfsd -s videos write cam1/copy.mp4 footage/traffic.mp4 --tag copied",
    ],
    fields={
        "name": "path from the root of the store",
        "frames": "number of displayed frames",
        "seconds": "duration",
        "width": "pixels of a displayed frame",
        "height": "pixels of a displayed frame",
        "codec": "codec name in FFmpeg",
        "pixel_format": "FFmpeg's pixel format of the decoded frames",
        "bytes": "size of the file",
    },
    exits=[
        NotFoundError,
        ExistsError,
        RefusedMediaError,
        ReadOnlyError,
        BusyError,
        NoSpaceError,
        EXIT_INTERRUPTED,
    ],
)
@click.argument("name")
@click.argument("source", metavar="[INPUT|-]", default="-")
@click.option("--size", metavar="WxH", type=exact_size_value, help="Size of a frame of raw pixels.")
@click.option("--fps", metavar="F", type=rate_value, help="Frames per second: 25, 30000/1001.")
@click.option(
    "--pix",
    "pixel_format",
    metavar="FORMAT",
    type=click.Choice(PIXEL_LAYOUTS),
    help="Layout of raw pixels; the default is rgb24.",
)
@click.option(
    "--codec",
    type=click.Choice(("h264", "hevc", "av1", "mjpeg", "ffv1", "raw")),
    help="The default is h264; ffv1 and raw are lossless.",
)
@click.option("--encode-as", metavar="FORMAT", help="Encode in this pixel format: yuv444p ...")
@click.option(
    "--quality", metavar="N", type=click.IntRange(0, 63), help="Rate factor; lower is better."
)
@click.option(
    "--psnr", metavar="DB", type=Number(0, min_open=True), help="Minimum PSNR of each frame."
)
@click.option("--lossless", is_flag=True, help="Keep every sample, or fail.")
@click.option(
    "--key-interval",
    metavar="N",
    type=click.IntRange(1),
    help="Frames between key frames; the default is one second.",
)
@click.option(
    "--sound", metavar="FILE", type=_FILE, help="A media file with the sound of the video."
)
@click.option(
    "--sound-codec",
    type=click.Choice(("aac", "flac", "opus", "pcm")),
    help="By default the codec of FILE if the container takes it, else aac.",
)
@replace_option("Replace an existing video.")
@click.option(
    "--tag", "tags", metavar="WORD", type=word_value, multiple=True, help="Tag the video."
)
def write(
    session: Session,
    name: str,
    source: str,
    size: tuple[int, int] | None,
    fps: Fraction | None,
    pixel_format: str | None,
    codec: str | None,
    encode_as: str | None,
    quality: int | None,
    psnr: float | None,
    lossless: bool,
    key_interval: int | None,
    sound: str | None,
    sound_codec: str | None,
    replace: bool,
    tags: tuple[str, ...],
) -> None:
    """Make a video from pixels, pictures or a stream.

    INPUT is a file, or - for stdin (the default):

    \b
    - raw pixels, frame by frame, with --size and --fps
    - progressive YUV4MPEG2; with --fps if the stream has no rate (F0:0)
    - `dir/%06d.png`: all pictures with such a number, with --fps
    - any video that `ingest` takes, without --size and --fps; it is stored
      unchanged

    The suffix of NAME selects the container: .mp4, .mov or .mkv (times in milliseconds). By default
    every second begins with a key frame. Deinterlace interlaced YUV4MPEG2, or write the encoded
    stream instead.

    The video appears when it is complete, and an interrupted command leaves nothing. After a full
    disk or a kill, `vfsd recover` makes a video of the complete frames, also if the program that
    writes into the pipe was killed.

    Sound starts with the first frame of FILE, if it has any, and ends with the last frame written.

    `ffmpeg -i rtsp://... -f yuv4mpegpipe - | vfsd write cam1/today.mp4`
    """
    form: WriteOptions = {"lossless": lossless, "quality": quality, "key_interval": key_interval}
    form["pixel_format"], form["psnr"] = encode_as, psnr
    form["sound"], form["sound_codec"] = sound, sound_codec
    if codec is not None:
        form["codec"] = codec
    encodes = codec or encode_as or quality is not None or psnr or lossless or key_interval
    encodes = encodes or sound or sound_codec
    place = session.place(name)
    with session.opened(place.root, writing=True) as store, ExitStack() as stack:
        pixels, stream = _open_source(stack, place.name, source, size, fps, pixel_format)
        if stream is not None:
            if encodes or pixel_format:
                raise UsageError(
                    "a video file is stored unchanged, and raw pixels need --size and --fps",
                    hint="give both, or no encoding option",
                )
            with Progress("writing", None, shown=session.shows_progress, in_bytes=True) as bar:
                video = store.write(place.name, stream, replace=replace, on_progress=bar.advance)
        else:
            assert pixels is not None
            with Progress("writing", pixels.count, shown=session.shows_progress) as bar:
                form["fps"], form["format"] = pixels.fps, pixels.format
                form["color_range"] = pixels.color_range
                form["sample_aspect_ratio"] = pixels.sample_aspect_ratio
                video = store.write(
                    place.name,
                    pixels.pictures,
                    size=pixels.size,
                    replace=replace,
                    on_progress=bar.advance,
                    **form,
                )
        if tags:
            store.catalog.tag(video.info, *tags)
        _report_written(session, video)


def _open_source(
    stack: ExitStack,
    name: str,
    given: str,
    size: tuple[int, int] | None,
    fps: Fraction | None,
    pixel_format: str | None,
) -> tuple[PixelInput | None, IO[bytes] | None]:
    """Frames, or a stream to store unchanged."""
    from vfsd.cli.frame_files import (
        bare_pixels,
        is_numbered,
        is_y4m,
        numbered_pictures,
        open_input,
        y4m_pictures,
    )

    if is_numbered(given):
        if fps is None or size or pixel_format:
            raise UsageError("numbered pictures need --fps, and no --size or --pix")
        return numbered_pictures(given, fps), None
    file = stack.enter_context(open_input(given))
    if size is not None:
        if fps is None:
            raise UsageError("raw pixels need --fps as well", hint="add --fps 25, or the real rate")
        return bare_pixels(file, pixel_format or "rgb24", size, fps), None
    if is_y4m(file) and not name.lower().endswith(".y4m"):
        if pixel_format is not None:
            raise UsageError(
                "the pixel format of YUV4MPEG2 is in the stream", hint="leave out --pix"
            )
        return y4m_pictures(file, fps), None
    if fps is not None:
        raise UsageError("raw pixels need --size as well", hint="add --size WxH")
    return None, file


def _report_written(session: Session, video: Video) -> None:
    original = video.original
    if session.json:
        print_json(
            {
                "name": video.name,
                "frames": len(video),
                "seconds": float(video.duration),
                "width": video.width,
                "height": video.height,
                "codec": original.media.codec,
                "pixel_format": original.media.pixel_format,
                "bytes": original.size,
            }
        )
        return
    session.remark(
        f"{printable(video.name)}: {len(video)} frames of {video.width}x{video.height}, "
        f"{float(video.duration):.2f} s, {original.media.codec}"
    )


@define(
    "recover",
    examples=["vfsd -s videos recover --dry-run", "vfsd -s videos recover --json"],
    fields={
        "name": "intended path from the root of the store",
        "bytes": "size of the recording",
        "written": "time of the last write, Unix time",
        "file": "path of the recording on disk",
        "recovered": "path of the new video, else null",
        "frames": "number of frames of the new video, else null",
        "error": "error message, else null",
    },
    exits=[NotFoundError, ExistsError, RefusedMediaError, ReadOnlyError, BusyError, NoSpaceError],
    listing=True,
)
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option(
    "--as", "wanted", metavar="NAME", help="Name of the new video; for one recording only."
)
@click.option("--dry-run", is_flag=True, help="Only list the recordings.")
def recover(session: Session, names: tuple[str, ...], wanted: str | None, dry_run: bool) -> None:
    """Make videos of unfinished recordings.

    A `vfsd write` or a Python writer leaves a recording if it is killed, if the disk is full, if
    its input ends inside a frame, or if it cannot publish the video, such as while the catalog is
    locked. Without a NAME, all recordings are processed, oldest first.

    Each video gets its intended name. If that is taken, or being written, it gets a similar one:
    cam-recovered.mp4. A recording without a complete frame stays until `vfsd gc` deletes it, as do
    recordings that are never recovered.
    """
    root, paths = session.places_or_root(names)
    with session.opened(root, writing=not dry_run) as store:
        found = _recordings_named(store, paths)
        if wanted is not None and len(found) != 1:
            raise UsageError(
                f"--as needs exactly one recording, got {len(found)}",
                hint="add a NAME; `vfsd recover --dry-run` lists them",
            )
        name = None if wanted is None else store_name(wanted)
        failures = []
        for one in found:
            if dry_run:
                _report_recovery(session, one, None, None)
                continue
            try:
                _report_recovery(session, one, store.recover(one, name), None)
            except (VfsdError, OSError) as error:
                failures.append(describe(error))
                _report_recovery(session, one, None, failures[-1])
    if not found:
        session.remark("there are no unfinished recordings")
    if failures:
        click.get_current_context().exit(failures[0].exit_code)


def _recordings_named(store: Store, names: list[str]) -> list[UnfinishedRecording]:
    """Raises `NotFoundError`."""
    found = store.recordings()
    for name in names:
        if not any(one.name == name for one in found):
            raise NotFoundError(
                f"no unfinished recording of {name!r}",
                hint="`vfsd recover --dry-run` lists the recordings",
            )
    return [one for one in found if not names or one.name in names]


def _report_recovery(
    session: Session,
    recording: UnfinishedRecording,
    made: Video | None,
    failure: CommandFailure | None,
) -> None:
    if session.json:
        print_json(
            {
                "name": recording.name,
                "bytes": recording.size,
                "written": recording.at_ns / 1e9,
                "file": str(recording.path),
                "recovered": None if made is None else made.name,
                "frames": None if made is None else len(made),
                "error": None if failure is None else failure.message,
            }
        )
    elif made is not None:
        print_line(f"{printable(made.name)}: {len(made)} frames, {human_bytes(recording.size)}")
    elif failure is not None:
        print_remark(
            f"vfsd: {printable(recording.name)} stays in {recording.path}: {failure.message}"
        )
    else:
        print_line(
            f"{printable(recording.name)}: {human_bytes(recording.size)}, last written "
            f"{local_time(recording.at_ns)}"
        )
