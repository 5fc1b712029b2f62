"""Tables of equal structure beside a table: to insert into, to merge in, to check parts in.

They live in a database of engine Memory and are gone after a restart; their directories are removed by
`clear`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from engine.errors import Code, SqlError
from engine.names import TableName, quote_string
from engine.part_storage.hidden_settings import HIDDEN_SETTINGS, with_settings
from engine.part_storage.part_files import first_block, is_local_name, link_part, remove_tree
from engine.part_storage.table_state import TableState
from engine.part_storage.workers import SCRATCH_DATABASE, Connection, Workers
from engine.replication.part_name import PartName
from engine.sql.tokens import scan

_OF_SCRATCH = {
    **HIDDEN_SETTINGS,
    # Whoever needs a result for longer forces it to disk.
    "fsync_after_insert": "0",
    "fsync_part_directory": "0",
    # Deduplication and back pressure are not chDB's business here.
    "non_replicated_deduplication_window": "0",
    "parts_to_delay_insert": "1000000000",
    "parts_to_throw_insert": "1000000000",
    "max_parts_in_total": "1000000000",
    "inactive_parts_to_delay_insert": "0",
    "inactive_parts_to_throw_insert": "0",
}


@dataclass(frozen=True, slots=True)
class Scratch:
    """One such table. `path` is its data directory."""

    name: TableName
    path: Path


class ScratchTables:
    """Makes them for one table. The definition is read once and again after `forget_definition`."""

    def __init__(self, state: TableState, workers: Workers) -> None:
        self._state = state
        self._workers = workers
        self._definition = ""
        self._mine: set[str] = set()
        self.epoch = 0
        """Tables that were made in another epoch may have another structure."""

    @property
    def _key(self) -> str:
        return self._state.uuid.replace("-", "")

    @property
    def _root(self) -> Path:
        return self._state.pool_path / "data" / SCRATCH_DATABASE

    def forget_definition(self) -> None:
        """After an ALTER."""
        self._definition = ""
        self.epoch += 1

    def create_text(self, connection: Connection, table: TableName | None = None) -> str:
        """chDB's own text of the table, or of another. Raises SqlError 60 UNKNOWN_TABLE."""
        table = table or self._state.table
        text = connection.text(
            "SELECT create_table_query FROM system.tables"
            f" WHERE database = {quote_string(table.database)} AND name = {quote_string(table.table)}"
        )
        if not text:
            raise SqlError(Code.UNKNOWN_TABLE, f"Table {table} does not exist.")
        return text

    def make(self, connection: Connection, purpose: str) -> Scratch:
        """An empty table of the same structure."""
        if not self._definition:
            text = self.create_text(connection)
            body = next(token for token in scan(text) if token.text == "(")
            self._definition = with_settings(text[body.start :], _OF_SCRATCH)
        number = self._workers.next_number()
        name = TableName(SCRATCH_DATABASE, f"{purpose}_{self._key}_{number}")
        self._mine.add(name.table)
        connection.execute(f"CREATE TABLE {name.quoted} {self._definition}")
        return Scratch(name, self._root / name.table)

    def drop(self, connection: Connection, scratch: Scratch) -> None:
        connection.execute(f"DROP TABLE IF EXISTS {scratch.name.quoted} SYNC")
        self._mine.discard(scratch.name.table)

    @contextmanager
    def made(self, connection: Connection, purpose: str) -> Iterator[Scratch]:
        """A table for the length of a `with` block."""
        scratch = self.make(connection, purpose)
        try:
            yield scratch
        finally:
            self.drop_later(scratch)

    def drop_later(self, scratch: Scratch) -> None:
        """Called by a step: nobody has to wait for files to be removed."""
        self._workers.later(lambda connection: self.drop(connection, scratch))

    def fill(
        self,
        connection: Connection,
        scratch: Scratch,
        partition_id: str,
        sources: list[tuple[Path, PartName | None]],
    ) -> None:
        """Attach links of parts of one partition, in this order, named as said. Raises SqlError 40.

        A part that chDB takes for broken is an error, not left out.
        """
        for number, (source, name) in enumerate(sources, start=1):
            target = scratch.path / "detached" / f"{partition_id}_{number}_{number}_0"
            link_part(source, target, name=name)
        if len(sources) == 1:
            # Says why a part cannot be attached; ATTACH PARTITION would leave it out.
            connection.execute(f"ALTER TABLE {scratch.name.quoted} ATTACH PART {quote_string(target.name)}")
        elif sources:
            connection.execute(
                f"ALTER TABLE {scratch.name.quoted} ATTACH PARTITION ID {quote_string(partition_id)}"
            )
        attached = len(local_parts(scratch.path))
        if attached != len(sources):
            raise SqlError(
                Code.CHECKSUM_DOESNT_MATCH, f"{len(sources) - attached} of {len(sources)} parts are broken"
            )

    def clear(self, connection: Connection) -> None:
        """Remove what an earlier store of this table, or an earlier process, has left; nothing that is in
        use."""
        tables = connection.rows(
            f"SELECT name FROM system.tables WHERE database = {quote_string(SCRATCH_DATABASE)}"
            f" AND position(name, {quote_string(f'_{self._key}_')}) > 0"
        )
        for (name,) in tables:
            if name in self._mine:
                continue
            connection.execute(f"DROP TABLE IF EXISTS {TableName(SCRATCH_DATABASE, name).quoted} SYNC")
        for directory in sorted(self._root.glob(f"*_{self._key}_*")):
            if directory.name not in self._mine:
                remove_tree(directory)


def local_parts(path: Path) -> list[str]:
    """Names of the parts in a table's directory, in the order of their blocks."""
    return sorted((each.name for each in path.iterdir() if is_local_name(each.name)), key=first_block)
