"""Views: videos in other forms, as files of known size that are made when they are read.

`folder` shows them below ``NAME@/``, `single` gives one by itself; `rendition` says what a name
stands for; `slots` and `allotment` give every byte its place before it is made; `copying`,
`stitching`, `splicing`, `encoding` and `raw` make the bytes and `sounding` what is heard with them,
`explaining` counts what that takes;
`rendering` sees to it that each is made once, by the threads of `renderqueue`, `forerunner` has
those made that a reader will want next, and `rendercache` keeps them.  `offers` takes frames that
somebody writes.
"""

from vfsd.views.explain import ViewExplanation
from vfsd.views.export import explain_path, explain_view, open_view, render, sound_of_view
from vfsd.views.rendered_view import SoundOfView
from vfsd.views.uploads import Offer
from vfsd.views.views import Views

__all__ = [
    "Offer",
    "SoundOfView",
    "ViewExplanation",
    "Views",
    "explain_path",
    "explain_view",
    "open_view",
    "render",
    "sound_of_view",
]
