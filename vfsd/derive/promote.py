"""Acting on proposals about what was encoded for views: from the cache into renditions."""

from __future__ import annotations

from collections.abc import Callable

from vfsd.core.model import Segment
from vfsd.derive.promote_view import Admission
from vfsd.derive.promotion_candidates import Candidate, Candidates
from vfsd.derive.proposals import Proposal
from vfsd.derive.tile_encoder import Beside
from vfsd.derive.tunable import TunableVideo
from vfsd.errors import DamagedFileError, IntegrityError, OutdatedError
from vfsd.read.context import Tools
from vfsd.storage.context import Parts

Publish = Callable[[Beside], Segment]
"""Makes a segment, and calls something in the transaction that publishes it."""


class Admissions:
    """Takes candidates over.  Not thread-safe; several, in any processes, get along."""

    def __init__(self, parts: Parts, tools: Tools, between: Callable[[], None]) -> None:
        """`between` is called before each packet of an original that is looked at."""
        self._parts = parts
        self._tools = tools
        self._between = between
        self._candidates = Candidates.of_store(parts)
        self._of: dict[tuple[int, str], Admission] = {}

    def of(self, video: TunableVideo, candidate: Candidate, proposal: Proposal) -> Publish:
        """What makes a part of a rendition of `candidate`, and has the cache give it up then.

        Raises `OutdatedError` where it is in the cache no longer; what is given, as
        `Admission.admit`.
        """
        made = candidate.made
        stream = self._candidates.stream(candidate)
        if stream is None:
            self._candidates.drop(candidate)  # the next reader has it made again
            raise OutdatedError(
                f"what was encoded for views of {video.name} has left the cache",
                hint="ask for proposals again",
            )
        admission = self._admission(video, made.codec)

        def admit(beside: Beside) -> Segment:
            try:
                segment = admission.admit(
                    proposal.plan, stream, made.quality, beside=beside, worth=proposal.saved
                )
            except DamagedFileError:
                raise  # of the original: what is in the cache may be all that is left of it
            except IntegrityError:
                self._candidates.drop(candidate)
                raise
            # Views are served from the rendition from now on.
            self._candidates.drop(candidate)
            return segment

        return admit

    def _admission(self, video: TunableVideo, codec: str) -> Admission:
        key = video.original.id, codec
        if key not in self._of:
            self._of[key] = Admission(
                self._parts, self._tools.pool, video.info, video.table, codec, self._between
            )
        return self._of[key]
