"""Spliced views: packets copied except at the ends, as players and libraries see them."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import av
import cv2
import pytest

from tests.support.clips import make_clip
from tests.support.selection import one_in
from tests.support.stores import new_store
from tests.views.conftest import Shelf, decoded
from tests.views.test_players import psnr
from vfsd.api.video import Video, context_of
from vfsd.codecs.bitstreams import nal
from vfsd.codecs.frames.planes import fingerprint
from vfsd.core import view_request
from vfsd.views import Views
from vfsd.views.rendered_view import PlannedView, plan_view
from vfsd.views.smart_cut import SmartCutView
from vfsd.views.view_input import view_input_of

SPANS = [
    # Sample video, frames, and how many of them are encoded, copied, and encoded again.
    ("traffic.mp4", (3, 118), (27, 88, 0)),
    ("traffic.mp4", (45, 120), (15, 60, 0)),
    ("open-gop.mov", (0, 32), (0, 31, 1)),
    ("variable-rate.mkv", (18, 43), (2, 21, 2)),
    ("transport.ts", (3, 60), (22, 35, 0)),
    ("transport.ts", (0, 58), (0, 57, 1)),
    ("fragmented.mp4", (11, 35), (4, 19, 1)),
    ("late-start.mp4", (6, 32), (9, 16, 1)),
    ("portrait.mp4", (3, 45), (12, 30, 0)),
    # HEVC with open GOPs: frames displayed before the key frame are encoded.
    ("open-gop.mkv", (3, 60), (21, 33, 3)),
    ("open-gop.mkv", (20, 55), (4, 29, 2)),
]


def rendition(video: Video, path: str) -> PlannedView:
    context = context_of(video)
    source = view_input_of(context.parts, context.tools, video.info)
    return plan_view(source, view_request.parse_view_path(path), context.tools)


def stored(video: Video) -> list[av.VideoFrame]:
    with context_of(video).tools.pool.decoder(video.original, context_of(video).table) as decoder:
        return [frame for _, frame in decoder.stream()]


@dataclass(frozen=True)
class Kept:
    """A store with one video for a test."""

    shelf: Shelf
    name: str


def keep(tmp_path: Path, clip: Path) -> Kept:
    store = new_store(tmp_path / "store")
    store.ingest(clip, clip.name)
    return Kept(Shelf(store, Views(store.parts, store.tools)), clip.name)


def release(kept: Kept) -> None:
    kept.shelf.views.close()
    kept.shelf.store.close()


@pytest.mark.parametrize(("name", "span", "lengths"), one_in(4, SPANS))
@pytest.mark.parametrize("suffix", ["mp4", "mkv", "stream"])
def test_all_but_the_ends_is_copied_exactly(
    shelf: Shelf,
    tmp_path: Path,
    name: str,
    span: tuple[int, int],
    lengths: tuple[int, int, int],
    suffix: str,
) -> None:
    if name == "portrait.mp4" and suffix != "mp4":
        pytest.skip("only MP4 can say that it lies on its side")
    video = shelf.video(name)
    if suffix == "stream":
        suffix = video.original.media.codec
    path = f"frames={span[0]}-{span[1]}.{suffix}"
    assert isinstance(rendition(video, path), SmartCutView)
    data = shelf.read(name, path)
    assert shelf.size(name, path) == len(data)
    frames = decoded(data)
    wanted = stored(video)[span[0] : span[1]]
    assert len(frames) == len(wanted) == sum(lengths)
    copied = range(lengths[0], lengths[0] + lengths[1])
    for place, (frame, right) in enumerate(zip(frames, wanted, strict=True)):
        if place in copied:
            assert fingerprint(frame) == fingerprint(right)
        else:
            assert psnr(frame.to_ndarray(format="gray"), right.to_ndarray(format="gray")) > 40
    if suffix in ("mp4", "mkv"):
        ticks = context_of(video).table.pts(*span)
        times = [int(tick - ticks[0]) * video.original.time_base for tick in ticks]
        seen = [(frame.pts or 0) * (frame.time_base or Fraction(0)) for frame in frames]
        tolerance = 0 if suffix == "mp4" else Fraction(1, 20_000)
        assert max(abs(a - b) for a, b in zip(seen, times, strict=True)) <= tolerance
    file = tmp_path / f"view.{suffix}"
    file.write_bytes(data)
    assert _counted_by_opencv(file) == len(wanted)
    if name != "portrait.mp4":
        assert _counted_by_ffprobe(file) == len(wanted)


def _counted_by_opencv(path: Path) -> int:
    captured = cv2.VideoCapture(str(path))
    count = 0
    while captured.read()[0]:
        count += 1
    captured.release()
    return count


def _counted_by_ffprobe(path: Path) -> int:
    """The number of frames; any warning is a failure."""
    probe = shutil.which("ffprobe")
    if probe is None:
        pytest.skip("ffprobe is not installed")
    command = [probe, "-v", "warning", "-count_frames", "-select_streams", "v:0", "-of", "json"]
    done = subprocess.run(
        [*command, "-show_streams", str(path)], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    return int(json.loads(done.stdout)["streams"][0]["nb_read_frames"])


@pytest.mark.parametrize(
    ("name", "span"), [("variable-rate.mkv", (13, 67)), ("open-gop.mkv", (3, 57))]
)
def test_seek_into_each_part(
    shelf: Shelf, tmp_path: Path, name: str, span: tuple[int, int]
) -> None:
    for suffix in ("mp4", "mkv"):
        data = shelf.read(name, f"frames={span[0]}-{span[1]}.{suffix}")
        every = decoded(data)
        path = tmp_path / f"view.{suffix}"
        path.write_bytes(data)
        with av.open(str(path)) as opened:
            stream = opened.streams.video[0]
            for number in (53, 5, 8, 30, 47, 1):
                wanted = every[number]
                opened.seek(wanted.pts or 0, stream=stream)
                frame = next(f for f in opened.decode(stream) if (f.pts or 0) >= (wanted.pts or 0))
                assert (frame.pts, fingerprint(frame)) == (wanted.pts, fingerprint(wanted))


@pytest.mark.parametrize(
    ("name", "path"),
    one_in(
        3,
        [
            ("traffic.mp4", "frames=3-31.mp4"),  # no group as a whole
            ("traffic.mp4", "frames=3-118,size=160x120.mp4"),
            ("traffic.mp4", "frames=3-118-2.mp4"),
            ("traffic.mp4", "frames=3-118,codec=hevc.mp4"),
            (
                "open-gop.mov",
                "frames=3-60.mp4",
            ),  # no key frame without dependencies on earlier frames
            ("elementary.h264", "frames=3-60.mp4"),  # its times are generated
            ("portrait.mp4", "frames=3-45.mkv"),
            ("open-gop.mkv", "frames=3-40.mkv"),  # no whole GOP, in HEVC
            ("av1.mp4", "frames=3-40.mp4"),
        ],
    ),
)
def test_unsuitable_cuts_are_encoded(shelf: Shelf, name: str, path: str) -> None:
    assert rendition(shelf.video(name), path).method == "encoded"


@pytest.mark.parametrize(
    ("profile", "options"),
    one_in(3, [
        ("baseline", {"profile": "baseline"}),
        ("main", {"profile": "main", "bf": "3", "x264-params": "b-pyramid=strict"}),
        ("high", {"profile": "high", "bf": "5", "x264-params": "b-pyramid=normal:ref=4"}),
        ("high", {"x264-params": "cqm=jvt:colorprim=bt709:transfer=bt709:colormatrix=bt709"}),
        ("high", {"x264-params": "fullrange=on:sar=4/3:bframes=2:keyint=10:nal-hrd=vbr:vbv-maxrate"
                  "=400:vbv-bufsize=400:pic-struct=1"}),
    ]),
)  # fmt: skip
def test_h264_of_many_encoders_is_spliced(
    tmp_path: Path, profile: str, options: Mapping[str, str]
) -> None:
    clip = make_clip(
        tmp_path / "clip.mp4",
        "libx264",
        options={"g": "10", "preset": "veryfast", "flags": "+cgop", **options},
        frames=45,
        width=104,
        height=72,
    )
    kept = keep(tmp_path, clip)
    video = kept.shelf.video(kept.name)
    wanted = stored(video)[4:44]
    for suffix in ("mp4", "mkv", "h264"):
        path = f"frames=4-44.{suffix}"
        made = rendition(video, path)
        assert isinstance(made, SmartCutView)
        data = kept.shelf.read(kept.name, path)
        frames = decoded(data)
        assert len(frames) == len(wanted)
        # Frames 10 to 39 are whole GOPs.
        for frame, right in zip(frames[6:36], wanted[6:36], strict=True):
            assert fingerprint(frame) == fingerprint(right)
        for frame, right in zip(frames, wanted, strict=True):
            assert psnr(frame.to_ndarray(format="gray"), right.to_ndarray(format="gray")) > 33
            assert (frame.format.name, frame.colorspace, frame.color_range) == (
                right.format.name, right.colorspace, right.color_range,
            )  # fmt: skip
        file = tmp_path / f"view.{suffix}"
        file.write_bytes(data)
        assert _counted_by_opencv(file) == len(wanted)
        if suffix == "mp4":
            _check_configuration(file, profile)
    release(kept)


@pytest.mark.parametrize(
    ("size", "options"),
    one_in(
        3,
        [
            ((104, 72), "bframes=0:open-gop=0"),
            ((104, 72), "bframes=3:open-gop=0:wpp=0"),
            ((98, 70), "bframes=4:b-pyramid=1:open-gop=1:slices=2"),
            ((96, 64), "bframes=3:open-gop=1:aud=1:hrd=1:vbv-maxrate=900:vbv-bufsize=900"),
            ((104, 66), "min-cu-size=16:bframes=2:repeat-headers=1:colorprim=bt709:range=full"),
            ((96, 64), "bframes=3:open-gop=0:radl=2:temporal-layers=3:hash=1"),
        ],
    ),
)
def test_hevc_of_many_encoders_is_spliced(
    tmp_path: Path, size: tuple[int, int], options: str
) -> None:
    clip = make_clip(
        tmp_path / "clip.mp4",
        "libx265",
        options={
            "preset": "veryfast",
            "x265-params": f"{options}:keyint=10:scenecut=0:log-level=none",
        },
        frames=45,
        width=size[0],
        height=size[1],
    )
    kept = keep(tmp_path, clip)
    video = kept.shelf.video(kept.name)
    assert list(video.keyframes) == [0, 10, 20, 30, 40]
    wanted = stored(video)[4:44]
    for suffix in ("mp4", "mkv", "hevc"):
        path = f"frames=4-44.{suffix}"
        assert isinstance(rendition(video, path), SmartCutView)
        frames = decoded(kept.shelf.read(kept.name, path))
        assert len(frames) == len(wanted)
        for frame, right in zip(frames[6:36], wanted[6:36], strict=True):
            assert fingerprint(frame) == fingerprint(right)
        for frame, right in zip(frames, wanted, strict=True):
            assert psnr(frame.to_ndarray(format="gray"), right.to_ndarray(format="gray")) > 30
            assert (frame.format.name, frame.colorspace, frame.color_range) == (
                right.format.name, right.colorspace, right.color_range,
            )  # fmt: skip
        file = tmp_path / f"view.{suffix}"
        file.write_bytes(kept.shelf.read(kept.name, path))
        assert _counted_by_opencv(file) == _counted_by_ffprobe(file) == len(wanted)
    release(kept)


def test_reason_for_not_copying_is_reported(shelf: Shelf) -> None:
    told = {
        path: json.loads(shelf.read(name, f"explain/{path}.json"))["why"]
        for name, path in [
            ("traffic.mp4", "frames=3-118.mp4"),
            ("traffic.mp4", "frames=3-31.mp4"),
            ("traffic.mp4", "frames=3-118,size=160x120.mp4"),
            ("av1.mp4", "frames=3-40.mp4"),
        ]
    }
    assert told["frames=3-118.mp4"] is None
    assert "decoded alone" in told["frames=3-31.mp4"]
    assert "in the stored form" in told["frames=3-118,size=160x120.mp4"]
    assert "av1" in told["frames=3-40.mp4"]


def _check_configuration(path: Path, profile: str) -> None:
    """Check that it has two sets of each kind, and a profile and level that cover both."""
    with av.open(str(path)) as opened:
        record = opened.streams.video[0].codec_context.extradata or b""
    sets = nal.parameter_sets("h264", record)
    sequences = [unit for unit in sets if nal.unit_type("h264", unit) == nal.H264_SPS]
    assert len(sequences) == len(sets) - len(sequences) == 2
    assert {unit[1] for unit in sequences} == {record[1]}
    assert record[1] == {"baseline": 66, "main": 77, "high": 100}[profile]
    assert record[3] == max(unit[3] for unit in sequences)


def test_copied_part_ends_at_a_complete_mini_gop(tmp_path: Path) -> None:
    """A GOP may be cut at any frame; the following part is encoded."""
    clip = make_clip(
        tmp_path / "clip.mp4",
        "libx264",
        options={"g": "12", "bf": "3", "flags": "+cgop", "x264-params": "b-adapt=0"},
        frames=36,
    )
    kept = keep(tmp_path, clip)
    video = kept.shelf.video(kept.name)
    wanted = [fingerprint(frame) for frame in stored(video)]
    for stop in range(24, 36):
        view = rendition(video, f"frames=0-{stop}.mp4")
        assert view.method in ("copied", "spliced")
        frames = decoded(kept.shelf.read(kept.name, f"frames=0-{stop}.mp4"))
        assert len(frames) == stop
        exact = [fingerprint(frame) for frame in frames][: stop - 3]
        assert exact == wanted[: stop - 3]
    release(kept)


def test_size_is_known_before_rendering(fresh: Shelf) -> None:
    size = fresh.size("traffic.mp4", "frames=5-100.mp4")
    made = rendition(fresh.video("traffic.mp4"), "frames=5-100.mp4")
    assert made.slots.size == size
    assert not any(file.is_file() for file in fresh.store.parts.directory.cache.rglob("*"))


def test_only_encoded_parts_are_cached(fresh: Shelf) -> None:
    fresh.read("traffic.mp4", "frames=5-100.mp4")
    kept = [file for file in fresh.store.parts.directory.cache.rglob("*") if file.is_file()]
    made = rendition(fresh.video("traffic.mp4"), "frames=5-100.mp4")
    assert len(kept) == len(made.storable) == 2


def test_only_the_ends_are_logged_as_reads(fresh: Shelf) -> None:
    made = rendition(fresh.video("traffic.mp4"), "frames=5-100.mp4")
    pictures = made.pictures(range(len(made.slots)))
    assert pictures is not None
    assert pictures.frames.tolist() == list(range(5, 30))


@pytest.mark.thorough
@pytest.mark.footage
@pytest.mark.parametrize(
    ("name", "span", "copied"),
    [
        # Encoders of cameras and of the web, with and without B-frames, baseline to high.
        ("real/intel_cars_topdown_768x432.mp4", (173, 338), range(7, 165)),
        ("real/suburb_road_a_640x352.mp4", (16, 264), range(31, 248)),
        ("real/phone_pan_campus_720p.mp4", (102, 154), range(18, 52)),
        ("odd/ffmpegfs_framecounter_1920x1280.mp4", (28, 80), range(5, 52)),
        # HEVC of a phone, padded to sixteen pixels, and with open GOPs.
        ("real/birds_duck_1080x1920_hevc.mp4", (27, 62), range(3, 35)),
        ("odd/dv_hevc_opengop_cra.mp4", (44, 102), range(4, 56)),
    ],
)
def test_footage_is_spliced(
    footage: Path, tmp_path: Path, name: str, span: tuple[int, int], copied: range
) -> None:
    kept = keep(tmp_path, footage / name)
    wanted = stored(kept.shelf.video(kept.name))[span[0] : span[1]]
    for suffix in ("mp4", "mkv", kept.shelf.video(kept.name).original.media.codec):
        path = f"frames={span[0]}-{span[1]}.{suffix}"
        assert rendition(kept.shelf.video(kept.name), path).method == "spliced"
        frames = decoded(kept.shelf.read(kept.name, path))
        assert len(frames) == len(wanted)
        for place, (frame, right) in enumerate(zip(frames, wanted, strict=True)):
            if place in copied:
                assert fingerprint(frame) == fingerprint(right)
            else:
                assert psnr(frame.to_ndarray(format="gray"), right.to_ndarray(format="gray")) > 33
    release(kept)
