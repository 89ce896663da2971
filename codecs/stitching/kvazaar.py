"""Encodes stitchable tiles: runs kvazaar in an FFmpeg process, with motion vectors that stay
within their tile.
"""

from __future__ import annotations

import functools
import subprocess
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import IO

import numpy as np
import numpy.typing as npt

from vfsd.codecs.bitstreams import nal
from vfsd.codecs.bitstreams.bit_io import DamagedError
from vfsd.codecs.bitstreams.hevc_parameter_sets import ConformanceWindow
from vfsd.codecs.bitstreams.hevc_slices import begins_picture, holds_slice
from vfsd.codecs.encoding.encoder import EncoderSettings, PictureInput
from vfsd.codecs.frames.planes import plane_bytes
from vfsd.codecs.stitching.hevc_tiles import (
    STITCHABLE,
    ParameterSets,
    TileStream,
    extract_tiles,
    refuse_damaged_streams,
)
from vfsd.errors import ExtraMissingError, UsageError, VfsdError

TREE_BLOCK = 64
"""Inner edges of tiles are multiples of this; kvazaar is built for it."""

_SIZE_MULTIPLE = 8
"""Sides that kvazaar encodes are multiples of this; the rest is made up, and not shown."""

MAX_TILE_COLUMNS, MAX_TILE_ROWS = 20, 22
"""Of tiles, in any stream of HEVC."""

_MAX_SIDE = 8192
_WORST_QUALITY = 51
_HINT = "pip install 'vfsd[stitch]'"

_IGNORED = b"Invalid option"
"""What FFmpeg warns of, and goes on."""

_PARAMETERS = (
    # "faster" is where kvazaar begins to search fractions of pixels, which moving cameras need.
    "preset=faster",
    # Groups of four that only look back: pictures are coded in the order in which they are shown.
    "gop=lp-g4d3t1",
    "period=0",
    "open-gop=0",
    # libde265 mixes up the slices of chroma in this filter; it is worth 0.2 dB.
    "sao=off",
    # What stitching needs: see `vfsd.codecs.bitstreams.hevc_parameter_sets`.
    "mv-constraint=frametilemargin",
    "tmvp=0",
    "wpp=0",
    # Supplements would tell of a picture that is not this one any more.
    "hash=none",
    "info=0",
    # Pictures in flight at a time change what is encoded.
    "owf=0",
)


def kvazaar_available() -> bool:
    try:
        require_kvazaar()
    except ExtraMissingError:
        return False
    return True


def require_kvazaar() -> None:
    """Raises `ExtraMissingError` unless tiles can be encoded here."""
    _program()


@functools.cache
def _program() -> str:
    """FFmpeg with kvazaar.  Raises `ExtraMissingError`."""
    try:
        import imageio_ffmpeg
    except ImportError:
        raise ExtraMissingError("imageio-ffmpeg is not installed", hint=_HINT) from None
    try:
        path = str(imageio_ffmpeg.get_ffmpeg_exe())
        told = subprocess.run(
            [path, "-hide_banner", "-h", "encoder=libkvazaar"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        ).stdout
    except (OSError, RuntimeError) as error:
        raise ExtraMissingError(
            f"the FFmpeg of imageio-ffmpeg does not run: {error}", hint=_HINT
        ) from error
    if "Encoder libkvazaar" not in told:
        raise ExtraMissingError(
            f"{path} has no kvazaar", hint=f"{_HINT}, and leave IMAGEIO_FFMPEG_EXE unset"
        )
    return path


def encode_tile(
    settings: EncoderSettings,
    pictures: Iterable[PictureInput],
    *,
    x: int = 0,
    y: int = 0,
    threads: int = 1,
) -> TileStream:
    """One tile of one segment, whose upper left corner is at `x`, `y` of the picture.

    `settings` are of the tile; see `encode_tiled`.
    """
    (tile,) = encode_tiled(settings, [settings.width], [settings.height], pictures, threads=threads)
    return TileStream(tile.rect.moved(x, y), tile.parameter_sets, tile.pictures)


# One run for all tiles gives the same bytes as a run for each tile, which takes 15 % longer for 4x4
# tiles of 30 pictures.
def encode_tiled(
    settings: EncoderSettings,
    widths: Sequence[int],
    heights: Sequence[int],
    pictures: Iterable[PictureInput],
    *,
    threads: int = 1,
) -> list[TileStream]:
    """The tiles of one segment, row by row: one packet a picture, the first an IDR picture.

    `widths` of columns and `heights` of rows fill the picture; all but the last are multiples of
    `TREE_BLOCK`.  The quality of `settings` is the quantiser of the first picture.  The same
    pictures give the same bytes, with any number of threads.

    Raises `ExtraMissingError` without kvazaar, `UsageError` for layouts and sizes that it does not
    take, `VfsdError` where it fails.
    """
    _require_tiling(settings, widths, heights)
    command = _command(settings, widths, heights, threads)
    stream, count = _run_encoder(command, _raw_pictures(settings, pictures))
    try:
        with refuse_damaged_streams():
            sets, packets = _split_stream(stream)
            if len(packets) != count:
                raise DamagedError(f"{len(packets)} pictures came of {count}")
            sets = _cropped_parameter_sets(sets, settings)
        return extract_tiles(sets, packets, profile=STITCHABLE)
    except VfsdError as error:
        raise VfsdError(f"kvazaar wrote what was not expected: {error}") from error


def _require_tiling(
    settings: EncoderSettings, widths: Sequence[int], heights: Sequence[int]
) -> None:
    width, height = settings.width, settings.height
    if settings.codec != "hevc" or not 0 <= settings.quality <= _WORST_QUALITY:
        raise UsageError(f"kvazaar encodes hevc with a quality of 0 to {_WORST_QUALITY}")
    if width % 2 or height % 2 or not (2 <= min(width, height) <= max(width, height)):
        raise UsageError(f"{width}x{height} cannot be encoded: sides have to be even")
    if max(width, height) > _MAX_SIDE:
        raise UsageError(f"{width}x{height} cannot be encoded: sides up to {_MAX_SIDE} can")
    for name, sizes, whole, most in (
        ("columns", widths, width, MAX_TILE_COLUMNS),
        ("rows", heights, height, MAX_TILE_ROWS),
    ):
        if not sizes or min(sizes) < 2 or sum(sizes) != whole:
            raise UsageError(f"{name} of {list(sizes)} pixels do not fill {whole}")
        if len(sizes) > most:
            raise UsageError(f"{len(sizes)} {name} are too many: HEVC allows {most}")
        if any(size % TREE_BLOCK for size in sizes[:-1]):
            raise UsageError(
                f"{name} of {list(sizes)} pixels cannot be encoded: all but the last have to be "
                f"multiples of {TREE_BLOCK}"
            )


def _command(
    settings: EncoderSettings, widths: Sequence[int], heights: Sequence[int], threads: int
) -> list[str]:
    parameters = [*_PARAMETERS, f"qp={settings.quality}"]
    parameters.append(f"threads={threads if threads > 1 else 0}")  # 0: none but the caller's
    if len(widths) * len(heights) > 1:
        parameters.append("slices=tiles")
    for name, sizes in (("tiles-width-split", widths), ("tiles-height-split", heights)):
        if len(sizes) > 1:
            edges = ",".join(str(edge) for edge in np.cumsum(sizes)[:-1])
            parameters.append(f"{name}='{edges}'")
    width, height = _padded_side(settings.width), _padded_side(settings.height)
    rate = f"{settings.rate.numerator}/{settings.rate.denominator}"
    return [
        *(_program(), "-nostdin", "-hide_banner", "-v", "warning", "-threads", "1"),
        *("-f", "rawvideo", "-pixel_format", "yuv420p", "-video_size", f"{width}x{height}"),
        *("-framerate", rate, "-i", "pipe:0", "-vf", _color_filter(settings)),
        *("-fps_mode", "passthrough", "-c:v", "libkvazaar"),
        *("-kvazaar-params", ",".join(parameters), "-f", "hevc", "pipe:1"),
    ]


def _color_filter(settings: EncoderSettings) -> str:
    """A filter that changes no sample and tells the encoder what they mean."""
    told = {
        "range": settings.color_range,
        "colorspace": settings.color_space,
        "color_primaries": settings.color_primaries,
        "color_trc": settings.color_transfer,
    }
    fields = ":".join(f"{key}={name}" for key, name in told.items() if name)
    ratio = settings.sample_aspect_ratio
    aspect = "" if ratio is None else f",setsar={ratio.numerator}/{ratio.denominator}"
    return (f"setparams={fields}" if fields else "null") + aspect


def _padded_side(side: int) -> int:
    return -(-side // _SIZE_MULTIPLE) * _SIZE_MULTIPLE


# ------------------------------------------------------------------------------------ pixels in


def _raw_pictures(settings: EncoderSettings, pictures: Iterable[PictureInput]) -> Iterator[bytes]:
    """The samples of each picture, its last column and row repeated up to the size encoded."""
    width, height = settings.width, settings.height
    right, bottom = _padded_side(width) - width, _padded_side(height) - height
    for picture in pictures:
        planes = _planes(picture, width, height)
        sizes = [(height, width), (height // 2, width // 2), (height // 2, width // 2)]
        if [plane.shape for plane in planes] != sizes:
            raise UsageError(f"a picture is not {width}x{height} in yuv420p")
        if right or bottom:
            planes = [
                np.pad(plane, ((0, bottom // part), (0, right // part)), "edge")
                for plane, part in zip(planes, (1, 2, 2), strict=True)
            ]
        yield b"".join(plane.tobytes() for plane in planes)


def _planes(picture: PictureInput, width: int, height: int) -> list[npt.NDArray[np.uint8]]:
    if not isinstance(picture, np.ndarray):
        if picture.format.name not in ("yuv420p", "yuvj420p"):
            raise UsageError(f"a picture is in {picture.format.name}, not in yuv420p")
        return plane_bytes(picture)
    samples = np.ascontiguousarray(picture).ravel()
    luma, chroma = width * height, width * height // 4
    if picture.dtype != np.uint8 or samples.size != luma + 2 * chroma:
        raise UsageError(f"a picture is not {width}x{height} in yuv420p")
    return [
        samples[:luma].reshape(height, width),
        samples[luma : luma + chroma].reshape(height // 2, width // 2),
        samples[luma + chroma :].reshape(height // 2, width // 2),
    ]


# ------------------------------------------------------------------------------------ the program


def _run_encoder(command: Sequence[str], chunks: Iterable[bytes]) -> tuple[bytes, int]:
    """What the program writes when it is given `chunks`, and how many they were.

    It is killed when anything goes wrong here.
    """
    count = 0
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdin
        assert process.stdout
        assert process.stderr
        output, errors = _PipeReader(process.stdout), _PipeReader(process.stderr)
        try:
            with suppress(BrokenPipeError):  # it has ended; why is told below
                for chunk in chunks:
                    process.stdin.write(chunk)
                    count += 1
                process.stdin.close()
            process.wait()
        except BaseException:
            process.kill()
            raise
        finally:
            with suppress(BrokenPipeError):  # what could not be written
                process.stdin.close()
            stream, said = output.finished(), errors.finished()
    if process.returncode or not stream:
        lines = said.decode(errors="replace").strip().splitlines()
        reason = next((line for line in lines if "libkvazaar @" in line), "; ".join(lines[-3:]))
        raise VfsdError(f"kvazaar failed ({process.returncode}): {reason or 'it wrote nothing'}")
    if _IGNORED in said:  # a stream without its constraints would drift
        raise VfsdError("this kvazaar does not know a parameter that stitching needs")
    return stream, count


class _PipeReader:
    """Reads a pipe to its end, in a thread: a program that waits for a reader does not end."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self._pipe = pipe
        self._data = b""
        self._thread = threading.Thread(target=self._read, name="kvazaar", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        self._data = self._pipe.read()

    def finished(self) -> bytes:
        self._thread.join()
        return self._data


# ------------------------------------------------------------------------------------ packets out


def _split_stream(stream: bytes) -> tuple[tuple[bytes, ...], list[bytes]]:
    """The parameter sets in front, and the slices of each picture."""
    sets: list[bytes] = []
    pictures: list[list[bytes]] = []
    for start, end in nal.nal_units(stream, 0):
        unit = stream[start:end]
        if nal.is_parameter_set("hevc", nal.unit_type("hevc", unit)):
            if pictures:
                raise DamagedError("there are parameter sets between pictures")
            sets.append(unit)
        elif holds_slice(unit):
            if begins_picture(unit):
                pictures.append([])
            elif not pictures:
                raise DamagedError("a picture lacks its beginning")
            pictures[-1] += (nal.START_CODE, unit)
    return tuple(sets), [b"".join(parts) for parts in pictures]


def _cropped_parameter_sets(
    units: tuple[bytes, ...], settings: EncoderSettings
) -> tuple[bytes, ...]:
    """The parameter sets, with what was made up not shown."""
    sets = ParameterSets.parse(units)
    sequence = sets.sequence
    if (sequence.width, sequence.height) != (
        _padded_side(settings.width),
        _padded_side(settings.height),
    ):
        raise DamagedError("the size is another")
    window = ConformanceWindow(sequence.width - settings.width, sequence.height - settings.height)
    resized = sequence.resized(sequence.width, sequence.height, window, sequence.level_idc)
    return units[0], resized.write(), units[2]
