"""What chDB is not given, because it would read the machine's files or run its programs."""

from __future__ import annotations

import pytest

from engine.errors import SqlError
from engine.sql import parse_statement
from engine.storage.guard import check_settings, check_statement

DICTIONARY = "CREATE DICTIONARY d (a String) PRIMARY KEY a LAYOUT(FLAT()) LIFETIME(0) SOURCE({})"


def check(sql: str) -> None:
    check_statement(parse_statement(sql), sql)


@pytest.mark.parametrize(
    "sql",
    [
        "CREATE TABLE t (a String) ENGINE = File(CSV, '/x')",
        "CREATE TABLE t (a String) ENGINE `Fil\\x65` (CSV, '/x')",
        "CREATE TABLE a (a Int8) ENGINE = Memory PARALLEL WITH CREATE TABLE t ENGINE = File(CSV, '/x')",
        "CREATE MATERIALIZED VIEW v ENGINE = File(CSV) AS SELECT 1 AS a",
        "CREATE DATABASE d ENGINE = SQLite('/x')",
        "CREATE TABLE t ENGINE = URL(' FILE:///x', CSV)",
        "CREATE TABLE t ENGINE = URL(named, url = 'file:///x')",
        "CREATE TABLE t (a String) ENGINE = URL(concat('fi', 'le:///x'), CSV)",
        "CREATE TABLE t (a String) ENGINE = URL('fi' || 'le:///x', CSV)",
        "CREATE TEMPORARY TABLE t (a String) ENGINE URL((char(102, 105, 108, 101, 58, 47, 120)), CSV)",
        "CREATE TABLE t ENGINE = URL(named, format = CSV, `ur\\x6c` = lower('FILE:///x'))",
        "CREATE NAMED COLLECTION named AS url = 'file:///x'",
        "CREATE TABLE t (a String) ENGINE = EmbeddedRocksDB(0, '/x') PRIMARY KEY a",
        "CREATE TABLE t (a Int8) ENGINE = MergeTree ORDER BY a SETTINGS disk = disk(type = 'local')",
        "CREATE TABLE t (a Int8) ENGINE = MergeTree ORDER BY a SETTINGS disk = disk(path = '../x')",
        "CREATE TABLE t (a Int8) ENGINE = Log SETTINGS disk = disk(type = s3, metadata_path = '/x')",
        "CREATE TABLE t (a Int8) ENGINE = Log SETTINGS disk = disk(type = s3, `metadata_path` = 'store')",
        "CREATE TABLE t (a Int8) ENGINE = Log SETTINGS disk = disk(type = encrypted, path = '/x', disk = d)",
        "CREATE TABLE t (a String) ENGINE = IcebergLocal('x')",
        "CREATE TABLE t ENGINE = DeltaLakeLocal('x')",
        "CREATE TABLE t (query String) ENGINE = QueryRunner",
        "ATTACH TABLE d.t UUID '1' FROM 'x' (a Int8) ENGINE = Log",
        "DROP TABLE a PARALLEL WITH ATTACH TEMPORARY TABLE t FROM $$x$$ (a Int8) ENGINE = Log",
        "SELECT file('/x')",
        "SELECT `file`('/x')",
        "SELECT arrayMap(x -> file(x), ['/x'])",
        "SELECT * APPLY file FROM t",
        "SELECT * APPLY(file) FROM t",
        "SELECT 1, file /* not a name */ ('/x')",
        "SELECT * FROM file('/x')",
        "SELECT * FROM sqlite('/x', 't')",
        "SELECT * FROM Python(sql)",
        "INSERT INTO t SELECT * FROM `Python`(params)",
        "INSERT INTO t VALUES (1, file('/x'))",
        "CREATE TABLE t (a Int8, b String DEFAULT file('/x')) ENGINE = Memory",
        "CREATE VIEW v AS SELECT file('/x')",
        "CREATE FUNCTION f AS x -> file(x)",
        "SELECT 1 FROM t SETTINGS additional_table_filters = {'t': 'file(\\'/x\\') = 1'}",
        "SET additional_result_filter = 'file(\\'/x\\') = 1'",
        DICTIONARY.format("CLICKHOUSE(QUERY 'SELECT file(\\'/x\\')')"),
        "SELECT 1 SETTINGS additional_result_filter = {p:String}",
        "SELECT 1 SETTINGS max_threads = 1, `additional\\x5ftable_filters` = {p:Map(String, String)}",
        "SET parallel_replicas_custom_key = {p:String}",
        "CREATE NAMED COLLECTION c AS query = 'SELECT * FROM sqlite(\\'/x\\', \\'t\\')'",
        "ALTER NAMED COLLECTION c SET where = 'a = (SELECT a FROM sqlite($$/x$$, $$t$$))' OVERRIDABLE",
        "CREATE TABLE a (a Int8) ENGINE = Log PARALLEL WITH "
        + DICTIONARY.format("CLICKHOUSE(QUERY 'SELECT file(\\'/x\\')')"),
        DICTIONARY.format("FILE(PATH 'x' FORMAT 'TSV')"),
        DICTIONARY.format("YAMLRegExpTree(PATH 'x')"),
        DICTIONARY.format("NULL()").replace("FLAT()", "SSD_CACHE(PATH 'x')"),
        DICTIONARY.format("CLICKHOUSE(QUERY $x$SELECT file('/x')$x$)"),
        DICTIONARY.format("CLICKHOUSE(QUERY 'SELECT * FROM t WHERE x = $$a$$ OR file($$/x$$)')"),
        "CREATE TABLE t ENGINE = URL($$file:///x$$, CSV)",
        "CREATE TABLE t (a String) ENGINE = EmbeddedRocksDB(0, $$/x$$) PRIMARY KEY a",
        "CREATE OR REPLACE FUNCTION __oncluster_awaited_signed AS (a, b, c) -> 0",
        "CREATE FUNCTION IF NOT EXISTS `__oncluster\\x5fawaited_signed` AS (a, b, c) -> 0",
    ],
)
def test_what_reads_or_writes_files_of_the_machine_is_denied(sql: str) -> None:
    with pytest.raises(SqlError) as refusal:
        check(sql)
    assert (refusal.value.code, refusal.value.name) == (497, "ACCESS_DENIED")


@pytest.mark.parametrize(
    ("sql", "code"),
    [
        ("INSERT INTO t SELECT 1 PARALLEL WITH CREATE TABLE a (a Int8) ENGINE = Log INTO OUTFILE '/x'", 358),
        ("CREATE TABLE a (a Int8) ENGINE = Log PARALLEL WITH INSERT INTO t FROM INFILE '/x' FORMAT TSV", 78),
        ("INSERT INTO t FROM INFILE $$/x$$ FORMAT TSV", 78),
    ],
)
def test_clauses_with_files_are_refused_wherever_they_stand(sql: str, code: int) -> None:
    with pytest.raises(SqlError) as refusal:
        check(sql)
    assert refusal.value.code == code


@pytest.mark.parametrize(
    "sql",
    [
        "DROP DATABASE IF EXISTS `default` SYNC",
        "DETACH DATABASE default ON CLUSTER c",
        "RENAME DATABASE a TO b, default TO c",
        "CREATE TABLE a (a Int8) ENGINE = Log PARALLEL WITH DROP DATABASE default",
    ],
)
def test_the_database_that_everybody_connects_with_stays(sql: str) -> None:
    with pytest.raises(SqlError) as refusal:
        check(sql)
    assert refusal.value.code == 48


@pytest.mark.parametrize(
    "sql",
    [
        "SET max_threads = 1, `data\\x62ase` = 'b'",
        "SELECT * FROM t SETTINGS database = 'b'",
        "(SELECT * FROM t SETTINGS max_threads = -1, m = {'a': 1, 'b': 2}, database = {d:String})",
        "INSERT INTO t SETTINGS async_insert = 0, database = 'b' VALUES (1)",
        "CREATE TABLE t (a Int8) ENGINE = Log SETTINGS disk = disk(type = s3), database = 'b'",
    ],
)
def test_a_name_means_the_table_that_the_node_takes_it_for(sql: str) -> None:
    with pytest.raises(SqlError) as refusal:
        check(sql)
    assert refusal.value.code == 452


ELSEWHERE = "S3('https://b/trusted/x', 'key', 'secret')"


@pytest.mark.parametrize(
    "sql",
    [
        f"RESTORE TABLE d.t AS d.u FROM {ELSEWHERE} SETTINGS structure_only = 1",
        f"CREATE TABLE a (a Int8) ENGINE = Log PARALLEL WITH RESTORE DICTIONARY d.t FROM {ELSEWHERE}",
        f"RESTORE ALL FROM Memory('b') SETTINGS base_backup = {ELSEWHERE}",
        "RESTORE DATABASE d FROM S3(collection, url = 'https://b/trusted/x')",
        "RESTORE DATABASE d FROM Disk('https://b/trusted/x' || 'y', 'x')",
        "RESTORE DATABASE d FROM S3('https://b/trusted/../x')",
        f"CREATE DATABASE b ENGINE = Backup('d', {ELSEWHERE})",
        f"CREATE DATABASE b ENGINE `Back\\x75p`('d', {ELSEWHERE})",
    ],
)
def test_definitions_are_taken_from_places_that_are_trusted_only(sql: str) -> None:
    statement = parse_statement(sql)
    for trusted in ((), ("https://b/other/", "https://a/")):
        with pytest.raises(SqlError) as refusal:
            check_statement(statement, sql, trusted_backups=trusted)
        assert refusal.value.code == 497
    if sql.count(ELSEWHERE):
        check_statement(statement, sql, trusted_backups=("https://b/trusted/",))
    else:
        with pytest.raises(SqlError):
            check_statement(statement, sql, trusted_backups=("https://b/trusted/",))


@pytest.mark.parametrize("value", ["disk(type = s3, endpoint = 'https://b/x')", "'made_before'"])
@pytest.mark.parametrize(
    "begin", ["CREATE DATABASE d ENGINE = Atomic SETTINGS", "ALTER DATABASE d MODIFY SETTING"]
)
def test_a_database_keeps_its_definitions_on_the_node(begin: str, value: str) -> None:
    with pytest.raises(SqlError) as refusal:
        check(f"{begin} a = 1, disk = {value}")
    assert refusal.value.code == 497


@pytest.mark.parametrize("begin", ["CREATE", "CREATE OR REPLACE"])
def test_nothing_is_made_that_would_have_no_effect(begin: str) -> None:
    with pytest.raises(SqlError) as refusal:
        check(f"{begin} HANDLER h URL '/x' AS SELECT 1")
    assert refusal.value.code == 48
    check("CREATE TABLE handler (handler Int8) ENGINE = Log")


@pytest.mark.parametrize("source", ["EXECUTABLE(command 'id' format 'TSV')", "executable_pool(command 'id')"])
def test_a_dictionary_runs_no_program(source: str) -> None:
    with pytest.raises(SqlError) as refusal:
        check(DICTIONARY.format(source))
    assert refusal.value.code == 482


@pytest.mark.parametrize(
    "sql",
    [
        "CREATE TABLE file (file String, local Int8) ENGINE = Memory",
        "CREATE TABLE IF NOT EXISTS d.file (a Int8) ENGINE = Memory",
        "INSERT INTO file (a) VALUES ('open file (1)')",
        "INSERT INTO d.file (source, file) VALUES ('it', 'file(\\'x\\')')",
        "SELECT file, (file), file.a FROM file WHERE engine = 'File' AND source IN ('file(1)')",
        "SELECT 'file(1)' AS source, profile(1), FILE(1)",
        "ALTER TABLE t ADD INDEX file (a) TYPE minmax",
        "ALTER TABLE t ATTACH PARTITION 1, FETCH PARTITION 2 FROM '/clickhouse/tables/1'",
        "ATTACH TABLE attach",
        "ATTACH TABLE t (a String DEFAULT trim(BOTH 'x' FROM 'xax')) ENGINE = Log",
        "SELECT outfile FROM infile INTO",
        "TRUNCATE DATABASE default",
        "DROP DATABASE a PARALLEL WITH DROP TABLE default.t",
        "RENAME DATABASE a TO default",
        "CREATE TABLE t ENGINE = URL('http://host/file', CSV)",
        "CREATE TABLE t ENGINE = URL($$http://host/file$$, CSV, 'gz', headers('a' = concat('file:', 'x')))",
        "CREATE TABLE t ENGINE = URL(named, url = 'http://host/file', format = lower('X'))",
        "CREATE TABLE t (a Int8) ENGINE = Log SETTINGS disk = disk(type = cache, path = 'x', disk = 'd')",
        "CREATE TABLE t (a Int8) ENGINE = EmbeddedRocksDB PRIMARY KEY a",
        "CREATE TABLE t (a Int8) ENGINE = MergeTree ORDER BY a SETTINGS disk = disk(type = s3, local_x = 1)",
        DICTIONARY.format("HTTP(url 'http://host/file' format 'TSV')"),
        "SELECT 1 FROM t SETTINGS additional_table_filters = {'t': 'path = \\'file\\''}",
        "SELECT '\\x66ile('",
        "BACKUP TABLE d.t TO S3('https://b/x')",
        "RESTORE TABLE d.t FROM Memory('b')",
        "SYSTEM RESTORE DATABASE REPLICA d",
        "SELECT restore, backup FROM t WHERE engine = 'Backup' AND disk = 'x'",
        "CREATE DATABASE disk ENGINE = Atomic",
        "INSERT INTO t SETTINGS max_threads = 1 SELECT a, database = 'b' FROM t",
        "SELECT settings, database = 'b' FROM t WHERE Settings['a'] = 'b' AND database = 'b' SETTINGS a = 1",
        "UPDATE t SET database = 'b' WHERE a = 1",
        "ALTER NAMED COLLECTION c SET database = 'b'",
        "SELECT __oncluster_awaited_signed(1, 2, 3)",
        "DROP FUNCTION IF EXISTS __oncluster_awaited_signed",
        "CREATE NAMED COLLECTION c AS password = 'it''s a file', url = 'http://elsewhere'",
        "SELECT 1 FROM t SETTINGS additional_table_filters = {'t': 'a = 1'}",
    ],
)
def test_names_and_texts_that_only_look_like_it_are_not(sql: str) -> None:
    check(sql)


def test_settings_that_come_beside_a_statement_are_looked_at() -> None:
    with pytest.raises(SqlError, match="Setting database"):
        check_settings({"database": "b"})
    check_settings({"max_threads": "1", "additional_result_filter": "a = 'it''s file('"})
    for name, value in (
        ("additional_result_filter", "file('/x')"),
        ("additional_table_filters", "{'t':'file(1)'}"),
    ):
        with pytest.raises(SqlError):
            check_settings({name: value})
