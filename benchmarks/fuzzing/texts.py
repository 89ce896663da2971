"""Targets that parse text: view names, label files, workloads, options, settings."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from benchmarks.fuzzing.engine import Target
from vfsd.cli.retile_plan import read_layout_file
from vfsd.core import view_request
from vfsd.core.label_query import parse_labels
from vfsd.core.timebase import QuietHours, seconds
from vfsd.derive.workload import read_workload
from vfsd.disk.store_config import StoreSettings
from vfsd.disk.store_layout import StoreDirectory
from vfsd.errors import VfsdError
from vfsd.labels import FORMATS, LabelReadOptions, read_labels
from vfsd.labels.formats.label_file import LabeledVideo, read_names
from vfsd.mount.fuse.mount_options import parse_options
from vfsd.storage.quarantine import Quarantine
from vfsd.storage.sandbox_protocol import ErrorReport
from vfsd.tiling import Rect, TileLayout

_FRAMES = 100
_NUMBERS = (b"0", b"-1", b"1e999", b"1e-999", b"NaN", b"9" * 5000, b"0x10", b"1_0", b"\xd9\xa3")
_TEXT = (b"\0", b"\xff", b"\xed\xa0\x80", b"\n", b"\r", b'"', b"'", b"\\u0000", b"\xef\xbb\xbf")


def _folder() -> Path:
    return Path(tempfile.mkdtemp())


# ---------------------------------------------------------------------------------------- names


def check_grammar(data: bytes) -> None:
    """Parsing a view name is deterministic, and the result fits its video."""
    text = os.fsdecode(data)
    readers: tuple[Callable[[str], object], ...] = (
        view_request.parse_still_name,
        parse_labels,
        Rect.parse,
        seconds,
        QuietHours.parse,
    )
    for read in readers:
        with suppress(VfsdError):
            read(text)
    with suppress(VfsdError):
        request = view_request.parse_view_path(text)
        assert request == view_request.parse_view_path(text)
        assert hash(request.view) == hash(view_request.parse_view_path(text).view)
        view = request.resolve(1280, 720)
        assert view.size is None or min(view.size) > 0


def _names() -> list[bytes]:
    return [
        b"t=10-20.mp4",
        b"frames=0-300-2,size=64x48,fps=30000:1001,codec=av1,sound=no.mkv",
        b"roi=400x300+600+300,size=200x0,psnr=inf,pix=yuv420p10.h264",
        b"1280x720r25fyuv420ps5e20x640y720.rgb",
        b"448x448r.raw",
        b"000123.png",
        b"1:02:03.5",
        b"(car|truck) & red",
        b"640x384+0+0",
        b"22-6",
    ]


# ---------------------------------------------------------------------------------------- labels


class _Labels:
    """A folder for label files, created once per process."""

    def __init__(self) -> None:
        self._folder: Path | None = None

    def prepare(self) -> None:
        self._folder = _folder()

    def check(self, data: bytes) -> None:
        """Boxes of the video, or an error that says where the file is wrong."""
        assert self._folder is not None
        clip = LabeledVideo("v.mp4", 640, 360, _FRAMES, lambda at: min(int(at * 25), _FRAMES - 1))
        kind = FORMATS[data[0] % len(FORMATS)] if data else FORMATS[0]
        place = self._folder / "labels"
        if kind in ("yolo", "voc"):
            place.mkdir(exist_ok=True)
            path = place / ("000001.xml" if kind == "voc" else "000001.txt")
        else:
            path = self._folder / "labels.txt"
            place = path
        path.write_bytes(data[1:])
        try:
            found = read_labels(place, kind, clip, LabelReadOptions(names={0: "a", 1: "b"}))
        except VfsdError:
            return
        finally:
            path.unlink()
            if place != path:
                shutil.rmtree(place)
        for row in found.columns:
            assert 0 <= row.frame < _FRAMES
            assert row.box[0] < row.box[2]
            assert row.box[1] < row.box[3]
        for seen in found.examined or []:
            assert 0 <= seen.start < seen.stop <= _FRAMES


def _labels() -> list[bytes]:
    number = {name: bytes([at]) for at, name in enumerate(FORMATS)}
    return [
        number["coco"]
        + b'{"images": [{"id": 1, "file_name": "1.png", "frame_index": 4}], "categories": '
        b'[{"id": 3, "name": "car"}], "annotations": [{"id": 1, "image_id": 1, "category_id": 3, '
        b'"bbox": [1.5, 2, 30, 40], "score": 0.5, "track_id": 7, "attributes": {"red": true}}]}',
        number["mot"] + b"1,7,10,20,30,40,0.9,1,1\n2,7,11,20,30,40,0.9,1,1\n",
        number["yolo"] + b"0 0.5 0.5 0.1 0.2 0.9\n1 0.2 0.3 0.1 0.1\n",
        number["csv"] + b"frame,label,x1,y1,x2,y2,conf,id,attr:c\n3,car,1,2,30,40,0.5,7,blue\n",
        number["voc"]
        + b"<annotation><size><width>640</width><height>360</height></size><object><name>car</name>"
        b"<bndbox><xmin>1</xmin><ymin>2</ymin><xmax>30</xmax><ymax>40</ymax></bndbox></object>"
        b"</annotation>",
        number["voc"] + b'<!DOCTYPE a [<!ENTITY b "cc"><!ENTITY d "&b;&b;">]><annotation>&d;'
        b"</annotation>",
    ]


# --------------------------------------------------------------------------- other files, options


class _Files:
    def __init__(self) -> None:
        self._folder: Path | None = None

    def prepare(self) -> None:
        self._folder = _folder()

    def check(self, data: bytes) -> None:
        """A hand-written file is parsed, or refused with a message."""
        assert self._folder is not None
        path = self._folder / "input.yaml"
        path.write_bytes(data)
        known = {"show": frozenset(("segments",)), "segment": frozenset(("frames", "layout"))}
        readers: tuple[Callable[[], object], ...] = (
            lambda: read_workload(path),
            lambda: read_layout_file(path, _FRAMES, _layout, known),
            lambda: read_names(path),
            lambda: StoreSettings.load(path),
            lambda: ErrorReport.parse(data),
        )
        for read in readers:
            with suppress(VfsdError):
                read()
        self._check_store(data)

    def _check_store(self, data: bytes) -> None:
        assert self._folder is not None
        for name in ("vfsd-store.json", "suspects.json"):
            (self._folder / name).write_bytes(data)
        with suppress(VfsdError):
            directory = StoreDirectory.open(self._folder)
            str(directory.id)
            str(directory.catalog_url)
        Quarantine(StoreDirectory.unmarked(self._folder)).barred()


def _layout(text: str) -> TileLayout:
    return TileLayout.parse(text)


def _files() -> list[bytes]:
    return [
        b'{"queries": [{"labels": "car|truck & red", "span": [0, 60], "times": 20}, '
        b'{"region": "640x384+0+0", "frames": [300, 600]}]}',
        b'{"segments": [{"frames": [0, 30], "layout": "320+320x180+180"}]}',
        b'[{"frames": [0, 30], "layout": "320+320x180+180", "tiles": [0, 1]}]',
        b"names: [car, truck]\n",
        b"names:\n  0: car\n  1: truck\n",
        b'verify = true\nworkers = 2\ntune_quiet_hours = "22-6"\n',
        b'{"format": 1, "id": "a", "catalog": null}',
        b'{"ab": {"crashes": 1, "at": 1.5, "how": "Segmentation fault", "barred": true}}',
        b'{"text": "a", "hint": null, "number": 5}',
    ]


def check_options(data: bytes) -> None:
    text = os.fsdecode(data)
    with suppress(VfsdError):
        options = parse_options([text])
        assert parse_options([",".join(options.passed_on)]).passed_on == options.passed_on


def _options() -> list[bytes]:
    return [
        b"ro,allow_other,default_permissions",
        b"uid=1000,gid=100,umask=022,max_read=131072",
        b"attr_timeout=1.5,entry_timeout=0,nofail,x-systemd.automount,comment=a",
        b"defaults,_netdev,rw,nonempty,passthrough",
    ]


_JSON = (b"{", b"}", b"[", b"]", b",", b":", b"null", b"true", b"[" * 5000, b'{"a":' * 2000)
_ALL = (*_NUMBERS, *_TEXT)
_LABEL_FILES, _OTHER_FILES = _Labels(), _Files()

TARGETS = (
    Target(
        "grammar",
        "names of views, labels, regions, times",
        check_grammar,
        _names,
        words=(
            *_ALL,
            b"t=",
            b"frames=",
            b"roi=",
            b"size=",
            b"fps=",
            b"psnr=",
            b"x",
            b"-",
            b",",
            b".mp4",
            b".rgb",
            b"|",
            b"&",
            b"(",
            b")",
            b":",
            b"999999999",
            b"/",
            b"..",
        ),
    ),
    Target(
        "labels",
        "label files of all formats",
        _LABEL_FILES.check,
        _labels,
        words=(*_ALL, *_JSON, b"<a>", b"</a>", b"<!DOCTYPE", b"&amp;", b"<a>" * 1000, b",", b" "),
        prepare=_LABEL_FILES.prepare,
    ),
    Target(
        "files",
        "layout files, workloads, names of classes, settings, a store's own",
        _OTHER_FILES.check,
        _files,
        words=(*_ALL, *_JSON, b'"span"', b'"frames"', b"1x1", b" = ", b"{'a': 1}"),
        prepare=_OTHER_FILES.prepare,
    ),
    Target(
        "options",
        "words behind -o",
        check_options,
        _options,
        words=(*_ALL, b",", b"=", b"uid=", b"max_read=", b"attr_timeout=", b"inf", b"nan", b"x-"),
    ),
)
