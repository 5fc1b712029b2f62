"""Every rule of the lint finds what it is for, and can be silenced with a reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.config.model import Cluster, DistributedDdl, Replica, Shard, Topology
from engine.errors import SqlError
from engine.migrations.errors import MigrationFilesError
from engine.migrations.files import Direction, load_folder, read_folder
from engine.migrations.lint import LintReport, Severity, lint
from engine.migrations.model import RunRequest
from engine.migrations.preflight import preflight
from engine.migrations.selection import Selected
from engine.migrations.statements import Surroundings
from engine.migrations.states import MigrationRecord, MigrationState

GOOD = "CREATE TABLE IF NOT EXISTS d.t (a UInt8) ENGINE = ReplicatedMergeTree ORDER BY a;"
TABLE = "CREATE TABLE IF NOT EXISTS d.t (a Int8) ENGINE ="
GOOD_DOWN = "DROP TABLE IF EXISTS d.t;"


def topology(shards: int = 2, replicas: int = 2) -> Topology:
    def cluster(name: str) -> Cluster:
        return Cluster(
            name,
            tuple(
                Shard(s, tuple(Replica(f"n{s}{r}", 9000) for r in range(replicas)))
                for s in range(1, shards + 1)
            ),
        )

    return Topology({"shop": cluster("shop"), "other": cluster("other"), "empty": Cluster("empty", ())})


async def report(
    tmp_path: Path, files: dict[str, str], *, name: str = "shop", where: Topology | None = None
) -> LintReport:
    folder = tmp_path / name
    folder.mkdir()
    for file, text in files.items():
        (folder / file).write_text(text)
    migrations, problems = read_folder(folder)
    return await lint(migrations, problems, Surroundings(name, where or topology(), DistributedDdl()))


def standing(found: LintReport) -> list[tuple[str, str, int]]:
    return [(f.rule, Path(f.path).name, f.line) for f in found.findings if f.stands]


async def rules(tmp_path: Path, up: str, down: str | None = GOOD_DOWN) -> list[str]:
    files = {"1_a.up.sql": up} | ({} if down is None else {"1_a.down.sql": down})
    return sorted({rule for rule, _, _ in standing(await report(tmp_path, files))})


async def test_a_good_migration_is_clean(tmp_path: Path) -> None:
    assert await rules(tmp_path, GOOD) == []


async def test_an_up_file_that_says_that_there_is_nothing_to_do_is_meant(tmp_path: Path) -> None:
    assert await rules(tmp_path, "select 1;\n", "select 1;\n") == []


@pytest.mark.parametrize(
    ("up", "rule"),
    [
        ("CREATE TABLE d.t (a UInt8) ENGINE = Memory", "not-repeatable"),
        ("DROP TABLE d.x", "not-repeatable"),
        ("RENAME TABLE d.x TO d.y", "not-repeatable"),
        ("EXCHANGE TABLES d.x AND d.y", "not-repeatable"),
        ("ALTER TABLE d.x ADD COLUMN a UInt8", "not-repeatable"),
        ("ALTER TABLE d.x ADD COLUMN IF NOT EXISTS a UInt8, DROP COLUMN b", "not-repeatable"),
        ("ALTER TABLE d.x ADD INDEX i a TYPE minmax GRANULARITY 1", "not-repeatable"),
        ("ALTER TABLE d.x ATTACH PARTITION 1 FROM d.y", "not-repeatable"),
        ("DROP TABLE IF EXISTS d.x", "destructive"),
        ("TRUNCATE TABLE d.x", "destructive"),
        ("ALTER TABLE d.x DROP COLUMN IF EXISTS a", "destructive"),
        ("ALTER TABLE d.x DELETE WHERE 1", "destructive"),
        ("ALTER TABLE d.x UPDATE a = 1 WHERE 1", "rewrites-data"),
        ("ALTER TABLE d.x MODIFY COLUMN a UInt64", "rewrites-data"),
        ("INSERT INTO d.x SELECT 1", "data-statement"),
        ("SELECT 1 FROM d.t", "data-statement"),
        (f"ALTER TABLE d.x COMMENT COLUMN a '{'x' * 262144}'", "too-long"),
        ("-- oncluster: setting.max_query_size=20\n" + GOOD, "too-long"),
        ("ALTER TABLE d.x ATTACH PARTITION 1", "not-on-cluster"),
        ("CREATE TABLE IF NOT EXISTS d.t ON CLUSTER other (a UInt8) ENGINE = Memory", "other-cluster"),
        ("-- oncluster: cluster=gone\nCREATE DATABASE IF NOT EXISTS d", "unknown-cluster"),
        ("CREATE TABLE IF NOT EXISTS d.t (a Int8) ENGINE = MergeTree ORDER BY a", "not-replicated"),
        (
            f"{TABLE} ReplicatedMergeTree('/t', '{{replica}}') ORDER BY a",
            "replicated-path",
        ),
        (
            f"{TABLE} ReplicatedMergeTree('/{{shard}}', 'r1') ORDER BY a",
            "replicated-path",
        ),
        (f"{TABLE} ReplicatedMergeTree('/{{shard}}') ORDER BY a", "engine-arguments"),
        (f"{TABLE} ReplicatedReplacingMergeTree('/{{shard}}', a) ORDER BY a", "engine-arguments"),
        (f"{TABLE} Distributed(shop, d)", "engine-arguments"),
        (f"{TABLE} `Distributed`(shop, d)", "engine-arguments"),
        (f"{TABLE} `Kafka`('b:9092', 't', 'g')", "engine-arguments"),
        (f"{TABLE} Kafka('b:9092', 't', 'g')", "engine-arguments"),
        (f"{TABLE} Kafka SETTINGS kafka_broker_list = 'b', kafka_topic_list = 't'", "engine-arguments"),
        (f"{TABLE} ReplicatedMergeTree ORDER BY a AS SELECT 1 AS a", "filled-by-each-host"),
        (f"{TABLE} Memory AS WITH 1 AS x SELECT x AS a", "filled-by-each-host"),
        (
            "CREATE MATERIALIZED VIEW IF NOT EXISTS d.v ENGINE = Memory POPULATE AS SELECT a FROM d.t",
            "filled-by-each-host",
        ),
        (f"{TABLE} Distributed(shopp, d, t)", "distributed-cluster"),
        (f'{TABLE} "Distributed"(shopp, d, t)', "distributed-cluster"),
        (f"{TABLE} Distributed('shopp', d, t, rand())", "distributed-cluster"),
        ("CREATE USER IF NOT EXISTS u IDENTIFIED BY 'hunter2'", "secret"),
        ("-- nothing yet", "empty-migration"),
        ('-- oncluster: allow=everything reason="x"\n' + GOOD, "unknown-rule"),
        (GOOD + "\n-- oncluster-next: cluster=other\nCREATE DATABASE IF NOT EXISTS e", "mixed-clusters"),
    ],
)
async def test_each_rule_finds_its_mistake(tmp_path: Path, up: str, rule: str) -> None:
    assert rule in await rules(tmp_path, up)


@pytest.mark.parametrize(
    ("up", "named"),
    [
        ("SYSTEM REFRESH VIEW d.v", "ClickHouse has no ON CLUSTER for SYSTEM REFRESH VIEW"),
        ("CREATE TEMPORARY TABLE t (a UInt8)", "ClickHouse has no ON CLUSTER for CREATE TEMPORARY TABLE"),
        ("CREATE TABL d.t (a UInt8)", "is a word misspelt?"),
        ("SYSTEM DROP REPLICA 'r' FROM TABLE d.t", "SYSTEM DROP REPLICA loses what is there"),
    ],
)
async def test_a_finding_names_the_statement_as_it_was_read(tmp_path: Path, up: str, named: str) -> None:
    found = await report(tmp_path, {"1_a.up.sql": up, "1_a.down.sql": GOOD_DOWN})
    assert any(named in finding.message for finding in found.findings), found.findings


async def test_a_down_file_alone_is_told_and_may_say_why_and_its_statements_are_judged(
    tmp_path: Path,
) -> None:
    files = {"1_a.up.sql": GOOD, "1_a.down.sql": GOOD_DOWN, "3_c.down.sql": "\nSELECT x"}
    found = await report(tmp_path, files)
    assert standing(found) == [
        ("missing-up", "3_c.down.sql", 0),
        ("version-gap", "3_c.down.sql", 0),
        ("data-statement", "3_c.down.sql", 2),
    ]
    (tmp_path / "again").mkdir()
    files["3_c.down.sql"] = f'-- oncluster: allow=version-gap,missing-up reason="x"\n{GOOD_DOWN}'
    assert standing(await report(tmp_path / "again", files)) == []


@pytest.mark.parametrize(
    "up",
    [
        f"{TABLE} ReplicatedMergeTree('/{{order_shard}}/t', '{{replica}}') ORDER BY a",
        "ALTER TABLE d.add ADD COLUMN IF NOT EXISTS `DROP` String DEFAULT 'ADD COLUMN' COMMENT 'DROP INDEX'",
        "ALTER TABLE d.x MODIFY COMMENT 'DROP INDEX i'",
        "CREATE OR REPLACE VIEW d.v AS SELECT 1 AS a",
        "ALTER TABLE d.x RENAME COLUMN IF EXISTS a TO b",
        "ALTER TABLE d.x COMMENT COLUMN a 'x'",
    ],
)
async def test_what_can_be_repeated_is_not_told_off(tmp_path: Path, up: str) -> None:
    assert "not-repeatable" not in await rules(tmp_path, up)


@pytest.mark.parametrize(
    "up",
    [
        f"{TABLE} ReplicatedMergeTree ORDER BY a EMPTY AS SELECT 1 AS a",
        "CREATE TABLE IF NOT EXISTS d.t AS d.s ENGINE = Distributed(shop, d, s)",
        "CREATE TABLE IF NOT EXISTS d.t AS d.s ENGINE = Distributed('{cluster}', d, s)",
        "CREATE TABLE IF NOT EXISTS d.t AS d.s ENGINE = Distributed(`other`, d, s)",
        "CREATE MATERIALIZED VIEW IF NOT EXISTS d.v TO d.t AS SELECT a FROM d.s",
        "CREATE VIEW IF NOT EXISTS d.v AS SELECT a FROM d.s",
    ],
)
async def test_what_is_empty_on_each_host_and_clusters_that_are_there_are_no_finding(
    tmp_path: Path, up: str
) -> None:
    assert not {"filled-by-each-host", "distributed-cluster"} & set(await rules(tmp_path, up))


@pytest.mark.parametrize(
    "engine",
    [
        "ReplicatedMergeTree ORDER BY a",
        "ReplicatedReplacingMergeTree(a) ORDER BY a",
        "ReplicatedMergeTree('/{shard}', '{replica}') ORDER BY a",
        "ReplicatedGraphiteMergeTree('graphite_rollup') ORDER BY a",
        "Distributed('{cluster}', d, concat('t', '2'), cityHash64(a, 1), 'default') SETTINGS unheard_of = 1",
        "Kafka('b:9092', 't', 'g', 'JSONEachRow')",
        "Kafka('b:9092', 't') SETTINGS kafka_format = 'CSV', kafka_group_name = 'g'",
        "Kafka(of_our_brokers, kafka_topic_list = 't')",
    ],
)
async def test_engines_with_as_many_arguments_as_they_take_are_no_finding(
    tmp_path: Path, engine: str
) -> None:
    assert "engine-arguments" not in await rules(tmp_path, f"{TABLE} {engine}")


def replicated(table: str, path: str) -> str:
    return f"{table} (a Int8) ENGINE = ReplicatedMergeTree('/{{shard}}/{path}', '{{replica}}') ORDER BY a"


X, OWN = f"CREATE TABLE {replicated('d.x', 'x')};", f"CREATE TABLE {replicated('d.x', '{table}')};"


@pytest.mark.parametrize(
    ("up", "second"),
    [
        (f"{X} CREATE TABLE d.y AS d.x", "d.y"),
        (f"{OWN} CREATE TABLE d.y CLONE AS d.x", "d.y"),
        (f"{X} CREATE TABLE {replicated('d.y', 'x/')}", "d.y"),
        (f"{OWN} RENAME TABLE d.x TO d.z, d.w TO d.x; {OWN}", "d.x"),
        (f"CREATE TABLE {replicated('d.x', '{uuid}')}; CREATE TABLE d.y AS d.x", ""),
        (f"{OWN} CREATE TABLE {replicated('d.y', '{table}')}", ""),
        (f"{X} CREATE TABLE d.y AS d.x ENGINE = Log", ""),
        (f"{X} DROP TABLE d.x SYNC; CREATE TABLE {replicated('d.y', 'x')}", ""),
        (f"{X} CREATE TABLE IF NOT EXISTS {replicated('d.x', 'x')}", ""),
        ("CREATE TABLE d.x (a Int8) ENGINE = ReplicatedMergeTree ORDER BY a; CREATE TABLE d.y AS d.x", ""),
    ],
)
async def test_two_tables_with_one_replication_path_are_an_error(
    tmp_path: Path, up: str, second: str
) -> None:
    """Every host refused the second one (253), after a rehearsal, which has no Keeper, had passed it."""
    found = [f for f in (await report(tmp_path, {"1_a.up.sql": up})).findings if f.code == 253]
    assert [finding.message.partition(" has the")[0] for finding in found] == [second] * bool(second)
    assert {finding.rule for finding in found} <= {"replicated-path"}


async def test_a_table_without_a_name_is_left_to_the_parser(tmp_path: Path) -> None:
    found = await report(tmp_path, {"1_a.up.sql": "CREATE TABLE (a Int8) ENGINE = Log"})
    assert "replicated-path" not in {finding.rule for finding in found.findings}


async def test_a_cluster_that_is_not_configured_or_has_no_hosts_is_an_error(tmp_path: Path) -> None:
    missing = await report(tmp_path, {"1_a.up.sql": GOOD, "1_a.down.sql": GOOD_DOWN}, name="nowhere")
    assert {f.code for f in missing.errors if f.rule == "unknown-cluster"} == {701}
    empty = await report(tmp_path, {"1_a.up.sql": GOOD, "1_a.down.sql": GOOD_DOWN}, name="empty")
    assert [f.rule for f in empty.errors] == ["no-hosts"]


async def test_gaps_and_missing_and_incomplete_down_files_are_found(tmp_path: Path) -> None:
    found = await report(
        tmp_path,
        {
            "1_a.up.sql": GOOD,
            "3_b.up.sql": f"CREATE DATABASE IF NOT EXISTS e; {TABLE} Memory".replace("d.t", "d.u"),
            "3_b.down.sql": "DROP TABLE IF EXISTS d.u",
            "4_c.up.sql": GOOD.replace("d.t", "d.w"),
            "4_c.down.sql": "",
            "5_d.up.sql": GOOD.replace("d.t", "d.x"),
            "5_e.down.sql": "DROP TABLE IF EXISTS d.x",
        },
    )
    assert set(standing(found)) == {
        ("version-gap", "3_b.up.sql", 0),
        ("missing-down", "1_a.up.sql", 0),
        ("down-incomplete", "3_b.down.sql", 0),
        ("empty-down", "4_c.down.sql", 0),
        ("title-differs", "5_e.down.sql", 0),
    }


async def test_a_rule_is_silenced_for_one_statement_or_the_file_and_its_reason_is_kept(
    tmp_path: Path,
) -> None:
    up = (
        '-- oncluster: allow=missing-down,not-repeatable reason="a one-way door"\n'
        "DROP TABLE d.a;\n"
        '-- oncluster-next: allow=destructive reason="it is a cache"\n'
        "DROP TABLE d.b;\n"
    )
    found = await report(tmp_path, {"1_a.up.sql": up})
    assert standing(found) == [("destructive", "1_a.up.sql", 2)]
    assert {(f.rule, f.line, f.silenced_by) for f in found.silenced} == {
        ("missing-down", 0, "a one-way door"),
        ("not-repeatable", 2, "a one-way door"),
        ("not-repeatable", 4, "a one-way door"),
        ("destructive", 4, "it is a cache"),
    }


async def test_problems_of_files_are_findings_too(tmp_path: Path) -> None:
    found = await report(tmp_path, {"one.up.sql": GOOD, "1_a.up.sql": "SELECT 'open"})
    assert standing(found) == [("syntax", "1_a.up.sql", 1), ("file-name", "one.up.sql", 0)]
    assert all(f.severity is Severity.ERROR for f in found.errors)


async def test_what_the_real_parser_refuses_is_a_finding_at_its_statement(tmp_path: Path) -> None:
    folder = tmp_path / "shop"
    folder.mkdir()
    (folder / "1_a.up.sql").write_text(f"{GOOD}\nCREATE TABLE IF NOT EXISTS d.t (;\nDROP TABLE ?DB.x")

    async def parser(sql: str) -> None:
        if "(;" in f"{sql};":
            raise SqlError(62, "Syntax error: failed at position 33 (USERR): USERR u IDENTIFIED BY 'hunter2'")
        if "?DB" in sql:
            raise SqlError(62, "Syntax error: failed at position 12 (?)")

    migrations, problems = read_folder(folder)
    found = await lint(
        migrations, problems, Surroundings("shop", topology(), DistributedDdl()), validator=parser
    )
    assert [(f.line, f.rule) for f in found.errors] == [(2, "syntax"), (3, "syntax")]
    assert "USERR u IDENTIFIED [HIDDEN]" in found.errors[0].message
    assert "hunter2" not in found.errors[0].message


async def test_the_demo_s_folders_are_clean() -> None:
    where = Topology({name: topology(3, 3).clusters["shop"] for name in ("order_cluster", "log_cluster")})
    where = Topology({n: Cluster(n, c.shards) for n, c in where.clusters.items()})
    root = Path(__file__).parents[3] / "migrations"
    for folder in sorted(path for path in root.iterdir() if path.is_dir()):
        migrations, problems = read_folder(folder)
        found = await lint(migrations, problems, Surroundings(folder.name, where, DistributedDdl()))
        assert [str(f) for f in (*found.errors, *found.warnings)] == []


@pytest.mark.parametrize(
    ("sql", "instead"),
    [("SET max_threads = 1", "setting.NAME=VALUE"), ("USE d", "database=NAME")],
)
async def test_what_other_tools_send_in_a_session_is_refused_with_what_to_write_instead(
    tmp_path: Path, sql: str, instead: str
) -> None:
    found = await report(tmp_path, {"1_a.up.sql": sql})
    (finding,) = [f for f in found.errors if f.rule == "data-statement"]
    assert instead in finding.message

    where = Surroundings("shop", topology(), DistributedDdl())
    migration = load_folder(tmp_path / "shop").migrations[0]
    assert migration.up is not None
    record = MigrationRecord(1, "a", Direction.UP, 1, MigrationState.PENDING, 1, "", ())
    with pytest.raises(MigrationFilesError, match=rf"DDL queries\. The statement .* Instead, .*{instead}"):
        preflight([Selected(migration, migration.up, record, 1)], RunRequest("r"), where)


async def test_a_statement_in_a_replicated_database_would_be_refused_by_every_host(tmp_path: Path) -> None:
    made = "CREATE DATABASE IF NOT EXISTS r ENGINE = Replicated('/db/r', '{shard}', '{replica}');"
    files = {
        "1_a.up.sql": made,
        "1_a.down.sql": "DROP DATABASE IF EXISTS r;",
        "2_b.up.sql": f"{GOOD}\n{GOOD.replace('d.t', 'r.t')}",
        "2_b.down.sql": f"{GOOD_DOWN}\n-- oncluster-next: database=r\nDROP TABLE IF EXISTS t;",
    }
    found = [place for place in standing(await report(tmp_path, files)) if place[0] == "replicated-database"]
    assert found == [
        ("replicated-database", "2_b.down.sql", 3),
        ("replicated-database", "2_b.up.sql", 2),
    ]
