"""Whether somebody really runs a replica whose host says that it is read-only.

A server that tries to activate a replica in vain creates `is_active` at each attempt and takes it back: seen
once, it may be such an attempt. Another server that runs the same replica keeps it. It only reads.
"""

from __future__ import annotations

from engine.env import Env
from engine.keeper.base import Keeper
from engine.replication.paths import TablePaths

_LOOKS = 10
_PAUSE_S = 0.3


async def is_kept_active(keeper: Keeper, env: Env, path: str, replica: str) -> bool:
    """Whether one and the same `is_active` is there at every look, for some seconds. Raises what Keeper
    raises."""
    node = TablePaths(path).replica(replica).is_active
    first = await keeper.exists(node)
    for _ in range(_LOOKS - 1):
        if first is None:
            return False
        await env.sleep(_PAUSE_S)
        stat = await keeper.exists(node)
        if stat is None or stat.czxid != first.czxid:
            return False
    return first is not None
