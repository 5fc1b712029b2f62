"""Databases are loaded with their tables, also those that were made with `lazy_load_tables`.

Of such a database chDB shows no parts after a start until a table is attached anew, not even once it is read:
what works with parts would take all of them for lost, or a table for empty. The setting saves a server time
at its start and means nothing else, so it is left out of what makes a database, and of definitions that an
earlier version kept.

Source: ClickHouse's StorageTableProxy, which system.parts does not look into.
"""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path

from engine.errors import SqlError
from engine.sql.edit import Edit, apply_edits
from engine.sql.tokens import literal_value, tokenize
from engine.storage.layout import private_directory

log = logging.getLogger(__name__)

_SETTING = "lazy_load_tables"
_IN_TEXT = re.compile(rf"\b{_SETTING}\b")
_MAKING = (["CREATE", "DATABASE"], ["ATTACH", "DATABASE"])


def without_lazy_loading(sql: str) -> str:
    """The text of a CREATE or ATTACH DATABASE without the setting; any other as it is."""
    if not _IN_TEXT.search(sql):
        return sql
    try:
        tokens = [token for token in tokenize(sql) if token.is_significant]
    except SqlError:  # chDB says so, too
        return sql
    words = [token.text.upper() for token in tokens]
    if words[:2] not in _MAKING or "SETTINGS" not in words:
        return sql
    settings = len(words) - words[::-1].index("SETTINGS") - 1
    edits = []
    for at in range(settings + 1, len(tokens)):
        if not tokens[at].is_name or literal_value(tokens[at]) != _SETTING:
            continue
        end = at + 3 if words[at + 1 : at + 2] == ["="] else at + 1
        if words[end : end + 1] == [","]:
            edits.append(Edit(tokens[at].start, tokens[end].end, ""))
        else:  # with the comma before it, or SETTINGS if nothing else is there
            edits.append(Edit(tokens[at - 1].start, tokens[end - 1].end, ""))
    return apply_edits(sql, edits)


def load_whole(path: Path) -> None:
    """Before chDB starts on `path`: definitions of databases lose the setting. Raises OSError."""
    for file in path.glob("metadata/*.sql"):
        text = file.read_bytes().decode("utf-8", "surrogateescape")
        whole = without_lazy_loading(text)
        if whole == text:
            continue
        temporary = private_directory(path) / "database.sql"
        with temporary.open("wb") as out:
            out.write(whole.encode("utf-8", "surrogateescape"))
            out.flush()
            os.fsync(out.fileno())
        temporary.replace(file)
        log.info("storage.database_loaded_whole file=%s", file.relative_to(path))
