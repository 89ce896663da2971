"""What ``vfsd explain`` says of a view: what is copied, decoded and encoded for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from vfsd.cli.output import columns, facts, print_json, print_line, shown
from vfsd.cli.session import Session
from vfsd.core.output_formats import CONTAINERS
from vfsd.core.timebase import clock, human_bytes
from vfsd.errors import OutOfRangeError, UsageError

if TYPE_CHECKING:
    from vfsd.api.video import Video
    from vfsd.core.view_path import Form, Request
    from vfsd.read.explain import Decoding, Explanation
    from vfsd.read.unused_tiles import PassedOver
    from vfsd.views.explain import Step, ViewExplanation


def file_form(
    codec: str | None, ending: str | None, pixel_format: str | None, sound: str | None
) -> Form:
    """The form of the file that options ask for: mp4 where none says another.

    Raises `UsageError`.
    """
    from vfsd.core.view_path import form_of, with_sound

    if ending is None:
        ending = "mp4" if codec is None or codec in CONTAINERS["mp4"] else "mkv"
    return with_sound(form_of(ending, codec, pixel_format), sound)


def read_record(video: Video, found: Explanation) -> dict[str, Any]:
    """The keys of a view, of a read of bare pixels."""
    from vfsd.core.frame_index import count_within
    from vfsd.views.explain import decode_step

    steps = [decode_step(video.original, source).record for source in found.sources]
    told = ("view", "made", "why", "lost", "sound", "sound_made", "sound_from", "silence")
    damaged = count_within(found.plan.frames, video.original.damage)
    return {
        **dict.fromkeys(told),
        "damaged": damaged,
        "cached": None,
        "cacheable": 0,
        "steps": steps,
    }


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
    for line in facts((*_conclusions(video, found), *unused(video, found))):
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


def _conclusions(video: Video, found: ViewExplanation) -> Iterator[tuple[str, str]]:
    from vfsd.views import SoundOfView

    if found.cached:
        share = "all" if found.cached == found.cacheable else f"{found.cached} of {found.cacheable}"
        yield "cached", f"{share} of its parts come from the cache, without decoding or encoding"
    decoding = f"{found.work.pictures} pictures, {duration(found.seconds)}"
    yield "decoded", decoding if found.sources else "nothing"
    if any(source.segment is not None for source in found.sources):
        yield "gain", gain(found)
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
    """Why stored tiles are not used: one line for each size, codec and reason."""
    groups: dict[tuple[object, ...], list[PassedOver]] = {}
    for one in found.passed_over:
        segment = one.segment
        key = (segment.profile, segment.picture, segment.is_joined, one.why)
        groups.setdefault(key, []).append(one)
    for together in groups.values():
        yield "not used", f"{_segments(video, together)}: {_why(together)}"


def _segments(video: Video, together: Sequence[PassedOver]) -> str:
    """What is not used, as displayed."""
    first = together[0].segment
    layouts = {one.segment.layout for one in together}
    name = "what is joined with another video"
    if not first.is_joined:
        is_turned = video.original.media.rotation in (90, 270)
        width, height = first.picture[::-1] if is_turned else first.picture
        cut = "whole" if first.layout.count == 1 else f"{first.layout.count} tiles"
        if len(layouts) > 1:
            cut = f"{len(layouts)} layouts"
        name = f"{first.profile} of {width}x{height}, {cut}"
    return f"{name}, {len(together)} segments" if len(together) > 1 else name


def _missing(together: Sequence[PassedOver]) -> str:
    """Tile numbers mean something within one layout only."""
    gone = {
        (one.segment.layout, tile)
        for one in together
        for tile in one.tiles
        if not one.segment.holds([tile])
    }
    if len({one.segment.layout for one in together}) > 1:
        return "some of the tiles needed are not stored"
    if len(gone) > _MOST_TILES:
        return f"{len(gone)} of the tiles needed are not stored"
    numbers = ", ".join(str(tile) for _, tile in sorted(gone, key=lambda pair: pair[1]))
    return f"tile {numbers} is not stored" if len(gone) == 1 else f"tiles {numbers} are not stored"


def _copy_hint(video: Video, found: ViewExplanation) -> str | None:
    """How to ask for a similar view that is copied, where there is one."""
    from vfsd.core import view_path
    from vfsd.core.view_request import View

    request = view_path.parse(found.view)
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


def _key_hint(video: Video, found: ViewExplanation, request: Request) -> str | None:
    """Where a copy could begin, of a view that does not begin at a key frame."""
    from vfsd.cli.layout.records import start_of
    from vfsd.core.view_request import View

    first = min((step.frames.start for step in found.steps), default=0)
    stop = max((step.frames.stop for step in found.steps), default=0)
    keys = video.table.keyframes()
    after = int(keys.searchsorted(first, "right"))
    near = [int(key) for key in keys[max(0, after - 1) : after + 1]]
    if first in near:
        return None
    good = [
        clock(start_of(video, key))
        for key in near
        if key < stop and _is_copied(video, replace(request, view=View(frames=(key, stop, 1))))
    ]
    if not good:
        return None
    hint = f"a copy could begin at {' or '.join(good)}"
    if len(near) == 2:
        apart = float(start_of(video, near[1]) - start_of(video, near[0]))
        hint = f"key frames are {apart:.1f} s apart here; {hint}"
    return hint


def _is_copied(video: Video, request: Request) -> bool:
    try:
        return video.explain_request(request).made in ("copied", "spliced")
    except (UsageError, OutOfRangeError):
        return False


_MOST_TILES = 6
"""How many tile numbers are listed."""


def _why(together: Sequence[PassedOver]) -> str:
    from vfsd.read.unused_tiles import Why

    first = together[0]
    if first.why == Why.SIZE:
        return "pictures of that size are of no use here"
    if first.why == Why.MISSING:
        return _missing(together)
    if first.why == Why.QUALITY:
        least = min(one.psnr or 0.0 for one in together)
        luma = min(one.segment.cell(tile).psnr for one in together for tile in one.tiles)
        result = f"{least:.1f} dB in the result" if least else "a result that was never measured"
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
