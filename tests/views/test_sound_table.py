"""Which sound the views of each container copy, and which they transcode: codec by codec."""

from __future__ import annotations

import io
import json
import random
import shutil
import struct
import subprocess
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import numpy.typing as npt
import pytest

from tests.codecs.talking import make_talking
from tests.views.test_sound import samples, shelved
from vfsd.api.video import context_of
from vfsd.codecs.audio.audio_decoder import AudioDecoder
from vfsd.views.view_input import view_input_of

COMMAND = shutil.which("ffmpeg")
PICTURES = {
    "ogv": ("libtheora", "-g", "12"),
    "webm": ("libvpx", "-g", "15"),
    "vob": ("mpeg2video", "-g", "12"),
    "mxf": ("mpeg2video", "-g", "12"),
    "wmv": ("wmv2", "-g", "15"),
    "flv": ("flv1", "-g", "15"),
    "avi": ("mpeg4", "-g", "15"),
}
TABLE = [
    # File, encoder of its sound, rate, channels; codecs of an mp4 view and of an mkv view.
    ("a.ts", "s302m", 48000, 2, "aac", "aac"),
    ("a.ts", "libopus", 48000, 2, "opus", "opus"),
    ("a.ts", "mp2", 48000, 2, "mp2", "mp2"),
    ("a.ts", "truehd", 48000, 2, "aac", "truehd"),
    ("a.ts", "dca", 48000, 2, "dts", "dts"),
    ("latm.ts", "aac", 48000, 2, "aac", "aac_latm"),
    ("a.m2ts", "pcm_bluray", 48000, 2, "aac", "aac"),
    ("a.ogv", "libvorbis", 48000, 2, "aac", "vorbis"),
    ("a.ogv", "flac", 48000, 2, "flac", "flac"),
    ("a.webm", "libvorbis", 48000, 2, "aac", "vorbis"),
    ("a.mp4", "flac", 48000, 2, "flac", "flac"),
    ("a.mp4", "truehd", 48000, 2, "aac", "truehd"),
    ("a.mp4", "pcm_f32be", 48000, 2, "aac", "aac"),
    ("a.mov", "pcm_s8", 48000, 2, "aac", "aac"),
    ("a.mov", "adpcm_ima_qt", 48000, 2, "aac", "aac"),
    ("a.mov", "libgsm", 8000, 1, "aac", "aac"),
    ("a.mkv", "tta", 48000, 2, "aac", "tta"),
    ("a.mkv", "wavpack", 48000, 2, "aac", "aac"),
    ("a.mkv", "mlp", 48000, 2, "aac", "mlp"),
    ("a.mkv", "g722", 16000, 1, "aac", "adpcm_g722"),
    ("a.mkv", "g723_1", 8000, 1, "aac", "g723_1"),
    ("a.wmv", "wmav1", 44100, 2, "aac", "wmav1"),
    ("a.flv", "nellymoser", 22050, 1, "aac", "aac"),
    ("a.flv", "adpcm_swf", 44100, 1, "aac", "aac"),
    ("a.avi", "libgsm_ms", 8000, 1, "aac", "gsm_ms"),
    ("a.mxf", "pcm_s24le", 48000, 2, "aac", "pcm_s24le"),
    ("a.nut", "pcm_s64be", 48000, 2, "aac", "aac"),
    ("a.nut", "pcm_u16le", 48000, 2, "aac", "aac"),
    ("a.nut", "pcm_s24le_planar", 48000, 2, "aac", "aac"),
]


def make(path: Path, encoder: str, rate: int, channels: int) -> Path:
    if COMMAND is None:
        pytest.skip("ffmpeg is not installed")
    tones = "|".join(f"0.4*sin(2*PI*({200 + 90 * n}+150*t)*t)" for n in range(channels))
    video, *group = PICTURES.get(path.suffix[1:], ("libx264", "-g", "15", "-bf", "2"))
    sources = ["-f", "lavfi", "-i", "testsrc2=s=96x64:r=25:d=2"]
    sources += ["-f", "lavfi", "-i", f"aevalsrc='{tones}':s={rate}:d=2"]
    coding = ["-c:v", video, *group, "-pix_fmt", "yuv420p", "-c:a", encoder, "-strict", "-2"]
    if path.name.startswith("latm"):
        coding += ["-mpegts_flags", "latm"]
    if encoder == "g723_1":
        coding += ["-b:a", "6.3k"]
    _run([COMMAND, *sources, *coding, str(path)])
    return path


def _run(command: list[str]) -> None:
    command[1:1] = ["-v", "error", "-y"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"this ffmpeg does not write it: {done.stderr[-200:]}")


def mixed(file: Path | bytes, rate: int) -> tuple[Fraction, npt.NDArray[np.float32]]:
    """(seconds from the first picture to the first sample, all channels in one)."""
    source = io.BytesIO(file) if isinstance(file, bytes) else str(file)
    with av.open(source, mode="r") as opened:
        picture = next(opened.decode(video=0))
    if isinstance(source, io.BytesIO):
        source.seek(0)
    resampler = av.AudioResampler("flt", "mono", rate)
    with av.open(source, mode="r") as opened:
        frames = list(opened.decode(audio=0))
        begin = Fraction(frames[0].time or 0) - Fraction(picture.time or 0)
        parts = [one.to_ndarray()[0] for frame in frames for one in resampler.resample(frame)]
        parts += [one.to_ndarray()[0] for one in resampler.resample(None)]
    return begin, np.concatenate(parts)


def distance(
    heard: npt.NDArray[np.float32], right: npt.NDArray[np.float32], late: int, most: int
) -> float:
    """Of the middle part: error to signal where the two agree best.

    Sample 0 of `heard` is `late` samples behind that of `right`, up to `most` more or less.
    """
    first, stop = len(heard) * 2 // 5, len(heard) * 4 // 5
    middle = heard[first:stop]
    errors = [
        float(np.sqrt(np.mean((right[at : at + len(middle)] - middle) ** 2)))
        for at in range(first + late - most, first + late + most + 1)
    ]
    return min(errors) / float(np.sqrt(np.mean(middle**2)))


@pytest.mark.parametrize(
    ("name", "encoder", "rate", "channels", "in_mp4", "in_mkv"),
    TABLE,
    ids=[f"{row[1]}-{row[0]}" for row in TABLE],
)
def test_carried_sound(
    tmp_path: Path,
    name: str,
    encoder: str,
    rate: int,
    channels: int,
    in_mp4: str,
    in_mkv: str,
) -> None:
    """Each view has the expected codec, says how it was made, and sounds like the source."""
    clip = make(tmp_path / name, encoder, rate, channels)
    origin, right = mixed(clip, rate)
    with shelved(tmp_path, clip) as shelf:
        info = json.loads(shelf.read(name, "info.json"))["sound"]
        for view, codec in (("full.mp4", in_mp4), ("full.mkv", in_mkv)):
            made = "copied" if codec == info["codec"] else "transcoded"
            explained = json.loads(shelf.read(name, f"explain/{view}.json"))
            assert (explained["sound"], explained["sound_made"]) == (codec, made)
            assert info["views"][view[-3:]].startswith(made)
            begin, heard = mixed(shelf.read(name, view), rate)
            assert len(heard) > 0.9 * len(right)
            late = round((begin - origin) * rate)
            assert distance(heard, right, late, rate // 1000) < 0.12  # to a millisecond


@pytest.mark.parametrize("view", ["full.mp4", "sound=opus.mkv", "t=0.6-,size=48x0.mp4"])
def test_eight_channels(tmp_path: Path, view: str) -> None:
    """7.1 is transcoded with every channel in its place."""
    if COMMAND is None:
        pytest.skip("ffmpeg is not installed")
    clip = tmp_path / "clip.mkv"
    tones = "|".join(f"0.3*sin(2*PI*{300 * (n + 1)}*t)" for n in range(8))
    sources = ["-f", "lavfi", "-i", "testsrc2=s=96x64:r=25:d=2"]
    sources += ["-f", "lavfi", "-i", f"aevalsrc='{tones}':c=7.1:s=48000:d=2"]
    _run([COMMAND, *sources, "-c:v", "libx264", "-g", "15", "-c:a", "pcm_s16le", str(clip)])
    with shelved(tmp_path, clip) as shelf:
        path = tmp_path / view
        path.write_bytes(shelf.read(clip.name, view))
    raw = ["-i", str(path), "-map", "0:a", "-f", "f32le", "-c:a", "pcm_f32le"]
    done = subprocess.run([COMMAND, "-v", "error", *raw, "-"], capture_output=True, check=True)
    heard = np.frombuffer(done.stdout, np.float32).reshape(-1, 8)[12000:36000]
    loudest = np.abs(np.fft.rfft(heard, axis=0)).argmax(axis=0) * 2  # in hertz
    low = 3  # the channel of low frequencies, which encoders cut off
    expected = [300 * (n + 1) for n in range(8)]
    assert [f for n, f in enumerate(loudest) if n != low] == pytest.approx(
        [f for n, f in enumerate(expected) if n != low], abs=4
    )


def _narrow_band(path: Path, frames: int) -> None:
    """AMR of random bits, which decoders take."""
    bits = random.Random(1)
    path.write_bytes(b"#!AMR\n" + b"".join(b"\x3c" + bits.randbytes(31) for _ in range(frames)))


@pytest.mark.parametrize("together", [1, 10])
def test_frames_of_packet(tmp_path: Path, together: int) -> None:
    """Phones store ten frames of AMR in each packet, and only the first has a time."""
    _narrow_band(tmp_path / "a.amr", 150)
    plain = make_talking(tmp_path / "plain.mov", "pcm_s16le")
    clip = tmp_path / "clip.nut"
    with (
        av.open(str(plain)) as pictures,
        av.open(str(tmp_path / "a.amr")) as sound,
        av.open(str(clip), "w") as output,
    ):
        video = output.add_stream_from_template(pictures.streams.video[0])
        audio = output.add_stream_from_template(sound.streams.audio[0])
        for picture in pictures.demux(pictures.streams.video[0]):
            if picture.dts is not None:
                picture.stream = video
                output.mux(picture)
        payloads = [bytes(packet) for packet in sound.demux(audio=0) if packet.size]
        for at in range(0, len(payloads), together):
            packet = av.Packet(b"".join(payloads[at : at + together]))
            packet.pts = packet.dts = at * 160
            packet.duration, packet.time_base = together * 160, Fraction(1, 8000)
            packet.stream = audio
            output.mux(packet)
    with av.open(str(tmp_path / "a.amr")) as opened:
        right = np.concatenate([frame.to_ndarray()[0] for frame in opened.decode(audio=0)])
    with shelved(tmp_path, clip) as shelf:
        video_of_store = shelf.video(clip.name)
        footage = view_input_of(
            context_of(video_of_store).parts, context_of(video_of_store).tools, video_of_store.info
        )
        assert footage.sound is not None
        stored, table = footage.sound
        assert len(table) == 150 // together
        media = footage.physical.media
        with_samples = AudioDecoder(footage.path, media, stored, table, "mono")
        start = round(stored.first_pts * stored.time_base * 8000)
        heard = with_samples.read(start, start + len(right))[0]
        with_samples.close()
        assert np.array_equal(heard, right)
        carried = json.loads(shelf.read(clip.name, "info.json"))["sound"]["views"]
        assert carried == {"mp4": "transcoded from amr_nb to aac", "mkv": "copied"}


def test_qcelp(tmp_path: Path) -> None:
    """mp4 takes QCELP, and mkv does not."""
    bits = random.Random(1)
    data = b"".join(b"\x04" + bits.randbytes(34) for _ in range(150))
    form = bytes.fromhex("0100416d7f5e15b1d011ba9100805fb4b97e0200") + b"Qcelp 13K".ljust(80, b"\0")
    form += struct.pack("<HHHHHI", 13000, 35, 160, 8000, 16, 4) + bytes((34, 4, 16, 3, 7, 2, 3, 1))
    body = b"QLCM" + _chunk(b"fmt ", form + bytes(28)) + _chunk(b"vrat", bytes(8))
    body += _chunk(b"data", data)
    (tmp_path / "a.qcp").write_bytes(_chunk(b"RIFF", body))
    if COMMAND is None:
        pytest.skip("ffmpeg is not installed")
    clip = tmp_path / "clip.mov"
    pictures = ["-f", "lavfi", "-i", "testsrc2=s=96x64:r=25:d=3", "-i", str(tmp_path / "a.qcp")]
    _run([COMMAND, *pictures, "-c:v", "libx264", "-g", "15", "-c:a", "copy", str(clip)])
    _, right = samples(clip)
    with shelved(tmp_path, clip) as shelf:
        carried = json.loads(shelf.read(clip.name, "info.json"))["sound"]["views"]
        assert carried == {"mp4": "copied", "mkv": "transcoded from qcelp to aac"}
        _, heard = samples(shelf.read(clip.name, "full.mp4"))
        assert np.array_equal(heard, right[: len(heard)])


def _chunk(name: bytes, body: bytes) -> bytes:
    return name + struct.pack("<I", len(body)) + body + bytes(len(body) % 2)
