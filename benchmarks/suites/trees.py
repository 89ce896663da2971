"""Many files at once: git, tar, rsync, cp, find and du, each compared with the disk."""

from __future__ import annotations

import os
import random
import shutil
import tarfile
import time
from pathlib import Path

from benchmarks.common import ROOT
from benchmarks.suites.comparing import differences, facts
from benchmarks.suites.outcome import NotHereError, Outcome, Place, run, videos


def git(place: Place) -> Outcome:
    """Clone, check, change, pack and check a repository inside the mount."""
    _need("git")
    source = place.given.repository or ROOT
    clone = place.at / "clone"
    run("git", "clone", "-q", "--no-local", source, clone)
    steps = 1
    for words in (
        ("fsck", "--full", "--strict"),
        ("checkout", "-q", "-b", "work"),
        ("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "--allow-empty", "-m", "m"),
        ("gc", "-q", "--prune=now"),
        ("fsck", "--full"),
        ("status", "--porcelain"),
    ):
        done = run("git", "-C", clone, *words)
        steps += 1
        if words[0] == "status" and done.stdout.strip():
            return Outcome("steps", steps - 1, (f"status is not clean: {done.stdout[:500]}",))
    run("git", "clone", "-q", clone, place.at / "second")
    run("git", "-C", place.at / "second", "fsck", "--full")
    steps += 2
    objects = run("git", "-C", clone, "count-objects", "-v").stdout
    packed = next((line for line in objects.splitlines() if line.startswith("in-pack")), "")
    version = run("git", "--version").stdout.split()[-1]
    return Outcome("steps", steps, version=version, note=packed.replace("in-pack:", "objects:"))


def tar(place: Place) -> Outcome:
    """A tree as large as the kernel's, extracted in the mount and on the disk, and compared."""
    _need("tar")
    archive = place.given.tree or _made_archive(place)
    for target in (place.at / "tree", place.work / "tree"):
        target.mkdir()
        place.given.say(f"extracting into {target}")
        run("tar", "-xf", archive, "-C", target)
    place.given.say("comparing")
    there, here = facts(place.at / "tree"), facts(place.work / "tree")
    failures = differences(there, here)
    place.given.say("find, du and rm")
    counted = len(run("find", place.at / "tree", "-mindepth", 1).stdout.splitlines())
    if counted != len(here):
        failures += (f"find sees {counted} names of {len(here)}",)
    sizes = [
        run("du", "-s", "-B1", "--apparent-size", "--exclude-from=/dev/null", root / "tree")
        for root in (place.at, place.work)
    ]
    bytes_of = [sum(_size(root / "tree", name) for name in here) for root in (place.at, place.work)]
    if bytes_of[0] != bytes_of[1]:
        failures += (f"{bytes_of[0]} bytes, not {bytes_of[1]}",)
    if int(sizes[0].stdout.split()[0]) < bytes_of[0]:
        failures += (f"du counts {sizes[0].stdout.split()[0]} bytes of {bytes_of[0]}",)
    run("rm", "-r", place.at / "tree")
    if os.listdir(place.at):
        failures += ("rm -r has left something",)
    version = run("tar", "--version").stdout.split("\n")[0].split()[-1]
    note = f"{bytes_of[1] >> 20} MiB"
    return Outcome("names", len(here) if not failures else 0, failures, (), version, note)


def rsync(place: Place) -> Outcome:
    """Copies in both directions with hard links, attributes and sparse files, including videos."""
    _need("rsync")
    source = place.work / "source"
    odd_tree(source)
    for path in videos():
        shutil.copy2(path, source / f"{len(os.listdir(source))}-{path.name}")
    there, back = place.at / "there", place.work / "back"
    flags = ("-aHXS", "--numeric-ids")
    failures: tuple[str, ...] = ()
    passed = 0
    wanted = facts(source, xattrs=True)
    for one, other in ((source, there), (there, back)):
        done = run("rsync", *flags, f"{one}/", f"{other}/", check=False)
        failures += tuple(line for line in done.stdout.splitlines() if "rsync" in line)
        failures += differences(wanted, facts(other, xattrs=True))
        passed += len(wanted)
    run("rsync", *flags, f"{source}/", f"{there}/")  # deletes files that the source does not have
    stored = ("--filter=-x user.vfsd.*", "-i")
    again = run("rsync", *flags, *stored, f"{source}/", f"{there}/").stdout
    checked = run("rsync", *flags, *stored, "-c", f"{source}/", f"{there}/").stdout
    if again.strip() or checked.strip():
        failures += (f"a second run copies again: {(again + checked)[:300]}",)
    acls = run("rsync", "-aA", f"{source}/", f"{place.at / 'acls'}/", check=False)
    if acls.returncode:
        failures += (f"-A: {acls.stdout.strip().splitlines()[0]}",)
    version = run("rsync", "--version").stdout.split()[2]
    return Outcome("files", passed if not failures else 0, failures, (), version)


def copies(place: Place) -> Outcome:
    """cp -a into, within and out of the mount; mv across its border; find and du agree with the
    disk."""
    source = place.work / "source"
    odd_tree(source)
    wanted = facts(source)
    failures: tuple[str, ...] = ()
    passed = 0
    for target, origin in (
        (place.at / "in", source),
        (place.at / "within", place.at / "in"),
        (place.work / "out", place.at / "within"),
    ):
        run("cp", "-a", origin, target)
        failures += differences(wanted, facts(target))
        passed += len(wanted)
    run("mv", place.work / "out", place.at / "moved")
    failures += differences(wanted, facts(place.at / "moved"))
    found = [
        run("find", ".", "-type", "f", "-size", "+10k", cwd=root).stdout.splitlines()
        for root in (source, place.at / "in")
    ]
    if sorted(found[0]) != sorted(found[1]):
        failures += (f"find: {found}",)
    blocks = [
        int(run("du", "-s", "-k", root / "sparse").stdout.split()[0])
        for root in (source, place.at / "in")
    ]
    if blocks[1] > blocks[0] + 64:
        failures += (f"du of a sparse file: {blocks[1]} KiB, not {blocks[0]}",)
    return Outcome("names", passed + len(wanted) if not failures else 0, failures)


def names(place: Place) -> Outcome:
    """Very many names in one directory, and very deeply nested directories."""
    folder = place.at / "many"
    folder.mkdir()
    count = place.given.names
    took: dict[str, float] = {}

    def timed(what: str, *words: object) -> str:
        place.given.say(what)
        began = time.perf_counter()
        out = run(*words).stdout
        took[what] = time.perf_counter() - began
        return out

    place.given.say(f"making {count} names")
    began = time.perf_counter()
    for number in range(count):
        os.mknod(folder / f"{number:06}")
    took["making"] = time.perf_counter() - began
    failures = []
    for what, words in (("ls", ["ls", "-f"]), ("ls -l", ["ls", "-l"]), ("find", ["find"])):
        listed = len(timed(what, *words, folder).splitlines())
        extra = {"ls": 2, "ls -l": 1, "find": 1}[what]
        if listed != count + extra:
            failures.append(f"{what} shows {listed - extra} names of {count}")
    timed("rm -r", "rm", "-r", folder)
    depth = max(2, count // 50)
    place.given.say(f"{depth} directories in each other")
    below = os.open(place.at, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=below)
        above, below = below, os.open("d", os.O_RDONLY, dir_fd=below)
        os.close(above)
    os.close(os.open("f", os.O_CREAT | os.O_WRONLY, dir_fd=below))
    os.close(below)
    found = len(timed("find, deep", "find", place.at, "-type", "d").splitlines())
    if found != depth + 1:
        failures.append(f"find goes through {found - 1} of {depth} directories")
    timed("rm -r, deep", "rm", "-r", place.at / "d")
    if os.listdir(place.at):
        failures.append("rm -r has left something")
    note = ", ".join(f"{what} {seconds:.1f} s" for what, seconds in took.items())
    return Outcome("names", count + depth if not failures else 0, tuple(failures), note=note)


def odd_tree(root: Path) -> None:
    """Every kind of entry that a tree may have, with times in the distant past."""
    (root / "a" / "b" / "empty").mkdir(parents=True)
    rng = random.Random(1)
    for number in range(200):
        (root / "a" / f"{number}").write_bytes(rng.randbytes(rng.randrange(30_000)))
    (root / "big").write_bytes(rng.randbytes(3_000_000))
    os.truncate(root / "big", 3_000_001)
    with open(root / "sparse", "wb") as file:
        file.truncate(20_000_000)
        file.seek(9_999_999)
        file.write(b"x")
    os.link(root / "big", root / "a" / "hard")
    (root / "a" / "link").symlink_to("../big")
    (root / "a" / "nowhere").symlink_to("/there/is\nnothing")
    os.mkfifo(root / "a" / "fifo")
    os.mknod(root / "a" / "null", 0o20600, os.makedev(1, 3))
    for name in (b"new\nline", b"\xff\xfe", b" ", b"-rf", "ü".encode(), b"n" * 255, b"a\\b"):
        with open(os.fsencode(root / "a") + b"/" + name, "wb") as plain:
            plain.write(name)
    os.setxattr(root / "big", "user.note", b"one\0two")
    os.setxattr(root / "a", "user.folder", b"x" * 3000)
    os.chmod(root / "a" / "1", 0o4755)
    os.chown(root / "a" / "2", 12, 34)
    os.chmod(root / "a" / "b", 0o3777)
    for at, path in enumerate(sorted(root.rglob("*"), reverse=True)):
        os.utime(path, ns=(10**18, 11 * 10**17 + at * 1_000_000_007), follow_symlinks=False)
    os.utime(root, ns=(10**18, 10**18 + 123_456_789))


def _made_archive(place: Place) -> Path:
    """A tree of small files in folders of forty, similar to source code."""
    root = place.work / "made"
    rng = random.Random(2)
    for number in range(place.given.files):
        folder = root / f"{number // 1600}" / f"{number // 40 % 40}"
        if number % 40 == 0:
            folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number}.c").write_bytes(rng.randbytes(rng.randrange(200, 20_000)))
    archive = place.work / "made.tar"
    with tarfile.open(archive, "w") as file:
        file.add(root, "made")
    shutil.rmtree(root)
    return archive


def _size(root: Path, name: str) -> int:
    about = (root / name).lstat()
    return 0 if (root / name).is_dir() and not (root / name).is_symlink() else about.st_size


def _need(program: str) -> None:
    if shutil.which(program) is None:
        raise NotHereError(f"apt install {program}")
