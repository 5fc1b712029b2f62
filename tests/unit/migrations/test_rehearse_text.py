"""What of a statement a rehearsal runs."""

from __future__ import annotations

import pytest

from engine.migrations.rehearse_text import for_rehearsal


@pytest.mark.parametrize(
    ("sql", "plain"),
    [
        (
            "CREATE TABLE d.t ON CLUSTER c (a Int8) ENGINE = ReplicatedMergeTree('/p', '{r}') ORDER BY a",
            "CREATE TABLE d.t (a Int8) ENGINE = MergeTree ORDER BY a",
        ),
        (
            "CREATE TABLE d.t (a Int8) ENGINE=ReplicatedSummingMergeTree('/p','r', (b, c)) ORDER BY a",
            "CREATE TABLE d.t (a Int8) ENGINE=SummingMergeTree((b, c)) ORDER BY a",
        ),
        (
            "CREATE TABLE d.t (a Int8) ENGINE = ReplicatedReplacingMergeTree(v) ORDER BY a",
            "CREATE TABLE d.t (a Int8) ENGINE = ReplacingMergeTree(v) ORDER BY a",
        ),
        ("CREATE DATABASE d ENGINE = Replicated('/p', '{shard}', '{replica}')", "CREATE DATABASE d "),
        (
            "CREATE TABLE t (a Int8) ENGINE = Distributed(getMacro('c'), d, l, f(a, 1), hot)",
            "CREATE TABLE t (a Int8) ENGINE = Distributed('cluster_of_a_scratch', d, l, f(a, 1), 'default')",
        ),
        (
            "CREATE TABLE d.t AS d.l ENGINE=Distributed('{cluster}', d, l)",
            "CREATE TABLE d.t AS d.l ENGINE=Distributed('cluster_of_a_scratch', d, l)",
        ),
        (
            "CREATE TABLE d.t (a Int8) ENGINE = S3('http://b/k', 'id', 'key') PARTITION BY a COMMENT 'c'",
            "CREATE TABLE d.t (a Int8) ENGINE = Null COMMENT 'c'",
        ),
        ("CREATE TABLE s3 (a Int8) ENGINE = `S3`('http://b/k')", "CREATE TABLE s3 (a Int8) ENGINE = Null "),
        ("CREATE TABLE s3 ENGINE = S3('http://b/k')", None),
        (
            "CREATE TABLE d.t (a Int8) ENGINE \"ReplicatedMergeTree\"('/p', '{r}') ORDER BY a",
            "CREATE TABLE d.t (a Int8) ENGINE MergeTree ORDER BY a",
        ),
        ("CREATE DATABASE d ENGINE = S3('http://b/', 'id', 'key')", None),
        ("CREATE TABLE d.t AS s3('http://b/k')", None),
        ("CREATE TABLE d.t AS `s3`('http://b/k')", None),
        (
            "CREATE TABLE d.t ENGINE = MergeTree ORDER BY a AS SELECT a AS b FROM s3('http://b/k')",
            "CREATE TABLE d.t ENGINE = MergeTree ORDER BY a EMPTY AS SELECT a AS b FROM s3('http://b/k')",
        ),
        ("CREATE TABLE d.t AS d.s ENGINE = Memory", "CREATE TABLE d.t AS d.s ENGINE = Memory"),
        (
            "CREATE MATERIALIZED VIEW d.v ENGINE = MergeTree ORDER BY populate POPULATE AS SELECT 1",
            "CREATE MATERIALIZED VIEW d.v ENGINE = MergeTree ORDER BY populate  AS SELECT 1",
        ),
        (
            "CREATE MATERIALIZED VIEW d.v REFRESH EVERY 1 DAY TO d.t AS SELECT a FROM url('http://b/k')",
            "CREATE MATERIALIZED VIEW d.v REFRESH EVERY 1 DAY TO d.t EMPTY AS SELECT a FROM url('http://b/k')",
        ),
        (
            "CREATE TABLE t (a D) TTL a TO DISK 'x', b TO VOLUME 'y' SETTINGS disk = disk(type = s3)",
            "CREATE TABLE t (a D) TTL a TO DISK 'default', b TO VOLUME 'default' SETTINGS disk = 'default'",
        ),
        (
            "ALTER TABLE d.t MODIFY SETTING storage_policy = 'tiered'",
            "ALTER TABLE d.t MODIFY SETTING storage_policy = 'default'",
        ),
        ("ALTER TABLE d.t MOVE PARTITION 1 TO VOLUME 'cold'", None),
        ("CREATE TABLE d.t (a Int8) ENGINE = Memory", "CREATE TABLE d.t (a Int8) ENGINE = Memory"),
        (
            "CREATE TABLE d.t (a String DEFAULT 'ReplicatedMergeTree') ENGINE = Memory",
            "CREATE TABLE d.t (a String DEFAULT 'ReplicatedMergeTree') ENGINE = Memory",
        ),
    ],
)
def test_a_statement_is_rewritten_for_a_lone_chdb_and_reaches_nothing_else(
    sql: str, plain: str | None
) -> None:
    assert for_rehearsal(sql).sql == plain
