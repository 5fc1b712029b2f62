"""CREATE TABLE of Distributed tables on tokens: what chDB gets, and which rows the table gets."""

from __future__ import annotations

from uuid import UUID

import pytest

from engine.names import TableName
from engine.node.distributed.registry.create_sql import CreateText, on_scratch
from engine.node.distributed.registry.overlooked import PLACEHOLDER

UUID_ = UUID("12345678-1234-4234-8234-123456789abc")
NAME = TableName("db", "t")
NONE = f"ENGINE = {PLACEHOLDER}"
HEAD = f"TABLE `db`.`t` UUID '{UUID_}'"
ENGINE = "ENGINE = Distributed(c, d, x, k) SETTINGS fsync_after_insert = 1"


@pytest.mark.parametrize(
    ("sql", "for_chdb", "select"),
    [
        (f"CREATE TABLE t (k UInt8) {ENGINE}", f"CREATE {HEAD} (k UInt8)  {NONE}", None),
        (f"CREATE OR REPLACE TABLE t (k UInt8) {ENGINE}", f"CREATE  {HEAD} (k UInt8)  {NONE}", None),
        (f"REPLACE TABLE t (k UInt8) {ENGINE}", f"CREATE {HEAD} (k UInt8)  {NONE}", None),
        (
            f"CREATE TABLE t {ENGINE} AS SELECT 1 AS k FROM (SELECT 2) ",
            f"CREATE {HEAD}  {NONE} EMPTY AS SELECT 1 AS k FROM (SELECT 2) ",
            "SELECT 1 AS k FROM (SELECT 2)",
        ),
        (
            f"CREATE TABLE t {ENGINE} AS WITH 1 AS k SELECT k COMMENT 'why';",
            f"CREATE {HEAD}  {NONE} EMPTY AS WITH 1 AS k SELECT k COMMENT 'why';",
            "WITH 1 AS k SELECT k",
        ),
        (
            f"CREATE TABLE t {ENGINE} EMPTY AS SELECT 1 AS k",
            f"CREATE {HEAD}  {NONE} EMPTY AS SELECT 1 AS k",
            None,
        ),
        (f"CREATE TABLE t ON CLUSTER c AS o {ENGINE}", f"CREATE {HEAD}  AS o  {NONE}", None),
    ],
)
def test_chdb_makes_an_empty_table_and_never_replaces(sql: str, for_chdb: str, select: str | None) -> None:
    text = CreateText(sql)
    assert text.for_chdb(UUID_, NAME) == for_chdb
    assert text.select == select
    assert text.clause == ENGINE.removeprefix("ENGINE = ")


def test_a_scratch_table_has_the_same_columns_and_comment() -> None:
    text = f"CREATE TABLE d.t (`k` UInt8 DEFAULT 1) {NONE} COMMENT 'why'"
    assert on_scratch(text, NAME) == (
        "CREATE TABLE `db`.`t` (`k` UInt8 DEFAULT 1) ENGINE = MergeTree ORDER BY tuple() COMMENT 'why'"
    )
