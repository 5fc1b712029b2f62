"""How blocks get to replicas: over HTTP, or through this node's own router where the replica is this node."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

from engine.client import NodeClient
from engine.config.model import User
from engine.distributed.delivery import DEPTH_SETTING, TOKEN_SETTING, Block
from engine.distributed.peers import Peer
from engine.env import Env
from engine.node.statement import Answer, Asked
from engine.storage import ChdbPool
from engine.storage.statement_text import InsertText

_FOR_ONE_BLOCK = {"min_insert_block_size_rows": "100000000", "min_insert_block_size_bytes": "0"}
"""The receiver makes one block of what it is sent, also of a batch: the token names all of it."""

InsertStream = Callable[[Asked, InsertText, AsyncIterator[bytes]], Awaitable[Answer]]
"""`StatementRouter.insert`."""


class NodeSink:
    """Implements `Sink`."""

    def __init__(self, pool: ChdbPool, env: Env, *, timeout_s: float = 300.0) -> None:
        self._pool = pool
        self._env = env
        self._timeout_s = timeout_s
        self._clients: dict[Peer, NodeClient] = {}
        self.insert_here: InsertStream | None = None
        """Set when the router is there; until then this node is reached as any other."""

    async def write(self, peer: Peer, block: Block, *, with_token: bool) -> None:
        settings = {**block.settings}
        if with_token:
            settings |= {TOKEN_SETTING: block.token}
        else:
            settings.pop(DEPTH_SETTING, None)  # so old a server does not know it either
        if peer.is_local and self.insert_here is not None:
            await self._here(self.insert_here, peer, block, settings)
            return
        await self._client(peer).insert(
            peer.table(block.database, block.table),
            block.body(),
            format="Native",
            columns=block.columns,
            settings={**_FOR_ONE_BLOCK, **settings},
        )

    async def _here(self, insert: InsertStream, peer: Peer, block: Block, settings: dict[str, str]) -> None:
        session = self._pool.session(one_shot=True)
        head = block.insert_sql(peer)
        asked = Asked(sql=head, user=User(peer.user), session=session, format="Null", settings=settings)
        try:
            answer = await insert(asked, InsertText(head, "Native", 0), block.body())
            await answer.finish()
        finally:
            await session.close()

    def _client(self, peer: Peer) -> NodeClient:
        if peer not in self._clients:
            self._clients[peer] = NodeClient(
                peer.url,
                user=peer.user,
                password=peer.password,
                timeout_s=self._timeout_s,
                connect_timeout_s=1.0,
                env=self._env,
            )
        return self._clients[peer]

    async def close(self) -> None:
        for client in self._clients.values():
            await client.close()
        self._clients.clear()
