"""Audio written piece by piece: kept, in sync, and readable while it grows."""

from __future__ import annotations

import io
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import numpy.typing as npt
import pytest

from tests.api.test_growing_video import grown
from tests.support.audio_clips import RATE
from tests.support.selection import one_in
from tests.support.writing import is_as_before, smooth
from tests.views.test_audio import packets
from tests.write.test_audio import TONE, content, heard, off_by
from vfsd import AudioFormat
from vfsd.api.growing_video import GrowingVideo
from vfsd.api.store import Store
from vfsd.api.video import Video
from vfsd.errors import UsageError
from vfsd.write.video_writer import VideoWriter

PICTURES = smooth(50, 64, 48)
FRAME = RATE // 25
MONO = AudioFormat(RATE, "mono", "int16")
SHORT = (TONE * 32767).astype(np.int16)
ENDINGS = {
    "aac": ("mp4", "mov", "mkv"),
    "flac": ("mp4", "mkv"),
    "opus": ("mp4", "mkv"),
    "pcm": ("mov", "mkv"),
}
KINDS = [(codec, ending) for codec, endings in ENDINGS.items() for ending in endings]


def opened(store: Store, name: str = "a.mp4", **form: Any) -> VideoWriter[Video]:
    return store.writer(name, width=64, height=48, **{"fps": 25, "sound": MONO, **form})


def noise(dtype: str, channels: int, count: int = 2 * RATE) -> npt.NDArray[Any]:
    """Samples that codecs must keep exactly; int32 holds 24 bits."""
    random = np.random.default_rng(7)
    if dtype == "int16":
        return random.integers(-(1 << 15), 1 << 15, (count, channels)).astype(np.int16)
    if dtype == "int32":
        return random.integers(-(1 << 23), 1 << 23, (count, channels)).astype(np.int32) << 8
    return random.uniform(-1, 1, (count, channels)).astype(np.float32)


def decoded(file: io.BytesIO | io.BufferedReader) -> npt.NDArray[Any]:
    """Samples x channels, in their stored type."""
    with av.open(file, mode="r") as container:
        frames = list(container.decode(audio=0))
    channels = len(frames[0].layout.channels)
    parts = [frame.to_ndarray() for frame in frames]
    return np.concatenate(
        [
            part.T if frame.format.is_planar else part.reshape(-1, channels)
            for frame, part in zip(frames, parts, strict=True)
        ]
    )


def stored(store: Store, video: Video) -> npt.NDArray[Any]:
    return decoded(io.BytesIO(content(store, video)))


def write_all(
    writer: VideoWriter[Video],
    samples: npt.NDArray[Any],
    after: Callable[[], None] = lambda: None,
) -> None:
    """Write frames and audio pieces of all sizes alternately."""
    sizes, at = np.random.default_rng(1).integers(1, 2 * FRAME, 1000), 0
    for number, (picture, size) in enumerate(zip(PICTURES, sizes, strict=False), 1):
        writer.write(picture)
        at_least = max(0, number * FRAME - at)
        for piece in (int(size) // 3, at_least):
            at = writer.write_sound(samples[at : at + piece])
        after()


@pytest.mark.parametrize("channels", one_in(4, [1, 2]))
@pytest.mark.parametrize(
    ("codec", "ending", "dtype"),
    one_in(
        3,
        [
            *((*kind, dtype) for kind in KINDS if kind[0] == "pcm" for dtype in ("int16", "int32")),
            *(
                (*kind, dtype)
                for kind in KINDS
                if kind[0] == "flac"
                for dtype in ("int16", "int32")
            ),
            ("pcm", "mov", "float32"),
            ("pcm", "mkv", "float32"),
        ],
    ),
)
def test_every_sample_is_kept(
    store: Store, codec: str, ending: str, dtype: str, channels: int
) -> None:
    samples = noise(dtype, channels)
    form = AudioFormat(RATE, channels, dtype)
    with opened(store, f"a.{ending}", sound=form, sound_codec=codec) as writer:
        write_all(writer, samples)
    found = stored(store, writer.video)
    assert found.dtype == samples.dtype
    assert np.array_equal(found, samples)
    assert len(writer.video) == 50


def test_six_channels_keep_their_order(store: Store) -> None:
    samples = noise("int16", 6, RATE)
    with opened(store, sound=AudioFormat(RATE, "5.1"), sound_codec="flac") as writer:
        writer.write(PICTURES[:25])
        writer.write_sound(samples)
    assert np.array_equal(stored(store, writer.video), samples)


@pytest.mark.parametrize("ending", one_in(4, ["mp4", "mov", "mkv"]))
@pytest.mark.parametrize("codec", ["aac", "opus"])
@pytest.mark.parametrize("rate", [RATE, 44_100])
def test_encoded_audio_is_in_sync(store: Store, codec: str, ending: str, rate: int) -> None:
    if ending not in ENDINGS[codec]:
        pytest.skip("mov does not hold it")
    at = np.arange(2 * rate) / rate
    tone = (0.4 * np.sin(2 * np.pi * (200 + 150 * at) * at)).astype(np.float32)
    form = AudioFormat(rate, "mono", np.float32)
    with opened(store, f"a.{ending}", sound=form, sound_codec=codec) as writer:
        for number, picture in enumerate(PICTURES):
            writer.write(picture)
            writer.write_sound(tone[number * rate // 25 : (number + 1) * rate // 25])
    with av.open(io.BytesIO(content(store, writer.video))) as container:
        assert container.streams.audio[0].rate == (RATE if codec == "opus" else rate)
    begin, found = heard(content(store, writer.video))
    if rate == RATE or codec == "opus":
        assert abs(begin) <= 48
        best, error = off_by(begin, found, 60)
        assert abs(best) <= 1
        assert error < 0.02
    else:
        begin = round(begin / RATE * rate)
        first, last = 6000, len(found) - 6000
        assert np.abs(found[first:last] - tone[begin + first : begin + last]).mean() < 0.02


@pytest.mark.parametrize("ending", one_in(3, ["mp4", "mov"]))
@pytest.mark.parametrize("codec", ["aac", "flac", "opus", "pcm"])
def test_growing_video_has_audio(store: Store, codec: str, ending: str) -> None:
    if ending not in ENDINGS[codec]:
        pytest.skip(f"{ending} does not hold it")
    name = f"a.{ending}"
    live: list[GrowingVideo] = []
    lengths: list[tuple[int, int]] = []

    def look() -> None:
        if not live:
            live.extend(filter(None, [grown(store, name)]))
        if live and live[0].refresh() and (not lengths or len(live[0]) > lengths[-1][0]):
            with live[0].file() as file:
                begin, found = heard(file.read())
            lengths.append((len(live[0]), begin + len(found)))
            if codec in ("flac", "pcm"):
                assert begin == 0
                assert np.array_equal(np.round(found * 32768), SHORT[: len(found)])
            elif len(found) > RATE // 2:
                assert off_by(begin, found, 60)[0] == 0

    pictures = "ffv1" if ending == "mp4" else "h264"
    with opened(store, name, sound_codec=codec, codec=pictures, key_interval=5) as writer:
        write_all(writer, SHORT, look)
    assert len(lengths) > 1
    for frames, samples in lengths:  # audio lags by at most one packet and one frame
        assert samples > frames * FRAME - 6000
    with live[0].file() as file:
        live[0].close()
        assert len(decoded(file)) > RATE * 3 // 2  # the writer has finished
        assert file.seek(0, 2) == file.tell() > 0
    with pytest.raises(UsageError):
        live[0].file()


@pytest.mark.parametrize("is_first", [True, False])
def test_audio_and_frames_are_interleaved_by_seconds(store: Store, is_first: bool) -> None:
    samples = noise("int16", 1, 30 * RATE)
    with opened(store, fps=5, sound_codec="flac") as writer:
        for second in range(0, 30, 9):
            sound = samples[second * RATE : (second + 9) * RATE]
            if is_first:
                writer.write_sound(sound)
            writer.write(smooth(min(45, 5 * (30 - second)), 64, 48))
            if not is_first:
                writer.write_sound(sound)
    assert np.array_equal(stored(store, writer.video), samples)


@pytest.mark.parametrize(
    ("name", "most"),
    [("a.mkv", Fraction(1, 10)), ("a.mp4", Fraction(6, 10))],  # mp4 interleaves by fragments
)
def test_audio_is_stored_near_its_frames(store: Store, name: str, most: Fraction) -> None:
    with opened(store, name, codec="ffv1") as writer:
        for second in (0, 1):
            writer.write(PICTURES[second * 25 : (second + 1) * 25])
            writer.write_sound(SHORT[second * RATE : (second + 1) * RATE])
    shown, apart = Fraction(0), []
    with av.open(io.BytesIO(content(store, writer.video)), mode="r") as container:
        places = sorted(
            (packet.pos or 0, packet.stream.type, (packet.pts or 0) * packet.time_base)
            for packet in container.demux()
            if packet.size
        )
    for _, kind, seconds in places:
        if kind == "video":
            shown = seconds
        else:
            apart.append(abs(seconds - shown))
    assert max(apart) < most


def test_frames_do_not_wait_for_missing_audio(store: Store) -> None:
    with opened(store, fps=2, codec="ffv1", key_interval=2) as writer:
        writer.write(smooth(30, 64, 48))
        with store.growing("a.mp4") as live:
            assert len(live) > 20
            writer.write(smooth(30, 64, 48))
            assert live.refresh()
            assert len(live) > 50
    assert len(writer.video) == 60
    assert not heard(content(store, writer.video))[1].any()


def test_gap_in_sound_is_filled_with_silence(store: Store) -> None:
    with opened(store, fps=5, sound_codec="flac") as writer:
        writer.write(PICTURES[:5])
        writer.write_sound(SHORT[:RATE])
        writer.write(smooth(70, 64, 48))  # up to second 15: audio up to second 4.8 will not come
        for pieces in (SHORT[:10], (SHORT[:10], RATE)):
            with pytest.raises(UsageError, match=r"from 1\.000 s on is too late") as raised:
                writer.write_sound(pieces)
            assert "first" in str(raised.value.hint)
        with pytest.raises(UsageError, match="too late"):
            writer.write_sound(SHORT[:10], 4 * RATE)
        assert writer.write_sound(SHORT[:RATE], 5 * RATE) == 6 * RATE
        assert writer.write_sound(SHORT[RATE : 2 * RATE]) == 7 * RATE
        assert writer.write_sound(SHORT[:100], 8 * RATE) == 8 * RATE + 100
        with pytest.raises(UsageError, match="it was written up to"):
            writer.write_sound(SHORT[:10], 8 * RATE + 99)
    found = stored(store, writer.video)[:, 0]
    wanted = np.zeros(8 * RATE + 100, np.int16)
    wanted[:RATE] = SHORT[:RATE]
    wanted[5 * RATE : 7 * RATE] = SHORT[: 2 * RATE]
    wanted[8 * RATE :] = SHORT[:100]
    assert np.array_equal(found, wanted)


def test_refused_piece_keeps_earlier_ones(store: Store) -> None:
    stereo = np.stack([SHORT, SHORT], axis=1)
    with opened(store, sound_codec="flac") as writer:
        refused: list[tuple[Any, str]] = [
            (stereo, "x 1 of int16"),
            (TONE, "of float32"),
            (SHORT.reshape(1, -1), "got 1 x 144000"),
            ((SHORT, 44_100), "sample rate must be 48000 Hz, got 44100 Hz"),
            (np.zeros(10 * RATE + 1, np.int16), "more than 10 s ahead"),
        ]
        for samples, what in refused:
            with pytest.raises(UsageError, match=what):
                writer.write_sound(samples)
            assert writer.write_sound(SHORT[:0]) == 0
        writer.write_sound(SHORT[:10])
        writer.write(PICTURES)
        with pytest.raises(UsageError, match="more than 10 s ahead") as raised:
            writer.write_sound(SHORT[:10], 12 * RATE)
        assert "write pictures first" in str(raised.value.hint)
        writer.write_sound(SHORT[10 : 2 * RATE])
    assert np.array_equal(stored(store, writer.video)[:, 0], SHORT[: 2 * RATE])
    with pytest.raises(UsageError, match="finished"):
        writer.write_sound(SHORT)
    with (
        pytest.raises(UsageError, match="must be finite"),
        opened(store, "b.mp4", sound=AudioFormat(RATE, 1, "float32")) as writer,
    ):
        writer.write_sound(np.full(100, np.nan, np.float32))
    assert list(store) == ["a.mp4"]


def test_short_audio_after_the_last_frame_is_dropped(store: Store) -> None:
    with opened(store, sound_codec="flac") as writer:
        writer.write(PICTURES[:25])
        writer.write_sound(SHORT[: 2 * RATE])
    assert np.array_equal(stored(store, writer.video)[:, 0], SHORT[:RATE])


def test_excess_audio_is_reported_and_frames_can_follow(store: Store) -> None:
    def write() -> None:
        with opened(store) as writer:
            writer.write(PICTURES[:24])
            writer.write_sound(SHORT[: 2 * RATE])

    with pytest.raises(UsageError, match=r"audio ends at 2\.000 s, and pictures end at 0\.960 s"):
        write()
    assert is_as_before(store, [])
    writer = opened(store, sound_codec="flac")
    writer.write(PICTURES[:24])
    writer.write_sound(SHORT[: 2 * RATE])
    with pytest.raises(UsageError):
        writer.close()
    writer.write(PICTURES[24:])
    writer.close()
    assert np.array_equal(stored(store, writer.video)[:, 0], SHORT[: 2 * RATE])
    assert is_as_before(store, ["a.mp4"])


@pytest.mark.parametrize(
    ("name", "form", "what"),
    [
        ("a.mp4", {"sound": MONO, "sound_codec": "pcm"}, "audio codec in mp4 must be one of aac"),
        ("a.mov", {"sound": MONO, "sound_codec": "flac"}, "one of aac, pcm"),
        ("a.mp4", {"sound": AudioFormat(0)}, "sample rate must be"),
        ("a.mp4", {"sound": AudioFormat(192_000)}, "cannot be encoded in aac"),
        ("a.mp4", {"sound": AudioFormat(RATE, "loud")}, "layout must be"),
        ("a.mp4", {"sound": AudioFormat(RATE, 5)}, "is ambiguous"),
        ("a.mp4", {"sound": AudioFormat(RATE, 2, "int8")}, "got int8"),
        ("a.mp4", {"sound": AudioFormat(RATE, 2, "talk")}, "samples must be"),
    ],
)
def test_invalid_options_are_refused_and_leave_nothing(
    store: Store, name: str, form: dict[str, Any], what: str
) -> None:
    with pytest.raises(UsageError) as raised:
        opened(store, name, **form)
    assert what in f"{raised.value} {raised.value.hint}"
    assert is_as_before(store, [])


def test_audio_pieces_need_a_writer_opened_with_audio(store: Store) -> None:
    with opened(store, sound=(SHORT, RATE)) as writer:
        with pytest.raises(UsageError, match="with complete audio"):
            writer.write_sound(SHORT)
        writer.write(PICTURES)
    with opened(store, "b.mp4", sound=None) as writer:
        with pytest.raises(UsageError, match="without audio"):
            writer.write_sound(SHORT)
        writer.write(PICTURES)
    with pytest.raises(UsageError, match=r"only Store\.writer takes"):
        store.write("c.mp4", PICTURES, fps=25, sound=MONO)
    assert is_as_before(store, ["a.mp4", "b.mp4"])


def test_failed_or_abandoned_write_changes_nothing(store: Store) -> None:
    def fail() -> None:
        with opened(store) as writer:
            write_all(writer, SHORT)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert is_as_before(store, [])
    writer = opened(store)
    writer.write_sound(SHORT)
    writer.abandon()
    assert is_as_before(store, [])
    with pytest.raises(UsageError, match="abandoned"):
        writer.write_sound(SHORT)
    with pytest.raises(UsageError), opened(store) as writer:
        writer.write_sound(SHORT[:100])  # and no frame
    assert is_as_before(store, [])


def test_separate_threads_for_frames_and_audio(store: Store) -> None:
    samples = noise("int16", 2)
    failed: list[BaseException] = []
    with opened(store, sound=AudioFormat(RATE), sound_codec="flac") as writer:

        def talk() -> None:
            try:
                for at in range(0, len(samples), 441):
                    writer.write_sound(samples[at : at + 441])
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=talk)
        thread.start()
        for picture in PICTURES:
            writer.write(picture)
        thread.join()
    assert not failed
    assert np.array_equal(stored(store, writer.video), samples)


def test_explicit_frame_times(store: Store) -> None:
    """Audio counts from the first frame, whatever its time."""
    times = (100_000 + np.cumsum(np.random.default_rng(0).integers(10, 70, 50))).tolist()
    seconds = (times[-1] - times[0]) / 1000
    count = int(seconds * RATE)
    with opened(store, fps=None, time_base="0.001", sound_codec="flac") as writer:
        for picture, time in zip(PICTURES, times, strict=True):
            writer.write(picture, pts=time)
        writer.write_sound(SHORT[:count])
    assert heard(content(store, writer.video))[0] == 0
    assert np.array_equal(stored(store, writer.video)[:, 0], SHORT[:count])
    assert writer.video.original.first_pts == 0


def test_frames_with_measured_psnr_keep_their_audio(store: Store) -> None:
    with opened(store, psnr=40, sound_codec="flac") as writer:
        write_all(writer, SHORT)
    assert np.array_equal(stored(store, writer.video)[:, 0], SHORT[: 2 * RATE])


def test_views_carry_audio(store: Store) -> None:
    with opened(store, sound=AudioFormat(RATE, 2, "int32"), sound_codec="flac") as writer:
        write_all(writer, noise("int32", 2))
    for name in ("t=0.4-1.4.mp4", "t=0.4-1.4.mkv"):
        with writer.video.views.open(name) as file:
            data = file.read()
        whole = [payload for _, payload in packets(content(store, writer.video))]
        some = [payload for _, payload in packets(data)]
        assert len(some) > 8
        assert some == whole[whole.index(some[0]) :][: len(some)]
        assert decoded(io.BytesIO(data)).dtype == np.int32


def test_other_decoders_give_the_same_audio(store: Store, tmp_path: Path) -> None:
    ffmpeg = shutil.which("ffmpeg")
    if ffmpeg is None:
        pytest.skip("needs ffmpeg")
    samples = noise("int32", 2)
    for codec, ending in KINDS:
        if codec in ("aac", "opus"):
            continue
        name = f"{codec}.{ending}"
        form = AudioFormat(RATE, 2, "int32")
        with opened(store, name, sound=form, sound_codec=codec) as writer:
            write_all(writer, samples)
        file = tmp_path / name
        file.write_bytes(content(store, writer.video))
        command = [ffmpeg, "-v", "error", "-i", str(file), "-f", "s32le", "-"]
        played = subprocess.run(command, capture_output=True, check=True)
        assert played.stderr == b""
        assert np.array_equal(np.frombuffer(played.stdout, np.int32).reshape(-1, 2), samples)


_RECORDER = """
    import sys
    import numpy as np
    from vfsd import AudioFormat, Store
    with Store.open(sys.argv[1]) as store:
        form = dict(width=64, height=48, fps=20, codec="ffv1", sound_codec="flac")
        with store.writer("live.mp4", sound=AudioFormat(48000, "mono"), **form) as writer:
            for number in range(100000):
                writer.write(np.full((48, 64, 3), number % 251, np.uint8))
                writer.write_sound(np.arange(number * 2400, (number + 1) * 2400).astype(np.int16))
                print(number, flush=True)
"""


def test_audio_of_a_killed_writer_is_readable_while_open(
    store: Store,
) -> None:
    command = [sys.executable, "-c", textwrap.dedent(_RECORDER), str(store.path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        while int(process.stdout.readline()) < 60:
            pass
        live = store.growing("live.mp4")
        process.send_signal(signal.SIGKILL)
    assert not live.refresh()
    with live, live.file() as file:
        found = decoded(file)[:, 0]
        assert len(found) > (len(live) - 4) * 2400 > RATE
        assert np.array_equal(found, np.arange(len(found)).astype(np.int16))
    assert list(store) == []
