"""Every file of a folder, from frame counts to replaced originals, compared with ffmpeg.

The folder is ``$VFSD_CORPUS`` or ``--corpus``, best a collection of test files of players, muxers
and cameras.  Each file is ingested into a store of its own and compared with the output of the
ffmpeg program.  Compared are the number, order and times of frames, and every plane of every frame;
random access with sequential access; the frames and audio of views; and the output of ffprobe
before and after the original was replaced.

A file passes when vfsd serves it without a difference, or refuses it and ffmpeg does not play it in
full either, or plays it as the only picture of a still image.  A refusal of a file that ffmpeg
plays is listed with its reason.  Frames that vfsd marks as damaged are counted separately if they
differ, because decoders conceal damage in different ways.  Only the first ``--frames`` frames of a
longer file are compared, and its packets are counted.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path

import av
import numpy as np
import numpy.typing as npt

from benchmarks.common import arguments, directory, finish, table
from benchmarks.corpus_reference import (
    Playback,
    copy_sound,
    count_packets,
    ffmpeg_program,
    inventory,
    play_video,
)
from benchmarks.fidelity import frames_of_vfsd
from vfsd.api.store import Store
from vfsd.api.video import Video, context_of
from vfsd.core.pixel_array import Pixels
from vfsd.disk.store_config import StoreSettings
from vfsd.errors import ForbiddenError, RefusedMediaError, VfsdError
from vfsd.write.ingest_file import SourceFile, ingest_copy

_CHUNK = 8
"""Files that are checked in one store."""
_RANDOM_READS = 8
_VIEW_FRAMES = 40
_LEAST_VIEW_PSNR = 24.0
_MOST_REPLACED = 60_000_000
"""Pixels of all frames of a video whose original is replaced: encoding more takes too long."""
_MOST_VALUE = 60
"""Characters of a value that are shown."""
_SOUND_PACKETS = 100
"""Packets at the start of a view that are looked for in the source."""
_SOUND_SECONDS = 0.05
"""By how much sound may lie otherwise in a view: about a packet of AAC at 22.05 kHz."""


@dataclass
class Checked:
    """The comparison of one file."""

    file: str
    state: str = "error"  #: served, refused or error
    reason: str = ""
    expected: int = 0  #: frames that ffmpeg plays
    plays: bool = False  #: ffmpeg plays it without printing an error
    frames: int = 0
    damaged: int = 0  #: frames that differ and are marked as damaged
    wrong: list[str] = field(default_factory=list)  #: one sentence each
    notes: list[str] = field(default_factory=list)
    replaced: str = ""  #: "yes", or the reason for not replacing
    before: dict[str, str] = field(default_factory=dict)  #: side data of a replaced original
    after: dict[str, str] = field(default_factory=dict)  #: the same for the new file
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        if self.state == "served":
            return not self.wrong
        return self.state == "refused" and (not self.plays_in_full or self.is_still)

    @property
    def plays_in_full(self) -> bool:
        return self.plays and self.expected > 0

    @property
    def is_still(self) -> bool:
        """Whether the file is refused as a still image, and so stays a plain file."""
        return self.state == "refused" and self.expected == 1 and "still image" in self.reason


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--corpus", type=directory, default=os.environ.get("VFSD_CORPUS"))
    parser.add_argument("--ffmpeg", help="the ffmpeg program (default: the newest installed)")
    parser.add_argument("--match", default="*", help="only files whose path matches this pattern")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="files at a time")
    parser.add_argument("--frames", type=int, default=2000, help="frames to compare of each file")
    parser.add_argument("--timeout", type=int, default=600, help="seconds for one file")
    parser.add_argument("--log", type=Path, help="append a line of JSON for each file")
    options = parser.parse_args()
    if options.corpus is None:
        parser.error("give a folder of media files: --corpus FOLDER, or set VFSD_CORPUS")
    corpus = Path(options.corpus)
    files = [path for path in sorted(corpus.rglob(options.match)) if path.is_file()]
    ffmpeg = ffmpeg_program(options.ffmpeg)
    results: list[Checked] = []
    with ProcessPoolExecutor(options.jobs) as pool:
        # Stores and examiner processes cost more to start than most files cost to check.
        chunks = [files[start : start + _CHUNK] for start in range(0, len(files), _CHUNK)]
        checks = Checks(ffmpeg, options.frames, options.timeout)
        for chunk in [pool.submit(check_files, part, corpus, checks) for part in chunks]:
            results += chunk.result()
            if options.log:
                lines = [json.dumps(asdict(result)) + "\n" for result in chunk.result()]
                with options.log.open("a", encoding="utf-8") as log:
                    log.writelines(lines)
            shown = results[-1].file[-60:]
            print(f"\r{len(results)}/{len(files)} {shown:60}", end="", file=sys.stderr)
    print(file=sys.stderr)
    print(summary(results))
    figures = [asdict(result) for result in results]
    finish(options, "corpus", figures, passed=all(result.passed for result in results))


@dataclass(frozen=True)
class Checks:
    """The settings of the checks."""

    ffmpeg: str  #: the program
    frames: int  #: the largest number of frames to compare
    timeout: int  #: seconds per file


def summary(results: list[Checked]) -> str:
    """Tables of differences, of refused files that play, and of totals."""
    wrong = [(r.file, "; ".join(r.wrong)) for r in results if r.wrong or r.state == "error"]
    refused = [r for r in results if r.state == "refused"]
    plays = [(r.file, r.expected, _reason(r)) for r in refused if r.plays_in_full]
    reasons = Counter((_reason(r), "yes" if r.plays_in_full else "no") for r in refused)
    states = Counter(result.state for result in results)
    replaced = Counter(r.replaced.partition(":")[0] for r in results if r.replaced)
    damaged = [(r.file, r.damaged) for r in results if r.damaged]
    totals = [
        ("files", len(results)),
        ("served", states["served"]),
        ("frames compared", sum(r.frames for r in results)),
        ("refused", states["refused"]),
        ("refused, though ffmpeg plays them in full", len(plays)),
        ("of these still images", sum(r.is_still for r in refused)),
        ("with frames that differ and are marked as damaged", len(damaged)),
        ("different, or failed", len(wrong)),
        *((f"replace: {name}", count) for name, count in replaced.items()),
    ]
    return "\n\n".join(
        (
            table(("file", "side data", "before the replace", "after"), list(_side_data(results))),
            table(("file", "difference"), wrong),
            table(("file", "damaged frames that differ"), damaged),
            table(("file", "frames in ffmpeg", "refused because"), plays),
            table(
                ("refused because", "ffmpeg plays it", "files"),
                [(*key, count) for key, count in reasons.most_common()],
            ),
            table(("total", "number"), totals),
        )
    )


def _reason(refused: Checked) -> str:
    """The reason without the name of the file."""
    return refused.reason.removeprefix(f"{Path(refused.file).name}: ")


def _side_data(results: list[Checked]) -> Iterator[tuple[str, str, str, str]]:
    """The items that ffprobe shows for replaced originals, and for the new files."""
    for result in results:
        for name in sorted(result.before.keys() | result.after.keys()):
            before, after = result.before.get(name, "-"), result.after.get(name, "-")
            shown = "the same" if before == after else after[:_MOST_VALUE]
            yield result.file, name, before[:_MOST_VALUE], shown


def check_files(paths: list[Path], corpus: Path, checks: Checks) -> list[Checked]:
    """Compare files with ffmpeg in one store, each within its time limit."""
    with tempfile.TemporaryDirectory(prefix="corpus-") as name:
        work = Path(name)
        with Store.create(work / "store") as store:
            StoreSettings(tune=False).save(store.parts.directory.settings)
        with Store.open(work / "store") as store:
            return [_check_file(store, path, corpus, checks) for path in paths]


def _check_file(store: Store, path: Path, corpus: Path, checks: Checks) -> Checked:
    result = Checked(str(path.relative_to(corpus)))
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="corpus-") as work:
        try:
            with _time_limit(checks.timeout):
                _check(store, path, Path(work), checks, result)
        except TimeoutError:
            result.wrong.append(f"took longer than {checks.timeout} s")
        except Exception as error:
            # One file must not end the run: any failure is a result of that file.
            result.wrong.append(f"{type(error).__name__}: {error}")
    result.seconds = time.monotonic() - start
    return result


@contextmanager
def _time_limit(seconds: int) -> Iterator[None]:
    def expire(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, expire)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _check(store: Store, path: Path, work: Path, checks: Checks, result: Checked) -> None:
    truth = play_video(checks.ffmpeg, path, checks.frames)
    result.expected, result.plays = len(truth), truth.clean
    try:
        ingest_copy(store.parts, SourceFile(path, result.file, path.stat().st_size))
    except RefusedMediaError as error:
        result.state, result.reason = "refused", str(error)
        return
    result.state = "served"
    video = store[result.file]
    _check_number(video, path, truth, checks, result)
    marked = _check_frames(store, video, truth, result)
    _check_random(video, marked, result)
    _check_views(video, path, work, checks, truth, marked, result)
    _check_replace(store, video, path, work, result)


def _check_number(
    video: Video, path: Path, truth: Playback, checks: Checks, result: Checked
) -> None:
    expected, named = len(truth), "frames"
    if expected == checks.frames:
        expected, named = count_packets(path), "packets"
        result.notes.append(f"{len(truth)} frames of {len(video)} compared")
    if len(video) != expected:
        result.wrong.append(f"{len(video)} frames, {expected} {named} in ffmpeg")


def _check_frames(store: Store, video: Video, truth: Playback, result: Checked) -> frozenset[int]:
    """Compare frames; the marks of damage are looked up only when a frame differs."""
    base = context_of(video).table.time_base
    times = [int(pts) * base for pts in context_of(video).table.pts()]
    numbered = any("no timestamps" in note for note in video.original.notes)
    if times and truth.clean and not numbered:
        late = [
            index
            for index, (mine, theirs) in enumerate(zip(times, truth.seconds, strict=False))
            if abs((mine - times[0]) - (theirs - truth.seconds[0])) > base
        ]
        if late:
            result.wrong.append(f"{len(late)} frames at other times, the first is {late[0]}")
    hashes = list(islice(frames_of_vfsd(video, store), len(truth)))
    result.frames = len(hashes)
    differ = {i for i, (a, b) in enumerate(zip(hashes, truth.hashes, strict=False)) if a != b}
    if not differ:
        return frozenset()
    marked = frozenset(video.damaged_frames().tolist())
    result.damaged = len(differ & marked)
    unmarked = sorted(differ - marked)
    if unmarked:
        result.wrong.append(f"{len(unmarked)} frames differ, the first is {unmarked[0]}")
    return marked


def _check_random(video: Video, marked: frozenset[int], result: Checked) -> None:
    if len(video) < 2:
        return
    rng = np.random.default_rng(len(video))
    last = min(len(video), 300)
    wanted = {int(index) for index in rng.integers(0, last, _RANDOM_READS)}
    sequential = {}
    for frame in video.iterate(frames=range(max(wanted) + 1)):
        if frame.index in wanted:
            sequential[frame.index] = frame.data.copy()
    for index in rng.permutation(sorted(wanted)):
        same = np.array_equal(video[int(index)].data, sequential[int(index)])
        if not same and index not in marked:
            result.wrong.append(f"frame {index} alone differs from frame {index} in sequence")


def _check_views(
    video: Video,
    source: Path,
    work: Path,
    checks: Checks,
    truth: Playback,
    marked: frozenset[int],
    result: Checked,
) -> None:
    ffmpeg = checks.ffmpeg
    first = min(len(video), len(truth) or len(video)) // 4
    part = range(first, min(first + _VIEW_FRAMES, len(video)))
    cut = work / "part.mkv"
    explained = video.views.explain_save(cut, frames=part)
    video.save(cut, frames=part)
    shown = play_video(ffmpeg, cut, checks.frames)
    if len(shown) != len(part):
        result.wrong.append(f"view of {len(part)} frames ({explained.made}) has {len(shown)}")
    elif explained.made == "copied":
        right = truth.hashes[part.start : part.stop]
        others = [i for i, a, b in zip(part, shown.hashes, right, strict=False) if a != b]
        if not marked.issuperset(others):
            result.wrong.append("a copied view has other frames")
    else:
        worst = min(_psnrs(video, cut, part))
        if worst < _LEAST_VIEW_PSNR:
            result.wrong.append(f"an encoded view differs by {worst:.1f} dB")
    sound = copy_sound(ffmpeg, source)
    if not sound.hashes:
        return
    whole = work / "whole.mkv"
    told = video.views.explain_save(whole)
    if told.sound is None:
        result.notes.append(f"silent: {told.silence}")
        if not told.silence:
            result.wrong.append("a view is silent and no reason is given")
        return
    video.save(whole)
    heard, seen = copy_sound(ffmpeg, whole), play_video(ffmpeg, whole, 1)
    if not heard.hashes:
        result.wrong.append(f"a view has no sound, though explain says {told.sound}")
    elif seen.seconds and truth.seconds:
        # Packets of silence are equal, so a run of packets may match at several places. Without a
        # match, the sound was transcoded, or framed in another way.
        later = heard.seconds[0] - seen.seconds[0]
        run = heard.hashes[:_SOUND_PACKETS]
        off = [
            float(later - (sound.seconds[start] - truth.seconds[0]))
            for start in range(1, len(sound))
            if sound.hashes[start : start + len(run)] == run
        ]
        if off and min(map(abs, off)) > _SOUND_SECONDS and run != sound.hashes[: len(run)]:
            result.wrong.append(f"sound of a view lies {min(off, key=abs):.3f} s off")


def _psnrs(video: Video, cut: Path, part: range) -> Iterator[float]:
    """PSNR of luma, from RGB on both sides, because encoded views store chroma at half
    resolution."""
    with av.open(str(cut)) as container:
        for index, frame in zip(part, container.decode(video=0), strict=False):
            mine, theirs = _luma(video[index].data), _luma(frame.to_ndarray(format="rgb24"))
            # Encoders of 4:2:0 need even sizes, so an odd side grows or shrinks by one pixel.
            if any(abs(a - b) > 1 for a, b in zip(mine.shape, theirs.shape, strict=True)):
                yield 0.0
                return
            rows, columns = np.minimum(mine.shape, theirs.shape)
            error = float(np.mean((mine[:rows, :columns] - theirs[:rows, :columns]) ** 2))
            yield 99.0 if not error else 10 * float(np.log10(255**2 / error))


def _luma(rgb: Pixels) -> npt.NDArray[np.float32]:
    return rgb.astype(np.float32) @ np.array([0.299, 0.587, 0.114], np.float32)


def _check_replace(store: Store, video: Video, source: Path, work: Path, result: Checked) -> None:
    if len(video) * video.width * video.height > _MOST_REPLACED:
        result.replaced = "not tried: too large"
        return
    video.policy.set("original=replaceable,psnr=20")
    before = result.before = inventory(source)
    count, times = len(video), context_of(video).table.pts().tolist()
    base = context_of(video).table.time_base
    try:
        video.policy.replace_original(psnr=20, codec="h264")
    except (ForbiddenError, RefusedMediaError) as error:
        result.replaced, result.before = f"refused: {error}", {}
        return
    except VfsdError as error:
        result.replaced, result.before = f"refused: {type(error).__name__}: {error}", {}
        return
    result.replaced = "yes"
    stored = work / ("replaced" + source.suffix)
    again = store[video.name]
    shutil.copyfile(store.parts.originals.path_at(again.original.place), stored)
    after = result.after = inventory(stored)
    for name, value in before.items():
        if name not in after:
            result.wrong.append(f"replace lost {name} ({value[:60]})")
        elif after[name] != value:
            result.wrong.append(f"replace changed {name}: {value[:60]} to {after[name][:60]}")
    moved = [pts * base for pts in times] != [
        int(pts) * context_of(again).table.time_base for pts in context_of(again).table.pts()
    ]
    if len(again) != count or moved:
        result.wrong.append("replace changed the number or the times of frames")


if __name__ == "__main__":
    main()
