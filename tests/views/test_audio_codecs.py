"""Audio of any codec in views: copied if the container carries it, else transcoded, and
reported."""

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

from tests.support.audio_clips import RATE, make_talking
from tests.support.matroska_lacing import make_laced
from tests.support.selection import one_in
from tests.views.test_audio import begins, packets, samples, shelved
from vfsd.api.video import context_of
from vfsd.codecs.audio.audio_decoder import AudioDecoder
from vfsd.core import view_request
from vfsd.errors import UsageError
from vfsd.views.view_input import view_input_of

COPIED = [
    # Encoder, suffix of the file, and the codec in an mp4 view.
    ("pcm_alaw", "mov", "aac"),
    ("pcm_mulaw", "mov", "aac"),
    ("pcm_s16be", "mov", "aac"),
    ("pcm_s24be", "mov", "aac"),
    ("pcm_s24le", "mkv", "aac"),
    ("pcm_s32be", "mov", "aac"),
    ("pcm_f32le", "mkv", "aac"),
    ("pcm_f64le", "mov", "aac"),
    ("pcm_u8", "avi", "aac"),
    ("adpcm_ms", "avi", "aac"),
    ("adpcm_ima_wav", "avi", "aac"),
    ("eac3", "mov", "eac3"),
]
BY_COMMAND = ["dca", "truehd", "libspeex", "tta", "g722", "wmav2", "libvorbis", "adpcm_yamaha"]
TRANSCODED = [("pcm_s8", "mov"), ("pcm_f32be", "mov"), ("wavpack", "mkv"), ("adpcm_ima_qt", "mov")]
LOSSLESS = ("pcm", "tta", "wavpack")


def clip_of(path: Path, codec: str) -> Path:
    if path.suffix == ".avi":
        return make_talking(path, codec, video_codec="mpeg4")
    return make_talking(path, codec)


def told(data: bytes) -> tuple[str, int]:
    with av.open(io.BytesIO(data)) as opened:
        return opened.streams.audio[0].codec_context.codec.canonical_name, len(opened.streams)


def closest(heard: np.ndarray, right: np.ndarray, most: int) -> float:
    """The largest difference at the best alignment, up to `most` samples apart."""
    length = min(len(heard), len(right)) - 2 * most
    assert length > 0.3 * RATE
    heard = heard[most : most + length]
    return min(
        float(np.abs(heard - right[most + k : most + k + length]).max())
        for k in range(-most, most + 1)
    )


@pytest.mark.parametrize(("codec", "suffix", "in_mp4"), one_in(3, COPIED))
def test_codecs_copied(tmp_path: Path, codec: str, suffix: str, in_mp4: str) -> None:
    clip = clip_of(tmp_path / f"clip.{suffix}", codec)
    stored, (origin, right) = packets(clip), samples(clip)
    with shelved(tmp_path, clip) as shelf:
        for view in ("full", "t=0.93-2.61,size=48x0"):
            data = shelf.read(clip.name, f"{view}.mkv")
            explained = json.loads(shelf.read(clip.name, f"explain/{view}.mkv.json"))
            assert explained["sound_made"] == "copied"
            found = [content for _, content in packets(data)]
            assert found
            everything = [content for _, content in stored]
            assert any(
                everything[at : at + len(found)] == found
                for at in range(len(everything) - len(found) + 1)
            )
            begin, heard = samples(data)
            at = begin + round(begins(shelf.video(clip.name), view) * RATE) - origin
            settled = 0 if codec.startswith(LOSSLESS) else 9600
            part = right[max(0, at) + settled : max(0, at) + len(heard)]
            most = 2 * RATE // 1000  # Matroska has ticks of a millisecond
            assert closest(heard[settled:], part, most) < 0.1
            carried, streams = told(shelf.read(clip.name, f"{view}.mp4"))
            assert (carried, streams) == (in_mp4, 2)


@pytest.mark.parametrize("codec", one_in(4, BY_COMMAND))
def test_command_codecs_copied(tmp_path: Path, codec: str) -> None:
    """Codecs that PyAV does not encode, or not into Matroska."""
    clip = _by_command(tmp_path / "clip.mkv", codec)
    stored = [content for _, content in packets(clip)]
    with shelved(tmp_path, clip) as shelf:
        found = [content for _, content in packets(shelf.read(clip.name, "full.mkv"))]
        assert len(found) >= len(stored) - 2
        assert found in [stored[at : at + len(found)] for at in range(3)]
        assert shelf.size(clip.name, "full.mp4") == len(shelf.read(clip.name, "full.mp4"))
        assert told(shelf.read(clip.name, "full.mp4"))[1] == 2


def _by_command(path: Path, codec: str) -> Path:
    if shutil.which("ffmpeg") is None:
        pytest.skip("ffmpeg is not installed")
    rate = 32000 if codec == "libspeex" else 48000
    pictures = ["-f", "lavfi", "-i", "testsrc2=s=64x48:r=25:d=3"]
    tone = ["-f", "lavfi", "-i", f"sine=f=440:r={rate}:d=3"]
    coding = ["-c:v", "libx264", "-g", "15", "-c:a", codec, "-strict", "-2"]
    done = subprocess.run(
        ["ffmpeg", "-v", "error", *pictures, *tone, *coding, str(path)],
        capture_output=True,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"this ffmpeg does not encode {codec}")
    return path


@pytest.mark.parametrize(("codec", "suffix"), one_in(2, TRANSCODED))
def test_uncarried_codecs(tmp_path: Path, codec: str, suffix: str) -> None:
    """Audio that no view container carries becomes AAC, and views report it."""
    clip = make_talking(tmp_path / f"clip.{suffix}", codec)
    with shelved(tmp_path, clip) as shelf:
        explained = json.loads(shelf.read(clip.name, "explain/full.mkv.json"))
        assert (explained["sound"], explained["sound_made"]) == ("aac", "transcoded")
        assert told(shelf.read(clip.name, "full.mp4"))[0] == "aac"
        assert told(shelf.read(clip.name, "full.mkv"))[0] == "aac"
        assert told(shelf.read(clip.name, "sound=opus.mkv"))[0] == "opus"
        views = json.loads(shelf.read(clip.name, "info.json"))["sound"]["views"]
        assert views["mp4"].startswith("transcoded from")
        assert views["mkv"].startswith("transcoded from")


@pytest.mark.parametrize(
    ("codec", "suffix"),
    one_in(2, [("pcm_s16le", "mov"), ("pcm_alaw", "mov"), ("ac3", "ts"), ("flac", "mkv")]),
)
def test_transcoded_audio(tmp_path: Path, codec: str, suffix: str) -> None:
    """In sync with the frames, without gaps between segments, and in the announced size."""
    clip = make_talking(tmp_path / f"clip.{suffix}", codec)
    origin, right = samples(clip)
    with shelved(tmp_path, clip) as shelf:
        for view, asked, container in (
            ("t=0.6-", "aac", "mp4"),
            ("t=0.93-2.61", "opus", "mp4"),
            ("t=0.93-2.61,fps=7", "aac", "mkv"),
            ("t=0.6-,size=48x0", "opus", "mkv"),
        ):
            name = f"{view},sound={asked}.{container}"
            explained = json.loads(shelf.read(clip.name, f"explain/{name}.json"))
            assert (explained["sound"], explained["sound_made"]) == (asked, "transcoded")
            size = shelf.size(clip.name, name)
            data = shelf.read(clip.name, name)
            assert size == len(data)
            assert told(data)[0] == asked
            begin, heard = samples(data)
            assert abs(begin) <= RATE // 1000
            settled = 4 * 1024
            at = begin + round(begins(shelf.video(clip.name), view) * RATE) - origin + settled
            most = RATE // 1000
            part = right[at - most : at + len(heard) + most]
            assert closest(heard[settled:-2048], part[most:], most) < 0.12


def test_transcoding_offsets(tmp_path: Path) -> None:
    """Random access returns the same bytes as a sequential read."""
    clip = make_talking(tmp_path / "clip.mov", "pcm_alaw")
    with shelved(tmp_path, clip) as shelf:
        for name in ("full.mp4", "size=48x0.mp4", "t=0.93-2.61,sound=opus.mkv"):
            whole = shelf.read(clip.name, name)
            file = shelf.open(clip.name, name)
            for offset in reversed(range(0, len(whole), 7919)):
                buffer = bytearray(5000)
                got = file.readinto(memoryview(buffer), offset)
                assert bytes(buffer[:got]) == whole[offset : offset + 5000]
            file.close()


def test_unchanged_codec(tmp_path: Path) -> None:
    """Audio that already has the requested codec is copied."""
    clip = make_talking(tmp_path / "clip.mp4", "aac")
    with shelved(tmp_path, clip) as shelf:
        asked = packets(shelf.read(clip.name, "t=0.6-,sound=aac.mp4"))
        assert asked == packets(shelf.read(clip.name, "t=0.6-.mp4"))
        explained = json.loads(shelf.read(clip.name, "explain/sound=opus.mp4.json"))
        assert (explained["sound_from"], explained["sound"]) == ("aac", "opus")
        assert shelf.video(clip.name).save(tmp_path / "o.mp4", sound="opus") > 0
        assert told((tmp_path / "o.mp4").read_bytes())[0] == "opus"
        shelf.video(clip.name).save(tmp_path / "s.mp4", sound="no")
        with av.open(str(tmp_path / "s.mp4")) as opened:
            assert not opened.streams.audio
        with pytest.raises(UsageError, match="sound must be"):
            shelf.video(clip.name).save(tmp_path / "m.mp4", sound="mp3")
        with pytest.raises(UsageError, match="cannot hold sound"):
            shelf.video(clip.name).save(tmp_path / "m.y4m", sound="aac")


def test_audio_names() -> None:
    for name in ("t=10-20,sound=aac.mp4", "sound=opus.mkv", "sound=no.mp4"):
        assert view_request.format_view_path(view_request.parse_view_path(name)) == name


@pytest.mark.parametrize("lacing", one_in(3, ["xiph", "ebml", "fixed"]))
@pytest.mark.parametrize("groups", [False, True])
def test_laced_audio(tmp_path: Path, lacing: str, groups: bool) -> None:
    codec = "ac3" if lacing == "fixed" else "aac"
    plain = make_talking(tmp_path / "plain.mkv", codec)
    clip = make_laced(tmp_path / "clip.mkv", plain, lacing=lacing, groups=groups)
    _require_same_sound(tmp_path, plain, clip)


@pytest.mark.parametrize("compression", one_in(3, ["stripped", "zlib"]))
@pytest.mark.parametrize("lacing", ["none", "xiph"])
@pytest.mark.parametrize("codec", ["ac3", "aac", "pcm_s16le"])
def test_compressed_audio(tmp_path: Path, compression: str, lacing: str, codec: str) -> None:
    plain = make_talking(tmp_path / "plain.mkv", codec)
    clip = make_laced(tmp_path / "clip.mkv", plain, lacing=lacing, compression=compression)
    _require_same_sound(tmp_path, plain, clip)


def _require_same_sound(tmp_path: Path, plain: Path, clip: Path) -> None:
    """Check that audio of views of `clip` equals that of its source `plain`, to a millisecond."""
    stored = packets(plain)
    stored = stored[-len(packets(clip)) :]  # without audio before the first frame
    assert [content for _, content in packets(clip)] == [content for _, content in stored]
    with shelved(tmp_path, clip) as shelf:
        for view in ("full", "t=0.93-2.61"):
            begin = begins(shelf.video(clip.name), view)
            found = packets(shelf.read(clip.name, f"{view}.mkv"))
            assert found
            first = next(n for n, (_, content) in enumerate(stored) if content == found[0][1])
            if view == "full":
                assert first <= 1
            for (time, content), (wanted, it) in zip(found, stored[first:], strict=False):
                if stored[first][1] != stored[first + 1][1]:
                    assert content == it
                assert abs(time + begin - wanted) <= Fraction(3, 1000)
            last = found[-1][0] + begin
            end = Fraction(3) if view == "full" else Fraction(261, 100)
            assert end - last < Fraction(60, 1000)


def test_shared_times(tmp_path: Path) -> None:
    """Packets shorter than a tick of the container share timestamps."""
    clip = _by_command(tmp_path / "clip.mkv", "truehd")
    times = [time for time, _ in packets(clip)]
    assert len(set(times)) < len(times)
    with shelved(tmp_path, clip) as shelf:
        found = [time for time, _ in packets(shelf.read(clip.name, "full.mkv"))]
        assert len(found) == len(times)
        assert max(abs(a - b) for a, b in zip(found, times, strict=True)) <= Fraction(1, 1000)


def test_players_accept(tmp_path: Path) -> None:
    if shutil.which("ffmpeg") is None:
        pytest.skip("ffmpeg is not installed")
    for codec in ("pcm_alaw", "eac3", "pcm_s16be"):
        clip = make_talking(tmp_path / f"{codec}.mov", codec)
        with shelved(tmp_path / codec, clip) as shelf:
            for name in ("full.mp4", "full.mkv", "t=0.93-2.61,sound=opus.mkv"):
                path = tmp_path / name
                path.write_bytes(shelf.read(clip.name, name))
                done = subprocess.run(
                    ["ffmpeg", "-v", "error", "-i", str(path), "-f", "null", "-"],
                    capture_output=True,
                    text=True,
                    check=True,
                )
                assert done.stderr == ""


# --------------------------------------------------------------------------------------------------
# The audio that each container's views copy or transcode, codec by codec


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
    # File, encoder of its audio, rate, channels; codecs of an mp4 view and of an mkv view.
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
    """(seconds from the first frame to the first sample, all channels mixed)."""
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
    """Error to signal ratio of the middle part at the best alignment.

    Sample 0 of `heard` is `late` samples after that of `right`, with a tolerance of `most`.
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
    one_in(5, TABLE, ids=[f"{row[1]}-{row[0]}" for row in TABLE]),
)
def test_carried_audio(
    tmp_path: Path,
    name: str,
    encoder: str,
    rate: int,
    channels: int,
    in_mp4: str,
    in_mkv: str,
) -> None:
    """Each view has the expected codec, reports its method, and sounds like the source."""
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


@pytest.mark.parametrize("view", one_in(3, ["full.mp4", "sound=opus.mkv", "t=0.6-,size=48x0.mp4"]))
def test_eight_channels(tmp_path: Path, view: str) -> None:
    """7.1 is transcoded with every channel in its position."""
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
    low = 3  # the LFE channel, which encoders low-pass
    expected = [300 * (n + 1) for n in range(8)]
    assert [f for n, f in enumerate(loudest) if n != low] == pytest.approx(
        [f for n, f in enumerate(expected) if n != low], abs=4
    )


def _narrow_band(path: Path, frames: int) -> None:
    """AMR of random bits, which decoders accept."""
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
    """mp4 carries QCELP, and mkv does not."""
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


def without_display_times(path: Path, clip: Path) -> Path:
    """A copy whose pictures have their decoding times as timestamps, as some writers store them."""
    with av.open(str(clip)) as opened, av.open(str(path), "w") as output:
        copies = [output.add_stream_from_template(stream) for stream in opened.streams]
        for packet in opened.demux():
            if not packet.size:
                continue
            if packet.stream.type == "video":
                packet.pts = packet.dts
            packet.stream = copies[packet.stream_index]
            output.mux(packet)
    return path


def test_audio_with_pictures_timed_in_decode_order(tmp_path: Path) -> None:
    plain = make_talking(tmp_path / "plain.mp4", "aac", video_codec="mpeg4")
    clip = without_display_times(tmp_path / "clip.mp4", plain)
    with shelved(tmp_path, clip) as shelf:
        explained = json.loads(shelf.read(clip.name, "explain/full.mp4.json"))
        assert (explained["sound"], explained["sound_made"]) == ("aac", "copied")
        data = shelf.read(clip.name, "full.mp4")
        assert packets(data)
        begin, heard = samples(data)
        origin, right = samples(clip)
    assert begin - origin in range(-RATE // 25, RATE // 25 + 1)
    assert closest(heard, right, RATE // 25) < 0.05


def test_audio_before_a_damaged_end_is_kept(tmp_path: Path) -> None:
    """RealMedia that is cut off ends with an error of the demuxer."""
    clip = tmp_path / "clip.rm"
    source = make_talking(tmp_path / "plain.mkv", "aac")
    command = ["ffmpeg", "-v", "error", "-i", str(source), "-c:v", "rv20", "-c:a", "ac3", str(clip)]
    subprocess.run(command, check=True)
    with av.open(str(clip)) as opened:
        total = len([one for one in opened.demux(audio=0) if one.size])
    data = bytearray(clip.read_bytes())
    start = data.index(b"DATA") + 18
    at, count = start, 0
    while at + 12 < len(data) and count < 150:
        at, count = at + int.from_bytes(data[at + 2 : at + 4], "big"), count + 1
    data[at + 2 : at + 4] = b"\0\1"  # smaller than a header
    clip.write_bytes(data)
    with shelved(tmp_path, clip) as shelf:
        explained = json.loads(shelf.read(clip.name, "explain/full.mkv.json"))
        assert explained["sound"] == "ac3"
        found = packets(shelf.read(clip.name, "full.mkv"))
    assert 5 < len(found) < total
