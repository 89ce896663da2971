"""An installation that cannot examine files says so, and names the cause."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from sample_videos import FOLDER
from tests.brokenpyav import environment
from tests.stores import new_store
from vfsd.api.store import Store
from vfsd.codecs.probing.probe import sample_video
from vfsd.errors import BusyError, ExaminerError
from vfsd.storage import sandbox_pool as examiner_module
from vfsd.storage.sandbox_pool import Examiner
from vfsd.storage.sandbox_protocol import SandboxLimits

VIDEO = FOLDER / "portrait.mp4"


def run(env: dict[str, str], *words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "vfsd", *map(str, words)]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("kind", "cause"),
    [
        ("unloadable", "undefined symbol"),
        ("other keywords", "unexpected keyword argument"),
        ("no subtitles", "Too many open files"),
    ],
)
def test_doctor_finds_broken_examiner(tmp_path: Path, kind: str, cause: str) -> None:
    done = run(environment(tmp_path, kind), "doctor", "--json")
    found = [json.loads(line) for line in done.stdout.splitlines()]
    (one,) = (one for one in found if one["check"] == "examiner")
    assert (one["status"], done.returncode) == ("fail", 30)
    assert cause in one["message"]
    assert "pip install" in one["advice"]


@pytest.mark.parametrize(
    ("kind", "cause"),
    [("unloadable", "undefined symbol"), ("other keywords", "unexpected keyword argument")],
)
def test_ingest_names_cause(tmp_path: Path, kind: str, cause: str) -> None:
    """One line of an error, and the store stays as it was."""
    new_store(tmp_path / "store").close()
    env = environment(tmp_path / "path", kind)
    done = run(env, "-s", tmp_path / "store", "ingest", VIDEO, VIDEO.parent / "traffic.mp4")
    assert done.returncode == 20
    assert cause in done.stderr
    assert "vfsd doctor" in done.stderr
    assert "Traceback" not in done.stderr
    with Store.open(tmp_path / "store", read_only=True) as store:
        assert len(store) == 0


def test_examiner_reports_broken_libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = environment(tmp_path, "other keywords")["PYTHONPATH"]
    monkeypatch.setenv("PYTHONPATH", path)
    examiner = Examiner(SandboxLimits())
    try:
        for attempt in (examiner.require_start, lambda: examiner.examine(VIDEO)):
            with pytest.raises(ExaminerError, match="unexpected keyword argument") as caught:
                attempt()
            assert "vfsd doctor" in str(caught.value.hint)
        # What was started ahead of time tells the same.
        examiner.start()
        with pytest.raises(ExaminerError, match="unexpected keyword argument"):
            examiner.require_start()
    finally:
        examiner.close()


@pytest.mark.parametrize(
    ("code", "error", "words"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGILL)", ExaminerError, "SIGILL"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", BusyError, "was killed"),
        ("import os; os._exit(3)", ExaminerError, "ends with 3"),
        ("import time; time.sleep(60)", ExaminerError, "not ready after"),
    ],
)
def test_examiner_that_dies_at_start(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    code: str,
    error: type[Exception],
    words: str,
) -> None:
    """A library that crashes, hangs, or ends the process while it is loaded."""
    (tmp_path / "av").mkdir()
    (tmp_path / "av/__init__.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(examiner_module, "_START_SECONDS", 60.0 if "sleep" not in code else 1.0)
    examiner = Examiner(SandboxLimits())
    try:
        with pytest.raises(error, match=words):
            examiner.examine(VIDEO)
    finally:
        examiner.close()


def test_sample_video_has_subtitles(tmp_path: Path) -> None:
    import av

    path = tmp_path / "sample.mkv"
    path.write_bytes(sample_video())
    with av.open(str(path)) as opened:
        assert len(opened.streams.subtitles) == 1
        assert len(list(opened.decode(video=0))) == 5
