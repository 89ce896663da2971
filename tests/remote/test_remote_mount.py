"""A mount of a home whose videos are only in a bucket."""

from __future__ import annotations

import errno
import mmap
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import av
import numpy as np
import pytest

from tests.mount.conftest import Mounted
from tests.support.http_proxy import HttpProxy
from tests.support.seaweedfs import SeaweedServer
from tests.support.stores import new_store
from vfsd.api.store import Store
from vfsd.disk.store_config import StoreSettings
from vfsd.maintenance.push import push, use_bucket

CLIP = Path(__file__).parents[2] / "sample_videos" / "traffic.mp4"


class RemoteMount(Mounted):
    """A mounted home without objects, and the proxy in front of its bucket."""

    def __init__(self, folder: Path, proxy: HttpProxy) -> None:
        self.store = folder / "store"
        self.at = folder / "mnt"
        self.log = folder / "log"
        self.proxy = proxy
        self.at.mkdir()

    @property
    def video(self) -> Path:
        return self.at / "traffic.mp4"


@pytest.fixture
def remote(
    tmp_path: Path,
    seaweedfs: SeaweedServer,
    s3_proxy: HttpProxy,
    mountable: None,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[RemoteMount]:
    pytest.importorskip("obstore")
    for name, value in seaweedfs.environment.items():
        monkeypatch.setenv(name, value)
    with new_store(tmp_path / "store") as store:
        store.ingest(CLIP)
        settings = StoreSettings(verify=False, tune=False, compress=False)
        settings.save(store.parts.directory.settings)
        bucket = f"s3://{seaweedfs.bucket}/{store.parts.directory.id}"
        use_bucket(store.parts, bucket, seaweedfs.options(s3_proxy.port))
    with Store.open(tmp_path / "store") as store:
        assert push(store.parts).damaged == ()
    shutil.rmtree(tmp_path / "store" / "objects")
    (tmp_path / "store" / "objects" / "tmp").mkdir(parents=True)
    made = RemoteMount(tmp_path, s3_proxy)
    made.mount()
    s3_proxy.reset()
    yield made
    made.unmount()


def test_bytes_are_those_of_the_file(remote: RemoteMount) -> None:
    data = CLIP.read_bytes()
    assert remote.video.stat().st_size == len(data)
    assert remote.video.read_bytes() == data
    with remote.video.open("rb") as file:
        for at in (len(data) - 10, 70_000, 0, 131_072):
            file.seek(at)
            assert file.read(5000) == data[at : at + 5000]
        assert os.lseek(file.fileno(), 5, os.SEEK_DATA) == 5
        assert os.lseek(file.fileno(), 5, os.SEEK_HOLE) == len(data)
        with pytest.raises(OSError, match=os.strerror(errno.ENXIO)):
            os.lseek(file.fileno(), len(data), os.SEEK_DATA)
        os.fsync(file.fileno())
    assert remote.proxy.counts.body_bytes < 2 * len(data)


def test_copies_and_views_are_made_from_the_bucket(remote: RemoteMount, tmp_path: Path) -> None:
    subprocess.run(["cp", remote.video, remote.at / "copy.mp4"], check=True)
    assert (remote.at / "copy.mp4").read_bytes() == CLIP.read_bytes()
    with (
        av.open(os.fspath(remote.at / "traffic.mp4@" / "t=1-2,size=160x120.mp4")) as view,
        av.open(os.fspath(CLIP)) as whole,
    ):
        found = sum(1 for _ in view.decode(video=0))
        assert found == round(float(whole.streams.video[0].average_rate or 0))


@pytest.mark.slow
def test_drop_in_readers_take_paths_of_videos_in_the_bucket(remote: RemoteMount) -> None:
    """A path in a mount leads to the store, which has no file of the video."""
    from vfsd.compat import cv2, decord, torchcodec

    pytest.importorskip("cv2")
    number = 37
    with Store.open(remote.store) as store:
        truth = store["traffic.mp4"].read(frames=[number]).data[0]
    capture = cv2.VideoCapture(os.fspath(remote.video))
    assert capture.set(1, number)  # CAP_PROP_POS_FRAMES
    is_read, picture = capture.read()
    assert is_read
    assert picture is not None
    np.testing.assert_array_equal(picture[..., ::-1], truth)
    capture.release()
    frame = decord.VideoReader(os.fspath(remote.video))[number]
    np.testing.assert_array_equal(np.asarray(frame.asnumpy()), truth)
    pytest.importorskip("torch")
    tensor = torchcodec.VideoDecoder(os.fspath(remote.video))[number]
    np.testing.assert_array_equal(np.moveaxis(tensor.numpy(), 0, -1), truth)


def test_written_video_becomes_a_file_of_the_home(remote: RemoteMount) -> None:
    data = bytearray(CLIP.read_bytes())
    with remote.video.open("r+b") as file:
        file.seek(1000)
        file.write(b"changed")
    data[1000:1007] = b"changed"
    assert remote.video.read_bytes() == data
    with remote.video.open("r+b") as file:
        file.truncate(5000)
    assert remote.video.read_bytes() == data[:5000]


def test_removed_video_stays_readable_while_open(remote: RemoteMount) -> None:
    with remote.video.open("rb") as file:
        remote.video.unlink()
        assert os.fstat(file.fileno()).st_size == CLIP.stat().st_size
        assert file.read() == CLIP.read_bytes()


@pytest.mark.slow
def test_silent_bucket_is_an_error_and_no_hang(remote: RemoteMount) -> None:
    remote.proxy.faults.silent = True
    began = time.monotonic()
    with remote.video.open("rb") as file:
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            file.read(1000)
        assert time.monotonic() - began < 25
        assert os.listdir(remote.at) == ["traffic.mp4"]
        remote.proxy.reset()
        remote.wait_for(lambda: is_readable(file.fileno()), "reads fail")
        file.seek(0)
        assert file.read() == CLIP.read_bytes()


def is_readable(fd: int) -> bool:
    try:
        return len(os.pread(fd, 1000, 0)) == 1000
    except OSError:
        return False


def test_cache_that_changes_after_it_was_compared_is_noticed(remote: RemoteMount) -> None:
    data = CLIP.read_bytes()
    assert remote.video.read_bytes() == data
    (cached,) = [one for one in remote.store.glob("cache/o/*/*-*") if one.suffix != ".map"]
    # Without the page cache, each read reaches the mount.
    fd = os.open(remote.video, os.O_RDONLY | os.O_DIRECT)
    buffer = mmap.mmap(-1, 4096)
    try:
        for _ in range(2):
            assert os.preadv(fd, [buffer], 0) == 4096
            assert buffer[:] == data[:4096]
            with cached.open("r+b") as file:
                file.seek(100)
                file.write(b"damaged")
    finally:
        os.close(fd)
        buffer.close()
