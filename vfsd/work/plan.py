"""Plans the units of an order.  The same catalog gives the same units; nothing is stored."""

from __future__ import annotations

import json
import os
import posixpath
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from vfsd.api.store import Store
from vfsd.api.video import Video, context_of
from vfsd.codecs.cells.cell_encoders import tile_codec
from vfsd.codecs.frames.to_array import needed_area
from vfsd.core.model import LogicalVideo, Segment, TilingReason
from vfsd.derive.deferred_compression import compressible
from vfsd.derive.proposals import Proposal
from vfsd.derive.rendition_plan import gop_frames
from vfsd.derive.tile_encoder import PlannedSegment, TileSettings
from vfsd.errors import UsageError
from vfsd.labels.detectors import block_starts, make_detector
from vfsd.maintenance.remote_backup import sizes_to_back_up
from vfsd.read.tile_planner import original_work
from vfsd.remote.fetch_protocol import require_bucket
from vfsd.tiling import Rect, TileLayout, parse_layout
from vfsd.tiling.cost import DecodeWork, encode_cost
from vfsd.tiling.layout import layout_around
from vfsd.validation import no_such_file, not_one_of
from vfsd.work.units import Unit
from vfsd.write.ingest_file import plan_tree

MIN_SECONDS, MAX_SECONDS = 5.0, 45.0
"""Limits for the length of a unit, in seconds of video."""
URL_SCHEMES = ("http", "https", "s3", "gs", "az")
"""Of sources of an ingest that are not files."""

_SECRET = re.compile("signature|token|secret|credential|password", re.IGNORECASE)
# Copying, hashing, checksums and the frame table of a file.
_INGEST_SECONDS_A_BYTE, _INGEST_SECONDS = 5e-9, 0.05
_BACKUP_BYTES = 1 << 30
_COPY_SECONDS_A_BYTE = 3e-9
# At level 1, in proportion to the level.
_COMPRESS_SECONDS_A_BYTE = 4e-9
_MOST_JSON = 1500
# Enough for all workers to be busy until the end.
_UNITS_PER_VIDEO = 16

PlanSegments = Callable[[Video], Sequence[PlannedSegment]]


def unit_seconds(video: Video) -> float:
    """Return the length of the units of a video, in seconds."""
    return min(MAX_SECONDS, max(MIN_SECONDS, float(video.duration) / _UNITS_PER_VIDEO))


def segment_units(
    video: Video,
    planned: Sequence[PlannedSegment],
    settings: TileSettings,
    verb: str,
    seconds: float | None = None,
) -> Iterator[Unit]:
    """Yield units of consecutive segments, each of about `seconds`."""
    limit = (unit_seconds(video) if seconds is None else seconds) * len(video) / video.duration
    some: list[PlannedSegment] = []
    for one in sorted(planned, key=lambda plan: plan.frames.start):
        if some and one.frames.stop - some[0].frames.start > limit:
            yield _segment_unit(video, some, settings, verb)
            some = []
        some.append(one)
    if some:
        yield _segment_unit(video, some, settings, verb)


def _segment_unit(
    video: Video, some: Sequence[PlannedSegment], settings: TileSettings, verb: str
) -> Unit:
    frames = range(some[0].frames.start, some[-1].frames.stop)
    decoded, work = _decoding(video, frames)
    model = encode_cost(settings.codec)
    area = video.original.media.width * video.original.media.height
    cost = decoded
    for one in some:
        pixels = sum(one.layout.tile(tile).area for tile in one.stored) * len(one.frames)
        share = pixels / (area * len(frames))
        cost += model.seconds(len(one.stored), pixels, work.bytes * share)
    spec = {**asdict(settings), "segments": segments_to_json(some)}
    return _unit(video, verb, frames, spec, cost)


def segments_to_json(some: Iterable[PlannedSegment]) -> list[list[Any]]:
    """Return [layout, tiles, gop, [[first, end], ...]] for each run of segments that are alike."""
    runs: list[list[Any]] = []
    for one in some:
        alike = [str(one.layout), None if one.tiles is None else list(one.tiles), one.gop]
        if not runs or runs[-1][:3] != alike:
            runs.append([*alike, []])
        runs[-1][3].append([one.frames.start, one.frames.stop])
    return runs


def segments_from_json(runs: Iterable[Sequence[Any]]) -> list[PlannedSegment]:
    """Return the segments of `segments_to_json`."""
    return [
        PlannedSegment(
            range(first, end),
            TileLayout.parse(layout),
            None if tiles is None else tuple(tiles),
            gop,
        )
        for layout, tiles, gop, frames in runs
        for first, end in frames
    ]


def detect_units(
    video: Video,
    spec: Mapping[str, Any],
    *,
    span: Any = None,
    seconds: float | None = None,
) -> Iterator[Unit]:
    """Yield units of whole blocks of frames; `spec` has the arguments of `make_detector`."""
    context = context_of(video)
    every = spec.get("every") or 1
    media = video.original.media
    detector = make_detector(
        spec["detector"],
        every=every,
        min_confidence=spec.get("min_confidence"),
        label=spec.get("label"),
        names=None if spec.get("names") is None else Path(spec["names"]),
    )
    wanted = detector.request(media.display_width, media.display_height)
    if every == "key":
        numbers = [int(frame) for frame in context.table.keyframes()]
    else:
        numbers = list(range(0, len(video), every))
    chosen = context.frames_of_span(span)
    limit = (unit_seconds(video) if seconds is None else seconds) * len(video) / video.duration
    bounds = [chosen.start]
    starts = [numbers[at] for at in block_starts(len(numbers), wanted.block)]
    inner = [at for at in starts if chosen.start < at < chosen.stop]
    for at, following in pairwise([*inner, chosen.stop]):
        if following - bounds[-1] > limit and at > bounds[-1]:
            bounds.append(at)
    for first, end in pairwise([*bounds, chosen.stop]):
        if first < end:
            frames = range(first, end)
            yield _unit(video, "detect", frames, spec, 2 * _decoding(video, frames)[0])


def whole_unit(video: Video, verb: str, spec: Mapping[str, Any]) -> Unit:
    """Return the unit of a verb that works on whole files."""
    frames = range(len(video))
    # Checksums cost about a nanosecond a byte.
    cost = video.info.size * 1e-9 if verb == "scrub" else _decoding(video, frames)[0]
    if verb == "replace":
        area = video.original.media.width * video.original.media.height * len(video)
        # All is decoded, encoded, and decoded twice for the comparison.
        cost = 3 * cost + encode_cost("small").seconds(1, area, video.info.size)
    return _unit(video, verb, frames, spec, cost)


def ingest_units(
    sources: Iterable[tuple[str, str, int]], spec: Mapping[str, Any]
) -> Iterator[Unit]:
    """Yield a unit for each (source, name, bytes) of a file or URL.

    `spec` may have stream, size, tags, verify and skip_refused.  Raises `UsageError` for a source
    that an order must not store.
    """
    for source, name, size in sources:
        try:
            f"{source}{name}".encode()
        except UnicodeEncodeError:
            raise UsageError(f"the name of {source!r} must be in UTF-8 for an order") from None
        if "://" in source:
            parts = urlsplit(source)
            if parts.scheme not in URL_SCHEMES:
                raise not_one_of("a URL", source, [f"{one}://..." for one in URL_SCHEMES])
            if "@" in parts.netloc or _SECRET.search(parts.query):
                raise UsageError(
                    f"the URL of {name!r} has a secret in it, which the catalog would keep",
                    hint="give the workers the credentials by their environment",
                )
        given = {key: value for key, value in spec.items() if value not in (None, False, (), [])}
        cost = size * _INGEST_SECONDS_A_BYTE + _INGEST_SECONDS
        full = {"source": source, "name": name, **given}
        yield Unit("ingest", None, None, None, full, round(cost, 6))


def named_sources(
    sources: str | Path | Sequence[str | Path], to: str
) -> Iterator[tuple[str, str, int]]:
    """Yield (source, name, bytes) of files, of those below directories, and of URLs.

    Raises `NotFoundError` for a file that this host cannot read.
    """
    for given in [sources] if isinstance(sources, str | Path) else sources:
        text = os.fspath(given)
        if "://" in text:
            yield text, posixpath.join(to, posixpath.basename(urlsplit(text).path)), 0
            continue
        path = Path(os.path.abspath(text))
        if path.is_dir():
            for one in plan_tree(path, posixpath.join(to, path.name)):
                yield os.fspath(one.path), one.name, one.size
        elif path.is_file():
            yield os.fspath(path), posixpath.join(to, path.name), path.stat().st_size
        else:
            raise no_such_file(path)


def backup_units(store: Store, spec: Mapping[str, Any]) -> Iterator[Unit]:
    """Yield units of objects by the beginnings of their keys; `spec` has to, options, derived."""
    require_bucket(str(spec["to"]), spec.get("options") or {})
    sizes = sizes_to_back_up(store.parts, derived=spec.get("derived", True))
    digits = 1 if sum(sizes.values()) < 16 * _BACKUP_BYTES else 2
    slices = Counter[str]()
    for key, size in sizes.items():
        slices[key[:digits]] += size
    some: list[str] = []
    for beginning in sorted(slices):
        some.append(beginning)
        size = sum(slices[one] for one in some)
        if size >= _BACKUP_BYTES or beginning == max(slices):
            full = {**spec, "keys": some}
            yield Unit("backup", None, None, None, full, round(size * _COPY_SECONDS_A_BYTE, 6))
            some = []


def compress_units(video: Video, level: int, seconds: float | None = None) -> Iterator[Unit]:
    """Yield units of the lossless segments that are compressed less than `level`."""
    limit = unit_seconds(video) if seconds is None else seconds
    context = context_of(video)
    some: list[Segment] = []

    def unit() -> Unit:
        frames = range(some[0].first_frame, max(one.end_frame for one in some))
        spec = {"level": level, "segments": [one.id for one in some]}
        size = sum(one.size for one in some)
        return _unit(video, "compress", frames, spec, size * _COMPRESS_SECONDS_A_BYTE * level)

    found = compressible(context.parts, video.info, level)
    for one in sorted(found, key=lambda segment: (segment.first_frame, segment.id)):
        frames = one.end_frame - (some[0].first_frame if some else one.first_frame)
        if some and frames > limit * len(video) / video.duration:
            yield unit()
            some = []
        some.append(one)
    if some:
        yield unit()


def tune_units(
    proposals: Iterable[Proposal], open_video: Callable[[LogicalVideo], Video]
) -> Iterator[Unit]:
    """Yield units of proposals, each of one video.

    Cached views are left to `vfsd tune --apply`: no other host has them.
    """
    by_video: dict[int, list[Proposal]] = {}
    for one in proposals:
        if one.candidate is None:
            by_video.setdefault(one.video.id, []).append(one)
    for some in by_video.values():
        video = open_video(some[0].video)
        limit = unit_seconds(video) * len(video) / video.duration
        some.sort(key=lambda one: (str(one.settings), one.plan.layout.width, one.plan.frames.start))
        group: list[Proposal] = []
        size = frames = 0
        for one in some:
            text = len(json.dumps(proposal_to_json(one)))
            if group and (size + text > _MOST_JSON or frames + len(one.plan.frames) > limit):
                yield _tune_unit(video, group)
                group, size, frames = [], 0, 0
            group.append(one)
            size, frames = size + text, frames + len(one.plan.frames)
        yield _tune_unit(video, group)


def _tune_unit(video: Video, group: Sequence[Proposal]) -> Unit:
    first = min(one.plan.frames.start for one in group)
    frames = range(first, max(one.plan.frames.stop for one in group))
    spec = {"proposals": [proposal_to_json(one) for one in group]}
    return _unit(video, "tune", frames, spec, sum(one.seconds for one in group))


def proposal_to_json(one: Proposal) -> list[Any]:
    """Return the plain values of a proposal without a candidate."""
    settings = one.settings
    reasons = [
        [each.label, each.region and str(each.region), each.reads, each.size and list(each.size)]
        for each in one.reasons
    ]
    figures = [one.reads, one.seconds, one.bytes, one.spent, one.saved]
    return [
        segments_to_json([one.plan]),
        [settings.codec, settings.psnr, settings.quality],
        reasons,
        [round(figure, 4) for figure in figures],
        sorted(one.present),
    ]


def proposals_from_json(video: LogicalVideo, values: Iterable[Sequence[Any]]) -> list[Proposal]:
    """Return the proposals of `proposal_to_json` for a video."""
    return [
        Proposal(
            video,
            segments_from_json(plan)[0],
            TileSettings(*settings),
            tuple(
                TilingReason(
                    label,
                    region and Rect.parse(region),
                    count,
                    None if size is None else (size[0], size[1]),
                )
                for label, region, count, size in reasons
            ),
            figures[0],
            figures[1],
            figures[2],
            figures[3],
            figures[4],
            frozenset(present),
        )
        for plan, settings, reasons, figures, present in values
    ]


def tile_plan(
    settings: TileSettings,
    *,
    layout: str | TileLayout | None = None,
    roi: Any = None,
    around: str | None = None,
    size: tuple[int, int] | None = None,
    span: Any = None,
    gop: Any = None,
) -> PlanSegments:
    """Return a function that plans the segments of a video.

    Args:
        settings: The codec and the quality.
        layout: As for `VideoTiles.retile`, of the stored picture.
        roi: A region of the displayed frame: one tile around it is stored.
        around: Labels: tiles around their boxes, where they pay.
        size: Whole frames in this size of the displayed frame: a rendition.
        span: Seconds, start inclusive and end exclusive; default: all frames.
        gop: As for `VideoTiles.retile`.

    Raises `UsageError` unless exactly one of `layout`, `roi`, `around` and `size` is given.
    """
    if sum(one is not None for one in (layout, roi, around, size)) != 1:
        raise UsageError("give one of layout, roi, around and size")

    def plan(video: Video) -> Sequence[PlannedSegment]:
        media, context = video.original.media, context_of(video)
        codec = tile_codec(settings.codec, media)
        picture = None
        tiles: tuple[int, ...] | None = None
        if size is not None:
            picture = size if media.rotation % 180 == 0 else size[::-1]
        length = gop_frames(context, gop, picture, settings)
        if around is not None:
            found = video.tiles.around(around, span=span, codec=settings.codec)
            return found if gop is None else [replace(one, gop=length) for one in found]
        if picture is not None:
            chosen = TileLayout.untiled(*picture)
        elif roi is not None:
            needed = needed_area(media, "rgb24", Rect(*roi), None)
            chosen = layout_around(needed, media.width, media.height, codec.rules)
            tiles = tuple(chosen.covering(needed)) if codec.takes_parts else None
        elif isinstance(layout, TileLayout):
            chosen = layout
        else:
            chosen = parse_layout(str(layout), media.width, media.height, codec.rules)
        return [
            PlannedSegment(frames, chosen, tiles, length)
            for frames in context.sequences(span, gop=length)
        ]

    return plan


def _decoding(video: Video, frames: range) -> tuple[float, DecodeWork]:
    """Return the expected CPU seconds of decoding frames of the original, and the work."""
    context = context_of(video)
    work = original_work(video.original, context.table, frames)
    return context.costs.of_original(video.original).seconds(work), work


def _unit(video: Video, verb: str, frames: range, spec: Mapping[str, Any], cost: float) -> Unit:
    info = video.info
    return Unit(verb, info.id, info.digest, (frames.start, frames.stop), spec, round(cost, 6))
