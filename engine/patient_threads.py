"""Worker threads that make do with those they have.

`ThreadPoolExecutor` queues a call, starts a thread for it if none is free, and raises where the system has
none to give (`can't start new thread`). The call stays in the queue and is run all the same, later, by
whichever thread comes by: after its caller was told that it had failed, and beside the next attempt. Here it
waits for a thread that there is; the first one is started with the executor.
"""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor

log = logging.getLogger(__name__)


class PatientThreads(ThreadPoolExecutor):
    """Raises RuntimeError when it is made and no thread can be started."""

    def __init__(self, most: int, name: str) -> None:
        super().__init__(most, thread_name_prefix=name)
        self.submit(_nothing)

    def _adjust_thread_count(self) -> None:
        try:
            super()._adjust_thread_count()
        except RuntimeError as error:
            if not self._threads:
                raise
            log.warning(
                "threads.none_to_start pool=%s threads=%d error=%s hint=Raise the limit of processes and "
                "threads (ulimit -u, TasksMax of systemd, --pids-limit of Docker).",
                self._thread_name_prefix,
                len(self._threads),
                error,
            )


def _nothing() -> None:
    """The call that starts the first thread."""
