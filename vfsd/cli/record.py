"""``vfsd record``: a camera's stream as videos of the store."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Lock
from typing import TYPE_CHECKING

import click

from vfsd.cli.command import define
from vfsd.cli.options import Number
from vfsd.cli.output import print_json, print_line, printable
from vfsd.cli.session import Session
from vfsd.core.capture_time import capture_record
from vfsd.errors import RefusedMediaError, UnreachableError, UsageError

if TYPE_CHECKING:
    from types import FrameType

    from vfsd.core.model import LogicalVideo


@define(
    "record",
    examples=[
        "vfsd -s videos record cam3 rtsp://user@camera/stream1 --segment 300",
        "vfsd -s videos record gate rtsp://camera/live --sound aac --duration 3600",
    ],
    fields={
        "name": "path from the root of the store",
        "captured": "when the first frame was recorded: time (ISO 8601, UTC), ns (Unix time), and "
        "clock (rtcp: the camera's; or arrival: of this host)",
        "seconds": "duration",
        "frames": "number of displayed frames",
        "size": "bytes",
    },
    exits=[UnreachableError, RefusedMediaError],
    listing=True,
)
@click.argument("directory", metavar="DIR")
@click.argument("url", metavar="URL")
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
def record(
    session: Session,
    directory: str,
    url: str,
    segment: float,
    duration: float | None,
    timeout: float,
    transport: str,
    pairs: tuple[str, ...],
    sound: str,
) -> None:
    """Record a camera's stream as videos, without encoding.

    URL is one that FFmpeg opens: rtsp, http, srt, udp or tcp. The videos are in DIR of the store,
    as 2026-05-01/10-00-00.mp4, in UTC; `vfsd timeline DIR` lists them and the gaps. They can be
    read while they grow.

    The command runs until Ctrl-C or SIGTERM, and then publishes the last video. A stream that
    breaks is opened again. The next recorder of DIR publishes the rest of a killed one. The list
    of processes shows URL to other users: set the password in the camera's or go2rtc's
    configuration, or run under an account of its own.
    """
    from vfsd.write.record_stream import RecordOptions, StreamRecorder

    options = {"rtsp_transport": transport} if url.lower().startswith("rtsp") else {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not key or not equals:
            raise UsageError(f"--option must be NAME=VALUE, got {pair!r}")
        options[key] = value
    form = RecordOptions(segment, timeout, sound, options)
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

    place = session.place(directory)
    with session.opened(place.root, writing=True) as store, _until_signal() as stop:
        recorder = StreamRecorder(
            store.parts, place.name, url, form, on_video=print_video, on_event=print_event
        )
        recorder.run(stop, duration)


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
