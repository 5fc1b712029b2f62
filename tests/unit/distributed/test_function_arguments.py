"""`cluster()` and its kin: arguments that are expressions, and places where they cannot be used."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from engine.config.model import Topology, User
from engine.errors import Code, SqlError
from engine.node.distributed.functions.constant_arguments import with_constants
from engine.node.distributed.functions.table_functions import table_functions
from engine.node.statements.statement import Asked
from tests.unit.distributed.test_select_remembered import World, world
from tests.unit.distributed.test_select_shapes import Bench, bench

__all__ = ["bench", "world"]


@pytest.fixture
def constants(bench: Bench) -> Iterator[Any]:
    def of(sql: str) -> str:
        session = bench.pool.session(database="one", one_shot=True)
        return bench.loop.run_until_complete(with_constants(Asked(sql, User("u"), session), sql))

    yield of


@pytest.mark.parametrize(
    ("given", "same"),
    [
        ("SELECT * FROM cluster('c', concat('s', '1'), t)", "SELECT * FROM cluster('c', 's1', t)"),
        ("SELECT 1 FROM cluster(concat('c', ''), s1.t)", "SELECT 1 FROM cluster('c', s1.t)"),
        (
            "SELECT 1 FROM cluster(c, s1, lower('T'), id + 1)",
            "SELECT 1 FROM cluster(c, s1, 't', id + 1)",
        ),
        ("SELECT 1 FROM cluster(c, concat('a', '.t'), id + 1)", "SELECT 1 FROM cluster(c, 'a.t', id + 1)"),
        ("SELECT 1 FROM cluster(c, s1.t, id + 1)", "SELECT 1 FROM cluster(c, s1.t, id + 1)"),
        ("SELECT 1 FROM remote('h' || ':9000', s1.t)", "SELECT 1 FROM remote('h:9000', s1.t)"),
        (
            "INSERT INTO FUNCTION cluster(c, lower('A'), t)",
            "INSERT INTO FUNCTION cluster(c, 'a', t)",
        ),
        ("DESCRIBE cluster(c, lower('A'), t)", "DESCRIBE cluster(c, 'a', t)"),
    ],
)
def test_a_constant_expression_is_its_value(constants: Any, given: str, same: str) -> None:
    assert constants(given) == same


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 1 FROM cluster(c, currentDatabase(), t)",
        "SELECT 1 FROM cluster(c, numbers(10))",
        "SELECT 1 FROM cluster(c, of_another_version(10))",
        "SELECT 1 FROM cluster(c, view(SELECT 1), id + 1)",
        "SELECT cluster(concat('a', 'b'))",
        "SELECT 1 FROM remote('h',, s1, t)",
        "SELECT 1 FROM cluster(,)",
    ],
)
def test_what_is_no_constant_expression_stays(constants: Any, sql: str) -> None:
    assert constants(sql) == sql


@pytest.mark.parametrize("address", ["h:x", "h:99999", "concat(h:9000)"])
def test_an_address_without_a_proper_port_is_refused(address: str) -> None:
    with pytest.raises(SqlError, match="is no port") as refused:
        table_functions(f"SELECT 1 FROM remote('{address}', a.t)", lambda: Topology({}), "default")
    assert refused.value.code == Code.BAD_ARGUMENTS


@pytest.mark.parametrize(
    "sql",
    [
        "CREATE VIEW v AS SELECT id FROM cluster('c', s1.events)",
        "CREATE MATERIALIZED VIEW v ENGINE = Log AS SELECT 1 FROM clusterAllReplicas('c', s1.people)",
        "CREATE TABLE t AS cluster('c', s1.events)",
        "CREATE TABLE t AS remote('127.0.0.1', s1.events)",
        "CREATE TABLE t (id UInt8) AS remoteSecure('127.0.0.1', 's1', 'events')",
        "DELETE FROM extra WHERE id IN (SELECT id FROM cluster('c', s1.events))",
        "ALTER TABLE extra DELETE WHERE id IN (SELECT id FROM cluster('c', s1.events))",
        "UPDATE extra SET id = 1 WHERE id IN (SELECT id FROM cluster('c', s1.events))",
    ],
)
def test_where_chdb_would_have_to_know_the_cluster_it_is_said_what_can_be_done(
    world: World, sql: str
) -> None:
    with pytest.raises(SqlError, match=r"cannot read other nodes by (cluster|remote)") as refused:
        world.ask(sql)
    assert refused.value.code == Code.NOT_IMPLEMENTED
    assert refused.value.hint
