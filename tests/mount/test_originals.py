"""Replaced originals and videos on hold, through the kernel."""

from __future__ import annotations

import hashlib
import mmap
import os
import subprocess
from pathlib import Path

import pytest

from sample_videos import FOLDER
from tests.mount.conftest import Mounted
from vfsd.api.store import Store
from vfsd.errors import BusyError

pytestmark = pytest.mark.mount

BYTES = (FOLDER / "traffic.mp4").read_bytes()


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_replaced_original(mounted: Mounted) -> None:
    here = mounted.mount()
    path = here / "v.mp4"
    path.write_bytes(BYTES)
    (here / "v.mp4@/info.json").read_bytes()
    with Store.open(mounted.store) as store:
        store["v.mp4"].policy.set("original=replaceable,psnr=34")
        with open(path, "rb") as file:
            with pytest.raises(BusyError, match="open in"):
                store["v.mp4"].policy.replace_original(codec="h264")
            assert file.read() == BYTES
        mounted.wait_for(lambda: os.getxattr(path, "user.vfsd.open") == b"0", "still open")
        done = store["v.mp4"].policy.replace_original(codec="h264")
        wanted = store.parts.originals.path_of(store["v.mp4"].original).read_bytes()
        assert len(wanted) == done.new_size
        # The kernel may remember names for a second.
        mounted.wait_for(lambda: os.stat(path).st_size == done.new_size, "the old size")
        assert digest(path.read_bytes()) == digest(wanted)
    shown = subprocess.run(["getfattr", "-d", path], capture_output=True, text=True, check=True)
    assert "user.vfsd.replaced" in shown.stdout
    probed = subprocess.run(
        ["ffmpeg", "-v", "error", "-i", path, "-f", "null", "-"], capture_output=True
    )
    assert (probed.returncode, probed.stderr) == (0, b"")


def test_hold_in_mount(mounted: Mounted, tmp_path: Path) -> None:
    here = mounted.mount()
    path = here / "v.mp4"
    path.write_bytes(BYTES)
    (here / "v.mp4@/info.json").read_bytes()
    with Store.open(mounted.store) as store:
        store["v.mp4"].policy.hold("case 17")
    for command in (
        ["rm", "-f", "v.mp4"],
        ["truncate", "-s", "0", "v.mp4"],
        ["dd", "if=/dev/zero", "of=v.mp4", "bs=1", "count=1", "conv=notrunc"],
        ["cp", str(FOLDER / "portrait.mp4"), "v.mp4"],
        ["sh", "-c", "echo x > other && mv -f other v.mp4"],
    ):
        done = subprocess.run(command, cwd=here, capture_output=True, text=True)
        assert done.returncode != 0
        assert "not permitted" in done.stderr
    with open(path, "rb") as file:  # libfuse renames open files instead of removing them
        with pytest.raises(PermissionError):
            path.unlink()
        assert file.read() == BYTES
    assert path.read_bytes() == BYTES
    mounted.unmount()
    assert "case 17" in mounted.log.read_text()


def test_refused_mapped_write(mounted: Mounted) -> None:
    path = mounted.mount() / "v.mp4"
    path.write_bytes(BYTES)
    assert os.getxattr(path, "user.vfsd.state") == b"video"
    with open(path, "r+b", buffering=0) as file, mmap.mmap(file.fileno(), 0) as mapped:
        with Store.open(mounted.store) as store:
            store["v.mp4"].policy.hold("case 17")
        mapped[5:7] = b"qq"
        with pytest.raises(PermissionError):
            mapped.flush()
        with open(path, "rb", buffering=0) as reader:
            mounted.wait_for(lambda: os.pread(reader.fileno(), 100, 0) == BYTES[:100], "qq")
        assert mapped[:100] == BYTES[:100]
    assert path.read_bytes() == BYTES
