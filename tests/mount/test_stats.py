"""The counters of a mount, and the commands that show them."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sample_videos import FOLDER
from tests.cli.conftest import run_command
from tests.mount.conftest import Mounted
from tests.support.selection import one_in
from vfsd.mount.fs.mount_stats import MountStats

pytestmark = pytest.mark.mount

ROOT = Path(__file__).parents[2]


@contextmanager
def running(*words: str | Path) -> Iterator[subprocess.Popen[str]]:
    """Run an endless command during the block, and end it afterwards in any case."""
    with subprocess.Popen(
        [sys.executable, "-m", "vfsd", *words],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture
def busy(mounted: Mounted) -> Mounted:
    """A mount after a megabyte was written and read, and a missing name was looked up."""
    mounted.mount()
    (mounted.at / "a.bin").write_bytes(bytes(1 << 20))
    # Bypass the kernel's cache, which would not ask the mount.
    fd = os.open(mounted.at / "a.bin", os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    while os.read(fd, 1 << 17):
        pass
    os.close(fd)
    for number in range(5):
        assert not (mounted.at / f"missing-{number}").exists()
    return mounted


def test_request_counts(busy: Mounted) -> None:
    done = run_command("-s", busy.store, "stats", "--json").object
    mount = done["mount"]
    assert (done["videos"], mount["pid"]) == (0, busy.pid)
    asked = mount["operations"]
    assert asked["write"]["bytes"] == 1 << 20
    assert asked["read"]["bytes"] == 1 << 20
    assert sum(asked[name]["failed"] for name in ("getattr", "lookup") if name in asked) >= 5
    for one in asked.values():
        assert 0 < one["p50"] <= one["p99"]
        assert one["seconds"] <= one["count"] * one["p99"] * 100
    assert mount["memory"] > 1 << 20
    assert mount["descriptors"] > 3
    said = run_command("-s", busy.store, "stats").out
    assert "1.0 MiB" in said
    assert f"process {busy.pid}" in said
    text = os.getxattr(busy.at, "user.vfsd.stats").decode()
    assert MountStats.parse(text).pid == busy.pid
    assert "user.vfsd.stats" not in os.listxattr(busy.at)


def test_current_requests(busy: Mounted) -> None:
    with running("-s", busy.store, "top", "--every", "1", "--json") as top:
        assert top.stdout is not None
        quiet = top.stdout.readline()
        assert '"cpu"' in quiet
        (busy.at / "b.bin").write_bytes(b"x" * 5000)
        lines = [top.stdout.readline() for _ in range(2)]
        assert any('"write": {"count": ' in line and '"bytes": 5000' in line for line in lines)
        busy.unmount()
        assert top.wait(60) == 0
    assert run_command("-s", busy.store, "top").code == 3
    assert run_command("-s", busy.store, "stats", "--json").object["mount"] is None


def test_no_flush_for_cached_view(mounted: Mounted) -> None:
    """The kernel sends a flush only while the mount might still be rendering the view."""
    mounted.mount()
    shutil.copyfile(FOLDER / "traffic.mp4", mounted.at / "a.mp4")
    assert os.getxattr(mounted.at / "a.mp4", "user.vfsd.state") == b"video"
    view = mounted.at / "a.mp4@" / "size=128x96.mp4"
    flushed, released = asked(mounted, "flush"), asked(mounted, "release")
    first = view.read_bytes()
    assert asked(mounted, "flush") == flushed + 1
    mounted.wait_for(lambda: asked(mounted, "release") > released, "it is not closed")
    opened = asked(mounted, "open")
    assert view.read_bytes() == first
    assert asked(mounted, "open") == opened + 1
    assert asked(mounted, "flush") == flushed + 1


def asked(mounted: Mounted, operation: str) -> int:
    found = mounted.standing.operations.get(operation)
    return 0 if found is None else found.count


def test_dashboard_names_the_metrics(busy: Mounted) -> None:
    """Its queries name metrics and labels that exist, and all of the metrics are shown."""
    parser = pytest.importorskip("prometheus_client.parser")
    shutil.copyfile(FOLDER / "traffic.mp4", busy.at / "shown.mp4")
    (busy.at / "shown.mp4@" / "size=128x96.mp4").read_bytes()  # starts the process that renders
    text = run_command("-s", busy.store, "metrics").out
    labels: dict[str, set[str]] = {}
    for family in parser.text_string_to_metric_families(text):
        for sample in family.samples:
            labels.setdefault(sample.name, set()).update({*sample.labels, "instance"})
    board = json.loads((ROOT / "scripts" / "grafana-dashboard.json").read_text())
    queries = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    shown: set[str] = set()
    for query in queries:
        (name,) = set(re.findall(r"vfsd_\w+", query))
        assert name in labels, query
        used = set(re.findall(r"(\w+)=~?\"", query))
        for listed in re.findall(r"by \(([^)]*)\)", query):
            used |= set(listed.split(", "))
        assert used <= labels[name], query
        shown.add(name)
    kinds = ("_count", "_bucket", "_sum", "_created")
    families = {re.sub("|".join(f"{kind}$" for kind in kinds), "", one) for one in labels}
    assert families <= {re.sub("_(count|bucket)$", "", one) for one in shown}
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


def test_metrics(busy: Mounted) -> None:
    parser = pytest.importorskip("prometheus_client.parser")
    text = run_command("-s", busy.store, "metrics").out
    families = {one.name: one for one in parser.text_string_to_metric_families(text)}
    assert families["vfsd_mounted"].samples[0].value == 1
    moved = {s.labels["operation"]: s.value for s in families["vfsd_operation_bytes"].samples}
    assert moved["write"] == 1 << 20
    counts = {
        s.labels["operation"]: s.value
        for s in families["vfsd_operation_seconds"].samples
        if s.name.endswith("_count")
    }
    assert counts["read"] >= 1
    busy.unmount()
    assert "vfsd_mounted 0.0" in run_command("-s", busy.store, "metrics").out


@pytest.mark.parametrize("host", one_in(2, ["127.0.0.1", "[::1]"]))
def test_metrics_over_http(busy: Mounted, host: str) -> None:
    pytest.importorskip("prometheus_client")
    with running("-s", busy.store, "metrics", "--listen", f"{host}:0") as serving:
        assert serving.stderr is not None
        address = serving.stderr.readline().split()[-1]
        first = urllib.request.urlopen(address, timeout=60).read()
        (busy.at / "b.bin").write_bytes((FOLDER / "traffic.mp4").read_bytes())
        time.sleep(0.1)
        assert b"vfsd_mounted 1.0" in first
        assert urllib.request.urlopen(address, timeout=60).read() != first
        serving.send_signal(signal.SIGTERM)
        assert serving.wait(60) == 0
    assert address.startswith(f"http://{host}:")


def test_end_of_metrics_server(busy: Mounted) -> None:
    pytest.importorskip("prometheus_client")
    with running("-s", busy.store, "metrics", "--json", "--listen", "127.0.0.1:0") as serving:
        assert serving.stdout is not None
        assert serving.stderr is not None
        assert json.loads(serving.stdout.readline())["address"]
        serving.send_signal(signal.SIGTERM)
        assert serving.wait(60) == 0
        assert serving.stdout.read() + serving.stderr.read() == ""
    assert run_command("-s", busy.store, "metrics", "--listen", "nonsense").code == 2
