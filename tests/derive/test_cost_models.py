"""What-if: predicted costs against the plans of real tiles.

Calibration: measured costs, and outliers.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from sample_videos import FOLDER
from tests.cli.conftest import run_command
from tests.support.stores import new_store
from vfsd.api.reading import plan_view
from vfsd.api.store import Store
from vfsd.api.video import context_of
from vfsd.codecs.cells import decode_timing
from vfsd.codecs.cells.decode_timing import TIMED_CODECS, timed_decodes
from vfsd.codecs.stitching.hevc_tiles import STITCHABLE
from vfsd.core.model import MeasuredCost
from vfsd.core.process_control import host_name
from vfsd.core.view_request import View
from vfsd.derive import calibrate
from vfsd.derive.calibrate import measure
from vfsd.derive.tile_encoder import PlannedSegment
from vfsd.errors import UsageError
from vfsd.tiling import Rect, TileLayout
from vfsd.tiling.cost import DEFAULT_COSTS, DecodeCost, DecodeWork, fit_decode_cost


def test_estimate_of_a_layout_equals_its_plan(store: Store) -> None:
    video = store.ingest(FOLDER / "traffic.mp4")
    region = Rect(20, 20, 60, 60)
    layout = TileLayout.cut_at(320, 240, [80], [80])
    planned = [PlannedSegment(frames, layout) for frames in video.tiles.sequences()]
    before = video.tiles.estimate(planned, region=region)
    assert 0 < before.seconds < before.untiled_seconds
    assert before.gain > 0.5
    assert before.work.pixels == 80 * 80 * len(video)
    video.tiles.retile(planned)
    plan = plan_view(context_of(video), View(region=region))
    done = sum((run.work for run in plan.tiled), DecodeWork())
    assert (done.pixels, done.pictures) == (before.work.pixels, before.work.pictures)
    after = video.tiles.estimate(planned, region=region)
    assert after.work.bytes == pytest.approx(done.bytes, rel=0.6)  # tiles differ


def test_no_gain_from_useless_tiles(store: Store) -> None:
    video = store.ingest(FOLDER / "traffic.mp4")
    assert video.tiles.estimate([], region=Rect(0, 0, 9, 9)).gain == 0


def test_costs_are_recovered_from_timings() -> None:
    rng = np.random.default_rng(5)
    true = DecodeCost(1e-4, 2e-5, 7e-10, 5e-8)
    works = [
        DecodeWork(1, int(n), int(n) * int(side) ** 2, float(n * size))
        for n, side, size in zip(
            rng.integers(1, 60, 80),
            rng.integers(32, 1500, 80),
            rng.integers(100, 50_000, 80),
            strict=True,
        )
    ]
    times = [true.seconds(work) * float(rng.normal(1, 0.02)) for work in works]
    found, r2 = fit_decode_cost(works, times)
    assert r2 > 0.99
    assert found.pixel == pytest.approx(true.pixel, rel=0.1)
    assert found.byte == pytest.approx(true.byte, rel=0.1)
    with pytest.raises(UsageError):
        fit_decode_cost(works[:3], times[:3])


@pytest.mark.slow
def test_calibration_measures_a_codec(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        decode_timing, "_SIZES", decode_timing._SIZES[:-1]
    )  # the last decode is slower than the others
    cost = measure("fast")
    assert cost.samples >= 20
    assert cost.r2 > 0.8  # on a machine with other load
    assert 1e-11 < cost.decode.pixel + cost.decode.byte < 1e-6
    assert cost.encode_pixel is not None
    assert cost.encode_pixel > cost.decode.pixel


def test_measured_costs_determine_plans(store: Store) -> None:
    video = store.ingest(FOLDER / "traffic.mp4")
    video.tiles.retile("uniform:2x2")
    view = View(region=Rect(0, 0, 50, 50))
    assert plan_view(context_of(video), view).tiled
    dear = DecodeCost(1.0, 1.0, 1.0, 1.0)
    with store.catalog.writing() as change:
        change.costs.put(MeasuredCost(host_name(), "fast", dear, None, 1.0, 9, "test", 1))
    assert not plan_view(context_of(video), view).tiled


def test_calibration_results_are_shown(store: Store) -> None:
    cheap = DecodeCost(1e-5, 1e-5, 1e-9, 1e-8)
    with store.catalog.writing() as change:
        change.costs.put(MeasuredCost(host_name(), "fast", cheap, 3e-9, 0.99, 60, "test", 1))
    told = run_command("-s", str(store.path), "calibrate", "--show", "--json")
    assert json.loads(told.out)["encode_pixel"] == 3e-9
    assert "fast" in run_command("-s", str(store.path), "calibrate", "--show").out


# --------------------------------------------------------------------------------------------------
# Calibration: measured costs, and outliers


def measured(name: str, meanwhile: Callable[[], None]) -> MeasuredCost:
    cost = DecodeCost(1e-4, 1e-5, 1e-9, 1e-7)
    return MeasuredCost("host", name, cost, None, 1.0, 1, "software", 1)


@pytest.mark.parametrize("there", [True, False])
def test_codecs_without_an_encoder_are_left_out(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    there: bool,
) -> None:
    monkeypatch.setattr(calibrate, "measure", measured)
    monkeypatch.setattr(decode_timing, "kvazaar_available", lambda: there)
    with new_store(tmp_path / "store") as store:
        names = [cost.name for cost in calibrate.calibrate(store.parts)]
    assert names == [name for name in TIMED_CODECS if there or name != STITCHABLE]
    assert ("stitchable is not measured" in caplog.text) != there


def test_calibrate_selected_codecs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrate, "measure", measured)
    with new_store(tmp_path / "store") as store:
        assert [cost.name for cost in calibrate.calibrate(store.parts, ["vp9", "fast"])] == [
            name for name in TIMED_CODECS if name in ("fast", "vp9")
        ]
        with pytest.raises(UsageError, match=r"codec must be one of .* got 'x265'"):
            calibrate.calibrate(store.parts, ["x265"])


def test_calibration_can_be_cancelled(tmp_path: Path) -> None:
    told = []

    def stops(done: int, total: int) -> None:
        told.append((done, total))
        if len(told) == 3:
            raise KeyboardInterrupt

    with new_store(tmp_path / "store") as store:
        with pytest.raises(KeyboardInterrupt):
            calibrate.calibrate(store.parts, ["h264"], on_progress=stops)
        assert store.catalog.costs(host_name()) == []
    assert told == [(0, 1)] * 3


def test_every_codec_has_a_default_cost() -> None:
    assert set(TIMED_CODECS) <= set(DEFAULT_COSTS)


def test_calibration_of_stitchable_tiles(kvazaar: None) -> None:
    found = timed_decodes(STITCHABLE)
    whole, part = next(found), next(found)
    assert whole.work.pictures == 4 * part.work.pictures == 24
    assert whole.encode_seconds
    assert 0 < part.seconds < 1
