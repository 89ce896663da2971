"""``vfsd ingest``.  ``vfsd recover``, and unfinished recordings in the output of other commands."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import CLIPS, Run
from tests.support.dead_writers import killed_recording
from vfsd.api.store import Store
from vfsd.api.video import Video
from vfsd.errors import NotFoundError, RefusedMediaError, UsageError
from vfsd.write.unfinished_files import create_partial


def test_ingest_keeps_the_file_name(run: Run) -> None:
    done = run("ingest", "footage/portrait.mp4")
    assert (done.code, done.lines) == (0, ["portrait.mp4"])
    assert run("ls").lines == ["cam1/", "portrait.mp4"]


def test_ingest_into_a_directory_under_another_name(run: Run) -> None:
    assert run("ingest", "footage/portrait.mp4", "--to", "a/b", "--as", "c.mp4").code == 0
    assert run("ls", "-R", "a").lines == ["b/", "b/c.mp4"]


def test_ingest_of_a_directory_refuses_other_files(run: Run) -> None:
    done = run("ingest", "footage", "--to", "in")
    assert done.code == 5
    assert done.lines == sorted(f"in/footage/{name}" for name in CLIPS)
    assert "notes.txt" in done.err
    assert "4 ingested, 1 refused" in done.err
    assert " into " in done.err


def test_refused_files_may_be_skipped(run: Run) -> None:
    assert run("ingest", "footage", "--skip-refused").code == 0


def test_dot_ingests_the_contents_of_a_directory(run: Run) -> None:
    run("ingest", "footage/.", "--to", "in")
    assert run("ls", "in").lines == sorted(CLIPS)


def test_files_ingested_before_are_skipped(run: Run, place: Path) -> None:
    first = run("ingest", "footage", "--json", "--skip-refused")
    shutil.copy2(place / "footage/mjpeg.avi", place / "footage/late.avi")
    second = run("ingest", "footage", "--json", "--skip-refused")
    statuses = {o["name"]: o["status"] for o in second.objects}
    assert [o["status"] for o in first.objects].count("ingested") == 4
    assert statuses.pop("footage/late.avi") == "ingested"
    assert statuses.pop("footage/notes.txt") == "refused"
    assert set(statuses.values()) == {"skipped"}


def test_file_ingested_concurrently_is_skipped(
    run: Run, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, ingest = place / "footage/portrait.mp4", Store.ingest

    def overtaken(store: Store, *args: Any, **options: Any) -> Video:
        ingest(store, path, "portrait.mp4")
        return ingest(store, *args, **options)

    monkeypatch.setattr(Store, "ingest", overtaken)
    done = run("ingest", path, "--tag", "summer", "--json")
    assert (done.code, done.object["status"]) == (0, "skipped")
    assert run("find", "--tag", "summer").lines == ["portrait.mp4"]
    os.utime(path, (1, 1))
    assert run("ingest", path).code == 4


def test_changed_file_is_not_skipped(run: Run, place: Path) -> None:
    os.utime(place / "footage/traffic.mp4", (1, 1))
    done = run("ingest", "footage/traffic.mp4", "--to", "cam1", "--json")
    assert (done.code, done.object["status"]) == (4, "exists")
    done = run("ingest", "footage/traffic.mp4", "--to", "cam1", "--json", "--replace")
    assert (done.code, done.object["status"]) == (0, "ingested")
    assert run("info", "cam1/traffic.mp4", "--json").object["modified"].startswith("1970-01-01")


def test_dry_run_changes_nothing(run: Run) -> None:
    done = run("ingest", "footage/portrait.mp4", "footage/traffic.mp4", "--to", "cam1", "--dry-run")
    assert (done.code, done.lines) == (0, ["cam1/portrait.mp4"])
    assert run("ls", "cam1").lines == ["open-gop.mkv", "traffic.mp4"]


def test_tags_apply_to_new_and_existing_videos(run: Run) -> None:
    sources = ("footage/portrait.mp4", "footage/traffic.mp4")
    assert run("ingest", *sources, "--to", "cam1", "--tag", "a", "--tag", "b").code == 0
    assert run("find", "--tag", "a", "--tag", "b").lines == [
        "cam1/portrait.mp4",
        "cam1/traffic.mp4",
    ]


def test_verify_option_reports_the_frame_table(run: Run) -> None:
    done = run("ingest", "footage/traffic.mp4", "--verify", "--json")
    assert done.object["corrected"] in (False, None)
    info = run("info", "traffic.mp4", "--json").object
    assert info["physical_videos"][0]["verified"] is True


def test_linked_file_is_not_moved(run: Run, place: Path) -> None:
    assert run("ingest", "footage/portrait.mp4", "--link").code == 0
    (physical,) = run("info", "portrait.mp4", "--json").object["physical_videos"]
    assert physical["linked"] == str((place / "footage/portrait.mp4").resolve())
    assert run("rm", "portrait.mp4").code == 0
    assert (place / "footage/portrait.mp4").exists()


def test_missing_source_stops_the_ingest(run: Run) -> None:
    done = run("ingest", "footage/portrait.mp4", "footage/nowhere.mp4")
    assert (done.code, done.out) == (3, "")
    assert "nowhere.mp4" in done.err
    assert run("ls").lines == ["cam1/"]


def test_two_files_with_one_name_are_refused(run: Run, place: Path) -> None:
    shutil.copytree(place / "footage", place / "other")
    done = run("ingest", "footage/.", "other/.")
    assert done.code == 2
    assert "several files" in done.err


@pytest.mark.parametrize("args", [("footage", "videos", "--as", "x"), ()])
def test_invalid_ingest_arguments_are_refused(run: Run, args: tuple[str, ...]) -> None:
    assert run("ingest", *args).code == 2


def test_devices_are_refused(run: Run) -> None:
    assert run("ingest", "/dev/null").code == 5


def test_ingesting_the_same_file_restores_a_damaged_original(run: Run, place: Path) -> None:
    assert run("ingest", "footage/traffic.mp4", "--as", "v.mp4").code == 0
    key: str = run("info", "v.mp4", "--json").object["digest"]
    path = place / "videos/objects" / key[:2] / key[2:]
    whole = path.read_bytes()
    path.chmod(0o600)
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert run("scrub").code == 30
    assert run("ingest", "footage/traffic.mp4", "--as", "v.mp4", "--json").object["status"] == (
        "put back"
    )
    assert path.read_bytes() == whole
    assert run("info", "v.mp4", "--json").object["damage"] is None
    path.unlink()
    assert run("ingest", "footage/traffic.mp4", "--as", "v.mp4").out == "v.mp4\n"
    assert run("scrub").code == 0
    assert run("ingest", "footage/traffic.mp4", "--as", "v.mp4", "--json").object["status"] == (
        "skipped"
    )


def test_files_of_the_store_are_refused(run: Run, place: Path) -> None:
    key: str = run("info", "cam1/traffic.mp4", "--json").object["digest"]
    own = place / "videos/objects" / key[:2] / key[2:]
    (place / "elsewhere").symlink_to(own.parent)
    before = run("ls", "-R").out
    for given in (own, place / "videos/objects", place / "elsewhere" / own.name):
        for more in ((), ("--link",), ("--dry-run",)):
            done = run("ingest", given, "--as", "again.mp4", *more)
            assert done.code == 2
            assert "own" in done.err
    assert run("ls", "-R").out == before


# --------------------------------------------------------------------------------------------------
# ``vfsd recover``, and unfinished recordings in the output of other commands


def test_recordings_are_listed_and_recovered(run: Run, place: Path) -> None:
    assert "no unfinished recordings" in run("recover").err
    for name in ("cam1/day.mp4", "cam1/live.mp4"):
        killed_recording(place / "videos", name)
    listed = run("recover", "--dry-run", "--json").objects
    assert [one["name"] for one in listed] == ["cam1/day.mp4", "cam1/live.mp4"]
    assert [one["recovered"] for one in listed] == [None, None]
    assert all(Path(one["file"]).stat().st_size == one["bytes"] for one in listed)
    assert "cam1/live.mp4: " in run("recover", "cam1/live.mp4", "--dry-run").out

    fsck = run("fsck", "--repair")
    assert fsck.code == 30
    assert fsck.out.count("vfsd recover") == 2
    assert "scrub" not in fsck.err  # which would not help
    gc = run("gc", "--json").object
    assert (gc["files"], gc["recordings"]) == (0, 2)

    done = run("recover", "cam1/live.mp4", "--as", "kept/b.mp4", "--json").object
    assert (done["name"], done["recovered"], done["error"]) == (
        "cam1/live.mp4",
        "kept/b.mp4",
        None,
    )
    assert done["frames"] > 20
    assert run("mv", "kept/b.mp4", "cam1/day.mp4").code == 0
    assert "cam1/day-recovered.mp4: " in run("recover").out
    assert run("fsck", "--deep").code == 0


def test_unrecoverable_recording_is_reported(run: Run, place: Path) -> None:
    with Store.open(place / "videos") as store:
        file = create_partial(store.parts.objects, "bad.mp4")
        file.path.write_bytes(b"not much of a video")
        file.keep_for_recovery()
    killed_recording(place / "videos", "good.mp4")
    missing = run("recover", "other.mp4")
    assert missing.code == NotFoundError.exit_code
    assert "--dry-run" in missing.err
    assert run("recover", "--as", "a.mp4").code == UsageError.exit_code
    done = run("recover", "--json")
    assert done.code == RefusedMediaError.exit_code
    assert [one["recovered"] for one in done.objects] == [None, "good.mp4"]
    assert done.objects[0]["error"]
    assert str(file.path) in run("recover").err
    assert run("gc", "--recordings", "0", "--json").object["files"] == 2
    assert run("fsck").code == 0
