"""Writing videos with audio: in sync with the frames, and of the same length."""

from __future__ import annotations

import io
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import numpy.typing as npt
import pytest
from av.audio.stream import AudioStream

from sample_videos import FOLDER
from tests.support.audio_clips import RATE, make_pausing, make_talking
from tests.support.selection import one_in
from tests.support.writing import is_as_before, smooth
from tests.views.test_audio import packets
from vfsd import AudioFormat
from vfsd.api.store import Store
from vfsd.api.video import Video
from vfsd.errors import NotFoundError, UsageError

PICTURES = smooth(50, 64, 48)
_AT = np.arange(3 * RATE) / RATE
TONE = (0.4 * np.sin(2 * np.pi * (200 + 150 * _AT) * _AT)).astype(np.float32)
"""Three seconds that never repeat; the pictures take two."""


def heard(data: bytes) -> tuple[int, npt.NDArray[Any]]:
    """(samples from the first frame to the first sample, the first channel from -1 to 1)."""
    with av.open(io.BytesIO(data), mode="r") as opened:
        picture = next(opened.decode(video=0))
    with av.open(io.BytesIO(data), mode="r") as opened:
        frames = list(opened.decode(audio=0))
    begin = (frames[0].time or 0) - (picture.time or 0)
    parts = [frame.to_ndarray() for frame in frames]
    channels = len(frames[0].layout.channels)
    whole = np.concatenate(
        [
            part[0] if frame.format.is_planar else part.reshape(-1, channels)[:, 0]
            for frame, part in zip(frames, parts, strict=True)
        ]
    )
    if whole.dtype.kind == "i":
        whole = whole / float(np.iinfo(whole.dtype).max + 1)
    return round(begin * RATE), whole


def content(store: Store, video: Video) -> bytes:
    return store.parts.originals.path_of(video.original).read_bytes()


def off_by(begin: int, found: npt.NDArray[Any], reach: int) -> tuple[int, float]:
    """(delay in samples, may be negative; mean difference from the tone after aligning)."""
    first, last = 6000, min(len(found), 2 * RATE) - 6000
    errors = {
        by: float(np.abs(found[first:last] - TONE[begin + first + by : begin + last + by]).mean())
        for by in range(-reach, reach + 1)
    }
    best = min(errors, key=lambda by: errors[by])
    return best, errors[best]


@pytest.mark.parametrize(
    ("name", "codec"), [("a.mp4", "flac"), ("a.mkv", "flac"), ("a.mov", "pcm"), ("a.mkv", "pcm")]
)
def test_samples_are_kept_and_cut_at_the_last_frame(store: Store, name: str, codec: str) -> None:
    samples = np.stack([(TONE * 32767).astype(np.int16), np.zeros(len(TONE), np.int16)], axis=1)
    video = store.write(name, PICTURES, fps=25, sound=(samples, RATE), sound_codec=codec)
    assert len(video) == 50
    begin, found = heard(content(store, video))
    assert begin == 0
    assert np.array_equal(np.round(found * 32768), samples[: 2 * RATE, 0])


@pytest.mark.parametrize("name", ["a.mp4", "a.mkv"])
@pytest.mark.parametrize("in_pieces", [False, True])
def test_audio_of_frames_below_the_psnr_is_left_out(
    store: Store, name: str, in_pieces: bool
) -> None:
    """The audio of all other frames stays in sync while they are gathered in GOPs."""
    flat = np.full((96, 128, 3), 90, np.uint8)
    noise = np.random.default_rng(0).integers(0, 255, (24, *flat.shape)).astype(np.uint8)
    samples = (TONE * 32767).astype(np.int16)[:, None]
    sound = AudioFormat(RATE, "mono", "int16") if in_pieces else (samples, RATE)
    writer = store.writer(
        name, width=128, height=96, fps=25, psnr=60, sound=sound, sound_codec="flac"
    )
    for number, picture in enumerate([flat] * 25 + [*noise]):
        writer.write(picture)
        if in_pieces:
            writer.write_sound(samples[number * RATE // 25 : (number + 1) * RATE // 25])
    with pytest.raises(UsageError, match="frames 25 to 48 with 60 dB"):
        writer.close()
    video = store.recover(store.recordings()[0])
    assert len(video) == 25
    begin, found = heard(content(store, video))
    assert begin == 0
    assert np.array_equal(np.round(found * 32768), samples[:RATE, 0])


@pytest.mark.parametrize("name", one_in(3, ["a.mp4", "a.mov", "a.mkv"]))
@pytest.mark.parametrize("codec", ["aac", "opus"])
def test_encoded_audio_is_in_sync(store: Store, name: str, codec: str) -> None:
    if (name, codec) == ("a.mov", "opus"):
        pytest.skip("mov does not hold it")
    video = store.write(name, PICTURES, fps=25, sound=(TONE, RATE), sound_codec=codec)
    begin, found = heard(content(store, video))
    assert abs(begin) <= 48
    assert off_by(begin, found, 60)[0] == 0
    assert off_by(begin, found, 60)[1] < 0.02
    assert len(found) + begin < 2 * RATE + 1024  # the last packet may be longer
    assert video.original.first_pts == 0


@pytest.mark.parametrize("ending", one_in(2, ["mp4", "mkv"]))
@pytest.mark.parametrize("source", one_in(2, ["aac mp4", "libmp3lame mp4", "flac mkv", "aac ts"]))
def test_audio_of_a_file_begins_with_its_first_frame(
    store: Store, tmp_path: Path, source: str, ending: str
) -> None:
    codec, kind = source.split()
    clip = make_talking(tmp_path / f"clip.{kind}", codec, frames=75)
    video = store.write(f"a.{ending}", PICTURES, fps=25, sound=clip)
    begin, found = heard(content(store, video))
    by, error = off_by(begin, found, 60)
    assert abs(by) <= (1 if ending == "mp4" else 48)  # Matroska has milliseconds
    assert error < 0.02
    if kind != "ts":  # AAC with ADTS headers is transcoded
        stored = [payload for _, payload in packets(clip)]
        copied = [payload for _, payload in packets(content(store, video))]
        assert copied in (
            stored[: len(copied)],
            stored[1 : len(copied) + 1],
            stored[2 : len(copied) + 2],
        )
        assert 1.9 < len(copied) / len(stored) * 3 < 2.2


@pytest.mark.parametrize(
    ("source", "stored", "name", "codec", "kept"),
    one_in(
        4,
        [
            ("a.wav", "pcm_s24le", "a.mov", None, "pcm_s24le"),
            ("a.wav", "pcm_s24le", "a.mkv", "flac", "flac"),
            ("a.wav", "pcm_s24le", "a.mp4", "flac", "flac"),
            ("a.wav", "pcm_s32le", "a.mkv", None, "pcm_s32le"),
            ("a.w64", "pcm_s24le", "a.mov", "pcm", "pcm_s24le"),
            ("a.aiff", "pcm_s24be", "a.mkv", "pcm", "pcm_s24le"),
            ("a.caf", "pcm_s24le", "a.mov", None, "pcm_s24le"),
            ("a.flac", "flac", "a.mov", "pcm", "pcm_s24le"),
        ],
    ),
)
def test_24_bits_of_a_file_are_kept(
    store: Store, tmp_path: Path, source: str, stored: str, name: str, codec: str | None, kept: str
) -> None:
    samples = np.random.default_rng(0).integers(-(1 << 23), 1 << 23, 2 * RATE).astype(np.int32)
    samples <<= 8
    _record(tmp_path / source, stored, samples)
    video = store.write(name, PICTURES, fps=25, sound=tmp_path / source, sound_codec=codec)
    data = content(store, video)
    with av.open(io.BytesIO(data), mode="r") as opened:
        assert opened.streams.audio[0].codec_context.codec.canonical_name == kept
        found = np.concatenate([frame.to_ndarray()[0] for frame in opened.decode(audio=0)])
    assert np.array_equal(found, samples)


def test_24_bits_of_samples_are_kept(store: Store) -> None:
    samples = np.random.default_rng(0).integers(-(1 << 23), 1 << 23, (2 * RATE, 1))
    samples = (samples << 8).astype(np.int32)
    for name, codec in (("a.mov", "pcm"), ("a.mp4", "flac")):
        video = store.write(name, PICTURES, fps=25, sound=(samples, RATE), sound_codec=codec)
        begin, found = heard(content(store, video))
        assert begin == 0
        assert np.array_equal(np.round(found * 2**31), samples[:, 0])


def _record(path: Path, codec: str, samples: npt.NDArray[np.int32]) -> None:
    with av.open(str(path), "w") as output:
        stream = output.add_stream(codec, rate=RATE)
        assert isinstance(stream, AudioStream)
        stream.layout = "mono"
        stream.codec_context.format = "s32"
        for at in range(0, len(samples), RATE // 10):
            part = samples[at : at + RATE // 10].reshape(1, -1)
            frame = av.AudioFrame.from_ndarray(part, format="s32", layout="mono")
            frame.sample_rate, frame.pts = RATE, at
            frame.time_base = Fraction(1, RATE)
            output.mux(stream.encode(frame))
        output.mux(stream.encode(None))


def test_short_audio_leaves_the_rest_silent(store: Store) -> None:
    with store.writer(
        "a.mp4", width=64, height=48, fps=5, sound=(TONE[: RATE // 2], RATE)
    ) as writer:
        for picture in PICTURES:
            writer.write(picture)
    assert len(writer.video) == 50
    assert writer.video.duration == 10
    assert len(heard(content(store, writer.video))[1]) < RATE


def test_views_carry_written_audio_while_growing(store: Store) -> None:
    with store.writer("a.mp4", width=64, height=48, fps=25, sound=(TONE, RATE)) as writer:
        for picture in PICTURES:
            writer.write(picture)
        with store.growing("a.mp4") as growing:
            assert 0 < len(growing) < 50
            assert growing[0].index == 0
    with writer.video.views.open("t=0.4-1.4.mp4") as file:
        begin, found = heard(file.read())
    assert 0 <= begin < 1024
    settled = found[4096 : RATE // 2]
    at = RATE * 2 // 5 + begin + 4096
    assert np.abs(settled - TONE[at : at + len(settled)]).mean() < 0.02


@pytest.mark.parametrize(("hours", "fits"), [(12, True), (13, False)])
def test_audio_pause_of_half_a_day_is_exact_or_refused(
    store: Store, tmp_path: Path, hours: int, fits: bool
) -> None:
    """2**31 samples at 48 kHz are 12 hours 25 minutes, the maximum of mp4 and mov."""
    talking = make_talking(tmp_path / "talking.mkv", "aac", frames=50)
    clip = make_pausing(tmp_path / "clip.mkv", talking, Fraction(1), hours * 3600)
    pts = [number + (hours * 3600 * 25 if number >= 25 else 0) for number in range(50)]
    wanted = [float(time) for time, _ in packets(clip) if time >= 0]
    assert max(np.diff(wanted)) > hours * 3600 - 1
    tick = Fraction(1, 25)
    for name in ("a.mp4", "a.mov", "a.mkv"):
        if fits or name == "a.mkv":
            video = store.write(name, PICTURES, time_base=tick, pts=pts, sound=clip)
            found = [float(time) for time, _ in packets(content(store, video)) if time >= 0]
            assert found == pytest.approx(wanted[: len(found)], abs=0.002)
            assert found[-1] > hours * 3600 + 1.9
            continue
        with pytest.raises(UsageError, match="is missing from") as refused:
            store.write(name, PICTURES, time_base=tick, pts=pts, sound=clip)
        assert "codec" in (refused.value.hint or "")
    assert is_as_before(store, ["a.mkv", "a.mov", "a.mp4"] if fits else ["a.mkv"])


@pytest.mark.parametrize("name", ["a.mp4", "a.mov", "a.mkv"])
def test_long_pause_of_frames_with_sound(store: Store, name: str) -> None:
    pts = [number + (40 * 3600 * 25 if number >= 25 else 0) for number in range(50)]
    video = store.write(name, PICTURES, time_base=Fraction(1, 25), pts=pts, sound=(TONE, RATE))
    assert video.read().seconds == pytest.approx(np.array(pts) / 25, abs=1e-9)
    assert video.duration == Fraction(pts[-1] + 1, 25)
    begin, found = heard(content(store, video))
    assert off_by(begin, found, 60)[0] == 0


@pytest.mark.parametrize(
    ("name", "options", "what"),
    [
        ("a.mp4", {"sound": FOLDER / "portrait.mp4"}, "has no audio"),
        ("a.mp4", {"sound": Path(__file__)}, "cannot be read"),
        ("a.mp4", {"sound": (TONE, RATE), "sound_codec": "pcm"}, "in mp4"),
        ("a.mp4", {"sound": (TONE.astype(complex), RATE)}, "sound must be"),
        ("a.mp4", {"sound": (TONE, 0)}, "sample rate must be"),
        ("a.mp4", {"sound": (TONE, 48000.5)}, "sample rate must be"),
        ("a.mp4", {"sound": (TONE, "48000")}, "sample rate must be"),
        ("a.mp4", {"sound": (TONE, 2**40)}, "sample rate must be"),
        ("a.mp4", {"sound": ()}, "(samples, rate)"),
        ("a.mp4", {"sound": (TONE,)}, "(samples, rate)"),
        ("a.mp4", {"sound": 5}, "sound must be"),
        ("a.mp4", {"sound_codec": "aac"}, "needs sound to encode"),
    ],
)
def test_invalid_audio_is_refused_and_leaves_nothing(
    store: Store, name: str, options: dict[str, Any], what: str
) -> None:
    with pytest.raises(UsageError) as raised:
        store.write(name, PICTURES, fps=25, **options)
    assert what in f"{raised.value} {raised.value.hint}"
    assert is_as_before(store, [])


def test_missing_audio_file_is_reported(store: Store, tmp_path: Path) -> None:
    for given in (tmp_path / "no.wav", str(tmp_path / "no.wav")):
        with pytest.raises(NotFoundError, match=r"file not found: .*no\.wav") as refused:
            store.write("a.mp4", PICTURES, fps=25, sound=given)
        assert refused.value.hint
    with pytest.raises(NotFoundError):
        store.writer("a.mp4", width=64, height=48, fps=25, sound=tmp_path / "no.wav")
    assert (list(store), store.recordings()) == ([], [])
