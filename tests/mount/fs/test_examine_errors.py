"""A file that could not be examined has a reason, and becomes a video once it can be examined."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.support.broken_pyav import environment
from tests.support.fs_driver import Driver
from vfsd.api.store import Store
from vfsd.catalog import ROOT
from vfsd.mount.fs import Filesystem
from vfsd.storage.sandbox_pool import Examiner, SandboxPool


@pytest.fixture
def it(place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    """A file system with its own workers, which inherit the environment when they start."""
    workers = SandboxPool()
    monkeypatch.setattr("vfsd.storage.context.Examiner", partial(Examiner, pool=workers))
    with Store.open(place) as store:
        filesystem = Filesystem(store.parts)
        yield Driver(filesystem)
        filesystem.close()
    workers.close()


def test_reason_of_unexamined_file(
    it: Driver, place: Path, tmp_path: Path, video: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        path = environment(tmp_path / "path", "other keywords")["PYTHONPATH"]
        broken.setenv("PYTHONPATH", path)
        it.write("/v.mp4", video)
        assert it.state("/v.mp4") == "spooled"
        reason = it.fs.getxattr("/v.mp4", "user.vfsd.reason").decode()
    assert "not examined yet" in reason
    assert "unexpected keyword argument" in reason
    assert "vfsd doctor" in reason
    assert "user.vfsd.reason" in it.fs.listxattr("/v.mp4", it.caller)
    with Store.open(place, read_only=True) as other, other.catalog.reading() as seen:
        node = seen.tree.lookup(ROOT, "v.mp4")
    assert node is not None
    assert node.reason == reason
    # Reading the attribute makes the mount try again.
    assert it.state("/v.mp4") == "video"
    assert "user.vfsd.reason" not in it.fs.listxattr("/v.mp4", it.caller)
