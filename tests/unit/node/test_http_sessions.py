"""engine.node.http.sessions without chDB."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from engine.env import SystemEnv
from engine.errors import SqlError
from engine.node.http.query import SessionRequest
from engine.node.http.sessions import HttpSessions


class _Session:
    is_over = False
    closed = 0

    async def close(self) -> None:
        self.closed += 1


async def test_a_node_that_stops_ends_a_session_whose_last_request_is_under_way() -> None:
    sessions, session = HttpSessions(SystemEnv()), _Session()
    request = SessionRequest("s", timeout_s=60.0, must_exist=False, is_last=True)
    stopped = asyncio.Event()

    async def ask() -> None:
        async with sessions.use("u", request, lambda: cast(Any, session)):
            await stopped.wait()

    asking = asyncio.create_task(ask())
    await asyncio.sleep(0)
    await sessions.close()
    assert session.closed == 1
    stopped.set()
    await asking


async def test_a_request_after_the_end_of_all_sessions_gets_no_new_one_under_the_old_name() -> None:
    sessions, session = HttpSessions(SystemEnv()), _Session()
    request = SessionRequest("s", timeout_s=60, must_exist=False, is_last=False)
    async with sessions.use("u", request, lambda: cast(Any, session)):
        pass
    await sessions.close()
    with pytest.raises(SqlError, match="the node stops") as refused:
        async with sessions.use("u", request, lambda: pytest.fail("a new session")):
            pass
    assert refused.value.code == 372
