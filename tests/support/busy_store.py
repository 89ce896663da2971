"""``python -m tests.support.busy_store STORE``: changes a store until it is killed."""

from __future__ import annotations

import os
import sys
import threading

from sample_videos import FOLDER
from tests.support.fs_driver import Driver
from vfsd.api.store import Store
from vfsd.mount.fs import Filesystem

CONTENTS = (
    b"",
    b"text",
    (FOLDER / "portrait.mp4").read_bytes(),
    (FOLDER / "av1.mp4").read_bytes(),
)


def main(store: str) -> None:
    it = Driver(Filesystem(Store.open(store).parts))

    def work(name: str) -> None:
        while True:
            for data in CONTENTS:
                it.write(f"/{name}.new", data)
                it.fs.rename(f"/{name}.new", f"/{name}")
                if len(data) > 100:
                    with it.opened(f"/{name}", os.O_RDWR) as handle:
                        it.fs.write(handle, data[:8], 0)
            it.fs.unlink(f"/{name}")

    for name in ("one", "two"):
        threading.Thread(target=work, args=(name,)).start()
    print("busy", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
