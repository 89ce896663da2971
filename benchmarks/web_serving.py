"""Many readers of byte ranges by HTTP: vfsd serve, and servers of plain files over a mount.

Each reader keeps asking for 256 KiB at a random place of a random video, on a connection of its
own, and compares the bytes with the file.  The time to the first byte of the body counts.  nginx
and Python's http.server read the mount of the same store; http.server sends whole files, so its
readers take one range of the start and close.  Bound: the slowest hundredth of first bytes of vfsd
serve within 150 ms, which needs an idle machine.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import arguments, finish, folder_option, footage, table
from vfsd.api.store import Store
from vfsd.core.process_control import cpu_seconds, resident_bytes
from vfsd.errors import EnvironmentMissingError
from vfsd.mount import control

_BYTES = 256 << 10
_MOST_MILLISECONDS = 150.0
_START_SECONDS = 120.0


@dataclass(frozen=True)
class Server:
    """A server of the files below a path."""

    name: str
    port: int
    pid: int
    prefix: str = "/"
    token: str | None = None
    has_ranges: bool = True


def main() -> None:
    parser = arguments(__doc__, runs=20)
    parser.add_argument("--readers", type=int, default=32, help="at a time")
    parser.add_argument("--videos", type=int, default=8, help="of the footage")
    folder_option(parser)
    options = parser.parse_args()
    left_out: list[str] = []
    with tempfile.TemporaryDirectory(dir=options.folder) as name, ExitStack() as stack:
        work = Path(name)
        files = _store(work / "store", options.videos)
        figures: dict[str, Any] = {}
        servers = [stack.enter_context(_vfsd(work))]
        try:
            control.mount(work / "store", _made(work / "mnt"), ())
        except EnvironmentMissingError as error:
            left_out.append(f"servers over a mount ({error})")
        else:
            stack.callback(control.unmount, work / "mnt")
            servers.append(stack.enter_context(_http_server(work)))
            if shutil.which("nginx"):
                servers.append(stack.enter_context(_nginx(work)))
            else:
                left_out.append("nginx")
        for server in servers:
            figures[server.name] = _measured(server, files, options.readers, options.runs)
    print(
        table(
            ["server", "p50 ms", "p99 ms", "MiB/s", "CPU ms a request", "MiB more"],
            [
                [name, *(found[key] for key in ("p50", "p99", "rate", "cpu", "memory"))]
                for name, found in figures.items()
            ],
        )
    )
    is_met = figures["vfsd serve"]["p99"] <= _MOST_MILLISECONDS
    finish(options, "web_serving", figures, passed=is_met, left_out=left_out)


def _store(path: Path, count: int) -> Mapping[str, Path]:
    """Make a store of `count` videos; return their files by name."""
    found = sorted(one for one in footage().rglob("*.mp4") if one.stat().st_size > 2 * _BYTES)
    if not found:
        found = sorted(footage().rglob("*.mp4"))
    files = {f"{number}.mp4": one for number, one in enumerate(found[:count])}
    with Store.create(path) as store:
        for name, file in files.items():
            store.ingest(file, name)
    return files


def _made(path: Path) -> Path:
    path.mkdir()
    return path


@contextmanager
def _running(words: list[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(words, text=True, **options)
    try:
        yield process
    finally:
        process.terminate()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


@contextmanager
def _vfsd(work: Path) -> Iterator[Server]:
    words = [sys.executable, "-m", "vfsd", "serve", str(work / "store"), "--port", "0", "-q"]
    environment = os.environ | {"XDG_STATE_HOME": str(work / "state")}
    with _running([*words, "--json"], stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        shown = json.loads(process.stdout.readline())
        token = shown["login"].partition("=")[2]
        port = int(shown["url"].rstrip("/").rpartition(":")[2])
        yield Server("vfsd serve", port, process.pid, "/v/", token)


@contextmanager
def _http_server(work: Path) -> Iterator[Server]:
    port = _free_port()
    words = [sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1"]
    with _running([*words, "--directory", str(work / "mnt")], stderr=subprocess.DEVNULL) as process:
        _await(port)
        yield Server("http.server", port, process.pid, has_ranges=False)


@contextmanager
def _nginx(work: Path) -> Iterator[Server]:
    port = _free_port()
    (work / "nginx.conf").write_text(
        f"daemon off; master_process off; pid {work}/nginx.pid; error_log {work}/nginx.log;\n"
        f"user {'root' if os.geteuid() == 0 else 'nobody'}; events {{ worker_connections 512; }}\n"
        f"http {{ access_log off; client_body_temp_path {work}/body; proxy_temp_path {work}/p;\n"
        f"fastcgi_temp_path {work}/f; uwsgi_temp_path {work}/u; scgi_temp_path {work}/s;\n"
        f"server {{ listen 127.0.0.1:{port}; root {work}/mnt; }} }}\n"
    )
    words = ["nginx", "-c", str(work / "nginx.conf"), "-p", str(work)]
    with _running(words, stderr=subprocess.DEVNULL) as process:
        _await(port)
        yield Server("nginx", port, process.pid)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def _await(port: int) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def _measured(
    server: Server, files: Mapping[str, Path], readers: int, runs: int
) -> dict[str, float]:
    """Read with `readers` threads, `runs` times each."""
    contents = {name: file.read_bytes() for name, file in files.items()}
    _read(server, contents, 0, 2)
    memory, cpu = resident_bytes(server.pid), cpu_seconds(server.pid)
    began = time.perf_counter()
    with ThreadPoolExecutor(readers) as threads:
        work: list[Callable[[], list[tuple[float, int]]]] = [
            lambda number=number: _read(server, contents, number, runs)  # type: ignore[misc]
            for number in range(readers)
        ]
        done = [one for found in threads.map(lambda call: call(), work) for one in found]
    seconds = time.perf_counter() - began
    times = np.array([one for one, _ in done]) * 1e3
    return {
        "p50": float(np.percentile(times, 50)),
        "p99": float(np.percentile(times, 99)),
        "rate": sum(size for _, size in done) / seconds / (1 << 20),
        "cpu": (cpu_seconds(server.pid) - cpu) / len(done) * 1e3,
        "memory": (resident_bytes(server.pid) - memory) / (1 << 20),
        "requests": float(len(done)),
    }


def _read(
    server: Server, contents: Mapping[str, bytes], seed: int, runs: int
) -> list[tuple[float, int]]:
    """(seconds to the first byte, bytes) of each request of one reader."""
    chosen, found = random.Random(seed), []
    for _ in range(runs):
        name, data = chosen.choice(list(contents.items()))
        begin = chosen.randrange(max(1, len(data) - _BYTES)) if server.has_ranges else 0
        expected = data[begin : begin + _BYTES]
        headers = {"Range": f"bytes={begin}-{begin + len(expected) - 1}"}
        if server.token is not None:
            headers["Authorization"] = f"Bearer {server.token}"
        with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)) as line:
            line.connect()
            began = time.perf_counter()
            line.request("GET", f"{server.prefix}{name}", headers=headers)
            answer = line.getresponse()
            first = answer.read(1)
            seconds = time.perf_counter() - began
            got = first + answer.read(len(expected) - 1)
        assert answer.status in (200, 206), (server.name, answer.status)
        assert got == expected, (server.name, name, begin)
        found.append((seconds, len(got)))
    return found


if __name__ == "__main__":
    main()
