"""Which migration explains a drift: what the ledger has of the object on that host. Reads only.

The last statement that concerns the object and is not done on the host is the explanation; when all are done
there and on the others, the host was changed since, outside of migrations. Where this cluster's migrations
say nothing of the object, those of another cluster of the host are asked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from engine.env import Env
from engine.errors import OnclusterError, SqlError
from engine.migrations.files import Direction
from engine.migrations.ledger import Ledger
from engine.migrations.states import CellState, LedgerRow, MigrationRecord, MigrationState
from engine.names import HostId
from engine.operations.drift.model import Drift, DriftKind, Explanation, ObjectName, Space
from engine.sql import parse_statement

_UNKNOWN = "No migration concerns it: it was made, changed or removed outside of migrations."


@dataclass(frozen=True, slots=True)
class LedgerView:
    """What is needed of the ledger. `note` says why there is nothing."""

    records: Mapping[int, MigrationRecord]
    note: str = ""


@dataclass(frozen=True, slots=True)
class OtherLedger:
    """What the migrations of another cluster say, and its hosts."""

    cluster: str
    hosts: frozenset[HostId]
    ledger: LedgerView


def read_ledger(url: str, cluster: str, env: Env) -> LedgerView:
    """Never makes a ledger where there is none, and raises nothing."""
    if not url:
        return LedgerView({}, "No ledger is named, so nothing explains the differences.")
    try:
        ledger = Ledger(url, env=env)
        if not ledger.is_made:
            return LedgerView({}, f"There is no ledger at {ledger.url}, so nothing explains the differences.")
        return LedgerView(ledger.records(cluster))
    except OnclusterError as error:
        return LedgerView({}, f"The ledger was not read: {error}")


def explained(
    drifts: Iterable[Drift], ledger: LedgerView, others: Iterable[OtherLedger]
) -> tuple[Drift, ...]:
    """Each drift with what the ledger knows of it."""
    if ledger.note:
        return tuple(drifts)
    own = mentions(ledger.records.values())
    elsewhere = [
        (other.hosts, mentions(other.ledger.records.values(), cluster=other.cluster)) for other in others
    ]

    def of(drift: Drift) -> list[_Mention]:
        for found in (own, *(found for hosts, found in elsewhere if drift.host in hosts)):
            if drift.object in found:
                return found[drift.object]
        return []

    return tuple(replace(drift, explanation=_explanation(drift, of(drift))) for drift in drifts)


@dataclass(frozen=True, slots=True)
class _Mention:
    """A statement of a migration that concerns an object, with what became of it on each host."""

    record: MigrationRecord
    statement: int
    rows: Mapping[HostId, LedgerRow]
    cluster: str = ""
    """Another one than that which is looked at."""


def mentions(records: Iterable[MigrationRecord], *, cluster: str = "") -> dict[ObjectName, list[_Mention]]:
    """By object, in the order of migrations and statements. `cluster` is named where it is another one."""
    found: dict[ObjectName, list[_Mention]] = {}
    for record in records:
        by_statement: dict[int, dict[HostId, LedgerRow]] = {}
        for row in record.rows:
            by_statement.setdefault(row.statement, {})[row.host] = row
        for statement, rows in sorted(by_statement.items()):
            sql = next(iter(rows.values())).sql
            for name in dict.fromkeys(_objects_of(sql)):
                found.setdefault(name, []).append(_Mention(record, statement, rows, cluster))
    return found


def _objects_of(sql: str) -> Iterator[ObjectName]:
    try:
        statement = parse_statement(sql)
    except SqlError:
        return
    for table in (*statement.tables, *statement.targets):
        yield ObjectName(Space.TABLE, table.database or "default", table.table)
    if not statement.tables:
        for database in (statement.database, statement.new_database):
            if database:
                yield ObjectName(Space.DATABASE, "", database)
        if statement.name:
            yield ObjectName(Space.FUNCTION, "", statement.name)


def _explanation(drift: Drift, mentions: list[_Mention]) -> Explanation | None:
    if drift.kind is DriftKind.PATH:
        return None
    if not mentions:
        return Explanation("", 0, "", _UNKNOWN)
    for mention in reversed(mentions):
        row = mention.rows.get(drift.host)
        if row is None:
            if mention.record.state is MigrationState.ROLLED_BACK:
                continue
            return _told(mention, "never asked", _never_asked(mention, drift))
        if row.state is not CellState.DONE:
            return _told(mention, row.state.value, _not_done(mention, row), row)
    last = mentions[-1]
    row = last.rows.get(drift.host)
    behind = [other for other in last.rows.values() if other.state is not CellState.DONE]
    # Most hosts say what is wanted: those that lack the change, if they are as many as those that have it.
    if row is not None and 2 * len(behind) >= len(last.rows):
        told = _told(last, "done", _others_behind(last, row, behind), row)
        return replace(told, is_ahead=True)
    return _told(
        last,
        "done",
        f"{_title(last)} was the last to concern it and is done there: it was changed since then, outside of "
        "migrations.",
        row,
    )


def _told(mention: _Mention, state: str, what: str, row: LedgerRow | None = None) -> Explanation:
    waits = row is not None and not row.state.is_final
    return Explanation(
        f"{mention.record.version}_{mention.record.title}",
        mention.statement,
        state,
        what,
        row.entry if row is not None else "",
        will_catch_up=waits,
    )


def _title(mention: _Mention) -> str:
    direction = " down" if mention.record.direction is Direction.DOWN else ""
    record = mention.record
    where = f" of {mention.cluster}" if mention.cluster else ""
    return f"Migration {record.version}_{record.title}{direction}{where}, statement {mention.statement},"


def _not_done(mention: _Mention, row: LedgerRow) -> str:
    entry = f" ({row.entry})" if row.entry else ""
    title, host = _title(mention), row.host.readable
    match row.state:
        case CellState.FAILED:
            return f"{title} failed on {host}{entry}: {row.error}"
        case CellState.EXPIRED:
            return f"{title} expired{entry} before {host} came back to do it."
        case CellState.UNKNOWN:
            return f"{title} is unknown on {host}{entry}: {row.error}"
        case CellState.ABANDONED:
            return f"{title} was given up for {host} by a person{entry}: {row.error}"
        case _:
            return f"{title} is {row.state.value} on {host}{entry}; it does it by itself when it can."


def _others_behind(mention: _Mention, row: LedgerRow, behind: list[LedgerRow]) -> str:
    others = ", ".join(f"{other.state.value} on {other.host.readable}" for other in behind)
    return f"{_title(mention)} is done on {row.host.readable}, and {others}: those are behind."


def _never_asked(mention: _Mention, drift: Drift) -> str:
    return f"{_title(mention)} was applied when {drift.host.readable} was not among its hosts."
