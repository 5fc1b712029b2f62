"""What was found out about statements, for when the same text comes again.

An entry holds for one text under equal parameters, settings and database, as long as nothing has changed that
went into it: the `Stamp`. What changes with every request is asked every time: which replicas to read, and
what a user with a readonly profile may do. Texts whose meaning may change by itself are not remembered
(`engine.distributed.select.repeatable`), except that a text reads no Distributed table at all: that depends
on names alone.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field

from engine.config.model import Topology
from engine.distributed.peers import Peer
from engine.distributed.select import Analysis
from engine.names import TableName
from engine.node.distributed.reading.early_reads import EarlyReads
from engine.node.distributed.reading.failover import Read
from engine.node.distributed.reading.rows_to_read import ToRead
from engine.node.distributed.registry.tables import DistributedTable
from engine.node.statements.statement import Asked

MAX_ENTRIES = 512
_MAX_CHARACTERS = 8192
_MAX_TEXTS = 64

Key = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Stamp:
    """What an entry was made from. Topologies are compared by identity: a changed one is a new object."""

    tables: int
    """The version of the Distributed tables: names, definitions, columns."""
    statements: int
    """Counts statements that may have changed a view, a table or a function."""
    topology: Topology = field(compare=False)

    def is_now(self, now: Stamp) -> bool:
        return self == now and self.topology is now.topology


@dataclass(frozen=True, slots=True)
class Text:
    """A whole text for chDB, whether it takes settings, and what it reads."""

    sql: str
    takes_settings: bool
    reads: frozenset[Read]
    early: EarlyReads | None
    to_read: frozenset[ToRead]


@dataclass(frozen=True, slots=True)
class Remembered:
    """One statement. Without an analysis it reads no Distributed table.

    `texts` are the whole texts for chDB by the replicas.
    """

    stamp: Stamp
    analysis: Analysis | None = None
    table: DistributedTable | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    depth: int = 0
    known: frozenset[TableName] = frozenset()
    texts: dict[tuple[Peer, ...], Text] = field(default_factory=dict)

    def note_text(self, peers: tuple[Peer, ...], text: Text) -> None:
        if len(self.texts) >= _MAX_TEXTS:
            self.texts.clear()
        self.texts[peers] = text


class RememberedSelects:
    """The statements used last."""

    def __init__(self) -> None:
        self._entries: OrderedDict[Key, Remembered] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def key(self, asked: Asked) -> Key | None:
        """None for what is not remembered: long texts, and users who may only read."""
        if len(asked.sql) > _MAX_CHARACTERS or asked.session.is_readonly:
            return None
        settings = {**asked.session.settings, **asked.settings}
        return (
            asked.sql,
            asked.current_database,
            tuple(sorted(settings.items())),
            tuple(sorted(asked.params.items())),
        )

    def find(self, key: Key | None, now: Stamp) -> Remembered | None:
        if key is None:
            return None
        found = self._entries.get(key)
        if found is None:
            return None
        if not found.stamp.is_now(now):
            del self._entries[key]
            return None
        self._entries.move_to_end(key)
        return found

    def put(self, key: Key | None, entry: Remembered) -> None:
        if key is None:
            return
        self._entries[key] = entry
        self._entries.move_to_end(key)
        if len(self._entries) > MAX_ENTRIES:
            self._entries.popitem(last=False)
