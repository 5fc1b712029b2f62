"""Databases with the engine Replicated: nodes that were away or are killed, statements that were not
committed, and what differs or is lost; three real nodes, real ZooKeeper."""

from __future__ import annotations

import itertools
import threading
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from engine.databases.digest import LOST_DIGEST
from tests.few import each_in_turn, few_first
from tests.node.http_client import Reply
from tests.node.latch import Latch
from tests.node.replicated_database import CREATE, DEFINITIONS, Three
from tests.node.replicated_pair import eventually, refused, wait_for

pytestmark = pytest.mark.slow


def test_a_node_that_was_away_and_one_that_is_new_get_everything(three: Three) -> None:
    d = three.database(three.n1, three.n2)
    n1, n2, n3 = three.n1, three.n2, three.n3
    n1.query(f"CREATE TABLE {d}.r (k UInt64) ENGINE = ReplicatedMergeTree ORDER BY k")
    n1.query(f"CREATE TABLE {d}.own (k UInt64) ENGINE = MergeTree ORDER BY k")
    n2.query(f"INSERT INTO {d}.own VALUES (9)")
    digest = f"/databases/{d}/replicas/s1|n2/digest"
    before = three.value(digest)
    n1.query(f"ALTER TABLE {d}.r ADD COLUMN w Int8 DEFAULT 4")
    three.call(three.local.node("n2").stop())
    # As if n2 had ended after the table's own ALTER, and before the database knew.
    three.call(three.put(digest, before))
    n1.query(f"INSERT INTO {d}.r (k) VALUES (1)")
    late = n1.post(f"ALTER TABLE {d}.r ADD COLUMN x Int8 DEFAULT 5", distributed_ddl_task_timeout="1")
    refused(late, 159, "is not finished on 1 of 2 hosts")
    answer = n1.query(
        f"CREATE TABLE {d}.p (k UInt64) ENGINE = MergeTree ORDER BY k",
        distributed_ddl_task_timeout="1",
        distributed_ddl_output_mode="null_status_on_timeout",
    )
    assert answer == "s1\tn1\tOK\t1\t0\ns1\tn2\tQUEUED\t1\t0\n"
    n1.query(f"RENAME TABLE {d}.r TO {d}.renamed", distributed_ddl_output_mode="none_only_active")
    # When n2 comes to its CREATE, the table in Keeper has another structure.
    for sql in (
        f"CREATE TABLE {d}.altered (k UInt64) ENGINE = ReplicatedMergeTree ORDER BY k",
        f"ALTER TABLE {d}.altered ADD COLUMN x Int8 DEFAULT 6",
        f"ALTER TABLE {d}.altered MODIFY COMMENT 'altered'",
        f"RENAME TABLE {d}.own TO {d}.own_2",
    ):
        n1.query(sql, distributed_ddl_output_mode="none_only_active")
    n1.query(f"INSERT INTO {d}.altered (k) VALUES (2)")
    n1.query(f"INSERT INTO {d}.p VALUES (4)")
    at_times = "REFRESH EVERY 1 YEAR APPEND ENGINE = MergeTree ORDER BY k"
    n1.query(
        f"CREATE MATERIALIZED VIEW {d}.now_and_then {at_times} AS SELECT 1 AS k",
        distributed_ddl_output_mode="none_only_active",
    )
    n3.query(CREATE.format(d, d))
    n3.query(f"SYSTEM SYNC DATABASE REPLICA {d}")
    n3.query(f"SYSTEM SYNC REPLICA {d}.renamed")
    assert n3.query(f"SELECT k, x FROM {d}.renamed") == "1\t5\n"
    assert n3.query(f"SELECT count() FROM {d}.p") == "0\n", "a plain table's rows are each node's own"
    three.call(three.local.node("n2").start())
    n2.query(f"SYSTEM SYNC DATABASE REPLICA {d}")
    n2.query(f"SYSTEM SYNC REPLICA {d}.renamed")
    assert n2.query(f"SELECT k, w, x FROM {d}.renamed") == "1\t4\t5\n"
    n2.query(f"SYSTEM SYNC REPLICA {d}.altered")
    assert n2.query(f"SELECT k, x FROM {d}.altered") == "2\t6\n"
    assert n2.query(f"SELECT k FROM {d}.own_2") == "9\n", "it has followed the log, not recovered"
    eventually(lambda: len({node.query(DEFINITIONS.format(d)) for node in three.nodes.values()}), 1)
    three.n2.query(f"DROP TABLE {d}.renamed, {d}.altered, {d}.own_2, {d}.now_and_then SYNC")
    assert three.same(f"SHOW TABLES FROM {d}") == "p\n"
    eventually(lambda: len(three.digests(d)), 1)


@pytest.mark.extended
@pytest.mark.parametrize(
    "last",
    [
        "CREATE TABLE {d}.new (k UInt64) ENGINE = MergeTree ORDER BY k",
        "CREATE MATERIALIZED VIEW {d}.new ENGINE = MergeTree ORDER BY k AS SELECT k FROM {d}.own",
        "CREATE OR REPLACE TABLE {d}.p (v String) ENGINE = MergeTree ORDER BY v",
        "ALTER TABLE {d}.p ADD COLUMN x Int8",
        "DROP TABLE {d}.p SYNC",
        "DROP VIEW {d}.v SYNC",
        "DETACH TABLE {d}.p PERMANENTLY",
        "DETACH VIEW {d}.v PERMANENTLY",
    ],
)
def test_what_a_replica_did_last_before_it_was_killed_is_no_reason_to_recover(
    three: Three, last: str
) -> None:
    d = three.database(three.n1, three.n2)
    n1, n2 = three.n1, three.n2
    for name in ("p", "own"):
        n1.query(f"CREATE TABLE {d}.{name} (k UInt64) ENGINE = MergeTree ORDER BY k")
        n2.query(f"INSERT INTO {d}.{name} VALUES (9)")
    n1.query(f"CREATE MATERIALIZED VIEW {d}.v ENGINE = MergeTree ORDER BY k AS SELECT k FROM {d}.own")
    known = {leaf: f"/databases/{d}/replicas/s1|n2/{leaf}" for leaf in ("digest", "log_ptr")}
    before = {path: three.value(path) for path in known.values()}
    n1.query(last.format(d=d))
    entry = f"/databases/{d}/log/{three.children(f'/databases/{d}/log')[-1]}"
    three.call(three.local.node("n2").kill9())
    # As if n2 had ended between the effect and its record.
    for path, value in before.items():
        three.call(three.put(path, value))
    for leaf in ("finished", "synced"):
        three.call(three.without(f"{entry}/{leaf}/s1|n2"))
    n1.query(f"RENAME TABLE {d}.own TO {d}.own_2", distributed_ddl_output_mode="none_only_active")
    three.call(three.local.node("n2").start())
    n2.query(f"SYSTEM SYNC DATABASE REPLICA {d}")
    assert n2.query(f"SELECT k FROM {d}.own_2") == "9\n", "it has followed the log"
    assert n2.query(f"SHOW DATABASES LIKE '{d}_broken%'") == ""
    three.same(DEFINITIONS.format(d), n1, n2)
    eventually(lambda: len(three.digests(d)), 1)


def uncommitted(three: Three, d: str, *statements: str) -> None:
    """As if n1, the only replica, had ended after the effect of the first of these statements, and before its
    commit."""
    root = f"/databases/{d}"
    pointers = [f"{root}/max_log_ptr", f"{root}/replicas/s1|n1/log_ptr", f"{root}/replicas/s1|n1/digest"]
    before = {path: three.value(path) for path in pointers}
    tables = {name: three.value(f"{root}/metadata/{name}") for name in three.children(f"{root}/metadata")}
    for sql in statements:
        three.n1.query(sql)
    entry = f"{root}/log/{three.children(f'{root}/log')[-1]}"
    made = three.children(f"{root}/metadata")
    three.call(three.local.node("n1").kill9())
    for path, value in before.items():
        three.call(three.put(path, value))
    for name in made:
        three.call(three.without(f"{root}/metadata/{name}"))
    for name, text in tables.items():
        three.call(three.make(f"{root}/metadata/{name}", text))
    for leaf in ("committed", "finished/s1|n1", "synced/s1|n1"):
        three.call(three.without(f"{entry}/{leaf}"))
    three.call(three.local.node("n1").start())
    three.n1.query(f"SYSTEM SYNC DATABASE REPLICA {d}")


@pytest.mark.parametrize("engine", few_first(["ReplicatedMergeTree", "MergeTree"], few=1))
def test_rows_of_an_attach_that_was_not_committed_are_where_they_were(three: Three, engine: str) -> None:
    d = three.database(three.n1)
    three.n1.query(f"CREATE TABLE {d}.p (k UInt64) ENGINE = {engine} ORDER BY k")
    three.n1.query(f"INSERT INTO {d}.p VALUES (1)")
    three.n1.query(f"DETACH TABLE {d}.p PERMANENTLY")
    uncommitted(three, d, f"ATTACH TABLE {d}.p")
    assert three.n1.query(f"SHOW TABLES FROM {d}") == ""
    assert three.n1.query(f"SHOW DATABASES LIKE '{d}_broken%'") == ""
    three.n1.query(f"ATTACH TABLE {d}.p")
    assert three.n1.query(f"SELECT k FROM {d}.p") == "1\n"


@pytest.mark.parametrize(
    "create",
    few_first(
        [
            "CREATE TABLE {d}.p (k UInt64) ENGINE = ReplicatedMergeTree ORDER BY k",
            "CREATE MATERIALIZED VIEW {d}.p ENGINE = MergeTree ORDER BY k AS SELECT k FROM {d}.own",
            "CREATE TABLE {d}.p (k UInt64) ENGINE = MergeTree ORDER BY k",
            "CREATE TABLE {d}.p (k UInt64) ENGINE = Log",
        ],
        few=2,
    ),
)
def test_of_a_table_that_was_not_committed_only_rows_are_kept(three: Three, create: str) -> None:
    d = three.database(three.n1)
    three.n1.query(f"CREATE TABLE {d}.own (k UInt64) ENGINE = MergeTree ORDER BY k")
    uncommitted(three, d, create.format(d=d))
    assert three.n1.query(f"SHOW TABLES FROM {d}") == "own\n"
    assert three.n1.query(f"SHOW DATABASES LIKE '{d}_broken%'") == ""
    source = "own" if "VIEW" in create else "p"
    uncommitted(three, d, create.format(d=d), f"INSERT INTO {d}.{source} VALUES (1)")
    assert three.n1.query(f"SHOW TABLES FROM {d}") == "own\n"
    [broken] = three.n1.query(f"SHOW DATABASES LIKE '{d}_broken%'").split()
    [name] = three.n1.query(f"SHOW TABLES FROM {broken} LIKE 'p%'").split()
    assert three.n1.query(f"SELECT k FROM {broken}.{name}") == "1\n"
    three.n1.query(f"INSERT INTO {d}.own VALUES (2)")
    assert three.n1.query(f"SELECT k FROM {broken}.{name}") == "1\n", "no view takes anything there"


def test_rows_of_a_view_whose_replacement_was_not_committed_come_back(three: Three) -> None:
    """chDB has dropped the view's table, and keeps it for some minutes, in which no other has its UUID."""
    d = three.database(three.n1)
    three.n1.query(f"CREATE TABLE {d}.own (k UInt64) ENGINE = MergeTree ORDER BY k")
    view = f"MATERIALIZED VIEW {d}.v ENGINE = MergeTree ORDER BY k AS SELECT k FROM {d}.own"
    three.n1.query(f"CREATE {view}")
    three.n1.query(f"INSERT INTO {d}.own VALUES (1)")
    before = three.n1.query(DEFINITIONS.format(d))
    uncommitted(three, d, f"CREATE OR REPLACE {view} WHERE k > 1")
    assert three.n1.query(DEFINITIONS.format(d)) == before
    three.n1.query(f"INSERT INTO {d}.own VALUES (0)")
    assert three.n1.query(f"SELECT k FROM {d}.v ORDER BY k") == "0\n1\n"


@pytest.mark.parametrize("engine", few_first(["MergeTree", "ReplicatedMergeTree"], few=1))
def test_a_view_that_differs_is_made_anew_over_the_table_that_it_has(three: Three, engine: str) -> None:
    d = three.database(three.n1, three.n2)
    three.n1.query(f"CREATE TABLE {d}.own (k UInt64) ENGINE = MergeTree ORDER BY k")
    select = f"SELECT k FROM {d}.own"
    three.n1.query(f"CREATE MATERIALIZED VIEW {d}.v ENGINE = {engine} ORDER BY k AS {select}")
    three.n2.query(f"INSERT INTO {d}.own VALUES (1)")
    three.call(three.local.node("n2").kill9())
    alter = f"ALTER TABLE {d}.v MODIFY QUERY {select} WHERE k > 1"
    three.n1.query(alter, distributed_ddl_output_mode="none_only_active")
    three.call(three.put(f"/databases/{d}/replicas/s1|n2/digest", LOST_DIGEST.decode()))
    three.call(three.local.node("n2").start())
    three.n2.query(f"SYSTEM SYNC DATABASE REPLICA {d}")
    three.same(DEFINITIONS.format(d), three.n1, three.n2)
    three.n2.query(f"INSERT INTO {d}.own VALUES (0), (2)")
    assert three.n2.query(f"SELECT k FROM {d}.v ORDER BY k") == "1\n2\n"
    assert three.n2.query(f"SHOW DATABASES LIKE '{d}_broken%'") == ""


@pytest.mark.parametrize("engine", few_first(["ReplicatedMergeTree", "MergeTree"], few=1))
def test_the_table_of_a_view_that_is_detached_stays_with_its_rows(three: Three, engine: str) -> None:
    d = three.database()
    three.n1.query(f"CREATE TABLE {d}.own (k UInt64) ENGINE = MergeTree ORDER BY k")
    select = f"SELECT k FROM {d}.own"
    three.n1.query(f"CREATE MATERIALIZED VIEW {d}.v ENGINE = {engine} ORDER BY k AS {select}")
    three.n1.query(f"INSERT INTO {d}.own VALUES (1)")
    three.n1.query(f"DETACH VIEW {d}.v PERMANENTLY")
    eventually(lambda: len(three.digests(d)), 1)
    assert sorted(three.children(f"/databases/{d}/metadata")) != ["own"], "chDB has its table, too"
    three.call(three.local.node("n1").restart())
    three.n1.query(f"SYSTEM SYNC DATABASE REPLICA {d}")
    assert three.n1.query(f"SHOW DATABASES LIKE '{d}_broken%'") == ""
    three.n2.query(f"ATTACH TABLE {d}.v")
    assert three.n1.query(f"SELECT k FROM {d}.v") == "1\n"
    three.same(DEFINITIONS.format(d))
    eventually(lambda: len(three.digests(d)), 1)
    assert len(three.children(f"/databases/{d}/metadata")) == 3


def test_a_replica_that_differs_is_put_right_and_nothing_with_rows_is_lost(three: Three) -> None:
    d = three.database()
    for name in ("changed", "kept"):
        three.n1.query(f"CREATE TABLE {d}.{name} (k UInt64) ENGINE = MergeTree ORDER BY k")
    three.n1.query(f"CREATE VIEW {d}.v AS SELECT 1 AS one")
    for name in ("changed", "kept"):
        three.n3.query(f"INSERT INTO {d}.{name} VALUES (3)")
    three.call(three.local.node("n3").stop())
    directory = three.local.directory / "nodes/n3/data/metadata" / d
    file = directory / "changed.sql"
    file.write_text(file.read_text().replace("`k` UInt64", "`k` UInt64,\n    `own` Int8"))
    three.call(three.local.node("n3").start())
    three.n3.query(f"SYSTEM SYNC DATABASE REPLICA {d}")
    three.same(DEFINITIONS.format(d))
    [moved] = three.n3.query(f"SHOW TABLES FROM {d}_broken_tables").split()
    assert moved.startswith("changed_")
    assert three.n3.query(f"SELECT k FROM {d}_broken_tables.{moved}") == "3\n"
    assert three.n3.query(f"SELECT k FROM {d}.kept") == "3\n"
    assert three.n3.query(f"SELECT count() FROM {d}.changed") == "0\n"
    eventually(lambda: len(three.digests(d)), 1)


def test_a_killed_initiator_leaves_the_same_everywhere(three: Three) -> None:
    d = three.database()
    three.n1.query(f"CREATE TABLE {d}.kept (k UInt64) ENGINE = MergeTree ORDER BY k")
    three.n1.query(f"INSERT INTO {d}.kept VALUES (1)")

    def work() -> None:
        """Until the node is gone."""
        for n in itertools.count():
            statements = (
                f"CREATE TABLE {d}.t{n} (k UInt64) ENGINE = ReplicatedMergeTree ORDER BY k",
                f"ALTER TABLE {d}.kept ADD COLUMN c{n} Int8",
                f"RENAME TABLE {d}.t{n} TO {d}.u{n}",
                f"ALTER TABLE {d}.u{n} ADD COLUMN c Int8",
                f"DROP TABLE {d}.u{n} SYNC" if n % 2 else f"TRUNCATE TABLE {d}.u{n}",
            )
            for sql in statements:
                try:
                    three.n1.post(sql, distributed_ddl_output_mode="none_only_active")
                except OSError:
                    return

    for statements_before in (7, 16):
        worker = threading.Thread(target=work)
        worker.start()
        before = len(three.children_by(three.n2, f"/databases/{d}/log"))
        wait_for(
            lambda before=before, more=statements_before: (  # type: ignore[misc]
                len(three.children_by(three.n2, f"/databases/{d}/log")) >= before + more
            )
        )
        three.call(three.local.node("n1").kill9())
        worker.join()
        three.call(three.local.node("n1").start())
        for node in three.nodes.values():
            node.query(f"SYSTEM SYNC DATABASE REPLICA {d}")
        for name in three.n2.query(f"SHOW TABLES FROM {d} LIKE '%u%'").split():
            for node in three.nodes.values():  # 242 until the replica is active
                sync = f"SYSTEM SYNC REPLICA {d}.{name}"
                eventually(lambda node=node, sync=sync: node.post(sync).code, 0)  # type: ignore[misc]
        eventually(lambda: len({node.query(DEFINITIONS.format(d)) for node in three.nodes.values()}), 1)
        eventually(lambda: len(three.digests(d)), 1)
    assert three.n1.query(f"SELECT k FROM {d}.kept") == "1\n", "no table was moved aside"


def begin_to_replace(
    three: Three, latch: Latch, *, old: str = "MergeTree", new: str = "MergeTree"
) -> tuple[str, str, Future[Reply]]:
    """A CREATE OR REPLACE whose SELECT waits, and which cannot be committed any more: the database, the UUID
    of the table `p` with a row in it, the answer to come."""
    d = three.database()
    three.n1.query(f"CREATE TABLE {d}.p (k UInt64) ENGINE = {old} ORDER BY k")
    three.n1.query(f"INSERT INTO {d}.p VALUES (1)")
    before = uuid_of_p(three, d)
    pool = ThreadPoolExecutor(1)
    select = f"SELECT s FROM {latch.rows}"
    sql = f"CREATE OR REPLACE TABLE {d}.p (s UInt64) ENGINE = {new} ORDER BY s AS {select}"
    reply = pool.submit(three.n1.post, sql, database_replicated_allow_heavy_create="1")
    pool.shutdown(wait=False)
    assert latch.is_asked.wait(120)
    entry = f"/databases/{d}/log/{three.children(f'/databases/{d}/log')[-1]}"
    three.call(three.without(f"{entry}/try"))
    return d, before, reply


def uuid_of_p(three: Three, d: str) -> str:
    return three.n1.query(f"SELECT uuid FROM system.tables WHERE database = '{d}' AND name = 'p'")


@pytest.mark.parametrize(
    ("old", "new"),
    each_in_turn(["MergeTree", "ReplicatedMergeTree"], ["ReplicatedMergeTree", "MergeTree"]),
)
def test_rows_of_a_table_whose_replacement_was_not_committed_stay(
    three: Three, latch: Latch, old: str, new: str
) -> None:
    d, before, reply = begin_to_replace(three, latch, old=old, new=new)
    latch.go.set()
    refused(reply.result(), 571, "was not committed")
    assert (uuid_of_p(three, d), three.n1.query(f"SELECT k FROM {d}.p")) == (before, "1\n")
    three.same(DEFINITIONS.format(d))
    if old == "ReplicatedMergeTree":
        three.n2.query(f"INSERT INTO {d}.p VALUES (2)")
        three.n1.query(f"SYSTEM SYNC REPLICA {d}.p")
        assert three.n1.query(f"SELECT k FROM {d}.p ORDER BY k") == "1\n2\n"
    three.n1.query(f"CREATE OR REPLACE TABLE {d}.p (s UInt64) ENGINE = {new} ORDER BY s")
    assert uuid_of_p(three, d) != before
    three.same(DEFINITIONS.format(d))
    assert three.n1.query(f"SELECT count() FROM {d}.p") == "0\n"
    refused(three.n1.post(f"CREATE OR REPLACE TABLE {d}.p (s UInt64) ENGINE = MergeTree ORDER BY z"), 47)
    assert three.same(f"SHOW DATABASES LIKE '{d}%'") == f"{d}\n"  # the others had nothing to move aside
    assert "_oncluster_replaced" not in three.n1.query("SHOW DATABASES")
    eventually(lambda: len(three.digests(d)), 1)


@pytest.mark.parametrize("old", few_first(["MergeTree", "ReplicatedMergeTree"], few=1))
def test_a_replicated_table_that_replaces_rows_is_where_its_own_database_says(three: Three, old: str) -> None:
    d = three.database()
    three.n1.query(f"CREATE TABLE {d}.p (k UInt64) ENGINE = {old} ORDER BY k")
    three.n1.query(f"INSERT INTO {d}.p VALUES (1)")
    place = "'/of/{database}/{table}/{uuid}/{shard}', '{replica}'"
    three.n1.query(
        f"CREATE OR REPLACE TABLE {d}.p (k UInt64) ENGINE = ReplicatedMergeTree({place}) ORDER BY k",
        database_replicated_allow_replicated_engine_arguments="1",
    )
    where = f"FROM system.replicas WHERE database = '{d}' AND table = 'p'"
    path = f"/of/{d}/p/{uuid_of_p(three, d).strip()}/s1"
    assert three.same(f"SELECT zookeeper_path {where}") == f"{path}\n"
    assert sorted(three.children(f"{path}/replicas")) == ["n1", "n2", "n3"]
    three.n2.query(f"INSERT INTO {d}.p VALUES (2)")
    three.n1.query(f"SYSTEM SYNC REPLICA {d}.p")
    assert three.n1.query(f"SELECT k FROM {d}.p") == "2\n"


def test_a_distributed_table_replaces_one_with_rows_and_is_replaced_by_one(three: Three) -> None:
    d = three.database()
    three.n1.query(f"CREATE TABLE {d}.p (k UInt64) ENGINE = MergeTree ORDER BY k")
    three.n1.query(f"CREATE TABLE {d}.q (k UInt64) ENGINE = ReplicatedMergeTree ORDER BY k")
    three.n1.query(f"INSERT INTO {d}.p VALUES (1)")
    three.n1.query(f"CREATE OR REPLACE TABLE {d}.p (k UInt64) ENGINE = Distributed({d}, {d}, q)")
    three.n2.query(f"INSERT INTO {d}.p VALUES (2)", distributed_foreground_insert="1")
    three.synced(f"{d}.q")  # each node reads its own replica
    assert three.same(f"SELECT k FROM {d}.p") == "2\n"
    three.n1.query(f"CREATE OR REPLACE TABLE {d}.p (k UInt64) ENGINE = MergeTree ORDER BY k")
    assert three.same(f"SELECT count() FROM {d}.p") == "0\n"
    three.same(DEFINITIONS.format(d))
    assert "_oncluster_replaced" not in three.n1.query("SHOW DATABASES")


@pytest.mark.parametrize("old", few_first(["ReplicatedMergeTree", "MergeTree"], few=1))
def test_rows_come_back_after_a_kill_between_replacement_and_commit(
    three: Three, latch: Latch, old: str
) -> None:
    d, before, reply = begin_to_replace(three, latch, old=old)
    three.local.zookeeper.pause()
    try:
        latch.go.set()
        wait_for(lambda: uuid_of_p(three, d) != before)
        three.call(three.local.node("n1").kill9())
    finally:
        three.local.zookeeper.resume()
    with pytest.raises(OSError):
        reply.result()
    three.call(three.local.node("n1").start())
    three.n1.query(f"SYSTEM SYNC DATABASE REPLICA {d}")
    assert (uuid_of_p(three, d), three.n1.query(f"SELECT k FROM {d}.p")) == (before, "1\n")
    three.same(DEFINITIONS.format(d))
    assert "_oncluster_replaced" not in three.n1.query("SHOW DATABASES")
    eventually(lambda: len(three.digests(d)), 1)


def test_definitions_that_keeper_has_lost_are_restored(three: Three) -> None:
    d = three.database()
    three.n1.query(f"CREATE TABLE {d}.p (k UInt64) ENGINE = MergeTree ORDER BY k")
    three.n1.query(f"INSERT INTO {d}.p VALUES (1)")
    three.call(three.without(f"/databases/{d}"))
    assert d not in three.children("/databases")
    eventually(lambda: three.n1.post(f"CREATE TABLE {d}.q (k UInt64) ENGINE = Memory").code, 225)
    for node in three.nodes.values():
        node.query(f"SYSTEM RESTORE DATABASE REPLICA {d}")
        node.query(f"SYSTEM SYNC DATABASE REPLICA {d}")
    three.n2.query(f"CREATE TABLE {d}.q (k UInt64) ENGINE = Memory")
    assert three.same(f"SHOW TABLES FROM {d}") == "p\nq\n"
    three.same(DEFINITIONS.format(d))
    assert three.n1.query(f"SELECT k FROM {d}.p") == "1\n"
    eventually(lambda: len(three.digests(d)), 1)
