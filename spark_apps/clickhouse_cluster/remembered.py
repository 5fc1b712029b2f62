"""Whether a table surely still knows the blocks that it was given since some moment.

It knows the last so many, for so long (`Window`), and forgets the oldest first. So it knows all that came
after a block which it knows. A moment at which it knew none has but numbers to go by.
"""

from __future__ import annotations

import time

from engine.names import quote_string
from spark_apps.clickhouse_cluster import staging
from spark_apps.clickhouse_cluster.engine_text import Window
from spark_apps.clickhouse_cluster.http import Server
from spark_apps.clickhouse_cluster.target import Target


def is_within(window: Window, *, since_s: int, blocks: int) -> bool:
    """Whether nothing was forgotten that came since then, if there are no more `blocks` than these. With half
    of the time to spare."""
    return time.time() - since_s <= window.seconds / 2 and blocks < window.blocks


def newest_block(server: Server, target: Target, keeper_path: str) -> str:
    """What names the newest block of the table now; empty where it has none."""
    if keeper_path:
        (row,) = server.rows(
            "SELECT argMax(name, czxid) AS newest FROM system.zookeeper "
            f"WHERE path = {quote_string(f'{keeper_path}/blocks')}"
        )
        return str(row["newest"])
    parts = (part for some in staging.parts(server, target).values() for part in some)
    return str(staging.last_block(parts))


def is_remembered(server: Server, target: Target, keeper_path: str, *, newest: str, at: int) -> bool:
    """Whether the table knows all blocks that came since `newest` was that, at the time `at`."""
    if not keeper_path:
        return int(newest_block(server, target, "")) - int(newest) < target.window.blocks
    if newest:
        return staging.has_block(server, keeper_path, newest)
    known = staging.blocks(server, target, keeper_path).number
    return is_within(target.window, since_s=at, blocks=known)
