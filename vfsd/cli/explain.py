"""``vfsd explain``: what a read or a view decodes, copies and encodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import click

from vfsd.cli.command import define
from vfsd.cli.options import ViewOptions, boxes_option, sound_options, view_options
from vfsd.cli.output import (
    duration_text,
    print_facts,
    print_json,
    print_line,
    print_table,
    printable,
)
from vfsd.cli.session import Session, for_each, select_videos
from vfsd.core.output_formats import CODECS, CONTAINERS, ENDINGS
from vfsd.core.timebase import clock_text, human_bytes
from vfsd.errors import NotFoundError, OutOfRangeError, UsageError
from vfsd.records.read_records import EXPLAIN_FIELDS, explanation_record

if TYPE_CHECKING:
    from vfsd.api.video import Video
    from vfsd.cli.compare_reads import ReadComparison
    from vfsd.core.view_request import View, ViewForm, ViewSpec
    from vfsd.read.explain_read import DecodeSummary, ReadExplanation, SourceRun, UnusedTiles
    from vfsd.tiling.cost import DecodeWork, Fetch
    from vfsd.views.view_explanation import ExplainStep, ViewExplanation


@define(
    "explain",
    examples=[
        "vfsd -s videos explain cam1/traffic.mp4 --region 80x60+100+90",
        "vfsd -s videos explain cam1/traffic.mp4 --span 1-3 --region 80x60+100+90 --run",
        "vfsd -s videos explain cam1/traffic.mp4 --span 0.5-3.5 --codec h264",
        "vfsd -s videos explain cam1/traffic.mp4 t=0.5-3.5,roi=160x120+80+60.mp4",
    ],
    fields=EXPLAIN_FIELDS,
    exits=[NotFoundError, OutOfRangeError],
    listing=True,
)
@click.argument("name", metavar="VIDEO")
@click.argument("asked", metavar="VIEW", required=False)
@view_options
@click.option(
    "--codec", type=click.Choice(tuple(CODECS)), help="Codec of a video, as in `vfsd read`."
)
@click.option(
    "--as",
    "ending",
    type=click.Choice(ENDINGS),
    help="Type of the file that `vfsd read` would write.",
)
@sound_options("mp4 and mkv")
@boxes_option
@click.option("--run", is_flag=True, help="Also read with and without tiles, and measure.")
def explain(
    session: Session,
    name: str,
    asked: str | None,
    view: ViewOptions,
    codec: str | None,
    ending: str | None,
    sound: str | None,
    boxes: str | None,
    run: bool,
) -> None:
    """Explain the work of a read or a view.

    A read decodes frames; a view also copies and encodes them.

    VIDEO is a name or a pattern; with several videos, those that the options lie outside of are
    skipped with a warning. The options are those of `vfsd read`. With --codec or --as they describe
    the file that it would write. Without --as this is an mp4, or another container for the codec. A
    VIEW is the name of a view in a mount (`vfsd help views`), or frames/000123.png, and takes no
    options.

    Tiles that exist but are not used are listed with the reason.

    Seconds are predicted CPU time. For decoding, the prediction is usually within a tenth. For
    encoding to h264 and mjpeg, it follows earlier encodes on this host; without any, and for other
    codecs, it can be off by a factor of two. Cached parts cost nothing. `--run` reads pixels both
    ways, each as the best of three cold reads, and compares the results.
    """
    has_form = any(given is not None for given in (codec, ending, sound, boxes))
    if asked is not None and (has_form or not view.is_empty):
        raise UsageError("a VIEW takes no options that select pixels", hint="leave out the options")
    form_asked = file_form(codec, ending, view.pixel_format, sound) if has_form else None
    is_view = asked is not None or form_asked is not None
    if is_view and run:
        raise UsageError("--run measures reads of pixels, not views", hint="leave it out")
    from vfsd.api.reading import fetch_of_read
    from vfsd.api.video import context_of

    place = session.place(name)
    form = view.pixel_format or "rgb24"

    def show(path: str, video: Video) -> None:
        if asked is not None:
            print_view(session, video, video.views.explain(asked))
            return
        if form_asked is not None:
            request = replace(view.request(video, form_asked), boxes=boxes)
            print_view(session, video, video.views.explain_request(request))
            return
        pixels = _requested_view(video, view)
        found = video.explain(
            span=pixels.span,
            frames=None if pixels.frames is None else slice(*pixels.frames),
            region=pixels.region,
            size=pixels.size,
            fps=pixels.fps,
            format=form,
            psnr=view.psnr,
        )
        measured = None
        fetch = fetch_of_read(context_of(video), found)  # before a measurement fills the cache
        if run:
            measured = _measured(session, place.root, video, found, pixels, form, view.psnr)
        if session.json:
            record = None if measured is None else measured.record()
            print_json(explanation_record(video, found, fetch, record))
        else:
            _print_read(video, found, fetch, measured)

    with session.opened(place.root) as store:
        for_each(session, select_videos(store, [place.name]), show, headed=False)


def _requested_view(video: Video, view: ViewOptions) -> View:
    from vfsd.core.view_request import ViewForm

    return view.request(video, ViewForm("raw")).resolve(video.width, video.height)


def _measured(
    session: Session,
    root: Path,
    video: Video,
    found: ReadExplanation,
    view: View,
    form: str,
    psnr: float | None,
) -> ReadComparison:
    from vfsd.api.store import Store
    from vfsd.cli.compare_reads import compare_reads
    from vfsd.cli.output import Progress

    with Progress(f"reading {video.name}", None, shown=session.shows_progress) as progress:
        return compare_reads(
            lambda: Store.open(root, read_only=True),  # keeps it out of the read log
            video.name,
            found.plan,
            view,
            form,
            psnr,
            progress.advance,
        )


# --------------------------------------------------------------------------------------------- JSON


# --------------------------------------------------------------------------------------------- text


def _print_read(
    video: Video,
    found: ReadExplanation,
    fetch: tuple[Fetch, float] | None,
    measured: ReadComparison | None,
) -> None:
    plan = found.plan
    width, height = plan.size
    print_line(f"{printable(video.name)}: {len(plan.frames)} frames of {width}x{height}")
    rows: list[tuple[str, ...]] = [
        ("seconds", "frames", "pictures", "pixels", "bytes", "predicted", "from")
    ]
    for run in _similar_sources(found.sources):
        rows.append(_source_cells(video, run))
    rows.append(("together", "", *_work_cells(found.work, found.seconds), ""))
    if plan.tiled:
        rows.append(("untiled", "", *_work_cells(found.untiled, found.untiled_seconds), "original"))
    print_table(rows, "<<>>>><")
    facts = (*_fetch_facts(fetch), *_read_facts(found, measured), *unused_facts(video, found))
    print_facts(facts)


def _fetch_facts(found: tuple[Fetch, float] | None) -> Iterator[tuple[str, str]]:
    if found is not None:
        fetch, seconds = found
        text = f"{human_bytes(fetch.bytes)} in {fetch.requests} requests, {fetch.rounds} in a row"
        yield "fetch", f"{text}, {duration_text(seconds)}" if fetch.requests else "nothing"
        yield "cached", human_bytes(fetch.cached)


def _similar_sources(sources: Sequence[SourceRun]) -> Iterator[list[SourceRun]]:
    """Similar consecutive sources, as one line."""
    for _, group in groupby(
        sources,
        lambda one: (
            None
            if one.segment is None
            else (one.segment.layout, one.segment.profile, one.segment.gop),
            one.tiles,
        ),
    ):
        yield list(group)


def _source_cells(video: Video, run: Sequence[SourceRun]) -> tuple[str, ...]:
    from vfsd.records.tile_records import displayed_layout_of, span_of
    from vfsd.tiling.cost import JOINED_RIGHT, DecodeWork

    first = run[0]
    frames = range(first.span.start, run[-1].span.stop)
    start, end = span_of(video, frames)
    origin = f"original, {video.original.media.codec}"
    if first.segment is not None and first.segment.is_joined:
        origin = "joined with another video: pieces combined"
        if first.segment.profile == JOINED_RIGHT:
            origin += ", and projected back"
        if len(run) > 1:
            origin += f", {len(run)} segments"
    elif first.segment is not None:
        origin = (
            f"{_tiles_text(first.tiles)} of {first.segment.layout.count}, {first.segment.profile}, "
            f"{displayed_layout_of(video, first.segment)}"
        )
        if first.segment.gop is not None:
            origin += f", GOP {first.segment.gop}"
        if first.segment.is_from_view:
            origin += ", encoded for a view"
        if len(run) > 1:
            origin += f", {len(run)} segments"
    work = sum((source.work for source in run), DecodeWork())
    return (
        f"{clock_text(start)}-{clock_text(end)}",
        f"{frames.start}-{frames.stop - 1}",
        *_work_cells(work, sum(source.seconds for source in run)),
        origin,
    )


def _tiles_text(tiles: Sequence[int]) -> str:
    if len(tiles) > 6:
        return f"{len(tiles)} tiles"
    return f"{'tile' if len(tiles) == 1 else 'tiles'} {', '.join(map(str, tiles))}"


def _work_cells(work: DecodeWork, seconds: float) -> tuple[str, str, str, str]:
    return (
        str(work.pictures),
        f"{work.pixels / 1e6:.2f} M",
        human_bytes(work.bytes),
        duration_text(seconds),
    )


def _read_facts(
    found: ReadExplanation, measured: ReadComparison | None
) -> Iterator[tuple[str, str]]:
    if found.plan.tiled:
        yield "gain", gain_text(found)
        psnr = found.plan.psnr
        yield "quality", f"at least {psnr:.1f} dB" if psnr else "not measured"
    else:
        yield "gain", "none: everything comes from the original"
    if measured is None:
        return
    yield (
        "measured",
        f"{duration_text(measured.seconds)} ({duration_text(measured.cpu_seconds)} of CPU time), "
        f"untiled {duration_text(measured.untiled_seconds)} "
        f"({duration_text(measured.untiled_cpu_seconds)}): "
        f"{measured.gain:.1f} times",
    )
    yield (
        "compared",
        "the results are equal"
        if measured.psnr is None
        else f"{measured.psnr:.1f} dB between the results",
    )


def file_form(
    codec: str | None, ending: str | None, pixel_format: str | None, sound: str | None
) -> ViewForm:
    """The form of the file in the options; the default is mp4.

    Raises `UsageError`.
    """
    from vfsd.core.view_request import output_form, with_sound

    if ending is None:
        ending = "mp4" if codec is None or codec in CONTAINERS["mp4"] else "mkv"
    return with_sound(output_form(ending, codec, pixel_format), sound)


def print_view(session: Session, video: Video, found: ViewExplanation) -> None:
    """Print the explanation of a view, for people or programs."""
    if session.json:
        print_json({"name": video.name, **found.record, "fetch": None, "measured": None})
        return
    width, height = found.size
    frames = f"{found.frames} frames of {width}x{height}" if found.frames else "sound alone"
    print_line(f"{printable(video.name)}@/{found.view}: {frames}, {found.made}")
    rows: list[tuple[str, ...]] = [
        ("step", "seconds", "frames", "count", "bytes", "predicted", "what")
    ]
    rows += [_step_cells(video, step) for step in found.steps]
    print_table(rows, "<<<>>><")
    print_facts((*_view_facts(video, found), *unused_facts(video, found)))


def _step_cells(video: Video, step: ExplainStep) -> tuple[str, ...]:
    from vfsd.records.tile_records import span_of

    start, end = span_of(video, step.frames)
    what = step.codec if step.origin is None else f"{step.origin}, {step.codec}"
    return (
        step.does,
        f"{clock_text(start)}-{clock_text(end)}",
        f"{step.frames.start}-{step.frames.stop - 1}",
        str(step.count),
        ("up to " if step.does == "encode" else "") + human_bytes(step.bytes),
        "-" if step.does == "copy" else duration_text(step.seconds),
        what,
    )


def _view_facts(video: Video, found: ViewExplanation) -> Iterator[tuple[str, str]]:
    from vfsd.views import ViewAudioSummary

    if found.cached:
        share = "all" if found.cached == found.cacheable else f"{found.cached} of {found.cacheable}"
        yield "cached", f"{share} of its parts come from the cache, without decoding or encoding"
    decoding = f"{found.work.pictures} pictures, {duration_text(found.seconds)}"
    yield "decoded", decoding if found.sources else "nothing"
    if any(source.segment is not None for source in found.sources):
        yield "gain", gain_text(found)
    if found.why is not None:
        yield "not copied", found.why
        hint = _copy_hint(video, found)
        if hint is not None:
            yield "hint", hint
    if found.lost is not None:
        yield "lost", found.lost
    if found.damaged:
        yield "damaged", f"{found.damaged} of {found.frames} frames, in the file itself"
    if found.sound is not None:
        yield "sound", ViewAudioSummary(found.sound, found.sound_from, None).text
        if found.silence is not None:
            yield "silent", found.silence
    elif found.silence is not None:
        yield "no sound", found.silence


def gain_text(found: DecodeSummary) -> str:
    """The savings by tiles."""
    return (
        f"{found.pixel_gain:.1f} times fewer pixels, {found.time_gain:.1f} times less time "
        "(predicted CPU time of decoding)"
    )


def unused_facts(video: Video, found: DecodeSummary) -> Iterator[tuple[str, str]]:
    """Why stored tiles are not used: one line for each size, codec and reason."""
    groups: dict[tuple[object, ...], list[UnusedTiles]] = {}
    for one in found.passed_over:
        segment = one.segment
        key = (segment.profile, segment.picture, segment.is_joined, segment.gop, one.why)
        groups.setdefault(key, []).append(one)
    for run in groups.values():
        yield "not used", f"{_unused_text(video, run)}: {_reason_text(run)}"


def _unused_text(video: Video, run: Sequence[UnusedTiles]) -> str:
    """The unused tiles, as displayed."""
    first = run[0].segment
    layouts = {one.segment.layout for one in run}
    name = "data joined with another video"
    if not first.is_joined:
        is_turned = video.original.media.rotation in (90, 270)
        width, height = first.picture[::-1] if is_turned else first.picture
        cut = "whole" if first.layout.count == 1 else f"{first.layout.count} tiles"
        if len(layouts) > 1:
            cut = f"{len(layouts)} layouts"
        name = f"{first.profile} of {width}x{height}, {cut}"
        if first.gop is not None:
            name += f", GOP {first.gop}"
    return f"{name}, {len(run)} segments" if len(run) > 1 else name


def _missing_text(run: Sequence[UnusedTiles]) -> str:
    """Missing tiles. Numbers are meaningful within one layout only."""
    gone = {
        (one.segment.layout, tile)
        for one in run
        for tile in one.tiles
        if not one.segment.holds([tile])
    }
    if len({one.segment.layout for one in run}) > 1:
        return "some of the tiles needed are not stored"
    if len(gone) > _MOST_TILES:
        return f"{len(gone)} of the tiles needed are not stored"
    numbers = ", ".join(str(tile) for _, tile in sorted(gone, key=lambda pair: pair[1]))
    return f"tile {numbers} is not stored" if len(gone) == 1 else f"tiles {numbers} are not stored"


def _copy_hint(video: Video, found: ViewExplanation) -> str | None:
    """How to request a similar view that is copied, if there is one."""
    from vfsd.core import view_request
    from vfsd.core.view_request import View

    request = view_request.parse_view_path(found.view)
    view = request.view
    codec = request.form.codec
    given = {
        "roi": view.region is not None,
        "size": request.scale is not None,
        "fps": view.fps is not None,
        "a step of frames": view.frames is not None and view.frames[2] != 1,
        f"codec={codec}": codec is not None,
    }
    frames = None if view.frames is None else (*view.frames[:2], 1)
    plain = replace(
        request,
        view=View(view.span, frames),
        form=replace(request.form, codec=None),
        scale=None,
        crop=None,
    )
    if any(given.values()):
        left_out = " and ".join(key for key, is_given in given.items() if is_given)
        return f"without {left_out} it is copied" if _is_copied(video, plain) else None
    return _key_hint(video, found, plain)


def _key_hint(video: Video, found: ViewExplanation, request: ViewSpec) -> str | None:
    """Where a copy could start, for a view that does not start at a key frame."""
    from vfsd.api.video import context_of
    from vfsd.core.view_request import View
    from vfsd.records.tile_records import start_of

    first = min((step.frames.start for step in found.steps), default=0)
    stop = max((step.frames.stop for step in found.steps), default=0)
    keys = context_of(video).table.keyframes()
    after = int(keys.searchsorted(first, "right"))
    near = [int(key) for key in keys[max(0, after - 1) : after + 1]]
    if first in near:
        return None
    good = [
        clock_text(start_of(video, key))
        for key in near
        if key < stop and _is_copied(video, replace(request, view=View(frames=(key, stop, 1))))
    ]
    if not good:
        return None
    hint = f"a copy could start at {' or '.join(good)}"
    if len(near) == 2:
        apart = float(start_of(video, near[1]) - start_of(video, near[0]))
        hint = f"key frames are {apart:.1f} s apart here; {hint}"
    return hint


def _is_copied(video: Video, request: ViewSpec) -> bool:
    try:
        return video.views.explain_request(request).made in ("copied", "spliced")
    except (UsageError, OutOfRangeError):
        return False


# Maximum number of tile numbers in a line.
_MOST_TILES = 6


def _reason_text(run: Sequence[UnusedTiles]) -> str:
    from vfsd.read.explain_read import UnusedReason

    first = run[0]
    if first.why == UnusedReason.SIZE:
        return "pictures of that size do not fit this read"
    if first.why == UnusedReason.MISSING:
        return _missing_text(run)
    if first.why == UnusedReason.QUALITY:
        least = min(one.psnr or 0.0 for one in run)
        luma = min(one.segment.cell(tile).psnr for one in run for tile in one.tiles)
        result = f"{least:.1f} dB in the result" if least else "an unmeasured result"
        return f"quality too low, with {luma:.1f} dB of luma and {result}"
    seconds = duration_text(sum(one.seconds or 0.0 for one in run))
    original = duration_text(sum(one.original_seconds for one in run))
    if first.why == UnusedReason.OTHERS:
        return f"{seconds}, and other tiles take less"
    if first.why == UnusedReason.TIME:
        return (
            f"{seconds}, but the {original} of the original end earlier: several cores decode "
            "it, or the frames before need it"
        )
    return f"{seconds} are not clearly less than the {original} of the original"
