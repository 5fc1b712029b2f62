"""The metadata text of every table of a database, as it stands in Keeper and in ClickHouse's own files.

chDB keeps the text of an Atomic database's table in `metadata/<database>/<table>.sql`, in ClickHouse's very
form: `ATTACH TABLE _ UUID '…'`. Of replicated and Distributed tables chDB holds something else; their text
here is the one that the user made, as SHOW CREATE shows it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from uuid import UUID

from engine.names import TableName, escape_for_file_name, unescape_for_file_name
from engine.node.distributed.registry.create_sql import with_engine
from engine.storage.late_tables import is_held_back, move_held_back
from engine.storage.orphans import set_table_aside

_SUFFIX = ".sql"
_DETACHED = ".sql.detached"
_UUID = re.compile(r" UUID '([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})'")


class SchemaTexts:
    """Reads files; blocks for some 0.02 ms per table."""

    def __init__(
        self,
        path: Path,
        *,
        shown: Callable[[UUID, str], str | None],
        distributed: Callable[[UUID], str | None],
    ) -> None:
        """`path` is the node's data. `shown` gives the text of a replicated table by its UUID and chDB's
        text, `distributed` the engine clause of a Distributed one; both None for other tables."""
        self._path = path
        self._metadata = path / "metadata"
        self._shown = shown
        self._distributed = distributed

    def read(self, database: str) -> dict[str, str]:
        """By table's name, those that nobody has detached. Empty if there is no such database."""
        return {table: self.of(raw) for table, raw in raw_texts(self._path, database).items()}

    def has_database(self, database: str) -> bool:
        return (self._metadata / f"{escape_for_file_name(database)}{_SUFFIX}").exists()

    def read_raw(self, table: TableName) -> str | None:
        """chDB's own text; None if there is no such table, or it is detached for good (its file stays)."""
        directory = self._metadata / escape_for_file_name(table.database)
        name = escape_for_file_name(table.table)
        flag = directory / f"{name}{_DETACHED}"
        try:
            if flag.exists() and not is_held_back(flag):
                return None
            raw = (directory / f"{name}{_SUFFIX}").read_bytes()
        except FileNotFoundError:
            return None
        return raw.decode("utf-8", "surrogateescape")

    def is_held_back(self, table: TableName) -> bool:
        """Whether this node has kept it out at its start (`late_tables`)."""
        file = f"{escape_for_file_name(table.table)}{_DETACHED}"
        flag = self._metadata / escape_for_file_name(table.database) / file
        return flag.exists() and is_held_back(flag)

    def set_aside(self, table: TableName) -> None:
        """One that is held back, with its rows, out of the node. Raises OSError."""
        uuid = uuid_of(self.read_raw(table) or "")
        set_table_aside(self._path, self._file(table), str(uuid))

    def rename_held_back(self, table: TableName, to: TableName) -> None:
        """One that is held back gets another name, in Atomic databases. Raises OSError."""
        move_held_back(self._path, self._file(table), self._file(to))

    def _file(self, table: TableName) -> Path:
        return self._directory(table.database) / f"{escape_for_file_name(table.table)}{_SUFFIX}"

    def _directory(self, database: str) -> Path:
        """chDB links it with the first table, by the UUID of an Atomic database."""
        link = self._metadata / escape_for_file_name(database)
        if link.exists():
            return link.resolve()
        raw = (self._metadata / f"{escape_for_file_name(database)}{_SUFFIX}").read_text("utf-8")
        uuid = str(uuid_of(raw))
        return self._path / "store" / uuid[:3] / uuid

    def of(self, raw: str) -> str:
        """Of chDB's text."""
        uuid = uuid_of(raw)
        if uuid is None:
            return raw
        engine = self._distributed(uuid)
        if engine is not None:
            return _with_engine(raw, engine)
        shown = self._shown(uuid, raw)
        return raw if shown is None else shown


def raw_texts(path: Path, database: str) -> dict[str, str]:
    """chDB's own texts, as `SchemaTexts.read`. `path` is the node's data."""
    directory = path / "metadata" / escape_for_file_name(database)
    try:
        files = {file.name for file in directory.iterdir()}
    except FileNotFoundError:
        return {}
    texts = {}
    for file in sorted(files):
        if not file.endswith(_SUFFIX):
            continue
        flag = f"{file.removesuffix(_SUFFIX)}{_DETACHED}"
        try:
            if flag in files and not is_held_back(directory / flag):
                continue
            raw = (directory / file).read_bytes().decode("utf-8", "surrogateescape")
        except FileNotFoundError:
            continue  # dropped meanwhile
        texts[unescape_for_file_name(file.removesuffix(_SUFFIX))] = raw
    return texts


def uuid_of(text: str) -> UUID | None:
    """Of a metadata text."""
    found = _UUID.search(text.partition("\n")[0])
    return UUID(found[1]) if found else None


def changes(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, str | None]:
    """By name what has become of a table: its new text, None if it is gone."""
    changed: dict[str, str | None] = dict.fromkeys(before.keys() - after.keys())
    changed |= {name: text for name, text in after.items() if before.get(name) != text}
    return changed


@functools.lru_cache(maxsize=1024)
def _with_engine(raw: str, engine: str) -> str:
    return with_engine(raw, engine)
