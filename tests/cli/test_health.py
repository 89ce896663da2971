"""``vfsd fsck``, ``gc``, ``verify`` and ``doctor``."""

from __future__ import annotations

import errno
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from sample_videos import FOLDER
from tests.cli.conftest import Run, run_command
from tests.fault.older import execute
from tests.support.dead_writers import killed_recording
from tests.support.fs_driver import Driver
from tests.support.pgbouncer import PgBouncer
from tests.support.unprivileged import errors, run_unprivileged
from vfsd.api.store import Store
from vfsd.api.video import Video
from vfsd.catalog import ROOT
from vfsd.cli import doctor
from vfsd.core.model import LogicalVideo
from vfsd.disk import mount_queries
from vfsd.disk.tempfiles import new_name
from vfsd.mount.fs import Filesystem

TRAFFIC = "cam1/traffic.mp4"


@pytest.fixture(autouse=True)
def without_other_mounts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide mounts of other tests from `vfsd doctor`, since some of them are stopped on purpose."""
    every = mount_queries.mounts

    def here() -> list[mount_queries.MountEntry]:
        return [one for one in every() if one.place.is_relative_to(tmp_path) or not one.is_ours]

    monkeypatch.setattr(mount_queries, "mounts", here)


def the_object(run: Run, place: Path) -> Path:
    key: str = run("info", TRAFFIC, "--json").object["digest"]
    return place / "videos/objects" / key[:2] / key[2:]


def damage(path: Path) -> None:
    """Change the last byte of a file, despite its read-only mode."""
    path.chmod(0o600)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def test_fsck_prints_nothing_for_a_sound_store(run: Run) -> None:
    done = run("fsck", "--deep")
    assert (done.code, done.out) == (0, "")
    assert "no problems" in done.err


def test_fsck_finds_a_missing_object(run: Run, place: Path) -> None:
    the_object(run, place).unlink()
    done = run("fsck", "--json")
    assert done.code == 30
    assert {finding["check"] for finding in done.objects} == {"objects"}
    assert run("fsck", "--repair").code == 30


@pytest.mark.thorough
def test_damaged_frame_table_is_reported_and_rebuilt(run: Run, place: Path) -> None:
    def lose_tables() -> None:
        with closing(sqlite3.connect(place / "videos/catalog.sqlite3")) as raw, raw:
            raw.execute("UPDATE frame_pages SET data = zeroblob(length(data))")

    lose_tables()
    done = run("backup", "copy", "--json")
    assert done.code == 30
    assert TRAFFIC in done.object["tables"]
    assert "damaged frame table" in run("backup", "copy").err
    assert run("fsck").code == 30
    assert run("verify", TRAFFIC, "--json").object["status"] == "corrected"
    assert run("verify", TRAFFIC, "--json").object["status"] == "right"
    assert run("fsck", "--repair").code == 0
    lose_tables()
    again = run("ingest", "footage/traffic.mp4", "--to", "cam1", "--json")
    assert again.object["status"] == "put back"
    assert run("ingest", "footage/traffic.mp4", "--to", "cam1", "--json").object["status"] == (
        "skipped"
    )


def test_damaged_frames_are_unknown_without_a_frame_table(run: Run, place: Path) -> None:
    damage(the_object(run, place))
    execute(place / "videos", "UPDATE frame_pages SET data = zeroblob(length(data))")
    assert run("scrub", TRAFFIC, "--json").object["frames"] is None
    unknown = "which frames need them is not known: the frame table is damaged"
    for command in ("scrub", "fsck"):
        assert unknown in run(command).out
    with Store.open(place / "videos") as store:
        it = Driver(Filesystem(store.parts))
        told = it.fs.getxattr(f"/{TRAFFIC}", "user.vfsd.damaged")
        assert json.loads(told)["frames"] is None
        it.fs.close()


def test_scrub_reports_skipped_damage(run: Run, place: Path) -> None:
    damage(the_object(run, place))
    assert run("scrub").code == 30
    done = run("scrub", "--older-than", "1", "--json")
    assert done.code == 30
    assert [one["names"] for one in done.objects] == [[TRAFFIC]]
    assert "nothing is damaged" not in done.err


def test_deep_fsck_reads_every_byte(run: Run, place: Path) -> None:
    damage(the_object(run, place))
    assert run("fsck").code == 0
    done = run("fsck", "--deep")
    assert done.code == 30
    assert "content" in done.out


def test_fsck_repairs_findings(run: Run, place: Path) -> None:
    (place / "videos/objects/tmp" / new_name()).write_bytes(b"from a writer that died")
    assert run("fsck").code == 30
    done = run("fsck", "--repair", "--json")
    assert (done.code, done.object["repaired"]) == (0, True)
    assert run("fsck").code == 0


def test_originals_without_checksums_are_reported(run: Run, place: Path) -> None:
    execute(place / "videos", "DELETE FROM block_sums WHERE size > 0 LIMIT 2")
    done = run("fsck")
    assert done.code == 0
    assert "2 originals have no block checksums" in done.err
    assert "vfsd scrub" in done.err
    (sums,) = (found for found in run("doctor", "--json").objects if found["check"] == "sums")
    assert sums["status"] == "warn"
    assert "vfsd scrub" in sums["advice"]
    assert run("stats", "--json").object["without_sums"] == 2
    assert run("scrub").code == 0
    assert "sums" not in run("fsck").err
    assert run("stats", "--json").object["without_sums"] == 0


def test_known_damage_is_shown_by_all_status_commands(run: Run, place: Path) -> None:
    damage(the_object(run, place))
    assert run("stats", "--json").object["damaged"] == 0  # not detected yet
    assert run("scrub").code == 30
    assert run("stats", "--json").object["damaged"] == 1
    assert "vfsd fsck" in run("stats").out
    done = run("doctor", "--json")
    (told,) = (found for found in done.objects if found["check"] == "damage")
    assert (told["status"], done.code) == ("fail", 30)


def test_unreadable_copy_is_reported_and_others_are_used(run: Run, place: Path) -> None:
    digests = [
        run("info", name, "--json").object["digest"] for name in (TRAFFIC, "cam1/open-gop.mkv")
    ]
    assert run("backup", "copy").code == 0
    for digest in digests:
        damage(place / "videos/objects" / digest[:2] / digest[2:])
    copy = place / "copy/objects" / digests[0][:2] / digests[0][2:]
    copy.chmod(0)
    done = run_unprivileged("-s", place / "videos", "scrub", "--from", place / "copy", "--json")
    assert done.code == 30
    assert {one["object"]: one["repaired"] for one in done.objects} == {
        digests[0]: None,
        digests[1]: "put back",
    }
    assert errors(done) == [f"{copy}: Permission denied"]


def test_unreachable_linked_file_is_not_broken(
    run: Run, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mount whose process has ended makes a file unreachable; a missing file is broken."""
    clip = Path(shutil.copy(FOLDER / "portrait.mp4", place / "mine.mp4"))
    with clip.open("ab") as file:  # bytes that no other test has had examined
        file.write(b"\0\0\0\x10free" + os.urandom(8))
    run("ingest", "--link", clip, "--to", "l")
    opened = os.open

    def fails(path: Any, *how: Any, **more: Any) -> int:
        # Where a mount of vfsd exists, the path is followed one component at a time.
        if os.fspath(path) in (os.fspath(clip), clip.name):
            raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN), path)
        return opened(path, *how, **more)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", fails)
        done = run("verify", "l/mine.mp4", TRAFFIC, "--json")
    assert [one["status"] for one in done.objects] == ["forbidden", "right"]
    assert done.code == 1
    assert os.strerror(errno.ENOTCONN) in done.objects[0]["reason"]
    clip.unlink()
    done = run("verify", "l/mine.mp4", "--json")
    assert (done.code, done.object["status"]) == (30, "broken")


@pytest.mark.thorough
def test_unreadable_object_is_not_damaged(run: Run, place: Path) -> None:
    path = the_object(run, place)
    other = run("info", "cam1/open-gop.mkv", "--json").object["digest"]
    path.chmod(0)
    store = place / "videos"
    done = run_unprivileged("-s", store, "scrub", "--json")
    assert (done.code, done.out) == (1, "")
    assert errors(done) == [f"{path}: Permission denied"]
    done = run_unprivileged("-s", store, "verify", TRAFFIC, "cam1/open-gop.mkv", "--json")
    assert [one["status"] for one in done.objects] == ["forbidden", "right"]
    assert done.code == 1
    done = run_unprivileged("-s", store, "fsck", "--deep", "--json")
    assert (done.code, done.object["check"]) == (30, "permissions")
    assert TRAFFIC in done.object["message"]
    assert "damaged" not in done.out
    assert "--repair" not in run_unprivileged("-s", store, "fsck", "--deep").err
    path.chmod(0o644)
    assert run("fsck").code == 0
    damage(place / "videos/objects" / other[:2] / other[2:])
    path.chmod(0)
    done = run_unprivileged("-s", store, "scrub", "--json")  # which checks the rest
    assert (done.code, done.object["names"]) == (30, ["cam1/open-gop.mkv"])
    assert errors(done) == [f"{path}: Permission denied"]


@pytest.mark.parametrize("rate", ["0", "0MiB", "-5", "fast"])
def test_scrub_rate_limit(run: Run, rate: str) -> None:
    done = run("scrub", "--rate", rate)
    assert done.code == 2
    assert "mistake" not in done.err


def test_gc_removes_unreferenced_files(run: Run, place: Path) -> None:
    left = place / "videos/objects/tmp" / new_name()
    left.write_bytes(b"x" * 1000)
    planned = run("gc", "--dry-run", "--json").object
    assert (planned["files"], planned["bytes"], planned["dry_run"]) == (1, 1000, True)
    assert left.exists()
    assert "1.0 KiB" in run("gc").out or not left.exists()
    assert not left.exists()
    assert run("gc", "--json").object["bytes"] == 0


def test_gc_continues_after_nonempty_directories(run: Run, place: Path) -> None:
    store = place / "videos"
    full = [
        store / "objects" / "tmp" / new_name(),
        store / "objects" / "ab" / ("c" * 62),
        store / "objects" / "ab" / "no-key",
        store / "spool" / "4711",
        store / f".config.toml.1-{'0' * 32}.tmp",
    ]
    for path in full:
        path.mkdir(parents=True)
        (path / "mine").touch()
    (store / "objects" / "ee").touch()
    gone = [store / "objects" / "tmp" / new_name(), store / "objects" / "ee"]
    gone[0].touch()
    planned = run("gc", "--dry-run", "--json")
    assert (planned.code, planned.object["files"], planned.object["objects"]) == (30, 2, [])
    assert all(path.exists() for path in gone)
    done = run("gc", "--json")
    assert done.code == 30
    assert sorted(done.object["stuck"]) == sorted(map(str, full))
    assert (done.object["files"], done.object["objects"]) == (2, [])
    assert not any(path.exists() for path in gone)
    assert all((path / "mine").exists() for path in full)
    told = run("gc")
    assert told.code == 30
    assert all(f"{path} is a directory" in told.err.replace("\n", "") for path in full)
    checked = run("fsck", "--repair", "--json")
    assert checked.code == 30
    assert not any(found["repaired"] for found in checked.objects)
    for path in full:
        (path / "mine").unlink()
    assert run("gc", "--json").code == 0
    assert not any(path.exists() for path in full)
    assert run("fsck").code == 0


@pytest.mark.thorough
def test_gc_continues_after_undeletable_files(run: Run, place: Path) -> None:
    store = place / "videos"
    stays, goes = store / "objects" / "ab" / ("c" * 62), store / "objects" / "ef" / ("c" * 62)
    for path in (stays, goes):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"123")
    stays.parent.chmod(0o555)
    checked = run_unprivileged("-s", store, "fsck", "--repair", "--json")
    assert checked.code == 30
    assert [found["repaired"] for found in checked.objects] == [False, True]
    assert stays.exists()
    goes.write_bytes(b"123")
    done = run_unprivileged("-s", store, "gc", "--json")
    assert (done.code, done.object["stuck"], done.object["bytes"]) == (30, [str(stays)], 3)
    assert done.object["objects"] == ["ef" + "c" * 62]
    assert not goes.exists()
    told = run_unprivileged("-s", store, "gc")
    assert (told.code, told.err.count("may not be deleted")) == (30, 1)
    stays.parent.chmod(0o755)
    assert run("gc", "--json").code == 0
    assert not stays.exists()


@pytest.mark.thorough
def test_backup_continues_after_unreadable_files(run: Run, place: Path) -> None:
    path = the_object(run, place)
    path.chmod(0)
    done = run_unprivileged("-s", place / "videos", "backup", place / "copy", "--json")
    assert (done.code, done.object["damaged"]) == (30, [])
    assert done.object["forbidden"] == [path.parent.name + path.name]
    read = run_command("-s", place / "copy", "verify", "cam1/open-gop.mkv", "--json")
    assert read.object["status"] == "right"
    told = run_unprivileged("-s", place / "videos", "backup", place / "copy")
    assert "may not be read, and is not in the backup" in told.err
    path.chmod(0o644)
    assert run("backup", place / "copy").code == 0
    assert run_command("-s", place / "copy", "fsck", "--deep").code == 0


@pytest.mark.thorough
def test_store_without_write_permission_is_read_only(run: Run, place: Path) -> None:
    store = place / "videos"
    store.chmod(0o555)
    for words in (("config", "verify", "false"), ("rm", TRAFFIC), ("gc",)):
        assert run_unprivileged("-s", store, *words).code == 7
    assert run_unprivileged("-s", store, "config", "verify").code == 0
    store.chmod(0o755)


def test_verify_decodes_everything(run: Run) -> None:
    done = run("verify", TRAFFIC, "cam1/open-gop.mkv", "--json")
    assert [(video["status"], video["frames"]) for video in done.objects] == [
        ("right", 120),
        ("right", 90),
    ]
    assert run("verify", "--all").out == ""


def test_verify_names_undecodable_frames(run: Run, place: Path) -> None:
    shutil.copy(place / "footage/notes.txt", the_object(run, place))
    done = run("verify", TRAFFIC, "--json")
    assert (done.code, done.object["status"]) == (30, "broken")
    assert done.object["reason"]


def test_verify_suggests_a_remedy(run: Run, place: Path) -> None:
    clip = Path(shutil.copy(FOLDER / "portrait.mp4", place / "mine.mp4"))
    with clip.open("ab") as file:  # bytes that no other test has had examined
        file.write(b"\0\0\0\x10free" + os.urandom(8))
    run("ingest", "--link", clip)
    os.utime(clip, (1, 1))
    reason = run("verify", "mine.mp4", "--json").object["reason"]
    assert "has changed since it was indexed; run `vfsd scrub` if only its time changed" in reason


def test_verify_reports_the_unmounted_disk_with_the_objects(run: Run, place: Path) -> None:
    objects = place / "videos/objects"
    objects.rename(place / "disk")
    objects.mkdir()
    for words in (("--all",), (TRAFFIC,)):
        done = run("verify", *words)
        assert (done.code, done.out) == (10, "")
        assert "is empty, and should hold" in done.err


def test_verify_skips_videos_removed_in_between(
    run: Run, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_video = Store.open_video
    left: list[str] = []

    def and_remove_others(store: Store, info: LogicalVideo) -> Video:
        if not left:
            with Store.open(place / "videos") as other:
                gone, *stay = [video.name for video in store.catalog.find() if video != info]
                other.remove(gone)
            left.extend([info.name, *stay])
        return open_video(store, info)

    monkeypatch.setattr(Store, "open_video", and_remove_others)
    done = run("verify", "--all", "--json")
    assert done.code == 0, done.err
    assert sorted(video["name"] for video in done.objects) == sorted(left)


def test_verify_needs_names_or_all(run: Run) -> None:
    assert run("verify").code == 2
    assert run("verify", TRAFFIC, "--all").code == 2


def test_doctor_checks_the_machine_and_the_store(run: Run) -> None:
    done = run("doctor", "--json")
    checks = {found["check"]: found["status"] for found in done.objects}
    assert checks["python"] == checks["ffmpeg"] == checks["decoders"] == "ok"
    assert checks["store"] == checks["catalog"] == "ok"
    assert set(checks.values()) <= {"ok", "warn", "fail"}
    assert done.code == (30 if "fail" in checks.values() else 0)


def test_doctor_reports_invalid_settings(run: Run, place: Path) -> None:
    assert run("config", "workers", "2").code == 0

    def found() -> dict[str, Any]:
        (one,) = (one for one in run("doctor", "--json").objects if one["check"] == "settings")
        return one

    assert (found()["status"], found()["message"]) == ("ok", "changed: workers")
    (place / "videos/config.toml").write_text("bogus = 1\n")
    assert found()["status"] == "fail"
    assert "got 'bogus'" in found()["message"]


def test_doctor_describes_the_server(
    run: Run, own_database: str, pgbouncer: PgBouncer, tmp_path: Path
) -> None:
    for name, url in (("direct", own_database), ("pooled", pgbouncer.url_of(own_database))):
        if name == "direct":
            Store.create(tmp_path / name, catalog_url=url).close()
        else:
            marker = tmp_path / "direct" / "vfsd-store.json"
            marker.write_text(json.dumps(json.loads(marker.read_text()) | {"catalog": url}))
        lines = run("--store", str(tmp_path / "direct"), "doctor", "--json").objects
        (server,) = (one for one in lines if one["check"] == "server")
        text = server["message"]
        assert text.startswith("PostgreSQL ")
        assert "synchronous_commit on" in text
        assert "of 100 connections" in text
        assert ("pooler in transaction mode" in text) == (name == "pooled")
        assert (server["status"], "fsync" in server["advice"]) == ("warn", True)


def test_doctor_reports_missing_libraries_of_opencv(tmp_path: Path) -> None:
    reason = "libGL.so.1: cannot open shared object file"
    (tmp_path / "cv2.py").write_text(f"raise ImportError({reason!r})")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    command = [sys.executable, "-m", "vfsd", "doctor", "--json"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    (opencv,) = (one for one in found if one["check"] == "opencv")
    assert (opencv["status"], done.returncode) == ("fail", 30)
    assert reason in opencv["message"]
    assert "libgl1" in opencv["advice"]


def test_doctor_reports_a_growing_wal(
    run: Run, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_LARGE_LOG", 1 << 20)
    assert "log" not in {found["check"] for found in run("doctor", "--json").objects}
    with Store.open(place / "videos") as store:
        for number in range(30):
            with store.catalog.writing() as change:
                change.tree.set_xattr(ROOT, b"user.x", bytes([number]) * 60_000)
        (found,) = (one for one in run("doctor", "--json").objects if one["check"] == "log")
    assert (found["status"], "MiB" in found["message"]) == ("warn", True)
    assert "shrink the log" in found["advice"]


@pytest.mark.thorough
def test_doctor_reports_unfinished_recordings(run: Run, place: Path) -> None:
    assert "recordings" not in {found["check"] for found in run("doctor", "--json").objects}
    for name in ("cam1/a.mp4", "cam1/b.mp4"):
        killed_recording(place / "videos", name)
    (found,) = (one for one in run("doctor", "--json").objects if one["check"] == "recordings")
    assert (found["status"], found["message"].split()[0]) == ("warn", "2")
    assert "'cam1/b.mp4'" in found["message"]
    assert "vfsd recover" in found["advice"]
    assert len(run("recover", "--json").objects) == 2
    assert "recordings" not in {found["check"] for found in run("doctor", "--json").objects}


def test_doctor_suggests_a_remedy_for_a_missing_store(place: Path) -> None:
    done = run_command("-s", place / "nowhere", "doctor", "--json")
    (store,) = (found for found in done.objects if found["check"] == "store")
    assert (done.code, store["status"]) == (30, "fail")
    assert "vfsd init" in store["advice"]


def test_doctor_reports_missing_objects(run: Run, place: Path) -> None:
    (place / "videos" / "objects").rename(place / "elsewhere")
    done = run("doctor", "--json")
    (store,) = (found for found in done.objects if found["check"] == "store")
    assert (done.code, store["status"]) == (30, "fail")
    assert "mount its disk" in store["advice"]


def test_doctor_reports_an_empty_folder_of_objects(run: Run, place: Path) -> None:
    assert "objects" not in {found["check"] for found in run("doctor", "--json").objects}
    (place / "videos" / "objects").rename(place / "elsewhere")
    (place / "videos" / "objects").mkdir()
    done = run("doctor", "--json")
    (objects,) = (found for found in done.objects if found["check"] == "objects")
    assert (done.code, objects["status"]) == (30, "fail")
    assert "on another disk, mount it" in objects["advice"]


def test_doctor_reports_an_unreadable_catalog(run: Run, place: Path) -> None:
    for name in ("catalog.sqlite3", "catalog.sqlite3-wal", "catalog.sqlite3-shm"):
        (place / "videos" / name).unlink(missing_ok=True)
    (place / "videos/catalog.sqlite3").write_bytes(b"this is no database" * 100)
    found = {found["check"]: found for found in run("doctor", "--json").objects}
    assert found["catalog"]["status"] == "fail"


def test_backup(run: Run, place: Path) -> None:
    target = place / "copy"
    done = run("backup", target, "--json").object
    assert (done["videos"], done["damaged"]) == (len(run("find").lines), [])
    assert done["copied"] == done["bytes"] > 0
    assert run_command("-s", target, "ls", "cam1").out == run("ls", "cam1").out
    assert "0 B of them new" in run("backup", target).out
    the_object(run, place).unlink()
    shutil.rmtree(target)
    damaged = run("backup", target)
    assert damaged.code == 30
    assert "missing" in damaged.err
    assert run("backup", place).code == 2


def test_restore(run: Run, place: Path) -> None:
    names = run("ls", "cam1").out
    assert run("backup", "copy").code == 0
    assert run("rm", TRAFFIC).code == 0
    done = run_command("restore", "copy", "videos", "--json").object
    assert (done["videos"], done["missing"], done["linked"]) == (2, [], [])
    assert Path(done["replaced"], "catalog.sqlite3").exists()
    assert run("ls", "cam1").out == names
    again = run_command("restore", "copy", "videos")
    assert "0 B of them copied" in again.out
    assert "replaced-" in again.err
    the_object(run, place).unlink()
    key = run("info", TRAFFIC, "--json").object["digest"]
    (place / "copy/objects" / key[:2] / key[2:]).unlink()
    missing = run_command("restore", "copy", "videos")
    assert missing.code == 30
    assert f"object {key} is damaged or missing" in missing.err
    assert run_command("restore", "videos", "copy").code == 2
    for nothing in ("nowhere", "footage"):
        refused = run_command("restore", nothing, "videos")
        assert refused.code == 10
        assert "no backup" in refused.err
        assert "vfsd backup" in refused.err
        assert "vfsd init" not in refused.err
    assert run_command("restore", "copy", "footage").code == 4
