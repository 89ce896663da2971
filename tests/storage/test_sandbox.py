"""Files are examined in sandboxed processes.  Media that refer to other files or to network
addresses: these are never opened.  An installation that cannot examine files reports the cause."""

from __future__ import annotations

import json
import math
import os
import resource
import signal
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from itertools import islice
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sample_videos import FOLDER, Encoding, Scene, write
from tests.support.broken_pyav import environment
from tests.support.ffmpeg_reference import alike
from tests.support.selection import one_in
from tests.support.stores import new_store
from tests.support.traps import FileTrap, PortTrap, file_trap, port_trap
from vfsd.api.store import Store
from vfsd.codecs.containers.tracks import make_box, make_full_box
from vfsd.codecs.probing.probe import Examination, examine, sample_video
from vfsd.codecs.probing.serialize import pack_examination, unpack_examination
from vfsd.errors import BusyError, ExaminerError, IntegrityError, RefusedMediaError
from vfsd.storage import sandbox_pool as examiner_module
from vfsd.storage.sandbox_pool import Examiner
from vfsd.storage.sandbox_protocol import SandboxLimits

SAMPLES = ("traffic.mp4", "open-gop.mkv", "elementary.h264", "transport.ts", "late-start.mp4")


@pytest.fixture(scope="module")
def examiner() -> Iterator[Examiner]:
    made = Examiner(SandboxLimits())
    yield made
    made.close()


def children(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += [int(word) for word in (task / "children").read_text().split()]
    return found


class Signalling:
    """Sends a signal to the examiner process as soon as it is working."""

    def __init__(self, number: int) -> None:
        self._number = number
        self.sent = False

    def __call__(self, done: int, total: int) -> None:
        for child in children(os.getpid()):
            line = Path(f"/proc/{child}/cmdline").read_bytes()
            for at_work in children(child) if b"vfsd.storage.sandbox_start" in line else ():
                os.kill(at_work, self._number)
                self.sent = True


def refusal(examiner: Examiner, clip: Path, number: int) -> str:
    """The error for a file if a signal arrives during its examination."""
    for _ in range(200):
        send = Signalling(number)
        try:
            examiner.examine(clip, full=True, on_progress=send)
        except RefusedMediaError as error:
            assert send.sent
            return str(error)
    raise AssertionError("every examination ended before the signal arrived")


@pytest.mark.parametrize("name", SAMPLES)
def test_sandbox_returns_the_same_result(examiner: Examiner, name: str) -> None:
    assert alike(examiner.examine(FOLDER / name), examine(FOLDER / name))


def test_sandboxed_refusal_has_the_same_message(examiner: Examiner, tmp_path: Path) -> None:
    cut = tmp_path / "cut.mp4"
    cut.write_bytes((FOLDER / "traffic.mp4").read_bytes()[:3000])
    text = tmp_path / "notes.txt"
    text.write_text("no video")
    for path in (cut, text):
        told = []
        for way in (examine, examiner.examine):
            with pytest.raises(RefusedMediaError) as caught:
                way(path)
            told.append(str(caught.value))
        assert told[0] == told[1]


def many_streams(path: Path, count: int) -> Path:
    """The same frames in that many parallel streams."""
    with av.open(str(FOLDER / "traffic.mp4")) as clip, av.open(str(path), "w") as made:
        pictures = clip.streams.video[0]
        streams = [made.add_stream_from_template(pictures) for _ in range(count)]
        for packet in islice(clip.demux(pictures), 6):
            for stream in streams:
                copied = av.Packet(bytes(packet))
                copied.pts, copied.dts = packet.pts, packet.dts
                copied.time_base, copied.is_keyframe = packet.time_base, packet.is_keyframe
                copied.stream = stream
                made.mux(copied)
    return path


@pytest.mark.parametrize("suffix", one_in(3, ["mkv", "mov", "ts"]))
def test_streams_are_limited_to_200(examiner: Examiner, tmp_path: Path, suffix: str) -> None:
    """FFmpeg may ignore the others silently, or run out of memory."""
    most = examiner.examine(many_streams(tmp_path / f"most.{suffix}", 200))
    assert len(most.media.side_streams) == 199
    for count in (201, 400):
        more = many_streams(tmp_path / f"more.{suffix}", count)
        for way in (examine, examiner.examine):
            with pytest.raises(RefusedMediaError, match="the file has more than 200 streams"):
                way(more)


def test_file_that_crashes_the_decoder_is_refused(examiner: Examiner, wide_clip: Path) -> None:
    assert "crashes (SIGSEGV)" in refusal(examiner, wide_clip, signal.SIGSEGV)
    assert "crashes (SIGABRT)" in refusal(examiner, wide_clip, signal.SIGABRT)
    assert "was killed" in refusal(examiner, wide_clip, signal.SIGKILL)
    assert len(examiner.examine(wide_clip).order) == 60


@pytest.mark.thorough
def test_file_that_hangs_the_decoder_is_refused(wide_clip: Path) -> None:
    impatient = Examiner(SandboxLimits(silent_seconds=2))
    try:
        assert "hangs" in refusal(impatient, wide_clip, signal.SIGSTOP)
        assert len(impatient.examine(wide_clip).order) == 60
    finally:
        impatient.close()


def raw(path: Path, width: int, height: int, frames: int) -> Path:
    """Black frames that use no disk space."""
    head = f"YUV4MPEG2 W{width} H{height} F25:1\n".encode()
    with open(path, "wb") as file:
        file.write(head)
        for number in range(frames):
            file.seek(len(head) + number * (6 + width * height * 3 // 2))
            file.write(b"FRAME\n")
        file.truncate(len(head) + frames * (6 + width * height * 3 // 2))
    return path


def test_memory_and_time_are_limited(tmp_path: Path) -> None:
    large = raw(tmp_path / "large.y4m", 16384, 8192, 1)
    with pytest.raises(RefusedMediaError, match="MiB of memory"):
        _examined_within(SandboxLimits(memory=300 << 20), large)
    long = raw(tmp_path / "long.y4m", 3840, 2160, 2000)
    with pytest.raises(RefusedMediaError, match="more than 1 seconds of CPU time"):
        _examined_within(SandboxLimits(seconds=1, seconds_per_gigabyte=0), long)


def _examined_within(limits: SandboxLimits, path: Path) -> Examination:
    examiner = Examiner(limits)
    try:
        return examiner.examine(path)
    finally:
        examiner.close()


@pytest.mark.thorough
def test_cancellation_ends_the_examination(examiner: Examiner, wide_clip: Path) -> None:
    class EnoughError(Exception):
        pass

    def give_up(done: int, total: int) -> None:
        raise EnoughError

    with pytest.raises(EnoughError):
        examiner.examine(wide_clip, full=True, on_progress=give_up)
    assert len(examiner.examine(wide_clip).order) == 60


def test_killed_idle_process_is_replaced(examiner: Examiner) -> None:
    examiner.examine(FOLDER / "portrait.mp4")
    idle = [c for c in children(os.getpid()) if b"sandbox_start" in _command(c)]
    assert idle
    for child in idle:
        os.kill(child, signal.SIGKILL)
    assert len(examiner.examine(FOLDER / "portrait.mp4").order)


def _command(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def test_examination_with_thousands_of_open_files() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    if before[1] < 4096:
        pytest.skip("not so many files may be open")
    crowded = Examiner(SandboxLimits())
    held: list[int] = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (4096, before[1]))
        held += [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
        assert len(crowded.examine(FOLDER / "portrait.mp4").order)
    finally:
        for fd in held:
            os.close(fd)
        crowded.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


# ------------------------------------------------------------------- what the process hands over


EXAMINED = {name: examine(FOLDER / name) for name in ("traffic.mp4", "late-start.mp4")}


@pytest.mark.parametrize("name", EXAMINED)
def test_examination_survives_its_transport(name: str) -> None:
    size = (FOLDER / name).stat().st_size
    packed = pack_examination(EXAMINED[name])
    assert alike(unpack_examination(packed, size), EXAMINED[name])
    with pytest.raises(IntegrityError):
        unpack_examination(packed, size // 2)  # of a file shorter than its description


def _with_head(change: Callable[[dict[str, Any]], object]) -> bytes:
    """The examination of a video, with another head."""
    packed = pack_examination(EXAMINED["late-start.mp4"])
    (length,) = struct.unpack_from("<I", packed, 4)
    head = json.loads(packed[8 : 8 + length])
    change(head)
    text = json.dumps(head).encode()
    return struct.pack("<4sI", packed[:4], len(text)) + text + packed[8 + length :]


@pytest.mark.parametrize(
    "changed",
    [
        # too large
        {"width": 65_537},
        {"width": 65_536, "height": 65_536},
        {"width": 10**400},
        {"profile": "x" * 65_537},
        {"codec": "x" * 65},
        {"marks": {str(number): "" for number in range(1001)}},
        {"side_streams": [None] * 1001},
        {"crop": [0, 0, 0, 0, 0]},
        {"time_base": "1/" + "9" * 31},
        # of another type
        {"width": "640"},
        {"width": 640.0},
        {"width": True},
        {"width": None},
        {"codec": "h264\n"},
        {"codec": ["h264"]},
        {"container": "../mp4"},
        {"interlaced": 0},
        {"rotation": 45},
        {"extradata": "no base64"},
        {"tags": {"title": 5}},
        {"side_streams": {}},
        {"side_streams": [{"index": 0}]},
        {"time_base": 0.5},
        {"time_base": True},
        # not a number, or not positive
        {"width": math.nan},
        {"bit_depth": math.inf},
        {"time_base": "nan"},
        {"width": 0},
        {"width": -640},
        {"stream_index": -1},
        {"time_base": "0"},
        {"time_base": "-1/25"},
        {"average_rate": "25/0"},
        # not a field
        {"object": "os.system"},
    ],
    ids=lambda changed: str(changed)[:40],
)
def test_fields_out_of_bounds_are_refused(changed: dict[str, Any]) -> None:
    size = (FOLDER / "late-start.mp4").stat().st_size
    with pytest.raises(IntegrityError):
        unpack_examination(_with_head(lambda head: head["media"].update(changed)), size)


@pytest.mark.parametrize(
    "changed",
    [
        {"packets": -1},
        {"frames": 10**9},
        {"sound_packets": 10**12},
        {"end_pts": 1 << 61},
        {"end_pts": math.nan},
        {"access": "anywhere"},
        {"notes": [""] * 1001},
        {"notes": ["x" * 65_537]},
        {"damage": [[-1, 3]]},
        {"damage": [[0, 2, 4]]},
        {"sound": []},
        {"media": None},
    ],
    ids=lambda changed: str(changed)[:40],
)
def test_heads_out_of_bounds_are_refused(changed: dict[str, Any]) -> None:
    size = (FOLDER / "late-start.mp4").stat().st_size
    with pytest.raises(IntegrityError):
        unpack_examination(_with_head(lambda head: head.update(changed)), size)


@pytest.mark.parametrize("kept", [0, 7, 8, 100, -1])
def test_truncated_examinations_are_refused(kept: int) -> None:
    size = (FOLDER / "late-start.mp4").stat().st_size
    with pytest.raises(IntegrityError):
        unpack_examination(pack_examination(EXAMINED["late-start.mp4"])[:kept], size)


def test_missing_fields_and_deep_nesting_are_refused() -> None:
    size = (FOLDER / "late-start.mp4").stat().st_size
    with pytest.raises(IntegrityError):
        unpack_examination(_with_head(lambda head: head["media"].pop("crop")), size)
    nested = b"[" * 200_000
    with pytest.raises(IntegrityError):
        unpack_examination(struct.pack("<4sI", b"vfx1", len(nested)) + nested, size)


def test_tags_that_are_not_utf8_arrive() -> None:
    """They have lone surrogates, which the JSON of other libraries refuses."""
    found = EXAMINED["late-start.mp4"]
    found = replace(found, media=replace(found.media, tags={"title": "caf\udce9"}))
    size = (FOLDER / "late-start.mp4").stat().st_size
    assert unpack_examination(pack_examination(found), size).media.tags == {"title": "caf\udce9"}


@given(data=st.data())
def test_arbitrary_answers_are_refused(data: st.DataObject) -> None:
    size = (FOLDER / "late-start.mp4").stat().st_size
    packed = bytearray(pack_examination(EXAMINED["late-start.mp4"]))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(packed) - 1))
        packed[at] = data.draw(st.integers(0, 255))
    try:
        found = unpack_examination(bytes(packed[: data.draw(st.integers(0, len(packed)))]), size)
    except IntegrityError:
        return
    assert found.order.max() < len(found.columns)
    assert (np.diff(found.columns.pts[found.order]) > 0).all()
    assert (found.columns.position + found.columns.size).max() <= size


# --------------------------------------------------------------------------------------------------
# Media that refer to other files or to network addresses: these are never opened


TRAFFIC = FOLDER / "traffic.mp4"
_PARENTS = (b"moov", b"trak", b"mdia", b"minf", b"dinf")


class Traps:
    """A video that must not be opened, and a port that must not be connected to."""

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


def looked_at(examiner: Examiner, path: Path) -> None:
    """Examine a file, also in this process: operations that are skipped here need no sandbox."""
    for look in (examine, examiner.examine):
        try:
            look(path)
        except RefusedMediaError:
            continue


def test_traps_detect_access(tmp_path: Path, traps: Traps) -> None:
    """FFmpeg opens the references of these files if permitted."""
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
def test_playlists_open_no_other_files(
    tmp_path: Path, traps: Traps, examiner: Examiner, kind: str, suffix: str
) -> None:
    for target in (str(traps.video), traps.video.as_uri(), traps.url):
        path = tmp_path / f"list{suffix}"
        path.write_text(PLAYLISTS[kind].format(target, traps.url.split(":")[2].split("/")[0]))
        looked_at(examiner, path)
    assert not traps.met()


@pytest.mark.parametrize("name", ["trap/%d.mp4", "trap/*.mp4", "concat:trap|secret.mp4"])
def test_names_with_patterns_open_no_other_files(
    tmp_path: Path, traps: Traps, examiner: Examiner, name: str
) -> None:
    path = tmp_path / name.replace("/", "_")
    path.write_bytes(TRAFFIC.read_bytes())
    looked_at(examiner, path)
    assert not traps.met()


def _with_reference(data: bytes, entry: bytes) -> bytes:
    """A movie with media in another file for all tracks, as given by the dref box `entry`."""
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
    """A QuickTime alias record of an absolute path, with the parts that FFmpeg reads."""
    text = path.encode()
    tagged = struct.pack(">HH", 2, len(text)) + text + b"\0" * (len(text) % 2)
    tagged += struct.pack(">HH", 18, len(text)) + text + b"\0" * (len(text) % 2)
    record = struct.pack(">4sHHH", b"\0\0\0\0", 150, 2, 0) + b"\4disk".ljust(28, b"\0")
    record += bytes(12) + b"\x0asecret.mp4".ljust(64, b"\0") + bytes(16)
    record += struct.pack(">HH", 0, 0) + bytes(16) + tagged + struct.pack(">HH", 0xFFFF, 0)
    return make_full_box(b"alis", 0, 0, record)


@pytest.mark.parametrize("suffix", [".mp4", ".mov"])
def test_media_in_another_file_is_not_opened(
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
def test_attachments_are_not_interpreted(tmp_path: Path, traps: Traps, examiner: Examiner) -> None:
    """A playlist, a font and a subtitle attached to a Matroska file."""
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


# --------------------------------------------------------------------------------------------------
# An installation that cannot examine files reports the cause


VIDEO = FOLDER / "portrait.mp4"


def run(env: dict[str, str], *words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "vfsd", *map(str, words)]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("kind", "cause"),
    one_in(
        2,
        [
            ("unloadable", "undefined symbol"),
            ("other keywords", "unexpected keyword argument"),
            ("no subtitles", "Too many open files"),
        ],
    ),
)
def test_doctor_finds_broken_examiner(tmp_path: Path, kind: str, cause: str) -> None:
    done = run(environment(tmp_path, kind), "doctor", "--json")
    found = [json.loads(line) for line in done.stdout.splitlines()]
    (one,) = (one for one in found if one["check"] == "examiner")
    assert (one["status"], done.returncode) == ("fail", 30)
    assert cause in one["message"]
    assert "pip install" in one["advice"]


@pytest.mark.parametrize(
    ("kind", "cause"),
    one_in(
        2, [("unloadable", "undefined symbol"), ("other keywords", "unexpected keyword argument")]
    ),
)
def test_ingest_names_cause(tmp_path: Path, kind: str, cause: str) -> None:
    """The error has one line, and the store is unchanged."""
    new_store(tmp_path / "store").close()
    env = environment(tmp_path / "path", kind)
    done = run(env, "-s", tmp_path / "store", "ingest", VIDEO, VIDEO.parent / "traffic.mp4")
    assert done.returncode == 20
    assert cause in done.stderr
    assert "vfsd doctor" in done.stderr
    assert "Traceback" not in done.stderr
    with Store.open(tmp_path / "store", read_only=True) as store:
        assert len(store) == 0


def test_examiner_reports_broken_libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = environment(tmp_path, "other keywords")["PYTHONPATH"]
    monkeypatch.setenv("PYTHONPATH", path)
    examiner = Examiner(SandboxLimits())
    try:
        for attempt in (examiner.require_start, lambda: examiner.examine(VIDEO)):
            with pytest.raises(ExaminerError, match="unexpected keyword argument") as caught:
                attempt()
            assert "vfsd doctor" in str(caught.value.hint)
        # A process that was started ahead of time reports the same error.
        examiner.start()
        with pytest.raises(ExaminerError, match="unexpected keyword argument"):
            examiner.require_start()
    finally:
        examiner.close()


@pytest.mark.parametrize(
    ("code", "error", "words"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGILL)", ExaminerError, "SIGILL"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", BusyError, "was killed"),
        ("import os; os._exit(3)", ExaminerError, "ends with 3"),
        ("import time; time.sleep(60)", ExaminerError, "not ready after"),
    ],
)
def test_examiner_that_dies_at_start(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    code: str,
    error: type[Exception],
    words: str,
) -> None:
    """A library crashes, hangs, or ends the process while it is loaded."""
    (tmp_path / "av").mkdir()
    (tmp_path / "av/__init__.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(examiner_module, "_START_SECONDS", 60.0 if "sleep" not in code else 1.0)
    examiner = Examiner(SandboxLimits())
    try:
        with pytest.raises(error, match=words):
            examiner.examine(VIDEO)
    finally:
        examiner.close()


def test_sample_video_has_subtitles(tmp_path: Path) -> None:
    import av

    path = tmp_path / "sample.mkv"
    path.write_bytes(sample_video())
    with av.open(str(path)) as opened:
        assert len(opened.streams.subtitles) == 1
        assert len(list(opened.decode(video=0))) == 5
