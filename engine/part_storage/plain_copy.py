"""A table with links of all parts that readers see, without replicated names: for tables of chDB's own.

The name of a part is its `uuid.txt` (`part_uuid`), which chDB would take along, and CHECK TABLE of a table
without UUIDs finds a file too many then.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from engine.names import TableName
from engine.part_storage.scratch_tables import Scratch, ScratchTables
from engine.part_storage.table_state import TableState
from engine.part_storage.workers import Connection, Workers

_MAX_TRIES = 5


@asynccontextmanager
async def plain_copy(state: TableState, scratch: ScratchTables, workers: Workers) -> AsyncIterator[TableName]:
    """The parts are those of one moment. Raises SqlError 40."""
    copy = await workers.run(lambda connection: _made(connection, state, scratch))
    try:
        yield copy.name
    finally:
        scratch.drop_later(copy)


def _made(connection: Connection, state: TableState, scratch: ScratchTables) -> Scratch:
    tries = 0
    while True:
        tries += 1
        visible = [local.visible for local in state.active.values()]
        try:
            return scratch.copied(connection, "copy", visible)
        except FileNotFoundError:  # merged away in this moment
            if tries == _MAX_TRIES:
                raise
