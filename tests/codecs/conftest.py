"""What needs a program that is not always there."""

from __future__ import annotations

import shutil

import pytest

from vfsd.codecs.kvazaar import kvazaar_available


@pytest.fixture(scope="session")
def kvazaar() -> None:
    if not kvazaar_available():
        pytest.skip("kvazaar is not there: pip install 'vfsd[stitch]'")


@pytest.fixture(scope="session")
def libde265() -> str:
    """The program that decodes HEVC by libde265."""
    found = shutil.which("dec265") or shutil.which("libde265-dec265")
    if found is None:
        pytest.skip("dec265 is not there: apt install libde265-examples")
    return found
