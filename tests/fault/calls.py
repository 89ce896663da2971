"""Changes files by every kind of call: ``python -m tests.fault.calls ROOT LOG WHAT``."""

from __future__ import annotations

import errno
import os
import sqlite3
import sys
from pathlib import Path

from tests.fault import layer
from tests.fault.layer import Counters, Failing, Kind


def main(root: Path, log: Path, what: str) -> None:
    """`WHAT` is ``all``, ``full`` (the third write fails) or ``kill`` (the eighth change)."""
    counters = Counters()
    failing = Failing((Kind.WRITE,), 2, errno.ENOSPC, on=True) if what == "full" else None
    kill_at = 7 if what == "kill" else -1
    with open(log, "wb") as file:
        layer.begin(root, counters, log=file.fileno(), failing=failing, kill_at=kill_at)
        change(root)
        layer.mark()
        layer.end()
    print(counters.changes, counters.marks, flush=True)
    os._exit(0)  # SQLite would put its log into the database, unseen


def change(root: Path) -> None:
    (root / "a").write_bytes(b"one")
    with open(root / "a", "ab") as more:
        more.write(b"two")
    with open(root / "old", "r+b") as old:
        old.seek(3)
        old.write(b"new")
        old.flush()
        os.fsync(old.fileno())
        os.ftruncate(old.fileno(), 5)
    os.mkdir(root / "folder")
    os.rename(root / "a", root / "folder" / "b")
    os.link(root / "folder" / "b", root / "c")
    fd = os.open(root / "folder", os.O_RDWR | os.O_TMPFILE)
    os.writev(fd, [b"nameless", b"!"])
    here = os.open(root, os.O_RDONLY)  # only with a directory does Python follow symbolic links
    os.link(f"/proc/self/fd/{fd}", "d", src_dir_fd=here, dst_dir_fd=here)
    with open(root / "c", "rb") as source, open(root / "e", "wb") as target:
        os.copy_file_range(source.fileno(), target.fileno(), 4)
        os.sendfile(target.fileno(), source.fileno(), 0, 2)
    os.posix_fallocate(fd, 0, 20)
    os.pwrite(fd, b"end", 17)
    os.close(fd)
    os.symlink("c", root / "link")
    os.unlink(root / "c")
    database = sqlite3.connect(root / "db")
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("CREATE TABLE t (x)")
    database.executemany("INSERT INTO t VALUES (?)", [("x" * 1000,)] * 50)
    database.commit()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
