"""Calibration: what is measured, and what is left out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.stores import new_store
from vfsd.codecs.cells import decode_timing
from vfsd.codecs.cells.decode_timing import TIMED_CODECS, timed_decodes
from vfsd.codecs.stitching.hevc_tiles import STITCHABLE
from vfsd.core.hostinfo import host_name
from vfsd.core.model import MeasuredCost
from vfsd.derive import calibrate
from vfsd.errors import UsageError
from vfsd.tiling.cost import DEFAULT_COSTS, DecodeCost


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


def test_some_codecs_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrate, "measure", measured)
    with new_store(tmp_path / "store") as store:
        assert [cost.name for cost in calibrate.calibrate(store.parts, ["vp9", "fast"])] == [
            name for name in TIMED_CODECS if name in ("fast", "vp9")
        ]
        with pytest.raises(UsageError, match=r"codec must be one of .* got 'x265'"):
            calibrate.calibrate(store.parts, ["x265"])


def test_it_can_be_stopped_in_the_middle_of_a_codec(tmp_path: Path) -> None:
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


def test_every_codec_has_a_cost_that_was_not_measured_here() -> None:
    assert set(TIMED_CODECS) <= set(DEFAULT_COSTS)


def test_trials_of_tiles_that_can_be_stitched(kvazaar: None) -> None:
    found = timed_decodes(STITCHABLE)
    whole, part = next(found), next(found)
    assert whole.work.pictures == 4 * part.work.pictures == 24
    assert whole.encode_seconds
    assert 0 < part.seconds < 1
