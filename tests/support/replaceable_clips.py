"""Clips so large that a high-quality encoding is still smaller."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import av
import numpy as np


def rich_clip(path: Path) -> Path:
    """Two seconds of moving noise, with audio, a title and a chapter."""
    rng = np.random.default_rng(3)
    with av.open(str(path), "w") as out:
        out.metadata["title"] = "a street"
        pictures = out.add_stream("libx264", rate=25, options={"crf": "5", "preset": "ultrafast"})
        pictures.width, pictures.height, pictures.pix_fmt = 160, 128, "yuv420p"
        sound = out.add_stream("aac", rate=48000)
        sound.metadata["language"] = "fra"
        field = rng.integers(0, 255, (128, 400), np.uint8)
        for number in range(50):
            picture = np.zeros((192, 160), np.uint8) + 128
            picture[:128] = field[:, number : number + 160] // 4 + 80
            frame = av.VideoFrame.from_ndarray(picture, format="yuv420p")
            for packet in pictures.encode(frame):
                out.mux(packet)
            wave = np.sin(np.arange(1920) * 0.05 + number * 96)[None].astype(np.float32)
            heard = av.AudioFrame.from_ndarray(wave, format="fltp", layout="mono")
            heard.sample_rate, heard.pts = 48000, number * 1920
            for packet in sound.encode(heard):
                out.mux(packet)
        for stream in (pictures, sound):
            for packet in stream.encode(None):
                out.mux(packet)
    return path


def time_coded_clip(folder: Path) -> Path:
    """The same with a time code track, like from cameras."""
    path = folder / "coded.mp4"
    with (
        av.open(str(rich_clip(folder / "rich.mp4"))) as source,
        av.open(str(path), "w", options={"write_tmcd": "1"}) as target,
    ):
        copies = [target.add_stream_from_template(stream) for stream in source.streams]
        copies[0].metadata["timecode"] = "00:00:00:00"
        for packet in source.demux():
            if packet.size:
                packet.stream = copies[packet.stream.index]
                target.mux(packet)
    return path


def captioned_clip(folder: Path) -> Path:
    """The same with a track of EIA-608 captions, which the MP4 muxer does not accept."""
    path = folder / "captioned.mp4"
    with (
        av.open(str(rich_clip(folder / "rich.mp4"))) as source,
        av.open(str(path), "w", format="mov") as target,
    ):
        copies = [target.add_stream_from_template(stream) for stream in source.streams]
        captions = target.add_mux_stream("eia_608", time_base=Fraction(1, 25))
        for packet in source.demux():
            if packet.size:
                packet.stream = copies[packet.stream.index]
                target.mux(packet)
        told = av.Packet(bytes.fromhex("0000000a63646174942c942f"))
        told.stream, told.time_base = captions, Fraction(1, 25)
        told.pts = told.dts = 0
        told.duration = 25
        target.mux(told)
    path.write_bytes(path.read_bytes().replace(b"qt  ", b"isom"))
    return path
