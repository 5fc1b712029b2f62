"""Waits in the triggerer until the hosts of a queue entry are done.

Arguments are plain values and carry the id of the Keeper connection, never its secrets. The deadline is
absolute, so that it holds across restarts of the triggerer. All triggers of a triggerer share one session
per connection.

`cleanup` is not overridden and `on_kill` does nothing: a statement in the queue cannot be called back, and a
restart of the triggerer must not try.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from engine.ddl.outcome import EntryStatus
from engine.ddl.output import OutputMode
from engine.env import Env, SystemEnv
from engine.errors import Corrupt, Refused
from engine.names import QueuePaths
from oncluster_airflow.hooks.keeper import KeeperHook
from oncluster_airflow.late_wait import LateWait, told_when_late
from oncluster_airflow.outcomes import WaitResult, WaitState, is_failure
from oncluster_airflow.reporting import event_of, refusal_of
from oncluster_airflow.settings import LOOK_AGAIN_S
from oncluster_airflow.waiting import wait_for_hosts


class DDLFinishedTrigger(BaseTrigger):
    """Fires when `entry` is done on its hosts, or `deadline_s` (Unix seconds; None: never) has passed. Where
    `late` says so (`oncluster_airflow.late_wait`), people are told of a long wait while it goes on.

    A good end finishes the task in the triggerer, without a worker: XCom gets the result, and no resumed
    task can collide with the worker slot of the one that deferred. A bad end resumes `execute_complete`,
    which fails the task with every host in its log.
    """

    def __init__(
        self,
        *,
        keeper_conn_id: str,
        queue: str,
        replicas: str,
        entry: str,
        output_mode: str,
        deadline_s: float | None,
        token: str = "",
        look_again_s: float = LOOK_AGAIN_S,
        late: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.keeper_conn_id = keeper_conn_id
        self.queue = queue
        self.replicas = replicas
        self.entry = entry
        self.token = token
        self.output_mode = OutputMode(output_mode)
        self.deadline_s = deadline_s
        self.look_again_s = look_again_s
        self.late = late
        self._env: Env = SystemEnv()
        self._last: EntryStatus | None = None

    def arguments(self) -> dict[str, Any]:
        """What recreates this trigger; subclasses add theirs."""
        return {
            "keeper_conn_id": self.keeper_conn_id,
            "queue": self.queue,
            "replicas": self.replicas,
            "entry": self.entry,
            "token": self.token,
            "output_mode": str(self.output_mode),
            "deadline_s": self.deadline_s,
            "look_again_s": self.look_again_s,
            "late": self.late,
        }

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return f"{type(self).__module__}.{type(self).__qualname__}", self.arguments()

    async def seen(self, status: EntryStatus) -> None:
        """Called with every look. For subclasses that keep a record."""

    def fails(self, result: WaitResult) -> bool:
        """Whether the task fails."""
        return is_failure(result.state, self.output_mode)

    async def run(self) -> AsyncIterator[TriggerEvent]:
        limit_s = None if self.deadline_s is None else max(0.0, self.deadline_s - self._env.now_s())
        try:
            async with told_when_late(LateWait.from_json(self.late), self._known, env=self._env):
                result = await wait_for_hosts(
                    KeeperHook(self.keeper_conn_id).shared_session,
                    self.entry,
                    paths=QueuePaths(self.queue, self.replicas),
                    mode=self.output_mode,
                    limit_s=limit_s,
                    env=self._env,
                    token=self.token,
                    seen=self._seen,
                    look_again_s=self.look_again_s,
                )
        except (Refused, Corrupt) as error:
            yield refusal_of(error)
            return
        yield event_of(result, self.log, fails=self.fails(result))

    async def _seen(self, status: EntryStatus) -> None:
        self._last = status
        await self.seen(status)

    def _known(self) -> WaitResult:
        return WaitResult(WaitState.TIMEOUT, self.entry, self._last.hosts if self._last else ())
