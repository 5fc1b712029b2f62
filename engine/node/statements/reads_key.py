"""By what a node calls everything that other nodes do for one of its statements.

It goes with each request as `session_timeout`, which no ClickHouse server of any version reads where there is
no `session_id`: of a parameter that it does not know it would say so. A node begins its query id with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from engine.env import Env
from engine.names import quote_string

PREFIX = "oncluster-reads-"
READS_PLACE = f"{PREFIX}place"
"""Stands for the key in texts that are kept for later statements. No key contains it: where it is looked for
again, it has not been filled in."""


def new_reads_key(env: Env) -> str:
    return f"{PREFIX}{env.new_uuid().hex}"


@dataclass(frozen=True, slots=True)
class FilledIn:
    """What texts of one statement get that are kept for later ones, too: its `key`, and by their places the
    headers by which other nodes let it in. Without a key they stay as they are."""

    key: str = ""
    authorizations: Mapping[str, str] = field(default_factory=dict, repr=False)

    def of(self, text: str) -> str:
        """The text as chDB gets it."""
        if not self.key:
            return text
        text = text.replace(READS_PLACE, self.key)
        for place, header in self.authorizations.items():
            text = text.replace(place, header)
        return text


def query_id_of(key: str, new_query_id: str) -> str:
    """What a request with this `session_timeout` and without a session is called here."""
    is_ours = key.startswith(PREFIX) and key != READS_PLACE and key.replace("-", "").isalnum()
    return f"{key}-{new_query_id}" if is_ours else new_query_id


def kill_all_of(key: str) -> str:
    """The statement that ends it all on a node."""
    return f"KILL QUERY WHERE startsWith(query_id, {quote_string(f'{key}-')}) ASYNC"
