"""Windows of sound: arrays and WAV views, against the samples that FFmpeg decodes."""

from __future__ import annotations

import io
import json
import subprocess
import warnings
import wave
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from tests.support.selection import one_in, thorough_but
from tests.support.stores import new_store
from vfsd.errors import NotFoundError, OutOfRangeError, SilenceWarning, UsageError
from vfsd.views.sound_view import SoundSamples

SECONDS = 3
CASES = [
    # Name of the file, codec, sample rate, channels, tolerance.
    ("aac.mp4", "aac", 44100, 2, 1e-3),
    ("opus.mkv", "libopus", 48000, 2, 1e-3),
    ("many.mkv", "flac", 48000, 6, 0.0),
    ("pcm.mov", "pcm_s16le", 48000, 2, 0.0),
    ("deep.mkv", "pcm_s24le", 44100, 1, 0.0),
    ("law.mov", "pcm_mulaw", 8000, 1, 0.0),
    ("alaw.mkv", "pcm_alaw", 8000, 1, 0.0),
    ("quad.mov", "pcm_s16le", 32000, 4, 0.0),
    ("opus.mp4", "libopus", 48000, 1, 1e-3),
    ("ts.ts", "aac", 48000, 2, 1e-3),
]


def make(path: Path, codec: str, rate: int, channels: int, late: float, long: float) -> Path:
    """Noise-like sound that never repeats, from second `late` on and `long` seconds long."""
    sweeps = "|".join(f"0.4*sin(2*PI*t*({200 + 90 * n}+{70 + n}*t))" for n in range(channels))
    layout = {1: "mono", 2: "stereo", 4: "quad", 6: "5.1"}[channels]
    subprocess.run(
        [
            *("ffmpeg", "-v", "error", "-y"),
            *("-f", "lavfi", "-i", f"testsrc=s=64x48:r=25:d={SECONDS}"),
            *("-itsoffset", str(late), "-f", "lavfi"),
            *("-i", f"aevalsrc={sweeps}:s={rate}:d={long}:c={layout}"),
            *("-c:v", "libx264", "-g", "25", "-c:a", codec, "-strict", "-2", str(path)),
        ],
        check=True,
    )
    return path


def decoded(path: Path, channels: int) -> tuple[float, npt.NDArray[np.float32]]:
    """Return (seconds from the first picture to the first sample, samples) by FFmpeg."""

    def start(stream: str) -> float:
        shown = subprocess.run(
            [
                *("ffprobe", "-v", "error", "-select_streams", stream, "-read_intervals", "%+#8"),
                *("-show_entries", "frame=pts_time", "-of", "json", str(path)),
            ],
            check=True,
            capture_output=True,
        )
        return float(json.loads(shown.stdout)["frames"][0]["pts_time"])

    raw = subprocess.run(
        ["ffmpeg", "-v", "error", "-i", str(path), "-map", "0:a:0", "-f", "f32le", "-"],
        check=True,
        capture_output=True,
    )
    return start("a:0") - start("v:0"), np.frombuffer(raw.stdout, "<f4").reshape(-1, channels)


def placed(expected: npt.NDArray[np.float32], start: int, length: int) -> npt.NDArray[np.float32]:
    """`length` samples; `expected` begins at number `start`."""
    found = np.zeros((length, expected.shape[1]), np.float32)
    low, high = max(0, start), min(length, start + len(expected))
    found[low:high] = expected[low - start : high - start]
    return found


@pytest.mark.parametrize(
    ("name", "codec", "rate", "channels", "error"), thorough_but(CASES[:3], CASES)
)
def test_windows_are_the_samples_of_ffmpeg(
    tmp_path: Path,
    name: str,
    codec: str,
    rate: int,
    channels: int,
    error: float,
) -> None:
    clip = make(tmp_path / name, codec, rate, channels, 0, SECONDS)
    begin, expected = decoded(clip, channels)
    with new_store(tmp_path / "store") as store:
        video = store.ingest(clip, name)
        whole = video.sound((0.5, 2.5))
        assert isinstance(whole, SoundSamples)
        samples, found_rate = whole
        assert samples.dtype == np.float32
        assert (samples.shape, found_rate) == ((2 * rate, channels), rate)
        assert not whole.silent
        first = round((0.5 - begin) * rate)
        # Matroska rounds times to milliseconds, so the first sample is known as exactly as that.
        slack = range(-rate // 1000 - 1, rate // 1000 + 2) if name.endswith(("mkv", "ts")) else [0]
        errors = {
            shift: float(np.abs(samples - expected[first + shift :][: 2 * rate]).max())
            for shift in slack
        }
        shift = min(errors, key=errors.__getitem__)
        assert errors[shift] <= error, errors
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SilenceWarning)  # packets of a stream end early
            everything = video.sound()
        shown = placed(expected, round(begin * rate) - shift, SECONDS * rate)
        for silent in everything.silent:
            assert silent.start == 0 or silent.stop == SECONDS * rate
            assert len(silent) < rate // 20
            shown[silent.start : silent.stop] = 0
        # Encoders pad the last packet, and some containers do not tell.
        edge = slice(0, SECONDS * rate - 1024)
        assert np.abs(everything.samples - shown)[edge].max() <= error
        # Windows that follow each other fit together, at each rate.
        for other in (rate, 16000, 44100):
            parts = [video.sound(span, other).samples for span in ((0.5, 1.1), (1.1, 2.5))]
            joined = np.concatenate(parts)
            assert joined.shape == (2 * other, channels)
            assert np.abs(joined - video.sound((0.5, 2.5), other).samples).max() < 2e-3
        # The file is the same samples, as integers.
        with video.views.open("t=0.5-2.5.wav") as file:
            data = file.read()
        heard = subprocess.run(
            ["ffmpeg", "-v", "error", "-i", "-", "-f", "f32le", "-"],
            input=data,
            check=True,
            capture_output=True,
        ).stdout
        written = np.frombuffer(heard, "<f4").reshape(-1, channels)
        assert written.shape == samples.shape
        assert np.abs(written - samples).max() <= (1 / 65536 if error else 0)


@pytest.mark.parametrize(
    ("name", "codec"), one_in(3, [("a.mp4", "aac"), ("o.mkv", "libopus"), ("p.mov", "pcm_s16le")])
)
def test_sound_that_starts_late_and_ends_early_says_so(
    tmp_path: Path, name: str, codec: str
) -> None:
    rate = 48000
    clip = make(tmp_path / name, codec, rate, 1, 0.7, 1.3)
    with new_store(tmp_path / "store") as store:
        video = store.ingest(clip, name)
        with pytest.warns(SilenceWarning, match="no sound"):
            found = video.sound()
        assert len(found.samples) == SECONDS * rate
        before, after = found.silent
        near = 0.025 * rate  # the muxer of FFmpeg places priming before the offset
        assert before.start == 0
        assert abs(before.stop - 0.7 * rate) < near
        assert after.stop == SECONDS * rate
        assert abs(after.start - 2.0 * rate) < near
        for silent in found.silent:
            assert not found.samples[silent.start : silent.stop].any()
        heard = found.samples[before.stop : after.start]
        assert np.abs(heard).max() > 0.3
        assert "after about second" in str(video.views.explain("full.wav").silence)
        with video.views.open("why/full.wav.txt") as file:
            assert b"Silent: before about second 0." in file.read()
        video.sound((1, 1.5))  # without a warning, which pytest makes an error


def test_wav_views_refuse_what_sound_does_not_have(tmp_path: Path) -> None:
    clip = make(tmp_path / "a.mov", "pcm_s16le", 8000, 1, 0, SECONDS)
    silent = tmp_path / "silent.mp4"
    subprocess.run(
        ["ffmpeg", "-v", "error", "-i", str(clip), "-an", "-c", "copy", str(silent)], check=True
    )
    with new_store(tmp_path / "store") as store:
        video = store.ingest(clip, "a.mov")
        assert video.sound().silent == ()
        for name in ("size=64x48.wav", "roi=8x8+0+0.wav", "fps=5.wav", "t=0-1,rate=0x1.wav"):
            with pytest.raises(NotFoundError):
                video.views.open(name)
        with pytest.raises(NotFoundError, match="rate is that of wav"):
            video.views.open("t=0-1,rate=8000.mp4")
        with pytest.raises(UsageError, match="rate must be 1 to"):
            video.views.open("t=0-1,rate=0.wav")
        with pytest.raises(UsageError, match="consecutive frames"):
            video.views.open("frames=0-20-2.wav")
        for window in ((3, 4), (9, 10)):
            with pytest.raises(OutOfRangeError):
                video.sound(window)
        with pytest.raises(UsageError):
            video.sound((1, 1))
        with pytest.raises(UsageError):
            video.sound(rate=0)
        with pytest.raises(UsageError, match="wav holds sound alone, which has no size"):
            video.save(tmp_path / "none.wav", size=64)
        assert not (tmp_path / "none.wav").exists()
        with video.views.open("frames=25-50,rate=16000.wav") as file:
            data = file.read()
        with wave.open(io.BytesIO(data)) as opened:
            assert (opened.getnframes(), opened.getframerate()) == (16000, 16000)
        target = tmp_path / "out.wav"
        assert video.save(target, span=(1, 2)) == target.stat().st_size == 44 + 16000
        expected = (video.sound((1, 2)).samples[:1000] * 32768).astype("<i2").tobytes()
        with wave.open(str(target)) as opened:
            assert opened.readframes(1000) == expected
        with pytest.raises(UsageError, match="no sound"):
            store.ingest(silent, "silent.mp4").sound()
