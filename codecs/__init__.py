"""Reads, decodes, encodes and writes media files. Only this package imports PyAV."""

import av
from av import VideoFrame

__all__ = ["VideoFrame", "library_versions"]


def library_versions() -> str:
    """Return the versions of PyAV and of the libavcodec that it uses."""
    codec = ".".join(str(part) for part in av.library_versions["libavcodec"])
    return f"PyAV {av.__version__}, libavcodec {codec}"
