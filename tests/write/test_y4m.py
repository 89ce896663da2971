"""YUV4MPEG2 in all its color spaces, encoded without loss."""

from __future__ import annotations

import shutil
from pathlib import Path

import av
import numpy as np
import numpy.typing as npt
import pytest

from tests.codecs.test_containers import ffmpeg
from tests.support.ffmpeg_reference import pyav_checksums
from tests.support.selection import one_in
from vfsd.api.store import Store
from vfsd.codecs.frames.planes import plane_samples
from vfsd.errors import UsageError

_DEEP = [f"yuv{form}p{bits}le" for form in (420, 422, 444) for bits in (10, 12)]


def y4m(path: Path, pixel_format: str) -> Path:
    source = "testsrc2=size=96x64:rate=25:duration=0.2"
    ffmpeg("-f", "lavfi", "-i", source, "-strict", "-1", "-pix_fmt", pixel_format, path)
    return path


def planes(path: Path) -> list[list[npt.NDArray[np.unsignedinteger]]]:
    """The planes of each frame."""
    with av.open(str(path)) as opened:
        return [
            [plane.copy() for plane in plane_samples(frame)] for frame in opened.decode(video=0)
        ]


def written(store: Store, path: Path, folder: Path) -> Path:
    with path.open("rb") as file:
        store.write("a.mkv", file, codec="ffv1")
    made = folder / "a.mkv"
    shutil.copy(store.parts.objects.path(store["a.mkv"].original.object_key or ""), made)
    return made


@pytest.mark.parametrize("pixel_format", one_in(3, [*_DEEP, "gray16le", "yuv422p"]))
def test_samples_are_kept(store: Store, tmp_path: Path, pixel_format: str) -> None:
    path = y4m(tmp_path / "a.y4m", pixel_format)
    made = written(store, path, tmp_path)
    assert store["a.mkv"].original.media.pixel_format == pixel_format
    assert pyav_checksums(made) == pyav_checksums(path)


@pytest.mark.parametrize("bits", [9, 10, 12])
def test_deep_gray(store: Store, tmp_path: Path, bits: int) -> None:
    path = y4m(tmp_path / "a.y4m", f"gray{bits}le")
    made = planes(written(store, path, tmp_path))
    for (kept,), (given,) in zip(made, planes(path), strict=True):
        np.testing.assert_array_equal(kept >> (16 - bits), given)


def test_chroma_of_four_columns(store: Store, tmp_path: Path) -> None:
    path = y4m(tmp_path / "a.y4m", "yuv411p")
    made = planes(written(store, path, tmp_path))
    for kept, given in zip(made, planes(path), strict=True):
        np.testing.assert_array_equal(kept[0], given[0])
        for at in (1, 2):
            np.testing.assert_array_equal(kept[at][:, ::2], given[at])
            np.testing.assert_array_equal(kept[at][:, 1::2], given[at])


@pytest.mark.parametrize("codec", ["h264", "hevc"])
def test_deep_files_of_other_codecs(store: Store, tmp_path: Path, codec: str) -> None:
    for pixel_format in _DEEP:
        path = y4m(tmp_path / f"{pixel_format}.y4m", pixel_format)
        with path.open("rb") as file:
            video = store.write(f"{pixel_format}.mp4", file, codec=codec)
        kept = pixel_format.replace("12", "10") if codec == "h264" else pixel_format
        assert (len(video), video.original.media.pixel_format) == (5, kept)


def test_frames_with_alpha_are_ingested(store: Store, tmp_path: Path) -> None:
    """They are copied instead of encoded."""
    path = y4m(tmp_path / "a.y4m", "yuva444p")
    with path.open("rb") as file, pytest.raises(UsageError, match="444alpha") as refusal:
        store.write("a.mkv", file, codec="ffv1")
    assert "vfsd ingest" in (refusal.value.hint or "")
    assert store.ingest(path).original.media.pixel_format == "yuva444p"
