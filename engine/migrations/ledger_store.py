"""The ledger's database: connections, transactions, and what its refusals mean.

SQLite by default (a path or `sqlite:///path`), PostgreSQL by `postgresql://…` (through psycopg2). Writers of
one SQLite file wait for each other up to `BUSY_TIMEOUT_S`; readers never wait. Connections are not kept, so
a ledger may be used after a fork. Calls block for some milliseconds.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, Engine, event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from engine.env import Env
from engine.errors import ConfigError
from engine.migrations import ledger_schema as schema
from engine.migrations.errors import LedgerCorrupt, LedgerUnavailable, MigrationRefused, StaleFence

BUSY_TIMEOUT_S = 30
_MODE = "oncluster_begin"
_DRIVERS = {
    "sqlite": "sqlite+pysqlite",
    "postgres": "postgresql+psycopg2",
    "postgresql": "postgresql+psycopg2",
}


class LedgerStore:
    """Opening makes the tables where there are none.

    Raises ConfigError (the URL), LedgerUnavailable, MigrationRefused (a newer schema).
    """

    def __init__(self, url: str | Path, *, env: Env) -> None:
        self._env = env
        self._engine = _engine(url)
        self.ledger_id = self._open()

    @property
    def url(self) -> str:
        """Where it is, the password hidden."""
        return self._engine.url.render_as_string(hide_password=True)

    def now_ms(self) -> int:
        return int(self._env.now_s() * 1000)

    @contextlib.contextmanager
    def reading(self) -> Iterator[Connection]:
        """A connection on which all reads see the same instant. Raises LedgerUnavailable."""
        with self._connected("DEFERRED") as connection:
            if connection.dialect.name == "postgresql":
                connection.execute(sa.text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY"))
            yield connection

    @contextlib.contextmanager
    def writing(self) -> Iterator[Connection]:
        """One transaction. Raises StaleFence, MigrationRefused and LedgerUnavailable as the database says."""
        with self._connected("IMMEDIATE") as connection:
            yield connection

    @contextlib.contextmanager
    def _connected(self, mode: str) -> Iterator[Connection]:
        try:
            with self._engine.connect().execution_options(**{_MODE: mode}) as connection, connection.begin():
                yield connection
        except SQLAlchemyError as error:
            raise _classified(error, self.url) from error

    def _open(self) -> str:
        with self.reading() as connection:
            state = schema.schema_state(connection)
        if state is None:
            with self.writing() as connection:
                if connection.dialect.name == "postgresql":
                    connection.execute(
                        sa.text("SELECT pg_advisory_xact_lock(hashtextextended('oncluster', 0))")
                    )
                schema.create_schema(connection, ledger_id=str(self._env.new_uuid()), at_ms=self.now_ms())
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


# --- connecting -------------------------------------------------------------------------------------------


def _engine(url: str | Path) -> Engine:
    text = str(url)
    if "://" not in text:
        path = Path(text).absolute()
        text = f"sqlite:///{path}"
    try:
        parsed = make_url(text)
        backend = parsed.drivername.partition("+")[0]
        if backend not in _DRIVERS:
            raise ConfigError(
                f"The ledger cannot be kept in {backend}.",
                hint="Use a path or sqlite:///path, or postgresql://user:password@host/database.",
            )
        parsed = parsed.set(drivername=_DRIVERS[backend])
        if backend == "sqlite":
            if not parsed.database or parsed.database == ":memory:":
                raise ConfigError("The ledger needs a file: a database in memory is gone with its process.")
            Path(parsed.database).parent.mkdir(parents=True, exist_ok=True)
        engine = sa.create_engine(parsed, poolclass=NullPool)
    except (ArgumentError, NoSuchModuleError) as error:
        raise ConfigError("The ledger's URL cannot be read.", hint=str(error)) from error
    except ImportError as error:
        raise ConfigError(
            "The ledger is in PostgreSQL and its driver is missing.", hint="Install oncluster[postgres]."
        ) from error
    except OSError as error:
        raise LedgerUnavailable(f"The ledger's folder cannot be made: {error}") from error
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
    return engine


def _prepare_sqlite(dbapi_connection: Any, _record: object) -> None:
    # The driver's own handling of transactions begins them late, after the reads on which writes rest.
    dbapi_connection.isolation_level = None
    cursor = dbapi_connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_S * 1000}")
    cursor.execute("PRAGMA journal_mode = WAL")
    cursor.execute("PRAGMA synchronous = FULL")
    cursor.execute("PRAGMA foreign_keys = ON")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    connection.exec_driver_sql(f"BEGIN {connection.get_execution_options().get(_MODE, 'IMMEDIATE')}")


def _classified(error: SQLAlchemyError, url: str) -> Exception:
    """The triggers' refusals by their codes; a foreign key names something that was never recorded."""
    if not isinstance(error, DBAPIError):
        return LedgerUnavailable(f"The ledger at {url} cannot be used: {error}")
    message = str(error.orig)
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
            return LedgerUnavailable(f"The ledger at {url} cannot be used: {message}")
