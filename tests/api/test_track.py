"""`VideoLabels.track`: tracks of stored boxes."""

from __future__ import annotations

import numpy as np
import pytest

from sample_videos import FOLDER
from vfsd import DetectionColumns, Store, Video
from vfsd.core.detections import Source
from vfsd.errors import NotFoundError, UnknownLabelWarning, UsageError


@pytest.fixture
def video(store: Store) -> Video:
    return store.ingest(FOLDER / "traffic.mp4", "cam1/a.mp4")


def add_boxes(video: Video, source: str | Source, every: int = 10) -> None:
    """Two objects, one above the other; the lower one has two labels in turn."""
    frames = np.arange(0, 120, every)
    upper = np.stack([frames, frames * 0, frames + 40, frames * 0 + 30], axis=1)
    video.labels.add(DetectionColumns.of(frames, "person", upper), source)
    lower = upper + np.array([0, 100, 0, 100])
    labels = ["car" if at % 2 else "truck" for at in range(len(frames))]
    video.labels.add(DetectionColumns.of(frames, labels, lower), source)
    video.labels.mark_examined(frames, source)


def test_tracks_are_a_new_source(video: Video) -> None:
    add_boxes(video, "net")
    before = list(video.labels.query())
    done = video.labels.track("car|truck", source="net")
    assert (done.boxes, done.tracks, done.frames) == (12, 1, 12)
    assert [one for one in video.labels.query() if one.source != done.source] == before
    made = video.labels.query(source=done.source).columns()
    old = video.labels.query("car|truck", source="net").columns()
    assert np.array_equal(made.boxes, old.boxes)
    assert made.labels.tolist() == old.labels.tolist()
    looked = [one.frames for one in video.labels.examined(done.source)]
    assert looked == [one.frames for one in video.labels.examined("net")]
    # Again: earlier results are neither tracked nor kept along with the new ones.
    assert video.labels.track("car|truck") == done
    assert len(video.labels.query(source=done.source)) == 12
    # Events need tracks.
    assert len(video.events("below(a, b) for 1s", a="car|truck", b="person", source="track")) == 0
    everything = video.labels.track(gap=3)
    assert (everything.boxes, everything.tracks) == (24, 3)  # each label on its own
    found = video.events("below(a, b)", a="car", b="person", source=everything.source)
    assert len(found)


def test_nothing_found_is_noted_as_examined(video: Video) -> None:
    video.labels.mark_examined(range(50), "net")
    done = video.labels.track()
    assert (done.boxes, done.tracks, done.frames) == (0, 0, 50)
    assert [one.frames for one in video.labels.examined(done.source)] == [range(50)]


def test_refusals_change_nothing(video: Video) -> None:
    with pytest.raises(NotFoundError, match="has no boxes to track"):
        video.labels.track()
    add_boxes(video, "net")
    add_boxes(video, Source("net", "v2"))
    before = list(video.labels.query())
    with pytest.raises(UsageError, match=r"must have one source, .* have 2: net, net v2"):
        video.labels.track("car", source="net")
    with pytest.raises(UsageError, match="min_iou must be above 0 and at most 1, got 0"):
        video.labels.track("car", source=Source("net"), min_iou=0)
    with pytest.raises(UsageError, match="gap"):
        video.labels.track("car", source=Source("net"), gap=-1)
    with pytest.warns(UnknownLabelWarning, match="'cra'"), pytest.raises(NotFoundError):
        video.labels.track("cra")
    assert list(video.labels.query()) == before
    assert video.labels.track("car", source=Source("net", "v2")).boxes == 6
