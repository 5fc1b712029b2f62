"""Arguments of `cluster()` and `remote()`, as they stand in a text."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from engine.config.model import Cluster, Replica, Shard, Topology, User
from engine.distributed.select.references import table_names
from engine.errors import Code, SqlError
from engine.names import TableName
from engine.node.distributed.functions.inner_calls import InnerCalls
from engine.node.distributed.functions.read_place import place_of
from engine.node.distributed.functions.table_functions import table_functions, target_function
from engine.node.statements.statement import Asked

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


def test_remote_takes_a_name_without_quotes_for_that_of_a_cluster() -> None:
    for argument, cluster in (("c", "c"), ("`c`", "c"), ("'c'", ""), ("n1", "")):
        sql = f"SELECT * FROM remote({argument}, db.t, k)"
        [call] = table_functions(sql, lambda: TOPOLOGY, "mine")
        assert (call.cluster.name, call.table, call.sharding_key) == (cluster, TableName("db", "t"), "k")


FUNCTIONS = ["view(SELECT * FROM t, cluster(c, u))", "numbers(5)", "merge('db', '^t')", "`numbers`(5), k"]
CALLS = ["cluster('c', {})", "clusterAllReplicas(c, {})", "remote('n1', {})", "remoteSecure('n1', {})"]


@pytest.mark.parametrize("argument", FUNCTIONS)
@pytest.mark.parametrize("function", CALLS)
def test_a_table_function_in_the_place_of_a_table_is_text_for_the_shards(
    function: str, argument: str
) -> None:
    """Nothing that looks for names of tables in the statement finds those in it."""
    sql = f"SELECT a FROM {function.format(argument)} AS x JOIN cluster(c, numbers(1)) AS y USING a"
    inner = InnerCalls()
    hidden = inner.hidden(sql)
    first, second = table_functions(hidden, lambda: TOPOLOGY, "mine")
    assert inner.text_of(first.table) == argument.removesuffix(", k")
    assert inner.text_of(second.table) == "numbers(1)"
    assert first.sharding_key == ("k" if ", k" in argument else "")
    assert not table_names(hidden)
    assert inner.shown(hidden) == sql


@pytest.mark.parametrize(
    "sql", ["SELECT * FROM cluster(c, db.t)", "SELECT * FROM remote('n1', currentDatabase(), t)"]
)
def test_names_of_tables_stay(sql: str) -> None:
    assert InnerCalls().hidden(sql) == sql


def test_a_database_goes_along_with_functions_that_may_name_tables() -> None:
    def request(call: str) -> Mapping[str, str]:
        inner = InnerCalls()
        [found] = table_functions(inner.hidden(f"SELECT * FROM cluster(c, {call})"), lambda: TOPOLOGY, "mine")
        asked = Asked("", User("u"), None, database="mine", params={"n": "3", "other": "4"})  # type: ignore[arg-type]
        return place_of(asked, found.table, inner).parameters

    assert request("numbers({n:UInt8})") == {"param_n": "3"}
    assert request("merge('^t')") == {"database": "mine"}
    assert request("numbers((SELECT max(k) FROM t))") == {"database": "mine"}


def test_insert_does_not_write_to_a_table_function_on_other_nodes() -> None:
    with pytest.raises(SqlError, match="cannot write to the table function") as raised:
        target_function("INSERT INTO FUNCTION cluster(c, null('x UInt8')) VALUES", lambda: TOPOLOGY, "mine")
    assert raised.value.code == Code.NOT_IMPLEMENTED
