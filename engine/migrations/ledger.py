"""The record of what was applied: a SQL database, appended to and never changed.

Safety argument.
1. Every row says what was meant or seen: an attempt is written with its token and its hosts before it is
   sent; the entry, once the queue has it; a host's state, each time it had changed. Nothing is updated or
   deleted (M2); the database refuses it (`ledger_schema`, which lists the triggers).
2. Every write carries the number under which its run holds the cluster's lock (the fence). The database takes
   only the greatest number that was registered, so that a holder who slept through the loss of its lock
   cannot write after its successor (M3).
3. `applied` and `rolled_back` are taken only when every required host of every statement is `done` (M6).
4. Every write is keyed by what it says. After a crash, or an answer that got lost, writing again adds
   nothing.
What a crash leaves: an attempt without an entry (look for its token in the queue, then send it), an entry
without outcomes (look at it again). The ledger never says more than what happened.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy import Connection

from engine.env import Env
from engine.migrations import ledger_schema as schema
from engine.migrations.files import Direction
from engine.migrations.ledger_store import LedgerStore
from engine.migrations.ledger_writer import Attempt, LedgerWriter
from engine.migrations.states import (
    CellState,
    Event,
    LedgerRow,
    MigrationEvent,
    MigrationRecord,
    RunState,
    records,
)
from engine.names import HostId

_OVERTAKEN = "ended without a word: its process died, or lost its lock"


@dataclass(frozen=True, slots=True)
class RunRow:
    """One run and its latest state."""

    run_id: str
    direction: Direction
    target: int | None
    requested_by: str
    approved_by: str
    fence: int
    at_ms: int
    state: RunState
    note: str
    ended_ms: int | None


class Ledger:
    """Reading, and `writer()` for writing. The first write makes the tables where there are none."""

    def __init__(self, url: str | Path, *, env: Env) -> None:
        """Raises ConfigError (the URL), LedgerUnavailable, MigrationRefused (a newer schema)."""
        self._store = LedgerStore(url, env=env)

    @property
    def url(self) -> str:
        """Where it is, the password hidden."""
        return self._store.url

    @property
    def is_made(self) -> bool:
        """Whether there is a ledger at that address; reading makes none. Raises LedgerUnavailable."""
        return self._store.is_made

    @property
    def ledger_id(self) -> str:
        """A UUID, made with the tables, now where there are none; Keeper remembers which ledger a cluster's
        migrations are in."""
        return self._store.ledger_id

    # --- reading ------------------------------------------------------------------------------------------

    def max_fence(self, cluster: str) -> int:
        """The greatest fence registered for the cluster, 0 if none."""
        column = schema.fences.c
        with self._store.reading() as connection:
            found = connection.scalar(sa.select(sa.func.max(column.fence)).where(column.cluster == cluster))
        return int(found or 0)

    def clusters(self) -> set[str]:
        """Those of which there is a migration's event."""
        with self._store.reading() as connection:
            return set(connection.scalars(sa.select(schema.migrations.c.cluster).distinct()))

    def events(self, cluster: str) -> list[MigrationEvent]:
        """All events of the cluster's migrations, oldest first."""
        with self._store.reading() as connection:
            return _events(connection, cluster)

    def rows(self, cluster: str) -> list[LedgerRow]:
        """The ledger: one row per migration, statement and host, every generation."""
        with self._store.reading() as connection:
            return _rows(connection, cluster)

    def records(self, cluster: str) -> dict[int, MigrationRecord]:
        """Versions to what is known of them, read at one instant."""
        with self._store.reading() as connection:
            return records(_events(connection, cluster), _rows(connection, cluster))

    def record(self, cluster: str, version: int, *, statement: int | None = None) -> MigrationRecord | None:
        """What is known of one version; None if nothing is.

        With `statement` there are its rows only, so that a run does not read all of them for each; whether
        the state is open is right then, and not which of the open ones it is.
        """
        with self._store.reading() as connection:
            rows = _rows(connection, cluster, version, statement)
            found = records(_events(connection, cluster, version), rows)
        return found.get(version)

    def has_failures(self, cluster: str) -> bool:
        """Whether any host ever failed or expired; cheap, for leaving out dearer questions."""
        column = schema.outcomes.c
        failed = column.state.in_([state.value for state in CellState if state.is_failure])
        with self._store.reading() as connection:
            found = connection.execute(
                sa.select(column.id).where(column.cluster == cluster, failed).limit(1)
            ).first()
        return found is not None

    def attempts(self, cluster: str, version: int, direction: Direction, generation: int) -> list[Attempt]:
        """Every attempt at the statements of one migration, in order of statement and attempt."""
        s, h = schema.statements.c, schema.statement_hosts.c
        with self._store.reading() as connection:
            found = connection.execute(
                sa.select(schema.statements)
                .where(
                    s.cluster == cluster,
                    s.version == version,
                    s.direction == direction.value,
                    s.generation == generation,
                )
                .order_by(s.statement, s.attempt)
            ).all()
            hosts: dict[str, list[HostId]] = {row.token: [] for row in found}
            for row in connection.execute(
                sa.select(h.token, h.host, h.port).where(h.token.in_(list(hosts))).order_by(h.host, h.port)
            ):
                hosts[row.token].append(HostId(row.host, row.port))
        return [
            Attempt(
                token=row.token,
                version=row.version,
                title=row.title,
                direction=Direction(row.direction),
                generation=row.generation,
                statement=row.statement,
                attempt=row.attempt,
                line=row.line,
                statement_checksum=row.statement_checksum,
                file_checksum=row.file_checksum,
                sql=row.sql,
                hosts=tuple(hosts[row.token]),
            )
            for row in found
        ]

    def entry(self, token: str) -> str | None:
        """The queue entry that an attempt became; None while nobody has recorded it."""
        column = schema.submissions.c
        with self._store.reading() as connection:
            found = connection.scalar(sa.select(column.entry).where(column.token == token))
        return None if found is None else str(found)

    def runs(self, cluster: str) -> list[RunRow]:
        """Every run, oldest first by its lock, since clocks may jump, with its latest state.

        One that has recorded no end and whose lock another has taken is `unfinished`: it can write nothing
        any more.
        """
        r, e, f = schema.runs.c, schema.run_events.c, schema.fences.c
        with self._store.reading() as connection:
            holder = connection.scalar(
                sa.select(f.run_id).where(f.cluster == cluster).order_by(f.fence.desc()).limit(1)
            )
            last = {
                row.run_id: row
                for row in connection.execute(
                    sa.select(schema.run_events).where(e.cluster == cluster).order_by(e.id)
                )
            }
            found = connection.execute(
                sa.select(schema.runs).where(r.cluster == cluster).order_by(r.fence)
            ).all()
        result = []
        for row in found:
            event = last.get(row.run_id)
            state = RunState(event.state) if event is not None else RunState.RUNNING
            is_overtaken = state is RunState.RUNNING and row.run_id != holder
            result.append(
                RunRow(
                    run_id=row.run_id,
                    direction=Direction(row.direction),
                    target=row.target,
                    requested_by=row.requested_by,
                    approved_by=row.approved_by,
                    fence=row.fence,
                    at_ms=row.at_ms,
                    state=RunState.UNFINISHED if is_overtaken else state,
                    note=_OVERTAKEN if is_overtaken else event.note if event is not None else "",
                    ended_ms=event.at_ms if event is not None else None,
                )
            )
        return result

    def run_state(self, cluster: str, run_id: str) -> RunState | None:
        """The latest of a run; None of one that has not begun."""
        e = schema.run_events.c
        with self._store.reading() as connection:
            found = connection.scalar(
                sa.select(e.state)
                .where(e.cluster == cluster, e.run_id == run_id)
                .order_by(e.id.desc())
                .limit(1)
            )
        return None if found is None else RunState(found)

    # --- writing ------------------------------------------------------------------------------------------

    def register_fence(self, cluster: str, fence: int, *, run_id: str, holder: str) -> None:
        """From now on only writes under `fence` are taken. Repeating it for the same run is harmless.

        Raises StaleFence when a greater one, or the same of another run, is there already.
        """
        table = schema.fences
        with self._store.writing() as connection:
            # Before the reads: another process of the run may be about to register the same fence.
            schema.lock_fences(connection, cluster)
            found = connection.execute(
                sa.select(table.c.run_id).where(table.c.cluster == cluster, table.c.fence == fence)
            ).first()
            greatest = connection.scalar(
                sa.select(sa.func.max(table.c.fence)).where(table.c.cluster == cluster)
            )
            if found is not None and found.run_id == run_id and greatest == fence:
                return
            connection.execute(
                table.insert().values(
                    cluster=cluster, fence=fence, run_id=run_id, holder=holder, at_ms=self._store.now_ms()
                )
            )

    def writer(self, cluster: str, *, run_id: str, fence: int) -> LedgerWriter:
        return LedgerWriter(self._store, cluster=cluster, run_id=run_id, fence=fence)


def _events(connection: Connection, cluster: str, version: int | None = None) -> list[MigrationEvent]:
    column = schema.migrations.c
    wanted = [column.cluster == cluster] + ([] if version is None else [column.version == version])
    return [
        MigrationEvent(
            version=row.version,
            title=row.title,
            direction=Direction(row.direction),
            generation=row.generation,
            event=Event(row.event),
            statements=row.statements,
            file_checksum=row.file_checksum,
            run_id=row.run_id,
            done_by=row.done_by,
            note=row.note,
            at_ms=row.at_ms,
        )
        for row in connection.execute(sa.select(schema.migrations).where(*wanted).order_by(column.id))
    ]


_VIEW = sa.table(
    "oncluster_ledger",
    sa.column("version", schema.UInt64()),
    *map(sa.column, schema.VIEW_COLUMNS),
)


def _rows(
    connection: Connection, cluster: str, version: int | None = None, statement: int | None = None
) -> list[LedgerRow]:
    c = _VIEW.c
    wanted = [c.cluster == cluster] + ([] if version is None else [c.version == version])
    wanted += [] if statement is None else [c.statement == statement]
    return [
        LedgerRow(
            version=row.version,
            title=row.title,
            direction=Direction(row.direction),
            generation=row.generation,
            statement=row.statement,
            host=HostId(row.host, row.port),
            state=CellState(row.state),
            code=row.code,
            error=row.error,
            started_ms=row.started_ms,
            finished_ms=row.finished_ms,
            duration_ms=row.duration_ms,
            attempt=row.attempt,
            token=row.token,
            entry=row.entry or "",
            submission=row.submission or "",
            line=row.line,
            sql=row.sql,
            statement_checksum=row.statement_checksum,
            file_checksum=row.file_checksum,
            run_id=row.run_id,
            recorded_ms=row.recorded_ms,
            observed_ms=row.observed_ms,
        )
        for row in connection.execute(
            sa.select(_VIEW)
            .where(*wanted)
            .order_by(c.version, c.generation, c.direction.desc(), c.statement, c.host, c.port)
        )
    ]
