"""The endpoints of thumbnails: sheets of key frames, their places, and posters."""

from __future__ import annotations

import os
from urllib.parse import quote

from starlette.responses import Response

from vfsd.api.video import Video, context_of
from vfsd.web.endpoint import Call, Endpoint, Parameter
from vfsd.web.query_values import number_in
from vfsd.web.thumbnails import COLUMNS, MAX_THUMBNAILS, ROWS, WIDTHS, SpritePlan

_WIDTH = 160
_POSTER_WIDTH = 320
_FOREVER = "private, max-age=31536000, immutable"


def _plan(call: Call) -> tuple[Video, SpritePlan]:
    video = call.web.store[call.name]
    width = number_in(call.query, "w", _WIDTH, 1, 4096)
    return video, call.web.thumbnails.plan(video, width)


def _sheets(video: Video, plan: SpritePlan, width: int) -> list[str]:
    where = f"/v/{quote(os.fsencode(video.name))}@/sprite/{width}"
    return [f"{where}/{number}.jpg?key={plan.key[:16]}" for number in range(plan.sheets)]


def _times(video: Video, plan: SpritePlan) -> list[float]:
    original = video.original
    ticks = context_of(video).table.pts_of(plan.frames) - original.first_pts
    base = original.time_base
    return [float(tick * base) for tick in ticks.tolist()]


def sprites(call: Call) -> object:
    video, plan = _plan(call)
    return {
        "width": plan.width,
        "height": plan.height,
        "columns": COLUMNS,
        "rows": ROWS,
        "sheets": _sheets(video, plan, number_in(call.query, "w", _WIDTH, 1, 4096)),
        "frames": plan.frames.tolist(),
        "times": _times(video, plan),
    }


def web_vtt(call: Call) -> Response:
    video, plan = _plan(call)
    sheets = _sheets(video, plan, number_in(call.query, "w", _WIDTH, 1, 4096))
    times = [*_times(video, plan), float(video.duration)]
    lines = ["WEBVTT", ""]
    for place in range(len(plan.frames)):
        sheet, within = divmod(place, COLUMNS * ROWS)
        x, y = within % COLUMNS * plan.width, within // COLUMNS * plan.height
        lines += [
            f"{_clock(times[place])} --> {_clock(times[place + 1])}",
            f"{sheets[sheet]}#xywh={x},{y},{plan.width},{plan.height}",
            "",
        ]
    headers = {"Cache-Control": "private, no-cache"}
    return Response("\n".join(lines), headers=headers, media_type="text/vtt")


def _clock(seconds: float) -> str:
    milliseconds = round(seconds * 1000)
    minutes, rest = divmod(milliseconds, 60_000)
    return f"{minutes // 60:02}:{minutes % 60:02}:{rest // 1000:02}.{rest % 1000:03}"


def sheet(call: Call) -> Response:
    params = call.request.path_params
    video = call.web.store[call.name]
    plan = call.web.thumbnails.plan(video, int(params["width"]))
    data = call.web.thumbnails.sheet(video, plan, int(params["number"]))
    return _picture(data, is_named=call.query.get("key") == plan.key[:16])


def poster(call: Call) -> Response:
    video = call.web.store[call.name]
    data = call.web.thumbnails.poster(video, number_in(call.query, "w", _POSTER_WIDTH, 1, 4096))
    return _picture(data, is_named=call.query.get("digest") == video.info.digest[:16])


def _picture(data: bytes, *, is_named: bool) -> Response:
    # A name with the digest of what it shows always stands for these bytes.
    cached = _FOREVER if is_named else "private, max-age=60"
    return Response(data, headers={"Cache-Control": cached}, media_type="image/jpeg")


_SIZES = f"pixels: one of {', '.join(map(str, WIDTHS))}"

ENDPOINTS = (
    Endpoint(
        "GET",
        "/v/{name:path}@/sprites.json",
        sprites,
        f"The sheets of thumbnails of a video: at most {MAX_THUMBNAILS} key frames.",
        {
            "width": "pixels of a picture",
            "height": "pixels of a picture",
            "columns": "pictures in a row of a sheet",
            "rows": "rows of a sheet; the last one may have fewer",
            "sheets": "list of URLs; picture i is on sheet i // (columns * rows)",
            "frames": "number of the frame of each picture",
            "times": "seconds of each picture",
        },
        (Parameter("w", f"{_SIZES}; default {_WIDTH}", "integer"),),
        is_scoped=True,
    ),
    Endpoint(
        "GET",
        "/v/{name:path}@/sprites.vtt",
        web_vtt,
        "The places of thumbnails as WebVTT, for players.",
        {},
        (Parameter("w", f"{_SIZES}; default {_WIDTH}", "integer"),),
        is_scoped=True,
    ),
    Endpoint(
        "GET",
        "/v/{name:path}@/sprite/{width:int}/{number:int}.jpg",
        sheet,
        "A sheet of thumbnails.",
        {},
        (Parameter("key", "as in sprites.json"),),
        is_scoped=True,
    ),
    Endpoint(
        "GET",
        "/v/{name:path}@/poster.jpg",
        poster,
        "A key frame near the start of a video.",
        {},
        (
            Parameter("w", f"{_SIZES}; default {_POSTER_WIDTH}", "integer"),
            Parameter("digest", "first 16 digits of the video's digest, for long caching"),
        ),
        is_scoped=True,
    ),
)
