"""Videos with damaged bytes on the disk, through the kernel."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from sample_videos import FOLDER
from tests.mount.conftest import Mounted
from tests.storage.test_checksum_registry import LAST, flip, scrubbed
from tests.support.stores import new_store
from vfsd.api.store import Store
from vfsd.disk.checksums import BLOCK_BYTES
from vfsd.maintenance import fsck
from vfsd.maintenance.scrub import Scrubber

pytestmark = pytest.mark.mount

CLIP = FOLDER / "traffic.mp4"
BYTES = CLIP.read_bytes()
_PAGE = 4096


def fails(read: Callable[[], object]) -> bool:
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        read()
    return True


def test_damaged_block(mounted: Mounted, tmp_path: Path) -> None:
    with Store.open(mounted.store) as store:
        store.ingest(CLIP, "v.mp4")
        flip(store.parts.originals.path_of(store["v.mp4"].original), LAST[100])
    here = mounted.mount()
    path = here / "v.mp4"
    with open(path, "rb", buffering=0) as file:
        for at in range(0, LAST.start, _PAGE):
            assert os.pread(file.fileno(), _PAGE, at) == BYTES[at : at + _PAGE]
        for at in range(LAST.start, LAST.stop, _PAGE):
            assert fails(partial(os.pread, file.fileno(), _PAGE, at))
    assert fails(path.read_bytes)
    assert fails(lambda: shutil.copyfile(path, tmp_path / "copy.mp4"))
    told = json.loads(os.getxattr(path, "user.vfsd.damaged"))
    assert told["bytes"] == [[LAST.start, LAST.stop]]
    assert told["frames"][-1][1] == 120
    stills = here / "v.mp4@" / "frames"
    assert (stills / "000000.png").read_bytes()
    assert fails((stills / "000119.png").read_bytes)
    with open(path, "r+b", buffering=0) as file:  # damage the object in place
        assert fails(lambda: file.write(b"x"))
    assert os.getxattr(path, "user.vfsd.state") == b"video"
    log = mounted.log.read_text()
    assert f"v.mp4 is damaged on disk: bytes {LAST.start} to {LAST.stop - 1}; frames " in log
    assert BLOCK_BYTES % _PAGE == 0
    # One line for all those reads. The path interface does not know the path.
    assert len(re.findall(r"ERROR read (of an open file|'v.mp4'): v.mp4 is damaged", log)) == 1


def test_log_of_missing_checksums(mounted: Mounted) -> None:
    with Store.open(mounted.store) as store:
        place = store.ingest(CLIP, "v.mp4").original.place
    mounted.mount()
    assert "no block checksums" not in mounted.log.read_text()
    mounted.unmount()
    with Store.open(mounted.store) as store, store.catalog.writing() as change:
        change.integrity.drop_checksums(place)
    mounted.mount()
    (line,) = (one for one in mounted.log.read_text().splitlines() if "no block checksums" in one)
    assert "1 original " in line
    assert "`vfsd scrub`" in line


def test_repair_while_open(mounted: Mounted, tmp_path: Path) -> None:
    with new_store(tmp_path / "other") as other:
        other.ingest(CLIP)
    with Store.open(mounted.store) as store:
        store.ingest(CLIP, "v.mp4")
        flip(store.parts.originals.path_of(store["v.mp4"].original), LAST[100])
    path = mounted.mount() / "v.mp4"
    with open(path, "rb", buffering=0) as file:
        assert fails(lambda: os.pread(file.fileno(), 100, LAST.start))
        with Store.open(mounted.store) as store:
            (found,) = scrubbed(store, tmp_path / "other")
        assert found.repaired == "put back"
        assert os.pread(file.fileno(), len(LAST), LAST.start) == BYTES[LAST.start :]
    assert path.read_bytes() == BYTES
    assert "user.vfsd.damaged" not in os.listxattr(path)


@pytest.fixture
def dead(fuse: None, tmp_path: Path) -> Iterator[Callable[[], object]]:
    """A function that puts a mount without a process over the directory `disk`."""
    at = tmp_path / "disk"
    at.mkdir()

    def mount() -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:  # receives the device, and is closed
            subprocess.run(
                ["fusermount3", "--", at],
                env=os.environ | {"_FUSE_COMMFD": str(theirs.fileno())},
                pass_fds=[theirs.fileno()],
                check=True,
            )

    yield mount
    subprocess.run(["fusermount3", "-u", "-z", at], check=True)


def test_scrub_skips_dead_mount(dead: Callable[[], object], tmp_path: Path) -> None:
    mine = Path(shutil.copy(FOLDER / "portrait.mp4", tmp_path / "disk"))
    with new_store(tmp_path / "store") as store:
        linked = store.ingest(mine, "mine.mp4", link=True).original.place
        store.ingest(CLIP, "v.mp4")
        flip(store.parts.originals.path_of(store["v.mp4"].original), LAST[100])
        with store.catalog.writing() as change:
            change.integrity.add_damage(linked, [range(5)], now_ns=1)
        dead()
        scrubber = Scrubber(store.parts)
        assert [one.names for one in scrubber.run()] == [("v.mp4",)]
        assert [error.errno for error in scrubber.unread] == [errno.ENOTCONN]
        assert {one.check for one in fsck.run(store.parts, repair=True)} == {"linked", "damage"}
