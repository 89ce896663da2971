"""``explain/``: what the views beside it take to make.

    explain/roi=400x300+600+300.mp4.json    what is decoded for that view, and from where
    explain/frames/000123.png.json          the same of a still

The numbers are those of ``vfsd explain``.
"""

from __future__ import annotations

import json
from typing import Any

from vfsd import grammar
from vfsd.codecs.pictures.filelayouts import lossless_layout
from vfsd.errors import NotFoundError
from vfsd.model import MediaInfo
from vfsd.reading.explain import explain, record
from vfsd.reading.packs import PackPool
from vfsd.reading.plan import make_plan
from vfsd.reading.tileplan import Costs
from vfsd.view import View
from vfsd.views.encoding import EncodedRendition
from vfsd.views.footage import Footage
from vfsd.views.pictures import view_picture_form
from vfsd.views.rendition import TextRendition, ViewRendition, rendition_of, require_frame, sound_of

EXPLAIN = "explain"

_FRAMES = f"{EXPLAIN}/frames"
_ENDING = ".json"


def is_of_explain(path: str) -> bool:
    return path == EXPLAIN or path.startswith(EXPLAIN + "/")


def is_explain_folder(path: str) -> bool:
    """Neither lists a file: any view can be asked for."""
    return path in (EXPLAIN, _FRAMES)


def explained(name: str, footage: Footage, packs: PackPool, path: str) -> TextRendition:
    """The file at `path`, about a view of the video called `name`.

    Raises what the view itself would.
    """
    folder, _, file = path.rpartition("/")
    if not is_explain_folder(folder) or not file.endswith(_ENDING):
        raise NotFoundError(f"there is no view {path!r}")
    asked = file.removesuffix(_ENDING)
    content = _still(footage, asked) if folder == _FRAMES else _view(footage, packs, asked)
    text = json.dumps({"name": name, **content}, indent=2) + "\n"
    return TextRendition(text.encode())


def _view(footage: Footage, packs: PackPool, asked: str) -> dict[str, Any]:
    media = footage.physical.media
    request = grammar.parse(asked).of_region(media.display_width, media.display_height)
    if request.psnr is not None:
        footage = footage.of_quality(request.psnr)
    rendition = rendition_of(footage, request, packs)
    why = rendition.why if isinstance(rendition, EncodedRendition) else None
    view = request.sized(media.display_width, media.display_height)
    pictures = view_picture_form(media, view, request.form)
    found = _planned(footage, view, pictures.pixel_format)
    codec, silence = sound_of(footage, request)
    told = {"view": grammar.unparse(request), "made": rendition.made, "why": why}
    told["lost"] = _lost(rendition, media)
    return {**told, "sound": codec, "silence": silence, **found}


def _lost(rendition: ViewRendition, media: MediaInfo) -> str | None:
    """What a lossless view has not of the source's samples."""
    if not isinstance(rendition, EncodedRendition) or not rendition.is_lossless:
        return None
    kept = lossless_layout(media)
    if rendition.pixel_format == kept.layout:
        return kept.lost
    return f"its pixels are {media.pixel_format}, and {rendition.pixel_format} was asked for"


def _still(footage: Footage, asked: str) -> dict[str, Any]:
    index, _ = grammar.parse_still(asked)
    require_frame(footage, index)
    found = _planned(footage, View(frames=(index, index + 1, 1)), "rgb24")
    return {"view": f"frames/{asked}", "made": "decoded", **found}


def _planned(footage: Footage, view: View, pixel_format: str) -> dict[str, Any]:
    plan = make_plan(
        view,
        footage.physical,
        footage.table,
        pixel_format=pixel_format,
        tiles=footage.tiles,
    )
    costs = footage.tiles.costs if footage.tiles is not None else Costs()
    return record(explain(plan, footage.table, costs))
