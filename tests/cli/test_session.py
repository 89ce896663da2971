"""Which store a command works on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import run_command
from vfsd.cli.session import store_name
from vfsd.errors import UsageError


def test_the_store_may_be_named_before_and_after_the_command(place: Path) -> None:
    assert run_command("--store", "videos", "ls").lines == ["cam1/"]
    assert run_command("ls", "--store", "videos").lines == ["cam1/"]
    assert run_command("ls", "-s", "videos", "cam1").lines == ["open-gop.mkv", "traffic.mp4"]
    assert run_command("--store", "nowhere", "ls", "--store", "videos").code == 0


def test_the_environment_names_the_store_last(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VFSD_STORE", str(place / "videos"))
    assert run_command("ls").lines == ["cam1/"]
    assert run_command("ls", "--store", "nowhere").code == 10
    monkeypatch.setenv("VFSD_STORE", str(place / "nowhere"))
    assert run_command("ls").code == 10
    assert run_command("ls", "--store", "videos").code == 0


def test_somebody_has_to_name_a_store(place: Path) -> None:
    done = run_command("ls")
    assert done.code == 2
    assert "VFSD_STORE" in done.err


def test_quiet_leaves_only_the_data(place: Path) -> None:
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
def test_names_have_one_form(path: str, name: str) -> None:
    assert store_name(path) == name


@pytest.mark.parametrize("path", ["..", "../x", "a/../../x"])
def test_names_stay_inside(path: str) -> None:
    with pytest.raises(UsageError):
        store_name(path)
