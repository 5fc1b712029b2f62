"""Which Keeper a path is in."""

from __future__ import annotations

import pytest

from engine.errors import SqlError
from engine.node.keeper_path import path_in_own_keeper


@pytest.mark.parametrize(
    ("path", "own"),
    [("/a/b", "/a/b"), ("default:/a", "/a"), ("zookeeper:/a", "/a"), ("/a:b/c", "/a:b/c"), ("a", "a")],
)
def test_the_name_of_the_own_keeper_may_stand_in_front(path: str, own: str) -> None:
    assert path_in_own_keeper(path) == own


def test_another_keeper_is_refused_by_its_name() -> None:
    with pytest.raises(SqlError, match="no auxiliary ZooKeeper 'aux'") as raised:
        path_in_own_keeper("aux:/a")
    assert raised.value.code == 48
