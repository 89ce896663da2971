"""Common programs must work on a mount as on a disk."""

from __future__ import annotations

import hashlib
import os
import shutil
import sqlite3
import stat
import subprocess
from pathlib import Path

import pytest

from tests.support.selection import one_in

pytestmark = pytest.mark.mount

_SOURCE = ["-f", "lavfi", "-i", "testsrc2=s=160x120:r=24:d=2"]
_EXACT = ["-threads", "1", "-fflags", "+bitexact", "-flags", "+bitexact", "-map_metadata", "-1"]
_ENCODE = [*_SOURCE, "-c:v", "libx264", "-preset", "ultrafast", "-g", "12", *_EXACT]


def need(*programs: str) -> None:
    for program in programs:
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")


def run(*command: object, cwd: Path | None = None) -> str:
    done = subprocess.run([str(word) for word in command], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}: {done.stderr}"
    return done.stdout


def picture(root: Path) -> dict[str, tuple[object, ...]]:
    """All metadata that a complete copy must keep."""
    found: dict[str, tuple[object, ...]] = {}
    numbers: dict[int, str] = {}
    for folder, folders, files in os.walk(root):
        for name in sorted(folders + files):
            path = Path(folder) / name
            about = path.lstat()
            inside = ""
            if stat.S_ISLNK(about.st_mode):
                inside = os.readlink(path)
            elif stat.S_ISREG(about.st_mode):
                inside = hashlib.sha256(path.read_bytes()).hexdigest()
            first = numbers.setdefault(about.st_ino, path.relative_to(root).as_posix())
            found[path.relative_to(root).as_posix()] = (
                about.st_mode,
                about.st_uid,
                about.st_gid,
                about.st_mtime_ns,
                inside,
                first,
            )
    return found


def age(root: Path, start: int = 1_100_000_000) -> None:
    """Set a different past time for each file.  Some tools compare only whole seconds."""
    paths = sorted(root.rglob("*"), reverse=True)
    for number, path in enumerate(paths):
        os.utime(path, (1_000_000_000, start + number), follow_symlinks=False)
    os.utime(root, (1_000_000_000, 1_000_000_000))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A tree on a disk with files, symbolic and hard links, modes and past times."""
    root = tmp_path / "tree"
    (root / "a/b/empty").mkdir(parents=True)
    (root / "big").write_bytes(os.urandom(3_000_000))
    for number in range(40):
        (root / f"a/{number}").write_text(f"{number}\n" * number)
    (root / "a/link").symlink_to("../big")
    os.link(root / "big", root / "a/hard")
    os.chmod(root / "a/1", 0o640)
    os.chown(root / "a/2", 12, 34)
    age(root)
    return root


def test_cp(tree: Path, here: Path, tmp_path: Path) -> None:
    run("cp", "-a", tree, here / "in")
    assert picture(here / "in") == picture(tree)
    run("cp", "-a", here / "in", tmp_path / "out")
    assert picture(tmp_path / "out") == picture(tree)
    run("cp", "-a", here / "in", here / "again")
    assert picture(here / "again") == picture(tree)
    run("cp", "--sparse=always", tree / "big", here / "sparse")
    assert (here / "sparse").read_bytes() == (tree / "big").read_bytes()


def test_rsync(tree: Path, here: Path) -> None:
    need("rsync")
    run("rsync", "-aH", f"{tree}/", f"{here}/in/")
    assert picture(here / "in") == picture(tree)
    assert run("rsync", "-aHi", f"{tree}/", f"{here}/in/") == ""
    for step, how in enumerate(("--inplace", "--whole-file", "--no-whole-file")):
        with open(tree / "big", "r+b") as file:
            file.seek(1_000_000)
            file.write(os.urandom(1000))
        (tree / "a/4").unlink(missing_ok=True)
        age(tree, 1_200_000_000 + 1000 * step)
        run("rsync", "-aH", "--delete", how, f"{tree}/", f"{here}/in/")
        assert picture(here / "in") == picture(tree)


def test_tar(tree: Path, here: Path, tmp_path: Path) -> None:
    need("tar")
    run("tar", "-C", tree.parent, "-cf", tmp_path / "x.tar", tree.name)
    run("tar", "-C", here, "-xf", tmp_path / "x.tar")
    assert picture(here / "tree") == picture(tree)
    run("tar", "-C", here, "-cf", here / "y.tar", "tree")
    (tmp_path / "back").mkdir()
    run("tar", "-C", tmp_path / "back", "-xf", here / "y.tar")
    assert picture(tmp_path / "back/tree") == picture(tree)


def test_mv_and_rm(tree: Path, here: Path, tmp_path: Path) -> None:
    before = picture(tree)
    run("mv", tree, here / "in")
    assert picture(here / "in") == before
    run("mv", here / "in", here / "there")
    (here / "over").write_text("x")
    run("mv", "-f", here / "there/big", here / "over")
    assert (here / "over").stat().st_size == 3_000_000
    run("rm", "-r", here / "there")
    assert os.listdir(here) == ["over"]


@pytest.mark.thorough
def test_git(tree: Path, here: Path) -> None:
    need("git")
    run("cp", "-r", tree / "a", here / "repository")
    at = here / "repository"
    who = ["-c", "user.name=n", "-c", "user.email=e@x"]
    run("git", "init", "-q", cwd=at)
    run("git", "add", "-A", cwd=at)
    run("git", *who, "commit", "-qm", "first", cwd=at)
    run("git", "gc", "-q", cwd=at)
    run("git", "fsck", "--strict", cwd=at)
    run("git", "clone", "-q", at, here / "clone")
    assert run("git", "status", "--porcelain", cwd=here / "clone") == ""


@pytest.mark.parametrize("journal", one_in(4, ["DELETE", "WAL"]))
def test_sqlite(here: Path, journal: str) -> None:
    path = here / "db"
    connection = sqlite3.connect(path)
    assert connection.execute(f"PRAGMA journal_mode={journal}").fetchone()[0] == journal.lower()
    connection.execute("CREATE TABLE t(x)")
    for start in range(0, 1000, 100):
        with connection:
            connection.executemany("INSERT INTO t VALUES(?)", [(start + i,) for i in range(100)])
    assert connection.execute("SELECT count(*), sum(x) FROM t").fetchone() == (1000, 499_500)
    assert connection.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
    connection.close()
    again = sqlite3.connect(path)
    assert again.execute("SELECT count(*) FROM t").fetchone()[0] == 1000
    again.close()


@pytest.mark.parametrize(
    ("name", "options"),
    one_in(
        4,
        [
            ("plain.mp4", []),
            ("faststart.mp4", ["-movflags", "+faststart"]),
            ("fragmented.mp4", ["-movflags", "frag_keyframe+empty_moov"]),
            ("x.ts", ["-f", "mpegts"]),
            ("x.mkv", []),
        ],
    ),
)
def test_ffmpeg(here: Path, tmp_path: Path, name: str, options: list[str]) -> None:
    need("ffmpeg")
    for folder in (here, tmp_path):
        run("ffmpeg", "-v", "error", "-y", *_ENCODE, *options, folder / name)
    assert (here / name).read_bytes() == (tmp_path / name).read_bytes()
    assert os.getxattr(here / name, "user.vfsd.state") == b"video"
    assert os.getxattr(here / name, "user.vfsd.frames") == b"48"
    run("ffmpeg", "-v", "error", "-y", "-i", here / name, "-c", "copy", here / "remuxed.mkv")
    assert os.getxattr(here / "remuxed.mkv", "user.vfsd.frames") == b"48"


def test_ffmpeg_playlist(here: Path) -> None:
    need("ffmpeg")
    hls = ["-f", "hls", "-hls_time", "0.5", "-hls_list_size", "0"]
    run("ffmpeg", "-v", "error", *_ENCODE, *hls, here / "live.m3u8")
    listed = [x for x in (here / "live.m3u8").read_text().splitlines() if not x.startswith("#")]
    assert listed
    assert sorted(os.listdir(here)) == sorted([*listed, "live.m3u8"])
    assert {os.getxattr(here / name, "user.vfsd.state") for name in listed} == {b"video"}


def test_dd(tree: Path, here: Path) -> None:
    need("dd")
    run("dd", f"if={tree}/big", f"of={here}/out", "bs=7777", "conv=fsync", "status=none")
    assert (here / "out").read_bytes() == (tree / "big").read_bytes()
    run("dd", f"if={tree}/big", f"of={here}/out", "bs=4k", "count=3", "seek=7", "conv=notrunc")
    expected = bytearray((tree / "big").read_bytes())
    expected[7 * 4096 : 10 * 4096] = expected[: 3 * 4096]
    assert (here / "out").read_bytes() == expected


def test_sed_and_sort(here: Path) -> None:
    need("sed", "sort")
    (here / "f").write_text("b\na\n")
    run("sed", "-i", "s/b/c/", here / "f")
    run("sort", "-o", here / "f", here / "f")
    assert (here / "f").read_text() == "a\nc\n"
    assert os.listdir(here) == ["f"]


def test_fio(here: Path) -> None:
    need("fio")
    for engine in ("psync", "mmap"):
        run(
            "fio",
            "--name=v",
            f"--directory={here}",
            "--rw=randwrite",
            "--bs=4k-64k",
            "--size=8m",
            "--verify=crc32c",
            "--do_verify=1",
            f"--ioengine={engine}",
            "--fallocate=none",
            "--end_fsync=1",
            cwd=here,
        )


def test_getfattr(here: Path) -> None:
    need("getfattr", "ffmpeg")
    run("ffmpeg", "-v", "error", *_ENCODE, here / "v.mp4")
    run("getfattr", "-n", "user.vfsd.state", here / "v.mp4")
    shown = run("getfattr", "-d", "v.mp4", cwd=here)
    assert 'user.vfsd.codec="h264"' in shown
    assert 'user.vfsd.frames="48"' in shown
