"""Many requests of one call: how many of them are under way together."""

from __future__ import annotations

import asyncio
from typing import Any

from engine.errors import OperationTimeout
from engine.keeper.base import Node, Stat, Watch
from engine.keeper.link import LinkState
from engine.keeper.session import KeeperSession, RequestKind
from engine.testing.simulation import SimulationEnv, run_simulation

ANSWER_S = 0.005
PATIENCE_S = 10.0


class SlowSession(KeeperSession):
    """Its server answers one request after the other; what is not answered in time fails."""

    def __init__(self) -> None:
        super().__init__(session_id=1, timeout_s=30, state=LinkState.CONNECTED, root="", default_acl=())
        self._is_free_s = 0.0

    def _send(
        self, kind: RequestKind, path: str, payload: Any = None, watch: Watch | None = None
    ) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = self.loop.create_future()
        now_s = self.loop.time()
        self._is_free_s = max(self._is_free_s, now_s) + ANSWER_S
        if self._is_free_s - now_s > PATIENCE_S:
            self.loop.call_at(now_s + PATIENCE_S, future.set_exception, OperationTimeout(path))
            future.add_done_callback(asyncio.Future.exception)
        else:
            self.loop.call_at(self._is_free_s, future.set_result, Node(path.encode(), Stat(*[0] * 11)))
        return future

    def abandon(self) -> None:
        self.state = LinkState.OVER


def test_what_takes_longer_than_one_request_may_is_read_all_the_same_and_in_order() -> None:
    async def main(env: SimulationEnv) -> None:
        paths = [f"/{number}" for number in range(5000)]
        found = await SlowSession().get_many(paths)
        assert [node.data.decode() for node in found if isinstance(node, Node)] == paths
        assert env.monotonic_s() > 2 * PATIENCE_S

    run_simulation(1, main)
