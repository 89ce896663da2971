"""``vfsd serve``: a store over HTTP."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from vfsd.cli.command import define
from vfsd.cli.output import print_json, print_line
from vfsd.cli.session import Session, store_path
from vfsd.errors import BusyError, ExtraMissingError, NoStoreError, NotFoundError, UsageError
from vfsd.mount import mount_log

_PASSWORD = "VFSD_PASSWORD"


@define(
    "serve",
    examples=["vfsd serve videos", "vfsd serve videos --port 9000 --write"],
    fields={
        "url": "address of the server",
        "login": "address with the token of the server, null for several users or a password",
        "token_file": "file of the tokens, null for a password",
        "write": "whether the server changes the store",
        "pid": "process that serves",
    },
    exits=[NoStoreError, NotFoundError, BusyError, ExtraMissingError],
)
@click.argument("place", metavar="[STORE]", required=False)
@click.option(
    "--host",
    metavar="ADDRESS",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on.  All but loopback need credentials and TLS.",
)
@click.option(
    "--port",
    metavar="N",
    type=click.IntRange(0, 65535),
    default=8765,
    show_default=True,
    help="Port to listen on; 0 for any free one.",
)
@click.option("--write", is_flag=True, help="Allow changes, uploads and work.")
@click.option(
    "--token-file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="File of the tokens. [default: a file in ~/.local/state/vfsd/web, made with one token]",
)
@click.option(
    "--password",
    is_flag=True,
    help=f"Use a password instead of tokens: from ${_PASSWORD}, or else the terminal.",
)
@click.option(
    "--cert", metavar="FILE", type=click.Path(path_type=Path), help="Certificate chain for HTTPS."
)
@click.option("--key", metavar="FILE", type=click.Path(path_type=Path), help="Its private key.")
@click.option(
    "--behind-proxy",
    metavar="ADDRESS",
    multiple=True,
    help="Answer only this reverse proxy, which provides HTTPS.",
)
@click.option(
    "--cors",
    metavar="ORIGIN",
    multiple=True,
    help="Let scripts of this origin use the API with a token.",
)
@click.option(
    "--allow-host",
    metavar="NAME",
    multiple=True,
    help="Another name of this server in URLs.",
)
@click.option(
    "--max-connections",
    metavar="N",
    type=click.IntRange(1, 65535),
    default=256,
    show_default=True,
    help="Connections at a time.",
)
@click.option(
    "--metrics-token-file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Serve /metrics to clients with the token in FILE.",
)
@click.option("--age", is_flag=True, help="Carry out policies once an hour, in idle time.")
@click.option("--tune", is_flag=True, help="Make tiles that pay, in idle time.")
def serve(
    session: Session,
    place: str | None,
    host: str,
    port: int,
    write: bool,
    token_file: Path | None,
    password: bool,
    cert: Path | None,
    key: Path | None,
    behind_proxy: tuple[str, ...],
    cors: tuple[str, ...],
    allow_host: tuple[str, ...],
    max_connections: int,
    metrics_token_file: Path | None,
    age: bool,
    tune: bool,
) -> None:
    """Serve a store over HTTP: a page, an API and videos.

    STORE may be omitted if --store or VFSD_STORE names it. The command prints the URL to open, with
    its token, and runs until Ctrl-C or SIGTERM. /v/NAME is a video, /v/NAME@/VIEW a view of it, as
    in a mount; /api/1/openapi.json describes the API. The store may be mounted at the same time.

    Without --write, clients can change nothing. A token file has one token, or a line `NAME ROLE
    TOKEN [DIR...]` for each user. ROLE is view, label or admin. A user with DIRs sees only these.
    Needs the extra `web`.
    """
    try:
        from vfsd.web.serving import Credentials, ServerAddress, serve_store
        from vfsd.web.settings import ServeOptions
        from vfsd.web.users import read_token
    except ImportError as error:
        raise ExtraMissingError(
            f"the server needs {error.name}", hint="pip install 'vfsd[web]'"
        ) from None
    if password and token_file is not None:
        raise UsageError("give either --token-file or --password")
    options = ServeOptions(
        host=host.strip("[]"),
        port=port,
        write=write,
        certificate=cert,
        key=key,
        proxies=behind_proxy,
        origins=cors,
        hosts=allow_host,
        max_connections=max_connections,
        metrics_token=None if metrics_token_file is None else read_token(metrics_token_file),
        age=age,
        tune=tune,
    )
    credentials = Credentials(token_file, _password() if password else None)
    root = session.root() if place is None else store_path(place)

    def report(served: ServerAddress) -> None:
        if session.json:
            print_json(
                {
                    "url": served.url,
                    "login": served.login_url,
                    "token_file": None if served.token_file is None else str(served.token_file),
                    "write": write,
                    "pid": os.getpid(),
                }
            )
        else:
            # The journal keeps what services print, and others may read it.
            hidden = served.login_url is None or "JOURNAL_STREAM" in os.environ
            print_line(served.url if hidden else str(served.login_url))
        sys.stdout.flush()

    mount_log.set_up("warning" if session.quiet else "info")
    serve_store(root, options, credentials, report)


def _password() -> str:
    found = os.environ.pop(_PASSWORD, None)
    return found or str(click.prompt("Password", hide_input=True, err=True))
