"""A Distributed table that chDB reads by itself is an error, and never a table without rows.

In chDB a Distributed table is a Merge table over a view of a name that nobody else uses (`PLACEHOLDER`). The
view fails as soon as somebody reads it: so does a statement in which the node did not find the name, and what
chDB runs without the node, such as a view that an INSERT is pushed to.

chDB keeps its database `system` in memory: the view is made when the node starts, and before the first table.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from engine.errors import Code, SqlError
from engine.names import TableName, quote_string
from engine.node.replicated.running.local_tables import LocalTables

OVERLOOKED = TableName("system", "a Distributed table")
PLACEHOLDER = "Merge('system', '^a Distributed table$')"
"""The engine in chDB. An INSERT that gets past the node, because the name has just come to mean a Distributed
table, or because chDB runs a view, is an error, too, and not lost."""

_TEXT = "A Distributed table cannot be read in this place"
_HINT = "Write what is read into a table of this node first, and read that."


async def make_overlooked_an_error(local: LocalTables) -> None:
    """May be called again. Raises SqlError."""
    await local.run(
        f"CREATE VIEW IF NOT EXISTS {OVERLOOKED.quoted} (never UInt8) AS SELECT toUInt8(1) AS never "
        f"FROM system.one WHERE throwIf(materialize(1), {quote_string(_TEXT)}) "
        "COMMENT 'What chDB reads in the place of a Distributed table: an error.'"
    )


def is_overlooked(error: SqlError) -> bool:
    """Whether it is the view's error."""
    return error.code == Code.FUNCTION_THROW_IF_VALUE_IS_NON_ZERO and error.message.startswith(_TEXT)


def explained(error: SqlError) -> SqlError:
    """The same, or the view's error as one of the node's own."""
    return SqlError(Code.NOT_IMPLEMENTED, f"{_TEXT}.", hint=_HINT) if is_overlooked(error) else error


@contextmanager
def overlooked_explained() -> Iterator[None]:
    """What runs inside raises the view's error as one of the node's own."""
    try:
        yield
    except SqlError as error:
        if is_overlooked(error):
            raise explained(error) from error
        raise
