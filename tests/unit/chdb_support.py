"""chDB in a directory of the test's own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from engine.storage import ChdbPool
from engine.storage.local_executor import ChdbExecutor


@asynccontextmanager
async def running_executor(directory: Path, *, lanes: int) -> AsyncIterator[ChdbExecutor]:
    """An executor on two connections; closed in the end."""
    pool = await ChdbPool.open(directory / "data", max_running=2)
    executor = ChdbExecutor(pool, lanes=lanes)
    yield executor
    await executor.close()
    await pool.close()
