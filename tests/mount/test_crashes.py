"""A mount survives a crash of its view worker."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import struct
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from sample_videos import FOLDER
from tests.mount.conftest import Mounted
from vfsd.api.store import Store

pytestmark = pytest.mark.mount


def test_killed_worker(mounted: Mounted, wide_clip: Path) -> None:
    at = mounted.mount()
    shutil.copyfile(wide_clip, at / "wide.mp4")
    view = at / "wide.mp4@" / "size=480x270.mp4"
    found = end_while_decoding(mounted, view, signal.SIGKILL)
    assert found == view.read_bytes()  # a kill does not mark the video as suspect
    assert len(found) == view.stat().st_size


def test_crashing_video_not_decoded_again(mounted: Mounted, wide_clip: Path) -> None:
    at = mounted.mount()
    pid = mounted.pid
    shutil.copyfile(wide_clip, at / "wide.mp4")
    still = at / "wide.mp4@" / "frames" / "000003.png"
    view = at / "wide.mp4@" / "size=480x272.mp4"
    found = end_while_decoding(mounted, view, signal.SIGSEGV)
    assert isinstance(found, OSError)
    assert found.errno == errno.EMEDIUMTYPE
    assert (at / "wide.mp4").read_bytes() == wide_clip.read_bytes()
    assert mounted.pid == pid
    assert b"Segmentation fault" in os.getxattr(at / "wide.mp4", "user.vfsd.reason")
    mounted.unmount()
    mounted.mount()
    assert "user.vfsd.reason" in os.listxattr(at / "wide.mp4")
    with pytest.raises(OSError, match=os.strerror(errno.EMEDIUMTYPE)):
        still.read_bytes()
    with Store.open(mounted.store) as store:
        assert not store["wide.mp4"].verify()  # in another process, which survives it
    assert still.read_bytes()
    assert "user.vfsd.reason" not in os.listxattr(at / "wide.mp4")


def test_worker_ends_with_mount(mounted: Mounted, wide_clip: Path) -> None:
    at = mounted.mount()
    shutil.copyfile(wide_clip, at / "wide.mp4")
    assert (at / "wide.mp4@" / "frames" / "000003.png").read_bytes()
    made_by = mounted.standing.rendering
    assert made_by is not None
    assert made_by.memory > 1 << 20
    os.kill(mounted.pid, signal.SIGKILL)
    mounted.wait_for(lambda: not Path(f"/proc/{made_by.pid}").exists(), "it lives on")
    mounted.mount()
    assert (at / "wide.mp4@" / "frames" / "000003.png").read_bytes()


def test_examine_memory_limit(mounted: Mounted) -> None:
    with Store.open(mounted.store) as store:
        # This is less than the smallest value that users can set.
        settings = replace(store.settings, examine_memory=20 << 20)
        settings.save(store.parts.directory.settings)
    at = mounted.mount()
    size = 4096 * 2160 * 3 // 2
    (at / "large.y4m").write_bytes(b"YUV4MPEG2 W4096 H2160 F25:1\nFRAME\n" + bytes(size))
    assert b"MiB of memory" in os.getxattr(at / "large.y4m", "user.vfsd.reason")
    assert (at / "large.y4m").stat().st_size == size + 34
    shutil.copyfile(FOLDER / "portrait.mp4", at / "small.mp4")
    assert os.getxattr(at / "small.mp4", "user.vfsd.state") == b"video"


def end_while_decoding(mounted: Mounted, view: Path, number: int) -> bytes | OSError:
    """Send a signal to the view worker while it decodes a view; return the result of the read."""
    found: list[bytes | OSError] = []

    def read() -> None:
        try:
            found.append(view.read_bytes())
        except OSError as error:
            found.append(error)

    assert (view.parent / "frames" / "000000.png").read_bytes()  # so that there is a process
    made_by = mounted.standing.rendering
    assert made_by is not None
    note = mounted.store / "mount.rendering"

    def is_decoding() -> bool:
        """Whether it is decoding; if so, the process is now stopped."""
        os.kill(made_by.pid, signal.SIGSTOP)
        if any(struct.unpack("<512q", note.read_bytes()[:4096])):
            return True
        os.kill(made_by.pid, signal.SIGCONT)
        return False

    reader = threading.Thread(target=read)
    reader.start()
    mounted.wait_for(is_decoding, "the view is not decoded")
    os.kill(made_by.pid, number)
    with suppress(ProcessLookupError):  # a killed process may be gone already
        os.kill(made_by.pid, signal.SIGCONT)
    reader.join(30)
    (told,) = found
    return told
