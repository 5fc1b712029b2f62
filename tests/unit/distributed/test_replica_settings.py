"""Settings that choose a replica, or leave out a shard: of SELECT, of INSERT, and of what is sent later."""

from __future__ import annotations

import errno

import pytest

from engine.distributed.spool_disk import LocalDisk
from engine.errors import Code, OnclusterError, SqlError
from engine.names import HostId
from tests.unit.distributed.test_select_replicas import HERE, NO_FALLBACK, Open, reading, served

pytestmark = pytest.mark.slow

__all__ = ["reading", "served"]

IN_ORDER = {"load_balancing": "in_order"}
FOREGROUND = {"distributed_foreground_insert": "1"}
SKIP = {"skip_unavailable_shards": "1"}
TWO = HostId("127.0.0.2", 9000)


@pytest.mark.parametrize("offset", [0, 1, 2])
async def test_rows_that_are_sent_later_go_to_the_replica_that_their_insert_prefers(
    reading: Open, offset: int
) -> None:
    async with reading(2, 3, 4) as one:
        first = {"load_balancing": "first_or_random", "load_balancing_first_offset": str(offset)}
        for row in range(4):
            await one.ask(f"INSERT INTO d VALUES ({row})", first)
            await one.ask("SYSTEM FLUSH DISTRIBUTED d")
        assert [number for number, _ in one.replicas.inserted] == [2 + offset] * 4
        assert not one.replicas.inserted[0][1] & first.keys(), "an old server knows them not"


async def test_a_pending_insert_prefers_this_node_unless_it_said_otherwise(reading: Open) -> None:
    async with reading(2, HERE) as one:
        await one.ask("INSERT INTO d VALUES (1)", {**IN_ORDER, "prefer_localhost_replica": "0"})
        await one.ask("SYSTEM FLUSH DISTRIBUTED d")
        assert [number for number, _ in one.replicas.inserted] == [2]


async def test_an_insert_avoids_a_replica_that_a_select_could_not_reach(reading: Open) -> None:
    async with reading(2, 3) as one:
        one.replicas.hanging_up = {2}
        assert await one.who_is_read(IN_ORDER) == 3
        assert one.node.failures_of(TWO)[0] == 1
        one.replicas.hanging_up = set()
        await one.ask("INSERT INTO d VALUES (1)", IN_ORDER | FOREGROUND)
        assert [number for number, _ in one.replicas.inserted] == [3]


async def test_a_select_avoids_a_replica_that_an_insert_lost(reading: Open) -> None:
    async with reading(2, 3) as one:
        one.replicas.hanging_up = {2}
        with pytest.raises(OnclusterError):
            await one.ask("INSERT INTO d VALUES (1)", IN_ORDER | FOREGROUND)
        assert one.node.failures_of(TWO)[0] == 1
        one.replicas.hanging_up = set()
        assert await one.who_is_read(IN_ORDER) == 3
        one.clock.at_s += 60
        assert await one.who_is_read(IN_ORDER) == 2


@pytest.mark.parametrize("sql", ["SELECT count() FROM d", "INSERT INTO d VALUES (1)"])
async def test_an_unknown_policy_is_refused(reading: Open, sql: str) -> None:
    async with reading(2, 3) as one:
        for settings in ({"load_balancing": "nearest"}, {"load_balancing": "nearest", **FOREGROUND}):
            with pytest.raises(SqlError, match=r"Must be one of .*'nearest_hostname'") as refused:
                await one.ask(sql, settings)
            assert refused.value.code == Code.UNKNOWN_LOAD_BALANCING
        assert one.replicas.inserted == []


async def test_this_nodes_own_table_is_not_preferred_where_the_statement_says_so(reading: Open) -> None:
    async with reading(2, HERE) as one:
        assert await one.who_is_read(IN_ORDER) == HERE
        assert await one.who_is_read(IN_ORDER | {"prefer_localhost_replica": "0"}) == 2
        assert await one.who_is_read(IN_ORDER) == HERE


@pytest.mark.parametrize("numbers", [(2, 3), (2,), (HERE, 2)])
async def test_a_shard_of_stale_replicas_that_may_not_be_read_is_left_out(
    reading: Open, numbers: tuple[int, ...]
) -> None:
    async with reading(*numbers) as one:
        one.replicas.delays_s = dict.fromkeys(numbers, 300)
        assert await one.who_is_read(NO_FALLBACK | SKIP) == 0
        assert await one.who_is_read(SKIP) in numbers


async def test_this_nodes_own_stale_table_is_an_error_if_there_is_no_other(reading: Open) -> None:
    async with reading(HERE) as one:
        one.replicas.delays_s = {HERE: 300}
        with pytest.raises(SqlError) as stale:
            await one.who_is_read(NO_FALLBACK | SKIP)
        assert stale.value.code == Code.ALL_REPLICAS_ARE_STALE


async def test_a_table_may_say_itself_that_shards_may_be_left_out(reading: Open) -> None:
    async with reading(2) as one:
        engine = "ENGINE = Distributed(c, default, t, k)"
        await one.ask(f"CREATE TABLE lax (k UInt64) {engine} SETTINGS skip_unavailable_shards = 1")
        one.replicas.hanging_up = {2}
        assert await one.ask("SELECT count() FROM lax") == "0\n"
        with pytest.raises(SqlError) as strict:
            await one.ask("SELECT count() FROM d")
        assert strict.value.code == Code.ALL_CONNECTION_TRIES_FAILED


async def test_a_shard_without_the_table_is_left_out_unless_the_mode_says_otherwise(reading: Open) -> None:
    async with reading(2) as one:
        mode = "skip_unavailable_shards_mode"
        clause = f"SETTINGS skip_unavailable_shards = 1, {mode} = 'unavailable'"
        await one.ask(f"CREATE TABLE strict (k UInt64) ENGINE = Distributed(c, default, t, k) {clause}")
        assert clause in await one.ask("SHOW CREATE TABLE strict FORMAT TSVRaw")
        one.replicas.without_table = {2}
        with pytest.raises(SqlError, match="Make the table there") as nobody:
            await one.who_is_read({})
        assert nobody.value.code == Code.ALL_CONNECTION_TRIES_FAILED
        assert await one.who_is_read(SKIP) == 0
        assert await one.who_is_read({**SKIP, mode: "unavailable_or_table_missing"}) == 0
        for sql, settings in (
            ("SELECT count() FROM d", {**SKIP, mode: "unavailable"}),
            ("SELECT count() FROM strict", {}),
        ):
            with pytest.raises(SqlError) as no_table:
                await one.ask(sql, settings)
            assert no_table.value.code == Code.UNKNOWN_TABLE
        one.replicas.hanging_up, one.replicas.without_table = {2}, set()
        assert await one.ask("SELECT count() FROM strict") == "0\n"


MODE = "skip_unavailable_shards_mode"
ANY_ERROR = {**SKIP, MODE: "unavailable_or_exception_before_processing"}


@pytest.mark.parametrize("sql", ["SELECT count() FROM d", "SELECT k FROM d"])
async def test_a_shard_whose_replicas_all_answer_with_an_error_may_be_left_out(
    reading: Open, sql: str
) -> None:
    async with reading(2, 3) as one:
        none = "0\n" if "count" in sql else ""
        one.replicas.failing = {2, 3}
        for settings in (SKIP, {MODE: ANY_ERROR[MODE]}):
            with pytest.raises(SqlError, match="Cannot parse string 'x'"):
                await one.ask(sql, settings)
        assert await one.ask(sql, ANY_ERROR) == none
        one.replicas.failing, one.replicas.denying = {2}, {3}
        assert await one.ask(sql, ANY_ERROR) == none
        one.replicas.denying = set()
        assert await one.who_is_read({**ANY_ERROR, "load_balancing": "in_order"}) == 3


async def test_a_mode_that_is_not_there_is_refused(reading: Open) -> None:
    async with reading(2) as one:
        for sql, settings in (
            ("SELECT count() FROM d", {**SKIP, MODE: "sometimes"}),
            (
                f"CREATE TABLE e (k UInt8) ENGINE = Distributed(c, default, t) SETTINGS {MODE} = 'sometimes'",
                {},
            ),
        ):
            with pytest.raises(SqlError) as refused:
                await one.ask(sql, settings)
            assert refused.value.code == Code.BAD_ARGUMENTS


@pytest.mark.parametrize("name", ["insert_distributed_timeout", "distributed_background_insert_timeout"])
async def test_a_foreground_insert_that_takes_longer_than_it_may_says_what_was_written(
    reading: Open, name: str
) -> None:
    async with reading(2, 3) as one:

        def five_seconds() -> None:
            one.clock.at_s += 5

        one.replicas.on_insert = five_seconds
        for limit in ("0", "6"):
            await one.ask("INSERT INTO d VALUES (1)", FOREGROUND | {name: limit})
        with pytest.raises(SqlError, match="Wrote 1 blocks and 1 rows on shard 1") as late:
            await one.ask("INSERT INTO d VALUES (1)", FOREGROUND | {name: "4"})
        assert late.value.code == Code.TIMEOUT_EXCEEDED


async def test_an_insert_that_cannot_be_kept_says_what_was_written_on_this_node(
    reading: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with reading(HERE, 2) as one:
        await one.ask("CREATE TABLE two (k UInt64) ENGINE = Distributed(copies, default, t)")

        def append(disk: LocalDisk, path: str, data: bytes) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(LocalDisk, "append", append)
        with pytest.raises(
            SqlError, match=r"No space left on device\. 2 rows were written on this node"
        ) as full:
            await one.ask("INSERT INTO two VALUES (1), (2)")
        assert full.value.code == Code.NOT_ENOUGH_SPACE
        assert [number for number, _ in one.replicas.inserted] == [HERE]


async def test_errors_of_the_spools_disk_are_errors_of_the_statement(reading: Open) -> None:
    async with reading(2) as one:
        one.replicas.hanging_up = {2}
        await one.ask("INSERT INTO d VALUES (1)")
        [directory] = one.pool.path.parent.rglob("shard1_all_replicas")
        directory.rename(directory.with_name("away"))
        directory.write_text("no directory")
        with pytest.raises(
            SqlError, match=r"Cannot send the rows that wait for default\.d: Not a directory"
        ) as no:
            await one.ask("SYSTEM FLUSH DISTRIBUTED d")
        assert no.value.code == Code.STD_EXCEPTION
        with pytest.raises(SqlError, match="Cannot keep rows for a Distributed table: Not a directory") as no:
            await one.ask("INSERT INTO d VALUES (1)")
        assert no.value.code == Code.STD_EXCEPTION
        await one.ask("DROP TABLE d")


async def test_what_waits_in_a_detached_database_outlives_the_drop_of_another(reading: Open) -> None:
    async with reading(2) as one:
        for sql in ("DATABASE gone", "DATABASE away", "TABLE away.d AS default.d"):
            await one.ask(f"CREATE {sql}")
        await one.ask("SYSTEM STOP DISTRIBUTED SENDS away.d")
        await one.ask("INSERT INTO away.d VALUES (1)")
        for sql in ("DETACH DATABASE away", "DROP DATABASE gone", "ATTACH DATABASE away"):
            await one.ask(sql)
        await one.ask("SYSTEM FLUSH DISTRIBUTED away.d")
        assert [number for number, _ in one.replicas.inserted] == [2]
        await one.ask("DROP DATABASE away")
        assert len(one.node.tables.catalog.all()) == 1
