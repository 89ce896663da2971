"""``explain/``: what the views beside it take to make.

    explain/roi=400x300+600+300.mp4.json    what is copied, decoded and encoded for that view
    explain/frames/000123.png.json          the same of a still

The numbers are those of ``vfsd explain``.
"""

from __future__ import annotations

import json

from vfsd.core import view_path
from vfsd.errors import NotFoundError
from vfsd.read.pack_pool import PackPool
from vfsd.views.explain import ViewExplanation, explained_still, explained_view
from vfsd.views.rendered_view import TextRendition
from vfsd.views.renderfacts import RenderFacts
from vfsd.views.source import Footage

EXPLAIN = "explain"

_STILLS = "frames"
_FRAMES = f"{EXPLAIN}/{_STILLS}"
_ENDING = ".json"


def is_of_explain(path: str) -> bool:
    return path == EXPLAIN or path.startswith(EXPLAIN + "/")


def is_explain_folder(path: str) -> bool:
    """Neither lists a file: any view can be asked for."""
    return path in (EXPLAIN, _FRAMES)


def explained(
    name: str, footage: Footage, packs: PackPool, path: str, facts: RenderFacts
) -> TextRendition:
    """The file at `path`, about a view of the video called `name`.

    Raises what the view itself would.
    """
    if not path.endswith(_ENDING) or is_explain_folder(path):
        raise NotFoundError(f"no such view: {path!r}")
    asked = path.removeprefix(EXPLAIN + "/").removesuffix(_ENDING)
    content = explained_path(footage, packs, asked, facts).record
    text = json.dumps({"name": name, **content}, indent=2) + "\n"
    return TextRendition(text.encode())


def explained_path(
    footage: Footage, packs: PackPool, path: str, facts: RenderFacts
) -> ViewExplanation:
    """What the view, or the still, at a path below ``NAME@/`` takes.  Raises what it would."""
    folder, slash, file = path.rpartition("/")
    if not slash:
        return explained_view(footage, view_path.parse(path), packs, facts)
    if folder != _STILLS:
        raise NotFoundError(f"no such view: {path!r}")
    index, _ = view_path.parse_still(file)
    return explained_still(footage, index, path)
