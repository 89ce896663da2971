"""``vfsd layer``: maps of the frames of videos, such as masks and depth, and queries on them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from vfsd.cli.command import MAKING_EXITS, define
from vfsd.cli.labels import print_unknown_labels, source_options
from vfsd.cli.options import Span, frame_range, frame_slice, region_value, span_value
from vfsd.cli.output import Progress, print_json, print_table, printable
from vfsd.cli.session import Session, select_or_all, select_videos
from vfsd.core.timebase import human_bytes
from vfsd.errors import (
    ExistsError,
    IntegrityError,
    NotFoundError,
    OutOfRangeError,
    ReadOnlyError,
)
from vfsd.records.label_records import (
    COUNT_FIELDS,
    HIT_FIELDS,
    LAYER_FIELDS,
    WHERE_FIELDS,
    hit_record,
    layer_record,
    where_record,
)

if TYPE_CHECKING:
    from vfsd.api.layer import Layer
    from vfsd.api.video import Video
    from vfsd.core.detections import Source
    from vfsd.tiling import Rect

_F = TypeVar("_F", bound=Callable[..., Any])
_QUERY_EXITS = (NotFoundError, OutOfRangeError, IntegrityError)


def query_options(function: _F) -> _F:
    """``--low``, ``--high``, ``--region`` and ``--span``."""
    for option in (
        click.option("--span", metavar="A-B", type=span_value, help="These seconds only."),
        click.option(
            "--region",
            metavar="WxH+X+Y",
            type=region_value,
            help="Pixels of the displayed frame; the default is the whole frame.",
        ),
        click.option("--high", metavar="VALUE", type=float, help="Count values below it."),
        click.option("--low", metavar="VALUE", type=float, help="Count values from it on."),
    ):
        function = option(function)
    return function


def layer_arguments(function: _F) -> _F:
    """One video and one of its layers; the command gets an open `Layer`."""

    @functools.wraps(function)
    def opened(session: Session, /, name: str, layer_name: str, **options: Any) -> None:
        root, (path,) = session.places([name])
        with session.opened(root) as store:
            function(session, store[path].layers[layer_name], **options)

    added = click.argument("layer_name", metavar="LAYER")(opened)
    return cast(_F, click.argument("name", metavar="VIDEO")(added))


@define(
    "layer add",
    examples=[
        "vfsd -s videos layer add cam1/traffic.mp4 mask cam1/maps.mkv",
        "vfsd -s videos layer add cam1/traffic.mp4 depth cam1/depth.mkv --frames 0:120:10"
        " --scale 0.001 --unit m --source midas --json",
    ],
    fields=LAYER_FIELDS,
    exits=[*MAKING_EXITS, ExistsError],
)
@click.argument("name", metavar="VIDEO")
@click.argument("layer_name", metavar="LAYER")
@click.argument("maps", metavar="MAPS")
@click.option(
    "--frames",
    metavar="A:B:STEP",
    type=frame_slice,
    help="Frames of VIDEO that the maps belong to; the default is all.",
)
@click.option(
    "--scale",
    type=float,
    default=1.0,
    show_default=True,
    help="A sample stands for zero + scale * sample.",
)
@click.option("--zero", type=float, default=0.0, show_default=True, help="See --scale.")
@click.option("--unit", default="", help="Unit of the values, such as m.")
@source_options("The program or model that made the maps.")
def layer_add(
    session: Session,
    name: str,
    layer_name: str,
    maps: str,
    frames: slice | None,
    scale: float,
    zero: float,
    unit: str,
    source: str | Source | None,
) -> None:
    """Add masks, depth or other maps of frames to a VIDEO.

    MAPS is a video of the store with gray or gray16le pixels, such as one that `vfsd write` made
    with --format gray, --codec ffv1 and --lossless. It stays where it is, and its maps belong to
    the frames by number, not by time. Maps may be smaller than the frames.
    """
    root, (path, file) = session.places([name, maps])
    with session.opened(root, writing=True) as store:
        video = store[path]
        numbers = None if frames is None else frame_range(frames, len(video))
        with Progress("indexing", 0, shown=session.shows_progress) as progress:
            layer = video.layers.add(
                layer_name,
                file,
                frames=numbers,
                scale=scale,
                zero=zero,
                unit=unit,
                source=source,
                on_progress=progress.reach,
            )
        text = f"{printable(path)} has a layer {printable(layer_name)}: {len(layer)} maps"
        session.report(layer_record(layer), text)


@define(
    "layer ls",
    examples=[
        "vfsd -s videos layer ls",
        "vfsd -s videos layer ls cam1/traffic.mp4 --json",
    ],
    fields=LAYER_FIELDS,
    exits=[NotFoundError, IntegrityError],
    listing=True,
)
@click.argument("names", metavar="[VIDEO]...", nargs=-1)
def layer_ls(session: Session, names: tuple[str, ...]) -> None:
    """List the layers of videos.

    A VIDEO is a name or a pattern in quotes; the default is all videos. A line has video, layer,
    number of maps, size, bits, index and the file with the maps.
    """
    root, paths = session.places_or_root(names)
    with session.opened(root) as store:
        found = [layer for video in select_or_all(store, paths) for layer in video.layers.values()]
        if session.json:
            for layer in found:
                print_json(layer_record(layer))
            return
        print_table(map(_cells, found), "<<>>>><")
        if not found:
            session.remark("no layers found")


def _cells(layer: Layer) -> tuple[str, ...]:
    width, height = layer.size
    size = layer.index_bytes
    return (
        printable(layer.video),
        printable(layer.name),
        f"{len(layer)} maps",
        f"{width}x{height}",
        f"{layer.bits} bits",
        "no index" if size is None else human_bytes(size),
        printable(layer.file),
    )


@define(
    "layer rm",
    examples=["vfsd -s videos layer rm cam1/traffic.mp4 mask"],
    fields={
        "name": "path of the video from the root of the store",
        "layer": "name of the layer",
        "file": "path of the video with the maps, which stays",
    },
    exits=[NotFoundError, ReadOnlyError],
)
@click.argument("name", metavar="VIDEO")
@click.argument("layer_name", metavar="LAYER")
def layer_rm(session: Session, name: str, layer_name: str) -> None:
    """Remove a layer and its index; its file stays.

    The file with the maps is an ordinary video then.
    """
    root, (path,) = session.places([name])
    with session.opened(root, writing=True) as store:
        file = store[path].layers.remove(layer_name)
    session.report(
        {"name": path, "layer": layer_name, "file": file},
        f"removed the layer; its maps are in {printable(file)}",
    )


@define(
    "layer count",
    examples=[
        "vfsd -s videos layer count cam1/traffic.mp4 mask --low 128 --region 160x120+0+0",
        "vfsd -s videos layer count cam1/traffic.mp4 mask --low 1 --high 2 --span 1-2 --json",
    ],
    fields=COUNT_FIELDS,
    exits=_QUERY_EXITS,
    listing=True,
)
@layer_arguments
@query_options
def layer_count(session: Session, layer: Layer, span: Span | None, **options: Any) -> None:
    """Count the pixels with certain values on each map.

    A line has frame and count. Pixels are those of the map, which may be smaller than the frame.
    """
    read = layer.frames_in(span)
    counts = layer.count(span=span, **options)
    for frame, count in zip(read.tolist(), counts.tolist(), strict=True):
        session.print_result(
            {"name": layer.video, "frame": frame, "count": count}, f"{frame:>8} {count:>9}"
        )


@define(
    "layer where",
    examples=[
        "vfsd -s videos layer where cam1/traffic.mp4 mask --low 128 --more-than 500",
        "vfsd -s videos layer where cam1/traffic.mp4 mask --low 128 --region 160x120+0+0"
        " --share 0.1 --json",
    ],
    fields=WHERE_FIELDS,
    exits=_QUERY_EXITS,
)
@layer_arguments
@query_options
@click.option("--more-than", metavar="N", type=float, help="Pixels of the map; the default is 0.")
@click.option("--share", metavar="0..1", type=float, help="Share of the region, instead.")
def layer_where(session: Session, layer: Layer, **options: Any) -> None:
    """Find the frames with many pixels of certain values.

    The output is ranges of frames. A remark says how many maps the index decided, and how many
    were decoded.
    """
    frames, work = layer.where(explain=True, **options)
    record = where_record(layer, frames, work)
    ranges = ", ".join(
        str(first) if end - first == 1 else f"{first}-{end - 1}" for first, end in record["frames"]
    )
    session.print_result(record, ranges or "no frames found")
    session.remark(
        f"{work.maps} maps: {work.by_runs} decided in runs, {work.by_maps} by the index, "
        f"{work.decoded} decoded"
    )


@define(
    "layer top",
    examples=[
        "vfsd -s videos layer top 'cam1/*' mask --low 128 --limit 5",
        "vfsd -s videos layer top cam1/traffic.mp4 mask --low 128 --boxes car --json",
    ],
    fields=HIT_FIELDS,
    exits=_QUERY_EXITS,
    listing=True,
    unknown_labels=True,
)
@click.argument("name", metavar="VIDEO")
@click.argument("layer_name", metavar="LAYER")
@query_options
@click.option("--boxes", metavar="LABELS", help="Search boxes, as in `vfsd labels query`.")
@source_options("Only boxes of this source.")
@click.option("--min-confidence", type=float, help="Minimum confidence of a box.")
@click.option("--ascending", is_flag=True, help="The fewest pixels instead of the most.")
@click.option(
    "--limit",
    metavar="N",
    type=click.IntRange(min=1),
    default=25,
    show_default=True,
    help="Number of frames or boxes.",
)
def layer_top(
    session: Session,
    name: str,
    layer_name: str,
    low: float | None,
    high: float | None,
    region: Rect | None,
    span: Span | None,
    boxes: str | None,
    source: str | Source | None,
    min_confidence: float | None,
    ascending: bool,
    limit: int,
) -> None:
    """Find the frames or boxes with the most such pixels.

    Counted are pixels with values from --low to --high.

    VIDEO is a name or a pattern in quotes; videos without the layer are left out. A line has name,
    frame and count, and the box if there is one.
    """
    from vfsd.api.layer import BoxOptions, layers_of, top_of_layers

    root, paths = session.places([name])
    conditions: BoxOptions = {}
    if source is not None:
        conditions["source"] = source
    if min_confidence is not None:
        conditions["min_confidence"] = min_confidence
    with session.opened(root) as store:
        videos: Sequence[Video] = list(select_videos(store, paths).values())
        hits = top_of_layers(
            layers_of(videos, layer_name),
            limit,
            region,
            low=low,
            high=high,
            boxes=boxes,
            ascending=ascending,
            span=span,
            **conditions,
        )
        for one in hits:
            where = "" if one.box is None else f"  {one.box.label} {_box_text(one.box.box)}"
            text = f"{printable(one.video)} {one.frame:>8} {one.count:>9}{where}"
            session.print_result(hit_record(one), text)
        if not hits:
            session.remark("no boxes found on frames with a map")
        print_unknown_labels(session, store.catalog.detections.unknown_labels(boxes))


def _box_text(box: Sequence[float]) -> str:
    return ",".join(f"{edge:g}" for edge in box)


@define(
    "layer index",
    examples=[
        "vfsd -s videos layer index cam1/traffic.mp4",
        "vfsd -s videos layer index 'cam1/*' --json",
    ],
    fields=LAYER_FIELDS,
    exits=[*MAKING_EXITS],
    listing=True,
)
@click.argument("names", metavar="VIDEO...", nargs=-1, required=True)
def layer_index(session: Session, names: tuple[str, ...]) -> None:
    """Make the indexes of layers again.

    A VIDEO is a name or a pattern in quotes. Queries make an index that is missing, too.
    """
    root, paths = session.places(names)
    with session.opened(root, writing=True) as store:
        for video in select_videos(store, paths).values():
            for layer in video.layers.values():
                with Progress("indexing", len(layer), shown=session.shows_progress) as progress:
                    size = layer.make_index(on_progress=progress.reach)
                stored = "no room for the index" if size is None else human_bytes(size)
                text = f"{printable(layer.video)} {printable(layer.name)}: {stored}"
                session.report(layer_record(layer), text)
