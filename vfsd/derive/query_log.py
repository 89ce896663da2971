"""The log of reads as policies are told it: what was looked for, on which frames.

A label is told as an expression (see `vfsd.core.label_query`), so that

    car                 is one aim: the boxes of cars
    car|truck           are two, either of which may have tiles of its own
    car|truck & red     is one: boxes that are both, which the index finds as it does for a scan

and a region as the area of the stored picture that its pixels come from.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from vfsd.codecs.frames.to_array import needed_area
from vfsd.core.label_query import format_labels
from vfsd.core.model import MediaInfo, Read
from vfsd.tiling import Rect
from vfsd.tiling.policy import Aim, Aims, Query, Size


@dataclass(frozen=True, slots=True)
class Asked:
    """A read that tiles could have made cheaper."""

    query: Query
    at_ns: int  #: Unix time at which it began


def asked_by(reads: Iterable[Read], media: MediaInfo) -> list[Asked]:
    """What reads of one video looked for, the oldest first.

    Those of whole frames are left out: they take the same whatever tiles there are, so they speak
    neither for a layout nor against it.
    """
    whole = Rect.of_size(media.width, media.height)
    known: dict[tuple[object, ...], Aims] = {}  # people read the same again and again
    found = []
    for read in sorted(reads, key=lambda read: (read.at_ns, read.id)):
        key = read.labels, read.region
        if key not in known:
            known[key] = _aims(read, media)
        if whole not in known[key]:
            found.append(Asked(Query(_frames(read), known[key]), read.at_ns))
    return found


def sizes_asked_by(reads: Iterable[Read], media: MediaInfo) -> list[Asked]:
    """Which sizes whole frames were read in, the oldest first.

    Each as the size of the smallest rendition that would serve it: renditions have even sizes, so
    an odd one is asked for as its double.  What is not smaller than the picture is left out.
    """
    order = sorted(reads, key=lambda read: (read.at_ns, read.id))
    found = []
    for read in order:
        size = _rendition_for(read, media)
        if size is not None:
            found.append(Asked(Query(_frames(read), frozenset([size])), read.at_ns))
    return found


def _rendition_for(read: Read, media: MediaInfo) -> Size | None:
    if read.size is None or read.region != media.frame_rect:
        return None
    width, height = read.size if media.rotation % 180 == 0 else read.size[::-1]
    times = 1 if width % 2 == height % 2 == 0 else 2
    width, height = times * width, times * height
    fits = width <= media.width and height <= media.height
    is_smaller = fits and (width, height) != (media.width, media.height)
    return Size(width, height) if is_smaller else None


def _frames(read: Read) -> range:
    """Of frames that are not in a row, as many as there were, evenly spread."""
    between = read.end_frame - 1 - read.first_frame
    if read.kind == "scan" or read.frames < 2:
        return range(read.first_frame, read.end_frame)
    return range(read.first_frame, read.end_frame, max(1, between // (read.frames - 1)))


def _aims(read: Read, media: MediaInfo) -> Aims:
    """Of labels, all boxes that carry them: a read that wanted only those in a region, or with some
    confidence, is taken for one of all."""
    if read.labels is None:
        # How it was converted is not remembered; nothing else looks at more than this.
        region = read.region.intersection(media.frame_rect) or media.frame_rect
        aims: list[Aim] = [needed_area(media, "rgb24", region, None)]
        return frozenset(aims)
    if len(read.labels) == 1:
        return frozenset(format_labels([[label]]) for label in read.labels[0])
    return frozenset([format_labels(read.labels)])
