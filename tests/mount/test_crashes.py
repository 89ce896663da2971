"""What a mount that crashed while it decoded tells the next one."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import struct
import threading
from pathlib import Path

import pytest

from sample_videos import FOLDER
from tests.mount.conftest import Mounted
from vfsd.store import Store

pytestmark = pytest.mark.mount


def test_what_was_being_decoded_in_a_crash_is_not_decoded_by_the_next_mount(
    mounted: Mounted, wide_clip: Path
) -> None:
    at = mounted.mount()
    shutil.copyfile(wide_clip, at / "wide.mp4")
    assert os.getxattr(at / "wide.mp4", "user.vfsd.frames") == b"60"
    end_while_decoding(mounted, at / "wide.mp4@" / "size=480x270.mp4", signal.SIGKILL)
    mounted.mount()
    assert (at / "wide.mp4@" / "frames" / "000003.png").read_bytes()  # a kill accuses nobody
    end_while_decoding(mounted, at / "wide.mp4@" / "size=480x272.mp4", signal.SIGSEGV)
    mounted.mount()
    assert (at / "wide.mp4").read_bytes() == wide_clip.read_bytes()
    reason = os.getxattr(at / "wide.mp4", "user.vfsd.reason")
    assert b"Segmentation fault" in reason
    assert "user.vfsd.reason" in os.listxattr(at / "wide.mp4")
    with pytest.raises(OSError, match=os.strerror(errno.EMEDIUMTYPE)):
        (at / "wide.mp4@" / "frames" / "000003.png").read_bytes()
    with Store.open(mounted.store) as store:
        assert not store["wide.mp4"].verify()  # in a process of its own, which lives through it
    assert (at / "wide.mp4@" / "frames" / "000003.png").read_bytes()
    assert "user.vfsd.reason" not in os.listxattr(at / "wide.mp4")


def test_a_file_that_takes_too_much_to_be_examined_stays_a_plain_one(mounted: Mounted) -> None:
    with Store.open(mounted.store) as store:
        settings = store.settings.with_text("examine_memory", str(20 << 20))
        settings.save(store.parts.directory.settings)
    at = mounted.mount()
    size = 4096 * 2160 * 3 // 2
    (at / "large.y4m").write_bytes(b"YUV4MPEG2 W4096 H2160 F25:1\nFRAME\n" + bytes(size))
    assert b"MiB of memory" in os.getxattr(at / "large.y4m", "user.vfsd.reason")
    assert (at / "large.y4m").stat().st_size == size + 34
    shutil.copyfile(FOLDER / "portrait.mp4", at / "small.mp4")
    assert os.getxattr(at / "small.mp4", "user.vfsd.state") == b"video"


def end_while_decoding(mounted: Mounted, view: Path, number: int) -> None:
    """Send a signal to the mount's process while it decodes to make a view."""
    pid = mounted.pid

    def read() -> None:
        try:
            view.read_bytes()
        except OSError:
            return  # the mount is gone

    reader = threading.Thread(target=read)
    reader.start()
    note = mounted.store / "mount.decoding"
    mounted.wait_for(lambda: any(struct.unpack("<512q", note.read_bytes()[:4096])), "nobody reads")
    os.kill(pid, number)
    reader.join(30)
    assert not reader.is_alive()
