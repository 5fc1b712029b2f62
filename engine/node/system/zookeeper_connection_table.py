"""`system.zookeeper_connection`: which server the node's session is connected to.

Source: ClickHouse's StorageSystemZooKeeperConnection. The feature flags are ClickHouse Keeper's, which nobody
asks for here.
"""

from __future__ import annotations

from collections.abc import Iterable

from engine.env import Env
from engine.keeper.recipes import SessionHolder
from engine.node.statements.statement import Asked
from engine.node.system.system_tables import Row
from engine.sql import Token

_FLAGS = (
    "Enum16('FILTERED_LIST' = 0, 'MULTI_READ' = 1, 'CHECK_NOT_EXISTS' = 2, 'CREATE_IF_NOT_EXISTS' = 3, "
    "'REMOVE_RECURSIVE' = 4)"
)


class ZooKeeperConnectionTable:
    """A row while there is a session; its server is empty while that has no connection."""

    name = "zookeeper_connection"
    columns = (
        "name String, host String, port UInt16, `index` Nullable(UInt8), connected_time DateTime, "
        "session_uptime_elapsed_seconds UInt64, is_expired UInt8, keeper_api_version UInt8, client_id Int64, "
        f"xid Int64, enabled_feature_flags Array({_FLAGS}), availability_zone String, "
        "session_timeout_ms UInt64, last_zxid_seen Int64"
    )

    def __init__(self, holder: SessionHolder, env: Env) -> None:
        self._holder = holder
        self._env = env

    async def rows(self, asked: Asked, tokens: list[Token]) -> Iterable[Row]:
        keeper = self._holder.current
        if keeper is None:
            return []
        row: dict[str, object] = {
            "name": "default",
            "client_id": keeper.session_id,
            "session_timeout_ms": round(keeper.session_timeout_s * 1000),
            "index": None,
        }
        if (connection := keeper.connection) is not None:
            row |= {
                "host": connection.host,
                "port": connection.port,
                "index": connection.index,
                "connected_time": int(connection.since_s),
                "session_uptime_elapsed_seconds": max(0, int(self._env.now_s() - connection.since_s)),
                "xid": connection.requests,
                "last_zxid_seen": connection.transaction,
            }
        return [row]
