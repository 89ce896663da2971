"""Servers over other stores: a catalog on PostgreSQL, objects in a bucket only, a mounted store."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from sample_videos import FOLDER
from tests.mount.conftest import Mounted
from tests.support.http_proxy import HttpProxy
from tests.support.seaweedfs import SeaweedServer
from tests.support.stores import new_store
from tests.support.web_client import RunningServer, serving
from vfsd.api.store import Store
from vfsd.disk.store_config import StoreSettings
from vfsd.maintenance.push import push, use_bucket

CLIP = FOLDER / "traffic.mp4"


def check(running: RunningServer) -> None:
    """An original, a range of it, a view and a frame have the right bytes."""
    data, client = CLIP.read_bytes(), running.client()
    assert client.get("/v/traffic.mp4").body == data
    assert client.get("/v/traffic.mp4", range="bytes=-500").body == data[-500:]
    with running.store["traffic.mp4"].views.open("t=0.5-1.mp4") as file:
        assert client.get("/v/traffic.mp4@/t=0.5-1.mp4").body == file.read()
    assert client.get("/v/traffic.mp4@/frames/7.jpg?w=160").headers["x-frame-number"] == "7"


@pytest.mark.thorough
def test_catalog_on_a_server(own_database: str, tmp_path: Path) -> None:
    with Store.create(tmp_path / "store", catalog_url=own_database) as store:
        store.ingest(CLIP)
        with serving(store, tmp_path, write=True) as running:
            check(running)
            done = running.client().send("PUT", "/v/new/b.mp4", CLIP.read_bytes())
            assert done.status == 201
            assert running.client().get("/v/new/b.mp4").body == CLIP.read_bytes()


@pytest.mark.thorough
def test_objects_in_a_bucket(
    tmp_path: Path,
    seaweedfs: SeaweedServer,
    s3_proxy: HttpProxy,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("obstore")
    for name, value in seaweedfs.environment.items():
        monkeypatch.setenv(name, value)
    with new_store(tmp_path / "store") as store:
        store.ingest(CLIP)
        bucket = f"s3://{seaweedfs.bucket}/{store.parts.directory.id}"
        use_bucket(store.parts, bucket, seaweedfs.options(s3_proxy.port))
    with Store.open(tmp_path / "store") as store:
        assert push(store.parts).damaged == ()
    shutil.rmtree(tmp_path / "store" / "objects")
    (tmp_path / "store" / "objects" / "tmp").mkdir(parents=True)
    with Store.open(tmp_path / "store") as store, serving(store) as running:
        check(running)


@pytest.mark.thorough
@pytest.mark.mount
def test_mounted_store(tmp_path: Path, mountable: None) -> None:
    mounted = Mounted.__new__(Mounted)
    mounted.store, mounted.at, mounted.log = tmp_path / "store", tmp_path / "mnt", tmp_path / "log"
    mounted.at.mkdir()
    with new_store(mounted.store) as store:
        store.ingest(CLIP)
        StoreSettings(verify=False, tune=False, compress=False).save(store.parts.directory.settings)
        mounted.mount()
        try:
            with serving(store, tmp_path, write=True) as running:
                check(running)
                client = running.client()
                assert client.send("PUT", "/v/b.mp4", CLIP.read_bytes()).status == 201
                assert (mounted.at / "b.mp4").read_bytes() == CLIP.read_bytes()
                (mounted.at / "b.mp4").unlink()
                assert client.get("/v/b.mp4").status == 404
                view = client.get("/v/traffic.mp4@/size=160x120.mp4").body
                assert (mounted.at / "traffic.mp4@" / "size=160x120.mp4").read_bytes() == view
        finally:
            mounted.unmount()
