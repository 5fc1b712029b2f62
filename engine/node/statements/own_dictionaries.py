"""Dictionaries of the current database in a statement that other nodes carry out, named with it.

They have no current database, or another one. A name that is no dictionary of this node's current database
stays: it may be one of another server's configuration. Source: ClickHouse's AddDefaultDatabaseVisitor,
ExternalDictionariesLoader::qualifyDictionaryNameWithDatabase.
"""

from __future__ import annotations

from engine.names import quote_string
from engine.node.statements.statement import Asked
from engine.sql.dictionary_names import short_dictionary_names, with_dictionary_database


async def with_whole_dictionaries(asked: Asked) -> str:
    """The statement's text."""
    names = short_dictionary_names(asked.sql)
    if not names:
        return asked.sql
    database = asked.current_database
    found = await asked.session.clone(needs_database=False).query(
        f"SELECT name FROM system.dictionaries WHERE database = {quote_string(database)} "
        f"AND name IN ({', '.join(map(quote_string, sorted(names)))})",
        format="TSVRaw",
    )
    own = names.intersection(found.text.splitlines())
    return with_dictionary_database(asked.sql, database, only=own)
