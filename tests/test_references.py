"""Media that name other files, or places in the network: nothing of it is ever opened."""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import av
import pytest

from sample_videos import FOLDER, Encoding, Scene, write
from tests.selection import one_in
from tests.traps import FileTrap, PortTrap, file_trap, port_trap
from vfsd.codecs.containers.isobmff import make_box, make_full_box
from vfsd.codecs.probing.probe import examine
from vfsd.errors import RefusedMediaError
from vfsd.storage.sandbox_pool import Examiner
from vfsd.storage.sandbox_protocol import SandboxLimits

TRAFFIC = FOLDER / "traffic.mp4"
_PARENTS = (b"moov", b"trak", b"mdia", b"minf", b"dinf")


class Traps:
    """A video that nobody should open, and a port that nobody should connect to."""

    def __init__(self, folder: Path, file: FileTrap, port: PortTrap) -> None:
        self.video = folder / "secret.mp4"
        self._file = file
        self._port = port
        self.url = f"http://127.0.0.1:{port.port}/secret.mp4"

    def met(self) -> list[str]:
        return [*self._file.opened(), *([self.url] if self._port.was_met() else [])]


@pytest.fixture
def traps(tmp_path: Path) -> Iterator[Traps]:
    folder = tmp_path / "trap"
    folder.mkdir()
    (folder / "secret.mp4").write_bytes(TRAFFIC.read_bytes())
    with file_trap(folder) as file, port_trap() as port:
        yield Traps(folder, file, port)


@pytest.fixture(scope="module")
def examiner() -> Iterator[Examiner]:
    made = Examiner(SandboxLimits())
    yield made
    made.close()


def looked_at(examiner: Examiner, path: Path) -> None:
    """By this process as well: what it does not do needs no process that may not."""
    for look in (examine, examiner.examine):
        try:
            look(path)
        except RefusedMediaError:
            continue


def test_the_traps_catch(tmp_path: Path, traps: Traps) -> None:
    """FFmpeg does open what these name, where it is let."""
    assert not traps.met()
    playlist = tmp_path / "list.txt"
    playlist.write_text(f"ffconcat version 1.0\nfile '{traps.video}'\n")
    av.open(str(playlist), format="concat", options={"safe": "0"}).close()
    assert traps.met()
    movie = tmp_path / "refers.mov"
    movie.write_bytes(_with_reference(TRAFFIC.read_bytes(), _alias(str(traps.video))))
    av.open(str(movie), options={"enable_drefs": "1", "use_absolute_path": "1"}).close()
    assert traps.met()


PLAYLISTS = {
    "hls": "#EXTM3U\n#EXT-X-TARGETDURATION:4\n#EXTINF:4,\n{0}\n#EXT-X-ENDLIST\n",
    "hls with a key": '#EXTM3U\n#EXT-X-KEY:METHOD=AES-128,URI="{0}"\n#EXTINF:4,\n{0}\n',
    "hls with data": "#EXTM3U\n#EXTINF:4,\ndata:text/plain;base64,I0VYVE0zVQ==\n#EXTINF:4,\n{0}\n",
    "concat": "ffconcat version 1.0\nfile '{0}'\n",
    "dash": '<?xml version="1.0"?><MPD xmlns="urn:mpeg:dash:schema:mpd:2011"><Period>'
    "<BaseURL>{0}</BaseURL></Period></MPD>",
    "entities": '<?xml version="1.0"?><!DOCTYPE a [<!ENTITY b SYSTEM "{0}">]><MPD>&b;</MPD>',
    "sdp": "v=0\no=- 0 0 IN IP4 127.0.0.1\nm=video {1} RTP/AVP 96\na=rtpmap:96 H264/90000\n",
    "asx": '<asx version="3.0"><entry><ref href="{0}"/></entry></asx>',
    "pls": "[playlist]\nFile1={0}\n",
    "rtsp": "RTSPtext{0}\n",
    "shortcut": "[InternetShortcut]\nURL={0}\n",
    "vobsub": "# VobSub index file, v7 (do not modify this line!)\nid: en\n",
    "subtitles": "1\n00:00:00,000 --> 00:00:01,000\n<img src='{0}'>\n",
}


@pytest.mark.parametrize("kind", one_in(4, PLAYLISTS))
@pytest.mark.parametrize("suffix", [".mp4", ".m3u8", ".txt"])
def test_lists_of_other_files_open_none(
    tmp_path: Path, traps: Traps, examiner: Examiner, kind: str, suffix: str
) -> None:
    for target in (str(traps.video), traps.video.as_uri(), traps.url):
        path = tmp_path / f"list{suffix}"
        path.write_text(PLAYLISTS[kind].format(target, traps.url.split(":")[2].split("/")[0]))
        looked_at(examiner, path)
    assert not traps.met()


@pytest.mark.parametrize("name", ["trap/%d.mp4", "trap/*.mp4", "concat:trap|secret.mp4"])
def test_names_that_are_patterns_open_nothing_else(
    tmp_path: Path, traps: Traps, examiner: Examiner, name: str
) -> None:
    path = tmp_path / name.replace("/", "_")
    path.write_bytes(TRAFFIC.read_bytes())
    looked_at(examiner, path)
    assert not traps.met()


def _with_reference(data: bytes, entry: bytes) -> bytes:
    """A movie whose tracks all say that their media lie elsewhere: what `entry` of dref tells."""
    made, at = [], 0
    while at < len(data):
        size, kind = int.from_bytes(data[at : at + 4]), data[at + 4 : at + 8]
        body = data[at + 8 : at + size]
        if kind in _PARENTS:
            made.append(make_box(kind, _with_reference(body, entry)))
        elif kind == b"dref":
            made.append(make_full_box(b"dref", 0, 0, struct.pack(">I", 1) + entry))
        else:
            made.append(data[at : at + size])
        at += size
    return b"".join(made)


def _alias(path: str) -> bytes:
    """A QuickTime alias record of an absolute path, as far as FFmpeg reads it."""
    text = path.encode()
    tagged = struct.pack(">HH", 2, len(text)) + text + b"\0" * (len(text) % 2)
    tagged += struct.pack(">HH", 18, len(text)) + text + b"\0" * (len(text) % 2)
    record = struct.pack(">4sHHH", b"\0\0\0\0", 150, 2, 0) + b"\4disk".ljust(28, b"\0")
    record += bytes(12) + b"\x0asecret.mp4".ljust(64, b"\0") + bytes(16)
    record += struct.pack(">HH", 0, 0) + bytes(16) + tagged + struct.pack(">HH", 0xFFFF, 0)
    return make_full_box(b"alis", 0, 0, record)


@pytest.mark.parametrize("suffix", [".mp4", ".mov"])
def test_media_that_lie_in_another_file_are_not_looked_for(
    tmp_path: Path, traps: Traps, examiner: Examiner, suffix: str
) -> None:
    data = TRAFFIC.read_bytes()
    for entry in (
        make_full_box(b"url ", 0, 0, traps.url.encode() + b"\0"),
        make_full_box(b"url ", 0, 0, traps.video.as_uri().encode() + b"\0"),
        make_full_box(b"urn ", 0, 0, b"a\0" + str(traps.video).encode() + b"\0"),
        _alias(str(traps.video)),
        _alias(f"disk:{traps.video}"),
    ):
        path = tmp_path / f"refers{suffix}"
        path.write_bytes(_with_reference(data, entry))
        looked_at(examiner, path)
    assert not traps.met()


@pytest.mark.thorough
def test_attachments_stay_what_they_are(tmp_path: Path, traps: Traps, examiner: Examiner) -> None:
    """A playlist, a font and a subtitle that a Matroska file has with it."""
    source, path = tmp_path / "a.mkv", tmp_path / "attached.mkv"
    scene = Scene(96, 64, frames=8, rate=Fraction(25), seed=1)
    write(scene, Encoding("h264", gop=4, bframes=0, preset="ultrafast"), source)
    playlist = tmp_path / "list.m3u8"
    playlist.write_text(f"#EXTM3U\n#EXTINF:4,\n{traps.video}\n#EXTINF:4,\n{traps.url}\n")
    try:
        subprocess.run(
            [
                *("ffmpeg", "-v", "error", "-i", source, "-attach", playlist),
                *("-metadata:s:t", "mimetype=application/vnd.apple.mpegurl", "-c", "copy", path),
            ],
            check=True,
        )
    except FileNotFoundError:
        pytest.skip("ffmpeg is not installed")
    looked_at(examiner, path)
    assert len(examine(path).order) == 8
    assert not traps.met()
