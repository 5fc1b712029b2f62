"""Answers of Keeper with error codes that nobody here knows: each concerns its own request only."""

from __future__ import annotations

import asyncio
import struct

import pytest

from engine.errors import BadArguments, ConnectionLoss
from engine.keeper import Create, SetData
from tests.unit.keeper.one_server import session_with

UNKNOWN, THROTTLED, QUOTA = -10, -127, -125
"""ClickHouse Keeper and ZooKeeper have codes that the other lacks."""
STAT = bytes(68)


@pytest.mark.parametrize("code", [UNKNOWN, THROTTLED])
async def test_a_request_that_ends_with_such_a_code_may_be_tried_again(code: int) -> None:
    async with session_with((code, b""), (0, STAT)) as keeper:
        asked = asyncio.gather(keeper.exists("/a"), keeper.exists("/b"), return_exceptions=True)
        first, second = await asked
        assert isinstance(first, ConnectionLoss)
        assert not isinstance(second, BaseException), "its neighbour has its answer"


async def test_so_does_a_transaction_of_which_an_operation_ended_with_it() -> None:
    failed = struct.pack(">i?ii", -1, False, UNKNOWN, UNKNOWN) + struct.pack(">i?i", -1, True, -1)
    async with session_with((0, failed), (0, STAT)) as keeper:
        writes = keeper.multi([Create("/a"), SetData("/b", b"")])
        first, second = await asyncio.gather(writes, keeper.exists("/b"), return_exceptions=True)
        assert isinstance(first, ConnectionLoss)
        assert not isinstance(second, BaseException), "its neighbour has its answer"


async def test_a_quota_that_is_used_up_is_named() -> None:
    async with session_with((QUOTA, b"")) as keeper:
        with pytest.raises(BadArguments, match="a quota of ZooKeeper's"):
            await keeper.exists("/a")
