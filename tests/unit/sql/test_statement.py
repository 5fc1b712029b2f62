"""engine.sql.parse: what a statement is, acts on, and may do."""

from __future__ import annotations

import pytest
from hypothesis import given

from engine.errors import SqlError
from engine.names import TableName
from engine.sql import AlterCommand, StatementKind, parallel_statements, parse_statement, runs_once_per_shard
from engine.sql.cursor import Cursor
from engine.sql.kinds import AlterCommand as A
from engine.sql.kinds import StatementKind as K
from engine.sql.sources import read_tables
from tests.unit.sql.test_tokens import ANY_TEXT


def _names(*names: str) -> tuple[TableName, ...]:
    return tuple(TableName(*(n.split(".") if "." in n else ("", n))) for n in names)


@given(ANY_TEXT)
def test_any_text_gets_a_kind_or_62(sql: str) -> None:
    for text in (
        sql,
        f"SELECT {sql}",
        f"CREATE TABLE {sql}",
        f"ALTER TABLE t {sql}",
        f"GRANT {sql}",
        f"SYSTEM {sql}",
    ):
        try:
            statement = parse_statement(text)
        except SqlError as error:
            assert error.code == 62
        else:
            assert isinstance(statement.kind, StatementKind)


@pytest.mark.parametrize(
    ("sql", "kind", "tables"),
    [
        ("create table a.b (x Int8) engine=Memory", K.CREATE_TABLE, _names("a.b")),
        ("CREATE TABLE `a b`.`c``d` (x Int8)", K.CREATE_TABLE, (TableName("a b", "c`d"),)),
        ("ATTACH TABLE t", K.ATTACH_TABLE, _names("t")),
        ("DROP TABLE a, b.c", K.DROP_TABLE, _names("a", "b.c")),
        ("DETACH VIEW v", K.DETACH_VIEW, _names("v")),
        ("TRUNCATE t", K.TRUNCATE_TABLE, _names("t")),
        ("RENAME TABLE a TO b, c.d TO e", K.RENAME_TABLE, _names("a", "b", "c.d", "e")),
        ("EXCHANGE TABLES a AND b.c", K.EXCHANGE_TABLES, _names("a", "b.c")),
        ("OPTIMIZE TABLE a.b FINAL", K.OPTIMIZE, _names("a.b")),
        ("ALTER TABLE a.b ADD COLUMN c Int8", K.ALTER, _names("a.b")),
        ("CREATE MATERIALIZED VIEW v TO x AS SELECT 1 FROM y", K.CREATE_MATERIALIZED_VIEW, _names("v")),
        ("CREATE INDEX i ON a.b (c)", K.CREATE_INDEX, _names("a.b")),
        ("DELETE FROM a.b WHERE 1", K.DELETE, _names("a.b")),
        ("SYSTEM SYNC REPLICA a.b", K.SYSTEM, _names("a.b")),
        ("SYSTEM DROP REPLICA 'r' FROM TABLE a.b", K.SYSTEM, _names("a.b")),
        ("INSERT INTO a.b VALUES (1)", K.INSERT, _names("a.b")),
        ("INSERT INTO FUNCTION s3('x') VALUES (1)", K.INSERT, ()),
        ("GRANT SELECT ON a.b TO u", K.GRANT, _names("a.b")),
        ("UNDROP TABLE t", K.UNDROP_TABLE, _names("t")),
        ("-- c\n/* d */ select 1", K.SELECT, ()),
        ("WITH 1 AS x SELECT x", K.SELECT, ()),
        ("(SELECT 1) UNION ALL (SELECT 2)", K.SELECT, ()),
        ("FROM t SELECT a", K.SELECT, ()),
        ("SHOW TABLES FROM d", K.SHOW, ()),
        ("DESC TABLE a.b", K.DESCRIBE, _names("a.b")),
        ("EXISTS TABLE a.b", K.EXISTS, _names("a.b")),
        ("EXPLAIN SELECT 1", K.EXPLAIN, ()),
        ("SET a = 1", K.SET, ()),
        ("SET DEFAULT ROLE r TO u", K.SET_ROLE, ()),
        ("USE d", K.USE, ()),
        ("CHECK TABLE t", K.CHECK_TABLE, _names("t")),
        ("CHECK GRANT SELECT ON a.b", K.CHECK_GRANT, ()),
        ("KILL TRANSACTION WHERE 1", K.KILL_OTHER, ()),
        ("DROP TABLE a PARALLEL WITH DROP TABLE b", K.PARALLEL_WITH, _names("a")),
        ("", K.EMPTY, ()),
        (" -- nothing\n;", K.EMPTY, ()),
        ("FLY ME TO THE MOON", K.OTHER, ()),
        ("create", K.OTHER, ()),
        ("`create` table t", K.OTHER, ()),
    ],
)
def test_kind_and_tables(sql: str, kind: StatementKind, tables: tuple[TableName, ...]) -> None:
    statement = parse_statement(sql)
    assert (statement.kind, statement.tables) == (kind, tables)


def test_the_parts_of_a_create_are_read() -> None:
    statement = parse_statement(
        "CREATE MATERIALIZED VIEW IF NOT EXISTS d.v UUID '123e4567-e89b-12d3-a456-426614174000' "
        "ON CLUSTER '{c}' TO x.y ENGINE = ReplicatedMergeTree('/p', '{r}') AS SELECT 1 FORMAT JSON"
    )
    assert statement.on_cluster == "{c}"
    assert statement.if_not_exists
    assert statement.uuid == "123e4567-e89b-12d3-a456-426614174000"
    assert statement.targets == (TableName("x", "y"),)
    assert statement.engine == "ReplicatedMergeTree"
    assert statement.format == "JSON"


def test_databases_are_read() -> None:
    created = parse_statement("CREATE DATABASE IF NOT EXISTS `a b` ENGINE = Replicated('/x', 's', 'r')")
    assert (created.database, created.engine) == ("a b", "Replicated")
    renamed = parse_statement("RENAME DATABASE a TO b")
    assert (renamed.database, renamed.new_database) == ("a", "b")
    assert parse_statement("TRUNCATE ALL TABLES FROM d").database == "d"


@pytest.mark.parametrize(
    ("sql", "format", "outfile"),
    [
        ("SELECT 1 FORMAT JSON", "JSON", None),
        ("SELECT format FROM t", None, None),
        ("SELECT 1 AS format", None, None),
        ("SELECT 1 INTO OUTFILE 'x' FORMAT TSV SETTINGS a = 1", "TSV", "x"),
        ("INSERT INTO t FORMAT CSV\n1,'a", "CSV", None),
        ("INSERT INTO t (a, format) VALUES (1, 'FORMAT X')", None, None),
        ("CREATE TABLE format (format String) ENGINE = Memory FORMAT format", "format", None),
    ],
)
def test_output_clauses_are_read(sql: str, format: str | None, outfile: str | None) -> None:
    statement = parse_statement(sql)
    assert (statement.format, statement.into_outfile) == (format, outfile)


@pytest.mark.parametrize(
    "rows", ["it's", "/* x", '"', "`", "$$", "(1, 'a'", "1; DROP TABLE x", "ON CLUSTER c", "\n\n"]
)
@pytest.mark.parametrize("head", ["INSERT INTO t VALUES ", "INSERT INTO d.t (a) FORMAT CSV\n"])
def test_the_rows_of_an_insert_need_not_be_sql(head: str, rows: str) -> None:
    statement = parse_statement(head + rows)
    assert statement.kind is K.INSERT
    assert statement.on_cluster is None


@pytest.mark.parametrize(
    ("commands", "expected"),
    [
        (
            "ADD COLUMN a Int8, DROP COLUMN b, MODIFY COLUMN c String",
            [A.ADD_COLUMN, A.DROP_COLUMN, A.MODIFY_COLUMN],
        ),
        ("(ADD COLUMN a Int8), (DROP COLUMN b)", [A.ADD_COLUMN, A.DROP_COLUMN]),
        ("UPDATE a = 1, b = 2, delete = 3 WHERE c", [A.UPDATE]),
        ("UPDATE a = if(b, 1, 2), c = (SELECT 1, 2) WHERE 1, DELETE WHERE 2", [A.UPDATE, A.DELETE]),
        ("MODIFY SETTING a = 1, b = 2, RESET SETTING c, d", [A.MODIFY_SETTING, A.RESET_SETTING]),
        ("COMMENT COLUMN a 'x, DROP COLUMN b'", [A.COMMENT_COLUMN]),
        ("MODIFY TTL a + INTERVAL 1 DAY, b + INTERVAL 2 DAY", [A.MODIFY_TTL]),
        (
            "ATTACH PARTITION 1, ATTACH PARTITION (1, 'FROM') FROM x",
            [A.ATTACH_PARTITION, A.ATTACH_PARTITION_FROM],
        ),
        ("MOVE PARTITION 1 TO TABLE x", [A.MOVE_PARTITION_TO_TABLE]),
        ("MOVE PART 'a' TO DISK 'b', MOVE PARTITION 2 TO VOLUME 'c'", [A.MOVE_PARTITION, A.MOVE_PARTITION]),
        ("MOVE PART 'a' TO SHARD '/b'", [A.MOVE_PARTITION_TO_SHARD]),
        (
            "FETCH PARTITION 1 FROM '/x', FREEZE, UNFREEZE WITH NAME 'x'",
            [A.FETCH_PARTITION, A.FREEZE, A.UNFREEZE],
        ),
        ("MODIFY QUERY SELECT a, b FROM t", [A.MODIFY_QUERY]),
        ("ADD INDEX i (a, b) TYPE minmax, MATERIALIZE INDEX i", [A.ADD_INDEX, A.MATERIALIZE_INDEX]),
        ("MODIFY ORDER BY a, delete", [A.MODIFY_ORDER_BY]),
        ("RESET SETTING a, update, DROP COLUMN b", [A.RESET_SETTING, A.DROP_COLUMN]),
        ("DO SOMETHING NEW", [A.OTHER]),
    ],
)
def test_alter_commands_are_told_apart(commands: str, expected: list[AlterCommand]) -> None:
    assert list(parse_statement(f"ALTER TABLE t ON CLUSTER c {commands}").alter_commands) == expected


def test_every_alter_command_is_met_by_the_corpus_or_is_of_older_servers() -> None:
    from tests.unit.sql.test_tokens import _CORPUS

    met = {command for sql in _CORPUS for command in parse_statement(sql).alter_commands}
    assert set(AlterCommand) - met == {
        A.MODIFY_PRIMARY_KEY,
        A.MODIFY_PROJECTION,
        A.MODIFY_CONSTRAINT,
        A.UNLOCK_SNAPSHOT,
        A.EXECUTE,
        A.OTHER,
    }
    assert A.OTHER not in met


@pytest.mark.parametrize(
    ("sql", "once"),
    [
        ("ALTER TABLE t ADD COLUMN a Int8", True),
        ("ALTER TABLE t DROP PARTITION 1", True),
        ("ALTER TABLE t MODIFY SETTING a = 1", False),
        ("ALTER TABLE t RESET SETTING a", False),
        ("ALTER TABLE t MODIFY SETTING a = 1, ADD COLUMN b Int8", True),
        ("ALTER TABLE t FREEZE", False),
        ("ALTER TABLE t UNFREEZE WITH NAME 'x'", False),
        ("ALTER TABLE t MOVE PARTITION 1 TO DISK 'x'", False),
        ("ALTER TABLE t MOVE PARTITION 1 TO TABLE x", True),
        ("ALTER TABLE t MODIFY COMMENT 'x'", False),
        ("OPTIMIZE TABLE t", True),
        ("TRUNCATE TABLE t", True),
        ("CREATE INDEX i ON t (a)", True),
        ("DROP INDEX i ON t", True),
        ("CREATE TABLE t (a Int8)", False),
        ("DROP TABLE t", False),
        ("DETACH TABLE t", False),
        ("ATTACH TABLE t", False),
        ("RENAME TABLE t TO u", False),
        ("SYSTEM STOP MERGES t", False),
        ("KILL MUTATION WHERE 1", False),
        ("CREATE USER u", False),
        ("TRUNCATE DATABASE d", False),
        ("ALTER DATABASE d MODIFY SETTING a = 1", False),
    ],
)
def test_once_per_shard_is_for_replicated_changes_only(sql: str, once: bool) -> None:
    assert runs_once_per_shard(parse_statement(sql)) is once


@pytest.mark.parametrize(
    ("sql", "destructive"),
    [
        ("DROP TABLE t", True),
        ("DROP DATABASE d", True),
        ("DETACH TABLE t", True),
        ("TRUNCATE TABLE t", True),
        ("DELETE FROM t WHERE 1", True),
        ("ALTER TABLE t ADD COLUMN a Int8, DROP COLUMN b", True),
        ("ALTER TABLE t DROP PARTITION 1", True),
        ("ALTER TABLE t CLEAR COLUMN a", True),
        ("ALTER TABLE t REPLACE PARTITION 1 FROM x", True),
        ("ALTER TABLE t ATTACH PARTITION 1 FROM x", False),
        ("ALTER TABLE t DELETE WHERE 1", True),
        ("CREATE OR REPLACE TABLE t (a Int8) ENGINE = Memory", True),
        ("REPLACE TABLE t (a Int8) ENGINE = Memory", True),
        ("CREATE TABLE t (a Int8) ENGINE = Memory", False),
        ("ALTER TABLE t ADD COLUMN a Int8", False),
        ("ALTER TABLE t DROP INDEX i", False),
        ("RENAME TABLE a TO b", False),
        ("OPTIMIZE TABLE t FINAL", False),
        ("OPTIMIZE TABLE t FINAL DEDUPLICATE", True),
        ("OPTIMIZE TABLE t PARTITION 1 DEDUPLICATE BY a, b", True),
        ("OPTIMIZE TABLE deduplicate FINAL", False),
        ("ALTER TABLE t MODIFY COLUMN a String TTL d + INTERVAL 1 DAY", True),
        ("ALTER TABLE t (MODIFY COLUMN b Int8), (ALTER COLUMN a TYPE String TTL d + toIntervalDay(1))", True),
        ("ALTER TABLE t MODIFY COLUMN a REMOVE TTL", False),
        ("ALTER TABLE t MODIFY COLUMN ttl UInt32", False),
        ("ALTER TABLE t MODIFY COLUMN IF EXISTS ttl UInt32", False),
        ("ALTER TABLE t MODIFY COLUMN a UInt32 AFTER ttl", False),
        ("ALTER TABLE t MODIFY COLUMN `TTL` UInt32", False),
        ("ALTER TABLE t MODIFY COLUMN a UInt32 COMMENT 'TTL'", False),
        ("ALTER TABLE t ADD COLUMN a String TTL d + INTERVAL 1 DAY", False),
        ("CREATE MATERIALIZED VIEW v REFRESH EVERY 1 HOUR TO t AS SELECT 1", True),
        (
            "CREATE MATERIALIZED VIEW v ON CLUSTER c REFRESH EVERY 1 HOUR TO d.t (a Int8) AS SELECT 1",
            True,
        ),
        ("CREATE MATERIALIZED VIEW v REFRESH EVERY 1 HOUR APPEND TO t AS SELECT 1", False),
        ("CREATE MATERIALIZED VIEW v REFRESH AFTER 1 HOUR ENGINE = Memory AS SELECT 1 AS a", False),
        ("CREATE MATERIALIZED VIEW v TO t AS SELECT refresh FROM x", False),
        ("ALTER TABLE t EXECUTE expire_snapshots()", True),
        ("CREATE TABLE a (x Int8) ENGINE = Log PARALLEL WITH DROP TABLE b", True),
        ("CREATE TABLE a (x Int8) ENGINE = Log PARALLEL WITH CREATE TABLE b (x Int8) ENGINE = Log", False),
        ("TRUNCATE ALL TABLES FROM d", True),
        ("TRUNCATE DATABASE d", True),
        ("EXCHANGE TABLES a AND b", False),
        ("CREATE OR REPLACE FUNCTION f AS x -> x", True),
        ("CREATE FUNCTION f AS x -> x", False),
        ("CREATE USER OR REPLACE u", True),
        ("CREATE ROLE OR REPLACE r", True),
        ("CREATE ROW POLICY OR REPLACE p ON t USING 1", True),
        ("SYSTEM DROP REPLICA 'r' FROM TABLE t", True),
        ("SYSTEM DROP DATABASE REPLICA 'r' FROM DATABASE d", True),
        ("SYSTEM SHUTDOWN", True),
        ("SYSTEM DROP DNS CACHE", False),
        ("SYSTEM RESTART REPLICA t", False),
        ("SELECT 'DROP TABLE t'", False),
    ],
)
def test_what_loses_data_is_destructive(sql: str, destructive: bool) -> None:
    assert parse_statement(sql).is_destructive is destructive


@pytest.mark.parametrize(
    ("sql", "rewrites"),
    [
        ("OPTIMIZE TABLE t FINAL", True),
        ("ALTER TABLE t UPDATE a = 1 WHERE 1", True),
        ("ALTER TABLE t MODIFY COLUMN a String", True),
        ("ALTER TABLE t MATERIALIZE INDEX i", True),
        ("ALTER TABLE t ADD COLUMN a Int8", False),
        ("ALTER TABLE t ADD INDEX i a TYPE minmax", False),
        ("CREATE TABLE t (a Int8)", False),
    ],
)
def test_what_writes_parts_anew_is_known(sql: str, rewrites: bool) -> None:
    assert parse_statement(sql).rewrites_data is rewrites


def test_attach_and_fetch_partition_are_refused_on_a_cluster() -> None:
    assert not parse_statement("ALTER TABLE t ATTACH PARTITION 1").alter_is_allowed_on_cluster
    assert not parse_statement(
        "ALTER TABLE t ADD COLUMN a Int8, FETCH PART 'x' FROM '/y'"
    ).alter_is_allowed_on_cluster
    assert parse_statement("ALTER TABLE t ATTACH PARTITION 1 FROM x").alter_is_allowed_on_cluster
    assert parse_statement("DROP TABLE t").alter_is_allowed_on_cluster


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 1",
        "INSERT INTO t VALUES (1)",
        "SHOW TABLES",
        "SET a = 1",
        "CHECK TABLE t",
        "CHECK GRANT SELECT ON a.b",
        "SYSTEM REFRESH VIEW v",
        "SYSTEM UNFREEZE WITH NAME 'x'",
        "CREATE TEMPORARY TABLE t (a Int8) ENGINE = Memory",
        "DROP TABLE a PARALLEL WITH DROP TABLE b",
        "FLY",
    ],
)
def test_statements_without_a_place_for_the_clause_do_not_support_it(sql: str) -> None:
    assert not parse_statement(sql).supports_on_cluster


@pytest.mark.parametrize(
    ("sql", "pieces"),
    [
        ("DROP TABLE a PARALLEL WITH DELETE FROM b WHERE 1", ["DROP TABLE a ", "DELETE FROM b WHERE 1"]),
        ("INSERT INTO a SELECT 1 PARALLEL WITH DROP TABLE b", ["INSERT INTO a SELECT 1 ", "DROP TABLE b"]),
        (
            "INSERT INTO a SELECT * FROM values('k Int8', 1) PARALLEL WITH OPTIMIZE TABLE b",
            ["INSERT INTO a SELECT * FROM values('k Int8', 1) ", "OPTIMIZE TABLE b"],
        ),
        (
            "WITH 1 AS x INSERT INTO a SELECT x PARALLEL WITH USE d",
            ["WITH 1 AS x INSERT INTO a SELECT x ", "USE d"],
        ),
    ],
)
def test_statements_side_by_side_are_told_apart(sql: str, pieces: list[str]) -> None:
    assert parse_statement(sql).kind is StatementKind.PARALLEL_WITH
    assert parallel_statements(sql) == pieces


@pytest.mark.parametrize(
    "sql",
    [
        "INSERT INTO a VALUES (1) PARALLEL WITH DROP TABLE b",
        "INSERT INTO a FORMAT TSV\nx PARALLEL WITH DROP TABLE b",
        "INSERT INTO parallel WITH set AS (SELECT 1) SELECT 1",
        "CREATE VIEW v AS SELECT 1 AS parallel ORDER BY parallel WITH FILL",
        "CREATE TABLE `PARALLEL` (k Int8 DEFAULT 'PARALLEL WITH DROP TABLE b') ENGINE = Log",
    ],
)
def test_data_and_names_are_no_statements_side_by_side(sql: str) -> None:
    assert parse_statement(sql).kind is not StatementKind.PARALLEL_WITH
    assert parallel_statements(sql) == [sql]


def test_a_table_function_called_values_is_no_data() -> None:
    sql = "INSERT INTO a SELECT * FROM values('k Int8', 1) AS v, d.other"
    assert TableName("d", "other") in [ref.name for ref in read_tables(Cursor(sql), 0)]
