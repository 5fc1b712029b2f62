"""By what a node calls everything that other nodes do for one of its statements.

It goes with each request as `quota_key`, which a ClickHouse server shows in `system.processes`, and which
means nothing unless it has keyed quotas. A node begins its query id with it.
"""

from __future__ import annotations

from engine.env import Env
from engine.names import quote_string

PREFIX = "oncluster-reads-"
READS_PLACE = f"{PREFIX}0"
"""Stands for the key in texts that are kept for later statements."""


def new_reads_key(env: Env) -> str:
    return f"{PREFIX}{env.new_uuid().hex}"


def query_id_of(key: str, new_query_id: str) -> str:
    """What a request with this `quota_key` is called here."""
    is_ours = key.startswith(PREFIX) and key != READS_PLACE and key.replace("-", "").isalnum()
    return f"{key}-{new_query_id}" if is_ours else new_query_id


def kill_all_of(key: str) -> str:
    """The statement that ends it all, on a node or a server."""
    return (
        f"KILL QUERY WHERE quota_key = {quote_string(key)} "
        f"OR startsWith(query_id, {quote_string(f'{key}-')}) ASYNC"
    )
