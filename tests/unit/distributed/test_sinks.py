"""What goes with a block to a replica: its user there may have a profile that says otherwise."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import cast

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from engine.distributed.delivery import TOKEN_SETTING, Block
from engine.distributed.peers import Peer
from engine.env import SystemEnv
from engine.names import HostId
from engine.node.distributed.sending.sinks import NodeSink
from engine.storage import ChdbPool

NEWER = "deduplicate_insert"
MIN_ROWS, MIN_BYTES = "min_insert_block_size_rows", "min_insert_block_size_bytes"
PROFILE = {
    "async_insert": "1",
    "wait_for_async_insert": "0",
    "insert_deduplicate": "0",
    NEWER: "disable",
    MIN_ROWS: "1",
    MIN_BYTES: "1",
}
"""Of the replica's user: an INSERT is answered before its rows are written, and is never a repetition. Its
rows are cut into blocks, of which all but the first have a token that is known by then."""


async def rows() -> AsyncIterator[bytes]:
    yield b"rows"


async def sent(*blocks: Block, with_token: bool, unknown: Sequence[str] = ()) -> Sequence[Mapping[str, str]]:
    """The settings by which the replica writes each block, its profile's where nothing else came; where it
    refuses one, those that came."""
    received: list[Mapping[str, str]] = []

    async def insert(request: web.Request) -> web.Response:
        await request.read()
        said = {"X-ClickHouse-Server-Display-Name": "replica"}
        received.append({**PROFILE, **request.query})
        refused = next((name for name in unknown if name in request.query), "")
        if not refused:
            return web.Response(headers=said)
        text = f"Code: 115. DB::Exception: Unknown setting {refused}. (UNKNOWN_SETTING)"
        return web.Response(status=404, headers={**said, "X-ClickHouse-Exception-Code": "115"}, text=text)

    app = web.Application()
    app.router.add_post("/", insert)
    async with TestServer(app) as server:
        peer = Peer(HostId("replica", 9000), "127.0.0.1", cast(int, server.port))
        sink = NodeSink(cast(ChdbPool, None), SystemEnv())
        for block in blocks:
            await sink.write(peer, block, with_token=with_token)
        await sink.close()
    return received


def block(**settings: str) -> Block:
    return Block("d", "t", ("k",), "7f", rows, settings=settings)


async def test_a_block_is_written_before_the_answer_and_known_by_its_token_whatever_profiles_say() -> None:
    [seen] = await sent(block(insert_deduplicate="0"), with_token=True)
    assert (seen[TOKEN_SETTING], seen["insert_deduplicate"], seen["async_insert"]) == ("7f", "1", "0")
    assert seen[NEWER] == "enable"


@pytest.mark.parametrize("with_token", [True, False])
async def test_rows_with_one_token_are_one_block_whatever_profiles_say(with_token: bool) -> None:
    for unknown in ([], [NEWER]):
        *_, seen = await sent(block(), with_token=with_token, unknown=unknown)
        assert (int(seen[MIN_ROWS]), seen[MIN_BYTES]) == (100_000_000, "0")


async def test_a_server_that_knows_tokens_alone_is_asked_once_whether_it_knows_more() -> None:
    refused, *written = await sent(block(), block(), with_token=True, unknown=[NEWER])
    assert refused[NEWER] == "enable"
    assert [(seen[TOKEN_SETTING], seen[NEWER]) for seen in written] == [("7f", "disable")] * 2


async def test_a_server_that_knows_no_tokens_is_told_what_the_insert_said() -> None:
    """It knows a block by its rows, and who inserts equal ones may want both. It knows no `async_insert`."""
    [seen] = await sent(block(insert_deduplicate="0"), with_token=False)
    assert TOKEN_SETTING not in seen
    assert (seen["insert_deduplicate"], seen["async_insert"]) == ("0", PROFILE["async_insert"])
