"""What a view costs: which frames are copied, decoded and encoded, and from which tiles.

`ViewExplanation` is the record for `vfsd explain` and for the files below `explain/`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from vfsd.codecs.containers.stream_side_data import ALPHA, FIELD_ORDER
from vfsd.codecs.frames.pixel_layouts import lossless_layout
from vfsd.core import view_path
from vfsd.core.frame_selection import count_in_ranges
from vfsd.core.frame_table_pages import Ints
from vfsd.core.model import MediaInfo, PhysicalVideo
from vfsd.core.view_path import ViewSpec
from vfsd.core.view_request import View
from vfsd.errors import NotFoundError
from vfsd.read.explain_read import (
    DecodeSummary,
    ReadExplanation,
    SourceRun,
    explain_plan,
    find_unused_tiles,
    result_json,
)
from vfsd.read.pack_pool import PackPool
from vfsd.read.read_plan import AvailableTiles, ReadPlan, make_plan, plan_frames
from vfsd.read.tile_planner import DecodeCosts
from vfsd.tiling.cost import LOSSLESS, VIEW_ENCODE, DecodeWork
from vfsd.views.cached_views import RenderHistory
from vfsd.views.rendered_view import (
    PlannedView,
    TextView,
    audio_summary,
    plan_view,
    require_frame,
    view_input_for,
)
from vfsd.views.transcode import TranscodedView
from vfsd.views.view_frames import decoded_picture_form
from vfsd.views.view_input import ViewInput
from vfsd.views.view_side_data import lost_side_data, lost_streams_and_tags
from vfsd.views.view_slots import CopiedPart, RenderedPart, ViewPart


@dataclass(frozen=True, slots=True)
class ExplainStep:
    """Something that is done for pictures of a view."""

    does: str  #: copy, decode or encode
    frames: range  #: of the video, from the first to after the last
    count: int  #: of frames that are decoded, each once, or else of pictures
    origin: str | None
    """Where they come from: original, tiles or joined; None of what is encoded."""
    codec: str  #: of what is copied, decoded or encoded
    bytes: int
    """Of packets that are copied or decoded; of what is encoded the most that it may take."""
    seconds: float  #: CPU time, predicted; none is told of copying

    @property
    def record(self) -> dict[str, Any]:
        return {
            "does": self.does,
            "frames": [self.frames.start, self.frames.stop],
            "count": self.count,
            "from": self.origin,
            "codec": self.codec,
            "bytes": self.bytes,
            "seconds": self.seconds,
        }


@dataclass(frozen=True, slots=True)
class ViewExplanation(DecodeSummary):
    """How a view is made.  What is decoded is that of the pictures that are not copied."""

    view: str  #: its name, in the one form that it has
    made: str  #: copied, stitched, spliced, encoded or decoded
    why: str | None  #: of what is encoded: why none of its packets are copied
    damaged: int | None
    """How many of its pictures show damage of the file; None: no full decode has examined that."""
    cached: int | None
    """How many of its parts the cache holds, which need no work; None if unknown."""
    cacheable: int
    """How many parts the cache can hold: segments of about a second, or a picture."""
    lost: str | None
    """What the view has not of the source: samples of a lossless one, side data, streams, tags."""
    sound: str | None  #: the codec of the sound that it carries
    sound_made: str | None  #: whether the sound is copied or transcoded
    sound_from: str | None  #: the codec of the stored sound
    silence: str | None  #: why it carries none
    frames: int  #: pictures that it shows
    size: tuple[int, int]
    psnr: float
    """dB that the pictures that it is made from have at least against the very first original;
    infinite where they are its own, 0 where nobody has measured it."""
    steps: tuple[ExplainStep, ...]  #: by time
    physical: PhysicalVideo  #: the stored encoding

    @property
    def record(self) -> dict[str, Any]:
        """As a JSON object; see ``vfsd explain`` for its keys."""
        return {
            "view": self.view,
            "made": self.made,
            "why": self.why,
            "lost": self.lost,
            "sound": self.sound,
            "sound_made": self.sound_made,
            "sound_from": self.sound_from,
            "silence": self.silence,
            "damaged": self.damaged,
            "cached": self.cached,
            "cacheable": self.cacheable,
            "steps": [step.record for step in self.steps],
            **result_json(self, self.physical, self.frames, self.size, self.psnr),
        }


def explain_request(
    footage: ViewInput, request: ViewSpec, packs: PackPool, facts: RenderHistory
) -> ViewExplanation:
    """What `request` takes, with `facts` of earlier renders; it decodes nothing.

    Raises as `plan_view`.
    """
    physical = footage.physical
    media = physical.media
    request = request.without_crop(media.display_width, media.display_height)
    rendition = plan_view(footage, request, packs)
    view = request.resolve(media.display_width, media.display_height)
    sound = audio_summary(footage, request)
    parts = rendition.parts
    tiles = view_input_for(request, footage).tiles
    found = {
        number: _decode_source(part, tiles)
        for number, part in enumerate(parts)
        if _is_rendered(part)
    }
    return ViewExplanation(
        **_merged_steps(list(found.values())),
        view=view_path.format_view_path(request),
        made=rendition.made,
        why=rendition.why if isinstance(rendition, TranscodedView) else None,
        cached=facts.count_cached(rendition),
        cacheable=len(rendition.storable),
        lost=_lost_data(rendition, media, found.values(), sound.codec),
        damaged=count_in_ranges(np.concatenate(list(map(_frames_of_part, parts))), physical.damage),
        sound=sound.codec,
        sound_made=sound.made,
        sound_from=sound.origin,
        silence=sound.silence,
        frames=sum(map(_picture_count, parts)),
        size=decoded_picture_form(media, view, request.form).size,
        psnr=min(_psnr(part, found.get(number)) for number, part in enumerate(parts)),
        steps=tuple(
            step
            for number, part in enumerate(parts)
            for step in _steps(part, found.get(number), facts)
        ),
        physical=physical,
    )


def explain_still(footage: ViewInput, index: int, name: str) -> ViewExplanation:
    """What the picture file `name` of a frame takes.  Raises `OutOfRangeError`."""
    require_frame(footage, index)
    view = View(frames=(index, index + 1, 1))
    plan = make_plan(view, footage.physical, footage.table, tiles=footage.tiles)
    found = _explain_planned(plan, footage, footage.tiles)
    return ViewExplanation(
        **_merged_steps([found]),
        view=name,
        made="decoded",
        why=None,
        cached=None,
        cacheable=0,
        lost="; ".join(
            _picture_data_names(lost_side_data(footage.physical.media, {}, copied=False))
        )
        or None,
        damaged=count_in_ranges(plan.frames, footage.physical.damage),
        sound=None,
        sound_made=None,
        sound_from=None,
        silence=None,
        frames=1,
        size=plan.size,
        psnr=plan.psnr,
        steps=tuple(decode_step(footage.physical, source) for source in found.sources),
        physical=footage.physical,
    )


def decode_step(physical: PhysicalVideo, source: SourceRun) -> ExplainStep:
    """What is decoded from one place."""
    segment = source.segment
    codec = physical.media.codec if segment is None else segment.profile
    size = round(source.work.bytes)
    return ExplainStep(
        "decode", source.span, len(source.frames), source.kind, codec, size, source.seconds
    )


def _is_rendered(part: ViewPart) -> bool:
    return isinstance(part, RenderedPart)


def _decode_source(part: ViewPart, tiles: AvailableTiles | None) -> ReadExplanation:
    """What is decoded for it, of all `tiles` that it may be made from."""
    assert isinstance(part, RenderedPart)
    footage, form = part.pictures.footage, part.pictures.form
    plan = plan_frames(
        part.pictures.frames,
        View(region=form.region, size=form.size),
        # The ends of what is spliced lie as they are stored: neither turned nor mirrored.
        replace(footage.physical, media=form.media),
        footage.table,
        pixel_format=form.pixel_format,
        tiles=footage.tiles,
    )
    return _explain_planned(plan, footage, tiles)


def _explain_planned(
    plan: ReadPlan, footage: ViewInput, tiles: AvailableTiles | None
) -> ReadExplanation:
    unused = find_unused_tiles(plan, footage.table, tiles)
    return explain_plan(plan, footage.table, _costs(footage), unused)


def _costs(footage: ViewInput) -> DecodeCosts:
    return footage.tiles.costs if footage.tiles is not None else DecodeCosts()


def _merged_steps(found: list[ReadExplanation]) -> dict[str, Any]:
    return {
        "sources": tuple(source for one in found for source in one.sources),
        "untiled": sum((one.untiled for one in found), DecodeWork()),
        "untiled_seconds": sum(one.untiled_seconds for one in found),
        "passed_over": tuple(unused for one in found for unused in one.passed_over),
    }


def _picture_count(part: ViewPart) -> int:
    return part.count if isinstance(part, CopiedPart) else len(part.pictures.frames)


def _frames_of_part(part: ViewPart) -> Ints:
    if isinstance(part, CopiedPart):
        return np.arange(part.frames.start, part.frames.stop, dtype=np.int64)
    return part.pictures.frames


def _psnr(part: ViewPart, found: ReadExplanation | None) -> float:
    if isinstance(part, CopiedPart):
        return part.psnr
    assert found is not None
    return found.plan.psnr


def _steps(
    part: ViewPart, found: ReadExplanation | None, facts: RenderHistory
) -> Iterator[ExplainStep]:
    if isinstance(part, CopiedPart):
        yield ExplainStep("copy", part.frames, part.count, part.origin, part.codec, part.bytes, 0.0)
        return
    assert found is not None
    for source in found.sources:
        yield decode_step(found.plan.physical, source)
    if part.codec is not None:
        width, height = part.pictures.form.size
        count = len(part.pictures.frames)
        pixel = facts.encode_pixel.get(part.codec, VIEW_ENCODE[part.codec])
        seconds = pixel * count * width * height
        yield ExplainStep("encode", part.frames, count, None, part.codec, part.bytes, seconds)


def _lost_data(
    rendition: PlannedView, media: MediaInfo, found: Iterable[ReadExplanation], sound: str | None
) -> str | None:
    losses = list(_lost_samples(rendition, media, found))
    if media.interlaced and FIELD_ORDER not in rendition.marks and rendition.made in _ENCODED:
        losses.append("it says that its pictures are progressive, and they are interlaced")
    marks = lost_side_data(media, rendition.marks, copied=rendition.made == "copied")
    said = (FIELD_ORDER, ALPHA) if "transparency" in losses else (FIELD_ORDER,)
    losses += _picture_data_names([name for name in marks if name not in said])
    losses += lost_streams_and_tags(media, sound)
    return "; ".join(losses) or None


_ENCODED = ("encoded", "stitched", "spliced")


def _picture_data_names(marks: list[str]) -> list[str]:
    return [f"{name} of its pictures" for name in marks]


def _lost_samples(
    rendition: PlannedView, media: MediaInfo, found: Iterable[ReadExplanation]
) -> Iterator[str]:
    """What a lossless view has not of the samples."""
    if not isinstance(rendition, TranscodedView) or not rendition.is_lossless:
        return
    kept = lossless_layout(media)
    if rendition.pixel_format != kept.layout:
        asked = rendition.pixel_format
        yield f"its pixels are {media.pixel_format}, and {asked} was asked for"
    elif kept.lost is not None:
        yield kept.lost
    if any(_is_lossy(source, media) for one in found for source in one.sources):
        yield "it is made from tiles that do not have just the samples of the original"


def _is_lossy(source: SourceRun, media: MediaInfo) -> bool:
    """Whether its pictures are not those of the original."""
    segment = source.segment
    if segment is None:
        return False
    return segment.profile != LOSSLESS or segment.picture != (media.width, media.height)


EXPLAIN_DIR = "explain"

_STILLS_DIR = "frames"
_EXPLAIN_STILLS_DIR = f"{EXPLAIN_DIR}/{_STILLS_DIR}"
_JSON_SUFFIX = ".json"


def is_below_explain(path: str) -> bool:
    return path == EXPLAIN_DIR or path.startswith(EXPLAIN_DIR + "/")


def is_explain_dir(path: str) -> bool:
    """Neither lists a file: any view can be asked for."""
    return path in (EXPLAIN_DIR, _EXPLAIN_STILLS_DIR)


def explain_file(
    name: str, footage: ViewInput, packs: PackPool, path: str, facts: RenderHistory
) -> TextView:
    """The file at `path`, about a view of the video called `name`.

    Raises what the view itself would.
    """
    if not path.endswith(_JSON_SUFFIX) or is_explain_dir(path):
        raise NotFoundError(f"no such view: {path!r}")
    asked = path.removeprefix(EXPLAIN_DIR + "/").removesuffix(_JSON_SUFFIX)
    content = explain_view_path(footage, packs, asked, facts).record
    text = json.dumps({"name": name, **content}, indent=2) + "\n"
    return TextView(text.encode())


def explain_view_path(
    footage: ViewInput, packs: PackPool, path: str, facts: RenderHistory
) -> ViewExplanation:
    """What the view, or the still, at a path below ``NAME@/`` takes.  Raises what it would."""
    folder, slash, file = path.rpartition("/")
    if not slash:
        return explain_request(footage, view_path.parse_view_path(path), packs, facts)
    if folder != _STILLS_DIR:
        raise NotFoundError(f"no such view: {path!r}")
    index, _ = view_path.parse_still_name(file)
    return explain_still(footage, index, path)
