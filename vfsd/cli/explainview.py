"""What ``vfsd explain`` says of a view: what is copied, decoded and encoded for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from vfsd.cli.output import columns, facts, print_json, print_line, shown
from vfsd.cli.session import Session
from vfsd.forms import CONTAINERS
from vfsd.units import clock, human_bytes

if TYPE_CHECKING:
    from vfsd.grammar import Form
    from vfsd.reading.explain import Decoding, Explanation
    from vfsd.reading.passedover import PassedOver
    from vfsd.videos.video import Video
    from vfsd.views.explaining import Step, ViewExplanation


def file_form(
    codec: str | None, ending: str | None, pixel_format: str | None, sound: str | None
) -> Form:
    """The form of the file that options ask for: mp4 where none says another.

    Raises `UsageError`.
    """
    from vfsd.grammar import form_of, with_sound

    if ending is None:
        ending = "mp4" if codec is None or codec in CONTAINERS["mp4"] else "mkv"
    return with_sound(form_of(ending, codec, pixel_format), sound)


def read_record(video: Video, found: Explanation) -> dict[str, Any]:
    """The keys of a view, of a read of bare pixels."""
    from vfsd.framenumbers import count_within
    from vfsd.views.explaining import decode_step

    steps = [decode_step(video.original, source).record for source in found.sources]
    told = ("view", "made", "why", "lost", "sound", "sound_made", "sound_from", "silence")
    damaged = count_within(found.plan.frames, video.original.damage)
    return {**dict.fromkeys(told), "damaged": damaged, "steps": steps}


def tell_view(session: Session, video: Video, found: ViewExplanation) -> None:
    """Print it, for people or for programs."""
    if session.json:
        print_json({"name": video.name, **found.record, "measured": None})
        return
    width, height = found.size
    print_line(
        f"{shown(video.name)}@/{found.view}: {found.frames} frames of {width}x{height}, "
        f"{found.made}"
    )
    rows: list[tuple[str, ...]] = [
        ("step", "seconds", "frames", "count", "bytes", "predicted", "what")
    ]
    rows += [_cells(video, step) for step in found.steps]
    for line in columns(rows, "<<<>>><"):
        print_line(line)
    for line in facts((*_conclusions(found), *unused(video, found))):
        print_line(line)


def _cells(video: Video, step: Step) -> tuple[str, ...]:
    from vfsd.cli.layout.records import span_of

    start, end = span_of(video, step.frames)
    what = step.codec if step.origin is None else f"{step.origin}, {step.codec}"
    return (
        step.does,
        f"{clock(start)}-{clock(end)}",
        f"{step.frames.start}-{step.frames.stop - 1}",
        str(step.count),
        ("up to " if step.does == "encode" else "") + human_bytes(step.bytes),
        "-" if step.does == "copy" else duration(step.seconds),
        what,
    )


def _conclusions(found: ViewExplanation) -> Iterator[tuple[str, str]]:
    from vfsd.views import SoundOfView

    decoding = f"{found.work.pictures} pictures, {duration(found.seconds)}"
    yield "decoded", decoding if found.sources else "nothing"
    if any(source.segment is not None for source in found.sources):
        yield "gain", gain(found)
    if found.why is not None:
        yield "not copied", found.why
    if found.lost is not None:
        yield "lost", found.lost
    if found.damaged:
        yield "damaged", f"{found.damaged} of {found.frames} frames, in the file itself"
    if found.sound is not None:
        yield "sound", SoundOfView(found.sound, found.sound_from, None).text
    elif found.silence is not None:
        yield "no sound", found.silence


def gain(found: Decoding) -> str:
    """What tiles save."""
    return (
        f"{found.pixel_gain:.1f} times fewer pixels, {found.time_gain:.1f} times less time "
        "(predicted CPU time of decoding)"
    )


def unused(video: Video, found: Decoding) -> Iterator[tuple[str, str]]:
    """Why tiles that are there are not used, each kind of them once."""
    from vfsd.reading.passedover import alike

    for together in alike(found.passed_over):
        segment = together[0].segment
        name = "what is joined with another video"
        if not segment.is_joined:
            picture = segment.picture
            is_turned = video.original.media.rotation in (90, 270)
            width, height = picture[::-1] if is_turned else picture
            cut = "whole" if segment.layout.count == 1 else f"{segment.layout.count} tiles"
            name = f"{segment.profile} of {width}x{height}, {cut}"
        count = f", {len(together)} segments" if len(together) > 1 else ""
        yield "not used", f"{name}{count}: {_why(together)}"


def _why(together: Sequence[PassedOver]) -> str:
    from vfsd.reading.passedover import Why

    first = together[0]
    if first.why == Why.SIZE:
        return "pictures of that size are of no use here"
    if first.why == Why.MISSING:
        gone = {tile for one in together for tile in one.tiles if not one.segment.holds([tile])}
        numbers = ", ".join(map(str, sorted(gone)))
        return f"{'tile' if len(gone) == 1 else 'tiles'} {numbers} are not stored"
    if first.why == Why.QUALITY:
        least = min(one.psnr or 0.0 for one in together)
        luma = min(one.segment.cell(tile).psnr for one in together for tile in one.tiles)
        result = f"{least:.1f} dB in the result" if least else "a result that nobody has measured"
        return f"too coarse, with {luma:.1f} dB of luma and {result}"
    seconds = duration(sum(one.seconds or 0.0 for one in together))
    original = duration(sum(one.original_seconds for one in together))
    if first.why == Why.OTHERS:
        return f"{seconds}, and other tiles take less"
    if first.why == Why.TIME:
        return (
            f"{seconds}, and the original's {original} are over earlier, as several cores work at "
            "it or the frames before need it anyway"
        )
    return f"{seconds} are not clearly less than the original's {original}"


def duration(seconds: float) -> str:
    """Milliseconds, or seconds where there are many."""
    return f"{seconds * 1000:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"
