"""Tables of equal structure beside a table: to insert into, to merge in, to check parts in.

They live in a database of engine Memory and are gone after a restart; their directories are removed by
`clear`.
"""

from __future__ import annotations

import enum
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from engine.errors import Code, SqlError
from engine.names import TableName, quote_string
from engine.part_storage.hidden_settings import HIDDEN_SETTINGS, with_settings
from engine.part_storage.part_files import COUNT_FILE, first_block, is_local_name, link_part, remove_tree
from engine.part_storage.table_state import TableState
from engine.part_storage.workers import SCRATCH_DATABASE, Connection, Workers
from engine.replication.part_name import PartName
from engine.replication.table_definition import TableDefinition, parse_definition
from engine.sql.tokens import scan
from engine.storage.errors import told

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

_OFF = ("0", "false")
_LOOKS, _LOOK_PAUSE_S = 50, 0.02
"""For a table under its name, which chDB may have given to another one a moment ago."""
_DROP_PAUSE_S = 1.0
"""Dropping takes as long as making. What has just been merged is of more interest, also to other replicas."""


class Merging(enum.Enum):
    """Whether such a table is to merge as its table does."""

    OF_TABLE = "it has the table's engine"
    NONE = "its engine is MergeTree, which needs no column of a certain type"


@dataclass(frozen=True, slots=True)
class Scratch:
    """One such table. `path` is its data directory."""

    name: TableName
    path: Path


class ScratchTables:
    """Makes them for one table, on any thread. `create_text`, if given, is chDB's text of the table as it is.
    The definition is read once and again after `forget_definition`: what was read before that is not kept,
    however late its reader comes to an end."""

    def __init__(self, state: TableState, workers: Workers, create_text: str = "") -> None:
        self._state = state
        self._workers = workers
        self._known_text = create_text
        self._body_text = ""
        self.known_definition: TableDefinition | None = None
        """The table's, if it was read since the last ALTER."""
        self._mine: set[str] = set()
        self._lock = threading.Lock()
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
        with self._lock:
            self._known_text = self._body_text = ""
            self.known_definition = None
            self.epoch += 1

    def definition(self, connection: Connection) -> TableDefinition:
        """The table's."""
        epoch = self.epoch
        read = parse_definition(self._own_text(connection))
        with self._lock:
            if self.epoch == epoch:
                self.known_definition = read
        return read

    def has_setting(self, connection: Connection, name: str) -> bool:
        """Whether the table has a setting of this name that is on, or a number that is not 0. Of a
        GraphiteMergeTree, too, whose definition is whole only with rules that stand elsewhere."""
        known = self.known_definition
        if known is None:
            with suppress(SqlError):
                known = self.definition(connection)
        if known is not None:
            return dict(known.settings).get(name, "0") not in _OFF
        words = [token.text for token in scan(self._own_text(connection)) if token.is_significant]
        return any(
            words[at : at + 2] == [name, "="] and words[at + 2] not in _OFF for at in range(len(words) - 2)
        )

    def create_text(self, connection: Connection, table: TableName | None = None) -> str:
        """chDB's own text of the table, or of another. Raises SqlError 60 UNKNOWN_TABLE."""
        for _ in range(_LOOKS):
            if text := self._text_of(connection, table):
                return text
            if table is not None:
                break
            self._workers.pause(_LOOK_PAUSE_S)
        raise SqlError(Code.UNKNOWN_TABLE, f"Table {table or self._state.table} does not exist.")

    def _own_text(self, connection: Connection) -> str:
        """The table's, asked for once between two ALTERs."""
        with self._lock:
            known, epoch = self._known_text, self.epoch
        if known:
            return known
        read = self.create_text(connection)
        with self._lock:
            if self.epoch == epoch:
                self._known_text = read
        return read

    def _text_of(self, connection: Connection, other: TableName | None) -> str:
        """Empty if there is no such table, or if another one has the name of this one. Raises SqlError 76."""
        table = other or self._state.table
        where = f"database = {quote_string(table.database)} AND name = {quote_string(table.table)}"
        if other is None:
            where += f" AND has(data_paths, {quote_string(f'{self._state.data}/')})"
        rows = connection.rows(f"SELECT create_table_query FROM system.tables WHERE {where}")
        return told(rows[0][0], table) if rows else ""

    def make(
        self,
        connection: Connection,
        purpose: str,
        *,
        merging: Merging = Merging.OF_TABLE,
        settings: Mapping[str, str] | None = None,
    ) -> Scratch:
        """An empty table of the same structure, with `settings` instead of the table's.

        It is attached, not created: an ALTER, or a setting of who made the table, may have led to what CREATE
        would refuse.
        """
        body = self._body(connection)
        if merging is Merging.NONE:
            body = _with_plain_engine(body)
        return self._attached(connection, purpose, with_settings(body, settings) if settings else body, {})

    def filled(
        self,
        connection: Connection,
        purpose: str,
        partition_id: str,
        sources: Sequence[tuple[Path, PartName | None]],
        *,
        local_names: Sequence[str] = (),
    ) -> Scratch:
        """A table with links of parts of one partition, in this order, named as said. `local_names` are names
        for chDB; it numbers them without.

        Several lie in its directory before chDB takes the table: one statement, which loads them side by
        side. Raises SqlError 40, and FileNotFoundError for a source that is moved meanwhile; nothing is left
        then. A part that chDB takes for broken is an error, not left out.
        """
        if len(sources) < 2 and not local_names:
            scratch = self.make(connection, purpose)
            try:
                for source, name in sources:
                    self.fill(connection, scratch, partition_id, source, name=name)
            except BaseException:  # whatever it is: the scratch table goes
                self.drop(connection, scratch)
                raise
            return scratch
        local_names = local_names or [_local_name(partition_id, at) for at in range(1, len(sources) + 1)]
        links = dict(zip(local_names, sources, strict=True))
        return self._attached(connection, purpose, self._body(connection), links)

    def copied(self, connection: Connection, purpose: str, parts: Sequence[Path]) -> Scratch:
        """A table with links of parts of any partitions, without names, called as they are where they lie.
        Raises as `filled`."""
        links: dict[str, tuple[Path, PartName | None]] = {part.name: (part, None) for part in parts}
        return self._attached(connection, purpose, self._body(connection), links)

    def _attached(
        self,
        connection: Connection,
        purpose: str,
        body: str,
        links: Mapping[str, tuple[Path, PartName | None]],
    ) -> Scratch:
        """A table of a directory with links of these parts, by chDB's names."""
        scratch = self._new(purpose)
        try:
            (scratch.path / "detached").mkdir(parents=True)
            (scratch.path / "format_version.txt").write_text("1")  # of every MergeTree table
            for local_name, (source, name) in links.items():
                link_part(source, scratch.path / local_name, name=name)
            # Without a UUID chDB takes no table that it does not know; it is of no further use.
            connection.execute(f"ATTACH TABLE {scratch.name.quoted} UUID '{self._workers.new_uuid()}' {body}")
            _check_all_there(scratch, len(links))
        except BaseException:  # whatever it is: the scratch table goes
            self.drop(connection, scratch)
            remove_tree(scratch.path)
            raise
        return scratch

    def _new(self, purpose: str) -> Scratch:
        name = TableName(SCRATCH_DATABASE, f"{purpose}_{self._key}_{self._workers.next_number()}")
        self._mine.add(name.table)
        self._workers.scratch_tables.add(name.table)
        return Scratch(name, self._root / name.table)

    def _body(self, connection: Connection) -> str:
        """The definition behind the table's name."""
        with self._lock:
            known, epoch = self._body_text, self.epoch
        if known:
            return known
        text = self._own_text(connection)
        read = with_settings(text[_body_start(text) :], _OF_SCRATCH)
        with self._lock:
            if self.epoch == epoch:
                self._body_text = read
        return read

    def drop(self, connection: Connection, scratch: Scratch) -> None:
        connection.execute(f"DROP TABLE IF EXISTS {scratch.name.quoted} SYNC")
        self._mine.discard(scratch.name.table)
        self._workers.scratch_tables.discard(scratch.name.table)

    @contextmanager
    def made(
        self,
        connection: Connection,
        purpose: str,
        *,
        merging: Merging = Merging.OF_TABLE,
        settings: Mapping[str, str] | None = None,
    ) -> Iterator[Scratch]:
        """A table for the length of a `with` block."""
        scratch = self.make(connection, purpose, merging=merging, settings=settings)
        try:
            yield scratch
        finally:
            self.drop_later(scratch)

    def check_opens(self, connection: Connection, scratch: Scratch) -> None:
        """Raises chDB's SqlError for a definition that it would not open at a start of the node, though it
        accepts the ALTER that makes it: `max_projections` below the number that there are."""
        text = self.create_text(connection, scratch.name)
        self.drop_later(self._attached(connection, "opens", text[_body_start(text) :], {}))

    @contextmanager
    def renamed(
        self, connection: Connection, scratch: Scratch, local_name: str, wanted: str
    ) -> Iterator[Scratch]:
        """For the length of a `with` block, a table of the structure that `scratch` has now, with its part
        under another name: ATTACH PART gives names of its own, and a directory that is there keeps its."""
        text = self.create_text(connection, scratch.name)
        links: dict[str, tuple[Path, PartName | None]] = {wanted: (scratch.path / local_name, None)}
        renamed = self._attached(connection, "renamed", text[_body_start(text) :], links)
        try:
            yield renamed
        finally:
            self.drop_later(renamed)

    def drop_later(self, scratch: Scratch) -> None:
        """Called by a step: nobody has to wait for files to be removed, neither what comes next."""
        self._workers.later(lambda connection: self.drop(connection, scratch), pause_s=_DROP_PAUSE_S)

    def fill(
        self,
        connection: Connection,
        scratch: Scratch,
        partition_id: str,
        source: Path,
        *,
        name: PartName | None = None,
    ) -> None:
        """Attach links of a part to an empty table. Raises SqlError, which says why it cannot be attached."""
        local_name = _local_name(partition_id, 1)
        link_part(source, scratch.path / "detached" / local_name, name=name)
        connection.execute(f"ALTER TABLE {scratch.name.quoted} ATTACH PART {quote_string(local_name)}")
        _check_all_there(scratch, 1)

    def clear(self, connection: Connection) -> None:
        """Remove what an earlier store of this table, or an earlier process, has left; nothing that is in
        use."""
        for name in tuple(self._workers.scratch_tables):
            if f"_{self._key}_" in name and name not in self._mine:
                left = TableName(SCRATCH_DATABASE, name)
                self.drop(connection, Scratch(left, self._root / name))
        for directory in sorted(self._root.glob(f"*_{self._key}_*")):
            if directory.name not in self._mine:
                remove_tree(directory)


def _body_start(create: str) -> int:
    return next(token for token in scan(create) if token.text == "(").start


def _with_plain_engine(body: str) -> str:
    """The text behind a table's name with engine MergeTree."""
    tokens = [token for token in scan(body) if token.is_significant]
    depth, engine = 0, 0
    for at, token in enumerate(tokens):
        if engine and depth == 0 and at > engine + 2 and token.text != "(":
            return f"{body[: tokens[engine + 2].start]}MergeTree {body[token.start :]}"
        if len(token.text) == 1:
            depth += (token.text in "([{") - (token.text in ")]}")
        if depth == 0 and not engine and token.text == "ENGINE":
            engine = at
    raise SqlError(Code.SYNTAX_ERROR, f"Expected ENGINE in: {body[:200]}")


def _local_name(partition_id: str, number: int) -> str:
    return f"{partition_id}_{number}_{number}_0"


def _check_all_there(scratch: Scratch, sources: int) -> None:
    attached = len(local_parts(scratch.path))
    if attached != sources:
        raise SqlError(Code.CHECKSUM_DOESNT_MATCH, f"{sources - attached} of {sources} parts are broken")


def merged_part(scratch: Scratch, partition_id: str, sources: int) -> Path | None:
    """What `filled` made of `sources` parts and chDB has merged since; None if that cannot be told, or if it
    has no rows: chDB may remove such parts."""
    last = f"{partition_id}_1_{sources}_"
    merged = [name for name in local_parts(scratch.path) if name.startswith(last) and name != f"{last}0"]
    if len(merged) != 1:
        return None
    directory = scratch.path / merged[0]
    try:
        return directory if int((directory / COUNT_FILE).read_bytes()) else None
    except (OSError, ValueError):
        return None


def local_parts(path: Path) -> list[str]:
    """Names of the parts in a table's directory, in the order of their blocks."""
    with os.scandir(path) as entries:
        return sorted((each.name for each in entries if is_local_name(each.name)), key=first_block)
