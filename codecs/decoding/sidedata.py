"""What a decoded picture comes with beside its samples, where PyAV does not know all of it.

PyAV raises `ValueError` for all of it where FFmpeg has given a picture one kind that PyAV has no
name for, as it does of EXIF.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import av
from av.filter import Graph
from av.sidedata.sidedata import SideData
from av.sidedata.sidedata import Type as SideDataType

_KINDS = 128
"""FFmpeg numbers its kinds from 0; it has far fewer."""


def known_side_data(frame: av.VideoFrame) -> list[SideData]:
    """What of it PyAV has a name for."""
    found = _side_data(frame)
    return (_side_data(_known_only(frame)) or []) if found is None else found


def has_unknown_side_data(frame: av.VideoFrame) -> bool:
    """Whether there is something that PyAV has no name for."""
    return _side_data(frame) is None


def _side_data(frame: av.VideoFrame) -> list[SideData] | None:
    """None: there is something that PyAV has no name for."""
    try:
        entries: Any = frame.side_data  # a sequence, whatever its annotation says
        return list(entries)
    except ValueError:
        return None


def _known_only(frame: av.VideoFrame) -> av.VideoFrame:
    """`frame` with what PyAV has no name for taken off."""
    known: set[Any] = {kind.value for kind in SideDataType}
    graph = Graph()
    graph.threads = 1  # examining may start no thread
    last = graph.add_buffer(
        width=frame.width, height=frame.height, format=frame.format, time_base=Fraction(1)
    )
    for number in range(_KINDS):
        if number not in known:
            following = graph.add("sidedata", f"mode=delete:type={number}")
            last.link_to(following)
            last = following
    sink = graph.add("buffersink")
    last.link_to(sink)
    graph.configure()
    graph.push(frame)
    pulled = graph.pull()
    assert isinstance(pulled, av.VideoFrame)
    return pulled
