"""Jobs that follow each other, on threads that have others to do as well."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future


class Strand:
    """Each job begins when the one before has ended, on whichever of the `workers` comes next.

    None of them waits for a job, and between two jobs others have their turn.
    """

    def __init__(self, workers: Executor) -> None:
        self._workers = workers
        self._jobs: deque[tuple[Future[None], Callable[[], None]]] = deque()
        self._is_busy = False
        self._guard = threading.Lock()

    def submit(self, job: Callable[[], None]) -> Future[None]:
        """Raises `RuntimeError` where the workers take no more, and all of this one has ended."""
        future: Future[None] = Future()
        with self._guard:
            if not self._is_busy:
                self._workers.submit(self._run)
                self._is_busy = True
            self._jobs.append((future, job))
        return future

    def _run(self) -> None:
        """Do the next job, and have another thread go on."""
        while True:
            with self._guard:
                future, job = self._jobs.popleft()
            if future.set_running_or_notify_cancel():
                try:
                    job()
                except BaseException as error:
                    future.set_exception(error)
                else:
                    future.set_result(None)
            del future, job  # which hold pictures
            with self._guard:
                if not self._jobs:
                    self._is_busy = False
                    return
                try:
                    self._workers.submit(self._run)
                    return
                except RuntimeError:
                    pass  # they take no more: what they were given is done here
