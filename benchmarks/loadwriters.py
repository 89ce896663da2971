"""Writers into a mount, each a process with its own folder that verifies its files.

``python -m benchmarks.loadwriters MOUNT TRUTHS UNTIL SEED`` copies videos in, renames them over
each other, rewrites, and deletes, until CLOCK_MONOTONIC says UNTIL.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

from benchmarks.loadreaders import Seen
from benchmarks.loadtruth import Truth, digest_of, load

_PATIENCE = 10
_MOST = 4
"""Files that a writer has at a time."""


class Writer:
    def __init__(self, seen: Seen, folder: Path, truths: list[Truth], seed: int) -> None:
        self._seen = seen
        self._folder = folder
        self._truths = truths
        self._rng = random.Random(seed)
        self._there: dict[str, str] = {}  # digests by name
        folder.mkdir()

    def once(self) -> None:
        kinds = [self.copy, self.copy, self.rewrite, self.replace, self.look]
        work = self._rng.choice(kinds) if self._there else self.copy
        if len(self._there) > _MOST:
            work = self.delete
        try:
            work()
        except (OSError, subprocess.CalledProcessError) as error:
            self._seen.errors.append(f"{work.__name__}: {error}")
        self._seen.operations += 1

    def copy(self) -> None:
        truth, name = self._rng.choice(self._truths), f"{self._rng.randrange(100)}.mp4"
        subprocess.run(["cp", truth.file, self._folder / name], check=True)
        self._there[name] = truth.digest
        self._seen.bytes += os.path.getsize(truth.file)
        self._look_at(name)
        for _ in range(_PATIENCE):  # each waits for half a minute
            state = os.getxattr(self._folder / name, "user.vfsd.state")
            if state != b"spooled":
                break
        if state != b"video":
            self._seen.wrong.append(f"{name} is {state!r}, not a video")

    def replace(self) -> None:
        old, new = self._any(), f"{self._rng.randrange(100)}.mp4"
        os.rename(self._folder / old, self._folder / new)
        self._there[new] = self._there.pop(old)
        self._look_at(new)

    def rewrite(self) -> None:
        """Change the end of a file in place, which makes it another file."""
        name, data = self._any(), self._rng.randbytes(20_000)
        with open(self._folder / name, "r+b") as file:
            whole = bytearray(file.read())
            whole[-len(data) :] = data
            file.seek(len(whole) - len(data))
            file.write(data)
        self._there[name] = hashlib.blake2b(whole).hexdigest()
        self._seen.bytes += len(data)
        self._look_at(name)

    def delete(self) -> None:
        name = self._any()
        os.unlink(self._folder / name)
        del self._there[name]
        if os.path.exists(self._folder / name):
            self._seen.wrong.append(f"{name} is there after it was deleted")

    def look(self) -> None:
        listed = set(os.listdir(self._folder))
        if listed != set(self._there):
            self._seen.wrong.append(f"a listing has {listed ^ set(self._there)} wrong")
        self._look_at(self._any())

    def _any(self) -> str:
        return self._rng.choice(sorted(self._there))

    def _look_at(self, name: str) -> None:
        if digest_of(self._folder / name) != self._there[name]:
            self._seen.wrong.append(f"{name} has other bytes than were written")


def main(arguments: list[str]) -> None:
    place, truths, until, seed = arguments
    seen = Seen("writers")
    writer = Writer(seen, Path(place) / f"writer{seed}", load(Path(truths)), int(seed))
    writer.once()
    while time.monotonic() < float(until):
        writer.once()
    print(json.dumps(asdict(seen)))


if __name__ == "__main__":
    main(sys.argv[1:])
