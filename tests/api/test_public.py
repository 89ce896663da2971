"""The public API matches its documentation.

The error tree: exit codes and errno values.
"""

from __future__ import annotations

import errno
import re
import subprocess
import sys
from pathlib import Path

import vfsd
import vfsd.errors as errors
from vfsd.api.video import Video


def test_every_public_name_is_importable() -> None:
    for name in vfsd.__all__:
        assert getattr(vfsd, name) is not None


def test_names_used_in_the_readme_are_public() -> None:
    readme = (Path(__file__).resolve().parents[2] / "README.md").read_text(encoding="utf-8")
    named = set(re.findall(r"\bvfsd\.([A-Z]\w+)", readme))
    assert named
    assert named <= set(vfsd.__all__)
    assert not re.findall(r"(?<!vfsd\.)\bWorkloadQuery\(", readme)


def test_importing_the_package_loads_nothing_heavy() -> None:
    program = "import sys, vfsd; print(*sorted(sys.modules))"
    loaded = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not {"numpy", "sqlalchemy", "av", "cv2", "rich", "click"} & set(loaded)


def test_names_of_a_video_are_few() -> None:
    names = {name for name in dir(Video) if not name.startswith("_")}
    assert len(names) <= 40
    assert {"fps", "num_frames", "shape", "codec", "metadata", "tags"} <= names
    assert Video.__mro__ == (Video, object)


# --------------------------------------------------------------------------------------------------
# The error tree: exit codes and errno values


def _all(kind: type[errors.VfsdError]) -> list[type[errors.VfsdError]]:
    return [kind, *(deeper for sub in kind.__subclasses__() for deeper in _all(sub))]


def test_error_tree_lists_every_error_with_its_numbers() -> None:
    drawn = {
        line.replace("│", " ").replace("├──", "").replace("└──", "").split()[0]: line.split()
        for line in (errors.__doc__ or "").splitlines()
        if "Error " in line
    }
    for kind in _all(errors.VfsdError):
        words = drawn[kind.__name__]
        assert str(kind.exit_code) in words, kind
        assert errno.errorcode[kind.errno] in words, kind


def test_exit_codes_stay_in_their_bands() -> None:
    bands = {
        errors.StoreError: range(10, 20),
        errors.EnvironmentMissingError: range(20, 30),
    }
    for kind in _all(errors.VfsdError)[1:]:
        band = next((band for base, band in bands.items() if issubclass(kind, base)), range(2, 10))
        assert kind.exit_code in band, kind


def test_an_error_keeps_its_hint() -> None:
    error = errors.NotFoundError("there is no 'x'", hint="look elsewhere")
    assert (str(error), error.hint) == ("there is no 'x'", "look elsewhere")
    assert isinstance(error, LookupError)
