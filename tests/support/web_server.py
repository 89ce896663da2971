"""`vfsd serve` as a process of its own, on a free port of the loopback interface."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

_ADDRESS = re.compile(r"(http://(?:127\.0\.0\.1|\[::1\]):(\d+))/#token=([\w-]+)")
_MAIN = "import sys; from vfsd.cli.app import main; sys.argv[0] = 'vfsd'; main()"


class WebServer:
    """Serves a store until `close`; `state` keeps its token."""

    def __init__(self, store: Path, state: Path, *options: str) -> None:
        self.store = store
        self._options = options
        self._environment = os.environ | {"XDG_STATE_HOME": str(state), "PYTHONUNBUFFERED": "1"}
        self.port = 0
        self.token = ""
        self.log: list[str] = []
        self._process = self._start("0")

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def login(self) -> str:
        """The address that `vfsd serve` prints."""
        return f"{self.origin}/#token={self.token}"

    def kill(self) -> None:
        """End it as a power cut would."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(30)

    def restart(self) -> None:
        """Start it again on the same port."""
        self._process = self._start(str(self.port))

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                self.kill()
        self._reader.join(10)

    def get(self, path: str) -> bytes:
        """The body of a response to the owner of the token.  Raises `HTTPError`."""
        return self.request("GET", path)[1]

    def json(self, path: str) -> Any:
        return json.loads(self.get(path))

    def request(
        self, method: str, path: str, body: bytes | None = None, **headers: str
    ) -> tuple[int, bytes]:
        """The status and the body of a response; the underscores of headers become hyphens."""
        asked = urllib.request.Request(self.origin + path, data=body, method=method)
        asked.add_header("Authorization", f"Bearer {self.token}")
        for name, value in headers.items():
            asked.add_header(name.replace("_", "-"), value)
        with urllib.request.urlopen(asked, timeout=60) as answer:
            return answer.status, answer.read()

    def _start(self, port: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", _MAIN, "serve", str(self.store), "--port", port]
        process = subprocess.Popen(
            [*command, *self._options],
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, args=(process,), daemon=True)
        self._reader.start()
        end = time.monotonic() + 180
        while time.monotonic() < end and process.poll() is None:
            found = _ADDRESS.search("".join(self.log))
            if found and self._is_up(found[1]):
                self.port, self.token = int(found[2]), found[3]
                return process
            time.sleep(0.02)
        process.kill()
        process.wait()
        raise RuntimeError("vfsd serve did not start:\n" + "".join(self.log))

    @staticmethod
    def _is_up(origin: str) -> bool:
        try:
            with urllib.request.urlopen(f"{origin}/healthz", timeout=10) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                self.log.append(line)
