"""``vfsd config``: the settings of a store."""

from __future__ import annotations

import dataclasses

import click

from vfsd.cli.command import define
from vfsd.cli.output import print_json, print_line
from vfsd.cli.session import Session, require_writable
from vfsd.disk.config import Settings, describe
from vfsd.disk.store_layout import StoreDirectory
from vfsd.validation import not_one_of


@define(
    "config",
    examples=[
        "vfsd -s videos config",
        "vfsd -s videos config verify false",
        "vfsd -s videos config view_cache_bytes 4GiB",
        "vfsd -s videos config workers --json",
    ],
    fields={
        "key": "name of the setting",
        "value": "what it is set to",
        "default": "what it is when nobody has set it",
        "help": "what it does",
    },
    listing=True,
)
@click.argument("key", required=False)
@click.argument("value", required=False)
@click.pass_obj
def command(session: Session, key: str | None, value: str | None) -> None:
    """Show or change the settings of a store.

    Without KEY all settings are shown, with KEY its value alone.  Bytes may be written with a unit,
    as in 500M or 4GiB.  A mount takes changes up when it is next made.
    """
    directory = StoreDirectory.open(session.root())
    settings = Settings.load(directory.settings)
    known = [field.name for field in dataclasses.fields(Settings)]
    if key is not None and key not in known:
        raise not_one_of("a setting", key, known)
    if key is not None and value is not None:
        settings = settings.with_text(key, value)
        require_writable(directory.root)
        settings.save(directory.settings)
    for name in known if key is None else [key]:
        if session.json:
            print_json(
                {
                    "key": name,
                    "value": getattr(settings, name),
                    "default": getattr(Settings(), name),
                    "help": describe(name),
                }
            )
        elif key is not None:
            print_line(_text(getattr(settings, name)))
        else:
            print_line(f"{name} = {_text(getattr(settings, name))}  # {describe(name)}")


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
