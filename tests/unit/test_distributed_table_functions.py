"""Arguments of `cluster()` and `remote()`, as they stand in a text."""

from __future__ import annotations

import pytest

from engine.config.model import Cluster, Replica, Shard, Topology
from engine.errors import Code, SqlError
from engine.names import TableName
from engine.node.distributed.table_functions import table_functions

TOPOLOGY = Topology({"c": Cluster("c", (Shard(1, (Replica("n1", 9000),)),))})


def called(arguments: str) -> TableName:
    """The table that a call reads."""
    [call] = table_functions(f"SELECT * FROM {arguments}", lambda: TOPOLOGY, "mine")
    return call.table


@pytest.mark.parametrize(
    ("call", "table"),
    [
        ("cluster(c, db.t)", TableName("db", "t")),
        ("cluster('c', 'db', 't', k)", TableName("db", "t")),
        ("cluster(c, currentDatabase(), t)", TableName("mine", "t")),
        ("remote('n1', db.t)", TableName("db", "t")),
        ("remote('n1')", TableName("system", "one")),
    ],
)
def test_a_table_is_named_with_or_without_its_database(call: str, table: TableName) -> None:
    assert called(call) == table


@pytest.mark.parametrize("argument", ["view(SELECT 1)", "numbers(5)", "merge('db', '^t')", "numbers(5), k"])
@pytest.mark.parametrize("function", ["cluster('c', {})", "clusterAllReplicas(c, {})", "remote('n1', {})"])
def test_a_table_function_in_the_place_of_a_table_is_refused_as_such(function: str, argument: str) -> None:
    """As a name it was looked for on every replica, and no replica was said to answer."""
    with pytest.raises(SqlError, match="is a table function") as raised:
        called(function.format(argument))
    assert raised.value.code == Code.NOT_IMPLEMENTED
