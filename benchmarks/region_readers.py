"""Other ways to read a region of a video as RGB, each following its own documentation."""

from __future__ import annotations

import importlib
import importlib.util
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np
import numpy.typing as npt

from vfsd.tiling import Rect

Pixels = npt.NDArray[np.uint8]
_BATCH = 32  # frames per batch: all frames of a 4K clip take gigabytes


@dataclass(frozen=True)
class Task:
    """The region of the first `frames` frames of a file, as frames x rows x columns x RGB."""

    path: Path
    frames: int
    region: Rect

    def empty(self) -> Pixels:
        return np.empty((self.frames, self.region.height, self.region.width, 3), np.uint8)

    @property
    def cut(self) -> tuple[slice, slice]:
        return slice(self.region.y1, self.region.y2), slice(self.region.x1, self.region.x2)


Read = Callable[[Task, int], Pixels]
"""Does a task with so many threads; 0: as many as the reader thinks right."""


def readers() -> dict[str, Read]:
    """The installed readers."""
    found: dict[str, Read] = {
        "OpenCV": opencv,
        "PyAV, whole frames": pyav_whole,
        "PyAV, crop, convert": pyav_planes,
    }
    if shutil.which("ffmpeg"):
        found["ffmpeg -vf crop"] = ffmpeg
    if importlib.util.find_spec("decord"):
        found["decord"] = decord
    if importlib.util.find_spec("torchcodec"):
        found["torchcodec"] = torchcodec
    return found


def ffmpeg(task: Task, threads: int) -> Pixels:
    region = task.region
    crop = f"crop={region.width}:{region.height}:{region.x1}:{region.y1}"
    result = task.empty()
    command = [
        *("ffmpeg", "-v", "error", "-threads", str(threads), "-i", str(task.path)),
        *("-map", "0:v:0", "-fps_mode", "passthrough", "-frames:v", str(task.frames)),
        *("-vf", crop, "-f", "rawvideo", "-pix_fmt", "rgb24", "pipe:1"),
    ]
    buffer: Any = result  # arrays are, but not by their annotation
    with subprocess.Popen(command, stdout=subprocess.PIPE, bufsize=-1) as process:
        pipe: Any = process.stdout
        read = pipe.readinto(memoryview(buffer).cast("B"))
    if read != result.nbytes:
        raise ValueError(f"ffmpeg gave {read} bytes of {result.nbytes}")
    return result


def opencv(task: Task, threads: int) -> Pixels:
    settings = [cv2.CAP_PROP_N_THREADS, threads]
    capture = cv2.VideoCapture(str(task.path), cv2.CAP_FFMPEG, settings)
    result = task.empty()
    for place in range(task.frames):
        found, frame = capture.read()
        if not found:
            raise ValueError(f"OpenCV gave {place} frames of {task.frames}")
        cv2.cvtColor(frame[task.cut], cv2.COLOR_BGR2RGB, result[place])
    capture.release()
    return result


def _pyav_frames(task: Task, threads: int) -> Iterator[tuple[int, av.VideoFrame]]:
    with av.open(str(task.path)) as container:
        stream = container.streams.video[0]
        stream.codec_context.thread_count = threads
        stream.thread_type = "AUTO"
        for place, frame in enumerate(container.decode(stream)):
            if place == task.frames:
                return
            yield place, frame


def pyav_whole(task: Task, threads: int) -> Pixels:
    result = task.empty()
    for place, frame in _pyav_frames(task, threads):
        result[place] = frame.to_ndarray(format="rgb24")[task.cut]
    return result


def pyav_planes(task: Task, threads: int) -> Pixels:
    """Crops the planes of 4:2:0 frames, then converts them; the region begins at even pixels."""
    result = task.empty()
    region = task.region
    part = av.VideoFrame(region.width, region.height, "yuv420p")
    for place, frame in _pyav_frames(task, threads):
        for number, (source, target) in enumerate(zip(frame.planes, part.planes, strict=True)):
            shared = 2 if number else 1
            rows = slice(region.y1 // shared, region.y2 // shared)
            columns = slice(region.x1 // shared, region.x2 // shared)
            _samples(target)[:, : target.width] = _samples(source)[rows, columns]
        part.colorspace, part.color_range = frame.colorspace, frame.color_range
        result[place] = part.to_ndarray(format="rgb24")
    return result


def _samples(plane: Any) -> Pixels:
    return np.frombuffer(plane, np.uint8).reshape(plane.height, plane.line_size)


def decord(task: Task, threads: int) -> Pixels:
    reader = importlib.import_module("decord").VideoReader(str(task.path), num_threads=threads)
    result = task.empty()
    for start in range(0, task.frames, _BATCH):
        frames = range(start, min(task.frames, start + _BATCH))
        whole = reader.get_batch(list(frames)).asnumpy()
        result[start : frames.stop] = whole[:, *task.cut]
    return result


def torchcodec(task: Task, threads: int) -> Pixels:
    decoders = importlib.import_module("torchcodec.decoders")
    decoder = decoders.VideoDecoder(
        str(task.path), dimension_order="NHWC", num_ffmpeg_threads=threads
    )
    result = task.empty()
    for start in range(0, task.frames, _BATCH):
        stop = min(task.frames, start + _BATCH)
        whole = decoder.get_frames_in_range(start, stop).data
        result[start:stop] = whole[:, *task.cut].numpy()
    return result
