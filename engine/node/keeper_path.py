"""Paths in Keeper as statements write them: one of another Keeper has its name in front, `aux:/path`.

Source: ClickHouse's zkutil::extractZooKeeperName.
"""

from __future__ import annotations

from engine.errors import Code, SqlError

_OWN = frozenset({"default", "zookeeper"})


def path_in_own_keeper(path: str) -> str:
    """Without the name of the node's own Keeper. Raises SqlError 48 for another one's."""
    keeper, colon, rest = path.partition(":")
    if not colon or "/" in keeper:
        return path
    if keeper not in _OWN:
        raise SqlError(
            Code.NOT_IMPLEMENTED,
            f"There is no auxiliary ZooKeeper '{keeper}'",
            hint="A node has one Keeper: leave the name and its colon out.",
        )
    return rest
