"""Label files of other programs, read and written: nothing here knows stores.

Inside, frames count from 0 and boxes are ``x1, y1, x2, y2``, the second corner exclusive; each
format says for itself from what it counts, and whether its edges are inclusive.  Sums are done in
decimal numbers, so that what is written and read again is the very same box.
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
