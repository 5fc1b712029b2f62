"""Statements that chDB carries out on this node's parts of a replicated table, and that change none of them.

A user names parts as `system.parts` shows them; chDB has names of its own (`part_uuid`). Here the ones are
put for the others into what chDB is asked, and back into what it answers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

from engine.errors import Code, SqlError
from engine.node.replicated.running.runtime import RunningTable
from engine.replication.part_name import PartName


async def on_local_parts(
    table: RunningTable, names: Sequence[str], run: Callable[[Mapping[str, str]], Awaitable[object]]
) -> None:
    """`run` gets chDB's names of the parts. A part that goes meanwhile is chDB's error.

    Raises SqlError 233 for what is no part's name, 232 for a part that readers do not see, and what `run`
    raises, with the parts' replicated names in it.
    """
    here = table.store.directories()
    local: dict[str, str] = {}
    for name in names:
        directory = here.get(PartName.parse(name))
        if directory is None:
            raise SqlError(
                Code.NO_SUCH_DATA_PART, f"Part {name} not found in table {table.ctx.name}, or not active"
            )
        local[name] = directory
    try:
        await run(local)
    except SqlError as error:
        message = error.message
        for name, directory in local.items():
            message = message.replace(directory, name)
        raise error.reworded(message) from error
