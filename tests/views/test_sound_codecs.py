"""Sound of any codec in views: copied where the container takes it, else transcoded, and told."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from tests.codecs.lacing import make_laced
from tests.codecs.talking import RATE, make_talking
from tests.selection import one_in
from tests.views.test_sound import begins, packets, samples, shelved
from vfsd.core import view_path
from vfsd.errors import UsageError

COPIED = [
    # Encoder, ending of the file, and what mp4 makes of it.
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
    """The largest difference where the two agree best, up to `most` samples apart."""
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
            most = 2 * RATE // 1000  # Matroska counts milliseconds
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


@pytest.mark.parametrize(("codec", "suffix"), TRANSCODED)
def test_uncarried_codecs(tmp_path: Path, codec: str, suffix: str) -> None:
    """Sound that no container of views takes becomes AAC, and views say so."""
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
def test_transcoded_sound(tmp_path: Path, codec: str, suffix: str) -> None:
    """In step with the pictures, without a break where segments meet, in the size that was told."""
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
    """Any offset gives what reading through gives."""
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
    """Sound that is in the codec that is asked for is copied."""
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
        with pytest.raises(UsageError, match="pictures only"):
            shelf.video(clip.name).save(tmp_path / "m.y4m", sound="aac")


def test_sound_names() -> None:
    for name in ("t=10-20,sound=aac.mp4", "sound=opus.mkv", "sound=no.mp4"):
        assert view_path.format_view_path(view_path.parse_view_path(name)) == name


@pytest.mark.parametrize("lacing", one_in(3, ["xiph", "ebml", "fixed"]))
@pytest.mark.parametrize("groups", [False, True])
def test_laced_sound(tmp_path: Path, lacing: str, groups: bool) -> None:
    codec = "ac3" if lacing == "fixed" else "aac"
    plain = make_talking(tmp_path / "plain.mkv", codec)
    clip = make_laced(tmp_path / "clip.mkv", plain, lacing=lacing, groups=groups)
    _require_same_sound(tmp_path, plain, clip)


@pytest.mark.parametrize("compression", one_in(3, ["stripped", "zlib"]))
@pytest.mark.parametrize("lacing", ["none", "xiph"])
@pytest.mark.parametrize("codec", ["ac3", "aac", "pcm_s16le"])
def test_compressed_sound(tmp_path: Path, compression: str, lacing: str, codec: str) -> None:
    plain = make_talking(tmp_path / "plain.mkv", codec)
    clip = make_laced(tmp_path / "clip.mkv", plain, lacing=lacing, compression=compression)
    _require_same_sound(tmp_path, plain, clip)


def _require_same_sound(tmp_path: Path, plain: Path, clip: Path) -> None:
    """Views of `clip` sound as those of `plain`, from which it was made, to a millisecond."""
    stored = packets(plain)
    stored = stored[-len(packets(clip)) :]  # without what begins before the pictures
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
    """Packets shorter than a tick of the container share time stamps."""
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
