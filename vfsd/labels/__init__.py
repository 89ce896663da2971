"""Label files of other programs, read and written: nothing here knows stores.

Inside, frames count from 0 and boxes are ``x1, y1, x2, y2``, the second corner exclusive; each
format says for itself from what it counts, and whether its edges are inclusive.  Sums are done in
decimal numbers, so that what is written and read again is the very same box.
"""

from vfsd.labels.formats.base import (
    Clip,
    LabelFile,
    Labelled,
    ReadOptions,
    WriteOptions,
    examined_frames,
)
from vfsd.labels.formats.class_names import names_for
from vfsd.labels.formats.registry import (
    FORMATS,
    format_of,
    lost_in,
    place_of,
    read_labels,
    write_dataset,
    write_labels,
)
from vfsd.labels.formats.supervision import from_supervision

__all__ = [
    "FORMATS",
    "Clip",
    "LabelFile",
    "Labelled",
    "ReadOptions",
    "WriteOptions",
    "examined_frames",
    "format_of",
    "from_supervision",
    "lost_in",
    "names_for",
    "place_of",
    "read_labels",
    "write_dataset",
    "write_labels",
]
