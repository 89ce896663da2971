"""The page in Chromium: how long until a picture, a seek, a step, a list or a search is shown.

``vfsd serve`` runs in a process of its own, on loopback, over stores that are made here: 30 seconds
of 1080p H.264 with a key frame each 2 seconds, a library of many videos, a camera with a file for
each minute of a day, an hour in one file, and boxes in one video. Each figure of the page is taken
inside the browser, by its own clock, and is the median of ``--runs``. A seek or a step counts until
the page says that the exact frame is shown; the number in the picture is then read and compared.

The bounds are for a machine without other work; the program ends with 1 if one is missed. Where
other programs run, the CPU time of the server, its requests and its bytes still say what a page
costs.
"""

from __future__ import annotations

import http.client
import os
import re
import statistics
import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.common import arguments, finish, table
from sample_videos import Encoding, Scene, write
from tests.support.web_browser import CHROMIUM, FLAGS, WatchedPage
from tests.support.web_server import WebServer
from vfsd.api.store import Store
from vfsd.core.detections import DetectionColumns

if TYPE_CHECKING:
    from playwright.sync_api import Browser

_FILM = "film.mp4"
_DAY = "2026-05-01"
_BROWSER_MS = 1000.0
_MARK_FIRST_PICTURE = """
new MutationObserver(() => {
    for (const video of document.querySelectorAll("video")) {
        if (video.marked) continue;
        video.marked = true;
        video.requestVideoFrameCallback(() => { window.firstPicture ??= performance.now(); });
    }
    if (window.waitedFor && document.querySelector(window.waitedFor)) {
        window.firstElement ??= performance.now();
    }
}).observe(document, {childList: true, subtree: true});
"""
_UNTIL_EXACT = """async ([key, frame]) => {
    const field = document.querySelector("[data-test=frame]");
    const start = performance.now();
    if (key === null) {
        field.focus();
        field.value = String(frame);
        field.dispatchEvent(new Event("input", {bubbles: true}));
        field.dispatchEvent(new KeyboardEvent("keydown", {key: "Enter", bubbles: true}));
    } else {
        document.body.dispatchEvent(new KeyboardEvent("keydown", {key, bubbles: true}));
    }
    const wanted = `[data-test=frame][data-frame="${frame}"][data-exact=true]`;
    while (!document.querySelector(wanted)) {
        if (performance.now() - start > 20000) throw new Error(`frame ${frame} is not shown`);
        await new Promise(requestAnimationFrame);
    }
    return performance.now() - start;
}"""


@dataclass(frozen=True)
class Measure:
    """One line of the result."""

    what: str
    unit: str
    value: float
    bound: float | None

    @property
    def is_missed(self) -> bool:
        return self.bound is not None and self.value > self.bound


def main() -> None:
    parser = arguments(__doc__, runs=15)
    parser.add_argument("--videos", type=int, default=1000, help="videos of the library")
    parser.add_argument("--minutes", type=int, default=1440, help="files of the camera's day")
    parser.add_argument("--boxes", type=int, default=10_000_000, help="boxes of the search")
    parser.add_argument("--readers", type=int, default=32, help="readers of ranges at a time")
    options = parser.parse_args()
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory(prefix="vfsd-web-page-") as name:
        folder = Path(name)
        store = folder / "store"
        _make_store(store, folder, options.videos, options.minutes, options.boxes)
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=list(FLAGS))
            server = WebServer(store, folder / "state")
            try:
                found = list(_measures(browser, server, options))
            finally:
                server.close()
                browser.close()
    rows = [
        (
            one.what,
            f"{one.value:.0f} {one.unit}",
            "" if one.bound is None else f"{one.bound:.0f} {one.unit}",
            "missed" if one.is_missed else "",
        )
        for one in found
    ]
    print(table(("what", "median", "bound", ""), rows))
    figures = {
        one.what: {"value": one.value, "unit": one.unit, "bound": one.bound} for one in found
    }
    finish(options, "web_page", figures, passed=not any(one.is_missed for one in found))


def _make_store(path: Path, folder: Path, videos: int, minutes: int, boxes: int) -> None:
    film = folder / _FILM
    scene = Scene(1920, 1080, frames=900, rate=Fraction(30), density=0.1, seed=1)
    write(scene, Encoding(gop=60, threads=os.cpu_count() or 1), film)
    minute = folder / "minute.mp4"
    write(Scene(640, 360, frames=250, rate=Fraction(25), seed=2), Encoding(gop=50), minute)
    hour = folder / "hour.mp4"
    command = ["ffmpeg", "-v", "error", "-stream_loop", "119", "-i", str(film), "-c", "copy"]
    subprocess.run([*command, str(hour)], check=True)
    with Store.create(path) as store:
        store.ingest(film, _FILM)
        store.ingest(hour, "hour.mp4", link=True)
        names = [f"library/{number // 50:03}/{number:05}.mp4" for number in range(videos)]
        names += [f"cam/{_DAY}/{at // 60:02}-{at % 60:02}-00.mp4" for at in range(minutes)]
        content = minute.read_bytes()
        for number, name in enumerate(names):
            # Other bytes for each: nothing that is kept by digest serves two of them.
            minute.write_bytes(content + struct.pack(">I4sI", 12, b"free", number))
            store.ingest(minute, name)
        store.set_captured("cam/**", "name:%Y-%m-%d/%H-%M-%S")
        _add_boxes(store, boxes)


def _add_boxes(store: Store, boxes: int) -> None:
    chance = np.random.default_rng(1)
    batch = 1_000_000
    for first in range(0, boxes, batch):
        count = min(batch, boxes - first)
        corner = chance.integers(0, 900, (count, 2))
        store[_FILM].labels.add(
            DetectionColumns.of(
                chance.integers(0, 900, count),
                np.array(["car", "person", "truck"])[chance.integers(0, 3, count)],
                np.hstack([corner, corner + chance.integers(20, 120, (count, 2))]),
            ),
            "generated",
        )


def _measures(browser: Browser, server: WebServer, options: Any) -> Iterator[Measure]:
    runs: int = options.runs
    yield Measure("server at rest", "MB", _resident(server.pid), 250)

    def opened(path: str, selector: str, mark: str) -> float:
        """Milliseconds from the navigation of a new page, with an empty cache, to a mark."""
        with _page(browser, server) as page:
            page.page.add_init_script(_MARK_FIRST_PICTURE + f"window.waitedFor = {selector!r};")
            page.page.goto("about:blank")
            page.open(path)
            page.wait_for(f"window.{mark} !== undefined")
            return float(page.page.evaluate(f"window.{mark}"))

    def median(measure: Callable[[], float]) -> float:
        measure()
        return statistics.median(measure() for _ in range(runs))

    library = partial(opened, "/#/?dir=library&deep=1", "[data-test=video-card]", "firstElement")
    yield Measure(f"library of {options.videos} videos", "ms", median(library), 300)
    yield from _costs("library", server, library)
    film = partial(opened, f"/#/v/{_FILM}", "video", "firstPicture")
    yield Measure("first picture of a video, cold", "ms", film(), None)
    yield Measure("first picture of a video", "ms", median(film), 250)
    yield from _costs("video page", server, film)
    yield from _seeks(browser, server, runs)
    yield Measure("exact still", "ms", median(lambda: _still(server)), 200)
    yield from _camera(server, options, median, opened)
    yield from _search(server, median)
    yield from _sprite(server)
    yield Measure(
        f"first byte of {options.readers} range readers, p99",
        "ms",
        _first_bytes(server, options.readers),
        150,
    )
    yield Measure("server after all", "MB", _resident(server.pid), 310)


@contextmanager
def _page(browser: Browser, server: WebServer) -> Iterator[WatchedPage]:
    page = WatchedPage(browser, server.origin, viewport={"width": 1280, "height": 800})
    try:
        page.open(f"/#token={server.token}")
        page.page.locator("[data-test=main]").wait_for()
        yield page
    finally:
        page.close()


def _seeks(browser: Browser, server: WebServer, runs: int) -> Iterator[Measure]:
    with _page(browser, server) as page:
        page.open(f"/#/v/{_FILM}")
        page.page.locator("[data-test=frame][data-exact=true]").wait_for()

        def until(key: str | None, frame: int) -> float:
            took = float(page.page.evaluate(_UNTIL_EXACT, [key, frame]))
            shown = page.number("[data-test=video]")
            assert shown == frame, f"{shown} is shown, not {frame}"
            return took

        chance = np.random.default_rng(2)
        near = chance.integers(1, 60, runs).tolist()
        far = chance.integers(60, 899, runs).tolist()
        inside = [until(None, int(frame)) for frame in near]
        outside = [until(None, int(frame)) for frame in far]
        until(None, 300)
        steps = [until(".", 301 + at) for at in range(runs)]
    yield Measure("seek inside the buffer", "ms", statistics.median(inside), 120)
    yield Measure("seek outside the buffer", "ms", statistics.median(outside), 300)
    yield Measure("step to the next frame", "ms", statistics.median(steps), 60)


def _still(server: WebServer) -> float:
    frame = int(np.random.default_rng(time.monotonic_ns()).integers(0, 900))
    return _milliseconds(lambda: server.get(f"/v/{_FILM}@/frames/{frame:06}.jpg"))


def _milliseconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * _BROWSER_MS


def _camera(
    server: WebServer,
    options: Any,
    median: Callable[[Callable[[], float]], float],
    opened: Callable[[str, str, str], float],
) -> Iterator[Measure]:
    span = f"from={_DAY}T00:00:00Z&to=2026-05-02T00:00:00Z"
    playlist = f"/api/1/cameras/cam/index.m3u8?{span}&can=h264"
    what = f"playlist of {options.minutes} files"
    yield Measure(f"{what}, made", "ms", _answer(server, playlist), None)
    yield Measure(what, "ms", median(partial(_answer, server, playlist)), 100)

    def restarted() -> float:
        server.kill()
        server.restart()
        server.get("/api/1/session")
        return _answer(server, playlist)

    yield Measure(
        f"{what}, after a restart", "ms", statistics.median(restarted() for _ in range(3)), 100
    )
    before = _cpu(server.pid)
    restarted_size = len(server.get(playlist))
    yield Measure(f"{what}, CPU", "ms", (_cpu(server.pid) - before) * 1000, None)
    yield Measure(f"{what}, size", "KiB", restarted_size / 1024, None)
    minute = options.minutes // 2
    at = f"{_DAY}T{minute // 60:02}:{minute % 60:02}:05Z"
    page = partial(opened, f"/#/camera/cam?at={at}", "video", "firstPicture")
    yield Measure("first picture of that day", "ms", median(page), 500)
    yield from _costs("camera page", server, page)


def _costs(what: str, server: WebServer, page: Callable[[], float]) -> Iterator[Measure]:
    """The cost of one more page for the server, which other programs do not change."""
    cpu, requests, size = _cpu(server.pid), *_traffic(server)
    page()
    after = _traffic(server)
    yield Measure(f"{what}, CPU", "ms", (_cpu(server.pid) - cpu) * 1000, None)
    yield Measure(f"{what}, requests", "", after[0] - requests, None)
    yield Measure(f"{what}, bytes", "KiB", (after[1] - size) / 1024, None)


def _traffic(server: WebServer) -> tuple[int, int]:
    """The requests that the server has logged, and their bytes."""
    found = re.findall(r" \d{3} (\d+) bytes ", "".join(server.log))
    return len(found), sum(map(int, found))


def _search(server: WebServer, median: Callable[[Callable[[], float]], float]) -> Iterator[Measure]:
    for what, path, bound in (
        ("counts of a search", "/api/1/detections?in=**&q=car&res=1", 200),
        ("24 crops of a search", "/api/1/crops?in=**&q=car&n=24&h=96", 400),
    ):
        yield Measure(what, "ms", median(partial(_answer, server, path)), bound)


def _answer(server: WebServer, path: str) -> float:
    return _milliseconds(lambda: server.get(path))


def _sprite(server: WebServer) -> Iterator[Measure]:
    before = _cpu(server.pid)
    sheets = server.json("/v/hour.mp4@/sprites.json?w=160")["sheets"]
    for address in sheets:
        server.get(address)
    yield Measure("sprites of an hour, CPU", "ms", (_cpu(server.pid) - before) * 1000, 3000)


def _first_bytes(server: WebServer, readers: int) -> float:
    """Milliseconds to the first byte of 10 random ranges of each reader, 99th percentile."""
    size = len(server.get(f"/v/{_FILM}"))
    waits: list[float] = []

    def read(seed: int) -> None:
        chance = np.random.default_rng(seed)
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        for _ in range(10):
            first = int(chance.integers(0, max(size - (1 << 20), 1)))
            start = time.perf_counter()
            connection.request(
                "GET",
                f"/v/{_FILM}",
                headers={
                    "Range": f"bytes={first}-{first + (1 << 20) - 1}",
                    "Authorization": f"Bearer {server.token}",
                },
            )
            answer = connection.getresponse()
            answer.read(1)
            waits.append((time.perf_counter() - start) * 1000)
            answer.read()
        connection.close()

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(readers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return float(np.percentile(waits, 99))


def _tree(pid: int) -> Sequence[int]:
    """The processes of a server: itself and its children."""
    found = [pid]
    for one in found:
        children = Path(f"/proc/{one}/task/{one}/children")
        if children.exists():
            found += [int(child) for child in children.read_text().split()]
    return found


def _cpu(pid: int) -> float:
    """CPU seconds of a server and its children so far."""
    total = 0
    for one in _tree(pid):
        words = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
        total += sum(int(word) for word in words[11:15])
    return total / os.sysconf("SC_CLK_TCK")


def _resident(pid: int) -> float:
    """Megabytes of the server itself."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("the server has ended")


if __name__ == "__main__":
    main()
