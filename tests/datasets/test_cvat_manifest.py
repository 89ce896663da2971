"""The manifest for CVAT: what CVAT's own program would write, and what it validates."""

from __future__ import annotations

import json
from hashlib import md5
from pathlib import Path

import av
import pytest

from sample_videos import FOLDER
from vfsd.api.store import Store
from vfsd.datasets.cvat_manifest import cvat_manifest
from vfsd.errors import UsageError


@pytest.mark.parametrize("name", ["traffic.mp4", "open-gop.mkv", "edit-list.mp4"])
def test_manifest(store: Store, name: str) -> None:
    video = store.ingest(FOLDER / name, f"cam1/{name}")
    version, kind, properties, *frames = map(json.loads, cvat_manifest(video))
    assert (version, kind) == ({"version": "1.1"}, {"type": "video"})
    assert properties == {
        "properties": {"name": name, "resolution": [320, 240], "length": len(video)}
    }
    with av.open(str(FOLDER / name)) as container:
        decoded = list(container.decode(video=0))
    assert frames == [
        {
            "number": number,
            "pts": frame.pts,
            "checksum": md5(frame.to_ndarray(format="rgb24").tobytes()).hexdigest(),
        }
        for number, frame in enumerate(decoded)
        if frame.key_frame
    ]
    with av.open(str(FOLDER / name)) as container:
        for one in frames:  # as CVAT validates a manifest
            container.seek(one["pts"], stream=container.streams.video[0])
            assert next(container.decode(video=0)).pts == one["pts"]


@pytest.mark.parametrize("name", ["portrait.mp4", "odd-size.webm"])
def test_videos_that_cvat_shows_otherwise(store: Store, name: str, tmp_path: Path) -> None:
    video = store.ingest(FOLDER / name)
    with pytest.raises(UsageError, match="differ in CVAT"):
        list(cvat_manifest(video))
