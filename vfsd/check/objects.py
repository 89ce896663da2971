"""Objects: those that are recorded, no others, and as they were stored."""

from __future__ import annotations

from collections.abc import Iterator

from vfsd.check import bytes as stored
from vfsd.check.finding import Finding, Run
from vfsd.check.spool import dead_copies
from vfsd.mending import drop_segments
from vfsd.objects import is_key
from vfsd.reclaim import discard_unpublished


def objects(run: Run) -> Iterator[Finding]:
    with run.parts.catalog.reading() as seen:
        recorded = seen.objects.sizes()
        packs = {segment.object_key for segment in seen.segments.all()}  # see "tiles"
    for key, size in sorted(recorded.items()):
        if key in packs:
            continue
        if not is_key(key):
            yield Finding("objects", f"{key[:80]!r} is no name of an object")
            continue
        path = run.parts.objects.path(key)
        if not path.exists():
            yield Finding("objects", f"object {key} is missing ({size} bytes)")
        elif path.stat().st_size != size:
            yield Finding("objects", f"object {key} has {path.stat().st_size} bytes, not {size}")


def garbage(run: Run) -> Iterator[Finding]:
    parts = run.parts
    if run.mounted:
        return  # it may be on its way into the catalog
    with parts.catalog.reading() as seen:
        recorded = seen.objects.sizes()
    for key in parts.objects.all_keys():
        if key not in recorded:
            if run.repair:
                discard_unpublished(parts, key)
            yield Finding("garbage", f"object {key} is not in the catalog", repaired=run.repair)
    left = [*parts.objects.leftovers(), *parts.objects.misnamed(), *dead_copies(parts)]
    for path in left:
        if run.repair:
            path.unlink(missing_ok=True)
        yield Finding("garbage", f"{path.name} was left on its way", repaired=run.repair)


def content(run: Run) -> Iterator[Finding]:
    with run.parts.catalog.reading() as seen:
        segments = seen.segments.all()
    for key in list(run.parts.objects.all_keys()):
        message = stored.damage_of_object(run.parts, key)
        if message is None:
            continue
        tiles = [segment for segment in segments if segment.object_key == key]
        if tiles and run.repair:
            drop_segments(run.parts, tiles)
        yield Finding(
            "content",
            f"{'pack' if tiles else 'object'} {key} is damaged: {message}",
            repaired=bool(tiles) and run.repair,
        )
