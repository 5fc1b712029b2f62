"""The znodes of a Replicated database are those of ClickHouse."""

from __future__ import annotations

import pytest

from engine.databases.joining import _database_ops
from engine.databases.paths import DROPPED, MARK, DatabasePaths, ReplicaName
from engine.errors import SqlError
from engine.keeper.base import Create, Remove

_PATHS = DatabasePaths("/d")
_ME = ReplicaName("s1", "r1")


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (_PATHS.entry(1), "/d/log/query-0000000001"),
        (_PATHS.entry(1, "try"), "/d/log/query-0000000001/try"),
        (_PATHS.entry(12, f"finished/{_ME}"), "/d/log/query-0000000012/finished/s1|r1"),
        (_PATHS.shard(1, "s1", "executed"), "/d/log/query-0000000001/shards/s1/executed"),
        (_PATHS.table("t.a-b"), "/d/metadata/t%2Ea%2Db"),
        (_PATHS.table("Übung"), "/d/metadata/%C3%9Cbung"),
        (_PATHS.replica(_ME, "log_ptr"), "/d/replicas/s1|r1/log_ptr"),
        (_PATHS.counter_lock, "/d/counter_lock"),
        (_PATHS.first_database_name, "/d/first_replica_database_name"),
    ],
)
def test_paths_are_those_of_clickhouse(path: str, expected: str) -> None:
    assert path == expected


def test_the_database_is_made_with_clickhouses_values_and_uses_up_number_0() -> None:
    ops = _database_ops(_PATHS, "db", 1000)
    values = {op.path: op.data for op in ops if isinstance(op, Create)}
    assert (MARK, DROPPED) == (b"DatabaseReplicated", b"DROPPED")
    assert values["/d"] == b"DatabaseReplicated"
    assert values["/d/max_log_ptr"] == b"1"
    assert values["/d/logs_to_keep"] == b"1000"
    assert values["/d/first_replica_database_name"] == b"db"
    assert [op.path for op in ops if isinstance(op, Remove)] == ["/d/counter/cnt-"]


@pytest.mark.parametrize("text", ["s", "s|", "|r", "s|r|x", ""])
def test_a_replica_name_has_exactly_one_bar(text: str) -> None:
    with pytest.raises(SqlError, match="Incorrect replica identifier"):
        ReplicaName.parse(text)
