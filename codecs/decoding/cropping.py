"""Cropping decoded pictures, as their container wants them to be shown."""

from __future__ import annotations

from fractions import Fraction

import av
from av.filter import Graph

from vfsd.core.model import NOT_CROPPED, Crop

_Form = tuple[int, int, str]


class Cropper:
    """Not thread-safe."""

    def __init__(self, crop: Crop) -> None:
        """Pixels to be taken off each side, whole samples of colour."""
        self._crop = crop
        self._form: _Form | None = None
        self._graph: Graph | None = None

    def shown(self, picture: av.VideoFrame) -> av.VideoFrame:
        """What is left of a picture; the picture itself where nothing is cropped."""
        if self._crop == NOT_CROPPED:
            return picture
        form = (picture.width, picture.height, picture.format.name)
        if self._graph is None or form != self._form:
            self._graph, self._form = self._new_graph(form), form
        pts = picture.pts
        self._graph.push(picture)
        made = self._graph.pull()
        assert isinstance(made, av.VideoFrame)
        made.pts = pts
        return made

    def _new_graph(self, form: _Form) -> Graph:
        left, top, right, bottom = self._crop
        width, height, pixel_format = form
        graph = Graph()
        graph.threads = 1  # examining may start no thread
        source = graph.add_buffer(
            width=width, height=height, format=av.VideoFormat(pixel_format), time_base=Fraction(1)
        )
        size = f"{width - left - right}:{height - top - bottom}"
        crop = graph.add("crop", f"{size}:{left}:{top}:exact=1")
        # Planes that begin within others would be read beyond their end.
        copy = graph.add("copy")
        sink = graph.add("buffersink")
        source.link_to(crop)
        crop.link_to(copy)
        copy.link_to(sink)
        graph.configure()
        return graph
