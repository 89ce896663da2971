"""`Video`: one video of a store, as a sequence of frames."""

from __future__ import annotations

from types import TracebackType

from vfsd.api.advice import VideoAdvice
from vfsd.api.budget import VideoBudget
from vfsd.api.detect import VideoDetect
from vfsd.api.original import VideoOriginal
from vfsd.api.save import VideoFiles
from vfsd.api.scanning import VideoScans
from vfsd.api.sequence import VideoSequence
from vfsd.api.tiles import VideoTiles
from vfsd.api.uploads import VideoWrites


class Video(
    VideoSequence,
    VideoDetect,
    VideoTiles,
    VideoWrites,
    VideoAdvice,
    VideoScans,
    VideoBudget,
    VideoOriginal,
    VideoFiles,
):
    """One video of a store.  Frames are exact: `video[i]` is the i-th frame of a full decode.

    Indexing with an int gives a `Frame`, with a slice, a list of ints or a mask `Frames`; with a
    slice of times, or with several axes, a lazy `VideoArray`:

        video[7]                             frame 7
        video[-1], video[0:30:2]             the last frame; every second frame of the first 30
        video[[5, 900, 17]]                  three frames, each decoded once
        video[is_bright]                     those where an array of len(video) bools is true
        video.seconds[10:20, 100:400, 200:600]  ten seconds of a region, decoded when asked for

    Nothing is opened or scanned before the first frame is read.  Safe to use from several
    threads and after a fork; decoders belong to the store and are shared.
    """

    def __enter__(self) -> Video:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Nothing of its own is open; decoders go with the store."""
