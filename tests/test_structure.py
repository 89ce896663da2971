"""The figures that `scripts.structure` prints, and the bounds that this tree keeps."""

from __future__ import annotations

from pathlib import Path

from scripts.structure import structure

SETUP = """
[importlinter:contract:layers]
layers =
    vfsd.api
    vfsd.core
"""


def _write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_figures_of_a_small_tree(tmp_path: Path) -> None:
    _write(
        tmp_path,
        {
            "setup.cfg": SETUP,
            "vfsd/__init__.py": "",
            "vfsd/loose.py": "import vfsd.api.one\n",
            "vfsd/api/__init__.py": "",
            "vfsd/api/one.py": "class Same:\n    pass\n\n\nclass _Same:\n    pass\n",
            "catalog/__init__.py": "from vfsd.api import one\n",
            "catalog/two.py": "class Same:\n    pass\n" + "x = 1\n" * 700,
            "codecs/three.py": "def f():\n    from vfsd.catalog.two import Same\n",
        },
    )
    figures = structure(tmp_path)
    assert figures.files == 7
    assert figures.contract_rows == 2
    assert figures.loose == ["vfsd.loose"]
    assert figures.long == ["vfsd.catalog.two"]
    assert figures.short == ["vfsd.api.one", "vfsd.codecs.three", "vfsd.loose"]
    assert figures.duplicate_classes == {"Same": ["vfsd.api.one", "vfsd.catalog.two"]}
    assert figures.one_importer == {
        "vfsd.api": "vfsd.catalog",
        "vfsd.catalog.two": "vfsd.codecs.three",
    }


def test_this_tree_keeps_its_bounds() -> None:
    figures = structure()
    assert figures.contract_rows <= 20
    assert len(figures.loose) <= 4
