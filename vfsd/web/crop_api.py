"""The endpoints of crops: boxes of many videos, and sheets with their pixels."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np
from starlette.responses import Response

from vfsd.api.labels import find_boxes
from vfsd.api.store import Store
from vfsd.api.video import Video, context_of
from vfsd.catalog.video_query import make_video_filter
from vfsd.codecs.encoding.encoder import encode_jpeg
from vfsd.core.capture_time import NS
from vfsd.core.detections import DetectionColumns
from vfsd.core.label_query import clauses_of
from vfsd.core.model import LogicalVideo
from vfsd.core.pixel_array import Pixels
from vfsd.errors import NotFoundError, UsageError
from vfsd.records.label_records import UNKNOWN_LABELS_FIELDS
from vfsd.tiling import Rect
from vfsd.web.endpoint import Call, Endpoint, Parameter
from vfsd.web.label_api import (
    IN_PARAMETER,
    QUERY_PARAMETER,
    chosen_videos,
    seconds_of,
    unknown_labels_in,
)
from vfsd.web.library_api import LIST_FIELDS
from vfsd.web.query_values import moment_in, number_in, region_in

_MAX_CROPS = 60
_MAX_HEIGHT = 320
_SHEET_WIDTH = 2048
_WIDEST = 4  # largest ratio of the sides of a crop
_MAX_TOKEN = 6000
_SCANNED_VIDEOS = 400
_CHUNK = 256


def crops(call: Call) -> object:
    """Boxes of several videos in turn, those of different objects first."""
    query, store = call.query, call.web.store
    limit = number_in(query, "n", 24, 1, _MAX_CROPS)
    height = number_in(query, "h", 96, 16, _MAX_HEIGHT)
    after = number_in(query, "after", 0, 0, 100_000)
    chosen = chosen_videos(call)
    found = list(islice(_boxes(call, store, chosen), after, after + limit))
    items, places, x, y = [], [], 0, 0
    for video, frame, label, box in found:
        rect = Rect(*box)
        width = max(8, min(_WIDEST * height, round(height * rect.width / rect.height)))
        if x + width > _SHEET_WIDTH:
            x, y = 0, y + height
        seconds = float(seconds_of(video, DetectionColumns.of([frame], [label], [box]))[0])
        places.append([video.info.id, frame, *box, x, y, width])
        items.append(
            {
                "video": video.name,
                "frame": frame,
                "time": seconds,
                "box": list(box),
                "label": label,
                "x": x,
                "y": y,
                "width": width,
                "height": height,
            }
        )
        x += width
    token = base64.urlsafe_b64encode(zlib.compress(json.dumps([height, places]).encode()))
    return {
        "sprite": f"/api/1/crops.jpg?c={token.decode().rstrip('=')}" if items else None,
        "items": items,
        "next": str(after + limit) if len(found) == limit else None,
        **unknown_labels_in(call),
    }


_Box = tuple[int, int, int, int]


def _boxes(
    call: Call, store: Store, chosen: Sequence[tuple[int, str]] | None
) -> Iterator[tuple[Video, int, str, _Box]]:
    """Yield boxes: of each video the first one, then of each the second, and so on."""
    lists = []
    for info in islice(_labelled(call, store, chosen), _SCANNED_VIDEOS):
        video = store.open_video(info)
        lists.append(_boxes_of(call, video))
    while lists:
        left = []
        for one in lists:
            found = next(one, None)
            if found is not None:
                yield found
                left.append(one)
        lists = left


def _labelled(
    call: Call, store: Store, chosen: Sequence[tuple[int, str]] | None
) -> Iterator[LogicalVideo]:
    """Yield the videos that have a label of the query."""
    clauses = [one for one in clauses_of(call.query.get("q") or None) if one.is_plain]
    with store.catalog.reading() as seen:
        what = make_video_filter(None, set(), None, None, None)
        allowed = None if chosen is None else dict(chosen)
        found: dict[int, str] = {}
        # One clause is enough here; without any, each label counts.
        for word in sorted(clauses[0].labels) if clauses else [None]:
            pages = seen.lists.pages(what, label=word)
            for one in pages.page("name", None, _SCANNED_VIDEOS if allowed is None else 1 << 30):
                if allowed is None or one.ino in allowed:
                    found[one.ino] = one.name
    names = sorted(found.items(), key=lambda pair: pair[1])
    for at in range(0, len(names), _CHUNK):
        some = dict(names[at : at + _CHUNK])
        with store.catalog.reading() as seen:
            infos = seen.videos.by_inodes(some)
        yield from sorted(infos, key=lambda info: info.name)


def _boxes_of(call: Call, video: Video) -> Iterator[tuple[Video, int, str, _Box]]:
    query = call.query
    start, end = moment_in(query, "from"), moment_in(query, "to")
    span = None
    captured = video.info.captured
    if start is not None or end is not None:
        if captured is None:
            return
        low = max(0.0, ((start or captured.ns) - captured.ns) / NS)
        high = float(video.duration) if end is None else (end - captured.ns) / NS
        if high <= low or low >= video.duration:
            return
        span = (low, min(high, float(video.duration)))
    found = find_boxes(
        context_of(video), query.get("q") or None, span=span, region=region_in(query)
    )
    # The first rows are enough for a page of crops, however many boxes the video has.
    rows = next(iter(found.batches()), None)
    if rows is None:
        return
    order = _varied(rows)
    words = rows.labels
    for at in order:
        rect = rows[int(at)].rect(video.width, video.height)
        if rect is not None:
            box = (rect.x1, rect.y1, rect.x2, rect.y2)
            yield video, int(rows.frames[at]), str(words[at]), box


def _varied(rows: DetectionColumns) -> Sequence[int]:
    """Return rows so that each object comes once first, and then the others, far apart."""
    count = len(rows)
    tracked = np.flatnonzero(rows.tracks >= 0)
    _, first = np.unique(rows.tracks[tracked], return_index=True)
    begin: list[int] = np.sort(tracked[first]).tolist()
    if not begin:
        # Evenly spaced, each time twice as dense.
        seen: dict[int, None] = {}
        step = count
        while step >= 1:
            for at in range(0, count, step):
                seen.setdefault(at)
            step //= 2
        return list(seen)
    rest = set(begin)
    return begin + [at for at in range(count) if at not in rest]


def crop_sheet(call: Call) -> Response:
    token = call.query.get("c", "")
    sheets = call.web.crop_sheets
    data = sheets.get(token)
    height, places = _opened(token)
    store = call.web.store
    videos: dict[int, Video] = {}
    with store.catalog.reading() as seen:
        for number in {place[0] for place in places}:
            videos[number] = store.open_video(seen.videos.get(number))
    if not all(call.user.may_see(video.name) for video in videos.values()):
        raise NotFoundError("no such video")
    if data is None:
        data = encode_jpeg(_drawn(videos, height, places), quantiser=4)
        sheets.put(token, data)
    headers = {"Cache-Control": "private, max-age=86400"}
    return Response(data, headers=headers, media_type="image/jpeg")


def _drawn(videos: dict[int, Video], height: int, places: Sequence[Sequence[int]]) -> Pixels:
    bottom = max(place[7] for place in places) + height
    right = max(place[6] + place[8] for place in places)
    sheet = np.zeros((bottom, right, 3), np.uint8)
    groups: dict[tuple[int, int], list[Sequence[int]]] = {}
    for place in places:
        groups.setdefault((place[0], place[8]), []).append(place)
    for (number, width), some in groups.items():
        boxes = [(place[1], (place[2], place[3], place[4], place[5])) for place in some]
        for place, crop in zip(
            some, videos[number].crops(boxes, size=(width, height)), strict=True
        ):
            x, y = place[6], place[7]
            sheet[y : y + height, x : x + width] = crop.data
    return sheet


def _opened(token: str) -> tuple[int, list[list[int]]]:
    """Return the height and the places of a token.  Raises `UsageError` for another text."""
    wrong = UsageError("c must be from /api/1/crops")
    if len(token) > _MAX_TOKEN:
        raise wrong
    try:
        packed = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
        opener = zlib.decompressobj()
        height, places = json.loads(opener.decompress(packed, 1 << 16))
    except (ValueError, TypeError, zlib.error):
        raise wrong from None
    numbers = [height, *(one for place in places for one in place)] if places else []
    if (
        not isinstance(places, list)
        or not 0 < len(places) <= _MAX_CROPS
        or not all(len(place) == 9 for place in places)
        or not all(type(one) is int and 0 <= one < 1 << 40 for one in numbers)
        or not 16 <= height <= _MAX_HEIGHT
        or not all(
            place[6] + place[8] <= _SHEET_WIDTH + _WIDEST * _MAX_HEIGHT
            and 0 < place[8] <= _WIDEST * _MAX_HEIGHT
            and place[7] <= _MAX_CROPS * _MAX_HEIGHT
            for place in places
        )
    ):
        raise wrong
    return height, places


ENDPOINTS = (
    Endpoint(
        "GET",
        "/api/1/crops",
        crops,
        "Boxes of many videos, and a sheet with their pixels.",
        {
            **LIST_FIELDS,
            **UNKNOWN_LABELS_FIELDS,
            "sprite": "URL of the sheet, null without boxes",
            "items[].video": "path of the video",
            "items[].frame": "number of the frame",
            "items[].time": "seconds of the frame",
            "items[].box": "[x1, y1, x2, y2] in pixels of the displayed frame",
            "items[].label": "label",
            "items[].x": "left edge in the sheet",
            "items[].y": "upper edge in the sheet",
            "items[].width": "pixels in the sheet",
            "items[].height": "pixels in the sheet",
        },
        (
            IN_PARAMETER,
            QUERY_PARAMETER,
            Parameter("region", "only boxes that overlap it: WxH+X+Y"),
            Parameter("from", "recorded at this time or later, ISO 8601"),
            Parameter("to", "recorded before this time, ISO 8601"),
            Parameter("n", f"number of crops, up to {_MAX_CROPS}; default 24", "integer"),
            Parameter("h", f"pixels of their height, 16 to {_MAX_HEIGHT}; default 96", "integer"),
            Parameter("after", "the `next` of the page before"),
        ),
        is_scoped=True,
    ),
    Endpoint(
        "GET",
        "/api/1/crops.jpg",
        crop_sheet,
        "A sheet of crops.",
        {},
        (Parameter("c", "as in /api/1/crops", required=True),),
        is_scoped=True,
    ),
)
