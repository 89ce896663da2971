"""Scenes to files, the same bytes each time."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from av.audio.stream import AudioStream
from av.codec.context import Flags as CodecFlags
from av.container import OutputContainer
from av.video.reformatter import ColorRange
from av.video.stream import VideoStream

from sample_videos.encoding import Container, Encoding, container_for
from sample_videos.scene import Scene
from sample_videos.textures import Image
from sample_videos.truth import GroundTruth
from vfsd.codecs.pyav import exact_fraction, open_encoder

_CLOCK = 60_000  # ticks per second where the frame rate varies; MPEG-4 part 2 cannot count finer
_SAMPLE_RATE = 48_000
_SWEEP = (200.0, 2000.0)  # Hz, from the beginning to the end of a file


def write(
    scene: Scene,
    encoding: Encoding,
    path: str | Path,
    progress: Callable[[int], None] | None = None,
) -> GroundTruth:
    """Codes `scene` into the file `path`, and saves the returned ground truth next to it.

    The same arguments give the same bytes as long as the libraries stay the same.  `progress` is
    called with the number of frames coded so far.  Raises `ValueError` where the container that
    the suffix of `path` asks for cannot hold `encoding`, `av.FFmpegError` where an encoder
    refuses its settings, and `RuntimeError` where the file turns out other than intended.
    """
    path = Path(path)
    container = container_for(encoding, path)
    time_base, ticks = timestamps(scene, encoding)
    # FFmpeg's bitexact mode leaves out creation times, random identifiers and version strings.
    options = {"fflags": "+bitexact", **_mux_options(encoding)}
    with av.open(str(path), "w", format=container.format, container_options=options) as output:
        video = _add_video(output, scene, encoding, time_base)
        end = ticks[-1] * time_base + 1 / scene.rate
        sweep = _Sweep(output, container, end) if encoding.audio else None
        for index, tick in enumerate(ticks):
            picture = np.rot90(scene.frame(index), encoding.rotation // 90)
            frame = _coded_frame(picture, encoding)
            frame.pts, frame.time_base = tick, time_base
            output.mux(video.encode(frame))
            if sweep is not None:
                sweep.write_until(tick * time_base)
            if progress is not None:
                progress(index + 1)
        output.mux(video.encode())
        if sweep is not None:
            sweep.finish()
    truth = _measure(scene, encoding, path)
    truth.save(path)
    return truth


def timestamps(scene: Scene, encoding: Encoding) -> tuple[Fraction, list[int]]:
    """Seconds per tick, and the tick at which each frame of `scene` is meant to be shown.

    With a variable rate the steps scatter from half to double the nominal one, and now and then
    some frames are missing: up to six steps in one.
    """
    if not encoding.variable_rate:
        shift = round(encoding.start * scene.rate)
        return 1 / scene.rate, [index + shift for index in range(scene.frames)]
    rng = np.random.default_rng((scene.seed, 5))
    steps = rng.uniform(0.5, 2, scene.frames)
    steps[rng.random(scene.frames) < 0.04] *= 3
    ticks = np.rint(steps * float(_CLOCK / scene.rate)).astype(np.int64)
    shift = round(encoding.start * _CLOCK)
    return Fraction(1, _CLOCK), [int(tick) + shift for tick in np.cumsum(ticks) - ticks[0]]


def upright(picture: Image, rotation: int) -> Image:
    """A coded `picture` (height x width x 3) as a player shows it: turned clockwise."""
    return np.rot90(picture, -rotation // 90)


def _mux_options(encoding: Encoding) -> dict[str, str]:
    if encoding.faststart:
        return {"movflags": "+faststart"}
    if encoding.fragmented:
        return {"movflags": "+frag_keyframe+empty_moov+default_base_moof"}
    return {}


def _add_video(
    output: OutputContainer, scene: Scene, encoding: Encoding, time_base: Fraction
) -> VideoStream:
    stream = output.add_stream(encoding.encoder, rate=scene.rate, options=encoding.options())
    assert isinstance(stream, VideoStream)
    turned = encoding.rotation in (90, 270)
    stream.width, stream.height = (
        (scene.height, scene.width) if turned else (scene.width, scene.height)
    )
    stream.pix_fmt = encoding.pixel_format
    stream.gop_size = encoding.gop
    context = stream.codec_context
    context.time_base = time_base
    context.thread_count = encoding.threads
    context.flags |= CodecFlags.bitexact
    if encoding.codec == "mjpeg":
        context.color_range = ColorRange.JPEG
    if encoding.rotation:
        stream.set_display_rotation(-encoding.rotation)  # PyAV counts the other way round
    open_encoder(context)
    return stream


def _coded_frame(picture: Image, encoding: Encoding) -> av.VideoFrame:
    """`picture`, height x width x 3 RGB, in the encoder's pixel format."""
    frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), format="rgb24")
    full = ColorRange.JPEG if encoding.codec == "mjpeg" else None
    return frame.reformat(format=encoding.pixel_format, dst_color_range=full, threads=1)


class _Sweep:
    """An audio stream that is written as far as the pictures have got."""

    _CHUNK = 1024

    def __init__(self, output: OutputContainer, container: Container, end: Fraction) -> None:
        assert container.audio_encoder is not None  # container_for has seen to it
        stream = output.add_stream(
            container.audio_encoder, rate=_SAMPLE_RATE, layout="mono", bit_rate=48_000
        )
        assert isinstance(stream, AudioStream)
        stream.codec_context.flags |= CodecFlags.bitexact
        self._output = output
        self._stream = stream
        self._samples = math.ceil(end * _SAMPLE_RATE)
        self._written = 0

    def write_until(self, time: Fraction) -> None:
        """Writes whole chunks up to `time`, in seconds."""
        end = min(math.floor(time * _SAMPLE_RATE), self._samples)
        while self._written + self._CHUNK <= end:
            self._write(self._CHUNK)

    def finish(self) -> None:
        """Writes what is left until the end of the pictures."""
        self.write_until(Fraction(self._samples, _SAMPLE_RATE))
        if self._written < self._samples:
            self._write(self._samples - self._written)
        self._output.mux(self._stream.encode(None))

    def _write(self, samples: int) -> None:
        time = (self._written + np.arange(samples)) / _SAMPLE_RATE
        low, high = _SWEEP
        rise = (high - low) * _SAMPLE_RATE / self._samples
        wave = 8000 * np.sin(2 * np.pi * (low * time + rise * time**2 / 2))
        frame = av.AudioFrame.from_ndarray(wave.astype(np.int16)[None], "s16", "mono")
        frame.sample_rate = _SAMPLE_RATE
        frame.pts, frame.time_base = self._written, Fraction(1, _SAMPLE_RATE)
        self._output.mux(self._stream.encode(frame))
        self._written += samples


def _measure(scene: Scene, encoding: Encoding, path: Path) -> GroundTruth:
    """The ground truth of a written file.

    Muxers pick their own time base and origin, so the ticks are read back from the packets; that
    they mean the intended times is checked here.
    """
    intended_base, ticks = timestamps(scene, encoding)
    first = sum(tick < 0 for tick in ticks)
    with av.open(str(path)) as source:
        stream = source.streams.video[0]
        found = [p.pts for p in source.demux(stream) if p.size and not p.is_discard]
        time_base = exact_fraction(stream.time_base)
    assert time_base is not None
    shown = ticks[first:]
    if len(found) != len(shown):
        raise RuntimeError(f"{path} shows {len(found)} frames instead of {len(shown)}")
    pts = sorted(tick for tick in found if tick is not None)
    for tick, wanted in zip(pts, shown, strict=False):
        lag = (tick - pts[0]) * time_base - (wanted - shown[0]) * intended_base
        if abs(lag) > time_base:
            raise RuntimeError(f"{path}: the frame at tick {tick} is {float(lag):.6f} s late")
    return GroundTruth(
        scene=scene,
        encoding=encoding,
        first_frame=first,
        time_base=time_base if pts else None,
        pts=tuple(pts) if pts else None,
        boxes=tuple(tuple(scene.boxes(index)) for index in range(first, scene.frames)),
    )
