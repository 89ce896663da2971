"""Two processes that make the same tiles or rendition at once leave one set of them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import product
from pathlib import Path

import pytest

from sample_videos import FOLDER
from tests.support.selection import thorough_but
from tests.support.stores import new_store
from vfsd.api.store import Store
from vfsd.core.model import Role
from vfsd.maintenance import fsck

ROOT = Path(__file__).resolve().parents[2]
CLIP = FOLDER / "traffic.mp4"


@contextmanager
def opened(request: pytest.FixtureRequest, path: Path, catalog: str) -> Iterator[Store]:
    """A new store with its catalog in SQLite or PostgreSQL."""
    if catalog == "sqlite":
        with new_store(path) as store:
            yield store
    else:
        url = request.getfixturevalue("own_database")
        with Store.create(path, catalog_url=url) as store:
            yield store


def started(stack: ExitStack, store: Store, kind: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.support.tile_maker", str(store.path), "a.mp4", kind]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    stack.callback(process.kill)
    return stack.enter_context(process)


@pytest.mark.parametrize(
    ("catalog", "kind"),
    thorough_but(
        [("sqlite", "tiles")],
        product(["sqlite", "postgresql"], ["tiles", "rendition", "import"]),
    ),
)
def test_two_processes_publish_one_set(
    request: pytest.FixtureRequest, tmp_path: Path, catalog: str, kind: str
) -> None:
    with opened(request, tmp_path / "store", catalog) as store:
        publish_twice(store, kind)


def publish_twice(either: Store, kind: str) -> None:
    video = either.ingest(CLIP, "a.mp4")
    video.verify()
    with ExitStack() as stack:
        # Neither can publish before both have found that all segments are missing.
        with either.catalog.writing():
            both = [started(stack, either, kind) for _ in range(2)]
            for process in both:
                assert process.stdout is not None
                assert process.stdout.readline() == "begun\n"
        counts = [int(process.communicate(timeout=120)[0]) for process in both]

    wanted = len(video.tiles.sequences())
    with either.catalog.reading() as seen:
        segments = seen.segments.of_original(video.original.id)
        encodings = [one for one in seen.videos.physicals(video.info.id) if one.parent_id]
        charged = seen.derived_usage.charged_bytes(video.info.id)
    assert sum(counts) == len(segments) == wanted
    assert all(one.retired_ns is None for one in segments)
    assert len({one.frames for one in segments}) == wanted
    assert [one.role for one in encodings] == [Role.TILED if kind == "tiles" else Role.RENDITION]
    assert charged == sum(one.size for one in segments)

    fsck.collect(either.parts)
    assert fsck.run(either.parts) == []
    stored = set(either.parts.objects.all_keys())
    assert stored == {one.object_key for one in segments} | {video.original.object_key}
    assert list(either.parts.directory.objects_tmp.iterdir()) == []
