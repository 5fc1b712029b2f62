"""What a server is asked, and what becomes of odd answers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from engine.client.node_client import NodeClient, QueryRows
from engine.config.model import NodeConfig, Topology
from engine.errors import Code, NodeUnavailable, SqlError
from engine.operations.overview import Answer, Level, look_at_hosts
from engine.operations.overview.hosts import look_at_host
from engine.operations.records import Records
from engine.operations.site import Site
from engine.testing.simulation import SimulationEnv, run_simulation
from tests.unit.ddl.support import QUEUE, cluster, host
from tests.unit.operations.overview_support import A, B, C

Row = Mapping[str, Any]
NO_TABLE = SqlError(Code.UNKNOWN_TABLE, "Table system.x doesn't exist")


class FakeServer:
    """Answers by the table that is asked for; what it does not know is empty."""

    def __init__(self, answers: Mapping[str, list[Row] | Exception], *, delay_s: float = 0) -> None:
        self._answers = {"version()": [{"version": "24.8", "uptime": 60}], **answers}
        self._delay_s = delay_s
        self.env: SimulationEnv | None = None
        self.url = "http://server"

    async def query_rows(self, sql: str) -> QueryRows:
        if self.env is not None and self._delay_s:
            await self.env.sleep(self._delay_s)
        found = next((rows for name, rows in self._answers.items() if name in sql), [])
        if isinstance(found, Exception):
            raise found
        names = tuple(found[0]) if found else ()
        return QueryRows(
            tuple((n, "String") for n in names), tuple(tuple(map(row.get, names)) for row in found)
        )

    def client(self) -> NodeClient:
        return cast(NodeClient, self)


REPLICA = {
    "database": "d",
    "table": "t",
    "is_readonly": 0,
    "is_session_expired": 0,
    "queue_size": 3,
    "inserts_in_queue": 1,
    "absolute_delay": 7,
}


async def test_a_server_that_has_everything() -> None:
    seen = await look_at_host(
        A,
        FakeServer(
            {
                "system.replicas": [
                    REPLICA,
                    {**REPLICA, "table": "u", "is_readonly": 1, "absolute_delay": 9},
                ],
                "replication_queue": [
                    {
                        "database": "d",
                        "table": "t",
                        "type": "GET_PART",
                        "new_part_name": "all_1_1_0",
                        "since_s": 5,
                        "num_tries": 4,
                        "last_exception": "no",
                        "postpone_reason": "",
                    }
                ],
                "system.mutations": [
                    {
                        "database": "d",
                        "table": "t",
                        "mutation_id": "7",
                        "command": "DELETE WHERE 1",
                        "since_s": 6,
                        "parts_to_do": 2,
                        "latest_fail_reason": "why",
                    }
                ],
                "distribution_queue": [
                    {
                        "database": "d",
                        "table": "dist",
                        "data_files": 2,
                        "data_compressed_bytes": 9,
                        "broken_data_files": 1,
                        "error_count": 3,
                        "is_blocked": 1,
                        "last_exception": "x",
                    },
                    {"database": "d", "table": "empty", "data_files": 0, "data_compressed_bytes": 0},
                ],
            }
        ).client(),
    )
    assert (seen.answer, seen.version, seen.uptime_s, seen.notes) == (Answer.UP, "24.8", 60, ())
    assert (seen.read_only, seen.absolute_delay_s, seen.queue_size) == (1, 9, 6)
    assert seen.level is Level.CRITICAL
    assert (seen.queue_tasks[0].part, seen.queue_tasks[0].since_ms) == ("all_1_1_0", 5000)
    assert (seen.mutations[0].fail_reason, seen.mutations[0].parts_to_do) == ("why", 2)
    assert [row.table for row in seen.spool] == ["d.dist"]


async def test_what_an_old_server_does_not_have_is_a_note() -> None:
    seen = await look_at_host(
        A,
        FakeServer(
            {
                "system.replicas": [REPLICA],
                "distribution_queue": NO_TABLE,
                "system.mutations": [
                    {"database": "d", "table": "t", "mutation_id": "7", "command": "x", "since_s": 6}
                ],
            }
        ).client(),
    )
    assert seen.notes == ("system.distribution_queue: this server does not have it",)
    assert seen.level is Level.OK
    assert seen.mutations[0].fail_reason == ""


async def test_no_permission_is_a_note_and_not_a_crash() -> None:
    refused = SqlError(497, "Not enough privileges")
    seen = await look_at_host(A, FakeServer({"system.replicas": refused}).client())
    assert seen.notes == ("system.replicas: Not enough privileges",)


async def test_secrets_in_errors_are_hidden() -> None:
    text = "Cannot run CREATE TABLE x ENGINE = MySQL('h', 'd', 't', 'u', 'swordfish')"
    rows = [{"database": "d", "table": "t", "data_files": 1, "last_exception": text}]
    seen = await look_at_host(A, FakeServer({"distribution_queue": rows}).client())
    assert "swordfish" not in seen.spool[0].last_exception
    assert "MySQL" in seen.spool[0].last_exception


def test_hosts_that_are_down_slow_or_talk_nonsense_do_not_hide_the_others(tmp_path: Path) -> None:
    servers = {
        "a": FakeServer({"system.replicas": [REPLICA]}),
        "b": FakeServer({}, delay_s=100),
        "c": FakeServer({"version()": [{"something": "else"}]}),
    }

    async def main(env: SimulationEnv) -> None:
        servers["b"].env = env
        config = NodeConfig("/x", topology=Topology({"c": cluster("a b", "c")}), queues=(QUEUE,))
        site = Site(
            "c",
            config,
            Records(tmp_path / "r.db", env=env),
            env,
            "test",
            clients={host(name): server.client() for name, server in servers.items()},
            patience_s=2,
        )
        begun_s = env.monotonic_s()
        view = await look_at_hosts(site)
        assert env.monotonic_s() - begun_s < 3
        assert view.down == {B, C}
        assert view.hosts[A].level is Level.OK
        assert "did not answer within 2 s" in view.hosts[B].error
        assert "not ClickHouse's" in view.hosts[C].error

    run_simulation(1, main)


async def test_a_server_that_cannot_be_reached_is_the_caller_s_to_say() -> None:
    with pytest.raises(NodeUnavailable):
        await look_at_host(A, FakeServer({"version()": NodeUnavailable("no")}).client())
