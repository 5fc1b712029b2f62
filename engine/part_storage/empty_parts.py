"""The empty part that takes the place of a lost one, also in a partition that has no other part.

chDB makes it of any part of the partition, by deleting the rows of a copy. Without one it makes it of a row
of defaults, which lies in another partition, and the partition's value is put in its place: `partition.dat`,
and its entry in `checksums.txt`. The value is in any directory of the partition in `detached/`, such as the
damaged part itself, or in the partition's id, if that is numbers and dates. Nobody has to believe it: chDB
compares the value with the id when it takes the part.

Source: ClickHouse's StorageReplicatedMergeTree::createEmptyPartInsteadOfLost, which knows the id only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from engine.errors import Code, SqlError, is_passing
from engine.names import TableName, quote_identifier, quote_string
from engine.part_storage.part_files import CHECKSUMS_FILE, COUNT_FILE, link_part, remove_tree
from engine.part_storage.partition_values import WHOLE_TABLE
from engine.part_storage.scratch_tables import Scratch, ScratchTables, local_parts
from engine.part_storage.table_state import TableState
from engine.part_storage.workers import SCRATCH_DATABASE, Connection, Workers
from engine.replication.file_hash import file_hash
from engine.replication.part_checksums import checksums_file, parse_checksums_file
from engine.replication.part_name import PartName

PARTITION_FILE = "partition.dat"
_MAX_PARTITION_BYTES = 1 << 20
_DATE = re.compile(r"(\d{4})(\d{2})(\d{2})\Z", re.ASCII)


class EmptyParts:
    """Of one table; each call may run beside others."""

    def __init__(self, state: TableState, scratch: ScratchTables, workers: Workers) -> None:
        self._state = state
        self._scratch = scratch
        self._workers = workers

    def fill(self, connection: Connection, table: Scratch, result: PartName) -> None:
        """Make an empty part of the partition of `result` in `table`, a new scratch table.

        Raises SqlError 48 where the partition's value cannot be told.
        """
        model = self._any_directory(result.partition_id)
        if model is not None:
            self._scratch.fill(connection, table, result.partition_id, model)
            connection.execute(f"ALTER TABLE {table.name.quoted} DELETE WHERE 1")
        elif result.partition_id == WHOLE_TABLE:
            _make_of_defaults(connection, table)
        else:
            self._make_for_value(connection, table, result)

    def _any_directory(self, partition_id: str) -> Path | None:
        here = self._state.in_partition(partition_id)
        if here:
            return here[0].visible
        names = [name for name in self._state.staged if name.partition_id == partition_id]
        return self._state.staged_directory(min(names)) if names else None

    def _make_for_value(self, connection: Connection, table: Scratch, result: PartName) -> None:
        with self._scratch.made(connection, "value") as other:
            try:
                _make_of_defaults(connection, other)
            except SqlError as error:
                if is_passing(error):
                    raise  # Otherwise: such as a key that divides by a default.
                raise _impossible(result, f"a row of defaults cannot be made: {error.message}") from error
            model = _without_rows(other)
            for value in self._values(connection, result.partition_id):
                made = self._state.temporary("value", self._workers.next_number())
                try:
                    link_part(model, made, name=None)
                    _set_partition(made, value)
                    self._scratch.fill(connection, table, result.partition_id, made)
                    return
                except SqlError as error:
                    if is_passing(error):
                        raise  # Otherwise: it is not the value of this partition, or is no value at all.
                finally:
                    remove_tree(made)
        raise _impossible(result, "its value cannot be told from its id")

    def _values(self, connection: Connection, partition_id: str) -> Iterator[bytes]:
        """What may be the partition's value, as a part keeps it."""
        for directory in sorted(self._state.detached.iterdir()):
            if f"{partition_id}_" in directory.name:
                try:
                    with (directory / PARTITION_FILE).open("rb") as file:
                        yield file.read(_MAX_PARTITION_BYTES)
                except OSError as error:
                    if is_passing(error):
                        raise
        value = self._value_of_id(connection, partition_id)
        if value is not None:
            yield value

    def _value_of_id(self, connection: Connection, partition_id: str) -> bytes | None:
        """The value that has this id, if it is made of numbers and dates."""
        key = (self._scratch.definition(connection).metadata.partition_key or "").strip()
        types = [
            row[1]
            for row in connection.rows(f"DESCRIBE TABLE (SELECT {key} FROM {self._state.table.quoted})")
        ]
        numbers = re.fullmatch("-".join([r"(-?\d{1,20})"] * len(types)), partition_id, re.ASCII)
        if numbers is None:
            return None
        name = f"value_{self._state.uuid.replace('-', '')}_{self._workers.next_number()}"
        table = TableName(SCRATCH_DATABASE, name)
        columns = [quote_identifier(f"c{index}") for index in range(len(types))]
        declared = ", ".join(f"{column} {kind}" for column, kind in zip(columns, types, strict=True))
        values = ", ".join(_cast(text, kind) for text, kind in zip(numbers.groups(), types, strict=True))
        connection.execute(
            f"CREATE TABLE {table.quoted} ({declared}) ENGINE = MergeTree"
            f" PARTITION BY ({', '.join(columns)}) ORDER BY tuple() SETTINGS allow_nullable_key = 1"
        )
        try:
            connection.execute(f"INSERT INTO {table.quoted} SELECT {values}")
            path = Path(
                connection.text(
                    "SELECT path FROM system.parts WHERE active"
                    f" AND database = {quote_string(table.database)} AND table = {quote_string(table.table)}"
                )
            )
            return (path / PARTITION_FILE).read_bytes()
        except SqlError as error:
            if is_passing(error):
                raise
            return None  # of a type that is not made of numbers
        finally:
            connection.execute(f"DROP TABLE {table.quoted} SYNC")


def _impossible(result: PartName, reason: str) -> SqlError:
    return SqlError(
        Code.NOT_IMPLEMENTED,
        f"No part of partition {result.partition_id} is here to make the empty part {result} of, "
        f"and {reason}",
        hint="Drop the partition, or insert a row into it.",
    )


def _cast(text: str, kind: str) -> str:
    date = _DATE.match(text)
    if kind == "Date" and date is not None:
        return f"toDate({quote_string('-'.join(date.groups()))})"
    return f"CAST({text} AS {kind})"


def _set_partition(directory: Path, value: bytes) -> None:
    """Make a part one of another partition. Its files may be links: they are replaced, not changed."""
    checksums = directory / CHECKSUMS_FILE
    listed = parse_checksums_file(checksums.read_bytes(), where=str(directory))
    changed = [
        replace(file, size=len(value), hash=file_hash(value)) if file.name == PARTITION_FILE else file
        for file in listed
    ]
    for path, content in ((directory / PARTITION_FILE, value), (checksums, checksums_file(changed))):
        path.unlink()
        path.write_bytes(content)


def _without_rows(table: Scratch) -> Path:
    """The directory of the only such part in a scratch table, next to what it was made of. chDB may take it
    away from readers by itself, and leaves it on the disk for a while."""
    found = [table.path / name for name in local_parts(table.path)]
    return next(directory for directory in found if not int((directory / COUNT_FILE).read_bytes()))


def _make_of_defaults(connection: Connection, table: Scratch) -> None:
    """A part without rows, in whatever partition defaults come into."""
    of_table = f"database = {quote_string(table.name.database)} AND table = {quote_string(table.name.table)}"
    for (constraint,) in connection.rows(f"SELECT name FROM system.constraints WHERE {of_table}"):
        connection.execute(f"ALTER TABLE {table.name.quoted} DROP CONSTRAINT {quote_identifier(constraint)}")
    columns = connection.rows(
        f"SELECT name, type FROM system.columns WHERE {of_table}"
        " AND default_kind IN ('', 'DEFAULT') ORDER BY position"
    )
    names = ", ".join(quote_identifier(name) for name, _ in columns)
    values = ", ".join(f"defaultValueOfTypeName({quote_string(kind)})" for _, kind in columns)
    connection.execute(
        f"INSERT INTO {table.name.quoted} ({names}) SELECT {values} SETTINGS optimize_on_insert = 0"
    )
    connection.execute(f"ALTER TABLE {table.name.quoted} DELETE WHERE 1")
