"""Chooses the view that a web browser plays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from vfsd.core.model import LogicalVideo, MediaInfo
from vfsd.core.view_request import View, ViewForm, ViewSpec, format_view_path
from vfsd.derive.rendition_plan import browser_losses, browser_size
from vfsd.errors import UsageError
from vfsd.read.read_context import ReadContext
from vfsd.storage.context import StoreContext
from vfsd.tiling.cost import WEB
from vfsd.validation import not_one_of
from vfsd.views.rendered_view import PlannedView, audio_summary, plan_view
from vfsd.views.rendition_copy import RenditionView
from vfsd.views.view_input import ViewInput, view_input_of
from vfsd.views.view_slots import CopiedPart

# The pixel formats of each codec that browsers play.
_PLAYED = {
    "h264": ("yuv420p", "yuvj420p"),
    "hevc": ("yuv420p", "yuvj420p", "yuv420p10le"),
    "av1": ("yuv420p", "yuv420p10le"),
    "vp9": ("yuv420p", "yuv420p10le"),
}
# Sound that browsers play in mp4; other sound is transcoded.
_PLAYED_SOUND = ("aac", "mp3", "opus", "flac")
# Codecs of encoded views, the cheapest first.
_ENCODED = ("h264", "hevc", "av1")


@dataclass(frozen=True, slots=True)
class PlayableView:
    """A view that a browser plays, and how it is made."""

    name: str  #: below ``NAME@/``
    origin: str  #: original, rendition (both are copied), or encoded
    codec: str
    size: tuple[int, int]  #: (width, height) of the displayed frame
    psnr: float
    """Minimum dB against the first original; infinite for the original, 0 if it is not known."""
    losses: tuple[str, ...]  #: what differs from the original besides size and quality, for people


def playable_view(
    parts: StoreContext, tools: ReadContext, info: LogicalVideo, can: Sequence[str]
) -> PlayableView:
    """Return the view of a video for a browser that plays the codecs `can`.

    Nothing is decoded.  Raises `UsageError` for an unknown codec, and if it can play none.
    """
    if isinstance(can, str):
        can = [can]
    for codec in can:
        if codec not in _PLAYED:
            raise not_one_of("can", codec, _PLAYED)
    chosen = next((codec for codec in _ENCODED if codec in can), None)
    if chosen is None:
        raise UsageError(
            f"can must have one of {', '.join(_ENCODED)}, got {', '.join(can) or 'nothing'}"
        )
    source = view_input_of(parts, tools, info)
    media = info.original.media
    if media.codec in can and media.pixel_format in _PLAYED[media.codec]:
        request, planned = _planned(source, tools, ViewForm("mp4"), None)
        if _is_copied(planned):
            return _playable(request, planned, media, "original", ())
    for size in _rendition_sizes(source) if "h264" in can else ():
        request, planned = _planned(source, tools, ViewForm("mp4", "h264"), size)
        if isinstance(planned, RenditionView):
            return _playable(request, planned, media, "rendition", tuple(browser_losses(media)))
    request, planned = _planned(source, tools, ViewForm("mp4", chosen), browser_size(media))
    return _playable(request, planned, media, "encoded", tuple(browser_losses(media)))


def _planned(
    source: ViewInput, tools: ReadContext, form: ViewForm, size: tuple[int, int] | None
) -> tuple[ViewSpec, PlannedView]:
    """Plan a view of the whole video, with sound that browsers play."""
    media = source.physical.media
    if size == (media.display_width, media.display_height):
        size = None
        # Without a pixel format, the original itself would be copied.
        form = replace(form, pixel_format="yuv420p")
    request = ViewSpec(View(), form, size)
    sound = audio_summary(source, request)
    if sound.codec is not None and sound.codec not in _PLAYED_SOUND:
        request = replace(request, form=replace(form, sound_codec="aac"))
    return request, plan_view(source, request, tools)


def _rendition_sizes(source: ViewInput) -> Iterator[tuple[int, int]]:
    """Yield the displayed sizes of browser renditions, the largest first."""
    segments = source.tiles.segments if source.tiles is not None else ()
    sizes = {segment.picture for segment in segments if segment.profile == WEB}
    is_turned = source.physical.media.rotation % 180 != 0
    for width, height in sorted(sizes, reverse=True):
        yield (height, width) if is_turned else (width, height)


def _is_copied(planned: PlannedView) -> bool:
    return all(isinstance(part, CopiedPart) for part in planned.parts)


def _playable(
    request: ViewSpec,
    planned: PlannedView,
    media: MediaInfo,
    origin: str,
    losses: tuple[str, ...],
) -> PlayableView:
    shown = media.display_width, media.display_height
    psnr = min(part.psnr if isinstance(part, CopiedPart) else 0.0 for part in planned.parts)
    size = request.resolve(*shown).size or shown
    codec = request.form.codec or media.codec
    return PlayableView(format_view_path(request), origin, codec, size, psnr, losses)
