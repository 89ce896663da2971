"""Clips as tensors, in this process and in workers."""

from __future__ import annotations

import gc
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sample_videos import FOLDER
from vfsd import Store
from vfsd.api.video import context_of
from vfsd.errors import NotFoundError, OutdatedError, OutOfRangeError, UsageError
from vfsd.torch import ClipDataset, ClipIndex, GopSampler
from vfsd.torch.clip_reads import ClipRequest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
METHODS = ("spawn", "forkserver", "fork")


def pixels(store: Store, clip: dict[str, Any], **options: Any) -> Any:
    """The frames of a clip, read without the data set, as time, channels, height, width."""
    found = store[clip["name"]].read(frames=clip["frames"].numpy(), **options)
    return found.data.transpose(0, 3, 1, 2)


def test_elements(store: Store) -> None:
    clips = ClipDataset(store, "cam/*", frames=5, step=3, per_video=2)
    assert len(clips) == 2 * len(clips.names) == 8
    for index in range(len(clips)):
        clip = clips[index]
        assert set(clip) == {"video", "name", "clip", "frames", "seconds", "damaged", "psnr"}
        assert clip["clip"] == index
        assert np.diff(clip["frames"].numpy()).tolist() == [3] * 4
        assert np.array_equal(clip["video"].numpy(), pixels(store, clip))
        assert clip["video"].dtype == torch.uint8
        assert clip["psnr"] == np.inf
        assert not clip["damaged"].any()
    assert torch.equal(clips[-1]["video"], clips[7]["video"])
    with pytest.raises(OutOfRangeError, match="clip 8 does not exist"):
        clips[8]
    assert len(list(clips)) == 8  # type: ignore[call-overload]


def test_a_batch_has_the_bits_of_single_clips(store: Store) -> None:
    for options in ({"size": 96, "crop": 64}, {"crop": (80, 60)}, {"region": (8, 8, 72, 56)}):
        clips = ClipDataset(store, frames=8, per_video=5, **options)
        wanted = [ClipIndex(3, clip) for clip in (7, 0, 3, 19, 1, 0)]
        batch = clips.__getitems__(wanted)
        assert [one["clip"] for one in batch] == [7, 0, 3, 19, 1, 0]
        clips.set_epoch(3)
        for one in batch:
            alone = clips[one["clip"]]
            assert torch.equal(one["video"], alone["video"])
            assert torch.equal(one["frames"], alone["frames"])
        assert batch[1]["video"].data_ptr() != batch[5]["video"].data_ptr()


def test_crops_are_parts_of_the_scaled_frame(store: Store) -> None:
    clips = ClipDataset(store, "cam/traffic.mp4", frames=2, size=120, crop=100, per_video=6)
    corners = set()
    for index in range(6):
        clip = clips[index]
        whole = pixels(store, clip, size=120)
        assert whole.shape == (2, 3, 120, 160)
        places = [
            (left, top)
            for left in range(61)
            for top in range(21)
            if np.array_equal(whole[..., top : top + 100, left : left + 100], clip["video"].numpy())
        ]
        assert places
        corners.add(places[0])
    assert len(corners) > 3
    centered = ClipDataset(store, "cam/traffic.mp4", frames=2, size=120, crop=100, crop_at="center")
    whole = pixels(store, centered[0], size=120)
    assert np.array_equal(whole[..., 10:110, 30:130], centered[0]["video"].numpy())


def test_crops_without_scaling_read_only_their_region(store: Store) -> None:
    clips = ClipDataset(store, "cam/traffic.mp4", frames=2, crop=64)
    (request,) = clips.requests([0])
    assert isinstance(request, ClipRequest)
    region = request.region
    assert region is not None
    assert (region.width, region.height) == (64, 64)
    assert np.array_equal(clips[0]["video"].numpy(), pixels(store, clips[0], region=region))


def test_types_and_layouts(store: Store) -> None:
    options: dict[str, Any] = {"frames": 3, "size": 64, "crop": 48, "seed": 5}
    plain = ClipDataset(store, **options)[1]["video"]
    floats = ClipDataset(store, **options, dtype=torch.float32, layout="CTHW")[1]["video"]
    assert floats.shape == (3, 3, 48, 48)
    assert floats.is_contiguous()
    assert torch.equal(floats, plain.permute(1, 0, 2, 3).float() / 255)
    gray = ClipDataset(store, **options, dtype="float16", format="gray", layout="THWC")[1]["video"]
    assert gray.shape == (3, 48, 48, 1)
    assert gray.dtype == torch.float16
    doubled = ClipDataset(store, **options, transform=torch.Tensor.float)[1]["video"]
    assert torch.equal(doubled, plain.float())


def test_clips_at_a_rate(store: Store) -> None:
    clips = ClipDataset(store, "cam/traffic.mp4", frames=6, fps=10, per_video=30)
    for index in range(30):
        clip = clips[index]
        assert np.diff(clip["frames"].numpy()).tolist() == [3] * 5  # of 30 frames per second
        assert np.allclose(np.diff(clip["seconds"].numpy()), 0.1)


def test_short_videos_repeat_the_last_frame(store: Store) -> None:
    clip = ClipDataset(store, "cam/traffic.mp4", frames=5, step=50)[0]
    assert clip["frames"].tolist() == [0, 50, 100, 119, 119]
    rate = ClipDataset(store, "cam/traffic.mp4", frames=5, fps=1)[0]
    assert rate["frames"].tolist() == [0, 30, 60, 90, 119]


def test_epochs_and_seeds_select_other_clips(store: Store) -> None:
    def starts(seed: int, epoch: int) -> list[int]:
        clips = ClipDataset(store, frames=4, per_video=10, seed=seed)
        clips.set_epoch(epoch)
        return [int(one.frames[0]) for one in clips.requests(range(len(clips)))]

    assert starts(0, 0) == starts(0, 0)
    assert starts(0, 0) != starts(0, 1)
    assert starts(0, 0) != starts(1, 0)


def test_labels_choose_clips(store: Store) -> None:
    clips = ClipDataset(store, labels="car|person", frames=8, per_video=25)
    assert clips.names == ["cam/traffic.mp4"]
    for request in clips.requests(range(25)):
        assert {40, 41} & set(request.frames.tolist())
    with pytest.raises(UsageError, match="there are no boxes with 'dog'"):
        ClipDataset(store, labels="dog")


def test_names_patterns_and_urls(store: Store) -> None:
    chosen = ClipDataset(store, ["cam/traffic.mp4", "cam/p*", "cam/portrait.mp4"])
    assert chosen.names == ["cam/portrait.mp4", "cam/traffic.mp4"]
    with ClipDataset(f"vfsd://{store.path}//cam/p*") as clips:
        assert clips.names == ["cam/portrait.mp4"]
        assert clips.store.tools.threads == 1
    with pytest.raises(NotFoundError):
        ClipDataset(store, ["cam/none.mp4"])
    with pytest.raises(NotFoundError):
        ClipDataset(store, "none/**")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"frames": 0}, "frames must be at least 1, got 0"),
        ({"step": 2, "fps": 3}, "give either step or fps, not both"),
        ({"layout": "TCH"}, "layout must have the letters T, C, H and W, got 'TCH'"),
        ({"dtype": "int8"}, "dtype must be one of uint8"),
        ({"format": "yuv420p"}, "format must be one of rgb24"),
        ({"starts": "keys"}, "starts must be one of random, uniform"),
        ({"size": 64, "crop": 80}, "crop must be at most"),
        ({"damaged": "skip"}, "damaged must be one of show, raise"),
    ],
)
def test_malformed_arguments(store: Store, options: dict[str, Any], problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        ClipDataset(store, **options)


def test_a_video_that_was_written_again_is_refused(store: Store) -> None:
    store.ingest(FOLDER / "traffic.mp4", "new/a.mp4")
    clips = ClipDataset(store, "new/a.mp4", frames=2)
    copied = pickle.loads(pickle.dumps(clips))
    store.remove("new/a.mp4")
    store.ingest(FOLDER / "portrait.mp4", "new/a.mp4")
    with pytest.raises(OutdatedError, match="has been written again"):
        copied[0]
    store.remove("new/a.mp4")


# -- workers


def batches(clips: ClipDataset, method: str | None, **options: Any) -> list[dict[str, Any]]:
    loader = torch.utils.data.DataLoader(
        clips,
        batch_sampler=GopSampler(clips, 4, seed=1),
        num_workers=0 if method is None else 2,
        multiprocessing_context=method,
        **options,
    )
    return [batch for _ in range(2) for batch in loader]


@pytest.mark.parametrize("method", METHODS)
def test_workers_give_the_same_bits(store: Store, method: str) -> None:
    clips = ClipDataset(store, frames=6, step=2, size=64, crop=48, per_video=3)
    alone = batches(clips, None)
    found = batches(clips, method, persistent_workers=True)
    assert len(alone) == len(found) == 6
    for one, other in zip(alone, found, strict=True):
        assert one["name"] == other["name"]
        for key in ("video", "clip", "frames", "seconds", "damaged"):
            assert torch.equal(one[key], other[key])
    # The second epoch has other clips, also in workers that stay.
    assert alone[0]["frames"].tolist() != alone[3]["frames"].tolist()


class Identities(ClipDataset):
    """Tells which store an element was read from."""

    def __getitems__(self, indices: Any) -> list[dict[str, Any]]:
        found = super().__getitems__(indices)
        tools = [context_of(self.video(number)).tools for number in range(len(self.names))]
        here = {
            "pid": os.getpid(),
            "parts": id(self.store.parts),
            "is_shared": all(one is self.store.tools for one in tools),
        }
        return [{**here, **one} for one in found]


def test_a_worker_opens_the_store_once(store: Store) -> None:
    clips = Identities(store, frames=2, size=(64, 64), per_video=4)
    loader = torch.utils.data.DataLoader(
        clips, batch_size=2, num_workers=2, multiprocessing_context="forkserver"
    )
    found = list(loader)
    opened = {
        (int(pid), int(parts))
        for batch in found
        for pid, parts in zip(batch["pid"], batch["parts"], strict=True)
    }
    assert len(opened) == 2
    assert all(bool(batch["is_shared"].all()) for batch in found)


def _resident() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.thorough
@pytest.mark.slow
def test_memory_and_descriptors_do_not_grow(tmp_path: Path) -> None:
    """As in a worker that reads many clips; 10,000 by hand, fewer here."""
    with Store.create(tmp_path / "s") as made:
        for clip in ("traffic.mp4", "portrait.mp4", "open-gop.mkv", "late-start.mp4"):
            made.ingest(FOLDER / clip, clip)
    count = int(os.environ.get("VFSD_CLIPS", "2000"))
    with ClipDataset(tmp_path / "s", frames=8, size=112, per_video=count // 4) as clips:
        sampler = GopSampler(clips, 8, locality=0.5)
        before = (0, 0)
        for number, batch in enumerate(sampler):
            clips.__getitems__(batch)
            if number * 8 >= count // 10 and before == (0, 0):
                gc.collect()
                before = _resident(), len(os.listdir("/proc/self/fd"))
        gc.collect()
        assert _resident() < 1.2 * before[0]
        assert len(os.listdir("/proc/self/fd")) <= before[1] + 4
