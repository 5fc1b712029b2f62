"""A standby cluster: what it lacks, and how far the switch to it has come."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from engine.client.node_client import QueryRows
from engine.config.model import Cluster, NodeConfig, Replica, Shard, Topology
from engine.ddl.entry import DDLLogEntry
from engine.errors import SqlError
from engine.keeper.recipes import create_ancestors
from engine.names import HostId, TableName
from engine.operations.drift.model import Schemas
from engine.operations.records import Records
from engine.operations.site import Site
from engine.operations.standby import DataDepth, StepState, check_standby, switch_steps
from engine.operations.standby.data import partitions_of
from engine.operations.standby.model import PartitionSum, TableData
from tests.unit.migrations.ledger_support import write_ledger
from tests.unit.operations.support import simulated
from tests.unit.schema_support import FakeServer

TABLE = "CREATE TABLE d.t (`a` Int32, `n` Nullable(String)) ENGINE = {} ORDER BY a"
FAR = "CREATE TABLE d.far (`a` Int32) ENGINE = Distributed('{}', 'd', 't', a)"


class Server(FakeServer):
    """Also has rows: `rows` maps a partition to (count, hash). `system` are rows of other system tables."""

    def __init__(self, cluster, rows, *, identity="", **fields):
        tables = {
            "d.t": ("MergeTree", TABLE.format("MergeTree")),
            "d.far": ("Distributed", FAR.format(cluster)),
        }
        super().__init__(**({"tables": tables} | fields))
        self.rows_of_t = rows
        self.identity = identity
        self.inserts = 0
        self.spool = ()
        self.buffered = 0
        self.knows_spools = True
        self.queue_size = 0
        self.asked = []

    async def query_rows(self, sql, **how):
        self.asked.append(sql)
        if self.is_down:
            return await super().query_rows(sql, **how)
        if "now64" in sql:
            return QueryRows((), ((0,),))
        if "serverUUID" in sql:
            return QueryRows((), ((self.identity,),))
        if "arrayStringConcat" in sql:
            return QueryRows((), (("shard=1",),))
        if "hostName" in sql:
            raise SqlError(46, "Unknown function hostName")
        if "system.processes" in sql:
            return QueryRows((), ((self.inserts,),))
        if "modification_time" in sql:
            return QueryRows((), ((1, sum(count for count, _ in self.rows_of_t.values()), 7),))
        if "FROM system.columns" in sql and "default_kind" in sql:
            return QueryRows((), (("a", "Int32", ""), ("n", "Nullable(String)", ""), ("c", "Int32", "ALIAS")))
        if "has_lightweight_delete" in sql or "asynchronous_inserts" in sql:
            return QueryRows((), ((0,),))
        if "StorageBufferRows" in sql:
            return QueryRows((), ((self.buffered,),))
        if "FROM system.parts" in sql:
            return QueryRows((), tuple((name, str(count)) for name, (count, _) in self.rows_of_t.items()))
        if "_partition_id" in sql:
            return QueryRows((), tuple((name, *sums) for name, sums in self.rows_of_t.items()))
        if "FROM system.columns" in sql:
            wanted = re.findall(r"'(\w+)'", sql)
            names = {
                "mutations": ["mutation_id", "is_done"],
                "replicas": ["database", "table", "zookeeper_path", "replica_name", "queue_size"],
                "distribution_queue": ["database", "table", "data_path", "data_files", "broken_data_files"],
            }
            if not self.knows_spools:
                del names["distribution_queue"]
            rest = await super().query_rows(sql, **how)
            more = [(of, name) for of, columns in names.items() if of in wanted for name in columns]
            return QueryRows(rest.columns, tuple(dict.fromkeys((*rest.rows, *more))))
        if "FROM system.distribution_queue" in sql:
            return self._aliased(sql, self.spool)
        if "FROM system.mutations" in sql:
            return self._aliased(sql, [])
        if "FROM system.replicas" in sql and "AS" in sql:
            row = {"database": "d", "table": "r", "zookeeper_path": "/r", "replica_name": "x"}
            return self._aliased(sql, [row | {"queue_size": self.queue_size}] if self.queue_size else [])
        return await super().query_rows(sql, **how)

    @staticmethod
    def _aliased(sql, rows):
        names = re.findall(r"AS `_(\w+)`", sql)
        return QueryRows(
            tuple((f"_{name}", "String") for name in names),
            tuple(tuple(row[name] for name in names) for row in rows),
        )


def a_site(tmp_path, env, keeper, cluster, clients):
    """One host per shard."""
    shards = tuple(
        Shard(number, (Replica(host.host, host.port),), internal_replication=True)
        for number, host in enumerate(clients, start=1)
    )
    from engine.config.model import DistributedDdl

    config = NodeConfig(
        path="unused",
        topology=Topology(clusters={cluster: Cluster(cluster, shards)}),
        queues=(DistributedDdl(),),
    )
    return Site(
        cluster,
        config,
        Records(tmp_path / f"{cluster}.db", env=env),
        env,
        "ada",
        keeper_or_none=keeper,
        clients=clients,
        patience_s=5.0,
    )


OLD = {HostId("old1", 9000): {"p": (3, 10), "q": (1, 5)}, HostId("old2", 9000): {"p": (2, 2**64 - 1)}}
NEW = {HostId("new1", 9000): {"p": (5, 9), "q": (1, 5)}}
"""The same rows on another number of shards: hashes add up modulo 2^64."""


def clusters(tmp_path, env, keepers, *, old=None, new=None):
    return (
        a_site(
            tmp_path,
            env,
            keepers[0],
            "old",
            {h: Server("old", dict(rows)) for h, rows in (old or OLD).items()},
        ),
        a_site(
            tmp_path,
            env,
            keepers[1],
            "new",
            {h: Server("new", dict(rows), identity="uuid-of-new") for h, rows in (new or NEW).items()},
        ),
    )


def with_clusters(tmp_path, then, **changes):
    async def main(env, server):
        keepers = [await server.connect(), await server.connect()]
        return await then(*clusters(tmp_path, env, keepers, **changes))

    return simulated(main)


def checked(tmp_path, *, depth=DataDepth.HASHES, meddle=None, **changes):
    async def then(old, new):
        if meddle:
            meddle(old, new)
        return await check_standby(old, new, depth=depth)

    return with_clusters(tmp_path, then, **changes)


def first(site):
    return next(iter(site.clients.values()))


def test_another_number_of_shards_and_another_name_are_equal(tmp_path):
    report = checked(tmp_path)
    assert report.is_equal, report.lines
    assert (report.objects, report.tables, report.rows) == (3, 1, 6)


def test_what_an_overlapping_cluster_of_the_primary_makes_is_compared_with_that_one(tmp_path):
    table = ("MergeTree", "CREATE TABLE d.log (`a` Int32) ENGINE = MergeTree ORDER BY a")

    async def then(old, new):
        first(old).tables["d.log"] = table
        without = await check_standby(old, new)
        [host] = list(old.clients)[:1]
        logs = Cluster("logs", (Shard(1, (Replica(host.host, host.port),)),))
        old.config = replace(old.config, topology=Topology({**old.config.topology.clusters, "logs": logs}))
        old.ledger_url = str(tmp_path / "ledger.db")
        write_ledger(tmp_path / "ledger.db", old.env, {host: "done"}, cluster="logs", table="d.log")
        return without, await check_standby(old, new)

    without, report = with_clusters(tmp_path, then)
    assert [str(difference.object) for difference in without.schema] == ["d.log"] and without.problems
    assert report.is_equal, report.lines
    assert [note for note in report.notes if "d.log" in note and "other clusters" in note]


def test_nullable_columns_are_hashed_so_that_null_counts_and_aliases_are_not(tmp_path):
    asked = []

    async def then(old, new):
        report = await check_standby(old, new)
        asked.extend(first(old).asked)
        return report

    with_clusters(tmp_path, then)
    [sql] = [sql for sql in asked if "cityHash64" in sql]
    assert "sum(cityHash64(`a`, isNull(`n`), ifNull(toString(`n`), '')))" in sql and "`c`" not in sql


@pytest.mark.parametrize("rows", [{"p": (5, 8), "q": (1, 5)}, {"p": (4, 9), "q": (1, 5)}, {"p": (5, 9)}])
def test_rows_that_differ_are_named_by_partition(tmp_path, rows):
    report = checked(tmp_path, new={HostId("new1", 9000): rows})
    [difference] = report.data
    assert str(difference.table) == "d.t" and difference.partition == ("q" if len(rows) == 1 else "p")


def test_counts_alone_do_not_read_rows(tmp_path):
    report = checked(tmp_path, depth=DataDepth.COUNTS, new={HostId("new1", 9000): {"p": (5, 0), "q": (1, 0)}})
    assert report.is_equal


def test_a_missing_table_another_column_and_a_silent_host_are_told(tmp_path):
    def meddle(old, new):
        del first(new).tables["d.far"]
        first(new).tables["d.t"] = ("MergeTree", TABLE.format("MergeTree").replace("Int32", "Int64"))
        first(old).is_down = True
        first(new).tables["d.more"] = ("Log", "CREATE TABLE d.more (`a` Int8) ENGINE = Log")

    report = checked(tmp_path, meddle=meddle)
    assert not report.is_equal
    text = "\n".join(report.lines)
    assert "d.far is not on new1:9000 of the standby." in text
    assert "d.t differs on new1:9000 of the standby: column a: wanted `Int32`, found `Int64`" in text
    assert "A host of the primary was not looked at" in text
    assert any("also has d.more" in note for note in report.notes)


def test_rows_that_cannot_be_read_are_a_problem_and_not_equal(tmp_path):
    def meddle(_old, new):
        server = first(new)
        real = server.query_rows

        async def refusing(sql, **how):
            if "_partition_id" in sql:
                raise SqlError(241, "Memory limit exceeded")
            return await real(sql, **how)

        server.query_rows = refusing

    report = checked(tmp_path, meddle=meddle)
    assert not report.is_equal
    assert any("on the standby are not known: Memory limit" in problem for problem in report.problems)


def test_a_server_without_partition_ids_is_compared_as_a_whole():
    table = TableName("d", "t")
    one = TableData(table, {"p": PartitionSum(3, 2**64 - 1), "q": PartitionSum(1, 2)})
    other = TableData(table, {"": PartitionSum(4, 1)})
    assert partitions_of(one, other) == {"": (PartitionSum(4, 1), PartitionSum(4, 1))}
    assert Schemas("c", {}, {}, ()).hosts == {}


# --- the steps --------------------------------------------------------------------------------------------


def steps(tmp_path, *, meddle=None, writers="uuid-of-new", ambiguous=False):
    async def then(old, new):
        client = Server("any", {}, identity=writers) if writers or ambiguous else None
        if ambiguous:
            for server in new.clients.values():
                server.identity = ""
        if meddle:
            await meddle(old, new)
        return await switch_steps(old, new, writers=client, watch_s=1.0)

    return with_clusters(tmp_path, then)


def test_when_all_is_done_every_step_says_so(tmp_path):
    found = steps(tmp_path)
    assert [step.state for step in found] == [StepState.DONE] * 7, found


def test_without_an_address_the_last_step_is_for_people(tmp_path):
    assert steps(tmp_path, writers="")[-1].state is StepState.BY_HAND
    assert steps(tmp_path, writers="another")[-1].state is StepState.OPEN
    # What servers of both clusters answer tells none from another.
    assert steps(tmp_path, writers="", ambiguous=True)[-1].state is StepState.UNKNOWN


async def _insert(old, _new):
    first(old).inserts = 2


async def _write(old, _new):
    server = first(old)

    async def query_rows(sql, real=server.query_rows, **how):
        if "modification_time" in sql:
            server.rows_of_t["p"] = (server.rows_of_t["p"][0] + 1, 0)
        return await real(sql, **how)

    server.query_rows = query_rows


async def _ddl(old, _new):
    path = old.queue.paths.entry("query-0000000000")
    await create_ancestors(old.keeper, path)
    entry = DDLLogEntry(query="SELECT 1", hosts=(HostId("old1", 9000),), version=1)
    await old.keeper.create(path, entry.to_bytes())


async def _queue(old, _new):
    first(old).queue_size = 3


async def _spool(old, _new):
    row = {"database": "d", "table": "far", "data_path": "/x", "data_files": 4, "broken_data_files": 1}
    first(old).spool = [row]


async def _buffer(old, _new):
    first(old).buffered = 7


async def _rows(_old, new):
    first(new).rows_of_t["p"] = (4, 9)


async def _standby_queue(_old, new):
    first(new).queue_size = 1


def test_what_an_old_server_cannot_tell_of_its_spools_is_for_people(tmp_path):
    async def old_servers(old, _new):
        for server in old.clients.values():
            server.knows_spools = False

    found = steps(tmp_path, meddle=old_servers)
    assert found[3].state is StepState.BY_HAND and "cannot tell" in found[3].seen
    assert [step.state for step in found[4:]] == [StepState.DONE] * 3


@pytest.mark.parametrize(
    ("meddle", "number", "seen"),
    [
        (_insert, 1, "old1:9000 runs 2 INSERTs"),
        (_write, 1, "rows in 1 s"),
        (_ddl, 2, "query-0000000000 waits for old1:9000"),
        (_queue, 3, "has 3 entries in its queue"),
        (_spool, 4, "4 files"),
        (_buffer, 4, "old1:9000 has 7 rows in Buffer tables"),
        (_rows, 5, "d.t, partition p"),
        (_standby_queue, 6, "has 1 entry in its queue"),
    ],
)
def test_the_first_step_that_is_not_done_is_open_and_the_later_ones_wait(tmp_path, meddle, number, seen):
    found = steps(tmp_path, meddle=meddle)
    states = [step.state for step in found]
    assert states == [StepState.DONE] * (number - 1) + [StepState.OPEN] + [StepState.LATER] * (7 - number)
    assert seen in found[number - 1].seen
