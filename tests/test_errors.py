"""The error tree: what scripts and the kernel are told."""

from __future__ import annotations

import errno

import vfsd.errors as errors


def _all(kind: type[errors.VfsdError]) -> list[type[errors.VfsdError]]:
    return [kind, *(deeper for sub in kind.__subclasses__() for deeper in _all(sub))]


def test_every_error_is_drawn_in_the_tree_with_its_numbers() -> None:
    drawn = {
        line.replace("│", " ").replace("├──", "").replace("└──", "").split()[0]: line.split()
        for line in (errors.__doc__ or "").splitlines()
        if "Error " in line
    }
    for kind in _all(errors.VfsdError):
        words = drawn[kind.__name__]
        assert str(kind.exit_code) in words, kind
        assert errno.errorcode[kind.errno] in words, kind


def test_exit_codes_stay_in_their_bands() -> None:
    bands = {
        errors.StoreError: range(10, 20),
        errors.EnvironmentMissingError: range(20, 30),
    }
    for kind in _all(errors.VfsdError)[1:]:
        band = next((band for base, band in bands.items() if issubclass(kind, base)), range(2, 10))
        assert kind.exit_code in band, kind


def test_an_error_keeps_its_hint() -> None:
    error = errors.NotFoundError("there is no 'x'", hint="look elsewhere")
    assert (str(error), error.hint) == ("there is no 'x'", "look elsewhere")
    assert isinstance(error, LookupError)
