"""The ledger's database: its connections and transactions, and what its refusals mean.

Where it can be kept and how: `engine.database`. Calls block for some milliseconds.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from engine import database
from engine.env import Env
from engine.migrations import ledger_schema as schema
from engine.migrations.errors import LedgerCorrupt, LedgerUnavailable, MigrationRefused, StaleFence

_ADVICE = (
    "Is that where it is (--ledger-url, ONCLUSTER_LEDGER_URL), up, writable, and its disk not full? Then try "
    "again: what is recorded already is not recorded twice."
)


class LedgerStore:
    """The first write makes the tables where there are none; opening brings older ones up to date.

    Raises ConfigError (the URL), LedgerUnavailable, MigrationRefused (a newer schema).
    """

    def __init__(self, url: str | Path, *, env: Env) -> None:
        self._env = env
        self._database = database.Database(
            database.database_engine(url, what="ledger"),
            _classified,
            database.Tables(lambda connection: schema.schema_state(connection) is not None, self._make),
        )
        self._ledger_id = self._look() if self.is_made else ""

    @property
    def is_made(self) -> bool:
        """Whether there is a ledger. Makes none. Raises LedgerUnavailable."""
        return self._database.is_made

    @property
    def ledger_id(self) -> str:
        """Makes the ledger where there is none. Raises as opening."""
        if not self._ledger_id:
            self._database.make()
            self._ledger_id = self._look()
        return self._ledger_id

    @property
    def url(self) -> str:
        """Where it is, the password hidden."""
        return self._database.url

    def now_ms(self) -> int:
        return int(self._env.now_s() * 1000)

    def reading(self) -> AbstractContextManager[Connection]:
        """A connection on which all reads see the same instant. Raises LedgerUnavailable."""
        return self._database.reading()

    def writing(self) -> AbstractContextManager[Connection]:
        """One transaction. Raises StaleFence, MigrationRefused and LedgerUnavailable as the database says."""
        return self._database.writing()

    def _make(self, connection: Connection) -> None:
        _lock_schema(connection)
        schema.create_schema(connection, ledger_id=str(self._env.new_uuid()), at_ms=self.now_ms())

    def _look(self) -> str:
        with self.reading() as connection:
            state = schema.schema_state(connection)
        if state is not None and state[0] < schema.SCHEMA_VERSION:
            with self.writing() as connection:
                _lock_schema(connection)
                state = schema.schema_state(connection)
                if state is not None and state[0] < schema.SCHEMA_VERSION:
                    schema.upgrade_schema(connection, ledger_id=state[1], at_ms=self.now_ms())
                    state = schema.schema_state(connection)
        assert state is not None
        version, ledger_id = state
        if version > schema.SCHEMA_VERSION:
            raise MigrationRefused(
                f"The ledger at {self.url} has format {version}; this program knows up to "
                f"{schema.SCHEMA_VERSION}.",
                hint="Use the version of oncluster that wrote it, or a newer one.",
            )
        return ledger_id


def _lock_schema(connection: Connection) -> None:
    """Until the transaction ends; SQLite's writers are alone."""
    if connection.dialect.name == "postgresql":
        connection.execute(sa.text("SELECT pg_advisory_xact_lock(hashtextextended('oncluster', 0))"))


def _classified(error: SQLAlchemyError | OSError, url: str) -> Exception:
    """The triggers' refusals by their codes; a foreign key names something that was never recorded."""
    if not isinstance(error, DBAPIError):
        return LedgerUnavailable(f"The ledger at {url} cannot be used: {error}", hint=_ADVICE)
    message = str(error.orig).strip()
    code = getattr(error.orig, "pgcode", None) or message[:5]
    match code:
        case "OC001" | "OC003":
            return StaleFence(
                "Another run has taken over this cluster's migrations; this one stops here.",
                hint="`oncluster migrate status` shows who. What was sent already is carried out.",
            )
        case "OC002":
            return MigrationRefused("The ledger is append-only.")
        case "OC004":
            return MigrationRefused("Not every required host is done, so the migration is not applied.")
        case _ if isinstance(error, sa.exc.IntegrityError):
            return LedgerCorrupt(f"The ledger at {url} refuses the row: {message}")
        case _:
            return LedgerUnavailable(f"The ledger at {url} cannot be used: {message}", hint=_ADVICE)
