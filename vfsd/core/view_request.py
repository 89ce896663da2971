"""The language of paths below ``NAME@/``: each name states the content and the form of a view.

    t=10-20.mp4                          seconds 10 to 20
    frames=0-300.mp4                     frames 0 to 299
    roi=400x300+600+300,size=200x150,fps=5.h264
    full.mkv                             everything
    1280x720s5e20x640y720.rgb            the grammar of the VFS paper: scaled to 1280x720,
                                         then cropped to the left 640x720 pixels
    448x448r.raw, 256h.h264              the grammar of its predecessor

A name must parse completely.  Keys may come in any order, each at most once:

    t=A-B, t=A-      seconds from the first frame: 12, 12.5 or 1:02:03.5; half-open
    frames=A-B[-S]   frame numbers from 0, half-open, every S-th
    roi=WxH+X+Y, roi=X1,Y1,X2,Y2
                     pixels of the displayed full frame; X2 and Y2 are exclusive
    size=WxH, size=S scale the result; 0 for one side keeps the aspect ratio; S: the short side
    fps=F            frames per second: 5, 29.97 or 30000:1001
    psnr=DB          minimum dB in each plane or channel of the source pictures;
                     inf: only from the original
    codec=C          h264, hevc, av1, mjpeg or ffv1 (lossless, in the source's layout), for mp4
                     and mkv
    sound=no         without the sound of the original, which mp4 and mkv carry by default
    sound=aac|opus   with the sound in that codec: copied if it has that codec, else transcoded;
                     aac is the default for sound that the container cannot hold
    rate=HZ          for wav, the sound alone: its sample rate; without it, that of the video
    boxes=LABELS     draw the boxes with these labels, as in boxes=car|truck; boxes=* draws all;
                     not with pix, ffv1 or wav
    pix=P            the layout of pixels; for raw: rgb24, bgr24, rgb48, gray, gray16, yuv420p,
                     yuv422p, yuv444p, yuv420p10 or nv12; for y4m and ffv1: yuv420p, yuv422p,
                     yuv444p or yuv420p10; for h264, hevc and av1: yuv420p or yuv420p10

The suffix is the form: mp4, mkv, h264, hevc, y4m, rgb, yuv, raw, wav.  Without psnr, luma has the
quality set by the video's policy (`reads`), or else by the store (`minimum_psnr`).
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from reprlib import repr as shown
from typing import Any, Protocol, runtime_checkable
from urllib.parse import quote, unquote

from vfsd.core.label_query import Labels, clauses_of, format_labels
from vfsd.core.output_formats import (
    CODECS,
    CONTAINERS,
    ENDINGS,
    PIXEL_LAYOUTS,
    UNCOMPRESSED_LAYOUTS,
)
from vfsd.core.timebase import seconds
from vfsd.errors import NotFoundError, OutOfRangeError, UsageError
from vfsd.tiling import Rect
from vfsd.validation import decibels, is_one_integer, width_and_height

_SOUND = "wav"
_CONTAINERS = {"mp4": "mp4", "mkv": "matroska", "h264": "h264", "hevc": "hevc"}
_RAW = {"rgb": "rgb24", "yuv": "yuv420p", "raw": "rgb24", "y4m": None}
_VFS_LAYOUTS = {
    "yuv420": "yuv420p",
    "yuv422": "yuv422p",
    "yuv444": "yuv444p",
    "rgb": "rgb24",
    **{layout: layout for layout in PIXEL_LAYOUTS},
}

SOUND_CODECS = ("aac", "opus")
"""Codecs for transcoded sound."""

# Digits after the decimal point.
_MOST_DIGITS = 18
_NUMBER = r"[0-9]{1,9}"
_DECIMAL = rf"[0-9]{{1,9}}(?:\.[0-9]{{1,{_MOST_DIGITS}}})?"
_CLOCK = rf"(?:(?:{_NUMBER}:)?[0-9]{{1,2}}:)?{_DECIMAL}"

_VFS_NAME = re.compile(
    rf"(?P<w>{_NUMBER})x(?P<h>{_NUMBER})"
    rf"(?:r(?P<r>{_DECIMAL})?)?"
    rf"(?:f(?P<f>[a-z]+[0-9]*(?:p[0-9]*)?))?"
    rf"(?:s(?P<s>{_DECIMAL})e(?P<e>{_DECIMAL}))?"
    rf"(?:x(?P<x>{_NUMBER}(?:-{_NUMBER})?)y(?P<y>{_NUMBER}(?:-{_NUMBER})?))?"
)
_VFS_HEIGHT = re.compile(rf"(?P<h>{_NUMBER})h")
_SPAN = re.compile(rf"({_CLOCK})-({_CLOCK})?")
_FRAMES = re.compile(rf"({_NUMBER})-({_NUMBER})?(?:-({_NUMBER}))?")
_REGION = re.compile(rf"{_NUMBER}x{_NUMBER}\+{_NUMBER}\+{_NUMBER}|{_NUMBER}(?:,{_NUMBER}){{3}}")
_SIZE = re.compile(rf"{_NUMBER}(?:x{_NUMBER})?")
_RATE = re.compile(rf"{_DECIMAL}|{_NUMBER}:[1-9][0-9]{{0,8}}")
_HERTZ = re.compile(_NUMBER)
_PSNR = re.compile(rf"{_DECIMAL}|inf")
_KEY_BREAK = re.compile(r",(?![0-9])")
"""A comma before a digit is one between the edges of a region."""
_STILL = re.compile(r"([0-9]{1,12})\.(png|jpg|npy)")


Size = int | tuple[int, int] | str
"""(width, height), where a 0 keeps the aspect ratio; or the length of the shorter side; or either
as text, ``640x0`` or ``224``.
"""


@dataclass(frozen=True, slots=True)
class ViewForm:
    """The form in which a view is delivered.

    `container` is mp4, matroska, h264, hevc (elementary streams), y4m, raw or wav.  `codec` and
    `pixel_format` are None if stored packets may be copied when they fit.  FFV1 then has the pixel
    format of the source.
    """

    container: str
    codec: str | None = None
    pixel_format: str | None = None
    sound: bool = True  #: mp4 and matroska: carry the original's sound if possible
    sound_codec: str | None = None
    """aac or opus: sound in another codec is transcoded to it.  None: sound is copied or, if the
    container cannot hold it, transcoded to AAC.
    """
    sample_rate: int | None = None  #: wav: in Hz; None: that of the stored sound

    @property
    def layout(self) -> str:
        """The pixel layout of an encoded view, or the one requested for FFV1."""
        return self.pixel_format or "yuv420p"

    @property
    def is_raw(self) -> bool:
        return self.container in ("raw", "y4m")

    @property
    def is_sound(self) -> bool:
        """Whether the view has no pictures."""
        return self.container == _SOUND


@dataclass(frozen=True, slots=True)
class ViewSpec:
    """The request in a view path.  A size of 0 in one direction follows from the other.

    `crop` is the kept part of the scaled picture, in scaled pixels.  It requires `scale`, and
    excludes a region of the view.
    """

    view: View
    form: ViewForm
    scale: Size | None = None
    psnr: float | None = None  #: minimum dB; None: the default of the store
    crop: Rect | None = None
    boxes: Labels | None = None
    """Labels of the boxes to draw, an expression of `label_query`; ``*``: all boxes."""

    def __post_init__(self) -> None:
        if self.boxes is not None:
            self._require_drawable()
            object.__setattr__(self, "boxes", boxes_text(self.boxes))
        if self.psnr is not None:
            object.__setattr__(self, "psnr", decibels(self.psnr))
        if self.scale is not None:
            object.__setattr__(self, "scale", checked_size(self.scale))
        if self.form.is_sound:
            self._require_sound_alone()

    def _require_drawable(self) -> None:
        form = self.form
        if form.is_sound or form.codec == "ffv1":
            what = "wav" if form.is_sound else "ffv1"
            raise UsageError(f"boxes cannot be drawn into {what}", hint="leave out the boxes")
        if form.layout not in _DRAWABLE or (form.pixel_format and not form.is_raw):
            raise UsageError(
                f"boxes cannot be drawn into {form.layout}", hint="leave out the pixel format"
            )
        if self.crop is not None:
            raise UsageError("boxes cannot be drawn with a crop of the scaled picture")

    def _require_sound_alone(self) -> None:
        view = self.view
        pictorial = {
            "region": view.region or self.crop,
            "size": self.scale or view.size,
            "fps": view.fps,
            "psnr": self.psnr,
        }
        for key, value in pictorial.items():
            if value is not None:
                raise UsageError(f"wav holds sound alone, which has no {key}")

    def without_crop(self, width: int, height: int) -> ViewSpec:
        """Replace the crop by a region of a video of width x height displayed pixels.

        Raises `OutOfRangeError` for a crop outside the scaled picture, and `UsageError` for one
        with an edge inside a pixel of the video.
        """
        if self.crop is None:
            return self
        scaled = replace(self, crop=None).resolve(width, height)
        region = _unscaled(self.crop, scaled.size or (width, height), (width, height))
        size = self.crop.width, self.crop.height
        is_scaled = size != (region.width, region.height)
        view = replace(self.view, region=region)
        return replace(self, view=view, scale=size if is_scaled else None, crop=None)

    def resolve(self, width: int, height: int) -> View:
        """Return the view with its size resolved for a video of width x height displayed pixels.

        Sizes are even for encoders that store colour at half resolution.  Raises the errors of
        `without_crop`.
        """
        if self.crop is not None:
            return self.without_crop(width, height).resolve(width, height)
        if self.scale is None:
            return self.view
        region = self.view.region or Rect.of_size(width, height)
        size = resolve_size(self.scale, region.width, region.height)
        view = self.view
        return View(view.span, view.frames, view.region, size, view.fps)


def parse_view_path(name: str) -> ViewSpec:
    """Parse `name`, one path component.

    Raises `NotFoundError` if it is not a view path, and `UsageError` if it is one that requests
    something impossible, or is not a `str`.
    """
    if not isinstance(name, str):
        raise UsageError(
            f"a view path must be a str, got {shown(name)}", hint="see `vfsd help views`"
        )
    stem, dot, suffix = name.rpartition(".")
    if not dot or not stem or suffix not in ENDINGS:
        raise _unknown_name_error(name, f"its suffix must be one of {', '.join(ENDINGS)}")
    paper = _VFS_NAME.fullmatch(stem) or _VFS_HEIGHT.fullmatch(stem)
    if paper is not None and suffix != _SOUND:
        return _from_vfs_name(paper.groupdict(), suffix)
    return _from_keys(name, stem, suffix)


def parse_still_name(name: str) -> tuple[int, str]:
    """Return (frame number, suffix) of a name in ``frames/``.  Raises `NotFoundError`."""
    match = _STILL.fullmatch(name)
    if match is None:
        raise _unknown_name_error(name)
    return int(match.group(1)), match.group(2)


def output_form(suffix: str, codec: str | None = None, pixel_format: str | None = None) -> ViewForm:
    """Return the form of a file with `suffix`, one of `ENDINGS`.  Raises `UsageError`."""
    if suffix not in ENDINGS:
        raise UsageError(f"suffix must be one of {', '.join(ENDINGS)}, got {suffix!r}")
    for what, given in (("codec", codec), ("format", pixel_format)):
        if not isinstance(given, str | None):
            raise UsageError(f"{what} must be a str, got {shown(given)}")
    try:
        return _form("", suffix, codec, pixel_format)
    except NotFoundError:
        what = " in ".join(filter(None, (codec, pixel_format)))
        raise UsageError(
            f"{suffix} cannot hold {what}", hint="see `vfsd help views` for valid combinations"
        ) from None


def with_sound(form: ViewForm, asked: str | None) -> ViewForm:
    """Return `form` with the requested sound: ``no``, one of `SOUND_CODECS`, or None for no change.

    Raises `UsageError` for another value, and for a container without sound.
    """
    if asked is None:
        return form
    if asked not in ("no", *SOUND_CODECS):
        raise UsageError(f"sound must be one of no, {', '.join(SOUND_CODECS)}, got {shown(asked)}")
    if form.container not in ("mp4", "matroska"):
        why = "hold sound alone" if form.is_sound else "cannot hold sound"
        raise UsageError(f"{_suffix(form)} files {why}", hint="omit the choice of sound")
    return replace(form, sound=asked != "no", sound_codec=None if asked == "no" else asked)


def format_view_path(request: ViewSpec) -> str:
    """Return the canonical name for `request`."""
    view, form = request.view, request.form
    if request.crop is not None:
        return _cropped_name(request, request.crop)
    parts = []
    if view.span is not None:
        start, stop = view.span
        parts.append(f"t={_number(start)}-{'' if stop is None else _number(stop)}")
    if view.frames is not None:
        first, end, step = view.frames
        parts.append(
            f"frames={first}-{'' if end is None else end}" + (f"-{step}" if step > 1 else "")
        )
    if view.region is not None:
        parts.append(f"roi={view.region}")
    scale = request.scale or view.size
    if scale is not None:
        parts.append(f"size={size_text(scale)}")
    if view.fps is not None:
        parts.append(f"fps={_number(view.fps)}")
    if request.psnr is not None:
        parts.append(f"psnr={_decibels(request.psnr)}")
    if form.codec is not None and form.container in ("mp4", "matroska"):
        parts.append(f"codec={form.codec}")
    if not form.sound:
        parts.append("sound=no")
    elif form.sound_codec is not None:
        parts.append(f"sound={form.sound_codec}")
    if form.sample_rate is not None:
        parts.append(f"rate={form.sample_rate}")
    if form.pixel_format is not None:
        parts.append(f"pix={form.pixel_format}")
    if request.boxes is not None:
        parts.append(f"boxes={quote(boxes_text(request.boxes), safe=_LABEL_MARKS)}")
    return f"{','.join(parts) or 'full'}.{_suffix(form)}"


def _from_keys(name: str, stem: str, suffix: str) -> ViewSpec:
    values: dict[str, str] = {}
    if stem != "full":
        for part in _KEY_BREAK.split(stem):
            key, equals, value = part.partition("=")
            if not equals or key not in _KEYS:
                keys = ", ".join(_KEYS)
                raise _unknown_name_error(name, f"a key must be one of {keys}, got {shown(key)}")
            if key in values:
                raise _unknown_name_error(name, f"it has {key} twice")
            values[key] = value
    if suffix == _SOUND and (pictorial := [key for key in values if key not in _SOUND_KEYS]):
        raise _unknown_name_error(name, f"wav holds sound alone, which has no {pictorial[0]}")
    span = frames = region = fps = scale = None
    if "t" in values:
        match = _value(_SPAN, values, "t", name)
        span = (seconds(match[1]), None if match[2] is None else seconds(match[2]))
    if "frames" in values:
        match = _value(_FRAMES, values, "frames", name)
        frames = (int(match[1]), None if match[2] is None else int(match[2]), int(match[3] or 1))
    if "roi" in values:
        region = Rect.parse(_value(_REGION, values, "roi", name)[0])
    if "size" in values:
        scale = parse_size(_value(_SIZE, values, "size", name)[0])
    if "fps" in values:
        fps = Fraction(_value(_RATE, values, "fps", name)[0].replace(":", "/"))
    psnr = None
    if "psnr" in values:
        psnr = float(_value(_PSNR, values, "psnr", name)[0])
    form = _form(name, suffix, values.get("codec"), values.get("pix"))
    if "rate" in values:
        if not form.is_sound:
            raise _unknown_name_error(name, "rate is that of wav; fps is that of pictures")
        rate = int(_value(_HERTZ, values, "rate", name)[0])
        form = replace(form, sample_rate=sample_rate(rate))
    if "sound" in values:
        try:
            form = with_sound(form, values["sound"])
        except UsageError as error:
            raise _unknown_name_error(name, str(error)) from None
    boxes = values.get("boxes")
    if boxes is not None and "pix" in values:
        raise _unknown_name_error(name, "boxes cannot be drawn with pix")
    view = View(span, frames, region, None, fps)
    return ViewSpec(view, form, scale, psnr, boxes=None if boxes is None else unquote(boxes))


def boxes_text(labels: Labels) -> str:
    """Return the canonical expression for the labels of drawn boxes; ``*``: of all boxes.

    Raises `UsageError` for a malformed expression.
    """
    if isinstance(labels, str) and labels.strip() == ALL_BOXES:
        return ALL_BOXES
    return format_labels(clauses_of(labels))


ALL_BOXES = "*"
"""As labels of drawn boxes: every box."""

# Characters of expressions that stay as they are in the names of views.
_LABEL_MARKS = ' |&="*'
# Layouts of pixels into which boxes are drawn.
_DRAWABLE = ("yuv420p", "rgb24")
_KEYS = ("t", "frames", "roi", "size", "fps", "psnr", "codec", "pix", "sound", "rate", "boxes")
_SOUND_KEYS = ("t", "frames", "rate")


def _from_vfs_name(values: dict[str, str | None], suffix: str) -> ViewSpec:
    def given(key: str) -> str:
        return values.get(key) or ""

    span = crop = fps = None
    if given("s"):
        span = (Fraction(given("s")), Fraction(given("e")))
    if given("x"):
        x1, x2 = _interval(given("x"))
        y1, y2 = _interval(given("y"))
        crop = Rect(x1, y1, x2, y2)
    if given("r"):
        fps = Fraction(given("r"))
    pixel_format = None
    if given("f"):
        pixel_format = _VFS_LAYOUTS.get(given("f"))
        if pixel_format is None:
            raise NotFoundError(f"unknown pixel layout {given('f')!r}")
        if suffix not in _RAW and pixel_format not in _encoded_layouts(suffix, None):
            raise UsageError(f"{suffix} files cannot have the pixel layout {given('f')}")
    scale = (int(given("w") or 0), int(given("h")))
    form = _form("", suffix, None, pixel_format)
    return ViewSpec(View(span, fps=fps), form, scale, crop=crop)


def _interval(text: str) -> tuple[int, int]:
    """The paper gives the far corner of a crop that starts at 0; ``A-B`` gives both ends."""
    low, dash, high = text.partition("-")
    return (int(low), int(high)) if dash else (0, int(low))


def _form(name: str, suffix: str, codec: str | None, pixel_format: str | None) -> ViewForm:
    if suffix == _SOUND:
        if codec is not None or pixel_format is not None:
            raise _unknown_name_error(name, "wav holds sound alone, without codec and pix")
        return ViewForm(_SOUND)
    if suffix in _RAW:
        layouts = UNCOMPRESSED_LAYOUTS if suffix == "y4m" else PIXEL_LAYOUTS
        if codec is not None or (pixel_format is not None and pixel_format not in layouts):
            raise _unknown_name_error(name)
        container = "y4m" if suffix == "y4m" else "raw"
        return ViewForm(container, None, pixel_format or _RAW[suffix])
    container = _CONTAINERS[suffix]
    if codec is not None and codec not in CONTAINERS[container]:
        taken = ", ".join(CONTAINERS[container])
        raise _unknown_name_error(
            name, f"codec of {suffix} must be one of {taken}, got {shown(codec)}"
        )
    if pixel_format is not None and pixel_format not in _encoded_layouts(suffix, codec):
        taken = ", ".join(_encoded_layouts(suffix, codec))
        raise _unknown_name_error(name, f"pix must be one of {taken}, got {shown(pixel_format)}")
    return ViewForm(container, suffix if suffix in CODECS else codec, pixel_format)


def _encoded_layouts(suffix: str, codec: str | None) -> tuple[str, ...]:
    return CODECS[codec or CONTAINERS[_CONTAINERS[suffix]][0]]


def _unscaled(crop: Rect, scaled: tuple[int, int], whole: tuple[int, int]) -> Rect:
    """Return the pixels of the whole picture for `crop` of the scaled one.  Sizes: (width, height).

    Raises `OutOfRangeError`, and `UsageError` if an edge lies inside a pixel.
    """
    if not Rect.of_size(*scaled).contains(crop):
        raise OutOfRangeError(f"crop must be inside {scaled[0]}x{scaled[1]}, got {crop}")
    across, down = (Fraction(whole[i], scaled[i]) for i in (0, 1))
    edges = (crop.x1 * across, crop.y1 * down, crop.x2 * across, crop.y2 * down)
    if any(edge.denominator != 1 for edge in edges):
        x1, y1, x2, y2 = (round(edge) for edge in edges)
        near = Rect(x1, y1, max(x2, x1 + 1), max(y2, y1 + 1))
        raise UsageError(
            f"crop {crop} of a picture scaled to {scaled[0]}x{scaled[1]} has an edge inside a "
            f"pixel of the video, which has {whole[0]}x{whole[1]}",
            hint=f"roi={near},size={crop.width}x{crop.height} is close to it",
        )
    return Rect(*map(int, edges))


def _cropped_name(request: ViewSpec, crop: Rect) -> str:
    """Return the name in the grammar of the VFS paper, the only one with crops."""
    view, form = request.view, request.form
    width, height = request.scale if isinstance(request.scale, tuple) else (0, 0)
    parts = [f"{width}x{height}"]
    if view.fps is not None:
        parts.append(f"r{_number(view.fps)}")
    if form.pixel_format is not None:
        parts.append(f"f{form.pixel_format}")
    if view.span is not None:
        start, stop = view.span
        parts.append(f"s{_number(start)}e{_number(stop or start)}")
    parts.append(f"x{crop.x1}-{crop.x2}y{crop.y1}-{crop.y2}")
    return f"{''.join(parts)}.{_suffix(form)}"


def _suffix(form: ViewForm) -> str:
    return "mkv" if form.container == "matroska" else form.container


def _value(pattern: re.Pattern[str], values: dict[str, str], key: str, name: str) -> re.Match[str]:
    match = pattern.fullmatch(values[key])
    if match is None:
        raise _unknown_name_error(
            name, f"{key} must be {_VALUE_FORMS[key]}, got {shown(values[key])}"
        )
    return match


_VALUE_FORMS = {
    "t": "A-B or A-, in seconds",
    "frames": "A-B, A- or A-B-S",
    "roi": "WxH+X+Y or X1,Y1,X2,Y2",
    "size": "WxH, with 0 for one side to keep the aspect, or the short side",
    "fps": "a number or N:D",
    "psnr": "a number or inf",
    "rate": "a whole number of Hz",
}


def _number(value: Fraction) -> str:
    """Return the shortest exact number that the parser reads back."""
    digits = 0
    while digits <= _MOST_DIGITS and (value * 10**digits).denominator != 1:
        digits += 1
    if digits > _MOST_DIGITS:
        return f"{value.numerator}:{value.denominator}"
    whole, part = divmod(int(value * 10**digits), 10**digits)
    return f"{whole}.{part:0{digits}}" if digits else str(whole)


def _decibels(value: float) -> str:
    return "inf" if value == math.inf else _number(Fraction(repr(value)))


def _unknown_name_error(name: str, why: str | None = None) -> NotFoundError:
    reason = "" if why is None else f": {why}"
    return NotFoundError(f"{name!r} is not a view{reason}", hint="see `vfsd help views`")


HIGHEST_RATE = 1000
"""Frames per second: a higher rate is taken for a mistake."""

HIGHEST_SAMPLE_RATE = 1_000_000
"""Hz: a higher rate is taken for a mistake."""

LARGEST_SIDE = 16384
"""Largest width or height of scaled frames: encoders accept no more."""


def sample_rate(given: int) -> int:
    """Return a valid sample rate in Hz.  Raises `UsageError`."""
    if not is_one_integer(given) or not 0 < given <= HIGHEST_SAMPLE_RATE:
        raise UsageError(
            f"rate must be 1 to {HIGHEST_SAMPLE_RATE} Hz, got {shown(given)}",
            hint="for example 16000",
        )
    return operator.index(given)


def parse_size(text: str) -> Size:
    """Parse ``WxH``, where one side may be 0, or ``S``, the shorter side.  Raises `UsageError`."""
    if not isinstance(text, str) or _SIZE.fullmatch(text) is None:
        raise _size_error(text)
    width, x, height = text.partition("x")
    return checked_size((int(width), int(height)) if x else int(width))


def size_text(size: Size) -> str:
    """Return text that `parse_size` reads back."""
    return f"{size[0]}x{size[1]}" if isinstance(size, tuple) else str(size)


def checked_size(size: Size | str) -> int | tuple[int, int]:
    """Return a size in any of its forms as an int or two; not both sides are 0.

    Raises `UsageError`.
    """
    given: Any = parse_size(size) if isinstance(size, str) else size
    if is_one_integer(given):
        found: Any = operator.index(given)
        sides = found, found
    else:
        try:
            found = sides = width_and_height(() if isinstance(given, bytes) else given)
        except UsageError:
            raise _size_error(size) from None
    if min(sides) < 0 or not any(sides):
        raise UsageError(f"size must be at least 1 pixel, got {size_text(found)}")
    checked: int | tuple[int, int] = found
    return checked


def resolve_size(size: Size, width: int, height: int) -> tuple[int, int]:
    """Return the (width, height) that `size` means for a picture of width x height pixels.

    A side that is derived from the other is even.  Raises `UsageError`.
    """
    checked = checked_size(size)
    if isinstance(checked, int):
        checked = (checked, 0) if width <= height else (0, checked)
    w, h = checked
    w = w or max(2, round(Fraction(width * h, height) / 2) * 2)
    h = h or max(2, round(Fraction(height * w, width) / 2) * 2)
    return scaled_size((w, h))


def exact_size(size: Size) -> tuple[int, int]:
    """Return a size with both sides, for pictures without an aspect ratio to keep.

    Raises `UsageError`.
    """
    checked = checked_size(size)
    if isinstance(checked, int) or not all(checked):
        raise UsageError(f"size must be (width, height) in full, got {shown(size)}")
    return checked


def _size_error(size: object) -> UsageError:
    return UsageError(
        f"size must be (width, height) or an int, got {shown(size)}",
        hint="for example (640, 360) or 640x360; a 0 keeps the shape, 224 is the short side",
    )


@dataclass(frozen=True, slots=True)
class View:
    """The requested pixels of a video, their size and rate.

    `span` is in seconds on the video's timeline, which starts at 0 with the first frame.  It
    selects the frames that appear in ``span[0] <= t < span[1]``.  `frames` is (start, stop, step),
    half-open. At most one of the two is given; neither selects everything.  Without `fps`, every
    frame comes once. With it, the frame on screen at each multiple of ``1 / fps`` seconds from the
    start.  `region` refers to the displayed full frame; `size` is (width, height) of the result.
    """

    span: tuple[Fraction, Fraction | None] | None = None
    frames: tuple[int, int | None, int] | None = None
    region: Rect | None = None
    size: tuple[int, int] | None = None
    fps: Fraction | None = None

    def __post_init__(self) -> None:
        if self.span is not None and self.frames is not None:
            raise UsageError("give either a span of time or frames, not both")
        if self.span is not None:
            start, stop = self.span
            if start < 0 or (stop is not None and stop <= start):
                until = "the end" if stop is None else f"{float(stop):g} s"
                raise UsageError(
                    f"the span must not be empty, got {float(start):g} s to {until}",
                    hint="times count from 0, and the second must be later than the first",
                )
        if self.frames is not None:
            first, end, step = self.frames
            if first < 0 or step < 1 or (end is not None and end <= first):
                raise UsageError(f"frames must have at least one frame, got {first}:{end}:{step}")
        if self.size is not None:
            object.__setattr__(self, "size", scaled_size(self.size))
        if self.fps is not None and self.fps <= 0:
            raise UsageError(f"fps must be more than 0, got {self.fps}")
        if self.fps is not None and self.fps > HIGHEST_RATE:
            raise UsageError(f"fps must be at most {HIGHEST_RATE}, got {float(self.fps):g}")
        if self.fps is not None and self.frames is not None:
            raise UsageError("fps requires a span of time, not frames")


def scaled_size(given: tuple[int, int]) -> tuple[int, int]:
    """Return a valid (width, height) for scaled frames, as ints.

    Raises `UsageError` for sizes out of range, and for anything but a pair.
    """
    width, height = width_and_height(given)
    if width > LARGEST_SIDE or height > LARGEST_SIDE:
        raise UsageError(
            f"both sides of size must be at most {LARGEST_SIDE} pixels, got {width}x{height}"
        )
    if width < 1 or height < 1:
        raise UsageError(
            f"both sides of size must be at least 1 pixel, got {width}x{height}",
            hint="0 for one side is valid for views, and for reads of whole frames or one region",
        )
    return width, height


CancelCheck = Callable[[], None]
"""Called periodically by the thread that waits for a view; raises `OSError` if the request was
cancelled.
"""


@dataclass(frozen=True, slots=True)
class ViewStat:
    """The result of `stat` for a view, or for a directory of views."""

    is_dir: bool
    size: int  #: bytes; 0 for a directory
    mtime_ns: int  #: that of the video
    is_writable: bool = False  #: frames may be written to it
    version: str = ""  #: as `ViewFile.version`; only of files of a timeline
    readers: int = 0o444  #: permission bits to keep: others lack a part of what it is made from


@runtime_checkable
class ViewFile(Protocol):
    """A view, open for reading."""

    @property
    def size(self) -> int: ...

    @property
    def version(self) -> str:
        """Equal for files with the same bytes, and only for these."""

    @property
    def whole(self) -> int | None:
        """A descriptor of a file with exactly these bytes, or None; valid until `close`."""

    @property
    def is_work(self) -> bool:
        """Whether reading requires computation, which is cancelled when the request is."""

    def readinto(
        self, buffer: memoryview, offset: int, cancel_check: CancelCheck | None = None
    ) -> int:
        """Fill `buffer` from `offset`; short only at the end.  Thread-safe.

        Calls `cancel_check` periodically during long work, and propagates its errors.
        """

    def close(self) -> None: ...
