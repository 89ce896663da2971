"""Media files: what is in them, their frames, and making new ones.  PyAV is known in here only."""

import av
from av import VideoFrame

__all__ = ["VideoFrame", "library_versions"]


def library_versions() -> str:
    """PyAV's version and that of the decoders in it."""
    codec = ".".join(str(part) for part in av.library_versions["libavcodec"])
    return f"PyAV {av.__version__}, libavcodec {codec}"
