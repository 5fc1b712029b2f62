"""A statement while it is being parsed: the cursor, what was learnt, and where things stand in the text."""

from __future__ import annotations

from engine.names import TableName
from engine.sql.cursor import Cursor, NameRef, Role
from engine.sql.kinds import AlterCommand, StatementKind
from engine.sql.statement import Statement
from engine.sql.tokens import TokenKind, literal_value


class Draft(Cursor):
    """Filled by the parsers of `grammar_*`; `statement()` freezes it.

    - `cluster_at`: the offset behind which ON CLUSTER belongs; None where the grammar has no place for it.
    - `cluster_span`: the offsets of `ON CLUSTER name` where it was written.
    - `refs`: the tables named, in order.
    - `body`: the index of the token from which on SELECTs and expressions may read other tables.
    - `alter_starts`: the indexes of the tokens at which the sub-commands of ALTER begin.
    - `tail`: the index of the token from which on output clauses (FORMAT, INTO OUTFILE, SETTINGS) may stand.
    """

    __slots__ = (
        "alter_commands",
        "alter_starts",
        "body",
        "cluster_at",
        "cluster_span",
        "database",
        "database_span",
        "discards",
        "engine",
        "format",
        "if_exists",
        "if_not_exists",
        "into_outfile",
        "kind",
        "name",
        "new_database",
        "on_cluster",
        "or_replace",
        "refs",
        "system_command",
        "tail",
        "temporary",
        "uuid",
        "uuid_span",
    )

    def __init__(self, sql: str) -> None:
        super().__init__(sql)
        self.kind = StatementKind.OTHER
        self.on_cluster: str | None = None
        self.cluster_at: int | None = None
        self.cluster_span: tuple[int, int] | None = None
        self.refs: list[NameRef] = []
        self.body: int | None = None
        self.tail: int | None = None
        self.database: str | None = None
        self.new_database: str | None = None
        self.name: str | None = None
        self.if_exists = False
        self.if_not_exists = False
        self.or_replace = False
        self.temporary = False
        self.discards = False
        self.uuid: str | None = None
        self.uuid_span: tuple[int, int] | None = None
        self.engine: str | None = None
        self.alter_commands: list[AlterCommand] = []
        self.alter_starts: list[int] = []
        self.system_command = ""
        self.format: str | None = None
        self.into_outfile: str | None = None

    def accept_if_exists(self) -> None:
        if self.accept("IF", "EXISTS") or self.accept("IF", "EMPTY"):
            self.if_exists = self.if_exists or self.words[self.at - 1] == "EXISTS"
            self.accept_if_exists()

    def accept_if_not_exists(self) -> None:
        if self.accept("IF", "NOT", "EXISTS"):
            self.if_not_exists = True

    def accept_uuid(self) -> None:
        if self.word == "UUID" and self.at + 1 < len(self.tokens):
            value = self.tokens[self.at + 1]
            if value.kind is TokenKind.STRING:
                self.uuid = literal_value(value)
                self.uuid_span = (self.token.start, value.end)
                self.at += 2

    def table_ref(self, role: Role = Role.OBJECT) -> bool:
        """Step over a table's name and remember it."""
        ref = self.table(role)
        if ref is not None:
            self.refs.append(ref)
        return ref is not None

    def on_cluster_here(self) -> bool:
        """ON CLUSTER belongs here: remember the place, and step over the clause if it is there."""
        if self.cluster_at is None:
            self.cluster_at = self.last_end
        return self.accept_on_cluster()

    def accept_on_cluster(self) -> bool:
        """Step over ON CLUSTER name, wherever it is."""
        if self.cluster_span is not None or not self.looking_at("ON", "CLUSTER"):
            return False
        start = self.at
        self.at += 2
        name = self.identifier_or_string()
        if name is None:
            self.at = start
            return False
        self.on_cluster = name
        self.cluster_span = (self.tokens[start].start, self.last_end)
        return True

    def statement(self) -> Statement:
        """What was learnt, as a value."""
        return Statement(
            kind=self.kind,
            on_cluster=self.on_cluster,
            tables=self._names(Role.OBJECT),
            targets=self._names(Role.TARGET),
            database=self.database,
            new_database=self.new_database,
            name=self.name,
            if_exists=self.if_exists,
            if_not_exists=self.if_not_exists,
            or_replace=self.or_replace,
            temporary=self.temporary,
            uuid=self.uuid,
            engine=self.engine,
            alter_commands=tuple(self.alter_commands),
            system_command=self.system_command,
            format=self.format,
            into_outfile=self.into_outfile,
            takes_on_cluster=self.cluster_at is not None,
            discards=self.discards,
        )

    def _names(self, role: Role) -> tuple[TableName, ...]:
        return tuple(ref.name for ref in self.refs if ref.role is role)
