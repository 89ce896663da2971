"""Views: a video in another form, served as a file of known size that is rendered when it is read.

`Views` is the tree below ``NAME@/`` of a mount, and `view_export` opens or writes one view without
a mount. `view_resolver` parses a path and `rendered_view` chooses the cheapest method:
`stream_copy`, `stitch`, `smart_cut`, `transcode` or `raw_view`.  The size of each slot of a file is
fixed before the slot is rendered (`view_slots`, `rate_control`).  `rendering` renders each slot
once, prefetches for sequential readers and keeps the results (`render_cache`, `cached_views`).
`view_uploads` accepts frames that are written to a view.
"""

from vfsd.views.playable import PlayableView, playable_view
from vfsd.views.rendered_view import ViewAudioSummary
from vfsd.views.timeline_files import TimelineFiles, timeline_view
from vfsd.views.view_explanation import ViewExplanation
from vfsd.views.views import (
    Views,
    ViewUpload,
    explain_path,
    explain_view,
    open_timeline,
    open_view,
    render,
    save_timeline,
    summarize_view_audio,
)

__all__ = [
    "PlayableView",
    "TimelineFiles",
    "ViewAudioSummary",
    "ViewExplanation",
    "ViewUpload",
    "Views",
    "explain_path",
    "explain_view",
    "open_timeline",
    "open_view",
    "playable_view",
    "render",
    "save_timeline",
    "summarize_view_audio",
    "timeline_view",
]
