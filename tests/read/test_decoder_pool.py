"""The decoder pool: within its limit no frame is decoded twice, and results are right."""

from __future__ import annotations

import os
from collections.abc import Container, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from av.packet import Packet
from av.video.stream import VideoStream

from sample_videos import FOLDER
from tests.support.selection import one_in
from tests.support.stores import new_store
from vfsd.api.store import Store
from vfsd.api.video import Video, context_of
from vfsd.codecs.decoding.packet_decoder import PacketReader

CLIPS = ("traffic.mp4", "open-gop.mkv", "mpeg4.avi", "portrait.mp4", "transport.ts")


@pytest.fixture
def fed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The packets that decoders receive from now on."""
    packets: list[int] = []
    read = PacketReader.packets

    def recorded(
        self: PacketReader, first: int, end: int, *, skip: Container[int] = ()
    ) -> Iterator[Packet[VideoStream]]:
        for packet in read(self, first, end, skip=skip):
            packets.append(packet.pts or 0)
            yield packet

    monkeypatch.setattr(PacketReader, "packets", recorded)
    return packets


def ingest(path: Path, clip: str, *, decoder_memory: int) -> Store:
    """A reopened store with that clip as `video`."""
    with new_store(path) as store:
        settings = store.settings.with_text("decoder_memory", str(decoder_memory))
        settings.save(store.parts.directory.settings)
        store.ingest(FOLDER / clip, "video")
    return Store.open(path)


def random_frames(video: Video, count: int, seed: int = 0) -> list[int]:
    return [int(i) for i in np.random.default_rng(seed).integers(0, len(video), count)]


@pytest.mark.parametrize("memory", one_in(2, [1, 2 << 20, 512 << 20]))
@pytest.mark.parametrize("clip", one_in(3, CLIPS))
def test_random_frames_equal_a_full_decode(tmp_path: Path, clip: str, memory: int) -> None:
    with ingest(tmp_path / "store", clip, decoder_memory=memory) as store:
        video = store["video"]
        expected = [frame.data for frame in video]
        for index in random_frames(video, 60):
            np.testing.assert_array_equal(video[index].data, expected[index])
        scaled = video.read(size=(48, 32)).data
        for index in random_frames(video, 30, seed=1):
            np.testing.assert_array_equal(
                video.frames([index], size=(48, 32)).data[0], scaled[index]
            )
        for index in random_frames(video, 10):
            several = [index, *random_frames(video, 3, seed=index)]
            for got, wanted in zip(video.frames(several).data, several, strict=True):
                np.testing.assert_array_equal(got, expected[wanted])


def test_several_threads_read_the_same_frames(store: Store) -> None:
    video = store.ingest(FOLDER / "open-gop.mkv", "video")
    expected = [frame.data for frame in video]

    def read(seed: int) -> bool:
        indices = random_frames(video, 80, seed % 2)  # two threads read the same frames
        return all(np.array_equal(video[index].data, expected[index]) for index in indices)

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(read, range(4)))


@pytest.mark.thorough
def test_memory_stays_within_the_budget(tmp_path: Path) -> None:
    budget = 3 << 20
    with ingest(tmp_path / "store", "traffic.mp4", decoder_memory=budget) as store:
        most = 0
        for index in random_frames(store["video"], 200):
            assert store["video"][index].data.any()
            assert store.tools.pool.memory <= budget
            most = max(most, store.tools.pool.memory)
        assert most > budget // 2


@pytest.mark.parametrize("clip", one_in(3, CLIPS))
def test_pooled_frames_are_not_decoded_again(store: Store, clip: str, fed: list[int]) -> None:
    store.ingest(FOLDER / clip, "video")
    video = store["video"]
    indices = random_frames(video, 40)
    for index in indices:
        assert video[index].data.any()
    fed.clear()
    for index in indices:
        assert video[index].data.any()
        assert video.frames([index], region=(16, 16, 48, 40)).data.any()
    assert fed == []


@pytest.mark.parametrize("clip", one_in(3, CLIPS))
def test_sequential_reads_decode_once(store: Store, clip: str, fed: list[int]) -> None:
    store.ingest(FOLDER / clip, "video")
    video = store["video"]
    fed.clear()
    for index in range(len(video)):
        assert video[index].index == index
    assert len(fed) <= context_of(video).table.packets + 16


def test_number_of_idle_decoders_is_limited(tmp_path: Path) -> None:
    """Small frames use little of the memory budget, but each decoder has a descriptor."""
    with ingest(tmp_path / "store", "portrait.mp4", decoder_memory=1 << 40) as store:
        video, pool = store["video"], store.tools.pool
        before = len(os.listdir("/proc/self/fd"))
        with ExitStack() as stack:
            for _ in range(80):
                stack.enter_context(pool.decoder(video.original, context_of(video).table))
            assert len(os.listdir("/proc/self/fd")) >= before + 80
        assert len(os.listdir("/proc/self/fd")) <= before + 64


def test_forgotten_videos_release_their_decoders(store: Store, fed: list[int]) -> None:
    kept, gone = (store.ingest(FOLDER / clip) for clip in ("traffic.mp4", "open-gop.mkv"))
    pool = store.tools.pool
    assert kept[20].data.any()
    held, descriptors = pool.memory, len(os.listdir("/proc/self/fd"))
    expected = gone[20].data
    pictures = gone.iterate(frames=range(30))
    next(pictures)
    assert pool.memory > held
    pool.forget(gone.original.id)
    assert pool.memory == held
    assert len(list(pictures)) == 29  # of a reader that continues
    assert pool.memory == held
    assert len(os.listdir("/proc/self/fd")) == descriptors
    np.testing.assert_array_equal(gone[20].data, expected)
    assert pool.memory == held
    fed.clear()
    assert kept[20].data.any()
    assert not fed


@pytest.mark.parametrize("clip", one_in(3, CLIPS))
def test_idle_decoders_are_released(store: Store, clip: str, fed: list[int]) -> None:
    descriptors = len(os.listdir("/proc/self/fd"))
    store.ingest(FOLDER / clip, "video")
    video, pool = store["video"], store.tools.pool
    indices = random_frames(video, 20)
    before = [video[index].data for index in indices]
    held = pool.memory
    assert held > 0
    pool.evict_idle(3600)
    assert pool.memory == held
    fed.clear()
    pool.evict_idle(0)
    assert pool.memory == 0
    assert len(os.listdir("/proc/self/fd")) <= descriptors + 8  # descriptors of the catalog
    for index, data in zip(indices, before, strict=True):
        np.testing.assert_array_equal(video[index].data, data)
    assert fed  # the frames were decoded again
