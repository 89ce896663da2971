"""``vfsd record``: a camera's stream, or the files of another recorder, as videos of the store."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from threading import Event, Lock
from typing import TYPE_CHECKING

import click

from vfsd.cli.command import define
from vfsd.cli.options import Number, capture_value, require_zone_needed
from vfsd.cli.output import print_json, print_line, printable
from vfsd.cli.session import Session
from vfsd.core.capture_time import capture_record, capture_source
from vfsd.errors import RefusedMediaError, UnreachableError, UsageError

if TYPE_CHECKING:
    from types import FrameType

    from vfsd.api.store import Store
    from vfsd.core.model import LogicalVideo

_STREAM_ONLY = ("sub", "pairs", "segment", "timeout", "transport", "sound")
_FOLDER_ONLY = ("files", "settle", "captured", "zone")


@define(
    "record",
    examples=[
        "vfsd -s videos record cam3 rtsp://user@camera/stream1 --segment 300",
        "vfsd -s videos record gate rtsp://camera/live --sub rtsp://camera/small --duration 3600",
        "vfsd -s videos record yard --watch footage --files copy --settle 0 --duration 3600",
    ],
    fields={
        "name": "path from the root of the store",
        "captured": "when the first frame was recorded: time (ISO 8601, UTC), ns (Unix time), and "
        "clock (rtcp: the camera's; arrival: this host's; with --watch, as `vfsd ingest`)",
        "seconds": "duration",
        "frames": "number of displayed frames",
        "size": "bytes",
    },
    exits=[UnreachableError, RefusedMediaError],
    listing=True,
)
@click.argument("directory", metavar="DIR")
@click.argument("url", metavar="URL", required=False)
@click.option(
    "--sub",
    metavar="URL",
    help="Record this smaller stream of the camera as well, as videos in DIR.sub.",
)
@click.option(
    "--watch",
    "folder",
    metavar="FOLDER",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Take over the files that another recorder writes into FOLDER, instead of a URL.",
)
@click.option(
    "--segment",
    metavar="SECONDS",
    type=Number(min=1, max=86_400),
    default=60.0,
    show_default=True,
    help="Length of a video; it ends at the first key frame of the next multiple.",
)
@click.option("--duration", metavar="SECONDS", type=Number(min=1), help="Stop after this time.")
@click.option(
    "--timeout",
    metavar="SECONDS",
    type=Number(min=0.1, max=3600),
    default=15.0,
    show_default=True,
    help="Open the stream again after this time without a packet.",
)
@click.option(
    "--transport",
    type=click.Choice(("tcp", "udp")),
    default="tcp",
    show_default=True,
    help="Transport of RTSP.",
)
@click.option(
    "--option",
    "pairs",
    metavar="NAME=VALUE",
    multiple=True,
    help="An option of FFmpeg's demuxer or protocol.",
)
@click.option(
    "--sound",
    type=click.Choice(("copy", "aac", "no")),
    default="copy",
    show_default=True,
    help="Keep the packets of sound (in a .mov file for G.711), encode them in AAC, or leave sound "
    "out.",
)
@click.option(
    "--files",
    type=click.Choice(("link", "copy", "move")),
    default="link",
    show_default=True,
    help="With --watch: index files in place, copy them, or copy and then delete them.",
)
@click.option(
    "--settle",
    metavar="SECONDS",
    type=Number(min=0, max=3600),
    default=5.0,
    show_default=True,
    help="With --watch: a file is complete when it has not changed for this time.",
)
@click.option(
    "--captured",
    metavar="SOURCE",
    type=capture_value,
    help="With --watch: when videos were recorded, as for `vfsd ingest`.",
)
@click.option("--zone", metavar="ZONE", help="With --watch: time zone of the names.")
def record(
    session: Session,
    directory: str,
    url: str | None,
    sub: str | None,
    folder: Path | None,
    segment: float,
    duration: float | None,
    timeout: float,
    transport: str,
    pairs: tuple[str, ...],
    sound: str,
    files: str,
    settle: float,
    captured: datetime | str | None,
    zone: str | None,
) -> None:
    """Record a camera's stream as videos, without encoding.

    URL is one that FFmpeg opens: rtsp, http, srt, udp or tcp. The videos are in DIR of the store,
    as 2026-05-01/10-00-00.mp4, in UTC; `vfsd timeline DIR` lists them and the gaps. They can be
    read while they grow. A second stream of the camera has frames at other times than the first.
    It is therefore not a rendition, but makes separate videos in DIR.sub.

    With --watch, another recorder writes the files, and FOLDER/a/b.mp4 becomes DIR/a/b.mp4 when it
    is complete. Hidden files and names like b.mp4.part are left alone until they are renamed. If
    the other recorder deletes old files, use --files copy or move; a linked file that is renamed or
    deleted is reported.

    The command runs until Ctrl-C or SIGTERM, and then publishes the last video. It reconnects when
    the stream breaks. After a kill, the next recorder of DIR publishes the rest. Other users can
    see URL in the list of processes, with its password: let go2rtc add the password, or hide the
    processes of other users (hidepid of proc(5)).
    """
    if (url is None) == (folder is None):
        raise UsageError("give either URL, or --watch FOLDER")
    _require_used(_STREAM_ONLY if url is None else _FOLDER_ONLY, url is None)
    require_zone_needed(zone, captured)
    printing = Lock()

    def print_video(video: LogicalVideo) -> None:
        with printing:
            if session.json:
                print_json(_record(video))
            else:
                print_line(printable(video.name))

    def print_event(text: str) -> None:
        with printing:
            session.remark(text)

    def streams(store: Store, name: str) -> list[Callable[[Event, float | None], int]]:
        from vfsd.write.record_stream import RecordOptions, StreamRecorder

        given = _ffmpeg_options(pairs)
        found: list[Callable[[Event, float | None], int]] = []
        for place, address in ((name, url), (f"{name}.sub", sub)):
            if address is not None:
                is_rtsp = address.lower().startswith("rtsp")
                options = {"rtsp_transport": transport} if is_rtsp else {}
                form = RecordOptions(segment, timeout, sound, options | given)
                recorder = StreamRecorder(
                    *(store.parts, place, address, form),
                    on_video=print_video,
                    on_event=print_event,
                )
                found.append(recorder.run)
        return found

    def watcher(
        store: Store, name: str, folder: Path
    ) -> list[Callable[[Event, float | None], int]]:
        from vfsd.write.watch_folder import FolderWatcher, WatchOptions

        made = FolderWatcher(
            *(store.parts, name, folder, WatchOptions(files, settle)),
            captured=capture_source(captured, zone or "UTC"),
            on_video=print_video,
            on_event=print_event,
        )
        return [made.run]

    place = session.place(directory)
    with session.opened(place.root, writing=True) as store, _until_signal() as stop:
        if folder is None:
            running = streams(store, place.name)
        else:
            running = watcher(store, place.name, folder)
        with ThreadPoolExecutor(len(running), "vfsd-record") as threads:
            done = [threads.submit(one, stop, duration) for one in running]
            for one in done:
                one.result()


def _require_used(names: tuple[str, ...], is_watching: bool) -> None:
    """Raises `UsageError` for an option of the other form of the command."""
    context = click.get_current_context()
    for name in names:
        if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
            option = "--option" if name == "pairs" else f"--{name}"
            other = "cannot be combined with --watch" if is_watching else "needs --watch"
            raise UsageError(f"{option} {other}")


def _ffmpeg_options(pairs: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not key or not equals:
            raise UsageError(f"--option must be NAME=VALUE, got {pair!r}")
        found[key] = value
    return found


def _record(video: LogicalVideo) -> dict[str, object]:
    return {
        "name": video.name,
        "captured": capture_record(video.captured),
        "seconds": float(video.original.duration),
        "frames": video.original.frames,
        "size": video.size,
    }


@contextmanager
def _until_signal() -> Iterator[Event]:
    """Return an event that SIGINT and SIGTERM set; a second signal ends the process."""
    stop = Event()

    def ask(number: int, frame: FrameType | None) -> None:
        stop.set()
        signal.signal(number, before[signal.Signals(number)])

    before = {one: signal.signal(one, ask) for one in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
