"""`CREATE DATABASE d ENGINE = Replicated('path', 'shard', 'replica') [SETTINGS …] [COMMENT …]`, taken apart.

Source: ClickHouse's registerDatabaseReplicated and DatabaseReplicated's constructor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from uuid import UUID

from engine.errors import Code, SqlError
from engine.names import quote_identifier, quote_string
from engine.node.keeper_path import path_in_own_keeper
from engine.sql import StatementKind, TokenKind, expand_macros, literal_value, parse_statement
from engine.sql.cursor import Cursor
from engine.sql.parse import draft_of

ENGINE = "Replicated"
_KINDS = frozenset({StatementKind.CREATE_DATABASE, StatementKind.ATTACH_DATABASE})
_LITERALS = (TokenKind.STRING, TokenKind.HEREDOC)
_MOST_ARGUMENTS = 3


@dataclass(frozen=True, slots=True)
class CreateText:
    """`arguments` are path, shard and replica as they were written, macros and all; those that are missing
    have their defaults. `settings` are texts, strings without their quotes."""

    name: str
    arguments: tuple[str, str, str]
    uuid: UUID | None = None
    if_not_exists: bool = False
    settings: Mapping[str, str] = field(default_factory=dict)
    comment: str = ""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a database is in Keeper: macros expanded."""

    path: str
    shard: str
    replica: str

    @property
    def full_name(self) -> str:
        return f"{self.shard}|{self.replica}"


def is_create_replicated(sql: str) -> bool:
    statement = parse_statement(sql)
    return statement.kind in _KINDS and statement.engine == ENGINE


def parse_create(sql: str, defaults: tuple[str, str, str]) -> CreateText:
    """Raises SqlError 36 for arguments that cannot be, 62 for what is no statement."""
    d = draft_of(sql)
    statement = d.statement()
    cursor = Cursor(sql)
    cursor.at = d.body or 0
    cursor.skip_to("ENGINE")
    cursor.at += 1
    cursor.accept("=")
    cursor.identifier()
    arguments = _arguments(cursor)
    settings: dict[str, str] = {}
    comment = ""
    while not cursor.at_end:
        if cursor.accept("SETTINGS"):
            settings |= _settings(cursor)
        elif cursor.accept("COMMENT"):
            comment = cursor.identifier_or_string() or ""
        elif cursor.accept("FORMAT"):
            cursor.identifier()
        else:
            text = cursor.token.text
            raise SqlError(Code.SYNTAX_ERROR, f"Syntax error at '{text}' behind the engine of a database")
    first, second, third = (*arguments, *defaults[len(arguments) :])
    return CreateText(
        name=statement.database or "",
        arguments=(first, second, third),
        uuid=_uuid(statement.uuid),
        if_not_exists=statement.if_not_exists,
        settings=settings,
        comment=comment,
    )


def place_of(
    arguments: tuple[str, str, str], *, macros: Mapping[str, str], uuid: UUID, takes_uuid: bool
) -> Place:
    """Macros expanded. `takes_uuid`: the UUID is the same on all hosts, so that `{uuid}` may be in the path.

    Raises SqlError 36 and 139.
    """
    path, shard, replica = arguments
    if "{uuid}" in path and not takes_uuid and "uuid" not in macros:
        raise SqlError(
            Code.BAD_ARGUMENTS,
            "Macro 'uuid' is supported in the path of a Replicated database only for ON CLUSTER queries and "
            "where the UUID is given",
            hint="Each server would make up a UUID of its own: use ON CLUSTER, or write UUID '…' behind the "
            "database's name, or give a path.",
        )
    path = expand_macros(path, {**macros, "uuid": str(uuid)})
    place = Place(_normalized(path), expand_macros(shard, macros), expand_macros(replica, macros))
    if not place.path.strip("/") or not place.shard or not place.replica:
        raise SqlError(Code.BAD_ARGUMENTS, "ZooKeeper path, shard and replica names must be non-empty")
    for name in (place.shard, place.replica):
        if "/" in name or "|" in name:
            raise SqlError(
                Code.BAD_ARGUMENTS,
                f"Shard and replica names should not contain '/' and '|', but there are {place.shard} and "
                f"{place.replica}",
            )
    return place


def _normalized(path: str) -> str:
    """A leading slash and none behind. Raises SqlError 48 for one of another Keeper than the node's."""
    path = path_in_own_keeper(path).rstrip("/")
    return path if path.startswith("/") else f"/{path}"


def shown_create(name: str, text: CreateText, *, uuid: UUID | None = None) -> str:
    """As SHOW CREATE DATABASE shows it; with `uuid` as it is kept in a file."""
    behind = "" if uuid is None else f" UUID {quote_string(str(uuid))}"
    shown = f"CREATE DATABASE {quote_identifier(name)}{behind}\nENGINE = {engine_full(text)}"
    return shown + (f"\nCOMMENT {quote_string(text.comment)}" if text.comment else "")


def engine_full(text: CreateText) -> str:
    """The engine with its arguments and settings, as `system.databases` shows it."""
    engine = f"{ENGINE}({', '.join(map(quote_string, text.arguments))})"
    settings = ", ".join(f"{name} = {_literal(value)}" for name, value in text.settings.items())
    return engine + (f" SETTINGS {settings}" if settings else "")


def _arguments(cursor: Cursor) -> list[str]:
    found: list[str] = []
    if not cursor.accept("("):
        return found
    while not cursor.accept(")"):
        if cursor.token.kind not in _LITERALS:
            raise SqlError(
                Code.BAD_ARGUMENTS,
                "Arguments of a Replicated database are strings: zookeeper path, shard name and replica name",
            )
        found.append(literal_value(cursor.token))
        cursor.at += 1
        if not cursor.accept(",") and cursor.word != ")":
            raise SqlError(Code.SYNTAX_ERROR, "Syntax error in the arguments of a database's engine")
    if len(found) > _MOST_ARGUMENTS:
        raise SqlError(
            Code.BAD_ARGUMENTS,
            "Replicated database requires 3 arguments: zookeeper path, shard name and replica name",
        )
    return found


def _settings(cursor: Cursor) -> dict[str, str]:
    found: dict[str, str] = {}
    while True:
        setting = cursor.setting_name()
        if setting is None:
            raise SqlError(Code.SYNTAX_ERROR, "Syntax error in the SETTINGS of a database")
        name, has_value = setting
        found[name] = "1"
        if has_value:
            sign = "-" if cursor.accept("-") else ""
            found[name] = sign + literal_value(cursor.token)
            cursor.at += 1
        if not cursor.accept(","):
            return found


def _literal(value: str) -> str:
    try:
        float(value)
    except ValueError:
        return quote_string(value)
    return value


def _uuid(text: str | None) -> UUID | None:
    if text is None:
        return None
    try:
        return UUID(text)
    except ValueError:
        raise SqlError(Code.CANNOT_PARSE_TEXT, f"Cannot parse uuid {text}") from None
