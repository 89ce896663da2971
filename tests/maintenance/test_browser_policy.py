"""The rule `browser` of policies: which videos get a rendition, once, and what stops it."""

from __future__ import annotations

import pytest

from sample_videos import FOLDER
from vfsd.api.store import Store
from vfsd.api.video import Video, context_of
from vfsd.core.model import Segment
from vfsd.core.retention_policy import RetentionPolicy, most_protective
from vfsd.errors import OverBudgetError, UsageError
from vfsd.maintenance import fsck
from vfsd.maintenance.browser_policy import (
    BrowserForecast,
    forecast_browser,
    make_browser_rendition,
)


def lacking(store: Store) -> dict[str, int]:
    with store.catalog.reading() as seen:
        found = seen.retention.lacking_browser()
        return {seen.videos.get(number).name: width for number, width in found.items()}


def web_segments(video: Video) -> list[Segment]:
    with context_of(video).parts.catalog.reading() as seen:
        return seen.segments.renditions(video.original.id)


def carry_out(store: Store) -> list[str]:
    """Carry the rule out for every video; return those that got new segments."""
    return [
        name
        for name, width in lacking(store).items()
        if make_browser_rendition(store[name], width).made
    ]


def test_text_form() -> None:
    policy = RetentionPolicy.parse("browser=h264:1280,reads=34")
    assert (policy.browser, str(policy)) == (1280, "original=keep,reads=34,browser=h264:1280")
    for text in ("browser=hevc:1280", "browser=h264", "browser=h264:-2", "browser=h264:1"):
        with pytest.raises(UsageError, match="browser must"):
            RetentionPolicy.parse(text)
    wide, none = RetentionPolicy(browser=1920), RetentionPolicy()
    assert most_protective([policy, wide, none]).browser == 1920
    assert most_protective([none, none]).browser is None


def test_made_once(store: Store) -> None:
    for name in ("traffic.mp4", "mpeg4.avi"):
        store.ingest(FOLDER / name, f"cam1/{name}")
    store.set_policy("cam1", "browser=h264:320")
    assert forecast_browser(store, "cam1", 320) == BrowserForecast(0, 0.0, 0)
    forecast = forecast_browser(store, "cam1", 160)
    assert forecast.videos == 2
    assert carry_out(store) == ["cam1/mpeg4.avi"]  # browsers play the other one
    assert lacking(store) == {}
    video = store["cam1/mpeg4.avi"]
    assert video.views.playable().origin == "rendition"

    video.budget.set("0")  # evicts it
    assert web_segments(video) == []
    video.budget.set("none")
    assert (lacking(store), carry_out(store)) == ({}, [])

    store.set_policy("cam1", "browser=h264:160")
    assert carry_out(store) == ["cam1/traffic.mp4", "cam1/mpeg4.avi"]
    sizes = [one.size for name in store for one in web_segments(store[name])]
    assert forecast.bytes == pytest.approx(sum(sizes), rel=0.5)
    assert list(fsck.run(store.parts)) == []


def test_full_budget_stores_nothing(store: Store) -> None:
    store.ingest(FOLDER / "traffic.mp4", "cam1/a.avi")
    store.set_policy("cam1", "browser=h264:160")
    store["cam1/a.avi"].budget.set("2000")
    with store.catalog.reading() as seen:
        before = seen.retention.browser_key()
    with pytest.raises(OverBudgetError, match=r"would take about .*: the budget of cam1/a\.avi is"):
        carry_out(store)
    assert web_segments(store["cam1/a.avi"]) == []
    assert lacking(store) == {"cam1/a.avi": 160}
    store["cam1/a.avi"].budget.set("none")
    with store.catalog.reading() as seen:
        assert seen.retention.browser_key() != before  # a mount looks again
    assert carry_out(store) == ["cam1/a.avi"]


def test_stopped_run_goes_on(store: Store) -> None:
    video = store.ingest(FOLDER / "traffic.mp4", "cam1/a.mp4")  # two segments
    video.verify()
    store.set_policy("cam1", "browser=h264:160")

    def between() -> None:
        if web_segments(video):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_browser_rendition(video, 160, jobs=1, between=between)
    kept = web_segments(video)
    assert [one.frames for one in kept] == [range(60)]
    assert lacking(store) == {"cam1/a.mp4": 160}
    made = make_browser_rendition(video, 160).made
    assert [one.frames for one in made] == [range(60, 120)]
    assert lacking(store) == {}


def test_new_bytes_are_looked_at_again(store: Store) -> None:
    store.ingest(FOLDER / "mpeg4.avi", "cam1/a.avi")
    store.set_policy("cam1", "browser=h264:320")
    assert carry_out(store) == ["cam1/a.avi"]
    store.ingest(FOLDER / "av1.mp4", "cam1/a.avi", replace=True)
    assert carry_out(store) == ["cam1/a.avi"]
