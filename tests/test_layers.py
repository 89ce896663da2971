"""Import rules are about all modules: one that is in no layer could import whatever it likes."""

from __future__ import annotations

from configparser import ConfigParser
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_every_module_has_its_layer() -> None:
    setup = ConfigParser()
    setup.read(ROOT / "setup.cfg")
    layers = setup["importlinter:contract:layers"]["layers"].replace("|", " ").split()
    modules = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in (ROOT / "vfsd").rglob("*.py")
        if path.name not in ("__init__.py", "__main__.py")
    ]
    assert [one for one in modules if not any(f"{one}.".startswith(f"{e}.") for e in layers)] == []
