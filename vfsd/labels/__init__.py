"""Reads and writes label files of other programs; independent of stores.

Internally, frames count from 0 and boxes are ``x1, y1, x2, y2``, the second corner exclusive.  Each
format documents its own base and whether its edges are inclusive.  Arithmetic is decimal, so a box
that is written and read again is unchanged.
"""

from vfsd.labels.formats.class_names import names_for
from vfsd.labels.formats.format_registry import (
    FORMATS,
    export_path,
    format_of,
    from_supervision,
    read_labels,
    unsupported_content,
    write_dataset,
    write_labels,
)
from vfsd.labels.formats.label_file import (
    LabeledVideo,
    LabelExport,
    LabelFile,
    LabelReadOptions,
    LabelWriteOptions,
    examined_frames,
)

__all__ = [
    "FORMATS",
    "LabelExport",
    "LabelFile",
    "LabelReadOptions",
    "LabelWriteOptions",
    "LabeledVideo",
    "examined_frames",
    "export_path",
    "format_of",
    "from_supervision",
    "names_for",
    "read_labels",
    "unsupported_content",
    "write_dataset",
    "write_labels",
]
