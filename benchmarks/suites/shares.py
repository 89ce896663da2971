"""The mount exported by Samba, and by an NFS server in user space.  Loopback only."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.suites.comparing import checksum
from benchmarks.suites.outcome import NotHereError, Outcome, Place, run, videos

_HOST = "127.0.0.1"
_START_SECONDS = 30.0


def samba(place: Place) -> Outcome:
    """put, get, mput, mget, rename, mkdir, del and a restart of the mount, by smbclient."""
    _need("smbd", "samba")
    _need("smbclient", "smbclient")
    sources = _sources(place)
    port = _free_port()
    share = place.at / "share"
    share.mkdir()
    with _smbd(place, share, port):

        def client(commands: str, folder: Path) -> str:
            words = ("smbclient", f"//{_HOST}/share", "-p", port, "-N", "-c", commands)
            return run(*words, cwd=folder, timeout=600).stdout

        place.given.say(f"mput of {len(sources)} files")
        client("prompt OFF; recurse ON; mput *", sources[0].parent)
        failures = _compared(sources, share)
        back = place.work / "back"
        back.mkdir()
        client("prompt OFF; recurse ON; mget *", back)
        failures += _compared(sources, back)
        one = sources[-1].name
        client(
            f'mkdir d; rename "{one}" "d\\{one}"; get "d\\{one}" again; put "{one}" over; '
            f'del "d\\{one}"; rmdir d; allinfo over',
            sources[0].parent,
        )
        if checksum(sources[0].parent / "again") != checksum(sources[-1]):
            failures.append("a renamed file came back otherwise")
        if checksum(share / "over") != checksum(sources[-1]):
            failures.append("put")
        states = [os.getxattr(share / one.name, "user.vfsd.state") for one in sources[:-1]]
        if b"video" not in states:  # some are odd
            failures.append("none is a video")
        place.given.say("remounting below the running server")
        place.remount()
        client(f'get "{sources[0].name}" after', place.work)
        if checksum(place.work / "after") != checksum(sources[0]):
            failures.append("after a remount it came back otherwise")
    version = run("smbd", "--version").stdout.split()[-1]
    return Outcome("files", 2 * len(sources) + 3, tuple(failures), (), version)


def nfs(place: Place) -> Outcome:
    """NFSv4 by nfs-ganesha: read and written by libnfs, also after the server and the mount ended.

    Only small files are written: nfs-cp of libnfs 4.0 (Debian 12) cannot write more than a few
    kilobytes by NFSv4 on any file system.
    """
    _need("ganesha.nfsd", "nfs-ganesha nfs-ganesha-vfs")
    _need("nfs-cp", "libnfs-utils")
    sources = _sources(place)
    port = _free_port()
    share = place.at / "share"
    share.mkdir()
    url, asked = f"nfs://{_HOST}/share", f"?version=4&nfsport={port}"
    failures: list[str] = []

    def fetched(where: str) -> list[str]:
        place.given.say(f"{len(sources)} files are read, {where}")
        back = place.work / where
        back.mkdir()
        for path in sources:
            run("nfs-cp", f"{url}/{path.name}{asked}", back / path.name, timeout=300)
        return _compared(sources, back)

    for path in sources:
        shutil.copy2(path, share)
    small = [place.work / f"small{number}" for number in range(20)]
    with _ganesha(place, share, port):
        failures += fetched("at first")
        for number, path in enumerate(small):
            path.write_text("x" * number * 50)
            run("nfs-cp", path, f"{url}/{path.name}{asked}", timeout=300)
        failures += _compared(small, share)
        listed = run("nfs-ls", f"{url}/{asked}").stdout
        names = [path.name for path in (*sources, *small)]
        failures += [f"{name} is not listed" for name in names if name not in listed]
    with _ganesha(place, share, port):
        failures += fetched("by a new server")
    place.remount()
    with _ganesha(place, share, port):
        failures += fetched("from a new mount")
    text = run("ganesha.nfsd", "-v", check=False).stdout
    version = re.search(r"\d+\.\d+\S*", text)
    return Outcome(
        "files",
        3 * len(sources) + len(small),
        tuple(failures),
        version=version.group(0) if version else "",
    )


def _sources(place: Place) -> list[Path]:
    folder = place.work / "sources"
    folder.mkdir()
    for number, path in enumerate(videos()):
        shutil.copy2(path, folder / f"{number:02}-{path.name}")
    (folder / "zz-notes.txt").write_text("plain\n" * 1000)
    return sorted(folder.iterdir())


def _compared(sources: list[Path], folder: Path) -> list[str]:
    return [
        f"{path.name} differs in {folder}"
        for path in sources
        if not (folder / path.name).exists() or checksum(folder / path.name) != checksum(path)
    ]


@contextlib.contextmanager
def _smbd(place: Place, share: Path, port: int) -> Iterator[None]:
    state = place.work / "smbd"
    state.mkdir()
    settings = state / "smb.conf"
    own = "\n".join(
        f"{key} directory = {state}"
        for key in ("private", "lock", "state", "cache", "pid", "ncalrpc")
    )
    settings.write_text(
        "[global]\n"
        f"interfaces = {_HOST}/8\nbind interfaces only = yes\nsmb ports = {port}\n"
        f"map to guest = bad user\nguest account = root\nload printers = no\nprinting = bsd\n"
        f"disable spoolss = yes\nserver role = standalone server\n{own}\nlog file = {state}/log\n"
        f"[share]\npath = {share}\nguest ok = yes\nguest only = yes\nread only = no\n"
        f"force user = root\n"
    )
    words = ["smbd", "--foreground", "--no-process-group", f"--configfile={settings}"]
    with _server(words, state / "out", port):
        yield


@contextlib.contextmanager
def _ganesha(place: Place, share: Path, port: int) -> Iterator[None]:
    state = place.work / "ganesha"
    state.mkdir(exist_ok=True)
    settings = state / "ganesha.conf"
    settings.write_text(
        f"NFS_CORE_PARAM {{ Protocols = 4; NFS_Port = {port}; Bind_addr = {_HOST}; "
        "Enable_NLM = false; Enable_RQUOTA = false; mount_path_pseudo = false; }\n"
        f"NFSV4 {{ Graceless = true; RecoveryRoot = {state}; }}\n"
        f"EXPORT {{ Export_Id = 77; Path = {share}; Pseudo = /share; Access_Type = RW; "
        "Squash = None; Protocols = 4; Transports = TCP; SecType = sys; Filesystem_Id = 77.77; "
        f"FSAL {{ Name = VFS; }} CLIENT {{ Clients = {_HOST}; Access_Type = RW; }} }}\n"
    )
    words = ["ganesha.nfsd", "-F", "-f", str(settings), "-L", str(state / "log")]
    with _server([*words, "-p", str(state / "pid")], state / "out", port):
        yield


@contextlib.contextmanager
def _server(words: list[str], log: Path, port: int) -> Iterator[None]:
    """Run a server that answers at a port; end it and its children afterwards."""
    with open(log, "ab") as output:
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
    try:
        end = time.monotonic() + _START_SECONDS
        while not _answers(port):
            if process.poll() is not None or time.monotonic() > end:
                raise AssertionError(f"{words[0]} did not come up: {_last_words(log)}")
            time.sleep(0.05)
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _last_words(log: Path) -> str:
    texts = [
        path.read_text(errors="replace") for path in (log, log.with_name("log")) if path.exists()
    ]
    return " | ".join(line for text in texts for line in text.strip().splitlines()[-5:])


def _answers(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex((_HOST, port)) == 0


def _free_port() -> int:
    with socket.socket() as server:
        server.bind((_HOST, 0))
        return int(server.getsockname()[1])


def _need(program: str, package: str) -> None:
    if shutil.which(program) is None and not Path("/usr/sbin", program).exists():
        raise NotHereError(f"apt install {package}")
