"""How blocks get to replicas: over HTTP, or through this node's own router where the replica is this node."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Protocol

from engine.client import NodeClient, Silence
from engine.config.model import User
from engine.distributed.delivery import CONNECT_TIMEOUT_S, DEPTH_SETTING, TOKEN_SETTING, Block
from engine.distributed.peers import Peer
from engine.env import Env
from engine.errors import Code, SqlError
from engine.names import HostId
from engine.node.statements.statement import Answer, Asked
from engine.storage import ChdbPool
from engine.storage.statement_text import InsertText

_FOR_ONE_BLOCK = {"min_insert_block_size_rows": "100000000", "min_insert_block_size_bytes": "0"}
"""The receiver makes one block of what it is sent, also of a batch: the token names all of it."""

_WHATEVER_PROFILES_SAY = {"insert_deduplicate": "1", "async_insert": "0"}
"""Of blocks of equal rows: the token is this one's alone. And of when it is written: an answer is the proof
that it was. Servers that know tokens know both."""

_BEFORE_THE_OLDER = {"deduplicate_insert": "enable"}
"""In servers that know it, it comes before `insert_deduplicate`: a profile that disables it would have a
block that is sent again stored twice."""

MAX_ANSWER_BYTES = 1 << 20
"""What a peer may say to an INSERT, or to a probe."""

_READ_AS_ONE_BLOCK = {
    "max_threads": "1",
    "max_insert_threads": "1",
    "max_block_size": "100000000",
    "preferred_block_size_bytes": "0",
}


class Here(Protocol):
    """This node, as a client of it would find it (`StatementRouter`)."""

    async def insert(self, asked: Asked, insert: InsertText, rows: AsyncIterator[bytes]) -> Answer: ...

    def run(self, asked: Asked) -> AbstractAsyncContextManager[Answer]: ...


class NodeSink:
    """Implements `Sink`."""

    def __init__(self, pool: ChdbPool, env: Env) -> None:
        self._pool = pool
        self._env = env
        self._clients: dict[Peer, NodeClient] = {}
        self._without_newer: set[HostId] = set()
        self.here: Here | None = None
        """Set when the router is there; until then this node is reached as any other."""

    async def write(self, peer: Peer, block: Block, *, with_token: bool) -> None:
        settings = {**block.settings}
        if with_token:
            settings |= {**_WHATEVER_PROFILES_SAY, TOKEN_SETTING: block.token}
            if peer.name not in self._without_newer:
                try:
                    await self._write(peer, block, {**settings, **_BEFORE_THE_OLDER})
                except SqlError as error:
                    if error.code != Code.UNKNOWN_SETTING:
                        raise
                else:
                    return
        else:
            settings.pop(DEPTH_SETTING, None)  # so old a server does not know it either
        await self._write(peer, block, settings)
        if with_token:
            self._without_newer.add(peer.name)

    async def _write(self, peer: Peer, block: Block, settings: dict[str, str]) -> None:
        if peer.is_local and self.here is not None:
            await self._here(self.here, peer, block, {**_FOR_ONE_BLOCK, **settings})
            return
        await self._client(peer).insert(
            peer.table(block.database, block.table),
            block.body(),
            format="Native",
            columns=block.columns,
            settings={**_FOR_ONE_BLOCK, **settings},
            silence=Silence(block.send_timeout_s, block.receive_timeout_s),
        )

    async def _here(self, here: Here, peer: Peer, block: Block, settings: dict[str, str]) -> None:
        session = self._pool.session(one_shot=True)
        head = block.insert_sql(peer)
        asked = Asked(sql=head, user=User(peer.user), session=session, format="Null", settings=settings)
        try:
            if block.select:
                # Within chDB: the rows need not be written as Native and read again.
                settings = {**_READ_AS_ONE_BLOCK, **settings}
                asked = replace(asked, sql=f"{head} {block.select}", settings=settings)
                async with here.run(asked) as answer:
                    await answer.finish()
            else:
                answer = await here.insert(asked, InsertText(head, "Native", 0), block.body())
                await answer.finish()
        finally:
            await session.close()

    def _client(self, peer: Peer) -> NodeClient:
        if peer not in self._clients:
            self._clients[peer] = NodeClient(
                peer.url,
                user=peer.user,
                password=peer.password,
                connect_timeout_s=CONNECT_TIMEOUT_S,
                max_answer_bytes=MAX_ANSWER_BYTES,
                env=self._env,
            )
        return self._clients[peer]

    async def close(self) -> None:
        for client in self._clients.values():
            await client.close()
        self._clients.clear()
