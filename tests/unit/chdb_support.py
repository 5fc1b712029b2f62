"""chDB in a directory of the test's own, and one that fails."""

from __future__ import annotations

import random
import resource
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from unittest.mock import patch

from engine.storage import ChdbPool
from engine.storage.chdb_module import load_chdb
from engine.storage.local_executor import ChdbExecutor
from engine.testing.failing_chdb import FailingChdb, Knob


@asynccontextmanager
async def running_executor(directory: Path, *, lanes: int) -> AsyncIterator[ChdbExecutor]:
    """An executor on two connections; closed in the end."""
    pool = await ChdbPool.open(directory / "data", max_running=2)
    executor = ChdbExecutor(pool, lanes=lanes)
    yield executor
    await executor.close()
    await pool.close()


@contextmanager
def failing_chdb(directory: Path) -> Iterator[Knob]:
    """A chDB that is opened in the block fails as the knob says."""
    knob = Knob(directory / "knob")
    failing = FailingChdb(load_chdb(), knob.file, random.Random(1))
    with patch.dict(sys.modules, {"chdb._chdb": failing}):
        yield knob


@contextmanager
def without_descriptors() -> Iterator[None]:
    """Nothing can be opened in the block; what is open stays so."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
