"""What a start finds and finishes, what it may not settle by itself, and conversions: two real nodes and
ZooKeeper."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from engine.keeper.recipes import create_ancestors
from tests.node.http_client import HttpAt
from tests.node.replicated_pair import OWN_PATH, Pair, eventually, refused

pytestmark = pytest.mark.slow


def test_a_plain_table_is_converted_at_the_next_start(pair: Pair) -> None:
    pair.n1.query("CREATE TABLE d.conv (a UInt64, p UInt8) ENGINE = MergeTree PARTITION BY p ORDER BY p")
    for number in range(3):
        pair.n1.query(f"INSERT INTO d.conv SELECT number, number % 2 FROM numbers({number}, 10)")
    pair.n1.query("OPTIMIZE TABLE d.conv PARTITION 1 FINAL")
    pair.n1.query("ALTER TABLE d.conv UPDATE a = a + 1 WHERE p = 1 SETTINGS mutations_sync = 1")
    before = pair.n1.query("SELECT count(), sum(a) FROM d.conv")
    [uuid] = pair.n1.query("SELECT uuid FROM system.tables WHERE database = 'd' AND name = 'conv'").split()
    [path] = pair.n1.query(
        "SELECT data_paths[1] FROM system.tables WHERE database = 'd' AND name = 'conv'"
    ).split()
    (Path(path) / "convert_to_replicated").touch()
    pair.restart("n1")
    eventually(lambda: pair.n1.query("SELECT count(), sum(a) FROM d.conv"), before)
    # Rows are seen before the table is in Keeper: whoever made a replica there now would be the first one.
    eventually(lambda: pair.n1.query("SELECT is_readonly FROM system.replicas WHERE table = 'conv'"), "0\n")
    eventually(lambda: pair.n1.query("SELECT count(), sum(a) FROM d.conv"), before)
    shown = pair.n1.query("SHOW CREATE TABLE d.conv FORMAT TSVRaw")
    assert "ReplicatedMergeTree('/clickhouse/tables/{uuid}/{shard}'" in shown
    assert not (Path(path) / "convert_to_replicated").exists()
    pair.n2.query(
        f"CREATE TABLE d.conv UUID '{uuid}' (a UInt64, p UInt8) "
        "ENGINE = ReplicatedMergeTree PARTITION BY p ORDER BY p"
    )
    eventually(lambda: pair.n2.query("SELECT count(), sum(a) FROM d.conv"), before)
    eventually(lambda: pair.n1.post("INSERT INTO d.conv VALUES (1, 1)").status, 200)
    pair.kill9("n1")
    eventually(lambda: pair.n2.query("SELECT count() FROM d.conv"), "31\n")
    assert pair.n1.query("SELECT count() FROM d.conv") == "31\n"


def test_a_table_that_cannot_be_converted_is_not_made_somebody_elses_replica(pair: Pair) -> None:
    uuid = str(uuid4())
    pair.n2.query(
        f"CREATE TABLE d.took_it UUID '{uuid}' (a UInt64) "
        f"ENGINE = ReplicatedMergeTree('/clickhouse/tables/{uuid}/01', 'n1') ORDER BY a"
    )
    pair.n2.query("INSERT INTO d.took_it VALUES (1)")
    pair.n2.query("DETACH TABLE d.took_it")
    pair.n1.query(f"CREATE TABLE d.conv_taken UUID '{uuid}' (a UInt64) ENGINE = MergeTree ORDER BY a")
    pair.n1.query("INSERT INTO d.conv_taken VALUES (2)")
    [path] = pair.n1.query("SELECT data_paths[1] FROM system.tables WHERE name = 'conv_taken'").split()
    (Path(path) / "convert_to_replicated").touch()
    pair.restart("n1")
    pair.n1.query("SYSTEM RESTART REPLICAS")
    for command in ("RESTART", "RESTORE", "SYNC"):
        refused(pair.n1.post(f"SYSTEM {command} REPLICA d.conv_taken"), 242, "convert")
    assert pair.n1.query("SELECT a FROM d.conv_taken") == "2\n"
    pair.n2.query("ATTACH TABLE d.took_it")
    eventually(lambda: pair.n2.post("INSERT INTO d.took_it VALUES (3)").status, 200)
    pair.n1.query("DROP TABLE d.conv_taken SYNC")  # or it stays read-only for the tests that follow


def test_a_detached_plain_table_is_attached_as_a_replicated_one(pair: Pair) -> None:
    pair.n1.query("CREATE TABLE d.was_plain (a UInt64) ENGINE = ReplacingMergeTree ORDER BY a")
    pair.n1.query("INSERT INTO d.was_plain VALUES (1), (2)")
    pair.n1.query("INSERT INTO d.was_plain VALUES (3)")
    refused(pair.n1.post("ATTACH TABLE d.was_plain AS REPLICATED"), 57)
    pair.n1.query("DETACH TABLE d.was_plain")
    refused(pair.n1.post("ATTACH TABLE d.was_plain AS NOT REPLICATED"), 36, "not replicated")
    refused(pair.n1.post("ATTACH TABLE d.never_was AS REPLICATED"), 60)
    pair.n1.query("ATTACH TABLE d.was_plain AS REPLICATED")
    assert pair.n1.query("SELECT sum(a) FROM d.was_plain") == "6\n"
    refused(pair.n1.post("INSERT INTO d.was_plain VALUES (4)"), 242)
    pair.n1.query("SYSTEM RESTORE REPLICA d.was_plain")
    pair.n1.query("INSERT INTO d.was_plain VALUES (4)")
    shown = pair.n1.query("SHOW CREATE TABLE d.was_plain FORMAT TSVRaw")
    assert "ReplicatedReplacingMergeTree('/clickhouse/tables/{uuid}/{shard}'" in shown
    [uuid] = pair.n1.query("SELECT uuid FROM system.tables WHERE name = 'was_plain'").split()
    pair.n2.query(
        f"CREATE TABLE d.was_plain UUID '{uuid}' (a UInt64) ENGINE = ReplicatedReplacingMergeTree ORDER BY a"
    )
    eventually(lambda: pair.n2.query("SELECT sum(a) FROM d.was_plain"), "10\n")
    pair.n1.query("DETACH TABLE d.was_plain")
    refused(pair.n1.post("ATTACH TABLE d.was_plain AS REPLICATED"), 36)
    pair.n1.query("ATTACH TABLE d.was_plain")
    assert pair.n1.query("SELECT sum(a) FROM d.was_plain") == "10\n"


def _leaving(pair: Pair, name: str) -> None:
    """A replicated table with parts of all sorts, of which some are dead and still on the disk."""
    for node in (pair.n1, pair.n2):
        node.query(
            f"CREATE TABLE d.{name} (a UInt64, v String, p UInt8) "
            f"ENGINE = ReplicatedMergeTree('/{name}', '{{replica}}') PARTITION BY p ORDER BY a "
            "SETTINGS max_bytes_to_merge_at_min_space_in_pool = 7, old_parts_lifetime = 3600"
        )
    for number in range(3):
        pair.n2.query(f"INSERT INTO d.{name} SELECT number, 'x', number % 3 FROM numbers({number}, 10)")
    pair.n1.query(f"OPTIMIZE TABLE d.{name} PARTITION 0 FINAL SETTINGS alter_sync = 2")
    pair.n1.query(f"ALTER TABLE d.{name} UPDATE v = 'y' WHERE a = 3 SETTINGS mutations_sync = 2")
    pair.n1.query(f"ALTER TABLE d.{name} RENAME COLUMN v TO w SETTINGS alter_sync = 2")
    pair.n1.query(f"ALTER TABLE d.{name} DROP PARTITION 2 SETTINGS alter_sync = 2")
    pair.n1.query(f"SYSTEM SYNC REPLICA d.{name}")


@pytest.mark.extended
def test_a_replicated_table_is_attached_as_a_plain_one(pair: Pair) -> None:
    n1 = pair.n1
    _leaving(pair, "left")
    for name in ("interrupted", "not_left"):
        n1.query(f"CREATE TABLE d.{name} (a UInt64) ENGINE = ReplicatedMergeTree('/{name}', 'r') ORDER BY a")
        n1.query(f"INSERT INTO d.{name} VALUES (1)")
    reading = "SELECT count(), sum(a), countIf(w = 'y') FROM d.left"
    before = n1.query(reading)
    refused(n1.post("ATTACH TABLE d.left AS NOT REPLICATED"), 57)
    n1.query("DETACH TABLE d.left")
    refused(n1.post("ATTACH TABLE d.never_was AS NOT REPLICATED"), 60)
    n1.query("ATTACH TABLE d.left AS NOT REPLICATED")
    assert n1.query(reading) == before
    shown = n1.query("SHOW CREATE TABLE d.left FORMAT TSVRaw")
    assert "ENGINE = MergeTree\n" in shown
    assert "SETTINGS max_bytes_to_merge_at_min_space_in_pool = 7, old_parts_lifetime = 3600" in shown
    for hidden in ("remove_empty_parts", "fsync", "max_number_of_merges"):
        assert hidden not in shown
    assert {line.split("\t")[1] for line in n1.query("CHECK TABLE d.left").splitlines()} == {"1"}
    n1.query("INSERT INTO d.left VALUES (100, 'z', 0)")
    assert pair.n2.query(reading) == before

    # A crash when only names and settings are left to do.
    pair.call(pair.local.node("n1").kill9())
    catalog = pair.local.files.node_directory("n1") / "data" / "oncluster" / "replicated"
    [record] = [file for file in catalog.glob("*.json") if '"interrupted"' in file.read_text()]
    record.write_text(record.read_text().replace('"attached"', '"leaving"'))
    pair.call(pair.local.node("n1").start())
    assert not record.exists()
    assert n1.query("SELECT count() FROM d.left") == f"{int(before.split()[0]) + 1}\n"
    assert n1.query("SELECT a FROM d.interrupted") == "1\n"
    assert "ENGINE = MergeTree" in n1.query("SHOW CREATE TABLE d.interrupted FORMAT TSVRaw")
    assert n1.query(
        "SELECT table FROM system.replicas WHERE table IN ('left', 'interrupted', 'not_left')"
    ) == ("not_left\n")
    named = f"SELECT count() FROM system.parts WHERE table = 'left' AND uuid != '{UUID(int=0)}'"
    assert n1.query(named) == "0\n"

    # It goes on as any plain table, and comes back as a replicated one.
    n1.query("OPTIMIZE TABLE d.left FINAL")
    n1.query("DETACH TABLE d.left")
    n1.query("ATTACH TABLE d.left AS REPLICATED")
    n1.query("SYSTEM RESTORE REPLICA d.left")
    n1.query("INSERT INTO d.left VALUES (101, 'z', 1)")
    assert n1.query("SELECT count() FROM d.left") == f"{int(before.split()[0]) + 2}\n"


def test_a_table_whose_record_is_gone_is_named_and_put_back_or_made_anew(pair: Pair) -> None:
    pair.on_cluster(
        f"CREATE TABLE d.unknown ON CLUSTER all (a Int8) ENGINE = ReplicatedMergeTree({OWN_PATH}) ORDER BY a"
    )
    pair.n1.query("INSERT INTO d.unknown VALUES (1)")
    pair.synced("d.unknown")
    [record] = [file for file in pair.catalog("n2") if file.is_file() and '"unknown"' in file.read_text()]
    log_file = pair.local.directory / "logs" / "n2.log"
    lost = record.with_suffix(".lost")
    for is_put_back in (True, False):
        before = log_file.read_text().count("replicated.no_record")
        record.rename(lost)
        pair.restart("n2")
        assert log_file.read_text().count("replicated.no_record") == before + 1
        assert "replicated.no_record table=d.unknown" in log_file.read_text()
        assert pair.n2.query("SELECT min(a) FROM d.unknown") == "1\n"
        if is_put_back:
            lost.rename(record)
            pair.restart("n2")
        else:
            pair.n2.query("DROP TABLE d.unknown SYNC")
            pair.n1.query("SYSTEM DROP REPLICA 'n2' FROM TABLE d.unknown")
            pair.n2.query(
                f"CREATE TABLE d.unknown (a Int8) ENGINE = ReplicatedMergeTree({OWN_PATH}) ORDER BY a"
            )
        pair.n1.query(
            "INSERT INTO d.unknown VALUES (2), (3)" if is_put_back else "INSERT INTO d.unknown VALUES (4)"
        )
        pair.synced("d.unknown")
        assert pair.same("SELECT count() FROM d.unknown") == ("3\n" if is_put_back else "4\n")
    lost.unlink()


def test_a_plain_table_does_not_take_the_place_of_a_replica_that_is_there(pair: Pair) -> None:
    n1 = pair.n1
    n1.query("CREATE TABLE d.late (a UInt64) ENGINE = MergeTree ORDER BY a")
    n1.query("INSERT INTO d.late VALUES (1)")
    uuid = n1.query("SELECT uuid FROM system.tables WHERE database = 'd' AND name = 'late'").strip()
    place = f"'/clickhouse/tables/{uuid}/01', 'n1'"
    pair.n2.query(f"CREATE TABLE d.early (a UInt64) ENGINE = ReplicatedMergeTree({place}) ORDER BY a")
    n1.query("DETACH TABLE d.late")
    refused(n1.post("ATTACH TABLE d.late AS REPLICATED"), 253, "SYSTEM DROP REPLICA")
    assert n1.query("EXISTS d.late") == "0\n"
    pair.n2.query("DROP TABLE d.early SYNC")
    n1.query("ATTACH TABLE d.late AS REPLICATED")
    n1.query("SYSTEM RESTORE REPLICA d.late")
    n1.query("INSERT INTO d.late VALUES (2)")
    assert n1.query("SELECT sum(a) FROM d.late") == "3\n"


def test_a_table_that_cannot_be_replicated_stays_detached(pair: Pair) -> None:
    pair.n1.query("CREATE TABLE d.a_log (a UInt64) ENGINE = Log")
    pair.n1.query("DETACH TABLE d.a_log")
    refused(pair.n1.post("ATTACH TABLE d.a_log AS REPLICATED"), 36)
    pair.n1.query("ATTACH TABLE d.a_log")
    pair.n1.query("DROP TABLE d.a_log SYNC")


# -- sanity checks -------------------------------------------------------------------------------------------


async def _forget_parts(pair: Pair, table: str, parts: Iterable[str]) -> None:
    """Keeper does not know parts of n1 any more."""
    async with pair.local.keeper() as keeper:
        for part in parts:
            await keeper.remove(f"/tables/{table}/replicas/r1/parts/{part}")


@pytest.mark.extended
def test_a_start_that_finds_too_much_wrong_waits_for_somebody_to_force_it(pair: Pair) -> None:
    """Of three parts of four tables on n1, Keeper has forgotten two, or two are damaged on the disk. How much
    of that may be is a setting of the table."""
    n1, parts = pair.n1, ("all_0_0_0", "all_1_1_0")
    strange, strange_allowed, damaged, damaged_allowed = tables = [
        pair.table("k UInt64", rest=f"ORDER BY k {settings}")
        for settings in (
            "",
            "SETTINGS replicated_max_ratio_of_wrong_parts = 0.9",
            "SETTINGS max_suspicious_broken_parts = 1",
            "",
        )
    ]
    for table in tables:
        n1.query(f"SYSTEM STOP MERGES {table}")
        for number in range(3):
            n1.query(f"INSERT INTO {table} VALUES ({number})")
        pair.synced(table)
    names = ", ".join(f"'{table}'" for table in (damaged, damaged_allowed))
    paths = n1.query(
        f"SELECT path FROM system.parts WHERE table IN ({names}) AND active AND min_block_number < 2"
    ).split()
    assert len(paths) == 4
    pair.call(pair.local.node("n1").stop())
    for table in (strange, strange_allowed):
        pair.call(_forget_parts(pair, table, parts))
    for path in paths:
        Path(path, "data.bin").write_bytes(b"")

    pair.call(pair.local.node("n1").start())
    where = "SELECT table FROM system.replicas WHERE is_readonly ORDER BY table"
    eventually(lambda: n1.query(where), f"{strange}\n{damaged}\n")
    for table, reason in ((strange, "2 rows of 3 total rows"), (damaged, "Suspiciously many (2) broken")):
        refused(n1.post(f"INSERT INTO {table} VALUES (9)"), 242, reason)
    assert n1.query(f"SELECT count() FROM {strange}") == "3\n", "nothing was touched"
    detached = "SELECT name FROM system.detached_parts WHERE table = '{}' ORDER BY name"
    assert n1.query(detached.format(strange)) == ""
    assert len(n1.query(detached.format(damaged)).split()) == 2, "chDB has them no more"
    ignored = "".join(f"ignored_{part}\n" for part in parts)
    assert n1.query(detached.format(strange_allowed)) == ignored
    assert n1.query(f"SELECT k FROM {strange_allowed}") == "2\n"
    assert pair.rows(damaged_allowed) == "0\n1\n2\n", "fetched again"

    flag = pair.local.files.node_directory("n1") / "data" / "flags" / "force_restore_data"
    flag.parent.mkdir(exist_ok=True)
    flag.touch()
    pair.restart("n1")
    assert not flag.exists(), "it is for one start"
    eventually(lambda: n1.query(where), "")
    assert pair.rows(strange) == "0\n1\n2\n", "n2 has them, so n1 has become a copy of n2"
    assert n1.query(detached.format(strange)) == ""
    assert pair.rows(damaged) == "0\n1\n2\n"
    assert n1.query(detached.format(damaged)) == ignored.replace("ignored", "broken-on-start")


def test_a_data_directory_older_than_an_alter_takes_no_values_from_the_other_replica(pair: Pair) -> None:
    """A backup of it was restored. A merge here would give its result, for both, the columns of then."""
    n1, n2, data = pair.n1, pair.n2, pair.local.files.node_directory("n1") / "data"
    table = pair.table("k UInt64", rest="ORDER BY k")
    n1.query(f"INSERT INTO {table} VALUES (1)")
    backup = data.with_name("backup")
    pair.call(pair.local.node("n1").stop())
    shutil.copytree(data, backup, symlinks=True)
    pair.call(pair.local.node("n1").start())
    where = f"SELECT is_readonly FROM system.replicas WHERE table = '{table}'"
    eventually(lambda: n1.query(where), "0\n")
    n1.query(f"ALTER TABLE {table} ADD COLUMN v UInt64 DEFAULT 7", alter_sync="2")
    n2.query(f"INSERT INTO {table} VALUES (2, 20)")
    pair.synced(table)
    pair.call(pair.local.node("n1").stop())
    shutil.rmtree(data)
    backup.rename(data)

    pair.call(pair.local.node("n1").start())
    eventually(lambda: "column v is in Keeper only" in n1.post(f"INSERT INTO {table} VALUES (3)").text, True)
    refused(n1.post(f"OPTIMIZE TABLE {table} FINAL"), 242)
    assert n1.query(f"SELECT * FROM {table}") == "1\n", "readers have what was restored"

    replica = f"/tables/{table}/replicas/r1"
    pair.call(_create_flag(pair, f"{replica}/flags/force_restore_data"))
    n1.query(f"SYSTEM RESTART REPLICA {table}")
    eventually(lambda: n1.query(where), "0\n")
    n1.query(f"OPTIMIZE TABLE {table} FINAL")
    assert pair.rows(table) == "1\t7\n2\t20\n"


async def _create_flag(pair: Pair, path: str) -> None:
    async with pair.local.keeper() as keeper:
        await create_ancestors(keeper, path)
        await keeper.create(path)


# -- kill -9 -------------------------------------------------------------------------------------------------


def test_what_a_crash_left_of_a_replacement_goes_at_the_next_start(pair: Pair) -> None:
    before = pair.catalog("n1")
    left = f"_tmp_replace_{uuid4().hex}"
    pair.n1.query(
        f"CREATE TABLE d.{left} (a Int8) ENGINE = ReplicatedMergeTree('/unfinished', 'r') ORDER BY a"
    )
    # Of a plain table that was to take a replicated one's place, and of a replicated one in a plain table's.
    new, old = uuid4(), uuid4()
    for uuid, named_after in ((new, new), (old, uuid4())):
        name = f"_tmp_replace_{named_after.hex}"
        pair.n1.query(f"CREATE TABLE d.{name} UUID '{uuid}' (a Int8) ENGINE = MergeTree ORDER BY a")
    pair.restart("n1")
    eventually(lambda: pair.catalog("n1") - before, set())
    assert pair.n1.query(f"EXISTS d.{left}") == "0\n"
    assert "unfinished" not in pair.children("/")
    plain = "SELECT uuid FROM system.tables WHERE database = 'd' AND startsWith(name, '_tmp_replace_')"
    eventually(lambda: pair.n1.query(plain), f"{old}\n")
    pair.n1.query(f"DROP TABLE d.{name} SYNC")


@pytest.mark.extended
def test_on_cluster_takes_effect_once_though_a_replica_is_killed_meanwhile(pair: Pair) -> None:
    for number, after_s in enumerate((0.03, 0.1)):
        name = f"d.killed{number}"
        engine = f"ENGINE = ReplicatedMergeTree({OWN_PATH}) PARTITION BY p ORDER BY a"
        for sql in (
            f"CREATE TABLE {name} ON CLUSTER all (a UInt64, p UInt8) {engine}",
            f"INSERT INTO {name} SELECT number, number % 3 FROM numbers(30)",
            f"ALTER TABLE {name} ON CLUSTER all ADD COLUMN z UInt8 DEFAULT 5",
            f"ALTER TABLE {name} ON CLUSTER all UPDATE z = z + 1 WHERE 1",
            f"ALTER TABLE {name} ON CLUSTER all DROP PARTITION 1",
        ):
            if "ON CLUSTER" in sql:
                _kill_while(pair, sql, after_s=after_s, ask=pair.n2)
            else:
                pair.n2.query(sql)
        assert pair.children(f"/t/01/d/killed{number}/mutations") == ["0000000000"]
        rows = f"SELECT count(), sum(z) FROM {name}"
        for node in (pair.n1, pair.n2):  # who was killed may not have the column yet
            eventually(partial(_text, node, rows), "20\t120\n")
    failed = "SELECT entry, exception_text FROM system.distributed_ddl_queue WHERE query LIKE '%d.killed%' "
    assert pair.n1.query(failed + "AND exception_code != 0") == ""


def _status(node: HttpAt, sql: str) -> int:
    return node.post(sql).status


def _text(node: HttpAt, sql: str) -> str:
    return node.post(sql).text


def _has_child(pair: Pair, path: str, name: str) -> bool:
    return name in pair.children(path)


def _kill_while(pair: Pair, sql: str, *, after_s: float, ask: HttpAt | None = None) -> None:
    """Send a statement, to n1 or to whom is given, and kill n1 under it; n1 runs again afterwards."""

    def send() -> None:
        try:
            (ask or pair.n1).post(sql)
        except OSError:
            pass

    thread = threading.Thread(target=send)
    thread.start()
    time.sleep(after_s)
    pair.kill9("n1")
    thread.join()


def test_a_node_that_was_killed_has_its_tables_again_or_not_at_all(pair: Pair) -> None:
    """kill -9 among CREATE and DROP, again and again; whatever was begun is finished or gone afterwards."""
    for number in (0, 2):
        name = f"d.k{number}_{uuid4().hex[:6]}"
        create = (
            f"CREATE TABLE IF NOT EXISTS {name} (a Int8) ENGINE = ReplicatedMergeTree({OWN_PATH}) ORDER BY a"
        )
        _kill_while(pair, create, after_s=0.01 + 0.02 * number)
        pair.n1.query(create)
        eventually(partial(_status, pair.n1, f"INSERT INTO {name} VALUES (1)"), 200)
        assert pair.children(f"/t/01/{name.replace('.', '/')}/replicas") == ["n1"]
        _kill_while(pair, f"DROP TABLE {name} SYNC", after_s=0.005 + 0.01 * number)
        pair.n1.query(f"DROP TABLE IF EXISTS {name} SYNC")
        table = name.removeprefix("d.")
        eventually(partial(_has_child, pair, "/t/01/d", table), False)
        assert pair.n1.query(f"EXISTS {name}") == "0\n"


def test_a_table_whose_other_table_is_gone_stays_out_of_the_node_and_in_its_replicated_database(
    pair: Pair,
) -> None:
    for node in pair.both:
        node.query("CREATE DATABASE ask ENGINE = Replicated('/dbs/ask', '{shard}', '{replica}')")
    ttl = "ORDER BY k TTL t + INTERVAL 1 YEAR WHERE k IN ask.asked"
    pair.n1.query("CREATE TABLE ask.asked (k UInt64) ENGINE = Set")
    pair.n1.query(f"CREATE TABLE ask.p (k UInt64, t DateTime) ENGINE = MergeTree {ttl}")
    pair.n1.query(f"CREATE TABLE ask.r (k UInt64, t DateTime) ENGINE = ReplicatedMergeTree {ttl}")
    pair.n1.query("INSERT INTO ask.r VALUES (1, '2100-01-01')")
    pair.n1.query("DROP TABLE ask.asked SETTINGS check_table_dependencies = 0")
    pair.restart("n1")
    # No recovery that would make them anew, and no commit of what cannot be carried out.
    pair.n1.query("CREATE TABLE ask.other (k UInt64) ENGINE = Memory")
    assert pair.n1.query("SHOW TABLES FROM ask") == "other\n"
    for sql in ("DROP TABLE ask.p", "DETACH TABLE ask.r PERMANENTLY"):
        refused(pair.n1.post(sql), 722, "ATTACH TABLE")
    pair.n2.query("SYSTEM SYNC DATABASE REPLICA ask")
    assert pair.n2.query("SHOW TABLES FROM ask") == "other\np\nr\n"

    pair.n1.query("CREATE TABLE ask.asked (k UInt64) ENGINE = Set")
    committed = pair.n2.query("SELECT max_log_ptr FROM system.database_replicas WHERE database = 'ask'")
    for table in ("p", "r"):
        pair.n1.query(f"ATTACH TABLE ask.{table}")  # which the other replica has
    assert (
        pair.n2.query("SELECT max_log_ptr FROM system.database_replicas WHERE database = 'ask'") == committed
    )
    pair.n2.query("INSERT INTO ask.r VALUES (2, '2100-01-01')")
    assert [row.split()[0] for row in pair.rows("ask.r").splitlines()] == ["1", "2"]

    # What others do with a table that could not be loaded here.
    for table in ("changed", "renamed"):
        pair.n2.query(f"CREATE TABLE ask.{table} (k UInt64, t DateTime) ENGINE = MergeTree {ttl}")
        pair.n1.query(f"INSERT INTO ask.{table} VALUES (1, '2100-01-01')")
    for table in ("r_renamed", "r_made_anew"):
        pair.n2.query(f"CREATE TABLE ask.{table} (k UInt64, t DateTime) ENGINE = ReplicatedMergeTree {ttl}")
        pair.n2.query(f"INSERT INTO ask.{table} VALUES (1, '2100-01-01')")
        pair.n1.query(f"SYSTEM SYNC REPLICA ask.{table}")
    pair.n1.query("DROP TABLE ask.asked SETTINGS check_table_dependencies = 0")
    pair.restart("n1")
    pair.n2.query("CREATE TABLE ask.asked (k UInt64) ENGINE = Set")
    done = {"distributed_ddl_task_timeout": "40"}
    pair.n2.query("ALTER TABLE ask.changed ADD COLUMN more UInt8", **done)
    pair.n2.query("RENAME TABLE ask.renamed TO ask.other_name", **done)
    pair.n2.query("DROP TABLE ask.p", **done)
    pair.n2.query("RENAME TABLE ask.r_renamed TO ask.r_2", **done)
    pair.n2.query("DROP TABLE ask.r_made_anew", **done)
    pair.n2.query("CREATE TABLE ask.r_made_anew (k Int8) ENGINE = ReplicatedMergeTree ORDER BY k", **done)
    pair.n2.query("INSERT INTO ask.r_made_anew VALUES (7)")
    pair.n1.query("SYSTEM SYNC REPLICA ask.r_made_anew")
    assert pair.same("SELECT k FROM ask.r_made_anew") == "7\n"
    pair.n1.query("ATTACH TABLE ask.r_2")
    pair.n2.query("INSERT INTO ask.r_2 VALUES (2, '2100-01-01')")
    pair.n1.query("SYSTEM SYNC REPLICA ask.r_2")
    assert pair.same("SELECT count() FROM ask.r_2") == "2\n"
    assert pair.same("SELECT count() FROM ask.changed") == "0\n"
    assert pair.same("SELECT count() FROM ask.other_name") == "0\n"
    orphans = pair.local.directory / "nodes/n1/data/oncluster/orphans"
    definitions = sorted(orphans.glob("*.sql"))
    assert [file.stem for file in definitions] == ["changed", "p", "renamed"]
    for file in definitions:
        assert (orphans / file.read_text().split("'")[1]).is_dir(), f"the data of {file.stem}"
    pair.n1.query("DROP TABLE ask.changed, ask.other_name")
    pair.n1.query("ATTACH TABLE ask.r")
    pair.n1.query("SYSTEM SYNC DATABASE REPLICA ask")
    assert pair.same("SHOW TABLES FROM ask") == "asked\nother\nr\nr_2\nr_made_anew\n"
    # Its replica is there, and its rows.
    pair.restart("n1")
    [aside] = pair.n1.query("SHOW TABLES FROM ask_broken_replicated_tables").split()
    assert aside.startswith("r_made_anew_")
    assert pair.n1.query(f"SELECT k FROM ask_broken_replicated_tables.{aside}") == "1\n"
