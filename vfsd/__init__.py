"""vfsd: a video store that is used as a directory.

from vfsd import Store

with Store.open("/srv/videos") as store:
    video = store["cam1/a.mp4"]
    clip = video.read(span=(10, 20), region=(600, 300, 1000, 600))
    print(clip.data.shape, clip.seconds)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vfsd.advising.workload import WorkloadQuery
    from vfsd.catalog import Catalog
    from vfsd.codecs.sound.samples import SoundFormat
    from vfsd.detections import Detection, DetectionColumns, Source
    from vfsd.errors import VfsdError
    from vfsd.frames import Frame, Frames
    from vfsd.joints.jointsettings import JoinSettings
    from vfsd.making.planned import TileSettings
    from vfsd.store import Store
    from vfsd.tiling import Rect
    from vfsd.videos.array import VideoArray
    from vfsd.videos.video import Video

__version__ = "0.1.0"

__all__ = [
    "Catalog",
    "Detection",
    "DetectionColumns",
    "Frame",
    "Frames",
    "JoinSettings",
    "Rect",
    "SoundFormat",
    "Source",
    "Store",
    "TileSettings",
    "VfsdError",
    "Video",
    "VideoArray",
    "WorkloadQuery",
    "__version__",
]

_HOMES = {
    "Catalog": "vfsd.catalog",
    "Detection": "vfsd.detections",
    "DetectionColumns": "vfsd.detections",
    "Frame": "vfsd.frames",
    "Frames": "vfsd.frames",
    "JoinSettings": "vfsd.joints.jointsettings",
    "Rect": "vfsd.tiling",
    "SoundFormat": "vfsd.codecs.sound.samples",
    "Source": "vfsd.detections",
    "Store": "vfsd.store",
    "TileSettings": "vfsd.making.planned",
    "VfsdError": "vfsd.errors",
    "Video": "vfsd.videos.video",
    "VideoArray": "vfsd.videos.array",
    "WorkloadQuery": "vfsd.advising.workload",
}


def __getattr__(name: str) -> Any:
    # Loaded when first asked for, so that `vfsd --help` does not wait for numpy and SQLAlchemy.
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
