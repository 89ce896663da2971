"""Audio in containers that split its frames: MPEG-TS, MPEG-PS and AVI."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import av
import numpy as np
import pytest

from tests.support.audio_clips import RATE, make_talking
from tests.support.selection import one_in
from tests.support.stores import new_store
from tests.views.test_audio import begins, packets, samples, shelved, shelved_before
from vfsd.codecs.audio.audio_decoder import AudioUnitReader, AudioUnits
from vfsd.codecs.decoding.demuxer import open_container
from vfsd.disk.checksums import MediaSource

WRAPS = {"output_ts_offset": "95442.2"}
"""Seconds after which the clock of MPEG-TS, 33 bits at 90 kHz, starts again within the clip."""

SOURCES = [
    # Codec, name of the file, the muxer's options, and the view containers that carry it.
    ("aac", "clip.ts", {}, ("mp4", "mkv")),
    ("aac", "wraps.ts", WRAPS, ("mp4", "mkv")),
    ("mp2", "clip.ts", {}, ("mp4", "mkv")),
    ("libmp3lame", "clip.ts", {}, ("mp4", "mkv")),
    ("ac3", "clip.ts", {}, ("mp4", "mkv")),
    ("libopus", "clip.ts", {}, ("mp4", "mkv")),
    ("mp2", "clip.mpg", {}, ("mp4", "mkv")),
    ("libmp3lame", "clip.avi", {}, ("mp4", "mkv")),
    ("pcm_s16le", "clip.avi", {}, ("mkv",)),
]


def _pictures_of(name: str) -> str:
    return "mpeg2video" if name.endswith("mpg") else "libx264"


@pytest.mark.parametrize(("codec", "name", "options", "takers"), one_in(4, SOURCES))
def test_audio_stream_matches_the_sound_of_the_file(
    tmp_path: Path, codec: str, name: str, options: dict[str, str], takers: tuple[str, ...]
) -> None:
    clip = make_talking(tmp_path / name, codec, video_codec=_pictures_of(name), options=options)
    origin, everything = samples(clip)
    with shelved(tmp_path, clip) as shelf:
        video = shelf.video(clip.name)
        for view in ("full", "t=0.93-2.61", "t=0.93-2.61,fps=7"):
            for container in ("mp4", "mkv"):
                told = json.loads(shelf.read(clip.name, f"explain/{view}.{container}.json"))
                assert (told["sound_made"] == "copied") == (container in takers)
                if container not in takers:
                    assert told["sound"] == "aac"
                    continue
                begin, heard = samples(shelf.read(clip.name, f"{view}.{container}"))
                assert 0 <= begin < 1536 + 5  # up to a packet after the first frame
                settled = 6 * 1152  # packets overlap, as in other files
                at = begin + round(begins(video, view) * RATE) - origin + settled
                heard = heard[settled:]
                right = everything[at - 5 : at + len(heard) + 5]
                heard = heard[: len(right) - 10]
                assert len(heard) > 0.3 * RATE
                # Half a tick of 90 kHz, half a sample, and Matroska's ticks of 0.1 ms.
                shifts = range(4, 7) if container == "mp4" else range(2, 9)
                differences = [np.abs(heard - right[k : k + len(heard)]).max() for k in shifts]
                assert min(differences) < 0.02  # an offset of one sample is 0.06


@pytest.mark.parametrize(
    ("codec", "ending"),
    one_in(3, [("aac", "ts"), ("mp2", "ts"), ("mp2", "mpg"), ("libmp3lame", "avi")]),
)
def test_packets_are_independent_of_the_start(tmp_path: Path, codec: str, ending: str) -> None:
    clip = make_talking(
        tmp_path / f"clip.{ending}", codec, frames=300, video_codec=_pictures_of(ending)
    )
    with new_store(tmp_path / "store") as store:
        original = store.ingest(clip, clip.name).original
        container = original.media.container
        with MediaSource(clip) as source, open_container(source, container) as opened:
            whole = [packet.payload for packet in AudioUnits(opened, opened.streams.audio[0])]
        found = store.parts.catalog.sound(original)
        assert found is not None
        sound, table = found
        assert len(table) == len(whole) > 256
        path = store.parts.originals.file_of(original)
        reader = AudioUnitReader(path, container, sound.stream_index, table)
        rng = np.random.default_rng(0)
        for first in [*rng.integers(0, len(whole), 30).tolist(), 0, len(whole) - 1]:
            end = min(len(whole), first + int(rng.integers(1, 90)))
            assert list(reader.read(first, end)) == list(enumerate(whole[first:end], first))
        reader.close()


def test_aac_has_its_configuration_in_the_header(tmp_path: Path) -> None:
    clip = make_talking(tmp_path / "clip.ts", "aac")
    with shelved(tmp_path, clip) as shelf:
        for container in ("mp4", "mkv"):
            path = tmp_path / f"view.{container}"
            path.write_bytes(shelf.read(clip.name, f"t=0.6-1.8.{container}"))
            with av.open(str(path)) as opened:
                assert (opened.streams.audio[0].codec_context.extradata or b"")[
                    :2
                ] == b"\x11\x88"  # LC, mono
            assert all(payload[:2] != b"\xff\xf1" for _, payload in packets(path))
            if shutil.which("ffprobe") is None or shutil.which("ffmpeg") is None:
                pytest.skip("ffmpeg is not installed")
            for command in (
                ["ffprobe", "-v", "warning", "-show_packets", "-i", str(path)],
                ["ffmpeg", "-v", "warning", "-i", str(path), "-f", "null", "-"],
            ):
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                assert done.stderr == ""


def test_audio_without_index_is_silent_until_verified(tmp_path: Path) -> None:
    clip = make_talking(tmp_path / "clip.ts", "aac")
    with shelved_before(tmp_path, clip, "DELETE FROM sounds") as shelf:
        told = json.loads(shelf.read(clip.name, "explain/full.mp4.json"))
        assert "vfsd verify" in told["silence"]
        shelf.video(clip.name).verify()
        assert packets(shelf.read(clip.name, "full.mp4"))


def test_backward_timestamps_are_reported(tmp_path: Path) -> None:
    one = make_talking(tmp_path / "one.ts", "aac").read_bytes()
    clip = tmp_path / "twice.ts"
    clip.write_bytes(one + one)
    with shelved(tmp_path, clip) as shelf:
        told = json.loads(shelf.read(clip.name, "info.json"))["sound"]
        assert told["packets"] == 0
        assert "run backwards" in told["silence"] or "had to be corrected" in told["silence"]
