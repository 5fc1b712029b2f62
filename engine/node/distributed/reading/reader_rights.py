"""What a user who may only read is allowed to ask of Distributed tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from engine.distributed.select.plan import select_begins
from engine.distributed.select.template import Slot, Template
from engine.names import quote_identifier, quote_string
from engine.node.distributed.functions.table_functions import refused_to_readers
from engine.node.distributed.reading.analyst import scope_of
from engine.node.statements.asked_settings import UNLIMITED
from engine.node.statements.statement import Asked
from engine.sql.output import without_output_clauses
from engine.storage import ChdbPool


async def as_reader(asked: Asked, template: Template, tables: Sequence[str], pool: ChdbPool) -> Asked:
    """The request in a session of its own in which `url()` is allowed, once chDB has allowed the statement as
    if the tables were its own, and empty. `tables` are what chDB itself would read in the places of the
    template. Raises SqlError 164, or what else chDB says: it has not allowed what it does not analyse to the
    end."""
    if not all(tables):
        raise refused_to_readers()
    text = template.fill(
        [_without_rows(slot, table) for slot, table in zip(template.slots, tables, strict=True)]
    )
    check = "EXPLAIN QUERY TREE " + without_output_clauses(text[select_begins(text) :])
    session = asked.session.clone(for_text=check, settings=UNLIMITED)
    try:
        await session.query(check, format="Null", params=asked.params, scope=scope_of(asked))
    finally:
        await session.close()
    reading = pool.session(
        database=asked.current_database,
        settings={**asked.session.settings, "readonly": "2"},
        one_shot=True,
    )
    return replace(asked, session=reading)


def _without_rows(slot: Slot, table: str) -> str:
    columns = ", ".join(
        f"defaultValueOfTypeName({quote_string(column.type)}) AS {quote_identifier(column.name)}"
        for column in slot.columns
    )
    return f"view(SELECT {columns} FROM {table} LIMIT 0)"  # see `array_joins`
