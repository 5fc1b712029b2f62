"""A cluster of real servers and an engine node: whoever initiates, all execute, and all agree."""

from __future__ import annotations

import pytest

from engine.ddl.outcome import HostState
from engine.ddl.output import OutputMode, result_stream
from engine.errors import Code, SqlError
from engine.node.statements.reads_key import new_reads_key
from tests.interop.cluster import ENV

ENTRY_OF_2018 = {"distributed_ddl_entry_format_version": "1", "distributed_ddl_task_timeout": "180"}
COLUMNS = "(id UInt64, day Date, name String DEFAULT 'it\\'s \\\\ \\n')"
ENGINE = "MergeTree() PARTITION BY toYYYYMM(day) ORDER BY id"
CREATE = f"CREATE TABLE t ON CLUSTER all {COLUMNS} ENGINE = {ENGINE}"
STATEMENTS = (
    "CREATE DATABASE d ON CLUSTER all",
    CREATE.replace("TABLE t", "TABLE d.t"),
    "ALTER TABLE d.t ON CLUSTER all ADD COLUMN more Nullable(Float64) AFTER day",
    "CREATE VIEW d.v ON CLUSTER all AS SELECT id, name FROM d.t WHERE name != 'x;y'",
    "RENAME TABLE d.t TO d.u ON CLUSTER all",
    "DROP TABLE d.v ON CLUSTER all",
)
SHAPE = (
    "SELECT table, name, type FROM system.columns WHERE database = 'd' ORDER BY table, name "
    "FORMAT TabSeparated"
)
SHAPE_IN_THE_END = """\
u\tday\tDate
u\tid\tUInt64
u\tmore\tNullable(Float64)
u\tname\tString
"""


async def test_statements_of_a_real_server_leave_the_same_schema_on_the_node(start_real, start_node) -> None:
    real = await start_real(2, foreign=1, internal_replication=False)
    node = await start_node(real)

    for sql in STATEMENTS:
        answer = await real.first.query(sql, settings={"distributed_ddl_task_timeout": "180"})
        assert {line.split("\t")[2] for line in answer.splitlines()} == {"0"}, answer
        assert len(answer.splitlines()) == 3

    assert await node.query_text(SHAPE) == SHAPE_IN_THE_END
    for server in real.servers:
        assert await server.query(SHAPE) == SHAPE_IN_THE_END
    await real.all_workers_answer()


async def test_statements_of_the_node_leave_the_same_schema_on_real_servers(start_real, start_node) -> None:
    real = await start_real(2, foreign=1, internal_replication=False)
    node = await start_node(real)

    for sql in STATEMENTS:
        answer = await node.command(sql, settings=ENTRY_OF_2018)
        assert len(answer.splitlines()) == 3, answer

    assert await node.query_text(SHAPE) == SHAPE_IN_THE_END
    for server in real.servers:
        assert await server.query(SHAPE) == SHAPE_IN_THE_END
    await real.all_workers_answer()


async def test_a_default_with_odd_characters_means_the_same_everywhere(start_real, start_node) -> None:
    real = await start_real(1, foreign=1, internal_replication=False)
    node = await start_node(real)

    await node.command(CREATE, settings=ENTRY_OF_2018)

    await node.command("INSERT INTO t (id) VALUES (1)")
    await real.first.query("INSERT INTO t (id) VALUES (1)")
    asked = "SELECT hex(name) FROM t FORMAT TabSeparated"
    wanted = b"it's \\ \n".hex().upper() + "\n"
    assert await node.query_text(asked) == wanted
    assert await real.first.query(asked) == wanted


async def test_a_failure_is_seen_by_the_other_kind_of_initiator(start_real, start_node) -> None:
    real = await start_real(1, foreign=1, internal_replication=False)
    node = await start_node(real)
    await node.command("CREATE TABLE here (a UInt8) ENGINE = Memory")
    await real.first.query("CREATE TABLE there (a UInt8) ENGINE = Memory")

    with pytest.raises(SqlError) as from_real:
        await real.first.query("CREATE TABLE here ON CLUSTER all (a UInt8) ENGINE = Memory")
    with pytest.raises(SqlError) as from_node:
        sql = "CREATE TABLE there ON CLUSTER all (a UInt8) ENGINE = Memory"
        await node.command(sql, settings=ENTRY_OF_2018)

    assert from_real.value.code == from_node.value.code == Code.TABLE_ALREADY_EXISTS
    assert f"There was an error on [{real.foreign[0].host_id.readable}]" in from_real.value.message
    assert f"There was an error on [{real.hosts[0].readable}]" in from_node.value.message
    await real.all_workers_answer()


@pytest.mark.parametrize(
    "mode", [OutputMode.THROW, OutputMode.NULL_STATUS_ON_TIMEOUT, OutputMode.NEVER_THROW]
)
async def test_a_real_server_that_is_down_shows_in_our_output_as_the_mode_says(start_real, mode) -> None:
    real = await start_real(2)
    await real.servers[1].stop()
    entry = await real.submit("CREATE DATABASE d ON CLUSTER all", token="t")
    while (await real.client.status(entry)).outcome(real.hosts[0]).state is not HostState.DONE:
        await ENV.sleep(0.01)

    rows, error = [], None
    try:
        async for row in result_stream(real.keeper, ENV, real.queue.paths, entry, mode=mode, timeout_s=2):
            rows.append((row.port, row.status))
    except SqlError as raised:
        error = raised

    up, down = (host.port for host in real.hosts)
    if mode is OutputMode.THROW:
        assert rows == [(up, 0)]
        assert error is not None and error.code == Code.TIMEOUT_EXCEEDED
        assert "is not finished on 1 of 2 hosts" in error.message
    else:
        assert rows == [(up, 0), (down, None)]
        assert error is None
    await real.servers[1].start()
    await real.all_workers_answer()


async def test_a_real_server_takes_the_key_of_a_nodes_reads(start_real) -> None:
    """It says so of a parameter that it does not know, and of a `quota_key` without keyed quotas."""
    real = await start_real(1, foreign=0, internal_replication=False)
    settings = {"session_timeout": new_reads_key(ENV), "default_format": "TSV"}
    assert await real.first.query("SELECT 1", settings=settings) == "1\n"
