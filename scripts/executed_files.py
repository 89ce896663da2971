"""Print how many files of the project execute in typical operations, the first time and warm.

    .venv/bin/python scripts/executed_files.py [--list] [--json]

Each operation runs in a process of its own on a small generated store.  A file counts when one of
its functions is called; importing it does not count.  Encoders and decoders of other processes are
not counted.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
CLIP = ROOT / "sample_videos" / "av1.mp4"
REGION = (16, 16, 80, 80)
FOLDERS = ("vfsd", "catalog", "codecs", "tiling")


class Executed:
    """Collects the files of the project with functions that the block called."""

    def __init__(self) -> None:
        self._names: set[str] = set()

    def __enter__(self) -> Executed:
        threading.setprofile(self._note)
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        name = frame.f_code.co_filename
        if event == "call" and name not in self._names and not _is_importing(frame):
            self._names.add(name)

    def files(self) -> list[str]:
        """Relative to the project, sorted."""
        found = set()
        for name in self._names:
            path = Path(name).resolve()
            if path.is_relative_to(ROOT):
                inside = path.relative_to(ROOT)
                if inside.parts[0] in FOLDERS:
                    found.add(str(inside))
        return sorted(found)


def _is_importing(frame: FrameType | None) -> bool:
    """Whether a call is of a module being imported, directly or through others."""
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


def read_region(store: Any) -> None:
    store["a.mp4"].read(span=(0, 0.4), region=REGION)


def read_from_tiles(store: Any) -> None:
    store["tiled.mp4"].read(span=(0, 0.4), region=REGION, psnr=20)


def ingest(store: Any) -> None:
    store.ingest(CLIP, f"new{len(list(store))}.mp4")


def retile(store: Any) -> None:
    video = store["a.mp4"]
    video.tiles.retile("uniform:3x2" if store.catalog.segments(video.info) else "uniform:2x2")


def encoded_view(store: Any) -> None:
    from vfsd.views import Views

    views = Views(store.parts, store.tools)
    try:
        opened = views.open(store["a.mp4"].info.ino, "size=64x48.mp4")
        opened.readinto(memoryview(bytearray(64)), 4096)
        opened.close()
    finally:
        views.close()


OPERATIONS: dict[str, Callable[[Any], None]] = {
    "video.read(region)": read_region,
    "the same from tiles": read_from_tiles,
    "ingest": ingest,
    "retile": retile,
    "64 bytes of an encoded view": encoded_view,
}


def measure(name: str, store_path: Path) -> list[list[str]]:
    """The files of the first run, with the store just opened, and of the second."""
    from vfsd import Store

    with Store.open(store_path) as store:
        found = []
        for _ in range(2):
            with Executed() as executed:
                OPERATIONS[name](store)
            found.append(executed.files())
    return found


def _measure_to(name: str, path: Path, answer: Any) -> None:
    answer.send(measure(name, path))


def _make(path: Path) -> None:
    from vfsd import Store

    with Store.create(path) as store:
        store.ingest(CLIP, "a.mp4")
        store.ingest(CLIP, "tiled.mp4").tiles.retile("uniform:2x2")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--list", action="store_true", help="name the files of the first run")
    parser.add_argument("--json", action="store_true", help="print an object")
    options = parser.parse_args()
    spawn = multiprocessing.get_context("spawn")
    found: dict[str, list[list[str]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for number, name in enumerate(OPERATIONS):
            path = Path(folder) / str(number)
            _run(spawn.Process(target=_make, args=(path,)))
            ours, theirs = spawn.Pipe(duplex=False)
            _run(spawn.Process(target=_measure_to, args=(name, path, theirs)))
            if not ours.poll(0):
                raise SystemExit(f"{name} failed")
            found[name] = ours.recv()
    if options.json:
        print(json.dumps(found, indent=1))
        return
    print(f"{'':30}first  warm")
    for name, (first, warm) in found.items():
        print(f"{name:30}{len(first):5} {len(warm):5}")
        if options.list:
            print(*(f"    {one}" for one in first), sep="\n")


def _run(process: Any) -> None:
    process.start()
    process.join()


if __name__ == "__main__":
    main()
