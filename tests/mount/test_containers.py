"""Files in containers of all kinds, through the kernel."""

from __future__ import annotations

import av
import numpy as np
import pytest

from tests.codecs.test_containers import KINDS, made, moving_avif
from tests.mount.conftest import Mounted
from vfsd.api.store import Store

pytestmark = pytest.mark.mount

_NAMES = ("mpeg2.mxf", "a.wmv", "a.gif", "rv20.rm", "a.m2ts")


def test_each_container(mounted: Mounted) -> None:
    folder = mounted.root / "files"
    folder.mkdir()
    files = [made(folder / name, *KINDS[name]) for name in _NAMES]
    files.append(moving_avif(folder / "a.avif"))
    at = mounted.mount()
    for path in files:
        (at / path.name).write_bytes(path.read_bytes())
    for path in files:
        mounted.wait_for((at / f"{path.name}@").exists, f"{path.name} is no video")
        assert (at / path.name).read_bytes() == path.read_bytes()
        with av.open(str(at / f"{path.name}@" / "t=0-0.4.mkv")) as view:
            assert len(list(view.decode(video=0))) in (10, 12), path.name
    (at / "annex").mkdir()
    (at / "annex" / "link.wmv").symlink_to("../a.wmv")
    with av.open(str(at / "annex" / "link.wmv@" / "t=0-0.4.mkv")) as view:
        assert len(list(view.decode(video=0))) == 10
    with Store.open(mounted.store, read_only=True) as store:
        for path in files:
            video = store[path.name]
            whole = video[7]
            part = video.read(frames=[7], region=(8, 6, 56, 42))
            np.testing.assert_array_equal(part.data[0], whole.data[6:42, 8:56], err_msg=path.name)
