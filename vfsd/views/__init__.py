"""Views: videos in other forms, as files of known size that are made when they are read.

`folder` shows them below ``NAME@/``, `single` gives one by itself; `rendition` says what a name
stands for; `slots` and `allotment` give every byte its place before it is made; `copying`,
`stitching`, `splicing`, `encoding` and `raw` make the bytes and `sounding` what is heard with them,
`explaining` counts what that takes;
`rendering` sees to it that each is made once, by the threads of `renderqueue`, `forerunner` has
those made that a reader will want next, and `rendercache` keeps them.  `offers` takes frames that
somebody writes.
"""

from vfsd.views.rendered_view import ViewAudioSummary
from vfsd.views.view_explanation import ViewExplanation
from vfsd.views.view_export import (
    explain_path,
    explain_view,
    open_view,
    render,
    summarize_view_audio,
)
from vfsd.views.view_uploads import ViewUpload
from vfsd.views.views import Views

__all__ = [
    "ViewAudioSummary",
    "ViewExplanation",
    "ViewUpload",
    "Views",
    "explain_path",
    "explain_view",
    "open_view",
    "render",
    "summarize_view_audio",
]
