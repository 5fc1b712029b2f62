"""What ALTER and PARTITION expressions mean for a model table.

ADD COLUMN c Type · DROP COLUMN c · RENAME COLUMN a TO b · MODIFY COLUMN c Type · MODIFY TTL expression
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from engine.errors import Code, SqlError
from engine.replication.columns import Column, Columns
from engine.replication.part_name import PartName, is_partition_id
from engine.replication.part_store import AlterPlan
from engine.replication.table_definition import TableDefinition

_COMMAND = re.compile(
    r"(ADD|DROP|RENAME|MODIFY|CLEAR) COLUMN (?:IF (?:NOT )?EXISTS )?`?(\w+)`?(?: (?:TO )?`?(.+?)`?)?\Z"
)
_TTL = re.compile(r"MODIFY TTL (.+)\Z")


def planned(definition: TableDefinition, commands: str) -> AlterPlan:
    """Raises SqlError 62 for unknown commands, 15 and 16 for columns that are there or are not."""
    mutations: list[str] = []
    for command in commands.split(", "):
        if match := _TTL.match(command):
            definition = replace(definition, metadata=replace(definition.metadata, ttl=match.group(1)))
            continue
        match = _COMMAND.match(command)
        if not match:
            raise SqlError(Code.SYNTAX_ERROR, f"The model does not understand {command!r}")
        verb, name, rest = match.groups()
        columns = definition.columns.by_name
        if (name in columns) == (verb == "ADD"):
            state = "there already" if name in columns else "not there"
            raise SqlError(Code.BAD_ARGUMENTS, f"Column {name} is {state}")
        match verb:
            case "ADD":
                columns[name] = Column(name, rest)
            case "DROP":
                del columns[name]
            case "RENAME":
                columns = {
                    (rest if old == name else old): (replace(column, name=rest) if old == name else column)
                    for old, column in columns.items()
                }
            case "MODIFY":
                columns[name] = replace(columns[name], type=rest)
        if verb != "ADD":
            mutations.append(command)
        definition = replace(definition, columns=Columns(tuple(columns.values())))
    return AlterPlan(definition, ", ".join(mutations))


def partition_ids_of(expression: str, active: Iterable[PartName]) -> tuple[str, ...]:
    """Raises SqlError 248."""
    text = expression.strip()
    if text.upper() == "ALL":
        return tuple(sorted({name.partition_id for name in active}))
    if text.upper().startswith("ID "):
        text = text[3:].strip()
    elif text == "tuple()":
        text = "all"
    text = text.strip("'")
    if not is_partition_id(text):
        raise SqlError(Code.INVALID_PARTITION_VALUE, f"No partition: {expression!r}")
    return (text,)
