"""The name under which the DDL queue knows an attempt at a statement; the reason why it is enqueued once.

The same attempt always has the same token, whoever sends it and however often. A new token comes only from a
new attempt (which the ledger numbers), from a new generation (after a rollback), from another text, or from
another ledger, which cannot know what the tokens of this one have done.
"""

from __future__ import annotations

import hashlib

from engine.migrations.files import Direction
from engine.names import escape_for_file_name

_LONGEST = 180


def token_for(
    *,
    ledger_id: str,
    cluster: str,
    version: int,
    direction: Direction,
    generation: int,
    statement: int,
    attempt: int,
    checksum: str,
) -> str:
    """At most 200 of the characters that the queue allows in a token."""
    name = escape_for_file_name(cluster).replace("%", "~")
    tail = f"{version}-{direction}-g{generation}-s{statement}-a{attempt}-{checksum[:16]}-{ledger_id[:8]}"
    token = f"migration-{name}-{tail}"
    if len(token) > _LONGEST:
        token = f"migration-~{hashlib.sha256(cluster.encode()).hexdigest()[:32]}-{tail}"
    return token
