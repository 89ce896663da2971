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
    from vfsd.api.array import VideoArray
    from vfsd.api.store import Store
    from vfsd.api.video import Video
    from vfsd.catalog import Catalog
    from vfsd.codecs.audio.samples import AudioFormat
    from vfsd.core.detections import Detection, DetectionColumns, Source
    from vfsd.core.frames import Frame, Frames
    from vfsd.derive.tile_encoder import TileSettings
    from vfsd.derive.workload import WorkloadQuery
    from vfsd.errors import VfsdError
    from vfsd.overlap.join_encoder import JoinSettings
    from vfsd.tiling import Rect

__version__ = "0.1.0"

__all__ = [
    "AudioFormat",
    "Catalog",
    "Detection",
    "DetectionColumns",
    "Frame",
    "Frames",
    "JoinSettings",
    "Rect",
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
    "AudioFormat": "vfsd.codecs.audio.samples",
    "Catalog": "vfsd.catalog",
    "Detection": "vfsd.core.detections",
    "DetectionColumns": "vfsd.core.detections",
    "Frame": "vfsd.core.frames",
    "Frames": "vfsd.core.frames",
    "JoinSettings": "vfsd.overlap.join_encoder",
    "Rect": "vfsd.tiling",
    "Source": "vfsd.core.detections",
    "Store": "vfsd.api.store",
    "TileSettings": "vfsd.derive.tile_encoder",
    "VfsdError": "vfsd.errors",
    "Video": "vfsd.api.video",
    "VideoArray": "vfsd.api.array",
    "WorkloadQuery": "vfsd.derive.workload",
}


def __getattr__(name: str) -> Any:
    # Loaded when first asked for, so that `vfsd --help` does not wait for numpy and SQLAlchemy.
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
