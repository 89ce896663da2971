"""How a view is made, in sentences: the text of `why/PATH.txt` from a `ViewExplanation`."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from itertools import groupby

from vfsd.core.timebase import human_bytes
from vfsd.read.explain_read import UnusedReason
from vfsd.views.view_explanation import ExplainStep, ViewExplanation

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
_UNUSED = {
    UnusedReason.SIZE: "their pictures have another size",
    UnusedReason.MISSING: "some of the tiles needed are not stored",
    UnusedReason.QUALITY: "their quality is too low",
    UnusedReason.OTHERS: "other tiles take less time",
    UnusedReason.COST: "decoding them takes no less CPU time than the original",
    UnusedReason.TIME: "decoding them finishes no earlier than the original",
}


def explanation_text(path: str, found: ViewExplanation) -> str:
    """Return the lines about the view at `path` below ``NAME@/``, each ended by a newline."""
    width, height = found.size
    frames = "1 frame" if found.frames == 1 else f"{found.frames} frames"
    lines = [
        f"{path} can be opened: {frames} of {width}x{height} pixels.",
        _METHODS[found.made],
        *_step_lines(found),
        *_fact_lines(found),
    ]
    return "\n".join(lines) + "\n"


def _step_lines(found: ViewExplanation) -> Iterator[str]:
    merged = list(_merged(found.steps))
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


def _merged(steps: tuple[ExplainStep, ...]) -> Iterator[ExplainStep]:
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


def _fact_lines(found: ViewExplanation) -> Iterator[str]:
    if math.isinf(found.psnr):
        yield "Made from the samples of the original."
    else:
        yield f"Made from samples of at least {found.psnr:.1f} dB against the original."
    if found.why is not None:
        yield f"Not copied: {found.why}."
    for why, count in Counter(one.why for one in found.passed_over).items():
        segments = "1 segment" if count == 1 else f"{count} segments"
        yield f"Tiles not used, {segments}: {_UNUSED[why]}."
    if found.sound is not None:
        made = "copied" if found.sound_made == "copied" else f"encoded from {found.sound_from}"
        yield f"Sound: {found.sound}, {made}."
    elif found.silence is not None:
        yield f"No sound: {found.silence}."
    if found.damaged:
        yield f"Damaged in the file itself: {found.damaged} of its frames."
    yield f"Lost: {found.lost}." if found.lost is not None else "Lost: nothing."
