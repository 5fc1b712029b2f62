"""What is read of a replica: a table or view by its name, or a table function, which is executed there."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from engine.distributed.peers import Peer
from engine.names import TableName, quote_for_url
from engine.node.distributed.functions.inner_calls import InnerCalls
from engine.node.statements.statement import Asked

_PARAMETER = re.compile(r"\{\s*`?(\w+)`?\s*:")
_NAME_NO_TABLES = (
    "NUMBERS",
    "NUMBERS_MT",
    "ZEROS",
    "ZEROS_MT",
    "GENERATE_SERIES",
    "GENERATESERIES",
    "GENERATERANDOM",
    "PRIMES",
    "NULL",
    "VALUES",
    "URL",
)


@dataclass(frozen=True, slots=True)
class ReadPlace:
    """An empty database is the replica's default one. `function` is a call as it is written; then `table`
    says nothing. `request` are parameters of the request that the text needs: database, `param_…`."""

    table: TableName
    function: str = ""
    request: tuple[tuple[str, str], ...] = ()

    def text(self, peer: Peer) -> str:
        """What stands behind FROM in a statement on `peer`."""
        return self.function or peer.table(self.table.database, self.table.table)

    def seen_as(self, peer: Peer) -> str:
        """By which name it is remembered that it was seen there."""
        return self.text(peer) + (repr(self.request) if self.request else "")

    @property
    def parameters(self) -> Mapping[str, str]:
        return dict(self.request)

    @property
    def url_parameters(self) -> str:
        """With `&` before each."""
        return "".join(f"&{name}={quote_for_url(value)}" for name, value in self.request)

    def __str__(self) -> str:
        return self.function or str(self.table)


def place_of(asked: Asked, table: TableName, inner: InnerCalls) -> ReadPlace:
    """What a call reads of which `table` is the table, or stands for a function among `inner`.

    The names in it mean what they mean here, as with `cluster(c, t)`.
    """
    text = inner.text_of(table)
    if not text:
        return ReadPlace(table)
    used = set(_PARAMETER.findall(text))
    request = [(f"param_{name}", value) for name, value in sorted(asked.params.items()) if name in used]
    if asked.current_database != "default" and _may_name_tables(text):
        request.append(("database", asked.current_database))
    return ReadPlace(TableName("", ""), text, tuple(request))


def _may_name_tables(text: str) -> bool:
    """A database that is not on every node is no hindrance for a function that needs none."""
    words = text.upper()
    return "SELECT" in words or words.partition("(")[0].strip() not in _NAME_NO_TABLES
