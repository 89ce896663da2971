"""Writing to stores with a bucket: bytes first, on two homes, with failures at each step."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import sqlalchemy as sa

from tests.cli.conftest import run_command
from tests.support.http_proxy import HttpProxy
from tests.support.seaweedfs import SeaweedServer
from vfsd.api.store import Store
from vfsd.catalog.schema import garbage, uploads
from vfsd.storage.remote_objects import RemoteObjects

CLIP = Path(__file__).parents[2] / "sample_videos" / "traffic.mp4"
REGION = (64, 64, 160, 128)

pytestmark = pytest.mark.usefixtures("credentials")


@pytest.fixture
def credentials(seaweedfs: SeaweedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("obstore")
    for name, value in seaweedfs.environment.items():
        monkeypatch.setenv(name, value)


@dataclass
class Homes:
    """Two homes of a store on a server, with a bucket."""

    first: Path
    second: Path
    proxy: HttpProxy


def make_home(place: Path, catalog: str | None, options: dict[str, str | bool]) -> None:
    given = [
        f"--option={name}={str(value).lower() if isinstance(value, bool) else value}"
        for name, value in options.items()
    ]
    on = [] if catalog is None else ["--catalog", catalog]
    url = f"s3://videos/{place.parent.name}-{place.name}"
    assert run_command("init", place, *on, "--objects", url, *given).code == 0


@pytest.fixture
def homes(
    tmp_path: Path, own_database: str, s3_proxy: HttpProxy, seaweedfs: SeaweedServer
) -> Homes:
    first, second = tmp_path / "first", tmp_path / "second"
    make_home(first, own_database, seaweedfs.options(s3_proxy.port))
    assert run_command("join", second, "--catalog", own_database).code == 0
    s3_proxy.reset()
    return Homes(first, second, s3_proxy)


@pytest.fixture(params=["sqlite", "postgresql"])
def single(
    request: pytest.FixtureRequest, tmp_path: Path, s3_proxy: HttpProxy, seaweedfs: SeaweedServer
) -> Path:
    """A home with a bucket."""
    catalog = request.getfixturevalue("own_database") if request.param == "postgresql" else None
    make_home(tmp_path / "only", catalog, seaweedfs.options(s3_proxy.port))
    return tmp_path / "only"


def opened(place: Path) -> Store:
    """Open a store that sees changes of other homes at once."""
    return Store.open(place, staleness=0)


def require_complete(store: Store, *, garbage_files: int | None = 0) -> None:
    """Assert that each row has its bytes in the bucket, and that no others are there."""
    objects = store.parts.objects
    assert isinstance(objects, RemoteObjects)
    with store.catalog.connected() as connection:
        waste = {
            row.place
            for table in (uploads, garbage)
            for row in connection.execute(sa.select(table.c.place))
        }
    with store.catalog.reading() as seen:
        assert seen.objects.unplaced() == {}
        assert seen.objects.needed().keys() == seen.objects.sizes().keys()
        places = [seen.objects.place(key) for key in seen.objects.sizes()]
    there = {name: size for name, size, _ in objects.client.list() if "o/" in name}
    there = {name[name.index("o/") :]: size for name, size in there.items()}
    for found in places:
        assert found is not None
        assert there.pop(found[0]) == found[1]
    assert there.keys() <= waste
    if garbage_files is not None:
        assert len(waste) == garbage_files
    assert list(objects.all_keys()) == []
    assert objects.leftovers() == []


def pixels(store: Store, name: str) -> list[np.ndarray]:
    video = store[name]
    return [
        video.read(frames=[0, 11, len(video) - 1], psnr=math.inf).data,
        video.read(frames=[7, 20], region=REGION, psnr=20).data,
    ]


def test_what_one_home_makes_another_one_reads(homes: Homes) -> None:
    with opened(homes.first) as store, opened(homes.second) as other:
        for one, more, name in ((store, other, "a.mp4"), (other, store, "b.mp4")):
            video = one.ingest(CLIP, name)
            np.testing.assert_equal(pixels(more, name), pixels(one, name))
            video.tiles.retile("uniform:2x2", span=(0, 2))
            assert len(more.catalog.segments(more[name].info)) > 0
            np.testing.assert_equal(pixels(more, name), pixels(one, name))
        require_complete(store)


def test_reads_of_own_bytes_need_no_request(single: Path, s3_proxy: HttpProxy) -> None:
    with Store.open(single) as store:
        store.ingest(CLIP, "a.mp4")
        require_complete(store)
        s3_proxy.reset()
        assert store["a.mp4"].read(frames=[3]).data.any()
        assert sum(s3_proxy.counts.requests.values()) == 0
        pictures = np.arange(30 * 64 * 96 * 3, dtype=np.uint8).reshape(30, 64, 96, 3)
        made = store.write("made.mp4", pictures, fps=25)
        made.renditions.make((48, 32))
        require_complete(store)
    assert run_command("--store", single, "push", "--json").object["objects"] == 0
