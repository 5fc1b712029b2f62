"""A result that is read while chDB makes it, or at once if it is small.

chDB writes it into a pipe, and ends it by closing the pipe. Most results fit into the pipe and are there
within milliseconds: then one look at it tells everything, and the event loop never waits for the pipe itself.
"""

from __future__ import annotations

from engine.storage.job import Job
from engine.storage.native_blocks import NativeBlocks
from engine.storage.pipe import ReadEnd
from engine.storage.scope import QueryResult

_AT_ONCE_S = 0.005
"""How long a reader waits for the whole result before it begins with what is there."""


class ResultStream:
    """A result on its way. Read until empty, then `finish` to learn whether it is whole."""

    def __init__(
        self, format: str, reader: ReadEnd, job: Job[QueryResult], *, blocks: NativeBlocks | None = None
    ) -> None:
        """What is read is put through `blocks`."""
        self.format = format
        self.native_revision = 0 if blocks is None else blocks.revision
        self._blocks = blocks
        self._reader = reader
        self._job = job
        self._has_begun = False

    async def read(self) -> bytes:
        """The next bytes; empty at the end, whether good or bad."""
        if not self._has_begun:
            self._has_begun = True
            await self._job.end(timeout_s=_AT_ONCE_S)
        while data := await self._reader.read():
            if self._blocks is None:
                return data
            if shown := self._blocks.put(data):
                return shown
        return b""

    async def finish(self) -> QueryResult:
        """Raises SqlError if the statement failed, at whatever time."""
        return await self._job.result()
