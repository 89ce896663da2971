"""What a view takes: which of its pictures are copied, decoded and encoded, and from where."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from vfsd.codecs.containers.side_data import ALPHA, FIELDS
from vfsd.codecs.frames.raw_layouts import lossless_layout
from vfsd.core import view_path
from vfsd.core.frame_index import count_within
from vfsd.core.frame_table_pages import Ints
from vfsd.core.model import MediaInfo, PhysicalVideo
from vfsd.core.view_path import Request
from vfsd.core.view_request import View
from vfsd.read.explain import Decoding, Explanation, Source, explain, result_record
from vfsd.read.pack_pool import PackPool
from vfsd.read.plan import ReadPlan, Tiles, make_plan, plan_frames
from vfsd.read.tile_planner import Costs
from vfsd.read.unused_tiles import passed_over
from vfsd.tiling.cost import LOSSLESS, VIEW_ENCODE, Work
from vfsd.views.convert import view_picture_form
from vfsd.views.plan_steps import CopiedPart, MadePart, ViewPart
from vfsd.views.rendered_view import (
    ViewRendition,
    footage_for,
    rendition_of,
    require_frame,
    sound_of,
)
from vfsd.views.renderfacts import RenderFacts
from vfsd.views.side_data import lost_beside, lost_marks
from vfsd.views.source import Footage
from vfsd.views.transcode import EncodedRendition


@dataclass(frozen=True, slots=True)
class Step:
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
class ViewExplanation(Decoding):
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
    steps: tuple[Step, ...]  #: by time
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
            **result_record(self, self.physical, self.frames, self.size, self.psnr),
        }


def explained_view(
    footage: Footage, request: Request, packs: PackPool, facts: RenderFacts
) -> ViewExplanation:
    """What `request` takes, with `facts` of earlier renders; it decodes nothing.

    Raises as `rendition_of`.
    """
    physical = footage.physical
    media = physical.media
    request = request.of_region(media.display_width, media.display_height)
    rendition = rendition_of(footage, request, packs)
    view = request.sized(media.display_width, media.display_height)
    sound = sound_of(footage, request)
    parts = rendition.parts
    tiles = footage_for(request, footage).tiles
    found = {number: _decoding(part, tiles) for number, part in enumerate(parts) if _is_made(part)}
    return ViewExplanation(
        **_together(list(found.values())),
        view=view_path.unparse(request),
        made=rendition.made,
        why=rendition.why if isinstance(rendition, EncodedRendition) else None,
        cached=facts.count_cached(rendition),
        cacheable=len(rendition.storable),
        lost=_lost(rendition, media, found.values(), sound.codec),
        damaged=count_within(np.concatenate(list(map(_frames, parts))), physical.damage),
        sound=sound.codec,
        sound_made=sound.made,
        sound_from=sound.origin,
        silence=sound.silence,
        frames=sum(map(_pictures, parts)),
        size=view_picture_form(media, view, request.form).size,
        psnr=min(_psnr(part, found.get(number)) for number, part in enumerate(parts)),
        steps=tuple(
            step
            for number, part in enumerate(parts)
            for step in _steps(part, found.get(number), facts)
        ),
        physical=physical,
    )


def explained_still(footage: Footage, index: int, name: str) -> ViewExplanation:
    """What the picture file `name` of a frame takes.  Raises `OutOfRangeError`."""
    require_frame(footage, index)
    view = View(frames=(index, index + 1, 1))
    plan = make_plan(view, footage.physical, footage.table, tiles=footage.tiles)
    found = _explained(plan, footage, footage.tiles)
    return ViewExplanation(
        **_together([found]),
        view=name,
        made="decoded",
        why=None,
        cached=None,
        cacheable=0,
        lost="; ".join(_named(lost_marks(footage.physical.media, {}, copied=False))) or None,
        damaged=count_within(plan.frames, footage.physical.damage),
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


def decode_step(physical: PhysicalVideo, source: Source) -> Step:
    """What is decoded from one place."""
    segment = source.segment
    codec = physical.media.codec if segment is None else segment.profile
    size = round(source.work.bytes)
    return Step("decode", source.span, len(source.frames), source.kind, codec, size, source.seconds)


def _is_made(part: ViewPart) -> bool:
    return isinstance(part, MadePart)


def _decoding(part: ViewPart, tiles: Tiles | None) -> Explanation:
    """What is decoded for it, of all `tiles` that it may be made from."""
    assert isinstance(part, MadePart)
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
    return _explained(plan, footage, tiles)


def _explained(plan: ReadPlan, footage: Footage, tiles: Tiles | None) -> Explanation:
    unused = passed_over(plan, footage.table, tiles)
    return explain(plan, footage.table, _costs(footage), unused)


def _costs(footage: Footage) -> Costs:
    return footage.tiles.costs if footage.tiles is not None else Costs()


def _together(found: list[Explanation]) -> dict[str, Any]:
    return {
        "sources": tuple(source for one in found for source in one.sources),
        "untiled": sum((one.untiled for one in found), Work()),
        "untiled_seconds": sum(one.untiled_seconds for one in found),
        "passed_over": tuple(unused for one in found for unused in one.passed_over),
    }


def _pictures(part: ViewPart) -> int:
    return part.count if isinstance(part, CopiedPart) else len(part.pictures.frames)


def _frames(part: ViewPart) -> Ints:
    if isinstance(part, CopiedPart):
        return np.arange(part.frames.start, part.frames.stop, dtype=np.int64)
    return part.pictures.frames


def _psnr(part: ViewPart, found: Explanation | None) -> float:
    if isinstance(part, CopiedPart):
        return part.psnr
    assert found is not None
    return found.plan.psnr


def _steps(part: ViewPart, found: Explanation | None, facts: RenderFacts) -> Iterator[Step]:
    if isinstance(part, CopiedPart):
        yield Step("copy", part.frames, part.count, part.origin, part.codec, part.bytes, 0.0)
        return
    assert found is not None
    for source in found.sources:
        yield decode_step(found.plan.physical, source)
    if part.codec is not None:
        width, height = part.pictures.form.size
        count = len(part.pictures.frames)
        pixel = facts.encode_pixel.get(part.codec, VIEW_ENCODE[part.codec])
        seconds = pixel * count * width * height
        yield Step("encode", part.frames, count, None, part.codec, part.bytes, seconds)


def _lost(
    rendition: ViewRendition, media: MediaInfo, found: Iterable[Explanation], sound: str | None
) -> str | None:
    losses = list(_lost_samples(rendition, media, found))
    if media.interlaced and FIELDS not in rendition.marks and rendition.made in _ENCODED:
        losses.append("it says that its pictures are progressive, and they are interlaced")
    marks = lost_marks(media, rendition.marks, copied=rendition.made == "copied")
    said = (FIELDS, ALPHA) if "transparency" in losses else (FIELDS,)
    losses += _named([name for name in marks if name not in said])
    losses += lost_beside(media, sound)
    return "; ".join(losses) or None


_ENCODED = ("encoded", "stitched", "spliced")


def _named(marks: list[str]) -> list[str]:
    return [f"{name} of its pictures" for name in marks]


def _lost_samples(
    rendition: ViewRendition, media: MediaInfo, found: Iterable[Explanation]
) -> Iterator[str]:
    """What a lossless view has not of the samples."""
    if not isinstance(rendition, EncodedRendition) or not rendition.is_lossless:
        return
    kept = lossless_layout(media)
    if rendition.pixel_format != kept.layout:
        asked = rendition.pixel_format
        yield f"its pixels are {media.pixel_format}, and {asked} was asked for"
    elif kept.lost is not None:
        yield kept.lost
    if any(_is_lossy(source, media) for one in found for source in one.sources):
        yield "it is made from tiles that do not have just the samples of the original"


def _is_lossy(source: Source, media: MediaInfo) -> bool:
    """Whether its pictures are not those of the original."""
    segment = source.segment
    if segment is None:
        return False
    return segment.profile != LOSSLESS or segment.picture != (media.width, media.height)
