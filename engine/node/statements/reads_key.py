"""By what a node calls everything that other nodes do for one of its statements.

It goes with each request as `session_timeout`, which no ClickHouse server of any version reads where there is
no `session_id`: of a parameter that it does not know it would say so. A node begins its query id with it.
"""

from __future__ import annotations

from engine.env import Env
from engine.names import quote_string

PREFIX = "oncluster-reads-"
READS_PLACE = f"{PREFIX}place"
"""Stands for the key in texts that are kept for later statements. No key contains it: where it is looked for
again, it has not been filled in."""


def new_reads_key(env: Env) -> str:
    return f"{PREFIX}{env.new_uuid().hex}"


def query_id_of(key: str, new_query_id: str) -> str:
    """What a request with this `session_timeout` and without a session is called here."""
    is_ours = key.startswith(PREFIX) and key != READS_PLACE and key.replace("-", "").isalnum()
    return f"{key}-{new_query_id}" if is_ours else new_query_id


def kill_all_of(key: str) -> str:
    """The statement that ends it all on a node."""
    return f"KILL QUERY WHERE startsWith(query_id, {quote_string(f'{key}-')}) ASYNC"
