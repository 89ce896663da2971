"""The cost of a view: which frames are copied, decoded and encoded, and from which tiles.

`ViewExplanation` is the record for `vfsd explain` and for the files below `explain/`;
`explanation_text` writes it in sentences for the files below `why/`.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import numpy as np

from vfsd.codecs.containers.tracks import FIELD_ORDER
from vfsd.codecs.frames.planes import ALPHA, lossless_layout
from vfsd.core import view_request
from vfsd.core.frame_table_pages import Ints
from vfsd.core.frames import count_in_ranges
from vfsd.core.model import MediaInfo, PhysicalVideo
from vfsd.core.timebase import human_bytes
from vfsd.core.view_request import View, ViewSpec
from vfsd.errors import NotFoundError
from vfsd.read.explain_read import (
    DecodeSummary,
    ReadExplanation,
    SourceRun,
    UnusedReason,
    explain_plan,
    find_unused_tiles,
    result_json,
    summary_html,
)
from vfsd.read.read_context import ReadContext
from vfsd.read.read_plan import AvailableTiles, ReadPlan, make_plan, plan_frames
from vfsd.read.tile_planner import DecodeCosts
from vfsd.tiling.cost import LOSSLESS, VIEW_ENCODE, DecodeWork
from vfsd.views.render_cache import RenderHistory
from vfsd.views.rendered_view import (
    PlannedView,
    TextView,
    audio_summary,
    plan_view,
    require_frame,
    view_input_for,
)
from vfsd.views.sound_view import SoundView
from vfsd.views.transcode import TranscodedView
from vfsd.views.view_input import (
    ViewInput,
    decoded_picture_form,
    lost_side_data,
    lost_streams_and_tags,
)
from vfsd.views.view_slots import CopiedPart, RenderedPart, ViewPart

_ENCODED = ("encoded", "stitched", "spliced")
EXPLAIN_DIR = "explain"
_STILLS_DIR = "frames"
EXPLAIN_DIRS = (EXPLAIN_DIR, f"{EXPLAIN_DIR}/{_STILLS_DIR}")
"""Both list no files, because any view can be explained."""
_JSON_SUFFIX = ".json"


@dataclass(frozen=True, slots=True)
class ExplainStep:
    """One operation on pictures of a view."""

    does: str  #: copy, decode or encode
    frames: range  #: of the video, half-open
    count: int  #: number of decoded frames, each counted once, or of pictures
    origin: str | None
    """Source of the pictures: original, tiles or joined; None for encoding."""
    codec: str  #: of the packets
    bytes: int
    """Bytes of the copied or decoded packets; for encoding, the maximum."""
    seconds: float  #: predicted CPU time; 0 for copying

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
    """How a view is made.  The decode summary covers the pictures that are not copied."""

    view: str  #: its canonical name
    made: str  #: copied, stitched, spliced, encoded or decoded
    why: str | None  #: for encoded views: why none of its packets are copied
    damaged: int | None
    """Number of its pictures that show damage of the file; None without a full decode."""
    cached: int | None
    """Number of its slots in the cache, which need no work; None if unknown."""
    cacheable: int
    """Number of slots that the cache can hold: segments of about a second, or a picture."""
    lost: str | None
    """Losses against the source: lossless samples, side data, streams, tags."""
    sound: str | None  #: the codec of its sound
    sound_made: str | None  #: whether the sound is copied or transcoded
    sound_from: str | None  #: the codec of the stored sound
    silence: str | None  #: why it has no sound; of wav, which parts are silent
    frames: int  #: number of pictures
    size: tuple[int, int]
    psnr: float
    """Minimum dB of its source pictures against the first original; infinite for the original
    itself, 0 if it was never measured."""
    steps: tuple[ExplainStep, ...]  #: by time
    physical: PhysicalVideo  #: the stored encoding

    def _repr_html_(self) -> str:
        """Return how it is made and the cost of decoding, for a notebook."""
        size = f"{self.size[0]}x{self.size[1]}"
        why = "" if self.why is None else f" ({self.why})"
        title = f"{self.view}: {self.made}{why}, {self.frames} frames of {size}"
        return summary_html(self, self.physical, title)

    @property
    def record(self) -> dict[str, Any]:
        """The JSON object; see ``vfsd explain`` for its keys."""
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
    source: ViewInput, request: ViewSpec, tools: ReadContext, facts: RenderHistory
) -> ViewExplanation:
    """Return the cost of `request`, with `facts` from earlier renders, without decoding.

    Raises as `plan_view` does.
    """
    physical = source.physical
    media = physical.media
    # Equal views get equal keys, so a crop that removes nothing is dropped first.
    request = request.without_crop(media.display_width, media.display_height)
    rendered = plan_view(source, request, tools)
    if isinstance(rendered, SoundView):
        return _explain_sound(source, request, rendered)
    view = request.resolve(media.display_width, media.display_height)
    sound = audio_summary(source, request)
    parts = rendered.parts
    tiles = view_input_for(request, source).tiles
    found = {
        number: _decode_source(part, tiles)
        for number, part in enumerate(parts)
        if isinstance(part, RenderedPart)
    }
    return ViewExplanation(
        **_merged_steps(list(found.values())),
        view=view_request.format_view_path(request),
        made=rendered.method,
        why=rendered.why if isinstance(rendered, TranscodedView) else None,
        cached=facts.count_cached(rendered),
        cacheable=len(rendered.storable),
        lost=_lost_data(rendered, media, found.values(), sound.codec),
        damaged=count_in_ranges(np.concatenate(list(map(_frames_of_part, parts))), physical.damage),
        sound=sound.codec,
        sound_made=sound.method,
        sound_from=sound.origin,
        silence=sound.silence,
        frames=sum(part.count for part in parts),
        size=decoded_picture_form(media, view, request.form).size,
        psnr=min(_psnr(part, found.get(number)) for number, part in enumerate(parts)),
        steps=tuple(
            step
            for number, part in enumerate(parts)
            for step in _steps(part, found.get(number), facts)
        ),
        physical=physical,
    )


def _explain_sound(source: ViewInput, request: ViewSpec, rendered: SoundView) -> ViewExplanation:
    sound = audio_summary(source, request)
    return ViewExplanation(
        **_merged_steps([]),
        view=view_request.format_view_path(request),
        made=rendered.method,
        why=None,
        cached=None,
        cacheable=0,
        lost="pictures",
        damaged=0,
        sound=sound.codec,
        sound_made=sound.method,
        sound_from=sound.origin,
        silence=sound.silence,
        frames=0,
        size=(0, 0),
        psnr=math.inf,
        steps=(),
        physical=source.physical,
    )


def explain_still(source: ViewInput, index: int, name: str) -> ViewExplanation:
    """Return the cost of the picture file `name` of a frame.  Raises `OutOfRangeError`."""
    require_frame(source, index)
    view = View(frames=(index, index + 1, 1))
    plan = make_plan(view, source.physical, source.table, tiles=source.tiles)
    found = _explain_planned(plan, source, source.tiles)
    return ViewExplanation(
        **_merged_steps([found]),
        view=name,
        made="decoded",
        why=None,
        cached=None,
        cacheable=0,
        lost="; ".join(_picture_data_names(lost_side_data(source.physical.media, {}, copied=False)))
        or None,
        damaged=count_in_ranges(plan.frames, source.physical.damage),
        sound=None,
        sound_made=None,
        sound_from=None,
        silence=None,
        frames=1,
        size=plan.size,
        psnr=plan.psnr,
        steps=tuple(decode_step(source.physical, run) for run in found.sources),
        physical=source.physical,
    )


def decode_step(physical: PhysicalVideo, run: SourceRun) -> ExplainStep:
    """Return the step for the frames of one source."""
    segment = run.segment
    codec = physical.media.codec if segment is None else segment.profile
    size = round(run.work.bytes)
    return ExplainStep("decode", run.span, len(run.frames), run.kind, codec, size, run.seconds)


def _decode_source(part: RenderedPart, tiles: AvailableTiles | None) -> ReadExplanation:
    """Return what is decoded for a part, and which of `tiles` are not used."""
    source, form = part.pictures.source, part.pictures.form
    plan = plan_frames(
        part.pictures.frames,
        View(region=form.region, size=form.size),
        # The encoded ends of a smart cut are neither rotated nor mirrored.
        replace(source.physical, media=form.media),
        source.table,
        pixel_format=form.pixel_format,
        tiles=source.tiles,
    )
    return _explain_planned(plan, source, tiles)


def _explain_planned(
    plan: ReadPlan, source: ViewInput, tiles: AvailableTiles | None
) -> ReadExplanation:
    unused = find_unused_tiles(plan, source.table, tiles)
    return explain_plan(plan, source.table, _costs(source), unused)


def _costs(source: ViewInput) -> DecodeCosts:
    return source.tiles.costs if source.tiles is not None else DecodeCosts()


def _merged_steps(found: list[ReadExplanation]) -> dict[str, Any]:
    return {
        "sources": tuple(run for one in found for run in one.sources),
        "untiled": sum((one.untiled for one in found), DecodeWork()),
        "untiled_seconds": sum(one.untiled_seconds for one in found),
        "passed_over": tuple(unused for one in found for unused in one.passed_over),
    }


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
    for run in found.sources:
        yield decode_step(found.plan.physical, run)
    if part.codec is not None:
        width, height = part.pictures.form.size
        pixel = facts.encode_pixel.get(part.codec, VIEW_ENCODE[part.codec])
        seconds = pixel * part.count * width * height
        yield ExplainStep("encode", part.frames, part.count, None, part.codec, part.bytes, seconds)


def _lost_data(
    rendered: PlannedView, media: MediaInfo, found: Iterable[ReadExplanation], sound: str | None
) -> str | None:
    losses = list(_lost_samples(rendered, media, found))
    if media.interlaced and FIELD_ORDER not in rendered.marks and rendered.method in _ENCODED:
        losses.append("it is marked as progressive, and its pictures are interlaced")
    pixels = rendered.pixel_format if isinstance(rendered, TranscodedView) else None
    is_copied = all(
        isinstance(part, CopiedPart) and part.origin == "original" for part in rendered.parts
    )
    marks = lost_side_data(media, rendered.marks, copied=is_copied, pixel_format=pixels)
    mentioned = (FIELD_ORDER, ALPHA) if "transparency" in losses else (FIELD_ORDER,)
    losses += _picture_data_names([name for name in marks if name not in mentioned])
    losses += lost_streams_and_tags(media, sound)
    return "; ".join(losses) or None


def _picture_data_names(marks: list[str]) -> list[str]:
    return [f"{name} of its pictures" for name in marks]


def _lost_samples(
    rendered: PlannedView, media: MediaInfo, found: Iterable[ReadExplanation]
) -> Iterator[str]:
    """Yield what a lossless view loses of the samples."""
    if not isinstance(rendered, TranscodedView) or not rendered.is_lossless:
        return
    kept = lossless_layout(media)
    if rendered.pixel_format != kept.layout:
        asked = rendered.pixel_format
        yield f"its pixels are {media.pixel_format}, and {asked} was requested"
    elif kept.lost is not None:
        yield kept.lost
    if any(_is_lossy(run, media) for one in found for run in one.sources):
        yield "it is made from tiles that do not have exactly the samples of the original"


def _is_lossy(run: SourceRun, media: MediaInfo) -> bool:
    """Return whether its pictures differ from the original."""
    segment = run.segment
    if segment is None:
        return False
    return segment.profile != LOSSLESS or segment.picture != (media.width, media.height)


def explain_file(
    name: str, source: ViewInput, tools: ReadContext, path: str, facts: RenderHistory
) -> TextView:
    """Return the file at `path` about a view of the video called `name`.

    Raises what opening the view would.
    """
    if not path.endswith(_JSON_SUFFIX) or path in EXPLAIN_DIRS:
        raise NotFoundError(f"no such view: {path!r}")
    asked = path.removeprefix(EXPLAIN_DIR + "/").removesuffix(_JSON_SUFFIX)
    content = explain_view_path(source, tools, asked, facts).record
    text = json.dumps({"name": name, **content}, indent=2) + "\n"
    return TextView(text.encode())


def explain_view_path(
    source: ViewInput, tools: ReadContext, path: str, facts: RenderHistory
) -> ViewExplanation:
    """Return the cost of the view or still at a path below ``NAME@/``.  Raises what opening it
    would.
    """
    folder, slash, file = path.rpartition("/")
    if not slash:
        return explain_request(source, view_request.parse_view_path(path), tools, facts)
    if folder != _STILLS_DIR:
        raise NotFoundError(f"no such view: {path!r}")
    index, _ = view_request.parse_still_name(file)
    return explain_still(source, index, path)


# A step for each second of a long view would hide the rest.
_MAX_STEPS = 12
_METHODS = {
    "copied": "Its packets are copied from the stored video; nothing is decoded or encoded.",
    "stitched": "The packets of stored tiles are joined into one picture; nothing is decoded.",
    "spliced": "Its packets are copied, except at the ends, which are decoded and encoded again.",
    "encoded": "Its frames are decoded and encoded again.",
    "decoded": "Its frames are decoded; no video is encoded.",
}
_ORIGINS = {
    "original": "the original",
    "tiles": "tiles",
    "joined": "data joined with another video",
}
_UNUSED_TEXT = {
    UnusedReason.SIZE: "their pictures have another size",
    UnusedReason.MISSING: "some of the tiles needed are not stored",
    UnusedReason.QUALITY: "their quality is too low",
    UnusedReason.OTHERS: "other tiles take less time",
    UnusedReason.COST: "decoding them takes no less CPU time than the original",
    UnusedReason.TIME: "decoding them finishes no earlier than the original",
}


def explanation_text(path: str, found: ViewExplanation) -> str:
    """Return the lines about the view at `path` below ``NAME@/``, each ended by a newline."""
    if not found.frames:
        silence = [] if found.silence is None else [f"Silent: {found.silence}."]
        made = f"Its samples are decoded from {found.sound_from} and stored as {found.sound}."
        return "\n".join([f"{path} can be opened: sound without pictures.", made, *silence, ""])
    width, height = found.size
    frames = "1 frame" if found.frames == 1 else f"{found.frames} frames"
    lines = [
        f"{path} can be opened: {frames} of {width}x{height} pixels.",
        _METHODS[found.made],
        *_step_lines(found),
        *_text_facts(found),
    ]
    return "\n".join(lines) + "\n"


def _step_lines(found: ViewExplanation) -> Iterator[str]:
    merged = list(_merged_runs(found.steps))
    yield ""
    yield "Steps:"
    for step in merged[:_MAX_STEPS]:
        yield f"  {_step_text(step)}"
    if len(merged) > _MAX_STEPS:
        yield f"  and {len(merged) - _MAX_STEPS} more"
    yield ""
    seconds = sum(step.seconds for step in found.steps)
    taken = f"{seconds:.3f} s, of all cores together" if seconds else "none beyond copying"
    yield f"Predicted CPU time: {taken}."
    if any(source.segment is not None for source in found.sources):
        yield f"Without tiles, decoding alone would take {found.untiled_seconds:.3f} s."


def _merged_runs(steps: tuple[ExplainStep, ...]) -> Iterator[ExplainStep]:
    """Join consecutive steps that differ in their frames only."""
    for _, group in groupby(steps, lambda one: (one.does, one.origin, one.codec)):
        run = list(group)
        yield ExplainStep(
            run[0].does,
            range(run[0].frames.start, run[-1].frames.stop),
            sum(step.count for step in run),
            run[0].origin,
            run[0].codec,
            sum(step.bytes for step in run),
            sum(step.seconds for step in run),
        )


def _step_text(step: ExplainStep) -> str:
    which = f"frames {step.frames.start}-{step.frames.stop - 1}"
    if len(step.frames) == 1:
        which = f"frame {step.frames.start}"
    if step.count != len(step.frames):
        which += f" ({step.count} pictures)"
    size = human_bytes(step.bytes)
    if step.does == "encode":
        return f"encode {which} to {step.codec}: at most {size}, {step.seconds:.3f} s"
    text = f"{step.does} {which} from {_ORIGINS[step.origin or 'original']} ({step.codec}): {size}"
    return text if step.does == "copy" else f"{text}, {step.seconds:.3f} s"


def _text_facts(found: ViewExplanation) -> Iterator[str]:
    if math.isinf(found.psnr):
        yield "Made from the samples of the original."
    else:
        yield f"Made from samples of at least {found.psnr:.1f} dB against the original."
    if found.why is not None:
        yield f"Not copied: {found.why}."
    for why, count in Counter(one.why for one in found.passed_over).items():
        segments = "1 segment" if count == 1 else f"{count} segments"
        yield f"Tiles not used, {segments}: {_UNUSED_TEXT[why]}."
    if found.sound is not None:
        made = "copied" if found.sound_made == "copied" else f"encoded from {found.sound_from}"
        yield f"Sound: {found.sound}, {made}."
    elif found.silence is not None:
        yield f"No sound: {found.silence}."
    if found.damaged:
        yield f"Damaged in the file itself: {found.damaged} of its frames."
    yield f"Lost: {found.lost}." if found.lost is not None else "Lost: nothing."
