"""What directories with a limit have together, known for as long as nobody changes it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import replace

from vfsd.catalog import Transaction
from vfsd.core.policy import Policy, Share
from vfsd.storage.context import Parts


class Shares:
    """What is left for the directories as one video after the other goes to make room.

    To add it up takes as long as the directories are large, and nobody may have to wait for that
    at each video: so it is done outside of transactions that write (`look`), and these ask no more
    than whether anything is another since (`of`).
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._since: Hashable = None  # what all of this follows from
        self._shares: dict[int, Share] = {}
        self._sizes: dict[int, dict[str, int]] = {}  # of these
        self._there: set[str] = set()  # objects that were looked for
        self._settled: set[str] = set()

    def forget(self) -> None:
        """Look at everything anew."""
        self._since = None
        self._there.clear()

    def look(self, directories: Iterable[int]) -> None:
        """Find out what they have by now; not for use within a transaction."""
        with self._parts.catalog.reading() as seen:
            if seen.originals.sharing() != self._since:
                self.forget()
            said = seen.originals.policies()  # by now there may be no limit, or no directory
            self.of(seen, [each for each in directories if _has_limit(said.get(each))])

    def of(self, seen: Transaction, directories: Iterable[int]) -> dict[int, Share]:
        """What they have as a transaction sees it, and what those have that they share with.

        By inode; of bytes that several files of a directory have all is there until the last goes.
        """
        since = seen.originals.sharing()
        if since != self._since:
            self._since = since
            self._shares.clear()
            self._sizes.clear()
            self._settled.clear()

        def share(directory: int) -> Share:
            if directory not in self._shares:
                found = self._stored(seen.originals.share(directory))
                self._sizes[directory] = dict(found.sizes)
                self._shares[directory] = replace(found, sizes=self._sizes[directory])
            return self._shares[directory]

        return _with_besides(directories, share)

    def without_holds(self, seen: Transaction, directories: Iterable[int]) -> dict[int, Share]:
        """As `of`, if nothing was held."""
        return _with_besides(
            directories, lambda each: self._stored(seen.originals.share_without_holds(each))
        )

    def is_settled(self, digest: str) -> bool:
        """Whether it was said of these bytes (`settle`), and nothing is another since."""
        return digest in self._settled

    def settle(self, digest: str) -> None:
        """Whoever has these bytes goes."""
        self._settled.add(digest)

    def went(self, digest: str, left: int, since: Hashable) -> None:
        """A file with these bytes has gone, and so many have them still.

        Once that is published: from `since` (see `Originals.sharing`) all else follows as before.
        """
        self._since = since
        if left == 0:
            for sizes in self._sizes.values():
                sizes.pop(digest, None)

    def _stored(self, share: Share) -> Share:
        """Without what is not there; where it is not too much nothing goes, whatever is not."""
        if share.taken <= share.limit:
            return share
        exists = self._parts.objects.exists
        self._there.update(key for key in share.sizes.keys() - self._there if exists(key))
        there = {key: size for key, size in share.sizes.items() if key in self._there}
        return replace(share, sizes=there)


def _has_limit(policy: Policy | None) -> bool:
    return policy is not None and policy.delete_above is not None


def _with_besides(directories: Iterable[int], share: Callable[[int], Share]) -> dict[int, Share]:
    found: dict[int, Share] = {}
    waiting = list(directories)
    while waiting:
        each = waiting.pop()
        if each not in found:
            found[each] = share(each)
            waiting += {other for others in found[each].besides.values() for other in others}
    return found
