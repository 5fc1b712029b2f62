"""Definitions as chDB keeps them on disk, read without asking it: 0.03 ms instead of 0.6 ms.

A table of an Atomic database has the file `metadata/<database>/<table>.sql`, with UUID and definition.
CREATE, ALTER, RENAME, EXCHANGE and DROP take effect by putting this file in place, which is what a crash
leaves behind, too. Tables of other databases are kept in other ways: for them only chDB knows.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from engine.names import TableName, escape_for_file_name


def definition_on_disk(path: Path, table: TableName) -> str | None:
    """A digest of a table's file; empty if there is no such table, None if its database is not Atomic."""
    metadata = path / "metadata"
    database = escape_for_file_name(table.database)
    try:
        if b"ENGINE = Atomic" not in (metadata / f"{database}.sql").read_bytes():
            return None
        content = (metadata / database / f"{escape_for_file_name(table.table)}.sql").read_bytes()
    except FileNotFoundError:
        return "" if (metadata / f"{database}.sql").exists() else None
    except OSError:
        return None
    return hashlib.sha256(content).hexdigest()[:32]
