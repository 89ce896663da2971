"""Every file of the real footage: served frame by frame as FFmpeg decodes it, or refused."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import footage_folder
from tests.support.ffmpeg_reference import (
    checksum,
    decoder_for,
    ffmpeg_checksums,
    ffmpeg_packets,
    table_of,
)
from tests.support.selection import one_in
from vfsd.codecs.probing.probe import Examination, examine
from vfsd.core.frame_table import FrameTable
from vfsd.core.frame_table_pages import PacketFlag
from vfsd.core.model import Access
from vfsd.errors import RefusedMediaError

REFUSED = {
    "odd/dv_audio_only.mp4": "audio only",
    "odd/dv_hostile_concat.txt.mp4": "a playlist",
    "odd/dv_random_bytes.mp4": "no supported video format",
    "odd/dv_truncated_no_moov.mp4": "damaged or cut off",
    "odd/empty_0bytes.avi": "empty",
    "odd/mp4parse_bipbop_cenc_init_only.mp4": "media data is missing",
    "odd/mp4parse_clusterfuzz-6093954524250112.mp4": "damaged or cut off",
    "odd/mp4parse_invalid_userdata.mp4": "media data is missing",
    "odd/mp4parse_zero_empty_stsc.mp4": "no picture can be decoded",
    "odd/pano_result_header_only.mp4": "no video stream",
}
"""Files that cannot be served, and a part of the reason."""

PROVEN = {
    "odd/decord_corrupted.mp4",  # a packet without a frame
    "odd/dv_ts_pts_reset.ts",
    "odd/dv_ts_starts_mid_gop.ts",
    "odd/openh264_BA_MW_D_IDR_LOST.264",
    "odd/openh264_CVFC1_Sony_C.jsv",
    "odd/openh264_MR1_BT_A.h264",
    "odd/openh264_SarVui.264",
    "odd/openh264_Zhling_1280x720.264",
    "odd/otv_truck.avi",
    "odd/otv_truck_raw.h264",
}
"""Files that can only be judged by decoding them from end to end."""

DEMUXED = {
    "odd/dv_mpeg2_interlaced_ps.mpg",
    "odd/dv_ts_pts_reset.ts",
    "odd/dv_ts_starts_mid_gop.ts",
}

ROTATIONS = {
    "odd/decord_rot90.mov": 90,
    "odd/mp4parse_video_rotation_90.mp4": 90,
    "odd/otv_truck_rotate.mov": 270,
}

_SAMPLES = {"real": 20_000_000, "pairs": 20_000_000, "odd": 140_000_000}
"""A longer file is not compared beyond the frames that have so many samples of luma.  All frames of
filmed clips are by `benchmarks.fidelity`."""
_FIRST_FRAMES = 30
"""The number of leading frames that are checked in each file of any size."""


def _files() -> list[str]:
    folder = footage_folder()
    if folder is None:
        return ["none"]
    return sorted(
        path.relative_to(folder).as_posix()
        for part in ("real", "pairs", "odd")
        for path in (folder / part).iterdir()
    )


def _some_frames(table: FrameTable, stop: int) -> list[int]:
    """First, last, random ones, and those around key frames."""
    chance = random.Random(1)
    picked = {0, stop - 1, *(chance.randrange(stop) for _ in range(6))}
    keys = [key for key in table.keyframes().tolist() if key < stop]
    for key in chance.sample(keys, min(2, len(keys))):
        picked |= {index for index in (key - 2, key - 1, key, key + 1) if 0 <= index < stop}
    return chance.sample(sorted(picked), len(picked))


@pytest.mark.footage
@pytest.mark.parametrize("name", one_in(40, _files()))
def test_served_as_ffmpeg_decodes_it_or_refused(footage: Path, name: str) -> None:
    path = footage / name
    if name in REFUSED:
        with pytest.raises(RefusedMediaError, match=REFUSED[name]) as refusal:
            examine(path)
        assert str(refusal.value).startswith(path.name)
        assert not ffmpeg_checksums(path)
        return
    found = examine(path)
    assert found.verified == (name in PROVEN), found.notes
    assert found.access is (Access.DEMUX if name in DEMUXED else Access.EXTENT)
    assert found.media.rotation == ROTATIONS.get(name, 0)
    _assert_times_are_sound(found)
    table = table_of(found)
    samples = _SAMPLES[name.partition("/")[0]]
    most = max(_FIRST_FRAMES, samples // (found.media.width * found.media.height))
    if len(table) > most:
        assert len(table) == ffmpeg_packets(path)  # none of these hides a frame
    expected = ffmpeg_checksums(path, most)
    stop = min(len(table), most)
    assert len(expected) == stop
    with decoder_for(path, found) as decoder:
        met: list[str] = []
        for index, frame in decoder.stream(0, stop):
            assert (index, frame.pts) == (len(met), table.frame_pts(index))
            met.append(checksum(frame))
        assert met == expected
        for index in _some_frames(table, stop):
            [(number, frame)] = decoder.decode(table.decode_run(index))
            assert number == index
            assert checksum(frame) == expected[index], f"frame {index}"


def _assert_times_are_sound(found: Examination) -> None:
    pts = found.columns.pts[found.order]
    assert (np.diff(pts) > 0).all()
    assert found.end_pts > pts[-1]
    shown = found.columns.flags & PacketFlag.HIDDEN == 0
    assert sorted(found.order.tolist()) == np.flatnonzero(shown).tolist()
    assert (np.diff(found.columns.dts[shown]) > 0).all()
    assert (found.columns.dts <= found.columns.pts)[shown].all()


@pytest.mark.footage
@pytest.mark.parametrize(
    "name",
    one_in(
        6,
        [
            "odd/dv_h264_opengop.mp4",
            "odd/dv_hevc_opengop_cra.mp4",
            "odd/dv_vp9_957x539.webm",
            "odd/torchcodec_h264_10bit.mp4",
            "odd/imageio_realshort.mp4",
            "odd/imageio_cockatoo_h264_yuv444_720p.mp4",
        ],
    ),
)
def test_full_decode_confirms_the_container(footage: Path, name: str) -> None:
    believed = examine(footage / name)
    proven = examine(footage / name, full=True)
    assert (believed.verified, proven.verified) == (False, True)
    assert (believed.media, believed.access) == (proven.media, proven.access)
    assert believed.end_pts == proven.end_pts
    np.testing.assert_array_equal(believed.order, proven.order)
    for column in ("pts", "dts", "position", "size", "flags"):
        np.testing.assert_array_equal(
            getattr(believed.columns, column), getattr(proven.columns, column), column
        )


@pytest.mark.thorough
@pytest.mark.footage
@pytest.mark.parametrize("name", ["odd/dv_bitflips.mp4", "odd/decord_corrupted.mp4"])
def test_error_concealment_is_independent_of_thread_count(footage: Path, name: str) -> None:
    expected = ffmpeg_checksums(footage / name)
    found = examine(footage / name)
    with decoder_for(footage / name, found) as decoder:
        assert [checksum(frame) for _, frame in decoder.stream(threads=2)] == expected
        run = table_of(found).decode_run(len(expected) - 1)
        [(_, frame)] = decoder.decode(run, threads=2)
        assert checksum(frame) == expected[-1]
