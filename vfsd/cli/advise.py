"""``vfsd advise``: simulates tiling strategies on a workload."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vfsd.cli.command import define, replace_option
from vfsd.cli.output import Progress, print_json, print_line, print_table, printable
from vfsd.cli.session import Session, single_path
from vfsd.core.timebase import human_bytes
from vfsd.errors import EXIT_INTERRUPTED, ExistsError, NotFoundError, OutOfRangeError, UsageError

if TYPE_CHECKING:
    from vfsd.api.video import Video
    from vfsd.derive.tile_encoder import PlannedSegment
    from vfsd.derive.what_if import Advice, StrategyOutcome
    from vfsd.derive.workload import WorkloadQuery

_NEWEST = 1000
_HEADINGS = ("strategy", "", "decoding", "making", "together", "of untiled", "size of tiles")
# RGB.
_COLOURS = {
    "none": (120, 120, 120),
    "present": (60, 60, 60),
    "known": (170, 150, 40),
    "all": (200, 110, 30),
    "lazy": (110, 170, 200),
    "more": (150, 70, 170),
    "regret": (30, 110, 200),
    "ledger": (60, 160, 90),
    "foreseen": (200, 30, 50),
}


@define(
    "advise",
    examples=[
        "vfsd -s videos advise cam1/traffic.mp4 workload.json",
        "vfsd -s videos advise cam1/traffic.mp4 workload.json --plot a.png --layouts best.json",
        "vfsd -s videos advise cam1/traffic.mp4 --from-reads --json",
    ],
    fields={
        "name": "path from the root of the store",
        "queries": "number of queries, including repetitions",
        "idle": "number of queries without a result",
        "regions": "number of different regions among them",
        "patches": "number of areas into which learning strategies merge these regions",
        "strategies": "list of objects: strategy (its name), title, decoding and making (CPU "
        "seconds), seconds (their sum), relative (to the cost without tiles), bytes (of the "
        "tiles at the end), segments and tiles (their numbers at the end)",
        "best": "the strategy with the lowest total cost",
        "advised": "the strategy of the layouts: the best, or that of --strategy",
        "layouts": "list of objects: frames ([first, end]), layout (widths x heights, on the "
        "displayed frame) and tiles (numbers of the tiles to store)",
    },
    exits=[NotFoundError, ExistsError, OutOfRangeError, EXIT_INTERRUPTED],
)
@click.argument("name", metavar="VIDEO")
@click.argument("workload", metavar="[WORKLOAD]", required=False, type=click.Path(path_type=Path))
@click.option("--from-reads", is_flag=True, help="Use the read log as workload.")
@click.option(
    "--newest",
    metavar="N",
    type=click.IntRange(1),
    help=f"With --from-reads: number of reads, newest first; the default is {_NEWEST}.",
)
@click.option(
    "--codec",
    type=click.Choice(("fast", "small", "stitchable")),
    default="fast",
    help="Codec of the tiles, as for `vfsd retile`.",
)
@click.option(
    "--strategy",
    metavar="WORD",
    help="Advise the layouts of this strategy, instead of the best one.",
)
@click.option(
    "--layouts",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Write the advised layouts to FILE, for `vfsd retile --layout-file`.",
)
@click.option(
    "--plot",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Draw the cumulative cost of the queries, into a .png.",
)
@replace_option("Replace an existing FILE.")
def advise(
    session: Session,
    name: str,
    workload: Path | None,
    from_reads: bool,
    newest: int | None,
    codec: str,
    strategy: str | None,
    layouts: Path | None,
    plot: Path | None,
    replace: bool,
) -> None:
    """Simulate tiling strategies on a workload.

    The strategies of TASM and vfsd are replayed on the workload, with the cost model of this host
    and the stored boxes and tiles of the video. Nothing is encoded; `vfsd retile --dry-run` tries a
    segment. TASM's strategies tile whole pictures, those of vfsd only the requested areas. "ours,
    queries known" knows all queries in advance, "ours, query by query" does not.

    A WORKLOAD is a file with {"queries": [QUERY, ...]}. A QUERY is an object with "labels" (an
    expression of `vfsd labels query`), a "region" ("WxH+X+Y" of the displayed frame), or both,
    which selects boxes that overlap the region. "span" ([from, to] in seconds) or "frames" ([first,
    end]) limits the frames; the default is the whole video. "times" repeats the query.
    """
    if (workload is None) != from_reads:
        raise UsageError("give either a WORKLOAD file or --from-reads")
    if newest is not None and not from_reads:
        raise UsageError("--newest needs --from-reads")
    if plot is not None and plot.suffix.lower() != ".png":
        raise UsageError(f"the plot must be a .png file, got {str(plot)!r}", hint="name a .png")
    for path in (layouts, plot):
        if path is not None and path.is_file() and not replace:
            raise ExistsError(f"{path} exists", hint="use --replace to write over it")
    queries = None if workload is None else _read_queries(workload)
    place = session.place(name)
    with session.opened(place.root) as store:
        video = store[single_path(store.catalog, place.name, "advise")]
        with Progress(f"replaying {video.name}", None, shown=session.shows_progress) as progress:
            advice = video.tiles.advise(
                queries, codec=codec, newest=newest or _NEWEST, on_progress=progress.reach
            )
        advised = advice.best if strategy is None else advice[strategy]
        if layouts is not None:
            _write_file(_layout_file(video, advice.layouts(advised)), layouts, replace)
        if plot is not None:
            _write_file(_plot(video, advice), plot, replace)
        if session.json:
            print_json(_advice_record(video, advice, advised))
            return
        _print_advice(session, video, advice, advised, layouts)


def _read_queries(path: Path) -> list[WorkloadQuery]:
    from vfsd.derive.workload import read_workload

    return read_workload(path)


# ---------------------------------------------------------------------------------------- files


def _write_file(data: bytes, path: Path, replace: bool) -> None:
    from vfsd.disk.tempfiles import atomic_file

    with atomic_file(path, replace) as file:
        file.write(data)


def _layout_file(video: Video, planned: Sequence[PlannedSegment]) -> bytes:
    """One line for each segment."""
    lines = ",\n".join(f"  {json.dumps(_segment_record(video, plan))}" for plan in planned)
    return f"[\n{lines}\n]\n".encode() if lines else b"[]\n"


def _plot(video: Video, advice: Advice) -> bytes:
    from vfsd.codecs.encoding.encoder import encode_png
    from vfsd.views.line_chart import panel

    curves = {one.title: one.curve[None] for one in advice.outcomes}
    colours = {one.title: _COLOURS[one.name] for one in advice.outcomes}
    title = f"{video.name}: decoding and making tiles, cumulative"
    return encode_png(panel(title, "queries", curves, colours, above="CPU seconds"))


# --------------------------------------------------------------------------------------------- JSON


def _advice_record(video: Video, advice: Advice, advised: StrategyOutcome) -> dict[str, Any]:
    return {
        "name": video.name,
        "queries": advice.queries,
        "idle": advice.idle,
        "regions": advice.regions,
        "patches": advice.clusters,
        "strategies": [_outcome_record(advice, one) for one in advice.outcomes],
        "best": advice.best.name,
        "advised": advised.name,
        "layouts": [_segment_record(video, plan) for plan in advice.layouts(advised)],
    }


def _outcome_record(advice: Advice, one: StrategyOutcome) -> dict[str, Any]:
    return {
        "strategy": one.name,
        "title": one.title,
        "decoding": float(one.decoding.sum()),
        "making": float(one.making.sum()),
        "seconds": one.seconds,
        "relative": advice.relative(one),
        "bytes": round(one.bytes),
        "segments": len(one.tilings),
        "tiles": sum(len(tiling.tiles) for tiling in one.tilings.values()),
    }


def _segment_record(video: Video, plan: PlannedSegment) -> dict[str, Any]:
    from vfsd.core.frames import to_display_layout

    return {
        "frames": [plan.frames.start, plan.frames.stop],
        "layout": str(to_display_layout(plan.layout, video.original.media)),
        "tiles": list(plan.stored),
    }


# --------------------------------------------------------------------------------------------- text


def _print_advice(
    session: Session, video: Video, advice: Advice, advised: StrategyOutcome, layouts: Path | None
) -> None:
    digits = 1 if advice.outcomes[0].seconds >= 100 else 3

    def seconds(value: float) -> str:
        return f"{value:.{digits}f} s"

    rows: list[tuple[str, ...]] = [_HEADINGS]
    rows += [
        (
            one.name,
            one.title,
            seconds(one.decoding.sum()),
            seconds(one.making.sum()),
            seconds(one.seconds),
            f"{advice.relative(one):.2f}",
            human_bytes(one.bytes),
        )
        for one in advice.outcomes
    ]
    print_table(rows, "<<>>>>>")
    print_line(f"best: {_conclusion_text(advice)}")
    for remark in _remarks(video, advice, advised, layouts):
        session.remark(remark)


def _conclusion_text(advice: Advice) -> str:
    best = advice.best
    if best.name == "none":
        return "no tiles: no tile would pay for itself"
    if best.name == "present":
        return "the existing tiles: more tiles would not pay for themselves"
    count = len(best.tilings)
    what = "1 segment" if count == 1 else f"{count} segments"
    return (
        f"{best.name} ({best.title}), {what} with "
        f"{sum(len(tiling.tiles) for tiling in best.tilings.values())} tiles"
    )


def _remarks(
    video: Video, advice: Advice, advised: StrategyOutcome, layouts: Path | None
) -> Iterator[str]:
    if advice.idle:
        yield (
            f"{advice.idle} of {advice.queries} queries have no result: see `vfsd labels ls "
            f"{printable(shlex.quote(video.name))}`"
        )
    if advice.clusters < advice.regions:
        yield (
            f"strategies that learn merge {advice.regions} different regions into "
            f"{advice.clusters} areas"
        )
    if layouts is not None:
        yield (
            f"the layouts of {advised.name}, to {printable(str(layouts))}; "
            f"`vfsd retile {printable(shlex.quote(video.name))} "
            f"--layout-file {printable(shlex.quote(str(layouts)))}` makes them"
        )
    elif advice.best.making.any():
        yield "--layouts FILE writes the advised layouts"
