"""The endpoint of health: checks of the machine and the store, damage, and age of checksums."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict

from vfsd.core.timebase import iso_time
from vfsd.maintenance import fsck
from vfsd.web.endpoint import Call, Endpoint, Parameter
from vfsd.web.query_values import flag_in

_DOCTOR_SECONDS = 120
_MAIN = "import sys; from vfsd.cli.app import main; sys.argv[0] = 'vfsd'; main()"


def health(call: Call) -> object:
    store = call.web.store
    with store.catalog.reading() as seen:
        places = seen.integrity.originals()
        inspected = seen.integrity.inspections()
    damaged, unverified = [], 0
    for video in store.catalog.find():
        original = video.original
        unverified += not original.verified
        if original.damaged_frames:
            row = {"frames": original.frames, "damaged": original.damaged_frames}
            damaged.append({"name": video.name, **row})
    times = [
        inspected[one].looked_ns or 0
        for one in places
        if one in inspected and inspected[one].looked_ns is not None
    ]
    mounted = store.parts.directory.mounted_by() or {}
    return {
        "damaged": damaged,
        "unverified": unverified,
        "bad_files": sum(1 for one in inspected.values() if one.damage),
        "scrub": {
            "files": len(places),
            "never": len(places) - len(times),
            "oldest": iso_time(min(times)) if times else None,
        },
        "mounts": [{"pid": mounted.get("pid"), "where": mounted["place"]}]
        if mounted.get("place")
        else [],
        "findings": [asdict(one) for one in fsck.run(store.parts)]
        if flag_in(call.query, "fsck")
        else None,
    }


def doctor(call: Call) -> object:
    """As `vfsd doctor --json`, in a separate process: the checks load every codec, and start
    children."""
    command = [sys.executable, "-c", _MAIN, "-s", os.fspath(call.web.store.path), "doctor"]
    done = subprocess.run(
        [*command, "--json"],
        capture_output=True,
        text=True,
        timeout=_DOCTOR_SECONDS,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    return {"items": [json.loads(line) for line in done.stdout.splitlines()], "next": None}


ENDPOINTS = (
    Endpoint(
        "GET",
        "/api/1/health",
        health,
        "Damage, and the age of the checks of stored bytes.",
        {
            "damaged": "list of objects: name, frames, damaged (number of frames with damage)",
            "unverified": "number of videos that were not decoded in full yet",
            "bad_files": "number of stored files with bytes that differ from their checksums",
            "scrub": "object: files, never (number of files never compared with their checksums) "
            "and oldest (time of the oldest comparison, ISO 8601, UTC, or null)",
            "mounts": "list of objects: pid, where",
            "findings": "null, or with fsck=1 what `vfsd fsck --json` finds",
        },
        (Parameter("fsck", "1: check the store; takes seconds for a large one", "boolean"),),
    ),
    Endpoint(
        "GET",
        "/api/1/health/doctor",
        doctor,
        "The checks of `vfsd doctor`.",
        {
            "items[].check": "name of the check",
            "items[].status": "ok, warn or fail",
            "items[].message": "the result",
            "items[].advice": "how to fix it, else null",
            "next": "null",
        },
    ),
)
