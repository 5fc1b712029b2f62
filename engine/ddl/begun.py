"""What this host has begun of one queue, and how it ended: the intents of `engine.ddl.intents`, in memory as
on disk."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterable

from engine.ddl.failures import TryAgain, is_retriable, may_have_happened, status_of
from engine.ddl.intents import Intent, IntentKey, IntentStore
from engine.ddl.recovery import tells_itself
from engine.ddl.status import ExecutionStatus
from engine.ddl.task import Task
from engine.errors import OnclusterError, SqlError

logger = logging.getLogger(__name__)


def shows_itself(task: Task, intent: Intent) -> bool:
    """Whether after a crash the digests say without doubt how the statement ended."""
    return bool(intent.digest_before) and tells_itself(task.statement, task.query)


class KnownStatements:
    """Of one queue. `note` is for what somebody else has put on disk."""

    def __init__(self, intents: IntentStore, queue: str) -> None:
        self._intents = intents
        self._queue = queue
        self._known: dict[IntentKey, Intent] = {}
        self._is_loaded = False

    async def load(self) -> None:
        """Read what an earlier process left. Once."""
        if not self._is_loaded:
            self._known = dict(await self._intents.load(self._queue))
            self._is_loaded = True

    def key(self, task: Task) -> IntentKey:
        return IntentKey(self._queue, task.name, task.czxid)

    def intent(self, task: Task, digest: str) -> Intent:
        """A new one, of which nobody knows yet."""
        return Intent(self.key(task), str(task.host), task.entry_digest, task.object_text, digest)

    def __contains__(self, task: object) -> bool:
        return isinstance(task, Task) and self.key(task) in self._known

    def find(self, task: Task) -> Intent | None:
        """What is recorded of this very entry."""
        intent = self._known.get(self.key(task))
        return intent if intent is not None and intent.entry_digest == task.entry_digest else None

    def note(self, intent: Intent) -> None:
        self._known[intent.key] = intent

    async def begin(self, intent: Intent) -> None:
        """Forced to disk when this returns."""
        await self._intents.begin(intent)
        self.note(intent)

    async def finish(
        self, intent: Intent, status: ExecutionStatus, *, can_wait: bool = False
    ) -> ExecutionStatus:
        """Record how it ended; if it `can_wait`, along with what is recorded next."""
        if can_wait:
            self._intents.finish_soon(intent.key, status)
        else:
            await self._intents.finish(intent.key, status)
        self.note(dataclasses.replace(intent, status=status))
        return status

    async def fail(self, task: Task, error: OnclusterError) -> ExecutionStatus:
        """Record the outcome that an error is. Raises TryAgain where it is none."""
        if not isinstance(error, SqlError):
            raise TryAgain(error.message, code=error.code) from error
        begun = self._known.get(self.key(task))
        if is_retriable(error):
            if not may_have_happened(error):
                self._known.pop(self.key(task), None)  # begun anew by the next attempt
            raise TryAgain(error.message, code=error.code) from error
        logger.info("ddl.failed entry=%s code=%d", task.name, error.code)
        if begun is None:  # refused before it was begun: an unknown setting, for example
            begun = self.intent(task, "")
            await self._intents.begin(begun)
        return await self.finish(begun, status_of(error), can_wait=shows_itself(task, begun))

    def forgettable(
        self, present: frozenset[str], *, is_running: Callable[[IntentKey], bool]
    ) -> list[Intent]:
        """Intents of entries that are gone for good: not present, although a later one is, and not running.

        `present` may have been listed before the latest entries were made; those are not gone.
        """
        latest = max(present, default="")
        return [
            intent
            for key, intent in self._known.items()
            if key.entry not in present and key.entry < latest and not is_running(key)
        ]

    async def forget(self, keys: Iterable[IntentKey]) -> None:
        keys = list(keys)
        await self._intents.forget(keys)
        for key in keys:
            self._known.pop(key, None)
