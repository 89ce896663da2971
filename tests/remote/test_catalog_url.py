"""Stores that are opened by the URL of their catalog, on hosts that have no home yet."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa

from sample_videos import FOLDER
from tests.cli.conftest import run_command
from tests.support.http_proxy import HttpProxy
from tests.support.ray_cluster import running_ray
from tests.support.remote_objects import running_process
from tests.support.seaweedfs import SeaweedServer
from vfsd.api.store import Store
from vfsd.core.detections import Detection
from vfsd.errors import NoStoreError, UsageError
from vfsd.maintenance.homes import list_homes
from vfsd.maintenance.push import push, use_bucket
from vfsd.work.perform import perform_at

NAME = "cam/traffic.mp4"
_PROCESSES = 4
_SECONDS = 300.0

_READ = """
import hashlib, json, sys
from vfsd import Store
with Store.open(sys.argv[1], threads=1) as store:
    data = store["cam/traffic.mp4"].read(frames=[3]).data
    print(json.dumps([hashlib.sha256(data.tobytes()).hexdigest(), str(store.path)]))
"""
_UNPICKLE = """
import hashlib, json, pickle, sys
store, video, scan = pickle.load(sys.stdin.buffer)
data = video.read(frames=[3]).data
same = sum(1 for _ in scan.crops())
print(json.dumps([hashlib.sha256(data.tobytes()).hexdigest(), str(store.path), same]))
"""


@dataclass
class Shared:
    """A store with a catalog on a server, and all objects in a bucket."""

    path: Path
    url: str
    id: str
    frame: np.ndarray  #: frame 3
    cache: Path  #: the folder of other homes

    @property
    def digest(self) -> str:
        import hashlib

        return hashlib.sha256(self.frame.tobytes()).hexdigest()


@pytest.fixture
def shared(
    tmp_path: Path,
    own_database: str,
    seaweedfs: SeaweedServer,
    s3_proxy: HttpProxy,
    monkeypatch: pytest.MonkeyPatch,
) -> Shared:
    pytest.importorskip("obstore")
    for name, value in seaweedfs.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other-host"))
    monkeypatch.delenv("VFSD_HOME", raising=False)
    path = tmp_path / "first"
    with Store.create(path, catalog_url=own_database) as store:
        store.ingest(FOLDER / "traffic.mp4", NAME)
        frame = store[NAME].read(frames=[3]).data
        store[NAME].labels.add([Detection(3, "car", (10, 20, 50, 60))], source="test")
        store_id = store.parts.directory.id
        use_bucket(store.parts, f"s3://videos/{store_id}", seaweedfs.options(s3_proxy.port))
    with Store.open(path) as store:
        push(store.parts)
    return Shared(path, own_database, store_id, frame, tmp_path / "other-host" / "vfsd")


def _homes(shared: Shared) -> list[str]:
    with Store.open(shared.path) as store:
        return [one.home.place for one in list_homes(store.parts)]


def _python(program: str, *arguments: str, **options: Any) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, **options)


def _result(process: subprocess.Popen[bytes], given: bytes | None = None) -> Any:
    out, _ = process.communicate(given, timeout=_SECONDS)
    assert process.returncode == 0
    return json.loads(out)


def test_processes_of_a_host_share_one_home(shared: Shared) -> None:
    # One of them is killed while it joins, at some moment.
    killed = _python(_READ, shared.url, stderr=subprocess.DEVNULL)
    running = [_python(_READ, shared.url) for _ in range(_PROCESSES)]
    killed.kill()
    killed.communicate()
    home = shared.cache / shared.id
    assert [_result(one) for one in running] == [[shared.digest, str(home)]] * _PROCESSES
    assert _homes(shared) == [str(shared.path), str(home)]
    assert running_process(home / "cache" / "fetch.lock") is not None
    assert [one.name for one in shared.cache.iterdir()] == [shared.id]


def test_home_of_the_environment(shared: Shared, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VFSD_HOME", str(shared.path.with_name("mine")))
    for _ in range(2):
        with Store.open(shared.url, read_only=True) as store:
            assert store.path == shared.path.with_name("mine")
    monkeypatch.setenv("VFSD_HOME", str(shared.path))
    with Store.open(shared.url) as store:
        assert store.path == shared.path
    assert len(_homes(shared)) == 2
    # A home that was deleted by hand is replaced, also in the catalog.
    shutil.rmtree(shared.path.with_name("mine"))
    monkeypatch.setenv("VFSD_HOME", str(shared.path.with_name("mine")))
    Store.open(shared.url).close()
    assert len(_homes(shared)) == 2
    Store.create(shared.path.with_name("another")).close()
    monkeypatch.setenv("VFSD_HOME", str(shared.path.with_name("another")))
    with pytest.raises(UsageError, match="home of another store"):
        Store.open(shared.url)


def test_home_directory_that_hosts_share(shared: Shared) -> None:
    with Store.open(shared.url) as store:
        first = store.path
    engine = sa.create_engine(shared.url)
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "UPDATE homes SET machine = 'other', host = 'other', directory = '1:1', "
            f"place = '/elsewhere' WHERE place = '{first}'"
        )
    engine.dispose()
    with Store.open(shared.url) as store:
        assert store.path.name.startswith(f"{shared.id}-")
        np.testing.assert_array_equal(store[NAME].read(frames=[3]).data, shared.frame)


def test_pickles_are_opened_by_the_url(shared: Shared) -> None:
    with Store.open(shared.path) as store:
        video = store[NAME]
        made = pickle.dumps((store, video, video.scan(span=(0, 1))))
        count = sum(1 for _ in video.scan(span=(0, 1)).crops())
        assert count == 1
    assert _result(_python(_UNPICKLE, stdin=subprocess.PIPE), made)[1] == str(shared.path)
    shutil.move(shared.path, shared.path.with_name("away"))
    seen = _result(_python(_UNPICKLE, stdin=subprocess.PIPE), made)
    assert seen == [shared.digest, str(shared.cache / shared.id), count]
    # Another store in that place is not taken for it.
    Store.create(shared.path).close()
    assert _result(_python(_UNPICKLE, stdin=subprocess.PIPE), made) == seen


def test_passwords_stay_where_they_are(shared: Shared, tmp_path: Path) -> None:
    secret = shared.url.replace("vfsd@", "vfsd:hidden@")
    with pytest.raises(UsageError, match="must not have a password") as caught:
        Store.open(secret)
    assert "hidden" not in str(caught.value)
    assert not shared.cache.exists()
    marker = shared.path / "vfsd-store.json"
    marker.write_text(marker.read_text().replace("vfsd@", "vfsd:hidden@"))
    with Store.open(shared.path) as store:
        made = pickle.dumps((store, store[NAME], store[NAME].scan(span=(0, 1))))
    assert b"hidden" not in made
    shutil.move(shared.path, tmp_path / "away")
    assert _result(_python(_UNPICKLE, stdin=subprocess.PIPE), made)[0] == shared.digest
    for file in shared.cache.rglob("*"):
        assert not file.is_file() or b"hidden" not in file.read_bytes()


def test_stores_that_have_no_url(tmp_path: Path, own_database: str) -> None:
    with pytest.raises(UsageError, match="PostgreSQL"):
        Store.open(f"sqlite:///{tmp_path}/catalog.sqlite3")
    with pytest.raises(NoStoreError):
        Store.open(own_database)
    Store.create(tmp_path / "store", catalog_url=own_database).close()
    with pytest.raises(UsageError, match="without a bucket"):
        Store.open(own_database)


def test_commands_take_the_url(shared: Shared, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_command("-s", shared.url, "ls").out == "cam/\n"
    monkeypatch.setenv("VFSD_STORE", shared.url)
    assert run_command("ls", "cam").out == "traffic.mp4\n"
    assert os.path.isdir(shared.cache / shared.id)


def test_worker_without_the_directory(shared: Shared) -> None:
    with Store.open(shared.path) as store:
        store[NAME].verify()
        address = store.tools.address
        order = store.order("detect", detector="motion", unit_seconds=100)
        (unit,) = order.units()
    shutil.move(shared.path, shared.path.with_name("away"))
    assert perform_at(address, unit.to_json())["outcome"] == "made"
    assert perform_at(shared.url, unit.to_json())["outcome"] == "skipped"


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_second_epoch_of_a_loader_fetches_nothing(
    shared: Shared, s3_proxy: HttpProxy, method: str
) -> None:
    torch_data = pytest.importorskip("torch.utils.data")
    from vfsd.torch import ClipDataset

    with ClipDataset(shared.url, frames=4, per_video=8, starts="uniform", size=64) as clips:
        expected = [clips[number]["video"] for number in range(len(clips))]
        shutil.rmtree(shared.cache / shared.id / "cache" / "o")
        s3_proxy.reset()
        loader = torch_data.DataLoader(
            clips,
            batch_size=2,
            num_workers=2,
            multiprocessing_context=method,
            persistent_workers=True,
        )
        fetched = []
        for _ in range(2):
            seen = [video for batch in loader for video in batch["video"]]
            assert all((one == other).all() for one, other in zip(seen, expected, strict=True))
            fetched.append(s3_proxy.counts.body_bytes)
    assert fetched[0] > 0
    assert fetched[1] == fetched[0]


@pytest.mark.slow
def test_ray_data_on_other_hosts(shared: Shared) -> None:
    pytest.importorskip("ray")
    pytest.importorskip("pandas")
    from vfsd.ray import VfsdSource

    with Store.open(shared.path) as store:
        frames = store[NAME].read(frames=range(0, 120, 7), size=(80, 60))
        source = VfsdSource(store, "cam/*", every=7, size=(80, 60))
    shutil.move(shared.path, shared.path.with_name("away"))
    with running_ray(2) as ray:
        rows = ray.data.read_datasource(source, override_num_blocks=3).take_all()
        by_url = ray.data.read_datasource(VfsdSource(shared.url, fps=1, region=(0, 0, 32, 32)))
        assert by_url.count() == 4
        assert by_url.take(1)[0]["data"].shape == (32, 32, 3)
    rows.sort(key=lambda row: row["frame"])
    assert [row["frame"] for row in rows] == frames.index.tolist()
    assert [row["pts"] for row in rows] == frames.pts.tolist()
    np.testing.assert_array_equal(np.stack([row["data"] for row in rows]), frames.data)
    assert {row["name"] for row in rows} == {NAME}
    assert (shared.cache / shared.id).exists()
