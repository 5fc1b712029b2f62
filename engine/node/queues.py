"""The node's part in the DDL queues: a worker and a cleaner per queue.

Everything here runs in the background and survives Keeper's absence: a node starts and serves without it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from engine.config.model import DistributedDdl, NodeConfig, Topology
from engine.ddl import (
    DDLCleaner,
    DDLQueueClient,
    DDLWorker,
    IntentStore,
    LocalExecutor,
    NodeIdentity,
    OwnSessions,
    QueueRow,
    Resolver,
)
from engine.env import Env
from engine.errors import Corrupt, OnclusterError
from engine.keeper.base import KeeperFactory
from engine.keeper.recipes import SessionHolder
from engine.lifetime import end_if_cancelled

log = logging.getLogger(__name__)

_RESTART_PAUSE_S = 5.0


class NodeQueues:
    """All queues of the configuration. `start` them, `stop` them."""

    def __init__(
        self,
        config: NodeConfig,
        *,
        factory: KeeperFactory,
        holder: SessionHolder,
        env: Env,
        executor: LocalExecutor,
        intents: IntentStore,
        identity: NodeIdentity,
        resolver: Resolver,
        topology: Callable[[], Topology],
    ) -> None:
        self.holder = holder
        self._env = env
        self._config = config
        self._clients = {q.path: DDLQueueClient(self.holder, env, q.paths) for q in config.queues}
        self._tasks: list[asyncio.Task[None]] = []
        self._workers: list[DDLWorker] = []
        self._own_sessions = OwnSessions()
        self._cleaners: list[DDLCleaner] = []
        for queue in config.queues:
            worker = DDLWorker(
                factory=factory,
                env=env,
                executor=executor,
                intents=intents,
                identity=identity,
                topology=topology,
                queue=queue,
                resolver=resolver,
                own_sessions=self._own_sessions,
                profile_settings=partial(config.settings_of_log, queue.profile),
                users=config.users.keys() if config.uses_initial_user else None,
                on_round=self._on_round(len(self._workers)),
            )
            self._workers.append(worker)
            self._cleaners.append(
                DDLCleaner(
                    self.holder,
                    env,
                    queue,
                    max_entry=partial(getattr, worker, "max_entry"),
                    on_present=worker.forget_intents,
                )
            )

    def _on_round(self, number: int) -> Callable[[Sequence[str]], None]:
        return lambda _: self._cleaners[number].wake()

    def start(self) -> None:
        """Begin to follow the queues."""
        start = asyncio.get_running_loop().create_task
        self._tasks = [start(self._keep_running(worker), name="ddl worker") for worker in self._workers]
        self._tasks += [start(cleaner.run(), name="ddl cleaner") for cleaner in self._cleaners]

    async def _keep_running(self, worker: DDLWorker) -> None:
        """A queue that cannot be worked on is a queue's trouble, not the node's; a person reads the log."""
        while True:
            try:
                await worker.run()
                return
            except Corrupt as error:
                log.critical("ddl.worker_stopped error=%s", error)
                return
            except OnclusterError as error:
                end_if_cancelled()
                log.error("ddl.worker_failed retry_in_s=%g error=%s", _RESTART_PAUSE_S, error)
            await self._env.sleep(_RESTART_PAUSE_S)

    async def stop(self, *, grace_s: float) -> None:
        """Take no more entries, finish the statement under way, end the workers' Keeper sessions."""
        for worker in self._workers:
            worker.stop()
        workers, cleaners = self._tasks[: len(self._workers)], self._tasks[len(self._workers) :]
        for task in cleaners:
            task.cancel()
        drains = [asyncio.ensure_future(worker.drain()) for worker in self._workers]
        if workers or drains:
            _, late = await asyncio.wait([*workers, *drains], timeout=grace_s)
            for task in late:
                task.cancel()
        await asyncio.gather(*self._tasks, *drains, return_exceptions=True)

    def topology_changed(self) -> None:
        for worker in self._workers:
            worker.topology_changed()

    def of_cluster(self, cluster: str) -> DistributedDdl:
        """The queue that serves a cluster. Raises ConfigError 139 where none is configured."""
        return self._config.queue_of(cluster)

    def client(self, queue: DistributedDdl) -> DDLQueueClient:
        return self._clients[queue.path]

    async def gauges(self) -> Mapping[str, int]:
        """For `system.metrics`."""
        return {
            "MaxDDLEntryID": max((worker.max_entry for worker in self._workers), default=-1),
            "ZooKeeperSession": self._own_sessions.count + (self.holder.current is not None),
        }

    async def queue_rows(self) -> list[QueueRow]:
        """The rows of all queues. Raises KeeperUnavailable."""
        await self.holder.get(timeout_s=KEEPER_WAIT_S)
        return [row for client in self._clients.values() for row in await client.queue_rows()]


KEEPER_WAIT_S = 5.0
"""How long a request waits for a session with Keeper before it is answered with KEEPER_EXCEPTION 999."""


class NoQueues:
    """Of a node without Keeper: no queue, so no rows."""

    async def queue_rows(self) -> list[QueueRow]:
        return []
