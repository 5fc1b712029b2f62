"""engine.migrations.observe without a queue."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from engine.env import SystemEnv
from engine.migrations.observe import Observer, Target
from engine.names import HostId


class _Client:
    async def watch(self, entry: str) -> AsyncIterator[Any]:
        raise ZeroDivisionError
        yield


async def test_an_error_in_the_program_ends_a_wait_without_a_deadline() -> None:
    """It ended only the watch, and whoever waited did so for ever, and kept the migrations' lock."""
    observer = Observer(cast(Any, _Client()), cast(Any, None), SystemEnv())
    target = Target("t", "query-0000000001", (HostId("node01", 9000),))
    async with asyncio.timeout(5):
        with pytest.raises(ZeroDivisionError):
            async for _ in observer.changes(
                [target], deadline_s=None, keep_alive=None, keep_alive_every_s=1.0
            ):
                pass
