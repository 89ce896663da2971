"""`VideoDecoder` against torchcodec's own, operation by operation.

Runs with --all, where torchcodec is installed: its import takes seconds.  `python -m
benchmarks.upstream_suites` runs torchcodec's own tests.
"""

from __future__ import annotations

import math
import pickle
import random
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.compat.test_install import run
from tests.support.forking import exit_code_of_child
from vfsd import Store
from vfsd.compat import quality

pytestmark = pytest.mark.thorough

CLIPS = ("traffic.mp4", "portrait.mp4", "open-gop.mkv", "edit-list.mp4", "late-start.mp4")


@pytest.fixture(scope="module")
def peer() -> ModuleType:
    """The module `torchcodec`."""
    pytest.importorskip("torch")
    found: ModuleType = pytest.importorskip("torchcodec")
    return found


@pytest.fixture
def ours(peer: ModuleType, named: Path) -> Callable[..., Any]:
    """Opens a clip with vfsd, or raises."""
    from vfsd.compat.torchcodec import VideoDecoder

    return lambda name, **options: VideoDecoder(f"cam1/{name}", **options)


@pytest.fixture
def theirs(peer: ModuleType, clips: Path) -> Callable[..., Any]:
    """Opens the same with torchcodec."""
    return lambda name, **options: peer.decoders.VideoDecoder(str(clips / name), **options)


def outcome(call: Callable[[], Any]) -> Any:
    """The result of a call, as tensors, or the type of its error."""
    import torch

    try:
        found = call()
    except Exception as error:
        return type(error)
    if isinstance(found, torch.Tensor):
        return [found]
    return [torch.as_tensor(part) for part in (found.data, found.pts_seconds)]


def operations(rng: random.Random, frames: int, begin: float, end: float) -> tuple[str, Any]:
    """A method and its arguments, some of them out of range."""
    number = rng.randint(-frames - 2, frames + 1)
    time = rng.uniform(begin - 0.05, end + 0.05)
    some = [rng.randint(-frames, frames - 1) for _ in range(3)]
    choices: list[tuple[str, Any]] = [
        ("get_frame_at", (number,)),
        ("get_frame_at", ("1",)),
        ("get_frames_at", (some,)),
        ("get_frames_at", ([*some, number],)),
        ("get_frames_at", ([0.5],)),
        ("get_frames_in_range", (number, number + rng.randint(-3, 4), rng.choice([1, 2, -1, 0]))),
        ("__getitem__", (rng.choice([number, slice(number, number + 3), "1", 2.5]),)),
        ("__getitem__", (slice(None, None, rng.choice([20, -1])),)),
        ("get_frame_played_at", (time,)),
        ("get_frames_played_at", ([time],)),
        ("get_frames_played_at", (["now"],)),
        ("get_frames_played_in_range", (time, time + rng.uniform(-0.02, 0.1))),
        ("get_frames_played_in_range", (time, time + 0.2, rng.choice([5, 60.0, 29.97, 0]))),
    ]
    return rng.choice(choices)


# Not edit-list.mp4: torchcodec 0.13 ends too early, with "no more frames left to decode".
@pytest.mark.parametrize(
    ("name", "order"),
    [("traffic.mp4", "NCHW"), ("portrait.mp4", "NHWC"), ("open-gop.mkv", "NCHW")],
)
def test_every_method_gives_what_torchcodec_gives(
    ours: Callable[..., Any], theirs: Callable[..., Any], name: str, order: str
) -> None:
    import torch

    mine, other = ours(name, dimension_order=order), theirs(name, dimension_order=order)
    assert type(mine) is not type(other)
    assert isinstance(mine, type(other))
    assert len(mine) == len(other)
    begin, end = mine.metadata.begin_stream_seconds, mine.metadata.end_stream_seconds
    assert (begin, end) == pytest.approx(
        (other.metadata.begin_stream_seconds, other.metadata.end_stream_seconds)
    )
    rng = random.Random(name)
    for _ in range(40):
        method, arguments = operations(rng, len(mine), begin, end)
        found = outcome(lambda: getattr(mine, method)(*arguments))  # noqa: B023
        # Fresh, because a used decoder of torchcodec 0.13 may return another frame.
        fresh = theirs(name, dimension_order=order)
        expected = outcome(lambda: getattr(fresh, method)(*arguments))  # noqa: B023
        if isinstance(expected, type):
            assert found == expected, (method, arguments)
            continue
        for one, another in zip(found, expected, strict=True):
            assert one.dtype == another.dtype, (method, arguments)
            assert torch.equal(one, another), (method, arguments)


@pytest.mark.parametrize("name", [name for name in CLIPS if name != "edit-list.mp4"])
def test_frames_in_order_are_those_of_torchcodec(
    ours: Callable[..., Any], theirs: Callable[..., Any], name: str
) -> None:
    import torch

    found, expected = ours(name).get_all_frames(), theirs(name).get_all_frames()
    assert torch.equal(found.data, expected.data)
    assert torch.equal(found.pts_seconds, expected.pts_seconds)


@pytest.mark.parametrize("seek_mode", ["exact", "approximate"])
def test_metadata(ours: Callable[..., Any], theirs: Callable[..., Any], seek_mode: str) -> None:
    import dataclasses

    mine, other = (opened("portrait.mp4", seek_mode=seek_mode) for opened in (ours, theirs))
    for field in dataclasses.fields(other.metadata):
        found, expected = getattr(mine.metadata, field.name), getattr(other.metadata, field.name)
        if isinstance(expected, float):
            assert found == pytest.approx(expected), field.name
        else:
            assert found == expected, field.name
    assert mine.stream_index == other.stream_index == 0
    assert not mine.cpu_fallback
    assert str(mine.cpu_fallback) == "[CPU] Fallback status: No fallback required"
    if seek_mode == "exact":  # torchcodec knows no key frames otherwise
        assert mine._get_key_frame_indices().tolist() == other._get_key_frame_indices().tolist()
    with pytest.raises(AttributeError):
        mine.metadata.none  # noqa: B018


def test_crops_are_regions_of_the_read(
    ours: Callable[..., Any], theirs: Callable[..., Any]
) -> None:
    import torch
    from torchcodec.transforms import CenterCrop, RandomCrop, Resize

    for transforms in (
        [CenterCrop((101, 120))],
        [CenterCrop((100, 133))],  # half a pixel left over
        [RandomCrop((120, 160)), CenterCrop((61, 80))],
        [RandomCrop((64, 64)), Resize((32, 48))],
        [CenterCrop((2000, 20))],
    ):
        found = []
        for opened in (ours, theirs):
            torch.manual_seed(5)
            found.append(
                outcome(lambda: opened("traffic.mp4", transforms=transforms)[50:53])  # noqa: B023
            )
        if isinstance(found[1], type):
            assert found[0] is found[1]
        else:
            assert torch.equal(found[0][0], found[1][0])
    cropped = ours("traffic.mp4", transforms=[CenterCrop((100, 100))])
    assert cropped._reader is not None
    assert ours("traffic.mp4", transforms=[Resize((100, 100))])._reader is None


def test_resize_is_vfsds_where_quality_allows(
    ours: Callable[..., Any], theirs: Callable[..., Any]
) -> None:
    from torchcodec.transforms import CenterCrop, Resize

    transforms = [CenterCrop((200, 300)), Resize((100, 150)), CenterCrop((64, 64))]
    with quality(psnr=30):
        mine = ours("traffic.mp4", transforms=transforms)
    assert mine._reader is not None
    found, expected = mine[7], theirs("traffic.mp4", transforms=transforms)[7]
    assert found.shape == expected.shape == (3, 64, 64)
    error = ((found.double() - expected.double()) ** 2).mean().item()
    assert 10 * math.log10(255**2 / max(error, 1e-9)) > 25


def test_decoders_show_the_region_that_quality_names(ours: Callable[..., Any]) -> None:
    import torch
    from torchcodec.transforms import CenterCrop

    whole = ours("traffic.mp4")
    with quality(region=(21, 10, 121, 90)):
        part = ours("traffic.mp4")
        cropped = ours("traffic.mp4", transforms=[CenterCrop((40, 60))])
        with pytest.raises(RuntimeError, match="cannot decode a region"):
            ours("traffic.mp4", custom_frame_mappings=b"")
    with quality(region="9000x60+0+0"), pytest.raises(RuntimeError, match="reaches outside"):
        ours("traffic.mp4")
    assert (part.metadata.width, part.metadata.height) == (100, 80)
    expected = whole[50]
    assert torch.equal(part[50], expected[:, 10:90, 21:121])
    assert torch.equal(cropped[50], expected[:, 30:70, 41:101])
    again = pickle.loads(pickle.dumps(part))
    assert torch.equal(again[50], part[50])
    assert again.metadata.width == 100


def test_what_torchcodec_reads_itself(
    ours: Callable[..., Any], theirs: Callable[..., Any], clips: Path
) -> None:
    import torch

    from vfsd.compat.torchcodec import VideoDecoder

    expected = theirs("traffic.mp4")[3]
    for source in (str(clips / "traffic.mp4"), (clips / "traffic.mp4").read_bytes()):
        decoder = VideoDecoder(source)
        assert decoder._reader is None
        assert torch.equal(decoder[3], expected)
        assert len(decoder) == 120
    for options in ({"seek_mode": "x"}, {"dimension_order": "x"}, {"num_ffmpeg_threads": None}):
        with pytest.raises(ValueError, match=r"Invalid|should be"):
            ours("traffic.mp4", **options)
    with pytest.raises(RuntimeError, match=r"none\.mp4"):
        VideoDecoder("vfsd://cam1/none.mp4")


@pytest.mark.parametrize("name", CLIPS)
def test_torchcodec_takes_the_frame_mappings(
    named: Path, theirs: Callable[..., Any], name: str
) -> None:
    import torch

    with Store.open(named, read_only=True) as store:
        video = store[f"cam1/{name}"]
        with video.views.open("frame_mappings.json") as file:
            mappings = file.read().decode()
    mapped, scanned = theirs(name, custom_frame_mappings=mappings), theirs(name)
    numbers = [0, 1, len(scanned) // 2, len(scanned) - 1]
    found, expected = mapped.get_frames_at(numbers), scanned.get_frames_at(numbers)
    assert torch.equal(found.data, expected.data)
    assert torch.equal(found.pts_seconds, expected.pts_seconds)


def test_samplers(ours: Callable[..., Any], theirs: Callable[..., Any]) -> None:
    import torch
    from torchcodec.samplers import clips_at_random_indices, clips_at_regular_timestamps

    found = []
    for opened in (ours, theirs):
        torch.manual_seed(7)
        decoder = opened("open-gop.mkv")
        found.append(
            [
                clips_at_random_indices(decoder, num_clips=3, num_frames_per_clip=4).data,
                clips_at_regular_timestamps(decoder, seconds_between_clip_starts=1.0).data,
            ]
        )
    for one, another in zip(*found, strict=True):
        assert torch.equal(one, another)


def test_other_processes(ours: Callable[..., Any]) -> None:
    import torch

    decoder = ours("traffic.mp4")
    expected = decoder[5]
    again = pickle.loads(pickle.dumps(decoder))
    assert torch.equal(again[5], expected)
    assert again.metadata.num_frames == 120

    def work() -> None:
        assert (decoder[5].numpy() == expected.numpy()).all()

    assert exit_code_of_child(work) == 0


def test_programs_are_patched_at_their_import(
    peer: ModuleType, named: Path, tmp_path: Path
) -> None:
    program = tmp_path / "train.py"
    program.write_text(
        "import sys; assert 'torch' not in sys.modules\n"
        "from torchcodec.decoders import SimpleVideoDecoder, VideoDecoder\n"
        "assert SimpleVideoDecoder is VideoDecoder\n"
        "print(VideoDecoder.__module__, len(VideoDecoder('cam1/traffic.mp4')))\n"
    )
    assert run(str(program)) == "vfsd.compat.torchcodec 120\n"
