"""A definition that one host has, made once more on another."""

from __future__ import annotations

from engine.client import NodeClient
from engine.names import quote_string
from engine.sql.lenient import LENIENT

_MOST_BYTES = 1 << 30
"""Servers before 19 do not read 0 as no limit."""


async def make_again(client: NodeClient, sql: str) -> None:
    """Run the CREATE or ALTER, also where the definition needed settings that it does not show, such as
    `allow_suspicious_low_cardinality_types`. Raises as `NodeClient.command`."""
    names = ", ".join(map(quote_string, LENIENT))
    known = await client.query_rows(f"SELECT name FROM system.settings WHERE name IN ({names})")
    settings = {name: LENIENT[name] for (name,) in known.rows}
    await client.command(sql, settings={**settings, "max_query_size": str(_MOST_BYTES)})
