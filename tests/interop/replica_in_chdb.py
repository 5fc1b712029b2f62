"""A replica that is ClickHouse 26.9 itself, beside a node: chDB with what `server_around_chdb` tells it.

It fetches parts, merges, mutates, alters, follows the log of Replicated databases and works the DDL queue as
a server does. What it lacks is the port by which others fetch its parts: one of ours sends them, straight
from its directory.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from engine.config.model import ZooKeeper
from engine.names import QueuePaths
from engine.ports import free_ports
from tests.interop.parts_of_chdb import HOST, sending
from tests.unit.replicated.chdb import Clickhouse

QUEUE = QueuePaths()
_ROOT = Path(__file__).parents[2]
_SESSION_TIMEOUT_MS = 4000
"""So long its own nodes in Keeper stay when it is killed."""
_UNKNOWN = "another program: "
_BEFORE = f"""
sys.path.insert(0, {str(_ROOT)!r})
from tests.interop import ddl_worker_around_chdb, program_in_memory, server_around_chdb
try:
    server_around_chdb.put_around(_chdb.__file__, host={HOST!r}, port=%d)
    ddl_worker_around_chdb.put_around(
        _chdb.__file__, queue={QUEUE.root!r}, replicas={QUEUE.replicas_root!r}, keeps=%r
    )
except program_in_memory.Unknown as error:
    sys.stdin.readline()
    answers.write(json.dumps({{"error": "{_UNKNOWN}" + str(error)}}).encode() + b"\\n")
    sys.exit()
"""


class ReplicaInChdb(Clickhouse):
    """Statements run one after another, in one session."""

    def __init__(self, directory: Path, config: ZooKeeper, **more: str) -> None:
        self._settings: dict[str, str] = {}
        self._asked = threading.RLock()
        super().__init__(directory, config, **more)

    def set(self, settings: Mapping[str, str]) -> None:
        """Of its session, also after it has been killed."""
        self._settings |= settings
        for name, value in settings.items():
            self.query(f"SET {name} = '{value}'")

    def kill9(self) -> None:
        """And start it again. Who waits for an answer meanwhile gets ConnectionError."""
        self.close()
        with self._asked:
            self.start()
            self.set(self._settings)

    def answer(self, sql: str) -> dict[str, str]:
        with self._asked:
            return super().answer(sql)

    def run(self, sql: str) -> tuple[int, str]:
        """Code and text of the answer."""
        answer = self.answer(sql)
        if "error" not in answer:
            return 0, answer["text"]
        self.query("SELECT 1 FORMAT Null")  # takes what it has said so far along
        return int(answer["error"].removeprefix("Code: ").partition(".")[0]), answer["error"]


@contextmanager
def replica_in_chdb(
    directory: Path, zookeeper: ZooKeeper, *, more: str = "", keeps: int | None = None
) -> Iterator[ReplicaInChdb]:
    """`more` stands in its configuration; `keeps`: see `ddl_worker_around_chdb`. Skips the test where chDB is
    another program than the known one."""
    [port] = free_ports(1)
    try:
        config = replace(zookeeper, session_timeout_ms=_SESSION_TIMEOUT_MS)
        replica = ReplicaInChdb(directory, config, before=_BEFORE % (port, keeps), more=more)
    except AssertionError as error:
        if str(error).startswith(_UNKNOWN):
            pytest.skip(str(error))
        raise
    try:
        replica.query(
            "CREATE TABLE o.plain (a Int8) ENGINE = MergeTree ORDER BY a"
        )  # has threads for loading made
        with sending(directory / "data", port):
            yield replica
    finally:
        replica.close()
