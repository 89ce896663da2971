"""``vfsd ls``, ``find``, ``info``, ``frames`` and ``tag``.

Patterns for names of videos: the commands that accept them, and errors of the others.
"""

from __future__ import annotations

import json
import stat
from contextlib import closing
from pathlib import Path

import pytest

from sample_videos import FOLDER, GroundTruth
from tests.cli.conftest import Run
from tests.support.fs_driver import Driver
from vfsd.api.store import Store
from vfsd.core.model import FileState
from vfsd.mount.fs import Filesystem

TRAFFIC = "cam1/traffic.mp4"


def add_plain_file(root: Path, name: str, text: str, reason: str) -> None:
    """Add a file like a mount does when it is not a video."""
    with Store.open(root) as store, store.catalog.writing() as change:
        parent = change.tree.resolve("cam1")
        node = change.tree.create(
            parent.ino,
            name,
            stat.S_IFREG | 0o644,
            uid=0,
            gid=0,
            now_ns=0,
            state=FileState.PLAIN,
        )
        change.tree.update(node.ino, reason=reason)
        store.parts.directory.spool_file(node.ino).write_text(text, encoding="utf-8")


# --------------------------------------------------------------------------------------------- ls


def test_ls_prints_names(run: Run) -> None:
    assert run("ls").lines == ["cam1/"]
    assert run("ls", "cam1").lines == ["open-gop.mkv", "traffic.mp4"]
    assert run("ls", "/cam1/").lines == ["open-gop.mkv", "traffic.mp4"]
    assert run("ls", "-R").lines == ["cam1/", "cam1/open-gop.mkv", "cam1/traffic.mp4"]
    assert run("ls", TRAFFIC).lines == [TRAFFIC]


def test_long_listing_shows_properties(run: Run) -> None:
    line = run("ls", "-l", "cam1").lines[1].split()
    assert line[:2] == ["video", "75.5"]
    assert line[3:7] == ["120", "320x240", "0:04.00", "h264"]
    assert line[-1] == "traffic.mp4"


def test_ls_marks_files_that_are_not_videos(run: Run, place: Path) -> None:
    add_plain_file(place / "videos", "notes.txt", "twelve bytes", "it is text")
    (line,) = (line for line in run("ls", "-l", "cam1").lines if "notes.txt" in line)
    assert line.split()[:3] == ["file", "12", "B"]
    found = {entry["name"]: entry for entry in run("ls", "cam1", "--json").objects}
    assert found["cam1/notes.txt"]["reason"] == "it is text"
    assert found["cam1/notes.txt"]["size"] == 12
    assert found["cam1/notes.txt"]["frames"] is None
    assert found[TRAFFIC]["kind"] == "video"


def test_ls_of_a_missing_name(run: Run) -> None:
    done = run("ls", "cam2")
    assert (done.code, done.out) == (3, "")


def test_path_outside_the_store_is_refused(run: Run) -> None:
    assert run("ls", "../x").code == 2
    assert run("ls", "cam1/../cam1/.").lines == ["open-gop.mkv", "traffic.mp4"]


# ------------------------------------------------------------------------------------------- find


@pytest.mark.parametrize(
    ("what", "found"),
    [
        ((), ["cam1/open-gop.mkv", TRAFFIC]),
        (("cam1/*.mp4",), [TRAFFIC]),
        (("*.mp4",), []),
        (("**.mp4",), [TRAFFIC]),
        (("--codec", "hevc"), ["cam1/open-gop.mkv"]),
        (("--codec", "H264"), [TRAFFIC]),
        (("--codec", "of-tomorrow"), []),
        (("--container", "mp4"), [TRAFFIC]),
        (("--container", "MP4"), [TRAFFIC]),
        (("--min-seconds", "3.5"), [TRAFFIC]),
        (("--max-seconds", "3.5"), ["cam1/open-gop.mkv"]),
        (("--min-width", "321"), []),
        (("--max-height", "240", "--min-bytes", "50000"), [TRAFFIC]),
        (("--until", "2001-02-03"), []),
        (("--since", "2001-02-03T04:05"), ["cam1/open-gop.mkv", TRAFFIC]),
        (("--tag", "none"), []),
    ],
)
def test_find(run: Run, what: tuple[str, ...], found: list[str]) -> None:
    assert run("find", *what).lines == found
    assert [video["name"] for video in run("find", *what, "--json").objects] == found
    assert len(run("find", "-l", *what).lines) == len(found)


# -------------------------------------------------------------------------------------------- tag


def test_tags_and_metadata_are_set_searched_and_removed(run: Run) -> None:
    args = ("--add", "night", "--add", "rain", "--set", "site=gate", "--set", "floor=3")
    done = run("tag", TRAFFIC, "cam1/open-gop.mkv", *args, "--json")
    assert [video["tags"] for video in done.objects] == [["night", "rain"]] * 2
    assert done.objects[0]["metadata"] == {"site": "gate", "floor": 3}
    assert run("tag", TRAFFIC, "--remove", "rain", "--unset", "site").lines == [
        f"{TRAFFIC}  night  floor=3"
    ]
    assert run("find", "--meta", "floor=3").lines == ["cam1/open-gop.mkv", TRAFFIC]
    assert run("find", "--meta", "site=gate").lines == ["cam1/open-gop.mkv"]
    assert run("find", "--tag", "rain").lines == ["cam1/open-gop.mkv"]


def test_one_wrong_name_prevents_all_tagging(run: Run) -> None:
    assert run("tag", TRAFFIC, "cam1/none.mp4", "--add", "x").code == 3
    assert run("tag", TRAFFIC).lines == [TRAFFIC]


def test_metadata_needs_a_key(run: Run) -> None:
    done = run("tag", TRAFFIC, "--set", "site")
    assert done.code == 2
    assert "KEY=VALUE" in done.err


# ------------------------------------------------------------------------------------------- info


def test_info_shows_stored_encodings(run: Run) -> None:
    done = run("info", TRAFFIC, "--json").object
    truth = GroundTruth.load(FOLDER / "traffic.mp4")
    assert done["frames"] == truth.frames == 120
    assert (done["width"], done["height"], done["seconds"], done["rate"]) == (320, 240, 4.0, 30.0)
    assert done["gops"] == {"count": 4, "open": 0, "shortest": 30, "median": 30, "longest": 30}
    assert done["keyframes"] == 4
    assert done["names"] == [TRAFFIC]
    (physical,) = done["physical_videos"]
    assert physical["role"] == "original"
    assert physical["object"] == done["digest"]
    assert [stream["codec"] for stream in physical["side_streams"]] == ["aac"]


def test_info_is_readable(run: Run) -> None:
    text = run("info", TRAFFIC).out
    for part in ("120, 30.000 per second", "320x240", "h264", "4 of 30 to 30 frames", "blake3"):
        assert part in text


def test_info_shows_why_a_file_is_not_a_video(run: Run, place: Path) -> None:
    add_plain_file(place / "videos", "notes.txt", "twelve bytes", "it is text")
    assert "it is text" in run("info", "cam1/notes.txt").out
    record = run("info", "cam1/notes.txt", "--json").object
    assert (record["kind"], record["reason"], record["gops"]) == ("file", "it is text", None)


def test_info_shows_the_progress_of_a_growing_file(run: Run, place: Path) -> None:
    with Store.open(place / "videos") as store, closing(Filesystem(store.parts)) as filesystem:
        driver = Driver(filesystem)
        handle = driver.create("/coming.mp4")
        for size in (5000, 12000):
            filesystem.truncate(None, size, driver.caller, handle)
            record = run("info", "coming.mp4", "--json").object
            assert (record["kind"], record["size"]) == ("pending", size)
            assert run("ls", "coming.mp4", "--json").object["size"] == size
        assert "11.7 KiB" in run("info", "coming.mp4").out
        driver.close(handle)


def test_info_of_a_directory(run: Run) -> None:
    assert run("info", "cam1", "--json").object["kind"] == "directory"
    assert run("info", "/").code == 0


# ----------------------------------------------------------------------------------------- frames


def test_frames_lists_exact_times_and_offsets(run: Run) -> None:
    frames = run("frames", TRAFFIC, "--json").objects
    truth = GroundTruth.load(FOLDER / "traffic.mp4")
    assert truth.pts is not None
    assert [frame["pts"] for frame in frames] == list(truth.pts)
    assert [frame["frame"] for frame in frames] == list(range(120))
    assert sum(frame["duration"] for frame in frames) == pytest.approx(4.0)
    data = (FOLDER / "traffic.mp4").read_bytes()
    for frame in frames:  # length-prefixed units fill a packet
        place, end = frame["position"], frame["position"] + frame["size"]
        while place < end:
            place += 4 + int.from_bytes(data[place : place + 4], "big")
        assert place == end


def test_frames_lists_key_frames_and_parts(run: Run) -> None:
    keys = run("frames", TRAFFIC, "--keyframes", "--json").objects
    assert [frame["frame"] for frame in keys] == [0, 30, 60, 90]
    part = run("frames", TRAFFIC, "--range", "10:20:5", "--json").objects
    assert [frame["frame"] for frame in part] == [10, 15]
    last = run("frames", TRAFFIC, "--range", "-1", "--json").objects
    assert [frame["frame"] for frame in last] == [119]


def test_frames_lists_gops(run: Run) -> None:
    gops = run("frames", TRAFFIC, "--gops", "--json").objects
    assert [(gop["first_frame"], gop["frames"]) for gop in gops] == [
        (0, 30),
        (30, 30),
        (60, 30),
        (90, 30),
    ]
    some = run("frames", TRAFFIC, "--gops", "--range", "29:61", "--json").objects
    assert [gop["gop"] for gop in some] == [0, 1, 2]
    sparse = run("frames", TRAFFIC, "--gops", "--range", "0:120:60", "--json").objects
    assert [gop["gop"] for gop in sparse] == [0, 2]
    assert any(
        gop["open"] for gop in run("frames", "cam1/open-gop.mkv", "--gops", "--json").objects
    )


def test_frames_prints_headings_at_a_terminal(run: Run) -> None:
    lines = run("frames", TRAFFIC, "--range", "0:2").lines
    assert lines[0].split()[:3] == ["frame", "pts", "seconds"]
    assert lines[1].split()[:3] == ["0", "0", "0.000000"]
    assert len(lines) == 3


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (("--range", "0:121"), 6),
        (("--range", "-121:"), 6),
        (("--range", "5:5"), 6),
        (("--range", "a:b"), 2),
        (("--range", "0:9:0"), 2),
        (("--keyframes", "--gops"), 2),
    ],
)
def test_frames_outside_the_video(run: Run, args: tuple[str, ...], code: int) -> None:
    done = run("frames", TRAFFIC, *args)
    assert (done.code, done.out) == (code, "")


def test_info_pattern(run: Run) -> None:
    found = [json.loads(line) for line in run("info", "cam1/*", "--json").lines]
    assert len(found) > 1
    assert run("info", found[0]["name"], "--json").object == found[0]
    both = run("info", found[0]["name"], "cam1", "cam1/*", "--json").lines
    assert len(both) == len(found) + 1
    one, several = run("info", found[0]["name"]).lines, run("info", "cam1/*").lines
    assert several[: len(one)] == one
    assert several[len(one)] == ""
    assert run("info", "none/*").code == 3


# --------------------------------------------------------------------------------------------------
# Patterns for names of videos: the commands that accept them, and errors of the others


OPEN_GOP = "cam1/open-gop.mkv"
BOTH = [OPEN_GOP, TRAFFIC]
BOXES = "frame,label,x1,y1,x2,y2\n1,car,0,0,9,9\n3,bus,0,0,5,5\n"


@pytest.fixture
def labelled(run: Run, place: Path) -> Run:
    (place / "boxes.csv").write_text(BOXES)
    for name in BOTH:
        assert run("labels", "import", name, "boxes.csv", "--source", "s").code == 0
    return run


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (("frames", "cam1/*", "--range", "0:2"), [OPEN_GOP, OPEN_GOP, TRAFFIC, TRAFFIC]),
        (("frames", TRAFFIC, OPEN_GOP, "--range", "0"), [TRAFFIC, OPEN_GOP]),
        (("explain", "cam1/*"), BOTH),
        (("explain", "cam1/*", "--as", "mp4"), BOTH),
        (("labels", "query", "cam1/*", "car"), BOTH),
        (("labels", "query", "cam1/*", "--count"), BOTH),
        (("labels", "rm", "cam1/*", "--all"), BOTH),
        (("layout", "show", "cam1/*"), BOTH),
        (("pin", "cam1/*"), BOTH),
        (("policy", "show", "cam1/*"), BOTH),
        (("policy", "set", "cam1/*", "original=keep"), BOTH),
    ],
)
def test_pattern_matches_several(labelled: Run, words: tuple[str, ...], names: list[str]) -> None:
    done = labelled(*words, "--json")
    assert done.code == 0, done.err
    assert [one.get("name", one.get("path")) for one in done.objects] == names
    plain = labelled(*words)
    assert plain.code == 0, plain.err


@pytest.mark.parametrize("words", [("layout", "history"), ("layout", "diff"), ("reads",)])
def test_pattern_without_results(run: Run, words: tuple[str, ...]) -> None:
    assert run(*words, "cam1/*").code == 0
    assert run(*words, "no*").code == 3


def test_pattern_of_tiles(run: Run) -> None:
    assert run("retile", "cam1/*", "--layout", "uniform:1x2", "--span", "0-1").code == 0
    for words in (("layout", "rollback"), ("layout", "rollback"), ("layout", "drop", "-y")):
        done = run(*words, "cam1/*", "--json")
        assert [one["name"] for one in done.objects] == BOTH, done.err
    assert run("render", "cam1/*", "--size", "160x0", "--span", "0-1", "--yes").code == 0
    done = run("rendition", "drop", "cam1/*", "-y", "--json")
    assert [one["name"] for one in done.objects] == BOTH
    assert [one["name"] for one in run("pin", "cam1/*", "--json").objects] == BOTH
    assert [one["name"] for one in run("unpin", "cam1/*", "--json").objects] == BOTH


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("read", ("read", "cam1/*", "x.png", "--at", "0")),
        ("advise", ("advise", "cam1/*", "--from-reads")),
        ("labels import", ("labels", "import", "cam1/*", "labels/traffic.csv")),
        ("overlap show", ("overlap", "show", "cam1/*", TRAFFIC)),
        ("overlap join", ("overlap", "join", "cam1/*", TRAFFIC)),
    ],
)
def test_command_for_one_video(run: Run, command: str, words: tuple[str, ...]) -> None:
    done = run(*words)
    assert done.code == 2
    assert f"{command} takes one video; 2 match 'cam1/*'" in done.err
    assert "vfsd find 'cam1/*'" in done.err


def test_pattern_for_one_match(run: Run, place: Path) -> None:
    assert run("read", "cam1/t*", "x.png", "--at", "0").code == 0
    assert (place / "x.png").exists()


def test_video_out_of_range(run: Run, place: Path) -> None:
    """The longer video is listed, and the shorter one is skipped with a warning."""
    frames = {name: run("info", name, "--json").object["frames"] for name in BOTH}
    short, long = sorted(BOTH, key=frames.__getitem__)
    assert frames[short] < frames[long]
    done = run("frames", "cam1/*", "--range", str(frames[short]), "--json")
    assert (done.code, [one["name"] for one in done.objects]) == (0, [long])
    assert f"warning: skipped {short}" in done.err
    assert run("frames", "cam1/*", "--range", str(frames[long])).code == 6


def test_counts_of_pattern(labelled: Run) -> None:
    assert labelled("labels", "query", "cam1/*", "--count").lines == [
        f"    2  {OPEN_GOP}".strip(),
        f"    2  {TRAFFIC}".strip(),
        "4  total",
    ]


def test_export_dataset(labelled: Run, place: Path) -> None:
    """Importing one COCO file of two videos assigns the boxes to each video again."""
    done = labelled("labels", "export", "cam1/*", "--format", "coco", "-o", "all.json", "--json")
    assert [(one["name"], one["boxes"]) for one in done.objects] == [(one, 2) for one in BOTH]
    whole = json.loads((place / "all.json").read_text())
    assert [one["name"] for one in whole["videos"]] == BOTH
    assert len({one["id"] for one in whole["images"]}) == len(whole["images"])
    assert len({one["id"] for one in whole["annotations"]}) == 4
    before = {name: labelled("labels", "query", name, "--json").out for name in BOTH}
    for name in BOTH:
        assert labelled("labels", "rm", name, "--all").code == 0
        done = labelled("labels", "import", name, "all.json", "--json")
        assert done.object["boxes"] == 2, done.err
        assert labelled("labels", "query", name, "--json").out == before[name]


@pytest.mark.parametrize(
    ("form", "files"),
    [
        ("csv", [f"{one}.csv" for one in BOTH]),
        ("mot", [f"{one}.{end}" for one in BOTH for end in ("labels.txt", "txt")]),
        ("voc", [f"{one}/{frame:06}.xml" for one in BOTH for frame in (1, 3)]),
    ],
)
def test_export_folder(labelled: Run, place: Path, form: str, files: list[str]) -> None:
    done = labelled("labels", "export", "cam1/*", "--format", form, "-o", "out")
    assert done.code == 0, done.err
    found = {str(one.relative_to(place / "out")) for one in (place / "out").rglob("*.*")}
    assert set(files) <= found
    again = labelled("labels", "import", TRAFFIC, f"out/{TRAFFIC}{_end(form)}", "--source", "t")
    assert again.code == 0, again.err
    assert labelled("labels", "export", "cam1/*", "--format", form, "-o", "out").code == 4
    assert labelled("labels", "export", "cam1/*", "--format", "csv", "-o", "-").code == 2


def _end(form: str) -> str:
    return {"csv": ".csv", "mot": ".txt", "voc": ""}[form]
