"""``README.txt`` and ``why/``: names of views explained below ``NAME@/``, and how each is made."""

from __future__ import annotations

import json
import re

import pytest

from sample_videos import CLIPS
from tests.support.selection import one_in
from tests.views.conftest import Shelf
from vfsd.core.timebase import human_bytes
from vfsd.errors import NotFoundError, VfsdError
from vfsd.views import rendering


@pytest.mark.parametrize("name", one_in(5, CLIPS))
def test_readme_examples(shelf: Shelf, name: str) -> None:
    video = shelf.video(name)
    text = shelf.read(name, "README.txt").decode()
    assert shelf.size(name, "README.txt") == len(text.encode())
    assert f"{len(video)} frames (0 to {len(video) - 1})" in text
    assert f"of {video.width}x{video.height} pixels" in text
    own = text.partition("Examples for this video:\n")[2].partition("\nTo learn how")[0]
    names = re.findall(r"^    (\S+)  ", own, re.MULTILINE)
    assert len(names) == 13
    for view in names:
        assert shelf.size(name, view) > 0
    assert "size=WxH" in text


@pytest.mark.parametrize(
    "path",
    [
        "t=20-30.mp4",
        "size=320x.mp4",
        "t=1-2.webm",
        "t=2-1.mp4",
        "nonsense",
        "roi=100x100+300+0.mp4",
        "frames/120.png",
        "frames/x.png",
        "layout/4.png",
        "explain/t=2-1.mp4.json",
        "objects/nothing.mp4",
    ],
)
def test_reason_of_error(shelf: Shelf, path: str) -> None:
    ino = shelf.video("traffic.mp4").info.ino
    with pytest.raises(VfsdError) as raised:
        shelf.views.stat(ino, path)
    text = shelf.read("traffic.mp4", f"why/{path}").decode()
    assert f"{path} cannot be opened: {raised.value}\n" in text
    assert raised.value.hint is None or f"hint: {raised.value.hint}\n" in text


@pytest.mark.parametrize(
    "path",
    ["full.mp4", "t=1-2.mp4", "frames/7.jpg", "info.json", "layout.png", "explain/full.mp4.json"],
)
def test_reason_of_good_view(shelf: Shelf, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> object:
        raise AssertionError("a picture is made for a reason")

    monkeypatch.setattr(rendering.Renderer, "measured", refuse)
    text = shelf.read("traffic.mp4", f"why/{path}").decode()
    assert re.match(rf"{re.escape(path)} can be opened[.:]", text)
    assert shelf.read("traffic.mp4", f"why/{path}.txt").decode() == text


def test_error_is_the_same_with_suffix(shelf: Shelf) -> None:
    for path in ("t=20-30.mp4", "nonsense", "frames/120.png"):
        text = shelf.read("traffic.mp4", f"why/{path}.txt").decode()
        assert text.startswith(f"{path} cannot be opened: ")
        assert shelf.read("traffic.mp4", f"why/{path}").decode() == text
    assert shelf.read("traffic.mp4", "why/README.txt") == b"README.txt can be opened.\n"


@pytest.mark.parametrize(
    ("view", "words"),
    [
        ("full.mp4", ["copied from the stored", "copy frames 0-119 from the original (h264)"]),
        (
            "frames=20-110.mp4",
            ["except at the ends", "decode frames 20-29 from", "encode frames 20-29 to h264"],
        ),
        ("size=160x120.mkv", ["160x120 pixels", "Not copied: ", "encode frames 0-119 to h264"]),
        ("frames/000007.png", ["1 frame of 320x240", "decode frame 7 from the original"]),
        ("full.rgb", ["No sound: ", "no video is encoded"]),
    ],
)
def test_text_agrees_with_the_explanation(shelf: Shelf, view: str, words: list[str]) -> None:
    text = shelf.read("traffic.mp4", f"why/{view}.txt").decode()
    for one in words:
        assert one in text
    told = json.loads(shelf.read("traffic.mp4", f"explain/{view}.json"))
    seconds = sum(step["seconds"] for step in told["steps"])
    taken = f"{seconds:.3f} s, of all" if seconds else "none beyond copying"
    assert f"Predicted CPU time: {taken}" in text
    assert text.count("\n  ") == len(told["steps"])
    for step in told["steps"]:
        assert human_bytes(step["bytes"]) in text
    assert told["why"] is None or f"Not copied: {told['why']}.\n" in text
    assert f"Lost: {told['lost'] or 'nothing'}.\n" in text


def test_text_follows_the_tiles(fresh: Shelf) -> None:
    path = "why/roi=64x64+0+0.rgb.txt"
    before = fresh.read("traffic.mp4", path).decode()
    fresh.video("traffic.mp4").tiles.retile("uniform:2x2")
    after = fresh.read("traffic.mp4", path).decode()
    assert "tiles" not in before.lower()
    assert "Tiles not used, 4 segments: " in after or "from tiles (" in after
    with fresh.video("traffic.mp4").views.open(path) as file:
        assert file.read().decode() == after


@pytest.mark.parametrize("path", ["why/.hidden", "why/why", "why/why/full.mp4", "README.txt/x"])
def test_no_reason_file(shelf: Shelf, path: str) -> None:
    ino = shelf.video("traffic.mp4").info.ino
    for what in (shelf.views.stat, shelf.views.open, shelf.views.list):
        with pytest.raises(NotFoundError):
            what(ino, path)


def test_reason_folders(shelf: Shelf) -> None:
    ino = shelf.video("traffic.mp4").info.ino
    found = shelf.views.list(ino, "why")
    names = ("explain", "frames", "layout", "moments", "objects")
    assert found == [(name, True) for name in names]
    for folder, _ in found:
        assert shelf.views.stat(ino, f"why/{folder}").is_dir
    assert shelf.views.list(ino, "why/frames") == []


@pytest.mark.parametrize(
    ("view", "words"),
    [
        ("size=320x.mp4", "size must be WxH"),
        ("t=1-2.webm", "its suffix must be one of mp4, mkv"),
        ("codec=vp9.mp4", "codec of mp4 must be one of h264"),
        ("zoom=2.mp4", "a key must be one of t, frames, roi"),
        ("fps=5,fps=5.mp4", "it has fps twice"),
        ("sound=mp3.mp4", "sound must be one of no, aac, opus"),
        ("pix=rgb24.mp4", "pix must be one of yuv420p"),
    ],
)
def test_reason_names_part(shelf: Shelf, view: str, words: str) -> None:
    assert words in shelf.read("traffic.mp4", f"why/{view}").decode()
