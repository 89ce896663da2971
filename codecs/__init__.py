"""Reads, decodes, encodes and writes media files. Only this package imports PyAV."""

from av import VideoFrame

__all__ = ["VideoFrame"]
