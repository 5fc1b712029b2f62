"""The event loop of a node's process: names are looked up on threads of their own.

asyncio looks names up on the threads that do the process's other blocking work, of which a small machine has
few. While a name server keeps silent, a few names would occupy all of them: nothing would be compressed,
written or removed any more, and the process would not end before the last lookup.

- The same name is looked up once at a time, however many ask; so there are no more threads than names.
- Whoever asks may stop waiting; the thread goes on until the system's resolver gives up.
- The threads hold up no end of the process.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import threading
from typing import Any

from engine.errors import TOO_FEW_DESCRIPTORS
from engine.patient_threads import PatientThreads

log = logging.getLogger(__name__)

_FOR_OTHER_WORK = min(32, (os.cpu_count() or 1) + 4)
"""Threads, as many as asyncio has."""
_NOT_ACCEPTED = "socket.accept() out of system resource"
"""asyncio's word for it."""


class NodeLoop(asyncio.SelectorEventLoop):
    """asyncio's own, but for `getaddrinfo`, by which all connections and resolvers ask for names, and what
    is said where descriptors run out."""

    def __init__(self) -> None:
        super().__init__()
        self.set_default_executor(PatientThreads(_FOR_OTHER_WORK, "asyncio"))
        self._lookups: dict[tuple[Any, ...], asyncio.Future[Any]] = {}

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """That no connection can be accepted is told in a line, each second that it is so."""
        if context.get("message") == _NOT_ACCEPTED:
            log.error("node.not_accepted error=%s hint=%s", context.get("exception"), TOO_FEW_DESCRIPTORS)
            return
        super().call_exception_handler(context)

    async def getaddrinfo(
        self, host: Any, port: Any, *, family: int = 0, type: int = 0, proto: int = 0, flags: int = 0
    ) -> Any:
        """As `socket.getaddrinfo`. Raises what that raises, and OSError where there is no thread for it:
        whoever connects takes that for an error of the network."""
        asked = (host, port, family, type, proto, flags)
        found = self._lookups.get(asked)
        if found is None:
            found = self.create_future()
            thread = threading.Thread(target=self._look_up, args=(asked, found), name="lookup", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                raise OSError(errno.EAGAIN, f"The name {host} cannot be looked up now: {error}") from error
            # Only now: where no more threads are to be had, the next one who asks tries again.
            self._lookups[asked] = found
            found.add_done_callback(lambda done: self._forget(asked, done))
        return await asyncio.shield(found)

    def _forget(self, asked: tuple[Any, ...], found: asyncio.Future[Any]) -> None:
        del self._lookups[asked]
        if not found.cancelled():
            found.exception()  # perhaps nobody waits for it any more

    def _look_up(self, asked: tuple[Any, ...], found: asyncio.Future[Any]) -> None:
        try:
            addresses = socket.getaddrinfo(*asked)
        except (OSError, ValueError, OverflowError, TypeError) as error:  # the caller's to see
            self._tell(found.set_exception, error)
        else:
            self._tell(found.set_result, addresses)

    def _tell(self, tell: Any, what: object) -> None:
        try:
            self.call_soon_threadsafe(tell, what)
        except RuntimeError:  # the loop was closed meanwhile
            pass
