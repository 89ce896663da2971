"""The encoder of stitchable tiles: one packet per frame, deterministic output."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import threading
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import av
import numpy as np
import pytest
from av.video.codeccontext import VideoCodecContext

from tests.support.hevc_decoders import by_ffmpeg, samples, scene, settings
from vfsd.codecs.bitstreams import nal
from vfsd.codecs.stitching import kvazaar as encoder
from vfsd.codecs.stitching.hevc_tiles import ParameterSets
from vfsd.codecs.stitching.kvazaar import encode_tile, encode_tiled, kvazaar_available
from vfsd.errors import ExtraMissingError, UsageError, VfsdError
from vfsd.tiling.layout import Rect

needed = pytest.mark.usefixtures("kvazaar")


@needed
def test_one_packet_per_frame_in_order() -> None:
    pictures = scene(200, 120)
    tile = encode_tile(settings(200, 120, 22), pictures, x=64, y=128)
    assert tile.rect == Rect(64, 128, 264, 248)
    kinds = [
        [nal.unit_type("hevc", packet[a:b]) for a, b in nal.nal_units(packet, 0)]
        for packet in tile.pictures
    ]
    assert len(kinds[0]) == 1
    assert kinds[0][0] in (19, 20)
    assert kinds[1:] == [[1]] * 9
    shown = by_ffmpeg(tile.pictures, tile.parameter_sets)
    for found, right in zip(shown, pictures, strict=True):
        error = found[0].astype(float) - samples(right)[0]
        assert 10 * np.log10(255**2 / np.mean(error**2)) > 36


@needed
def test_long_segment_has_one_key_frame() -> None:
    tile = encode_tile(settings(64, 64), list(scene(64, 64)) * 30)
    kinds = {packet[4] >> 1 for packet in tile.pictures[1:]}
    assert (len(tile.pictures), kinds) == (300, {1})


@needed
@pytest.mark.parametrize("quality", [0, 51])
def test_extreme_qualities(quality: int) -> None:
    tile = encode_tile(settings(64, 64, quality), scene(64, 64))
    assert len(by_ffmpeg(tile.pictures, tile.parameter_sets)) == 10


@needed
def test_single_frame() -> None:
    (tile,) = encode_tiled(settings(64, 64), [64], [64], scene(64, 64)[:1])
    assert len(tile.pictures) == len(by_ffmpeg(tile.pictures, tile.parameter_sets)) == 1


@needed
@pytest.mark.parametrize("size", [(192, 128), (190, 70)])
def test_output_is_independent_of_planes_and_threads(size: tuple[int, int]) -> None:
    width, height = size
    chosen, frames = settings(width, height), scene(width, height)
    layout = ([64, 64, width - 128], [64, height - 64])
    first = encode_tiled(chosen, *layout, frames)
    arrays = (frame.to_ndarray(format="yuv420p") for frame in frames if height % 4 == 0)
    if height % 4 == 0:
        assert encode_tiled(chosen, *layout, arrays) == first
    assert encode_tiled(chosen, *layout, frames, threads=2) == first


@needed
def test_parameter_sets_have_rate_aspect_and_colors() -> None:
    chosen = dataclasses.replace(
        settings(64, 46),
        rate=Fraction(30000, 1001),
        sample_aspect_ratio=Fraction(4, 3),
        color_range="pc",
        color_space="bt709",
        color_primaries="ebu3213",
        color_transfer="iec61966-2-1",
    )
    frames = scene(64, 46)
    tile = encode_tile(chosen, frames)
    assert ParameterSets.parse(tile.parameter_sets).sequence.rate == Fraction(30000, 1001)
    assert tile.pictures == encode_tile(settings(64, 46), frames).pictures
    context = av.CodecContext.create("hevc", "r")
    assert isinstance(context, VideoCodecContext)
    context.extradata = b"".join(nal.START_CODE + unit for unit in tile.parameter_sets)
    found = [*context.decode(av.Packet(tile.pictures[0])), *context.decode(None)][0]
    assert (found.width, found.height) == (64, 46)
    assert context.sample_aspect_ratio == Fraction(4, 3)
    told = (found.color_range, found.colorspace, found.color_primaries, found.color_trc)
    assert [int(value) for value in told] == [2, 1, 22, 13]


@needed
def test_invalid_sizes_are_refused() -> None:
    frames = scene(192, 128)
    for width, height, widths, heights in (
        (192, 128, [96, 96], [128]),  # an inner edge within a block
        (192, 128, [64, 64], [128]),  # too small for the picture
        (192, 128, [], [128]),
        (191, 128, [191], [128]),  # odd
        (8200, 128, [8200], [128]),
        (64 * 21, 64, [64] * 21, [64]),
    ):
        with pytest.raises(UsageError):
            encode_tiled(settings(width, height), widths, heights, frames)
    with pytest.raises(UsageError, match="quality"):
        encode_tile(settings(192, 128, 52), frames)
    with pytest.raises(UsageError, match="must be 64x64"):
        encode_tile(settings(64, 64), frames)
    with pytest.raises(UsageError, match="rgb24"):
        encode_tile(settings(192, 128), [frames[0].reformat(format="rgb24")])
    with pytest.raises(UsageError, match="must be 192x128"):
        encode_tile(settings(192, 128), [np.zeros((128, 192), np.uint8)])


@needed
def test_no_frames_are_an_error() -> None:
    with pytest.raises(VfsdError, match="kvazaar failed"):
        encode_tile(settings(64, 64), [])


@needed
def test_source_error_is_raised_and_ends_the_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[subprocess.Popen[bytes]] = []

    class Popen(subprocess.Popen[bytes]):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            started.append(self)

    def pictures() -> Iterator[av.VideoFrame]:
        yield from scene(64, 64)
        raise RuntimeError("the source broke")

    encoder._program()
    monkeypatch.setattr(subprocess, "Popen", Popen)
    with pytest.raises(RuntimeError, match="the source broke"):
        encode_tile(settings(64, 64), pictures())
    (process,) = started
    assert process.returncode is not None
    for pipe in (process.stdin, process.stdout, process.stderr):
        assert pipe
        assert pipe.closed
    assert not any(thread.name == "kvazaar" for thread in threading.enumerate())


@needed
def test_unknown_parameters_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoder, "_PARAMETERS", (*encoder._PARAMETERS, "no-such-constraint=1"))
    with pytest.raises(VfsdError, match="lacks a parameter"):
        encode_tile(settings(64, 64), scene(64, 64))


@pytest.mark.parametrize("script", ["exit 3", "echo broken >&2; exit 1", "exec cat >&2"])
def test_failure_of_the_program_is_reported(script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoder, "_program", lambda: "/bin/sh")
    command = ["/bin/sh", "-c", script]
    monkeypatch.setattr(encoder, "_command", lambda *_: command)
    frames = list(scene(192, 128)) * 20  # more than fits into pipes
    with pytest.raises(VfsdError, match="kvazaar failed") as caught:
        encode_tile(settings(192, 128), frames)
    assert ("broken" in str(caught.value)) == ("broken" in script)


def test_unexpected_output_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoder, "_program", lambda: "/bin/sh")
    monkeypatch.setattr(encoder, "_command", lambda *_: ["/bin/sh", "-c", "exec cat"])
    with pytest.raises(VfsdError, match="unexpected output"):
        encode_tile(settings(192, 128), scene(192, 128))


# ------------------------------------------------------------------------------ where it is not


@pytest.fixture
def forgotten() -> Iterator[None]:
    """Clear the cached facts about the program."""
    encoder._program.cache_clear()
    yield
    encoder._program.cache_clear()


def test_missing_package_is_reported(forgotten: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    assert not kvazaar_available()
    with pytest.raises(ExtraMissingError, match="imageio-ffmpeg") as caught:
        encode_tile(settings(64, 64), scene(64, 64))
    assert "vfsd[stitch]" in str(caught.value.hint)


def test_other_ffmpeg_is_refused(
    forgotten: None, kvazaar: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder._program.cache_clear()
    for program in ("/bin/true", "/nowhere/ffmpeg"):
        monkeypatch.setenv("IMAGEIO_FFMPEG_EXE", program)
        assert not kvazaar_available()
        with pytest.raises(ExtraMissingError):
            encode_tile(settings(64, 64), scene(64, 64))
