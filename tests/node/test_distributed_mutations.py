"""Mutations whose subqueries read Distributed tables, on real nodes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.few import few_first
from tests.node.distributed_cluster import Cluster, fill_events, refused, running_cluster

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("mutations")) as cluster:
        fill_events(cluster)
        yield cluster


KEPT = "(id UInt64, s UInt8) ENGINE = {} ORDER BY id"
BLOCKS = " SETTINGS enable_block_number_column = 1, enable_block_offset_column = 1"
SOURCES = ["events_d", "seen", "default.events_d", "merge('^events_d$')"]


@pytest.mark.parametrize("engine", few_first(["ReplicatedMergeTree('/t/kept', 'r')", "MergeTree"], few=1))
@pytest.mark.parametrize("source", few_first(SOURCES, few=2))
def test_mutations_read_distributed_tables_in_their_subqueries(
    cluster: Cluster, engine: str, source: str
) -> None:
    ask = cluster.n1.query
    ask("CREATE VIEW IF NOT EXISTS seen AS SELECT id FROM events_d")
    ask(f"CREATE TABLE kept {KEPT.format(engine)}{BLOCKS}")
    ask("INSERT INTO kept SELECT 1995 + number, 0 FROM numbers(10)")
    ids = f"(SELECT id FROM {source})"
    ask(f"ALTER TABLE kept UPDATE s = 1 WHERE id IN {ids}", mutations_sync="2")
    assert ask("SELECT count(), sum(s), max(id * s) FROM kept") == "10\t5\t1999\n"
    ask(f"DELETE FROM kept WHERE id NOT IN {ids} AND (id, s) IN (SELECT id + 2000 - 1995, 0 FROM {source})")
    assert (
        ask("SELECT groupArray(id) FROM (SELECT id FROM kept ORDER BY id)") == "[1995,1996,1997,1998,1999]\n"
    )
    count, top = (f"(SELECT {what} FROM {source})" for what in ("count() % 256", "max(id) - 2"))
    ask(f"UPDATE kept SET s = {count} WHERE id > {top}")
    assert ask("SELECT groupArray(s) FROM (SELECT s FROM kept ORDER BY id)") == "[1,1,1,208,208]\n"
    ask("DROP TABLE kept SYNC")


@pytest.mark.parametrize("engine", few_first(["MergeTree", "ReplicatedMergeTree('/t/kept2', 'r')"], few=1))
def test_mutations_ask_whether_rows_exist_and_take_tables_behind_in(cluster: Cluster, engine: str) -> None:
    """`NOT IN` deleted every row of the table, and said nothing."""
    ask = cluster.n1.query
    ask("CREATE TABLE IF NOT EXISTS ids_d (id UInt64) ENGINE = Distributed(c, default, events)")
    ask("CREATE VIEW IF NOT EXISTS of_two AS SELECT id, toUInt8(0) AS s FROM events_d WHERE id < 2")
    ask(f"CREATE TABLE kept {KEPT.format(engine)}{BLOCKS}")
    ask("INSERT INTO kept SELECT 1995 + number, 0 FROM numbers(10)")
    for condition in (
        "NOT EXISTS (SELECT id FROM events_d)",
        "(id - 1995, s) NOT IN of_two AND id IN ((SELECT id FROM ids_d))",
    ):
        ask(f"UPDATE kept SET s = 1 WHERE {condition}")
    assert ask("SELECT groupArray((id, s)) FROM (SELECT * FROM kept ORDER BY id LIMIT 6)") == (
        "[(1995,0),(1996,0),(1997,1),(1998,1),(1999,1),(2000,0)]\n"
    )
    ask("DELETE FROM kept WHERE id NOT IN (default.ids_d) AND EXISTS (SELECT 1 FROM events_d WHERE id = 7)")
    assert ask("SELECT count(), max(id) FROM kept") == "5\t1999\n"
    ask("DELETE FROM kept WHERE EXISTS ((SELECT 1 FROM of_two) INTERSECT (SELECT 2)) OR id IN (5, 6)")
    assert ask("SELECT count(), max(id) FROM kept") == "5\t1999\n"
    no_utf8 = b"DELETE FROM kept WHERE id = 1999 AND 'x\xff' NOT IN (SELECT note FROM events_d)"
    assert cluster.n1.post(no_utf8).status == 200
    assert ask("SELECT count(), max(id) FROM kept") == "4\t1998\n"
    assert refused(cluster.n1, "DELETE FROM kept WHERE id IN events_d").code != 0  # five columns
    ask("DROP TABLE kept SYNC")


def test_null_is_among_the_values_of_a_subquery_where_it_equals_itself(cluster: Cluster) -> None:
    ask = cluster.n1.query
    ask(f"CREATE TABLE noted (id UInt8, note Nullable(String)) ENGINE = MergeTree ORDER BY id{BLOCKS}")
    ask("INSERT INTO noted VALUES (1, '1'), (2, NULL), (3, 'none')")
    for source in ("(SELECT note FROM one)", "(SELECT note FROM events_d)"):
        for settings in ({}, {"transform_null_in": "1"}):
            ask(f"UPDATE noted SET note = concat(ifNull(note, ''), '1') WHERE note IN {source}", **settings)
            of_null = "'1'" if settings else "NULL"
            assert ask("SELECT groupArray(tuple(note)) FROM (SELECT note FROM noted ORDER BY id)") == (
                f"[('11'),({of_null}),('none')]\n"
            )
            ask("UPDATE noted SET note = '1' WHERE id = 1")
            ask("UPDATE noted SET note = NULL WHERE id = 2")
    ask("DROP TABLE noted SYNC")


@pytest.mark.extended
def test_long_values_of_a_subquery_are_for_tables_of_this_node_alone(cluster: Cluster) -> None:
    """Keeper keeps what replicas have to do."""
    ask = cluster.n1.query
    condition = (
        "toString(id) NOT IN (SELECT toString(id) || repeat(substring(city, 1, id > 99), {}) FROM events_d)"
    )
    for engine in ("MergeTree", "ReplicatedMergeTree('/t/kept3', 'r')"):
        ask(f"CREATE TABLE kept {KEPT.format(engine)}")
        ask("INSERT INTO kept SELECT number, 0 FROM numbers(200)")
        statement = f"ALTER TABLE kept DELETE WHERE {condition.format(900)}"
        if engine == "MergeTree":
            ask(statement, mutations_sync="2")
            assert ask("SELECT count(), max(id) FROM kept") == "100\t99\n"
            ask("DETACH TABLE kept")
            ask("ATTACH TABLE kept")
            assert (
                ask("SELECT max(length(command) > 1000000), min(is_done) FROM system.mutations") == "1\t1\n"
            )
        else:
            assert "900000 characters" in refused(cluster.n1, statement).text
            assert ask("SELECT count() FROM kept") == "200\n"
            ask(f"ALTER TABLE kept DELETE WHERE {condition.format(400)}", mutations_sync="2")
            assert ask("SELECT count(), max(id) FROM kept") == "100\t99\n"
            assert ask("SELECT max(length(command) > 700000), min(is_done) FROM system.mutations") == "1\t1\n"
        ask("DROP TABLE kept SYNC")


@pytest.mark.parametrize("engine", few_first(["ReplicatedMergeTree('/t/kept4', 'r')", "MergeTree"], few=1))
def test_what_an_alter_keeps_beside_a_mutation_gets_no_values(cluster: Cluster, engine: str) -> None:
    """They stayed in the definition, as of the moment of the ALTER."""
    ask, top = cluster.n1.query, "(SELECT id FROM events_d WHERE id > 1997)"
    ask(f"CREATE TABLE kept (id UInt64, ts DateTime) ENGINE = {engine} ORDER BY id")
    ask("INSERT INTO kept SELECT 1995 + number, now() FROM numbers(10)")
    for kept in (
        f"ADD COLUMN x UInt64 DEFAULT (SELECT max(id) FROM events_d), DELETE WHERE id IN {top}",
        f"ADD CONSTRAINT c CHECK id NOT IN {top}, DELETE WHERE id IN {top}",
        f"UPDATE ts = now() WHERE id IN {top}, MODIFY TTL ts DELETE WHERE id IN {top}",
    ):
        assert refused(cluster.n1, f"ALTER TABLE kept {kept}").code == 48
    beside = f"ALTER TABLE kept DELETE WHERE id IN {top}, ADD CONSTRAINT c CHECK id > 0"
    ask(beside, mutations_sync="2")
    assert ask("SELECT count() FROM kept") == "8\n"
    assert "1998" not in ask("SHOW CREATE TABLE kept")
    ask("DROP TABLE kept SYNC")


def test_mutations_of_what_is_here_do_not_change(cluster: Cluster) -> None:
    ask = cluster.n1.query
    ask(f"CREATE TABLE kept {KEPT.format('MergeTree')}{BLOCKS}")
    ask("INSERT INTO kept SELECT number, 0 FROM numbers(10)")
    of_here = "DELETE FROM kept WHERE id IN (SELECT id FROM one WHERE id < 3)"
    ask(of_here, allow_nondeterministic_mutations="1", mutations_sync="2")
    assert ask("SELECT count(), sum(s) FROM kept") == "7\t0\n"
    ask("DROP TABLE kept SYNC")


def test_a_mutation_on_cluster_reads_distributed_tables_on_every_host(cluster: Cluster) -> None:
    ask = cluster.n1.query
    ask(f"CREATE TABLE each ON CLUSTER c {KEPT.format('MergeTree')}")
    for node in cluster.nodes.values():
        node.query("INSERT INTO each SELECT 1995 + number, 0 FROM numbers(10)")
    ask("ALTER TABLE each ON CLUSTER c DELETE WHERE id NOT IN (SELECT id FROM events_d)", mutations_sync="2")
    for node in cluster.nodes.values():
        node.query("ALTER TABLE each UPDATE s = 1 WHERE 1", mutations_sync="2")  # waits for those before
        assert node.query("SELECT count(), max(id) FROM each") == "5\t1999\n"
    ask("DROP TABLE each ON CLUSTER c SYNC")
