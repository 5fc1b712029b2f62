"""The rows of `system.distributed_ddl_queue`: one for each entry and host."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, fields

from engine.ddl.entry import DDLLogEntry, Setting
from engine.ddl.initiator import without_token
from engine.ddl.status import ExecutionStatus
from engine.errors import MalformedEntry, NoNode, SqlError
from engine.keeper.base import Children, Keeper, Node
from engine.names import HostId, QueuePaths, entry_number
from engine.sql import parse_statement, redact, redact_prose

QUEUE_COLUMNS: tuple[tuple[str, str], ...] = (
    ("entry", "String"),
    ("entry_version", "Nullable(UInt8)"),
    ("initiator_host", "Nullable(String)"),
    ("initiator_port", "Nullable(UInt16)"),
    ("cluster", "String"),
    ("query", "String"),
    ("settings", "Map(String, String)"),
    ("query_create_time", "DateTime"),
    ("host", "Nullable(String)"),
    ("port", "Nullable(UInt16)"),
    (
        "status",
        "Nullable(Enum8('Inactive' = 0, 'Active' = 1, 'Finished' = 2, 'Removing' = 3, 'Unknown' = 4))",
    ),
    ("exception_code", "Nullable(UInt16)"),
    ("exception_text", "Nullable(String)"),
    ("query_finish_time", "Nullable(DateTime)"),
    ("query_duration_ms", "Nullable(UInt64)"),
)
"""Names and ClickHouse types of the columns, in their order."""


class QueueState(enum.StrEnum):
    INACTIVE = "Inactive"
    ACTIVE = "Active"
    FINISHED = "Finished"
    REMOVING = "Removing"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True)
class QueueRow:
    """One row; times are Unix seconds. Fields stand in the order of `QUEUE_COLUMNS`."""

    entry: str
    entry_version: int | None
    initiator_host: str | None
    initiator_port: int | None
    cluster: str
    query: str
    settings: Mapping[str, str]
    query_create_time: int
    host: str | None = None
    port: int | None = None
    status: QueueState = QueueState.UNKNOWN
    exception_code: int | None = None
    exception_text: str | None = None
    query_finish_time: int | None = None
    query_duration_ms: int | None = None

    def values(self) -> tuple[object, ...]:
        return tuple(getattr(self, field.name) for field in fields(self))


async def read_queue_rows(keeper: Keeper, paths: QueuePaths) -> list[QueueRow]:
    """All rows, entry by entry: finished hosts first, then active ones, then the rest."""
    try:
        names = [n for n in (await keeper.children(paths.root)).names if entry_number(n) is not None]
    except NoNode:
        return []
    nodes = await keeper.get_many([paths.entry(name) for name in names])
    finished = await keeper.children_many([paths.finished(name) for name in names])
    active = await keeper.children_many([paths.active(name) for name in names])
    status_paths = [
        paths.finished(name, host)
        for name, children in zip(names, finished, strict=True)
        if isinstance(children, Children)
        for host in children.names
    ]
    statuses = dict(zip(status_paths, await keeper.get_many(status_paths), strict=True))
    rows: list[QueueRow] = []
    for name, node, done, running in zip(names, nodes, finished, active, strict=True):
        if not isinstance(node, Node):
            continue  # removed while we were reading
        done_names = done.names if isinstance(done, Children) else None
        running_names = running.names if isinstance(running, Children) else None
        base, hosts = _entry_part(name, node)
        known = {
            host: status
            for host in done_names or ()
            if isinstance(status := statuses[paths.finished(name, host)], Node)
        }
        rows += _host_rows(base, hosts, known, running_names, node, has_finished=done_names is not None)
    return rows


def _entry_part(name: str, node: Node) -> tuple[dict[str, object], tuple[HostId, ...]]:
    """The columns that all hosts of an entry share."""
    base: dict[str, object] = {
        "entry": name,
        "entry_version": None,
        "initiator_host": None,
        "initiator_port": None,
        "cluster": "",
        "query": "",
        "settings": {},
        "query_create_time": node.stat.ctime_ms // 1000,
    }
    try:
        entry = DDLLogEntry.from_bytes(node.data, where=name)
    except MalformedEntry:
        return base, ()
    base |= {
        "entry_version": entry.version,
        "query": redact(without_token(entry.query)),
        "settings": {setting.name: _shown_value(setting) for setting in entry.settings},
    }
    if entry.initiator:
        try:
            initiator = HostId.parse(entry.initiator)
            base |= {"initiator_host": initiator.host, "initiator_port": initiator.port}
        except SqlError:
            pass  # a foreign initiator may write anything there; the columns are Nullable for it
    try:
        base["cluster"] = parse_statement(entry.query).on_cluster or ""
    except SqlError:
        pass  # the cluster of a text that does not parse is empty, as in ClickHouse
    return base, entry.distinct_hosts


def _shown_value(setting: Setting) -> str:
    """As in the clause SETTINGS of a statement."""
    shown = redact(f"{setting.name} = {setting.literal}").removeprefix(f"{setting.name} = ")
    return Setting(setting.name, shown).value


def _host_rows(
    base: dict[str, object],
    hosts: tuple[HostId, ...],
    finished: Mapping[str, Node],
    active: tuple[str, ...] | None,
    entry: Node,
    *,
    has_finished: bool,
) -> list[QueueRow]:
    rows = [_finished_row(base, host, node, entry) for host, node in finished.items()]
    rows += [_row(base, host, QueueState.ACTIVE) for host in active or () if host not in finished]
    # `finished` without `active` is what a cleaner leaves while it removes the entry.
    rest = QueueState.REMOVING if active is None and has_finished else QueueState.INACTIVE
    seen = {*finished, *(active or ())}
    rows += [_row(base, str(host), rest) for host in hosts if str(host) not in seen]
    return rows or [QueueRow(**base)]  # type: ignore[arg-type]  # of mixed types


def _finished_row(base: dict[str, object], host: str, node: Node, entry: Node) -> QueueRow:
    status = ExecutionStatus.from_bytes(node.data)
    return _row(
        base,
        host,
        QueueState.FINISHED,
        exception_code=status.code & 0xFFFF,
        exception_text=redact_prose(status.message),
        query_finish_time=node.stat.ctime_ms // 1000,
        query_duration_ms=max(0, node.stat.ctime_ms - entry.stat.ctime_ms),
    )


def _row(base: dict[str, object], host: str, state: QueueState, **more: object) -> QueueRow:
    try:
        host_id = HostId.parse(host)
        address: dict[str, object] = {"host": host_id.host, "port": host_id.port}
    except SqlError:
        address = {"host": host, "port": None}
    return QueueRow(**base, **address, status=state, **more)  # type: ignore[arg-type]  # of mixed types
