"""``vfsd recover``, and what other commands say of recordings that were not finished."""

from __future__ import annotations

from pathlib import Path

from tests.cli.conftest import Run
from tests.deadwriters import killed_recording
from vfsd.api.store import Store
from vfsd.errors import NotFoundError, RefusedMediaError, UsageError
from vfsd.write.partial_files import create_partial


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


def test_what_cannot_be_recovered_is_told(run: Run, place: Path) -> None:
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
