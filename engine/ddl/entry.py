"""The text of a queue entry (`query-NNNNNNNNNN`), versions 1, 2 and 4 to 8, byte for byte as in ClickHouse.

    version: 5
    query: <escaped>
    hosts: ['h1:9000','h2:9000']
    initiator: h1:9000
    settings: a = 1, b = 'x'
    tracing: <uuid> LF <span id> LF <tracestate> LF <flags>
    initial_query_id: <escaped>
    is_backup_restore: 0
    parent: -
    initiator_user: alice
    initiator_roles: ['r1']

Version 3 never appears in an entry: as a setting it asks the initiator to normalise a CREATE and to write
version 2.
Source: ClickHouse's DDLLogEntry.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from uuid import UUID

from engine.ddl.text import TextReader, decode_bytes, encode_bytes, escape, string_array, unescape
from engine.errors import Code, MalformedEntry, SqlError
from engine.names import HostId

OLDEST_VERSION = 1
SETTINGS_VERSION = 2
NORMALIZE_CREATE_VERSION = 3
TRACING_VERSION = 4
INITIAL_QUERY_ID_VERSION = 5
BACKUP_RESTORE_VERSION = 6
PARENT_VERSION = 7
INITIATOR_USER_VERSION = 8
MAX_VERSION = INITIATOR_USER_VERSION
DEFAULT_VERSION = INITIAL_QUERY_ID_VERSION

MAX_ENTRY_BYTES = 1024 * 1024 - 1024
"""ZooKeeper refuses requests over 1 MiB (`jute.maxbuffer`); the rest of the request needs a little room."""

_NO_UUID = UUID(int=0)
_STRING = r"'(?:[^'\\]|\\.|'')*+'"
_BRACKETS = "|".join(rf"\{a}(?:[^\{z}']|{_STRING})*+\{z}" for a, z in ("[]", "{}", "()"))
"""What stands in a string within them does not end them."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")
_SETTING = re.compile(rf"\s*({_NAME.pattern})\s*=\s*({_STRING}|{_BRACKETS}|[^',\s]+)\s*(,|\Z)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Tracing:
    """An OpenTelemetry context. All zero means that the statement is not traced."""

    trace_id: UUID = _NO_UUID
    span_id: int = 0
    tracestate: str = ""
    flags: int = 0


@dataclass(frozen=True, slots=True)
class Setting:
    """One changed setting of the session; `literal` is its value as an SQL literal (`1`, `'x'`)."""

    name: str
    literal: str

    @property
    def value(self) -> str:
        """The value without quotes, as a settings parameter of the HTTP interface wants it."""
        if self.literal.startswith("'"):
            return unescape(self.literal[1:-1].replace("''", "'"))
        return self.literal

    @classmethod
    def of(cls, name: str, value: str) -> Setting:
        """A setting from its plain value: numbers stay bare, everything else is quoted.

        Raises SqlError 115 for a name that cannot stand in an entry.
        """
        if not _NAME.fullmatch(name):
            raise SqlError(Code.UNKNOWN_SETTING, f"Unknown setting '{name}'")
        bare = re.fullmatch(r"-?\d+(\.\d+)?", value) is not None
        return cls(name, value if bare else f"'{escape(value)}'")


@dataclass(frozen=True, slots=True)
class DDLLogEntry:
    """One statement for a list of hosts.

    `initiator` is the escaped host id of the sender, empty when it is nobody, None when the line is absent
    (which a reader accepts up to version 4). `parent` None is written as `-`.
    """

    version: int
    query: str
    hosts: tuple[HostId, ...]
    initiator: str | None = ""
    settings: tuple[Setting, ...] = ()
    tracing: Tracing = field(default_factory=Tracing)
    initial_query_id: str = ""
    is_backup_restore: bool = False
    parent: UUID | None = None
    initiator_user: str = ""
    initiator_roles: tuple[str, ...] = ()

    @property
    def distinct_hosts(self) -> tuple[HostId, ...]:
        """The hosts, each once. ClickHouse names a server for each replica that it holds, and it reports
        once."""
        return tuple(dict.fromkeys(self.hosts))

    @property
    def setting_values(self) -> Mapping[str, str]:
        """Settings as plain values by name; a later one of the same name wins."""
        return {setting.name: setting.value for setting in self.settings}

    def to_bytes(self) -> bytes:
        """Raises SqlError 287 UNKNOWN_FORMAT_VERSION for a version that may not be written."""
        if (
            self.version not in range(OLDEST_VERSION, MAX_VERSION + 1)
            or self.version == NORMALIZE_CREATE_VERSION
        ):
            raise SqlError(Code.UNKNOWN_FORMAT_VERSION, _version_message(self.version))
        lines = [f"version: {self.version}", f"query: {escape(self.query)}"]
        if self.version == OLDEST_VERSION or self.hosts:
            lines.append(f"hosts: {_hosts_text(self.hosts)}")
        if self.initiator is not None or self.version >= INITIAL_QUERY_ID_VERSION:
            lines.append(f"initiator: {self.initiator or ''}")
        if self.version >= SETTINGS_VERSION and self.settings:
            lines.append("settings: " + ", ".join(f"{s.name} = {s.literal}" for s in self.settings))
        if self.version >= TRACING_VERSION:
            tracing = self.tracing
            lines.append(f"tracing: {tracing.trace_id}\n{tracing.span_id}\n{escape(tracing.tracestate)}")
            lines.append(str(tracing.flags))
        if self.version >= INITIAL_QUERY_ID_VERSION:
            lines.append(f"initial_query_id: {escape(self.initial_query_id)}")
        if self.version >= BACKUP_RESTORE_VERSION:
            lines.append(f"is_backup_restore: {int(self.is_backup_restore)}")
        if self.version >= PARENT_VERSION:
            lines.append(f"parent: {self.parent or '-'}")
        if self.version >= INITIATOR_USER_VERSION:
            lines.append(f"initiator_user: {self.initiator_user}")
            lines.append(f"initiator_roles: {string_array(self.initiator_roles)}")
        return encode_bytes("\n".join(lines) + "\n")

    @classmethod
    def from_bytes(cls, data: bytes, *, where: str = "") -> DDLLogEntry:
        """Parse an entry; `where` names it in errors.

        Raises MalformedEntry with the code a real server reports: 287 for a version that is not known, 26 for
        a host list that is not quoted, 62 for a host id without port, 27 for everything else.
        """
        reader = TextReader(decode_bytes(data), where=where)
        reader.expect("version: ")
        version = reader.integer()
        if version not in range(OLDEST_VERSION, MAX_VERSION + 1) or version == NORMALIZE_CREATE_VERSION:
            raise MalformedEntry(_version_message(version), where=where, code=Code.UNKNOWN_FORMAT_VERSION)
        reader.expect("\n")
        query = _line(reader, "query: ", reader.escaped)
        hosts: tuple[HostId, ...] = ()
        initiator: str | None = None
        settings: tuple[Setting, ...] = ()
        if version == OLDEST_VERSION or reader.peek() == "h":
            hosts = _parse_hosts(reader, where)
        if reader.peek() == "i" or (version == OLDEST_VERSION and not reader.at_end):
            initiator = _line(reader, "initiator: ", reader.raw)
        if version >= SETTINGS_VERSION and reader.peek() == "s":
            settings = _parse_settings(_line(reader, "settings: ", reader.raw), reader)
        tracing = _parse_tracing(reader) if version >= TRACING_VERSION and reader.peek() == "t" else Tracing()
        initial_query_id = ""
        is_backup_restore = False
        parent: UUID | None = None
        initiator_user = ""
        initiator_roles: tuple[str, ...] = ()
        if version >= INITIAL_QUERY_ID_VERSION:
            initial_query_id = _line(reader, "initial_query_id: ", reader.escaped)
        if version >= BACKUP_RESTORE_VERSION:
            is_backup_restore = _parse_flag(reader)
        if version >= PARENT_VERSION:
            text = _line(reader, "parent: ", reader.raw)
            parent = None if text == "-" else _parse_uuid(text, reader)
        if version >= INITIATOR_USER_VERSION:
            initiator_user = _line(reader, "initiator_user: ", reader.raw)
            reader.expect("initiator_roles: ")
            initiator_roles = reader.strings()
            reader.expect("\n")
        reader.end()
        return cls(
            version=version,
            query=query,
            hosts=hosts,
            initiator=initiator,
            settings=settings,
            tracing=tracing,
            initial_query_id=initial_query_id,
            is_backup_restore=is_backup_restore,
            parent=parent,
            initiator_user=initiator_user,
            initiator_roles=initiator_roles,
        )


def _version_message(version: int) -> str:
    return f"Unknown DDLLogEntry format version: {version}.Maximum supported version is {MAX_VERSION}"


def _line(reader: TextReader, name: str, value: Callable[[], str]) -> str:
    """One `name: value` line; `value` is the reader's method for the value."""
    reader.expect(name)
    text = value()
    reader.expect("\n")
    return text


@functools.lru_cache(maxsize=256)
def _hosts_text(hosts: tuple[HostId, ...]) -> str:
    return string_array(tuple(str(host) for host in hosts))


@functools.lru_cache(maxsize=256)
def _host_ids(line: str) -> tuple[HostId, ...]:
    """Entries of one cluster repeat one list; with a thousand hosts parsing it each time would cost more than
    everything else in the entry. Raises MalformedEntry."""
    reader = TextReader(line)
    texts = reader.strings()
    reader.end()
    try:
        return tuple(HostId.parse(text) for text in texts)
    except SqlError as error:
        raise MalformedEntry(error.message, code=error.code) from None


def _parse_hosts(reader: TextReader, where: str) -> tuple[HostId, ...]:
    line = _line(reader, "hosts: ", reader.raw)
    try:
        return _host_ids(line)
    except MalformedEntry as error:
        raise MalformedEntry(error.message, where=where, code=error.code) from None


def _parse_settings(text: str, reader: TextReader) -> tuple[Setting, ...]:
    settings: list[Setting] = []
    at = 0
    while at < len(text) or not settings:
        match = _SETTING.match(text, at)
        if not match or (match.group(3) == "," and match.end() == len(text)):
            raise reader.error(f"cannot parse settings: {text[at : at + 60]}", code=Code.SYNTAX_ERROR)
        settings.append(Setting(match.group(1), match.group(2)))
        at = match.end()
    return tuple(settings)


def _parse_tracing(reader: TextReader) -> Tracing:
    trace_id = _parse_uuid(_line(reader, "tracing: ", reader.raw), reader)
    span_id = reader.integer()
    reader.expect("\n")
    tracestate = reader.escaped()
    reader.expect("\n")
    flags = reader.integer()
    reader.expect("\n")
    return Tracing(trace_id, span_id, tracestate, flags)


def _parse_flag(reader: TextReader) -> bool:
    text = _line(reader, "is_backup_restore: ", reader.raw)
    if text not in ("0", "1"):
        raise reader.error(f"expected 0 or 1, not {text[:20]}")
    return text == "1"


def _parse_uuid(text: str, reader: TextReader) -> UUID:
    if re.fullmatch(r"[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}", text):
        return UUID(text)
    raise reader.error(f"expected a UUID, not {text[:40]}")
