"""Events: relations between objects that hold for some time, one step after another."""

from vfsd.labels.events.bound_event import BoundStep, bind
from vfsd.labels.events.box_relations import RELATIONS, EventBoxes
from vfsd.labels.events.event_pattern import parse_event
from vfsd.labels.events.event_rows import ObjectBoxes, runs_of_steps
from vfsd.labels.events.event_search import FoundEvents, find_events

__all__ = [
    "RELATIONS",
    "BoundStep",
    "EventBoxes",
    "FoundEvents",
    "ObjectBoxes",
    "bind",
    "find_events",
    "parse_event",
    "runs_of_steps",
]
