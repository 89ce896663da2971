"""``vfsd vectors`` and ``vfsd sample``: files in and out, searches and samples."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sample_videos import FOLDER
from tests.cli.conftest import run_command
from tests.support.stores import new_store
from vfsd import Store
from vfsd.errors import ExistsError, NotFoundError, RefusedMediaError, UsageError

MATRIX = np.random.default_rng(0).normal(size=(12, 20)).astype(np.float16)
NAME = "cam1/traffic.mp4"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a store and a file of vectors."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VFSD_STORE", str(tmp_path / "store"))
    with new_store(tmp_path / "store") as store:
        store.ingest(FOLDER / "traffic.mp4", NAME)
    np.savez("clip.npz", vectors=MATRIX, frames=np.arange(0, 120, 10))
    return tmp_path


def add(*arguments: str) -> object:
    done = run_command("vectors", "add", NAME, *arguments, "--json")
    assert done.code == 0, done.err
    return done.object["vectors"]


@pytest.mark.parametrize("suffix", [".npz", ".parquet"])
def test_what_goes_out_comes_in(place: Path, suffix: str) -> None:
    if suffix == ".parquet":
        pytest.importorskip("pyarrow")
    assert add("clip.npz", "--source", "clip") == 12
    out = f"out{suffix}"
    assert run_command("vectors", "export", NAME, out).code == 0
    assert run_command("vectors", "export", NAME, out).code == ExistsError.exit_code
    assert add(out, "--source", "again") == 12
    with Store.open(place / "store") as store:
        found = [store[NAME].vectors.get(name) for name in ("clip", "again")]
        assert found[1].matrix.dtype == np.float16
        assert np.array_equal(found[0].matrix, MATRIX)
        assert np.array_equal(found[1].matrix, MATRIX)
        assert np.array_equal(found[0].frames, found[1].frames)
    (one, _) = run_command("vectors", "ls", "--json").objects
    assert (one["source"], one["vectors"], one["dimension"]) == ("clip", 12, 20)
    assert (one["dtype"], one["frames"]) == ("float16", [0, 111])
    assert run_command("vectors", "rm", NAME, "--source", "again", "--json").object["vectors"] == 12
    assert run_command("vectors", "rm", "cam1/*", "--all", "--json").object["vectors"] == 12
    assert run_command("vectors", "ls").out == ""


def test_bare_matrix(place: Path) -> None:
    np.save("wide.npy", MATRIX[:5].astype(np.float64) / 3)
    done = run_command("vectors", "add", NAME, "wide.npy", "--every", "25", "--source", "x")
    assert done.code == UsageError.exit_code
    assert "must be float16 or float32, got float64" in done.err
    assert add("wide.npy", "--every", "25", "--source", "x", "--as", "float32") == 5
    with Store.open(place / "store") as store:
        frames = store[NAME].vectors.get().frames.tolist()
    assert frames == [[0, 25], [25, 50], [50, 75], [75, 100], [100, 120]]
    assert run_command("vectors", "export", NAME, "out.npy").code == 0
    assert np.array_equal(np.load("out.npy"), (MATRIX[:5].astype(np.float64) / 3).astype("f4"))


def test_refused_files(place: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    Path("text.npz").write_text("hello")
    Path("text.parquet").write_text("hello")
    np.savez("other.npz", numbers=MATRIX)
    np.save("objects.npy", np.array([{}, None]), allow_pickle=True)
    Path("cut.npz").write_bytes(Path("clip.npz").read_bytes()[:200])
    uneven = {"first_frame": [0, 1], "end_frame": [1, 2], "vector": [[0.5, 1.0], [1.0]]}
    parquet.write_table(pyarrow.table(uneven), "uneven.parquet")
    words = {"first_frame": ["a"], "end_frame": [1], "vector": [[0.5]]}
    parquet.write_table(pyarrow.table(words), "words.parquet")
    for name in ("text.npz", "text.parquet", "other.npz", "cut.npz"):
        done = run_command("vectors", "add", NAME, name, "--source", "x")
        assert done.code == RefusedMediaError.exit_code
        assert "does not hold vectors" in done.err
    for name in ("uneven.parquet", "words.parquet"):
        done = run_command("vectors", "add", NAME, name, "--source", "x")
        assert done.code == RefusedMediaError.exit_code, done.err
    done = run_command("vectors", "add", NAME, "objects.npy", "--every", "1", "--source", "x")
    assert done.code == RefusedMediaError.exit_code
    usage = [
        ("clip.npz",),
        ("clip.npz", "--source", "x", "--every", "3"),
        ("clip.txt", "--source", "x"),
    ]
    for arguments in usage:
        assert run_command("vectors", "add", NAME, *arguments).code == UsageError.exit_code
    done = run_command("vectors", "add", NAME, "none.npz", "--source", "x")
    assert done.code == NotFoundError.exit_code
    assert run_command("vectors", "ls").out == ""


def test_search_and_sample(place: Path) -> None:
    add("clip.npz", "--source", "clip")
    np.save("query.npy", MATRIX[3])
    found = run_command("vectors", "nearest", "query.npy", "-k", "2", "--json").objects
    assert (found[0]["name"], found[0]["frames"], found[0]["view"]) == (
        NAME,
        [30, 31],
        "frames=30-31",
    )
    assert found[0]["score"] == pytest.approx(1, abs=1e-5)
    by_frame = run_command("vectors", "nearest", NAME, "--frame", "30", "-k", "1", "--json").objects
    assert by_frame == found[1:]
    line = run_command("vectors", "nearest", "query.npy", "-k", "1").out.split()
    assert line == ["1.0000", NAME, "0:01.00", "30-30"]
    text = run_command("vectors", "nearest", "clip.npz", "--explain").out
    assert text == "exact: all 12 vectors were compared\n"
    arguments = ("sample", "3", "--far", "clip", "--seed", "1", "--json")
    far = run_command(*arguments).objects
    assert far == run_command(*arguments).objects
    assert len({tuple(one["frames"]) for one in far}) == 3
    one = run_command("sample", "1", "cam1/*", "--unlabelled", "anna", "--json").object
    assert one["span"][1] - one["span"][0] == 1
    assert one["view"] == f"frames={one['frames'][0]}-{one['frames'][1]}"
