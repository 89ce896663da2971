"""Saved searches find what the same call finds, and last as long as the store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sample_videos import FOLDER
from tests.support.stores import new_store
from vfsd.api.events import EventList
from vfsd.api.store import Store
from vfsd.core.detections import Source
from vfsd.errors import (
    ExistsError,
    NotFoundError,
    ReadOnlyError,
    UnknownLabelWarning,
    UsageError,
)
from vfsd.maintenance.backup import back_up

BOX = (10, 20, 60, 50)
SOURCE = Source("net", "v8", "2", {"size": 640})


def _labelled(store: Store, name: str) -> None:
    video = store.ingest(FOLDER / "traffic.mp4", name)
    for frame in range(10):
        video.labels.add_box(frame, "car", BOX, 0.9, 1, source=SOURCE, attributes={"lane": 3})
        video.labels.add_box(frame, "bus", (30, 20, 70, 50), 0.4, 2, source=SOURCE)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with new_store(tmp_path / "store") as store:
        _labelled(store, "cam1/a.mp4")
        yield store


BOXES: list[dict[str, Any]] = [
    {},
    {"labels": "car & not red & lane=3", "names": "cam1/*", "span": (0, "0.2")},
    {"labels": ["bus", "car"], "region": (0, 0, 20, 30), "source": SOURCE, "track": 1},
    {"source": "net", "min_confidence": 0.5, "attributes": {"lane": 3}, "span": "0-"},
]


@pytest.mark.parametrize("arguments", BOXES, ids=str)
@pytest.mark.filterwarnings("ignore::vfsd.errors.UnknownLabelWarning")
def test_boxes(store: Store, arguments: dict[str, Any]) -> None:
    saved = store.searches.save_boxes("mine", **arguments)
    assert store.searches.get("mine") == saved
    assert store.searches.all() == [saved]
    _labelled(store, "cam1/later.mp4")
    expected = list(store.detections(**arguments))
    assert {name for name, _ in expected} == {"cam1/a.mp4", "cam1/later.mp4"}
    assert list(store.searches.run("mine")) == expected
    # The form that is kept is one that can be sent.
    store.searches.save("again", saved.kind, saved.arguments)
    assert store.searches.get("again").arguments == saved.arguments


def test_events(store: Store) -> None:
    arguments: dict[str, Any] = {
        "a": "car",
        "b": ["bus", "truck"],
        "within": "0.1",
        "gap": 0.5,
        "span": (0, 1),
        "source": SOURCE,
        "regions": {"yard": (0, 0, 100, 100)},
    }
    text = "near(a, b) & inside(a, yard) for 0.1s"
    with pytest.warns(UnknownLabelWarning, match="truck"):
        expected = store.events(text, "cam1/**", **arguments)
    assert len(expected) == 1
    store.searches.save_events("close", text, "cam1/**", **arguments)
    with pytest.warns(UnknownLabelWarning, match="truck"):
        found = store.searches.run("close")
    assert isinstance(found, EventList)
    assert found.items == expected.items


def test_wrong_searches_are_refused(store: Store) -> None:
    searches = store.searches
    searches.save_boxes("taken", "car")
    with pytest.raises(ExistsError, match="saved already"):
        searches.save_boxes("taken", "bus")
    searches.save_boxes("taken", "bus", replace=True)
    assert searches.get("taken").arguments == {"labels": "bus"}
    for name in ("", " x", "a\nb", "x" * 256, 5):
        with pytest.raises(UsageError, match="name must be"):
            searches.save_boxes(name, "car")  # type: ignore[arg-type]
    wrong: list[tuple[str, dict[str, Any]]] = [
        ("boxes", {"labels": "car|"}),
        ("boxes", {"labels": 5}),
        ("boxes", {"nonsense": 1}),
        ("boxes", {"span": ["0", "x"]}),
        ("boxes", {"span": ["3", "2"]}),
        ("boxes", {"span": 5}),
        ("boxes", {"names": []}),
        ("boxes", {"names": 7}),
        ("boxes", {"source": {"who": 1}}),
        ("boxes", {"source": 5}),
        ("boxes", {"region": [1, 2]}),
        ("boxes", {"min_confidence": "high"}),
        ("boxes", {"track": "x"}),
        ("boxes", {"attributes": 5}),
        ("events", {}),
        ("events", {"event": "near(a, b)", "variables": {"a": "car"}}),
        ("events", {"event": "near(a, b)", "variables": {"a": "car", "replace": "bus"}}),
        ("events", {"event": "near(a, b)", "variables": 5}),
        ("events", {"event": 5, "variables": {"a": "car"}}),
        ("events", {"event": "faster(a, 1)", "variables": {"a": "car"}, "within": "1/0"}),
        ("events", {"event": "faster(a, 1)", "variables": {"a": "car"}, "regions": 4}),
        ("moments", {}),
    ]
    for kind, arguments in wrong:
        with pytest.raises(UsageError):
            searches.save("new", kind, arguments)
    with pytest.raises(UsageError, match="predicates"):
        searches.save_events("new", "f(a)", a="car", predicates={"f": len})
    assert [one.name for one in searches.all()] == ["taken"]
    for missing in ("nothing", "a\0b"):
        for act in (searches.get, searches.run, searches.remove):
            with pytest.raises(NotFoundError):
                act(missing)
    searches.remove("taken")
    assert searches.all() == []


def test_a_backup_has_them(store: Store, tmp_path: Path) -> None:
    saved = store.searches.save_boxes("mine", "car", "cam1/**", source=SOURCE)
    back_up(store.parts, tmp_path / "backup")
    with Store.open(tmp_path / "backup", read_only=True) as copy:
        assert copy.searches.all() == [saved]
        assert len(copy.searches.run("mine")) == 10
        with pytest.raises(ReadOnlyError):
            copy.searches.remove("mine")
