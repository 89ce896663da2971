"""``vfsd explain``: what a read or a view decodes, copies and encodes, and from where."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import click

from vfsd.cli.command import define
from vfsd.cli.explainview import duration, file_form, gain, read_record, tell_view, unused
from vfsd.cli.output import columns, facts, print_json, print_line, shown
from vfsd.cli.selecting import for_each, named
from vfsd.cli.session import Session
from vfsd.cli.values import Span
from vfsd.cli.viewoptions import (
    asked_sound,
    check_one,
    request_for,
    sound_options,
    view_options,
)
from vfsd.core.output_formats import CODECS, ENDINGS
from vfsd.core.timebase import clock, human_bytes
from vfsd.errors import NotFoundError, OutOfRangeError, UsageError

if TYPE_CHECKING:
    from vfsd.api.video import Video
    from vfsd.cli.measuring import Measured
    from vfsd.core.view_request import View
    from vfsd.read.explain import Explanation, Source
    from vfsd.tiling import Rect
    from vfsd.tiling.cost import Work


@define(
    "explain",
    examples=[
        "vfsd -s videos explain cam1/traffic.mp4 --region 80x60+100+90",
        "vfsd -s videos explain cam1/traffic.mp4 --span 1-3 --region 80x60+100+90 --run",
        "vfsd -s videos explain cam1/traffic.mp4 --span 0.5-3.5 --codec h264",
        "vfsd -s videos explain cam1/traffic.mp4 t=0.5-3.5,roi=160x120+80+60.mp4",
    ],
    fields={
        "name": "path from the root of the store",
        "view": "name of the view; null: pixels are read, and the next five are null as well",
        "made": "copied, stitched (from tiles), spliced (copied but for its ends, which are "
        "encoded), encoded, or decoded (bare pixels and pictures)",
        "why": "why no packets are copied of what is encoded, else null",
        "lost": "what the view has not of the source: samples of a lossless one, that pictures are "
        "of fields, side data of pictures, streams and tags; else null",
        "sound": "the codec of the sound that the view carries, null where it has none",
        "sound_made": "copied or transcoded, null where it has none",
        "sound_from": "the codec of the stored sound, null where the view has none",
        "silence": "why it has none, else null",
        "damaged": "number of frames of the result that show damage of the file, null: no full "
        "decode has examined the video",
        "cached": "number of parts of a view that the cache holds, which need no decoding or "
        "encoding; null: unknown, or pixels are read",
        "cacheable": "number of parts that the cache can hold",
        "steps": "list of objects, by time: does (copy, decode or encode), frames ([first, end]), "
        "count, from (original, tiles or joined; null of what is encoded), codec, bytes (of what "
        "is encoded the most that it may take) and seconds (predicted CPU time, 0 of a copy)",
        "frames": "number of frames of the result",
        "width": "pixels of a frame of the result",
        "height": "pixels of a frame of the result",
        "psnr": "dB that the result has at least in each plane or channel, 0 where nobody has "
        "measured it, null where all comes from the original as it was first written",
        "sources": "list of objects, what is decoded, by time: source (original, tiles or joined), "
        "frames ([first, end]), count (frames wanted of them), layout, codec and tiles "
        "(numbers; null for the original), from_view (whether it was encoded for a view), "
        "starts, pictures, pixels, bytes, seconds",
        "decoded": "object: starts (decoders that start at a key frame), pictures (packets), "
        "pixels, bytes, and seconds (predicted CPU time)",
        "untiled": "object: the same if all came from the original",
        "pixel_gain": "how many times fewer pixels are decoded than without tiles",
        "time_gain": "how many times less time is predicted than without tiles",
        "passed_over": "list of objects, tiles of these frames that are not used, by time: source "
        "(tiles or joined), frames ([first, end]), count (frames that come from elsewhere), "
        "layout, codec, from_view, tiles, why (size: pictures of their size are of no use; "
        "missing: some are not stored; quality: they may be less like the original than is asked "
        "for; others: other tiles cost less; cost: they cost no less than the original, or hardly; "
        "time: they cost less, but the original is there no later, as several cores work at it or "
        "the frames before need it anyway), psnr (dB that the result would have at least, 0 where "
        "nobody has measured it), seconds (predicted CPU time; of size and missing both are null), "
        "original_seconds (that of the original for the same frames)",
        "measured": "with --run, object: seconds and cpu_seconds, untiled_seconds and "
        "untiled_cpu_seconds, gain (of seconds), and psnr of the results (null: they are "
        "equal); else null",
    },
    exits=[NotFoundError, OutOfRangeError],
    listing=True,
)
@click.argument("name", metavar="VIDEO")
@click.argument("asked", metavar="VIEW", required=False)
@view_options
@click.option("--codec", type=click.Choice(tuple(CODECS)), help="Of a video, as of `vfsd read`.")
@click.option(
    "--as", "ending", type=click.Choice(ENDINGS), help="The file that `vfsd read` would write."
)
@sound_options("mp4 and mkv")
@click.option("--run", is_flag=True, help="Read it both ways as well, and measure.")
@click.pass_obj
def command(
    session: Session,
    name: str,
    asked: str | None,
    span: Span | None,
    chosen: slice | None,
    moment: Fraction | None,
    region: Rect | None,
    size: tuple[int, int] | None,
    fps: Fraction | None,
    pixel_format: str | None,
    psnr: float | None,
    codec: str | None,
    ending: str | None,
    silent: bool,
    sound: str | None,
    run: bool,
) -> None:
    """Say what a read decodes, and what a view copies and encodes.

    VIDEO is a name or a pattern; of several videos, those that the options lie outside of are
    skipped with a warning.  The options are those of `vfsd read`.  With --codec or --as they
    describe the file that it would write: without --as an mp4, or another container that holds the
    codec.  A VIEW is the name of one in a mount (`vfsd help views`), or frames/000123.png, and
    takes no options.

    Tiles that exist but are not used are listed with the reason.

    Seconds are predicted CPU time.  For decoding, the prediction is usually within a tenth.  For
    encoding to h264 and mjpeg, it follows earlier encodes on this host; without any, and for other
    codecs, it can be off by a factor of two.  Parts in the cache cost nothing.  `--run` reads
    pixels both ways, each as the best of three cold reads, and compares the results.
    """
    check_one(span, chosen, moment)
    options = (span, chosen, moment, region, size, fps, pixel_format, psnr, codec, ending)
    wanted = asked_sound(silent, sound)
    if asked is not None and (wanted is not None or any(option is not None for option in options)):
        raise UsageError("a view is said by its name alone", hint="leave out the options")
    form_asked = None
    if asked is None and (codec is not None or ending is not None or wanted is not None):
        form_asked = file_form(codec, ending, pixel_format, wanted)
    is_view = asked is not None or form_asked is not None
    if is_view and run:
        raise UsageError("--run measures reads of pixels, not views", hint="leave it out")
    place = session.place(name)
    form = pixel_format or "rgb24"

    def show(path: str, video: Video) -> None:
        if asked is not None:
            tell_view(session, video, video.explain_view(asked))
            return
        if form_asked is not None:
            request = request_for(video, form_asked, span, chosen, moment, region, size, fps, psnr)
            tell_view(session, video, video.explain_request(request))
            return
        view = _view(video, span, chosen, moment, region, size, fps)
        found = video.explain(
            span=view.span,
            frames=None if view.frames is None else slice(*view.frames),
            region=view.region,
            size=view.size,
            fps=view.fps,
            format=form,
            psnr=psnr,
        )
        measured = _measured(session, place.root, video, found, view, form, psnr) if run else None
        if session.json:
            print_json(_record(video, found, measured))
            return
        _print(video, found, measured)

    with session.opened(place.root) as store:
        for_each(session, named(store, [place.name]), show, headed=False)


def _view(
    video: Video,
    span: Span | None,
    chosen: slice | None,
    moment: Fraction | None,
    region: Rect | None,
    size: tuple[int, int] | None,
    fps: Fraction | None,
) -> View:
    from vfsd.core.view_path import Form

    request = request_for(video, Form("raw"), span, chosen, moment, region, size, fps)
    return request.sized(video.width, video.height)


def _measured(
    session: Session,
    root: Path,
    video: Video,
    found: Explanation,
    view: View,
    form: str,
    psnr: float | None,
) -> Measured:
    from vfsd.api.store import Store
    from vfsd.cli.measuring import measure
    from vfsd.cli.progress import Progress

    with Progress(f"reading {video.name}", None, shown=session.shows_progress) as progress:
        return measure(
            lambda: Store.open(root, read_only=True),  # a try is no read to be remembered
            video.name,
            found.plan,
            view,
            form,
            psnr,
            progress.advance,
        )


# ------------------------------------------------------------------------------ for programs


def _record(video: Video, found: Explanation, measured: Measured | None) -> dict[str, object]:
    from vfsd.read.explain import record

    return {
        "name": video.name,
        **read_record(video, found),
        **record(found),
        "measured": None if measured is None else measured.record(),
    }


# -------------------------------------------------------------------------------- for people


def _print(video: Video, found: Explanation, measured: Measured | None) -> None:
    plan = found.plan
    width, height = plan.size
    print_line(f"{shown(video.name)}: {len(plan.frames)} frames of {width}x{height}")
    rows: list[tuple[str, ...]] = [
        ("seconds", "frames", "pictures", "pixels", "bytes", "predicted", "from")
    ]
    for together in _rows(found.sources):
        rows.append(_cells(video, together))
    rows.append(("together", "", *_numbers(found.work, found.seconds), ""))
    if plan.tiled:
        rows.append(("untiled", "", *_numbers(found.untiled, found.untiled_seconds), "original"))
    for line in columns(rows, "<<>>>><"):
        print_line(line)
    for line in facts((*_conclusions(found, measured), *unused(video, found))):
        print_line(line)


def _rows(sources: Sequence[Source]) -> Iterator[list[Source]]:
    """Sources that follow each other and are alike, as one line."""
    for _, group in groupby(
        sources,
        lambda one: (
            None if one.segment is None else (one.segment.layout, one.segment.profile),
            one.tiles,
        ),
    ):
        yield list(group)


def _cells(video: Video, together: Sequence[Source]) -> tuple[str, ...]:
    from vfsd.cli.layout.records import displayed, span_of
    from vfsd.tiling.cost import JOINED_RIGHT, Work

    first = together[0]
    frames = range(first.span.start, together[-1].span.stop)
    start, end = span_of(video, frames)
    origin = f"original, {video.original.media.codec}"
    if first.segment is not None and first.segment.is_joined:
        origin = "joined with another video: pieces put together"
        if first.segment.profile == JOINED_RIGHT:
            origin += ", and projected back"
        if len(together) > 1:
            origin += f", {len(together)} segments"
    elif first.segment is not None:
        origin = (
            f"{_tiles(first.tiles)} of {first.segment.layout.count}, {first.segment.profile}, "
            f"{displayed(video, first.segment)}"
        )
        if first.segment.is_from_view:
            origin += ", encoded for a view"
        if len(together) > 1:
            origin += f", {len(together)} segments"
    work = sum((source.work for source in together), Work())
    return (
        f"{clock(start)}-{clock(end)}",
        f"{frames.start}-{frames.stop - 1}",
        *_numbers(work, sum(source.seconds for source in together)),
        origin,
    )


def _tiles(tiles: Sequence[int]) -> str:
    if len(tiles) > 6:
        return f"{len(tiles)} tiles"
    return f"{'tile' if len(tiles) == 1 else 'tiles'} {', '.join(map(str, tiles))}"


def _numbers(work: Work, seconds: float) -> tuple[str, str, str, str]:
    return (
        str(work.pictures),
        f"{work.pixels / 1e6:.2f} M",
        human_bytes(work.bytes),
        duration(seconds),
    )


def _conclusions(found: Explanation, measured: Measured | None) -> Iterator[tuple[str, str]]:
    if found.plan.tiled:
        yield "gain", gain(found)
        psnr = found.plan.psnr
        yield "quality", f"at least {psnr:.1f} dB" if psnr else "nobody has measured it"
    else:
        yield "gain", "none: everything comes from the original"
    if measured is None:
        return
    yield (
        "measured",
        f"{duration(measured.seconds)} ({duration(measured.cpu_seconds)} of CPU time), untiled "
        f"{duration(measured.untiled_seconds)} ({duration(measured.untiled_cpu_seconds)}): "
        f"{measured.gain:.1f} times",
    )
    yield (
        "compared",
        "the results are equal"
        if measured.psnr is None
        else f"{measured.psnr:.1f} dB between the results",
    )
