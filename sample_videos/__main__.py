"""Command line: remakes or checks the clips of this folder, or makes a file of any size."""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path

from sample_videos.clips import CLIPS, FOLDER
from sample_videos.encoding import CODECS, Encoding
from sample_videos.objects import KINDS
from sample_videos.scene import Scene
from sample_videos.verifying import problems
from sample_videos.writing import write


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit status."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        if options.command == "scene":
            return _make_scene(options)
        if options.list:
            return _list()
        return _check(options.out) if options.check else _remake(options.out)
    except ValueError as error:
        parser.error(str(error))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m sample_videos",
        description="Remakes the clips of the folder sample_videos.",
    )
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder of the clips")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--list", action="store_true", help="only tell what there is to make")
    what.add_argument(
        "--check", action="store_true", help="only decode the clips and compare to ground truth"
    )
    commands = parser.add_subparsers(dest="command")
    scene = commands.add_parser("scene", help="make one file", description="Makes one file.")
    scene.add_argument("file", type=Path, help="its suffix names the container")
    _add_scene_options(scene)
    _add_encoding_options(scene)
    return parser


def _add_scene_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("scene")
    group.add_argument("--size", type=_size, default=(320, 240), metavar="WIDTHxHEIGHT")
    group.add_argument("--rate", type=Fraction, default=Scene.rate, help="30, 30000/1001, ...")
    length = group.add_mutually_exclusive_group()
    length.add_argument("--seconds", type=Fraction, default=Fraction(2))
    length.add_argument("--frames", type=int)
    group.add_argument("--density", type=float, default=Scene.density, help="0 .. 0.9")
    group.add_argument(
        "--classes",
        type=lambda text: tuple(text.split(",")),
        default=tuple(KINDS),
        metavar="A,B,...",
        help=", ".join(KINDS),
    )
    group.add_argument("--noise", type=float, default=Scene.noise, metavar="SIGMA")
    group.add_argument(
        "--drift", type=float, default=Scene.drift, help="light lost by night, 0 .. 1"
    )
    group.add_argument("--pan", type=int, default=Scene.pan, metavar="PIXELS")
    group.add_argument("--seed", type=int, default=Scene.seed)
    group.add_argument("--no-numbers", action="store_true", help="do not stamp frame numbers")


def _add_encoding_options(parser: argparse.ArgumentParser) -> None:
    default = Encoding()
    group = parser.add_argument_group("encoding")
    group.add_argument("--codec", choices=CODECS, default=default.codec)
    group.add_argument("--gop", type=int, default=default.gop, metavar="FRAMES")
    group.add_argument("--bframes", type=int, default=default.bframes)
    group.add_argument("--open-gop", action="store_true")
    group.add_argument("--crf", type=int)
    group.add_argument("--preset")
    group.add_argument("--pixel-format", default=default.pixel_format)
    group.add_argument("--vfr", action="store_true", help="irregular timestamps")
    group.add_argument("--audio", action="store_true", help="add a sine sweep")
    group.add_argument("--faststart", action="store_true", help="mp4, mov: index first")
    group.add_argument("--fragmented", action="store_true", help="mp4, mov")
    group.add_argument("--rotation", type=int, default=0, metavar="DEGREES", help="clockwise")
    group.add_argument("--start", type=Fraction, default=default.start, metavar="SECONDS")
    group.add_argument("--threads", type=int, default=default.threads)


def _size(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)x(\d+)", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not WIDTHxHEIGHT")
    return int(match[1]), int(match[2])


def _list() -> int:
    for name, clip in CLIPS.items():
        scene = clip.scene
        print(f"{name:<18} {scene.width}x{scene.height}, {scene.frames} frames: {clip.trait}")
    return 0


def _check(folder: Path) -> int:
    """0 where every clip is as it should be, else 1."""
    status = 0
    for name in CLIPS:
        try:
            found = problems(folder / name)
        except FileNotFoundError as error:
            found = [str(error)]
        print(f"{name}: {'; '.join(found[:3]) or 'as recorded'}")
        status = 1 if found else status
    return status


def _remake(folder: Path) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    for name, clip in CLIPS.items():
        write(clip.scene, clip.encoding, folder / name)
        print(f"{name}: {(folder / name).stat().st_size} bytes")
    return 0


def _make_scene(options: argparse.Namespace) -> int:
    width, height = options.size
    counted = options.frames is not None
    scene = Scene(
        width=width,
        height=height,
        frames=options.frames if counted else round(options.seconds * options.rate),
        rate=options.rate,
        density=options.density,
        classes=options.classes,
        noise=options.noise,
        drift=options.drift,
        pan=options.pan,
        seed=options.seed,
        numbered=not options.no_numbers,
    )
    encoding = Encoding(
        codec=options.codec,
        gop=options.gop,
        bframes=options.bframes,
        closed_gop=not options.open_gop,
        crf=options.crf,
        preset=options.preset,
        pixel_format=options.pixel_format,
        variable_rate=options.vfr,
        audio=options.audio,
        faststart=options.faststart,
        fragmented=options.fragmented,
        rotation=options.rotation,
        start=options.start,
        threads=options.threads,
    )
    write(scene, encoding, options.file, _progress(scene.frames))
    return 0


def _progress(total: int) -> Callable[[int], None]:
    """Tells on stderr how far it has got, about once a second and at the end."""
    begun = told = time.monotonic()

    def tell(done: int) -> None:
        nonlocal told
        now = time.monotonic()
        if now - told >= 1 or done == total:
            told = now
            speed = done / max(now - begun, 1e-6)
            end = "\n" if done == total else "\r"
            print(f"{done}/{total} frames, {speed:.0f} per second", end=end, file=sys.stderr)

    return tell


if __name__ == "__main__":
    raise SystemExit(main())
