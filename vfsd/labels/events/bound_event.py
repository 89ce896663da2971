"""An event whose words are known: variables, conditions and regions."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from vfsd.errors import UsageError
from vfsd.labels.events.box_relations import RELATIONS, Bools, EventBoxes, Relation
from vfsd.tiling import Rect

if TYPE_CHECKING:
    from vfsd.labels.events.event_pattern import EventStep, EventTerm


@dataclass(frozen=True, slots=True)
class BoundTerm:
    """A condition with all that it needs but the boxes."""

    variables: tuple[str, ...]
    test: Relation
    arguments: tuple[Any, ...]
    negated: bool
    name: str

    def holds(self, boxes: Mapping[str, EventBoxes]) -> Bools:
        """Return whether the condition holds in each row.

        Raises `UsageError` if a condition of the caller does not return one bool for each row.
        """
        rows = len(boxes[self.variables[0]])
        found = np.asarray(self.test(*(boxes[name] for name in self.variables), *self.arguments))
        if found.shape != (rows,) or found.dtype != np.bool_:
            raise UsageError(
                f"{self.name} must return {rows} bools, got an array of {found.dtype} of shape "
                f"{found.shape}"
            )
        return ~found if self.negated else found


@dataclass(frozen=True, slots=True)
class BoundStep:
    """Terms that hold at the same time, for some time."""

    terms: tuple[BoundTerm, ...]
    microseconds: int  #: the least time; 0: one frame
    frames: int  #: the least number of frames of the video; 0: not given as such

    @property
    def variables(self) -> tuple[str, ...]:
        """The variables of all terms, sorted."""
        return tuple(sorted({name for term in self.terms for name in term.variables}))

    def components(self) -> list[tuple[BoundTerm, ...]]:
        """Return the terms in groups that share no variable."""
        groups: list[list[BoundTerm]] = []
        for term in self.terms:
            linked = [
                group
                for group in groups
                if any(set(term.variables) & set(one.variables) for one in group)
            ]
            groups = [group for group in groups if group not in linked]
            groups.append([one for group in linked for one in group] + [term])
        return [tuple(group) for group in groups]


def bind(
    steps: Sequence[EventStep],
    variables: Collection[str],
    predicates: Mapping[str, Relation],
    regions: Mapping[str, Rect],
) -> tuple[BoundStep, ...]:
    """Look up every word of an event.

    Raises `UsageError` for a condition, variable or region that does not exist, for a variable
    that no term names, and for arguments that do not fit.
    """
    bound = tuple(
        BoundStep(
            tuple(_bound(term, variables, predicates, regions) for term in step.terms),
            0 if step.seconds is None else round(step.seconds * 1_000_000),
            step.frames or 0,
        )
        for step in steps
    )
    unused = set(variables) - {name for step in bound for name in step.variables}
    if unused:
        raise UsageError(
            f"no step of the event has the variable {_listed(unused)}",
            hint="each variable needs a term, such as inside(a, 100x100+0+0)",
        )
    return bound


def _bound(
    term: EventTerm,
    variables: Collection[str],
    predicates: Mapping[str, Relation],
    regions: Mapping[str, Rect],
) -> BoundTerm:
    names = tuple(word for word in term.words if word in variables)
    places: list[Rect] = []
    for word in term.words[len(names) :]:
        if word not in regions:
            raise UsageError(
                f"{word!r} must be a variable ({_listed(variables)}) or a named region"
                + (f" ({_listed(regions)})" if regions else ""),
                hint=f'give its labels, as in {word}="car|truck"',
            )
        places.append(regions[word])
    if len(set(names)) < len(names):
        raise UsageError(f"{term.name} must have different variables, got {names[0]} twice")
    given = (*places, *term.arguments)
    if term.name in predicates:
        if not names:
            raise UsageError(f"{term.name} must have at least one variable")
        return BoundTerm(names, predicates[term.name], given, term.negated, term.name)
    shape = RELATIONS.get(term.name)
    if shape is None:
        raise UsageError(
            f"there is no condition {term.name!r}; there are {_listed([*RELATIONS, *predicates])}",
            hint="predicates={...} adds conditions of your own",
        )
    if len(names) != shape.variables:
        raise UsageError(f"{term.name} takes {shape.variables} variables, got {len(names)}")
    if shape.takes_region:
        if len(given) != 1 or not isinstance(given[0], Rect):
            raise UsageError(
                f"{term.name} takes a variable and a region",
                hint=f"for example {term.name}({names[0]}, 400x300+600+300)",
            )
        return BoundTerm(names, shape.test, given, term.negated, term.name)
    filled = [*given, *shape.defaults[len(given) :]]
    if (
        len(given) > len(shape.defaults)
        or None in filled
        or any(isinstance(one, Rect) for one in given)
    ):
        takes = f"{shape.variables} variables and {len(shape.defaults)} numbers"
        raise UsageError(f"{term.name} takes {takes}, got {len(given)} arguments after them")
    return BoundTerm(names, shape.test, tuple(filled), term.negated, term.name)


def _listed(words: Collection[str]) -> str:
    return ", ".join(sorted(words)) or "none"
