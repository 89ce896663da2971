"""Orders of ingest, compress, replace and tune: the same data, however often units run."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from sample_videos import FOLDER
from tests.support.remembered_reads import region_read, remember
from tests.support.replaceable_clips import rich_clip
from tests.support.seaweedfs import SeaweedServer
from tests.support.work_orders import require_sound
from vfsd.api.store import Store
from vfsd.derive.tile_encoder import TileSettings
from vfsd.errors import UsageError
from vfsd.maintenance.remote_backup import back_up_to_bucket, check_backup
from vfsd.tiling import Rect
from vfsd.work import Order, Unit, perform
from vfsd.work.plan import ingest_units, proposals_from_json


def at_once(store: Store, unit: Unit) -> list[str]:
    """Perform a unit in two stores of the same directory at the same time."""
    with (
        Store.open(store.path) as first,
        Store.open(store.path) as second,
        ThreadPoolExecutor(2) as executor,
    ):
        both = executor.map(partial(perform, unit=unit), (first, second))
        return sorted(done.outcome for done in both)


def outcomes(order: Order, on: str = "") -> dict[str, int]:
    return dict((order.run(on) if on else order.run_part()).counts)


# ----------------------------------------------------------------------------------------- ingest


@pytest.fixture
def footage(tmp_path: Path) -> Path:
    folder = tmp_path / "footage"
    (folder / "day").mkdir(parents=True)
    for name, clip in (("one.mp4", "traffic.mp4"), ("day/two.mp4", "portrait.mp4")):
        shutil.copy2(FOLDER / clip, folder / name)
    return folder


def test_ingest(store: Store, footage: Path) -> None:
    (footage / "notes.txt").write_text("not a video")
    order = store.order("ingest", str(footage), to="cam1", tags=["new"])
    assert outcomes(order, "local:2") == {"failed": 1, "made": 2}
    names = {"cam1/footage/one.mp4", "cam1/footage/day/two.mp4"}
    assert {one.name for one in store.catalog.find(tags={"new"})} == names
    for name in names:
        assert store.node(name).mtime_ns == (footage / name[13:]).stat().st_mtime_ns
    ((_, row),) = order.state().failures.items()
    assert (row.exit_code, "notes.txt" in (row.error or "")) == (5, True)
    skipping = store.order("ingest", str(footage), to="cam1", skip_refused=True)
    assert outcomes(skipping) == {"skipped": 3}
    require_sound(store)


def test_ingest_of_a_taken_name(store: Store, footage: Path) -> None:
    (unit,) = ingest_units([(str(footage / "one.mp4"), "b.mp4", 0)], {})
    before = store["b.mp4"].info
    done = perform(store, unit)
    assert (done.outcome, done.exit_code) == ("taken", 4)
    assert store["b.mp4"].info == before
    # The same bytes with another time are the same video.
    (footage / "one.mp4").touch()
    (unit,) = ingest_units([(str(footage / "one.mp4"), "a.mp4", 0)], {})
    assert perform(store, unit).outcome == "skipped"
    require_sound(store)


@pytest.mark.parametrize("catalog", ["sqlite", "postgresql"])
def test_ingest_twice_at_once(
    make_store: Callable[..., Store], footage: Path, catalog: str
) -> None:
    store = make_store(catalog)
    (unit,) = ingest_units([(str(footage / "one.mp4"), "new/one.mp4", 0)], {"verify": True})
    assert at_once(store, unit) in (["made", "skipped"], ["skipped", "skipped"])
    assert store["new/one.mp4"].original.verified
    assert len(list(store.find())) == 3
    require_sound(store)


def test_sources_that_workers_cannot_read(store: Store, tmp_path: Path) -> None:
    (unit,) = ingest_units([(str(tmp_path / "gone.mp4"), "x.mp4", 0)], {})
    assert "storage that all workers share" in (perform(store, unit).error or "")
    for wrong in ("ftp://host/a.mp4", "https://me:secret@host/a.mp4", "s3://b/a.mp4?X-Signature=1"):
        with pytest.raises(UsageError, match="URL"):
            store.order("ingest", wrong)


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """An HTTP server of the files of a folder."""

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Stay silent."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_ingest_from_a_web_server(store: Store, footage: Path) -> None:
    with serving(footage) as url:
        order = store.order("ingest", [f"{url}/day/two.mp4", f"{url}/gone.mp4"], to="web")
        assert outcomes(order, "local:1") == {"failed": 1, "made": 1}
        assert "404" in str(order.state().failures)
        again = store.order("ingest", f"{url}/day/two.mp4", to="web")
        assert outcomes(again) == {"skipped": 1}
    found = store["web/two.mp4"]
    assert found.info.digest == store["b.mp4"].info.digest
    whole_seconds = (footage / "day/two.mp4").stat().st_mtime_ns // 10**9
    assert store.node("web/two.mp4").mtime_ns == whole_seconds * 10**9
    require_sound(store)


def test_ingest_from_a_bucket(
    store: Store, footage: Path, seaweedfs: SeaweedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("obstore")
    options = seaweedfs.options()
    for name, value in {**seaweedfs.environment, "AWS_REGION": str(options["region"])}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", str(options["endpoint"]))
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    # In a process of its own, as this one forks.
    upload = (
        "import obstore.store, sys\n"
        "bucket = obstore.store.S3Store(sys.argv[1])\n"
        "obstore.put(bucket, 'raw/two.mp4', open(sys.argv[2], 'rb').read())\n"
    )
    source = str(footage / "day/two.mp4")
    subprocess.run([sys.executable, "-c", upload, seaweedfs.bucket, source], check=True)
    urls = [f"s3://{seaweedfs.bucket}/raw/{name}.mp4" for name in ("two", "gone")]
    order = store.order("ingest", urls)
    assert outcomes(order, "local:1") == {"failed": 1, "made": 1}, order.results()
    assert store["two.mp4"].info.digest == store["b.mp4"].info.digest
    require_sound(store)


def test_backup(store: Store, seaweedfs: SeaweedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("obstore")
    for name, value in seaweedfs.environment.items():
        monkeypatch.setenv(name, value)
    url, options = f"s3://{seaweedfs.bucket}/backups-of-orders", seaweedfs.options()
    order = store.order("backup", to=url, options=options)
    assert at_once(store, order.units()[0]) in (["made", "skipped"], ["made", "made"])
    state = order.run("local:1")
    assert set(state.counts) <= {"made", "skipped"}
    # Only the catalog and the manifest are left to do.
    done = back_up_to_bucket(store.parts, url, options)
    assert (done.copied, done.damaged, done.videos) == (0, (), 2)
    report = check_backup(url, options)
    assert (report.damaged, report.spoiled) == ((), ())
    pairs = [f"{name}={str(value).lower()}" for name, value in options.items()]
    words = [word for pair in pairs for word in ("--option", pair)]
    command = [sys.executable, "-m", "vfsd", "-s", str(store.path), "--json", "backup", url]
    found = subprocess.run([*command, *words, "--on", "local:1"], capture_output=True, check=True)
    assert json.loads(found.stdout)["videos"] == 2


# ----------------------------------------------------------- compression, replacement and tuning


def test_compress(store: Store) -> None:
    for video in store.find():
        video.budget.set("none")  # raw frames are far larger than the clip
        video.tiles.retile("uniform:1x2", settings=TileSettings("lossless", quality=0))
    order = store.order("compress", unit_seconds=1, level=3)
    unit = order.units()[0]
    assert at_once(store, unit) in (["made", "skipped"], ["made", "made"])
    state = order.run("local:2")
    assert set(state.counts) == {"made", "skipped"}
    assert 0 < state.bytes_written < state.bytes_read
    for video in store.find():
        cells = [cell for one in store.catalog.segments(video.info) for cell in one.cells]
        assert {cell.quality for cell in cells} == {3}
    assert store.order("compress", level=3).units() == []
    assert perform(store, unit).outcome == "skipped"
    require_sound(store)


def test_replace(store: Store, tmp_path: Path) -> None:
    video = store.ingest(rich_clip(tmp_path / "rich.mp4"))
    order = store.order("replace", "rich.mp4", psnr=34, codec="h264")
    assert outcomes(order) == {"failed": 1}
    assert "keeps the original" in str(order.state().failures)
    video.policy.set("original=replaceable,psnr=34")
    (unit,) = order.units()
    assert at_once(store, unit) == ["made", "skipped"]
    assert perform(store, unit).outcome == "skipped"
    assert store["rich.mp4"].info.size < video.info.size
    assert len(store["rich.mp4"].policy.log()) == 1
    # A replacement that saves nothing is skipped.
    later = store.order("replace", "rich.mp4", psnr=60, codec="h264")
    assert outcomes(later) == {"skipped": 1}
    require_sound(store)


def test_tune(store: Store, wide_clip: Path) -> None:
    video = store.ingest(wide_clip)
    remember(store, video, region_read(video, range(60), Rect(0, 0, 64, 64)), times=15)
    proposals = store.proposals()
    order = store.order("tune", unit_seconds=1)
    found = [
        one
        for unit in order.units()
        for one in proposals_from_json(video.info, unit.spec["proposals"])
    ]
    assert {one.plan.frames for one in found} == {one.plan.frames for one in proposals}
    assert [one.settings for one in found] == [one.settings for one in proposals]
    unit = order.units()[0]
    # Each of the two may make some of the proposals of the unit; none is made twice, see below.
    found_at_once = (["made", "skipped"], ["made", "outdated"], ["made", "made"])
    assert at_once(store, unit) in found_at_once
    assert set(outcomes(order, "local:2")) <= {"made", "skipped"}
    decisions = store.catalog.decisions(video.info)
    assert sorted(one.first_frame for one in decisions) == sorted(
        one.plan.frames.start for one in proposals
    )
    assert {one.reasons for one in decisions} == {one.reasons for one in proposals}
    assert store.proposals() == []
    require_sound(store)
