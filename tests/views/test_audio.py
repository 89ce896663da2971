"""The audio of views: the original's packets, at the original's offset to the frames."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import numpy.typing as npt
import pytest

from tests.fault.older import execute
from tests.support.audio_clips import RATE, make_talking
from tests.support.selection import one_in
from tests.support.stores import new_store
from tests.views.conftest import Shelf, decoded
from vfsd.api.store import Store
from vfsd.api.video import Video, context_of
from vfsd.codecs.frames.planes import fingerprint
from vfsd.core import view_request
from vfsd.views import Views
from vfsd.views.rendered_view import PlannedView, plan_view
from vfsd.views.view_input import view_input_of

SOURCES = [
    # Codec, suffix of the file, and the view containers that carry it.
    ("aac", "mp4", ("mp4", "mkv")),
    ("libmp3lame", "mp4", ("mp4", "mkv")),
    ("libopus", "mp4", ("mp4", "mkv")),
    ("flac", "mp4", ("mp4", "mkv")),
    ("ac3", "mp4", ("mp4", "mkv")),
    ("alac", "mov", ("mp4", "mkv")),
    ("pcm_s16le", "mov", ("mkv",)),
    ("aac", "mkv", ("mp4", "mkv")),
    ("libopus", "mkv", ("mp4", "mkv")),
    ("flac", "mkv", ("mp4", "mkv")),
    ("eac3", "mkv", ("mp4", "mkv")),
    ("mp2", "mkv", ("mp4", "mkv")),
    ("pcm_s24le", "mkv", ("mkv",)),
    ("aac", "flv", ("mp4", "mkv")),
]
VIEWS = {
    # Views of 3 seconds at 25 fps with GOPs of 15 frames, and the method for each.
    "full": "copied",
    "t=0.6-1.8": "copied",
    "t=0.93-2.61": "spliced",
    "t=0.93-1.61": "encoded",
    "t=0.93-2.61,size=48x0": "encoded",
    "t=0.93-2.61,fps=7": "encoded",
    "roi=48x32+10+10": "encoded",
}


FEW = ("full", "t=0.93-2.61", "t=0.93-2.61,fps=7")


def packets(file: Path | bytes) -> list[tuple[Fraction, bytes]]:
    """(start in seconds, content) of each audio packet."""
    with av.open(io.BytesIO(file) if isinstance(file, bytes) else str(file), mode="r") as opened:
        stream = opened.streams.audio[0]
        base = stream.time_base or Fraction(0)
        return [((p.pts or 0) * base, bytes(p)) for p in opened.demux(stream) if p.size]


def samples(file: Path | bytes) -> tuple[int, npt.NDArray[Any]]:
    """(time of the first sample, counted in samples; the first channel, from -1 to 1)."""
    with av.open(io.BytesIO(file) if isinstance(file, bytes) else str(file), mode="r") as opened:
        frames = list(opened.decode(audio=0))
    begin = (frames[0].pts or 0) * (frames[0].time_base or Fraction(0)) * RATE
    heard = np.concatenate([frame.to_ndarray()[0] for frame in frames])
    if heard.dtype.kind == "i":
        heard = heard / float(np.iinfo(heard.dtype).max)
    return round(begin), heard


@contextmanager
def shelved(tmp_path: Path, clip: Path) -> Iterator[Shelf]:
    with new_store(tmp_path / "store") as store:
        store.ingest(clip, clip.name)
        views = Views(store.parts, store.tools)
        yield Shelf(store, views)
        views.close()


@contextmanager
def shelved_before(tmp_path: Path, clip: Path, change: str) -> Iterator[Shelf]:
    """The same store as left by an older version: without audio pages, and with a `change` in
    SQL."""
    with shelved(tmp_path, clip):
        pass
    for statement in ("DELETE FROM sound_pages", change):
        execute(tmp_path / "store", statement)
    with Store.open(tmp_path / "store") as store:
        views = Views(store.parts, store.tools)
        yield Shelf(store, views)
        views.close()


def rendition(video: Video, path: str) -> PlannedView:
    context = context_of(video)
    source = view_input_of(context.parts, context.tools, video.info)
    return plan_view(source, view_request.parse_view_path(path), context.tools)


def begins(video: Video, view: str) -> Fraction:
    """The start and the end of a view on the timeline of the file."""
    request = view_request.parse_view_path(f"{view}.mp4").view
    start = request.span[0] if request.span is not None else Fraction(0)
    base = video.original.time_base
    if request.fps is not None:
        return video.original.first_pts * base + start
    first = next(
        tick for tick in context_of(video).table.pts() if (tick * base) >= start + begin_of(video)
    )
    return int(first) * base


def begin_of(video: Video) -> Fraction:
    return video.original.first_pts * video.original.time_base


@pytest.mark.parametrize(("codec", "suffix", "takers"), one_in(7, SOURCES))
def test_packets_keep_their_offset_to_the_frames(
    tmp_path: Path, codec: str, suffix: str, takers: tuple[str, ...]
) -> None:
    clip = make_talking(tmp_path / f"clip.{suffix}", codec, late=Fraction(1, 50))
    stored = packets(clip)
    with shelved(tmp_path, clip) as shelf:
        video = shelf.video(clip.name)
        for view in FEW:
            begin = begins(video, view)
            for container in ("mp4", "mkv"):
                data = shelf.read(clip.name, f"{view}.{container}")
                told = json.loads(shelf.read(clip.name, f"explain/{view}.{container}.json"))
                assert (told["sound_made"] == "copied") == (container in takers)
                if container not in takers:
                    continue
                length = _length(data)
                wanted = [(t - begin, it) for t, it in stored if 0 <= t - begin < length]
                found = packets(data)
                assert [content for _, content in found] == [content for _, content in wanted]
                # Half a sample, or half a tick of Matroska.
                tolerance = Fraction(1, 90_000) if container == "mp4" else Fraction(1, 19_000)
                assert (
                    max(abs(a - b) for (a, _), (b, _) in zip(found, wanted, strict=True))
                    <= tolerance
                )


def _length(data: bytes) -> Fraction:
    """Duration of a view's frames in seconds, with a last frame as long as the previous one."""
    frames = decoded(data)
    times = [(frame.pts or 0) * (frame.time_base or Fraction(0)) for frame in frames]
    return times[-1] + times[-1] - times[-2] + Fraction(1, 10_000)


@pytest.mark.parametrize(
    "codec", one_in(4, ["aac", "libmp3lame", "flac", "ac3", "libopus", "alac", "mp2"])
)
@pytest.mark.parametrize("container", ["mp4", "mkv"])
def test_decoded_audio_equals_the_original(tmp_path: Path, codec: str, container: str) -> None:
    clip = make_talking(tmp_path / "clip.mov" if codec == "alac" else tmp_path / "clip.mp4", codec)
    origin, everything = samples(clip)
    with shelved(tmp_path, clip) as shelf:
        video = shelf.video(clip.name)
        for view in FEW:
            begin, heard = samples(shelf.read(clip.name, f"{view}.{container}"))
            # Codecs with overlapping packets need one packet, or a few (MP3), before output is
            # correct.
            settled = 0 if codec in ("flac", "alac") else 6 * 1152
            at = begin + round(begins(video, view) * RATE) - origin + settled
            heard = heard[settled:]
            right = everything[at : at + len(heard)]
            heard = heard[: len(right)]
            assert len(right) > 0.3 * RATE
            # Matroska has ticks of 0.1 ms, which hardly shift a tone of up to 1 kHz.
            shift = 0 if container == "mp4" else 3
            differences = [
                np.abs(heard[3 : len(heard) - 3] - right[3 + k : len(right) - 3 + k]).max()
                for k in range(-shift, shift + 1)
            ]
            assert min(differences) < 0.02  # an offset of one sample is 0.06


def test_frames_are_equal_with_and_without_audio(tmp_path: Path) -> None:
    clip = make_talking(tmp_path / "clip.mp4", "aac")
    with shelved(tmp_path, clip) as shelf:
        for view, made in VIEWS.items():
            for container in ("mp4", "mkv"):
                assert rendition(shelf.video(clip.name), f"{view}.{container}").method == made
                heard = shelf.read(clip.name, f"{view}.{container}")
                name = f"sound=no.{container}" if view == "full" else f"{view},sound=no.{container}"
                silent = shelf.read(clip.name, name)
                with av.open(io.BytesIO(silent)) as opened:
                    assert not opened.streams.audio
                both = [[(f.pts, fingerprint(f)) for f in decoded(d)] for d in (heard, silent)]
                assert both[0] == both[1]
                assert len(silent) < len(heard)


def test_random_access_equals_sequential_read(tmp_path: Path) -> None:
    clip = make_talking(tmp_path / "clip.mp4", "aac")
    with shelved(tmp_path, clip) as shelf:
        for path in ("t=0.93-2.61.mp4", "t=0.93-2.61.mkv", "full.mp4", "size=48x0.mkv"):
            whole = shelf.read(clip.name, path)
            assert shelf.size(clip.name, path) == len(whole)
            file = shelf.open(clip.name, path)
            for offset in range(0, len(whole), 7919):
                buffer = bytearray(5000)
                got = file.readinto(memoryview(buffer), offset)
                assert bytes(buffer[:got]) == whole[offset : offset + 5000]
            file.close()


@pytest.mark.parametrize("view", one_in(3, ["full", "t=0.93-2.61", "size=48x0"]))
@pytest.mark.parametrize("container", ["mp4", "mkv"])
def test_players_report_no_errors(tmp_path: Path, view: str, container: str) -> None:
    if shutil.which("ffprobe") is None or shutil.which("ffmpeg") is None:
        pytest.skip("ffmpeg is not installed")
    clip = make_talking(tmp_path / "clip.mp4", "aac")
    path = tmp_path / f"view.{container}"
    with shelved(tmp_path, clip) as shelf:
        path.write_bytes(shelf.read(clip.name, f"{view}.{container}"))
    probe = ["ffprobe", "-v", "warning", "-of", "json", "-show_streams", "-count_packets"]
    told = subprocess.run([*probe, str(path)], capture_output=True, text=True, check=True)
    assert told.stderr == ""
    picture, sound = json.loads(told.stdout)["streams"]
    assert (picture["codec_type"], sound["codec_type"]) == ("video", "audio")
    assert 0 <= float(sound["start_time"]) - float(picture["start_time"]) < 1024 / RATE
    assert (sound["sample_rate"], sound["channels"]) == (str(RATE), 1)
    done = subprocess.run(
        ["ffmpeg", "-v", "warning", "-i", str(path), "-f", "null", "-"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""


def test_seek_finds_audio_near_the_frame(tmp_path: Path) -> None:
    clip = make_talking(tmp_path / "clip.mp4", "aac")
    with shelved(tmp_path, clip) as shelf:
        for container in ("mp4", "mkv"):
            data = shelf.read(clip.name, f"t=0.6-.{container}")
            with av.open(io.BytesIO(data), mode="r") as opened:
                video, audio = opened.streams.video[0], opened.streams.audio[0]
                opened.seek(round(Fraction(3, 2) / (video.time_base or 1)), stream=video)
                first: dict[str, Fraction] = {}
                for packet in opened.demux(video, audio):
                    if packet.pts is not None:
                        time = packet.pts * (packet.time_base or Fraction(0))
                        first.setdefault(packet.stream.type, time)
                assert abs(first["audio"] - first["video"]) < Fraction(1, 10)


def test_audio_during_long_frames(tmp_path: Path) -> None:
    """Matroska clusters span at most 3.2 seconds; frames may last longer."""
    clip = make_talking(tmp_path / "clip.mp4", "aac", frames=16, group=4, rate=1)
    stored = packets(clip)
    with shelved(tmp_path, clip) as shelf:
        for path in ("full.mkv", "full.mp4", "size=48x0.mkv", "t=5-14.mkv"):
            data = shelf.read(clip.name, path)
            assert shelf.size(clip.name, path) == len(data)
            begin = Fraction(5) if path.startswith("t=") else Fraction(0)
            stop = Fraction(14) if path.startswith("t=") else Fraction(16)
            wanted = [content for time, content in stored if begin <= time < stop]
            assert [content for _, content in packets(data)] == wanted


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("frames=0-60-2.mp4", "faster"),
        ("sound=no.mp4", "no sound was requested"),
        ("full.h264", "h264 has no sound"),
    ],
)
def test_missing_audio_is_explained(tmp_path: Path, path: str, reason: str) -> None:
    clip = make_talking(tmp_path / "clip.mp4", "aac")
    with shelved(tmp_path, clip) as shelf:
        told = json.loads(shelf.read(clip.name, f"explain/{path}.json"))
        assert told["sound"] is None
        assert reason in told["silence"]
        with av.open(io.BytesIO(shelf.read(clip.name, path))) as opened:
            assert not opened.streams.audio
        loud = json.loads(shelf.read(clip.name, "explain/full.mp4.json"))
        assert (loud["sound"], loud["silence"]) == ("aac", None)
        assert json.loads(shelf.read(clip.name, "info.json"))["sound"]["codec"] == "aac"


def test_unreadable_audio_does_not_affect_the_video(tmp_path: Path) -> None:
    clip = make_talking(tmp_path / "clip.mkv", "aac")
    data = bytearray(clip.read_bytes())
    at = data.index(b"A_AAC")
    data[at : at + 5] = b"A_XYZ"  # a codec without a decoder
    clip.write_bytes(bytes(data))
    with shelved(tmp_path, clip) as shelf:
        told = json.loads(shelf.read(clip.name, "info.json"))["sound"]
        assert told["packets"] == 0
        assert told["silence"] == "the codec is unknown"
        with av.open(io.BytesIO(shelf.read(clip.name, "full.mp4"))) as opened:
            assert not opened.streams.audio
        assert len(decoded(shelf.read(clip.name, "full.mp4"))) == 75


def test_video_without_audio(shelf: Shelf) -> None:
    assert json.loads(shelf.read("portrait.mp4", "info.json"))["sound"] is None
    told = json.loads(shelf.read("portrait.mp4", "explain/full.mp4.json"))
    assert (told["sound"], told["silence"]) == (None, "the video has no sound")


def test_old_videos_are_silent_until_verified(tmp_path: Path) -> None:
    clip = make_talking(tmp_path / "clip.mp4", "aac")
    with shelved_before(tmp_path, clip, "DELETE FROM sounds") as shelf:
        before = shelf.read(clip.name, "t=0.6-1.8.mp4")
        told = json.loads(shelf.read(clip.name, "explain/t=0.6-1.8.mp4.json"))
        assert "vfsd verify" in told["silence"]
        shelf.video(clip.name).verify()
        after = shelf.read(clip.name, "t=0.6-1.8.mp4")
        assert len(after) > len(before)
        assert packets(after)
