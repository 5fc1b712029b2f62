"""Mutations of replicated tables, on two real nodes and ZooKeeper."""

from __future__ import annotations

import threading

import pytest

from tests.node.replicated_pair import Pair, error, wait_for

pytestmark = pytest.mark.slow


def test_update_and_delete_reach_all_replicas(pair: Pair) -> None:
    t = pair.table()
    pair.n1.query(f"INSERT INTO {t} SELECT number, 'x' FROM numbers(10)")
    pair.n1.query(
        f"ALTER TABLE {t} UPDATE v = {{new:String}} WHERE k < 3, DELETE WHERE k > 5 "
        "SETTINGS mutations_sync = 2",
        param_new="it's",
    )
    assert pair.rows(t) == "0\tit\\'s\n1\tit\\'s\n2\tit\\'s\n3\tx\n4\tx\n5\tx\n"
    assert pair.same(f"SELECT command, is_done, parts_to_do FROM system.mutations WHERE table = '{t}'") == (
        "(UPDATE v = \\'it\\\\\\'s\\' WHERE k < 3)\t1\t0\n(DELETE WHERE k > 5)\t1\t0\n"
    )


def test_lightweight_update_and_delete_can_be_switched_off(pair: Pair) -> None:
    t = pair.table()
    pair.n1.query(f"INSERT INTO {t} VALUES (1, 'a')")
    for kind, sql in (
        ("delete", f"DELETE FROM {t} WHERE true"),
        ("update", f"UPDATE {t} SET v = 'b' WHERE true"),
    ):
        for switch in ("enable", "allow_experimental"):
            assert error(pair.n1.post(sql, **{f"{switch}_lightweight_{kind}": "0"})) == 344
    assert pair.rows(t) == "1\ta\n"


def test_a_mutation_in_a_partition_leaves_the_others_alone(pair: Pair) -> None:
    t = pair.table()
    pair.n1.query(f"INSERT INTO {t} SELECT number, 'x' FROM numbers(4)")
    pair.n2.query(f"SYSTEM SYNC REPLICA {t}")
    pair.n2.query(f"ALTER TABLE {t} UPDATE v = 'y' IN PARTITION 1 WHERE true SETTINGS mutations_sync = 2")
    assert pair.rows(t) == "0\tx\n1\ty\n2\tx\n3\ty\n"
    names = pair.same(f"SELECT name FROM system.parts WHERE table = '{t}' ORDER BY name").split()
    assert names == ["0_0_0_0", "1_0_0_0_1"]


def test_lightweight_delete_and_update(pair: Pair) -> None:
    t = pair.table()
    pair.n1.query(f"INSERT INTO {t} SELECT number, 'x' FROM numbers(4)")
    pair.n1.query(f"DELETE FROM {t} WHERE k = 2")
    assert pair.rows(t) == "0\tx\n1\tx\n3\tx\n"
    pair.n2.query(f"UPDATE {t} SET v = 'z' WHERE k = 3")
    assert pair.rows(t) == "0\tx\n1\tx\n3\tz\n"


def test_lightweight_delete_and_projections(pair: Pair) -> None:
    """What becomes of them the table says, and no statement."""
    columns = "k UInt64, v UInt64, PROJECTION p (SELECT v, count() GROUP BY v)"
    t = pair.table(columns, rest="ORDER BY k")
    pair.n1.query(f"INSERT INTO {t} SELECT number, 1 FROM numbers(4)")
    delete = "DELETE FROM {} WHERE k = 2 SETTINGS lightweight_mutation_projection_mode = 'drop'"
    assert error(pair.n1.post(delete.format(t))) == 344
    for mode in ("drop", "rebuild"):
        settings = f"SETTINGS lightweight_mutation_projection_mode = '{mode}'"
        t = pair.table(columns, rest=f"ORDER BY k {settings}")
        pair.n1.query(f"INSERT INTO {t} SELECT number, 1 FROM numbers(4)")
        pair.n1.query(f"DELETE FROM {t} WHERE k = 2")
        pair.synced(t)
        assert pair.same(f"SELECT v, count() FROM {t} GROUP BY v") == "1\t3\n"
        there = f"SELECT count() FROM system.projection_parts WHERE table = '{t}' AND active"
        assert pair.same(there) == ("1\n" if mode == "rebuild" else "0\n")


def test_a_mutation_that_would_differ_between_replicas_is_refused(pair: Pair) -> None:
    t = pair.table()
    assert error(pair.n1.post(f"ALTER TABLE {t} UPDATE v = toString(rand()) WHERE true")) == 36
    pair.n1.query("CREATE FUNCTION like_rand AS x -> concat(x, toString(own_rand()))")
    pair.n1.query("CREATE FUNCTION own_rand AS () -> RAND()")
    for value in ("RAND()", "`rand`()", "CURRENT_TIMESTAMP", "concat(hostName(), v)", "like_rand(v)"):
        assert error(pair.n1.post(f"ALTER TABLE {t} UPDATE v = toString({value}) WHERE true")) == 36
    assert error(pair.n1.post(f"ALTER TABLE {t} DELETE WHERE nosuch = 1")) == 47
    subquery = f"ALTER TABLE {t} DELETE WHERE k IN (SELECT k FROM {t})"
    assert error(pair.n1.post(subquery)) == 36
    assert error(pair.n1.post(f"DELETE FROM {t} WHERE _table = '{t}'")) == 48
    assert pair.n1.query(f"SELECT count() FROM system.mutations WHERE table = '{t}'") == "0\n"


def test_rows_are_chosen_by_the_replicated_names_of_their_parts(pair: Pair) -> None:
    t = pair.table()
    for number in range(4):
        pair.n1.query(f"INSERT INTO {t} VALUES ({number}, 'a')")
    pair.n2.query(f"SYSTEM SYNC REPLICA {t}")
    names = f"SELECT name FROM system.parts WHERE table = '{t}' AND active AND rows > 0 ORDER BY name"
    assert pair.same(names) == "0_0_0_0\n0_1_1_0\n1_0_0_0\n1_1_1_0\n"
    chosen = pair.n2.query(f"SELECT _part FROM {t} WHERE k = 1")
    assert chosen == "1_0_0_0\n"
    pair.n2.query(f"DELETE FROM {t} WHERE _part = '{chosen.strip()}'")
    pair.n1.query(f"ALTER TABLE {t} UPDATE v = _part WHERE k = 2 SETTINGS mutations_sync = 2")
    assert pair.rows(t) == "0\ta\n2\t0_1_1_0_2\n3\ta\n"
    chosen = pair.n1.query(f"SELECT _part FROM {t} WHERE k = 3").strip()
    pair.n1.query(f"ALTER TABLE {t} DROP PART '{chosen}' SETTINGS alter_sync = 2")
    assert pair.rows(t) == "0\ta\n2\t0_1_1_0_2\n"


def test_a_mutation_with_a_subquery_names_the_database_that_it_reads(pair: Pair) -> None:
    t = pair.table()
    for node in pair.both:
        node.query("CREATE TABLE IF NOT EXISTS chosen (k UInt64) ENGINE = Memory")
        node.query("INSERT INTO chosen VALUES (1)")
    pair.n1.query(f"INSERT INTO {t} VALUES (1, 'a'), (2, 'b')")
    pair.n1.query(
        f"ALTER TABLE {t} DELETE WHERE k IN (SELECT k FROM chosen) OR k IN (chosen)",
        mutations_sync="2",
        allow_nondeterministic_mutations="1",
    )
    assert pair.rows(t) == "2\tb\n"
    command = pair.n1.query(f"SELECT command FROM system.mutations WHERE table = '{t}'")
    assert command == "(DELETE WHERE (k IN (SELECT k FROM default.chosen)) OR (k IN (default.chosen)))\n"


def test_mutations_are_carried_out_shown_and_killed_however_long_their_texts_are(pair: Pair) -> None:
    """All rows of `system.mutations` were one text for chDB, which reads 256 KiB, and error 62."""
    t = pair.table()
    pair.n1.query(f"INSERT INTO {t} VALUES (1, 'a'), (2, 'b')")
    for size in (200_000, 600_000):
        long = f"ALTER TABLE {t} DELETE WHERE k = 1 AND v != '{'x' * size}'"
        pair.n1.query(long, mutations_sync="2", max_query_size="1000000")
    assert pair.rows(t) == "2\tb\n"
    pair.n1.query(
        f"ALTER TABLE {t} DELETE WHERE throwIf(k = 2) AND v != '{'x' * 200_000}'", mutations_sync="0"
    )
    lengths = f"SELECT max(length(command)), sum(is_done) FROM system.mutations WHERE table = '{t}'"
    both = "system.mutations AS m JOIN system.replicas AS r USING table"
    for node in (pair.n1, pair.n2):
        wait_for(lambda ask=node.query: ask(lengths).endswith("\t2\n"))
        assert int(node.query(lengths).split()[0]) > 600_000
        assert node.query(f"SELECT count() FROM {both} WHERE m.table = '{t}'") == "3\n"
    killed = pair.n1.query(f"KILL MUTATION WHERE table = '{t}' AND NOT is_done")
    assert killed.startswith("waiting") and len(killed) > 200_000
    assert pair.n1.query(f"KILL MUTATION WHERE table = '{t}' AND NOT is_done") == ""


def test_unfinished_mutations_are_limited_by_the_table_or_the_statement(pair: Pair) -> None:
    t = pair.table(rest="ORDER BY k SETTINGS number_of_mutations_to_throw = 2")
    pair.n1.query(f"INSERT INTO {t} VALUES (1, 'a')")
    for node in pair.both:
        node.query(f"SYSTEM STOP MERGES {t}")
    update = f"ALTER TABLE {t} UPDATE v = '{{}}' WHERE true SETTINGS mutations_sync = 0"
    pair.n1.query(update.format("b"))
    assert error(pair.n1.post(f"{update.format('c')}, number_of_mutations_to_throw = 1")) == 692
    pair.n1.query(update.format("c"))
    assert error(pair.n1.post(update.format("d"))) == 692
    pair.n1.query(f"{update.format('d')}, number_of_mutations_to_throw = 3")
    for node in pair.both:
        node.query(f"SYSTEM START MERGES {t}")
    wait_for(lambda: pair.n1.query(f"SELECT v FROM {t}") == "d\n")
    assert pair.rows(t) == "1\td\n"


def test_a_reader_with_apply_mutations_on_fly_sees_what_mutations_under_way_make(pair: Pair) -> None:
    t = pair.table()
    view, setting = f"{t}_v", "SETTINGS apply_mutations_on_fly = 1"
    pair.n1.query(f"CREATE VIEW {view} AS SELECT v FROM {t}")
    pair.n1.query(f"INSERT INTO {t} SELECT 1, 'a'")
    pair.n1.query(f"INSERT INTO {t} SELECT 2, 'b'")
    for node in pair.both:
        node.query(f"SYSTEM STOP MERGES {t}")
    assert pair.n1.query(f"SELECT v FROM {view} ORDER BY v {setting}") == "a\nb\n"
    pair.n1.query(f"ALTER TABLE {t} UPDATE v = 'z' WHERE k = 1 SETTINGS mutations_sync = 0")
    pair.n1.query(f"DELETE FROM {t} WHERE k = 2 SETTINGS lightweight_deletes_sync = 0")
    for name in (t, view):
        assert error(pair.n1.post(f"SELECT v FROM {name} {setting}")) == 236
    assert pair.n1.query(f"SELECT v FROM {t} ORDER BY v") == "a\nb\n"
    for node in pair.both:
        node.query(f"SYSTEM START MERGES {t}")
    assert pair.n1.query(f"SELECT v FROM {view} {setting}") == "z\n"
    pair.n1.query(f"DROP VIEW {view}")


def test_mutations_sync_says_which_replicas_are_waited_for(pair: Pair) -> None:
    t = pair.table("k UInt64, v UInt8", rest="ORDER BY k")
    pair.n1.query(f"INSERT INTO {t} SELECT number, 0 FROM numbers(4)")
    pair.synced(t)
    for node in pair.both:
        node.query(f"SYSTEM STOP REPLICATION QUEUES {t}")
    update = f"ALTER TABLE {t} UPDATE v = {{}} WHERE true SETTINGS mutations_sync = {{}}"
    values = f"SELECT DISTINCT v FROM {t}"
    pair.n1.query(update.format(1, 0))
    assert [node.query(values) for node in pair.both] == ["0\n", "0\n"]
    pair.n1.query(f"SYSTEM START REPLICATION QUEUES {t}")
    pair.n1.query(update.format(2, 1))
    assert [node.query(values) for node in pair.both] == ["2\n", "0\n"]
    inactive = "replication_wait_for_inactive_replica_timeout = 0"
    waiting = threading.Thread(target=pair.n1.query, args=(f"{update.format(3, 2)}, {inactive}",))
    waiting.start()
    wait_for(lambda: pair.n1.query(values) == "3\n")
    assert waiting.is_alive(), "the other replica has not done it, and is active"
    pair.n2.query(f"SYSTEM START REPLICATION QUEUES {t}")
    waiting.join()
    assert [node.query(values) for node in pair.both] == ["3\n", "3\n"]
    pair.n2.query(f"DETACH TABLE {t}")
    reply = pair.n1.post(f"DELETE FROM {t} WHERE k = 0", replication_wait_for_inactive_replica_timeout="0")
    assert error(reply) == 341, "all replicas are waited for by default"
    assert "r2" in reply.text
    pair.n1.query(f"DELETE FROM {t} WHERE k = 1 SETTINGS lightweight_deletes_sync = 1, {inactive}")
    pair.n2.query(f"ATTACH TABLE {t}")
    assert pair.rows(t) == "2\t3\n3\t3\n"
