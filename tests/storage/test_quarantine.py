"""Files that may have crashed a mount: their restrictions, and the end of these."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sample_videos import FOLDER
from tests.support.stores import new_store
from vfsd.api.store import Store
from vfsd.core.model import PhysicalVideo
from vfsd.errors import RefusedMediaError
from vfsd.mount.background_work import BackgroundVerifier


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with new_store(tmp_path / "store") as made:
        made.ingest(FOLDER / "portrait.mp4", "v.mp4")
        yield made


def add_crash(store: Store) -> None:
    """Record a crash like the next mount, which is another process."""
    with Store.open(store.path) as other:
        other.parts.quarantine.add_crash(other["v.mp4"].original, "Segmentation fault")


def verifies(store: Store, seconds: float) -> bool:
    """Whether background verification of a mount lifts the restriction."""
    verifier = BackgroundVerifier(store)
    end = time.monotonic() + seconds
    try:
        while store.parts.quarantine.barred():
            if time.monotonic() > end:
                return False
            time.sleep(0.02)
        return True
    finally:
        verifier.close()


def test_suspect_is_not_decoded_before_a_successful_verify(store: Store) -> None:
    video = store["v.mp4"]
    assert len(video.read(frames=slice(0, 2)).data) == 2
    add_crash(store)
    with pytest.raises(RefusedMediaError, match="Segmentation fault"):
        video.read(frames=slice(4, 6))
    assert verifies(store, 60)
    assert len(video.read(frames=slice(4, 6)).data) == 2
    add_crash(store)
    assert not verifies(store, 3)  # after the second crash only a user may lift it
    suspicion = store.parts.quarantine.of(video.original)
    assert suspicion is not None
    assert suspicion.crashes == 2
    video.verify()
    assert len(video.read(frames=slice(6, 8)).data) == 2


def test_concurrent_crash_records_are_kept(store: Store) -> None:
    """A mount adds records while `vfsd verify` removes others."""
    originals = []
    for name in ("traffic.mp4", "late-start.mp4", "open-gop.mkv"):
        originals.append(store.ingest(FOLDER / name, name).original)
    lifted = store["v.mp4"].original
    together = threading.Barrier(4)

    def change(original: PhysicalVideo) -> None:
        with Store.open(store.path) as other:
            together.wait()
            for _ in range(20):
                other.parts.quarantine.add_crash(original, "Segmentation fault")
                if original is lifted:
                    other.parts.quarantine.lift(original)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(change, [*originals, lifted]))
    for original in (*originals, lifted):
        suspicion = store.parts.quarantine.of(original)
        assert suspicion is not None
        assert (suspicion.crashes, suspicion.barred) == (20, original is not lifted)


@pytest.mark.parametrize(
    "told",
    [
        '{"a": {"crashes": "many"}}',
        '{"/\\ud800": {"crashes": 1, "at": 1, "how": "", "barred": true}}',
    ],
)
def test_unreadable_quarantine_file_restricts_no_video(store: Store, told: str) -> None:
    (store.path / "suspects.json").write_text(told)
    assert store.parts.quarantine.barred() == {}
    assert len(store["v.mp4"].read(frames=slice(0, 1)).data) == 1


def test_clean_exit_removes_the_crash_marker(store: Store) -> None:
    suspects, note = store.parts.quarantine, store.parts.directory.decoding_note
    with suspects.record_decoding(note):
        with suspects.decoding(store["v.mp4"].original):
            assert any(note.read_bytes()[:4096])
            assert suspects.crashed(note) == ([], "")  # no crash so far
        assert not any(note.read_bytes()[:4096])
    assert not note.exists()
