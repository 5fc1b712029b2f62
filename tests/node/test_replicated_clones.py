"""CREATE TABLE … CLONE AS, and parts of replicated tables in tables that are not, on two real nodes."""

from __future__ import annotations

import pytest

from tests.few import few_first
from tests.node.replicated_pair import OWN_PATH, Pair, error, refused

pytestmark = pytest.mark.slow

KEYS = "PARTITION BY k % 2 ORDER BY k"


def test_a_clone_of_a_replicated_table_is_one_on_all_replicas(pair: Pair) -> None:
    pair.on_cluster(
        f"CREATE TABLE d.s ON CLUSTER all (k UInt64) ENGINE = ReplicatedMergeTree {KEYS} "
        "SETTINGS max_suspicious_broken_parts = 7"
    )
    pair.n1.query("INSERT INTO d.s SELECT number FROM numbers(10)")
    pair.synced("d.s")
    pair.on_cluster("CREATE TABLE d.c ON CLUSTER all CLONE AS d.s")
    pair.on_cluster("CREATE TABLE IF NOT EXISTS d.c ON CLUSTER all CLONE AS d.s")
    pair.n2.query("INSERT INTO d.c VALUES (10)")
    pair.synced("d.c")
    assert pair.same("SELECT count(), sum(k) FROM d.c") == "11\t55\n"
    assert pair.same(
        "SELECT name, hash_of_all_files FROM system.parts WHERE table = 'c' AND active ORDER BY 1"
    )
    assert "ENGINE = ReplicatedMergeTree('/clickhouse/tables/{uuid}/{shard}', '{replica}')\n" in pair.same(
        "SHOW CREATE TABLE d.c FORMAT TSVRaw"
    )
    assert "max_suspicious_broken_parts = 7" in pair.same("SHOW CREATE TABLE d.c")
    pair.kill9("n1")
    assert pair.n1.query("SELECT count(), sum(k) FROM d.c") == "11\t55\n"


@pytest.mark.parametrize("source", few_first(["ReplicatedMergeTree('/cloned', 'r')", "MergeTree"], few=1))
def test_a_replicated_clones_parts_are_known_to_keeper(pair: Pair, source: str) -> None:
    n1 = pair.n1
    n1.query(f"CREATE TABLE d.any (k UInt64) ENGINE = {source} {KEYS}")
    n1.query("INSERT INTO d.any SELECT number FROM numbers(10)")
    create = f"TABLE d.r CLONE AS d.any ENGINE = ReplicatedMergeTree('/clone{{}}', 'r') {KEYS}"
    n1.query(f"CREATE {create.format(1)}")
    assert pair.children("/clone1/replicas/r/parts") == ["0_0_0_0", "1_0_0_0"]
    refused(n1.post(f"CREATE {create.format(3)}"), 57)
    n1.query("ALTER TABLE d.any DROP PARTITION 1")
    n1.query(f"CREATE OR REPLACE {create.format(2)}")
    assert pair.children("/clone2/replicas/r/parts") == ["0_0_0_0"]
    assert n1.query("SELECT count() FROM d.r") == "5\n"
    wrong = "CREATE TABLE d.w CLONE AS d.any ENGINE = ReplicatedMergeTree('/clone4', 'r') ORDER BY k"
    assert error(n1.post(f"{wrong} PARTITION BY k")) == 36
    assert pair.children("/clone4") == pair.children("/clone3") == []
    for table in ("any", "r"):
        n1.query(f"DROP TABLE d.{table} SYNC")


def test_what_a_plain_table_gets_of_a_replicated_one_carries_no_replicated_names(pair: Pair) -> None:
    """CHECK TABLE of a plain table takes the file with a part's replicated name for one too many."""
    n1 = pair.n1
    n1.query(f"CREATE TABLE d.from (k UInt64) ENGINE = ReplicatedMergeTree({OWN_PATH}) {KEYS}")
    n1.query("INSERT INTO d.from SELECT number FROM numbers(10)")
    n1.query(f"CREATE TABLE d.plain (k UInt64) ENGINE = MergeTree {KEYS}")
    n1.query("INSERT INTO d.plain VALUES (101)")
    n1.query("ALTER TABLE d.plain ATTACH PARTITION 0 FROM d.from, REPLACE PARTITION 1 FROM d.from")
    n1.query(f"CREATE TABLE d.clone CLONE AS d.from ENGINE = MergeTree {KEYS}")
    n1.query("DELETE FROM d.from WHERE k = 4")
    n1.query("ALTER TABLE d.plain REPLACE PARTITION 0 FROM d.from")
    for table, rows in (("plain", "9\t41\n"), ("clone", "10\t45\n")):
        assert n1.query(f"SELECT count(), sum(k) FROM d.{table}") == rows
        assert n1.query(f"CHECK TABLE d.{table} SETTINGS check_query_single_value_result = 1") == "1\n"
    assert error(n1.post(f"CREATE TABLE d.clone CLONE AS d.from ENGINE = MergeTree {KEYS}")) == 57
    n1.query(f"CREATE TABLE IF NOT EXISTS d.clone CLONE AS d.from ENGINE = MergeTree {KEYS}")
    assert n1.query("SELECT count() FROM d.clone") == "10\n"


def test_a_replicated_database_refuses_clones_as_clickhouse_does(pair: Pair) -> None:
    pair.n1.query("CREATE DATABASE cl ENGINE = Replicated('/dbs/cl', '{shard}', '{replica}')")
    pair.n1.query("CREATE TABLE cl.s (k UInt64) ENGINE = MergeTree ORDER BY k")
    refused(pair.n1.post("CREATE TABLE cl.c CLONE AS cl.s"), 344, "CLONE AS")
