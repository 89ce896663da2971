"""Results of `examine` for odd and hostile files, and its behaviour while it runs."""

from __future__ import annotations

import os
import shutil
import subprocess
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from av.video.reformatter import VideoReformatter

from sample_videos import FOLDER
from tests.support.clips import make_clip, pictures, remuxed
from tests.support.ffmpeg_reference import (
    assert_exact,
    checksum,
    decoder_for,
    pyav_checksums,
    table_of,
)
from tests.support.selection import one_in
from tests.support.side_data_clips import noisy_clip
from vfsd.codecs.bitstreams import splice_parameter_sets
from vfsd.codecs.bitstreams.nal import BitWriter, escaped
from vfsd.codecs.decoding.demuxer import open_container
from vfsd.codecs.probing.probe import examine
from vfsd.core.frame_table_pages import PacketFlag
from vfsd.core.model import Access, SideStream
from vfsd.disk.checksums import MediaSource
from vfsd.errors import RefusedMediaError

TRAFFIC = FOLDER / "traffic.mp4"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "empty"),
        (b"\0", "no supported video format"),
        (b"hello, world\n" * 50, "no supported video format"),
        (b"ffconcat version 1.0\nfile /etc/passwd\n", "playlist"),
        (b"#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n", "playlist"),
        (b"<?xml version='1.0'?><MPD/>", "XML"),
        (b"\x89PNG\r\n\x1a\n" + bytes(100), "still image"),
        (b"\x89PNG\r\n\x1a\n" + bytes(25) + b"IDAT____acTL", "still image"),
        (b"\x89PNG\r\n\x1a\n" + bytes(50) + b"acTL" + bytes(20) + b"IDAT", "damaged|no pictures"),
        (b"RIFF\0\0\0\0WEBPVP8 " + bytes(100), "still image"),
        (b"CWS\x09" + bytes(20), "Flash"),
        (b"RIFF\0\0\0\0WEBPVP8X\x0a\0\0\0\2" + bytes(9) + b"ANIM", "WebP animation"),
        (b"\xff\xd8\xff\xe0" + bytes(100), "still image .JPEG., or several"),
        (b"GIF89a" + bytes(100), "damaged|no pictures|no video"),
        (b"RIFF\0\0\0\0WAVEfmt " + bytes(100), "audio only"),
        (b"\0\0\0\x18ftypheic" + bytes(100), "still image"),
        (b"\0\0\0\x18ftypisom" + bytes(100), "damaged or cut off"),
        (b"\0\0\0\x08mdat" + bytes(4000), "damaged or cut off|no video stream"),
        (b"\x1a\x45\xdf\xa3" + bytes(4000), "damaged or cut off|no video stream"),
        (b"FLV\x01\x05\0\0\0\x09" + bytes(4000), "no video stream|damaged|no pictures"),
        (b"\0\0\0\x01\x67" + bytes(range(256)) * 20, "no picture|no video|damaged"),
        ((b"G" + bytes(187)) * 50, "no video stream|damaged"),
    ],
)
def test_refusals_have_a_reason(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "a%d:b.mp4"
    path.write_bytes(content)
    with pytest.raises(RefusedMediaError, match=reason) as refusal:
        examine(path)
    assert str(refusal.value).startswith("a%d:b.mp4: ")
    with pytest.raises(RefusedMediaError, match=r"^cam/x: "):
        examine(path, name="cam/x")


@pytest.mark.parametrize(
    "name", ["%d.mp4", "concat:a|b.mp4", "a:b?c#d.mp4", "-i.mp4", "\udcff.mp4"]
)
def test_file_names_do_not_matter(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    shutil.copy(TRAFFIC, path)
    assert len(examine(path).order) == 120


def test_playlist_in_a_requested_container_opens_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.mp4"
    path.write_text("ffconcat version 1.0\nfile 'secret.mp4'\n")
    shutil.copy(TRAFFIC, tmp_path / "secret.mp4")
    with MediaSource(path) as source, pytest.raises(av.error.InvalidDataError):
        open_container(source, "mp4")


@pytest.mark.parametrize("cut", [0.1, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("name", ["fragmented.mp4", "transport.ts", "open-gop.mkv", "mjpeg.avi"])
def test_truncated_file_is_served_to_its_end(tmp_path: Path, name: str, cut: float) -> None:
    data = (FOLDER / name).read_bytes()
    path = tmp_path / name
    path.write_bytes(data[: int(len(data) * cut)])
    try:
        found = examine(path)
    except RefusedMediaError:
        assert cut == 0.1
        return
    expected = pyav_checksums(path)
    with decoder_for(path, found) as decoder:
        met = [checksum(frame) for _, frame in decoder.stream()]
    if name == "mjpeg.avi" and found.damage:
        # The rest of the last frame is uninitialized memory, so it is marked as damaged.
        expected.pop()
        met.pop()
    assert met == expected


def test_arbitrary_bytes_are_served_or_refused(tmp_path: Path) -> None:
    chance = np.random.default_rng(5)
    path = tmp_path / "a"
    for name in ("traffic.mp4", "open-gop.mkv", "transport.ts", "elementary.h264", "mpeg4.avi"):
        data = np.frombuffer((FOLDER / name).read_bytes(), np.uint8)
        for _ in range(6):
            broken = data.copy()
            for at in chance.integers(0, len(broken), 1 + len(broken) // 2000):
                broken[at] = chance.integers(256)
            path.write_bytes(broken.tobytes())
            try:
                found = examine(path)
            except RefusedMediaError:
                continue
            table = table_of(found)
            assert len(table) == len(found.order) > 0


def test_media_of_a_plain_file() -> None:
    found = examine(TRAFFIC)
    media = found.media
    assert (media.container, media.codec, media.profile) == ("mp4", "h264", "High")
    assert (media.width, media.height, media.pixel_format) == (320, 240, "yuv420p")
    assert (media.time_base, media.average_rate) == (Fraction(1, 15360), Fraction(30))
    assert (media.variable_rate, media.edit_list, media.interlaced) == (False, False, False)
    assert media.codec_tag == "avc1"
    assert media.extradata[0] == 1
    assert media.reorder_delay == 2
    assert media.bit_depth == 8
    [side] = media.side_streams
    assert side == SideStream(1, "audio", "aac", "und", side.channels, side.sample_rate)
    assert (side.channels or 0) > 0
    assert found.access is Access.EXTENT
    assert found.end_pts == 120 * 512
    assert found.notes == ()


@pytest.mark.parametrize(
    ("name", "variable", "rate"),
    [
        ("open-gop.mkv", False, Fraction(30000, 1001)),  # in a time base of milliseconds
        ("variable-rate.mkv", True, None),
        ("variable-rate.mp4", True, None),
        ("transport.ts", False, Fraction(50)),
        ("elementary.h264", False, Fraction(25)),
    ],
)
def test_rates(name: str, variable: bool, rate: Fraction | None) -> None:
    media = examine(FOLDER / name).media
    assert media.variable_rate == variable
    assert rate is None or media.average_rate == rate


@pytest.mark.parametrize("rate", [Fraction(50), Fraction(30000, 1001), Fraction(12)])
@pytest.mark.parametrize(("ending", "codec"), [("h264", "libx264"), ("hevc", "libx265")])
def test_raw_streams_have_the_rate_of_their_timing_information(
    tmp_path: Path, ending: str, codec: str, rate: Fraction
) -> None:
    """Demuxers of raw streams claim 25 frames a second."""
    found = examine(make_clip(tmp_path / f"a.{ending}", codec, frames=24, rate=rate))
    assert found.media.average_rate == rate
    assert not found.media.variable_rate
    assert abs(found.end_pts * found.media.time_base - 24 / rate) <= found.media.time_base


def test_last_frame_without_times_has_the_usual_duration(
    tmp_path: Path,
) -> None:
    path = make_clip(tmp_path / "a.h264", "libx264", frames=60)
    path.write_bytes(_without_timing(path.read_bytes()))
    found = examine(path)
    rate, base = Fraction(25), found.media.time_base
    assert any("no timestamps" in note for note in found.notes)
    assert found.media.average_rate == rate
    assert found.end_pts * base == 60 / rate


def _without_timing(stream: bytes) -> bytes:
    """The same stream with a parameter set without a rate, as many cameras write."""
    start = stream.index(b"\0\0\1\x67") + 3
    unit = stream[start : stream.index(b"\0\0\1", start)].rstrip(b"\0")
    told = splice_parameter_sets.parse_h264_sequence(unit)
    assert told is not None
    assert told.vui_bits is not None
    bare = BitWriter()
    bare.append(told.prefix_bits)
    bare.flag(False)
    return stream.replace(unit, unit[:4] + escaped(bare.finished()))


@pytest.mark.parametrize(("provider", "is_lcevc"), [("b40050", True), ("b40051", False)])
def test_base_layer_of_lcevc_is_noted(tmp_path: Path, provider: str, is_lcevc: bool) -> None:
    payload = bytes.fromhex(provider) + b"\0\0\1\x79\xff" + b"\x42" * 6
    message = b"\x06" + escaped(bytes((4, len(payload))) + payload) + b"\x80"
    found = examine(noisy_clip(tmp_path / "a.mp4", message, sound=False))
    assert any(note.startswith("LCEVC:") for note in found.notes) == is_lcevc
    assert ("LCEVC enhancement layer" in (found.media.marks or {})) == is_lcevc


def test_edit_list_hides_packets() -> None:
    found = examine(FOLDER / "edit-list.mp4")
    assert found.media.edit_list
    assert not found.verified
    assert int((found.columns.flags & PacketFlag.HIDDEN != 0).sum()) == 7


def test_timestamps_that_jump_back_continue(tmp_path: Path) -> None:
    path = tmp_path / "twice.ts"
    path.write_bytes((FOLDER / "transport.ts").read_bytes() * 2)
    found = examine(path)
    steps = np.diff(found.columns.pts[found.order])
    assert len(found.order) == 120
    assert set(steps.tolist()) == {1800}
    assert any("run backwards" in note for note in found.notes)


def test_cover_image_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "song.mp4"
    with av.open(str(path), "w") as output:
        sound = output.add_stream("aac", rate=48000)
        cover = output.add_stream("mjpeg", rate=1)
        assert isinstance(cover, av.VideoStream)
        cover.width, cover.height, cover.pix_fmt = 64, 64, "yuvj420p"
        cover.disposition = av.stream.Disposition.attached_pic
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 2 * 1024), np.int16), format="s16")
        frame.sample_rate = 48000
        assert isinstance(sound, av.AudioStream)
        output.mux(cover.encode(pictures(1, 64, 64)[0]))
        output.mux(cover.encode(None))
        output.mux(sound.encode(frame))
        output.mux(sound.encode(None))
    with pytest.raises(RefusedMediaError, match="cover"):
        examine(path)


def resized_checksums(path: Path, size: tuple[int, int]) -> list[str]:
    """Checksums of frames scaled to the size and format of the first, as by FFmpeg's command."""
    reformatter = VideoReformatter()
    found: list[str] = []
    with av.open(str(path)) as opened:
        first: av.VideoFrame | None = None
        for frame in opened.decode(video=0):
            first = first or frame
            if (frame.width, frame.height) != size:
                name = first.format.name
                frame = reformatter.reformat(frame, *size, name, interpolation="BICUBIC")
            found.append(checksum(frame))
    return found


def assert_first_size(path: Path, frames: int) -> None:
    found = examine(path)
    assert found.access is Access.SEQUENTIAL
    assert (found.media.width, found.media.height) == (96, 64)
    assert any("several sizes" in note for note in found.notes)
    assert len(found.order) == frames
    assert_exact(path, found, resized_checksums(path, (96, 64)))


def test_frame_size_change(tmp_path: Path) -> None:
    first = make_clip(tmp_path / "1.h264", "libx264", frames=5)
    other = make_clip(tmp_path / "2.h264", "libx264", frames=5, width=128)
    path = tmp_path / "a.h264"
    path.write_bytes(first.read_bytes() + other.read_bytes())
    assert_first_size(path, 10)


def test_largest_size_is_used(tmp_path: Path) -> None:
    first = make_clip(tmp_path / "1.h264", "libx264", frames=5)
    other = make_clip(tmp_path / "2.h264", "libx264", frames=5, width=128)
    path = tmp_path / "a.h264"
    path.write_bytes(first.read_bytes() + other.read_bytes())
    found = examine(path, in_largest_size=True)
    assert (found.media.width, found.media.height) == (128, 64)
    assert found.media.in_largest_size
    assert any("shown in the largest" in note for note in found.notes)
    assert_exact(path, found, resized_checksums(path, (128, 64)))


@pytest.mark.parametrize(
    ("codec", "ending", "pixel_format"),
    one_in(
        3,
        [
            ("libvpx", "webm", "yuv420p"),
            ("libvpx-vp9", "webm", "yuv420p"),
            ("libvpx-vp9", "mp4", "yuv444p"),
            ("mjpeg", "avi", "yuvj420p"),
            ("png", "mov", "rgb24"),
            ("prores_ks", "mov", "yuv422p10le"),
            ("jpeg2000", "mov", "yuv420p"),
            ("jpeg2000", "mkv", "yuv420p"),
            ("magicyuv", "avi", "gbrp"),
        ],
    ),
)
def test_packets_reveal_a_size_change(
    tmp_path: Path, codec: str, ending: str, pixel_format: str
) -> None:
    large, small = (
        make_clip(
            tmp_path / f"{width}.{ending}",
            codec,
            pixel_format=pixel_format,
            width=width,
            frames=20,
            options={"g": "10"},
        )
        for width in (96, 64)
    )
    assert not examine(large).verified
    with av.open(str(small)) as opened:
        others = [bytes(packet) for packet in opened.demux() if packet.size]

    def changing(number: int, packet: bytes) -> bytes:
        return packet if number < 10 else others[number]

    path = remuxed(large, tmp_path / f"a.{ending}", changing, lambda number: number % 10 == 0)
    assert_first_size(path, 20)


def test_sequence_headers_reveal_a_size_change(tmp_path: Path) -> None:
    options = {"g": "10", "preset": "12"}
    large, small = (
        make_clip(tmp_path / f"{width}.ivf", "libsvtav1", width=width, frames=20, options=options)
        for width in (96, 64)
    )
    assert not examine(large).verified
    with av.open(str(small)) as opened:
        packets = [bytes(packet) for packet in opened.demux() if packet.size]
    both = bytearray(large.read_bytes())
    for number, packet in enumerate(packets, start=20):
        both += len(packet).to_bytes(4, "little") + number.to_bytes(8, "little") + packet
    path = tmp_path / "a.ivf"
    path.write_bytes(both)
    assert_first_size(path, 40)


def test_disposable_frames_are_known_without_key_frames(
    tmp_path: Path,
) -> None:
    """With intra refresh, decoding can begin only at the first frame."""
    options = {"x264-params": "keyint=20:min-keyint=20:scenecut=0:intra-refresh=1:bframes=2"}
    flags = examine(make_clip(tmp_path / "a.mp4", "libx264", options=options)).columns.flags
    assert np.count_nonzero(flags & PacketFlag.KEY) == 1
    assert np.count_nonzero(flags & PacketFlag.DISPOSABLE) > 10


@pytest.mark.parametrize(
    ("codec", "ending", "first", "then"),
    [
        ("mjpeg", "avi", "yuvj420p", "yuvj422p"),
        ("png", "mov", "rgb24", "gray"),
        ("png", "mov", "rgb24", "rgba"),
    ],
)
def test_pixel_format_may_change_at_constant_size(
    tmp_path: Path, codec: str, ending: str, first: str, then: str
) -> None:
    """Cameras at night and programs that choose a format per frame do this."""
    made, other = (
        make_clip(tmp_path / f"{kind}.{ending}", codec, pixel_format=kind, frames=8)
        for kind in (first, then)
    )
    with av.open(str(other)) as opened:
        others = [bytes(packet) for packet in opened.demux() if packet.size]
    path = remuxed(
        *(made, tmp_path / f"a.{ending}"),
        *(lambda number, packet: packet if number < 4 else others[number], lambda _: True),
    )
    found = examine(path)
    assert (len(found.order), found.verified) == (8, False)


@pytest.mark.parametrize("before", [b"", b"\0\0", b"\xff"])
def test_jpeg_is_detected_like_in_decoders(tmp_path: Path, before: bytes) -> None:
    made = make_clip(tmp_path / "a.avi", "mjpeg", pixel_format="yuvj420p", frames=8)
    path = remuxed(made, tmp_path / "b.avi", lambda _, packet: before + packet, lambda _: True)
    assert not examine(path).verified


def test_encrypted_video_is_refused(tmp_path: Path) -> None:
    ffmpeg = shutil.which("ffmpeg")
    if ffmpeg is None:
        pytest.skip("there is no ffmpeg command")
    path = tmp_path / "a.mp4"
    key = "00112233445566778899aabbccddeeff"
    subprocess.run(
        [
            *(ffmpeg, "-v", "error", "-i", TRAFFIC, "-map", "0:v", "-c", "copy"),
            *("-encryption_scheme", "cenc-aes-ctr", "-encryption_key", key),
            *("-encryption_kid", key, path),
        ],
        check=True,
    )
    with pytest.raises(RefusedMediaError, match="encrypted"):
        examine(path)


def test_progress_is_reported_and_may_cancel(tmp_path: Path) -> None:
    path = make_clip(tmp_path / "a.m2v", "mpeg2video", frames=120)
    told: list[tuple[int, int]] = []
    examine(path, on_progress=lambda done, total: told.append((done, total)))
    assert told
    assert {total for _, total in told} == {path.stat().st_size}
    assert all(0 <= done <= total for done, total in told)

    def cancel(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        examine(path, on_progress=cancel)


def test_missing_file_raises_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        examine(tmp_path / "none.mp4")


def test_interrupt_during_a_read_is_not_swallowed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reads = 0
    pread = os.pread

    def interrupted(fd: int, size: int, offset: int) -> bytes:
        nonlocal reads
        reads += 1
        if reads == 4:
            raise KeyboardInterrupt
        return pread(fd, size, offset)

    monkeypatch.setattr("vfsd.disk.checksums.os.pread", interrupted)
    with pytest.raises(KeyboardInterrupt):
        examine(FOLDER / "traffic.mp4")


def test_raw_av1_is_served(tmp_path: Path) -> None:
    made = make_clip(
        tmp_path / "a.mp4",
        "libsvtav1",
        options={"preset": "12", "g": "10", "svtav1-params": "lp=1"},
        frames=20,
    )
    path = tmp_path / "a.obu"
    with av.open(str(made)) as source, av.open(str(path), "w", format="obu") as target:
        old = source.streams.video[0]
        new = target.add_stream_from_template(old, opaque=True)
        for packet in source.demux(old):
            if packet.size:
                packet.stream = new
                target.mux(packet)
    found = examine(path)
    assert (found.media.container, found.media.codec) == ("obu", "av1")
    assert len(found.order) == 20
    with av.open(str(path)) as opened:
        expected = [checksum(frame) for frame in opened.decode(video=0)]
    assert_exact(path, found, expected)
