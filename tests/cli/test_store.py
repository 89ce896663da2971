"""``vfsd rm``, ``mv``, ``init`` and ``config``: changing a store.

The store that a command works on.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Run, run_command
from vfsd.cli.session import store_name
from vfsd.errors import UsageError

TRAFFIC = "cam1/traffic.mp4"


def test_rm_deletes_a_file_and_its_bytes(run: Run, place: Path) -> None:
    done = run("rm", TRAFFIC, "--json")
    assert done.object == {"schema": 1, "path": TRAFFIC, "files": 1}
    assert run("ls", "cam1").lines == ["open-gop.mkv"]
    objects = [path for path in (place / "videos/objects").rglob("*") if path.is_file()]
    assert len(objects) == 1


def test_rm_needs_an_option_for_a_full_directory(run: Run) -> None:
    done = run("rm", "cam1")
    assert done.code == 2
    assert "--recursive" in done.err
    assert run("rm", "-r", "cam1", "--json").object["files"] == 2
    assert run("ls").lines == []


def test_rm_with_one_wrong_name_removes_nothing(run: Run) -> None:
    assert run("rm", TRAFFIC, "cam1/none.mp4").code == 3
    assert run("ls", "cam1").lines == ["open-gop.mkv", "traffic.mp4"]


def test_rm_of_the_root_is_refused(run: Run) -> None:
    assert run("rm", "-r", "/").code == 2


def test_mv_renames(run: Run) -> None:
    assert run("mv", TRAFFIC, "new/place/b.mp4").code == 0
    assert run("ls", "-R").lines == [
        "cam1/",
        "cam1/open-gop.mkv",
        "new/",
        "new/place/",
        "new/place/b.mp4",
    ]


def test_mv_into_a_directory_and_over_a_file(run: Run) -> None:
    run("ingest", "footage/portrait.mp4")
    assert run("mv", "portrait.mp4", "cam1").code == 0
    assert run("mv", "cam1/portrait.mp4", TRAFFIC).code == 4
    assert run("mv", "cam1/portrait.mp4", TRAFFIC, "--replace").code == 0
    assert run("info", TRAFFIC, "--json").object["height"] == 320


def test_mv_to_the_root(run: Run) -> None:
    for root, name in zip(("/", "."), ("traffic.mp4", "open-gop.mkv"), strict=True):
        done = run("mv", f"cam1/{name}", root, "--json")
        assert (done.code, done.object["new"]) == (0, "/")
    assert run("ls", "-R").lines == ["cam1/", "open-gop.mkv", "traffic.mp4"]
    assert run("mv", "/", "cam1").code == 2


# ------------------------------------------------------------------------------------------- init


def test_init_creates_a_store_once(place: Path) -> None:
    done = run_command("init", place / "new", "--json")
    assert done.object["store"] == str(place / "new")
    assert run_command("init", place / "new").code == 4
    assert run_command("ls", "--store", place / "new").out == ""


def test_init_at_the_path_of_an_option(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VFSD_STORE", str(place / "env"))
    assert run_command("init").lines == [str(place / "env")]
    assert run_command("init", "-s", place / "given").lines == [str(place / "given")]


def test_init_refuses_a_nonempty_directory(place: Path) -> None:
    assert run_command("init", place / "footage").code == 4


@pytest.mark.parametrize("url", ["foo://bar", "sqlite+foo:///x", "nonsense", "postgresql://h:p/x"])
def test_init_with_an_invalid_catalog(place: Path, url: str) -> None:
    done = run_command("init", place / "new", "--catalog", url)
    assert done.code == 2
    assert "sqlite:////DIR/FILE" in done.err
    assert not (place / "new").exists()


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///", "sqlite:///:memory:"])
def test_init_with_a_temporary_catalog(place: Path, url: str) -> None:
    done = run_command("init", place / "new", "--catalog", url)
    assert done.code == 2
    assert "sqlite:////DIR/FILE" in done.err
    assert not (place / "new").exists()


@pytest.mark.parametrize("name", ["rel.sqlite3", "with%20space.sqlite3?timeout=3"])
def test_catalog_is_found_from_any_directory(
    place: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    odd = place / "50%20 off?"
    odd.mkdir()
    monkeypatch.chdir(odd)
    assert run_command("init", place / "new", "--catalog", f"sqlite:///{name}").code == 0
    monkeypatch.chdir(place / "mnt")
    assert run_command("-s", place / "new", "ls").code == 0
    assert len(list(odd.glob("*.sqlite3"))) == 1
    assert not any((place / "mnt").iterdir())


def test_two_stores_do_not_share_a_catalog(place: Path) -> None:
    url = f"sqlite:///{place}/shared.sqlite3"
    assert run_command("init", place / "one", "--catalog", url).code == 0
    for _ in range(2):
        done = run_command("init", place / "other", "--catalog", url)
        assert (done.code, (place / "other").exists()) == (4, False)
    assert "catalog" in done.err
    assert run_command("-s", place / "one", "ingest", place / "footage/traffic.mp4").code == 0
    assert run_command("-s", place / "one", "verify", "traffic.mp4").code == 0


# ----------------------------------------------------------------------------------------- config


def test_config_shows_and_changes_settings(run: Run) -> None:
    assert run("config", "verify").lines == ["true"]
    assert run("config", "verify", "false").lines == ["false"]
    settings = {setting["key"]: setting for setting in run("config", "--json").objects}
    assert (settings["verify"]["value"], settings["verify"]["default"]) == (False, True)
    assert settings["workers"]["help"]
    assert any(line.startswith("verify = false") for line in run("config").lines)


@pytest.mark.parametrize(
    "args", [("nothing",), ("workers", "many"), ("workers", "0"), ("verify", "maybe")]
)
def test_config_refuses_invalid_settings(run: Run, args: tuple[str, ...]) -> None:
    assert run("config", *args).code == 2


# --------------------------------------------------------------------------------------------------
# The store that a command works on


def test_store_option_before_or_after_the_command(place: Path) -> None:
    assert run_command("--store", "videos", "ls").lines == ["cam1/"]
    assert run_command("ls", "--store", "videos").lines == ["cam1/"]
    assert run_command("ls", "-s", "videos", "cam1").lines == ["open-gop.mkv", "traffic.mp4"]
    assert run_command("--store", "nowhere", "ls", "--store", "videos").code == 0


def test_environment_variable_has_lowest_precedence(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VFSD_STORE", str(place / "videos"))
    assert run_command("ls").lines == ["cam1/"]
    assert run_command("ls", "--store", "nowhere").code == 10
    monkeypatch.setenv("VFSD_STORE", str(place / "nowhere"))
    assert run_command("ls").code == 10
    assert run_command("ls", "--store", "videos").code == 0


def test_missing_store_option_is_refused(place: Path) -> None:
    done = run_command("ls")
    assert done.code == 2
    assert "VFSD_STORE" in done.err


def test_quiet_prints_only_data(place: Path) -> None:
    args = ("-s", "videos", "ingest", "footage/portrait.mp4")
    done = run_command(*args, "--to", "a")
    assert "1 ingested" in done.err
    for words in (("-q", *args), (*args, "--quiet")):
        done = run_command(*words, "--to", "b", "--replace")
        assert done.err == ""


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("cam1/a.mp4", "cam1/a.mp4"),
        ("/cam1//a.mp4/", "cam1/a.mp4"),
        ("./cam1/../b", "b"),
        ("", ""),
        ("/", ""),
        (".", ""),
    ],
)
def test_names_are_normalized(path: str, name: str) -> None:
    assert store_name(path) == name


@pytest.mark.parametrize("path", ["..", "../x", "a/../../x"])
def test_names_outside_the_store_are_refused(path: str) -> None:
    with pytest.raises(UsageError):
        store_name(path)
