"""``vfsd calibrate``: measure what decoding costs on this host."""

from __future__ import annotations

from typing import Any

import click

from vfsd.cli.command import define
from vfsd.cli.output import print_json, print_line
from vfsd.cli.progress import progress
from vfsd.cli.session import Session
from vfsd.errors import NoStoreError, ReadOnlyError
from vfsd.model import MeasuredCost
